"""`Share`: what a site sends under masks, and `read`: what the hub makes of the sum. Both find the same step from public numbers.

A share is not itself a release: alone it would protect nobody well, and under masks nobody sees it alone. What is released
is the sum over the survivors. Yet each site charges its ledger before its share leaves, because nothing can be taken back.
"""

import math
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import BudgetExceeded, require
from eigenveil.linalg import Array
from eigenveil.privacy.bounded import Bounded
from eigenveil.privacy.lattice import Lattice, pack, packed_size, unpack
from eigenveil.privacy.ledger import Ledger
from eigenveil.privacy.noise import Noise
from eigenveil.privacy.skellam import Skellam

__all__ = ["Share", "read"]


@final
@dataclass(slots=True, eq=False)
class Share:
    """A site's part of a sum, with its part of the noise, as integers modulo 2^64. Changes in place: it counts what it sends.

    `multiplier` is that of the noise in the whole sum, over the sensitivity: 1 / lattice.gaussian.mu spends all at a share of
    one. `several` is at how many sites one person may be. The lattice is for so many integers, and no more leave than that.
    Under `Lattice.exact` there is no ledger, no charge and no noise.

    >>> lattice = Lattice.exact(sites=2)
    >>> parts = [Share(lattice, None, Noise.seeded(1), 1.0).of(Bounded(np.ones(2), 1.0), label="x", share=1.0) for _ in "ab"]
    >>> read(lattice, parts[0] + parts[1], sensitivity=1.0, share=1.0, multiplier=1.0, shape=(2,)).tolist()
    [2.0, 2.0]
    """

    lattice: Lattice
    ledger: Ledger | None
    noise: Noise
    multiplier: float
    several: int = 1
    sent: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        require(0 < self.multiplier < math.inf, f"multiplier must be positive and finite, got {self.multiplier}")
        require(self.several >= 1, f"several must be at least 1, got {self.several}")
        require(
            (self.ledger is not None) == self.lattice.private,
            "a share with noise must have a ledger, and one without noise must have none",
        )

    def of(self, private: Bounded, *, label: str, share: float) -> NDArray[np.uint64]:
        """The packed value, (size,), rounded and with this site's noise, for a `share` in (0, 1] of mu^2.

        Checks of public numbers come first, then the charge, and only then the value is looked at.
        """
        require(0 < share <= 1, f"share must lie in (0, 1], got {share}")
        require(
            0 < private.sensitivity < math.inf,
            f"{label!r} has sensitivity {private.sensitivity}; integers need a positive, finite one",
        )
        size = packed_size(np.shape(private.value), symmetric=private.symmetric)
        step = _step(
            self.lattice,
            private.sensitivity,
            share=share,
            multiplier=self.multiplier,
            size=size,
            several=self.several,
        )
        if self.ledger is not None:
            self._require_room(size)
            self.ledger.spend(math.sqrt(share) / self.multiplier, label=label)
            self.sent += size
        integers = self.lattice.integers(pack(private.value, symmetric=private.symmetric), step)
        if self.lattice.private:
            integers += Skellam(self.lattice.share_variance).draw(self.noise, len(integers))
        return integers.view(np.uint64)

    def recall(self, size: int) -> None:
        """So many integers were sent before the site was stopped, and are on its ledger."""
        if self.ledger is not None:
            self.sent += size

    def _require_room(self, size: int) -> None:
        """The account is for so many integers: a hub that asks for little at a time must not get more of them out.

        Those of a person at several sites count together, as the hub may have one of them in one sum and another in the next.
        """
        room = self.lattice.coordinates // self.several
        if self.sent + size > room:
            raise BudgetExceeded(
                f"{room} numbers were agreed on for the study, of which {self.sent} are sent, and {size} more are asked for"
            )


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
    """The array of `shape` whose shares of this sensitivity add up to `words`, (size,), modulo 2^64. All of it is public."""
    size = packed_size(shape, symmetric=symmetric)
    step = _step(lattice, sensitivity, share=share, multiplier=multiplier, size=size, several=several)
    return unpack(lattice.values(words, step), shape, symmetric=symmetric)


def _step(lattice: Lattice, sensitivity: float, *, share: float, multiplier: float, size: int, several: int) -> float:
    """The one place where sites and hub find their step."""
    return lattice.step(sensitivity, mu=math.sqrt(share) / multiplier, size=size, several=several)
