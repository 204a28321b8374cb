"""`Case`: one claim, how to attack it once, and what a run shows. `Claim` and `Trial` are its parts.

A case runs the public estimators or parties on a synthetic table. In it are canaries: people made to be noticed, each present or
not by the toss of a fair coin. The case scores each canary from what the adversary sees. It never sees a verdict.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final, Literal, TypeAlias, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

from eigenveil.core.accounting import Budget
from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = ["BUDGET", "Attack", "Case", "Claim", "Kind", "Test", "Trial", "mu_of", "usual_case"]

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
    """What is claimed of a release: `words` name the guarantee, (epsilon, delta) is claimed, and the curve is tested at `mu`.

    A Gaussian guarantee has its own `mu`: (epsilon, delta) holds exactly up to it.

    >>> round(Claim.of(Budget(1.0, 1e-5), "the guarantee").mu, 3)
    0.268
    """

    words: str
    epsilon: float
    delta: float
    mu: float

    @classmethod
    def of(cls, budget: Budget, words: str) -> "Claim":
        """A claim of (epsilon, delta) for Gaussian noise."""
        return cls(words=words, epsilon=budget.epsilon, delta=budget.delta, mu=mu_of(budget))


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trial:
    """What one run showed: a score for each canary, (m,), larger if it seems present, and whether it was, (m,).

    An auditor who knows the table computes the noise that was added to the released numbers: `noise`, (q,), in units of the
    deviation that was charged. If the claim is true these are independent standard normals. The numbers of each release are
    counted in `parts`, all in one unless given. Each release is tested by itself, because a small one would be lost in a large
    one. The canary that moves all releases most moves them by `moved`, in the same units. If the claim is true this is at most
    mu, whatever sensitivities were computed.
    """

    scores: Array
    present: NDArray[np.bool_]
    # Empty where an adversary cannot separate noise from the value.
    noise: Array = field(default_factory=lambda: np.zeros(0))
    parts: tuple[int, ...] = ()
    moved: float = 0.0

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
    """One claim and how it is attacked.

    What is released, and who sees it, is in `about`; who is looked for is the `canary`. The case is audited at `budget` unless
    another is asked for; it is large enough for the curve to show noise that is a fifth too small. The claim at a budget is
    `claim`. One run is `trial`: from a budget, a generator for the canaries, and the estimator's random_state, None for real
    noise. The number of runs is `quick` or `full`. A score above `threshold` means present; None learns it from the first runs.
    Specimens are known to be wrong: an audit that does not refute them is blind.
    """

    name: str
    kind: Kind
    about: str
    canary: str
    tests: tuple[Test, ...]
    budget: Budget
    claim: Callable[[Budget], Claim]
    trial: Attack
    quick: int
    full: int
    threshold: float | None = None

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
    kind: Kind = "shipped",
    tests: tuple[Test, ...] = ("curve", "noise"),
    budget: Budget = BUDGET,
    threshold: float | None = 0.5,
) -> Case:
    """A case scored by likelihood ratios: the threshold is half, and the noise is tested too.

    A full audit takes ten times as many runs unless `full` says otherwise. A `claim` in words is one of Gaussian noise.
    """
    return Case(
        name=name,
        kind=kind,
        about=about,
        canary=canary,
        tests=tests,
        budget=budget,
        claim=partial(Claim.of, words=claim) if isinstance(claim, str) else claim,
        trial=trial,
        quick=quick,
        full=10 * quick if full is None else full,
        threshold=threshold,
    )
