"""Sums over rows in plain floating point, where no privacy is claimed: exact runs, without noise.

Private sums are added up in whole numbers instead (`eigenveil.core.whole`). `bounded.py` chooses between the two.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from eigenveil.core.domain import Domain, Region, SparseBlock
from eigenveil.core.rows import Block, Rows, RowSum, added_up, block_size, total_of
from eigenveil.core.threads import Array
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.data.engines.gpu.fused import Mover
    from eigenveil.data.engines.gpu.rows import DeviceRows

__all__ = [
    "FloatProductsWork",
    "FloatRegion",
    "FloatSquaresWork",
    "FloatTraceWork",
    "ball_factors",
    "dense",
    "float_gram",
    "float_gram_columns",
    "float_scores",
    "float_sum",
    "moved",
    "sparse",
    "to_ball",
]


class FloatRegion(Region):
    """A region that clips rows in floating point in its own way."""

    __slots__ = ()

    @abstractmethod
    def moved(self, block: Block, *, out: Array, squared: bool = False) -> tuple[Array, Array]:
        """The centered rows of a dense block, written to `out`, (b, d), and the factor, (b,), that clips each of them."""

    @abstractmethod
    def sparse(self, block: Block, *, squared: bool = False) -> SparseBlock:
        """The clipped rows of a sparse block, in implicit form: no zero is ever stored."""


def dense(region: Region, block: Block, *, out: Array | None = None, squared: bool = False) -> Array:
    """The clipped rows, (b, d), of a dense block, in `out` if given. `squared` says that they are for a product.

    >>> dense(Domain(dim=2, radius=1.0), Block(np.array([[3.0, 4.0], [0.1, 0.0]]))).round(12).tolist()
    [[0.6, 0.8], [0.1, 0.0]]
    """
    rows, factor = moved(region, block, out=np.empty((len(block), region.dim)) if out is None else out, squared=squared)
    rows *= factor[:, None]
    return rows


def moved(region: Region, block: Block, *, out: Array, squared: bool = False) -> tuple[Array, Array]:
    """The centered rows of a dense block, written to `out`, (b, d), and the factor, (b,), that clips each to the radius."""
    if isinstance(region, FloatRegion):
        return region.moved(block, out=out, squared=squared)
    assert isinstance(region, Domain)
    rows, squares = region.measured(block, out)
    return rows, ball_factors(region, squares, block.weights, squared=squared)


def ball_factors(domain: Domain, squares: Array, weights: Array | None, *, squared: bool) -> Array:
    """The factors, (b,), by which `moved` clips dense rows of these squared norms."""
    factor = to_ball(domain, squares)
    if weights is not None:
        factor *= np.sqrt(weights) if squared else weights
    return factor


def sparse(region: Region, block: Block, *, squared: bool = False) -> SparseBlock:
    """The clipped rows of a sparse block, in implicit form: no zero is ever stored."""
    import scipy.sparse as sp

    if isinstance(region, FloatRegion):
        return region.sparse(block, squared=squared)
    assert isinstance(region, Domain)
    values, norms = region.stored_norms(block)
    rows = sp.csr_array((values, block.values.indices, block.values.indptr), shape=block.values.shape)
    factor = to_ball(region, norms) * region.counting(block)
    if block.weights is not None:
        factor *= np.sqrt(block.weights) if squared else block.weights
    rows.data = values * np.repeat(factor, np.diff(block.values.indptr))
    return SparseBlock(rows, factor if region.shifted_center is not None else np.zeros(len(block)))


def to_ball(domain: Domain, squares: Array) -> Array:
    """The factors, (b,), that bring rows of these squared norms into the ball."""
    if math.isinf(domain.radius):
        return np.ones(len(squares))
    with np.errstate(divide="ignore"):
        # The last factor keeps a row that is rounded onto the sphere from landing outside it.
        return np.minimum(1.0, domain.radius / np.sqrt(squares) * (1 - 1e-15))


# Rows that are multiplied twice stay in the cache between the two products.
_CACHED_PRODUCT = 512
# Above this ratio of squares a center is far out: more than a hundred standard deviations, which costs two digits of sixteen.
_FAR_OUT = 1e4
# A few rows at a time stay in the inner cache while they are centered, measured and scaled.
_CACHED_ROWS = 128


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _ClippedBlock:
    """Clipped rows of a block, rows - outer(shift, center): the one place that tells dense rows from sparse ones.

    Dense rows, and sparse rows without a center, have neither `shift` nor `center`.
    """

    rows: Any
    sparse: bool
    shift: Array | None = None
    center: Array | None = None

    @classmethod
    def of(cls, block: Block, region: Region, *, squared: bool = True) -> "_ClippedBlock":
        """The rows of a block, clipped by `region`. `squared` says that they are for a product."""
        if not block.sparse:
            return cls(rows=dense(region, block, squared=squared), sparse=False)
        part, center = sparse(region, block, squared=squared), region.shifted_center
        return cls(rows=part.rows, sparse=True, shift=None if center is None else part.shift, center=center)

    def times(self, basis: Array) -> Array:
        """The scores, (b, p), on a basis, (d, p)."""
        scores: Array = self.rows @ basis
        if self.shift is not None and self.center is not None:
            scores -= np.outer(self.shift, self.center @ basis)
        return scores

    def back(self, scores: Array) -> Array:
        """rows^T scores, (d, p), from which outer(center, shift @ scores) is still to be subtracted."""
        # Sparse rows are sorted by column first, which is twice as fast as scattering the products of rows.
        product: Array = (self.rows.T.tocsr() if self.sparse else self.rows.T) @ scores
        return product

    def squares(self) -> list[float]:
        """Terms that add up to the sum of squares of all entries."""
        if not self.sparse:
            return [float(np.einsum("ij,ij->", self.rows, self.rows))]
        terms = [float(self.rows.data @ self.rows.data)]
        if self.shift is not None and self.center is not None:
            # These terms may nearly cancel, so they are not added here: `fsum` adds all blocks' terms without
            # rounding in between.
            terms.append(-2 * float(self.shift @ (self.rows @ self.center)))
            terms.append(float(self.shift @ self.shift) * float(self.center @ self.center))
        return terms


def float_sum(rows: Rows, region: Region) -> Array:
    """The sum, (d,), of the clipped rows."""
    return total_of(rows, FloatSumWork(region))


def float_gram(rows: Rows, region: Region) -> Array:
    """The Gram matrix, (d, d), of the clipped rows."""
    return total_of(rows, FloatGramWork(region))


@final
@dataclass(frozen=True, slots=True, eq=False)
class FloatSumWork(RowSum[Array]):
    """The sum, (d,), of the rows in `region`."""

    region: Region

    def of(self, rows: Rows) -> Array:
        return added_up(rows, lambda: _FloatSum(self.region)).total

    def on_device(self, rows: "DeviceRows", mover: "Mover") -> Array:
        from eigenveil.data.engines.gpu.rows import float_total

        parts = _clipped_there(rows, mover, squared=False)
        return float_total((rows.xp.sum(part, axis=0) for part in parts), (self.region.dim,))


@final
@dataclass(frozen=True, slots=True, eq=False)
class FloatSquaresWork(RowSum[Array]):
    """The sum of squares of each column, (d,), of the rows in `region`, a domain without bounds.

    >>> from eigenveil.data.rows import DenseRows
    >>> domain = Domain(dim=2, radius=math.inf, center=np.ones(2))
    >>> FloatSquaresWork(domain).of(DenseRows(np.array([[1.0, 2.0], [3.0, 4.0]]))).tolist()
    [4.0, 10.0]
    """

    region: Domain

    def of(self, rows: Rows) -> Array:
        total = np.zeros(self.region.dim)
        for block in rows.blocks(block_size(rows)):
            if block.sparse:
                total += self._sparse(block)
                continue
            part = np.zeros(self.region.dim)
            for start in range(0, len(block), _CACHED_ROWS):
                # The root of a weight is in the rows that are for products.
                rows_of_piece = dense(self.region, block.piece(start, _CACHED_ROWS), squared=True)
                part += np.einsum("ij,ij->j", rows_of_piece, rows_of_piece)
            total += part
        return total

    def _sparse(self, block: Block) -> Array:
        matrix, dim = block.values, self.region.dim
        center = np.zeros(dim) if self.region.center is None else self.region.center
        weights = np.ones(len(block)) if block.weights is None else block.weights
        if self.region.gaps is not None:
            weights = weights * self.region.gaps.kept(block)
        each, columns = np.repeat(weights, np.diff(matrix.indptr)), matrix.indices
        # A missing entry is at the center, and one that is not stored is zero.
        off = self.region.stored(block) - center[columns]
        stored = np.bincount(columns, weights=each, minlength=dim)
        return np.asarray(
            np.bincount(columns, weights=each * np.square(off), minlength=dim) + (weights.sum() - stored) * np.square(center)
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class FloatTraceWork(RowSum[list[float]]):
    """Terms that add up to the sum of squares of the rows in `region`.

    They may nearly cancel, so only the last step adds them up.
    """

    region: Region

    def of(self, rows: Rows) -> list[float]:
        blocks = rows.blocks(block_size(rows))
        return [term for block in blocks for term in _ClippedBlock.of(block, self.region).squares()]


@final
@dataclass(frozen=True, slots=True, eq=False)
class FloatGramWork(RowSum[Array]):
    """The Gram matrix, (d, d), of the rows in `region`."""

    region: Region

    def of(self, rows: Rows) -> Array:
        size = block_size(rows)
        if rows.sparse:
            return self._sparse(rows)
        max_rows = min(size, rows.shape[0])
        return added_up(rows, lambda: _FloatDenseGram(self.region, max_rows), dim=self.region.dim).total

    def on_device(self, rows: "DeviceRows", mover: "Mover") -> Array:
        from eigenveil.data.engines.gpu.rows import float_total

        parts = _clipped_there(rows, mover, squared=True)
        return float_total((part.T @ part for part in parts), (self.region.dim, self.region.dim))

    def _sparse(self, rows: Rows) -> Array:
        """(R - s c^T)^T (R - s c^T) = R^T R - (R^T s) c^T - c (R^T s)^T + (s^T s) c c^T."""
        dim, center = self.region.dim, self.region.shifted_center
        total, pull, weight = np.zeros((dim, dim)), np.zeros(dim), 0.0
        for block in rows.blocks(block_size(rows)):
            part = sparse(self.region, block, squared=True)
            product = part.rows.T.tocsr() @ part.rows
            # Adding to indexed places counts a repeated place only once.
            product.sum_duplicates()
            for start in range(0, dim, _CACHED_ROWS):
                # A strip at a time, so that the indices of a full product are never all in memory.
                low, high = product.indptr[start], product.indptr[min(start + _CACHED_ROWS, dim)]
                counts = np.diff(product.indptr[start : start + _CACHED_ROWS + 1])
                lines = start + np.repeat(np.arange(len(counts)), counts)
                total[lines, product.indices[low:high]] += product.data[low:high]
            pull += part.rows.T @ part.shift
            weight += float(part.shift @ part.shift)
        if center is not None:
            cross = np.outer(pull, center)
            total -= cross
            total -= cross.T
            total += weight * np.outer(center, center)
        return total


def float_gram_columns(block: Block, *, width: int, domain: Domain) -> Iterator[Array]:
    """The Gram matrix of a block's rows, at most `width` of its columns at a time: arrays (d, width)."""
    starts = range(0, domain.dim, width)
    if not block.sparse:
        rows = dense(domain, block, squared=True)
        for start in starts:
            yield rows.T @ rows[:, start : start + width]
        return
    part, center = sparse(domain, block, squared=True), domain.shifted_center
    across = part.rows.T.tocsr()
    by_column = part.rows.tocsc()
    pull, weight = across @ part.shift, float(part.shift @ part.shift)
    for start in starts:
        piece = (across @ by_column[:, start : start + width]).toarray()
        if center is not None:
            # The same corrections as for the whole matrix: see `FloatGramWork`.
            chunk = slice(start, start + width)
            piece -= np.outer(pull, center[chunk]) + np.outer(center, pull[chunk] - weight * center[chunk])
        yield piece


def float_scores(rows: Rows, *, basis: Array, domain: Domain) -> Array:
    """The scores, (n, k), of the clipped rows on `basis`, (d, k)."""
    # The empty part is for a table without rows: numpy cannot stack an empty list.
    parts = [np.zeros((0, basis.shape[1]))]
    for block in rows.blocks(block_size(rows)):
        require(block.weights is None, "scores need one row for each person: a table with several rows per person has none")
        parts.append(_ClippedBlock.of(block, domain, squared=False).times(basis))
    return np.vstack(parts)


@final
@dataclass(frozen=True, slots=True, eq=False)
class FloatProductsWork(RowSum[Array]):
    """The Gram matrix of the rows in `region` times `basis`, (d, p)."""

    region: Region
    basis: Array

    def of(self, rows: Rows) -> Array:
        basis, center = self.basis, self.region.shifted_center
        total, drag = np.zeros(basis.shape), np.zeros(basis.shape[1])
        pull = None if center is None else center @ basis
        for block in rows.blocks(block_size(rows)):
            product = None if block.sparse else _product_of_raw_rows(block, basis, self.region, pull)
            if product is None:
                inside = _ClippedBlock.of(block, self.region)
                scores = inside.times(basis)
                if inside.shift is not None:
                    # The center is the same for all blocks, so its outer product is subtracted once, at the end.
                    drag += inside.shift @ scores
                product = inside.back(scores)
            total += product
        if rows.sparse and center is not None:
            total -= np.outer(center, drag)
        return total

    def on_device(self, rows: "DeviceRows", mover: "Mover") -> Array:
        from eigenveil.data.engines.gpu.rows import float_total

        basis = mover.put(self.basis)
        parts = _clipped_there(rows, mover, squared=True)
        return float_total((part.T @ (part @ basis) for part in parts), self.basis.shape)


def _clipped_there(rows: "DeviceRows", mover: "Mover", *, squared: bool) -> Iterator[Any]:
    """The clipped rows of each block on a device."""
    from eigenveil.data.engines.gpu.fused import on_host

    for block in rows.device_blocks():
        values, squares = mover.measured(block.values)
        factors = ball_factors(mover.domain, on_host(squares), block.weights, squared=squared)
        yield values * mover.put(factors)[:, None]


def _product_of_raw_rows(block: Block, basis: Array, domain: Region, pull: Array | None) -> Array | None:
    """The product, (d, p), of rows that need no clipping or scaling, without a copy of the rows; None for all others.

    Only where no privacy is claimed: rows that are clipped must be clipped before any product. If the center is so far out that
    subtracting it from products would lose digits, the result is None, and it is subtracted from the rows.
    """
    if not isinstance(domain, Domain):
        return None
    plain = math.isinf(domain.radius) and domain.low is None and domain.scale is None and domain.gaps is None
    plain = plain and block.weights is None
    if not plain or block.values.dtype != np.float64:
        return None
    total, drag = np.zeros((basis.shape[1], len(basis))), np.zeros(basis.shape[1])
    before = after = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(block), _CACHED_PRODUCT):
            rows = block.values[start : start + _CACHED_PRODUCT]
            scores = rows @ basis
            # Where the center takes most of the scores away, digits are lost, and these two sums of squares tell.
            if pull is not None:
                before += float(np.vdot(scores, scores))
                scores -= pull
                after += float(np.vdot(scores, scores))
                drag += np.ones(len(scores)) @ scores
            total += scores.T @ rows
        if pull is None or domain.center is None:
            return total.T
        total -= np.outer(drag, domain.center)
        # What was subtracted can be as large as this, and its rounding must be negligible next to the rest.
        taken = float(np.abs(domain.center).max()) * math.sqrt(len(block) * after)
        left = math.sqrt(float(np.vdot(total, total)))
    return total.T if before <= _FAR_OUT * after and taken <= _FAR_OUT * left else None


@final
class _FloatSum:
    """One worker's share of a sum of rows. Changes in place."""

    def __init__(self, region: Region) -> None:
        self._region, self.total, self._scratch = region, np.zeros(region.dim), np.empty((0, region.dim))

    def take(self, block: Block) -> None:
        if block.sparse:
            part, center = sparse(self._region, block), self._region.shifted_center
            self.total += part.rows.T @ np.ones(len(block))
            if center is not None:
                self.total -= part.shift.sum() * center
            return
        if len(self._scratch) == 0:
            self._scratch = np.empty((_CACHED_ROWS, self._region.dim))
        for start in range(0, len(block), _CACHED_ROWS):
            rows, factor = moved(self._region, block.piece(start, _CACHED_ROWS), out=self._scratch)
            self.total += factor @ rows

    def and_other(self, other: "_FloatSum") -> None:
        self.total += other.total


@final
class _FloatDenseGram:
    """One worker's share of a dense Gram matrix. Changes in place."""

    def __init__(self, region: Region, size: int) -> None:
        dim = region.dim
        self._region, self.total = region, np.zeros((dim, dim))
        self._product, self._scratch = np.empty((dim, dim)), np.empty((size, dim))

    def take(self, block: Block) -> None:
        rows = self._scratch[: len(block)]
        for start in range(0, len(block), _CACHED_ROWS):
            dense(self._region, block.piece(start, _CACHED_ROWS), out=rows[start:], squared=True)
        # For the same array twice, numpy calls the symmetric product, which is half the work.
        np.matmul(rows.T, rows, out=self._product)
        self.total += self._product

    def and_other(self, other: "_FloatDenseGram") -> None:
        self.total += other.total
