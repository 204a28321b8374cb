"""`Bounded`: a private array together with how far one person can move it; and the sums that are released.

Each function clips rows through a `Domain` first and only then multiplies; the bound it states is proved in
`eigenveil.privacy.sensitivity`. A `Symmetric`, which has no rows, is taken as its holder gave it, with the bound that the
holder vouches for. The value is private: the only way out is `Mechanism.release`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg.kernel import Array, shared_work, spectral_norm
from eigenveil.privacy.domain import Domain, Region
from eigenveil.privacy.sensitivity import Neighbours, count_sensitivity, sum_sensitivity
from eigenveil.rows import Block, Rows, Symmetric, block_size

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
# Up to this dimension two workers with an accumulator each beat one with twice the BLAS threads.
_TWO_WORKERS = 2048
# Rows that are multiplied twice stay in the cache between the two.
_CACHED_PRODUCT = 512
# Columns so close to orthonormal cannot stretch by more than half of this.
_NEARLY_ORTHONORMAL = 1e-9
# Above this ratio of squares a center is far out: more than a hundred standard deviations, two digits of sixteen.
_FAR_OUT = 1e4
# A few rows at a time stay in the inner cache while they are moved, measured and scaled.
_CACHED_ROWS = 128


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

    >>> from eigenveil.rows import DenseRows
    >>> domain = Domain(dim=2, radius=1.0)
    >>> bounded_sum(DenseRows(np.eye(2) * 9), domain=domain, neighbours=Neighbours.ADD_REMOVE).sensitivity
    1.0
    """
    require(
        not isinstance(rows, Symmetric), "a Symmetric says nothing of the sum of rows, so there is no mean to be found"
    )
    size = block_size(rows)
    workers = [_Sum(domain) for _ in range(1 if rows.sparse or rows.shape[0] <= size else 2)]
    shared_work(rows.blocks(size), workers=workers, take=_Sum.take)
    total = workers[0].total
    for worker in workers[1:]:
        total += worker.total
    return Bounded(total, domain.sum_sensitivity(neighbours))


def bounded_count(rows: Rows, *, neighbours: Neighbours) -> Bounded:
    """The number of people, a scalar: sensitivity 1 under add/remove, 0 where it is public.

    >>> from eigenveil.rows import DenseRows
    >>> float(bounded_count(DenseRows(np.zeros((4, 1))), neighbours=Neighbours.ADD_REMOVE).value)
    4.0
    """
    if isinstance(rows, Symmetric):
        return Bounded(np.asarray(float(rows.people)), count_sensitivity(neighbours))
    weights = (len(b) if b.weights is None else b.weights.sum() for b in rows.blocks(block_size(rows)))
    return Bounded(np.asarray(math.fsum(weights)), count_sensitivity(neighbours))


def bounded_trace(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The total sum of squares of the rows in `domain`, a scalar: sensitivity B^2, see `trace_sensitivity`.

    >>> from eigenveil.rows import DenseRows
    >>> domain = Domain(dim=2, radius=1.0)
    >>> float(bounded_trace(DenseRows(np.eye(2) / 2), domain=domain, neighbours=Neighbours.ADD_REMOVE).value)
    0.5
    """
    if isinstance(rows, Symmetric):
        trace = np.asarray(np.trace(_as_vouched(rows, domain)))
        return Bounded(trace, domain.trace_sensitivity(neighbours))
    squares = []
    center = domain.shifted_center
    for block in rows.blocks(block_size(rows)):
        if block.sparse:
            part = domain.sparse(block, squared=True)
            squares.append(float(part.rows.data @ part.rows.data))
            if center is not None:
                squares.append(-2 * float(part.shift @ (part.rows @ center)))
                squares.append(float(part.shift @ part.shift) * float(center @ center))
        else:
            values = domain.dense(block, squared=True)
            squares.append(float(np.einsum("ij,ij->", values, values)))
    return Bounded(np.asarray(math.fsum(squares)), domain.trace_sensitivity(neighbours))


def bounded_gram(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix, (d, d), of the rows in `domain`: sensitivity B^2 or sqrt(2) B^2, see `gram_sensitivity`.

    >>> from eigenveil.rows import DenseRows
    >>> rows = DenseRows(np.array([[300.0, 400.0]]))
    >>> bounded_gram(rows, domain=Domain(dim=2, radius=5.0), neighbours=Neighbours.ADD_REMOVE).value.round(9).tolist()
    [[9.0, 12.0], [12.0, 16.0]]
    """
    if isinstance(rows, Symmetric):
        # A copy, because whoever gets a sum may add to it in place.
        gram = np.array(_as_vouched(rows, domain))
        return Bounded(gram, domain.gram_sensitivity(neighbours), symmetric=True)
    size = block_size(rows)
    if rows.sparse:
        total = _SparseGram(domain)
        shared_work(rows.blocks(size), workers=[total], take=_SparseGram.take)
        gram = total.finish()
    else:
        # Two workers hold two accumulators and two products between them: four matrices, the most that is allowed.
        several = rows.shape[0] > size and domain.dim <= _TWO_WORKERS
        workers = [_DenseGram(domain, min(size, rows.shape[0])) for _ in range(2 if several else 1)]
        shared_work(rows.blocks(size), workers=workers, take=_DenseGram.take)
        gram = workers[0].total
        for worker in workers[1:]:
            gram += worker.total
    return Bounded(gram, domain.gram_sensitivity(neighbours), symmetric=True)


def gram_columns(block: Block, *, width: int, domain: Domain) -> Iterator[Array]:
    """The Gram matrix of a block's rows in `domain`, at most `width` of its columns at a time: arrays (d, width), private.

    Together they are the matrix of `bounded_gram`, with its sensitivity; (d, d) numbers are never there at once.

    >>> parts = gram_columns(Block(np.array([[1.0, 2.0]])), width=1, domain=Domain(dim=2, radius=9.0))
    >>> [part.ravel().tolist() for part in parts]
    [[1.0, 2.0], [2.0, 4.0]]
    """
    starts = range(0, domain.dim, width)
    if not block.sparse:
        rows = domain.dense(block, squared=True)
        for start in starts:
            yield rows.T @ rows[:, start : start + width]
        return
    part, center = domain.sparse(block, squared=True), domain.shifted_center
    across = part.rows.T.tocsr()
    by_column = part.rows.tocsc()
    pull, weight = across @ part.shift, float(part.shift @ part.shift)
    for start in starts:
        piece = (across @ by_column[:, start : start + width]).toarray()
        if center is not None:
            # The same corrections as for the whole matrix: see `_SparseGram`.
            here = slice(start, start + width)
            piece -= np.outer(pull, center[here]) + np.outer(center, pull[here] - weight * center[here])
        yield piece


def bounded_scores(rows: Rows, *, basis: Array, domain: Domain, neighbours: Neighbours) -> Bounded:
    """The scores, (n, k), of the rows in `domain` on `basis`, (d, k): one row for each person, who holds one row.

    Sensitivity, for ||basis||_2 <= 1 + 1e-8: as of a sum, see `sum_sensitivity`. Proof. Only the row of scores of the person who
    changes is another one, since bounds, center and basis are public. A row x in the ball has ||basis^T x|| <= ||basis||_2 B,
    and a blanked one has none; two rows have scores no further apart than twice that. How many rows there are is seen, so that
    neighbours must be zero-out or replace-one.

    >>> from eigenveil.rows import DenseRows
    >>> rows, domain = DenseRows(np.array([[3.0, 4.0]])), Domain(dim=2, radius=1.0)
    >>> bounded_scores(rows, basis=np.eye(2)[:, 1:], domain=domain, neighbours=Neighbours.ZERO_OUT).value.round(9).tolist()
    [[0.8]]
    """
    require_contraction(basis, dim=domain.dim)
    require(
        neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE),
        f"a score for each person says how many there are: neighbours must declare that public, got {neighbours.value!r}",
    )
    require(not isinstance(rows, Symmetric), "a Symmetric has no people to give scores to")
    center, parts = domain.shifted_center, [np.zeros((0, basis.shape[1]))]
    for block in rows.blocks(block_size(rows)):
        require(block.weights is None, "people with several rows have several scores: one row for each is needed")
        if block.sparse:
            part = domain.sparse(block)
            parts.append(part.rows @ basis - (0.0 if center is None else np.outer(part.shift, center @ basis)))
        else:
            parts.append(domain.dense(block) @ basis)
    return Bounded(np.vstack(parts), CONTRACTION * sum_sensitivity(domain.radius, neighbours))


def bounded_gram_times(rows: Rows, *, basis: Array, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix times `basis`, (d, p), without the Gram matrix: see `gram_times_sensitivity`.

    Whoever holds the rows checks ||basis||_2 <= 1 + 1e-8 itself and refuses a larger one; the sensitivity is stated for that
    limit, so that it does not depend on how a norm was rounded.

    >>> from eigenveil.rows import DenseRows
    >>> rows, domain = DenseRows(np.eye(2)), Domain(dim=2, radius=1.0)
    >>> bounded_gram_times(rows, basis=np.eye(2)[:, :1], domain=domain, neighbours=Neighbours.ADD_REMOVE)
    Bounded(shape=(2, 1), sensitivity=1.00000001)
    """
    require_contraction(basis, dim=domain.dim)
    sensitivity = domain.gram_times_sensitivity(neighbours, basis=basis, basis_norm=CONTRACTION)
    if isinstance(rows, Symmetric):
        return Bounded(_as_vouched(rows, domain) @ basis, sensitivity)
    total = np.zeros(basis.shape)
    center = domain.shifted_center
    pull = None if center is None else center @ basis
    drag = np.zeros(basis.shape[1])
    for block in rows.blocks(block_size(rows)):
        if block.sparse:
            part = domain.sparse(block, squared=True)
            scores = part.rows @ basis
            if center is not None and pull is not None:
                scores -= np.outer(part.shift, pull)
                drag += part.shift @ scores
            # Sorted by column first: twice as fast as scattering the rows' products.
            total += part.rows.T.tocsr() @ scores
        elif (product := _product_as_they_are(block, basis, domain, pull)) is not None:
            total += product
        else:
            values = domain.dense(block, squared=True)
            total += values.T @ (values @ basis)
    if rows.sparse and center is not None:
        total -= np.outer(center, drag)
    return Bounded(total, sensitivity)


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


def _product_as_they_are(block: Block, basis: Array, domain: Region, pull: Array | None) -> Array | None:
    """The product, (d, p), of rows that need no change but for the center, without a copy of the rows; None for all others.

    Only where nothing is claimed: rows that are cut or scaled down must be so before any product. A center so far out that
    subtracting it from products would lose digits is taken off the rows instead.
    """
    if not isinstance(domain, Domain):
        return None
    plain = math.isinf(domain.radius) and domain.low is None and domain.scale is None and block.weights is None
    if not plain or block.values.dtype != np.float64:
        return None
    total, drag = np.zeros((basis.shape[1], len(basis))), np.zeros(basis.shape[1])
    before = after = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(block), _CACHED_PRODUCT):
            rows = block.values[start : start + _CACHED_PRODUCT]
            scores = rows @ basis
            if pull is not None:
                before += float(np.vdot(scores, scores))
                scores -= pull
                after += float(np.vdot(scores, scores))
                drag += np.ones(len(scores)) @ scores
            total += scores.T @ rows
        if pull is None or domain.center is None:
            return total.T
        total -= np.outer(drag, domain.center)
        # What was subtracted can be as large as this, and its rounding must be nothing beside what is left.
        taken = float(np.abs(domain.center).max()) * math.sqrt(len(block) * after)
        left = math.sqrt(float(np.vdot(total, total)))
    return total.T if before <= _FAR_OUT * after and taken <= _FAR_OUT * left else None


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
        off = float(np.sqrt(np.einsum("ij,ij->", gram, gram)))
    # A sum of products that is not a number is no smaller than anything.
    if off <= _NEARLY_ORTHONORMAL:
        return 1.0 + off / 2
    norm = spectral_norm(basis)
    require(math.isfinite(norm), "basis must be finite")
    require(norm <= CONTRACTION, f"basis must have spectral norm at most 1 + 1e-8, got {norm}")
    return norm


@final
@dataclass(slots=True, eq=False)
class _Sum:
    """One worker's share of a sum of rows. Changes in place."""

    domain: Region
    total: Array = field(init=False)
    scratch: Array = field(init=False)

    def __post_init__(self) -> None:
        self.total, self.scratch = np.zeros(self.domain.dim), np.empty((0, self.domain.dim))

    def take(self, block: Block) -> None:
        if block.sparse:
            part, center = self.domain.sparse(block), self.domain.shifted_center
            self.total += part.rows.T @ np.ones(len(block))
            if center is not None:
                self.total -= part.shift.sum() * center
        else:
            if len(self.scratch) == 0:
                self.scratch = np.empty((_CACHED_ROWS, self.domain.dim))
            for start in range(0, len(block), _CACHED_ROWS):
                rows, factor = self.domain.moved(block.piece(start, _CACHED_ROWS), out=self.scratch)
                self.total += factor @ rows


@final
@dataclass(slots=True, eq=False)
class _DenseGram:
    """One worker's share of a dense Gram matrix. Changes in place."""

    domain: Region
    size: int
    total: Array = field(init=False)
    product: Array = field(init=False)
    scratch: Array = field(init=False)

    def __post_init__(self) -> None:
        dim = self.domain.dim
        self.total, self.product = np.zeros((dim, dim)), np.empty((dim, dim))
        self.scratch = np.empty((self.size, dim))

    def take(self, block: Block) -> None:
        rows = self.scratch[: len(block)]
        for start in range(0, len(block), _CACHED_ROWS):
            self.domain.dense(block.piece(start, _CACHED_ROWS), out=rows[start:], squared=True)
        # numpy sees the same array twice and calls the symmetric product, half the work.
        np.matmul(rows.T, rows, out=self.product)
        self.total += self.product


@final
@dataclass(slots=True, eq=False)
class _SparseGram:
    """The Gram matrix of sparse rows, with the center taken out by rank-two corrections. Changes in place.

    (R - s c^T)^T (R - s c^T) = R^T R - (R^T s) c^T - c (R^T s)^T + (s^T s) c c^T.
    """

    domain: Region
    total: Array = field(init=False)
    pull: Array = field(init=False)
    weight: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        dim = self.domain.dim
        self.total, self.pull = np.zeros((dim, dim)), np.zeros(dim)

    def take(self, block: Block) -> None:
        part = self.domain.sparse(block, squared=True)
        product = part.rows.T.tocsr() @ part.rows
        product.sum_duplicates()
        for start in range(0, self.domain.dim, _CACHED_ROWS):
            # A strip at a time, so that the indices of a full product need not be written out.
            low, high = product.indptr[start], product.indptr[min(start + _CACHED_ROWS, self.domain.dim)]
            counts = np.diff(product.indptr[start : start + _CACHED_ROWS + 1])
            lines = start + np.repeat(np.arange(len(counts)), counts)
            self.total[lines, product.indices[low:high]] += product.data[low:high]
        self.pull += part.rows.T @ part.shift
        self.weight += float(part.shift @ part.shift)

    def finish(self) -> Array:
        center = self.domain.shifted_center
        if center is not None:
            cross = np.outer(self.pull, center)
            self.total -= cross
            self.total -= cross.T
            self.total += self.weight * np.outer(center, center)
        return self.total
