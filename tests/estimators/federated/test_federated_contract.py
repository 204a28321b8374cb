"""scikit-learn's manners, as far as they make sense where `fit` takes a list of sites: parameters, clones, names, containers."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import eigenveil
from eigenveil.core.ledger import Ledger
from eigenveil.estimators.federated.pca import FederatedPCA
from eigenveil.runtimes.local import Faults
from estimators.sites_of_rows import COLUMNS, DIM, federated, pooled_rows, private_federated, same_bits, stored

ROWS = pooled_rows(120)
SITES = np.array_split(ROWS, 3)
ALL: dict[str, Any] = {
    "n_components": 2,
    "epsilon": (2.0, 1.0),
    "delta": (1e-5, 1e-6),
    "row_bound": 9.0,
    "column_bounds": (-9.0, 9.0),
    "method": "fedpower",
    "topology": "star",
    "fanout": 3,
    "trust": "both",
    "survivors": None,
    "colluders": 1,
    "rounds": 3,
    "tolerance": 0.0,
    "oversample": 1,
    "local_steps": [1, 1],
    "align": "sign",
    "participation": ("without-replacement", 2),
    "quorum": 0.5,
    "center": None,
    "origin": np.zeros(DIM),
    "mean_bound": 3.0,
    "scale": 2.0,
    "neighbours": "zero-out",
    "person": None,
    "columns": None,
    "drop": None,
    "one_hot": None,
    "quantile": None,
    "missing": "fill",
    "missing_groups": None,
    "missing_fill": 1.0,
    "person_sites": 2,
    "calibration": "exact",
    "ledger": Ledger(epsilon=99.0, delta=1e-5),
    "faults": Faults(),
    "deadline": 20.0,
    "retries": 2,
    "whiten": True,
    "random_state": 3,
}


def test_it_is_public() -> None:
    assert eigenveil.FederatedPCA is FederatedPCA


def test_every_parameter_is_kept_as_given() -> None:
    pca: Any = FederatedPCA(**ALL)
    given = pca.get_params()
    assert set(given) == set(ALL)
    assert all(given[name] is ALL[name] for name in ALL)
    pca.fit(SITES)
    assert all(pca.get_params()[name] is ALL[name] for name in ALL)
    assert pca.guarantee_.epsilon == 1.0


def test_parameters_can_be_set() -> None:
    pca: Any = federated(2)
    pca.set_params(method="covariance", n_components=3)
    assert pca.fit(SITES).plan_.method == "covariance"
    assert pca.components_.shape == (3, DIM)
    with pytest.raises(ValueError, match="Invalid parameter 'iterations'"):
        pca.set_params(iterations=3)


def test_epsilon_must_be_written_out() -> None:
    with pytest.raises(TypeError, match="epsilon"):
        FederatedPCA(2)  # type: ignore[call-arg]


def test_a_clone_has_the_choices_but_not_the_fit() -> None:
    fitted: Any = private_federated(trust="site", person_sites=2).fit(SITES)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(ROWS)
    assert not hasattr(copy, "ledgers_")
    assert same_bits(copy.fit(SITES), fitted)
    # A fit pays from ledgers of its own.
    assert copy.ledgers_["site 0"] is not fitted.ledgers_["site 0"]


def test_nothing_is_fitted_before_the_fit() -> None:
    pca = federated(2)
    for verb in (pca.transform, pca.scores, pca.inverse_transform, pca.save, pca.get_feature_names_out):
        with pytest.raises(NotFittedError):
            verb(ROWS)
    with pytest.raises(ValueError, match="nothing to resume"):
        pca.resume()


def test_fitting_returns_the_estimator_and_takes_no_notice_of_y() -> None:
    pca = federated(2)
    assert pca.fit(SITES, None) is pca
    assert same_bits(pca, federated(2).fit(SITES, np.ones(3)))


def test_a_second_fit_replaces_the_first() -> None:
    pca: Any = federated(2).fit([stored(rows, "pandas") for rows in SITES])
    assert list(pca.feature_names_in_) == COLUMNS
    pca.fit([rows[:, :5] for rows in SITES])
    assert pca.n_features_in_ == 5
    assert not hasattr(pca, "feature_names_in_")
    assert pca.transform(ROWS[:, :5]).shape == (120, 2)
    assert pca.model_.columns is None


@pytest.mark.parametrize(("container", "kind"), [("pandas", pd.DataFrame), ("polars", pl.DataFrame)])
def test_scores_come_in_the_container_that_was_asked_for(container: str, kind: Any) -> None:
    pca = federated(2).set_output(transform=container).fit([stored(rows, "pandas") for rows in SITES])
    scores: Any = pca.transform(stored(ROWS, "pandas"))
    assert isinstance(scores, kind)
    assert list(scores.columns) == ["federatedpca0", "federatedpca1"]
    assert np.allclose(scores.to_numpy(), pca.model_.transform(ROWS))


def test_names_come_out() -> None:
    pca: Any = federated(3).fit(SITES)
    assert list(pca.get_feature_names_out()) == ["federatedpca0", "federatedpca1", "federatedpca2"]
    assert pca.n_features_in_ == DIM
    assert pca.n_components_ == 3


def test_the_sites_are_not_changed() -> None:
    before = [rows.copy() for rows in SITES]
    for choices in ({}, {"method": "merge"}, {"method": "covariance", "column_bounds": (-1.0, 1.0)}):
        federated(2, **choices).fit(SITES)
        private_federated(2, **choices).fit(SITES)
    for rows, kept in zip(SITES, before, strict=True):
        assert np.array_equal(rows, kept)
    frozen = [rows.copy() for rows in SITES]
    for rows in frozen:
        rows.setflags(write=False)
    assert same_bits(federated(2).fit(frozen), federated(2).fit(SITES))


def test_a_fitted_estimator_holds_no_rows() -> None:
    """What is published with it is released numbers: not so much as a reference to a site's table is left behind."""
    pca = private_federated(2).fit(SITES)
    kept = vars(pca)
    for name, value in kept.items():
        assert not any(value is rows for rows in SITES), name
    assert "_federation" not in kept


@pytest.mark.parametrize("seed", [np.random.default_rng(3), np.random.RandomState(3), np.int64(3)])
def test_any_kind_of_seed(seed: Any) -> None:
    assert not private_federated(random_state=seed).fit(SITES).guarantee_.private
