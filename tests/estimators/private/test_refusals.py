"""Bad input is refused with the reason, quotes nobody's data, and costs nothing on the ledger."""

import traceback
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from eigenveil import BudgetExceeded, Ledger, PrivatePCA
from eigenveil.data.rows import DenseRows, WeightedRows
from eigenveil.data.tables import as_rows
from estimators.tables import NAMES, private, rows, tables

SECRET = "8675309"
VALUES = rows(50)


def spoiled(value: float) -> Any:
    """Rows with one entry spoiled, far down."""
    values = VALUES.copy()
    values[37, 4] = value
    return values


def sparse(values: Any) -> Any:
    """The same rows, sparse, with the spoiled entry stored."""
    return sp.csr_array(values)


def arrow(values: Any) -> Any:
    """The same rows in an Arrow table."""
    return tables(values)["pyarrow"]


def refused(pca: PrivatePCA, table: Any, message: str) -> None:
    """The fit raises a `ValueError` that matches, nothing of it quotes the secret, and nothing was charged or learned."""
    with pytest.raises(ValueError, match=message) as caught:
        pca.fit(table)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    if isinstance(pca.ledger, Ledger):
        assert pca.ledger.charges == ()
    assert not hasattr(pca, "components_")


def with_ledger(n_components: Any = 2, **choices: Any) -> PrivatePCA:
    """An estimator with a ledger that could pay."""
    return private(n_components, **({"ledger": Ledger(epsilon=3.0, delta=1e-6)} | choices))


TABLES: dict[str, tuple[Any, str]] = {
    "NaN": (spoiled(np.nan), "X contains NaN. Give a fit a rule for missing values"),
    "inf": (spoiled(np.inf), "Input X contains infinity"),
    "minus inf, float32": (spoiled(-np.inf).astype(np.float32), "Input X contains infinity"),
    "sparse NaN": (sparse(spoiled(np.nan)), "X contains NaN. Give a fit a rule for missing values"),
    "sparse inf": (sparse(spoiled(np.inf)), "Input X contains infinity"),
    "pandas NaN": (
        pd.DataFrame(spoiled(np.nan), columns=NAMES),
        f"column '{NAMES[4]}' has missing values",
    ),
    "pandas NA": (
        pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [1, 2, 3]}),
        "column 'a' has missing values",
    ),
    "pandas inf": (pd.DataFrame(spoiled(np.inf), columns=NAMES), f"column '{NAMES[4]}' has infinite values"),
    "arrow NaN": (arrow(spoiled(np.nan)), f"column '{NAMES[4]}' has missing values"),
    "arrow inf": (arrow(spoiled(np.inf)), f"column '{NAMES[4]}' has infinite values"),
    "arrow null": (pa.table({"a": [1, None, 3], "b": [1, 2, 3]}), "column 'a' has missing values"),
    "polars null": (pl.DataFrame({"a": [1, None, 3], "b": [1, 2, 3]}), "column 'a' has missing values"),
    "polars NaN": (tables(spoiled(np.nan))["polars"], f"column '{NAMES[4]}' has missing values"),
    "batch NaN": (tables(spoiled(np.nan))["pyarrow batch"], f"column '{NAMES[4]}' has missing values"),
    "rows NaN": (DenseRows(spoiled(np.nan)), "X contains NaN or infinity"),
    "sparse rows inf": (as_rows(sparse(spoiled(np.inf))), "X contains NaN or infinity"),
    "no rows": (VALUES[:0], "0 sample"),
    "no sparse rows": (sparse(VALUES[:0]), "0 sample"),
    "no arrow rows": (arrow(VALUES[:0]), r"X has 0 sample\(s\)"),
    "no rows in blocks": (DenseRows(VALUES[:0]), r"X has 0 sample\(s\)"),
    "no table": (pa.table({}), "X has no columns left to analyse"),
    "one row": (VALUES[:1], "1 sample"),
    "one sparse row": (sparse(VALUES[:1]), "1 sample"),
    "one arrow row": (arrow(VALUES[:1]), r"X has 1 sample\(s\)"),
    "one column": (VALUES[:, :1], "1 feature"),
    "one sparse column": (sparse(VALUES[:, :1]), "1 feature"),
    "one arrow column": (arrow(VALUES).select(["age"]), "at least 2 columns|at most the number of columns"),
    "one dimension": (VALUES[0], "Expected 2D array"),
    "three dimensions": (VALUES[None], "Found array with dim 3"),
    "complex": (VALUES + 0j, "Complex data not supported: X must hold real numbers"),
    "complex list": ([[1j, 2.0], [3.0, 4.0]], "Complex data not supported: X must hold real numbers"),
    "sparse complex": (sparse(VALUES * 1j), "Complex data not supported"),
    "complex rows in blocks": (DenseRows(VALUES * 1j), "X must hold real numbers, got dtype complex128"),
    "sparse complex rows": (as_rows(sparse(VALUES * 1j)), "X must hold real numbers, got dtype complex128"),
    "objects in blocks": (DenseRows(np.full((3, 2), SECRET, dtype=object)), "must hold real numbers, got dtype object"),
    "text objects": (np.array([[1.0, "x" + SECRET], [2.0, 3.0]], dtype=object), "X must hold real numbers"),
    "text": (np.array([["1", "x" + SECRET], ["2", "3"]]), "not compatible with arrays of bytes/strings"),
    "pandas text": (pd.DataFrame({"a": [1, 2], "note": ["x" + SECRET, "y"]}), r"these do not: note \(text\)"),
    "arrow text": (pa.table({"a": [1, 2], "note": ["x" + SECRET, "y"]}), r"these do not: note \(text\)"),
    "polars text": (pl.DataFrame({"a": [1, 2], "note": ["x" + SECRET, "y"]}), "these do not: note"),
    "dates": (np.array([["2020-01-01"] * 2] * 3, dtype="M8[D]"), "X must hold real numbers, got dtype datetime64"),
    "nothing": (None, "Expected 2D array|array-like"),
    "a word": ("table.csv", "Expected 2D array|dtype='numeric'"),
}


@pytest.mark.parametrize(("table", "message"), TABLES.values(), ids=TABLES.keys())
@pytest.mark.parametrize("method", ["covariance", "power"])
def test_tables_that_cannot_be_fitted_are_refused_before_they_cost(table: Any, message: str, method: Any) -> None:
    refused(with_ledger(1, method=method), table, message)
    refused(PrivatePCA(1, epsilon=None, method=method), table, message)


@pytest.mark.parametrize("table", [VALUES[:4], sparse(VALUES[:4]), arrow(VALUES[:4])], ids=["dense", "sparse", "arrow"])
def test_fewer_rows_than_components_are_refused_without_saying_how_many(table: Any) -> None:
    refused(with_ledger(5), table, "X has fewer rows than n_components=5. Ask for fewer components")
    refused(with_ledger(None), table, "X has fewer rows than n_components=6")
    assert with_ledger(4).fit(table).n_components_ == 4


CHOICES: dict[str, tuple[dict[str, Any], str]] = {
    "no components": ({"n_components": 0}, "n_components must be an integer of at least 1, or a fraction .* got 0"),
    "negative components": (
        {"n_components": -1},
        "n_components must be an integer of at least 1, or a fraction .* got -1",
    ),
    "more components than columns": ({"n_components": 7}, "n_components=7 must be at most the number of columns, 6"),
    "one and a half components": (
        {"n_components": 1.5},
        r"an integer of at least 1, or a fraction in \(0, 1\), got 1.5",
    ),
    "fraction one": ({"n_components": 1.0}, r"a fraction in \(0, 1\), got 1.0"),
    "fraction zero": ({"n_components": 0.0}, r"a fraction in \(0, 1\), got 0.0"),
    "fraction NaN": ({"n_components": np.nan}, r"a fraction in \(0, 1\), got nan"),
    "components true": ({"n_components": True}, "n_components must be an integer of at least 1, or .* got True"),
    "components by name": ({"n_components": "mle"}, "n_components must be an integer of at least 1, or .* got 'mle'"),
    "epsilon zero": ({"epsilon": 0}, "epsilon must be positive, got 0"),
    "epsilon negative": ({"epsilon": -1.0}, "epsilon must be positive, got -1.0"),
    "epsilon NaN": ({"epsilon": np.nan}, "epsilon must be a number, got nan"),
    "epsilon infinite": ({"epsilon": np.inf}, "epsilon must be finite; epsilon=None asks for an exact answer"),
    "epsilon text": ({"epsilon": "1"}, "epsilon must be a number, got '1'"),
    "epsilon true": ({"epsilon": True}, "epsilon must be a number, got True"),
    "delta zero": ({"delta": 0}, r"delta must be in \(0, 1\), got 0"),
    "delta one": ({"delta": 1}, r"delta must be in \(0, 1\), got 1"),
    "delta negative": ({"delta": -1e-6}, r"delta must be in \(0, 1\), got -1e-06"),
    "delta NaN": ({"delta": np.nan}, "delta must be a number, got nan"),
    "delta missing": ({"delta": None}, "delta is required for a private fit"),
    "delta text": ({"delta": "small"}, "delta must be a number, got 'small'"),
    "no bound": ({"row_bound": None}, r"row_bound \(or column_bounds\) is required. .* would leak the data"),
    "bound zero": ({"row_bound": 0}, "row_bound must be positive, got 0"),
    "bound negative": ({"row_bound": -2.0}, "row_bound must be positive, got -2.0"),
    "bound NaN": ({"row_bound": np.nan}, "row_bound must be a number, got nan"),
    "bound infinite": ({"row_bound": np.inf}, "row_bound must be finite, got inf"),
    "bound huge": ({"row_bound": 1e61}, "row_bound must be between 1e-60 and 1e.60"),
    "bound tiny": ({"row_bound": 1e-61}, "row_bound must be between 1e-60 and 1e.60"),
    "bound text": ({"row_bound": "auto"}, "row_bound must be a number, or say row_bound='private', got 'auto'"),
    "bound per column": ({"row_bound": [1.0, 2.0]}, "row_bound must be a number"),
    "mean bound negative": ({"mean_bound": -1.0}, "mean_bound must be positive, got -1.0"),
    "mean bound infinite": ({"mean_bound": np.inf}, "mean_bound must be finite"),
    "box of one": ({"column_bounds": 5.0}, r"column_bounds must be a pair \(low, high\)"),
    "box of three": ({"column_bounds": (0, 1, 2)}, r"column_bounds must be a pair \(low, high\)"),
    "box of another width": (
        {"column_bounds": (0.0, np.ones(5))},
        r"high must be a number or 6 numbers, got shape \(5,\)",
    ),
    "box by row": ({"column_bounds": np.zeros((6, 2))}, r"column_bounds must be a pair \(low, high\)"),
    "box upside down": ({"column_bounds": (1.0, -1.0)}, "every low must be at most its high"),
    "box flat": ({"column_bounds": (1.0, 1.0)}, "low equals high in every column"),
    "box NaN": ({"column_bounds": (0.0, np.nan)}, "column_bounds high must be finite"),
    "box infinite": ({"column_bounds": (-np.inf, 1.0)}, "column_bounds low must be finite"),
    "box text": ({"column_bounds": ("low", "high")}, "column_bounds low must be a number or 6 numbers"),
    "box beyond reason": ({"column_bounds": (-1e200, 1e200)}, "column_bounds must lie between -1e.60 and 1e.60"),
    "box too wide": (
        {"column_bounds": (-1e60, 1e60), "row_bound": None, "mean_bound": 1.0},
        "column_bounds must span at most",
    ),
    "box too wide in these units": (
        {"column_bounds": (-1.0, 1.0), "scale": 1e-100, "row_bound": None, "mean_bound": 1.0},
        "column_bounds must span at most",
    ),
    "center of another length": (
        {"center": np.zeros(5)},
        r"center must be 6 numbers, or say center='private' or center=None; got shape \(5,\)",
    ),
    "center a number": ({"center": 0.0}, "center must be numbers, one per column, .* got 0.0"),
    "center by name": (
        {"center": "mean"},
        "center must be numbers, one per column, or say center='private' or center=None, got 'mean'",
    ),
    "center NaN": ({"center": np.full(6, np.nan)}, "center must be finite"),
    "center of text": ({"center": list("abcdef")}, "center must be 6 numbers, or say center='private' or center=None"),
    "origin of another length": ({"origin": np.zeros(7)}, r"origin must be a number or 6 numbers, got shape \(7,\)"),
    "origin infinite": ({"origin": np.full(6, np.inf)}, "origin must be finite"),
    "scale of another length": ({"scale": np.ones((6, 1))}, r"scale must be a number or 6 numbers, got shape \(6, 1\)"),
    "scale zero": ({"scale": [1, 1, 0, 1, 1, 1]}, "every scale must be positive"),
    "scale negative": ({"scale": -1.0}, "every scale must be positive"),
    "scale NaN": ({"scale": np.nan}, "scale must be finite"),
    "scale text": ({"scale": "std"}, "scale must be a number or one per column, or say scale='private', got 'std'"),
    "unknown method": ({"method": "laplace"}, "method must be one of auto, covariance, power, got 'laplace'"),
    "no method": ({"method": None}, "method must be one of auto, covariance, power, got None"),
    "unknown neighbours": ({"neighbours": "swap"}, "neighbours must be one of add-remove, zero-out, replace-one"),
    "entry level": ({"neighbours": "entry"}, "neighbours must be one of"),
    "unknown calibration": ({"calibration": "loose"}, "calibration must be one of exact, paper, got 'loose'"),
    "seed negative": ({"random_state": -1}, "random_state must not be negative, got -1"),
    "seed text": ({"random_state": "0"}, "random_state must be None or an integer, got '0'"),
    "seed fraction": ({"random_state": 0.5}, "random_state must be None or an integer, got 0.5"),
    "oversample negative": ({"oversample": -1}, "oversample must be an integer of at least 0, got -1"),
    "no rounds": ({"rounds": 0}, "rounds must be an integer from 1 to 200, got 0"),
    "rounds fraction": ({"rounds": 2.5}, "rounds must be an integer from 1 to 200, got 2.5"),
    "ledger a number": ({"ledger": 1.0}, "ledger must be an eigenveil.Ledger"),
    "ledger a list": ({"ledger": []}, "ledger must be an eigenveil.Ledger"),
    "too few people": ({"person": ["ann"]}, "person must have one identifier per row"),
    "too many people": ({"person": np.arange(51)}, "person must have one identifier per row"),
    "people in a matrix": ({"person": np.zeros((50, 2))}, r"one identifier per row, got shape \(50, 2\)"),
    "people missing": ({"person": [None, "x" + SECRET] * 25}, "person has missing, blank or placeholder ids"),
    "people NaN": ({"person": np.full(50, np.nan)}, "person has missing, blank or placeholder ids"),
    "unknown person column": ({"person": "who"}, "person names the column 'who', which X does not have"),
    "published noise beyond its proof": (
        {"calibration": "paper", "method": "power", "epsilon": 2.5, "delta": 0.9},
        r"PPM's calibration holds for epsilon <= 4 log\(1/delta\)",
    ),
}


@pytest.mark.parametrize(("choices", "message"), CHOICES.values(), ids=CHOICES.keys())
def test_choices_that_make_no_sense_are_refused_before_they_cost(choices: dict[str, Any], message: str) -> None:
    refused(with_ledger(**choices), VALUES, message)


def test_a_box_of_sparse_rows_must_hold_zero() -> None:
    refused(with_ledger(column_bounds=(1.0, 2.0)), sparse(VALUES), "column_bounds of sparse rows must include zero")


@pytest.mark.parametrize("kind", tables(VALUES))
def test_a_person_column_must_be_there_for_every_fit_and_name_everybody(kind: str) -> None:
    refused(with_ledger(person="who"), tables(VALUES)[kind], "person names the column 'who', which X does not have")
    missing = [None, *["x" + SECRET] * 49]
    refused(with_ledger(person="who"), tables(VALUES, who=missing)[kind], 'person column "who" has missing')
    # A second fit without the column would take every row for a person of its own.
    pca = private(2, person="who").fit(tables(VALUES, who=np.arange(50))[kind])
    with pytest.raises(ValueError, match="person names the column 'who', which X does not have"):
        pca.fit(tables(VALUES)[kind])


def test_a_ledger_that_cannot_pay_refuses_before_anything_is_read() -> None:
    class Untouched:
        """Rows that nobody may read."""

        shape = (50, 6)
        sparse = False

        def blocks(self, size: int) -> Any:
            raise AssertionError(f"somebody read {size} rows")

    small = Ledger(epsilon=0.9, delta=1e-6)
    for method in ("covariance", "power"):
        with pytest.raises(BudgetExceeded, match=r"'this fit' needs mu = 0.2367 .* nothing was released"):
            private(2, ledger=small, method=method).fit(Untouched())
    assert small.charges == ()
    enough = Ledger(epsilon=1.0, delta=1e-6)
    private(2, ledger=enough).fit(VALUES)
    spent = enough.charges
    with pytest.raises(BudgetExceeded):
        private(2, ledger=enough).fit(VALUES)
    assert enough.charges == spent


def test_a_fit_on_the_wrong_columns_is_refused_when_scores_are_asked_for() -> None:
    pca = private(2).fit(VALUES)
    with pytest.raises(ValueError, match="5 features, but PrivatePCA is expecting 6"):
        pca.transform(VALUES[:, :5])
    with pytest.raises(ValueError, match="5 features, but PrivatePCA is expecting 6"):
        pca.transform(sparse(VALUES[:, :5]))
    with pytest.raises(ValueError, match="rows must have 6 columns, as the model does, got 5"):
        pca.transform(DenseRows(VALUES[:, :5]))
    for spoilt in (spoiled(np.nan), sparse(spoiled(np.nan)), DenseRows(spoiled(np.inf))):
        with pytest.raises(ValueError, match=r"X contains (NaN|infinity)"):
            pca.transform(spoilt)
    named = private(2).fit(arrow(VALUES))
    with pytest.raises(ValueError, match=f"X lacks columns of the model: {NAMES[0]}"):
        named.transform(arrow(VALUES).select(NAMES[1:]))
    with pytest.raises(ValueError, match="has missing values"):
        named.transform(arrow(spoiled(np.nan)))
    for wrong in (np.zeros((3, 3)), np.zeros(2)):
        with pytest.raises(ValueError, match=r"scores must have shape \(n, 2\)"):
            pca.inverse_transform(wrong)


def test_sparse_rows_with_a_far_center_are_refused_before_they_cost() -> None:
    """A column of time stamps, say: centring it implicitly would lose the sensitivity to rounding."""
    stamps = sp.csr_array(np.column_stack([np.full(50, 1.7e9), np.arange(50.0), np.ones(50)]))
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    choices: list[dict[str, Any]] = [
        {"center": np.array([1.7e9, 0.0, 0.0])},
        {"origin": np.array([1.7e9, 0.0, 0.0])},
        {"mean_bound": 1e9},
        {"column_bounds": (0, 2e9)},
    ]
    for choice in choices:
        with pytest.raises(ValueError, match=r"sparse rows .*100 times"):
            PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=1000.0, ledger=ledger, **choice).fit(stamps)
        assert ledger.charges == ()


def test_weights_above_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"every weight must lie in \(0, 1\]"):
        WeightedRows(DenseRows(np.eye(3)), np.array([1.0, 1e6, 1.0]))


def test_identifiers_of_several_types_are_refused() -> None:
    for person in ([1, "a", 2.0], [2**53, 2**53 + 1, 0.5], (1, 1.0, True)):
        with pytest.raises(ValueError, match="identifiers of one type"):
            PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=1.0, person=person).fit(np.eye(3))


def test_masked_arrays_are_refused() -> None:
    masked = np.ma.masked_array(np.eye(3), mask=np.eye(3, dtype=bool))
    with pytest.raises(ValueError, match="masked"):
        PrivatePCA(2, epsilon=None).fit(masked)


def test_one_dimension_is_refused_without_quoting_the_data() -> None:
    for wrong in (np.array([987654.0, 2, 3]), [987654.0, 2.0], np.float64(987654.0)):
        with pytest.raises(ValueError, match="Reshape your data") as caught:
            PrivatePCA(2, epsilon=None).fit(wrong)
        assert "987654" not in str(caught.value) and "9.87" not in str(caught.value)
