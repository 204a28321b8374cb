"""`eigenveil stream` interrupted: by Ctrl-C and SIGTERM, in the middle of a step and at a silent pipe, as a real process."""

import itertools
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.command_tables import COUNT, PRIVATE, eigenveil, files_in, rows, written
from commands.forked import Forked
from commands.stream.command_streams import ARROW, CSV, EXACT, SEEDED, as_arrow_stream, as_csv, piped
from commands.test_process import COMMAND, QUIET
from eigenveil import Model
from eigenveil.commands._ending import Interrupts
from eigenveil.core.accounting import Budget
from eigenveil.estimators.streaming.pca import StreamingPCA
from eigenveil.ledger.durable import DurableLedger

# Far longer than anything here takes: a process that hangs fails the test.
PATIENCE = 60


class Watched:
    """`eigenveil stream -` with a pipe as its input and a terminal as its stderr, read as it is written."""

    def __init__(self, *arguments: object) -> None:
        self._screen, terminal = pty.openpty()
        env, command = QUIET | {"TERM": "xterm"}, ["stream", "-", *arguments]
        self.process = Forked(command, stdin=subprocess.PIPE, stderr=terminal, text=False, env=env, cwd=Path.cwd())
        os.close(terminal)
        self.said = ""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def give(self, data: bytes) -> None:
        """Write to its input and leave that open."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait_for(self, pattern: str) -> None:
        """Wait until the terminal has shown something."""
        with self._changed:
            shown = self._changed.wait_for(lambda: re.search(pattern, self.said) is not None, PATIENCE)
        assert shown, f"{pattern!r} is not in {self.said!r}"

    def stop(self, number: int) -> str:
        """Send a signal, wait for the end, and give the last thing it said."""
        self.process.send_signal(number)
        # A pipe that nobody closes: only the signal can end the command.
        assert self.process.wait(PATIENCE) == 130
        self._reader.join(PATIENCE)
        assert self.process.stdout.read() == b""
        return "interrupted; " + self.said.rpartition("interrupted; ")[2].strip()

    def _read(self) -> None:
        while True:
            try:
                some = os.read(self._screen, 1 << 16)
            except OSError:
                # Nobody has the terminal open any more.
                break
            if not some:
                break
            with self._changed:
                plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", some.decode(errors="replace"))
                self.said += plain
                self._changed.notify_all()

    def close(self) -> None:
        """End what is left of it."""
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self._screen)


@contextmanager
def watched(*arguments: object) -> Iterator[Watched]:
    process = Watched(*arguments)
    try:
        yield process
    finally:
        process.close()


@pytest.mark.parametrize("terms", [EXACT, (*SEEDED, "--block-size", 100)], ids=["exact", "seeded"])
def test_ctrl_c_at_a_silent_pipe_loses_nothing(tmp_path: Path, terms: tuple[object, ...]) -> None:
    state, target, whole = (tmp_path / name for name in ("stream.state", "model.safetensors", "whole.safetensors"))
    values = rows()
    assert piped(as_csv(values), *CSV, *terms, "-o", whole).exit_code == 0
    with watched(*CSV, *terms, "-o", target, "--state", state) as stream:
        stream.give(as_csv(values[:450]))
        stream.wait_for(r"rows\s+450\s")
        # Once it is quiet, there is time to look at the stream.
        stream.wait_for(r"explained variance\s+\d" if terms == EXACT else r"released\s+nothing yet")
        # Without privacy a look costs nothing, so there is a model. A private stream has not released anything yet.
        model = f", the model of all of them was written to {target}" if terms == EXACT else ""
        assert stream.stop(signal.SIGINT) == (
            f"interrupted; 450 rows had been read{model}, and their state was saved to {state}, raw data that only you can read. "
            f"Continue with the rows after them: --state {state} --resume"
        )
    assert files_in(tmp_path) == {state.name, whole.name, *([target.name] if terms == EXACT else [])}
    assert terms != EXACT or Model.load(target).settings["rows"] == 450
    assert state.stat().st_mode & 0o777 == 0o600
    result = piped(as_csv(values[450:]), *CSV, "--resume", "-o", target, "--force", "--state", state)
    assert result.exit_code == 0, result.output
    assert np.allclose(Model.load(target).components, Model.load(whole).components, atol=1e-12)
    assert np.allclose(Model.load(target).explained_variance, Model.load(whole).explained_variance)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_moves_a_private_stream_into_its_state(tmp_path: Path, number: int) -> None:
    state, target, ledger = (tmp_path / name for name in ("stream.state", "model.safetensors", "ledger.db"))
    charged = ("--ledger", ledger, "--dataset", "people", "--lifetime-epsilon", 2)
    with watched(*CSV, "-k", 2, *PRIVATE, "--sync-every", 400, "-o", target, "--state", state, *charged) as stream:
        stream.give(as_csv(rows()[:450]))
        stream.wait_for(r"rows\s+450\s")
        stream.wait_for(r"released\s+1 time, of the first 400 rows")
        stream.wait_for(r"spent\s+epsilon 1 of 1, at delta = 1e-06")
        # The sensor has a model from its first release on, and keeps it.
        assert Model.load(target).settings["rows"] == 400
        words = f"450 rows had been read, the last release, of the first 400, was written to {target}, and their state was saved"
        assert words in stream.stop(number)
    assert files_in(tmp_path) == {state.name, target.name, ledger.name}
    # The file is whole, and what the state may still release is paid for.
    assert Model.load(target).settings["rows"] == 400
    with DurableLedger.reading(ledger) as opened:
        opened.verify()
        (study,) = opened.studies()
    assert study.state == "finished"
    assert study.spent == pytest.approx(Budget(1.0, 1e-6).mu)
    resume = ("--sync-every", 400, "-o", target, "--force", "--state", state, "--resume")
    assert piped(as_csv(rows()[450:]), *CSV, *resume).exit_code == 0
    model = Model.load(target)
    assert (model.settings["rows"], model.settings["releases"]) == (COUNT, 3)
    assert model.guarantee.private


def test_ctrl_c_without_a_state_releases_nothing_and_says_so(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    charged = ("--ledger", ledger, "--dataset", "people", "--lifetime-epsilon", 2)
    with watched(*ARROW, "-k", 2, *PRIVATE, "-o", tmp_path / "model.safetensors", "--no-state", *charged) as stream:
        # Without the mark of its end, which is eight bytes.
        stream.give(as_arrow_stream(rows(), 100)[:-8])
        stream.wait_for(r"rows\s+1,009\s")
        assert stream.stop(signal.SIGINT) == (
            "interrupted; 1009 rows had been read, and nothing of them was released or written. "
            "Next time, --state FILE keeps them"
        )
    assert files_in(tmp_path) == {ledger.name}
    with DurableLedger.reading(ledger) as opened:
        assert [study.spent for study in opened.studies()] == [0.0]


def test_a_named_pipe_is_followed(tmp_path: Path) -> None:
    pipe, target = tmp_path / "sensor", tmp_path / "model.safetensors"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(as_csv(rows())), daemon=True)
    writer.start()
    assert eigenveil("stream", pipe, *CSV, *EXACT, "-o", target).exit_code == 0
    writer.join(PATIENCE)
    assert Model.load(target).settings["rows"] == COUNT


def test_ctrl_c_before_the_first_row(tmp_path: Path) -> None:
    pipe = tmp_path / "sensor"
    os.mkfifo(pipe)
    ended = threading.Event()

    def open_and_interrupt() -> None:
        # The pipe is open once the command has opened its end, and nothing ever comes.
        with pipe.open("wb"):
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(PATIENCE)

    writer = threading.Thread(target=open_and_interrupt, daemon=True)
    writer.start()
    result = eigenveil("stream", pipe, *CSV, *EXACT, "-o", tmp_path / "m.safetensors", "--state", tmp_path / "s")
    ended.set()
    writer.join(PATIENCE)
    assert result.exit_code == 130
    assert result.stderr == "interrupted; nothing was written\n"
    assert files_in(tmp_path) == {pipe.name}


def test_a_producer_and_its_stream_as_processes(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    code = "import sys; print('a,b,c'); [print(i % 7, i % 5, i % 3, sep=',', flush=True) for i in range(200)]"
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE) as producer:
        command = [*COMMAND, "stream", "-", *CSV, *map(str, EXACT), "-o", str(target)]
        done = subprocess.run(command, stdin=producer.stdout, capture_output=True, text=True, env=QUIET, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "200 rows in " in done.stdout
    assert Model.load(target).columns == ("a", "b", "c")


def during(monkeypatch: pytest.MonkeyPatch, name: str, number: int, *, call: int = 1, times: int = 1) -> None:
    """Let a signal come in the middle of the n-th call of a method of the estimator, which then goes on."""
    method, calls = getattr(StreamingPCA, name), itertools.count(1)

    def interrupted(self: Any, *arguments: Any) -> Any:
        if next(calls) == call:
            for _ in range(times):
                signal.raise_signal(number)
        return method(self, *arguments)

    monkeypatch.setattr(StreamingPCA, name, interrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_step_is_not_torn_in_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    source, state = written(tmp_path, "npy"), tmp_path / "stream.state"
    during(monkeypatch, "partial_fit", number)
    result = eigenveil("stream", source, *EXACT, "-o", tmp_path / "model.safetensors", "--state", state)
    assert result.exit_code == 130
    assert f"{COUNT} rows had been read" in result.stderr
    assert files_in(tmp_path) == {source.name, state.name, "model.safetensors"}
    assert StreamingPCA.resume(state).n_samples_seen_ == COUNT
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_last_release_is_not_torn_in_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.safetensors"
    during(monkeypatch, "sync", signal.SIGINT)
    assert eigenveil("stream", written(tmp_path, "npy"), "-k", 2, *PRIVATE, "-o", target).exit_code == 0
    assert Model.load(target).settings["rows"] == COUNT


def test_the_second_ctrl_c_is_obeyed_at_once_and_half_a_step_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    during(monkeypatch, "partial_fit", signal.SIGINT, call=3, times=2)
    target, state = tmp_path / "model.safetensors", tmp_path / "stream.state"
    result = piped(as_arrow_stream(rows(), 100), *ARROW, "-k", 2, *PRIVATE, "-o", target, "--state", state)
    assert result.exit_code == 130
    assert result.stderr == "interrupted; nothing was written\n"
    assert files_in(tmp_path) == set()


def test_a_signal_just_before_waiting_is_not_slept_through() -> None:
    stop = Interrupts()
    stop.note(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt), stop.waiting():
        pytest.fail("it went to sleep")


def test_a_state_that_cannot_be_saved_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StreamingPCA, "save_state", full)
    monkeypatch.setattr(StreamingPCA, "checkpoint", lambda *_, **__: None)
    source, state, target = written(tmp_path, "npy"), tmp_path / "stream.state", tmp_path / "model.safetensors"
    command = ("stream", source, *EXACT, "-o", target, "--force", "--state", state)
    late = eigenveil(*command)
    assert late.exit_code == 2
    words = f"the model had been written to {target}, but the state could not be saved"
    assert late.stderr == f"error: No space left on device; {words}\n"
    during(monkeypatch, "partial_fit", signal.SIGINT)
    early = eigenveil(*command)
    assert early.exit_code == 130
    assert "but their state could not be saved: No space left on device" in early.stderr
