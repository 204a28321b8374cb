"""The planner: its forecasts move as they must, its choice follows from them, and simulated fits come out as forecast."""

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil import PrivatePCA
from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.linalg import Array, captured_variance
from eigenveil.methods import power as power_method
from eigenveil.plan.choose import MEMORY_LIMIT, Choice, predict
from eigenveil.tasks.fit.gaps import split_budget

BUDGET = Budget(1.0, 1e-6)
dims = st.integers(2, 400)
epsilons = st.floats(0.01, 20.0)


def both(**facts: Any) -> tuple[Choice, Choice]:
    """Forecasts for the covariance and for the power method."""
    defaults: dict[str, Any] = {"dim": 50, "rank": 3, "budget": BUDGET, "people": 3000}
    choices = {choice.method: choice for choice in predict(**(defaults | facts)).considered}
    return choices["covariance"], choices["power"]


def captured(choice: Choice) -> float:
    """The forecast of captured variance, which must be there."""
    assert choice.captured is not None
    return choice.captured


@given(dims, epsilons, epsilons)
def test_a_larger_epsilon_never_looks_worse(dim: int, one: float, other: float) -> None:
    low, high = sorted([one, other])
    for worse, better in zip(
        both(dim=dim, rank=2, budget=Budget(low, 1e-6)), both(dim=dim, rank=2, budget=Budget(high, 1e-6)), strict=True
    ):
        assert better.noise <= worse.noise
        assert captured(better) >= captured(worse)
        assert 0 < captured(worse) <= 1


@given(dims, st.integers(1, 10**7), st.integers(1, 10**7))
def test_more_people_never_look_worse(dim: int, one: int, other: int) -> None:
    few, many = sorted([one, other])
    for worse, better in zip(both(dim=dim, rank=2, people=few), both(dim=dim, rank=2, people=many), strict=True):
        assert captured(better) >= captured(worse)
        # Noise is on sums: it does not know how many people there are.
        assert better.noise == worse.noise


def test_forecasts_range_from_hopeless_to_perfect() -> None:
    steps = [captured(both(people=people)[0]) for people in (10, 300, 1000, 3000, 10**6)]
    assert all(after > before for before, after in pairwise(steps[1:]))
    # A random subspace captures its share of the trace: rank / dim of it all.
    spectrum = 1 / np.arange(1, 51)
    assert steps[0] == pytest.approx(3 / 50 * spectrum.sum() / spectrum[:3].sum())
    assert steps[-1] > 0.9999


@given(dims, epsilons, st.integers(1, 8))
def test_shares_sum_to_one_and_later_rounds_get_more(dim: int, epsilon: float, rounds: int) -> None:
    covariance, power = both(dim=dim, rank=2, budget=Budget(epsilon, 1e-6), rounds=rounds)
    assert covariance.plan.shares == (1.0,)
    assert len(power.plan.shares) == rounds
    assert math.fsum(power.plan.shares) == pytest.approx(1.0, abs=1e-12)
    assert all(after / before == pytest.approx(power_method.METHOD.growth) for before, after in pairwise(power.plan.shares))


def test_rounds_and_widths_have_defaults_and_can_be_given() -> None:
    assert len(both()[1].plan.shares) == power_method.METHOD.noisy_rounds
    assert len(both(budget=None)[1].plan.shares) == 24
    assert both(rank=3)[1].plan.width == 13
    assert both(rank=5)[1].plan.width == 20
    assert both(rank=30)[1].plan.width == 50
    assert both(rank=3, oversample=0)[1].plan.width == 3
    assert both(rank=20, budget=None)[1].plan.width == 40


def test_auto_takes_the_covariance_while_it_fits() -> None:
    small = predict(dim=300, rank=5, budget=BUDGET)
    assert small.chosen.method == "covariance"
    assert "times lower than that of the power method" in small.reason
    assert "2.7 of 1024 MiB allowed" in small.reason
    large = predict(dim=20_000, rank=5, budget=BUDGET)
    assert large.chosen.method == "power"
    assert "the covariance would need 12207 MiB, more than the 1024 MiB allowed" in large.reason
    exact = predict(dim=300, rank=5, budget=None)
    assert (exact.chosen.method, exact.chosen.noise) == ("covariance", 0.0)
    assert "it is exact" in exact.reason


@given(st.integers(2, 20_000), st.sampled_from([1 << 20, 1 << 26, MEMORY_LIMIT]))
def test_auto_draws_the_line_at_the_memory_it_states(dim: int, limit: int) -> None:
    plan = predict(dim=dim, rank=2, budget=BUDGET, memory_limit=limit)
    covariance = plan.considered[0]
    # Two workers keep a sum and a product each: four matrices of doubles.
    assert covariance.memory == 4 * 8 * dim**2
    assert (plan.chosen is covariance) == (covariance.memory <= limit)


@pytest.mark.parametrize(("method", "dim"), list(product(["covariance", "power"], [10, 10_000])))
def test_the_mechanism_asked_for_is_taken(method: Any, dim: int) -> None:
    plan = predict(dim=dim, rank=2, budget=BUDGET, method=method)
    assert plan.chosen.method == method
    assert plan.reason == f"{method} was asked for"


def test_replacing_a_person_takes_more_noise_than_removing_one() -> None:
    for removed, replaced in zip(both(), both(neighbours=Neighbours.REPLACE_ONE), strict=True):
        assert replaced.noise == pytest.approx(math.sqrt(2) * removed.noise)


def test_where_the_number_of_people_is_private_nothing_is_forecast() -> None:
    covariance, power = both(people=None)
    assert covariance.captured is None and power.captured is None
    assert "captured" not in str(covariance)
    assert "covariance: noise 42.2 row_bound^2, 0.0763 MiB, captured variance of the clipped rows about 0.99" in str(both()[0])


def test_what_auto_may_not_take_can_be_asked_for() -> None:
    plan = predict(dim=50, rank=3, budget=BUDGET, method="krylov")
    assert plan.chosen.method == "krylov" and plan.reason == "krylov was asked for"
    assert "krylov" not in {choice.method for choice in predict(dim=50, rank=3, budget=BUDGET).considered}


def test_noise_norms_are_those_of_random_matrices() -> None:
    # Largest singular values of 200 x 200 Gaussian matrices deviate by t > 0 with probability exp(-t^2 / 2) (Davidson
    # and Szarek 2001), so 5.5 standard deviations of one entry hold at a level of 1e-6.
    covariance, power = both(dim=200, rank=3)
    rng = np.random.default_rng(0)
    sigma = 1 / BUDGET.mu
    full = rng.standard_normal((200, 200)) * sigma
    assert np.linalg.norm((full + full.T) / 2, 2) == pytest.approx(covariance.noise, abs=5.5 * sigma)
    last = sigma / math.sqrt(power.plan.shares[-1])
    block = rng.standard_normal((200, power.plan.width)) * last
    assert np.linalg.norm(block, 2) == pytest.approx(power.noise, abs=5.5 * last)


@pytest.mark.parametrize("spectrum", [np.array([0.5, 0.5]), np.array([9.0]), np.array([1.0, 0.0, 0.0, 0.0])])
def test_a_short_spectrum_means_zeros_behind_it(spectrum: Array) -> None:
    padded = np.pad(spectrum, (0, 50 - len(spectrum)))
    for people in (10, 300, 3000):
        assert captured(both(rank=2, people=people, spectrum=spectrum)[0]) == pytest.approx(
            captured(both(rank=2, people=people, spectrum=padded)[0])
        )
    assert captured(both(rank=2, people=10, spectrum=spectrum)[0]) == pytest.approx(2 / 50)


@pytest.mark.parametrize(("mean", "count", "trace"), list(product([False, True], repeat=3)))
def test_the_split_of_a_budget_spends_all_of_it_on_what_is_needed(mean: bool, count: bool, trace: bool) -> None:
    for search in (False, True):
        split = split_budget(mean=mean, search=search, count=count, trace=trace)
        assert (len(split.mean) > 0) == mean
        assert (len(split.mean) > 1) == (mean and search)
        assert (split.count > 0) == (count and mean)
        assert (split.extra > 0) == (trace or (count and not mean))
        for steps in range(len(split.mean) + 1):
            spent = sum(split.mean[:steps]) + (split.count if steps else 0.0) + split.extra
            assert spent + split.main(steps) == pytest.approx(1.0, abs=1e-15)
        assert split.main(len(split.mean)) >= 0.75
        assert split.main(len(split.mean)) < 1 or not (mean or count or trace)


def rademacher(people: int, dim: int) -> Array:
    """Rows, (people, dim), with a 1/i spectrum, each filling half the unit ball exactly, as the planner supposes."""
    shares = 1 / np.arange(1, dim + 1)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (people, dim))
    rows: Array = signs * np.sqrt(shares / shares.sum() / 2)
    return rows


@pytest.mark.parametrize(
    ("dim", "rank", "people", "epsilon", "method"),
    [
        (50, 3, 2000, 1.0, "covariance"),
        (50, 3, 5000, 1.0, "power"),
        (100, 5, 5000, 1.0, "covariance"),
        (200, 2, 4000, 2.0, "power"),
    ],
)
def test_fits_capture_what_was_forecast(dim: int, rank: int, people: int, epsilon: float, method: Any) -> None:
    facts: dict[str, Any] = {"dim": dim, "rank": rank, "people": people, "budget": Budget(epsilon, 1e-6)}
    forecast = predict(**facts, method=method, neighbours=Neighbours.ZERO_OUT).chosen
    rows = rademacher(people, dim)
    found = []
    for seed in range(4):
        pca = PrivatePCA(
            rank, epsilon=epsilon, delta=1e-6, row_bound=1.0, center=None, neighbours="zero-out", method=method, random_state=seed
        )
        found.append(captured_variance(rows.T @ rows, pca.fit(rows).components_.T))
    # One fit of these cells has a standard deviation of at most 0.006. So the mean of four strays by 0.015 with
    # probability below 1e-6. The first-order formula itself may be 0.01 off where it forecasts 0.95 or more.
    assert captured(forecast) > 0.95
    assert np.mean(found) == pytest.approx(captured(forecast), abs=0.025)
    # Half the people would be told apart, so the tolerance says something.
    half = both(**(facts | {"people": people // 2}))[0 if method == "covariance" else 1]
    assert np.mean(found) - captured(half) > 0.025
