"""`Claim`, `Trial` and what cases measure with: mu by two other computations, what canaries move, and what does not fit."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from numpy.typing import NDArray

from eigenveil.audit.case import Trial, mu_of
from eigenveil.audit.cases.seen import Look, moved_by_one, scored
from eigenveil.core.accounting import Budget, mu_for
from eigenveil.linalg import Array


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 4.0, 30.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-3, 0.2])
def test_mu_is_that_of_the_accountant_by_another_way(epsilon: float, delta: float) -> None:
    assert mu_of(Budget(epsilon, delta)) == pytest.approx(mu_for(epsilon, delta), rel=1e-9)


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(4.0, 1e-3)], ids=str)
def test_mu_is_that_of_dp_accounting(budget: Budget) -> None:
    theirs = dp_accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(value_discretization_interval=1e-3),
        dp_accounting.GaussianDpEvent,
        budget.epsilon,
        budget.delta,
    )
    assert mu_of(budget) == pytest.approx(1 / theirs, rel=1e-3)


def test_no_budget_has_no_largest_mu() -> None:
    assert math.isinf(mu_of(Budget(math.inf, 1e-6)))


def test_parts_are_all_of_the_noise() -> None:
    with pytest.raises(ValueError, match="parts must add up"):
        Trial(scores=np.zeros(1), present=np.ones(1, dtype=bool), noise=np.zeros(3), parts=(1, 1))
    assert Trial(scores=np.zeros(1), present=np.ones(1, dtype=bool), noise=np.zeros(3), parts=(1, 2)).moved == 0.0


def look(*shifts: tuple[float, ...], scale: float, charged: float = math.inf) -> Look:
    size = len(shifts[0])
    return Look(released=np.zeros(size), base=np.zeros(size), shifts=np.array(shifts), scale=scale, charged=charged)


def test_a_canary_moves_all_releases_together() -> None:
    present = np.zeros(2, dtype=bool)
    trial = scored([look((3.0, 0.0), (0.0, 1.0), scale=1.0), look((4.0,), (0.0,), scale=0.5)], present)
    assert trial.moved == pytest.approx(math.hypot(3.0, 8.0))
    assert trial.parts == (2, 1)


def test_a_release_that_was_charged_too_little_is_not_made_up_for_by_another() -> None:
    present = np.zeros(1, dtype=bool)
    honest = [look((3.0,), scale=1.0, charged=3.0), look((4.0,), scale=1.0, charged=4.0)]
    assert scored(honest, present).moved == pytest.approx(5.0)
    # It moves the first by twice what was paid for, and the second by next to nothing.
    uneven = [look((6.0,), scale=1.0, charged=3.0), look((0.1,), scale=1.0, charged=4.0)]
    assert scored(uneven, present).moved == pytest.approx(10.0)
    # What it is not in was not paid for it.
    apart = [look((6.0,), scale=1.0, charged=3.0), look((0.0,), scale=1.0, charged=4.0)]
    assert scored(apart, present).moved == pytest.approx(6.0)


def test_noise_of_one_seed_cancels_between_a_run_with_somebody_and_one_without() -> None:
    """One canary of two kinds moves one of its releases by 2, and another by 1; noise is a thousand times as large."""
    seeds = set()

    def released(there: NDArray[np.bool_], seed: int) -> list[Array]:
        seeds.add(seed)
        noise = 1000 * np.random.default_rng(seed).standard_normal((2, *there.shape))
        return [2 * there + noise[0], there + noise[1]]

    rng = np.random.default_rng(5)
    far = np.array([moved_by_one(released, rng.integers(2, size=(2, 3)).astype(bool), rng) for _ in range(400)])
    seen = far[far > 0]
    # In one run of eight, but for five standard deviations.
    assert abs(len(seen) - 50) < 5 * math.sqrt(400 * 7 / 64)
    np.testing.assert_allclose(seen, 0.999 * math.sqrt(5), rtol=1e-9)
    assert len(seeds) == len(seen)
