"""The masks of a federated fit: how many people they have room for, and the bounds that sites declare without privacy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, final

import numpy as np

from eigenveil.data.elsewhere import total_of
from eigenveil.data.rows import Block, Rows, Symmetric, block_size
from eigenveil.errors import at_place, require, require_param, verbatim
from eigenveil.linalg import Array
from eigenveil.privacy.sums.domain import LARGEST, SMALLEST
from eigenveil.protocols.masked import MaskedTerms
from eigenveil.tasks.fit.task import WholeFit

__all__ = ["MASKED_METHODS", "DeclaredBounds", "masked_room"]

# Methods whose every round is a sum: masks cancel in sums only.
MASKED_METHODS: Final = ("krylov", "power", "covariance", "dr-svd")


def masked_room(terms: MaskedTerms, study: WholeFit[Any, Any, Any]) -> float:
    """How many people at one site the largest sum has room for, all at their bound in one entry. With more it is clipped."""
    if not terms.lattice.private:
        return math.inf
    size = 2 * study.extent().entries
    return terms.lattice.people(mu=1 / terms.multiplier, size=size, several=terms.several)


@final
@dataclass(frozen=True, slots=True)
class DeclaredBounds:
    """How far rows lie, as sites declare it: from the mean or center, and from the origin of the search for the mean.

    Only for fits without privacy, because these numbers are read from rows. Masked sums are sums of integers, and their step
    must come from numbers that everybody knows.
    """

    row_bound: float
    mean_bound: float
    given: float | None = None

    @classmethod
    def of(
        cls,
        sites: Mapping[str, Rows],
        *,
        scale: Any,
        origin: Any,
        center: Array | Literal["private"] | None,
        mean_bound: float | None,
    ) -> Self:
        """Bounds, powers of two, that no row of these sites exceeds, even if some of the sites leave.

        The mean of fewer sites is no further from that of all than the farthest row. So twice that distance is enough. If the
        caller has bounded the mean, it may lie elsewhere, but within that bound of the origin.
        """
        dim = next(iter(sites.values())).shape[1]
        units: Array = np.broadcast_to(1.0 if scale is None else np.asarray(scale, dtype=np.float64), dim)
        start: Array = np.zeros(dim) if origin is None else np.broadcast_to(np.asarray(origin, dtype=np.float64), dim)
        far = max(_farthest(name, rows, units, start) for name, rows in sites.items())
        if center is None:
            return cls(
                _power(max(_farthest(name, rows, units, np.zeros(dim)) for name, rows in sites.items())), _power(far)
            )
        if not isinstance(center, str):
            return cls(_power(max(_farthest(name, rows, units, center) for name, rows in sites.items())), _power(far))
        # The caller bounds the mean, so it may end anywhere within that bound.
        if mean_bound is not None:
            return cls(_power(far + mean_bound), mean_bound, mean_bound)
        # Without privacy, so the exact mean may be looked at to make the bound tight.
        middle = _mean(sites, dim)
        near = max(_farthest(name, rows, units, middle) for name, rows in sites.items())
        return cls(_power(2 * near), _power(far))


def _farthest(name: str, rows: Rows, units: Array, point: Array) -> float:
    """The largest distance of a row from `point`, in `units`. For a matrix, the root of its norm. Errors name the site."""
    try:
        # Overflow becomes infinity, which is refused below with the name of the site.
        with np.errstate(over="ignore"):
            lengths = [0.0] if isinstance(rows, Symmetric) else total_of(rows, _LongestWork(units, point))
    except ValueError as error:
        raise at_place(name, error) from None
    found = max(lengths)
    if isinstance(rows, Symmetric):
        inner = rows.matrix / np.outer(units, units)
        found = math.sqrt(max(float(np.linalg.norm(inner)), abs(float(np.trace(inner)))))
    require_param(not any(map(math.isnan, lengths)), f"{verbatim(name)}: {{X}} contains NaN")
    require(found < LARGEST / 4, f"{name}: numbers too large to square. Divide the columns by a constant first")
    require(
        found == 0 or found > 4 * SMALLEST,
        f"{name}: numbers too small to square. Multiply the columns by a constant first",
    )
    return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class _LongestWork:
    """The longest row of each block around `point`, in `units`: for fits without privacy, wherever their rows are."""

    units: Array
    point: Array

    def of(self, rows: Rows) -> list[float]:
        """Those of rows that are here."""
        with np.errstate(over="ignore"):
            return [0.0, *(_longest(block, self.units, self.point) for block in rows.blocks(block_size(rows)))]

    def joined(self, left: list[float], right: list[float]) -> list[float]:
        """Those of the rows of both."""
        return left + right


@final
@dataclass(frozen=True, slots=True)
class _MeanWork:
    """The sum of rows, (d,), and the number of people after it, in floating point: for fits without privacy."""

    dim: int

    def of(self, rows: Rows) -> Array:
        """The sum over rows that are here."""
        total = np.zeros(self.dim + 1)
        for block in rows.blocks(block_size(rows)):
            weights = np.ones(len(block)) if block.weights is None else block.weights
            # Each of a person's m rows has weight 1/m, so that the mean is one over people (decision 4).
            total[:-1] += np.asarray(block.values.T @ weights)
            total[-1] += float(weights.sum())
        return total

    def joined(self, left: Array, right: Array) -> Array:
        """The sum over the rows of both."""
        return left + right


def _longest(block: Block, units: Array, point: Array) -> float:
    if block.sparse:
        # The triangle inequality: an exact distance from `point` would make sparse rows dense.
        squares = np.asarray(block.values.multiply(block.values) @ (1 / np.square(units)))
        return math.sqrt(float(squares.max(initial=0.0))) + float(np.linalg.norm(point / units))
    return float(np.linalg.norm((block.values - point) / units, axis=1).max(initial=0.0))


def _mean(sites: Mapping[str, Rows], dim: int) -> Array:
    total = np.zeros(dim + 1)
    for rows in sites.values():
        total += total_of(rows, _MeanWork(dim))
    return np.asarray(total[:-1] / max(float(total[-1]), 1.0))


def _power(length: float) -> float:
    """The power of two above a length, with room for rounding of the mean. One for a length of zero."""
    return 1.0 if length == 0 else 2.0 ** math.ceil(math.log2(1.01 * length))
