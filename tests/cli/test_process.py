"""The command as a process: what a shell sees, how fast --help answers, and what the loader has to load for it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from cli.cli_tables import PRIVATE, eigenveil, files_in, written
from eigenveil import Model, __version__

COMMAND = [sys.executable, "-m", "eigenveil"]
QUIET = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}


def run(*arguments: object, **more: str) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=QUIET | more, timeout=60, check=False)


def test_fit_and_inspect_as_processes(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    done = run("fit", written(tmp_path, "parquet"), "-k", 2, *PRIVATE, "-o", target)
    assert done.returncode == 0, done.stderr
    # Rows are counted on a terminal only: here stderr goes to a file.
    assert done.stderr == ""
    assert len(Model.load(target).values) == 2
    plain = run("inspect", target, PYTHONIOENCODING="ascii")
    assert plain.returncode == 0
    assert plain.stdout.isascii()
    assert "###" in plain.stdout


def test_an_error_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    done = run("fit", tmp_path / "none.csv", "-k", 2, *PRIVATE, "-o", tmp_path / "model.safetensors")
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'none.csv'} does not exist or is not a file\n"
    shown = run("account", "--delta", 1, "--gaussian", 1, EIGENVEIL_TRACEBACK="1")
    assert "Traceback" in shown.stderr


# A fit that says when it has begun and then takes its time.
SLOW = """
import time
from eigenveil import PrivatePCA
from eigenveil.cli import app

def fit(*_):
    print("begun", flush=True)
    time.sleep(60)

PrivatePCA.fit = fit
app()
"""


def test_ctrl_c_stops_a_long_fit(tmp_path: Path) -> None:
    source = written(tmp_path, "npy")
    command = [sys.executable, "-c", SLOW, "fit", str(source), "-k", "2", *PRIVATE]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=QUIET, cwd=tmp_path
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "begun\n"
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=30)
    assert started.returncode == 130
    assert said == "interrupted; nothing was written\n"
    assert files_in(tmp_path) == {source.name}


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    eigenveil("fit", written(tmp_path, "npy"), "-k", 2, *PRIVATE, "-o", target)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "inspect", str(target)], stdout=writer, stderr=subprocess.PIPE, text=True, env=QUIET, check=False
    )
    os.close(writer)
    assert "Traceback" not in done.stderr


def test_help_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "eigenveil", "--help"],
        capture_output=True,
        text=True,
        env=QUIET,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & {"numpy", "scipy", "sklearn", "pyarrow", "dp_accounting", "pandas", "safetensors"}


def test_version_and_help_of_every_command() -> None:
    assert eigenveil("--version").stdout == f"eigenveil {__version__}\n"
    whole = eigenveil("--help").stdout
    for command in ("fit", "stream", "transform", "inspect", "account", "demo"):
        assert command in whole
        page = eigenveil(command, "--help")
        assert page.exit_code == 0
        assert f"eigenveil {command} " in page.stdout


def test_a_wrong_option_is_refused_without_a_traceback() -> None:
    for arguments in (["fit"], ["fit", "x.csv", "--speed"], ["fly"], ["account", "--delta", "small"]):
        assert eigenveil(*arguments).exit_code == 2
