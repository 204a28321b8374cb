"""`SlotTask`: a task that is asked slot by slot, in any order; and what a site holds of its slots.

A hub folds the parts of a slot into its state whenever they come. Forgetting goes by the slot's name and not by its arrival: the
state has a reference slot p, and a slot s before or after p counts forget^(2 |s - p|) less or more. The order of arrival has
no effect (for sketches, up to what is truncated).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, TypeVar, final

import numpy as np

from eigenveil.core.domain import MissingPolicy
from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.core.rows import Block, Rows
from eigenveil.errors import require
from eigenveil.linalg import Array, Sketch, Subspace, merge_many
from eigenveil.tasks.base import Question, Task, require_array, require_step
from eigenveil.tasks.levels import Levels

__all__ = ["ClosedSlot", "OpenSlot", "SlotSketches", "SlotState", "SlotTask", "aged", "weighed"]

Part = TypeVar("Part")


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SlotState:
    """What a hub knows after some slots. All of it was released."""

    value: Any = None  # Of all slots, aged to slot `reference`. None before the first.
    reference: int = -1
    parts: float = 0.0  # How many sites' slots are in it, each weighted as it is aged.
    noise: float = 0.0  # How many releases with noise, in the same way.
    following: int = 0  # The next slot of a run in order.
    levels: Levels | None = None  # Of sums: aged as the value is, with variances as of one release.


def aged(state: SlotState, slot: int, forget: float) -> tuple[float, float, int]:
    """The factor of the state, the factor of a part of `slot`, and the new reference slot.

    >>> aged(SlotState(value=1.0, reference=4), 6, 0.5), aged(SlotState(value=1.0, reference=4), 3, 0.5)
    ((0.0625, 1.0, 6), (1.0, 0.25, 4))
    """
    # Nothing is there to age yet, so the first slot that arrives is the reference, whatever its number.
    if state.value is None:
        return 1.0, 1.0, slot
    # The reference only moves forward: no factor is above one, and sums of long streams do not overflow.
    if slot > state.reference:
        return forget ** (2 * (slot - state.reference)), 1.0, slot
    return 1.0, forget ** (2 * (state.reference - slot)), state.reference


def weighed(states: Sequence[SlotState], factors: Sequence[float], forget: float) -> tuple[list[tuple[SlotState, float]], int]:
    """The states that hold anything, each with its factor times its age, and the newest reference slot."""
    pairs = [(state, factor) for state, factor in zip(states, factors, strict=True) if state.value is not None]
    newest = max((state.reference for state, _ in pairs), default=-1)
    return [(state, factor * forget ** (2 * (newest - state.reference))) for state, factor in pairs], newest


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClosedSlot:
    """What a site keeps of a closed slot in place of its rows: private, and whatever its task makes of it.

    It has the public `size` of the slot, where the relation makes that public. It is passed to `Task.work` as rows are.
    """

    summary: Any
    dim: int
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.dim

    @property
    def sparse(self) -> bool:
        return False

    def blocks(self, size: int) -> NoReturn:
        raise ValueError("the rows of a closed slot are gone: only its sums are kept")

    def __repr__(self) -> str:
        # No numbers: this is raw data, and a log may print it.
        return f"ClosedSlot(dim={self.dim})"


class OpenSlot(ABC):
    """The slot that a site fills. Changes in place. It is raw data until it is released."""

    @abstractmethod
    def add(self, rows: Array) -> None:
        """Take a block of rows, (b, d). A `ValueError` changes nothing."""

    @abstractmethod
    def close(self) -> ClosedSlot:
        """What is kept of it. Nothing can be added afterwards."""


class SlotTask(Task[SlotState, Part, SlotState]):
    """A task over `slots` slots of every site's stream."""

    slots: int
    forget: float

    @abstractmethod
    def open(self) -> OpenSlot:
        """An empty slot, for a site to fill."""

    def sent(self, question: Question, closed: ClosedSlot, mechanism: Mechanism) -> tuple[Array, ...]:
        """What a site sends of a closed slot, released through `mechanism`. It may take the memory of what the slot kept."""
        arrays = self.arrays(self.work(question, closed, mechanism))
        # The hub makes the same check. Failing here keeps the reason at the site.
        self.part(question, arrays)
        return arrays

    @abstractmethod
    def fold(
        self, state: SlotState, slot: int, total: Part, mechanism: Mechanism, *, parts: int, noise: float, group: str
    ) -> SlotState:
        """The state with the `total` of `slot` over this many `parts`, released through `mechanism`.

        The total has the noise of `noise` releases. `group` names the sites in it, which no other fold of this slot has.
        """

    @abstractmethod
    def joined(self, states: Sequence[SlotState], factors: Sequence[float]) -> SlotState:
        """What some states of different slots know together, all of it aged to the newest, each counting `factors` times."""

    def start(self) -> SlotState:
        return SlotState()

    def ask(self, state: SlotState) -> Question:
        return Question(state.following)

    def require_question(self, question: Question) -> None:
        require_step(question, steps=self.slots, arrays=0)

    def result(self, state: SlotState) -> SlotState | None:
        return state if state.following >= self.slots else None

    def closed(self, question: Question, rows: Rows) -> ClosedSlot:
        """The slot as it is, or of plain rows that are all in it."""
        if isinstance(rows, ClosedSlot):
            return rows
        filled = self.open()
        for block in rows.blocks(4096):
            self.take(filled, block)
        return filled.close()

    @abstractmethod
    def take(self, filled: OpenSlot, block: Any) -> None:
        """Add a `Block`, which may be sparse and have weights."""


# A site folds its rows into its sketch when it holds this many times the width. Short slots are sketched in one piece.
_HELD: Final = 8
# The hub keeps this many times the width of a site, since all sites' directions meet there.
_AT_HUB: Final = 2
Sketches = tuple[Sketch, ...]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SlotSketches(SlotTask[Sketches]):
    """Sketches of rows of `dim` columns with at most `width` directions, around their mean if `center`, over `slots` slots.

    Sites may send fewer directions: sketches of unequal rank are merged as they are.

    >>> task = SlotSketches(dim=2, width=2, slots=1)
    >>> slot = task.open()
    >>> slot.add(np.diag([3.0, 1.0]))
    >>> task.closed(Question(0), slot.close()).summary.subspace.values.round(9).tolist()
    [3.0, 1.0]
    """

    dim: int
    width: int
    slots: int
    forget: float = 1.0
    center: bool = False
    # Which entries may be missing: incomplete rows are left out, or public values fill them. Sketches cannot be divided.
    gaps: MissingPolicy | None = None

    def __post_init__(self) -> None:
        require(1 <= self.width <= self.dim, f"width must lie in 1..{self.dim}, got {self.width}")
        require(self.slots >= 1, f"slots must be at least 1, got {self.slots}")
        require(0 < self.forget <= 1, f"forget must lie in (0, 1], got {self.forget}")
        require(self.gaps is None or not self.gaps.divides, "sketches cannot be divided by counts of entries")

    # What a site makes of a slot.

    def open(self) -> OpenSlot:
        return _OpenSketch(self)

    def take(self, filled: OpenSlot, block: Any) -> None:
        require(block.weights is None, "rows of a stream cannot have weights")
        filled.add(block.values.toarray() if block.sparse else np.asarray(block.values, dtype=np.float64))

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Sketches:
        """The sketch. Noise is refused: no bound is known on how far one person moves it."""
        require(mechanism.scale(1.0) == 0, "sketches cannot have noise: a private stream sends sums")
        sketch: Sketch = self.closed(question, rows).summary
        # The infinite sensitivity makes every mechanism with noise refuse it.
        mechanism.release(Bounded(sketch.subspace.values, np.inf), label=f"slot {question.step + 1}")
        return (sketch,)

    def combine(self, left: Sketches, right: Sketches) -> Sketches:
        """Side by side: they are truncated together, and once."""
        return left + right

    def condense(self, part: Sketches) -> Sketches:
        return (merge_many(part, rank=self.width, center=self.center),)

    def arrays(self, part: Sketches) -> tuple[Array, ...]:
        """For each: basis, (d, r), values, (r,), mean, (d,), and weight with energy, (2,)."""
        return tuple(
            array
            for sketch in part
            for array in (sketch.subspace.basis, sketch.subspace.values, sketch.mean, np.array([sketch.weight, sketch.energy]))
        )

    def part(self, question: Question, arrays: tuple[Array, ...]) -> Sketches:
        require(len(arrays) == 4, f"a part must be a basis, values, a mean and two numbers, got {len(arrays)} arrays")
        rank = int(np.shape(arrays[0])[1]) if np.ndim(arrays[0]) == 2 else 0
        # The sender chooses the rank, so this bound also limits what the hub's merge costs.
        require(rank <= self.width, f"a part must have at most {self.width} directions, got {rank}")
        basis, values = require_array(arrays[0], (self.dim, rank)), require_array(arrays[1], (rank,))
        weight, energy = map(float, require_array(arrays[3], (2,)))
        mean = require_array(arrays[2], (self.dim,))
        require(self.center or not mean.any(), "a part of a stream that is not centered must have a mean of zero")
        return (Sketch(subspace=Subspace(basis, values), mean=mean, weight=weight, energy=energy),)

    # What a hub makes of the slots.

    def advance(self, state: SlotState, total: Sketches, mechanism: Mechanism, *, stretch: float = 1.0) -> SlotState:
        slot = state.following
        return replace(self.fold(state, slot, total, mechanism, parts=len(total), noise=0.0, group=""), following=slot + 1)

    def fold(
        self, state: SlotState, slot: int, total: Sketches, mechanism: Mechanism, *, parts: int, noise: float, group: str
    ) -> SlotState:
        """The state with all sketches of this round, truncated once."""
        require(mechanism.scale(1.0) == 0, "sketches cannot have noise at the hub: a private stream sends sums")
        before, now, reference = aged(state, slot, self.forget)
        sketches = [sketch.faded(now) for sketch in total]
        if state.value is not None:
            sketches.insert(0, state.value.faded(before))
        merged = self._merged(sketches)
        return replace(state, value=merged, reference=reference, parts=before * state.parts + now * parts)

    def joined(self, states: Sequence[SlotState], factors: Sequence[float]) -> SlotState:
        pairs, newest = weighed(states, factors, self.forget)
        if not pairs:
            return self.start()
        merged = self._merged([state.value.faded(weight) for state, weight in pairs])
        return SlotState(value=merged, reference=newest, parts=sum(weight * state.parts for state, weight in pairs))

    def _merged(self, sketches: Sequence[Sketch]) -> Sketch:
        return merge_many(sketches, rank=min(self.dim, _AT_HUB * self.width), center=self.center)


@final
class _OpenSketch(OpenSlot):
    """The rows of a slot until they are many, and the sketch of those before them. Changes in place."""

    def __init__(self, task: SlotSketches) -> None:
        self._task, self._sketch = task, Sketch.empty(task.dim)
        self._held: list[Array] = []
        self._rows = self._waiting = 0

    def add(self, rows: Array) -> None:
        task = self._task
        require(
            getattr(rows, "ndim", 0) == 2 and rows.shape[1] == task.dim,
            f"rows of this stream must have {task.dim} columns, got {getattr(rows, 'shape', type(rows).__name__)}",
        )
        # A copy: the caller may reuse its block.
        block = np.array(rows, dtype=np.float64)
        if task.gaps is not None:
            # Infinity is no gap, so it is refused even in a row that is left out.
            require(not np.isinf(block).any(), "rows must be finite")
            values = task.gaps.values
            block = block[task.gaps.kept(Block(block))] if values is None else np.where(np.isnan(block), values, block)
        require(bool(np.isfinite(block).all()), "rows must be finite")
        self._held.append(block)
        self._rows, self._waiting = self._rows + len(block), self._waiting + len(block)
        if self._waiting >= _HELD * task.width:
            self._fold()

    def close(self) -> ClosedSlot:
        self._fold()
        return ClosedSlot(self._sketch, self._task.dim, self._rows)

    def _fold(self) -> None:
        # The empty block is for a slot without rows: numpy cannot concatenate an empty list.
        task, rows = self._task, np.concatenate([np.empty((0, self._task.dim)), *self._held])
        self._held, self._waiting = [], 0
        fresh = Sketch.of(rows, rank=task.width, center=task.center)
        both = [sketch for sketch in (self._sketch, fresh) if sketch.weight > 0]
        if both:
            # A first piece is kept as it is: a merge would cost a decomposition and find the same directions.
            self._sketch = both[0] if len(both) == 1 else merge_many(both, rank=task.width, center=task.center)
