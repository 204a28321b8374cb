"""An exact sampler, slow and obvious, from whole random numbers alone; and the fast one held against it."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from eigenveil.linalg import Array
from eigenveil.privacy import Noise
from eigenveil.privacy.skellam import _table

Integers = NDArray[np.int64]


def evenly_below(noise: Noise, count: int, bound: int) -> Integers:
    """Even choices of 0 .. bound-1, (count,): words above the last whole multiple of `bound` are thrown away."""
    words = noise.words(count)
    last = 2**64 - 2**64 % bound
    if last < 2**64:
        for i in np.flatnonzero(words >= np.uint64(last)):
            while words[i] >= last:
                words[i] = noise.words(1)[0]
    return (words % np.uint64(bound)).astype(np.int64)


def exact_poisson_one(noise: Noise, count: int) -> Integers:
    """Poisson numbers of mean one, (count,): Duchon and Duvignau (2016), all walks side by side, for they share their n."""
    n = 1
    found, k, g = np.zeros(count, np.int64), np.ones(count, np.int64), np.zeros(count, np.int64)
    walking = np.arange(count)
    while len(walking) > 0:
        i = evenly_below(noise, len(walking), n + 1) + 1
        more = i == n + 1
        less = ~more & (i > g)
        done = ~more & ~less
        found[walking[done]] = k[done]
        k += more
        k -= less
        g[less] = n + 1
        walking, k, g = walking[~done], k[~done], g[~done]
        n += 1
    return found


def exact_poisson(noise: Noise, count: int, mean: Fraction) -> Integers:
    """As many of mean one as fit, and one more of which each event is kept with the probability that is left."""
    whole = int(mean)
    total: Integers = exact_poisson_one(noise, count * whole).reshape(count, whole).sum(axis=1)
    events = exact_poisson_one(noise, count)
    rest = mean - whole
    kept = evenly_below(noise, int(events.sum()), rest.denominator) < rest.numerator
    total += np.bincount(np.repeat(np.arange(count), events)[kept], minlength=count)
    return total


def exact_skellam(noise: Noise, count: int, variance: Fraction) -> Integers:
    """The difference of two exact Poisson numbers."""
    return exact_poisson(noise, count, variance / 2) - exact_poisson(noise, count, variance / 2)


def skellam_law(reach: int, variance: float) -> Array:
    """Probabilities of -reach .. reach, exp(-x) I_k(x), and what is beyond added to the ends."""
    law = special.ive(np.abs(np.arange(-reach, reach + 1)), variance)
    law[[0, -1]] += (1 - law.sum()) / 2
    return np.asarray(law)


def pvalue(sample: Integers, law: Array) -> float:
    """Chi^2 of a sample against a law on -reach .. reach; what is beyond counts as the ends."""
    reach = len(law) // 2
    found = np.bincount(np.clip(sample, -reach, reach) + reach, minlength=len(law))
    return float(stats.chisquare(found, law * (found.sum() / law.sum())).pvalue)


def test_exact_poisson_numbers_have_their_law() -> None:
    sample = exact_poisson_one(Noise.seeded(61), 400_000)
    law = stats.poisson.pmf(np.arange(8), 1.0)
    found = np.bincount(np.minimum(sample, 8), minlength=9)
    assert stats.chisquare(found, np.append(law, 1 - law.sum()) * len(sample)).pvalue > 1e-6
    wrong = stats.poisson.pmf(np.arange(8), 0.98)
    assert stats.chisquare(found, np.append(wrong, 1 - wrong.sum()) * len(sample)).pvalue < 1e-6


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(7), Fraction(64, 3)])
def test_exact_draws_have_their_law(variance: Fraction) -> None:
    sample = exact_skellam(Noise.seeded(62), 800_000, variance)
    reach = int(3 * np.sqrt(float(variance))) + 1
    assert pvalue(sample, skellam_law(reach, float(variance))) > 1e-6
    assert pvalue(sample, skellam_law(reach, float(variance) * 1.02)) < 1e-6
    assert pvalue(sample, skellam_law(reach, float(variance) / 1.02)) < 1e-6


def test_the_fast_sampler_agrees_with_the_exact_one() -> None:
    """At a variance far below what it may be asked for: with strips of one place each its law is right to 2e-6 even here."""
    exact = exact_skellam(Noise.seeded(63), 100_000, Fraction(256))
    fast = _table(256.0).draw(Noise.seeded(64), 1_000_000)
    wrong = _table(256.0 * 1.05).draw(Noise.seeded(64), 1_000_000)
    counts = [np.bincount(np.clip(sample, -48, 47) // 4 + 12) for sample in (exact, fast, wrong)]
    assert stats.chi2_contingency(counts[:2]).pvalue > 1e-6
    assert stats.chi2_contingency(counts[::2]).pvalue < 1e-6
    single = [np.bincount(np.clip(sample, -48, 48) + 48) for sample in (exact, fast)]
    assert stats.chi2_contingency(single).pvalue > 1e-6
    assert pvalue(fast, skellam_law(48, 256.0)) > 1e-6
