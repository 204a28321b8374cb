"""Accounts for tests of the ledger, and processes that use one: forked from a server that has loaded everything, so that killing
sixty of them takes seconds. Run as a script, this is the server: a line of JSON in, one process or several out."""

import hashlib
import json
import math
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.errors import BudgetExceeded
from eigenveil.ledger.durable import DurableLedger, LedgerError, StudyBudget

LIFE = Budget(2.0, 1e-5)
STEP = 0.001
ROW = PrivacyUnit("row", Neighbours.ADD_REMOVE)
# The disk is full only for a moment: enough for the tables, too little for a megabyte of messages.
ROOM, MEGABYTE = 600_000, 1_000_000


def digits(name: str) -> str:
    """The digest that stands for the study file of `name`."""
    return hashlib.sha256(name.encode()).hexdigest()


def account(name: str = "heart", *, mu: float = 0.2, dataset: str = "patients", extra_delta: float = 0.0) -> StudyBudget:
    """A study called `name` that may spend `mu`; infinite for one without privacy."""
    epsilon, delta = (None, None) if math.isinf(mu) else (1.0, 1e-6)
    return StudyBudget(
        study=digits(name),
        title=name,
        dataset=dataset,
        trust="masked",
        epsilon=epsilon,
        delta=delta,
        mu=mu,
        extra_delta=extra_delta,
        unit=ROW,
    )


@contextmanager
def tables(path: Path) -> Iterator[sqlite3.Connection]:
    """The database of a ledger, as somebody has it open who does not use this program."""
    connection = sqlite3.connect(path)
    with connection:
        yield connection
    connection.close()


def say(*words: object) -> None:
    """One line to the process that started the server, at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def send(number: int, said: tuple[bytes, ...]) -> None:
    """What a site does after a commit: here it is only told."""
    say("sent", number, b"".join(said)[:10].hex(), len(b"".join(said)))


def commits(path: str, seed: int, count: int | None) -> None:
    """A site: opens, repeats what it said last, and goes on committing until `count` steps are there, or for ever."""
    rng = random.Random(seed)
    mine = account(mu=0.2)
    with DurableLedger.open(Path(path)) as ledger, ledger.lock(mine.study):
        opened = ledger.join(mine, life=LIFE)
        if opened.finished:
            return
        number = len(opened.steps)
        if number:
            send(number - 1, opened.steps[-1].replies)
        while count is None or number < count:
            said = (os.urandom(10) * rng.choice((1, 300, 7000)),)
            ledger.commit(mine.study, number, came=b"ask", replies=said, charges=[Charge("sum", STEP)])
            send(number, said)
            number += 1
            if number % 5 == 0:
                ledger.prune(mine.study, number - 2)
        ledger.finish(mine.study)


def waits(path: str, seed: int, count: int) -> None:
    """`commits`, once a line has come."""
    while os.read(0, 1) != b"\n":
        pass
    commits(path, seed, count)


def hammers(path: str, seed: int) -> None:
    """One of many: joins studies of its own and one of all, spends, and ends some of them."""
    rng = random.Random(seed)
    with DurableLedger.open(Path(path)) as ledger:
        for attempt in range(12):
            mine = account(f"study {seed}.{attempt}", mu=rng.uniform(0.02, 0.2), extra_delta=rng.choice((0.0, 1e-7)))
            try:
                ledger.join(mine, life=LIFE)
            except BudgetExceeded:
                say("refused", attempt)
                continue
            say("joined", mine.mu)
            for number in range(3):
                ledger.commit(mine.study, number, came=b"", replies=[b"x"], charges=[Charge("x", mine.mu / 3)])
            if rng.random() < 0.5:
                ledger.finish(mine.study)
        ledger.join(account("of all", mu=0.05), life=LIFE)
        for number in range(10):
            try:
                ledger.commit(digits("of all"), number, came=b"", replies=[b"%d" % seed], charges=[Charge("x", 0.01)])
                say("won", number)
            except LedgerError:
                say("lost", number)


def holds(path: str, _seed: int) -> None:
    """One of several that lock a study again and again; the one that has it must be alone."""
    alone, held = Path(path).with_name("alone"), 0
    with DurableLedger.open(Path(path)) as ledger:
        for _ in range(400):
            try:
                with ledger.lock(digits("heart")):
                    alone.touch(exist_ok=False)
                    alone.unlink()
                    held += 1
            except LedgerError:
                continue
    say("held", held)


def bound_usages(path: str) -> None:
    """A site whose disk is full for a while: what it commits then must fail whole, and work again afterwards."""
    mine = account()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with DurableLedger.open(Path(path)) as ledger:
        ledger.join(mine, life=LIFE)
        ledger.commit(mine.study, 0, came=b"", replies=[b"small"], charges=[Charge("sum", STEP)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))
        overfill(ledger, mine)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ledger.commit(mine.study, 1, came=b"", replies=[b"x" * MEGABYTE], charges=[Charge("sum", STEP)])
        say("steps", len(ledger.join(mine, life=LIFE).steps), ledger.verify().number)


def overfill(ledger: DurableLedger, mine: StudyBudget) -> None:
    """Commit more than there is room for, twice, and tell how it was refused and what is there afterwards."""
    before = ledger.head
    for _ in range(2):
        try:
            ledger.commit(mine.study, 1, came=b"", replies=[b"x" * MEGABYTE] * 5, charges=[Charge("sum", STEP)])
        except LedgerError as error:
            say("refused", error)
    say("unchanged", ledger.head == before, ledger.studies()[0].steps)


TASKS: dict[str, Callable[..., None]] = {
    "commits": commits,
    "waits": waits,
    "hammers": hammers,
    "holds": holds,
    "fills": bound_usages,
}


def serve() -> None:
    """Fork a process for each copy that is asked for, say their ids, and say when all have ended."""
    while True:
        line = b""
        while not line.endswith(b"\n"):
            more = os.read(0, 1)
            if not more:
                return
            line += more
        task, copies, arguments = json.loads(line)
        children = [forked(TASKS[task], [*arguments, *([copy] if copies > 1 else [])]) for copy in range(copies)]
        say("pid", *children)
        for child in children:
            _, status = os.waitpid(child, 0)
            say("status", status)
        say("ended")


def forked(task: Callable[..., None], arguments: list[Any]) -> int:
    """Start `task` in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            task(*arguments)
        except BaseException as error:
            say("failed", type(error).__name__, error)
            os._exit(1)
        os._exit(0)
    return child


class Children:
    """The other end of the server. One request at a time."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self.server = server

    def start(self, task: str, *arguments: object, copies: int = 1) -> list[int]:
        """The ids of the processes that now run `task`."""
        self.tell(json.dumps([task, copies, [str(a) if isinstance(a, Path) else a for a in arguments]]))
        self.early: list[list[str]] = []
        while (words := self.read())[0] != "pid":
            self.early.append(words)
        return [int(word) for word in words[1:]]

    def tell(self, text: str) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(text + "\n")
        self.server.stdin.flush()

    def read(self) -> list[str]:
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        assert line, "the server has gone"
        return line.split()

    def rest(self) -> list[list[str]]:
        """All that was said, until every process has ended."""
        found = self.early
        while (words := self.read()) != ["ended"]:
            found.append(words)
        return found


@contextmanager
def children() -> Iterator[Children]:
    """A server, for as long as the test takes."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield Children(server)
        finally:
            assert server.stdin is not None
            server.stdin.close()


if __name__ == "__main__":
    serve()
