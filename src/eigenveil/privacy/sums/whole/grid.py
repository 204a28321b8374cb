"""The units that exact sums are whole numbers of, and how many rows are worked on at a time."""

from typing import Any

import numpy as np

from eigenveil.privacy.sums.domain import Region

__all__ = [
    "BASIS_UNIT",
    "CACHED_NUMBERS",
    "CACHED_ROWS",
    "SUM_BITS",
    "cached_rows",
    "on_basis_grid",
    "reach_of",
    "sum_unit",
    "unit_of",
]

# Bases are rounded to multiples of this.
BASIS_UNIT = 2.0**-35
# Rows for a sum have this many more bits than rows for products.
SUM_BITS = 17
# Numbers of rows that stay in the inner cache while they are clipped and rounded; and the least number of rows at a time.
CACHED_NUMBERS, CACHED_ROWS = 1 << 17, 128


def unit_of(region: Region) -> float:
    """The unit of the region's grid."""
    unit = region.unit
    assert unit is not None, "a region that claims nothing has no exact sums"
    return unit


def sum_unit(region: Region) -> float:
    """The unit of sums of rows: finer than that of rows for products.

    >>> from eigenveil.privacy.sums.domain import Domain
    >>> sum_unit(Domain(dim=2, radius=1.0)) == 2.0**-33
    True
    """
    return unit_of(region) * 2.0**-SUM_BITS


def on_basis_grid(basis: Any, xp: Any = np) -> Any:
    """`basis` with entries rounded to multiples of 2^-35, so that products with whole rows are exact; an array of `xp`.

    >>> on_basis_grid(np.array([[0.5, 1e-30]])).tolist()
    [[0.5, 0.0]]
    """
    # To the nearest multiple: how far that moves the basis is in `gram_times_sensitivity`.
    grid = basis / BASIS_UNIT
    grid = np.rint(grid, out=grid) if xp is np else xp.round(grid)
    grid *= BASIS_UNIT
    return grid


def reach_of(region: Region) -> float:
    """The most units that an entry of a sparse row can have before its center is subtracted."""
    center = region.shifted_center
    far = 0.0 if center is None else float(np.abs(center).max())
    return (region.radius + far) / unit_of(region) + 1


def cached_rows(dim: int) -> int:
    """The number of rows that are worked on at a time."""
    return max(CACHED_ROWS, CACHED_NUMBERS // max(dim, 1))
