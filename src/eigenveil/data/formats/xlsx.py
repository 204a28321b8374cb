"""Sheets of xlsx files as tables: where the names of their columns are, and their rows. Errors name sheets and cells."""

import math
import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final
from xml.parsers import expat
from xml.sax.saxutils import escape

from eigenveil.data.columns import require_names
from eigenveil.data.formats.base import CellTable, Format, OddCell, Output, Scored, lines_in, tables_of, text_in
from eigenveil.data.formats.unpacked import Padding, UnpacksTooMuch, require_members
from eigenveil.data.number_texts import MissingMarks, could_be_names
from eigenveil.errors import ParameterError, join_names, require, verbatim

if TYPE_CHECKING:
    from eigenveil.data.formats.registry import FileParams

__all__ = ["XLSX", "SheetWriter", "Workbook", "cell_name"]

# The largest sheet of a spreadsheet program.
_MOST_ROWS, _MOST_COLUMNS = 1 << 20, 1 << 14
_BYTES: Final = 1 << 16
# XML elements that a sheet may have in any case, and for each of its values: each takes a microsecond, and no room when packed.
_FREE_ELEMENTS, _ELEMENTS_EACH = 1 << 22, 64
# And that the other parts may have in any case, and for each byte of the file: every text in their tables belongs to a cell.
_FREE_BESIDE, _BESIDE_EACH = 1 << 21, 2
# No tag or comment of an honest file is longer. The parser goes through an incomplete one again with each piece of the file.
_LONGEST_TAG: Final = 1 << 20
# What an old or encrypted file of Excel begins with.
_OLE: Final = bytes.fromhex("d0cf11e0a1b11ae1")
_DIGITS: Final = "0123456789"
# Number formats of dates and times that have no text in the file.
_DATES: Final = frozenset((*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)))
# Of a number format what stands for itself: quoted, escaped or bracketed text but for hours, minutes and seconds.
_LITERAL: Final = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?!(?:h+|m+|s+)\])[^\]]*\]|general', re.IGNORECASE)
# How a file writes truth values.
_TRUTH: Final = {"1": True, "true": True, "0": False, "false": False}
_DAYS: Final = (datetime(1899, 12, 30), datetime(1904, 1, 1))


class _Refused(ValueError):
    """A reason that may be shown."""


def cell_name(row: int, column: int) -> str:
    """The name of a cell, from its row, from 1, and its column, from 0.

    >>> cell_name(1, 0), cell_name(7, 27)
    ('A1', 'AB7')
    """
    letters, column = "", column + 1
    while column:
        column, digit = divmod(column - 1, 26)
        letters = chr(65 + digit) + letters
    return f"{letters}{row}"


class _Columns(dict[str, int]):
    """Columns from 0 by their letters."""

    def __missing__(self, letters: str) -> int:
        column = 0
        for letter in letters.upper():
            column = column * 26 + "ABCDEFGHIJKLMNOPQRSTUVWXYZ".index(letter) + 1
        if not 0 < column <= _MOST_COLUMNS:
            raise ValueError
        return self.setdefault(letters, column - 1)


class _Locals(dict[str, str]):
    """Names of elements without a prefix."""

    def __missing__(self, tag: str) -> str:
        local = tag.rpartition(":")[2]
        # A file may have as many names as it likes, and they need not be held.
        return self.setdefault(tag, local) if len(self) < 1000 else local


@contextmanager
def _reading(path: Path, last_row: int | None = None) -> Iterator[None]:
    """Replace errors of the libraries, whose words may quote what the file holds."""
    try:
        yield
    except (_Refused, UnpacksTooMuch):
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, struct.error, expat.ExpatError, EOFError, OSError, LookupError),
        *(ValueError, ArithmeticError, NotImplementedError, RuntimeError),
    ):
        position = "" if last_row is None else f" after row {last_row}"
        raise ValueError(f"{path} cannot be read as xlsx{position}: it is damaged, or no xlsx file") from None


@final
@dataclass(frozen=True, kw_only=True)
class Workbook:
    """The sheets of an xlsx file by name, in its order, hidden ones too, and what their cells refer to."""

    path: Path
    sheets: Mapping[str, str]
    _texts: str | None
    _styles: str | None
    _later: bool  # Whether days are counted from 1904.

    @classmethod
    def open(cls, path: Path) -> "Workbook":
        """The list of sheets is read now. A file that unpacks to too much is refused before any part of it is opened."""
        sheets, later = dict[str, str](), False
        with _reading(path):
            with path.open("rb") as file:
                old = file.read(len(_OLE)) == _OLE
            if old:
                raise _Refused(f"{path} is an old .xls file, or protected by a password. Save it as .xlsx without one")
            require_members(path, advice="If you trust it, open it in a spreadsheet program and save it as csv")
            with zipfile.ZipFile(path) as archive:
                book = dict(_relations(archive, path, "").values())["officeDocument"]
                if book.endswith(".bin"):
                    raise _Refused(f"{path} is a binary workbook (.xlsb). Save it as .xlsx")
                parts = _relations(archive, path, book)
                for name, content in _events(archive, path, book):
                    if name == "sheet" and isinstance(content, dict):
                        # The attribute has whatever prefix the file gives it.
                        local = {key.rpartition(":")[2]: value for key, value in content.items()}
                        kind, target = parts[local["id"]]
                        # Other kinds are charts and dialogs, which have no cells.
                        if kind == "worksheet":
                            sheets[content["name"]] = target
                    elif name == "workbookPr" and isinstance(content, dict):
                        later = content.get("date1904", "0") in ("1", "true")
            require(bool(sheets), "no sheet")
        by_kind = dict(parts.values())
        return cls(path=path, sheets=sheets, _texts=by_kind.get("sharedStrings"), _styles=by_kind.get("styles"), _later=later)

    def _part(self, part: str | None) -> Iterator[tuple[str, Any]]:
        """The elements of a part of the file; none if it is left out."""
        if part is not None:
            with _reading(self.path), zipfile.ZipFile(self.path) as archive:
                yield from _events(archive, self.path, part)

    @cached_property
    def texts(self) -> Sequence[str]:
        """The table of texts that cells refer to. Equal ones are held once."""
        strings, unique, pieces, spoken = list[str](), dict[str, str](), list[str](), False
        for name, content in self._part(self._texts):
            match name, content:
                case "si", dict():
                    pieces = []
                case "rPh", _:
                    # How a text is pronounced is no part of it.
                    spoken = isinstance(content, dict)
                case "t", str() if not spoken:
                    pieces.append(content)
                case "si", str():
                    text = "".join(pieces)
                    strings.append(unique.setdefault(text, text))
        return strings

    @cached_property
    def dates(self) -> frozenset[str]:
        """The numbers of the styles that show a number as a date or a time."""
        formats, styles, inside, count = dict[str, str](), set[str](), False, 0
        with _reading(self.path):
            for name, content in self._part(self._styles):
                if name == "cellXfs":
                    inside = isinstance(content, dict)
                if not isinstance(content, dict):
                    continue
                if name == "numFmt":
                    formats[content["numFmtId"]] = content["formatCode"]
                elif name == "xf" and inside:
                    number = content.get("numFmtId", "0")
                    code = _LITERAL.sub("", formats[number]) if number in formats else None
                    if int(number) in _DATES if code is None else re.search(r"[dmyhs]", code, re.IGNORECASE):
                        styles.add(str(count))
                    count += 1
        return frozenset(styles)

    def rows(self, sheet: str) -> Iterator[tuple[int, list[Any]]]:
        """The rows of a sheet that have a value, with their numbers from 1. Cells are those of `CellTable`."""
        texts, dates, last_row = self.texts, self.dates, 0
        with _reading(self.path):
            archive = zipfile.ZipFile(self.path)
        with archive:
            with _reading(self.path):
                file = _member(archive, self.path, self.sheets[sheet])
                parser = _SheetParser(texts, dates, _DAYS[self._later])
            while not parser.ended:
                with _reading(self.path, last_row):
                    ready = parser.feed(file.read(_BYTES), self.path)
                for number, row in ready:
                    yield number, row
                    last_row = number
            with _reading(self.path, last_row):
                # To its end, where Python compares the checksum.
                while file.read(_BYTES):
                    pass


def _member(archive: zipfile.ZipFile, path: Path, name: str) -> Any:
    # Some programs write names with other letters than they refer to.
    members = {member.filename.lower().lstrip("/"): member for member in archive.infolist()}
    member = members[name.lower().lstrip("/")]
    if member.flag_bits & 1:
        raise _Refused(f"{path} is protected by a password. Save it without one")
    return archive.open(member)


def _relations(archive: zipfile.ZipFile, path: Path, part: str) -> dict[str, tuple[str, str]]:
    """What a part of the file refers to: the kind and the name of the other part, by the id of the relation."""
    folder, name = posixpath.split(part)
    relations = {}
    for element, content in _events(archive, path, posixpath.join(folder, "_rels", f"{name}.rels")):
        if element == "Relationship" and isinstance(content, dict):
            target = posixpath.normpath(posixpath.join("/", folder, content["Target"])).lstrip("/")
            relations[content["Id"]] = (content["Type"].rpartition("/")[2], target)
    return relations


def _parser(path: Path) -> Any:
    def refuse(*_: Any) -> None:
        raise _Refused(
            f"{path} has a document type declaration (DTD), which no spreadsheet program writes and which may be an attack. "
            "Open it in a spreadsheet program and save it again"
        )

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse
    return parser


def _fed(parser: Any, chunk: bytes, before: int, path: Path) -> int:
    """How many bytes the parser has with this piece, after those `before`. Refuses a tag or comment that continues for long."""
    parser.Parse(chunk)
    fed = before + len(chunk)
    if fed - parser.CurrentByteIndex > _LONGEST_TAG:
        raise _Refused(f"{path} has a tag or comment of over {_LONGEST_TAG >> 20} MiB. Save the sheet as csv")
    return fed


def _events(archive: zipfile.ZipFile, path: Path, part: str) -> Iterator[tuple[str, Any]]:
    """The elements of a part: each with its attributes where it begins, and with its text where it ends."""
    parser, names = _parser(path), _Locals()
    ready: list[tuple[str, Any]] = []
    texts: list[str] = []
    left = max(_FREE_BESIDE, _BESIDE_EACH * path.stat().st_size)

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise _Refused(f"{path} has millions of elements that belong to no cell. Save the sheet as csv")
        texts.clear()
        ready.append((names[tag], attributes))

    def end(tag: str) -> None:
        ready.append((names[tag], "".join(texts)))
        texts.clear()

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = texts.append
    with _member(archive, path, part) as file:
        fed = 0
        while chunk := file.read(_BYTES):
            fed = _fed(parser, chunk, fed, path)
            yield from ready
            ready.clear()
        parser.Parse(b"", True)


@final
class _SheetParser:
    """The cells of a sheet from pieces of its XML. Changes in place: it holds the row that is not complete yet."""

    def __init__(self, texts: Sequence[str], dates: frozenset[str], first_day: datetime) -> None:
        self.ended = False
        self._texts, self._dates, self._first_day = texts, dates, first_day
        self._ready: list[tuple[int, list[Any]]] = []
        self._parser: Any = None
        self._fed = 0

    def feed(self, chunk: bytes, path: Path) -> list[tuple[int, list[Any]]]:
        """The rows that are complete with this piece. An empty one ends the sheet."""
        if self._parser is None:
            self._parser = self._made(path)
        if chunk:
            self._fed = _fed(self._parser, chunk, self._fed, path)
        else:
            self._parser.Parse(b"", True)
            self.ended = True
        rows = self._ready[:]
        self._ready.clear()
        return rows

    def _made(self, path: Path) -> Any:
        # Local variables, because there are three calls for each cell of a sheet.
        names, columns, ready, value_of = _Locals(), _Columns(), self._ready, self._value
        row: list[Any] = []
        texts: list[str] = []
        number = elements = values = 0
        max_elements = _FREE_ELEMENTS
        column, kind, style = -1, "n", None
        reading = spoken = formula = inside = False
        value: str | None = None

        def start(tag: str, attributes: dict[str, str]) -> None:
            nonlocal row, number, elements, max_elements, column, kind, style, reading, spoken, formula, inside, value
            elements += 1
            if elements > max_elements:
                max_elements = max(_FREE_ELEMENTS, _ELEMENTS_EACH * values)
                if elements > max_elements:
                    raise _Refused(f"{path} has millions of cells without a value. Save the sheet as csv")
            match names[tag]:
                case "c" if inside:
                    ref = attributes.get("r")
                    column = column + 1 if ref is None else columns[ref.rstrip(_DIGITS)]
                    if column >= _MOST_COLUMNS:
                        raise ValueError
                    kind, style = attributes.get("t", "n"), attributes.get("s")
                    value, formula = None, False
                case "v" | "t" as part:
                    # A text has pieces, and a value does not: two of them would make one number of their digits.
                    if part == "v" and value is not None:
                        raise ValueError
                    reading = inside and not spoken
                    texts.clear()
                case "row" if inside:
                    ref, last = attributes.get("r"), number
                    number = number + 1 if ref is None else int(ref)
                    column, row = -1, []
                    # In another order the header could come last, and rows that are not below it would be lost.
                    if not last < number <= _MOST_ROWS:
                        raise ValueError
                case "f":
                    formula = True
                case "rPh":
                    spoken = True
                case "sheetData":
                    inside = True

        def end(tag: str) -> None:
            nonlocal reading, spoken, inside, value, values
            match names[tag]:
                case "v" | "t":
                    if reading:
                        value = (value or "") + "".join(texts)
                    reading = False
                case "c" if inside:
                    cell = value_of(kind, value, style, formula=formula)
                    if cell is not None:
                        values += 1
                        if column < len(row) and row[column] is not None:
                            raise ValueError
                        row.extend([None] * (column + 1 - len(row)))
                        row[column] = cell
                case "row" if inside:
                    if row:
                        ready.append((number, row))
                case "rPh":
                    spoken = False
                case "sheetData":
                    inside, self.ended = False, True

        def text(piece: str) -> None:
            if reading:
                texts.append(piece)

        parser = _parser(path)
        parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
        return parser

    def _value(self, kind: str, value: str | None, style: str | None, *, formula: bool) -> Any:
        if value is None or (value == "" and kind == "n"):
            # A program that does not calculate leaves the result out, and a gap in its place would be a silent loss.
            return OddCell("", "formula saved without its result") if formula else None
        match kind:
            case "n":
                number = float(value)
                return self._date(number) if style in self._dates else number
            case "s":
                index = int(value)
                if index < 0:
                    raise ValueError
                return self._texts[index]
            case "b":
                return _TRUTH[value]
            case "e":
                return OddCell(value, "error of a formula" if value else "formula saved without its result")
            case "d":
                return OddCell(value, "date")
        return value

    def _date(self, days: float) -> OddCell:
        try:
            # Excel has a 29th of February 1900, and days before it are one off.
            early = self._first_day == _DAYS[0] and days < 60
            when = self._first_day + timedelta(days=days + early, microseconds=500)
        except (OverflowError, ValueError):
            return OddCell(repr(days), "date")
        when = when.replace(microsecond=when.microsecond // 1000 * 1000)
        return OddCell(str(when if abs(days) >= 1 else when.time()), "date")


_MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATED: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_KINDS: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml"
# Style 1 is for text: with it a program never takes a text for a formula, not even when the cell is edited.
_PARTS: Final = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    + "".join(
        f'<Override PartName="/xl/{part}.xml" ContentType="{_KINDS}.{kind}+xml"/>'
        for part, kind in (("workbook", "sheet.main"), ("worksheets/sheet1", "worksheet"), ("styles", "styles"))
    )
    + "</Types>",
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" '
    f'Type="{_RELATED}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" '
    f'Type="{_RELATED}/worksheet" Target="worksheets/sheet1.xml"/><Relationship Id="rId2" Type="{_RELATED}/styles" '
    'Target="styles.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATED}"><sheets><sheet name="scores" sheetId="1" '
    'r:id="rId1"/></sheets></workbook>',
    "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><fonts count="1"><font><sz val="11"/><name val="Calibri"/></font></fonts>'
    '<fills count="2"><fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill></fills>'
    '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders><cellStyleXfs count="1">'
    '<xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs><cellXfs count="2">'
    '<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>'
    '<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0" quotePrefix="1"/></cellXfs>'
    '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>',
}
_HEADING: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
# What XML has no character for, and a carriage return, which it would turn into a line feed.
_NO_CHARACTER: Final = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff\ud800-\udfff]|_(?=x[0-9A-Fa-f]{4}_)")
_LONGEST_TEXT: Final = 32_767
# A larger whole number, such as an id, would lose digits in a spreadsheet program, and becomes text.
_LARGEST_EXACT: Final = 10**15


@final
class SheetWriter:
    """The single sheet of a new xlsx file, written row by row. Changes in place. Text is never a formula."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        for name, content in _PARTS.items():
            archive.writestr(name, _HEADING + content)
        self._file = archive.open("xl/worksheets/sheet1.xml", "w", force_zip64=True)
        self._count = 0
        self._letters: list[str] = []

    def __enter__(self) -> "SheetWriter":
        self._file.write(f'{_HEADING}<worksheet xmlns="{_MAIN}"><sheetData>'.encode())
        return self

    def __exit__(self, *_: object) -> None:
        self._file.write(b"</sheetData></worksheet>")
        self._file.close()

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows of numbers, truth values, texts and None."""
        for row in rows:
            self._count += 1
            fits = self._count <= _MOST_ROWS and len(row) <= _MOST_COLUMNS
            require(fits, f"an xlsx has at most {_MOST_ROWS} rows and {_MOST_COLUMNS} columns. Write to .csv or .parquet")
            self._letters += [cell_name(1, index)[:-1] for index in range(len(self._letters), len(row))]
            cells = "".join(_written(f"{letters}{self._count}", cell) for letters, cell in zip(self._letters, row, strict=False))
            self._file.write(f'<row r="{self._count}">{cells}</row>'.encode())


def _written(ref: str, cell: Any) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return f'<c r="{ref}" t="b"><v>{int(cell)}</v></c>'
        case float() if math.isfinite(cell):
            return f'<c r="{ref}"><v>{cell!r}</v></c>'
        case int() if abs(cell) < _LARGEST_EXACT:
            return f'<c r="{ref}"><v>{cell}</v></c>'
        case float():
            # A sheet has no cell for NaN.
            return ""
    text = _NO_CHARACTER.sub(lambda matched: f"_x{ord(matched[0]):04X}_", str(cell))
    fits = len(text) <= _LONGEST_TEXT
    require(fits, f"a cell of an xlsx has at most {_LONGEST_TEXT} characters. Write to .csv or .parquet")
    return f'<c r="{ref}" s="1" t="inlineStr"><is><t xml:space="preserve">{escape(text)}</t></is></c>'


# Rows at the top of a sheet that are looked at for its header.
_TOP: Final = 30


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SheetTable(CellTable):
    """One sheet of an xlsx file, with its column names in the first row that is not empty."""

    book: Workbook
    sheet: str
    first: int  # The first row of values.

    @classmethod
    def open(cls, source: Path, path: Path, how: "FileParams") -> "SheetTable":
        """The names are read now, and the rows below them are looked at in case the names are further down."""
        book = Workbook.open(path)
        sheets, sheet = list(book.sheets), how.sheet
        if sheet is None and len(sheets) > 1:
            raise ParameterError(f"{verbatim(f'{path} has several sheets: {join_names(sheets)}')}. Say which with {{sheet}}")
        sheet = sheets[0] if sheet is None else sheet
        if sheet not in sheets:
            raise ParameterError(f"{verbatim(f'{path} has no sheet {sheet!r}; it has {join_names(sheets)}')}. Check {{sheet}}")
        rows = (row for row in book.rows(sheet) if row[0] > how.skip_rows)
        top = list(islice(rows, _TOP))
        where = f"{path}, sheet {sheet!r}"
        below = f" below row {how.skip_rows}" * (how.skip_rows > 0)
        require(bool(top), f"{where} is empty{below}. It needs a row of column names, and rows under it")
        number = top[0][0]
        if not how.header:
            names = tuple(f"column {index}" for index in range(1, max(len(row) for _, row in top) + 1))
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

    def blocks(self, size: int) -> Iterator[tuple[int, Mapping[str, list[Any]]]]:
        """Cells of rows, all as wide as the names."""
        width, padding = len(self.names), Padding(self.source, len(self.names))
        # Rows below the table that are empty, or were only formatted, are no rows.
        rows = (row for row in self.book.rows(self.sheet) if row[0] >= self.first)
        n_read = 0
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
            yield n_read, dict(zip(self.names, map(list, columns), strict=True))
            n_read += len(block)


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
    texts = [(text_in(cell) or "").strip() for cell in header]
    bad = next((index for index, cell in enumerate(header) if not isinstance(cell, str | float | None)), None)
    if bad is not None:
        raise ParameterError(
            f"{verbatim(where)}: cell {cell_name(number, bad)} must be a column name, and holds a date, a truth value or an "
            f"error. {hint or 'Write a name there'}"
        )
    numbers = [index for index, cell in enumerate(header) if isinstance(cell, float)]
    # Names may count up, such as years. A single number is as likely a person's.
    if len(numbers) == 1 or not could_be_names(texts):
        at = f"cell {cell_name(number, numbers[0])}" if numbers else f"row {number}"
        raise ParameterError(
            f"{verbatim(where)}: {at} has a number where a column name must be, and names are written to the model. "
            f"{hint or 'Add a row of names, or say {header=False}'}"
        )
    # As in a csv: pandas writes row numbers under no name at all.
    return tuple(name or f"Unnamed: {index}" for index, name in enumerate(texts))


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
