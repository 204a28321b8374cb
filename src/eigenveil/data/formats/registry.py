"""Tables whose columns have names: csv, Parquet, Arrow and xlsx files, folders of Parquet, and pipes of csv or Arrow.

`open_named` reads names and types, checks them, and gives the rows out as Arrow batches, as often as they are asked for; from a
pipe once. A file is read again for every pass, so it may be larger than memory.
"""

from pathlib import Path
from typing import Any, Final

from eigenveil.data.archive import TABLES, ending_of
from eigenveil.data.formats.arrow import ArrowTable
from eigenveil.data.formats.base import NamedTable, require_readable
from eigenveil.data.formats.cells import JsonTable, SheetTable
from eigenveil.data.formats.csv import CsvTable
from eigenveil.data.formats.parquet import ParquetTable
from eigenveil.data.number_texts import MissingMarks
from eigenveil.errors import ParameterError, require, verbatim
from eigenveil.params.declarations.reading import FileParams

__all__ = ["NAMED", "kind_of", "open_named", "require_option"]

# The formats whose columns have names, and those that a pipe can carry.
NAMED: Final = ("csv", "parquet", "arrow", "xlsx", "jsonl")
_PIPES: Final = ("csv", "arrow")


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
