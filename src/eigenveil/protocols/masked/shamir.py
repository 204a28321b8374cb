"""Secret sharing: any `threshold` holders together can recover a secret, and fewer learn nothing at all about it.

Shamir (1979), over the integers modulo p = 2^256 + 297. That is the smallest prime above 2^256, so every 32 bytes are an element.
The secret is f(0) of a polynomial f of degree threshold - 1 whose other coefficients are uniform; holder x has f(x).

Python's integers take longer over longer numbers, so none of this runs in constant time. A site splits its secrets once in a
study, before it answers anybody. A party that joins shares is about to know the secret anyway. Nobody else can measure either
a second time.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from eigenveil.errors import require

__all__ = ["LARGEST_POINT", "PRIME", "SECRET_BYTES", "SHARE_BYTES", "Joiner", "join", "split", "split_many"]

# Elements go up to 2^256 + 296, so a share takes one byte more than a secret.
PRIME: Final = 2**256 + 297
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
LARGEST_POINT: Final = 2**16

# The largest multiple of the prime below 256^33. Remainders of draws below it are uniform; one draw in 256 is repeated.
_EVEN: Final = 256**SHARE_BYTES // PRIME * PRIME


def split(
    secret: bytes, *, threshold: int, holders: Sequence[int], draw: Callable[[int], bytes] = os.urandom
) -> dict[int, bytes]:
    """The share of each of `holders`, which are numbers from 1 to 2^16; `draw(n)` gives n fresh random bytes.

    >>> shares = split(bytes(range(32)), threshold=2, holders=[1, 5, 9])
    >>> join({5: shares[5], 9: shares[9]}, threshold=2) == bytes(range(32))
    True
    """
    many = split_many([secret], threshold=threshold, holders=holders, draw=draw)
    return {holder: shares[0] for holder, shares in many.items()}


def split_many(
    secrets: Sequence[bytes], *, threshold: int, holders: Sequence[int], draw: Callable[[int], bytes] = os.urandom
) -> dict[int, list[bytes]]:
    """The shares of all `secrets` for each holder, in the order of the secrets. Each secret has its own polynomial."""
    _check(holders, threshold)
    for secret in secrets:
        require(len(secret) == SECRET_BYTES, f"a secret must have {SECRET_BYTES} bytes, got {len(secret)}")
    # Highest power first, the secret last.
    polynomials = [
        [*(_element(draw) for _ in range(threshold - 1)), int.from_bytes(secret, "big")] for secret in secrets
    ]
    return {
        holder: [_value(coefficients, holder).to_bytes(SHARE_BYTES, "big") for coefficients in polynomials]
        for holder in holders
    }


def join(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """The secret behind `shares`, by holder; the `threshold` lowest holders are used.

    A false share gives another secret, not an error. Check the secret against a digest or a public key where there is one.
    """
    return Joiner(tuple(shares), threshold).join(shares)


@final
@dataclass(frozen=True, slots=True)
class Joiner:
    """Recovers many secrets of which the same holders have shares, at `threshold` multiplications for each.

    f(0) is the sum over x of f(x) w_x with Lagrange's w_x, the product over the others y of y / (y - x).
    The `points` become the `threshold` lowest of those given, in order.

    >>> shares = split_many([bytes(32), b"k" * 32], threshold=2, holders=[3, 4, 7])
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
        total = sum(_read(shares[point]) * weight for point, weight in zip(self.points, self.weights, strict=True))
        secret = total % PRIME
        # Only 297 elements are this large, so most false shares pass here. Callers check the secret as well.
        require(secret < 256**SECRET_BYTES, "these shares do not belong to one secret of 32 bytes")
        return secret.to_bytes(SECRET_BYTES, "big")


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


def _element(draw: Callable[[int], bytes]) -> int:
    while True:
        drawn = draw(SHARE_BYTES)
        require(len(drawn) == SHARE_BYTES, f"draw must return the {SHARE_BYTES} bytes asked for, got {len(drawn)}")
        number = int.from_bytes(drawn, "big")
        if number < _EVEN:
            return number % PRIME


def _value(coefficients: Iterable[int], point: int) -> int:
    """The polynomial's value at `point`, by Horner's rule. Only the time of integer arithmetic depends on the coefficients."""
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % PRIME
    return value


def _read(share: bytes) -> int:
    require(len(share) == SHARE_BYTES, f"a share must have {SHARE_BYTES} bytes, got {len(share)}")
    number = int.from_bytes(share, "big")
    # 33 bytes can hold the prime many times. One element must not have several encodings.
    require(number < PRIME, "a share must be below the prime 2^256 + 297")
    return number


def _weights(points: Sequence[int]) -> tuple[int, ...]:
    above, below = [], []
    for point in points:
        upper = lower = 1
        for other in points:
            if other != point:
                upper, lower = upper * other % PRIME, lower * (other - point) % PRIME
        above.append(upper)
        below.append(lower)
    return tuple(upper * inverse % PRIME for upper, inverse in zip(above, _inverses(below), strict=True))


def _inverses(numbers: Sequence[int]) -> list[int]:
    """All inverses for the price of one (Montgomery): invert the product, then peel factors off from the back."""
    products = [1]
    for number in numbers:
        products.append(products[-1] * number % PRIME)
    inverse, found = pow(products[-1], -1, PRIME), []
    for number, before in zip(reversed(numbers), reversed(products[:-1]), strict=True):
        found.append(inverse * before % PRIME)
        inverse = inverse * number % PRIME
    return found[::-1]
