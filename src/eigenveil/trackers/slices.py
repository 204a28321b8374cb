"""`SlicedTracker`: releases every block by itself, a few columns of its products at a time: FPCA Alg. 3 in O(d b) memory.

Within a block, slices of the noisy products are merged in covariance scale, and the block is charged once. Their noise is
symmetric, as for a whole matrix (`eigenveil.core.noise`). Between blocks, directions are merged in data scale, after
one square root. K blocks have about sqrt(K) times the noise of a single release.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, complement, merge, merged_edge
from eigenveil.linalg.sketch import Sketch, without_shift
from eigenveil.privacy.released import release_columns
from eigenveil.privacy.sums import bounded_sum, gram_columns
from eigenveil.tasks.fit.gaps import Rates
from eigenveil.tasks.levels import Levels
from eigenveil.trackers import products
from eigenveil.trackers.base import PrivateTracker, StreamRequest, TrackerKind, require_rows
from eigenveil.trackers.sums import SumTerms, as_block, as_block_rows, mean_spike, offset_of, require_finite

__all__ = ["KIND", "SlicedState", "SlicedTracker"]

_OVERSAMPLE: Final = 10
# Slices of a few columns would spend their time on small decompositions.
_COLUMNS: Final = 64
_LARGEST_BLOCK: Final = 1 << 14


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SlicedState:
    """Released numbers only."""

    space: Subspace  # Directions of the products around the center.
    energy: float  # Their trace.
    total: Array  # The sum of rows, (d,).
    weight: float
    gram_noise: float  # The variance of the noise in an entry of the products.
    total_noise: float  # And of the sum.
    blocks: int
    rank: int
    levels: Levels | None = None


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SlicedTracker(PrivateTracker[SlicedState]):
    """Directions of each block from its noisy products, `columns` of them at a time, merged with the earlier ones.

    One charge per block covers all its slices: the noise is scaled to the sensitivity of all of them together. Blocks are slots
    with public ends, and a person in m blocks is charged m times.

    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.trackers import NOTHING_ASKED
    >>> tracker = SlicedTracker(rank=1, terms=SumTerms(domain=Domain(dim=2, radius=9.0), center=False), columns=1)
    >>> state = tracker.step(tracker.start(2), np.array([[3.0, 0.0], [0.0, 1.0]]), NOTHING_ASKED)
    >>> tracker.subspace(state).values.round(9).tolist()
    [3.0]
    """

    rank: int
    terms: SumTerms
    oversample: int = _OVERSAMPLE
    columns: int | None = None

    def __post_init__(self) -> None:
        require(self.columns is None or self.columns >= 1, f"columns must be at least 1, got {self.columns}")
        require(self.oversample >= 0, f"oversample must not be negative, got {self.oversample}")

    def start(self, dim: int) -> SlicedState:
        self.require_columns(dim)
        return SlicedState(
            space=Subspace(np.empty((dim, 0)), np.empty(0)),
            energy=0.0,
            total=np.zeros(dim),
            weight=0.0,
            gram_noise=0.0,
            total_noise=0.0,
            blocks=0,
            rank=self.rank,
        )

    def step(self, state: SlicedState, rows: Any, mechanism: Mechanism) -> SlicedState:
        """Release a block: its sum, then its products, `columns` at a time."""
        terms = self.terms
        require_rows(rows, terms.domain.dim)
        if rows.shape[0] == 0:
            return state
        # Checked before anything is charged: otherwise NaN would be noticed only after the charge.
        require_finite(rows, gaps=terms.domain.gaps is not None)
        # The sum and the products share a slot: together they are one charge of a person in this block.
        slot = Slot(series=f"{terms.series}: blocks", number=state.blocks, per_person=terms.person_blocks)
        width = min(state.rank + self.oversample, terms.domain.dim)
        by_sum, by_gram, share = terms.sum_sensitivity(), terms.gram_sensitivity(), 1.0 - terms.share
        total, total_noise = np.zeros(terms.domain.dim), 0.0
        if terms.center:
            own = bounded_sum(as_block_rows(rows), domain=terms.domain, neighbours=terms.neighbours).value
            total = mechanism.release(Bounded(own, by_sum), label="block: sum", share=terms.share, slot=slot)
            total_noise = mechanism.scale(by_sum, share=terms.share) ** 2
        columns = self.columns or max(width, _COLUMNS)
        slices = gram_columns(as_block(rows), width=columns, domain=terms.domain)
        parts = release_columns(
            mechanism, slices, dim=terms.domain.dim, sensitivity=by_gram, label="block: products", share=share, slot=slot
        )
        noise_inflation = 1.0
        if terms.rates is not None:
            total, total_noise = terms.rates.full_sum(total), total_noise * terms.rates.sum_noise**2
            noise_inflation, parts = 1 / terms.rates.rarest, _divided(parts, terms.rates)
        # Up to twice as many directions as are kept at the end, because a later slice may make them leading.
        max_rank = max(width, min(2 * width, columns))
        space, energy = _leading(parts, terms.domain.dim, width, rank=max_rank)
        fade = terms.forget**2
        # In data scale. Merging eigenvalues of covariances as Alg. 3 prints it would add their squares.
        joint = merge(state.space, space, rank=width, forget=terms.forget) if state.space.rank else space
        rank = state.rank if terms.adapt is None else terms.adapt.adjusted(state.rank, joint.values)
        # Symmetric noise has half the variance off the diagonal.
        gram_noise, count = (noise_inflation * mechanism.scale(by_gram, share=share)) ** 2 / 2, float(rows.shape[0])
        levels = Levels.of(
            state.blocks,
            total,
            energy=energy,
            weight=count,
            total_noise=total_noise,
            energy_noise=2 * terms.domain.dim * gram_noise,
        )
        return SlicedState(
            space=joint,
            energy=fade * state.energy + energy,
            total=fade * state.total + total,
            weight=fade * state.weight + count,
            gram_noise=fade**2 * state.gram_noise + gram_noise,
            total_noise=fade**2 * state.total_noise + total_noise,
            blocks=state.blocks + 1,
            rank=rank,
            levels=levels if state.levels is None else state.levels.times(fade).and_also(levels),
        )

    def sketch(self, state: SlicedState, *, max_rank: int | None = None) -> Sketch:
        """From released numbers only, around the mean."""
        if state.blocks == 0:
            return Sketch.empty(self.terms.domain.dim)
        offset = offset_of(state.total, state.weight, noise=state.total_noise)
        space = without_shift(state.space, math.sqrt(state.weight) * offset) if offset.any() else state.space
        center = self.terms.domain.center
        energy = state.energy - state.weight * float(offset @ offset)
        return Sketch(
            subspace=space, mean=offset if center is None else center + offset, weight=state.weight, energy=max(energy, 0.0)
        )

    def noise_floor(self, state: SlicedState) -> float:
        """Of the sum of what blocks keep of their noise, which has no negative eigenvalue (`merged_edge`)."""
        if state.gram_noise == 0:
            return 0.0
        dim, fades = self.terms.domain.dim, self.terms.forget ** (2.0 * np.arange(state.blocks))
        # Every block has the same noise. Blocks that have faded count for less, and as so many whole ones at most.
        entry = math.sqrt(2 * state.gram_noise / float((fades**2).sum()))
        width = min(state.rank + self.oversample, dim)
        spike = mean_spike(state.total, state.weight, noise=state.total_noise)
        return entry * merged_edge(dim, width, parts=float(fades.sum())) + spike

    @property
    def cost(self) -> int:
        """One for each block a person is in."""
        return self.terms.person_blocks


def _divided(slices: Iterator[Array], rates: Rates) -> Iterator[Array]:
    """Slices of columns over their rates, a slice of these at a time: all of them would be the matrix that does not fit."""
    at = 0
    for part in slices:
        yield part / rates.of_pairs(slice(at, at + part.shape[1]))
        at += part.shape[1]


def _leading(slices: Iterator[Array], dim: int, width: int, *, rank: int) -> tuple[Subspace, float]:
    """Directions, (dim, width), and trace of a released symmetric matrix A, (dim, dim), from slices of its columns.

    The slices are merged as in FPCA's SSVD: A ~ U diag(s) V^T, in covariance scale, truncated to `rank` directions until the last
    slice. A is symmetric, so U^T A U = diag(s) V^T U has its eigenvalues with their signs. Negative ones are noise and dropped.
    A positive semi-definite A of rank at most `width` is recovered exactly. One square root gives data scale at the end.
    """
    left, values, right = np.empty((dim, 0)), np.empty(0), np.empty((0, 0))
    trace, start = 0.0, 0
    for part in slices:
        stop = start + part.shape[1]
        # These columns meet the diagonal in the rows of the same numbers.
        trace += float(np.trace(part[start:stop]))
        held = left.shape[1]
        frame = np.hstack([left, complement(part, left)]) if held < dim else left
        # Freed before the next slice is made, because this runs where memory is short.
        del left
        small = np.hstack([np.eye(frame.shape[1], held) * values, frame.T @ part])
        del part
        rotation, sizes, back = np.linalg.svd(small, full_matrices=False)
        keep = min(rank, len(sizes))
        left, values = frame @ rotation[:, :keep], sizes[:keep]
        del frame
        right = np.vstack([right @ back[:keep, :held].T, back[:keep, held:].T])
        start = stop
    inner = values[:, None] * (right.T @ left)
    # Truncation between slices leaves it a little unsymmetric.
    eigenvalues, rotation = np.linalg.eigh((inner + inner.T) / 2)
    space = Subspace(left @ rotation[:, : -width - 1 : -1], np.sqrt(np.maximum(eigenvalues[: -width - 1 : -1], 0.0)))
    return space, trace


def _suits(criteria: StreamRequest) -> str | None:
    if not criteria.private:
        return None
    if criteria.publish == KIND.publishes:
        return "every block is released on its own, a few columns of its products at a time"
    # A synchronisation releases what this has released already.
    if criteria.publish == products.KIND.publishes:
        return f"every block is released on its own: the d x d sum does not fit ({products.room(criteria)})"
    return None


KIND: Final = TrackerKind(
    name="slices",
    state=SlicedState,
    suits=_suits,
    make=lambda terms: SlicedTracker(rank=terms.rank, terms=terms.sums, oversample=terms.oversample),
    numbers=lambda dim, width, blocks: 12 * dim * max(width, _COLUMNS),
    smaller="Choose a smaller {block_size} or a larger {noise_target}, or raise {memory_limit}",
    # Every block has its own noise, so fewer and longer blocks are better: d rows, about the size of a d x d matrix.
    block_size=lambda size, dim: max(size, min(_LARGEST_BLOCK, dim)),
    publishes="block",
    phrase="one release per block",
    moments="with every block",
    schedule="after every block",
    every_block=True,
    apart=True,
    noise_variance=lambda blocks: blocks,
)
