"""Files of a command: what comes in is read by `eigenveil.data.tables`, what goes out is checked before any budget is spent.

A result that cannot be written after the noise was drawn is a budget wasted, and a file overwritten by accident is worse.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eigenveil.data.archive import TABLES, ending_of
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.data.tables import Table

__all__ = ["column_names", "read_rows", "require_input", "require_output"]


def require_input(path: Path, *, endings: Collection[str] = TABLES) -> None:
    """Refuse at once, before anything heavy is imported, an input that is not there or whose name says it cannot be read."""
    require(path.is_file(), f"{path} does not exist or is not a file")
    ending_of(path, endings)


def require_output(path: Path, *, endings: Sequence[str], force: bool, inputs: Sequence[Path]) -> None:
    """Refuse an output that could not be written, or should not be."""
    require(
        path.suffix.lower() in endings,
        f"--output must end in {' or '.join(endings)}, got {path}",
    )
    require(path.parent.is_dir(), f"--output {path}: the folder {path.parent} does not exist")
    require(not path.is_dir(), f"--output {path} is a folder")
    if path.exists():
        same = any(source.exists() and source.samefile(path) for source in inputs)
        require(not same, f"--output {path} is also an input of this command")
        require(force, f"--output {path} already exists; --force overwrites it")
    require(os.access(path.parent, os.W_OK), f"--output {path}: the folder {path.parent} cannot be written to")


def read_rows(
    path: Path,
    *,
    person: str | None = None,
    drop: Sequence[str] = (),
    features: int | None = None,
    one_based: bool = False,
) -> "Table":
    """The table in `path`, as `read_table` has it; every refusal names the file and shows no value."""
    from eigenveil.data.tables import read_table

    try:
        return read_table(path, person=person, drop=drop, features=features, one_based=one_based)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except ValueError as error:
        named = str(path) in str(error)
        raise ValueError(str(error) if named else f"{path}: {error}") from error


def column_names(path: Path) -> tuple[str, ...] | None:
    """The names of the columns in a csv or parquet file; None for other kinds, and for files `read_table` will refuse."""
    ending = path.suffix.lower()
    if not path.is_file() or ending not in {".csv", ".parquet"}:
        return None
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    try:
        if ending == ".parquet":
            return tuple(pq.read_schema(path).names)
        with pc.open_csv(path) as reader:
            names = tuple(reader.schema.names)
    except pa.ArrowException:
        return None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    return names
