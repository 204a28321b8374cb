"""`HubAgent`: the hub of a study over the network, from the first question to the model. `eigenveil hub` runs it."""

from collections.abc import Callable, Collection, Set
from importlib.metadata import version
from typing import Any, final

from eigenveil.errors import require
from eigenveil.model import Model
from eigenveil.network.agents.durable.hub import DurableHub
from eigenveil.network.agents.durable.hub_log import HubLog
from eigenveil.network.agents.durable.party import Event, OnEvent
from eigenveil.network.agents.runner import READY, STOPPED, THANKS, Agent, Runner
from eigenveil.network.identity.certificates import Keys
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.parties import federated_model, parties_of
from eigenveil.network.study.size import MEMORY, limits_of

__all__ = ["HubAgent"]


@final
class HubAgent(Agent):
    """The hub: it asks, adds up and keeps the `transcript`. Changes in place.

    Started again on the transcript of an interrupted study, it goes on from there and asks nobody for what it has. A study that
    needs more than `memory` bytes is refused.
    """

    def __init__(
        self,
        study: StudyFile,
        *,
        keys: Keys,
        transcript: HubLog,
        memory: int = MEMORY,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        require(
            study.carrier != "gossip", f"{study.name!r} is a study between peers and has no hub: run `eigenveil peer`"
        )
        super().__init__(study, keys=keys, role="hub", on_event=on_event)
        self.parties = parties_of(study, memory=memory)
        self.limits = limits_of(study, self.parties.request, "hub", self.parties.masked)
        # The parties that talk to the hub: sites or nodes.
        self.hears = tuple(self.parties.layout.below[self.place.name])
        self._thanks: set[str] = set()
        self._ready: set[str] = set()
        # This replays the transcript, so one that does not fit is refused before anyone connects.
        self.durable = DurableHub(self.parties, transcript, limits=self.limits, on_event=on_event)

    @classmethod
    def transcript_for(cls, path: Any, study: StudyFile) -> HubLog:
        """The transcript at `path`, new or of an interrupted study."""
        # Only the version of the program that began a transcript may go on with it.
        return HubLog.open(path, study=study.digest, wheel=version("eigenveil"))

    async def run(
        self, deliver: Callable[[Model], None], *, listen: str, ready: Callable[[int], None] = lambda port: None
    ) -> Model:
        """Run the study to its end. `deliver` gets the model before the hub waits for sites to fetch the result.

        `listen` is the address to listen at, and `ready` is called with the port.
        """
        async with self.connected(self.durable, listen=listen, ready=ready) as runner:
            if self.durable.begun:
                self.on_event(Event("resumed", self.place.name, f"after {len(self.durable.rounds)} rounds"))
            # A finished study asks nothing more: it only listens for those who lack the result.
            if self.durable.party.result is None:
                await self._ask(runner)
            # On the hub's disk first: after that a lost connection can only delay the others.
            model = self.model()
            deliver(model)
            # As long as for an answer. A site that is later gets the result when the hub is started again.
            await runner.linger(seconds=self.study.patience, over=lambda: not self.unthanked)
            return model

    async def _ask(self, runner: Runner) -> None:
        """Ask until there is a result; an error if the study has stopped before."""
        # A resumed study does not wait for all: those who are missing are asked when they are back.
        if not self.durable.begun:
            self.on_event(Event("waiting", "", f"for {len(self.hears)} to join"))
            # All must have joined in a tree, where a node stands for several sites.
            enough = self.study.fewest if self.study.carrier == "star" else None
            await runner.gather(self.hears, seconds=self.study.params.join, enough=enough)
            self.on_event(Event("began"))
        await runner.begin()
        await runner.run(lambda: self.durable.over)
        if self.durable.stopped is not None:
            # Sites keep waiting, but can tell their operators why.
            await runner.note(STOPPED, *self.hears)
            raise self.durable.stopped

    async def on_note(self, runner: Runner, sender: str, words: bytes) -> None:
        """Whoever has the result says thanks, and a node says that all below it are connected."""
        if words == THANKS:
            self._thanks.add(sender)
        elif words == READY:
            self._ready.add(sender)

    def counts_as_present(self, connected: Set[str]) -> Collection[str]:
        """A connected site, and a node that says that all below it are present."""
        # A connected node may still wait for its own sites, and what is sent to those would be dropped.
        nodes = set(self.parties.layout.nodes)
        return {name for name in connected if name not in nodes or name in self._ready}

    @property
    def unthanked(self) -> tuple[str, ...]:
        """Those who have not said that they have the result."""
        return tuple(name for name in self.hears if name not in self._thanks)

    def model(self) -> Model:
        """The model of the finished study."""
        result = self.durable.party.result
        assert result is not None
        return federated_model(
            self.study, self.parties, result, sites=len(self.durable.party.sites), rounds=len(self.durable.rounds)
        )
