"""The sums of rows that tasks ask for: exact ones where privacy is claimed, plain floating point where none is.

Exact sums and their sensitivities are those of `eigenveil.core.sums`. A `Symmetric` has no rows: its matrix is used as the site
gave it, with the bound that the site vouches for.
"""

import math
from collections.abc import Iterator

import numpy as np

from eigenveil.core import sums as exact
from eigenveil.core.domain import Domain, Gaps, Region
from eigenveil.core.exact import exact_product
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import step_of, steps_of
from eigenveil.core.rows import Block, Rows
from eigenveil.core.sums import CONTRACTION, require_contraction
from eigenveil.core.unit import Neighbours, count_sensitivity
from eigenveil.core.whole import BASIS_UNIT, on_basis_grid
from eigenveil.data.rows import Symmetric
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.sums.blocks import whole_gram_columns
from eigenveil.privacy.sums.floating import (
    float_gram,
    float_gram_columns,
    float_gram_times,
    float_sum,
    float_trace,
)
from eigenveil.privacy.sums.scores import bounded_scores

__all__ = [
    "bounded_count",
    "bounded_gram",
    "bounded_gram_times",
    "bounded_kept",
    "bounded_observed",
    "bounded_scores",
    "bounded_sum",
    "bounded_trace",
    "gram_columns",
]

# A site's own matrix is rounded onto a lattice this much finer than that of its release. It is clipped far beyond what the
# release of a product can represent.
_FINER, _MOST = 2.0**-6, 1 << 60
# Traces of a symmetric matrix are clipped at this many sensitivities.
_MOST_TRACE = 2.0**36


def bounded_sum(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The sum, (d,), of the rows in `domain`."""
    require(
        not isinstance(rows, Symmetric),
        "a Symmetric has no rows, so their mean cannot be computed: fit without a center",
    )
    if domain.unit is None:
        return Bounded(float_sum(rows, domain), domain.sum_sensitivity(neighbours))
    return exact.bounded_sum(rows, domain=domain, neighbours=neighbours)


def bounded_count(rows: Rows, *, neighbours: Neighbours) -> Bounded:
    """The number of people, a scalar."""
    if isinstance(rows, Symmetric):
        return Bounded(np.asarray(float(rows.people)), count_sensitivity(neighbours))
    return exact.bounded_count(rows, neighbours=neighbours)


def bounded_kept(rows: Rows, *, gaps: Gaps) -> Bounded:
    """The number of people whose rows are complete, a scalar."""
    _require_rows(rows)
    return exact.bounded_kept(rows, gaps=gaps)


def bounded_observed(rows: Rows, *, gaps: Gaps) -> Bounded:
    """How many people have each entry, (c,)."""
    _require_rows(rows)
    return exact.bounded_observed(rows, gaps=gaps)


def bounded_trace(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The total sum of squares of the rows in `domain`, a scalar."""
    if isinstance(rows, Symmetric):
        diagonal, sensitivity = _as_vouched(rows, domain).diagonal(), domain.trace_sensitivity(neighbours)
        # Clipped where the rounding of single entries would matter, which takes tens of billions of people. `fsum` rounds once.
        most = _MOST_TRACE * sensitivity / len(diagonal)
        return Bounded(np.asarray(math.fsum(np.clip(diagonal, -most, most))), sensitivity)
    if domain.unit is None:
        return Bounded(np.asarray(float_trace(rows, domain)), domain.trace_sensitivity(neighbours))
    return exact.bounded_trace(rows, domain=domain, neighbours=neighbours)


def bounded_gram(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix, (d, d), of the rows in `domain`."""
    if isinstance(rows, Symmetric):
        # A copy, because the caller may add to the sum in place.
        gram = np.array(_as_vouched(rows, domain))
        return Bounded(gram, domain.gram_sensitivity(neighbours), symmetric=True)
    if domain.unit is None:
        return Bounded(float_gram(rows, domain), domain.gram_sensitivity(neighbours), symmetric=True)
    return exact.bounded_gram(rows, domain=domain, neighbours=neighbours)


def gram_columns(block: Block, *, width: int, domain: Domain) -> Iterator[Array]:
    """The Gram matrix of a block's rows in `domain`, at most `width` of its columns at a time: arrays (d, width), private.

    Together they are the matrix of `bounded_gram`, with its sensitivity. The whole (d, d) matrix is never in memory.

    >>> parts = gram_columns(Block(np.array([[1.0, 2.0]])), width=1, domain=Domain(dim=2, radius=9.0))
    >>> [part.ravel().tolist() for part in parts]
    [[1.0, 2.0], [2.0, 4.0]]
    """
    if domain.unit is None:
        return float_gram_columns(block, width=width, domain=domain)
    return whole_gram_columns(block, width=width, domain=domain)


def bounded_gram_times(rows: Rows, *, basis: Array, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix times `basis`, (d, p), without the Gram matrix."""
    if domain.unit is not None and not isinstance(rows, Symmetric):
        return exact.bounded_gram_times(rows, basis=basis, domain=domain, neighbours=neighbours)
    require_contraction(basis, dim=domain.dim)
    # For the largest norm that passes, so that noise does not depend on how this basis was rounded.
    sensitivity = domain.gram_times_sensitivity(neighbours, basis=basis, basis_norm=CONTRACTION)
    if not isinstance(rows, Symmetric):
        return Bounded(float_gram_times(rows, basis=basis, region=domain), sensitivity)
    matrix = _as_vouched(rows, domain)
    if domain.unit is None:
        return Bounded(matrix @ basis, sensitivity)
    by_matrix = domain.gram_sensitivity(neighbours)
    return Bounded(_symmetric_times(matrix, basis=basis, sensitivity=by_matrix), sensitivity)


def _require_rows(rows: Rows) -> None:
    require(not isinstance(rows, Symmetric), "a Symmetric has no rows, so nobody can tell which entries are missing")


def _as_vouched(rows: Symmetric, domain: Region) -> Array:
    """The matrix, (d, d), in the units of `domain`.

    Centers and column bounds are refused: they need the rows, and the sum of their products does not determine the result.
    Nothing is clipped to the radius either, which the site vouches for (`Symmetric`).
    """
    require(isinstance(domain, Domain), "a Symmetric has no histories of users, only a sum of products of rows")
    assert isinstance(domain, Domain)
    require(rows.shape[1] == domain.dim, f"a Symmetric must have {domain.dim} columns, got {rows.shape[1]}")
    require(
        domain.center is None and domain.low is None,
        "a Symmetric cannot be centered or clipped to column bounds, which needs rows: fit without a center and without bounds",
    )
    require(domain.gaps is None, "a Symmetric has no rows, so nobody can tell which entries are missing")
    if domain.scale is None:
        matrix: Array = rows.matrix
        return matrix
    with np.errstate(over="ignore"):
        scaled = rows.matrix / np.outer(domain.scale, domain.scale)
    # Checked again, because small units can make it too large to multiply.
    return np.asarray(Symmetric(scaled, people=rows.people).matrix)


def _symmetric_times(matrix: Array, *, basis: Array, sensitivity: float) -> Array:
    """A site's own matrix, (d, d), times `basis`, (d, p): both on lattices, and the product rounded once.

    A person moves the matrix by at most `sensitivity`. Rounding to steps g moves neighbours apart by at most d g. On a lattice
    this fine (`step_of`) that is 2^-19 of the sensitivity, less than the 2^-18 that `Domain.gram_times_sensitivity` allows for.
    """
    step = step_of(sensitivity, matrix.size) * _FINER
    whole = np.rint(on_basis_grid(basis) / BASIS_UNIT).astype(np.int64)
    product = exact_product(steps_of(matrix, step, most=_MOST), whole)
    product *= step
    product *= BASIS_UNIT
    return product
