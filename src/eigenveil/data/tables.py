"""Tables and files as `Rows`: numpy, scipy sparse, pandas, polars and pyarrow in memory; files of every format.

Nothing is unpickled. Parquet, Arrow and npy files are read block by block, so they need not fit in memory. Errors name columns
and files, which are public, and never show a value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, final

import numpy as np

from eigenveil.core.rows import Block, Rows
from eigenveil.data.columns import ColumnChoice, ColumnLayout, named_in_full
from eigenveil.data.formats import FileParams, NamedTable, format_of, open_named, require_options, require_readable
from eigenveil.data.formats.unpacked import require_columns
from eigenveil.data.frames import person_ids
from eigenveil.data.number_texts import MissingMarks
from eigenveil.data.rows import ArrayRows, DenseRows, SparseRows, WeightedRows
from eigenveil.errors import ParameterError, require, verbatim
from eigenveil.linalg import Array
from eigenveil.params.declare import validate_params

__all__ = ["Source", "Table", "beside", "follow_named", "laid_out", "open_source", "read_named", "read_table", "with_gaps"]

# Rows that are read at once into memory, fewer where they are wide.
_AT_ONCE, _NUMBERS_AT_ONCE = 1 << 16, 1 << 21


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Table:
    """Rows ready to be read."""

    rows: Rows
    columns: tuple[str, ...] | None = None  # Their names, if there are any.
    available: int | None = None  # The number of columns in the file.
    passthrough: Any = None  # An Arrow table of the columns to be carried beside the rows. It is raw data.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FileRows:
    """Rows of a file, read again for every pass, a batch at a time: the file may be larger than memory."""

    unweighted: ClassVar = True
    sparse: ClassVar = False
    table: NamedTable
    layout: ColumnLayout
    gaps: bool = False  # Missing values are NaN. Otherwise they are refused.
    max_numbers: int | None = None  # Of a block.

    @property
    def shape(self) -> tuple[int, int]:
        assert self.table.count is not None
        return self.table.count, len(self.layout.names)

    def blocks(self, size: int) -> Iterator[Block]:
        texts = tuple(self.layout.one_hot)
        if self.max_numbers is not None:
            size = min(size, max(1, self.max_numbers // len(self.layout.names)))
        with named_in_full(self.table, self.layout.plain, gaps=self.gaps):
            for batch in self.table.batches(self.layout.plain, texts, size):
                yield Block(self.layout.numbers(batch, gaps=self.gaps))


@final
@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """Rows of a file or pipe that were read into memory, in pieces as they came."""

    unweighted: ClassVar = True
    sparse: ClassVar = False
    pieces: tuple[Array, ...]
    dim: int

    @property
    def shape(self) -> tuple[int, int]:
        return sum(map(len, self.pieces)), self.dim

    def blocks(self, size: int) -> Iterator[Block]:
        for piece in self.pieces:
            yield from (Block(piece[start : start + size]) for start in range(0, len(piece), size))


@final
@dataclass(frozen=True, slots=True, eq=False)
class MarkedRows(ArrayRows):
    """Rows in an array or a memory map, with NaN where a number stands for a missing value."""

    sparse: ClassVar = False
    values: Any
    missing: MissingMarks

    def blocks(self, size: int) -> Iterator[Block]:
        for start in range(0, len(self.values), size):
            yield Block(self.missing.without(np.asarray(self.values[start : start + size])))


def with_gaps(rows: Rows, missing: MissingMarks) -> Rows:
    """Rows without column names, with NaN where a number stands for a missing value."""
    if not missing.numbers or not isinstance(rows, DenseRows | SparseRows):
        return rows
    if isinstance(rows, DenseRows):
        return MarkedRows(rows.values, missing)
    import scipy.sparse as sp

    if 0.0 in missing.numbers:
        raise ParameterError("{na_values} has 0, which a sparse matrix does not store. Write the table as a dense one")
    matrix = rows.values
    return SparseRows(sp.csr_array((missing.without(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape))


def read_table(
    source: Any,
    *,
    person: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    one_hot: Mapping[str, Sequence[str]] | None = None,
    passthrough: Sequence[str] = (),
    literal: bool = False,
    gaps: bool = False,
    **how: Any,
) -> Table:
    """Read a file by the ending of its name, a folder of Parquet files, or an open binary file such as a pipe.

    `how` are the fields of `FileParams`, such as `kind="csv"` or `decimal=","`. csv, xlsx, jsonl and pipes are read into
    memory. Parquet and Arrow are read again for every pass. An npy file is one two-dimensional array, memory-mapped. An npz file
    is a scipy sparse matrix, or one two-dimensional array (called X if there are several). An svm file is svmlight / libsvm text.

    `columns` and `drop` are names or patterns, or names as they stand if `literal`. The column `person` says which person a row
    belongs to; it is not part of the rows, and neither are those of `passthrough`. A file without names takes none of these, and
    with `literal` must have as many columns. With `gaps`, missing values are NaN; otherwise they are refused.

    The number of columns of svmlight text is `features`, because the file does not say. Without it, the largest index in the file
    decides, a number from the data. Its columns count from zero unless `one_based`. Read that way, a file that counts from one
    has an empty first column, which changes no component. A guess from the rows would let one row shift all columns.
    """
    params = validate_params(FileParams, FileParams(**how))
    piped = not isinstance(source, str | Path)
    path = Path("the stream") if piped else Path(source)
    if not piped:
        require_readable(path)
    format_ = format_of(path, params, piped=piped)
    if format_.has_names or piped:
        names = ColumnChoice.named(columns, drop, one_hot, person=person, passthrough=passthrough, literal=literal)
        return read_named(open_named(source, params), names, gaps=gaps)
    require_options(path, params, format_)
    column_options = {"person": person, "drop": drop, "one_hot": one_hot, "columns": None if literal else columns}
    for name, value in column_options.items():
        if value:
            raise ParameterError(f"{verbatim(str(path))} is {format_.word} and has no column names. Leave out {{{name}}}")
    require(not passthrough, f"{path} is {format_.word} and has no column names to carry")
    assert format_.rows is not None
    rows = format_.rows(path, params)
    if rows.sparse and params.features is None:
        advice = "Leave out those without an entry, or fit the matrix in Python"
        if "features" in format_.options:
            advice = "If that is right, say so with {features}"
        require_columns(path, rows.shape[1], advice=advice)
    return Table(rows=with_gaps(rows, MissingMarks.of(params)))


def read_named(table: NamedTable, choice: ColumnChoice, *, gaps: bool = False) -> Table:
    """The rows of a table with column names. What only reading tells, such as a number that is none, is told here.

    Missing values are refused, or NaN if `gaps` are allowed.
    """
    if choice.literal and not table.named:
        # A file without names has the columns of the study in their order, and the caller compares their number.
        choice = replace(choice, columns=None)
    layout = laid_out(table, choice, gaps=gaps)
    columns = layout.names if table.named else None
    aside = tuple(dict.fromkeys((*([] if layout.person is None else [layout.person]), *layout.passthrough)))
    # A pipe and a text file do not say how many rows they have, so they are read once and held.
    if table.count is None:
        rows, others = _held(table, layout, aside, gaps=gaps)
    else:
        rows = FileRows(table=table, layout=layout, gaps=gaps)
        others = beside(table, aside)
    if layout.person is not None:
        rows = WeightedRows.by_person(rows, person_ids(others, layout.person))
    extra = others.select(list(layout.passthrough)) if layout.passthrough else None
    return Table(rows=rows, columns=columns, available=len(table.names), passthrough=extra)


def laid_out(table: NamedTable, choice: ColumnChoice, *, gaps: bool) -> ColumnLayout:
    """The layout of a table for a choice of columns. Of columns that are no numbers by type, the error names all faults."""
    whole = choice.laid_out(table.source, table.names)
    kinds = table.kinds or {}
    numbers = [name for name in whole.plain if kinds.get(name) in ("number", "truth value")]
    with named_in_full(table, numbers, gaps=gaps):
        return choice.laid_out(table.source, table.names, table.kinds)


def _held(table: NamedTable, layout: ColumnLayout, aside: Sequence[str], *, gaps: bool) -> tuple[Rows, Any]:
    """All rows, and the columns beside them, in memory."""
    import pyarrow as pa

    pieces, others = [], []
    with named_in_full(table, layout.plain, gaps=gaps):
        size = max(64, min(_AT_ONCE, _NUMBERS_AT_ONCE // max(1, len(layout.read))))
        for batch in table.batches(layout.plain, layout.as_text, size):
            pieces.append(layout.numbers(batch, gaps=gaps))
            if aside:
                extra = batch.select(list(aside))
                others.append(extra if isinstance(extra, pa.Table) else pa.Table.from_batches([extra]))
    require(bool(pieces), f"{table.source} has a header and no rows")
    return HeldRows(tuple(pieces), len(layout.names)), pa.concat_tables(others) if aside else None


def beside(table: NamedTable, names: Sequence[str]) -> Any:
    """Columns beside the analysed ones, as an Arrow table; None for no columns."""
    import pyarrow as pa

    return pa.Table.from_batches(table.batches((), names, _AT_ONCE)) if names else None


# Rows at a time; fewer where rows are wide.
_BATCH: Final = 4096
_BATCH_NUMBERS: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Rows that are read once."""

    # Each (b, d), dense or CSR. Where a column names the person of each row, Arrow tables, and that column is their last.
    batches: Iterator[Any]
    columns: tuple[str, ...] | None  # Their names, if there are any.
    count: int | None = None  # How many rows will come, where the file says so.


def open_source(
    source: Any,
    *,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    one_hot: Mapping[str, Sequence[str]] | None = None,
    person: str | None = None,
    **how: Any,
) -> Source:
    """Rows from a path, by the ending of its name or as `kind`, or from an open binary file such as a pipe.

    csv and Arrow streams may come through a pipe; the other kinds need a file. `columns`, `drop`, `one_hot`, `person` and `how`
    are those of `eigenveil.data.tables.read_table`, so `header=False` says that a csv starts with its first row.

    >>> import io
    >>> source = open_source(io.BytesIO(b"a,b\\n1,2\\n3,\\n"), kind="csv")
    >>> source.columns, [batch.tolist() for batch in source.batches]
    (('a', 'b'), [[[1.0, 2.0], [3.0, nan]]])
    """
    params = validate_params(FileParams, FileParams(**how))
    piped = not isinstance(source, str | Path)
    if not piped:
        require_readable(Path(source))
    if piped or format_of(Path(source), params).has_names:
        return follow_named(open_named(source, params), ColumnChoice.named(columns, drop, one_hot, person=person))
    table = read_table(source, columns=columns, drop=drop, one_hot=one_hot, person=person, **how)
    size = _BATCH if table.rows.sparse else _batch(table.rows.shape[1])
    return Source((block.values for block in table.rows.blocks(size)), table.columns, table.rows.shape[0])


def follow_named(table: NamedTable, choice: ColumnChoice) -> Source:
    """The rows of a table with column names, as they come. Its names and types are checked now."""
    layout = laid_out(table, choice, gaps=True)
    return Source(_followed(table, layout), layout.names if table.named else None, table.count)


def _followed(table: NamedTable, layout: ColumnLayout) -> Iterator[Any]:
    """The analysed columns, batch by batch. Errors open with the file or the stream."""
    import pyarrow as pa

    with named_in_full(table, layout.plain, gaps=True):
        for batch in table.batches(layout.plain, layout.as_text, _batch(len(layout.read))):
            rows = layout.numbers(batch, gaps=True)
            if layout.person is not None:
                columns = [*map(pa.array, rows.T), batch.column(layout.person)]
                rows = pa.table(columns, names=[*layout.names, layout.person])
            yield rows


def _batch(columns: int) -> int:
    return max(1, min(_BATCH, _BATCH_NUMBERS // max(1, columns)))
