"""The first `make` in a clone: it says something every few seconds while pip is silent, and fails when pip fails."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SILENCE = 5.0
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")

# Stands for python3 and, in the environment that it makes, for that python: `-m pip` is slow and silent, and `-m pytest` fails
# or not. It ends once enough was said, however slow the machine is.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip"*)
    tries=0
    until test "$(wc -l < naps)" -ge {naps} || test $((tries += 1)) -gt 1000; do {sleep} 0.02; done
    exit {code} ;;
  "-m pytest"*) exit {code} ;;
esac
"""
# A hundredth of the time, and a note of how long it should have been.
SLEEP = """#!/bin/sh
echo "$1" >> naps
exec {sleep} 0.05
"""


def environment() -> dict[str, str]:
    """This environment without what `make test` put there: a make within a make would say which folder it enters."""
    return {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}


def lines_of_make(folder: Path, target: str, *, naps: int, code: int) -> tuple[int, list[str]]:
    """The exit code of make, and what it said."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    sleep, tools = shutil.which("sleep"), folder / "tools"
    tools.mkdir()
    for path, text in ((folder / "python3", PYTHON), (tools / "sleep", SLEEP)):
        path.write_text(text.format(sleep=sleep, naps=naps, code=code))
        path.chmod(0o755)
    (folder / "naps").touch()
    done = subprocess.run(
        ["make", target, f"PYTHON={folder / 'python3'}"],
        cwd=folder,
        env=environment() | {"PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@needs_make
def test_the_install_is_never_silent_for_long(tmp_path: Path) -> None:
    code, said = lines_of_make(tmp_path, ".venv/.ready", naps=4, code=0)
    assert code == 0
    assert (tmp_path / ".venv" / ".ready").exists()
    # A line before the first nap, and one after each.
    assert len(said) >= 4
    assert max(map(float, (tmp_path / "naps").read_text().split())) < SILENCE


@needs_make
def test_an_install_that_fails_is_a_failure(tmp_path: Path) -> None:
    code, _ = lines_of_make(tmp_path, ".venv/.ready", naps=0, code=1)
    assert code != 0
    assert not (tmp_path / ".venv" / ".ready").exists()


@needs_make
@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("target", ["test", "quick"])
def test_tests_end_with_how_long_they_took_and_fail_if_they_failed(tmp_path: Path, target: str, code: int) -> None:
    lines_of_make(tmp_path, ".venv/.ready", naps=0, code=0)
    (tmp_path / ".venv" / "bin" / "python").write_text(PYTHON.format(sleep="sleep", naps=0, code=code))
    done = subprocess.run(["make", target], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(code)
    assert re.fullmatch(rf"make {target}: \d+ min \d+ s, with \d+ workers on \d+ cores", done.stdout.splitlines()[-1])
