"""What a device reads as it arrives: a csv file that grows, a folder of csv files in the order of their names, or a pipe.

A file and a folder are read from an `Offset` and hold nothing in between. A stored offset is enough to continue from it after a
restart, and a refusal changes nothing. Every read first checks that the source is still what it was up to there. A pipe holds
what has come and cannot go back.
"""

import contextlib
import json
import os
import select
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np

from eigenveil.data.follow import watcher
from eigenveil.data.formats import FileParams, followed_format, require_readable
from eigenveil.data.formats.csv import CsvHeader, TextRows, preamble, whole_records
from eigenveil.data.formats.text import BOM, LONGEST_LINE
from eigenveil.data.formats.unpacked import PACKED
from eigenveil.errors import ParameterError, SourceChanged, require, verbatim
from eigenveil.linalg import Array

__all__ = [
    "Followed",
    "FollowedFile",
    "FollowedFolder",
    "FollowedPipe",
    "Offset",
    "Reach",
    "follow",
    "follow_text",
    "require_sized",
]

# How far a source reaches: names and sizes of its files, in the order in which they are read. A single file has no name.
Reach: TypeAlias = tuple[tuple[str, int], ...]
# What is read at first, and at most at once unless a single line is longer.
_BYTES, _MOST_BYTES = 1 << 16, 1 << 22
# How much before an offset is compared after a restart.
_TAIL: Final = 64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """How far a source was read."""

    name: str = ""  # The file, of a folder.
    byte: int = 0  # Bytes of this file.
    rows: int = 0  # Rows of the whole source.
    header: str = ""  # A digest of the first line.
    tail: int = 0  # A checksum of the bytes before, in 16 bits: enough to notice another file, too short to tell a row.
    earlier: int = 0  # Files of a folder that come before this one.

    def __post_init__(self) -> None:
        counts = (self.byte, self.rows, self.tail, self.earlier)
        require(
            all(type(count) is int and count >= 0 for count in counts)
            and isinstance(self.name, str)
            and isinstance(self.header, str),
            "this is not an offset of a followed source",
        )

    def to_text(self) -> str:
        """One line of text, to be stored."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "Offset":
        """An offset that was stored.

        >>> Offset.from_text(Offset(name="a.csv", byte=12, rows=1).to_text()).byte
        12
        """
        try:
            stored = json.loads(text)
        except ValueError:
            stored = None
        expected = {field.name for field in fields(cls)}
        require(isinstance(stored, dict) and set(stored) == expected, "this is not an offset of a followed source")
        return cls(**stored)


class Followed(ABC):
    """A source of rows that continues. Reading never waits."""

    __slots__ = ()
    source: Path  # What errors call it.
    text: TextRows  # How its lines become rows.

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, in order."""
        return self.text.names

    @property
    def named(self) -> bool:
        """Whether it has a line of column names."""
        return self.text.header.named

    @property
    def ended(self) -> bool:
        """Whether no more rows can come. A file may always grow, and a folder get one more."""
        return False

    @abstractmethod
    def reach(self, offset: Offset) -> Reach:
        """How far the file at `offset` reaches now; nothing where no file has been begun."""

    @abstractmethod
    def read(self, offset: Offset, *, max_rows: int, until: Reach | None = None) -> tuple[Array, Offset]:
        """The next rows after `offset`, (n, d) with n <= `max_rows`, and the offset behind them. No rows: none are there yet.

        Where the source reached only `until` there, rows that were not whole by then are left. Which rows that leaves depends
        on `until` alone, and not on `max_rows`.
        """


def require_sized(source: Followed) -> None:
    """Refuse a pipe where slots end by the clock.

    A pipe runs full while its reader is busy with rows, and a full pipe stops its writer. Then rows decide when others arrive.
    """
    if isinstance(source, FollowedPipe):
        raise _no_size(source.source)


def _no_size(pipe: Path) -> ValueError:
    return ValueError(
        f"{pipe} is a pipe, and slots that end by the clock need a file: how far a pipe has come depends on how fast it is read. "
        "Append the rows to a file and follow that, as in: sensor >> readings.csv"
    )


def follow(
    source: Path | Any, *, columns: Sequence[str] | None = None, how: FileParams | None = None, sized: bool = False
) -> Followed:
    """A csv file, a folder of csv files, a named pipe, or an open binary file such as standard input.

    The header line is read now; a pipe is waited for until it has come, or refused if the source must be `sized`, as for slots
    that end by the clock. `columns` are names, in the order wanted, or all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "sensor.csv"
    ...     _ = file.write_text("a,b\\n1,2\\n3,")
    ...     followed = follow(file)
    ...     rows, offset = followed.read(Offset(), max_rows=100)
    ...     _ = file.write_text("a,b\\n1,2\\n3,4\\n")
    ...     more, _ = followed.read(offset, max_rows=100)
    >>> rows.tolist(), more.tolist()
    ([[1.0, 2.0]], [[3.0, 4.0]])
    """
    params = FileParams() if how is None else how
    format_ = followed_format(source, params)
    assert format_.follow is not None
    return format_.follow(source, columns=columns, how=params, sized=sized)


def follow_text(source: Path | Any, *, columns: Sequence[str] | None, how: FileParams, sized: bool) -> Followed:
    """The same for a source of csv."""
    # Line ends are searched for as bytes, and in UTF-16 such a byte may be half of another letter.
    if "\n".encode(how.encoding) != b"\n":
        raise ParameterError("text in {encoding=} cannot be followed line by line", encoding=how.encoding)
    if not isinstance(source, Path):
        if sized:
            raise _no_size(Path("the stream"))
        return FollowedPipe(source, Path("the stream"), how, columns)
    require_readable(source)
    if source.is_dir():
        return FollowedFolder.open(source, how, columns)
    if not source.is_file():
        if sized:
            raise _no_size(source)
        return FollowedPipe(source.open("rb", buffering=0), source, how, columns)
    return FollowedFile.open(source, how, columns)


@final
@dataclass(frozen=True, slots=True)
class FollowedFile(Followed):
    """A csv file that grows. A last line without a line end may be half a row, so it is left until its end has come."""

    source: Path
    text: TextRows
    head: bytes  # What comes before the rows: the line of column names as it stands, with its end, and what is above it.

    @classmethod
    def open(cls, path: Path, how: FileParams, columns: Sequence[str] | None = None) -> "FollowedFile":
        """The first line is read and checked now."""
        if path.suffix.lower() in PACKED:
            raise ValueError(f"{path} is compressed, so it cannot be followed as it grows. Give the plain file")
        head = _head(path, how)
        require(head is not None, f"{path} has no complete first line yet. It needs a line of column names, and rows below it")
        assert head is not None
        # Without names the first line is a person's, and no digest of it is kept.
        return cls(path, _text_rows(head, path, how, columns), head if how.header else _above(head, how))

    def reach(self, offset: Offset) -> Reach:
        with self._refusing():
            return ((offset.name, self.source.stat().st_size),)

    def read(self, offset: Offset, *, max_rows: int, until: Reach | None = None) -> tuple[Array, Offset]:
        """The next rows. `SourceChanged` if the file is not the one that was read up to `offset`."""
        with self._refusing(), self.source.open("rb") as file:
            begin = self._checked(file, offset)
            stop = None if until is None else self._stop(offset, until)
            records, ends, skipped = _records(file, begin, self.text, max_rows, self.source, stop=stop)
            rows = self.text.rows(records, n_read=offset.rows)
            # Fewer rows than records: a bad one follows, and the next read says what is wrong with it.
            end = begin + (ends[len(rows) - 1] if len(rows) else skipped)
            tail = _checksum(_at(file, max(0, end - _TAIL), min(_TAIL, end)))
            count = offset.rows + len(rows)
            return rows, replace(offset, byte=end, rows=count, header=self.digest, tail=tail)

    def unfinished(self, offset: Offset, until: Reach | None) -> bool:
        """Whether bytes without a line end stand behind `offset`, or the first line was not whole yet."""
        with self.source.open("rb") as file:
            begin = self._checked(file, offset)
            max_bytes = LONGEST_LINE if until is None else self._stop(offset, until) - begin
            # Blank lines and comments are no rows, and there may be many before the half of one.
            rest = _at(file, begin, max(0, min(max_bytes, LONGEST_LINE)))
        if self.text.comment is not None:
            *lines, rest = rest.split(b"\n")
            rest += b"".join(line for line in lines if not line.startswith(self.text.comment))
        return max_bytes < 0 or bool(rest.strip())

    def _stop(self, offset: Offset, until: Reach) -> int:
        """The size up to which the file is read."""
        size = dict(until).get(offset.name)
        if size is None or size < offset.byte:
            raise SourceChanged(
                f"{self.source} was gone or shorter when a slot ended than what had been read of it. Start the site again"
            )
        return size

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise SourceChanged(f"{self.source} is gone. Put it back, or follow another file") from None
        except PermissionError:
            raise SourceChanged(f"{self.source}: you may not read it any more. Ask its owner for permission") from None

    @property
    def digest(self) -> str:
        """A digest of the line of column names, empty without one."""
        return _digest(self.head[len(_above(self.head, self.text.header.how)) :])

    def _checked(self, file: Any, offset: Offset) -> int:
        """Where to continue reading, after checking that what is before has not changed."""
        size = os.fstat(file.fileno()).st_size
        # The length comes first, because the bytes before the offset may not be there any more.
        if size < max(offset.byte, len(self.head)):
            raise SourceChanged(f"{self.source} has become shorter: it was emptied or replaced. {_AGAIN}")
        if offset.header not in ("", self.digest) or _at(file, 0, len(self.head)) != self.head:
            raise SourceChanged(f"{self.source} has another first line than before. {_AGAIN}")
        if offset.byte == 0:
            return len(self.head)
        tail = _at(file, max(0, offset.byte - _TAIL), min(_TAIL, offset.byte))
        # An offset lies behind a line end, so any other byte there already tells of another file.
        if not tail.endswith(b"\n") or _checksum(tail) != offset.tail:
            raise SourceChanged(f"{self.source} has other rows than were read: it was replaced or rotated. {_AGAIN}")
        return offset.byte


_AGAIN: Final = "Only the rows after the last one that was read can be added. Put the old file back, or begin a new stream"


@final
@dataclass(frozen=True, slots=True)
class FollowedFolder(Followed):
    """csv files in a folder, one after the other in the order of their names, all with the same first line.

    A file is read to its end, and left for good when one of a later name is there. Names that begin with a dot or an
    underscore, and other endings than .csv, are left alone.
    """

    source: Path
    how: FileParams
    first: FollowedFile
    text: TextRows  # As in the first file.

    @classmethod
    def open(cls, path: Path, how: FileParams, columns: Sequence[str] | None = None) -> "FollowedFolder":
        """The first line of the first file is read and checked now."""
        files = _files(path)
        require(len(files) > 0, f"{path} has no csv files yet. Put the first one there")
        first = FollowedFile.open(files[0], how, columns)
        return cls(source=path, how=how, first=first, text=first.text)

    def reach(self, offset: Offset) -> Reach:
        """The size of the current file. A later one is not begun before the current one has ended for good."""
        if not offset.name:
            return ()
        with contextlib.suppress(FileNotFoundError):
            return ((offset.name, (self.source / offset.name).stat().st_size),)
        raise SourceChanged(_gone(offset.name, self.source))

    def read(self, offset: Offset, *, max_rows: int, until: Reach | None = None) -> tuple[Array, Offset]:
        """The next rows, of the current file or the ones after it. `SourceChanged` if the folder is not what it was."""
        files = {file.name: file for file in _files(self.source)}
        # A file that came after `until` decides nothing yet.
        visible = sorted(files) if until is None else [name for name, _ in until]
        parts: list[Array] = []
        at, wanted = self._checked(offset, sorted(files), visible), max_rows
        while wanted > 0 and at.name:
            if at.name not in files:
                raise SourceChanged(_gone(at.name, self.source))
            later = [name for name in visible if name > at.name]
            file = self._file(files[at.name], None if until is None else dict(until).get(at.name))
            rows = np.empty((0, len(self.columns)))
            # Without a first line there is nothing to read yet.
            if file is not None:
                rows, at = file.read(at, max_rows=wanted, until=until)
            parts += [rows] * (len(rows) > 0)
            wanted -= len(rows)
            if len(rows) == 0:
                if not later or (file is None and until is None):
                    break
                if file is None or file.unfinished(at, until):
                    raise SourceChanged(
                        f"{self.source / at.name} ends within a line, and {later[0]} has come after it. End the last line first"
                    )
                earlier = sorted(files).index(later[0]) if until is None else at.earlier + 1
                at = Offset(name=later[0], rows=at.rows, header=at.header, earlier=earlier)
        empty = np.empty((0, len(self.columns)))
        return (np.concatenate(parts) if parts else empty), at

    def _checked(self, offset: Offset, names: Sequence[str], visible: Sequence[str]) -> Offset:
        """The offset, or the beginning of the first file `visible`; `SourceChanged` if files came or went before it."""
        if not offset.name:
            return replace(offset, name=visible[0] if visible else "")
        if offset.name not in names:
            raise SourceChanged(_gone(offset.name, self.source))
        before = names.index(offset.name)
        # Files that were read may be taken away. A new one in front of them would never be read.
        if before > offset.earlier:
            raise SourceChanged(
                f"{self.source} has a new file that comes before {offset.name}, which was read. Give it a later name"
            )
        return offset

    def _file(self, path: Path, stop: int | None) -> FollowedFile | None:
        """A file of the folder, with the first line that all of them have; None if that had not come when it had `stop` bytes.

        A reader that comes late sees a line that was not there, and must not do otherwise than one that was in time.
        """
        head = _head(path, self.how)
        if head is None or (stop is not None and len(head) > stop):
            return None
        text = replace(self.text, header=replace(self.text.header, source=path))
        file = FollowedFile(path, text, head if self.named else _above(head, self.how))
        if file.digest != self.first.digest:
            raise SourceChanged(f"{path} has another first line than {self.first.source.name}. Files need the same one")
        return file


@final
class FollowedPipe(Followed):
    """A pipe, read once. Changes in place: it holds what has come and was not read yet.

    After a restart it continues with what comes then: rows that were read and not used are lost.
    """

    def __init__(self, file: Any, name: Path, how: FileParams, columns: Sequence[str] | None = None) -> None:
        self.source, self._file = name, file
        self._held, self._over = b"", False
        while (end := _end_of_head(self._held, how)) is None and not self._over:
            # The header says what the rows are. Nothing can be done before it has come, so this waits.
            self._take()
        require(end is not None, f"{name} ended before a complete first line")
        head = self._held[:end]
        self.text = _text_rows(head, name, how, columns)
        self._held = self._held[len(head if how.header else _above(head, how)) :]
        self._read: int | None = None

    @property
    def ended(self) -> bool:
        """Whether the writer has closed the pipe and all its rows were read."""
        return self._over and not self._held.strip()

    def fileno(self) -> int:
        """The descriptor, to wait on until there is more to read."""
        return int(self._file.fileno())

    def reach(self, offset: Offset) -> Reach:
        """Nothing: what waits in a pipe has no size that others could not change."""
        return ()

    def read(self, offset: Offset, *, max_rows: int, until: Reach | None = None) -> tuple[Array, Offset]:
        """The next rows. `SourceChanged` if the pipe ended within a line, or if rows are wanted that were read before."""
        require(until is None, f"{self.source} is a pipe, which does not tell how far it reached")
        if self._read not in (None, offset.rows):
            raise SourceChanged(f"{self.source} is a pipe: rows that were read cannot be read again")
        # A fast writer is not let in without end: what is not taken waits in the pipe and stops the writer.
        records, ends = list[bytes](), list[int]()
        while True:
            while not self._over and len(self._held) < _MOST_BYTES and self._held.count(b"\n") < max_rows:
                if not select.select([self._file], [], [], 0)[0]:
                    break
                self._take()
            records, ends = whole_records(self._held, max_rows=max_rows, comment=self.text.comment)
            if records or b"\n" not in self._held:
                break
            # Blank lines and comments alone. They must not fill the room of the rows behind them.
            self._held = self._held[self._held.rindex(b"\n") + 1 :]
        if not records:
            require(len(self._held) <= LONGEST_LINE, f"{self.source} has a line longer than {LONGEST_LINE} bytes")
            if self._over and self._held.strip():
                raise SourceChanged(f"{self.source} ended within a line. That line was not read")
        rows = self.text.rows(records, n_read=offset.rows)
        used = ends[len(rows) - 1] if len(rows) else 0
        self._held, self._read = self._held[used:], offset.rows + len(rows)
        return rows, replace(offset, rows=offset.rows + len(rows))

    def _take(self) -> None:
        # `os.read` returns what there is; a plain read would wait for a full buffer.
        chunk = os.read(self._file.fileno(), _BYTES)
        self._held, self._over = self._held + chunk, not chunk


def _text_rows(head: bytes, path: Path, how: FileParams, columns: Sequence[str] | None) -> TextRows:
    at, separator = preamble(head, how) or (0, None)
    if separator is not None and how.separator is None:
        how = replace(how, separator=separator)
    try:
        line = head[at:].removeprefix(BOM).rstrip(b"\n").decode(how.encoding).encode()
    except UnicodeDecodeError:
        raise ParameterError(f"{verbatim(str(path))} is not {how.encoding} text. Give its {{encoding}}") from None
    return TextRows.of(CsvHeader.of(line, path, how), columns)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if watcher.is_followed(file.name) and file.is_file())


def _gone(name: str, folder: Path) -> str:
    return f"{name} is gone from {folder}, and it may have had more rows. {_AGAIN}"


def _head(path: Path, how: FileParams) -> bytes | None:
    """What a file begins with up to the end of the line of column names, or of the first row; None if it is not complete."""
    size = _BYTES
    with path.open("rb") as file:
        # The limit keeps a file without any line end from filling the memory.
        while size <= LONGEST_LINE:
            data = _at(file, 0, size)
            end = _end_of_head(data, how)
            if end is not None or len(data) < size:
                return None if end is None else data[:end]
            size *= 2
    return None


def _end_of_head(data: bytes, how: FileParams) -> int | None:
    """Where the first line ends that is not above the table."""
    above = preamble(data, how)
    return None if above is None else data.index(b"\n", above[0]) + 1


def _records(
    file: Any, begin: int, text: TextRows, max_rows: int, source: Path, *, stop: int | None
) -> tuple[list[bytes], list[int], int]:
    """The records after `begin` that end before `stop`, how many bytes come before the end of each, and how many before the first
    are known to hold none."""
    size, skipped = _BYTES, 0
    while True:
        data = _at(file, begin + skipped, size if stop is None else max(0, min(size, stop - begin - skipped)))
        records, ends = whole_records(data, max_rows=max_rows, comment=text.comment)
        if len(records) == max_rows or len(data) < size or (records and size >= _MOST_BYTES):
            return records, [skipped + end for end in ends], skipped
        if not records and size >= _MOST_BYTES and b"\n" in data:
            # Blank lines and comments alone, of which there may be any number.
            size, skipped = _BYTES, skipped + data.rindex(b"\n") + 1
            continue
        require(size <= LONGEST_LINE, f"{source} has a line longer than {LONGEST_LINE} bytes")
        size *= 2


def _at(file: Any, begin: int, size: int) -> bytes:
    file.seek(begin)
    return bytes(file.read(size))


def _above(head: bytes, how: FileParams) -> bytes:
    """What is above the first line of a table: lines that are skipped, or else the byte-order mark, if a file begins with one."""
    at, _ = preamble(head, how) or (len(head), None)
    return head[:at] or (BOM if head.startswith(BOM) else b"")


def _digest(head: bytes) -> str:
    line = head.removeprefix(BOM).rstrip(b"\r\n")
    return sha256(line).hexdigest()[:16] if line else ""


def _checksum(tail: bytes) -> int:
    return zlib.crc32(tail) & 0xFFFF
