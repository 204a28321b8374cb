"""Rows of odd types and sizes: accepted or refused by their type alone, and never a warning of numpy about a single number.

A warning that comes with one table and not with its neighbour reveals a person. So does an error in its place, if the caller
has asked numpy to raise.
"""

import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from each import each
from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, PrivateRecommender, StreamingPCA, find_bounds, find_column_bounds
from eigenveil.data.rows import FILL_PUBLICLY, DenseRows, Symmetric
from eigenveil.errors import ParameterError, ParameterWarning
from eigenveil.estimators.bounds.spectrum import released_spectrum

BASE = np.random.default_rng(0).standard_normal((300, 4)) * [4.0, 2.0, 1.0, 1.0]
GIVEN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "random_state": 0}
BOUND: dict[str, Any] = GIVEN | {"row_bound": 9.0}
WIDE = np.dtype(np.longdouble).itemsize > 8


def thirds(X: Any) -> list[Any]:
    return [X[:100], X[100:200], X[200:]]


def streamed(X: Any, **choices: Any) -> Any:
    pca = StreamingPCA(2, block_size=50, **(BOUND | choices)).fit(X)
    return pca.partial_fit(X).sync().transform(X)


FITS: dict[str, Callable[[Any], Any]] = {
    "private": lambda X: PrivatePCA(2, **BOUND).fit(X).transform(X),
    "private, scaled": lambda X: PrivatePCA(2, mean_bound=3.0, scale=[1, 2, 1, 1], **BOUND).fit(X).transform(X),
    "columns cut": lambda X: PrivatePCA(2, column_bounds=(-3, 3), **GIVEN).fit(X).transform(X),
    "power": lambda X: PrivatePCA(2, method="power", **BOUND).fit(X).transform(X),
    "stream": streamed,
    "stream, blocks": lambda X: streamed(X, publish="block"),
    "stream, tree": lambda X: streamed(X, publish="continual", horizon=1000),
    "sites": lambda X: FederatedPCA(2, **BOUND).fit(thirds(X)).transform(X),
    "sites, power": lambda X: FederatedPCA(2, trust="site", method="power", **BOUND).fit(thirds(X)).transform(X),
    "masked": lambda X: FederatedPCA(2, trust="masked", **BOUND).fit(thirds(X)).transform(X),
    "peers": lambda X: GossipPCA(2, graph="ring", **BOUND).fit(thirds(X)).transform(X),
    "bounds": lambda X: find_bounds(X, **GIVEN),
    "column bounds": lambda X: find_column_bounds(X, **GIVEN),
    "spectrum": lambda X: released_spectrum(X, **BOUND),
}


def put(entry: Any, dtype: Any = np.float64, *, rows: int = 1) -> Any:
    """The rows as this type, with one entry, or all of a few rows, of this size."""
    values = BASE.astype(dtype)
    values[0, 0] = entry
    values[1 : 1 + rows] = entry
    return values


def read_only() -> Any:
    values = BASE.copy()
    values.flags.writeable = False
    return values


TAKEN: dict[str, Callable[[], Any]] = {
    "largest float64": lambda: put(1.7e308),
    "smallest float64": lambda: put(-5e-324),
    "largest float32": lambda: put(3.4e38, np.float32),
    "smallest float32": lambda: put(1e-45, np.float32),
    "largest float16": lambda: put(65504, np.float16),
    "smallest float16": lambda: put(6e-8, np.float16),
    "int64": lambda: put(-(2**63), np.int64),
    "uint64": lambda: put(2**64 - 1, np.uint64),
    "int8": lambda: put(-128, np.int8),
    "bool": lambda: BASE > 0,
    "big endian": lambda: put(1e300, ">f8"),
    "big endian int": lambda: put(7, ">i4"),
    "read-only": read_only,
    "fortran": lambda: np.asfortranarray(put(1e308)),
    "every second row": lambda: np.repeat(put(1e308), 2, axis=0)[::2],
    "objects": lambda: put(2**70, object),
    "objects of many types": lambda: put(Decimal("1e-400"), object),
    "sparse": lambda: sp.csr_array(put(1e308)),
    "sparse float32": lambda: sp.csr_array(put(1e-45, np.float32)),
}
# Those that take one table; the others take one for each site.
WHOLE = [name for name in FITS if name not in ("sites", "sites, power", "masked", "peers")]


def quietly(act: Callable[[], Any]) -> None:
    """With every warning an error, and again with every floating-point event one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Said of released numbers, and no sign of what is in a row.
        warnings.simplefilter("ignore", ParameterWarning)
        act()
        with np.errstate(all="raise"):
            act()


@each("odd", TAKEN)
@each("fit", FITS)
def test_rows_of_any_size_are_taken_in_silence(fit: str, odd: str) -> None:
    X = TAKEN[odd]()
    quietly(lambda: FITS[fit](X))


@pytest.mark.parametrize("fit", WHOLE)
def test_rows_read_in_blocks_are_taken_in_silence(fit: str) -> None:
    for X in (put(1.7e308), put(5e-324), put(3.4e38, np.float32)):
        quietly(lambda X=X: FITS[fit](DenseRows(X)))  # type: ignore[misc]


@pytest.mark.skipif(not WIDE, reason="longdouble is float64 here")
@each("number", ["1.0", "1e4000", "1e-4900"])
@each("fit", FITS)
def test_floats_wider_than_float64_are_refused_by_their_type(fit: str, number: str) -> None:
    """Whatever the numbers are: of those that float64 cannot hold, numpy would speak when it converts them."""
    wide = put(np.longdouble(number), np.longdouble)
    forms = [wide, sp.csr_array(wide), *([DenseRows(wide)] if fit in WHOLE else [])]
    for X in forms:
        with pytest.raises(ValueError, match="which is wider than float64: convert it first"):
            quietly(lambda X=X: FITS[fit](X))  # type: ignore[misc]


@pytest.mark.skipif(not WIDE, reason="longdouble is float64 here")
def test_wide_matrices_interactions_and_scored_rows_are_refused_too() -> None:
    wide = np.full((3, 3), np.longdouble("1e4000"))
    ones = PrivateRecommender(2, epsilon=1.0, delta=1e-6, random_state=0)
    pca = PrivatePCA(2, **BOUND).fit(BASE)
    acts: list[Callable[[], Any]] = [
        lambda: Symmetric(wide, people=3),
        lambda: ones.fit(wide),
        lambda: pca.transform(put(np.longdouble("1e4000"), np.longdouble)),
        lambda: StreamingPCA(2, **BOUND).fit(BASE).partial_fit(put(np.longdouble("1e4000"), np.longdouble)),
    ]
    for act in acts:
        with pytest.raises(ValueError, match="wider than float64"):
            quietly(act)


@pytest.mark.parametrize(
    "entry", [10**400, np.longdouble("1e4000"), Decimal("1e500"), np.inf], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("fit", ["private", "stream", "sites", "peers", "bounds"])
def test_objects_that_float64_cannot_hold_are_infinite_and_said_to_be(fit: str, entry: Any) -> None:
    with pytest.raises(ValueError, match=r"contains infinity or a value too large for dtype.'float64'.*$"):
        quietly(lambda: FITS[fit](put(entry, object)))


@each("fit", FITS)
@each("kind", ["complex", "structured", "0-d", "1-d", "text", "dates"])
def test_what_is_not_a_table_of_real_numbers_is_refused(fit: str, kind: str) -> None:
    X: Any = {
        "complex": BASE + 1j,
        "structured": np.zeros(300, dtype=[("a", float), ("b", float)]),
        "0-d": np.array(3.0),
        "1-d": BASE[:, 0],
        "text": BASE.astype(str),
        "dates": (BASE * 1000).astype(np.int64).astype("datetime64[s]"),
    }[kind]
    if fit in WHOLE or kind != "0-d":
        with pytest.raises((ValueError, TypeError)):
            quietly(lambda: FITS[fit](X))


def test_the_caller_keeps_what_was_asked_of_numpy() -> None:
    with np.errstate(all="raise"):
        PrivatePCA(2, **BOUND).fit(put(1.7e308))
        assert set(np.geterr().values()) == {"raise"}
        with pytest.raises(ValueError, match=r"finite|too large"):
            PrivatePCA(2, epsilon=None).fit(put(1.7e308))
        assert set(np.geterr().values()) == {"raise"}


@pytest.mark.parametrize(
    "fit",
    [
        lambda X: PrivatePCA(2, **BOUND).fit(X),
        lambda X: PrivatePCA(2, **BOUND).fit(BASE).transform(X),
        lambda X: FederatedPCA(2, **BOUND).fit(thirds(X)),
        lambda X: GossipPCA(2, graph="complete", **BOUND).fit(thirds(X)),
        lambda X: find_bounds(X, **GIVEN),
        lambda X: find_column_bounds(X, **GIVEN),
        lambda X: released_spectrum(X, **BOUND),
    ],
    ids=["fit", "transform", "sites", "peers", "bounds", "columns", "spectrum"],
)
@pytest.mark.parametrize("store", [np.asarray, pd.DataFrame, sp.csr_array], ids=["array", "pandas", "sparse"])
def test_no_error_about_missing_values_recommends_an_imputer(fit: Any, store: Any) -> None:
    gap = BASE.copy()
    gap[7, 1] = np.nan
    with pytest.raises(ValueError, match="contains NaN") as caught:
        fit(store(gap))
    said = str(caught.value)
    assert str(ParameterError(FILL_PUBLICLY)) in said
    assert "sklearn" not in said
    assert "scikit" not in said
