"""`Domain`: the public region that every row is brought into before it is multiplied with anything.

Rows are cut to column bounds, moved to a public or already released center, divided by a public scale, and then scaled
down onto a ball. All of it happens to the row itself, before any product: taking the excess of a huge row off a finished
sum leaves rounding errors far above the stated sensitivity. The one thing that is subtracted afterwards is the center of
sparse rows, and only while it is near (`Domain.require_near`).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.sensitivity import (
    Neighbours,
    gram_sensitivity,
    gram_times_sensitivity,
    sum_sensitivity,
    trace_sensitivity,
)
from eigenveil.rows import Block

__all__ = ["FARTHEST", "LARGEST", "SMALLEST", "Domain", "Region", "SparseBlock", "row_sums"]

# Squares of bounds must neither overflow nor vanish, or a norm computed in floating point would mean nothing.
SMALLEST, LARGEST = 1e-100, 1e100
# Entries are cut to this where squaring them would overflow: a row that large only has a direction, and keeps most of it.
_SQUARABLE = 1e140
# How far from zero sparse rows may be centered, in radii.
FARTHEST = 100.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class SparseBlock:
    """Bounded rows in the implicit form rows - outer(shift, center): sparse `rows`, (b, d), and `shift`, (b,)."""

    rows: Any
    shift: Array


class Region(ABC):
    """What rows of a table become before they are multiplied with anything, and how far neighbours can then move their sums.

    A row has `dim` columns and a length of at most `radius` in the end.
    """

    __slots__ = ()
    dim: int
    radius: float

    @property
    @abstractmethod
    def shifted_center(self) -> Array | None:
        """What is taken off sparse rows only in their sums, (d,), or None."""

    @abstractmethod
    def dense(self, block: Block, *, out: Array | None = None, squared: bool = False) -> Array:
        """The bounded rows, (b, d), of a dense block, in `out` if given. `squared` says that they are for a product."""

    @abstractmethod
    def moved(self, block: Block, *, out: Array, squared: bool = False) -> tuple[Array, Array]:
        """The rows of a dense block, written to `out`, (b, d), and the factor, (b,), that makes each a bounded one."""

    @abstractmethod
    def sparse(self, block: Block, *, squared: bool = False) -> SparseBlock:
        """The bounded rows of a sparse block, in implicit form: no zero is ever stored."""

    @abstractmethod
    def sum_sensitivity(self, neighbours: Neighbours) -> float:
        """How far neighbours move the sum of rows."""

    @abstractmethod
    def gram_sensitivity(self, neighbours: Neighbours) -> float:
        """How far neighbours move the Gram matrix."""

    @abstractmethod
    def gram_times_sensitivity(self, neighbours: Neighbours, *, basis: Array, basis_norm: float) -> float:
        """How far neighbours move the Gram matrix times a public `basis`, (d, p), of norm at most `basis_norm`."""

    @abstractmethod
    def trace_sensitivity(self, neighbours: Neighbours) -> float:
        """How far neighbours move the total sum of squares."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Domain(Region):
    """x becomes w * ball((cut(x, low, high) - center) / scale), where ball(v) = v min(1, radius / ||v||).

    `center`, `scale`, `low` and `high` are (d,) in the units of the columns; `radius` is in scaled units, and infinite
    only where no privacy is claimed. The weight w is 1, or for a person with m rows 1/m in sums and 1/sqrt(m) in
    products, so that whatever m is, the person adds a vector of norm at most the radius to the sum, a matrix of
    trace at most radius^2 to the Gram matrix, and one to the count.

    >>> Domain(dim=2, radius=1.0).dense(Block(np.array([[3.0, 4.0], [0.1, 0.0]]))).round(12).tolist()
    [[0.6, 0.8], [0.1, 0.0]]
    """

    dim: int
    radius: float
    center: Array | None = None
    scale: Array | None = None
    low: Array | None = None
    high: Array | None = None

    def __post_init__(self) -> None:
        require(
            SMALLEST <= self.radius <= LARGEST or self.radius == math.inf,
            f"a bound must lie between {SMALLEST} and {LARGEST}, got {self.radius}",
        )
        require((self.low is None) == (self.high is None), "low and high column bounds go together")
        for name in ("center", "scale", "low", "high"):
            value = getattr(self, name)
            if value is None:
                continue
            require(value.shape == (self.dim,), f"{name} must have shape ({self.dim},), got {value.shape}")
            require(bool(np.isfinite(value).all()), f"{name} must be finite")
        if self.scale is not None:
            inside = (self.scale >= SMALLEST) & (self.scale <= LARGEST)
            require(bool(inside.all()), f"every scale must be positive, between {SMALLEST:g} and {LARGEST:g}")
        if self.low is not None and self.high is not None:
            require(bool((self.low <= self.high).all()), "every low column bound must be at most the high one")

    def dense(self, block: Block, *, out: Array | None = None, squared: bool = False) -> Array:
        """The bounded rows, (b, d), of a dense block, in `out` if given. `squared` says that they are for a product."""
        rows, factor = self.moved(block, out=np.empty(block.values.shape) if out is None else out, squared=squared)
        rows *= factor[:, None]
        return rows

    def moved(self, block: Block, *, out: Array, squared: bool = False) -> tuple[Array, Array]:
        """The rows of a dense block before the ball, written to `out`, (b, d), and the factor, (b,), that brings each into it."""
        raw, rows = block.values, out[: len(block)]
        if self.low is not None and self.high is not None:
            np.clip(raw, self.low, self.high, out=rows)
            raw = rows
        if self.center is not None:
            # Casting inside the subtraction keeps integer columns from overflowing.
            np.subtract(raw, self.center, out=rows, dtype=np.float64)
        elif raw is not rows:
            rows[...] = raw
        with np.errstate(over="ignore"):
            if self.scale is not None:
                rows /= self.scale
            factor = self._factors(np.einsum("ij,ij->i", rows, rows), rows)
        if block.weights is not None:
            factor *= np.sqrt(block.weights) if squared else block.weights
        return rows, factor

    def sparse(self, block: Block, *, squared: bool = False) -> SparseBlock:
        """The bounded rows of a sparse block, in implicit form: no zero is ever stored.

        The squared norm is taken as the stored entries' (x_j - c_j)^2 plus the center's weight on the columns that are
        not stored, all terms positive, and rounded up by what the center's own rounding can hide.
        """
        self.require_near()
        matrix = block.values
        values = np.asarray(matrix.data, dtype=np.float64)
        if self.low is not None and self.high is not None:
            values = np.clip(values, self.low[matrix.indices], self.high[matrix.indices])
        with np.errstate(over="ignore"):
            values = values if self.scale is None else values / self.scale[matrix.indices]
        if math.isfinite(self.radius) and len(values) and max(values.max(), -values.min()) > _SQUARABLE:
            values = np.clip(values, -_SQUARABLE, _SQUARABLE)
        center = self.shifted_center
        if center is None:
            norms = row_sums(np.square(values), matrix.indptr)
        else:
            weight = float(center @ center)
            there = center[matrix.indices]
            norms = row_sums(np.square(values - there), matrix.indptr)
            seen = row_sums(np.square(there), matrix.indptr)
            norms += np.maximum(weight - seen, 0.0) + 4 * self.dim * np.finfo(float).eps * weight
        rows = sp.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
        factor = self._to_ball(norms)
        if block.weights is not None:
            factor *= np.sqrt(block.weights) if squared else block.weights
        rows.data = values * np.repeat(factor, np.diff(matrix.indptr))
        return SparseBlock(rows, factor if center is not None else np.zeros(len(block)))

    def require_near(self) -> None:
        """Refuse to center sparse rows on a point far outside their ball.

        Their center is subtracted from finished sums, which loses about n eps (||center|| / radius)^2 of the sensitivity to
        rounding: nothing at a ratio of 100, all of it at 1e6.
        """
        center = self.shifted_center
        if center is not None and math.isfinite(self.radius):
            require(
                float(np.linalg.norm(center)) <= FARTHEST * self.radius,
                f"sparse rows cannot be centered further than {FARTHEST:g} times their bound from zero without losing the "
                "guarantee to rounding; give a larger bound, a center nearer to zero, or dense rows",
            )

    def sum_sensitivity(self, neighbours: Neighbours) -> float:
        """As of rows in the ball."""
        return sum_sensitivity(self.radius, neighbours)

    def gram_sensitivity(self, neighbours: Neighbours) -> float:
        """As of rows in the ball."""
        return gram_sensitivity(self.radius, neighbours)

    def gram_times_sensitivity(self, neighbours: Neighbours, *, basis: Array, basis_norm: float) -> float:
        """As of rows in the ball."""
        return gram_times_sensitivity(self.radius, neighbours, basis=basis, basis_norm=basis_norm)

    def trace_sensitivity(self, neighbours: Neighbours) -> float:
        """As of rows in the ball."""
        return trace_sensitivity(self.radius, neighbours)

    @property
    def shifted_center(self) -> Array | None:
        """The center in scaled units, (d,), or None where there is none."""
        if self.center is None or self.scale is None:
            return self.center
        return self.center / self.scale

    def _factors(self, squares: Array, rows: Array) -> Array:
        """min(1, radius / norm) for each row, given squared norms; rows too large to square are cut in place first."""
        huge = ~np.isfinite(squares)
        if huge.any() and math.isfinite(self.radius):
            rows[huge] = np.clip(rows[huge], -_SQUARABLE, _SQUARABLE)
            squares[huge] = np.einsum("ij,ij->i", rows[huge], rows[huge])
        return self._to_ball(squares)

    def _to_ball(self, squares: Array) -> Array:
        if math.isinf(self.radius):
            return np.ones(len(squares))
        with np.errstate(divide="ignore"):
            # The last factor keeps a row that was rounded onto the sphere from landing outside it.
            return np.minimum(1.0, self.radius / np.sqrt(squares) * (1 - 1e-15))


def row_sums(values: Array, indptr: Any) -> Array:
    """Sums of consecutive runs of `values`, one run per row; empty rows give zero.

    >>> row_sums(np.array([1.0, 2.0, 3.0]), np.array([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 3.0]
    """
    totals = np.zeros(len(indptr) - 1)
    filled = np.flatnonzero(np.diff(indptr))
    if len(filled):
        totals[filled] = np.add.reduceat(values, indptr[filled])
    return totals
