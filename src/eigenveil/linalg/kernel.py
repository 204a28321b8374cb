"""The one numeric kernel: factorisations with one sign convention, and thread control in one place.

numpy and scipy each have a BLAS with its own thread pool, and the two pools slow each other down when they alternate in a loop.
So loops use numpy only. scipy's partial eigensolver is called once, at the end of a large problem.

A thread of BLAS keeps a core busy for some 25 ms after its last product, waiting for the next one. That slows down whatever runs
beside it. So products of tall matrices run in threads of our own, with one BLAS thread each (`tall_product`, `tall_times`).
"""

import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from itertools import cycle
from os import cpu_count
from typing import Any, ParamSpec, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require

__all__ = [
    "Array",
    "blas_threads",
    "complement",
    "cores",
    "few_cores",
    "one_ahead",
    "orthonormal",
    "shared_work",
    "side_by_side",
    "signed",
    "spectral_norm",
    "tall_product",
    "tall_times",
    "thin_svd",
    "top_eigen",
    "vector_norm",
]

Array = NDArray[np.float64]

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
_Worker = TypeVar("_Worker")
_Given = ParamSpec("_Given")

# Below this dimension one full eigendecomposition by numpy beats a partial one by scipy, pool change included.
_SMALL = 300
# Below this dimension its memory does not matter either: a few matrices of half a MiB, where loading scipy takes 18 MiB. So a
# small device that gives blocks of 200 rows to a tracker never loads it.
_TINY = 256
# Cholesky QR loses orthogonality like the squared condition number; past this ratio Householder takes over.
_WELL_CONDITIONED = 1e-5
_ORTHONORMAL = 1e-14
# A matrix with this many rows for each column, and this many numbers, is tall. It is divided into this many slices, whatever the
# number of threads, so that sums over its rows have the same bits on every machine with the same BLAS.
_TALL, _LARGE, _SLICES = 16, 1 << 18, 8
# How many items each worker may have in hand or waiting: enough to keep it busy, few enough that a stream stays a stream.
_AHEAD = 2
_NEARLY_ORTHONORMAL = 0.5
# If a first pass leaves an error of at most the first number, the columns have a condition below 1e5. If their diagonal is also
# this many times above a floor, no direction of them is below the floor.
_PLENTY_ORTHONORMAL, _PLENTY = 1e-6, 1e6


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


@contextmanager
def few_cores(count: int) -> Iterator[None]:
    """Let `shared_work` and `side_by_side`, called in this thread inside the block, take this machine to have `count` cores.

    For a process or thread that works beside others like it: together they use all cores already.

    >>> with few_cores(1):
    ...     cores()
    1
    """
    before = cores()
    _CORES.count = count
    try:
        yield
    finally:
        _CORES.count = before


def cores() -> int:
    """How many cores this thread may use."""
    return int(getattr(_CORES, "count", cpu_count() or 1))


_CORES = threading.local()


def shared_work(items: Iterable[_Item], *, workers: Sequence[_Worker], take: Callable[[_Worker, _Item], None]) -> None:
    """Give item j to worker j mod len(workers); the workers run in parallel threads.

    Which worker gets which item depends on their order alone, never on timing. So the workers' sums are the same to the last bit
    on every run. BLAS threads are divided between the workers.
    """
    if len(workers) == 1 or cores() == 1:
        for worker, item in zip(cycle(workers), items, strict=False):
            take(worker, item)
        return
    threads = cores() // len(workers)
    with ExitStack() as stack:
        stack.enter_context(blas_threads(threads))
        # One thread per worker, so that each takes its items in order and a slow one does not stop the others at once.
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in workers]
        waiting: deque[Future[None]] = deque()
        # numpy's settings belong to a thread. Without this, a worker's warning could reveal something about a row.
        take = _with_errstate(take)
        for worker, pool, item in zip(cycle(workers), cycle(pools), items, strict=False):
            waiting.append(pool.submit(take, worker, item))
            if len(waiting) > _AHEAD * len(workers):
                waiting.popleft().result()
        for future in waiting:
            future.result()


def side_by_side(items: Sequence[_Item], act: Callable[[_Item], None], *, most: int = 2) -> None:
    """Call `act` for each item, in up to `most` threads: for items with separate results, whose order does not matter.

    BLAS keeps its threads: this is for work that numpy and scipy do without BLAS and without Python's lock.

    >>> squares = np.zeros(3)
    >>> side_by_side(range(3), lambda place: squares.__setitem__(place, place**2))
    >>> squares.tolist()
    [0.0, 1.0, 4.0]
    """
    threads = min(most, len(items), cores())
    if threads <= 1:
        for item in items:
            act(item)
        return
    waiting = deque(items)

    def drain() -> None:
        while True:
            try:
                # Atomic, so no two threads get the same item.
                item = waiting.popleft()
            except IndexError:
                return
            act(item)

    # This thread works too, and the others wait from call to call: starting them, or a future for each item, would matter where
    # items take a millisecond.
    others = [_helpers().submit(_with_errstate(drain)) for _ in range(threads - 1)]
    try:
        drain()
    finally:
        # Nothing is left to do. So a helper that has not begun need not, and waiting for it could be waiting for ourselves.
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        # Raises any error from a thread.
        other.result()


@cache
def _helpers() -> ThreadPoolExecutor:
    """The threads that `side_by_side` shares work with, one for each further core."""
    return ThreadPoolExecutor(max(1, (cpu_count() or 1) - 1))


# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=_helpers.cache_clear)


def one_ahead(items: Sequence[_Item], make: Callable[[_Item], _Made]) -> Iterator[_Made]:
    """`make(item)` for each item, in order: another thread makes the next one while the caller uses the last.

    >>> list(one_ahead([1, 2, 3], lambda item: item**2))
    [1, 4, 9]
    """
    if len(items) <= 1:
        yield from map(make, items)
        return
    with ThreadPoolExecutor(1) as pool:
        make = _with_errstate(make)
        ahead = pool.submit(make, items[0])
        for item in items[1:]:
            made, ahead = ahead, pool.submit(make, item)
            yield made.result()
        yield ahead.result()


def _with_errstate(act: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """`act` for other threads, with this thread's numpy settings for overflow and other floating-point errors."""
    settings: Any = np.geterr()

    def alike(*given: _Given.args, **more: _Given.kwargs) -> _Made:
        with np.errstate(**settings):
            return act(*given, **more)

    return alike


def orthonormal(matrix: Array) -> Array:
    """The orthonormal basis Q, (d, p), with `matrix` = Q R, R upper triangular with a non-negative diagonal; p <= d.

    Cholesky QR twice (Yamamoto et al. 2015) for the usual tall, well conditioned matrix; Householder QR otherwise. Where columns
    are independent, both give the same basis. So parties whose matrices differ by little get bases that differ by little.

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


def tall_product(left: Array, right: Array) -> Array:
    """left^T right, (p, q), for matrices with as many rows, (d, p) and (d, q): slices of tall ones are added up in order.

    >>> tall_product(np.ones((3, 1)), np.array([[1.0, 2.0]] * 3)).tolist()
    [[3.0, 6.0]]
    """
    slices = _slices(left if left.shape[1] >= right.shape[1] else right)
    if len(slices) == 1:
        return np.asarray(left.T @ right)
    parts = np.empty((len(slices), left.shape[1], right.shape[1]))

    def put(place: int) -> None:
        here = slices[place]
        np.matmul(left[here].T, right[here], out=parts[place])

    _each_alone(range(len(slices)), put, numbers=left.size + right.size)
    return np.asarray(np.add.reduce(parts, axis=0))


def tall_times(matrix: Array, right: Array, *, out: Array | None = None) -> Array:
    """matrix right, (d, q), for a tall matrix, (d, p), and a small one, (p, q). `out` may be the matrix itself.

    >>> tall_times(np.ones((2, 1)), np.array([[3.0]])).tolist()
    [[3.0], [3.0]]
    """
    found = np.empty((len(matrix), right.shape[1])) if out is None else out

    def put(here: slice) -> None:
        # Through a copy of the slice where the result overwrites its own factor.
        found[here] = matrix[here] @ right

    _each_alone(_slices(matrix), put, numbers=matrix.size)
    return found


def _each_alone(items: Sequence[_Item], act: Callable[[_Item], None], *, numbers: int) -> None:
    """Call `act` for each item in threads of our own, with one BLAS thread each; a single item has all BLAS threads.

    All items together are about so many `numbers`. Where they are few, waking many threads would take longer than the work.
    """
    if len(items) == 1:
        act(items[0])
        return
    with blas_threads(1):
        side_by_side(items, act, most=min(_SLICES, max(2, numbers // _LARGE)))


def _slices(matrix: Array) -> list[slice]:
    """Slices of the rows of a tall matrix, or all of them in one. They depend on its shape alone."""
    rows, columns = matrix.shape
    count = _SLICES if rows >= _TALL * columns and matrix.size >= _LARGE else 1
    size = max(1, -(-rows // count))
    return [slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size)]


def _tall(matrix: Array, room: int) -> bool:
    return bool(len(matrix) > 4 * matrix.shape[1] and matrix.shape[1] <= room)


def _cholesky_qr_twice(matrix: Array, *, least: float = 0.0, gap: float = _NEARLY_ORTHONORMAL) -> Array | None:
    """An orthonormal basis of the columns, (d, p), or None where they are nearly dependent, or not above `least` in size."""
    gram = _gram(matrix)
    if gram is None:
        return None
    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return None
    diagonal = np.diag(lower)
    if diagonal.min() < max(least, _WELL_CONDITIONED * diagonal.max()):
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


def _gram(matrix: Array) -> Array | None:
    """`matrix`.T @ `matrix`, or None where squares overflow, underflow or are NaN; the trace shows all three."""
    with np.errstate(over="ignore", invalid="ignore"):
        gram = tall_product(matrix, matrix)
    largest = float(np.trace(gram))
    return gram if 1e-200 < largest < 1e200 else None


def complement(matrix: Array, basis: Array, *, within: Array | None = None) -> Array:
    """An orthonormal basis, (d, q), of the part of the span of `matrix`, (d, p), outside that of `basis`, (d, k).

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
    fresh = (
        _cholesky_qr_twice(residual, least=_PLENTY * floor, gap=_PLENTY_ORTHONORMAL) if _tall(residual, room) else None
    )
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
        values, vectors = eigh(
            working, subset_by_index=[dim - rank, dim - 1], driver="evr", overwrite_a=True, check_finite=False
        )
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


def spectral_norm(matrix: Array) -> float:
    """The largest singular value of `matrix`, (d, p), through its p x p Gram matrix, rounded up by 1e-14.

    >>> round(spectral_norm(np.array([[3.0, 0.0], [4.0, 0.0]])), 9)
    5.0
    """
    gram, unit = _gram(matrix), 1.0
    if gram is None:
        # Squares of these entries are not safe, so a scaled copy is worth it, unless all are zero or some are not finite.
        unit = float(np.abs(matrix).max(initial=0.0))
        if unit == 0.0 or not np.isfinite(unit):
            return unit
        gram = (matrix / unit).T @ (matrix / unit)
    # Rounded up, because checks of a basis rest on it: a norm that is too small would let noise be too small.
    return unit * float(np.sqrt(max(np.linalg.eigvalsh(gram)[-1], 0.0))) * (1 + 1e-14)


def vector_norm(vector: Array) -> float:
    """The Euclidean norm, added up in an order that the length decides: BLAS would wake a thread, and add in two orders.

    >>> vector_norm(np.array([3.0, 4.0]))
    5.0
    """
    return math.sqrt(float(np.add.reduce(np.square(vector))))
