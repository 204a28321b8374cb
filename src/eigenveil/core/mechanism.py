"""This is where noise is added: `Mechanism.release` makes a private number public. The ledger is charged before noise is drawn.

Where a mechanism stands is the trust model: `Gaussian` at the hub trusts the hub, `Gaussian` at the sites trusts nobody else.
Tasks work with any mechanism and do not change. A `Gaussian` releases whole numbers of public steps
(`eigenveil.core.noise`) with noise drawn exactly (`eigenveil.core.noise`). Two other places add noise to
parts of a sum: `privacy/integers/share.py` under masks, and `privacy/integers/paired.py` between peers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from eigenveil.core.ledger import Ledger, Reserve, Slot
from eigenveil.core.noise import (
    ROOT_HALF,
    Noise,
    Rounded,
    columns_released,
    distance_in_steps,
    pack,
    packed_side,
    step_of,
    steps_of,
    unpack,
    values_of,
)
from eigenveil.core.threads import Array, one_ahead
from eigenveil.errors import require

__all__ = ["Bounded", "Exact", "Gaussian", "Mechanism", "Portion"]

# Rows of a symmetric matrix, and numbers of any other array, that get noise at a time: working memory stays small.
_STRIP, _CHUNK = 256, 1 << 19


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
        require(self.sensitivity >= 0, f"sensitivity must not be negative, got {self.sensitivity}")

    def __repr__(self) -> str:
        return f"Bounded(shape={np.shape(self.value)}, sensitivity={self.sensitivity})"


class Mechanism(ABC):
    """Makes a private array public."""

    @abstractmethod
    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The public version of `private`, recorded under `label`, for a `share` in (0, 1] of this mechanism's mu^2.

        `slot` says which of several disjoint slots of a stream it comes from.
        """

    def release_packed(
        self, packed: Array, *, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Array:
        """The same for a symmetric matrix that is packed, as `pack` does it. The result is packed too, and has the same numbers.

        It may take the memory of `packed`: this is for devices that have no room for a whole matrix.
        """
        side = packed_side(len(packed))
        private = Bounded(unpack(packed, (side, side), symmetric=True), sensitivity, symmetric=True)
        return pack(self.release(private, label=label, share=share, slot=slot), symmetric=True)

    @abstractmethod
    def release_columns(
        self,
        slices: Iterable[Array],
        *,
        dim: int,
        sensitivity: float,
        label: str,
        share: float = 1.0,
        slot: Slot | None = None,
    ) -> Iterator[Array]:
        """The public versions of consecutive `slices`, (dim, w), of the columns of one private symmetric matrix, (dim, dim).

        Each slice is yielded as it is computed, and together they are symmetric. There is one charge for all of them, on the
        ledger before the first slice is requested. `sensitivity` is that of the whole matrix (Frobenius).
        """

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

    def release_packed(
        self, packed: Array, *, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Array:
        """The value as it is."""
        return packed

    def release_columns(
        self,
        slices: Iterable[Array],
        *,
        dim: int,
        sensitivity: float,
        label: str,
        share: float = 1.0,
        slot: Slot | None = None,
    ) -> Iterator[Array]:
        """The slices as they are."""
        return iter(slices)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """Zero: there is no noise."""
        return 0.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Gaussian(Mechanism):
    """Adds rounded normal noise of deviation sensitivity * multiplier / sqrt(share), and charges sqrt(share) / multiplier.

    The value is rounded to whole steps of a public lattice. The sensitivity includes the rounding, a part in 4096 at most. The
    noise is round(s Z) steps. For two neighbours that is post-processing of a Gaussian mechanism on the whole numbers:
    K + round(s Z) = round(K + s Z). Proofs: `eigenveil.core.noise` and docs/exact-noise.md.

    A symmetric value gets symmetric noise, drawn for the upper triangle: s on the diagonal and s / sqrt(2) off it. Each entry
    off the diagonal counts twice in the Frobenius norm, so
        sum_i D_ii^2 / s^2 + sum_(i<j) D_ij^2 / (s^2 / 2) = ||D||_F^2 / s^2.

    `carried` is the multiplier of independent noise of the same kind that the value already has; only the rest is added. The
    variances add up ("Noise on noise" in `eigenveil.core.noise`). An observer who sees only what is released here
    sees `multiplier` in total.

    >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
    >>> noisy = Gaussian(5.0, ledger, Noise.seeded(1)).release(Bounded(np.zeros(2), 1.0), label="sum")
    >>> noisy.shape, ledger.charges[0].label, ledger.charges[0].mu
    ((2,), 'sum', 0.2)
    """

    multiplier: float
    ledger: Ledger | Reserve
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
        step, deviation = self._lattice(private.sensitivity, int(np.size(private.value)), label, share, slot)
        if private.symmetric:
            return _plus_symmetric(private.value, step, deviation, self.noise)
        return _plus(private.value, step, deviation, self.noise)

    def release_packed(
        self, packed: Array, *, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Array:
        """The noisy half: of a large matrix, in the memory of `packed`."""
        side = packed_side(len(packed))
        if side <= _STRIP:
            # So small a matrix costs nothing, and all its rows at once are faster.
            return Mechanism.release_packed(self, packed, sensitivity=sensitivity, label=label, share=share, slot=slot)
        # Step and noise are those of the whole matrix: half of it determines the rest.
        step, deviation = self._lattice(sensitivity, side * side, label, share, slot)
        return _plus_packed(packed, side, step, deviation, self.noise)

    def release_columns(
        self,
        slices: Iterable[Array],
        *,
        dim: int,
        sensitivity: float,
        label: str,
        share: float = 1.0,
        slot: Slot | None = None,
    ) -> Iterator[Array]:
        """The noisy slices: the same noise as for a whole matrix, in the memory of a few slices (`columns_released`)."""
        # Charged here and not in the generator, which runs only when its first slice is requested. And for the whole matrix: all
        # slices are one release, and must be on one lattice.
        step, deviation = self._lattice(sensitivity, dim * dim, label, share, slot)
        return columns_released(slices, dim=dim, step=step, deviation=deviation, noise=self.noise)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """Sensitivity times multiplier over the root of the share. Rounding adds at most a part in 4096."""
        return sensitivity * self.multiplier / math.sqrt(share)

    def _lattice(
        self, sensitivity: float, size: int, label: str, share: float, slot: Slot | None
    ) -> tuple[float, float]:
        """Charge the ledger, and return the step for a release of `size` numbers, and the deviation of its noise in steps."""
        scale = self._charged(sensitivity, label, share, slot)
        # Both follow from public numbers only: a step read from the value would reveal something about the rows.
        step = step_of(sensitivity, size, multiplier=self.multiplier / math.sqrt(share))
        return step, distance_in_steps(sensitivity, size, step) * (scale / sensitivity)

    def _charged(self, sensitivity: float, label: str, share: float, slot: Slot | None) -> float:
        """Charge the ledger, and return the standard deviation still to be added, given the noise that the value carries."""
        require(0 < share <= 1, f"share must lie in (0, 1], got {share}")
        require(
            0 < sensitivity < math.inf,
            f"{label!r} has sensitivity {sensitivity}; noise needs a positive, finite sensitivity",
        )
        # Before any noise: a failure in between wastes a little of the budget, and never overspends it.
        self.ledger.spend(math.sqrt(share) / self.multiplier, label=label, slot=slot)
        # Variances add up, so what is missing is a difference of squares.
        rest = max(0.0, 1.0 - (self.carried / self.multiplier) ** 2)
        return self.scale(sensitivity, share=share) * math.sqrt(rest)


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
        """Released through the whole mechanism, for a smaller share."""
        return self.whole.release(private, label=label, share=share * self.fraction, slot=slot)

    def release_packed(
        self, packed: Array, *, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Array:
        """Released through the whole mechanism, for a smaller share."""
        share *= self.fraction
        return self.whole.release_packed(packed, sensitivity=sensitivity, label=label, share=share, slot=slot)

    def release_columns(
        self,
        slices: Iterable[Array],
        *,
        dim: int,
        sensitivity: float,
        label: str,
        share: float = 1.0,
        slot: Slot | None = None,
    ) -> Iterator[Array]:
        """Released through the whole mechanism, for a smaller share."""
        return self.whole.release_columns(
            slices, dim=dim, sensitivity=sensitivity, label=label, share=share * self.fraction, slot=slot
        )

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """The scale of the whole mechanism, for a smaller share."""
        return self.whole.scale(sensitivity, share=share * self.fraction)


def _plus(value: Array, step: float, deviation: float, noise: Noise) -> Array:
    """`value` in whole steps plus round(deviation Z) steps in every entry, a chunk at a time."""
    flat, out = np.asarray(value).reshape(-1), np.empty(np.shape(value))
    flat_out = out.reshape(-1)
    chunks = [slice(start, min(start + _CHUNK, len(flat))) for start in range(0, len(flat), _CHUNK)]

    def drawn(here: slice) -> Any:
        return Rounded(deviation).draw(noise, here.stop - here.start) if deviation > 0 else 0

    # Drawing takes longer than everything else, so a second thread draws a chunk ahead. It draws all chunks, in order, so the
    # numbers are the same as with one thread.
    for here, more in zip(chunks, one_ahead(chunks, drawn), strict=True):
        steps = steps_of(flat[here], step)
        steps += more
        flat_out[here] = values_of(steps, step)
    return out


def _plus_symmetric(value: Array, step: float, deviation: float, noise: Noise) -> Array:
    """`value`, (d, d), in whole steps plus symmetric noise, a strip at a time: mirrored entries get the same noise."""
    dim = len(value)
    total = np.empty((dim, dim))
    for start, stop, more, diagonal in _symmetric_noise(dim, deviation, noise):
        steps = steps_of(value[start:stop, start:], step)
        # The diagonal gets its own, larger noise in place of the noise drawn for all entries of the strip.
        places = np.arange(stop - start)
        own = steps[places, places] + diagonal
        steps += more
        steps[places, places] = own
        strip = values_of(steps, step)
        # The upper triangle is copied below it: two independent noises on mirrored entries would average away.
        square = np.triu(strip[:, : stop - start])
        square += np.triu(square, 1).T
        total[start:stop, start:stop] = square
        total[start:stop, stop:] = strip[:, stop - start :]
        total[stop:, start:stop] = strip[:, stop - start :].T
    return total


def _plus_packed(packed: Array, side: int, step: float, deviation: float, noise: Noise) -> Array:
    """The same for a packed matrix, in its own memory and a row at a time."""
    place = 0
    for start, stop, more, diagonal in _symmetric_noise(side, deviation, noise):
        for row in range(stop - start):
            line = packed[place : place + side - start - row]
            steps = steps_of(line, step)
            own = steps[0] + diagonal[row]
            steps += more[row, row:]
            steps[0] = own
            line[:] = values_of(steps, step)
            place += len(line)
        del more
    return packed


def _symmetric_noise(dim: int, deviation: float, noise: Noise) -> Iterator[tuple[int, int, Any, Any]]:
    """The noise of a symmetric matrix, in steps: of some rows, right of the diagonal's first entry, and of the diagonal.

    Which numbers are drawn, and in what order, must not change: a study with a test seed repeats them.
    """
    for start in range(0, dim, _STRIP):
        stop = min(start + _STRIP, dim)
        shape = (stop - start, dim - start)
        if deviation > 0:
            more = Rounded(deviation * ROOT_HALF).draw(noise, math.prod(shape)).reshape(shape)
            yield start, stop, more, Rounded(deviation).draw(noise, stop - start)
            # Here and where it was used, so that it is freed before the next is drawn.
            del more
        else:
            yield start, stop, np.broadcast_to(np.int64(0), shape), np.zeros(stop - start, np.int64)
