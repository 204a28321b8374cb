"""`find_bounds`: finds a bound on row norms privately, with the trade-off between bounds.

A fit needs a bound that was not read off its rows. Where none is known, a small part of the budget buys it. One
release counts the rows whose norm exceeds each of a thousand thresholds, and any quantile can be read off it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.counts import Bins, bounded_tails, tails_sensitivity
from eigenveil.core.domain import FARTHEST, Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.rows import ignore_float_errors
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require, require_param
from eigenveil.estimators.bounds.release import AskedOfRows, SmallRelease, Text
from eigenveil.estimators.checks import center_of
from eigenveil.linalg import Array
from eigenveil.params.declarations.private import BoundsParams, ColumnBoundsParams
from eigenveil.params.declare import keywords_in, parameters, takes
from eigenveil.params.values import Numbers, Vector
from eigenveil.plan.choose import predict
from eigenveil.plan.clipping import Norms
from eigenveil.privacy.facts import ROW_TAILS, TableRows
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.tasks.fit.bounds import Outliers, RowBounds, outliers_in
from eigenveil.tasks.fit.gaps import Rates, observed_noise
from eigenveil.tasks.levels import TailCounts, norm_cells, read_tails
from eigenveil.tasks.totals import Totals

__all__ = ["BoundsResult", "Candidate", "FindBounds", "find_bounds", "norms_of", "place_of"]

# A share of people that is less than so many of its deviations may be noise alone.
_FOUND_SEEN: Final = 2.5


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible bound. All of its numbers come from what was released."""

    bound: float
    clipped: float  # The share of people whose rows it would clip.
    error: float  # The standard deviation of that share.
    noise: float  # Of a fit with it, over the noise with the smallest candidate. It grows with the square of the bound.
    bound_usage: float  # Mean squared norm of clipped rows over the squared bound: what there is to find, over the noise.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundsResult(Text):
    """What `find_bounds` found. Printing it shows the answer, the trade-off and the cost."""

    dim: int
    row_bound: float | None  # None where noise hides the answer.
    mean_bound: float | None  # The quantile of norms around the given origin.
    center: Array | None  # Where norms are taken around, (d,): the released mean, given numbers, or None for zero.
    center_error: float  # About how far noise moved a mean that was searched for. Clipping may have moved it further.
    searched: bool
    scale: Array | None
    quantile: float
    people: float  # Public, or released with the next standard deviation.
    people_error: float
    candidates: tuple[Candidate, ...]
    note: str  # Why there is no answer, or remarks on it.
    guarantee: Guarantee
    ledger: Ledger | None
    outliers: Outliers | None = None  # Which rows may lie far beyond all candidates; None without noise or an answer.

    @property
    def chosen(self) -> Candidate | None:
        """The candidate that is the answer."""
        # Equal to the last bit, because both are the same edge of the cells.
        return next((candidate for candidate in self.candidates if candidate.bound == self.row_bound), None)

    @property
    def settings(self) -> dict[str, Any]:
        """Parameters for a fit: `PrivatePCA(5, epsilon=0.9, delta=1e-6, **found.settings)`. A `ValueError` if nothing
        was found."""
        require(self.row_bound is not None, f"no bound was found: {self.note}")
        units = {} if self.scale is None else {"scale": self.scale}
        if not self.searched:
            return {"row_bound": self.row_bound, "center": self.center, **units}
        # Rows lie within the bound around the released mean, so a fit need not search for its mean any further.
        return {"row_bound": self.row_bound, "origin": self.center, "mean_bound": self.row_bound, **units}

    def captured_variance(self, rank: int, budget: Budget) -> tuple[float | None, ...]:
        """The share of the clipped rows' variance that a fit of `rank` components would capture with each candidate, by
        the planner's guess."""
        shares = []
        for candidate in self.candidates:
            # The planner's guess assumes a fill of one half. A larger fill gives the same signal as more people.
            people = max(1, round(self.people * candidate.bound_usage / 0.5))
            shares.append(predict(dim=self.dim, rank=rank, budget=budget, people=people).chosen.captured)
        return tuple(shares)

    def _lines(self) -> Iterator[str]:
        if self.row_bound is None:
            yield f"No bound was found: {self.note}."
        else:
            chosen = self.chosen
            assert chosen is not None
            yield (
                f"row_bound = {self.row_bound:.4g}: it clips the rows of about {chosen.clipped:.1%} of people "
                f"(give or take {chosen.error:.1%})."
            )
            if self.note:
                yield f"{self.note[0].upper()}{self.note[1:]}."
        if self.candidates:
            yield "   bound  people clipped      noise   fill"
        for case in self.candidates:
            mark = "  <-" if case.bound == self.row_bound else ""
            clipped = f"{case.clipped:>6.1%} +- {case.error:<6.1%}"
            yield f"{case.bound:>8.4g}  {clipped} {case.noise:>6.2f}x  {case.bound_usage:>5.2f}{mark}"


def norms_of(candidates: Sequence[Candidate], outliers: Outliers | None) -> Norms | None:
    """What candidates say of the norms of rows, as a forecast needs it; those that noise may have made are left out."""
    norms = {
        candidate.clipped: candidate.bound
        for candidate in candidates
        if 0 < candidate.clipped < 1 and candidate.clipped >= _FOUND_SEEN * candidate.error
    }
    return Norms.read(norms, outliers)


# The range of norms to search.
_WITHIN: Final = (1e-9, 1e12)
# A norm is known to within 4.4%, rounded up. Finer cells would cost more noise than they are worth.
PER_DOUBLING: Final = 16
# Counts below this many standard deviations may be noise alone. Where no row is, one release in 100 exceeds it.
SURE: Final = 2.5
# Shares of the budget: norms around the origin, the mean, norms around the mean. The rest pays for a second pass if
# the first mean was poor compared with the spread of the rows; otherwise it makes the last norms more precise.
_FIRST: Final = (0.3, 0.12, 0.25)
_AGAIN: Final = 0.12
# Of the share of the first mean: what the counts of entries get, where some may be missing. It is 4% of the budget, as in a fit.
_SEEN: Final = 1 / 3
# The error of the mean, as a share of the bound around it, beyond which a second pass is worth its price. A third
# makes a bound 5% too large, which is one step.
_DOUBT: Final = 1 / 3
# No second pass if the noise on its norms would hide a larger share of people than this.
_HIDDEN: Final = 0.2
_DOUBTFUL: Final = (
    "much of this bound is uncertainty about the mean: an origin nearer to it, or a larger epsilon, gives a smaller bound"
)

# Without heavy tails, the 0.95 quantile of row norms is at most a few times their median.
_HEAVY: Final = 10.0
_HEAVIER: Final = (
    "it is {:.0f} times the median norm, and the noise of a fit is as large as if all rows had this norm. Rows "
    "have heavy tails, or noise has misled this search. A lower quantile costs far less"
)

_FAR: Final = (
    "these sparse rows lie too far from zero compared with their spread, and rounding errors in centering would "
    "break the guarantee. Make them dense, or subtract a public point before storing them"
)

_LONG: Final = (
    "{}. If so, exact PCA of all rows follows them, and a fit, which clips them, describes the others. A larger epsilon shows "
    "whether they are there. If they matter, use a larger bound that you know. If a number such as -9999 stands for missing "
    "values, have it read as missing"
)

_SHOWN: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.999)


@parameters()
class FindBounds(AskedOfRows, BoundsParams):
    """The parameters of `find_bounds`."""


@takes(FindBounds)
@ignore_float_errors
def find_bounds(
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
    center: Literal["private"] | Vector | None = "private",
    ledger: Ledger | None = None,
) -> BoundsResult:
    """Find a bound on the norms of rows `X`, (n, d), privately: the norm that `quantile` of people stay within.

    With `center="private"`, a fit will clip rows around their mean, so the mean is found first. That takes three
    steps: norms around `origin` (zero unless given), the mean of rows clipped to their quantile, and norms around
    that mean. If that mean is poor, the last two steps are repeated. If `center` is numbers or None, norms are taken
    around those numbers or zero, in one release.

    `scale` are public units, as for a fit. Norms are resolved in steps of 4.4% `search_range` a public range, and a bound
    is the upper end of its step.

    `epsilon` and `delta` are the budget of all of this. A fit on the same people spends more: pass the same `ledger`
    to both, and their costs add up.

    If noise hides the few people beyond the quantile, a lower quantile is used. If that would clip more than half of
    the people, there is no answer.

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
    center : "private", list, array or None, default 'private'
        private: find the mean first, out of the same budget, because a fit clips rows around it. center=None: norms
        are around zero. Or public numbers, one per column, to take norms around.
    ledger : Ledger or None, default None
        Shared by several fits on the same people, so that their costs add up against one budget.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.random.default_rng(0).standard_normal((20_000, 4)) + 20
    >>> found = find_bounds(rows, epsilon=0.3, delta=1e-6, random_state=0)
    >>> print(round(found.row_bound, 2), found.center.round().tolist())   # the 0.95 quantile is 3.08
    3.22 [20.0, 20.0, 20.0, 20.0]
    """
    params = keywords_in(locals(), FindBounds)
    cells = norm_cells(*(params.search_range or _WITHIN), per_doubling=PER_DOUBLING)
    release = SmallRelease.of(X, params)
    public = place_of(release, params)
    where = center_of(params.center, release.dim)
    search = _Search(release=release, cells=cells, quantile=params.quantile, scale=public.scale, people=release.public_people())
    search.require_enough(_FIRST[0] if isinstance(where, str) else 1.0)
    # The number of steps depends on what is released, so the whole budget is reserved before the first.
    with release.reserved("these bounds") as paid:
        search = replace(search, release=paid)
        if isinstance(where, str):
            return search.around_the_mean(public.origin)
        counts = search.norms(where, share=1.0, label="norms")
        tails = search.read(counts, share=1.0)
        return search.found(tails, _read(tails, params.quantile), center=where, released=(counts, 1.0))


def place_of(release: SmallRelease, params: ColumnBoundsParams) -> RowBounds:
    """Origin and scale, checked as in a fit. The bound in the result is infinite and never used."""
    # Its quantile is of norms that are released here, not of a search inside a fit.
    names = release.columns
    return RowBounds.of(params, release.dim, private=False, sparse=release.rows.sparse, names=names, quantile=None)


class _Answer(NamedTuple):
    """The chosen edge, or None, and remarks on it."""

    edge: int | None
    why: str


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Search:
    """One search for a bound: its releases, and how they are read."""

    release: SmallRelease
    cells: Bins
    quantile: float
    scale: Array | None
    people: float | None
    # The released counts of entries, if some may be missing, as soon as they are known.
    rates: Rates | None = None

    def norms(self, center: Array | None, *, share: float, label: str) -> Array:
        """The released counts of people beyond each norm around `center`. `read` converts them to tails."""
        domain = Domain(dim=self.release.dim, radius=math.inf, center=center, scale=self.scale, gaps=self.release.gaps)
        near, rows = self.release.neighbours, self.release.rows
        private = bounded_tails(rows, domain=domain, cells=self.cells, neighbours=near)
        return self.release.mechanism().release(private, label=label, share=share)

    def read(self, released: Array, *, share: float) -> TailCounts:
        """The tails in counts that were released for this share."""
        return read_tails(released, noise=self._noise(share), cells=self.cells, people=self.people)[0]

    def _noise(self, share: float) -> float:
        sensitivity = tails_sensitivity(self.cells.count, self.release.neighbours)
        return self.release.mechanism().scale(sensitivity, share=share)

    def require_enough(self, share: float) -> None:
        """Refuse, before anything is spent, a public number of people that is too small for the budget."""
        if self.people is None or self.release.budget is None:
            return
        sensitivity = tails_sensitivity(self.cells.count, self.release.neighbours)
        # A row of A has the norm of its first column: the largest error of a count.
        first = tails_sensitivity(self.cells.count, Neighbours.ADD_REMOVE)
        # Counts below `SURE` errors are hidden, and a bound that clips more than half of the people is not named.
        min_people = 2 * SURE * self.release.scale(sensitivity, share=share) * first
        require_param(
            self.people >= min_people,
            f"{{epsilon=}} is too small for {self.people:.0f} people: finding a bound needs about {min_people:.0f}. "
            f"Raise {{epsilon}}, or pass a bound you know. Nothing was released",
            epsilon=self.release.budget.epsilon,
        )

    def around_the_mean(self, origin: Array | None) -> BoundsResult:
        """Norms around the origin, the mean of rows clipped to their quantile, norms around it; repeated if the mean
        is poor."""
        first, second, _ = _FIRST
        tails = self.read(self.norms(origin, share=first, label="norms around the origin"), share=first)
        # A mean of rows that are nearly all clipped would stay behind.
        widely = max(self.quantile, 0.5)
        answer = _read(tails, widely)
        if answer.edge is None:
            # Nothing is spent beyond the first release where noise hides the answer.
            return self.found(tails, answer, searched=True)
        reach = float(self.cells.edges[answer.edge])
        if self._too_far(origin, reach):
            return self.found(tails, _Answer(None, _FAR), searched=True)
        search, center, doubt = self._mean(origin, reach, tails.people, share=second, label="mean")
        return search._around(center, doubt, reach)

    def _around(self, center: Array, doubt: float, reach: float) -> BoundsResult:
        """Norms around a mean that was found within `reach` of the origin, with its likely error `doubt`."""
        third = _FIRST[2]
        left = 1.0 - sum(_FIRST)
        widely = max(self.quantile, 0.5)
        released = self.norms(center, share=third, label="norms around the mean")
        tails = self.read(released, share=third)
        edge = _read(tails, widely).edge
        # How many people the noise would hide in the norms of a second pass.
        hidden = SURE * float(tails.error.max()) * math.sqrt(third / (left - _AGAIN))
        search_range = 0.0 if edge is None else float(self.cells.edges[edge])
        poor = edge is not None and doubt > _DOUBT * search_range and not self._too_far(center, search_range)
        if poor and hidden <= _HIDDEN * tails.people:
            _, center, doubt = self._mean(center, search_range, tails.people, share=_AGAIN, label="mean, once more")
            left -= _AGAIN
            last = self.norms(center, share=left, label="norms around the mean, once more")
            released, share = last, left
        else:
            # Two releases of the same counts, averaged with their shares as weights, are as precise as one for both shares.
            last = self.norms(center, share=left, label="norms around the mean, once more")
            released, share = (third * released + left * last) / (third + left), third + left
        tails = self.read(released, share=share)
        answer = _read(tails, self.quantile)
        return self.found(tails, answer, mean_bound=reach, center=center, doubt=doubt, searched=True, released=(released, share))

    def _too_far(self, center: Array | None, reach: float) -> bool:
        """Whether a fit would refuse to search for the mean within `reach` of `center`. This depends on releases alone."""
        if center is None or not self.release.rows.sparse:
            return False
        moved = center if self.scale is None else center / self.scale
        return float(np.linalg.norm(moved)) + reach > FARTHEST * reach

    def _mean(
        self, start: Array | None, reach: float, people: float, *, share: float, label: str
    ) -> tuple["_Search", Array, float]:
        """The mean, (d,), of rows clipped to norm `reach` around `start`, and its likely error, in units of norms.

        Where entries may be missing, the first of these releases also counts those that are there, and the search that is
        returned knows their rates.
        """
        release, dim, gaps = self.release, self.release.dim, self.release.gaps
        claimed = release.budget is not None
        bounds = RowBounds(
            dim=dim,
            row_bound=reach,
            mean_bound=reach,
            search=False,
            origin=start,
            scale=self.scale,
            low=None,
            high=None,
            claimed=claimed,
            gaps=gaps,
        )
        observed_share = _SEEN if gaps is not None and gaps.divides and self.rates is None else 0.0
        weights = {"sum_weight": 1.0 - observed_share, "observed_weight": observed_share}
        label += " and observed entries" * (observed_share > 0)
        ball = bounds.around_start(start)
        task = Totals(domain=ball, neighbours=release.neighbours, **weights, name=label)
        mechanism = release.mechanism()
        private = task.private(task.ask(None), release.rows)
        totals = task.update(None, mechanism.release(private, label=label, share=share))
        assert totals.sum is not None
        search = self
        if totals.observed is not None:
            assert gaps is not None
            error = observed_noise(gaps, multiplier=release.multiplier, share=observed_share * share)
            search = replace(self, rates=Rates.of(gaps, totals.observed, people=people, noise=error))
        rates = search.rates
        total, noise_inflation = (totals.sum, 1.0) if rates is None else (rates.full_sum(totals.sum), rates.sum_noise)
        entry = mechanism.scale(ball.sum_sensitivity(release.neighbours), share=(1 - observed_share) * share)
        noise = entry * math.sqrt(dim) * noise_inflation
        # Where noise is as large as the ball, the mean stays at the start, which is off by `reach` at most.
        return search, bounds.center_from(start, total, people, noise=noise)[0], min(reach, noise / max(people, 1.0))

    def found(
        self,
        tails: TailCounts,
        answer: _Answer,
        *,
        mean_bound: float | None = None,
        center: Array | None = None,
        doubt: float = 0.0,
        searched: bool = False,
        released: tuple[Array, float] | None = None,
    ) -> BoundsResult:
        """The result that follows from these releases. The last counts were `released` for a share of the budget."""
        chosen = None if answer.edge is None else float(self.cells.edges[answer.edge])
        candidates = () if answer.edge is None else tuple(_candidates(tails, answer.edge))
        remarks = [answer.why] if answer.why else []
        outliers = None
        if chosen is not None and released is not None:
            counts, share = released
            longest = max(each.bound for each in candidates)
            outliers = outliers_in(counts, tails, noise=self._noise(share), longest=longest)
        if chosen is not None:
            wide = chosen / candidates[0].bound
            remarks += [_DOUBTFUL] if doubt > chosen / 2 else []
            remarks += [_HEAVIER.format(wide)] if wide > _HEAVY else []
            remarks += [_FAR] if self._too_far(center, chosen) else []
            norms = norms_of(candidates, outliers)
            long = None if norms is None else norms.longest(chosen)
            remarks += [] if long is None else [_LONG.format(long.words(chosen, times="times as long as this bound"))]
        return BoundsResult(
            dim=self.release.dim,
            row_bound=chosen,
            mean_bound=mean_bound,
            center=center,
            center_error=doubt,
            searched=searched,
            scale=self.scale,
            quantile=self.quantile,
            people=tails.people,
            people_error=tails.people_error,
            candidates=candidates,
            outliers=outliers,
            note=". ".join([*remarks[:1], *(each[0].upper() + each[1:] for each in remarks[1:])]),
            guarantee=self.release.guarantee(
                (*ROW_TAILS, "the mean", *self.release.counted_entries) if center is not None and searched else ROW_TAILS,
                TableRows(explicit=("the origin", "the scale", "the center", "the range of norms")),
                people=tails.people,
            ),
            ledger=self.release.ledger,
        )


def _read(tails: TailCounts, quantile: float) -> _Answer:
    """The first edge beyond which no more people lie than the quantile allows, or than noise alone can show."""
    error = float(tails.error.max())
    min_beyond = SURE * error
    wanted = (1 - quantile) * tails.people
    if 2 * min_beyond > tails.people or tails.people <= 0:
        about = f"about {tails.people:.0f} people" if tails.people > error else "hardly anybody"
        return _Answer(
            None,
            f"the table is too small for this budget. It seems to have {about}, and finding a bound needs about "
            f"{2 * min_beyond:.0f}. Raise epsilon, or pass a bound you know",
        )
    edge = tails.edge_above(max(wanted, min_beyond))
    if edge is None:
        top = tails.cells.edges[-1]
        return _Answer(
            None, f"too many rows have a norm above {top:.3g}, the largest in the search. Pass a scale or a wider range (within)"
        )
    if edge == 0:
        return _Answer(
            None,
            f"nearly all rows are within {tails.cells.edges[0]:.3g} of the center, the smallest norm in the search. "
            "Pass a scale or a wider range (within)",
        )
    if min_beyond <= wanted:
        return _Answer(edge, "")
    lowered = 1 - min_beyond / tails.people
    return _Answer(
        edge, f"at this budget noise hides the few people beyond the {quantile:g} quantile, so this is the {lowered:.2g} quantile"
    )


def _candidates(tails: TailCounts, chosen: int) -> Iterator[Candidate]:
    """Bounds at the usual quantiles, where noise can resolve them, and the chosen one; smallest first."""
    min_beyond = SURE * float(tails.error.max())
    wanted = [(1 - share) * tails.people for share in _SHOWN]
    quantile_edges = {tails.edge_above(max_beyond) for max_beyond in wanted if max_beyond >= min_beyond}
    edges = sorted({edge for edge in quantile_edges if edge is not None and edge > 0} | {chosen})
    smallest = float(tails.cells.edges[edges[0]])
    for edge in edges:
        bound = float(tails.cells.edges[edge])
        yield Candidate(
            bound=bound,
            clipped=float(tails.beyond[edge] / tails.people),
            error=float(tails.error[edge] / tails.people),
            noise=(bound / smallest) ** 2,
            bound_usage=min(1.0, tails.square(edge) / bound**2),
        )
