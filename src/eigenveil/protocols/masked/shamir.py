"""Secret sharing: any `threshold` holders together can recover a secret, and fewer learn nothing at all about it.

Shamir (1979), over the numbers modulo the prime q = `PRIME`, the order of the group that keys are from, so a key is an element of
the field. The secret is f(0) of a polynomial f of degree threshold - 1 whose other coefficients are uniform; holder x has f(x).

Python's integers take longer over longer numbers, so none of this runs in constant time. A site splits its secrets once in a
study, before it answers anything. A party that joins shares is about to know the secret anyway. No other party can measure either
a second time.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

from eigenveil.errors import require
from eigenveil.protocols.keys import ORDER, coordinates

__all__ = [
    "LARGEST_POINT",
    "PRIME",
    "SHARE_BYTES",
    "Joiner",
    "Polynomial",
    "blended",
    "is_share",
    "polynomial",
    "share_in",
    "split",
    "value_at",
    "weighted_sum",
]

PRIME: Final = ORDER
# Bytes of a share, and of a secret.
SHARE_BYTES: Final = 32
LARGEST_POINT: Final = 2**16
# The coefficients, highest power first. The last one is the secret.
Polynomial: TypeAlias = tuple[int, ...]


def polynomial(secret: bytes, *, threshold: int, draw: Callable[[int], bytes] = os.urandom) -> Polynomial:
    """A polynomial with this `secret` at zero, for a number of holders; `draw(n)` gives n fresh random bytes."""
    require(type(threshold) is int and threshold >= 1, f"threshold must be at least 1, got {threshold!r}")
    return (*(_element(draw) for _ in range(threshold - 1)), share_in(secret))


def split(polynomials: Sequence[Polynomial], *, holders: Sequence[int]) -> dict[int, list[bytes]]:
    """The share of each secret for each of `holders`, which are numbers from 1 to 2^16.

    >>> shares = split([polynomial(bytes(range(32)), threshold=2)], holders=[1, 5, 9])
    >>> Joiner([5, 9], threshold=2).join({x: shares[x][0] for x in (5, 9)}) == bytes(range(32))
    True
    """
    for poly in polynomials:
        _check(holders, len(poly))
    return {holder: [value_at(poly, holder).to_bytes(SHARE_BYTES, "big") for poly in polynomials] for holder in holders}


def blended(polynomials: Sequence[Polynomial], factors: Sequence[int]) -> Polynomial:
    """The sum of polynomials of one threshold, each times its factor.

    >>> blended([(1, 2), (3, 4)], [1, 10])
    (31, 42)
    """
    return tuple(
        sum(factor * number for factor, number in zip(factors, numbers, strict=True)) % PRIME
        for numbers in zip(*polynomials, strict=True)
    )


@final
@dataclass(frozen=True, slots=True)
class Joiner:
    """Recovers many secrets of which the same holders have shares, at `threshold` multiplications for each.

    f(0) is the sum over x of f(x) w_x with Lagrange's w_x, the product over the others y of y / (y - x).
    The `points` become the `threshold` lowest of those given, in order. A false share gives another secret, not an error: check
    the secret against a digest or a public key where there is one.

    >>> shares = split([polynomial(one, threshold=2) for one in (bytes(32), b"k" * 32)], holders=[3, 4, 7])
    >>> both = Joiner([7, 3], threshold=2)
    >>> both.join({x: shares[x][0] for x in both.points}) == bytes(32)
    True
    >>> both.join({x: shares[x][1] for x in both.points}) == b"k" * 32
    True
    """

    points: Sequence[int]
    threshold: int
    weights: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.points, self.threshold)
        points = tuple(sorted(self.points)[: self.threshold])
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "weights", _weights(points))

    def join(self, shares: Mapping[int, bytes]) -> bytes:
        """The secret behind `shares`, by holder; shares of holders outside `points` are ignored."""
        absent = [point for point in self.points if point not in shares]
        require(not absent, f"shares of all {self.threshold} holders are needed, got none for {absent[:10]}")
        total = sum(share_in(shares[point]) * weight for point, weight in zip(self.points, self.weights, strict=True))
        return (total % PRIME).to_bytes(SHARE_BYTES, "big")


def _check(points: Collection[int], threshold: int) -> None:
    # Never zero: f(0) is the secret. Points far below the prime stay distinct modulo it.
    for point in points:
        require(
            type(point) is int and 1 <= point <= LARGEST_POINT,
            f"holders must be numbers from 1 to {LARGEST_POINT}, got {point!r}",
        )
    # Two equal points would have a difference of zero, which has no inverse.
    require(len(set(points)) == len(points), f"holders must be distinct, got {len(points) - len(set(points))} repeated")
    require(
        type(threshold) is int and 1 <= threshold <= len(points),
        f"threshold must lie between 1 and the number of holders, {len(points)}, got {threshold!r}",
    )


def value_at(polynomial: Iterable[int], point: int) -> int:
    """The polynomial's value at `point`, by Horner's rule. Only the time of integer arithmetic depends on the coefficients."""
    value = 0
    for coefficient in polynomial:
        value = (value * point + coefficient) % PRIME
    return value


def share_in(raw: bytes) -> int:
    """The element of the field in these bytes; a `ValueError` if they hold none."""
    require(len(raw) == SHARE_BYTES, f"a share must have {SHARE_BYTES} bytes, got {len(raw)}")
    # Other numbers of 32 bytes are the same as a smaller one. One element must not have several encodings.
    require(is_share(raw), "a share must be below the order of the group")
    return int.from_bytes(raw, "big")


def is_share(raw: bytes) -> bool:
    """Whether these bytes hold an element of the field."""
    return len(raw) == SHARE_BYTES and int.from_bytes(raw, "big") < PRIME


def _element(draw: Callable[[int], bytes]) -> int:
    while not is_share(drawn := draw(SHARE_BYTES)):
        # A remainder would make small numbers likelier. One draw in 2^32 is repeated.
        require(len(drawn) == SHARE_BYTES, f"draw must return the {SHARE_BYTES} bytes asked for, got {len(drawn)}")
    return int.from_bytes(drawn, "big")


def _weights(points: Sequence[int]) -> tuple[int, ...]:
    above, below = [], []
    for point in points:
        upper = lower = 1
        for other in points:
            if other != point:
                upper, lower = upper * other % PRIME, lower * (other - point) % PRIME
        above.append(upper)
        below.append(lower)
    return tuple(upper * inverse % PRIME for upper, inverse in zip(above, _inverses(below, PRIME), strict=True))


def _inverses(numbers: Sequence[int], prime: int) -> list[int]:
    """All inverses for the price of one (Montgomery 1987): invert the product, then peel factors off from the back."""
    products = [1]
    for number in numbers:
        products.append(products[-1] * number % prime)
    inverse, inverses = pow(products[-1], -1, prime), []
    for number, before in zip(reversed(numbers), reversed(products[:-1]), strict=True):
        inverses.append(inverse * before % prime)
        inverse = inverse * number % prime
    return inverses[::-1]


_FIELD: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1

# (X, Y, Z) stands for the point (X / Z^2, Y / Z^3), so that a sum needs no division; Z = 0 for zero, the point at infinity.
_Jacobian: TypeAlias = tuple[int, int, int]
_Affine: TypeAlias = tuple[int, int]
_ZERO: Final[_Jacobian] = (1, 1, 0)


def weighted_sum(points: Sequence[bytes], factors: Sequence[int]) -> bytes | None:
    """The sum of public keys, each times its factor, as a public key; None for zero, which is none.

    All factors are read digit by digit from the top, with one doubling for all points together (Straus 1964). Digits are odd, of
    either sign, and rare: three zeros or more follow each of them, so a factor of 128 bits takes 26 additions and not 64.

    >>> from eigenveil.protocols.keys import public_of
    >>> one, two, five = (public_of(number.to_bytes(32, "big")) for number in (1, 2, 5))
    >>> weighted_sum([one, two], [1, 2]) == five
    True
    """
    tables = _odd_multiples([coordinates(point) for point in points])
    steps: dict[int, list[_Affine]] = {}
    for table, factor in zip(tables, factors, strict=True):
        for exponent, digit in _digits(factor):
            x, y = table[abs(digit) // 2]
            # The opposite of a point has the opposite y, so digits below zero need no table of their own.
            steps.setdefault(exponent, []).append((x, y if digit > 0 else _FIELD - y))
    total = _ZERO
    for exponent in reversed(range(max(steps, default=-1) + 1)):
        total = _double(total)
        for point in steps.get(exponent, ()):
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
    exponent = 0
    while factor:
        skip = (factor & -factor).bit_length() - 1
        factor, exponent = factor >> skip, exponent + skip
        # Of the two odd numbers that leave a multiple of 16, the one that is closer to zero.
        digit = (factor + 8) % 16 - 8
        yield exponent, digit
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
    flat = _divided([multiple for row in rows for multiple in row])
    return [tuple(flat[start : start + 4]) for start in range(0, len(flat), 4)]


def _divided(points: Sequence[_Jacobian]) -> list[_Affine]:
    """The coordinates of points that are not zero, with one division for all of them."""
    affine: list[_Affine] = []
    for (x, y, _), inverse in zip(points, _inverses([z for _, _, z in points], _FIELD), strict=True):
        square = inverse * inverse % _FIELD
        affine.append((x * square % _FIELD, y * square * inverse % _FIELD))
    return affine


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
