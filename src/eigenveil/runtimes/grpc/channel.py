"""The two ends of a gRPC stream with one interface: read a frame, write a frame, and say in plain words why it ended.

Nothing is ever cancelled while gRPC works on it: gRPC would write into memory that is gone. The stream is ended instead, and
the waiting reads and writes return by themselves.
"""

import asyncio
import contextlib
import io
import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import grpc
import grpc.aio

from eigenveil.errors import EigenveilError, require

__all__ = [
    "CHUNK",
    "LARGEST_FRAME",
    "LONGEST_GREETING",
    "LOST",
    "Accepted",
    "Backoff",
    "BadFrame",
    "Bye",
    "Channel",
    "Dialled",
    "Incoming",
    "Timing",
    "bye",
    "frames_of",
    "greeting_frame",
    "is_greeting",
    "parting",
]

# Seconds given to gRPC's own task for the status of an ended call.
_MOMENT: Final = 0.05

LOST: Final = "the connection was lost"

_BROKEN: Final = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class Channel(ABC):
    """One end of a connection. The listener `speaks_first`, so that a dialler that is turned away can read why."""

    speaks_first: ClassVar[bool]
    trouble = LOST  # Why the stream ended, as far as is known.

    @abstractmethod
    async def read(self) -> bytes | None:
        """The next frame, or None when there are no more."""

    @abstractmethod
    async def write(self, frame: bytes) -> bool:
        """Hand over a frame as soon as the other side has room; False if the stream has ended."""


@final
class Accepted(Channel):
    """The end of the side that listened. Changes in place."""

    speaks_first = True

    def __init__(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        self._context, self._over = context, False

    def end(self) -> None:
        """From here on gRPC is not touched: the handler returns, and its call ends with it."""
        self._over = True

    async def read(self) -> bytes | None:
        if self._over:
            return None
        with contextlib.suppress(*_BROKEN):
            frame = await self._context.read()
            # At the end of a stream gRPC gives a mark of its own in place of bytes.
            return frame if isinstance(frame, bytes) else None
        return None

    async def write(self, frame: bytes) -> bool:
        if self._over:
            return False
        with contextlib.suppress(*_BROKEN):
            await self._context.write(frame)
            return True
        return False


@final
class Dialled(Channel):
    """The end of the side that dialled `address`. Changes in place.

    It writes only after it has read. A write to a call that is ended before it is connected would never return.
    """

    speaks_first = False

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]", address: str) -> None:
        self._call, self._address = call, address

    async def read(self) -> bytes | None:
        try:
            with _ended_call():
                frame = await self._call.read()
                return frame if isinstance(frame, bytes) else None
        except grpc.aio.AioRpcError as error:
            self.trouble = _plain(error, self._address)
        except _BROKEN:
            pass
        return None

    async def write(self, frame: bytes) -> bool:
        with _ended_call(), contextlib.suppress(*_BROKEN):
            await self._call.write(frame)
            return True
        return False

    async def half_close(self) -> bool:
        """Announce that no write follows; False if the stream has ended."""
        with _ended_call(), contextlib.suppress(*_BROKEN):
            await self._call.done_writing()
            return True
        return False

    async def end(self) -> None:
        """End the call if it has not ended. Waiting reads and writes return."""
        if self._call.cancel():
            # gRPC has its own task for the status. It ends a moment later, and nothing else signals that.
            await asyncio.sleep(_MOMENT)


@contextlib.contextmanager
def _ended_call() -> Iterator[None]:
    """End the block quietly where the call was ended, which raises the same error as a cancelled task: only the task knows."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


# What gRPC says, and what it means to the person who set this up. The first match counts.
_MEANING: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "{address} shows another certificate than the pinned one, or one that has expired"),
    ("Hostname Verification Check failed", "{address} shows a certificate under another name than the pinned one"),
    ("DNS resolution failed", "the host of {address} is not found: check the name and the network"),
    ("Domain name not found", "the host of {address} is not found: check the name and the network"),
    ("Connection refused", "no program listens at {address} (connection refused)"),
    ("No route to host", "{address} cannot be reached (no route to host)"),
    ("Network is unreachable", "{address} cannot be reached (network is unreachable)"),
    ("WRONG_VERSION_NUMBER", "{address} answers, but not with TLS"),
    ("handshake", "{address} does not accept this certificate, or does not speak the same protocol"),
    ("Handshake", "{address} does not accept this certificate, or does not speak the same protocol"),
    ("HTTP proxy", "the proxy on the way to {address} refuses the connection"),
)


def _plain(error: grpc.aio.AioRpcError, address: str) -> str:
    details = f"{error.details() or ''} {error.debug_error_string() or ''}"
    match error.code():
        case grpc.StatusCode.PERMISSION_DENIED:
            return f"{address} does not know this party"
        # The version of the frames is part of the service's name, so a caller with another one is told this.
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"{address} speaks another version, or is another kind of server"
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return "a frame was longer than allowed"
        case grpc.StatusCode.INTERNAL if "Compression algorithm" in details:
            return f"{address} compresses its messages, and nothing compressed is read"
        case grpc.StatusCode.UNAVAILABLE:
            for sign, meaning in _MEANING:
                if sign in details:
                    return meaning.format(address=address)
    return LOST


# Measured: a round of 25.6 MB to three sites, on a busy machine, against bare TLS sockets. It takes 3.2 times as long with chunks
# of 64 KiB, 2.3 with 256 KiB, 2.2 with 1 MiB and 2.0 with 4 MiB. A smaller chunk leaves the loop to others more often. gRPC's
# windows, frame sizes and read sizes made no difference beyond noise, and keep their defaults.
CHUNK: Final = 1 << 20

LONGEST_GREETING: Final = 4096

_GREETING, _FIRST, _MORE, _BYE = range(4)

_HEAD: Final = struct.Struct("<BBQ")

LARGEST_FRAME: Final = CHUNK + _HEAD.size


@final
class Bye:
    """Why one side ends a connection: one byte on the wire, words for people."""

    CLOSED, REPLACED, TOO_LONG, UNFIT, CROSSED = range(5)
    WORDS: Final = (
        "it closed the connection",
        "it has a newer connection under this name: is the same party running twice?",
        "it does not accept messages as long as the one sent to it",
        "it was sent something it does not understand",
        "both sides dial each other, and only one of them may",
    )


class BadFrame(EigenveilError):
    """A refused frame; the sender is told the `code`."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


def frames_of(kind: int, data: bytes) -> Iterator[bytes]:
    """The frames of one message. Each copies only its own part, when it is asked for.

    >>> [len(frame) for frame in frames_of(7, bytes(CHUNK + 5))]
    [1048586, 6]
    """
    view = memoryview(data)
    yield b"".join((_HEAD.pack(_FIRST, kind, len(data)), view[:CHUNK]))
    for start in range(CHUNK, len(data), CHUNK):
        yield b"".join((bytes((_MORE,)), view[start : start + CHUNK]))


def greeting_frame(greeting: bytes) -> bytes:
    """The first frame on every connection."""
    return bytes((_GREETING,)) + greeting


def is_greeting(frame: bytes) -> bool:
    """Whether this is a greeting of an allowed length."""
    return frame[:1] == bytes((_GREETING,)) and len(frame) <= 1 + LONGEST_GREETING


def bye(code: int) -> bytes:
    """The last frame on a connection that is ended on purpose."""
    return bytes((_BYE, code))


def parting(frame: bytes) -> str | None:
    """Why the sender of this frame ends the connection; None for any other frame.

    >>> parting(bye(Bye.CLOSED))
    'it closed the connection'
    """
    if frame[:1] != bytes((_BYE,)):
        return None
    return Bye.WORDS[frame[1]] if len(frame) == 2 and frame[1] < len(Bye.WORDS) else "it ended the connection"


@final
class Incoming:
    """One message on its way in, of a kind in `accepts` and at most as long as it says there. Changes in place.

    It has memory for what has come, and none for what was only announced.

    >>> first, second = frames_of(7, bytes(CHUNK + 5))
    >>> message = Incoming(first, accepts={7: 1 << 30})
    >>> message.complete, message.add(second), message.complete
    (False, None, True)
    >>> message.kind, len(message.data())
    (7, 1048581)
    """

    def __init__(self, frame: bytes, *, accepts: Mapping[int, int]) -> None:
        if len(frame) < _HEAD.size or frame[0] != _FIRST:
            raise BadFrame(Bye.UNFIT, "it sent something that is not the beginning of a message")
        self.kind: int
        self.length: int
        _, self.kind, self.length = _HEAD.unpack_from(frame)
        # Refused by its kind and announced length, before the rest of it is read.
        limit = accepts.get(self.kind)
        if limit is None:
            raise BadFrame(Bye.UNFIT, "it announced a message of a kind that is unknown here")
        if self.length > limit:
            raise BadFrame(Bye.TOO_LONG, f"it announced a message of {self.length} bytes, and at most {limit} are allowed")
        # This buffer becomes the result without a copy. A list of parts would need one.
        self._buffer = io.BytesIO()
        self._take(frame, _HEAD.size)

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""
        return self._buffer.tell() == self.length

    def add(self, frame: bytes) -> None:
        """Take the next frame; a `BadFrame` error unless it is exactly what was announced."""
        if frame[:1] != bytes((_MORE,)):
            raise BadFrame(Bye.UNFIT, "it began something else in the middle of a message")
        self._take(frame, 1)

    def data(self) -> bytes:
        """The whole message."""
        return self._buffer.getvalue()

    def _take(self, frame: bytes, start: int) -> None:
        if len(frame) - start != min(CHUNK, self.length - self._buffer.tell()):
            raise BadFrame(Bye.UNFIT, "it sent another number of bytes than it announced")
        self._buffer.write(memoryview(frame)[start:])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times in seconds. The defaults suit organisations that talk across the internet."""

    silence: float = 20.0  # A party not heard for this long counts as gone. Pings reach a process that computes, too.
    patience: float = 10.0  # For a new connection to be made and to greet.
    shortest: float = 0.2  # A dialler waits for this between two attempts, then twice as long each time.
    longest: float = 5.0  # But not longer than this.
    held: float = 5.0  # After a connection that lasted for this long, waits begin anew.
    farewell: float = 1.0  # For the other side to hear why a connection ends.

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            require(0 < value < 86400, f"{name} must lie between 0 and a day, in seconds, got {value}")
        require(self.shortest <= self.longest, f"shortest must be at most longest, {self.longest} s, got {self.shortest} s")


@final
class Backoff:
    """How long to wait before the next attempt. Changes in place.

    Waits are spread over half to all of their length, so that sites that lost the same hub do not all come back at once.

    >>> waits = Backoff(Timing(shortest=1.0, longest=3.0))
    >>> [step for step in (waits.next(), waits.next(), waits.next()) if not 0.5 <= step <= 3.0]
    []
    """

    def __init__(self, timing: Timing) -> None:
        self._timing, self._step = timing, timing.shortest

    def next(self, *, slowly: bool = False) -> float:
        """Seconds until the next attempt; `slowly` when trying again soon would not help."""
        # Doubled from the step taken, so that the attempts after a slow one stay slow until `reset`.
        step = self._timing.longest if slowly else self._step
        self._step = min(2 * step, self._timing.longest)
        return step * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin anew, after a connection that lasted."""
        self._step = self._timing.shortest
