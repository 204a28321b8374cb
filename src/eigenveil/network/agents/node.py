"""`NodeAgent`: an inner node of a tree over the network. `eigenveil node` runs it.

It has neither rows nor noise, and keeps nothing on disk. Started again, it asks the parties below it once more, and they
repeat what they said.
"""

from typing import final

from eigenveil.errors import require
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.network.agents.durable.party import DurableParty, OnEvent
from eigenveil.network.agents.runner import READY, THANKS, Agent, Runner, progress_in, progress_note
from eigenveil.network.identity.certificates import Keys
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.parties import parties_of
from eigenveil.network.study.size import MEMORY, limits_of
from eigenveil.network.study.streams import slot_limits_of, slot_parties_of
from eigenveil.protocols import Node
from eigenveil.protocols.wire import MessageLimits

__all__ = ["NodeAgent"]


@final
class _DurableNode(DurableParty):
    """A node, of which nothing needs to be on disk. Refusals are on the screen only. Changes in place."""

    def __init__(self, party: Node, *, limits: MessageLimits, on_event: OnEvent) -> None:
        super().__init__(limits=limits, on_event=on_event)
        self.party: Node = party

    @property
    def over(self) -> bool:
        """Whether the result has been passed on."""
        return self.party.over


@final
class NodeAgent(Agent):
    """An inner node of the tree of a `study`, which may need at most `memory` bytes. Changes in place."""

    def __init__(
        self, study: StudyFile, *, keys: Keys, memory: int = MEMORY, on_event: OnEvent = lambda event: None
    ) -> None:
        require(study.carrier == "tree", f"the study {study.name!r} is not a tree and has no nodes")
        super().__init__(study, keys=keys, role="node", on_event=on_event)
        self.parties: Parties | SlotParties
        if study.streaming:
            self.parties = parties = slot_parties_of(study, memory=memory)
            self.limits = slot_limits_of(study, parties, "node")
        else:
            self.parties = tables = parties_of(study, memory=memory)
            self.limits = limits_of(study, tables.request, "node")
        # The sites or nodes below this node, and who is above.
        self.hears, self.calls = tuple(self.parties.layout.below[self.place.name]), (self.above,)
        self._thanks: set[str] = set()
        self._ready: set[str] = set()
        # Of those below whose sources have ended: how many slots they have closed.
        self._ended: dict[str, int] = {}

    @property
    def above(self) -> str:
        """The hub, or a node of the tree."""
        return self.parties.above[self.place.name]

    async def run(self, *, listen: str, address: str | None = None) -> None:
        """Pass messages on until the result has been. `address` is where to reach the party above, if not as in the study."""
        # Made anew at each start. Those below repeat their answers byte for byte, so nothing is charged again.
        durable = _DurableNode(self.parties.node(self.place.name), limits=self.limits, on_event=self.on_event)
        async with self.connected(durable, listen=listen, address=address) as runner:
            await runner.run(lambda: durable.over)
            # Stay until all below have the result, or a site that lost its connection could never get it.
            await runner.linger(seconds=self.study.patience, over=lambda: self._thanks >= set(self.hears))
            # Only now: the hub may end once it is thanked, and a node speaks for all below it.
            await runner.note(THANKS, self.above)

    async def on_joined(self, runner: Runner, name: str) -> None:
        """A site is ready when it is connected; a node below says so itself, with a note."""
        if name in self.hears and name not in self.parties.layout.nodes:
            self._ready.add(name)
        await self._say_ready(runner)
        await self._say_ended(runner)

    async def on_note(self, runner: Runner, sender: str, words: bytes) -> None:
        """Thanks, that all below another node are connected, or how far a stream is."""
        progress = progress_in(words)
        if progress is not None and sender in self.hears:
            closed, ended = progress
            if ended:
                self._ended[sender] = closed
            else:
                # It goes on after all: whoever started it again has given it another source.
                self._ended.pop(sender, None)
            await self._say_ended(runner)
        elif words == THANKS:
            self._thanks.add(sender)
        elif words == READY:
            self._ready.add(sender)
            await self._say_ready(runner)

    async def _say_ready(self, runner: Runner) -> None:
        # The hub begins when its nodes say that all below them are connected. Repeating it in mid-study does no harm.
        if self._ready >= set(self.hears):
            await runner.note(READY, self.above)

    async def _say_ended(self, runner: Runner) -> None:
        # No slot can be filled below this node after the longest source has ended.
        if self._ended.keys() >= set(self.hears):
            await runner.note(progress_note(max(self._ended.values()), ended=True), self.above)
