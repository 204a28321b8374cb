"""Exact sums of rows, the number of people, and the total sum of squares. `privacy.sums.bounded` releases them."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from eigenveil.data.elsewhere import total_of
from eigenveil.data.rows import Block, Rows, block_size, lengths
from eigenveil.linalg import Array
from eigenveil.linalg.exact import minus_outer
from eigenveil.privacy.sums.domain import SHIFT, Domain, Region
from eigenveil.privacy.sums.gaps import Gaps
from eigenveil.privacy.sums.whole.center import as_pair
from eigenveil.privacy.sums.whole.grid import SUM_BITS, cached_rows, reach_of, sum_unit, unit_of
from eigenveil.privacy.sums.whole.total import Integers, Total, WholeSums
from eigenveil.privacy.sums.workers import added_up

__all__ = [
    "COUNT_UNIT",
    "CountWork",
    "KeptWork",
    "ObservedWork",
    "SumWork",
    "TraceWork",
    "observed_in",
    "sparse_block_sum",
    "whole_count",
    "whole_kept",
    "whole_observed",
    "whole_sum",
    "whole_trace",
    "whole_weights",
]

# The unit of counts: a row of a person who has m of them counts as 2^34 / m, rounded down. The count of all people by itself has
# a finer unit.
COUNT_UNIT, _FINE_COUNT = 2.0**-34, 2.0**-45


def whole_weights(weights: Array, *, unit: float = COUNT_UNIT) -> Integers:
    """The weights of rows, (b,), in whole numbers of `unit`, rounded down, so that no person counts as more than one.

    Proof. m rows of weight fl(1 / m) count as k <= fl(1 / m) / unit each. m k is whole and below (1 + 2^-52) / unit, so it is at
    most 1 / unit.

    >>> int(3 * whole_weights(np.array([1 / 3]))[0]) - 2**34
    -1
    """
    return np.floor(weights / unit).astype(np.int64)


def whole_count(rows: Rows) -> float:
    """The number of people: the exact sum of all weights."""
    return float(Fraction(total_of(rows, CountWork())) * Fraction(_FINE_COUNT))


def whole_kept(rows: Rows, gaps: Gaps) -> float:
    """The number of people whose rows count: the exact sum of the weights of these rows."""
    return float(Fraction(total_of(rows, KeptWork(gaps))) * Fraction(_FINE_COUNT))


def whole_observed(rows: Rows, gaps: Gaps) -> Array:
    """How many people have each column, (d,), or each pair of groups of columns, (g (g + 1) / 2,): exact sums of weights.

    With `Gaps.less_half`, less half of all people.
    """
    return total_of(rows, ObservedWork(gaps)).value(COUNT_UNIT / 2 if gaps.less_half else COUNT_UNIT)


def _people_in(block: Block) -> int:
    """The weights of a block's rows, in the same whole numbers as `observed_in`."""
    # The very weights that entries count with: a person must not weigh more here than there.
    return len(block) * round(1 / COUNT_UNIT) if block.weights is None else int(whole_weights(block.weights).sum())


def observed_in(block: Block, gaps: Gaps) -> Integers:
    """The observed counts of one block, (c,), in whole numbers of `COUNT_UNIT`. A block has at most 2^18 rows."""
    one = round(1 / COUNT_UNIT)
    weights = np.full(len(block), one) if block.weights is None else whole_weights(block.weights)
    if block.sparse and gaps.rule == "counts":
        # Everybody, less those who lack the entry: what is not stored is a zero, which is there.
        missing = np.isnan(block.values.data)
        each = np.repeat(weights, np.diff(block.values.indptr))[missing]
        lacking = np.bincount(block.values.indices[missing], weights=each, minlength=gaps.groups)
        return int(weights.sum()) - lacking.astype(np.int64)
    there = gaps.there(block).astype(np.float64)
    # Whole numbers of 34 bits: a block of them adds up exactly in float64, in whatever order BLAS adds them.
    counted = weights.astype(np.float64)
    if gaps.rule == "counts":
        return np.asarray(counted @ there).astype(np.int64)
    return np.asarray(((there * counted[:, None]).T @ there)[np.triu_indices(gaps.groups)]).astype(np.int64)


def whole_trace(rows: Rows, region: Region) -> float:
    """The sum of the squared norms of the clipped rows, each rounded down to a whole number."""
    return float(Fraction(total_of(rows, TraceWork(region))) * Fraction(unit_of(region) ** 2))


def whole_sum(rows: Rows, region: Region) -> Array:
    """The sum, (d,), of the clipped rows."""
    return _finished(total_of(rows, SumWork(region)), region)


@final
@dataclass(frozen=True, slots=True)
class CountWork:
    """The number of people, in whole numbers of 2^-45."""

    def of(self, rows: Rows) -> int:
        """The sum over rows that are here."""
        total, one = 0, round(1 / _FINE_COUNT)
        for count, weights in lengths(rows):
            total += count * one if weights is None else int(whole_weights(weights, unit=_FINE_COUNT).sum())
        return total

    def joined(self, left: int, right: int) -> int:
        """The sum over the rows of both."""
        return left + right


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeptWork:
    """The number of people whose rows count, in whole numbers of 2^-45."""

    gaps: Gaps

    def of(self, rows: Rows) -> int:
        """The sum over rows that are here."""
        total, one = 0, round(1 / _FINE_COUNT)
        for block in rows.blocks(block_size(rows)):
            kept, weights = self.gaps.kept(block), block.weights
            whole = None if weights is None else whole_weights(weights[kept], unit=_FINE_COUNT)
            total += int(kept.sum()) * one if whole is None else int(whole.sum())
        return total

    def joined(self, left: int, right: int) -> int:
        """The sum over the rows of both."""
        return left + right


@final
@dataclass(frozen=True, slots=True, eq=False)
class ObservedWork:
    """How many people have each column, or each pair of groups of columns, (c,), in whole numbers of `COUNT_UNIT`.

    Where counts are taken less half of the people: twice the counts, less the people.
    """

    gaps: Gaps

    def of(self, rows: Rows) -> Total:
        """The counts of rows that are here."""
        total = Total.zeros((self.gaps.entries,), each=round(1 / COUNT_UNIT))
        for block in rows.blocks(block_size(rows)):
            counts = observed_in(block, self.gaps)
            total.add(2 * counts - _people_in(block) if self.gaps.less_half else counts, len(block))
        return total

    def joined(self, left: Total, right: Total) -> Total:
        """The counts of the rows of both."""
        left.and_other(right)
        return left


@final
@dataclass(frozen=True, slots=True, eq=False)
class TraceWork:
    """The sum of the squared norms of the rows in `region`, in whole numbers of its unit squared."""

    region: Region

    def of(self, rows: Rows) -> int:
        """The sum over rows that are here."""
        unit = unit_of(self.region) ** 2
        # Each is below 2^34, and a block of them adds up below 2^53.
        return sum(int(np.floor(self.region.squares(block) / unit).sum()) for block in rows.blocks(block_size(rows)))

    def joined(self, left: int, right: int) -> int:
        """The sum over the rows of both."""
        return left + right


@final
@dataclass(frozen=True, slots=True, eq=False)
class SumWork:
    """The sum of the rows in `region`: the total is (d,), in whole numbers of `sum_unit`.

    For sparse rows with a center, `weight` is the sum of their shifts.
    """

    region: Region

    def of(self, rows: Rows) -> WholeSums:
        """The sum over rows that are here."""
        return added_up(rows, lambda: WholeSum(self.region, sparse=rows.sparse)).sums

    def joined(self, left: WholeSums, right: WholeSums) -> WholeSums:
        """The sum over the rows of both."""
        return left.and_other(right)


def _finished(sums: WholeSums, region: Region) -> Array:
    """The sum, (d,), with the center of sparse rows subtracted."""
    center = region.shifted_center
    if center is None or sums.weight is None:
        return sums.total.value(sums.unit)
    hi, lo = sums.total.pair()
    taken = as_pair([Fraction(sums.weight) * Fraction(SHIFT) / Fraction(sums.unit)])
    exact = minus_outer((hi[None, :], lo[None, :]), taken, center)
    return np.asarray((exact[0] + exact[1])[0] * sums.unit)


def sparse_block_sum(block: Block, domain: Domain) -> Integers:
    """The sum of a sparse block's rows in whole numbers of `sum_unit`; around a center it is rounded."""
    part = WholeSum(domain, sparse=True)
    part.take(block)
    return (
        part.total.whole()
        if part.shifts is None
        else np.rint(_finished(part.sums, domain) / part.unit).astype(np.int64)
    )


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
            part = self._region.whole_sparse(block, unit=self.unit)
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
        self.total.and_other(other.total)
        if other.shifts is not None:
            self.shifts = (self.shifts or 0) + other.shifts

    @property
    def sums(self) -> WholeSums:
        """Everything added so far."""
        return WholeSums(self.total, self.unit, weight=self.shifts)
