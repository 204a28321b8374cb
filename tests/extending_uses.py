"""How the leaves of docs/extending.md are used. test_extending.py runs this file where they were added."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from eigenveil import FederatedPCA, PrivatePCA, StreamingPCA
from eigenveil.commands import app
from eigenveil.data.tables import read_table
from eigenveil.linalg import Array
from eigenveil.trackers import published_as

BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
OPTIONS = ("-k", "2", "--epsilon", "1", "--delta", "1e-6", "--row-bound", "6")


def rows() -> Array:
    return np.random.default_rng(0).standard_normal((4000, 6)) * ([3.0, 2.0] + [0.1] * 4)


def run(*words: object, code: int = 0) -> Result:
    """What a command prints, if it ends as expected."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def shown(*words: object) -> str:
    """The text of a command without frames."""
    return " ".join(run(*words).stdout.replace("│", " ").split())


def compared(*words: str) -> set[str]:
    """The methods that a plan compares."""
    plan = run("plan", "-n", "4000", "-d", "6", *OPTIONS[:6], *words, "--json")
    return {forecast["method"] for forecast in json.loads(plan.stdout)["forecasts"]}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    np.savetxt(path, rows(), delimiter=",", header="a,b,c,d,e,f", comments="")
    return path


def test_a_format(tmp_path: Path) -> None:
    table, model, scores = (tmp_path / name for name in ("table.dat", "model.safetensors", "scores.dat"))
    np.savetxt(table, rows(), fmt="%.17g", header="a b c d e f", comments="")
    named = read_table(table)
    assert named.columns == tuple("abcdef") and named.rows.shape == (4000, 6)
    assert "2 components of 6 columns" in shown("fit", table, *OPTIONS, "-o", model)
    run("transform", table, "-m", model, "-o", scores)
    assert np.loadtxt(scores, skiprows=1).shape == (4000, 2)
    assert "svm, xlsx or blanks" in shown("fit", "--help")


def test_a_method(table: Path, tmp_path: Path) -> None:
    terms: dict[str, Any] = {"method": "one-product", "row_bound": 6.0, "random_state": 0, **BUDGET}
    for pca in (
        PrivatePCA(2, **terms).fit(rows()),
        FederatedPCA(2, trust="site", **terms).fit(np.split(rows(), 4)),
        FederatedPCA(2, trust="masked", **terms).fit(np.split(rows(), 4)),
    ):
        # The first two axes have nearly all of the variance.
        assert np.square(pca.components_[:, :2]).sum() > 1.8
        assert [charge.label for charge in pca.guarantee_.charges].count("random product 1 of 1") == 1
    model = tmp_path / "model.safetensors"
    for command in (("fit", table), ("simulate", table, "--sites", "4")):
        run(*command, *OPTIONS, "--method", "one-product", "-o", model, "--force")
        assert "one product with a random basis" in shown("inspect", model)
    assert "masked/one-product" in compared("--sites", "4", "--trust", "masked")


def test_a_tracker(table: Path, tmp_path: Path) -> None:
    pca = StreamingPCA(2, publish="every", row_bound=6.0, block_size=500, random_state=0, **BUDGET).partial_fit(rows()[:2000])
    pca.save_state(tmp_path / "python.safetensors")
    first, second = (stream.partial_fit(rows()[2000:]) for stream in (pca, StreamingPCA.resume(tmp_path / "python.safetensors")))
    assert first.plan_.kind is second.plan_.kind is published_as("every")
    assert first.model_.settings["releases"] == second.model_.settings["releases"] == 8
    assert np.square(second.components_[:, :2]).sum() > 1.8
    model, state = tmp_path / "model.safetensors", tmp_path / "state.safetensors"
    blocks = ("--block-size", "500", "--publish", "every")
    run("stream", table, *OPTIONS, *blocks, "-o", model, "--state", state)
    resumed = StreamingPCA.resume(state)
    assert resumed.plan_.kind is published_as("every") and resumed.model_.settings["publish"] == "every"
    assert resumed.model_.settings["releases"] == 8
    assert "after every block" in str(resumed.guarantee_)
    assert {"stream/every", "curator/one-product"} <= compared()


def test_a_command(tmp_path: Path) -> None:
    report = tmp_path / "guess.json"
    budget = ("guess", "--epsilon", "1", "--delta", "1e-6")
    words = "A guess is right at most 54.7% of the time. Chance is 50%."
    assert run(*budget).stdout == f"{words}\n"
    values = json.loads(run(*budget, "--json", "--report", report).stdout)
    assert values == {"right": pytest.approx(0.547, abs=1e-3), "chance": 0.5}
    assert json.loads(report.read_text(encoding="utf-8"))["answer"] == words
    assert run(*budget, "--limit", "0.54", code=3).stdout == f"{words}\n"
    for wrong, error in (
        ((*budget, "--limit", "2"), "error: --limit must lie between 0.5"),
        # Its other options are declared elsewhere, and refused in the words of a command line.
        (("guess", "--epsilon", "-1", "--delta", "1e-6"), "error: --epsilon must be"),
        (("guess", "--no-privacy"), "error: without privacy"),
    ):
        refused = run(*wrong, code=2)
        assert refused.stderr.startswith(error) and refused.stderr.count("\n") == 1
    text = shown("guess", "--help")
    assert "How often a guess" in text and "--epsilon" in text and "SHARE" in text and "--report" in text
    assert "guess How often a guess" in shown("--help")
