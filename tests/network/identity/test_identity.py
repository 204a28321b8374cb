"""Certificates and keys as their owners use them: round trips, dates, files, and whom a listener recognises."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.network.authority import Authority, new_request, write_new
from eigenveil.network.certificates import ROLES, Certificate, Keys, Role, checked_name, host_from, pin_words, recogniser
from eigenveil.protocols.keys import Identity, signed_by
from network.identity.identity_makers import party

AUTHORITY = Authority.fresh()


@pytest.mark.parametrize("role", ROLES)
def test_a_certificate_says_what_was_asked_for(tmp_path: Path, role: Role) -> None:
    keys = party(tmp_path, "north", role, ["Hub.Example.org", "10.0.0.7", "::1"], authority=AUTHORITY)
    found = keys.certificate
    assert (found.name, found.role, found.public) == ("north", role, keys.identity.public)
    assert found.hosts == (found.server_name, "hub.example.org", "10.0.0.7", "::1")
    assert found.pin == keys.identity.public.hex()
    assert found.server_name == f"{found.pin[:32]}.eigenveil"
    assert found.begins.utcoffset() == found.ends.utcoffset() == timedelta(0)
    found.require_issued_by(AUTHORITY.pem)
    found.require_current()
    assert signed_by(found.public, b"words", keys.identity.sign(b"words"))


def test_a_certificate_reads_the_same_however_it_was_sent() -> None:
    found = AUTHORITY.sign(new_request("north", "site")[0])
    assert Certificate.read(found.pem) == found
    assert Certificate.read(found.pem.encode()) == found
    assert Certificate.read("\n  " + found.pem.replace("\n", "\r\n") + "\n") == found


@pytest.mark.parametrize("name", ["x" * 200, "é" * 200, "病" * 200, "😀" * 65, "a", "St. Mary's / Ward 3"])
def test_a_name_is_kept_whole_where_x509_would_truncate_it(name: str) -> None:
    found = AUTHORITY.sign(new_request(name, "site")[0])
    assert found.name == name
    subject = x509.load_pem_x509_certificate(found.pem.encode()).subject
    (shown,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert 0 < len(str(shown.value).encode()) <= 64
    assert name.startswith(str(shown.value).removesuffix("..."))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "1 to 200"),
        ("x" * 201, "1 to 200"),
        ("two\nlines", "printable"),
        ("\x1b[31mred", "printable"),
        ("turned\u202eround", "printable"),
        ("zero\u200bwidth", "printable"),
        ("half\ud800", "printable"),
        (" north", "begin or end with a space"),
        ("north ", "begin or end with a space"),
        ("e\u0301cole", "normal form C"),
        ("node 1", "for nodes"),
    ],
)
def test_names_that_could_deceive_are_refused(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        new_request(name, "site")


def test_a_node_may_be_called_one() -> None:
    assert checked_name("node 1", "node") == "node 1"


@pytest.mark.parametrize(
    "host",
    [
        "hub.example.org:8443",
        "[::1]:80",
        "https://hub",
        "10.0.0.256",
        "1.2.3",
        "",
        ".",
        "a..b",
        "-a.org",
        "a-.org",
        "*.example.org",
        "hub_1.org",
        "münchen.de",
        "a b.org",
        "fe80::1%eth0",
        "x" * 64 + ".org",
        ".".join(["abcdefgh"] * 40),
        "abcd.eigenveil",
    ],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"host|address"):
        host_from(host)


def test_hosts_are_written_in_one_way() -> None:
    assert host_from("::ffff:10.0.0.7") == "10.0.0.7"
    with pytest.raises(ValueError, match="given once"):
        new_request("north", "peer", ["a.org", "A.org"])
    with pytest.raises(ValueError, match="at most"):
        new_request("north", "peer", [f"h{at}.org" for at in range(100)])


def test_dates_are_told_with_what_to_do() -> None:
    found = AUTHORITY.sign(new_request("north", "site")[0], days=10)
    found.require_current(found.begins)
    found.require_current(found.ends)
    with pytest.raises(ValueError, match="Set the clock, or wait"):
        found.require_current(found.begins - timedelta(seconds=1))
    with pytest.raises(ValueError, match=r"ended on .*eigenveil keys renew"):
        found.require_current(found.ends + timedelta(seconds=1))
    with pytest.raises(ValueError, match="time zone"):
        found.require_current(datetime(2026, 1, 1))
    elsewhere = (found.ends + timedelta(minutes=1)).astimezone(UTC)
    with pytest.raises(ValueError, match="ended"):
        found.require_current(elsewhere)


@given(st.binary(min_size=32, max_size=32))
def test_a_pin_in_words_is_the_pin(public: bytes) -> None:
    words = pin_words(public.hex())
    assert words.replace(" ", "") == public.hex()
    assert {len(word) for word in words.split(" ")} == {4}


@pytest.mark.parametrize("pin", ["", "ab" * 31, "AB" * 32, "zz" * 32, "ab" * 33])
def test_what_is_no_pin_is_refused(pin: str) -> None:
    with pytest.raises(ValueError, match="64 lower-case hex digits"):
        pin_words(pin)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o610])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    party(tmp_path, "north", authority=AUTHORITY)
    path = tmp_path / "north.key"
    path.chmod(mode)
    with pytest.raises(ValueError, match=f"chmod 600 {path}"):
        Keys.load(path)
    path.chmod(0o400)
    assert Keys.load(path).certificate.name == "north"


def test_keys_wait_for_their_certificate(tmp_path: Path) -> None:
    request, private = new_request("north", "site")
    key, beside = tmp_path / "north.key", tmp_path / "north.crt"
    write_new(private={key: private})
    with pytest.raises(ValueError, match=r"needs its certificate next to it, and north\.crt is missing"):
        Keys.load(key)
    write_new(public={tmp_path / "north.request": request.pem})
    with pytest.raises(ValueError, match=r"Send .*north\.request to the coordinator"):
        Keys.load(key)
    beside.write_text(request.pem)
    with pytest.raises(ValueError, match=r"north\.crt: it is a certificate request, not a certificate"):
        Keys.load(key)
    beside.write_text(AUTHORITY.sign(request).pem)
    assert Keys.load(key).certificate.name == "north"


def test_keys_and_certificate_must_belong_together(tmp_path: Path) -> None:
    north, south = (party(tmp_path, name, authority=AUTHORITY) for name in ("north", "south"))
    (tmp_path / "north.crt").write_text(south.certificate.pem)
    with pytest.raises(ValueError, match=r"north\.crt: the identity is not the one in the certificate of 'south'"):
        Keys.load(tmp_path / "north.key")
    with pytest.raises(ValueError, match="TLS key is not the one"):
        Keys(north.certificate, north.identity, south.tls_key)
    with pytest.raises(ValueError, match="identity is not the one"):
        Keys(north.certificate, Identity.fresh(), north.tls_key)


def test_a_damaged_key_file_is_told_without_a_byte_of_it(tmp_path: Path) -> None:
    party(tmp_path, "north", authority=AUTHORITY)
    path = tmp_path / "north.key"
    whole = path.read_bytes()
    first, end, second = whole.partition(b"-----END PRIVATE KEY-----\n")
    damaged = [b"", b"x", whole[:-40], first + end, second, second + first + end, whole + first, whole * 2]
    damaged += [whole.replace(b"MC4", b"NC4"), b"\xff" * 300, b"x" * 70_000]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"north\.key") as refused:
            Keys.load(path)
        assert not any(line.decode() in str(refused.value) for line in whole.splitlines() if b"PRIVATE" not in line)
    path.write_bytes(whole.replace(b"\n", b"\r\n"))
    assert Keys.load(path).certificate.name == "north"


def test_only_a_key_file_is_loaded_as_keys(tmp_path: Path) -> None:
    party(tmp_path, "north", authority=AUTHORITY)
    with pytest.raises(ValueError, match=r"ends in \.key"):
        Keys.load(tmp_path / "north.crt")
    write_new(private={tmp_path / "authority.key": AUTHORITY.private_pem()})
    with pytest.raises(ValueError, match="not the private key file of a party"):
        Keys.load(tmp_path / "authority.key")
    with pytest.raises(FileNotFoundError):
        Keys.load(tmp_path / "nobody.key")


def test_private_bytes_are_never_shown(tmp_path: Path) -> None:
    keys = party(tmp_path, "north", authority=AUTHORITY)
    secret = keys.tls_key.splitlines()[1].decode()
    assert secret not in repr(keys)
    assert keys.identity.private_bytes().hex() not in repr(keys)
    assert "north" in repr(keys)
    assert stat.S_IMODE((tmp_path / "north.key").stat().st_mode) == 0o600


def test_a_listener_recognises_whose_key_it_is(tmp_path: Path) -> None:
    north, south, stranger = (party(tmp_path, name, authority=AUTHORITY).certificate for name in ("n", "s", "x"))
    recognise = recogniser([north, south])
    assert recognise(north.pem.encode()) == "n"
    assert recognise(south.pem.encode()) == "s"
    assert recognise(stranger.pem.encode()) is None
    assert recognise(AUTHORITY.pem.encode()) is None


def test_a_renewed_certificate_is_the_same_party() -> None:
    request, _ = new_request("north", "site")
    old, new = AUTHORITY.sign(request, days=1), AUTHORITY.sign(request, days=30)
    assert old.pem != new.pem
    assert recogniser([old])(new.pem.encode()) == "north"


@given(st.binary(max_size=200))
def test_garbage_is_recognised_as_nobody(pem: bytes) -> None:
    recognise = recogniser([AUTHORITY.sign(new_request("north", "site")[0])])
    assert recognise(pem) is None
    assert recognise(b"-----BEGIN CERTIFICATE-----\n" + pem + b"\n-----END CERTIFICATE-----\n") is None
    assert recognise(pem + b" " * 70_000) is None


def test_a_roster_must_tell_its_parties_apart() -> None:
    request, _ = new_request("north", "site")
    north, other = AUTHORITY.sign(request), AUTHORITY.sign(new_request("north", "site")[0])
    for roster in ([north, other], [north, AUTHORITY.sign(request)]):
        with pytest.raises(ValueError, match="a key and a name of its own"):
            recogniser(roster)
