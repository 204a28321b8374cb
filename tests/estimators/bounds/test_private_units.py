"""`scale="private"`: a fit finds the units of its columns, wherever they lie, and standardises them."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from eigenveil import FederatedPCA, GossipPCA, Ledger, Model, PrivatePCA, StreamingPCA
from eigenveil.linalg import Array
from eigenveil.tasks.fit.units import spread_of
from eigenveil.tasks.levels import TailCounts, signed_cells

RNG = np.random.default_rng(6)
UNITS = np.array([1e-3, 1.0, 50.0, 1e4, 0.02, 7.0])
PLAIN = RNG.standard_normal((8000, 2)) @ RNG.standard_normal((2, 6)) * 2 + RNG.standard_normal((8000, 6))
# Each column is far from zero compared with its spread: the first is 1 with a spread of .003.
ROWS = (PLAIN / PLAIN.std(axis=0) + [333, -30, 5, 1000, 0, 1e5]) * UNITS
SITES = dict(zip("abcde", np.array_split(ROWS, 5), strict=True))
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "random_state": 1, "scale": "private"}


def captured(components: Array, rows: Array = ROWS) -> float:
    correlation = np.corrcoef(rows.T)
    best = np.linalg.eigvalsh(correlation)[-len(components) :].sum()
    return float(np.trace(components @ correlation @ components.T) / best)


@pytest.mark.parametrize("method", ["covariance", "power"])
def test_columns_in_any_units_count_alike(method: Any) -> None:
    pca: Any = PrivatePCA(2, **BUDGET, method=method).fit(ROWS)
    assert captured(pca.components_) > 0.98
    model: Model = pca.model_
    assert model.scale is not None
    # Released variances make units precise, but for what clipping takes off. Products have rougher ones.
    search_range = (0.7, 1.2) if method == "covariance" else (0.5, 2.0)
    ratio = model.scale / ROWS.std(axis=0)
    assert search_range[0] < ratio.min()
    assert ratio.max() < search_range[1]
    assert np.abs((model.mean - ROWS.mean(axis=0)) / ROWS.std(axis=0)).max() < 0.3
    assert model.settings["row_bound"] == pytest.approx(np.sqrt(6))
    assert model.settings["scale_from"] == "found privately"
    assert pca.ledger_.spent_mu <= pca.ledger_.budget.mu * (1 + 1e-12)
    labels = [charge.label for charge in pca.ledger_.charges]
    assert labels[:5] == [*(f"columns, round {step}" for step in range(1, 5)), "mean and count"]
    scores = pca.transform(ROWS)
    assert scores.std(axis=0)[0] == pytest.approx(np.sqrt(pca.explained_variance_[0]), rel=0.5)


def test_released_variances_are_one_after_they_were_used() -> None:
    pca = PrivatePCA(6, **BUDGET).fit(ROWS)
    lifted = pca.components_.T * pca.explained_variance_ @ pca.components_
    np.testing.assert_allclose(lifted.diagonal(), 1.0, rtol=0.02)


def test_flat_columns_keep_their_unit_and_are_named(tmp_path: Path) -> None:
    table = pd.DataFrame(ROWS, columns=list("abcdef")).assign(zero=0.0, seven=7.0)
    with pytest.warns(UserWarning, match="2 of 8 columns hardly vary.*: zero, seven"):
        pca = PrivatePCA(2, **BUDGET).fit(table)
    assert any("zero, seven" in sentence for sentence in pca.warnings_)
    assert pca.model_.settings["flat_columns"] == [6, 7]
    assert pca.model_.scale is not None
    assert pca.model_.scale[6:].tolist() == [1.0, 1.0]
    assert captured(pca.components_[:, :6]) > 0.98
    pca.save(tmp_path / "model.safetensors")
    assert Model.load(tmp_path / "model.safetensors").settings["flat_columns"] == [6, 7]


def test_people_with_several_rows_and_sparse_rows() -> None:
    assert captured(PrivatePCA(2, **BUDGET, person=np.arange(8000) // 2).fit(ROWS).components_) > 0.97
    thin = np.where(RNG.random((8000, 6)) < 0.4, np.abs(PLAIN) * UNITS, 0.0)
    dense, sparse = (PrivatePCA(2, **BUDGET).fit(kind(thin)) for kind in (np.asarray, sp.csr_array))
    assert dense.model_.scale is not None
    assert sparse.model_.scale is not None
    np.testing.assert_allclose(sparse.model_.scale, dense.model_.scale, rtol=1e-3)


TRUSTS: dict[str, dict[str, Any]] = {
    "hub": {"trust": "hub"},
    "site": {"trust": "site"},
    "masked": {"trust": "masked"},
    "both": {"trust": "both", "epsilon": (3.0, 2.0)},
    "tree": {"trust": "hub", "topology": "tree", "fanout": 2},
}


@pytest.mark.parametrize("choices", TRUSTS.values(), ids=TRUSTS)
def test_sites_find_units_together(choices: dict[str, Any]) -> None:
    pca = FederatedPCA(2, **(BUDGET | choices)).fit(SITES)
    assert [done.stage for done in pca.transcript_[:5]] == ["units"] * 5
    assert captured(pca.components_) > 0.97
    for ledger in pca.ledgers_.values():
        assert ledger.spent_mu <= ledger.budget.mu * (1 + 1e-9)


def test_peers_find_units_without_a_hub() -> None:
    pca = GossipPCA(2, **BUDGET, graph="complete", method="covariance").fit(SITES)
    assert captured(pca.components_) > 0.97


EXACT: dict[str, Any] = {"epsilon": None, "scale": "private", "random_state": 0}
BASELINES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "table": (PrivatePCA, {}, ROWS),
    "power": (PrivatePCA, {"method": "power", "rounds": 60}, ROWS),
    "sparse": (PrivatePCA, {}, sp.csr_array(ROWS)),
    "persons": (PrivatePCA, {"person": np.arange(8000) // 2}, ROWS),
    "gaps": (PrivatePCA, {"missing": "counts"}, ROWS),
    "replace-one": (PrivatePCA, {"neighbours": "replace-one"}, ROWS),
    "sites": (FederatedPCA, {}, SITES),
    "sites power": (FederatedPCA, {"method": "power", "rounds": 60}, SITES),
    "tree": (FederatedPCA, {"topology": "tree", "fanout": 2}, SITES),
    "peers": (GossipPCA, {"graph": "complete"}, SITES),
    "stream": (StreamingPCA, {"block_size": 8000}, ROWS),
}


@pytest.mark.parametrize(("kind", "choices", "rows"), BASELINES.values(), ids=BASELINES)
def test_without_a_budget_units_are_exact(kind: Any, choices: dict[str, Any], rows: Any) -> None:
    pca = kind(3, **EXACT, **choices).fit(rows)
    scaler, plain = StandardScaler().fit(ROWS), PCA(3)
    scores = plain.fit_transform(scaler.transform(ROWS))
    np.testing.assert_allclose(pca.model_.scale, scaler.scale_, rtol=1e-9)
    np.testing.assert_allclose(pca.model_.mean, scaler.mean_, rtol=1e-9)
    # Sparse rows are centered in finished sums, and these lie up to 1e5 deviations from zero.
    np.testing.assert_allclose(abs(pca.components_ @ plain.components_.T), np.eye(3), atol=1e-4)
    people = 4000 if "person" in choices else 8000
    ratio = 1.0 if people == 8000 else (people / (people - 1)) / (8000 / 7999)
    np.testing.assert_allclose(pca.explained_variance_, plain.explained_variance_ * ratio, rtol=1e-5)
    np.testing.assert_allclose(abs(pca.transform(ROWS[:50])), abs(scores[:50]), rtol=1e-3, atol=1e-3)
    assert not pca.guarantee_.private
    assert pca.model_.settings["scale_from"] == "computed from the rows, NOT private"
    assert "private" not in (pca.model_.settings.get("scale"), pca.model_.settings.get("center"))


def test_constant_columns_keep_unit_one_without_a_budget() -> None:
    rows = np.column_stack([ROWS, np.full(8000, 0.1), np.zeros(8000), np.tile([1.0, -1.0], 4000)])
    pca = PrivatePCA(2, **EXACT).fit(rows)
    np.testing.assert_allclose(np.asarray(pca.model_.scale)[6:], 1.0, rtol=1e-12)
    assert pca.model_.settings["flat_columns"] == [6, 7]
    torn = np.where(RNG.random(rows.shape) < 0.1, np.nan, rows)
    for rule in ("counts", "drop"):
        found = np.asarray(PrivatePCA(2, **EXACT, missing=rule).fit(torn).model_.scale)
        kept = torn if rule == "counts" else torn[~np.isnan(torn).any(axis=1)]
        np.testing.assert_allclose(found[:6], np.nanstd(kept, axis=0)[:6], rtol=1e-9)


def test_a_small_table_is_refused_before_it_costs_or_with_what_it_cost() -> None:
    choices: dict[str, Any] = {"epsilon": 0.1, "delta": 1e-6, "scale": "private", "random_state": 0}
    known, unknown = (Ledger(epsilon=1.0, delta=1e-6) for _ in range(2))
    with pytest.raises(ValueError, match=r"units for 6 columns.* Nothing was released"):
        PrivatePCA(2, **choices, neighbours="replace-one", ledger=known).fit(ROWS[:2000])
    assert known.charges == ()
    with pytest.raises(ValueError, match=r"3\.5% of the budget was spent"):
        PrivatePCA(2, **choices, ledger=unknown).fit(ROWS[:2000])
    assert [charge.label for charge in unknown.charges] == ["columns, round 1"]


def test_a_warning_is_not_raised_where_no_column_is_flat() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivatePCA(2, **BUDGET).fit(ROWS)


def test_a_column_that_few_people_differ_in_gets_a_unit_of_their_size() -> None:
    """Noise puts the count of those who differ just above what it can pass for at a tiny size, and just below at their own."""
    cells = signed_cells(1e-6, 4.0, per_doubling=4)
    # One standard deviation is 1.1% of the people, so 2.5 of them on both sides are 3.9%.
    beyond = np.where(cells.edges < 0, 1000.0, np.where(cells.edges < 1e-3, 42.0, np.where(cells.edges < 1, 36.0, 0.0)))
    median, spread, _ = spread_of(
        TailCounts(cells=cells, beyond=beyond, error=np.full(len(beyond), 11.0), people=1000.0, people_error=0.0)
    )
    assert abs(median) < 1e-5
    # 4% of ones have a standard deviation of 0.19.
    assert 0.05 < spread < 1.0
    # Where noise could pass for all of them, nothing is known.
    assert (
        spread_of(TailCounts(cells=cells, beyond=beyond, error=np.full(len(beyond), 15.0), people=1000.0, people_error=0.0))[1]
        == 0.0
    )


@pytest.mark.parametrize("value", [2026.0, 1.7e9, -7.7e11])
def test_a_column_that_never_varies_ruins_no_other_wherever_it_lies(value: float) -> None:
    """Far out it is placed to within a few hundred or more, and in its own unit all rows would be clipped to it."""
    rng = np.random.default_rng(0)
    spread = np.r_[3.0, 2.0, np.ones(4)]
    rows = np.c_[(rng.standard_normal((5000, 6)) + rng.standard_normal((5000, 1))) * spread, np.full(5000, value)]
    for seed in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, scale="private", random_state=seed).fit(rows)
        assert pca.model_.settings["flat_columns"] == [6]
        assert pca.model_.scale is not None
        assert (pca.model_.scale[6] == 1.0) == (value == 2026.0)
        assert pca.n_above_noise_ >= 1
        # The component that all six share, in standardised columns.
        assert np.abs(pca.components_[0, :6].sum()) / np.sqrt(6) > 0.98
