"""`SlotSpec`: what streams at many sites were asked for, checked and public. `SlotParties` makes hub, nodes and sites from it.

In one process `SlotSimulation` makes all of them. Over a network each party makes itself from the same spec, so that they fit
together. With a seed, every slot of every party draws from a seed of its own: so a party that was restarted, or asked in
another order, draws the same noise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain, MissingPolicy
from eigenveil.core.ledger import Account, Ledger
from eigenveil.core.mechanism import Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.errors import require, require_param
from eigenveil.linalg import Array
from eigenveil.params.declarations.streaming import SlotStreamParams
from eigenveil.privacy.facts import NO_PRIVACY, Person
from eigenveil.privacy.lattice import Share
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.masked.hub import SecureAggregator
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.protocols.slot_hub import MaskedSlotMember, SlotHub, SlotMember, SlotRound
from eigenveil.protocols.star.hub import Node
from eigenveil.protocols.star.rounds import Terms, star, tree
from eigenveil.tasks.base import Question
from eigenveil.tasks.fit.gaps import Extent, gaps_of
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.slots import SlotSketches, SlotState
from eigenveil.trackers import EnergyBounds

__all__ = ["SlotParties", "SlotSpec", "slot_spec"]

# Spending stays this far below the budget, relatively. Otherwise rounding in the ledger could refuse the last release.
_MARGIN: Final = 1e-10
# A hub keeps at most so many slots apart, and so many numbers of them: they are in each of its snapshots.
_APART, _NUMBERS = 8, 1 << 25


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SlotSpec:
    """The terms of a study of streams over the sites `names`. See `SlotStreamParams` for what they mean.

    With `clock`, slots pass by the clock; without, they have `size` rows each, None if that is not fixed. `fanout` is None in a
    star, `budget` None without privacy.
    """

    names: tuple[str, ...]
    dim: int
    rank: int
    oversample: int
    budget: Budget | None
    trust: Literal["hub", "site", "masked"]
    neighbours: Neighbours
    row_bound: float
    origin: Array | None
    scale: Array | None
    center: bool
    slots: int
    max_lateness: int
    person_slots: int
    one_person_per_site: bool
    forget: float
    adapt: EnergyBounds | None
    fanout: int | None
    survivors: int
    colluders: int
    seed: int | None
    terms: Terms
    clock: bool
    size: int | None = None
    # Over a network: by the clock, so many seconds after the end of a slot sites answer for it.
    delay: float | None = None
    # Which entries may be missing, and what becomes of them.
    gaps: MissingPolicy | None = None

    @property
    def protects(self) -> Person:
        """Who is protected."""
        return Person(source="slots", grouped=self.one_person_per_site, max_parts=self.person_slots)

    @property
    def unit(self) -> PrivacyUnit:
        """What every charge protects."""
        return self.protects.protected(self.neighbours)

    @property
    def width(self) -> int:
        """How many directions a site sends, without noise."""
        return min(self.dim, self.rank + self.oversample)

    @property
    def apart(self) -> int:
        """How many slots, the newest in the window, a hub keeps apart, to scale them up while sites are late.

        Without forgetting every row counts the same whenever it comes, and under masks no part comes late: then none.
        """
        if self.forget == 1 or self.trust == "masked":
            return 0
        task = self.task()
        each = task.side**2 if isinstance(task, SlotSums) else self.dim * (2 * self.width + 1)
        return min(self.max_lateness, _APART, _NUMBERS // each)

    def task(self) -> SlotSums | SlotSketches:
        """What is computed: sums with noise, and sketches without."""
        if self.budget is None:
            return SlotSketches(
                dim=self.dim, width=self.width, slots=self.slots, forget=self.forget, center=self.center, gaps=self.gaps
            )
        return SlotSums(
            domain=Domain(dim=self.dim, radius=self.row_bound, center=self.origin, scale=self.scale, gaps=self.gaps),
            neighbours=self.neighbours,
            slots=self.slots,
            person_slots=self.person_slots,
            forget=self.forget,
            one_person_per_site=self.one_person_per_site,
            # Sites close their slots in order. A hub folds a late slot after a later one.
            window=self.max_lateness if self.trust == "hub" else 0,
            # Lying sites could raise a sum and lower it again, so that its rounding tells of one person (decision 8).
            grid=len(self.names) if self.trust == "hub" else 0,
        )


def slot_spec(
    params: SlotStreamParams,
    names: Sequence[str],
    *,
    dim: int,
    budget: Budget | None,
    seed: int | None,
    clock: bool = True,
    size: int | None = None,
    delay: float | None = None,
    columns: Sequence[str] | None = None,
) -> SlotSpec:
    """The spec of streams of `dim` columns at these sites, from checked parameters. A `ParameterError` if they contradict.

    Where the columns have names, `columns` are these: groups of columns that are missing together may be given by name.
    """
    rank, neighbours = params.n_components, Neighbours(params.neighbours)
    require_param(rank <= dim, f"{{n_components=}} must be at most the number of columns, {dim}", n_components=rank)
    _require_sense(params, private=budget is not None, clock=clock)
    survivors = len(names) if params.survivors is None else params.survivors
    if isinstance(survivors, float):
        survivors = math.ceil(survivors * len(names))
    if params.trust == "masked":
        _require_masks(survivors, params.colluders, len(names))
    return SlotSpec(
        names=tuple(names),
        dim=dim,
        rank=rank,
        # As in a stream at one place: ten more directions, or as many again.
        oversample=max(10, rank) if params.oversample is None else params.oversample,
        budget=budget,
        trust=params.trust,
        neighbours=neighbours,
        row_bound=math.inf if params.row_bound is None else params.row_bound,
        origin=_per_column("origin", params.origin, dim),
        scale=_per_column("scale", params.scale, dim),
        center=params.center is not None,
        slots=params.slots,
        max_lateness=params.max_lateness,
        # The person of a device is in every slot, so the budget must last for all of them.
        person_slots=params.slots if params.one_person_per_site else params.person_slots,
        one_person_per_site=params.one_person_per_site,
        forget=params.forget,
        adapt=None if params.adapt is None else EnergyBounds(*params.adapt),
        fanout=params.fanout if params.topology == "tree" else None,
        survivors=survivors,
        colluders=params.colluders,
        seed=seed,
        # A slot counts with whoever answers: the window says how long others may take, and not a quorum.
        terms=Terms(quorum=1, deadline=params.deadline, retries=params.retries),
        clock=clock,
        size=size,
        delay=delay,
        gaps=gaps_of(params, dim, names=columns, sparse=False),
    )


def _require_sense(params: SlotStreamParams, *, private: bool, clock: bool) -> None:
    tree = params.topology == "tree"
    require_param(
        not private or params.row_bound is not None,
        "{row_bound} is missing. Pass a number that you know without looking at the data: streams at many sites cannot search "
        "for one",
    )
    require_param(
        not isinstance(params.scale, str), "{scale} must be public numbers: streams at many sites cannot search for them"
    )
    require_param(
        not tree or (params.trust == "site" if private else params.trust != "masked"),
        "{topology=tree} needs {trust=site}, or no privacy and no masks: nodes would see raw sums, and masks are for a star",
    )
    require_param(
        private or params.trust != "masked",
        "{trust=masked} needs {epsilon}: without noise sites send sketches, which cannot be masked",
    )
    require_param(
        not private or clock or params.neighbours != "add-remove",
        "{neighbours} must be zero-out or replace-one where slots are counted out in rows: with a row missing, every later slot "
        "would begin elsewhere",
    )
    require_param(
        not params.one_person_per_site or params.neighbours != "add-remove",
        "{neighbours} must be zero-out or replace-one with {one_person_per_site}: that a device takes part is public",
    )
    require_param(
        not params.one_person_per_site or params.person_slots == 1,
        "{person_slots} has no effect with {one_person_per_site}, whose person is in every slot. Leave it out",
    )
    require_param(
        params.one_person_per_site or params.person_slots <= params.slots,
        "{person_slots} must be at most {slots}, got {@value}",
        value=params.person_slots,
    )
    require_param(private or not params.one_person_per_site, "{one_person_per_site} is for a private stream. Leave it out")
    require_param(
        private or params.missing not in ("counts", "groups"),
        "{missing=} needs {epsilon}: without noise sites send sketches, which cannot be divided by counts. Use {missing=drop} "
        "or {missing=fill}",
        missing=params.missing,
    )


def _require_masks(survivors: int, colluders: int, sites: int) -> None:
    # Two lists of survivors in one round would need two sets of signers, which then have an honest site in common.
    min_survivors = max(colluders + 2, (sites + colluders) // 2 + 1)
    require_param(min_survivors <= sites, f"masks need at least {colluders + 2} sites, got {sites}. Use {{trust=site}}")
    require_param(
        min_survivors <= survivors <= sites,
        f"{{survivors}} must lie between {min_survivors}, which is more than half of the sites and {{colluders}}, and {sites}, "
        "got {@value}",
        value=survivors,
    )


def _per_column(name: str, value: Any, dim: int) -> Array | None:
    """Public numbers, (d,), from one number or one for each column."""
    if value is None:
        return None
    numbers = np.asarray(value, dtype=np.float64)
    require_param(numbers.shape in ((), (dim,)), f"{{{name}}} must be one number, or one for each of {dim} columns")
    require_param(bool(np.isfinite(numbers).all()), f"{{{name}}} must be finite")
    # This is a copy, because a spec must not change when the caller's array does.
    return np.array(np.broadcast_to(numbers, (dim,)))


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
        self.layout = star(spec.names, hub=hub) if spec.fanout is None else tree(spec.names, fanout=spec.fanout, hub=hub)
        self.above = self.layout.above()
        self.ledgers: dict[str, Ledger] = {}
        self._places = {name: 1 + index for index, name in enumerate(spec.names)}
        self.masked: MaskedTerms | None = None
        if spec.trust == "masked":
            # Masks are planned far from a device, which would have to load the planner otherwise.
            from eigenveil.plan.masks import masked_terms

            assert isinstance(self.task, SlotSums)
            self.masked = masked_terms(
                Extent(rounds=spec.slots, entries=self.task.side**2, smallest=1.0 / spec.person_slots),
                roster,
                title=title,
                budget=spec.budget,
                survivors=spec.survivors,
                colluders=spec.colluders,
                several=1,
                people=None if spec.size is None else float(spec.size),
            )

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
            window=self.spec.max_lateness,
            **more,
        )

    def masked_member(
        self, name: str, *, identity: Identity, secret: bytes | None = None, ledger: Ledger | None = None, **more: Any
    ) -> MaskedSlotMember:
        """The site of this name under masks. After a restart, `ledger` is what it had spent before."""
        masked, task, hub = self.masked, self.task, self.above[name]
        require(masked is not None, "parts of this study are not masked")
        assert masked is not None and masked.lattice.gaussian is not None and isinstance(task, SlotSums)
        budget = masked.lattice.gaussian
        spends = self._new_ledger(budget) if ledger is None else ledger
        self.ledgers[name] = spends

        def share(slot: int) -> Share:
            return Share(lattice=masked.lattice, ledger=spends, noise=self._noise(name, slot), multiplier=masked.multiplier)

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
        return Node(name, above=self.above[name], below=self.layout.below[name], task=self.task, terms=self._patience(name))

    def masking(self, *, secret: bytes | None = None) -> SecureAggregator | None:
        """The hub's side of the masks, None without masks."""
        if self.masked is None:
            return None
        return SecureAggregator(self.masked, self.task, secret=secret, slots=self.task.slots)

    def hub(
        self,
        *,
        masking: SecureAggregator | None = None,
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
            window=self.spec.max_lateness,
            apart=self.spec.apart,
            clock=self.spec.clock,
            noise=self.noise,
            name=name,
            watch=watch,
            exchanges=masking,
            back=None if masking is None else masking.mark_reachable,
            survivors=self.spec.survivors if masking is not None else 1,
            answer=answer,
        )

    def _patience(self, name: str) -> Terms:
        """Twice the deadline at each level up: a node must give up on its sites before the level above gives up on it."""
        levels, terms = self.layout.levels, self.spec.terms
        return replace(terms, deadline=terms.deadline * 2 ** (max(levels.values()) - levels[name]))

    def _site_mechanism(self, name: str, slot: int) -> Mechanism:
        if self.spec.budget is None:
            return Exact(because=NO_PRIVACY["stream"])
        if self.spec.trust == "hub":
            return Exact(because="the hub, which is trusted, adds the noise")
        return self._gaussian(name, self.spec.budget, self._noise(name, slot))

    def _gaussian(self, name: str, budget: Budget, noise: Noise) -> Gaussian:
        """The mechanism of a party that adds noise. Its ledger is made at its first release."""
        if name not in self.ledgers:
            self.ledgers[name] = self._new_ledger(budget)
        return Gaussian(multiplier=self.multiplier, ledger=self.ledgers[name], noise=noise)

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
        return self._gaussian(name, budget, self._noise(name, slot, often))

    def _noise(self, name: str, slot: int, often: int = 0) -> Noise:
        seed = self.spec.seed
        if seed is None:
            return Noise.fresh()
        # 32 bits for the party and for the slot, and 16 for how often it was folded, so that no two draws meet.
        return Noise.seeded((seed << 80) + (self._places.get(name, 0) << 48) + (slot << 16) + often)
