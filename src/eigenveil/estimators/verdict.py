"""What a fit can say of its own answer, from released and public numbers alone: nothing here costs budget or reads a row.

`noise_floor` is what noise alone exceeds in one fit of a hundred, and `assess_fit` notices an answer that is wrong.
`warnings_before_fit` says before a fit that its budget is hopeless.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import MissingPolicy
from eigenveil.core.unit import Neighbours, count_sensitivity, sum_sensitivity
from eigenveil.errors import HopelessBudget, ParameterWarning, verbatim
from eigenveil.linalg import Array, Subspace, norm_edge
from eigenveil.methods import MethodPlan, method_of
from eigenveil.plan.clipping import Norms
from eigenveil.plan.spectrum import Spectrum
from eigenveil.tasks.fit.bounds import Outliers, RowBounds
from eigenveil.tasks.fit.gaps import LEAST_RATE, observed_noise
from eigenveil.tasks.fit.search import NORMS
from eigenveil.tasks.fit.task import Fit, FitResult
from eigenveil.tasks.fit.units import are_flat, min_people_for_scale
from eigenveil.tasks.levels import BEYOND, Change

__all__ = [
    "FitVerdict",
    "Released",
    "assess_fit",
    "at_edge",
    "flat_columns",
    "noise_floor",
    "released_quantities",
    "scaled_by",
    "unclear_columns",
    "warnings_before_fit",
]

# A warning must be clear of the noise by this many deviations: 1 in 740 fits is wrong about each.
_CLEAR: Final = 3.0
# Above this bound usage, nearly every row was clipped.
_CLIPPED_USAGE: Final = 0.95
# The same where noise may hide that the usage is one.
_UNCLEAR_USAGE: Final = 0.9
# A bound this many times the typical row norm wastes accuracy: noise grows with its square.
_OVERSIZED: Final = 10.0
# The same where nothing stands out, because the bound may be why.
_OVERSIZED_FOR_NOTHING: Final = 4.0
# From this share of clipped rows on, whitened scores are said to vary more than they should.
_SOME_CLIPPED: Final = 0.01
# A bound that was found is so many times the typical norm only if the center was still far off when it was chosen.
_FAR_OFF: Final = 1.5
# The mean is at the edge of its search from this share of the way on.
_AT_EDGE: Final = 0.9
# A column is far apart from another with so many times its variance: ten times the spread.
_FAR_APART: Final = 100.0
# One column dominates with this share of the variance. Only components above the noise floor count, and these hardly ever lie
# along one column by chance.
_ONE_COLUMN: Final = 0.9
# A component lies along the sum of all columns with such a cosine, and alone with such a share of the variance.
_ALIKE: Final = 0.98
_LEVEL: Final = 0.99
_CHANGES: Final[dict[Change, str]] = {
    "center": "The level of the stream has moved: the last rows lie far from the point that rows are clipped around, which was "
    "found in the first block. Begin a new stream for the rows from now on.",
    "level": "The level of the stream has moved: later rows have another mean than earlier ones, and the components describe the "
    "difference as well as the rows. Begin a new stream for the rows from now on, or use a {forget} below 1.",
    "spread": "The spread of the stream has changed: later rows vary much less than earlier ones, which hide them. Begin a new "
    "stream for the rows from now on, or use a {forget} below 1.",
}


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FitVerdict:
    """What can be said of a fit."""

    noise_floor: float = 0.0  # In Gram units.
    bound_usage: float | None = None  # Mean squared norm of clipped rows over the squared row bound. None without a bound.
    clipped: float | None = None  # About the share of people with rows beyond it. None if norms were not released.
    norms: tuple[float, ...] | None = None  # As in `Center`.
    outliers: Outliers | None = None  # The same.
    warned: tuple[ParameterWarning, ...] = ()
    n_before_fit: int = 0  # How many of these were given before the fit.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Released:
    """The released numbers of a private fit that a verdict needs, with their standard deviations."""

    space: Subspace
    trace: float  # The total sum of squares.
    people: float
    radius: float  # Rows were clipped to this norm.
    trace_noise: float  # A standard deviation.
    people_noise: float  # The same.
    noise_floor: float  # Noise alone stays below this.
    at_edge: bool  # The search for the mean ended at its edge.
    energy: float  # The trace of the clipped rows, before variances were made one.
    flat: tuple[int, ...] = ()  # Columns that hardly vary.
    clipped: float | None = None  # About the share of people with rows beyond the bound.
    norms: tuple[float, ...] | None = None
    outliers: Outliers | None = None
    scaled: Literal["given", "private"] | None = None  # Where the units of columns come from.
    change: Change | None = None  # Of the level or the spread of the last rows of a stream.
    unclear: tuple[int, ...] = ()  # Columns whose counts of entries may be noise alone.

    @property
    def above(self) -> Array:
        """The eigenvalues, (k,), with zero for those that are not above the noise floor."""
        values = np.square(self.space.values)
        return np.where(values > self.noise_floor, values, 0.0)

    @property
    def bound_usage(self) -> tuple[float, float]:
        """The mean squared norm of the clipped rows over the squared bound, and its standard deviation."""
        # A noisy number of people may fall below one, or below zero.
        whole = max(self.people, 1.0) * self.radius**2
        bound_usage = max(self.energy, 0.0) / whole
        return bound_usage, math.hypot(self.trace_noise / whole, bound_usage * self.people_noise / max(self.people, 1.0))


def noise_floor(study: Fit, result: FitResult, plan: MethodPlan, *, sites: int = 1) -> float:
    """Gram eigenvalues below this cannot be told from noise: noise alone exceeds it in one fit of a hundred.

    How the level is kept is proved with each edge (`eigenveil.linalg.subspace`). Products that are all kept stay well below the
    edge of the last one.

    A bound that was found changes nothing. The noise on the matrix is drawn after the search, in proportion to the bound. So
    given all that the search released, the level is the same, for any bound. Rows that are all alike add only n e e^T, where e is
    the error of the last mean: see `_mean_spike`. That mean can reach them, because its ball is no smaller than the 1% point of
    the distance to the mean before (`BoundSearch`). Rows of zeros are all in the lowest cell of norms, and so is that distance.
    """
    if result.scale == 0:
        return 0.0
    spike = _mean_spike(study, result)
    return method_of(plan.method).noise_floor(result.domain.dim, plan, scale=result.scale, spike=spike, sites=sites)


def _mean_spike(study: Fit, result: FitResult) -> float:
    """What the error of the mean adds to one eigenvalue of the Gram matrix, exceeded in one fit of a hundred.

    An error e adds n e e^T. Its entries have the noise of the last step's sum over n, so n |e|^2 is a chi-squared variable
    times a squared entry over n. Clipped rows cannot add more than n times their squared bound, wherever the mean is.
    """
    if not isinstance(study.center, str) or result.steps == 0 or study.multiplier == 0:
        return 0.0
    people = max(result.people, 1.0)
    # A search for the bound, or for units, ends with the mean inside what it found.
    searched = study.bounds.finds_bound or study.bounds.finds_scale
    reach = result.domain.radius if searched else study.bounds.mean_bound
    sum_noise = study.multiplier * sum_sensitivity(reach, study.neighbours)
    entry = sum_noise / math.sqrt(study.split.mean[result.steps - 1])
    if result.rates is not None:
        # The sum was divided by rates, and its noise with it.
        entry *= math.sqrt(float(np.mean(result.rates**-2.0)))
    return min((entry * norm_edge(result.domain.dim)) ** 2 / people, people * result.domain.radius**2)


def released_quantities(study: Fit, result: FitResult, *, floor: float) -> Released:
    """What a fit released, as a verdict needs it."""
    extra = study.split.extra
    # One release has the count, where it was not released with the mean, and the trace: equal parts of its share.
    alone = study.people is None and not isinstance(study.center, str)
    part = (extra - study.split.observed_later) / (2 if alone and study.needs_trace else 1)
    trace_noise = result.scale * math.sqrt(result.domain.dim)
    if study.needs_trace:
        trace_noise = study.multiplier * result.domain.trace_sensitivity(study.neighbours) / math.sqrt(part)
    people_noise = 0.0
    if study.people is None:
        share = part if alone else study.split.count
        # Where incomplete rows are dropped, even a public number of people is no longer the number of those that count.
        gaps = study.bounds.gaps
        moved = 1.0 if gaps is not None and gaps.drops else count_sensitivity(study.neighbours)
        people_noise = study.multiplier * moved / math.sqrt(share)
    return Released(
        space=result.subspace,
        trace=result.trace,
        people=result.people,
        radius=result.domain.radius,
        trace_noise=trace_noise,
        people_noise=people_noise,
        noise_floor=floor,
        at_edge=at_edge(study.bounds, result.center, steps=result.steps, max_steps=len(study.split.mean)),
        energy=result.trace if result.energy is None else result.energy,
        flat=flat_columns(study.bounds, result.units),
        clipped=result.clipped,
        norms=result.norms,
        outliers=result.outliers,
        scaled=scaled_by(study.bounds),
        unclear=unclear_columns(
            study.bounds.gaps,
            result.rates,
            noise=observed_noise(study.bounds.gaps, multiplier=study.multiplier, share=study.split.for_observed),
            people=result.people,
        ),
    )


def unclear_columns(gaps: MissingPolicy | None, rates: Array | None, *, noise: float, people: float) -> tuple[int, ...]:
    """The places of columns, from zero, whose released counts of entries, with `noise` on each, do not stand out from it.

    Rates are at least that of the rarest column that is told from none.
    """
    if gaps is None or not gaps.divides or rates is None or noise == 0:
        return ()
    return tuple(np.flatnonzero(rates <= max(_CLEAR * noise / max(people, 1.0), LEAST_RATE)).tolist())


def scaled_by(bounds: RowBounds) -> Literal["given", "private"] | None:
    """Where the units of the columns come from, None if they are left as they are."""
    return "private" if bounds.finds_scale else None if bounds.scale is None else "given"


def flat_columns(bounds: RowBounds, units: Array | None) -> tuple[int, ...]:
    """The places of columns, from zero, in which a private search for units found hardly any spread."""
    if not bounds.finds_scale or units is None:
        return ()
    return tuple(np.flatnonzero(are_flat(units)).tolist())


def at_edge(bounds: RowBounds, center: Array, *, steps: int, max_steps: int) -> bool:
    """Whether a mean, (d,), that was found in `steps` of `max_steps` lies where the search ends. The true one may lie beyond."""
    # In a box every mean is within reach, and a search for units takes as many steps as that needs.
    if steps < max(max_steps, 1) or bounds.low is not None or bounds.finds_scale:
        return False
    if bounds.finds_bound:
        # A search for a bound looks everywhere and gets nearer in each step, so it ends with its steps. Around a given center
        # there is one step, and no mean to reach.
        return max_steps > 1
    offset = center if bounds.origin is None else center - bounds.origin
    distance = float(np.linalg.norm(offset if bounds.scale is None else offset / bounds.scale))
    return distance >= _AT_EDGE * steps * bounds.mean_bound


def assess_fit(
    fit: Released | None,
    *,
    settings: dict[str, Any],
    budget: Budget | None,
    method: str,
    neighbours: Neighbours,
    names: tuple[str, ...] | None,
    sites: int = 1,
    before: tuple[ParameterWarning, ...] = (),
    finds: bool = True,
) -> FitVerdict:
    """The verdict on a fit: None for one without noise, of which there is nothing to say.

    `settings` are its settings, `method` its name in a plan, `names` those of the columns, and `before` what was said already.
    Bounds and units that are found privately are recommended only if such a fit `finds` them.
    """
    if fit is None or not math.isfinite(fit.radius):
        return FitVerdict(warned=before, n_before_fit=len(before))
    warned = (
        *before,
        *_warned(fit, settings, names, budget, finds=finds),
        *_flat(fit, names),
        *_whitened(fit, settings),
        *_nothing(fit, settings, budget, method, neighbours, sites, before),
    )
    bound_usage, noise = fit.bound_usage
    # A clipped row adds the squared bound, so no more rows than the fill are clipped. Norms may say more if the center has moved.
    clipped = None if fit.clipped is None else min(fit.clipped, bound_usage + _CLEAR * noise)
    # No clipped row is longer than the bound. Where few people were in it, noise alone may say more.
    return FitVerdict(
        noise_floor=fit.noise_floor,
        bound_usage=min(bound_usage, 1.0),
        clipped=clipped,
        norms=fit.norms,
        outliers=fit.outliers,
        warned=warned,
        n_before_fit=len(before),
    )


def _warned(
    fit: Released, settings: dict[str, Any], names: tuple[str, ...] | None, budget: Budget | None, *, finds: bool
) -> Iterator[ParameterWarning]:
    bound_usage, noise = fit.bound_usage
    private = "{row_bound=private} or " if finds else ""
    boxed = settings.get("column_bounds") is not None and settings.get("row_bound") in (None, "private")
    # A bound that was found privately may clip most rows on purpose. In a box, columns of two values fill it by design.
    is_given = settings.get("row_bound") != "private" and fit.scaled != "private"
    low, high = bound_usage - _CLEAR * noise, bound_usage + _CLEAR * noise
    if is_given and not boxed and (low > _CLIPPED_USAGE or (high >= 1 and low > _UNCLEAR_USAGE)):
        yield ParameterWarning(
            f"Nearly every row was clipped (bound usage {bound_usage:.2f}): the row bound {fit.radius:g} is below typical row "
            f"norms. The components describe directions only. Refit with {private}a larger {{row_bound}}. If all rows "
            "have this norm by design, nothing is wrong."
        )
    elif fit.scaled == "private" and low > _CLIPPED_USAGE:
        # In units that fit, rows of few norms fill two thirds of the bound or so.
        yield ParameterWarning(
            f"Nearly every row was clipped (bound usage {bound_usage:.2f}): the units that were found do not fit the rows. Refit "
            "with a larger {epsilon}, or give public numbers as {scale} and {origin}."
        )
    times = 1 / math.sqrt(high) if high > 0 else math.inf
    # Far from the rows, hardly any of what they have in common counts as variance.
    large = not fit.at_edge and times > (_OVERSIZED if fit.above.any() else _OVERSIZED_FOR_NOTHING)
    if boxed and large:
        yield ParameterWarning(
            f"The column bounds allow rows at least {times:.0f} times as long as the typical one (bound usage "
            f"{bound_usage:.2g}), and the noise grows with the square. Refit with narrower {{column_bounds}}, or leave them "
            "out and a bound is found privately."
        )
    elif is_given and large:
        yield ParameterWarning(
            f"The row bound {fit.radius:g} is at least {times:.0f} times the typical row norm (bound usage "
            f"{bound_usage:.2g}), and the noise grows with its square. Refit with {private}a smaller {{row_bound}}."
        )
    searched = settings.get("row_bound") == "private" and fit.scaled != "private" and not boxed
    if fit.at_edge and not searched:
        yield ParameterWarning(
            "The search for the mean ended at its edge: the rows may lie farther out than it can reach. Refit with an {origin} "
            "near the rows, or with {row_bound=private}."
        )
    if searched:
        yield from _searched(fit, times, budget)
    yield from _long(fit)
    if fit.change is not None:
        # A stream is no longer what it was, from what was released of it so far.
        yield ParameterWarning(_CHANGES[fit.change])
    yield from _dominant(fit, names, finds=finds)
    yield from _unclear(fit, names)


def _dominant(fit: Released, names: tuple[str, ...] | None, *, finds: bool) -> Iterator[ParameterWarning]:
    """That a few columns have nearly all of the variance, because of their units or of codes for missing values."""
    total, dim = max(fit.trace, float(fit.above.sum())), fit.space.dim
    # With two columns one of them often has nearly all of the variance, and the components still say how they go together.
    if total <= 0 or fit.scaled == "private" or dim <= 2:
        return
    shares = np.square(fit.space.basis) @ fit.above / total
    order = np.argsort(-shares, kind="stable")
    falling, counts = shares[order], np.arange(1, dim // 2 + 1)
    # What the components leave over is in the other columns, as far as anyone knows evenly.
    others = falling[counts] + max(1.0 - float(shares.sum()), 0.0) / (dim - counts)
    # Several columns may have it because rows lie along few directions, but not if each has far more than any other column.
    far = falling[counts - 1] > _FAR_APART * others
    enough = (np.cumsum(falling)[counts - 1] > _ONE_COLUMN) & (far | (counts == 1) & (fit.scaled is None))
    if not enough.any():
        yield from _alike(fit, total)
        return
    count = int(counts[enough][0])
    which = _listed(np.sort(order[:count]), names)
    apart = f"The spread of {'it' if count == 1 else 'each'} is more than ten times any other's. " * bool(far[count - 1])
    unit = f"If {'its unit is' if count == 1 else 'their units are'} the reason, " + (
        "give other numbers as {scale}. "
        if fit.scaled is not None
        else f"{'refit with {scale=private}, or ' * finds}give public units as {{scale}}. "
    )
    share = f"{'has' if count == 1 else 'have'} {min(float(falling[:count].sum()), 1.0):.0%} of the variance"
    yield ParameterWarning(
        f"{which} {share}, so the components describe little else. {apart}{unit}If a number such as -9999 stands for missing "
        "values there, have it read as missing (`--na-values`)."
    )


def _alike(fit: Released, total: float) -> Iterator[ParameterWarning]:
    """That rows differ in one number, which is added to all of their columns, as where a code stands in whole rows."""
    alike = abs(float(fit.space.basis[:, 0].sum())) / math.sqrt(fit.space.dim)
    if fit.scaled is None and alike > _ALIKE and float(fit.above[0]) > _LEVEL * total:
        yield ParameterWarning(
            f"The first component has {min(float(fit.above[0]) / total, 1.0):.0%} of the variance and weighs all columns alike, "
            "so rows differ in little else than their level. If a number such as -9999 stands for missing values in whole rows, "
            "have it read as missing (`--na-values`)."
        )


def _unclear(fit: Released, names: tuple[str, ...] | None) -> Iterator[ParameterWarning]:
    """That few people have an entry in a column, as far as the released counts show, or that the counts are noise."""
    dim = len(fit.space.basis)
    if 2 * len(fit.unclear) > dim:
        yield ParameterWarning(
            f"The released counts of entries do not stand out from their noise in {len(fit.unclear)} of {dim} columns. The "
            "budget is too small to count entries of so few people. Raise {epsilon}, or refit with {missing=fill}."
        )
    elif fit.unclear:
        which, many = _listed(np.array(fit.unclear), names), len(fit.unclear) > 1
        count = "their counts do" if many else "the count does"
        yield ParameterWarning(
            f"{which} {'have' if many else 'has'} so few entries that {count} not stand out from the noise. Sums are "
            "divided by these counts, which raises the noise floor of all components. Refit with {drop} "
            f"to leave {'them' if many else 'it'} out."
        )


def _listed(places: Array, names: tuple[str, ...] | None) -> str:
    """The columns at these places, the first ten of them."""
    shown = [f"{index + 1}" if names is None else verbatim(names[index]) for index in places[:10]]
    if len(places) > 10:
        return f"Columns {', '.join(shown)}, ..."
    return f"Column {shown[0]}" if len(shown) == 1 else f"Columns {', '.join(shown[:-1])} and {shown[-1]}"


def _long(fit: Released) -> Iterator[ParameterWarning]:
    """That rows far beyond the bound seem to have most of the variance of all rows."""
    if fit.norms is None:
        return
    norms = Norms.read({share: norm for share, norm in zip(BEYOND, fit.norms, strict=False) if norm > 0}, fit.outliers)
    longest = None if norms is None else norms.longest(fit.radius)
    if longest is None:
        return
    rows = longest.words(fit.radius, times=f"times as long as the row bound, {fit.radius:.3g}")
    larger = "A larger {epsilon} shows whether they are there. " * (longest.chance < 1)
    yield ParameterWarning(
        f"{rows}. If so, they have most of the variance: exact PCA of all rows follows them, and these components describe the "
        f"others. {larger}If they matter, refit with a larger {{row_bound}} that you know. If a number such as -9999 stands for "
        "missing values, have it read as missing (`--na-values`)."
    )

    if fit.change is not None:
        yield ParameterWarning(_CHANGES[fit.change])


def _searched(fit: Released, times: float, budget: Budget | None) -> Iterator[ParameterWarning]:
    """That the search for a bound ended where its cells do, or before it had found the mean: far above the norms around it."""
    lower, upper = NORMS.edges[0] * (1 + 1e-9), NORMS.edges[-1] * (1 - 1e-9)
    nothing = not fit.above.any()
    if fit.radius >= upper:
        yield ParameterWarning(
            f"The search for a bound ended at {upper:.0e}, the largest that it can find, so longer rows were clipped. Refit with "
            "a public unit as {scale}, such as 1e6."
        )
    elif fit.radius <= lower:
        yield ParameterWarning(
            f"Nearly all rows lie within {lower:.0e} of their mean, the smallest bound that the search can find. If only a few "
            "rows differ, the components describe their directions: for variances refit with a {row_bound} that you know. If "
            "all rows differ, refit with a public unit as {scale}, such as 1e-6."
        )
    elif (nothing and (fit.at_edge or times > _OVERSIZED_FOR_NOTHING)) or (fit.at_edge and times > _FAR_OFF):
        # Units are found where columns lie, however far that is, but only among enough people.
        enough = budget is not None and fit.people >= min_people_for_scale(fit.space.dim, 1 / budget.mu)
        unit = ", or with {scale=private}" if enough and fit.scaled is None else ""
        yield ParameterWarning(
            "The rows lie very far from zero compared with how much they differ, or hardly differ at all, and the search for "
            f"their mean may not have reached it. Refit with an {{origin}} near the rows{unit}."
        )


def _flat(fit: Released, names: tuple[str, ...] | None) -> Iterator[ParameterWarning]:
    """That columns were left in their own unit, which may be wrong for them."""
    if not fit.flat:
        return
    shown = [str(index + 1) if names is None else verbatim(names[index]) for index in fit.flat[:10]]
    which = f"{', '.join(shown)}{', ...' * (len(fit.flat) > len(shown))}"
    yield ParameterWarning(
        f"{len(fit.flat)} of {fit.space.dim} columns hardly vary, as far as the noise shows, and are not standardised: {which}. "
        "If most columns are like this, use {scale=None}. If they do vary, refit with an {origin} near the rows."
    )


def _whitened(fit: Released, settings: dict[str, Any]) -> Iterator[ParameterWarning]:
    """That scores have variance one only if rows are clipped again, where rows beyond the bound are likely or not counted."""
    if settings.get("whiten") is not True or (fit.scaled != "private" and (fit.clipped or 0.0) < _SOME_CLIPPED):
        return
    share = (
        "How many rows were clipped was not released" if fit.clipped is None else f"About {fit.clipped:.0%} of rows were clipped"
    )
    yield ParameterWarning(
        f"{share}, and whitened scores have variance 1 for clipped rows only. Rows beyond the bound have larger ones. Use "
        "transform with clip=True, or `eigenveil transform --clip`, which clip rows as the fit did."
    )


def _nothing(
    fit: Released,
    settings: dict[str, Any],
    budget: Budget | None,
    method: str,
    neighbours: Neighbours,
    sites: int,
    before: tuple[ParameterWarning, ...],
) -> Iterator[ParameterWarning]:
    """That nothing stands out, and whether that was to be expected with as many people as were counted."""
    if fit.above.any():
        return
    people, dim, rank = max(2, round(fit.people)), fit.space.dim, fit.space.rank
    units = fit.scaled == "private"
    find = not units and settings.get("row_bound") == "private" and "column_bounds" not in settings
    bound = None if find else fit.radius
    line = "" if budget is None or before else _plan_line(people, dim, rank, budget, bound, units=units)
    say = f" {line} says what would work." if line else ""
    yield ParameterWarning(
        "Nothing stands out from the noise: no component is above the noise floor, so all of them may be noise alone." + say
    )
    if budget is not None and not before:
        # Two digits of a noisy count are enough, and rehearsals for the same number are kept.
        about = int(float(f"{people:.1e}"))
        yield from warnings_before_fit(
            method,
            dim=dim,
            rank=rank,
            people=about,
            budget=budget,
            neighbours=neighbours,
            sites=sites,
            about="about ",
            row_bound=bound,
            scale="private" if units else None,
        )


def warnings_before_fit(
    method: str,
    *,
    dim: int,
    rank: int,
    people: float | None,
    budget: Budget | None,
    neighbours: Neighbours,
    sites: int = 1,
    about: str = "",
    bounds: RowBounds | None = None,
    **more: Any,
) -> tuple[ParameterWarning, ...]:
    """A warning if `plan` calls this budget hopeless for so many `people`, a public or released number; None says nothing.

    `method` is the name of one in a plan, and `more` are further `Facts`. The `bounds` of a fit say what it will search for.
    """
    if budget is None or people is None:
        return ()
    # Lazy: the planner loads every tracker, and most fits ask it nothing.
    from eigenveil.plan.facts import METHODS, Facts
    from eigenveil.plan.recommendation import hopeless

    if method not in METHODS or rank > dim:
        return ()
    count = max(2, round(people))
    if bounds is not None:
        # In a box without a row bound the radius is known only with the center, and any number stands for a known one.
        radius = bounds.row_bound if math.isfinite(bounds.row_bound) else 1.0
        more |= {
            "search": bounds.search,
            "row_bound": None if bounds.finds_bound else radius,
            "scale": "private" if bounds.finds_scale else None,
        }
    facts = Facts(
        dim=dim,
        rank=rank,
        people=count,
        budget=budget,
        spectrum=_guess(dim),
        neighbours=neighbours,
        sites=max(1, min(sites, count)),
        **more,
    )
    shares = hopeless(facts, method)
    if shares is None:
        return ()
    captured, nothing = shares
    # After the count was released it is too late to ask: a command that took this for a question would spend twice.
    kind = ParameterWarning if about else HopelessBudget
    return (
        kind(
            f"With {about}{count} people and {dim} columns, this budget finds little but noise: about "
            f"{captured:.0%} of the variance that exact PCA with {rank} components finds in the clipped rows. Random directions "
            f"have {nothing:.0%}. {_plan_line(count, dim, rank, budget, facts.row_bound, units=facts.scale is not None)} "
            "says what would work."
        ),
    )


# The same object each time, because rehearsals with it are kept.
@lru_cache(maxsize=8)
def _guess(dim: int) -> Spectrum:
    """The spectrum that a plan assumes where nothing is known. A warning says nothing about doubt."""
    return replace(Spectrum.guessed(dim, bound_usage=0.5), spread=0.0, error=0.0)


def _plan_line(people: int, dim: int, rank: int, budget: Budget, row_bound: float | None, *, units: bool) -> str:
    """The command that says what a budget buys, in backquotes; with a `row_bound` of None for a fit that finds one."""
    bounds = " --scale private" if units else "" if row_bound is None else f" --row-bound {row_bound:g}"
    cost = f"--epsilon {budget.epsilon:g} --delta {budget.delta:g}"
    return verbatim(f"`eigenveil plan -n {people} -d {dim} -k {rank} {cost}{bounds}`")
