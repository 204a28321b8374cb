"""How a table is read: which of its columns are analysed, and how its file is written."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from eigenveil.params.declarations.groups import OFFLINE
from eigenveil.params.declare import param, parameters
from eigenveil.params.texts import numbers_from, text_of
from eigenveil.params.values import Expected, finite_numbers, whole

__all__ = ["ColumnsParams", "FileParams", "MissingParams", "TableParams"]

COLUMNS: Final = "Columns"
FILES: Final = "Reading the table"
MISSING_VALUES: Final = "Missing values"
# More levels than a table has columns are a mistake, such as a list of people.
_MOST_LEVELS: Final = 10_000


def names_or_patterns(value: Any) -> tuple[str, ...]:
    """Names of columns, or patterns such as lab_*, as a tuple. One text may stand for a list of one."""
    every = [value] if isinstance(value, str) else value
    if not isinstance(every, Sequence) or not all(isinstance(one, str) and one for one in every):
        raise Expected("names of columns, or patterns such as lab_*")
    return tuple(every)


def public_levels(value: Any) -> dict[str, tuple[str, ...]]:
    """The public levels of each column that is encoded, as texts."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise Expected('levels by column, such as {{"sex": ["f", "m"]}}')
    return {name: _levels(name, levels) for name, levels in value.items()}


def _levels(name: str, levels: Any) -> tuple[str, ...]:
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not 0 < len(levels) <= _MOST_LEVELS:
        raise Expected(f"a list of 1 to {_MOST_LEVELS} public levels", at=f"column {name}", given=levels)
    if not all(isinstance(level, str | int | float) for level in levels):
        raise Expected("texts, numbers or truth values", at=f"column {name}", given=levels)
    # Truth values are written as files write them.
    found = tuple(str(level).lower() if isinstance(level, bool) else str(level) for level in levels)
    if len(set(found)) < len(found):
        raise Expected("different from each other", at=f"levels of column {name}", given=levels)
    return found


def levels_from(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Levels by column, from texts. Quotes keep a comma inside a level.

    >>> levels_from(["sex=f,m", 'ward="a,b",c'])
    {'sex': ('f', 'm'), 'ward': ('a,b', 'c')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, levels = text.partition("=")
        if not (name and equals and levels) or name in found:
            raise Expected("COLUMN=LEVEL,LEVEL, once for each column", given=text)
        found[name] = _levels(name, [level for line in csv.reader([levels]) for level in line])
    return found


def groups_of_columns(value: Any) -> str:
    """Groups of columns as one text, with semicolons between groups and commas between columns.

    >>> groups_of_columns([["a", "b"], ["lab_*"]]), groups_of_columns("a,b; lab_*")
    ('a,b;lab_*', 'a,b;lab_*')
    """
    if not isinstance(value, str):
        expected = Expected("groups of columns, such as [['a', 'b'], ['lab_*']]")
        if not isinstance(value, Sequence) or any(
            isinstance(one, str) or not isinstance(one, Sequence) for one in value
        ):
            raise expected
        parts = [[str(name) for name in group] for group in value]
        if any("," in name or ";" in name for group in parts for name in group):
            raise Expected(
                "names without commas and semicolons. Write a pattern for such a name, with ? in their place"
            )
        value = ";".join(",".join(group) for group in parts)
    # One text for both forms, so that a study file, a model and a command line have the same.
    groups = [[name.strip() for name in group.split(",")] for group in value.split(";")]
    if not value.isprintable() or not all(name for group in groups for name in group):
        raise Expected("names or patterns with commas between, and a semicolon between groups")
    return ";".join(",".join(group) for group in groups)


def public_numbers(value: Any) -> Any:
    """One finite number, or a list of one per column. Arrays become lists."""
    return finite_numbers(value.tolist() if hasattr(value, "tolist") else value)


def one_character(value: Any) -> str:
    """One character; the word tab is one too."""
    # A shell passes on \t as two characters, and a real tab is hard to type.
    text = {"tab": "\t", "\\t": "\t"}.get(value, value) if isinstance(value, str) else ""
    if len(text) != 1 or not text.isascii() or text.isalnum() or text in "\r\n":
        raise Expected("one character that is neither a letter nor a digit, or the word tab")
    return str(text)


def decimal_mark(value: Any) -> str:
    """A point or a comma."""
    if value not in (".", ","):
        raise Expected("a point or a comma")
    return str(value)


def thousands_mark(value: Any) -> str:
    """A point, a comma, an apostrophe or a space; the word space is one too."""
    text = {"space": " ", "\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'"}.get(value, value)
    if text not in (".", ",", "'", " "):
        raise Expected("a point, a comma, an apostrophe or the word space")
    return str(text)


def missing_words(value: Any) -> tuple[str, ...]:
    """What stands for a missing value: numbers and words, as texts. One may stand for a list of one."""
    every = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    texts = tuple(text_of(one) if isinstance(one, int | float) else one for one in every)
    if not texts or not all(isinstance(text, str) and text.strip() and "," not in text for text in texts):
        raise Expected("numbers such as -9999 or -9.5, or words without a comma, that stand for a missing value")
    return tuple(dict.fromkeys(text.strip() for text in texts))


def missing_words_from(texts: Sequence[str]) -> tuple[str, ...]:
    """The same from texts with commas between.

    >>> missing_words_from(["-9999,unknown", "-1"])
    ('-9999', 'unknown', '-1')
    """
    return tuple(word for text in texts for word in text.split(","))


def known_encoding(value: Any) -> str:
    """An encoding of text that Python knows, by its usual name."""
    try:
        found = codecs.lookup(value)
    except (LookupError, TypeError):
        raise Expected("the name of an encoding, such as utf-8, latin-1 or cp1252") from None
    # Python's codecs also convert bytes to bytes, which is no text.
    if not found._is_text_encoding:
        raise Expected("the name of an encoding of text, such as utf-8, latin-1 or cp1252")
    return found.name


# Not for studies, whose files list the columns that all sites have.
_list_of_columns = partial(
    param,
    default=None,
    said="list of str or None",
    check=names_or_patterns,
    parse=tuple,
    many=True,
    metavar="NAMES",
    recorded=False,  # A model has the names of its columns.
    surfaces=OFFLINE,
)
# In Python a table is read before it is handed over, and a study must not say how a site's file is written.
_of_a_file = partial(param, surfaces=frozenset({"cli"}))


@parameters(panel=COLUMNS)
class ColumnsParams:
    """Which columns of a table with names are analysed, and what text becomes. Names and levels are public."""

    columns: Any = _list_of_columns(
        "The columns by name, or by patterns such as lab_*; others are not analysed.",
        more="A list, for a table with column names. Its order is that of the components.",
        written="a,b,lab_*",
        unset="all",
    )
    drop: Any = _list_of_columns(
        "Leave these columns out: names, or patterns such as *_note.",
        more="A list, for a table with column names.",
        written="a,b,*_note",
    )
    one_hot: Any = param(
        "Make a column of 0 and 1 for each of these public levels of a column of text. A value that is not listed, or is "
        "missing, is 0 in all of them.",
        more='For example {{"sex": ["f", "m"]}}. You must know the levels without looking at these rows. A row gets at most a '
        "single 1, so that its norm grows by at most 1.",
        default=None,
        said="dict of lists or None",
        check=public_levels,
        parse=levels_from,
        many=True,
        metavar="COLUMN=LEVELS",
        written="sex=f,m",
        recorded=True,
        surfaces=OFFLINE,
    )


@parameters(panel=MISSING_VALUES, section="task")
class MissingParams:
    """What becomes of missing values. That a table may have some is public, and where they are is protected."""

    missing: Literal["refuse", "counts", "groups", "drop", "fill"] = param(
        "Missing values. refuse: they are an error. counts: count privately how many entries each column has, for 4% of the "
        "budget, and divide by that. groups: the same for groups of columns. drop: leave incomplete rows out. fill: put public "
        "values there.",
        more="Whichever you choose is public, and holds whether or not there are any. With counts and groups a missing entry is "
        "put at the center, where it adds nothing, and sums are divided by released counts of what is there. With drop the "
        "number of rows that are left is private. Infinite values are always refused.",
        # Nothing is filled in unasked: the components would describe the filling, and nobody would notice.
        default="refuse",
        quiet=True,
        metavar="RULE",
    )
    missing_groups: Any = param(
        "Columns that are missing together, such as those of a questionnaire: names or patterns with commas, and a semicolon "
        "between groups.",
        more="Or a list of lists. Other columns are groups of their own. If a row lacks one column of a group, all of the group "
        "counts as missing in that row.",
        default=None,
        said="str, list of lists or None",
        check=groups_of_columns,
        parse=str,
        metavar="GROUPS",
        written='"phq_*;gad_1,gad_2"',
        only="missing=groups",
        recorded=True,
    )
    missing_fill: Any = param(
        "The public value that takes the place of missing ones: one number, or one per column.",
        more="You must know it without looking at these rows: a mean of them would leak them.",
        # No default, not even 0: what stands for a missing value is a public statement about the table.
        default=None,
        said="float, list or None",
        check=public_numbers,
        strict=finite_numbers,
        parse=numbers_from,
        metavar="NUMBERS",
        written="0 or 1,2.5,3",
        only="missing=fill",
        recorded=True,
    )


@parameters(panel=FILES)
class FileParams:
    """How the file of a table is written. Nothing of it is guessed from rows."""

    # By name or by this option, never by content: what the first bytes look like may depend on one person's row.
    kind: Literal["csv", "parquet", "arrow", "jsonl", "npy", "npz", "svm", "xlsx"] | None = _of_a_file(
        "The format: csv, parquet, arrow, jsonl, npy, npz, svm or xlsx. Needed for a pipe, which can be csv or arrow.",
        default=None,
        called="format",
        metavar="WHICH",
        unset="by the ending of the name",
    )
    header: bool = _of_a_file(
        "The csv or sheet has no line of column names.", default=True, switch=("--no-header", False)
    )
    # By number and never by what the lines look like. Only the line that is then the first must be public.
    skip_rows: int = _of_a_file(
        "Leave out so many lines of a csv, or rows of a sheet, above the column names.",
        default=0,
        check=whole(0),
        metavar="N",
    )
    comment: str | None = _of_a_file(
        "Leave out the lines of a csv that begin with this character, such as #.",
        default=None,
        check=one_character,
        metavar="CHARACTER",
        unset="none",
    )
    # Guessed from the header line only: it has names, which are public.
    separator: str | None = _of_a_file(
        "The separator of columns in a csv: one character, or tab.",
        default=None,
        check=one_character,
        metavar="CHARACTER",
        unset="read from the header line: comma, semicolon, tab or |",
    )
    # Never guessed: 1,5 may be one number or two, and only rows could tell.
    decimal: str = _of_a_file(
        "The decimal mark of a csv, a point or a comma.", default=".", check=decimal_mark, metavar="CHARACTER"
    )
    # Never guessed either: 1.243 may be a thousand or one and a bit.
    thousands: str | None = _of_a_file(
        "The mark between thousands in a csv: a point, a comma, an apostrophe or the word space. Without this option such "
        "numbers are refused.",
        default=None,
        check=thousands_mark,
        metavar="CHARACTER",
        unset="none",
    )
    na_values: Any = _of_a_file(
        "Numbers or words that stand for a missing value in this file, such as -9999.",
        default=None,
        said="list or None",
        check=missing_words,
        parse=missing_words_from,
        many=True,
        metavar="VALUES",
        written="-9999,unknown",
    )
    quote: str | None = _of_a_file(
        "The quote character of a csv, or none.",
        default='"',
        check=one_character,
        parse=str,
        none="none",
        metavar="CHARACTER",
    )
    encoding: str = _of_a_file(
        "The encoding of a csv, such as latin-1 or cp1252.", default="utf-8", check=known_encoding, metavar="NAME"
    )
    sheet: str | None = _of_a_file("The sheet of an xlsx file.", default=None, metavar="NAME", unset="the only one")
    features: int | None = _of_a_file(
        "The number of columns of an svmlight file, which does not state it. Without this option it is the largest index in the "
        "file, a number from the data.",
        default=None,
        check=whole(1),
        short="-d",
        metavar="D",
    )
    one_based: bool = _of_a_file(
        "The svmlight file counts its columns from one.", default=False, switch=("--one-based", True)
    )


@parameters()
class TableParams(FileParams, ColumnsParams):
    """How a command reads a table: its columns, and its file."""
