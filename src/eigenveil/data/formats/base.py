"""What every format of files has in common: the table it opens, paths and patterns, and errors that quote nothing."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from eigenveil.data.faults import ColumnFaults
from eigenveil.errors import require

__all__ = ["NamedTable", "matching", "reading", "require_readable"]


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
