"""Reads interactions from files: one per line, or a sparse matrix. No message quotes a person's line; a header may be shown."""

import csv
import numbers
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from eigenveil.core.rows import Rows
from eigenveil.data.columns import as_numbers, require_kinds, require_names
from eigenveil.data.engines import engine_of
from eigenveil.data.formats import FORMATS, FileParams, Format, NamedTable, by_ending, format_of, open_named, require_options
from eigenveil.data.formats.unpacked import UnpacksTooMuch, require_columns
from eigenveil.data.frames import in_memory
from eigenveil.data.number_texts import MissingMarks
from eigenveil.data.people import require_ids
from eigenveil.data.rows import SparseRows
from eigenveil.data.tables import with_gaps
from eigenveil.errors import ColumnsError, ParameterError, join_names, require, require_param, verbatim
from eigenveil.estimators.checks import is_real
from eigenveil.estimators.reading import column_names
from eigenveil.linalg import Array
from eigenveil.params.declarations.recommend import InteractionsParams
from eigenveil.params.declare import keywords_in, takes
from eigenveil.recommend.interactions import Interactions, checked_interactions, is_whole, ones_at, require_names_of_one_line
from eigenveil.recommend.item_fit import Items

__all__ = [
    "columns_not_read",
    "degrees_of",
    "format_of_histories",
    "interactions_in",
    "items_of",
    "names_of",
    "read_histories",
    "read_interactions",
]

# A csv's first line is shown in an error only if its names look like this. Identifiers usually contain one of the
# excluded characters, so a missing header does not leak a person's line.
_NAME = re.compile(r"[^\d\t;|:@]*")
# Formats with a line for each interaction.
_NAMED = " or ".join(format_.word for format_ in FORMATS if format_.has_names)
_AT_ONCE = 1 << 16
# Whole numbers as usually written: "007" is a name and not seven.
_WHOLE_NUMBER = re.compile("0|-?[1-9][0-9]{0,99}")


@takes(InteractionsParams)
def read_interactions(
    path: str | Path,
    *,
    user: str = "user",
    item: str = "item",
    value: str | None = None,
    min_rating: float | None = None,
    items: Sequence[str | int] | str | Path | None = None,
) -> Interactions:
    """Interactions from a csv, Parquet, Arrow, xlsx or jsonl file with a line for each, or a scipy sparse matrix in npz.

    Users and items are text or whole numbers, and become names. A repeated line counts once. Users and items are
    sorted, whole numbers by size, so the order of lines does not matter. A user whose lines were all dropped is an
    empty row. Every line must name a user: blanks and placeholders such as "NA" are refused
    (`eigenveil.data.people`).

    Parameters
    ----------
    user : str, default 'user'
        The column that says who.
    item : str, default 'item'
        The column that says what.
    value : str or None, default None: value, if there is such a column
        The column of ratings, or of 1 and 0.
    min_rating : float or None, default None
        Lines with a smaller value do not count as interactions. Without it a value must be 1, or 0 for none.
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
    return interactions_in(Path(path), keywords_in(locals(), InteractionsParams), FileParams())


def interactions_in(source: Any, params: InteractionsParams, how: FileParams) -> Interactions:
    """As `read_interactions`, of a file that is written as `how` says, a folder of Parquet files, or an open binary file."""
    path = source if isinstance(source, Path) else Path("the stream")
    require(not isinstance(source, Path) or path.exists(), f"{path} does not exist or is not a file")
    format_ = format_of_histories(source, how)
    user, item, value, min_rating = params.user, params.item, params.value, params.min_rating
    join_names = None if params.items is None else _listed(params.items, item)
    if not format_.has_names:
        named = (user, item, value) != ("user", "item", None)
        require(not named, f"{format_.word} files have no named columns: leave these options out, or use {_NAMED}")
        return _read_matrix(path, format_, how, min_rating, join_names)
    opened = open_named(source, how)
    names = opened.names
    value = "value" if value is None and "value" in names else value
    wanted = [user, item] if value is None else [user, item, value]
    require_param(
        len(set(wanted)) == len(wanted),
        f"{{user}}, {{item}} and {{value}} must be different columns, got {verbatim(', '.join(wanted))}",
    )
    require_param(min_rating is None or value is not None, "{min_rating} needs a column of values: name it with {value}")
    # What stands in the first line of a text or a sheet may be a person's. Other formats declare their names.
    _require_columns(path, names, wanted, header=format_.has_header)
    table = _lines(opened, user, item, value)
    require(table.num_rows > 0, f"{path} has column names but no rows")
    rows, users = _coded(table[user], user, named=False)
    columns, item_names = _coded(table[item], item, named=True)
    mask = np.ones(table.num_rows, dtype=bool) if value is None else _kept(table.select([value]), value, min_rating)
    if join_names is not None:
        positions = {name: index for index, name in enumerate(join_names)}
        columns = np.array([positions.get(name, -1) for name in item_names], dtype=np.intp)[columns]
        # Items outside the public list are dropped silently, because how many there are is private.
        item_names, mask = join_names, mask & (columns >= 0)
    return Interactions(ones_at(rows[mask], columns[mask], (len(users), len(item_names))), users, item_names)


def format_of_histories(source: Any, how: FileParams) -> Format:
    """The format of a file of histories: what was said, or by the ending of its name."""
    piped = not isinstance(source, Path)
    if not piped and how.kind is None and not source.is_dir():
        return by_ending(source)
    return format_of(Path("the stream") if piped else source, how, piped=piped)


def _read_matrix(
    path: Path, format_: Format, how: FileParams, min_rating: float | None, items: tuple[str, ...] | None
) -> Interactions:
    require_options(path, how, format_)
    assert format_.rows is not None
    try:
        # Blocks as they are, and sparse ones stay so.
        rows = with_gaps(format_.rows(path, how), MissingMarks.of(how))
        matrix = sp.csr_array(sp.vstack([sp.csr_array(block.values) for block in rows.blocks(_AT_ONCE)], format="csr"))
    except UnpacksTooMuch:
        raise
    except Exception:
        # Catch everything: on a damaged file numpy, zipfile, zlib and tokenize raise almost anything, and scipy quotes indices.
        raise ValueError(f"{path} cannot be read as {format_.word}: it is damaged, or has no matrix of numbers") from None
    require(
        items is None or matrix.ndim != 2 or len(items) == matrix.shape[1],
        f"the list of items must name each of the {matrix.shape[-1]} columns of {path}, got {len(items or ())} names",
    )
    if items is None:
        require_columns(path, matrix.shape[-1], advice="If that is right, name them with {items}")
    if min_rating is not None:
        matrix = Interactions.from_ratings(matrix, min_rating=min_rating).matrix
    return Interactions(matrix, None, items)


def columns_not_read(path: str | Path, *, user: str, item: str, value: str | None, how: FileParams | None = None) -> list[str]:
    """The columns that `read_interactions` would not read; none of a matrix.

    If one of them contains ratings, every line counts, even where the user disliked the item.
    """
    params = FileParams() if how is None else how
    if not format_of_histories(Path(path), params).has_names:
        return []
    names = open_named(Path(path), params).names
    return [name for name in names if name not in (user, item, value) and not (value is None and name == "value")]


def _require_columns(path: Path, names: Sequence[str], wanted: Sequence[str], *, header: bool) -> None:
    """Refuse a table without the `wanted` columns. Show the columns it has, unless they may be a person's first line."""
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = not header or all(_NAME.fullmatch(name) for name in names)
        has = f"it has {join_names(names)}" if shown else "its first line may not be a header, or is not separated by commas"
        text = verbatim(f"{path} has no column {join_names(map(repr, missing))}; {has}")
        raise ParameterError(f"{text}. Name the columns to read with {{user}}, {{item}} and {{value}}")
    require_names(path, names, wanted)


def _lines(opened: NamedTable, user: str, item: str, value: str | None) -> Any:
    """The named columns as an Arrow table. In csv, identifiers are always read as text."""
    import pyarrow as pa

    # Otherwise pyarrow would guess a type, and users 007 and 7 would become one.
    types = {user: pa.string(), item: pa.string()} | ({} if value is None else {value: pa.float64()})
    numbers = [] if value is None else [value]
    try:
        if opened.kinds is not None:
            require_kinds(opened.kinds, numbers, source=str(opened.source))
        batches = [
            batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
            for batch in opened.batches(numbers, [user, item], _AT_ONCE)
        ]
    except ColumnsError as error:
        # Nothing can be left out here.
        raise ValueError(f"{error.happened}. Encode them as numbers first") from None
    return pa.concat_tables(batches) if batches else pa.table({name: [] for name in types})


def _coded(column: Any, name: str, *, named: bool) -> tuple[Any, tuple[str, ...]]:
    """Identifiers as numbers from 0, (lines,), and their names, sorted; by size if all are whole numbers.

    Users must be real people's names. Items (`named`) are public, and one called "None" may be a song.
    """
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        # An Arrow dictionary may list a name twice, or a missing value, so decode it first.
        column = column.cast(column.type.value_type)
    text = types.is_string(column.type) or types.is_large_string(column.type) or types.is_null(column.type)
    require(
        text or types.is_integer(column.type), f"column {name!r} must contain names, as text or whole numbers, got {column.type}"
    )
    codes = column.dictionary_encode().combine_chunks()
    identifiers = codes.dictionary.cast(pa.string()).to_pylist()
    if named:
        require(column.null_count == 0 and "" not in identifiers, f"column {name!r} must have no missing values")
    else:
        require_ids(identifiers + [None] * bool(column.null_count), what=f'user column "{name}"', who="user")
    require_names_of_one_line(identifiers, f"column {name!r}")
    key: Callable[[str], Any] = int if all(map(_WHOLE_NUMBER.fullmatch, identifiers)) else str
    names = tuple(sorted(identifiers, key=key))
    positions = {name: index for index, name in enumerate(names)}
    places = np.array([positions[name] for name in identifiers], dtype=np.intp)
    return places[codes.indices.to_numpy()], names


def _kept(table: Any, value: str, min_rating: float | None) -> Any:
    """Which lines are interactions, (lines,), by the one column of `table`."""
    try:
        values = as_numbers(table)[:, 0]
    except ColumnsError:
        # A line without a value is no interaction and no gap: it has to be mended.
        raise ValueError(f"column {value!r} must have no NaN, infinite or missing values") from None
    if min_rating is not None:
        return values >= min_rating
    ones = values == 1
    if not bool((ones | (values == 0)).all()):
        text = verbatim(f"column {value!r} must contain 1 for an interaction or 0 for none")
        raise ParameterError(f"{text}. If it contains ratings, set the lowest that counts as an interaction with {{min_rating}}")
    return ones


def _listed(items: Sequence[str | int] | str | Path, column: str) -> tuple[str, ...]:
    """The public list of items, from memory or from a file. It is public, so errors may quote it."""
    if isinstance(items, str | Path):
        names, where = _listed_in(Path(items), column), verbatim(str(items))
    else:
        wrong = next((item for item in items if not isinstance(item, str) and not is_whole(item)), None)
        require_param(wrong is None, "{items} must be names, as text or whole numbers, got {@wrong}", wrong=wrong)
        names, where = [str(item) for item in items], "{items}"
    require_param(len(names) > 0 and "" not in names, f"{where} must list at least one item, and every item needs a name")
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    require_param(twice is None, f"{where} must list every item once, but has {{@twice}} more than once", twice=twice)
    return tuple(names)


def _listed_in(path: Path, column: str) -> list[str]:
    require(path.is_file(), f"{path} does not exist or is not a file")
    try:
        # A byte order mark, which some programs write, would become part of the first name.
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() != ".csv":
            return text.splitlines()
        lines = [fields for fields in csv.reader(text.splitlines(keepends=True), strict=True) if fields]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except csv.Error:
        raise ValueError(f"{path} is not a list of comma-separated values") from None
    at, width = 0, 1
    if lines and column in lines[0]:
        at, width, lines = lines[0].index(column), len(lines[0]), lines[1:]
    require(
        all(len(fields) == width for fields in lines),
        f"{path} must have one item on each line, or a header with the column {column!r}",
    )
    return [fields[at] for fields in lines]


Names = tuple[str, ...] | None

# No item is more popular than this, and the ratio of two such numbers is still finite.
_LARGEST = 1e30


def read_histories(R: Any) -> tuple[dict[str, Rows], int, Names]:
    """The histories of each site by name, the number of items, and their names. A single matrix is one site, named R."""
    named = {"R": R}
    # Some sparse matrices (dok_matrix) are dictionaries too.
    if isinstance(R, Mapping) and not sp.issparse(R):
        named = dict(R)
    elif isinstance(R, Sequence) and not isinstance(R, str | bytes):
        named = {f"site {i}": X for i, X in enumerate(R)}
    require(len(named) > 0, "there must be at least one site, got none")
    require(all(isinstance(name, str) for name in named), "names of sites must be text")
    rows: dict[str, Rows] = {}
    dim, items, first, unnamed = 0, None, "", ""
    for name, X in named.items():
        matrix, join_names = _histories(X, name)
        if not first:
            dim, first = matrix.shape[1], name
            require(dim >= 2, f"{name} has {dim} item: a recommender needs at least 2")
        require(
            matrix.shape[1] == dim, f"{name} has {matrix.shape[1]} items, but {first} has {dim}: all sites need the same columns"
        )
        require(
            items is None or join_names is None or items == join_names,
            f"{name} has other items than {first}, or another order. Read all sites with the same list of items",
        )
        # One site with names and one without cannot be compared, so the last unnamed site is remembered.
        unnamed = unnamed if join_names is not None else name
        items = items if items is not None else join_names
        rows[name] = SparseRows(matrix) if sp.issparse(matrix) else matrix
    require(items is None or len(set(items)) == dim, "two items have the same name")
    require(
        items is None or not unnamed,
        f"{unnamed} does not name its items, but other sites do, so columns cannot be matched. Name them at every "
        f"site or at none",
    )
    return rows, dim, items


def _histories(X: Any, name: str) -> tuple[Any, Names]:
    """The histories of one site as a checked matrix, or as rows on a cluster that were checked there; and the item names."""
    X = in_memory(X)
    engine = engine_of(X)
    if engine is None or not engine.stays:
        return checked_interactions(X if isinstance(X, Interactions) else _two_dimensional(X, name), name=name), names_of(X)
    # A Delayed has every attribute, so what it lacks would not tell.
    array = isinstance(getattr(X, "ndim", None), int) and not hasattr(X, "columns")
    require(array, f"{name} must be a {engine.title} array of users and items. Make one with to_dask_array")
    return engine.rows(X, convert=partial(checked_interactions, name=name)), None


def items_of(items: Any, dim: int, names: Names) -> tuple[Items | None, int | None]:
    """A public list of items as sorted column numbers, or how many to keep by private counts; None for neither."""
    if items is None:
        return None, None
    if is_real(items) and isinstance(items, numbers.Integral):
        require_param(2 <= int(items) <= dim, f"{{items}} must lie in 2..{dim}, the number of items, got {{@given}}", given=items)
        return None, int(items)
    join_names = isinstance(items, Sequence | np.ndarray) and not isinstance(items, str | bytes)
    kind = type(items).__name__
    require_param(join_names, f"{{items}} must be None, a list of items or how many to keep, got {kind}")
    places = Interactions(sp.csr_array((0, dim)), items=names).columns(list(items))
    columns = np.unique(np.asarray(places, dtype=np.int64))
    require_param(len(columns) == len(places), "{items} lists an item twice")
    require_param(len(columns) >= 2, f"{{items}} must list at least 2, got {len(columns)}")
    return columns, None


def degrees_of(degrees: Any, dim: int) -> Array | None:
    """Public item degrees, (d,), with zeros replaced by ones; None where they are not used or will be released."""
    if degrees is None or (isinstance(degrees, str) and degrees == "private"):
        return None
    message = f"{{item_degrees}} must be None, 'private' or {dim} non-negative numbers"
    require_param(not isinstance(degrees, str), f"{message}, got {{@given}}", given=degrees)
    try:
        array = np.array(degrees, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"{message}, got {type(degrees).__name__}") from None
    require_param(array.shape == (dim,), f"{message}, got shape {array.shape}")
    # The filter divides by roots of degrees.
    array[array == 0] = 1.0
    sound = (array >= 1 / _LARGEST) & (array <= _LARGEST)
    require_param(bool(sound.all()), f"{message}, finite and neither tiny nor huge")
    return array


def _two_dimensional(X: Any, name: str) -> Any:
    flat = not sp.issparse(X) and not hasattr(X, "columns") and np.ndim(X) != 2
    require(
        not flat,
        f"{name} must be a matrix of users and items. Pass a list of matrices for several sites, and a matrix of "
        "one row for a single user",
    )
    return X if sp.issparse(X) or hasattr(X, "columns") else np.asarray(X)


def names_of(X: Any) -> Names:
    """The item names of a table or `Interactions`; None if it has none."""
    if isinstance(X, Interactions):
        return X.items
    columns = None if sp.issparse(X) else column_names(X)
    return None if columns is None else tuple(str(name) for name in columns)
