"""`eigenveil report` and --report: what is written, what is refused, and when."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from commands.command_tables import PRIVATE, eigenveil, refusal, written
from eigenveil.commands._files import ENDINGS
from eigenveil.show.pages import ENDINGS as KNOWN
from eigenveil.show.pages import read_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and the reports that its fit wrote."""
    place = tmp_path_factory.mktemp("reports")
    table = written(place, "csv")
    for ending in ("html", "json"):
        report = place / f"fit.{ending}"
        shown = eigenveil("fit", table, "-k", 3, *PRIVATE, "-o", place / "model.safetensors", "--force", "--report", report)
        assert f"report written to {report}" in shown.stdout
    return place


def test_a_fit_ends_with_its_report(folder: Path) -> None:
    page = (folder / "fit.html").read_text()
    assert page.startswith("<!doctype html>") and "(1, 1e-06)-differential privacy" in page
    found = read_report(folder / "fit.json")
    assert found.guarantee is not None and found.guarantee.epsilon == 1
    assert found.components is not None and found.components.columns is not None


def test_a_model_and_a_run_become_the_same_page(folder: Path, tmp_path: Path) -> None:
    title = ("--title", "Patients")
    eigenveil("report", folder / "model.safetensors", *title, "-o", tmp_path / "model.html")
    eigenveil("report", folder / "fit.json", *title, "-o", tmp_path / "run.html")
    model, run = ((tmp_path / name).read_text() for name in ("model.html", "run.html"))
    assert "<h1>Patients</h1>" in model
    # A model does not have the name of the table's file.
    named = "<dt>dataset</dt><dd>people.csv</dd>"
    assert named in run and model == run.replace(named, "")
    eigenveil("report", folder / "fit.json", "-o", tmp_path / "named.html")
    assert "<h1>people.csv: three principal components of 5 columns</h1>" in (tmp_path / "named.html").read_text()
    # Without -o it is named after its source, and fit.html is taken.
    assert "fit.html already exists" in refusal("report", folder / "fit.json")


def test_refusals_come_before_anything_is_spent(folder: Path, tmp_path: Path) -> None:
    table = written(tmp_path, "csv")
    target = tmp_path / "model.safetensors"
    said = refusal("fit", table, "-k", 3, *PRIVATE, "-o", target, "--report", tmp_path / "report.txt")
    assert "--report must end in .html or .json or .pdf" in said
    assert "already exists" in refusal("fit", table, "-k", 3, *PRIVATE, "-o", target, "--report", folder / "fit.html")
    assert not target.exists()
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{}")
    assert "not a report" in refusal("report", damaged, "-o", tmp_path / "x.html")
    assert "not a model (.safetensors), a run (.json) or a study (.toml)" in refusal("report", table, "-o", tmp_path / "x.html")
    assert ENDINGS == KNOWN


def test_scores_are_drawn_for_their_owner_alone(folder: Path, tmp_path: Path) -> None:
    scores = tmp_path / "scores.csv"
    eigenveil("transform", folder / "people.csv", "-m", folder / "model.safetensors", "-o", scores)
    mine = tmp_path / "mine.html"
    eigenveil("report", folder / "model.safetensors", "-o", mine, "--raw-scores", scores)
    assert "RAW DATA" in mine.read_text()
    assert mine.stat().st_mode & 0o777 == 0o600
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    said = refusal("report", folder / "model.safetensors", "-o", tmp_path / "x.html", "--raw-scores", tmp_path / "other.csv")
    assert "component1" in said
    scores.write_text("component1,component2\n1,secret\n")
    said = refusal("report", folder / "model.safetensors", "-o", tmp_path / "x.html", "--raw-scores", scores)
    assert "not a number" in said and "secret" not in said


def test_json_is_for_programs(folder: Path) -> None:
    values = json.loads((folder / "fit.json").read_text())
    assert values["format"] == "eigenveil-report" and values["version"] == 1
    assert values["guarantee"]["words"].startswith("Guarantee: (1, 1e-06)")


@pytest.mark.parametrize(
    "command",
    [
        ("stream", "-k", 2, *PRIVATE),
        ("simulate", "-k", 2, "--sites", 3, "--trust", "masked", *PRIVATE),
        ("simulate", "-k", 2, "--sites", 3, "--graph", "ring", *PRIVATE),
    ],
    ids=lambda words: " ".join(map(str, words[:6:5])),
)
def test_other_fits_end_with_a_report_too(command: tuple[object, ...], folder: Path, tmp_path: Path) -> None:
    name, *options = command
    target, model = tmp_path / "run.json", tmp_path / "model.safetensors"
    eigenveil(name, folder / "people.csv", *options, "-o", model, "--report", target)
    found = read_report(target)
    assert found.guarantee is not None and found.plan is not None
    assert (len(found.rounds) > 0) == (name == "simulate")
    assert all(len(one.answered) == 3 for one in found.rounds)
    eigenveil("report", target, "-o", tmp_path / "run.html")
    assert ("Who took part" in (tmp_path / "run.html").read_text()) == (name == "simulate")


def test_an_audit_ends_with_its_verdicts(tmp_path: Path) -> None:
    target = tmp_path / "audit.json"
    shown = eigenveil("audit", "curator/covariance", "--quick", "--runs", 50, "--seed", 1, "--jobs", 1, "--report", target)
    found = read_report(target)
    assert found.kind == "audit" and found.answer in " ".join(shown.stdout.split())
    (verdicts,) = found.tables
    assert verdicts.header[0] == "case" and verdicts.rows[0][0] == "curator/covariance"


def test_a_plan_becomes_a_report_beside_its_json(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    options = ("-n", 2000, "-d", 10, "-k", 2, "--epsilon", 1, "--delta", "1e-6", "--method", "covariance")
    values = json.loads(eigenveil("plan", *options, "--json", "--report", target).stdout)
    found = read_report(target)
    assert found.answer == values["answer"][0]
    assert found.plan is not None and found.plan.method == values["curve"]["method"]
    assert {one.title for one in found.lists} >= {"Assumed", "Guessed", "Not included"}


def test_inspect_draws_the_variances(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "scree.svg"
    eigenveil("inspect", folder / "model.safetensors", "--plot", target)
    drawing = ElementTree.parse(target).getroot()
    assert len(drawing.findall(".//{http://www.w3.org/2000/svg}desc")) == 1
    assert "noise floor" in target.read_text()
    said = refusal("inspect", folder / "model.safetensors", "--plot", tmp_path / "scree.pdf")
    assert "--plot must end in .svg or .png" in said


def test_a_png_is_drawn_where_matplotlib_is(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "scree.png"
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert "eigenveil[plot]" in refusal("inspect", folder / "model.safetensors", "--plot", target)
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    eigenveil("inspect", folder / "model.safetensors", "--plot", target)
    assert target.read_bytes().startswith(b"\x89PNG")


def test_a_pdf_is_printed_where_chromium_is(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.pdf"
    with monkeypatch.context() as patch:
        patch.setattr("eigenveil.show.pages._BROWSERS", ())
        assert "a PDF needs Chromium" in refusal("report", folder / "model.safetensors", "-o", target)
    if shutil.which("chromium") is None:
        pytest.skip("Chromium is not installed: .ci/run installs it")
    eigenveil("report", folder / "model.safetensors", "-o", target)
    assert target.read_bytes().startswith(b"%PDF")
