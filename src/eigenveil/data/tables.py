"""Tables and files as `Rows`: numpy, scipy sparse, pandas, polars and pyarrow in memory; csv, parquet, npy, npz and svmlight.

Nothing is unpickled. Parquet is streamed and npy is memory-mapped, so neither has to fit in memory. Errors name columns and
files, which are public, and never show a value.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from eigenveil.data.archive import SVMLIGHT, TABLES, ending_of
from eigenveil.data.people import identifiers, require_ids
from eigenveil.data.rows import Block, DenseRows, Rows, SparseRows, WeightedRows, require_real
from eigenveil.errors import ColumnsError, listed, require

__all__ = [
    "Table",
    "as_arrow",
    "as_numbers",
    "as_rows",
    "as_written",
    "could_be_names",
    "first_line",
    "is_arrow_like",
    "person_ids",
    "read_table",
    "require_commas",
    "require_names",
    "require_numbers",
]

# The name pandas gives to an unnamed index when it writes Parquet: row numbers, not a feature.
PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_NAMES_AT_ONCE = 1 << 16


@final
@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows ready to be read, their column names, if there are any, and the number of columns in the file."""

    rows: Rows
    columns: tuple[str, ...] | None = None
    available: int | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class ArrowRows:
    """Rows of a pyarrow table, converted to numbers a block at a time. Nulls are refused like NaN.

    >>> import pyarrow as pa
    >>> [block.values.tolist() for block in ArrowRows(pa.table({"a": [1, 2], "b": [0.5, 1.5]})).blocks(9)]
    [[[1.0, 0.5], [2.0, 1.5]]]
    """

    table: Any

    def __post_init__(self) -> None:
        require_numbers(self.table.schema)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.table.num_rows), int(self.table.num_columns)

    @property
    def sparse(self) -> bool:
        """Never."""
        return False

    def blocks(self, size: int) -> Iterator[Block]:
        """Arrays of `size` rows."""
        for start in range(0, self.table.num_rows, size):
            yield Block(as_numbers(self.table.slice(start, size)))


@final
@dataclass(frozen=True, slots=True, eq=False)
class ParquetRows:
    """Rows of a Parquet file, read again for every pass, a batch at a time: the file may be larger than memory."""

    path: Path
    columns: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, from the file's own metadata."""
        import pyarrow.parquet as pq

        return int(pq.read_metadata(self.path).num_rows), len(self.columns)

    @property
    def sparse(self) -> bool:
        """Never."""
        return False

    def blocks(self, size: int) -> Iterator[Block]:
        """Arrays of at most `size` rows."""
        import pyarrow.parquet as pq

        with _reading(self.path), pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=size, columns=list(self.columns)):
                # Batches have their columns in the order of the file.
                yield Block(as_numbers(batch.select(list(self.columns))))


def is_arrow_like(data: Any) -> bool:
    """Whether `data` is a pyarrow table or record batch, or a polars frame, all of which become Arrow without a copy.

    >>> is_arrow_like(np.zeros(2))
    False
    """
    # The type is recognised by its name, because polars need not be installed.
    kind = type(data)
    module = kind.__module__.partition(".")[0]
    return (module == "pyarrow" and kind.__name__ in {"Table", "RecordBatch"}) or (
        module == "polars" and kind.__name__ == "DataFrame"
    )


def as_arrow(data: Any) -> Any:
    """An Arrow-like table as a pyarrow table or record batch."""
    import pyarrow as pa

    return data if isinstance(data, pa.Table | pa.RecordBatch) else data.to_arrow()


def as_rows(data: Any) -> Rows:
    """Rows from a checked array, a sparse matrix, an Arrow-like table, or rows as they are.

    >>> as_rows(np.zeros((2, 3))).shape
    (2, 3)
    """
    if is_arrow_like(data):
        return ArrowRows(as_arrow(data))
    if sp.issparse(data):
        return SparseRows(sp.csr_array(data))
    if isinstance(data, np.ndarray):
        return DenseRows(data)
    require(
        isinstance(data, Rows),
        f"rows must be an array, a sparse matrix or a table, got {type(data).__name__}",
    )
    rows: Rows = data
    return rows


def read_table(
    path: str | Path,
    *,
    person: str | None = None,
    drop: Sequence[str] = (),
    features: int | None = None,
    one_based: bool = False,
    kind: str | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """Read a file by the ending of its name, or as `kind`, such as ".npy", without the columns in `drop`.

    A csv file has a header line. Parquet is streamed. An npy file is one two-dimensional array, memory-mapped. An npz file is a
    scipy sparse matrix, or one two-dimensional array (called X if there are several). An svm file is svmlight / libsvm text.

    The column `person` of a csv or parquet file says which person a row belongs to; it is not part of the rows.
    The number of columns of svmlight text is `features`, because the file does not say. Without it, the largest index in the file
    decides, a number from the data. Its columns count from zero unless `one_based`. Read that way, a file that counts from one
    has an empty first column, which changes no component. A guess from the rows would let one row shift everybody's columns.
    If the file has names, `columns` lists those to read, in this order. A file without names must have as many columns.
    """
    path = Path(path)
    require(path.is_file(), f"{path} does not exist or is not a file")
    ending = ending_of(path, TABLES) if kind is None else kind
    require(
        features is None or ending in SVMLIGHT,
        f"features is for svmlight text; leave it out for {path}, which says how many columns it has",
    )
    if ending in {".csv", ".parquet"}:
        return _read_columns(path, ending, person, drop, columns)
    require(
        person is None and not drop,
        f"{ending} files have no named columns; person and drop need csv or parquet",
    )
    if ending in SVMLIGHT:
        return Table(_read_svmlight(path, features, one_based=one_based))
    try:
        return Table(_read_npy(path) if ending == ".npy" else _read_npz(path))
    except Exception as error:
        # For a damaged file, numpy, zipfile, zlib and tokenize raise almost any error.
        raise ValueError(f"{path} cannot be read as {ending[1:]}: {error}") from error


def _read_columns(
    path: Path, ending: str, person: str | None, drop: Sequence[str], chosen: Sequence[str] | None
) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _reading(path):
        table = _read_csv(path, person) if ending == ".csv" else None
        schema = table.schema if table is not None else pq.read_schema(path)
    if table is not None:
        require_commas(path, schema.names)
    # Without a header, the first row, a person's data, would become the column names, which every model file shows.
    require(
        table is None or could_be_names(schema.names),
        f"{path} seems to have no header line: its first line has numbers. "
        "Add a line with the column names, because names are written to the model",
    )
    require(table is None or table.num_rows > 0, f"{path} has a header and no rows")
    named = [*drop, *([person] if person is not None else [])]
    # Also refuses names that occur twice: a selection by name would not say which column is meant.
    require_names(path, schema.names, named)
    if chosen is not None:
        require_names(path, schema.names, chosen)
        columns = tuple(chosen)
    else:
        columns = tuple(name for name in schema.names if name not in named and not PANDAS_INDEX.fullmatch(name))
    require(len(columns) > 0, f"{path} has no columns left to analyse")
    require_numbers(pa.schema([schema.field(name) for name in columns]))
    rows: Rows = ArrowRows(table.select(list(columns))) if table is not None else ParquetRows(path, columns)
    if person is not None:
        with _reading(path):
            whole = table if table is not None else pq.read_table(path, columns=[person])
        rows = WeightedRows.by_person(rows, person_ids(whole, person))
    return Table(rows, columns, len(schema.names))


def _read_csv(path: Path, person: str | None) -> Any:
    import pyarrow as pa
    import pyarrow.csv as pc

    uneven: list[Any] = []

    def refuse(row: Any) -> str:
        # The row itself is not kept: it is data.
        uneven.append((row.actual_columns, row.expected_columns))
        return "error"

    parsing = pc.ParseOptions(invalid_row_handler=refuse)
    try:
        return pc.read_csv(path, parse_options=parsing, convert_options=as_written(person))
    except pa.ArrowInvalid:
        require(path.stat().st_size > 0, f"{path} is empty. It needs a line of column names, and rows below it")
        if not uneven:
            raise
        found, expected = uneven[0]
        raise ValueError(
            f"{path} cannot be read as csv: a line has {found} fields and the header has {expected}. Correct that line"
        ) from None


def as_written(person: str | None) -> Any:
    """Options that read the column `person` of a csv as text.

    Whether "7" and "007" are one person must not depend on whether everybody else's identifier looks like a number.
    """
    import pyarrow as pa
    import pyarrow.csv as pc

    return pc.ConvertOptions(column_types={} if person is None else {person: pa.string()})


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert errors of pyarrow into a `ValueError` without the cause, whose message quotes the data."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as {path.suffix.lower()[1:]}: {first_line(error)}") from None


def person_ids(table: Any, person: str) -> Any:
    """The people in column `person` of an Arrow-like or pandas table as whole numbers from 0, (n,), one per row.

    Identifiers that name nobody are refused, as in `eigenveil.data.people.identifiers`.

    >>> import pyarrow as pa
    >>> person_ids(pa.table({"who": ["a", "b"]}), "who").tolist()
    [0, 1]
    """
    import pyarrow as pa
    import pyarrow.types as types

    column = table[person] if not isinstance(table, pa.RecordBatch) else table.column(person)
    what = f'person column "{person}"'
    try:
        whole = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
        whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
        if isinstance(whole, pa.DictionaryArray):
            # A dictionary may list one person twice, or a missing value, so the decoded values count.
            whole = whole.dictionary_decode()
        if isinstance(whole, pa.ExtensionArray):
            whole = whole.storage
        # Nulls get the same error as any identifier that names nobody.
        require_ids([None] * bool(whole.null_count), what=what)
        if types.is_floating(whole.type):
            numbers = identifiers(whole.to_numpy(zero_copy_only=False), what=what)
            return np.unique(numbers, return_inverse=True)[1]
        codes = whole.dictionary_encode()
    except pa.ArrowException:
        raise ValueError(f"{what} must have values of one type") from None
    names = codes.dictionary
    # Each distinct identifier is checked once, however many rows it has. Numbers and dates can only be missing as
    # nulls, which were refused above.
    if not (types.is_primitive(names.type) or types.is_decimal(names.type)):
        for start in range(0, len(names), _NAMES_AT_ONCE):
            require_ids(names.slice(start, _NAMES_AT_ONCE).to_numpy(zero_copy_only=False), what=what)
    return codes.indices.to_numpy(zero_copy_only=False)


def require_commas(path: Path, names: Sequence[str]) -> None:
    """Refuse a csv file with semicolons or tabs between its columns. Its first line, which may be a person's, is not shown."""
    one = names[0] if len(names) == 1 else ""
    require(
        not (";" in one or "\t" in one),
        f"{path} has semicolons or tabs between its columns. Save it with commas instead",
    )


def require_names(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a table that lacks a `wanted` column, or has two columns of the same name."""
    missing = [name for name in wanted if name not in names]
    require(not missing, f"{path} has no column {listed(map(repr, missing))}; it has {listed(names)}")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    require(not twice, f"{path} has more than one column called {listed(map(repr, twice))}")


def require_numbers(schema: Any) -> None:
    """Refuse a schema with columns that are not numbers, naming them."""
    import pyarrow.types as types

    good = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    bad = [field for field in schema if not any(test(field.type) for test in good)]
    if bad:
        shown = listed(f"{field.name} ({field.type})" for field in bad)
        message = f"columns must hold numbers; these do not: {shown}. Encode them as numbers or leave them out"
        raise ColumnsError(message, tuple(field.name for field in bad))


def as_numbers(piece: Any, *, gaps: bool = False) -> Any:
    """A block of an Arrow table as float64, (b, d). Missing values are refused, or become NaN if `gaps` are allowed."""
    import pyarrow as pa

    empty = tuple(name for name, column in zip(piece.schema.names, piece.columns, strict=True) if column.null_count)
    if empty and not gaps:
        which = f"column {empty[0]!r} has" if len(empty) == 1 else f"{len(empty)} columns have"
        names = "" if len(empty) == 1 else f": {listed(empty)}"
        raise ColumnsError(f"{which} missing values{names}. Fill them in by a public rule or leave them out", empty)
    out = np.empty((piece.num_rows, piece.num_columns))
    for index, column in enumerate(piece.columns):
        plain = column if not pa.types.is_boolean(column.type) else column.cast(pa.int8())
        if pa.types.is_decimal(plain.type) or pa.types.is_float16(plain.type) or plain.null_count:
            # Rounded like any other number too large for a double: pyarrow's refusal would quote it.
            plain = plain.cast(pa.float64(), safe=False)
        out[:, index] = plain.to_numpy(zero_copy_only=False) if isinstance(plain, pa.Array) else plain.to_numpy()
    return out


def _read_npy(path: Path) -> Rows:
    # A pickle in the file could execute code of its author.
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    require(isinstance(array, np.ndarray), "it is an npz archive, not an npy array")
    return _dense(array)


def _read_npz(path: Path) -> Rows:
    loaded = np.load(path, allow_pickle=False)
    require(not isinstance(loaded, np.ndarray), "it is a single npy array, not an npz archive")
    with loaded as archive:
        names = sorted(archive.files)
        require(len(names) > 0, "it contains no array")
        # These are names that scipy's `save_npz` writes.
        if {"format", "shape"} <= set(names):
            return _read_sparse(path)
        name = "X" if "X" in names else names[0]
        require(name == "X" or len(names) == 1, f"it contains several arrays and none is called X: {', '.join(names)}")
        return _dense(archive[name])


def _read_sparse(path: Path) -> Rows:
    try:
        matrix = sp.csr_array(sp.load_npz(path))
    except (KeyError, TypeError, IndexError, NotImplementedError) as error:
        raise ValueError("it looks like a scipy sparse matrix but is incomplete") from error
    # The file is not trusted: compiled code would follow an index that points outside the matrix.
    matrix.check_format(full_check=True)
    require_real(matrix.dtype, "it")
    return SparseRows(matrix)


def _dense(array: Any) -> Rows:
    require(isinstance(array, np.ndarray), "its content is not an array")
    require(array.ndim == 2, f"it must contain a two-dimensional array, got {array.ndim} dimensions")
    require_real(array.dtype, "it")
    return DenseRows(array)


def _read_svmlight(path: Path, features: int | None, *, one_based: bool) -> Rows:
    from sklearn.datasets import load_svmlight_file

    try:
        matrix, _ = load_svmlight_file(str(path), n_features=features, zero_based=not one_based)
    except (ValueError, IndexError, OverflowError):
        # The reader's own message quotes indices and values.
        fitting = "" if features is None else f" with {features} columns"
        raise ValueError(f"{path} cannot be read as svmlight text{fitting} counted from {int(one_based)}") from None
    return SparseRows(sp.csr_array(matrix))


def first_line(error: Exception) -> str:
    """The first line of a library's message, truncated before it quotes the data."""
    return str(error).splitlines()[0].partition(":")[0] if str(error) else type(error).__name__


def could_be_names(names: Sequence[str]) -> bool:
    """Whether the numbers among the names count up from 0, from 1 or from a year, as names do and data seldom does."""
    found = [number for number in map(_number, names) if number is not None]
    if len(found) < 2:
        return True
    start = found[0]
    return (start in {0, 1} or 1800 <= start <= 2200) and found == [start + i for i in range(len(found))]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
