"""Processes of the command, forked from a server that has loaded everything: to be signalled and killed, without seconds of
imports each. What loading costs or says is for processes of their own, as in test_process.py."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Final, Self, final

__all__ = ["COMMAND", "Forked", "run_forked", "stand_ins"]

# What a process executes unless a test says otherwise: as `python -m eigenveil` does.
COMMAND: Final = "from eigenveil.commands import app; app(prog_name='eigenveil')"
_FORKS: Final = multiprocessing.get_context("forkserver")
# Whatever some command loads. And pytest, the main module here, which every child looks for.
_FORKS.set_forkserver_preload(
    [
        *("pytest", "pyarrow.csv", "pyarrow.parquet", "pyarrow.pandas_compat", "sklearn.base", "eigenveil.commands"),
        *("typer._adapters", "rich.live", "rich.panel", "rich.progress", "rich.table", "safetensors.numpy"),
        *("scipy.special", "eigenveil.show.terminal", "eigenveil.show.report", "cryptography.hazmat.backends.openssl.backend"),
        *("eigenveil.network.agents.star", "eigenveil.network.agents.star", "eigenveil.network.agents.peer"),
        *("eigenveil.estimators.federated.pca", "eigenveil.estimators.gossip.pca", "eigenveil.estimators.private"),
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


# Stands for `eigenveil` on the path of a shell: hands its streams, words, folder and environment over, and waits.
_STAND_IN: Final = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(line, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    line.sendall(asked)
    code = int(line.recv(8) or b"1")
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def _serve(line: socket.socket) -> None:
    """Run what one stand-in asks for. If it is gone, its process is killed, as if it had been that process."""
    with line:
        size, fds, *_ = socket.recv_fds(line, 4, 3)
        with line.makefile("rb") as read:
            words, folder, env = json.loads(read.read(int.from_bytes(size, "big")))
        ends = [Connection(fd) for fd in fds]
        child = _FORKS.Process(target=_live, args=(COMMAND, words, Path(folder), env, ends), daemon=True)
        child.start()
        for end in ends:
            end.close()
        while child.exitcode is None:
            ready = wait([child.sentinel, line])
            if line in ready:
                child.kill()
            child.join(0.05 if line in ready else None)
        with contextlib.suppress(OSError):
            line.sendall(b"%d" % child.exitcode)


@contextmanager
def stand_ins(path: Path) -> Iterator[None]:
    """A program at this path that starts `eigenveil` without seconds of imports, for shells that run pages of the docs."""
    # A path of a socket has a hundred characters at most.
    with tempfile.TemporaryDirectory(prefix="ev") as folder, socket.socket(socket.AF_UNIX) as door:
        address = f"{folder}/door"
        door.bind(address)
        door.listen()
        path.write_text(_STAND_IN.format(python=sys.executable, address=address))
        path.chmod(0o755)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=_serve, args=(door.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield
        finally:
            # Closing alone does not wake the thread that accepts.
            with contextlib.suppress(OSError):
                door.shutdown(socket.SHUT_RDWR)
