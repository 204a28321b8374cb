"""Scores block by block, with the columns that are carried beside them, as the Arrow tables that formats write."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eigenveil.data.formats.base import Scored

if TYPE_CHECKING:
    from eigenveil.linalg import Array

__all__ = ["lines_in", "tables_of", "write_tables"]


def tables_of(names: list[str], scored: Iterator[Scored]) -> Iterator[Any]:
    """Arrow tables with the columns that are carried, and the scores. The first comes even if there are no rows."""
    import numpy as np

    # The first block fixes the types of the columns that are carried.
    block, carried = next(scored, (np.empty((0, len(names))), None))
    first = _table(names, block, carried)
    yield first
    for block, carried in scored:
        yield _table(names, block, carried).cast(first.schema)


def _table(names: list[str], block: "Array", carried: Any) -> Any:
    import pyarrow as pa

    # What is carried comes first, as in the table that people join with.
    beside = {} if carried is None else {name: carried.column(name) for name in carried.schema.names}
    return pa.table({**beside, **dict(zip(names, map(pa.array, block.T.copy()), strict=True))})


def write_tables(
    opened: Callable[[Path, Any], Any],
    path: Path,
    names: list[str],
    scored: Iterator[Scored],
    *,
    change: Callable[[Any], Any] = lambda table: table,
) -> None:
    """Write tables with the writer that `opened` makes for a path and a schema, each of them changed."""
    tables = tables_of(names, scored)
    first = change(next(tables))
    with opened(path, first.schema) as writer:
        writer.write(first)
        for table in tables:
            writer.write(change(table))


def lines_in(table: Any) -> Iterator[Sequence[Any]]:
    """The rows of a table."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
