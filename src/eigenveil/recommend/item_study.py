"""`ItemStudy`: a private recommender's fit as one task: how popular items are, where that is asked for, and then their space.

Written once, it is carried by whoever holds all histories, by sites around a hub, or under masks, as every `WholeFit` is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.estimators.whole_fit import Extent, WholeFit
from eigenveil.linalg import Array, Subspace
from eigenveil.privacy import Exact, Histories, Mechanism, Neighbours, Portion
from eigenveil.rows import Rows
from eigenveil.tasks import Question, SumTask, Totals

__all__ = ["FoundItems", "ItemState", "ItemStudy", "Items", "most_popular"]

Stage = Literal["degrees", "components", "done"]
Items = NDArray[np.int64]
AnySum = SumTask[Any, Any]
# Where all items are used: no list of them.
_ALL: Final = np.empty(0)


@final
@dataclass(frozen=True, slots=True, eq=False)
class FoundItems:
    """What was released: the directions, (c, p), in the space of the items `columns`, None for all of them, and the item degrees.

    `degrees`, one for each item that they were asked for, have noise of deviation `degrees_noise`; `noise` is that on an entry of
    the item-item matrix, for all that the components had to spend.
    """

    subspace: Subspace
    columns: Items | None
    degrees: Array | None
    degrees_noise: float
    noise: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class ItemState:
    """How far a fit has come. `inner` is the state of the stage's own task."""

    stage: Stage
    inner: Any
    degrees: Array | None = None
    columns: Items | None = None
    subspace: Subspace | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class ItemStudy(WholeFit[ItemState, Array, FoundItems]):
    """Histories of `dim` items, divided by sqrt(max(degree, least)); `components` makes the task that finds their directions.

    Of the budget, `degrees_share` goes to the item degrees: sum_u r_ui / sqrt(max(degree of u, least)), in which every user has
    one vote of length at most one. With `keep`, the directions are then those of the `keep` items of largest degree, which is
    post-processing; with `columns`, those of a public list, rising. `releases` are the components' shares, turns and numbers in
    one turn; `multiplier`, `grid` and `rounding` are those of a `Setting`. Proof: each stage's own task says what it is sensitive
    to, for whatever columns are asked for, and portions of mu^2 add up to one.
    """

    dim: int
    least: int
    neighbours: Neighbours
    components: Callable[[Histories], AnySum]
    rank: int
    releases: tuple[tuple[float, ...], int, int]
    multiplier: float
    grid: int = 0
    rounding: float = 0.0
    degrees_share: float = 0.0
    keep: int | None = None
    columns: Items | None = None
    begins_again: bool = False
    _made: dict[str, tuple[Items | None, AnySum]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        require(0 <= self.degrees_share < 1, f"degrees_share must lie in [0, 1), got {self.degrees_share}")
        require(self.keep is None or self.degrees_share > 0, "items are kept by their degrees, which must be released")
        require(self.keep is None or self.columns is None, "items are kept by a public list or by their degrees")

    def start(self) -> ItemState:
        """With the degrees, or where none are asked for, with the components."""
        begun = ItemState("degrees" if self.degrees_share > 0 else "components", None, columns=self.columns)
        return replace(begun, inner=self._task(begun.stage, begun.columns).start())

    def ask(self, state: ItemState) -> Question:
        """The stage's own question; for the components, after the items that were kept by their degrees."""
        inner = self._task(state.stage, state.columns).ask(state.inner)
        if state.stage == "degrees":
            return replace(inner, stage="degrees")
        kept = _ALL if self.keep is None or state.columns is None else state.columns.astype(np.float64)
        return Question(inner.step, (kept, *inner.arrays), state.stage)

    def require_question(self, question: Question) -> None:
        """One that belongs to a stage of this fit, for a list of items that it can have."""
        stages = (("degrees",) if self.degrees_share > 0 else ()) + ("components",)
        require(question.stage in stages, f"the fit has no stage {question.stage!r}")
        if question.stage == "components":
            require(len(question.arrays) >= 1, "the question must say which items were kept")
            kept = question.arrays[0]
            require(kept.shape == ((0,) if self.keep is None else (self.keep,)), "the question names too many items")
            whole = bool(((kept >= 0) & (kept < self.dim)).all()) and bool((kept == np.floor(kept)).all())
            require(whole and bool((np.diff(kept) > 0).all()), "items must be numbers of columns in rising order")
        task, inner = self._asked(question)
        task.require_question(inner)

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Array:
        """The part of the stage's own task, for the stage's portion of the budget."""
        task, inner = self._asked(question)
        return task.work(inner, rows, self._portion(question.stage, mechanism))

    def combine(self, left: Array, right: Array) -> Array:
        """The sum."""
        return np.add(left, right)

    def arrays(self, part: Array) -> tuple[Array, ...]:
        """The one array."""
        return (part,)

    def part(self, question: Question, arrays: tuple[Array, ...]) -> Array:
        """The one array, of the right shape; rounded where noise is added to a sum of others' parts."""
        task, inner = self._asked(question)
        part = task.part(inner, arrays)
        return part if self.grid == 0 else task.gridded(inner, part, parts=self.grid)

    def halved(self, question: Question) -> bool:
        """As the stage's own task says."""
        task, inner = self._asked(question)
        return task.halved(inner)

    def as_sum(self, question: Question) -> tuple[AnySum, Question, float]:
        """The stage's own task, with the stage's portion of the budget."""
        task, inner = self._asked(question)
        return task, inner, self._fraction(question.stage)

    def advance(self, state: ItemState, total: Array, mechanism: Mechanism, *, stretch: float = 1.0) -> ItemState:
        """The stage's own task moved on; when it has its result, the next stage."""
        task = self._task(state.stage, state.columns)
        through = self._portion(state.stage, mechanism)
        inner = task.advance(state.inner, total, through, stretch=stretch * (1 + self.rounding))
        result = task.result(inner)
        if result is None:
            return replace(state, inner=inner)
        if state.stage == "degrees":
            kept = self.columns if self.keep is None else most_popular(result.sum, self.keep)
            begun = self._task("components", kept).start()
            return replace(state, stage="components", inner=begun, degrees=result.sum, columns=kept)
        subspace = result if isinstance(result, Subspace) else Subspace.of_gram(result, rank=self.rank)
        return replace(state, stage="done", inner=None, subspace=subspace)

    def result(self, state: ItemState) -> FoundItems | None:
        """There after the last stage."""
        if state.stage != "done":
            return None
        assert state.subspace is not None
        domain, noise = self._histories(state.columns), 0.0
        degrees_noise = 0.0
        if self.multiplier > 0:
            noise = self.multiplier * domain.gram_sensitivity(self.neighbours) / np.sqrt(1 - self.degrees_share)
            if state.degrees is not None:
                degrees_noise = self.multiplier * domain.sum_sensitivity(self.neighbours) / np.sqrt(self.degrees_share)
        return FoundItems(state.subspace, state.columns, state.degrees, float(degrees_noise), float(noise))

    def answer(self, result: FoundItems) -> tuple[Array, ...]:
        """Directions and their values, degrees and the items that were kept: all that a device needs to recommend."""
        nothing = np.empty(0)
        degrees = nothing if result.degrees is None else result.degrees
        kept = nothing if result.columns is None else result.columns.astype(np.float64)
        return (result.subspace.basis, result.subspace.values, degrees, kept)

    def estimate(self, state: ItemState) -> Subspace | None:
        """The directions as far as they are known."""
        if state.stage != "components":
            return state.subspace
        found = self._task("components", state.columns).estimate(state.inner)
        return found if isinstance(found, Subspace) else None

    def sampled(self, question: Question) -> bool:
        """Never: every site's users count in every turn."""
        return False

    def without(self, state: ItemState) -> ItemState | None:
        """Anew, where nothing was spent: histories that have gone are in every product so far."""
        return self.start() if self.begins_again else None

    def extent(self) -> Extent:
        """The degrees and the components."""
        shares, turns, size = self.releases
        asked = self.degrees_share > 0
        each = [(1 - self.degrees_share) * share for share in shares] + ([self.degrees_share] if asked else [])
        return Extent(turns + asked, turns * size + asked * self.dim, max(size, asked * self.dim), min(each))

    def with_noise(self, multiplier: float) -> "ItemStudy":
        """The same fit, where the noise is known to be of this size."""
        return replace(self, multiplier=multiplier)

    def _portion(self, stage: str, mechanism: Mechanism) -> Mechanism:
        return mechanism if isinstance(mechanism, Exact) else Portion(mechanism, self._fraction(stage))

    def _fraction(self, stage: str) -> float:
        return self.degrees_share if stage == "degrees" else 1.0 - self.degrees_share

    def _asked(self, question: Question) -> tuple[AnySum, Question]:
        """The stage's own task, and what it is asked."""
        if question.stage == "degrees":
            return self._task("degrees", self.columns), Question(question.step, question.arrays)
        kept = self.columns if self.keep is None else question.arrays[0].astype(np.int64)
        return self._task("components", kept), Question(question.step, question.arrays[1:])

    def _histories(self, columns: Items | None) -> Histories:
        return Histories(self.dim if columns is None else len(columns), self.least, columns)

    def _task(self, stage: Stage | str, columns: Items | None) -> AnySum:
        """Made once for each list of items, because thousands of sites may ask for the same one."""
        made = self._made.get(stage)
        if made is None or not (made[0] is columns or np.array_equal(_listed(made[0]), _listed(columns))):
            domain = self._histories(columns)
            if stage == "degrees":
                task: AnySum = Totals(domain, self.neighbours, sum_weight=1.0, name="item degrees")
            else:
                task = self.components(domain)
            made = (columns, task)
            self._made[stage] = made
        return made[1]


def most_popular(degrees: Array, count: int) -> Items:
    """The numbers of the `count` items of largest released degree, in rising order; of equal ones the first.

    >>> most_popular(np.array([1.0, 5.0, 3.0, 5.0]), 2).tolist()
    [1, 3]
    """
    return np.sort(np.argsort(-degrees, kind="stable")[:count]).astype(np.int64)


def _listed(columns: Items | None) -> Items:
    return np.array([-1]) if columns is None else columns
