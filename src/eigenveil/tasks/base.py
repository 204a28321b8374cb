"""`Task`: what is computed, written once and run by any protocol; and `SumTask`, whose parts are simply added.

A task's state is public, and a `Question` is what sites are told of it in one round. Rows never leave `work`. What leaves it goes
through the mechanism that the protocol passes in. A `SumTask` also runs under masks and by gossip, which can only add. Both sides
check what comes from elsewhere: a site checks its question, a hub its parts.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, final

import numpy as np

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.core.noise import CAPACITY, step_of, steps_of, values_of
from eigenveil.core.rows import Rows
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace

__all__ = ["Components", "Question", "SumTask", "Task", "on_grid", "require_array", "require_step"]

State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")
# No sum of clipped rows comes near this, and beyond it squares would soon overflow.
_LARGEST = 1e150


@final
@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What every site is asked in one round: the `step` of the task, counted from zero, its `stage`, and public arrays."""

    step: int = 0
    arrays: tuple[Array, ...] = ()
    stage: str = ""

    def same(self, other: "Question") -> bool:
        """Whether both questions are the same, to the last bit."""
        # Sites in one process share these arrays, so identity usually decides without reading them.
        return (self.step, self.stage, len(self.arrays)) == (other.step, other.stage, len(other.arrays)) and all(
            left is right or np.array_equal(left, right) for left, right in zip(self.arrays, other.arrays, strict=True)
        )


class Task(ABC, Generic[State, Part, Result]):
    """A computation in rounds: each site works on a question, its parts are combined, and the state advances."""

    @abstractmethod
    def start(self) -> State:
        """The state before the first round."""

    @abstractmethod
    def ask(self, state: State) -> Question:
        """What sites are told in this round."""

    @abstractmethod
    def require_question(self, question: Question) -> None:
        """Raise a `ValueError` for a question that this task would not ask: a site checks this before it works."""

    @abstractmethod
    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Part:
        """One site's part of this round, released through `mechanism`."""

    @abstractmethod
    def combine(self, left: Part, right: Part) -> Part:
        """Two parts combined into one. Associative and commutative, up to rounding."""

    @abstractmethod
    def advance(self, state: State, total: Part, mechanism: Mechanism, *, stretch: float = 1.0) -> State:
        """The state after this round. The `total` is released through `mechanism`, which is exact if the sites added noise.

        `stretch` multiplies the sensitivity: one person moves the total by up to `stretch` times what they move one plain part.
        """

    @abstractmethod
    def result(self, state: State) -> Result | None:
        """The answer, or None while rounds remain."""

    @abstractmethod
    def arrays(self, part: Part) -> tuple[Array, ...]:
        """A part as plain arrays, for sending."""

    @abstractmethod
    def part(self, question: Question, arrays: tuple[Array, ...]) -> Part:
        """The part that was sent as `arrays` in answer to `question`; a `ValueError` if they cannot be one."""

    def condense(self, part: Part) -> Part:
        """What an inner node of a tree sends upwards for all sites below it."""
        return part

    def rounded_to_grid(self, question: Question, part: Part, *, parts: int) -> Part:
        """One of at most `parts` parts, rounded so that their sum is exact: see `on_grid`."""
        raise ValueError(f"parts of {type(self).__name__} are not sums, so noise cannot be added to them")

    def weighted(self, part: Part, weight: float) -> Part:
        """A part that counts `weight` times."""
        raise ValueError(f"parts of {type(self).__name__} cannot be weighted, so every site must take part in every round")

    def estimate(self, state: State) -> Subspace | None:
        """The directions as far as they are known; None where there are none yet. Public, like the state."""
        return None

    def spread(self, state: State) -> float | None:
        """How far apart the sites were in the last round, where that is public (FedPower's rho_t)."""
        return None

    def tied(self, state: State) -> bool | None:
        """Whether eigenvalues tie at the rank, so that the answer is not unique; None where that was not checked."""
        return None

    def has_converged(self, state: State) -> bool | None:
        """Whether more rounds would change the answer by no more than the tolerance; None without a tolerance."""
        return None

    def with_contributors(self, state: State, sites: tuple[str, ...]) -> State:
        """The state of a round to which these `sites` contributed, before it advances."""
        return state

    def sampled(self, question: Question) -> bool:
        """Whether the round may use a sample of the sites, where sites are sampled."""
        return True

    def after_dropout(self, state: State) -> State | None:
        """The state to continue from when sites whose parts are in `state` have left; None to continue unchanged."""
        return None

    def has_symmetric_parts(self, question: Question) -> bool:
        """Whether parts of this round are symmetric matrices, so that only half of each is sent."""
        return False

    def as_sum(self, question: Question) -> "tuple[SumTask[Any, Any], Question, float]":
        """The task whose parts are added up in this round, its question, and its fraction of mu^2.

        For protocols that can only add. A `ValueError` where parts are not sums.
        """
        raise ValueError(f"parts of {type(self).__name__} are not arrays to be added, so they cannot be masked")

    def encode_result(self, result: Result) -> tuple[Array, ...]:
        """What every site is told at the end."""
        return ()


class SumTask(Task[State, Array, Result]):
    """A task whose parts are arrays to be added, each with one sensitivity that depends on the question alone.

    Subclasses define a site's private array (`private`), the label and the share of one round (`label`, `share`), and the next
    state after the released total (`update`). They need not know where noise is added.
    """

    @abstractmethod
    def private(self, question: Question, rows: Rows) -> Bounded:
        """What the rows contribute this round, with its sensitivity."""

    @abstractmethod
    def sensitivity(self, question: Question) -> float:
        """How far one person can move the sum of all parts: as for one site, if each person is at one site only."""

    @abstractmethod
    def shape(self, question: Question) -> tuple[int, ...]:
        """The shape of a part."""

    @abstractmethod
    def label(self, question: Question) -> str:
        """The label of this round's release on the ledger."""

    @abstractmethod
    def share(self, question: Question) -> float:
        """This round's share of the mechanism's mu^2."""

    @abstractmethod
    def update(self, state: State, released: Array) -> State:
        """The state after the released total of this round."""

    def slot(self, question: Question) -> Slot | None:
        """The slot of a stream that this round's release comes from, for the ledger. None where there is no stream."""
        return None

    @property
    def symmetric(self) -> bool:
        """Whether parts are symmetric matrices."""
        return False

    def has_symmetric_parts(self, question: Question) -> bool:
        return self.symmetric

    def as_sum(self, question: Question) -> "tuple[SumTask[Any, Any], Question, float]":
        """This task itself, with all of mu^2."""
        return self, question, 1.0

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Array:
        return mechanism.release(
            self.private(question, rows), label=self.label(question), share=self.share(question), slot=self.slot(question)
        )

    def combine(self, left: Array, right: Array) -> Array:
        # Protocols add in the order of sites, so a study and its simulation agree to the last bit.
        return np.add(left, right)

    def rounded_to_grid(self, question: Question, part: Array, *, parts: int) -> Array:
        return on_grid(part, self.sensitivity(question), parts=parts)

    def weighted(self, part: Array, weight: float) -> Array:
        return np.multiply(part, weight)

    def arrays(self, part: Array) -> tuple[Array, ...]:
        return (part,)

    def part(self, question: Question, arrays: tuple[Array, ...]) -> Array:
        """The one array, of the right shape and with numbers that can be added."""
        require(len(arrays) == 1, f"a part must be one array, got {len(arrays)}")
        return require_array(arrays[0], self.shape(question))

    def advance(self, state: State, total: Array, mechanism: Mechanism, *, stretch: float = 1.0) -> State:
        question = self.ask(state)
        # From the question alone: no part states a sensitivity, so a lying site cannot make the noise smaller.
        private = Bounded(total, stretch * self.sensitivity(question), symmetric=self.symmetric)
        return self.update(state, mechanism.release(private, label=self.label(question), share=self.share(question)))


def require_array(array: Any, shape: tuple[int, ...]) -> Array:
    """An array that came from elsewhere, checked for its `shape` and for finite numbers of reasonable size.

    >>> require_array(np.array([1.0, np.inf]), (2,))
    Traceback (most recent call last):
    ...
    ValueError: a part has numbers that are too large or not finite; scale the rows down first
    """
    require(isinstance(array, np.ndarray) and array.dtype == np.float64, "a part must be an array of float64")
    if array.shape != shape:
        raise ValueError(f"a part must have shape {shape}, got {array.shape}")
    # Every comparison with NaN is false, so we test for numbers in range and not for numbers out of range. Peers check every
    # message. One product is quick, and if the sum of all squares is in range, all numbers are.
    if not np.vdot(array, array) < _LARGEST**2 / 2:
        sound = array.max() <= _LARGEST and array.min() >= -_LARGEST
        require(bool(sound), "a part has numbers that are too large or not finite; scale the rows down first")
    checked: Array = array
    return checked


def on_grid(array: Array, sensitivity: float, *, parts: int) -> Array:
    """`array` in whole steps of the lattice of a release, so that up to `parts` such arrays add up exactly.

    A party that adds noise to a floating-point sum must not let another party's part decide how the sum is rounded. A huge part,
    cancelled by another, would round a person's contribution to zero or to a whole large step. Multiples of one power of two g
    add up without rounding while sums stay below 2^53 g. Entries are clipped to their share of that. Clipping moves no two
    numbers further apart, and an error instead would reveal something about a person. Rounding adds at most `ROUNDING_COST` times
    the `sensitivity` (`eigenveil.core.noise`). Only sums over millions of people, divided by `parts`, are clipped.

    >>> on_grid(np.array([0.3, 7.0]), 1.0, parts=2).tolist()
    [0.29998779296875, 7.0]
    """
    # Public numbers alone decide the step. One that depended on the rows would show in which numbers can come out.
    step = step_of(sensitivity, array.size)
    return values_of(steps_of(array, step, max_steps=min(CAPACITY, 2**53 // parts)), step)


def require_step(question: Question, *, steps: int, arrays: int) -> None:
    """Refuse a question for a step that this task does not have, or with the wrong number of arrays.

    >>> require_step(Question(3), steps=2, arrays=0)
    Traceback (most recent call last):
    ...
    ValueError: the question is for step 3, and the task has steps 0 to 1
    """
    require(0 <= question.step < steps, f"the question is for step {question.step}, and the task has steps 0 to {steps - 1}")
    require(len(question.arrays) == arrays, f"the question must come with {arrays} arrays, got {len(question.arrays)}")


class Components(Protocol):
    """Makes the task that finds directions, from what is known of the rows, such as a `Domain`."""

    def __call__(self, *, domain: Any) -> Task[Any, Any, Any]: ...
