"""Tables whose cells have types and whose columns have none, such as sheets: columns of numbers and of text, from their cells.

A column is read as numbers if all its cells are numbers, truth values or gaps, and refused otherwise. Errors name columns and
rows, and never show a cell.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from eigenveil.data.columns import advice_for
from eigenveil.data.faults import ColumnFaults, to_drop
from eigenveil.data.number_texts import GAPS, MissingMarks, texts_are_numbers
from eigenveil.errors import ColumnsError, listed

__all__ = ["CellDate", "CellError", "CellTable", "cell_batches", "cell_faults", "text_in"]


class CellTable(Protocol):
    """A table of cells."""

    @property
    def source(self) -> Path:
        """Its file."""
        ...

    @property
    def missing(self) -> MissingMarks:
        """What stands for a missing value."""
        ...


@final
@dataclass(frozen=True, slots=True)
class CellDate:
    """A date or a time as text."""

    text: str

    def __str__(self) -> str:
        return self.text


@final
@dataclass(frozen=True, slots=True)
class CellError:
    """What a formula gives in place of a value, such as #N/A; nothing, if the file was saved without its result."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


def cell_batches(
    table: CellTable,
    blocks: Iterator[tuple[int, Mapping[str, list[Any]]]],
    numbers: Sequence[str],
    texts: Sequence[str],
) -> Iterator[Any]:
    """Arrow tables of blocks of cells by column, which know how many rows came before: `numbers` as float64, `texts` as text."""
    import pyarrow as pa

    marks = table.missing
    words = frozenset((*GAPS, *marks.words))
    for seen, cells in blocks:
        kinds = {name: _kind_of(cells[name], words) for name in numbers}
        bad = {name: kind for name, kind in kinds.items() if kind != "number"}
        if bad:
            shown = listed(f"{name} ({kind})" for name, kind in bad.items())
            where = f"{table.source} cannot be read after row {seen}: columns must hold numbers; these do not: {shown}"
            typed = any(texts_are_numbers([cell for cell in cells[name] if isinstance(cell, str)]) for name in bad)
            advice = advice_for(bad) + ". Numbers that are stored as text must be stored as numbers first" * typed
            raise ColumnsError(where, tuple(bad), advice=advice, drop=to_drop(tuple(bad), numbers))
        arrays = [pa.array(list(map(_number, cells[name])), pa.float64()) for name in numbers]
        arrays += [pa.array(list(map(text_in, cells[name])), pa.string()) for name in texts]
        yield marks.taken_out(pa.table(arrays, names=[*numbers, *texts]))


def cell_faults(
    table: CellTable, blocks: Iterator[tuple[int, Mapping[str, list[Any]]]], numbers: Sequence[str]
) -> ColumnFaults:
    """What is wrong with columns that should be numbers."""
    import pyarrow as pa

    marks = table.missing
    words = frozenset((*GAPS, *marks.words))

    def columns() -> Iterator[tuple[str, Any]]:
        for _, cells in blocks:
            good = [name for name in numbers if _kind_of(cells[name], words) == "number"]
            found = [pa.array(list(map(_number, cells[name])), pa.float64()) for name in good]
            known = marks.taken_out(pa.table(found, names=good))
            yield from ((name, known.column(name) if name in good else None) for name in numbers)

    return ColumnFaults.found(columns())


def _kind_of(cells: Sequence[Any], words: frozenset[str]) -> str:
    """The kind of the cells of a column: number, or that of the first that is none."""
    for cell in cells:
        match cell:
            case None | float() | int():
                continue
            case str() if cell.strip() in words:
                continue
            case CellError() if cell.text in words and cell.text:
                continue
            case str():
                return "text"
            case CellDate():
                return "date"
            case CellError():
                return "error of a formula" if cell.text else "formula saved without its result"
        return "list or object"
    return "number"


def _number(cell: Any) -> float | None:
    """A cell of a column of numbers. Texts there are gaps."""
    if isinstance(cell, float):
        return cell
    if not isinstance(cell, int):
        return None
    try:
        return float(cell)
    except OverflowError:
        return math.inf if cell > 0 else -math.inf


def text_in(cell: Any) -> str | None:
    """A cell as text, as it is shown: whole numbers without a point."""
    match cell:
        case None:
            return None
        case bool():
            return str(cell).lower()
        case float() if cell.is_integer() and abs(cell) < 1e15:
            return str(int(cell))
        case dict() | list():
            return json.dumps(cell)
    return str(cell)
