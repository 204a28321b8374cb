"""`Task`: what is computed, written once and carried by anything; and `SumTask`, whose parts are simply added.

A task's state is the public transcript, and a `Question` what sites are told of it in one round. Rows never leave `work`,
and what leaves goes through the mechanism that the carrier hands in. A `SumTask` can also be carried under masks and by
gossip, which know only how to add. Both sides check what comes from elsewhere: a site its question, a hub its parts.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

import numpy as np

from eigenveil.data.rows import Rows
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace
from eigenveil.privacy import Bounded, Mechanism
from eigenveil.privacy.noise.steps import CAPACITY, step_of, steps_of, values_of

__all__ = ["Question", "SumTask", "Task", "on_grid", "require_array", "require_step"]

State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")

# Nothing that rows within their bounds add up to comes near this, and beyond it squares would soon overflow.
_LARGEST = 1e150


@final
@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What every site is asked in one round: which `step` of the task, counted from zero, of which `stage`, and public arrays."""

    step: int = 0
    arrays: tuple[Array, ...] = ()
    stage: str = ""

    def same(self, other: "Question") -> bool:
        """Whether both ask the same, to the last bit."""
        return (self.step, self.stage, len(self.arrays)) == (other.step, other.stage, len(other.arrays)) and all(
            one is two or np.array_equal(one, two) for one, two in zip(self.arrays, other.arrays, strict=True)
        )


class Task(ABC, Generic[State, Part, Result]):
    """A computation in rounds: each site works on a question, parts are combined, the state advances."""

    @abstractmethod
    def start(self) -> State:
        """The state before the first round."""

    @abstractmethod
    def ask(self, state: State) -> Question:
        """What sites are told this round."""

    @abstractmethod
    def require_question(self, question: Question) -> None:
        """Refuse, with a `ValueError`, a question that this task would not ask: a site's check before it works."""

    @abstractmethod
    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Part:
        """One site's part of this round, released through `mechanism`."""

    @abstractmethod
    def combine(self, left: Part, right: Part) -> Part:
        """Two parts as one. Associative and commutative, up to rounding."""

    @abstractmethod
    def advance(self, state: State, total: Part, mechanism: Mechanism, *, stretch: float = 1.0) -> State:
        """The state after this round, `total` having been released through `mechanism` (exact if the sites added noise).

        `stretch` says how many times as far as by one plain part the total can be moved by one person.
        """

    @abstractmethod
    def result(self, state: State) -> Result | None:
        """The answer, or None while rounds remain."""

    @abstractmethod
    def arrays(self, part: Part) -> tuple[Array, ...]:
        """A part as plain arrays, to be sent."""

    @abstractmethod
    def part(self, question: Question, arrays: tuple[Array, ...]) -> Part:
        """The part that was sent as `arrays` in answer to `question`; a `ValueError` for anything that cannot be one."""

    def condense(self, part: Part) -> Part:
        """What an inner node of a tree sends on for all below it."""
        return part

    def gridded(self, question: Question, part: Part, *, parts: int) -> Part:
        """A part of at most `parts`, rounded so that they add up without any rounding: see `on_grid`."""
        raise ValueError(f"parts of {type(self).__name__} are not sums that noise could be added to")

    def weighted(self, part: Part, weight: float) -> Part:
        """A part that counts `weight` times."""
        raise ValueError(
            f"parts of {type(self).__name__} cannot be weighted, so every site must take part in every round"
        )

    def estimate(self, state: State) -> Subspace | None:
        """The directions as far as they are known, None where there are none yet. Public, as the state is."""
        return None

    def spread(self, state: State) -> float | None:
        """How far apart the sites were in the last round, where that is public (FedPower's rho_t)."""
        return None

    def tied(self, state: State) -> bool | None:
        """Whether others have an equal claim to be the answer, so that it is not the only one; None where nobody looked."""
        return None

    def at_rest(self, state: State) -> bool | None:
        """Whether more rounds would change the answer by no more than was asked for; None where nothing was asked."""
        return None

    def counted(self, state: State, sites: tuple[str, ...]) -> State:
        """The state of a round for which these `sites` gave their parts, before it advances."""
        return state

    def sampled(self, question: Question) -> bool:
        """Whether the round may do with some of the sites, where only some are drawn."""
        return True

    def without(self, state: State) -> State | None:
        """Where to go on when sites whose parts are in `state` have gone: None is to go on as if they were there."""
        return None

    def halved(self, question: Question) -> bool:
        """Whether parts of this round are symmetric matrices, so that half of each need not be sent."""
        return False

    def as_sum(self, question: Question) -> "tuple[SumTask[Any, Any], Question, float]":
        """The task whose parts are added up in this round, what it is asked, and the fraction of mu^2 that it has.

        For carriers that can only add. A `ValueError` where parts are not sums.
        """
        raise ValueError(f"parts of {type(self).__name__} are not arrays to be added, so they cannot be masked")

    def answer(self, result: Result) -> tuple[Array, ...]:
        """What every site is told in the end."""
        return ()


class SumTask(Task[State, Array, Result]):
    """A task whose parts are arrays to be added, each with one sensitivity that depends on the question alone.

    Subclasses say what a site's private array is (`private`), how one round is labelled and paid for (`label`, `share`),
    and how the released total moves the state on (`update`). Where the noise stands is then no concern of theirs.
    """

    @abstractmethod
    def private(self, question: Question, rows: Rows) -> Bounded:
        """What the rows contribute this round, with its sensitivity."""

    @abstractmethod
    def sensitivity(self, question: Question) -> float:
        """How far one person can move the sum of all parts this round: the same as for one site, where each person is at one."""

    @abstractmethod
    def shape(self, question: Question) -> tuple[int, ...]:
        """The shape of a part."""

    @abstractmethod
    def label(self, question: Question) -> str:
        """What the ledger calls this round's release."""

    @abstractmethod
    def share(self, question: Question) -> float:
        """This round's share of the mechanism's mu^2."""

    @abstractmethod
    def update(self, state: State, released: Array) -> State:
        """The state after the released total of this round."""

    @property
    def symmetric(self) -> bool:
        """Whether parts are symmetric matrices."""
        return False

    def halved(self, question: Question) -> bool:
        """Where parts are symmetric."""
        return self.symmetric

    def as_sum(self, question: Question) -> "tuple[SumTask[Any, Any], Question, float]":
        """Itself, for all of mu^2."""
        return self, question, 1.0

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Array:
        """The site's array, released."""
        return mechanism.release(self.private(question, rows), label=self.label(question), share=self.share(question))

    def combine(self, left: Array, right: Array) -> Array:
        """The sum."""
        return np.add(left, right)

    def gridded(self, question: Question, part: Array, *, parts: int) -> Array:
        """Entries rounded to the grid of this round's sensitivity."""
        return on_grid(part, self.sensitivity(question), parts=parts)

    def weighted(self, part: Array, weight: float) -> Array:
        """The multiple."""
        return np.multiply(part, weight)

    def arrays(self, part: Array) -> tuple[Array, ...]:
        """The one array."""
        return (part,)

    def part(self, question: Question, arrays: tuple[Array, ...]) -> Array:
        """The one array, of the right shape and with numbers that can be added."""
        require(len(arrays) == 1, f"a part must be one array, got {len(arrays)}")
        return require_array(arrays[0], self.shape(question))

    def advance(self, state: State, total: Array, mechanism: Mechanism, *, stretch: float = 1.0) -> State:
        """The state after the total, released."""
        question = self.ask(state)
        private = Bounded(total, stretch * self.sensitivity(question), symmetric=self.symmetric)
        return self.update(state, mechanism.release(private, label=self.label(question), share=self.share(question)))


def require_array(array: Any, shape: tuple[int, ...]) -> Array:
    """An array that came from elsewhere, if it has this `shape` and holds finite numbers of no absurd size.

    >>> require_array(np.array([1.0, np.inf]), (2,))
    Traceback (most recent call last):
    ...
    ValueError: a part holds numbers that are not finite or too large; divide the rows by something first
    """
    require(isinstance(array, np.ndarray) and array.dtype == np.float64, "a part must be an array of float64")
    require(array.shape == shape, f"a part must have shape {shape}, got {array.shape}")
    # NaN is neither above nor below anything, so the comparison has to hold, not to fail.
    sound = array.size == 0 or (array.max() <= _LARGEST and array.min() >= -_LARGEST)
    require(bool(sound), "a part holds numbers that are not finite or too large; divide the rows by something first")
    checked: Array = array
    return checked


def on_grid(array: Array, sensitivity: float, *, parts: int) -> Array:
    """`array` in whole steps of the lattice of a release, so that up to `parts` such arrays add up exactly.

    Whoever adds noise to a sum in floating point must not let somebody else's part decide how the sum is rounded: a huge
    one, taken back by another, would leave of a person either nothing or all of a large step. Multiples of one power of two g
    add up without rounding while sums stay below 2^53 g, and entries are clipped to their share of that: clipping brings no two
    numbers further apart, and refusing would tell of a person by an error. What rounding adds is `ROUNDING_COST` times the
    `sensitivity`, at most (`eigenveil.privacy.noise.steps`). What is clipped is what millions of people over `parts` add up to.

    >>> on_grid(np.array([0.3, 7.0]), 1.0, parts=2).tolist()
    [0.29998779296875, 7.0]
    """
    step = step_of(sensitivity, array.size)
    return values_of(steps_of(array, step, most=min(CAPACITY, 2**53 // parts)), step)


def require_step(question: Question, *, steps: int, arrays: int) -> None:
    """Refuse a question for a step that this task does not have, or with another number of arrays.

    >>> require_step(Question(3), steps=2, arrays=0)
    Traceback (most recent call last):
    ...
    ValueError: the question is for step 3, and the task has steps 0 to 1
    """
    require(
        0 <= question.step < steps, f"the question is for step {question.step}, and the task has steps 0 to {steps - 1}"
    )
    require(len(question.arrays) == arrays, f"the question must come with {arrays} arrays, got {len(question.arrays)}")
