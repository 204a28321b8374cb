"""Processes of the command, forked from a server that has loaded everything: to be signalled and killed, without seconds of
imports each. What loading costs or says is for processes of their own, as in test_process.py."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Final, Self, final

__all__ = ["COMMAND", "Forked", "run_forked"]

# What a process executes unless a test says otherwise: as `python -m eigenveil` does.
COMMAND: Final = "from eigenveil.cli import app; app(prog_name='eigenveil')"
_FORKS: Final = multiprocessing.get_context("forkserver")
# Whatever some command loads. And pytest, the main module here, which every child looks for.
_FORKS.set_forkserver_preload(
    [
        *("pytest", "pyarrow.csv", "pyarrow.parquet", "pyarrow.pandas_compat", "sklearn.base", "eigenveil.cli"),
        *("typer._adapters", "rich.live", "rich.panel", "rich.progress", "rich.table", "safetensors.numpy"),
        *("scipy.special", "eigenveil.cli._report", "eigenveil.report", "cryptography.hazmat.backends.openssl.backend"),
        *("eigenveil.network.agents.hub", "eigenveil.network.agents.site", "eigenveil.network.agents.peer"),
        *("eigenveil.estimators.federated.pca", "eigenveil.estimators.gossip.pca", "eigenveil.estimators.private.pca"),
        *("eigenveil.estimators.streaming.pca", "eigenveil.recommend"),
    ]
)


def _live(program: str, arguments: list[str], cwd: Path, env: dict[str, str], ends: list[Connection]) -> None:
    """What a child does: it takes over its streams, its folder and its environment, and executes the program."""
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = ["eigenveil", *arguments]
    exec(program, {"__name__": "__main__"})  # noqa: S102  Of our own making.


@final
class Forked:
    """A process of `program` with `arguments`, and as much of `subprocess.Popen` as is needed here. Changes in place."""

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path,
        env: Mapping[str, str],
        program: str = COMMAND,
        stdin: int = subprocess.DEVNULL,
        stderr: int = subprocess.PIPE,
        text: bool = True,
    ) -> None:
        opened: list[Any] = [None, None, None]
        ends: list[Connection] = []
        for number, wanted in enumerate((stdin, subprocess.PIPE, stderr)):
            if wanted == subprocess.PIPE:
                theirs, ours = os.pipe() if number == 0 else os.pipe()[::-1]
                mode = ("w" if number == 0 else "r") + ("" if text else "b")
                opened[number] = os.fdopen(ours, mode)
            elif wanted == subprocess.DEVNULL:
                theirs = os.open(os.devnull, os.O_RDWR)
            else:
                theirs = os.dup(wanted)
            ends.append(Connection(theirs))
        self.stdin: IO[Any] | None = opened[0]
        self.stdout: IO[Any] = opened[1]
        self.stderr: IO[Any] | None = opened[2]
        words = [str(argument) for argument in arguments]
        self._child = _FORKS.Process(target=_live, args=(program, words, cwd, dict(env), ends), daemon=True)
        self._child.start()
        for end in ends:
            end.close()

    def poll(self) -> int | None:
        """Its exit code, once it has one; minus the number of a signal that killed it."""
        return self._child.exitcode

    def wait(self, seconds: float) -> int:
        """Its exit code, or `subprocess.TimeoutExpired`."""
        self._child.join(seconds)
        code = self._child.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("eigenveil", seconds)
        return code

    def send_signal(self, number: int) -> None:
        """As long as it lives: its id is its own until its end is noticed."""
        if self._child.exitcode is None and self._child.pid is not None:
            os.kill(self._child.pid, number)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            self.kill()
        self.wait(60)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()


def run_forked(
    *arguments: object, cwd: Path = Path(), env: Mapping[str, str], program: str = COMMAND
) -> "subprocess.CompletedProcess[str]":
    """What `subprocess.run` finds, of little text: stderr is read after stdout."""
    with Forked(arguments, cwd=cwd.absolute(), env=env, program=program) as started:
        assert started.stderr is not None
        out, error = started.stdout.read(), started.stderr.read()
        return subprocess.CompletedProcess([str(argument) for argument in arguments], started.wait(60), out, error)
