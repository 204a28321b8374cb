"""The file of a ledger: who may read it, what it is set to, which files are refused, and looking that changes nothing."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eigenveil.core.ledger import Charge
from eigenveil.ledger.durable import DurableLedger, LedgerError
from ledger.ledger_children import LIFE, account, digits, tables

SUM = Charge("sum", 0.05)


def test_settings_that_durability_rests_on_took_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remembered(*arguments: Any, **more: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **more)
        # The tables that a ledger should have are made in memory, the first time in a process.
        asked.extend([connection] if arguments != (":memory:",) else [])
        return connection

    monkeypatch.setattr(sqlite3, "connect", remembered)
    with DurableLedger.open(tmp_path / "ledger.db"):
        wanted = {"journal_mode": "delete", "synchronous": 3, "foreign_keys": 1, "secure_delete": 1, "busy_timeout": 30_000}
        for name, value in wanted.items():
            assert asked[-1].execute(f"PRAGMA {name}").fetchone() == (value,)
        assert asked[-1].execute("PRAGMA application_id").fetchone() == (int.from_bytes(b"EvBk", "big"),)


def test_only_the_owner_can_read_any_of_its_files(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    before = os.umask(0)
    try:
        with DurableLedger.open(path) as ledger, ledger.lock(digits("heart")):
            ledger.note(digits("heart"), "hello")
            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    lock = f".ledger.db.{digits('heart')[:32]}.lock"
    assert modes == dict.fromkeys(("ledger.db", lock), 0o600)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.db"]
    path.chmod(0o640)
    for opening in (DurableLedger.open, DurableLedger.reading):
        with pytest.raises(LedgerError, match=f"chmod 600 {path}"):
            opening(path)


@pytest.mark.parametrize("opening", [DurableLedger.open, DurableLedger.reading])
def test_a_ledger_with_a_second_name_is_refused(tmp_path: Path, opening: Callable[[Path], DurableLedger]) -> None:
    """Under the other name its log would be another one: what was charged under one is forgotten under the other."""
    path, second = tmp_path / "ledger.db", tmp_path / "other.db"
    DurableLedger.open(path).close()
    os.link(path, second)
    for name in (path, second):
        with pytest.raises(LedgerError, match=f"find / -xdev -samefile {name}"):
            opening(name)
    second.unlink()
    opening(path).close()


@pytest.mark.parametrize("opening", [DurableLedger.open, DurableLedger.reading])
def test_a_ledger_that_others_could_exchange_is_refused(tmp_path: Path, opening: Callable[[Path], DurableLedger]) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    path, link = folder / "ledger.db", tmp_path / "link.db"
    DurableLedger.open(path).close()
    link.symlink_to(path)
    opening(link).close()
    for writable, name in ((folder, path), (tmp_path, link), (folder, link), (tmp_path, path)):
        mode = writable.stat().st_mode & 0o7777
        writable.chmod(0o777)
        with pytest.raises(LedgerError, match=f"chmod go-w {writable}"):
            opening(name)
        writable.chmod(mode)


def test_no_ledger_is_made_where_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(LedgerError, match="chmod go-w"):
        DurableLedger.open(tmp_path / "ledger.db")
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    DurableLedger.open(path).close()
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    for opening in (DurableLedger.open, DurableLedger.reading):
        with pytest.raises(LedgerError, match=r"belongs to|owns the folder"):
            opening(path)


def other_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    connection.close()


def another_version(path: Path) -> None:
    DurableLedger.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()


def with_a_trigger(path: Path) -> None:
    DurableLedger.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TRIGGER forget AFTER INSERT ON lines BEGIN DELETE FROM lines; END")
    connection.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b""), "is not a ledger"),
        (lambda path: path.write_text("a diary, of some length " * 100), "not a ledger"),
        (other_database, "is not a ledger of Eigenveil"),
        (another_version, "version 1, and this program reads version 2"),
        (with_a_trigger, "its tables are not those of a ledger"),
        (lambda path: path.mkdir(), "does not exist or is not a file"),
        (lambda path: path.with_name("ledger.db-wal").write_bytes(b"charges"), "ledger.db-wal is beside it"),
    ],
)
def test_other_files_are_refused_and_left_alone(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "ledger.db"
    make(path)
    if path.is_file():
        path.chmod(0o600)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    with pytest.raises(LedgerError, match=words):
        DurableLedger.open(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_a_ledger_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="does not exist"):
        DurableLedger.open(tmp_path / "none.db", create=False)
    with pytest.raises(LedgerError, match=r"the folder .* does not exist"):
        DurableLedger.open(tmp_path / "nowhere" / "ledger.db")
    assert list(tmp_path.iterdir()) == []


def test_looking_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with DurableLedger.open(path) as ledger:
        ledger.join(account(), life=LIFE)
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()}
    with DurableLedger.reading(path) as seen:
        seen.verify()
        assert seen.studies()[0].account == account()
        with pytest.raises(LedgerError, match="opened read-only"):
            seen.note(digits("heart"), "no")
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()} == before


def test_looking_sees_what_a_running_site_has_committed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with DurableLedger.open(path) as ledger:
        ledger.join(account(), life=LIFE)
        with DurableLedger.reading(path) as seen:
            assert seen.head == ledger.head
            ledger.commit(account().study, 0, came=b"", replies=[b"a"], charges=[SUM])
            assert seen.head == ledger.head
            assert seen.verify().number == 3


def test_what_is_committed_needs_no_other_file(tmp_path: Path) -> None:
    """Whatever is beside the ledger may be lost, and a copy of the one file is a backup."""
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    with DurableLedger.open(path) as ledger:
        ledger.join(account(), life=LIFE)
        for number in range(3):
            ledger.commit(account().study, number, came=b"", replies=[b"a" * 40_000], charges=[SUM])
            assert [file.name for file in tmp_path.iterdir() if file != copy] == ["ledger.db"]
            shutil.copy2(path, copy)
            with DurableLedger.reading(copy) as seen:
                assert seen.verify().hash == ledger.head
                assert seen.datasets() == ledger.datasets()


@pytest.mark.parametrize("grown", [True, False])
@pytest.mark.parametrize("opening", [DurableLedger.open, DurableLedger.reading])
def test_a_write_that_was_interrupted_is_undone_by_the_next_to_look(
    tmp_path: Path, opening: Callable[[Path], DurableLedger], grown: bool
) -> None:
    """Also where it ended after its first page, which says how long the file would have been."""
    path = tmp_path / "ledger.db"
    with DurableLedger.open(path) as ledger:
        ledger.join(account(), life=LIFE)
        ledger.commit(account().study, 0, came=b"", replies=[b"a"], charges=[SUM])
        head = ledger.head
    before = path.read_bytes()
    child = os.fork()
    if child == 0:
        with tables(path) as connection:
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE lines SET body = 'half'")
            connection.execute("INSERT INTO prints (dataset, print) VALUES ('x', zeroblob(1000000))")
            connection.execute("UPDATE studies SET secret = NULL")
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    if not grown:
        first = bytearray(before)
        first[28:32] = (len(before) // int.from_bytes(before[16:18], "big") + 60).to_bytes(4, "big")
        path.write_bytes(first)
    assert path.read_bytes() != before and path.with_name("ledger.db-journal").stat().st_size > 0
    with opening(path) as seen:
        assert seen.verify().hash == head
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.db"]


@pytest.mark.parametrize("opening", [DurableLedger.open, DurableLedger.reading])
def test_a_log_that_does_not_belong_to_the_ledger_is_refused(tmp_path: Path, opening: Callable[[Path], DurableLedger]) -> None:
    """SQLite would take the log of another ledger, or an older copy, for newer than the file."""
    path, log, other = tmp_path / "ledger.db", tmp_path / "ledger.db-wal", tmp_path / "other.db"
    DurableLedger.open(path).close()
    with sqlite3.connect(other) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE people (name TEXT)")
        connection.commit()
        old = other.with_name("other.db-wal").read_bytes()
    connection.close()
    assert old
    log.write_bytes(old)
    log.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"ledger\.db-wal does not belong to"):
        opening(path)
    assert (path.read_bytes(), log.read_bytes()) == (before, old)


def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    ledger = DurableLedger.open(tmp_path / "ledger.db")
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="is closed"):
        ledger.datasets()
