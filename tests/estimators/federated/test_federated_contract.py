"""scikit-learn's manners, as far as they make sense where `fit` takes a list of sites: parameters, clones, names, containers."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from estimators.sites_of_rows import COLUMNS, federated, pooled_rows, private_federated, same_bits, stored

ROWS = pooled_rows(120)
SITES = np.array_split(ROWS, 3)


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


def test_a_second_fit_replaces_the_first() -> None:
    pca: Any = federated(2).fit([stored(rows, "pandas") for rows in SITES])
    assert list(pca.feature_names_in_) == COLUMNS
    pca.fit([rows[:, :5] for rows in SITES])
    assert pca.n_features_in_ == 5
    assert not hasattr(pca, "feature_names_in_")
    assert pca.transform(ROWS[:, :5]).shape == (120, 2)
    assert pca.model_.columns is None


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
