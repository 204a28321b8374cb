"""Where noise is added under masks: `Share` is what a site sends, and `read` is how the hub decodes the sum.

Both compute the same step from public numbers. A share is not itself a release: alone it would protect nobody well, and under
masks nobody sees it alone. What is released is the sum over the survivors. Still, each site charges its ledger before its share
leaves, because nothing can be taken back.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.ledger import Ledger, Slot
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import Noise
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.integers.lattice import Lattice
from eigenveil.privacy.packed import pack, packed_noise, unpack

__all__ = ["Share", "read"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Share:
    """A site's part of a sum, with its part of the noise, as integers modulo 2^64.

    `multiplier` is the deviation of the noise in the whole sum over the sensitivity. With 1 / lattice.gaussian.mu, a share of one
    spends the whole budget. `several` is the number of sites that may have rows of one person. Under `Lattice.exact` there is no
    ledger, no charge and no noise.

    The value is an exact sum, rounded to float64 as `Lattice.step` allows. Rounding it to whole steps is part of the distance
    that the noise covers. So the proof covers everything from rows to integers.

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
        # Values and noise of all sites together stay within 2^63, by `Lattice.most` and `Lattice.deviation`. So no sum
        # wraps around.
        integers = lattice.integers(pack(private.value, symmetric=private.symmetric), step)
        if lattice.private:
            integers += packed_noise(self.noise, deviation, shape, symmetric=private.symmetric)
        return integers.view(np.uint64)


def read(
    lattice: Lattice,
    words: NDArray[np.uint64],
    *,
    sensitivity: float,
    share: float,
    multiplier: float,
    shape: tuple[int, ...],
    symmetric: bool = False,
    several: int = 1,
) -> Array:
    """The array of `shape` whose shares of this sensitivity add up to `words`, (size,), modulo 2^64. All of this is public."""
    # The same operations as in `Share.of`: a step of another last digit would misread every number.
    step = lattice.step(sensitivity, mu=math.sqrt(share) / multiplier, size=math.prod(shape), several=several)
    return unpack(lattice.values(words, step), shape, symmetric=symmetric)
