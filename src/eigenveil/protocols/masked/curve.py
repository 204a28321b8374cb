"""Sums of public points of P-256, in plain Python, because `cryptography` has no addition of points.

The time that this takes depends on the numbers in it. No secret may go through it: the points are public keys, which everybody
may see, and the factors are computed from digests that are public as well.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from eigenveil.protocols.keys import coordinates

__all__ = ["weighted_sum"]

_FIELD: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
# (X, Y, Z) stands for the point (X / Z^2, Y / Z^3), so that a sum needs no division; Z = 0 for zero, the point at infinity.
_Jacobian: TypeAlias = tuple[int, int, int]
_Affine: TypeAlias = tuple[int, int]
_ZERO: Final[_Jacobian] = (1, 1, 0)


def weighted_sum(points: Sequence[bytes], factors: Sequence[int]) -> bytes | None:
    """The sum of public keys, each times its factor, as a public key; None for zero, which is none.

    All factors are read digit by digit from the top, with one doubling for all points together (Straus 1964). Digits are odd, of
    either sign, and rare: three zeros or more follow each of them. So a factor of 128 bits takes 26 additions and not 64.

    >>> from eigenveil.protocols.keys import public_of
    >>> one, two, five = (public_of(number.to_bytes(32, "big")) for number in (1, 2, 5))
    >>> weighted_sum([one, two], [1, 2]) == five
    True
    """
    tables = _odd_multiples([coordinates(point) for point in points])
    steps: dict[int, list[_Affine]] = {}
    for table, factor in zip(tables, factors, strict=True):
        for place, digit in _digits(factor):
            x, y = table[abs(digit) // 2]
            # The opposite of a point has the opposite y, so digits below zero need no table of their own.
            steps.setdefault(place, []).append((x, y if digit > 0 else _FIELD - y))
    total = _ZERO
    for place in reversed(range(max(steps, default=-1) + 1)):
        total = _double(total)
        for point in steps.get(place, ()):
            total = _add(total, point)
    x, y, z = total
    if z == 0:
        return None
    ((x, y),) = _divided([total])
    # A compressed key begins with 2 or 3, which says whether y is even or odd.
    return bytes([2 + (y & 1)]) + x.to_bytes(32, "big")


def _digits(factor: int) -> Iterator[tuple[int, int]]:
    """The places and values of the digits of a factor that are not zero: the sum of digit * 2^place, each odd and at most 7.

    >>> list(_digits(31)), list(_digits(9)), list(_digits(0))
    ([(0, -1), (5, 1)], [(0, -7), (4, 1)], [])
    """
    place = 0
    while factor:
        skip = (factor & -factor).bit_length() - 1
        factor, place = factor >> skip, place + skip
        # Of the two odd numbers that leave a multiple of 16, the one that is closer to zero.
        digit = (factor + 8) % 16 - 8
        yield place, digit
        factor -= digit


def _odd_multiples(points: Sequence[_Affine]) -> list[tuple[_Affine, ...]]:
    """For each point 1, 3, 5 and 7 times it. None of these is zero, or the opposite of another: the order is a large prime."""
    twice = _divided([_double((*point, 1)) for point in points])
    rows: list[list[_Jacobian]] = []
    for point, two in zip(points, twice, strict=True):
        row: list[_Jacobian] = [(*point, 1)]
        for _ in range(3):
            row.append(_add(row[-1], two))
        rows.append(row)
    flat = _divided([one for row in rows for one in row])
    return [tuple(flat[start : start + 4]) for start in range(0, len(flat), 4)]


def _divided(points: Sequence[_Jacobian]) -> list[_Affine]:
    """The coordinates of points that are not zero, with one division for all of them (Montgomery 1987)."""
    before = [1]
    for _, _, z in points:
        before.append(before[-1] * z % _FIELD)
    inverse = pow(before[-1], -1, _FIELD)
    found: list[_Affine] = []
    for (x, y, z), product in zip(reversed(points), reversed(before[:-1]), strict=True):
        # `inverse` is one over the product of all z up to this one, so the product before it leaves 1 / z.
        one, inverse = inverse * product % _FIELD, inverse * z % _FIELD
        square = one * one % _FIELD
        found.append((x * square % _FIELD, y * square * one % _FIELD))
    return found[::-1]


def _double(point: _Jacobian) -> _Jacobian:
    """Twice a point. With the order a prime, no point but zero is its own opposite, and zero needs no case of its own."""
    x, y, z = point
    square, height = z * z % _FIELD, y * y % _FIELD
    width = x * height % _FIELD
    # In this curve a = -3, so 3 x^2 + a z^4 is a product of two factors.
    slope = 3 * (x - square) * (x + square) % _FIELD
    across = (slope * slope - 8 * width) % _FIELD
    return across, (slope * (4 * width - across) - 8 * height * height) % _FIELD, 2 * y * z % _FIELD


def _add(point: _Jacobian, other: _Affine) -> _Jacobian:
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
