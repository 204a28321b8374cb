"""Rows with missing values: observed entries are projected on the directions known so far, which predict the missing ones."""

import math

import numpy as np

from eigenveil.linalg import Array
from eigenveil.linalg.sketch import Sketch

__all__ = ["filled", "has_gaps", "sum_of_squares"]

# Rows are solved a few at a time, because each needs a small matrix.
_AT_ONCE = 256


def has_gaps(rows: Array) -> bool:
    """Whether a dense block contains NaN. In the usual case one sum shows that it does not.

    >>> has_gaps(np.array([[1.0, np.nan]])), has_gaps(np.ones((2, 2)))
    (True, False)
    """
    return not math.isfinite(sum_of_squares(rows)) and bool(np.isnan(rows).any())


def sum_of_squares(rows: Array) -> float:
    """Sum of squares of all entries, (n, d); not finite if an entry is not, or is too large.

    >>> sum_of_squares(np.array([[3.0, 4.0]]))
    25.0
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # BLAS is twice as fast, but it would copy an array that is not contiguous.
        return float(np.vdot(rows, rows) if rows.flags.c_contiguous else np.einsum("ij,ij->", rows, rows))


def filled(rows: Array, sketch: Sketch) -> Array:
    """`rows`, (n, d), with every NaN replaced by its expectation given the rest of its row; an empty row becomes the mean.

    Rows are modelled as mean + U z + e. Here z has variances values^2 / weight, and e has one variance s in every column, from
    the rest of the sketch's energy. Let U_o be the observed rows of U and D = diag(values^2) / weight. Then
    z = (U_o^T U_o + s D^-1)^-1 U_o^T (y - mean)_o: regularised least squares on the observed coordinates. Before any row was
    seen, the column means of these rows are used.

    >>> from eigenveil.linalg import Subspace
    >>> sketch = Sketch(
    ...     subspace=Subspace(np.array([[0.6], [0.8]]), np.array([10.0])), mean=np.zeros(2), weight=4.0, energy=100.0
    ... )
    >>> filled(np.array([[3.0, np.nan]]), sketch).round(6).tolist()
    [[3.0, 4.0]]
    """
    gaps = np.isnan(rows)
    if not gaps.any():
        return rows
    whole = np.array(rows, dtype=np.float64)
    space, weight = sketch.subspace, sketch.weight
    if weight <= 0 or space.rank == 0:
        known = (~gaps).sum(axis=0)
        means = np.where(gaps, 0.0, whole).sum(axis=0) / np.maximum(known, 1)
        return np.where(gaps, means, whole)
    variances = np.square(space.values) / weight
    # A floor far below the data keeps the small systems solvable where the rest of the energy is zero.
    rest = max(sketch.energy / weight - float(variances.sum()), 0.0) / max(space.dim - space.rank, 1)
    rest = max(rest, 1e-12 * float(variances[0]), math.ulp(0.0))
    hold = rest / np.maximum(variances, 1e-12 * float(variances[0]) + math.ulp(0.0))
    torn = np.flatnonzero(gaps.any(axis=1))
    for start in range(0, len(torn), _AT_ONCE):
        lines = torn[start : start + _AT_ONCE]
        seen = ~gaps[lines]
        # Zeros at the gaps, so that one product with the whole basis is U_o^T (y - mean)_o for every row.
        off = np.where(seen, whole[lines] - sketch.mean, 0.0)
        inner = np.einsum("nd,dk,dl->nkl", seen.astype(np.float64), space.basis, space.basis, optimize=True)
        inner[:, np.arange(space.rank), np.arange(space.rank)] += hold
        scores = np.linalg.solve(inner, (off @ space.basis)[..., None])[..., 0]
        guess = sketch.mean + scores @ space.basis.T
        whole[lines] = np.where(seen, whole[lines], guess)
    return whole
