"""Sums over rows in plain floating point, for regions that claim nothing: exact runs, where no noise is added anywhere.

What is private is added up in whole numbers instead (`eigenveil.privacy.sums.whole`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import numpy as np

from eigenveil.data.rows import Block, Rows, block_size
from eigenveil.errors import require
from eigenveil.linalg.kernel import Array, shared_work
from eigenveil.privacy.sums.domain import Domain, Region

__all__ = ["float_gram", "float_gram_columns", "float_gram_times", "float_scores", "float_sum", "float_trace"]

# Up to this dimension two workers with an accumulator each beat one with twice the BLAS threads.
_TWO_WORKERS = 2048
# Rows that are multiplied twice stay in the cache between the two.
_CACHED_PRODUCT = 512
# Above this ratio of squares a center is far out: more than a hundred standard deviations, two digits of sixteen.
_FAR_OUT = 1e4
# A few rows at a time stay in the inner cache while they are moved, measured and scaled.
_CACHED_ROWS = 128


def float_sum(rows: Rows, region: Region) -> Array:
    """The sum, (d,), of the rows in `region`."""
    size = block_size(rows)
    workers = [_Sum(region) for _ in range(1 if rows.sparse or rows.shape[0] <= size else 2)]
    shared_work(rows.blocks(size), workers=workers, take=_Sum.take)
    total = workers[0].total
    for worker in workers[1:]:
        total += worker.total
    return total


def float_trace(rows: Rows, region: Region) -> float:
    """The total sum of squares of the rows in `region`."""
    squares = []
    center = region.shifted_center
    for block in rows.blocks(block_size(rows)):
        if block.sparse:
            part = region.sparse(block, squared=True)
            squares.append(float(part.rows.data @ part.rows.data))
            if center is not None:
                squares.append(-2 * float(part.shift @ (part.rows @ center)))
                squares.append(float(part.shift @ part.shift) * float(center @ center))
        else:
            values = region.dense(block, squared=True)
            squares.append(float(np.einsum("ij,ij->", values, values)))
    return math.fsum(squares)


def float_gram(rows: Rows, region: Region) -> Array:
    """The Gram matrix, (d, d), of the rows in `region`."""
    size = block_size(rows)
    if rows.sparse:
        total = _SparseGram(region)
        shared_work(rows.blocks(size), workers=[total], take=_SparseGram.take)
        return total.finish()
    # Two workers hold two accumulators and two products between them: four matrices, the most that is allowed.
    several = rows.shape[0] > size and region.dim <= _TWO_WORKERS
    workers = [_DenseGram(region, min(size, rows.shape[0])) for _ in range(2 if several else 1)]
    shared_work(rows.blocks(size), workers=workers, take=_DenseGram.take)
    gram = workers[0].total
    for worker in workers[1:]:
        gram += worker.total
    return gram


def float_gram_columns(block: Block, *, width: int, domain: Domain) -> Iterator[Array]:
    """The Gram matrix of a block's rows, at most `width` of its columns at a time: arrays (d, width)."""
    starts = range(0, domain.dim, width)
    if not block.sparse:
        rows = domain.dense(block, squared=True)
        for start in starts:
            yield rows.T @ rows[:, start : start + width]
        return
    part, center = domain.sparse(block, squared=True), domain.shifted_center
    across = part.rows.T.tocsr()
    by_column = part.rows.tocsc()
    pull, weight = across @ part.shift, float(part.shift @ part.shift)
    for start in starts:
        piece = (across @ by_column[:, start : start + width]).toarray()
        if center is not None:
            # The same corrections as for the whole matrix: see `_SparseGram`.
            here = slice(start, start + width)
            piece -= np.outer(pull, center[here]) + np.outer(center, pull[here] - weight * center[here])
        yield piece


def float_scores(rows: Rows, *, basis: Array, domain: Domain) -> Array:
    """The scores, (n, k), of the rows in `domain` on `basis`, (d, k)."""
    center, parts = domain.shifted_center, [np.zeros((0, basis.shape[1]))]
    for block in rows.blocks(block_size(rows)):
        require(block.weights is None, "people with several rows have several scores: one row for each is needed")
        if block.sparse:
            part = domain.sparse(block)
            parts.append(part.rows @ basis - (0.0 if center is None else np.outer(part.shift, center @ basis)))
        else:
            parts.append(domain.dense(block) @ basis)
    return np.vstack(parts)


def float_gram_times(rows: Rows, *, basis: Array, region: Region) -> Array:
    """The Gram matrix times `basis`, (d, p), without the Gram matrix."""
    total = np.zeros(basis.shape)
    center = region.shifted_center
    pull = None if center is None else center @ basis
    drag = np.zeros(basis.shape[1])
    for block in rows.blocks(block_size(rows)):
        if block.sparse:
            part = region.sparse(block, squared=True)
            scores = part.rows @ basis
            if center is not None and pull is not None:
                scores -= np.outer(part.shift, pull)
                drag += part.shift @ scores
            # Sorted by column first: twice as fast as scattering the rows' products.
            total += part.rows.T.tocsr() @ scores
        elif (product := _product_as_they_are(block, basis, region, pull)) is not None:
            total += product
        else:
            values = region.dense(block, squared=True)
            total += values.T @ (values @ basis)
    if rows.sparse and center is not None:
        total -= np.outer(center, drag)
    return total


def _product_as_they_are(block: Block, basis: Array, domain: Region, pull: Array | None) -> Array | None:
    """The product, (d, p), of rows that need no change but for the center, without a copy of the rows; None for all others.

    Only where nothing is claimed: rows that are cut or scaled down must be so before any product. A center so far out that
    subtracting it from products would lose digits is taken off the rows instead.
    """
    if not isinstance(domain, Domain):
        return None
    plain = math.isinf(domain.radius) and domain.low is None and domain.scale is None and block.weights is None
    if not plain or block.values.dtype != np.float64:
        return None
    total, drag = np.zeros((basis.shape[1], len(basis))), np.zeros(basis.shape[1])
    before = after = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(block), _CACHED_PRODUCT):
            rows = block.values[start : start + _CACHED_PRODUCT]
            scores = rows @ basis
            if pull is not None:
                before += float(np.vdot(scores, scores))
                scores -= pull
                after += float(np.vdot(scores, scores))
                drag += np.ones(len(scores)) @ scores
            total += scores.T @ rows
        if pull is None or domain.center is None:
            return total.T
        total -= np.outer(drag, domain.center)
        # What was subtracted can be as large as this, and its rounding must be nothing beside what is left.
        taken = float(np.abs(domain.center).max()) * math.sqrt(len(block) * after)
        left = math.sqrt(float(np.vdot(total, total)))
    return total.T if before <= _FAR_OUT * after and taken <= _FAR_OUT * left else None


@final
@dataclass(slots=True, eq=False)
class _Sum:
    """One worker's share of a sum of rows. Changes in place."""

    domain: Region
    total: Array = field(init=False)
    scratch: Array = field(init=False)

    def __post_init__(self) -> None:
        self.total, self.scratch = np.zeros(self.domain.dim), np.empty((0, self.domain.dim))

    def take(self, block: Block) -> None:
        if block.sparse:
            part, center = self.domain.sparse(block), self.domain.shifted_center
            self.total += part.rows.T @ np.ones(len(block))
            if center is not None:
                self.total -= part.shift.sum() * center
        else:
            if len(self.scratch) == 0:
                self.scratch = np.empty((_CACHED_ROWS, self.domain.dim))
            for start in range(0, len(block), _CACHED_ROWS):
                rows, factor = self.domain.moved(block.piece(start, _CACHED_ROWS), out=self.scratch)
                self.total += factor @ rows


@final
@dataclass(slots=True, eq=False)
class _DenseGram:
    """One worker's share of a dense Gram matrix. Changes in place."""

    domain: Region
    size: int
    total: Array = field(init=False)
    product: Array = field(init=False)
    scratch: Array = field(init=False)

    def __post_init__(self) -> None:
        dim = self.domain.dim
        self.total, self.product = np.zeros((dim, dim)), np.empty((dim, dim))
        self.scratch = np.empty((self.size, dim))

    def take(self, block: Block) -> None:
        rows = self.scratch[: len(block)]
        for start in range(0, len(block), _CACHED_ROWS):
            self.domain.dense(block.piece(start, _CACHED_ROWS), out=rows[start:], squared=True)
        # numpy sees the same array twice and calls the symmetric product, half the work.
        np.matmul(rows.T, rows, out=self.product)
        self.total += self.product


@final
@dataclass(slots=True, eq=False)
class _SparseGram:
    """The Gram matrix of sparse rows, with the center taken out by rank-two corrections. Changes in place.

    (R - s c^T)^T (R - s c^T) = R^T R - (R^T s) c^T - c (R^T s)^T + (s^T s) c c^T.
    """

    domain: Region
    total: Array = field(init=False)
    pull: Array = field(init=False)
    weight: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        dim = self.domain.dim
        self.total, self.pull = np.zeros((dim, dim)), np.zeros(dim)

    def take(self, block: Block) -> None:
        part = self.domain.sparse(block, squared=True)
        product = part.rows.T.tocsr() @ part.rows
        product.sum_duplicates()
        for start in range(0, self.domain.dim, _CACHED_ROWS):
            # A strip at a time, so that the indices of a full product need not be written out.
            low, high = product.indptr[start], product.indptr[min(start + _CACHED_ROWS, self.domain.dim)]
            counts = np.diff(product.indptr[start : start + _CACHED_ROWS + 1])
            lines = start + np.repeat(np.arange(len(counts)), counts)
            self.total[lines, product.indices[low:high]] += product.data[low:high]
        self.pull += part.rows.T @ part.shift
        self.weight += float(part.shift @ part.shift)

    def finish(self) -> Array:
        center = self.domain.shifted_center
        if center is not None:
            cross = np.outer(self.pull, center)
            self.total -= cross
            self.total -= cross.T
            self.total += self.weight * np.outer(center, center)
        return self.total
