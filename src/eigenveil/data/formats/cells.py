"""Tables whose cells have types and whose columns have none: sheets of xlsx files, and lines of JSON objects.

A column is read as numbers if all its cells are numbers, truth values or gaps, and refused otherwise. Errors name columns, rows
and places of cells, and never show a cell.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, final

from eigenveil.data.columns import advice_for, require_names
from eigenveil.data.faults import ColumnFaults, to_drop
from eigenveil.data.formats.csv import could_be_names, lines_of
from eigenveil.data.formats.unpacked import Padding, require_bearable
from eigenveil.data.formats.xlsx import CellDate, CellError, Workbook, cell_name
from eigenveil.data.number_texts import GAPS, MissingMarks, texts_are_numbers
from eigenveil.errors import ColumnsError, ParameterError, listed, require, verbatim
from eigenveil.params.declarations.reading import FileParams

__all__ = ["JsonTable", "SheetTable"]

# Rows that are looked at together for an error, and at the top of a sheet for its header.
_AT_ONCE: Final = 1 << 14
_TOP: Final = 30


@final
@dataclass(frozen=True, slots=True, eq=False)
class SheetTable:
    """One sheet of an xlsx file, with its column names in the first row that is not empty."""

    source: Path
    names: tuple[str, ...]
    named: bool
    book: Workbook
    sheet: str
    first: int  # The first row of values.
    missing: MissingMarks
    kinds: None = None
    count: None = None
    once: bool = False

    @classmethod
    def open(cls, path: Path, how: FileParams) -> "SheetTable":
        """The names are read now, and the rows below them are looked at in case the names are further down."""
        book = Workbook.open(path)
        sheet = _sheet(book, how.sheet)
        rows = (row for row in book.rows(sheet) if row[0] > how.skip_rows)
        top = list(islice(rows, _TOP))
        where = f"{path}, sheet {sheet!r}"
        below = f" below row {how.skip_rows}" * (how.skip_rows > 0)
        require(bool(top), f"{where} is empty{below}. It needs a row of column names, and rows under it")
        number = top[0][0]
        if not how.header:
            names = tuple(f"column {place}" for place in range(1, max(len(row) for _, row in top) + 1))
        else:
            names = _names(where, top)
            require_names(path, names, ())
        return cls(path, names, how.header, book, sheet, number + how.header, MissingMarks(how.na_values or ()))

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Batches of cells, the `numbers` as float64."""
        yield from _batches(self, self._blocks(size), numbers, texts)

    def faults(self, numbers: Sequence[str]) -> ColumnFaults:
        """Of all rows: a sheet is not long."""
        return _faults(self, self._blocks(_AT_ONCE), numbers)

    def _blocks(self, size: int) -> "Iterator[tuple[int, Mapping[str, list[Any]]]]":
        width, padding = len(self.names), Padding(self.source, len(self.names))
        # Rows below the table that are empty, or were only formatted, are no rows.
        rows = (row for row in self.book.rows(self.sheet) if row[0] >= self.first)
        seen = 0
        while block := list(islice(rows, size)):
            for number, row in block:
                if len(row) > width:
                    raise ParameterError(
                        f"{verbatim(f'{self.source}, sheet {self.sheet!r}')}: cell {cell_name(number, width)} or one to its "
                        "right has a value, and there is no column name above it. Name the column or empty it, or say with "
                        "{skip_rows} how many rows stand above the names"
                    )
                padding.add(len(row) - row.count(None))
                row.extend([None] * (width - len(row)))
            columns = zip(*(row for _, row in block), strict=True)
            yield seen, dict(zip(self.names, map(list, columns), strict=True))
            seen += len(block)


def _sheet(book: Workbook, name: str | None) -> str:
    sheets = list(book.sheets)
    if name is None and len(sheets) > 1:
        raise ParameterError(
            f"{verbatim(f'{book.path} has several sheets: {listed(sheets)}')}. Say which with {{sheet}}"
        )
    found = sheets[0] if name is None else name
    if found not in sheets:
        raise ParameterError(
            f"{verbatim(f'{book.path} has no sheet {found!r}; it has {listed(sheets)}')}. Check {{sheet}}"
        )
    return found


def _names(where: str, top: Sequence[tuple[int, list[Any]]]) -> tuple[str, ...]:
    """The column names in the first of the rows. What is wrong with them is told by the names of cells."""
    number, header = top[0]
    widest = max(len(row) for _, row in top)
    # Title rows have fewer cells than the table, and names are text.
    lower = next((at for at, row in top if len(row) == widest and all(isinstance(cell, str) for cell in row)), None)
    hint = f"If the names are in row {lower}, give {{skip_rows={lower - 1}}}" if lower not in (None, number) else ""
    if len(header) < widest:
        columns = f"{len(header)} column{'s' * (len(header) > 1)}"
        raise ParameterError(
            f"{verbatim(where)}: the first row with a value is row {number}. It has {columns}, and a row below it "
            f"has {widest}. {hint or f'Name each column in row {number}, or say with {{skip_rows}} where the names are'}"
        )
    names = [_name(cell) for cell in header]
    bad = next((place for place, name in enumerate(names) if name is None), None)
    if bad is not None:
        raise ParameterError(
            f"{verbatim(where)}: cell {cell_name(number, bad)} must be a column name, and holds a date, a truth value or an "
            f"error. {hint or 'Write a name there'}"
        )
    texts = [name or "" for name in names]
    numbers = [place for place, cell in enumerate(header) if isinstance(cell, float)]
    # Names may count up, such as years. A single number is as likely a person's.
    if len(numbers) == 1 or not could_be_names(texts):
        at = f"cell {cell_name(number, numbers[0])}" if numbers else f"row {number}"
        raise ParameterError(
            f"{verbatim(where)}: {at} has a number where a column name must be, and names are written to the model. "
            f"{hint or 'Add a row of names, or say {header=False}'}"
        )
    # As in a csv: pandas writes row numbers under no name at all.
    return tuple(name or f"Unnamed: {place}" for place, name in enumerate(texts))


def _name(cell: Any) -> str | None:
    """The name in a cell, empty if it has none; None if it cannot be one."""
    if cell is None or isinstance(cell, str):
        return (cell or "").strip()
    return _text(cell) if isinstance(cell, float) else None


@final
@dataclass(frozen=True, slots=True, eq=False)
class JsonTable:
    """Lines of JSON objects. The keys of the first are the column names, and no other line may have more."""

    source: Path
    names: tuple[str, ...]
    how: FileParams
    named: bool = True
    kinds: None = None
    count: None = None
    once: bool = False

    @classmethod
    def open(cls, path: Path, how: FileParams) -> "JsonTable":
        """The first line is read now."""
        # Lines are read more than once, and a pipe would lose the first of them.
        require(
            path.is_file(),
            f"{path}: jsonl cannot be read from a pipe. Use a file, or send csv or arrow through the pipe",
        )
        require_bearable(path)
        first = next(_objects(path, how), None)
        require(first is not None, f"{path} is empty. It needs a JSON object on each line")
        assert first is not None
        require(len(first) > 0, f"{path}: the first line has no keys. They are the column names")
        return cls(path, tuple(first), how)

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Batches of values, the `numbers` as float64."""
        yield from _batches(self, self._blocks(size), numbers, texts)

    def faults(self, numbers: Sequence[str]) -> ColumnFaults:
        """Of all lines."""
        return _faults(self, self._blocks(_AT_ONCE), numbers)

    @property
    def missing(self) -> MissingMarks:
        """What stands for a missing value besides null."""
        return MissingMarks(self.how.na_values or ())

    def _blocks(self, size: int) -> "Iterator[tuple[int, Mapping[str, list[Any]]]]":
        known, padding, seen = frozenset(self.names), Padding(self.source, len(self.names)), 0
        objects = _objects(self.source, self.how)
        while block := list(islice(objects, size)):
            for place, one in enumerate(block):
                require(
                    known.issuperset(one),
                    f"{self.source} cannot be read after row {seen + place}: the next line has a key that the first one lacks. "
                    "The first line must have all keys, with null where a value is missing",
                )
                padding.add(len(one))
            yield seen, {name: [one.get(name) for one in block] for name in self.names}
            seen += len(block)


class _Twice(ValueError):
    """An object of JSON has two members of one name."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _objects(path: Path, how: FileParams) -> Iterator[dict[str, Any]]:
    seen = 0
    for chunk in lines_of(path, path, how):
        for line in chunk.split(b"\n"):
            if not line.strip():
                continue
            try:
                found = json.loads(line, object_pairs_hook=_members)
            except _Twice:
                raise ValueError(
                    f"{path} cannot be read after row {seen}: the next line has a key twice. Which of its values counts is not "
                    "guessed. Remove one of them"
                ) from None
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                whole = ". It is JSON in one piece: write one object per line, such as with jq -c '.[]'"
                raise ValueError(
                    f"{path} cannot be read after row {seen}: the next line is not a JSON object"
                    + (whole if seen == 0 and line.lstrip()[:1] in (b"[", b"{") else "")
                )
            yield found
            seen += 1


def _batches(
    table: "SheetTable | JsonTable",
    blocks: Iterator[tuple[int, Mapping[str, list[Any]]]],
    numbers: Sequence[str],
    texts: Sequence[str],
) -> Iterator[Any]:
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
        arrays += [pa.array(list(map(_text, cells[name])), pa.string()) for name in texts]
        yield marks.taken_out(pa.table(arrays, names=[*numbers, *texts]))


def _faults(
    table: "SheetTable | JsonTable", blocks: Iterator[tuple[int, Mapping[str, list[Any]]]], numbers: Sequence[str]
) -> ColumnFaults:
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
            case _:
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


def _text(cell: Any) -> str | None:
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
        case _:
            return str(cell)
