"""`find_column_bounds`: a range for each column, in one release that costs sqrt(d)."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from eigenveil import Ledger, PrivatePCA
from eigenveil.estimators.bounds.columns import find_column_bounds
from eigenveil.linalg import Array

COUNT = 20_011


def columns() -> Array:
    rng = np.random.default_rng(0)
    return rng.standard_normal((COUNT, 3)) * [1.0, 30.0, 0.01] + [0.0, 100.0, -5.0]


def test_ranges_hold_what_was_asked_for() -> None:
    rows = columns()
    found = find_column_bounds(rows, epsilon=0.5, delta=1e-6, quantile=0.9, random_state=0)
    assert found.low is not None
    assert found.high is not None
    below, above = (rows < found.low).mean(axis=0), (rows > found.high).mean(axis=0)
    assert (below < 0.05 + 6 * found.error).all()
    assert (above < 0.05 + 6 * found.error).all()
    # To the outer ends of steps of 9%.
    low, high = np.quantile(rows, [0.05, 0.95], axis=0)
    np.testing.assert_allclose(found.low, low, rtol=0.2)
    np.testing.assert_allclose(found.high, high, rtol=0.2)
    assert [charge.label for charge in found.guarantee.charges] == ["columns"]
    assert abs(found.people - COUNT) < 6 * found.people_error
    pca = PrivatePCA(1, epsilon=1.0, delta=1e-6, random_state=0, **found.settings).fit(rows)
    assert abs(pca.components_[0, 1]) > 0.9


def test_an_origin_in_the_middle_of_a_column_makes_its_range_finer() -> None:
    rows = columns()
    coarse = find_column_bounds(rows, epsilon=0.5, delta=1e-6, random_state=0)
    fine = find_column_bounds(rows, epsilon=0.5, delta=1e-6, origin=[0, 100, -5], random_state=0)
    # A column of -5 give or take 0.01: in steps of 9% of 5, or of 9% of 0.01.
    assert coarse.scale[2] > 0.1
    assert fine.scale[2] == pytest.approx(0.02, rel=0.2)
    np.testing.assert_allclose(fine.origin, [0, 100, -5], atol=5)


def test_many_columns_cost_more_and_it_is_said() -> None:
    rows = np.random.default_rng(0).standard_normal((COUNT, 100))
    few = find_column_bounds(rows[:, :4], epsilon=0.1, delta=1e-6, random_state=0)
    many = find_column_bounds(rows, epsilon=0.1, delta=1e-6, random_state=0)
    assert few.low is not None
    assert many.error == pytest.approx(5 * few.error, rel=0.1)
    none = find_column_bounds(rows[:3000], epsilon=0.1, delta=1e-6, random_state=0)
    assert none.low is None
    assert "ranges for 100 columns" in str(none)
    with pytest.raises(ValueError, match="no bounds were found"):
        _ = none.settings
    with pytest.raises(ValueError, match="no bounds were found"):
        _ = none.scale


def test_sparse_rows_keep_zero_in_every_range_and_flat_columns_are_told() -> None:
    rng = np.random.default_rng(0)
    rows = np.zeros((COUNT, 3))
    rows[:, 0] = rng.standard_normal(COUNT) * (rng.random(COUNT) < 0.5)
    rows[:, 1] = 3 + rng.random(COUNT)
    rows[0, 2] = 1000.0
    dense = find_column_bounds(rows, epsilon=0.5, delta=1e-6, random_state=0)
    sparse = find_column_bounds(sp.csr_array(rows), epsilon=0.5, delta=1e-6, random_state=0)
    assert dense.low is not None
    assert sparse.low is not None
    assert sparse.high is not None
    assert dense.low[1] > 2
    assert sparse.low[1] == 0.0
    assert sparse.flat.tolist() == [False, False, True]
    # A rare entry of 1000 does not outweigh the others.
    assert sparse.scale[2] == sparse.scale[:2].max()
    np.testing.assert_array_equal(dense.high, sparse.high)
    PrivatePCA(1, epsilon=1.0, delta=1e-6, random_state=0, **sparse.settings).fit(sp.csr_array(rows))


def test_names_people_and_public_counts() -> None:
    frame = pd.DataFrame(columns(), columns=["a", "b", "c"]).assign(who=np.arange(COUNT) // 2)
    found = find_column_bounds(frame, epsilon=0.5, delta=1e-6, person="who", random_state=0)
    assert found.columns == ("a", "b", "c")
    assert "  b: " in str(found)
    assert abs(found.people - COUNT / 2) < 6 * found.people_error
    public = find_column_bounds(frame[["a", "b"]], epsilon=0.5, delta=1e-6, neighbours="zero-out", random_state=0)
    assert (public.people, public.people_error) == (COUNT, 0.0)
    # A sum of thirds and sevenths would tell in its last digits how many rows people have.
    thirds = np.where(np.arange(COUNT) < 9000, np.arange(COUNT) // 3, 3000 + (np.arange(COUNT) - 9000) // 7)
    counted = find_column_bounds(columns(), epsilon=2.0, delta=1e-6, person=thirds, neighbours="zero-out", random_state=0)
    assert counted.people == len(np.unique(thirds))
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match=r"epsilon is too small for 99 people.* Nothing was released"):
        find_column_bounds(columns()[:99], epsilon=0.5, delta=1e-6, neighbours="zero-out", ledger=ledger)
    assert ledger.charges == ()


def test_exact_ranges_and_a_lowered_quantile() -> None:
    rows = columns()
    exact = find_column_bounds(rows, epsilon=None, quantile=0.99)
    assert exact.low is not None
    low = np.quantile(rows, 0.005, axis=0)
    assert (exact.low <= low + 1e-9).all()
    np.testing.assert_allclose(exact.low, low, rtol=0.1)
    hidden = find_column_bounds(rows, epsilon=0.1, delta=1e-6, quantile=0.999, random_state=0)
    assert "noise hides the few people outside" in hidden.note
    assert hidden.clipped > 0.0005
