"""One error names every column that cannot be analysed, and what to paste to leave all of them out."""

import copy
import io
import shlex
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands.command_tables import PRIVATE, eigenveil, refusal
from eigenveil import PrivatePCA, find_bounds
from eigenveil.data import columns as faults
from eigenveil.data.columns import to_drop
from eigenveil.data.formats import csv as csv_format
from eigenveil.data.formats import text as text_format
from eigenveil.data.tables import open_source, read_table
from eigenveil.errors import ColumnsError

N = 4000
FIT = ("-k", 1, *PRIVATE)


def table(**more: Any) -> dict[str, Any]:
    """Numbers, with text in `note` early and in `remark` late, a gap in `pulse` and an infinite `weight`."""
    found: dict[str, Any] = {name: np.arange(N) % 7 + 0.5 for name in ("age", "pulse", "weight")}
    found["pulse"] = [None if i == 3000 else float(value) for i, value in enumerate(found["pulse"])]
    found["weight"][2000] = np.inf
    return found | more


def as_csv(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The table as text, read in many blocks."""
    monkeypatch.setattr(text_format, "BYTES_OF_FILE", 4096)
    monkeypatch.setattr(text_format, "_BYTES", 4096)
    note, remark = ["x" if i == 10 else "1" for i in range(N)], ["y" if i > 3900 else "2" for i in range(N)]
    path = folder / "people.csv"
    pd.DataFrame(table(note=note, remark=remark)).to_csv(path, index=False)
    return path


def test_a_csv_names_what_is_wrong_in_any_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_csv(tmp_path, monkeypatch)
    with pytest.raises(ColumnsError) as caught:
        read_table(path)
    assert caught.value.columns == ("note", "remark", "weight", "pulse")
    assert str(caught.value).startswith(f"{path} cannot be read after row 10: not a number in column 'note'")
    # A rule for gaps makes them no fault.
    with pytest.raises(ColumnsError) as caught:
        read_table(path, gaps=True)
    assert caught.value.columns == ("note", "remark", "weight")
    with pytest.raises(ColumnsError) as caught:
        list(open_source(path).batches)
    assert caught.value.columns == ("note", "remark", "weight")


def test_what_a_pipe_gave_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_csv(tmp_path, monkeypatch)
    with pytest.raises(ColumnsError) as caught:
        read_table(io.BytesIO(path.read_bytes()), kind="csv")
    assert caught.value.columns == ("note",)


def test_the_look_at_a_long_file_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_csv(tmp_path, monkeypatch)
    monkeypatch.setattr(csv_format, "LOOKED_AT", 8192)
    with pytest.raises(ColumnsError) as caught:
        read_table(path)
    assert caught.value.columns == ("note",)


def test_a_broken_line_further_down_does_not_hide_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("a,b,c\n1,x,2\n1,2,3,4\n")
    with pytest.raises(ColumnsError) as caught:
        read_table(path)
    assert caught.value.columns == ("b",)


@pytest.mark.parametrize("ending", ["parquet", "feather", "xlsx"])
def test_typed_files_name_text_gaps_and_infinity_together(ending: str, tmp_path: Path) -> None:
    found = pd.DataFrame(table(note=["x"] * N))
    path = tmp_path / f"people.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pandas(found, preserve_index=False), path, row_group_size=500)
    elif ending == "feather":
        found.to_feather(path)
    else:
        # A sheet has no infinity.
        found.drop(columns="weight").head(3100).to_excel(path, index=False)
    with pytest.raises(ColumnsError) as caught:
        read_table(path)
    assert caught.value.columns == (("note", "pulse") if ending == "xlsx" else ("note", "weight", "pulse"))


def test_gaps_in_far_blocks_are_named_at_once(tmp_path: Path) -> None:
    values = {name: np.ones(N) for name in "abc"}
    values["a"][5], values["c"][N - 1] = np.nan, np.nan
    path = tmp_path / "people.parquet"
    pq.write_table(pa.table(values), path, row_group_size=500)
    rows = read_table(path).rows
    with pytest.raises(ColumnsError) as caught:
        list(rows.blocks(100))
    assert caught.value.columns == ("a", "c")
    with pytest.raises(ColumnsError) as caught:
        PrivatePCA(1, epsilon=None).fit(pa.table(values).combine_chunks())
    assert caught.value.columns == ("a", "c")


@pytest.mark.parametrize("store", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_tables_in_memory_name_the_same(store: Any) -> None:
    X = store(table(note=["x"] * N, flag=[True] * N))
    for act in (PrivatePCA(1, epsilon=None).fit, lambda X: find_bounds(X, epsilon=1.0, delta=1e-6)):
        with pytest.raises(ColumnsError) as caught:
            act(X)
        assert caught.value.columns == ("note", "weight", "pulse")
    with pytest.raises(ColumnsError) as caught:
        PrivatePCA(1, epsilon=None, missing="counts", drop=["weight"]).fit(X)
    assert caught.value.columns == ("note",)


def test_ids_text_and_gaps_are_said_in_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_csv(tmp_path, monkeypatch)
    text = path.read_text().replace("age", "patient_id", 1)
    path.write_text(text)
    line = refusal("fit", path, *FIT, "-o", tmp_path / "m.safetensors")
    assert "these are not numbers: note, remark. Missing or infinite values are in: weight, pulse" in line
    assert "--drop patient_id,note,remark" in line
    assert "Missing or infinite values are in: weight." in refusal(
        "stream", path, "-k", 1, "--no-privacy", "-o", tmp_path / "m.safetensors"
    )


def test_what_an_error_says_can_be_pasted(tmp_path: Path) -> None:
    names = [*(f"q{i}" for i in range(40)), "age", "note,long", "weight", *(f"r[{i}" for i in range(9))]
    values = {name: ["1.5" if name in ("age", "weight") else "x"] * 9 for name in names}
    path = tmp_path / "people.csv"
    pd.DataFrame(values).to_csv(path, index=False)
    line = refusal("fit", path, *FIT, "-o", tmp_path / "m.safetensors")
    words = shlex.split(line[line.index("--drop") :].partition(", or turn")[0])
    assert eigenveil("fit", path, *FIT, "-o", tmp_path / "m.safetensors", *words).exit_code == 0


def test_patterns_leave_out_no_other_column() -> None:
    bad = [f"q{i}" for i in range(30)]
    assert to_drop(bad, [*bad, "age"]) == ("q*",)
    # A pattern would take the good column along, and thirty names are too many to paste.
    assert to_drop(bad, [*bad, "quality"]) == ()
    assert to_drop([*bad, "a*1", "a*2", "a*3"], [*bad, "a*1", "a*2", "a*3", "ab"]) == ("q*", "a[*]*")
    assert fnmatchcase("a*1", "a[*]*")
    assert to_drop([str(i) for i in range(30)], [str(i) for i in range(31)]) == ()


def test_too_many_names_are_not_written_out() -> None:
    bad = tuple(f"{i}" for i in range(1000))
    error = ColumnsError("bad", bad, drop=())
    assert len(str(error)) < 200
    assert "{" not in str(error)
    again = copy.copy(error)
    assert (str(again), again.columns) == (str(error), bad)


def test_a_file_that_is_damaged_further_down_keeps_its_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "people.parquet"
    pq.write_table(pa.table({"a": [1.0], "note": ["x"]}), path)

    def damaged(*_: object) -> None:
        raise ValueError("damaged")

    monkeypatch.setattr(faults.ColumnFaults, "of_batches", damaged)
    with pytest.raises(ColumnsError) as caught:
        read_table(path)
    assert caught.value.columns == ("note",)


def test_a_line_of_units_is_said_beside_an_id(tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    path.write_text("patient_id;crea;urea;age\n;mg/dl;mg/dl;\n1;0,9;30;50\n2;1,1;41;60\n")
    line = refusal("fit", path, *FIT, "-o", tmp_path / "m.safetensors")
    assert "--drop patient_id" in line and "a line of units" in line
    assert "--drop patient_id,crea" not in line
