"""The two ends of a gRPC stream with one interface: read a frame, write a frame, and say in plain words why it ended.

Nothing is ever cancelled while gRPC works on it: gRPC would write into memory that is gone. The stream is ended instead, and
the waiting reads and writes return by themselves.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, final

import grpc
import grpc.aio

__all__ = ["LOST", "Accepted", "Channel", "Dialled"]

# Seconds given to gRPC's own task for the status of an ended call.
_MOMENT: Final = 0.05
LOST: Final = "the connection was lost"
_BROKEN: Final = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class Channel(ABC):
    """One end of a connection. The listener `speaks_first`, so that a dialler that is turned away can read why."""

    speaks_first: ClassVar[bool]

    @abstractmethod
    async def read(self) -> bytes | None:
        """The next frame, or None when there are no more."""

    @abstractmethod
    async def write(self, frame: bytes) -> bool:
        """Hand over a frame as soon as the other side has room; False if the stream has ended."""

    @abstractmethod
    def trouble(self) -> str:
        """Why the stream ended, as far as is known."""


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
        try:
            frame = await self._context.read()
        except _BROKEN:
            return None
        # At the end of a stream gRPC gives a mark of its own in place of bytes.
        return frame if isinstance(frame, bytes) else None

    async def write(self, frame: bytes) -> bool:
        if self._over:
            return False
        try:
            await self._context.write(frame)
        except _BROKEN:
            return False
        return True

    def trouble(self) -> str:
        return LOST


@final
class Dialled(Channel):
    """The end of the side that dialled `address`. Changes in place.

    It writes only after it has read. A write to a call that is ended before it is connected would never return.
    """

    speaks_first = False

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]", address: str) -> None:
        self._call, self._address, self._trouble = call, address, LOST

    async def read(self) -> bytes | None:
        try:
            frame = await self._call.read()
        except asyncio.CancelledError:
            _unless_we_are_cancelled()
            return None
        except grpc.aio.AioRpcError as error:
            self._trouble = _plain(error, self._address)
            return None
        except _BROKEN:
            return None
        return frame if isinstance(frame, bytes) else None

    async def write(self, frame: bytes) -> bool:
        try:
            await self._call.write(frame)
        except asyncio.CancelledError:
            _unless_we_are_cancelled()
            return False
        except _BROKEN:
            return False
        return True

    async def half_close(self) -> bool:
        """Announce that no write follows; False if the stream has ended."""
        try:
            await self._call.done_writing()
        except asyncio.CancelledError:
            _unless_we_are_cancelled()
            return False
        except _BROKEN:
            return False
        return True

    async def end(self) -> None:
        """End the call if it has not ended. Waiting reads and writes return."""
        if self._call.cancel():
            # gRPC has its own task for the status. It ends a moment later, and nothing else signals that.
            await asyncio.sleep(_MOMENT)

    def trouble(self) -> str:
        return self._trouble


def _unless_we_are_cancelled() -> None:
    """Tell the two apart: an ended call raises the same error as a cancelled task, and only the task knows which it was."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


# What gRPC says, and what it means to the person who set this up. The first match counts.
_MEANING: Final = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "{address} shows another certificate than the pinned one, or one that has expired",
    ),
    (
        "Hostname Verification Check failed",
        "{address} shows a certificate under another name than the pinned one",
    ),
    ("DNS resolution failed", "the host of {address} is not found: check the name and the network"),
    ("Domain name not found", "the host of {address} is not found: check the name and the network"),
    ("Connection refused", "nobody listens at {address} (connection refused)"),
    ("No route to host", "{address} cannot be reached (no route to host)"),
    ("Network is unreachable", "{address} cannot be reached (network is unreachable)"),
    ("WRONG_VERSION_NUMBER", "{address} answers, but not with TLS"),
    ("handshake", "{address} does not accept this certificate, or does not speak the same protocol"),
    ("Handshake", "{address} does not accept this certificate, or does not speak the same protocol"),
    ("HTTP proxy", "the proxy on the way to {address} refuses the connection"),
)


def _plain(error: grpc.aio.AioRpcError, address: str) -> str:
    said = f"{error.details() or ''} {error.debug_error_string() or ''}"
    match error.code():
        case grpc.StatusCode.PERMISSION_DENIED:
            return f"{address} does not know this party"
        # The version of the frames is part of the service's name, so a caller with another one is told this.
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"{address} speaks another version, or is another kind of server"
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return "a frame was longer than allowed"
        case grpc.StatusCode.INTERNAL if "Compression algorithm" in said:
            return f"{address} compresses its messages, and nothing compressed is read"
        case grpc.StatusCode.UNAVAILABLE:
            for sign, meaning in _MEANING:
                if sign in said:
                    return meaning.format(address=address)
    return LOST
