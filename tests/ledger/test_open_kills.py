"""A process with a ledger in a file is killed, everywhere: what it may have released is never more than what the file counts."""

import math
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.command_tables import eigenveil
from eigenveil import Ledger, PrivatePCA, StreamingPCA
from eigenveil.core.accounting import mu_for
from eigenveil.core.ledger import Reserve
from eigenveil.core.mechanism import Gaussian
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.ledger.durable import DurableLedger
from eigenveil.ledger.file import LedgerFile

ROW = PrivacyUnit("row", Neighbours.ZERO_OUT)
ROWS = np.random.default_rng(0).standard_normal((2000, 4)) * [4.0, 2.0, 1.0, 1.0]
FIT: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 9.0, "neighbours": "zero-out"}
MU = mu_for(1.0, 1e-6)


def _fits(path: Path) -> None:
    ledger = Ledger.open(path, "patients", epsilon=4.0, delta=1e-5)
    PrivatePCA(2, ledger=ledger, **FIT).fit(ROWS)
    ledger.spend(0.1, label="by hand")


def _streams(path: Path) -> None:
    ledger = Ledger.open(path, "patients", epsilon=4.0, delta=1e-5)
    stream = StreamingPCA(2, ledger=ledger, block_size=100, **FIT)
    stream.partial_fit(ROWS[:500]).sync()
    stream.partial_fit(ROWS[500:1000]).sync()


def _killed_at(event: int, act: Any, path: Path) -> tuple[bool, list[tuple[str, float]]]:
    """Run `act` in a process that kills itself at one event: whether it was killed, and what it had charged and released."""
    receives, sends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receives)
        seen = [0]

        def now(what: str, mu: float = 0.0) -> None:
            os.write(sends, f"{what} {mu!r}\n".encode())
            seen[0] += 1
            if seen[0] > event:
                os.kill(os.getpid(), signal.SIGKILL)

        _watch(now)
        try:
            act(path)
        except BaseException as error:
            os.write(sends, f"failed:{type(error).__name__} 0.0\n".encode())
        os._exit(0)
    os.close(sends)
    with os.fdopen(receives) as lines:
        said = [(what, float(mu)) for what, mu in (line.rsplit(" ", 1) for line in lines)]
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), said


def _watch(now: Any) -> None:
    """Call `now` before and after each reserve, charge, release and write, in this process."""
    real_reserve, real_spend, real_release = Ledger.reserve, Reserve.spend, Gaussian.release
    real_transaction = LedgerFile._transaction

    def reserve(self: Ledger, *given: Any, **more: Any) -> Any:
        now("reserving")
        found = real_reserve(self, *given, **more)
        now("reserved")
        return found

    def spend(self: Reserve, mu: float, **more: Any) -> None:
        now("charging")
        before = self.spent_mu
        real_spend(self, mu, **more)
        # In a slot that costs no more than others did, nothing is charged.
        now("charged", math.sqrt(max(self.spent_mu**2 - before**2, 0.0)))

    def release(self: Gaussian, *given: Any, **more: Any) -> Any:
        before = self.ledger.spent_mu if isinstance(self.ledger, Reserve) else 0.0
        found = real_release(self, *given, **more)
        after = self.ledger.spent_mu if isinstance(self.ledger, Reserve) else 0.0
        now("released", math.sqrt(max(after**2 - before**2, 0.0)))
        return found

    def transaction(self: LedgerFile, connection: Any, begin: str, otherwise: str) -> Any:
        if begin != "BEGIN":
            now("writing")
        return real_transaction(self, connection, begin, otherwise)

    for owner, name, wrapped in (
        (Ledger, "reserve", reserve),
        (Reserve, "spend", spend),
        (Gaussian, "release", release),
        (LedgerFile, "_transaction", transaction),
    ):
        setattr(owner, name, wrapped)


def _closed(path: Path) -> tuple[float, float]:
    """What counted after a kill, and what was spent after every reserve was closed by the command that says so."""
    with DurableLedger.open(path) as found:
        found.verify()
        counted = found.dataset("patients").counted
        left_open = [study.account.study for study in found.studies() if study.state == "open"]
    for study in left_open:
        done = eigenveil("ledger", "close", path, study[:16], "--yes")
        assert done.exit_code == 0, done.output
    with DurableLedger.open(path) as found:
        found.verify()
        state = found.dataset("patients")
        assert state.open == 0
        return counted, state.spent


@pytest.mark.parametrize("act", [_fits, _streams], ids=["fit", "stream"])
def test_killed_at_every_step_nothing_is_counted_too_low(tmp_path: Path, act: Any) -> None:
    kinds = set()
    for event in range(100):
        path = tmp_path / f"{event}.ledger"
        Ledger.open(path, "patients", epsilon=4.0, delta=1e-5).spend(0.05, label="before", unit=ROW)
        killed, said = _killed_at(event, act, path)
        assert not any(what.startswith("failed") for what, _ in said), said
        released = math.sqrt(0.05**2 + sum(mu * mu for what, mu in said if what == "released"))
        charged = math.sqrt(0.05**2 + sum(mu * mu for what, mu in said if what == "charged"))
        counted, spent = _closed(path)
        # A charge that returned is in the file, whether its noise was drawn or not. What was reserved counts until it is closed.
        assert counted * (1 + 1e-12) >= spent >= charged * (1 - 1e-12) >= released * (1 - 1e-9)
        # The reserve of a fit is kept with its first charge, that of a stream at once.
        if killed and any(what == ("charged" if act is _fits else "reserved") for what, _ in said):
            assert counted >= min(MU, math.hypot(0.05, MU)) * (1 - 1e-12)
        # Closing frees the rest for good, and the dead process's successor spends it.
        again = Ledger.open(path)
        assert again.remaining_mu == pytest.approx(math.sqrt(mu_for(4.0, 1e-5) ** 2 - spent**2))
        again.spend(again.remaining_mu, label="all that is left")
        kinds.add(said[-1][0] if killed else "ended")
        if not killed:
            break
    assert kinds >= {"reserving", "reserved", "charging", "charged", "released", "writing", "ended"}


def test_killed_at_any_moment_nothing_is_counted_too_low(tmp_path: Path) -> None:
    """From outside, in the middle of writes too; several at once on one file."""
    rng, path = random.Random(4), tmp_path / "people.ledger"
    Ledger.open(path, "patients", epsilon=100.0, delta=1e-5).spend(0.05, label="before", unit=ROW)
    receives, sends = os.pipe()

    def spends() -> None:
        ledger = Ledger.open(path)
        while True:
            with ledger.reserve(0.02, label="fit") as reserve:
                for _ in range(3):
                    reserve.spend(0.01, label="x")
                    os.write(sends, b"charged\n")

    for _ in range(4):
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                try:
                    spends()
                except BaseException as error:
                    os.write(sends, f"failed {error!r}\n".encode())
                os._exit(1)
            children.append(child)
        time.sleep(rng.uniform(0.2, 0.7))
        for child in children:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status)
    os.close(sends)
    with os.fdopen(receives) as lines:
        said = lines.read().splitlines()
    assert set(said) == {"charged"}
    counted, spent = _closed(path)
    assert counted >= spent >= math.sqrt(0.05**2 + 1e-4 * len(said)) * (1 - 1e-12)
    # At most one charge of each killed process was written and not heard of.
    assert spent <= math.sqrt(0.05**2 + 1e-4 * (len(said) + 8)) * (1 + 1e-12)


def test_close_explains_what_a_killed_process_may_have_cost(tmp_path: Path) -> None:
    path = tmp_path / "people.ledger"
    Ledger.open(path, "patients", epsilon=4.0, delta=1e-5).spend(0.05, label="before", unit=ROW)
    for event in range(100):
        _, said = _killed_at(event, _fits, path)
        if said[-1][0] == "charged":
            break
        _closed(path)
    shown = eigenveil("ledger", "show", path).output
    assert "by 1 open study" in shown
    done = eigenveil("ledger", "close", path, "fit, Python", "--yes")
    assert done.exit_code == 0, done.output
    assert "it may have released what it was charged for, and nothing else" in " ".join(done.output.split())
    assert eigenveil("ledger", "close", path, "fit, Python", "--yes").exit_code == 2
