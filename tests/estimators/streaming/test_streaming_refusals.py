"""What a stream cannot use is refused with the reason, quotes nobody's data, costs nothing, and leaves no trace."""

import io
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from each import each
from eigenveil import Ledger
from eigenveil.data.frames import as_rows
from eigenveil.data.rows import DenseRows, WeightedRows
from estimators.streaming.streams_of_rows import WAYS, exact, private, shown
from estimators.tables import NAMES, rows, tables

pytestmark = pytest.mark.filterwarnings("ignore:X has feature names")
SECRET = "987654"
VALUES = rows(200)


def refused(act: Callable[[], Any], message: str, kind: type[Exception] = ValueError) -> None:
    """The act raises, for the reason that matches, and nothing of what is printed quotes the data."""
    with pytest.raises(kind, match=message) as caught:
        act()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def spoiled(value: float) -> Any:
    """Rows with a spoiled entry far down, and a secret beside it."""
    values = rows(150, seed=3)
    values[97, 4], values[97, 5] = value, 987654.321
    return values


def named(values: Any, **more: Any) -> pd.DataFrame:
    """The same rows with names, and further columns."""
    return pd.DataFrame(dict(zip(NAMES, np.asarray(values).T, strict=True)) | more)


# What no stream takes, and why.
BATCHES: dict[str, tuple[Callable[[], Any], str]] = {
    "infinity": (lambda: spoiled(np.inf), "X contains infinity"),
    "minus infinity, float32": (lambda: spoiled(-np.inf).astype(np.float32), "X contains infinity"),
    "sparse infinity": (lambda: sp.csr_array(spoiled(np.inf)), "X contains infinity"),
    "sparse NaN": (lambda: sp.csr_array(spoiled(np.nan)), "X contains NaN in a sparse matrix"),
    "arrow infinity": (lambda: tables(spoiled(np.inf))["pyarrow"], "column 'sleep' has infinite values"),
    "polars infinity": (lambda: tables(spoiled(np.inf))["polars"], "column 'sleep' has infinite values"),
    "rows of infinity": (lambda: DenseRows(spoiled(np.inf)), "X contains infinity"),
    "sparse rows of NaN": (lambda: as_rows(sp.csr_array(spoiled(np.nan))), "X contains NaN in a sparse matrix"),
    "one column less": (lambda: spoiled(1.0)[:, :5], "X has 5 features, but StreamingPCA is expecting 6"),
    "one column more": (lambda: np.hstack([spoiled(1.0)] * 2)[:, :7], "X has 7 features, but .* is expecting 6"),
    "sparse columns": (lambda: sp.csr_array(spoiled(1.0)[:, :5]), "X has 5 features, but .* is expecting 6"),
    "rows of other columns": (lambda: DenseRows(spoiled(1.0)[:, :5]), "X has 5 features, but .* is expecting 6"),
    "no rows": (lambda: VALUES[:0], "0 sample"),
    "no sparse rows": (lambda: sp.csr_array(VALUES[:0]), "0 sample"),
    "no rows in blocks": (lambda: DenseRows(VALUES[:0]), "0 sample"),
    "no arrow rows": (lambda: tables(VALUES[:0])["pyarrow"], "0 sample"),
    "one dimension": (lambda: spoiled(1.0)[97], "Expected 2D array"),
    "three dimensions": (lambda: spoiled(1.0)[None], "Found array with dim 3"),
    "a number": (lambda: 987654.321, "Expected 2D array|array-like"),
    "nothing": (lambda: None, "Expected 2D array|array-like"),
    "text": (lambda: np.full((3, 6), "x987654.321"), "not compatible with arrays of bytes/strings"),
    "objects of text": (lambda: np.full((3, 6), "x987654.321", dtype=object), "X must hold real numbers"),
    "pandas text": (lambda: named(VALUES, sleep=["x987654.321"] * 200), r"these do not: sleep \(text\)"),
    "arrow text": (lambda: pa.table(named(VALUES, sleep=["x987654.321"] * 200)), r"these do not: sleep \(text\)"),
    "polars text": (lambda: pl.DataFrame({n: ["x987654.321"] for n in NAMES}), "columns must hold numbers; these do not"),
    "arrow numbers as text": (lambda: pa.table({n: ["987654.321"] for n in NAMES}), "columns must hold numbers"),
    "arrow dates": (lambda: pa.table({n: pa.array([1], pa.timestamp("s")) for n in NAMES}), "columns must hold numbers"),
    "complex": (lambda: spoiled(1.0) + 1j, "Complex data not supported: X must hold real numbers"),
    "sparse complex": (lambda: sp.csr_array(spoiled(1.0) * 1j), "Complex data not supported"),
    "complex rows": (lambda: DenseRows(spoiled(1.0) * 1j), "X must hold real numbers, got dtype complex128"),
    "dates": (lambda: np.zeros((3, 6), dtype="M8[D]"), "X must hold real numbers, got dtype datetime64"),
    "masked": (lambda: np.ma.masked_invalid(spoiled(np.nan)), "X is a masked array"),
    "persons": (lambda: WeightedRows.by_person(DenseRows(spoiled(1.0)), np.arange(150) // 2), "person_blocks"),
}
GAPS: dict[str, Callable[[], Any]] = {
    "NaN": lambda: spoiled(np.nan),
    "NaN, float32": lambda: spoiled(np.nan).astype(np.float32),
    "pandas": lambda: pd.DataFrame(spoiled(np.nan)).to_numpy(),
    "arrow": lambda: tables(spoiled(np.nan))["pyarrow"],
    "arrow null": lambda: pa.table({name: [987654321987654321, None] for name in NAMES}),
    "rows": lambda: DenseRows(spoiled(np.nan)),
}


@each(("make", "message"), BATCHES.values())
@each("way", ["none", *WAYS])
def test_batches_that_cannot_be_used_leave_no_trace(make: Callable[[], Any], message: str, way: str) -> None:
    choices = {} if way == "none" else WAYS[way]
    pca, same = (exact(block_size=60) if way == "none" else private(**choices) for _ in range(2))
    # As the first batch: nothing was learnt, and the next one begins.
    if "expecting 6" not in message:
        refused(lambda: pca.partial_fit(make()), message)
        refused(lambda: pca.fit(make()), message)
        assert not hasattr(pca, "n_features_in_")
    for one in (pca, same):
        one.partial_fit(VALUES[:100]).sync().partial_fit(VALUES[100:130])
    before = shown(pca)
    batch = make()
    for _ in range(2):
        refused(lambda: pca.partial_fit(batch), message)
        if message not in ("0 sample",):
            refused(lambda: pca.transform(batch), f"{message}|X contains NaN|rows of named persons")
        assert shown(pca) == before and pca.n_samples_seen_ == 130
    assert shown(pca.partial_fit(VALUES[130:]).sync()) == shown(same.partial_fit(VALUES[130:]).sync())


# Where columns have names, those with gaps are named.
TORN = "X contains NaN, and a private stream takes no gaps|missing values: age, dose, .*missing='counts'|column 'sleep' has"


@pytest.mark.parametrize("make", GAPS.values(), ids=GAPS.keys())
@pytest.mark.parametrize("way", WAYS)
def test_gaps_are_refused_by_private_streams(make: Callable[[], Any], way: str) -> None:
    ledger = Ledger(epsilon=5.0, delta=1e-6)
    pca, same = private(ledger=ledger, **WAYS[way]), private(**WAYS[way])
    refused(lambda: pca.partial_fit(make()), TORN)
    assert ledger.charges == () and not hasattr(pca, "n_features_in_")
    before, charges = shown(pca.partial_fit(VALUES[:100]).sync()), ledger.charges
    refused(lambda: pca.partial_fit(make()), TORN)
    refused(lambda: pca.transform(make()), "X contains NaN")
    assert shown(pca) == before and ledger.charges == charges
    same.partial_fit(VALUES[:100]).sync().partial_fit(VALUES[100:]).sync()
    assert shown(pca.partial_fit(VALUES[100:]).sync()) == shown(same)


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array, DenseRows], ids=["dense", "sparse", "rows"])
def test_numbers_too_large_to_square_are_refused_at_once_without_privacy(store: Callable[[Any], Any]) -> None:
    """And not when their block is full, which would be somebody else's batch."""
    pca = exact(block_size=60).partial_fit(VALUES[:100])
    before = shown(pca)
    refused(lambda: pca.partial_fit(store(spoiled(1e200)[97:98])), "X contains numbers beyond 1e.140, too large to square")
    assert shown(pca) == before
    assert shown(pca.partial_fit(VALUES[100:])) == shown(exact(block_size=60).partial_fit(VALUES))
    # Rows that are clipped to a bound may be of any size.
    bounded = private().partial_fit(store(spoiled(1e200))).sync()
    assert np.isfinite(bounded.components_).all() and np.isfinite(bounded.explained_variance_).all()


def test_gaps_do_not_get_into_a_stream_of_sparse_rows() -> None:
    pca = exact(block_size=60).partial_fit(sp.csr_array(VALUES[:100]))
    before = shown(pca)
    refused(lambda: pca.partial_fit(spoiled(np.nan)), "X contains NaN, and this stream began with sparse rows")
    assert shown(pca) == before
    mixed = pca.partial_fit(VALUES[100:])
    assert shown(mixed) == shown(exact(block_size=60).partial_fit(sp.csr_array(VALUES)))


def test_rows_past_the_horizon_are_refused_before_any_is_taken() -> None:
    pca = private(publish="continual", horizon=100, block_size=10).partial_fit(VALUES[:90])
    before = shown(pca)
    refused(lambda: pca.partial_fit(VALUES[90:101]), "exceed the horizon of 100 rows. None of them was taken")
    assert shown(pca) == before and pca.n_samples_seen_ == 90
    assert pca.partial_fit(VALUES[90:100]).model_.settings["rows"] == 100
    refused(lambda: pca.partial_fit(VALUES[:1]), "exceed the horizon of 100 rows")
    # A block that `sync` ended early is a block of the tree all the same.
    hasty = private(publish="continual", horizon=40, block_size=10)
    for start in range(3):
        hasty.partial_fit(VALUES[start : start + 1]).sync()
    before = shown(hasty)
    refused(lambda: hasty.partial_fit(VALUES[3:11]), "horizon of 4 blocks, some of which sync.* ended early")
    assert shown(hasty) == before and hasty.n_samples_seen_ == 3
    # The boundary stays where it was: seven rows are left of the first ten.
    assert hasty.partial_fit(VALUES[3:10]).model_.settings["rows"] == 10


def test_names_must_stay_the_same() -> None:
    for pca in (exact(), private()):
        pca.fit(named(VALUES))
        before = shown(pca)
        refused(lambda pca=pca: pca.partial_fit(named(VALUES)[NAMES[::-1]]), "feature names should match")  # type: ignore[misc]
        refused(lambda pca=pca: pca.partial_fit(tables(VALUES)["polars"][NAMES[:5]]), "feature names should match")  # type: ignore[misc]
        assert shown(pca) == before


def test_files_and_iterators_that_go_wrong_say_where(tmp_path: Path) -> None:
    text = named(VALUES).to_csv(index=False).encode()
    bad = text + b"1,2,3,4,5,x987654.321\n"
    for pca in (exact(block_size=60), private()):
        refused(lambda pca=pca: pca.fit(io.BytesIO(bad)), "the stream cannot be read after row")  # type: ignore[misc]
        # The first has charged a private stream, which is not to be forgotten.
        pca = clone(pca)
        refused(lambda pca=pca: pca.fit(tmp_path / "no.csv"), "no.csv does not exist")  # type: ignore[misc]
        refused(lambda pca=pca: pca.fit(io.StringIO(text.decode())), "must be opened in binary mode")  # type: ignore[misc]
        pca = clone(pca)
        refused(lambda pca=pca: pca.fit(iter([VALUES, VALUES[:, :5]])), "X has 5 features")  # type: ignore[misc]
        pca = clone(pca)
        assert np.isfinite(pca.fit(io.BytesIO(text)).components_).all()
