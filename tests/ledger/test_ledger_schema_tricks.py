"""Somebody who may write to the file plays tricks with SQLite, and restores all texts of the schema: no figure changes.

The entries stay as they are, so the head does not change, and `--require-head` alone finds nothing.
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from commands.command_tables import eigenveil
from eigenveil.core.ledger import Charge
from eigenveil.errors import BudgetExceeded
from eigenveil.ledger.durable import DurableLedger, LedgerError
from eigenveil.ledger.store import with_head
from ledger.ledger_children import LIFE, account, tables

HEART, LUNGS = account("heart", mu=0.2), account("lungs", mu=0.04)
Trick = Callable[[sqlite3.Connection], object]


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A ledger whose budget is nearly used up, and its head."""
    folder = tmp_path_factory.mktemp("spent")
    path, head = folder / "ledger.db", folder / "north.head"
    with DurableLedger.open(path) as ledger:
        for one in (HEART, LUNGS):
            ledger.join(one, life=LIFE)
            ledger.commit(one.study, 0, came=b"ask", replies=[b"sum"], charges=[Charge("sum", one.mu / 2)])
            ledger.commit(one.study, 1, came=b"more", replies=[b"sum"], charges=[Charge("sum", one.mu / 2)])
        ledger.finish(HEART.study)
    assert eigenveil("ledger", "head", path, "--to", head).exit_code == 0
    return path, head


def schema(connection: sqlite3.Connection, name: str, column: str, to: str | int) -> str | int:
    """Write into the schema itself, have SQLite read it again, and say what was there before."""
    (before,) = connection.execute(f"SELECT {column} FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(f"UPDATE sqlite_schema SET {column} = ? WHERE name = ?", (to, name))
    connection.commit()
    connection.execute("PRAGMA writable_schema = RESET")
    result: str | int = before
    return result


def index_of(sql: str, *, listed: bool = False) -> Trick:
    """Add an index, and forget it again unless it is to stay `listed`."""

    def trick(connection: sqlite3.Connection) -> None:
        connection.execute(f"CREATE INDEX more ON {sql}")
        if not listed:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("DELETE FROM sqlite_schema WHERE name = 'more'")

    return trick


def key_made_of(table: str, before: str, after: str) -> Trick:
    """Fill the index of a table's primary key under another definition of the table, and put the text of it back."""

    def trick(connection: sqlite3.Connection) -> None:
        (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        assert before in sql
        schema(connection, table, "sql", sql.replace(before, after))
        connection.execute(f"REINDEX {table}")
        schema(connection, table, "sql", sql)

    return trick


def table_used_as(name: str, sql: str, *statements: str) -> Trick:
    """Write to a table under another definition, and put the text of its definition back."""

    def trick(connection: sqlite3.Connection) -> None:
        before = schema(connection, name, "sql", sql)
        # Some of these definitions do not fit what is stored, and SQLite refuses.
        with suppress(sqlite3.Error):
            for statement in statements:
                connection.execute(statement)
            connection.commit()
        schema(connection, name, "sql", before)

    return trick


def root_of(name: str, other: str, *statements: str) -> Trick:
    """Have `name` begin at the page of an `other`, which the statements make as a table `copy` that is then forgotten."""

    def trick(connection: sqlite3.Connection) -> None:
        for statement in statements:
            connection.execute(statement)
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (other,)).fetchone()
        schema(connection, name, "rootpage", page)
        if statements:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("DELETE FROM sqlite_schema WHERE tbl_name = 'copy'")
            connection.commit()

    return trick


LINES = (
    "CREATE TABLE lines (number {}, time TEXT NOT NULL, kind TEXT NOT NULL, study TEXT, dataset TEXT, "
    "body {}, hash TEXT NOT NULL){}"
)
COPY = LINES.replace("lines", "copy").format("INTEGER PRIMARY KEY", "TEXT NOT NULL", "")
TRICKS: dict[str, Trick] = {
    "partial index": index_of("lines (study, number) WHERE kind IN ('none')", listed=True),
    "partial index that is forgotten": index_of("lines (study, number) WHERE kind IN ('none')"),
    "index of expressions": index_of("lines (upper(study), -number)", listed=True),
    "index that is unique": index_of("lines (number, study, dataset) WHERE number < 4", listed=True),
    "key of studies with another collation": key_made_of(
        "studies", "study TEXT PRIMARY KEY", "study TEXT COLLATE NOCASE PRIMARY KEY"
    ),
    "key of studies in another order": key_made_of("studies", "TEXT PRIMARY KEY", "TEXT PRIMARY KEY DESC"),
    "key of studies of another column": key_made_of(
        "studies",
        "study TEXT PRIMARY KEY, dataset TEXT NOT NULL, joined INTEGER",
        "joined TEXT, dataset TEXT NOT NULL, study INT PRIMARY KEY",
    ),
    "key of keys of another column": key_made_of(
        "keys", "name TEXT PRIMARY KEY, key BLOB NOT NULL", "key BLOB, name TEXT PRIMARY KEY"
    ),
    "key of messages in another order": key_made_of(
        "stored", "PRIMARY KEY (study, number, place)", "PRIMARY KEY (place, study, number)"
    ),
    "keys exchanged": root_of("sqlite_autoindex_keys_1", "sqlite_autoindex_studies_1"),
    "empty key": root_of("sqlite_autoindex_studies_1", "sqlite_autoindex_copy_1", "CREATE TABLE copy (x PRIMARY KEY)"),
    "table that ends early": root_of("lines", "copy", COPY, "INSERT INTO copy SELECT * FROM lines WHERE number < 4"),
    "table without a middle": root_of("lines", "copy", COPY, "INSERT INTO copy SELECT * FROM lines WHERE number != 3"),
    "table twice": root_of(
        "lines", "copy", COPY, "INSERT INTO copy SELECT number + 7, time, kind, study, dataset, body, hash FROM lines"
    ),
    "no studies": root_of("studies", "copy", "CREATE TABLE copy (study TEXT, dataset TEXT, joined, secret, pruned)"),
    "table without row ids": table_used_as(
        "lines", LINES.format("INTEGER PRIMARY KEY", "TEXT NOT NULL", " WITHOUT ROWID"), "DELETE FROM lines"
    ),
    "generated column": table_used_as(
        "lines", LINES.format("INTEGER PRIMARY KEY", "TEXT AS ('{}')", ""), "UPDATE lines SET kind = kind", "REINDEX"
    ),
    "numbers that are no keys": table_used_as(
        "lines", LINES.format("INT", "TEXT NOT NULL", ""), "UPDATE lines SET rowid = rowid + 900 WHERE rowid > 3"
    ),
    "entries about another study": table_used_as(
        "lines", LINES.format("INTEGER PRIMARY KEY", "TEXT NOT NULL", ""), "UPDATE lines SET study = 'x' WHERE kind = 'commit'"
    ),
    "trigger": lambda connection: connection.execute(
        "CREATE TRIGGER forget AFTER INSERT ON lines BEGIN DELETE FROM lines WHERE kind = 'commit'; END"
    ),
    "view in the place of the table": lambda connection: connection.executescript(
        "ALTER TABLE lines RENAME TO real; CREATE VIEW lines AS SELECT * FROM real WHERE number < 3;"
    ),
    "view": lambda connection: connection.execute("CREATE VIEW more AS SELECT * FROM lines WHERE number < 3"),
    "statistics": lambda connection: connection.executescript(
        "ANALYZE; UPDATE sqlite_stat1 SET stat = '0 0 0'; ANALYZE sqlite_schema;"
    ),
}  # fmt: skip


def is_refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except BudgetExceeded:
        return True
    return False


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_changes_a_figure(tmp_path: Path, spent: tuple[Path, Path], trick: str) -> None:
    path, head = tmp_path / "ledger.db", tmp_path / "north.head"
    for source, target in zip(spent, (path, head), strict=True):
        shutil.copy2(source, target)
    with DurableLedger.reading(path) as ledger:
        states, studies, last = ledger.datasets(), ledger.studies(), ledger.verify()
    shown = eigenveil("ledger", "show", path).stdout
    assert eigenveil("ledger", "verify", path, "--require-head", head).exit_code == 0
    before = path.read_bytes()
    with tables(path) as connection:
        TRICKS[trick](connection)
    assert path.read_bytes() != before
    # It fits in the budget if any charge is forgotten.
    more = replace(LUNGS, study="7" * 64, title="one more", mu=LIFE.mu - 1e-3)
    # Each of these is refused, or what it would be without the trick.
    uses: tuple[Callable[[DurableLedger], object], ...] = (
        lambda ledger: ledger.datasets() == states,
        lambda ledger: ledger.studies() == studies,
        lambda ledger: ledger.last == last,
        lambda ledger: is_refused(lambda: ledger.require_affordable(more, life=LIFE)),
        lambda ledger: is_refused(lambda: ledger.join(more, life=LIFE)),
        lambda ledger: ledger.join(HEART, life=LIFE).finished,
        lambda ledger: [step.replies for step in ledger.join(LUNGS, life=LIFE).steps] == [(b"sum",), (b"sum",)],
        lambda ledger: is_refused(lambda: ledger.commit(LUNGS.study, 2, came=b"", replies=[b"x"], charges=[Charge("sum", 0.04)])),
    )
    for opening in (DurableLedger.reading, DurableLedger.open):
        for use in uses:
            with suppress(LedgerError), with_head(path, head, opening, writes=False) as ledger:
                assert use(ledger)
    result = eigenveil("ledger", "show", path, "--require-head", head)
    assert (result.exit_code, result.stdout) == (0, shown) or (result.exit_code == 2 and not result.stdout)


@pytest.mark.parametrize("trick", ["trigger", "view", "view in the place of the table", "partial index"])
def test_a_trick_while_the_ledger_is_open(tmp_path: Path, spent: tuple[Path, Path], trick: str) -> None:
    path = tmp_path / "ledger.db"
    shutil.copy2(spent[0], path)
    with DurableLedger.open(path) as ledger:
        with tables(path) as connection:
            TRICKS[trick](connection)
        for use in (ledger.datasets, lambda: ledger.note("7" * 64, "words"), lambda: ledger.head):
            with pytest.raises(LedgerError, match="its tables are not those of a ledger"):
                use()


def test_entries_that_are_removed_while_the_ledger_is_open_are_missed(tmp_path: Path, spent: tuple[Path, Path]) -> None:
    path, head = tmp_path / "ledger.db", tmp_path / "north.head"
    for statement in (
        "DELETE FROM lines WHERE number = 7",
        "UPDATE lines SET hash = (SELECT hash FROM lines WHERE number = 2) WHERE number = 7",
        "DELETE FROM lines",
    ):
        for source, target in zip(spent, (path, head), strict=True):
            shutil.copy2(source, target)
        with with_head(path, head, DurableLedger.open, writes=True) as ledger:
            with tables(path) as connection:
                connection.execute(statement)
            for _ in range(2):
                with pytest.raises(LedgerError, match=r"damaged|does not follow"):
                    ledger.commit(LUNGS.study, 2, came=b"", replies=[b"x"], charges=[])
