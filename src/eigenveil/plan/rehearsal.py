"""What is rehearsed beside the methods: the search for a mean, and streams that are released block by block."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from typing import Final, Literal, Self, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours, sum_sensitivity
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, merge, orthonormal
from eigenveil.linalg.blas import blas_threads
from eigenveil.methods import MethodPlan, covariance, method_of
from eigenveil.methods.base import Scene, gaussian
from eigenveil.params.declare import as_call
from eigenveil.plan.candidates import Candidate, candidate_of
from eigenveil.plan.clipping import Norms, kept_by_clipping
from eigenveil.plan.facts import Facts, FitParams, Setting, estimator_of, parts_of
from eigenveil.plan.spectrum import Spectrum, condensed
from eigenveil.plan.streams import StreamPlan
from eigenveil.tasks.fit.gaps import Split
from eigenveil.tasks.totals import shrunk
from eigenveil.trackers import SlicedTracker, SumTerms

# The mean is searched for again if it seems to lie this far out, in units of row_bound (`eigenveil.tasks.lies_far`).
_FAR: Final = 0.3
# In a search for a bound around a mean that lies far out, the first ball is this many times the last. The last steps are
# repeated if the error of the mean is more than this over the bound (`eigenveil.tasks.fit.search`).
_WIDE, _POOR = 4.0, 1 / 3
# Blocks that are released with their own noise: `_COLUMNS` over the number of columns, within the two limits. Further
# blocks reuse that noise with other signs.
_COLUMNS, _FEWEST, _MOST_RELEASED = 2400, 10, 48
# After this many blocks the merged space has converged well enough.
_MOST_BLOCKS: Final = 500
# A last block with a smaller share of the rows than this is a rounding error.
_NOTHING_LEFT: Final = 1e-9


def judged(basis: Array, values: Array) -> tuple[float, float]:
    """The captured variance of `basis`, (d, k), over the best possible, and its largest sine to the best space.

    `values`, (d,), are the eigenvalues along the axes, largest first.

    >>> judged(np.eye(3)[:, 1:2], np.array([4.0, 1.0, 0.0]))
    (0.25, 1.0)
    """
    rank = basis.shape[1]
    captured = float(values @ np.square(basis).sum(axis=1) / values[:rank].sum())
    # The best space is spanned by the first axes, so the cosines are singular values of the first rows.
    cosine = float(np.linalg.svd(basis[:rank], compute_uv=False)[-1])
    return min(captured, 1.0), math.sqrt(max(0.0, 1.0 - cosine**2))


def rehearse_blocks(scene: Scene, *, share: float, oversample: int) -> Array:
    """The directions, (d, k), of a stream whose blocks are released on their own and merged one after another.

    Each block has this `share` of the rows, and the last one has what is left. A block is released in slices of
    columns, so it matters how much of a direction each column has. The rows are rotated at random, as columns are
    rarely aligned with the directions. The real tracker releases the first blocks and the last one. The others reuse
    that noise with other signs of the directions, for which its law is the same.
    """
    noise, rng = Noise.seeded(scene.seed), np.random.default_rng(scene.seed)
    rotation = orthonormal(rng.standard_normal((scene.dim, scene.dim)))
    whole = math.floor(1 / share + 1e-9)
    left = 1 - whole * share
    count = min(whole, max(_FEWEST, min(_MOST_RELEASED, _COLUMNS // scene.dim)))
    released = [_released(scene, share, oversample, rotation, noise) for _ in range(count)]
    spaces = released[:]
    for block in range(count, min(whole, _MOST_BLOCKS)):
        drawn = released[block % count]
        spaces.append(Subspace(drawn.basis * rng.choice([-1.0, 1.0], scene.dim)[:, None], drawn.values))
    if left > _NOTHING_LEFT:
        spaces.append(_released(scene, left, oversample, rotation, noise))
    width = min(scene.rank + oversample, scene.dim)
    return reduce(lambda joint, space: merge(joint, space, rank=width), spaces).basis[:, : scene.rank]


def found_center(
    dim: int,
    *,
    people: float,
    shares: tuple[float, ...],
    multiplier: float,
    neighbours: Neighbours,
    far: bool,
    rng: np.random.Generator,
) -> tuple[Array, int]:
    """The error of the private mean, (d,), in units of row_bound, and the number of steps the search took, of these
    `shares`.

    An error e adds people * e e^T to the Gram matrix. If `far`, the mean lies so far out that the search takes a
    second step from there, where noise lets it see that. Otherwise it lies half as far out as would trigger that.
    """
    entry = multiplier * sum_sensitivity(1.0, neighbours) / people
    sizes = [entry / math.sqrt(share) * math.sqrt(dim) for share in shares]
    errors = [size / math.sqrt(dim) * rng.standard_normal(dim) for size in sizes[:2]]
    mean = rng.standard_normal(dim)
    mean *= (2 if far else 0.5) * _FAR / float(np.linalg.norm(mean))
    if sizes[0] >= 1:
        # The noise is as large as the ball, so the search stays where it started.
        return mean, 1
    first = shrunk(mean + errors[0], noise=sizes[0]) - mean
    if len(shares) == 1 or sizes[0] >= _FAR or not far:
        return first, 1
    return first + shrunk(errors[1] - first, noise=sizes[1]), 2


def found_inside(
    dim: int,
    *,
    people: float,
    shares: tuple[float, ...],
    steps: tuple[int, ...],
    multiplier: float,
    neighbours: Neighbours,
    far: bool,
    rng: np.random.Generator,
) -> tuple[Array, int]:
    """The same where a bound or units are found, too: `steps` release the mean, each inside what was found before it.

    If `far`, the first mean of a search for a bound is of rows in a ball several times as large. If that leaves it
    poor, the last two steps are repeated, as in `BoundSearch`.
    """
    entry = multiplier * sum_sensitivity(1.0, neighbours) / people
    sizes = [entry / math.sqrt(shares[step]) * math.sqrt(dim) for step in steps]
    last, start = len(sizes) - 1, np.zeros(dim)
    if len(sizes) > 1:
        reach = _WIDE if far else 1.0
        doubt = min(reach, reach * sizes[0])
        # The error before the last mean: noise, or as far as the ball reaches where noise is larger.
        start = rng.standard_normal(dim)
        start *= min(doubt, 1.0) / float(np.linalg.norm(start))
        last = 2 if doubt > _POOR and min(1.0, sizes[1]) < doubt / 2 else 1
    if sizes[last] >= 1:
        return start, steps[last] + 1
    error = sizes[last] / math.sqrt(dim) * rng.standard_normal(dim)
    return start + shrunk(error - start, noise=sizes[last]), steps[last] + 1


def _released(scene: Scene, share: float, oversample: int, rotation: Array, noise: Noise) -> Subspace:
    """What a block with this `share` of the rows releases, in coordinates along the directions of the rows.

    Each row stands for many people, so its norm exceeds one. As in `rows_of`, the noise is that of rows in the unit
    ball.
    """
    rows = np.sqrt(scene.gram * share)[:, None] * rotation.T
    radius = max(1.0, math.sqrt(float(scene.gram[0]) * share) * (1 + 1e-9))
    terms = SumTerms(domain=Domain(dim=scene.dim, radius=radius), neighbours=scene.neighbours, center=False)
    tracker = SlicedTracker(rank=scene.rank, terms=terms, oversample=oversample)
    space = tracker.step(tracker.start(scene.dim), rows, gaussian(scene.multiplier / radius**2, noise)).space
    return Subspace(rotation.T @ space.basis, space.values)


# (up to so many columns, fewest fits, most fits). With many columns one fit is much like the next.
_FITS: Final = ((150, 16, 120), (400, 5, 12), (1500, 3, 6), (8000, 2, 2), (math.inf, 1, 1))
# Fits continue until the mean is known this well, but never below the fewest, as the first few may agree by chance.
# Slow trials get fewer: those with many products, and those that release all pairs of columns many times.
_SURE, _SURE_OF_SINE = 0.005, 0.02
_MANY_PRODUCTS: Final = 50
_SLOW: Final = ((30, 80), (64, 16), (200, 5), (400, 2), (math.inf, 1))
# Extra fits where the spectrum is in doubt, (up to so many columns, fits), and the most for slow trials.
_DOUBTS: Final = ((150, 24), (400, 12), (1500, 6), (math.inf, 3))
_SLOW_DOUBTS: Final = 4
# Slow trials are rehearsed on at most this many columns, and on at most this many for other spectra.
_SLOW_COLUMNS, _DOUBTED_COLUMNS = 800, 120
_FOR_COMPARISON: Final = 2
# For a glimpse: (up to so many columns, fits).
_GLIMPSES: Final = ((150, 4), (1500, 2), (math.inf, 1))
# Noise levels that differ by less than this, relatively, count as equal and are rehearsed once.
_ALIKE: Final = 0.004
# A stream that releases sums is rehearsed as one release, with the noise of its last sum.
_ONE_RELEASE: Final = MethodPlan(method=covariance.METHOD.name, width=0, rounds=1, shares=(1.0,))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalTrial:
    """All that a rehearsed fit depends on and nothing else, so that equal trials have equal outcomes.

    `noise_inflation` is the noise on the components over a curator's, and `mean_louder` the same for the search before them.
    `means` are the steps of the search that release a mean inside a bound or units found by the others. It is None
    where nothing but the mean is searched for.
    """

    spectrum: Spectrum
    rank: int
    people: int
    mu: float
    plan: MethodPlan | StreamPlan
    split: Split
    neighbours: Neighbours
    noise_inflation: float
    mean_louder: float
    sites: int
    oversample: int
    means: tuple[int, ...] | None

    @classmethod
    def of(cls, facts: Facts, candidate: Candidate) -> Self:
        """The trial of a planned method."""
        plan, split, merges = candidate.plan, candidate.split, False
        if isinstance(plan, StreamPlan):
            # A stream subtracts its mean from released sums, so its error hardly matters. The rough mean takes one
            # step or two: charge the average. A search for a bound or units takes its usual steps.
            fewest = 1 if facts.seeks is None else split.usual
            split = Split(mean=(), count=0.0, extra=(sum(split.mean[:fewest]) + sum(split.mean[: split.usual])) / 2)
            plan = plan if _sliced(plan) else _ONE_RELEASE
        else:
            merges = method_of(plan.method).averages_subspaces
            plan = replace(plan, reason="")
        # Which steps of the search release a mean, where a bound or units are searched for, too.
        means = {"bound": tuple(range(1, len(split.mean), 2)), "units": (len(split.mean) - 1,)}.get(facts.seeks or "")
        # Rounded, so that settings with almost the same noise are equal trials and hit the cache.
        noise_inflation = math.exp(round(math.log(candidate.noise_inflation) / _ALIKE) * _ALIKE)
        spectrum = facts.spectrum
        if facts.seeks == "bound":
            spectrum = spectrum.in_found_bound(facts.people, facts.budget.mu / candidate.mean_louder)
        return cls(
            spectrum=spectrum,
            rank=facts.rank,
            people=facts.people,
            mu=facts.budget.mu,
            plan=plan,
            split=split,
            # Blanking a row changes a sum as much as adding one does: both relations share a rehearsal.
            neighbours=Neighbours.ZERO_OUT if candidate.neighbours is Neighbours.ADD_REMOVE else candidate.neighbours,
            noise_inflation=noise_inflation,
            mean_louder=candidate.mean_louder if merges else noise_inflation,
            sites=facts.sites if merges else 1,
            oversample=candidate.oversample if isinstance(plan, StreamPlan) else 0,
            means=means,
        )

    @property
    def fits(self) -> tuple[int, int]:
        """The fewest and the most fits."""
        dim = self.spectrum.dim
        min_fits, max_fits = next((min_fits, max_fits) for columns, min_fits, max_fits in _FITS if dim <= columns)
        if self.slow:
            max_fits = min(max_fits, next(fits for columns, fits in _SLOW if dim <= columns))
        elif isinstance(self.plan, MethodPlan):
            leaf = method_of(self.plan.method)
            max_fits = min(max_fits, _MANY_PRODUCTS) if leaf.keeps_products or leaf.finds_one_by_one else max_fits
        return min(min_fits, max_fits), max_fits

    @property
    def doubts(self) -> int:
        """Extra fits with other spectra."""
        if self.spectrum.spread == 0 and self.spectrum.error == 0 and not self.spectrum.assumed:
            return 0
        fits = next(fits for columns, fits in _DOUBTS if self.spectrum.dim <= columns)
        return min(fits, _SLOW_DOUBTS) if self.slow else fits

    @property
    def slow(self) -> bool:
        """Whether a fit releases all pairs of columns many times."""
        return self.sites > 1 or _sliced(self.plan)


@lru_cache(maxsize=64)
def tried(trial: RehearsalTrial, fits: int | None, seed: int) -> tuple[Array, Array]:
    """The captured variance and the largest sine of rehearsed fits: (fits, 2) as given, and (more, 2) in doubt.

    The first array uses the spectrum as it stands, the second other plausible spectra; it is empty where there is no
    doubt. `fits` = None rehearses as many as it takes. Results are cached, because some settings differ in name only.
    """
    min_fits, max_fits = trial.fits if fits is None else (fits, fits)
    values, rng = trial.spectrum.values, np.random.default_rng(seed)
    plain: list[tuple[float, float]] = []
    # Many small matrices: BLAS threads would only wait for each other.
    with blas_threads(1):
        while len(plain) < min_fits or (len(plain) < max_fits and not _sure(plain)):
            plain.append(_plain(trial, seed + len(plain)))
        others = [trial.spectrum.drawn(rng) for _ in range(trial.doubts)]
        doubted = np.array([_fit(trial, other, seed + at, columns=_DOUBTED_COLUMNS) for at, other in enumerate(others)])
        if others and trial.slow and len(values) > _DOUBTED_COLUMNS:
            # Fewer columns give slightly different values, so only the spread is taken from them, around the mean of
            # the plain fits.
            alike = [_fit(trial, values, seed + at, columns=_DOUBTED_COLUMNS) for at in range(_FOR_COMPARISON)]
            doubted = np.clip(doubted + np.mean(plain, axis=0) - np.mean(alike, axis=0), 0.0, 1.0)
    return _read_only(plain), _read_only(doubted)


@lru_cache(maxsize=1024)
def _plain(trial: RehearsalTrial, seed: int) -> tuple[float, float]:
    # Kept one by one, so that whoever asks for more fits of a trial pays for the new ones alone.
    return _fit(trial, trial.spectrum.values, seed, columns=_SLOW_COLUMNS)


@lru_cache(maxsize=64)
def glimpse(trial: RehearsalTrial) -> float:
    """The expected captured variance, from very few fits: enough to search for where it becomes fair."""
    count = next(fits for columns, fits in _GLIMPSES if trial.spectrum.dim <= columns)
    with blas_threads(1):
        fits = [_fit(trial, trial.spectrum.values, at, columns=_DOUBTED_COLUMNS)[0] for at in range(count)]
    return float(np.mean(fits))


def _read_only(fits: list[tuple[float, float]] | Array) -> Array:
    """As a read-only array, (fits, 2), so that the cache can share it."""
    array = np.array(fits, dtype=np.float64).reshape(-1, 2)
    array.flags.writeable = False
    return array


def _sure(fits: list[tuple[float, float]]) -> bool:
    # The factor 1 + 2 / n widens the reach of few fits, which may agree by chance.
    reach = np.std(fits, axis=0, ddof=1) * (1 + 2 / len(fits)) / math.sqrt(len(fits))
    return bool((reach <= [_SURE, _SURE_OF_SINE]).all())


def _fit(trial: RehearsalTrial, values: Array, seed: int, *, columns: int) -> tuple[float, float]:
    """The captured variance and the largest sine of one rehearsed fit, a slow one on at most `columns` columns.

    With fewer columns random directions capture more, so only what is captured beyond random directions is carried
    over.
    """
    if trial.slow:
        max_columns = max(columns, 2 * trial.rank)
        if len(values) > max_columns:
            fewer = condensed(values, max_columns, rank=trial.rank)
            captured, sine = _outcome(trial, fewer, seed, noise_inflation=math.sqrt(len(values) / max_columns))
            base, floor = (Spectrum(values=drawn, source="").at_random(trial.rank) for drawn in (fewer, values))
            beyond = (captured - base) / (1 - base) if base < 1 else 1.0
            return min(1.0, max(0.0, floor + beyond * (1 - floor))), sine
    return _outcome(trial, values, seed, noise_inflation=1.0)


def _outcome(trial: RehearsalTrial, values: Array, seed: int, *, noise_inflation: float) -> tuple[float, float]:
    plan = trial.plan
    shift, steps = None, 0
    if trial.split.mean and trial.means == ():
        # Norms around a center that needs no search.
        steps = len(trial.split.mean)
    elif trial.split.mean:
        search = found_center if trial.means is None else partial(found_inside, steps=trial.means)
        error, steps = search(
            len(values),
            people=trial.people,
            shares=trial.split.mean,
            multiplier=noise_inflation * trial.mean_louder / trial.mu,
            neighbours=trial.neighbours,
            # How far out the mean is, is not known, so every other fit has it far out.
            far=seed % 2 == 1,
            rng=np.random.default_rng([seed, 1]),
        )
        shift = math.sqrt(trial.people) * error
    multiplier = noise_inflation * trial.noise_inflation / (trial.mu * math.sqrt(trial.split.main(steps)))
    scene = Scene(
        gram=trial.people * values, shift=shift, rank=trial.rank, neighbours=trial.neighbours, multiplier=multiplier, seed=seed
    )
    if isinstance(plan, StreamPlan):
        basis = rehearse_blocks(scene, share=plan.block / trial.people, oversample=trial.oversample)
    else:
        fitting = replace(plan, width=min(plan.width, len(values)))
        basis = method_of(plan.method).simulate(fitting, scene, sites=trial.sites)
    return judged(basis, values)


def _sliced(plan: MethodPlan | StreamPlan) -> bool:
    return isinstance(plan, StreamPlan) and plan.kind.apart


# What is captured is a share of the variance that exact PCA with as many components has of these rows.
Denominator = Literal["all rows", "clipped rows"]
# Nine of ten fits lie within this many standard deviations. No interval is narrower than `_LEAST` on either side.
_NINE_OF_TEN, _LEAST = 1.7, 0.005
# How often what clipping costs is drawn, and the seed, which is always the same: settings that differ little compare well.
_CLIPPINGS, _CLIPPINGS_SEED = 500, 2026
# Spectra of real tables fall faster than guesses more often than slower.
_UPWARDS: Final = 2.0
# Captured variances are spread on the scale of their log odds, and those so close to 0 or 1 count as so close.
_CERTAIN: Final = 1e-5
# Beyond `_SLICE` columns `SlicedTracker` uses several slices, and then `_BY_COLUMNS` depends on which columns vary.
_SLICE, _BY_COLUMNS = 64, 0.05


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """The expected value, and an interval that should contain nine fits of ten, given noise and doubt about the
    spectrum.

    >>> print(Interval(0.91, 0.87, 0.94))
    0.91 (0.87 to 0.94)
    """

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        require(
            self.low <= self.value <= self.high, f"value must lie from low to high, got {self.low}, {self.value}, {self.high}"
        )

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a `method`, named "setting/algorithm", should find, and what it costs.

    - `captured` is the variance along the directions found over that along the best ones, 0 to 1. Both are variances
      `of` all rows, as they are before clipping, or of the clipped rows alone. `clipped` is of the clipped rows.
    - `sine` is the largest sine between the two spaces.
    - `nothing` is the captured variance of random directions.
    - `noise` is the expected spectral norm of the noise on the Gram matrix, in units of row_bound^2.
    - `memory` is in bytes at one place, and `traffic` in bytes that one site sends in total.
    - `rounds` is the most rounds.
    - `min_people` is about how many people the search for a row bound or units needs, 0 where nothing is searched for.
    - `refused` says why the method is not possible here, and is "" where it is.
    - `guarantee` says against whom it protects.
    - `params` are the estimator's parameters, and `unknown` names those of them that only the caller knows.
    """

    method: str
    captured: Interval
    clipped: Interval
    sine: Interval
    nothing: float
    noise: float
    memory: int
    rounds: int
    traffic: int
    min_people: int
    refused: str
    guarantee: str
    params: FitParams
    unknown: tuple[str, ...]
    of: Denominator = "clipped rows"

    @property
    def setting(self) -> Setting:
        """Who is trusted with what: the first part of the name."""
        return parts_of(self.method)[0]

    @property
    def call(self) -> str:
        """The Python call that runs it, with three dots for what is unknown."""
        name, choosing = estimator_of(self.params)
        return as_call(self.params, name, always=choosing, unknown=self.unknown)

    @property
    def rows(self) -> str:
        """The rows that a captured variance is a share of."""
        return "all rows before clipping" if self.of == "all rows" else "the clipped rows"


def forecast(facts: Facts, method: str, *, fits: int | None = None, seed: int = 0) -> Forecast:
    """What `method` should find: the mean and the spread of `fits` rehearsed fits.

    Where the spectrum is in doubt, more fits are rehearsed with other plausible spectra. The same `seed` draws the
    same noise for every method and budget, so differences between them are not chance.

    >>> from eigenveil.plan.spectrum import Spectrum
    >>> facts = Facts(dim=20, rank=2, people=20_000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(20))
    >>> forecast(facts, "curator/covariance").captured.value > 0.9
    True
    """
    require(fits is None or fits >= 1, f"fits must be at least 1, got {fits}")
    candidate = candidate_of(facts, method)
    plain, doubted = tried(RehearsalTrial.of(facts, candidate), fits, seed)
    # A release in slices of columns depends on which columns vary, and nobody knows that beforehand.
    sliced = isinstance(candidate.plan, StreamPlan) and candidate.plan.kind.apart and facts.dim > _SLICE
    clipped, sine = (_interval(plain[:, at], doubted[:, at], more=_BY_COLUMNS * sliced) for at in range(2))
    captured = _with_clipping(clipped, facts) if facts.denominator == "all rows" else clipped
    return Forecast(
        method=method,
        captured=captured,
        clipped=clipped,
        sine=sine,
        nothing=facts.spectrum.at_random(facts.rank),
        noise=candidate.noise,
        memory=candidate.memory,
        rounds=candidate.rounds,
        traffic=candidate.traffic,
        min_people=candidate.min_people,
        refused=candidate.refused,
        guarantee=candidate.guarantee,
        params=candidate.params,
        unknown=candidate.unknown,
        of=facts.denominator,
    )


def curve(facts: Facts, method: str, epsilons: Sequence[float]) -> tuple[tuple[float, Forecast], ...]:
    """The forecast at each epsilon, all else the same. It answers "what would epsilon = 2 buy me?"."""
    return tuple((epsilon, forecast(replace(facts, budget=Budget(epsilon, facts.budget.delta)), method)) for epsilon in epsilons)


def _interval(plain: Array, doubted: Array, *, more: float) -> Interval:
    """An interval around the mean of the `plain` fits that covers nine of ten of them, and nine of ten `doubted`
    ones.

    `more` widens it on both sides.
    """
    value = float(plain.mean())
    deviation = float(plain.std(ddof=1)) if len(plain) > 1 else 0.0
    reach = max(_LEAST, _NINE_OF_TEN * (1 + 2 / len(plain)) * deviation) + more
    low, high = value - reach, value + reach
    if len(doubted):
        # Doubt is not symmetric, and log odds nearly are. A quantile of a few fits would lie within them.
        inside = np.clip(doubted, _CERTAIN, 1 - _CERTAIN)
        odds = np.log(inside / (1 - inside))
        away = _NINE_OF_TEN * (1 + 2 / len(odds)) * float(odds.std(ddof=1))
        ends = 1 / (1 + np.exp(-(float(odds.mean()) + away * np.array([-1.0, _UPWARDS]))))
        low, high = min(low, float(ends[0])), max(high, float(ends[1]) + _LEAST)
    return Interval(value, min(value, max(0.0, low)), max(value, min(1.0, high)))


def _with_clipping(captured: Interval, facts: Facts) -> Interval:
    """What is captured of all rows, from what is captured of the clipped ones and what clipping costs.

    The first is drawn from two half normal distributions with the ends of its interval as quantiles.
    """
    ratios = _kept(facts.norms, facts.unit, facts.people, facts.spectrum, units=facts.seeks == "units")
    away = np.random.default_rng(_CLIPPINGS_SEED + 1).standard_normal(_CLIPPINGS) / _NINE_OF_TEN
    reach = np.where(away < 0, captured.value - captured.low, captured.high - captured.value)
    # Found directions can be worse than random ones, where the longest rows point elsewhere.
    drawn = np.clip(captured.value + away * reach, 0.0, 1.0) * ratios
    low, value, high = np.quantile(drawn, [0.05, 0.5, 0.95]).tolist()
    # Fits that lose nothing by clipping are as likely as those in the middle.
    return Interval(value, low, max(high, captured.high))


@lru_cache(maxsize=64)
def _kept(norms: Norms | None, bound: float, people: int, spectrum: Spectrum, *, units: bool) -> Array:
    # Methods and budgets that are compared share these draws.
    ratios = kept_by_clipping(
        norms,
        bound=bound,
        units=units,
        people=people,
        values=spectrum.values,
        rng=np.random.default_rng(_CLIPPINGS_SEED),
        draws=_CLIPPINGS,
    )
    ratios.flags.writeable = False
    return ratios
