"""The law of fast integer noise without a draw: what the tables add up to, place by place, against Bessel functions."""

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from eigenveil.privacy import Noise
from eigenveil.privacy.skellam import ERROR, REACH, TAIL, _height, _Table, _table

VARIANCES = [2.0**24, 2.0**24 * 3.999, 2.0**40 / 3, 2.0**92]
COLUMNS, COLUMN = 1 << 12, 1 << 52


def probability(k: int, x: float) -> mpmath.mpf:
    """exp(-x) I_k(x) to 40 digits, by the integral along the path of steepest descent."""
    with mpmath.workdps(50):
        k, x = mpmath.mpf(abs(k)), mpmath.mpf(x)
        h = mpmath.sqrt(k * k + x * x)
        unit = 1 / mpmath.sqrt(h)

        def along(u: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(-2 * h * mpmath.sin(u * unit / 2) ** 2) * mpmath.cos(
                k * (u * unit - mpmath.sin(u * unit))
            )

        area = mpmath.quad(along, [0, 4, 8, 16]) * unit / mpmath.pi
        return mpmath.exp(k * k / (h + x) - k * mpmath.asinh(k / x)) * area


def weights(table: _Table) -> dict[int, int]:
    """How many of all 2^64 words pick the strip with this first place."""
    found: dict[int, int] = {}
    for column, limit in enumerate(table.limits.tolist()):
        own, other = int(table.starts[column]), int(table.starts[COLUMNS + column])
        found[own] = found.get(own, 0) + limit - column * COLUMN
        found[other] = found.get(other, 0) + (column + 1) * COLUMN - limit
    return found


def law(table: _Table, weight: dict[int, int], k: int) -> Fraction:
    """The exact probability that one attempt ends with k, times 2^64."""
    start = k >> table.bits << table.bits
    certain = {int(c) for c, s in zip(table.certain, table.starts, strict=True) if s == start}
    assert len(certain) == 1
    sure = Fraction(certain.pop(), 2**64)
    left = Fraction(float(table.left(np.array([k]))[0]))
    return Fraction(weight[start], 1 << table.bits) * (sure + (1 - sure) * left)


@pytest.mark.parametrize("variance", VARIANCES)
def test_every_place_has_its_probability(variance: float) -> None:
    """Ratios of the law to Bessel functions, over all of its reach, are one number but for `ERROR`."""
    table = _table(variance)
    weight = weights(table)
    width, strips, scale = 1 << table.bits, len(table.kept) - 1, math.sqrt(variance)
    rng = np.random.default_rng(1)
    places = [0, 1, -1, width - 1, width, -width, -width - 1, strips * width - 1, -strips * width]
    places += [int(sign * scale * (z + rng.random())) for z in range(REACH) for sign in (-1, 1) for _ in range(2)]
    with mpmath.workdps(50):
        exact = [law(table, weight, k) for k in places]
        ratios = [
            mpmath.mpf(p.numerator) / p.denominator / probability(k, variance)
            for p, k in zip(exact, places, strict=True)
        ]
        spread = max(ratios) / min(ratios) - 1
    assert spread < ERROR
    # About as good as floating point can be, so that a term left out anywhere would show.
    assert spread < 2.0**-49.5


@pytest.mark.parametrize("variance", VARIANCES)
def test_strips_tile_the_line_and_weigh_what_they_should(variance: float) -> None:
    table = _table(variance)
    weight = weights(table)
    width, strips = 1 << table.bits, len(table.kept) - 1
    assert strips * width >= REACH * math.sqrt(variance)
    assert sum(weight.values()) == 2**64
    rejected = weight.pop(strips * width)
    assert 0 < rejected < 2 * strips
    assert sorted(weight) == [j * width for j in range(-strips, strips)]
    assert all(weight[j * width] == weight[-(j + 1) * width] > 0 for j in range(strips))
    with localcontext(Context(prec=45)):
        heights = [_height(j * width, Decimal(variance)) for j in range(strips + 1)]
        assert all(far < near for near, far in pairwise(heights))
        scale = Decimal(2**64 - 2 * strips) / (2 * sum(heights[:-1]))
        for j, (near, far) in enumerate(pairwise(heights)):
            share = weight[j * width]
            # No cap is below the law in its strip, and what is kept without looking is below the law's least there.
            assert near * scale <= share < near * scale + 1
            assert Decimal(table.sure[j]) * share <= far * scale
            assert abs(Decimal(table.kept[j]) * share / (near * scale) - 1) < Decimal(2) ** -52
    assert table.kept[-1] == 0
    assert table.kept[:-1].min() > 2.0**-60
    # In the bulk nearly everything is kept without looking.
    assert (table.sure[: 4 * strips // REACH] > 0.93).all()


def test_probabilities_are_those_of_the_bessel_function() -> None:
    """The integral and the formula against mpmath's own Bessel function, where that is quick."""
    for x in (100, 400, 10_000):
        for z in range(REACH + 1):
            k = int(z * math.sqrt(x))
            with mpmath.workdps(50), localcontext(Context(prec=45)):
                exact = mpmath.exp(-x) * mpmath.besseli(k, x)
                formula = mpmath.mpf(str(_height(k, Decimal(x)))) / mpmath.sqrt(2 * mpmath.pi * x)
                assert abs(probability(k, x) / exact - 1) < 1e-40
                assert abs(formula / exact - 1) < 0.1 / x**2


def test_next_to_nothing_is_beyond_reach() -> None:
    for variance in VARIANCES:
        beyond = math.ceil(REACH * math.sqrt(variance))
        # The sum from here on is a geometric series at most, for p(k+1) / p(k) <= exp(-asinh(k / x)) (Amos 1974).
        with mpmath.workdps(50):
            slope = mpmath.asinh(mpmath.mpf(beyond) / mpmath.mpf(variance))
            tail = 2 * probability(beyond, variance) / (1 - mpmath.exp(-slope))
        assert tail < TAIL / 10


class Said:
    """A stream of words that were written down before."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def update_into(self, zeros: memoryview, out: NDArray[np.uint8]) -> None:
        out.view(np.uint64)[:] = self.words


def test_a_chance_is_kept_to_its_last_digit() -> None:
    """On both sides of the border, for chances near one and near 2^-40."""
    table = _table(2.0**24)
    for k in (63, -64, 5000, 20_000, 45_000, -49_000):
        place = np.array([k])
        chance = Fraction(float(table.left(place)[0]))
        zeros = 0
        while chance * 2 ** (zeros + 1) < 1:
            zeros += 1
        number = chance * 2 ** (zeros + 53)
        assert number.denominator == 1
        low, high = (2 ** (63 - zeros) - 1) * 2 + 1, (int(number) - 1 << 11) + 2047

        def kept(first: int, second: int, place: NDArray[np.int64] = place) -> bool:
            noise = Noise.seeded(1)
            noise._stream = Said(first, second)
            return bool(table._keep(noise, place)[0])

        assert kept(low, high)
        assert not kept(low, high + 1)
        assert zeros == 0 or not kept(low + 1, high)


def test_nothing_of_the_last_strip_is_ever_kept() -> None:
    table = _table(2.0**24)
    place = np.array([(len(table.kept) - 1) << table.bits])
    assert table.left(place)[0] == 0
    assert not table._keep(Noise.seeded(1), place)[0]
    assert not table.certain[table.starts == place[0]].any()
