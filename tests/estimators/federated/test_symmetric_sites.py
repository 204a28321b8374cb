"""Sites that give a symmetric matrix in place of rows: the fit is that of the rows behind, and what needs rows is refused."""

import copy
import pickle
import traceback
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from eigenveil import FederatedPCA, PrivatePCA, StreamingPCA, Symmetric
from eigenveil.errors import QuorumLost
from eigenveil.linalg import Array
from eigenveil.runtimes.local import Faults
from estimators.sites_of_rows import COLUMNS, DIM, federated, off, pooled_rows, private_federated

# Six sites, so that a tree has nodes; shorter than the row bound, so that no table's row is scaled down.
ROWS = pooled_rows(240)
ROWS = ROWS * (11.9 / np.linalg.norm(ROWS, axis=1).max())
TABLES = np.array_split(ROWS, 6)
METHODS = ["krylov", "power", "covariance", "fedpower", "dr-svd"]
PRIVATE = METHODS[:4]
SECRET = 8675309.0


def matrix(rows: Array) -> Symmetric:
    """What a site has that kept only the sum of products of its rows."""
    return Symmetric(rows.T @ rows, people=len(rows))


MATRICES = [matrix(rows) for rows in TABLES]
# Every other site a table, one of them with names and one sparse.
MIXED: list[Any] = [
    MATRICES[0],
    pd.DataFrame(TABLES[1], columns=COLUMNS),
    MATRICES[2],
    sp.csr_array(TABLES[3]),
    MATRICES[4],
    TABLES[5],
]


def far_apart(one: FederatedPCA, other: FederatedPCA) -> float:
    """The spectral distance of the projectors."""
    left, right = (pca.components_.T @ pca.components_ for pca in (one, other))
    return float(np.linalg.norm(left - right, 2))


@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("sites", [MATRICES, MIXED], ids=["matrices", "mixed"])
@pytest.mark.parametrize("method", METHODS)
def test_matrices_give_what_the_rows_behind_them_give(method: str, sites: list[Any], topology: str) -> None:
    choices: dict[str, Any] = {"method": method, "center": None, "topology": topology, "fanout": 2}
    rows, matrices = federated(**choices).fit(TABLES), federated(**choices).fit(sites)
    assert far_apart(rows, matrices) < 1e-10
    assert matrices.singular_values_ == pytest.approx(rows.singular_values_, rel=1e-10)
    assert matrices.explained_variance_ == pytest.approx(rows.explained_variance_, rel=1e-10)
    assert matrices.explained_variance_ratio_ == pytest.approx(rows.explained_variance_ratio_, rel=1e-10)
    assert not matrices.mean_.any()


def test_local_steps_and_drawn_sites_need_only_products() -> None:
    several: list[dict[str, Any]] = [{"local_steps": 3}, {"participation": ("with-replacement", 3), "rounds": 5}]
    for choices in several:
        choices |= {"method": "fedpower", "center": None}
        assert far_apart(federated(**choices).fit(TABLES), federated(**choices).fit(MATRICES)) < 1e-10


def test_units_are_taken_out_of_a_matrix_as_out_of_rows() -> None:
    scale = np.linspace(0.5, 4, DIM)
    choices: dict[str, Any] = {"center": None, "scale": scale}
    for method in ("krylov", "covariance"):
        rows, matrices = (federated(method=method, **choices).fit(sites) for sites in (TABLES, MATRICES))
        assert far_apart(rows, matrices) < 1e-10
        assert matrices.explained_variance_ratio_ == pytest.approx(rows.explained_variance_ratio_, rel=1e-10)


@pytest.mark.parametrize("neighbours", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize("trust", [{"trust": "site"}, {"trust": "hub"}], ids=lambda t: str(t["trust"]))
@pytest.mark.parametrize("method", PRIVATE)
def test_noise_and_charges_are_those_of_rows(method: str, trust: dict[str, Any], neighbours: Any) -> None:
    """With one seed the noise is the same to the last bit, so nothing but the grids of rows and of the hub can differ."""
    choices: dict[str, Any] = {"method": method, "center": None, "neighbours": neighbours, "epsilon": 50.0} | trust
    rows, matrices = (private_federated(**choices).fit(sites) for sites in (TABLES, MATRICES))
    assert far_apart(rows, matrices) < 1e-3
    assert matrices.explained_variance_ == pytest.approx(rows.explained_variance_, rel=1e-3)
    assert matrices.noise_floor_ == pytest.approx(rows.noise_floor_, rel=1e-4)
    assert matrices.guarantee_.charges == rows.guarantee_.charges
    assert matrices.guarantee_.headline == rows.guarantee_.headline
    # Another seed is further away than that: the comparison would see noise of another size.
    assert far_apart(rows, private_federated(**(choices | {"random_state": 1})).fit(MATRICES)) > 3e-3


def test_a_person_may_be_a_site() -> None:
    """PPM's setting: each client has one matrix, and adds noise of its own."""
    clients = [matrix(row[None]) for row in ROWS[:40]]
    pca = private_federated(center=None, trust="site", epsilon=5.0, neighbours="zero-out").fit(clients)
    assert len(pca.ledgers_) == len(clients)
    exact = federated(2, center=None).fit(clients)
    assert off(exact, np.linalg.svd(ROWS[:40])[2][:2].T) < 1e-7


def test_a_site_may_take_away_what_another_added() -> None:
    """Matrices need not be semi-definite; their sum is what counts."""
    offset = np.diag(np.linspace(-500, 500, DIM))
    sites = [Symmetric(MATRICES[0].matrix + offset, people=40), Symmetric(MATRICES[1].matrix - offset, people=40), *MATRICES[2:]]
    for method in ("krylov", "power", "covariance", "dr-svd"):
        choices: dict[str, Any] = {"method": method, "center": None}
        assert far_apart(federated(**choices).fit(sites), federated(**choices).fit(TABLES)) < 1e-6


def test_a_tables_long_row_is_scaled_down_and_a_matrix_is_taken_as_it_is() -> None:
    long = ROWS.copy()
    long[0] *= 50 / np.linalg.norm(long[0])
    choices: dict[str, Any] = {"method": "covariance", "center": None, "row_bound": 12.0}
    cut = federated(**choices).fit([long, TABLES[0]])
    short = long.copy()
    short[0] *= 12 / 50
    assert far_apart(cut, federated(**choices).fit([matrix(short), matrix(TABLES[0])])) < 1e-10
    whole = federated(**choices).fit([matrix(long), matrix(TABLES[0])])
    assert far_apart(whole, federated(**(choices | {"row_bound": None})).fit([long, TABLES[0]])) < 1e-10
    assert whole.explained_variance_.sum() > 1.2 * cut.explained_variance_.sum()


def test_a_matrix_can_be_put_in_place_of_a_missing_site() -> None:
    pca = federated(center=None, faults=Faults(dies={"site 2": 1}))
    with pytest.raises(QuorumLost):
        pca.fit(TABLES)
    pca.faults = None
    assert far_apart(pca.resume({"site 2": MATRICES[2]}), federated(center=None).fit(TABLES)) < 1e-10


def test_scores_are_of_rows_and_names_come_from_tables() -> None:
    pca = federated(center=None).fit(MIXED)
    assert pca.scores(MIXED[1]) == pytest.approx(TABLES[1] @ pca.components_.T)
    assert list(pca.feature_names_in_) == COLUMNS
    assert federated(center=None).fit(MATRICES).n_features_in_ == DIM
    with pytest.raises(ValueError, match="X must be rows, got a Symmetric"):
        pca.scores(MATRICES[0])


NEEDS_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "a mean to be found": ({"center": "private"}, "center=None is required if a site gives a Symmetric"),
    "the default": ({}, "center=None is required if a site gives a Symmetric"),
    "a given center": ({"center": np.zeros(DIM)}, "center=None is required if a site gives a Symmetric"),
    "bounds of columns": ({"center": None, "column_bounds": (-9, 9)}, "column_bounds must be left out if .* Use row_bound"),
    "people by name": ({"center": None, "person": "c0"}, "person must be left out if a site gives a Symmetric"),
    "merge": ({"center": None, "method": "merge"}, "method='merge' needs the rows of a site, or a root"),
    "uda": ({"center": None, "method": "uda"}, "method='uda' needs the rows of a site, or a root"),
    "wda": ({"center": None, "method": "wda"}, "method='wda' needs the rows of a site, or a root"),
}


@pytest.mark.parametrize(("choices", "message"), NEEDS_ROWS.values(), ids=NEEDS_ROWS.keys())
def test_what_needs_rows_is_refused_and_names_the_site(choices: dict[str, Any], message: str) -> None:
    first = pd.DataFrame(TABLES[0], columns=COLUMNS)
    for pca in (federated(2, **choices), private_federated(**choices)):
        with pytest.raises(ValueError, match=f"^Basel: {message}"):
            pca.fit({"Aachen": first, "Basel": MATRICES[1]})
        assert not hasattr(pca, "components_")


def test_other_columns_are_refused() -> None:
    small = Symmetric(np.eye(5), people=3)
    for sites, message in (
        ([TABLES[0], small], "^site 1: it has 5 columns, and site 0 has 12$"),
        ([small, MATRICES[0]], "^site 1: it has 12 columns, and site 0 has 5$"),
    ):
        with pytest.raises(ValueError, match=message):
            federated(2, center=None).fit(sites)


def test_a_private_fit_needs_a_row_bound() -> None:
    with pytest.raises(ValueError, match=r"row_bound .* is required"):
        private_federated(center=None, row_bound=None).fit(MATRICES)


def test_estimators_of_rows_refuse_a_matrix() -> None:
    with pytest.raises(ValueError, match="X must be rows, got a Symmetric"):
        PrivatePCA(2, epsilon=None, center=None).fit(MATRICES[0])
    with pytest.raises(ValueError, match="has no rows to read"):
        StreamingPCA(2, epsilon=None).partial_fit(MATRICES[0])


def crooked() -> Array:
    """Symmetric but for one entry."""
    values = np.eye(3)
    values[0, 2] = SECRET
    return values


WRONG: dict[str, tuple[Any, str]] = {
    "not square": (np.full((2, 3), SECRET), r"must be square, got shape \(2, 3\)"),
    "a vector": (np.full(3, SECRET), "must be square, got 1 dimensions"),
    "nothing": (np.empty((0, 0)), "must be square"),
    "not symmetric": (crooked(), "must be symmetric"),
    "NaN": (np.diag([SECRET, np.nan]), "must be finite"),
    "infinity": (np.diag([SECRET, -np.inf]), "must be finite"),
    "beyond all use": (np.diag([SECRET, 1e200]), r"no entry beyond 1e\+150"),
    "complex": (np.eye(2) * (SECRET + 1j), "must hold real numbers, got dtype complex128"),
    "text": (np.full((2, 2), str(SECRET)), "must hold real numbers"),
    "sparse": (sp.csr_array(np.eye(2) * SECRET), "must be a plain array .* got csr_array"),
    "masked": (np.ma.masked_equal(np.eye(2) * SECRET, 0), "must be a plain array .* got MaskedArray"),
}


@pytest.mark.parametrize(("values", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_symmetric_matrix_is_refused_without_showing_it(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Symmetric(values, people=2)
    assert "8675309" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("people", [-8675309, 8675309.5, True, "8675309", None])
def test_people_are_counted_in_whole_numbers(people: Any) -> None:
    with pytest.raises(ValueError, match="people must be a whole number of at least 0") as caught:
        Symmetric(np.eye(2), people=people)
    assert "8675309" not in str(caught.value)


def test_a_matrix_is_copied_made_exactly_symmetric_and_kept_to_itself() -> None:
    values = np.random.default_rng(0).standard_normal((5, 5))
    values = values @ values.T
    values[0, 1] *= 1 + 1e-12
    counted: Any = np.int64(8675309)
    kept = Symmetric(values, people=counted)
    assert np.array_equal(kept.matrix, kept.matrix.T)
    assert kept.matrix == pytest.approx(values, rel=1e-11)
    assert not np.shares_memory(kept.matrix, values)
    assert type(kept.people) is int
    assert "8675309" not in repr(kept)
    with pytest.raises(ValueError, match="read-only"):
        kept.matrix[0, 0] = 1.0
    for twin in (pickle.loads(pickle.dumps(kept)), copy.deepcopy(kept)):  # noqa: S301  Of our own making.
        assert isinstance(twin, Symmetric)
        assert np.array_equal(twin.matrix, kept.matrix)
        assert twin.people == kept.people
    assert Symmetric([[2, 1], [1, 2]], people=0).matrix.dtype == np.float64
