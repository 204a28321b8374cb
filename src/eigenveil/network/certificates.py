"""Identities: a certificate that says whom a TLS key belongs to, and the private keys behind it.

Others pin the Ed25519 public key of a party, its `pin`. The certificate binds a TLS key to it with a signature by that
identity, so those who pinned it need not trust any authority.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, final, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
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
from cryptography.x509.oid import NameOID

from eigenveil.data.archive import read_owned
from eigenveil.errors import is_visible, require
from eigenveil.protocols.keys import KEY, SIGNATURE, Identity, digest, signed_by
from eigenveil.protocols.messages import LONGEST_NAME

__all__ = [
    "ROLES",
    "Certificate",
    "CertificateClaim",
    "Keys",
    "Passphrase",
    "Role",
    "authority_in",
    "checked_name",
    "common_name",
    "contents",
    "host_from",
    "in_file",
    "is_authority",
    "is_locked",
    "one_block",
    "parsed",
    "party_keys_in",
    "pem_of",
    "pin_words",
    "private_keys_in",
    "recogniser",
    "server_name_of",
    "spki",
]

Role = Literal["hub", "site", "peer", "node"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
LARGEST_PEM: Final = 64 * 1024
MOST_HOSTS: Final = 32
# A UUID drawn once, under the arc that anyone may use without registering (ITU-T X.667).
_EXTENSION: Final = x509.ObjectIdentifier("2.25.112894589984076461507073157014341366896")
_VERSION: Final = 1
# The extension is: version and role, a byte each, then the key, the signature, and the name in UTF-8.
_HEAD: Final = 2 + KEY + SIGNATURE
_LONGEST_COMMON_NAME: Final = 64
# Names under this ending stand for identities. A dialler checks them in TLS wherever the party is reached.
_OUR_HOSTS: Final = ".eigenveil"
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

Made = TypeVar("Made")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateClaim:
    """Who a TLS key belongs to, as its owner says. A claim that exists is well formed. `require_signed` checks its signature."""

    name: str
    role: Role
    public: bytes  # The Ed25519 public half.
    hosts: tuple[str, ...]  # They begin with the DNS name made from `public`.
    signature: bytes  # Of all that and the TLS key.

    def __post_init__(self) -> None:
        require(self.role in ROLES, f"role must be one of {', '.join(ROLES)}, got {self.role!r}")
        checked_name(self.name, self.role)
        require(len(self.public) == KEY, f"public must have {KEY} bytes, got {len(self.public)}")
        require(len(self.signature) == SIGNATURE, f"signature must have {SIGNATURE} bytes, got {len(self.signature)}")
        # Derived, not chosen: a party cannot list the name that stands for another identity.
        ours = server_name_of(self.public)
        require(self.hosts[:1] == (ours,), f"hosts must begin with {ours}, which is made from the identity")
        require(len(self.hosts) <= MOST_HOSTS, f"at most {MOST_HOSTS} hosts, got {len(self.hosts)}")
        require(len(set(self.hosts)) == len(self.hosts), "every host must be given once")
        # One spelling only. The hosts are signed as text, so two spellings would be two claims.
        for host in self.hosts[1:]:
            require(host_from(host) == host, f"host {host!r} must be written {host_from(host)!r}")

    @classmethod
    def made(cls, name: str, role: Role, hosts: Sequence[str], *, identity: Identity, key: bytes) -> "CertificateClaim":
        """The claim of `identity` about the TLS `key`, given as its SubjectPublicKeyInfo in DER."""
        every = (server_name_of(identity.public), *hosts)
        signature = identity.sign(_statement(key, checked_name(name, role), role, every))
        return cls(name=name, role=role, public=identity.public, hosts=every, signature=signature)

    @classmethod
    def of(cls, subject: x509.Name, extensions: x509.Extensions) -> "CertificateClaim":
        """The claim in a certificate or request; a `ValueError` if there is none. Its signature is not checked here."""
        try:
            extra = extensions.get_extension_for_oid(_EXTENSION).value
            listed = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            raise ValueError("it carries no Eigenveil identity: it was not made by `eigenveil keys`") from None
        assert isinstance(extra, x509.UnrecognizedExtension)
        raw = extra.value
        # A claim without a name is refused here as well, hence "more than".
        require(len(raw) > _HEAD and raw[0] == _VERSION, "the identity in it is damaged or of another version")
        require(raw[1] < len(ROLES), "the identity in it has an unknown role")
        try:
            name = raw[_HEAD:].decode()
        except UnicodeDecodeError:
            raise ValueError("the name in it is not UTF-8 text") from None
        hosts: list[str] = []
        for host in listed:
            # An address in the place of a DNS name is refused: the text alone could not tell the two apart.
            well = isinstance(host, x509.DNSName | x509.IPAddress) and _general_name(str(host.value)) == host
            require(well, "a host in it is neither a DNS name nor an IP address")
            hosts.append(str(host.value))
        public, signature = raw[2 : 2 + KEY], raw[2 + KEY : _HEAD]
        claim = cls(name=name, role=ROLES[raw[1]], public=public, hosts=tuple(hosts), signature=signature)
        # Other programs show the common name, so it must not say something else.
        require(subject == common_name(name), "its common name differs from the name in its identity")
        return claim

    def require_signed(self, key: bytes) -> None:
        """Refuse the claim unless its identity signed it for this TLS `key` (SubjectPublicKeyInfo, DER)."""
        statement = _statement(key, self.name, self.role, self.hosts)
        require(
            signed_by(self.public, statement, self.signature),
            f"it was forged or changed: the identity of {self.name!r} did not sign its TLS key, name, role and hosts",
        )

    def extensions(self) -> tuple[x509.ExtensionType, x509.ExtensionType]:
        """The two extensions that carry it: the hosts as subjectAltName, and the rest in a private one."""
        head = bytes((_VERSION, ROLES.index(self.role))) + self.public + self.signature
        names = [_general_name(host) for host in self.hosts]
        return x509.SubjectAlternativeName(names), x509.UnrecognizedExtension(_EXTENSION, head + self.name.encode())


def checked_name(name: str, role: Role) -> str:
    """`name`, or a `ValueError` that says what a name must be.

    >>> checked_name("St. Mary's", "site")
    "St. Mary's"
    """
    require(0 < len(name) <= LONGEST_NAME, f"a name must have 1 to {LONGEST_NAME} characters, got {len(name)}")
    # Names are shown to people who compare them: what they do not see could be another name, or rewrite the screen.
    require(
        is_visible(name),
        f"a name must have printable characters only, none invisible and at most two marks on a letter, got {name!a}",
    )
    require(name == name.strip(), f"a name must not begin or end with a space, got {name!r}")
    # Otherwise two different names could look the same.
    require(unicodedata.is_normalized("NFC", name), f"a name must be in Unicode's normal form C, got {name!r}")
    # A tree names its nodes "node 1", "node 2", ...; a site of such a name could be taken for one.
    node = role == "node" or not name.startswith("node ")
    require(node, f"a {role} cannot be called {name!r}: names that begin with 'node ' are for nodes")
    return name


def host_from(text: str) -> str:
    """A DNS name in lower case or an IP address in its shortest form; a `ValueError` for anything else.

    >>> host_from("Hub.Example.org"), host_from("10.0.0.7"), host_from("2001:DB8:0::1")
    ('hub.example.org', '10.0.0.7', '2001:db8::1')
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        pass
    else:
        require("%" not in text, f"an address with a scope is valid on one machine only, got {text!r}")
        # Python versions write IPv4-mapped addresses differently, and the text is signed.
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    require(":" not in text and "/" not in text, f"a host is a name or an IP address without a port, got {text!r}")
    host = text.lower()
    # Those names stand for identities, so no party may choose one.
    require(not host.endswith(_OUR_HOSTS), f"host names that end in {_OUR_HOSTS} are made by the program, got {text!r}")
    labels = host.split(".")
    # A last label of digits is a mistyped IPv4 address, which `ip_address` has just refused.
    well = len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit()
    require(well, f"a host is a DNS name such as hub.example.org (ASCII only) or an IP address, got {text[:300]!r}")
    return host


def server_name_of(public: bytes) -> str:
    """The DNS name that stands for an Ed25519 identity in TLS: half of its digits, too many to match with other keys.

    >>> server_name_of(bytes(32))
    '00000000000000000000000000000000.eigenveil'
    """
    return public.hex()[:32] + _OUR_HOSTS


def common_name(name: str) -> x509.Name:
    """The subject for `name`. X.509 allows 64 bytes: a longer name is truncated here and complete in the extension."""
    raw = name.encode()
    if len(raw) > _LONGEST_COMMON_NAME:
        # The limit is in bytes, and may fall inside a character: that character is dropped.
        name = raw[: _LONGEST_COMMON_NAME - 3].decode(errors="ignore") + "..."
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def spki(key: object) -> bytes:
    """The SubjectPublicKeyInfo (DER) of a public TLS key; a `ValueError` unless it is ECDSA P-256."""
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise ValueError("its TLS key is not ECDSA P-256")
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def one_block(pem: str | bytes, label: str) -> bytes:
    """`pem` if it is one PEM block with this `label`, white space around it, and at most 64 KiB."""
    require(len(pem) <= LARGEST_PEM, f"a PEM text must have at most {LARGEST_PEM} bytes, got {len(pem)}")
    try:
        raw = (pem.encode("ascii") if isinstance(pem, str) else pem).strip()
    except UnicodeEncodeError:
        raise ValueError("it is not a PEM text, which is ASCII only") from None
    header = re.match(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----", raw)
    require(header is not None, "it is not a PEM text, which begins with -----BEGIN")
    assert header is not None
    kind = header[1].decode()
    require(kind == label, f"it is a {kind.lower()}, not a {label.lower()}")
    # The parser would take the first block and silently ignore the rest.
    ends = raw.count(b"-----BEGIN ") == 1 and raw.endswith(f"-----END {label}-----".encode())
    require(ends, f"it must be one {label.lower()} and nothing else: it is truncated, or has more in it")
    return raw


def parsed(what: str, read: Callable[[], Made]) -> Made:
    """What `read` returns; whatever it raises becomes a `ValueError` that says the bytes are damaged."""
    try:
        return read()
    # The parser raises errors of many kinds, not all documented, and the bytes may come from an attacker.
    except Exception as error:
        raise ValueError(f"the {what} is damaged: {str(error)[:200]}") from error


def _statement(key: bytes, name: str, role: Role, hosts: Sequence[str]) -> bytes:
    # The word "certificate" keeps this signature apart from all others that the identity makes.
    return digest("certificate", key, name, role, *hosts)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


_BLOCK: Final = re.compile(
    rb"\s*(-----BEGIN (?:ENCRYPTED )?PRIVATE KEY-----[A-Za-z0-9+/=\s]*-----END (?:ENCRYPTED )?PRIVATE KEY-----)\s*"
)

_LOCKED: Final = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"

# The passphrase of a key file, from whoever may know it. Called only for a file that has one.
Passphrase = Callable[[Path], bytes]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Who a party is, for others. All of it is read from `pem`, and the party itself signed it, except for the dates.

    The authority's signature and the dates are checked by `require_issued_by` and `require_current`.
    """

    name: str
    role: Role
    public: bytes  # The Ed25519 public half, 32 bytes.
    pem: str
    key_digest: bytes  # The SHA-256 of the TLS key's SubjectPublicKeyInfo (DER).
    hosts: tuple[str, ...]  # The names and addresses it may be reached at. The first is `server_name`.
    begins: datetime  # In UTC.
    ends: datetime  # In UTC.

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
        if not isinstance(key, EllipticCurvePrivateKey) or sha256(spki(key.public_key())).digest() != self.certificate.key_digest:
            raise ValueError(f"the TLS key is not the one in the certificate of {self.certificate.name!r}")

    @classmethod
    def load(cls, path: Path, *, passphrase: Passphrase | None = None) -> "Keys":
        """The keys in NAME.key, which only its owner may read, with the certificate NAME.crt beside it."""
        require(path.suffix == ".key", f"{path} must be a private key file, whose name ends in .key")
        identity, tls_key = party_keys_in(path, passphrase=passphrase)
        # A party that has not been signed yet is told what to do, not only what is missing.
        beside, request_path = path.with_suffix(".crt"), path.with_suffix(".request")
        require(
            beside.exists() or not request_path.exists(),
            f"{beside} is missing. Send {request_path} to the coordinator, who signs it and sends back {beside.name}",
        )
        require(beside.is_file(), f"{path} needs its certificate next to it, and {beside.name} is missing")
        return in_file(beside, lambda pem: cls(Certificate.read(pem), identity, tls_key))


def party_keys_in(path: Path, *, passphrase: Passphrase | None = None, even_if_readable: bool = False) -> tuple[Identity, bytes]:
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


def private_keys_in(path: Path, *, passphrase: Passphrase | None = None, even_if_readable: bool = False) -> list[PrivateKeyTypes]:
    """The private keys in a file; a `ValueError` if others may read or change it, unless `even_if_readable`."""
    raw = contents(path, private=not even_if_readable)
    if not is_locked(raw):
        keys, wrong = _private_keys(raw), f"{path} is not a private key file, or it is damaged"
    elif passphrase is None:
        raise ValueError(f"{path} has a passphrase, and none was given")
    else:
        # Both look the same: only the right passphrase makes sense of the bytes.
        keys, wrong = (_private_keys(raw, passphrase(path)), f"the passphrase is not the one of {path}, or the file is damaged")
    require(bool(keys), wrong)
    return keys


def authority_in(pem: str | bytes) -> x509.Certificate:
    """The certificate of an authority in a PEM text; a `ValueError` unless it is one, with an ECDSA P-256 key."""
    raw, what = one_block(pem, "CERTIFICATE"), "authority's certificate"
    issuer = parsed(what, lambda: x509.load_pem_x509_certificate(raw))
    parsed(what, lambda: (issuer.subject, issuer.not_valid_before_utc, issuer.not_valid_after_utc))
    spki(parsed(what, issuer.public_key))
    require(_signs_others(parsed(what, lambda: issuer.extensions)), "it is not the certificate of an authority")
    return issuer


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
    require(len(names) == len(listed) == len(set(names.values())), "every certificate needs a key and a name of its own")

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
        return read_owned(path, max_bytes=LARGEST_PEM, private=True)
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
    certificate = parsed("certificate", lambda: x509.load_pem_x509_certificate(raw))
    subject, extensions = parsed("certificate", lambda: (certificate.subject, certificate.extensions))
    begins, ends = parsed("certificate", lambda: (certificate.not_valid_before_utc, certificate.not_valid_after_utc))
    key = spki(parsed("certificate", certificate.public_key))
    # An authority's certificate in a party's place could sign further parties.
    require(not _signs_others(extensions), "it is the certificate of an authority, not of a party")
    claim = CertificateClaim.of(subject, extensions)
    claim.require_signed(key)
    fields = {"name": claim.name, "role": claim.role, "public": claim.public, "hosts": claim.hosts}
    text, key_digest = certificate.public_bytes(Encoding.PEM).decode(), sha256(key).digest()
    return MappingProxyType({**fields, "pem": text, "key_digest": key_digest, "begins": begins, "ends": ends})


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


def _signs_others(extensions: x509.Extensions) -> bool:
    return any(isinstance(each.value, x509.BasicConstraints) and each.value.ca for each in extensions)
