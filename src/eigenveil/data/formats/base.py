"""What a format of files is, the tables it opens, and what all formats have in common: paths, patterns and errors."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final

from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.columns import ColumnFaults
    from eigenveil.data.follow.sources import Followed
    from eigenveil.data.formats.registry import FileParams
    from eigenveil.data.number_texts import MissingMarks
    from eigenveil.linalg import Array
if TYPE_CHECKING:
    from eigenveil.linalg import Array

__all__ = [
    "AT_ONCE",
    "Format",
    "NamedTable",
    "Output",
    "Scored",
    "SharedTable",
    "lines_in",
    "matching",
    "reading",
    "require_readable",
    "tables_of",
    "write_tables",
]

# Rows that are looked at together for an error.
AT_ONCE: Final = 1 << 14

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
    open: (
        Callable[[Any, Path, "FileParams"], "NamedTable"] | None
    )  # A path, or an open file if it comes through a pipe.
    rows: Callable[[Path, "FileParams"], "Rows"] | None  # In place of `open`, for a format without column names.
    options: frozenset[str]  # The fields of `FileParams` that it reads, besides those for every format.
    follow: Callable[..., "Followed"] | None  # Rows that are read as they are appended (`follow.sources.follow`).
    outputs: Mapping[str, Output]  # How scores are written, by ending.
    advice: Mapping[str, str] = field(
        default_factory=dict
    )  # What to do with files of other endings that could be meant.
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

    def faults(self, numbers: Sequence[str]) -> "ColumnFaults":
        """What is wrong with columns that should be numbers, from another look at the file. Those that are not by type are not
        among `numbers`."""
        ...


class SharedTable(NamedTable, Protocol):
    """A table of which several processes or machines can read pieces."""

    @property
    def missing(self) -> "MissingMarks":
        """What stands for a missing value."""
        ...

    def pieces(self, max_rows: int) -> Sequence["SharedTable"]:
        """Tables of at most `max_rows` rows, or a little more, in order; the `source` of each is a file."""
        ...

    def dask_frame(self) -> Any:
        """A Dask dataframe of the same files, which the workers of a cluster can read by the same paths."""
        ...


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
        raise ValueError(
            f"{source} cannot be read as {kind}{position}: it is damaged, ends too early, or is no {kind}"
        ) from None


def tables_of(names: list[str], scored: Iterator[Scored]) -> Iterator[Any]:
    """Arrow tables with the columns that are carried, and the scores. The first comes even if there are no rows."""
    import numpy as np

    # The first block fixes the types of the columns that are carried.
    block, extra = next(scored, (np.empty((0, len(names))), None))
    first = _table(names, block, extra)
    yield first
    for block, extra in scored:
        yield _table(names, block, extra).cast(first.schema)


def _table(names: list[str], block: "Array", extra: Any) -> Any:
    import pyarrow as pa

    # What is carried comes first, as in the table that people join with.
    beside = {} if extra is None else {name: extra.column(name) for name in extra.schema.names}
    return pa.table({**beside, **dict(zip(names, map(pa.array, block.T.copy()), strict=True))})


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
