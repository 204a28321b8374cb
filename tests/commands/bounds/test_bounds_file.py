"""`--bounds bounds.json`: what one command wrote another takes as it is, and anything else is one line."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pc
import pytest

from commands.command_tables import NAMES, arrow_table, eigenveil, refusal, rows
from eigenveil import Guarantee, Model, PrivatePCA
from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.estimators.bounds.saved import BoundsFile
from eigenveil.linalg import sines

FIT = ("-k", 2, "--epsilon", 0.9, "--delta", 1e-6, "--seed", 5)


def people(folder: Path, *, middle: float = 3.0) -> Path:
    path = folder / "people.csv"
    pc.write_csv(arrow_table(np.vstack([rows() + middle] * 3)), path)
    return path


def bounds_of(source: Path, *options: object, name: str = "bounds.json") -> Path:
    target = source.with_name(name)
    found = eigenveil("bounds", source, "--epsilon", 0.9, "--delta", 1e-6, *options, "-o", target)
    assert found.exit_code == 0, found.output
    return target


def edited(path: Path, **changes: Any) -> Path:
    plain = json.loads(path.read_text())
    plain.update(changes)
    other = path.with_name("edited.json")
    other.write_text(json.dumps({key: value for key, value in plain.items() if value is not ...}))
    return other


def test_a_fit_takes_the_bound_and_the_mean_that_were_found(tmp_path: Path) -> None:
    source, target = people(tmp_path), tmp_path / "model.safetensors"
    bounds = bounds_of(source)
    plain = json.loads(bounds.read_text())
    result = eigenveil("fit", source, *FIT, "--bounds", bounds, "-o", target)
    assert result.exit_code == 0, result.output
    model = Model.load(target)
    by_hand = PrivatePCA(
        2,
        epsilon=0.9,
        delta=1e-6,
        row_bound=plain["row_bound"],
        origin=plain["center"],
        mean_bound=plain["row_bound"],
        random_state=5,
    ).fit(np.vstack([rows() + 3.0] * 3))
    np.testing.assert_allclose(model.components, by_hand.components_, atol=1e-9)
    np.testing.assert_allclose(model.mean, by_hand.mean_, atol=1e-9)
    both = epsilon_of(2**0.5 * Budget(0.9, 1e-6).mu, 1e-6)
    said = result.stdout.rpartition("the total is (")[2].partition(",")[0]
    assert both <= float(said) < both + 1e-3


def test_costs_for_people_are_not_added_to_costs_for_rows(tmp_path: Path) -> None:
    source = people(tmp_path)
    bounds = bounds_of(source)
    plain = json.loads(bounds.read_text())
    assert plain["guarantee"]["protects"]["each"] == "row"
    plain["guarantee"]["protects"] |= {"each": "person", "column": "patient_id"}
    bounds.write_text(json.dumps(plain))
    result = eigenveil("fit", source, *FIT, "--bounds", bounds, "-o", tmp_path / "model.safetensors")
    assert result.exit_code == 0 and "the total is" not in result.stdout
    assert 'each person, named by the column "patient_id"' in result.stdout and "cannot be added up" in result.stdout


@pytest.mark.parametrize("options", [(), ("--center", "none"), ("--scale", "5,3,1,1,1"), ("--per-column", "--total", 3)])
def test_the_next_command_reads_the_file_and_runs(tmp_path: Path, options: tuple[object, ...]) -> None:
    source = people(tmp_path, middle=0.5)
    bounds = bounds_of(source, *options)
    command = json.loads(bounds.read_text())["next"][0]
    words = shlex.split(command)
    assert words[-2:] == ["--bounds", str(bounds)]
    assert not {"--scale", "--origin", "--row-bound"} & set(words)
    target = tmp_path / "model.safetensors"
    result = eigenveil(*("2" if word == "K" else word for word in words[1:]), "-o", target)
    assert result.exit_code == 0, result.output
    model = Model.load(target)
    assert model.columns == NAMES
    assert (np.linalg.norm(model.mean) == 0) == ("none" in options)


def test_ranges_of_many_columns_are_used_from_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4000, 20)) * np.linspace(1, 40, 20)
    values[:, 1] += 3 * values[:, 0]
    source, target = tmp_path / "wide.npy", tmp_path / "model.safetensors"
    np.save(source, values)
    asked = ("--per-column", "--epsilon", 3, "--delta", 1e-6)
    line = refusal("bounds", source, *asked)
    assert "Add --output bounds.json" in line
    assert "Nothing was released" in line
    bounds = bounds_of(source, *asked)
    plain = json.loads(bounds.read_text())
    settings = BoundsFile.read(bounds).settings
    assert settings["column_bounds"] == (plain["low"], plain["high"])
    own = eigenveil("fit", source, *FIT, "-k", 1, "--epsilon", 20, "--bounds", bounds, "-o", target)
    assert own.exit_code == 0, own.output
    # All columns weigh the same, so the two that go together are found, and not the one of largest norm.
    found = Model.load(target)
    scale = np.array(plain["scale"])
    assert np.abs(found.components[0, :2]).min() > 0.5
    assert found.scale is not None
    np.testing.assert_allclose(found.scale, scale)
    long = eigenveil("fit", source, *FIT, "-k", 1, "--epsilon", 20, "--bounds", bounds, "--scale", 1, "-o", target, "--force")
    assert long.exit_code == 0, long.output
    assert np.abs(Model.load(target).components[0, :2]).max() < 0.3


def test_a_spectrum_takes_them_and_its_plan_does_not_search(tmp_path: Path) -> None:
    source, target = people(tmp_path), tmp_path / "spectrum.json"
    bounds = bounds_of(source)
    result = eigenveil("spectrum", source, "--epsilon", 0.9, "--delta", 1e-6, "--bounds", bounds, "-o", target)
    assert result.exit_code == 0, result.output
    assert "--no-search" in result.stdout.rpartition("eigenveil plan")[2]
    assert f"{json.loads(bounds.read_text())['row_bound']:.4g}" in result.stdout
    assert "the total is" in result.stdout


def test_a_public_center_goes_from_the_bounds_to_the_fit_and_not_to_a_stream(tmp_path: Path) -> None:
    source, target = people(tmp_path), tmp_path / "model.safetensors"
    bounds = bounds_of(source, "--center", "3,3,3,3,3")
    assert json.loads(bounds.read_text())["searched"] is False
    result = eigenveil("fit", source, *FIT, "--bounds", bounds, "-o", target)
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(Model.load(target).mean, 3.0)
    asked = ("stream", source, *FIT, "--bounds", bounds, "-o", tmp_path / "other.safetensors")
    assert "--center of a stream cannot be numbers" in refusal(*asked)


@pytest.mark.parametrize("center", ["private", "none"])
def test_a_stream_takes_a_bound_on_rows(tmp_path: Path, center: str) -> None:
    source, target = people(tmp_path), tmp_path / "model.safetensors"
    bounds = bounds_of(source, "--center", center)
    result = eigenveil("stream", source, *FIT, "--bounds", bounds, "-o", target)
    assert result.exit_code == 0, result.output
    model = Model.load(target)
    assert (np.linalg.norm(model.mean) == 0) == (center == "none")
    # Its guarantee is of other neighbours than that of the search, so the two are not added up.
    assert "together keep" not in result.stdout
    exact = PrivatePCA(1, epsilon=None, center="private" if center == "private" else None).fit(np.vstack([rows() + 3.0] * 3))
    assert sines(model.components[:1].T, exact.components_.T).max() < 0.3
    ranges = bounds_of(source, "--per-column", "--epsilon", 2, name="ranges.json")
    asked = ("stream", source, *FIT, "-o", tmp_path / "other.safetensors")
    boxed = eigenveil(*asked, "--bounds", ranges)
    assert boxed.exit_code == 0, boxed.output
    assert "the column bounds are public" in Model.load(asked[-1]).guarantee.assumptions
    scaled, target = bounds_of(source, "--scale", 2, name="scaled.json"), tmp_path / "scaled.safetensors"
    found = eigenveil(*asked, "--bounds", scaled, "-o", target, "--force")
    assert found.exit_code == 0, found.output
    assert np.asarray(Model.load(target).scale).tolist() == [2.0] * len(NAMES)
    state = tmp_path / "state"
    assert eigenveil("stream", source, *FIT, "--row-bound", 5, "--state", state, "-o", tmp_path / "z.safetensors").exit_code == 0
    again = ("stream", source, "--resume", "--state", state, "-o", tmp_path / "y.safetensors")
    assert "--bounds" in refusal(*again, "--bounds", bounds)


@pytest.mark.parametrize(
    "beside", [("--row-bound", 5), ("--center", "private"), ("--origin", 1), ("--mean-bound", 9), ("--scale", 1)]
)
def test_what_the_file_says_cannot_be_said_beside_it(tmp_path: Path, beside: tuple[str, object]) -> None:
    source = people(tmp_path)
    bounds = bounds_of(source, "--center", "none")
    for command in ("fit", "spectrum"):
        more = FIT if command == "fit" else FIT[2:]
        assert f"already sets {beside[0]}" in refusal(command, source, *more, "--bounds", bounds, *beside)
    ranges = bounds_of(source, "--per-column", "--epsilon", 2, name="ranges.json")
    assert "already sets --column-bounds" in refusal("fit", source, *FIT, "--bounds", ranges, "--column-bounds", "0,1")


def test_bounds_of_another_table_are_refused(tmp_path: Path) -> None:
    source = people(tmp_path)
    bounds = bounds_of(source)
    assert "is for 5 columns and the table has 4" in refusal("fit", source, *FIT, "--bounds", bounds, "--drop", "salt")
    other = edited(bounds, columns=["age", "income", "height", "weight", "sugar"])
    assert "'salt' where 'sugar' was" in refusal("fit", source, *FIT, "--bounds", other)


@pytest.mark.parametrize("how", [("--no-privacy",), ("--epsilon", 0.9, "--delta", 1e-6, "--seed", 1)])
def test_bounds_that_are_not_private_are_warned_of(tmp_path: Path, how: tuple[object, ...]) -> None:
    source, bounds, target = people(tmp_path), tmp_path / "exact.json", tmp_path / "model.safetensors"
    assert eigenveil("bounds", source, *how, "-o", bounds).exit_code == 0
    result = eigenveil("fit", source, *FIT, "--bounds", bounds, "-o", target)
    assert result.exit_code == 0
    assert "NOT COVERED BY THE GUARANTEE" in result.stdout
    exact = eigenveil("fit", source, "-k", 2, "--no-privacy", "--bounds", bounds, "-o", target, "--force")
    assert exact.exit_code == 0
    assert "NOT COVERED" not in exact.stdout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "eigenveil spectrum 1"}, "Give a file that `eigenveil bounds --output` wrote"),
        ({"format": ...}, "its format must be"),
        ({"dim": 4}, "columns must be 4 names, or null"),
        ({"dim": True}, "dim must be a number of columns"),
        ({"kind": "both"}, "kind must be rows or columns"),
        ({"columns": [1, 2, 3, 4, 5]}, "columns must be 5 names"),
        ({"row_bound": None, "why": "noise hides it"}, "no bound was found: noise hides it"),
        ({"row_bound": -1.0}, "row_bound must be positive"),
        ({"row_bound": "12"}, "row_bound must be a number"),
        ({"row_bound": True}, "row_bound must be a number"),
        ({"row_bound": 10**400}, "is not JSON"),
        ({"center": [0.0] * 4}, "center must be 5 numbers"),
        ({"center": [0.0, 0.0, None, 0.0, 0.0]}, "center must be 5 numbers"),
        ({"scale": [1.0, 1.0, 0.0, 1.0, 1.0]}, "every scale must be positive"),
        ({"guarantee": None}, "guarantee must record what the bounds cost"),
        ({"guarantee": {"epsilon": 1.0}}, "its guarantee lacks"),
        ({"guarantee": Guarantee(epsilon=1.0, delta=1e-6).to_dict()}, "guarantee must say what it protects"),
        ({"searched": ...}, "searched must be true or false"),
        ({"kind": "columns"}, "no bounds were found"),
        ({"kind": "columns", "low": [0] * 5, "high": [-1] * 5, "scale": [1] * 5}, "every low must be at most"),
    ],
)
def test_every_edit_that_breaks_it_is_one_line(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    source = people(tmp_path)
    bounds = edited(bounds_of(source), **changes)
    line = refusal("fit", source, *FIT, "--bounds", bounds)
    assert re.match(rf"error: --bounds {re.escape(str(bounds))}(:| is) ", line)
    assert words in line


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"row_bound": NaN}', "\xff"])
def test_a_file_that_is_no_json_is_one_line(tmp_path: Path, text: str) -> None:
    source, bounds = people(tmp_path), tmp_path / "bounds.json"
    bounds.write_text(text, encoding="latin-1")
    assert f"--bounds {bounds} is not JSON" in refusal("fit", source, *FIT, "--bounds", bounds)


def test_a_file_that_is_missing_or_would_be_written_over_is_refused(tmp_path: Path) -> None:
    source = people(tmp_path)
    assert "does not exist" in refusal("fit", source, *FIT, "--bounds", tmp_path / "none.json")
    bounds = bounds_of(source)
    asked = ("spectrum", source, *FIT[2:], "--bounds", bounds, "-o", bounds, "--force")
    assert "is also an input" in refusal(*asked)
    BoundsFile.read(bounds)
