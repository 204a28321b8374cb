"""What a stream over sites shows slot by slot, from released numbers: answers, the noise in them, and the guarantee."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np

from eigenveil.core.accounting import epsilon_of
from eigenveil.core.ledger import Charge, Ledger
from eigenveil.errors import ProtocolError, at_place, require
from eigenveil.estimators.checks import WholeCharge
from eigenveil.estimators.slots.parties import SlotParties, SlotSpec
from eigenveil.estimators.streaming.spec import Answer
from eigenveil.estimators.terms import masked_sites, settings_of
from eigenveil.estimators.verdict import FitVerdict, assess_fit, unclear_columns
from eigenveil.linalg import Array, Sketch, Subspace
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
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.messages import Message
from eigenveil.protocols.party import Party
from eigenveil.protocols.slot_hub import MaskedSlotMember, SlotHub, SlotMember, SlotRound
from eigenveil.protocols.wire import size
from eigenveil.runtimes.local import Faults, LocalNetwork, Refusal
from eigenveil.tasks.fit.gaps import Rates
from eigenveil.tasks.levels import Change
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.slots import ClosedSlot, SlotState
from eigenveil.trackers import Sums
from eigenveil.trackers.sums import floor_of, sketch_of

__all__ = ["SlotSimulation", "answer_of", "slot_guarantee", "slot_settings", "slot_verdict"]


def answer_of(parties: SlotParties, state: SlotState, *, rank: int | None = None) -> Answer:
    """The answer in a state. `rank` is the number of directions before it, which adapts by one if the spec says so."""
    spec, task = parties.spec, parties.task
    rank = spec.rank if rank is None else rank
    # One more than can be shown, so that an adapting rank can see whether to grow.
    n_kept = min(spec.dim, max(rank + 1, spec.width))
    if state.value is None:
        return Answer(sketch=Sketch.empty(spec.dim), rank=rank, units=spec.scale)
    rates: Array | None = None
    energy, change, unclear = 0.0, None, tuple[int, ...]()
    if isinstance(task, SlotSums):
        sums = _sums(parties, task, state)
        # Before sums are divided by rates: the trace afterwards may be anything, also zero.
        energy = float(np.trace(sums.gram))
        if task.gaps is not None and task.entries > 0:
            # Counts have faded as the sums have, so that rates follow a stream that changes.
            noise = math.sqrt(sums.gram_noise) / task.seen
            entry_rates = Rates.of(task.gaps, task.observed_of(state.value), people=sums.weight, noise=noise)
            unclear = unclear_columns(task.gaps, entry_rates.columns, noise=noise, people=sums.weight)
            sums, rates = sums.divided(entry_rates), entry_rates.columns
        center = np.zeros(spec.dim) if spec.origin is None else spec.origin / (1.0 if spec.scale is None else spec.scale)
        sketch, floor = sketch_of(sums, center, rank=n_kept), floor_of(sums)
        change = _change(parties, task, state, sketch.subspace, rank=rank)
    else:
        sketch, floor = state.value, 0.0
    if spec.adapt is not None:
        rank = spec.adapt.adjusted(rank, sketch.subspace.values)
    return Answer(
        sketch=sketch, rank=rank, floor=floor, rates=rates, energy=energy, change=change, unclear=unclear, units=spec.scale
    )


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


def slot_verdict(parties: SlotParties, answer: Answer, settings: dict[str, Any], names: tuple[str, ...] | None) -> FitVerdict:
    """What can be said of the answer, from released numbers alone. The columns may have `names`."""
    spec = parties.spec
    released = None
    if answer.floor > 0:
        released = answer.released(radius=spec.row_bound, scaled=None if spec.scale is None else "given")
    # No budget: a plan knows of tables, and not of slots that come one after the other.
    return assess_fit(
        released,
        settings=settings,
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
        inner = masked_sites(parties.masked, apart=apart)
    else:
        at_site = spec.trust == "site"
        inner = HubAndSites(
            at_sites=spec.budget if at_site else None, at_hub=None if at_site else spec.budget, tree=spec.fanout is not None
        )
    # Releases about one person add up in mu^2, so each slot has the root of an equal part.
    each = spec.budget.mu / math.sqrt(spec.person_slots)
    explicit = tuple(name for name in ("origin", "scale") if getattr(spec, name) is not None)
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
            counted=spec.neighbours.count_is_public and not spec.one_person_per_site,
            explicit=explicit,
            gaps=None if spec.gaps is None else spec.gaps.rule,
            delay=spec.delay,
        ),
        seen_by=SlotBySlot(
            inner=inner,
            max_slots=spec.person_slots,
            each=each,
            epsilon=epsilon_of(each, spec.budget.delta),
            delta=spec.budget.delta,
        ),
        released=COMPONENTS if spec.gaps is None else COMPONENTS + FOUND_GAPS.get(spec.gaps.rule, ()),
        charges=charges,
        reproducible=spec.seed is not None,
    ).guarantee()


def slot_settings(parties: SlotParties, hub: SlotHub, requested: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model of the answer so far. `requested` are those that were asked for."""
    spec, adds_sums = parties.spec, isinstance(parties.task, SlotSums)
    # The hub ticks on through the window of the last slot, which stays the newest one there is.
    newest = hub.last
    return settings_of(
        requested,
        method="sums of slots, with noise" if adds_sums else "sketches of slots",
        why="with noise, sums; without, sketches",
        neighbours=None if spec.budget is None else spec.neighbours,
        trust="none" if spec.budget is None else spec.trust,
        topology="star" if spec.fanout is None else f"tree of fan-out {spec.fanout}",
        sites=len(spec.names),
        slots=spec.slots,
        slot=newest + 1,
        heard=len(hub.counted(newest)),
        person_slots=spec.person_slots if spec.budget is not None else None,
        width=None if adds_sums else spec.width,
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
        roster = {name: identity.public for name, identity in identities.items()}
        self.parties = SlotParties(spec, roster=roster, through=self._whole)
        self.members: dict[str, SlotMember | MaskedSlotMember] = {
            name: self.parties.masked_member(name, identity=identities[name]) if identities else self.parties.member(name)
            for name in spec.names
        }
        self.rounds: list[SlotRound] = []
        self.masking = self.parties.masking()
        self.hub = self.parties.hub(masking=self.masking, watch=self.rounds.append, answer=lambda state: self.answer.arrays())
        self.following = 0
        self.answer: Answer = answer_of(self.parties, self.hub.state)
        # Bytes that each party has sent.
        self.sent: Counter[str] = Counter()
        nodes = map(self.parties.node, self.parties.layout.nodes)
        self._everyone: dict[str, Party] = {party.name: party for party in (self.hub, *nodes, *self.members.values())}
        # Those who can be reached now: a message to any other party is lost.
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
        dearest = max(self.parties.ledgers.values(), key=lambda ledger: ledger.spent_mu, default=None)
        return () if dearest is None else dearest.charges

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
            self.hub.on_reconnect(name)
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
