"""`eigenveil demo`: it tells the whole story on one screen, leaves a real model and a report, and what it says to type works."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commands.command_tables import eigenveil, files_in, refusal
from eigenveil import FederatedPCA, GossipPCA, Model, PrivatePCA, StreamingPCA
from eigenveil.commands.demo import _next_steps

OURS = ("one table", "a stream", "five sites under masks", "five peers, no hub")


def captured(printed: str, setting: str) -> float:
    """The share in the line of a setting."""
    (line,) = [line for line in printed.splitlines() if line.startswith(f"{setting} ")]
    found = re.search(r"([\d.]+)%", line)
    assert found is not None
    return float(found[1])


def test_the_demo_tells_its_story_and_leaves_a_model_and_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = eigenveil("demo")
    assert result.exit_code == 0, result.output
    assert min(captured(result.stdout, setting) for setting in OURS) > 85
    assert captured(result.stdout, "PPM, for a person") < captured(result.stdout, "Analyze Gauss")
    assert re.search(r"under masks .* \d+ kB\n", result.stdout) and re.search(r"no hub .* [\d.]+ MB\n", result.stdout)
    assert files_in(tmp_path) == {"demo-model.safetensors", "demo-model.html"}
    model = Model.load("demo-model.safetensors")
    assert model.components.shape == (5, 64)
    assert model.columns is not None
    assert model.guarantee.private
    assert model.guarantee.epsilon == 1
    assert "images are public" in " ".join(result.stdout.split())
    assert eigenveil("inspect", "demo-model.safetensors").exit_code == 0
    page = (tmp_path / "demo-model.html").read_text()
    assert all(setting in page for setting in OURS) and "(1, 1e-05)-differential privacy" in page


def test_every_line_of_the_demo_has_one_guarantee_and_the_closest_method_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relations = set()
    for kind in (PrivatePCA, StreamingPCA, FederatedPCA, GossipPCA):
        fit = kind.fit

        def watched(pca: Any, rows: Any, fit: Any = fit) -> Any:
            fitted = fit(pca, rows)
            guarantee = fitted.guarantee_
            relations.add((guarantee.relation, guarantee.epsilon, guarantee.delta))
            return fitted

        monkeypatch.setattr(kind, "fit", watched)
    # The published methods are in here as well: PPM is fitted, and the scale of Analyze Gauss is for replace-one.
    monkeypatch.chdir(tmp_path)
    result = eigenveil("demo", "--seed", 1)
    assert relations == {("replace-one", 1.0, 1e-5)}
    shown = " ".join(result.stdout.split())
    assert "The closest published method, Analyze Gauss, captures" in shown and "(replace-one)" in shown
    # It is given the bound that ours found, and is nearer to ours than to PPM.
    assert captured(result.stdout, "Analyze Gauss") > 85 > captured(result.stdout, "PPM, for a person")
    assert captured(result.stdout, "one table") > captured(result.stdout, "Analyze Gauss")


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
    page = tmp_path / "page.html"
    page.write_text("a page of mine")
    assert "already exists" in refusal("demo", "-o", tmp_path / "page.safetensors")
    assert page.read_text() == "a page of mine"


@pytest.mark.parametrize("width", [80, 120])
def test_all_of_it_is_on_one_screen_and_the_answer_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    from typer.testing import CliRunner

    from eigenveil.commands import app

    monkeypatch.chdir(tmp_path)
    # Commands to type are never wrapped, and they name this program: its path is as long as the folder it is installed in.
    monkeypatch.setattr("sys.argv", ["eigenveil"])
    for arguments in (["demo"], ["inspect", "demo-model.safetensors"]):
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(width)})
        lines = result.stdout.splitlines()
        assert max(map(len, lines)) <= width
        if arguments == ["demo"]:
            # A screen has 24 lines, and two are taken: what was typed, `make demo`, and the command that make shows.
            assert len(lines) <= 22
            assert lines[1].startswith("Answer: with epsilon = 1")


def test_each_line_is_printed_as_soon_as_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from eigenveil.commands.demo import demo

    seen: dict[str, str] = {}

    def watch(kind: Any) -> None:
        fit = kind.fit

        def watched(pca: Any, rows: Any) -> Any:
            seen.setdefault(kind.__name__, capsys.readouterr().out)
            return fit(pca, rows)

        monkeypatch.setattr(kind, "fit", watched)

    for kind in (PrivatePCA, StreamingPCA, FederatedPCA, GossipPCA):
        watch(kind)
    demo(tmp_path / "m.safetensors")
    before = ("digits", "one table", "a stream", "five sites under masks")
    assert [words in shown for words, shown in zip(before, seen.values(), strict=True)] == [True] * 4
    assert "five peers, no hub" in capsys.readouterr().out


def typed_next(printed: str) -> list[str]:
    """The lines that the demo says to type next."""
    return [line.strip() for line in printed.partition("Try next:")[2].splitlines() if line.strip()]


def test_what_to_type_next_works_as_printed_after_make_demo(tmp_path: Path) -> None:
    # The script as pip writes it, where `make demo` has it, and nothing of ours on the path.
    script = tmp_path / ".venv" / "bin" / "eigenveil"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{sys.executable}\nfrom eigenveil.commands import app\napp()\n")
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
    printed = io.StringIO()
    _next_steps(Console(file=printed), Path("a model.safetensors"))
    lines = typed_next(printed.getvalue())
    assert lines[0] == f"{says} inspect 'a model.safetensors'"
    assert [line.startswith(f"{says} ") for line in lines] == [True] * 3
