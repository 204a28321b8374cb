"""Missing values at sites and peers: every trust and layout handles them as one table would."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, Symmetric
from eigenveil.linalg import Array, Subspace

RNG = np.random.default_rng(11)
WHOLE = RNG.standard_normal((3000, 5)) * [5, 3, 2, 1, 1] @ np.linalg.qr(RNG.standard_normal((5, 5)))[0] + 1
TORN = np.where(RNG.random(WHOLE.shape) < np.linspace(0.5, 0.0, 5), np.nan, WHOLE)
SITES = np.array_split(TORN, 4)
BUDGET: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-6, "row_bound": 15.0}
RULES: dict[str, dict[str, Any]] = {
    "counts": {"missing": "counts"},
    "groups": {"missing": "groups", "missing_groups": "0,1;2"},
    "drop": {"missing": "drop"},
    "fill": {"missing": "fill", "missing_fill": 1.0},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "hub": {"trust": "hub"},
    "site": {"trust": "site"},
    "both": {"trust": "both", "epsilon": (5.0, 3.0)},
    "masked": {"trust": "masked"},
    "masked, bound found": {"trust": "masked", "row_bound": "private", "epsilon": 9.0},
    "zero-out": {"trust": "hub", "neighbours": "zero-out"},
    "tree": {"topology": "tree", "fanout": 2},
    "around given numbers": {"trust": "masked", "center": [1.0] * 5},
}


def captured(space: Subspace) -> float:
    moved = WHOLE - WHOLE.mean(axis=0)
    return space.captured(moved) / Subspace.of(moved, rank=space.rank).captured(moved)


def least(rule: str) -> float:
    return {"counts": 0.97, "groups": 0.96, "drop": 0.7, "fill": 0.88}[rule]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rule", RULES)
def test_sites_handle_gaps_under_every_trust(setting: str, rule: str) -> None:
    if setting == "masked, bound found" and rule == "drop":
        # Too few complete rows for a search.
        return
    pca = FederatedPCA(2, random_state=1, **(BUDGET | SETTINGS[setting] | RULES[rule])).fit(SITES)
    assert captured(pca.subspace_) > least(rule)
    assert pca.model_.settings["missing"] == rule
    if rule == "counts":
        assert pca.observed_fraction_ is not None
        np.testing.assert_allclose(pca.observed_fraction_, (~np.isnan(TORN)).mean(axis=0), atol=0.1)


@pytest.mark.parametrize("choices", [{}, {"trust": "masked"}, {"trust": "masked", "center": None}])
@pytest.mark.parametrize("rule", RULES)
def test_without_noise_sites_find_what_one_table_would(rule: str, choices: dict[str, Any]) -> None:
    method: dict[str, Any] = {"method": "covariance"}
    together = FederatedPCA(2, epsilon=None, **method, **RULES[rule], **choices).fit(SITES)
    one = PrivatePCA(2, epsilon=None, **method, **RULES[rule], center=choices.get("center", "private")).fit(TORN)
    assert together.subspace_.sines(one.subspace_).max() < 1e-3
    np.testing.assert_allclose(together.explained_variance_, one.explained_variance_, rtol=1e-3)


@pytest.mark.parametrize("noise", ["pairwise", "independent", None])
@pytest.mark.parametrize("rule", RULES)
def test_peers_handle_gaps(rule: str, noise: Any) -> None:
    private: dict[str, Any] = {**BUDGET, "noise": noise} if noise is not None else {"epsilon": None}
    pca = GossipPCA(2, graph="ring", method="covariance", random_state=1, **private, **RULES[rule]).fit(SITES)
    assert captured(pca.subspace_) > least(rule)
    scores = pca.scores_["peer 0"]
    assert np.isnan(scores).any() == (rule == "drop")


def test_methods_that_multiply_first_take_public_values_and_complete_rows_only() -> None:
    for method in ("krylov", "power", "fedpower", "merge"):
        with pytest.raises(ValueError, match="missing='counts' needs method='covariance'"):
            FederatedPCA(2, **BUDGET, method=method, missing="counts").fit(SITES)
        kind: dict[str, Any] = {"trust": "site"} if method == "merge" else {}
        pca = FederatedPCA(2, **BUDGET, method=method, random_state=1, **RULES["fill"], **kind).fit(SITES)
        assert captured(pca.subspace_) > 0.8
    with pytest.raises(ValueError, match="missing='counts' needs method='covariance'"):
        GossipPCA(2, graph="ring", **BUDGET, missing="counts").fit(SITES)


def test_groups_go_by_the_names_that_sites_give() -> None:
    frames = [pd.DataFrame(site, columns=list("abcde")) for site in SITES]
    named = FederatedPCA(2, random_state=1, **BUDGET, missing="groups", missing_groups="a,b;c").fit(frames)
    placed = FederatedPCA(2, random_state=1, **BUDGET, **RULES["groups"]).fit(SITES)
    assert np.array_equal(named.components_, placed.components_)


def test_a_matrix_in_place_of_rows_has_no_gaps() -> None:
    matrix: Array = WHOLE.T @ WHOLE
    with pytest.raises(ValueError, match="missing must be left out if a site gives a Symmetric"):
        FederatedPCA(2, **BUDGET, center=None, missing="counts").fit([SITES[0], Symmetric(matrix, people=9)])


def test_a_site_with_gaps_that_nobody_declared_is_named() -> None:
    with pytest.raises(ValueError, match="site 0: X contains NaN"):
        FederatedPCA(2, **BUDGET).fit(SITES)
