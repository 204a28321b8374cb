"""How many people lie beyond each of many lengths, all in one release: private quantiles, any number of them for one charge.

Lengths are counted in public cells, h of them in each, and what is wanted are the sums of h from the top down: L h, with L the
lower triangle of ones. One person moves L h by up to the root of the number of cells, and h by one but with errors that add up.
Between the two is the root of L: the Toeplitz matrix A with coefficients binom(2j, j) / 4^j, which are those of (1 - x)^(-1/2),
so that A A = L. Release A h, and A times the release has an error that grows like the logarithm of the number of cells only
(Fichtenberger, Henzinger and Upadhyay 2023; the matrix is Bennett's, 1977).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from eigenveil.data.rows import Block, Rows, block_size
from eigenveil.errors import require, require_param
from eigenveil.linalg import Array
from eigenveil.linalg.exact import limbs_of, limbs_product
from eigenveil.privacy.sensitivity import Neighbours
from eigenveil.privacy.sums.bounded import Bounded
from eigenveil.privacy.sums.domain import LARGEST, SMALLEST, Domain, row_sums
from eigenveil.privacy.sums.whole import CARRY, COUNT_UNIT, Total, whole_weights

Integers = NDArray[np.int64]

__all__ = ["Cells", "Tails", "bounded_column_tails", "bounded_tails", "read_tails", "tails_sensitivity"]

# A few rows at a time stay in the inner cache while they are moved and measured.
_CACHED_ROWS: Final = 256
# The root of the triangle is held as a matrix of so many rows and columns at most.
_MOST_CELLS: Final = 4000
# What the entries of the root are whole multiples of, so that its products with counts are exact.
_ROOT_UNIT: Final = 2.0**-40
# Covers the rounding of the norm of one of its columns.
_ROUNDED_UP: Final = 1 + 1e-12
# Counts are sums of products: what is above another by less than this is not.
_ROUNDING: Final = 1e-9


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Public cells: cell i holds what is above edge i - 1 and at most edge i; the last holds all that is above the last edge.

    `edges`, (m - 1,), rise. The first cell has no lower end and the last no upper one, so every number has its cell.

    >>> Cells.lengths(1.0, 4.0, per_doubling=1).edges.tolist()
    [1.0, 2.0, 4.0]
    >>> Cells.signed(1.0, 2.0, per_doubling=1).place(np.array([-9.0, 0.0, 1.5, 2.0, 3.0])).tolist()
    [0, 2, 3, 3, 4]
    """

    edges: Array

    def __post_init__(self) -> None:
        edges = np.array(self.edges, dtype=np.float64)
        require(
            edges.ndim == 1 and len(edges) >= 1, f"edges of cells must be a list of numbers, got shape {edges.shape}"
        )
        require(
            len(edges) < _MOST_CELLS,
            f"there may be {_MOST_CELLS} cells at most, got {len(edges) + 1}: look for lengths in a narrower range",
        )
        require(bool(np.isfinite(edges).all() and (np.diff(edges) > 0).all()), "edges of cells must be finite and rise")
        edges.flags.writeable = False
        object.__setattr__(self, "edges", edges)

    @classmethod
    def lengths(cls, lowest: float, highest: float, *, per_doubling: int) -> "Cells":
        """For lengths from `lowest` to `highest`, so many cells for each factor of two; zero is in the first."""
        _require_range(lowest, highest)
        first, last = math.floor(per_doubling * math.log2(lowest)), math.ceil(per_doubling * math.log2(highest))
        return cls(2.0 ** (np.arange(first, last + 1) / per_doubling))

    @classmethod
    def signed(cls, lowest: float, highest: float, *, per_doubling: int) -> "Cells":
        """For numbers of either sign and of these sizes; what is smaller than `lowest` is in one cell with zero."""
        above = cls.lengths(lowest, highest, per_doubling=per_doubling).edges
        return cls(np.concatenate([-above[::-1], above]))

    @property
    def count(self) -> int:
        """How many cells there are."""
        return len(self.edges) + 1

    def place(self, numbers: Array) -> Any:
        """The cell of each number, in an array of the same shape."""
        return np.searchsorted(self.edges, numbers, side="left")


def tails_sensitivity(cells: int, neighbours: Neighbours, *, columns: int = 1) -> float:
    """Euclidean sensitivity of A h, for the counts h of so many cells, in each of `columns` tables of counts at once.

    Proof. A person with m rows is in h as an average of m unit vectors, p: not negative, with sum one, and in A h as A p.
    Add/remove and zero-out change A h by A p, and ||A p|| <= sum_j p_j ||A e_j|| <= ||A e_0||: column j of a lower Toeplitz
    matrix is the first one moved down by j, so no column is longer than the first.
    Replace-one changes it by A (q - p), which is an average of A (e_i - e_j) with weights q_i p_j, so its length is at most the
    largest ||A e_i - A e_j||. With j = i + k, ||A e_i - A e_j||^2 = sum_{l < n} (a_l - a_{l-k})^2 with n = m - i terms, none
    negative, so i = 0 is the worst, and the largest over k is looked up.
    In each of d tables of counts the person moves as much, and in all of them sqrt(d) times that.

    >>> round(tails_sensitivity(2, Neighbours.ADD_REMOVE) ** 2, 9)
    1.25
    """
    require_param(
        neighbours.protects_a_person,
        "counts in cells protect a person or nobody, got {neighbours=}",
        neighbours=neighbours.value,
    )
    return math.sqrt(columns) * _farthest(cells, replaced=neighbours is Neighbours.REPLACE_ONE)


def bounded_tails(rows: Rows, *, domain: Domain, cells: Cells, neighbours: Neighbours) -> Bounded:
    """A h, (m,), private, for the lengths of rows around the center and in the units of `domain`, before any ball.

    Counted from the top: entry 0 is of the last cell. The cell of a row depends on that row alone, to the last bit, whatever
    rows are beside it; anything else would move a whole person where only rounding was meant.

    >>> from eigenveil.data.rows import DenseRows
    >>> cells, domain = Cells.lengths(1.0, 4.0, per_doubling=1), Domain(dim=2, radius=math.inf)
    >>> found = bounded_tails(DenseRows(np.eye(2) * 3), domain=domain, cells=cells, neighbours=Neighbours.ADD_REMOVE)
    >>> (_root(4) @ found.value).tolist()                      # beyond 4, beyond 2, beyond 1, and all
    [0.0, 2.0, 2.0, 2.0]
    """
    counts = Total.zeros((cells.count,), each=round(1 / COUNT_UNIT))
    for block in rows.blocks(block_size(rows)):
        place = cells.place(_lengths(block, domain))
        counts.add(_counted(place, block.weights, cells.count), len(block))
    return Bounded(_times_root(counts, columns=1)[:, 0], tails_sensitivity(cells.count, neighbours))


def bounded_column_tails(rows: Rows, *, domain: Domain, cells: Cells, neighbours: Neighbours) -> Bounded:
    """A h for each column, (m, d), private: of its entries around the center and in the units of `domain`.

    One person is in all d tables of counts, so the sensitivity is sqrt(d) times that of one.
    """
    dim, count = domain.dim, cells.count
    counts = Total.zeros((dim * count,), each=round(1 / COUNT_UNIT))
    # No warning about a number that is too large: it would tell of one person.
    for block in rows.blocks(block_size(rows)):
        if block.sparse:
            with np.errstate(over="ignore", invalid="ignore"):
                counts.add(_sparse_counts(block, domain, cells), len(block))
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            moved, _ = domain.moved(block, out=np.empty(block.values.shape))
        place = cells.place(moved)
        place += count * np.arange(dim)
        weights = None if block.weights is None else np.repeat(block.weights, dim)
        counts.add(_counted(place.ravel(), weights, dim * count), len(block))
    return Bounded(_times_root(counts, columns=dim), tails_sensitivity(count, neighbours, columns=dim))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tails:
    """Released: how many `people` there are, and how many of them are `beyond` each edge of the `cells`, (m - 1,).

    `error`, (m - 1,), is the standard deviation of each of these before they were made to fall, and `people_error` that of
    the number of people, zero where it is public. A person with several rows counts in parts.
    """

    cells: Cells
    beyond: Array
    error: Array
    people: float
    people_error: float

    def edge_above(self, most: float) -> int | None:
        """The first edge that at most `most` people lie beyond; None where more do even beyond the last."""
        within = np.flatnonzero(self.beyond <= most + _ROUNDING * self.people)
        return int(within[0]) if len(within) else None

    def edge_below(self, most: float) -> int | None:
        """The last edge that at most `most` people do not lie beyond; None where more are below even the first."""
        within = np.flatnonzero(self.people - self.beyond <= most + _ROUNDING * self.people)
        return int(within[-1]) if len(within) else None

    def square(self, edge: int) -> float:
        """The mean squared length where lengths beyond this edge are cut to it: the sum of d(t^2) times the share beyond t.

        >>> tails = Tails(Cells(np.array([1.0, 2.0])), np.array([1.0, 0.0]), np.zeros(2), 1.0, 0.0)
        >>> tails.square(0), tails.square(1)                      # one row that is somewhere between 1 and 2
        (1.0, 2.5)
        """
        if self.people <= 0:
            return 0.0
        squares = np.square(np.concatenate([[0.0], self.cells.edges[: edge + 1]]))
        share = np.concatenate([[self.people], self.beyond[: edge + 1]]) / self.people
        return float(np.sum(np.diff(squares) * (share[1:] + share[:-1]) / 2))


def read_tails(released: Array, *, noise: float, cells: Cells, people: float | None) -> tuple[Tails, ...]:
    """What a release of A h, (m,) or (m, d), with `noise` on each entry says of each column: post-processing, which is free.

    `people` is their number where it is public. What was released is multiplied by A once more; then the counts are made to
    fall, not below zero and not above the number of people (isotonic regression). Of d columns all count the same people, so
    the average of their totals serves where that number is private.

    >>> released = _root(3) @ np.array([1.0, 2.0, 4.0])
    >>> (tails,) = read_tails(released, noise=0.0, cells=Cells(np.array([1.0, 2.0])), people=None)
    >>> tails.beyond.round(9).tolist(), round(tails.people, 9)
    ([3.0, 1.0], 7.0)
    """
    root = _root(cells.count)
    sums = root @ np.atleast_2d(released.T).T
    # A row of A is a column of it turned round: the error of each sum.
    error = noise * np.sqrt(np.cumsum(np.square(root[:, 0])))
    counted = float(sums[-1].mean())
    number = max(counted, 0.0) if people is None else people
    off = float(error[-1]) / math.sqrt(sums.shape[1]) if people is None else 0.0
    # From the top down they rise; turned round they fall with the edges.
    falling = (np.clip(isotonic_regression(column).x, 0.0, number)[::-1] for column in sums[:-1].T)
    return tuple(Tails(cells, beyond, error[:-1][::-1], number, off) for beyond in falling)


def _counted(place: Any, weights: Array | None, cells: int) -> Integers:
    """How many rows, (b,), are in each cell, (cells,), in whole numbers of `COUNT_UNIT`."""
    if weights is None:
        return np.bincount(place, minlength=cells) * round(1 / COUNT_UNIT)
    # Whole numbers of 34 bits: a block of them adds up exactly.
    return np.bincount(place, weights=whole_weights(weights), minlength=cells).astype(np.int64)


def _times_root(counts: Total, *, columns: int) -> Array:
    """A h, (cells, columns), for counts h of one column after the other, in whole numbers of `COUNT_UNIT`.

    The product is exact and rounded once in the end. Of counts that were carried over both parts are rounded, and their sum:
    nothing is negative, so that is off by less than 2^-51 of it.
    """
    product = _whole_times_root(counts.low, columns)
    if counts.high is not None:
        product += _whole_times_root(counts.high, columns) * 2.0**CARRY
    product *= _ROOT_UNIT * COUNT_UNIT
    return product


def _whole_times_root(counts: Integers, columns: int) -> Array:
    table = counts.reshape(columns, -1)[:, ::-1].T
    return limbs_product(_root_limbs(len(table)), table)


@lru_cache(maxsize=2)
def _root_limbs(cells: int) -> tuple[Array, ...]:
    """A as whole numbers of `_ROOT_UNIT`, split: of one product with counts, splitting A takes three quarters of the time."""
    return limbs_of(np.rint(_root(cells) / _ROOT_UNIT).astype(np.int64), terms=cells)


@lru_cache(maxsize=4)
def _root(cells: int) -> Array:
    """A, (cells, cells): the lower Toeplitz matrix whose square is the lower triangle of ones, in multiples of 2^-40."""
    steps = np.arange(1, cells)
    coefficients = np.cumprod(np.concatenate([[1.0], (2 * steps - 1) / (2 * steps)]))
    coefficients = np.rint(coefficients / _ROOT_UNIT) * _ROOT_UNIT
    distance = np.subtract.outer(np.arange(cells), np.arange(cells))
    root: Array = np.where(distance >= 0, coefficients[np.abs(distance)], 0.0)
    root.flags.writeable = False
    return root


@lru_cache(maxsize=8)
def _farthest(cells: int, *, replaced: bool) -> float:
    """The length of the first column of A, or the farthest that another one is from it."""
    root = _root(cells)
    if not replaced:
        return float(np.linalg.norm(root[:, 0])) * _ROUNDED_UP
    return math.sqrt(float(np.square(root[:, :1] - root).sum(axis=0).max())) * _ROUNDED_UP


def _lengths(block: Block, domain: Domain) -> Array:
    """The length of each row, (b,), around the center and in the units of `domain`; where it cannot be squared it is infinite or
    NaN, and in the last cell."""
    with np.errstate(over="ignore", invalid="ignore"):
        if block.sparse:
            return _sparse_lengths(block, domain)
        scratch = np.empty((min(len(block), _CACHED_ROWS), domain.dim))
        found = np.empty(len(block))
        for start in range(0, len(block), _CACHED_ROWS):
            rows, _ = domain.moved(block.piece(start, _CACHED_ROWS), out=scratch)
            np.square(rows, out=rows)
            # A sum along each row by itself, which does not depend on the rows beside it.
            found[start : start + len(rows)] = np.sqrt(np.add.reduce(rows, axis=1))
        return found


def _sparse_lengths(block: Block, domain: Domain) -> Array:
    matrix, center = block.values, domain.shifted_center
    values = _stored(block, domain)
    if center is None:
        return np.sqrt(row_sums(np.square(values), matrix.indptr))
    there = center[matrix.indices]
    squares = row_sums(np.square(values - there), matrix.indptr)
    # What the center weighs in the columns that are not stored.
    rest = float(np.add.reduce(np.square(center))) - row_sums(np.square(there), matrix.indptr)
    return np.asarray(np.sqrt(squares + np.maximum(rest, 0.0)))


def _sparse_counts(block: Block, domain: Domain, cells: Cells) -> Integers:
    """Counts, (d m,), of the entries of sparse rows: those that are stored, and the zeros, of which only the number is known."""
    matrix, center, count = block.values, domain.shifted_center, cells.count
    here = np.zeros(domain.dim) if center is None else center
    one = round(1 / COUNT_UNIT)
    weights = np.full(len(block), one) if block.weights is None else whole_weights(block.weights)
    each = np.repeat(weights, np.diff(matrix.indptr))
    place = cells.place(_stored(block, domain) - here[matrix.indices]) + count * matrix.indices.astype(np.int64)
    # Whole numbers of 34 bits, of which a block adds up exactly.
    counts = np.bincount(place, weights=each, minlength=domain.dim * count).astype(np.int64)
    stored = np.bincount(matrix.indices, weights=each, minlength=domain.dim).astype(np.int64)
    np.add.at(counts, cells.place(-here) + count * np.arange(domain.dim), weights.sum() - stored)
    return counts


def _stored(block: Block, domain: Domain) -> Array:
    """The stored entries in the units of `domain`."""
    values = np.asarray(block.values.data, dtype=np.float64)
    return values if domain.scale is None else values / domain.scale[block.values.indices]


def _require_range(lowest: float, highest: float) -> None:
    require(
        SMALLEST <= lowest < highest <= LARGEST,
        f"lengths must be looked for between two numbers from {SMALLEST:g} to {LARGEST:g}, the lower one first, got "
        f"{lowest:g} and {highest:g}",
    )
