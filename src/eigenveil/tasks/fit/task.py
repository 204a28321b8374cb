"""`Fit`: a whole fit as one task, from its first release to its last: the mean, the components, and small totals.

It is written once and runs with all rows in one place, at sites around a hub, in a tree, or between peers. What each stage may
spend is fixed before the first round. `FitTask` is what protocols must know of any such task before it begins.

Stages: "mean" (skipped if the center is given) -> "components" -> "totals" (skipped if none are needed) -> "done". Where the row
bound is to be found too, the first stage is "bound" instead of "mean", and where the units of columns are, it is "units". A stage
ends when its own task has a result.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, assert_never, final

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, top_eigen
from eigenveil.linalg.subspace import tie_at
from eigenveil.tasks.base import Components, Question, SumTask, Task, require_array
from eigenveil.tasks.fit.bounds import Outliers, RowBounds
from eigenveil.tasks.fit.gaps import Extent, PartialBudget, Rates, Split
from eigenveil.tasks.fit.search import NORMS, BoundSearch, Center, CenterSearch, Search
from eigenveil.tasks.fit.units import ENTRIES, ExactUnits, ScaleSearch, are_flat, renormalised
from eigenveil.tasks.levels import BEYOND
from eigenveil.tasks.totals import Totals

__all__ = ["Fit", "FitResult", "FitState", "FitTask", "ProtocolNoise", "counted_at_once"]

Stage = Literal["mean", "bound", "units", "components", "totals", "done"]
AnyTask = Task[Any, Any, Any]
# The number of components that a bound is chosen for where the rank is read off the spectrum.
_RANK: Final = 32
State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")


@final
@dataclass(frozen=True, slots=True)
class ProtocolNoise:
    """What a fit must know of its protocol."""

    multiplier: float  # The noise on totals over their sensitivity, at a share of one.
    grid: int  # The most parts, where a party adds noise to a sum of parts that others sent.
    rounding: float  # The fraction that rounding these parts adds to the sensitivity.


class FitTask(Task[State, Part, Result]):
    """A task whose rounds are everything that a fit releases. What each may spend is fixed before the first."""

    multiplier: float

    @abstractmethod
    def extent(self) -> Extent:
        """How much is released at most."""

    @abstractmethod
    def with_noise(self, multiplier: float) -> Self:
        """The same fit, with noise of this size."""


def counted_at_once(dim: int, *, find: bool, units: bool) -> int:
    """How many numbers a step of the search for a bound, or for the units of `dim` columns, releases; 0 if there is none."""
    if units:
        return ENTRIES.count * dim
    return NORMS.count if find else 0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FitResult:
    """Everything that a fit released, with what else is known of it."""

    subspace: Subspace  # The directions.
    trace: float  # Total sum of squares, the denominator of variance ratios.
    people: float
    center: Array
    steps: int  # How many the search for the center took.
    domain: Domain  # Clipped the rows.
    scale: float  # The noise on a Gram matrix there, for everything that the components may spend.
    tied: bool | None = None  # Eigenvalues tie at the rank. None: not checked.
    has_converged: bool | None = None  # More rounds would change little. None without a tolerance.
    clipped: float | None = None  # About this share of the people has rows beyond the bound, where norms were released.
    norms: tuple[float, ...] | None = None  # As in `Center`, and so are the outliers.
    outliers: Outliers | None = None
    factors: Array | None = None  # Units of the directions over the domain's, (d,), if variances were made one.
    energy: float | None = None  # The total sum of squares in the domain's own units.
    gram: Array | None = None  # The whole Gram matrix with its noise, (d, d), where it is known.
    rates: Array | None = None  # The shares of people who have each column, (d,), if sums were divided by them.
    noise_inflation: float = 1.0  # Factor by which that enlarged the noise; it is in `scale`.

    @property
    def units(self) -> Array | None:
        """What columns were divided by, (d,), None for nothing."""
        scale = self.domain.scale
        return scale if self.factors is None or scale is None else scale * self.factors


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FitState:
    """How far a fit has come."""

    stage: Stage
    inner: Any  # The state of the stage's own task.
    center: Center
    subspace: Subspace | None = None
    trace: float | None = None
    tied: bool | None = None
    has_converged: bool | None = None
    spread: float | None = None
    people: float | None = None  # In the components, where that is public: sites may leave before the totals.
    gram: Array | None = None
    energy: float | None = None
    factors: Array | None = None
    raw: Array | None = None  # The Gram matrix of rows with gaps, until it has been divided by rates.
    noise_inflation: float = 1.0  # By that division.


@final
class FitAnswer(NamedTuple):
    """A result as every site is told it. Only this class knows the order in which its numbers are sent."""

    basis: Array
    values: Array
    center: Array
    trace: float
    people: float
    steps: float
    tied: bool | None
    has_converged: bool | None
    # Where the bound was searched for.
    bound: float | None = None
    clipped: float = 0.0
    norms: tuple[float, ...] = len(BEYOND) * (0.0,)
    outliers: Outliers | None = None
    # Where units were found, or sums divided by rates.
    energy: float | None = None
    scale: Array | None = None
    factors: Array | None = None
    noise_inflation: float = 1.0
    rates: Array | None = None

    def to_arrays(self) -> tuple[Array, ...]:
        """Arrays of float64, as only such are sent: an unknown flag is -1, and five zeros say that there are no outliers."""
        flags = (-1.0 if flag is None else float(flag) for flag in (self.tied, self.has_converged))
        numbers = [self.trace, self.people, self.steps, *flags]
        arrays: list[Array] = []
        if self.bound is not None:
            numbers += [self.bound, self.clipped, *self.norms, *(self.outliers or len(Outliers._fields) * (0.0,))]
        if self.scale is not None:
            assert self.energy is not None
            numbers.append(self.energy)
            arrays += [self.scale, np.empty(0) if self.factors is None else self.factors]
        if self.rates is not None:
            assert self.energy is not None
            arrays.append(np.array([self.noise_inflation, self.energy, *self.rates]))
        return (self.basis, self.values, self.center, np.array(numbers), *arrays)

    @classmethod
    def from_arrays(cls, arrays: tuple[Array, ...], bounds: RowBounds, *, divides: bool) -> "FitAnswer":
        """The answer in these arrays, which come from another party; a `ValueError` if they can be none."""
        expected, dim = (6 if bounds.finds_scale else 4) + divides, bounds.dim
        require(len(arrays) == expected, f"an answer has {expected} arrays, got {len(arrays)}")
        basis, values, center, summary, *more = (require_array(array, array.shape) for array in arrays)
        size = 7 + len(BEYOND) + len(Outliers._fields) if bounds.finds_bound else 6 if bounds.finds_scale else 5
        require(basis.ndim == 2 and len(basis) == dim, f"directions must have {dim} coordinates, got {basis.shape}")
        require(center.shape == (dim,) and len(summary) == size, f"an answer has a center and {size} numbers")
        trace, people, steps, tied, has_converged, *rest = summary.tolist()
        require(tied in (-1, 0, 1) and has_converged in (-1, 0, 1), "the numbers of an answer are malformed")
        tied, has_converged = (None if flag < 0 else bool(flag) for flag in (tied, has_converged))
        answer = cls(basis, values, center, trace, people, steps, tied, has_converged)
        if bounds.finds_bound:
            norms, last = tuple(rest[2 : 2 + len(BEYOND)]), rest[2 + len(BEYOND) :]
            outliers = Outliers.read(last)
            require(outliers is not None or not any(last), "the outliers of an answer are malformed")
            require(all(0 <= norm < math.inf for norm in norms), "the norms of an answer must be finite and not negative")
            answer = answer._replace(bound=rest[0], clipped=rest[1], norms=norms, outliers=outliers)
        if bounds.finds_scale:
            scale, factors = more[:2]
            require(scale.shape == (dim,), "an answer has one unit for each column")
            require(
                len(factors) == 0 or (factors.shape == (dim,) and bool((factors > 0).all())),
                "an answer has one positive factor for each column, or none",
            )
            if len(factors):
                answer = answer._replace(energy=rest[0], factors=factors)
            answer = answer._replace(scale=scale)
        if divides:
            rates = more[-1]
            require(
                rates.shape == (dim + 2,) and rates[0] > 0 and bool(((rates[2:] > 0) & (rates[2:] <= 1)).all()),
                "an answer has a rate for each column",
            )
            answer = answer._replace(noise_inflation=float(rates[0]), energy=float(rates[1]), rates=rates[2:])
        return answer


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fit(FitTask[FitState, Any, FitResult]):
    """A fit of rows within `bounds` around `center`; `components` makes the task that finds the directions in a domain."""

    bounds: RowBounds
    neighbours: Neighbours
    center: Array | Literal["private"] | None
    components: Components
    split: Split  # What each stage may spend.
    people: float | None  # Their number, where it is public.
    multiplier: float  # The noise on totals over their sensitivity, at a share of one.
    rank: int | None
    needs_trace: bool = False
    begins_again: bool = False  # Start again without sites that have left, as where nothing is spent.
    sizes: Mapping[str, float] | None = None  # The number of people at each site, where it is public.
    # Where a party adds noise to a sum of parts that others sent: the most parts. They are rounded so that they add up exactly,
    # which adds the fraction `rounding` to the sensitivity (`eigenveil.tasks.base.on_grid`).
    grid: int = 0
    rounding: float = 0.0
    # Of the components: the shares of their releases, the most rounds they take, and the numbers in each.
    products: tuple[tuple[float, ...], int, int] = ((), 0, 0)
    # The noise on an entry of what the components release, over the sensitivity of a Gram matrix, at a share of one.
    entry: float = math.sqrt(0.5)
    _made: dict[str, tuple[tuple[Any, ...], AnyTask]] = field(init=False, default_factory=dict)
    _good: list[Question] = field(init=False, default_factory=list)

    def start(self) -> FitState:
        if self._first is not None:
            begun = self._search().start()
            return FitState(stage=self._first, inner=begun, center=begun)
        center = None if isinstance(self.center, str) else self.center
        initial = Center(center=center, people=self.people, steps=0, far=False)
        return self._enter_stage("components", FitState(stage="components", inner=None, center=initial))

    def ask(self, state: FitState) -> Question:
        inner = self._task(state.stage, state.center).ask(state.inner)
        if state.stage == self._first:
            return replace(inner, stage=state.stage)
        # The center, its steps and the bound found are in every question. From these alone a site computes its domain and its
        # charge, so it need not trust the hub's memory (docs/decisions/0008).
        return Question(inner.step, (*state.center.arrays(), *inner.arrays), state.stage)

    def require_question(self, question: Question) -> None:
        if self._good and self._good[0] is question:
            # Thousands of sites in one process share one question object: check it once.
            return
        first = question.stage == self._first
        require(first or question.stage in ("components", "totals"), f"the fit has no stage {question.stage!r}")
        if not first:
            where, _ = Center.read(question.arrays, self.bounds)
            self._require_center(question.arrays[0], "the center is not the agreed one")
            # An honest hub never asks for a center out there: `center_from` moves it back into the box.
            low, high, center = self.bounds.low, self.bounds.high, question.arrays[0]
            require(
                not isinstance(self.center, str)
                or low is None
                or high is None
                or bool(((center >= low) & (center <= high)).all()),
                "the center lies outside the column bounds",
            )
            require(where.steps in self._possible_steps, "the question must give the number of steps in which the mean was found")
            require(where.bound is None or self._can_be_bound(where.bound), "no search can have found this bound")
        task, inner = self._unwrap_question(question)
        task.require_question(inner)
        self._good[:] = [question]

    def _require_center(self, center: Array, refusal: str) -> None:
        agreed = np.empty(0) if self.center is None else self.center
        searched = isinstance(agreed, str)
        require(center.shape == (self.bounds.dim,) if searched else np.array_equal(center, agreed), refusal)

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Any:
        task, inner = self._unwrap_question(question)
        return task.work(inner, rows, self._portion(question, mechanism))

    def combine(self, left: Any, right: Any) -> Any:
        if isinstance(left, np.ndarray):
            return np.add(left, right)
        return self.directions.combine(left, right)

    def condense(self, part: Any) -> Any:
        return part if isinstance(part, np.ndarray) else self.directions.condense(part)

    def weighted(self, part: Any, weight: float) -> Any:
        return np.multiply(part, weight) if isinstance(part, np.ndarray) else self.directions.weighted(part, weight)

    def arrays(self, part: Any) -> tuple[Array, ...]:
        return (part,) if isinstance(part, np.ndarray) else self.directions.arrays(part)

    def part(self, question: Question, arrays: tuple[Array, ...]) -> Any:
        task, inner = self._unwrap_question(question)
        part = task.part(inner, arrays)
        # Before any addition. Two lying sites could otherwise raise a sum and lower it again, so that rounding shows
        # one person's presence (docs/decisions/0008).
        return part if self.grid == 0 else task.rounded_to_grid(inner, part, parts=self.grid)

    def with_contributors(self, state: FitState, sites: tuple[str, ...]) -> FitState:
        """The number of people at these sites, where that is public."""
        if self.sizes is None or self.people is None:
            return state
        # Rounded once, so the order in which sites answered has no effect.
        people = math.fsum(self.sizes[site] for site in sites)
        inner = replace(state.inner, people=people) if state.stage == self._first else state.inner
        return replace(state, inner=inner, center=replace(state.center, people=people))

    def has_symmetric_parts(self, question: Question) -> bool:
        task, inner = self._unwrap_question(question)
        return task.has_symmetric_parts(inner)

    def as_sum(self, question: Question) -> tuple[SumTask[Any, Any], Question, float]:
        task, inner = self._unwrap_question(question)
        summed, sum_question, fraction = task.as_sum(inner)
        return summed, sum_question, fraction * self._fraction(question)

    def advance(self, state: FitState, total: Any, mechanism: Mechanism, *, stretch: float = 1.0) -> FitState:
        task = self._task(state.stage, state.center)
        through = self._portion(self.ask(state), mechanism)
        # Rounding parts onto the grid may move neighbours a little further apart, and the noise must cover that too.
        inner = task.advance(state.inner, total, through, stretch=stretch * (1 + self.rounding))
        # Freed now: it is no longer needed, and as large as what comes next.
        del total
        result = task.result(inner)
        state = replace(state, spread=task.spread(inner))
        if result is None:
            return replace(state, inner=inner, center=inner if state.stage == self._first else state.center)
        match state.stage:
            case "mean" | "bound" | "units":
                return self._enter_stage("components", replace(state, center=result))
            case "components":
                state = replace(state, tied=task.tied(inner), has_converged=task.has_converged(inner))
                return self._after_components(state, result)
            case "totals" | "done":
                people = state.center.people if result.count is None else result.count
                trace = state.trace if result.trace is None else result.trace
                # Entries were counted with the totals, so the Gram matrix has waited for its rates until now.
                if result.observed is not None:
                    where = replace(state.center, people=people, observed=result.observed)
                    return self._ended(replace(state, center=where))
                if state.people is not None and people is not None and people != state.people:
                    # Sites left before the totals: scale the trace per person to the people in the components.
                    trace = None if trace is None or people == 0 else trace * state.people / people
                    people = state.people
                return replace(state, stage="done", inner=None, center=replace(state.center, people=people), trace=trace)
            case _:
                assert_never(state.stage)

    def result(self, state: FitState) -> FitResult | None:
        if state.stage != "done":
            return None
        assert state.subspace is not None
        # Without a released trace, the values of the directions found are all we know of it.
        trace = float(np.square(state.subspace.values).sum()) if state.trace is None else state.trace
        rates = self._rates(state.center)
        return self._made_of(
            state.center,
            factors=state.factors,
            noise_inflation=state.noise_inflation,
            subspace=state.subspace,
            trace=trace,
            tied=state.tied,
            has_converged=state.has_converged,
            energy=state.energy,
            gram=state.gram,
            rates=None if rates is None else rates.columns,
        )

    def _made_of(self, where: Center, *, factors: Array | None, noise_inflation: float, **released: Any) -> FitResult:
        assert where.people is not None
        domain, scale = self._domain(where), 0.0
        if self.multiplier > 0:
            scale = self._noise(where) * noise_inflation
            if factors is not None:
                # In units of smaller variance the same noise is larger: entry (i, j) has 1 / (f_i f_j) times the noise. The norm
                # of such a matrix is at most as if all rows were as loud as the loudest (Bandeira and van Handel 2016).
                scale *= math.sqrt(float((factors**-2.0).mean())) / float(factors.min())
        return FitResult(
            people=where.people,
            center=np.zeros(domain.dim) if where.center is None else where.center,
            steps=where.steps,
            domain=domain,
            scale=scale,
            clipped=where.clipped,
            norms=where.norms,
            outliers=where.outliers,
            factors=factors,
            noise_inflation=noise_inflation,
            **released,
        )

    def encode_result(self, result: FitResult) -> tuple[Array, ...]:
        answer = FitAnswer(
            basis=result.subspace.basis,
            values=result.subspace.values,
            center=result.center,
            trace=result.trace,
            people=result.people,
            steps=float(result.steps),
            tied=result.tied,
            has_converged=result.has_converged,
            energy=result.trace if result.energy is None else result.energy,
        )
        if self.bounds.finds_bound:
            answer = answer._replace(bound=result.domain.radius, clipped=result.clipped or 0.0, outliers=result.outliers)
            answer = answer if result.norms is None else answer._replace(norms=result.norms)
        if self.bounds.finds_scale:
            answer = answer._replace(scale=result.domain.scale, factors=result.factors)
        if self._divides:
            answer = answer._replace(rates=result.rates, noise_inflation=result.noise_inflation)
        return answer.to_arrays()

    def decode_result(self, arrays: tuple[Array, ...]) -> FitResult:
        """The result that `encode_result` made these arrays from; a `ValueError` if they cannot be an answer."""
        answer = FitAnswer.from_arrays(arrays, self.bounds, divides=self._divides)
        # Where rows are not centered, a result has a center of zeros.
        if self.center is not None:
            self._require_center(answer.center, "the center of an answer is not the agreed one")
        require(
            answer.steps in range(len(self.split.mean) + 1), "an answer must give the number of steps in which the mean was found"
        )
        is_bounded = answer.bound is not None
        require(answer.bound is None or self._can_be_bound(answer.bound), "no search can have found the bound of an answer")
        where = Center(
            center=None if self.center is None else answer.center,
            people=answer.people,
            steps=int(answer.steps),
            far=False,
            bound=answer.bound,
            clipped=answer.clipped if is_bounded else None,
            norms=answer.norms if is_bounded else None,
            outliers=answer.outliers,
            scale=answer.scale,
        )
        return self._made_of(
            where,
            factors=answer.factors,
            noise_inflation=answer.noise_inflation,
            subspace=Subspace(answer.basis, answer.values),
            trace=answer.trace,
            tied=answer.tied,
            has_converged=answer.has_converged,
            energy=answer.energy,
            rates=answer.rates,
        )

    def estimate(self, state: FitState) -> Subspace | None:
        if state.stage != "components":
            return state.subspace
        return self._task("components", state.center).estimate(state.inner)

    def spread(self, state: FitState) -> float | None:
        return state.spread

    def sampled(self, question: Question) -> bool:
        """Only the components: small totals cost little and need all sites."""
        return question.stage == "components"

    def after_dropout(self, state: FitState) -> FitState | None:
        """Start again if nothing was spent: rows that have left are in the center and in every product so far."""
        return self.start() if self.begins_again else None

    def extent(self) -> Extent:
        shares, rounds, size = self.products
        return Extent.of(
            self.split,
            dim=self.bounds.dim,
            shares=shares,
            rounds=rounds,
            size=size,
            searched=counted_at_once(self.bounds.dim, find=self.bounds.finds_bound, units=self.bounds.finds_scale),
            observed=0 if self.bounds.gaps is None else self.bounds.gaps.entries,
        )

    def with_noise(self, multiplier: float) -> "Fit":
        return replace(self, multiplier=multiplier)

    def _after_components(self, state: FitState, result: Subspace | Array) -> FitState:
        # Kept from here on, because a site may leave between the components and the totals.
        state = replace(state, people=state.center.people if self.sizes is not None else None)
        if isinstance(result, Subspace):
            state = replace(state, subspace=result)
        else:
            # Only rows that are not clipped can fail this: a clipped row has a norm of at most 1e100.
            require(bool(np.isfinite(result).all()), "X has numbers too large to square; scale it down first")
            if self._divides and state.center.observed is None:
                # Rows were not centered privately, so their entries are counted with the totals.
                state = replace(state, raw=result, subspace=self._subspace(result))
            else:
                state = self._of_gram(state, result)
        waiting = self.needs_trace or not self._counted() or state.raw is not None
        return self._enter_stage("totals", state) if waiting else replace(state, stage="done", inner=None)

    def _of_gram(self, state: FitState, gram: Array) -> FitState:
        """The directions and the trace of a released Gram matrix, divided by the rates of entries where there are gaps."""
        rates = self._rates(state.center)
        if rates is not None:
            energy = float(np.trace(gram))
            # Nearly all entries lie off the diagonal, where symmetric noise has half the variance.
            gram, noise_inflation = rates.full_gram(gram, noise=self._noise(state.center) * math.sqrt(0.5))
            state = replace(state, energy=energy, noise_inflation=noise_inflation)
        tied = None
        # A fit that may begin again has no noise. With noise, a tie would only be chance.
        if self.begins_again and self.rank is not None:
            tied = self.rank < len(gram) and tie_at(top_eigen(gram, rank=self.rank + 1)[0], rank=self.rank)
        state = replace(state, tied=tied)
        if self.bounds.finds_scale and (self.bounds.claimed or math.isfinite(self.bounds.row_bound)):
            energy = float(np.trace(gram)) if state.energy is None else state.energy
            scale, people = state.center.scale, state.center.people
            assert scale is not None
            assert people is not None
            # In units that make the released variances one: found units are rougher than these.
            gram, factors = renormalised(gram, noise=self._noise(state.center), people=people, flat=are_flat(scale))
            state = replace(state, factors=factors, energy=energy)
        # Without noise nothing was released, and the components say what scikit-learn's PCA keeps.
        released = gram if self.multiplier > 0 else None
        return replace(state, gram=released, subspace=self._subspace(gram), trace=float(np.trace(gram)), raw=None)

    def _subspace(self, gram: Array) -> Subspace:
        return Subspace.of_gram(gram, rank=self.rank if self.rank is not None else self.bounds.dim)

    def _ended(self, state: FitState) -> FitState:
        raw = state.raw
        assert raw is not None
        if state.people is not None:
            # Sites left before the totals: the rates are of those that stayed, and the matrix of all.
            # The share of entries stays.
            where = state.center
            assert where.people is not None
            assert where.observed is not None
            observed = where.observed * (state.people / max(where.people, 1.0))
            state = replace(state, center=replace(where, people=state.people, observed=observed))
        return replace(self._of_gram(state, raw), stage="done", inner=None)

    def _rates(self, where: Center) -> Rates | None:
        return where.rates(self.bounds, multiplier=self.multiplier, share=self.split.for_observed)

    def _noise(self, where: Center) -> float:
        """The noise on a diagonal entry of a Gram matrix, for everything that the components may spend."""
        if self.multiplier == 0:
            # Rows may have no bound then, and the product of both would be no number.
            return 0.0
        share = self.split.main(where.steps)
        return self.multiplier * gram_sensitivity(self._domain(where).radius, self.neighbours) / math.sqrt(share)

    @property
    def _divides(self) -> bool:
        return self.bounds.gaps is not None and self.bounds.gaps.divides

    def _enter_stage(self, stage: Stage, state: FitState) -> FitState:
        return replace(state, stage=stage, inner=self._task(stage, state.center).start())

    def _counted(self) -> bool:
        """Whether the number of people is known before the components."""
        return self.people is not None or isinstance(self.center, str)

    def _portion(self, question: Question, mechanism: Mechanism) -> Mechanism:
        """The mechanism, limited to what this stage may spend."""
        # The search has shares of the whole budget already, and without noise there is nothing to limit.
        if question.stage == self._first or isinstance(mechanism, Exact):
            return mechanism
        return PartialBudget(mechanism, self._fraction(question))

    def _fraction(self, question: Question) -> float:
        """This stage's fraction of mu^2: the search has shares of the whole, and the components get what it does not use."""
        if question.stage == self._first:
            return 1.0
        if question.stage == "totals":
            return self.split.extra
        return self.split.main(Center.read(question.arrays, self.bounds)[0].steps)

    def _unwrap_question(self, question: Question) -> tuple[AnyTask, Question]:
        if question.stage == self._first:
            return self._task(self._first, None), Question(question.step, question.arrays)
        where, arrays = Center.read(question.arrays, self.bounds)
        return self._task("components" if question.stage == "components" else "totals", where), Question(question.step, arrays)

    def _task(self, stage: Stage, where: Center | None) -> AnyTask:
        """The stage's own task, made once for each center, because thousands of sites may need the same one."""
        made = self._made.get(stage)
        # By identity: an equal center in another array only costs one more task. The search needs no center.
        if stage == self._first or where is None:
            key: tuple[Any, ...] = (None, None, None)
        else:
            key = (where.center, where.bound, where.scale)
        if made is None or made[0][0] is not key[0] or made[0][1] != key[1] or made[0][2] is not key[2]:
            made = (key, self._make(stage, where))
            self._made[stage] = made
        return made[1]

    def _domain(self, where: Center) -> Domain:
        bounds = self.bounds if where.bound is None else self.bounds.found(where.bound)
        return (bounds if where.scale is None else bounds.in_units(where.scale)).around(where.center)

    def _make(self, stage: Stage, where: Center | None) -> AnyTask:
        if stage == self._first or where is None:
            return self._search()
        domain = self._domain(where)
        if stage == "components":
            return self.components(domain=domain)
        count, has_observed = not self._counted(), self._divides and not isinstance(self.center, str)
        also = (("count", count), ("observed entries", has_observed), ("trace", self.needs_trace))
        # Count and trace have equal parts of what the counts of entries leave.
        each = (self.split.extra - self.split.observed_later) / max(count + self.needs_trace, 1)
        return Totals(
            domain=domain,
            neighbours=self.neighbours,
            count_weight=each * count,
            trace_weight=each * self.needs_trace,
            observed_weight=self.split.observed_later if has_observed else 0.0,
            name=" and ".join(word for word, is_needed in also if is_needed),
        )

    def _search(self) -> Search:
        common: dict[str, Any] = {name: getattr(self, name) for name in ("bounds", "neighbours", "split", "people", "multiplier")}
        if self.bounds.finds_scale:
            return ScaleSearch(**common) if self.bounds.claimed else ExactUnits(**common)
        if not self.bounds.finds_bound:
            return CenterSearch(**common)
        return BoundSearch(
            **common,
            center=self.center,
            # With a fraction of the variance the rank is not known yet, and this is a guess for the bound alone.
            rank=min(self.bounds.dim, _RANK) if self.rank is None else self.rank,
            entry=self.entry,
        )

    @property
    def _first(self) -> Stage | None:
        if self.bounds.finds_scale:
            return "units"
        return "bound" if self.bounds.finds_bound else "mean" if isinstance(self.center, str) else None

    @property
    def _possible_steps(self) -> range:
        """In how many steps the search may have ended."""
        if self.bounds.finds_bound:
            # A search for a bound ends with a mean, at the earliest with the second one.
            return range(4, len(self.split.mean) + 1, 2) if isinstance(self.center, str) else range(1, 2)
        if self.bounds.finds_scale and not self.bounds.claimed:
            return range(ExactUnits.steps, ExactUnits.steps + 1)
        # A search for units never ends early: it always takes all its rounds and the mean.
        if self.bounds.finds_scale:
            return range(len(self.split.mean), len(self.split.mean) + 1)
        return range(int(isinstance(self.center, str)), len(self.split.mean) + 1)

    def _can_be_bound(self, bound: float) -> bool:
        search = self._task("bound", None)
        assert isinstance(search, BoundSearch)
        return search.can_find(bound)

    @property
    def directions(self) -> AnyTask:
        """The components' own task, as last made: how it combines parts does not depend on the domain."""
        return self._made["components"][1]
