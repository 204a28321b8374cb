"""One seed, one answer: whatever holds the rows, a private fit releases the same numbers, and sparse rows stay sparse."""

import tracemalloc
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil import PrivatePCA
from eigenveil.data.rows import DenseRows
from eigenveil.data.tables import read_table
from estimators.tables import NAMES, distance, private, rows, sparse_rows, tables

PLACES: dict[str, dict[str, Any]] = {
    "private mean": {},
    "private mean around an origin": {"origin": np.arange(6.0) / 4, "mean_bound": 3.0},
    "no center": {"center": None},
    "given center": {"center": np.arange(6.0) / 4},
    "scale": {"scale": np.arange(1.0, 7.0)},
    "box": {"column_bounds": (-3.0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), "row_bound": None},
    "box and ball and scale": {"column_bounds": (-3.0, 4.0), "scale": 2.0, "row_bound": 1.5},
    "box, no center": {"column_bounds": (-3.0, 4.0), "center": None},
}
# The grid of rows is the row bound, 12 or so, over 2^16; noise makes a few times that of it.
ON_GRID = 1e-3
FORMS = [sp.csr_array, sp.csr_matrix, sp.csc_array, sp.coo_array]


@pytest.fixture
def no_densifying(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sparse matrix may be made dense."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a sparse matrix was made dense")

    for kind in (*FORMS, sp.csc_matrix, sp.coo_matrix):
        monkeypatch.setattr(kind, "toarray", refuse)
        monkeypatch.setattr(kind, "todense", refuse)


@pytest.mark.usefixtures("no_densifying")
@pytest.mark.parametrize("method", ["covariance", "power"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_sparse_rows_give_what_dense_rows_give_and_stay_sparse(method: str, place: dict[str, Any]) -> None:
    values = sparse_rows()
    dense = private(2, method=method, **place).fit(values)
    for form in FORMS:
        sparse = private(2, method=method, **place).fit(form(values))
        # Sparse rows are rounded in their stored entries alone, so the two are as near as the grid of rows is fine.
        assert distance(dense, sparse) < ON_GRID
        assert np.allclose(sparse.transform(form(values)), dense.transform(values), atol=ON_GRID)
    exact = PrivatePCA(2, epsilon=None, **place).fit(values)
    assert distance(exact, dense) > 1e-3


@pytest.mark.parametrize("method", ["covariance", "power"])
def test_entries_stored_in_parts_are_one_entry(method: str) -> None:
    values = sparse_rows()
    whole = sp.csr_array(values)
    parts = sp.csr_array((np.repeat(whole.data / 4, 4), np.repeat(whole.indices, 4), 4 * whole.indptr), shape=values.shape)
    found = private(2, method=method, row_bound=3.0).fit(parts)
    assert distance(found, private(2, method=method, row_bound=3.0).fit(values)) < ON_GRID


def test_a_wide_sparse_table_takes_little_memory() -> None:
    table = sp.random_array((3000, 20_000), density=1e-3, format="csr", rng=np.random.default_rng(0))
    tracemalloc.start()
    try:
        private(2, method="power", row_bound=3.0).fit(table)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Dense it would be 480 MB, its covariance 3.2 GB. The planner states what the method itself needs, 6 blocks of
    # vectors; the private mean and the blocks of a sparse matrix of 0.7 MB come on top.
    assert peak < 6 * 8 * 20_000 * 12 + 10e6


@pytest.mark.parametrize("kind", tables(rows(20)))
@pytest.mark.parametrize("method", ["covariance", "power"])
def test_tables_give_what_arrays_give(kind: str, method: str) -> None:
    values = rows()
    table = tables(values)[kind]
    from_array = private(2, method=method).fit(values)
    from_table: Any = private(2, method=method).fit(table)
    assert distance(from_array, from_table) < 1e-12
    assert list(from_table.feature_names_in_) == NAMES
    assert np.allclose(from_table.transform(table), from_array.transform(values), atol=1e-12)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
def test_files_give_what_arrays_give(ending: str, tmp_path: Any) -> None:
    values = rows()
    path = tmp_path / f"table.{ending}"
    frame = tables(values)["pandas"]
    {"csv": lambda: frame.to_csv(path, index=False), "parquet": lambda: frame.to_parquet(path)}.get(
        ending, lambda: np.save(path, values)
    )()
    assert distance(private(2).fit(read_table(path).rows), private(2).fit(values)) < 1e-12


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8, bool])
@pytest.mark.parametrize("place", [{}, {"center": None}, {"column_bounds": (0.0, 99.0)}], ids=["mean", "zero", "box"])
def test_small_types_give_what_doubles_give(dtype: Any, place: dict[str, Any]) -> None:
    values = (np.abs(sparse_rows()) * 40).astype(dtype)
    stores: tuple[Callable[[Any], Any], ...] = (np.asarray, np.asfortranarray, sp.csr_array)
    expected = private(2, row_bound=200.0, **place).fit(values.astype(np.float64))
    for store in stores:
        found = private(2, row_bound=200.0, **place).fit(store(values))
        # The bound is 17 times that of the other tests, and variances are 300 times theirs.
        assert distance(found, expected) <= (300 * ON_GRID if store is sp.csr_array else 0.0)


def test_rows_that_come_in_blocks_are_checked_as_they_pass() -> None:
    values = rows()
    assert distance(private(2).fit(DenseRows(values)), private(2).fit(values)) < 1e-12
    before = values.copy()
    private(2, column_bounds=(-1.0, 1.0), scale=3.0).fit(values)
    assert np.array_equal(values, before)
