"""`Connection`: one connection to one party, from the greeting to the farewell. `Inbox`: what happened, in order."""

import asyncio
import ipaddress
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from eigenveil.errors import require
from eigenveil.runtimes.grpc.channel import (
    LARGEST_FRAME,
    BadFrame,
    Bye,
    Channel,
    Incoming,
    Timing,
    bye,
    frames_of,
    greeting_frame,
    is_greeting,
    parting,
)

__all__ = [
    "OTHER_STUDY",
    "Connection",
    "Credentials",
    "Got",
    "Inbox",
    "Joined",
    "Left",
    "Start",
    "TransportEvent",
    "dialling_options",
    "host_and_port",
    "listening_options",
]

# What an event costs besides its data, so that a flood of empty messages is bounded too.
_COST: Final = 512


@final
@dataclass(frozen=True, slots=True)
class Joined:
    """`name` is connected: its certificate is the one expected, and its greeting is ours."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Left:
    """`name` is no longer connected, or could not be."""

    name: str
    why: str  # The reason in words without data.
    greeting: bytes | None = None  # If it greets otherwise, its greeting. It has shown the certificate expected of it.


@final
@dataclass(frozen=True, slots=True)
class Got:
    """A whole message from `name`: a `kind` from 0 to 255, chosen by the sender, and the bytes `data` as they were sent.

    >>> Got("site 1", 3, b"secret")
    Got(name='site 1', kind=3)
    """

    name: str
    kind: int
    data: bytes = field(repr=False)


TransportEvent = Joined | Left | Got


@final
class Inbox:
    """Events in the order in which they happened. Changes in place.

    Each sender may have `room` bytes waiting. A connection waits for room before it puts a message in, and meanwhile reads
    nothing more from that sender. One message alone always has room, however long: its length was checked before.

    >>> async def example() -> TransportEvent:
    ...     inbox = Inbox(room=1000)
    ...     inbox.put(Joined("site 1"))
    ...     return await inbox.get()
    >>> asyncio.run(example())
    Joined(name='site 1')
    """

    def __init__(self, *, room: int) -> None:
        require(room > 0, f"room must be positive, got {room}")
        self._room = room
        self._queue: asyncio.Queue[TransportEvent] = asyncio.Queue()
        self._waiting: Counter[str] = Counter()
        self._taken: dict[str, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        """The number of waiting events."""
        return self._queue.qsize()

    async def get(self) -> TransportEvent:
        """The next event, once there is one. May be cancelled at any time: nothing is lost."""
        event = await self._queue.get()
        self._waiting[event.name] -= _cost(event)
        # A future can be set only once, so the next wait makes a new one.
        taken = self._taken.pop(event.name, None)
        if taken is not None:
            taken.set_result(None)
        return event

    def put(self, event: TransportEvent) -> None:
        """Add an event; for a message, after `await room(...)`."""
        self._waiting[event.name] += _cost(event)
        self._queue.put_nowait(event)

    async def room(self, name: str, length: int, gone: "asyncio.Future[str]") -> None:
        """Wait until a message of `length` bytes from `name` may be put, or until `gone` is done."""
        # An empty inbox has room for any message: `limit` was checked when it was announced.
        while 0 < self._waiting[name] > self._room - length - _COST and not gone.done():
            if name not in self._taken:
                self._taken[name] = asyncio.get_running_loop().create_future()
            waits: tuple[asyncio.Future[Any], ...] = (self._taken[name], gone)
            await asyncio.wait(waits, return_when=FIRST_COMPLETED)


def _cost(event: TransportEvent) -> int:
    return _COST + (len(event.data) if isinstance(event, Got) else 0)


OTHER_STUDY: Final = "it works on another study or version"

# Starts a task and keeps a reference to it: asyncio alone would forget it.
Start = Callable[[Coroutine[Any, Any, bool]], "asyncio.Task[bool]"]


@final
class Connection:
    """One connection to `name`. Changes in place. It is over when `gone` is done, and `gone` then has the reason.

    Each message is written by its own task, one after the other, so a caller that waits for `send` may be cancelled, and a
    message that was begun is still sent whole. `accepts` gives the longest message of each kind that is taken in. `sent` and
    `received` count the bytes of frames by name.
    """

    def __init__(
        self,
        name: str,
        stream: Channel,
        *,
        accepts: Mapping[int, int],
        inbox: Inbox,
        sent: Counter[str],
        received: Counter[str],
        start: Start,
    ) -> None:
        self.name = name
        self.joined_at: float | None = None
        # What the other side greeted with, if that differs from ours.
        self.other_greeting: bytes | None = None
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stream, self._accepts, self._inbox, self._start = stream, accepts, inbox, start
        self._sent, self._received = sent, received
        self._lock = asyncio.Lock()
        self._job: asyncio.Task[bool] | None = None
        self._code: int | None = None
        self._closing = False

    @property
    def writing(self) -> bool:
        """Whether a message is under way."""
        return self._job is not None and not self._job.done()

    async def run(self, greeting: bytes, join: Callable[["Connection"], Awaitable[bool]]) -> bool:
        """Greet, `join` if both sides sent the same greeting, and take in messages until the end. It is over in any case then."""
        try:
            if await self._greet(greeting) and await join(self):
                await self._take_in()
        except BadFrame as bad:
            self.drop(bad.why, bad.code)
        finally:
            self.drop(self._stream.trouble)
        # gRPC reports the end of a stream only to a reader that has read all of it.
        while await self._stream.read() is not None:
            pass
        return True

    async def send(self, kind: int, data: bytes) -> bool:
        """Hand one message over; False if the connection ended before that."""
        return await self._send_frames(frames_of(kind, data))

    async def finish(self) -> bool:
        """Say goodbye after all that was sent, and wait until the other side has read it. What it still sends is dropped."""
        self._closing = True
        await self._send_frames((bye(Bye.CLOSED),))
        await asyncio.wait({self.gone})
        return True

    def drop(self, why: str, code: int | None = None) -> None:
        """End it; the first reason stands. `farewell` tells the other side the `code`."""
        if not self.gone.done():
            self._code = code
            self.gone.set_result(why)

    async def farewell(self, seconds: float) -> None:
        """Once it is over, tell the other side why, unless the reason is unknown or a message is still being written."""
        if self._code is not None and not self.writing:
            await asyncio.wait({self._start(self._put(bye(self._code)))}, timeout=seconds)

    async def _greet(self, greeting: bytes) -> bool:
        ours = greeting_frame(greeting)
        if self._stream.speaks_first:
            await self._put(ours)
        # The listener greets first, so that a dialler never writes to a call that is not connected.
        theirs = await self._read()
        if theirs is None:
            return False
        if not self._stream.speaks_first:
            # Sent even if the two differ, so that the other side learns it too.
            await self._put(ours)
        if not is_greeting(theirs):
            raise BadFrame(Bye.UNFIT, "it did not greet")
        if theirs != ours:
            self.other_greeting = theirs[1:]
            self.drop(OTHER_STUDY)
        return theirs == ours

    async def _take_in(self) -> None:
        message: Incoming | None = None
        while (frame := await self._read()) is not None:
            # Read on, though nothing is kept: the other side's goodbye comes after what it still sends.
            if self._closing:
                continue
            if message is None:
                message = Incoming(frame, accepts=self._accepts)
                # Read nothing more until the inbox has room for all of it. Meanwhile gRPC holds the sender back.
                await self._inbox.room(self.name, message.length, self.gone)
            else:
                message.add(frame)
            if message.complete and not self.gone.done():
                self._inbox.put(Got(self.name, message.kind, message.data()))
                message = None

    async def _read(self) -> bytes | None:
        """The next frame; None at the end, or when either side has ended the connection."""
        frame = await self._stream.read()
        if frame is None or self.gone.done():
            return None
        # Counted before it is understood: refused bytes have crossed the network too.
        self._received[self.name] += len(frame)
        why = parting(frame)
        if why is not None:
            self.drop(why)
            return None
        return frame

    async def _send_frames(self, frames: Iterable[bytes]) -> bool:
        async with self._lock:
            # A message may still be written for a caller that was cancelled. Two at once would mix their frames.
            await self._job_or_end()
            if self.gone.done():
                return False
            self._job = self._start(self._write(frames))
            await self._job_or_end()
            return self._job.done() and self._job.result()

    async def _job_or_end(self) -> None:
        if self._job is not None:
            waits: tuple[asyncio.Future[Any], ...] = (self._job, self.gone)
            await asyncio.wait(waits, return_when=FIRST_COMPLETED)

    async def _write(self, frames: Iterable[bytes]) -> bool:
        for frame in frames:
            if self.gone.done() or not await self._put(frame):
                return False
        return True

    async def _put(self, frame: bytes) -> bool:
        if not await self._stream.write(frame):
            return False
        self._sent[self.name] += len(frame)
        return True


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


def host_and_port(address: str, *, min_port: int) -> tuple[str, int]:
    """The two halves of "host:port", with a port from `min_port` to 65535.

    >>> host_and_port("[::1]:50051", min_port=1)
    ('::1', 50051)
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    good = host and port.isascii() and port.isdigit() and min_port <= int(port) <= 65535
    require(
        bool(good) and (":" not in host or address.startswith("[")) and not set(host) & set("/ @?#%,"),
        f"an address must be host:port with a port from {min_port} to 65535 (hub.example.org:50051 or [::1]:50051), got "
        f"{address!r}",
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
