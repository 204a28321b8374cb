"""`Placement`: where the rows of a stream lie, as given or as a private stream found it in its first block."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import scipy.sparse as sp

from eigenveil.core.domain import LARGEST, SMALLEST, Domain, Gaps
from eigenveil.core.mechanism import Mechanism
from eigenveil.core.rows import Rows
from eigenveil.errors import require
from eigenveil.estimators.streaming.spec import StreamSpec
from eigenveil.linalg import Array
from eigenveil.plan import stream_split
from eigenveil.protocols import run_pooled
from eigenveil.tasks import Totals
from eigenveil.tasks.fit.center import Center, CenterSearch
from eigenveil.tasks.fit.gaps import Rates
from eigenveil.tasks.fit.outliers import Outliers
from eigenveil.tasks.fit.search import BoundSearch
from eigenveil.tasks.fit.split import Portion
from eigenveil.tasks.fit.units import UnitSearch, deviations
from eigenveil.trackers.sums import as_block_rows

__all__ = ["Placement", "search", "units_in"]

# A bound is chosen for a stream of so many first blocks, if nobody says how long it will be.
_BLOCKS_TO_COME: Final = 10.0
# After so many steps in the first block, a search that has not reached the mean waits for more rows. The steps that are left are
# then as much finer as there are more rows.
_PAUSE: Final = 6


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Public: given, or released. A tracker gets rows divided by `scale`, so what it has found is in these units."""

    bound: float | None = None  # The norm to clip at, None until the first block has found one.
    scale: Array | None = None  # The units of the columns, (d,).
    rates: Rates | None = None  # Of entries that may be missing, None until they are counted, or if none are.
    clipped: float | None = (
        None  # About the share of people in the first block whose rows are beyond a bound found there.
    )
    norms: tuple[float, ...] | None = None  # The released norms that stand out from the noise.
    outliers: Outliers | None = None  # What may lie beyond them.

    @classmethod
    def given(cls, terms: StreamSpec) -> "Placement":
        """What is known before the first row."""
        bounds = terms.bounds
        return cls(bound=None if bounds.find or bounds.low is not None else bounds.row_bound, scale=bounds.scale)

    def found(self, terms: StreamSpec) -> "Placement":
        """What was found, for a state file, and nothing that was given."""
        bounds = terms.bounds
        return replace(self, bound=self.bound if bounds.find else None, scale=self.scale if bounds.units else None)

    def resumed(self, terms: StreamSpec) -> "Placement":
        """With what was given, after `found`. What no search can have found is refused."""
        bounds, gaps, dim, given = terms.bounds, terms.bounds.gaps, terms.bounds.dim, Placement.given(terms)
        require(
            not bounds.find or (self.bound is not None and SMALLEST <= self.bound <= LARGEST),
            "its bound is not one that a search can find",
        )
        scale = self.scale if bounds.units else given.scale
        require(
            not bounds.units
            or (
                scale is not None
                and scale.shape == (dim,)
                and scale.dtype == np.float64
                and bool(((scale >= SMALLEST) & (scale <= LARGEST)).all())
            ),
            "its units are not those that a search can find",
        )
        rates = self.rates if gaps is not None and gaps.values is None else None
        require(
            (gaps is None or gaps.values is not None) if rates is None else _possible(rates, gaps),
            "its rates of entries are not those that a stream can have found",
        )
        bound = self.bound if bounds.find else given.bound
        return replace(self, bound=bound, scale=scale, rates=rates, outliers=Outliers.read(self.outliers))


def _possible(rates: Rates, gaps: Gaps | None) -> bool:
    assert gaps is not None
    joint = rates.joint is None if gaps.rule == "counts" else rates.joint is not None
    return (
        joint
        and (rates.joint is None or rates.joint.shape == (gaps.groups, gaps.groups))
        and np.array_equal(rates.group, gaps.group)
        and rates.columns.shape == gaps.group.shape
        and bool(((rates.columns > 0) & (rates.columns <= 1)).all())
    )


def search(
    rows: Any, terms: StreamSpec, mechanism: Callable[[], Mechanism], *, begun: Center | None, last: bool
) -> tuple[Center, Rates | None, bool]:
    """What the first block shows privately: the mean, in the units of the columns, and the norm to clip at or the units.

    The rates of entries come with it, None if nothing is to be divided by them. If the third is true, the mean lies too far out,
    and the search is to go on from there in more rows, as from what has `begun`. Among the `last` rows it cannot wait.
    """
    assert terms.budget is not None
    bounds, gaps, multiplier = terms.bounds, terms.bounds.gaps, 1.0 / terms.budget.mu
    seen, drops = gaps is not None and gaps.divides, gaps is not None and gaps.drops
    if not (terms.center or bounds.find or seen or drops):
        return Center(center=None, people=None, steps=0), None, False
    block = as_block_rows(rows)
    count = float(block.shape[0])
    waits = begun is None and not last and terms.plan.search_rows > 0
    split = stream_split(center=terms.center, bound=bounds.find, units=bounds.units, observed=seen, count=drops)
    # The number of rows is public in a stream, so no budget goes to a count, unless incomplete rows are left out.
    people = None if drops else count
    task: CenterSearch | BoundSearch | UnitSearch
    if bounds.units:
        task = UnitSearch(bounds=bounds, neighbours=terms.neighbours, split=split, people=people, multiplier=multiplier)
    elif bounds.find:
        task = BoundSearch(
            bounds=bounds,
            neighbours=terms.neighbours,
            center="private" if terms.center else None,
            split=split,
            people=people,
            multiplier=multiplier,
            rank=terms.rank,
            entry=math.sqrt(0.5),
            crowd=_crowd(count, terms),
            pause=_PAUSE if waits else None,
        )
    else:
        task = CenterSearch(
            bounds=bounds,
            neighbours=terms.neighbours,
            shares=split.mean,
            count_share=split.count,
            people=people,
            multiplier=multiplier,
            observed_share=split.observed,
        )
    found = Center(center=None, people=None, steps=0)
    if terms.center or bounds.find:
        earlier = None if begun is None else _of_more(begun, count / terms.plan.first_block)
        found = run_pooled(task, block, mechanism(), begun=earlier)
    if waits and found.poor:
        return found, None, True
    if (seen or drops) and not terms.center:
        found = _counted(found, block, terms, Portion(mechanism(), split.extra))
    return found, _rates(found, count, terms, share=split.for_observed), False


def _counted(found: Center, block: Rows, terms: StreamSpec, mechanism: Mechanism) -> Center:
    """What the first block found, with a count of its complete rows, or of the entries that are there."""
    gaps = terms.bounds.gaps
    assert gaps is not None
    name = "count" if gaps.drops else "observed entries"
    # Counts depend on no ball. One of finite radius claims privacy for them.
    domain = Domain(dim=terms.bounds.dim, radius=1.0, gaps=gaps)
    weights = {"count_weight": 1.0} if gaps.drops else {"observed_weight": 1.0}
    totals = run_pooled(Totals(domain=domain, neighbours=terms.neighbours, name=name, **weights), block, mechanism)
    return replace(found, people=totals.count or float(block.shape[0]), observed=totals.observed)


def _rates(found: Center, count: float, terms: StreamSpec, *, share: float) -> Rates | None:
    """The rates of entries, from what the first block of `count` rows found; None if nothing is to be divided."""
    gaps = terms.bounds.gaps
    if gaps is not None and gaps.drops:
        assert found.people is not None
        return Rates.of_complete(gaps, found.people / count)
    assert terms.budget is not None
    return replace(found, people=count).rates(terms.bounds, multiplier=1.0 / terms.budget.mu, share=share)


def _crowd(first: float, terms: StreamSpec) -> float:
    """How many rows one release will be of, as far as anyone knows."""
    if terms.plan.kind.apart:
        return max(first, float(terms.plan.block))
    usual = _BLOCKS_TO_COME * min(first, float(terms.plan.first_block))
    return max(first, usual if terms.horizon is None else float(terms.horizon))


def _of_more(found: Center, times: float) -> Center:
    """What a search has found, to go on among this many times the rows."""
    people = None if found.people is None else found.people * times
    # Among many more rows another pass pays, even if the last one did not.
    far = found.far or times >= 2
    return replace(found, people=people, far=far, observed=None if found.observed is None else found.observed * times)


def units_in(rows: Any) -> Array:
    """The standard deviation of each column, (d,), of the entries that are there: for a stream without privacy."""
    from sklearn.utils.sparsefuncs import mean_variance_axis

    if sp.issparse(rows):
        mean, variances = mean_variance_axis(rows.astype(np.float64), axis=0)
    else:
        there = ~np.isnan(rows)
        count = np.maximum(there.sum(axis=0), 1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.where(there, rows, 0.0).sum(axis=0) / count
            variances = np.square(np.where(there, rows - mean, 0.0)).sum(axis=0) / count
    return deviations(np.nan_to_num(variances), np.nan_to_num(mean), people=float(rows.shape[0]))
