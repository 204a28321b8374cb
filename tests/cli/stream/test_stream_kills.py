"""`eigenveil stream` killed by SIGKILL before and after everything it does to the outside, and resumed with the same command."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.cli_tables import COUNT, files_in, refusal, rows, written
from cli.forked import Forked, run_forked
from cli.stream.cli_streams import as_csv
from cli.test_process import QUIET
from eigenveil import Model
from eigenveil.estimators.streaming import state_file
from eigenveil.estimators.streaming.pca import StreamingPCA
from eigenveil.network.ledger.durable import DurableLedger
from eigenveil.privacy import Budget

# Dies at the n-th of these events, before or after it happens. The second number is of the events that it counted.
DYING = """
import builtins, os, signal, sys
from pathlib import Path
from eigenveil.estimators.streaming.pca import StreamingPCA
from eigenveil.model import Model
from eigenveil.network.ledger.durable import DurableLedger
left = int(os.environ["DIES_AT"])
def event():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), 9)
def watched(owner, name):
    method = getattr(owner, name)
    def run(*args, **more):
        event()
        found = method(*args, **more)
        event()
        return found
    setattr(owner, name, run)
for name in ("partial_fit", "sync", "checkpoint", "save_state"):
    watched(StreamingPCA, name)
for name in ("join", "commit", "finish"):
    watched(DurableLedger, name)
watched(Model, "save")
watched(Path, "replace")
watched(Path, "unlink")
watched(builtins, "print")
from eigenveil.cli import app
app(prog_name="eigenveil")
"""
PRIVATE = ("-k", "2", "--epsilon", "1", "--delta", "1e-6", "--row-bound", "12")
CHARGED = ("--ledger", "ledger.db", "--dataset", "people", "--life-epsilon", "1")
NUMBERS = lambda *a: range(1,80,2)
WAYS = {
    "sync": (*PRIVATE, "--sync-every", "400"),
    "block": (*PRIVATE, "--publish", "block", "--block-size", "300"),
    "tree": (*PRIVATE, "--publish", "continual", "--block-size", "300", "--horizon", "1200"),
}


def killed_at(number: int, folder: Path, *command: str, data: bytes | None = None) -> tuple[int, str]:
    """The exit code of a process that dies at this event, unless it ends before, and the lines of JSON that it wrote."""
    env = QUIET | {"DIES_AT": str(number)}
    pipe = subprocess.DEVNULL if data is None else subprocess.PIPE
    with Forked(["stream", *command], cwd=folder, env=env, program=DYING, stdin=pipe, text=False) as process:
        if process.stdin is not None:
            try:
                process.stdin.write(data or b"")
                process.stdin.close()
            except BrokenPipeError:
                pass
        out = process.stdout.read()
        code = process.wait(60)
        assert process.stderr is not None
        error = process.stderr.read().decode()
    assert code in (-signal.SIGKILL, 0), error
    return code, out.decode()


def shown_in(out: str) -> Iterator[dict[str, Any]]:
    """The releases in lines of JSON, of which the last may have been cut off."""
    for line in out.splitlines():
        yield {name: value for name, value in json.loads(line).items() if name != "final"}


def rows_in(state: Path) -> int:
    """How many rows the stream in a state has read."""
    return int(state_file._KIND.read(state)[1]["counts"]["rows"]) if state.exists() else 0


def resumed_until_the_end(number: int, folder: Path, command: tuple[str, ...], *, piped: bool) -> list[dict[str, Any]]:
    """All releases that were seen of a stream that is killed at this event, and each time resumed, three times."""
    seen: list[dict[str, Any]] = []
    state, values = folder / "stream.state", rows()
    for attempt in range(9):
        data = as_csv(values[rows_in(state) :]) if piped else None
        again = ("--resume",) if state.exists() else ()
        # In each attempt somewhere else, and in the end nowhere.
        dies = number + attempt if attempt < 3 else 0
        code, out = killed_at(dies, folder, *command, *again, data=data)
        seen += shown_in(out)
        if code == 0:
            return seen
        if (folder / "model.safetensors").exists():
            model = Model.load(folder / "model.safetensors")
            seen.append({"rows": model.settings["rows"], "explained_variance": model.explained_variance.tolist()})
            if not state.exists():
                pytest.fail("a release was shown and is in no state")
            # What was shown is in the state, to the last bit.
            copied = shutil.copy(state, folder / "copied.state")
            stream = StreamingPCA.resume(copied)
            assert stream.n_samples_seen_ >= model.settings["rows"]
            (folder / "copied.state.resumed").unlink()
    raise AssertionError("it does not end")


@pytest.mark.parametrize("charged", [False, True], ids=["", "ledger"])
@pytest.mark.parametrize("piped", [False, True], ids=["file", "pipe"])
@pytest.mark.parametrize("way", WAYS)
def test_no_paid_release_is_lost_and_none_is_drawn_twice(
    tmp_path: Path, way: str, piped: bool, charged: bool
) -> None:
    source = written(tmp_path, "csv").name
    command = ("-" if piped else source, "--format", "csv", *WAYS[way], "--json", "--state", "stream.state")
    command = (*command, "-o", "model.safetensors", *(CHARGED if charged else ()))
    for number in NUMBERS(way, piped, charged):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        shutil.copy(tmp_path / source, folder)
        seen = resumed_until_the_end(number, folder, command, piped=piped)
        model = Model.load(folder / "model.safetensors")
        assert model.settings["rows"] == COUNT
        assert [at for at in sorted({one["rows"] for one in seen})] == sorted(
            {*range(*((400, COUNT, 400) if way == "sync" else (300, COUNT, 300))), COUNT}
        )
        for one in seen:
            # Numbers with other noise would differ in every digit.
            same = [other["explained_variance"] for other in seen if other["rows"] == one["rows"]]
            assert all(other == one["explained_variance"] for other in same)
        assert len({one["release"] for one in seen if "release" in one}) == model.settings["releases"]
        if charged:
            with DurableLedger.reading(folder / "ledger.db") as ledger:
                ledger.verify()
                (study,) = ledger.studies()
            assert (study.state, study.spent) == ("finished", pytest.approx(Budget(1.0, 1e-6).mu))
        left = {source, "stream.state", "model.safetensors", *(["ledger.db"] if charged else [])}
        # Of public numbers, half a file may stay under a name of its own. Of raw data it must not.
        assert {name for name in files_in(folder) if not name.startswith((".model", ".ledger"))} == left
        shutil.rmtree(folder)
