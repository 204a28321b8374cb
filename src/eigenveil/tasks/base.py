"""`Task`: what is computed, written once and carried by anything; and `SumTask`, whose parts are simply added.

A task's state is the public transcript. Rows never leave `work`, and what leaves goes through the mechanism that the
carrier hands in. A `SumTask` can also be carried under masks and by gossip, which know only how to add.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np

from eigenveil.linalg import Array
from eigenveil.privacy import Bounded, Mechanism
from eigenveil.rows import Rows

__all__ = ["SumTask", "Task"]

State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")


class Task(ABC, Generic[State, Part, Result]):
    """A computation in turns: each site works on the state, parts are combined, the state advances."""

    @abstractmethod
    def start(self) -> State:
        """The state before the first turn."""

    @abstractmethod
    def work(self, state: State, rows: Rows, mechanism: Mechanism) -> Part:
        """One site's part of this turn, released through `mechanism`."""

    @abstractmethod
    def combine(self, left: Part, right: Part) -> Part:
        """Two parts as one. Associative and commutative, up to rounding."""

    @abstractmethod
    def advance(self, state: State, total: Part, mechanism: Mechanism) -> State:
        """The state after this turn, `total` having been released through `mechanism` (exact if the sites added noise)."""

    @abstractmethod
    def result(self, state: State) -> Result | None:
        """The answer, or None while turns remain."""


class SumTask(Task[State, Array, Result]):
    """A task whose parts are arrays to be added, each with one sensitivity that depends on the public state alone.

    Subclasses say what a site's private array is (`private`), how one turn is labelled and paid for (`label`, `share`),
    and how the released total moves the state on (`update`). Where the noise stands is then no concern of theirs.
    """

    @abstractmethod
    def private(self, state: State, rows: Rows) -> Bounded:
        """What the rows contribute this turn, with its sensitivity."""

    @abstractmethod
    def sensitivity(self, state: State) -> float:
        """How far one person can move the sum of all parts this turn: the same as for one site, where each person is at one."""

    @abstractmethod
    def label(self, state: State) -> str:
        """What the ledger calls this turn's release."""

    @abstractmethod
    def share(self, state: State) -> float:
        """This turn's share of the mechanism's mu^2."""

    @abstractmethod
    def update(self, state: State, released: Array) -> State:
        """The state after the released total of this turn."""

    @property
    def symmetric(self) -> bool:
        """Whether parts are symmetric matrices."""
        return False

    def work(self, state: State, rows: Rows, mechanism: Mechanism) -> Array:
        """The site's array, released."""
        return mechanism.release(self.private(state, rows), label=self.label(state), share=self.share(state))

    def combine(self, left: Array, right: Array) -> Array:
        """The sum."""
        return np.add(left, right)

    def advance(self, state: State, total: Array, mechanism: Mechanism) -> State:
        """The state after the total, released."""
        private = Bounded(total, self.sensitivity(state), symmetric=self.symmetric)
        return self.update(state, mechanism.release(private, label=self.label(state), share=self.share(state)))
