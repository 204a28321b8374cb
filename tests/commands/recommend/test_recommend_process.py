"""`eigenveil recommend` as a process: quiet off a terminal, rounds on one, and Ctrl-C that leaves no half file."""

import os
import pty
import signal
from pathlib import Path

import pytest

from commands.command_tables import files_in
from commands.forked import Forked, run_forked
from commands.recommend.test_recommend import GROUPS, PRIVATE, catalogue_in, plays_in
from commands.simulate.test_simulate_process import _read as read_screen
from commands.test_process import QUIET, run

# The second round says that it has begun and then takes its time.
SLOW_ROUND = r"""
import os, time
from eigenveil.commands import app
from eigenveil.recommend.item_fit import ItemFit

work = ItemFit.work

def slow(self, question, rows, mechanism):
    if question.stage == "components":
        time.sleep(0.5)
        os.write(1, b"begun\n")
        time.sleep(60)
    return work(self, question, rows, mechanism)

ItemFit.work = slow
app()
"""
# All is in the temporary file and has not got its name yet.
SLOW_FILE = r"""
import os, time
from eigenveil.commands import app

def slow(_):
    os.write(1, b"begun\n")
    time.sleep(60)

os.fsync = slow
app()
"""


def test_fit_and_top_as_processes(tmp_path: Path) -> None:
    source, target = plays_in(tmp_path), tmp_path / "items.safetensors"
    items = ("--items-file", catalogue_in(tmp_path))
    done = run("recommend", "fit", source, *PRIVATE, "-o", target, *items)
    assert (done.returncode, done.stderr) == (0, "")
    listed = run_forked("recommend", "top", target, "--have", "i0", "--have", "i3", "--first", 5, env=QUIET)
    assert listed.returncode == 0
    assert [int(name[1:]) % GROUPS for name in listed.stdout.split()] == [0] * 5
    assert listed.stderr.count("\n") == 1
    refused = run_forked("recommend", "fit", source, *PRIVATE, "-o", target, env=QUIET)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert (
        refused.stderr
        == f"error: --output {target} already exists. Overwrite it with --force, or choose another name with --output\n"
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_during_a_fit_says_how_far_it_came_and_leaves_nothing(tmp_path: Path, terminal: bool) -> None:
    source = plays_in(tmp_path, "npz")
    said = _interrupted(SLOW_ROUND, source, "--keep-items", 20, terminal=terminal)
    assert "interrupted; round 1 (degrees) had finished, and nothing was written\n" in said.replace("\r", "")
    shown = "fitting the private filter: round 1 (degrees) is done" in said
    assert shown == terminal
    assert terminal or said.count("\n") == 1
    assert files_in(tmp_path) == {source.name}


def test_ctrl_c_while_the_file_is_written_leaves_no_half_of_it(tmp_path: Path) -> None:
    source = plays_in(tmp_path, "npz")
    assert _interrupted(SLOW_FILE, source) == "interrupted; nothing was written\n"
    assert files_in(tmp_path) == {source.name}


def _interrupted(program: str, source: Path, *more: object, terminal: bool = False) -> str:
    """What a fit that was interrupted says on stderr."""
    command = ["recommend", "fit", source.name, *PRIVATE, *more]
    screen, stderr = pty.openpty() if terminal else os.pipe()
    env = QUIET | {"TERM": "xterm"}
    with Forked(command, program=program, stderr=stderr, env=env, cwd=source.parent) as started:
        os.close(stderr)
        assert started.stdout.readline() == "begun\n"
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 130
    return read_screen(screen)
