"""The masks of a federated fit: how many people they have room for, and the bounds that sites declare without privacy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, final

import numpy as np

from eigenveil.core.domain import Domain, Gaps, row_sums
from eigenveil.core.rows import Block, Rows, block_size, total_of
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import Symmetric
from eigenveil.errors import at_place, require, require_param, verbatim
from eigenveil.linalg import Array
from eigenveil.params.values import LONGEST, SHORTEST
from eigenveil.privacy import bounded_count, bounded_kept, bounded_observed, bounded_sum
from eigenveil.privacy.sums.clipped import moved
from eigenveil.protocols.masked import MaskedTerms
from eigenveil.tasks.fit.gaps import Rates
from eigenveil.tasks.fit.task import WholeFit

__all__ = ["DeclaredBounds", "masked_room"]


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
        gaps: Gaps | None = None,
    ) -> Self:
        """Bounds, powers of two, that no row of these sites exceeds, even if some of the sites leave.

        The mean of fewer sites is no further from that of all than the farthest row. So twice that distance is enough. If the
        caller has bounded the mean, it may lie elsewhere, but within that bound of the origin. With `gaps`, missing entries are
        at the center, so that they make no row longer.
        """
        dim = next(iter(sites.values())).shape[1]
        units: Array = np.broadcast_to(1.0 if scale is None else np.asarray(scale, dtype=np.float64), dim)
        start: Array = np.zeros(dim) if origin is None else np.broadcast_to(np.asarray(origin, dtype=np.float64), dim)

        def reach(point: Array) -> float:
            domain = Domain(dim=dim, radius=math.inf, center=point, scale=units, gaps=gaps)
            return max(_farthest(name, rows, domain) for name, rows in sites.items())

        far = reach(start)
        if center is None:
            return cls(_power(reach(np.zeros(dim))), _power(far))
        if not isinstance(center, str):
            return cls(_power(reach(center)), _power(far))
        # The caller bounds the mean, so it may end anywhere within that bound.
        if mean_bound is not None:
            return cls(_power(far + mean_bound), mean_bound, mean_bound)
        # Without privacy, so the exact mean may be looked at to make the bound tight.
        return cls(_power(2 * reach(_mean(sites, dim, gaps))), _power(far))


def _farthest(name: str, rows: Rows, domain: Domain) -> float:
    """The largest distance of a row from the center of `domain`, in its units. For a matrix, the root of its norm.

    Errors name the site.
    """
    units, point = domain.scale, domain.center
    assert units is not None
    assert point is not None
    try:
        # Overflow becomes infinity, which is refused below with the name of the site.
        with np.errstate(over="ignore"):
            lengths = [0.0] if isinstance(rows, Symmetric) else total_of(rows, _LongestWork(domain))
    except ValueError as error:
        raise at_place(name, error) from None
    found = max(lengths)
    if isinstance(rows, Symmetric):
        inner = rows.matrix / np.outer(units, units)
        found = math.sqrt(max(float(np.linalg.norm(inner)), abs(float(np.trace(inner)))))
    require_param(not any(map(math.isnan, lengths)), f"{verbatim(name)}: {{X}} contains NaN")
    require(found < LONGEST / 8, f"{name}: numbers too large to square. Divide the columns by a constant first")
    require(
        found == 0 or found > 8 * SHORTEST,
        f"{name}: numbers too small to square. Multiply the columns by a constant first",
    )
    return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class _LongestWork:
    """The longest row of each block, around the center and in the units of `domain`: for fits without privacy."""

    domain: Domain

    def of(self, rows: Rows) -> list[float]:
        """Those of rows that are here."""
        with np.errstate(over="ignore"):
            # The zero is for a site without rows, where `max` would have nothing to take.
            return [0.0, *(_longest(block, self.domain) for block in rows.blocks(block_size(rows)))]

    def joined(self, left: list[float], right: list[float]) -> list[float]:
        """Those of the rows of both."""
        return left + right


def _longest(block: Block, domain: Domain) -> float:
    if not block.sparse:
        rows, _ = moved(domain, block, out=np.empty(block.values.shape))
        return float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    # The triangle inequality: an exact distance from the center would make sparse rows dense.
    around = domain.shifted_center
    assert around is not None
    squares = row_sums(np.square(replace(domain, center=None).stored(block)), block.values.indptr)
    return math.sqrt(float(squares.max(initial=0.0))) + float(np.linalg.norm(around))


def _mean(sites: Mapping[str, Rows], dim: int, gaps: Gaps | None) -> Array:
    """The mean over the people who have each column."""
    total, count = np.zeros(dim), np.zeros(dim)
    # Plain counts: nothing is released here.
    gaps = None if gaps is None else replace(gaps, less_half=False)
    whole = Domain(dim=dim, radius=math.inf, gaps=gaps, claimed=False)
    for rows in sites.values():
        total += bounded_sum(rows, domain=whole, neighbours=Neighbours.ADD_REMOVE).value
        if gaps is None or not gaps.divides:
            # Each of a person's m rows has weight 1/m, so that the mean is one over people (decision 4).
            people = bounded_count(rows, neighbours=Neighbours.ADD_REMOVE)
            count += people.value if gaps is None or not gaps.drops else bounded_kept(rows, gaps=gaps).value
        else:
            count += _of_columns(bounded_observed(rows, gaps=gaps).value, gaps)
    return total / np.maximum(count, 1.0)


def _of_columns(observed: Array, gaps: Gaps) -> Array:
    """The count of each column, (d,), from those of columns or of pairs of groups."""
    rates = Rates.of(gaps, observed, people=float(observed.max(initial=1.0)), noise=0.0)
    return rates.columns * float(observed.max(initial=1.0))


def _power(length: float) -> float:
    """The power of two above a length, with room for rounding of the mean. One for a length of zero."""
    return 1.0 if length == 0 else 2.0 ** math.ceil(math.log2(1.01 * length))
