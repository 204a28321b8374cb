"""Exact sums over rows: whole numbers of public units, the same for any order, partition, number of threads and machine.

The error of a floating-point sum grows with the number of rows, which is private, so no stated sensitivity could cover it. Here
every clipped row is on a grid inside its ball (`Region.pair`, `Region.scored`), and entries have few bits.
  - Within a block, products and partial sums are whole numbers below 2^53. Float64 represents them exactly, so the order in which
    BLAS adds them does not matter.
  - Across blocks they are added in int64, with a carry long before 2^63 (`Total`).
  - Only the finished sum becomes a float, by one rounding.
Neighbours therefore differ by exactly what one person adds, and a Gram matrix is exactly symmetric.

The radius is at most 2^17 units, which leaves this room:
  - A row has 17 bits and a product of two entries 34: 2^19 rows in a block.
  - Scores have 27 bits and products with them 44: 2^9 rows at a time.
  - Entries of a row for a sum have 34 bits: 2^19 rows.

In this order: units; `Total`, and `WholeSums`, what rows that are elsewhere send back; `CenterSums`, which subtract the center of
sparse rows from finished sums; counts, traces and sums of rows; Gram matrices; Gram matrices times a basis. Each is a `Work`.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.domain import SCORE_BITS, SHIFT, MissingPolicy, Region, row_sums, unit_of
from eigenveil.core.exact import DoubleDouble, joined, less_outer, minus_outer, two_sum
from eigenveil.core.rows import Block, Rows, RowSum, added_up, block_size, lengths, sparse_times
from eigenveil.core.threads import Array, side_by_side
from eigenveil.errors import require

__all__ = [
    "BASIS_UNIT",
    "CACHED_NUMBERS",
    "CACHED_ROWS",
    "CARRY",
    "COUNT_UNIT",
    "EXACT",
    "FINE_COUNT",
    "SUM_BITS",
    "CenterSums",
    "CenterTerms",
    "CountWork",
    "GramWork",
    "Integers",
    "KeptWork",
    "ObservedWork",
    "ProductsWork",
    "SumWork",
    "Total",
    "TraceWork",
    "WholeSparseGram",
    "WholeSum",
    "WholeSums",
    "as_pair",
    "cached_rows",
    "finished_gram",
    "finished_products",
    "finished_sum",
    "observed_in",
    "on_basis_grid",
    "reach_of",
    "sum_unit",
    "whole_weights",
]

# Bases are rounded to multiples of this.
BASIS_UNIT = 2.0**-35
# Rows for a sum have this many more bits than rows for products.
SUM_BITS = 17
# Numbers of rows that stay in the inner cache while they are clipped and rounded; and the least number of rows at a time.
CACHED_NUMBERS, CACHED_ROWS = 1 << 17, 128


def sum_unit(region: Region) -> float:
    """The unit of sums of rows: finer than the unit of rows for products."""
    return unit_of(region) * 2.0**-SUM_BITS


def on_basis_grid(basis: Any, xp: Any = np) -> Any:
    """`basis` with entries rounded to multiples of 2^-35, so that products with whole rows are exact; an array of `xp`."""
    # To the nearest multiple: how far that moves the basis is in `gram_times_sensitivity`.
    grid = basis / BASIS_UNIT
    grid = np.rint(grid, out=grid) if xp is np else xp.round(grid)
    grid *= BASIS_UNIT
    return grid


def reach_of(region: Region) -> float:
    """The most units that an entry of a sparse row can have before its center is subtracted."""
    center = region.shifted_center
    far = 0.0 if center is None else float(np.abs(center).max())
    return (region.radius + far) / unit_of(region) + 1


def cached_rows(dim: int) -> int:
    """The number of rows that are worked on at a time."""
    return max(CACHED_ROWS, CACHED_NUMBERS // max(dim, 1))


Integers = NDArray[np.int64]
# Beyond the first, a sum is carried over to a second int64, which counts units of 2^CARRY.
_FULL, CARRY = 1 << 61, 32
# What may be added at once: in int64, next to what a carry leaves there, and in float64, where sums of whole numbers are exact.
_ROOM, EXACT = 1 << 62, 1 << 53


@final
@dataclass(slots=True, eq=False)
class Total:
    """A running sum of whole arrays that never overflows. Changes in place.

    One row adds at most `each` to an entry. Long before that could pass 2^63, the upper bits are carried over to a second array:
    high 2^32 + low is always the exact sum.
    """

    low: Integers
    each: int
    high: Integers | None = None
    _rows: int = field(init=False, default=0)

    @classmethod
    def zeros(cls, shape: tuple[int, ...], *, each: int) -> "Total":
        """The empty sum."""
        return cls(np.zeros(shape, dtype=np.int64), max(each, 1))

    @classmethod
    def of(cls, low: Integers, *, each: int, rows: int) -> "Total":
        """A sum that `rows` rows have already been added to."""
        total = cls(low, max(each, 1))
        total._rows = rows
        return total

    def __sizeof__(self) -> int:
        # For schedulers that move sums between machines by size.
        return object.__sizeof__(self) + self.low.nbytes + (0 if self.high is None else self.high.nbytes)

    @property
    def empty(self) -> bool:
        """Whether nothing has been added."""
        return self._rows == 0

    def room(self, rows: int) -> Integers:
        """The array to which the caller may now add the sum of `rows` rows, in place."""
        require(rows * self.each <= _ROOM, "so many rows at once could overflow: add them up in smaller blocks")
        if (self._rows + rows) * self.each > _FULL:
            self._carry()
        self._rows += rows
        return self.low

    def add(self, values: Array | Integers, rows: int) -> None:
        """Add the sum of `rows` rows: whole numbers, as floats or int64."""
        exact = values.dtype.kind != "f" or rows * self.each <= EXACT
        require(exact, "floating point cannot add up so many rows at once exactly: add them up in smaller blocks")
        into = self.room(rows).reshape(-1, values.shape[-1]) if values.ndim > 1 else self.room(rows)
        for start in range(0, len(into), CACHED_ROWS if values.ndim > 1 else len(into) or 1):
            stop = start + (CACHED_ROWS if values.ndim > 1 else len(into))
            into[start:stop] += values[start:stop].astype(np.int64)

    def __iadd__(self, other: "Total") -> Self:
        # Two sums that are each near the limit could overflow together, so both carry over first.
        if other.high is not None or other._rows * other.each > _FULL // 2:
            other._carry()
            self._carry()
            assert self.high is not None and other.high is not None
            self.high += other.high
        self.room(other._rows)
        self.low += other.low
        return self

    def _carry(self) -> None:
        self.high = np.zeros_like(self.low) if self.high is None else self.high
        # The shift rounds down and the mask leaves the positive rest, so negative sums are split exactly too.
        self.high += self.low >> CARRY
        self.low &= (1 << CARRY) - 1
        # The rest counts as the number of rows that could have added up to it.
        self._rows = -(-(1 << CARRY) // self.each)

    def settle(self) -> None:
        """Bring the sum into the one form that depends on its value alone, however it was added up."""
        if self.high is None:
            return
        self._carry()
        if self.high.size == 0 or max(int(self.high.max()), -int(self.high.min())) < _FULL >> CARRY:
            self.low += self.high << CARRY
            self.high = None

    def whole(self) -> Integers:
        """The sum as int64; an error where it might not fit."""
        require(self.high is None, "a sum over so many rows may not fit into 64 bits: add them up in smaller blocks")
        return self.low

    def pair(self, rows: slice = slice(None)) -> DoubleDouble:
        """The sum, or some rows of it, as a pair of floats, exactly."""
        low = self.low[rows]
        if self.high is None and (low.size == 0 or max(int(low.max()), -int(low.min())) <= EXACT):
            return low.astype(np.float64), np.zeros(low.shape)
        high = low >> CARRY
        if self.high is not None:
            high += self.high[rows]
        return joined(high, low & ((1 << CARRY) - 1), bits=CARRY)

    def value(self, unit: float) -> Array:
        """The sum times `unit`, rounded once to float64. Nothing may be added after this."""
        if self.high is not None:
            self._carry()
            floats = self.high.astype(np.float64)
            floats *= 2.0**CARRY
            floats += self.low
        else:
            # In place, a chunk at a time: there may be no memory for a second matrix of this size.
            floats = self.low.view(np.float64)
            flat, out = self.low.reshape(-1), floats.reshape(-1)
            for start in range(0, len(flat), CACHED_NUMBERS):
                out[start : start + CACHED_NUMBERS] = flat[start : start + CACHED_NUMBERS].astype(np.float64)
        floats *= unit
        return floats


@final
@dataclass(slots=True, eq=False, kw_only=True)
class WholeSums:
    """What rows add up to, wherever they are: a `total` in whole numbers of `unit`, and what a center is still subtracted with.

    Products of sparse rows R - s c^T also need `beside`, a sum that involves s, and `weight`, the sum or the squared norm of s in
    whole numbers. Both are None where there is no center. Changes in place. Printing it shows no private number.
    """

    total: Total
    unit: float = 1.0
    beside: Total | None = None
    weight: int | None = None

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(part.__sizeof__() for part in (self.total, self.beside) if part is not None)

    def __iadd__(self, other: "WholeSums") -> Self:
        # Without rows there is no unit yet.
        self.unit = other.unit if self.total.empty else self.unit
        self.total += other.total
        if self.beside is not None and other.beside is not None:
            self.beside += other.beside
        if other.weight is not None:
            self.weight = (self.weight or 0) + other.weight
        return self

    def __repr__(self) -> str:
        return f"WholeSums(shape={self.total.low.shape}, unit={self.unit})"


@final
class CenterSums:
    """The sums that subtracting c from products of sparse rows R - s c^T needs: R^T s, (d,), and s^T s. Changes in place."""

    def __init__(self, pull: Total, weight: int = 0) -> None:
        self.pull = pull
        # A Python integer: it cannot overflow, however many blocks are added.
        self.weight = weight

    @classmethod
    def zeros(cls, dim: int, reach: int) -> "CenterSums":
        """The empty sums, of rows with entries of at most `reach` units."""
        # A shift is a whole number of 2^-24 and at most one, so it is at most 2^24 of them.
        return cls(Total.zeros((dim,), each=reach << 24))

    def take(self, across: Any, shift: Integers) -> None:
        """Add the sums of a block's rows, given their transpose in CSR form."""
        self.pull.add(across @ shift, len(shift))
        self.weight += int(shift @ shift)

    def ends(self, center: Array) -> "CenterTerms":
        """The terms to subtract from products around this center, in units of the grid: p, and p - w c, in double-doubles."""
        # Whole numbers may exceed 2^53 here, and are kept in two floats without loss.
        hi, lo = self.pull.pair()
        pull = hi * SHIFT, lo * SHIFT
        # The whole number may have more digits than a double, and most of them may cancel later.
        weight = as_pair([Fraction(self.weight) * Fraction(SHIFT) ** 2])
        left = minus_outer((pull[0][None, :], pull[1][None, :]), weight, center)
        return CenterTerms(pull, (left[0][0], left[1][0]), center)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CenterTerms:
    """What a center c subtracts: R^T R becomes R^T R - c p^T - (p - w c) c^T, with p = R^T s and w = s^T s."""

    pull: DoubleDouble
    rest: DoubleDouble
    center: Array

    def columns(self, products: DoubleDouble, span: slice) -> Array:
        """The columns `span`, (d, w), of the products around the center.

        Both of two mirrored entries are computed like the one above the diagonal, which makes all columns together symmetric to
        the last bit; otherwise the difference of two mirrored entries would be public without noise.
        """
        dim, before, after = len(self.center), slice(0, span.start), slice(span.stop, len(self.center))
        strip = np.empty((dim, span.stop - span.start))
        hi, lo = products
        strip[before] = self._off((hi[before], lo[before]), before, span)
        strip[after] = self._off((hi[after].T, lo[after].T), span, after).T
        square = np.triu(self._off((hi[span], lo[span]), span, span))
        strip[span] = square + np.triu(square, 1).T
        return strip

    def _off(self, products: DoubleDouble, rows: slice, columns: slice) -> Array:
        """Some rows and columns of the products around the center: exact up to one rounding at the end."""
        rest, pull = (self.rest[0][rows], self.rest[1][rows]), (self.pull[0][columns], self.pull[1][columns])
        hi, lo = minus_outer(products, rest, self.center[columns])
        hi, lo = minus_outer((hi.T, lo.T), pull, self.center[rows])
        return np.asarray((hi + lo).T)


def as_pair(numbers: list[Fraction]) -> DoubleDouble:
    """Fractions as double-doubles: the nearest floats, and the nearest to what they miss."""
    hi = np.array([float(number) for number in numbers])
    lo = np.array([float(number - Fraction(float(h))) for number, h in zip(numbers, hi, strict=True)])
    return two_sum(hi, lo)


# The unit of counts: a row of a person who has m of them counts as 2^34 / m, rounded down. The count of all people by itself has
# a finer unit.
COUNT_UNIT, FINE_COUNT = 2.0**-34, 2.0**-45


def whole_weights(weights: Array, *, unit: float = COUNT_UNIT) -> Integers:
    """The weights of rows, (b,), in whole numbers of `unit`, rounded down, so that no person counts as more than one.

    Proof. m rows of weight fl(1 / m) count as k <= fl(1 / m) / unit each. m k is whole and below (1 + 2^-52) / unit, so it is at
    most 1 / unit.

    >>> int(3 * whole_weights(np.array([1 / 3]))[0]) - 2**34
    -1
    """
    return np.floor(weights / unit).astype(np.int64)


def observed_in(block: Block, gaps: MissingPolicy) -> Integers:
    """The observed counts of one block, (c,), in whole numbers of `COUNT_UNIT`. A block has at most 2^18 rows."""
    per_row = round(1 / COUNT_UNIT)
    weights = np.full(len(block), per_row) if block.weights is None else whole_weights(block.weights)
    if block.sparse and gaps.rule == "counts":
        # All people, less those who lack the entry: what is not stored is a zero, which is there.
        missing = np.isnan(block.values.data)
        each = np.repeat(weights, np.diff(block.values.indptr))[missing]
        lacking = np.bincount(block.values.indices[missing], weights=each, minlength=gaps.groups)
        return int(weights.sum()) - lacking.astype(np.int64)
    present = gaps.there(block).astype(np.float64)
    # Whole numbers of 34 bits: a block of them adds up exactly in float64, in whatever order BLAS adds them.
    counted = weights.astype(np.float64)
    if gaps.rule == "counts":
        return np.asarray(counted @ present).astype(np.int64)
    return np.asarray(((present * counted[:, None]).T @ present)[np.triu_indices(gaps.groups)]).astype(np.int64)


@final
@dataclass(frozen=True, slots=True)
class CountWork(RowSum[int]):
    """The number of people, in whole numbers of 2^-45."""

    def of(self, rows: Rows) -> int:
        total, per_row = 0, round(1 / FINE_COUNT)
        for count, weights in lengths(rows):
            total += count * per_row if weights is None else int(whole_weights(weights, unit=FINE_COUNT).sum())
        return total


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeptWork(RowSum[int]):
    """The number of people whose rows count, in whole numbers of 2^-45."""

    gaps: MissingPolicy

    def of(self, rows: Rows) -> int:
        total, per_row = 0, round(1 / FINE_COUNT)
        for block in rows.blocks(block_size(rows)):
            mask, weights = self.gaps.kept(block), block.weights
            whole = None if weights is None else whole_weights(weights[mask], unit=FINE_COUNT)
            total += int(mask.sum()) * per_row if whole is None else int(whole.sum())
        return total


@final
@dataclass(frozen=True, slots=True, eq=False)
class ObservedWork(RowSum[Total]):
    """How many people have each column, or each pair of groups of columns, (c,), in whole numbers of `COUNT_UNIT`.

    Where counts are taken less half of the people: twice the counts, less the people.
    """

    gaps: MissingPolicy

    def of(self, rows: Rows) -> Total:
        per_row = round(1 / COUNT_UNIT)
        total = Total.zeros((self.gaps.entries,), each=per_row)
        for block in rows.blocks(block_size(rows)):
            counts, weights = observed_in(block, self.gaps), block.weights
            if self.gaps.less_half:
                # The very weights that entries count with: a person must not weigh more here than there.
                counts = 2 * counts - (len(block) * per_row if weights is None else int(whole_weights(weights).sum()))
            total.add(counts, len(block))
        return total


@final
@dataclass(frozen=True, slots=True, eq=False)
class TraceWork(RowSum[int]):
    """The sum of the squared norms of the rows in `region`, in whole numbers of its unit squared."""

    region: Region

    def of(self, rows: Rows) -> int:
        unit = unit_of(self.region) ** 2
        # Each is below 2^34, and a block of them adds up below 2^53.
        return sum(int(np.floor(self.region.squares(block) / unit).sum()) for block in rows.blocks(block_size(rows)))


@final
@dataclass(frozen=True, slots=True, eq=False)
class SumWork(RowSum[WholeSums]):
    """The sum of the rows in `region`: the total is (d,), in whole numbers of `sum_unit`.

    For sparse rows with a center, `weight` is the sum of their shifts.
    """

    region: Region

    def of(self, rows: Rows) -> WholeSums:
        return added_up(rows, lambda: WholeSum(self.region, sparse=rows.sparse)).sums


def finished_sum(sums: WholeSums, region: Region) -> Array:
    """The sum, (d,), with the center of sparse rows subtracted."""
    center = region.shifted_center
    if center is None or sums.weight is None:
        return sums.total.value(sums.unit)
    hi, lo = sums.total.pair()
    taken = as_pair([Fraction(sums.weight) * Fraction(SHIFT) / Fraction(sums.unit)])
    exact = minus_outer((hi[None, :], lo[None, :]), taken, center)
    return np.asarray((exact[0] + exact[1])[0] * sums.unit)


@final
class WholeSum:
    """One worker's share of a sum of rows. Changes in place."""

    def __init__(self, region: Region, *, sparse: bool) -> None:
        self._region = region
        self.unit = sum_unit(region)
        # Sparse rows include the center until it is subtracted from the finished sum.
        far = sparse and region.shifted_center is not None
        reach = math.ceil(reach_of(region)) if far else 1 << SUM_BITS
        self.total = Total.zeros((region.dim,), each=reach << SUM_BITS)
        self.shifts: int | None = None
        self._scratch = np.empty((0, region.dim))

    def take(self, block: Block) -> None:
        """Add the rows of a block."""
        if block.sparse:
            part = self._region.to_grid_sparse(block, unit=self.unit)
            summed = part.rows.astype(np.int64).T @ np.ones(len(block), dtype=np.int64)
            self.total.add(summed, len(block))
            if self._region.shifted_center is not None:
                self.shifts = (self.shifts or 0) + int(part.shift.astype(np.int64).sum())
            return
        size = cached_rows(self._region.dim)
        if len(self._scratch) == 0:
            self._scratch = np.empty((min(size, len(block)), self._region.dim))
        for start in range(0, len(block), len(self._scratch) or 1):
            piece = block.piece(start, len(self._scratch))
            rows = self._region.whole(piece, unit=self.unit, out=self._scratch)
            # A product with ones is the fastest sum, and as exact as any other.
            self.total.add(np.ones(len(rows)) @ rows, len(rows))

    def and_other(self, other: "WholeSum") -> None:
        """Add the sum of another worker."""
        self.total += other.total
        if other.shifts is not None:
            self.shifts = (self.shifts or 0) + other.shifts

    @property
    def sums(self) -> WholeSums:
        """Everything added so far."""
        return WholeSums(total=self.total, unit=self.unit, weight=self.shifts)


# The most that a row adds to a product: 34 bits in a table, 36 in histories.
_PRODUCT = 1 << 36
# Rows of a matrix from which the center is subtracted at a time.
_STRIP = 512


@final
@dataclass(frozen=True, slots=True, eq=False)
class GramWork(RowSum[WholeSums]):
    """The Gram matrix of the rows in `region`: the total is (d, d), in units of `Pair.unit`.

    For sparse rows with a center, `beside` and `weight` are as in `CenterSums`.
    """

    region: Region

    def of(self, rows: Rows) -> WholeSums:
        if rows.sparse:
            sparse = WholeSparseGram(self.region)
            for block in rows.blocks(block_size(rows)):
                sparse.take(block)
            return sparse.sums
        size = min(block_size(rows), rows.shape[0])
        worker = added_up(rows, lambda: _WholeDenseGram(self.region, size), dim=self.region.dim)
        # The worker's product and its rows are freed on return: the matrix may be all that fits.
        return WholeSums(total=worker.total, unit=worker.unit)


def finished_gram(sums: WholeSums, region: Region) -> Array:
    """The matrix, (d, d), with the center of sparse rows subtracted."""
    center = region.shifted_center
    if center is None or sums.beside is None:
        return sums.total.value(sums.unit)
    shifts = CenterSums(sums.beside, sums.weight or 0)
    ends, gram = shifts.ends(center / unit_of(region)), np.empty(sums.total.low.shape)
    for start in range(0, len(gram), _STRIP):
        strip = slice(start, min(start + _STRIP, len(gram)))
        hi, lo = sums.total.pair(strip)
        # The sums are symmetric, so their rows are their columns.
        gram[:, strip] = ends.columns((hi.T, lo.T), strip) * sums.unit
    return gram


@final
class _WholeDenseGram:
    """One worker's share of a dense Gram matrix. Changes in place."""

    def __init__(self, region: Region, size: int) -> None:
        dim = region.dim
        self._region, self.unit = region, 1.0
        # The first rows are added up in floats, which is exact up to 2^53 and fastest. `total` reuses the memory.
        self._first, self._left = np.zeros((dim, dim)), EXACT // _PRODUCT
        self._whole: Total | None = None
        self._product, self._scratch = np.empty((dim, dim)), np.empty((max(size, 1), dim))

    @property
    def total(self) -> Total:
        """Everything added so far, in whole numbers."""
        if self._whole is None:
            low = self._first.view(np.int64)
            for start in range(0, len(low), CACHED_ROWS):
                low[start : start + CACHED_ROWS] = self._first[start : start + CACHED_ROWS].astype(np.int64)
            self._whole = Total.of(low, each=_PRODUCT, rows=EXACT // _PRODUCT - self._left)
        return self._whole

    def take(self, block: Block) -> None:
        """Add the products of a block's rows."""
        rows, size = self._scratch[: len(block)], cached_rows(self._region.dim)
        same = True
        others: list[Array] = []
        for start in range(0, len(block), size):
            pair = self._region.pair(block.piece(start, size), out=rows[start:])
            self.unit, same = pair.unit, pair.left is pair.right
            if not same:
                others.append(pair.right)
        # For the same array twice, numpy calls the symmetric product, which is half the work.
        np.matmul(rows.T, rows if same else np.vstack(others), out=self._product)
        if self._whole is None and len(block) <= self._left:
            self._first += self._product
            self._left -= len(block)
        else:
            self.total.add(self._product, len(block))

    def and_other(self, other: "_WholeDenseGram") -> None:
        """Add the products of another worker."""
        total = self.total
        total += other.total


@final
class WholeSparseGram:
    """The Gram matrix of sparse rows. Changes in place.

    For rows R - s c^T, the center c is subtracted from the finished sums, which are exact until then (`CenterSums`).
    """

    def __init__(self, region: Region) -> None:
        self._region, self.unit = region, 1.0
        far = region.shifted_center is not None
        self.total = Total.zeros((region.dim, region.dim), each=math.ceil(reach_of(region)) ** 2 if far else _PRODUCT)
        self.shifts = CenterSums.zeros(region.dim, math.ceil(reach_of(region))) if far else None

    def take(self, block: Block) -> None:
        """Add the products of a block's rows."""
        pair = self._region.pair(block)
        self.unit = pair.unit
        # Entries far from zero have more bits than exact products of floats allow.
        kind = np.float64 if self.shifts is None else np.int64
        across, right = pair.left.astype(kind).T.tocsr(), pair.right.astype(kind)
        product = across @ right
        product.sum_duplicates()
        into, strip = self.total.room(len(block)), CACHED_ROWS
        for start in range(0, self._region.dim, strip):
            # A strip at a time, so that the indices of a full product are never all in memory.
            low, high = product.indptr[start], product.indptr[min(start + strip, self._region.dim)]
            counts = np.diff(product.indptr[start : start + strip + 1])
            lines = start + np.repeat(np.arange(len(counts)), counts)
            into[lines, product.indices[low:high]] += product.data[low:high].astype(np.int64)
        if self.shifts is not None and pair.shift is not None:
            self.shifts.take(across, pair.shift.astype(np.int64))

    @property
    def sums(self) -> WholeSums:
        """Everything added so far."""
        if self.shifts is None:
            return WholeSums(total=self.total, unit=self.unit)
        return WholeSums(total=self.total, unit=self.unit, beside=self.shifts.pull, weight=self.shifts.weight)


# Rows of a product from which the center is subtracted at a time. Fewer are in a nearer cache, but two threads would then spend
# their time waiting for the lock of Python.
_PRODUCT_STRIP = 1024
# Rows that are multiplied by scores at a time: their products add up exactly.
_SCORED_ROWS = 1 << 9


@final
@dataclass(frozen=True, slots=True, eq=False)
class ProductsWork(RowSum[WholeSums]):
    """The Gram matrix of the rows in `region` times `basis`, (d, p): the total is (d, p), in units of `Scored.unit`.

    The basis is rounded onto its grid first. For sparse rows with a center, `beside` is s^T S, (1, p), of shifts and scores.
    """

    region: Region
    basis: Array

    def of(self, rows: Rows) -> WholeSums:
        basis = on_basis_grid(self.basis)
        return added_up(rows, lambda: _WholeProducts(self.region, basis, sparse=rows.sparse)).sums


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
        max_rows = 1 << (62 - self._bits - SCORE_BITS)
        for start in range(0, len(block), max_rows):
            chunk = slice(start, start + max_rows)
            rows, scores = (part.rows, part.scores) if len(block) <= max_rows else (part.rows[chunk], part.scores[chunk])
            self._add_sparse(rows, scores, part.largest)
        if self._drag is None or part.shift is None:
            return
        # Shifts have 24 bits and scores 27, so 2^11 of their products add up in int64. Halves of shifts have 12 bits, so as many
        # products add up exactly in floats too. BLAS takes a fraction of the time of numpy's product of int64.
        shift, max_rows = part.shift.astype(np.int64), 1 << (62 - 24 - SCORE_BITS)
        halves = np.stack([shift >> 12, shift & 4095]).astype(np.float64)
        for start in range(0, len(block), max_rows):
            scores = part.scores[start : start + max_rows]
            high, low = (halves[:, start : start + max_rows] @ scores).astype(np.int64)
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

        def add(chunk: slice, product: Array | Integers) -> None:
            into[filled[chunk] if few else chunk] += product.astype(np.int64, copy=False)

        sparse_times(across, scores, add)

    @property
    def sums(self) -> WholeSums:
        """Everything added so far."""
        return WholeSums(total=self.total, unit=self._unit, beside=self._drag)

    def and_other(self, other: "_WholeProducts") -> None:
        """Add the products of another worker: only dense rows have two, so there is no center to add."""
        self.total += other.total


def finished_products(sums: WholeSums, region: Region) -> Array:
    """The product, (d, p): R^T S - c (s^T S), subtracted in double-doubles, because the two may nearly cancel.

    Nothing may be added after this, because the result reuses the memory of the sum.
    """
    center = region.shifted_center
    if center is None or sums.beside is None or sums.beside.empty:
        return sums.total.value(sums.unit)
    (hi,), (lo,) = sums.beside.pair()
    scale, product = SHIFT / unit_of(region), sums.total.low.view(np.float64)
    drag = hi * scale, lo * scale

    def put(strip: slice) -> None:
        product[strip] = less_outer(sums.total.pair(strip), center[strip], drag) * sums.unit

    # A strip at a time: double-doubles take ten times the memory of the result.
    side_by_side([slice(start, start + _PRODUCT_STRIP) for start in range(0, len(product), _PRODUCT_STRIP)], put)
    return product


def _grouped_product(rows: Array, scores: Array) -> Array | Integers:
    """rows^T scores, (d, p): groups of rows add up exactly in float64, and the groups in int64."""
    whole = len(rows) // _SCORED_ROWS * _SCORED_ROWS
    if whole == 0:
        return np.asarray(rows.T @ scores)
    grouped = rows[:whole].reshape(-1, _SCORED_ROWS, rows.shape[1]).transpose(0, 2, 1)
    products = grouped @ scores[:whole].reshape(-1, _SCORED_ROWS, scores.shape[1])
    total: Integers = products.astype(np.int64).sum(axis=0)
    return total + (rows[whole:].T @ scores[whole:]).astype(np.int64)
