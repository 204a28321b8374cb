"""`Case`: one claim, how to attack it once, and what a run shows. `Claim` and `Trial` are its parts.

A case runs the public estimators or parties on a synthetic table in which canaries, people made to be noticed, are each
present or not by the toss of a fair coin, and gives each a score from what the adversary sees. It never sees a verdict.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy import Budget

__all__ = ["Case", "Claim", "Kind", "Test", "Trial", "mu_of"]

Kind = Literal["shipped", "specimen"]
Test = Literal["curve", "rates", "one-run", "noise"]


@lru_cache(maxsize=256)
def mu_of(budget: Budget) -> float:
    """The largest mu within a budget, by a computation of its own.

    With the package's accounting in its place, noise would be measured by the very number that it was made from, and an
    account that allows too much would refute nothing.

    >>> round(mu_of(Budget(1.0, 1e-6)), 6)
    0.236704
    """
    epsilon = budget.epsilon
    if math.isinf(epsilon):
        return math.inf

    def beyond(mu: float) -> float:
        likely = float(np.exp(log_ndtr(mu / 2 - epsilon / mu)))
        return likely - float(np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))) - budget.delta

    low, high = 1.0, 1.0
    while beyond(low) >= 0:
        low /= 2
    while beyond(high) < 0:
        high *= 2
    return float(brentq(beyond, low, high, xtol=1e-300, rtol=1e-13))


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """What is said of a release: `words` for who says it, (epsilon, delta), and the mu that the curve is tested at.

    `mu` is the guarantee's own where it is Gaussian: (epsilon, delta) holds exactly up to it.

    >>> round(Claim.of(Budget(1.0, 1e-5), "the guarantee").mu, 3)
    0.268
    """

    words: str
    epsilon: float
    delta: float
    mu: float

    @classmethod
    def of(cls, budget: Budget, words: str) -> "Claim":
        """A claim of (epsilon, delta) by somebody whose noise is Gaussian."""
        return cls(words, budget.epsilon, budget.delta, mu_of(budget))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What one run showed: a score for each canary, (m,), larger where it seems to be there, and whether it was, (m,).

    `noise`, (q,), is what was added to released numbers, as far as the auditor can tell who knows the table, in units of the
    deviation that was charged. Independent standard normals, if the claim is true. `parts` says how many of them are of each
    release, all of one unless given: each is looked at by itself, because a small one would be lost in a large one. `moved` is
    how far the canary that moves them most moves all releases together, in the same units: no further than mu, if the claim is
    true, whatever sensitivities were computed to be.
    """

    scores: Array
    present: NDArray[np.bool_]
    noise: Array = field(default_factory=lambda: np.zeros(0))
    parts: tuple[int, ...] = ()
    moved: float = 0.0

    def __post_init__(self) -> None:
        require(
            self.scores.ndim == 1 and self.scores.shape == self.present.shape,
            f"a score for each canary: got shapes {self.scores.shape} and {self.present.shape}",
        )
        require(bool(np.isfinite(self.scores).all()), "scores must be finite")
        require(not self.parts or sum(self.parts) == len(self.noise), "parts must add up to all of the noise")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One claim and how it is attacked.

    `about` says what is released and who looks at it, `canary` who is looked for. `budget` is what it is audited at
    unless another is asked for: large enough for the curve to tell a fifth of the noise. `claim` says what is claimed of it.
    `trial` runs it once: budget, generator for the canaries, and the estimator's random_state, None for real noise. `quick` and
    `full` are how many runs; `threshold` is where a score begins to mean presence, None to learn it from the first runs.
    Specimens are known to be wrong: the audit must refute them, or it is blind.
    """

    name: str
    kind: Kind
    about: str
    canary: str
    tests: tuple[Test, ...]
    budget: Budget
    claim: Callable[[Budget], Claim]
    trial: Callable[[Budget, Generator, int | None], Trial]
    quick: int
    full: int
    threshold: float | None = None

    def __post_init__(self) -> None:
        require(len(self.tests) >= 1, f"{self.name}: a case needs a test")
        require(1 <= self.quick <= self.full, f"{self.name}: quick runs must be at least 1 and at most {self.full}")
