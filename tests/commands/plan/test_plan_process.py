"""The plan as a process: what a shell sees, what --help has to load, and Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from commands.plan.plan_runs import SMALL

QUIET = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
PLAN = """
import typer
from eigenveil.commands.plan import COMMAND
app = typer.Typer(pretty_exceptions_enable=False)
COMMAND.join(app)
"""
# A planner that says when it has begun and then takes its time.
SLOW = """
import time
import eigenveil.plan.recommendation

def advise(*_, **__):
    print("begun", flush=True)
    time.sleep(60)

eigenveil.plan.recommendation.advise = advise
"""


def test_help_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"{PLAN}app(['--help'])"],
        capture_output=True,
        text=True,
        env=QUIET,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & {"numpy", "scipy", "sklearn", "pyarrow", "dp_accounting", "safetensors"}


def test_off_a_terminal_nothing_but_the_answer_is_said() -> None:
    words = [*SMALL, "--method", "curator/covariance", "--epsilons", "1"]
    done = subprocess.run([sys.executable, "-c", f"{PLAN}app({words!r})"], capture_output=True, text=True, env=QUIET, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("With epsilon = 1 expect ")
    # A terminal without box characters gets ASCII.
    assert "?" not in done.stdout


def test_ctrl_c_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    words = [*SMALL, "--plot", "plan.svg"]
    with subprocess.Popen(
        [sys.executable, "-c", f"{SLOW}{PLAN}app({words!r})"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=QUIET,
        cwd=tmp_path,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "begun\n"
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=30)
    assert started.returncode == 130
    assert said == "interrupted; nothing was written\n"
    assert list(tmp_path.iterdir()) == []
