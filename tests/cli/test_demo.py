"""`eigenveil demo`: more budget finds more, and the model it leaves is a real one."""

import re
from pathlib import Path

import pytest

from cli.cli_tables import eigenveil, files_in, refusal
from eigenveil import Model


def test_the_demo_tells_its_story_and_leaves_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = eigenveil("demo")
    assert result.exit_code == 0, result.output
    captured = [float(share) for share in re.findall(r"epsilon = \S+ +([\d.]+)%", result.stdout)]
    assert len(captured) == 3
    assert captured[0] < 85 < 90 < captured[1] < captured[2]
    assert files_in(tmp_path) == {"demo-model.safetensors"}
    model = Model.load("demo-model.safetensors")
    assert model.components.shape == (5, 64)
    assert model.columns is not None
    assert model.guarantee.private
    assert model.guarantee.epsilon == 1
    assert "images are public" in result.stdout
    assert eigenveil("inspect", "demo-model.safetensors").exit_code == 0


def test_a_seed_repeats_the_demo_and_is_announced(tmp_path: Path) -> None:
    target = tmp_path / "mine.safetensors"
    first = eigenveil("demo", "--seed", 3, "-o", target)
    content = target.read_bytes()
    # A demo may overwrite its own file.
    assert eigenveil("demo", "--seed", 3, "-o", target).stdout == first.stdout
    assert target.read_bytes() == content
    assert "NOT PRIVATE" in first.stdout
    assert not Model.load(target).guarantee.private


def test_the_demo_overwrites_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "thesis.safetensors"
    target.write_text("years of work")
    assert "already exists" in refusal("demo", "-o", target)
    assert target.read_text() == "years of work"


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    from typer.testing import CliRunner

    from eigenveil.cli import app

    monkeypatch.chdir(tmp_path)
    for arguments in (["demo"], ["inspect", "demo-model.safetensors"]):
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(width)})
        assert max(map(len, result.stdout.splitlines())) <= width
