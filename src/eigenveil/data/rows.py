"""What the core asks of data: `Rows`, a shape and a sequence of blocks, each block read as it is needed.

Every storage (an array, a sparse matrix, an Arrow table, a Parquet file) becomes `Rows` once, at the edge; nothing
further in knows where rows come from. Blocks are raw rows: who takes them must bound them (`eigenveil.privacy.Domain`).
`Symmetric` stands in for rows that a site has only the sum of products of.
"""

import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NoReturn, ParamSpec, Protocol, TypeAlias, TypeVar, final, runtime_checkable

import numpy as np
import scipy.sparse as sp

from eigenveil.data.people import identifiers
from eigenveil.errors import require, require_param
from eigenveil.linalg import Array
from eigenveil.linalg.sparse import csr_piece

__all__ = [
    "Block",
    "CheckedRows",
    "DenseRows",
    "Rows",
    "SparseRows",
    "Symmetric",
    "WatchedRows",
    "WeightedRows",
    "block_size",
    "counts_people",
    "in_silence",
    "require_real",
    "require_weights",
]

# A block of two million numbers is long enough for a product to pay and short enough not to count as a copy of the data.
_BLOCK_NUMBERS = 2_000_000
# Stored entries of a sparse block: each is handled several times over, with its index.
_BLOCK_STORED = 500_000
# A symmetric matrix may differ from its transpose by this much of its largest entry, and have no entry beyond the second.
_ROUNDING, _LARGEST = 1e-6, 1e150


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
        return bool(sp.issparse(self.values))

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
        """Whether blocks are sparse, so that nobody plans on changing zeros."""
        ...

    def blocks(self, size: int) -> Iterator[Block]:
        """The rows in order, at most `size` at a time. Several blocks are held at once: none may reuse another's memory."""
        ...


Progress: TypeAlias = Callable[[int], None]
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")
# The widest entries, in bytes, that fit in a float64 without a word about it.
_WIDEST = 8


def in_silence(act: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """`act`, without a word of numpy's about overflow and the like, whatever the caller has asked numpy to do about it.

    A warning, or an error in its place, would tell of the row that it came from. What is computed does not depend on it: who must
    not go on with a number that is not finite looks at the number.

    >>> with np.errstate(over="raise"):
    ...     float(in_silence(np.square)(1e300))
    inf
    """

    @wraps(act)
    def quiet(*given: _Given.args, **more: _Given.kwargs) -> _Made:
        with np.errstate(all="ignore"):
            return act(*given, **more)

    return quiet


def require_real(dtype: Any, name: str) -> None:
    """Refuse what is not an array of real numbers that float64 can hold, by its type alone, which is public.

    >>> require_real(np.dtype(complex), "X")
    Traceback (most recent call last):
    ...
    ValueError: X must hold real numbers, got dtype complex128
    """
    require(dtype.kind in "biuf", f"{name} must hold real numbers, got dtype {dtype}")
    require(
        dtype.itemsize <= _WIDEST,
        f"{name} has dtype {dtype}, which is wider than float64: convert it first, with astype('float64')",
    )


def block_size(rows: Rows) -> int:
    """How many rows a block of these should have: many for sparse rows, few for wide ones.

    >>> block_size(DenseRows(np.zeros((3, 1000))))
    2000
    """
    if rows.sparse:
        inner: Any = rows
        while not isinstance(inner, SparseRows) and hasattr(inner, "inner"):
            inner = inner.inner
        stored = inner.values.nnz / max(1, rows.shape[0]) if isinstance(inner, SparseRows) else 1.0
        return max(64, min(1 << 14, int(_BLOCK_STORED / max(1.0, stored))))
    return max(64, min(_BLOCK_NUMBERS // rows.shape[1], 1 << 16))


@final
@dataclass(frozen=True, slots=True, eq=False)
class DenseRows:
    """Rows in a two-dimensional array, or a memory map of one. Blocks are views: nothing is copied.

    >>> [len(block) for block in DenseRows(np.zeros((5, 2))).blocks(2)]
    [2, 2, 1]
    """

    values: Any

    def __post_init__(self) -> None:
        require(self.values.ndim == 2, f"rows must have two dimensions, got shape {self.values.shape}")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.values.shape[0]), int(self.values.shape[1])

    @property
    def sparse(self) -> bool:
        """Never."""
        return False

    def blocks(self, size: int) -> Iterator[Block]:
        """Views of `size` rows."""
        for start in range(0, len(self.values), size):
            yield Block(self.values[start : start + size])


@final
@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """Rows in a scipy sparse matrix in CSR form. They stay sparse throughout.

    An entry that is stored in several parts is added up first, in a copy: the length of a row is not to be had from parts.

    >>> SparseRows(sp.csr_array(np.eye(3))).shape
    (3, 3)
    """

    values: Any

    def __post_init__(self) -> None:
        require(self.values.format == "csr", f"sparse rows must be in CSR form, got {self.values.format}")
        if not self.values.has_canonical_format:
            whole = self.values.copy()
            whole.sum_duplicates()
            object.__setattr__(self, "values", whole)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.values.shape[0]), int(self.values.shape[1])

    @property
    def sparse(self) -> bool:
        """Always."""
        return True

    def blocks(self, size: int) -> Iterator[Block]:
        """CSR matrices of `size` rows that share the data of the whole."""
        matrix = self.values
        for start in range(0, matrix.shape[0], size):
            yield Block(csr_piece(matrix, slice(start, min(start + size, matrix.shape[0]))))


def require_weights(weights: Array) -> None:
    """Refuse weights outside (0, 1]: a heavier row would count as more than one person.

    >>> require_weights(np.array([0.5, 1.0]))
    """
    require(bool(((weights > 0) & (weights <= 1)).all()), "every weight must lie in (0, 1]")


@final
@dataclass(frozen=True, slots=True, eq=False)
class WeightedRows:
    """Rows that count unequally: those of one person share a weight of one between them.

    `weights`, (n,), are 1 / m for each of the m rows of a person.

    >>> WeightedRows.by_person(DenseRows(np.zeros((3, 1))), np.array(["ann", "bob", "ann"])).weights.tolist()
    [0.5, 1.0, 0.5]
    """

    inner: Rows
    weights: Array

    def __post_init__(self) -> None:
        count = self.inner.shape[0]
        require(
            self.weights.shape == (count,),
            f"there must be one weight per row, got shape {self.weights.shape}",
        )
        require_weights(self.weights)

    @classmethod
    def by_person(cls, rows: Rows, person: Any) -> "WeightedRows":
        """Weights from an identifier for each row, checked by `eigenveil.data.people.identifiers`: none names nobody."""
        ids = identifiers(person)
        require(len(ids) == rows.shape[0], "person must name as many people as there are rows")
        try:
            _, index, counts = np.unique(ids, return_inverse=True, return_counts=True)
        except TypeError:
            raise ValueError("person must hold identifiers of one type that can be sorted") from None
        return cls(rows, 1.0 / counts[index].astype(np.float64))

    @property
    def shape(self) -> tuple[int, int]:
        """As the rows behind."""
        return self.inner.shape

    @property
    def sparse(self) -> bool:
        """As the rows behind."""
        return self.inner.sparse

    def blocks(self, size: int) -> Iterator[Block]:
        """The blocks of the rows behind, weighted."""
        start = 0
        for block in self.inner.blocks(size):
            yield Block(block.values, self.weights[start : start + len(block)])
            start += len(block)


def counts_people(rows: Any) -> bool:
    """Whether these rows, or the ones behind them, are weighted so that a person counts once.

    >>> counts_people(WatchedRows(WeightedRows(DenseRows(np.zeros((1, 1))), np.ones(1)), print))
    True
    """
    while not isinstance(rows, WeightedRows):
        rows = getattr(rows, "inner", None)
        if rows is None:
            return False
    return True


@final
@dataclass(frozen=True, slots=True, eq=False)
class Symmetric:
    """A site's own symmetric matrix A, (d, d), in place of a table: what its people add up to (PPM's A^(i)).

    PCA is of the sum over sites, so A is in the units of a Gram matrix: not divided by `people`, how many it is of. Rows
    that should lie around a public point are to be moved there before they are multiplied. A may have negative eigenvalues;
    the sum over sites should have none that are large, or "leading" means one thing to one method and another to the next.

    **Privacy rests on what the holder vouches for**: that a person is in A as a positive semi-definite P with
    trace P <= B^2, where B is the `row_bound`. One row x with ||x|| <= B is (P = x x^T), and so is an average of such
    matrices over a person's rows. Add/remove changes A by P and `people` by one, zero-out changes A by P alone, and
    replace-one puts another such Q in the place of P. In a sum people cannot be told apart, so nobody here can check this or
    see to it: a table's longer rows are scaled down, a matrix is taken as it is. With a public `scale` s it must
    hold for P_ij / (s_i s_j).

    Proof that the bounds of `eigenveil.privacy.sensitivity` hold as they are. With eigenvalues p_i >= 0 of P,
    ||P||_F^2 = sum p_i^2 <= (sum p_i)^2 = (trace P)^2 <= B^4. As <P, Q> = ||P^(1/2) Q^(1/2)||_F^2 >= 0,
    ||Q - P||_F^2 <= ||P||_F^2 + ||Q||_F^2 <= 2 B^4. For C = P or Q - P and any basis Z, ||C Z||_F <= ||C||_F ||Z||_2.
    Traces of persons lie in [0, B^2], so two of them differ by at most B^2. Nothing is asked of A itself; what is kept of
    it, (A + A^T) / 2, changes just as A does.

    >>> Symmetric(np.array([[2.0, 1.0], [1.0, 3.0]]), people=4).shape
    (4, 2)
    """

    matrix: Any
    people: int = field(kw_only=True)

    def __post_init__(self) -> None:
        people: Any = self.people
        whole = not isinstance(people, bool) and isinstance(people, numbers.Integral) and int(people) >= 0
        # Not what was given instead: the number of people may be private.
        require(whole, "people must be a whole number of at least 0: how many people the matrix is of")
        object.__setattr__(self, "people", int(people))
        object.__setattr__(self, "matrix", _symmetric(self.matrix))

    @property
    def shape(self) -> tuple[int, int]:
        """People, as the rows that it stands in for, and columns."""
        return self.people, len(self.matrix)

    @property
    def sparse(self) -> bool:
        """Never."""
        return False

    def blocks(self, size: int) -> NoReturn:
        """None: always a `ValueError`."""
        raise ValueError("a Symmetric is a sum over people and has no rows to read")

    def __repr__(self) -> str:
        # Neither the matrix nor the number of people need be public.
        return f"Symmetric(dim={len(self.matrix)})"


def _symmetric(matrix: Any) -> Array:
    """A read-only copy of a real, finite matrix, exactly symmetric, if that was so up to rounding. No error shows an entry."""
    require(
        not sp.issparse(matrix) and not isinstance(matrix, np.ma.MaskedArray),
        f"matrix must be a plain array with every entry in it, got {type(matrix).__name__}",
    )
    given = np.asarray(matrix)
    require(given.ndim == 2, f"matrix must be square, got {given.ndim} dimensions")
    require(given.shape[0] == given.shape[1] > 0, f"matrix must be square, got shape {given.shape}")
    require_real(given.dtype, "matrix")
    values = given.astype(np.float64)
    # NaN is no smaller than anything.
    require(bool((np.abs(values) <= _LARGEST).all()), f"matrix must be finite, with no entry beyond {_LARGEST:g}")
    apart = float(np.abs(values - values.T).max())
    require(
        apart <= _ROUNDING * float(np.abs(values).max()),
        "matrix must be symmetric; it differs from its transpose by more than rounding",
    )
    kept: Array = (values + values.T) / 2
    kept.flags.writeable = False
    return kept


@final
@dataclass(frozen=True, slots=True, eq=False)
class WatchedRows:
    """Rows that tell `seen` how many were just read: for a progress display beside the data, never for a log.

    >>> counts = []
    >>> list(WatchedRows(DenseRows(np.zeros((3, 1))), counts.append).blocks(2)) and counts
    [2, 1]
    """

    inner: Rows
    seen: Progress

    @property
    def shape(self) -> tuple[int, int]:
        """As the rows behind."""
        return self.inner.shape

    @property
    def sparse(self) -> bool:
        """As the rows behind."""
        return self.inner.sparse

    def blocks(self, size: int) -> Iterator[Block]:
        """The blocks of the rows behind."""
        for block in self.inner.blocks(size):
            yield block
            self.seen(len(block))


@final
@dataclass(frozen=True, slots=True, eq=False)
class CheckedRows:
    """Rows that come in blocks from elsewhere, each checked to be finite real numbers as it passes.

    What others make of `Rows` need not keep to the letter of it: sparse blocks are brought into canonical form, since the length
    of a row is not to be had from entries in parts, and blocks of too many rows are cut.
    """

    inner: Rows

    @property
    def shape(self) -> tuple[int, int]:
        """As the rows behind."""
        return self.inner.shape

    @property
    def sparse(self) -> bool:
        """As the rows behind."""
        return self.inner.sparse

    def blocks(self, size: int) -> Iterator[Block]:
        """The blocks of the rows behind, or a `ValueError` at the first with anything but finite real numbers."""
        for block in self.inner.blocks(size):
            _require_finite(block)
            if block.sparse:
                block = Block(SparseRows(sp.csr_array(block.values)).values, block.weights)
            if len(block) <= size:
                yield block
            else:
                yield from (block.piece(start, size) for start in range(0, len(block), size))


@in_silence
def _require_finite(block: Block) -> None:
    values = block.values.data if block.sparse else block.values
    require_real(values.dtype, "X")
    if values.dtype.kind == "f":
        finite = bool(np.isfinite(values).all())
        require_param(finite, "{X} contains NaN or infinity; fill or drop such rows first")
    if block.weights is not None:
        require_weights(block.weights)
