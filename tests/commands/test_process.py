"""The command as a process: what a shell sees, how fast --help answers, and what the loader has to load for it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from commands.command_tables import PRIVATE, eigenveil, files_in, written
from commands.forked import run_forked
from eigenveil import Model
from eigenveil.audit import CASES
from eigenveil.commands.audit import FAMILIES

COMMAND = [sys.executable, "-m", "eigenveil"]
HEAVY = {"numpy", "scipy", "sklearn", "pyarrow", "dp_accounting", "pandas", "safetensors"}
QUIET = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}


def run(*arguments: object, **more: str) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=QUIET | more, timeout=60, check=False)


def test_fit_and_inspect_as_processes(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    done = run_forked("fit", written(tmp_path, "parquet"), "-k", 2, *PRIVATE, "-o", target, env=QUIET)
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
    assert done.stderr == f"error: {tmp_path / 'none.csv'} does not exist. Check the path\n"
    shown = run("account", "--delta", 1, "--gaussian", 1, EIGENVEIL_TRACEBACK="1")
    assert "Traceback" in shown.stderr


# A fit that says when it has begun and then takes its time.
SLOW = """
import time
from eigenveil import PrivatePCA
from eigenveil.commands import app

def fit(*_):
    print("begun", flush=True)
    time.sleep(60)

PrivatePCA.fit = fit
app()
"""


def test_ctrl_c_stops_a_long_fit(tmp_path: Path) -> None:
    source = written(tmp_path, "npy")
    command = [sys.executable, "-c", SLOW, "fit", str(source), "-k", "2", *PRIVATE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=QUIET, cwd=tmp_path) as started:
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
        [sys.executable, "-X", "importtime", "-m", "eigenveil", "--help"], capture_output=True, text=True, env=QUIET, check=True
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & HEAVY


# Mistakes that can be seen without reading a row, each a command line.
MISTAKES = """
fit x.doc -k 2 --no-privacy
fit none.csv -k 2 --no-privacy
fit good.csv -k 2 --no-privacy -o model.txt
fit good.csv -k 2 --epsilon 1 --delta 1e-6 --row-bound -1
fit good.csv -k 2 --epsilon 1 --delta 1e-6 --bounds none.json
stream x.doc -k 2 --no-privacy
stream none.csv -k 2 --no-privacy
stream good.csv -k 2 --no-privacy -o model.txt
stream good.csv -k 2 --no-privacy --forget 2
stream good.csv --resume --state none.state
transform x.doc -m model.safetensors -o scores.csv
transform good.csv -m model.safetensors -o scores.doc
transform good.csv -m none.safetensors -o scores.csv
inspect none.safetensors
bounds x.doc --epsilon 1 --delta 1e-6
bounds good.csv --epsilon 1 --delta 1e-6 -o bounds.txt
spectrum x.doc --epsilon 1 --delta 1e-6 --row-bound 1
spectrum good.csv --epsilon 1 --delta 1e-6 --row-bound 1 -o spectrum.txt
simulate good.csv -k 2 --no-privacy --sites 3 -o model.txt
recommend fit x.doc -k 2 --epsilon 1
recommend fit good.csv -k 2 --epsilon 1 --items-file none.txt
recommend evaluate none.csv -k 2 --epsilon 1
plan -n 1000 -k 5 --epsilon 1 --delta 1e-6 --spectrum none.json
plan -n 1000 -k 5 --epsilon 1 --delta 1e-6 --spectrum x.doc
plan -n 1000 -k 5 --epsilon 1 --delta 1e-6 --public-data x.doc
audit nothing-like-this
audit curator --epsilon 1
"""
# All of them in one process: what one of them loads stays there for all to see.
TRIED = f"""
import sys
from typer.testing import CliRunner
from eigenveil.commands import app

for line in {MISTAKES!r}.split("\\n")[1:-1]:
    assert CliRunner().invoke(app, line.split()).exit_code == 2, line
    heavy = {HEAVY!r} & set(sys.modules)
    assert not heavy, (line, heavy)
"""


def test_a_mistake_in_a_name_or_a_number_is_said_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    for name in ("x.doc", "good.csv", "model.safetensors"):
        (tmp_path / name).write_text("a,b\n1,2\n3,4\n")
    command = [sys.executable, "-c", TRIED]
    done = subprocess.run(command, capture_output=True, text=True, env=QUIET, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


def test_the_beginnings_of_the_names_of_cases_are_those_there_are() -> None:
    assert set(FAMILIES) == {name.partition("/")[0] for name in CASES}


def test_colours_that_are_forced_put_no_row_counts_into_a_log(tmp_path: Path) -> None:
    table = written(tmp_path, "csv")
    for forced in ({"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}, {"CLICOLOR_FORCE": "1"}):
        arguments = ("fit", table, "-k", 2, *PRIVATE, "-o", tmp_path / "m.safetensors", "--force")
        done = run_forked(*arguments, env=QUIET | forced)
        assert done.returncode == 0, done.stderr
        assert "rows" not in done.stderr
