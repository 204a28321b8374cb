"""Interactions from memory: the same matrix from everything that says the same, and no private value in an error."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given

from each import each
from eigenveil.linalg import Array
from eigenveil.recommend.interactions import Interactions, checked_interactions
from recommend.histories_of_users import SECRET, SMALL, histories, is_canonical, refuses

SPARSE = [
    sp.csr_array, sp.csr_matrix, sp.csc_array, sp.csc_matrix, sp.coo_array, sp.coo_matrix,
    sp.lil_array, sp.dok_array, sp.dia_array, sp.bsr_array, sp.bsr_matrix,
]  # fmt: skip
DTYPES = ["bool", "uint8", "int8", "int32", "int64", "uint64", "float32", "float64"]


@each("store", [np.asarray, np.asfortranarray, *SPARSE])
@each("dtype", DTYPES)
def test_every_kind_of_matrix_becomes_the_same_ones(store: Callable[[Any], Any], dtype: str) -> None:
    found = checked_interactions(store(SMALL.astype(dtype)))
    assert is_canonical(found) and np.array_equal(found.toarray(), SMALL)


@given(dense=histories())
def test_a_matrix_survives_as_it_is(dense: Array) -> None:
    for given_ in (dense, sp.coo_array(dense), sp.csc_array(dense)):
        found = checked_interactions(given_)
        assert is_canonical(found) and np.array_equal(found.toarray(), dense)


COLUMNS = dict(zip("abcd", SMALL.T, strict=True))
TABLES: dict[str, Any] = {
    "pandas": pd.DataFrame(COLUMNS),
    "pandas numbered": pd.DataFrame(SMALL),
    "pandas truth values": pd.DataFrame(COLUMNS).astype(bool),
    "pandas mixed": pd.DataFrame(COLUMNS).astype({"a": bool, "b": float}),
    "pandas nullable": pd.DataFrame(COLUMNS).astype("Int64"),
    "pandas sparse": pd.DataFrame(COLUMNS).astype(pd.SparseDtype("int64", 0)),
    "pandas sparse, filled with ones": pd.DataFrame(COLUMNS).astype(pd.SparseDtype("int64", 1)),
    "pandas sparse in part": pd.DataFrame(COLUMNS).astype({"a": pd.SparseDtype("int64", 0)}),
    "polars": pl.DataFrame(COLUMNS),
    "polars truth values": pl.DataFrame({name: column.astype(bool) for name, column in COLUMNS.items()}),
    "pyarrow": pa.table(COLUMNS),
    "pyarrow batch": pa.RecordBatch.from_pydict(COLUMNS),
    "matrix": np.asmatrix(SMALL),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_tables_with_a_column_for_each_item_are_taken(table: Any) -> None:
    found = checked_interactions(table)
    assert is_canonical(found) and np.array_equal(found.toarray(), SMALL)


def test_dense_rows_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigenveil.recommend.interactions._BLOCK_NUMBERS", 8)
    dense = (np.random.default_rng(0).random((23, 4)) < 0.4).astype(np.int64)
    for table in (dense, pl.DataFrame(dense), sp.csr_array(dense)):
        assert np.array_equal(checked_interactions(table).toarray(), dense)
    refuses(lambda: checked_interactions(np.vstack([dense, np.full((1, 4), SECRET)])), "R must be binary")


def test_no_users_are_no_users() -> None:
    for empty in (np.zeros((0, 3)), sp.csr_array((0, 3)), pd.DataFrame({"a": np.zeros(0)}), pa.table({"a": np.zeros(0)})):
        found = checked_interactions(empty)
        assert is_canonical(found) and found.shape == (0, empty.shape[1])


def unsorted_parts() -> sp.csr_array:
    """One user who has item 2 stored twice, item 0 once and item 1 as a zero, in no order."""
    return sp.csr_array((np.array([1, 0, 1, 1]), np.array([2, 1, 0, 2]), np.array([0, 4])), shape=(1, 3))


def test_parts_count_once_and_stored_zeros_not_at_all_and_the_given_matrix_stays() -> None:
    for make in (unsorted_parts, lambda: unsorted_parts().tocoo(), lambda: unsorted_parts().tocoo().astype(bool)):
        given_, untouched = make(), make()
        found = checked_interactions(given_)
        assert is_canonical(found) and found.toarray().tolist() == [[1, 0, 1]] and found.nnz == 2
        assert np.array_equal(given_.data, untouched.data) and given_.dtype == untouched.dtype
        if given_.format == "csr":
            assert np.array_equal(given_.indices, untouched.indices) and given_.nnz == 4
    column = sp.csc_array((np.array([1, 1]), np.array([0, 0]), np.array([0, 2])), shape=(1, 1))
    assert checked_interactions(column).toarray().tolist() == [[1]]


def test_what_comes_back_shares_nothing_with_what_was_given() -> None:
    given_ = sp.csr_array(SMALL.astype(np.float64))
    found = checked_interactions(given_)
    given_.data[:], given_.indices[:] = 9, 0
    assert np.array_equal(found.toarray(), SMALL)
    roomy = sp.csr_array(SMALL.astype(np.float64))
    roomy.data, roomy.indices = np.append(roomy.data, 7.0), np.append(roomy.indices, 0)
    assert np.array_equal(checked_interactions(roomy).toarray(), SMALL) and len(roomy.data) == 5


BINARY = (
    r"R must be binary: 1 where the user has the item and 0 elsewhere. "
    r"Convert ratings with `Interactions.from_ratings\(R, min_rating=...\)`$"
)
FINITE = "R must have no NaN, infinite or missing entries$"
WRONG: dict[str, tuple[Any, str]] = {
    "ratings": (np.array([[1, SECRET], [0, 1]]), BINARY),
    "negative": (np.array([[1, -SECRET], [0, 1]]), BINARY),
    "fractions": (np.array([[1, SECRET + 0.5]]), BINARY),
    "sparse ratings": (sp.csr_array([[1, SECRET]]), BINARY),
    # Their sum is 1, and yet neither is an interaction.
    "halves": (sp.coo_array((np.array([0.5, 0.5]), ([0, 0], [0, 0])), shape=(1, 1)), BINARY),
    "more and less": (sp.coo_array((np.array([SECRET, 1 - SECRET]), ([0, 0], [0, 0])), shape=(1, 1)), BINARY),
    "table of ratings": (pl.DataFrame({"a": [1, SECRET]}), BINARY),
    "pandas of ratings": (pd.DataFrame({"a": [1, SECRET]}), BINARY),
    "NaN": (np.array([[math.nan, 1.0]]), FINITE),
    "infinity": (np.array([[math.inf, SECRET]]), FINITE),
    "sparse NaN": (sp.csr_array(np.array([[math.nan, SECRET]])), FINITE),
    "missing in polars": (pl.DataFrame({"a": [1, None]}), FINITE),
    "missing in pandas": (pd.DataFrame({"a": [1, None]}), FINITE),
    "missing in nullable pandas": (pd.DataFrame({"a": [1, None]}).astype("Int64"), FINITE),
    "one dimension": (np.array([1, 0]), "R must have two dimensions, users and items, got 1$"),
    "three dimensions": (np.zeros((2, 2, 2)), "R must have two dimensions, users and items, got 3$"),
    "sparse of one dimension": (sp.coo_array(np.array([1, 0])), "R must have two dimensions, users and items, got 1$"),
    "no columns": (np.zeros((3, 0)), "R has no columns: it needs one for each item$"),
    "sparse without columns": (sp.csr_array((3, 0)), "R has no columns: it needs one for each item$"),
    "pandas without columns": (pd.DataFrame(index=[0, 1]), "R has no columns: it needs one for each item$"),
    "text": (np.array([["a", str(SECRET)]]), "R must hold real numbers, got dtype <U7$"),
    "complex": (np.array([[1j]]), "R must hold real numbers, got dtype complex128$"),
    "sparse complex": (sp.csr_array(np.array([[1j]])), "R must hold real numbers, got dtype complex128$"),
    "objects": (np.array([[SECRET, None]], dtype=object), "R must hold real numbers, got dtype object$"),
    "table of text": (pl.DataFrame({"a": ["x", str(SECRET)]}), r"R: columns must hold numbers; these do not: a \("),
    "pandas of text": (pd.DataFrame({"a": ["x", str(SECRET)]}), r"R: these columns are not numbers: a \("),
    "pandas objects": (pd.DataFrame({"a": [SECRET, "x"]}), r"R: these columns are not numbers: a \(object\)"),
    "masked": (np.ma.masked_array(SMALL, SMALL == 1), "R is a masked array, and its hidden entries would be used"),
    "list": ([[1, SECRET]], "R must be a sparse matrix, a two-dimensional array or a table, got list$"),
    "nothing": (None, "R must be a sparse matrix, a two-dimensional array or a table, got NoneType$"),
    "series": (pd.Series([1, 0]), "R must be a sparse matrix, a two-dimensional array or a table, got Series$"),
    "file": ("a.csv", "R must be a sparse matrix, a two-dimensional array or a table, got str$"),
}  # fmt: skip


@each(("given_", "message"), WRONG.values())
def test_what_is_no_binary_matrix_is_refused_without_being_quoted(given_: Any, message: str) -> None:
    refuses(lambda: checked_interactions(given_), message)
    refuses(lambda: checked_interactions(given_, name="histories"), re.sub("^R", "histories", message))


def test_no_message_about_entries_says_where_they_are_or_how_many() -> None:
    for wrong in (np.full((37, 3), 2.0), sp.csr_array(np.full((37, 3), math.nan))):
        refuses(partial(checked_interactions, wrong), "R must", 37, 111)


@pytest.mark.parametrize(
    "change", [{"indices": np.array([0, SECRET])}, {"indptr": np.array([0, 2, 1])}, {"indices": np.array([0, -1])}]
)
def test_a_sparse_matrix_whose_indices_point_elsewhere_is_refused(change: dict[str, Any]) -> None:
    for kind in (sp.csr_array, sp.csc_array):
        matrix = kind(np.eye(2))
        for name, array in change.items():
            setattr(matrix, name, array)
        refuses(partial(checked_interactions, matrix), "R is a damaged sparse matrix")


# Ratings.


def test_ratings_from_a_threshold_on_are_interactions() -> None:
    ratings = np.array([[5.0, 0.0, 3.0], [2.9, 99.0, 4.0]])
    kept = [[1, 0, 1], [0, 0, 1]]
    for table in (ratings, pd.DataFrame(ratings), pl.DataFrame(ratings), sp.csr_array(ratings), sp.coo_array(ratings)):
        found = Interactions.from_ratings(table, min_rating=3, missing=99)
        assert is_canonical(found.matrix) and found.matrix.toarray().tolist() == kept
        assert found.users is None and found.items is None
    assert Interactions.from_ratings(ratings, min_rating=3).matrix.toarray().tolist() == [[1, 0, 1], [0, 1, 1]]
    assert Interactions.from_ratings(sp.csr_array(ratings), min_rating=-9).matrix.nnz == 5
    # Zeros of an array are ratings like others, where a code says which are not.
    assert Interactions.from_ratings(ratings, min_rating=0, missing=99).matrix.toarray().tolist() == [[1, 1, 1], [1, 0, 1]]


def test_stored_zeros_are_ratings_and_the_best_of_several_counts() -> None:
    stored = sp.coo_array((np.array([0.0, -3.0, 2.0, 1.0]), ([0, 0, 1, 1], [0, 1, 0, 0])), shape=(2, 2))
    assert Interactions.from_ratings(stored, min_rating=0).matrix.toarray().tolist() == [[1, 0], [1, 0]]
    # Added up they would be 3.
    assert Interactions.from_ratings(stored, min_rating=3).matrix.nnz == 0


def test_missing_ratings_may_be_nan() -> None:
    ratings = np.array([[5.0, math.nan], [1.0, 4.0]])
    for table in (ratings, pd.DataFrame(ratings), pl.DataFrame(ratings), pl.DataFrame({"a": [5.0, 1.0], "b": [None, 4.0]})):
        found = Interactions.from_ratings(table, min_rating=3, missing=math.nan)
        assert found.matrix.toarray().tolist() == [[1, 0], [0, 1]]
        refuses(partial(Interactions.from_ratings, table, min_rating=3), "ratings have NaN, infinite or")
        refuses(partial(Interactions.from_ratings, table, min_rating=3, missing=99), "ratings have NaN")
    whole = Interactions.from_ratings(np.array([[5, 1]]), min_rating=3, missing=math.nan)
    assert whole.matrix.toarray().tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"min_rating": 0}, "missing is required with min_rating=0, because zeros would count"),
        ({"min_rating": math.nan}, "min_rating must be a finite number, got nan"),
        ({"min_rating": "3"}, "min_rating must be a finite number, got '3'"),
        ({"min_rating": True}, "min_rating must be a finite number, got True"),
        ({"min_rating": 3, "missing": "none"}, "missing must be None or a number, got 'none'"),
    ],
)
def test_thresholds_that_are_none_are_refused(how: dict[str, Any], message: str) -> None:
    refuses(lambda: Interactions.from_ratings(np.array([[float(SECRET)]]), **how), message)


# Names.


def test_rows_and_columns_go_by_name_and_by_number() -> None:
    plays = Interactions(sp.csr_array(SMALL), ("zoë", "7", "ann"), ("a, b", "b", "ü", "3"))
    users: list[tuple[Any, int]] = [("zoë", 0), ("7", 1), (2, 2), (np.int64(0), 0)]
    for user, index in users:
        row = plays.row(user)
        assert is_canonical(row) and row.shape == (1, 4) and row.toarray().tolist() == [SMALL[index].tolist()]
    assert plays.columns(["ü", "a, b", 3]).tolist() == [2, 0, 3]
    assert plays.columns([]).tolist() == []
    refuses(lambda: plays.row("bob"), "^no user is named 'bob'$", "zoë", "ann")
    refuses(lambda: plays.row(3), "^no user has number 3: rows count from 0$")
    refuses(lambda: plays.row(-1), "^no user has number -1: rows count from 0$")
    refuses(lambda: plays.row(1.0), "^user must be a name or a row number, got 1.0$")  # type: ignore[arg-type]
    refuses(lambda: plays.columns(["b", "x"]), "^no item is named 'x'$", "zoë")
    refuses(lambda: plays.columns([4]), "^no item has number 4: columns count from 0 to 3$")
    refuses(lambda: plays.columns([True]), "^items must be names or column numbers, got True$")
    refuses(lambda: plays.columns("b"), "^items must be a list of names, not a single string$")
    bare = Interactions(SMALL)
    assert bare.row(2).toarray().tolist() == [SMALL[2].tolist()] and bare.columns([1]).tolist() == [1]
    refuses(lambda: bare.row("0"), "^the users have no names: pass a row number$")
    refuses(lambda: bare.columns(["0"]), "^the items have no names: pass column numbers$")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"users": ("a", "b", "8675309", "8675309")}, "^users must have one name for each user in the matrix$"),
        ({"users": ("a", "8675309", "8675309")}, "^users must have distinct names$"),
        ({"users": ["a", "b", "c"]}, "^users must be None or a tuple of names, each a string$"),
        ({"users": ("a", "b", 8675309)}, "^users must be None or a tuple of names, each a string$"),
        ({"items": ("a", "b", "c")}, "^items must have one name for each item in the matrix$"),
        ({"items": ("a", "b", "b", "c")}, "^items must have distinct names$"),
    ],
)
def test_names_that_do_not_go_with_the_matrix_are_refused(names: dict[str, Any], message: str) -> None:
    refuses(lambda: Interactions(SMALL, **names), message)
    refuses(lambda: Interactions(SMALL * 2), "matrix must be binary")


def test_interactions_are_taken_where_a_matrix_is_and_print_nothing_private() -> None:
    plays = Interactions(SMALL, users=("ann", "bob", "eve"))
    assert checked_interactions(plays) is plays.matrix
    assert repr(plays) == str(plays) == "Interactions(4 items)"
    with pytest.raises(AttributeError):
        plays.users = None  # type: ignore[misc]
