"""`tried`: rehearses one method several times, each time with new noise and, where it is in doubt, another
spectrum."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, Self, final

import numpy as np

from eigenveil.core.unit import Neighbours
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads
from eigenveil.methods import MethodPlan, covariance, method_of
from eigenveil.methods.scene import Scene
from eigenveil.plan.choose.stream import StreamPlan
from eigenveil.plan.forecast.facts import Facts
from eigenveil.plan.forecast.methods import Candidate
from eigenveil.plan.forecast.rehearsal import (
    found_center,
    found_inside,
    judged,
    rehearse_blocks,
)
from eigenveil.plan.spectrum import Spectrum, condensed
from eigenveil.tasks.fit.split import Split

__all__ = ["RehearsalTrial", "glimpse", "tried"]

# (up to so many columns, fewest fits, most fits). With many columns one fit is much like the next.
_FITS: Final = ((150, 16, 120), (400, 5, 12), (1500, 3, 6), (8000, 2, 2), (math.inf, 1, 1))
# Fits go on until the mean is known this well, but never below the fewest, as the first few may agree by chance.
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

    `louder` is the noise on the components over a curator's, and `mean_louder` the same for the search before them.
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
    louder: float
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
        # Rounded, so that settings with almost the same noise are equal trials and hit the cache.
        louder = math.exp(round(math.log(candidate.louder) / _ALIKE) * _ALIKE)
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
            louder=louder,
            mean_louder=candidate.mean_louder if merges else louder,
            sites=facts.sites if merges else 1,
            oversample=candidate.oversample if isinstance(plan, StreamPlan) else 0,
            means=_means(facts, split),
        )

    @property
    def fits(self) -> tuple[int, int]:
        """The fewest and the most fits."""
        dim = self.spectrum.dim
        least, most = next((least, most) for columns, least, most in _FITS if dim <= columns)
        if self.slow:
            most = min(most, next(fits for columns, fits in _SLOW if dim <= columns))
        elif isinstance(self.plan, MethodPlan):
            leaf = method_of(self.plan.method)
            most = min(most, _MANY_PRODUCTS) if leaf.keeps_products or leaf.finds_one_by_one else most
        return min(least, most), most

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
    least, most = trial.fits if fits is None else (fits, fits)
    values, rng = trial.spectrum.values, np.random.default_rng(seed)
    plain: list[tuple[float, float]] = []
    # Many small matrices: BLAS threads would only wait for each other.
    with blas_threads(1):
        while len(plain) < least or (len(plain) < most and not _sure(plain)):
            plain.append(_plain(trial, seed + len(plain)))
        others = [trial.spectrum.drawn(rng) for _ in range(trial.doubts)]
        doubted = np.array([_fit(trial, other, seed + at, columns=_DOUBTED_COLUMNS) for at, other in enumerate(others)])
        if others and trial.slow and len(values) > _DOUBTED_COLUMNS:
            # Fewer columns give slightly different values. So only the spread is taken from them, around the mean of
            # the plain fits.
            alike = [_fit(trial, values, seed + at, columns=_DOUBTED_COLUMNS) for at in range(_FOR_COMPARISON)]
            doubted = np.clip(doubted + np.mean(plain, axis=0) - np.mean(alike, axis=0), 0.0, 1.0)
    return _kept(plain), _kept(doubted)


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


def _kept(fits: list[tuple[float, float]] | Array) -> Array:
    """As a read-only array, (fits, 2), so that the cache can share it."""
    found = np.array(fits, dtype=np.float64).reshape(-1, 2)
    found.flags.writeable = False
    return found


def _sure(fits: list[tuple[float, float]]) -> bool:
    # The factor 1 + 2 / n widens the reach of few fits, which may agree by chance.
    reach = np.std(fits, axis=0, ddof=1) * (1 + 2 / len(fits)) / math.sqrt(len(fits))
    return bool((reach <= [_SURE, _SURE_OF_SINE]).all())


def _fit(trial: RehearsalTrial, values: Array, seed: int, *, columns: int) -> tuple[float, float]:
    """The captured variance and the largest sine of one rehearsed fit, a slow one on at most `columns` columns.

    With fewer columns random directions capture more. So only what is captured beyond random directions is carried
    over.
    """
    if trial.slow:
        most = max(columns, 2 * trial.rank)
        if len(values) > most:
            fewer = condensed(values, most, rank=trial.rank)
            captured, sine = _outcome(trial, fewer, seed, louder=math.sqrt(len(values) / most))
            least, floor = (Spectrum(values=drawn, source="").at_random(trial.rank) for drawn in (fewer, values))
            beyond = (captured - least) / (1 - least) if least < 1 else 1.0
            return min(1.0, max(0.0, floor + beyond * (1 - floor))), sine
    return _outcome(trial, values, seed, louder=1.0)


def _outcome(trial: RehearsalTrial, values: Array, seed: int, *, louder: float) -> tuple[float, float]:
    plan = trial.plan
    shift, steps = None, 0
    if trial.split.mean and trial.means == ():
        # Norms around a center that needs no search.
        steps = len(trial.split.mean)
    elif trial.split.mean:
        found = found_center if trial.means is None else partial(found_inside, steps=trial.means)
        error, steps = found(
            len(values),
            people=trial.people,
            shares=trial.split.mean,
            multiplier=louder * trial.mean_louder / trial.mu,
            neighbours=trial.neighbours,
            # Nobody knows how far out the mean is, so every other fit has it far out.
            far=seed % 2 == 1,
            rng=np.random.default_rng([seed, 1]),
        )
        shift = math.sqrt(trial.people) * error
    multiplier = louder * trial.louder / (trial.mu * math.sqrt(trial.split.main(steps)))
    scene = Scene(
        gram=trial.people * values,
        shift=shift,
        rank=trial.rank,
        neighbours=trial.neighbours,
        multiplier=multiplier,
        seed=seed,
    )
    if isinstance(plan, StreamPlan):
        basis = rehearse_blocks(scene, share=plan.block / trial.people, oversample=trial.oversample)
    else:
        fitting = replace(plan, width=min(plan.width, len(values)))
        basis = method_of(plan.method).simulate(fitting, scene, sites=trial.sites)
    return judged(basis, values)


def _means(facts: Facts, split: Split) -> tuple[int, ...] | None:
    """Which steps of the search release a mean, where a bound or units are searched for, too."""
    match facts.seeks:
        case "bound":
            return tuple(range(1, len(split.mean), 2))
        case "units":
            return (len(split.mean) - 1,)
    return None


def _sliced(plan: MethodPlan | StreamPlan) -> bool:
    return isinstance(plan, StreamPlan) and plan.kind.apart
