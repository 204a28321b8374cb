"""Rounded normals: the law they are drawn from, decisions that no rounding changes, and the whole numbers themselves."""

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from eigenveil.core import noise as rounded
from eigenveil.core.noise import (
    _BATCH,
    _DIGITS,
    _LAYERS,
    LARGEST_SCALE,
    REACH,
    Noise,
    RoundedGaussian,
    _floats,
    _heights,
    _layers,
)
from eigenveil.linalg import Array
from eigenveil.linalg.sketch import _box_muller

Integers = NDArray[np.int64]

SCALES = [0.3, 1.0, 3.7, 40.0, 1e3, 2.0**30, 1.1 * 2.0**42, 2.0**45]
MANY = 4_000_000
# Of every statistical test here.
LEVEL = 1e-6


class Words:
    """A stand-in for `Noise` with words of our choice, and chance after them."""

    def __init__(self, first: Sequence[int] = (), seed: int = 0, layer: int | None = None) -> None:
        self._first, self._rest, self._layer = list(first), Noise.seeded(seed), layer
        self.used = 0

    @contextmanager
    def batch(self) -> Iterator["Words"]:
        yield self

    def __call__(self, count: int) -> NDArray[np.uint64]:
        taken, self._first = self._first[:count], self._first[count:]
        found = np.concatenate([np.array(taken, dtype=np.uint64), self._rest.words(count - len(taken))])
        if self._layer is not None and self.used == 0:
            found = (found & ~np.uint64(_LAYERS - 1)) | np.uint64(self._layer)
        self.used += count
        return found


def word_of(layer: int, digits: int) -> int:
    """The word that stands for a point of this layer."""
    return ((digits << 10) + layer) % 2**64


# --- The law. ---


def cells(scale: float) -> tuple[Array, Array]:
    """Edges between whole numbers, (n,), and the exact probabilities between them, (n + 1,)."""
    positive = np.unique(np.round(np.linspace(0, 4.6, 61) * scale) + 0.5)
    edges = np.concatenate([-positive[::-1], positive])
    # Far from zero the difference of two tails is taken on its own side, where it keeps its digits.
    lower, upper = special.ndtr(edges / scale), special.ndtr(-edges / scale)
    law = np.where(
        np.append(edges, np.inf) > 0, np.append(1.0, upper) - np.append(upper, 0.0), np.append(lower, 1.0) - np.append(0.0, lower)
    )
    return edges, law


def pvalue(ordered: Array, scale: float) -> float:
    """Of a sample in order, as floats, which whole numbers below 2^53 are without loss."""
    edges, law = cells(scale)
    found = np.diff(np.searchsorted(ordered, edges), prepend=0, append=len(ordered))
    expected = law * len(ordered)
    # Cells in which hardly anything is expected are counted as one.
    rare = expected < 10
    assert rare.sum() < len(law) - 1 and expected[rare].sum() < 100
    found, expected = np.append(found[~rare], found[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    statistic = float(((found - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    return float(stats.chi2.sf(statistic, len(found) - 1))


def squares(sample: Array, scale: float) -> float:
    """By how many of its standard deviations the mean square is off its exact expectation."""
    if scale < 100:
        places = np.arange(-round(40 * scale) - 1, round(40 * scale) + 2, dtype=np.float64)
        law = special.ndtr((0.5 - np.abs(places)) / scale) - special.ndtr((-0.5 - np.abs(places)) / scale)
        second, fourth = (law * places**2).sum(), (law * places**4).sum()
    else:
        # Moments of s Z + U, U uniform: what is left out is below exp(-2 pi^2 s^2).
        second, fourth = scale**2 + 1 / 12, 3 * scale**4 + scale**2 / 2 + 1 / 80
    found = np.mean(sample**2)
    return float((found - second) / np.sqrt((fourth - second**2) / len(sample)))


@pytest.mark.parametrize("scale", SCALES)
def test_draws_have_their_law_and_one_part_in_a_hundred_would_be_caught(scale: float) -> None:
    ordered = np.sort(RoundedGaussian(scale).draw(Noise.seeded(51), MANY)).astype(np.float64)
    limit = float(stats.norm.isf(LEVEL / 2))
    assert pvalue(ordered, scale) > LEVEL
    assert abs(squares(ordered, scale)) < limit
    for wrong in (0.9, 0.99, 1.01, 1.1):
        assert pvalue(ordered, scale * wrong) < LEVEL
        assert abs(squares(ordered, scale * wrong)) > limit


@pytest.mark.parametrize("scale", [1.0, 40.0, 2.0**45])
def test_draws_are_as_often_positive_as_negative(scale: float) -> None:
    sample = RoundedGaussian(scale).draw(Noise.seeded(52), MANY)
    positive, negative = int((sample > 0).sum()), int((sample < 0).sum())
    assert stats.binomtest(positive, positive + negative).pvalue > LEVEL
    # Rounding down in place of to the nearest moves the mean by a half: caught where a half is something.
    mean = float(np.mean(sample)) / np.sqrt((scale**2 + 1 / 12) / len(sample))
    assert abs(mean) < stats.norm.isf(LEVEL / 2)
    if scale < 100:
        assert abs(mean - 0.5 / np.sqrt((scale**2 + 1 / 12) / len(sample))) > stats.norm.isf(LEVEL / 2)


@pytest.mark.parametrize("scale", [40.0, 2.0**30, 2.0**45])
def test_every_residue_is_as_likely_as_any_other(scale: float) -> None:
    """They are, to within 2 exp(-2 pi^2 s^2 / modulus^2) relatively; at 40 and 128 that is 0.29, and shows."""
    sample = RoundedGaussian(scale).draw(Noise.seeded(53), MANY)
    for modulus in (2, 3, 7, 13, 128):
        found = np.bincount(sample % modulus, minlength=modulus)
        assert (stats.chisquare(found).pvalue > LEVEL) == (scale > modulus)
        assert stats.chisquare(found + np.arange(modulus) * (MANY // 50 // modulus)).pvalue < LEVEL


def test_parity_has_its_probability_where_it_is_not_even() -> None:
    for scale in (0.3, 0.7):
        odd = np.arange(1, 41, 2)
        chance = 2 * float((special.ndtr((0.5 - odd) / scale) - special.ndtr((-0.5 - odd) / scale)).sum())
        found = int((RoundedGaussian(scale).draw(Noise.seeded(54), MANY) % 2).sum())
        assert stats.binomtest(found, MANY, chance).pvalue > LEVEL
        assert stats.binomtest(found, MANY, chance * 1.01).pvalue < LEVEL


def test_the_next_draw_does_not_depend_on_the_last() -> None:
    sample = RoundedGaussian(1e3).draw(Noise.seeded(55), MANY).astype(np.float64)
    for lag in (1, 2, 3, 64):
        product = float(np.mean(sample[lag:] * sample[:-lag])) / (1e6 + 1 / 12) * np.sqrt(len(sample) - lag)
        assert abs(product) < stats.norm.isf(LEVEL / 2)


def test_tails_come_as_often_as_they_should() -> None:
    sample = np.abs(RoundedGaussian(1.0).draw(Noise.seeded(56), 20_000_000))
    for reach in (4, 5):
        mean = 2 * float(special.ndtr(0.5 - reach)) * len(sample)
        found = int((sample >= reach).sum())
        assert min(stats.poisson.cdf(found, mean), stats.poisson.sf(found - 1, mean)) > LEVEL / 2
        assert stats.poisson.cdf(found, 1.6 * mean) < LEVEL


def test_the_lowest_layer_alone_has_the_law_of_the_tails() -> None:
    """Only it reaches beyond 4.51 deviations: with its words alone tails are a hundred and fifty times as frequent."""
    count, scale = 8_000_000, 40.0
    sample = np.empty(count, dtype=np.int64)
    room = 1 << 16
    space = (np.empty(room, np.int64), np.empty(room), np.empty(room), np.empty(room, bool), np.empty(room, bool))
    places, edge = RoundedGaussian(scale), int(_floats()[0][1] * scale) + 1
    kept = np.ones(count, dtype=bool)
    for start in range(0, count, _BATCH):
        part = sample[start : start + _BATCH]
        noise = Words(seed=57 + start, layer=0)
        # A batch takes its words in several goes, and the first ones choose layers: these are all set to the lowest.
        for begin in range(0, len(part), room):
            noise.used = 0
            piece = part[begin : begin + room]
            kept[start + begin + places._propose(noise, piece, space)] = False  # type: ignore[arg-type]
    far = np.abs(sample[kept])
    far = far[far > edge] - edge
    # Within the tail the law is that of the curve, cell by cell, up to 6 deviations.
    cuts = np.arange(0, 60, 6)
    tail = special.ndtr(-(edge + cuts + 0.5) / scale)
    law = -np.diff(tail, append=0.0) / tail[0]
    found = np.bincount(np.searchsorted(cuts[1:], far - 1, side="right"), minlength=len(law))
    assert len(far) > 40_000 and stats.chisquare(found, law * len(far)).pvalue > LEVEL
    # How many there are at all: each proposal is in the tail with probability (area of the tail) / (area of a layer).
    area = 2 * rounded._AREA * 2.0**-rounded._AREA_BITS
    chance = 2 * float(tail[0]) * np.sqrt(2 * np.pi) / area
    assert stats.binomtest(len(far), count, chance).pvalue > LEVEL
    assert stats.binomtest(len(far), count, chance * 1.05).pvalue < LEVEL


# --- The table. ---


def covers(widths: Sequence[int], certain: Sequence[int]) -> bool:
    """The two facts that the proof needs of the table, (cover) and (quick), with exact heights and mpmath's exponential."""
    y = [Fraction(0)]
    for width in widths:
        y.append(y[-1] + Fraction(rounded._AREA, 2**rounded._AREA_BITS) * Fraction(2**22, width))
    with mpmath.workdps(60):

        def at(x: Fraction) -> mpmath.mpf:
            return mpmath.exp(-((mpmath.mpf(x.numerator) / x.denominator) ** 2) / 2)

        def real(value: Fraction) -> mpmath.mpf:
            return mpmath.mpf(value.numerator) / value.denominator

        for i in range(_LAYERS):
            x = Fraction(widths[i], 2**22)
            if i > 0 and not at(x) <= real(y[i]):
                return False
            if certain[i] >= 0 and not at(x * (certain[i] + 1) / 2**_DIGITS) >= real(y[i + 1]):
                return False
    return y[-1] >= 1


def test_the_table_covers_the_curve_and_one_entry_off_does_not() -> None:
    widths, certain = list(_layers().widths), list(_layers().certain)
    assert len(widths) == len(certain) == _LAYERS and widths[0] == REACH << 22 and certain[0] == -1
    assert sorted(widths, reverse=True) == widths
    assert covers(widths, certain)
    for place in (1, 300, 1022):
        # Four units of 2^-22 less leave a piece of the curve uncovered; as many more would keep points above it for certain.
        assert not covers([*widths[:place], widths[place] - 4, *widths[place + 1 :]], certain)
        more = certain[place] + (8 << _DIGITS) // widths[place]
        assert not covers(widths, [*certain[:place], more, *certain[place + 1 :]])


def test_the_table_reaches_the_top_and_not_a_part_in_ten_million_further() -> None:
    """A larger area would refuse more points; a smaller one would leave out the top of the curve."""
    top = Fraction(_heights(256)[-1], 2**256)
    assert 1 <= top < 1 + Fraction(1, 10**7)


def test_heights_are_those_of_layers_of_one_area() -> None:
    total = Fraction(0)
    for width, low in zip(_layers().widths, _heights(320), strict=False):
        assert 0 <= total - Fraction(low, 2**320) < Fraction(_LAYERS, 2**320)
        total += Fraction(rounded._AREA, 2**rounded._AREA_BITS) * Fraction(2**22, width)


# --- Decisions. ---


def slow_round(scale: float, layer: int, digits: Fraction) -> int:
    """round(s x_i digits 2^-53), obviously."""
    exact: Fraction = Fraction(scale) * Fraction(_layers().widths[layer], 2**22) * digits / 2**_DIGITS
    return math.floor(exact + Fraction(1, 2))


def slow_keeps(layer: int, digits: Fraction, height: Fraction) -> bool:
    """Whether the point lies below the curve, with 120 digits: no drawn point is that near to it."""
    with localcontext(Context(prec=120)):
        x = Fraction(_layers().widths[layer], 2**22) * digits / 2**_DIGITS
        low = Fraction(_heights(512)[layer], 2**512)
        y = low + height * Fraction(rounded._AREA << 22, _layers().widths[layer] << rounded._AREA_BITS)
        gap = (-((Decimal(x.numerator) / x.denominator) ** 2) / 2).exp() - Decimal(y.numerator) / y.denominator
        assert abs(gap) > Decimal(10) ** -60
        return bool(gap > 0)


def edge_words() -> list[int]:
    """The first and last digits of layers, and what is next to certain."""
    digits = [0, -1, 1, 2**53 - 1, -(2**53), -(2**53) + 1]
    words = [word_of(layer, each) for layer in (0, 1, 2, 511, 1022, 1023) for each in digits]
    for layer in (1, 2, 511, 1022):
        top = _layers().certain[layer]
        words += [word_of(layer, each) for m in (top - 1, top, top + 1) for each in (m, -m)]
    return words


@pytest.mark.parametrize("scale", [5e-324, 1e-3, *SCALES])
def test_quick_decisions_are_right_whatever_is_drawn_later(scale: float) -> None:
    words = edge_words() + Noise.seeded(58).words(1500).tolist()
    out = np.empty(len(words), dtype=np.int64)
    room = len(words)
    space = (np.empty(room, np.int64), np.empty(room), np.empty(room), np.empty(room, bool), np.empty(room, bool))
    noise = Words(words)
    doubts = RoundedGaussian(scale)._fill(noise, out, 0, room, space)[0]  # type: ignore[arg-type]
    almost = 1 - Fraction(1, 2**70)
    for place in sorted(set(range(room)) - set(doubts.tolist())):
        layer, m = words[place] % _LAYERS, int(np.uint64(words[place]).view(np.int64)) >> 10
        assert slow_round(scale, layer, Fraction(m)) == out[place] == slow_round(scale, layer, m + almost)
        assert slow_keeps(layer, Fraction(m) if m < 0 else m + almost, almost)
    assert len(doubts) < room / 2


@pytest.mark.parametrize("scale", SCALES)
def test_slow_decisions_are_those_of_fractions_on_the_same_words(scale: float) -> None:
    rng = np.random.default_rng(59)
    count = 700
    layer = rng.integers(0, _LAYERS, count)
    layer[:200] = 0
    # Points in the last part of each layer, where the curve is, and of the lowest one those below 8 deviations.
    reach = np.where(layer == 0, 0.25, 1.0)
    digits = (reach * (1 - rng.uniform(size=count) ** 2 / 50) * 2.0**53).astype(np.int64) * rng.choice([-1, 1], count)
    heights, more = Noise.seeded(60).words(2 * count).reshape(2, count)
    # Points of the tail that no float decides: their heights begin with 20 to 40 zeros.
    heights[:100] >>= rng.integers(20, 40, 100).astype(np.uint64)
    noise = Words([*heights.tolist(), *more.tolist()])
    found, kept = RoundedGaussian(scale)._settle(noise, layer, digits)  # type: ignore[arg-type]
    assert noise.used == 2 * count
    for place in range(count):
        exact = int(digits[place]) + Fraction(2 * int(more[place]) + 1, 2**65)
        below = slow_keeps(int(layer[place]), exact, Fraction(2 * int(heights[place]) + 1, 2**65))
        assert below == kept[place]
        assert not below or slow_round(scale, int(layer[place]), exact) == found[place]
    assert 50 < kept.sum() < count - 50


def test_a_float_near_a_half_alone_would_be_wrong() -> None:
    """Why some draws are looked at again: at a large scale rint(m T) is often not round(s x)."""
    words = Noise.seeded(61).words(3000)
    layer, digits = (words % np.uint64(_LAYERS)).astype(np.int64), words.view(np.int64) >> 10
    more = Noise.seeded(62).words(3000)
    sampler = RoundedGaussian(2.0**45)
    with Noise.seeded(0).batch() as more_words:
        found = sampler._finer(more_words, layer, digits, more)
    right = [
        slow_round(2.0**45, int(i), int(m) + Fraction(2 * int(e) + 1, 2**65)) for i, m, e in zip(layer, digits, more, strict=True)
    ]
    assert found.tolist() == right
    assert np.rint(digits * sampler._digit[layer]).astype(np.int64).tolist() != right


@pytest.mark.parametrize("scale", [1.0, 1e3, 2.0**30, 2.0**45])
def test_no_draw_depends_on_how_the_exponential_is_rounded(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, exp = RoundedGaussian(scale).draw(Noise.seeded(63), 600_000), np.exp
    for seed in (1, 2):
        rng = np.random.default_rng(seed)

        def spoilt(value: Array, rng: np.random.Generator = rng) -> Array:
            return exp(value) * (1 + rng.choice([-1, 1], np.shape(value)) * 2.0**-41)

        with monkeypatch.context() as patch:
            patch.setattr(rounded.np, "exp", spoilt)  # type: ignore[attr-defined]
            assert np.array_equal(RoundedGaussian(scale).draw(Noise.seeded(63), 600_000), expected)
    # The patch does reach the sampler: an exponential that is badly wrong changes draws.
    with monkeypatch.context() as patch:
        patch.setattr(rounded.np, "exp", lambda value: 0.9 * exp(value))  # type: ignore[attr-defined]
        assert not np.array_equal(RoundedGaussian(scale).draw(Noise.seeded(63), 600_000), expected)


@pytest.mark.parametrize("scale", [1.0, 1e3, 2.0**45])
def test_decimals_decide_as_floats_do(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = RoundedGaussian(scale).draw(Noise.seeded(64), 60_000)
    monkeypatch.setattr(rounded, "_DOUBT", 10.0)
    assert np.array_equal(RoundedGaussian(scale).draw(Noise.seeded(64), 60_000), expected)


# --- The tails beyond reach: words that nobody will ever draw. ---


def tail_words(sign: int, place: float, out: int, slip: int = 0) -> list[int]:
    """Words of a point at 31 + `place` of layer 0, and at a height that stands for `out` further, `slip` above the axis there."""
    digits = int((31 + place) / 32 * 2**53)
    first = word_of(0, digits if sign > 0 else -digits - 1)
    # A height of 2^-660 (1 + 2^-(k + 1)), k = out - 1, in 64 bits at a time, and digits of x that are all zero.
    height = (1 << (768 - 660)) + (1 << (768 - 660 - out)) + slip
    parts = [height >> shift & (2**64 - 1) for shift in range(704, -1, -64)]
    return [first, parts[0], 0, *(word for part in parts[1:] for word in (0, part))]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("out", [1, 2, 5])
def test_draws_beyond_reach_can_come(sign: int, out: int) -> None:
    found = RoundedGaussian(1000.0).draw(Words(tail_words(sign, 0.25, out) + [0] * 400), 1)  # type: ignore[arg-type]
    assert abs(int(found[0]) - sign * (31250 + 1000 * out)) <= 1


def test_a_point_above_the_curve_beyond_reach_is_refused() -> None:
    high = Words(tail_words(1, 0.25, 1, slip=1 << 90))
    assert abs(RoundedGaussian(1000.0).draw(high, 1)[0]) < 32_000  # type: ignore[arg-type]
    # One that stands for itself, since its height is twice as much, is refused as well.
    words = tail_words(1, 0.25, 1)
    words[-3] *= 2
    assert abs(RoundedGaussian(1000.0).draw(Words(words), 1)[0]) < 32_000  # type: ignore[arg-type]


def test_boxes_beyond_reach_hold_the_curve_and_come_from_above_it() -> None:
    with mpmath.workdps(60):
        tall = mpmath.mpf(rounded._AREA) / 2**65
        bits = rounded._TAIL_BITS
        assert tall * mpmath.mpf(2) ** -bits > mpmath.exp(-(mpmath.mpf(REACH - 1) ** 2) / 2)
        for k in range(200):
            assert tall * mpmath.mpf(2) ** -(bits + 1 + k) > mpmath.exp(-(mpmath.mpf(REACH + k) ** 2) / 2)


# --- The numbers are a format. ---


GOLDEN = {
    0.3: "45337d56da59d95b",
    1.0: "e622bfee88daaa8d",
    3.7: "d848e9bab5699ce8",
    40.0: "c1c1f98d08b6993a",
    1e3: "5d3e88409189181a",
    2.0**30: "64c49c6ce35255f0",
    1.1 * 2.0**42: "ea66dfd5622db094",
    2.0**45: "838eafd363cf9637",
}


@pytest.mark.parametrize("scale", SCALES)
def test_a_seed_gives_these_whole_numbers_on_every_machine(scale: float) -> None:
    """Peers draw the noise between them twice, each on its own machine: another number here is another format."""
    found = RoundedGaussian(scale).draw(Noise.seeded(3), 3_000_001)
    assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16] == GOLDEN[scale]


def test_the_first_whole_numbers_of_a_seed() -> None:
    assert RoundedGaussian(40.0).draw(Noise.seeded(3), 4).tolist() == [-23, -3, 79, 21]
    assert RoundedGaussian(2.0**30).draw(Noise.seeded(3), 4).tolist() == [-616181370, -67275387, 2125432712, 551865502]


def test_floating_noise_rounded_is_another_law() -> None:
    """rint(s z) of a floating z stops where 64 bits do, at 9.5 deviations: no words take it further."""
    words, normals = np.zeros(2, dtype=np.uint64), np.empty(2)
    _box_muller(words, normals, np.empty(1))
    assert np.rint(1000 * np.abs(normals)).max() < 9_500
    deep = RoundedGaussian(1000.0).draw(Words([word_of(0, 2**53 * 10 // 32), 0, 0] + [0] * 400), 1)  # type: ignore[arg-type]
    assert deep[0] == 10_000


def test_a_sampler_that_trusts_its_floats_gives_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mutants: one takes rint(m T) as it comes, the other decides by the sign of a gap that is rounded."""
    expected = RoundedGaussian(2.0**42).draw(Noise.seeded(3), 500_000)
    hasty = RoundedGaussian(2.0**42)
    object.__setattr__(hasty, "_near", 0.5)
    assert not np.array_equal(hasty.draw(Noise.seeded(3), 500_000), expected)
    point = Words([word_of(0, 2**53 * 10 // 32), 1 << 20, 0] + [0] * 400)
    assert abs(RoundedGaussian(1.0).draw(point, 1)[0]) < 10  # type: ignore[arg-type]
    monkeypatch.setattr(rounded, "_DOUBT", -1.0)
    point = Words([word_of(0, 2**53 * 10 // 32), 1 << 20, 0] + [0] * 400)
    assert RoundedGaussian(1.0).draw(point, 1)[0] == 10  # type: ignore[arg-type]


def test_threads_may_share_a_sampler() -> None:
    sampler, found = RoundedGaussian(1e3), {}

    def work(seed: int) -> None:
        found[seed] = sampler.draw(Noise.seeded(seed), 400_000)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        assert np.array_equal(found[seed], RoundedGaussian(1e3).draw(Noise.seeded(seed), 400_000))


def test_a_long_draw_begins_like_two_whole_batches() -> None:
    """Batches are what is drawn together: a caller may stop and go on at their ends."""
    one, noise = RoundedGaussian(7.0).draw(Noise.seeded(66), 2 * _BATCH + 10), Noise.seeded(66)
    parts = [RoundedGaussian(7.0).draw(noise, count) for count in (_BATCH, _BATCH, 10)]
    assert np.array_equal(one, np.concatenate(parts))


def test_none_are_drawn_when_none_are_asked_for() -> None:
    noise = Words()
    assert RoundedGaussian(1.0).draw(noise, 0).shape == (0,) and noise.used == 0  # type: ignore[arg-type]


def test_a_scale_may_be_any_real_number_type() -> None:
    expected = RoundedGaussian(3.0).draw(Noise.seeded(67), 1000)
    for scale in (3, np.float64(3.0), np.float32(3.0)):
        assert np.array_equal(RoundedGaussian(scale).draw(Noise.seeded(67), 1000), expected)  # type: ignore[arg-type]


def test_draws_are_zero_where_the_scale_is_next_to_nothing() -> None:
    for scale in (5e-324, 1e-300, 1e-3):
        assert not RoundedGaussian(scale).draw(Noise.seeded(68), 100_000).any()


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), LARGEST_SCALE * (1 + 2.0**-52)])
def test_scales_out_of_range_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        RoundedGaussian(scale)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="count"):
        RoundedGaussian(1.0).draw(Noise.seeded(1), -1)
