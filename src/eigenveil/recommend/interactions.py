"""Who has what: a binary matrix of users and items, from memory or from a file, checked once.

Which user has which item is private, so no message here shows an entry, a number of users or how often anything occurs. What
is public is the number of items, the names of columns and the type of the numbers.
"""

import csv
import math
import numbers
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from eigenveil.data import as_arrow, as_numbers, first_line, is_arrow_like, require_names, require_numbers
from eigenveil.errors import require
from eigenveil.estimators.checks import is_real

__all__ = ["Interactions", "checked_interactions", "read_interactions"]

_ENDINGS = (".csv", ".csv.gz", ".parquet", ".npz")
# Whole numbers as they are usually written: "007" is a name, not seven.
_WHOLE_NUMBER = re.compile("0|-?[1-9][0-9]{0,99}")
# What a column may be called if the first line of a csv is to be shown: identifiers mostly have one of these in them.
_NAME = re.compile(r"[^\d\t;|:@]*")
# Dense rows are made sparse this many numbers at a time.
_BLOCK_NUMBERS = 1 << 22


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Interactions:
    """`matrix`, (n users, d items), a CSR array of ones in canonical form, and the names of users and items.

    Names that are None are numbers from 0. Users without any item and items without any user are kept: the first add
    nothing to any sum, the second are columns of zeros. The matrix is one's own copy and not to be changed.

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
        for kind, names, count in (
            ("users", self.users, self.matrix.shape[0]),
            ("items", self.items, self.matrix.shape[1]),
        ):
            if names is None:
                continue
            require(
                isinstance(names, tuple) and all(isinstance(name, str) for name in names),
                f"{kind} must be None or a tuple of names, each a string",
            )
            require(len(names) == count, f"{kind} must have one name for each {kind[:-1]} of the matrix")
            require(len(set(names)) == count, f"{kind} must have names that differ from each other")

    def __repr__(self) -> str:
        # The names of users, and how much is stored, would otherwise end up in logs.
        return f"Interactions({self.matrix.shape[1]} items)"

    @classmethod
    def from_ratings(cls, ratings: Any, *, at_least: float, missing: float | None = None) -> "Interactions":
        """Interactions where a rating is at least `at_least`.

        In a sparse matrix the ratings are what is stored, zeros included; one of several for the same user and item is
        enough. In an array or a table they are all numbers but `missing`, the code for "not rated" (99 or nan, say).

        >>> Interactions.from_ratings(np.array([[5, 2, 99], [99, 99, 4]]), at_least=3, missing=99).matrix.toarray()
        array([[1., 0., 0.],
               [0., 0., 1.]])
        """
        require(is_real(at_least) and math.isfinite(at_least), f"at_least must be a finite number, got {at_least!r}")
        require(missing is None or is_real(missing), f"missing must be None or a number, got {missing!r}")
        require(
            missing is not None or at_least > 0 or sp.issparse(ratings),
            f"missing is required with at_least={at_least}: zeros would count as ratings, and so as interactions",
        )

        def reaches(values: Any) -> Any:
            unrated = np.isnan(values) if missing is not None and math.isnan(missing) else values == missing
            require(
                bool((np.isfinite(values) | unrated).all()),
                "ratings must have no NaN, infinite or missing entries, unless missing says that this is how they are written",
            )
            return (values >= at_least) & ~unrated

        return cls(_binary(ratings, "ratings", reaches))

    def row(self, user: str | int) -> sp.csr_array:
        """The items of one user, (1, d): a string is a name, a whole number counts the rows from 0.

        >>> Interactions(np.eye(3)).row(2).indices.tolist()
        [2]
        """
        if isinstance(user, str):
            require(self.users is not None, "the users have no names; give the number of a row")
            require(user in (self.users or ()), f"there is no user called {user!r}")
            index = (self.users or ()).index(user)
        else:
            require(_is_whole(user), f"user must be a name or the number of a row, got {user!r}")
            index = int(user)
            require(0 <= index < self.matrix.shape[0], f"there is no user number {index}; they count from 0")
        return self.matrix[[index]]

    def columns(self, items: Sequence[str | int]) -> Any:
        """The columns of `items`, an integer array: strings are names, whole numbers count the columns from 0.

        >>> Interactions(np.eye(2), items=("jazz", "rock")).columns(["rock", 0]).tolist()
        [1, 0]
        """
        require(not isinstance(items, str), "items must be a list of names, not a single string")
        known = {} if self.items is None else {name: index for index, name in enumerate(self.items)}
        dim = self.matrix.shape[1]
        found = []
        for item in items:
            if isinstance(item, str):
                require(self.items is not None, "the items have no names; give the numbers of columns")
                require(item in known, f"there is no item called {item!r}")
                found.append(known[item])
            else:
                require(_is_whole(item), f"items must be names or numbers of columns, got {item!r}")
                require(0 <= item < dim, f"there is no item number {item}; they count from 0 to {dim - 1}")
                found.append(int(item))
        return np.array(found, dtype=np.intp)


def checked_interactions(R: Any, *, name: str = "R") -> sp.csr_array:
    """`R`, (n users, d items), as a CSR array of float64 ones in canonical form, or a `ValueError` that quotes no entry.

    `R` is a scipy sparse matrix of any format, an array, or a pandas, polars or pyarrow table with a column for each item, and
    holds 1 where the user has the item and 0 elsewhere. A stored zero is no interaction. A 1 stored several times over for
    the same user and item is one interaction, not several: one user must not count as more. `R` itself is not changed.

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
                f"{name} must be binary: 1 where the user has the item and 0 elsewhere; "
                "turn ratings into interactions with `Interactions.from_ratings(R, at_least=...)`"
            )
        return ones

    return _binary(R, name, is_one)


def read_interactions(
    path: str | Path,
    *,
    user: str = "user",
    item: str = "item",
    value: str | None = None,
    at_least: float | None = None,
    items: Sequence[str | int] | str | Path | None = None,
) -> Interactions:
    """Interactions from a csv (or csv.gz) or parquet file with a line for each, or a scipy sparse matrix in an npz file.

    `user` and `item` are the columns that say who has what: text or whole numbers, kept as names. `value` is the column of
    ratings; without it a column called "value" serves if there is one. Lines whose value is below `at_least` are no
    interactions; without `at_least` a value must be 1, or 0 for none. A line that is repeated counts once. Users and items are
    sorted, whole numbers by size, so the order of the lines does not matter; a user of whom no line is left is an empty row.

    `items` is the public list of items, names or a file with one on each line (a csv may start with the name of the column):
    they are the columns, in this order, and lines with other items are left out without a word, because how many there are
    is private. Without it the columns are the items in the file, and **which items occur at all is thereby taken as public**,
    even one that a single user has: a guarantee must then say so. A public list is better. For npz it names the columns.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "plays.csv")
    ...     _ = path.write_text("user,item\\nbob,rock\\nann,jazz\\nbob,jazz\\n")
    ...     plays = read_interactions(path, items=["jazz", "rock", "soul"])
    >>> plays.users, plays.matrix.toarray().tolist()
    (('ann', 'bob'), [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    """
    path = Path(path)
    require(path.is_file(), f"{path} does not exist or is not a file")
    ending = next((known for known in _ENDINGS if path.name.lower().endswith(known)), "")
    require(ending != "", f"{path} has the ending {path.suffix!r}; known are {', '.join(_ENDINGS)}")
    require(
        at_least is None or (is_real(at_least) and math.isfinite(at_least)),
        f"at_least must be None or a finite number, got {at_least!r}",
    )
    listed = None if items is None else _listed(items, item)
    if ending == ".npz":
        require((user, item, value) == ("user", "item", None), "npz files have no named columns; use csv or parquet")
        return _read_matrix(path, at_least, listed)
    with _reading(path, value):
        names = _names(path, ending)
    value = "value" if value is None and "value" in names else value
    wanted = [user, item] if value is None else [user, item, value]
    require(len(set(wanted)) == len(wanted), f"user, item and value must be different columns, got {', '.join(wanted)}")
    require(
        at_least is None or value is not None,
        "at_least needs a column of values: give value (--value on the command line)",
    )
    _require_columns(path, names, wanted, header=ending != ".parquet")
    with _reading(path, value):
        table = _lines(path, ending, user, item, value)
    require(table.num_rows > 0, f"{path} has column names and no lines")
    rows, users = _coded(table[user], user)
    columns, known = _coded(table[item], item)
    kept = np.ones(table.num_rows, dtype=bool) if value is None else _kept(table.select([value]), value, at_least)
    if listed is not None:
        place = {name: index for index, name in enumerate(listed)}
        columns = np.array([place.get(name, -1) for name in known], dtype=np.intp)[columns]
        known, kept = listed, kept & (columns >= 0)
    return Interactions(_ones(rows[kept], columns[kept], (len(users), len(known))), users, known)


def _binary(given: Any, name: str, is_one: Callable[[Any], Any]) -> sp.csr_array:
    """Ones where `is_one`, a function of arrays, says so: of what is stored in a sparse matrix, of all entries elsewhere."""
    if hasattr(given, "iloc") and getattr(given, "ndim", 0) == 2:
        given = _from_pandas(given, name)
    if is_arrow_like(given):
        given = as_arrow(given)
        try:
            require_numbers(given.schema)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    else:
        require(
            sp.issparse(given) or isinstance(given, np.ndarray),
            f"{name} must be a sparse matrix, a two-dimensional array or a table, got {type(given).__name__}",
        )
        require(
            not isinstance(given, np.ma.MaskedArray),
            f"{name} is a masked array, whose hidden entries would be used; fill them first",
        )
        require(given.ndim == 2, f"{name} must have two dimensions, users and items, got {given.ndim}")
        require(given.dtype.kind in "biuf", f"{name} must hold real numbers, got dtype {given.dtype}")
    count, dim = given.shape
    require(dim > 0, f"{name} has no columns: there must be one for each item")
    if sp.issparse(given):
        entries = _entries(given, name)
        ones = is_one(entries.data)
        return _ones(entries.row[ones], entries.col[ones], given.shape)
    size = max(1, _BLOCK_NUMBERS // dim)
    found = [np.nonzero(is_one(_piece(given, start, size))) for start in range(0, max(1, count), size)]
    rows = np.concatenate([index * size + rows for index, (rows, _) in enumerate(found)])
    return _ones(rows, np.concatenate([columns for _, columns in found]), (count, dim))


def _ones(rows: Any, columns: Any, shape: tuple[int, int]) -> sp.csr_array:
    """A canonical CSR array with a one at each place, however often it is given."""
    matrix = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def _piece(given: Any, start: int, size: int) -> Any:
    """`size` rows of an array or an Arrow table as an array, with NaN where a value is missing."""
    if isinstance(given, np.ndarray):
        return np.asarray(given[start : start + size])
    return as_numbers(given.slice(start, size), gaps=True)


def _entries(given: Any, name: str) -> Any:
    """All that is stored in a sparse matrix, each part of a place that is stored in parts for itself, as a COO matrix."""
    if not hasattr(given, "check_format"):
        return given.tocoo(copy=False)
    try:
        # Checked in an object of our own, because the check tidies up. Compiled code follows an index wherever it points.
        whole = type(given)((given.data, given.indices, given.indptr), shape=given.shape, copy=False)
        whole.check_format(full_check=True)
    except ValueError:
        raise ValueError(f"{name} is not a whole sparse matrix: its indices do not fit its shape") from None
    return whole.tocoo(copy=False)


def _from_pandas(frame: Any, name: str) -> Any:
    """A pandas frame as an array, or as a sparse matrix if every column is sparse. What is missing is NaN."""
    bad = [f"{column} ({kind})" for column, kind in frame.dtypes.items() if kind.kind not in "biuf"]
    require(
        not bad,
        f"{name}: columns must hold numbers; these do not: {', '.join(bad)}; leave them out or code them as numbers",
    )
    if frame.shape[1] and all(getattr(kind, "fill_value", None) == 0 for kind in frame.dtypes):
        return frame.sparse.to_coo()
    return frame.to_numpy(dtype=np.float64, na_value=np.nan)


def _is_whole(value: Any) -> bool:
    return is_real(value) and isinstance(value, numbers.Integral)


def _read_matrix(path: Path, at_least: float | None, items: tuple[str, ...] | None) -> Interactions:
    try:
        matrix = sp.load_npz(path)
    except Exception:
        # A damaged file makes numpy, zipfile, zlib and tokenize raise almost anything, and scipy quotes indices.
        raise ValueError(f"{path} cannot be read as npz: it must hold what `scipy.sparse.save_npz` writes") from None
    require(
        items is None or matrix.ndim != 2 or len(items) == matrix.shape[1],
        f"items must name each of the {matrix.shape[-1]} columns of {path}, got {len(items or ())} names",
    )
    if at_least is not None:
        matrix = Interactions.from_ratings(matrix, at_least=at_least).matrix
    return Interactions(matrix, None, items)


@contextmanager
def _reading(path: Path, value: str | None) -> Iterator[None]:
    """Turn what pyarrow raises into a `ValueError` without its cause, whose message quotes the data."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        numeric = value is not None and "conversion error to double" in str(error)
        why = f"column {value!r} must hold numbers" if numeric else first_line(error)
        raise ValueError(f"{path} cannot be read: {why}") from None


def _names(path: Path, ending: str) -> list[str]:
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    if ending == ".parquet":
        return list(pq.read_schema(path).names)
    with pc.open_csv(path, parse_options=pc.ParseOptions(newlines_in_values=True)) as reader:
        return list(reader.schema.names)


def _require_columns(path: Path, names: Sequence[str], wanted: Sequence[str], *, header: bool) -> None:
    """Refuse a table without the `wanted` columns, and show those it has, unless they might be somebody's first line."""
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = not header or all(_NAME.fullmatch(name) for name in names)
        has = (
            f"it has {', '.join(names)}" if shown else "its first line may be no header, or not be separated by commas"
        )
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}; {has}. "
            "Say which columns to read with user, item and value (--user, --item and --value on the command line)"
        )
    require_names(path, names, wanted)


def _lines(path: Path, ending: str, user: str, item: str, value: str | None) -> Any:
    """The named columns as an Arrow table; in csv identifiers are text whatever they look like."""
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    types = {user: pa.string(), item: pa.string()} | ({} if value is None else {value: pa.float64()})
    if ending == ".parquet":
        table = pq.read_table(path, columns=list(types), partitioning=None).select(list(types))
        if value is not None:
            require_numbers(pa.schema([table.schema.field(value)]))
        return table
    return pc.read_csv(
        path,
        parse_options=pc.ParseOptions(newlines_in_values=True),
        convert_options=pc.ConvertOptions(include_columns=list(types), column_types=types),
    )


def _coded(column: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """Identifiers as numbers from 0, (lines,), and the names these stand for, sorted: by size if all are whole numbers."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        # A dictionary may list one name twice, or a missing value; only its values tell.
        column = column.cast(column.type.value_type)
    text = types.is_string(column.type) or types.is_large_string(column.type) or types.is_null(column.type)
    require(
        text or types.is_integer(column.type),
        f"column {name!r} must hold names, which are text or whole numbers, got {column.type}",
    )
    codes = column.dictionary_encode().combine_chunks()
    found = codes.dictionary.cast(pa.string()).to_pylist()
    require(column.null_count == 0 and "" not in found, f"column {name!r} must have no missing values")
    key: Callable[[str], Any] = int if all(map(_WHOLE_NUMBER.fullmatch, found)) else str
    names = tuple(sorted(found, key=key))
    place = {name: index for index, name in enumerate(names)}
    places = np.array([place[name] for name in found], dtype=np.intp)
    return places[codes.indices.to_numpy()], names


def _kept(table: Any, value: str, at_least: float | None) -> Any:
    """Which lines are interactions, (lines,), by the one column of `table`."""
    values = as_numbers(table, gaps=True)[:, 0]
    require(bool(np.isfinite(values).all()), f"column {value!r} must have no NaN, infinite or missing values")
    if at_least is not None:
        return values >= at_least
    ones = values == 1
    require(
        bool((ones | (values == 0)).all()),
        f"column {value!r} must hold 1 for an interaction or 0 for none; if it holds ratings, "
        "say from which one on they are interactions with at_least (--at-least on the command line)",
    )
    return ones


def _listed(items: Sequence[str | int] | str | Path, column: str) -> tuple[str, ...]:
    """The public list of items, which may be quoted, from memory or from a file."""
    if isinstance(items, str | Path):
        names, where = _listed_in(Path(items), column), str(items)
    else:
        wrong = next((item for item in items if not isinstance(item, str) and not _is_whole(item)), None)
        require(wrong is None, f"items must be names, which are text or whole numbers, got {wrong!r}")
        names, where = [str(item) for item in items], "items"
    require(len(names) > 0 and "" not in names, f"{where} must list at least one item, and none without a name")
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    require(twice is None, f"{where} must list every item once, but has {twice!r} more than once")
    return tuple(names)


def _listed_in(path: Path, column: str) -> list[str]:
    require(path.is_file(), f"{path} does not exist or is not a file")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() != ".csv":
            return text.splitlines()
        lines = [fields for fields in csv.reader(text.splitlines(keepends=True), strict=True) if fields]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except csv.Error:
        raise ValueError(f"{path} is not a list of comma-separated values") from None
    at = 0
    if lines and column in lines[0]:
        at, width, lines = lines[0].index(column), len(lines[0]), lines[1:]
    else:
        width = 1
    require(
        all(len(fields) == width for fields in lines),
        f"{path} must have one item on each line, or a first line that says which column is {column!r}",
    )
    return [fields[at] for fields in lines]
