"""`Fit`: a whole fit as one task, from its first release to its last: the mean, the components, and small totals.

It is written once and runs with all rows in one place, at sites around a hub, in a tree, or between peers. What each stage may
spend is fixed before the first round. `WholeFit` is what protocols must know of any such task before it begins.

Stages: "mean" (skipped if the center is given) -> "components" -> "totals" (skipped if none are needed) -> "done". A stage ends
when its own task has a result.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, TypeVar, final

import numpy as np

from eigenveil.data.rows import Rows
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, top_eigen
from eigenveil.privacy import Domain, Exact, Mechanism, Neighbours, Portion, gram_sensitivity
from eigenveil.tasks import Question, SumTask, Task, Totals, tie_at
from eigenveil.tasks.base import require_array
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.center import Center, CenterSearch
from eigenveil.tasks.fit.split import Extent, Split

__all__ = ["Fit", "FitResult", "FitState", "Setting", "WholeFit"]

Stage = Literal["mean", "components", "totals", "done"]
AnyTask = Task[Any, Any, Any]
# How a question says that there is no center: an array without coordinates.
_NOWHERE: Final = np.empty(0)
State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """What a fit must know of its protocol.

    The noise on totals over their sensitivity, at a share of one, is `multiplier`. Where a party adds noise to a sum of parts
    that others sent, there are at most `grid` parts. Rounding them adds the fraction `rounding` to the sensitivity.
    """

    multiplier: float
    grid: int
    rounding: float


class WholeFit(Task[State, Part, Result]):
    """A task whose rounds are everything that a fit releases. What each may spend is fixed before the first."""

    multiplier: float

    @abstractmethod
    def extent(self) -> Extent:
        """How much is released at most."""

    @abstractmethod
    def with_noise(self, multiplier: float) -> Self:
        """The same fit, with noise of this size."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class FitResult:
    """What a fit released: directions, total sum of squares, number of people, the center and the steps it took to find it.

    If `tied`, eigenvalues tie at the rank. If `at_rest`, more rounds would change little. Rows were clipped by `domain`. The size
    of the noise on a Gram matrix there, for everything the components may spend, is `scale`. The whole Gram matrix with its
    noise, (d, d), is `gram`, at whoever has it.
    """

    subspace: Subspace
    trace: float
    people: float
    center: Array
    steps: int
    domain: Domain
    scale: float
    tied: bool | None = None
    at_rest: bool | None = None
    gram: Array | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class FitState:
    """How far a fit has come. The state of the stage's own task is `inner`.

    The number of people in the components, where that is public, is `people`: sites may have left before the totals.
    """

    stage: Stage
    inner: Any
    center: Center
    subspace: Subspace | None = None
    trace: float | None = None
    tied: bool | None = None
    at_rest: bool | None = None
    spread: float | None = None
    people: float | None = None
    gram: Array | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fit(WholeFit[FitState, Any, FitResult]):
    """A fit of rows within `bounds` around `center`; `components` makes the task that finds the directions in a domain.

    What each stage may spend is `split`; the components take no more than `at_most`. Where it is public, `people` is the number
    of people and `sizes` that of each site. The noise on totals over their sensitivity, at a share of one, is `multiplier`. With
    `begins_again`, the fit starts again without sites that have left, as where nothing is spent. The shares of the components'
    releases, the most rounds they take, and the numbers in each are `products`.

    Where a party adds noise to a sum of parts that others sent, there are at most `grid` parts. They are rounded so that they add
    up exactly, which adds the fraction `rounding` to the sensitivity (`eigenveil.tasks.base.on_grid`).
    """

    bounds: RowBounds
    neighbours: Neighbours
    center: Array | Literal["private"] | None
    components: Callable[[Domain], AnyTask]
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
    _made: dict[str, tuple[Array | None, AnyTask]] = field(init=False, default_factory=dict)
    _good: list[Question] = field(init=False, default_factory=list)

    def start(self) -> FitState:
        """The search for the mean or, if a center is given, the components."""
        if isinstance(self.center, str):
            search = self._search()
            return FitState("mean", search.start(), search.start())
        known = Center(self.center, self.people, 0, far=False)
        return self._begun("components", FitState("components", None, known))

    def ask(self, state: FitState) -> Question:
        """The stage's own question, preceded by the center."""
        inner = self._task(state.stage, state.center.center).ask(state.inner)
        if state.stage == "mean":
            return replace(inner, stage="mean")
        # The center and its steps are in every question. From these alone a site computes its domain and its charge, so
        # it need not trust the hub's memory (docs/decisions/0008).
        center = _NOWHERE if state.center.center is None else state.center.center
        return Question(inner.step, (center, np.array([float(state.center.steps)]), *inner.arrays), state.stage)

    def require_question(self, question: Question) -> None:
        """A question of a stage of this fit, around an acceptable center."""
        if self._good and self._good[0] is question:
            # Thousands of sites in one process share one question object: check it once.
            return
        searched = isinstance(self.center, str)
        require(
            question.stage in (("mean",) if searched else ()) + ("components", "totals"),
            f"the fit has no stage {question.stage!r}",
        )
        if question.stage != "mean":
            require(len(question.arrays) >= 2, "the question must give the center and the steps it took")
            given, steps = question.arrays[:2]
            expected = _NOWHERE if self.center is None or searched else self.center
            require(
                given.shape == (self.bounds.dim,) if searched else np.array_equal(given, expected),
                "the center is not the agreed one",
            )
            # An honest hub never asks for a center out there: `center_from` moves it back into the box.
            low, high = self.bounds.low, self.bounds.high
            require(
                not searched or low is None or high is None or bool(((given >= low) & (given <= high)).all()),
                "the center lies outside the column bounds",
            )
            require(
                # The steps decide what the components may spend, so a site accepts only numbers that a search can take.
                steps.shape == (1,) and float(steps[0]) in range(int(searched), len(self.split.mean) + 1),
                "the question must give the number of steps in which the mean was found",
            )
        task, inner = self._asked(question)
        task.require_question(inner)
        self._good[:] = [question]

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Any:
        """The part of the stage's own task, for the stage's portion of the budget."""
        task, inner = self._asked(question)
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
        task, inner = self._asked(question)
        part = task.part(inner, arrays)
        # Before any addition. Two lying sites could otherwise raise a sum and lower it again, so that rounding shows
        # one person's presence (docs/decisions/0008).
        return part if self.grid == 0 else task.gridded(inner, part, parts=self.grid)

    def counted(self, state: FitState, sites: tuple[str, ...]) -> FitState:
        """The number of people at these sites, where that is public."""
        if self.sizes is None or self.people is None:
            return state
        # Rounded once, so the order in which sites answered has no effect.
        people = math.fsum(self.sizes[site] for site in sites)
        inner = replace(state.inner, people=people) if state.stage == "mean" else state.inner
        return replace(state, inner=inner, center=replace(state.center, people=people))

    def halved(self, question: Question) -> bool:
        """As in the stage's own task."""
        task, inner = self._asked(question)
        return task.halved(inner)

    def as_sum(self, question: Question) -> tuple[SumTask[Any, Any], Question, float]:
        """The stage's own task, with the stage's portion of the budget."""
        task, inner = self._asked(question)
        summed, asked, fraction = task.as_sum(inner)
        return summed, asked, fraction * self._fraction(question)

    def advance(self, state: FitState, total: Any, mechanism: Mechanism, *, stretch: float = 1.0) -> FitState:
        """The stage's own task advances; once it has a result, the next stage begins."""
        task = self._task(state.stage, state.center.center)
        through = self._portion(self.ask(state), mechanism)
        # Rounding parts onto the grid may move neighbours a little further apart, and the noise must cover that too.
        inner = task.advance(state.inner, total, through, stretch=stretch * (1 + self.rounding))
        # Freed now: it is no longer needed, and as large as what comes next.
        del total
        result = task.result(inner)
        state = replace(state, spread=task.spread(inner))
        if result is None:
            return replace(state, inner=inner, center=inner if state.stage == "mean" else state.center)
        match state.stage:
            case "mean":
                return self._begun("components", replace(state, center=result))
            case "components":
                state = replace(state, tied=task.tied(inner), at_rest=task.at_rest(inner))
                return self._after_components(state, result)
            case _:
                people = state.center.people if result.count is None else result.count
                trace = state.trace if result.trace is None else result.trace
                if state.people is not None and people is not None and people != state.people:
                    # Sites left before the totals: scale the trace per person to the people in the components.
                    trace = None if trace is None or people == 0 else trace * state.people / people
                    people = state.people
                return replace(
                    state, stage="done", inner=None, center=replace(state.center, people=people), trace=trace
                )

    def result(self, state: FitState) -> FitResult | None:
        """The result, after the last stage."""
        if state.stage != "done":
            return None
        assert state.subspace is not None
        # Without a released trace, the values of the directions found are all we know of it.
        trace = float(np.square(state.subspace.values).sum()) if state.trace is None else state.trace
        found = self._made_of(state.subspace, trace, state.center, state.tied, state.at_rest)
        return found if state.gram is None else replace(found, gram=state.gram)

    def _made_of(
        self, subspace: Subspace, trace: float, where: Center, tied: bool | None, at_rest: bool | None
    ) -> FitResult:
        assert where.people is not None
        domain = self.bounds.around(where.center)
        scale = 0.0
        if self.multiplier > 0:
            spent = self.components_share(where.steps)
            scale = self.multiplier * gram_sensitivity(domain.radius, self.neighbours) / math.sqrt(spent)
        center = np.zeros(domain.dim) if where.center is None else where.center
        return FitResult(subspace, trace, where.people, center, where.steps, domain, scale, tied, at_rest)

    def answer(self, result: FitResult) -> tuple[Array, ...]:
        """Directions, their values, the center, and five numbers."""
        # Only arrays of float64 are sent, so an unknown word travels as -1.
        words = [-1.0 if word is None else float(word) for word in (result.tied, result.at_rest)]
        numbers = np.array([result.trace, result.people, float(result.steps), *words])
        return (result.subspace.basis, result.subspace.values, result.center, numbers)

    def found(self, arrays: tuple[Array, ...]) -> FitResult:
        """The result that `answer` made these arrays from; a `ValueError` if they cannot be an answer."""
        require(len(arrays) == 4, f"an answer has 4 arrays, got {len(arrays)}")
        # An answer comes from another party, so it is checked like a part.
        basis, values, center, numbers = (require_array(array, array.shape) for array in arrays)
        dim = self.bounds.dim
        require(basis.ndim == 2 and len(basis) == dim, f"directions must have {dim} coordinates, got {basis.shape}")
        require(center.shape == (dim,) and numbers.shape == (5,), "an answer has a center and five numbers")
        trace, people, steps, tied, at_rest = numbers.tolist()
        require(tied in (-1, 0, 1) and at_rest in (-1, 0, 1), "the numbers of an answer are malformed")
        agreed = not isinstance(self.center, np.ndarray) or np.array_equal(center, self.center)
        require(agreed, "the center of an answer is not the agreed one")
        require(
            steps in range(len(self.split.mean) + 1),
            "an answer must give the number of steps in which the mean was found",
        )
        point = None if self.center is None else center
        return self._made_of(
            Subspace(basis, values),
            trace,
            Center(point, people, int(steps), far=False),
            *(None if word < 0 else bool(word) for word in (tied, at_rest)),
        )

    def estimate(self, state: FitState) -> Subspace | None:
        """The directions as far as they are known."""
        if state.stage != "components":
            return state.subspace
        return self._task("components", state.center.center).estimate(state.inner)

    def spread(self, state: FitState) -> float | None:
        """As in the stage's own task."""
        return state.spread

    def sampled(self, question: Question) -> bool:
        """Only the components: small totals cost little and need all sites."""
        return question.stage == "components"

    def without(self, state: FitState) -> FitState | None:
        """Start again if nothing was spent: rows that have left are in the center and in every product so far."""
        return self.start() if self.begins_again else None

    def extent(self) -> Extent:
        """The search for the mean in all its steps, the components, and totals."""
        shares, rounds, size = self.products
        return Extent.of(self.split, dim=self.bounds.dim, shares=shares, rounds=rounds, size=size, at_most=self.at_most)

    def with_noise(self, multiplier: float) -> "Fit":
        """The same fit, with noise of this size."""
        return replace(self, multiplier=multiplier)

    def components_share(self, steps: int) -> float:
        """What the components may spend of the budget, when the mean was found in this many steps."""
        return min(self.split.main(steps), self.at_most)

    def _after_components(self, state: FitState, result: Subspace | Array) -> FitState:
        trace = state.trace
        if isinstance(result, Subspace):
            subspace = result
        else:
            # Only rows that are not clipped can fail this: a clipped row has a norm of at most 1e100.
            require(bool(np.isfinite(result).all()), "X has numbers too large to square; scale it down first")
            # Without noise nothing was released, and the components say what scikit-learn's PCA keeps.
            state = replace(state, tied=self._ties(result), gram=result if self.multiplier > 0 else None)
            subspace = Subspace.of_gram(result, rank=self.rank if self.rank is not None else self.bounds.dim)
            trace = float(np.trace(result))
        # Kept from here on, because a site may leave between the components and the totals.
        people = state.center.people if self.sizes is not None else None
        done = replace(state, stage="done", inner=None, subspace=subspace, trace=trace, people=people)
        return self._begun("totals", done) if self.needs_trace or not self._counted() else done

    def _ties(self, gram: Array) -> bool | None:
        """Whether the eigenvalues at the rank and after it tie, in a Gram matrix without noise."""
        # A fit that may begin again has no noise. With noise, a tie would only be chance.
        if not self.begins_again or self.rank is None:
            return None
        return self.rank < len(gram) and tie_at(top_eigen(gram, rank=self.rank + 1)[0], rank=self.rank)

    def _begun(self, stage: Stage, state: FitState) -> FitState:
        return replace(state, stage=stage, inner=self._task(stage, state.center.center).start())

    def _counted(self) -> bool:
        """Whether the number of people is known before the components."""
        return self.people is not None or isinstance(self.center, str)

    def _portion(self, question: Question, mechanism: Mechanism) -> Mechanism:
        """The mechanism, limited to what this stage may spend."""
        if question.stage == "mean" or isinstance(mechanism, Exact):
            return mechanism
        return Portion(mechanism, self._fraction(question))

    def _fraction(self, question: Question) -> float:
        """This stage's fraction of mu^2: the search has shares of the whole, and the components get what it does not use."""
        if question.stage == "mean":
            return 1.0
        if question.stage == "totals":
            return self.split.extra
        return self.components_share(int(question.arrays[1][0]))

    def _asked(self, question: Question) -> tuple[AnyTask, Question]:
        """The stage's own task and its question."""
        if question.stage == "mean":
            return self._task("mean", None), Question(question.step, question.arrays)
        center = question.arrays[0]
        stage: Stage = "components" if question.stage == "components" else "totals"
        task = self._task(stage, center if len(center) else None)
        return task, Question(question.step, question.arrays[2:])

    def _task(self, stage: Stage, center: Array | None) -> AnyTask:
        """The stage's own task, made once for each center, because thousands of sites may need the same one."""
        made = self._made.get(stage)
        # By identity: an equal center in another array only costs one more task. The search needs no center.
        if made is None or (made[0] is not center and stage != "mean"):
            made = (center, self._make(stage, center))
            self._made[stage] = made
        return made[1]

    def _make(self, stage: Stage, center: Array | None) -> AnyTask:
        if stage == "mean":
            return self._search()
        domain = self.bounds.around(center)
        if stage == "components":
            return self.components(domain)
        count = not self._counted()
        name = " and ".join(["count"] * count + ["trace"] * self.needs_trace)
        return Totals(
            domain, self.neighbours, count_weight=float(count), trace_weight=float(self.needs_trace), name=name
        )

    def _search(self) -> CenterSearch:
        return CenterSearch(
            self.bounds, self.neighbours, self.split.mean, self.split.count, self.people, self.multiplier
        )

    @property
    def directions(self) -> AnyTask:
        """The components' own task, as last made: how it combines parts does not depend on the domain."""
        return self._made["components"][1]
