"""`forecast`: what one method would find and cost, from public facts alone, by rehearsing it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.plan.choose.stream import StreamPlan
from eigenveil.plan.clipping import Norms, kept_by_clipping
from eigenveil.plan.forecast.facts import Facts, Setting, parts_of
from eigenveil.plan.forecast.methods import candidate_of
from eigenveil.plan.forecast.params import FitParams, call_of
from eigenveil.plan.forecast.trials import RehearsalTrial, tried
from eigenveil.plan.spectrum import Spectrum

__all__ = ["Denominator", "Forecast", "Interval", "curve", "forecast"]

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
            self.low <= self.value <= self.high,
            f"value must lie from low to high, got {self.low}, {self.value}, {self.high}",
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
    - `least` is about how many people the search for a row bound or units needs, 0 where nothing is searched for.
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
    least: int
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
        return call_of(self.params, self.unknown)


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
        least=candidate.least,
        refused=candidate.refused,
        guarantee=candidate.guarantee,
        params=candidate.params,
        unknown=candidate.unknown,
        of=facts.denominator,
    )


def curve(facts: Facts, method: str, epsilons: Sequence[float]) -> tuple[tuple[float, Forecast], ...]:
    """The forecast at each epsilon, all else the same. It answers "what would epsilon = 2 buy me?"."""
    return tuple(
        (epsilon, forecast(replace(facts, budget=Budget(epsilon, facts.budget.delta)), method)) for epsilon in epsilons
    )


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
        odds = _log_odds(doubted)
        away = _NINE_OF_TEN * (1 + 2 / len(odds)) * float(odds.std(ddof=1))
        ends = 1 / (1 + np.exp(-(float(odds.mean()) + away * np.array([-1.0, _UPWARDS]))))
        low, high = min(low, float(ends[0])), max(high, float(ends[1]) + _LEAST)
    return Interval(value, min(value, max(0.0, low)), max(value, min(1.0, high)))


def _log_odds(shares: Array) -> Array:
    inside = np.clip(shares, _CERTAIN, 1 - _CERTAIN)
    return np.asarray(np.log(inside / (1 - inside)))


def _with_clipping(captured: Interval, facts: Facts) -> Interval:
    """What is captured of all rows, from what is captured of the clipped ones and what clipping costs.

    The first is drawn from two half normal distributions with the ends of its interval as quantiles.
    """
    kept = _kept(facts.norms, facts.unit, facts.people, facts.spectrum, units=facts.seeks == "units")
    away = np.random.default_rng(_CLIPPINGS_SEED + 1).standard_normal(_CLIPPINGS) / _NINE_OF_TEN
    reach = np.where(away < 0, captured.value - captured.low, captured.high - captured.value)
    # Found directions can be worse than random ones, where the longest rows point elsewhere.
    drawn = np.clip(captured.value + away * reach, 0.0, 1.0) * kept
    low, value, high = np.quantile(drawn, [0.05, 0.5, 0.95]).tolist()
    # Fits that lose nothing by clipping are as likely as those in the middle.
    return Interval(value, low, max(high, captured.high))


@lru_cache(maxsize=64)
def _kept(norms: Norms | None, bound: float, people: int, spectrum: Spectrum, *, units: bool) -> Array:
    # Methods and budgets that are compared share these draws.
    found = kept_by_clipping(
        norms,
        bound=bound,
        units=units,
        people=people,
        values=spectrum.values,
        rng=np.random.default_rng(_CLIPPINGS_SEED),
        draws=_CLIPPINGS,
    )
    found.flags.writeable = False
    return found
