"""Membership inference:

the attack finds people in components without privacy, and is held to what a guarantee allows otherwise.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from eigenveil.audit.membership import (
    Demonstration,
    Population,
    Shown,
    _conclusion,
    _standing_out,
    advantage,
    largest_advantage,
    membership,
    scores,
)
from eigenveil.core.accounting import mu_for
from eigenveil.estimators import PrivatePCA

ANYBODY, STANDING_OUT = "anybody in the table", "one person who stands out"


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    return membership(seed=7, tables=100)


def deviation(row: Shown) -> float:
    """Of a measured advantage, from an interval at 1%."""
    assert row.interval is not None
    low, high = row.interval
    return (high - low) / 2 / 2.576


def test_without_privacy_people_are_told_apart(shown: Demonstration) -> None:
    anybody, out = (shown.of(target)[0] for target in (ANYBODY, STANDING_OUT))
    assert anybody.value > 0.5
    assert out.value > 0.9
    assert anybody.succeeded
    assert out.succeeded


def test_private_runs_stay_within_what_their_guarantee_allows(shown: Demonstration) -> None:
    private = [row for row in shown.rows if row.run != "no privacy"]
    assert len(private) == 4
    for row in private:
        assert row.allowed is not None
        assert row.value < row.allowed + 5 * deviation(row)
    assert "no private run gives more than its guarantee allows" in shown.conclusion


def test_more_noise_tells_less(shown: Demonstration) -> None:
    for target in (ANYBODY, STANDING_OUT):
        exact, one, eight = shown.of(target)
        assert one.value < exact.value - 0.3
        assert one.value < eight.value + 5 * math.hypot(deviation(one), deviation(eight))


def test_noise_that_is_too_small_for_its_guarantee_is_seen() -> None:
    rng = np.random.default_rng(1)
    settings: dict[str, Any] = {"epsilon": 20.0, "delta": 1e-5, "row_bound": 9.0}
    value, interval, _ = _standing_out(Population.drawn(rng), settings, 100, rng)
    allowed = largest_advantage(1.0, 1e-5)
    assert interval[0] > allowed
    row = Shown(
        run="epsilon = 1",
        target=STANDING_OUT,
        value=value,
        baseline=0.0,
        succeeded=True,
        words="",
        interval=interval,
        allowed=allowed,
    )
    assert "MORE than the guarantee allows in: epsilon = 1" in _conclusion([row])


def test_a_conclusion_says_when_nothing_was_found(shown: Demonstration) -> None:
    nothing = [replace(row, value=0.0, interval=(-0.1, 0.1), succeeded=False) for row in shown.rows]
    told = _conclusion(nothing)
    assert told.count("not distinguishable from a coin toss") == len(nothing)
    assert "detected with" not in told


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert membership(seed=2, tables=8) == membership(seed=2, tables=8)
    assert membership(seed=2, tables=8) != membership(seed=3, tables=8)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_largest_advantage_is_the_widest_gap_of_the_curve(epsilon: float) -> None:
    delta = 1e-5
    mu = mu_for(epsilon, delta)
    false = np.linspace(1e-6, 1 - 1e-6, 200_001)
    widest = float((ndtr(mu + ndtri(false)) - false).max())
    assert largest_advantage(epsilon, delta) == pytest.approx(widest, abs=1e-9)
    # In general: the corner of the region that right and false alarms lie in.
    corner = (1 - delta) / (1 + math.exp(epsilon))
    general = largest_advantage(epsilon, delta, gaussian=False)
    assert general == pytest.approx(math.exp(epsilon) * corner + delta - corner, rel=1e-12)
    assert largest_advantage(epsilon, delta) <= general


def test_an_advantage_is_measured_as_it_is() -> None:
    rng = np.random.default_rng(0)
    true = 2 * ndtr(0.5) - 1
    many = advantage(rng.standard_normal((400, 40)) + 1, rng.standard_normal((400, 40)))
    assert abs(many[0] - true) < 0.04
    assert many[1][0] < true < many[1][1]
    assert many[1][1] - many[1][0] < 0.06
    single = advantage(rng.standard_normal((2000, 1)) + 1, rng.standard_normal((2000, 1)))
    assert abs(single[0] - true) < 0.1
    assert single[1][0] < true < single[1][1]


def test_scores_that_say_nothing_have_no_advantage() -> None:
    rng = np.random.default_rng(3)
    value, (low, high) = advantage(*rng.standard_normal((2, 400, 40)))
    assert abs(value) < 0.04
    assert low < 0 < high
    # What is learned on some tables is not measured on them.
    assert advantage(*rng.standard_normal((2, 8, 1)))[1][0] < 0.5


def test_both_scores_are_higher_for_who_was_there() -> None:
    rng = np.random.default_rng(4)
    population = Population.drawn(rng)
    rows, others = population.people(40, rng), population.people(40, rng)
    pca = PrivatePCA(10, epsilon=None, center=None).fit(rows)
    for score in scores(pca, np.vstack([rows, others]), population).values():
        assert score[:40].mean() > score[40:].mean()
