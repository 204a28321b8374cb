"""Arrays as flat lists of numbers: of a symmetric matrix the upper triangle, row by row. And noise for them."""

import math

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.noise import ROOT_HALF, Noise, Rounded
from eigenveil.core.threads import Array
from eigenveil.errors import require

__all__ = ["pack", "packed_noise", "packed_side", "packed_size", "unpack"]


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
