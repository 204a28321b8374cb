"""The lattice of a release: whole numbers of public steps, so that what can come out does not depend on the rows.

Noise in floating point gives itself away: of all the numbers that a float64 can hold, most cannot be reached from a given
value, and whoever knows all rows but one sees which value was there. Here the value is rounded onto the multiples of a public
power of two, whole-number noise is added to it, and only the sum, which is public by then, becomes a float again.

**Rounding costs next to nothing.** Let V be an exact value, a sum of whole numbers say, with sensitivity D, and W what floating
point holds of it: |W - V| <= 2^-51 |V| + g / 4 in every entry, as after three roundings and a little more. With a power of
two g and K = clip(rint(W / g), -2^49, 2^49),
    |K - clip(V / g)| <= 1/2 + 2^-51 * 2^49 + 1/4 = 1   in every entry:
dividing by g is exact, rounding to a whole number moves by at most a half, and clipping moves no two numbers apart. So the whole
numbers of neighbours are at most D / g + 2 sqrt(size) apart in the Euclidean norm; `step_of` makes g so small that this is at
most D / g * (1 + 2^-12), and noise for that distance is what is drawn.

A W that is any further from V than that would make the noise too small: what is released must come out of exact sums
(`eigenveil.privacy.sums.whole`), never out of a sum in floating point, whose error grows with the number of rows.

**Noise on noise.** One person is in up to k of the values x_1, x_2, ..., moves each of them by at most D, and each has noise
s Z_i = sqrt(k) r Z_i. What is made of the noisy ones, f, moves by at most the sum of w_i times the distance of each, plus c,
and gets noise t Z'. All Z are independent standard normals, and W is at least the sum of the w_i over any k values. Then
f(x_1 + s Z_1, x_2 + s Z_2, ...) + t Z' is mu-private with
    mu^2 = E^2 / (r^2 + (t / W)^2),   E = D + c / W:
the variances add up, whatever was rounded or clipped in between, as long as it is in c.
Proof. Take any a in [0, D]. Between x and x', shift the noise of each of the j <= k values that the person is in by a
towards x. Telling shifted from unshifted noise is a Gaussian mechanism of mu^2 = j a^2 / s^2 <= a^2 / r^2. Given the noise,
each of these values is D - a apart, so what comes after it is a Gaussian mechanism of mu = (W (D - a) + c) / t. The two compose:
    mu^2 <= a^2 / r^2 + (E - a)^2 / (t / W)^2.
The least of it is at a = E r^2 / (r^2 + (t / W)^2), and what is claimed. Should that be more than D, then
(t / W)^2 < (c / W) r^2 / D, so the claim is more than E^2 / (r^2 (1 + c / (W D))) = E D / r^2 >= D^2 / r^2, which holds without
Z': it is what the x_i + s Z_i show together.
"""

import math

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.noise.rounded import Rounded
from eigenveil.privacy.noise.stream import Noise

__all__ = [
    "CAPACITY",
    "ROUNDING_COST",
    "distance_in_steps",
    "pack",
    "packed_noise",
    "packed_size",
    "step_of",
    "steps_of",
    "unpack",
    "values_of",
]

# By how much rounding onto the lattice adds to a sensitivity, relatively, and as bits.
_BITS = 12
ROUNDING_COST = 2.0**-_BITS
# Noise has a standard deviation of so many steps, at least.
_FEWEST = 1 << 10
# The most steps that an entry may have before noise. Beyond it entries are clipped, which tells nobody of it.
CAPACITY = 1 << 49
# Covers the rounding of the few operations that a distance or a deviation is computed with.
_SLACK = 1 + 2.0**-40
# Entries off the diagonal of a symmetric matrix have noise of at least this much of the diagonal's.
ROOT_HALF = math.sqrt(0.5) * (1 + 2.0**-50)
# Steps outside of these lose digits at the ends of what floating point reaches.
_TINY = 2.0**-900


def step_of(sensitivity: float, size: int, *, multiplier: float = 1.0) -> float:
    """The step for a release of `size` numbers: a power of two g with 2 sqrt(size) g at most `ROUNDING_COST` * sensitivity.

    It depends on public numbers alone. Where noise is less than the sensitivity, `multiplier` times it, steps are as fine as it
    takes for noise to be of many steps. People at their bound in one entry have room for 2^35 / sqrt(size) of them, at
    least, if the multiplier is not less than one: beyond that their sum is clipped and no longer useful.

    >>> step_of(1.0, 100) == 2.0**-17
    True
    """
    require(0 < sensitivity < math.inf, f"sensitivity must be positive and finite, got {sensitivity}")
    bits = _BITS + math.ceil(math.log2(max(size, 1)) / 2)
    bits = max(bits, math.ceil(math.log2(_FEWEST / multiplier)))
    step = 2.0 ** (math.frexp(sensitivity)[1] - 2 - bits)
    require(_TINY < step < 1 / _TINY, f"sensitivity must be a number of ordinary size, got {sensitivity}")
    return step


def distance_in_steps(sensitivity: float, size: int, step: float) -> float:
    """At most how far apart, in the Euclidean norm, the whole numbers of neighbours are.

    >>> distance_in_steps(1.0, 1, 0.5) > 4.0
    True
    """
    return (sensitivity / step + 2 * math.sqrt(size)) * _SLACK


def steps_of(value: Array, step: float, *, most: int = CAPACITY) -> NDArray[np.int64]:
    """`value` in whole steps, the nearest ones, clipped to `most`. What is not a number becomes zero: raising would tell of it.

    >>> steps_of(np.array([0.3, -1e300, np.nan]), 0.25).tolist()
    [1, -562949953421312, 0]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.asarray(value, dtype=np.float64) / step
    steps = np.rint(steps, out=np.asarray(steps))
    np.copyto(steps, 0.0, where=np.isnan(steps))
    np.clip(steps, -most, most, out=steps)
    whole: NDArray[np.int64] = steps.astype(np.int64)
    return whole


def values_of(steps: NDArray[np.int64], step: float) -> Array:
    """Released steps as floats. Digits beyond the 53rd are lost here, after the noise, where nobody learns from it."""
    values = steps.astype(np.float64)
    values *= step
    return values


def packed_size(shape: tuple[int, ...], *, symmetric: bool) -> int:
    """How many numbers `pack` makes of an array of this shape.

    >>> packed_size((3, 3), symmetric=True), packed_size((3, 2), symmetric=False)
    (6, 6)
    """
    return shape[0] * (shape[0] + 1) // 2 if symmetric else math.prod(shape)


def pack(value: Array, *, symmetric: bool) -> Array:
    """`value` as a flat copy; of a symmetric matrix only the upper triangle, row by row.

    >>> pack(np.array([[1.0, 2.0], [2.0, 3.0]]), symmetric=True).tolist()
    [1.0, 2.0, 3.0]
    """
    if not symmetric:
        return np.array(value, dtype=np.float64).ravel()
    return np.concatenate([np.asarray(row, dtype=np.float64)[place:] for place, row in enumerate(value)])


def unpack(flat: Array, shape: tuple[int, ...], *, symmetric: bool) -> Array:
    """The array of this shape that `pack` made flat.

    >>> unpack(np.array([1.0, 2.0, 3.0]), (2, 2), symmetric=True).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    size = packed_size(shape, symmetric=symmetric)
    require(flat.shape == (size,), f"a part of shape {shape} must have {size} numbers, got {flat.shape}")
    if not symmetric:
        return flat.reshape(shape)
    dim, start = shape[0], 0
    value = np.empty(shape)
    for i in range(dim):
        value[i, i:] = flat[start : start + dim - i]
        value[i:, i] = value[i, i:]
        start += dim - i
    return value


def packed_noise(noise: Noise, deviation: float, shape: tuple[int, ...], *, symmetric: bool) -> NDArray[np.int64]:
    """Whole steps of noise for a packed array of this shape: round(s Z), s = `deviation`, in every entry.

    Of a symmetric matrix the entries off the diagonal get s / sqrt(2). Each of them stands in the Frobenius norm twice, so that
    sum_i D_ii^2 / s^2 + sum_(i<j) D_ij^2 / (s^2 / 2) = ||D||_F^2 / s^2: what is released is protected as a whole array with s is.
    """
    size = packed_size(shape, symmetric=symmetric)
    if not symmetric:
        return Rounded(deviation).draw(noise, size)
    drawn = Rounded(deviation * ROOT_HALF).draw(noise, size)
    dim = shape[0]
    # Row i of the triangle begins with its diagonal entry, after rows of dim, dim - 1, ... entries.
    diagonal = np.cumsum(np.arange(dim, 0, -1)) - np.arange(dim, 0, -1)
    drawn[diagonal] = Rounded(deviation).draw(noise, dim)
    return drawn
