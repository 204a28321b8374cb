"""Arrow and Feather files, and Arrow streams through a pipe."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.data.columns import kinds_of, require_names
from eigenveil.data.formats.base import Format, NamedTable, Output, reading, write_tables
from eigenveil.data.formats.unpacked import require_batches
from eigenveil.data.number_texts import MissingMarks

if TYPE_CHECKING:
    from eigenveil.data.formats.registry import FileParams

__all__ = ["ARROW"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ArrowTable(NamedTable):
    """An Arrow or Feather file, or an Arrow stream through a pipe."""

    reader: Any  # What was read of a pipe, which begins once.

    @classmethod
    def open(cls, file: Any, path: Path, how: "FileParams") -> "ArrowTable":
        """The schema is read now."""
        once = not isinstance(file, Path) or file.is_fifo()
        with reading(path, "arrow"):
            if isinstance(file, Path) and not once:
                require_batches(file)
            opened = file.open("rb") if isinstance(file, Path) else file
            reader = _arrow_reader(opened)
            schema = reader.schema
            # One pass over a file, which also finds damage before anything is spent. Its own index has no number of rows.
            count = None if once else sum(batch.num_rows for batch in reader)
        if not once:
            opened.close()
        require_names(path, schema.names, ())
        return cls(
            source=path,
            names=tuple(schema.names),
            kinds=kinds_of(schema),
            count=count,
            once=once,
            missing=MissingMarks.of(how),
            reader=reader if once else None,
        )

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Batches of at most `size` rows: the sender decides how long its own are."""
        if self.once:
            yield from self._of(self.reader, [*numbers, *texts], size)
            return
        with reading(self.source, "arrow"), self.source.open("rb") as opened:
            yield from self._of(_arrow_reader(opened), [*numbers, *texts], size)

    def _of(self, reader: Any, wanted: list[str], size: int) -> Iterator[Any]:
        # One batch at a time, so that an error can say after which row the file is damaged.
        stream, n_read = iter(reader), 0
        while True:
            with reading(self.source, "arrow", n_read):
                batch = next(stream, None)
            if batch is None:
                return
            n_read += batch.num_rows
            for start in range(0, batch.num_rows, size):
                yield self.missing.taken_out(batch.slice(start, size).select(wanted))


def _arrow_reader(file: Any) -> Any:
    """A stream of record batches, from the streaming format or, where the file is seekable, the file format."""
    import pyarrow as pa

    seekable = bool(getattr(file, "seekable", lambda: False)())
    # The file format begins with these bytes and has its index at the end, so a pipe cannot carry it.
    if seekable and file.read(6) == b"ARROW1":
        file.seek(0)
        whole = pa.ipc.open_file(file)
        return pa.RecordBatchReader.from_batches(whole.schema, (whole.get_batch(i) for i in range(whole.num_record_batches)))
    if seekable:
        file.seek(0)
    return pa.ipc.open_stream(file)


def _writer(path: Path, schema: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.new_file(path, schema)


_FILE: Final = Output(write=partial(write_tables, _writer), has_nested=True)
ARROW: Final = Format(
    word="arrow",
    title="Arrow",
    suffixes=(".arrow", ".arrows", ".feather", ".ipc"),
    open=ArrowTable.open,
    rows=None,
    options=frozenset(),
    follow=None,
    outputs={".feather": _FILE, ".arrow": _FILE},
    comes_through_pipe=True,
)
