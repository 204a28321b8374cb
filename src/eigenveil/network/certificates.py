"""Identities: a certificate that says whom a TLS key belongs to, and the private keys behind it.

Others pin the Ed25519 public key of a party, its `pin`. The certificate binds a TLS key to it with a signature by that
identity. So those who pinned it need not trust any authority.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from eigenveil.data.archive import read_owned
from eigenveil.errors import require
from eigenveil.network.binding import LARGEST_PEM, CertificateClaim, Role, one_block, parsed, server_name_of, spki
from eigenveil.protocols.keys import KEY, Identity

__all__ = [
    "Certificate",
    "Keys",
    "Passphrase",
    "Role",
    "authority_in",
    "contents",
    "in_file",
    "is_authority",
    "is_locked",
    "party_keys_in",
    "pem_of",
    "pin_words",
    "private_keys_in",
    "recogniser",
]

_BLOCK: Final = re.compile(
    rb"\s*(-----BEGIN (?:ENCRYPTED )?PRIVATE KEY-----[A-Za-z0-9+/=\s]*-----END (?:ENCRYPTED )?PRIVATE KEY-----)\s*"
)

_LOCKED: Final = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"

# The passphrase of a key file, from whoever may know it. Called only for a file that has one.
Passphrase = Callable[[Path], bytes]

Made = TypeVar("Made")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Who a party is, for others: name, role, Ed25519 `public` half (32 bytes), and the TLS key it uses.

    - `key_digest` is the SHA-256 of the TLS key's SubjectPublicKeyInfo (DER).
    - `hosts` are the names and addresses it may be reached at; the first is `server_name`.
    - `begins` and `ends` are in UTC.

    All of it is read from `pem`. The party itself signed it, except for the dates. The authority's signature and the dates
    are checked by `require_issued_by` and `require_current`.
    """

    name: str
    role: Role
    public: bytes
    pem: str
    key_digest: bytes
    hosts: tuple[str, ...]
    begins: datetime
    ends: datetime

    def __post_init__(self) -> None:
        # The fields must be what the PEM says, however the object was made: others act on the fields.
        fields = {name: getattr(self, name) for name in self.__slots__}
        require(fields == _fields_in(self.pem), f"the certificate of {self.name!r} differs from its PEM text")

    @classmethod
    def read(cls, pem: str | bytes) -> "Certificate":
        """The certificate in an untrusted PEM text; a `ValueError` unless it is well formed and its identity signed it."""
        return cls(**_fields_in(pem))

    def require_issued_by(self, authority_pem: str) -> None:
        """Refuse it unless the authority with this certificate signed it."""
        # Dates are left to `require_current`: a study file stays readable after a certificate has ended.
        authority = authority_in(authority_pem)
        mine = x509.load_pem_x509_certificate(self.pem.encode())
        try:
            mine.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise ValueError(
                f"the certificate of {self.name!r} was not signed by this study's authority; "
                "the coordinator must sign its request: eigenveil keys sign"
            ) from None

    def require_current(self, now: datetime | None = None) -> None:
        """Refuse it before it begins and after it ends; the `ValueError` says what to do."""
        now = datetime.now(UTC) if now is None else now
        require(now.tzinfo is not None, "now must have a time zone")
        shown = f"it is {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC by this computer's clock"
        require(
            now >= self.begins,
            f"the certificate of {self.name!r} begins on {self.begins:%Y-%m-%d %H:%M} UTC, and {shown}. Set the clock, or wait",
        )
        require(
            now <= self.ends,
            f"the certificate of {self.name!r} ended on {self.ends:%Y-%m-%d %H:%M} UTC, and {shown}. The coordinator must renew "
            "it (eigenveil keys renew) and make a new study file. The keys and the pin stay the same",
        )

    @property
    def pin(self) -> str:
        """The Ed25519 public key in 64 lower-case hex digits: what others pin."""
        return self.public.hex()

    @property
    def server_name(self) -> str:
        """The DNS name in the certificate that stands for this identity on any host."""
        return server_name_of(self.public)


def pin_words(pin: str) -> str:
    """The pin in groups of four, to be read aloud.

    >>> pin_words("0123456789abcdef" * 4)[:24]
    '0123 4567 89ab cdef 0123'
    """
    # Lower case only, so that pins can be compared as texts.
    well = len(pin) == 2 * KEY and set(pin) <= set("0123456789abcdef")
    require(well, f"a pin has {2 * KEY} lower-case hex digits, got {pin[:100]!r}")
    return " ".join(pin[at : at + 4] for at in range(0, len(pin), 4))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The private keys of a party with its certificate: its `identity`, and `tls_key` in PEM. Never printed."""

    certificate: Certificate
    identity: Identity = field(repr=False)
    tls_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        # Keys of another party would fail only in the middle of a study, so they are compared here.
        own = self.identity.public == self.certificate.public
        require(own, f"the identity is not the one in the certificate of {self.certificate.name!r}")
        keys = _private_keys(self.tls_key)
        key = keys[0] if len(keys) == 1 else None
        if not isinstance(key, EllipticCurvePrivateKey) or _digest_of(key) != self.certificate.key_digest:
            raise ValueError(f"the TLS key is not the one in the certificate of {self.certificate.name!r}")

    @classmethod
    def load(cls, path: Path, *, passphrase: Passphrase | None = None) -> "Keys":
        """The keys in NAME.key, which only its owner may read, with the certificate NAME.crt beside it."""
        require(path.suffix == ".key", f"{path} must be a private key file, whose name ends in .key")
        identity, tls_key = party_keys_in(path, passphrase=passphrase)
        # A party that has not been signed yet is told what to do, not only what is missing.
        beside, request = path.with_suffix(".crt"), path.with_suffix(".request")
        require(
            beside.exists() or not request.exists(),
            f"{beside} is missing. Send {request} to the coordinator, who signs it and sends back {beside.name}",
        )
        require(beside.is_file(), f"{path} needs its certificate beside it, and {beside.name} is missing")
        return in_file(beside, lambda pem: cls(Certificate.read(pem), identity, tls_key))


def party_keys_in(
    path: Path, *, passphrase: Passphrase | None = None, even_if_readable: bool = False
) -> tuple[Identity, bytes]:
    """The identity and the TLS key (PEM, without a passphrase, for memory only) in the private file of a party."""
    match private_keys_in(path, passphrase=passphrase, even_if_readable=even_if_readable):
        # This order tells a party's file from an authority's, which has one ECDSA key and nothing else.
        case [Ed25519PrivateKey() as identity, EllipticCurvePrivateKey() as key]:
            return Identity(identity.private_bytes_raw()), pem_of(key)
    raise ValueError(f"{path} is not the private key file of a party")


def pem_of(key: PrivateKeyTypes, passphrase: bytes | None = None) -> bytes:
    """A private key in PEM (PKCS 8), encrypted if there is a passphrase."""
    # Without one, what protects it is the mode of its file: `contents` refuses one that others may read.
    how = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)


def is_locked(pem: bytes) -> bool:
    """Whether private keys in a PEM text have a passphrase."""
    return _LOCKED in pem


def private_keys_in(
    path: Path, *, passphrase: Passphrase | None = None, even_if_readable: bool = False
) -> list[PrivateKeyTypes]:
    """The private keys in a file; a `ValueError` if others may read or change it, unless `even_if_readable`."""
    raw = contents(path, private=not even_if_readable)
    if not is_locked(raw):
        found = _private_keys(raw)
        require(bool(found), f"{path} is not a private key file, or it is damaged")
        return found
    if passphrase is None:
        raise ValueError(f"{path} has a passphrase, and none was given")
    found = _private_keys(raw, passphrase(path))
    # Both look the same: only the right passphrase makes sense of the bytes.
    require(bool(found), f"the passphrase is not the one of {path}, or the file is damaged")
    return found


def authority_in(pem: str | bytes) -> x509.Certificate:
    """The certificate of an authority in a PEM text; a `ValueError` unless it is one, with an ECDSA P-256 key."""
    raw = one_block(pem, "CERTIFICATE")
    found = parsed("authority's certificate", lambda: x509.load_pem_x509_certificate(raw))
    parsed("authority's certificate", lambda: (found.subject, found.not_valid_before_utc, found.not_valid_after_utc))
    spki(parsed("authority's certificate", found.public_key))
    extensions = parsed("authority's certificate", lambda: found.extensions)
    require(_signs_others(extensions), "it is not the certificate of an authority")
    return found


def is_authority(pem: str | bytes) -> bool:
    """Whether a PEM text is the certificate of an authority."""
    try:
        authority_in(pem)
    except ValueError:
        return False
    return True


def recogniser(certificates: Iterable[Certificate]) -> Callable[[bytes], str | None]:
    """A function from the PEM that a caller shows in TLS to the caller's name; None for a stranger.

    TLS itself proves that the caller has the private key. A new certificate for the same key is the same party.
    """
    listed = list(certificates)
    names = {certificate.key_digest: certificate.name for certificate in listed}
    # With a shared key one party could pass for another.
    require(
        len(names) == len(listed) == len(set(names.values())), "every certificate needs a key and a name of its own"
    )

    def recognise(pem: bytes) -> str | None:
        # A caller chooses these bytes before it is known, so their size is checked before they are parsed.
        if len(pem) > LARGEST_PEM:
            return None
        try:
            key = spki(x509.load_pem_x509_certificate(pem).public_key())
        # A certificate that cannot be read belongs to a stranger, whatever is wrong with it.
        except Exception:
            return None
        # By key, not by certificate: a renewed certificate with other dates is still the same party.
        return names.get(sha256(key).digest())

    return recognise


def in_file(path: Path, read: Callable[[bytes], Made]) -> Made:
    """What `read` makes of a small untrusted file; each `ValueError` names the file."""
    raw = contents(path)
    try:
        return read(raw)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def contents(path: Path, *, private: bool = False) -> bytes:
    """What is in a small file; a `private` one is refused if others may read, change or exchange it."""
    if private:
        return read_owned(path, most=LARGEST_PEM, private=True)
    with path.open("rb") as file:
        # One byte more than allowed tells a file that is too large, without reading all of it.
        raw = file.read(LARGEST_PEM + 1)
    require(len(raw) <= LARGEST_PEM, f"{path} is larger than {LARGEST_PEM} bytes: it is not a key or certificate")
    return raw


# What is read is checked when it is made into a certificate, and studies name the same parties again and again.
@lru_cache(maxsize=256)
def _fields_in(pem: str | bytes) -> Mapping[str, Any]:
    """The fields of `Certificate`, from an untrusted PEM text."""
    raw = one_block(pem, "CERTIFICATE")
    found = parsed("certificate", lambda: x509.load_pem_x509_certificate(raw))
    extensions = parsed("certificate", lambda: found.extensions)
    subject = parsed("certificate", lambda: found.subject)
    begins, ends = parsed("certificate", lambda: (found.not_valid_before_utc, found.not_valid_after_utc))
    key = spki(parsed("certificate", found.public_key))
    # An authority's certificate in a party's place could sign further parties.
    require(not _signs_others(extensions), "it is the certificate of an authority, not of a party")
    claim = CertificateClaim.of(subject, extensions)
    claim.require_signed(key)
    text = found.public_bytes(Encoding.PEM).decode()
    return MappingProxyType(
        {
            "name": claim.name,
            "role": claim.role,
            "public": claim.public,
            "pem": text,
            "key_digest": sha256(key).digest(),
            "hosts": claim.hosts,
            "begins": begins,
            "ends": ends,
        }
    )


def _private_keys(pem: bytes, passphrase: bytes | None = None) -> list[PrivateKeyTypes]:
    """The private keys in a PEM text; none if it is damaged, has something else in it, or has another passphrase."""
    blocks, at = [], 0
    while at < len(pem):
        block = _BLOCK.match(pem, at)
        if block is None:
            return []
        blocks.append(block[1])
        at = block.end()
    try:
        return [load_pem_private_key(block, passphrase) for block in blocks]
    # The parser's error goes no further, because it might quote private bytes.
    except Exception:
        return []


def _digest_of(key: EllipticCurvePrivateKey) -> bytes:
    public = key.public_key()
    return sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def _signs_others(extensions: x509.Extensions) -> bool:
    try:
        return extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False
