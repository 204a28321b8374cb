"""Throwaway certificates for tests and benchmarks: an authority, and parties under it."""

import datetime
from dataclasses import dataclass
from typing import final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from eigenveil.runtimes.grpc import Credentials


@final
@dataclass(frozen=True, slots=True)
class Party:
    """A name, with the keys under which it is known."""

    name: str
    server_name: str
    credentials: Credentials

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self.credentials.certificate


@final
class Authority:
    """Issues certificates; changes nothing."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        built = _certificate(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.pem = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def party(self, name: str, *, server_name: str | None = None, ended: bool = False) -> Party:
        """Keys for `name`, good for a day, or until yesterday."""
        key, server_name = ec.generate_private_key(ec.SECP256R1()), server_name or f"{name}.eigenveil"
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        built = (
            _certificate(_named(name), self._name, key.public_key(), ended=ended)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name)]), critical=False)
            .add_extension(usage, critical=False)
        )
        pem = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Party(name, server_name, Credentials(secret, pem, self.pem))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, *, ended: bool = False
) -> x509.CertificateBuilder:
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * day)
        .not_valid_after(now - day if ended else now + day)
    )
