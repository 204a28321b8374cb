"""`eigenveil inspect`: everything in the file, for people and for programs, no matter who wrote it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands.command_tables import NAMES, PRIVATE, eigenveil, refusal, written
from eigenveil import Model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with named columns."""
    target = tmp_path / "model.safetensors"
    eigenveil("fit", written(tmp_path, "csv"), "-k", 3, *PRIVATE, "-o", target)
    return target


def test_programs_get_the_whole_model(model: Path) -> None:
    values, learned = json.loads(eigenveil("inspect", model, "--json").stdout), Model.load(model)
    assert np.array_equal(values["components"], learned.components)
    assert np.array_equal(values["explained_variance"], learned.explained_variance)
    assert values["columns"] == list(NAMES)
    assert values["private"] is True
    assert values["guarantee"]["epsilon"] == 1
    assert values["guarantee_in_words"] == learned.guarantee.to_text()
    assert values["noise_floor"] > 0
    assert values["n_above_noise"] == learned.n_above_noise
    assert values["warnings"] == list(learned.warnings)


def test_a_strangers_model_cannot_command_the_terminal(tmp_path: Path, model: Path) -> None:
    hostile = tmp_path / "hostile.safetensors"
    names = ("\x1b[2J", "[red]", "a\nb", ":smile:", "e")
    settings = {"why": "\x1b]0;owned\x07", "noise_floor": "none", "bound_usage": "\x1b[3J"}
    replace(Model.load(model), columns=names, settings=settings, warnings=("\x1b[1J",)).save(hostile)
    shown = eigenveil("inspect", hostile, "--loadings", 5).stdout
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[red]=" in shown
    assert ":smile:=" in shown


def test_what_is_not_a_model_is_refused(tmp_path: Path, model: Path) -> None:
    assert "does not exist" in refusal("inspect", tmp_path / "none.safetensors")
    assert "is a folder" in refusal("inspect", tmp_path)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(model.read_bytes()[:-9])
    assert "damaged" in refusal("inspect", cut)
    cut.write_bytes(b"")
    assert "damaged" in refusal("inspect", cut, "--json")


@pytest.mark.parametrize("words", [("bounds",), ("bounds", "--per-column"), ("spectrum", "--row-bound", "12")])
def test_bounds_and_spectra_are_shown_too(tmp_path: Path, words: tuple[str, ...]) -> None:
    source, target = written(tmp_path, "csv"), tmp_path / "found.json"
    command, *more = words
    assert eigenveil(command, source, "--epsilon", 8, "--delta", "1e-6", *more, "-o", target).exit_code == 0
    plain = json.loads(target.read_text())
    assert json.loads(eigenveil("inspect", target, "--json").stdout) == plain
    shown = eigenveil("inspect", target).stdout
    first = plain.get("row_bound") or plain.get("low", plain.get("values"))[0]
    assert f"{first:.4g}"[:4] in shown
    assert "(8, 1e-06)-differential privacy" in shown
    plain.pop("guarantee")
    target.write_text(json.dumps(plain))
    # A spectrum of public rows has no cost. Bounds must say what they cost.
    assert eigenveil("inspect", target).exit_code == (0 if command == "spectrum" else 2)


def test_other_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    for text in ("[]", "{}", "nothing", '{"format": "eigenveil bounds 1"}', '{"format": ["x"]}', "[" * 100_000):
        path.write_text(text)
        assert str(path) in refusal("inspect", path)


def test_exact_units_are_not_called_private(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 4)) * [1.0, 100.0, 0.01, 5.0]
    np.save(tmp_path / "rows.npy", rows)
    target, report = tmp_path / "m.safetensors", tmp_path / "r.html"
    how = ("--no-privacy", "--scale", "private", "-o", target, "--report", report)
    said = [eigenveil("fit", tmp_path / "rows.npy", "-k", 2, *how).stdout, eigenveil("inspect", target).stdout]
    assert "exact standard deviations, not private" in said[1]
    for words in (*said, report.read_text()):
        assert "estimated privately" not in words
