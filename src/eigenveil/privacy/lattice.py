"""`Lattice`: the public terms of integer noise for one study, and the way from numbers to integers modulo 2^64 and back.

Sites round their parts to multiples of a step, add a Skellam share each, and send the result under masks; the hub reads the sum
of the survivors and nothing else. The honest shares among them add up to noise of `deviation` steps, which is a rounded
Gaussian but for a part in `deviation` squared, so that ledgers stay Gaussian. The proof is docs/integer-noise.md.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.accounting import Budget
from eigenveil.privacy.skellam import ERROR, TAIL

__all__ = ["Lattice", "pack", "packed_size", "unpack"]

# Total variation between Skellam noise of variance s^2 and a rounded normal of variance s^2 - 1/12 is at most this over s^2.
ROUNDED_NORMAL = 1 / 3
# The smallest and the largest deviation; in between, whichever power of two is enough.
_SMALLEST, _LARGEST = 1 << 24, 1 << 46
# With more sites than this a share would be smaller than the sampler's proof allows.
_MOST_SITES = 1 << 20
# What integers may cost: of delta for not being Gaussian, of mu for rounding; and of epsilon for the sampler.
_COST, _SAMPLER = 1e-3, 1e-2
# Entries are cut to this many steps. Up to there two roundings in floating point and one to an integer move an entry by less
# than eight steps, so two neighbours by less than sixteen more than they differ.
_CUT, _BOTH = 1 << 55, 16.0
# Terms that would cut sums over fewer people at a site than this are none.
_FEWEST = 1000
# Slack for what is computed in floating point about sensitivities and steps.
_SLACK = 1 + 2.0**-40
# Without noise: the most steps to a unit of sensitivity, as a power of two; doubles have no more digits.
_FINEST = 52
# Below this a step is too near zero for floating point, and above its inverse too near infinity.
_TINY = 2.0**-900
# What the parts of a budget are kept apart by, because they are added up in floating point.
_MARGIN = 1e-12
_SQRT2 = math.sqrt(2)


@final
@dataclass(frozen=True, slots=True)
class Lattice:
    """The terms: who may be missing or lie, how much noise there is, and what is left for the Gaussian account.

    Of `sites`, at least `survivors` are in each sum; `colluders` of them may tell the hub their noise, and the masks may lose
    `loss` more. The noise of the others, the `honest` ones, is at least that of `deviation` steps; more survivors only add
    independent noise. `gaussian` is what ledgers are opened with; all of it spent, the study is within `budget`.

    >>> lattice = Lattice.within(
    ...     Budget(1.0, 1e-6), coordinates=10**6, sites=20, survivors=20, colluders=1, entries=10**4, smallest=0.01
    ... )
    >>> lattice.deviation == 2**27, lattice.honest, lattice.gaussian.epsilon < 1.0
    (True, 19, True)
    """

    sites: int
    survivors: int
    colluders: int
    loss: int
    coordinates: int
    failure: float
    deviation: int
    budget: Budget | None
    gaussian: Budget | None
    # Without noise: steps to a unit of sensitivity, as a power of two.
    bits: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.sites <= _MOST_SITES, f"sites must lie between 1 and {_MOST_SITES}, got {self.sites}")
        require(
            1 <= self.survivors <= self.sites,
            f"survivors must lie between 1 and the number of sites, {self.sites}, got {self.survivors}",
        )
        require(self.colluders >= 0, f"colluders must not be negative, got {self.colluders}")
        require(self.loss >= 0, f"loss must not be negative, got {self.loss}")
        require(
            self.honest >= 1,
            f"survivors must be more than colluders and loss together, got {self.survivors} survivors, "
            f"{self.colluders} colluders and a loss of {self.loss}",
        )
        if self.budget is None or self.gaussian is None:
            require(self.budget is self.gaussian and self.deviation == 0, "without a budget there must be no noise")
            return
        require(self.coordinates >= 1, f"coordinates must be at least 1, got {self.coordinates}")
        require(
            _SMALLEST <= self.deviation <= _LARGEST,
            f"deviation must lie between 2^24 and 2^46, got {self.deviation}",
        )
        epsilon, delta = _cost(self.gaussian, self.coordinates, self.honest, self.deviation)
        require(
            epsilon <= self.budget.epsilon and delta + self.failure <= self.budget.delta,
            f"these terms must stay within {self.budget}, got epsilon {epsilon} and delta {delta + self.failure}",
        )

    @classmethod
    def within(
        cls,
        budget: Budget,
        *,
        coordinates: int,
        sites: int,
        survivors: int,
        colluders: int,
        entries: int,
        smallest: float,
        several: int = 1,
        loss: int = 0,
        failure: float = 0.0,
    ) -> "Lattice":
        """The terms that keep a whole study within `budget`, with the fewest steps that cost next to nothing.

        `coordinates` is the most integers that are ever released; `entries` the most in one release, and `smallest` the least
        share of mu^2 that a release has: they say how fine the steps must be. `several` is at how many sites one person may be.
        `failure` is the probability that the masks hide less than they should.
        """
        require(math.isfinite(budget.epsilon), f"epsilon must be finite, got {budget.epsilon}")
        require(coordinates >= 1, f"coordinates must be at least 1, got {coordinates}")
        require(1 <= entries <= coordinates, f"entries must lie between 1 and {coordinates}, got {entries}")
        require(0 < smallest <= 1, f"smallest must lie in (0, 1], got {smallest}")
        require(several >= 1, f"several must be at least 1, got {several}")
        require(
            0 <= failure < budget.delta / 10,
            f"failure must be less than a tenth of delta, {budget.delta}, got {failure}",
        )
        honest = survivors - colluders - loss
        require(honest >= 1, f"survivors must be more than colluders and loss together, got {survivors} survivors")
        # A first guess at mu, from below: the checks here leave the Gaussian more than this of epsilon and delta.
        mu = Budget(0.98 * budget.epsilon, 0.8 * budget.delta).mu * math.sqrt(smallest)
        close = (1 + math.exp(min(budget.epsilon, 200.0))) * coordinates * ROUNDED_NORMAL / (_COST * budget.delta)
        fine = _BOTH * math.sqrt(entries) * several / (_COST * mu)
        bits = max(24, math.ceil(math.log2(max(math.sqrt(close), fine))))
        require(
            2**bits <= _LARGEST,
            f"epsilon = {budget.epsilon} must be smaller, or delta = {budget.delta} larger, for integer noise on {coordinates} "
            "numbers"
            if close > fine * fine
            else f"{smallest:.2g} of the budget is too little for a release of {entries} numbers: ask for fewer rounds",
        )
        drift, beside = _beside(budget.epsilon, coordinates, honest, 1 << bits)
        require(
            2 * drift <= _SAMPLER * min(1.0, budget.epsilon),
            f"coordinates must be fewer at epsilon = {budget.epsilon}, got {coordinates}: ask for fewer turns",
        )
        gaussian = Budget(
            (budget.epsilon - 2 * drift) * (1 - _MARGIN),
            ((budget.delta - failure) * math.exp(-drift) - beside) * (1 - _MARGIN),
        )
        found = cls(sites, survivors, colluders, loss, coordinates, failure, 1 << bits, budget, gaussian)
        require(
            found.people >= _FEWEST,
            f"epsilon = {budget.epsilon} must be smaller, or delta = {budget.delta} larger: with integer noise on {coordinates} "
            f"numbers, sums over more than {found.people} people at a site would be cut",
        )
        return found

    @classmethod
    def exact(cls, *, sites: int, people: float = 2.0**20) -> "Lattice":
        """The terms without privacy: no noise, an error instead of a cut, and steps as fine as so many `people` at a site allow.

        >>> Lattice.exact(sites=3).deviation, Lattice.exact(sites=4, people=1000).bits
        (0, 49)
        """
        room = math.log2((2**62 // sites) / max(people, 1.0))
        return cls(sites, sites, 0, 0, 0, 0.0, 0, None, None, min(_FINEST, math.floor(room) - 1))

    @property
    def private(self) -> bool:
        """Whether there is noise at all."""
        return self.deviation > 0

    @property
    def honest(self) -> int:
        """How many shares can be counted on in every sum."""
        return self.survivors - self.colluders - self.loss

    @property
    def share_variance(self) -> float:
        """The variance of one site's share, in squared steps: `honest` of them are at least that of `deviation`."""
        share = self.deviation**2 / self.honest
        return share if Fraction(share) * self.honest >= self.deviation**2 else math.nextafter(share, math.inf)

    @property
    def most(self) -> int:
        """The most steps that an entry of one site may have: so many that the sum over all sites cannot wrap around."""
        room = 2**62 // self.sites
        return min(_CUT, room) if self.private else room

    @property
    def people(self) -> int:
        """How many people at one site have room in a part, all of them at their bound in one direction; more are cut."""
        if self.gaussian is None:
            return self.most >> self.bits
        return int(self.most / (self.gaussian.mu * self.deviation))

    def step(self, sensitivity: float, *, mu: float, size: int, several: int = 1) -> float:
        """The grid step for `size` entries that one person moves by `sensitivity` at each of `several` sites, to be mu-private.

        Integers of neighbours are at most several * (sensitivity / step + 16 sqrt(size)) apart, see `integers`, and the
        noise is that of a rounded normal of deviation sqrt(s^2 - 1/12): the step is where the ratio of the two is mu.
        """
        require(0 < sensitivity < math.inf, f"sensitivity must be positive and finite, got {sensitivity}")
        if not self.private:
            return sensitivity / 2.0**self.bits
        require(1 <= size <= self.coordinates, f"size must lie between 1 and {self.coordinates}, got {size}")
        require(0 < mu < math.inf, f"mu must be positive and finite, got {mu}")
        require(several >= 1, f"several must be at least 1, got {several}")
        allowed = mu * math.sqrt(self.deviation**2 - 1 / 12) / several
        rounding = _BOTH * math.sqrt(size)
        require(
            rounding <= 0.01 * allowed,
            f"size must be smaller for steps this coarse, got {size} at mu = {mu} and {self.deviation} steps of noise",
        )
        step = _SLACK * sensitivity / (allowed - rounding)
        require(_TINY < step < 1 / _TINY, f"sensitivity must be a number of ordinary size, got {sensitivity}")
        return step

    def integers(self, values: Array, step: float) -> NDArray[np.int64]:
        """`values`, (n,), as whole steps, the nearest ones, cut to `most`; under `exact` an error in place of a cut.

        Cutting brings no two numbers further apart, and refusing would tell of a person by an error. Rounding: up to 2^55 steps
        a quotient of floating-point numbers is off by at most 2 steps, one of packed numbers, which were rounded before, by
        6, and the nearest integer of either is less than 1 away: together less than 8, for each of two neighbours.
        """
        with np.errstate(over="ignore"):
            steps: Array = np.divide(values, step)
        np.rint(steps, out=steps)
        if not self.private:
            # Said without a number: this may be somebody's log.
            sound = bool((np.abs(steps) <= self.most).all())
            require(sound, "a part must be finite and small enough to be added up; divide the rows by something first")
        # What is not a number has no bound to keep, and goes as zero.
        np.copyto(steps, 0.0, where=np.isnan(steps))
        np.clip(steps, -self.most, self.most, out=steps)
        return steps.astype(np.int64)

    def values(self, words: NDArray[np.uint64], step: float) -> Array:
        """A sum modulo 2^64, (n,), read as signed steps."""
        numbers = words.view(np.int64).astype(np.float64)
        numbers *= step
        return numbers


def _beside(epsilon: float, coordinates: int, honest: int, deviation: int) -> tuple[float, float]:
    """What the sampler adds to the logarithm of any probability, and what not being Gaussian adds to delta before that.

    drift = n eta for n = coordinates * honest draws; (1 + e^epsilon) coordinates / (3 s^2) + e^epsilon n zeta.
    """
    draws = coordinates * honest
    factor = math.exp(epsilon)
    far = (1 + factor) * coordinates * ROUNDED_NORMAL / deviation**2 + factor * draws * TAIL
    return draws * ERROR, far


def _cost(gaussian: Budget, coordinates: int, honest: int, deviation: int) -> tuple[float, float]:
    """The epsilon and delta of a Gaussian account of this budget when it is carried out with integers."""
    drift, beside = _beside(gaussian.epsilon, coordinates, honest, deviation)
    return gaussian.epsilon + 2 * drift, math.exp(drift) * (gaussian.delta + beside)


def packed_size(shape: tuple[int, ...], *, symmetric: bool) -> int:
    """How many numbers `pack` makes of an array of this shape.

    >>> packed_size((3, 3), symmetric=True), packed_size((3, 2), symmetric=False)
    (6, 6)
    """
    return shape[0] * (shape[0] + 1) // 2 if symmetric else math.prod(shape)


def pack(value: Array, *, symmetric: bool) -> Array:
    """`value` as a flat copy. Of a symmetric matrix only the upper triangle, entries off the diagonal times sqrt(2).

    The Euclidean norm is then the Frobenius norm of the whole, and noise of one size on all entries makes the symmetrised
    noise of `Gaussian`.

    >>> pack(np.array([[1.0, 2.0], [2.0, 3.0]]), symmetric=True).round(3).tolist()
    [1.0, 2.828, 3.0]
    """
    if not symmetric:
        return np.array(value, dtype=np.float64).ravel()
    dim, start = len(value), 0
    flat = np.empty(packed_size(value.shape, symmetric=True))
    with np.errstate(over="ignore"):
        for i in range(dim):
            flat[start] = value[i, i]
            np.multiply(value[i, i + 1 :], _SQRT2, out=flat[start + 1 : start + dim - i])
            start += dim - i
    return flat


def unpack(flat: Array, shape: tuple[int, ...], *, symmetric: bool) -> Array:
    """The array of this shape that `pack` made flat.

    >>> unpack(np.array([1.0, 2 * math.sqrt(2), 3.0]), (2, 2), symmetric=True).round(9).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    size = packed_size(shape, symmetric=symmetric)
    require(flat.shape == (size,), f"a part of shape {shape} must have {size} numbers, got {flat.shape}")
    if not symmetric:
        return flat.reshape(shape)
    dim, start = shape[0], 0
    value = np.empty(shape)
    for i in range(dim):
        value[i, i] = flat[start]
        np.divide(flat[start + 1 : start + dim - i], _SQRT2, out=value[i, i + 1 :])
        value[i + 1 :, i] = value[i, i + 1 :]
        start += dim - i
    return value
