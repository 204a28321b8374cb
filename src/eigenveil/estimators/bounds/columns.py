"""`find_column_bounds`: finds a range for each column privately, for a fit that clips entries.

One person is in every column, so d columns cost sqrt(d) times the noise of one. A bound on row norms alone
(`find_bounds`) needs far fewer people.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np

from eigenveil.core.counts import bounded_column_tails, tails_sensitivity
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.rows import ignore_float_errors
from eigenveil.core.unit import Neighbours
from eigenveil.errors import join_names, require, require_param
from eigenveil.estimators.bounds.release import AskedOfRows, SmallRelease, Text
from eigenveil.estimators.bounds.rows import SURE, place_of
from eigenveil.linalg import Array
from eigenveil.params.declarations.private import ColumnBoundsParams
from eigenveil.params.declare import keywords_in, parameters, takes
from eigenveil.params.values import Numbers
from eigenveil.privacy.facts import COLUMN_TAILS, TableRows
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.tasks.levels import TailCounts, read_tails, signed_cells

__all__ = ["ColumnBoundsResult", "FindColumnBounds", "find_column_bounds"]

# The range of sizes to search.
_WITHIN: Final = (1e-6, 1e9)
# A size is known to within 9%, rounded away from the origin.
_PER_DOUBLING: Final = 8
# For more columns the counts would take more memory than the table.
_MOST_COLUMNS: Final = 20_000


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ColumnBoundsResult(Text):
    """What `find_column_bounds` found: `low` and `high`, (d,), in the units of the columns, None where noise hides them.

    In each column and on each side, about `clipped` of people have a clipped entry, give or take `error`. In the `flat`
    columns, (d,), nearly all entries are at the origin. `note` says why nothing was found, or has remarks on the answer.
    """

    low: Array | None
    high: Array | None
    flat: Any
    columns: tuple[str, ...] | None
    quantile: float
    clipped: float
    error: float
    people: float
    people_error: float
    note: str
    guarantee: Guarantee
    ledger: Ledger | None

    @property
    def settings(self) -> dict[str, Any]:
        """Parameters for a fit: `PrivatePCA(5, epsilon=0.9, delta=1e-6, **found.settings)`. A `ValueError` if nothing
        was found."""
        require(self.low is not None, f"no bounds were found: {self.note}")
        return {"column_bounds": (self.low, self.high)}

    @property
    def origin(self) -> Array:
        """The middle of each column's range, (d,)."""
        low, high = self._range()
        return np.asarray((low + high) / 2)

    @property
    def scale(self) -> Array:
        """Half of each column's range, (d,). With these units as `scale`, columns of every kind weigh the same in a fit.

        A flat column has no range of its own. It gets the largest unit of the others, so that a rare entry does not
        outweigh them.
        """
        low, high = self._range()
        half = (high - low) / 2
        return np.where(self.flat, half[~self.flat].max(initial=0.0) or 1.0, half)

    def _range(self) -> tuple[Array, Array]:
        require(self.low is not None, f"no bounds were found: {self.note}")
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def _lines(self) -> Iterator[str]:
        if self.low is None or self.high is None:
            yield f"No bounds were found: {self.note}."
        else:
            yield (
                f"column_bounds: about {self.clipped:.1%} of people are clipped on each side of each column "
                f"(give or take {self.error:.1%})."
            )
            if self.note:
                yield f"{self.note[0].upper()}{self.note[1:]}."
            names = self.columns or tuple(f"column {i}" for i in range(1, len(self.low) + 1))
            for name, low, high in zip(names, self.low, self.high, strict=True):
                yield f"  {name}: {low:.4g} to {high:.4g}"


@parameters()
class FindColumnBounds(AskedOfRows, ColumnBoundsParams):
    """The parameters of `find_column_bounds`."""


@takes(FindColumnBounds)
@ignore_float_errors
def find_column_bounds(
    X: Any,
    *,
    epsilon: float | None,
    delta: float | None = None,
    random_state: Any = None,
    neighbours: Literal["add-remove", "zero-out", "replace-one"] = "add-remove",
    person: Any = None,
    columns: Any = None,
    drop: Any = None,
    one_hot: Any = None,
    missing: Literal["refuse", "counts", "groups", "drop", "fill"] = "refuse",
    missing_groups: Any = None,
    missing_fill: Any = None,
    scale: Numbers | None = None,
    quantile: float = 0.95,
    origin: Numbers | None = None,
    search_range: tuple[float, float] | None = None,
    ledger: Ledger | None = None,
) -> ColumnBoundsResult:
    """Find a range for each column of `X`, (n, d), privately: it contains `quantile` of the entries, with equal
    tails.

    Entries are measured from the public `origin` of their column (zero unless given), in units of the public `scale`.
    Distances are resolved in steps of 9% `search_range` a range of sizes, and a range extends to the outer ends of its
    steps. For a column far from zero, such as years, an origin in its middle gives a finer range. One release
    serves all columns, with sqrt(d) times the noise of one. Everything else is as in `find_bounds`.

    Parameters
    ----------
    epsilon : float or None
        How much the result may depend on one person: smaller is more private. At most 1 is strong: someone who knows
        all other rows guesses a person's presence correctly at most 55% of the time, where chance is 50%. Up to 10 is
        reasonable (82%), and more is weak. A tenth of what the fit gets is usually enough. A fit on the same people
        adds to the cost. epsilon=None must be written out, for exact numbers with no privacy.
    delta : float or None, default None
        The chance that the guarantee of epsilon fails. Choose it well below one over the number of people.
    random_state : int or None, default None
        A seed. Reproducible, NOT PRIVATE: anyone who knows the seed can subtract the noise. For tests only. None
        draws noise from the operating system.
    neighbours : "add-remove", "zero-out" or "replace-one", default 'add-remove'
        Neighbouring relation: which two tables the guarantee makes indistinguishable, add-remove, zero-out or
        replace-one. The last two declare the number of people public.
    person : str, array of n or None, default None
        The column that says whose row it is. A person with several rows then counts as one row, and all of them are
        protected together. Without it each row counts as a separate person. The column is then left out; or give one
        identifier per row. Every row must name a person: what is missing, blank or a placeholder such as "NA" is
        refused (`eigenveil.data.people`).
    columns : list of str or None, default None: all
        The columns by name, or by patterns such as lab_*; others are not analysed. A list, for a table with column
        names. Components list the columns in this order.
    drop : list of str or None, default None
        Leave these columns out: names, or patterns such as *_note. A list, for a table with column names.
    one_hot : dict of lists or None, default None
        Make a column of 0 and 1 for each of these public levels of a column of text. A value that is not listed, or
        is missing, is 0 in all of them. For example {"sex": ["f", "m"]}. You must know the levels without looking at
        these rows. A row gets at most a single 1, so that its norm grows by at most 1.
    missing : "refuse", "counts", "groups", "drop" or "fill", default 'refuse'
        Missing values. refuse: they are an error. counts: count privately how many entries each column has, for 4% of
        the budget, and divide by that. groups: the same for groups of columns. drop: leave incomplete rows out. fill:
        put public values there. Whichever you choose is public, and holds whether or not there are any. With counts
        and groups a missing entry is put at the center, where it adds nothing, and sums are divided by released
        counts of what is there. With drop the number of rows that are left is private. Infinite values are always
        refused.
    missing_groups : str, list of lists or None, default None
        For missing='groups': columns that are missing together, such as the items of a questionnaire: names or
        patterns with commas, and a semicolon between groups. Or a list of lists. Other columns are groups of their
        own. If a row lacks one column of a group, all of the group counts as missing in that row.
    missing_fill : float, list or None, default None
        For missing='fill': the public value that takes the place of missing ones: one number, or one per column. You
        must know it without looking at these rows: a mean of them would leak them.
    scale : float, list, array or None, default None
        Public units: columns are divided by this before norms are taken and bounded. One number, or one per column.
    quantile : float, default 0.95
        The share of people whose rows are not to be clipped, from 0.01 to below 1. A larger share means more noise.
        If noise hides the few people beyond it, a lower quantile is used, and the result names it.
    origin : float, list, array or None, default None: zero
        Where to look for the mean of rows, and what entries of columns are measured from: one number, or one per
        column. For a column far from zero, such as years, a number in its middle makes the range finer.
    search_range : (low, high) or None, default None: 1e-9 to 1e12, for columns 1e-6 to 1e9
        The range of norms to search, in units of the scale. A wider range costs a little more noise.
    ledger : Ledger or None, default None
        Shared by several fits on the same people, so that their costs add up against one budget.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((20_000, 2)) * [1, 30] + [0, 100]
    >>> found = find_column_bounds(rows, epsilon=0.5, delta=1e-6, random_state=0)
    >>> found.low.round(1).tolist(), found.high.round(1).tolist()
    ([-2.0, 41.5], [2.2, 166.0])
    """
    params = keywords_in(locals(), FindColumnBounds)
    cells = signed_cells(*(params.search_range or _WITHIN), per_doubling=_PER_DOUBLING)
    release = SmallRelease.of(X, params)
    dim, near = release.dim, release.neighbours
    require_param(
        dim <= _MOST_COLUMNS,
        f"{{X}} has {dim} columns, and ranges can be found for at most {_MOST_COLUMNS}. Use a bound on rows instead",
    )
    public = place_of(release, params)
    people = release.public_people()
    # The largest of d errors is about sqrt(2 ln d) standard deviations.
    sure = math.sqrt(SURE**2 + 2 * math.log(dim))
    noise = release.scale(tails_sensitivity(cells.count, near, columns=dim))
    min_clipped = sure * noise * tails_sensitivity(cells.count, Neighbours.ADD_REMOVE)
    require_param(
        # Each of two sides clips at least `min_clipped` people. With fewer than four times as many, a range would clip more
        # than half.
        people is None or people >= 4 * min_clipped,
        f"{{epsilon}} is too small for {people or 0:.0f} people: ranges for {dim} columns need about {4 * min_clipped:.0f}. "
        "Raise {epsilon}, or use a bound on rows. Nothing was released",
    )
    # Nothing is clipped: wherever an entry lies, it is in one cell of its column, and that bounds what a person can change.
    domain = Domain(dim=dim, radius=math.inf, center=public.origin, scale=public.scale, gaps=release.gaps)
    with release.reserved("these bounds") as paid:
        private = bounded_column_tails(release.rows, domain=domain, cells=cells, neighbours=near)
        released = paid.mechanism().release(private, label="columns")
    # Where entries may be missing, each column is about the people who have it.
    apart = release.gaps is not None and release.gaps.divides
    tails = read_tails(released, noise=noise, cells=cells, people=people, apart=apart)
    return _found(paid, tails, params.quantile, min_clipped, domain)


def _found(
    release: SmallRelease, tails: tuple[TailCounts, ...], quantile: float, min_clipped: float, domain: Domain
) -> ColumnBoundsResult:
    """The result that follows from the counts of all columns."""
    first = tails[0]
    # All columns count the same people, except where entries are missing. Then the most that any of them has count.
    people = max(column.people for column in tails)
    wanted = (1 - quantile) / 2 * people
    max_beyond = [max((1 - quantile) / 2 * column.people, min_clipped) for column in tails]
    low, high, flat, why = None, None, np.zeros(len(tails), dtype=bool), ""
    hidden = [index for index, column in enumerate(tails) if column.people <= 0 or 4 * min_clipped > column.people]
    if people <= 0 or 4 * min_clipped > people:
        about = f"about {people:.0f} people" if people > 2 * first.people_error else "hardly anybody"
        why = (
            f"the table is too small for this budget. It seems to have {about}, and ranges for {len(tails)} columns "
            f"need about {4 * min_clipped:.0f}. Raise epsilon, or use a bound on rows"
        )
    elif hidden:
        names = release.columns or tuple(f"column {index}" for index in range(1, len(tails) + 1))
        why = (
            f"too few people have an entry in {join_names(names[index] for index in hidden)}: ranges for {len(tails)} columns "
            f"need about {4 * min_clipped:.0f} in each. Raise epsilon, leave them out, or use a bound on rows"
        )
    else:
        low, high, flat = _ranges(tails, max_beyond, domain, sparse=release.rows.sparse)
        if min_clipped > wanted:
            why = (
                f"at this budget noise hides the few people outside the {quantile:g} quantile, so these ranges "
                f"contain about {1 - 2 * min_clipped / people:.2g} of each column"
            )
    return ColumnBoundsResult(
        low=low,
        high=high,
        flat=flat,
        columns=release.columns,
        quantile=quantile,
        clipped=max(wanted, min_clipped) / people if people > 0 else 1.0,
        error=float(first.error.max()) / people if people > 0 else 0.0,
        people=people,
        people_error=first.people_error,
        note=why,
        guarantee=release.guarantee(
            COLUMN_TAILS, TableRows(explicit=("the origin", "the scale", "the range of sizes")), people=people, ranges=True
        ),
        ledger=release.ledger,
    )


def _ranges(
    tails: tuple[TailCounts, ...], max_beyond: Sequence[float], domain: Domain, *, sparse: bool
) -> tuple[Array, Array, Any]:
    """The lowest and the highest edge of each column, in its own units, and which columns are flat.

    Beyond each edge are at most so many people, `max_beyond` of each column. Where no edge lies far enough out, the outermost
    one is used.
    """
    edges = tails[0].cells.edges
    below = [column.edge_below(few) for column, few in zip(tails, max_beyond, strict=True)]
    above = [column.edge_above(few) for column, few in zip(tails, max_beyond, strict=True)]
    low = edges[[0 if edge is None else edge for edge in below]]
    high = edges[[-1 if edge is None else edge for edge in above]]
    # Noise can swap the two where nearly everything is in one cell.
    low, high = np.minimum(low, high), np.maximum(low, high)
    # Within the innermost edges a column cannot be told from one that is always at the origin.
    smallest = edges[edges > 0][0]
    flat = (low >= -smallest) & (high <= smallest)
    units = 1.0 if domain.scale is None else domain.scale
    start = 0.0 if domain.center is None else domain.center
    low, high = low * units + start, high * units + start
    # A fit refuses to clip the zeros of sparse rows, so every range must contain zero.
    return (np.minimum(low, 0.0), np.maximum(high, 0.0), flat) if sparse else (low, high, flat)
