"""Rows of files that several processes read: what they add up to is what one process adds up to, to the last bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands.command_tables import refusal, written
from data.engines.sent import Killer, Peak
from eigenveil import PrivatePCA, rows_in_processes
from eigenveil.core.rows import innermost
from eigenveil.data.engines import pool
from eigenveil.data.engines.pool import PoolRows
from eigenveil.data.rows import NamedRows, WatchedRows
from eigenveil.data.tables import read_table
from eigenveil.errors import ColumnsError, EngineLost
from eigenveil.linalg import Array

COUNT = 6000
ROWS: Array = np.random.default_rng(3).standard_normal((COUNT, 5)) * [9, 5, 2, 1, 1] + 4
# Every person has rows in several files.
PEOPLE = np.random.default_rng(4).integers(900, size=COUNT)
NAMES = ["age", "pulse", "weight", "height", "sodium"]
PRIVATE: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "random_state": 7, "row_bound": 30.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Parquet files with several row groups each, the columns of one file in another order."""
    where = tmp_path_factory.mktemp("parquet")
    for number, (rows, people) in enumerate(zip(np.split(ROWS, 3), np.split(PEOPLE, 3), strict=True)):
        columns = {"patient": [f"p{one}" for one in people], **dict(zip(NAMES, rows.T, strict=True))}
        if number == 1:
            columns = dict(reversed(columns.items()))
        pq.write_table(pa.table(columns), where / f"part-{number}.parquet", row_group_size=700)
    return where


def fitted(rows: Any, **settings: Any) -> PrivatePCA:
    return PrivatePCA(2, **PRIVATE, **settings).fit(rows)


@pytest.mark.parametrize("person", [None, "patient"])
def test_a_folder_read_by_two_processes_gives_the_bits_of_one(folder: Path, person: str | None) -> None:
    how: dict[str, Any] = {"person": person, "drop": () if person else ("patient",)}
    table = read_table(folder, **how)
    here = fitted(NamedRows(table.rows, table.columns, person))
    there = fitted(rows_in_processes(folder, processes=2, **how))
    assert here.components_.tobytes() == there.components_.tobytes()
    assert here.guarantee_.protects == there.guarantee_.protects and there.model_.columns == tuple(NAMES)


def test_an_npy_file_is_read_in_ranges(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS.astype(np.float32))
    rows = rows_in_processes(tmp_path / "rows.npy", processes=2)
    assert rows.shape == ROWS.shape and len(innermost(rows).pieces) > 2
    assert fitted(ROWS.astype(np.float32)).components_.tobytes() == fitted(rows).components_.tobytes()
    weighted = innermost(rows).by_person(PEOPLE)
    assert fitted(ROWS.astype(np.float32), person=PEOPLE).mean_.tobytes() == fitted(weighted).mean_.tobytes()


def test_progress_counts_every_row_of_a_pass(folder: Path) -> None:
    seen: list[int] = []
    rows = WatchedRows(rows_in_processes(folder, processes=2, drop=["patient"]), seen.append)
    fitted(rows, center=None, method="covariance")
    # The Gram matrix and the number of people.
    assert sum(seen) == 2 * COUNT


def test_a_process_killed_in_the_middle_changes_nothing(folder: Path, tmp_path: Path) -> None:
    rows: PoolRows = innermost(rows_in_processes(folder, processes=2, drop=["patient"]))
    assert rows.total(Killer(tmp_path / "killed")) == COUNT


def test_losing_all_processes_is_an_error_that_spends_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_ATTEMPTS", 1)
    rows: PoolRows = innermost(rows_in_processes(folder, processes=2, drop=["patient"]))
    with pytest.raises(EngineLost, match="Use fewer processes"):
        rows.total(Killer(None))


def test_a_file_that_changes_between_two_sums_is_noticed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    table = pq.read_table(folder / "part-0.parquet")
    pq.write_table(table, path)
    rows = rows_in_processes(path, processes=2, drop=["patient"])
    pq.write_table(table.slice(1), path)
    with pytest.raises(ValueError, match="has changed while it was being fitted"):
        fitted(rows)


def test_missing_values_are_refused_by_name_and_without_a_value(tmp_path: Path) -> None:
    path = tmp_path / "gaps.parquet"
    pq.write_table(pa.table({"age": [31.25, None] * 50, "pulse": [60.0] * 100}), path)
    with pytest.raises(ColumnsError, match="age") as caught:
        fitted(rows_in_processes(path, processes=2))
    assert "31.25" not in str(caught.value)


def test_nan_in_a_float_column_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "gaps.npy", np.array([[1.0, np.nan]] * 50))
    with pytest.raises(ValueError, match="contains NaN"):
        fitted(rows_in_processes(tmp_path / "gaps.npy", processes=2))


def test_what_cannot_be_cut_is_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="Convert it to Parquet first"):
        rows_in_processes(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="at least 1"):
        rows_in_processes(folder, processes=0)
    np.save(tmp_path / "b.npy", ROWS)
    with pytest.raises(ValueError, match="no column names"):
        rows_in_processes(tmp_path / "b.npy", drop=["a"])
    with pytest.raises(ColumnsError, match="patient"):
        rows_in_processes(folder)


def test_a_table_is_fitted_in_a_fraction_of_its_size(tmp_path: Path) -> None:
    """128 MB of Parquet: no process may come to have a third of it, be it one that reads or this one."""
    size, rng = 0, np.random.default_rng(0)
    for number in range(4):
        columns = {f"x{at}": rng.standard_normal(80_000) for at in range(50)}
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=4000, compression="none")
        size += 80_000 * 50 * 8
    rows: PoolRows = innermost(rows_in_processes(tmp_path, processes=2))
    # A first sum loads what any sum needs.
    fitted(rows_in_processes(tmp_path / "0.parquet", processes=2), method="covariance")
    before = rows.total(Peak()), Peak().of(None)
    fitted(rows, method="covariance")
    grown = rows.total(Peak()) - before[0], Peak().of(None) - before[1]
    assert max(grown) < size / 3


@pytest.mark.parametrize("ending", ["csv", "npz", "svm"])
def test_files_that_only_one_process_can_read_are_refused(tmp_path: Path, ending: str) -> None:
    """They were read in this process, and nobody was told."""
    line = refusal("fit", written(tmp_path, ending), "--processes", 2, "-k", 1, "--no-privacy", "-o", tmp_path / "m.safetensors")
    assert "cannot be shared by several processes" in line
