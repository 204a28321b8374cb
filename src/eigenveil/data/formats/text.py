"""Text files and pipes as complete lines in UTF-8, many at once, whatever the format of the lines is."""

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eigenveil.data.formats.unpacked import PACKED
from eigenveil.errors import ParameterError, require, verbatim

if TYPE_CHECKING:
    from eigenveil.data.formats.registry import FileParams

__all__ = ["BOM", "BYTES_OF_FILE", "LONGEST_LINE", "below", "chunks_of", "lines_of", "whole_lines"]

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
