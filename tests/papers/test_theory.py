"""`eigenveil.papers.theory` against cases computed by hand."""

import math

import numpy as np
import pytest

from eigenveil.core.accounting import Budget
from eigenveil.papers import theory

BUDGET = Budget(2.0, math.exp(-4))
FEDPOWER = {"k": 1, "width": 4, "dim": 9, "sigma": 0.5, "communications": 1, "eta": 0.1, "rho": 0.5}


def test_assumption_1_and_lemma_24() -> None:
    # M_1 = diag(4, 0), M_2 = diag(0, 2), M = diag(1, 1.5) for 1 and 3 rows: the first device is 3 away, and ||M|| = 1.5.
    grams = [np.diag([4.0, 0.0]), np.diag([0.0, 6.0])]
    apart = max(np.linalg.norm(np.diag([4 - 1, 0 - 1.5]), 2), np.linalg.norm(np.diag([0 - 1, 2 - 1.5]), 2))
    assert theory.fedpower_eta(grams, [1, 3]) == pytest.approx(apart / 1.5) == pytest.approx(2.0)
    # 3 * 2 * 5 / 0.25 * log(5 * 4 / (20 / e^2)) = 120 * 2.
    rows = theory.fedpower_rows(0.5, coherence=2.0, rank=5, devices=4, failure=20 / math.e**2 / 10)
    assert rows == pytest.approx(120 * (2 + math.log(10)))


def test_theorem_5_by_hand() -> None:
    # gap 2 * (1 - (1 - 0.5) * 0.5) = 1.5; noise 0.5 * sqrt(0.5) * 2 * 3; I_2: 3 * (0.1 + 2.1 * 0.5) / 1.5.
    first, second = theory.fedpower_full([3.0, 1.0], weights=[0.5, 0.5], **FEDPOWER)  # type: ignore[arg-type]
    assert first == pytest.approx(0.5 * math.sqrt(0.5) * 2 * 3 / 1.5)
    assert second == pytest.approx(3 * 1.15 / 1.5)


def test_theorems_8_and_9_by_hand() -> None:
    more = {**FEDPOWER, "weights": [0.5, 0.25, 0.25], "participants": 2}
    # gap 2 * 0.5 = 1; phi = (1 - 0.375) / 2 + 0.375 + 0.5 = 1.1875; log(13).
    found = theory.fedpower_scheme_1([3.0, 1.0], **more)  # type: ignore[arg-type]
    assert found == pytest.approx((0.5 * math.sqrt(2) * 3, 3 * 1.15, 3 * 1.1875 * math.log(13)))
    # m/K = 1.5, the largest two weigh 0.75 and the smallest 0.5, squares 0.3125; gap 2 * 1.5 * (0.5 - 0.375) = 0.375.
    factor, psi = 1.125, 0.625 / 2 + 0.375 + 1.5 * 0.375
    expected = (
        factor * math.sqrt(0.3125) * 1.5 * 0.5 * 2 * 3 / 0.375,
        factor * 1.125 * 3 * 1.15 / 0.375,
        factor * 3 * psi * math.log(13) / 0.375,
        0.75 * 3 * 1.5 * 0.125 / 0.375,
    )
    assert theory.fedpower_scheme_2([3.0, 1.0], **more) == pytest.approx(expected)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="are equal"):
        theory.fedpower_full([1.0, 1.0], weights=[1.0], **FEDPOWER)  # type: ignore[arg-type]


def test_fpca_by_hand() -> None:
    # 8 / 2 + sqrt(2 * 1 * 3 / (2 * 2)) at p = 8, whose third root is 2.
    assert theory.fpca_eta([8.0, 2.0, 2.0, 1.0], rank=2, p=8.0) == pytest.approx(4 + math.sqrt(1.5))
    assert theory.fpca_growth(1.0, rows=1000, block=100, p=3.0) == pytest.approx(100.0)
    assert theory.fpca_tree_factor(1) == pytest.approx(2 + 2 * math.sqrt(2))
    assert theory.fpca_rows(Budget(1.0, 0.05), dim=11, omega=0.1) == pytest.approx(1645, rel=1e-3)
    assert theory.fpca_sample_size(Budget(2.0, 4 / math.e**4), dim=4) == pytest.approx(8 * 2 / 2)


def test_the_ceiling_of_utility_falls_with_noise_and_is_a_minimum() -> None:
    ceilings = [theory.fpca_ceiling(omega, dim=200) for omega in (0.05, 0.2, 1.0, 10.0)]
    assert ceilings[0] > ceilings[1] > ceilings[2] > ceilings[3] and all(0.75 < one <= 1 for one in ceilings)
    # At one phi by hand, which the minimum cannot exceed: 199 * log(1 / sqrt(0.75)) = 28.62.
    bracket = 1 - (1 + math.log(2)) / (199 * 0.5 * math.log(4 / 3) - math.log(8))
    assert ceilings[2] <= 1 - 0.5 / 4 * bracket**2 + 1e-9


def test_ppm_by_hand() -> None:
    assert theory.ppm_rounds([4.0, 2.0, 1.0], k=1, q=1, dim=8) == pytest.approx(2 * math.log(8))
    # sqrt(9 * 4 * 4 * log 9) / (2 * 3) with rows up to 0.5.
    eta = theory.ppm_eta_after(BUDGET, largest_row=0.5, rounds=9, dim=4, gap=3.0)
    assert eta == pytest.approx(math.sqrt(144 * math.log(9)) / 12)
    wide = theory.ppm_eta_before(BUDGET, mu0=0.9, width=16, rounds=9, dim=4, gap=3.0)
    narrow = theory.ppm_eta_before(BUDGET, mu0=0.1, width=4, rounds=9, dim=4, gap=3.0)
    assert wide == pytest.approx(2 * eta) and narrow == pytest.approx(2 * eta * 0.2 * math.sqrt(math.log(4)))


def test_d_dp_pm_by_hand() -> None:
    # alpha mu = 2 and 0.5: numerator 1 + 4 * 0.25, denominator 1 + 0.25 * 0.25.
    assert theory.ddppm_rho([4.0, 1.0], alpha=0.5, sigma_q=1.0, sigma_p=[0.5]) == pytest.approx(2 / 1.0625)
    assert theory.ddppm_corollary([4.0, 1.0], alpha=0.5, sigma_q=0.5) == pytest.approx(1 + 1 / (0.25 * 0.75))
    bound = theory.ddppm_bound([4.0, 1.0], rows=11, agents=2, per_agent=3, second=0.5, c=2, rounds=1, rho=2.0)
    assert bound == pytest.approx(2 * (6 * 0.25 / 3 + 10 * 2 / 16))
    # One value alone converges at once; at a ratio of two, 2^-2T of a random ratio must come below a thousandth.
    assert theory.ddppm_rounds(np.diag([1.0, 0.0])) == 1
    assert 4 <= theory.ddppm_rounds(np.diag([2.0, 1.0])) <= 7
    with pytest.raises(ValueError, match="hardly differ"):
        theory.ddppm_rounds(np.eye(2), max_rounds=9)
