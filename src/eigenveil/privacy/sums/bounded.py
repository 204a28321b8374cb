"""`Bounded`: a private array together with how far one person can move it; and the sums that are released.

Each function brings rows through a `Domain` into its ball and onto its grid, and adds them up in whole numbers
(`eigenveil.privacy.sums.whole`). The bound it states, proved in `eigenveil.privacy.sensitivity`, then holds to the last bit: the
value is the exact sum, rounded once to float64. A `Symmetric`, which has no rows, is taken as its holder gave it, with the bound
that the holder vouches for. Where a domain claims nothing, sums are plain floating point. The value is private: the only way
out is `Mechanism.release`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from eigenveil.data.rows import Block, Rows, Symmetric
from eigenveil.errors import require
from eigenveil.linalg.kernel import Array, spectral_norm
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
from eigenveil.privacy.sums.whole import (
    whole_count,
    whole_gram,
    whole_gram_columns,
    whole_gram_times,
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
    "bounded_scores",
    "bounded_sum",
    "bounded_trace",
    "gram_columns",
    "require_contraction",
]

# A basis that arrives with a larger norm would make every product more sensitive than it says.
CONTRACTION = 1 + 1e-8
# Columns so close to orthonormal cannot stretch by more than half of this.
_NEARLY_ORTHONORMAL = 1e-9
# Traces of a symmetric matrix beyond so many sensitivities are clipped.
_MOST_TRACE = 2.0**36


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """A private `value` of any shape, and its Euclidean (Frobenius) `sensitivity`.

    `symmetric` says that the value is a symmetric matrix, so that noise may be symmetric too. Printing one shows
    no private number.

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
        not isinstance(rows, Symmetric), "a Symmetric says nothing of the sum of rows, so there is no mean to be found"
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


def bounded_trace(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The total sum of squares of the rows in `domain`, a scalar: sensitivity B^2, see `trace_sensitivity`.

    >>> from eigenveil.data.rows import DenseRows
    >>> domain = Domain(dim=2, radius=1.0)
    >>> float(bounded_trace(DenseRows(np.eye(2) / 2), domain=domain, neighbours=Neighbours.ADD_REMOVE).value)
    0.5
    """
    if isinstance(rows, Symmetric):
        diagonal, sensitivity = _as_vouched(rows, domain).diagonal(), domain.trace_sensitivity(neighbours)
        # Clipped where their own rounding would count, which takes tens of billions of people; the sum is rounded once.
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
        # A copy, because whoever gets a sum may add to it in place.
        gram = np.array(_as_vouched(rows, domain))
        return Bounded(gram, domain.gram_sensitivity(neighbours), symmetric=True)
    gram = float_gram(rows, domain) if domain.unit is None else whole_gram(rows, domain)
    return Bounded(gram, domain.gram_sensitivity(neighbours), symmetric=True)


def gram_columns(block: Block, *, width: int, domain: Domain) -> Iterator[Array]:
    """The Gram matrix of a block's rows in `domain`, at most `width` of its columns at a time: arrays (d, width), private.

    Together they are the matrix of `bounded_gram`, with its sensitivity; (d, d) numbers are never there at once.

    >>> parts = gram_columns(Block(np.array([[1.0, 2.0]])), width=1, domain=Domain(dim=2, radius=9.0))
    >>> [part.ravel().tolist() for part in parts]
    [[1.0, 2.0], [2.0, 4.0]]
    """
    if domain.unit is None:
        return float_gram_columns(block, width=width, domain=domain)
    return whole_gram_columns(block, width=width, domain=domain)


def bounded_scores(rows: Rows, *, basis: Array, domain: Domain, neighbours: Neighbours) -> Bounded:
    """The scores, (n, k), of the rows in `domain` on `basis`, (d, k): one row for each person, who holds one row.

    Sensitivity, for ||basis||_2 <= 1 + 1e-8: as of a sum, see `sum_sensitivity`. Proof. Only the row of scores of the person who
    changes is another one, since bounds, center and basis are public. A row x in the ball has ||basis^T x|| <= ||basis||_2 B,
    and a blanked one has none; two rows have scores no further apart than twice that. How many rows there are is seen, so that
    neighbours must be zero-out or replace-one.

    >>> from eigenveil.data.rows import DenseRows
    >>> rows, domain = DenseRows(np.array([[3.0, 4.0]])), Domain(dim=2, radius=1.0)
    >>> bounded_scores(rows, basis=np.eye(2)[:, 1:], domain=domain, neighbours=Neighbours.ZERO_OUT).value.round(3).tolist()
    [[0.8]]
    """
    require_contraction(basis, dim=domain.dim)
    require(
        neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE),
        f"a score for each person says how many there are: neighbours must declare that public, got {neighbours.value!r}",
    )
    require(not isinstance(rows, Symmetric), "a Symmetric has no people to give scores to")
    scores = (float_scores if domain.unit is None else whole_scores)(rows, basis=basis, domain=domain)
    # The basis is rounded onto its grid. Scores of sparse rows are sums of dim terms and of as many for the center, none of them
    # longer than that is far, each off by 2^-53 of them.
    rounded = 2.0**-30 + domain.dim * (FARTHEST + 1) * 2.0**-51
    norm = CONTRACTION + math.sqrt(basis.size) * 2.0**-36 + rounded
    return Bounded(scores, norm * sum_sensitivity(domain.radius, neighbours))


def bounded_gram_times(rows: Rows, *, basis: Array, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix times `basis`, (d, p), without the Gram matrix: see `gram_times_sensitivity`.

    Whoever holds the rows checks ||basis||_2 <= 1 + 1e-8 itself and refuses a larger one; the sensitivity is stated for that
    limit, so that it does not depend on how a norm was rounded.

    >>> from eigenveil.data.rows import DenseRows
    >>> rows, domain = DenseRows(np.eye(2)), Domain(dim=2, radius=1.0)
    >>> bounded_gram_times(rows, basis=np.eye(2)[:, :1], domain=domain, neighbours=Neighbours.ADD_REMOVE)
    Bounded(shape=(2, 1), sensitivity=1.000003...)
    """
    require_contraction(basis, dim=domain.dim)
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


def _as_vouched(rows: Symmetric, domain: Region) -> Array:
    """The matrix, (d, d), in the units of `domain`. What moves or cuts rows is refused: their sum of products does not tell
    what would come of it. Nor is anything brought into the ball, whose radius is the holder's word (`Symmetric`)."""
    require(isinstance(domain, Domain), "a Symmetric has no histories of users, only a sum of products of rows")
    assert isinstance(domain, Domain)
    require(rows.shape[1] == domain.dim, f"a Symmetric must have {domain.dim} columns, got {rows.shape[1]}")
    require(
        domain.center is None and domain.low is None,
        "a Symmetric cannot be moved to a center or cut to column bounds: that needs rows",
    )
    if domain.scale is None:
        matrix: Array = rows.matrix
        return matrix
    with np.errstate(over="ignore"):
        scaled = rows.matrix / np.outer(domain.scale, domain.scale)
    # Checked once more, because small units can make it too large to multiply.
    return np.asarray(Symmetric(scaled, people=rows.people).matrix)


def require_contraction(basis: Array, *, dim: int) -> float:
    """The spectral norm of a finite `basis`, (dim, p), or a little more; a `ValueError` where it exceeds 1 + 1e-8.

    Nearly orthonormal columns need no eigenvalues: ||Z||_2^2 = ||Z^T Z||_2 <= 1 + ||Z^T Z - I||_F.

    >>> round(require_contraction(np.eye(3)[:, :2], dim=3), 9)
    1.0
    """
    require(
        basis.ndim == 2 and len(basis) == dim and basis.shape[1] >= 1,
        f"basis must have shape ({dim}, p), got {basis.shape}",
    )
    with np.errstate(over="ignore", invalid="ignore"):
        gram = basis.T @ basis
        gram.flat[:: len(gram) + 1] -= 1.0
        off = math.sqrt(np.vdot(gram, gram))
    # A sum of products that is not a number is no smaller than anything.
    if off <= _NEARLY_ORTHONORMAL:
        return 1.0 + off / 2
    norm = spectral_norm(basis)
    require(math.isfinite(norm), "basis must be finite")
    require(norm <= CONTRACTION, f"basis must have spectral norm at most 1 + 1e-8, got {norm}")
    return norm
