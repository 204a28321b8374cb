"""Streams of rows: arrays, iterators, files larger than memory and pipes, all as batches that are read once, in order.

A csv stream is parsed as lines arrive, so that a slow sensor is followed row by row. Missing values become NaN, and the caller
decides whether they are allowed. Errors name files, columns and places, never a value.
"""

import csv
import io
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast, final

from eigenveil.data.archive import STREAMS, ending_of
from eigenveil.data.tables import (
    PANDAS_INDEX,
    as_numbers,
    could_be_names,
    first_line,
    read_table,
    require_commas,
    require_names,
    require_numbers,
)
from eigenveil.errors import ColumnsError, listed, require

__all__ = ["STREAM_FORMATS", "Source", "open_source"]

StreamFormat = Literal["csv", "arrow", "parquet", "npy", "npz", "svm"]
STREAM_FORMATS: tuple[StreamFormat, ...] = ("csv", "arrow", "parquet", "npy", "npz", "svm")
_PIPES = ("csv", "arrow")
_BOM = b"\xef\xbb\xbf"
# Rows at a time; fewer where rows are wide.
_BATCH, _BATCH_NUMBERS = 4096, 1 << 20
_BYTES = 1 << 20
# A longer line is not a header or a row: the file is not csv.
_LONGEST_LINE = 1 << 24


@final
@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Batches of rows, each (b, d), dense or CSR, to be read once; and the column names, if there are any."""

    batches: Iterator[Any]
    columns: tuple[str, ...] | None


def open_source(
    source: Any,
    *,
    kind: StreamFormat | None = None,
    header: bool = True,
    drop: Sequence[str] = (),
    features: int | None = None,
    one_based: bool = False,
) -> Source:
    """Rows from a path, by the ending of its name or as `kind`, or from an open binary file such as a pipe.

    csv and Arrow streams may come through a pipe; the other kinds need a file. `header=False` says that a csv starts
    with its first row. Columns in `drop` are left out. `features` and `one_based` are for svmlight, as in `read_table`.

    >>> source = open_source(io.BytesIO(b"a,b\\n1,2\\n3,\\n"), kind="csv")
    >>> source.columns, [batch.tolist() for batch in source.batches]
    (('a', 'b'), [[[1.0, 2.0], [3.0, nan]]])
    """
    piped = not isinstance(source, str | Path)
    path = Path("the stream") if piped else Path(source)
    if not piped:
        require(path.exists() and not path.is_dir(), f"{path} does not exist or is a folder")
    found = kind if kind is not None else _kind_of(path, piped=piped)
    require(found in STREAM_FORMATS, f"the format must be one of {', '.join(STREAM_FORMATS)}, got {found!r}")
    require(header or found == "csv", f"only csv can come without a header, not {found}")
    if found in _PIPES:
        read = _csv_source if found == "csv" else _arrow_source
        if piped:
            return read(source, path, drop, header=header)
        file = path.open("rb")
        try:
            opened = read(file, path, drop, header=header)
        except BaseException:
            file.close()
            raise
        return Source(_and_close(opened.batches, file), opened.columns)
    require(not piped, f"{found} cannot be read from a pipe; use a file, or send csv or arrow through the pipe")
    if found == "parquet":
        return _parquet_source(path, drop)
    require(not drop, f"{found} has no named columns to drop")
    table = read_table(path, kind=f".{found}", features=features, one_based=one_based)
    size = _BATCH if table.rows.sparse else _batch(table.rows.shape[1])
    return Source((block.values for block in table.rows.blocks(size)), table.columns)


def _and_close(batches: Iterator[Any], file: Any) -> Iterator[Any]:
    """The batches of a file that was opened here; it is closed when they end or the caller stops."""
    with file:
        yield from batches


def _batch(columns: int) -> int:
    return max(1, min(_BATCH, _BATCH_NUMBERS // max(1, columns)))


def _kind_of(path: Path, *, piped: bool) -> StreamFormat:
    require(not piped, f"the format of a pipe must be given: {' or '.join(_PIPES)}")
    try:
        return cast(StreamFormat, STREAMS[ending_of(path, STREAMS)])
    except ValueError as error:
        raise ValueError(f"{error}, or give its format") from None


def _csv_source(file: Any, path: Path, drop: Sequence[str], *, header: bool) -> Source:
    lines = _whole_lines(file, path)
    # A byte-order mark would become part of the first column's name.
    head = next((text for chunk in lines if (text := chunk.removeprefix(_BOM).lstrip(b"\r\n"))), b"")
    require(head != b"", f"{path} is empty")
    first, _, rest = head.partition(b"\n")
    try:
        (fields,) = csv.reader([first.decode().strip("\r")], skipinitialspace=True, strict=True)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except csv.Error:
        raise ValueError(f"{path} has a first line that is not comma-separated values") from None
    fields = [field.strip() for field in fields]
    require_commas(path, fields)
    if header:
        require(
            could_be_names(fields),
            f"{path} seems to have no header line: its first line has numbers, and column names are written to the model. Add a "
            "line of names, or use --no-header on the command line, header=False in open_source",
        )
        names = fields
    else:
        names, rest = [f"column {i}" for i in range(1, len(fields) + 1)], head
    columns = _kept(names, drop, path)
    return Source(_csv_batches(lines, rest, path, names, columns), columns if header else None)


def _csv_batches(
    lines: Iterator[bytes], first: bytes, path: Path, names: Sequence[str], columns: tuple[str, ...]
) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.csv as pc

    # pyarrow needs a whole line in one block, so the block is as long as the longest line that is accepted.
    reading = pc.ReadOptions(column_names=list(names), use_threads=False, block_size=_LONGEST_LINE)
    # Types are given, because inferred ones would change with what a chunk happens to contain.
    convert = pc.ConvertOptions(
        column_types={name: pa.float64() for name in columns}, include_columns=list(columns), strings_can_be_null=True
    )
    seen = 0
    waiting = deque([first])
    while waiting or (waiting := deque(islice(lines, 1))):
        chunk = waiting.popleft()
        if not chunk.strip():
            continue
        middle = chunk.find(b"\n", len(chunk) // 2) + 1
        try:
            with _reading(path, f"after row {seen}"):
                table = pc.read_csv(io.BytesIO(chunk), read_options=reading, convert_options=convert)
        except ValueError:
            if not 0 < middle < len(chunk):
                middle = chunk.find(b"\n") + 1
            if not 0 < middle < len(chunk):
                raise _bad_line(chunk, path, seen, names, columns) from None
            # One line is bad. Split the chunk, so that the good lines before it are yielded first.
            waiting.extendleft((chunk[middle:], chunk[:middle]))
            continue
        seen += table.num_rows
        if table.num_rows:
            yield as_numbers(table, gaps=True)


def _bad_line(line: bytes, path: Path, seen: int, names: Sequence[str], columns: tuple[str, ...]) -> ValueError:
    """The error for a csv line that cannot be read, after `seen` good rows. It names columns and shows no value."""
    where = f"{path} cannot be read after row {seen}"
    try:
        (fields,) = csv.reader([line.decode().strip("\r\n")], skipinitialspace=True, strict=True)
    except UnicodeDecodeError:
        return ValueError(f"{where}: the next line is not UTF-8 text")
    except (csv.Error, ValueError):
        return ValueError(f"{where}: the next line is not comma-separated values")
    if len(fields) != len(names):
        return ValueError(f"{where}: the next line has {len(fields)} fields and the header has {len(names)}")
    bad = tuple(name for name, field in zip(names, fields, strict=True) if name in columns and not _is_number(field))
    which = f"column{'s' * (len(bad) > 1)} {listed(map(repr, bad))}" if bad else "one of its columns"
    return ColumnsError(f"{where}: not a number in {which}. Encode it as a number or leave it out", bad)


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True


def _whole_lines(file: Any, path: Path) -> Iterator[bytes]:
    """Complete lines as soon as they arrive; a last line without a line end is yielded when the file ends."""
    # `read1` and raw reads return what is there; a plain read would wait for a full buffer.
    read = getattr(file, "read1", None) or file.read
    held = b""
    while True:
        chunk = read(_BYTES)
        require(
            isinstance(chunk, bytes),
            f"{path} must be opened in binary mode, and reads must block until bytes arrive: a read gave {type(chunk).__name__}",
        )
        if not chunk:
            break
        held += chunk
        end = held.rfind(b"\n") + 1
        require(len(held) - end <= _LONGEST_LINE, f"{path} has a line longer than {_LONGEST_LINE} bytes")
        if end:
            yield held[:end]
            held = held[end:]
    if held:
        yield held + b"\n"


def _arrow_source(file: Any, path: Path, drop: Sequence[str], *, header: bool) -> Source:
    import pyarrow as pa

    with _reading(path, "at its start"):
        reader = _arrow_reader(pa, file)
        schema = reader.schema
    columns = _kept(schema.names, drop, path)
    require_numbers(pa.schema([schema.field(name) for name in columns]))

    def batches() -> Iterator[Any]:
        seen = 0
        stream = iter(reader)
        while True:
            with _reading(path, f"after row {seen}"):
                batch = next(stream, None)
            if batch is None:
                return
            seen += batch.num_rows
            # The sender decides how long a batch is, so it is split before it becomes float64.
            size = _batch(len(columns))
            for start in range(0, batch.num_rows, size):
                yield as_numbers(batch.slice(start, size).select(list(columns)), gaps=True)

    return Source(batches(), columns)


def _arrow_reader(pa: Any, file: Any) -> Any:
    """A stream of record batches, from the streaming format or, where the file is seekable, the file format."""
    seekable = bool(getattr(file, "seekable", lambda: False)())
    # The file format begins with these bytes and has its index at the end, so a pipe cannot carry it.
    if seekable and file.read(6) == b"ARROW1":
        file.seek(0)
        whole = pa.ipc.open_file(file)
        return pa.RecordBatchReader.from_batches(
            whole.schema, (whole.get_batch(i) for i in range(whole.num_record_batches))
        )
    if seekable:
        file.seek(0)
    return pa.ipc.open_stream(file)


def _parquet_source(path: Path, drop: Sequence[str]) -> Source:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _reading(path, "at its start"):
        schema = pq.read_schema(path)
    columns = _kept(schema.names, drop, path)
    require_numbers(pa.schema([schema.field(name) for name in columns]))

    def batches() -> Iterator[Any]:
        seen = 0
        with pq.ParquetFile(path) as file:
            stream = file.iter_batches(batch_size=_batch(len(columns)), columns=list(columns))
            while True:
                with _reading(path, f"after row {seen}"):
                    batch = next(stream, None)
                if batch is None:
                    return
                seen += batch.num_rows
                yield as_numbers(batch, gaps=True)

    return Source(batches(), columns)


def _kept(names: Sequence[str], drop: Sequence[str], path: Path) -> tuple[str, ...]:
    require_names(path, names, drop)
    columns = tuple(name for name in names if name not in drop and not PANDAS_INDEX.fullmatch(name))
    require(len(columns) > 0, f"{path} has no columns left to analyse")
    return columns


@contextmanager
def _reading(path: Path, place: str) -> Iterator[None]:
    """Convert errors of pyarrow into a `ValueError` without the cause, whose message quotes the data."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read {place}: {first_line(error)}") from None
