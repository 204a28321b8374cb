"""`PrivatePCA` of tables with missing values: each rule, in every place where it counts."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp

from eigenveil import Ledger, Model, PrivatePCA, rows_in_processes
from eigenveil.core.domain import MissingPolicy
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array, Subspace, sines
from eigenveil.tasks.fit.gaps import Rates

RNG = np.random.default_rng(5)
WHOLE = RNG.standard_normal((4000, 6)) * [6, 4, 2, 1, 1, 1] @ np.linalg.qr(RNG.standard_normal((6, 6)))[0] + 3
TORN = np.where(RNG.random(WHOLE.shape) < np.linspace(0.6, 0.0, 6), np.nan, WHOLE)
# Three columns are missing together, in rows of which few lack the other three as well.
LACKING = RNG.random((4000, 1))
BLOCKS = np.where(np.hstack([np.repeat(LACKING < 0.5, 3, axis=1), np.repeat(LACKING > 0.6, 3, axis=1)]), np.nan, WHOLE)
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6}
EXACT: dict[str, Any] = {"epsilon": None}
RULES: dict[str, dict[str, Any]] = {
    "counts": {"missing": "counts"},
    "groups": {"missing": "groups", "missing_groups": [[0, 1], [2]]},
    "drop": {"missing": "drop"},
    "fill": {"missing": "fill", "missing_fill": [3.0] * 6},
}


def fitted(rows: Any, rule: str, *, components: int = 2, **choices: Any) -> PrivatePCA:
    return PrivatePCA(components, random_state=1, **(BUDGET | RULES[rule] | choices)).fit(rows)


def captured(pca: PrivatePCA) -> float:
    """The variance of the whole rows along the components, over what exact components have."""
    moved = WHOLE - WHOLE.mean(axis=0)
    best = Subspace.of(moved, rank=pca.n_components_).captured(moved)
    return pca.subspace_.captured(moved) / best


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "choices",
    [{}, {"row_bound": 20.0}, {"row_bound": 20.0, "neighbours": "replace-one"}, {"row_bound": 20.0, "center": [3.0] * 6}],
    ids=["bound found", "bound given", "replace-one", "around given numbers"],
)
def test_components_are_those_of_the_whole_rows(rule: str, choices: dict[str, Any]) -> None:
    least = {"counts": 0.98, "groups": 0.97, "drop": 0.5, "fill": 0.85}[rule]
    pca = fitted(TORN, rule, **choices)
    assert captured(pca) > least
    assert (pca.guarantee_.epsilon, pca.model_.settings["missing"]) == (2.0, rule)


def test_dividing_by_counts_beats_filling_with_the_mean_and_finds_its_variances() -> None:
    counted, filled = fitted(TORN, "counts", row_bound=30.0), fitted(TORN, "fill", row_bound=30.0)
    assert captured(counted) > captured(filled) + 0.02
    variances = np.linalg.eigvalsh(np.cov(WHOLE.T))[::-1][:2]
    np.testing.assert_allclose(counted.explained_variance_, variances, rtol=0.15)
    np.testing.assert_allclose(counted.mean_, WHOLE.mean(axis=0), atol=0.5)
    assert counted.observed_fraction_ is not None
    np.testing.assert_allclose(counted.observed_fraction_, (~np.isnan(TORN)).mean(axis=0), atol=0.05)


def test_groups_know_which_columns_are_missing_together() -> None:
    """Every pair of columns from two groups is there in a tenth of the rows, and by the rates alone it would be a fifth."""
    grouped = fitted(BLOCKS, "groups", missing_groups="0,1,2;3,4,5", components=3, **EXACT)
    counted = fitted(BLOCKS, "counts", components=3, **EXACT)
    assert captured(grouped) > captured(counted) + 0.01
    assert captured(grouped) > 0.99


@pytest.mark.parametrize("rule", ["counts", "groups"])
def test_without_noise_entries_are_averages_over_the_rows_that_have_both_columns(rule: str) -> None:
    there = ~np.isnan(TORN)
    if rule == "groups":
        there[:, :2] = there[:, :2].all(axis=1, keepdims=True)
    pca = fitted(TORN, rule, center=[0.0] * 6, components=6, **EXACT)
    moved = np.where(there, TORN, 0.0)
    pairs = there.T.astype(float) @ there / len(TORN)
    if rule == "counts":
        pairs = np.outer(np.diag(pairs), np.diag(pairs))
        np.fill_diagonal(pairs, there.mean(axis=0))
    expected = Subspace.of_gram(moved.T @ moved / pairs, rank=6)
    np.testing.assert_allclose(pca.subspace_.values, expected.values, rtol=1e-9)
    assert pca.subspace_.sines(expected).max() < 1e-6


def test_incomplete_rows_are_dropped_and_counted_out() -> None:
    complete = TORN[~np.isnan(TORN).any(axis=1)]
    dropped, alone = fitted(TORN, "drop", **EXACT), PrivatePCA(2, epsilon=None).fit(complete)
    np.testing.assert_allclose(dropped.explained_variance_, alone.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(dropped.mean_, alone.mean_, rtol=1e-9)
    private = fitted(TORN, "drop", row_bound=20.0, neighbours="zero-out")
    # The number of rows is public, and how many of them are complete is not.
    assert "mean and count" in [charge.label for charge in private.guarantee_.charges]


def test_public_values_are_those_of_rows_that_were_filled_before() -> None:
    values = np.arange(6.0)
    one = fitted(TORN, "fill", missing_fill=values, row_bound=20.0)
    other = PrivatePCA(2, **BUDGET, row_bound=20.0, random_state=1).fit(np.where(np.isnan(TORN), values, TORN))
    assert np.array_equal(one.components_, other.components_)
    np.testing.assert_allclose(one.transform(TORN), other.transform(np.where(np.isnan(TORN), values, TORN)))


@pytest.mark.parametrize("rule", RULES)
def test_a_whole_table_costs_the_same_releases_as_a_torn_one(rule: str) -> None:
    """What is declared decides, and never what is missing."""
    labels = [
        [charge.label for charge in fitted(rows, rule, row_bound=20.0, origin=3.0).guarantee_.charges] for rows in (WHOLE, TORN)
    ]
    assert labels[0] == labels[1]
    if rule in ("counts", "groups"):
        assert labels[0] == ["mean and count and observed entries", "covariance"]


def test_tables_of_every_kind_give_the_same_fit() -> None:
    names = list("abcdef")
    frame = pd.DataFrame(TORN, columns=names)
    nulls = pa.table({name: pa.array(frame[name], from_pandas=True) for name in names})
    fits = [fitted(rows, "counts", row_bound=20.0) for rows in (TORN, frame, nulls, DenseRows(TORN))]
    for one in fits[1:]:
        assert np.array_equal(one.components_, fits[0].components_)
    by_name = fitted(frame, "groups", row_bound=20.0, missing_groups="a,b;c*")
    by_place = fitted(TORN, "groups", row_bound=20.0)
    assert np.array_equal(by_name.components_, by_place.components_)


def test_stored_entries_of_sparse_rows_may_be_missing() -> None:
    rows = np.where(np.abs(TORN - 3) < 2, 0.0, TORN - 3)
    for rule in ("counts", "drop", "fill"):
        dense, sparse = (fitted(kind, rule, row_bound=20.0, center=None) for kind in (rows, sp.csr_array(rows)))
        # A row is rounded onto its grid a little differently.
        np.testing.assert_allclose(np.abs(dense.components_ @ sparse.components_.T), np.eye(2), atol=1e-3)
        np.testing.assert_allclose(dense.transform(rows), dense.transform(sp.csr_array(rows)), atol=1e-9)
    with pytest.raises(ValueError, match="missing='groups' needs dense rows"):
        fitted(sp.csr_array(rows), "groups", row_bound=20.0)


def test_units_are_found_among_the_entries_that_are_there() -> None:
    scaled = TORN * [1, 10, 100, 1, 0.1, 1]
    pca = fitted(scaled, "counts", scale="private")
    assert pca.model_.scale is not None
    np.testing.assert_allclose(pca.model_.scale, np.nanstd(scaled, axis=0), rtol=0.25)


def test_people_with_several_rows_count_once() -> None:
    ids = np.arange(len(TORN)) // 2
    pca = fitted(TORN, "counts", row_bound=20.0, person=ids)
    assert pca.observed_fraction_ is not None
    np.testing.assert_allclose(pca.observed_fraction_, (~np.isnan(TORN)).mean(axis=0), atol=0.1)


def test_scores_of_rows_with_gaps_follow_the_rule(tmp_path: Any) -> None:
    counted = fitted(TORN, "counts", row_bound=20.0)
    at_mean = np.where(np.isnan(TORN), counted.mean_, TORN)
    np.testing.assert_allclose(counted.transform(TORN), (at_mean - counted.mean_) @ counted.components_.T, atol=1e-9)
    counted.save(tmp_path / "model.safetensors")
    again = Model.load(tmp_path / "model.safetensors")
    np.testing.assert_allclose(again.transform(TORN), counted.transform(TORN))
    dropped = fitted(TORN, "drop", row_bound=20.0)
    assert np.array_equal(np.isnan(dropped.transform(TORN)).all(axis=1), np.isnan(TORN).any(axis=1))
    assert math.isfinite(counted.score(TORN))
    grouped = fitted(TORN, "groups", row_bound=20.0)
    lacking = WHOLE[:1].copy()
    lacking[0, 0] = np.nan
    # The other column of the group counts as missing too.
    other = np.array([[*grouped.mean_[:2], *WHOLE[0, 2:]]])
    np.testing.assert_allclose(grouped.transform(lacking), (other - grouped.mean_) @ grouped.components_.T)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"missing": "counts", "method": "power"}, "missing='counts' needs method='covariance'"),
        ({"missing": "fill"}, "missing='fill' needs missing_fill: a public value for each column"),
        ({"missing": "fill", "missing_fill": [1.0, 2.0]}, "missing_fill must be a number or 6 numbers"),
        ({"missing": "fill", "missing_fill": np.inf}, "missing_fill must be"),
        ({"missing": "groups"}, "missing='groups' needs missing_groups"),
        ({"missing": "groups", "missing_groups": "0,1;1,2"}, "names column 1 in two groups"),
        ({"missing": "groups", "missing_groups": "age"}, "missing_groups names 'age', and must name column numbers"),
        ({"missing": "counts", "missing_fill": 1.0}, "missing_fill is for missing='fill'"),
        ({"missing": "impute"}, "missing must be one of refuse, counts, groups, drop, fill"),
        ({}, "X contains NaN. Give a fit a rule for missing values"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_it_costs(choices: dict[str, Any], message: str) -> None:
    ledger = Ledger(epsilon=2.0, delta=1e-6)
    with pytest.raises(ValueError, match=message):
        PrivatePCA(2, **BUDGET, row_bound=20.0, ledger=ledger, **choices).fit(TORN)
    assert ledger.charges == ()


@pytest.mark.parametrize("rule", RULES)
def test_infinity_is_never_a_missing_value(rule: str) -> None:
    rows: Array = TORN.copy()
    rows[7, 3] = np.inf
    for given in (rows, DenseRows(rows)):
        with pytest.raises(ValueError, match="infinity"):
            fitted(given, rule, row_bound=20.0)


def test_rates_are_moved_towards_each_other_by_as_much_as_noise_spreads_them() -> None:
    gaps, counts = MissingPolicy.counted(50), 500 + 20 * np.random.default_rng(1).standard_normal(50)
    free, noisy = (Rates.of(gaps, counts, people=1000.0, noise=noise).columns for noise in (0.0, 20.0))
    assert np.std(noisy) < 0.5 * np.std(free)
    np.testing.assert_allclose(noisy.mean(), free.mean())
    # Where noise drowns everything, no rate is so small that noise is multiplied by a thousand.
    assert Rates.of(gaps, counts - 500, people=1000.0, noise=20.0).columns.min() >= 0.02


def test_dividing_does_nothing_where_nothing_is_missing() -> None:
    gram = np.diag([4.0, 2.0, 1.0]) * 1000
    rates = Rates.of(MissingPolicy.counted(3), np.full(3, 1000.0), people=1000.0, noise=0.0)
    whole, noise_inflation = rates.full_gram(gram, noise=5.0)
    np.testing.assert_allclose(whole, gram)
    assert noise_inflation == pytest.approx(1.0)


def symmetric(dim: int, rng: np.random.Generator, noise: float) -> Array:
    upper = np.triu(rng.standard_normal((dim, dim)), 1)
    return np.asarray(noise * (upper + upper.T + np.diag(np.sqrt(2) * rng.standard_normal(dim))))


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (0.9, 0.9), (0.6, 0.6), (0.4, 1.0), (0.05, 1.0)])
@pytest.mark.parametrize("dim", [12, 40, 500])
def test_noise_alone_grows_by_no_more_than_is_said(low: float, high: float, dim: int) -> None:
    rng, tops = np.random.default_rng(dim), list[tuple[float, float]]()
    rates = Rates.of(MissingPolicy.counted(dim), 1e6 * rng.uniform(low, high, dim), people=1e6, noise=0.0)
    for _ in range(20 if dim < 100 else 2):
        gram = symmetric(dim, rng, 3.0)
        whole, noise_inflation = rates.full_gram(gram, noise=3.0)
        tops.append((np.linalg.eigvalsh(whole)[-1], np.linalg.eigvalsh(gram)[-1]))
    found, alone = np.mean(tops, axis=0)
    assert alone * 0.999 <= found <= noise_inflation * alone
    # Never by much, however rare entries are: dividing would make it louder by one over the rarest pair.
    assert noise_inflation <= 25 / 16 + 1e-12


def test_what_is_lacking_comes_from_a_model_if_there_is_noise_and_is_divided_exactly_if_there_is_none() -> None:
    rng = np.random.default_rng(5)
    few = rng.standard_normal((30, 3)) @ np.diag([30.0, 20.0, 10.0])
    true, shares = few @ few.T, rng.uniform(0.3, 1.0, 30)
    rates = Rates.of(MissingPolicy.counted(30), 1e6 * shares, people=1e6, noise=0.0)
    np.testing.assert_allclose(rates.full_gram(true * rates.of_pairs(), noise=0.0)[0], true)
    off = []
    for _ in range(10):
        gram = true * rates.of_pairs() + symmetric(30, rng, 60.0)
        exact = np.linalg.eigh(true)[1][:, -3:]
        filled, divided = rates.full_gram(gram, noise=60.0)[0], gram / rates.of_pairs()
        off.append([sines(np.linalg.eigh(one)[1][:, -3:], exact)[0] for one in (filled, divided, gram)])
    by_model, by_division, by_nothing = np.mean(off, axis=0)
    assert by_model < 0.9 * min(by_division, by_nothing)


def test_rows_in_other_processes_may_have_gaps_if_both_say_so(tmp_path: Any) -> None:
    frame = pd.DataFrame(TORN, columns=list("abcdef"))
    frame.to_parquet(tmp_path / "torn.parquet", row_group_size=1000)
    there = rows_in_processes(tmp_path / "torn.parquet", processes=2, gaps=True)
    for rule in ("counts", "drop"):
        here = fitted(frame, rule, row_bound=20.0)
        assert np.array_equal(fitted(there, rule, row_bound=20.0).components_, here.components_)
    with pytest.raises(ValueError, match="missing and X contradict each other"):
        PrivatePCA(2, **BUDGET, row_bound=20.0).fit(there)
    with pytest.raises(ValueError, match="missing and X contradict each other"):
        fitted(rows_in_processes(tmp_path / "torn.parquet", processes=2), "counts", row_bound=20.0)


def test_a_column_in_which_nothing_is_left_is_taken_like_one_with_a_single_value() -> None:
    """Whether a fit runs must not depend on one person's entry, and neither must its error."""
    for last in (1.5, None):
        table = pd.DataFrame(WHOLE[:, :3], columns=["a", "b", "c"]).assign(b=pd.Series([last] + [None] * 3999, dtype=object))
        for rows in (table, pa.table({"a": WHOLE[:, 0], "b": [last] + [None] * 3999, "c": WHOLE[:, 2]})):
            assert np.isfinite(fitted(rows, "counts", row_bound=15.0).components_).all()
            with pytest.raises(ValueError, match=r"NaN|missing values"):
                PrivatePCA(2, row_bound=15.0, **BUDGET).fit(rows)
