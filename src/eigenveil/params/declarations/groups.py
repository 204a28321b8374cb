"""Groups of parameters that several estimators share. An estimator inherits the groups it needs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from eigenveil.params.declare import Limit, OptOut, param, parameters, redeclare
from eigenveil.params.values import (
    Integer,
    InvalidValue,
    Numbers,
    Vector,
    bound_from,
    bound_value,
    bounds_in_file,
    center_from,
    center_in_file,
    center_value,
    finite_numbers,
    fraction,
    length,
    line,
    name_of_column,
    number_or_share,
    numbers_from,
    pair_from,
    real,
    scale_from,
    scale_in_file,
    scale_value,
    share_from,
    share_of_at_most,
    truth,
    units_value,
)

# Surfaces of parameters that no study has, such as seeds: a study runs on a real network.
OFFLINE: Final = frozenset({"python", "cli"})
HERE: Final = frozenset({"python"})
BOUNDS: Final = "Where rows lie (found privately, or public knowledge)"
NO_PRIVACY: Final = OptOut(
    option="--no-privacy", key="no_privacy", help="Exact PCA. No person is protected, and the model is marked as such."
)
EPSILON: Final = real("positive", lambda number: number > 0, finite="finite; {epsilon=None} asks for an exact answer")
# The words of Ponomareva and others (2023), as reports have them. The percentages are Phi(mu / 2) at a delta of 1e-6.
EPSILON_SCALE: Final = (
    "At most 1 is strong: someone who knows all other rows guesses a person's presence correctly at most 55% of the time, where "
    "chance is 50%. Up to 10 is reasonable (82%), and more is weak."
)
EPSILON_HELP: Final = f"How much the result may depend on one person: smaller is more private. {EPSILON_SCALE}"
DELTA_HELP: Final = "The chance that the guarantee of epsilon fails. Choose it well below one over the number of people."
# Limits for study files, which come from others: no number may overflow.
LARGEST_COUNT: Final = 1_000_000
EPSILON_IN_FILE: Final = real("a number above 0 and at most 1e6", lambda number: 0 < number <= 1e6)
DELTA_IN_FILE: Final = real("a number between 0 and 1, at least 1e-300", lambda number: 1e-300 <= number < 1)
SHARE_IN_FILE: Final = share_of_at_most(LARGEST_COUNT)
NAME: Final = line(200)  # The longest name that a message may carry.
SURVIVORS_HELP: Final = "How many sites must be in each sum, such as 8, or which share of them, such as 0.8."
# What several parameters are: how they are checked, read and shown.
COMPONENTS: Final = {"check": Integer(min=1), "cli_name": "components", "short": "-k", "metavar": "K"}
SHARE: Final = {"check": number_or_share, "strict": SHARE_IN_FILE, "parse": share_from, "metavar": "NUMBER"}
NUMBERS: Final = {"parse": numbers_from, "metavar": "NUMBERS", "syntax": "2 or 1,2.5,3"}
RANGE: Final = {"type_text": "(low, high) or None", "parse": pair_from, "metavar": "LOW,HIGH"}
# The settings of a model have the width, which includes these vectors.
OVERSAMPLE: Final = {"check": Integer(min=0), "none_means": "planned", "recorded": False}
SECONDS: Final = {
    "check": real("a number of seconds above 0 and at most 1e7", lambda number: 0 < number <= 1e7),
    "metavar": "SECONDS",
}
# Limits of a site's policy. Each default is what a careful site would choose, because many will never change it.
EPSILON_LIMIT: Final = Limit(
    section="budget",
    key="study_epsilon",
    kind="most",
    help="The largest epsilon of one study.",
    default=1.0,
    check=real("a positive number, or inf", lambda number: number > 0, infinite=True),
)

DELTA_LIMIT: Final = Limit(
    section="budget", key="study_delta", kind="most", help="The largest delta of one study.", default=1e-5, check=DELTA_IN_FILE
)

TRUST_LIMIT: Final = Limit(
    section="limits",
    key="trust",
    kind="among",
    help="Who may add the noise. With hub and both, the hub adds some of it. none: no noise at all.",
    # By default a site does not rely on noise of the hub, and takes part in no study without noise.
    default=("masked", "site", "pairwise", "independent"),
    also=("none",),
)

METHOD_LIMIT: Final = Limit(
    section="limits",
    key="method",
    kind="among",
    help="The methods that may run.",
    default=("krylov", "power", "fedpower", "covariance", "merge", "uda", "wda"),
    # A study says auto, and a site decides on the method that becomes of it. Segments run in one process only.
    but=("auto", "segments"),
)

NEIGHBOURS_LIMIT: Final = Limit(
    section="limits",
    key="neighbours",
    kind="among",
    help="The neighbouring relations that are accepted. zero-out and replace-one make the number of people at this site public.",
    # How many patients a hospital has may itself be confidential, so a site must allow that explicitly.
    default=("add-remove",),
)

COLLUDERS_LIMIT: Final = Limit(
    section="limits",
    key="colluders",
    kind="least",
    help="How many other parties, at least, may tell all they know without breaking the guarantee.",
    default=1,
    check=Integer(min=1, max=LARGEST_COUNT),
)

PERSON_SITES_LIMIT: Final = Limit(
    section="limits",
    key="person_sites",
    kind="least",
    help="At how many sites, at most, one of your people may have rows. A study must protect people at that many.",
    default=1,
    check=Integer(min=1, max=LARGEST_COUNT),
)


@parameters(panel="", section="task")
class Components:
    """How many components a fit over sites or peers finds."""

    n_components: int = param(
        "How many components.",
        # Positional, as in scikit-learn's PCA.
        kw_only=False,
        like=COMPONENTS,
        strict=Integer(min=1, max=LARGEST_COUNT),
    )


@parameters(panel="Privacy", section="privacy")
class Colluding:
    """How many parties may pool what they know. Declared for a hub; `redeclare` changes it for peers."""

    colluders: int = param(
        "How many sites may tell the hub all they know.",
        details="The noise is calibrated for the others.",
        # Never 0: the hub may run one of the sites, and a site knows its own share of the noise.
        default=1,
        check=Integer(min=1),
        strict=Integer(min=1, max=LARGEST_COUNT),
        omit_if_default=True,
        applies_when="trust=masked",
        limit=COLLUDERS_LIMIT,
    )


@parameters(panel="Privacy", section="privacy")
class BudgetParams:
    """What one fit may cost."""

    epsilon: float | None = param(
        EPSILON_HELP,
        details="{epsilon=None} must be written out and gives exact PCA with no privacy.",
        check=EPSILON,
        strict=EPSILON_IN_FILE,
        opt_out=NO_PRIVACY,
        limit=EPSILON_LIMIT,
        recorded=False,  # The guarantee records it. It may differ from this, or be none.
    )
    # None in the signature only: with an epsilon, `beside` makes it required on every surface. A default would be wrong for
    # somebody, since a good one depends on the number of people.
    delta: float | None = param(
        DELTA_HELP,
        default=None,
        check=fraction,
        strict=DELTA_IN_FILE,
        required_with="epsilon",
        missing="Try {delta} 1e-6. It must be well below one over the number of people.",
        limit=DELTA_LIMIT,
        recorded=False,
    )


@parameters(panel="Privacy")
class Seed:
    """Where noise comes from."""

    random_state: Any = param(
        "A seed. Reproducible, NOT PRIVATE: anyone who knows the seed can subtract the noise. For tests only.",
        details="None draws noise from the operating system.",
        default=None,
        type_text="int or None",
        parse=int,
        metavar="INTEGER",
        cli_name="seed",
        recorded=False,  # Anyone who has the model could subtract the noise.
        surfaces=OFFLINE,
    )


@parameters(panel="Privacy", section="task")
class Relation:
    """The neighbouring relation."""

    neighbours: Literal["add-remove", "zero-out", "replace-one"] = param(
        "Neighbouring relation: which two tables the guarantee makes indistinguishable, add-remove, zero-out or replace-one. "
        "The last two declare the number of people public.",
        # It hides how many people there are, too. Whoever gives that up must say so.
        default="add-remove",
        limit=NEIGHBOURS_LIMIT,
    )


@parameters()
class Protection(Relation, Seed):
    """The neighbouring relation, and where noise comes from."""


@parameters(panel="Privacy", section="task")
class PersonParams:
    """Who a person is, if all rows are in one table."""

    person: Any = param(
        "The column that says whose row it is. A person with several rows then counts as one row, and all of them are "
        "protected together. Without it each row counts as a separate person.",
        details="The column is then left out; or give one identifier per row. Every row must name a person: what is missing, "
        'blank or a placeholder such as "NA" is refused (`eigenveil.data.people`).',
        default=None,
        type_text="str, array of n or None",
        parse=str,
        metavar="COLUMN",
        # A study has the `person` of `Places`, a name alone: identifiers of people must never be in its file.
        surfaces=OFFLINE,
    )


@parameters(panel=BOUNDS, section="task")
class Units:
    """The units of the columns."""

    scale: Numbers | None = param(
        "Public units: columns are divided by this before norms are taken and bounded. One number, or one per column.",
        default=None,
        check=units_value,
        strict=finite_numbers,
        like=NUMBERS,
        recorded=False,  # A model stores it for every column, beside its mean.
    )


@parameters(panel=BOUNDS, section="task")
class Clipping:
    """Where rows lie. The caller must know it without looking at them."""

    row_bound: float | Literal["private"] | None = param(
        "Norm that rows are clipped to, around the mean. private estimates it with about 10% of the budget. A number must not "
        "come from the data.",
        details="With {column_bounds} nothing is searched for.",
        # A number that somebody read off the table would leak it, so the default is to search.
        default="private",
        check=bound_value,
        parse=bound_from,
        none="none",
        metavar="NUMBER",
        syntax="private or 12.5",
    )
    column_bounds: Any = param(
        "Entries are clipped to this range. One of the two bounds is enough, and with both, both hold.",
        details="Low and high are each a number, or one per column.",
        default=None,
        like=RANGE,
        strict=bounds_in_file,
        recorded=True,
    )
    center: Literal["private"] | Vector | None = param(
        "private: find the mean, for a tenth to a quarter of the budget. {center=None}: leave rows where they are. "
        "Or public numbers, one per column.",
        default="private",
        check=center_value,
        strict=center_in_file,
        parse=center_from,
        none="none",
    )
    origin: Numbers | None = param(
        "Where to look for the mean: one number, or one per column.",
        default=None,
        strict=finite_numbers,
        like=NUMBERS,
        none_means="zero, or the middle of the column bounds",
    )
    mean_bound: float | None = param(
        "How far from the origin rows may lie while the mean is found.",
        default=None,
        check=length,
        none_means="found in up to three steps",
    )


@parameters(panel=BOUNDS, section="task")
class Bounds(Clipping):
    """Where rows lie, and in which units."""

    scale: Literal["private"] | Numbers | None = redeclare(
        Units,
        "scale",
        help="Units: columns are divided by this before norms are taken and bounded. private: find the spread of each column, "
        "for a quarter of the budget. Or public numbers, one or one per column.",
        details="Use private where columns have different units, such as years and euros, and None where they are alike. With "
        "private, rows are clipped to the root of the number of columns in these units, and no row bound is searched for. With "
        "epsilon=None the spread is the exact standard deviation, and nothing is clipped.",
        check=scale_value,
        strict=scale_in_file,
        parse=scale_from,
        syntax="private, 2 or 1,2.5,3",
    )


@parameters(panel=BOUNDS, section="task")
class ClipLevel:
    """Which of the norms that a fit finds privately it clips at."""

    quantile: float | None = param(
        "If a row bound is found privately: the share of people whose rows are not to be clipped, from 0.01 to below 1.",
        details="Where noise hides the few people beyond it, a lower share is used.",
        # A fixed quantile clips too much at a large budget and too little at a small one.
        default=None,
        check=real("a number from 0.01 to below 1", lambda number: 0.01 <= number < 1),
        metavar="SHARE",
        none_means="chosen for the best answer",
    )


@parameters(panel=BOUNDS, section="task")
class PooledBounds(ClipLevel, Bounds):
    """Where rows lie, if they are at several sites."""

    center: Literal["private"] | Vector | None = redeclare(
        Clipping,
        "center",
        help="private: find the mean over all sites, for a tenth to a quarter of the budget. {center=None}: leave rows where "
        "they are. Or public numbers, one per column.",
        # Around its own mean a site would leave out how it differs from the others.
        details="It is never one site's own mean.",
    )


@parameters(panel="Privacy", section="task")
class Places:
    """Who a person is, if rows are at several sites."""

    person: str | None = param(
        "The column, at every site, that says whose row it is. A person's rows at a site are averaged and count as one row, and "
        "all of them are protected together. Without it each row counts as a separate person.",
        default=None,
        check=name_of_column,
        strict=NAME,
        metavar="COLUMN",
    )


@parameters(panel="Method", section="task")
class Stopping:
    """When a method stops."""

    rounds: int | None = param(
        "For krylov, power, fedpower, and for each component of segments: the largest number of rounds. A budget is reserved for "
        "all of them.",
        default=None,
        check=Integer(min=1, max=10_000),
        none_means="planned",
    )
    tolerance: float | None = param(
        "For krylov, power, fedpower and segments: stop when the answer moves by no more than this sine.",
        default=None,
        check=real("in [0, 1)", lambda number: 0 <= number < 1),
        # Noise moves the answer in every round, so with privacy there is no threshold that suits all tables.
        none_means="1e-8 without privacy, and 0 (never) with it",
    )
    oversample: int | None = param(
        "How many directions to carry beyond the components.",
        default=None,
        like=OVERSAMPLE,
        strict=Integer(min=0, max=LARGEST_COUNT),
    )


@parameters(panel="Waiting", section="network")
class Waiting:
    """For whom and how long all parties wait. A model records who came, and not how long one would have waited."""

    quorum: int | float | None = param(
        "How many must answer, such as 4, or which share of them, such as 0.8. Others are left out from there on.",
        default=None,
        like=SHARE,
        none_means="all",
        recorded=False,
    )
    deadline: float = param(
        "Seconds to wait for an answer before asking again. In a simulation, simulated time.",
        # With the four retries, time enough for a site to be started again.
        default=30.0,
        check=real("positive and finite", lambda number: 0 < number < float("inf")),
        strict=real("a number of seconds above 0 and at most 1e6", lambda number: 0 < number <= 1e6),
        metavar="SECONDS",
        recorded=False,
    )
    retries: int = param(
        "How often to ask again before proceeding without an answer.", default=4, check=Integer(min=0, max=1000), recorded=False
    )


@parameters(panel="Method", section="task")
class Whitening:
    """In which units scores are. Nothing that is released depends on it."""

    whiten: bool = param(
        "Divide scores by the root of the explained variance, so that every component has variance 1.",
        details="As in scikit-learn's PCA. It costs nothing.",
        default=False,
        check=truth,
        omit_if_default=True,
        surfaces=OFFLINE,
    )


COLUMNS: Final = "Columns"
MISSING_VALUES: Final = "Missing values"
# More levels than a table has columns are a mistake, such as a list of people.
_MOST_LEVELS: Final = 10_000


def names_or_patterns(value: Any) -> tuple[str, ...]:
    """Names of columns, or patterns such as lab_*, as a tuple. One text may stand for a list of one."""
    every = [value] if isinstance(value, str) else value
    if not isinstance(every, Sequence) or not all(isinstance(name, str) and name for name in every):
        raise InvalidValue("names of columns, or patterns such as lab_*")
    return tuple(every)


def public_levels(value: Any) -> dict[str, tuple[str, ...]]:
    """The public levels of each column that is encoded, as texts."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise InvalidValue('levels by column, such as {{"sex": ["f", "m"]}}')
    return {name: _levels(name, levels) for name, levels in value.items()}


def _levels(name: str, levels: Any) -> tuple[str, ...]:
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not 0 < len(levels) <= _MOST_LEVELS:
        raise InvalidValue(f"a list of 1 to {_MOST_LEVELS} public levels", at=f"column {name}", actual=levels)
    if not all(isinstance(level, str | int | float) for level in levels):
        raise InvalidValue("texts, numbers or truth values", at=f"column {name}", actual=levels)
    # Truth values are written as files write them.
    texts = tuple(str(level).lower() if isinstance(level, bool) else str(level) for level in levels)
    if len(set(texts)) < len(texts):
        raise InvalidValue("different from each other", at=f"levels of column {name}", actual=levels)
    return texts


def levels_from(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Levels by column, from texts. Quotes keep a comma inside a level.

    >>> levels_from(["sex=f,m", 'ward="a,b",c'])
    {'sex': ('f', 'm'), 'ward': ('a,b', 'c')}
    """
    by_column: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, levels = text.partition("=")
        if not (name and equals and levels) or name in by_column:
            raise InvalidValue("COLUMN=LEVEL,LEVEL, once for each column", actual=text)
        by_column[name] = _levels(name, [level for line in csv.reader([levels]) for level in line])
    return by_column


def groups_of_columns(value: Any) -> str:
    """Groups of columns as one text, with semicolons between groups and commas between columns.

    >>> groups_of_columns([["a", "b"], ["lab_*"]]), groups_of_columns("a,b; lab_*")
    ('a,b;lab_*', 'a,b;lab_*')
    """
    if not isinstance(value, str):
        expected = InvalidValue("groups of columns, such as [['a', 'b'], ['lab_*']]")
        if not isinstance(value, Sequence) or any(
            isinstance(columns, str) or not isinstance(columns, Sequence) for columns in value
        ):
            raise expected
        parts = [[str(name) for name in group] for group in value]
        if any("," in name or ";" in name for group in parts for name in group):
            raise InvalidValue("names without commas and semicolons. Write a pattern for such a name, with ? in their place")
        value = ";".join(",".join(group) for group in parts)
    # One text for both forms, so that a study file, a model and a command line have the same.
    groups = [[name.strip() for name in group.split(",")] for group in value.split(";")]
    if not value.isprintable() or not all(name for group in groups for name in group):
        raise InvalidValue("names or patterns with commas between, and a semicolon between groups")
    return ";".join(",".join(group) for group in groups)


def public_numbers(value: Any) -> Any:
    """One finite number, or a list of one per column. Arrays become lists."""
    return finite_numbers(value.tolist() if hasattr(value, "tolist") else value)


# Not for studies, whose files list the columns that all sites have.
_list_of_columns = partial(
    param,
    default=None,
    type_text="list of str or None",
    check=names_or_patterns,
    parse=tuple,
    is_repeatable=True,
    metavar="NAMES",
    recorded=False,  # A model has the names of its columns.
    surfaces=OFFLINE,
)


@parameters(panel=COLUMNS)
class ColumnsParams:
    """Which columns of a table with names are analysed, and what text becomes. Names and levels are public."""

    columns: Any = _list_of_columns(
        "The columns by name, or by patterns such as lab_*; others are not analysed.",
        details="A list, for a table with column names. Components list the columns in this order.",
        syntax="a,b,lab_*",
        none_means="all",
    )
    drop: Any = _list_of_columns(
        "Leave these columns out: names, or patterns such as *_note.",
        details="A list, for a table with column names.",
        syntax="a,b,*_note",
    )
    one_hot: Any = param(
        "Make a column of 0 and 1 for each of these public levels of a column of text. A value that is not listed, or is "
        "missing, is 0 in all of them.",
        details='For example {{"sex": ["f", "m"]}}. You must know the levels without looking at these rows. A row gets at most a '
        "single 1, so that its norm grows by at most 1.",
        default=None,
        type_text="dict of lists or None",
        check=public_levels,
        parse=levels_from,
        is_repeatable=True,
        metavar="COLUMN=LEVELS",
        syntax="sex=f,m",
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
        details="Whichever you choose is public, and holds whether or not there are any. With counts and groups a missing entry "
        "is put at the center, where it adds nothing, and sums are divided by released counts of what is there. With drop the "
        "number of rows that are left is private. Infinite values are always refused.",
        # Nothing is filled in unasked: the components would describe the filling, and nobody would notice.
        default="refuse",
        omit_if_default=True,
        metavar="RULE",
    )
    missing_groups: Any = param(
        "Columns that are missing together, such as the items of a questionnaire: names or patterns with commas, and a semicolon "
        "between groups.",
        details="Or a list of lists. Other columns are groups of their own. If a row lacks one column of a group, all of the "
        "group counts as missing in that row.",
        default=None,
        type_text="str, list of lists or None",
        check=groups_of_columns,
        parse=str,
        metavar="GROUPS",
        syntax='"phq_*;gad_1,gad_2"',
        applies_when="missing=groups",
        recorded=True,
    )
    missing_fill: Any = param(
        "The public value that takes the place of missing ones: one number, or one per column.",
        details="You must know it without looking at these rows: a mean of them would leak them.",
        # No default, not even 0: what stands for a missing value is a public statement about the table.
        default=None,
        type_text="float, list or None",
        check=public_numbers,
        strict=finite_numbers,
        parse=numbers_from,
        metavar="NUMBERS",
        syntax="0 or 1,2.5,3",
        applies_when="missing=fill",
        recorded=True,
    )
