"""Files of scores, written block by block, with the columns that are carried beside them.

What is carried is text that somebody else may have typed. In a csv that a spreadsheet program opens, a cell that begins with = is
a formula and can run a program. So such cells get an apostrophe in front, and cells of a sheet are marked as text.
"""

import json
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eigenveil.data.formats.xlsx import SheetWriter
from eigenveil.errors import listed, require

if TYPE_CHECKING:
    from eigenveil.linalg import Array

__all__ = ["ENDINGS", "Scored", "require_flat", "write_scores"]

# Scores of some rows, (b, k), and the columns that are carried beside them: an Arrow table, or None.
Scored = tuple["Array", Any]

# Numbers as people write them, and a sign alone: with nothing else in a cell they start no formula.
_HARMLESS: Final = (
    r"^[ ]*[+-]?[ ]*(?:(?:[0-9][0-9.,' \x{a0}\x{202f}\x{2019}]*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?[ ]*%?)?[ ]*$"
)
# Where a formula may begin: in front, and behind a character at which a program in another language splits cells, also after a
# quote that it takes for an empty cell. The wide signs count in East Asian programs.
_STARTS: Final = r'(^|[;|\t\r\n])([ "]*[=+\-@\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}])'
_LEADING: Final = r"^([\t\r\n])"


def write_scores(path: Path, ending: str, names: list[str], scored: Iterator[Scored]) -> None:
    """Write scores, and what is carried beside them, block by block."""
    _WRITERS[ending](path, names, scored)


def require_flat(schema: Any) -> None:
    """Refuse to write columns to a csv or a sheet that have lists or tables in their cells."""
    import pyarrow.types as types

    nested = [field.name for field in schema if types.is_nested(field.type)]
    require(
        not nested,
        f"--carry {listed(nested)}: a csv or xlsx has no cells for lists or tables. Write the scores to a .parquet file",
    )


def as_plain_text(column: Any) -> Any:
    """An Arrow column of text in which no cell starts a formula: an apostrophe stands in front. Numbers stay as they are.

    >>> import pyarrow as pa
    >>> as_plain_text(pa.array(["=1+1", "-2.5", "a;=b", "ann"])).to_pylist()
    ["'=1+1", '-2.5', "a;'=b", 'ann']
    """
    import pyarrow.compute as pc

    safe = pc.replace_substring_regex(column, pattern=_STARTS, replacement=r"\1'\2")
    safe = pc.replace_substring_regex(safe, pattern=_LEADING, replacement=r"'\1")
    return pc.if_else(pc.match_substring_regex(column, _HARMLESS), column, safe)


def _without_formulas(table: Any) -> Any:
    """The table with plain text in its cells and names."""
    import pyarrow as pa
    import pyarrow.types as types

    for place, field in enumerate(table.schema):
        column, kind = table.column(place), field.type
        if types.is_dictionary(kind):
            column, kind = column.cast(kind.value_type), kind.value_type
        if types.is_string(kind) or types.is_large_string(kind):
            table = table.set_column(place, field.name, as_plain_text(column))
    return table.rename_columns(as_plain_text(pa.array(table.schema.names, pa.string())).to_pylist())


def _tables(names: list[str], scored: Iterator[Scored]) -> Iterator[Any]:
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


def _write_tables(
    opened: Callable[[Path, Any], Any],
    path: Path,
    names: list[str],
    scored: Iterator[Scored],
    *,
    change: Callable[[Any], Any] = lambda table: table,
) -> None:
    tables = _tables(names, scored)
    first = change(next(tables))
    with opened(path, first.schema) as writer:
        writer.write(first)
        for table in tables:
            writer.write(change(table))


def _csv_writer(separator: str, path: Path, schema: Any) -> Any:
    import pyarrow.csv as pc

    require_flat(schema)
    return pc.CSVWriter(path, schema, write_options=pc.WriteOptions(delimiter=separator))


def _parquet_writer(path: Path, schema: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetWriter(path, schema)


def _arrow_writer(path: Path, schema: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.new_file(path, schema)


def _write_sheet(path: Path, names: list[str], scored: Iterator[Scored]) -> None:
    tables = _tables(names, scored)
    first = next(tables)
    require_flat(first.schema)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, SheetWriter(archive) as sheet:
        sheet.write([first.schema.names])
        for table in (first, *tables):
            sheet.write(_lines(table))


def _lines(table: Any) -> Iterator[Sequence[Any]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _write_lines(path: Path, names: list[str], scored: Iterator[Scored]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for table in _tables(names, scored):
            for line in _lines(table):
                cells = dict(zip(table.schema.names, map(_in_json, line), strict=True))
                file.write(json.dumps(cells, ensure_ascii=False, default=str) + "\n")


def _in_json(cell: Any) -> Any:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _write_npy(path: Path, names: list[str], scored: Iterator[Scored]) -> None:
    from numpy.lib.format import write_array_header_1_0

    def header(count: int) -> None:
        write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (count, len(names))})

    # Written block by block: numpy.save would need all scores in memory.
    with path.open("w+b") as file:
        # numpy leaves room in a header for any number of rows, so the number can be written when it is known.
        header(0)
        count = 0
        for block, _ in scored:
            file.write(block.astype("<f8").tobytes())
            count += len(block)
        file.seek(0)
        header(count)


_WRITERS: Final[dict[str, Callable[[Path, list[str], Iterator[Scored]], None]]] = {
    ".csv": partial(_write_tables, partial(_csv_writer, ","), change=_without_formulas),
    ".parquet": partial(_write_tables, _parquet_writer),
    ".npy": _write_npy,
    ".xlsx": _write_sheet,
    ".jsonl": _write_lines,
    ".tsv": partial(_write_tables, partial(_csv_writer, "\t"), change=_without_formulas),
    ".feather": partial(_write_tables, _arrow_writer),
    ".arrow": partial(_write_tables, _arrow_writer),
}
ENDINGS: Final = tuple(_WRITERS)
