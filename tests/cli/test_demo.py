"""`eigenveil demo`: more budget finds more, the model it leaves is a real one, and what it says to type next works."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.cli_tables import eigenveil, files_in, refusal
from eigenveil import Model, PrivatePCA


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
    # Commands to type are never wrapped, and they name this program: its path is as long as the folder it is installed in.
    monkeypatch.setattr("sys.argv", ["eigenveil"])
    for arguments in (["demo"], ["inspect", "demo-model.safetensors"]):
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(width)})
        assert max(map(len, result.stdout.splitlines())) <= width


def test_the_answer_is_on_one_screen_before_the_guarantee(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from eigenveil.cli import app

    result = CliRunner().invoke(app, ["demo", "-o", str(tmp_path / "m.safetensors")], env={"COLUMNS": "80"})
    before = result.stdout.partition("guarantee ─")[0].splitlines()[:-1]
    assert any("noise floor at epsilon" in line for line in before)
    # A screen has 24 lines, and two are taken: what was typed, `make demo`, and the command that make shows.
    assert len(before) <= 22


def test_each_line_is_printed_as_soon_as_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from eigenveil.cli.demo import demo

    fit, printed = PrivatePCA.fit, []

    def watched(pca: PrivatePCA, rows: Any) -> PrivatePCA:
        printed.append(capsys.readouterr().out)
        return fit(pca, rows)

    monkeypatch.setattr(PrivatePCA, "fit", watched)
    demo(tmp_path / "m.safetensors")
    assert "digits" in printed[0]
    assert ["exact" in printed[1], "epsilon = 0.25" in printed[2], "epsilon = 1" in printed[3]] == [True] * 3
    assert "epsilon = 4" in capsys.readouterr().out


def typed_next(printed: str) -> list[str]:
    """The lines that the demo says to type next."""
    return [line.strip() for line in printed.partition("Try next:")[2].splitlines() if line.strip()]


def test_what_to_type_next_works_as_printed_after_make_demo(tmp_path: Path) -> None:
    # The script as pip writes it, where `make demo` has it, and nothing of ours on the path.
    script = tmp_path / ".venv" / "bin" / "eigenveil"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{sys.executable}\nfrom eigenveil.cli import app\napp()\n")
    script.chmod(0o755)

    def shell(line: str) -> str:
        env = os.environ | {"PATH": os.defpath}
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    lines = typed_next(shell(".venv/bin/eigenveil demo"))
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(".venv/bin/eigenveil ")
        assert shell(line)


@pytest.mark.parametrize(
    ("called", "path", "says"),
    [
        ("bin/eigenveil", "bin", "eigenveil"),
        ("bin/eigenveil", "elsewhere", "bin/eigenveil"),
        ("eigenveil", "elsewhere", "./eigenveil"),
        ("site-packages/eigenveil/__main__.py", "elsewhere", f"{sys.executable} -m eigenveil"),
    ],
)
def test_it_says_what_to_type_from_where_the_reader_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, path: str, says: str
) -> None:
    program = tmp_path / called
    program.parent.mkdir(parents=True, exist_ok=True)
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / path))
    monkeypatch.setattr(sys, "argv", [str(program)])
    lines = typed_next(eigenveil("demo", "-o", "a model.safetensors").stdout)
    assert lines[0] == f"{says} inspect 'a model.safetensors'"
    assert [line.startswith(f"{says} ") for line in lines] == [True] * 3
