"""`Total`: a running sum of whole numbers in int64 that never overflows. All exact sums add up their blocks in one.

`WholeSums` is what rows that are elsewhere send back: totals, and nothing else.
"""

from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.linalg.exact import DoubleDouble, joined
from eigenveil.privacy.sums.whole.grid import CACHED_NUMBERS, CACHED_ROWS

__all__ = ["CARRY", "EXACT", "Integers", "Total", "WholeSums"]

Integers = NDArray[np.int64]

# Beyond the first, a sum is carried over to a second int64, which counts units of 2^CARRY.
_FULL, CARRY = 1 << 61, 32
# What may be added at once: in int64, next to what a carry leaves there, and in float64, where sums of whole numbers are exact.
_ROOM, EXACT = 1 << 62, 1 << 53


@final
@dataclass(slots=True, eq=False)
class Total:
    """A running sum of whole arrays that never overflows. Changes in place.

    One row adds at most `each` to an entry. Long before that could pass 2^63, the upper bits are carried over to a second array.
    So high 2^32 + low is always the exact sum.
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
        found = cls(low, max(each, 1))
        found._rows = rows
        return found

    def __sizeof__(self) -> int:
        # For whoever moves sums between machines, by size.
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

    def and_other(self, other: "Total") -> None:
        """Add the total of another worker."""
        # Two sums that are each near the limit could overflow together, so both carry over first.
        if other.high is not None or other._rows * other.each > _FULL // 2:
            other._carry()
            self._carry()
            assert self.high is not None and other.high is not None
            self.high += other.high
        self.room(other._rows)
        self.low += other.low

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

    def pair(self, here: slice = slice(None)) -> DoubleDouble:
        """The sum, or some rows of it, as a pair of floats, exactly."""
        low = self.low[here]
        if self.high is None and (low.size == 0 or max(int(low.max()), -int(low.min())) <= EXACT):
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
            # In place, a chunk at a time: there may be no memory for a second matrix of this size.
            found = self.low.view(np.float64)
            flat, out = self.low.reshape(-1), found.reshape(-1)
            for start in range(0, len(flat), CACHED_NUMBERS):
                out[start : start + CACHED_NUMBERS] = flat[start : start + CACHED_NUMBERS].astype(np.float64)
        found *= unit
        return found


@final
@dataclass(slots=True, eq=False)
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
        return object.__sizeof__(self) + sum(one.__sizeof__() for one in (self.total, self.beside) if one is not None)

    def and_other(self, other: "WholeSums") -> "WholeSums":
        """Add the sums of other rows."""
        # Without rows there is no unit yet.
        self.unit = other.unit if self.total.empty else self.unit
        self.total.and_other(other.total)
        if self.beside is not None and other.beside is not None:
            self.beside.and_other(other.beside)
        if other.weight is not None:
            self.weight = (self.weight or 0) + other.weight
        return self

    def __repr__(self) -> str:
        return f"WholeSums(shape={self.total.low.shape}, unit={self.unit})"
