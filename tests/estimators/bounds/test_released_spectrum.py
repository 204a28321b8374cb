"""`released_spectrum`: the eigenvalues, with the noise of one entry each, as the planner takes them."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import chi2

from eigenveil import BudgetExceeded, Ledger
from eigenveil.core.accounting import Budget
from eigenveil.estimators.bounds.spectrum import denoised, released_spectrum
from eigenveil.linalg import Array
from eigenveil.plan.spectrum import Spectrum

SIZES = np.array([3.0, 2.0, 1.0, 0.5])
BOUND = 8.0


def rows_of(count: int = 10_007, *, middle: float = 0.0) -> Array:
    return np.asarray(np.random.default_rng(0).standard_normal((count, 4)) * SIZES + middle)


@pytest.mark.parametrize("middle", [0.0, 3.0])
@pytest.mark.parametrize("neighbours", ["add-remove", "zero-out", "replace-one"])
def test_the_spectrum_is_that_of_the_rows_as_a_fit_clips_them(middle: float, neighbours: Any) -> None:
    rows = rows_of(middle=middle)
    found = released_spectrum(rows, epsilon=0.5, delta=1e-6, row_bound=BOUND, neighbours=neighbours, random_state=0)
    assert found.spectrum is not None
    truth = Spectrum.of_rows(rows, row_bound=BOUND)
    assert np.abs(found.spectrum.values - truth.values).max() < 5 * found.spectrum.error + 5 * found.spectrum.spread
    assert found.spectrum.error < 0.01
    assert "released with epsilon = 0.5, delta = 1e-06" in found.spectrum.source
    assert abs(found.people - len(rows)) <= 6 * found.people_error
    assert (found.people_error == 0) == (neighbours != "add-remove")
    assert found.guarantee.mu <= Budget(0.5, 1e-6).mu * (1 + 1e-12)
    assert Spectrum.from_json(found.spectrum.to_json()).dim == 4


def test_without_noise_it_is_exact() -> None:
    rows = rows_of(500, middle=2.0)
    found = released_spectrum(rows, epsilon=None, row_bound=BOUND)
    assert found.spectrum is not None
    mean = rows.mean(axis=0)
    moved = rows - mean
    moved *= np.minimum(1.0, BOUND / np.linalg.norm(moved, axis=1))[:, None]
    expected = np.linalg.eigvalsh(moved.T @ moved)[::-1] / 500 / BOUND**2
    # The mean is of rows that are clipped around the origin, hence not quite the same.
    np.testing.assert_allclose(found.spectrum.values, expected, rtol=0.01)
    assert "not private" in found.spectrum.source
    around = released_spectrum(rows, epsilon=None, row_bound=BOUND, center=mean)
    assert around.spectrum is not None
    np.testing.assert_allclose(around.spectrum.values, expected, rtol=1e-9)


def test_sparse_rows_people_and_units() -> None:
    rows = np.where(np.abs(rows_of()) < 0.2, 0.0, rows_of())
    settings: Any = {"epsilon": 0.5, "delta": 1e-6, "row_bound": 3.0, "scale": SIZES, "center": None, "random_state": 0}
    dense, sparse = (released_spectrum(held, **settings) for held in (rows, sp.csr_array(rows)))
    assert dense.spectrum is not None
    assert sparse.spectrum is not None
    # As near as the grid of rows: 3 over 2^17.
    np.testing.assert_allclose(dense.spectrum.values, sparse.spectrum.values, atol=1e-6)
    assert [charge.label for charge in dense.guarantee.charges] == ["spectrum"]
    grouped = released_spectrum(rows, person=np.arange(len(rows)) // 2, **settings)
    assert abs(grouped.people - len(rows) / 2) < 6 * grouped.people_error
    assert grouped.spectrum is not None
    np.testing.assert_allclose(grouped.spectrum.values, dense.spectrum.values, atol=0.02)


def test_the_noise_is_that_of_one_entry_and_ten_percent_off_is_caught() -> None:
    """With a public number of people and well-separated eigenvalues the error has a known law: two releases combined."""
    rng = np.random.default_rng(0)
    count, budget, bound = 6000, Budget(4.0, 1e-6), 5.0
    truth = np.array([0.36, 0.3, 0.24, 0.18, 0.12, 0.06])
    rows = np.linalg.qr(rng.standard_normal((count, 6)))[0] * np.sqrt(count * truth)
    off = []
    for seed in range(700):
        found = released_spectrum(
            rows,
            epsilon=budget.epsilon,
            delta=budget.delta,
            row_bound=bound,
            center=None,
            neighbours="zero-out",
            random_state=seed,
        )
        assert found.spectrum is not None
        off.append(found.spectrum.values * bound**2 - truth)
    entry, total = (bound**2 / budget.mu / math.sqrt(share) / count for share in (0.95, 0.05))
    covariance = np.linalg.inv(np.eye(6) / entry**2 + np.ones((6, 6)) / total**2)
    # So far apart that none changes places with another and none is clipped at zero.
    assert min(-np.diff(truth).max(), truth[-1]) > 8 * entry
    assert np.linalg.norm(rows, axis=1).max() < bound
    assert found.spectrum is not None
    assert found.spectrum.error == pytest.approx(entry / bound**2)
    white = np.array(off) @ np.linalg.cholesky(np.linalg.inv(covariance))
    size = white.size
    low, high = chi2.ppf([5e-7, 1 - 5e-7], size)
    ratio = float(np.square(white).sum())
    assert low < ratio < high
    assert not low < ratio * 1.21 < high
    assert not low < ratio / 1.21 < high


def objective(x: Array, values: Array, noise: float, total: float, total_noise: float) -> float:
    return float(np.square(x - values).sum() / noise**2 + (x.sum() - total) ** 2 / total_noise**2)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_made_of_a_release_is_the_likeliest_spectrum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 30))
    values = np.sort(rng.standard_normal(size) ** 2)[::-1] * 3 + rng.standard_normal(size) * rng.choice([0.1, 3.0])
    settings: Any = {"noise": 0.7, "total": float(values.sum() + rng.normal()), "total_noise": rng.choice([0.01, 1.0, 50.0])}
    found = denoised(values, **settings)
    assert (np.diff(found) <= 1e-9).all()
    assert found.min() >= 0
    best = objective(found, values, **settings)
    for _ in range(300):
        # The set of falling, non-negative spectra is convex: a step towards any other of them must not be better.
        other = np.sort(np.abs(rng.standard_normal(size)))[::-1] * rng.choice([0.1, 1.0, 10.0])
        step = rng.choice([1e-3, 0.1, 1.0])
        assert objective(found + step * (other - found), values, **settings) >= best - 1e-6 * (1 + abs(best))


def test_noise_that_hides_everything_is_said_and_charged() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    few = released_spectrum(rows_of(50), epsilon=0.1, delta=1e-6, row_bound=BOUND, ledger=ledger, random_state=0)
    assert few.spectrum is None
    assert "noise hides up to" in str(few)
    assert len(ledger.charges) >= 2
    vague = released_spectrum(rows_of(2000), epsilon=0.1, delta=1e-6, row_bound=1e4, center=None, random_state=0)
    assert vague.spectrum is None
    assert "noise hides the whole spectrum" in str(vague)


def test_refusals_charge_nothing() -> None:
    ledger = Ledger(epsilon=0.2, delta=1e-6)
    with pytest.raises(ValueError, match="eigenveil bounds"):
        released_spectrum(rows_of(), epsilon=0.1, delta=1e-6, ledger=ledger)
    with pytest.raises(ValueError, match="2 to 10000 columns"):
        released_spectrum(rows_of()[:, :1], epsilon=0.1, delta=1e-6, row_bound=1.0, ledger=ledger)
    with pytest.raises(BudgetExceeded, match="this spectrum"):
        released_spectrum(rows_of(), epsilon=0.5, delta=1e-6, row_bound=1.0, ledger=ledger)
    assert ledger.charges == ()
