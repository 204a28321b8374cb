"""Single bits of a ledger, its journal, export and head are turned over: all figures are right, or it is refused in words."""

import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from commands.command_tables import eigenveil
from eigenveil.core.ledger import Charge
from eigenveil.errors import BudgetExceeded
from eigenveil.ledger.durable import DurableLedger, LedgerError
from ledger.ledger_children import LIFE, account

HEART, LUNGS = account("heart", mu=0.2), account("lungs", mu=0.04)
# What fits in the budget if any charge of `HEART` is forgotten.
MORE = account("more", mu=LIFE.mu - 1e-3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "ledger.db"
    with DurableLedger.open(found) as ledger:
        ledger.declare("patients", b"rows", b"age", source="patients.csv")
        for one in (HEART, LUNGS):
            ledger.join(one, life=LIFE)
            for number in range(2):
                half = [Charge("sum", one.mu / 2)]
                ledger.commit(one.study, number, came=b"ask", replies=[b"sum", b"more"], charges=half)
        ledger.finish(HEART.study)
        ledger.log(HEART.study, "reason")
    return found


def flips(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Copies with one bit turned over, most often where something is written."""
    rng, written = random.Random(seed), [place for place, byte in enumerate(data) if byte]
    for _ in range(count):
        changed = bytearray(data)
        changed[rng.choice(written) if rng.random() < 0.9 else rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        yield bytes(changed)


def reads(ledger: DurableLedger) -> Iterator[Callable[[], object]]:
    yield lambda: ledger.head
    yield lambda: list(ledger.entries())
    yield lambda: ledger.known_as("people", b"rows")
    yield lambda: ledger.read_as("people", "patients.csv")
    yield ledger.logged
    yield lambda: ledger.has(3, "0" * 64)
    yield ledger.verify


def writes(ledger: DurableLedger) -> Iterator[Callable[[], object]]:
    yield lambda: ledger.declare("people", b"other rows", source="people.csv")
    yield lambda: list(ledger.join(HEART, life=LIFE).steps)
    yield lambda: list(ledger.join(LUNGS, life=LIFE).steps)
    yield lambda: b"".join(ledger.said(LUNGS.study, 0))
    yield lambda: ledger.commit(LUNGS.study, 2, came=b"", replies=[b"x"], charges=[])
    yield lambda: ledger.prune(LUNGS.study, 1)
    yield lambda: ledger.note(LUNGS.study, "words")
    yield lambda: ledger.finish(LUNGS.study)


def require_refused_or_right(path: Path, truth: tuple[object, object], opening: Callable[[Path], DurableLedger]) -> bool:
    """Whether it opened. Nothing but a `LedgerError` may be raised, and no figure may be another one."""
    try:
        ledger = opening(path)
    except LedgerError:
        return False
    with ledger:
        with suppress(LedgerError):
            assert (ledger.datasets(), ledger.studies()) == truth
        with pytest.raises((BudgetExceeded, LedgerError)):
            ledger.require_affordable(MORE, life=LIFE)
        for use in reads(ledger):
            with suppress(LedgerError):
                use()
        if opening == DurableLedger.open:
            for asked in (MORE, HEART):
                with pytest.raises((BudgetExceeded, LedgerError)):
                    ledger.join(asked, life=LIFE)
                    ledger.commit(asked.study, 2, came=b"", replies=[b"x"], charges=[Charge("sum", 0.04)])
            for use in writes(ledger):
                with suppress(LedgerError):
                    use()
    return True


def truth_of(path: Path) -> tuple[object, object]:
    with DurableLedger.reading(path) as ledger:
        return ledger.datasets(), ledger.studies()


@pytest.mark.parametrize("opening", [DurableLedger.open, DurableLedger.reading])
def test_any_bit_of_a_ledger(path: Path, opening: Callable[[Path], DurableLedger]) -> None:
    truth, whole = truth_of(path), path.read_bytes()
    opened = 0
    for changed in flips(whole, 400, seed=5):
        for file in path.parent.iterdir():
            file.unlink()
        path.write_bytes(changed)
        path.chmod(0o600)
        opened += require_refused_or_right(path, truth, opening)
    # Some bits are in pages and columns that nothing reads.
    assert 20 < opened < 200


@pytest.mark.parametrize("keep", [0.0, 0.3, 1.0])
def test_any_bit_of_the_journal_of_a_write_that_was_interrupted(path: Path, keep: float) -> None:
    """With bits turned over, cut off, or lost: a half-written file is undone, or refused."""
    truth, journal = truth_of(path), path.with_name("ledger.db-journal")
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE lines SET body = replace(body, '0.1', '0.0') WHERE number > 2")
        connection.execute("INSERT INTO prints (dataset, print) VALUES ('x', zeroblob(1000000))")
        connection.execute("DELETE FROM lines WHERE number > 3")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    half, whole = path.read_bytes(), journal.read_bytes()
    assert len(whole) > 1000
    for changed in [whole, *flips(whole[: int(keep * len(whole))], 60, seed=5)] if keep else [b""]:
        path.write_bytes(half)
        journal.write_bytes(changed)
        journal.chmod(0o600)
        opened = require_refused_or_right(path, truth, DurableLedger.open)
        assert opened or changed != whole


def test_any_bit_of_an_export(path: Path, tmp_path: Path) -> None:
    export, changed = tmp_path / "ledger.jsonl", tmp_path / "changed.jsonl"
    assert eigenveil("ledger", "export", path, "-o", export).exit_code == 0
    for data in flips(export.read_bytes(), 150, seed=5):
        changed.write_bytes(data)
        result = eigenveil("ledger", "verify", changed)
        words = result.stderr.replace("\n", " ")
        assert result.exit_code == 2 and words.startswith("error: ")
        assert "unexpected" not in words and "codec" not in words and "Error" not in words


def test_any_bit_of_a_noted_head(path: Path, tmp_path: Path) -> None:
    head = tmp_path / "north.head"
    assert eigenveil("ledger", "head", path, "--to", head).exit_code == 0
    whole = head.read_bytes()
    noted = json.loads(whole)
    for data in flips(whole, 150, seed=5):
        head.write_bytes(data)
        result = eigenveil("ledger", "show", path, "--require-head", head)
        if result.exit_code == 0:
            # The time is for people.
            assert {**json.loads(data), "time": noted["time"]} == noted
        else:
            assert result.exit_code == 2 and "north.head" in result.stderr.replace("\n", "")
            assert "unexpected" not in result.stderr and "codec" not in result.stderr
