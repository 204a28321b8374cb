"""`HubAgent`: the hub of a study over the network, from the first question to the model. `eigenveil hub` runs it."""

from collections.abc import Callable, Set
from importlib.metadata import version
from typing import Any, final

from eigenveil.errors import require
from eigenveil.model import Model
from eigenveil.network.agents.durable.hub import DurableHub
from eigenveil.network.agents.durable.hub_log import HubLog
from eigenveil.network.agents.durable.party import Event, OnEvent
from eigenveil.network.agents.runner import READY, STOPPED, THANKS, Runner, accepted
from eigenveil.network.agents.site_data import credentials_of, place_of
from eigenveil.network.identity.certificates import Keys, recogniser
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.parties import federated_model, parties_of
from eigenveil.network.study.size import MEMORY, limits_of
from eigenveil.runtimes.grpc import Transport

__all__ = ["HubAgent"]


@final
class HubAgent:
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
        self.study, self.place = study, place_of(study, keys, role="hub")
        self.parties = parties_of(study, memory=memory)
        self._limits = limits_of(study, self.parties.request, "hub", self.parties.masked)
        self._keys, self._transcript, self._on_event = keys, transcript, on_event
        self._thanks: set[str] = set()
        self._ready: set[str] = set()
        # The connections, while `run` runs.
        self.transport: Transport | None = None
        # This replays the transcript, so one that does not fit is refused before anyone connects.
        self.durable = DurableHub(self.parties, transcript, limits=self._limits, on_event=on_event)

    @classmethod
    def transcript_for(cls, path: Any, study: StudyFile) -> HubLog:
        """The transcript at `path`, new or of an interrupted study."""
        return HubLog.open(path, study=study.digest, wheel=_version())

    @property
    def below(self) -> tuple[str, ...]:
        """The parties that talk to the hub: sites or nodes."""
        return tuple(self.parties.layout.below[self.place.name])

    async def run(
        self, deliver: Callable[[Model], None], *, listen: str, ready: Callable[[int], None] = lambda port: None
    ) -> Model:
        """Run the study to its end. `deliver` gets the model before the hub waits for sites to fetch the result.

        `listen` is the address to listen at, and `ready` is called with the port.
        """
        transport = self.transport = Transport(
            self.place.name,
            credentials=credentials_of(self.study, self._keys),
            greeting=self.study.greeting,
            accepts=accepted(self._limits),
        )
        runner = Runner(
            self.durable,
            transport,
            on_event=self._on_event,
            notes=self._noted,
            there=self._there,
            # Only said, and no reason to stop: one site with another file must not end the study of the others.
            other=lambda _, greeting: self.study.differs(greeting),
        )
        try:
            # Only the parties directly below may connect; the transport refuses everyone else.
            seen = [self.study.place(name).certificate for name in self.below]
            ready(await transport.listen(listen, recognise=recogniser(seen)))
            if self.durable.begun:
                self._on_event(Event("resumed", self.place.name, f"after {len(self.durable.rounds)} rounds"))
            # A finished study asks nothing more: it only listens for those who lack the result.
            if self.durable.party.result is None:
                await self._carry(runner)
            # On the hub's disk first: after that a lost connection can only delay the others.
            model = self.model()
            deliver(model)
            network = self.study.params
            # As long as for an answer. A site that is later gets the result when the hub is started again.
            await runner.linger(seconds=network.deadline * (1 + network.retries), over=self._all_thanked)
            return model
        finally:
            await transport.close()
            runner.close()

    async def _carry(self, runner: Runner) -> None:
        enough = self._enough()
        # A resumed study does not wait for all: those who are missing are asked when they are back.
        if not self.durable.begun:
            self._on_event(Event("waiting", "", f"for {len(self.below)} to join"))
            await runner.gather(self.below, seconds=self.study.params.join, enough=enough)
            self._on_event(Event("began"))
        await runner.begin()
        await runner.run(lambda: self.durable.over)
        if self.durable.stopped is not None:
            # Sites keep waiting, but can tell their operators why.
            for name in self.below:
                await runner.note(name, STOPPED)
            raise self.durable.stopped

    def _enough(self) -> int | None:
        """How many must have joined in time. None for all: a node of a tree stands for several sites."""
        return self.study.fewest if self.study.carrier == "star" else None

    async def _noted(self, sender: str, words: bytes) -> None:
        if words == THANKS:
            self._thanks.add(sender)
        elif words == READY:
            self._ready.add(sender)

    def _there(self, present: Set[str]) -> Set[str]:
        """Who counts as present: a connected site, and a node that says that all below it are present."""
        # A connected node may still wait for its own sites, and what is sent to those would be dropped.
        nodes = set(self.parties.layout.nodes)
        return {name for name in present if name not in nodes or name in self._ready}

    def _all_thanked(self) -> bool:
        return self._thanks >= set(self.below)

    @property
    def unthanked(self) -> tuple[str, ...]:
        """Those who have not said that they have the result."""
        return tuple(name for name in self.below if name not in self._thanks)

    def model(self) -> Model:
        """The model of the finished study."""
        found = self.durable.party.result
        assert found is not None
        return federated_model(
            self.study, self.parties, found, sites=len(self.durable.party.sites), rounds=len(self.durable.rounds)
        )


def _version() -> str:
    """The version of this program. Only the version that began a transcript may go on with it."""
    return version("eigenveil")
