"""`Tracker`: components of a stream in one pass and bounded memory. State is a value: `state = tracker.step(state, ...)`.

A tracker's settings are its fields. Everything it has learnt is in the state, which may be stored, copied and continued from.
A state is raw data of the people in the stream, except for the parts that a tracker says were released.
"""

from abc import ABC, abstractmethod
from typing import Any, Final, Generic, TypeVar

from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.errors import require
from eigenveil.linalg import Subspace
from eigenveil.linalg.sketch import Sketch
from eigenveil.tasks.levels import Change

__all__ = ["NOTHING_ASKED", "SketchTracker", "Tracker", "require_exact", "require_rows"]

State = TypeVar("State")

NOTHING_ASKED: Final = Exact(because="a tracker without privacy was asked for")


class Tracker(ABC, Generic[State]):
    """Follows the leading directions of a stream. Rows are seen once, a block at a time."""

    @abstractmethod
    def start(self, dim: int) -> State:
        """The state before any row, for rows of `dim` columns."""

    @abstractmethod
    def step(self, state: State, rows: Any, mechanism: Mechanism) -> State:
        """The state after `rows`, (b, d); `state` itself does not change.

        What becomes public in this step leaves through `mechanism`. A tracker that releases nothing accepts only `Exact`.
        """

    @abstractmethod
    def subspace(self, state: State) -> Subspace:
        """The directions found so far, largest first; of rank 0 before any row. Values are zero if none are estimated."""


class SketchTracker(Tracker[State]):
    """A tracker that also knows mean, weight, energy and its noise, and may delay the release of what it has seen.

    Sums that a private tracker has not released yet are raw data. Its `sketch` and its rank use released numbers only.
    """

    @abstractmethod
    def sketch(self, state: State, *, most: int | None = None) -> Sketch:
        """What is known so far, with all directions that are kept, or with at most `most` of them."""

    @abstractmethod
    def sync(self, state: State, mechanism: Mechanism) -> State:
        """The state after everything pending has been released through `mechanism`; the same state if nothing is pending."""

    @abstractmethod
    def rank_of(self, state: State) -> int:
        """The current target rank."""

    @abstractmethod
    def noise_floor(self, state: State) -> float:
        """An eigenvalue of the scatter below this cannot be told from noise; 0 without noise."""

    def change(self, state: State, shown: Subspace, *, rank: int) -> Change | None:
        """Whether released rows are clearly unlike others, in their level or in their spread. Only with noise.

        `shown` has the leading directions of the answer; the first `rank` are its components.
        """
        return None

    @property
    @abstractmethod
    def cost(self) -> int:
        """How many full charges one person can be in: their squared mu add up to the mechanism's times this."""

    def subspace(self, state: State) -> Subspace:
        """The directions up to the target rank."""
        rank = self.rank_of(state)
        space = self.sketch(state, most=rank).subspace
        return space.truncate(rank) if space.rank > rank else space


def require_exact(mechanism: Mechanism, name: str) -> None:
    """Refuse a mechanism that adds noise: a tracker with raw state would claim a privacy that it does not give.

    >>> require_exact(NOTHING_ASKED, "Oja")
    """
    require(
        isinstance(mechanism, Exact),
        f"{name} keeps raw data in its state and releases nothing, so it cannot be private. Use a private tracker",
    )


def require_rows(rows: Any, dim: int) -> None:
    """Refuse anything but a two-dimensional block with `dim` columns.

    >>> import numpy as np
    >>> require_rows(np.zeros((3, 2)), 2)
    """
    require(
        getattr(rows, "ndim", 0) == 2 and rows.shape[1] == dim,
        f"rows must have shape (b, {dim}), like earlier rows, got {getattr(rows, 'shape', type(rows).__name__)}",
    )
