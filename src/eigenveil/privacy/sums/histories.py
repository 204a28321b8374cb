"""`Histories`: the region of users' histories, each a set of items, divided by the root of how many there are.

A row becomes r / sqrt(max(deg, m)), where r is 1 at every entry that is not zero, deg counts them, and m is a public number.
Whatever numbers a row holds, each item stored once, the result is such a row: what is proved here needs no promise about data.
"""

import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from eigenveil.data.rows import Block
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.sensitivity import (
    Neighbours,
    gram_sensitivity,
    gram_times_sensitivity,
    longest_row,
    sum_sensitivity,
    trace_sensitivity,
)
from eigenveil.privacy.sums.domain import LARGEST, SMALLEST, Pair, Region, Scored, SparseBlock, row_sums

__all__ = [
    "Histories",
    "interaction_gram_sensitivity",
    "interaction_products_sensitivity",
    "interaction_sum_sensitivity",
    "interaction_trace_sensitivity",
]

# Keeps a row that was rounded onto the sphere from landing outside it.
_INSIDE = 1 - 1e-15
# The same for rows whose length is a sum in floating point, of any number of weights, pairwise: off by less than this.
_SUMMED = 1 - 2.0**-44
# Products of numbers below this come near the smallest that there are, where digits are lost.
_TINY = 1e-200
# What rows with weights of items are whole multiples of, and their scores: 42 bits, of which 2^9 add up exactly in float64.
_UNIT, _WEIGHTED_SCORE = 2.0**-16, 2.0**-26
# The same of products and scores of other rows: 36 bits, of which 2^16 do.
_PRODUCT, _SCORE = 2.0**-36, 2.0**-32
# What one interaction moves more of a sum and of products, because entries were rounded down: sqrt(degree) of them by one unit of
# 2^-33 on either side, and weights w of r r^T, of norm degree, by 2^-36 on either side.
_SUM_ROUNDED, _ROUNDED = 2.0**-32, 2.0**-35
# Degrees are counted exactly and their roots taken up to here, far beyond any history.
_MOST = 2**53


@final
@dataclass(frozen=True, slots=True, eq=False)
class Histories(Region):
    """Rows of zeros and ones of `dim` items, divided by sqrt(max(degree, least)); of `columns` alone where those are given.

    Degrees are then counted within the columns, so a user's items outside of them count for nothing. A user is a row of length at
    most one: all that is proved of persons in `eigenveil.privacy.sensitivity` holds with the bound B = 1.

    With positive `weights`, (dim,), one for each item, rows keep that length and have entries in their proportion: with
    w = one over the root of the item degrees, the matrix of GF-CF. That is for whole users: what one item moves is not bounded.

    With `claimed` false nothing is claimed, and rows are on no grid, as in a `Domain`.

    >>> Histories(3, least=4).dense(Block(np.array([[0.0, 1.0, 1.0], [7.0, 0.0, 0.0]]))).round(9).tolist()
    [[0.0, 0.5, 0.5], [0.5, 0.0, 0.0]]
    """

    dim: int
    least: int = 1
    columns: NDArray[np.int64] | None = None
    weights: Array | None = None
    claimed: bool = True
    radius: float = field(init=False, default=1.0)

    def __post_init__(self) -> None:
        require(1 <= self.least <= _MOST, f"least must lie between 1 and 2^53, got {self.least}")
        if self.columns is not None:
            require(
                self.columns.shape == (self.dim,), f"there must be {self.dim} columns, got shape {self.columns.shape}"
            )
            rising = len(self.columns) == 0 or (self.columns[0] >= 0 and bool((np.diff(self.columns) > 0).all()))
            require(rising, "columns must be numbers from 0 in rising order, none of them twice")
        if self.weights is not None:
            require(
                self.weights.shape == (self.dim,), f"there must be {self.dim} weights, got shape {self.weights.shape}"
            )
            sound = bool(((self.weights >= SMALLEST) & (self.weights <= LARGEST)).all())
            require(sound, f"every weight must be positive, between {SMALLEST:g} and {LARGEST:g}")

    @property
    def shifted_center(self) -> Array | None:
        """None: histories are not centred, or every zero would have to be stored."""
        return None

    def dense(self, block: Block, *, out: Array | None = None, squared: bool = False) -> Array:
        """The rows, (b, dim), of a dense block, in `out` if given."""
        rows, factor = self.moved(block, out=np.empty((len(block), self.dim)) if out is None else out, squared=squared)
        rows *= factor[:, None]
        return rows

    def moved(self, block: Block, *, out: Array, squared: bool = False) -> tuple[Array, Array]:
        """Ones and zeros, written to `out`, (b, dim), and what each row is multiplied with, (b,)."""
        _require_whole(block)
        held = block.values if self.columns is None else block.values[:, self.columns]
        rows = out[: len(block)]
        np.not_equal(held, 0, out=rows)
        degrees = rows.sum(axis=1)
        if self.weights is not None:
            rows *= self.weights
        if self.weights is None:
            return rows, self._factors(degrees, degrees)
        # A sum along each row by itself, pairwise, which does not depend on the rows beside it.
        return rows, self._factors(degrees, np.add.reduce(np.square(rows), axis=1))

    def sparse(self, block: Block, *, squared: bool = False) -> SparseBlock:
        """The rows of a sparse block; what is stored as zero is no item of the user's."""
        _require_whole(block)
        matrix: Any = block.values if self.columns is None else block.values[:, self.columns]
        there = matrix.data != 0
        counts = np.diff(np.concatenate([[0], np.cumsum(there)])[matrix.indptr]).astype(np.float64)
        ones = there.astype(np.float64) if self.weights is None else there * self.weights[matrix.indices]
        squares = counts if self.weights is None else row_sums(np.square(ones), matrix.indptr)
        values = np.repeat(self._factors(counts, squares), np.diff(matrix.indptr)) * ones
        rows = sp.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
        return SparseBlock(rows, np.zeros(len(block)))

    @property
    def unit(self) -> float | None:
        """2^-16, or None where nothing is `claimed`: sums are in plain floating point then."""
        return _UNIT if self.claimed else None

    def whole(self, block: Block, *, unit: float, squared: bool = False, out: Array | None = None) -> Array:
        """The rows, (b, dim), of a dense block in whole numbers of `unit`, rounded down: no row gets longer."""
        rows = self.dense(block, out=out, squared=squared)
        rows /= unit
        return np.floor(rows, out=rows)

    def whole_sparse(self, block: Block, *, unit: float, squared: bool = False) -> SparseBlock:
        """The rows of a sparse block in whole numbers of `unit`, rounded down."""
        part = self.sparse(block, squared=squared)
        part.rows.data = np.floor(part.rows.data / unit)
        return part

    def squares(self, block: Block) -> Array:
        """The squared length of each row, degree / max(degree, least)."""
        _, degrees = self._items(block)
        return degrees * self._shares(degrees)

    def pair(self, block: Block, *, out: Array | None = None) -> Pair:
        """What the rows add to the Gram matrix: w r r^T, with w = 1 / max(degree, least) rounded down to a multiple of 2^-36.

        Rows with weights of items are on a grid of their own, as those of any table.
        """
        if self.weights is not None:
            return Region.pair(self, block, out=out)
        there, degrees = self._items(block)
        weights = np.floor(self._shares(degrees) / _PRODUCT)
        if block.sparse:
            left = sp.csr_array(
                (np.repeat(weights, np.diff(there.indptr)) * there.data, there.indices, there.indptr), there.shape
            )
            return Pair(left, there, _PRODUCT)
        left = np.multiply(there, weights[:, None], out=None if out is None else out[: len(there)])
        return Pair(left, there, _PRODUCT)

    def scored(self, block: Block, *, basis: Array, out: Array | None = None) -> Scored:
        """Items and scores: r s^T with s = r^T basis / max(degree, least) in whole numbers of 2^-32, rounded towards zero.

        r^T basis is a sum of multiples of 2^-35 that stays below 2^18 for any history of up to 2^36 items: exact.
        """
        there, degrees = self._items(block)
        if self.weights is not None:
            rows = self.whole_sparse(block, unit=_UNIT).rows if block.sparse else self.whole(block, unit=_UNIT)
            scores = np.trunc((rows @ basis) * (_UNIT / _WEIGHTED_SCORE))
            return Scored(rows, scores, _UNIT * _WEIGHTED_SCORE, 1 / _WEIGHTED_SCORE)
        scores = (there @ basis) * (self._shares(degrees) / _SCORE)[:, None]
        return Scored(there, np.trunc(scores, out=scores), _SCORE, 1 / _SCORE)

    def _items(self, block: Block) -> tuple[Any, Array]:
        """Ones and zeros, (b, dim), as the block has them, and how many ones there are in each row, (b,)."""
        _require_whole(block)
        held = block.values if self.columns is None else block.values[:, self.columns]
        if not block.sparse:
            there = np.not_equal(held, 0).astype(np.float64)
            return there, there.sum(axis=1)
        ones = (held.data != 0).astype(np.float64)
        counts = np.diff(np.concatenate([[0], np.cumsum(held.data != 0)])[held.indptr]).astype(np.float64)
        return sp.csr_array((ones, held.indices, held.indptr), shape=held.shape), counts

    def _shares(self, degrees: Array) -> Array:
        """1 / max(degree, least), or a little less."""
        return np.asarray(_INSIDE / np.maximum(degrees, self.least))

    def sum_sensitivity(self, neighbours: Neighbours) -> float:
        """As of rows in the unit ball, or `interaction_sum_sensitivity`. Of two users, the one in place of the other: sqrt(2).

        Proof. Entries of x and y are not negative, so x.y is not, and ||y - x||^2 <= ||x||^2 + ||y||^2 <= 2.
        """
        if neighbours is Neighbours.INTERACTION:
            self._require_equal()
            return interaction_sum_sensitivity(self.least) + math.sqrt(self.dim) * _SUM_ROUNDED
        if neighbours is Neighbours.REPLACE_ONE:
            return math.sqrt(2) * self.radius
        return sum_sensitivity(self.radius, neighbours)

    def gram_sensitivity(self, neighbours: Neighbours) -> float:
        """As of rows in the unit ball, or `interaction_gram_sensitivity`."""
        if neighbours is Neighbours.INTERACTION:
            self._require_equal()
            return interaction_gram_sensitivity(self.least) + self.dim * _ROUNDED
        return gram_sensitivity(self.radius, neighbours)

    def gram_times_sensitivity(self, neighbours: Neighbours, *, basis: Array, basis_norm: float) -> float:
        """As of rows in the unit ball, or `interaction_products_sensitivity`."""
        if neighbours is Neighbours.INTERACTION:
            self._require_equal()
            longest = longest_row(basis)
            # What a product of smaller numbers is rounded by would be as large as what is stated for it.
            sound = longest == 0 or longest >= _TINY
            require(sound, f"basis must be zero or have a row no shorter than {_TINY:g}, got {longest:g}")
            return self._products_sensitivity(basis, longest=longest, basis_norm=basis_norm)
        exact = gram_times_sensitivity(self.radius, neighbours, basis=basis, basis_norm=_on_grid(basis, basis_norm))
        if neighbours is not Neighbours.REPLACE_ONE:
            # Scores are rounded towards zero, so that no user adds more than without rounding.
            return exact
        rounded = _SCORE if self.weights is None else _WEIGHTED_SCORE
        return exact + 2 * math.sqrt(self.dim * basis.shape[1]) * rounded

    def _products_sensitivity(self, basis: Array, *, longest: float, basis_norm: float) -> float:
        """`interaction_products_sensitivity` of the basis on its grid, and what scores are rounded by.

        In one table and in the other the user's scores are off by less than 2^-32 in each of p columns, and stand in at most
        `dim` rows: sqrt(dim p) 2^-32 in the Frobenius norm, twice.
        """
        width = basis.shape[1]
        exact = interaction_products_sensitivity(
            self.least,
            longest_row=longest + math.sqrt(width) * 2.0**-36,
            basis_norm=_on_grid(basis, basis_norm),
        )
        return exact + 2 * math.sqrt(self.dim * width) * _SCORE

    def trace_sensitivity(self, neighbours: Neighbours) -> float:
        """As of rows in the unit ball, or `interaction_trace_sensitivity`."""
        if neighbours is Neighbours.INTERACTION:
            self._require_equal()
            # Rounded down on either side.
            return interaction_trace_sensitivity(self.least) + _UNIT**2
        return trace_sensitivity(self.radius, neighbours)

    def _factors(self, degrees: Array, squares: Array) -> Array:
        """What makes rows of these squared lengths ones of length sqrt(degree / max(degree, least))."""
        lengths = _INSIDE / np.sqrt(np.maximum(degrees, self.least))
        if self.weights is None:
            return np.asarray(lengths)
        # Whoever has nothing has a row of zeros, whatever it is multiplied with.
        return np.asarray(lengths * _SUMMED * np.sqrt(degrees / np.where(squares > 0, squares, 1.0)))

    def _require_equal(self) -> None:
        require(self.weights is None, "weights of items are for whole users: what one interaction moves is not bounded")


def _on_grid(basis: Array, basis_norm: float) -> float:
    """The norm of a basis, (d, p), whose entries were rounded to multiples of 2^-35."""
    return basis_norm + math.sqrt(basis.size) * 2.0**-36


# What follows bounds the effect of one interaction. A user has n items, one of them k, in one table and not in the other; r and
# r' = r - e_k are the two rows of ones, m is `least`, and C = r r^T / max(n, m) - r' r'^T / max(n - 1, m) is what changes.


def interaction_sum_sensitivity(least: int) -> float:
    """Euclidean sensitivity of the sum of rows to one interaction: 1 / sqrt(m).

    Proof. For n <= m the change is e_k / sqrt(m). For n > m it is r / sqrt(n) - r' / sqrt(n - 1), whose square is
    2 - 2 r.r' / sqrt(n (n - 1)) = 2 - 2 sqrt(1 - 1/n). As sqrt(1 - x) >= 1 - x/2 - x^2/2 on [0, 1], that is at most
    1/n + 1/n^2 = (n + 1) / n^2, which with n >= m + 1 is at most (m + 2) / (m + 1)^2 < 1/m.

    >>> interaction_sum_sensitivity(4)
    0.5
    """
    return 1.0 / math.sqrt(least)


def interaction_trace_sensitivity(least: int) -> float:
    """Sensitivity of the total sum of squares to one interaction: 1/m.

    Proof. A user adds n / max(n, m), which is 1 from m items on and 1/m less for each one below.

    >>> interaction_trace_sensitivity(4)
    0.25
    """
    return 1.0 / least


def interaction_gram_sensitivity(least: int) -> float:
    """Frobenius sensitivity of the Gram matrix to one interaction: sqrt(2 m - 1) / m.

    Proof. The products' bound for the identity, whose rows have length one and whose norm is one. Reached by a user with m items.

    >>> interaction_gram_sensitivity(1), round(interaction_gram_sensitivity(20), 3)
    (1.0, 0.312)
    """
    return interaction_products_sensitivity(least, longest_row=1.0, basis_norm=1.0)


def interaction_products_sensitivity(least: int, *, longest_row: float, basis_norm: float) -> float:
    """Frobenius sensitivity of the Gram matrix times Z to one interaction, for rows of Z no longer than rho and ||Z||_2 <= s:

        sqrt( min(rho^2, s^2 / m) + (m - 1) rho^2 / m^2 ),

    which is rho for m = 1; PPM Lemma 6.1 has sqrt(2) rho there.

    Proof. Let a = Z_k be row k of Z, and c the sum of the rows of Z that r' names. For n <= m, C = (r r^T - r' r'^T) / m, so row
    k of C Z is (c + a) / m, the n - 1 rows that r' names are a / m, and all others are zero. Now c + a = Z^T r, no longer than
    n rho, nor than s sqrt(n), and the sum of squares, at most (min(n^2 rho^2, n s^2) + (n - 1) rho^2) / m^2, is largest at n = m.

    For n > m, C = r r^T / n - r' r'^T / (n - 1). With b = c / (n - 1), row k of C Z is ((n - 1) b + a) / n, and each row that r'
    names is (a - b) / n. The squares add up to ((n - 1) |b|^2 + |a|^2) / n: the products of a and b cancel. |b| is at most rho,
    and at most s / sqrt(n - 1), so the sum is at most min(rho^2, (s^2 + rho^2) / n) with n >= m + 1. That is less than for n = m:
    if rho^2 <= s^2 / m the first term alone is rho^2; if not, s^2 / m + (m - 1) rho^2 / m^2 - (s^2 + rho^2) / (m + 1) =
    (s^2 - rho^2 / m) / (m (m + 1)) >= 0, since no row of Z is longer than s. (A rho larger than s is brought down to it.)

    >>> interaction_products_sensitivity(1, longest_row=0.25, basis_norm=1.0)
    0.25
    """
    length = min(longest_row, basis_norm)
    if length == 0:
        return 0.0
    # The length is taken out of the root: the square of a small number is none.
    ratio = basis_norm / length
    return length * math.sqrt(min(1.0, ratio * ratio / least) + (least - 1) / least**2)


def _require_whole(block: Block) -> None:
    require(block.weights is None, "a user is one row: rows of histories cannot be weighted")
