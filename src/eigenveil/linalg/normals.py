"""Standard normals from a stream of words, on which no privacy may rest: they are floating-point numbers.

Two words make two normals (Box and Muller 1958). The angle goes through its half-angle tangent, which vectorises where sine and
cosine do not. Noise for releases is drawn exactly (`eigenveil.core.noise.Rounded`).
"""

import math

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.noise import Noise
from eigenveil.core.threads import Array

__all__ = ["normals"]

# Normals per round: the working arrays of one round stay in the inner cache.
_ROUND = 1 << 15


def normals(noise: Noise, shape: tuple[int, ...]) -> Array:
    """Independent standard normals of this shape. Tails reach 9.4 standard deviations, as far as 64 bits go.

    >>> normals(Noise.seeded(7), (2,)).round(3).tolist()
    [0.75, -1.454]
    """
    out = np.empty(math.prod(shape))
    room = min(len(out) + 1, _ROUND)
    words, squares = np.empty(8 * room, dtype=np.uint8), np.empty(room)
    with noise.batch() as batch:
        for start in range(0, len(out), _ROUND):
            piece = out[start : start + _ROUND]
            whole = piece if len(piece) % 2 == 0 else np.empty(len(piece) + 1)
            raw = words[: 8 * len(whole)]
            batch.fill(raw)
            _box_muller(raw.view(np.uint64), whole, squares[: len(whole) // 2])
            if whole is not piece:
                piece[:] = whole[:-1]
    return out.reshape(shape)


def _box_muller(words: NDArray[np.uint64], out: Array, squares: Array) -> None:
    """Fill `out`, of even length, from as many random words; `squares`, half that size, is working space."""
    half = len(out) // 2
    # radius = sqrt(-2 log u) with u in (0, 1), and t = tan(angle / 2) with angle uniform in (-pi, pi).
    radius, tangent = out[:half], out[half:]
    np.copyto(radius, words[:half], casting="unsafe")
    radius += 0.5
    radius *= 2.0**-64
    np.log(radius, out=radius)
    radius *= -2.0
    # A word that rounds up to 2^64 gives log(1) = 0, which becomes minus zero here; its root would stay negative.
    np.abs(radius, out=radius)
    np.sqrt(radius, out=radius)
    np.multiply(words[half:].view(np.int64), math.pi * 2.0**-64, out=tangent)
    np.tan(tangent, out=tangent)
    # cos = (1 - t^2) / (1 + t^2) and sin = 2 t / (1 + t^2); `squares` is 1 + t^2, then 1 - t^2.
    np.multiply(tangent, tangent, out=squares)
    squares += 1.0
    radius /= squares
    tangent *= radius
    tangent *= 2.0
    np.subtract(2.0, squares, out=squares)
    radius *= squares
