"""How much a compressed file may unpack to: a file of a megabyte must not fill the memory of the one who opens it.

A table seldom shrinks to less than a tenth, and one of zeros and ones to a fiftieth. What unpacks to over a hundred times its
size is refused before a row is read, or a member of an archive is opened. To read a file that you trust, unpack it first.
"""

import struct
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
    "require_batches",
    "require_bearable",
    "require_columns",
    "require_groups",
    "require_members",
    "require_names_borne",
    "require_plain",
]

# Text that is unpacked as it is read, by the ending of its name.
PACKED: Final = {".gz": "gzip", ".zst": "zstd"}
_BYTES: Final = 1 << 20
# A small file may unpack to this many bytes whatever its size.
_FREE: Final = 1 << 26
_TIMES: Final = 100
# Each row group of a Parquet file may do so too: they are often large, and columns with few values shrink well.
_FREE_GROUP: Final = 1 << 28
# Columns that a sparse matrix may have in any case, and otherwise as many as its file has bytes.
_FREE_COLUMNS: Final = 1 << 20
# 2^16 columns of text take half a gigabyte to read, however few rows they have: 8 kB each. A file with more columns is longer.
_FREE_NAMES, _BYTES_EACH = 1 << 16, 16
# Entries that a table may have in any case, though its file does not state them.
_FREE_ENTRIES: Final = 1 << 22


class UnpacksTooMuch(ValueError):
    """A compressed file is refused for what it unpacks to."""


def _limit(path: Path, free: int = _FREE) -> int:
    """The bytes that a file may unpack to."""
    return max(free, _TIMES * path.stat().st_size)


def _require_within(limit: int, size: int, path: Path, advice: str) -> None:
    if size > limit:
        raise UnpacksTooMuch(f"{path} unpacks to more than {limit >> 20} MiB, over {_TIMES} times its size. {advice}")


def require_bearable(path: Path) -> None:
    """Refuse a file of packed text that unpacks to too much, after a pass that only counts. Other files are not read.

    Rows are several times as large in memory as in text, so none is read before the whole is known to be bearable.
    """
    import pyarrow as pa

    packed = PACKED.get(path.suffix.lower())
    if packed is None:
        return
    limit, count = _limit(path), 0
    # A damaged file is refused by its reader, which says where.
    with suppress(OSError, pa.ArrowException), pa.input_stream(str(path), compression=packed) as stream:
        while size := len(stream.read(_BYTES)):
            count += size
            _require_within(limit, count, path, "If you trust it, unpack it first, with gzip -d or zstd -d")


def require_members(path: Path, *, advice: str) -> None:
    """Refuse an archive (zip) whose members unpack to too much together. `BadZipFile` if it is none.

    Python reads no more of a member than its size in the list of members, so the sizes in this list are enough.
    """
    with zipfile.ZipFile(path) as archive:
        total = sum(member.file_size for member in archive.infolist())
    _require_within(_limit(path), total, path, advice)


def require_columns(path: Path, count: int, *, advice: str) -> None:
    """Refuse a matrix with far more columns than its file can have entries: each takes memory, even without an entry."""
    if count > max(_FREE_COLUMNS, path.stat().st_size):
        raise ParameterError(f"{verbatim(str(path))} states {count} columns, and has fewer bytes. {advice}")


def require_names_borne(path: Path, count: int) -> None:
    """Refuse text of very many columns and hardly any rows: each column takes memory of its own while it is read."""
    if count > max(_FREE_NAMES, path.stat().st_size // _BYTES_EACH):
        raise ParameterError(
            f"{verbatim(str(path))} has {count} columns and fewer than {_BYTES_EACH} bytes for each. Store it as .npy or .npz"
        )


def require_groups(path: Path, sizes: Sequence[int]) -> None:
    """Refuse a Parquet file with a row group that unpacks to too much: a reader may hold a whole one. Its index has the sizes."""
    advice = "Write it with smaller row groups, or with dictionaries"
    _require_within(_limit(path, _FREE_GROUP), max(sizes, default=0), path, advice)


def require_batches(path: Path) -> None:
    """Refuse an Arrow or Feather file with a batch that unpacks to too much: a reader unpacks a whole one."""
    import pyarrow as pa

    limit = _limit(path, _FREE_GROUP)
    count = largest = 0
    with path.open("rb") as file:
        # The file format has the same messages as a stream, behind its name, and an index.
        indexed = file.read(8)[:6] == b"ARROW1"
        file.seek(8 * indexed)
        # Behind the last batch an index may follow at once, and a damaged file is refused by its reader.
        with suppress(pa.ArrowException, OSError, EOFError, struct.error, LookupError, ValueError, OverflowError):
            for message in pa.ipc.MessageReader.open_stream(file):
                largest = max(largest, _size_of(message))
                count += message.type == "record batch"
                if largest > limit:
                    break
    _require_within(limit, largest, path, "Write it with smaller batches")
    if indexed:
        with pa.ipc.open_file(str(path)) as whole:
            # A batch that is only in the index would not have been looked at.
            fits = count >= whole.num_record_batches
        require(fits, f"{path} cannot be read as arrow: its index does not fit its batches")


def _size_of(message: Any) -> int:
    """How many bytes the buffers of an Arrow message unpack to.

    Its metadata is a flatbuffer: Message(version, type, header), with RecordBatch(length, nodes, buffers, compression) as header,
    or with one as second field of a DictionaryBatch. A packed buffer begins with its size, -1 if it is stored as it is.
    """
    if message.type not in ("record batch", "dictionary"):
        return 0
    data, body = message.metadata.to_pybytes(), message.body
    header = _field(data, struct.unpack_from("<I", data)[0], 2)
    batch = header if message.type == "record batch" else _field(data, _table(data, header), 1)
    fields = _table(data, batch)
    if _field(data, fields, 3) is None:
        return int(body.size)
    buffers, size = _table(data, _field(data, fields, 2)), 0
    for index in range(struct.unpack_from("<I", data, buffers)[0]):
        offset, length = struct.unpack_from("<qq", data, buffers + 4 + 16 * index)
        if length >= 8:
            size += max(length - 8, struct.unpack_from("<q", body[offset : offset + 8].to_pybytes())[0])
    return size


def _table(data: bytes, offset: int | None) -> int:
    """The table or vector that the field at `offset` refers to."""
    if offset is None:
        raise ValueError("a field is missing")
    return offset + int(struct.unpack_from("<I", data, offset)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """The place of a field of a flatbuffer table, None if it is left out."""
    index = table - struct.unpack_from("<i", data, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", data, index)[0]:
        return None
    offset = struct.unpack_from("<H", data, index + 4 + 2 * number)[0]
    return table + int(offset) if offset else None


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
