"""scikit-learn's contract: its own checks, pipelines, clones, output containers, searches and pickles."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from eigenveil import BudgetExceeded, Ledger, PrivatePCA
from estimators.tables import NAMES, private, rows

CHECKED = [
    PrivatePCA(2, epsilon=None),
    private(2, row_bound=10.0, method="covariance"),
    private(2, row_bound=10.0, method="power"),
]


def passes(estimator: PrivatePCA, check: Callable[[PrivatePCA], None]) -> None:
    """One of scikit-learn's checks."""
    check(estimator)


test_scikit_learns_own_checks = parametrize_with_checks(CHECKED)(passes)


def test_a_pipeline_carries_it() -> None:
    values = rows()
    pipeline = make_pipeline(FunctionTransformer(np.negative), private(3))
    scores = pipeline.fit_transform(values)
    assert np.allclose(scores, private(3).fit(-values).transform(-values))
    assert pipeline[-1].guarantee_.epsilon == 1.0


def test_a_clone_has_the_choices_and_the_ledger_but_not_the_fit() -> None:
    ledger = Ledger(epsilon=5.0, delta=1e-6)
    fitted = private(2, ledger=ledger, scale=np.arange(1.0, 7.0)).fit(rows())
    copy = clone(fitted)
    assert copy.ledger is ledger
    assert copy.get_params()["row_bound"] == 12.0
    assert np.array_equal(copy.scale, np.arange(1.0, 7.0))
    with pytest.raises(NotFittedError):
        copy.transform(rows())
    for verb in (copy.inverse_transform, copy.save):
        with pytest.raises(NotFittedError):
            verb(rows())
    before = len(ledger.charges)
    copy.fit(rows())
    assert len(ledger.charges) == 2 * before


@pytest.mark.parametrize(("container", "kind"), [("pandas", pd.DataFrame), ("polars", pl.DataFrame)])
def test_scores_come_in_the_container_that_was_asked_for(container: str, kind: Any) -> None:
    frame = pd.DataFrame(rows(), columns=NAMES, index=np.arange(400) * 3)
    pca = private(2).set_output(transform=container).fit(frame)
    scores: Any = pca.transform(frame)
    assert isinstance(scores, kind)
    assert list(scores.columns) == ["privatepca0", "privatepca1"]
    assert np.allclose(scores.to_numpy(), pca.model_.transform(rows()))
    if container == "pandas":
        assert list(scores.index) == list(frame.index)


def test_names_go_in_and_come_out() -> None:
    pca: Any = private(3).fit(pd.DataFrame(rows(), columns=NAMES))
    assert list(pca.feature_names_in_) == NAMES
    assert pca.model_.columns == tuple(NAMES)
    assert list(pca.get_feature_names_out()) == ["privatepca0", "privatepca1", "privatepca2"]
    turned = pd.DataFrame(rows(), columns=NAMES)[NAMES[::-1]].assign(other="text")
    np.testing.assert_array_equal(pca.transform(turned), pca.transform(pd.DataFrame(rows(), columns=NAMES)))
    with pytest.raises(ValueError, match="X lacks columns of the model: dose"):
        pca.transform(turned.drop(columns="dose"))
    assert not hasattr(pca.fit(rows()), "feature_names_in_")
    assert pca.model_.columns is None


def released_variance(pca: PrivatePCA, X: Any, y: Any = None) -> float:
    """A score that looks at released numbers only."""
    return float(pca.explained_variance_.sum())


def search(ledger: Ledger) -> GridSearchCV:
    """Two candidates on two folds, and a last fit of the better one: five fits."""
    grid = {"n_components": [1, 3]}
    return GridSearchCV(private(ledger=ledger, mean_bound=12.0), grid, scoring=released_variance, cv=2, error_score="raise")


def test_a_grid_search_spends_from_one_ledger() -> None:
    ledger = Ledger(epsilon=10.0, delta=1e-6)
    found = search(ledger).fit(rows())
    assert found.best_params_ == {"n_components": 3}
    assert found.best_estimator_.ledger is ledger
    labels = [charge.label for charge in ledger.charges]
    assert labels == ["mean and count", "covariance"] * 5
    assert ledger.epsilon() > 2.0


def test_a_grid_search_stops_when_the_ledger_is_empty() -> None:
    ledger = Ledger(epsilon=1.6, delta=1e-6)
    with pytest.raises(BudgetExceeded, match="'this fit' needs mu"):
        search(ledger).fit(rows())
    # Costs add up in squares of mu: two fits of epsilon 1 fit under 1.6, and no part of a third was begun.
    assert len(ledger.charges) == 4
    assert 1.4 < ledger.epsilon() <= 1.6


def test_a_pickled_fit_works_but_cannot_spend() -> None:
    values = rows()
    ledger = Ledger(epsilon=5.0, delta=1e-6)
    fitted = private(2, ledger=ledger).fit(values)
    copy = pickle.loads(pickle.dumps(fitted))  # noqa: S301
    assert np.array_equal(copy.transform(values), fitted.transform(values))
    assert copy.guarantee_ == fitted.guarantee_
    assert copy.ledger_.charges == ledger.charges
    with pytest.raises(BudgetExceeded, match="copy of a ledger"):
        copy.fit(values)
