"""Text files and pipes as complete lines in UTF-8, many at once, whatever the format of the lines is."""

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eigenveil.data.formats.unpacked import PACKED
from eigenveil.errors import ParameterError, require, verbatim

if TYPE_CHECKING:
    from eigenveil.data.formats.registry import FileParams
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from eigenveil.data.columns import ColumnFaults, advice_for, to_drop
from eigenveil.data.number_texts import GAPS, MissingMarks, texts_are_numbers
from eigenveil.errors import ColumnsError, join_names

__all__ = [
    "BOM",
    "BYTES_OF_FILE",
    "LONGEST_LINE",
    "CellDate",
    "CellError",
    "CellTable",
    "below",
    "cell_batches",
    "cell_faults",
    "chunks_of",
    "lines_of",
    "text_in",
    "whole_lines",
]

BOM: Final = b"\xef\xbb\xbf"

# What is read at once: of a file more, because every block of a very wide table takes a second, however short it is.
_BYTES, BYTES_OF_FILE = 1 << 20, 1 << 23

# A longer line is not a header or a row: the file is not csv.
LONGEST_LINE = 1 << 24


def lines_of(file: Any, name: Path, how: "FileParams") -> Iterator[bytes]:
    """Complete lines in UTF-8 without a byte-order mark, many at once, of text in which quotes have no meaning."""
    return whole_lines(below(chunks_of(file, name, how), 0), name, None)


def chunks_of(file: Any, name: Path, how: "FileParams") -> Iterator[bytes]:
    """What arrives, in UTF-8, until the end. A file that is opened here, by its path, is closed here."""
    opened = _opened(file) if isinstance(file, Path) else file
    try:
        # `read1` and raw reads return what is there; a plain read would wait for a full buffer.
        read = getattr(opened, "read1", None) or opened.read
        # UTF-8 is checked column by column: a column that is left out may hold anything.
        decode = None if how.encoding == "utf-8" else codecs.getincrementaldecoder(how.encoding)()
        size = BYTES_OF_FILE if isinstance(file, Path) else _BYTES
        while chunk := _read(read, name, size):
            yield chunk if decode is None else _decoded(decode, chunk, name, how)
        if decode is not None:
            yield _decoded(decode, b"", name, how, final=True)
    finally:
        if isinstance(file, Path):
            opened.close()


def _opened(path: Path) -> Any:
    packed = PACKED.get(path.suffix.lower())
    if packed is None:
        # Python's own file for plain text: it gives out what a named pipe has, without waiting for more.
        return path.open("rb")
    import pyarrow as pa

    return pa.input_stream(str(path), compression=packed)


def _read(read: Callable[[int], Any], name: Path, size: int) -> bytes:
    import pyarrow as pa

    try:
        chunk = read(size)
    except (pa.ArrowException, OSError) as error:
        why = "it is damaged or ends too early" if not isinstance(error, PermissionError) else "you may not read it"
        raise ValueError(f"{name} cannot be read as text: {why}") from None
    require(
        isinstance(chunk, bytes),
        f"{name} must be opened in binary mode, and reads must block until bytes arrive: a read gave {type(chunk).__name__}",
    )
    return bytes(chunk)


def _decoded(decode: Any, chunk: bytes, name: Path, how: "FileParams", *, final: bool = False) -> bytes:
    try:
        return str(decode.decode(chunk, final)).encode()
    except UnicodeDecodeError:
        raise ParameterError(f"{verbatim(str(name))} is not {how.encoding} text. Give its {{encoding}}") from None


def whole_lines(chunks: Iterator[bytes], name: Path, quote: bytes | None) -> Iterator[bytes]:
    """Complete lines as soon as they arrive; a last line without a line end is yielded when the file ends.

    A line end between quotes, as in notes that people typed, is no end of a row.
    """
    held = b""
    for chunk in chunks:
        held += chunk
        end = held.rfind(b"\n") + 1
        inside = quote is not None and held.count(quote, 0, end) % 2 == 1
        while end and inside:
            # Each byte is counted once more only: one stray quote must not cost a pass over the chunk for each line.
            end, after = held.rfind(b"\n", 0, end - 1) + 1, end
            inside ^= quote is not None and held.count(quote, end, after) % 2 == 1
        require(len(held) - end <= LONGEST_LINE, f"{name} has a line longer than {LONGEST_LINE} bytes")
        if end:
            yield held[:end]
            held = held[end:]
    if held:
        yield held + b"\n"


def below(chunks: Iterator[bytes], skip: int) -> Iterator[bytes]:
    """What comes after the byte-order mark and `skip` lines."""
    held, first = b"", True
    for chunk in chunks:
        held += chunk
        if first and len(held) < len(BOM):
            continue
        # A byte-order mark would become part of the first column's name.
        held, first = held.removeprefix(BOM) if first else held, False
        start = 0
        while skip and (end := held.find(b"\n", start) + 1):
            start, skip = end, skip - 1
        # The beginning of a line that is skipped need not be held.
        if not skip and start < len(held):
            yield held[start:]
        held = b""
    if held and not skip:
        yield held


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
    gap_texts = frozenset((*GAPS, *marks.texts))
    for n_read, cells in blocks:
        kinds = {name: _kind_of(cells[name], gap_texts) for name in numbers}
        bad = {name: kind for name, kind in kinds.items() if kind != "number"}
        if bad:
            shown = join_names(f"{name} ({kind})" for name, kind in bad.items())
            where = (
                f"{table.source} cannot be read after row {n_read}: columns must hold numbers; these do not: {shown}"
            )
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
    gap_texts = frozenset((*GAPS, *marks.texts))

    def columns() -> Iterator[tuple[str, Any]]:
        for _, cells in blocks:
            good = [name for name in numbers if _kind_of(cells[name], gap_texts) == "number"]
            arrays = [pa.array(list(map(_number, cells[name])), pa.float64()) for name in good]
            cleaned = marks.taken_out(pa.table(arrays, names=good))
            yield from ((name, cleaned.column(name) if name in good else None) for name in numbers)

    return ColumnFaults.found(columns())


def _kind_of(cells: Sequence[Any], gap_texts: frozenset[str]) -> str:
    """The kind of the cells of a column: number, or that of the first that is none."""
    for cell in cells:
        match cell:
            case None | float() | int():
                continue
            case str() if cell.strip() in gap_texts:
                continue
            case CellError() if cell.text in gap_texts and cell.text:
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
