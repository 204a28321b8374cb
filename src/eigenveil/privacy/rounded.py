"""`Rounded`: exact draws of round(s Z), Z a standard normal, over a hundred million a second on one core.

A ziggurat (Marsaglia and Tsang 2000) carried out on real numbers whose binary digits are drawn only as far as a decision needs
them (Karney 2016). Nothing is approximated but the law beyond 32 standard deviations, which has a probability below `ERROR`. The
proof is docs/exact-noise.md, and the steps of it are named in the code: (cover), (quick), (round), (keep).

The table, the order in which words are used and the size of a batch are part of the format: both ends of a pair of peers draw the
same whole numbers from the same words. No decision depends on how `exp` is rounded on a machine.
"""

import math
from dataclasses import dataclass, field
from decimal import Context, Decimal, localcontext
from functools import cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.noise import Noise

__all__ = ["ERROR", "LARGEST_SCALE", "REACH", "Rounded"]

Integers = NDArray[np.int64]

# No probability of any set of draws is off by more than this for each draw in it.
ERROR = 2.0**-400
# Draws beyond this many standard deviations do not come.
REACH = 32
# The largest scale: a draw then has 50 bits at most.
LARGEST_SCALE = 2.0**45

# Layers, and how many bits of a word choose one; the other 54 are the first digits of x, with a sign.
_LAYERS, _LAYER_BITS, _DIGITS = 1024, 10, 53
# Widths of layers are multiples of 2^-22, and half of their area is a multiple of 2^-60: this one, the least that reaches the top.
_WIDTH_BITS, _AREA_BITS, _AREA = 22, 60, 1415131288305664
# Heights are kept to so many binary digits.
_HEIGHT_BITS = 640
# A difference from exp(-x^2 / 2) larger than this decides, even if `exp` is right to 2^-40 only.
_DOUBT = 2.0**-38
# Draws that are worked on at a time, so that the working arrays stay in the cache; and draws whose doubts are settled together.
_ROUND, _BATCH = 1 << 16, 1 << 19
# Digits of height after which a point on the curve itself would be given up: with probability 2^-480.
_GIVE_UP = 500


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """Layer i is [-x_i, x_i) times [y_i, y_{i+1}), with x_i a multiple of 2^-22, y_0 = 0 and y_{i+1} = y_i + area / x_i.

    (cover) f(x_i) <= y_i for i >= 1 and y_1024 >= 1, for f(x) = exp(-x^2 / 2): each point below f is in exactly one layer.
    """

    # Whole numbers: x_i 2^22; y_i 2^640 rounded down, by less than i; and up to which |m| a point of layer i is kept for certain.
    widths: tuple[int, ...]
    heights: tuple[int, ...]
    certain: tuple[int, ...]

    @property
    def floats(self) -> tuple[Array, Array, Array, Array]:
        """x_i, y_i, the height of layer i, and what is certain, each (1024,)."""
        x = np.array(self.widths, dtype=np.float64) * 2.0**-_WIDTH_BITS
        y = np.array([height / 2**_HEIGHT_BITS for height in self.heights[:-1]])
        return x, y, _AREA * 2.0**-_AREA_BITS / x, np.array(self.certain, dtype=np.float64)


@cache
def _layers() -> _Layers:
    """The table: a third of a second, once. Decimals are rounded alike on every machine, and what matters is checked."""
    rise = _HEIGHT_BITS - _AREA_BITS + _WIDTH_BITS
    widths, height = [REACH << _WIDTH_BITS], 0
    with localcontext(Context(prec=30)):
        while len(widths) < _LAYERS:
            height += (_AREA << rise) // widths[-1]
            wide = (-2 * (Decimal(height) / Decimal(2**_HEIGHT_BITS)).ln()).sqrt()
            widths.append(math.ceil(wide * 2**_WIDTH_BITS) + 1)
    heights = [0]
    for width in widths:
        heights.append(heights[-1] + (_AREA << rise) // width)
    with localcontext(Context(prec=60)):
        margin = Decimal(10) ** -50
        certain = [_certain(i, widths, heights, margin) for i in range(_LAYERS)]
        covered = all(
            _curve(width) + margin <= Decimal(low) / Decimal(2**_HEIGHT_BITS)
            for width, low in zip(widths[1:], heights[1:-1], strict=True)
        )
    assert covered and heights[-1] >= 2**_HEIGHT_BITS, "the layers do not cover the curve"
    return _Layers(tuple(widths), tuple(heights), tuple(certain))


def _curve(width: int) -> Decimal:
    """exp(-x^2 / 2) at x = width 2^-22, to the precision of the context."""
    return (-((Decimal(width) / Decimal(2**_WIDTH_BITS)) ** 2) / 2).exp()


def _certain(layer: int, widths: list[int], heights: list[int], margin: Decimal) -> int:
    """(quick) The largest |m| for which a point of this layer is below f wherever its other digits are, or -1 for none.

    |x| <= x_i (|m| + 1) 2^-53 =: b, and f(b) >= y_{i+1} then keeps it. Layer 0, whose scale is its own, is always looked at again.
    """
    if layer in (0, _LAYERS - 1):
        return -1
    top = Decimal(heights[layer + 1] + _LAYERS) / Decimal(2**_HEIGHT_BITS)
    inner = widths[layer + 1] - 4
    while inner > 0 and _curve(inner) - margin < top:
        inner -= 4
    return (inner << _DIGITS) // widths[layer] - 1 if inner > 0 else -1


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """A sampler of round(`scale` Z), for any scale up to 2^45. Reading it changes nothing: threads may share one.

    >>> from eigenveil.privacy.noise import Noise
    >>> Rounded(1000.0).draw(Noise.seeded(7), 3).dtype
    dtype('int64')
    """

    scale: float
    # x_i, y_i, heights and certain |m| by layer, then scale x_i 2^-53, each (1024,); and how near to a half is too near.
    _table: tuple[Array, Array, Array, Array] = field(init=False, repr=False)
    _digit: Array = field(init=False, repr=False)
    _near: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(0 < self.scale <= LARGEST_SCALE, f"scale must be positive and at most 2^45, got {self.scale}")
        table = _floats()
        digit = (self.scale * table[0]) * 2.0**-_DIGITS
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "_digit", digit)
        object.__setattr__(self, "_near", 0.5 - 4 * float(digit[1:].max()) - 2.0**-53)

    def draw(self, noise: Noise, count: int) -> Integers:
        """Independent draws, (count,)."""
        require(count >= 0, f"count must not be negative, got {count}")
        out = np.empty(count, dtype=np.int64)
        room = min(_ROUND, count)
        space = (np.empty(room, np.int64), np.empty(room), np.empty(room), np.empty(room, bool), np.empty(room, bool))
        for first in range(0, count, _BATCH):
            last = min(first + _BATCH, count)
            doubts = [
                self._fill(noise, out, start, min(start + _ROUND, last), space) for start in range(first, last, _ROUND)
            ]
            where, layer, digits = (np.concatenate(parts) for parts in zip(*doubts, strict=True))
            if len(where) > 0:
                out[where] = self._again(noise, layer, digits)
        return out

    def _fill(
        self, noise: Noise, out: Integers, start: int, stop: int, space: tuple[NDArray[np.generic], ...]
    ) -> tuple[Integers, Integers, Integers]:
        """Draw places `start` to `stop`; return the ones in doubt, with their layers and digits.

        x = x_i (m + e) 2^-53 with e in [0, 1) not drawn yet. (round) X = fl(m T), T = fl(s x_i 2^-53), is within 3 T (1 + 2^-50) of
        s x, and X - rint(X) is exact: unless X is within 4 T + 2^-53 of a half, round(s x) = rint(X) whatever e is.
        """
        whole = out[start:stop]
        layer, x, other, doubt, more = (array[: len(whole)] for array in space)
        digits: Integers = noise.words(len(whole)).view(np.int64)
        np.bitwise_and(digits, _LAYERS - 1, out=layer)
        np.right_shift(digits, _LAYER_BITS, out=digits)
        np.copyto(x, digits)
        np.take(self._table[3], layer, out=other, mode="clip")
        # The answers' own memory is working space until they are there.
        np.abs(x, out=whole.view(np.float64))
        np.greater(whole.view(np.float64), other, out=doubt)
        np.take(self._digit, layer, out=other, mode="clip")
        np.multiply(x, other, out=x)
        np.rint(x, out=other)
        np.subtract(x, other, out=x)
        np.abs(x, out=x)
        np.greater(x, self._near, out=more)
        np.logical_or(doubt, more, out=doubt)
        np.copyto(whole, other, casting="unsafe")
        found = np.flatnonzero(doubt)
        return found + start, layer[found].astype(np.int64), digits[found]

    def _again(self, noise: Noise, layer: Integers, digits: Integers) -> Integers:
        """The draws for points in doubt: half a percent of all, most of them because they may lie above the curve.

        Heights and 64 more digits of x are drawn for all of them, needed or not. (keep) The gap f(x) - y in floating point is
        off by less than 2^-39 if `exp` is right to 2^-40, so that one beyond 2^-38 decides; the rest is decided in decimals.
        """
        count = len(layer)
        heights, more = noise.words(2 * count).reshape(2, count)
        x, y, tall, certain = (array[layer] for array in self._table)
        size = np.abs(digits).astype(np.float64)
        far = size * x * 2.0**-_DIGITS
        gap = np.exp(-0.5 * far * far) - (y + tall * ((heights >> np.uint64(11)).astype(np.float64) * 2.0**-53))
        sure = size <= certain
        kept = sure | (gap > _DOUBT)
        product = digits * self._digit[layer]
        nearest = np.rint(product)
        loose = kept & (np.abs(product - nearest) > 0.5 - 4 * self._digit[layer] - 2.0**-53)
        found = nearest.astype(np.int64)
        for place in np.flatnonzero(loose).tolist():
            found[place] = self._nearest(noise, int(layer[place]), (int(digits[place]) << 64) + int(more[place]), 64)
        for place in np.flatnonzero(~sure & (np.abs(gap) <= _DOUBT)).tolist():
            longer = (int(digits[place]) << 64) + int(more[place])
            settled = self._settled(noise, int(layer[place]), longer, int(heights[place]))
            kept[place] = settled is not None
            found[place] = 0 if settled is None else settled
        refused = np.flatnonzero(~kept)
        if len(refused) > 0:
            found[refused] = self.draw(noise, len(refused))
        return found

    def _nearest(self, noise: Noise, layer: int, digits: int, extra: int) -> int:
        """round(s x_i (digits + e) 2^-(53 + extra)) in whole numbers, with as many digits of e as that takes."""
        top, bottom = self.scale.as_integer_ratio()
        slope = 2 * top * _layers().widths[layer]
        while True:
            unit = bottom << (_WIDTH_BITS + _DIGITS + extra)
            low, high = (slope * digits + unit) // (2 * unit), (slope * (digits + 1) + unit) // (2 * unit)
            if low == high:
                return low
            digits, extra = (digits << 64) + int(noise.words(1)[0]), extra + 64

    def _settled(self, noise: Noise, layer: int, digits: int, height: int) -> int | None:
        """The draw if its point is below the curve, None if it is above, with as many digits of both as that takes."""
        table, extra = _layers(), 64
        width, low_end = table.widths[layer], table.heights[layer]
        while extra <= _GIVE_UP:
            with localcontext(Context(prec=60 + 2 * extra)):
                margin = Decimal(10) ** -(50 + 2 * extra)
                unit = Decimal(width) / Decimal(2 ** (_WIDTH_BITS + _DIGITS + extra))
                near, far = sorted((abs(digits), abs(digits + 1)))
                tall = Decimal(_AREA << _WIDTH_BITS) / Decimal(width << _AREA_BITS)
                # The height of the layer's lower end is known to within `_LAYERS` units of its last digit.
                base, off = Decimal(low_end) / Decimal(2**_HEIGHT_BITS), Decimal(_LAYERS) / Decimal(2**_HEIGHT_BITS)
                low = base + tall * height / Decimal(2**extra)
                high = base + off + tall * (height + 1) / Decimal(2**extra)
                if high + margin < (-((unit * far) ** 2) / 2).exp():
                    return self._nearest(noise, layer, digits, extra)
                if low - margin > (-((unit * near) ** 2) / 2).exp():
                    return None
            words = noise.words(2)
            digits, height, extra = (digits << 64) + int(words[0]), (height << 64) + int(words[1]), extra + 64
        return None


@cache
def _floats() -> tuple[Array, Array, Array, Array]:
    return _layers().floats
