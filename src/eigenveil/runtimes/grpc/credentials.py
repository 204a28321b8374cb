"""Keys and certificates in the form gRPC wants, and the options of both ends of a connection."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from eigenveil.errors import require
from eigenveil.runtimes.grpc.frames import LARGEST_FRAME
from eigenveil.runtimes.grpc.timing import Timing

__all__ = ["Credentials", "dialling_options", "host_and_port", "listening_options"]

Options = Sequence[tuple[str, int | str]]


@final
@dataclass(frozen=True, slots=True)
class Credentials:
    """Our TLS key, our certificate, and the authority that must have signed the certificates of those who dial us; all PEM.

    >>> Credentials(b"not a key", b"", b"")
    Traceback (most recent call last):
    ...
    ValueError: key must be PEM text, which begins with -----BEGIN
    """

    key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes

    def __post_init__(self) -> None:
        for name in self.__slots__:
            _require_pem(name, getattr(self, name))
        shown = x509.load_pem_x509_certificate(self.certificate).public_key()
        ours = serialization.load_pem_private_key(self.key, password=None).public_key()
        # gRPC would only report that it cannot bind the address.
        require(shown == ours, "key and certificate do not belong together: the certificate is for another key")

    def for_listening(self) -> grpc.ServerCredentials:
        """We show our certificate and insist on one from `authority`."""
        pair = [(self.key, self.certificate)]
        return grpc.ssl_server_credentials(pair, root_certificates=self.authority, require_client_auth=True)

    def for_dialling(self, certificate: bytes) -> grpc.ChannelCredentials:
        """We show our certificate and accept only `certificate`, not even another one of our authority."""
        _require_pem("certificate", certificate)
        require(
            certificate.count(b"-----BEGIN CERTIFICATE-----") == 1,
            "certificate must have exactly one certificate: that of the party to dial",
        )
        return grpc.ssl_channel_credentials(
            root_certificates=certificate, private_key=self.key, certificate_chain=self.certificate
        )


def host_and_port(address: str, *, least: int) -> tuple[str, int]:
    """The two halves of "host:port", with a port from `least` to 65535.

    >>> host_and_port("[::1]:50051", least=1)
    ('::1', 50051)
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    good = host and port.isascii() and port.isdigit() and least <= int(port) <= 65535
    require(
        bool(good) and (":" not in host or address.startswith("[")) and not set(host) & set("/ @?#%,"),
        f"an address must be host:port with a port from {least} to 65535 (hub.example.org:50051 or [::1]:50051), got {address!r}",
    )
    return host, int(port)


def dialling_options(timing: Timing, *, host: str, server_name: str) -> Options:
    """Options of a channel that is used for one attempt."""
    return (
        *_both(timing),
        # Each attempt stands alone: none waits because an earlier one failed.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_retries", 0),
        ("grpc.ssl_target_name_override", server_name),
        # Use the environment's proxy, as hospitals may have no other way out, but not to reach this machine.
        ("grpc.enable_http_proxy", 0 if _is_here(host) else 1),
    )


def listening_options(timing: Timing) -> Options:
    """Options of a server."""
    return (
        *_both(timing),
        # Otherwise two servers could share a port, and each would get some of the sites.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 1),
        ("grpc.server_handshake_timeout_ms", _milliseconds(timing.patience)),
        # Both sides notice by pings that the other is gone, so pings are not abuse.
        ("grpc.http2.max_ping_strikes", 0),
    )


# More than a chunk with its HTTP/2 frames. gRPC refuses a longer message before reading it.
_LARGEST: Final = LARGEST_FRAME + 64


def _both(timing: Timing) -> Options:
    return (
        ("grpc.max_receive_message_length", _LARGEST),
        ("grpc.max_send_message_length", _LARGEST),
        # Only as they are: a compressed frame could expand beyond any limit before it is looked at. The first ends calls that
        # announce compression. With the second nothing is unpacked, whatever was announced, and it is no frame of ours.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.per_message_decompression", 0),
        ("grpc.keepalive_time_ms", _milliseconds(timing.silence / 2)),
        ("grpc.keepalive_timeout_ms", _milliseconds(timing.silence / 2)),
        # For any other ping: gRPC measures latency with pings too, and sends no ping of ours while one of those is out.
        ("grpc.http2.ping_timeout_ms", _milliseconds(timing.silence)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _require_pem(name: str, text: bytes) -> None:
    require(text.lstrip().startswith(b"-----BEGIN"), f"{name} must be PEM text, which begins with -----BEGIN")
