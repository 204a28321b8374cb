"""How many threads BLAS may use, in one place."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar, final

import numpy as np

from eigenveil.core.threads import Array, Blas, side_by_side
from eigenveil.errors import require

__all__ = ["blas_threads", "complement", "orthonormal", "signed", "tall_product", "tall_times", "thin_svd", "top_eigen"]


@cache
def _pools(scipy_too: bool) -> Any:
    """The BLAS libraries that are loaded now: looked up once with numpy's only, and once more when scipy's is loaded."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Let every BLAS call inside the block use at most `count` threads.

    The limit applies to the whole process. Where blocks overlap, in several threads, the smallest limit holds. The last block to
    end restores the number of threads from before the first.

    >>> import numpy as np
    >>> with blas_threads(1):
    ...     float(np.ones((2, 2)).sum())
    4.0
    """
    _LIMITS.enter(max(1, count))
    try:
        yield
    finally:
        _LIMITS.leave(max(1, count))


@final
class _Limits:
    """The limits on BLAS threads that hold now, one for each open block. Changes in place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: list[int] = []
        self._before: list[tuple[Any, int]] = []

    def enter(self, count: int) -> None:
        with self._lock:
            # Only the first block records the numbers: a later one would record a limit and restore that.
            if not self._now:
                pools = _pools("scipy.linalg" in sys.modules).lib_controllers
                self._before = [(pool, pool.num_threads) for pool in pools if pool.user_api == "blas"]
            self._now.append(count)
            self._limit()

    def leave(self, count: int) -> None:
        with self._lock:
            self._now.remove(count)
            self._limit()

    def _limit(self) -> None:
        for pool, before in self._before:
            pool.set_num_threads(min(self._now, default=before))


_LIMITS = _Limits()

Blas.limit = staticmethod(blas_threads)

_Item = TypeVar("_Item")
# Below this dimension one full eigendecomposition by numpy beats a partial one by scipy, pool change included.
_SMALL = 300
# Below this dimension its memory does not matter either: a few matrices of half a MiB, where loading scipy takes 18 MiB. A
# small device that gives blocks of 200 rows to a tracker never loads it.
_TINY = 256
# Cholesky QR loses orthogonality like the squared condition number; past this ratio Householder takes over.
_WELL_CONDITIONED = 1e-5
_ORTHONORMAL = 1e-14
_NEARLY_ORTHONORMAL = 0.5
# If a first pass leaves an error of at most the first number, the columns have a condition below 1e5. If their diagonal is also
# this many times above a floor, no direction of them is below the floor.
_PLENTY_ORTHONORMAL, _PLENTY = 1e-6, 1e6
# A matrix with this many rows for each column, and this many numbers, is tall. It is divided into this many slices, whatever the
# number of threads, so that sums over its rows have the same bits on every machine with the same BLAS.
_TALL, _LARGE, _SLICES = 16, 1 << 18, 8


def tall_product(left: Array, right: Array) -> Array:
    """left^T right, (p, q), for matrices with as many rows, (d, p) and (d, q): slices of tall ones are added up in order.

    >>> tall_product(np.ones((3, 1)), np.array([[1.0, 2.0]] * 3)).tolist()
    [[3.0, 6.0]]
    """
    slices = _slices(left if left.shape[1] >= right.shape[1] else right)
    if len(slices) == 1:
        return np.asarray(left.T @ right)
    parts = np.empty((len(slices), left.shape[1], right.shape[1]))

    def put(index: int) -> None:
        chunk = slices[index]
        np.matmul(left[chunk].T, right[chunk], out=parts[index])

    _each_alone(range(len(slices)), put, numbers=left.size + right.size)
    return np.asarray(np.add.reduce(parts, axis=0))


def tall_times(matrix: Array, right: Array, *, out: Array | None = None) -> Array:
    """matrix right, (d, q), for a tall matrix, (d, p), and a small one, (p, q). `out` may be the matrix itself.

    >>> tall_times(np.ones((2, 1)), np.array([[3.0]])).tolist()
    [[3.0], [3.0]]
    """
    product = np.empty((len(matrix), right.shape[1])) if out is None else out

    def put(chunk: slice) -> None:
        # Through a copy of the slice where the result overwrites its own factor.
        product[chunk] = matrix[chunk] @ right

    _each_alone(_slices(matrix), put, numbers=matrix.size)
    return product


def _each_alone(items: Sequence[_Item], act: Callable[[_Item], None], *, numbers: int) -> None:
    """Call `act` for each item in threads of our own, with one BLAS thread each; a single item has all BLAS threads.

    All items together are about so many `numbers`. Where they are few, waking many threads would take longer than the work.
    """
    if len(items) == 1:
        act(items[0])
        return
    with blas_threads(1):
        side_by_side(items, act, max_threads=min(_SLICES, max(2, numbers // _LARGE)))


def _slices(matrix: Array) -> list[slice]:
    """Slices of the rows of a tall matrix, or all of them in one. They depend on its shape alone."""
    rows, columns = matrix.shape
    count = _SLICES if rows >= _TALL * columns and matrix.size >= _LARGE else 1
    size = max(1, -(-rows // count))
    return [slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size)]


def orthonormal(matrix: Array) -> Array:
    """The orthonormal basis Q, (d, p), with `matrix` = Q R, R upper triangular with a non-negative diagonal; p <= d.

    Cholesky QR twice (Yamamoto et al. 2015) for the usual tall, well conditioned matrix; Householder QR otherwise. Where columns
    are independent, both give the same basis: parties whose matrices differ by little get bases that differ by little.

    >>> basis = orthonormal(np.array([[3.0, 1.0], [0.0, 2.0], [0.0, 0.0]]))
    >>> np.allclose(basis.T @ basis, np.eye(2))
    True
    """
    rows, columns = matrix.shape
    require(columns <= rows, f"orthonormal needs at most as many columns as rows, got shape {matrix.shape}")
    quick = _cholesky_qr_twice(matrix) if rows > 4 * columns else None
    if quick is not None:
        return quick
    basis, upper = np.linalg.qr(matrix)
    basis *= np.where(np.diag(upper) < 0, -1.0, 1.0)
    return basis


def _cholesky_qr_twice(matrix: Array, *, min_size: float = 0.0, gap: float = _NEARLY_ORTHONORMAL) -> Array | None:
    """An orthonormal basis of the columns, (d, p), or None where they are nearly dependent, or not above `min_size` in size."""
    with np.errstate(over="ignore", invalid="ignore"):
        gram = tall_product(matrix, matrix)
    # The trace shows whether squares overflow, underflow or are NaN.
    if not 1e-200 < float(np.trace(gram)) < 1e200:
        return None
    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return None
    diagonal = np.diag(lower)
    if diagonal.min() < max(min_size, _WELL_CONDITIONED * diagonal.max()):
        return None
    basis = tall_times(matrix, np.linalg.inv(lower).T)
    gram = tall_product(basis, basis)
    # The diagonal can hide a bad condition (Kahan 1966), and the second pass repairs only a basis that is nearly right.
    off = np.linalg.norm(gram - np.eye(len(gram)))
    if off > gap:
        return None
    if off < _ORTHONORMAL:
        return basis
    # In place, a slice at a time, so that this needs only one tall array.
    return tall_times(basis, np.linalg.inv(np.linalg.cholesky(gram)).T, out=basis)


def complement(matrix: Array, basis: Array, *, within: Array | None = None) -> Array:
    """An orthonormal basis, (d, q), of the part of the span of `matrix`, (d, p), outside the span of `basis`, (d, k).

    A caller that has already computed basis.T @ matrix passes it as `within`.
    Directions in which less than 1e-10 of the matrix is left are rounding noise. They may point anywhere, also back into
    `basis`, and are dropped. The rest is orthogonalised against `basis` a second time where it is not orthogonal enough.

    >>> np.abs(complement(np.eye(3)[:, :2], np.eye(3)[:, :1])).ravel().tolist()
    [0.0, 1.0, 0.0]
    """
    room = len(basis) - basis.shape[1]
    floor = 1e-10 * max(float(matrix.max(initial=0.0)), -float(matrix.min(initial=0.0)))
    residual = tall_times(basis, tall_product(basis, matrix) if within is None else within)
    np.subtract(matrix, residual, out=residual)
    is_tall, fresh = len(residual) > 4 * residual.shape[1] and residual.shape[1] <= room, None
    if is_tall:
        fresh = _cholesky_qr_twice(residual, min_size=_PLENTY * floor, gap=_PLENTY_ORTHONORMAL)
    if fresh is None:
        frame = orthonormal(residual)
        rotation, sizes, _ = np.linalg.svd(frame.T @ residual)
        fresh = frame @ rotation[:, sizes > floor][:, :room]
        del frame
    # Tall arrays are freed as soon as they are used, because this runs where memory is short.
    del residual
    lean = tall_product(basis, fresh)
    if np.abs(lean).max(initial=0.0) < 1e-13:
        return fresh
    fresh -= tall_times(basis, lean)
    return orthonormal(fresh)


def signed(vectors: Array) -> Array:
    """The columns of `vectors`, (d, k), with signs chosen so that the entry of largest size in each is positive.

    >>> signed(np.array([[0.6], [-0.8]])).ravel().tolist()
    [-0.6, 0.8]
    """
    if vectors.size == 0:
        return vectors
    lowest, highest = vectors.min(axis=0), vectors.max(axis=0)
    flipped = -lowest > highest
    for column in np.flatnonzero(-lowest == highest):
        # Of two entries of the same size the first one counts.
        flipped[column] = vectors[np.abs(vectors[:, column]).argmax(), column] < 0
    return vectors * np.where(flipped, -1.0, 1.0)


def top_eigen(symmetric: Array, *, rank: int, overwrite: bool = False) -> tuple[Array, Array]:
    """The `rank` largest eigenvalues, (rank,), largest first, and their signed eigenvectors, (d, rank).

    Only one triangle of `symmetric`, (d, d), is read. For a large matrix and a rank well below d, scipy's partial solver works on
    a copy. With `overwrite` it destroys `symmetric` instead, which saves the copy.

    >>> values, vectors = top_eigen(np.diag([1.0, 5.0, 3.0]), rank=2)
    >>> values.tolist(), vectors.T.tolist()
    ([5.0, 3.0], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    """
    dim = len(symmetric)
    require(1 <= rank <= dim, f"rank must lie in 1..{dim}, got {rank}")
    if dim <= (_TINY if overwrite else _SMALL) or (4 * rank > dim and not overwrite):
        # A second thread gains nothing on matrices this small, and would keep a core busy afterwards.
        with blas_threads(1) if dim <= _SMALL else nullcontext():
            values, vectors = np.linalg.eigh(symmetric)
        values, vectors = values[-rank:], vectors[:, -rank:]
    else:
        from scipy.linalg import eigh

        # The transpose of a C-ordered copy is Fortran-ordered, so LAPACK works in that one copy.
        working = np.ascontiguousarray(symmetric).T if overwrite else np.array(symmetric, order="C").T
        values, vectors = eigh(working, subset_by_index=[dim - rank, dim - 1], driver="evr", overwrite_a=True, check_finite=False)
    return np.ascontiguousarray(values[::-1]), signed(np.ascontiguousarray(vectors[:, ::-1]))


def thin_svd(matrix: Array, *, rank: int) -> tuple[Array, Array]:
    """The `rank` leading left singular vectors, (d, rank), signed, and singular values, (rank,), of `matrix`, (d, m).

    >>> vectors, values = thin_svd(np.array([[0.0, 0.0], [0.0, 2.0]]), rank=1)
    >>> vectors.ravel().tolist(), values.tolist()
    ([0.0, 1.0], [2.0])
    """
    require(1 <= rank <= min(matrix.shape), f"rank must lie in 1..{min(matrix.shape)}, got {rank}")
    vectors, values, _ = np.linalg.svd(matrix, full_matrices=False)
    return signed(np.ascontiguousarray(vectors[:, :rank])), values[:rank].copy()
