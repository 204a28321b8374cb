"""`StreamSpec`: the checked parameters of a stream, and the guarantee under them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import scipy.sparse as sp

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import LARGEST, SMALLEST, Domain, MissingPolicy
from eigenveil.core.ledger import Charge
from eigenveil.core.mechanism import Mechanism
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.errors import require, require_param
from eigenveil.estimators.checks import budget_of, seed_of
from eigenveil.estimators.terms import asked_settings
from eigenveil.estimators.verdict import Released
from eigenveil.linalg import Array, Sketch, Subspace, symmetric_edge
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.plan.streams import StreamPlan, plan_stream, stream_split
from eigenveil.privacy.facts import COMPONENTS, NO_PRIVACY, GuaranteeFacts, OneDevice, Person, StreamRows
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.fit.bounds import Outliers, RowBounds
from eigenveil.tasks.fit.gaps import PartialBudget, Rates, Split
from eigenveil.tasks.fit.search import BoundSearch, Center, CenterSearch, Search
from eigenveil.tasks.fit.units import ScaleSearch, deviations
from eigenveil.tasks.levels import Change
from eigenveil.tasks.totals import Totals
from eigenveil.trackers import EnergyBounds, merge_sketches, published_as, publishing
from eigenveil.trackers.sums import as_block_rows

__all__ = ["Answer", "Merged", "Placement", "StreamSpec", "require_sense", "search", "stream_guarantee", "terms_of", "units_in"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The components at some time, in the units of the columns over their scale."""

    sketch: Sketch
    rank: int  # Directions to show.
    floor: float = 0.0  # Eigenvalues of the scatter below this cannot be told from noise.
    rows: int = 0  # Rows that it covers, where they are counted.
    energy: float = 0.0  # Sum of squares of the rows as they were clipped, without what is missing.
    rates: Array | None = None  # Of entries, (d,), if sums were divided by them.
    change: Change | None = None  # Whether the last rows are clearly unlike the rest.
    unclear: tuple[int, ...] = ()  # Columns whose counts of entries noise hides.
    units: Array | None = None  # What columns were divided by, (d,).

    @property
    def subspace(self) -> Subspace:
        """The directions to show, none before the first release."""
        space = self.sketch.subspace
        return space if space.rank <= self.rank else space.truncate(self.rank)

    @property
    def center(self) -> Array:
        """The mean, (d,), in the units of the columns."""
        return self.sketch.mean if self.units is None else self.sketch.mean * self.units

    @property
    def trace(self) -> float:
        """The sum of squares, made whole where entries are missing."""
        return self.sketch.energy

    @property
    def people(self) -> float:
        """The weight of the rows: their number, less what was forgotten."""
        return self.sketch.weight

    def arrays(self) -> tuple[Array, ...]:
        """What sites are told: directions, values, the mean, and weight, energy and floor."""
        numbers = np.array([self.sketch.weight, self.sketch.energy, self.floor])
        return self.subspace.basis, self.subspace.values, self.sketch.mean, numbers

    def released(self, *, radius: float, at_edge: bool = False, **search: Any) -> Released:
        """What a verdict needs of it. Rows were clipped to the norm `radius`, and `search` is what else a search has found."""
        dim = self.sketch.dim
        return Released(
            space=self.subspace,
            trace=self.trace,
            people=self.people,
            radius=radius,
            # A diagonal entry has no more noise than this, and a trace is the sum of d of them.
            trace_noise=self.floor / symmetric_edge(dim) * math.sqrt(dim),
            # The number of rows is public, or so many that its noise hardly matters.
            people_noise=0.0,
            noise_floor=self.floor,
            at_edge=at_edge,
            energy=self.energy,
            change=self.change,
            unclear=self.unclear,
            **search,
        )


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Merged:
    """The `sketch` of other streams, as it was when the last was added, with the noise floor of its scatter.

    It covers `rows` rows. `fade` is the weight left after forgetting, and `shown` that weight at the last release. `streams`
    names all streams in it. The largest `epsilon` and `delta` among them go into the guarantee, and so does `seeded`.
    """

    sketch: Sketch
    streams: tuple[str, ...]
    floor: float = 0.0
    fade: float = 1.0
    shown: float = 1.0
    epsilon: float = 0.0
    delta: float = 0.0
    seeded: bool = False
    rows: int = 0

    def __post_init__(self) -> None:
        require(0 < self.fade <= self.shown <= 1, "the weights of what was merged are not possible")
        require(len(set(self.streams)) == len(self.streams) > 0, "a stream was merged twice")

    @classmethod
    def none(cls, dim: int) -> "Merged":
        """Nothing yet, to add the first stream to."""
        # A stream must have a name. The empty one stands for none, and `and_stream` drops it.
        return cls(sketch=Sketch.empty(dim), streams=("",))

    def and_stream(self, answer: Answer, guarantee: Guarantee, *, streams: tuple[str, ...], rank: int, center: bool) -> "Merged":
        """With the answer of one more stream, and all that it had taken over, truncated to `rank` directions.

        The weight lost so far is in the merged sketch then, and a new one starts at one.
        """
        return Merged(
            sketch=merge_sketches(self.seen(self.fade), answer.sketch, rank=rank, center=center),
            streams=(*(name for name in self.streams if name), *streams),
            # Independent noises: their floors add up in squares.
            floor=math.hypot(self.fade * self.floor, answer.floor),
            # The maximum and not the sum, because no person is in two of the streams.
            epsilon=max(self.epsilon, guarantee.epsilon or 0.0),
            delta=max(self.delta, guarantee.delta or 0.0),
            seeded=self.seeded or (guarantee.epsilon is not None and not guarantee.private),
            rows=self.rows + answer.rows,
        )

    def seen(self, fade: float) -> Sketch:
        """The sketch with this weight."""
        # Values are in data scale, and a weight belongs to their squares.
        space = Subspace(self.sketch.subspace.basis, self.sketch.subspace.values * math.sqrt(fade))
        return replace(self.sketch, subspace=space, weight=self.sketch.weight * fade, energy=self.sketch.energy * fade)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamSpec:
    """What a stream was asked for, checked and public. A model records `settings`."""

    rank: int
    oversample: int
    budget: Budget | None
    bounds: RowBounds
    neighbours: Neighbours
    person_blocks: int
    person: str | None
    center: bool
    forget: float
    adapt: EnergyBounds | None
    plan: StreamPlan
    horizon: int | None
    seed: int | None
    settings: dict[str, Any]

    @property
    def protects(self) -> Person:
        """Who is protected."""
        return Person(source="stream", grouped=self.person is not None, max_parts=self.person_blocks, column=self.person)

    @property
    def unit(self) -> PrivacyUnit:
        """What every charge of the stream protects."""
        return self.protects.protected(self.neighbours)

    @property
    def split(self) -> Split:
        """How the search in the first block divides its part of the budget."""
        gaps = self.bounds.gaps
        return stream_split(
            center=self.center,
            bound=self.bounds.finds_bound,
            units=self.bounds.finds_scale,
            observed=gaps is not None and gaps.divides,
            count=gaps is not None and gaps.drops,
        )


def require_sense(params: StreamingParams) -> None:
    """Refuse parameters that contradict each other, whatever the rows."""
    budget = budget_of(params.epsilon, params.delta)
    needs_horizon = published_as(params.publish).needs_horizon
    require_param(
        needs_horizon or params.horizon is None,
        f"{{horizon}} is for {publishing(lambda kind: kind.needs_horizon)}, got {{@given}}",
        given=params.horizon,
    )
    require_param(
        # The budget is divided in advance over as many releases as the horizon needs.
        not needs_horizon or budget is None or params.horizon is not None,
        f"{{horizon}} is required for {{publish={params.publish}}}. Give a public upper limit on the number of rows",
    )
    require_param(
        params.missing == "refuse" or budget is not None,
        "{missing} is for a private stream. Without privacy gaps are filled from the directions found so far: leave it out",
    )
    for name in ("horizon", "noise_target", "person"):
        is_set = getattr(params, name) is not None
        require_param(not is_set or budget is not None, f"{{{name}}} is for a private stream. Leave it out")


def terms_of(
    params: StreamingParams, dim: int, *, sparse: bool, plan: StreamPlan | None = None, names: tuple[str, ...] | None = None
) -> StreamSpec:
    """The spec of a stream of `dim` columns, from checked parameters. A resumed stream keeps its `plan`.

    The columns may have `names`.
    """
    require_sense(params)
    rank, neighbours = params.n_components, Neighbours(params.neighbours)
    budget = budget_of(params.epsilon, params.delta)
    # Only now, because the first rows say how many columns there are.
    require_param(rank <= dim, f"{{n_components=}} must be at most the number of columns, {dim}", n_components=rank)
    # Ten more directions gave a sine of 0.002 at d = 1000, k = 10 and a spectrum of 1/i (decision 6). A wider sketch
    # does more for less than a second power step.
    oversample = max(10, rank) if params.oversample is None else params.oversample
    bounds = RowBounds.of(params, dim, private=budget is not None, sparse=sparse, names=names)
    if plan is None:
        plan = plan_stream(
            dim=dim,
            rank=rank,
            oversample=oversample,
            budget=budget,
            neighbours=neighbours,
            publish=params.publish,
            center=params.center is not None,
            adapt=params.adapt is not None,
            forget=params.forget < 1,
            block=params.block_size,
            horizon=params.horizon,
            person_blocks=params.person_blocks,
            noise_target=params.noise_target,
            memory_limit=params.memory_limit,
            sparse=sparse,
            bound=bounds.finds_bound,
            units=bounds.finds_scale,
        )
    return StreamSpec(
        rank=rank,
        oversample=oversample,
        budget=budget,
        bounds=bounds,
        neighbours=neighbours,
        person_blocks=params.person_blocks,
        person=params.person,
        center=params.center is not None,
        forget=params.forget,
        adapt=None if params.adapt is None else EnergyBounds(*params.adapt),
        plan=plan,
        horizon=params.horizon,
        seed=seed_of(params.random_state),
        settings=asked_settings(params),
    )


def stream_guarantee(
    terms: StreamSpec, charges: tuple[Charge, ...], merged: Merged | None, *, rows: int, bound: float | None
) -> Guarantee:
    """The guarantee of everything that a stream of `rows` rows so far has released, and of what it took over from others.

    `bound` is the norm to clip at, None as long as the first block has not found it.
    """
    if terms.budget is None:
        return Guarantee.none(NO_PRIVACY["stream"])
    epsilon, delta = terms.budget.epsilon, terms.budget.delta
    if merged is not None:
        # People in another stream have that stream's guarantee, so the weaker one holds for all.
        epsilon, delta = max(epsilon, merged.epsilon), max(delta, merged.delta)
    plan = terms.plan
    return GuaranteeFacts(
        budget=Budget(epsilon, delta),
        protects=terms.protects,
        neighbours=terms.neighbours,
        rows=StreamRows(
            norm=bound,
            finds_norm=terms.bounds.finds_bound,
            units=terms.bounds.finds_scale,
            scale=terms.bounds.scale is not None,
            around="the mean" if terms.center else "zero",
            block=plan.block,
            first=plan.first_block,
            horizon=terms.horizon,
            origin=terms.bounds.origin is not None and terms.bounds.low is None,
            columns=terms.bounds.low is not None,
            merged=1 if merged is None else len(merged.streams) + 1,
            gaps=None if terms.bounds.gaps is None else terms.bounds.gaps.rule,
        ),
        seen_by=OneDevice(plan.reason, plan.kind.schedule),
        released=COMPONENTS + terms.bounds.released,
        charges=charges,
        # One seeded stream is enough: anyone who knows its seed can subtract its noise from the result.
        reproducible=terms.seed is not None or (merged is not None and merged.seeded),
        people=float(rows),
    ).guarantee()


# A bound is chosen for a stream of so many first blocks, if its length is not given.
_BLOCKS_TO_COME: Final = 10.0
# After so many steps in the first block, a search that has not reached the mean waits for more rows. The steps that are left are
# then as much finer as there are more rows.
_PAUSE: Final = 6


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Public: given, or released. A tracker gets rows divided by `scale`, so what it has found is in these units."""

    bound: float | None = None  # The norm to clip at, None until the first block has found one.
    scale: Array | None = None  # The units of the columns, (d,).
    rates: Rates | None = None  # Of entries that may be missing, None until they are counted, or if none are.
    clipped: float | None = None  # About the share of people in the first block whose rows are beyond a bound found there.
    norms: tuple[float, ...] | None = None  # The released norms that stand out from the noise.
    outliers: Outliers | None = None  # What may lie beyond them.

    @classmethod
    def given(cls, terms: StreamSpec) -> "Placement":
        """What is known before the first row."""
        bounds = terms.bounds
        return cls(bound=None if bounds.finds_bound or bounds.low is not None else bounds.row_bound, scale=bounds.scale)

    def found(self, terms: StreamSpec) -> "Placement":
        """What was found, for a state file, and nothing that was given."""
        bounds = terms.bounds
        return replace(self, bound=self.bound if bounds.finds_bound else None, scale=self.scale if bounds.finds_scale else None)

    def resumed(self, terms: StreamSpec) -> "Placement":
        """With what was given, after `found`. What no search can have found is refused."""
        bounds, gaps, dim, initial = terms.bounds, terms.bounds.gaps, terms.bounds.dim, Placement.given(terms)
        require(
            not bounds.finds_bound or (self.bound is not None and SMALLEST <= self.bound <= LARGEST),
            "its bound is not one that a search can find",
        )
        scale = self.scale if bounds.finds_scale else initial.scale
        require(
            not bounds.finds_scale
            or (
                scale is not None
                and scale.shape == (dim,)
                and scale.dtype == np.float64
                and bool(((scale >= SMALLEST) & (scale <= LARGEST)).all())
            ),
            "its units are not those that a search can find",
        )
        counts = gaps is not None and gaps.values is None
        rates = self.rates if counts else None
        require(
            (rates is not None) == counts and (gaps is None or rates is None or _possible(rates, gaps)),
            "its rates of entries are not those that a stream can have found",
        )
        bound = self.bound if bounds.finds_bound else initial.bound
        return replace(self, bound=bound, scale=scale, rates=rates, outliers=Outliers.read(self.outliers))


def _possible(rates: Rates, gaps: MissingPolicy) -> bool:
    return (
        (rates.joint is None) == (gaps.rule == "counts")
        and (rates.joint is None or rates.joint.shape == (gaps.groups, gaps.groups))
        and np.array_equal(rates.group, gaps.group)
        and rates.columns.shape == gaps.group.shape
        and bool(((rates.columns > 0) & (rates.columns <= 1)).all())
    )


def search(
    rows: Any, terms: StreamSpec, mechanism: Callable[[], Mechanism], *, begun: Center | None, last: bool
) -> tuple[Center, Rates | None, bool]:
    """What the first block shows privately: the mean, in the units of the columns, and the norm to clip at or the units.

    The rates of entries come with it, None if nothing is to be divided by them. If the third is true, the mean lies too far out,
    and the search is to continue from there in more rows, as from what has `begun`. Among the `last` rows it cannot wait.
    """
    assert terms.budget is not None
    bounds, gaps, multiplier = terms.bounds, terms.bounds.gaps, 1.0 / terms.budget.mu
    divides, drops = gaps is not None and gaps.divides, gaps is not None and gaps.drops
    if not (terms.center or bounds.finds_bound or divides or drops):
        return Center(center=None, people=None, steps=0), None, False
    block = as_block_rows(rows)
    count = float(block.shape[0])
    waits, split = begun is None and not last and terms.plan.search_rows > 0, terms.split
    # The number of rows is public in a stream, so no budget goes to a count, unless incomplete rows are left out.
    people = None if drops else count
    common: dict[str, Any] = {"bounds": bounds, "neighbours": terms.neighbours, "split": split, "people": people}
    common["multiplier"] = multiplier
    task: Search
    if bounds.finds_scale:
        task = ScaleSearch(**common)
    elif bounds.finds_bound:
        task = BoundSearch(
            **common,
            center="private" if terms.center else None,
            rank=terms.rank,
            entry=math.sqrt(0.5),
            crowd=_crowd(count, terms),
            pause=_PAUSE if waits else None,
        )
    else:
        task = CenterSearch(**common)
    center = Center(center=None, people=None, steps=0)
    if terms.center or bounds.finds_bound:
        earlier = None if begun is None else _of_more(begun, count / terms.plan.first_block)
        center = run_pooled(task, block, mechanism(), begun=earlier)
    if waits and center.poor:
        return center, None, True
    if gaps is not None and (divides or drops) and not terms.center:
        # Complete rows, or the entries that are there. Counts depend on no ball, and one of finite radius claims privacy.
        domain = Domain(dim=bounds.dim, radius=1.0, gaps=gaps)
        weights = {"count_weight": 1.0} if drops else {"observed_weight": 1.0}
        name = "count" if drops else "observed entries"
        counts = Totals(domain=domain, neighbours=terms.neighbours, name=name, **weights)
        totals = run_pooled(counts, block, PartialBudget(mechanism(), split.extra))
        center = replace(center, people=totals.count or count, observed=totals.observed)
    if gaps is not None and drops:
        assert center.people is not None
        return center, Rates.of_complete(gaps, center.people / count), False
    return center, replace(center, people=count).rates(bounds, multiplier=multiplier, share=split.for_observed), False


def _crowd(first: float, terms: StreamSpec) -> float:
    """How many rows one release will be of, as far as anyone knows."""
    if terms.plan.kind.apart:
        return max(first, float(terms.plan.block))
    usual = _BLOCKS_TO_COME * min(first, float(terms.plan.first_block))
    return max(first, usual if terms.horizon is None else float(terms.horizon))


def _of_more(center: Center, times: float) -> Center:
    """What a search has found, to continue among this many times the rows."""
    people = None if center.people is None else center.people * times
    # Among many more rows another pass pays, even if the last one did not.
    far = center.far or times >= 2
    return replace(center, people=people, far=far, observed=None if center.observed is None else center.observed * times)


def units_in(rows: Any) -> Array:
    """The standard deviation of each column, (d,), of the entries that are there: for a stream without privacy."""
    from sklearn.utils.sparsefuncs import mean_variance_axis

    if sp.issparse(rows):
        mean, variances = mean_variance_axis(rows.astype(np.float64), axis=0)
    else:
        present = ~np.isnan(rows)
        count = np.maximum(present.sum(axis=0), 1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.where(present, rows, 0.0).sum(axis=0) / count
            variances = np.square(np.where(present, rows - mean, 0.0)).sum(axis=0) / count
    return deviations(np.nan_to_num(variances), np.nan_to_num(mean), people=float(rows.shape[0]))
