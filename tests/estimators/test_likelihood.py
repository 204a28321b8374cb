"""scikit-learn's surface beyond components: whitening, covariance, precision, noise variance and likelihood."""

from typing import Any, Final

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA

from eigenveil import FederatedPCA, GossipPCA, Model, PrivatePCA, StreamingPCA
from estimators.tables import private, rows

EXACT: Final[dict[str, Any]] = {
    "one table": lambda k, X, **more: PrivatePCA(k, epsilon=None, **more).fit(X),
    "one table, products": lambda k, X, **more: PrivatePCA(
        k, epsilon=None, method="power", rounds=200, random_state=0, **more
    ).fit(X),
    "sites": lambda k, X, **more: FederatedPCA(k, epsilon=None, random_state=0, **more).fit(np.array_split(X, 3)),
    "peers": lambda k, X, **more: GossipPCA(k, graph="complete", epsilon=None, method="krylov", random_state=0, **more).fit(
        np.array_split(X, 3)
    ),
    "stream": lambda k, X, **more: StreamingPCA(k, epsilon=None, **more).fit(X),
}


def fresh() -> Any:
    return rows(seed=5)


def same(found: Any, expected: Any, *, rtol: float = 1e-6) -> None:
    assert np.allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("rank", [2, 6])
@pytest.mark.parametrize("kind", EXACT)
def test_without_privacy_the_numbers_are_those_of_scikit_learn(kind: str, rank: int) -> None:
    X = rows()
    ours, theirs = EXACT[kind](rank, X), PCA(rank, svd_solver="full").fit(X)
    same(ours.noise_variance_, theirs.noise_variance_)
    same(ours.get_covariance(), theirs.get_covariance())
    same(ours.get_precision(), theirs.get_precision())
    same(ours.score_samples(fresh()), theirs.score_samples(fresh()))
    assert ours.score(fresh()) == pytest.approx(theirs.score(fresh()), rel=1e-6)


@pytest.mark.parametrize("kind", EXACT)
def test_whitened_scores_are_those_of_scikit_learn_up_to_signs(kind: str) -> None:
    X = rows()
    ours, theirs = EXACT[kind](2, X, whiten=True), PCA(2, whiten=True, svd_solver="full").fit(X)
    same(np.abs(ours.transform(fresh())), np.abs(theirs.transform(fresh())), rtol=1e-5)
    same(ours.transform(X).std(axis=0, ddof=1), np.ones(2), rtol=1e-5)
    same(ours.inverse_transform(ours.transform(fresh())), theirs.inverse_transform(theirs.transform(fresh())))
    # It changes the scores and nothing else.
    same(ours.get_covariance(), EXACT[kind](2, X).get_covariance())


def test_fewer_rows_than_columns_vary_in_as_many_directions() -> None:
    wide = np.random.default_rng(0).standard_normal((8, 20)) * np.arange(20, 0, -1)
    ours, theirs = PrivatePCA(3, epsilon=None).fit(wide), PCA(3, svd_solver="full").fit(wide)
    same(ours.noise_variance_, theirs.noise_variance_)
    same(ours.score_samples(wide), theirs.score_samples(wide))


def test_a_saved_model_whitens_too(tmp_path: Any) -> None:
    fitted = private(2, whiten=True).fit(rows())
    fitted.save(tmp_path / "m.safetensors")
    again = Model.load(tmp_path / "m.safetensors")
    assert again.whiten
    same(again.transform(fresh()), fitted.transform(fresh()))
    same(again.project(fresh()), private(2).fit(rows()).transform(fresh()))
    assert not private(2).fit(rows()).model_.whiten


def test_a_direction_without_variance_has_whitened_scores_of_zero() -> None:
    flat = np.zeros((10, 3))
    flat[:, 0] = np.arange(10.0)
    fitted = PrivatePCA(2, epsilon=None, whiten=True).fit(flat)
    assert np.isfinite(fitted.transform(flat)).all()
    same(fitted.inverse_transform(fitted.transform(flat)), flat)


def test_segments_of_peers_are_not_whitened() -> None:
    parts = np.array_split(rows(), 3)
    made = [
        GossipPCA(2, graph="ring", epsilon=None, method="segments", random_state=0, whiten=whiten).fit(parts)
        for whiten in (False, True)
    ]
    same(made[1].segments_["peer 1"], made[0].segments_["peer 1"])
    deviations = np.sqrt(made[0].explained_variance_)
    same(made[1].scores_["peer 1"] * deviations, made[0].scores_["peer 1"])


def test_the_released_covariance_is_whole_and_positive() -> None:
    X = rows(20_000)
    fitted = private(1, epsilon=3.0, row_bound=20.0).fit(X)
    found = fitted.get_covariance()
    values = np.linalg.eigvalsh(found)
    assert values.min() > 0
    same(found @ fitted.get_precision(), np.eye(6))
    # More than one component and noise: what was released of the others is in it too.
    exact = np.cov(X.T)
    of_components = PCA(1, svd_solver="full").fit(X).get_covariance()
    assert np.linalg.norm(found - exact) < 0.5 * np.linalg.norm(of_components - exact)
    # Averaging what is noise keeps the trace as it was released.
    assert np.trace(found) == pytest.approx(fitted.explained_variance_[0] / fitted.explained_variance_ratio_[0])


@pytest.mark.parametrize("method", ["covariance", "power"])
def test_rows_that_are_all_noise_have_a_likelihood(method: str) -> None:
    fitted = private(2, epsilon=0.05, method=method).fit(np.zeros((300, 6)))
    assert np.isfinite(fitted.score_samples(np.zeros((3, 6)))).all()
    assert np.linalg.eigvalsh(fitted.get_covariance()).min() > 0


@pytest.mark.parametrize(
    "fitted",
    [
        lambda: FederatedPCA(2, epsilon=2.0, delta=1e-6, row_bound=14.0, random_state=0).fit(np.array_split(rows(), 3)),
        lambda: GossipPCA(2, graph="ring", epsilon=2.0, delta=1e-6, row_bound=14.0, method="covariance", random_state=0).fit(
            np.array_split(rows(), 3)
        ),
    ],
    ids=["sites", "peers"],
)
def test_sites_and_peers_release_a_whole_covariance_too(fitted: Any) -> None:
    found = fitted().get_covariance()
    assert np.linalg.norm(found - np.cov(rows().T)) < 0.3 * np.linalg.norm(np.cov(rows().T))
    # Three of the six columns are neither components nor alike, and the matrix knows it.
    assert len(np.unique(np.linalg.eigvalsh(found).round(6))) > 2


def test_units_are_those_of_the_columns() -> None:
    X, units = rows(), np.array([1.0, 10.0, 100.0, 1.0, 1.0, 1.0])
    plain = PrivatePCA(6, epsilon=None).fit(X)
    scaled = PrivatePCA(6, epsilon=None, scale=units).fit(X)
    same(scaled.get_covariance(), plain.get_covariance())
    same(scaled.get_precision(), plain.get_precision())
    same(scaled.score_samples(fresh()), plain.score_samples(fresh()))


def test_sparse_rows_have_the_same_likelihood() -> None:
    fitted = PrivatePCA(2, epsilon=None).fit(rows())
    same(fitted.score_samples(sp.csr_array(fresh())), fitted.score_samples(fresh()))


def test_a_singular_covariance_has_no_inverse() -> None:
    flat = np.zeros((10, 3))
    flat[:, 0] = np.arange(10.0)
    fitted = PrivatePCA(2, epsilon=None).fit(flat)
    assert fitted.get_covariance().shape == (3, 3)
    for refused in (fitted.get_precision, lambda: fitted.score(flat)):
        with pytest.raises(ValueError, match="no inverse"):
            refused()
