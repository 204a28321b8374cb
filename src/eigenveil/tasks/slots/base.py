"""`SlotTask`: a task that is asked slot by slot, in any order; and what a site holds of its slots.

A hub folds the parts of a slot into its state whenever they come. Forgetting goes by the slot's name and not by its arrival: the
state has a reference slot p, and a slot s before or after p counts forget^(2 |s - p|) less or more. So the order of arrival has
no effect (for sketches, up to what is truncated).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, final

from eigenveil.core.mechanism import Mechanism
from eigenveil.core.rows import Rows
from eigenveil.linalg import Array
from eigenveil.tasks.base import Question, Task, require_step
from eigenveil.tasks.levels import Levels

__all__ = ["ClosedSlot", "OpenSlot", "SlotState", "SlotTask", "aged", "weighed"]

Part = TypeVar("Part")


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SlotState:
    """What a hub knows after some slots: their `value`, aged to slot `reference`. None before the first.

    `parts` is how many sites' slots are in it, and `noise` how many releases with noise, each weighted as it is aged. The next
    slot of a run in order is `following`. All of it was released. Sums have the `levels` of slots, aged as the value is, with
    variances as of one release.
    """

    value: Any = None
    reference: int = -1
    parts: float = 0.0
    noise: float = 0.0
    following: int = 0
    levels: Levels | None = None


def aged(state: SlotState, slot: int, forget: float) -> tuple[float, float, int]:
    """The factor of the state, that of a part of `slot`, and the new reference slot.

    >>> aged(SlotState(value=1.0, reference=4), 6, 0.5), aged(SlotState(value=1.0, reference=4), 3, 0.5)
    ((0.0625, 1.0, 6), (1.0, 0.25, 4))
    """
    # Nothing is there to age yet, so the first slot that arrives is the reference, whatever its number.
    if state.value is None:
        return 1.0, 1.0, slot
    # The reference only moves forward. So no factor is above one, and sums of long streams do not overflow.
    if slot > state.reference:
        return forget ** (2 * (slot - state.reference)), 1.0, slot
    return 1.0, forget ** (2 * (state.reference - slot)), state.reference


def weighed(
    states: Sequence[SlotState], factors: Sequence[float], forget: float
) -> tuple[list[tuple[SlotState, float]], int]:
    """The states that hold anything, each with its factor times its age, and the newest reference slot."""
    known = [(state, factor) for state, factor in zip(states, factors, strict=True) if state.value is not None]
    newest = max((state.reference for state, _ in known), default=-1)
    return [(state, factor * forget ** (2 * (newest - state.reference))) for state, factor in known], newest


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClosedSlot:
    """What a site keeps of a closed slot in place of its rows: private, and whatever its task makes of it.

    It has the public `size` of the slot, where the relation makes that public. It is passed to `Task.work` as rows are.
    """

    kept: Any
    dim: int
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """The size of the slot, and the number of columns."""
        return self.size, self.dim

    @property
    def sparse(self) -> bool:
        """Never."""
        return False

    def blocks(self, size: int) -> NoReturn:
        """Always a `ValueError`: the rows are gone."""
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
        """Nothing is known yet."""
        return SlotState()

    def ask(self, state: SlotState) -> Question:
        """For the next slot, in a run in order."""
        return Question(state.following)

    def require_question(self, question: Question) -> None:
        """Any slot, without arrays."""
        require_step(question, steps=self.slots, arrays=0)

    def result(self, state: SlotState) -> SlotState | None:
        """The state, after the last slot."""
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
