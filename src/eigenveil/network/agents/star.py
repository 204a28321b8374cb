"""`SiteAgent`: a site of a study over the network, from its table to its model.

`eigenveil site` runs it. It spends only what its ledger allows; `durable/site.py` has the states of a round.
"""

import math
from collections.abc import Callable, Collection, Set
from importlib.metadata import version
from typing import Any, final

from eigenveil.core.ledger import Charge
from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.ledger.durable import DurableLedger, StudyBudget, StudyRecord
from eigenveil.model import Model
from eigenveil.network.agents.hub_log import DurableHub, HubLog
from eigenveil.network.agents.runner import READY, STOPPED, THANKS, Agent, Runner, progress_in, progress_note
from eigenveil.network.agents.site_data import Holder, SiteData, account_of
from eigenveil.network.agents.steps import Asked, Cause, DurableParty, Event, LedgerSteps, OnEvent, Outgoing
from eigenveil.network.certificates import Keys
from eigenveil.network.parties import federated_model, found_in, parties_of
from eigenveil.network.policy import Policy
from eigenveil.network.rules import MEMORY, limits_of
from eigenveil.network.streams import slot_limits_of, slot_parties_of
from eigenveil.network.study import StudyFile
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.messages import Ask, Contribution, Done, Message, StepRequest
from eigenveil.protocols.party import require_plain
from eigenveil.protocols.star.hub import Node
from eigenveil.protocols.star.site import Member
from eigenveil.protocols.wire import MessageLimits, decode, encode

__all__ = ["DurableSite", "HubAgent", "NodeAgent", "SiteAgent"]


@final
class DurableSite(Asked):
    """The messages between a site and the hub or node `above` it. Changes in place.

    `limits` are for what comes, and `most` is the longest answer in bytes that is accepted above. `whole` is for studies in
    which the hub adds the noise. The site's first part is then charged with all that the study may cost. `stretch` multiplies
    each charge of the party, for people who have rows at other sites too.
    """

    def __init__(
        self,
        party: Member | MaskedMember,
        parties: Parties,
        ledger: DurableLedger,
        joined: StudyRecord,
        *,
        study: str,
        above: str,
        limits: MessageLimits,
        max_bytes: int,
        whole: Charge | None,
        stretch: float,
        on_event: OnEvent,
    ) -> None:
        masked = parties.masked
        questions = parties.most_questions if masked is None else masked.most_messages
        in_ledger = LedgerSteps(ledger, study, number=len(joined.steps), questions=questions, on_event=on_event)
        super().__init__(in_ledger, above=above, unwritten="an answer", limits=limits, on_event=on_event)
        self.party: Member | MaskedMember = party
        self._parties, self._most_said = parties, max_bytes
        self._ledger = parties.ledgers.get(party.name)
        self._whole, self._stretch = whole, stretch
        self._last_step = ""
        self._read_back(joined)

    def _read_back(self, joined: StudyRecord) -> None:
        """Bring the party to where the ledger ends, without computing or charging anything again."""
        for step in joined.steps:
            replies = [decode(raw) for raw in step.replies]
            outgoing = [(message.receiver, raw) for message, raw in zip(replies, step.replies, strict=True)]
            self._in_ledger.remember(step.incoming, replies, outgoing)
            self.party.recall(decode(step.incoming, limits=self._limits), replies)
            # The charge for the whole study is due once, whichever step it was in.
            if self._whole in step.charges:
                self._whole = None

    def _answer(self, cause: Cause, message: Message, step: Callable[[], list[Message]]) -> list[Outgoing]:
        # All checks come before the party moves: a refused message must leave no trace in it.
        self._require_answer(message)
        self._in_ledger.require_few(message)
        before = 0 if self._ledger is None else len(self._ledger.charges)
        answers = step()
        self._in_ledger.is_ahead = True
        outgoing = [(answer.receiver, encode(answer)) for answer in answers]
        replies = [raw for _, raw in outgoing]
        if any(len(raw) > self._most_said for raw in replies):
            raise ProtocolError(
                f"an answer of this site has {max(map(len, replies))} bytes, and {self._most_said} are the most that this study "
                "needs. Nothing was charged and nothing was sent"
            )
        charges = self._charges(before, answers)
        self._in_ledger.commit(cause.data, replies, charges)
        self._in_ledger.remember(cause.data, answers, outgoing)
        self._report(message, charges, sum(map(len, replies)))
        return outgoing

    def _require_answer(self, message: Message) -> None:
        """Refuse a final result that cannot be one, before it ends the study."""
        if isinstance(message.body, Done):
            try:
                require_plain(message.body.arrays)
                found_in(self._parties, message.body.arrays)
            except ValueError as error:
                raise PeerError(message.sender, f"sent an invalid result: {error}") from error

    def _charges(self, before: int, answers: list[Message]) -> tuple[Charge, ...]:
        """What these answers cost: new charges of the party, or all of the study where the hub adds the noise."""
        charged = () if self._ledger is None else self._ledger.charges[before:]
        new = tuple(Charge(charge.label, charge.mu * self._stretch) for charge in charged)
        # Only a `Contribution` carries sums. Keys and refusals are not charged.
        if self._whole is not None and any(isinstance(answer.body, Contribution) for answer in answers):
            new, self._whole = (*new, self._whole), None
        return new

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
            study.topology != "gossip", f"{study.name!r} is a study between peers and has no hub: run `eigenveil peer`"
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
        """Whoever has the result says thanks, and a node says that all below it are connected."""
        if note == THANKS:
            self._thanks.add(sender)
        elif note == READY:
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

    async def on_note(self, runner: Runner, sender: str, note: bytes) -> None:
        """Thanks, that all below another node are connected, or how far a stream is."""
        progress = progress_in(note)
        if progress is not None and sender in self.hears:
            closed, ended = progress
            if ended:
                self._ended[sender] = closed
            else:
                # It goes on after all: whoever started it again has given it another source.
                self._ended.pop(sender, None)
            await self._say_ended(runner)
        elif note == THANKS:
            self._thanks.add(sender)
        elif note == READY:
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


@final
class SiteAgent(Holder):
    """One site: its place in the `study`, its table, its ledger, and the name of its `dataset` there.

    Changes in place: it spends. Nothing is connected and nothing is spent before `run`. A study that needs more than `memory`
    bytes is refused.
    """

    def __init__(
        self,
        study: StudyFile,
        *,
        keys: Keys,
        holding: SiteData,
        ledger: DurableLedger,
        dataset: str,
        policy: Policy | None,
        withdrawn: Callable[[], Collection[str]] = tuple,
        memory: int = MEMORY,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        require(study.topology != "gossip", f"{study.name!r} is a study between peers: run `eigenveil peer`")
        super().__init__(
            study, keys=keys, role="site", ledger=ledger, policy=policy, withdrawn=withdrawn, on_event=on_event
        )
        self.parties, self._holding = parties_of(study, memory=memory), holding
        spec, self.calls = self.parties.request, (self.above,)
        self.limits = limits_of(study, spec, "site", self.parties.masked)
        # Before any connection and any charge: a study that is refused learns nothing.
        self.require_allowed(holding, method=spec.plan.method)
        self.account = self._account(dataset)

    @property
    def above(self) -> str:
        """The hub, or a node of the tree."""
        return self.parties.above[self.place.name]

    def _account(self, dataset: str) -> StudyBudget:
        spec, masked = self.parties.request, self.parties.masked
        # With trust "both" the site is charged for its own noise: that budget holds against the hub, which sees most.
        budget = spec.at_sites if spec.at_sites is not None else spec.at_hub
        gaussian = None if masked is None else masked.lattice.gaussian
        if budget is None or gaussian is None:
            mu, masked = 0.0 if budget is None else budget.mu, None
        else:
            # Masks may take a part of delta, and then the noise is for the rest: `gaussian` is that smaller budget.
            mu = gaussian.mu
        return account_of(self.study, dataset, party=self.place.name, budget=budget, mu=mu, masks=masked)

    @property
    def _whole(self) -> Charge | None:
        """The charge for a whole study, where the hub adds the noise.

        It is charged at once with the first part: the site has no say in what the hub does with that part.
        """
        spec = self.parties.request
        if spec.at_sites is not None or spec.at_hub is None or not self.account.private:
            return None
        return Charge("the whole study: the hub adds the noise", spec.at_hub.mu)

    async def run(
        self, deliver: Callable[[Model], None], *, address: str | None = None, note: str | None = None
    ) -> Model:
        """Take part until the result is here. `deliver` gets the model before the study is closed in the ledger.

        `address` is where to reach the hub or node above, if not where the study file says. `note` is for the ledger,
        such as who consented.
        """
        with self.entered(note) as entered:
            durable = self._durable(entered)
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
            self._durable_ledger.finish(self.study.digest)
            return model

    def _durable(self, entered: StudyRecord) -> DurableSite:
        whole, spec, study = self._whole, self.parties.request, self.study
        # A share under masks is charged for the whole sum, which counts a person's rows at all their sites. A part with the
        # site's own noise is charged for this site alone, so it is multiplied.
        stretch = 1.0 if self.parties.masked is not None else math.sqrt(spec.person_sites)
        # The ledger has charges per person, the party counts its own: undo the factor that `DurableSite` applied.
        charged = [charge for step in entered.steps for charge in step.charges if charge != whole]
        spent = tuple(Charge(charge.label, charge.mu / stretch) for charge in charged)
        party = self.parties.member(
            self.place.name, self._holding.rows, identity=self._keys.identity, secret=entered.secret, charges=spent
        )
        takes = limits_of(study, spec, "hub" if study.fanout is None else "node", self.parties.masked)
        return DurableSite(
            party,
            self.parties,
            self._durable_ledger,
            entered,
            study=study.digest,
            above=self.above,
            limits=self.limits,
            max_bytes=takes.largest,
            whole=whole,
            stretch=stretch,
            on_event=self.on_event,
        )
