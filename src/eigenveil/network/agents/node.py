"""`NodeAgent`: an inner node of a tree over the network. `eigenveil node` runs it.

It has neither rows nor noise, and keeps nothing on disk. Started again, it asks the parties below it once more, and they
repeat what they said.
"""

from typing import final

from eigenveil.errors import PeerError, require
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.network.agents.durable.party import DurableParty, Event, OnEvent, Outgoing, opened
from eigenveil.network.agents.runner import NOTE, READY, THANKS, Runner, accepted, progress_in, progress_note
from eigenveil.network.agents.site_data import credentials_of, other_study, place_of
from eigenveil.network.identity.certificates import Keys, recogniser
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.parties import parties_of
from eigenveil.network.study.size import MEMORY, limits_of
from eigenveil.network.study.streams import slot_limits_of, slot_parties_of
from eigenveil.protocols import Message, Node
from eigenveil.protocols.wire import MessageLimits, encode
from eigenveil.runtimes.grpc import Transport

__all__ = ["NodeAgent"]


@final
class _DurableNode(DurableParty):
    """A node, of which nothing needs to be on disk. Changes in place."""

    def __init__(self, party: Node, *, limits: MessageLimits, on_event: OnEvent) -> None:
        self.party: Node = party
        self._limits, self._on_event = limits, on_event

    @property
    def over(self) -> bool:
        """Whether the result has been passed on."""
        return self.party.over

    def begin(self) -> list[Outgoing]:
        """Nothing: a node waits to be asked."""
        return []

    def take(self, sender: str, data: bytes) -> list[Outgoing]:
        """What follows from a question from above or a part from below."""
        try:
            return _outgoing(self.party.receive(opened(data, sender=sender, me=self.party.name, limits=self._limits)))
        except PeerError as error:
            # There is no ledger to note it in, so a refusal is on the screen only.
            self._on_event(Event("refused", error.peer, error.why))
            return []

    def wait_over(self) -> list[Outgoing]:
        """What the node sends when the deadline for those below has passed."""
        return _outgoing(self.party.timeout())

    def rejoined(self, other: str) -> list[Outgoing]:
        """What it sends to one below that is back."""
        return _outgoing(self.party.rejoined(other))


def _outgoing(messages: list[Message]) -> list[Outgoing]:
    return [(message.receiver, encode(message)) for message in messages]


@final
class NodeAgent:
    """An inner node of the tree of a `study`, which may need at most `memory` bytes. Changes in place."""

    def __init__(
        self, study: StudyFile, *, keys: Keys, memory: int = MEMORY, on_event: OnEvent = lambda event: None
    ) -> None:
        require(study.carrier == "tree", f"the study {study.name!r} is not a tree and has no nodes")
        self.study, self.place = study, place_of(study, keys, role="node")
        self.parties: Parties | SlotParties = (
            slot_parties_of(study, memory=memory) if study.streaming else parties_of(study, memory=memory)
        )
        self._keys, self._on_event = keys, on_event
        self._thanks: set[str] = set()
        self._ready: set[str] = set()
        # Of those below whose sources have ended: how many slots they have closed.
        self._ended: dict[str, int] = {}
        # The connections, while `run` runs.
        self.transport: Transport | None = None

    @property
    def below(self) -> tuple[str, ...]:
        """The sites or nodes below this node."""
        return tuple(self.parties.layout.below[self.place.name])

    async def run(self, *, listen: str, address: str | None = None) -> None:
        """Pass messages on until the result has been. `address` is where to reach the party above, if not as in the study."""
        above = self.study.place(self.parties.above[self.place.name])
        parties = self.parties
        limits = (
            slot_limits_of(self.study, parties, "node")
            if isinstance(parties, SlotParties)
            else limits_of(self.study, parties.request, "node")
        )
        transport = self.transport = Transport(
            self.place.name,
            credentials=credentials_of(self.study, self._keys),
            greeting=self.study.greeting,
            accepts=accepted(limits),
        )
        # Made anew at each start. Those below repeat their answers byte for byte, so nothing is charged again.
        durable = _DurableNode(self.parties.node(self.place.name), limits=limits, on_event=self._on_event)

        async def report() -> None:
            # The hub begins when its nodes say that all below them are connected. Repeating it in mid-study does no harm.
            if self._ready >= set(self.below):
                await transport.send(above.name, NOTE, READY)

        async def greet(name: str) -> None:
            # A site is ready when it is connected; a node below says so itself, with a note.
            if name in self.below and name not in self.parties.layout.nodes:
                self._ready.add(name)
            await report()
            await tell_ended()

        async def tell_ended() -> None:
            # No slot can be filled below this node after the longest source has ended.
            if self._ended.keys() >= set(self.below):
                await transport.send(above.name, NOTE, progress_note(max(self._ended.values()), ended=True))

        async def noted(sender: str, words: bytes) -> None:
            progress = progress_in(words)
            if progress is not None and sender in self.below:
                closed, ended = progress
                if ended:
                    self._ended[sender] = closed
                else:
                    # It goes on after all: whoever started it again has given it another source.
                    self._ended.pop(sender, None)
                await tell_ended()
            elif words == THANKS:
                self._thanks.add(sender)
            elif words == READY:
                self._ready.add(sender)
                await report()

        def other(name: str, greeting: bytes) -> str:
            # Those below may be set right meanwhile. Without the one above there is nothing to do.
            if name == above.name:
                raise other_study(self.study, name, greeting)
            return self.study.differs(greeting)

        runner = Runner(durable, transport, on_event=self._on_event, notes=noted, greet=greet, other=other)
        try:
            seen = [self.study.place(name).certificate for name in self.below]
            await transport.listen(listen, recognise=recogniser(seen))
            network, where = self.study.params, address or above.address
            assert where is not None
            self._on_event(
                Event("waiting", "", f"for {len(self.below)} to join below, then for {above.name} at {where}")
            )
            transport.dial(
                above.name, where, certificate=above.certificate.pem.encode(), server_name=above.certificate.server_name
            )
            await runner.run(lambda: durable.over)
            # Stay until all below have the result, or a site that lost its connection could never get it.
            await runner.linger(
                seconds=network.deadline * (1 + network.retries), over=lambda: self._thanks >= set(self.below)
            )
            # Only now: the hub may end once it is thanked, and a node speaks for all below it.
            await runner.note(above.name, THANKS)
        finally:
            await transport.close()
            runner.close()
