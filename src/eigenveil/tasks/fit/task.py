"""`WholeFit`: a fit from its first release to its last as one task, and what carriers must know of it before it begins. `Fit`:
the one that finds components. The mean, the components, and the small totals beside them, round by round.

Written once, it is carried by a curator who holds all rows, by sites around a hub, in a tree, or by peers. What each stage may
spend is fixed before the first round.
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
# Where rows stay where they are: a center without coordinates.
_NOWHERE: Final = np.empty(0)
State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """What a fit must know of who carries it: the noise on totals over their sensitivity, at a share of one (`multiplier`), and
    where noise is added to a sum of parts that others sent, on how many of them at most it is (`grid`) and what rounding them
    costs of the sensitivity (`rounding`)."""

    multiplier: float
    grid: int
    rounding: float


class WholeFit(Task[State, Part, Result]):
    """A task whose rounds are all that a fit releases. What each may spend is fixed before the first."""

    multiplier: float

    @abstractmethod
    def extent(self) -> Extent:
        """How much is released at most."""

    @abstractmethod
    def with_noise(self, multiplier: float) -> Self:
        """The same fit, where the noise is known to be of this size."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class FitResult:
    """What a study released: directions, total sum of squares, number of people, the center and the steps it took to find it.

    `tied` says that other directions have an equal claim, `at_rest` that more rounds would change little. `domain` is where rows
    were brought to, and `scale` the size of the noise on a Gram matrix there, for all that the components were given to spend.
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


@final
@dataclass(frozen=True, slots=True, eq=False)
class FitState:
    """How far a study has come. `inner` is the state of the stage's own task, and `people` how many the components are of, where
    that is public: sites may be gone when totals are asked for."""

    stage: Stage
    inner: Any
    center: Center
    subspace: Subspace | None = None
    trace: float | None = None
    tied: bool | None = None
    at_rest: bool | None = None
    spread: float | None = None
    people: float | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fit(WholeFit[FitState, Any, FitResult]):
    """Rows within `bounds`, moved to `center`; `components` makes the task that finds the directions in a domain.

    `split` says what each stage may spend; the components take no more than `at_most`. `people` is the number of people where
    that is public, and `sizes` that of each site. `multiplier` is the noise on totals over their sensitivity, at a share of one,
    and `begins_again` says that sites that have gone can be left out by starting anew, as where nothing is spent. `products` are
    the shares of the components' releases, in how many rounds they are at most, and how many numbers each has.

    Where noise is added to a sum of parts that others sent, `grid` is how many they are at most: they are rounded so that they
    add up exactly, which costs `rounding` of the sensitivity (`eigenveil.tasks.base.on_grid`).
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
        """With the search for the mean, or where it is given, with the components."""
        if isinstance(self.center, str):
            search = self._search()
            return FitState("mean", search.start(), search.start())
        known = Center(self.center, self.people, 0, far=False)
        return self._begun("components", FitState("components", None, known))

    def ask(self, state: FitState) -> Question:
        """The stage's own question, with the center before it."""
        inner = self._task(state.stage, state.center.center).ask(state.inner)
        if state.stage == "mean":
            return replace(inner, stage="mean")
        center = _NOWHERE if state.center.center is None else state.center.center
        return Question(inner.step, (center, np.array([float(state.center.steps)]), *inner.arrays), state.stage)

    def require_question(self, question: Question) -> None:
        """One that belongs to a stage of this study, around a center of the right kind."""
        if self._good and self._good[0] is question:
            # Thousands of sites in one process are asked by one and the same object.
            return
        searched = isinstance(self.center, str)
        require(
            question.stage in (("mean",) if searched else ()) + ("components", "totals"),
            f"the study has no stage {question.stage!r}",
        )
        if question.stage != "mean":
            require(len(question.arrays) >= 2, "the question must name the center and how it was found")
            given, steps = question.arrays[:2]
            expected = _NOWHERE if self.center is None or searched else self.center
            require(
                given.shape == (self.bounds.dim,) if searched else np.array_equal(given, expected),
                "the center is not the one that was agreed on",
            )
            low, high = self.bounds.low, self.bounds.high
            require(
                not searched or low is None or high is None or bool(((given >= low) & (given <= high)).all()),
                "the center lies outside of the column bounds",
            )
            require(
                steps.shape == (1,) and float(steps[0]) in range(int(searched), len(self.split.mean) + 1),
                "the question must say in how many steps the mean was found",
            )
        task, inner = self._asked(question)
        task.require_question(inner)
        self._good[:] = [question]

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Any:
        """The part of the stage's own task, for the stage's portion of the budget."""
        task, inner = self._asked(question)
        return task.work(inner, rows, self._portion(question, mechanism))

    def combine(self, left: Any, right: Any) -> Any:
        """As the stage's own task does; all tasks of a study but the components' add arrays."""
        if isinstance(left, np.ndarray):
            return np.add(left, right)
        return self.directions.combine(left, right)

    def condense(self, part: Any) -> Any:
        """As the stage's own task does."""
        return part if isinstance(part, np.ndarray) else self.directions.condense(part)

    def weighted(self, part: Any, weight: float) -> Any:
        """As the stage's own task does."""
        return np.multiply(part, weight) if isinstance(part, np.ndarray) else self.directions.weighted(part, weight)

    def arrays(self, part: Any) -> tuple[Array, ...]:
        """As the stage's own task does."""
        return (part,) if isinstance(part, np.ndarray) else self.directions.arrays(part)

    def part(self, question: Question, arrays: tuple[Array, ...]) -> Any:
        """As the stage's own task does."""
        task, inner = self._asked(question)
        part = task.part(inner, arrays)
        return part if self.grid == 0 else task.gridded(inner, part, parts=self.grid)

    def counted(self, state: FitState, sites: tuple[str, ...]) -> FitState:
        """The number of people at these sites, where that is public."""
        if self.sizes is None or self.people is None:
            return state
        people = math.fsum(self.sizes[site] for site in sites)
        inner = replace(state.inner, people=people) if state.stage == "mean" else state.inner
        return replace(state, inner=inner, center=replace(state.center, people=people))

    def halved(self, question: Question) -> bool:
        """As the stage's own task says."""
        task, inner = self._asked(question)
        return task.halved(inner)

    def as_sum(self, question: Question) -> tuple[SumTask[Any, Any], Question, float]:
        """The stage's own task, with the stage's portion of the budget."""
        task, inner = self._asked(question)
        summed, asked, fraction = task.as_sum(inner)
        return summed, asked, fraction * self._fraction(question)

    def advance(self, state: FitState, total: Any, mechanism: Mechanism, *, stretch: float = 1.0) -> FitState:
        """The stage's own task moved on; when it has its result, the next stage."""
        task = self._task(state.stage, state.center.center)
        through = self._portion(self.ask(state), mechanism)
        inner = task.advance(state.inner, total, through, stretch=stretch * (1 + self.rounding))
        # Of no use any more, and as large as what is needed next.
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
                    # The components are of more people than the trace, whose share for each is taken for all of them.
                    trace = None if trace is None or people == 0 else trace * state.people / people
                    people = state.people
                return replace(
                    state, stage="done", inner=None, center=replace(state.center, people=people), trace=trace
                )

    def result(self, state: FitState) -> FitResult | None:
        """There after the last stage."""
        if state.stage != "done":
            return None
        assert state.subspace is not None
        # Where no total was asked for, the directions found are all that is known of it.
        trace = float(np.square(state.subspace.values).sum()) if state.trace is None else state.trace
        return self._made_of(state.subspace, trace, state.center, state.tied, state.at_rest)

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
        """Directions, their values, the center, and the numbers beside them."""
        words = [-1.0 if word is None else float(word) for word in (result.tied, result.at_rest)]
        numbers = np.array([result.trace, result.people, float(result.steps), *words])
        return (result.subspace.basis, result.subspace.values, result.center, numbers)

    def found(self, arrays: tuple[Array, ...]) -> FitResult:
        """The result whose `answer` these are; a `ValueError` if they are nobody's."""
        require(len(arrays) == 4, f"an answer has 4 arrays, got {len(arrays)}")
        basis, values, center, numbers = (require_array(array, array.shape) for array in arrays)
        dim = self.bounds.dim
        require(basis.ndim == 2 and len(basis) == dim, f"directions must have {dim} coordinates, got {basis.shape}")
        require(center.shape == (dim,) and numbers.shape == (5,), "an answer has a center and five numbers")
        trace, people, steps, tied, at_rest = numbers.tolist()
        require(tied in (-1, 0, 1) and at_rest in (-1, 0, 1), "the numbers of an answer are not its own")
        agreed = not isinstance(self.center, np.ndarray) or np.array_equal(center, self.center)
        require(agreed, "the center of an answer is not the one that was agreed on")
        require(steps in range(len(self.split.mean) + 1), "an answer must say in how many steps the mean was found")
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
        """As the stage's own task says."""
        return state.spread

    def sampled(self, question: Question) -> bool:
        """The components alone: small totals take little and are for everybody."""
        return question.stage == "components"

    def without(self, state: FitState) -> FitState | None:
        """Anew, where nothing was spent: rows that have gone are in the center and in every product so far."""
        return self.start() if self.begins_again else None

    def extent(self) -> Extent:
        """The search for the mean in all its steps, the components, and totals."""
        shares, rounds, size = self.products
        return Extent.of(self.split, dim=self.bounds.dim, shares=shares, rounds=rounds, size=size, at_most=self.at_most)

    def with_noise(self, multiplier: float) -> "Fit":
        """The same study, where the noise is known to be of this size."""
        return replace(self, multiplier=multiplier)

    def components_share(self, steps: int) -> float:
        """What the components may spend of the budget, when the mean was found in this many steps."""
        return min(self.split.main(steps), self.at_most)

    def _after_components(self, state: FitState, result: Subspace | Array) -> FitState:
        trace = state.trace
        if isinstance(result, Subspace):
            subspace = result
        else:
            require(
                bool(np.isfinite(result).all()), "X holds numbers too large to square; divide it by something first"
            )
            state = replace(state, tied=self._ties(result))
            subspace = Subspace.of_gram(result, rank=self.rank if self.rank is not None else self.bounds.dim)
            trace = float(np.trace(result))
        people = state.center.people if self.sizes is not None else None
        done = replace(state, stage="done", inner=None, subspace=subspace, trace=trace, people=people)
        return self._begun("totals", done) if self.needs_trace or not self._counted() else done

    def _ties(self, gram: Array) -> bool | None:
        """Whether the last direction asked for and the next are equal, in a Gram matrix without noise."""
        if not self.begins_again or self.rank is None:
            return None
        return self.rank < len(gram) and tie_at(top_eigen(gram, rank=self.rank + 1)[0], rank=self.rank)

    def _begun(self, stage: Stage, state: FitState) -> FitState:
        return replace(state, stage=stage, inner=self._task(stage, state.center.center).start())

    def _counted(self) -> bool:
        """Whether the number of people is known before the components are."""
        return self.people is not None or isinstance(self.center, str)

    def _portion(self, question: Question, mechanism: Mechanism) -> Mechanism:
        """What this stage may spend, through a mechanism."""
        if question.stage == "mean" or isinstance(mechanism, Exact):
            return mechanism
        return Portion(mechanism, self._fraction(question))

    def _fraction(self, question: Question) -> float:
        """What this stage may spend: the search has shares of the whole, and what it does not use goes to the components."""
        if question.stage == "mean":
            return 1.0
        if question.stage == "totals":
            return self.split.extra
        return self.components_share(int(question.arrays[1][0]))

    def _asked(self, question: Question) -> tuple[AnyTask, Question]:
        """The stage's own task, and what it is asked."""
        if question.stage == "mean":
            return self._task("mean", None), Question(question.step, question.arrays)
        center = question.arrays[0]
        stage: Stage = "components" if question.stage == "components" else "totals"
        task = self._task(stage, center if len(center) else None)
        return task, Question(question.step, question.arrays[2:])

    def _task(self, stage: Stage, center: Array | None) -> AnyTask:
        """Made once for each center, because thousands of sites may ask for the same one."""
        made = self._made.get(stage)
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
        """The components' own task, as it was made last: for what it does with parts, whatever the domain."""
        return self._made["components"][1]
