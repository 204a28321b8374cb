"""`released_spectrum`: releases the eigenvalues of a table once, privately, so that the planner can forecast a fit.

All d eigenvalues together are one release with the sensitivity of the Gram matrix itself, so each has the noise of a
single entry. Everything computed from them afterwards is post-processing and spends nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np
from scipy.optimize import isotonic_regression

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows, ignore_float_errors
from eigenveil.core.unit import Neighbours, sum_sensitivity
from eigenveil.errors import require_param
from eigenveil.estimators.bounds.release import AskedOfRows, SmallRelease, Text
from eigenveil.estimators.checks import center_of
from eigenveil.linalg import Array
from eigenveil.params.declarations.private import SpectrumParams
from eigenveil.params.declare import keywords_in, parameters, takes
from eigenveil.params.values import Numbers, Vector
from eigenveil.plan.spectrum import Spectrum
from eigenveil.privacy.facts import EIGENVALUES, ON_LAPACK, TableRows
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.privacy.sums import bounded_count, bounded_gram, bounded_kept
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.gaps import Split
from eigenveil.tasks.fit.search import Center, CenterSearch
from eigenveil.tasks.totals import Totals

__all__ = ["ReleaseSpectrum", "ReleasedSpectrum", "bounded_spectrum", "denoised", "released_spectrum"]

# An error e of the mean adds e^2 to one eigenvalue, which soon exceeds their noise. Therefore the mean gets more than in a fit.
_MEAN_SHARES: Final = (0.25, 0.2, 0.2)
_MEAN_SHARE: Final = 0.5
# Shares of what the mean leaves: for the total sum of squares, and for the number of people.
_TRACE_SHARE: Final = 0.05
_COUNT_SHARE: Final = 0.05
# Where entries may be missing: for how many people have each, as in a fit. And no entry of the Gram matrix is divided by less
# than this, because the noise grows by as much as the rarest one.
_OBSERVED_SHARE: Final = 0.04
_LEAST_RATE: Final = 0.25
# Below this many standard deviations a total may be noise alone.
_SURE: Final = 2.5
_LOST: Final = (
    "the search ended before it reached the mean, so the first eigenvalue is mostly the distance left to it. Pass "
    "an origin near the mean, or the bounds that `eigenveil bounds` finds"
)
# The total rounding error, as a share of the sensitivity: half of it for eigenvalues, half for what is done before and after.
_OFF: Final = 2.0**-12
# The trace and the number of people are clipped as if no more people than these were there, to bound how they are rounded.
_MOST_PEOPLE: Final = 2.0**34
# The eigenvalues of a larger matrix would take more than a few minutes and a few GB.
_MOST_COLUMNS: Final = 10_000


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReleasedSpectrum(Text):
    """What `released_spectrum` released: a `spectrum` for the planner, None where noise hides all of it.

    `why` says why there is none, or has remarks on it. `people` is the number of people, with standard deviation
    `people_error`, zero where the number is public.
    """

    spectrum: Spectrum | None
    row_bound: float
    people: float
    people_error: float
    why: str
    guarantee: Guarantee
    ledger: Ledger | None

    def _lines(self) -> Iterator[str]:
        if self.spectrum is None:
            yield f"No spectrum: {self.why}."
        else:
            shown = ", ".join(f"{value:.3g}" for value in self.spectrum.values[:8])
            more = ", ..." if self.spectrum.dim > 8 else ""
            yield f"spectrum: {shown}{more} of row_bound^2, each give or take {self.spectrum.error:.2g}"
            if self.why:
                yield f"{self.why[0].upper()}{self.why[1:]}."
            people = f"{self.people:.0f} people" + (f", give or take {self.people_error:.0f}" if self.people_error else "")
            yield f"mean squared norm: {self.spectrum.bound_usage:.2g} of row_bound^2 (fill); {people}"


@parameters()
class ReleaseSpectrum(AskedOfRows, SpectrumParams):
    """The parameters of `released_spectrum`."""


@takes(ReleaseSpectrum)
@ignore_float_errors
def released_spectrum(
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
    row_bound: float | None = None,
    column_bounds: Any = None,
    center: Literal["private"] | Vector | None = "private",
    origin: Numbers | None = None,
    mean_bound: float | None = None,
    scale: Numbers | None = None,
    ledger: Ledger | None = None,
) -> ReleasedSpectrum:
    """Release the spectrum of rows `X`, (n, d), clipped as a fit would clip them, for `eigenveil.plan`.

    Pass the same bounds as the planned fit will have. This has its own cost: pass the same `ledger` to it and to the
    fit, and their costs add up.

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
    row_bound : float or None, default None
        Norm that rows are clipped to, around the mean. Use the value of the planned fit. You must know it without
        looking at the data.
    column_bounds : (low, high) or None, default None
        Entries are clipped to this range. One of the two bounds is enough, and with both, both hold. Low and high are
        each a number, or one per column.
    center : "private", list, array or None, default 'private'
        private: find the mean first, for a quarter to two thirds of the budget. center=None: leave rows where they
        are. Or public numbers, one per column.
    origin : float, list, array or None, default None: zero, or the middle of the column bounds
        Where to look for the mean: one number, or one per column.
    mean_bound : float or None, default None: found in up to three steps
        How far from the origin rows may lie while the mean is found.
    scale : float, list, array or None, default None
        Public units: columns are divided by this before norms are taken and bounded. One number, or one per column.
    ledger : Ledger or None, default None
        Shared by several fits on the same people, so that their costs add up against one budget.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((20_000, 4)) * [3, 2, 1, 1]
    >>> found = released_spectrum(rows, epsilon=0.5, delta=1e-6, row_bound=8.0, random_state=0)
    >>> found.spectrum.values.round(2).tolist()  # 9/64, 4/64, 1/64 and 1/64, a little less by clipping
    [0.14, 0.06, 0.02, 0.02]
    """
    params = keywords_in(locals(), ReleaseSpectrum)
    release = SmallRelease.of(X, params)
    dim, near = release.dim, release.neighbours
    require_param(
        2 <= dim <= _MOST_COLUMNS, f"{{X}} has {dim} column(s), and a spectrum can be released for 2 to {_MOST_COLUMNS} columns"
    )
    bounds = RowBounds.of(params, dim, private=True, sparse=release.rows.sparse, names=release.columns)
    # A bound is required even without a budget, but then no sensitivity is claimed from it.
    bounds = replace(bounds, claimed=release.budget is not None)
    where = center_of(params.center, dim)
    with release.reserved("this spectrum") as paid:
        middle, left, doubt, factors = _center(paid, bounds, where)
        domain = bounds.around(middle.center)
        private = bounded_spectrum(release.rows, domain=domain, neighbours=near, counted=middle.people is None, factors=factors)
        released = paid.mechanism().release(private, label="spectrum", share=left)
    return _read(
        paid,
        domain,
        released,
        middle.people,
        noise_inflation=1.0 if factors is None else float(factors.max()),
        noise=release.scale(1.0, share=left),
        doubt=doubt,
        # With a bound on the mean there is one step only, and a mean far out in it means nothing.
        lost=middle.far and bounds.search,
        rows=bounds.known(where, norm=domain.radius),
    )


def bounded_spectrum(
    rows: Rows, *, domain: Domain, neighbours: Neighbours, counted: bool, factors: Array | None = None
) -> Bounded:
    """Eigenvalues, largest first, the trace, and if `counted` the number of people, scaled to a joint sensitivity of one.

    Proof. Sorted eigenvalues of symmetric matrices move by no more than the matrices: sum_i (v_i(A) - v_i(B))^2 <=
    ||A - B||_F^2 (Hoffman and Wielandt 1953). One person moves the Gram matrix by at most its sensitivity, the trace
    by at most B^2, and the count by one. Each part is divided by its sensitivity and multiplied by the root of its
    share. The shares sum to one, so the whole vector moves by at most sqrt(sum of shares) = 1. The trace is the sum
    of the eigenvalues, but released on its own it has the noise of one number and not of d.

    Where entries may be missing, the Gram matrix is multiplied entry by entry with public `factors` f, (d, d), symmetric and
    positive. What one person adds is then multiplied too, so its Frobenius norm grows by at most max f, and so does that of a
    difference of two people. The trace is a sum of diagonal entries, none of them negative, and grows by at most max f as well.
    Where incomplete rows are left out, those that are left are counted, and one person changes their number by at most one.

    Rounding. Eigenvalues in floating point are off by up to 8 d 2^-53 times the norm of the matrix, which grows with
    the number of people. That bound is LAPACK's own. It is checked by tests and not proved, so the guarantee names it
    as an assumption (`eigenveil.privacy.facts.ON_LAPACK`). Therefore the matrix is first projected onto a ball of public radius
    R, `_room` times its sensitivity. A projection moves no two matrices apart. It changes nothing unless more people than
    that are at their bound. The error of d eigenvalues, on both sides, is then at most 2^-13 of the sensitivity.

    Everything else is off by a few u = 2^-53 of R. Products with `factors`, the projection and the scaling take u each,
    and so does the quotient in the projection. Its norm is the root of a sum by pairs, off by at most (8 + log2 d) u, or
    by (d^2 + 2) u / 2 where that is less. Together this is less than 8 d^(3/2) u on each side, another 2^-13 of the
    sensitivity. It leaves room for the trace and the count, which are clipped at 2^34 people: 4 u 2^34 of their
    sensitivities, times the roots of their shares. The sensitivity stated includes all of it.

    >>> from eigenveil.data.rows import DenseRows
    >>> rows, domain = DenseRows(np.eye(3)), Domain(dim=3, radius=1.0)
    >>> bounded_spectrum(rows, domain=domain, neighbours=Neighbours.ADD_REMOVE, counted=True)
    Bounded(shape=(5,), sensitivity=1.000244140625)
    """
    gram = bounded_gram(rows, domain=domain, neighbours=neighbours)
    noise_inflation = 1.0 if factors is None else float(factors.max())
    matrix = gram.value if factors is None else gram.value * factors
    values = np.linalg.eigvalsh(_projected(matrix, _room(domain.dim) * gram.sensitivity * noise_inflation))[::-1]
    # No diagonal entry is negative, so the sum is as exact as its terms.
    trace = min(math.fsum(matrix.diagonal()), _MOST_PEOPLE * domain.trace_sensitivity(neighbours) * noise_inflation)
    by_value, by_trace, by_count = _factors(domain, neighbours, counted=counted, noise_inflation=noise_inflation)
    # Scaled by their sensitivities and shares, so that one release with unit noise serves all three.
    parts = [values * by_value, np.array([trace * by_trace])]
    if counted:
        gaps = domain.gaps if domain.gaps is not None and domain.gaps.drops else None
        number = bounded_count(rows, neighbours=neighbours) if gaps is None else bounded_kept(rows, gaps=gaps)
        parts.append(by_count * np.minimum(np.atleast_1d(number.value), _MOST_PEOPLE))
    return Bounded(np.concatenate(parts), 1.0 + _OFF)


def _room(dim: int) -> float:
    """The largest norm of a matrix over its sensitivity at which eigenvalues are exact enough: 2 sqrt(d) 8 d 2^-53
    room = 2^-13."""
    return _OFF / 2 / (16 * dim * math.sqrt(dim) * 2.0**-53)


def _projected(matrix: Array, radius: float) -> Array:
    """The nearest matrix of Frobenius norm at most `radius`. Without privacy that is infinite, and nothing is done."""
    if math.isinf(radius):
        return matrix
    # In a public power of two, which rounds nothing, so that squares neither overflow nor vanish. By numpy's sum, which adds
    # in pairs: a dot product is off by more, the more columns there are.
    unit = 2.0 ** math.frexp(radius)[1]
    size = unit * math.sqrt(float(np.square(matrix / unit).sum()))
    return matrix if size <= radius else matrix * (radius / size)


def denoised(values: Array, *, noise: float, total: float, total_noise: float) -> Array:
    """The most likely eigenvalues, (d,), that decrease, are not negative and agree with a separately released total.

    They minimise ||x - values||^2 / noise^2 + (sum x - total)^2 / total_noise^2. At the minimum, x is the isotonic
    regression of values - t, clipped at zero, with t = (noise / total_noise)^2 (sum x - total). The left side rises
    with t and the right side falls, so bisection finds t.

    >>> denoised(np.array([3.0, 1.0, -1.0]), noise=1.0, total=4.0, total_noise=1e-6).round(3).tolist()
    [3.0, 1.0, 0.0]
    """
    if noise == 0:
        return np.maximum(values, 0.0)
    weight = (noise / total_noise) ** 2

    def fitted(shift: float) -> Array:
        return np.asarray(np.maximum(isotonic_regression(values - shift, increasing=False).x, 0.0))

    # The shift lies between these.
    widest = float(np.abs(values).max()) + weight * (abs(total) + float(np.abs(values).sum())) + 1.0
    low, high = -widest, widest
    # A hundred halvings are more than float64 has digits.
    for _ in range(100):
        middle = (low + high) / 2
        if weight * (float(fitted(middle).sum()) - total) > middle:
            low = middle
        else:
            high = middle
    return fitted(high)


def _factors(
    domain: Domain, neighbours: Neighbours, *, counted: bool, noise_inflation: float = 1.0
) -> tuple[float, float, float]:
    """Factors of eigenvalues, trace and count; all 1 where no sensitivity is claimed.

    By dividing entries, the first two sensitivities may have become so much larger, `noise_inflation`.
    """
    if not math.isfinite(domain.radius):
        return 1.0, 1.0, 1.0
    count = _COUNT_SHARE if counted else 0.0
    return (
        math.sqrt(1 - _TRACE_SHARE - count) / (domain.gram_sensitivity(neighbours) * noise_inflation),
        math.sqrt(_TRACE_SHARE) / (domain.trace_sensitivity(neighbours) * noise_inflation),
        math.sqrt(count),
    )


def _center(release: SmallRelease, bounds: RowBounds, where: Any) -> tuple[Center, float, float, Array | None]:
    """The center that rows are clipped around, the share of the budget that is left, and the norm of the noise on the
    sum of rows. Where entries may be missing, also the factors, (d, d), of the Gram matrix.

    The center comes with the number of people, where that is public.
    """
    people, multiplier = release.public_people(), release.multiplier
    observed_share = _OBSERVED_SHARE if release.gaps is not None and release.gaps.divides else 0.0
    count = 0.01 if people is None else 0.0
    if not isinstance(where, str):
        center = Center(center=where, people=people, steps=0, far=False)
        if observed_share == 0:
            return center, 1.0, 0.0, None
        # Nothing is released before the spectrum that these counts could go along with.
        task = Totals(
            domain=bounds.around(where),
            neighbours=release.neighbours,
            count_weight=count,
            observed_weight=observed_share,
            name="observed entries",
        )
        private = task.private(task.ask(None), release.rows)
        totals = task.update(None, release.mechanism().release(private, label=task.name, share=count + observed_share))
        counted = replace(center, people=totals.count if people is None else people, observed=totals.observed)
        return center, 1.0 - count - observed_share, 0.0, _divisors(counted, bounds, multiplier)
    split = Split(mean=_MEAN_SHARES if bounds.search else (_MEAN_SHARE,), count=count, extra=0.0, observed=observed_share)
    search = CenterSearch(bounds=bounds, neighbours=release.neighbours, split=split, people=people, multiplier=multiplier)
    result = run_pooled(search, release.rows, release.mechanism())
    # The number of people that came with the mean is rough. It is released again, more precisely.
    entry = release.multiplier * sum_sensitivity(bounds.mean_bound, release.neighbours)
    doubt = entry * math.sqrt(bounds.dim / split.mean[result.steps - 1])
    center = Center(center=result.center, people=people, steps=result.steps, far=result.far)
    return center, split.main(result.steps), doubt, _divisors(result, bounds, multiplier)


def _divisors(center: Center, bounds: RowBounds, multiplier: float) -> Array | None:
    """One over the share of people, (d, d), who have both of two columns; None where nothing is divided."""
    rates = center.rates(bounds, multiplier=multiplier, share=_OBSERVED_SHARE)
    return None if rates is None else 1.0 / np.maximum(rates.of_pairs(), _LEAST_RATE if multiplier > 0 else 0.0)


def _read(
    release: SmallRelease,
    domain: Domain,
    released: Array,
    people: float | None,
    *,
    noise_inflation: float,
    noise: float,
    doubt: float,
    lost: bool,
    rows: TableRows,
) -> ReleasedSpectrum:
    """The spectrum in units of the bound, from a release with this `noise` on a sensitivity of one.

    - `noise_inflation`: the eigenvalues are of a matrix whose sensitivity is so much larger, because entries were divided.
    - `doubt` is the noise on the sum of rows that gave the center.
    - `lost`: the search ended before it reached the mean.
    - `rows` is what the guarantee says of the rows.
    """
    dim, square = release.dim, domain.radius**2
    by_value, by_trace, by_count = _factors(domain, release.neighbours, counted=people is None, noise_inflation=noise_inflation)
    values, trace = released[:dim] / by_value, float(released[dim] / by_trace)
    number = float(released[dim + 1] / by_count) if people is None else people
    off = noise / by_count if people is None else 0.0
    smooth = denoised(values, noise=noise / by_value, total=trace, total_noise=noise / by_trace)
    # The largest of d errors is about sqrt(2 ln d) standard deviations.
    sure = math.sqrt(_SURE**2 + 2 * math.log(dim))
    spectrum, why = None, ""
    if number < max(1.0, 2 * _SURE * off):
        why = (
            f"the table is too small for this budget. It seems to have {max(number, 0):.0f} people, and noise hides "
            f"up to {_SURE * off:.0f}. Raise epsilon"
        )
    elif float(smooth.sum()) <= _SURE * noise / by_trace and smooth[0] <= sure * noise / by_value:
        why = "noise hides the whole spectrum at this budget. Raise epsilon, or use a smaller bound on rows"
    else:
        shares = smooth / (number * square)
        # Noise on the number of people can make row norms seem to exceed the bound.
        shares = shares / max(1.0, float(shares.sum()))
        error = noise / by_value / (number * square)
        spectrum = Spectrum(values=shares, source=_source(release), spread=off / number, error=error)
        extra = min(1.0, (doubt / number) ** 2 / square)
        if lost:
            why = _LOST
        elif extra > 2 * error:
            why = (
                f"the mean is known only roughly at this budget, which can add up to {extra:.2g} to the first "
                "eigenvalue. Pass an origin near the mean, or raise epsilon"
            )
    # Where incomplete rows are left out, the number is that of the others, and has words of its own.
    counted = ("the number of people",) if people is None and rows.gaps != "drop" else ()
    return ReleasedSpectrum(
        spectrum=spectrum,
        row_bound=domain.radius,
        people=max(number, 0.0),
        people_error=off,
        why=why,
        guarantee=release.guarantee(
            (*EIGENVALUES, *counted, *release.counted_entries), rows, people=number, assumes=(ON_LAPACK,)
        ),
        ledger=release.ledger,
    )


def _source(release: SmallRelease) -> str:
    if release.budget is None:
        return "from the rows themselves, exact and not private"
    seeded = ", with a known seed: NOT PRIVATE" if release.noise.reproducible else ""
    return f"released with epsilon = {release.budget.epsilon:g}, delta = {release.budget.delta:g}{seeded}"
