"""The first `make` in a clone: it says something every few seconds while pip is silent, and fails when pip fails."""

import itertools
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SILENCE = 5.0

# Stands for python3 and, in the environment that it makes, for that python: `-m pip` is slow and silent.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip"*) sleep {seconds}; exit {code} ;;
esac
"""


def lines_of_make(folder: Path, *, seconds: int, code: int) -> tuple[int, list[float]]:
    """The exit code of the install step, and the moments at which it began, said something and ended."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    python = folder / "python3"
    python.write_text(PYTHON.format(seconds=seconds, code=code))
    python.chmod(0o755)
    moments = [time.monotonic()]
    make = subprocess.Popen(
        ["make", ".venv/.ready", f"PYTHON={python}"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert make.stdout is not None
    # The end of the pipe is a moment too: nothing that was begun holds it open.
    moments += [time.monotonic() for _ in make.stdout]
    return make.wait(), [*moments, time.monotonic()]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_the_install_is_never_silent_for_long(tmp_path: Path) -> None:
    code, moments = lines_of_make(tmp_path, seconds=7, code=0)
    assert code == 0
    assert (tmp_path / ".venv" / ".ready").exists()
    assert len(moments) >= 5
    assert max(later - earlier for earlier, later in itertools.pairwise(moments)) < SILENCE


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_an_install_that_fails_is_a_failure(tmp_path: Path) -> None:
    code, _ = lines_of_make(tmp_path, seconds=0, code=1)
    assert code != 0
    assert not (tmp_path / ".venv" / ".ready").exists()
