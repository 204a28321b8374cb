"""Sites and hubs as processes of their own, to be killed at any point: forked from a server that has loaded everything.

Run as a script, this is the server: a line of JSON in, a process out. What a child has to tell goes to its log, line by line. The
points at which a child can be killed are before and after everything that lasts: a commit, a line in the transcript, a send.
"""

import asyncio
import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Final, cast, final

import numpy as np
import scipy.special  # noqa: F401  What the verdict of every fit loads.

from eigenveil.core.noise import RoundedGaussian
from eigenveil.data.rows import DenseRows
from eigenveil.ledger.durable import DurableLedger
from eigenveil.model import Model
from eigenveil.network import certificates as identity_module
from eigenveil.network.agents.hub_log import HubLog
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.agents.star import HubAgent, SiteAgent
from eigenveil.network.agents.steps import Event
from eigenveil.network.certificates import Certificate, Keys
from eigenveil.network.policy import Policy
from eigenveil.network.study import StudyFile
from eigenveil.protocols.keys import Identity
from eigenveil.runtimes.grpc import Transport
from network.hostile.careless_sites import CARELESS

__all__ = ["POINTS", "Child", "Nursery", "as_text", "nursery"]

# What a child of each kind does that lasts: class, method, and whether it is awaited.
POINTS: Final[dict[str, list[tuple[type[Any], str]]]] = {
    "site": [(DurableLedger, "join"), (DurableLedger, "commit"), (Transport, "send"), (DurableLedger, "finish")],
    "hub": [(HubLog, "add"), (Transport, "send")],
}
_YEAR: Final = 365.25 * 86400


def as_text(keys: Keys) -> list[str]:
    """Keys as a child takes them."""
    return [keys.certificate.pem, keys.identity.private_bytes().hex(), keys.tls_key.decode()]


def _keys_in(text: list[str]) -> Keys:
    return Keys(Certificate.read(text[0]), Identity(bytes.fromhex(text[1])), text[2].encode())


@final
class Life:
    """How the life of this child goes: what it tells, and where it ends. Changes in place."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.points, self.written, self.shift = settings, 0, 0, 0.0
        self.log = os.open(settings["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        self._last = threading.Lock()
        self.reached: Counter[str] = Counter()
        self._clock = {int(at): years * _YEAR for at, years in settings.get("clock", {}).items()}
        self._real = time.time
        if self._clock:
            self._bend_time()

    def say(self, what: str, *words: object) -> None:
        """One line, flushed at once: a child that is killed afterwards has still said it."""
        os.write(self.log, (json.dumps([what, *map(str, words)]) + "\n").encode())

    def reach(self, what: str) -> None:
        """A point at which the child may die: by its number, or by what it is and the how manieth of these."""
        with self._last:
            self.points += 1
            self.reached[what] += 1
            if self.settings.get("kill") in (self.points, [what, self.reached[what]]):
                self.say("killed", self.points, what)
                os.kill(os.getpid(), signal.SIGKILL)

    def wait_at(self, where: str) -> None:
        """A gate that the test must open before the child goes on."""
        if self.settings.get("gate_at") == where:
            self.settings["gate_at"] = None
            Path(self.settings["gate"]).read_bytes()

    def watch(self, kind: type[Any], method: str) -> None:
        """Make points of the moments before and after a method."""
        original = getattr(kind, method)

        def called(this: Any, *given: Any, **named: Any) -> Any:
            self.reach(f"before {method}")
            self.wait_at(f"before {method}")
            if method in ("commit", "add"):
                self._before_writing()
            found = original(this, *given, **named)
            if method in ("commit", "add"):
                self._after_writing()
            self.wait_at(f"after {method}")
            self.reach(f"after {method}")
            return found

        async def awaited(this: Any, *given: Any, **named: Any) -> Any:
            self.reach(f"before {method}")
            found = await original(this, *given, **named)
            self.reach(f"after {method}")
            return found

        setattr(kind, method, awaited if asyncio.iscoroutinefunction(original) else called)

    def _before_writing(self) -> None:
        if self.written == self.settings.get("full_at"):
            # As if the disk had room for a little more and no more. Ledgers and transcripts write their journal first. It has
            # pages of 16 kB, and there must be room for what this process tells the test.
            resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))

    def _after_writing(self) -> None:
        self.written += 1
        self.shift = self._clock.get(self.written, self.shift)

    def _bend_time(self) -> None:
        """From here on the clock of this process is wrong by `shift` seconds, wherever Python asks for it."""
        self.shift = self._clock.get(0, 0.0)
        time.time = lambda: self._real() + self.shift

        class Bent(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> "Bent":
                return cast("Bent", datetime.fromtimestamp(time.time(), tz))

        vars(identity_module)["datetime"] = Bent


def site(life: Life) -> None:
    """A site of a study, from its settings to its model."""
    settings = life.settings
    study = StudyFile.parse(Path(settings["study"]).read_text())
    policy = settings.get("policy")
    with DurableLedger.open(Path(settings["ledger"])) as ledger:
        agent = SiteAgent(
            study,
            keys=_keys_in(settings["keys"]),
            holding=SiteData.of(DenseRows(np.load(settings["table"])), study),
            ledger=ledger,
            dataset=settings.get("dataset", "patients"),
            policy=None if policy is None else Policy.parse(policy),
            on_event=lambda event: _told(life, event),
        )
        asyncio.run(agent.run(lambda model: _deliver(life, model)))


def hub(life: Life) -> None:
    """The hub of a study, from its settings to its model."""
    settings = life.settings
    study = StudyFile.parse(Path(settings["study"]).read_text())
    with HubAgent.transcript_for(Path(settings["transcript"]), study) as transcript:
        agent = HubAgent(study, keys=_keys_in(settings["keys"]), transcript=transcript, on_event=lambda event: _told(life, event))
        asyncio.run(agent.run(lambda model: _deliver(life, model), listen=settings["listen"]))


def _told(life: Life, event: Event) -> None:
    life.say("told", event.what, event.who, event.text)


def _deliver(life: Life, model: Model) -> None:
    life.reach("before the model")
    # Whole or not at all: others look for it.
    whole = Path(life.settings["model"])
    np.save(whole.with_suffix(".part.npy"), model.components)
    whole.with_suffix(".part.npy").replace(whole)
    life.reach("after the model")


TASKS: Final[dict[str, Callable[[Life], None]]] = {"site": site, "hub": hub}


def born(settings: dict[str, Any]) -> None:
    """What a child does from beginning to end."""
    life = Life(settings)
    for kind, method in POINTS[settings["task"]]:
        life.watch(kind, method)
    if "careless" in settings:
        CARELESS[settings["careless"]]()
    life.wait_at("start")
    try:
        TASKS[settings["task"]](life)
    except BaseException as error:
        life.say("failed", type(error).__name__, error)
        os._exit(1)
    life.say("ended", life.points)
    os._exit(0)


def serve() -> None:
    """Fork a child for each line that comes, say its id, and say when one has ended and how."""
    # The ids of children, and for each a file that can be waited for: it is ready once the child has ended.
    alive: dict[int, int] = {}
    rest = b""
    # The table that all draws share takes a tenth of a second.
    RoundedGaussian(1.0)
    # Children share what is loaded: a collection in each of them would copy the memory of all of it.
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    while True:
        ready, _, _ = select.select([0, *alive.values()], [], [])
        if 0 in ready:
            more = os.read(0, 1 << 20)
            if not more:
                break
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                settings = json.loads(line)
                if "end" in settings:
                    if settings["end"] in alive:
                        os.kill(settings["end"], signal.SIGKILL)
                    continue
                child = os.fork()
                if child == 0:
                    born(settings)
                alive[child] = os.pidfd_open(child)
                os.write(1, b"born %d\n" % child)
        while alive:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                break
            os.close(alive.pop(child))
            os.write(1, b"ended %d %d\n" % (child, os.waitstatus_to_exitcode(status)))
    for child in alive:
        os.kill(child, signal.SIGKILL)


@final
class Child:
    """A child as its parent sees it: its id, its `log`, and `ended`, which has its exit code when it is there."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.log = settings, Path(settings["log"])
        self.pid: Future[int] = Future()
        self.ended: Future[int] = Future()

    def said(self, what: str) -> list[list[str]]:
        """The lines of its log that begin with this word; those of its forerunners on the same log are among them."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [found[1:] for line in lines if (found := json.loads(line))[0] == what]


@final
class Nursery:
    """The other end of the server. Changes in place."""

    def __init__(self, server: "subprocess.Popen[bytes]") -> None:
        self._server = server
        self._waiting: list[Child] = []
        self._alive: dict[int, Child] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, task: str, **settings: Any) -> Child:
        """A child that runs `task`."""
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        child = Child({"task": task, **plain})
        with self._lock:
            self._waiting.append(child)
            self._on_event(child.settings)
        return child

    def kill(self, child: Child) -> None:
        """End a child, unless it has ended. The server does it, which knows whose id it still is."""
        pid = child.pid.result(10)
        with self._lock:
            self._on_event({"end": pid})

    def _on_event(self, settings: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(settings).encode() + b"\n")
        self._server.stdin.flush()

    def _listen(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            what, pid, *more = line.split()
            if what == b"born":
                with self._lock:
                    child = self._waiting.pop(0)
                    self._alive[int(pid)] = child
                child.pid.set_result(int(pid))
            else:
                self._alive.pop(int(pid)).ended.set_result(int(more[0]))


@contextmanager
def nursery() -> Iterator[Nursery]:
    """A server, for as long as it is needed; its children end with it."""
    # The tests folder, for those who are not started by pytest.
    tests = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
        try:
            # Loading everything takes seconds, in which nobody waits for anything yet.
            assert server.stdout is not None
            if server.stdout.readline() != b"ready\n":
                raise RuntimeError("the server of children did not start")
            yield Nursery(server)
        finally:
            assert server.stdin is not None
            server.stdin.close()


if __name__ == "__main__":
    serve()
