"""`eigenveil transform`: the scores the model gives, matched by name, whole or not at all, for the owner's eyes only."""

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from cli.cli_tables import COUNT, FORMATS, NAMES, PRIVATE, arrow_table, eigenveil, files_in, refusal, rows, written
from eigenveil import Model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of the table with named columns, in a folder of its own."""
    folder = tmp_path / "model"
    folder.mkdir()
    target = folder / "model.safetensors"
    eigenveil("fit", written(folder, "csv"), "-k", 2, *PRIVATE, "--scale", "1,2,1,1,1", "-o", target)
    return target


def scores_in(path: Path) -> Any:
    """The scores, (n, k), in any of the output formats."""
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    table = pc.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    assert table.schema.names == ["component1", "component2"]
    return np.column_stack([column.to_numpy() for column in table.columns])


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_in_and_out(tmp_path: Path, model: Path, kind: str, ending: str) -> None:
    target = tmp_path / f"scores.{ending}"
    result = eigenveil("transform", written(tmp_path, kind), "-m", model, "-o", target)
    assert result.exit_code == 0, result.output
    assert np.allclose(scores_in(target), Model.load(model).transform(rows()), rtol=1e-12, atol=1e-12)
    assert "as private as they are" in " ".join(result.stdout.split())
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_columns_are_matched_by_name_and_strangers_left_out(tmp_path: Path, model: Path) -> None:
    source, target = tmp_path / "mixed.csv", tmp_path / "scores.npy"
    shuffled = arrow_table(rows(), who=["x"] * COUNT).select(["salt", "who", *NAMES[:-1]])
    pc.write_csv(shuffled, source)
    result = eigenveil("transform", source, "-m", model, "-o", target)
    assert "left out, because the model does not have them: who" in result.stdout
    assert np.allclose(np.load(target), Model.load(model).transform(rows()))


def test_what_is_carried_keeps_its_type(tmp_path: Path, model: Path) -> None:
    number, when = np.arange(COUNT) * 7, pa.array(range(COUNT), pa.timestamp("ms"))
    more = {"visit": number, "label": ["007"] * COUNT, "when": when, "cell": [[1, 2]] * COUNT}
    source, target = tmp_path / "people.parquet", tmp_path / "scores.parquet"
    pq.write_table(arrow_table(rows(), **more), source)
    # One that is analysed is carried, too.
    carry = ("--carry", "visit,label,when,cell,salt")
    assert eigenveil("transform", source, "-m", model, "-o", target, *carry).exit_code == 0
    found = pq.read_table(target)
    expected = pq.read_table(source).select(["visit", "label", "when", "cell", "salt"])
    assert found.select(expected.schema.names).equals(expected)
    line = refusal("transform", source, "-m", model, "-o", tmp_path / "scores.csv", *carry)
    assert "--carry cell" in line and ".parquet" in line
    assert not (tmp_path / "scores.csv").exists()


def test_a_csv_is_carried_as_it_is_written(tmp_path: Path, model: Path) -> None:
    source, target = tmp_path / "people.csv", tmp_path / "scores.csv"
    lines = [f'{i:04d};"a;b";{";".join(f"{x:.3f}".replace(".", ",") for x in row)}' for i, row in enumerate(rows()[:9])]
    source.write_text(f"id;note;{';'.join(NAMES)}\n" + "\n".join(lines) + "\n")
    carry = ("--decimal", ",", "--carry", "id,note,age")
    assert eigenveil("transform", source, "-m", model, "-o", target, *carry).exit_code == 0
    found = pc.read_csv(target, convert_options=pc.ConvertOptions(column_types={"id": pa.string()}))
    assert found["id"].to_pylist() == [f"{i:04d}" for i in range(9)]
    assert set(found["note"].to_pylist()) == {"a;b"}
    assert np.allclose(found["age"].to_numpy(), rows()[:9, 0], atol=1e-3)


def test_svmlight_rows_may_be_shorter_than_the_model(tmp_path: Path, model: Path) -> None:
    values = rows()
    values[:, 3:] = 0
    target = tmp_path / "scores.npy"
    eigenveil("transform", written(tmp_path, "svm", values), "-m", model, "-o", target)
    assert np.allclose(np.load(target), Model.load(model).transform(values))


def test_wrong_columns_are_named(tmp_path: Path, model: Path) -> None:
    target = tmp_path / "scores.csv"
    few = tmp_path / "few.csv"
    pc.write_csv(arrow_table(rows()[:, :4], ("age", "income", "height", "wait")), few)
    line = refusal("transform", few, "-m", model, "-o", target)
    assert "lacks columns of the model: weight, salt" in line
    narrow = written(tmp_path, "npy", rows()[:, :3])
    assert "has 3 columns and the model has 5" in refusal("transform", narrow, "-m", model, "-o", target)
    dropped = written(tmp_path, "csv")
    assert "lacks columns of the model: age" in refusal(
        "transform", dropped, "-m", model, "-o", target, "--drop", "age"
    )
    assert not target.exists()


def test_nothing_is_overwritten_unasked(tmp_path: Path, model: Path) -> None:
    source, target = written(tmp_path, "npy"), tmp_path / "scores.csv"
    target.write_text("mine")
    assert "already exists" in refusal("transform", source, "-m", model, "-o", target)
    assert target.read_text() == "mine"
    assert "is also an input" in refusal("transform", source, "-m", model, "-o", source, "--force")
    assert eigenveil("transform", source, "-m", model, "-o", target, "--force").exit_code == 0
    assert scores_in(target).shape == (COUNT, 2)


def test_mistakes_leave_no_file(tmp_path: Path, model: Path) -> None:
    values = rows()
    values[COUNT - 1, 0] = np.inf
    source = written(tmp_path, "npy", values)
    before = files_in(tmp_path)
    for output, words in (("scores.csv", "NaN or infinite"), ("scores.pkl", "must end in"), ("no/s.csv", "not exist")):
        assert words in refusal("transform", source, "-m", model, "-o", tmp_path / output)
    assert "does not exist" in refusal("transform", tmp_path / "no.csv", "-m", model, "-o", tmp_path / "s.csv")
    assert "does not exist" in refusal("transform", source, "-m", tmp_path / "no", "-o", tmp_path / "s.csv")
    assert "not an Eigenveil model" in refusal("transform", source, "-m", source, "-o", tmp_path / "s.csv")
    assert files_in(tmp_path) == before


def test_help_warns_that_scores_are_raw() -> None:
    assert "SCORES ARE RAW DATA" in eigenveil("transform", "--help").stdout
