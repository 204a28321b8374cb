"""Commands on tables with missing values: `fit`, `transform`, `simulate`, `stream` and `study new`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cli.cli_tables import eigenveil, refusal
from eigenveil import Model

BUDGET = ("--epsilon", "3", "--delta", "1e-6", "--row-bound", "15", "--seed", "1")
RULES: dict[str, tuple[str, ...]] = {
    "counts": ("--missing", "counts"),
    "groups": ("--missing", "groups", "--missing-groups", "a,b;c*"),
    "drop": ("--missing", "drop"),
    "fill": ("--missing", "fill", "--missing-fill", "1"),
}


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((3000, 4)) * [5, 3, 1, 1] + 1
    rows = np.where(rng.random(rows.shape) < [0.4, 0.2, 0.1, 0.0], np.nan, rows)
    path = tmp_path_factory.mktemp("torn") / "torn.csv"
    pd.DataFrame(rows, columns=list("abcd")).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("command", [("fit",), ("simulate", "--sites", "3"), ("stream", "--block-size", "1000")])
def test_commands_take_a_rule(torn: Path, tmp_path: Path, command: tuple[str, ...], rule: str) -> None:
    model, (name, *more) = tmp_path / "model.safetensors", command
    aside = ("--no-state",) if name == "stream" else ()
    eigenveil(name, torn, "-k", 2, *BUDGET, *RULES[rule], *more, *aside, "-o", model)
    assert Model.load(model).settings["missing"] == rule
    eigenveil("transform", torn, "-m", model, "-o", tmp_path / "scores.npy")
    scores = np.load(tmp_path / "scores.npy")
    lacking = pd.read_csv(torn).isna().any(axis=1).to_numpy()
    assert np.array_equal(np.isnan(scores).all(axis=1), lacking & (rule == "drop"))


def test_a_table_with_gaps_is_refused_by_name_with_the_option_that_helps(torn: Path) -> None:
    line = refusal("fit", torn, "-k", 2, *BUDGET)
    assert "3 columns have missing values: a, b, c. Handle them with --missing counts" in line
    assert "--missing fill needs --missing-fill" in refusal("fit", torn, "-k", 2, *BUDGET, "--missing", "fill")
    line = refusal("fit", torn, "-k", 2, *BUDGET, "--missing", "counts", "--method", "power")
    assert "--missing counts needs --method covariance" in line


def test_inspect_shows_the_rule(torn: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    eigenveil("fit", torn, "-k", 2, *BUDGET, *RULES["groups"], "-o", model)
    found: dict[str, Any] = json.loads(eigenveil("inspect", model, "--json").stdout)
    assert (found["settings"]["missing"], found["settings"]["missing_groups"]) == ("groups", "a,b;c*")
