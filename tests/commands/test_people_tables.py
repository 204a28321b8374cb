"""Tables as people have them, on the command line: ids, dialects, pipes, columns of text, and what is carried beside scores."""

import gzip
import io
import json
import shlex
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from commands.command_tables import PRIVATE, eigenveil, files_in, refusal
from eigenveil import PrivatePCA
from eigenveil.commands import _files, app
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.model import Model
from eigenveil.privacy.guarantee import Guarantee

SECRET = "8675309"
FIT = ("-k", 2, *PRIVATE)


def people(count: int = 300) -> Any:
    """A table with an id, a date, text, a label and numbers."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "patient_id": 8675309 + np.arange(count),
            "visit": "2020-01-01",
            "sex": rng.choice(["f", "m", "x"], count),
            "acid": rng.normal(size=count) * 4,
            "sugar": rng.normal(size=count) * 2,
            "ph": rng.normal(size=count),
            "label": rng.choice(["red", "white"], count),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    people().to_csv(path, index=False)
    return path


def test_one_message_names_all_that_must_be_left_out(table: Path, tmp_path: Path) -> None:
    before = files_in(tmp_path)
    target = ("-o", tmp_path / "m.safetensors")
    pq.write_table(pa.Table.from_pandas(people(), preserve_index=False), tmp_path / "people.parquet")
    before.add("people.parquet")
    for source in (table, tmp_path / "people.parquet"):
        for command in ("fit", "spectrum"):
            given = FIT if command == "fit" else PRIVATE
            line = refusal(command, source, *given, "-o", tmp_path / ("m.safetensors" if command == "fit" else "s.json"))
            assert "--drop patient_id,visit,sex,label" in line and "--person patient_id" in line
            assert SECRET not in line
    assert files_in(tmp_path) == before
    # What it says works when it is typed.
    words = shlex.split(line[line.index("--drop") :])[:2]
    assert eigenveil("fit", table, *FIT, *target, words[0], words[1].rstrip(",")).exit_code == 0
    assert Model.load(tmp_path / "m.safetensors").columns == ("acid", "sugar", "ph")


def test_a_person_at_a_terminal_is_asked_about_ids(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "_can_ask", lambda _: True)
    given = ["fit", str(table), *map(str, FIT), "--drop", "visit,sex,label", "--force", "-o", str(tmp_path / "m.safetensors")]
    for typed, columns in (("y\n", 3), ("\n", 3), ("n\n", 4)):
        result = CliRunner().invoke(app, given, input=typed)
        assert result.exit_code == 0 and "Leave out 'patient_id'?" in result.stderr
        assert Model.load(tmp_path / "m.safetensors").components.shape[1] == columns
    assert CliRunner().invoke(app, given, input="perhaps\n").exit_code == 2
    assert CliRunner().invoke(app, given, input="").exit_code == 130


def test_an_id_can_be_analysed_by_name(table: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.safetensors"
    kept = ("--columns", "patient_id,acid,s*", "--drop", "sex")
    assert eigenveil("fit", table, *FIT, *kept, "-o", target).exit_code == 0
    assert Model.load(target).columns == ("patient_id", "acid", "sugar")


def fitted(table: Path, target: Path, *more: object) -> Model:
    options = ("--drop", "visit", "--passthrough", "patient_id,label", "--one-hot", "sex=f,m", "--seed", 0, *more)
    result = eigenveil("fit", table, *FIT, *options, "-o", target, "--force")
    assert result.exit_code == 0, result.output
    return Model.load(target)


def test_the_command_and_python_fit_the_same_model(table: Path, tmp_path: Path) -> None:
    model = fitted(table, tmp_path / "m.safetensors")
    assert model.columns == ("sex_f", "sex_m", "acid", "sugar", "ph")
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 12.0, "random_state": 0}
    pca = PrivatePCA(2, **given, drop=["visit", "patient_id", "label"], one_hot={"sex": ["f", "m"]})
    assert np.array_equal(pca.fit(people()).components_, model.components)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_scores_carry_what_they_are_joined_by(ending: str, table: Path, tmp_path: Path) -> None:
    model = fitted(table, tmp_path / "m.safetensors")
    scores = tmp_path / f"scores.{ending}"
    # Another order of columns, another separator, one column more.
    other = tmp_path / "other.csv.gz"
    people()[["label", "ph", "acid", "sugar", "sex", "patient_id"]].assign(more="x").to_csv(other, index=False, sep=";")
    result = eigenveil("transform", other, "-m", tmp_path / "m.safetensors", "-o", scores, "--passthrough", "patient_id,lab*")
    assert result.exit_code == 0, result.output
    assert "raw data of the people in" in result.output.replace("\n", " ") and "patient_id, label" in result.output
    assert "left out, because the model does not have them: more" in result.output
    found = pd.read_csv(scores) if ending == "csv" else pd.read_parquet(scores)
    assert list(found) == ["patient_id", "label", "component1", "component2"]
    assert found["patient_id"].astype(int).tolist() == people()["patient_id"].tolist()
    table_ = people()
    rows = np.column_stack([table_["sex"] == "f", table_["sex"] == "m", table_["acid"], table_["sugar"], table_["ph"]])
    assert np.allclose(found[["component1", "component2"]], model.transform(rows))
    assert stat.S_IMODE(scores.stat().st_mode) == 0o600


def test_what_cannot_be_carried_is_refused(table: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    fitted(table, model)
    assert "--passthrough needs" in refusal("transform", table, "-m", model, "-o", tmp_path / "s.npy", "--passthrough", "label")
    assert "has no column 'who'" in refusal("transform", table, "-m", model, "-o", tmp_path / "s.csv", "--passthrough", "who")
    people().assign(component1=1).to_csv(table, index=False)
    taken = refusal("transform", table, "-m", model, "-o", tmp_path / "s.csv", "--passthrough", "component1")
    assert "has the name of a column of scores" in taken
    people().assign(acid="x" + SECRET).to_csv(table, index=False)
    line = refusal("transform", table, "-m", model, "-o", tmp_path / "s.csv")
    assert "not a number in column 'acid'" in line and SECRET not in line
    assert not (tmp_path / "s.csv").exists()


def test_a_pipe_can_be_fitted_and_scored(table: Path, tmp_path: Path) -> None:
    def piped(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(one) for one in arguments], input=table.read_bytes())

    chosen = ("--columns", "acid,sugar,ph", "--seed", 0, "--row-bound", 9, "--center", "none")
    assert eigenveil("fit", table, *FIT, *chosen, "-o", tmp_path / "file.safetensors").exit_code == 0
    result = piped("fit", "-", "--format", "csv", *FIT, *chosen, "-o", tmp_path / "pipe.safetensors")
    assert result.exit_code == 0, result.output
    one, other = Model.load(tmp_path / "file.safetensors"), Model.load(tmp_path / "pipe.safetensors")
    assert np.array_equal(one.components, other.components)
    for ending in ("npy", "csv"):
        target = tmp_path / f"s.{ending}"
        assert piped("transform", "-", "--format", "csv", "-m", tmp_path / "file.safetensors", "-o", target).exit_code == 0
    assert np.allclose(np.load(tmp_path / "s.npy"), pd.read_csv(tmp_path / "s.csv"))
    assert "--format is missing" in piped("fit", "-", *FIT, *chosen, "--force").stderr


def test_a_pipe_is_refused_where_one_pass_is_not_enough(table: Path, tmp_path: Path) -> None:
    target, budget = tmp_path / "m.safetensors", ("--epsilon", 1, "--delta", 1e-6)
    fit, both = ("fit", "-k", 2, "-o", target), "Give --row-bound with a number you know and --center none."
    for words, command in {
        both: (*fit, *budget),
        "Give --center none.": (*fit, "--no-privacy"),
        "Give --row-bound with a number you know.": (*fit, *budget, "--center", "none"),
        "Give --center none and no --scale private.": (*fit, *budget, "--row-bound", 3.0, "--scale", "private"),
        "Give --method covariance.": (*fit, "--no-privacy", "--center", "none", "--method", "power"),
        "several times": ("bounds", *budget),
        "passes over the rows": ("spectrum", *budget, "--row-bound", 3.0),
        "which reads them once": ("simulate", "-k", 2, "--sites", 3, *budget),
    }.items():
        name, *rest = map(str, command)
        result = CliRunner().invoke(app, [name, "-", *rest, "--format", "csv"], input=table.read_bytes())
        assert result.exit_code == 2 and words in result.stderr, result.output
        assert "a pipe can be read only once" in result.stderr
    assert not target.exists()


def test_bounds_hand_their_options_on_to_the_fit(table: Path, tmp_path: Path) -> None:
    text = table.read_text().replace(",", ";").replace(".", ",")
    table.write_text(text)
    given = ("--columns", "acid,sugar,ph", "--decimal", ",", "--epsilon", 5, "--delta", 1e-5, "--seed", 1, "--json")
    answer = json.loads(eigenveil("bounds", table, *given).stdout)
    command = shlex.split(answer["next"][0])
    assert command[command.index("--columns") + 1] == "acid,sugar,ph" and command[command.index("--decimal") + 1] == ","
    assert answer["columns"] == ["acid", "sugar", "ph"]


def test_every_command_reads_a_folder_with_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for place in range(2):
        part = people()[place * 150 : place * 150 + 150]
        pq.write_table(pa.Table.from_pandas(part, preserve_index=False), tmp_path / "parts" / f"{place}.parquet")
    chosen = ("--columns", "acid,sugar,ph")
    for command, more in {
        "fit": ("-k", 1, "--no-privacy", "-o", tmp_path / "m.safetensors"),
        "stream": ("-k", 1, "--no-privacy", "-o", tmp_path / "s.safetensors"),
        "simulate": ("-k", 1, "--no-privacy", "--split", "by:label", "-o", tmp_path / "f.safetensors"),
        "bounds": ("--no-privacy",),
        "spectrum": ("--no-privacy", "--row-bound", 5, "-o", tmp_path / "s.json"),
    }.items():
        result = eigenveil(command, tmp_path / "parts", *more, *chosen)
        assert result.exit_code == 0, result.output
    models = [Model.load(tmp_path / f"{name}.safetensors") for name in "msf"]
    assert {model.columns for model in models} == {("acid", "sugar", "ph")}
    for model in models[1:]:
        assert abs(float(model.components[0] @ models[0].components[0])) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    "command", [("fit",), ("simulate", "--sites", "3"), ("simulate", "--sites", "3", "--graph", "ring"), ("stream",)]
)
def test_a_column_that_dominates_is_named_in_the_model(command: tuple[str, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = pd.DataFrame(rng.normal(size=(4000, 4)), columns=["acid", "sugar", "ph", "income"])
    values["income"] *= 100.0
    values.to_csv(tmp_path / "people.csv", index=False)
    budget = ("-k", 1, "--epsilon", 4, "--delta", 1e-6, "--row-bound", 250)
    # Not in the order of the file.
    chosen = ("--columns", "income,acid,ph", "-o", tmp_path / "m.safetensors")
    result = eigenveil(command[0], tmp_path / "people.csv", *command[1:], *budget, *chosen)
    assert result.exit_code == 0, result.output
    model = Model.load(tmp_path / "m.safetensors")
    assert any(words.startswith("Column income has ") for words in model.warnings)
    assert "Column income has " in " ".join(result.stdout.split())


def test_the_column_of_people_is_in_every_guarantee(table: Path, tmp_path: Path) -> None:
    model, bounds, spectrum = (tmp_path / name for name in ("m.safetensors", "b.json", "s.json"))
    read = ("--person", "patient_id", "--columns", "acid,sugar,ph", "--force")
    budget = ("--epsilon", 1, "--delta", 1e-6)
    unit = PrivacyUnit("person", Neighbours.ADD_REMOVE, "patient_id")
    for more in ((), ("--per-column",)):
        eigenveil("bounds", table, "--epsilon", 60, "--delta", 1e-6, *read, *more, "-o", bounds)
        plain = json.loads(bounds.read_text(encoding="utf-8"))
        assert Guarantee.from_dict(plain["guarantee"]).protects == unit
        assert plain["columns"] == ["acid", "sugar", "ph"]
    # Both are about the same people, so their costs add up.
    result = eigenveil("fit", table, "-k", 1, *budget, "--bounds", bounds, *read, "-o", model)
    assert Model.load(model).guarantee.protects == unit
    assert "the total is" in result.stdout and "named by the column 'patient_id'" in " ".join(result.stdout.split())
    eigenveil("spectrum", table, "--epsilon", 60, "--delta", 1e-6, "--row-bound", 12, *read, "-o", spectrum)
    assert Guarantee.from_dict(json.loads(spectrum.read_text(encoding="utf-8"))["guarantee"]).protects == unit
    for graph in ((), ("--graph", "ring")):
        eigenveil("simulate", table, "--sites", 3, *graph, "-k", 1, *budget, "--row-bound", 12, *read, "-o", model)
        assert Model.load(model).guarantee.protects == unit


def test_standard_input_is_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n")))
    assert _files.standard_input().read() == b"a,b\n"


# Texts that a plain fit refuses, what its error tells the reader to type, and the rows that are then read.
ADVICE: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "quoted decimal commas": ('a,b\n"7,5","0,25"\n"1","2"\n"-3,5","4"\n', ("--decimal ','",)),
    "quoted decimal commas beside an id": ('id,a,b\n1,"7,5","0,25"\n2,1,2\n3,"-3,5",4\n', ("--decimal ','", "--drop id")),
    "semicolons and decimal commas": ("a;b\n7,5;0,25\n1;2\n-3,5;4\n", ("--decimal ','",)),
    "points between thousands": ("a;b\n7500;250\n1.000;2.000\n-3.500;4.000\n", ("--thousands '.'",)),
    "commas between thousands": ('a,b\n"7,500","250"\n"1,000","2,000"\n"-3,500","4,000"\n', ("--thousands ','",)),
    "comments": ("# from sensor 7\n# in mg\na,b\n7.5,0.25\n1,2\n-3.5,4\n", ("--comment '#'",)),
    "comments, skipped": ("# from sensor 7\n# in mg\na,b\n7.5,0.25\n1,2\n-3.5,4\n", ("--skip-rows 2",)),
    "one comment over semicolons": ("# from sensor 7\na;b\n7.5;0.25\n1;2\n-3.5;4\n", ("--skip-rows 1",)),
    "a comment among rows": ("a,b\n7.5,0.25\n# pause, again\n1,2\n-3.5,4\n", ("--comment '#'",)),
    "a title": ("Export of Monday\n\na,b\n7.5,0.25\n1,2\n-3.5,4\n", ("--skip-rows 2",)),
    "titles in a sheet's csv": ("Export of Monday,\nfrom sensor 7,\na,b\n7.5,0.25\n1,2\n-3.5,4\n", ("--skip-rows 2",)),
    "a title over decimal commas": ("Export of Monday;\na;b\n7,5;0,25\n1;2\n-3,5;4\n", ("--skip-rows 1",)),
    "blanks": ("a b\n7.5 0.25\n1 2\n-3.5 4\n", ("--separator ' '",)),
    "utf-16": ("a,b\n7.5,0.25\n1,2\n-3.5,4\n".encode("utf-16"), ("--encoding utf-16",)),
    "Windows": ("größe,b\n7.5,0.25\n1,2\n-3.5,4\n".encode("cp1252"), ("--encoding", "cp1252")),
}


@pytest.mark.parametrize("name", ADVICE)
def test_what_an_error_says_to_type_is_what_helps(tmp_path: Path, name: str) -> None:
    text, advice = ADVICE[name]
    path, target = tmp_path / "people.csv", tmp_path / "m.safetensors"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    # The points of a file with decimal commas are refused only where the comma was said.
    said = ("--decimal", ",") if "points" in name or "over decimal commas" in name else ()
    line = refusal("fit", path, "-k", 1, "--no-privacy", *said, "-o", target)
    assert all(words in line for words in advice)
    # Neither a row nor a line above the names, and nobody is told to drop a comment or a number with marks first.
    for value in ("7,5", "7.5", "0,25", "1.000", "3,500", "sensor", "Export of", "again"):
        assert value not in line
    assert "--drop" not in line or "--drop id" in line or "Otherwise leave" in line
    words = [word for words in advice for word in shlex.split(words)]
    result = eigenveil("fit", path, "-k", 1, "--no-privacy", *said, *words, "-o", target)
    assert result.exit_code == 0, result.output
    scale = 1000 if "thousands" in name else 1
    rows = np.array([[7.5, 0.25], [1, 2], [-3.5, 4]]) * scale
    np.testing.assert_allclose(Model.load(target).mean, rows.mean(axis=0))


FILES_OF_OTHER_KINDS: dict[str, tuple[bytes, str]] = {
    "gzip": (gzip.compress(b"a,b\n1,2\n"), "is packed with gzip. Rename it to end in .csv.gz"),
    "zip": (b"PK\x03\x04" + bytes(50), "is a zip file"),
    "parquet": (b"PAR1" + bytes(50), "is a Parquet file. Give --format parquet"),
    "xls": (b"\xd0\xcf\x11\xe0" + bytes(50), "is an old Excel file"),
}


@pytest.mark.parametrize("name", FILES_OF_OTHER_KINDS)
def test_a_file_of_another_kind_called_csv_is_named(tmp_path: Path, name: str) -> None:
    data, words = FILES_OF_OTHER_KINDS[name]
    path = tmp_path / "people.csv"
    path.write_bytes(data)
    line = refusal("fit", path, "-k", 1, "--no-privacy", "-o", tmp_path / "m.safetensors")
    assert words in line and "--encoding" not in line


def test_every_command_reads_files_of_others(tmp_path: Path) -> None:
    """jsonl, sheets and odd csv, with a value that stands for missing ones, give the model of a plain file."""
    plain, rng = people().drop(columns=["patient_id", "visit", "sex"]), np.random.default_rng(3)
    gone = rng.random(len(plain)) < 0.1
    plain.loc[gone, "acid"] = np.nan
    odd = plain.fillna(-9999.0)
    odd.to_json(tmp_path / "odd.jsonl", orient="records", lines=True, double_precision=15)
    odd.to_excel(tmp_path / "odd.xlsx", index=False, startrow=2)
    text = odd.to_csv(index=False, sep=";", decimal=",")
    (tmp_path / "odd.csv").write_text("# it's ours\nsep=;\n" + text)
    plain.to_csv(tmp_path / "plain.csv", index=False)
    more = {
        "fit": (*FIT, "--seed", 1),
        "simulate": ("-k", 1, *PRIVATE, "--sites", 2, "--seed", 1),
        "bounds": ("--epsilon", 1, "--delta", 1e-6, "--seed", 1),
        "spectrum": (*PRIVATE, "--seed", 1),
    }
    endings = {"bounds": "json", "spectrum": "json"}
    for command, given in more.items():
        found = []
        for name in ("plain.csv", "odd.jsonl", "odd.xlsx", "odd.csv"):
            how: tuple[str, ...] = () if name == "plain.csv" else ("--na-values", "-9999")
            how += ("--comment", "#", "--decimal", ",") if name == "odd.csv" else ()
            target = tmp_path / f"{name}.{command}.{endings.get(command, 'safetensors')}"
            result = eigenveil(command, tmp_path / name, *given, "--missing", "counts", "--drop", "label", *how, "-o", target)
            assert result.exit_code == 0, result.output
            if target.suffix == ".json":
                # All but the command that comes next, which names the file.
                found.append(json.dumps({key: one for key, one in json.loads(target.read_text()).items() if key != "next"}))
            else:
                found.append(Model.load(target).components.tobytes().hex())
        assert len(set(found)) == 1, command
