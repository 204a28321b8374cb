"""How a table is read: which of its columns are analysed, and what becomes of missing values."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from eigenveil.params.declarations.groups import OFFLINE
from eigenveil.params.declare import param, parameters
from eigenveil.params.texts import numbers_from
from eigenveil.params.values import Expected, finite_numbers

__all__ = ["ColumnsParams", "MissingParams"]

COLUMNS: Final = "Columns"
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
