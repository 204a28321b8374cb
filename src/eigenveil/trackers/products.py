"""`GramTracker`: adds up the d x d sum of products and releases it once per synchronisation. Best where d x d fits in memory.

One release of many blocks has the noise of a single release; releasing K blocks one by one would add noise K times. Without
privacy it gives the exact answer in one pass, and for few columns it is also the fastest.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.linalg.sketch import Sketch
from eigenveil.tasks.levels import Levels
from eigenveil.tasks.totals import lies_far
from eigenveil.trackers.base import PrivateTracker, StreamRequest, TrackerKind, require_rows
from eigenveil.trackers.sums import Sums, SumTerms, floor_of, levels_of, mean_spike, offset_of, sketch_of

__all__ = ["KIND", "GramState", "GramTracker", "room"]

# Up to this many columns per direction, the d x d products take no more numbers than a sketch.
_FEW_COLUMNS: Final = 8
# A block of so many rows, or of as many as there are columns, has to fit as well.
_BLOCK: Final = 512


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GramState:
    """Sums of the rows before and since the last release. Those that are `held` are raw data, and all else is public."""

    center: Array | None  # What sums are around, (d,).
    held: Sums  # Of `blocks` blocks since the last release: raw data.
    public: Sums  # Released, `syncs` times so far.
    fade: float  # The factor by which `public` has faded since the last release.
    blocks: int
    syncs: int
    rank: int
    spike: float = 0.0  # At most what errors of the mean left in `public` each time the center moved (`mean_spike`).
    levels: Levels | None = None  # Of the increments, around the center.


@final
@dataclass(frozen=True, slots=True, eq=False)
class GramTracker(PrivateTracker[GramState]):
    """Releases the sums since the last synchronisation, with noise for a person with the largest number of rows in them.

    Increments are disjoint parts of the stream with public ends, so together they cost as much as one (`core.ledger`). A
    person with rows in m blocks may have all of them in one increment, whose sensitivity is m times that of one row. With
    m_1 + m_2 + ... = m rows over several increments, the squares m_i^2 add up to at most m^2. One charge at m rows covers all.

    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.trackers import NOTHING_ASKED
    >>> tracker = GramTracker(rank=1, terms=SumTerms(domain=Domain(dim=2, radius=9.0), center=False))
    >>> state = tracker.step(tracker.start(2), np.array([[3.0, 0.0], [0.0, 1.0]]), NOTHING_ASKED)
    >>> tracker.subspace(state).rank
    0
    >>> tracker.subspace(tracker.sync(state, NOTHING_ASKED)).values.tolist()
    [3.0]
    """

    rank: int
    terms: SumTerms

    def start(self, dim: int) -> GramState:
        self.require_columns(dim)
        none = Sums.none(self.terms)
        return GramState(center=self.terms.domain.center, held=none, public=none, fade=1.0, blocks=0, syncs=0, rank=self.rank)

    def step(self, state: GramState, rows: Any, mechanism: Mechanism) -> GramState:
        """Add a block to the pending sums. Nothing is released."""
        terms = replace(self.terms, domain=replace(self.terms.domain, center=state.center))
        require_rows(rows, terms.domain.dim)
        if rows.shape[0] == 0:
            return state
        held = state.held.and_rows(rows, terms)
        # An entry that is not finite, or too large to square, makes the diagonal not finite.
        require(bool(np.isfinite(held.gram.diagonal()).all()), "rows must be finite, and not too large to square")
        return replace(state, held=held, fade=state.fade * terms.fade(), blocks=state.blocks + 1)

    def sync(self, state: GramState, mechanism: Mechanism) -> GramState:
        """Release the pending sums at once; the same state if nothing is pending."""
        if state.blocks == 0:
            return state
        slot = Slot(series=f"{self.terms.series}: increments", number=state.syncs, per_person=1)
        rows = self.terms.person_blocks
        fresh = state.held.released(self.terms, mechanism, rows=rows, label="increment", slot=slot)
        public = state.public.and_then(fresh, state.fade) if state.syncs else fresh
        levels = levels_of(fresh, state.syncs)
        if state.levels is not None:
            levels = state.levels.times(state.fade).and_also(levels)
        # Only where nothing is pending: raw sums around the old center would have to be moved as well.
        center, moved = self._recentered(state.center, public, mechanism)
        # A mean that is subtracted now leaves its error. Otherwise `noise_floor` works it out from the sums.
        left = 0.0 if moved is public else mean_spike(public.total, public.weight, noise=public.total_noise)
        spike, public = state.fade * state.spike + left, moved
        if center is not None and center is not state.center:
            levels = levels.around(center if state.center is None else center - state.center)
        rank, adapt = state.rank, self.terms.adapt
        if adapt is not None:
            values = sketch_of(public, center).subspace.values
            # FPCA (4) moves the rank by one for each block, and several blocks may have been waiting.
            for _ in range(min(state.blocks, len(values))):
                rank = adapt.adjusted(rank, values)
        return GramState(
            center=center,
            held=Sums.none(self.terms),
            public=public,
            fade=1.0,
            blocks=0,
            syncs=state.syncs + 1,
            rank=rank,
            spike=spike,
            levels=levels,
        )

    def sketch(self, state: GramState, *, max_rank: int | None = None) -> Sketch:
        """Of released numbers only."""
        if state.syncs == 0:
            return Sketch.empty(self.terms.domain.dim)
        return sketch_of(state.public, state.center, rank=max_rank)

    def noise_floor(self, state: GramState) -> float:
        return floor_of(state.public, spike=state.spike)

    def releases(self, state: GramState) -> int:
        """One at each synchronisation."""
        return state.syncs

    def with_means(self, state: GramState, columns: NDArray[Any], means: Array) -> GramState:
        """Sums are around the center and these columns added nothing to them, so only the center moves."""
        return replace(state, center=np.where(columns, means, 0.0 if state.center is None else state.center))

    @property
    def cost(self) -> int:
        """One increment."""
        return 1

    def _recentered(self, center: Array | None, sums: Sums, mechanism: Mechanism) -> tuple[Array | None, Sums]:
        """Public sums around a new center, if the mean has moved far from the middle of the ball: post-processing.

        Around c + s the products are G - s t^T - t s^T + w s s^T and the sum t - w s, with G and t those around c.
        """
        if not self.terms.center or isinstance(mechanism, Exact) or sums.weight <= 0:
            return center, sums
        # After a release of a few rows, noise alone could carry the ball away. `lies_far` compares the offset with it.
        noise = float(np.sqrt(sums.total_noise * self.terms.domain.dim)) / sums.weight
        offset = offset_of(sums.total, sums.weight, noise=sums.total_noise)
        if not lies_far(offset, radius=self.terms.domain.radius, noise=noise):
            return center, sums
        cross = np.outer(offset, sums.total)
        gram = sums.gram - cross - cross.T + sums.weight * np.outer(offset, offset)
        moved = replace(sums, gram=gram, total=sums.total - sums.weight * offset)
        return (offset if center is None else center + offset), moved


def room(criteria: StreamRequest) -> str:
    """How the memory for all products compares with the limit."""
    return f"{_bytes(criteria) / 2**20:.3g} of {criteria.limit / 2**20:.4g} MiB"


def _bytes(criteria: StreamRequest) -> int:
    dim = criteria.dim
    return 8 * (KIND.numbers(dim, criteria.width, 0) + 2 * min(_BLOCK, dim) * dim)


def _suits(criteria: StreamRequest) -> str | None:
    if _bytes(criteria) > criteria.limit:
        return None
    if criteria.private:
        if criteria.publish != KIND.publishes:
            return None
        return f"one release per synchronisation: the d x d sum fits ({room(criteria)}), and noise is added once"
    # Four d x d matrices and a piece of a block must take no more numbers than a sketch and a second block.
    # Not where old rows fade: once the mean has moved far from the first one, sums around that one hold rounding errors only.
    dim, width = criteria.dim, criteria.width
    few = dim <= _FEW_COLUMNS * width and 4 * dim + min(criteria.block, 128) <= _FEW_COLUMNS * width + criteria.block
    if criteria.fades or not few:
        return None
    return f"{dim} columns are few for {width} directions, so all products are kept and the result is exact"


KIND: Final = TrackerKind(
    name="products",
    state=GramState,
    suits=_suits,
    make=lambda terms: GramTracker(terms.rank, terms.sums),
    numbers=lambda dim, width, blocks: 6 * dim * dim,
    smaller="Choose a smaller {block_size}, or raise {memory_limit}",
    too_large="the sum over all pairs of columns does not fit in memory",
    keeps_products=True,
    title="products with the rows of a stream",
    publishes="sync",
    phrase="one release per synchronisation",
    moments="when asked to",
    schedule="at every synchronisation",
)
