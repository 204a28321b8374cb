"""An authority that means harm, a thief of extensions, and a post office that changes bytes: none can pass for a party."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.network.authority import Authority, new_request
from eigenveil.network.certificates import Certificate, CertificateClaim, common_name, server_name_of, spki
from eigenveil.protocols.keys import Identity
from network.identity.identity_makers import Forger, as_pem, changed, claim_in, fresh_key, key_in, party

AUTHORITY = Authority.fresh()
FORGER = Forger(AUTHORITY.pem, AUTHORITY.private_pem())
VICTIM = AUTHORITY.sign(new_request("north", "site", ["north.example.org"])[0])
CLAIM = claim_in(VICTIM)
NOT_SIGNED = "forged or changed"


def der(pem: str | bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem.encode() if isinstance(pem, str) else pem).public_bytes(Encoding.DER)


def signed_part(pem: str) -> bytes:
    return x509.load_pem_x509_certificate(pem.encode()).tbs_certificate_bytes


def who(certificate: Certificate) -> tuple[object, ...]:
    return certificate.name, certificate.role, certificate.public, certificate.key_digest, certificate.hosts


def victims_key() -> object:
    return x509.load_pem_x509_certificate(VICTIM.pem.encode()).public_key()


def test_the_forger_can_make_what_is_accepted() -> None:
    """Otherwise the refusals below would prove nothing."""
    pem = FORGER.certificate(CLAIM.extensions(), key=victims_key(), name="north")
    assert who(Certificate.read(pem)) == who(VICTIM)


def test_an_authority_cannot_bind_another_tls_key_to_an_identity_it_does_not_hold() -> None:
    pem = FORGER.certificate(CLAIM.extensions(), key=fresh_key().public_key(), name="north")
    with pytest.raises(ValueError, match=NOT_SIGNED):
        Certificate.read(pem)


def test_a_signature_by_another_identity_does_not_count() -> None:
    key, mine = fresh_key(), Identity.fresh()
    own = CertificateClaim.made("north", "site", ["north.example.org"], identity=mine, key=spki(key.public_key()))
    mixed = replace(own, public=CLAIM.public, hosts=CLAIM.hosts)
    with pytest.raises(ValueError, match=NOT_SIGNED):
        Certificate.read(FORGER.certificate(mixed.extensions(), key=key.public_key(), name="north"))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "south"},
        {"role": "hub"},
        {"role": "peer"},
        {"hosts": (*CLAIM.hosts, "evil.example.org")},
        {"hosts": CLAIM.hosts[:1]},
        {"hosts": (CLAIM.hosts[0], "10.0.0.1")},
        {"signature": bytes(64)},
        {"signature": CLAIM.signature[::-1]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_nothing_that_was_signed_can_be_changed(changes: dict[str, object]) -> None:
    other: CertificateClaim = replace(CLAIM, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=NOT_SIGNED):
        Certificate.read(FORGER.certificate(other.extensions(), key=victims_key(), name=other.name))


@pytest.mark.parametrize(
    "changes", [{"name": "south"}, {"role": "hub"}, {"public": bytes(32)}, {"key_digest": bytes(32)}, {"hosts": ()}], ids=str
)
def test_a_certificate_in_hand_says_what_its_text_says(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="differs from its PEM text"):
        replace(VICTIM, **changes)  # type: ignore[arg-type]


def test_the_order_of_hosts_is_signed_too() -> None:
    found = claim_in(AUTHORITY.sign(new_request("p", "peer", ["a.org", "b.org"])[0]))
    turned = replace(found, hosts=(found.hosts[0], "b.org", "a.org"))
    with pytest.raises(ValueError, match=NOT_SIGNED):
        turned.require_signed(spki(victims_key()))


def _names(*names: x509.GeneralName) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName(server_name_of(CLAIM.public)), *names])


NAMES, OWN = CLAIM.extensions()


@pytest.mark.parametrize(
    ("extensions", "words"),
    [
        ([], "no Eigenveil identity"),
        ([NAMES], "no Eigenveil identity"),
        ([OWN], "no Eigenveil identity"),
        (changed([NAMES, OWN], lambda raw: raw[:50]), "damaged or of another version"),
        (changed([NAMES, OWN], lambda raw: raw[:98]), "damaged or of another version"),
        (changed([NAMES, OWN], lambda raw: b""), "damaged or of another version"),
        (changed([NAMES, OWN], lambda raw: b"\x02" + raw[1:]), "damaged or of another version"),
        (changed([NAMES, OWN], lambda raw: raw[:1] + b"\x09" + raw[2:]), "unknown role"),
        (changed([NAMES, OWN], lambda raw: raw[:98] + b"\xff\xff"), "not UTF-8"),
        (changed([NAMES, OWN], lambda raw: raw + b"\x00"), "printable"),
        (changed([NAMES, OWN], lambda raw: raw + b"x" * 300), "1 to 200"),
        (changed([NAMES, OWN], lambda raw: raw[:98] + b"node 7"), "for nodes"),
        (changed([NAMES, OWN], lambda raw: raw[:98] + b"south"), "common name differs from the name"),
        ([x509.SubjectAlternativeName([x509.DNSName("a.org")]), OWN], "hosts must begin with"),
        ([_names(x509.RFC822Name("a@b.org")), OWN], "neither a DNS name nor an IP address"),
        ([_names(x509.UniformResourceIdentifier("https://a.org")), OWN], "neither a DNS name nor"),
        ([_names(x509.DNSName("10.0.0.1")), OWN], "neither a DNS name nor"),
        ([_names(x509.DNSName("*.org")), OWN], "a host is a DNS name"),
        ([_names(x509.DNSName("A.org")), OWN], "must be written"),
        ([_names(*[x509.DNSName(f"h{at}.org") for at in range(40)]), OWN], "at most 32"),
        ([_names(x509.DNSName("a.org"), x509.DNSName("a.org")), OWN], "given once"),
    ],
)
def test_a_malformed_identity_is_refused(extensions: Sequence[x509.ExtensionType], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Certificate.read(FORGER.certificate(extensions, key=victims_key(), name="north"))


@pytest.mark.parametrize(
    "subject",
    [
        common_name("south"),
        x509.Name([]),
        x509.Name([*common_name("north"), *common_name("north")]),
        x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "north")]),
    ],
)
def test_the_common_name_must_be_the_signed_name(subject: x509.Name) -> None:
    with pytest.raises(ValueError, match="common name differs from the name"):
        Certificate.read(FORGER.certificate(CLAIM.extensions(), key=victims_key(), name=subject))


@pytest.mark.parametrize(
    "make", [lambda: generate_private_key(SECP384R1()), Ed25519PrivateKey.generate, lambda: rsa.generate_private_key(65537, 2048)]
)
def test_other_kinds_of_tls_keys_are_refused(make: Callable[[], object]) -> None:
    key = make().public_key()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="not ECDSA P-256"):
        Certificate.read(FORGER.certificate(CLAIM.extensions(), key=key, name="north"))


def test_a_party_is_no_authority_and_an_authority_no_party() -> None:
    with pytest.raises(ValueError, match="of an authority, not of a party"):
        Certificate.read(FORGER.certificate(CLAIM.extensions(), key=victims_key(), name="north", ca=True))
    with pytest.raises(ValueError, match="of an authority, not of a party"):
        Certificate.read(AUTHORITY.pem)
    with pytest.raises(ValueError, match="not the certificate of an authority"):
        VICTIM.require_issued_by(VICTIM.pem)


def test_another_authority_is_told_apart_even_under_the_same_name(tmp_path: Path) -> None:
    other = Authority.fresh()
    with pytest.raises(ValueError, match="not signed by this study's authority"):
        VICTIM.require_issued_by(other.pem)
    # A certificate with the authority's name, made for another key: only the signature tells.
    real = x509.load_pem_x509_certificate(AUTHORITY.pem.encode()).subject
    double = FORGER.certificate([], key=key_in(other.private_pem()).public_key(), name=real, ca=True)
    with pytest.raises(ValueError, match="not signed by this study's authority"):
        VICTIM.require_issued_by(double.decode())
    # And a site cannot sign for others: what it holds is no authority's.
    site = party(tmp_path, "site", authority=AUTHORITY)
    with pytest.raises(ValueError, match="not the certificate of an authority"):
        VICTIM.require_issued_by(site.certificate.pem)


@pytest.mark.parametrize(
    ("pem", "words"),
    [
        ("", "not a PEM text"),
        ("hello", "not a PEM text"),
        ("é" + VICTIM.pem, "ASCII only"),
        ("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----", "damaged"),
        ("-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----", "damaged"),
        (VICTIM.pem[:200], "truncated"),
        (VICTIM.pem[:200] + "\n-----END CERTIFICATE-----", "damaged"),
        (VICTIM.pem * 2, "nothing else"),
        (VICTIM.pem + AUTHORITY.pem, "nothing else"),
        ("words before\n" + VICTIM.pem, "not a PEM text"),
        (VICTIM.pem + "words behind", "nothing else"),
        (VICTIM.pem + " " * 65536, "at most 65536 bytes, got"),
        (new_request("a", "site")[0].pem, "a certificate request, not a certificate"),
        (new_request("a", "site")[1], "a private key, not a certificate"),
        (b"\xff\xfe" * 40, "not a PEM text"),
    ],
)
def test_what_is_no_certificate_is_refused(pem: str | bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Certificate.read(pem)
    with pytest.raises(ValueError, match=words):
        VICTIM.require_issued_by(pem if isinstance(pem, str) else pem.decode("latin1").replace("ÿþ", "x"))


def refused_or_harmless(raw: bytes) -> None:
    """Changed bytes are refused with a ValueError, or say the same of who it is and are then no authority's work."""
    try:
        found = Certificate.read(as_pem(raw))
    except ValueError:
        return
    assert who(found) == who(VICTIM)
    # What is signed, without the signature: that can be written in several ways and mean the same.
    if signed_part(found.pem) != signed_part(VICTIM.pem):
        with pytest.raises(ValueError, match="not signed by this study's authority"):
            found.require_issued_by(AUTHORITY.pem)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80, 0xFF])
def test_no_flipped_byte_makes_another_party(mask: int) -> None:
    raw = der(VICTIM.pem)
    for at in range(len(raw)):
        refused_or_harmless(raw[:at] + bytes([raw[at] ^ mask]) + raw[at + 1 :])


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.data())
def test_no_set_of_changes_makes_another_party(data: st.DataObject) -> None:
    raw = bytearray(der(VICTIM.pem))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(raw)))
        del raw[start : start + data.draw(st.integers(1, 40))]
    refused_or_harmless(bytes(raw))


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300)))
def test_garbage_is_a_value_error(pem: str | bytes) -> None:
    inside = base64.b64encode(pem.encode(errors="replace") if isinstance(pem, str) else pem)
    for text in (pem, b"-----BEGIN CERTIFICATE-----\n" + inside + b"\n-----END CERTIFICATE-----"):
        with pytest.raises(ValueError, match=r"PEM|damaged|nothing else|not a"):
            Certificate.read(text)
