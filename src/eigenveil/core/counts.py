"""Private quantiles of row norms: how many people lie beyond each of many norms, all in one release and for one charge.

Norms are counted in public cells; h is the vector of counts. Quantiles need its sums from the top down: L h, with L the lower
triangle of ones. Releasing L h is costly: one person moves it by up to the root of the number of cells. Releasing h is cheap,
since one person moves it by one, but the errors of h add up in the sums.

Between the two is the root of L: the Toeplitz matrix A with coefficients binom(2j, j) / 4^j, those of (1 - x)^(-1/2), so that
A A = L. We release A h and multiply it by A. The error then grows only like the logarithm of the number of cells
(Fichtenberger, Henzinger and Upadhyay 2023; the matrix is Bennett's, 1977). The search for row and column bounds calls this.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.domain import Domain, row_sums
from eigenveil.core.exact import TOEPLITZ_COLUMNS, exact_product, limb_product, limbs_of, toeplitz_times
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Block, Rows, RowSum, block_size, total_of
from eigenveil.core.threads import Array
from eigenveil.core.unit import Neighbours
from eigenveil.core.whole import CARRY, COUNT_UNIT, Total, cached_rows, whole_weights
from eigenveil.errors import require, require_param

__all__ = [
    "Bins",
    "ColumnTailsWork",
    "TailsWork",
    "bounded_column_tails",
    "bounded_tails",
    "counted",
    "no_counts",
    "root_columns",
    "tails_sensitivity",
]

Integers = NDArray[np.int64]
# The root A has at most this many rows and columns.
_MOST_CELLS: Final = 4000
# Entries of A are whole multiples of this, so that its products with counts are exact.
_ROOT_UNIT: Final = 2.0**-40
# A is split anew for counts in so few of the cells: one in this many.
_FEW_CELLS: Final = 16
# Covers the rounding of the norm of one of its columns.
_ROUNDED_UP: Final = 1 + 1e-12


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Public cells: cell i has the numbers above edge i - 1 and at most edge i; the last has all above the last edge.

    `edges`, (m - 1,), increase. The first cell has no lower end and the last no upper end, so every number has a cell.

    >>> Bins(np.array([-1.0, 1.0, 2.0])).place(np.array([-9.0, 0.0, 1.5, 2.0, 3.0])).tolist()
    [0, 1, 2, 2, 3]
    """

    edges: Array

    def __post_init__(self) -> None:
        edges = np.array(self.edges, dtype=np.float64)
        require(edges.ndim == 1 and len(edges) >= 1, f"edges of cells must be a list of numbers, got shape {edges.shape}")
        require(
            len(edges) < _MOST_CELLS,
            f"there may be at most {_MOST_CELLS} cells, got {len(edges) + 1}: search a narrower range of norms",
        )
        require(bool(np.isfinite(edges).all() and (np.diff(edges) > 0).all()), "edges of cells must be finite and increase")
        edges.flags.writeable = False
        object.__setattr__(self, "edges", edges)

    @property
    def count(self) -> int:
        """How many cells there are."""
        return len(self.edges) + 1

    def place(self, numbers: Array) -> Any:
        """The cell of each number, in an array of the same shape."""
        return np.searchsorted(self.edges, numbers, side="left")


def tails_sensitivity(cells: int, neighbours: Neighbours, *, columns: int = 1) -> float:
    """Euclidean sensitivity of A h, for the counts h of `cells` cells, in each of `columns` tables of counts at once.

    Proof. A person with m rows is in h as an average of m unit vectors, p: not negative, with sum one. In A h the person is A p.

    Add/remove and zero-out change A h by A p, and ||A p|| <= sum_j p_j ||A e_j|| <= ||A e_0||. The last step holds because
    column j of a lower Toeplitz matrix is the first one moved down by j, so no column has a larger norm than the first.

    Replace-one changes it by A (q - p), an average of A (e_i - e_j) with weights q_i p_j. Its norm is at most the largest
    ||A e_i - A e_j||. With j = i + k, ||A e_i - A e_j||^2 = sum_{l < n} (a_l - a_{l-k})^2 with n = m - i terms. No term is
    negative, so i = 0 is the worst, and the code takes the largest over k.

    Rows and entries that are missing are in no cell, so p may add up to less than one. The rest is one more cell, whose column
    of A is zero. Its distance from A e_i is ||A e_i|| <= ||A e_0||, which is no more than the largest distance above: the first
    and the last column are apart by ||A e_0||^2 + 1 - 2 a_{m-1}, squared, and a_{m-1} <= 1/2 for m >= 2. All bounds hold.

    In each of d tables of counts the person moves as much, and in all of them sqrt(d) times that.

    >>> round(tails_sensitivity(2, Neighbours.ADD_REMOVE) ** 2, 9)
    1.25
    """
    require_param(
        neighbours.protects_a_person,
        "counts in cells need a person-level relation (add-remove, zero-out or replace-one), got {neighbours=}",
        neighbours=neighbours.value,
    )
    return math.sqrt(columns) * _farthest(cells, replaced=neighbours is Neighbours.REPLACE_ONE)


def bounded_tails(rows: Rows, *, domain: Domain, cells: Bins, neighbours: Neighbours) -> Bounded:
    """A h, (m,), private, for the norms of rows around the center and in the units of `domain`, before clipping.

    Counted from the top: entry 0 is the last cell. The cell of a row depends on that row alone, to the last bit. If other rows
    could change its rounding, they could move a whole person to another cell. A row that counts as nothing, because entries of it
    are missing, is in no cell.
    """
    counts = total_of(rows, TailsWork(domain, cells))
    return Bounded(_times_root(counts, columns=1)[:, 0], tails_sensitivity(cells.count, neighbours))


def bounded_column_tails(rows: Rows, *, domain: Domain, cells: Bins, neighbours: Neighbours) -> Bounded:
    """A h for each column, (m, d), private: for its entries around the center and in the units of `domain`.

    One person is in all d tables of counts, so the sensitivity is sqrt(d) times as large as for one table. A missing entry is
    in no cell of its column.
    """
    counts = total_of(rows, ColumnTailsWork(domain, cells))
    sensitivity = tails_sensitivity(cells.count, neighbours, columns=domain.dim)
    return Bounded(_times_root(counts, columns=domain.dim), sensitivity)


@final
@dataclass(frozen=True, slots=True, eq=False)
class TailsWork(RowSum[Total]):
    """How many rows have norms in each of the `cells`, (m,), around the center and in the units of `domain`, in `COUNT_UNIT`."""

    domain: Domain
    cells: Bins

    def of(self, rows: Rows) -> Total:
        counts = no_counts(self.cells.count)
        for block in rows.blocks(block_size(rows)):
            self.count(counts, _norms(block, self.domain), _weights(block, self.domain))
        return counts

    def count(self, counts: Total, norms: Array, weights: Array | None) -> None:
        """Add rows of these norms, (b,), to the counts."""
        counts.add(counted(self.cells.place(norms), weights, self.cells.count), len(norms))


@final
@dataclass(frozen=True, slots=True, eq=False)
class ColumnTailsWork(RowSum[Total]):
    """How many entries of each column are in each of the `cells`, (d m,), one column after the other, in `COUNT_UNIT`."""

    domain: Domain
    cells: Bins

    def of(self, rows: Rows) -> Total:
        domain, dim, count = self.domain, self.domain.dim, self.cells.count
        counts = no_counts(dim * count)
        # No overflow warning: it would reveal something about one person.
        for block in rows.blocks(block_size(rows)):
            if block.sparse:
                with np.errstate(over="ignore", invalid="ignore"):
                    counts.add(_sparse_counts(block, domain, self.cells), len(block))
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                moved, _ = domain.measured(block, np.empty(block.values.shape))
            index = self.cells.place(moved)
            index += count * np.arange(dim)
            weights = None if block.weights is None else np.repeat(block.weights, dim)
            if domain.gaps is not None and domain.gaps.values is None:
                # Missing entries count as nothing. They are placed with zero, in a cell like any other.
                present = ~domain.gaps.gone(block.values).ravel()
                weights = present.astype(np.float64) if weights is None else weights * present
            counts.add(counted(index.ravel(), weights, dim * count), len(block))
        return counts


def no_counts(cells: int) -> Total:
    """Empty counts, (cells,), in whole numbers of `COUNT_UNIT`."""
    return Total.zeros((cells,), each=round(1 / COUNT_UNIT))


def counted(index: Any, weights: Array | None, cells: int) -> Integers:
    """How many rows, (b,), are in each cell, (cells,), in whole numbers of `COUNT_UNIT`."""
    if weights is None:
        return np.bincount(index, minlength=cells) * round(1 / COUNT_UNIT)
    # Whole numbers of 34 bits: a block of them adds up exactly.
    return np.bincount(index, weights=whole_weights(weights), minlength=cells).astype(np.int64)


def _weights(block: Block, domain: Domain) -> Array | None:
    """The weights of rows, (b,), zero for rows that count as nothing; None for one each."""
    if domain.gaps is None or not domain.gaps.drops:
        return block.weights
    mask = domain.gaps.kept(block).astype(np.float64)
    return mask if block.weights is None else block.weights * mask


def _times_root(counts: Total, *, columns: int) -> Array:
    """A h, (cells, columns), for counts h of one column after the other, in whole numbers of `COUNT_UNIT`.

    The product is exact and rounded once at the end. Where counts were carried over, both parts are rounded, and then their sum.
    Nothing is negative, so the result is off by less than 2^-51 of itself.
    """
    # How rows were cut decides when counts are carried over, and the bits of the product must not depend on that.
    counts.settle()
    product = _whole_times_root(counts.low, columns)
    if counts.high is not None:
        product += _whole_times_root(counts.high, columns) * 2.0**CARRY
    product *= _ROOT_UNIT * COUNT_UNIT
    return product


def _whole_times_root(counts: Integers, columns: int) -> Array:
    table = counts.reshape(columns, -1)[:, ::-1].T
    # Where few cells have people in them, A need not be multiplied with the others. The product is exact either way.
    used = np.flatnonzero(table.any(axis=1))
    if _FEW_CELLS * len(used) > len(table):
        return limb_product(_root_limbs(len(table)), table, toeplitz_times)
    return exact_product(np.rint(_toeplitz(len(table), used) / _ROOT_UNIT).astype(np.int64), table[used])


@lru_cache(maxsize=2)
def _root_limbs(cells: int) -> tuple[Array, ...]:
    """The first columns of A as whole numbers of `_ROOT_UNIT`, split: splitting them takes most of the time of a product."""
    return limbs_of(np.rint(root_columns(cells) / _ROOT_UNIT).astype(np.int64), terms=cells)


@lru_cache(maxsize=4)
def root_columns(cells: int) -> Array:
    """The first columns of A, (cells, 128): the others are these, moved down."""
    columns = _toeplitz(cells, np.arange(min(cells, TOEPLITZ_COLUMNS)))
    columns.flags.writeable = False
    return columns


def _root(cells: int) -> Array:
    """A, (cells, cells): the lower Toeplitz matrix whose square is the lower triangle of ones, in multiples of 2^-40."""
    return _toeplitz(cells, np.arange(cells))


def _toeplitz(cells: int, columns: Integers) -> Array:
    """Some columns of A, by their places."""
    steps = np.arange(1, cells)
    coefficients = np.cumprod(np.concatenate([[1.0], (2 * steps - 1) / (2 * steps)]))
    coefficients = np.rint(coefficients / _ROOT_UNIT) * _ROOT_UNIT
    distance = np.subtract.outer(np.arange(cells), columns)
    matrix: Array = np.where(distance >= 0, coefficients[np.abs(distance)], 0.0)
    return matrix


@lru_cache(maxsize=8)
def _farthest(cells: int, *, replaced: bool) -> float:
    """The norm of the first column of A, or the largest distance of another column from it."""
    if not replaced:
        return float(np.linalg.norm(root_columns(cells)[:, 0])) * _ROUNDED_UP
    root = _root(cells)
    return math.sqrt(float(np.square(root[:, :1] - root).sum(axis=0).max())) * _ROUNDED_UP


def _norms(block: Block, domain: Domain) -> Array:
    """The norm of each row, (b,), around the center and in the units of `domain`.

    Where squaring overflows, the norm is infinite or NaN and falls into the last cell.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if block.sparse:
            matrix, center = block.values, domain.shifted_center
            values = domain.stored(block)
            if center is None:
                return np.sqrt(row_sums(np.square(values), matrix.indptr))
            centers = center[matrix.indices]
            squares = row_sums(np.square(values - centers), matrix.indptr)
            # The center's squares in the columns that are not stored.
            rest = float(np.add.reduce(np.square(center))) - row_sums(np.square(centers), matrix.indptr)
            # Rounding can make the rest slightly negative where the whole center lies in stored columns.
            return np.asarray(np.sqrt(squares + np.maximum(rest, 0.0)))
        norms, size = np.empty(len(block)), cached_rows(domain.dim)
        scratch = np.empty((min(len(block), size), domain.dim))
        for start in range(0, len(block), size):
            # Each row is summed by itself, so its norm does not depend on other rows.
            np.sqrt(domain.measured(block.piece(start, size), scratch)[1], out=norms[start : start + size])
        return norms


def _sparse_counts(block: Block, domain: Domain, cells: Bins) -> Integers:
    """Counts, (d m,), of the entries of sparse rows: those that are stored, and the zeros, whose number is known."""
    matrix, center, count = block.values, domain.shifted_center, cells.count
    origin = np.zeros(domain.dim) if center is None else center
    row_weights = _weights(block, domain)
    weights = np.full(len(block), round(1 / COUNT_UNIT)) if row_weights is None else whole_weights(row_weights)
    each = np.repeat(weights, np.diff(matrix.indptr))
    index = cells.place(domain.stored(block) - origin[matrix.indices]) + count * matrix.indices.astype(np.int64)
    missing = domain.gaps is not None and domain.gaps.values is None
    observed = each * ~np.isnan(matrix.data) if missing else each
    # Whole numbers of 34 bits: a block of them adds up exactly.
    counts = np.bincount(index, weights=observed, minlength=domain.dim * count).astype(np.int64)
    stored = np.bincount(matrix.indices, weights=each, minlength=domain.dim).astype(np.int64)
    np.add.at(counts, cells.place(-origin) + count * np.arange(domain.dim), weights.sum() - stored)
    return counts
