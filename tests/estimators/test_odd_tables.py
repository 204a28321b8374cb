"""Tables with odd columns and odd names, into every estimator: taken, or refused by name in words of our own."""

import datetime as dt
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, PrivateRecommender, StreamingPCA, find_bounds
from eigenveil.errors import ColumnsError, EigenveilError

N = 12
BASE = np.random.default_rng(0).standard_normal((N, 2))
GIVEN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 9.0, "random_state": 0}
# A value that must not be in any message.
SECRET = 987654321


def objects(value: Any, others: Any = 1.0) -> Any:
    column = pd.Series([others] * N, dtype=object)
    column.iat[3] = value
    return column


# Columns of objects and of pandas' own types. True for those that are numbers, and so are taken.
PANDAS: dict[str, tuple[Callable[[], Any], bool]] = {
    "whole, beyond 64 bits": (lambda: objects(2**70, 1), True),
    "whole, below 64 bits": (lambda: objects(-(2**63) - 1, 1), True),
    "whole, beyond float64": (lambda: objects(SECRET * 10**400), False),
    "decimals": (lambda: objects(Decimal("1.5")), True),
    "decimal infinity": (lambda: objects(Decimal("Infinity"), Decimal(1)), False),
    "decimal NaN that signals": (lambda: objects(Decimal("sNaN"), Decimal(1)), False),
    "fractions": (lambda: objects(Fraction(1, 3)), True),
    "complex among numbers": (lambda: objects(SECRET + 2j), False),
    "complex": (lambda: np.full(N, SECRET + 2j), False),
    "lists": (lambda: pd.Series([[SECRET, 2]] * N), False),
    "None among numbers": (lambda: objects(None), False),
    "NA among numbers": (lambda: objects(pd.NA), False),
    "NaT among numbers": (lambda: objects(pd.NaT), False),
    "only NA": (lambda: pd.Series([pd.NA] * N, dtype=object), False),
    "text among numbers": (lambda: objects(f"{SECRET}x"), False),
    "bytes": (lambda: pd.Series([b"987654321x"] * N), False),
    "anything": (lambda: objects(object()), False),
    "truth values and gaps": (lambda: objects(None, others=True), False),
    "categories": (lambda: pd.Categorical(["u", "v"] * (N // 2)), False),
    "categories of numbers": (lambda: pd.Categorical([SECRET, 2] * (N // 2)), False),
    "durations": (lambda: pd.to_timedelta(range(N), unit="s"), False),
    "periods": (lambda: pd.period_range("2020", periods=N), False),
    "intervals": (lambda: pd.interval_range(0, N), False),
    "sparse": (lambda: pd.arrays.SparseArray([0.0, 1.0] * (N // 2)), True),
    "float16": (lambda: BASE[:, 0].astype("float16"), True),
    "Arrow lists": (lambda: pd.Series([[1]] * N, dtype=pd.ArrowDtype(pa.list_(pa.int64()))), False),
}
ARROW: dict[str, Callable[[], Any]] = {
    "list": lambda: pa.array([[SECRET]] * N),
    "struct": lambda: pa.array([{"u": SECRET}] * N),
    "map": lambda: pa.array([[("u", SECRET)]] * N, pa.map_(pa.string(), pa.int64())),
    "dictionary": lambda: pa.array([SECRET] * N).dictionary_encode(),
    "duration": lambda: pa.array([dt.timedelta(seconds=SECRET)] * N),
    "months": lambda: pa.array([(1, 2, 3)] * N, pa.month_day_nano_interval()),
    "time": lambda: pa.array([dt.time(1)] * N),
    "binary": lambda: pa.array([b"987654321"] * N),
    "view of text": lambda: pa.array(["987654321"] * N, pa.string_view()),
    "run ends": lambda: pa.RunEndEncodedArray.from_arrays([N], [1.0]),
    "union": lambda: pa.UnionArray.from_sparse(pa.array([0] * N, pa.int8()), [pa.array([1.0] * N)]),
    "uuid": lambda: pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16] * N, pa.binary(16))),
}
FITS: dict[str, Callable[[Any], Any]] = {
    "exact": lambda X: PrivatePCA(1, epsilon=None).fit(X).transform(X),
    "private": lambda X: PrivatePCA(1, **GIVEN).fit(X),
    "stream": lambda X: StreamingPCA(1, **GIVEN).fit(X).partial_fit(X),
    "sites": lambda X: FederatedPCA(1, **GIVEN).fit([X, X, X]),
    "peers": lambda X: GossipPCA(1, graph="ring", **GIVEN).fit([X, X, X]),
    "bounds": lambda X: find_bounds(X, epsilon=1.0, delta=1e-6, random_state=0),
}
MODEL = PrivatePCA(1, epsilon=None).fit(pd.DataFrame({"a": BASE[:, 0], "b": BASE[:, 1], "x": BASE[:, 0]}))
OTHERS: dict[str, Callable[[Any], Any]] = {
    "one-hot": lambda X: PrivatePCA(1, one_hot={"x": ["u", "1"]}, **GIVEN).fit(X),
    "person": lambda X: PrivatePCA(1, person="x", **GIVEN).fit(X),
    "person in a stream": lambda X: StreamingPCA(1, person="x", **GIVEN).fit(X),
    "recommend": lambda X: PrivateRecommender(1, epsilon=1.0, delta=1e-6, random_state=0).fit(X),
    "model": MODEL.model_.transform,
    "back": MODEL.inverse_transform,
}


def frame(column: Any) -> Any:
    return pd.DataFrame({"a": BASE[:, 0], "b": BASE[:, 1], "x": column})


def tried(act: Callable[[Any], Any], X: Any) -> Exception | None:
    """The error, None if there is none. Any that is not of our own making goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            act(X)
        except (ValueError, EigenveilError) as error:
            assert str(SECRET) not in str(error)
            # Errors of others say what their own functions expect, and are of no use to whoever has a table.
            assert not any(word in str(error) for word in ("Arrow", "dtype=", "float()", "C long", "PyLong", "ndarray"))
            return error
    return None


@pytest.mark.parametrize("kind", PANDAS)
def test_a_column_of_pandas_is_taken_or_named(kind: str) -> None:
    column, number = PANDAS[kind]
    for name, fit in FITS.items():
        error = tried(fit, frame(column()))
        assert (error is None) == number, (name, error)
        assert error is None or "x" in str(error)
        # One table of a fit has the error itself, with the column in it. Sites and peers put their own name first.
        assert error is None or name in ("sites", "peers") or (isinstance(error, ColumnsError) and error.columns == ("x",))
    for fit in OTHERS.values():
        tried(fit, frame(column()))


def test_gaps_among_objects_are_gaps() -> None:
    expected = PrivatePCA(1, missing="fill", missing_fill=0.0, **GIVEN).fit(frame(objects(np.nan)))
    for gap in (None, pd.NA, pd.NaT, Decimal("NaN"), Decimal("sNaN")):
        found = PrivatePCA(1, missing="fill", missing_fill=0.0, **GIVEN).fit(frame(objects(gap)))
        assert np.array_equal(found.components_, expected.components_)


def test_a_table_of_objects_is_left_as_it_was() -> None:
    X = frame(objects(2**70, 1))
    PrivatePCA(1, epsilon=None).fit(X)
    assert X["x"].dtype == object
    assert X["x"].iat[3] == 2**70


@pytest.mark.parametrize("kind", ARROW)
def test_a_column_of_arrow_is_named(kind: str) -> None:
    X = pa.table({"a": BASE[:, 0], "b": BASE[:, 1], "x": ARROW[kind]()})
    for fit in FITS.values():
        error = tried(fit, X)
        assert error is not None
        assert "x (" in str(error)
    for fit in OTHERS.values():
        tried(fit, X)


def test_columns_of_polars_are_named() -> None:
    odd = {"lists": [[1, 2]] * N, "structs": [{"u": 1}] * N, "objects": pl.Series([object()] * N, dtype=pl.Object)}
    X = pl.DataFrame({"a": BASE[:, 0], "b": BASE[:, 1], **odd})
    error = tried(FITS["private"], X)
    assert isinstance(error, ColumnsError)
    assert error.columns == tuple(odd)
    lazy = tried(FITS["private"], X.lazy())
    assert isinstance(lazy, ColumnsError)
    assert lazy.columns == tuple(odd)


NAMES: dict[str, list[Any]] = {
    "numbers": [0, 1],
    "pairs": [("a", 1), ("a", 2)],
    "dates": list(pd.date_range("2020", periods=2)),
    "commas": ["a,b", "c;d"],
    "lines and escapes": ["a\nb", "\x1b[2J"],
    "braces": ["{a}", "{"],
    "patterns": ["*", "["],
    "empty": ["", "b"],
    "very long": ["a" * 10_000, "b" * 10_000],
    "words of Python": ["self", "lambda"],
}


@pytest.mark.parametrize("kind", NAMES)
def test_any_names_are_taken(kind: str) -> None:
    for values in (BASE, BASE.astype(object)):
        X = pd.DataFrame(values, columns=pd.Index(NAMES[kind], tupleize_cols=False))
        for fit in FITS.values():
            assert tried(fit, X) is None


@pytest.mark.parametrize("shape", [(0, 0), (0, 2), (1, 2), (3, 0), (3, 1)])
@pytest.mark.parametrize("store", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_small_tables_are_taken_or_refused(store: Any, shape: tuple[int, int]) -> None:
    X = store({f"c{i}": np.ones(shape[0]) for i in range(shape[1])})
    for fit in FITS.values():
        tried(fit, X)
    assert tried(FITS["exact"], X) is not None
