"""Whatever is changed behind the back of a ledger is found by verify, and what decides a budget is refused at once."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from eigenveil.core.ledger import Charge
from eigenveil.ledger.durable import DurableLedger, Entry, LedgerError
from eigenveil.ledger.replay import FIRST, canonical
from ledger.ledger_children import LIFE, account, digits, tables

HEART, LUNGS = account("heart", mu=0.2), account("lungs", mu=0.2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of 7 entries: the first, two joins, three commits and a note; commit 6 is the last of `heart`."""
    found = tmp_path / "ledger.db"
    with DurableLedger.open(found) as ledger:
        ledger.join(HEART, life=LIFE)
        ledger.join(LUNGS, life=LIFE)
        ledger.commit(LUNGS.study, 0, came=b"", replies=[b"air"], charges=[Charge("sum", 0.1)])
        ledger.commit(HEART.study, 0, came=b"ask", replies=[b"beat", b"pulse"], charges=[Charge("sum", 0.1)])
        ledger.commit(HEART.study, 1, came=b"ask", replies=[b"more"], charges=[Charge("sum", 0.1)])
        ledger.note(HEART.study, "consent")
    return found


def change_body(number: int, *keys: str | int, to: object) -> Callable[[sqlite3.Connection], None]:
    """Put another value into the body of a line, without its seal."""

    def change(connection: sqlite3.Connection) -> None:
        (text,) = connection.execute("SELECT body FROM lines WHERE number = ?", (number,)).fetchone()
        body = place = json.loads(text)
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to
        connection.execute("UPDATE lines SET body = ? WHERE number = ?", (canonical(body), number))

    return change


def run(*statements: str) -> Callable[[sqlite3.Connection], None]:
    def change(connection: sqlite3.Connection) -> None:
        for statement in statements:
            connection.execute(statement)

    return change


def commits(ledger: DurableLedger) -> None:
    ledger.commit(HEART.study, 2, came=b"", replies=[b"x"], charges=[Charge("sum", 0.1)])


def joins(ledger: DurableLedger) -> None:
    ledger.join(account("third", mu=0.01), life=LIFE)


def reopens(ledger: DurableLedger) -> None:
    ledger.join(HEART, life=LIFE)


@pytest.mark.parametrize(
    ("change", "found", "refused"),
    [
        pytest.param(change_body(6, "standing", "square", to=0.0), "entry 6", (commits, joins, reopens), id="balance"),
        pytest.param(change_body(6, "standing", "mu", to=9.0), "entry 6", (commits, joins, reopens), id="reserve"),
        pytest.param(change_body(6, "charges", 0, 1, to=0.0), "entry 6", (commits, joins, reopens), id="charge"),
        pytest.param(change_body(6, "together", "counts", to=0.0), "entry 6", (commits, joins), id="sum"),
        pytest.param(change_body(4, "standing", "square", to=0.0), "entry 4", (joins,), id="other study"),
        pytest.param(change_body(5, "charges", 0, 1, to=0.0), "entry 5", (reopens,), id="earlier charge"),
        pytest.param(change_body(2, "account", "title", to="liver"), "entry 2", (reopens,), id="account"),
        pytest.param(run("UPDATE lines SET time = '1970' WHERE number = 3"), "entry 3", (), id="time"),
        pytest.param(run("UPDATE lines SET body = body || ' ' WHERE number = 3"), "entry 3", (), id="space"),
        pytest.param(run("UPDATE lines SET hash = 'abc' WHERE number = 5"), "entry 5", (commits, joins, reopens), id="hash"),
        pytest.param(run("DELETE FROM lines WHERE number = 5"), "entry 5", (commits, reopens), id="entry gone"),
        pytest.param(run("DELETE FROM lines WHERE number = 1"), "entry 1", (), id="first gone"),
        pytest.param(run("DELETE FROM lines WHERE number >= 6"), "at its end were removed", (commits,), id="end removed"),
        pytest.param(run("DELETE FROM lines"), "has no entries", (commits, joins, reopens), id="all gone"),
        pytest.param(run("UPDATE lines SET study = 'x' WHERE number = 6"), "entry 6", (commits, joins, reopens), id="moved"),
        pytest.param(
            run(f"UPDATE studies SET dataset = 'other' WHERE study = '{LUNGS.study}'"),
            "list of studies",
            (joins,),
            id="study under another dataset",
        ),
        pytest.param(
            run("DELETE FROM stored", f"DELETE FROM studies WHERE study = '{LUNGS.study}'"),
            "list of studies",
            (joins,),
            id="study gone",
        ),
        pytest.param(run("UPDATE stored SET data = x'00' WHERE place = 2"), "entry 5", (reopens,), id="bytes"),
        pytest.param(run("DELETE FROM stored WHERE place = 2"), "entry 5", (reopens,), id="bytes gone"),
        pytest.param(run("DELETE FROM stored WHERE number = 1"), "entry 6", (), id="step gone"),
        pytest.param(run("UPDATE stored SET number = 7 WHERE number = 1"), "step 7", (), id="step moved"),
    ],
)
def test_what_was_changed_is_found(
    path: Path, change: Callable[[sqlite3.Connection], None], found: str, refused: tuple[Callable[[DurableLedger], None], ...]
) -> None:
    with DurableLedger.reading(path) as ledger:
        head = ledger.verify().hash
        ledger.verify(head)
    with tables(path) as connection:
        change(connection)
        rows = connection.execute("SELECT count(*) FROM lines").fetchone()
    with DurableLedger.reading(path, damaged=True) as ledger:
        with pytest.raises(LedgerError, match=found):
            ledger.verify()
        with pytest.raises(LedgerError):
            ledger.verify(head)
    # Most of it is refused when the ledger is opened, and the rest when it is used.
    for use in refused:
        with pytest.raises(LedgerError), DurableLedger.open(path, create=False) as ledger:
            use(ledger)
    with tables(path) as connection:
        assert connection.execute("SELECT count(*) FROM lines").fetchone() == rows


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change_body(7, "words", to="no consent"), id="last entry"),
        pytest.param(run("UPDATE lines SET time = '1970' WHERE number = 7"), id="time of the last entry"),
        pytest.param(run("DELETE FROM lines WHERE number = 7"), id="last entry gone"),
        pytest.param(run("DELETE FROM lines WHERE number >= 6", "DELETE FROM stored WHERE number = 1"), id="charge gone"),
        pytest.param(
            run("DELETE FROM lines WHERE number >= 6", "DELETE FROM keys WHERE name = 'last'"), id="charge and note gone"
        ),
        pytest.param(run("UPDATE keys SET key = x'20' WHERE name = 'last'"), id="note overwritten"),
        pytest.param(run("UPDATE keys SET key = 'text'"), id="keys of another type"),
        pytest.param(run("DELETE FROM lines WHERE number = 1"), id="first gone"),
        pytest.param(change_body(4, "standing", "square", to=0.0), id="what a study has spent"),
        pytest.param(run(f"UPDATE studies SET secret = x'{'00' * 32}' WHERE study = '{HEART.study}'"), id="secret"),
        pytest.param(run(f"UPDATE studies SET secret = NULL WHERE study = '{HEART.study}'"), id="secret gone"),
        pytest.param(run("UPDATE studies SET secret = 'text'"), id="secret of another type"),
        pytest.param(
            run(
                f"UPDATE studies SET secret = (SELECT secret FROM studies WHERE study = '{LUNGS.study}') "
                f"WHERE study = '{HEART.study}'"
            ),
            id="secret of another study",
        ),
        pytest.param(run(f"UPDATE studies SET joined = 3 WHERE study = '{HEART.study}'"), id="join of another study"),
        pytest.param(run(f"UPDATE keys SET key = x'{'00' * 32}' WHERE name = 'prints'"), id="key of digests"),
    ],
)
def test_what_decides_now_is_checked_whenever_a_ledger_is_opened(
    path: Path, change: Callable[[sqlite3.Connection], None]
) -> None:
    with DurableLedger.open(path) as ledger:
        ledger.verify()
    with tables(path) as connection:
        change(connection)
    before = path.read_bytes()
    for opening in (DurableLedger.open, DurableLedger.reading):
        with pytest.raises(LedgerError):
            opening(path)
    with DurableLedger.reading(path, damaged=True) as ledger, pytest.raises(LedgerError):
        ledger.verify()
    assert path.read_bytes() == before


def test_a_secret_that_is_exchanged_while_the_ledger_is_open_is_not_used(path: Path) -> None:
    with DurableLedger.open(path) as ledger:
        with tables(path) as connection:
            connection.execute("UPDATE studies SET secret = ?", (bytes(32),))
        with pytest.raises(LedgerError, match="is not the one it was joined with"):
            ledger.join(HEART, life=LIFE)


def reseal(connection: sqlite3.Connection) -> None:
    """What an attacker does who may write to the file and knows how entries are sealed."""
    before = FIRST
    for row in connection.execute("SELECT * FROM lines ORDER BY number").fetchall():
        number, when, kind, study, dataset, body, _ = row
        line = Entry(number=number, time=when, kind=kind, study=study, dataset=dataset, body=json.loads(body), hash="")
        before = line.sealed(before)
        connection.execute("UPDATE lines SET hash = ? WHERE number = ?", (before, line.number))
    noted = f"{number} {before}".encode()
    connection.execute("UPDATE keys SET key = ? WHERE name = 'last'", (noted,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_body(6, "standing", "square", to=0.0), "entry 6 .* states a balance"),
        (change_body(6, "charges", 0, 1, to=0.0), "entry 6 .* states a balance"),
        (change_body(6, "together", "counts", to=0.0), "entry 6 .* not the sum"),
        (change_body(6, "number", to=5), "entry 6 .* does not follow"),
        (change_body(2, "account", "mu", to=0.9), "entry 2 .* states a balance"),
        (change_body(6, "charges", to="free"), "entry 6 .* does not follow"),
        (change_body(6, "charges", 0, 1, to=0.3), "entry 6 .* exceeds a budget"),
    ],
)
def test_balances_that_do_not_add_up_are_found_under_new_seals(
    path: Path, change: Callable[[sqlite3.Connection], None], words: str
) -> None:
    with tables(path) as connection:
        change(connection)
        reseal(connection)
    with DurableLedger.reading(path, damaged=True) as ledger, pytest.raises(LedgerError, match=words):
        ledger.verify()


def test_only_a_noted_head_finds_a_ledger_that_was_rewritten_as_a_whole(path: Path) -> None:
    with DurableLedger.open(path) as ledger:
        head = ledger.head
    with tables(path) as connection:
        change_body(7, "words", to="no consent")(connection)
        reseal(connection)
    with DurableLedger.open(path) as ledger:
        ledger.verify()
        with pytest.raises(LedgerError, match="entries has the noted head"):
            ledger.verify(head)


def test_only_a_noted_head_finds_an_old_copy_that_was_put_back(path: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    shutil.copy2(path, old)
    with DurableLedger.open(path) as ledger:
        early = ledger.head
        commits(ledger)
        head = ledger.head
        assert ledger.verify(early).hash == head
    shutil.copy2(old, path)
    with DurableLedger.open(path) as ledger:
        ledger.verify()
        ledger.verify(early)
        with pytest.raises(LedgerError, match="Charges may have been forgotten"):
            ledger.verify(head)


def test_a_broken_page_is_found(path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = data.index(b"beat")
    data[place : place + 4] = b"beaT"
    path.write_bytes(data)
    with DurableLedger.open(path) as ledger, pytest.raises(LedgerError, match="entry 5"):
        ledger.verify()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(LedgerError), DurableLedger.open(path) as ledger:
        ledger.verify()


def test_heads_of_two_ledgers_differ_from_the_first_entry_on(tmp_path: Path) -> None:
    heads = set()
    for name in ("a.db", "b.db"):
        with DurableLedger.open(tmp_path / name) as ledger:
            heads.add(ledger.head)
    assert len(heads) == 2
    assert digits("heart") not in heads
