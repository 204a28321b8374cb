"""`Tracker`: components of a stream in one pass and bounded memory. State is a value: `state = tracker.step(state, ...)`.

A tracker's settings are its fields. Everything it has learnt is in the state, which may be stored, copied and continued from.
A state is raw data of the people in the stream, except for the parts that a tracker says were released.

Each tracker that a stream may have is a leaf: one file, with a `TrackerKind` that answers what plans, forecasts, streams, state
files and reports ask. They find it in the registry of `trackers` and compare no names.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar, final

from numpy.typing import NDArray

from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace
from eigenveil.linalg.sketch import Sketch
from eigenveil.tasks.levels import Change, Levels
from eigenveil.trackers.sums import SumTerms

__all__ = [
    "NOTHING_ASKED",
    "PrivateTracker",
    "SketchTracker",
    "StreamRequest",
    "Tracker",
    "TrackerKind",
    "TrackerTerms",
    "require_exact",
    "require_rows",
]

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
    def sketch(self, state: State, *, max_rank: int | None = None) -> Sketch:
        """What is known so far, with all directions that are kept, or with at most `max_rank` of them."""

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

    @abstractmethod
    def releases(self, state: State) -> int:
        """How many releases with noise there were."""

    @property
    def domain(self) -> Domain | None:
        """How rows are clipped, None if they are not."""
        return None

    def with_means(self, state: State, columns: NDArray[Any], means: Array) -> State:
        """The state with these means of the `columns`, (d,) of truth values, in which nothing has been observed so far."""
        raise ValueError("the center of a private stream is public and does not follow its rows")

    @property
    @abstractmethod
    def cost(self) -> int:
        """How many full charges one person can be in: their squared mu add up to the mechanism's times this."""

    def subspace(self, state: State) -> Subspace:
        """The directions up to the target rank."""
        rank = self.rank_of(state)
        space = self.sketch(state, max_rank=rank).subspace
        return space.truncate(rank) if space.rank > rank else space


class PrivateTracker(SketchTracker[State]):
    """Releases sums of rows on public `terms`: with every block, unless it says otherwise. Its states count `blocks`."""

    rank: int
    terms: SumTerms

    def require_columns(self, dim: int) -> None:
        """Refuse rows of another width than the terms are for, and a rank that they do not have."""
        require(dim == self.terms.domain.dim, f"this tracker is for {self.terms.domain.dim} columns, got {dim}")
        require(1 <= self.rank <= dim, f"rank must lie in 1..{dim}, got {self.rank}")

    def sync(self, state: State, mechanism: Mechanism) -> State:
        """Nothing is pending: every block was released when it came."""
        return state

    def rank_of(self, state: Any) -> int:
        """The rank adapted from released values."""
        return int(state.rank)

    def adapted(self, state: Any) -> State:
        """The state with the rank that the energy of its released values asks for, after one more block."""
        after, adapt = state, self.terms.adapt
        if adapt is not None:
            after = replace(state, rank=adapt.adjusted(state.rank, self.sketch(state).subspace.values))
        return after  # type: ignore[no-any-return]

    def releases(self, state: Any) -> int:
        """One with every block."""
        return int(state.blocks)

    def change(self, state: Any, shown: Subspace, *, rank: int) -> Change | None:
        """From release to release, where the state keeps their `levels`."""
        levels: Levels | None = getattr(state, "levels", None)
        return None if levels is None else self.change_in(levels, shown, rank=rank, looks=self.releases(state))

    def change_in(self, levels: Levels, shown: Subspace, *, rank: int, looks: int) -> Change | None:
        """What these levels show, tested at so many `looks`."""
        terms = self.terms
        return levels.change(shown, rank=rank, radius=terms.domain.radius, looks=looks, centered=terms.center)

    @property
    def domain(self) -> Domain:
        """How rows are clipped."""
        return self.terms.domain


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What a tracker is chosen by: public numbers alone."""

    dim: int  # Columns.
    width: int  # Directions to keep.
    private: bool
    publish: str  # When a private stream releases, in the word of a tracker.
    fades: bool  # Old rows lose weight, or the rank adapts.
    block: int  # Rows.
    limit: int  # Bytes of memory.


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrackerTerms:
    """What a tracker is made of."""

    rank: int
    oversample: int  # Directions to keep beyond the rank.
    horizon: int  # Blocks of the whole stream, 0 if that need not be known.
    seed: int
    sums: SumTerms


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrackerKind:
    """A tracker before it is made: all that is asked of it."""

    name: str  # In plans, settings and state files.
    state: type  # What it has learnt: a dataclass of arrays and plain values.
    suits: Callable[[StreamRequest], str | None]  # Why it follows such a stream, None if it does not.
    make: Callable[[TrackerTerms], SketchTracker[Any]]
    # Numbers in memory for so many columns, directions and blocks of the horizon: beside the block, with those of a step.
    numbers: Callable[[int, int, int], int]
    smaller: str  # What to do where memory is short.
    has_smaller: bool = True  # Otherwise it is refused beyond the usual memory, even if no limit was given.
    too_large: str = ""  # Why another one takes its place.
    # Rows of a block, from the usual size and the columns.
    block_size: Callable[[int, int], int] = lambda size, dim: size
    keeps_products: bool = False  # All products of columns: a merged sketch then keeps all directions.
    title: str = ""  # In a report, in place of its name.

    # Of private streams. What releases nothing publishes nothing.
    publishes: str = ""  # The word of `publish`.
    phrase: str = ""  # What is released, in a plan.
    moments: str = ""  # When it releases, in a report.
    schedule: str = ""  # When readers get new numbers, in a guarantee.
    every_block: bool = False  # Releases with every block; otherwise what is pending, at a synchronisation.
    apart: bool = False  # Each block has noise of its own, whichever were released before.
    needs_horizon: bool = False
    # Variance of the noise in the answer, in units of that of one release, after so many blocks.
    noise_variance: Callable[[int], int] = lambda blocks: 1


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
