"""Sums of public points of P-256, in plain Python, because `cryptography` has no addition of points.

The time that this takes depends on the numbers in it. No secret may go through it: the points are of key cards, which everybody
may see, and the factors are computed from digests that are public as well.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from eigenveil.protocols.keys import coordinates

__all__ = ["weighted_sum"]

_FIELD: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
# (X, Y, Z) stands for the point (X / Z^2, Y / Z^3), so that a sum needs no division; Z = 0 for zero, the point at infinity.
_Jacobian: TypeAlias = tuple[int, int, int]
_ZERO: Final[_Jacobian] = (1, 1, 0)


def weighted_sum(points: Sequence[bytes], factors: Sequence[int]) -> bytes | None:
    """The sum of public keys, each times its factor, as a public key; None for zero, which is none.

    All factors are read bit by bit from the top, with one doubling for all points together (Straus 1964).

    >>> from eigenveil.protocols.keys import public_of
    >>> one, two, five = (public_of(number.to_bytes(32, "big")) for number in (1, 2, 5))
    >>> weighted_sum([one, two], [1, 2]) == five
    True
    """
    pairs = [(coordinates(point), factor) for point, factor in zip(points, factors, strict=True)]
    total = _ZERO
    for bit in reversed(range(max((factor.bit_length() for _, factor in pairs), default=0))):
        total = _double(total)
        for point, factor in pairs:
            if factor >> bit & 1:
                total = _add(total, point)
    x, y, z = total
    if z == 0:
        return None
    inverse = pow(z, -1, _FIELD)
    square = inverse * inverse % _FIELD
    odd = y * square * inverse % _FIELD & 1
    return bytes([2 + odd]) + (x * square % _FIELD).to_bytes(32, "big")


def _double(point: _Jacobian) -> _Jacobian:
    """Twice a point. With the order a prime, no point but zero is its own opposite, and zero needs no case of its own."""
    x, y, z = point
    square, height = z * z % _FIELD, y * y % _FIELD
    width = x * height % _FIELD
    slope = 3 * (x - square) * (x + square) % _FIELD
    across = (slope * slope - 8 * width) % _FIELD
    return across, (slope * (4 * width - across) - 8 * height * height) % _FIELD, 2 * y * z % _FIELD


def _add(point: _Jacobian, other: tuple[int, int]) -> _Jacobian:
    """The sum of a point and another one that is not zero, given by its coordinates."""
    x, y, z = point
    if z == 0:
        return (*other, 1)
    square = z * z % _FIELD
    run = (other[0] * square - x) % _FIELD
    rise = (other[1] * square * z - y) % _FIELD
    if run == 0:
        # The same point, or its opposite. A dealer may choose points for which this happens.
        return _double(point) if rise == 0 else _ZERO
    square = run * run % _FIELD
    cube, middle = square * run % _FIELD, x * square % _FIELD
    across = (rise * rise - cube - 2 * middle) % _FIELD
    return across, (rise * (middle - across) - y * cube) % _FIELD, z * run % _FIELD
