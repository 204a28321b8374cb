"""What the core needs of data: `Rows`, a shape and blocks of raw rows; and `RowSum`, a sum over rows that can travel to them.

Whatever is released is a sum over rows, so the sum goes to where the rows are (`total_of`), and only its result comes back. Noise
is no part of a work: it stays with the party that releases. Blocks are raw. `Domain` clips them inside the work, before
anything else is computed. Storages of rows are in `eigenveil.data`; sparse matrices are scipy's, which this module does not
load.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeGuard, TypeVar, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.threads import Array, shared_work, side_by_side
from eigenveil.errors import require

__all__ = [
    "Block",
    "Progress",
    "RemoteRows",
    "RowSum",
    "Rows",
    "SumWorker",
    "added_up",
    "block_size",
    "csr_piece",
    "ignore_float_errors",
    "innermost",
    "is_remote",
    "is_sparse",
    "lengths",
    "require_real",
    "sparse_times",
    "total_of",
    "unwrapped",
]

# A block of two million numbers is large enough for fast products and small enough not to count as a copy of the data.
_BLOCK_NUMBERS = 2_000_000
# Stored entries of a sparse block: fewer, because each is used several times and has an index.
_BLOCK_STORED = 500_000
# The share of entries that sparse rows are taken to store if they do not say: few sparse tables store more.
_DENSITY = 0.05


@final
@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some rows of the data, (b, d), and how much each one counts (`weights`, (b,); None means one each).

    `values` is an array of any real dtype, or a sparse matrix in CSR form.
    """

    values: Any
    weights: Array | None = None

    @property
    def sparse(self) -> bool:
        """Whether `values` is a sparse matrix."""
        return is_sparse(self.values)

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def piece(self, start: int, size: int) -> "Block":
        """At most `size` of the rows, from `start` on, as a view."""
        weights = None if self.weights is None else self.weights[start : start + size]
        return Block(self.values[start : start + size], weights)


@runtime_checkable
class Rows(Protocol):
    """Rows that can be read any number of times, in blocks."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, which may be private, and of columns, which is public."""
        ...

    @property
    def sparse(self) -> bool:
        """Whether blocks are sparse, so that no caller changes zeros."""
        ...

    def blocks(self, size: int) -> Iterator[Block]:
        """The rows in order, at most `size` at a time. Several blocks are in use at once: none may reuse another's memory."""
        ...


Progress: TypeAlias = Callable[[int], None]
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")
# The widest entries, in bytes, that convert to float64 without a warning.
_WIDEST = 8


def ignore_float_errors(act: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """`act` without numpy's warnings or errors about overflow and the like, whatever the caller's settings are.

    A warning or an error would reveal something about the row that caused it. Results do not depend on it: code that needs a
    finite number checks the number.

    >>> with np.errstate(over="raise"):
    ...     float(ignore_float_errors(np.square)(1e300))
    inf
    """

    @wraps(act)
    def quiet(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        with np.errstate(all="ignore"):
            return act(*args, **kwargs)

    return quiet


def require_real(dtype: Any, name: str) -> None:
    """Refuse dtypes other than real numbers that fit into float64. It looks at the dtype only, which is public."""
    require(dtype.kind in "biuf", f"{name} must hold real numbers, got dtype {dtype}")
    require(
        dtype.itemsize <= _WIDEST,
        f"{name} has dtype {dtype}, which is wider than float64: convert it first, with astype('float64')",
    )


def block_size(rows: Rows) -> int:
    """How many rows a block should have: many for sparse rows, few for wide ones.

    Sparse rows may state their `density`, the share of entries that they store, as `SparseRows` do.
    """
    if rows.sparse:
        # Only the innermost rows know how many entries they store. Rows of another class need not say.
        density = getattr(innermost(rows), "density", _DENSITY)
        return max(64, min(1 << 14, int(_BLOCK_STORED / max(1.0, density * rows.shape[1]))))
    return max(64, min(_BLOCK_NUMBERS // rows.shape[1], 1 << 16))


def innermost(rows: Any) -> Any:
    """The rows inside all wrappers such as `NamedRows`."""
    while hasattr(rows, "inner"):
        rows = rows.inner
    return rows


def _ours(rows: Any) -> bool:
    """Whether these are a wrapper of our own, whose class says `wraps_rows`: its `seen` and its `weights` are believed."""
    return getattr(type(rows), "wraps_rows", False) is True


def lengths(rows: Rows) -> Iterator[tuple[int, Array | None]]:
    """How many rows there are and how much each of them counts, (count, weights): block by block, or all at once.

    Rows whose class is `unweighted` have no weights in their blocks. They are not read: a file says how many rows it has.
    """
    inner: Any = rows
    watchers: list[Progress] = []
    weights: Array | None = None
    # Only wrappers of our own: a class from outside may change how much its rows count.
    while _ours(inner):
        if hasattr(inner, "progress"):
            watchers.append(inner.progress)
        if hasattr(inner, "weights") and weights is None:
            weights = inner.weights
        inner = inner.inner
    if not getattr(inner, "unweighted", False):
        yield from ((len(block), block.weights) for block in rows.blocks(block_size(rows)))
        return
    count, size = rows.shape[0], block_size(rows)
    # Weights in pieces as short as a block: callers add up whole numbers, which a longer one could overflow.
    sizes = [count] if weights is None else [min(size, count - start) for start in range(0, count, size)]
    for at, length in enumerate(sizes):
        yield length, None if weights is None else weights[at * size : at * size + length]
        for watcher in watchers:
            watcher(length)


_Sums = TypeVar("_Sums")


class RowSum(Protocol[_Sums]):
    """A sum over rows, described by public numbers alone: small, frozen and picklable, so that it can travel to the rows."""

    __slots__ = ()

    def of(self, rows: Rows) -> _Sums:
        """The sum over rows that are here: private. Where privacy is claimed it consists of whole numbers, and is exact."""
        ...

    def joined(self, left: _Sums, right: _Sums) -> _Sums:
        """The sum over the rows of both, those of `left` first. It may reuse the memory of either."""
        total: Any = left
        total += right
        made: _Sums = total
        return made


@runtime_checkable
class RemoteRows(Rows, Protocol):
    """Rows that are not in this process. They work out sums where they are, and are never copied here.

    They check their own values to be finite real numbers, there, and their errors and logs show no value. Rows weighted by
    person carry the weights along with the pieces.
    """

    @property
    def counts_people(self) -> bool:
        """Whether rows are weighted so that a person counts once, as `by_person` makes them."""
        ...

    def total(self, work: RowSum[_Sums], *, progress: Progress | None = None) -> _Sums:
        """`work` over all rows. `progress` is told how many rows were just done, for a display where the data is."""
        ...

    def by_person(self, person: Any) -> "RemoteRows":
        """The same rows, weighted so that a person with several of them, in whichever pieces, counts once."""
        ...


@ignore_float_errors
def total_of(rows: Rows, work: RowSum[_Sums]) -> _Sums:
    """The sum that `work` describes over all `rows`, worked out where they are, and without a word of numpy about any row."""
    inner, watchers = unwrapped(rows)
    if not _elsewhere(inner):
        return work.of(rows)

    def advance(count: int) -> None:
        for watcher in watchers:
            watcher(count)

    return inner.total(work, progress=advance if watchers else None)


def is_remote(rows: Rows) -> bool:
    """Whether these rows, or those inside them, are not in this process."""
    return _elsewhere(unwrapped(rows)[0])


def _elsewhere(rows: Any) -> TypeGuard[RemoteRows]:
    # The first question is cheap, and nearly all rows are here. The second takes longer than the sum over a small table.
    return hasattr(rows, "total") and isinstance(rows, RemoteRows)


def unwrapped(rows: Rows) -> tuple[Any, list[Progress]]:
    """The innermost rows, and those who watch. Names change no sum, and rows elsewhere check their values themselves."""
    inner: Any = rows
    watchers, weighted = [], False
    while hasattr(inner, "inner"):
        if _ours(inner):
            watchers += [inner.progress] if hasattr(inner, "progress") else []
            weighted = weighted or hasattr(inner, "weights")
        inner = inner.inner
    # Weights of rows that are elsewhere would stay here, and each row would count as a person.
    require(not (weighted and _elsewhere(inner)), "rows that are elsewhere must be weighted there: use their own by_person")
    return inner, watchers


# Numbers of a product that are computed at a time, so that they are still in the cache when they are used. The second number is
# how many multiplications make a second thread worthwhile.
_PIECE, _WORTH_A_THREAD = 1 << 17, 1 << 22


def is_sparse(value: Any) -> bool:
    """Whether this is a sparse matrix or array of scipy."""
    # None can exist before scipy.sparse is loaded, so the check need not load it.
    loaded = sys.modules.get("scipy.sparse")
    return loaded is not None and bool(loaded.issparse(value))


def sparse_times(matrix: Any, right: NDArray[Any], take: Callable[[slice, NDArray[Any]], None]) -> None:
    """Pass the product of a CSR matrix, (m, d), and `right`, (d, p), to `take`, some rows at a time, in any order and thread.

    `take` gets a slice of the rows and the product there, which it may change. Each row is added up by itself, in the order in
    which its entries are stored: other rows do not affect it, to the last bit.
    """
    count, size = matrix.shape[0], max(1, _PIECE // max(right.shape[1], 1))
    pieces = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    max_threads = 2 if matrix.nnz * right.shape[1] >= _WORTH_A_THREAD else 1
    side_by_side(pieces, lambda piece: take(piece, csr_piece(matrix, piece) @ right), max_threads=max_threads)


def csr_piece(matrix: Any, rows: slice) -> Any:
    """The rows from `rows.start` up to `rows.stop` of a CSR matrix, as a CSR matrix that shares its data."""
    import scipy.sparse as sp

    low, high = matrix.indptr[rows.start], matrix.indptr[rows.stop]
    # Attributes are set one by one, because the constructor copies slices of much larger arrays.
    piece = sp.csr_array((rows.stop - rows.start, matrix.shape[1]), dtype=matrix.dtype)
    piece.data, piece.indices = matrix.data[low:high], matrix.indices[low:high]
    # The one array that is not shared: row ends are counted from the first row of the piece.
    piece.indptr = matrix.indptr[rows.start : rows.stop + 1] - low
    return piece


# Up to this dimension two workers with a matrix each are faster than one with twice the BLAS threads.
_TWO_WORKERS = 2048


class SumWorker(Protocol):
    """One thread's share of a sum over rows. Changes in place."""

    def take(self, block: Block) -> None:
        """Add the rows of a block."""

    def and_other(self, other: Any) -> None:
        """Add the sum of another worker."""


_AnyWorker = TypeVar("_AnyWorker", bound=SumWorker)


def added_up(rows: Rows, make: Callable[[], _AnyWorker], *, dim: int = 0) -> _AnyWorker:
    """A worker that has taken all blocks of `rows`: one for sparse rows or a single block, otherwise the sum of two.

    A worker with a (dim, dim) matrix passes `dim`. Two of them need two sums and two products: four matrices, the most memory
    that is allowed.
    """
    size = block_size(rows)
    several = not rows.sparse and rows.shape[0] > size and dim <= _TWO_WORKERS
    workers = [make() for _ in range(2 if several else 1)]
    shared_work(rows.blocks(size), workers=workers, take=lambda worker, block: worker.take(block))
    # Always in this order, so that floating-point sums have the same bits on every run.
    for other in workers[1:]:
        workers[0].and_other(other)
    return workers[0]
