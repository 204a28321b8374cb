"""Lines of a csv as numbers, with nothing but Python and numpy: a device has no memory for pyarrow.

The rules are those of `eigenveil.data.formats.csv`, and a test compares the two: a field is a number, a truth value (true or
false), or missing. Names, separator and quotes come from the header line and from options, never from rows. Errors name the
source and columns, never a value.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from eigenveil.data.columns import ColumnChoice, advice_for, require_entries
from eigenveil.data.formats.csv import CsvHeader, separator_said, split_line
from eigenveil.data.number_texts import NumberFormat
from eigenveil.errors import ColumnsError, ParameterError, listed, require, verbatim
from eigenveil.linalg import Array
from eigenveil.params.declarations.reading import FileParams

__all__ = ["LONGEST_LINE", "TextRows", "preamble", "whole_records"]

_BOM: Final = b"\xef\xbb\xbf"
# A longer line is not a row: the file is not csv.
LONGEST_LINE: Final = 1 << 24
# Where a line has no other bytes, Python reads its numbers by the same rules. It is most lines, and four times as fast.
_PLAIN: Final = b'0123456789+-.eE \t,;|"\r\n'


def preamble(data: bytes, how: FileParams) -> tuple[int, str | None] | None:
    """Where the header line begins, below what an option skips, comments and a line such as sep=;, and the separator it states.

    None if the lines above the header are not complete. A byte-order mark in front of them is not looked at.

    >>> preamble(b"# sensor 7\\nsep=;\\na;b\\n", FileParams(comment="#"))
    (17, ';')
    """
    at, separator = 0, None
    skip, comment = how.skip_rows, None if how.comment is None else how.comment.encode()
    while end := data.find(b"\n", at) + 1:
        line = data[at:end]
        if skip:
            skip -= 1
        elif comment is None or not line.removeprefix(_BOM).startswith(comment):
            said = separator_said(line.removeprefix(_BOM))
            if said is None or separator is not None:
                return at, separator
            separator = said
        at = end
    return None


def whole_records(data: bytes, *, most: int, comment: bytes | None = None) -> tuple[list[bytes], list[int]]:
    """The first complete records, at most `most`, and where each ends. Blank lines are no records, and neither are comments.

    A record is one line, also where a quote is open: otherwise the text of one row, such as 5" pipe, would take all rows after
    it for its own until the next quote comes. What has no line end yet is incomplete.

    >>> whole_records(b'1,2\\n\\n"a\\nb",3\\n4,', most=5)
    ([b'1,2\\n', b'"a\\n', b'b",3\\n'], [4, 8, 13])
    """
    found: list[bytes] = []
    ends: list[int] = []
    end = 0
    while len(found) < most:
        start, end = end, data.find(b"\n", end) + 1
        if not end:
            break
        # Only an empty line is no record: tabs and blanks alone may be a row of missing values.
        if data[start:end].strip(b"\r\n") and not (comment is not None and data.startswith(comment, start)):
            found.append(data[start:end])
            ends.append(end)
    return found, ends


@final
@dataclass(frozen=True, slots=True)
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
            return cls(header, tuple(columns or header.names), tuple(range(count)), NumberFormat.of(header.how))
        wanted = None if columns is None else tuple(columns)
        read = ColumnChoice(wanted, literal=True).laid_out(header.source, header.names).read
        at = {name: place for place, name in enumerate(header.names)}
        return cls(header, read, tuple(at[name] for name in read), NumberFormat.of(header.how))

    @property
    def comment(self) -> bytes | None:
        """What a line of comments begins with."""
        return None if self.header.how.comment is None else self.header.how.comment.encode()

    def rows(self, records: Sequence[bytes], *, seen: int) -> Array:
        """The rows, (n, d), of these records; only those before a bad record, unless that is the first.

        `seen` is how many rows of the source came before, for the error.
        """
        out = np.empty((len(records), len(self.places)))
        # Row by row, so that the fields of a wide block are never in memory together.
        for count, record in enumerate(records):
            row = self._row(record)
            if row is None:
                if count == 0:
                    raise self._refusal(records[0], seen)
                return self._checked(out[:count])
            out[count] = row
        return self._checked(out)

    def _checked(self, rows: Array) -> Array:
        """Refuse infinite numbers here, where the columns have names. A gap is for the stream to judge."""
        try:
            require_entries(rows, [self.header.names[place] for place in self.places], gaps=True)
        except ColumnsError as error:
            raise error.at(str(self.header.source)) from None
        return rows

    def _row(self, record: bytes) -> list[float] | None:
        """The numbers of a record, None if it is bad in any way."""
        try:
            fields = split_line(self._text(record), self.header.separator, self.header.how)
        except (csv.Error, ValueError):
            return None
        return self._numbers(fields, record) if len(fields) == len(self.header.names) else None

    def _text(self, record: bytes) -> str:
        how = self.header.how
        # A column that is left out may hold anything, also bytes that are no UTF-8. A number is ASCII.
        return record.strip(b"\r\n").decode(how.encoding, "surrogateescape" if how.encoding == "utf-8" else "strict")

    def _numbers(self, fields: Sequence[str], record: bytes) -> list[float] | None:
        """The numbers at the places that are read, None if one of them is not a number."""
        form = self.form
        if form.is_usual and not record.translate(None, _PLAIN):
            try:
                return [float(fields[place]) for place in self.places]
            except ValueError:
                # A gap, or no number: the slower way below tells them apart.
                pass
        found = [form.number(fields[place]) for place in self.places]
        return None if any(one is None for one in found) else [one for one in found if one is not None]

    def _refusal(self, record: bytes, seen: int) -> ValueError:
        header, where = self.header, f"{self.header.source} cannot be read after row {seen}"
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
            words = f"{where}: the next line has {len(fields)} fields and the header has {len(header.names)}. Correct that line"
            marked = header.how.comment is None and (record.startswith(b"#") or header.names[0].startswith("#"))
            return ParameterError(
                verbatim(words) + ". If lines that begin with # are comments, give {comment} '#'" * marked
            )
        read = zip(self.names, self.places, strict=True)
        bad = tuple(name for name, place in read if self.form.number(fields[place]) is None)
        which = f"column{'s' * (len(bad) > 1)} {listed(map(repr, bad))}"
        comma = any("," in fields[place] for place in self.places) or header.separator != ","
        advice = advice_for(dict.fromkeys(bad, "text")) + (self.form.advice if comma else "")
        return ColumnsError(f"{where}: not a number in {which}", bad, advice=advice)
