"""Compares the methods by memory and noise, and chooses one. Every "auto" ends here.

It never sees a row. The number of people enters only where the caller declared it public.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, final

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.errors import ParameterError, require
from eigenveil.linalg import Array, found_share
from eigenveil.methods.products import geometric_shares
from eigenveil.plan.spectrum import Spectrum, require_rank

__all__ = ["Choice", "Plan", "PrivateMethod", "in_mebibytes", "predict"]

MEMORY_LIMIT: Final = 1 << 30
# The reason where the caller left the method open, and values may be missing.
DIVIDED: Final = "its entries can be divided by counts of what is there, and those of other methods cannot"
# Each power product gets this many times the budget of the one before: the last one makes the result.
# benchmarks/plan/power_shares.py.
GROWTH: Final = 1.6
ROUNDS: Final = 4
EXACT_ROUNDS: Final = 24

PrivateMethod = Literal["auto", "covariance", "power"]


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """One mechanism with its costs.

    - `noise` is the expected spectral norm of the noise on the Gram matrix, in units of row_bound^2.
    - `captured` is the expected share of what exact PCA finds in the clipped rows, None where the number of people is not public.

    That share comes from a first-order formula, for a first idea: `eigenveil.plan.forecast.forecast` rehearses the
    fit.
    """

    method: Literal["covariance", "power"]
    noise: float
    memory: int
    captured: float | None
    width: int
    shares: tuple[float, ...]

    def __str__(self) -> str:
        guess = "" if self.captured is None else f", captured variance of the clipped rows about {self.captured:.2f}"
        return f"{self.method}: noise {self.noise:.3g} row_bound^2, {self.memory / 2**20:.3g} MiB{guess}"


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What was considered, what was chosen and `why`, all from public numbers. `asked`: the caller named the
    mechanism."""

    chosen: Choice
    considered: tuple[Choice, ...]
    why: str
    asked: bool

    @property
    def reason(self) -> str:
        """The choice and its reason, on one line."""
        return f"{self.chosen.method}{' ' if self.asked else ': '}{self.why}"


def predict(
    *,
    dim: int,
    rank: int,
    budget: Budget | None,
    method: PrivateMethod = "auto",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    people: int | None = None,
    spectrum: Spectrum | Array | None = None,
    oversample: int | None = None,
    rounds: int | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Plan:
    """Compare the methods for `rank` of `dim` components and choose one, or explain the one that was asked for.

    `spectrum` is what is known of the eigenvalues, or their shape alone, (up to dim,). By default it is the guess of
    `Spectrum.guessed`. It matters only for `captured`.

    Noise alone decides. In every rehearsal that compared them, releasing all pairs of columns captured at least as
    much as noisy products did.

    >>> plan = predict(dim=100, rank=5, budget=Budget(1.0, 1e-6))
    >>> plan.chosen.method
    'covariance'
    >>> predict(dim=50_000, rank=5, budget=Budget(1.0, 1e-6)).chosen.method
    'power'
    """
    require_rank(rank, dim)
    width = _width(dim, rank, oversample, exact=budget is None)
    rounds = rounds if rounds is not None else (EXACT_ROUNDS if budget is None else ROUNDS)
    shares = geometric_shares(rounds, growth=GROWTH)
    sigma = 0.0 if budget is None else gram_sensitivity(1.0, neighbours) / budget.mu
    last = sigma / math.sqrt(shares[-1])
    known = _known(dim, spectrum)
    covariance = Choice(
        "covariance",
        # A symmetric matrix whose off-diagonal entries have deviation s has norm about 2 s sqrt(d), and here s =
        # sigma / sqrt(2).
        noise=sigma * math.sqrt(2 * dim),
        memory=4 * dim * dim * 8,
        captured=_captured(known, people, rank, sigma / math.sqrt(2)),
        width=rank,
        shares=(1.0,),
    )
    power = Choice(
        "power",
        # The last product decides: the result is read off it. A d x w Gaussian block has norm about sqrt(d) +
        # sqrt(w).
        noise=last * (math.sqrt(dim) + math.sqrt(width)),
        memory=6 * dim * width * 8,
        captured=_captured(known, people, rank, last),
        width=width,
        shares=shares,
    )
    chosen, why = _choose(method, covariance, power, memory_limit)
    return Plan(chosen, (covariance, power), why, asked=method != "auto")


def in_mebibytes(size: float) -> str:
    """A size for a sentence, in MiB, that is never nothing.

    >>> in_mebibytes(1200), in_mebibytes(3.26 * 2**20)
    ('less than 0.1', '3.3')
    """
    return "less than 0.1" if size < 0.1 * 2**20 else f"{size / 2**20:.1f}"


def _choose(method: PrivateMethod, covariance: Choice, power: Choice, limit: int) -> tuple[Choice, str]:
    if method != "auto":
        chosen = covariance if method == "covariance" else power
        return chosen, "was asked for"
    allowed = f"{limit / 2**20:.0f} MiB allowed"
    # Memory comes first: where the covariance fits, rehearsals never found products better.
    if covariance.memory <= limit:
        reason = "it is exact"
        if covariance.noise > 0:
            reason = f"its noise is {power.noise / covariance.noise:.1f} times lower than that of the power method"
        return covariance, f"{reason}, and it fits ({in_mebibytes(covariance.memory)} of {allowed})"
    return power, f"the covariance would need {covariance.memory / 2**20:.0f} MiB, more than the {allowed}"


def _width(dim: int, rank: int, oversample: int | None, *, exact: bool) -> int:
    if oversample is None:
        # Under noise a wider block gains more than its noise costs. Without noise it only has to contain the space.
        oversample = max(10, rank) if exact else max(10, 3 * rank)
    return min(dim, rank + oversample)


def _known(dim: int, spectrum: Spectrum | Array | None) -> Spectrum:
    if spectrum is None:
        return Spectrum.guessed(dim)
    if not isinstance(spectrum, Spectrum):
        require(len(spectrum) <= dim, f"spectrum has {len(spectrum)} values for {dim} columns")
        try:
            return Spectrum.of_variances(spectrum, dim=dim)
        except ParameterError as error:
            raise error.within("spectrum") from None
        except ValueError as error:
            raise ValueError(f"spectrum: {error}") from None
    require(spectrum.dim == dim, f"spectrum has {spectrum.dim} values for {dim} columns: give one for each column")
    return spectrum


def _captured(spectrum: Spectrum, people: int | None, rank: int, entry: float) -> float | None:
    """Expected captured variance when noise entries have size `entry`, at least that of random directions."""
    if people is None:
        return None
    require(people >= 1, f"people must be at least 1, got {people}")
    top = people * spectrum.values[:rank]
    return max(found_share(top, entry=entry, dim=spectrum.dim), spectrum.at_random(rank))
