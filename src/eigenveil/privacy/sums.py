"""The sums of rows that tasks ask for: exact ones where privacy is claimed, plain floating point where none is.

Exact sums and their sensitivities are those of `eigenveil.core.sums`. A `Symmetric` has no rows: its matrix is used as the site
gave it, with the bound that the site vouches for.
"""

import math
from collections.abc import Iterator

import numpy as np

from eigenveil.core import sums as exact
from eigenveil.core.domain import FARTHEST, SHIFT, Domain, Gaps, Region, center_scores, unit_of
from eigenveil.core.exact import exact_product
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import step_of, steps_of
from eigenveil.core.rows import Block, Rows, block_size
from eigenveil.core.sums import CONTRACTION, require_contraction
from eigenveil.core.threads import Array
from eigenveil.core.unit import Neighbours, count_sensitivity, sum_sensitivity
from eigenveil.core.whole import BASIS_UNIT, on_basis_grid
from eigenveil.data.rows import Symmetric
from eigenveil.errors import require
from eigenveil.privacy.blocks import whole_gram_columns
from eigenveil.privacy.floating import (
    float_gram,
    float_gram_columns,
    float_gram_times,
    float_scores,
    float_sum,
    float_trace,
)

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
    "whole_scores",
]


def bounded_scores(rows: Rows, *, basis: Array, domain: Domain, neighbours: Neighbours) -> Bounded:
    """The scores, (n, k), of the rows in `domain` on `basis`, (d, k): one row of scores for each person, who has one row.

    Sensitivity, for ||basis||_2 <= 1 + 1e-8: that of a sum, see `sum_sensitivity`. Proof. Bounds, center and basis are public,
    so only the scores of the person who changes differ. A row x in the ball has ||basis^T x|| <= ||basis||_2 B, and a zeroed row
    has zero scores. Scores of two rows are at most twice that apart. The number of rows is visible, so neighbours must be
    zero-out or replace-one.

    >>> from eigenveil.data.rows import DenseRows
    >>> rows, domain = DenseRows(np.array([[3.0, 4.0]])), Domain(dim=2, radius=1.0)
    >>> bounded_scores(rows, basis=np.eye(2)[:, 1:], domain=domain, neighbours=Neighbours.ZERO_OUT).value.round(3).tolist()
    [[0.8]]
    """
    require_contraction(basis, dim=domain.dim)
    require(
        neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE),
        "one score for each person reveals how many there are: neighbours must be 'zero-out' or 'replace-one', got "
        f"{neighbours.value!r}",
    )
    require(not isinstance(rows, Symmetric), "a Symmetric has no rows to compute scores of")
    scores = (float_scores if domain.unit is None else whole_scores)(rows, basis=basis, domain=domain)
    # The basis is rounded onto its grid. Scores of sparse rows are sums of dim terms, and of as many for the center. Each term
    # is at most (FARTHEST + 1) radii and is off by 2^-53 of that.
    rounded = 2.0**-30 + domain.dim * (FARTHEST + 1) * 2.0**-51
    norm = CONTRACTION + math.sqrt(basis.size) * 2.0**-36 + rounded
    return Bounded(scores, norm * sum_sensitivity(domain.radius, neighbours))


def whole_scores(rows: Rows, *, basis: Array, domain: Domain) -> Array:
    """The scores, (n, p), of the clipped rows, each computed by itself, on a basis rounded onto its grid."""
    basis, unit, parts = on_basis_grid(basis), unit_of(domain), [np.zeros((0, basis.shape[1]))]
    center = domain.shifted_center
    for block in rows.blocks(block_size(rows)):
        require(
            block.weights is None, "scores need one row for each person: a table with several rows per person has none"
        )
        if block.sparse:
            part = domain.whole_sparse(block, unit=unit)
            scores = part.rows @ basis
            if center is not None:
                scores -= np.outer(part.shift * (SHIFT / unit), center_scores(center, basis))
        else:
            # Whole rows times a basis of 36 bits: nothing is rounded, so other rows cannot change a score.
            scores = domain.whole(block, unit=unit) @ basis
        parts.append(scores * unit)
    return np.vstack(parts)


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
