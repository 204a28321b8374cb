"""Storages of rows, and what wraps them. Each is a `Rows`, which is all that the core asks of data (`eigenveil.core.rows`).

Every storage (an array, a sparse matrix, an Arrow table, a Parquet file) becomes `Rows` once, at the edge. The code inside does
not know where rows come from. Blocks are raw rows: `eigenveil.core.domain.Domain` must clip them before anything is computed.
A site that has only the sum of products of its rows uses `Symmetric` instead.
"""

import numbers
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, final

import numpy as np

from eigenveil.core.rows import (
    Block,
    Progress,
    Rows,
    csr_piece,
    ignore_float_errors,
    is_remote,
    is_sparse,
    require_real,
    unwrapped,
)
from eigenveil.data.people import identifiers
from eigenveil.errors import require, require_param
from eigenveil.linalg import Array

__all__ = [
    "FILL_PUBLICLY",
    "ArrayRows",
    "CheckedRows",
    "DenseRows",
    "NamedRows",
    "NotCopied",
    "SparseRows",
    "Symmetric",
    "WatchedRows",
    "WeightedRows",
    "WrappedRows",
    "by_person",
    "counts_people",
    "person_weights",
    "refuse_to_copy",
    "require_weights",
]

# What to do about missing values. A mean or a median of the rows would itself be a release.
FILL_PUBLICLY = (
    "Give a fit a rule for missing values, such as {missing=counts}. Or fill them with numbers that were fixed "
    "without looking at these rows. With privacy, never fill in a mean of these rows, as imputers do: it would leak them"
)
# A symmetric matrix may differ from its transpose by the first number times its largest entry. No entry may exceed the second.
_ROUNDING, _LARGEST = 1e-6, 1e150


class ArrayRows:
    """Rows in an array or a matrix, each of which counts as one."""

    __slots__ = ()
    unweighted: ClassVar = True
    values: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.values.shape[0]), int(self.values.shape[1])


class WrappedRows:
    """What is done to blocks of `inner` rows. The core believes what classes of our own say of them (`core.rows.lengths`)."""

    __slots__ = ()
    wraps_rows: ClassVar = True
    inner: Rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.inner.shape

    @property
    def sparse(self) -> bool:
        """Whether the inner rows are."""
        return self.inner.sparse

    def blocks(self, size: int) -> Iterator[Block]:
        """The blocks of the inner rows."""
        return self.inner.blocks(size)


@final
@dataclass(frozen=True, slots=True, eq=False)
class DenseRows(ArrayRows):
    """Rows in a two-dimensional array, or a memory map of one. Blocks are views: nothing is copied.

    >>> [len(block) for block in DenseRows(np.zeros((5, 2))).blocks(2)]
    [2, 2, 1]
    """

    sparse: ClassVar = False
    values: Any

    def __post_init__(self) -> None:
        require(self.values.ndim == 2, f"rows must have two dimensions, got shape {self.values.shape}")

    def blocks(self, size: int) -> Iterator[Block]:
        for start in range(0, len(self.values), size):
            yield Block(self.values[start : start + size])


@final
@dataclass(frozen=True, slots=True, eq=False)
class SparseRows(ArrayRows):
    """Rows in a scipy sparse matrix in CSR form. They stay sparse throughout.

    If an entry is stored in several parts, they are added up first, in a copy: clipping needs the norm of the whole row.

    >>> import scipy.sparse as sp
    >>> SparseRows(sp.csr_array(np.eye(3))).shape
    (3, 3)
    """

    sparse: ClassVar = True
    values: Any

    def __post_init__(self) -> None:
        require(self.values.format == "csr", f"sparse rows must be in CSR form, got {self.values.format}")
        if not self.values.has_canonical_format:
            whole = self.values.copy()
            whole.sum_duplicates()
            object.__setattr__(self, "values", whole)

    @property
    def density(self) -> float:
        """The share of entries that are stored."""
        return float(self.values.nnz) / max(1, self.shape[0] * self.shape[1])

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


def person_weights(person: Any, count: int) -> Array:
    """One weight per row, (count,): 1 / m for each of the m rows of a person. Identifiers are checked by `identifiers`.

    >>> person_weights(["ann", "bob", "ann"], 3).tolist()
    [0.5, 1.0, 0.5]
    """
    ids = identifiers(person)
    require(len(ids) == count, "person must have one identifier per row")
    try:
        _, index, counts = np.unique(ids, return_inverse=True, return_counts=True)
    except TypeError:
        raise ValueError("person must have identifiers of one type that can be sorted") from None
    # A person's rows are averaged, and the sensitivities of one row hold, however many rows the person has
    # (docs/decisions/0004).
    return np.asarray(1.0 / counts[index].astype(np.float64))


@final
@dataclass(frozen=True, slots=True, eq=False)
class WeightedRows(WrappedRows):
    """Rows that count unequally: the rows of one person share a weight of one.

    >>> WeightedRows.by_person(DenseRows(np.zeros((3, 1))), np.array(["ann", "bob", "ann"])).weights.tolist()
    [0.5, 1.0, 0.5]
    """

    inner: Rows
    weights: Array

    def __post_init__(self) -> None:
        count = self.inner.shape[0]
        require(self.weights.shape == (count,), f"there must be one weight per row, got shape {self.weights.shape}")
        require_weights(self.weights)

    @classmethod
    def by_person(cls, rows: Rows, person: Any) -> "WeightedRows":
        """Weights from an identifier for each row, checked by `eigenveil.data.people.identifiers`."""
        return cls(rows, person_weights(person, rows.shape[0]))

    def blocks(self, size: int) -> Iterator[Block]:
        start = 0
        for block in self.inner.blocks(size):
            # By the length that the block has, which may be less than `size`. A weight in the wrong place would raise
            # no error, and a person could count more than once.
            yield Block(block.values, self.weights[start : start + len(block)])
            start += len(block)


def counts_people(rows: Any) -> bool:
    """Whether these rows, or the rows inside them, are weighted so that a person counts once.

    >>> counts_people(WatchedRows(WeightedRows(DenseRows(np.zeros((1, 1))), np.ones(1)), print))
    True
    """
    while not isinstance(rows, WeightedRows):
        if not hasattr(rows, "inner"):
            # Rows that are elsewhere say so themselves.
            return bool(getattr(rows, "counts_people", False))
        rows = rows.inner
    return True


@final
@dataclass(frozen=True, slots=True, eq=False)
class NamedRows(WrappedRows):
    """Rows of a file with the names of their columns, and the column of the person.

    The columns were chosen, and the rows weighted by person, when the file was read. An estimator learns the names, and takes
    its own `person` for that column only if it is the same one.

    >>> NamedRows(DenseRows(np.zeros((3, 2))), ("age", "pulse")).shape
    (3, 2)
    """

    inner: Rows
    names: tuple[str, ...] | None
    person: str | None = None

    def __post_init__(self) -> None:
        require(
            self.names is None or len(self.names) == self.inner.shape[1],
            f"there must be one name for each of the {self.inner.shape[1]} columns",
        )
        require(self.person is None or counts_people(self.inner), "rows of people must be weighted by person")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Symmetric:
    """A site's own symmetric matrix A, (d, d), in place of a table: the sum over its people (PPM's A^(i)).

    PCA is of the sum over sites, so A is in the units of a Gram matrix and not divided by `people`, the number of people in it.
    To center rows on a public point, subtract it before multiplying them. A may have negative eigenvalues. The sum over sites
    should have no large ones, because methods differ in what they call "leading" then.

    **Privacy rests on what the site vouches for**: a person is in A as a positive semi-definite P with trace P <= B^2, where B is
    the `row_bound`. This holds for one row x with ||x|| <= B (P = x x^T), and for an average of such matrices over a person's
    rows. Add/remove changes A by P and `people` by one. Zero-out changes A by P only. Replace-one puts another such Q in the
    place of P. People cannot be told apart in a sum, so this program can neither check nor enforce the bound. Rows of a table
    are clipped, but a matrix is used as it is. With a public `scale` s the bound must hold for P_ij / (s_i s_j).

    Proof that the bounds of `eigenveil.core.unit` hold unchanged. With eigenvalues p_i >= 0 of P,
    ||P||_F^2 = sum p_i^2 <= (sum p_i)^2 = (trace P)^2 <= B^4. As <P, Q> = ||P^(1/2) Q^(1/2)||_F^2 >= 0,
    ||Q - P||_F^2 <= ||P||_F^2 + ||Q||_F^2 <= 2 B^4. For C = P or Q - P and any basis Z, ||C Z||_F <= ||C||_F ||Z||_2.
    Traces of persons lie in [0, B^2], so two of them differ by at most B^2. Nothing is required of A itself. The part we use,
    (A + A^T) / 2, changes just as A does.

    >>> Symmetric(np.array([[2.0, 1.0], [1.0, 3.0]]), people=4).shape
    (4, 2)
    """

    sparse: ClassVar = False
    matrix: Any
    people: int = field(kw_only=True)

    def __post_init__(self) -> None:
        people: Any = self.people
        whole = not isinstance(people, bool) and isinstance(people, numbers.Integral) and int(people) >= 0
        # The error does not show the value: the number of people may be private.
        require(whole, "people must be a whole number of at least 0: the number of people in the matrix")
        object.__setattr__(self, "people", int(people))
        object.__setattr__(self, "matrix", _symmetric(self.matrix))

    @property
    def shape(self) -> tuple[int, int]:
        """The number of people, in place of rows, and of columns."""
        return self.people, len(self.matrix)

    def blocks(self, size: int) -> NoReturn:
        """Always a `ValueError`: there are no rows."""
        raise ValueError("a Symmetric is a sum over people and has no rows to read")

    def __repr__(self) -> str:
        # Not shown: the matrix is private, and the number of people may be.
        return f"Symmetric(dim={len(self.matrix)})"


def _symmetric(matrix: Any) -> Array:
    """A read-only, exactly symmetric copy of a real, finite matrix that is symmetric up to rounding. No error shows an entry."""
    require(
        # A Dask array would be computed and copied here.
        not (is_sparse(matrix) or isinstance(matrix, np.ma.MaskedArray) or hasattr(matrix, "__dask_graph__")),
        f"matrix must be a plain array with every entry in it, got {type(matrix).__name__}",
    )
    array = np.asarray(matrix)
    require(array.ndim == 2, f"matrix must be square, got {array.ndim} dimensions")
    require(array.shape[0] == array.shape[1] > 0, f"matrix must be square, got shape {array.shape}")
    require_real(array.dtype, "matrix")
    values = array.astype(np.float64)
    # NaN fails this comparison too.
    require(bool((np.abs(values) <= _LARGEST).all()), f"matrix must be finite, with no entry beyond {_LARGEST:g}")
    apart = float(np.abs(values - values.T).max())
    require(
        apart <= _ROUNDING * float(np.abs(values).max()),
        "matrix must be symmetric; it differs from its transpose by more than rounding",
    )
    # Exactly symmetric, like the noise: the difference of mirrored entries would otherwise be public without noise.
    symmetric: Array = (values + values.T) / 2
    symmetric.flags.writeable = False
    return symmetric


@final
@dataclass(frozen=True, slots=True, eq=False)
class WatchedRows(WrappedRows):
    """Rows that report to `progress` how many were just read: for a progress display where the data is, never for a log.

    >>> counts = []
    >>> list(WatchedRows(DenseRows(np.zeros((3, 1))), counts.append).blocks(2)) and counts
    [2, 1]
    """

    inner: Rows
    progress: Progress

    def blocks(self, size: int) -> Iterator[Block]:
        """The blocks of the inner rows."""
        for block in self.inner.blocks(size):
            # Reported once the caller asks for the next block, so that a display does not run ahead of the work.
            yield block
            self.progress(len(block))


@final
@dataclass(frozen=True, slots=True, eq=False)
class CheckedRows(WrappedRows):
    """Rows from a class outside this program; each block is checked to be finite real numbers when it is read.

    With `gaps`, entries may be missing, which is NaN. Infinite ones are refused all the same.

    Other implementations of `Rows` may differ in details. Sparse blocks are put into canonical form, because a norm cannot be
    computed from entries stored in parts. Blocks with too many rows are split.
    """

    inner: Rows
    gaps: bool = False

    def blocks(self, size: int) -> Iterator[Block]:
        """The blocks of the inner rows, or a `ValueError` at the first with anything but finite real numbers."""
        for block in self.inner.blocks(size):
            _require_finite(block, gaps=self.gaps)
            if block.sparse:
                import scipy.sparse as sp

                block = Block(SparseRows(sp.csr_array(block.values)).values, block.weights)
            if len(block) <= size:
                yield block
            else:
                yield from (block.piece(start, size) for start in range(0, len(block), size))


@ignore_float_errors
def _require_finite(block: Block, *, gaps: bool) -> None:
    values = block.values.data if block.sparse else block.values
    require_real(values.dtype, "X")
    if values.dtype.kind == "f":
        if gaps:
            require_param(not np.isinf(values).any(), "{X} contains infinity, which is no missing value")
        else:
            require_param(bool(np.isfinite(values).all()), f"{{X}} contains NaN or infinity. {FILL_PUBLICLY}")
    if block.weights is not None:
        require_weights(block.weights)


def by_person(rows: Rows, person: Any) -> Rows:
    """`rows` weighted where they are, so that each person counts once; `person` has an identifier for each row."""
    inner = unwrapped(rows)[0]
    return inner.by_person(person) if is_remote(inner) else WeightedRows.by_person(rows, person)


class NotCopied(ValueError):
    """A step needs rows that stay where they are."""


def refuse_to_copy(where: str) -> NoReturn:
    """The error of `RowsElsewhere.blocks`: `where` says where the rows are, such as "on a Dask cluster"."""
    raise NotCopied(
        f"the rows are {where} and are not copied to this process, but this step needs the rows themselves. Choose a method that "
        "only needs sums, such as covariance or power, or copy the rows into memory first"
    )
