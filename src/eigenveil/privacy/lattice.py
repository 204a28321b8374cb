"""Where noise is added under masks: `Share` is what a site sends, and `read` is how the hub decodes the sum.

Both compute the same step from public numbers. A share is not itself a release: alone it would protect no one well, and under
masks no party sees it alone. What is released is the sum over the survivors. Still, each site charges its ledger before its share
leaves, because nothing can be taken back.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger, Slot
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import CAPACITY, LARGEST_SCALE, REACH, Noise, distance_in_steps, step_of, steps_of, values_of
from eigenveil.errors import require, require_param
from eigenveil.linalg import Array
from eigenveil.privacy.released import pack, packed_noise, unpack

__all__ = ["Lattice", "Share", "read"]

# h shares of deviation s have s >= 32 sqrt(h), or s / sqrt(2) off the diagonal of a symmetric array. A number in their sum is
# then within (h - 1) exp(-pi^2 32^2) < 10^-4380 of rounded Gaussian noise.
_SMOOTH = 32.0
# The proof needs no limit. But sites are numbered in four bytes, and each site's noise needs room next to the others'.
_MOST_SITES = 1 << 20
# Terms are refused if sums over fewer people than this at a site would be clipped.
_FEWEST = 1000
# The sum over all sites must lie within 2^63: half of it is for values and half for noise.
_ROOM = 1 << 62
# Covers the rounding of the few operations that compute a deviation.
_SLACK = 1 + 2.0**-40
# Without noise: the most steps to a unit of sensitivity, as a power of two; doubles have no more digits.
_FINEST = 52
# A mu below this, or above its inverse, is a mistake.
_TINY = 2.0**-900
# A margin between the parts of a budget, because they are added up in floating point.
_MARGIN = 1e-12


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """The terms: what may be spent, how many sites may be missing, and how many may collude.

    Of `sites`, at least `survivors` are in each sum. Up to `colluders` of them may tell the hub their noise, and the masks may
    fail to hide `loss` more. The charge counts only the noise of the others, the `honest` sites; more survivors add to it.
    With probability `failure` the masks hide less than they should. That is part of delta, and `gaussian` is the rest, for
    ledgers.

    >>> lattice = Lattice(budget=Budget(1.0, 1e-6), sites=20, survivors=20, colluders=1)
    >>> lattice.honest, lattice.gaussian
    (19, Budget(epsilon=1.0, delta=1e-06))
    """

    budget: Budget | None
    _: KW_ONLY
    sites: int
    survivors: int
    colluders: int
    loss: int = 0
    failure: float = 0.0
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
        if self.budget is not None:
            require(math.isfinite(self.budget.epsilon), f"epsilon must be finite, got {self.budget.epsilon}")
            require(
                0 <= self.failure < self.budget.delta / 10,
                f"failure must be less than a tenth of delta, {self.budget.delta}, got {self.failure}",
            )

    @classmethod
    def exact(cls, *, sites: int, people: float = 2.0**20) -> "Lattice":
        """The terms without privacy: no noise, an error instead of clipping, and steps as fine as `people` at a site allow.

        >>> Lattice.exact(sites=3).private, Lattice.exact(sites=4, people=1000).bits
        (False, 49)
        """
        room = math.log2((_ROOM // sites) / max(people, 1.0))
        return cls(budget=None, sites=sites, survivors=sites, colluders=0, bits=min(_FINEST, math.floor(room) - 1))

    @property
    def private(self) -> bool:
        """Whether there is noise at all."""
        return self.budget is not None

    @property
    def gaussian(self) -> Budget | None:
        """The budget of the ledgers: the whole budget, less the part of delta that covers failing masks."""
        if self.budget is None or self.failure == 0:
            return self.budget
        return Budget(self.budget.epsilon, (self.budget.delta - self.failure) * (1 - _MARGIN))

    @property
    def honest(self) -> int:
        """How many shares can be counted on in every sum."""
        return self.survivors - self.colluders - self.loss

    @property
    def most(self) -> int:
        """The most steps an entry of one site may have before noise. The sum over all sites then cannot wrap around."""
        room = _ROOM // self.sites
        return min(CAPACITY, room) if self.private else room

    def people(self, *, mu: float, size: int, several: int = 1) -> int:
        """How many people at one site fit into a part of `size` numbers without clipping, if all reach their bound in one entry.

        At least min(`CAPACITY`, 2^62 / sites) / max(2^15 sqrt(size), 128 honest mu / several). Sums over more people are clipped
        and no longer useful.

        >>> Lattice(budget=Budget(1.0, 1e-6), sites=5, survivors=5, colluders=1).people(mu=0.2, size=10**6) > 10**7
        True
        """
        # For any bound: all bounds from one power of two to the next have the same step.
        return int(self.most * self.step(1.0, mu=mu, size=size, several=several) / 2)

    def step(self, sensitivity: float, *, mu: float, size: int, several: int = 1) -> float:
        """The step for an array of `size` numbers that one person moves by `sensitivity` at each of `several` sites.

        It follows from public numbers only, by operations that every machine rounds alike. With noise it is g = c / r. Here c is
        the step of any release, `step_of(sensitivity, size)`, and r the least power of two that makes shares large enough to
        add up.

        A site's value W may differ from the exact value V, of sensitivity D, as in any release
        (`eigenveil.core.noise`): |W - V| <= |V| / (4 L) + c / 4 in every entry, L = `CAPACITY`.
        With K = `integers`, at most L steps, |K - clip(V / g)| <= 1/2 + 1/4 + r / 4 <= r in every entry, so two neighbours are at
        most D / g + 2 r sqrt(size) = r `distance_in_steps(D, size, c)` apart, and their sums over q sites q times that.
        """
        require(0 < sensitivity < math.inf, f"sensitivity must be positive and finite, got {sensitivity}")
        if not self.private:
            return sensitivity / 2.0**self.bits
        coarse, distance = _coarse(sensitivity, mu=mu, size=size, several=several)
        finer = max(0, math.frexp(_SMOOTH * self.honest * mu / distance)[1])
        step = math.ldexp(coarse, -finer)
        require_param(
            self.most * step >= _FEWEST * sensitivity,
            f"a sum of {size} numbers at mu = {mu:.3g} over {self.sites} sites would be clipped with fewer than {_FEWEST} people "
            "at a site. Release fewer numbers, or use a smaller {epsilon}",
        )
        return step

    def deviation(self, sensitivity: float, *, mu: float, size: int, several: int = 1) -> float:
        """The deviation s of one site's share in steps, such that `honest` shares make the sum mu-private; zero without noise.

        It is the distance of neighbours (`step`) over mu sqrt(h), rounded up, and at least 32 sqrt(h). By the smoothing lemma of
        docs/exact-noise.md, up to 10^-4380 in each number:
            K + round(s Z_1) + ... + round(s Z_h)  ~  round(K + N(0, h s^2) + U_1 + ... + U_(h-1)).
        The U_i are uniform on (-1/2, 1/2). The right side is a Gaussian mechanism of deviation s sqrt(h) on the whole numbers K,
        followed by post-processing.
        """
        step = self.step(sensitivity, mu=mu, size=size, several=several)
        if not self.private:
            return 0.0
        coarse, distance = _coarse(sensitivity, mu=mu, size=size, several=several)
        deviation = distance * (coarse / step) / (mu * math.sqrt(self.honest)) * _SLACK
        require_param(
            deviation <= LARGEST_SCALE and REACH * deviation + 1 <= _ROOM // self.sites,
            f"mu = {mu:.3g} is too small for a sum of {size} numbers over {self.sites} sites. Use fewer {{rounds}}, or a "
            "larger {epsilon}",
        )
        return deviation

    def integers(self, values: Array, step: float) -> NDArray[np.int64]:
        """`values`, (n,), rounded to whole steps and clipped to `most`; under `exact` an error instead of clipping.

        Clipping moves no two numbers further apart. An error instead would reveal something about a person.
        """
        if not self.private:
            # The error shows no number, because it may end up in a log. NaN fails the comparison too.
            with np.errstate(over="ignore"):
                sound = bool((np.abs(values / step) <= self.most).all())
            require(sound, "the rows are too large to be added up, or not finite; scale them down first")
        return steps_of(values, step, max_steps=self.most)

    def values(self, limbs: NDArray[np.uint64], step: float) -> Array:
        """A sum modulo 2^64, (n,), read as signed steps."""
        return values_of(limbs.view(np.int64), step)


def _coarse(sensitivity: float, *, mu: float, size: int, several: int) -> tuple[float, float]:
    """The step of any release, and the distance of neighbours in such steps, in the sum over all sites."""
    require(size >= 1, f"size must be at least 1, got {size}")
    require(_TINY < mu < 1 / _TINY, f"mu must be positive and finite, got {mu}")
    require(several >= 1, f"several must be at least 1, got {several}")
    coarse = step_of(sensitivity, size)
    return coarse, several * distance_in_steps(sensitivity, size, coarse)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Share:
    """A site's part of a sum, with its part of the noise, as integers modulo 2^64.

    `multiplier` is the deviation of the noise in the whole sum over the sensitivity. With 1 / lattice.gaussian.mu, a share of one
    spends the whole budget. `several` is the number of sites that may have rows of one person. Under `Lattice.exact` there is no
    ledger, no charge and no noise.

    The value is an exact sum, rounded to float64 as `Lattice.step` allows. Rounding it to whole steps is part of the distance
    that the noise covers. The proof covers everything from rows to integers.

    >>> lattice = Lattice.exact(sites=2)
    >>> parts = [
    ...     Share(lattice=lattice, ledger=None, noise=Noise.seeded(1), multiplier=1.0).of(
    ...         Bounded(np.ones(2), 1.0), label="x", share=1.0
    ...     )
    ...     for _ in "ab"
    ... ]
    >>> read(lattice, parts[0] + parts[1], sensitivity=1.0, share=1.0, multiplier=1.0, shape=(2,)).tolist()
    [2.0, 2.0]
    """

    lattice: Lattice
    ledger: Ledger | None
    noise: Noise
    multiplier: float
    several: int = 1

    def __post_init__(self) -> None:
        require(0 < self.multiplier < math.inf, f"multiplier must be positive and finite, got {self.multiplier}")
        require(self.several >= 1, f"several must be at least 1, got {self.several}")
        require(
            (self.ledger is not None) == self.lattice.private,
            "a share with noise must have a ledger, and one without noise must have none",
        )

    def of(self, private: Bounded, *, label: str, share: float, slot: Slot | None = None) -> NDArray[np.uint64]:
        """The packed value in whole steps, with this site's noise, for a `share` in (0, 1] of mu^2, from a `slot` of a stream.

        The order matters: checks of public numbers, then the charge, and only then the value. An error that depended on the
        value would reveal something about the rows.
        """
        require(0 < share <= 1, f"share must lie in (0, 1], got {share}")
        require(
            0 < private.sensitivity < math.inf,
            f"{label!r} has sensitivity {private.sensitivity}; integers need a positive, finite sensitivity",
        )
        shape, mu, lattice = np.shape(private.value), math.sqrt(share) / self.multiplier, self.lattice
        step = lattice.step(private.sensitivity, mu=mu, size=math.prod(shape), several=self.several)
        deviation = lattice.deviation(private.sensitivity, mu=mu, size=math.prod(shape), several=self.several)
        if self.ledger is not None:
            self.ledger.spend(mu, label=label, slot=slot)
        # Values and noise of all sites together stay within 2^63, by `Lattice.most` and `Lattice.deviation`: no sum
        # wraps around.
        integers = lattice.integers(pack(private.value, symmetric=private.symmetric), step)
        if lattice.private:
            integers += packed_noise(self.noise, deviation, shape, symmetric=private.symmetric)
        return integers.view(np.uint64)


def read(
    lattice: Lattice,
    limbs: NDArray[np.uint64],
    *,
    sensitivity: float,
    share: float,
    multiplier: float,
    shape: tuple[int, ...],
    symmetric: bool = False,
    several: int = 1,
) -> Array:
    """The array of `shape` whose shares of this sensitivity add up to `limbs`, (size,), modulo 2^64. All of this is public."""
    # The same operations as in `Share.of`: a step of another last digit would misread every number.
    step = lattice.step(sensitivity, mu=math.sqrt(share) / multiplier, size=math.prod(shape), several=several)
    return unpack(lattice.values(limbs, step), shape, symmetric=symmetric)
