"""Exact accounting against high-precision arithmetic, against dp-accounting, and against published tables."""

import math

import dp_accounting
import mpmath
import pytest
from dp_accounting import pld
from hypothesis import given
from hypothesis import strategies as st

from each import each
from eigenveil.core.accounting import Budget, delta_of, epsilon_of, mu_for, scaled_erfc
from eigenveil.papers.theory import classical_multiplier, fpca_scale, mod_sulq_scale, ppm_multiplier, sulq_scale
from eigenveil.privacy.guarantee import Loss, price

GRID = [(e, d) for e in (1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, 50.0) for d in (1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5)]


def precise_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """The same formula with 80 digits."""
    with mpmath.workdps(80):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


@given(st.one_of(st.floats(-3.6, 30.0), st.floats(20.0, 1e9)))
def test_the_scaled_error_function_is_right_to_a_few_units_of_the_last_place(x: float) -> None:
    with mpmath.workdps(60):
        expected = mpmath.exp(mpmath.mpf(x) ** 2) * mpmath.erfc(mpmath.mpf(x))
        # Less than what `delta_of` allows for all of its operations together.
        assert abs(scaled_erfc(x) / expected - 1) < 2.0**-50


@each("epsilon", [0.0, 1e-6, 0.01, 1.0, 5.0, 30.0])
@each("mu", [1e-4, 0.01, 0.2, 1.0, 4.0, 20.0])
def test_delta_has_nine_digits(epsilon: float, mu: float) -> None:
    expected = precise_delta(epsilon, mu)
    if expected > 1e-300:
        assert float(abs(delta_of(epsilon, mu) - expected) / expected) < 1e-9
    else:
        assert delta_of(epsilon, mu) < 1e-290


@each(("epsilon", "delta"), GRID)
def test_calibration_keeps_the_guarantee_and_wastes_nothing(epsilon: float, delta: float) -> None:
    mu = mu_for(epsilon, delta)
    assert precise_delta(epsilon, mu) <= delta
    assert precise_delta(epsilon, mu * (1 + 1e-9)) > delta


@each("epsilon", [1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0, 1000.0])
@each("delta", [1e-100, 1e-30, 1e-12, 1e-6, 0.1, 0.9])
def test_a_part_in_two_to_the_41_of_delta_is_left(epsilon: float, delta: float) -> None:
    """For what is not quite normal; below an epsilon of 1e-3 rounding alone once broke the guarantee by 6e-8 of delta."""
    with mpmath.workdps(1200):
        left = mpmath.mpf(delta) * (1 - mpmath.mpf(2) ** -41 * 0.99)
        mu = mu_for(epsilon, delta)
        assert very_precise_delta(epsilon, mu) <= left
        assert very_precise_delta(epsilon_of(mu, delta), mu) <= left


def very_precise_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """With as many digits as the context has."""
    e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
    return (mpmath.erfc((e / m - m / 2) / mpmath.sqrt(2)) - mpmath.exp(e) * mpmath.erfc((e / m + m / 2) / mpmath.sqrt(2))) / 2


@each(("epsilon", "delta"), GRID)
def test_epsilon_undoes_calibration(epsilon: float, delta: float) -> None:
    assert epsilon_of(mu_for(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("sigma", [0.8, 2.0, 10.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5])
def test_agrees_with_an_independent_accountant(sigma: float, delta: float) -> None:
    oracle = pld.PLDAccountant(value_discretization_interval=1e-4)
    oracle.compose(dp_accounting.GaussianDpEvent(sigma), 3)
    theirs = oracle.get_epsilon(delta)
    ours = epsilon_of(math.sqrt(3) / sigma, delta)
    # The oracle rounds privacy losses up to a grid of 1e-4.
    assert ours <= theirs <= ours + 3e-3


def test_calibration_agrees_with_an_independent_accountant() -> None:
    ours = 1 / mu_for(1.0, 1e-6)
    theirs = dp_accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(value_discretization_interval=1e-4), dp_accounting.GaussianDpEvent, 1.0, 1e-6
    )
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_laplace_and_mixtures_are_priced_by_dp_accounting() -> None:
    # One Laplace release of scale b is (1/b, 0)-private; at a small delta numerics must find almost that.
    assert price([Loss("laplace", 2.0)], delta=1e-9) == pytest.approx(0.5, abs=2e-3)
    mixed = price([Loss("laplace", 2.0), Loss("gaussian", 4.0, count=4)], delta=1e-6)
    assert max(0.5, epsilon_of(0.5, 1e-6)) < mixed < 0.5 + epsilon_of(0.5, 1e-6) + 5e-3


def test_gaussian_prices_are_closed_form() -> None:
    assert price([Loss("gaussian", 5.0), Loss("gaussian", 2.5, 2)], delta=1e-5) == epsilon_of(math.hypot(0.2, 0.4, 0.4), 1e-5)


@pytest.mark.parametrize(
    ("dim", "fpca", "mod_sulq"), [(11, 87, 23), (20, 171, 43), (784, 9236, 2260)], ids=["d=11", "d=20", "d=784"]
)
def test_published_covariance_noise_over_exact(dim: int, fpca: float, mod_sulq: float) -> None:
    """Ratios at the same guarantee, replace-one, epsilon = 1, delta = 0.05; docs/decisions has the table."""
    budget = Budget(1.0, 0.05)
    exact = math.sqrt(2) / budget.mu
    assert round(fpca_scale(budget, dim=dim) / exact) == fpca
    assert round(mod_sulq_scale(budget, dim=dim) / exact) == mod_sulq
    assert sulq_scale(budget, dim=dim) > exact


@pytest.mark.parametrize(("epsilon", "ratio"), [(0.5, 2.06), (1.0, 1.91), (10.0, 1.33)])
def test_published_power_noise_over_exact(epsilon: float, ratio: float) -> None:
    budget = Budget(epsilon, 1e-4)
    assert ppm_multiplier(budget, rounds=3) / (math.sqrt(3) / budget.mu) == pytest.approx(ratio, abs=0.005)


def test_published_multipliers_keep_their_guarantee_where_they_are_proved() -> None:
    for epsilon in (0.1, 0.5, 0.9):
        assert delta_of(epsilon, 1 / classical_multiplier(Budget(epsilon, 1e-5))) <= 1e-5
    for epsilon in (0.1, 1.0, 20.0):
        multiplier = ppm_multiplier(Budget(epsilon, 1e-5), rounds=1)
        assert delta_of(epsilon, 1 / multiplier) <= 1e-5
    with pytest.raises(ValueError, match="4 log"):
        ppm_multiplier(Budget(50.0, 1e-5), rounds=1)


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [(0.0, 1e-6, "epsilon"), (-1.0, 1e-6, "epsilon"), (math.nan, 1e-6, "epsilon"), (1.0, 0.0, "delta"), (1.0, 1.0, "delta")],
)
def test_bad_budgets_are_refused(epsilon: float, delta: float, message: str) -> None:
    for make in (Budget, mu_for):
        with pytest.raises(ValueError, match=f"{message} must"):
            make(epsilon, delta)


def test_bad_losses_are_refused() -> None:
    with pytest.raises(ValueError, match="multiplier"):
        Loss("gaussian", 0.0)
    with pytest.raises(ValueError, match="count"):
        Loss("gaussian", 1.0, 0)
    with pytest.raises(ValueError, match="at least one"):
        price([], delta=1e-6)
    with pytest.raises(ValueError, match="epsilon must not be negative"):
        delta_of(-1.0, 1.0)
    with pytest.raises(ValueError, match="mu must not be negative"):
        delta_of(1.0, -1.0)
    with pytest.raises(ValueError, match="mu must not be negative"):
        epsilon_of(-1.0, 0.1)


def test_limits() -> None:
    assert delta_of(1.0, 0.0) == 0.0
    assert delta_of(1.0, math.inf) == 1.0
    assert delta_of(math.inf, 1.0) == 0.0
    assert epsilon_of(0.0, 1e-6) == 0.0
    assert math.isinf(epsilon_of(math.inf, 1e-6))
    assert math.isinf(mu_for(math.inf, 1e-6))
