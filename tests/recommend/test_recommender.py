"""`PrivateRecommender` as its users meet it: what it recommends, what it refuses, what it guarantees, and what it never says."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Gaussian
from eigenveil.linalg import Array, sines
from eigenveil.recommend import Interactions, ItemSpace, PrivateRecommender
from recommend.histories_of_users import SECRET, SMALL, random_histories, refuses, tastes

USERS, ITEMS, GROUPS = 600, 12, 3
R = tastes(USERS, ITEMS, groups=GROUPS, rng=np.random.default_rng(0))
DENSE: Array = R.toarray()


def recommender(**choices: Any) -> PrivateRecommender:
    """Exact and with a fixed seed."""
    return PrivateRecommender(**({"n_components": GROUPS, "epsilon": None, "random_state": 0} | choices))


def private(**choices: Any) -> PrivateRecommender:
    return recommender(**({"epsilon": 3.0, "delta": 1e-4} | choices))


def quietly(model: PrivateRecommender, held: Any) -> PrivateRecommender:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(held)


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was charged or released while the test ran."""
    seen: list[str] = []
    for owner, name in ((Ledger, "spend"), (Gaussian, "release")):
        whole = getattr(owner, name)

        def noted(self: Any, *rest: Any, whole: Any = whole, name: str = name, **more: Any) -> Any:
            seen.append(name)
            return whole(self, *rest, **more)

        monkeypatch.setattr(owner, name, noted)
    return seen


# What it recommends.


@pytest.mark.parametrize(
    "choices",
    [{}, {"item_degrees": "private"}, {"item_degrees": "private", "normalise": "both"}, {"unit": "item", "min_degree": 3}],
    ids=repr,
)
@pytest.mark.parametrize("method", ["covariance", "power"])
@pytest.mark.parametrize("exact", [True, False])
def test_users_get_items_of_their_taste(exact: bool, method: str, choices: dict[str, Any]) -> None:
    make = recommender if exact else private
    model = quietly(make(method=method, **choices), R)
    for group in range(GROUPS):
        row = np.zeros(ITEMS)
        row[group] = 1.0
        own = set(range(group, ITEMS, GROUPS)) - {group}
        assert set(model.recommend(row, n=3).tolist()) == own


def test_the_exact_filter_is_the_formula() -> None:
    """R D^(-1/2) V V^T D^(1/2), PPM (76), by hand."""
    degrees = np.linspace(1, 3, ITEMS)
    for given in (None, degrees):
        model = recommender(item_degrees=given).fit(R)
        rows = DENSE / np.sqrt(np.maximum(DENSE.sum(axis=1, keepdims=True), 1))
        basis = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :GROUPS]
        assert sines(model.components_.T, basis).max() < 1e-7
        root = np.ones(ITEMS) if given is None else np.sqrt(given)
        filled = DENSE[DENSE.sum(axis=1) > 0]
        wanted = (filled / root) @ basis @ basis.T * root
        np.testing.assert_allclose(model.space_.scores(filled), wanted, atol=1e-9)


def test_one_row_several_rows_and_none() -> None:
    model = recommender().fit(R)
    several = model.recommend(DENSE[:5], n=4)
    assert several.shape == (5, 4)
    for kind in (DENSE[0], DENSE[0].tolist(), sp.coo_array(DENSE[0])):
        assert model.recommend(kind, n=4).tolist() == several[0][several[0] >= 0].tolist()
    # One sparse row is one user; an array of one row is several, of whom there is one.
    assert model.recommend(R[:1], n=4).tolist() == several[0][several[0] >= 0].tolist()
    assert model.recommend(DENSE[:1], n=4).shape == (1, 4)
    assert model.recommend(R[:0], n=4).shape == (0, 4)
    assert (model.recommend(R, n=4) == model.recommend(DENSE, n=4)).all()
    assert model.recommend(DENSE[0].astype(bool), n=4).tolist() == model.recommend(DENSE[0], n=4).tolist()


def test_what_a_user_has_is_never_recommended_and_short_lists_are_said_to_be_short() -> None:
    model = recommender().fit(R)
    for row, found in zip(DENSE, model.recommend(R, n=ITEMS + 3), strict=True):
        left = set(np.flatnonzero(row == 0).tolist())
        assert set(found[: len(left)].tolist()) == left
        assert (found[len(left) :] == -1).all()
    assert model.recommend(np.ones(ITEMS), n=3).tolist() == []
    almost = np.ones(ITEMS)
    almost[7] = 0.0
    assert model.recommend(almost, n=3).tolist() == [7]


@pytest.mark.parametrize("choices", [{}, {"item_degrees": "private"}, {"item_degrees": np.arange(float(ITEMS))}], ids=str)
def test_who_has_nothing_gets_popular_items(choices: dict[str, Any]) -> None:
    popular = DENSE.copy()
    popular[:, 4] = 1.0
    model = recommender(**choices).fit(popular)
    first = model.recommend(np.zeros(ITEMS), n=1).tolist()
    assert first == [ITEMS - 1 if isinstance(choices.get("item_degrees"), np.ndarray) else 4]


def test_items_outside_of_a_list_are_never_recommended() -> None:
    listed = [7, 0, 3, 10]
    for items in (listed, 4):
        model = recommender(items=items, n_components=2).fit(R)
        found = model.recommend(R, n=ITEMS)
        assert set(found.ravel().tolist()) <= {-1, *model.columns_.tolist()}
    # A user who has none of them counts as one who has nothing.
    model = recommender(items=listed, n_components=2).fit(R)
    assert model.columns_.tolist() == sorted(listed)
    elsewhere = np.zeros(ITEMS)
    elsewhere[1] = 1.0
    assert model.recommend(elsewhere, n=4).tolist() == model.recommend(np.zeros(ITEMS), n=4).tolist()


def test_a_list_of_items_is_as_if_there_were_no_others() -> None:
    listed = [0, 2, 3, 7, 10]
    model = recommender(items=listed, min_degree=2).fit(R)
    alone = recommender(min_degree=2).fit(R[:, listed])
    assert sines(model.components_.T, alone.components_.T).max() < 1e-7
    assert sorted(model.recommend(DENSE[0], n=2)) == sorted(listed[at] for at in alone.recommend(DENSE[0][listed], n=2))


def test_names_of_items_are_kept_and_serve_in_lists_and_histories() -> None:
    names = tuple(f"song {at}" for at in range(ITEMS))
    plain = recommender(items=[0, 3, 6, 9], n_components=2).fit(R)
    frame = pd.DataFrame(DENSE.astype(int), columns=list(names))
    for held in (Interactions(R, items=names), frame):
        model = recommender(items=["song 9", "song 0", "song 6", "song 3"], n_components=2).fit(held)
        assert model.items_ == names
        assert np.array_equal(model.components_, plain.components_)
        assert model.history_of(["song 3", "song 0"]).toarray().nonzero()[1].tolist() == [0, 3]
        with pytest.raises(ValueError, match="no item is named 'song 99'"):
            model.history_of(["song 99"])
    assert plain.history_of([3, 0, 3]).toarray().nonzero()[1].tolist() == [0, 3]
    assert plain.history_of([]).nnz == 0


@pytest.mark.parametrize("wrong", [[12], [-1], ["a"], [1.0], [True], [None], [[1]]], ids=repr)
def test_histories_of_unknown_items_are_refused(wrong: Any) -> None:
    model = recommender().fit(R)
    with pytest.raises(ValueError, match=r"no item has number|no names|must be names or column numbers"):
        model.history_of(wrong)


# Odd but sound tables.


def test_users_and_items_without_interactions_change_nothing() -> None:
    plain = recommender(n_components=2).fit(R)
    more = recommender(n_components=2).fit(sp.vstack([R, sp.csr_array((7, ITEMS))]))
    assert sines(plain.components_.T, more.components_.T).max() < 1e-7
    wider = recommender(n_components=2).fit(sp.hstack([R, sp.csr_array((USERS, 2))]))
    assert np.abs(wider.components_[:, ITEMS:]).max() < 1e-7


def test_the_filter_is_indifferent_to_an_item_that_nobody_has() -> None:
    wider = recommender(n_components=2).fit(sp.hstack([R, sp.csr_array((USERS, 2))]))
    row = np.zeros(ITEMS + 2)
    row[0] = 1.0
    scores = wider.space_.scores(row)[0]
    assert np.abs(scores[ITEMS:]).max() < 1e-9 * np.abs(scores).max()


def test_pairs_that_are_given_twice_count_once() -> None:
    users, items = R.nonzero()
    twice = sp.coo_array((np.ones(2 * len(users)), (np.tile(users, 2), np.tile(items, 2))), shape=R.shape)
    assert np.array_equal(recommender().fit(twice).components_, recommender().fit(R).components_)


@pytest.mark.parametrize("method", ["covariance", "power"])
@pytest.mark.parametrize("table", [np.zeros((5, 4)), np.zeros((0, 4)), np.ones((1, 4)), SMALL, np.eye(4)], ids=str)
@pytest.mark.filterwarnings("error")
def test_small_and_empty_tables_have_an_exact_answer(table: Array, method: str) -> None:
    for degrees in (None, "private"):
        model = recommender(n_components=2, method=method, item_degrees=degrees).fit(table)
        assert model.components_.shape == (2, 4)
        assert np.isfinite(model.singular_values_).all()
        found = model.recommend(np.array([1, 0, 0, 0]), n=3)
        assert sorted(found.tolist()) == [1, 2, 3]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("delta", [None, 1e-4])
def test_a_private_fit_of_no_users_is_refused(delta: float | None, untouched: list[str]) -> None:
    """There is nothing to be found: the planner must say so like of any other hopeless fit, and not in terms of nan."""
    with pytest.raises(ValueError, match=r"Nothing was spent|no users|at least"):
        private(delta=delta).fit(np.zeros((0, ITEMS)))
    assert not untouched


# What it refuses, before anything is spent.

BAD_TABLES: dict[str, tuple[Any, str]] = {
    "negative": (np.where(DENSE > 0, -1.0, 0.0), "must be binary"),
    "fractions": (DENSE / 2, "must be binary"),
    "a secret": (np.where(DENSE > 0, float(SECRET), 0.0), "must be binary"),
    "a sparse secret": (SECRET * R, "must be binary"),
    "not a number": (np.where(DENSE > 0, np.nan, 0.0), "no NaN"),
    "infinite": (np.where(DENSE > 0, np.inf, 0.0), "no NaN, infinite"),
    "one row": (DENSE[0], "matrix of users and items"),
    "rows in a list": (DENSE.tolist(), "matrix of users and items"),
    "nothing": (None, "matrix of users and items"),
    "text": (str(SECRET), "matrix of users and items"),
    "names": (np.array([[str(SECRET), "a"]] * 3), "number"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_tables_that_are_none_are_refused_without_a_word_of_what_is_in_them(name: str, untouched: list[str]) -> None:
    table, message = BAD_TABLES[name]
    refuses(lambda: private().fit(table), message)
    assert not untouched


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (np.zeros(ITEMS - 1), "must have 12 entries"),
        (np.zeros((2, ITEMS + 1)), "must have 12 entries"),
        (np.full(ITEMS, 0.5), "must be binary"),
        (np.full(ITEMS, -1.0), "must be binary"),
        (np.full(ITEMS, float(SECRET)), "must be binary"),
        (np.full(ITEMS, np.nan), "no NaN"),
        (3, "dimensions"),
        (np.zeros((1, 2, ITEMS)), "dimensions"),
        ([], "columns"),
    ],
    ids=str,
)
def test_rows_that_are_no_history_are_refused(row: Any, message: str) -> None:
    model = recommender().fit(R)
    refuses(lambda: model.recommend(row), message)


def test_before_a_fit_there_is_nothing() -> None:
    for act in (
        lambda: recommender().recommend(DENSE[0]),
        lambda: recommender().history_of([1]),
        lambda: recommender().save("x"),
    ):
        with pytest.raises(NotFittedError):
            act()


# What it guarantees.


@pytest.mark.parametrize("unit", ["user", "item"])
def test_delta_is_a_tenth_of_one_over_the_users_where_their_number_is_public(unit: str) -> None:
    """Of users, or of what they may have; at most 1e-5, and rounded down to what can be read, never up."""
    for held in (R, [R[:100], R[100:]]):
        found = quietly(private(delta=None, unit=unit), held).guarantee_.delta
        assert found == 1e-5
    for users in (1, 2, 3, 7, 10, 99, 1000, 10**6, 123_456_789):
        budget = private(delta=None, unit=unit)._budget(users, 50)
        limit = min(1e-5, 1 / (10 * users * (50 if unit == "item" else 1)))
        assert budget is not None
        assert 0.9 * limit <= budget.delta <= limit


def test_a_matrix_of_pairs_that_no_machine_holds_is_refused_before_anything_is_spent() -> None:
    wide = sp.csr_array((10, 2_000_000))
    model = private(items=1_000_000, method="covariance", on_noise="warn")
    with pytest.raises(ValueError, match="Use method='power', or fewer items"):
        quietly(model, wide)
    assert not hasattr(model, "unfinished_")


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "batch", "dok", "lil", "bool"])
def test_every_kind_of_table_can_be_fitted_and_asked_about(kind: str) -> None:
    names = [f"i{at}" for at in range(ITEMS)]
    columns = {name: DENSE[:, at].astype(int) for at, name in enumerate(names)}
    kinds: dict[str, Callable[[], Any]] = {
        "pandas": lambda: pd.DataFrame(columns),
        "polars": lambda: pl.DataFrame(columns),
        "pyarrow": lambda: pa.table(columns),
        "batch": lambda: pa.RecordBatch.from_pydict(columns),
        "dok": lambda: sp.dok_array(DENSE),
        "lil": lambda: sp.lil_matrix(DENSE),
        "bool": lambda: DENSE != 0,
    }
    held = kinds[kind]()
    model = recommender().fit(held)
    assert np.array_equal(model.components_, recommender().fit(R).components_)
    assert model.items_ == (tuple(names) if kind in ("pandas", "polars", "pyarrow", "batch") else None)
    assert np.array_equal(model.recommend(held, n=2), model.recommend(R, n=2))


def test_nothing_that_is_public_about_a_fit_quotes_the_table() -> None:
    """Of two tables that differ, what is said besides the released numbers is the same, word by word."""
    other = random_histories(USERS, ITEMS, share=0.5, rng=np.random.default_rng(9))
    said = []
    for table in (R, other):
        model = private(item_degrees="private").fit(table)
        said.append(
            (
                repr(model),
                model.guarantee_.to_text(),
                str(model.plan_),
                str(dict(model.space_.settings)),
                [
                    (round_.stage, round_.answered, round_.bytes_up, round_.bytes_down, round_.charges)
                    for round_ in model.transcript_
                ],
            )
        )
    assert said[0] == said[1]


# The estimator's contract.


def test_a_fit_changes_neither_its_table_nor_its_choices() -> None:
    table, degrees = sp.csr_array(R), np.zeros(ITEMS)
    kept = (table.data.copy(), table.indices.copy(), table.indptr.copy())
    model = private(item_degrees=degrees).fit(table)
    assert all(np.array_equal(now, was) for now, was in zip((table.data, table.indices, table.indptr), kept, strict=True))
    assert not degrees.any()
    assert model.item_degrees is degrees
    assert model.item_degrees_ is not None
    assert model.item_degrees_.tolist() == [1.0] * ITEMS


def test_a_second_fit_forgets_the_first() -> None:
    model: Any = private(item_degrees="private", items=6).fit(R)
    model.set_params(item_degrees=None, items=None).fit(R[:, :9])
    assert model.n_features_in_ == 9
    assert model.columns_.tolist() == list(range(9))
    assert model.item_degrees_ is None
    fresh = private().fit(R[:, :9])
    assert np.array_equal(model.components_, fresh.components_)
    assert [len(ledger.charges) for ledger in model.ledgers_.values()] == [1]


@pytest.mark.parametrize("method", ["covariance", "power"])
def test_a_seed_repeats_a_fit_and_no_seed_does_not(method: str) -> None:
    one, same = (quietly(private(method=method, random_state=5), R) for _ in range(2))
    other = quietly(private(method=method, random_state=6), R)
    fresh = [quietly(private(method=method, random_state=None), R) for _ in range(2)]
    assert np.array_equal(one.components_, same.components_)
    assert not np.array_equal(one.singular_values_, other.singular_values_)
    assert not np.array_equal(fresh[0].singular_values_, fresh[1].singular_values_)


def test_private_degrees_are_positive_and_near_the_true_votes() -> None:
    model = quietly(private(item_degrees="private", epsilon=10.0), R)
    rows = DENSE / np.sqrt(np.maximum(DENSE.sum(axis=1, keepdims=True), 1))
    assert model.item_degrees_ is not None
    assert (model.item_degrees_ > 0).all()
    np.testing.assert_allclose(model.item_degrees_, rows.sum(axis=0), rtol=0.2)
    nobody = sp.hstack([R, sp.csr_array((USERS, 1))])
    floored = quietly(private(item_degrees="private"), nobody).item_degrees_
    assert floored is not None
    assert floored.min() > 0


def test_a_saved_space_recommends_the_same(tmp_path: Path) -> None:
    model = quietly(private(item_degrees="private", items=6), Interactions(R, items=tuple("abcdefghijkl")))
    model.save(tmp_path / "space.safetensors")
    space = ItemSpace.load(tmp_path / "space.safetensors")
    assert np.array_equal(space.top(R, n=4), model.recommend(R, n=4))
    assert space.guarantee == model.guarantee_
    assert space.items == model.items_


@pytest.mark.parametrize("normalise", ["filter", "both"])
def test_without_privacy_the_space_is_exact(normalise: str) -> None:
    # Small weights beside large ones: on the grid that private rows are brought to they would be rounded off.
    rng = np.random.default_rng(4)
    held = (rng.random((200, 60)) < np.exp(-np.arange(60) / 20)).astype(float)
    degrees = np.maximum(held.sum(axis=0), 1.0) * np.exp(rng.standard_normal(60))
    weighted = held / np.sqrt(degrees) if normalise == "both" else held
    lengths = np.linalg.norm(weighted, axis=1, keepdims=True)
    rows = weighted / np.where(lengths > 0, lengths, 1.0)
    model = recommender(normalise=normalise, item_degrees=degrees)
    found = model.fit(sp.csr_array(held)).singular_values_
    np.testing.assert_allclose(found, np.linalg.svd(rows, compute_uv=False)[:3], rtol=1e-9)
