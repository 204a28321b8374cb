"""The lattice of a release: whole numbers of public steps, so that the set of possible outputs does not depend on the rows.

Floating-point noise leaks. From a given value, most float64 numbers cannot be reached, so someone who knows all rows but one can
tell which value was there. Here the value is rounded to multiples of a public power of two. Whole-number noise is added to it.
Only the sum, which is public by then, becomes a float again.

**Rounding costs next to nothing.** Let V be an exact value, such as a sum of whole numbers, with sensitivity D. Let W be its
floating-point form, with |W - V| <= 2^-51 |V| + g / 4 in every entry: the error of three roundings and a little more. With a
power of two g and K = clip(rint(W / g), -2^49, 2^49),
    |K - clip(V / g)| <= 1/2 + 2^-51 * 2^49 + 1/4 = 1   in every entry.
This holds because dividing by g is exact, rounding to a whole number moves by at most a half, and clipping moves no two numbers
apart. So the whole numbers of neighbours are at most D / g + 2 sqrt(size) apart in the Euclidean norm. `step_of` makes g so small
that this is at most D / g * (1 + 2^-12). Noise is drawn for that distance.

If W were further from V, the noise would be too small. So a released value must come from exact sums
(`eigenveil.privacy.sums.whole`), never from a floating-point sum, whose error grows with the number of rows.

**Noise on noise.** One person is in up to k of the values x_1, x_2, ..., and moves each by at most D. Each value has noise
s Z_i = sqrt(k) r Z_i. A function f of the noisy values moves by at most the sum of w_i times the distance of each, plus c, and
gets noise t Z'. All Z are independent standard normals, and W is at least the sum of the w_i over any k values. Then
f(x_1 + s Z_1, x_2 + s Z_2, ...) + t Z' is mu-private with
    mu^2 = E^2 / (r^2 + (t / W)^2),   E = D + c / W.
So variances add up, whatever was rounded or clipped in between, as long as c covers it.

Proof. Take any a in [0, D]. Between x and x', shift the noise of each of the j <= k values that the person is in by a towards x.
Telling shifted from unshifted noise is a Gaussian mechanism of mu^2 = j a^2 / s^2 <= a^2 / r^2. Given the noise, each of these
values is D - a apart. So what follows is a Gaussian mechanism of mu = (W (D - a) + c) / t. The two compose:
    mu^2 <= a^2 / r^2 + (E - a)^2 / (t / W)^2.
Its minimum is at a = E r^2 / (r^2 + (t / W)^2), and equals the claim. If that a is more than D, then
(t / W)^2 < (c / W) r^2 / D. The claim is then more than E^2 / (r^2 (1 + c / (W D))) = E D / r^2 >= D^2 / r^2. That holds even
without Z': it is what the x_i + s Z_i reveal together.
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
    "packed_side",
    "packed_size",
    "step_of",
    "steps_of",
    "unpack",
    "values_of",
]

# How much rounding onto the lattice adds to a sensitivity, relatively, and as bits.
_BITS = 12
ROUNDING_COST = 2.0**-_BITS
# Noise has a standard deviation of at least this many steps.
_FEWEST = 1 << 10
# The most steps that an entry may have before noise. Larger entries are clipped without an error, which would reveal them.
CAPACITY = 1 << 49
# Covers the rounding of the few operations that compute a distance or a deviation.
_SLACK = 1 + 2.0**-40
# Noise off the diagonal of a symmetric matrix, relative to the diagonal's; rounded up.
ROOT_HALF = math.sqrt(0.5) * (1 + 2.0**-50)
# Steps below this, or above its inverse, lose digits to underflow or overflow.
_TINY = 2.0**-900


def step_of(sensitivity: float, size: int, *, multiplier: float = 1.0) -> float:
    """The step for a release of `size` numbers: a power of two g with 2 sqrt(size) g at most `ROUNDING_COST` * sensitivity.

    It depends on public numbers only. Where noise, `multiplier` times the sensitivity, is small, steps are finer, so that noise
    still spans many steps. With a multiplier of at least one, at least 2^35 / sqrt(size) people fit who all reach their bound in
    one entry. Sums over more are clipped and no longer useful.

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
    """An upper bound on the Euclidean distance between the whole numbers of neighbours.

    >>> distance_in_steps(1.0, 1, 0.5) > 4.0
    True
    """
    return (sensitivity / step + 2 * math.sqrt(size)) * _SLACK


def steps_of(value: Array, step: float, *, most: int = CAPACITY) -> NDArray[np.int64]:
    """`value` rounded to whole steps and clipped to `most`. NaN becomes zero: an error would reveal it.

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
    """Released steps as floats. Digits beyond the 53rd are lost here, after the noise, so this is post-processing."""
    values = steps.astype(np.float64)
    values *= step
    return values


def packed_size(shape: tuple[int, ...], *, symmetric: bool) -> int:
    """How many numbers `pack` makes of an array of this shape.

    >>> packed_size((3, 3), symmetric=True), packed_size((3, 2), symmetric=False)
    (6, 6)
    """
    return shape[0] * (shape[0] + 1) // 2 if symmetric else math.prod(shape)


def packed_side(size: int) -> int:
    """The side of a symmetric matrix that is packed into so many numbers; otherwise a `ValueError`.

    >>> packed_side(6)
    3
    """
    side = (math.isqrt(8 * size + 1) - 1) // 2
    require(side * (side + 1) // 2 == size, f"no symmetric matrix is packed into {size} numbers")
    return side


def pack(value: Array, *, symmetric: bool) -> Array:
    """`value` as a flat copy; for a symmetric matrix only the upper triangle, row by row.

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

    In a symmetric matrix the entries off the diagonal get s / sqrt(2). Each of them counts twice in the Frobenius norm, so
        sum_i D_ii^2 / s^2 + sum_(i<j) D_ij^2 / (s^2 / 2) = ||D||_F^2 / s^2.
    The protection is that of a full array with noise s in every entry.
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
