"""The study's certificate authority: it signs requests, after a person has compared the pin.

A request proves that its sender has both private keys. The TLS key signed the request, and the Ed25519 identity signed
what the request says. The authority copies that and adds dates; it cannot change a word of it. `eigenveil keys` calls it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final, final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from eigenveil.data.archive import require_own_folder, sync_folder
from eigenveil.errors import require
from eigenveil.network.certificates import (
    Certificate,
    CertificateClaim,
    Passphrase,
    Role,
    authority_in,
    common_name,
    host_from,
    in_file,
    one_block,
    parsed,
    pem_of,
    private_keys_in,
    spki,
)
from eigenveil.protocols.keys import Identity

__all__ = [
    "AUTHORITY",
    "AUTHORITY_DAYS",
    "DAYS",
    "HUB",
    "Authority",
    "CertificateRequest",
    "file_stem",
    "free_place",
    "new_request",
    "write_new",
]

AUTHORITY: Final = "authority"
HUB: Final = "hub"
AUTHORITY_DAYS: Final = 825
DAYS: Final = 365
MOST_DAYS: Final = 3660
# Clocks of different organisations differ. A new certificate must be valid on a clock that is behind.
_EARLIER: Final = timedelta(hours=1)
_LONGEST_STEM: Final = 100


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRequest:
    """What a party asks to have signed. `read` makes and checks it."""

    name: str
    role: Role
    public: bytes  # The Ed25519 public half.
    hosts: tuple[str, ...]
    pem: str

    @classmethod
    def read(cls, pem: str | bytes) -> "CertificateRequest":
        """The request in an untrusted PEM text; a `ValueError` unless both its TLS key and its identity signed it."""
        # Each step goes through `parsed`: the parser is lazy, and hostile bytes may fail at any field.
        raw = one_block(pem, "CERTIFICATE REQUEST")
        csr = parsed("request", lambda: x509.load_pem_x509_csr(raw))
        key = spki(parsed("request", csr.public_key))
        signed = parsed("request", lambda: csr.is_signature_valid)
        require(signed, "it was forged or changed: its TLS key did not sign it")
        subject, extensions = parsed("request", lambda: (csr.subject, csr.extensions))
        claim = CertificateClaim.of(subject, extensions)
        claim.require_signed(key)
        # Written out again, so that the same request has one text however its PEM was laid out.
        text = csr.public_bytes(Encoding.PEM).decode()
        return cls(name=claim.name, role=claim.role, public=claim.public, hosts=claim.hosts, pem=text)

    @classmethod
    def load(cls, path: Path) -> "CertificateRequest":
        """The request in a file; each `ValueError` of `read` names the file."""
        return in_file(path, cls.read)

    @property
    def pin(self) -> str:
        """The Ed25519 public key in 64 lower-case hex digits: what others pin."""
        return self.public.hex()


def new_request(
    name: str, role: Role, hosts: Sequence[str] = (), *, passphrase: bytes | None = None
) -> tuple[CertificateRequest, bytes]:
    """A request with fresh keys, and the private file (PEM) that goes with it: the identity, then the TLS key.

    >>> request, private = new_request("north", "site")
    >>> request.name, request.role, len(request.pin)
    ('north', 'site', 64)
    """
    identity, key = Identity.fresh(), generate_private_key(SECP256R1())
    claim = CertificateClaim.made(name, role, [host_from(host) for host in hosts], identity=identity, key=spki(key.public_key()))
    builder = x509.CertificateSigningRequestBuilder().subject_name(common_name(name))
    for extension in claim.extensions():
        builder = builder.add_extension(extension, critical=False)
    pem = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    signer = Ed25519PrivateKey.from_private_bytes(identity.private_bytes())
    # Read back like one from a stranger: what its maker cannot read, no authority could sign.
    return CertificateRequest.read(pem), pem_of(signer, passphrase) + pem_of(key, passphrase)


@final
class Authority:
    """The key that signs the certificates of one study, and its own certificate, `pem`.

    >>> authority = Authority.fresh()
    >>> certificate = authority.sign(new_request("north", "site")[0])
    >>> certificate.require_issued_by(authority.pem)
    >>> certificate.role
    'site'
    """

    def __init__(self, pem: str | bytes, key: EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = authority_in(pem), key
        matches = spki(key.public_key()) == spki(self._certificate.public_key())
        require(matches, "the private key of the authority is not the one in its certificate")
        self.pem = self._certificate.public_bytes(Encoding.PEM).decode()
        self.begins, self.ends = self._certificate.not_valid_before_utc, self._certificate.not_valid_after_utc

    @classmethod
    def fresh(cls, *, days: int = AUTHORITY_DAYS, now: datetime | None = None) -> "Authority":
        """A new authority, self-signed, that may sign parties but no other authorities, for so many days."""
        return cls._signed(generate_private_key(SECP256R1()), days, now)

    def again(self, *, days: int = AUTHORITY_DAYS, now: datetime | None = None) -> "Authority":
        """The same authority from now on for so many days. It has the same key, so what it signed before stays signed."""
        return self._signed(self._key, days, now)

    @classmethod
    def _signed(cls, key: EllipticCurvePrivateKey, days: int, now: datetime | None) -> "Authority":
        _require_days(days)
        public, now = key.public_key(), datetime.now(UTC) if now is None else now
        # Authorities of two studies must not share a name, because TLS finds the signer by its name.
        subject = common_name(f"eigenveil authority {sha256(spki(public)).hexdigest()[:16]}")
        made = (
            _dated(subject, subject, public, now - _EARLIER, now + timedelta(days=days))
            # A path length of 0: it may sign parties, and no further authority.
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(key, SHA256())
        )
        return cls(made.public_bytes(Encoding.PEM), key)

    @classmethod
    def load(cls, folder: Path, *, passphrase: Passphrase | None = None) -> "Authority":
        """The authority in authority.key and authority.crt of a coordinator's folder."""
        private, public = folder / f"{AUTHORITY}.key", folder / f"{AUTHORITY}.crt"
        both = private.is_file() and public.is_file()
        require(both, f"there is no authority in {folder}. Make one with: eigenveil keys init {folder}")
        keys = private_keys_in(private, passphrase=passphrase)
        key = keys[0] if len(keys) == 1 else None
        if not isinstance(key, EllipticCurvePrivateKey):
            raise ValueError(f"{private} is not the private key file of an authority")
        return in_file(public, lambda pem: cls(pem, key))

    def private_pem(self, passphrase: bytes | None = None) -> bytes:
        """The private key, to be kept in a safe place. Its holder can sign requests, but cannot fake a pinned identity."""
        return pem_of(self._key, passphrase)

    def sign(self, csr: CertificateRequest, *, days: int = DAYS, now: datetime | None = None) -> Certificate:
        """The certificate for a request, from now for so many days, and never longer than the authority itself."""
        _require_days(days)
        # The fields are what a person compared; the PEM is what gets signed. They must agree.
        require(CertificateRequest.read(csr.pem) == csr, f"the request of {csr.name!r} differs from its PEM text")
        source = x509.load_pem_x509_csr(csr.pem.encode())
        return self._certified(source, days, now)

    def renew(self, certificate: Certificate, *, days: int = DAYS, now: datetime | None = None) -> Certificate:
        """The same certificate with new dates: same keys, name, role, hosts and pin. The authority must have signed it before."""
        _require_days(days)
        # People compared the pin of what this authority signed, and of nothing else.
        certificate.require_issued_by(self.pem)
        return self._certified(x509.load_pem_x509_certificate(certificate.pem.encode()), days, now)

    def _certified(
        self, source: x509.CertificateSigningRequest | x509.Certificate, days: int, now: datetime | None
    ) -> Certificate:
        """A certificate for the key and the claim in a request, or in an earlier certificate."""
        now = datetime.now(UTC) if now is None else now
        require(
            self.begins <= now <= self.ends,
            f"the authority is valid from {self.begins:%Y-%m-%d} to {self.ends:%Y-%m-%d}, and it is {now:%Y-%m-%d} by this "
            "computer's clock. Renew it with: eigenveil keys renew --authority FOLDER",
        )
        public = source.public_key()
        assert isinstance(public, EllipticCurvePublicKey)
        # Never outside the authority's own dates: TLS would refuse the chain.
        begins, ends = max(now - _EARLIER, self.begins), min(now + timedelta(days=days), self.ends)
        # Only the claim is copied. Whatever else a request asks for, to be an authority say, is not given.
        names, identity = CertificateClaim.of(source.subject, source.extensions).extensions()
        builder = (
            _dated(source.subject, self._certificate.subject, public, begins, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
        )
        # Both ends: a node and a peer dial some parties and listen to others.
        ends_of_tls = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        own = x509.SubjectKeyIdentifier.from_public_key(public)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension in (ends_of_tls, names, identity, own, issuer):
            builder = builder.add_extension(extension, critical=False)
        made = builder.sign(self._key, SHA256())
        return Certificate.read(made.public_bytes(Encoding.PEM))


def file_stem(name: str) -> str:
    """The file name of a party without its ending: its name, in which all but letters, digits, "_", "." and "-" is "-".

    >>> file_stem("St. Mary's / Ward 3"), file_stem("../etc/passwd")
    ('St.-Mary-s-Ward-3', 'etc-passwd')
    """
    safe = "".join(letter if letter.isalnum() or letter in "_.-" else "-" for letter in name)
    while "--" in safe:
        safe = safe.replace("--", "-")
    # A leading dot would hide the file, and a leading dash would read as an option.
    safe = safe.strip(".-")
    if len(safe.encode()) > _LONGEST_STEM:
        # File systems allow 255 bytes. The digest keeps apart two long names with the same beginning.
        safe = f"{safe.encode()[:_LONGEST_STEM].decode(errors='ignore')}-{sha256(name.encode()).hexdigest()[:8]}"
    require(bool(safe), f"a name needs at least one letter or digit to make a file name from, got {name!r}")
    return safe


def free_place(folder: Path, csr: CertificateRequest) -> Path:
    """Where the certificate of this request goes in the coordinator's folder: FOLDER/NAME.crt.

    One name, one identity, one file: a `ValueError` if an existing certificate conflicts with that.
    """
    target = folder / f"{file_stem(csr.name)}.crt"
    for path in sorted(folder.glob("*.crt")):
        try:
            certificate = in_file(path, Certificate.read)
        except ValueError:
            # The authority's own certificate, or a file that no party could use as one.
            continue
        match certificate.name == csr.name, certificate.public == csr.public:
            # The same request under another file name is an old certificate that was moved away, so it may be renewed.
            case True, True:
                require(
                    path != target,
                    f"{path} is already the certificate of this request. To renew it, run: eigenveil keys renew {path} "
                    f"--authority {folder}",
                )
            case True, False:
                raise ValueError(f"{path} is of another identity with the same name. If it is void, move it away")
            case False, True:
                raise ValueError(
                    f"{path} is of the same identity with the name {certificate.name!r}. Each party needs its own identity"
                )
            case False, False:
                require(path != target, f"{path} is of {certificate.name!r}, and {csr.name!r} would have the same file name")
    require(not target.exists(), f"{target} already exists, and certificates are never overwritten")
    return target


def write_new(*, private: Mapping[Path, bytes] | None = None, public: Mapping[Path, str] | None = None) -> None:
    """Write all these files or none. From the first byte on only the owner can read the private ones.

    A `ValueError` if one of them exists. A lost key could not be made again, so nothing is ever overwritten.
    """
    for path in private or {}:
        # Such a key would be refused when it is used, and others may have pinned it by then.
        require_own_folder(path)
    wanted = [(path, content, 0o600) for path, content in (private or {}).items()]
    wanted += [(path, content.encode(), 0o644) for path, content in (public or {}).items()]
    done: list[Path] = []
    try:
        for path, content, mode in wanted:
            try:
                # O_EXCL refuses a link too, which could lead the key elsewhere.
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                raise ValueError(f"{path} already exists, and keys and certificates are never overwritten") from None
            done.append(path)
            # On disk before anyone hears of the key: others may pin it for years.
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            path.chmod(mode)
        for folder in {path.parent for path in done}:
            sync_folder(folder)
    except BaseException:
        # These keys have not been seen yet, and half of them would block the next attempt.
        for path in done:
            path.unlink(missing_ok=True)
        raise


def _dated(
    subject: x509.Name, issuer: x509.Name, public: EllipticCurvePublicKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    """What the certificates of an authority and of a party have in common."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    """What a key is for: to sign certificates, or to sign in TLS."""
    others = ("crl_sign", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(key_cert_sign=authority, digital_signature=not authority, **unused)


def _require_days(days: int) -> None:
    require(1 <= days <= MOST_DAYS, f"days must lie between 1 and {MOST_DAYS}, got {days}")
