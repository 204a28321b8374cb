"""csv text: its header, its dialect, and blocks whose types are given and never inferred.

The separator is read from the header line, which is public. Decimal mark, quotes and encoding are options. A field is a number,
a truth value (true or false), or missing, by the same rule in every block, so that no row decides how another one is read. Lines
are parsed as they arrive. Errors name columns and places, never a value.

There are two parsers with the same rules, which a test compares: `CsvTable` makes Arrow batches of files of any size, and
`TextRows` reads lines with Python and numpy alone, for devices that have no memory for pyarrow.
"""

import csv
import io
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.data.columns import LOOKED_AT, ColumnChoice, ColumnFaults, advice_for, require_entries, to_drop
from eigenveil.data.formats.base import Format, NamedTable, Output, write_tables
from eigenveil.data.formats.text import BOM, BYTES_OF_FILE, LONGEST_LINE, below, chunks_of, whole_lines
from eigenveil.data.formats.unpacked import PACKED, require_bearable, require_names_borne
from eigenveil.data.number_texts import NumberFormat, could_be_names, could_be_number, texts_are_numbers
from eigenveil.errors import ColumnsError, ParameterError, join_names, require, verbatim

if TYPE_CHECKING:
    from eigenveil.data.formats.registry import FileParams
    from eigenveil.linalg import Array

__all__ = ["CSV", "CsvHeader", "CsvTable", "TextRows", "preamble", "whole_records"]

# How much of a file is looked at for a header further down.
_TOP, _TOP_BYTES = 40, 1 << 16
_SEPARATORS: Final = (",", ";", "\t", "|")
_NAMED: Final = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "|"}
# What files of other kinds begin with, and what to do about them, templates.
_OTHERS: Final = {
    b"PK\x03\x04": "is a zip file, as sheets and .npz are. Rename it to .xlsx or .npz, or unpack it",
    b"\x1f\x8b": "is packed with gzip. Rename it to end in .csv.gz",
    b"\x28\xb5\x2f\xfd": "is packed with zstd. Rename it to end in .csv.zst",
    b"\xd0\xcf\x11\xe0": "is an old Excel file (.xls). Save it as .xlsx or .csv",
    b"PAR1": "is a Parquet file. Give {kind=parquet}",
    b"ARROW1": "is an Arrow file. Give {kind=arrow}",
    b"\xff\xfe": "is not UTF-8 text. Give {encoding=utf-16}",
    b"\xfe\xff": "is not UTF-8 text. Give {encoding=utf-16}",
}
# What Excel writes above the header to say which separator follows.
_SAID: Final = re.compile(rb'"?sep=([^\w\s"]|\t)"?\r?\n?', re.IGNORECASE)
# Numbers as people write them, and a sign alone: with nothing else in a cell they start no formula.
_HARMLESS: Final = r"^[ ]*[+-]?[ ]*(?:(?:[0-9][0-9.,' \x{a0}\x{202f}\x{2019}]*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?[ ]*%?)?[ ]*$"
# Where a formula may begin: in front, and behind a character at which a program in another language splits cells, also after a
# quote that it takes for an empty cell. The wide signs count in East Asian programs.
_STARTS: Final = r'(^|[;|\t\r\n])([ "]*[=+\-@\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}])'
_LEADING: Final = r"^([\t\r\n])"
# Where a line has no other bytes, Python reads its numbers by the same rules. It is most lines, and four times as fast.
_PLAIN: Final = b'0123456789+-.eE \t,;|"\r\n'
_COMMENTS: Final = ". If lines that begin with # are comments, give {comment=#}"


def separator_said(line: bytes) -> str | None:
    """The separator that a line such as sep=; above the header states, as Excel writes it; None for any other line.

    >>> separator_said(b"sep=;\\r\\n"), separator_said(b"sep,mean\\n")
    (';', None)
    """
    matched = _SAID.fullmatch(line)
    return None if matched is None else matched[1].decode()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CsvHeader:
    """What the first line of a csv says, with what the caller says: its column names and its separator."""

    source: Path
    names: tuple[str, ...]
    named: bool  # The names are those of a header. Otherwise they were made up.
    separator: str
    how: "FileParams"

    @classmethod
    def of(cls, line: bytes, name: Path, how: "FileParams") -> "CsvHeader":
        """From the first line, in UTF-8, of the file `name`."""
        for begin, problem in _OTHERS.items():
            if line.startswith(begin):
                raise ParameterError(f"{verbatim(str(name))} {problem}")
        try:
            first = line.decode().strip("\r")
        except UnicodeDecodeError:
            raise ParameterError(
                f"{verbatim(str(name))} is not UTF-8 text. Give its {{encoding}}, such as cp1252 (Windows) or latin-1"
            ) from None
        require("\r" not in first, f"{name} has lines that end in a carriage return alone. Save it with line feeds, as csv has")
        if "\0" in first:
            raise ParameterError(f"{verbatim(str(name))} has NUL bytes in its first line. Give its {{encoding}}, such as utf-16")
        separator = how.separator or (_separator(first, name, how) if how.header else ",")
        if separator == how.decimal and how.quote is None:
            raise ParameterError(
                f"{verbatim(str(name))} has commas between its columns and as decimal mark. Give another {{separator}}"
            )
        for own, others in (("thousands", ("decimal", "quote")), ("comment", ("quote",))):
            for other in others:
                if getattr(how, own) is not None and getattr(how, own) == getattr(how, other):
                    raise ParameterError(f"{{{own}}} and {{{other}}} are the same character. Give another one")
        if how.comment == separator:
            raise ParameterError("{comment} is the character between columns. Give another one")
        try:
            fields = [field.strip() for field in split_line(first, separator, how)]
        except csv.Error:
            raise ValueError(f"{name} has a first line that is not separated values: a quote is open") from None
        single = fields[0] if len(fields) == 1 else ""
        if any(other in single for other in _SEPARATORS):
            # The line itself is not shown: it may be a person's.
            raise ParameterError(f"{verbatim(str(name))} has another character between its columns. Give it with {{separator}}")
        if how.header and not could_be_names(fields):
            # The first row, a person's data, would become the column names, which every model file shows.
            raise ParameterError(
                f"{verbatim(str(name))} seems to have no header line: its first line has numbers, and column names are "
                "written to the model. Add a line of names, or say {header=False}"
            )
        # pandas writes row numbers under no name at all, and calls them "Unnamed: 0" when it reads them.
        labels = [field or f"Unnamed: {index}" for index, field in enumerate(fields)]
        names = labels if how.header else [f"column {i}" for i in range(1, len(fields) + 1)]
        return cls(source=name, names=tuple(names), named=how.header, separator=separator, how=how)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CsvTable(NamedTable):
    """A csv file, or a pipe that can be read once: its header, and its rows in blocks."""

    header: CsvHeader
    begun: tuple[Iterator[bytes], bytes] | None  # The lines of a pipe, and the chunk that begins with its first line.

    @classmethod
    def open(cls, file: Any, name: Path, how: "FileParams") -> "CsvTable":
        """The table in a file by its path, or in an open binary file. Its header line is read and checked now."""
        once = not isinstance(file, Path) or file.is_fifo()
        if not once:
            require_bearable(file)
        lines, head, separator = _begun(file, name, how)
        # What a caller says counts more.
        if separator is not None and how.separator is None:
            how = replace(how, separator=separator)
        if not once:
            lines.close()
        header = CsvHeader.of(head.partition(b"\n")[0], name, how)
        if not once:
            require_names_borne(file, len(header.names))
        begun = (lines, head) if once else None
        return cls(source=name, names=header.names, named=header.named, once=once, header=header, begun=begun)

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Arrow tables with the columns `numbers` as float64 and `texts` as they are written, block by block."""
        for table in _Blocks(self, tuple(numbers), tuple(texts)).of(*self._rows()):
            for start in range(0, table.num_rows, size):
                yield table.slice(start, size)

    def faults(self, numbers: Sequence[str]) -> ColumnFaults:
        """What is wrong with columns in the beginning of a file, read as text. It ends early where a line is no row."""
        form = NumberFormat.of(self.header.how)

        def columns() -> Iterator[tuple[str, Any]]:
            lines, first = self._rows()
            # A bad line is told when the table is read.
            with suppress(ValueError):
                for table in _Blocks(self, (), tuple(numbers)).of(islice(lines, LOOKED_AT // BYTES_OF_FILE), first):
                    yield from ((name, form.column(table.column(name))) for name in numbers)

        return ColumnFaults.found(columns())

    def _rows(self) -> tuple[Iterator[bytes], bytes]:
        """The lines below the header, and those that were read with it."""
        lines, head = self.begun or _begun(self.source, self.source, self.header.how)[:2]
        return lines, head.partition(b"\n")[2] if self.named else head

    def header_fault(self) -> tuple[str, bool]:
        """What to say where the first row does not fit the header, a template: names further down, or comments. And whether
        the header is likely to be a comment or a title, by what it holds."""
        lower = None if self.once or not self.named else _names_below(self.source, self.header.how)
        hint = "" if lower is None else f". If the column names are in line {lower + 1}, give {{skip_rows={lower}}}"
        commented = self.names[0].startswith("#")
        hint += _COMMENTS * (self.header.how.comment is None and commented)
        if len(self.names) == 1 and self.named:
            return hint, commented or lower is not None
        unnamed = sum(name == f"Unnamed: {index}" for index, name in enumerate(self.names))
        return hint, (commented or 2 * unnamed >= len(self.names)) and lower is not None


def _begun(file: Any, name: Path, how: "FileParams") -> tuple[Any, bytes, str | None]:
    """The lines of a file in UTF-8, the chunk that begins with its first line that is not blank, and a separator stated above."""
    quote = None if how.quote is None else how.quote.encode()
    chunks = below(chunks_of(file, name, how), how.skip_rows)
    if how.comment is not None:
        chunks = _uncommented(chunks, how.comment.encode(), quote)
    lines = whole_lines(chunks, name, quote)
    written = (text for chunk in lines if (text := chunk.lstrip(b"\r\n")))
    head = next(written, b"")
    line, _, rest = head.partition(b"\n")
    if (separator := separator_said(line)) is not None:
        head = rest.lstrip(b"\r\n") or next(written, b"")
    lacks = "has no line below those that are left out" if how.skip_rows or how.comment else "is empty"
    require(head != b"", f"{name} {lacks}. It needs a line of column names, and rows below it")
    return lines, head, separator


def _names_below(path: Path, how: "FileParams") -> int | None:
    """How many lines are above the first line of names that has numbers below it, among the first of a file; None without one."""
    head = next(below(chunks_of(path, path, how), 0), b"")[:_TOP_BYTES].decode(errors="replace")
    lines = [line.rstrip("\r") for line in head.split("\n")[:_TOP]]
    for index in range(how.skip_rows + 1, len(lines) - 1):
        try:
            separator = how.separator or _separator(lines[index], path, how)
            names, row = (split_line(lines[index + more], separator, how) for more in (0, 1))
        except (ValueError, csv.Error):
            continue
        alike = len(names) == len(row) > 1 and all(name.strip() for name in names)
        if alike and not texts_are_numbers(names) and texts_are_numbers(row):
            return index
    return None


def _uncommented(chunks: Iterator[bytes], comment: bytes, quote: bytes | None) -> Iterator[bytes]:
    """Complete lines without those that begin with `comment`. Between quotes no line is a comment."""
    held, inside = b"", False
    for chunk in chunks:
        held += chunk
        retained = []
        *lines, held = held.split(b"\n")
        for line in lines:
            if inside or not line.startswith(comment):
                retained.append(line)
                inside ^= quote is not None and line.count(quote) % 2 == 1
        if retained:
            yield b"\n".join([*retained, b""])
        if len(held) > LONGEST_LINE:
            # Handed on, to be refused as no line.
            yield held
            held = b""
    if held and (inside or not held.startswith(comment)):
        yield held


def _separator(first: str, name: Path, how: "FileParams") -> str:
    """The separator that the header line has most often outside quotes; a comma if it has none."""
    bare = first if how.quote is None else "".join(first.split(how.quote)[::2])
    counts = {mark: bare.count(mark) for mark in _SEPARATORS}
    max_count = max(counts.values())
    candidates = [mark for mark, count in counts.items() if count == max_count]
    if max_count == 0:
        # A single column. Its numbers may have decimal commas, and then a comma separates nothing.
        return ";" if how.decimal == "," else ","
    if len(candidates) > 1:
        marks = " and ".join(_NAMED[mark] for mark in candidates)
        raise ParameterError(f"{verbatim(str(name))} has {marks} equally often in its header line. Say which with {{separator}}")
    return candidates[0]


def split_line(line: str, separator: str, how: "FileParams") -> list[str]:
    """The fields of one line."""
    quoting = {"quoting": csv.QUOTE_NONE} if how.quote is None else {"quotechar": how.quote, "strict": True}
    (fields,) = csv.reader(line.splitlines(keepends=True), delimiter=separator, skipinitialspace=True, **quoting)
    return fields


@final
class _Blocks:
    """Chunks of lines to Arrow tables. Changes in place: it counts rows, and learns which columns hold truth values."""

    def __init__(self, table: CsvTable, numbers: tuple[str, ...], texts: tuple[str, ...]) -> None:
        import pyarrow.csv as pc

        self.table, self.how, self.numbers, self.texts = table, table.header.how, numbers, texts
        self.n_read, self.worded, self.bad = 0, frozenset[str](), tuple[str, ...]()
        # pyarrow needs a whole line in one block, so the block is as long as the longest line that is accepted.
        self.reading = pc.ReadOptions(column_names=list(table.names), use_threads=False, block_size=LONGEST_LINE)
        self.parsing = pc.ParseOptions(
            delimiter=table.header.separator, quote_char=self.how.quote or False, newlines_in_values=True
        )
        self.form = NumberFormat.of(self.how)
        self.types = self._types()

    def of(self, lines: Iterator[bytes], first: bytes) -> Iterator[Any]:
        """The tables of these lines, in order. Good lines before a bad one are given out first."""
        waiting = deque([first])
        while waiting or (waiting := deque(islice(lines, 1))):
            chunk = waiting.popleft()
            if not chunk.strip(b"\r\n"):
                continue
            table = self._table(chunk)
            if table is not None:
                self.n_read += table.num_rows
                if table.num_rows:
                    yield table
                continue
            middle = self._row_end(chunk, len(chunk) // 2) or self._row_end(chunk, 0)
            if not middle:
                raise self._refusal(chunk)
            # One line is bad. Split the chunk, so that the good lines before it are yielded first.
            waiting.extendleft((chunk[middle:], chunk[:middle]))

    def _row_end(self, chunk: bytes, start: int) -> int:
        """Where the first row ends after `start`, and another follows; 0 if there is no such place."""
        quote = None if self.how.quote is None else self.how.quote.encode()
        end = chunk.find(b"\n", start) + 1
        inside = quote is not None and chunk.count(quote, 0, end) % 2 == 1
        while end and inside:
            end, before = chunk.find(b"\n", end) + 1, end
            inside ^= quote is not None and chunk.count(quote, before, end) % 2 == 1
        return end if end < len(chunk) else 0

    def _types(self) -> Any:
        import pyarrow as pa
        import pyarrow.csv as pc

        # Types are given, because inferred ones would change with what a chunk happens to contain.
        kinds = {name: pa.float64() for name in self.numbers} | dict.fromkeys((*self.texts, *self.worded), pa.string())
        return pc.ConvertOptions(
            column_types=kinds,
            include_columns=[*self.numbers, *self.texts],
            null_values=list(self.form.gaps),
            decimal_point=self.how.decimal,
        )

    def _table(self, chunk: bytes) -> Any:
        """The lines as a table, None if one of them is bad."""
        import pyarrow as pa

        table = self._parsed(chunk)
        if table is None and self.numbers:
            # Perhaps truth values: read such columns as text from here on.
            before, self.worded = self.worded, frozenset(self.numbers)
            self.types = self._types()
            table = self._parsed(chunk)
            self.worded = before if table is None else before.union(self._truth_values(table))
            self.types = self._types()
        if table is None:
            return None
        bad: list[str] = []
        for index, name in enumerate(table.schema.names):
            if name in self.texts:
                continue
            column = table.column(index)
            written = pa.types.is_string(column.type)
            converted = self.form.column(column) if written else self.form.known(column)
            bad += [name] * (converted is None)
            table = table if converted is None or converted is column else table.set_column(index, name, converted)
        for name in self.texts if self.form.missing else ():
            # A word stands for a missing value.
            marked = self.form.missing.taken_out(table.select([name])).column(name)
            table = table.set_column(table.schema.get_field_index(name), name, marked)
        # The longest list is that of the first chunk, before it is split.
        self.bad = self.bad or tuple(bad)
        return None if bad else table

    def _truth_values(self, table: Any) -> list[str]:
        """The columns of text among the numbers that hold truth values."""
        import pyarrow as pa
        import pyarrow.compute as pc

        lower = {name: pc.utf8_lower(pc.utf8_trim_whitespace(table.column(name))) for name in self.numbers}
        truth = pa.array(["true", "false"])
        return [name for name, column in lower.items() if pc.any(pc.is_in(column, value_set=truth)).as_py()]

    def _parsed(self, chunk: bytes) -> Any:
        import pyarrow as pa
        import pyarrow.csv as pc

        try:
            table = pc.read_csv(
                io.BytesIO(chunk), read_options=self.reading, parse_options=self.parsing, convert_options=self.types
            )
        except (pa.ArrowException, OSError):
            return None
        return table if self._are_rows(chunk, table.num_rows) else None

    def _are_rows(self, chunk: bytes, count: int) -> bool:
        """Whether the chunk has so many rows by strict rules, too.

        pyarrow takes a quote that is never closed, and text behind one that is. A quote that begins one row's text would then
        swallow the rows below it without a word.
        """
        quote = self.how.quote
        # Where every line is a row, none was swallowed. That is nearly every chunk, and this is far quicker.
        if quote is None or quote.encode() not in chunk or chunk.count(b"\n") == count:
            return True
        try:
            rows = csv.reader(
                io.StringIO(chunk.decode(), newline=""), delimiter=self.table.header.separator, quotechar=quote, strict=True
            )
            return sum(1 for row in rows if row) == count
        except (UnicodeDecodeError, csv.Error):
            return False

    def _refusal(self, line: bytes) -> ValueError:
        """The error for a line that cannot be read. It names columns and shows no value."""
        table, separator = self.table, self.table.header.separator
        where = f"{table.source} cannot be read after row {self.n_read}"
        above, titled = table.header_fault() if self.n_read == 0 else ("", False)
        if above and titled:
            # Not its columns are at fault.
            title = f"{table.source}: the first line seems to be a comment or a title, and not the column names"
            return ParameterError(verbatim(title) + above)
        if line.startswith(b"#") and self.how.comment is None and not above:
            above = _COMMENTS
        try:
            fields = split_line(line.decode().strip("\r\n"), separator, self.how)
        except UnicodeDecodeError:
            return ParameterError(
                f"{verbatim(where)}: the next line is not UTF-8 text. Give the {{encoding}} of the file, such as "
                "cp1252 (Windows) or latin-1"
            )
        except (csv.Error, ValueError):
            return ParameterError(f"{verbatim(where)}: the next line has an open quote, or another {{separator}}")
        cells = line.decode().split() if len(table.names) == 1 else []
        if len(table.names[0].split()) == len(cells) > 1 and all(self.form.number(cell) is not None for cell in cells):
            return ParameterError(
                f"{verbatim(where)}: blanks seem to separate its columns. Give {{separator= }} where it is one blank; "
                "where there are more, save it with commas"
            )
        if len(fields) != len(table.names):
            if len(set(fields).intersection(table.names)) > 1:
                return ValueError(
                    f"{where}: the next line is another header, with {len(fields)} names where the first has "
                    f"{len(table.names)}. Make a file of each part"
                )
            message = f"{where}: the next line has {len(fields)} fields and the header has {len(table.names)}. Correct that line"
            if separator == "," and len(fields) > len(table.names) and None not in map(could_be_number, fields):
                # Where a comma is both, there is no telling which of them it is.
                message += ". If its numbers have decimal commas, quote them, or put semicolons between columns"
            return ParameterError(verbatim(message) + above)
        if fields == list(table.names):
            return ValueError(f"{where}: the next line is the header once more. Remove it")
        line_of = dict(zip(table.names, fields, strict=True))
        # Gaps say nothing: not every column has a unit.
        entries = [text for name in self.numbers if (text := line_of[name].strip()) not in self.form.gaps]
        # Where no comma separates columns, numbers often have one.
        likely = separator != "," or self.how.decimal == "," or any("," in text for text in entries)
        comma = self.form.advice * likely
        if len(entries) > 1 and not texts_are_numbers(entries):
            # Another header, or the units below one. Its columns are not at fault.
            return ParameterError(
                f"{verbatim(where)}: the next line has no number in any column, as another header has, or a line of units. "
                f"Remove that line, or correct it{comma}{above}"
            )
        bad = self.bad or self.numbers
        which = f"column{'s' * (len(bad) > 1)} {join_names(map(repr, bad))}"
        advice = advice_for(dict.fromkeys(bad, "untyped"))
        wrong = [text for name in self.numbers if self.form.number(text := line_of[name]) is None]
        if comma and all(could_be_number(text) is not None for text in wrong):
            # Numbers, with marks that were not named: to leave them out is the last thing to do.
            advice = f"{comma.removeprefix('. ')}. Otherwise {advice[:1].lower()}{advice[1:]}{above}"
        else:
            advice += comma + above
        if self.n_read:
            advice += ". If that line alone is at fault, as a line of totals is, correct it"
        return ColumnsError(f"{where}: not a number in {which}", bad, advice=advice, drop=to_drop(bad, self.numbers))


def preamble(data: bytes, how: "FileParams") -> tuple[int, str | None] | None:
    """Where the header line begins, below what an option skips, comments and a line such as sep=;, and the separator it states.

    None if the lines above the header are not complete. A byte-order mark in front of them is not looked at.

    >>> from eigenveil.data.formats import FileParams
    >>> preamble(b"# sensor 7\\nsep=;\\na;b\\n", FileParams(comment="#"))
    (17, ';')
    """
    at, separator = 0, None
    skip, comment = how.skip_rows, None if how.comment is None else how.comment.encode()
    while end := data.find(b"\n", at) + 1:
        line = data[at:end]
        if skip:
            skip -= 1
        elif comment is None or not line.removeprefix(BOM).startswith(comment):
            stated = separator_said(line.removeprefix(BOM))
            if stated is None or separator is not None:
                return at, separator
            separator = stated
        at = end
    return None


def whole_records(data: bytes, *, max_rows: int, comment: bytes | None = None) -> tuple[list[bytes], list[int]]:
    """The first complete records, at most `max_rows`, and where each ends. Blank lines are no records, and neither are comments.

    A record is one line, also where a quote is open: otherwise the text of one row, such as 5" pipe, would take all rows after
    it for its own until the next quote comes. What has no line end yet is incomplete.

    >>> whole_records(b'1,2\\n\\n"a\\nb",3\\n4,', max_rows=5)
    ([b'1,2\\n', b'"a\\n', b'b",3\\n'], [4, 8, 13])
    """
    records: list[bytes] = []
    ends: list[int] = []
    end = 0
    while len(records) < max_rows:
        start, end = end, data.find(b"\n", end) + 1
        if not end:
            break
        # Only an empty line is no record: tabs and blanks alone may be a row of missing values.
        if data[start:end].strip(b"\r\n") and not (comment is not None and data.startswith(comment, start)):
            records.append(data[start:end])
            ends.append(end)
    return records, ends


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TextRows:
    """How the lines under one header become rows: the columns `names`, which are at `places` in each line."""

    header: CsvHeader
    names: tuple[str, ...]
    places: tuple[int, ...]
    form: NumberFormat

    @classmethod
    def of(cls, header: CsvHeader, columns: Sequence[str] | None) -> "TextRows":
        """The columns in the order given, or all. Without a header line, they are taken to be those of the file."""
        if not header.named:
            count = len(header.names)
            require(
                columns is None or len(columns) == count,
                f"{header.source} has {count} unnamed columns, and {len(columns or ())} are needed",
            )
            names, places = tuple(columns or header.names), tuple(range(count))
        else:
            wanted = None if columns is None else tuple(columns)
            names = ColumnChoice(columns=wanted, literal=True).laid_out(header.source, header.names).read
            at = {name: index for index, name in enumerate(header.names)}
            places = tuple(at[name] for name in names)
        return cls(header=header, names=names, places=places, form=NumberFormat.of(header.how))

    @property
    def comment(self) -> bytes | None:
        """What a line of comments begins with."""
        return None if self.header.how.comment is None else self.header.how.comment.encode()

    def rows(self, records: Sequence[bytes], *, n_read: int) -> "Array":
        """The rows, (n, d), of these records; only those before a bad record, unless that is the first.

        `n_read` is how many rows of the source came before, for the error.
        """
        import numpy as np

        out = np.empty((len(records), len(self.places)))
        # Row by row, so that the fields of a wide block are never in memory together.
        for count, record in enumerate(records):
            row = self._row(record)
            if row is None:
                if count == 0:
                    raise self._refusal(records[0], n_read)
                out = out[:count]
                break
            out[count] = row
        try:
            # Infinite numbers are refused here, where the columns have names. A gap is for the stream to judge.
            require_entries(out, [self.header.names[index] for index in self.places], gaps=True)
        except ColumnsError as error:
            raise error.at(str(self.header.source)) from None
        return out

    def _text(self, record: bytes) -> str:
        how = self.header.how
        # A column that is left out may hold anything, also bytes that are no UTF-8. A number is ASCII.
        return record.strip(b"\r\n").decode(how.encoding, "surrogateescape" if how.encoding == "utf-8" else "strict")

    def _row(self, record: bytes) -> list[float] | None:
        """The numbers of a record at the places that are read, None if it is bad in any way."""
        try:
            fields = split_line(self._text(record), self.header.separator, self.header.how)
        except (csv.Error, ValueError):
            return None
        if len(fields) != len(self.header.names):
            return None
        form = self.form
        if form.is_usual and not record.translate(None, _PLAIN):
            try:
                return [float(fields[index]) for index in self.places]
            except ValueError:
                # A gap, or no number: the slower way below tells them apart.
                pass
        numbers = [number for index in self.places if (number := form.number(fields[index])) is not None]
        return numbers if len(numbers) == len(self.places) else None

    def _refusal(self, record: bytes, n_read: int) -> ValueError:
        header, where = self.header, f"{self.header.source} cannot be read after row {n_read}"
        try:
            fields = split_line(self._text(record), header.separator, header.how)
        except UnicodeDecodeError:
            return ParameterError(
                f"{verbatim(where)}: the next line is not {header.how.encoding} text. Give the {{encoding}} of the file"
            )
        except (csv.Error, ValueError):
            return ParameterError(
                f"{verbatim(where)}: the next line has an open quote, or another {{separator}}. Each row must be one line"
            )
        if len(fields) != len(header.names):
            message = f"{where}: the next line has {len(fields)} fields and the header has {len(header.names)}. Correct that line"
            marked = header.how.comment is None and (record.startswith(b"#") or header.names[0].startswith("#"))
            return ParameterError(verbatim(message) + ". If lines that begin with # are comments, give {comment} '#'" * marked)
        read = zip(self.names, self.places, strict=True)
        bad = tuple(name for name, index in read if self.form.number(fields[index]) is None)
        which = f"column{'s' * (len(bad) > 1)} {join_names(map(repr, bad))}"
        comma = any("," in fields[index] for index in self.places) or header.separator != ","
        advice = advice_for(dict.fromkeys(bad, "text")) + (self.form.advice if comma else "")
        return ColumnsError(f"{where}: not a number in {which}", bad, advice=advice)


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

    for index, name in enumerate(table.schema.names):
        column = table.column(index)
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if types.is_string(column.type) or types.is_large_string(column.type):
            table = table.set_column(index, name, as_plain_text(column))
    return table.rename_columns(as_plain_text(pa.array(table.schema.names, pa.string())).to_pylist())


def _writer(separator: str, path: Path, schema: Any) -> Any:
    import pyarrow.csv as pc

    return pc.CSVWriter(path, schema, write_options=pc.WriteOptions(delimiter=separator))


def _follow(*args: Any, **kwargs: Any) -> Any:
    from eigenveil.data.follow.sources import follow_text

    return follow_text(*args, **kwargs)


_SUFFIXES: Final = {".csv": ",", ".tsv": "\t"}
CSV: Final = Format(
    word="csv",
    title="csv",
    suffixes=(*_SUFFIXES, *(f"{suffix}{packed}" for suffix in _SUFFIXES for packed in PACKED)),
    open=CsvTable.open,
    rows=None,
    options=frozenset({"header", "skip_rows", "comment", "separator", "decimal", "thousands", "quote", "encoding"}),
    follow=_follow,
    outputs={
        suffix: Output(write=partial(write_tables, partial(_writer, separator), change=_without_formulas))
        for suffix, separator in _SUFFIXES.items()
    },
    comes_through_pipe=True,
)
