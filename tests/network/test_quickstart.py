"""The quickstart is run as it is written: five sites, masked, real processes, mutual TLS, a person who types yes."""

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from commands.forked import stand_ins
from eigenveil.model import Model
from network.network_studies import free_port

PAGE = Path(__file__).parents[2] / "docs" / "network.md"
BLOCK = re.compile(r"<!-- (terminal \d[^>]*?) -->\n```sh\n(.*?)```", re.DOTALL)


def blocks() -> dict[str, list[str]]:
    """The commands of each terminal, as the page has them."""
    found: dict[str, list[str]] = {}
    for where, text in BLOCK.findall(PAGE.read_text()):
        found.setdefault(where, []).append(text)
    return found


@contextmanager
def environment(folder: Path) -> Iterator[dict[str, str]]:
    """With `eigenveil` and `python3` on the path as they are in an activated environment."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    script = bin_folder / "python3"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    with stand_ins(bin_folder / "eigenveil"):
        yield os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    with environment(tmp_path) as found:
        yield found


def typed(command: str, *, cwd: Path, env: dict[str, str], seconds: float) -> tuple[int, str]:
    """A command in a terminal of its own, where a person types yes when asked."""
    person, terminal = pty.openpty()
    child = subprocess.Popen(
        ["bash", "-ec", command], cwd=cwd, env=env, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    seen, answered, until = "", False, time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            try:
                piece = os.read(person, 65536)
            except OSError:
                break
            seen += piece.decode(errors="replace")
            if not answered and "Take part?" in seen:
                os.write(person, b"yes\n")
                answered = True
        return child.wait(max(1.0, until - time.monotonic())), seen
    finally:
        child.kill()
        os.close(person)


@pytest.mark.slow
def test_the_quickstart_runs_a_five_site_masked_study_as_it_is_written(tmp_path: Path, env: dict[str, str]) -> None:
    port, there = str(free_port()), blocks()
    folder = tmp_path / "study"
    folder.mkdir()
    assert set(there) == {"terminal 1", "terminal 1, stays", "terminal 2, stays", "terminal 3, types yes", "terminal 3"}

    def begun(text: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-ec", text], cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    for text in there["terminal 1"]:
        done = subprocess.run(
            ["bash", "-ec", text.replace("7443", port)], cwd=folder, env=env, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    (hub,), (sites,) = (list(map(begun, there[f"terminal {at}, stays"])) for at in (1, 2))
    try:
        code, seen = typed(there["terminal 3, types yes"][0], cwd=folder, env=env, seconds=120)
        assert code == 0, seen
        assert hub.wait(60) == 0 and sites.wait(60) == 0
    finally:
        for child in (hub, sites):
            child.kill()
            child.communicate()
    for text in there["terminal 3"]:
        done = subprocess.run(["bash", "-ec", text], cwd=folder, env=env, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    models = [Model.load(folder / "study.safetensors")]
    for site in ("north", "south", "east", "west", "centre"):
        models.append(Model.load(folder / site / f"study-{site}.safetensors"))
        assert (folder / site / f"study-{site}-scores.csv").stat().st_mode & 0o077 == 0
    for model in models:
        assert model.guarantee.private and (model.guarantee.epsilon, model.guarantee.delta) == (1.0, 1e-6)
        np.testing.assert_array_equal(model.components, models[0].components)
