"""Input and output files of commands. Inputs are read by `eigenveil.data.tables`.

Outputs are checked before any budget is spent: a result that cannot be written wastes the budget, and overwriting a file by
accident is worse.
"""

import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from eigenveil.cli._terminal import busy
from eigenveil.data.archive import SVMLIGHT, TABLES, ending_of
from eigenveil.errors import ColumnsError, require

if TYPE_CHECKING:
    from eigenveil.data.tables import Table

__all__ = ["column_names", "read_rows", "require_file", "require_input", "require_output"]


def require_input(path: Path, *, endings: Collection[str] = TABLES) -> None:
    """Refuse an input that does not exist or has an unknown ending, at once, before anything heavy is imported."""
    require_file(path)
    ending_of(path, endings)


def require_file(path: Path) -> None:
    """Refuse a path that is not a file, with the name that was probably meant."""
    require(not path.is_dir(), f"{path} is a folder. Give a file in it")
    if path.is_file():
        return
    names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    raise ValueError(
        f"{path} does not exist. " + (f"Did you mean {path.with_name(close[0])}?" if close else "Check the path")
    )


def require_output(
    path: Path, *, endings: Sequence[str], force: bool, inputs: Sequence[Path], option: str = "--output"
) -> None:
    """Refuse an output that could not be written, or must not be overwritten."""
    require(
        path.suffix.lower() in endings,
        f"{option} must end in {' or '.join(endings)}, got {path}. Try {option} {path.with_suffix(endings[0])}",
    )
    require(path.parent.is_dir(), f"{option} {path}: the folder {path.parent} does not exist. Create it first")
    require(not path.is_dir(), f"{option} {path} is a folder. Name a file in it")
    if path.exists():
        # Checked before --force: overwriting an input with its own result is never meant.
        same = any(source.exists() and source.samefile(path) for source in inputs)
        require(not same, f"{option} {path} is also an input of this command. Give it another name")
        require(
            force, f"{option} {path} already exists. Overwrite it with --force, or choose another name with {option}"
        )
    require(
        os.access(path.parent, os.W_OK),
        f"{option} {path}: you may not write to the folder {path.parent}. Choose another one",
    )


def read_rows(
    path: Path,
    *,
    person: str | None = None,
    drop: Sequence[str] = (),
    features: int | None = None,
    one_based: bool = False,
) -> "Table":
    """The table in `path`, from `read_table`. Every error names the file and shows no value."""
    named = path.suffix.lower() in {".csv", ".parquet"}
    require(named or (person is None and not drop), f"{path} has no column names. Leave out --person and --drop")
    require(features is None or path.suffix.lower() in SVMLIGHT, "--features is for svmlight files only. Leave it out")
    try:
        # A csv is read whole, which can take a minute.
        with busy("reading the table"):
            from eigenveil.data.tables import read_table

            return read_table(path, person=person, drop=drop, features=features, one_based=one_based)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text. Save it as UTF-8 first") from None
    except ColumnsError as error:
        raise ColumnsError(f"{path}: {error}", error.columns) from error
    except ValueError as error:
        says = str(path) in str(error)
        raise ValueError(str(error) if says else f"{path}: {error}") from error


def column_names(path: Path) -> tuple[str, ...] | None:
    """The column names of a csv or parquet file; None for other kinds, and for files that `read_table` will refuse."""
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
