"""`SlotSpec`: what streams at many sites were asked for, checked and public. Every party knows all of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain, MissingPolicy
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.errors import require_param
from eigenveil.linalg import Array
from eigenveil.params.declarations.streaming import SlotStreamParams
from eigenveil.privacy.facts import Person
from eigenveil.protocols.star.rounds import Terms
from eigenveil.tasks.fit.gaps import gaps_of
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.slots import SlotSketches
from eigenveil.trackers import EnergyBounds

__all__ = ["SlotSpec", "slot_spec"]

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
        not isinstance(params.scale, str),
        "{scale} must be public numbers: streams at many sites cannot search for them",
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
    require_param(
        private or not params.one_person_per_site, "{one_person_per_site} is for a private stream. Leave it out"
    )
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
