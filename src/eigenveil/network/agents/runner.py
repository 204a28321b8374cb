"""`Runner`: one party over the network. It waits for messages and deadlines, and sends what the durable party returns.

Every agent has one. A message to a party that is not connected is dropped: after it reconnects, both ends say what they
still wait for. The party works on a thread of its own, so connections stay alive however long a step takes.
"""

import asyncio
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, final

from eigenveil.core.rows import in_silence
from eigenveil.errors import ProtocolError
from eigenveil.network.agents.durable.party import DurableParty, Event, OnEvent, Outgoing
from eigenveil.protocols import Wait
from eigenveil.protocols.wire import MessageLimits
from eigenveil.runtimes.grpc import Got, Joined, Left, Transport, TransportEvent

__all__ = ["MESSAGE", "NOTE", "READY", "STOPPED", "THANKS", "Runner", "accepted", "progress_in", "progress_note"]

# What a frame carries: a message between parties, or a note between the agents that run them.
MESSAGE: Final = 0
NOTE: Final = 1
# The notes. A site says THANKS when it has the result. A hub says STOPPED when it stops before that.
THANKS: Final = b"thanks"
STOPPED: Final = b"stopped"
# A node says READY when all parties below it are connected.
READY: Final = b"ready"
# Where slots are counted out in rows, a site says how many it has closed, and whether its source has ended. A node says the
# second for all below it.
_PROGRESS: Final = re.compile(rb"(closed|ended) ([0-9]{1,9})")
# In bytes. Notes are single words, except between peers, where a note lists who is connected.
_LONGEST_NOTE: Final = 16
# In bytes. Nobody is exhausted by messages of this length.
_LITTLE: Final = 1 << 16
# What a message costs besides its bytes, so that a flood of empty ones is bounded too.
_COST: Final = 512

Done = TypeVar("Done")


def progress_note(closed: int, *, ended: bool) -> bytes:
    """The note that says how far a stream is.

    >>> progress_in(progress_note(7, ended=True)), progress_in(b"thanks")
    ((7, True), None)
    """
    return b"%s %d" % (b"ended" if ended else b"closed", closed)


def progress_in(words: bytes) -> tuple[int, bool] | None:
    """How many slots a note says are closed, and whether the source has ended; None if it is another note."""
    found = _PROGRESS.fullmatch(words)
    return None if found is None else (int(found[2]), found[1] == b"ended")


def accepted(limits: MessageLimits, *, note: int = _LONGEST_NOTE) -> dict[int, int]:
    """The longest frame of each kind that a party takes: messages that fit its study, and notes of up to `note` bytes.

    A longer one ends the connection. One that is only a little too long is refused when it is decoded, and noted.
    """
    return {MESSAGE: max(limits.largest, _LITTLE), NOTE: note}


@final
class Runner:
    """Carries the messages of one party. Changes in place.

    - `notes` is called with notes from others, and `greet` with the name of each party that connects.
    - `reply` is a fixed time in seconds that answers take, or 0.
    - `there` says which of the connected parties count as present while others are awaited.
    - `other` is called with a party that works on another study, and its greeting. It says so in words, or raises.
    - `early` is how many bytes of messages each sender may have waiting before this party has begun. What is more is dropped, and
      asked for again when it is needed. Where nobody speaks first there is none.
    """

    def __init__(
        self,
        durable: DurableParty,
        transport: Transport,
        *,
        on_event: OnEvent,
        notes: Callable[[str, bytes], Awaitable[None]] | None = None,
        greet: Callable[[str], Awaitable[None]] | None = None,
        there: Callable[[Set[str]], Collection[str]] = lambda present: present,
        other: Callable[[str, bytes], str] | None = None,
        reply: float = 0.0,
        early: int = 0,
    ) -> None:
        self._durable, self._transport, self._on_event, self._notes, self._reply = (
            durable,
            transport,
            on_event,
            notes,
            reply,
        )
        # Those whose connection this runner has handled; the transport may know of more.
        self._present: set[str] = set()
        # Those who were present before this party began, and are not any more.
        self._lost: set[str] = set()
        self._greeting, self._there, self._other = greet, there, other
        self._early: list[Got] = []
        self._early_room, self._early_bytes = early, Counter[str]()
        # One thread only: a party is not made for two calls at once.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="party")
        self._wait: Wait | None = None
        self._until = math.inf

    async def gather(
        self, names: Collection[str], *, seconds: float, enough: int | None = None, patience: float = 0.0
    ) -> None:
        """Wait until all of `names` are present. After `seconds` go on if `enough` are; otherwise an error.

        A message says that its sender has begun, and saw all of them. Then those who were lost since are not waited for, and the
        others no longer than `patience`: whoever has begun would soon take this party for lost, too.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while missing := self._missing(names):
            try:
                event = await asyncio.wait_for(self._transport.events.get(), max(0.0, until - loop.time()))
            except TimeoutError:
                here = len(names) - len(missing)
                # Not all are here, but as many as the study needs.
                if self._early or (enough is not None and here >= enough):
                    break
                raise ProtocolError(
                    f"{', '.join(sorted(missing)[:10])} did not join within {seconds:g} seconds, and nobody was asked anything"
                ) from None
            await self._heard(event)
            if isinstance(event, Joined):
                self._lost.discard(event.name)
                await self._greet(event.name)
            elif isinstance(event, Left):
                self._lost.add(event.name)
            elif isinstance(event, Got) and event.kind == MESSAGE and self._keeps_early(event):
                until = min(until, loop.time() + patience)

    def _keeps_early(self, event: Got) -> bool:
        """Keep a message whose sender has begun already, if there is room. Dropped, it is missed until somebody asks again."""
        needed = self._early_bytes[event.name] + len(event.data) + _COST
        if needed <= self._early_room:
            self._early_bytes[event.name] = needed
            self._early.append(event)
        return needed <= self._early_room

    async def _heard(self, event: TransportEvent) -> None:
        """Handle connections, and notes between agents."""
        match event:
            case Joined(name=name):
                self._present.add(name)
                self._on_event(Event("joined", name))
            case Left(name=name, why=why, greeting=greeting):
                self._present.discard(name)
                if greeting is not None and self._other is not None:
                    why = self._other(name, greeting)
                self._on_event(Event("left", name, why))
            # Another organisation chose these bytes. The transport has refused notes that are too long.
            case Got(name=name, kind=kind, data=data):
                if kind == NOTE and self._notes is not None:
                    await self._notes(name, data)

    async def begin(self) -> None:
        """Send the party's first messages."""
        await self._send(await self._work(self._durable.begin))
        self._watch()

    async def run(self, over: Callable[[], bool]) -> None:
        """Carry messages until `over()` is true."""
        loop = asyncio.get_running_loop()
        # In the order in which they came, before anything newer from the same senders.
        early, self._early = self._early, []
        self._early_bytes.clear()
        for message in early:
            await self._opened(message)
        while not over():
            left = self._until - loop.time()
            try:
                event = await asyncio.wait_for(
                    self._transport.events.get(), None if left == math.inf else max(0.0, left)
                )
            except TimeoutError:
                # Forget the wait, so that the next one starts its own clock even with the same number.
                self._wait = None
                await self._send(await self._work(self._durable.wait_over))
                self._watch()
                continue
            await self._heard(event)
            match event:
                case Joined(name=name):
                    await self._greet(name)
                    # What was sent while it was away was dropped. This says again what it still needs.
                    await self._send(await self._work(lambda: self._durable.rejoined(name)))
                    self._watch()
                case Got(kind=kind) if kind == MESSAGE:
                    await self._opened(event)
                case _:
                    continue

    async def _opened(self, event: Got) -> None:
        """Hand a message to the durable party, and send its answers."""
        came = asyncio.get_running_loop().time()
        outgoing = await self._work(lambda: self._durable.take(event.name, event.data))
        # After the work and before the send: everything is on disk by now, and only the sending is delayed.
        await self._in_time(came)
        await self._send(outgoing)
        self._watch()

    async def _greet(self, name: str) -> None:
        if self._greeting is not None:
            await self._greeting(name)

    def _missing(self, names: Collection[str]) -> set[str]:
        return set(names) - set(self._there(self._present | self._lost if self._early else self._present))

    async def linger(self, *, seconds: float, over: Callable[[], bool]) -> None:
        """Stay until the others have the result, but no longer than `seconds`."""
        try:
            await asyncio.wait_for(self.run(over), seconds)
        except TimeoutError:
            return

    async def do(self, move: Callable[[], Done]) -> Done:
        """Run `move` on the party's thread, between two of its messages."""
        return await self._work(move)

    async def act(self, move: Callable[[], list[Outgoing]]) -> None:
        """The same, and send what the party says then."""
        outgoing = await self._work(move)
        if outgoing:
            # Of what nobody has just asked for, the time that it took is not known. Whole multiples tell nothing of it either.
            await self._in_time(0.0)
        await self._send(outgoing)
        self._watch()
        # `run` may be waiting without the deadline that has just been set. A note of nobody wakes it.
        self._transport.events.put(Got("", NOTE, b""))

    async def note(self, name: str, words: bytes) -> None:
        """Send a note to the agent of another party."""
        await self._transport.send(name, NOTE, words)

    def close(self) -> None:
        """Let the thread end."""
        # Wait for the step in progress: the ledger must not be closed under it.
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _watch(self) -> None:
        """Set the deadline of what the party has begun to wait for, on a clock that never goes back."""
        wait = self._durable.party.waiting
        if wait is None:
            self._wait, self._until = None, math.inf
        # The same wait keeps its deadline: messages that change nothing must not prolong it.
        elif self._wait is None or wait.number != self._wait.number:
            self._wait, self._until = wait, asyncio.get_running_loop().time() + wait.seconds

    async def _work(self, move: Callable[[], Done]) -> Done:
        """Run `move` on the party's thread. An interrupt does not stop it half-way, or the disk could lack what was said."""
        future = asyncio.get_running_loop().run_in_executor(self._worker, in_silence(move))
        return await asyncio.shield(future)

    async def _in_time(self, came: float) -> None:
        """Wait for a whole multiple of the fixed reply time, so that the time of an answer tells nothing about the rows."""
        if self._reply > 0:
            now = asyncio.get_running_loop().time()
            periods = max(1, math.ceil((now - came) / self._reply))
            await asyncio.sleep(came + periods * self._reply - now)

    async def _send(self, outgoing: list[Outgoing]) -> None:
        if len(outgoing) == 1:
            await self._transport.send(outgoing[0][0], MESSAGE, outgoing[0][1])
        elif outgoing:
            # In order to each receiver, and to all receivers at once.
            by_name: dict[str, list[bytes]] = {}
            for name, data in outgoing:
                by_name.setdefault(name, []).append(data)
            await asyncio.gather(*(self._send_all(name, them) for name, them in by_name.items()))

    async def _send_all(self, name: str, them: list[bytes]) -> None:
        for data in them:
            await self._transport.send(name, MESSAGE, data)
