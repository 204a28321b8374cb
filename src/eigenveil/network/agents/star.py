"""`HubAgent`, `NodeAgent` and `SiteAgent`: the parties of a study around a hub or in a tree, over the network.

`eigenveil hub`, `node` and `site` run them. A site spends only what its ledger allows: what leaves it is there first.
"""

import math
from collections.abc import Callable, Collection, Set
from importlib.metadata import version
from typing import Any, Unpack, final

from eigenveil.core.ledger import Charge
from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.ledger.durable import StudyRecord
from eigenveil.model import Model
from eigenveil.network.agents.hub_log import DurableHub, HubLog
from eigenveil.network.agents.runner import READY, STOPPED, THANKS, Agent, Runner, progress_in, progress_note
from eigenveil.network.agents.site_data import Holder, HolderOptions, SiteData, account_of
from eigenveil.network.agents.steps import Asked, Cause, DurableParty, Event, LedgerSteps, OnEvent, Outgoing, outgoing_of
from eigenveil.network.certificates import Keys
from eigenveil.network.parties import federated_model, found_in, parties_of
from eigenveil.network.rules import MEMORY, limits_of
from eigenveil.network.streams import slot_limits_of, slot_parties_of
from eigenveil.network.study import StudyFile
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.messages import Ask, Contribution, Done, Message, StepRequest
from eigenveil.protocols.party import require_plain
from eigenveil.protocols.star.hub import Node
from eigenveil.protocols.star.site import Member
from eigenveil.protocols.wire import MessageLimits, decode

__all__ = ["DurableSite", "HubAgent", "NodeAgent", "SiteAgent"]


@final
class DurableSite(Asked):
    """The messages between the site of an `agent`, which has `entered` its study, and the hub or node above. Changes in place.

    `whole` is for studies in which the hub adds the noise. The site's first part is then charged with all that the study may
    cost. `stretch` multiplies each charge of the party, for people who have rows at other sites too.
    """

    def __init__(self, agent: "SiteAgent", entered: StudyRecord) -> None:
        study, parties, name = agent.study, agent.parties, agent.place.name
        spec, masked, self._whole = parties.request, parties.masked, agent.whole
        questions = parties.most_questions if masked is None else masked.most_messages
        super().__init__(
            LedgerSteps(agent.ledger, study.digest, number=len(entered.steps), questions=questions, on_event=agent.on_event),
            above=agent.above,
            unwritten="an answer",
            limits=agent.limits,
            on_event=agent.on_event,
        )
        # A share under masks is charged for the whole sum, which counts a person's rows at all their sites. A part with the
        # site's own noise is charged for this site alone, so it is multiplied.
        self._stretch = 1.0 if masked is not None else math.sqrt(spec.person_sites)
        # The ledger has charges per person, the party counts its own: undo that factor.
        charged = [charge for step in entered.steps for charge in step.charges if charge != self._whole]
        spent = tuple(Charge(charge.label, charge.mu / self._stretch) for charge in charged)
        self.party: Member | MaskedMember = parties.member(
            name, agent.holding.rows, identity=agent.keys.identity, secret=entered.secret, charges=spent
        )
        self._parties, self._ledger = parties, parties.ledgers.get(name)
        # The longest answer in bytes that is accepted above.
        self._max_bytes = limits_of(study, spec, "hub" if study.fanout is None else "node", masked).largest
        self._last_step = ""
        # Brings the party to where the ledger ends, without computing or charging anything again.
        for step in entered.steps:
            replies = [decode(raw) for raw in step.replies]
            outgoing = [(message.receiver, raw) for message, raw in zip(replies, step.replies, strict=True)]
            self._in_ledger.remember(step.incoming, replies, outgoing)
            self.party.recall(decode(step.incoming, limits=self._limits), replies)
            # The charge for the whole study is due once, whichever step it was in.
            if self._whole in step.charges:
                self._whole = None

    def _answer(self, cause: Cause, message: Message, step: Callable[[], list[Message]]) -> list[Outgoing]:
        # All checks come before the party moves: a refused message must leave no trace in it.
        if isinstance(message.body, Done):
            # A final result that cannot be one must not end the study.
            try:
                require_plain(message.body.arrays)
                found_in(self._parties, message.body.arrays)
            except ValueError as error:
                raise PeerError(message.sender, f"sent an invalid result: {error}") from error
        self._in_ledger.require_few(message)
        before = 0 if self._ledger is None else len(self._ledger.charges)
        answers = step()
        self._in_ledger.is_ahead = True
        outgoing = outgoing_of(answers)
        replies = [raw for _, raw in outgoing]
        if any(len(raw) > self._max_bytes for raw in replies):
            raise ProtocolError(
                f"an answer of this site has {max(map(len, replies))} bytes, and {self._max_bytes} are the most that this study "
                "needs. Nothing was charged and nothing was sent"
            )
        charged = () if self._ledger is None else self._ledger.charges[before:]
        charges = tuple(Charge(charge.label, charge.mu * self._stretch) for charge in charged)
        # Only a `Contribution` carries sums. Keys and refusals are not charged.
        if self._whole is not None and any(isinstance(answer.body, Contribution) for answer in answers):
            charges, self._whole = (*charges, self._whole), None
        self._in_ledger.commit(cause.data, replies, charges)
        self._in_ledger.remember(cause.data, answers, outgoing)
        self._report(message, charges, sum(map(len, replies)))
        return outgoing

    def _report(self, message: Message, charges: tuple[Charge, ...], size: int) -> None:
        body = message.body
        if isinstance(body, Done):
            self._on_event(Event("over", self._above, "the result is here"))
        elif isinstance(body, StepRequest) and body.step != self._last_step:
            self._last_step = body.step
            self._on_event(Event("asked", self._above, f"masks: {body.step}"))
        elif isinstance(body, Ask) and self.party.error is not None:
            text = f"this site has no part to give: {self.party.error}"
            self._on_event(Event("said", self._above, text))
            self._in_ledger.log(text)
        elif isinstance(body, Ask):
            cost = ", ".join(f"{charge.label} at mu {charge.mu:.4g}" for charge in charges) or "no new charge"
            stage = f"{body.question.stage} {body.question.step + 1}".strip()
            self._on_event(Event("said", self._above, f"{stage}: {size:,} bytes; {cost}"))


@final
class HubAgent(Agent):
    """The hub: it asks, adds up and keeps the `transcript`. Changes in place.

    Started again on the transcript of an interrupted study, it continues from there and does not ask again for what it has. A
    study that needs more than `memory` bytes is refused.
    """

    def __init__(
        self, study: StudyFile, *, keys: Keys, transcript: HubLog, memory: int = MEMORY, on_event: OnEvent = lambda event: None
    ) -> None:
        require(study.topology != "gossip", f"{study.name!r} is a study between peers and has no hub: run `eigenveil peer`")
        super().__init__(study, keys=keys, role="hub", on_event=on_event)
        self.parties = parties_of(study, memory=memory)
        self.limits = limits_of(study, self.parties.request, "hub", self.parties.masked)
        # The parties that talk to the hub: sites or nodes.
        self.hears = tuple(self.parties.layout.below[self.place.name])
        self._ready: set[str] = set()
        # This replays the transcript, so one that does not fit is refused before anyone connects.
        self.durable = DurableHub(self.parties, transcript, limits=self.limits, on_event=on_event)

    @classmethod
    def transcript_for(cls, path: Any, study: StudyFile) -> HubLog:
        """The transcript at `path`, new or of an interrupted study."""
        # Only the version of the program that began a transcript may continue with it.
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
            enough = self.study.fewest if self.study.topology == "star" else None
            await runner.gather(self.hears, seconds=self.study.params.join_timeout, enough=enough)
            self.on_event(Event("began"))
        await runner.begin()
        await runner.run(lambda: self.durable.over)
        if self.durable.stopped is not None:
            # Sites keep waiting, but can tell their operators why.
            await runner.note(STOPPED, *self.hears)
            raise self.durable.stopped

    async def on_note(self, runner: Runner, sender: str, note: bytes) -> None:
        await super().on_note(runner, sender, note)
        if note == READY:
            self._ready.add(sender)

    def counts_as_present(self, connected: Set[str]) -> Collection[str]:
        # A connected node may still wait for its own sites, and what is sent to those would be dropped.
        nodes = set(self.parties.layout.nodes)
        return {name for name in connected if name not in nodes or name in self._ready}

    def model(self) -> Model:
        result = self.durable.party.result
        assert result is not None
        return federated_model(
            self.study, self.parties, result, sites=len(self.durable.party.sites), rounds=len(self.durable.rounds)
        )


@final
class _DurableNode(DurableParty):
    """A node, of which nothing needs to be on disk. Refusals are on the screen only. Changes in place."""

    def __init__(self, party: Node, *, limits: MessageLimits, on_event: OnEvent) -> None:
        super().__init__(limits=limits, on_event=on_event)
        self.party: Node = party

    @property
    def over(self) -> bool:
        return self.party.over


@final
class NodeAgent(Agent):
    """An inner node of the tree of a `study`, which may need at most `memory` bytes. Changes in place."""

    above: str

    def __init__(self, study: StudyFile, *, keys: Keys, memory: int = MEMORY, on_event: OnEvent = lambda event: None) -> None:
        require(study.topology == "tree", f"the study {study.name!r} is not a tree and has no nodes")
        super().__init__(study, keys=keys, role="node", on_event=on_event)
        self.parties: Parties | SlotParties
        if study.streaming:
            self.parties = parties = slot_parties_of(study, memory=memory)
            self.limits = slot_limits_of(study, parties, "node")
        else:
            self.parties = tables = parties_of(study, memory=memory)
            self.limits = limits_of(study, tables.request, "node")
        # The sites or nodes below this node, and who is above.
        self.above = self.parties.above[self.place.name]
        self.hears, self.calls = tuple(self.parties.layout.below[self.place.name]), (self.above,)
        self._ready: set[str] = set()
        # Of those below whose sources have ended: how many slots they have closed.
        self._ended: dict[str, int] = {}

    async def run(self, *, listen: str, address: str | None = None) -> None:
        """Pass messages on until the result has been. `address` is where to reach the party above, if not as in the study."""
        # Made anew at each start. Those below repeat their answers byte for byte, so nothing is charged again.
        durable = _DurableNode(self.parties.node(self.place.name), limits=self.limits, on_event=self.on_event)
        async with self.connected(durable, listen=listen, address=address) as runner:
            await runner.run(lambda: durable.over)
            # Stay until all below have the result, or a site that lost its connection could never get it.
            await runner.linger(seconds=self.study.patience, over=lambda: not self.unthanked)
            # Only now: the hub may end once it is thanked, and a node speaks for all below it.
            await runner.note(THANKS, self.above)

    async def on_joined(self, runner: Runner, name: str) -> None:
        """A site is ready when it is connected; a node below says so itself, with a note."""
        if name in self.hears and name not in self.parties.layout.nodes:
            self._ready.add(name)
        await self._tell_above(runner)

    async def on_note(self, runner: Runner, sender: str, note: bytes) -> None:
        await super().on_note(runner, sender, note)
        progress = progress_in(note)
        if progress is not None and sender in self.hears:
            closed, ended = progress
            if ended:
                self._ended[sender] = closed
            else:
                # It continues after all: whoever started it again has given it another source.
                self._ended.pop(sender, None)
            await self._tell_above(runner)
        elif note == READY:
            self._ready.add(sender)
            await self._tell_above(runner)

    async def _tell_above(self, runner: Runner) -> None:
        """Say that all below are connected, and that no slot can be filled after the longest source below has ended.

        The hub begins when its nodes say the first. Repeating either in mid-study does no harm.
        """
        below = set(self.hears)
        if self._ready >= below:
            await runner.note(READY, self.above)
        if self._ended.keys() >= below:
            await runner.note(progress_note(max(self._ended.values()), ended=True), self.above)


@final
class SiteAgent(Holder):
    """One site: its place in the `study`, its table, and the name of its `dataset` in its ledger. Changes in place: it spends.

    Nothing is connected and nothing is spent before `run`. A study that needs more than `memory` bytes is refused.
    """

    above: str

    def __init__(
        self, study: StudyFile, *, holding: SiteData, dataset: str, memory: int = MEMORY, **options: Unpack[HolderOptions]
    ) -> None:
        require(study.topology != "gossip", f"{study.name!r} is a study between peers: run `eigenveil peer`")
        super().__init__(study, role="site", **options)
        self.parties, self.holding = parties_of(study, memory=memory), holding
        spec, masked, me = self.parties.request, self.parties.masked, self.place.name
        # The hub, or a node of the tree.
        self.above = self.parties.above[me]
        self.calls = (self.above,)
        self.limits = limits_of(study, spec, "site", masked)
        # Before any connection and any charge: a study that is refused learns nothing.
        self.require_allowed(holding, method=spec.fit.plan.method)
        # With trust "both" the site is charged for its own noise: that budget holds against the hub, which sees most.
        budget = spec.at_sites if spec.at_sites is not None else spec.at_hub
        gaussian = None if masked is None else masked.lattice.gaussian
        if budget is None or gaussian is None:
            mu, masked = 0.0 if budget is None else budget.mu, None
        else:
            # Masks may take a part of delta, and then the noise is for the rest: `gaussian` is that smaller budget.
            mu = gaussian.mu
        self.account = account_of(study, dataset, party=me, budget=budget, mu=mu, masks=masked)
        # Where the hub adds the noise, the whole study is charged at once with the first part: the site has no say in what
        # the hub does with that part.
        self.whole: Charge | None = None
        if spec.at_sites is None and spec.at_hub is not None and self.account.private:
            self.whole = Charge("the whole study: the hub adds the noise", spec.at_hub.mu)

    async def run(self, deliver: Callable[[Model], None], *, address: str | None = None, note: str | None = None) -> Model:
        """Take part until the result is here. `deliver` gets the model before the study is closed in the ledger.

        `address` is where to reach the hub or node above, if not where the study file says. `note` is for the ledger,
        such as who consented.
        """
        with self.entered(note) as entered:
            durable = DurableSite(self, entered)
            if not entered.fresh:
                self.on_event(Event("resumed", self.place.name, f"{len(entered.steps)} steps are in the ledger"))
            # A site that was stopped after the result came has it in the ledger, and need not call anyone.
            if not durable.over:
                async with self.connected(durable, address=address) as runner:
                    await runner.run(lambda: durable.over)
                    await runner.thank(self.above)
            assert durable.party.result is not None
            result = found_in(self.parties, durable.party.result)
            model = federated_model(self.study, self.parties, result, sites=len(self.parties.names), rounds=None)
            # First the model on disk, then the end in the ledger: that wipes the bytes from which the model could be made
            # again.
            deliver(model)
            self.ledger.finish(self.study.digest)
            return model
