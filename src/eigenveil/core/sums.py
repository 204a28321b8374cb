"""The sums of rows that are released, each a `Bounded`: an exact sum and its sensitivity.

Each function clips rows by a `Domain`, rounds them onto its grid and adds them up in whole numbers (`eigenveil.core.whole`). The
sensitivity it states is proved in `eigenveil.core.unit`. It holds to the last bit, because the value is the exact sum, rounded
once to float64. A domain that claims no privacy is refused: its sums are floating point, and made elsewhere
(`eigenveil.privacy.sums`). A value is private until `Mechanism.release` adds noise to it.
"""

import math
from contextlib import nullcontext
from fractions import Fraction

import numpy as np

from eigenveil.core.domain import MissingPolicy, Region, unit_of
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows, total_of
from eigenveil.core.threads import Array, Blas
from eigenveil.core.unit import Neighbours, count_sensitivity
from eigenveil.core.whole import (
    COUNT_UNIT,
    FINE_COUNT,
    CountWork,
    GramWork,
    KeptWork,
    ObservedWork,
    ProductsWork,
    SumWork,
    TraceWork,
    finished_gram,
    finished_products,
    finished_sum,
)
from eigenveil.errors import require

__all__ = [
    "CONTRACTION",
    "bounded_count",
    "bounded_gram",
    "bounded_gram_times",
    "bounded_kept",
    "bounded_observed",
    "bounded_sum",
    "bounded_trace",
    "require_contraction",
    "spectral_norm",
]

# A basis of larger norm would make every product more sensitive than stated.
CONTRACTION = 1 + 1e-8
# Columns this close to orthonormal stretch a row by at most half of this.
_NEARLY_ORTHONORMAL = 1e-9
# A basis of so many numbers is multiplied by one thread.
_LARGE = 1 << 18


def bounded_sum(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The sum, (d,), of the rows in `domain`: sensitivity B or 2B, see `sum_sensitivity`."""
    return Bounded(finished_sum(total_of(rows, SumWork(domain)), domain), domain.sum_sensitivity(neighbours))


def bounded_count(rows: Rows, *, neighbours: Neighbours) -> Bounded:
    """The number of people, a scalar: sensitivity 1 under add/remove, 0 where it is public."""
    total = total_of(rows, CountWork())
    return Bounded(_in_units(total, FINE_COUNT), count_sensitivity(neighbours))


def bounded_kept(rows: Rows, *, gaps: MissingPolicy) -> Bounded:
    """The number of people whose rows are complete, a scalar: sensitivity 1 under every person-level relation.

    Proof. A person with m rows, k of them complete, counts as k / m. That lies in [0, 1], so adding, removing, zeroing or
    replacing a person moves the number by at most 1. It is private even where the number of people is public.
    """
    return Bounded(_in_units(total_of(rows, KeptWork(gaps)), FINE_COUNT), 1.0)


def bounded_observed(rows: Rows, *, gaps: MissingPolicy) -> Bounded:
    """How many people have each entry, (c,): each column, or each pair of groups of columns: see `Gaps.sensitivity`.

    With `Gaps.less_half`, less half of all people, which holds under add/remove only.
    """
    unit = COUNT_UNIT / 2 if gaps.less_half else COUNT_UNIT
    return Bounded(total_of(rows, ObservedWork(gaps)).value(unit), gaps.sensitivity())


def bounded_trace(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The total sum of squares of the rows in `domain`, a scalar: sensitivity B^2, see `trace_sensitivity`."""
    total = total_of(rows, TraceWork(domain))
    return Bounded(_in_units(total, unit_of(domain) ** 2), domain.trace_sensitivity(neighbours))


def bounded_gram(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix, (d, d), of the rows in `domain`: sensitivity B^2 or sqrt(2) B^2, see `gram_sensitivity`."""
    gram = finished_gram(total_of(rows, GramWork(domain)), domain)
    return Bounded(gram, domain.gram_sensitivity(neighbours), symmetric=True)


def bounded_gram_times(rows: Rows, *, basis: Array, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix times `basis`, (d, p), without the Gram matrix: see `gram_times_sensitivity`.

    The party with the rows checks ||basis||_2 <= 1 + 1e-8 itself and refuses a larger norm. The sensitivity is stated for that
    limit, so that it does not depend on how a norm was rounded.
    """
    require_contraction(basis, dim=domain.dim)
    # For the largest norm that passes, so that noise does not depend on how this basis was rounded.
    sensitivity = domain.gram_times_sensitivity(neighbours, basis=basis, basis_norm=CONTRACTION)
    return Bounded(finished_products(total_of(rows, ProductsWork(domain, basis)), domain), sensitivity)


def _in_units(total: int, unit: float) -> Array:
    """A whole number of units, rounded once."""
    return np.asarray(float(Fraction(total) * Fraction(unit)))


def require_contraction(basis: Array, *, dim: int) -> float:
    """An upper bound on the spectral norm of a finite `basis`, (dim, p); a `ValueError` where it exceeds 1 + 1e-8.

    Nearly orthonormal columns need no eigenvalues: ||Z||_2^2 = ||Z^T Z||_2 <= 1 + ||Z^T Z - I||_F.
    """
    require(basis.ndim == 2 and len(basis) == dim and basis.shape[1] >= 1, f"basis must have shape ({dim}, p), got {basis.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        gram = _squares(basis)
        gram.flat[:: len(gram) + 1] -= 1.0
        off = float(np.sqrt(np.einsum("ij,ij->", gram, gram)))
    # NaN fails this comparison and continues to the exact check.
    if off <= _NEARLY_ORTHONORMAL:
        return 1.0 + off / 2
    norm = spectral_norm(basis)
    require(math.isfinite(norm), "basis must be finite")
    require(norm <= CONTRACTION, f"basis must have spectral norm at most 1 + 1e-8, got {norm}")
    return norm


def spectral_norm(matrix: Array) -> float:
    """The largest singular value of `matrix`, (d, p), through its p x p Gram matrix, rounded up by 1e-14."""
    with np.errstate(over="ignore", invalid="ignore"):
        gram, unit = _squares(matrix), 1.0
    # The trace shows overflow, underflow and NaN.
    if not 1e-200 < float(np.trace(gram)) < 1e200:
        # Squares of these entries are not safe, so a scaled copy is worth it, unless all are zero or some are not finite.
        unit = float(np.abs(matrix).max(initial=0.0))
        if unit == 0.0 or not np.isfinite(unit):
            return unit
        gram = (matrix / unit).T @ (matrix / unit)
    # Rounded up, because checks of a basis rest on it: a norm that is too small would let noise be too small.
    return unit * float(np.sqrt(max(np.linalg.eigvalsh(gram)[-1], 0.0))) * (1 + 1e-14)


def _squares(matrix: Array) -> Array:
    """`matrix`^T `matrix`, (p, p)."""
    # A second thread of BLAS would wait for more work for a while, and slow down other threads.
    with Blas.limit(1) if matrix.size >= _LARGE else nullcontext():
        return np.asarray(matrix.T @ matrix)
