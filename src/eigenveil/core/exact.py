"""Arithmetic that rounds once, at the end: products of integer matrices, and sums of products of floats as double-doubles.

Whole numbers are exact in float64 up to 2^53, in whatever order they are added. Larger ones are split into limbs whose products
stay below that. The result is a pair of floats (hi, lo) with 106 bits (Dekker 1971). `whole` and `counts` call this.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.threads import Array, Blas
from eigenveil.errors import require

__all__ = [
    "TOEPLITZ_COLUMNS",
    "DoubleDouble",
    "exact_product",
    "joined",
    "less_outer",
    "limb_product",
    "limbs_of",
    "minus_outer",
    "plus",
    "toeplitz_times",
    "two_product",
    "two_sum",
]

Integers = NDArray[np.int64]
# hi + lo, with |lo| at most half a unit in the last place of hi.
DoubleDouble = tuple[Array, Array]
# Splits a float64 into two halves of 26 bits (Veltkamp 1968).
_HALVES = 134217729.0
# Whole numbers of up to this many bits are float64 without loss.
_EXACT_BITS = 53
# Columns that are multiplied at once: many for BLAS, and little memory next to the result.
_ABREAST = 64
# Rows of the right side that are multiplied with at a time where the left one is a lower triangular Toeplitz matrix.
TOEPLITZ_COLUMNS = 128


def two_sum(a: Array, b: Array) -> DoubleDouble:
    """a + b without loss (Knuth 1969)."""
    # Either of the two may be larger, so nothing has to be sorted first.
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a: Array, b: Array) -> DoubleDouble:
    """a * b without loss, entry by entry, unless it overflows or underflows (Dekker 1971)."""
    product = a * b
    (a_hi, a_lo), (b_hi, b_lo) = _halves(a), _halves(b)
    rest = a_hi * b_hi - product
    # One after the other, the largest first: each of these sums is exact.
    rest += a_hi * b_lo
    rest += a_lo * b_hi
    rest += a_lo * b_lo
    return product, rest


def _halves(a: Array) -> tuple[Array, Array]:
    far = _HALVES * a
    high = far - (far - a)
    return high, a - high


def plus(pair: DoubleDouble, other: DoubleDouble) -> DoubleDouble:
    """The sum of two pairs, off by less than 2^-100 of the larger one."""
    hi, lo = two_sum(pair[0], other[0])
    return two_sum(hi, lo + pair[1] + other[1])


def joined(high: Integers, low: Integers, *, bits: int) -> DoubleDouble:
    """high 2^bits + low, for whole numbers |high| < 2^53 and |low| < 2^53."""
    return two_sum(high.astype(np.float64) * 2.0**bits, low.astype(np.float64))


def minus_outer(value: DoubleDouble, left: DoubleDouble, right: Array) -> DoubleDouble:
    """value - left right^T, (m, n), for a pair left, (m,), and floats right, (n,): off by less than 2^-98 of the largest term."""
    product, rest = two_product(left[0][:, None], right[None, :])
    return plus(value, (-product, -(rest + left[1][:, None] * right[None, :])))


def less_outer(value: DoubleDouble, left: Array, right: DoubleDouble) -> Array:
    """value - left right^T, (m, n), for floats left, (m,), and a pair right, (n,), rounded to float64.

    This is `minus_outer` transposed, for the last step of a computation, in half the time.
    """
    product, rest = two_product(right[0][None, :], left[:, None])
    # `two_sum` of value and -product, in place: this runs over every entry of a large product.
    hi = value[0] - product
    back = hi - value[0]
    product += back
    np.subtract(hi, back, out=back)
    lo = np.subtract(value[0], back, out=back)
    lo -= product
    # The small parts are added up first and join the large one in a single rounding.
    lo += value[1]
    lo -= rest
    lo -= np.multiply(right[1][None, :], left[:, None], out=rest)
    hi += lo
    return hi


def exact_product(left: Integers, right: Integers) -> Array:
    """left @ right for integer matrices, (m, k) and (k, n), of up to 62 bits each: the nearest float64, up to 2^-98."""
    require(left.shape[1] == right.shape[0], f"shapes {left.shape} and {right.shape} cannot be multiplied")
    return limb_product(limbs_of(left, terms=left.shape[1]), right, np.matmul)


def limb_product(lefts: Sequence[Array], right: Integers, times: Callable[[Array, Array], Array]) -> Array:
    """The same from the limbs of the left matrix. Of a Toeplitz matrix, `toeplitz_times` needs the first columns only."""
    terms = right.shape[0]
    rights, width = limbs_of(right, terms=terms), _width(terms)
    product = np.empty((lefts[0].shape[0], right.shape[1]))
    for start in range(0, right.shape[1], _ABREAST):
        chunk = product[:, start : start + _ABREAST]
        columns = chunk.shape[1]
        # All limbs of the right side abreast: a large left matrix is then read from memory once, and not once for each of them.
        together = np.hstack([limb[:, start : start + _ABREAST] for limb in rights])
        pairs = [times(left, together) for left in lefts]
        hi = lo = np.zeros(chunk.shape)
        # Products of limbs, each shifted by its width, from the smallest to the largest: little is lost before the large ones.
        for shift in range(len(lefts) + len(rights) - 1):
            for i in range(max(0, shift - len(rights) + 1), min(shift + 1, len(lefts))):
                pair = pairs[i][:, (shift - i) * columns : (shift - i + 1) * columns]
                hi, lo = plus((hi, lo), (pair * 2.0 ** (width * shift), np.zeros_like(pair)))
        chunk[...] = hi + lo
    return product


def limbs_of(matrix: Integers, *, terms: int) -> tuple[Array, ...]:
    """Integer matrices, lowest first, that add up to `matrix` when each is shifted by the width of a limb.

    They are so short that `terms` products of two limbs add up below 2^53. BLAS multiplies those without rounding.
    """
    width = _width(terms)
    rest, limbs = matrix, list[Array]()
    half = np.int64(1) << (width - 1)
    while True:
        # Signed limbs, so that small negative numbers have one limb too.
        low = ((rest + half) & ((1 << width) - 1)) - half
        limbs.append(low.astype(np.float64))
        rest = (rest - low) >> width
        if not rest.any():
            return tuple(limbs)


def _width(terms: int) -> int:
    """How many bits a limb has."""
    # A product of two limbs has twice their bits, and adding k of them takes log2 k more.
    return (_EXACT_BITS - math.ceil(math.log2(max(terms, 1) + 1))) // 2


def toeplitz_times(first: Array, right: Array) -> Array:
    """left @ right, (k, n), for a lower triangular Toeplitz matrix whose first `TOEPLITZ_COLUMNS` columns are `first`.

    Further columns are the first ones moved down, so the whole matrix need not be stored, or read from memory.
    """
    product = np.zeros(right.shape)
    # The products are so small that a second thread of BLAS would be waited for longer than it works.
    with Blas.limit(1):
        for start in range(0, len(right), TOEPLITZ_COLUMNS):
            chunk = right[start : start + TOEPLITZ_COLUMNS]
            # Counts are zero in long stretches, and those need not be multiplied with.
            if chunk.any():
                product[start:] += first[: len(right) - start, : len(chunk)] @ chunk
    return product
