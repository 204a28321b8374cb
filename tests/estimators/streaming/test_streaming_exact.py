"""Without privacy a stream gives scikit-learn's answer, however the rows come: batches, gaps, tables, files, merges."""

import io
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from eigenveil import StreamingPCA
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array, sines
from estimators.streaming.streams_of_rows import exact, fed, gap, planted, private, shown
from estimators.tables import NAMES, rows, sparse_rows, tables

VALUES = rows(700)
WIDE = planted(900, 150)
DATA = {"products": VALUES, "sketch": WIDE}
CHECKED = [exact(1), private(1, row_bound=10.0, block_size=None)]


def passes(estimator: StreamingPCA, check: Callable[[StreamingPCA], None]) -> None:
    """One of scikit-learn's checks."""
    check(estimator)


test_scikit_learns_own_checks = parametrize_with_checks(CHECKED)(passes)


@pytest.mark.parametrize("way", DATA)
@pytest.mark.parametrize("sizes", [[1], [7], [512], [100, 1, 3], [10_000]])
@pytest.mark.parametrize("choices", [{}, {"forget": 0.9, "block_size": 50}, {"center": None}])
def test_batches_of_any_size_give_the_same_bits(way: str, sizes: list[int], choices: dict[str, Any]) -> None:
    whole = exact(3, **choices).partial_fit(DATA[way])
    # A stream that forgets is followed by its sketch, however few its columns.
    assert whole.plan_.tracker == ("sketch" if "forget" in choices else way)
    pieces = fed(exact(3, **choices), DATA[way], sizes)
    assert shown(pieces) == shown(whole)
    assert shown(fed(exact(3, **choices), np.asfortranarray(DATA[way]), sizes)) == shown(whole)
    assert pieces.n_samples_seen_ == len(DATA[way])


def test_looking_in_between_changes_nothing() -> None:
    watched, alone = exact(3), exact(3)
    for batch in np.split(WIDE, 30):
        shown(watched.partial_fit(batch))
        alone.partial_fit(batch)
    assert shown(watched) == shown(alone)


STORES: dict[str, Callable[[Array], Any]] = {
    "float64": np.asarray,
    "far from zero": lambda values: values + 1e7,
    "Fortran order": np.asfortranarray,
    "every other row": lambda values: np.repeat(values, 2, axis=0)[::2],
    "float32": lambda values: values.astype(np.float32),
    "int16": lambda values: (values * 100).astype(np.int16),
    "uint8": lambda values: np.abs(values * 9).astype(np.uint8),
    "bool": lambda values: values > 0,
    "list": lambda values: values.tolist(),
    "csr": sp.csr_array,
    "csc": sp.csc_matrix,
    "coo": sp.coo_array,
    "sparse bool": lambda values: sp.csr_matrix(values > 2),
    "rows": DenseRows,
}


@pytest.mark.parametrize("store", STORES.values(), ids=STORES.keys())
def test_few_columns_give_scikit_learns_answer(store: Callable[[Array], Any]) -> None:
    data = store(VALUES)
    plain = np.asarray(data.toarray() if sp.issparse(data) else getattr(data, "values", data), dtype=np.float64)
    ours, theirs = exact(3).fit(data), PCA(3, svd_solver="full").fit(plain)
    assert ours.plan_.tracker == "products"
    for k in (1, 2, 3):
        assert sines(ours.components_[:k].T, theirs.components_[:k].T).max() < 1e-6
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-7)
    assert np.allclose(ours.mean_, theirs.mean_, rtol=1e-12, atol=1e-9)
    signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
    assert np.allclose(ours.transform(data) * signs, theirs.transform(plain), atol=1e-5)
    assert ours.noise_floor_ == 0.0 and ours.ledger_ is None
    assert ours.guarantee_.to_text() == "No privacy: a stream without privacy was asked for."


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
def test_many_columns_come_close_with_the_attributes_of_incremental_pca(store: Callable[[Any], Any]) -> None:
    theirs = PCA(3, svd_solver="full").fit(WIDE)
    ours = fed(exact(3), store(WIDE), [64])
    rival = IncrementalPCA(3).fit(WIDE)
    assert ours.plan_.tracker == "sketch"
    assert sines(ours.components_.T, theirs.components_.T).max() < 1e-3
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-5)
        assert getattr(ours, name).shape == getattr(rival, name).shape
    assert ours.n_components_ == rival.n_components_ == 3
    assert ours.n_samples_seen_ == rival.n_samples_seen_ == 900


def test_sparse_rows_are_never_made_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of (d, d), (b, b) and (d, few) may be dense; blocks of rows may not."""
    dim = 3000
    matrix = sp.random_array((1300, dim), density=0.004, format="csr", rng=np.random.default_rng(0))
    for kind in (sp.csr_array, sp.csr_matrix, sp.csc_array):
        real = kind.toarray

        def toarray(self: Any, *args: Any, real: Any = real, **more: Any) -> Any:
            assert self.shape[1] < dim, f"somebody made {self.shape} dense"
            return real(self, *args, **more)

        monkeypatch.setattr(kind, "toarray", toarray)
        monkeypatch.setattr(kind, "todense", toarray)
    for pca in (exact(2), private(2, publish="block", block_size=None, row_bound=1.0)):
        fed(pca, matrix, [1, 300]).sync()
        assert pca.components_.shape == (2, dim)
        assert pca.transform(matrix).shape == (1300, 2)


def with_gaps(values: Array, share: float, *, seed: int = 1) -> Array:
    """The same rows with a share of the entries missing."""
    return np.where(np.random.default_rng(seed).random(values.shape) < share, np.nan, values)


@pytest.mark.parametrize("dim", [12, 150])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_low_rank_with_a_third_missing_is_recovered(dim: int, noise: float) -> None:
    values = planted(3000, dim, rank=2, noise=noise)
    torn = with_gaps(values, 0.3)
    pca = fed(exact(2, block_size=200), torn, [50])
    truth = PCA(2).fit(values)
    assert sines(pca.components_.T, truth.components_.T).max() < (0.02 if noise == 0 else 0.05)
    assert np.allclose(pca.explained_variance_, truth.explained_variance_, rtol=0.05)
    assert np.abs(pca.mean_ - truth.mean_).max() < 0.2
    # Filling with column means, the obvious way, is far worse: the test can fail.
    naive = PCA(2).fit(np.where(np.isnan(torn), np.nanmean(torn, axis=0), torn))
    assert (1 - naive.explained_variance_ / truth.explained_variance_).min() > 0.2
    scores = pca.transform(torn)
    ideal = pca.transform(values)
    assert np.linalg.norm(scores - ideal) < 0.1 * np.linalg.norm(ideal)


def test_whole_columns_and_rows_may_be_missing() -> None:
    values = planted(600, 12, rank=2)
    torn = values.copy()
    torn[:, 5] = np.nan
    torn[::10] = np.nan
    pca = fed(exact(2, block_size=100), torn, [37])
    assert np.isfinite(pca.components_).all()
    assert np.abs(pca.components_[:, 5]).max() < 1e-12 and abs(pca.mean_[5]) < 1e-12
    rest = np.delete(np.arange(12), 5)
    truth = PCA(2).fit(np.delete(values[:, rest], np.arange(0, 600, 10), axis=0))
    assert sines(pca.components_[:, rest].T, truth.components_.T).max() < 0.05
    with pytest.raises(ValueError, match="nothing but gaps"):
        exact(2).fit(np.full((30, 4), np.nan))
    nothing = pca.transform(np.full((1, 12), np.nan))
    assert np.abs(nothing).max() < 1e-9


@pytest.mark.parametrize("dim", [20, 300])
def test_a_column_that_shows_up_late_brings_no_variance_with_it(dim: int) -> None:
    """A sensor that comes online after some blocks: its level is not a jump from nothing."""
    rng = np.random.default_rng(3)
    values = 0.1 * rng.standard_normal((4000, dim)) + np.arange(dim)
    values[:, 0] += 2 * rng.standard_normal(4000)
    values[:1100, 7] = np.nan
    pca = fed(exact(2), values, [90])
    assert abs(pca.mean_[7] - 7) < 0.02
    assert np.abs(pca.components_[:, 7]).max() < 0.5
    assert 3.8 < pca.explained_variance_[0] < 4.3 and pca.explained_variance_[1] < 0.03
    late = fed(exact(2), np.vstack([np.full((700, dim), np.nan), values[1100:]]), [90])
    assert sines(late.components_[:1].T, exact(2).fit(values[1100:]).components_[:1].T).max() < 1e-3


def test_gaps_anywhere_give_the_same_bits_in_any_batches() -> None:
    for dim in (12, 150):
        torn = with_gaps(planted(500, dim), 0.2)
        assert shown(fed(exact(3), torn, [1])) == shown(exact(3).partial_fit(torn))


@pytest.mark.parametrize("kind", tables(rows(20)))
def test_tables_are_as_good_as_arrays_and_keep_their_names(kind: str) -> None:
    pca: Any = exact(2)
    for batch in np.split(VALUES, 7):
        pca.partial_fit(tables(batch)[kind])
    assert shown(pca) == shown(exact(2).partial_fit(VALUES))
    assert list(pca.feature_names_in_) == NAMES and pca.model_.columns == tuple(NAMES)
    before = shown(pca)
    wrong = tables(VALUES[:9])[kind]
    wrong = wrong.rename_columns(NAMES[::-1]) if hasattr(wrong, "rename_columns") else wrong[NAMES[::-1]]
    with pytest.raises(ValueError, match="feature names should match"):
        pca.partial_fit(wrong)
    by_name = pd.DataFrame(wrong.to_pandas() if hasattr(wrong, "to_pandas") else wrong)[NAMES].to_numpy()
    np.testing.assert_array_equal(pca.transform(wrong), pca.transform(pd.DataFrame(by_name, columns=NAMES)))
    assert shown(pca) == before
    assert np.allclose(pca.transform(tables(VALUES)[kind]), pca.transform(pd.DataFrame(VALUES, columns=NAMES)))


def test_missing_values_of_tables_are_gaps() -> None:
    torn = with_gaps(VALUES, 0.1)
    expected = shown(exact(2).partial_fit(torn))
    columns = {name: [None if np.isnan(v) else v for v in column] for name, column in zip(NAMES, torn.T, strict=True)}
    for table in (pa.table(columns), pl.DataFrame(columns), pd.DataFrame(torn, columns=NAMES)):
        assert shown(exact(2).partial_fit(table)) == expected
    whole = pa.table({"a": [2**53 + 1, None, 7], "b": [1, 2, 4]})
    assert np.isfinite(exact(1).fit(whole).components_).all()


def test_scikit_learns_machinery_goes_with_it() -> None:
    frame = pd.DataFrame(VALUES, columns=NAMES, index=np.arange(700) * 3)
    pipeline = make_pipeline(FunctionTransformer(np.negative), exact(3))
    assert np.allclose(pipeline.fit_transform(VALUES), exact(3).fit(-VALUES).transform(-VALUES))
    for container in ("pandas", "polars"):
        pca = exact(2).set_output(transform=container).fit(frame)
        scores: Any = pca.transform(frame)
        assert list(scores.columns) == ["streamingpca0", "streamingpca1"] == list(pca.get_feature_names_out())
    full = exact(6).fit(VALUES)
    assert np.allclose(full.inverse_transform(full.transform(VALUES)), VALUES)
    with pytest.raises(ValueError, match=r"scores must have shape \(n, 6\), got \(3, 2\)"):
        full.inverse_transform(np.zeros((3, 2)))
    with pytest.raises(NotFittedError):
        clone(full).transform(VALUES)


def test_a_second_fit_starts_again() -> None:
    pca: Any = exact(2).fit(pd.DataFrame(VALUES, columns=NAMES))
    assert shown(pca.fit(WIDE)) == shown(exact(2).fit(WIDE))
    assert pca.n_features_in_ == 150 and not hasattr(pca, "feature_names_in_")


@pytest.mark.parametrize("way", DATA)
@pytest.mark.parametrize("forget", [1.0, 0.9])
def test_streams_merge_in_any_order(way: str, forget: float) -> None:
    parts = [DATA[way][:300], DATA[way][300:301], DATA[way][301:]]
    whole = PCA(3, svd_solver="full").fit(DATA[way])
    for order in permutations(range(3)):
        pcas = [fed(exact(3, forget=forget, block_size=400), part, [90]) for part in parts]
        before = [shown(pca) for pca in pcas]
        merged = pcas[order[0]].merge(pcas[order[1]]).merge(pcas[order[2]])
        assert [shown(pcas[i]) for i in order[1:]] == [before[i] for i in order[1:]]
        if forget == 1:
            assert sines(merged.components_.T, whole.components_.T).max() < (1e-8 if way == "products" else 1e-3)
            assert np.allclose(merged.explained_variance_, whole.explained_variance_, rtol=1e-5)
            assert np.allclose(merged.mean_, whole.mean_)
        # A merged stream goes on like any other, and what was merged is forgotten with the rest.
        assert np.isfinite(merged.partial_fit(DATA[way]).components_).all()


def test_a_merge_equals_the_stream_that_saw_both() -> None:
    left, right = exact(2).partial_fit(VALUES[:400]), exact(2).partial_fit(VALUES[400:])
    assert gap(left.merge(right), exact(2).partial_fit(VALUES)) < 1e-12


def test_merges_that_make_no_sense_are_refused_and_change_nothing() -> None:
    pca = exact(2).partial_fit(VALUES)
    before = shown(pca)
    others: list[tuple[Any, str, type[Exception]]] = [
        (pca, "cannot be merged with itself", ValueError),
        (exact(2), "the other stream has no rows", NotFittedError),
        (exact(2).partial_fit(WIDE), "streams of 6 and 150 columns cannot be merged", ValueError),
        (exact(2, center=None).partial_fit(VALUES), "one of the streams is centered and the other is not", ValueError),
        (private().partial_fit(VALUES[:70]).sync(), "a private stream and one without privacy", ValueError),
        (PCA(2).fit(VALUES), "other must be a StreamingPCA, got PCA", ValueError),
    ]
    for other, message, kind in others:
        with pytest.raises(kind, match=message):
            pca.merge(other)
        assert shown(pca) == before
    with pytest.raises(NotFittedError, match="there were no rows"):
        exact(2).merge(pca)


def arrow_bytes(table: Any, *, stream: bool) -> bytes:
    """A table in one of Arrow's two formats, in batches of 33 rows."""
    out = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=33)
    return out.getvalue()


def test_a_fit_reads_arrays_iterators_files_and_pipes(tmp_path: Path) -> None:
    expected = shown(exact(2).fit(VALUES))
    table, text = tables(VALUES)["pyarrow"], pd.DataFrame(VALUES, columns=NAMES).to_csv(index=False)
    (tmp_path / "x.csv").write_text(text)
    (tmp_path / "x.arrow").write_bytes(arrow_bytes(table, stream=False))
    (tmp_path / "x.arrows").write_bytes(arrow_bytes(table, stream=True))
    pq.write_table(table, tmp_path / "x.parquet")
    np.save(tmp_path / "x.npy", VALUES)
    for ending in ("csv", "arrow", "arrows", "parquet", "npy"):
        assert shown(exact(2).fit(tmp_path / f"x.{ending}")) == expected
        assert shown(exact(2).fit(str(tmp_path / f"x.{ending}"))) == expected
    assert shown(exact(2).fit(io.BytesIO(text.encode()))) == expected
    assert shown(exact(2).fit(batch for batch in np.split(VALUES, 70))) == expected
    assert shown(exact(2).fit(iter([VALUES[:1], sp.csr_array(VALUES[1:2]), VALUES[2:].tolist()]))) == expected
    sp.save_npz(tmp_path / "s.npz", sp.csr_array(sparse_rows()))
    assert gap(exact(2).fit(tmp_path / "s.npz"), exact(2).fit(sparse_rows())) < 1e-9
    with pytest.raises(NotFittedError, match="there were no rows"):
        exact(2).fit(iter([]))
    with pytest.raises(ValueError, match="X has fewer rows than n_components=5"):
        exact(5).fit(VALUES[:4])
