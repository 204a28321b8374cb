"""A study in folders, one for each party, as in real organisations; and the processes that run in them."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from commands.forked import COMMAND, Forked
from eigenveil.network.authority import Authority, new_request, write_new
from eigenveil.network.certificates import Certificate, Role
from eigenveil.network.study import StudyFile
from eigenveil.protocols.star.rounds import tree

__all__ = ["COLUMNS", "COUNT", "Folders", "Running", "started"]

COLUMNS = ("age", "weight", "pulse", "mood", "sleep")
# An unusual number, so that finding it in an output means that it was put there.
COUNT = 1013
PLAIN = {**os.environ, "COLUMNS": "80"}


@cache
def authority() -> Authority:
    return Authority.fresh()


@cache
def signed(name: str, role: Role) -> tuple[bytes, Certificate]:
    """The private file of a party and its certificate; made once."""
    request, private = new_request(name, role)
    return private, authority().sign(request)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def table_of(seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((COUNT, len(COLUMNS))) * [1.5, 0.9, 0.4, 0.2, 0.1] + 0.3


class Folders:
    """The files of a study below `root`. `sections` go over the study file, None takes a key away."""

    def __init__(
        self, root: Path, *, sites: int = 3, peers: int = 0, fanout: int | None = None, **sections: dict[str, Any]
    ) -> None:
        self.root, self._fanout, self._role = root, fanout, "peer" if peers else "site"
        self.names = [f"{self._role} {at}" for at in range(peers or sites)]
        self.tables = {name: table_of(at) for at, name in enumerate(self.names)}
        found = self._among_peers() if peers else self._around_a_hub()
        for name, given in sections.items():
            table = {**found.get(name, {}), **given}
            found[name] = {key: value for key, value in table.items() if value is not None}
        self.study = StudyFile.of(found)
        for place in self.study.places:
            self._write(place.name, place.certificate.role)

    def _common(self, topology: str) -> dict[str, Any]:
        return {
            "eigenveil_study": 1,
            "study": {"name": "heart", "id": "0123456789abcdef" * 2, "topology": topology},
            "task": {"components": 2, "columns": list(COLUMNS), "row_bound": 4.0},
            "privacy": {"epsilon": 5.0, "delta": 1e-6},
            "network": {"deadline": 20.0, "retries": 1, "join_timeout": 40.0},
            "authority": {"certificate": authority().pem},
        }

    def _among_peers(self) -> dict[str, Any]:
        """On a ring, with noise that cancels between pairs."""
        found = self._common("gossip")
        found["task"] |= {"method": "power", "rounds": 3}
        found["privacy"]["noise"] = "pairwise"
        found["graph"] = {"kind": "ring", "consensus": "chebyshev"}
        found["peer"] = [
            {"address": f"127.0.0.1:{free_port()}", "certificate": signed(name, "peer")[1].pem} for name in self.names
        ]
        return found

    def _around_a_hub(self) -> dict[str, Any]:
        found = self._common("star") | {
            "hub": {"address": f"127.0.0.1:{free_port()}", "certificate": signed("hub", "hub")[1].pem},
            "site": [{"certificate": signed(name, "site")[1].pem} for name in self.names],
        }
        if self._fanout is not None:
            found["study"]["topology"], found["tree"] = "tree", {"fanout": self._fanout}
            nodes = tree(self.names, fanout=self._fanout).nodes
            found["node"] = [
                {"address": f"127.0.0.1:{free_port()}", "certificate": signed(name, "node")[1].pem} for name in nodes
            ]
        found["privacy"]["trust"] = "masked"
        return found

    def _write(self, name: str, role: Role) -> None:
        folder = self.of(name)
        folder.mkdir()
        key = folder / f"{folder.name}.key"
        private, certificate = signed(name, role)
        write_new(private={key: private}, public={key.with_suffix(".crt"): certificate.pem})
        self.study_file(name).write_text(self.study.text(), encoding="utf-8")
        self.study_file(name).chmod(0o644)
        if role == self._role:
            columns = dict(zip(COLUMNS, self.tables[name].T, strict=True))
            # Not in the order of the study, and with a column that is none of its business.
            shuffled = {column: columns[column] for column in reversed(COLUMNS)} | {"ward": np.arange(COUNT)}
            pq.write_table(pa.table(shuffled), folder / "people.parquet")

    def of(self, name: str) -> Path:
        """The folder of a party."""
        return self.root / name.replace(" ", "-")

    def study_file(self, name: str) -> Path:
        """The study file of a party."""
        return self.of(name) / "heart.toml"

    def policy(self, name: str, *, pins: bool = True, unit: bool = True, more: str = "") -> Path:
        """A policy that allows this study: all parties are pinned, unless without `pins`, and it says what the study protects,
        unless without `unit`; `more` are further sections."""
        others = {place.name: place.pin for place in self.study.places if place.name not in ("hub", name)}
        listed = "\n".join(f'"{other}" = "{pin}"' for other, pin in others.items())
        hub = f'hub = ["{self.study.hub.pin}"]' if pins and self.study.hub is not None else ""
        path = self.of(name) / "policy.toml"
        person = self.study.params.person
        whose = 'unit = "row"\n' if person is None else f'unit = "person"\nperson = "{person}"\n'
        limits = "[limits]\n" + (whose if unit else "")
        more = more.replace("[limits]\n", limits) if "[limits]\n" in more else more + limits
        budget = "" if "[budget]" in more else "[budget]\nstudy_epsilon = 5.0\nlifetime_epsilon = 9.0\n"
        path.write_text(f"[pins]\n{hub}\n[pins.peers]\n{listed if pins else ''}\n{budget}{more}", encoding="utf-8")
        path.chmod(0o600)
        return path

    def site(self, name: str, *more: object) -> list[str]:
        """The arguments of the command of a site, or a peer, to be run in its folder."""
        folder = self.of(name)
        return [
            *(self._role, str(folder / "heart.toml"), "--data", str(folder / "people.parquet")),
            *("--ledger", str(folder / "ledger.db"), "-o", str(folder / "model.safetensors")),
            *("--scores", str(folder / "scores.csv"), *map(str, more)),
        ]

    def hub(self, *more: object) -> list[str]:
        """The arguments of the hub's command."""
        folder = self.of("hub")
        return ["hub", str(folder / "heart.toml"), "-o", str(folder / "model.safetensors"), *map(str, more)]


class Running:
    """A process of the command, and its lines on stdout as they come. `alone` it loads everything itself, as users' do."""

    def __init__(self, arguments: list[str], *, cwd: Path, program: str = COMMAND, alone: bool = False) -> None:
        self.process: Forked | subprocess.Popen[str]
        if alone:
            command = [sys.executable, "-c", program, *arguments]
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self.process = subprocess.Popen(command, cwd=cwd, env=PLAIN, text=True, **streams)
        else:
            self.process = Forked(arguments, cwd=cwd, env=PLAIN, program=program)
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def until(self, fits: Callable[[str], bool], seconds: float = 120.0) -> str:
        """The next line that fits."""
        while True:
            line = self._queue.get(timeout=seconds)
            assert line is not None, f"it ended: {self.lines} {self._said()}"
            self.lines.append(line)
            if fits(line):
                return line

    def ended(self, seconds: float = 120.0) -> tuple[int, str, str]:
        """Its exit code, all lines, and what is on stderr."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        while not self._queue.empty():
            line = self._queue.get()
            if line is not None:
                self.lines.append(line)
        return code, "\n".join(self.lines), self._said()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def _said(self) -> str:
        assert self.process.stderr is not None
        return str(self.process.stderr.read())


@contextmanager
def started(*commands: tuple[list[str], Path], program: str = COMMAND, first_alone: bool = False) -> Iterator[list[Running]]:
    """Processes in their folders, all ended when this is; of the command itself, or of another program."""
    running: list[Running] = []
    try:
        for arguments, cwd in commands:
            running.append(Running(arguments, cwd=cwd, program=program, alone=first_alone and not running))
        yield running
    finally:
        for one in running:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait(60)
