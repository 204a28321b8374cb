"""Tables whose columns have names: csv, Parquet, Arrow and xlsx files, folders of Parquet, and pipes of csv or Arrow.

`open_named` reads names and types, checks them, and gives the rows out as Arrow batches, as often as they are asked for; from a
pipe once. A file is read again for every pass, so it may be larger than memory.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, final

from eigenveil.core.threads import cores
from eigenveil.data.archive import TABLES, ending_of
from eigenveil.data.cell_tables import JsonTable, SheetTable
from eigenveil.data.columns import kinds_of, require_names
from eigenveil.data.faults import ColumnFaults
from eigenveil.data.number_texts import NO_MARKS, MissingMarks
from eigenveil.data.text_files import CsvTable
from eigenveil.data.unpacked import require_batches, require_groups
from eigenveil.errors import ParameterError, listed, require, verbatim
from eigenveil.params.declarations.reading import FileParams

__all__ = ["NAMED", "NamedTable", "ParquetTable", "kind_of", "matching", "open_named", "reading"]

# The formats whose columns have names, and those that a pipe can carry.
NAMED: Final = ("csv", "parquet", "arrow", "xlsx", "jsonl")
_PIPES: Final = ("csv", "arrow")
# Rows that are looked at together for an error.
_AT_ONCE: Final = 1 << 14


class NamedTable(Protocol):
    """A table in a file or pipe, its names and types checked, its rows not read yet."""

    @property
    def source(self) -> Any:
        """What errors call it: the path, or "the stream"."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, in the order of the file."""
        ...

    @property
    def named(self) -> bool:
        """Whether the file gives these names, or they were made up because it has no header."""
        ...

    @property
    def kinds(self) -> dict[str, str] | None:
        """The declared type of each column in words, None if the file declares none."""
        ...

    @property
    def count(self) -> int | None:
        """How many rows there are, None if only reading tells."""
        ...

    @property
    def once(self) -> bool:
        """Whether the rows can be read only once."""
        ...

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Arrow tables or batches of at most `size` rows with these columns. A file without types gives `texts` as text."""
        ...

    def faults(self, numbers: Sequence[str]) -> ColumnFaults:
        """What is wrong with columns that should be numbers, from another look at the file. Those that are not by type are not
        among `numbers`."""
        ...


def kind_of(path: Path, how: FileParams, *, piped: bool = False) -> str:
    """The format of a file: what was said, or by the ending of its name. A folder is Parquet."""
    if how.kind is not None:
        return how.kind
    if piped:
        raise ParameterError(f"the format of a pipe must be given: {{kind}} {' or '.join(_PIPES)}")
    if path.is_dir():
        return "parquet"
    try:
        return TABLES[ending_of(path, TABLES)]
    except ValueError as error:
        raise ParameterError(f"{verbatim(str(error))}, or give its format with {{kind}}, such as csv") from None


def open_named(source: Any, how: FileParams) -> NamedTable:
    """A table from a path or an open binary file. Names, types and order of all its parts are checked now."""
    piped = not isinstance(source, str | Path)
    path = Path("the stream") if piped else Path(source)
    kind = kind_of(path, how, piped=piped)
    require_option(path, how, kind)
    if piped:
        require(kind in _PIPES, f"{kind} cannot be read from a pipe; use a file, or send csv or arrow through the pipe")
    else:
        require_readable(path)
        require(
            not path.is_dir() or kind == "parquet",
            f"{path} is a folder. Give a file in it, or a folder of Parquet files",
        )
    if kind == "csv":
        return CsvTable.open(source if piped else path, path, how)
    missing = MissingMarks(how.na_values or ())
    if kind == "arrow":
        return ArrowTable.open(source if piped else path, path, missing)
    if kind == "parquet":
        return ParquetTable.open(path, missing)
    return JsonTable.open(path, how) if kind == "jsonl" else SheetTable.open(path, how)


def matching(path: Path) -> tuple[Path, ...]:
    """The files that a pattern such as folder/*.parquet stands for, in the order of their names; none for any other path.

    >>> matching(Path("people.csv"))
    ()
    """
    # A file may have a star or a bracket in its own name, and then that file is meant.
    if path.exists() or not any(sign in path.name for sign in "*?["):
        return ()
    # Only the last part is a pattern: one folder is one table.
    return tuple(sorted(path.parent.glob(path.name)))


def require_readable(path: Path) -> None:
    """Refuse a path that is not there, or that this user may not read. A pattern must match a file."""
    if matching(path):
        return
    require(path.exists(), f"{path} does not exist. Check the path")
    require(os.access(path, os.R_OK), f"{path}: you may not read it. Ask its owner for permission")


def require_option(path: Path, how: FileParams, kind: str) -> None:
    """Refuse an option that the format of the file has no use for: it would be read differently than the caller thinks."""
    own: dict[str, tuple[str, ...]] = dict.fromkeys(
        ("separator", "decimal", "thousands", "quote", "encoding", "comment"), ("csv",)
    )
    own |= dict.fromkeys(("header", "skip_rows"), ("csv", "xlsx"))
    own |= {"sheet": ("xlsx",)} | dict.fromkeys(("features", "one_based"), ("svm",))
    # Compared with the defaults, because options that were not given have these.
    plain = FileParams()
    for name, kinds in own.items():
        if kind not in kinds and getattr(how, name) != getattr(plain, name):
            words = " and ".join("svmlight" if one == "svm" else one for one in kinds)
            raise ParameterError(f"{{{name}}} is for {words} files, and {verbatim(str(path))} is {kind}. Leave it out")


@contextmanager
def reading(source: Any, kind: str, seen: int | None = None) -> Iterator[None]:
    """Convert errors of pyarrow into a `ValueError` without their words, which quote the data."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError):
        place = "" if seen is None else f" after row {seen}"
        raise ValueError(
            f"{source} cannot be read as {kind}{place}: it is damaged, ends too early, or is no {kind}"
        ) from None


@final
@dataclass(frozen=True, slots=True, eq=False)
class ParquetTable:
    """A Parquet file, or a folder of them with the same columns, in the order of their names.

    With `groups`, only those row groups of each file are read.
    """

    source: Path
    parts: tuple[Path, ...]
    names: tuple[str, ...]
    kinds: dict[str, str]
    count: int
    groups: tuple[int, ...] | None = None
    missing: MissingMarks = NO_MARKS
    named: bool = True
    once: bool = False

    @classmethod
    def open(cls, path: Path, missing: MissingMarks = NO_MARKS) -> "ParquetTable":
        """The schema of each part is read, and all must agree."""
        import pyarrow.parquet as pq

        parts = _parts(path)
        schemas, count = [], 0
        for part in parts:
            require_readable(part)
            with reading(part, "parquet"):
                found = pq.read_metadata(part)
                schemas.append(found.schema.to_arrow_schema())
                groups = [found.row_group(at).total_byte_size for at in range(found.num_row_groups)]
            require_groups(part, groups)
            count += found.num_rows
        # Before a row is read: a fit that fails at the tenth file has already spent time, and perhaps budget.
        for part, schema in zip(parts, schemas, strict=True):
            _require_same(part, kinds_of(schema), parts[0], kinds_of(schemas[0]))
            require_names(part, schema.names, ())
        return cls(path, parts, tuple(schemas[0].names), kinds_of(schemas[0]), count, missing=missing)

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Batches of each part."""
        import pyarrow.parquet as pq

        wanted = [*numbers, *texts]
        # Without buffers ahead of the reader, which would keep the whole file in memory until its end.
        with_care = {"pre_buffer": False, "page_checksum_verification": True}
        for part in self.parts:
            seen = 0
            with reading(part, "parquet"), pq.ParquetFile(part, **with_care) as file:
                groups = None if self.groups is None else list(self.groups)
                # Beside other processes that read, one thread each is enough.
                stream = file.iter_batches(batch_size=size, columns=wanted, row_groups=groups, use_threads=cores() > 1)
                while True:
                    with reading(part, "parquet", seen):
                        batch = next(stream, None)
                    if batch is None:
                        break
                    seen += batch.num_rows
                    # Batches have their columns in the order of the file, and names may begin alike.
                    yield self.missing.taken_out(batch.select(wanted))

    def faults(self, numbers: Sequence[str]) -> ColumnFaults:
        """Of the columns that are numbers by type."""
        return ColumnFaults.of_batches(self.batches(numbers, (), _AT_ONCE), numbers)


def _parts(path: Path) -> tuple[Path, ...]:
    if not path.is_dir():
        return matching(path) or (path,)
    # Spark and others leave files such as _SUCCESS beside the data.
    inside = sorted(one for one in path.iterdir() if one.name[:1] not in "._")
    found = tuple(one for one in inside if one.is_file() and one.suffix.lower() == ".parquet")
    folders = [one.name for one in inside if one.is_dir()]
    require(
        not folders,
        f"{path} has folders in it: {listed(folders, most=5)}. Give one of them, or move their files together",
    )
    require(len(found) > 0, f"{path} is a folder without Parquet files. Give a file in it")
    return found


def _require_same(part: Path, kinds: dict[str, str], first: Path, expected: dict[str, str]) -> None:
    """Refuse a part of a folder with other columns than the first. The order may differ: columns are found by name."""
    lacking = [name for name in expected if name not in kinds]
    extra = [name for name in kinds if name not in expected]
    require(
        not lacking,
        f"{part} lacks columns that {first.name} has: {listed(lacking)}. Files of a folder need the same ones",
    )
    require(
        not extra,
        f"{part} has columns that {first.name} lacks: {listed(extra)}. Files of a folder need the same ones",
    )
    other = [f"{name} ({kinds[name]}, there {kind})" for name, kind in expected.items() if kinds[name] != kind]
    require(
        not other, f"{part} has columns of another type than {first.name}: {listed(other)}. Write them with one type"
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class ArrowTable:
    """An Arrow or Feather file, or an Arrow stream through a pipe."""

    source: Path
    names: tuple[str, ...]
    kinds: dict[str, str]
    file: Any
    count: int | None
    missing: MissingMarks = NO_MARKS
    named: bool = True

    @classmethod
    def open(cls, file: Any, path: Path, missing: MissingMarks = NO_MARKS) -> "ArrowTable":
        """The schema is read now. What was read of a pipe is kept."""
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
        return cls(path, tuple(schema.names), kinds_of(schema), reader if once else file, count, missing)

    @property
    def once(self) -> bool:
        """Unless it is a file."""
        return not isinstance(self.file, Path)

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Batches of at most `size` rows: the sender decides how long its own are."""
        if not isinstance(self.file, Path):
            yield from self._of(self.file, [*numbers, *texts], size)
            return
        with reading(self.source, "arrow"), self.file.open("rb") as opened:
            yield from self._of(_arrow_reader(opened), [*numbers, *texts], size)

    def faults(self, numbers: Sequence[str]) -> ColumnFaults:
        """Of the columns that are numbers by type."""
        return ColumnFaults.of_batches(self.batches(numbers, (), _AT_ONCE), numbers)

    def _of(self, reader: Any, wanted: list[str], size: int) -> Iterator[Any]:
        # One batch at a time, so that an error can say after which row the file is damaged.
        stream, seen = iter(reader), 0
        while True:
            with reading(self.source, "arrow", seen):
                batch = next(stream, None)
            if batch is None:
                return
            seen += batch.num_rows
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
        return pa.RecordBatchReader.from_batches(
            whole.schema, (whole.get_batch(i) for i in range(whole.num_record_batches))
        )
    if seekable:
        file.seek(0)
    return pa.ipc.open_stream(file)
