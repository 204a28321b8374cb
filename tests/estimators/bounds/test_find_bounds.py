"""`find_bounds`: near the truth, honest about noise, charged before it is drawn, and of use to a fit."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.stats import chi2

from eigenveil import BudgetExceeded, Ledger, PrivatePCA
from eigenveil.core.accounting import Budget
from eigenveil.estimators.bounds.rows import find_bounds
from eigenveil.linalg import Array

COUNT = 10_007
STEP = 2 ** (1 / 16)


def normal(count: int = COUNT, dim: int = 4, *, middle: float = 0.0) -> Array:
    return np.random.default_rng(0).standard_normal((count, dim)) * [3.0, 2.0, 1.0, 1.0][:dim] + middle


def true_quantile(rows: Array, quantile: float, center: Any = None) -> float:
    norms = np.linalg.norm(rows - (rows.mean(axis=0) if center is None else center), axis=1)
    return float(np.quantile(norms, quantile))


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("middle", [0.0, 30.0])
def test_the_bound_is_near_the_true_quantile_around_the_mean(quantile: float, middle: float) -> None:
    rows = normal(middle=middle)
    found = find_bounds(rows, epsilon=0.5, delta=1e-6, quantile=quantile, random_state=1)
    assert found.row_bound is not None
    assert found.center is not None
    assert found.chosen is not None
    norms = np.linalg.norm(rows - found.center, axis=1)
    clipped = float((norms > found.row_bound).mean())
    # The upper end of a step, so fewer are clipped than asked for; and the error is what it is said to be.
    assert abs(clipped - found.chosen.clipped) < 6 * found.chosen.error
    assert clipped < 1 - quantile + 6 * found.chosen.error
    assert found.row_bound < 1.2 * STEP * true_quantile(rows, quantile)
    assert np.linalg.norm(found.center - rows.mean(axis=0)) < 4 * found.center_error
    assert abs(found.people - COUNT) < 6 * found.people_error


def test_exact_numbers_are_exact_to_a_step() -> None:
    rows = normal(middle=5.0)
    found = find_bounds(rows, epsilon=None)
    truth = true_quantile(rows, 0.95)
    assert found.row_bound is not None
    assert truth <= found.row_bound * (1 + 1e-9)
    assert found.row_bound <= truth * STEP * (1 + 1e-3)
    assert found.people == COUNT
    assert found.guarantee.epsilon is None
    assert "No privacy" in str(found)


@pytest.mark.parametrize("center", [None, "numbers"])
def test_around_numbers_or_zero_there_is_one_release(center: str | None) -> None:
    rows = normal(middle=7.0)
    where = None if center is None else np.full(4, 7.0)
    found = find_bounds(rows, epsilon=0.5, delta=1e-6, center=where, random_state=0)
    assert [charge.label for charge in found.guarantee.charges] == ["norms"]
    truth = true_quantile(rows, 0.95, np.zeros(4) if where is None else where)
    assert found.row_bound == pytest.approx(truth, rel=0.15)
    assert found.settings["center"] is found.center
    assert found.mean_bound is None


def test_two_looks_at_the_same_norms_are_as_good_as_one_for_both_shares() -> None:
    whole, part = (find_bounds(normal(), epsilon=0.5, delta=1e-6, center=center, random_state=0) for center in (None, "private"))
    assert whole.chosen is not None
    assert part.chosen is not None
    apart = part.chosen.error * part.people / (whole.chosen.error * whole.people)
    assert apart == pytest.approx(math.sqrt(1 / 0.58), rel=0.03)
    # And their noise is what it is said to be, at a level of 1e-6: the second look alone would have 1.75 times the variance.
    runs = [find_bounds(normal(900, 2), epsilon=3.0, delta=1e-6, random_state=seed) for seed in range(300)]
    ratio = float(np.mean([((run.people - 900) / run.people_error) ** 2 for run in runs]))
    low, high = chi2.ppf([5e-7, 1 - 5e-7], 300) / 300
    assert low < ratio < high < 1.7


def test_rows_that_lie_close_together_far_away_are_looked_at_once_more() -> None:
    rows = normal(4000, middle=1000.0)
    found = find_bounds(rows, epsilon=0.3, delta=1e-6, random_state=0)
    assert [charge.label for charge in found.guarantee.charges] == [
        "norms around the origin",
        "mean",
        "norms around the mean",
        "mean, once more",
        "norms around the mean, once more",
    ]
    assert found.row_bound is not None
    # In one round the mean would be off by thirty, and the bound with it.
    assert found.row_bound < 15
    near = find_bounds(rows, epsilon=0.3, delta=1e-6, origin=1000.0, random_state=0)
    assert len(near.guarantee.charges) == 4
    assert near.row_bound == pytest.approx(true_quantile(rows, 0.95), rel=0.3)
    assert near.guarantee.mu == pytest.approx(found.guarantee.mu, rel=1e-9) == pytest.approx(Budget(0.3, 1e-6).mu)


@pytest.mark.parametrize("count", [0, 1, 60])
def test_too_few_people_give_no_bound_and_only_the_first_charge(count: int) -> None:
    for seed in range(20):
        found = find_bounds(_rows(count), epsilon=0.3, delta=1e-6, random_state=seed)
        assert found.row_bound is None
        assert found.candidates == ()
        assert [charge.label for charge in found.guarantee.charges] == ["norms around the origin"]
        assert "too small for this budget" in str(found)
        assert str(found).startswith("No bound was found: ")
        with pytest.raises(ValueError, match="no bound was found: the table is too small"):
            _ = found.settings


def _rows(count: int) -> Any:
    from eigenveil.data.rows import DenseRows

    return DenseRows(normal(count))


def test_a_quantile_that_noise_hides_is_lowered_and_said() -> None:
    found = find_bounds(normal(1500), epsilon=0.5, delta=1e-6, quantile=0.99, center=None, random_state=0)
    assert found.row_bound is not None
    assert "noise hides the few people beyond" in found.note
    assert found.chosen is not None
    assert found.chosen.clipped <= 2.5 * found.chosen.error * (1 + 1e-9)
    # Never a wild one, far beyond every row.
    bounds = [find_bounds(normal(1500), epsilon=0.5, delta=1e-6, quantile=0.99, random_state=s).row_bound for s in range(30)]
    longest = float(np.linalg.norm(normal(1500), axis=1).max())
    assert max(bound for bound in bounds if bound is not None) < 1.5 * longest


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_a_public_number_of_people_that_is_too_small_is_refused_before_anything_is_spent(neighbours: Any) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match=r"too small for 60 people.* Nothing was released"):
        find_bounds(normal(60), epsilon=0.3, delta=1e-6, neighbours=neighbours, ledger=ledger)
    assert ledger.charges == ()
    found = find_bounds(normal(), epsilon=0.5, delta=1e-6, neighbours=neighbours, random_state=0)
    assert (found.people, found.people_error) == (COUNT, 0.0)
    assert found.row_bound == pytest.approx(true_quantile(normal(), 0.95), rel=0.15)


def test_costs_add_up_in_a_shared_ledger_and_a_fit_follows() -> None:
    rows = normal(middle=20.0)
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    found = find_bounds(rows, epsilon=0.2, delta=1e-6, ledger=ledger, random_state=0)
    assert found.ledger is ledger
    spent = ledger.spent_mu
    assert spent == pytest.approx(Budget(0.2, 1e-6).mu, rel=1e-9)
    pca = PrivatePCA(2, epsilon=0.9, delta=1e-6, ledger=ledger, random_state=0, **found.settings).fit(rows)
    assert ledger.epsilon() <= 1.0
    assert abs(pca.components_[0, 0]) > 0.95
    # The mean is not searched for again.
    assert [charge.label for charge in pca.guarantee_.charges] == ["mean and count", "covariance"]
    with pytest.raises(BudgetExceeded):
        find_bounds(rows, epsilon=0.9, delta=1e-6, ledger=ledger)
    assert len(ledger.charges) == 6


def test_a_ledger_that_cannot_pay_for_all_of_it_pays_for_nothing() -> None:
    ledger = Ledger(epsilon=0.1, delta=1e-6)
    with pytest.raises(BudgetExceeded, match="these bounds"):
        find_bounds(normal(), epsilon=0.2, delta=1e-6, ledger=ledger)
    assert ledger.charges == ()


def test_a_person_with_many_rows_counts_once() -> None:
    rows = np.vstack([normal(3000), np.full((3000, 4), 500.0)])
    person = np.concatenate([np.arange(3000), np.full(3000, 7)])
    settings: Any = {"epsilon": 1.0, "delta": 1e-6, "center": None, "random_state": 0}
    alone = find_bounds(rows, **settings)
    grouped = find_bounds(rows, person=person, **settings)
    assert alone.row_bound == pytest.approx(1000.0, rel=0.05)
    assert grouped.row_bound == pytest.approx(true_quantile(normal(3000), 0.95, np.zeros(4)), rel=0.15)
    assert abs(grouped.people - 3000) < 6 * grouped.people_error
    assert "with all of their rows" in grouped.guarantee.unit
    frame = pd.DataFrame(rows, columns=list("abcd")).assign(who=person)
    assert find_bounds(frame, person="who", **settings).row_bound == grouped.row_bound


def test_sparse_rows_give_the_same_as_dense_ones() -> None:
    rows = np.where(np.abs(normal()) < 1.0, 0.0, normal())
    dense, sparse = (find_bounds(held, epsilon=0.5, delta=1e-6, random_state=4) for held in (rows, sp.csr_array(rows)))
    assert dense.row_bound == sparse.row_bound
    assert dense.center is not None
    assert sparse.center is not None
    np.testing.assert_allclose(dense.center, sparse.center)


@pytest.mark.parametrize("origin", [None, 10.0])
def test_sparse_rows_too_far_from_zero_to_be_centered_are_told_so_and_nothing_is_lost(origin: float | None) -> None:
    """What was charged has an answer: an error on the way would have spent for nothing."""
    rows = sp.csr_array(normal() * 0.01 + 10.0)
    for budget in ({"epsilon": 0.5, "delta": 1e-6}, {"epsilon": None}):
        found = find_bounds(rows, origin=origin, random_state=0, **budget)
        assert "Make them dense" in found.note
        assert (found.row_bound is None) == (origin is not None)
        dense = find_bounds(rows.toarray(), origin=origin, random_state=0, **budget)
        assert "dense" not in dense.note
        assert dense.row_bound is not None


def test_units_and_origin_are_those_of_a_fit() -> None:
    rows, units = normal(), np.array([3.0, 2.0, 1.0, 1.0])
    found = find_bounds(rows * 100 + 9, epsilon=0.5, delta=1e-6, scale=100 * units, origin=9.0, random_state=0)
    assert found.row_bound == pytest.approx(true_quantile(rows / units, 0.95), rel=0.15)
    assert (found.settings["scale"] == 100 * units).all()


def test_the_trade_is_read_off_the_release() -> None:
    rows = normal()
    found = find_bounds(rows, epsilon=1.0, delta=1e-6, center=None, random_state=0)
    norms = np.linalg.norm(rows, axis=1)
    bounds = [one.bound for one in found.candidates]
    assert len(bounds) >= 5
    assert bounds == sorted(bounds)
    assert found.row_bound in bounds
    for one in found.candidates:
        assert one.noise == pytest.approx((one.bound / bounds[0]) ** 2)
        assert abs(one.clipped - (norms > one.bound).mean()) < 6 * one.error
        assert one.bound_usage == pytest.approx(np.square(np.minimum(norms, one.bound)).mean() / one.bound**2, abs=0.03)
    captured = found.captured_variance(2, Budget(0.1, 1e-6))
    assert len(captured) == len(bounds)
    # More noise for a larger bound, so less is captured.
    assert captured[0] is not None
    assert captured[-1] is not None
    assert captured[0] > captured[-1]
    for bound in bounds:
        assert f"{bound:.4g}" in str(found)


def test_the_guarantee_says_who_and_what_and_that_a_seed_undoes_it() -> None:
    seeded = find_bounds(normal(2000), epsilon=0.5, delta=1e-6, random_state=0).guarantee
    assert not seeded.private
    fresh = find_bounds(normal(2000), epsilon=0.5, delta=1e-6).guarantee
    assert fresh.private
    assert (fresh.epsilon, fresh.delta) == (0.5, 1e-6)
    assert "the mean" in fresh.released
    assert fresh.mu <= Budget(0.5, 1e-6).mu * (1 + 1e-12)


def test_rows_beyond_the_range_or_all_at_the_origin_have_no_bound() -> None:
    far = find_bounds(normal(), epsilon=0.5, delta=1e-6, search_range=(1e-9, 0.5), random_state=0)
    assert "too many rows have a norm above" in far.note
    flat = find_bounds(np.zeros((3000, 3)), epsilon=0.5, delta=1e-6, random_state=0)
    assert "smallest norm in the search" in flat.note
    assert far.row_bound is None
    assert flat.row_bound is None
