"""`SlotParties` makes the hub, the nodes and the sites of streams, from their public spec alone.

In one process `SlotSimulation` makes all of them. Over a network each party makes itself from the same spec, so that they fit
together. With a seed, every slot of every party draws from a seed of its own: so a party that was restarted, or asked in
another order, draws the same noise.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.core.ledger import Account, Charge, Ledger
from eigenveil.core.mechanism import Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.errors import ProtocolError, at_place, require
from eigenveil.estimators.checks import WholeCharge
from eigenveil.estimators.slots.spec import SlotSpec
from eigenveil.estimators.streaming.spec import Answer
from eigenveil.estimators.terms import settings_of
from eigenveil.estimators.verdict import FitVerdict, unclear_columns, verdict_of
from eigenveil.linalg import Array, Sketch, Subspace
from eigenveil.model import Model
from eigenveil.privacy.facts import (
    COMPONENTS,
    FOUND_GAPS,
    NO_PRIVACY,
    GuaranteeFacts,
    HubAndSites,
    MaskedSites,
    SlotBySlot,
    SlottedRows,
)
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.privacy.lattice import Share
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.masked.hub import Masking
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.protocols.messages import Message
from eigenveil.protocols.party import Party
from eigenveil.protocols.slot_hub import MaskedSlotMember, SlotHub, SlotMember, SlotRound
from eigenveil.protocols.star.hub import Node
from eigenveil.protocols.star.rounds import Terms, star, tree
from eigenveil.protocols.wire import size
from eigenveil.runtimes.local import Faults, LocalNetwork, Refusal
from eigenveil.tasks.base import Question
from eigenveil.tasks.fit.gaps import Extent, Rates
from eigenveil.tasks.levels import Change
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.slots import ClosedSlot, SlotState
from eigenveil.trackers import Sums
from eigenveil.trackers.sums import floor_of, sketch_of

__all__ = [
    "SlotParties",
    "SlotSimulation",
    "answer_of",
    "slot_guarantee",
    "slot_model",
    "slot_settings",
    "slot_verdict",
]

# Spending stays this far below the budget, relatively. Otherwise rounding in the ledger could refuse the last release.
_MARGIN: Final = 1e-10


@final
class SlotParties:
    """The parties of a `spec`. Changes in place: it keeps the ledgers of what it has made.

    Under masks, `roster` has the public identities of all sites, and signatures are bound to `title`, None for a new one.
    """

    def __init__(
        self,
        spec: SlotSpec,
        *,
        roster: Mapping[str, bytes],
        title: str | None = None,
        hub: str = "hub",
        through: Account | None = None,
    ) -> None:
        self.spec, self.task = spec, spec.task()
        # Where every charge of a party is kept first, where all of them are in one process.
        self._through = through
        self.layout = (
            star(spec.names, hub=hub) if spec.fanout is None else tree(spec.names, fanout=spec.fanout, hub=hub)
        )
        self.above = self.layout.above()
        self.ledgers: dict[str, Ledger] = {}
        self._places = {name: 1 + place for place, name in enumerate(spec.names)}
        self.masked: MaskedTerms | None = None
        if spec.trust == "masked":
            self.masked = self._masked_terms(roster, title)

    @property
    def multiplier(self) -> float:
        """Noise over sensitivity of one release at a share of one; 0 without noise."""
        if self.spec.budget is None:
            return 0.0
        return self.masked.multiplier if self.masked is not None else (1 + _MARGIN) / self.spec.budget.mu

    @property
    def mu(self) -> float:
        """What all slots together cost a person; infinite without privacy."""
        budget = self.spec.budget
        if self.masked is not None:
            # Masks may take a part of delta, and then the noise is for the rest.
            budget = self.masked.lattice.gaussian
        return math.inf if budget is None else budget.mu

    def noise(self, sites: int) -> float:
        """How many releases' noise a sum over so many sites has."""
        if self.spec.budget is None:
            return 0.0
        if self.masked is not None:
            # Shares are calibrated for the fewest honest survivors. More survivors add more noise.
            return sites / self.masked.lattice.honest
        return float(sites) if self.spec.trust == "site" else 1.0

    def _new_ledger(self, budget: Budget) -> Ledger:
        return Ledger.continued(budget, (), {}, unit=self.spec.unit, through=self._through)

    def member(self, name: str, *, ledger: Ledger | None = None, **more: Any) -> SlotMember:
        """The site of this name. After a restart, `ledger` is what it had spent before."""
        if ledger is not None:
            self.ledgers[name] = ledger
        return SlotMember(
            name,
            hub=self.above[name],
            task=self.task,
            mechanism=lambda slot: self._site_mechanism(name, slot),
            window=self.spec.window,
            **more,
        )

    def masked_member(
        self,
        name: str,
        *,
        identity: Identity,
        secret: bytes | None = None,
        ledger: Ledger | None = None,
        **more: Any,
    ) -> MaskedSlotMember:
        """The site of this name under masks. After a restart, `ledger` is what it had spent before."""
        masked, task, hub = self.masked, self.task, self.above[name]
        require(masked is not None, "parts of this study are not masked")
        assert masked is not None and masked.lattice.gaussian is not None and isinstance(task, SlotSums)
        budget = masked.lattice.gaussian
        spends = self._new_ledger(budget) if ledger is None else ledger
        self.ledgers[name] = spends

        def share(slot: int) -> Share:
            return Share(
                lattice=masked.lattice, ledger=spends, noise=self._noise(name, slot), multiplier=masked.multiplier
            )

        return MaskedSlotMember(
            hub=hub,
            task=task,
            share=share,
            member=lambda made: MaskedMember(
                name, hub=hub, task=task, share=share(0), terms=masked, identity=identity, secret=secret, made=made
            ),
            **more,
        )

    def node(self, name: str) -> Node:
        """The inner node of this name."""
        return Node(
            name, above=self.above[name], below=self.layout.below[name], task=self.task, terms=self._patience(name)
        )

    def masking(self, *, secret: bytes | None = None) -> Masking | None:
        """The hub's side of the masks, None without masks."""
        return None if self.masked is None else Masking(self.masked, self.task, secret=secret, slots=self.task.slots)

    def hub(
        self,
        *,
        masking: Masking | None = None,
        watch: Callable[[SlotRound], None] | None = None,
        answer: Callable[[SlotState], tuple[Array, ...]] = lambda state: (),
        through: Callable[[Mechanism], Mechanism] = lambda mechanism: mechanism,
    ) -> SlotHub:
        """The hub. `through` may wrap its mechanisms, and `answer` is what sites are told at the end."""
        name = self.layout.hub
        return SlotHub(
            self.task,
            self.layout.below[name],
            lambda slot, often: through(self.hub_mechanism(slot, often)),
            terms=self._patience(name),
            window=self.spec.window,
            apart=self.spec.apart,
            clock=self.spec.clock,
            noise=self.noise,
            name=name,
            watch=watch,
            exchanges=masking,
            back=None if masking is None else masking.back,
            survivors=self.spec.survivors if masking is not None else 1,
            answer=answer,
        )

    def _patience(self, name: str) -> Terms:
        """Twice the deadline at each level up: a node must give up on its sites before the level above gives up on it."""
        levels, terms = self.layout.levels, self.spec.terms
        return replace(terms, deadline=terms.deadline * 2 ** (max(levels.values()) - levels[name]))

    def _masked_terms(self, roster: Mapping[str, bytes], title: str | None) -> MaskedTerms:
        # Masks are planned far from a device, which would have to load the planner otherwise.
        from eigenveil.plan.masks import masked_terms

        spec, task = self.spec, self.task
        assert isinstance(task, SlotSums)
        return masked_terms(
            Extent(rounds=spec.slots, entries=task.side**2, smallest=1.0 / spec.person_slots),
            roster,
            title=title,
            budget=spec.budget,
            survivors=spec.survivors,
            colluders=spec.colluders,
            several=1,
            people=None if spec.size is None else float(spec.size),
        )

    def _site_mechanism(self, name: str, slot: int) -> Mechanism:
        budget = self.spec.budget
        if budget is None:
            return Exact(because=NO_PRIVACY["stream"])
        if self.spec.trust == "hub":
            return Exact(because="the hub, which is trusted, adds the noise")
        # A ledger is made at the first release: where the hub adds the noise, a site has none.
        if name not in self.ledgers:
            self.ledgers[name] = self._new_ledger(budget)
        return Gaussian(multiplier=self.multiplier, ledger=self.ledgers[name], noise=self._noise(name, slot))

    def respend(self, folds: Mapping[int, int]) -> None:
        """Charge again what a hub released before it was stopped, so that its ledger says so. Nothing is released."""
        if not isinstance(self.task, SlotSums) or self.spec.trust != "hub" or self.spec.budget is None:
            return
        # The ledger refuses to go back, and the order in which slots were folded is not stored.
        for slot, often in sorted(folds.items()):
            for group in range(often):
                mechanism = self.hub_mechanism(slot, group)
                assert isinstance(mechanism, Gaussian)
                question = Question(slot)
                where = replace(self.task.slot(question), group=f"{group}")
                # This is the share and the noise of the release itself, so the ledger says what it said before.
                mu = math.sqrt(self.task.share(question)) / self.multiplier
                mechanism.ledger.spend(mu, label=self.task.label(question), slot=where)

    def hub_mechanism(self, slot: int, often: int) -> Mechanism:
        """The hub's mechanism for a slot that was folded `often` before."""
        budget, name = self.spec.budget, self.layout.hub
        if budget is None or self.spec.trust != "hub":
            return Exact(because=NO_PRIVACY["stream"] if budget is None else "the sites have added noise")
        if name not in self.ledgers:
            self.ledgers[name] = self._new_ledger(budget)
        return Gaussian(multiplier=self.multiplier, ledger=self.ledgers[name], noise=self._noise(name, slot, often))

    def _noise(self, name: str, slot: int, often: int = 0) -> Noise:
        seed = self.spec.seed
        if seed is None:
            return Noise.fresh()
        # 32 bits for the party and for the slot, and 16 for how often it was folded, so that no two draws meet.
        return Noise.seeded((seed << 80) + (self._places.get(name, 0) << 48) + (slot << 16) + often)


_METHODS: Final = {"sums": "sums of slots, with noise", "sketches": "sketches of slots"}


def answer_of(parties: SlotParties, state: SlotState, *, rank: int | None = None) -> Answer:
    """The answer in a state. `rank` is the number of directions before it, which adapts by one if the spec says so."""
    spec, task = parties.spec, parties.task
    rank = spec.rank if rank is None else rank
    # One more than can be shown, so that an adapting rank can see whether to grow.
    kept = min(spec.dim, max(rank + 1, spec.width))
    if state.value is None:
        return Answer(sketch=Sketch.empty(spec.dim), rank=rank)
    rates: Array | None = None
    energy, change, unclear = 0.0, None, tuple[int, ...]()
    if isinstance(task, SlotSums):
        sums = _sums(parties, task, state)
        # Before sums are divided by rates: the trace afterwards may be anything, also zero.
        energy, known = float(np.trace(sums.gram)), _rates(task, sums, state)
        if known is not None:
            noise = math.sqrt(sums.gram_noise) / task.seen
            unclear = unclear_columns(task.gaps, known.columns, noise=noise, people=sums.weight)
            sums, rates = sums.divided(known), known.columns
        center = (
            np.zeros(spec.dim) if spec.origin is None else spec.origin / (1.0 if spec.scale is None else spec.scale)
        )
        sketch, floor = sketch_of(sums, center, rank=kept), floor_of(sums)
        change = _change(parties, task, state, sketch.subspace, rank=rank)
    else:
        sketch, floor = state.value, 0.0
    if spec.adapt is not None:
        rank = spec.adapt.adjusted(rank, sketch.subspace.values)
    return Answer(sketch=sketch, rank=rank, floor=floor, rates=rates, energy=energy, change=change, unclear=unclear)


def _sums(parties: SlotParties, task: SlotSums, state: SlotState) -> Sums:
    """The released sums around the origin, with the variances of their noise."""
    matrix: Array = state.value
    spec, dim = parties.spec, parties.spec.dim
    entry = state.noise * _noise_of_one(parties, task)
    return Sums(
        gram=task.gram_of(matrix),
        total=task.total_of(matrix) if spec.center else np.zeros(dim),
        # Noise can leave less than one row, and means are divided by this.
        weight=max(task.count_of(matrix), 1.0),
        gram_noise=entry,
        # The sum of rows was released times the constant, so its variance is divided by the square.
        total_noise=entry / task.constant**2 if spec.center else 0.0,
    )


def _change(parties: SlotParties, task: SlotSums, state: SlotState, shown: Subspace, *, rank: int) -> Change | None:
    """Whether later slots are clearly unlike earlier ones, from released sums before any division."""
    if state.levels is None:
        return None
    entry, levels = _noise_of_one(parties, task), state.levels
    return replace(
        levels,
        total_noise=levels.total_noise * entry / task.constant**2,
        # Diagonal entries have twice the variance of the others.
        energy_noise=levels.energy_noise * 2 * parties.spec.dim * entry,
        weight_noise=levels.weight_noise * (0.0 if task.counts else 2 * entry / task.constant**4),
        # The origin is public and was not found in the first rows.
    ).change(shown, rank=rank, radius=parties.spec.row_bound, looks=state.reference + 1, centered=False)


def _noise_of_one(parties: SlotParties, task: SlotSums) -> float:
    """The variance of the noise of one release, off the diagonal: symmetric noise has half the variance there."""
    # A slot has an equal part of mu^2 for each slot of a person, and noise grows with the root of their number.
    scale = task.sensitivity(task.ask(task.start())) * parties.multiplier * math.sqrt(task.person_slots)
    return scale**2 / 2


def _rates(task: SlotSums, sums: Sums, state: SlotState) -> Rates | None:
    """The rates of entries in all slots so far, None where nothing is divided."""
    if task.gaps is None or task.entries == 0:
        return None
    # Counts have faded as the sums have, so that rates follow a stream that changes.
    noise = math.sqrt(sums.gram_noise) / task.seen
    return Rates.of(task.gaps, task.observed_of(state.value), people=sums.weight, noise=noise)


def slot_verdict(
    parties: SlotParties, answer: Answer, settings: dict[str, Any], names: tuple[str, ...] | None
) -> FitVerdict:
    """What can be said of the answer, from released numbers alone. The columns may have `names`."""
    spec = parties.spec
    seen = None
    if answer.floor > 0:
        seen = answer.released(radius=spec.row_bound, scaled=None if spec.scale is None else "given")
    # No budget: a plan knows of tables, and not of slots that come one after the other.
    return verdict_of(
        seen,
        asked=settings,
        budget=None,
        method="stream/block",
        neighbours=spec.neighbours,
        names=names,
        # Streams at many sites take public bounds and units only.
        finds=False,
    )


def slot_guarantee(parties: SlotParties, charges: tuple[Charge, ...], *, apart: bool) -> Guarantee:
    """The guarantee of everything that was and will be released, slot by slot."""
    spec = parties.spec
    if spec.budget is None:
        return Guarantee.none(NO_PRIVACY["stream"])
    inner: HubAndSites | MaskedSites
    if parties.masked is not None:
        lattice = parties.masked.lattice
        assert lattice.gaussian is not None
        inner = MaskedSites(
            survivors=spec.survivors,
            colluders=spec.colluders,
            honest=lattice.honest,
            noise_delta=lattice.gaussian.delta,
            failure=lattice.failure,
            apart=apart,
        )
    else:
        at_site = spec.trust == "site"
        inner = HubAndSites(
            at_sites=spec.budget if at_site else None,
            at_hub=None if at_site else spec.budget,
            tree=spec.fanout is not None,
        )
    # Releases about one person add up in mu^2, so each slot has the root of an equal part.
    each = spec.budget.mu / math.sqrt(spec.person_slots)
    given = tuple(name for name in ("origin", "scale") if getattr(spec, name) is not None)
    return GuaranteeFacts(
        budget=spec.budget,
        protects=spec.protects,
        neighbours=spec.neighbours,
        rows=SlottedRows(
            norm=spec.row_bound,
            around="zero" if spec.origin is None else "the given origin",
            slots=spec.slots,
            clock=spec.clock,
            size=spec.size,
            # How many rows a device has in a slot is its own affair: their mean counts.
            # Of rows with gaps only those that came are counted, however many are complete.
            counted=spec.neighbours.count_is_public and not spec.device,
            given=given,
            gaps=None if spec.gaps is None else spec.gaps.rule,
            delay=spec.delay,
        ),
        seen_by=SlotBySlot(
            inner=inner,
            most=spec.person_slots,
            each=each,
            epsilon=epsilon_of(each, spec.budget.delta),
            delta=spec.budget.delta,
        ),
        released=COMPONENTS if spec.gaps is None else COMPONENTS + FOUND_GAPS.get(spec.gaps.rule, ()),
        charges=charges,
        reproducible=spec.seed is not None,
    ).guarantee()


def slot_settings(parties: SlotParties, hub: SlotHub, asked: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model of the answer so far. `asked` are those that were asked for."""
    spec = parties.spec
    kind = "sums" if isinstance(parties.task, SlotSums) else "sketches"
    # The hub ticks on through the window of the last slot, which stays the newest one there is.
    newest = hub.last
    return settings_of(
        asked,
        method=_METHODS[kind],
        why="with noise, sums; without, sketches",
        neighbours=None if spec.budget is None else spec.neighbours,
        trust="none" if spec.budget is None else spec.trust,
        topology="star" if spec.fanout is None else f"tree of fan-out {spec.fanout}",
        sites=len(spec.names),
        slots=spec.slots,
        slot=newest + 1,
        heard=len(hub.counted(newest)),
        person_slots=spec.person_slots if spec.budget is not None else None,
        width=spec.width if kind == "sketches" else None,
    )


def slot_model(
    parties: SlotParties,
    answer: Answer,
    hub: SlotHub,
    *,
    asked: dict[str, Any],
    charges: tuple[Charge, ...],
    columns: tuple[str, ...] | None,
) -> Model:
    """The model of the answer so far, over a network. `asked` are the settings that were asked for."""
    spec = parties.spec
    return answer.model(
        slot_verdict(parties, answer, asked, columns),
        slot_guarantee(parties, charges, apart=True),
        scale=spec.scale,
        columns=columns,
        settings=slot_settings(parties, hub, asked),
    )


@final
class SlotSimulation:
    """The parties of `spec`, and what they have done. Changes in place: it spends."""

    def __init__(self, spec: SlotSpec, *, faults: Faults | None, ledger: Ledger | None = None) -> None:
        self.spec = spec
        # Charged once for all slots that a person is in.
        self._whole = WholeCharge(ledger, spec.budget, unit=spec.unit, label="this stream at sites")
        # Real keys even here, so that a simulation runs the same protocol as a network.
        identities = {name: Identity.fresh() for name in spec.names} if spec.trust == "masked" else {}
        roster = {name: one.public for name, one in identities.items()}
        self.parties = SlotParties(spec, roster=roster, through=self._whole)
        self.members: dict[str, SlotMember | MaskedSlotMember] = {}
        for name in spec.names:
            if identities:
                self.members[name] = self.parties.masked_member(name, identity=identities[name])
            else:
                self.members[name] = self.parties.member(name)
        self.rounds: list[SlotRound] = []
        self.masking = self.parties.masking()
        self.hub = self.parties.hub(
            masking=self.masking, watch=self.rounds.append, answer=lambda state: self.answer.arrays()
        )
        self.following = 0
        self.answer: Answer = answer_of(self.parties, self.hub.state)
        # Bytes that each party has sent.
        self.sent: Counter[str] = Counter()
        nodes = [self.parties.node(name) for name in self.parties.layout.nodes]
        self._everyone: dict[str, Party] = {party.name: party for party in (self.hub, *nodes, *self.members.values())}
        # Those who can be reached now: a message to anybody else is lost.
        self._there = dict(self._everyone)
        self._network = LocalNetwork(self._there, faults=faults, seed=spec.seed, latest_first=True, counted=self._count)

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """Messages refused so far. Masks name liars when a sum is opened, which refuses no message."""
        liars = {} if self.masking is None else self.masking.liars
        return (*self._network.refused, *(Refusal("hub", name, why) for name, why in liars.items()))

    def slot(self, rows: Mapping[str, Iterable[Array]], *, away: Collection[str] = ()) -> None:
        """Close the next slot at the sites named in `rows`, and let the hub ask for it. Those `away` cannot be reached."""
        slot = self.following
        require(slot < self.spec.slots, f"all {self.spec.slots} slots are over")
        # All of a slot is taken in before any of it is released: bad rows at one site leave no trace.
        filled = {name: self._filled(name, blocks) for name, blocks in rows.items()}
        with self._whole.reserved(self.parties.masked):
            self.following += 1
            for name, closed in filled.items():
                self.members[name].close(slot, closed)
            self._tick(away)

    def finish(self, *, away: Collection[str] = ()) -> None:
        """Ask once more for what is missing, until the window of the last slot has passed."""
        with self._whole.reserved(self.parties.masked):
            while self.hub.result is None:
                self._tick(away)

    def charges(self) -> tuple[Charge, ...]:
        """The hub's charges if it adds noise, otherwise those of the site that spent most."""
        ledgers = self.parties.ledgers
        if not ledgers:
            return ()
        return max(ledgers.values(), key=lambda ledger: ledger.spent_mu).charges

    def _filled(self, name: str, blocks: Iterable[Array]) -> ClosedSlot:
        filled = self.parties.task.open()
        try:
            for block in blocks:
                filled.add(block)
        except ValueError as error:
            raise at_place(name, error) from None
        return filled.close()

    def _tick(self, away: Collection[str]) -> None:
        # The dict is changed in place, because the network holds the same one.
        before = set(self._there)
        self._there.clear()
        self._there.update({name: party for name, party in self._everyone.items() if name not in away})
        # The hub of a network notices who connects again.
        for name in self._there.keys() - before:
            self.hub.rejoined(name)
        self._network.send(self.hub.name, self.hub.tick())
        self._network.watch(self.hub)
        while not self.hub.idle:
            if not self._network.step():
                raise ProtocolError("no message is left to deliver, and the hub still waits")
        # The hub has ended, but its result is still on the way to the sites.
        if self.hub.result is not None:
            while self._network.busy:
                self._network.step()
        # The last rank is passed on: one that adapts moves by one from there.
        self.answer = answer_of(self.parties, self.hub.state, rank=self.answer.rank)

    def _count(self, message: Message) -> None:
        self.sent[message.sender] += size(message)
