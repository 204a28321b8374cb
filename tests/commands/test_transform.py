"""`eigenveil transform`: the scores the model gives, matched by name, whole or not at all, for the owner's eyes only."""

import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.command_tables import COUNT, FORMATS, NAMES, PRIVATE, arrow_table, eigenveil, files_in, refusal, rows, written
from eigenveil import Model, PrivatePCA
from eigenveil.data.formats.csv import as_plain_text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of the table with named columns, in a folder of its own."""
    folder = tmp_path / "model"
    folder.mkdir()
    target = folder / "model.safetensors"
    eigenveil("fit", written(folder, "csv"), "-k", 2, *PRIVATE, "--scale", "1,2,1,1,1", "-o", target)
    return target


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": pd.read_csv,
    ".tsv": lambda path: pd.read_csv(path, sep="\t"),
    ".xlsx": lambda path: pd.read_excel(path, engine="openpyxl"),
    ".jsonl": lambda path: pd.read_json(path, lines=True, precise_float=True),
    ".parquet": pd.read_parquet,
    ".feather": pd.read_feather,
    ".arrow": pd.read_feather,
}


def scores_in(path: Path) -> Any:
    """The scores, (n, k), in any of the output formats."""
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    table = pa.Table.from_pandas(READERS[path.suffix](path), preserve_index=False)
    assert table.schema.names == ["component1", "component2"]
    return np.column_stack([column.to_numpy() for column in table.columns])


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy", "xlsx"])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_in_and_out(tmp_path: Path, model: Path, kind: str, ending: str) -> None:
    target = tmp_path / f"scores.{ending}"
    result = eigenveil("transform", written(tmp_path, kind), "-m", model, "-o", target)
    assert result.exit_code == 0, result.output
    assert np.allclose(scores_in(target), Model.load(model).transform(rows()), rtol=1e-12, atol=1e-12)
    assert "as private as they are" in " ".join(result.stdout.split())
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize("ending", ["tsv", "jsonl", "feather", "arrow"])
def test_other_formats_that_people_expect(tmp_path: Path, model: Path, ending: str) -> None:
    target = tmp_path / f"scores.{ending}"
    result = eigenveil("transform", written(tmp_path, "csv"), "-m", model, "-o", target)
    assert result.exit_code == 0, result.output
    assert np.allclose(scores_in(target), Model.load(model).transform(rows()), rtol=1e-12, atol=1e-12)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


# What a spreadsheet program takes for a formula, and what must stay as it is.
FORMULAS = (
    *("=cmd|' /C calc'!A0", "+1+cmd|x", "-2+3+cmd|x", "@SUM(A1)", "\t=1+1", "\r=1+1", " =1+1", "x;=1+1", "x\n=1+1"),
    *("x\t=1", '"=1"\n-1+1', "＝1+1", "-A1", "+", "1;@x", 'a;"=1'),
)
HARMLESS = ("-5", "-5.25", "+49", "-1e-3", "-1.243,5", "- 3", "5%", "-5%", "a=b", "a-b@c", "-", "", "007", "x; y", "é")


@pytest.mark.parametrize("ending", ["csv", "tsv", "xlsx", "parquet", "jsonl"])
def test_no_carried_cell_is_a_formula(tmp_path: Path, model: Path, ending: str) -> None:
    notes = [*FORMULAS, *HARMLESS]
    source, target = tmp_path / "people.parquet", tmp_path / f"scores.{ending}"
    more = {"=note": notes, "label": pa.array(notes).dictionary_encode(), "dose": -np.arange(float(len(notes)))}
    pq.write_table(arrow_table(rows()[: len(notes)], **more), source)
    passthrough = ("--passthrough", "=note,label,dose")
    assert eigenveil("transform", source, "-m", model, "-o", target, *passthrough).exit_code == 0
    if ending == "xlsx":
        book = openpyxl.load_workbook(target)
        cells = [cell for row in book.active.iter_rows() for cell in row if isinstance(cell.value, str)]
        # The text is whole, and marked as text.
        assert len(cells) > 2 * len(notes) - 4 and all(cell.data_type != "f" and cell.quotePrefix for cell in cells)
        read = pd.read_excel(target, keep_default_na=False, engine="openpyxl")["=note"].tolist()
        assert [str(text).replace("_x000D_", "\r") for text in read] == notes
    elif ending in ("csv", "tsv"):
        # Read as any program would split it: at commas, semicolons or tabs, and at line ends, whatever stands in quotes.
        text = target.read_bytes().decode()
        for cell in re.split(r"[,;|\t\r\n]", text.replace('""', "").replace('"', "")):
            bare = cell.strip()
            assert bare[:1] not in {"=", "@", "＝"} and (bare[:1] not in {"+", "-"} or re.fullmatch(r"[-+]\s?[\d.eE+-]*%?", bare))
        read = pd.read_csv(target, sep="\t" if ending == "tsv" else ",", keep_default_na=False, dtype=str)
        found = read["'=note"].tolist()
        assert found[-len(HARMLESS) :] == list(HARMLESS) == read["label"].tolist()[-len(HARMLESS) :]
        assert [text.replace("'", "") for text in found] == [text.replace("'", "").replace("\r", "\r") for text in notes]
        assert read["dose"].astype(float).tolist() == more["dose"].tolist()
    else:
        # Files that no spreadsheet program opens keep the text.
        assert READERS[f".{ending}"](target)["=note"].tolist() == notes


def test_what_stood_for_a_missing_value_in_the_fit_does_so_in_other_tables(tmp_path: Path) -> None:
    source, model, target = tmp_path / "a.csv", tmp_path / "model.safetensors", tmp_path / "scores.csv"
    values = rows()
    values[::7, 1] = -9999
    pc.write_csv(arrow_table(values), source)
    given = ("-k", 1, "--no-privacy", "--missing", "counts", "--na-values", "-9999.0,?", "-o", model)
    assert eigenveil("fit", source, *given).exit_code == 0
    assert Model.load(model).settings["na_values"] == ["-9999.0", "?"]
    # Without the option a sentinel is the first component.
    plain = tmp_path / "plain.safetensors"
    assert eigenveil("fit", source, "-k", 1, "--no-privacy", "-o", plain).exit_code == 0
    assert np.abs(Model.load(plain).components[0, 1]) > 0.99 > np.abs(Model.load(model).components[0, 1])
    found = np.empty(0)
    for more in ((), ("--na-values", "-9999"), ("--na-values=-9999",)):
        assert eigenveil("transform", source, "-m", model, "-o", target, "--force", *more).exit_code == 0
        found = scores_of_one(target)
        gone = values.copy()
        gone[::7, 1] = np.nan
        np.testing.assert_allclose(found, Model.load(model).transform(gone)[:, 0])
    # In Python, too: a table in memory still has its sentinels.
    for learned in (Model.load(model), PrivatePCA.load(model)):
        for table in (values, sp.csr_array(values), pd.DataFrame(values, columns=NAMES)):
            np.testing.assert_allclose(learned.transform(table)[:, 0], found)
    strict = replace(Model.load(model), settings={**Model.load(model).settings, "missing": "refuse"})
    with pytest.raises(ValueError, match=r"-9999\.0, \?, which stood for a missing value in the fit"):
        strict.transform(values)
    with pytest.raises(ValueError, match="na_values that cannot be read"):
        replace(strict, settings={"na_values": {"a": 1}}).transform(values)
    line = refusal("fit", source, "-k", 1, "--no-privacy", "--na-values", "-9999", "-o", tmp_path / "b.safetensors")
    assert "column 'income' has missing values" in line


def scores_of_one(path: Path) -> Any:
    return pd.read_csv(path)["component1"].to_numpy()


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
    passthrough = ("--passthrough", "visit,label,when,cell,salt")
    assert eigenveil("transform", source, "-m", model, "-o", target, *passthrough).exit_code == 0
    found = pq.read_table(target)
    expected = pq.read_table(source).select(["visit", "label", "when", "cell", "salt"])
    assert found.select(expected.schema.names).equals(expected)
    line = refusal("transform", source, "-m", model, "-o", tmp_path / "scores.csv", *passthrough)
    assert "--passthrough cell" in line and ".parquet" in line
    assert not (tmp_path / "scores.csv").exists()


def test_a_csv_is_carried_as_it_is_written(tmp_path: Path, model: Path) -> None:
    source, target = tmp_path / "people.csv", tmp_path / "scores.csv"
    lines = [f'{i:04d};"a;b";{";".join(f"{x:.3f}".replace(".", ",") for x in row)}' for i, row in enumerate(rows()[:9])]
    source.write_text(f"id;note;{';'.join(NAMES)}\n" + "\n".join(lines) + "\n")
    passthrough = ("--decimal", ",", "--passthrough", "id,note,age")
    assert eigenveil("transform", source, "-m", model, "-o", target, *passthrough).exit_code == 0
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
    assert "lacks columns of the model: age" in refusal("transform", dropped, "-m", model, "-o", target, "--drop", "age")
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


@settings(max_examples=500)
@given(st.text("=+-@;|\t\r\n\"' 1a,.＝", max_size=8))
def test_no_text_is_a_formula_wherever_it_is_split(text: str) -> None:
    safe = as_plain_text(pa.array([text]))[0].as_py()
    if re.fullmatch(r" *[-+]? *[\d.,' ]*", text):
        return
    # A program of another language splits at other characters, and takes a quote for the beginning or the end of a cell.
    for cell in re.split(r"[;|\t\r\n]", safe.replace('"', "")):
        assert cell.lstrip(" ")[:1] not in {"=", "+", "-", "@", "＝"}
    assert safe.replace("'", "") == text.replace("'", "")
