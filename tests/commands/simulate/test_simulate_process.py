"""`eigenveil simulate` as a process: quiet off a terminal, rounds on one, and Ctrl-C that says how far it came."""

import os
import pty
import re
import signal
from pathlib import Path

import pytest

from commands.command_tables import files_in, written
from commands.forked import Forked, run_forked
from commands.test_process import QUIET, run

# The third round says that it has begun and then takes its time.
SLOW = r"""
import os, time
from eigenveil.commands import app
from eigenveil.runtimes.local import LocalNetwork

step = LocalNetwork.step

def slow(self):
    if self.parties["hub"]._round == 2:
        time.sleep(0.5)
        os.write(1, b"begun\n")
        time.sleep(60)
    return step(self)

LocalNetwork.step = slow
app()
"""


def test_a_simulation_is_quiet_on_stderr_and_a_lost_quorum_is_one_line(tmp_path: Path) -> None:
    source = written(tmp_path, "npy")
    done = run("simulate", source, "-k", 2, "--sites", 20, "--no-privacy")
    assert (done.returncode, done.stderr) == (0, "")
    faults = ("--dead", 3, "--loss", 0.05, "--seed", 1)
    lost = run_forked("simulate", source, "-k", 2, "--sites", 20, "--no-privacy", *faults, env=QUIET)
    assert (lost.returncode, lost.stdout) == (3, "")
    assert re.fullmatch(r"error: quorum lost in round 1 \(mean 1\): no answer from site 3\. .*\n", lost.stderr)


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_says_which_round_was_reached(tmp_path: Path, terminal: bool) -> None:
    source = written(tmp_path, "npy")
    command = ["simulate", source, "-k", 2, "--sites", 3, "--no-privacy"]
    screen, stderr = pty.openpty() if terminal else os.pipe()
    with Forked(command, program=SLOW, stderr=stderr, env=QUIET | {"TERM": "xterm"}, cwd=tmp_path) as started:
        os.close(stderr)
        assert started.stdout.readline() == "begun\n"
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 130
    said = _read(screen)
    assert "interrupted; round 2 (krylov 1) had ended, and nothing was written\n" in said.replace("\r", "")
    shown = "round 2 (krylov 1): 3 of 3 sites answered, " in said
    assert shown == terminal
    assert terminal or said.count("\n") == 1
    assert files_in(tmp_path) == {source.name}


def _read(screen: int) -> str:
    found = b""
    while True:
        try:
            some = os.read(screen, 1 << 16)
        except OSError:
            # Nobody has the terminal open any more.
            some = b""
        if not some:
            break
        found += some
    os.close(screen)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode())
