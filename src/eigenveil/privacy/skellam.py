"""`Skellam`: whole-number noise that adds up, tens of millions a second, each probability right to one part in 2^47.

The Skellam law of variance x is that of the difference of two Poisson numbers of mean x / 2: p(k) = exp(-x) I_k(x). Shares
of it from several sites add up to it again, which no rounded normal does. Draws are by rejection from strips of equal width,
picked by exact integer weights; only near the edge of a strip is p itself looked at. The proof is docs/integer-noise.md.
"""

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.noise import Noise

__all__ = ["Skellam"]

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

# Strips reach this many standard deviations to either side; beyond is less than `TAIL` of the law.
REACH = 12
TAIL = 2.0**-102
# No probability of a draw is off by more than this, relatively, given that the draw is within reach.
ERROR = 2.0**-47
# The smallest variance for which that is proved, and the largest for which a strip's places fit in 40 bits.
SMALLEST, LARGEST = 2.0**24, 2.0**92
# Columns of the alias table, and how many bits of a word are left to choose within one.
_COLUMNS, _INSIDE = 1 << 12, 52
# Bits of the number that decides whether a draw is inside its strip for certain; the 40 below give its place.
_QUICK = 24
# Draws per round: the working arrays stay in the cache.
_ROUND = 1 << 16


@final
@dataclass(frozen=True, slots=True, eq=False)
class Skellam:
    """A sampler of the Skellam law of one `variance`, at least 2^24. Reading it changes nothing: threads may share one.

    >>> Skellam(2.0**40).draw(Noise.seeded(7), 3).shape
    (3,)
    """

    variance: float

    def __post_init__(self) -> None:
        require(SMALLEST <= self.variance <= LARGEST, f"variance must lie between 2^24 and 2^92, got {self.variance}")

    def draw(self, noise: Noise, count: int) -> Integers:
        """Independent draws, (count,)."""
        require(count >= 0, f"count must not be negative, got {count}")
        table, out = _table(self.variance), np.empty(count, dtype=np.int64)
        for start in range(0, count, _ROUND):
            out[start : start + _ROUND] = table.draw(noise, min(_ROUND, count - start))
        return out


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Strips of `width` = 2^bits places that tile the line: j-th place k has |k|, or |k| - 1 where negative, in [jw, (j+1)w).

    A draw picks a strip with probability weight / 2^64, a place in it evenly, and keeps the place with probability f(k) / cap,
    so that it is kept at k with a probability proportional to f(k), whatever the caps. The last strip keeps nothing.
    """

    variance: float
    bits: int
    # By column of the alias table, (4096,): below this word the column's own strip, otherwise the other one.
    limits: Words
    # By column, own strips first and others after, (8192,): first place; and the bound on the second word that keeps for certain.
    starts: Integers
    certain: Words
    # By strip, (J + 1,): f / cap at its near end, and the share of its places' chances that is certain.
    kept: Array
    sure: Array

    def draw(self, noise: Noise, count: int) -> Integers:
        words = noise.words(2 * count)
        pick, place = words[:count], words[count:]
        column = (pick >> np.uint64(_INSIDE)).view(np.int64)
        column += (pick >= self.limits.take(column)) * np.int64(_COLUMNS)
        found = (place & np.uint64((1 << self.bits) - 1)).view(np.int64)
        found += self.starts.take(column)
        doubtful = np.flatnonzero(place >= self.certain.take(column))
        again = doubtful[~self._keep(noise, found[doubtful])]
        if len(again) > 0:
            found[again] = self.draw(noise, len(again))
        return found

    def _keep(self, noise: Noise, found: Integers) -> NDArray[np.bool_]:
        """Whether to keep places that were not kept for certain: with what is left of their chance, to all its 53 digits.

        A chance of m / 2^e, m in [1/2, 1), is e bits that are all zero and a number of 53 bits below m.
        """
        left = self.left(found)
        zeros = np.clip(-np.frexp(left)[1], 0, 63)
        number = np.ldexp(left, zeros + 53).astype(np.uint64)
        words = noise.words(2 * len(found))
        first, second = words[: len(found)] >> np.uint64(1), words[len(found) :] >> np.uint64(11)
        kept: NDArray[np.bool_] = (second < number) & (first < np.uint64(1 << 63) >> zeros.astype(np.uint64))
        return kept

    def left(self, found: Integers) -> Array:
        """The chance of places that were not kept for certain: f / cap = sure + (1 - sure) * left."""
        strip = (found ^ (found >> 63)) >> self.bits
        sure = self.sure[strip]
        chance = self.kept[strip] * np.exp(self._fall(np.abs(found), strip << self.bits))
        left: Array = np.clip((chance - sure) / (1 - sure), 0.0, 1.0)
        return left

    def _fall(self, place: Integers, near: Integers) -> Array:
        """log f(place) - log f(near) for two places of one strip: -(k^2 - a^2) / (2 x) times a series close to one."""
        x = self.variance
        k, a = place.astype(np.float64), near.astype(np.float64)
        y, z = (k / x) ** 2, (a / x) ** 2
        series = 1 - (y + z) / 12 + (y * y + y * z + z * z) / 40 + (1 - (y + z) / 2) / (2 * x)
        fall: Array = -(k - a) * (k + a) / (2 * x) * series
        return fall


@lru_cache(maxsize=16)
def _table(variance: float) -> _Table:
    """The strips for one variance: a fifth of a second, kept for the next call."""
    bits = max(0, math.frexp(math.sqrt(variance))[1] - 7)
    strips = math.ceil(REACH * math.sqrt(variance) / 2**bits)
    with localcontext(Context(prec=45)):
        heights = [_height(j << bits, Decimal(variance)) for j in range(strips + 1)]
        # Rounding a weight up loosens its cap and nothing else; a strip and its mirror image weigh the same.
        scale = Decimal(2**64 - 2 * strips) / (2 * sum(heights[:-1]))
        weights = [math.ceil(height * scale) for height in heights[:-1]]
        kept = [height * scale / weight for height, weight in zip(heights[:-1], weights, strict=True)]
        # The least chance in a strip is at its far end. Where it is below a half nothing is certain.
        least = [c * far / near for c, near, far in zip(kept, heights[:-1], heights[1:], strict=True)]
        quick = [math.floor(chance * 2**_QUICK) if chance >= Decimal("0.5") else 0 for chance in least]
    places = [j << bits for j in range(strips)] + [-(j + 1) << bits for j in range(strips)] + [strips << bits]
    limits, others = _alias([*weights, *weights, 2**64 - 2 * sum(weights)])
    strip_of = np.concatenate([np.minimum(np.arange(_COLUMNS), 2 * strips), others])
    return _Table(
        variance,
        bits,
        limits=limits,
        starts=np.array(places, dtype=np.int64)[strip_of],
        certain=np.array([q << (64 - _QUICK) for q in [*quick, *quick, 0]], dtype=np.uint64)[strip_of],
        kept=np.array([*map(float, kept), 0.0]),
        sure=np.array([*(q / 2**_QUICK for q in quick), 0.0]),
    )


def _height(place: int, x: Decimal) -> Decimal:
    """f(k) = p(k) up to a factor that is the same for all k and a relative error of 1 / (10 x^2), one at about k = 0.

    With h = sqrt(k^2 + x^2): f(k) = sqrt(x / h) exp(k^2 / (h + x) - k asinh(k / x)) (1 + 1 / (8 h) - 5 k^2 / (24 h^3)).
    """
    k = Decimal(place)
    h = (k * k + x * x).sqrt()
    power = k * k / (h + x) - k * ((k + h) / x).ln()
    return (x / h).sqrt() * power.exp() * (1 + 1 / (8 * h) - 5 * k * k / (24 * h**3))


def _alias(weights: list[int]) -> tuple[Words, NDArray[np.intp]]:
    """Columns of 2^52 chances each that hold at most two strips, so that strip i has `weights[i]` of all 2^64 (Walker 1977).

    Word v belongs to strip v >> 52 if it is below that column's limit, and to the other strip of the column otherwise.
    """
    column = 1 << _INSIDE
    left = weights + [0] * (_COLUMNS - len(weights))
    limits, others = [i << _INSIDE for i in range(_COLUMNS)], list(range(_COLUMNS))
    low = [i for i in range(_COLUMNS) if left[i] < column]
    high = [i for i in range(_COLUMNS) if left[i] > column]
    while low:
        small, large = low.pop(), high[-1]
        limits[small] += left[small]
        others[small] = large
        left[large] -= column - left[small]
        if left[large] <= column:
            high.pop()
            if left[large] < column:
                low.append(large)
    return np.array(limits, dtype=np.uint64), np.array(others)
