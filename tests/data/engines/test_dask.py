"""Rows on a cluster of real worker processes: the bits of a fit in memory, whatever happens to workers, and no row in any log."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from dask.delayed import delayed
from dask.sizeof import sizeof

from commands.command_tables import eigenveil, refusal
from commands.network.network_folders import Folders
from data.engines.sent import SECRET, Killer, fail, read
from eigenveil import EngineLost, FederatedPCA, Ledger, PrivatePCA, PrivateRecommender, StreamingPCA, Symmetric, find_bounds
from eigenveil.core.domain import Domain
from eigenveil.core.rows import innermost, is_remote
from eigenveil.core.unit import Neighbours
from eigenveil.core.whole import GramWork
from eigenveil.data.columns import ColumnChoice
from eigenveil.data.engines import dask_rows
from eigenveil.data.engines.dask_rows import DaskRows, array_rows, frame_rows, require_versions
from eigenveil.data.known import fingerprints
from eigenveil.data.rows import DenseRows, WatchedRows
from eigenveil.errors import ColumnsError
from eigenveil.linalg import Array
from eigenveil.model import Model
from eigenveil.network.agents.site_data import SiteData
from eigenveil.privacy.sums import bounded_count
from network.network_studies import COLUMNS as STUDIED
from network.network_studies import Company

COUNT = 4000
NAMES = ["age", "pulse", "weight", "height", "sodium"]
ROWS: Array = np.random.default_rng(3).standard_normal((COUNT, 5)) * [9, 5, 2, 1, 1] + 4
# Every person has rows in several partitions.
PEOPLE = np.random.default_rng(4).integers(700, size=COUNT)
FRAME = pd.DataFrame(ROWS, columns=NAMES).assign(patient=[f"p{one}" for one in PEOPLE])
PRIVATE: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "random_state": 7, "row_bound": 30.0}

pytestmark = pytest.mark.usefixtures("client")


def array(values: Any = ROWS, chunk: int = 700) -> Any:
    return da.from_array(values, chunks=(chunk, -1), name=False)


def frame(partitions: int = 6) -> Any:
    return dd.from_pandas(FRAME, npartitions=partitions, sort=False)


def same(one: Any, other: Any) -> bool:
    return bool(one.components_.tobytes() == other.components_.tobytes() and one.mean_.tobytes() == other.mean_.tobytes())


def fitted(X: Any, **settings: Any) -> PrivatePCA:
    return PrivatePCA(2, **{**PRIVATE, **settings}).fit(X)


@pytest.mark.parametrize(
    "settings", [{}, {"row_bound": "private"}, {"scale": "private", "row_bound": "private"}, {"method": "power"}], ids=str
)
def test_an_array_gives_the_bits_of_memory(settings: dict[str, Any]) -> None:
    assert same(fitted(ROWS, **settings), fitted(array(), **settings))
    # Chunks across the columns are put together on the cluster.
    assert same(fitted(ROWS, **settings), fitted(da.from_array(ROWS, chunks=(900, 2)), **settings))


def test_so_do_sparse_and_narrow_chunks() -> None:
    values = ROWS * (np.random.default_rng(0).random(ROWS.shape) < 0.3)
    sparse = array(values).map_blocks(sp.csr_array, dtype=np.float64)
    assert same(fitted(sp.csr_array(values)), fitted(sparse))
    assert 0.2 < array_rows(sparse).density < 0.4
    narrow = ROWS.astype(np.float32)
    assert same(fitted(narrow), fitted(array(narrow)))


@pytest.mark.parametrize("person", [None, "patient"])
def test_a_dataframe_gives_the_bits_of_memory(person: str | None) -> None:
    drop = None if person else ["patient"]
    here, there = (fitted(X, person=person, drop=drop) for X in (FRAME, frame()))
    assert same(here, there) and there.model_.columns == tuple(NAMES)
    assert here.guarantee_.protects == there.guarantee_.protects


def test_a_person_in_two_partitions_counts_once() -> None:
    here = fitted(ROWS, person=PEOPLE, neighbours="zero-out")
    for ids in (PEOPLE, array(PEOPLE[:, None], 700)[:, 0]):
        assert same(here, fitted(array(), person=ids, neighbours="zero-out"))
    rows, _ = frame_rows(frame(), ColumnChoice(person="patient"))
    assert round(float(bounded_count(rows, neighbours=Neighbours.ADD_REMOVE).value)) == len(set(PEOPLE))


def test_people_must_be_of_one_type_in_all_partitions() -> None:
    parts = [FRAME.iloc[:9].assign(patient=range(9)), FRAME.iloc[9:20]]
    mixed = dd.from_delayed([delayed(part) for part in parts], meta=FRAME.iloc[:0], verify_meta=False)
    with pytest.raises(ValueError, match="one type in all partitions"):
        fitted(mixed, person="patient")


def test_choices_of_columns_are_made_on_the_cluster(tmp_path: Path) -> None:
    table = FRAME.assign(sex=np.where(PEOPLE % 2, "f", "m"))
    table.to_parquet(tmp_path / "a.parquet", row_group_size=500)
    choice: dict[str, Any] = {"columns": ["age", "sex", "pulse"], "one_hot": {"sex": ["f", "m"]}}
    there = dd.read_parquet(tmp_path / "a.parquet", split_row_groups=1)
    assert same(fitted(table, **choice), fitted(there, **choice))
    with pytest.raises(ColumnsError, match="sex"):
        fitted(there, drop=["patient"])


@pytest.mark.parametrize("missing", ["counts", "drop"])
def test_gaps_are_handled_on_the_workers(missing: Any) -> None:
    gone = np.random.default_rng(5).random(ROWS.shape) < 0.1
    table = FRAME.assign(**{name: np.where(gone[:, at], np.nan, ROWS[:, at]) for at, name in enumerate(NAMES)})
    frames = (table, dd.from_pandas(table, npartitions=5, sort=False))
    assert same(*(fitted(X, missing=missing, drop=["patient"]) for X in frames))
    values = np.where(gone, np.nan, ROWS)
    assert same(*(fitted(X, missing=missing) for X in (values, array(values))))


def test_other_estimators_take_collections() -> None:
    sites = {"a": ROWS[:1500], "b": ROWS[1500:]}
    cluster = {"a": ROWS[:1500], "b": array(ROWS[1500:])}
    methods: tuple[Any, ...] = ("auto", "merge")
    for method in methods:
        assert same(*(FederatedPCA(2, **PRIVATE, method=method).fit(X) for X in (sites, cluster)))
    assert repr(find_bounds(ROWS, epsilon=1.0, delta=1e-6, random_state=1)) == repr(
        find_bounds(array(), epsilon=1.0, delta=1e-6, random_state=1)
    )


def test_a_stream_takes_batches_one_partition_after_the_other() -> None:
    how: dict[str, Any] = {**PRIVATE, "block_size": 500}
    here, there = StreamingPCA(2, **how), StreamingPCA(2, **how)
    for start in (0, 2000):
        here.partial_fit(ROWS[start : start + 2000])
        there.partial_fit(array(ROWS[start : start + 2000], 300))
    assert here.sync().components_.tobytes() == there.sync().components_.tobytes()


def test_a_recommender_takes_histories_on_a_cluster() -> None:
    histories = (np.random.default_rng(1).random((600, 30)) < 0.2).astype(np.float64)
    how: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6, "random_state": 3}
    here = PrivateRecommender(3, **how).fit(sp.csr_array(histories))
    there = PrivateRecommender(3, **how).fit(array(histories, 200).map_blocks(sp.csr_array, dtype=np.float64))
    assert here.components_.tobytes() == there.components_.tobytes()
    with pytest.raises(ValueError, match="must be binary"):
        PrivateRecommender(3, **how).fit(array(ROWS))


def test_exact_fits_agree_up_to_rounding() -> None:
    one, other = (PrivatePCA(2, epsilon=None).fit(X) for X in (ROWS, array()))
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-9)


def test_scores_stay_where_the_rows_are() -> None:
    pca = fitted(array())
    for scores in (pca.transform(array()), pca.model_.transform(array().rechunk((900, 2)))):
        assert isinstance(scores, da.Array)
        assert scores.shape == (COUNT, 2)
        np.testing.assert_array_equal(scores.compute(), pca.transform(ROWS))
    np.testing.assert_array_equal(array().map_blocks(pca.model_.transform).compute(), pca.transform(ROWS))
    # Dask cannot know how many columns come out unless it is told.
    told = array().map_blocks(pca.model_.transform, dtype=np.float64, chunks=(array().chunks[0], (2,)))
    np.testing.assert_array_equal(told.compute(), pca.transform(ROWS))
    with pytest.raises(ValueError, match="column"):
        pca.model_.transform(np.ones((1, 1)))
    named = fitted(FRAME[NAMES])
    told = named.transform(frame()[["patient", *NAMES[::-1]]])
    assert isinstance(told, dd.DataFrame)
    assert list(told.columns) == ["component1", "component2"]
    np.testing.assert_array_equal(told.compute().to_numpy(), named.transform(FRAME[NAMES]))
    with pytest.raises(ValueError, match="lacks columns of the model: pulse"):
        named.transform(frame().drop(columns="pulse"))
    with pytest.raises(ValueError, match="rows must have 5 columns, as the model does, got 4"):
        pca.transform(array(ROWS[:, :4]))


def test_the_page_about_clusters_runs(client: Any, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text()
    (example,) = (block for block in page.split("```") if block.startswith("text\nfrom distributed"))
    FRAME.rename(columns={"patient": "patient_id"}).to_parquet(tmp_path / "patients.parquet", row_group_size=900)
    code = example.removeprefix("text").replace("/shared/patients/*.parquet", str(tmp_path / "*.parquet"))
    code = code.replace("tcp://head:8786", client.scheduler.address)
    script = f"from eigenveil import PrivatePCA\n{code}\nassert scores.compute().shape == ({COUNT}, 5)\nprint('ran')\n"
    (tmp_path / "page.py").write_text(script)
    done = subprocess.run([sys.executable, tmp_path / "page.py"], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["ran"], done.stderr


def refusals_of_whoever_needs_numbers() -> dict[str, Callable[[], Any]]:
    """Calls that need numbers in this process, each with a Dask collection in their place."""
    pca, histories = fitted(ROWS), array((ROWS > 4).astype(float))
    recommender = PrivateRecommender(2, epsilon=4.0, delta=1e-6, random_state=1).fit(histories)
    return {
        "rows of an estimator": lambda: pca.inverse_transform(array()[:, :2]),
        "rows of a model": lambda: pca.model_.inverse_transform(array()[:, :2]),
        "likelihoods": lambda: pca.score_samples(array()),
        "recommendations": lambda: recommender.recommend(histories),
        "a matrix of a site": lambda: Symmetric(array()[:5], people=5),
        "people of rows that are here": lambda: fitted(ROWS, person=array(PEOPLE[:, None])[:, 0]),
        "people of a stream": lambda: StreamingPCA(2, **PRIVATE, person="patient").partial_fit(frame()),
        "a delayed table": lambda: fitted(delayed(ROWS)),
        "a bag": lambda: fitted(db.from_sequence(range(9))),
        "delayed histories": lambda: PrivateRecommender(2, epsilon=4.0, delta=1e-6).fit(delayed(ROWS)),
        "entries that are masked": lambda: fitted(da.ma.masked_greater(array(), 20)),
    }


def test_numpy_never_converts_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """`numpy.asarray` of a Dask collection copies all of it to this process, without a word."""
    calls = refusals_of_whoever_needs_numbers()
    asked = []
    for kind in (da.Array, type(frame()), type(frame()["age"])):
        monkeypatch.setattr(kind, "__array__", lambda self, *_, **__: asked.append(type(self)))
        monkeypatch.setattr(kind, "compute", lambda self, *_, **__: asked.append(type(self)))
    for name, call in calls.items():
        with pytest.raises(ValueError) as caught:
            call()
        assert not asked, name
        assert "NotImplemented" not in str(caught.value)


def test_progress_counts_every_row_of_a_pass() -> None:
    seen: list[int] = []
    fitted(WatchedRows(array_rows(array()), seen.append), center=None, method="covariance")
    assert sum(seen) == 2 * COUNT


# What goes wrong: an error with words, nothing spent, nothing lost.


def source(path: Path, chunk: int) -> Any:
    """An array that is read from a file whenever a chunk is computed."""
    return da.map_blocks(read, str(path), chunk, chunks=((chunk,) * (COUNT // chunk), (5,)), dtype=float, meta=np.empty((0, 0)))


def test_a_scheduler_that_is_gone_is_an_error(client: Any) -> None:
    from distributed import Client

    gone = Client(client.scheduler.address, set_as_default=False)
    gone.close()
    held: Any = array_rows(array())
    rows, ledger = replace(held, client=gone), Ledger(epsilon=2.0, delta=1e-6)
    with pytest.raises(EngineLost, match="does not answer any more"):
        fitted(rows, ledger=ledger)
    assert ledger.charges == ()


def test_a_scheduler_that_does_not_come_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask then closes the client of this process, and says that there is none."""
    rows: Any = array_rows(array())
    ledger = Ledger(epsilon=2.0, delta=1e-6)

    def nobody(*_: Any, **__: Any) -> None:
        raise ValueError("No clients found")

    monkeypatch.setattr("distributed.wait", nobody)
    with pytest.raises(EngineLost, match="does not answer any more"):
        fitted(rows, ledger=ledger)
    assert ledger.charges == ()


def test_a_worker_that_dies_while_it_is_asked_for_its_version_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception] = [OSError("connection closed")]

    def asked(client: Any) -> None:
        if answers:
            raise answers.pop()

    monkeypatch.setattr(dask_rows, "require_versions", asked)
    assert same(fitted(ROWS), fitted(array())) and not answers


def test_a_scheduler_or_worker_of_another_version_is_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Any = array_rows(array())
    ledger = Ledger(epsilon=2.0, delta=1e-6)
    found = client.get_versions()
    found["scheduler"]["packages"]["distributed"] = "2020.1.0"
    monkeypatch.setattr(client, "get_versions", lambda: found)
    with pytest.raises(ValueError, match=r"scheduler has distributed 2020\.1\.0.*Install the same version"):
        require_versions(client)
    # So is a worker that joined after the rows were read, before what it added up counts.
    with pytest.raises(ValueError, match="Install the same version"):
        fitted(replace(rows, workers=frozenset()), ledger=ledger)
    assert ledger.charges == ()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is connected to no cluster."""

    def nobody() -> None:
        raise ValueError("no client")

    monkeypatch.setattr("distributed.default_client", nobody)


@pytest.mark.usefixtures("alone")
def test_without_a_cluster_this_process_reads_the_partitions() -> None:
    sparse = array(np.where(ROWS > 8, ROWS, 0.0)).map_blocks(sp.csr_array, dtype=np.float64)
    assert same(fitted(array()), fitted(ROWS))
    assert same(fitted(sparse), fitted(sp.csr_array(np.where(ROWS > 8, ROWS, 0.0))))
    assert same(fitted(frame(), person="patient"), fitted(FRAME, person="patient"))
    assert same(fitted(array(), person=array(PEOPLE[:, None])[:, 0]), fitted(ROWS, person=PEOPLE))
    assert same(fitted(array(), person=PEOPLE), fitted(ROWS, person=PEOPLE))
    parts = {"a": array(ROWS[:2000]), "b": ROWS[2000:]}
    there, here = (FederatedPCA(2, **PRIVATE).fit(sites) for sites in (parts, {"a": ROWS[:2000], "b": ROWS[2000:]}))
    assert there.components_.tobytes() == here.components_.tobytes()
    assert find_bounds(array(), epsilon=2.0, delta=1e-6, random_state=1).row_bound == (
        find_bounds(ROWS, epsilon=2.0, delta=1e-6, random_state=1).row_bound
    )
    pca = StreamingPCA(2, epsilon=None).partial_fit(array())
    assert pca.n_samples_seen_ == COUNT


@pytest.mark.usefixtures("alone")
def test_without_a_cluster_one_partition_at_a_time_is_in_memory() -> None:
    held: list[int] = []

    def part(number: int) -> Any:
        held.append(number)
        return ROWS[number * 1000 : (number + 1) * 1000]

    pieces = [da.from_delayed(delayed(part)(number), shape=(1000, 5), dtype=float) for number in range(4)]
    rows: Any = array_rows(da.concatenate(pieces))
    held.clear()
    blocks = rows.blocks(100)
    for _ in range(11):
        next(blocks)
    assert held == [0, 1]


@pytest.mark.usefixtures("alone")
def test_without_a_cluster_nothing_changes_or_is_quoted_in_silence() -> None:
    drawn = np.random.default_rng(0)
    moving = da.from_delayed(delayed(lambda: drawn.standard_normal((500, 5)), pure=False)(), shape=(500, 5), dtype=float)
    ledger = Ledger(epsilon=9.0, delta=1e-3)
    with pytest.raises(ValueError, match="partition 0 has changed since the fit began"):
        PrivatePCA(2, **PRIVATE, ledger=ledger).fit(moving)

    def secret() -> Any:
        raise RuntimeError(f"row of {SECRET}")

    for bad in (secret, lambda: np.full((500, 5), np.nan), lambda: np.array([[SECRET] * 5] * 500)):
        with pytest.raises(ValueError) as caught:
            fitted(da.from_delayed(delayed(bad)(), shape=(500, 5), dtype=float))
        assert str(SECRET) not in str(caught.value)


def test_chunks_of_unknown_size_are_refused() -> None:
    unknown = frame()[NAMES].to_dask_array()
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        fitted(unknown)
    unknown.compute_chunk_sizes()
    assert same(fitted(ROWS), fitted(unknown))


def from_parts(*parts: pd.DataFrame) -> Any:
    """A dataframe that declares the columns of the first part, whatever the others have."""
    return dd.from_delayed([delayed(part) for part in parts], meta=parts[0].iloc[:0], verify_meta=False)


NUMBERS = FRAME[NAMES]


def test_swapped_columns_are_refused_on_the_worker() -> None:
    with pytest.raises(ValueError, match="partition 1 has other columns than the table declares, or another order"):
        fitted(from_parts(NUMBERS[:50], NUMBERS[50:99][NAMES[::-1]]))


def test_text_in_a_float_column_is_refused_by_name() -> None:
    bad = NUMBERS[50:60].astype(object).assign(pulse=SECRET)
    with quiet_logs(), pytest.raises(ColumnsError, match=r"partition 1: .*pulse \(text\)") as caught:
        fitted(from_parts(NUMBERS[:50], bad))
    assert SECRET not in str(caught.value)


def test_missing_values_are_refused_by_name() -> None:
    bad = NUMBERS[50:60].assign(pulse=np.nan)
    with pytest.raises(ColumnsError, match="'pulse' has missing values"):
        fitted(from_parts(NUMBERS[:50], bad))
    with pytest.raises(ValueError, match="contains NaN"):
        fitted(array(np.where(ROWS > 20, np.nan, ROWS)))


def logged(client: Any) -> str:
    """All that workers and the scheduler have logged."""
    return repr(client.get_worker_logs()) + repr(client.get_scheduler_logs())


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Whatever happens inside leaves no value in a log of the cluster."""
    from distributed import default_client

    yield
    assert SECRET not in logged(default_client())


def test_no_row_in_a_log_or_an_exception_of_driver_or_worker(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Also where a task of the caller's own graph fails, whose exception Dask would log with its text."""
    bad: Callable[..., Any] = fail
    with pytest.raises(ValueError, match=r"could not be computed \(ValueError\)") as caught:
        fitted(array().map_blocks(bad, dtype=float, meta=np.empty((0, 0))))
    assert SECRET not in str(caught.value) and caught.value.__cause__ is None and caught.value.__context__ is None
    assert SECRET not in logged(client) and SECRET not in caplog.text
    # The log does say that something failed.
    assert "Its exception is not shown" in logged(client)


def test_dask_knows_how_large_a_partition_and_a_sum_are(client: Any) -> None:
    """By their sizes it decides what to move between workers and what to spill."""
    rows: Any = array_rows(array())
    wide: Any = array_rows(array(np.ones((40, 500)), 20).map_blocks(sp.csr_array, dtype=float))
    sizes = client.nbytes(summary=False)
    assert sum(sizes[one.key] for one in rows.futures) >= ROWS.nbytes
    assert sum(sizes[one.key] for one in wide.futures) >= 40 * 500 * 8
    domain = Domain(dim=500, radius=1.0)
    assert sizeof(GramWork(domain).of(DenseRows(np.ones((3, 500))))) >= 500 * 500 * 8


def test_rows_are_held_by_futures_and_not_here() -> None:
    rows: DaskRows = innermost(frame_rows(frame(), ColumnChoice(drop=("patient",)))[0])
    assert all(future.done() for future in rows.futures)
    with pytest.raises(ValueError, match="on a Dask cluster and are not copied to this process"):
        next(iter(rows.blocks(10)))


# Commands and studies.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Parquet files."""
    where = tmp_path_factory.mktemp("parquet")
    for number, part in enumerate(np.array_split(np.arange(COUNT), 3)):
        FRAME.iloc[part].to_parquet(where / f"part-{number}.parquet", row_group_size=400)
    return where


def test_the_command_fits_on_a_cluster_and_in_processes(client: Any, folder: Path, tmp_path: Path) -> None:
    address = client.scheduler.address
    common = ["-k", 2, "--epsilon", 2, "--delta", 1e-6, "--seed", 7, "--row-bound", 30, "--person", "patient"]
    ways: dict[str, list[object]] = {
        "here": [folder],
        "dask": [folder / "*.parquet", "--dask", address],
        "pool": [folder, "--processes", 2],
    }
    found = {}
    for name, way in ways.items():
        target = tmp_path / f"{name}.safetensors"
        result = eigenveil("fit", *way, *common, "-o", target)
        assert result.exit_code == 0, result.output
        found[name] = Model.load(target)
    for name in ("dask", "pool"):
        assert found["here"].components.tobytes() == found[name].components.tobytes()
        assert found["here"].columns == found[name].columns


def test_the_command_says_what_it_cannot_do(client: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ["-k", 2, "--epsilon", 2, "--delta", 1e-6, "--drop", "patient", "-o", tmp_path / "m.safetensors"]
    address = client.scheduler.address
    assert "not both" in refusal("fit", folder, *common, "--dask", address, "--processes", 2)
    assert "no columns to copy" in refusal("fit", folder, *common, "--dask", address, "--passthrough", "patient")
    FRAME.head(50).to_csv(tmp_path / "a.csv", index=False)
    assert "Convert it to Parquet first" in refusal("fit", tmp_path / "a.csv", *common, "--processes", 2)
    monkeypatch.setattr(dask_rows, "_CONNECT", 0.5)
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in refusal("fit", folder, *common, "--dask", "tcp://127.0.0.1:9")
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_lasting_ledger_knows_the_rows_of_a_cluster_again(folder: Path) -> None:
    """By the digests of single columns, also where they were read into memory before."""
    there, _ = frame_rows(dd.read_parquet(folder), ColumnChoice(drop=("patient",)))
    marks = fingerprints(there)
    again, _ = frame_rows(dd.read_parquet(folder), ColumnChoice(drop=("patient",)))
    assert marks == fingerprints(again)
    assert set(marks) & set(fingerprints(DenseRows(ROWS)))
    assert not set(marks) & set(fingerprints(DenseRows(ROWS + 1)))


def test_what_stands_for_a_missing_value_does_so_on_a_cluster_and_in_processes(client: Any, tmp_path: Path) -> None:
    gone = np.random.default_rng(6).random(ROWS.shape) < 0.1
    for name, mark in (("marked", -9999.0), ("empty", np.nan)):
        columns = {column: np.where(gone[:, at], mark, ROWS[:, at]) for at, column in enumerate(NAMES)}
        FRAME.assign(**columns).to_parquet(tmp_path / f"{name}.parquet", row_group_size=400)
    common = ["-k", 2, "--epsilon", 2, "--delta", 1e-6, "--seed", 7, "--row-bound", 30, "--person", "patient"]
    common += ["--missing", "counts"]
    ways: dict[str, list[object]] = {
        "empty": [tmp_path / "empty.parquet"],
        "here": [tmp_path / "marked.parquet", "--na-values", "-9999"],
        "dask": [tmp_path / "marked.parquet", "--na-values", "-9999", "--dask", client.scheduler.address],
        "pool": [tmp_path / "marked.parquet", "--na-values", "-9999", "--processes", 2],
    }
    found = []
    for name, way in ways.items():
        result = eigenveil("fit", *way, *common, "-o", tmp_path / f"{name}.safetensors")
        assert result.exit_code == 0, result.output
        found.append(Model.load(tmp_path / f"{name}.safetensors").components.tobytes())
    assert len(set(found)) == 1


def test_a_site_of_a_network_study_may_have_its_table_on_a_cluster(tmp_path: Path) -> None:
    """Over real connections: the model is that of the simulation with all tables in memory, to the last bit."""
    company = Company(tmp_path, sections={"privacy": {"trust": "site"}, "rehearsal": {"seed": 7}})
    path = tmp_path / "patients.parquet"
    # With a column that the study does not name, and that must not be read.
    pd.DataFrame(company.tables["site 0"], columns=STUDIED).assign(name="x").to_parquet(path, row_group_size=100)
    holding = SiteData.read(path, company.study, dask=True)
    assert is_remote(holding.rows) and holding.columns == 6
    site = company.site
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            company, "site", lambda name, ledger: site(name, ledger, **({"holding": holding} if name == "site 0" else {}))
        )
        company.run()
    simulated = company.study.estimator()
    assert isinstance(simulated, FederatedPCA)
    simulated.fit(company.tables)
    np.testing.assert_array_equal(company.models["hub"].components, simulated.components_)


def test_a_site_shows_what_leaves_its_cluster(client: Any, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    file = folders.study_file("site 0")
    data = next(file.parent.glob("*.parquet"))
    told = eigenveil(
        *("site", file, "--data", data, "--dask", client.scheduler.address, "--dataset", "p", "--dry-run"),
        *("--ledger", tmp_path / "ledger.db"),
    )
    assert told.exit_code == 0 and "This was a dry run" in told.output
    words = refusal("site", file, "--data", data, "--dask", "tcp://127.0.0.1:9", "--scores", tmp_path / "s.csv")
    assert "--scores copies rows here" in words


# Last, because workers take seconds to start again.


def test_a_worker_killed_in_the_middle_changes_nothing_unless_its_source_did(tmp_path: Path) -> None:
    for name in ("kept.npy", "changed.npy"):
        np.save(tmp_path / name, ROWS)
    kept: Any = array_rows(source(tmp_path / "kept.npy", 500))
    changed: Any = array_rows(source(tmp_path / "changed.npy", 500))
    before = fitted(kept)
    np.save(tmp_path / "changed.npy", ROWS + 1)
    assert kept.total(Killer(tmp_path / "killed")) == COUNT
    # The partitions of that worker are read again.
    assert same(before, fitted(kept))
    ledger = Ledger(epsilon=2.0, delta=1e-6)
    with pytest.raises(ValueError, match=r"partition \d+ has changed since the fit began"):
        fitted(changed, ledger=ledger)
    assert ledger.charges == ()


def restarted(client: Any) -> None:
    client.cluster.scale(2)
    client.wait_for_workers(2, timeout=60)


def test_a_cluster_that_loses_all_workers_is_an_error(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = array_rows(array())
    monkeypatch.setattr(dask_rows, "_PATIENCE", 0.5)
    ledger = Ledger(epsilon=2.0, delta=1e-6)
    try:
        # One may still be starting after it was killed.
        client.wait_for_workers(2, timeout=60)
        client.cluster.scale(0)
        while client.nthreads():
            time.sleep(0.05)
        with pytest.raises(EngineLost, match=r"lost all its workers\. Nothing of this sum"):
            fitted(rows, ledger=ledger)
        with pytest.raises(EngineLost, match=r"has no workers|lost all its workers"):
            array_rows(array())
    finally:
        restarted(client)
    assert ledger.charges == ()
    # Nothing is lost: once workers are back, the same rows are read again, and the whole budget is there.
    assert same(fitted(ROWS), fitted(rows, ledger=ledger))
