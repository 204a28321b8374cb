"""What a format of files is, the tables it opens, and what all formats have in common: paths, patterns, cells and errors."""

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from eigenveil.data.columns import ColumnFaults, advice_for, to_drop
from eigenveil.data.number_texts import GAPS, NO_MARKS, MissingMarks, texts_are_numbers
from eigenveil.errors import ColumnsError, join_names, require

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.follow.sources import Followed
    from eigenveil.data.formats.registry import FileParams
    from eigenveil.linalg import Array

__all__ = [
    "CellTable",
    "Format",
    "NamedTable",
    "OddCell",
    "Output",
    "Scored",
    "SharedTable",
    "lines_in",
    "matching",
    "reading",
    "require_readable",
    "tables_of",
    "text_in",
    "write_tables",
]

# Rows that are looked at together for an error.
_AT_ONCE: Final = 1 << 14
# Scores of some rows, (b, k), and the columns that are carried beside them: an Arrow table, or None.
Scored: TypeAlias = "tuple[Array, Any]"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Output:
    """How scores are written to files whose names have one ending."""

    write: Callable[[Path, list[str], Iterator[Scored]], None]  # Block by block, under these column names.
    has_text: bool = True  # Whether columns can be carried beside the scores, such as names.
    has_nested: bool = False  # Whether a cell can hold a list or a table.


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Format:
    """One format of files, and its answer to every question that the library asks. Nothing else compares its words.

    A leaf makes one and `registry` lists it. What has no default must be answered.
    """

    word: str  # What --format calls it.
    title: str  # What sentences call it.
    suffixes: tuple[str, ...]  # How names of such files end, in lower case.
    # From a path, or an open file if it comes through a pipe.
    open: Callable[[Any, Path, "FileParams"], "NamedTable"] | None
    rows: Callable[[Path, "FileParams"], "Rows"] | None  # In place of `open`, for a format without column names.
    options: frozenset[str]  # The fields of `FileParams` that it reads, besides those for every format.
    follow: Callable[..., "Followed"] | None  # Rows that are read as they are appended (`follow.sources.follow`).
    outputs: Mapping[str, Output]  # How scores are written, by ending.
    # What to do with files of other endings that could be meant.
    advice: Mapping[str, str] = field(default_factory=dict)
    comes_through_pipe: bool = False  # Whether a pipe can carry it.
    is_folder: bool = False  # Whether a folder is a table of this format.
    is_shared: bool = False  # Whether several processes can read pieces of a table: a `SharedTable`, or a memory map.
    states_width: bool = True  # Whether a file says how many columns it has.

    def __post_init__(self) -> None:
        assert (self.open is None) != (self.rows is None)

    @property
    def has_names(self) -> bool:
        """Whether its columns have names."""
        return self.open is not None

    @property
    def has_header(self) -> bool:
        """Whether its names are on a line that people write, and that may be a row in truth."""
        return "header" in self.options


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NamedTable(ABC):
    """A table in a file or pipe, its names and types checked, its rows not read yet."""

    source: Any  # What errors call it: the path, or "the stream".
    names: tuple[str, ...]  # Of all columns, in the order of the file.
    named: bool = True  # The file gives these names. Otherwise they were made up, because it has no header.
    kinds: dict[str, str] | None = None  # The declared type of each column in words, None if the file declares none.
    count: int | None = None  # Rows, None if only reading tells.
    once: bool = False  # The rows can be read only once.
    missing: MissingMarks = NO_MARKS  # What stands for a missing value.

    @abstractmethod
    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Arrow tables or batches of at most `size` rows with these columns. A file without types gives `texts` as text."""

    def faults(self, numbers: Sequence[str]) -> ColumnFaults:
        """What is wrong with columns that should be numbers, from another look at the file. Those that are not by type are not
        among `numbers`."""
        return ColumnFaults.of_batches(self.batches(numbers, (), _AT_ONCE), numbers)


class SharedTable(NamedTable):
    """A table of which several processes or machines can read pieces."""

    __slots__ = ()

    @abstractmethod
    def pieces(self, max_rows: int) -> Sequence["SharedTable"]:
        """Tables of at most `max_rows` rows, or a little more, in order; the `source` of each is a file."""

    @abstractmethod
    def dask_frame(self) -> Any:
        """A Dask dataframe of the same files, which the workers of a cluster can read by the same paths."""


@final
@dataclass(frozen=True, slots=True)
class OddCell:
    """A cell that is neither number nor text: a date, or what a formula gives in place of a value, as it is shown."""

    text: str
    kind: str

    def __str__(self) -> str:
        return self.text


class CellTable(NamedTable):
    """A table whose cells have types of their own: floats, whole numbers, truth values, text, `OddCell` or None."""

    __slots__ = ()

    @abstractmethod
    def blocks(self, size: int) -> Iterator[tuple[int, Mapping[str, list[Any]]]]:
        """Cells of at most `size` rows by column, and how many rows came before."""

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        """Arrow tables: `numbers` as float64, `texts` as text."""
        import pyarrow as pa

        for n_read, cells in self.blocks(size):
            kinds = {name: self._kind_of(cells[name]) for name in numbers}
            bad = {name: kind for name, kind in kinds.items() if kind != "number"}
            if bad:
                shown = join_names(f"{name} ({kind})" for name, kind in bad.items())
                where = f"{self.source} cannot be read after row {n_read}: columns must hold numbers; these do not: {shown}"
                typed = any(texts_are_numbers([cell for cell in cells[name] if isinstance(cell, str)]) for name in bad)
                advice = advice_for(bad) + ". Numbers that are stored as text must be stored as numbers first" * typed
                raise ColumnsError(where, tuple(bad), advice=advice, drop=to_drop(tuple(bad), numbers))
            arrays = [pa.array(list(map(_number, cells[name])), pa.float64()) for name in numbers]
            arrays += [pa.array(list(map(text_in, cells[name])), pa.string()) for name in texts]
            yield self.missing.taken_out(pa.table(arrays, names=[*numbers, *texts]))

    def faults(self, numbers: Sequence[str]) -> ColumnFaults:
        """What is wrong with columns that should be numbers, in all rows."""
        import pyarrow as pa

        def columns() -> Iterator[tuple[str, Any]]:
            for _, cells in self.blocks(_AT_ONCE):
                good = [name for name in numbers if self._kind_of(cells[name]) == "number"]
                arrays = [pa.array(list(map(_number, cells[name])), pa.float64()) for name in good]
                cleaned = self.missing.taken_out(pa.table(arrays, names=good))
                yield from ((name, cleaned.column(name) if name in good else None) for name in numbers)

        return ColumnFaults.found(columns())

    def _kind_of(self, cells: Sequence[Any]) -> str:
        """The kind of the cells of a column: number, or that of the first that is none."""
        gaps = frozenset((*GAPS, *self.missing.texts))
        for cell in cells:
            match cell:
                case None | float() | int():
                    continue
                case str() if cell.strip() in gaps:
                    continue
                case OddCell() if cell.text and cell.text in gaps:
                    continue
                case str():
                    return "text"
                case OddCell():
                    return cell.kind
            return "list or object"
        return "number"


def _number(cell: Any) -> float | None:
    """A cell of a column of numbers. Texts there are gaps."""
    if isinstance(cell, float) or not isinstance(cell, int):
        return cell if isinstance(cell, float) else None
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


@contextmanager
def reading(source: Any, kind: str, n_read: int | None = None) -> Iterator[None]:
    """Convert errors of pyarrow into a `ValueError` without their words, which quote the data."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError):
        position = "" if n_read is None else f" after row {n_read}"
        raise ValueError(f"{source} cannot be read as {kind}{position}: it is damaged, ends too early, or is no {kind}") from None


def tables_of(names: list[str], scored: Iterator[Scored]) -> Iterator[Any]:
    """Arrow tables with the columns that are carried, and the scores. The first comes even if there are no rows."""
    import numpy as np
    import pyarrow as pa

    # The first block fixes the types of the columns that are carried.
    first = next(scored, (np.empty((0, len(names))), None))
    schema = None
    for block, extra in chain((first,), scored):
        # What is carried comes first, as in the table that people join with.
        beside = {} if extra is None else {name: extra.column(name) for name in extra.schema.names}
        table = pa.table({**beside, **dict(zip(names, map(pa.array, block.T.copy()), strict=True))})
        schema = schema or table.schema
        yield table.cast(schema)


def write_tables(
    opened: Callable[[Path, Any], Any],
    path: Path,
    names: list[str],
    scored: Iterator[Scored],
    *,
    change: Callable[[Any], Any] = lambda table: table,
) -> None:
    """Write tables with the writer that `opened` makes for a path and a schema, each of them changed."""
    tables = tables_of(names, scored)
    first = change(next(tables))
    with opened(path, first.schema) as writer:
        writer.write(first)
        for table in tables:
            writer.write(change(table))


def lines_in(table: Any) -> Iterator[Sequence[Any]]:
    """The rows of a table."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
