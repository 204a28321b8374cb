"""Bounds hold as often as they say, whatever was attacked; and they convict what is wrong."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom, binomtest, chi2, norm

from eigenveil.audit.case import (
    epsilon_at_least,
    epsilon_in_one_run,
    mean_at_least,
    mu_from_accuracy,
    noise_at_most,
    one_run_level,
    rate_at_least,
    rate_at_most,
)
from eigenveil.linalg import Array

LEVEL = 1e-6


def at_most(wrong: int, tries: int, level: float) -> bool:
    """Whether so many wrong bounds in so many tries can be explained by a chance of `level` each, but for one in a million."""
    return bool(binomtest(wrong, tries, level, alternative="greater").pvalue > LEVEL)


@pytest.mark.parametrize(("hits", "runs"), [(0, 1), (1, 1), (0, 40), (40, 40), (3, 40), (37, 40), (700, 1000)])
@pytest.mark.parametrize("level", [0.3, 0.01, 1e-5])
def test_rates_are_those_of_an_exact_binomial_test(hits: int, runs: int, level: float) -> None:
    low = binomtest(hits, runs, alternative="greater").proportion_ci(1 - level, method="exact").low
    high = binomtest(hits, runs, alternative="less").proportion_ci(1 - level, method="exact").high
    assert rate_at_least(hits, runs, level=level) == pytest.approx(low, rel=1e-9, abs=1e-12)
    assert rate_at_most(hits, runs, level=level) == pytest.approx(high, rel=1e-9)


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.7282, 0.99])
def test_rates_are_wrong_no_more_often_than_they_say(rate: float) -> None:
    hits = np.arange(41)
    chances = binom.pmf(hits, 40, rate)
    above = [rate_at_least(int(one), 40, level=0.05) > rate for one in hits]
    below = [rate_at_most(int(one), 40, level=0.05) < rate for one in hits]
    assert chances[above].sum() <= 0.05
    assert chances[below].sum() <= 0.05


def alike(rng: np.random.Generator, runs: int, rate: float) -> Array:
    """All canaries of a run are guessed right together or not at all."""
    return (rng.random(runs) < rate).astype(np.float64)


def apart(rng: np.random.Generator, runs: int, rate: float) -> Array:
    """Eight canaries of a run, each for itself."""
    return np.asarray(rng.binomial(8, rate, size=runs) / 8)


@pytest.mark.parametrize("drawn", [alike, apart])
@pytest.mark.parametrize("rate", [0.5, 0.73, 0.97])
def test_means_are_wrong_no_more_often_than_they_say_however_canaries_hang_together(
    drawn: Callable[[np.random.Generator, int, float], Array], rate: float
) -> None:
    rng = np.random.default_rng(11)
    wrong = sum(mean_at_least(drawn(rng, 60, rate), level=0.1) > rate for _ in range(400))
    assert at_most(wrong, 400, 0.1)


def test_counting_canaries_that_hang_together_one_by_one_would_be_wrong() -> None:
    """What the test above would see, were a run's canaries taken for independent."""
    rng, rate = np.random.default_rng(11), 0.73
    wrong = sum(rate_at_least(int(8 * alike(rng, 60, rate).sum()), 8 * 60, level=0.1) > rate for _ in range(400))
    assert not at_most(wrong, 400, 0.1)


def test_means_of_many_canaries_are_nearly_as_sharp_as_if_they_were_normal() -> None:
    values = apart(np.random.default_rng(2), 400, 0.78)
    found = mean_at_least(values, level=1e-4)
    normal = values.mean() - norm.isf(1e-4) * values.std() / math.sqrt(len(values))
    assert 0.73 < found <= normal
    assert normal - found < 0.02


def test_means_do_not_change_with_what_is_not_there() -> None:
    assert mean_at_least(np.zeros(50), level=0.01) == 0.0
    assert mean_at_least(np.ones(400), level=0.01) > 0.98
    # A run after which nothing else comes cannot lower what was proved before.
    values = np.full(300, 0.9)
    assert mean_at_least(values, level=0.01) <= 0.9
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        mean_at_least(np.array([0.5, 1.5]), level=0.01)


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.2, 3.0])
def test_the_rate_of_right_guesses_is_the_best_on_the_curve(mu: float) -> None:
    alarms = norm.sf(np.linspace(-9, 9, 200_001))
    misses = norm.cdf(norm.isf(alarms) - mu)
    best = float((1 - (alarms + misses) / 2).max())
    assert mu_from_accuracy(best) == pytest.approx(mu, rel=1e-6)
    assert mu_from_accuracy(best + 0.01) > mu


def test_no_rate_below_a_half_shows_anything() -> None:
    assert mu_from_accuracy(0.5) == mu_from_accuracy(0.2) == 0.0
    assert mu_from_accuracy(1.0) == math.inf


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.0), (1.0, 0.05), (2.0, 1e-5), (1.0, 0.4)])
def test_epsilon_from_rates_is_wrong_no_more_often_than_it_says(epsilon: float, delta: float) -> None:
    """What is attacked answers at random with odds e^epsilon, and with chance delta tells all."""
    right = delta + (1 - delta) / (1 + math.exp(-epsilon))
    false = (1 - delta) / (1 + math.exp(epsilon))
    present, absent = 30, 25
    wrong = sum(
        float(binom.pmf(alarms, present, right) * binom.pmf(others, absent, false))
        for alarms, others in itertools.product(range(present + 1), range(absent + 1))
        if epsilon_at_least(alarms, present, others, absent, delta=delta, level=0.2) > epsilon
    )
    assert wrong <= 0.2
    # A quarter of the level for each of four rates is careful, and not idle.
    assert epsilon_at_least(round(right * 10**5), 10**5, round(false * 10**5), 10**5, delta=delta, level=0.2) > 0.9 * epsilon


def test_epsilon_from_rates_takes_silence_for_a_sign_too() -> None:
    loud = epsilon_at_least(500, 1000, 5, 1000, delta=1e-5, level=0.01)
    silent = epsilon_at_least(995, 1000, 500, 1000, delta=1e-5, level=0.01)
    assert loud == pytest.approx(silent)
    assert epsilon_at_least(5, 1000, 500, 1000, delta=1e-5, level=0.01) == 0.0


def worst(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    """The largest chance of `right` or more, over all (epsilon, delta)-private algorithms that guess about fair coins.

    It is a linear programme over their answers to each table. One variable for each pair of neighbours is the excess over
    e^epsilon.
    """
    tables = list(itertools.product((0, 1), repeat=canaries))
    answers = [answer for answer in itertools.product((None, 0, 1), repeat=canaries) if canaries - answer.count(None) == guesses]
    pairs = [
        (one, two)
        for one in range(len(tables))
        for two in range(len(tables))
        if sum(a != b for a, b in zip(tables[one], tables[two], strict=True)) == 1
    ]
    count, size = len(answers), len(tables) * len(answers)
    gain = np.zeros(size + len(pairs) * count)
    for place, (tosses, guessed) in enumerate(itertools.product(tables, answers)):
        gain[place] = sum(a == b for a, b in zip(tosses, guessed, strict=True)) >= right
    above, sums = np.zeros((len(pairs) * count, len(gain))), np.zeros((len(pairs), len(gain)))
    for number, (one, two) in enumerate(pairs):
        for which in range(count):
            line = number * count + which
            above[line, one * count + which] = 1.0
            above[line, two * count + which] = -math.exp(epsilon)
            above[line, size + line] = -1.0
            sums[number, size + line] = 1.0
    whole = np.zeros((len(tables), len(gain)))
    for table in range(len(tables)):
        whole[table, table * count : (table + 1) * count] = 1.0
    found = linprog(
        -gain / len(tables),
        A_ub=np.vstack([above, sums]),
        b_ub=np.concatenate([np.zeros(len(above)), np.full(len(pairs), delta)]),
        A_eq=whole,
        b_eq=np.ones(len(tables)),
    )
    assert found.success
    return -float(found.fun)


@pytest.mark.parametrize(("canaries", "guesses"), [(1, 1), (2, 2), (3, 3), (3, 2), (3, 1)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.5, 0.0), (0.5, 0.02), (1.0, 0.2)])
def test_no_private_algorithm_is_right_more_often_in_one_run(canaries: int, guesses: int, epsilon: float, delta: float) -> None:
    for right in range(guesses + 1):
        level = one_run_level(right, guesses, canaries, epsilon=epsilon, delta=delta)
        chance = worst(canaries, guesses, right, epsilon=epsilon, delta=delta)
        assert chance <= level + 1e-9
        if delta == 0 and guesses == canaries:
            # Answering each at random with odds e^epsilon is as good as any.
            assert chance == pytest.approx(level, abs=1e-9)
        if canaries == 1 and right == 1:
            assert chance == pytest.approx(level, abs=1e-9)
        if right == guesses == canaries:
            # Telling all with chance delta is one of them.
            alone = float(binom.sf(right - 1, guesses, 1 / (1 + math.exp(-epsilon))))
            assert chance >= delta + (1 - delta) * alone - 1e-9


@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_epsilon_from_one_run_is_wrong_no_more_often_than_it_says(delta: float) -> None:
    canaries, guesses = 60, 40
    rights = np.arange(guesses + 1)
    bounds = np.array([epsilon_in_one_run(int(one), guesses, canaries, delta=delta, level=0.05) for one in rights])
    assert (np.diff(bounds) >= 0).all()
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        chances = binom.pmf(rights, guesses, 1 / (1 + math.exp(-epsilon)))
        wrong = chances[bounds > epsilon].sum()
        assert wrong <= 0.05
        # With forty guesses there is a number of right ones that is enough, but for the largest epsilon.
        assert wrong > 0.005 or epsilon > 2.5
    # A bound is where the level is reached, and refuting a larger epsilon refutes smaller ones.
    assert one_run_level(36, guesses, canaries, epsilon=float(bounds[36]), delta=delta) == pytest.approx(0.05)


def test_one_run_convicts_what_reveals_everybody() -> None:
    assert epsilon_in_one_run(400, 400, 600, delta=1e-8, level=1e-4) > 3.5
    assert epsilon_in_one_run(200, 400, 600, delta=1e-8, level=1e-4) == 0.0
    # With a large delta a small epsilon alone is not refuted, and a larger one is.
    assert one_run_level(400, 400, 600, epsilon=0.0, delta=1e-5) > 2e-3
    assert epsilon_in_one_run(400, 400, 600, delta=1e-5, level=2e-3) > 3.0


def test_a_deviation_from_squares_is_wrong_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    squares = rng.chisquare(20, size=2000)
    wrong = sum(noise_at_most(float(one), 20, level=0.1) < 1 for one in squares)
    assert at_most(wrong, 2000, 0.1)
    assert binomtest(wrong, 2000, 0.1, alternative="less").pvalue > LEVEL
    small = sum(noise_at_most(0.8**2 * float(one), 20, level=0.1) < 1 for one in squares)
    assert not at_most(small, 2000, 0.1)
    assert noise_at_most(0.0, 5, level=0.1) == 0.0
    assert noise_at_most(float(chi2.ppf(0.1, 20)), 20, level=0.1) == pytest.approx(1.0)


def test_the_published_bound_for_one_run_is_not_one() -> None:
    """Answers at random, changed with chance c where none would be right, are (1, 0.01)-private and beat it."""
    rate = 1 / (1 + math.exp(-1.0))
    none_right = (1 - rate) ** 2
    # The one answer that gains on a neighbour is half right in one table and was all wrong in the other.
    changed = 0.01 / (none_right / 2 + math.e * none_right)
    chance = 1 - none_right * (1 - changed)
    published = 1 - none_right + 2 * 2 * 0.01 * none_right
    assert chance > published
    assert chance <= worst(2, 2, 1, epsilon=1.0, delta=0.01) <= one_run_level(1, 2, 2, epsilon=1.0, delta=0.01)
