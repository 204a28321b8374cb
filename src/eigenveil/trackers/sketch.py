"""`BlockTracker`: FPCA-Edge without noise. One pass, a block at a time, in O(d r) numbers besides the block.

The paper takes the SVD of [old directions, block], which costs as much as the block's own SVD. Here two products with the block
give a basis that nearly contains the answer, and only a small matrix is decomposed.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.mechanism import Mechanism
from eigenveil.core.rows import is_sparse
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, complement, orthonormal, thin_svd, top_eigen
from eigenveil.linalg.sketch import Sketch, pull_of_means
from eigenveil.trackers.base import SketchTracker, StreamRequest, TrackerKind, require_exact, require_rows
from eigenveil.trackers.sums import EnergyBounds

__all__ = ["KIND", "OVERSAMPLE", "BlockState", "BlockTracker"]

# Directions kept beyond the requested rank: a later block may make them leading.
OVERSAMPLE: Final = 10
# Random combinations of the block's rows: they show directions that the sketch does not have yet.
_FRESH: Final = 5
# Above this ratio of the mean's square to the scatter, the mean is subtracted before products: squares would round the scatter
# off.
_MEAN_DOMINATES: Final = 1e4


@final
@dataclass(frozen=True, slots=True, eq=False)
class BlockState:
    """A sketch, the current target rank, and the number of blocks so far. Raw data until it is released."""

    sketch: Sketch
    rank: int
    blocks: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTracker(SketchTracker[BlockState]):
    """The leading `rank` directions of a stream, with `oversample` more kept inside; FPCA Alg. 3 without its mask.

    The scatter to decompose is C = U S^2 U^T + Y^T Y + q q^T. Its terms are the old scatter, a block Y around its mean, and q
    between the two means. Its leading space is searched for in the span Q of [C U, Y^T Omega, q], with Omega random, (b, 5).
    This is one step of subspace iteration from the old answer, widened by the block (Halko, Martinsson and Tropp 2011). Q^T C Q
    is small, and its eigenvectors rotate Q into the answer. The first block, and blocks with no more rows than directions, are
    decomposed fully.

    Old singular values are multiplied by `forget` at every block, so a row that is `j` blocks old counts forget^(2 j). With
    `adapt`, the rank follows the energy bounds (FPCA (4)). With `center`, the tracker also follows the mean.

    >>> from eigenveil.trackers import NOTHING_ASKED
    >>> rows = np.random.default_rng(0).standard_normal((600, 50)) * ([9, 4] + [0.1] * 48)
    >>> tracker = BlockTracker(rank=2)
    >>> state = tracker.start(50)
    >>> for block in np.split(rows, 3):
    ...     state = tracker.step(state, block, NOTHING_ASKED)
    >>> whole = Subspace.of(rows - rows.mean(axis=0), rank=2)
    >>> bool(tracker.subspace(state).sines(whole).max() < 1e-4)
    True
    """

    rank: int
    oversample: int = OVERSAMPLE
    forget: float = 1.0
    adapt: EnergyBounds | None = None
    center: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"rank must be at least 1, got {self.rank}")
        require(self.oversample >= 0, f"oversample must not be negative, got {self.oversample}")
        require(0 < self.forget <= 1, f"forget must lie in (0, 1], got {self.forget}")

    def start(self, dim: int) -> BlockState:
        require(self.rank <= dim, f"rank must be at most the number of columns, {dim}, got {self.rank}")
        return BlockState(Sketch.empty(dim), self.rank, 0)

    def sketch(self, state: BlockState, *, max_rank: int | None = None) -> Sketch:
        """All of the state: raw data."""
        return state.sketch

    def sync(self, state: BlockState, mechanism: Mechanism) -> BlockState:
        require_exact(mechanism, "BlockTracker")
        return state

    def rank_of(self, state: BlockState) -> int:
        return state.rank

    def noise_floor(self, state: BlockState) -> float:
        return 0.0

    def releases(self, state: BlockState) -> int:
        return 0

    def with_means(self, state: BlockState, columns: NDArray[Any], means: Array) -> BlockState:
        """These columns were filled with one constant, which added nothing to the scatter: only the mean moves."""
        return replace(state, sketch=replace(state.sketch, mean=np.where(columns, means, state.sketch.mean)))

    @property
    def cost(self) -> int:
        """Nothing is released."""
        return 0

    def step(self, state: BlockState, rows: Any, mechanism: Mechanism) -> BlockState:
        """Take a block of rows, (b, d), dense or CSR."""
        require_exact(mechanism, "BlockTracker")
        old = state.sketch
        require_rows(rows, old.dim)
        if rows.shape[0] == 0:
            return state
        width = min(state.rank + self.oversample, old.dim)
        block = _Block.of(rows, center=self.center)
        fade = self.forget**2
        weight = old.weight * fade
        pull, more, mean = np.zeros(old.dim), 0.0, old.mean
        if self.center:
            # The old mean counts with its faded weight, so that a stream that drifts is followed.
            pull, more, mean = pull_of_means(old.mean, block.mean, weight, float(len(block)))
        squares = np.square(old.subspace.values) * fade
        if old.subspace.rank == 0:
            subspace = block.leading(width)
        elif len(block) <= width:
            # Decomposed fully, so that a stream which ends early is exact (docs/decisions/0006).
            subspace = _whole(old.subspace.basis, squares, block, pull, width)
        else:
            # From the seed and the block number, so that a stored state continues to the same last bit.
            rng = np.random.default_rng((self.seed, state.blocks))
            # As many more as the sketch lacks, so that it can grow to its full width.
            fresh = rng.standard_normal((len(block), _FRESH + max(0, width - old.subspace.rank)))
            subspace = _projected(old.subspace.basis, squares, block, pull, fresh, width)
        energy = old.energy * fade + block.energy + more
        sketch = Sketch(subspace=subspace, mean=mean, weight=weight + len(block), energy=energy)
        rank = state.rank if self.adapt is None else self.adapt.adjusted(state.rank, subspace.values)
        return BlockState(sketch, rank, state.blocks + 1)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Block:
    """Raw rows, (b, d), and the offset, (d,), that every product subtracts: Y = values - 1 offset^T."""

    values: Any
    offset: Array
    mean: Array
    energy: float

    @classmethod
    def of(cls, rows: Any, *, center: bool) -> "_Block":
        count, dim = rows.shape
        with np.errstate(over="ignore", invalid="ignore"):
            if is_sparse(rows):
                values = rows.astype(np.float64, copy=False)
                squares = float(values.data @ values.data)
            else:
                values = np.ascontiguousarray(rows, dtype=np.float64)
                squares = float(np.vdot(values, values))
        # The squares add up to a finite number only if every entry is finite.
        require(math.isfinite(squares), "rows must be finite, and not too large to square")
        if not center:
            return cls(values=values, offset=np.zeros(dim), mean=np.zeros(dim), energy=squares)
        mean: Array = (values.T @ np.ones(count)) / count
        inside = squares - count * float(mean @ mean)
        # Sparse rows are never moved: the mean would fill in every zero.
        if is_sparse(rows) or count * float(mean @ mean) <= _MEAN_DOMINATES * inside:
            return cls(values=values, offset=mean, mean=mean, energy=max(inside, 0.0))
        moved = values - mean
        return cls(values=moved, offset=np.zeros(dim), mean=mean, energy=float(np.vdot(moved, moved)))

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def times(self, basis: Array) -> Array:
        """Y basis, (b, p)."""
        product: Array = self.values @ basis
        product -= self.offset @ basis
        return product

    def back(self, weights: Array) -> Array:
        """Y^T weights, (d, p)."""
        product: Array = self.values.T @ weights
        product -= np.outer(self.offset, weights.sum(axis=0))
        return product

    def leading(self, width: int) -> Subspace:
        """The leading directions of these rows only: through the smaller of the two Gram matrices, then rotated once more."""
        count, dim = self.values.shape
        rank = min(width, count, dim)
        if count < dim:
            gram, reach = _dense(self.values @ self.values.T), self.values @ self.offset
            # In place, so that this needs only one matrix: (Y Y^T)_ij = y_i y_j - y_i c - c y_j + c c.
            gram -= reach[:, None]
            gram -= reach - float(self.offset @ self.offset)
            start = self.back(top_eigen(gram, rank=rank, overwrite=True)[1])
        else:
            gram = _dense(self.values.T @ self.values)
            for line, weight in zip(gram, self.offset, strict=True):
                line -= count * weight * self.offset
            start = top_eigen(gram, rank=rank, overwrite=True)[1]
        del gram
        # Eigenvalues of a Gram matrix have half the digits in their roots, so values come from an SVD of the scores.
        basis = orthonormal(_unit(start))
        _, values, rotation = np.linalg.svd(self.times(basis), full_matrices=False)
        return Subspace(basis @ rotation.T, values)


def _dense(product: Any) -> Array:
    whole: Array = product.toarray() if is_sparse(product) else product
    return whole


def _whole(basis: Array, squares: Array, block: _Block, pull: Array, width: int) -> Subspace:
    """The SVD of [U S, Y^T, q] itself, for few rows."""
    more = np.column_stack([block.back(np.eye(len(block))), pull])
    whole = np.hstack([basis * np.sqrt(squares), more])
    if whole.shape[1] >= len(basis):
        vectors, values = thin_svd(whole, rank=min(width, len(basis)))
        return Subspace(vectors, values)
    frame = np.hstack([basis, complement(more, basis)])
    rotation, values, _ = np.linalg.svd(frame.T @ whole, full_matrices=False)
    rank = min(width, len(values))
    return Subspace(frame @ rotation[:, :rank], values[:rank])


def _projected(basis: Array, squares: Array, block: _Block, pull: Array, fresh: Array, width: int) -> Subspace:
    """The leading `width` directions of C within the span of [C U, Y^T Omega, q]."""
    held = basis.shape[1]
    scores = block.times(basis)
    span = np.empty((len(basis), held + fresh.shape[1] + 1))
    # C U = Y^T Y U + U S^2 + q q^T U, added up term by term, so that C is never formed.
    span[:, :-1] = block.back(np.hstack([scores, fresh]))
    span[:, :held] += basis * squares
    span[:, :held] += np.outer(pull, pull @ basis)
    span[:, -1] = pull
    # With as many columns as dimensions, the span is everything.
    frame = orthonormal(_unit(span)) if span.shape[1] < len(span) else np.eye(len(span))
    scores, across, along = block.times(frame), basis.T @ frame, pull @ frame
    small = (across.T * squares) @ across
    small += scores.T @ scores
    small += np.outer(along, along)
    values, rotation = np.linalg.eigh(small)
    rank = min(width, len(values))
    return Subspace(frame @ rotation[:, : -rank - 1 : -1], np.sqrt(np.maximum(values[: -rank - 1 : -1], 0.0)))


def _unit(columns: Array) -> Array:
    """Columns of norm one, so that their sizes do not affect the conditioning; zero columns stay zero."""
    norms = np.sqrt(np.einsum("ij,ij->j", columns, columns))
    odd = np.flatnonzero(~((norms > 1e-140) & (norms < 1e140)))
    if len(odd):
        # Squares of these overflow or underflow, although the columns are neither infinite nor zero.
        sizes = np.abs(columns[:, odd]).max(axis=0)
        sizes[sizes == 0] = 1.0
        norms[odd] = sizes * np.linalg.norm(columns[:, odd] / sizes, axis=0)
    return columns / np.where(norms > 0, norms, 1.0)


def _suits(criteria: StreamRequest) -> str | None:
    return None if criteria.private else f"the leading {criteria.width} directions are kept and updated block by block"


KIND: Final = TrackerKind(
    name="sketch",
    state=BlockState,
    suits=_suits,
    make=lambda terms: BlockTracker(
        rank=terms.rank,
        oversample=terms.oversample,
        forget=terms.sums.forget,
        adapt=terms.sums.adapt,
        center=terms.sums.center,
        seed=terms.seed,
    ),
    numbers=lambda dim, width, blocks: 8 * dim * width,
    smaller="Choose a smaller {block_size}, {oversample} or {n_components}, or raise {memory_limit}",
)
