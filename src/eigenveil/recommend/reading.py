"""Interactions from files: a line for each, or a sparse matrix. No message shows a line of somebody's, unless it looks
like a header."""

import csv
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from eigenveil.data.archive import HISTORIES, ending_of
from eigenveil.data.people import require_ids
from eigenveil.data.tables import as_numbers, first_line, require_names, require_numbers
from eigenveil.errors import ParameterError, require, require_param, verbatim
from eigenveil.params import InteractionsParams, takes
from eigenveil.recommend.interactions import Interactions, is_whole, ones_at, require_names_of_one_line

__all__ = ["columns_not_read", "read_interactions"]

# What a column may be called if the first line of a csv is to be shown: identifiers mostly have one of these in them.
_NAME = re.compile(r"[^\d\t;|:@]*")
# Whole numbers as they are usually written: "007" is a name, not seven.
_WHOLE_NUMBER = re.compile("0|-?[1-9][0-9]{0,99}")


@takes(InteractionsParams)
def read_interactions(path: str | Path, asked: InteractionsParams) -> Interactions:
    """Interactions from a csv (or csv.gz) or parquet file with a line for each, or a scipy sparse matrix in an npz file.

    Users and items are text or whole numbers, kept as names. A line that is repeated counts once. Users and items are
    sorted, whole numbers by size, so the order of the lines does not matter; a user of whom no line is left is an empty row.
    Every line must name a user: blanks and placeholders such as "NA" are refused, as `eigenveil.data.people` says.

    Parameters
    ----------
    user : str, default 'user'
        The column that says who.
    item : str, default 'item'
        The column that says what.
    value : str or None, default None: value, if there is such a column
        The column of ratings, or of 1 and 0.
    at_least : float or None, default None
        Lines with a smaller value are no interactions. Without it a value must be 1, or 0 for none.
    items : list, str, Path or None, default None
        The public list of items: names, or a file with one on each line (a csv may start with the name of the
        column). They are the columns, in this order. Lines with other items are left out silently, because their
        number is private. For npz it names the columns. Without it the columns are the items in the file, and **which
        items occur at all then counts as public**. That includes an item that a single user has, and a guarantee must
        say so. A public list is better.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "plays.csv")
    ...     _ = path.write_text("user,item\\nbob,rock\\nann,jazz\\nbob,jazz\\n")
    ...     plays = read_interactions(path, items=["jazz", "rock", "soul"])
    >>> plays.users, plays.matrix.toarray().tolist()
    (('ann', 'bob'), [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    """
    path = Path(path)
    require(path.is_file(), f"{path} does not exist or is not a file")
    ending = ending_of(path, HISTORIES)
    user, item, value, at_least = asked.user, asked.item, asked.value, asked.at_least
    listed = None if asked.items is None else _listed(asked.items, item)
    if ending == ".npz":
        require((user, item, value) == ("user", "item", None), "npz files have no named columns; use csv or parquet")
        return _read_matrix(path, at_least, listed)
    with _reading(path, value):
        names = _names(path, ending)
    value = "value" if value is None and "value" in names else value
    wanted = [user, item] if value is None else [user, item, value]
    require_param(
        len(set(wanted)) == len(wanted),
        f"{{user}}, {{item}} and {{value}} must be different columns, got {verbatim(', '.join(wanted))}",
    )
    require_param(at_least is None or value is not None, "{at_least} needs a column of values: give {value}")
    _require_columns(path, names, wanted, header=ending != ".parquet")
    with _reading(path, value):
        table = _lines(path, ending, user, item, value)
    require(table.num_rows > 0, f"{path} has column names and no lines")
    rows, users = _coded(table[user], user, named=False)
    columns, known = _coded(table[item], item, named=True)
    kept = np.ones(table.num_rows, dtype=bool) if value is None else _kept(table.select([value]), value, at_least)
    if listed is not None:
        place = {name: index for index, name in enumerate(listed)}
        columns = np.array([place.get(name, -1) for name in known], dtype=np.intp)[columns]
        known, kept = listed, kept & (columns >= 0)
    return Interactions(ones_at(rows[kept], columns[kept], (len(users), len(known))), users, known)


def _read_matrix(path: Path, at_least: float | None, items: tuple[str, ...] | None) -> Interactions:
    try:
        matrix = sp.load_npz(path)
    except Exception:
        # A damaged file makes numpy, zipfile, zlib and tokenize raise almost anything, and scipy quotes indices.
        raise ValueError(f"{path} cannot be read as npz: it must hold what `scipy.sparse.save_npz` writes") from None
    require(
        items is None or matrix.ndim != 2 or len(items) == matrix.shape[1],
        f"the list of items must name each of the {matrix.shape[-1]} columns of {path}, got {len(items or ())} names",
    )
    if at_least is not None:
        matrix = Interactions.from_ratings(matrix, at_least=at_least).matrix
    return Interactions(matrix, None, items)


@contextmanager
def _reading(path: Path, value: str | None) -> Iterator[None]:
    """Round what pyarrow raises into a `ValueError` without its cause, whose message quotes the data."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        numeric = value is not None and "conversion error to double" in str(error)
        why = f"column {value!r} must hold numbers" if numeric else first_line(error)
        if "invalid UTF8" in str(error):
            why = "it is not UTF-8 text"
        raise ValueError(f"{path} cannot be read: {why}") from None


def _names(path: Path, ending: str) -> list[str]:
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    if ending == ".parquet":
        return list(pq.read_schema(path).names)
    with pc.open_csv(path, parse_options=pc.ParseOptions(newlines_in_values=True)) as reader:
        return list(reader.schema.names)


def columns_not_read(path: str | Path, *, user: str, item: str, value: str | None) -> list[str]:
    """The names of the columns that `read_interactions` would leave alone, where a file has columns with names.

    Whoever has ratings in one of them counts every line, also that of somebody who did not like the item.
    """
    ending = ending_of(Path(path), HISTORIES)
    if ending == ".npz":
        return []
    with _reading(Path(path), value):
        names = _names(Path(path), ending)
    return [name for name in names if name not in (user, item, value) and not (value is None and name == "value")]


def _require_columns(path: Path, names: Sequence[str], wanted: Sequence[str], *, header: bool) -> None:
    """Refuse a table without the `wanted` columns, and show those it has, unless they might be somebody's first line."""
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = not header or all(_NAME.fullmatch(name) for name in names)
        has = (
            f"it has {', '.join(names)}" if shown else "its first line may be no header, or not be separated by commas"
        )
        said = verbatim(f"{path} has no column {', '.join(map(repr, missing))}; {has}")
        raise ParameterError(f"{said}. Say which columns to read with {{user}}, {{item}} and {{value}}")
    require_names(path, names, wanted)


def _lines(path: Path, ending: str, user: str, item: str, value: str | None) -> Any:
    """The named columns as an Arrow table; in csv identifiers are text whatever they look like."""
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    types = {user: pa.string(), item: pa.string()} | ({} if value is None else {value: pa.float64()})
    if ending == ".parquet":
        table = pq.read_table(path, columns=list(types), partitioning=None).select(list(types))
        if value is not None:
            require_numbers(pa.schema([table.schema.field(value)]))
        return table
    return pc.read_csv(
        path,
        parse_options=pc.ParseOptions(newlines_in_values=True),
        convert_options=pc.ConvertOptions(include_columns=list(types), column_types=types),
    )


def _coded(column: Any, name: str, *, named: bool) -> tuple[Any, tuple[str, ...]]:
    """Identifiers as numbers from 0, (lines,), and the names these stand for, sorted: by size if all are whole numbers.

    Users must be somebody. Items are public names, and one that is `named` "None" may be a song.
    """
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        # A dictionary may list one name twice, or a missing value; only its values tell.
        column = column.cast(column.type.value_type)
    text = types.is_string(column.type) or types.is_large_string(column.type) or types.is_null(column.type)
    require(
        text or types.is_integer(column.type),
        f"column {name!r} must hold names, which are text or whole numbers, got {column.type}",
    )
    codes = column.dictionary_encode().combine_chunks()
    found = codes.dictionary.cast(pa.string()).to_pylist()
    if named:
        require(column.null_count == 0 and "" not in found, f"column {name!r} must have no missing values")
    else:
        require_ids(found + [None] * bool(column.null_count), what=f'user column "{name}"', who="user")
    require_names_of_one_line(found, f"column {name!r}")
    key: Callable[[str], Any] = int if all(map(_WHOLE_NUMBER.fullmatch, found)) else str
    names = tuple(sorted(found, key=key))
    place = {name: index for index, name in enumerate(names)}
    places = np.array([place[name] for name in found], dtype=np.intp)
    return places[codes.indices.to_numpy()], names


def _kept(table: Any, value: str, at_least: float | None) -> Any:
    """Which lines are interactions, (lines,), by the one column of `table`."""
    values = as_numbers(table, gaps=True)[:, 0]
    require(bool(np.isfinite(values).all()), f"column {value!r} must have no NaN, infinite or missing values")
    if at_least is not None:
        return values >= at_least
    ones = values == 1
    if not bool((ones | (values == 0)).all()):
        said = verbatim(f"column {value!r} must hold 1 for an interaction or 0 for none")
        raise ParameterError(
            f"{said}; if it holds ratings, say from which one on they are interactions with {{at_least}}"
        )
    return ones


def _listed(items: Sequence[str | int] | str | Path, column: str) -> tuple[str, ...]:
    """The public list of items, which may be quoted, from memory or from a file."""
    if isinstance(items, str | Path):
        names, where = _listed_in(Path(items), column), verbatim(str(items))
    else:
        wrong = next((item for item in items if not isinstance(item, str) and not is_whole(item)), None)
        require_param(
            wrong is None, "{items} must be names, which are text or whole numbers, got {@wrong}", wrong=wrong
        )
        names, where = [str(item) for item in items], "{items}"
    require_param(len(names) > 0 and "" not in names, f"{where} must list at least one item, and none without a name")
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    require_param(twice is None, f"{where} must list every item once, but has {{@twice}} more than once", twice=twice)
    return tuple(names)


def _listed_in(path: Path, column: str) -> list[str]:
    require(path.is_file(), f"{path} does not exist or is not a file")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() != ".csv":
            return text.splitlines()
        lines = [fields for fields in csv.reader(text.splitlines(keepends=True), strict=True) if fields]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except csv.Error:
        raise ValueError(f"{path} is not a list of comma-separated values") from None
    at = 0
    if lines and column in lines[0]:
        at, width, lines = lines[0].index(column), len(lines[0]), lines[1:]
    else:
        width = 1
    require(
        all(len(fields) == width for fields in lines),
        f"{path} must have one item on each line, or a first line that says which column is {column!r}",
    )
    return [fields[at] for fields in lines]
