"""The low-bit attack: which of two tables can released float64 numbers have come from at all?

An attacker who knows every row but one has two candidates for the values before noise: with the person and without. The two may
lead to different sets of numbers. Then the numbers themselves tell which it was, whatever the size of the noise. The function
`certain` looks for that. If it finds nothing, the likelihood ratio by the size of the noise is left (`likelihood`), which mu
bounds. Both together are `evidence`.

**Noise in floating point.** A release fl(v + n), n = fl(s z), cannot be any number. Where the noise cancels part of the value,
the sum has zeros in its last places, which a wrong candidate would not have left there. And n is the product of s and a double z.
If s has the mantissa m and the product stays below the next power of two, only one double in m can be such a product. With tens
of numbers in a release, a wrong candidate nearly always fails one of the two tests, and the right one never does.

**Noise in whole steps.** The noise must not be coarser than the released numbers. Where a value was not rounded, or less coarsely
than the noise, only the right candidate leaves multiples of the noise's steps. The steps are measured from the numbers, not taken
from what anybody says: the largest power of two that divides all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = ["Candidates", "certain", "evidence", "likelihood", "on_steps"]

# A guess that low bits make certain outweighs any likelihood.
_CERTAIN: Final = 1e6
# Steps must be coarser than the last place of the largest number by this many bits.
_SPARE: Final = 4
# A residue must be worth this many bits not to be an accident.
_BITS: Final = 30
# The deviation is public, but not how it was rounded: this many doubles on either side are tried.
_ULPS: Final = 4
# The relative error of a decomposition and its inverse.
_LOST: Final = 2.0**-40
# Steps must be coarser than that by this factor to show.
_COARSER: Final = 2.0**4


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Candidates:
    """Released numbers, (n,) each, and their values before noise with one person and without."""

    released: Array
    without: Array
    including: Array
    deviation: Array  # Of the noise on each number.

    def __post_init__(self) -> None:
        shapes = {array.shape for array in (self.released, self.without, self.including, self.deviation)}
        require(len(shapes) == 1 and self.released.ndim == 1, f"the four arrays must be vectors of one length, got {shapes}")
        require(bool((self.deviation > 0).all()), "deviations must be positive")

    @classmethod
    def of(cls, released: Array, without: Array, including: Array, *, scale: float, symmetric: bool = False) -> "Candidates":
        """From arrays of any shape. Symmetric matrices have less noise off the diagonal, and each number there counts once.

        >>> one = Candidates.of(np.eye(2), np.eye(2), np.eye(2), scale=1.0, symmetric=True)
        >>> one.deviation.round(3).tolist()
        [1.0, 0.707, 1.0]
        """
        deviation = np.full(released.shape, scale)
        if not symmetric:
            return cls(
                released=released.ravel(), without=without.ravel(), including=including.ravel(), deviation=deviation.ravel()
            )
        # Symmetrised noise (N + N^T) / 2 has less variance off the diagonal.
        deviation[~np.eye(len(released), dtype=bool)] /= math.sqrt(2)
        upper = np.triu_indices(len(released))
        return cls(released=released[upper], without=without[upper], including=including[upper], deviation=deviation[upper])


def evidence(releases: Sequence[Candidates], *, weighed: Sequence[Candidates] | None = None) -> float:
    """How surely the person was present: above zero for yes, below for no, and far from zero where low bits prove it.

    Where releases share noise, only those in `weighed` count by their likelihoods: they must be independent. None is all.

    >>> value, noise = np.array([0.1, 0.2, 0.3]), np.array([0.7, -0.3, 0.11])
    >>> evidence([Candidates.of(value + noise, value, value + 0.5, scale=1.0)]) < 0
    True
    """
    return _CERTAIN * certain(releases) + likelihood(releases if weighed is None else weighed)


def certain(releases: Sequence[Candidates]) -> int:
    """1 if low bits show that the person was present, -1 if absent, and 0 if they show neither."""
    votes = 0
    for release in releases:
        grain, largest = _grain(release.released), float(np.abs(release.released).max(initial=0.0))
        # Whether all numbers are whole steps of something coarser than the last place of the largest number.
        if grain is None or grain >= math.frexp(largest)[1] - 53 + _SPARE:
            votes += _residues(release)
        else:
            # The candidate from which floating-point noise can have led to the release, if only one can.
            votes += int(_possible(release, release.including)) - int(_possible(release, release.without))
            votes += _multiples(release)
    return (votes > 0) - (votes < 0)


def likelihood(releases: Sequence[Candidates]) -> float:
    """The log likelihood ratio of independent releases, with the person against without, by the size of their noise.

    For values g and v and noise of deviation s: the sum of (g - v) (r - (g + v) / 2) / s^2 over all numbers r.
    """
    return math.fsum(
        float(
            ((release.including - release.without) / release.deviation)
            @ ((release.released - (release.including + release.without) / 2) / release.deviation)
        )
        for release in releases
    )


def on_steps(values: Array) -> Array:
    """Released numbers to the last bit, where a computation has lost a few of their last digits: multiples of their steps.

    The step is the largest power of two of which all numbers are multiples, up to that loss. Numbers without such a step, as with
    noise in floating point, are refused: their last bits are no longer known.

    >>> on_steps(np.array([0.75, -1.25]) * (1 + 1e-15)).tolist()
    [0.75, -1.25]
    """
    step = _step_near(values)
    require(step is not None, "the numbers are not whole steps of a lattice")
    assert step is not None
    return np.asarray(np.rint(values / step) * step)


def _step_near(values: Array) -> float | None:
    """The largest power of two of which all values are multiples, up to the digits lost; None if there is none."""
    size = float(np.abs(values).max(initial=0.0))
    if size == 0:
        return 1.0
    # From the coarsest step down, so that the first one that fits is the largest.
    lost, step = size * _LOST, math.ldexp(1.0, math.frexp(size)[1])
    while step > _COARSER * lost:
        if float(np.abs(values - np.rint(values / step) * step).max()) <= lost:
            return step
        step /= 2
    return None


def _multiples(release: Candidates) -> int:
    """The candidate that leaves noise in whole steps although the release is not in whole steps, if only one does.

    Steps no coarser than the last place of the largest number are those of floating point itself.
    """
    # Each number is worth at least one bit; fewer of them could fit by accident.
    if len(release.released) < _BITS:
        return 0
    including, without = (_step_near(release.released - value) for value in (release.including, release.without))
    largest = max(float(np.abs(numbers).max()) for numbers in (release.released, release.including, release.without))
    min_step = math.ldexp(1.0, math.frexp(largest)[1] - 53 + _SPARE)
    return int(including is not None and including >= min_step) - int(without is not None and without >= min_step)


def _possible(release: Candidates, value: Array) -> bool:
    """Whether some noise fl(s z), with one s for each deviation, takes `value` to the released numbers.

    Symmetric noise is made of two draws times half of one s: off the diagonal, that s may also be the largest one.
    """
    near = release.released - value
    # The doubles n, (5, q), around this for which fl(value + n) is the released number; NaN for the others. Any other such double
    # lies between these, or there are so many that two of them are adjacent.
    tried = np.stack([_moved(near, ulps) for ulps in range(-2, 3)])
    noise = np.where(value + tried == release.released, tried, np.nan)
    scales = release.deviation, np.full_like(release.deviation, release.deviation.max())
    return any(_products(noise, _moved(scale, ulps)) for scale in scales for ulps in range(-_ULPS, _ULPS + 1))


def _products(noise: Array, scale: Array) -> bool:
    """Whether each column of `noise`, (5, q), has a number fl(scale z) with a double z."""
    draw = noise / scale
    reached = np.zeros(noise.shape, dtype=bool)
    # The quotient is rounded, so the right draw may be its neighbour.
    for ulps in range(-1, 2):
        reached |= scale * _moved(draw, ulps) == noise
    return bool(reached.any(axis=0).all())


def _residues(release: Candidates) -> int:
    """The candidate that, in steps of the release, leaves noise in coarser steps, if only one does."""
    grain = _grain(release.released)
    if grain is None:
        return 0
    steps = _whole(release.released, grain)
    including, without = (_coarseness(steps, _whole(value, grain)) for value in (release.including, release.without))
    worth = len(steps) * (including - without)
    return (worth >= _BITS) - (worth <= -_BITS)


def _whole(values: Array, grain: int) -> list[int]:
    """Values rounded to whole steps of 2^grain."""
    return [int(number) for number in np.rint(np.ldexp(values, -grain)).tolist()]


def _coarseness(steps: Sequence[int], value: Sequence[int]) -> int:
    """The largest t such that 2^t divides all noise that this value implies; 64 if that noise is zero."""
    set_bits = 0
    for step, other in zip(steps, value, strict=True):
        # The lowest bit set in any difference is the coarsest step that divides all of them.
        set_bits |= step - other
    return 64 if set_bits == 0 else min(64, (set_bits & -set_bits).bit_length() - 1)


def _grain(values: Array) -> int | None:
    """The largest g such that all values are multiples of 2^g; None if all are zero."""
    mantissas, exponents = np.frexp(values[values != 0])
    if len(mantissas) == 0:
        return None
    # Mantissas as whole numbers: their trailing zeros are the grain.
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    lowest = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    return int((exponents - 53 + lowest).min())


def _moved(values: Array, ulps: int) -> Array:
    """The doubles this many places above, or below."""
    for _ in range(abs(ulps)):
        values = np.nextafter(values, math.copysign(math.inf, ulps))
    return values
