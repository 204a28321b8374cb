"""The authority signs what a party asked for, for so long, and nothing else; and its files are made once, for one reader."""

import os
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.network.authority import Authority, CertificateRequest, file_stem, free_place, new_request, write_new
from eigenveil.network.certificates import Certificate, CertificateClaim, common_name, spki
from eigenveil.protocols.keys import Identity
from network.identity.identity_makers import as_pem, fresh_key

AUTHORITY = Authority.fresh()
NOW = datetime.now(UTC)


def asked_with(claim: CertificateClaim, key: object, *more: x509.ExtensionType) -> bytes:
    """A request for this claim, signed with this TLS key, whether or not it is the one in the claim."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(common_name(claim.name))
    for extension in (*claim.extensions(), *more):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]


def test_a_request_reads_as_it_was_made() -> None:
    request, _ = new_request("north", "peer", ["North.example.org"])
    assert CertificateRequest.read(request.pem) == CertificateRequest.read(request.pem.encode()) == request
    assert (request.name, request.role, request.hosts[1:]) == ("north", "peer", ("north.example.org",))
    certificate = AUTHORITY.sign(request)
    assert (certificate.name, certificate.role, certificate.hosts, certificate.pin) == (
        request.name,
        request.role,
        request.hosts,
        request.pin,
    )


def test_two_requests_share_no_key() -> None:
    (one, private), (two, other) = new_request("north", "site"), new_request("north", "site")
    assert one.public != two.public
    shared = set(private.splitlines()) & set(other.splitlines())
    assert shared == {b"-----BEGIN PRIVATE KEY-----", b"-----END PRIVATE KEY-----"}


def test_a_request_in_hand_says_what_its_text_says() -> None:
    request, _ = new_request("north", "site")
    for other in (replace(request, name="south"), replace(request, role="hub"), replace(request, hosts=())):
        with pytest.raises(ValueError, match="differs from its PEM text"):
            AUTHORITY.sign(other)


def test_a_request_proves_both_keys() -> None:
    mine, theirs, me = fresh_key(), fresh_key(), Identity.fresh()
    about_theirs = CertificateClaim.made("north", "site", (), identity=me, key=spki(theirs.public_key()))
    # The identity signed for another TLS key than the one that signed the request.
    with pytest.raises(ValueError, match="forged or changed"):
        CertificateRequest.read(asked_with(about_theirs, mine))
    # With the right TLS key it would do, so the line above refuses for the stated reason.
    assert CertificateRequest.read(asked_with(about_theirs, theirs)).public == me.public


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_flipped_byte_makes_another_request() -> None:
    request, _ = new_request("north", "site")
    raw = x509.load_pem_x509_csr(request.pem.encode()).public_bytes(Encoding.DER)
    refused = 0
    for at in range(len(raw)):
        found = raw[:at] + bytes([raw[at] ^ 0x01]) + raw[at + 1 :]
        try:
            read = CertificateRequest.read(as_pem(found, "CERTIFICATE REQUEST"))
        except ValueError:
            refused += 1
            continue
        # The number of unused bits in the signature may change where they are zeros; what is signed may not.
        assert (read.name, read.role, read.public, read.hosts) == ("north", "site", request.public, request.hosts)
    assert refused >= len(raw) - 1


@pytest.mark.parametrize(
    ("pem", "words"),
    [
        ("", "not a PEM text"),
        (AUTHORITY.pem, "a certificate, not a certificate request"),
        (new_request("a", "site")[1], "a private key, not"),
        (new_request("a", "site")[0].pem[:300], "truncated"),
        (new_request("a", "site")[0].pem * 2, "nothing else"),
        ("x" * 70_000, "at most 65536"),
        ("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "the request is damaged"),
    ],
)
def test_what_is_no_request_is_refused(pem: str | bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CertificateRequest.read(pem)


def test_a_request_of_another_program_is_refused() -> None:
    key = fresh_key()
    plain = x509.CertificateSigningRequestBuilder().subject_name(common_name("north")).sign(key, SHA256())
    with pytest.raises(ValueError, match="no Eigenveil identity"):
        CertificateRequest.read(plain.public_bytes(Encoding.PEM))


def test_the_authority_may_sign_parties_and_no_authorities() -> None:
    found = x509.load_pem_x509_certificate(AUTHORITY.pem.encode()).extensions
    limits = found.get_extension_for_class(x509.BasicConstraints)
    usage = found.get_extension_for_class(x509.KeyUsage)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)
    assert (AUTHORITY.ends - AUTHORITY.begins).days == 825


def test_a_certificate_is_for_both_ends_of_tls_and_signs_nothing() -> None:
    found = x509.load_pem_x509_certificate(AUTHORITY.sign(new_request("n", "site")[0]).pem.encode()).extensions
    assert set(found.get_extension_for_class(x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.CLIENT_AUTH,
        ExtendedKeyUsageOID.SERVER_AUTH,
    }
    assert not found.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not found.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_what_else_a_request_asks_for_is_not_given() -> None:
    key = fresh_key()
    claim = CertificateClaim.made("n", "site", (), identity=Identity.fresh(), key=spki(key.public_key()))
    greedy = CertificateRequest.read(asked_with(claim, key, x509.BasicConstraints(ca=True, path_length=None)))
    found = x509.load_pem_x509_certificate(AUTHORITY.sign(greedy).pem.encode())
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_certificate_lasts_as_asked_and_never_longer_than_its_authority() -> None:
    request, _ = new_request("north", "site")
    certificate = AUTHORITY.sign(request, days=30)
    assert timedelta(days=29) < certificate.ends - datetime.now(UTC) <= timedelta(days=30)
    assert certificate.begins < NOW
    assert AUTHORITY.sign(request, days=3000).ends == AUTHORITY.ends
    assert (AUTHORITY.sign(request).ends - datetime.now(UTC)).days in {364, 365}
    assert AUTHORITY.sign(request).begins >= AUTHORITY.begins


@pytest.mark.parametrize("days", [0, -1, 100_000])
def test_impossible_days_are_refused(days: int) -> None:
    with pytest.raises(ValueError, match="days must lie between"):
        AUTHORITY.sign(new_request("north", "site")[0], days=days)
    with pytest.raises(ValueError, match="days must lie between"):
        Authority.fresh(days=days)


@pytest.mark.parametrize("away", [timedelta(days=-900), timedelta(days=900)])
def test_an_authority_signs_in_its_own_time_only(away: timedelta) -> None:
    with pytest.raises(ValueError, match="eigenveil keys renew --authority"):
        Authority.fresh(now=NOW + away).sign(new_request("north", "site")[0])


def written(folder: Path, authority: Authority = AUTHORITY) -> Path:
    write_new(private={folder / "authority.key": authority.private_pem()}, public={folder / "authority.crt": authority.pem})
    return folder


def test_an_authority_comes_back_from_its_files(tmp_path: Path) -> None:
    again = Authority.load(written(tmp_path))
    again.sign(new_request("north", "site")[0]).require_issued_by(AUTHORITY.pem)


def test_an_authority_with_open_or_foreign_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no authority in .*keys init"):
        Authority.load(tmp_path)
    key, certificate = tmp_path / "authority.key", tmp_path / "authority.crt"
    written(tmp_path)
    key.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        Authority.load(tmp_path)
    key.chmod(0o600)
    certificate.write_text(Authority.fresh().pem)
    with pytest.raises(ValueError, match=r"authority\.crt: the private key of the authority is not the one"):
        Authority.load(tmp_path)
    certificate.write_text(AUTHORITY.sign(new_request("north", "site")[0]).pem)
    with pytest.raises(ValueError, match="not the certificate of an authority"):
        Authority.load(tmp_path)
    key.write_bytes(new_request("north", "site")[1])
    with pytest.raises(ValueError, match="not the private key file of an authority"):
        Authority.load(tmp_path)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_private_files_are_private_from_the_first_byte_on(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    real = os.fsync

    def watched(handle: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        real(handle)

    monkeypatch.setattr(os, "fsync", watched)
    before = os.umask(umask)
    try:
        write_new(private={tmp_path / "a.key": b"secret"}, public={tmp_path / "a.crt": "open"})
    finally:
        os.umask(before)
    assert modes[0] == 0o600
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a.crt").stat().st_mode) == 0o644


def test_nothing_is_overwritten_and_nothing_half_written_stays(tmp_path: Path) -> None:
    (tmp_path / "b.crt").write_text("old")
    with pytest.raises(ValueError, match=r"b\.crt already exists, and keys and certificates are never overwritten"):
        write_new(private={tmp_path / "b.key": b"secret"}, public={tmp_path / "b.crt": "new"})
    assert (tmp_path / "b.crt").read_text() == "old"
    assert not (tmp_path / "b.key").exists()
    (tmp_path / "c.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"c\.key already exists"):
        write_new(private={tmp_path / "c.key": b"secret"})
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_new(private={tmp_path / "a.key": b"secret"})
    assert list(tmp_path.iterdir()) == []


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=200))
def test_a_file_stem_stays_in_its_folder(name: str) -> None:
    try:
        stem = file_stem(name)
    except ValueError:
        assert not any(letter.isalnum() or letter == "_" for letter in name)
        return
    assert stem == file_stem(name)
    assert Path(f"{stem}.request").name == f"{stem}.request"
    assert not stem.startswith((".", "-"))
    assert len(f".{stem}.request".encode()) <= 255
    assert "\0" not in stem


def test_long_names_with_one_beginning_have_two_files() -> None:
    assert file_stem("x" * 150 + "a") != file_stem("x" * 150 + "b")


def test_one_name_one_identity_one_file(tmp_path: Path) -> None:
    request, _ = new_request("St. Mary", "site")
    place = free_place(written(tmp_path), request)
    assert place == tmp_path / "St.-Mary.crt"
    certificate = AUTHORITY.sign(request)
    place.write_text(certificate.pem)
    with pytest.raises(ValueError, match="eigenveil keys renew"):
        free_place(tmp_path, request)
    place.rename(tmp_path / "last-year.crt")
    assert free_place(tmp_path, request) == place
    with pytest.raises(ValueError, match="another identity with the same name"):
        free_place(tmp_path, new_request("St. Mary", "site")[0])
    (tmp_path / "last-year.crt").rename(place)
    with pytest.raises(ValueError, match=r"is of 'St\. Mary', and 'St\.-Mary' would have the same file name"):
        free_place(tmp_path, new_request("St.-Mary", "site")[0])
    for taken in ("authority", "other"):
        (tmp_path / "other.crt").write_text("whatever")
        with pytest.raises(ValueError, match="never overwritten"):
            free_place(tmp_path, new_request(taken, "site")[0])


def test_one_identity_has_one_name(tmp_path: Path) -> None:
    key, me = fresh_key(), Identity.fresh()
    first, second = (
        CertificateRequest.read(asked_with(CertificateClaim.made(name, "site", (), identity=me, key=spki(key.public_key())), key))
        for name in ("north", "south")
    )
    (tmp_path / "north.crt").write_text(AUTHORITY.sign(first).pem)
    with pytest.raises(ValueError, match="of the same identity with the name 'north'"):
        free_place(tmp_path, second)
    assert Certificate.read((tmp_path / "north.crt").read_text()).name == "north"
