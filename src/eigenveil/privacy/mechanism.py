"""`Mechanism`: the only way from private to public. The ledger is charged first, the noise drawn second.

Where a mechanism stands is the trust model: `Gaussian` at the hub trusts the hub as curator, `Gaussian` at the sites
trusts nobody else. Tasks take whatever they are handed and do not change.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.bounded import Bounded
from eigenveil.privacy.ledger import Ledger, Slot
from eigenveil.privacy.noise import Noise

__all__ = ["Exact", "Gaussian", "Mechanism", "Portion"]

_STRIP = 256


class Mechanism(ABC):
    """Turns a private array into a public one."""

    @abstractmethod
    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The public version of `private`, recorded under `label`, for a `share` in (0, 1] of this mechanism's mu^2.

        `slot` says from which of several disjoint slots of a stream it comes.
        """

    @abstractmethod
    def release_parts(
        self, parts: Iterable[Array], *, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Iterator[Array]:
        """The public versions of the `parts` of one private array, each as it is computed; one charge for all of them.

        `sensitivity` is that of the whole array (Frobenius). The charge is on the ledger before the first part is asked for.
        """

    @abstractmethod
    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """The standard deviation of the noise on each entry of a release of this sensitivity."""


@final
@dataclass(frozen=True, slots=True)
class Exact(Mechanism):
    """Releases the value itself. `because` says why that is right here: no privacy asked, or noise added elsewhere.

    >>> Exact(because="public data").release(Bounded(np.ones(1), 1.0), label="sum").tolist()
    [1.0]
    """

    because: str

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The value as it is; nothing is charged."""
        return private.value

    def release_parts(
        self, parts: Iterable[Array], *, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Iterator[Array]:
        """The parts as they are."""
        return iter(parts)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """None."""
        return 0.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Gaussian(Mechanism):
    """Adds normal noise of standard deviation sensitivity * multiplier / sqrt(share), and charges sqrt(share) / multiplier.

    A symmetric value gets symmetric noise: a full matrix N of independent entries, then (N + N^T) / 2. The value being
    symmetric, that is post-processing of value + N, and halves the variance off the diagonal for nothing.

    `carried` is the multiplier of independent noise of the same kind that the value brings along already, from whoever it
    comes from; only the rest is added. Independent normals add up in variance, so who sees only what is released here
    sees `multiplier` in all.

    >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
    >>> noisy = Gaussian(5.0, ledger, Noise.seeded(1)).release(Bounded(np.zeros(2), 1.0), label="sum")
    >>> noisy.shape, ledger.charges[0].label, ledger.charges[0].mu
    ((2,), 'sum', 0.2)
    """

    multiplier: float
    ledger: Ledger
    noise: Noise
    carried: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.multiplier < math.inf, f"multiplier must be positive and finite, got {self.multiplier}")
        require(
            0 <= self.carried <= self.multiplier,
            f"carried must lie between 0 and the multiplier, {self.multiplier}, got {self.carried}",
        )

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The noisy value; the charge is on the ledger before any noise is drawn."""
        scale = self._charged(private.sensitivity, label, share, slot)
        if private.symmetric:
            return _plus_symmetric(private.value, scale, self.noise)
        return self._plus(private.value, scale)

    def release_parts(
        self, parts: Iterable[Array], *, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Iterator[Array]:
        """The noisy parts: noise of the same size on every entry, as on the whole array, never symmetric."""
        scale = self._charged(sensitivity, label, share, slot)
        return (self._plus(part, scale) for part in parts)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """Sensitivity times multiplier, more where the share is less."""
        return sensitivity * self.multiplier / math.sqrt(share)

    def _charged(self, sensitivity: float, label: str, share: float, slot: Slot | None) -> float:
        """Charge the ledger, and return the standard deviation that this has paid for."""
        require(0 < share <= 1, f"share must lie in (0, 1], got {share}")
        require(
            0 < sensitivity < math.inf,
            f"{label!r} has sensitivity {sensitivity}; noise needs a positive, finite one",
        )
        self.ledger.spend(math.sqrt(share) / self.multiplier, label=label, slot=slot)
        if self.carried == 0:
            return self.scale(sensitivity, share=share)
        rest = max(0.0, 1.0 - (self.carried / self.multiplier) ** 2)
        return self.scale(sensitivity, share=share) * math.sqrt(rest)

    def _plus(self, value: Array, scale: float) -> Array:
        released = self.noise.normal(np.shape(value))
        released *= scale
        released += value
        return released


@final
@dataclass(frozen=True, slots=True, eq=False)
class Portion(Mechanism):
    """A part of another mechanism's budget: shares of this one are shares of its `fraction` of mu^2.

    >>> half = Portion(Gaussian(5.0, Ledger(epsilon=1.0, delta=1e-6), Noise.seeded(1)), 0.25)
    >>> half.scale(1.0)
    10.0
    """

    whole: Mechanism
    fraction: float

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, f"fraction must lie in (0, 1], got {self.fraction}")

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """Through the whole, for a smaller share."""
        return self.whole.release(private, label=label, share=share * self.fraction, slot=slot)

    def release_parts(
        self, parts: Iterable[Array], *, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Iterator[Array]:
        """Through the whole, for a smaller share."""
        return self.whole.release_parts(
            parts, sensitivity=sensitivity, label=label, share=share * self.fraction, slot=slot
        )

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """That of the whole, for a smaller share."""
        return self.whole.scale(sensitivity, share=share * self.fraction)


def _plus_symmetric(value: Array, scale: float, noise: Noise) -> Array:
    """`value`, (d, d), plus (N + N^T) / 2 with N of independent entries of size `scale`, drawn a strip at a time."""
    dim = len(value)
    total = np.array(value)
    for start in range(0, dim, _STRIP):
        stop = min(start + _STRIP, dim)
        strip = noise.normal((stop - start, dim - start))
        square, beside = strip[:, : stop - start], strip[:, stop - start :]
        total[start:stop, start:stop] += (scale / 2) * (square + square.T)
        # (N_ij + N_ji) / 2 of two independent entries has the law of N_ij / sqrt(2): one draw serves both places.
        beside *= scale / math.sqrt(2)
        total[start:stop, stop:] += beside
        total[stop:, start:stop] += beside.T
    return total
