"""The events of a transport (who joined, who left, what was sent) and their queue, bounded in bytes for each sender."""

import asyncio
from asyncio import FIRST_COMPLETED
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, final

from eigenveil.errors import require

__all__ = ["Got", "Inbox", "Joined", "Left", "TransportEvent"]

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
    """`name` is no longer connected, or could not be; `why` gives the reason in words without data.

    If the reason is that it greets otherwise, `greeting` is what it said. It has shown the certificate expected of it.
    """

    name: str
    why: str
    greeting: bytes | None = None


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
        return self._release(await self._queue.get())

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

    def _release(self, event: TransportEvent) -> TransportEvent:
        self._waiting[event.name] -= _cost(event)
        # A future can be set only once, so the next wait makes a new one.
        taken = self._taken.pop(event.name, None)
        if taken is not None:
            taken.set_result(None)
        return event


def _cost(event: TransportEvent) -> int:
    return _COST + (len(event.data) if isinstance(event, Got) else 0)
