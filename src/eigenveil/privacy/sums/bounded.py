"""`Bounded`: a private array together with its sensitivity; and the sums of rows that tasks release.

Each function clips rows by a `Domain`, rounds them onto its grid and adds them up in whole numbers
(`eigenveil.privacy.sums.whole`). The sensitivity it states is proved in `eigenveil.privacy.sensitivity`. It holds to the last
bit, because the value is the exact sum, rounded once to float64. A `Symmetric` has no rows: its matrix is used as the site gave
it, with the bound that the site vouches for. Where a domain claims no privacy, sums are plain floating point. A value is private
until `Mechanism.release` adds noise to it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from eigenveil.data.rows import Block, Rows, Symmetric
from eigenveil.errors import require
from eigenveil.linalg.kernel import Array, spectral_norm, tall_product
from eigenveil.privacy.sensitivity import Neighbours, count_sensitivity, sum_sensitivity
from eigenveil.privacy.sums.domain import FARTHEST, Domain, Region
from eigenveil.privacy.sums.floating import (
    float_gram,
    float_gram_columns,
    float_gram_times,
    float_scores,
    float_sum,
    float_trace,
)
from eigenveil.privacy.sums.gaps import Gaps
from eigenveil.privacy.sums.whole import (
    whole_count,
    whole_gram,
    whole_gram_columns,
    whole_gram_times,
    whole_kept,
    whole_observed,
    whole_scores,
    whole_sum,
    whole_symmetric_times,
    whole_trace,
)

__all__ = [
    "CONTRACTION",
    "Bounded",
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
]

# A basis of larger norm would make every product more sensitive than stated.
CONTRACTION = 1 + 1e-8
# Columns this close to orthonormal stretch a row by at most half of this.
_NEARLY_ORTHONORMAL = 1e-9
# Traces of a symmetric matrix are clipped at this many sensitivities.
_MOST_TRACE = 2.0**36


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """A private `value` of any shape, and its Euclidean (Frobenius) `sensitivity`.

    `symmetric` says that the value is a symmetric matrix, so that noise may be symmetric too. Printing a `Bounded` shows no
    private number.

    >>> Bounded(np.zeros(3), 1.0)
    Bounded(shape=(3,), sensitivity=1.0)
    """

    value: Array
    sensitivity: float
    symmetric: bool = False

    def __post_init__(self) -> None:
        require(self.sensitivity >= 0, f"sensitivity must not be negative, got {self.sensitivity}")

    def __repr__(self) -> str:
        return f"Bounded(shape={np.shape(self.value)}, sensitivity={self.sensitivity})"


def bounded_sum(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The sum, (d,), of the rows in `domain`: sensitivity B or 2B, see `sum_sensitivity`.

    >>> from eigenveil.data.rows import DenseRows
    >>> domain = Domain(dim=2, radius=1.0)
    >>> bounded_sum(DenseRows(np.eye(2) * 9), domain=domain, neighbours=Neighbours.ADD_REMOVE).sensitivity
    1.0
    """
    require(
        not isinstance(rows, Symmetric),
        "a Symmetric has no rows, so their mean cannot be computed: fit without a center",
    )
    total = float_sum(rows, domain) if domain.unit is None else whole_sum(rows, domain)
    return Bounded(total, domain.sum_sensitivity(neighbours))


def bounded_count(rows: Rows, *, neighbours: Neighbours) -> Bounded:
    """The number of people, a scalar: sensitivity 1 under add/remove, 0 where it is public.

    >>> from eigenveil.data.rows import DenseRows
    >>> float(bounded_count(DenseRows(np.zeros((4, 1))), neighbours=Neighbours.ADD_REMOVE).value)
    4.0
    """
    if isinstance(rows, Symmetric):
        return Bounded(np.asarray(float(rows.people)), count_sensitivity(neighbours))
    return Bounded(np.asarray(whole_count(rows)), count_sensitivity(neighbours))


def bounded_kept(rows: Rows, *, gaps: Gaps) -> Bounded:
    """The number of people whose rows are complete, a scalar: sensitivity 1 under every person-level relation.

    Proof. A person with m rows, k of them complete, counts as k / m. That lies in [0, 1], so adding, removing, zeroing or
    replacing a person moves the number by at most 1. It is private even where the number of people is public.

    >>> from eigenveil.data.rows import DenseRows
    >>> float(bounded_kept(DenseRows(np.array([[1.0, 2.0], [np.nan, 3.0]])), gaps=Gaps.dropped(2)).value)
    1.0
    """
    _require_rows(rows)
    return Bounded(np.asarray(whole_kept(rows, gaps)), 1.0)


def bounded_observed(rows: Rows, *, gaps: Gaps) -> Bounded:
    """How many people have each entry, (c,): each column, or each pair of groups of columns: see `Gaps.sensitivity`.

    With `Gaps.less_half`, less half of all people, which holds under add/remove only.

    >>> from eigenveil.data.rows import DenseRows
    >>> bounded_observed(DenseRows(np.array([[1.0, 2.0], [np.nan, 3.0]])), gaps=Gaps.counted(2)).value.tolist()
    [1.0, 2.0]
    """
    _require_rows(rows)
    return Bounded(whole_observed(rows, gaps), gaps.sensitivity())


def bounded_trace(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The total sum of squares of the rows in `domain`, a scalar: sensitivity B^2, see `trace_sensitivity`.

    >>> from eigenveil.data.rows import DenseRows
    >>> domain = Domain(dim=2, radius=1.0)
    >>> float(bounded_trace(DenseRows(np.eye(2) / 2), domain=domain, neighbours=Neighbours.ADD_REMOVE).value)
    0.5
    """
    if isinstance(rows, Symmetric):
        diagonal, sensitivity = _as_vouched(rows, domain).diagonal(), domain.trace_sensitivity(neighbours)
        # Clipped where the rounding of single entries would matter, which takes tens of billions of people. `fsum` rounds once.
        most = _MOST_TRACE * sensitivity / len(diagonal)
        return Bounded(np.asarray(math.fsum(np.clip(diagonal, -most, most))), sensitivity)
    total = float_trace(rows, domain) if domain.unit is None else whole_trace(rows, domain)
    return Bounded(np.asarray(total), domain.trace_sensitivity(neighbours))


def bounded_gram(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix, (d, d), of the rows in `domain`: sensitivity B^2 or sqrt(2) B^2, see `gram_sensitivity`.

    >>> from eigenveil.data.rows import DenseRows
    >>> rows = DenseRows(np.array([[300.0, 400.0]]))
    >>> bounded_gram(rows, domain=Domain(dim=2, radius=5.0), neighbours=Neighbours.ADD_REMOVE).value.round(2).tolist()
    [[9.0, 12.0], [12.0, 16.0]]
    """
    if isinstance(rows, Symmetric):
        # A copy, because the caller may add to the sum in place.
        gram = np.array(_as_vouched(rows, domain))
        return Bounded(gram, domain.gram_sensitivity(neighbours), symmetric=True)
    gram = float_gram(rows, domain) if domain.unit is None else whole_gram(rows, domain)
    return Bounded(gram, domain.gram_sensitivity(neighbours), symmetric=True)


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
    if isinstance(rows, Symmetric):
        matrix = _as_vouched(rows, domain)
        if domain.unit is None:
            return Bounded(matrix @ basis, sensitivity)
        by_matrix = domain.gram_sensitivity(neighbours)
        return Bounded(whole_symmetric_times(matrix, basis=basis, sensitivity=by_matrix), sensitivity)
    if domain.unit is None:
        return Bounded(float_gram_times(rows, basis=basis, region=domain), sensitivity)
    return Bounded(whole_gram_times(rows, basis=basis, region=domain), sensitivity)


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
