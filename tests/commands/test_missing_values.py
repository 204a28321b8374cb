"""Commands on tables with missing values: `fit`, `transform`, `simulate`, `stream` and `study new`."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands.command_tables import eigenveil
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


@pytest.mark.parametrize("rule", RULES)
def test_bounds_and_spectrum_take_the_rule_of_the_fit(torn: Path, tmp_path: Path, rule: str) -> None:
    budget, bounds = ("--epsilon", "2", "--delta", "1e-6", "--seed", "1"), tmp_path / "bounds.json"
    eigenveil("bounds", torn, *budget, *RULES[rule], "-o", bounds)
    found = json.loads(bounds.read_text())
    assert np.abs(np.array(found["center"]) - 1).max() < 0.5
    # The command to run next reads the table the same way.
    assert all(word in found["next"][0] for word in RULES[rule][:2])
    ranges = json.loads(eigenveil("bounds", torn, *budget, *RULES[rule], "--per-column", "--json").stdout)
    assert all(low < 0 < 2 < high for low, high in zip(ranges["low"][:2], ranges["high"][:2], strict=True))
    spectrum = tmp_path / "spectrum.json"
    eigenveil("spectrum", torn, *budget, *RULES[rule], "--row-bound", 15, "-o", spectrum)
    eigenveil("fit", torn, "-k", 2, *BUDGET[:4], *RULES[rule], "--bounds", bounds, "-o", tmp_path / "model.safetensors")


@pytest.mark.parametrize("rule", RULES)
def test_a_skewed_split_and_a_comparison_follow_the_rule(torn: Path, rule: str) -> None:
    found = eigenveil("simulate", torn, "-k", 2, "--no-privacy", "--sites", 3, "--split", "skewed", *RULES[rule])
    assert "captured  100.0000%" in found.stdout


def test_columns_are_set_aside_by_every_command(torn: Path, tmp_path: Path) -> None:
    model, rule = tmp_path / "model.safetensors", RULES["counts"]
    for command in (("fit",), ("simulate", "--sites", "3"), ("stream", "--no-state")):
        eigenveil(*command[:1], torn, "-k", 2, *BUDGET, *rule, *command[1:], "--passthrough", "d", "-o", model, "--force")
        assert Model.load(model).columns == ("a", "b", "c")
        assert Model.load(model).settings["passthrough"] == ["d"]
    eigenveil("bounds", torn, *BUDGET[:4], *rule, "--passthrough", "d", "-o", tmp_path / "bounds.json")
    assert json.loads((tmp_path / "bounds.json").read_text())["columns"] == ["a", "b", "c"]


def test_a_file_of_numbers_with_gaps_is_read_by_several_processes(torn: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "torn.npy", pd.read_csv(torn).to_numpy())
    models = [tmp_path / f"{name}.safetensors" for name in ("here", "there")]
    for model, more in zip(models, ((), ("--processes", "2")), strict=True):
        eigenveil("fit", tmp_path / "torn.npy", "-k", 2, *BUDGET, *RULES["counts"], *more, "-o", model)
    here, there = map(Model.load, models)
    assert np.array_equal(here.components, there.components)
