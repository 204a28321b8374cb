"""The law of fast integer noise, drawn: so that two parts in a hundred of variance fail."""

import multiprocessing
import threading

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from eigenveil.linalg import Array
from eigenveil.privacy import Noise, Skellam
from eigenveil.privacy.skellam import _ROUND
from privacy.test_noise import LEVEL

Integers = NDArray[np.int64]

VARIANCES = [2.0**24, 2.0**24 * 1.9, 2.0**41 / 3, 2.0**60, 2.0**92]


def cells(variance: float) -> tuple[Array, Array]:
    """Edges, (n,), and the probabilities between them, (n+1,), of a Skellam law, from a normal with its next term.

    Halfway between integers the distribution is that of a smooth law which rounding would turn into the Skellam one: of variance
    x - 1/12 and fourth cumulant x. Edgeworth's series for it has one more term, and what it leaves out is of order 1 / x^2.
    """
    scale = np.sqrt(variance - 1 / 12)
    edges = np.round(np.linspace(-4.5, 4.5, 91) * scale) - 0.5
    z = edges / scale
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    below = special.ndtr(z) - density * (z**3 - 3 * z) / (24 * variance)
    return edges, np.diff(below, prepend=0.0, append=1.0)


def pvalue(sample: Integers, variance: float) -> float:
    edges, law = cells(variance)
    found = np.bincount(np.searchsorted(edges, sample), minlength=len(law))
    return float(stats.chisquare(found, law * len(sample)).pvalue)


@pytest.mark.parametrize("variance", VARIANCES)
def test_draws_have_their_law_and_two_parts_in_a_hundred_would_be_caught(variance: float) -> None:
    sample = Skellam(variance).draw(Noise.seeded(41), 1_500_000)
    assert pvalue(sample, variance) > 1e-6
    assert pvalue(sample, variance * 1.02) < 1e-6
    assert pvalue(sample, variance / 1.02) < 1e-6


def test_the_cells_are_those_of_the_law() -> None:
    """The series above against a sum of Bessel functions."""
    edges, law = cells(2.0**24)
    low, high = int(edges[60] + 0.5), int(edges[61] + 0.5)
    assert special.ive(np.arange(low, high), 2.0**24).sum() == pytest.approx(law[61], rel=1e-9)


def test_every_residue_is_as_likely_as_any_other() -> None:
    """Within a strip the lowest bits decide: an error of one place, or a place left out, would show here."""
    for variance in (2.0**24, 2.0**60):
        sample = Skellam(variance).draw(Noise.seeded(42), 1_000_000)
        found = np.bincount(sample % 128, minlength=128)
        assert stats.chisquare(found).pvalue > 1e-6


def test_both_signs_are_alike_and_zero_counts_once() -> None:
    sample = Skellam(2.0**24).draw(Noise.seeded(43), 12_000_000)
    positive, negative = int((sample > 0).sum()), int((sample < 0).sum())
    assert abs(positive - negative) < LEVEL * np.sqrt(positive + negative)
    near = np.bincount(sample[np.abs(sample) <= 8] + 8, minlength=17)
    expected = len(sample) * float(special.ive(0, 2.0**24))
    assert stats.chisquare(near, np.full(17, near.sum() / 17)).pvalue > 1e-6
    # Near zero the law is flat. A zero counted twice, or never, would be off by all of these.
    assert abs(near[8] - expected) < LEVEL * np.sqrt(expected) < expected / 2


@pytest.mark.parametrize("lag", [1, 2, _ROUND])
@pytest.mark.parametrize("power", [1, 2])
def test_draws_are_independent(lag: int, power: int) -> None:
    sample = (Skellam(2.0**40).draw(Noise.seeded(44), 1 << 20) / 2.0**20) ** power
    correlation = np.corrcoef(sample[:-lag], sample[lag:])[0, 1]
    assert abs(correlation) * np.sqrt(sample.size - lag) < LEVEL


@pytest.mark.parametrize("count", [0, 1, 2, 1000, _ROUND - 1, _ROUND, _ROUND + 1, 3 * _ROUND + 7])
def test_every_length_is_filled(count: int) -> None:
    sample = Skellam(2.0**92).draw(Noise.seeded(45), count)
    assert sample.shape == (count,)
    assert sample.dtype == np.int64
    assert len(np.unique(sample)) == count
    assert (np.abs(sample) < 12 * 2**46).all()


def test_shares_add_up_to_their_law() -> None:
    """Seven draws are one of seven times the variance, and not of six and a half."""
    noise = Noise.seeded(46)
    total = sum((Skellam(2.0**30).draw(noise, 1_000_000) for _ in range(7)), np.zeros(1_000_000, np.int64))
    assert pvalue(total, 7 * 2.0**30) > 1e-6
    assert pvalue(total, 6.5 * 2.0**30) < 1e-6


def test_seeds_repeat_and_threads_may_share_a_sampler() -> None:
    once, twice = (Skellam(2.0**30).draw(Noise.seeded(1), 100_000) for _ in range(2))
    assert np.array_equal(once, twice)
    found: list[Integers] = []
    sampler, noise = Skellam(2.0**33 / 7), Noise.fresh()
    threads = [threading.Thread(target=lambda: found.append(sampler.draw(noise, 200_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert pvalue(np.concatenate(found), 2.0**33 / 7) > 1e-9
    assert not np.array_equal(found[0], found[1])


@pytest.mark.parametrize("variance", [2.0**24 - 1, 2.0**92 * 1.01, 0.0, -1.0, np.nan, np.inf])
def test_variances_out_of_range_are_refused(variance: float) -> None:
    with pytest.raises(ValueError, match="variance"):
        Skellam(variance)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="count"):
        Skellam(2.0**30).draw(Noise.seeded(1), -1)


def test_words_are_one_stream_however_they_are_asked_for() -> None:
    noise = Noise.seeded(47)
    pieces = np.concatenate([noise.words(n) for n in (1, 0, 3, 1, (1 << 15) + 1, 5)])
    assert np.array_equal(pieces, Noise.seeded(47).words(len(pieces)))
    mixed = Noise.seeded(47)
    mixed.normal((2,))
    assert np.array_equal(mixed.words(3), pieces[2:5])


def test_every_bit_of_a_word_is_even() -> None:
    words = Noise.seeded(48).words(200_000)
    for bit in range(64):
        ones = int((words >> np.uint64(bit) & np.uint64(1)).sum())
        assert abs(ones - 100_000) < LEVEL * np.sqrt(50_000)


def test_words_after_a_fork_are_not_those_of_the_parent() -> None:
    noise = Noise.fresh()
    noise.words(4)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(noise.words(4).tolist()))
    child.start()
    theirs = receiver.recv()
    child.join()
    assert theirs != noise.words(4).tolist()
