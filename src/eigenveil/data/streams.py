"""Streams of rows: arrays, iterators, files larger than memory and pipes, all as batches that are read once, in order.

A csv stream is parsed as lines arrive, so that a slow sensor is followed row by row. Missing values become NaN, and the caller
decides whether they are allowed. Errors name files, columns and places, never a value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from eigenveil.data.columns import ColumnChoice, ColumnLayout
from eigenveil.data.faults import named_in_full
from eigenveil.data.formats import FileParams, NamedTable, format_of, open_named, require_readable
from eigenveil.data.tables import laid_out, read_table
from eigenveil.linalg import Array
from eigenveil.params.declare import checked

__all__ = ["Source", "follow_named", "open_source"]

# Rows at a time; fewer where rows are wide.
_BATCH: Final = 4096
_BATCH_NUMBERS: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Batches of rows, each (b, d), dense or CSR, to be read once; and the column names, if there are any.

    `count` is how many rows will come, where the file says so. Where a column names the person of each row, batches are Arrow
    tables, and that column is their last.
    """

    batches: Iterator[Any]
    columns: tuple[str, ...] | None
    count: int | None = None


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
    said = checked(FileParams, FileParams(**how))
    piped = not isinstance(source, str | Path)
    if not piped:
        require_readable(Path(source))
    if piped or format_of(Path(source), said).has_names:
        levels = {name: tuple(map(str, every)) for name, every in (one_hot or {}).items()}
        wanted = None if columns is None else tuple(columns)
        return follow_named(
            open_named(source, said), ColumnChoice(columns=wanted, drop=tuple(drop), one_hot=levels, person=person)
        )
    table = read_table(source, columns=columns, drop=drop, one_hot=one_hot, person=person, **how)
    size = _BATCH if table.rows.sparse else _batch(table.rows.shape[1])
    return Source((block.values for block in table.rows.blocks(size)), table.columns, table.rows.shape[0])


def follow_named(table: NamedTable, choice: ColumnChoice) -> Source:
    """The rows of a table with column names, as they come. Its names and types are checked now."""
    layout = laid_out(table, choice, gaps=True)
    return Source(_followed(table, layout), layout.names if table.named else None, table.count)


def _followed(table: NamedTable, layout: ColumnLayout) -> Iterator[Any]:
    """The analysed columns, batch by batch. Errors open with the file or the stream."""
    with named_in_full(table, layout.plain, gaps=True):
        for batch in table.batches(layout.plain, layout.as_text, _batch(len(layout.read))):
            rows = layout.numbers(batch, gaps=True)
            yield rows if layout.person is None else _with_person(rows, layout, batch)


def _with_person(rows: Array, layout: ColumnLayout, batch: Any) -> Any:
    import pyarrow as pa

    arrays = [pa.array(column) for column in rows.T]
    return pa.table([*arrays, batch.column(layout.person)], names=[*layout.names, layout.person])


def _batch(columns: int) -> int:
    return max(1, min(_BATCH, _BATCH_NUMBERS // max(1, columns)))
