"""`Interactions`: which user has which item, as a binary matrix that is checked once.

The entries are private, and no message here shows an entry, the number of users or how often anything occurs. The
number of items, the column names and the number type are public.
"""

import math
import numbers
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from eigenveil.core.rows import require_real
from eigenveil.data.columns import as_numbers, require_numbers
from eigenveil.data.frames import as_arrow, is_arrow_like
from eigenveil.data.people import require_ids
from eigenveil.errors import ColumnsError, join_names, require, require_param
from eigenveil.estimators.checks import is_real

__all__ = ["Interactions", "checked_interactions", "is_whole", "ones_at", "require_names_of_one_line"]

# Names are printed, sent and written to files, so each must fit on one line.
_LONGEST_NAME, _CONTROL = 500, re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Dense rows are converted to sparse ones this many numbers at a time, to save memory.
_BLOCK_NUMBERS = 1 << 22


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Interactions:
    """`matrix`, (n users, d items), a CSR array of ones in canonical form, and the names of users and items.

    Without names, users and items are numbered from 0. A user's name must identify a person
    (`eigenveil.data.people`); an item may have any name. Users without items and items without users are kept: the
    former add nothing to any sum, the latter are columns of zeros. The matrix is a copy and must not be changed.

    >>> plays = Interactions(np.array([[1, 0], [1, 1]]), users=("ann", "bob"), items=("jazz", "rock"))
    >>> plays.row("ann").toarray().tolist(), plays.columns(["rock"]).tolist()
    ([[1.0, 0.0]], [1])
    >>> plays
    Interactions(2 items)
    """

    matrix: sp.csr_array
    users: tuple[str, ...] | None = None
    items: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", checked_interactions(self.matrix, name="matrix"))
        for kind, names, count in (("users", self.users, self.matrix.shape[0]), ("items", self.items, self.matrix.shape[1])):
            if names is None:
                continue
            require(
                isinstance(names, tuple) and all(isinstance(name, str) for name in names),
                f"{kind} must be None or a tuple of names, each a string",
            )
            require(len(names) == count, f"{kind} must have one name for each {kind[:-1]} in the matrix")
            require(len(set(names)) == count, f"{kind} must have distinct names")
            require_names_of_one_line(names, kind)
        require_ids(self.users or (), what="users", who="user")

    def __repr__(self) -> str:
        # The default would put users' names and the number of entries into logs.
        return f"Interactions({self.matrix.shape[1]} items)"

    @classmethod
    def from_ratings(cls, ratings: Any, *, min_rating: float, missing: float | None = None) -> "Interactions":
        """Interactions where a rating is at least `min_rating`.

        In a sparse matrix every stored entry is a rating, zeros included. If a user rated an item several times, one rating is
        enough. In an array or a table every number is a rating, except `missing`, the code for "not rated" (such as 99 or nan).

        >>> Interactions.from_ratings(np.array([[5, 2, 99], [99, 99, 4]]), min_rating=3, missing=99).matrix.toarray()
        array([[1., 0., 0.],
               [0., 0., 1.]])
        """
        require_param(
            is_real(min_rating) and math.isfinite(min_rating),
            "{min_rating} must be a finite number, got {@given}",
            given=min_rating,
        )
        require_param(missing is None or is_real(missing), "{missing} must be None or a number, got {@given}", given=missing)
        require_param(
            missing is not None or min_rating > 0 or sp.issparse(ratings),
            "{missing} is required with {min_rating=}, because zeros would count as interactions. Pass the code for 'not rated'",
            min_rating=min_rating,
        )

        def reaches(values: Any) -> Any:
            # NaN equals nothing, not even itself.
            unrated = np.isnan(values) if missing is not None and math.isnan(missing) else values == missing
            require(
                bool((np.isfinite(values) | unrated).all()),
                "ratings have NaN, infinite or missing entries. If they mean 'not rated', pass that value as missing",
            )
            return (values >= min_rating) & ~unrated

        return cls(_binary(ratings, "ratings", reaches))

    def row(self, user: str | int) -> sp.csr_array:
        """The items of one user, (1, d). A string is a name, a whole number is a row, counted from 0.

        >>> Interactions(np.eye(3)).row(2).indices.tolist()
        [2]
        """
        if isinstance(user, str):
            require(self.users is not None, "the users have no names: pass a row number")
            require(user in (self.users or ()), f"no user is named {user!r}")
            index = (self.users or ()).index(user)
        else:
            require(is_whole(user), f"user must be a name or a row number, got {user!r}")
            index = int(user)
            require(0 <= index < self.matrix.shape[0], f"no user has number {index}: rows count from 0")
        return self.matrix[[index]]

    def columns(self, items: Sequence[str | int]) -> Any:
        """The columns of `items`, an integer array. Strings are names, whole numbers are columns, counted from 0.

        >>> Interactions(np.eye(2), items=("jazz", "rock")).columns(["rock", 0]).tolist()
        [1, 0]
        """
        require(not isinstance(items, str), "items must be a list of names, not a single string")
        positions = {} if self.items is None else {name: index for index, name in enumerate(self.items)}
        dim = self.matrix.shape[1]
        indices = []
        for item in items:
            if isinstance(item, str):
                require(self.items is not None, "the items have no names: pass column numbers")
                require(item in positions, f"no item is named {item!r}")
                indices.append(positions[item])
            else:
                require(is_whole(item), f"items must be names or column numbers, got {item!r}")
                require(0 <= item < dim, f"no item has number {item}: columns count from 0 to {dim - 1}")
                indices.append(int(item))
        return np.array(indices, dtype=np.intp)


def checked_interactions(R: Any, *, name: str = "R") -> sp.csr_array:
    """`R`, (n users, d items), as a CSR array of float64 ones in canonical form, or a `ValueError` that quotes no entry.

    `R` is a scipy sparse matrix of any format, an array, or a pandas, polars or pyarrow table with a column for each item. An
    entry is 1 where the user has the item and 0 elsewhere. A stored zero is no interaction. A 1 stored several times for the
    same user and item is one interaction, because one user must not count as more. `R` itself is not changed.

    >>> checked_interactions(sp.coo_array(([1, 1, 0], ([0, 0, 1], [2, 2, 1])), shape=(2, 3))).toarray()
    array([[0., 0., 1.],
           [0., 0., 0.]])
    """
    if isinstance(R, Interactions):
        return R.matrix

    def is_one(values: Any) -> Any:
        ones = values == 1
        if not bool((ones | (values == 0)).all()):
            require(bool(np.isfinite(values).all()), f"{name} must have no NaN, infinite or missing entries")
            raise ValueError(
                f"{name} must be binary: 1 where the user has the item and 0 elsewhere. "
                "Convert ratings with `Interactions.from_ratings(R, min_rating=...)`"
            )
        return ones

    return _binary(R, name, is_one)


def _binary(table: Any, name: str, is_one: Callable[[Any], Any]) -> sp.csr_array:
    """Ones where `is_one`, a function of arrays, is true: for stored entries of a sparse matrix, for all entries otherwise."""
    if hasattr(table, "iloc") and getattr(table, "ndim", 0) == 2:
        table = _from_pandas(table, name)
    if is_arrow_like(table):
        table = as_arrow(table)
        try:
            require_numbers(table.schema)
        except ColumnsError as error:
            raise ValueError(f"{name}: {error.happened}. Encode them as numbers or leave them out") from None
    else:
        require(
            sp.issparse(table) or isinstance(table, np.ndarray),
            f"{name} must be a sparse matrix, a two-dimensional array or a table, got {type(table).__name__}",
        )
        require(
            not isinstance(table, np.ma.MaskedArray),
            f"{name} is a masked array, and its hidden entries would be used. Fill them first",
        )
        require(table.ndim == 2, f"{name} must have two dimensions, users and items, got {table.ndim}")
        require_real(table.dtype, name)
    count, dim = table.shape
    require(dim > 0, f"{name} has no columns: it needs one for each item")
    if sp.issparse(table):
        entries = _entries(table, name)
        ones = is_one(entries.data)
        # Only stored entries are looked at, so the matrix is never made dense.
        return ones_at(entries.row[ones], entries.col[ones], table.shape)
    size = max(1, _BLOCK_NUMBERS // dim)
    # At least one piece, also for a table without users: `np.concatenate` needs one.
    parts = [np.nonzero(is_one(_piece(table, start, size))) for start in range(0, max(1, count), size)]
    rows = np.concatenate([index * size + rows for index, (rows, _) in enumerate(parts)])
    return ones_at(rows, np.concatenate([columns for _, columns in parts]), (count, dim))


def ones_at(rows: Any, columns: Any, shape: tuple[int, int]) -> sp.csr_array:
    """A canonical CSR array with a one at each place, however often it is given."""
    matrix = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    # Duplicates were added up. A repeated line must not make a user count for more.
    matrix.data[:] = 1.0
    return matrix


def _piece(table: Any, start: int, size: int) -> Any:
    """`size` rows of an array or an Arrow table as an array, with NaN where a value is missing."""
    if isinstance(table, np.ndarray):
        return np.asarray(table[start : start + size])
    return as_numbers(table.slice(start, size), gaps=True)


def _entries(matrix: Any, name: str) -> Any:
    """All stored entries of a sparse matrix as a COO matrix, with duplicates kept apart."""
    if not hasattr(matrix, "check_format"):
        return matrix.tocoo(copy=False)
    try:
        # The check modifies the matrix, so it runs on a copy of the object. Without it, compiled code would follow a
        # bad index out of bounds.
        whole = type(matrix)((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape, copy=False)
        whole.check_format(full_check=True)
    except ValueError:
        raise ValueError(f"{name} is a damaged sparse matrix: its indices do not fit its shape") from None
    return whole.tocoo(copy=False)


def _from_pandas(frame: Any, name: str) -> Any:
    """A pandas frame as an array, or as a sparse matrix if every column is sparse. Missing values become NaN."""
    bad = [f"{column} ({kind})" for column, kind in frame.dtypes.items() if kind.kind not in "biuf"]
    require(not bad, f"{name}: these columns are not numbers: {join_names(bad)}. Leave them out or code them as numbers")
    if frame.shape[1] and all(getattr(kind, "fill_value", None) == 0 for kind in frame.dtypes):
        return frame.sparse.to_coo()
    return frame.to_numpy(dtype=np.float64, na_value=np.nan)


def require_names_of_one_line(names: Sequence[str], kind: str) -> None:
    """Refuse names that are too long or contain line breaks. An unclosed quote can make a whole file one name.

    >>> require_names_of_one_line(("jazz", "rock"), "items")
    """
    sound = all(len(name) <= _LONGEST_NAME and not _CONTROL.search(name) for name in names)
    require(
        sound,
        f"{kind} must have names on one line, of at most {_LONGEST_NAME} characters, without control characters. "
        "Look for an unclosed quote",
    )


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number and not a boolean."""
    return is_real(value) and isinstance(value, numbers.Integral)
