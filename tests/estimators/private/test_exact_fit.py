"""With epsilon=None the answer is exact: scikit-learn's PCA, on every storage and type; and people count once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA

from eigenveil import PrivatePCA
from eigenveil.data.rows import DenseRows, WeightedRows
from eigenveil.linalg import Array, Subspace, sines
from estimators.tables import distance, private, rows, sparse_rows, tables

COUNTS = np.random.default_rng(3).integers(0, 256, (500, 6)) * np.array([1.0, 0.9, 0.7, 0.5, 0.3, 0.1])
STORAGES: dict[str, Callable[[], Any]] = {
    "float64": rows,
    "float64 far from zero": lambda: rows() + 1e6,
    "Fortran order": lambda: np.asfortranarray(rows()),
    "every other row": lambda: rows(800)[::2],
    "float32": lambda: rows().astype(np.float32),
    "uint8": lambda: COUNTS.astype(np.uint8),
    "int16": lambda: (rows() * 1000).astype(np.int16),
    "int64": lambda: (rows() * 1e9).astype(np.int64),
    "bool": lambda: rows() > 0,
    "csr array": lambda: sp.csr_array(sparse_rows()),
    "csr matrix": lambda: sp.csr_matrix(sparse_rows()),
    "csc": lambda: sp.csc_array(sparse_rows()),
    "coo": lambda: sp.coo_array(sparse_rows()),
    "sparse float32": lambda: sp.csr_array(sparse_rows().astype(np.float32)),
    "sparse uint8": lambda: sp.csr_array((sparse_rows() > 1).astype(np.uint8) * 255),
    "list": lambda: rows().tolist(),
    "wider than long": lambda: np.random.default_rng(0).standard_normal((5, 9)),
}


def plain(data: Any) -> Array:
    """The same numbers, dense and double."""
    return np.asarray(data.toarray() if sp.issparse(data) else data, dtype=np.float64)


def agree(ours: PrivatePCA, theirs: PCA) -> None:
    """Same spaces, component by component, and same numbers."""
    rank = theirs.n_components_
    assert ours.n_components_ == rank
    for k in range(1, rank + 1):
        assert sines(ours.components_[:k].T, theirs.components_[:k].T).max() < 1e-8
    size = theirs.explained_variance_[0]
    assert np.allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-8, atol=1e-10 * size)
    assert np.allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-8, atol=1e-10)
    assert np.allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-8)
    assert np.allclose(ours.mean_, theirs.mean_, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("store", STORAGES.values(), ids=STORAGES.keys())
def test_an_exact_fit_is_scikit_learns(store: Callable[[], Any]) -> None:
    data = store()
    ours = PrivatePCA(3, epsilon=None).fit(data)
    theirs = PCA(3, svd_solver="full").fit(plain(data))
    agree(ours, theirs)
    assert ours.guarantee_.epsilon is None
    assert ours.guarantee_.to_text() == "No privacy: exact PCA was asked for."
    assert ours.ledger_ is None
    assert ours.noise_floor_ == 0.0
    signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
    assert np.allclose(ours.transform(data) * signs, theirs.transform(plain(data)), atol=1e-6)


@pytest.mark.parametrize("wanted", [1, 6, np.int64(4), None, 0.3, 0.9, 0.99, 0.9999999])
def test_components_are_counted_as_scikit_learn_counts_them(wanted: Any) -> None:
    agree(PrivatePCA(wanted, epsilon=None).fit(rows()), PCA(wanted, svd_solver="full").fit(rows()))


def test_the_power_method_comes_to_the_same_answer_without_noise() -> None:
    values = rows()
    by_power = PrivatePCA(2, epsilon=None, method="power").fit(values)
    agree(by_power, PCA(2, svd_solver="full").fit(values))
    assert by_power.plan_.reason == "power was asked for"


def test_more_blocks_than_one_give_the_same_sums() -> None:
    values = np.random.default_rng(0).standard_normal((150_000, 3)) * [3.0, 2.0, 1.0] + 1
    agree(PrivatePCA(2, epsilon=None).fit(values), PCA(2, svd_solver="full").fit(values))
    for store in (np.asarray, sp.csr_array):
        pca = PrivatePCA(2, epsilon=None).fit(store(values))
        assert np.allclose(pca.transform(store(values)), (values - pca.mean_) @ pca.components_.T)


def test_bounds_and_scale_and_center_apply_without_privacy_too() -> None:
    values = rows()
    scale = np.arange(1.0, 7.0)
    scaled = PrivatePCA(2, epsilon=None, scale=scale).fit(values)
    theirs = PCA(2, svd_solver="full").fit(values / scale)
    assert sines(scaled.components_.T, theirs.components_.T).max() < 1e-8
    assert np.allclose(scaled.explained_variance_, theirs.explained_variance_)
    assert np.allclose(scaled.mean_, values.mean(axis=0))
    boxed = PrivatePCA(2, epsilon=None, column_bounds=(-1.0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).fit(values)
    agree(boxed, PCA(2, svd_solver="full").fit(np.clip(values, -1.0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])))
    for center in (None, np.arange(6.0)):
        moved = values if center is None else values - center
        given = PrivatePCA(2, epsilon=None, center=center).fit(values)
        direct = Subspace.of(moved, rank=2)
        assert sines(given.components_.T, direct.basis).max() < 1e-8
        assert np.allclose(given.singular_values_, direct.values)
        assert np.array_equal(given.mean_, np.zeros(6) if center is None else center)


def by_hand(values: Array, people: Any) -> tuple[Array, Array]:
    """Mean and Gram matrix, slowly: each person adds the average of their rows and of their products."""
    ids = np.unique(people)
    own = [values[people == person] for person in ids]
    mean = np.mean([part.mean(axis=0) for part in own], axis=0)
    gram = np.sum([(part - mean).T @ (part - mean) / len(part) for part in own], axis=0)
    return mean, gram


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
def test_a_person_counts_once_however_many_rows_they_have(store: Callable[[Any], Any]) -> None:
    values = sparse_rows()
    people = np.random.default_rng(4).integers(0, 90, len(values))
    mean, gram = by_hand(values, people)
    pca = PrivatePCA(2, epsilon=None, person=people).fit(store(values))
    assert np.allclose(pca.mean_, mean)
    best = np.linalg.eigh(gram)
    assert sines(pca.components_.T, best.eigenvectors[:, -2:]).max() < 1e-8
    assert np.allclose(pca.explained_variance_, best.eigenvalues[::-1][:2] / (len(np.unique(people)) - 1))
    assert np.allclose(pca.explained_variance_ratio_, best.eigenvalues[::-1][:2] / np.trace(gram))
    # Rows that arrive weighted are the same people.
    weighted = WeightedRows.by_person(DenseRows(values), people)
    assert distance(pca, PrivatePCA(2, epsilon=None).fit(weighted)) < 1e-10


@pytest.mark.parametrize("neighbours", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize("method", ["covariance", "power"])
def test_a_person_who_repeats_a_row_changes_nothing(neighbours: str, method: str) -> None:
    values = rows()
    choices: dict[str, Any] = {"neighbours": neighbours, "method": method}
    repeated = np.repeat(np.arange(len(values)), np.arange(len(values)) % 4 + 1)
    grouped = private(2, person=repeated, **choices).fit(values[repeated])
    # Rows that share a person are shorter and rounded each for itself: as near as the grid, the row bound over 2^16.
    assert distance(private(2, **choices).fit(values), grouped) < 1e-3
    assert "with all of their rows" in grouped.guarantee_.unit
    assert "more than one row" not in grouped.guarantee_.to_text()


@pytest.mark.parametrize("kind", tables(rows(20)))
def test_a_column_can_name_people_in_every_table(kind: str) -> None:
    values = rows()
    people = np.random.default_rng(5).integers(0, 150, len(values))
    named = tables(values, who=[f"person {i}" for i in people])[kind]
    expected = private(2, person=people).fit(values)
    pca: Any = private(2, person="who").fit(named)
    assert distance(pca, expected) < 1e-10
    assert "who" not in pca.feature_names_in_
    # The column may be there or not when scores are asked for, and is left out in both cases.
    assert np.allclose(pca.transform(named), pca.transform(tables(values)[kind]))
