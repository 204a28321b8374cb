"""Exact products of Gram matrices with a basis, without the matrix; scores of rows; and a site's own matrix times a basis.

`privacy.sums.bounded` releases them.
"""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from eigenveil.data.elsewhere import total_of
from eigenveil.data.rows import Block, Rows, block_size
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.linalg.exact import exact_product, less_outer
from eigenveil.linalg.kernel import side_by_side
from eigenveil.linalg.sparse import sparse_times
from eigenveil.privacy.noise.steps import step_of, steps_of
from eigenveil.privacy.sums.domain import SCORE_BITS, SHIFT, Domain, Region, center_scores, row_sums
from eigenveil.privacy.sums.whole.grid import BASIS_UNIT, cached_rows, on_basis_grid, reach_of, unit_of
from eigenveil.privacy.sums.whole.total import EXACT, Integers, Total, WholeSums
from eigenveil.privacy.sums.workers import added_up

__all__ = ["ProductsWork", "whole_gram_times", "whole_scores", "whole_symmetric_times"]

# Rows of a product from which the center is subtracted at a time. Fewer are in a nearer cache, but two threads would then spend
# their time waiting for the lock of Python.
_STRIP = 1024
# Rows that are multiplied by scores at a time: their products add up exactly.
_SCORED_ROWS = 1 << 9
# A site's own matrix is rounded onto a lattice this much finer than that of its release. It is clipped far beyond what the
# release of a product can represent.
_FINER, _MOST = 2.0**-6, 1 << 60


def whole_gram_times(rows: Rows, *, basis: Array, region: Region) -> Array:
    """The Gram matrix times `basis`, (d, p), rounded onto its grid, without the Gram matrix."""
    return _finished(total_of(rows, ProductsWork(region, basis)), region)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ProductsWork:
    """The Gram matrix of the rows in `region` times `basis`, (d, p): the total is (d, p), in units of `Scored.unit`.

    The basis is rounded onto its grid first. For sparse rows with a center, `beside` is s^T S, (1, p), of shifts and scores.
    """

    region: Region
    basis: Array

    def of(self, rows: Rows) -> WholeSums:
        """The sum over rows that are here."""
        basis = on_basis_grid(self.basis)
        return added_up(rows, lambda: _WholeProducts(self.region, basis, sparse=rows.sparse)).sums

    def joined(self, left: WholeSums, right: WholeSums) -> WholeSums:
        """The sum over the rows of both."""
        return left.and_other(right)


def whole_scores(rows: Rows, *, basis: Array, domain: Domain) -> Array:
    """The scores, (n, p), of the clipped rows, each computed by itself, on a basis rounded onto its grid."""
    basis, unit, parts = on_basis_grid(basis), unit_of(domain), [np.zeros((0, basis.shape[1]))]
    center = domain.shifted_center
    for block in rows.blocks(block_size(rows)):
        require(
            block.weights is None, "scores need one row for each person: a table with several rows per person has none"
        )
        if block.sparse:
            part = domain.whole_sparse(block, unit=unit)
            scores = part.rows @ basis
            if center is not None:
                scores -= np.outer(part.shift * (SHIFT / unit), center_scores(center, basis))
        else:
            # Whole rows times a basis of 36 bits: nothing is rounded, so other rows cannot change a score.
            scores = domain.whole(block, unit=unit) @ basis
        parts.append(scores * unit)
    return np.vstack(parts)


def whole_symmetric_times(matrix: Array, *, basis: Array, sensitivity: float) -> Array:
    """A site's own matrix, (d, d), times `basis`, (d, p): both on lattices, and the product rounded once.

    A person moves the matrix by at most `sensitivity`. Rounding to steps g moves neighbours apart by at most d g. On a lattice
    this fine (`step_of`) that is 2^-19 of the sensitivity, less than the 2^-18 that `Domain.gram_times_sensitivity` allows for.
    """
    step = step_of(sensitivity, matrix.size) * _FINER
    whole = np.rint(on_basis_grid(basis) / BASIS_UNIT).astype(np.int64)
    product = exact_product(steps_of(matrix, step, most=_MOST), whole)
    product *= step
    product *= BASIS_UNIT
    return product


@final
class _WholeProducts:
    """One worker's share of the Gram matrix times a basis on its grid, (d, p). Changes in place."""

    def __init__(self, region: Region, basis: Array, *, sparse: bool) -> None:
        self._region, self._basis, self._unit = region, basis, 1.0
        far = sparse and region.shifted_center is not None
        # Sparse rows include the center until it is subtracted, so their entries may be larger than the radius.
        self._bits = math.ceil(math.log2(reach_of(region))) if far else 17
        self.total = Total.zeros(basis.shape, each=1 << (self._bits + SCORE_BITS))
        # How much of the center is still to be subtracted from products of sparse rows: s^T S, (1, p).
        self._drag = Total.zeros((1, basis.shape[1]), each=1 << (24 + SCORE_BITS)) if far else None
        self._scratch = np.empty((0, region.dim))

    def take(self, block: Block) -> None:
        """Add the products of a block's rows."""
        if block.sparse:
            self._take_sparse(block)
            return
        size = cached_rows(self._region.dim)
        if len(self._scratch) == 0:
            self._scratch = np.empty((size, self._region.dim))
        # A few rows at a time stay in the inner cache while they are clipped, scored and multiplied.
        for start in range(0, len(block), size):
            part = self._region.scored(block.piece(start, size), basis=self._basis, out=self._scratch)
            self.total.add(_grouped_product(part.rows, part.scores), len(part.scores))
            self._unit = part.unit

    def _take_sparse(self, block: Block) -> None:
        part = self._region.scored(block, basis=self._basis)
        self._unit = part.unit
        # As many rows at once as cannot overflow.
        most = 1 << (62 - self._bits - SCORE_BITS)
        for start in range(0, len(block), most):
            here = slice(start, start + most)
            rows, scores = (part.rows, part.scores) if len(block) <= most else (part.rows[here], part.scores[here])
            self._add_sparse(rows, scores, part.largest)
        if self._drag is None or part.shift is None:
            return
        # Shifts have 24 bits and scores 27, so 2^11 of their products add up in int64. Halves of shifts have 12 bits, so as many
        # products add up exactly in floats too. BLAS takes a fraction of the time of numpy's product of int64.
        shift, most = part.shift.astype(np.int64), 1 << (62 - 24 - SCORE_BITS)
        halves = np.stack([shift >> 12, shift & 4095]).astype(np.float64)
        for start in range(0, len(block), most):
            scores = part.scores[start : start + most]
            high, low = (halves[:, start : start + most] @ scores).astype(np.int64)
            self._drag.add(((high << 12) + low)[None, :], len(scores))

    def _add_sparse(self, rows: Any, scores: Array, largest: float) -> None:
        """Add rows^T scores: in floats if no sum can pass 2^53, otherwise in int64. Both give the same numbers."""
        # Sorted by column first, which is twice as fast as scattering the products of rows.
        across, into = rows.T.tocsr(), self.total.room(len(scores))
        heaviest = float(row_sums(np.abs(across.data), across.indptr).max(initial=0.0))
        if heaviest * largest > EXACT // 2:
            # Read through the scores only where their common bound does not decide: that takes a while.
            largest = max(float(scores.max(initial=0.0)), -float(scores.min(initial=0.0)))
        if heaviest * largest > EXACT // 2:
            across, scores = across.astype(np.int64), scores.astype(np.int64)
        filled = np.flatnonzero(np.diff(across.indptr))
        # If a block has entries in few columns, the others are skipped: there may be a million of them.
        few = 2 * len(filled) < len(into)
        if few:
            import scipy.sparse as sp

            ends = np.append(across.indptr[filled], across.indptr[-1])
            across = sp.csr_array((across.data, across.indices, ends), shape=(len(filled), len(scores)))

        def add(here: slice, found: Array | Integers) -> None:
            into[filled[here] if few else here] += found.astype(np.int64, copy=False)

        sparse_times(across, scores, add)

    @property
    def sums(self) -> WholeSums:
        """Everything added so far."""
        return WholeSums(self.total, self._unit, self._drag)

    def and_other(self, other: "_WholeProducts") -> None:
        """Add the products of another worker: only dense rows have two, so there is no center to add."""
        self.total.and_other(other.total)


def _finished(sums: WholeSums, region: Region) -> Array:
    """The product, (d, p): R^T S - c (s^T S), subtracted in double-doubles, because the two may nearly cancel.

    Nothing may be added after this, because the result reuses the memory of the sum.
    """
    center = region.shifted_center
    if center is None or sums.beside is None or sums.beside.empty:
        return sums.total.value(sums.unit)
    (hi,), (lo,) = sums.beside.pair()
    scale, found = SHIFT / unit_of(region), sums.total.low.view(np.float64)
    drag = hi * scale, lo * scale

    def put(here: slice) -> None:
        found[here] = less_outer(sums.total.pair(here), center[here], drag) * sums.unit

    # A strip at a time: double-doubles take ten times the memory of the result.
    side_by_side([slice(start, start + _STRIP) for start in range(0, len(found), _STRIP)], put)
    return found


def _grouped_product(rows: Array, scores: Array) -> Array | Integers:
    """rows^T scores, (d, p): groups of rows add up exactly in float64, and the groups in int64."""
    whole = len(rows) // _SCORED_ROWS * _SCORED_ROWS
    if whole == 0:
        return np.asarray(rows.T @ scores)
    grouped = rows[:whole].reshape(-1, _SCORED_ROWS, rows.shape[1]).transpose(0, 2, 1)
    products = grouped @ scores[:whole].reshape(-1, _SCORED_ROWS, scores.shape[1])
    total: Integers = products.astype(np.int64).sum(axis=0)
    return total + (rows[whole:].T @ scores[whole:]).astype(np.int64)
