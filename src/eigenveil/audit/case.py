"""`Case`: one claim, how to attack it once, and what a run shows. `Claim` and `Trial` are its parts.

A case runs the public estimators or parties on a synthetic table. In it are canaries: people made to be noticed, each present or
not by the toss of a fair coin. The case scores each canary from what the adversary sees. It never sees a verdict.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final, Literal, TypeAlias, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri
from scipy.stats import beta, binom, chi2

from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = [
    "BUDGET",
    "Attack",
    "Case",
    "Claim",
    "Kind",
    "Test",
    "Trial",
    "epsilon_at_least",
    "epsilon_in_one_run",
    "mean_at_least",
    "mu_from_accuracy",
    "mu_of",
    "noise_at_most",
    "one_run_level",
    "rate_at_least",
    "rate_at_most",
    "usual_case",
]

Kind = Literal["shipped", "specimen"]

Test = Literal["curve", "rates", "one-run", "noise"]

# About mu = 1.2: noise a fifth too small moves the rate of right guesses from 73% to 78%.
BUDGET: Final = Budget(4.0, 1e-3)


@lru_cache(maxsize=256)
def mu_of(budget: Budget) -> float:
    """The largest mu within a budget, computed independently of the package's accounting.

    The package's own accounting would compare noise with the very number that it was made from. If that number allowed too
    much, nothing would be refuted.
    >>> round(mu_of(Budget(1.0, 1e-6)), 6)
    0.236704
    """
    epsilon = budget.epsilon
    if math.isinf(epsilon):
        return math.inf

    def beyond(mu: float) -> float:
        # delta of a Gaussian mechanism at mu (Balle and Wang 2018), less the budget's: its root is the mu looked for.
        likely = float(np.exp(log_ndtr(mu / 2 - epsilon / mu)))
        return likely - float(np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))) - budget.delta

    low, high = 1.0, 1.0
    # Bracket the root first: mu ranges over many orders of magnitude.
    while beyond(low) >= 0:
        low /= 2
    while beyond(high) < 0:
        high *= 2
    return float(brentq(beyond, low, high, xtol=1e-300, rtol=1e-13))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is claimed of a release.

    >>> round(Claim.of(Budget(1.0, 1e-5), "the guarantee").mu, 3)
    0.268
    """

    words: str  # The name of the guarantee.
    epsilon: float
    delta: float
    mu: float  # The curve is tested here. For a Gaussian guarantee (epsilon, delta) holds exactly up to it.

    @classmethod
    def of(cls, budget: Budget, description: str) -> "Claim":
        """A claim of (epsilon, delta) for Gaussian noise."""
        return cls(words=description, epsilon=budget.epsilon, delta=budget.delta, mu=mu_of(budget))

    @classmethod
    def at_mu(cls, mu: float, delta: float, description: str) -> "Claim":
        """A claim of Gaussian noise that is known by its mu."""
        return cls(words=description, epsilon=epsilon_of(mu, delta), delta=delta, mu=mu)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trial:
    """What one run showed.

    An auditor who knows the table computes the noise that was added to the released numbers, in units of the deviation that was
    charged. If the claim is true these are independent standard normals. Each release is tested by itself, because a small one
    would be lost in a large one.
    """

    scores: Array  # A score for each canary, (m,), larger if it seems present.
    present: NDArray[np.bool_]  # Whether each was, (m,).
    noise: Array = field(default_factory=lambda: np.zeros(0))  # (q,). Empty where it cannot be told from the value.
    parts: tuple[int, ...] = ()  # How many of these numbers each release has. Empty: all are of one.
    # How far the canary that moves all releases most moves them, in the same units: at most mu if the claim is true, whatever
    # sensitivities were computed.
    moved: float = 0.0

    @classmethod
    def of_releases(cls, scores: Array, present: NDArray[np.bool_], noise: Sequence[Array], *, moved: float = 0.0) -> "Trial":
        """With the noise of each of several releases."""
        return cls(scores=scores, present=present, noise=np.concatenate(noise), parts=tuple(map(len, noise)), moved=moved)

    def __post_init__(self) -> None:
        require(
            self.scores.ndim == 1 and self.scores.shape == self.present.shape,
            f"scores and present must have one entry for each canary, got shapes {self.scores.shape} and {self.present.shape}",
        )
        require(bool(np.isfinite(self.scores).all()), "scores must be finite")
        require(not self.parts or sum(self.parts) == len(self.noise), "parts must add up to all of the noise")


# One run: from a budget, a generator for the canaries, and the seed of the noise, None for real noise.
Attack: TypeAlias = Callable[[Budget, Generator, int | None], Trial]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """One claim and how it is attacked."""

    name: str
    kind: Kind = "shipped"  # Specimens are known to be wrong: an audit that does not refute them is blind.
    about: str  # What is released, and who sees it.
    canary: str  # Who is looked for.
    tests: tuple[Test, ...] = ("curve", "noise")
    budget: Budget = BUDGET  # Unless another is asked for.
    claim: Callable[[Budget], Claim]  # What is claimed at a budget.
    trial: Attack  # One run.
    quick: int  # The number of runs of a short audit.
    full: int
    threshold: float | None = 0.5  # A higher score means present. None learns it from the first runs.

    def __post_init__(self) -> None:
        require(len(self.tests) >= 1, f"{self.name}: a case needs a test")
        require(1 <= self.quick <= self.full, f"{self.name}: quick runs must be at least 1 and at most {self.full}")


def usual_case(
    name: str,
    about: str,
    canary: str,
    trial: Attack,
    *,
    claim: str | Callable[[Budget], Claim],
    quick: int,
    full: int | None = None,
    **choices: Any,
) -> Case:
    """A case scored by likelihood ratios: unless `choices` say otherwise, the threshold is half, and the noise is tested too.

    A full audit takes ten times as many runs unless `full` says otherwise. A `claim` in words is one of Gaussian noise.
    """
    claimed = partial(Claim.of, description=claim) if isinstance(claim, str) else claim
    full = 10 * quick if full is None else full
    return Case(name=name, about=about, canary=canary, trial=trial, claim=claimed, quick=quick, full=full, **choices)


# A bet never risks more than this share of the capital: with all of it, one bad run would end the game.
_RISK: Final = 0.9

_STEPS: Final = 60

# The grid on which an epsilon is looked for first, before bisection.
_EPSILONS: Final = tuple(number / 8 for number in range(129))


def rate_at_least(hits: int, runs: int, *, level: float) -> float:
    """The lowest rate that explains `hits` in `runs` independent runs, at confidence 1 - `level` (Clopper and Pearson 1934).

    >>> round(rate_at_least(300, 300, level=0.01), 4)
    0.9848
    """
    _require_counts(hits, runs, level)
    # The quantile of a beta law is the exact inverse of the binomial tail.
    return 0.0 if hits == 0 else float(beta.ppf(level, hits, runs - hits + 1))


def rate_at_most(hits: int, runs: int, *, level: float) -> float:
    """The highest rate that explains `hits` in `runs` independent runs, at confidence 1 - `level`.

    >>> round(rate_at_most(0, 300, level=0.01), 4)
    0.0152
    """
    _require_counts(hits, runs, level)
    return 1.0 if hits == runs else float(beta.ppf(1 - level, hits + 1, runs - hits))


def mean_at_least(values: Array, *, level: float) -> float:
    """The lowest mean that explains independent `values`, (n,), each in [0, 1] and of one mean, at confidence 1 - `level`.

    A gambler bets against a mean of q. The stake in each run depends on the runs before it alone. If the mean is at most q, the
    expected capital never exceeds the capital at the start, so capital of 1 / level is reached with probability at most `level`
    (Ville 1939), and then q is refuted. Nothing is assumed about how the canaries of a run depend on each other: a run is one
    value. Where all values have the same size, the bound is close to the normal one (Waudby-Smith and Ramdas 2024).

    >>> round(mean_at_least(np.full(400, 0.7), level=0.01), 3)
    0.687
    """
    require(values.ndim == 1 and len(values) >= 1, f"values must be one vector, got shape {values.shape}")
    require(bool(((values >= 0) & (values <= 1)).all()), "values must lie in [0, 1]")
    require(0 < level < 1, f"level must lie in (0, 1), got {level}")
    count = len(values)
    before = np.arange(count)
    # What was seen before each run. A start of half a run at 1/2, with a deviation of 1/2, keeps the first bets small.
    means = (0.5 + np.concatenate([[0.0], np.cumsum(values)[:-1]])) / (before + 1)
    spread = np.concatenate([[0.0], np.cumsum((values - means) ** 2)[:-1]])
    variances = (0.25 + spread) / (before + 1)
    # The same bets against every mean: the capital then falls as the mean rises, so all means below a refuted one are refuted.
    bets = np.minimum(np.sqrt(2 * math.log(1 / level) / (variances * count)), _RISK)

    def refuted(mean: float) -> bool:
        # The maximum over all times, not the last value: Ville's bound holds for any time.
        return bool(np.cumsum(np.log1p(bets * (values - mean))).max() >= math.log(1 / level))

    low, high = 0.0, 1.0
    if not refuted(low):
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def mu_from_accuracy(accuracy: float) -> float:
    """The least mu at which guesses about the toss of a fair coin can be right at this rate: 2 Phi^-1(accuracy).

    Proof. At mu, a test with false alarms at rate a misses at a rate of at least G(a) = Phi(Phi^-1(1 - a) - mu). Guesses are
    right at a rate of 1 - (a + misses) / 2, at most 1 - min (a + G(a)) / 2. The minimum is where both are Phi(-mu / 2).

    >>> round(mu_from_accuracy(0.6914624612740131), 9)
    1.0
    """
    return 0.0 if accuracy <= 0.5 else float(2 * ndtri(min(accuracy, 1.0)))


def epsilon_at_least(alarms: int, present: int, false: int, absent: int, *, delta: float, level: float) -> float:
    """The least epsilon at `delta` that explains `alarms` in `present` runs with the person and `false` ones in `absent` runs.

    By (epsilon, delta), right alarms come at most at e^epsilon times the rate of false ones plus delta. The same holds for
    staying silent. The better of the two bounds is taken, with each rate at a quarter of the level.

    >>> round(epsilon_at_least(500, 1000, 5, 1000, delta=1e-5, level=0.01), 2)
    3.41
    """
    # Four rates are bounded, two for each of the two inequalities.
    quarter = level / 4
    loud = _log_ratio(rate_at_least(alarms, present, level=quarter) - delta, rate_at_most(false, absent, level=quarter))
    silent = _log_ratio(
        rate_at_least(absent - false, absent, level=quarter) - delta, rate_at_most(present - alarms, present, level=quarter)
    )
    return max(0.0, loud, silent)


def _log_ratio(more: float, less: float) -> float:
    return -math.inf if more <= 0 else math.log(more / less)


def one_run_level(right: int, guesses: int, canaries: int, *, epsilon: float, delta: float) -> float:
    """The largest chance, under (epsilon, delta), of `right` or more among `guesses` about `canaries`, each tossed independently.

    It is at most P[B >= right] + canaries delta / (1 + e^epsilon). B is binomial with rate q = e^epsilon / (1 + e^epsilon)
    (Steinke, Nasr and Jagielski 2023, for delta = 0).

    Proof. Let h_k be the chance of enough right guesses when guesses about the canaries after the k-th are right independently
    with chance q. Its mean goes from P[B >= right] at k = 0 to the chance asked for. Let g in [0, 1] be what one more right guess
    adds. Let P_s be the law of the output t if toss k is s, given the tosses before it. The k-th step adds half a sum over
    both s and the outputs t that guess s. Its terms are g(t) ((1 - q) P_s(t) - q P_1-s(t)), which equals
    g(t) (1 - q) (P_s(t) - e^epsilon P_1-s(t)). The positive parts of these differences add up to at most delta. One canary
    attains the bound.

    A smaller last term, 2 canaries delta max_i P[right - i <= B < right] / i, is not used here. Where nearly all of B lies above
    `right`, an adversary who changes guesses exactly where too few were right does better than it allows.

    >>> round(one_run_level(95, 100, 100, epsilon=1.0, delta=1e-5), 6)
    0.000269
    """
    require(0 <= right <= guesses <= canaries, f"0 <= right <= guesses <= canaries, got {right}, {guesses}, {canaries}")
    rate = 1 / (1 + math.exp(-epsilon))
    above = float(binom.sf(right - 1, guesses, rate))
    return min(1.0, above + canaries * delta * (1 - rate))


def epsilon_in_one_run(right: int, guesses: int, canaries: int, *, delta: float, level: float) -> float:
    """The least epsilon at `delta` that explains `right` of `guesses` about `canaries`, at confidence 1 - `level`.

    A release that is (epsilon, delta)-private is so for every larger epsilon too, so the largest epsilon refuted counts, even
    where smaller ones alone are not refuted.

    >>> round(epsilon_in_one_run(95, 100, 100, delta=1e-5, level=0.01), 3)
    1.937
    """

    def refuted(epsilon: float) -> bool:
        return one_run_level(right, guesses, canaries, epsilon=epsilon, delta=delta) < level

    # From above: refuted epsilons need not form an interval, and the largest one counts.
    low = next((index for index in reversed(range(len(_EPSILONS))) if refuted(_EPSILONS[index])), None)
    if low is None:
        return 0.0
    if low == len(_EPSILONS) - 1:
        return _EPSILONS[-1]
    below, above = _EPSILONS[low], _EPSILONS[low + 1]
    for _ in range(_STEPS):
        middle = (below + above) / 2
        below, above = (middle, above) if refuted(middle) else (below, middle)
    return below


def noise_at_most(squares: float, count: int, *, level: float) -> float:
    """The largest deviation that explains a sum of `squares` of `count` independent normals, at confidence 1 - `level`.

    >>> round(noise_at_most(1000 * 0.8**2, 1000, level=0.01), 3)
    0.844
    """
    require(count >= 1, f"count must be at least 1, got {count}")
    return math.sqrt(squares / float(chi2.ppf(level, count)))


def _require_counts(hits: int, runs: int, level: float) -> None:
    require(0 <= hits <= runs and runs >= 1, f"hits must lie in 0..{runs} and runs be at least 1, got {hits}, {runs}")
    require(0 < level < 1, f"level must lie in (0, 1), got {level}")
