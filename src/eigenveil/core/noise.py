"""Noise, in three steps: random words (`Noise`), whole numbers drawn from them exactly (`RoundedGaussian`), and the steps they
count.

**`Noise`: words** of 64 bits from a cryptographic stream, AES-256 in counter mode.

**`RoundedGaussian`: exact draws of round(s Z)**, Z a standard normal, over a hundred million a second on one core. A ziggurat
(Marsaglia and Tsang 2000) on real numbers, whose binary digits are drawn only as far as a decision needs them (Karney 2016).
Nothing is approximated: given uniform and independent words, a draw has exactly the law of round(s Z), tails included. The proof
is docs/exact-noise.md. Its steps are named in the code: (cover), (quick), (round), (keep), (tail).

The table, the order in which words are used and the batch size are part of the format. Both ends of a pair of peers must draw the
same whole numbers from the same words. No decision depends on how a machine rounds `exp`. All mechanisms draw from here.

**The lattice of a release** is the whole numbers of a public step, so that the set of possible outputs does not depend on the
rows. Floating-point noise leaks. From a given value, most float64 numbers cannot be reached, so someone who knows all rows but
one can tell which value was there. Here the value is rounded to multiples of a public power of two. Whole-number noise is added
to it. Only the sum, which is public by then, becomes a float again.

**Rounding costs next to nothing.** Let V be an exact value, such as a sum of whole numbers, with sensitivity D. Let W be its
floating-point form, with |W - V| <= 2^-51 |V| + g / 4 in every entry: the error of three roundings and a little more. With a
power of two g and K = clip(rint(W / g), -2^49, 2^49),
    |K - clip(V / g)| <= 1/2 + 2^-51 * 2^49 + 1/4 = 1   in every entry.
This holds because dividing by g is exact, rounding to a whole number moves by at most a half, and clipping moves no two numbers
apart. The whole numbers of neighbours are therefore at most D / g + 2 sqrt(size) apart in the Euclidean norm. `step_of` makes g
so small that this is at most D / g * (1 + 2^-12). Noise is drawn for that distance.

If W were further from V, the noise would be too small. A released value must therefore come from exact sums
(`eigenveil.core.whole`), never from a floating-point sum, whose error grows with the number of rows.

**Noise on noise.** One person is in up to k of the values x_1, x_2, ..., and moves each by at most D. Each value has noise
s Z_i = sqrt(k) r Z_i. A function f of the noisy values moves by at most the sum of w_i times the distance of each, plus c, and
gets noise t Z'. All Z are independent standard normals, and W is at least the sum of the w_i over any k values. Then
f(x_1 + s Z_1, x_2 + s Z_2, ...) + t Z' is mu-private with
    mu^2 = E^2 / (r^2 + (t / W)^2),   E = D + c / W.
Variances add up, whatever was rounded or clipped in between, as long as c covers it.

Proof. Take any a in [0, D]. Between x and x', shift the noise of each of the j <= k values that the person is in by a towards x.
Telling shifted from unshifted noise is a Gaussian mechanism of mu^2 = j a^2 / s^2 <= a^2 / r^2. Given the noise, each of these
values is D - a apart. What follows is a Gaussian mechanism of mu = (W (D - a) + c) / t. The two compose:
    mu^2 <= a^2 / r^2 + (E - a)^2 / (t / W)^2.
Its minimum is at a = E r^2 / (r^2 + (t / W)^2), and equals the claim. If that a is more than D, then
(t / W)^2 < (c / W) r^2 / D. The claim is then more than E^2 / (r^2 (1 + c / (W D))) = E D / r^2 >= D^2 / r^2. That holds even
without Z': it is what the x_i + s Z_i reveal together.
"""

import hashlib
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import MIN_EMIN, Context, Decimal, localcontext
from functools import cache, lru_cache
from typing import Any, Final, NoReturn, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from eigenveil.core.threads import Array
from eigenveil.errors import require

__all__ = [
    "CAPACITY",
    "LARGEST_SCALE",
    "REACH",
    "ROOT_HALF",
    "ROUNDING_COST",
    "Noise",
    "RoundedGaussian",
    "Words",
    "distance_in_steps",
    "step_of",
    "steps_of",
    "values_of",
]

# Normals or words per round: the working arrays of one round stay in the inner cache.
_WORDS = 1 << 15
# The plaintext: encrypting zeros in counter mode gives the key stream itself.
_ZEROS = memoryview(bytes(8 * _WORDS))


@final
class Noise:
    """A source of random words and normals. Changes in place: it never gives the same words twice.

    `Noise.fresh()` takes its key, and more entropy for each draw, from the operating system. `Noise.seeded(n)` is for tests and
    studies that must be repeated. Anyone who knows the seed can subtract the noise, so results made with it say "reproducible,
    not private".

    >>> bool((Noise.seeded(7).words(2) == Noise.seeded(7).words(2)).all())
    True
    """

    def __init__(self, key: bytes, *, reproducible: bool, renewed: bool = False) -> None:
        """The words of one stream, which `key` alone decides: any holder of it draws the same. If `renewed`, see `batch`."""
        require(len(key) == 32, f"key must have 32 bytes, got {len(key)}")
        self._key, self._reproducible, self._renewed = key, reproducible, renewed
        # Of one stream each draw takes the next part. How much all draws have taken, in bytes, and which thread draws now.
        self._lock, self._stream = threading.Lock(), _stream_of(key)
        self._taken, self._thread = 0, 0
        if not renewed:
            _SHARED.add(self)

    @classmethod
    def fresh(cls) -> "Noise":
        """Unpredictable noise, for real releases."""
        return cls(os.urandom(32), reproducible=False, renewed=True)

    @classmethod
    def seeded(cls, seed: int) -> "Noise":
        """The same noise every time, for tests: not private."""
        return cls(hashlib.sha256(f"eigenveil noise {seed}".encode()).digest(), reproducible=True)

    @property
    def reproducible(self) -> bool:
        """Whether someone who knows the seed can draw the same noise again. Such noise protects no one."""
        return self._reproducible

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of the stream, each of 64 uniform and independent bits."""
        with self.batch() as source:
            return source(count)

    @contextmanager
    def batch(self) -> Iterator["Words"]:
        """Words for one draw. `fresh` noise takes them from a new stream, because forks and clones of the machine have ours.

        Noise that is made twice is never renewed: two peers add theirs with opposite signs, and mirrored entries have the same.

        Its key is SHA-256 of this source's key, fresh entropy of the kernel and the time. Forks get other entropy. A clone of a
        virtual machine may get the same until its kernel notices, but not at the same nanosecond. Without this
        source's key, digests of different texts under it are independent keys.
        """
        if not self._renewed:
            with self._lock:
                self._thread, source = threading.get_ident(), Words(self._stream)
                try:
                    yield source
                finally:
                    self._thread, self._taken = 0, self._taken + source.taken
        else:
            times = f"{time.time_ns()} {time.perf_counter_ns()} {threading.get_ident()} {os.getpid()}".encode()
            yield Words(_stream_of(hashlib.sha256(self._key + os.urandom(32) + times).digest()))

    def forked(self) -> None:
        """In a child: forget a draw of another thread, which is not here to end it. The next draw gets its words."""
        if self._thread not in (0, threading.get_ident()):
            self._lock, self._thread, self._stream = threading.Lock(), 0, _stream_of(self._key, skip=self._taken)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Noise cannot be copied or stored: two copies would draw the same noise")


@final
class Words:
    """Random words for one release: `words(count)` are the next ones. Changes in place, and is used up with its batch."""

    __slots__ = ("_stream", "taken")

    def __init__(self, stream: Any) -> None:
        self._stream, self.taken = stream, 0

    def __call__(self, count: int) -> NDArray[np.uint64]:
        out = np.empty(count, dtype=np.uint64)
        raw = out.view(np.uint8)
        for start in range(0, len(raw), len(_ZEROS)):
            self.fill(raw[start : start + len(_ZEROS)])
        return out

    def fill(self, raw: NDArray[np.uint8]) -> None:
        """Put the next words into `raw`, which has at most as many bytes as one round."""
        self._stream.update_into(_ZEROS[: len(raw)], raw)
        self.taken += len(raw)


def _stream_of(key: bytes, *, skip: int = 0) -> Any:
    """The stream of a key, without its first `skip` bytes."""
    stream = Cipher(algorithms.AES(key), modes.CTR((skip // 16).to_bytes(16, "big"))).encryptor()
    stream.update(bytes(skip % 16))
    return stream


# Sources with one stream for all draws, which one lock guards.
_SHARED: Final = weakref.WeakSet[Noise]()


def _after_fork() -> None:
    for noise in list(_SHARED):
        noise.forked()


os.register_at_fork(after_in_child=_after_fork)


Integers = NDArray[np.int64]
# Half the width of the lowest layer. Draws beyond this many standard deviations still occur, with their probability below 2^-743.
REACH = 32
# The largest scale: a draw within reach is then at most 2^50.
LARGEST_SCALE = 2.0**45
# Layers, and how many bits of a word choose one; the other 54 are the first digits of x, with a sign.
_LAYERS, _LAYER_BITS, _DIGITS = 1024, 10, 53
# Widths of layers are multiples of 2^-22. Half of a layer's area is a multiple of 2^-60, the least for which they reach the top.
_WIDTH_BITS, _AREA_BITS, _AREA = 22, 60, 1415131288305664
# The table keeps heights to this many binary digits; `_below` computes more where it needs them.
_HEIGHT_BITS = 256
# A difference from exp(-x^2 / 2) larger than this decides, even if `exp` is right only to 2^-40.
_DOUBT = 2.0**-38
# Draws that are worked on at a time, so that working arrays stay in the cache; and draws whose doubts are settled together.
_ROUND, _BATCH = 1 << 16, 1 << 19
# (tail) Points of the lowest layer with REACH - 1 <= |x| < REACH and 1 <= h 2^660 < 2, h of their height, represent the tails.
_TAIL_BITS = 660
# Splits 53 binary digits into two halves (Dekker 1971).
_SPLIT = 2.0**27 + 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """Layer i is [-x_i, x_i) times [y_i, y_{i+1}), with x_i a multiple of 2^-22, y_0 = 0 and y_{i+1} = y_i + area / x_i.

    (cover) f(x_i) <= y_i for i >= 1 and y_1024 >= 1, f(x) = exp(-x^2 / 2): each point below f, |x| < 32, is in exactly one layer.
    """

    # Whole numbers: x_i 2^22, and the largest |m| for which a point of layer i is certainly kept.
    widths: tuple[int, ...]
    certain: tuple[int, ...]


@cache
def _layers() -> _Layers:
    """The table, computed once in a tenth of a second. Every machine rounds decimals alike, and (cover) is checked."""
    rise = _HEIGHT_BITS - _AREA_BITS + _WIDTH_BITS
    widths, heights = [REACH << _WIDTH_BITS], [0]
    with localcontext(Context(prec=30)):
        while len(widths) < _LAYERS:
            heights.append(heights[-1] + (_AREA << rise) // widths[-1])
            wide = (-2 * (Decimal(heights[-1]) / Decimal(2**_HEIGHT_BITS)).ln()).sqrt()
            widths.append(math.ceil(wide * 2**_WIDTH_BITS) + 1)
    heights.append(heights[-1] + (_AREA << rise) // widths[-1])
    with localcontext(Context(prec=60)):
        margin = Decimal(10) ** -50
        certain = [_certain(i, widths, heights, margin) for i in range(_LAYERS)]
        covered = heights[-1] >= 2**_HEIGHT_BITS and all(
            _curve(width) + margin <= Decimal(low) / Decimal(2**_HEIGHT_BITS)
            for width, low in zip(widths[1:], heights[1:-1], strict=True)
        )
    if not covered:
        raise ArithmeticError("the layers do not cover the curve")
    return _Layers(tuple(widths), tuple(certain))


@lru_cache(maxsize=8)
def _heights(bits: int) -> tuple[int, ...]:
    """y_i 2^bits for i = 0 .. 1024, rounded down, by less than i."""
    heights = [0]
    for width in _layers().widths:
        heights.append(heights[-1] + (_AREA << (bits - _AREA_BITS + _WIDTH_BITS)) // width)
    return tuple(heights)


@cache
def _floats() -> tuple[Array, Array, Array, Array]:
    """x_i, y_i, the height of layer i, and the largest certain |m|, each (1024,)."""
    x = np.array(_layers().widths, dtype=np.float64) * 2.0**-_WIDTH_BITS
    y = np.array([height / 2**_HEIGHT_BITS for height in _heights(_HEIGHT_BITS)[:-1]])
    return x, y, _AREA * 2.0**-_AREA_BITS / x, np.array(_layers().certain, dtype=np.float64)


def _curve(width: int) -> Decimal:
    """exp(-x^2 / 2) at x = width 2^-22, to the precision of the context."""
    return (-((Decimal(width) / Decimal(2**_WIDTH_BITS)) ** 2) / 2).exp()


def _certain(layer: int, widths: list[int], heights: list[int], margin: Decimal) -> int:
    """(quick) The largest |m| for which a point of this layer is below f whatever its other digits; -1 if there is none.

    |x| <= x_i (|m| + 1) 2^-53 =: b, and the point is kept if f(b) >= y_{i+1}. Layer 0, far wider, is always checked again.
    """
    if layer in (0, _LAYERS - 1):
        return -1
    top = Decimal(heights[layer + 1] + _LAYERS) / Decimal(2**_HEIGHT_BITS)
    inner = widths[layer + 1] - 4
    while inner > 0 and _curve(inner) - margin < top:
        inner -= 4
    return (inner << _DIGITS) // widths[layer] - 1 if inner > 0 else -1


def _below(layer: int, digits: int, height: int, extra: int) -> bool | None:
    """(keep) Whether y < f(x) for all x = x_i (digits + [0, 1]) 2^-(53 + extra), y = y_i + (height + [0, 1]) 2^-extra area / x_i.

    None if it holds for some and not for others. Decimals have 10 digits more than the margin that covers their rounding.
    """
    width, bits = _layers().widths[layer], 192 + extra
    with localcontext(Context(prec=60 + 2 * extra, Emin=MIN_EMIN)):
        margin = Decimal(10) ** -(50 + 2 * extra)
        unit = Decimal(width) / Decimal(2 ** (_WIDTH_BITS + _DIGITS + extra))
        tall = Decimal(_AREA << _WIDTH_BITS) / Decimal(width << (_AREA_BITS + extra))
        near, far = sorted((abs(digits), abs(digits + 1)))
        base = _heights(bits)[layer]
        # The lower end of the layer is known to within `_LAYERS` units of its last digit.
        if Decimal(base + _LAYERS) / Decimal(2**bits) + tall * (height + 1) + margin < (-((unit * far) ** 2) / 2).exp():
            return True
        if Decimal(base) / Decimal(2**bits) + tall * height - margin > (-((unit * near) ** 2) / 2).exp():
            return False
    return None


def _in_tail(digits: int, height: int, extra: int) -> tuple[int, int] | None:
    """(tail) The digits and the height, in layer 0's units, of the point beyond `REACH` that a point of layer 0 represents.

    The points with 31 <= |x| < 32 and h = 2^-660 (1 + h'), 0 <= h' < 1, lie above f. The box of those with
    2^-(k + 1) <= h' < 2^-k is moved outwards by 1 + k and down to the axis. There it covers f for 32 + k <= |x| < 33 + k. Moving
    keeps areas. None if the point represents itself; the same digits and height if its k is not known yet.
    """
    spare, unit = extra - _TAIL_BITS, 1 << (extra + _DIGITS - 5)
    if spare < 0 or height >> spare != 1 or min(abs(digits), abs(digits + 1)) < (REACH - 1) * unit:
        return None
    rest = height - (1 << spare)
    if rest == 0:
        return digits, height
    out = (1 + spare - rest.bit_length()) * unit
    return digits + (out if digits >= 0 else -out), rest - (1 << (rest.bit_length() - 1))


@final
@dataclass(frozen=True, slots=True, eq=False)
class RoundedGaussian:
    """A sampler of round(`scale` Z), for any scale up to 2^45. It is immutable, so threads may share one.

    >>> RoundedGaussian(1000.0).draw(Noise.seeded(7), 3).tolist()
    [359, -194, 401]
    """

    scale: float
    # T_i = scale x_i 2^-53 by layer, (1024,), and the distance from a whole number above which rounding is in doubt.
    _digit: Array = field(init=False, repr=False)
    _near: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(0 < self.scale <= LARGEST_SCALE, f"scale must be positive and at most 2^45, got {self.scale}")
        digit = (self.scale * _floats()[0]) * 2.0**-_DIGITS
        object.__setattr__(self, "_digit", digit)
        # Widths decrease with the layer, so T_1 is the largest after layer 0's, which is always in doubt.
        object.__setattr__(self, "_near", 0.5 - 4 * float(digit[1]) - 2.0**-53)

    def draw(self, noise: Noise, count: int) -> Integers:
        """Independent draws, (count,)."""
        require(count >= 0, f"count must not be negative, got {count}")
        out = np.empty(count, dtype=np.int64)
        room = min(_ROUND, count)
        space = (np.empty(room, np.int64), np.empty(room), np.empty(room), np.empty(room, bool), np.empty(room, bool))
        with noise.batch() as source:
            for first in range(0, count, _BATCH):
                batch = out[first : first + _BATCH]
                refused = self._propose(source, batch, space)
                while len(refused) > 0:
                    others = np.empty(len(refused), dtype=np.int64)
                    again = self._propose(source, others, space)
                    batch[refused] = others
                    refused = refused[again]
        return out

    def _propose(self, source: Words, out: Integers, space: tuple[NDArray[Any], ...]) -> Integers:
        """Fill `out` from one point each, and return the places whose points lie above the curve, in order.

        The caller draws those again. Which words are used, and in what order, must not change: it is part of the format.
        """
        doubts = [self._fill(source, out, start, min(start + _ROUND, len(out)), space) for start in range(0, len(out), _ROUND)]
        where, layer, digits = doubts[0] if len(doubts) == 1 else map(np.concatenate, zip(*doubts, strict=True))
        if len(where) == 0:
            return where
        draws, mask = self._settle(source, layer, digits)
        out[where] = draws
        return where[~mask]

    def _fill(
        self, source: Words, out: Integers, start: int, stop: int, space: tuple[NDArray[Any], ...]
    ) -> tuple[Integers, Integers, Integers]:
        """Draw places `start` to `stop`; return the ones in doubt, with their layers and digits.

        x = x_i (m + e) 2^-53 with e in [0, 1) not drawn yet. (round) Let T = fl(s x_i 2^-53) and X = fl(m T). X is within
        3 T (1 + 2^-50) of s x, and X - rint(X) is exact. Unless X is within 4 T + 2^-54 of a half, round(s x) = rint(X)
        whatever e is.
        """
        whole = out[start:stop]
        layer, x, other, doubt, more = (array[: len(whole)] for array in space)
        digits: Integers = source(len(whole)).view(np.int64)
        np.bitwise_and(digits, _LAYERS - 1, out=layer)
        np.right_shift(digits, _LAYER_BITS, out=digits)
        np.copyto(x, digits)
        np.take(_floats()[3], layer, out=other, mode="clip")
        # The memory of the results is working space until they are written.
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
        indices = np.flatnonzero(doubt)
        return indices + start, layer[indices].astype(np.int64), digits[indices]

    def _settle(self, source: Words, layer: Integers, digits: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """The draws for points in doubt, half a percent of all, and which of them lie below the curve: about half.

        Heights and 64 more digits of x are drawn for all of them, needed or not. (keep) If `exp` is right to 2^-40, the gap
        f(x) - y in floating point is off by less than 2^-39, so a gap beyond 2^-38 decides. The rest is decided in decimals.
        """
        count = len(layer)
        heights, more = source(2 * count).reshape(2, count)
        x, y, tall, certain = (array[layer] for array in _floats())
        size = np.abs(digits).astype(np.float64)
        far = size * x * 2.0**-_DIGITS
        gap = np.exp(-0.5 * far * far) - (y + tall * ((heights >> np.uint64(11)).astype(np.float64) * 2.0**-53))
        sure = size <= certain
        mask = sure | (gap > _DOUBT)
        product = digits * self._digit[layer]
        nearest = np.rint(product)
        draws = nearest.astype(np.int64)
        loose = np.flatnonzero(mask & (np.abs(product - nearest) > 0.5 - 4 * self._digit[layer] - 2.0**-53))
        if len(loose) > 0:
            draws[loose] = self._finer(source, layer[loose], digits[loose], more[loose])
        for index in np.flatnonzero(~sure & (np.abs(gap) <= _DOUBT)).tolist():
            longer = (int(digits[index]) << 64) + int(more[index])
            settled = self._settled(source, int(layer[index]), longer, int(heights[index]))
            mask[index] = settled is not None
            # Beyond 2^17 deviations a draw would not fit. It is then taken modulo 2^64, as sums of int64 are.
            draws.view(np.uint64)[index] = (settled or 0) % 2**64
        return draws, mask

    def _finer(self, source: Words, layer: Integers, digits: Integers, more: NDArray[np.uint64]) -> Integers:
        """round(s x) for points whose X is near a half, from the 64 next digits of m + e and twice the precision.

        s x_i = A + B without error, and A m = P + Q, where Q sums the products of halves. Its rounding error is below
        2^-75 |P|, that is 2^-22 T. With R = rint(P), s x is within 2^-20 T + 2^-51 of R + r. Here
        r = (P - R) + (Q + B m + A e), and the first difference is exact. An r within 2^-20 T + 2^-50 of a half is decided in
        whole numbers.
        """
        x, m = _floats()[0][layer] * 2.0**-_DIGITS, digits.astype(np.float64)
        top, bottom = _halves(float(self.scale))
        a = top * x + bottom * x
        b = (top * x - a) + bottom * x
        p = a * m
        (a_top, a_bottom), (m_top, m_bottom) = _halves(a), _halves(m)
        q = ((a_top * m_top - p) + (a_top * m_bottom + a_bottom * m_top)) + a_bottom * m_bottom
        whole = np.rint(p)
        rest = (p - whole) + (q + b * m + a * (more.astype(np.float64) * 2.0**-64))
        rounded: Integers = (whole + np.rint(rest)).astype(np.int64)
        for index in np.flatnonzero(np.abs(rest - np.rint(rest)) > 0.5 - a * 2.0**-20 - 2.0**-50).tolist():
            rounded[index] = self._nearest(source, int(layer[index]), (int(digits[index]) << 64) + int(more[index]), 64)
        return rounded

    def _nearest(self, source: Words, layer: int, digits: int, extra: int) -> int:
        """round(s x_i (digits + e) 2^-(53 + extra)) in whole numbers, drawing as many digits of e as needed."""
        top, bottom = self.scale.as_integer_ratio()
        slope = 2 * top * _layers().widths[layer]
        while True:
            unit = bottom << (_WIDTH_BITS + _DIGITS + extra)
            low, high = (slope * digits + unit) // (2 * unit), (slope * (digits + 1) + unit) // (2 * unit)
            if low == high:
                return low
            digits, extra = (digits << 64) + int(source(1)[0]), extra + 64

    def _settled(self, source: Words, layer: int, digits: int, height: int) -> int | None:
        """The draw if its point is below the curve, None if it is above, drawing as many digits of both as needed."""
        extra, beyond = 64, layer > 0
        while True:
            below = _below(layer, digits, height, extra)
            if below:
                return self._nearest(source, layer, digits, extra)
            if below is False:
                moved = None if beyond else _in_tail(digits, height, extra)
                if moved is None:
                    return None
                if moved != (digits, height):
                    (digits, height), beyond = moved, True
                    continue
            lower = source(2)
            digits, height, extra = (digits << 64) + int(lower[0]), (height << 64) + int(lower[1]), extra + 64


def _halves(value: Array | float) -> tuple[Any, Any]:
    """Two numbers of at most 26 binary digits each whose sum is `value`."""
    large = _SPLIT * value
    top = large - (large - value)
    return top, value - top


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
    """An upper bound on the Euclidean distance between the whole numbers of neighbours."""
    return (sensitivity / step + 2 * math.sqrt(size)) * _SLACK


def steps_of(value: Array, step: float, *, max_steps: int = CAPACITY) -> NDArray[np.int64]:
    """`value` rounded to whole steps and clipped to `max_steps`. NaN becomes zero: an error would reveal it.

    >>> steps_of(np.array([0.3, -1e300, np.nan]), 0.25).tolist()
    [1, -562949953421312, 0]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.asarray(value, dtype=np.float64) / step
    steps = np.rint(steps, out=np.asarray(steps))
    np.copyto(steps, 0.0, where=np.isnan(steps))
    np.clip(steps, -max_steps, max_steps, out=steps)
    whole: NDArray[np.int64] = steps.astype(np.int64)
    return whole


def values_of(steps: NDArray[np.int64], step: float) -> Array:
    """Released steps as floats. Digits beyond the 53rd are lost here, after the noise, so this is post-processing."""
    values = steps.astype(np.float64)
    values *= step
    return values
