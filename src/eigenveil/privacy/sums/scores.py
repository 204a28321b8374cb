"""Scores of people on a public basis, one row for each of them, with their sensitivity."""

import math

import numpy as np

from eigenveil.core.domain import FARTHEST, SHIFT, Domain, center_scores, unit_of
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows, block_size
from eigenveil.core.sums import CONTRACTION, require_contraction
from eigenveil.core.threads import Array
from eigenveil.core.unit import Neighbours, sum_sensitivity
from eigenveil.core.whole import on_basis_grid
from eigenveil.data.rows import Symmetric
from eigenveil.errors import require
from eigenveil.privacy.sums.floating import float_scores

__all__ = ["bounded_scores", "whole_scores"]


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
