"""How much a compressed file may unpack to: a file of a megabyte must not fill the memory of the one who opens it.

A table seldom shrinks to less than a tenth, and one of zeros and ones to a fiftieth. What unpacks to over a hundred times its
size is refused as it is read, or before a member of an archive is opened. Whoever trusts it unpacks it first.
"""

import zipfile
from pathlib import Path
from typing import Any, Final, final

from eigenveil.errors import ParameterError, require, verbatim

__all__ = ["Padding", "UnpackingFile", "UnpacksTooMuch", "require_members", "require_plain"]

# A small file may unpack to this many bytes whatever its size.
_FREE: Final = 1 << 26
_TIMES: Final = 100
# Entries that a table may have in any case, though its file does not state them.
_FREE_ENTRIES: Final = 1 << 24


class UnpacksTooMuch(ValueError):
    """A compressed file is refused for what it unpacks to."""


def _most(path: Path) -> int:
    return max(_FREE, _TIMES * path.stat().st_size)


def _refusal(path: Path, limit: int, advice: str) -> UnpacksTooMuch:
    return UnpacksTooMuch(f"{path} unpacks to more than {limit >> 20} MiB, over {_TIMES} times its size. {advice}")


@final
class UnpackingFile:
    """A stream of a compressed file that counts what it gives out. Changes in place: it is read once."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path = stream, path
        self._limit, self._count = _most(path), 0

    def read(self, size: int) -> bytes:
        """The next bytes; `UnpacksTooMuch` once they are too many."""
        chunk = bytes(self._stream.read(size))
        self._count += len(chunk)
        if self._count > self._limit:
            raise _refusal(self._path, self._limit, "If you trust it, unpack it first, such as with gzip -d or zstd -d")
        return chunk

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return bool(self._stream.closed)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def require_members(path: Path, *, advice: str) -> None:
    """Refuse an archive (zip) whose members unpack to too much together. `BadZipFile` if it is none.

    Python reads no more of a member than its size in the list of members, so the sizes in this list are enough.
    """
    limit = _most(path)
    with zipfile.ZipFile(path) as archive:
        total = sum(member.file_size for member in archive.infolist())
    if total > limit:
        raise _refusal(path, limit, advice)


@final
class Padding:
    """Entries of a table that its file leaves out, counted row by row. Changes in place.

    A row of one cell may stand for sixteen thousand columns, and such rows take a thousand times the memory of their file.
    """

    def __init__(self, source: Any, columns: int) -> None:
        self._source, self._columns = source, columns
        self._all = self._stated = 0

    def add(self, stated: int) -> None:
        """Count a row with so many entries in the file; a `ParameterError` if nearly all of a large table is left out."""
        self._all += self._columns
        self._stated += stated
        if self._all > _FREE_ENTRIES and self._all > _TIMES * self._stated:
            raise ParameterError(
                f"{verbatim(str(self._source))} has over {_FREE_ENTRIES} entries, and fewer than one in {_TIMES} has a value. "
                "Leave empty columns out of the file, or store it as a sparse matrix in .npz"
            )


def require_plain(path: Path) -> None:
    """Refuse a compressed file for a reader that would unpack it without a limit."""
    packed = path.suffix.lower() in (".gz", ".bz2", ".xz", ".zst", ".lzma")
    require(not packed, f"{path} is compressed, and its format is read from plain files only. Unpack it first")
