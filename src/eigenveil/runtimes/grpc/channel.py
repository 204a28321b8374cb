"""The two ends of a gRPC stream, alike: read a frame, write a frame, and say in plain words why it ended.

Nothing here is ever cancelled while gRPC works on it: gRPC would write into memory that is gone. The stream is ended instead, and
what was waiting comes back by itself.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, final

import grpc
import grpc.aio

__all__ = ["LOST", "Accepted", "Channel", "Dialled"]

_MOMENT: Final = 0.05
LOST: Final = "the connection was lost"
_BROKEN: Final = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class Channel(ABC):
    """One end of a connection. Who `speaks_first` is the listener: a dialler that is turned away then reads why."""

    speaks_first: ClassVar[bool]

    @abstractmethod
    async def read(self) -> bytes | None:
        """The next frame, or None when there are no more."""

    @abstractmethod
    async def write(self, frame: bytes) -> bool:
        """Hand over a frame, as soon as the other side has room; False if the stream has ended."""

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
        """From here on gRPC is not touched: the handler returns, and its call is gone with it."""
        self._over = True

    async def read(self) -> bytes | None:
        if self._over:
            return None
        try:
            frame = await self._context.read()
        except _BROKEN:
            return None
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

    It writes only after it has read: a write to a call that is ended before it is connected would never come back.
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
        """Say that nothing more will be written; False if the stream has ended."""
        try:
            await self._call.done_writing()
        except asyncio.CancelledError:
            _unless_we_are_cancelled()
            return False
        except _BROKEN:
            return False
        return True

    async def end(self) -> None:
        """End the call, if it has not ended; whoever reads or writes comes back."""
        if self._call.cancel():
            # gRPC has a task of its own for the status. It ends a moment later, and there is nothing else to wait for.
            await asyncio.sleep(_MOMENT)

    def trouble(self) -> str:
        return self._trouble


def _unless_we_are_cancelled() -> None:
    """A call that was ended raises what a cancelled task raises: only the task knows which of the two it was."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


# What gRPC says, and what it means to whoever set this up; the first that is found is taken.
_MEANING: Final = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "{address} shows another certificate than the one that is pinned, or one that has ended",
    ),
    (
        "Hostname Verification Check failed",
        "{address} shows a certificate under another name than the one that is pinned",
    ),
    ("DNS resolution failed", "the host of {address} is not found: check the name and the network"),
    ("Domain name not found", "the host of {address} is not found: check the name and the network"),
    ("Connection refused", "nobody listens at {address} (connection refused)"),
    ("No route to host", "there is no way to {address} (no route to host)"),
    ("Network is unreachable", "there is no way to {address} (network is unreachable)"),
    ("WRONG_VERSION_NUMBER", "{address} answers, but not with TLS"),
    ("handshake", "{address} does not accept this certificate, or does not speak the same protocol"),
    ("Handshake", "{address} does not accept this certificate, or does not speak the same protocol"),
    ("HTTP proxy", "the proxy on the way to {address} refuses"),
)


def _plain(error: grpc.aio.AioRpcError, address: str) -> str:
    said = f"{error.details() or ''} {error.debug_error_string() or ''}"
    match error.code():
        case grpc.StatusCode.PERMISSION_DENIED:
            return f"{address} does not know this party"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"{address} speaks another version, or is another kind of server"
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return "a frame was longer than any may be"
        case grpc.StatusCode.UNAVAILABLE:
            for sign, meaning in _MEANING:
                if sign in said:
                    return meaning.format(address=address)
    return LOST
