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
from typing import Any, Final, Literal, Self, TypeVar, assert_never, final

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
from eigenveil.tasks.fit.search import NORMS, BoundSearch, Center, CenterSearch
from eigenveil.tasks.fit.units import ENTRIES, ExactUnits, ScaleSearch, are_flat, renormalised
from eigenveil.tasks.levels import BEYOND
from eigenveil.tasks.totals import Totals

__all__ = ["Fit", "FitResult", "FitState", "FitTask", "ProtocolNoise", "counted_at_once"]

Stage = Literal["mean", "bound", "units", "components", "totals", "done"]
AnyTask = Task[Any, Any, Any]
# How a question says that there is no center: an array without coordinates.
_NOWHERE: Final = np.empty(0)
# The number of components that a bound is chosen for where the rank is read off the spectrum.
_RANK: Final = 32
State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")


@final
@dataclass(frozen=True, slots=True)
class ProtocolNoise:
    """What a fit must know of its protocol.

    The noise on totals over their sensitivity, at a share of one, is `multiplier`. Where a party adds noise to a sum of parts
    that others sent, there are at most `grid` parts. Rounding them adds the fraction `rounding` to the sensitivity.
    """

    multiplier: float
    grid: int
    rounding: float


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
    """What a fit released: directions, total sum of squares, number of people, the center and the steps it took to find it.

    If `tied`, eigenvalues tie at the rank. If `has_converged`, more rounds would change little. Rows were clipped by `domain`.
    The size of the noise on a Gram matrix there, for everything the components may spend, is `scale`. Where norms were released,
    about `clipped` of the people have rows beyond the bound, and `norms` and `outliers` are as in `Center`. If variances were
    made one after the release, `factors`, (d,), are the units of the directions over those of the domain. Then `energy` is the
    total sum of squares in the domain's own units. The whole Gram matrix with its noise, (d, d), is `gram`, at whoever has it.
    Where entries may be missing, `rates`, (d,), are the shares of people who have each column, and sums were divided by them.
    That made the noise `noise_inflation` by this factor, which is in `scale`.
    """

    subspace: Subspace
    trace: float
    people: float
    center: Array
    steps: int
    domain: Domain
    scale: float
    tied: bool | None = None
    has_converged: bool | None = None
    clipped: float | None = None
    norms: tuple[float, ...] | None = None
    outliers: Outliers | None = None
    factors: Array | None = None
    energy: float | None = None
    gram: Array | None = None
    rates: Array | None = None
    noise_inflation: float = 1.0

    @property
    def units(self) -> Array | None:
        """What columns were divided by, (d,), None for nothing."""
        scale = self.domain.scale
        return scale if self.factors is None or scale is None else scale * self.factors


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FitState:
    """How far a fit has come. The state of the stage's own task is `inner`.

    The number of people in the components, where that is public, is `people`: sites may have left before the totals. The Gram
    matrix of rows with gaps is `raw` until it has been divided by rates, which makes its noise `noise_inflation`.
    """

    stage: Stage
    inner: Any
    center: Center
    subspace: Subspace | None = None
    trace: float | None = None
    tied: bool | None = None
    has_converged: bool | None = None
    spread: float | None = None
    people: float | None = None
    gram: Array | None = None
    energy: float | None = None
    factors: Array | None = None
    raw: Array | None = None
    noise_inflation: float = 1.0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fit(FitTask[FitState, Any, FitResult]):
    """A fit of rows within `bounds` around `center`; `components` makes the task that finds the directions in a domain.

    What each stage may spend is `split`; the components take no more than `at_most`. Where it is public, `people` is the number
    of people and `sizes` that of each site. The noise on totals over their sensitivity, at a share of one, is `multiplier`. With
    `begins_again`, the fit starts again without sites that have left, as where nothing is spent. The shares of the components'
    releases, the most rounds they take, and the numbers in each are `products`.

    Where a party adds noise to a sum of parts that others sent, there are at most `grid` parts. They are rounded so that they add
    up exactly, which adds the fraction `rounding` to the sensitivity (`eigenveil.tasks.base.on_grid`).

    If the bounds are to be found, `entry` is the noise on an entry of what the components release. It is relative to the
    sensitivity of a Gram matrix, at a share of one.
    """

    bounds: RowBounds
    neighbours: Neighbours
    center: Array | Literal["private"] | None
    components: Components
    split: Split
    people: float | None
    multiplier: float
    rank: int | None
    at_most: float = 1.0
    needs_trace: bool = False
    begins_again: bool = False
    sizes: Mapping[str, float] | None = None
    grid: int = 0
    rounding: float = 0.0
    products: tuple[tuple[float, ...], int, int] = ((), 0, 0)
    entry: float = math.sqrt(0.5)
    _made: dict[str, tuple[tuple[Any, ...], AnyTask]] = field(init=False, default_factory=dict)
    _good: list[Question] = field(init=False, default_factory=list)

    def start(self) -> FitState:
        """The search for bound and mean or, if both are given, the components."""
        if self._first is not None:
            begun = self._search().start()
            return FitState(stage=self._first, inner=begun, center=begun)
        center = None if isinstance(self.center, str) else self.center
        initial = Center(center=center, people=self.people, steps=0, far=False)
        return self._enter_stage("components", FitState(stage="components", inner=None, center=initial))

    def ask(self, state: FitState) -> Question:
        """The stage's own question, preceded by the center."""
        inner = self._task(state.stage, state.center).ask(state.inner)
        if state.stage == self._first:
            return replace(inner, stage=state.stage)
        # The center, its steps and the bound found are in every question. From these alone a site computes its domain and its
        # charge, so it need not trust the hub's memory (docs/decisions/0008).
        where = state.center
        center = _NOWHERE if where.center is None else where.center
        numbers = [float(where.steps)] if where.bound is None else [float(where.steps), where.bound]
        units = () if where.scale is None else (where.scale,)
        return Question(inner.step, (center, np.array(numbers), *units, *inner.arrays), state.stage)

    def require_question(self, question: Question) -> None:
        """A question of a stage of this fit, around an acceptable center."""
        if self._good and self._good[0] is question:
            # Thousands of sites in one process share one question object: check it once.
            return
        searched = isinstance(self.center, str)
        require(
            question.stage in {self._first, "components", "totals"},
            f"the fit has no stage {question.stage!r}",
        )
        if question.stage != self._first:
            require(len(question.arrays) >= 2, "the question must give the center and the steps it took")
            center, numbers = question.arrays[:2]
            expected = _NOWHERE if self.center is None or searched else self.center
            require(
                center.shape == (self.bounds.dim,) if searched else np.array_equal(center, expected),
                "the center is not the agreed one",
            )
            # An honest hub never asks for a center out there: `center_from` moves it back into the box.
            low, high = self.bounds.low, self.bounds.high
            require(
                not searched or low is None or high is None or bool(((center >= low) & (center <= high)).all()),
                "the center lies outside the column bounds",
            )
            require(
                # The steps decide what the components may spend, so a site accepts only numbers that a search can take.
                numbers.shape == (1 + self.bounds.finds_bound,) and float(numbers[0]) in self._possible_steps,
                "the question must give the number of steps in which the mean was found",
            )
            require(
                not self.bounds.finds_bound or self._can_be_bound(float(numbers[1])),
                "no search can have found this bound",
            )
            require(
                # The domain checks that they are positive and finite.
                not self.bounds.finds_scale
                or (len(question.arrays) >= 3 and question.arrays[2].shape == (self.bounds.dim,)),
                "the question must give the units that were found",
            )
        task, inner = self._unwrap_question(question)
        task.require_question(inner)
        self._good[:] = [question]

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Any:
        """The part of the stage's own task, for the stage's portion of the budget."""
        task, inner = self._unwrap_question(question)
        return task.work(inner, rows, self._portion(question, mechanism))

    def combine(self, left: Any, right: Any) -> Any:
        """As in the stage's own task; all tasks of a fit except the components' add arrays."""
        if isinstance(left, np.ndarray):
            return np.add(left, right)
        return self.directions.combine(left, right)

    def condense(self, part: Any) -> Any:
        """As in the stage's own task."""
        return part if isinstance(part, np.ndarray) else self.directions.condense(part)

    def weighted(self, part: Any, weight: float) -> Any:
        """As in the stage's own task."""
        return np.multiply(part, weight) if isinstance(part, np.ndarray) else self.directions.weighted(part, weight)

    def arrays(self, part: Any) -> tuple[Array, ...]:
        """As in the stage's own task."""
        return (part,) if isinstance(part, np.ndarray) else self.directions.arrays(part)

    def part(self, question: Question, arrays: tuple[Array, ...]) -> Any:
        """As in the stage's own task."""
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
        """As in the stage's own task."""
        task, inner = self._unwrap_question(question)
        return task.has_symmetric_parts(inner)

    def as_sum(self, question: Question) -> tuple[SumTask[Any, Any], Question, float]:
        """The stage's own task, with the stage's portion of the budget."""
        task, inner = self._unwrap_question(question)
        summed, sum_question, fraction = task.as_sum(inner)
        return summed, sum_question, fraction * self._fraction(question)

    def advance(self, state: FitState, total: Any, mechanism: Mechanism, *, stretch: float = 1.0) -> FitState:
        """The stage's own task advances; once it has a result, the next stage begins."""
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
                return replace(
                    state, stage="done", inner=None, center=replace(state.center, people=people), trace=trace
                )
            case _:
                assert_never(state.stage)

    def result(self, state: FitState) -> FitResult | None:
        """The result, after the last stage."""
        if state.stage != "done":
            return None
        assert state.subspace is not None
        # Without a released trace, the values of the directions found are all we know of it.
        trace = float(np.square(state.subspace.values).sum()) if state.trace is None else state.trace
        fit_result = self._made_of(
            state.subspace,
            trace,
            state.center,
            state.tied,
            state.has_converged,
            state.factors,
            noise_inflation=state.noise_inflation,
        )
        rates = self._rates(state.center)
        return replace(fit_result, energy=state.energy, gram=state.gram, rates=None if rates is None else rates.columns)

    def _made_of(
        self,
        subspace: Subspace,
        trace: float,
        where: Center,
        tied: bool | None,
        has_converged: bool | None,
        factors: Array | None = None,
        noise_inflation: float = 1.0,
    ) -> FitResult:
        assert where.people is not None
        domain = self._domain(where)
        scale = 0.0
        if self.multiplier > 0:
            scale = self._noise(where) * noise_inflation
            if factors is not None:
                # In units of smaller variance the same noise is larger: entry (i, j) has 1 / (f_i f_j) times the noise. The norm
                # of such a matrix is at most that of one with all rows as loud as the loudest (Bandeira and van Handel 2016).
                scale *= math.sqrt(float((factors**-2.0).mean())) / float(factors.min())
        center = np.zeros(domain.dim) if where.center is None else where.center
        return FitResult(
            subspace=subspace,
            trace=trace,
            people=where.people,
            center=center,
            steps=where.steps,
            domain=domain,
            scale=scale,
            tied=tied,
            has_converged=has_converged,
            clipped=where.clipped,
            norms=where.norms,
            outliers=where.outliers,
            factors=factors,
            noise_inflation=noise_inflation,
        )

    def encode_result(self, result: FitResult) -> tuple[Array, ...]:
        """Directions, their values, the center, and five numbers; six where units were found. Where the bound was, it, the share
        of people beyond it, the norms that were seen, and the five numbers of outliers, zeros where there are none.

        Where units were found, these, and the factors that made released variances one. Where sums were divided by rates of
        entries, one more array: how much louder that made the noise, the sum of squares before it, and the rates.
        """
        # Only arrays of float64 are sent, so an unknown word travels as -1.
        flags = [-1.0 if flag is None else float(flag) for flag in (result.tied, result.has_converged)]
        numbers = [result.trace, result.people, float(result.steps), *flags]
        if self.bounds.finds_bound:
            norms = (0.0,) * len(BEYOND) if result.norms is None else result.norms
            numbers += [result.domain.radius, 0.0 if result.clipped is None else result.clipped, *norms]
            numbers += result.outliers or len(Outliers._fields) * (0.0,)
        units: tuple[Array, ...] = ()
        if self.bounds.finds_scale:
            assert result.domain.scale is not None
            numbers.append(result.trace if result.energy is None else result.energy)
            units = (result.domain.scale, _NOWHERE if result.factors is None else result.factors)
        gaps: tuple[Array, ...] = ()
        if self._divides:
            assert result.rates is not None
            energy = result.trace if result.energy is None else result.energy
            gaps = (np.array([result.noise_inflation, energy, *result.rates]),)
        return (result.subspace.basis, result.subspace.values, result.center, np.array(numbers), *units, *gaps)

    def decode_result(self, arrays: tuple[Array, ...]) -> FitResult:
        """The result that `encode_result` made these arrays from; a `ValueError` if they cannot be an answer."""
        wanted, dim = (6 if self.bounds.finds_scale else 4) + self._divides, self.bounds.dim
        require(len(arrays) == wanted, f"an answer has {wanted} arrays, got {len(arrays)}")
        # An answer comes from another party, so it is checked like a part.
        basis, values, center, numbers, *units = (require_array(array, array.shape) for array in arrays)
        gaps = units.pop() if self._divides else None
        require(
            gaps is None
            or (gaps.shape == (dim + 2,) and gaps[0] > 0 and bool(((gaps[2:] > 0) & (gaps[2:] <= 1)).all())),
            "an answer has a rate for each column",
        )
        require(not units or units[0].shape == (dim,), "an answer has one unit for each column")
        require(
            not units or len(units[1]) == 0 or (units[1].shape == (dim,) and bool((units[1] > 0).all())),
            "an answer has one positive factor for each column, or none",
        )
        require(basis.ndim == 2 and len(basis) == dim, f"directions must have {dim} coordinates, got {basis.shape}")
        expected = (
            7 + len(BEYOND) + len(Outliers._fields) if self.bounds.finds_bound else 6 if self.bounds.finds_scale else 5
        )
        require(center.shape == (dim,) and len(numbers) == expected, f"an answer has a center and {expected} numbers")
        trace, people, steps, tied, has_converged, *more = numbers.tolist()
        # A search for units replaces that for a bound, so the last numbers can only be of one of them.
        bound, energy = (more, None) if self.bounds.finds_bound else ([], more[0] if more else None)
        require(tied in (-1, 0, 1) and has_converged in (-1, 0, 1), "the numbers of an answer are malformed")
        agreed = not isinstance(self.center, np.ndarray) or np.array_equal(center, self.center)
        require(agreed, "the center of an answer is not the agreed one")
        require(
            steps in range(len(self.split.mean) + 1),
            "an answer must give the number of steps in which the mean was found",
        )
        require(not bound or self._can_be_bound(bound[0]), "no search can have found the bound of an answer")
        point = None if self.center is None else center
        where = Center(center=point, people=people, steps=int(steps), far=False)
        if bound:
            norms, last = tuple(bound[2 : 2 + len(BEYOND)]), bound[2 + len(BEYOND) :]
            outliers = Outliers.read(last)
            require(outliers is not None or not any(last), "the outliers of an answer are malformed")
            require(
                all(0 <= norm < math.inf for norm in norms), "the norms of an answer must be finite and not negative"
            )
            where = replace(where, bound=bound[0], clipped=bound[1], norms=norms, outliers=outliers)
        if units:
            where = replace(where, scale=units[0])
        flags = [None if flag < 0 else bool(flag) for flag in (tied, has_converged)]
        factors = units[1] if units and len(units[1]) else None
        noise_inflation = 1.0 if gaps is None else float(gaps[0])
        fit_result = self._made_of(
            Subspace(basis, values), trace, where, flags[0], flags[1], factors, noise_inflation=noise_inflation
        )
        if gaps is not None:
            return replace(fit_result, energy=float(gaps[1]), rates=gaps[2:])
        return replace(fit_result, energy=None if factors is None else energy)

    def estimate(self, state: FitState) -> Subspace | None:
        """The directions as far as they are known."""
        if state.stage != "components":
            return state.subspace
        return self._task("components", state.center).estimate(state.inner)

    def spread(self, state: FitState) -> float | None:
        """As in the stage's own task."""
        return state.spread

    def sampled(self, question: Question) -> bool:
        """Only the components: small totals cost little and need all sites."""
        return question.stage == "components"

    def after_dropout(self, state: FitState) -> FitState | None:
        """Start again if nothing was spent: rows that have left are in the center and in every product so far."""
        return self.start() if self.begins_again else None

    def extent(self) -> Extent:
        """The search for the mean in all its steps, the components, and totals."""
        shares, rounds, size = self.products
        return Extent.of(
            self.split,
            dim=self.bounds.dim,
            shares=shares,
            rounds=rounds,
            size=size,
            at_most=self.at_most,
            searched=counted_at_once(self.bounds.dim, find=self.bounds.finds_bound, units=self.bounds.finds_scale),
            observed=0 if self.bounds.gaps is None else self.bounds.gaps.entries,
        )

    def with_noise(self, multiplier: float) -> "Fit":
        """The same fit, with noise of this size."""
        return replace(self, multiplier=multiplier)

    def components_share(self, steps: int) -> float:
        """What the components may spend of the budget, when the mean was found in this many steps."""
        return min(self.split.main(steps), self.at_most)

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
            gram, noise_inflation = rates.integer_gram(gram, noise=self._noise(state.center) * math.sqrt(0.5))
            state = replace(state, energy=energy, noise_inflation=noise_inflation)
        state = replace(state, tied=self._ties(gram))
        if self.bounds.finds_scale and (self.bounds.claimed or math.isfinite(self.bounds.row_bound)):
            energy = float(np.trace(gram)) if state.energy is None else state.energy
            gram, factors = self._renormalised(gram, state.center)
            state = replace(state, factors=factors, energy=energy)
        # Without noise nothing was released, and the components say what scikit-learn's PCA keeps.
        released = gram if self.multiplier > 0 else None
        return replace(state, gram=released, subspace=self._subspace(gram), trace=float(np.trace(gram)), raw=None)

    def _subspace(self, gram: Array) -> Subspace:
        return Subspace.of_gram(gram, rank=self.rank if self.rank is not None else self.bounds.dim)

    def _ended(self, state: FitState) -> FitState:
        """The last state of a fit whose entries were counted after the components."""
        raw = state.raw
        assert raw is not None
        if state.people is not None:
            # Sites left before the totals: the rates are of those that stayed, and the matrix of all.
            state = replace(state, center=_of_people(state.center, state.people))
        return replace(self._of_gram(state, raw), stage="done", inner=None)

    def _rates(self, where: Center) -> Rates | None:
        """The rates of entries as far as they are known, None where nothing is divided."""
        return where.rates(self.bounds, multiplier=self.multiplier, share=self.split.for_observed)

    def _noise(self, where: Center) -> float:
        """The noise on a diagonal entry of a Gram matrix, for everything that the components may spend."""
        if self.multiplier == 0:
            # Rows may have no bound then, and the product of both would be no number.
            return 0.0
        share = self.components_share(where.steps)
        return self.multiplier * gram_sensitivity(self._domain(where).radius, self.neighbours) / math.sqrt(share)

    @property
    def _divides(self) -> bool:
        """Whether sums are divided by counts of entries."""
        return self.bounds.gaps is not None and self.bounds.gaps.divides

    def _renormalised(self, gram: Array, where: Center) -> tuple[Array, Array]:
        """The released matrix in units that make its variances one: found units are rougher than it is."""
        assert where.scale is not None
        assert where.people is not None
        return renormalised(gram, noise=self._noise(where), people=where.people, flat=are_flat(where.scale))

    def _ties(self, gram: Array) -> bool | None:
        """Whether the eigenvalues at the rank and after it tie, in a Gram matrix without noise."""
        # A fit that may begin again has no noise. With noise, a tie would only be chance.
        if not self.begins_again or self.rank is None:
            return None
        return self.rank < len(gram) and tie_at(top_eigen(gram, rank=self.rank + 1)[0], rank=self.rank)

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
        return self.components_share(int(question.arrays[1][0]))

    def _unwrap_question(self, question: Question) -> tuple[AnyTask, Question]:
        """The stage's own task and its question."""
        if question.stage == self._first:
            return self._task(self._first, None), Question(question.step, question.arrays)
        center, numbers = question.arrays[:2]
        stage: Stage = "components" if question.stage == "components" else "totals"
        bound = float(numbers[1]) if self.bounds.finds_bound else None
        scale = question.arrays[2] if self.bounds.finds_scale else None
        where = Center(
            center=center if len(center) else None,
            people=None,
            steps=int(numbers[0]),
            far=False,
            bound=bound,
            scale=scale,
        )
        return self._task(stage, where), Question(question.step, question.arrays[3 if self.bounds.finds_scale else 2 :])

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
        """The domain that clips rows for products, once everything about it is known."""
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

    def _search(self) -> CenterSearch | BoundSearch | ScaleSearch | ExactUnits:
        if self.bounds.finds_scale and not self.bounds.claimed:
            return ExactUnits(bounds=self.bounds, neighbours=self.neighbours, people=self.people, split=self.split)
        if self.bounds.finds_scale:
            return ScaleSearch(
                bounds=self.bounds,
                neighbours=self.neighbours,
                split=self.split,
                people=self.people,
                multiplier=self.multiplier,
            )
        if not self.bounds.finds_bound:
            return CenterSearch(
                bounds=self.bounds,
                neighbours=self.neighbours,
                shares=self.split.mean,
                count_share=self.split.count,
                people=self.people,
                multiplier=self.multiplier,
                observed_share=self.split.observed,
            )
        return BoundSearch(
            bounds=self.bounds,
            neighbours=self.neighbours,
            center=self.center,
            split=self.split,
            people=self.people,
            multiplier=self.multiplier,
            # With a fraction of the variance the rank is not known yet, and this is a guess for the bound alone.
            rank=min(self.bounds.dim, _RANK) if self.rank is None else self.rank,
            entry=self.entry,
        )

    @property
    def _first(self) -> Stage | None:
        """The stage of the search, None if nothing is searched for."""
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


def _of_people(where: Center, people: float) -> Center:
    """What is known, for another number of people with the same share of entries."""
    assert where.people is not None
    assert where.observed is not None
    return replace(where, people=people, observed=where.observed * (people / max(where.people, 1.0)))
