"""`TreeTracker`: a public estimate after every block, with noise that grows like log T instead of sqrt(T).

This is the binary mechanism (Dwork, Naor, Pitassi and Rothblum 2010; Chan, Shi and Song 2011). Sums over dyadic intervals of
blocks are released as they are completed. The sum up to block t consists of at most log2 T of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import require
from eigenveil.linalg.sketch import Sketch
from eigenveil.linalg.subspace import Subspace
from eigenveil.tasks.levels import Change, Levels
from eigenveil.trackers.base import PrivateTracker, StreamRequest, TrackerKind, require_rows
from eigenveil.trackers.sums import Sums, SumTerms, floor_of, levels_of, sketch_of

__all__ = ["KIND", "TreeState", "TreeTracker"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TreeState:
    """For each level of the tree the last completed interval: `raw`, which is raw data, and `public`, which was released."""

    raw: tuple[Sums | None, ...]
    public: tuple[Sums | None, ...]
    blocks: int
    rank: int
    levels: Levels | None = None  # Of the blocks that were released alone, every other one.


@final
@dataclass(frozen=True, slots=True, eq=False)
class TreeTracker(PrivateTracker[TreeState]):
    """The sum over all blocks so far, of a public `horizon` of blocks, from one released interval per set bit of their number.

    At block t the interval of the last 2^l blocks is released, where 2^l is the largest power of two that divides t. Intervals of
    one level are disjoint slots. A person with rows in m blocks has at most q = min(m, 2^l) of them in one interval of level l.
    Their rows are in at most m intervals. Squares of rows per interval add up to at most q m <= q^2 ceil(m / q). Noise for q
    rows, charged for ceil(m / q) intervals, covers the level.

    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.trackers import NOTHING_ASKED
    >>> tracker = TreeTracker(rank=1, terms=SumTerms(domain=Domain(dim=2, radius=9.0), center=False), horizon=3)
    >>> state = tracker.start(2)
    >>> for block in np.eye(2)[:, None] * 3:
    ...     state = tracker.step(state, block, NOTHING_ASKED)
    >>> tracker.sketch(state).subspace.values.tolist(), tracker.cost
    ([3.0, 3.0], 2)
    """

    rank: int
    terms: SumTerms
    horizon: int

    def __post_init__(self) -> None:
        require(self.horizon >= 1, f"horizon must be at least one block, got {self.horizon}")

    @property
    def levels(self) -> int:
        """The number of different interval sizes."""
        return self.horizon.bit_length()

    def start(self, dim: int) -> TreeState:
        self.require_columns(dim)
        nothing = (None,) * self.levels
        return TreeState(raw=nothing, public=nothing, blocks=0, rank=self.rank)

    def step(self, state: TreeState, rows: Any, mechanism: Mechanism) -> TreeState:
        """Take a block and release the interval that it completes."""
        terms = self.terms
        require_rows(rows, terms.domain.dim)
        if rows.shape[0] == 0:
            return state
        require(
            state.blocks < self.horizon,
            f"the stream has reached its horizon of {self.horizon} blocks, so nothing more can be released",
        )
        number = state.blocks + 1
        level = (number & -number).bit_length() - 1
        # All lower bits of the previous number were set, so every lower level has its interval.
        whole = _joined([*_intervals(state.raw[:level]), (1, Sums.of(rows, terms))], terms)
        # Before the release, because a charge is not refunded.
        require(bool(np.isfinite(whole.gram.diagonal()).all()), "rows must be finite, and not too large to square")
        rows_in_it, slots = self._person(level)
        slot = Slot(series=f"{terms.series}: level {level}", number=number >> level, per_person=slots)
        label = f"stretch of {2**level} block{'s' * (level > 0)}"
        fresh = whole.released(terms, mechanism, rows=rows_in_it, label=label, slot=slot)
        nothing = (None,) * level
        # Nothing builds on the last level, so its raw data is dropped.
        raw = (*nothing, whole if level < self.levels - 1 else None, *state.raw[level + 1 :])
        levels = None if state.levels is None else state.levels.times(terms.fade())
        if level == 0:
            alone = levels_of(fresh, number)
            levels = alone if levels is None else levels.and_also(alone)
        public = (*nothing, fresh, *state.public[level + 1 :])
        return self.adapted(TreeState(raw=raw, public=public, blocks=number, rank=state.rank, levels=levels))

    def sketch(self, state: TreeState, *, max_rank: int | None = None) -> Sketch:
        """Of released numbers only."""
        if state.blocks == 0:
            return Sketch.empty(self.terms.domain.dim)
        public = _joined(_intervals(state.public), self.terms)
        return sketch_of(public, self.terms.domain.center, rank=max_rank)

    def noise_floor(self, state: TreeState) -> float:
        return 0.0 if state.blocks == 0 else floor_of(_joined(_intervals(state.public), self.terms))

    def change(self, state: TreeState, shown: Subspace, *, rank: int) -> Change | None:
        """From interval to interval, and from block to block among those that were released alone."""
        if state.blocks == 0:
            return None
        (_, first), *later = _intervals(state.public)
        intervals = levels_of(first, 0)
        for number, (length, sums) in enumerate(later, 1):
            intervals = intervals.times(self.terms.fade(length)).and_also(levels_of(sums, number))
        # An interval may be the whole stream. Blocks that were released alone stand for those between them, which doubles their
        # sums. Two tests at each look cost no more than those of twice as many looks.
        apart = None if state.levels is None else state.levels.times(2.0)
        for levels in (intervals, apart):
            change = levels and self.change_in(levels, shown, rank=rank, looks=2 * state.blocks)
            if change is not None:
                return change
        return None

    @property
    def cost(self) -> int:
        """The number of intervals a person can be in, over all levels."""
        return sum(self._person(level)[1] for level in range(self.levels))

    def _person(self, level: int) -> tuple[int, int]:
        """The most rows of a person in one interval of this level, and the number of intervals that are charged."""
        max_blocks = self.terms.person_blocks
        # A person has at most one row in a block, and an interval of this level has 2^level blocks.
        rows = min(max_blocks, 2**level)
        return rows, -(-max_blocks // rows)


def _intervals(levels: Sequence[Sums | None]) -> list[tuple[int, Sums]]:
    """The completed intervals with their numbers of blocks, from the earliest, which is the longest, to the latest."""
    return [(2**level, sums) for level, sums in reversed(list(enumerate(levels))) if sums is not None]


def _joined(intervals: list[tuple[int, Sums]], terms: SumTerms) -> Sums:
    """Sums of consecutive intervals as one, each faded by the blocks after it."""
    whole = intervals[0][1]
    # Fading composes: each join fades all that came before by the length of the interval that it adds.
    for blocks, sums in intervals[1:]:
        whole = whole.and_then(sums, terms.fade(blocks))
    return whole


def _suits(criteria: StreamRequest) -> str | None:
    if not criteria.private or criteria.publish != KIND.publishes:
        return None
    return "the estimate is published after every block, from a binary tree of releases"


KIND: Final = TrackerKind(
    name="tree",
    state=TreeState,
    suits=_suits,
    make=lambda terms: TreeTracker(terms.rank, terms.sums, terms.horizon),
    numbers=lambda dim, width, blocks: (2 * blocks.bit_length() + 6) * dim * dim,
    smaller="Use {publish=block}, which needs no d x d sums, or {publish=sync}, which needs fewer; or raise {memory_limit}",
    has_smaller=False,
    keeps_products=True,
    publishes="continual",
    phrase="sums over a tree of blocks",
    moments="with every block, by sums over a tree of blocks",
    schedule="after every block",
    every_block=True,
    needs_horizon=True,
    # A person is in one interval of every level, and the last sum adds one interval for each set bit.
    noise_variance=lambda blocks: blocks.bit_length() * blocks.bit_count(),
)
