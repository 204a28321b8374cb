"""`Agent` and `Runner`: a party over the network. A role says in an `Agent` where it differs; `Runner` carries all of them.

| role         | who connects   | whom it calls        | it begins when     | on disk      | it stays until
| ------------ | -------------- | -------------------- | ------------------ | ------------ | --------------
| hub          | those below it | nobody               | enough have joined | a transcript | all below have the result
| hub, streams | those below it | nobody               | a slot is due      | a log        | the same
| node         | those below it | the one above        | it is asked        | nothing      | the same, and then says so above
| site         | nobody         | the one above        | it is asked        | its ledger   | it has said thanks for the result
| site, stream | nobody         | the one above        | a slot is closed   | its ledger   | the same
| peer         | neighbours     | neighbours before it | all have connected | its ledger   | its neighbours have the result

A message to a party that is not connected is dropped: after it reconnects, both ends say what they still wait for. The party
works on a thread of its own, so connections stay alive however long a step takes.
"""

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar, assert_never, final

from eigenveil.core.rows import ignore_float_errors
from eigenveil.errors import OtherStudy, ProtocolError, require
from eigenveil.network.agents.steps import DurableParty, Event, OnEvent, Outgoing
from eigenveil.network.certificates import Keys, recogniser
from eigenveil.network.study import Place, StudyFile
from eigenveil.protocols.party import Wait
from eigenveil.protocols.wire import MessageLimits
from eigenveil.runtimes.grpc import Credentials, Got, Joined, Left, Transport, TransportEvent

__all__ = [
    "MESSAGE",
    "READY",
    "STOPPED",
    "THANKS",
    "Agent",
    "Runner",
    "credentials_of",
    "place_of",
    "progress_in",
    "progress_note",
]

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
# In bytes. No party is exhausted by messages of this length.
_LITTLE: Final = 1 << 16
# What a message costs besides its bytes, so that a flood of empty ones is bounded too.
_COST: Final = 512
# How long a party tries to say THANKS. It has its result already, so nothing depends on it.
_GOODBYE: Final = 5.0

Done = TypeVar("Done")


def progress_note(closed: int, *, ended: bool) -> bytes:
    """The note that says how far a stream is.

    >>> progress_in(progress_note(7, ended=True)), progress_in(b"thanks")
    ((7, True), None)
    """
    return b"%s %d" % (b"ended" if ended else b"closed", closed)


def progress_in(note: bytes) -> tuple[int, bool] | None:
    """How many slots a note says are closed, and whether the source has ended; None if it is another note."""
    match = _PROGRESS.fullmatch(note)
    return None if match is None else (int(match[2]), match[1] == b"ended")


def place_of(study: StudyFile, keys: Keys, *, role: str) -> Place:
    """The place in the study that these keys belong to; a `ValueError` if it has none, another role, or is out of date."""
    mine = keys.certificate
    # By the identity that others pin, not by the name: an authority could sign a second party of that name.
    party = next((candidate for candidate in study.places if candidate.certificate.public == mine.public), None)
    require(party is not None, f"these are the keys of {mine.name!r}, who does not take part in the study {study.name!r}")
    assert party is not None
    require(
        party.certificate.key_digest == mine.key_digest,
        f"the certificate of {party.name!r} next to its key differs from the one in the study file: one of them is out of date",
    )
    require(
        party.certificate.role == role,
        f"{party.name!r} is a {party.certificate.role} in this study: run `eigenveil {party.certificate.role}`",
    )
    # Only our own date is checked here. Those of others are checked when they connect.
    party.certificate.require_current()
    return party


def credentials_of(study: StudyFile, keys: Keys) -> Credentials:
    """What the party shows to others, and whose signature it accepts."""
    # The certificate in the study file, not the one beside the key: others accept that one only, and after a renewal the
    # two differ in their dates.
    listed = {party.certificate.public: party.certificate for party in study.places}
    mine = listed.get(keys.certificate.public, keys.certificate)
    return Credentials(keys.tls_key, mine.pem.encode(), study.authority.encode())


class Agent:
    """One party of a `study` over the network, with the `place` that its keys have there. Changes in place.

    Nothing is connected before it runs. What is here holds for every role; a role overrides what it does otherwise.
    """

    limits: MessageLimits  # What may come.
    hears: tuple[str, ...] = ()  # Who may connect.
    calls: tuple[str, ...] = ()  # Whom it connects to.
    longest_note: int = _LONGEST_NOTE  # In bytes.
    above: str | None = None  # Who asks this party: a hub, or a node of a tree. None if no party is above it.
    reply_seconds: float = 0.0  # Answers take a multiple of it. 0: no longer than they need.
    # How many bytes of messages each sender may have waiting before this party has begun. What is more is dropped, and asked
    # for again when it is needed. Where no party speaks first there is none.
    early_bytes: int = 0

    def __init__(self, study: StudyFile, *, keys: Keys, role: str, on_event: OnEvent) -> None:
        self.study, self.place = study, place_of(study, keys, role=role)
        self.keys, self._on_event = keys, on_event
        # The connections, while it runs.
        self.transport: Transport | None = None
        # Those who have said that they have the result.
        self._thanks: set[str] = set()

    @property
    def unthanked(self) -> tuple[str, ...]:
        """Those who may connect and have not said that they have the result."""
        return tuple(name for name in self.hears if name not in self._thanks)

    def on_event(self, event: Event) -> None:
        self._on_event(event)

    async def on_joined(self, runner: "Runner", name: str) -> None:
        """A party has connected: greet it."""

    async def on_note(self, runner: "Runner", sender: str, note: bytes) -> None:
        """The agent of another party has sent a note. Any organisation may have chosen these bytes."""
        if note == THANKS:
            self._thanks.add(sender)

    def may_connect(self, name: str) -> bool:
        """Whether a party that may call this one still may."""
        return True

    def counts_as_present(self, connected: Set[str]) -> Collection[str]:
        """Which parties count as present while others are awaited."""
        return connected

    def on_other_study(self, name: str, greeting: bytes) -> str:
        """A party works on another study: that in words, or an error."""
        differs = self.study.differs(greeting)
        # Those beside or below may be set right meanwhile. Without the one above there is nothing to do.
        if name == self.above:
            raise OtherStudy(
                f"{name}: {differs}. Compare both with `eigenveil study show`, and ask the coordinator which is right. "
                "If yours is wrong, `eigenveil ledger close` frees what was reserved for it"
            )
        return differs

    @asynccontextmanager
    async def connected(
        self,
        durable: DurableParty,
        *,
        listen: str | None = None,
        address: str | None = None,
        ready: Callable[[int], None] = lambda port: None,
    ) -> AsyncIterator["Runner"]:
        """Listen at `listen`, call, and carry messages of the durable party.

        `address` is where to reach the party above, if not where the study file says. `ready` is called with the port.
        """
        transport = self.transport = Transport(
            self.place.name,
            credentials=credentials_of(self.study, self.keys),
            greeting=self.study.greeting,
            # A longer frame ends the connection. One that is only a little too long is refused when it is decoded, and noted.
            accepts={MESSAGE: max(self.limits.largest, _LITTLE), NOTE: self.longest_note},
        )
        runner = Runner(self, durable, transport)
        # The transport refuses all others.
        lookup = recogniser([self.study.place(name).certificate for name in self.hears])

        def recognise(pem: bytes) -> str | None:
            name = lookup(pem)
            return name if name is not None and self.may_connect(name) else None

        try:
            if listen is not None:
                ready(await transport.listen(listen, recognise=recognise))
            for party in map(self.study.place, self.calls):
                name, where, certificate = party.name, party.address, party.certificate
                if name == self.above:
                    whom = f"for {len(self.hears)} to join below, then for" if self.hears else "for"
                    where = address or where
                    self.on_event(Event("waiting", "" if self.hears else name, f"{whom} {name} at {where}"))
                assert where is not None
                transport.dial(name, where, certificate=certificate.pem.encode(), server_name=certificate.server_name)
            yield runner
        finally:
            await transport.close()
            runner.close()


@final
class Runner:
    """Carries the messages of one party in the role of its `agent`. Changes in place."""

    def __init__(self, agent: Agent, durable: DurableParty, transport: Transport) -> None:
        self._agent, self._durable, self._transport = agent, durable, transport
        # Those whose connection this runner has handled; the transport may know of more.
        self._present: set[str] = set()
        self._early: list[Got] = []
        self._early_bytes = Counter[str]()
        # One thread only: a party is not made for two calls at once.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="party")
        self._wait: Wait | None = None
        self._until = math.inf

    async def gather(
        self, names: Collection[str], *, seconds: float, enough: int | None = None, patience: float = math.inf
    ) -> None:
        """Wait until all of `names` are present. After `seconds` continue if `enough` are; otherwise an error.

        A message says that its sender has begun, and saw all of them. Then those who were lost since are not waited for, and the
        others no longer than `patience`: whoever has begun would soon take this party for lost, too.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        lost: set[str] = set()
        while missing := set(names) - set(self._agent.counts_as_present(self._present | lost if self._early else self._present)):
            try:
                event = await asyncio.wait_for(self._transport.events.get(), max(0.0, until - loop.time()))
            except TimeoutError:
                n_present = len(names) - len(missing)
                # Not all are here, but as many as the study needs.
                if self._early or (enough is not None and n_present >= enough):
                    break
                raise ProtocolError(
                    f"{', '.join(sorted(missing)[:10])} did not join within {seconds:g} seconds, and no questions were asked"
                ) from None
            await self._heard(event)
            match event:
                case Joined(name=name):
                    await self._agent.on_joined(self, name)
                case Left(name=name):
                    lost.add(name)
                case Got(name=name, kind=kind, data=data) if kind == MESSAGE:
                    # Its sender has begun already. What is dropped for want of room is missed until it is asked for again.
                    needed = self._early_bytes[name] + len(data) + _COST
                    if needed <= self._agent.early_bytes:
                        self._early_bytes[name] = needed
                        self._early.append(event)
                    until = min(until, loop.time() + patience) if self._early else until
                case Got():
                    # A note, which has been heard.
                    pass

    async def _heard(self, event: TransportEvent) -> None:
        """Handle connections, and notes between agents."""
        match event:
            case Joined(name=name):
                self._present.add(name)
                self._agent.on_event(Event("joined", name))
            case Left(name=name, why=why, greeting=greeting):
                self._present.discard(name)
                if greeting is not None:
                    why = self._agent.on_other_study(name, greeting)
                self._agent.on_event(Event("left", name, why))
            # Another organisation chose these bytes. The transport has refused notes that are too long.
            case Got(name=name, kind=kind, data=data):
                if kind == NOTE:
                    await self._agent.on_note(self, name, data)
            case _:
                assert_never(event)

    async def begin(self) -> None:
        await self._say(await self.do(self._durable.begin))

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
                event = await asyncio.wait_for(self._transport.events.get(), None if left == math.inf else max(0.0, left))
            except TimeoutError:
                # Forget the wait, so that the next one starts its own clock even with the same number.
                self._wait = None
                await self._say(await self.do(self._durable.wait_over))
                continue
            await self._heard(event)
            if isinstance(event, Joined):
                await self._agent.on_joined(self, event.name)
                # What was sent while it was away was dropped. This says again what it still needs.
                await self._say(await self.do(partial(self._durable.on_reconnect, event.name)))
            elif isinstance(event, Got) and event.kind == MESSAGE:
                await self._opened(event)

    async def _opened(self, event: Got) -> None:
        """Hand a message to the durable party, and send its answers."""
        came = asyncio.get_running_loop().time()
        outgoing = await self.do(lambda: self._durable.take(event.name, event.data))
        # After the work and before the send: everything is on disk by now, and only the sending is delayed.
        await self._in_time(came)
        await self._say(outgoing)

    async def linger(self, *, seconds: float, over: Callable[[], bool]) -> None:
        """Stay until the others have the result, but no longer than `seconds`."""
        try:
            await asyncio.wait_for(self.run(over), seconds)
        except TimeoutError:
            return

    async def do(self, move: Callable[[], Done]) -> Done:
        """Run `move` on the party's thread, between two of its messages.

        An interrupt does not stop it half-way, or the disk could lack what was said.
        """
        future = asyncio.get_running_loop().run_in_executor(self._worker, ignore_float_errors(move))
        return await asyncio.shield(future)

    async def act(self, move: Callable[[], list[Outgoing]]) -> None:
        """The same, and send what the party says then."""
        outgoing = await self.do(move)
        if outgoing:
            # Of what nobody has just asked for, the time that it took is not known. Whole multiples tell nothing of it either.
            await self._in_time(0.0)
        await self._say(outgoing)
        # `run` may be waiting without the deadline that has just been set. A note of nobody wakes it.
        self._transport.events.put(Got("", NOTE, b""))

    async def note(self, payload: bytes, *names: str) -> None:
        for name in names:
            await self._transport.send(name, NOTE, payload)

    async def thank(self, name: str) -> None:
        """Say that the result is here."""
        try:
            async with asyncio.timeout(_GOODBYE):
                await self.note(THANKS, name)
        except TimeoutError:
            # The result is on disk, so nothing is lost if the other does not hear the thanks.
            return

    def close(self) -> None:
        """Let the thread end."""
        # Wait for the step in progress: the ledger must not be closed under it.
        self._worker.shutdown(wait=True, cancel_futures=True)

    async def _say(self, outgoing: list[Outgoing]) -> None:
        """Send it, in order to each receiver and to all receivers at once. Then set the deadline of what the party waits for."""
        by_name: dict[str, list[bytes]] = {}
        for name, data in outgoing:
            by_name.setdefault(name, []).append(data)

        async def send_all(name: str) -> None:
            for data in by_name[name]:
                await self._transport.send(name, MESSAGE, data)

        await asyncio.gather(*map(send_all, by_name))
        wait = self._durable.party.waiting
        if wait is None:
            self._wait, self._until = None, math.inf
        # The same wait keeps its deadline: messages that change nothing must not prolong it. The clock never goes back.
        elif self._wait is None or wait.number != self._wait.number:
            self._wait, self._until = wait, asyncio.get_running_loop().time() + wait.seconds

    async def _in_time(self, came: float) -> None:
        """Wait for a whole multiple of the fixed reply time, so that the time of an answer tells nothing about the rows."""
        reply = self._agent.reply_seconds
        if reply > 0:
            now = asyncio.get_running_loop().time()
            periods = max(1, math.ceil((now - came) / reply))
            await asyncio.sleep(came + periods * reply - now)
