"""`Histories`: how users' histories are clipped and normalised. Recommenders use it in place of `Domain`.

A row becomes r / sqrt(max(deg, m)), where r is 1 at every nonzero entry, deg counts them, and m is a public number. Any row of
numbers with each item stored once becomes such a row, so the proofs here assume nothing about the data.
"""

import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.domain import LARGEST, SMALLEST, Pair, Region, Scored, SparseBlock, row_sums
from eigenveil.core.rows import Block
from eigenveil.core.unit import Neighbours, gram_times_sensitivity
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.floating import FloatRegion, dense

__all__ = [
    "Histories",
    "interaction_gram_sensitivity",
    "interaction_products_sensitivity",
    "interaction_sum_sensitivity",
    "interaction_trace_sensitivity",
]

# Keeps a row that is rounded onto the sphere from landing outside it.
_INSIDE = 1 - 1e-15
# The same for rows whose norm is a pairwise floating-point sum of any number of weights: off by less than this.
_SUMMED = 1 - 2.0**-44
# Products of numbers below this come near the underflow limit, where digits are lost.
_TINY = 1e-200
# Units of rows with item weights and of their scores: products have 42 bits, and 2^9 of them add up exactly in float64.
_UNIT, _WEIGHTED_SCORE = 2.0**-16, 2.0**-26
# Units of products and scores of all other rows: 36 bits, and 2^16 of them add up exactly.
_PRODUCT, _SCORE = 2.0**-36, 2.0**-32
# What rounding entries down adds to the effect of one interaction, times sqrt(degree) in a sum and degree in products. Entries
# of a sum are off by 2^-33 in each of the two tables. Weights w of r r^T, which has norm degree, are off by 2^-36 in each.
_SUM_ROUNDED, _ROUNDED = 2.0**-32, 2.0**-35
# Degrees are counted exactly up to here, far beyond any history.
_MOST = 2**53


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Histories(FloatRegion):
    """Rows of zeros and ones of `dim` items, divided by sqrt(max(degree, min_degree)).

    With `columns`, only those columns are used. Degrees are counted within them, so a user's other items have no effect. A user
    is a row of norm at most one. All that `eigenveil.core.unit` proves about persons holds with the bound B = 1.

    With positive `weights`, (dim,), one for each item, rows keep that norm and their entries are proportional to the weights.
    With w = one over the root of the item degrees this is the matrix of GF-CF. Weights are for user-level privacy: the effect of
    one item is not bounded.

    With `claimed` false no privacy is claimed and rows are on no grid, as in a `Domain`.

    >>> dense(Histories(dim=3, min_degree=4), Block(np.array([[0.0, 1.0, 1.0], [7.0, 0.0, 0.0]]))).round(9).tolist()
    [[0.0, 0.5, 0.5], [0.5, 0.0, 0.0]]
    """

    dim: int
    min_degree: int = 1
    columns: NDArray[np.int64] | None = None
    weights: Array | None = None
    claimed: bool = True
    radius: float = field(init=False, default=1.0)

    def __post_init__(self) -> None:
        require(1 <= self.min_degree <= _MOST, f"min_degree must lie between 1 and 2^53, got {self.min_degree}")
        if self.columns is not None:
            require(self.columns.shape == (self.dim,), f"there must be {self.dim} columns, got shape {self.columns.shape}")
            rising = len(self.columns) == 0 or (self.columns[0] >= 0 and bool((np.diff(self.columns) > 0).all()))
            require(rising, "columns must be column numbers from 0, in increasing order and without repetition")
        if self.weights is not None:
            require(self.weights.shape == (self.dim,), f"there must be {self.dim} weights, got shape {self.weights.shape}")
            sound = bool(((self.weights >= SMALLEST) & (self.weights <= LARGEST)).all())
            require(sound, f"every weight must be positive, between {SMALLEST:g} and {LARGEST:g}")

    @property
    def shifted_center(self) -> Array | None:
        """None: histories are not centered, because every zero would have to be stored."""
        return None

    def moved(self, block: Block, *, out: Array, squared: bool = False) -> tuple[Array, Array]:
        """Ones and zeros, written to `out`, (b, dim), and the factor of each row, (b,)."""
        _require_whole(block)
        held = block.values if self.columns is None else block.values[:, self.columns]
        rows = out[: len(block)]
        np.not_equal(held, 0, out=rows)
        degrees = rows.sum(axis=1)
        if self.weights is not None:
            rows *= self.weights
        if self.weights is None:
            return rows, self._factors(degrees, degrees)
        # Each row is summed by itself, pairwise, so its norm does not depend on other rows.
        return rows, self._factors(degrees, np.add.reduce(np.square(rows), axis=1))

    def sparse(self, block: Block, *, squared: bool = False) -> SparseBlock:
        """The rows of a sparse block; an entry stored as zero is not one of the user's items."""
        items, degrees = self._items(block)
        squares = degrees
        if self.weights is not None:
            items.data *= self.weights[items.indices]
            squares = row_sums(np.square(items.data), items.indptr)
        items.data = np.repeat(self._factors(degrees, squares), np.diff(items.indptr)) * items.data
        return SparseBlock(items, np.zeros(len(block)))

    @property
    def unit(self) -> float | None:
        """2^-16, or None where no privacy is `claimed`: sums are then in plain floating point."""
        return _UNIT if self.claimed else None

    def whole(self, block: Block, *, unit: float, squared: bool = False, out: Array | None = None) -> Array:
        """The rows, (b, dim), of a dense block in whole numbers of `unit`, rounded down, so that no norm grows."""
        rows = dense(self, block, out=out, squared=squared)
        rows /= unit
        return np.floor(rows, out=rows)

    def to_grid_sparse(self, block: Block, *, unit: float, squared: bool = False) -> SparseBlock:
        """The rows of a sparse block in whole numbers of `unit`, rounded down."""
        part = self.sparse(block, squared=squared)
        part.rows.data = np.floor(part.rows.data / unit)
        return part

    def squares(self, block: Block) -> Array:
        """The squared norm of each row, degree / max(degree, min_degree)."""
        _, degrees = self._items(block)
        return degrees * self._shares(degrees)

    def pair(self, block: Block, *, out: Array | None = None) -> Pair:
        """What the rows add to the Gram matrix: w r r^T, with w = 1 / max(degree, min_degree) rounded down to a multiple of
        2^-36.

        Rows with item weights are on the grid `_UNIT`, like rows of any table.
        """
        if self.weights is not None:
            return Region.pair(self, block, out=out)
        items, degrees = self._items(block)
        weights = np.floor(self._shares(degrees) / _PRODUCT)
        if block.sparse:
            import scipy.sparse as sp

            left = sp.csr_array(
                (np.repeat(weights, np.diff(items.indptr)) * items.data, items.indices, items.indptr), items.shape
            )
            return Pair(left=left, right=items, unit=_PRODUCT)
        left = np.multiply(items, weights[:, None], out=None if out is None else out[: len(items)])
        return Pair(left=left, right=items, unit=_PRODUCT)

    def scored(self, block: Block, *, basis: Array, out: Array | None = None) -> Scored:
        """Items and scores: r s^T with s = r^T basis / max(degree, min_degree) in whole numbers of 2^-32, rounded towards zero.

        r^T basis is a sum of multiples of 2^-35 that stays below 2^18 for any history of up to 2^36 items: exact.
        """
        items, degrees = self._items(block)
        if self.weights is not None:
            rows = self.to_grid_sparse(block, unit=_UNIT).rows if block.sparse else self.whole(block, unit=_UNIT)
            scores = np.trunc((rows @ basis) * (_UNIT / _WEIGHTED_SCORE))
            return Scored(rows=rows, scores=scores, unit=_UNIT * _WEIGHTED_SCORE, largest=1 / _WEIGHTED_SCORE)
        scores = (items @ basis) * (self._shares(degrees) / _SCORE)[:, None]
        return Scored(rows=items, scores=np.trunc(scores, out=scores), unit=_SCORE, largest=1 / _SCORE)

    def _items(self, block: Block) -> tuple[Any, Array]:
        """Ones and zeros, (b, dim), dense or sparse as the block is, and the degree of each row, (b,)."""
        _require_whole(block)
        held = block.values if self.columns is None else block.values[:, self.columns]
        if not block.sparse:
            items = np.not_equal(held, 0).astype(np.float64)
            return items, items.sum(axis=1)
        import scipy.sparse as sp

        ones = (held.data != 0).astype(np.float64)
        counts = np.diff(np.concatenate([[0], np.cumsum(held.data != 0)])[held.indptr]).astype(np.float64)
        return sp.csr_array((ones, held.indices, held.indptr), shape=held.shape), counts

    def _shares(self, degrees: Array) -> Array:
        """1 / max(degree, min_degree), or a little less."""
        return np.asarray(_INSIDE / np.maximum(degrees, self.min_degree))

    def sum_sensitivity(self, neighbours: Neighbours) -> float:
        """The sensitivity for rows in the unit ball, or `interaction_sum_sensitivity`. Under replace-one it is sqrt(2).

        Proof. Entries of x and y are not negative, so x.y is not either, and ||y - x||^2 <= ||x||^2 + ||y||^2 <= 2.
        """
        if neighbours is Neighbours.INTERACTION:
            self._require_equal()
            return interaction_sum_sensitivity(self.min_degree) + math.sqrt(self.dim) * _SUM_ROUNDED
        if neighbours is Neighbours.REPLACE_ONE:
            return math.sqrt(2) * self.radius
        return Region.sum_sensitivity(self, neighbours)

    def gram_sensitivity(self, neighbours: Neighbours) -> float:
        if neighbours is Neighbours.INTERACTION:
            self._require_equal()
            return interaction_gram_sensitivity(self.min_degree) + self.dim * _ROUNDED
        return Region.gram_sensitivity(self, neighbours)

    def gram_times_sensitivity(self, neighbours: Neighbours, *, basis: Array, basis_norm: float) -> float:
        if neighbours is Neighbours.INTERACTION:
            self._require_equal()
            largest = _largest_row_norm(basis)
            # With smaller numbers, the rounding of a product would be as large as the stated sensitivity.
            sound = largest == 0 or largest >= _TINY
            require(sound, f"basis must be zero or have a row of norm at least {_TINY:g}, got {largest:g}")
            width = basis.shape[1]
            # Of the basis on its grid.
            exact = interaction_products_sensitivity(
                self.min_degree, largest_row_norm=largest + math.sqrt(width) * 2.0**-36, basis_norm=_on_grid(basis, basis_norm)
            )
            # In each of the two tables the user's scores are off by less than 2^-32 in each of p columns. They enter at most
            # `dim` rows: sqrt(dim p) 2^-32 in the Frobenius norm, twice.
            return exact + 2 * math.sqrt(self.dim * width) * _SCORE
        exact = gram_times_sensitivity(self.radius, neighbours, basis_norm=_on_grid(basis, basis_norm))
        if neighbours is not Neighbours.REPLACE_ONE:
            # Scores are rounded towards zero, so no user adds more than without rounding.
            return exact
        rounded = _SCORE if self.weights is None else _WEIGHTED_SCORE
        return exact + 2 * math.sqrt(self.dim * basis.shape[1]) * rounded

    def trace_sensitivity(self, neighbours: Neighbours) -> float:
        if neighbours is Neighbours.INTERACTION:
            self._require_equal()
            # Squared norms are rounded down in both tables, by less than this each.
            return interaction_trace_sensitivity(self.min_degree) + _UNIT**2
        return Region.trace_sensitivity(self, neighbours)

    def _factors(self, degrees: Array, squares: Array) -> Array:
        """The factors that give rows of these squared norms the norm sqrt(degree / max(degree, min_degree))."""
        norms = _INSIDE / np.sqrt(np.maximum(degrees, self.min_degree))
        if self.weights is None:
            return np.asarray(norms)
        # A user without items has a row of zeros, whatever its factor: avoid dividing by zero.
        return np.asarray(norms * _SUMMED * np.sqrt(degrees / np.where(squares > 0, squares, 1.0)))

    def _require_equal(self) -> None:
        require(
            self.weights is None, "item weights give user-level privacy only: with neighbours='interaction', leave weights out"
        )


def _on_grid(basis: Array, basis_norm: float) -> float:
    """The norm of a basis, (d, p), whose entries were rounded to multiples of 2^-35."""
    return basis_norm + math.sqrt(basis.size) * 2.0**-36


# What follows bounds the effect of one interaction. A user has n items in one table. One of them, k, is missing in the other.
# r and r' = r - e_k are the two rows of ones, and m is `min_degree`. The Gram matrix changes by
# C = r r^T / max(n, m) - r' r'^T / max(n - 1, m).


def interaction_sum_sensitivity(min_degree: int) -> float:
    """Euclidean sensitivity of the sum of rows to one interaction: 1 / sqrt(m).

    Proof. For n <= m the change is e_k / sqrt(m). For n > m it is r / sqrt(n) - r' / sqrt(n - 1), whose squared norm is
    2 - 2 r.r' / sqrt(n (n - 1)) = 2 - 2 sqrt(1 - 1/n). As sqrt(1 - x) >= 1 - x/2 - x^2/2 on [0, 1], that is at most 1/n +
    1/n^2 = (n + 1) / n^2. With n >= m + 1 this is at most (m + 2) / (m + 1)^2 < 1/m.

    >>> interaction_sum_sensitivity(4)
    0.5
    """
    return 1.0 / math.sqrt(min_degree)


def interaction_trace_sensitivity(min_degree: int) -> float:
    """Sensitivity of the total sum of squares to one interaction: 1/m.

    Proof. A user adds n / max(n, m), which is 1 from m items on and 1/m less for each one below.

    >>> interaction_trace_sensitivity(4)
    0.25
    """
    return 1.0 / min_degree


def interaction_gram_sensitivity(min_degree: int) -> float:
    """Frobenius sensitivity of the Gram matrix to one interaction: sqrt(2 m - 1) / m.

    Proof. This is the bound for products with the identity, whose rows have norm one and whose spectral norm is one. A user with
    m items reaches it.

    >>> interaction_gram_sensitivity(1), round(interaction_gram_sensitivity(20), 3)
    (1.0, 0.312)
    """
    return interaction_products_sensitivity(min_degree, largest_row_norm=1.0, basis_norm=1.0)


def interaction_products_sensitivity(min_degree: int, *, largest_row_norm: float, basis_norm: float) -> float:
    """Frobenius sensitivity of the Gram matrix times Z to one interaction, for rows of Z of norm at most rho and ||Z||_2 <= s:

        sqrt( min(rho^2, s^2 / m) + (m - 1) rho^2 / m^2 ),

    which is rho for m = 1; PPM Lemma 6.1 has sqrt(2) rho there.

    Proof. Let a = Z_k be row k of Z, and c the sum of the rows of Z that r' names.

    For n <= m, C = (r r^T - r' r'^T) / m, so row k of C Z is (c + a) / m, the n - 1 rows that r' names are a / m, and all others
    are zero. Now c + a = Z^T r has norm at most n rho and at most s sqrt(n). The sum of squares is at most
    (min(n^2 rho^2, n s^2) + (n - 1) rho^2) / m^2, which is largest at n = m.

    For n > m, C = r r^T / n - r' r'^T / (n - 1). With b = c / (n - 1), row k of C Z is ((n - 1) b + a) / n. Each row that r'
    names is (a - b) / n. The squares add up to ((n - 1) |b|^2 + |a|^2) / n, because the products of a and b cancel.
    |b| is at most rho and at most s / sqrt(n - 1), so the sum is at most min(rho^2, (s^2 + rho^2) / n) with n >= m + 1.

    That is no more than the bound at n = m. If rho^2 <= s^2 / m, the first term there is rho^2 already. If not,
    s^2 / m + (m - 1) rho^2 / m^2 - (s^2 + rho^2) / (m + 1) = (s^2 - rho^2 / m) / (m (m + 1)) >= 0,
    since no row of Z has a norm above s. (A rho larger than s is replaced by s.)

    >>> interaction_products_sensitivity(1, largest_row_norm=0.25, basis_norm=1.0)
    0.25
    """
    norm = min(largest_row_norm, basis_norm)
    if norm == 0:
        return 0.0
    # The norm is taken out of the root, because the square of a small number underflows.
    ratio = basis_norm / norm
    return norm * math.sqrt(min(1.0, ratio * ratio / min_degree) + (min_degree - 1) / min_degree**2)


def _require_whole(block: Block) -> None:
    require(block.weights is None, "each user must have exactly one row: a table of histories cannot have several")


def _largest_row_norm(basis: Array) -> float:
    """The largest norm of a row of `basis`, (d, p). Entries are scaled first, because squares of tiny numbers underflow.

    >>> _largest_row_norm(np.full((2, 4), 1e-170)) / 1e-170
    2.0
    """
    size = float(np.abs(basis).max(initial=0.0))
    if size == 0:
        return 0.0
    # Dividing by a power of two is exact. Entries that underflow next to the largest one do not change the largest norm.
    unit = 2.0 ** math.frexp(size)[1]
    scaled = basis / unit
    return unit * math.sqrt(float(np.einsum("ij,ij->i", scaled, scaled).max()))
