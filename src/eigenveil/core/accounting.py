"""The privacy cost of Gaussian releases, exactly.

Releases with sensitivity / noise ratios r_1, r_2, ... compose to one Gaussian mechanism with mu = sqrt(sum r_j^2). This holds
even when each release depends on the answers before it. That mechanism is (epsilon, delta)-private exactly when
    delta >= Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)          (Balle and Wang 2018, Theorem 8).
Ledgers, mechanisms and planners call this module.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

from eigenveil.errors import require

__all__ = [
    "ROUNDING",
    "Budget",
    "ExactSum",
    "delta_of",
    "epsilon_of",
    "fits",
    "largest_epsilon",
    "mu_for",
    "normal_cdf",
    "scaled_erfc",
]

# Calibrations stop this far on the safe side, so that the shares of a budget may be added up in floating point.
_MARGIN = 1e-12
# The one tolerance of every ledger, in memory and in a file. A share of a budget is computed in a few operations, each of which
# rounds by 2^-53. This allows for some hundreds of them, and is a tenth of the margin that every budget has.
ROUNDING: Final = 1e-13
# They leave this part of delta unused: sums of rounded normals are not exactly normal (docs/exact-noise.md).
_LEFT = 2.0**-41
# Relative error of the few operations in `delta_of`, several times over.
_ROUNDING = 2.0**-49
# Of the unit in which sums are exact.
_BITS = 2148
# From here on `scaled_erfc` is a short series, before erfc underflows. The other splits a double into two halves.
_SERIES, _SPLIT = 25.0, 2.0**27 + 1


@final
@dataclass(frozen=True, slots=True)
class Budget:
    """How much privacy may be spent: (epsilon, delta).

    >>> round(Budget(1.0, 1e-6).mu, 6)
    0.236704
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require(self.epsilon > 0, f"epsilon must be positive, got {self.epsilon}")
        require(0 < self.delta < 1, f"delta must lie in (0, 1), got {self.delta}")

    @property
    def mu(self) -> float:
        """The largest Gaussian-DP parameter within this budget."""
        return mu_for(self.epsilon, self.delta)


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta for which a mu-Gaussian mechanism is (epsilon, delta)-private.

    Both terms of the formula share the factor exp(-a^2/2) with a = epsilon/mu - mu/2. The difference is therefore taken between
    scaled complementary error functions, which loses no digits at small delta.

    >>> round(delta_of(1.0, 0.5), 12)
    0.006829594983
    """
    require(epsilon >= 0, f"epsilon must not be negative, got {epsilon}")
    require(mu >= 0, f"mu must not be negative, got {mu}")
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    if math.isinf(epsilon):
        return 0.0
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if low < -5:
        # Phi(-low) is near one and the second term is tiny: the formula as it stands is accurate.
        return normal_cdf(-low) - 0.5 * scaled_erfc(high / math.sqrt(2)) * math.exp(-low * low / 2)
    scaled = scaled_erfc(low / math.sqrt(2)) - scaled_erfc(high / math.sqrt(2))
    return min(1.0, 0.5 * scaled * math.exp(-low * low / 2))


def _at_most(epsilon: float, mu: float) -> float:
    """A bound on `delta_of` that rounding cannot break, with a part in 2^41 to spare.

    Relative errors of u in low, high and both functions move each of the two terms by a few u (1 + |low|) (1 + high) of itself.
    Where mu is small the terms are nearly equal, so that error can be large compared with their difference.
    """
    delta = delta_of(epsilon, mu)
    if mu == 0 or math.isinf(mu) or math.isinf(epsilon):
        return delta
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    term = 1.0 if low < -5 else 0.5 * scaled_erfc(low / math.sqrt(2)) * math.exp(-low * low / 2)
    return delta * (1 + _LEFT) + _ROUNDING * (1 + abs(low)) * (1 + high) * term


# A fit asks for the same few numbers again and again, and each takes forty evaluations.
@lru_cache(maxsize=1024)
def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-private: noise of standard deviation sensitivity / mu suffices.

    Bisection from below: the result keeps the guarantee, rounding included, with a part in 2^41 of delta to spare. It is within a
    relative 1e-11 of the best at ordinary epsilons, and within 1e-6 at an epsilon of 1e-6.

    >>> round(1 / mu_for(1.0, 1e-5), 4)
    3.7306
    """
    require(epsilon > 0, f"epsilon must be positive, got {epsilon}")
    require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
    if math.isinf(epsilon):
        return math.inf
    low, high = 0.0, 1.0
    while _at_most(epsilon, high) <= delta:
        low, high = high, 2 * high
    while high - low > _MARGIN * high:
        middle = (low + high) / 2
        # `low` keeps the guarantee at every step, so stopping early is safe.
        low, high = (middle, high) if _at_most(epsilon, middle) <= delta else (low, middle)
    return low * (1 - _MARGIN)


@lru_cache(maxsize=1024)
def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon for which a mu-Gaussian mechanism is (epsilon, delta)-private, rounded up.

    >>> round(epsilon_of(mu_for(1.0, 1e-6), 1e-6), 9)
    1.0
    """
    require(mu >= 0, f"mu must not be negative, got {mu}")
    require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
    if _at_most(0.0, mu) <= delta:
        return 0.0
    if math.isinf(mu):
        return math.inf
    low, high = 0.0, 1.0
    while _at_most(high, mu) > delta:
        low, high = high, 2 * high
    while high - low > _MARGIN * high:
        middle = (low + high) / 2
        # Here `high` keeps the guarantee at every step.
        low, high = (low, middle) if _at_most(middle, mu) <= delta else (middle, high)
    return high


def normal_cdf(x: float) -> float:
    """Phi(x), the probability that a standard normal is at most x."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def scaled_erfc(x: float) -> float:
    """exp(x^2) erfc(x) for x above -26, within a few units of the last place. A device has no memory for scipy."""
    if x > _SERIES:
        # 1 - 1/(2 x^2) + 1 3/(2 x^2)^2 - ... over x sqrt(pi): from here on ten terms leave less than rounding does.
        step, total = 1 / (2 * x * x), 1.0
        for odd in range(17, 0, -2):
            total = 1.0 - odd * step * total
        return total / (x * math.sqrt(math.pi))
    square = x * x
    # What was rounded off the square (Dekker 1971): without it the exponential would be wrong by x^2 times as much.
    high = (_SPLIT * x) - (_SPLIT * x - x)
    rest = ((high * high - square) + 2 * high * (x - high)) + (x - high) ** 2
    return math.exp(square) * (1 + rest) * math.erfc(x)


@final
@dataclass(frozen=True, slots=True)
class ExactSum:
    """A sum of floats and of squares of floats without any rounding, whatever their order, also after some were taken out again.

    However many charges there are and however small, none of them is lost: a filter on a rounded sum would let dust through.

    >>> total = ExactSum().square(1.0)
    >>> for _ in range(1000):
    ...     total = total.square(1e-9)
    >>> 1.0 + 1e-9**2, float(f"{total.square(1.0, -1).value:.9g}")
    (1.0, 1e-15)
    """

    # Every finite float is a whole multiple of 2^-1074, and its square one of 2^-2148: an integer holds any sum of them.
    units: int = 0
    infinite: int = 0

    def add(self, term: float, times: int = 1) -> "ExactSum":
        """With a term more, so many times."""
        if math.isinf(term):
            return ExactSum(self.units, self.infinite + times)
        top, bottom = term.as_integer_ratio()
        return ExactSum(self.units + times * (top << (_BITS + 1 - bottom.bit_length())), self.infinite)

    def square(self, mu: float, times: int = 1) -> "ExactSum":
        """With the square of `mu` more, so many times."""
        if math.isinf(mu):
            return ExactSum(self.units, self.infinite + times)
        top, bottom = mu.as_integer_ratio()
        return ExactSum(self.units + times * (top * top << (_BITS + 2 - 2 * bottom.bit_length())), self.infinite)

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        try:
            return math.inf if self.infinite else self.units / (1 << _BITS)
        except OverflowError:
            return math.inf


def fits(squares: float, mu: float, *, rounding: float = ROUNDING) -> bool:
    """Whether a sum of squared mu is within the square of `mu`, but for the rounding of shares.

    >>> fits(0.25, 0.5), fits(0.25 + 1e-12, 0.5)
    (True, False)
    """
    limit = mu * (1 + rounding)
    return squares <= limit * limit


def largest_epsilon(mu: float, delta: float) -> float:
    """The largest epsilon, to three digits after the point, whose `mu_for` at `delta` is at most `mu`; 0 if there is none.

    >>> largest_epsilon(mu_for(0.5, 1e-6), 1e-6)
    0.5
    """
    if not mu > 0:
        return 0.0
    # Rounded to the nearest after `epsilon_of` rounded up, and then tried.
    steps = round(min(1000 * epsilon_of(mu, delta), 1e15))
    return next(
        (step / 1000 for step in (steps, steps - 1) if step > 0 and mu_for(step / 1000, delta) <= mu * (1 + ROUNDING)), 0.0
    )
