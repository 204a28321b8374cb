"""Which mechanism: what each would cost in memory and noise, and which one to take, from public numbers alone.

Serves every "auto". It never sees a row; the number of people enters only where the caller declared it public.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy import Budget, Neighbours, gram_sensitivity
from eigenveil.tasks import geometric_shares

__all__ = ["Choice", "Mechanisms", "Plan", "predict"]

MEMORY_LIMIT: Final = 1 << 30
# Each power product gets this many times the budget of the one before it: benchmarks/power_shares.py.
GROWTH: Final = 1.6
TURNS: Final = 4
EXACT_TURNS: Final = 24

Mechanisms = Literal["auto", "covariance", "power"]


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """One way to do it. `noise` is the spectral norm to expect of the noise on the Gram matrix, in units of row_bound^2;
    `captured` the share of the best possible variance to expect, None where the number of people is not public."""

    mechanism: Literal["covariance", "power"]
    noise: float
    memory: int
    captured: float | None
    width: int
    shares: tuple[float, ...]

    def __str__(self) -> str:
        guess = "" if self.captured is None else f", captured variance about {self.captured:.2f}"
        return f"{self.mechanism}: noise {self.noise:.3g} row_bound^2, {self.memory / 2**20:.3g} MiB{guess}"


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What was considered, what was chosen and why, all from public numbers."""

    chosen: Choice
    considered: tuple[Choice, ...]
    reason: str


def predict(
    *,
    dim: int,
    rank: int,
    budget: Budget | None,
    mechanism: Mechanisms = "auto",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    people: int | None = None,
    spectrum: Array | None = None,
    oversample: int | None = None,
    iterations: int | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Plan:
    """Compare the mechanisms for `rank` of `dim` components and choose one, or explain the one that was asked for.

    `spectrum` is a guess at the Gram eigenvalues over their sum, by default 1/i, with rows filling half their ball;
    it matters only for `captured`.

    >>> plan = predict(dim=100, rank=5, budget=Budget(1.0, 1e-6))
    >>> plan.chosen.mechanism
    'covariance'
    >>> predict(dim=50_000, rank=5, budget=Budget(1.0, 1e-6)).chosen.mechanism
    'power'
    """
    require(1 <= rank <= dim, f"rank must lie in 1..{dim}, got {rank}")
    width = _width(dim, rank, oversample, exact=budget is None)
    turns = iterations if iterations is not None else (EXACT_TURNS if budget is None else TURNS)
    shares = geometric_shares(turns, growth=GROWTH)
    sigma = 0.0 if budget is None else gram_sensitivity(1.0, neighbours) / budget.mu
    last = sigma / math.sqrt(shares[-1])
    eigenvalues = _eigenvalues(dim, people, spectrum)
    covariance = Choice(
        "covariance",
        noise=sigma * math.sqrt(2 * dim),
        memory=4 * dim * dim * 8,
        captured=_captured(eigenvalues, rank, sigma / math.sqrt(2), dim),
        width=rank,
        shares=(1.0,),
    )
    power = Choice(
        "power",
        noise=last * (math.sqrt(dim) + math.sqrt(width)),
        memory=6 * dim * width * 8,
        captured=_captured(eigenvalues, rank, last, dim),
        width=width,
        shares=shares,
    )
    chosen, reason = _choose(mechanism, covariance, power, memory_limit)
    return Plan(chosen, (covariance, power), reason)


def _choose(mechanism: Mechanisms, covariance: Choice, power: Choice, limit: int) -> tuple[Choice, str]:
    if mechanism != "auto":
        chosen = covariance if mechanism == "covariance" else power
        return chosen, f"{mechanism} was asked for"
    allowed = f"{limit / 2**20:.0f} MiB allowed"
    if covariance.memory <= limit:
        reason = "it is exact"
        if covariance.noise > 0:
            reason = f"its noise is {power.noise / covariance.noise:.1f} times lower than that of the power method"
        return covariance, f"covariance: {reason}, and it fits ({covariance.memory / 2**20:.1f} of {allowed})"
    return (
        power,
        f"power: the covariance would need {covariance.memory / 2**20:.0f} MiB, more than the {allowed}",
    )


def _width(dim: int, rank: int, oversample: int | None, *, exact: bool) -> int:
    if oversample is None:
        # Under noise a wide block pays for itself; without noise it only has to hold the space.
        oversample = max(10, rank) if exact else max(10, 3 * rank)
    return min(dim, rank + oversample)


def _eigenvalues(dim: int, people: int | None, spectrum: Array | None) -> Array | None:
    """Guessed Gram eigenvalues, (dim,), in units of row_bound^2."""
    if people is None:
        return None
    require(people >= 1, f"people must be at least 1, got {people}")
    shape = 1.0 / np.arange(1, dim + 1) if spectrum is None else np.asarray(spectrum, dtype=np.float64)
    require(len(shape) <= dim, f"spectrum has {len(shape)} values for {dim} columns")
    require(
        bool((shape >= 0).all()) and 0 < shape.sum() < math.inf, "spectrum must be finite, not negative, not all zero"
    )
    guess: Array = 0.5 * people * np.sort(shape)[::-1] / shape.sum()
    return guess


def _captured(eigenvalues: Array | None, rank: int, entry: float, dim: int) -> float | None:
    """Expected captured variance when entries of the noise have size `entry`: the spiked-matrix overlaps.

    A direction of eigenvalue v keeps 1 - dim entry^2 / v^2 of itself, and nothing below v = sqrt(dim) entry.
    """
    if eigenvalues is None:
        return None
    top = eigenvalues[:rank]
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(top > 0, np.maximum(0.0, 1 - dim * entry**2 / top**2), 0.0)
    floor = rank * eigenvalues.sum() / dim / top.sum()
    return float(max((kept * top).sum() / top.sum(), min(1.0, floor)))
