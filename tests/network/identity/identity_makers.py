"""Parties with certificates, and certificates that an authority with bad intentions would make."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from eigenveil.network.authority import Authority, new_request, write_new
from eigenveil.network.certificates import Certificate, CertificateClaim, Keys, Role, common_name

NOW = datetime.now(UTC)


def party(
    folder: Path, name: str, role: Role = "site", hosts: Sequence[str] = (), *, authority: Authority, days: int = 365
) -> Keys:
    """Fresh keys with their certificate, in files as the command makes them."""
    request, private = new_request(name, role, hosts)
    certificate = authority.sign(request, days=days)
    write_new(private={folder / f"{name}.key": private}, public={folder / f"{name}.crt": certificate.pem})
    return Keys.load(folder / f"{name}.key")


def claim_in(certificate: Certificate) -> CertificateClaim:
    """What the party of a certificate signed."""
    found = x509.load_pem_x509_certificate(certificate.pem.encode())
    return CertificateClaim.of(found.subject, found.extensions)


def key_in(pem: bytes) -> EllipticCurvePrivateKey:
    """A TLS key or an authority's from its PEM text."""
    key = load_pem_private_key(pem, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return key


def fresh_key() -> EllipticCurvePrivateKey:
    """A new TLS key."""
    return generate_private_key(SECP256R1())


@dataclass(frozen=True)
class Forger:
    """An attacker with a certificate and its private key, an authority's say, who signs anything with it."""

    pem: str
    private: bytes

    def certificate(
        self,
        extensions: Sequence[x509.ExtensionType],
        *,
        key: Any,
        name: str | x509.Name,
        ca: bool | None = False,
        begins: datetime = NOW - timedelta(days=1),
        ends: datetime = NOW + timedelta(days=1),
    ) -> bytes:
        """The PEM of a certificate for the public `key` with these extensions, whatever they are."""
        issuer = x509.load_pem_x509_certificate(self.pem.encode()).subject
        builder = x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=common_name(name) if isinstance(name, str) else name,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=begins,
            not_valid_after=ends,
        )
        if ca is not None:
            builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(key_in(self.private), SHA256()).public_bytes(Encoding.PEM)


def as_pem(raw: bytes, label: str = "CERTIFICATE") -> bytes:
    """DER bytes, whatever they are, as a PEM text."""
    text = base64.b64encode(raw).decode()
    rows = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *rows, f"-----END {label}-----", ""]).encode()


def changed(extensions: Sequence[x509.ExtensionType], change: Callable[[bytes], bytes]) -> list[x509.ExtensionType]:
    """The same extensions with the bytes of the private one changed."""
    return [
        x509.UnrecognizedExtension(found.oid, change(found.value)) if isinstance(found, x509.UnrecognizedExtension) else found
        for found in extensions
    ]
