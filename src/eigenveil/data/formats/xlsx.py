"""Sheets of xlsx files as tables: where the names of their columns are, and their rows. Errors name sheets and cells."""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.data.columns import require_names
from eigenveil.data.faults import ColumnFaults
from eigenveil.data.formats.base import AT_ONCE, Format, Output, Scored
from eigenveil.data.formats.cells import cell_batches, cell_faults, text_in
from eigenveil.data.formats.scores import lines_in, tables_of
from eigenveil.data.formats.unpacked import Padding
from eigenveil.data.formats.workbook import SheetWriter, Workbook, cell_name
from eigenveil.data.number_texts import MissingMarks, could_be_names
from eigenveil.errors import ParameterError, listed, require, verbatim

if TYPE_CHECKING:
    from eigenveil.data.formats.params import FileParams

__all__ = ["XLSX"]

# Rows at the top of a sheet that are looked at for its header.
_TOP: Final = 30


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
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
    def open(cls, source: Path, path: Path, how: "FileParams") -> "SheetTable":
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
        return cls(
            source=path,
            names=names,
            named=how.header,
            book=book,
            sheet=sheet,
            first=number + how.header,
            missing=MissingMarks.of(how),
        )

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Batches of cells, the `numbers` as float64."""
        yield from cell_batches(self, self._blocks(size), numbers, texts)

    def faults(self, numbers: Sequence[str]) -> ColumnFaults:
        """Of all rows: a sheet is not long."""
        return cell_faults(self, self._blocks(AT_ONCE), numbers)

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
    return text_in(cell) if isinstance(cell, float) else None


def _write(path: Path, names: list[str], scored: Iterator[Scored]) -> None:
    tables = tables_of(names, scored)
    first = next(tables)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, SheetWriter(archive) as sheet:
        sheet.write([first.schema.names])
        for table in (first, *tables):
            sheet.write(lines_in(table))


XLSX: Final = Format(
    word="xlsx",
    title="xlsx",
    suffixes=(".xlsx", ".xlsm"),
    open=SheetTable.open,
    rows=None,
    options=frozenset({"header", "skip_rows", "sheet"}),
    follow=None,
    outputs={".xlsx": Output(write=_write)},
    advice=dict.fromkeys((".xls", ".xlsb", ".ods", ".numbers"), "Save the sheet as .xlsx or .csv"),
)
