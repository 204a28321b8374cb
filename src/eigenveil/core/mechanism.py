"""This is where noise is added: `Mechanism.release` makes a private number public. The ledger is charged before noise is drawn.

Where a mechanism stands is the trust model: `Gaussian` at the hub trusts the hub, `Gaussian` at the sites trusts no other party.
Tasks work with any mechanism and do not change. A `Gaussian` releases whole numbers of public steps, with noise drawn exactly
(`eigenveil.core.noise`). Two other places add noise to parts of a sum: `privacy/lattice.py` under masks, and
`privacy/paired.py` between peers. Large matrices are released in pieces in `privacy/released.py`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from eigenveil.core.ledger import Ledger, Purpose, Reserve, Slot
from eigenveil.core.noise import ROOT_HALF, Noise, RoundedGaussian, distance_in_steps, step_of, steps_of, values_of
from eigenveil.core.threads import Array, prefetch
from eigenveil.errors import require

__all__ = ["STRIP", "Bounded", "Calibrated", "Exact", "Gaussian", "Mechanism", "symmetric_noise"]

# Rows of a symmetric matrix, and numbers of any other array, that get noise at a time: working memory stays small.
STRIP, _CHUNK = 256, 1 << 19


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """A private `value` of any shape, and its Euclidean (Frobenius) `sensitivity`.

    `symmetric` says that the value is a symmetric matrix, so that noise may be symmetric too. Printing a `Bounded` shows no
    private number.

    >>> Bounded(np.zeros(3), 1.0)
    Bounded(shape=(3,), sensitivity=1.0)
    """

    value: Array
    sensitivity: float
    symmetric: bool = False

    def __post_init__(self) -> None:
        if not self.sensitivity >= 0:
            raise ValueError(f"sensitivity must not be negative, got {self.sensitivity}")

    def __repr__(self) -> str:
        return f"Bounded(shape={np.shape(self.value)}, sensitivity={self.sensitivity})"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """The noise of one release that has been charged: round(`deviation` Z) whole steps of size `step`, drawn from `noise`.

    The deviation is zero where a value's own noise is enough.
    """

    step: float
    deviation: float
    noise: Noise

    def plus(self, value: Array, more: Any) -> Array:
        """`value` in whole steps, and so many `more` in each entry: public from here on."""
        steps = steps_of(value, self.step)
        steps += more
        return values_of(steps, self.step)


class Mechanism(ABC):
    """Makes a private array public."""

    @abstractmethod
    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The public version of `private`, recorded under `label`, for a `share` in (0, 1] of this mechanism's mu^2.

        `slot` says which of several disjoint slots of a stream it comes from.
        """

    def charged(
        self, sensitivity: float, size: int, *, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> "Calibrated | None":
        """Charge for a release of `size` numbers that is made in pieces, and return its noise; None if it has none.

        All pieces are one release of this `sensitivity`, on one lattice, and there is one charge for them, written before this
        returns.
        """
        raise NotImplementedError(f"a {type(self).__name__} releases whole values only")

    @abstractmethod
    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """The standard deviation of the noise on each entry of a release of this sensitivity."""


@final
@dataclass(frozen=True, slots=True)
class Exact(Mechanism):
    """Releases the value itself. `because` says why that is right: no privacy was requested, or noise is added elsewhere.

    >>> Exact(because="public data").release(Bounded(np.ones(1), 1.0), label="sum").tolist()
    [1.0]
    """

    because: str

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The value as it is; nothing is charged."""
        return private.value

    def charged(self, sensitivity: float, size: int, *, label: str, share: float = 1.0, slot: Slot | None = None) -> None:
        return

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        return 0.0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Gaussian(Mechanism):
    """Adds rounded normal noise of deviation sensitivity * multiplier / sqrt(share), and charges sqrt(share) / multiplier.

    The value is rounded to whole steps of a public lattice. The sensitivity includes the rounding, a part in 4096 at most. The
    noise is round(s Z) steps. For two neighbours that is post-processing of a Gaussian mechanism on the whole numbers:
    K + round(s Z) = round(K + s Z). Proofs: `eigenveil.core.noise` and docs/exact-noise.md.

    A symmetric value gets symmetric noise, drawn for the upper triangle: s on the diagonal and s / sqrt(2) off it. Each entry
    off the diagonal counts twice in the Frobenius norm, so
        sum_i D_ii^2 / s^2 + sum_(i<j) D_ij^2 / (s^2 / 2) = ||D||_F^2 / s^2.

    `existing_multiplier` is the multiplier of independent noise of the same kind that the value already has; only the rest is
    added. The variances add up ("Noise on noise" in `eigenveil.core.noise`). An observer who sees only what is released here
    sees `multiplier` in total. Every charge has this `purpose`.

    >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
    >>> noisy = Gaussian(multiplier=5.0, ledger=ledger, noise=Noise.seeded(1)).release(
    ...     Bounded(np.zeros(2), 1.0), label="sum"
    ... )
    >>> noisy.shape, ledger.charges[0].label, ledger.charges[0].mu
    ((2,), 'sum', 0.2)
    """

    multiplier: float
    ledger: Ledger | Reserve
    noise: Noise
    existing_multiplier: float = 0.0
    purpose: Purpose = "main"

    def __post_init__(self) -> None:
        require(0 < self.multiplier < math.inf, f"multiplier must be positive and finite, got {self.multiplier}")
        require(
            0 <= self.existing_multiplier <= self.multiplier,
            f"existing_multiplier must lie between 0 and the multiplier, {self.multiplier}, got {self.existing_multiplier}",
        )

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The noisy value; the charge is on the ledger before any noise is drawn."""
        self._require(private.sensitivity, share, label)
        self.ledger.spend(math.sqrt(share) / self.multiplier, label=label, slot=slot, purpose=self.purpose)
        drawn = self._calibrated(private.sensitivity, int(np.size(private.value)), share)
        return (_add_symmetric_noise if private.symmetric else _add_noise)(private.value, drawn)

    def charged(self, sensitivity: float, size: int, *, label: str, share: float = 1.0, slot: Slot | None = None) -> "Calibrated":
        """The noise of a release in pieces; the charge is on the ledger before it is handed out."""
        self._require(sensitivity, share, label)
        self.ledger.spend(math.sqrt(share) / self.multiplier, label=label, slot=slot, purpose=self.purpose)
        return self._calibrated(sensitivity, size, share)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """Sensitivity times multiplier over the root of the share. Rounding adds at most a part in 4096."""
        return sensitivity * self.multiplier / math.sqrt(share)

    def _require(self, sensitivity: float, share: float, label: str) -> None:
        """Refuse what no noise can cover, before anything is charged."""
        require(0 < share <= 1, f"share must lie in (0, 1], got {share}")
        require(
            0 < sensitivity < math.inf, f"{label!r} has sensitivity {sensitivity}; noise needs a positive, finite sensitivity"
        )

    def _calibrated(self, sensitivity: float, size: int, share: float) -> "Calibrated":
        """The step for a release of `size` numbers, and the deviation of the noise that it lacks."""
        # Variances add up, so what is missing is a difference of squares.
        rest = max(0.0, 1.0 - (self.existing_multiplier / self.multiplier) ** 2)
        scale = self.scale(sensitivity, share=share) * math.sqrt(rest)
        # Both follow from public numbers only: a step read from the value would reveal something about the rows.
        step = step_of(sensitivity, size, multiplier=self.multiplier / math.sqrt(share))
        return Calibrated(step, distance_in_steps(sensitivity, size, step) * (scale / sensitivity), self.noise)


def _add_noise(value: Array, drawn: Calibrated) -> Array:
    """`value` in whole steps plus noise in every entry, a chunk at a time."""
    flat, out = np.asarray(value).reshape(-1), np.empty(np.shape(value))
    flat_out = out.reshape(-1)
    chunks = [slice(start, min(start + _CHUNK, len(flat))) for start in range(0, len(flat), _CHUNK)]

    def noise_of(chunk: slice) -> Any:
        return RoundedGaussian(drawn.deviation).draw(drawn.noise, chunk.stop - chunk.start) if drawn.deviation > 0 else 0

    # Drawing takes longer than everything else, so a second thread draws a chunk ahead. It draws all chunks, in order, so the
    # numbers are the same as with one thread.
    for chunk, more in zip(chunks, prefetch(chunks, noise_of), strict=True):
        flat_out[chunk] = drawn.plus(flat[chunk], more)
    return out


def _add_symmetric_noise(value: Array, drawn: Calibrated) -> Array:
    """`value`, (d, d), in whole steps plus symmetric noise, a strip at a time: mirrored entries get the same noise."""
    dim = len(value)
    total = np.empty((dim, dim))
    for start, stop, more, diagonal in symmetric_noise(dim, drawn.deviation, drawn.noise):
        steps = steps_of(value[start:stop, start:], drawn.step)
        # The diagonal gets its own, larger noise in place of the noise drawn for all entries of the strip.
        places = np.arange(stop - start)
        own = steps[places, places] + diagonal
        steps += more
        steps[places, places] = own
        strip = values_of(steps, drawn.step)
        # The upper triangle is copied below it: two independent noises on mirrored entries would average away.
        square = np.triu(strip[:, : stop - start])
        square += np.triu(square, 1).T
        total[start:stop, start:stop] = square
        total[start:stop, stop:] = strip[:, stop - start :]
        total[stop:, start:stop] = strip[:, stop - start :].T
    return total


def symmetric_noise(dim: int, deviation: float, noise: Noise) -> Iterator[tuple[int, int, Any, Any]]:
    """The noise of a symmetric matrix, in steps: of some rows, right of the diagonal's first entry, and of the diagonal.

    Which numbers are drawn, and in what order, must not change: a study with a test seed repeats them.
    """
    for start in range(0, dim, STRIP):
        stop = min(start + STRIP, dim)
        shape = (stop - start, dim - start)
        if deviation > 0:
            more = RoundedGaussian(deviation * ROOT_HALF).draw(noise, math.prod(shape)).reshape(shape)
            yield start, stop, more, RoundedGaussian(deviation).draw(noise, stop - start)
            # Here and where it was used, so that it is freed before the next is drawn.
            del more
        else:
            yield start, stop, np.broadcast_to(np.int64(0), shape), np.zeros(stop - start, np.int64)
