"""What a certificate and a request for one both carry: who a party is, signed with its own Ed25519 identity.

In X.509 an authority vouches for a TLS key. Here the party vouches too. A private extension has its Ed25519 public key,
and a signature of the TLS key, name, role and hosts. So an authority alone cannot invent a party.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, final, get_args

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from eigenveil.errors import is_visible, require
from eigenveil.protocols.keys import KEY, SIGNATURE, Identity, digest, signed_by
from eigenveil.protocols.messages import LONGEST_NAME

__all__ = [
    "LARGEST_PEM",
    "ROLES",
    "CertificateClaim",
    "Role",
    "checked_name",
    "common_name",
    "host_from",
    "one_block",
    "parsed",
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
    """Who a TLS key belongs to, as its owner says: name, role, Ed25519 `public` half, hosts, and a signature of all that.

    `hosts` begins with the DNS name made from `public`. A claim that exists is well formed. `require_signed` checks
    whether it is about a given TLS key.
    """

    name: str
    role: Role
    public: bytes
    hosts: tuple[str, ...]
    signature: bytes

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
            carried = extensions.get_extension_for_oid(_EXTENSION).value
            listed = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            raise ValueError("it carries no Eigenveil identity: it was not made by `eigenveil keys`") from None
        assert isinstance(carried, x509.UnrecognizedExtension)
        raw = carried.value
        # A claim without a name is refused here as well, hence "more than".
        require(len(raw) > _HEAD and raw[0] == _VERSION, "the identity in it is damaged or of another version")
        require(raw[1] < len(ROLES), "the identity in it has an unknown role")
        try:
            name = raw[_HEAD:].decode()
        except UnicodeDecodeError:
            raise ValueError("the name in it is not UTF-8 text") from None
        claim = cls(
            name=name,
            role=ROLES[raw[1]],
            public=raw[2 : 2 + KEY],
            hosts=tuple(map(_host_of, listed)),
            signature=raw[2 + KEY : _HEAD],
        )
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
    # Those names stand for identities, so nobody may choose one.
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
    found = re.match(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----", raw)
    require(found is not None, "it is not a PEM text, which begins with -----BEGIN")
    assert found is not None
    kind = found[1].decode()
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


def _host_of(listed: x509.GeneralName) -> str:
    if isinstance(listed, x509.IPAddress) and isinstance(listed.value, ipaddress.IPv4Address | ipaddress.IPv6Address):
        return str(listed.value)
    # An address in the place of a DNS name is refused: the text alone could not tell the two apart.
    if isinstance(listed, x509.DNSName) and _general_name(listed.value) == listed:
        return listed.value
    raise ValueError("a host in it is neither a DNS name nor an IP address")
