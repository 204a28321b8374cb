"""How much a compressed file may unpack to: a file of a megabyte must not fill the memory of the one who opens it.

A table seldom shrinks to less than a tenth, and one of zeros and ones to a fiftieth. What unpacks to over a hundred times its
size is refused before a row is read, or a member of an archive is opened. Whoever trusts it unpacks it first.
"""

import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from eigenveil.errors import ParameterError, require, verbatim

__all__ = [
    "PACKED",
    "Padding",
    "UnpacksTooMuch",
    "require_bearable",
    "require_groups",
    "require_members",
    "require_plain",
]

# Text that is unpacked as it is read, by the ending of its name.
PACKED: Final = {".gz": "gzip", ".zst": "zstd"}
_BYTES: Final = 1 << 20
# A small file may unpack to this many bytes whatever its size.
_FREE: Final = 1 << 26
_TIMES: Final = 100
# So may each row group of a Parquet file: they are often large, and columns with few values shrink well.
_FREE_GROUP: Final = 1 << 28
# Entries that a table may have in any case, though its file does not state them.
_FREE_ENTRIES: Final = 1 << 24


class UnpacksTooMuch(ValueError):
    """A compressed file is refused for what it unpacks to."""


def _most(path: Path) -> int:
    return max(_FREE, _TIMES * path.stat().st_size)


def _refusal(path: Path, limit: int, advice: str) -> UnpacksTooMuch:
    return UnpacksTooMuch(f"{path} unpacks to more than {limit >> 20} MiB, over {_TIMES} times its size. {advice}")


def require_bearable(path: Path) -> None:
    """Refuse a file of packed text that unpacks to too much, after a pass that only counts. Other files are not read.

    Rows are several times as large in memory as in text, so none is read before the whole is known to be bearable.
    """
    import pyarrow as pa

    packed = PACKED.get(path.suffix.lower())
    if packed is None:
        return
    limit, count = _most(path), 0
    # A damaged file is refused by its reader, which says where.
    with suppress(OSError, pa.ArrowException), pa.input_stream(str(path), compression=packed) as stream:
        while size := len(stream.read(_BYTES)):
            count += size
            if count > limit:
                raise _refusal(path, limit, "If you trust it, unpack it first, with gzip -d or zstd -d")


def require_members(path: Path, *, advice: str) -> None:
    """Refuse an archive (zip) whose members unpack to too much together. `BadZipFile` if it is none.

    Python reads no more of a member than its size in the list of members, so the sizes in this list are enough.
    """
    limit = _most(path)
    with zipfile.ZipFile(path) as archive:
        total = sum(member.file_size for member in archive.infolist())
    if total > limit:
        raise _refusal(path, limit, advice)


def require_groups(path: Path, sizes: Sequence[int]) -> None:
    """Refuse a Parquet file with a row group that unpacks to too much: a reader may hold a whole one. Its index has the sizes."""
    limit = max(_FREE_GROUP, _TIMES * path.stat().st_size)
    if max(sizes, default=0) > limit:
        raise _refusal(path, limit, "Write it with smaller row groups, or with dictionaries")


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
