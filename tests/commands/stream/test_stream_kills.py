"""`eigenveil stream` killed by SIGKILL before and after everything it does to the outside, and resumed with the same command."""

import errno
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import scipy.sparse as sp

from commands.command_tables import COUNT, arrow_table, eigenveil, files_in, refusal, rows, written
from commands.forked import Forked, run_forked
from commands.stream.command_streams import as_csv
from commands.test_process import QUIET
from eigenveil import Model, StateFileError
from eigenveil.commands._follow import RowsRead, rest_of
from eigenveil.core.accounting import Budget
from eigenveil.data.tables import Source
from eigenveil.estimators.streaming import state_file
from eigenveil.estimators.streaming.pca import StreamingPCA
from eigenveil.ledger.durable import DurableLedger

# Dies at the n-th of these events, before or after it happens. The second number is of the events that it counted.
DYING = """
import builtins, os, signal, sys
from pathlib import Path
from eigenveil.estimators.streaming.pca import StreamingPCA
from eigenveil.model import Model
from eigenveil.ledger.durable import DurableLedger
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
from eigenveil.commands import app
app(prog_name="eigenveil")
"""
PRIVATE = ("-k", "2", "--epsilon", "1", "--delta", "1e-6", "--row-bound", "12")
CHARGED = ("--ledger", "ledger.db", "--dataset", "people", "--lifetime-epsilon", "1")
WAYS = {
    "sync": (*PRIVATE, "--sync-every", "400"),
    "block": (*PRIVATE, "--publish", "block", "--block-size", "300"),
    "tree": (*PRIVATE, "--publish", "continual", "--block-size", "300", "--horizon", "1200"),
}
CASES = [(way, piped, charged) for way in WAYS for piped in (False, True) for charged in (False, True)]


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


@pytest.mark.parametrize(("way", "piped", "charged"), CASES)
def test_no_paid_release_is_lost_and_none_is_drawn_twice(tmp_path: Path, way: str, piped: bool, charged: bool) -> None:
    source = written(tmp_path, "csv").name
    command = ("-" if piped else source, "--format", "csv", *WAYS[way], "--json", "--state", "stream.state")
    command = (*command, "-o", "model.safetensors", *(CHARGED if charged else ()))
    # Each case dies elsewhere first, so that together they die nearly everywhere.
    number = 1 + 4 * CASES.index((way, piped, charged))
    seen = resumed_until_the_end(number, tmp_path, command, piped=piped)
    model = Model.load(tmp_path / "model.safetensors")
    assert model.settings["rows"] == COUNT
    step = 400 if way == "sync" else 300
    assert {one["rows"] for one in seen} == {*range(step, COUNT, step), COUNT}
    for one in seen:
        # Numbers with other noise would differ in every digit.
        same = [other["explained_variance"] for other in seen if other["rows"] == one["rows"]]
        assert all(other == one["explained_variance"] for other in same)
    assert len({one["release"] for one in seen if "release" in one}) == model.settings["releases"]
    if charged:
        with DurableLedger.reading(tmp_path / "ledger.db") as ledger:
            ledger.verify()
            (study,) = ledger.studies()
        assert study.state == "finished"
        assert study.spent == pytest.approx(Budget(1.0, 1e-6).mu)
    left = {source, "stream.state", "model.safetensors", *(["ledger.db"] if charged else [])}
    # Of public numbers, half a file may stay under a name of its own. Of raw data it must not.
    assert {name for name in files_in(tmp_path) if not name.startswith((".model", ".ledger"))} == left


def test_the_state_of_a_process_that_lives_is_not_resumed_and_that_of_a_dead_one_is(tmp_path: Path) -> None:
    state, target = tmp_path / "stream.state", tmp_path / "model.safetensors"
    command = ["stream", "-", "--format", "csv", *WAYS["sync"], "--json", "--state", state, "-o", target]
    with Forked(command, cwd=tmp_path, env=QUIET, stdin=subprocess.PIPE, text=False) as process:
        assert process.stdin is not None
        process.stdin.write(as_csv(rows()[:401]))
        process.stdin.flush()
        shown = json.loads(process.stdout.readline())
        assert shown["rows"] == 400
        line = refusal("stream", written(tmp_path, "csv"), "--resume", "--state", state, "-o", tmp_path / "m.safetensors")
        assert "is the state of a stream that is still running" in line
        with pytest.raises(StateFileError, match="still running"):
            StreamingPCA.resume(state)
        process.kill()
    # By the estimator as well, which claims it.
    stream = StreamingPCA.resume(state)
    assert stream.explained_variance_.tolist() == shown["explained_variance"]
    assert stream.n_samples_seen_ == 400


def test_the_original_command_goes_on_with_its_own_schedule(tmp_path: Path) -> None:
    source = written(tmp_path, "csv").name
    command = (source, *WAYS["sync"], "--drop", "salt", "-o", "model.safetensors", "--json")
    whole = run_forked("stream", *command, cwd=tmp_path, env=QUIET)
    assert (tmp_path / "model.safetensors").exists()
    (tmp_path / "model.safetensors").unlink()
    # Beside the output, as no state was named: from the first release on, until the stream ends.
    code, out = killed_at(20, tmp_path, *command)
    assert code == -signal.SIGKILL
    assert "model.state" in files_in(tmp_path)
    again = run_forked("stream", *command, "--resume", cwd=tmp_path, env=QUIET)
    assert again.returncode == 0, again.stderr
    lines = [*shown_in(out), *shown_in(again.stdout)]
    assert {one["rows"] for one in lines} == {one["rows"] for one in shown_in(whole.stdout)} == {400, 800, COUNT}
    assert f"note: {source} begins with the " in again.stderr
    assert files_in(tmp_path) == {source, "model.safetensors"}
    other = refusal("stream", tmp_path / source, "--resume", "-k", 3, "-o", tmp_path / "model.safetensors")
    assert "--resume needs a state" in other


def test_settings_that_differ_from_the_state_are_refused_and_a_schedule_is_kept(tmp_path: Path) -> None:
    source, state, target = written(tmp_path, "csv"), tmp_path / "stream.state", tmp_path / "model.safetensors"
    first = tmp_path / "first.csv"
    first.write_bytes(as_csv(rows()[:450]))
    begin = ("stream", first, *WAYS["sync"], "--seed", 3, "--state", state, "-o", target)
    assert eigenveil(*begin).exit_code == 0
    for typed, words in (
        (("-k", 3), "where --components has another value"),
        (("-k", 2, "--epsilon", 2, "--delta", 1e-6), "where --epsilon has another value"),
        (("--no-privacy",), "where --epsilon has another value"),
        (("--ledger", tmp_path / "ledger.db"), "the stream in the state has no ledger"),
    ):
        assert words in refusal("stream", source, "--resume", "--state", state, "-o", target, *typed)
    # The file with more rows behind those that were read, and the settings again, as somebody presses the key for "up".
    result = eigenveil("stream", source, *begin[2:], "--resume", "--json")
    assert result.exit_code == 0, result.output
    assert [one["rows"] for one in shown_in(result.stdout)] == [800, COUNT]
    whole = tmp_path / "whole.safetensors"
    assert eigenveil("stream", source, *begin[2:-4], "-o", whole).exit_code == 0
    assert Model.load(target).settings["rows"] == Model.load(whole).settings["rows"] == COUNT


def test_rows_of_a_file_that_begins_otherwise_are_all_new(tmp_path: Path) -> None:
    state, target, values = tmp_path / "stream.state", tmp_path / "model.safetensors", rows()
    for day, part in enumerate((values[:500], values[500:])):
        # Under one name, as a file of each day may have.
        (tmp_path / "today.csv").write_bytes(as_csv(part))
        again = ("--resume",) if day else ("-k", 2, "--no-privacy")
        result = eigenveil("stream", tmp_path / "today.csv", *again, "--state", state, "-o", target)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
    assert Model.load(target).settings["rows"] == COUNT


@pytest.mark.parametrize("kind", ["dense", "sparse", "people"])
def test_rows_that_were_read_are_told_from_others_whatever_the_batches(kind: str) -> None:
    def made(values: Any) -> Any:
        if kind == "dense":
            return values
        if kind == "sparse":
            return sp.csr_array(values)
        return arrow_table(values, who=pa.array([f"p{at % 7}" for at in range(len(values))]))

    def source(values: Any, size: int) -> Source:
        whole = made(values)
        cut = whole.slice if kind == "people" else lambda start, count: whole[start : start + count]
        return Source((cut(start, min(size, len(values) - start)) for start in range(0, len(values), size)), None)

    values, known = rows(), RowsRead()
    for batch in source(values[:400], 33).batches:
        known.add(batch)
    for size in (1, 50, 399, 400, 401, 5000):
        found = rest_of(source(values, size), known.facts())
        assert found is not None
        rest, read = found
        assert read.facts() == known.facts()
        assert sum(batch.shape[0] for batch in rest.batches) == COUNT - 400
    other = values.copy()
    other[399, 2] += 1e-9
    assert rest_of(source(other, 50), known.facts()) is None
    assert rest_of(source(values[:399], 50), known.facts()) is None


def test_a_stream_that_was_killed_before_its_first_state_begins_anew(tmp_path: Path) -> None:
    source = written(tmp_path, "csv").name
    for named, command in enumerate(
        ((source, *WAYS["sync"], "--state", "own.state"), (source, *WAYS["sync"], *CHARGED), (source, *WAYS["block"]))
    ):
        folder = tmp_path / f"{named}"
        folder.mkdir()
        shutil.copy(tmp_path / source, folder / source)
        command = (*command, "-o", "model.safetensors", "--json")
        assert killed_at(2, folder, *command)[0] == -signal.SIGKILL
        assert not [name for name in files_in(folder) if name.endswith((".state", ".safetensors"))]
        again = run_forked("stream", *command, "--resume", cwd=folder, env=QUIET)
        assert again.returncode == 2
        assert "nothing of it was released: give the same command again without --resume" in again.stderr
        anew = run_forked("stream", *command, cwd=folder, env=QUIET)
        assert anew.returncode == 0, anew.stderr
        if "--ledger" in command:
            with DurableLedger.open(folder / "ledger.db", create=False) as ledger:
                (state,) = ledger.datasets()
                assert state.epsilon(1e-6, mu=state.counted) == pytest.approx(1.0)
        # One that has ended is no such stream: its rows would be released a second time.
        late = run_forked("stream", *command, "--resume", cwd=folder, env=QUIET)
        assert late.returncode == (0 if "--state" in command else 2)
        assert ("at a cost of its own" in late.stderr) == ("--state" not in command)


def test_a_killed_stream_says_so_if_the_file_is_another_one(tmp_path: Path) -> None:
    source = tmp_path / written(tmp_path, "csv").name
    command = (source.name, *WAYS["sync"], "--state", "own.state", "-o", "model.safetensors", "--json")
    assert killed_at(16, tmp_path, *command)[0] == -signal.SIGKILL
    assert (tmp_path / "own.state").exists()
    source.write_bytes(as_csv(rows()[1:]))
    again = run_forked("stream", *command, "--resume", cwd=tmp_path, env=QUIET)
    assert again.returncode == 0, again.stderr
    assert "does not begin with the" in again.stderr
    assert "in the stream twice" in again.stderr


@pytest.mark.parametrize("full", ["model", "state"])
def test_a_full_disk_names_the_file_and_claims_no_model(tmp_path: Path, full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, state, target = written(tmp_path, "csv"), tmp_path / "own.state", tmp_path / "model.safetensors"
    command = ("stream", source, *WAYS["sync"], "--seed", 1, "--state", state, "-o", target)
    write = Path.write_bytes

    def writing(path: Path, data: bytes) -> int:
        # The first states fit, and the first model does not.
        if target.name in path.name if full == "model" else target.exists() or not state.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", writing)
        line = refusal(*command)
    assert f"{target if full == 'model' else state}: No space left on device" in line
    assert "was written to" not in line
    assert not target.exists()
    if full == "model":
        assert eigenveil(*command, "--resume").exit_code == 0
        whole = tmp_path / "whole.safetensors"
        assert eigenveil(*command[:-3], tmp_path / "other.state", "-o", whole).exit_code == 0
        assert Model.load(target).values.tolist() == Model.load(whole).values.tolist()


def test_a_state_that_cannot_be_written_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, state, ledger = written(tmp_path, "csv"), tmp_path / "own.state", tmp_path / "ledger.db"
    command = ("stream", source, *WAYS["sync"], "--state", state, "-o", tmp_path / "model.safetensors")
    charged = ("--ledger", ledger, "--dataset", "people", "--lifetime-epsilon", 1)
    write = Path.write_bytes

    def writing(path: Path, data: bytes) -> int:
        if state.name in path.name:
            raise OSError(errno.EROFS, "Read-only file system")
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", writing)
        assert "Read-only file system" in refusal(*command, *charged)
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda path, mode: Path(path) != state.parent)
        assert "you may not write to the folder" in refusal(*command[:-1], tmp_path / "model.safetensors", *charged)
    assert files_in(tmp_path) <= {source.name, ledger.name}
    # All of the budget is there.
    assert eigenveil(*command, *charged).exit_code == 0
