"""`ItemFit`: a private recommender's fit as one task. It finds item degrees, if requested, and then the item space.

Like every `FitTask` it is written once, and runs at a single curator, at sites around a hub, or under masks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require
from eigenveil.estimators.federated.parties import Parties, charged, seen_by_hub
from eigenveil.linalg import Array, Subspace, product_edge, symmetric_edge
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.methods.krylov import KeptProducts
from eigenveil.privacy.facts import NO_PRIVACY, GuaranteeFacts, OneHolder, User, UserHistories, items_released
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.privacy.histories import Histories
from eigenveil.tasks.base import Question, SumTask
from eigenveil.tasks.fit.gaps import Extent, PartialBudget
from eigenveil.tasks.fit.task import FitTask
from eigenveil.tasks.totals import Totals

__all__ = ["FoundItems", "ItemFit", "ItemState", "Items", "most_popular", "recommender_guarantee", "users_of"]

Stage = Literal["degrees", "components", "done"]

Items = NDArray[np.int64]

AnySum = SumTask[Any, Any]

# Stands for "all items" or "no weights" in a question.
_NONE: Final = np.empty(0)


class FoundItems(NamedTuple):
    """What was released."""

    subspace: Subspace  # Directions, (c, p).
    columns: Items | None  # The items in use, (c,), None for all.
    degrees: Array | None  # Of these items, (c,), and positive: see `ItemFit`.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ItemState:
    """The progress of a fit."""

    stage: Stage
    inner: Any  # The state of the stage's task.
    degrees: Array | None = None  # These and the weights belong to the items in use.
    columns: Items | None = None
    weights: Array | None = None
    subspace: Subspace | None = None


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ItemFit(FitTask[ItemState, Array, FoundItems]):
    """Finds the leading directions of histories of `dim` items, each divided by sqrt(max(degree, least)).

    States: degrees (only if `degrees_share` > 0) -> components -> done.

    Item degrees are sum_u r_ui / sqrt(max(degree of u, least)), so that every user's vote has norm at most one. They
    get `degrees_share` of the budget. Released degrees are raised to the size of their noise, below which they say
    nothing. Without noise they are raised to the smallest positive one.

    With `keep`, the directions are those of the `keep` items of largest degree, which is post-processing. With `columns`, they
    are those of a sorted public list. Rows are weighted (`Histories`) by the public `weights`, (dim,), or with `weigh` by one
    over the root of the released degrees. If `claimed` is false, no sensitivity is claimed, as in a fit without noise.

    `components` makes the task that finds the directions, and `releases` are its shares, its rounds and its numbers
    per round. `multiplier`, `grid` and `rounding` are those of a `Setting`.

    Proof: each stage's task states its own sensitivity, for any columns and weights. The stages' portions of mu^2 add
    up to one.
    """

    dim: int
    min_degree: int
    neighbours: Neighbours
    components: Callable[..., AnySum]
    rank: int
    releases: tuple[tuple[float, ...], int, int]
    multiplier: float
    grid: int = 0
    rounding: float = 0.0
    degrees_share: float = 0.0
    keep: int | None = None
    columns: Items | None = None
    weights: Array | None = None
    weigh: bool = False
    begins_again: bool = False
    claimed: bool = True
    _made: dict[str, tuple[tuple[Any, Any], AnySum]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        require(0 <= self.degrees_share < 1, f"degrees_share must lie in [0, 1), got {self.degrees_share}")
        require(self.keep is None or self.degrees_share > 0, "keep needs released degrees: degrees_share must be positive")
        require(self.keep is None or self.columns is None, "give keep or columns, not both")
        require(not self.weigh or self.degrees_share > 0, "weigh needs released degrees: degrees_share must be positive")
        require(not self.weigh or self.weights is None, "give weigh or weights, not both")

    def start(self) -> ItemState:
        """Start with the degrees, or with the components where no degrees are released."""
        if self.degrees_share > 0:
            return ItemState(stage="degrees", inner=self._degrees().start(), columns=self.columns)
        weights = self._public_weights(self.columns)
        begun = self._directions(self.columns, weights).start()
        return ItemState(stage="components", inner=begun, columns=self.columns, weights=weights)

    def ask(self, state: ItemState) -> Question:
        """The stage's question. For the components it begins with the items kept and their weights."""
        if state.stage == "degrees":
            return replace(self._degrees().ask(state.inner), stage="degrees")
        inner = self._directions(state.columns, state.weights).ask(state.inner)
        columns = _NONE if self.keep is None or state.columns is None else state.columns.astype(np.float64)
        weights = _NONE if not self.weigh or state.weights is None else state.weights
        return Question(inner.step, (columns, weights, *inner.arrays), state.stage)

    def require_question(self, question: Question) -> None:
        """Refuse a question that belongs to no stage of this fit, or whose list of items is impossible."""
        # Sites call this before they read a row: a hub may send any question.
        stages = (("degrees",) if self.degrees_share > 0 else ()) + ("components",)
        require(question.stage in stages, f"the fit has no stage {question.stage!r}")
        if question.stage == "components":
            require(len(question.arrays) >= 2, "the question must contain the items kept and their weights")
            columns, weights = question.arrays[:2]
            require(columns.shape == ((0,) if self.keep is None else (self.keep,)), "the question has the wrong number of items")
            # A question has only float64 arrays, so column numbers come as floats.
            whole = bool(((columns >= 0) & (columns < self.dim)).all()) and bool((columns == np.floor(columns)).all())
            require(whole and bool((np.diff(columns) > 0).all()), "items must be column numbers in increasing order")
            # `Histories` checks that they are positive.
            require(weights.shape == ((self._used,) if self.weigh else (0,)), "the question's weights do not match its items")
        task, inner = self._unwrap_question(question)
        task.require_question(inner)

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Array:
        """The part of the stage's task, for the stage's portion of the budget."""
        task, inner = self._unwrap_question(question)
        return task.work(inner, rows, self._portion(question.stage, mechanism))

    def combine(self, left: Array, right: Array) -> Array:
        """The sum."""
        return np.add(left, right)

    def arrays(self, part: Array) -> tuple[Array, ...]:
        """The one array."""
        return (part,)

    def part(self, question: Question, arrays: tuple[Array, ...]) -> Array:
        """The one array, of the right shape; rounded to the grid where noise is added to a sum of several sites' parts."""
        task, inner = self._unwrap_question(question)
        part = task.part(inner, arrays)
        # Otherwise lying sites could make the rounding of the sum depend on one person (docs/decisions/0008-parties.md).
        return part if self.grid == 0 else task.rounded_to_grid(inner, part, parts=self.grid)

    def has_symmetric_parts(self, question: Question) -> bool:
        """As for the stage's task."""
        task, inner = self._unwrap_question(question)
        return task.has_symmetric_parts(inner)

    def as_sum(self, question: Question) -> tuple[AnySum, Question, float]:
        """The stage's task, with the stage's portion of the budget."""
        task, inner = self._unwrap_question(question)
        return task, inner, self._fraction(question.stage)

    def advance(self, state: ItemState, total: Array, mechanism: Mechanism, *, stretch: float = 1.0) -> ItemState:
        """Advance the stage's task. When it has its result, go to the next stage."""
        task = self._degrees() if state.stage == "degrees" else self._directions(state.columns, state.weights)
        through = self._portion(state.stage, mechanism)
        # What rounding to the grid adds is part of the sensitivity.
        inner = task.advance(state.inner, total, through, stretch=stretch * (1 + self.rounding))
        result = task.result(inner)
        if result is None:
            return replace(state, inner=inner)
        if state.stage == "degrees":
            columns = self.columns if self.keep is None else most_popular(result.sum, self.keep)
            # The choice of items used the unraised degrees: raising them first would make ties of all small ones.
            degrees = self._positive(result.sum if self.keep is None else result.sum[columns])
            weights = 1.0 / np.sqrt(degrees) if self.weigh else self._public_weights(columns)
            begun = self._directions(columns, weights).start()
            return ItemState(stage="components", inner=begun, degrees=degrees, columns=columns, weights=weights)
        subspace = result if isinstance(result, Subspace) else Subspace.of_gram(result, rank=self.rank)
        return replace(state, stage="done", inner=None, subspace=subspace)

    def result(self, state: ItemState) -> FoundItems | None:
        """The result, after the last stage."""
        if state.stage != "done":
            return None
        assert state.subspace is not None
        return FoundItems(state.subspace, state.columns, state.degrees)

    def encode_result(self, result: FoundItems) -> tuple[Array, ...]:
        """Directions, their values, degrees and the items kept: all that a device needs to recommend."""
        degrees = _NONE if result.degrees is None else result.degrees
        columns = _NONE if result.columns is None else result.columns.astype(np.float64)
        return (result.subspace.basis, result.subspace.values, degrees, columns)

    def estimate(self, state: ItemState) -> Subspace | None:
        """The directions found so far."""
        if state.stage != "components":
            return state.subspace
        return self._directions(state.columns, state.weights).estimate(state.inner)

    def sampled(self, question: Question) -> bool:
        """Never: every site's users are in every round."""
        return False

    def after_dropout(self, state: ItemState) -> ItemState | None:
        """Restart where no budget was spent: every product so far contains the histories of sites that have left."""
        return self.start() if self.begins_again else None

    def extent(self) -> Extent:
        """The size of both stages, degrees and components."""
        shares, rounds, size = self.releases
        has_degrees = self.degrees_share > 0
        each = [(1 - self.degrees_share) * share for share in shares] + ([self.degrees_share] if has_degrees else [])
        return Extent(rounds + has_degrees, max(size, has_degrees * self.dim), min(each))

    def with_noise(self, multiplier: float) -> "ItemFit":
        """The same fit with noise of this size."""
        return replace(self, multiplier=multiplier)

    def noise_floor(self) -> float:
        """Squared values of the last fit that are below this cannot be told from noise, which exceeds it in one fit of a hundred.

        Products that are all kept stay well below the edge of the last one. Rows of its basis have a norm of at most `longest`.
        """
        task = self._made["components"][1]
        entry = self.multiplier / math.sqrt(1 - self.degrees_share)
        if isinstance(task, CovarianceSum):
            return entry * task.sensitivity(Question()) * symmetric_edge(self._used)
        if not isinstance(task, KeptProducts):
            return 0.0
        basis = np.zeros(task.begin.shape)
        basis[0, 0] = min(1.0, task.longest)
        entry *= task.sensitivity(Question(0, (basis,))) / math.sqrt(task.shares[-1])
        return entry * product_edge(self._used, len(basis.T))

    def _fraction(self, stage: str) -> float:
        return self.degrees_share if stage == "degrees" else 1.0 - self.degrees_share

    def _portion(self, stage: str, mechanism: Mechanism) -> Mechanism:
        return mechanism if isinstance(mechanism, Exact) else PartialBudget(mechanism, self._fraction(stage))

    def _unwrap_question(self, question: Question) -> tuple[AnySum, Question]:
        """The stage's task and its own question."""
        if question.stage == "degrees":
            return self._degrees(), Question(question.step, question.arrays)
        columns = self.columns if self.keep is None else question.arrays[0].astype(np.int64)
        weights = question.arrays[1] if self.weigh else self._public_weights(columns)
        return self._directions(columns, weights), Question(question.step, question.arrays[2:])

    @property
    def _used(self) -> int:
        """The number of items in use."""
        if self.keep is not None:
            return self.keep
        return self.dim if self.columns is None else len(self.columns)

    def _degrees(self) -> AnySum:
        if "degrees" not in self._made:
            count = self.dim if self.columns is None else len(self.columns)
            domain = Histories(dim=count, min_degree=self.min_degree, columns=self.columns, claimed=self.claimed)
            task = Totals(domain=domain, neighbours=self.neighbours, sum_weight=1.0, name="item degrees")
            self._made["degrees"] = ((_NONE, _NONE), task)
        return self._made["degrees"][1]

    def _directions(self, columns: Items | None, weights: Array | None) -> AnySum:
        """The components' task. It is cached for the last list of items, because thousands of sites may ask for the
        same one."""
        key = (_NONE if columns is None else columns, _NONE if weights is None else weights)
        made = self._made.get("components")
        if made is None or not all(
            left is right or np.array_equal(left, right) for left, right in zip(made[0], key, strict=True)
        ):
            domain = Histories(dim=self._used, min_degree=self.min_degree, columns=columns, weights=weights, claimed=self.claimed)
            made = (key, self.components(domain=domain))
            self._made["components"] = made
        return made[1]

    def _public_weights(self, columns: Items | None) -> Array | None:
        weights: Array | None = self.weights
        return weights if weights is None or columns is None else np.asarray(weights[columns])

    def _positive(self, degrees: Array) -> Array:
        """Released degrees, raised to the size of their noise. This is post-processing."""
        if self.multiplier == 0:
            return np.asarray(np.maximum(degrees, degrees[degrees > 0].min(initial=1.0)))
        # One item stands for all: up to rounding, the sensitivity does not depend on their number.
        noise = self.multiplier * Histories(dim=1, min_degree=self.min_degree).sum_sensitivity(self.neighbours)
        return np.asarray(np.maximum(degrees, noise / math.sqrt(self.degrees_share)))


def most_popular(degrees: Array, count: int) -> Items:
    """The column numbers of the `count` items of largest released degree, sorted. Ties go to the lower number.

    >>> most_popular(np.array([1.0, 5.0, 3.0, 5.0]), 2).tolist()
    [1, 3]
    """
    return np.sort(np.argsort(-degrees, kind="stable")[:count]).astype(np.int64)


def users_of(parties: Parties) -> float | None:
    """The number of users where it is public."""
    sizes = parties.request.fit.sizes
    return None if sizes is None else float(sum(sizes.values()))


def recommender_guarantee(parties: Parties, result: FoundItems, *, given_degrees: bool) -> Guarantee:
    """The guarantee of a finished fit, from its ledgers. `given_degrees`: the caller passed public item degrees."""
    spec, study = parties.request, parties.study
    assert isinstance(study, ItemFit)
    budget = spec.at_hub if spec.at_hub is not None else spec.at_sites
    if budget is None:
        return Guarantee.none(NO_PRIVACY["items"])
    alone = len(parties.names) == 1
    return GuaranteeFacts(
        budget=budget,
        protects=User(interaction=study.neighbours is Neighbours.INTERACTION),
        neighbours=study.neighbours,
        rows=UserHistories(
            min_degree=study.min_degree,
            listed=study.columns is not None,
            counted=study.neighbours.count_is_public,
            at_each=not alone,
            degrees_given=given_degrees,
        ),
        seen_by=OneHolder("a fit in rounds") if alone else seen_by_hub(parties),
        released=items_released(degrees=result.degrees is not None, n_kept=study.keep, parts=alone and spec.at_sites is not None),
        charges=charged(parties),
        reproducible=spec.seed is not None,
        people=users_of(parties),
    ).guarantee()
