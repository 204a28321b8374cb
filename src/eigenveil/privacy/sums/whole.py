"""Exact sums over rows: whole numbers of public units, the same for any order, partition, number of threads and machine.

A bound on the error of a sum in floating point grows with the number of rows, which is private, so no stated sensitivity could
cover it. Here every row is on a grid inside its ball (`Region.pair`, `Region.scored`), entries have few bits, and
  - within a block, products and partial sums are whole numbers below 2^53: float64 holds them, in whatever order BLAS adds them;
  - across blocks they are added in int64, with a carry long before 2^63 (`Total`);
  - only the finished sum becomes a float, by one rounding.
So neighbours differ by what one person adds, exactly, and a Gram matrix is exactly symmetric. The bits, with the radius at most
2^17 units: a row has 17 and a product of two entries 34, which leaves room for 2^19 rows in a block; scores have 27 and products
with them 44, which leaves room for 2^9 rows at a time; entries of a row for a sum have 34, which leaves room for 2^19 rows.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from eigenveil.data.rows import Block, Rows, block_size
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.linalg.exact import DoubleDouble, exact_product, joined, less_outer, minus_outer, two_sum
from eigenveil.linalg.kernel import shared_work, side_by_side
from eigenveil.linalg.sparse import sparse_times
from eigenveil.privacy.noise.steps import step_of, steps_of
from eigenveil.privacy.sums.domain import SCORE_BITS, SHIFT, Domain, Region, center_scores, row_sums

__all__ = [
    "CARRY",
    "COUNT_UNIT",
    "Total",
    "add_block",
    "on_basis_grid",
    "sum_unit",
    "whole_count",
    "whole_gram",
    "whole_gram_columns",
    "whole_gram_times",
    "whole_scores",
    "whole_sum",
    "whole_symmetric_times",
    "whole_trace",
    "whole_weights",
]

Integers = NDArray[np.int64]

# What people are counted in: a row of a person who has m of them counts as 2^34 / m, rounded down. Where the number of all people
# is wanted and nothing else, it is counted in a finer one.
COUNT_UNIT, _FINE_COUNT = 2.0**-34, 2.0**-45
# Bases are brought onto multiples of this.
_BASIS_UNIT = 2.0**-35
# The most that a row adds to a product: those of tables have 34 bits, those of histories 36.
_PRODUCT = 1 << 36
# Rows for a sum have so many more bits than rows for products.
_SUM_BITS = 17
# An int64 that no sum of so many bits can have overflowed is carried over to a second one, so many bits higher.
_FULL, CARRY = 1 << 61, 32
# What may be added at a time: in int64, next to what a carry leaves there, and in float64, where sums of whole numbers are exact.
_ROOM, _EXACT = 1 << 62, 1 << 53
# Up to this dimension two workers with an accumulator each beat one with twice the BLAS threads.
_TWO_WORKERS = 2048
# Numbers of rows that stay in the inner cache while they are moved, measured, scaled and rounded; and rows at a time, at least.
_CACHED_NUMBERS, _CACHED_ROWS = 1 << 17, 128
# Rows of a sum that are put together at a time.
_STRIP = 512
# Rows that scores are multiplied with at a time: their products add up exactly.
_SCORED_ROWS = 1 << 9
# Rows whose products add up in float64; and sparse rows as far as 100 radii from zero, whose products add up in int64.
_DENSE_ROWS, _SPARSE_ROWS = 1 << 18, 1 << 14
# A symmetric matrix in place of rows is brought onto a lattice this much finer than that of its release, and clipped far beyond
# what the release of a product holds.
_FINER, _MOST = 2.0**-6, 1 << 60


@final
@dataclass(slots=True, eq=False)
class Total:
    """A running sum of whole arrays that never overflows. Changes in place.

    `each` is the most that one row adds to an entry. Long before that could pass 2^63 the upper bits are carried over to a second
    array, so the number that is held, high 2^32 + low, is always the exact sum.
    """

    low: Integers
    each: int
    high: Integers | None = None
    _rows: int = field(init=False, default=0)

    @classmethod
    def zeros(cls, shape: tuple[int, ...], *, each: int) -> "Total":
        """Nothing yet."""
        return cls(np.zeros(shape, dtype=np.int64), max(each, 1))

    @classmethod
    def of(cls, low: Integers, *, each: int, rows: int) -> "Total":
        """What so many rows have added up to already."""
        found = cls(low, max(each, 1))
        found._rows = rows
        return found

    @property
    def empty(self) -> bool:
        """Whether nothing has been added."""
        return self._rows == 0

    def room(self, rows: int) -> Integers:
        """Where what so many rows add is to be added: the caller adds to it in place."""
        require(rows * self.each <= _ROOM, "so many rows at a time could overflow: add them up in smaller blocks")
        if (self._rows + rows) * self.each > _FULL:
            self._carry()
        self._rows += rows
        return self.low

    def add(self, values: Array | Integers, rows: int) -> None:
        """Add what so many rows add up to: whole numbers, as floats or int64."""
        exact = values.dtype.kind != "f" or rows * self.each <= _EXACT
        require(exact, "floating point cannot add up so many rows at a time exactly: add them up in smaller blocks")
        into = self.room(rows).reshape(-1, values.shape[-1]) if values.ndim > 1 else self.room(rows)
        for start in range(0, len(into), _CACHED_ROWS if values.ndim > 1 else len(into) or 1):
            stop = start + (_CACHED_ROWS if values.ndim > 1 else len(into))
            into[start:stop] += values[start:stop].astype(np.int64)

    def and_other(self, other: "Total") -> None:
        """Add what another worker has added up."""
        if other.high is not None or other._rows * other.each > _FULL // 2:
            other._carry()
            self._carry()
            assert self.high is not None and other.high is not None
            self.high += other.high
        self.room(other._rows)
        self.low += other.low

    def _carry(self) -> None:
        self.high = np.zeros_like(self.low) if self.high is None else self.high
        self.high += self.low >> CARRY
        self.low &= (1 << CARRY) - 1
        # What is left counts as the rows that it could be of.
        self._rows = -(-(1 << CARRY) // self.each)

    def whole(self) -> Integers:
        """The sum itself, for who knows that it fits: an error where it might not."""
        require(self.high is None, "a sum over so many rows may not fit into 64 bits: add them up in smaller blocks")
        return self.low

    def pair(self, here: slice = slice(None)) -> DoubleDouble:
        """The sum, or some rows of it, as a pair of floats, without loss."""
        low = self.low[here]
        if self.high is None and (low.size == 0 or max(int(low.max()), -int(low.min())) <= _EXACT):
            return low.astype(np.float64), np.zeros(low.shape)
        high = low >> CARRY
        if self.high is not None:
            high += self.high[here]
        return joined(high, low & ((1 << CARRY) - 1), bits=CARRY)

    def value(self, unit: float) -> Array:
        """The sum times `unit`, rounded once to float64. Nothing may be added after this."""
        if self.high is not None:
            self._carry()
            found = self.high.astype(np.float64)
            found *= 2.0**CARRY
            found += self.low
        else:
            # In place, some rows at a time: a matrix of this size may be all that fits.
            found = self.low.view(np.float64)
            flat, out = self.low.reshape(-1), found.reshape(-1)
            for start in range(0, len(flat), _CACHED_NUMBERS):
                out[start : start + _CACHED_NUMBERS] = flat[start : start + _CACHED_NUMBERS].astype(np.float64)
        found *= unit
        return found


def on_basis_grid(basis: Array) -> Array:
    """`basis` with entries rounded to multiples of 2^-35.

    >>> on_basis_grid(np.array([[0.5, 1e-30]])).tolist()
    [[0.5, 0.0]]
    """
    grid: Array = basis / _BASIS_UNIT
    np.rint(grid, out=grid)
    grid *= _BASIS_UNIT
    return grid


def whole_weights(weights: Array, *, unit: float = COUNT_UNIT) -> Integers:
    """How much rows count, (b,), in whole numbers of `unit`, rounded down, so that no person counts as more than one.

    m rows of weight fl(1 / m) count as k <= fl(1 / m) / unit each; m k is whole, below (1 + 2^-52) / unit, so at most 1 / unit.

    >>> int(3 * whole_weights(np.array([1 / 3]))[0]) - 2**34
    -1
    """
    return np.floor(weights / unit).astype(np.int64)


def whole_count(rows: Rows) -> float:
    """The number of people, weights added up exactly."""
    total, one = 0, round(1 / _FINE_COUNT)
    for block in rows.blocks(block_size(rows)):
        weights = block.weights
        total += len(block) * one if weights is None else int(whole_weights(weights, unit=_FINE_COUNT).sum())
    return float(Fraction(total) * Fraction(_FINE_COUNT))


def whole_trace(rows: Rows, region: Region) -> float:
    """The sum of the squared lengths of the rows in `region`, each rounded down to a whole number."""
    unit = _unit(region) ** 2
    # Each is below 2^34, and a block of them below 2^53.
    total = sum(int(np.floor(region.squares(block) / unit).sum()) for block in rows.blocks(block_size(rows)))
    return float(Fraction(total) * Fraction(unit))


def whole_sum(rows: Rows, region: Region) -> Array:
    """The sum, (d,), of the rows in `region`."""
    size = block_size(rows)
    workers = [_Sum(region, sparse=rows.sparse) for _ in range(1 if rows.sparse or rows.shape[0] <= size else 2)]
    shared_work(rows.blocks(size), workers=workers, take=_Sum.take)
    for worker in workers[1:]:
        workers[0].and_other(worker)
    return workers[0].finish()


def whole_gram(rows: Rows, region: Region) -> Array:
    """The Gram matrix, (d, d), of the rows in `region`, exactly symmetric."""
    size = block_size(rows)
    if rows.sparse:
        sparse = _SparseGram(region)
        shared_work(rows.blocks(size), workers=[sparse], take=_SparseGram.take)
        return sparse.finish()
    # Two workers hold two accumulators and two products between them: four matrices, the most that is allowed.
    several = rows.shape[0] > size and region.dim <= _TWO_WORKERS
    workers = [_DenseGram(region, min(size, rows.shape[0])) for _ in range(2 if several else 1)]
    shared_work(rows.blocks(size), workers=workers, take=_DenseGram.take)
    total, unit = workers[0].total, workers[0].unit
    for worker in workers[1:]:
        total.and_other(worker.total)
    del workers
    return total.value(unit)


def sum_unit(region: Region) -> float:
    """What sums of rows are whole numbers of: finer than what products are made of.

    >>> sum_unit(Domain(dim=2, radius=1.0)) == 2.0**-33
    True
    """
    return _unit(region) * 2.0**-_SUM_BITS


def add_block(block: Block, domain: Domain, *, gram: Integers, total: Integers | None) -> None:
    """Add what a block adds to the Gram matrix, (d, d), in whole numbers of `domain.unit` squared, and to the sum of its rows,
    (d,), in whole numbers of `sum_unit`, for who adds up blocks. Changes both in place; there may be no sum.

    A row adds at most 2^34 to an entry of either. Of sparse rows around a center, what a piece of the block adds is rounded to a
    whole number and then off by less than one; of neighbours only the pieces differ that the person is in.
    """
    if block.sparse:
        for start in range(0, len(block), _SPARSE_ROWS):
            piece = block.piece(start, _SPARSE_ROWS)
            gram += _sparse_gram(piece, domain)
            if total is not None:
                total += _sparse_sum(piece, domain)
        return
    for start in range(0, len(block), _DENSE_ROWS):
        _add_dense(block.piece(start, _DENSE_ROWS), domain, gram, total)


def _add_dense(block: Block, domain: Domain, gram: Integers, total: Integers | None) -> None:
    """At most `_DENSE_ROWS` dense rows, some at a time: they stay in the inner cache, and no second block is needed."""
    dim, size = domain.dim, min(_cached(domain.dim), len(block))
    rows, fine, product = np.empty((size, dim)), np.empty((size, dim)), np.empty((dim, dim))
    # Products of so many rows, 34 bits each, add up in float64 without rounding.
    fresh, fresh_total = np.zeros((dim, dim)), np.zeros(dim)
    unit, unit_of_sum = _unit(domain), sum_unit(domain)
    for start in range(0, len(block), size):
        piece = block.piece(start, size)
        if total is None:
            inside = domain.whole(piece, unit=unit, squared=True, out=rows)
        else:
            inside, summed = domain.whole_twice(piece, unit=unit, fine=unit_of_sum, out=rows, out_fine=fine)
            fresh_total += np.add.reduce(summed, axis=0)
        np.matmul(inside.T, inside, out=product)
        fresh += product
    del rows, fine, product
    for start in range(0, dim, _CACHED_ROWS):
        gram[start : start + _CACHED_ROWS] += fresh[start : start + _CACHED_ROWS].astype(np.int64)
    if total is not None:
        total += fresh_total.astype(np.int64)


def _sparse_gram(block: Block, domain: Domain) -> Integers:
    sparse = _SparseGram(domain)
    sparse.take(block)
    if domain.shifted_center is None:
        return sparse.total.whole()
    return np.rint(sparse.finish() / _unit(domain) ** 2).astype(np.int64)


def _sparse_sum(block: Block, domain: Domain) -> Integers:
    part = _Sum(domain, sparse=True)
    part.take(block)
    return part.total.whole() if part.shifts is None else np.rint(part.finish() / part.unit).astype(np.int64)


def whole_gram_columns(block: Block, *, width: int, domain: Domain) -> Iterator[Array]:
    """The Gram matrix of a block's rows, at most `width` of its columns at a time: arrays (d, width), private.

    Put together they are symmetric to the last bit.
    """
    unit = _unit(domain) ** 2
    slices = [slice(start, min(start + width, domain.dim)) for start in range(0, domain.dim, width)]
    if block.sparse:
        yield from (columns * unit for columns in _sparse_columns(block, slices, domain))
        return
    rows, size = np.empty((len(block), domain.dim)), _cached(domain.dim)
    for start in range(0, len(block), size):
        domain.whole(block.piece(start, size), unit=_unit(domain), squared=True, out=rows[start:])
    # From functions, so that nothing is held here while others work on a slice.
    yield from (_dense_columns(rows, here) * unit for here in slices)


def _dense_columns(rows: Array, here: slice) -> Array:
    """Columns of the Gram matrix of whole rows, in units."""
    if len(rows) <= _DENSE_ROWS:
        # Whole numbers below 2^53, in whatever order they are added.
        return np.asarray(rows.T @ rows[:, here])
    total = Total.zeros((rows.shape[1], here.stop - here.start), each=1 << 34)
    for start in range(0, len(rows), _DENSE_ROWS):
        piece = rows[start : start + _DENSE_ROWS]
        total.add(piece.T @ piece[:, here], len(piece))
    return total.value(1.0)


def _sparse_columns(block: Block, slices: list[slice], domain: Domain) -> Iterator[Array]:
    """The columns in these slices of the Gram matrix of sparse rows, in units."""
    center, reach = domain.shifted_center, math.ceil(_reach(domain))
    shifts, pieces = _Shifts(domain.dim, reach), []
    for start in range(0, len(block), _SPARSE_ROWS):
        pair = domain.pair(block.piece(start, _SPARSE_ROWS))
        rows = pair.left.astype(np.int64)
        pieces.append((rows.T.tocsr(), rows.tocsc()))
        if pair.shift is not None:
            shifts.take(pieces[-1][0], pair.shift.astype(np.int64))
    for here in slices:
        total = Total.zeros((domain.dim, here.stop - here.start), each=reach**2)
        for across, by_column in pieces:
            total.add((across @ by_column[:, here]).toarray(), across.shape[1])
        if center is None:
            yield total.value(1.0)
        else:
            yield shifts.ends(center / _unit(domain)).columns(total.pair(), here)


def whole_scores(rows: Rows, *, basis: Array, domain: Domain) -> Array:
    """The scores, (n, p), of the rows in `domain`, each by itself, on a basis brought onto its grid."""
    basis, unit, parts = on_basis_grid(basis), _unit(domain), [np.zeros((0, basis.shape[1]))]
    center = domain.shifted_center
    for block in rows.blocks(block_size(rows)):
        require(block.weights is None, "people with several rows have several scores: one row for each is needed")
        if block.sparse:
            part = domain.whole_sparse(block, unit=unit)
            scores = part.rows @ basis
            if center is not None:
                scores -= np.outer(part.shift * (SHIFT / unit), center_scores(center, basis))
        else:
            # Whole rows times a basis of 36 bits: no rounding, so that rows beside it cannot change a score.
            scores = domain.whole(block, unit=unit) @ basis
        parts.append(scores * unit)
    return np.vstack(parts)


def whole_gram_times(rows: Rows, *, basis: Array, region: Region) -> Array:
    """The Gram matrix times `basis`, (d, p), brought onto its grid."""
    basis, size = on_basis_grid(basis), block_size(rows)
    several = not rows.sparse and rows.shape[0] > size
    workers = [_Products(region, basis, sparse=rows.sparse) for _ in range(2 if several else 1)]
    shared_work(rows.blocks(size), workers=workers, take=_Products.take)
    for worker in workers[1:]:
        workers[0].total.and_other(worker.total)
    return workers[0].finish()


def whole_symmetric_times(matrix: Array, *, basis: Array, sensitivity: float) -> Array:
    """A site's own matrix, (d, d), times `basis`, (d, p): both on lattices, and the product rounded once.

    `sensitivity` is how far a person moves the matrix. Rounding to steps g moves neighbours apart by d g at most, 2^-19 of it on
    a lattice so fine (`step_of`): less than the 2^-18 that `Domain.gram_times_sensitivity` leaves room for.
    """
    step = step_of(sensitivity, matrix.size) * _FINER
    whole = np.rint(on_basis_grid(basis) / _BASIS_UNIT).astype(np.int64)
    product = exact_product(steps_of(matrix, step, most=_MOST), whole)
    product *= step
    product *= _BASIS_UNIT
    return product


@final
class _Sum:
    """One worker's share of a sum of rows. Changes in place."""

    def __init__(self, region: Region, *, sparse: bool) -> None:
        self._region = region
        self.unit = sum_unit(region)
        # Sparse rows around a center hold the center as well until it is taken off.
        far = sparse and region.shifted_center is not None
        reach = math.ceil(_reach(region)) if far else 1 << _SUM_BITS
        self.total = Total.zeros((region.dim,), each=reach << _SUM_BITS)
        self.shifts: int | None = None
        self._scratch = np.empty((0, region.dim))

    def take(self, block: Block) -> None:
        """Add the rows of a block."""
        if block.sparse:
            part = self._region.whole_sparse(block, unit=self.unit)
            summed = part.rows.astype(np.int64).T @ np.ones(len(block), dtype=np.int64)
            self.total.add(summed, len(block))
            if self._region.shifted_center is not None:
                self.shifts = (self.shifts or 0) + int(part.shift.astype(np.int64).sum())
            return
        size = _cached(self._region.dim)
        if len(self._scratch) == 0:
            self._scratch = np.empty((min(size, len(block)), self._region.dim))
        for start in range(0, len(block), len(self._scratch) or 1):
            piece = block.piece(start, len(self._scratch))
            rows = self._region.whole(piece, unit=self.unit, out=self._scratch)
            # A product with ones is the fastest sum, and exact as any other is.
            self.total.add(np.ones(len(rows)) @ rows, len(rows))

    def and_other(self, other: "_Sum") -> None:
        """Add what another worker has."""
        self.total.and_other(other.total)
        if other.shifts is not None:
            self.shifts = (self.shifts or 0) + other.shifts

    def finish(self) -> Array:
        """The sum, (d,), the center taken off."""
        center = self._region.shifted_center
        if center is None or self.shifts is None:
            return self.total.value(self.unit)
        hi, lo = self.total.pair()
        taken = _as_pair([Fraction(self.shifts) * Fraction(SHIFT) / Fraction(self.unit)])
        exact = minus_outer((hi[None, :], lo[None, :]), taken, center)
        return np.asarray((exact[0] + exact[1])[0] * self.unit)


@final
class _DenseGram:
    """One worker's share of a dense Gram matrix. Changes in place."""

    def __init__(self, region: Region, size: int) -> None:
        dim = region.dim
        self._region, self.unit = region, 1.0
        # The first rows are added up in floats, which is exact up to 2^53 and the fastest; the memory is the total's own.
        self._first, self._left = np.zeros((dim, dim)), _EXACT // _PRODUCT
        self._whole: Total | None = None
        self._product, self._scratch = np.empty((dim, dim)), np.empty((max(size, 1), dim))

    @property
    def total(self) -> Total:
        """All that was added up, in whole numbers."""
        if self._whole is None:
            low = self._first.view(np.int64)
            for start in range(0, len(low), _CACHED_ROWS):
                low[start : start + _CACHED_ROWS] = self._first[start : start + _CACHED_ROWS].astype(np.int64)
            self._whole = Total.of(low, each=_PRODUCT, rows=_EXACT // _PRODUCT - self._left)
        return self._whole

    def take(self, block: Block) -> None:
        """Add the products of a block's rows."""
        rows, size = self._scratch[: len(block)], _cached(self._region.dim)
        same = True
        others: list[Array] = []
        for start in range(0, len(block), size):
            pair = self._region.pair(block.piece(start, size), out=rows[start:])
            self.unit, same = pair.unit, pair.left is pair.right
            if not same:
                others.append(pair.right)
        # numpy sees the same array twice and calls the symmetric product, half the work.
        np.matmul(rows.T, rows if same else np.vstack(others), out=self._product)
        if self._whole is None and len(block) <= self._left:
            self._first += self._product
            self._left -= len(block)
        else:
            self.total.add(self._product, len(block))


@final
class _SparseGram:
    """The Gram matrix of sparse rows. Changes in place.

    With rows R - s c^T, the center c is taken out of the finished sums, which are exact until then (`_Shifts`).
    """

    def __init__(self, region: Region) -> None:
        self._region, self.unit = region, 1.0
        far = region.shifted_center is not None
        self.total = Total.zeros((region.dim, region.dim), each=math.ceil(_reach(region)) ** 2 if far else _PRODUCT)
        self.shifts = _Shifts(region.dim, math.ceil(_reach(region))) if far else None

    def take(self, block: Block) -> None:
        """Add the products of a block's rows."""
        pair = self._region.pair(block)
        self.unit = pair.unit
        # Far from zero entries have more bits than products of floats hold.
        kind = np.float64 if self.shifts is None else np.int64
        across, right = pair.left.astype(kind).T.tocsr(), pair.right.astype(kind)
        product = across @ right
        product.sum_duplicates()
        into, strip = self.total.room(len(block)), _CACHED_ROWS
        for start in range(0, self._region.dim, strip):
            # A strip at a time, so that the indices of a full product need not be written out.
            low, high = product.indptr[start], product.indptr[min(start + strip, self._region.dim)]
            counts = np.diff(product.indptr[start : start + strip + 1])
            lines = start + np.repeat(np.arange(len(counts)), counts)
            into[lines, product.indices[low:high]] += product.data[low:high].astype(np.int64)
        if self.shifts is not None and pair.shift is not None:
            self.shifts.take(across, pair.shift.astype(np.int64))

    def finish(self) -> Array:
        """The matrix, (d, d), the center taken off."""
        center = self._region.shifted_center
        if center is None or self.shifts is None:
            return self.total.value(self.unit)
        ends, found = self.shifts.ends(center / _unit(self._region)), np.empty(self.total.low.shape)
        for start in range(0, len(found), _STRIP):
            here = slice(start, min(start + _STRIP, len(found)))
            hi, lo = self.total.pair(here)
            # The sums are symmetric: rows of them are columns.
            found[:, here] = ends.columns((hi.T, lo.T), here) * self.unit
        return found


@final
class _Products:
    """One worker's share of the Gram matrix times a basis on its grid, (d, p). Changes in place."""

    def __init__(self, region: Region, basis: Array, *, sparse: bool) -> None:
        self._region, self._basis, self._unit = region, basis, 1.0
        far = sparse and region.shifted_center is not None
        self._bits = math.ceil(math.log2(_reach(region))) if far else 17
        self.total = Total.zeros(basis.shape, each=1 << (self._bits + SCORE_BITS))
        # What of the center is still in the products of sparse rows: s^T S, (1, p).
        self._drag = Total.zeros((1, basis.shape[1]), each=1 << (24 + SCORE_BITS)) if far else None
        self._scratch = np.empty((0, region.dim))

    def take(self, block: Block) -> None:
        """Add the products of a block's rows."""
        if block.sparse:
            self._take_sparse(block)
            return
        size = _cached(self._region.dim)
        if len(self._scratch) == 0:
            self._scratch = np.empty((size, self._region.dim))
        for start in range(0, len(block), size):
            part = self._region.scored(block.piece(start, size), basis=self._basis, out=self._scratch)
            self.total.add(_grouped_product(part.rows, part.scores), len(part.scores))
            self._unit = part.unit

    def _take_sparse(self, block: Block) -> None:
        part = self._region.scored(block, basis=self._basis)
        self._unit = part.unit
        # So many rows at a time as cannot overflow.
        most = 1 << (62 - self._bits - SCORE_BITS)
        for start in range(0, len(block), most):
            here = slice(start, start + most)
            rows, scores = (part.rows, part.scores) if len(block) <= most else (part.rows[here], part.scores[here])
            self._add_sparse(rows, scores, part.largest)
        if self._drag is None or part.shift is None:
            return
        # Shifts have 24 bits and scores 27: 2^11 of their products add up in int64. Halves of shifts have 12, so that as many
        # add up in floats, too, without rounding: BLAS takes a fraction of the time of numpy's product of int64.
        shift, most = part.shift.astype(np.int64), 1 << (62 - 24 - SCORE_BITS)
        halves = np.stack([shift >> 12, shift & 4095]).astype(np.float64)
        for start in range(0, len(block), most):
            scores = part.scores[start : start + most]
            high, low = (halves[:, start : start + most] @ scores).astype(np.int64)
            self._drag.add(((high << 12) + low)[None, :], len(scores))

    def _add_sparse(self, rows: Any, scores: Array, largest: float) -> None:
        """Add rows^T scores: in floats where none of its sums can pass 2^53, in int64 otherwise. Both give the same numbers."""
        # Sorted by column first: twice as fast as scattering the rows' products.
        across, into = rows.T.tocsr(), self.total.room(len(scores))
        heaviest = float(row_sums(np.abs(across.data), across.indptr).max(initial=0.0))
        if heaviest * largest > _EXACT // 2:
            # Only where the bound that all scores keep does not settle it: reading through them takes a while.
            largest = max(float(scores.max(initial=0.0)), -float(scores.min(initial=0.0)))
        if heaviest * largest > _EXACT // 2:
            across, scores = across.astype(np.int64), scores.astype(np.int64)
        filled = np.flatnonzero(np.diff(across.indptr))
        # Where a block has entries in few columns, the others are left alone: there may be a million of them.
        few = 2 * len(filled) < len(into)
        if few:
            ends = np.append(across.indptr[filled], across.indptr[-1])
            across = sp.csr_array((across.data, across.indices, ends), shape=(len(filled), len(scores)))

        def add(here: slice, found: Array | Integers) -> None:
            into[filled[here] if few else here] += found.astype(np.int64, copy=False)

        sparse_times(across, scores, add)

    def finish(self) -> Array:
        """The product, (d, p): R^T S - c (s^T S), the last step in double-doubles, as the two may nearly cancel.

        Nothing may be added after this: it is in the memory of the sum.
        """
        center = self._region.shifted_center
        if center is None or self._drag is None or self._drag.empty:
            return self.total.value(self._unit)
        (hi,), (lo,) = self._drag.pair()
        scale, found = SHIFT / _unit(self._region), self.total.low.view(np.float64)
        drag = hi * scale, lo * scale

        def put(here: slice) -> None:
            found[here] = less_outer(self.total.pair(here), center[here], drag) * self._unit

        # A strip at a time: double-doubles take ten times the room of what they make.
        side_by_side([slice(start, start + _STRIP) for start in range(0, len(found), _STRIP)], put)
        return found


def _grouped_product(rows: Array, scores: Array) -> Array | Integers:
    """rows^T scores, (d, p), in groups of rows that add up exactly in float64, and the groups in int64."""
    whole = len(rows) // _SCORED_ROWS * _SCORED_ROWS
    if whole == 0:
        return np.asarray(rows.T @ scores)
    grouped = rows[:whole].reshape(-1, _SCORED_ROWS, rows.shape[1]).transpose(0, 2, 1)
    products = grouped @ scores[:whole].reshape(-1, _SCORED_ROWS, scores.shape[1])
    total: Integers = products.astype(np.int64).sum(axis=0)
    return total + (rows[whole:].T @ scores[whole:]).astype(np.int64)


@final
class _Shifts:
    """What the center c adds to products of sparse rows R - s c^T: their pull R^T s, (d,), and weight s^T s. Changes in place."""

    def __init__(self, dim: int, reach: int) -> None:
        self._pull = Total.zeros((dim,), each=reach << 24)
        self._weight = 0

    def take(self, across: Any, shift: Integers) -> None:
        """Add those of the rows of a block, given their transpose in CSR form."""
        self._pull.add(across @ shift, len(shift))
        self._weight += int(shift @ shift)

    def ends(self, center: Array) -> "_Ends":
        """What is to be taken off products around this center, in units of the grid: p, and p - w c, in double-doubles."""
        hi, lo = self._pull.pair()
        pull = hi * SHIFT, lo * SHIFT
        weight = _as_pair([Fraction(self._weight) * Fraction(SHIFT) ** 2])
        left = minus_outer((pull[0][None, :], pull[1][None, :]), weight, center)
        return _Ends(pull, (left[0][0], left[1][0]), center)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """R^T R becomes R^T R - c p^T - (p - w c) c^T, with the pull p = R^T s and the weight w = s^T s of a center c."""

    pull: DoubleDouble
    rest: DoubleDouble
    center: Array

    def columns(self, products: DoubleDouble, here: slice) -> Array:
        """The columns `here`, (d, w), of the products around the center: of two mirrored entries both as of the one above the
        diagonal, so that all columns together are symmetric to the last bit."""
        dim, before, after = len(self.center), slice(0, here.start), slice(here.stop, len(self.center))
        found = np.empty((dim, here.stop - here.start))
        hi, lo = products
        found[before] = self._off((hi[before], lo[before]), before, here)
        found[after] = self._off((hi[after].T, lo[after].T), here, after).T
        square = np.triu(self._off((hi[here], lo[here]), here, here))
        found[here] = square + np.triu(square, 1).T
        return found

    def _off(self, products: DoubleDouble, rows: slice, columns: slice) -> Array:
        """Some rows and columns of the products around the center: exact but for one rounding at the end."""
        rest, pull = (self.rest[0][rows], self.rest[1][rows]), (self.pull[0][columns], self.pull[1][columns])
        hi, lo = minus_outer(products, rest, self.center[columns])
        hi, lo = minus_outer((hi.T, lo.T), pull, self.center[rows])
        return np.asarray((hi + lo).T)


def _as_pair(numbers: list[Fraction]) -> DoubleDouble:
    hi = np.array([float(number) for number in numbers])
    lo = np.array([float(number - Fraction(float(h))) for number, h in zip(numbers, hi, strict=True)])
    return two_sum(hi, lo)


def _unit(region: Region) -> float:
    unit = region.unit
    assert unit is not None, "a region that claims nothing has no exact sums"
    return unit


def _reach(region: Region) -> float:
    """The most units that an entry of a sparse row has before its center is taken off."""
    center = region.shifted_center
    far = 0.0 if center is None else float(np.abs(center).max())
    return (region.radius + far) / _unit(region) + 1


def _cached(dim: int) -> int:
    """Rows that are worked on at a time."""
    return max(_CACHED_ROWS, _CACHED_NUMBERS // max(dim, 1))
