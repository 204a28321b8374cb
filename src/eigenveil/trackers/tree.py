"""`TreeTracker`: a public estimate after every block, with noise that grows like log T instead of sqrt(T).

This is the binary mechanism (Dwork, Naor, Pitassi and Rothblum 2010; Chan, Shi and Song 2011). Sums over dyadic intervals of
blocks are released as they are completed. The sum up to block t consists of at most log2 T of them.
"""

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, final

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import require
from eigenveil.linalg.sketch import Sketch
from eigenveil.linalg.subspace import Subspace
from eigenveil.tasks.levels import Change, Levels
from eigenveil.trackers.base import SketchTracker, StreamRequest, TrackerKind, require_rows
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
class TreeTracker(SketchTracker[TreeState]):
    """The sum over all blocks so far, of a public `horizon` of blocks, from one released interval per set bit of their number.

    At block t the interval of the last 2^l blocks is released, where 2^l is the largest power of two that divides t. Intervals of
    one level are disjoint slots. A person with rows in m blocks has at most q = min(m, 2^l) of them in one interval of level l.
    Their rows are in at most m intervals. Squares of rows per interval add up to at most q m <= q^2 ceil(m / q). So noise for q
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
        """Nothing seen, nothing released."""
        require(dim == self.terms.domain.dim, f"this tracker is for {self.terms.domain.dim} columns, got {dim}")
        require(1 <= self.rank <= dim, f"rank must lie in 1..{dim}, got {self.rank}")
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
        # From the longest interval to the shortest, each faded by the blocks after it.
        own = Sums.of(rows, terms)
        earlier = [sums for sums in reversed(state.raw[:level]) if sums is not None]
        # All lower bits of the previous number were set, so every lower level has its interval.
        lengths = [2**size for size in range(level - 1, -1, -1)]
        whole = _joined(earlier, lengths, own, 1, terms)
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
        after = TreeState(
            raw=raw, public=(*nothing, fresh, *state.public[level + 1 :]), blocks=number, rank=state.rank, levels=levels
        )
        if terms.adapt is None:
            return after
        values = self.sketch(after).subspace.values
        return replace(after, rank=terms.adapt.adjusted(state.rank, values))

    def sketch(self, state: TreeState, *, max_rank: int | None = None) -> Sketch:
        """Of released numbers only."""
        if state.blocks == 0:
            return Sketch.empty(self.terms.domain.dim)
        return sketch_of(self._public(state), self.terms.domain.center, rank=max_rank)

    def sync(self, state: TreeState, mechanism: Mechanism) -> TreeState:
        """Nothing is pending: every block has been released with its interval."""
        return state

    def rank_of(self, state: TreeState) -> int:
        """The rank adapted from released values."""
        return state.rank

    def noise_floor(self, state: TreeState) -> float:
        """That of the sum of the intervals."""
        return 0.0 if state.blocks == 0 else floor_of(self._public(state))

    def change(self, state: TreeState, shown: Subspace, *, rank: int) -> Change | None:
        """From interval to interval, and from block to block among those that were released alone."""
        if state.blocks == 0:
            return None
        public = [sums for sums in reversed(state.public) if sums is not None]
        # From the longest interval to the shortest, each faded by the blocks after it.
        lengths = [2**level for level, sums in reversed(list(enumerate(state.public))) if sums is not None]
        intervals = levels_of(public[0], 0)
        for number, (sums, length) in enumerate(zip(public[1:], lengths[1:], strict=True), 1):
            intervals = intervals.times(self.terms.fade(length)).and_also(levels_of(sums, number))
        # An interval may be the whole stream. Blocks that were released alone stand for those between them, which doubles their
        # sums. Two tests at each look cost no more than those of twice as many looks.
        apart = None if state.levels is None else state.levels.times(2.0)
        for levels in (intervals, apart):
            change = levels and levels.change(
                shown, rank=rank, radius=self.terms.domain.radius, looks=2 * state.blocks, centered=self.terms.center
            )
            if change is not None:
                return change
        return None

    def releases(self, state: TreeState) -> int:
        """One with every block."""
        return state.blocks

    @property
    def domain(self) -> Domain:
        """That of the terms."""
        return self.terms.domain

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

    def _public(self, state: TreeState) -> Sums:
        intervals = [(2**level, sums) for level, sums in enumerate(state.public) if sums is not None]
        # The longest interval is the earliest, and fading goes from the earliest to the latest.
        intervals.reverse()
        lengths = [length for length, _ in intervals]
        return _joined([s for _, s in intervals[:-1]], lengths[:-1], intervals[-1][1], lengths[-1], self.terms)


def _joined(earlier: list[Sums], lengths: list[int], last: Sums, length: int, terms: SumTerms) -> Sums:
    """Sums of consecutive intervals as one, each faded by the blocks after it; `length` is that of the last one."""
    stretches = [*zip(earlier, lengths, strict=True), (last, length)]
    # Fading composes: each join fades all that came before by the length of the interval that it adds.
    joined = reduce(lambda left, right: (left[0].and_then(right[0], terms.fade(right[1])), 0), stretches)
    return joined[0]


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
