"""Subtracts the center of sparse rows from finished exact sums.

Sparse rows are R - s c^T: subtracting the center c from a row would store every zero. The sums with s are whole numbers, and the
last step is in double-doubles, because the terms may nearly cancel. WholeSums of rows, Gram matrices and their columns call this.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from eigenveil.linalg import Array
from eigenveil.linalg.exact import DoubleDouble, minus_outer, two_sum
from eigenveil.privacy.sums.domain import SHIFT
from eigenveil.privacy.sums.whole.total import Integers, Total

__all__ = ["CenterSums", "CenterTerms", "as_pair"]


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
        """Add those of a block's rows, given their transpose in CSR form."""
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

    def columns(self, products: DoubleDouble, here: slice) -> Array:
        """The columns `here`, (d, w), of the products around the center.

        Both of two mirrored entries are computed like the one above the diagonal. So all columns together are symmetric to the
        last bit; otherwise the difference of two mirrored entries would be public without noise.
        """
        dim, before, after = len(self.center), slice(0, here.start), slice(here.stop, len(self.center))
        found = np.empty((dim, here.stop - here.start))
        hi, lo = products
        found[before] = self._off((hi[before], lo[before]), before, here)
        found[after] = self._off((hi[after].T, lo[after].T), here, after).T
        square = np.triu(self._off((hi[here], lo[here]), here, here))
        found[here] = square + np.triu(square, 1).T
        return found

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
