"""The sums of rows that are released, each a `Bounded`: an exact sum and its sensitivity.

Each function clips rows by a `Domain`, rounds them onto its grid and adds them up in whole numbers
(`eigenveil.core.whole`). The sensitivity it states is proved in `eigenveil.core.unit`. It holds to the last
bit, because the value is the exact sum, rounded once to float64. A domain that claims no privacy is
refused: its sums are floating point, and made elsewhere. A value is private until `Mechanism.release` adds noise to it.
"""

import math
from collections.abc import Iterator

import numpy as np

from eigenveil.core.domain import FARTHEST, Domain, Gaps, Region
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Block, Rows
from eigenveil.core.threads import Array, spectral_norm, tall_product
from eigenveil.core.unit import Neighbours, count_sensitivity, sum_sensitivity
from eigenveil.core.whole import (
    whole_count,
    whole_gram,
    whole_gram_columns,
    whole_gram_times,
    whole_kept,
    whole_observed,
    whole_scores,
    whole_sum,
    whole_trace,
)
from eigenveil.errors import require

__all__ = [
    "CONTRACTION",
    "bounded_count",
    "bounded_gram",
    "bounded_gram_times",
    "bounded_kept",
    "bounded_observed",
    "bounded_scores",
    "bounded_sum",
    "bounded_trace",
    "gram_columns",
    "require_contraction",
    "require_neighbours_of_scores",
    "scores_sensitivity",
]

# A basis of larger norm would make every product more sensitive than stated.
CONTRACTION = 1 + 1e-8
# Columns this close to orthonormal stretch a row by at most half of this.
_NEARLY_ORTHONORMAL = 1e-9


def bounded_sum(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The sum, (d,), of the rows in `domain`: sensitivity B or 2B, see `sum_sensitivity`.

    >>> from eigenveil.data.rows import DenseRows
    >>> domain = Domain(dim=2, radius=1.0)
    >>> bounded_sum(DenseRows(np.eye(2) * 9), domain=domain, neighbours=Neighbours.ADD_REMOVE).sensitivity
    1.0
    """
    return Bounded(whole_sum(rows, domain), domain.sum_sensitivity(neighbours))


def bounded_count(rows: Rows, *, neighbours: Neighbours) -> Bounded:
    """The number of people, a scalar: sensitivity 1 under add/remove, 0 where it is public.

    >>> from eigenveil.data.rows import DenseRows
    >>> float(bounded_count(DenseRows(np.zeros((4, 1))), neighbours=Neighbours.ADD_REMOVE).value)
    4.0
    """
    return Bounded(np.asarray(whole_count(rows)), count_sensitivity(neighbours))


def bounded_kept(rows: Rows, *, gaps: Gaps) -> Bounded:
    """The number of people whose rows are complete, a scalar: sensitivity 1 under every person-level relation.

    Proof. A person with m rows, k of them complete, counts as k / m. That lies in [0, 1], so adding, removing, zeroing or
    replacing a person moves the number by at most 1. It is private even where the number of people is public.

    >>> from eigenveil.data.rows import DenseRows
    >>> float(bounded_kept(DenseRows(np.array([[1.0, 2.0], [np.nan, 3.0]])), gaps=Gaps.dropped(2)).value)
    1.0
    """
    return Bounded(np.asarray(whole_kept(rows, gaps)), 1.0)


def bounded_observed(rows: Rows, *, gaps: Gaps) -> Bounded:
    """How many people have each entry, (c,): each column, or each pair of groups of columns: see `Gaps.sensitivity`.

    With `Gaps.less_half`, less half of all people, which holds under add/remove only.

    >>> from eigenveil.data.rows import DenseRows
    >>> bounded_observed(DenseRows(np.array([[1.0, 2.0], [np.nan, 3.0]])), gaps=Gaps.counted(2)).value.tolist()
    [1.0, 2.0]
    """
    return Bounded(whole_observed(rows, gaps), gaps.sensitivity())


def bounded_trace(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The total sum of squares of the rows in `domain`, a scalar: sensitivity B^2, see `trace_sensitivity`.

    >>> from eigenveil.data.rows import DenseRows
    >>> domain = Domain(dim=2, radius=1.0)
    >>> float(bounded_trace(DenseRows(np.eye(2) / 2), domain=domain, neighbours=Neighbours.ADD_REMOVE).value)
    0.5
    """
    return Bounded(np.asarray(whole_trace(rows, domain)), domain.trace_sensitivity(neighbours))


def bounded_gram(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix, (d, d), of the rows in `domain`: sensitivity B^2 or sqrt(2) B^2, see `gram_sensitivity`.

    >>> from eigenveil.data.rows import DenseRows
    >>> rows = DenseRows(np.array([[300.0, 400.0]]))
    >>> bounded_gram(rows, domain=Domain(dim=2, radius=5.0), neighbours=Neighbours.ADD_REMOVE).value.round(2).tolist()
    [[9.0, 12.0], [12.0, 16.0]]
    """
    return Bounded(whole_gram(rows, domain), domain.gram_sensitivity(neighbours), symmetric=True)


def gram_columns(block: Block, *, width: int, domain: Domain) -> Iterator[Array]:
    """The Gram matrix of a block's rows in `domain`, at most `width` of its columns at a time: arrays (d, width), private.

    Together they are the matrix of `bounded_gram`, with its sensitivity. The whole (d, d) matrix is never in memory.

    >>> parts = gram_columns(Block(np.array([[1.0, 2.0]])), width=1, domain=Domain(dim=2, radius=9.0))
    >>> [part.ravel().tolist() for part in parts]
    [[1.0, 2.0], [2.0, 4.0]]
    """
    return whole_gram_columns(block, width=width, domain=domain)


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
    require_neighbours_of_scores(neighbours)
    return Bounded(whole_scores(rows, basis=basis, domain=domain), scores_sensitivity(domain, basis, neighbours))


def require_neighbours_of_scores(neighbours: Neighbours) -> None:
    """Refuse a relation under which the number of rows is private."""
    require(
        neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE),
        "one score for each person reveals how many there are: neighbours must be 'zero-out' or 'replace-one', got "
        f"{neighbours.value!r}",
    )


def scores_sensitivity(domain: Domain, basis: Array, neighbours: Neighbours) -> float:
    """The sensitivity of `bounded_scores`, rounding included."""
    # The basis is rounded onto its grid. Scores of sparse rows are sums of dim terms, and of as many for the center. Each term
    # is at most (FARTHEST + 1) radii and is off by 2^-53 of that.
    rounded = 2.0**-30 + domain.dim * (FARTHEST + 1) * 2.0**-51
    norm = CONTRACTION + math.sqrt(basis.size) * 2.0**-36 + rounded
    return norm * sum_sensitivity(domain.radius, neighbours)


def bounded_gram_times(rows: Rows, *, basis: Array, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix times `basis`, (d, p), without the Gram matrix: see `gram_times_sensitivity`.

    The party with the rows checks ||basis||_2 <= 1 + 1e-8 itself and refuses a larger norm. The sensitivity is stated for that
    limit, so that it does not depend on how a norm was rounded.

    >>> from eigenveil.data.rows import DenseRows
    >>> rows, domain = DenseRows(np.eye(2)), Domain(dim=2, radius=1.0)
    >>> bounded_gram_times(rows, basis=np.eye(2)[:, :1], domain=domain, neighbours=Neighbours.ADD_REMOVE)
    Bounded(shape=(2, 1), sensitivity=1.000003...)
    """
    require_contraction(basis, dim=domain.dim)
    # For the largest norm that passes, so that noise does not depend on how this basis was rounded.
    sensitivity = domain.gram_times_sensitivity(neighbours, basis=basis, basis_norm=CONTRACTION)
    return Bounded(whole_gram_times(rows, basis=basis, region=domain), sensitivity)


def require_contraction(basis: Array, *, dim: int) -> float:
    """An upper bound on the spectral norm of a finite `basis`, (dim, p); a `ValueError` where it exceeds 1 + 1e-8.

    Nearly orthonormal columns need no eigenvalues: ||Z||_2^2 = ||Z^T Z||_2 <= 1 + ||Z^T Z - I||_F.

    >>> round(require_contraction(np.eye(3)[:, :2], dim=3), 9)
    1.0
    """
    require(
        basis.ndim == 2 and len(basis) == dim and basis.shape[1] >= 1,
        f"basis must have shape ({dim}, p), got {basis.shape}",
    )
    with np.errstate(over="ignore", invalid="ignore"):
        gram = tall_product(basis, basis)
        gram.flat[:: len(gram) + 1] -= 1.0
        off = float(np.sqrt(np.einsum("ij,ij->", gram, gram)))
    # NaN fails this comparison and goes on to the exact check.
    if off <= _NEARLY_ORTHONORMAL:
        return 1.0 + off / 2
    norm = spectral_norm(basis)
    require(math.isfinite(norm), "basis must be finite")
    require(norm <= CONTRACTION, f"basis must have spectral norm at most 1 + 1e-8, got {norm}")
    return norm
