"""What `DurableLedger` reads from and adds to the tables of a ledger, inside a transaction.

Entries are read in order, from the first to the last, by the table itself: every hash is computed anew, and a `Replay`
adds up what they say. No index is used for them, because a writer of the file can make an index lie.
"""

import hmac
import io
import json
import sqlite3
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from eigenveil.core.ledger import Charge
from eigenveil.ledger.budget import OtherStudies, StudyBalance, StudyStep
from eigenveil.ledger.file import LAST, add_entry
from eigenveil.ledger.replay import FIRST, Entry, LedgerError, Mark, Replay, canonical, charges_in, is_mark_of, seal

__all__ = [
    "Tables",
    "all_entries",
    "append",
    "append_balance",
    "charges_at",
    "entries_after",
    "follow",
    "key_of",
    "last_entry",
    "names_of",
    "require_current",
    "require_sound",
    "require_stored",
    "said_of",
    "seal_names",
    "secret_of",
    "steps_of",
    "store",
]

_COLUMNS: Final = ("number", "time", "kind", "study", "dataset", "body", "hash")
_BODY: Final = _COLUMNS.index("body")
_HASH: Final = _COLUMNS.index("hash")
# By the table and not by an index, which could leave entries out: its condition may have been another one when it was made.
_ENTRIES: Final = f"SELECT {', '.join(_COLUMNS)} FROM lines NOT INDEXED"
# Where the table of keys has the seal of names and fingerprints.
_NAMES: Final = "names"
# Bytes of a stored message that are read at a time.
_PIECE: Final = 1 << 16
_SEE: Final = "Nothing was written and nothing may leave; see `eigenveil ledger verify`"
Tables = sqlite3.Connection


def key_of(tables: Tables) -> bytes:
    """The key of fingerprints and marks; it never leaves the ledger."""
    key = _kept(tables, "prints")
    if key is None:
        raise LedgerError(f"the ledger is damaged: the key of its digests is gone. {_SEE}")
    return key


def _kept(tables: Tables, name: str) -> bytes | None:
    rows = tables.execute("SELECT key FROM keys NOT INDEXED WHERE name = ?", (name,)).fetchall()
    return rows[0][0] if len(rows) == 1 and isinstance(rows[0][0], bytes) else None


def seal_names(tables: Tables) -> None:
    """Note what is stored of the names of datasets. It is in no entry, because it tells of rows, and is missed if it is lost."""
    tables.execute("INSERT OR REPLACE INTO keys VALUES (?, ?)", (_NAMES, _seal_of_names(tables)))


def _seal_of_names(tables: Tables) -> bytes:
    prints = tables.execute("SELECT seen, dataset, print FROM prints ORDER BY seen").fetchall()
    sources = tables.execute("SELECT source, dataset FROM sources NOT INDEXED").fetchall()
    return hmac.digest(key_of(tables), f"names{prints!r}{sorted(sources, key=repr)!r}".encode(), "sha256")


def names_of(tables: Tables, dataset: str, marks: Collection[bytes]) -> tuple[str, ...]:
    """The other datasets that have stood for rows with any of these keyed fingerprints."""
    wanted = set(marks)
    others = tables.execute("SELECT dataset, print FROM prints WHERE dataset != ?", (dataset,))
    return tuple(sorted({name for name, mark in others if mark in wanted}))


def append(tables: Tables, kind: str, body: Mapping[str, Any], *, study: str | None = None, dataset: str | None = None) -> Entry:
    """Write the next entry and return it."""
    entry = Entry.after(last_entry(tables), kind=kind, body=body, study=study, dataset=dataset)
    add_entry(tables, entry)
    return entry


def last_entry(tables: Tables) -> Entry:
    """The last entry of the ledger, whose hash is the head."""
    rows = tables.execute(f"{_ENTRIES} ORDER BY number DESC LIMIT 2").fetchall()
    if not rows:
        raise LedgerError(f"the ledger is damaged: it has lost its first entry. {_SEE}")
    return _followed(rows[0], rows[1][_HASH] if len(rows) > 1 else FIRST)


def follow(tables: Tables, books: Replay) -> None:
    """Bring `books` up to the last entry. `LedgerError` if an entry is wrong, or if the last one they have is not there any more.

    It takes time for the entries that are new since the last time.
    """
    rows = tables.execute(f"{_ENTRIES} WHERE number >= ? ORDER BY number", (books.number,))
    if books.number:
        last = rows.fetchone()
        if last is None or (last[0], last[_HASH]) != (books.number, books.hash):
            raise LedgerError(f"the ledger is damaged: entries were removed or rewritten while it was open. {_SEE}")
    for row in rows:
        if row[0] != books.number + 1:
            raise LedgerError(f"the ledger is damaged: entry {books.number + 1} is missing. {_SEE}")
        books.add(_followed(row, books.hash))
    _require_last(tables, books)


def append_balance(
    tables: Tables, kind: str, account: tuple[str, str], standing: StudyBalance, together: OtherStudies, body: Mapping[str, Any]
) -> Entry:
    """Write an entry after which a study stands as `standing` says; `account` is the study and its dataset.

    All studies of the dataset are `together` then.
    """
    study, dataset = account
    # The sum is written into the entry itself, so a commit can check the total budget from one entry.
    balance = {"standing": standing.values(), "together": together.values()}
    return append(tables, kind, {**body, **balance}, study=study, dataset=dataset)


def steps_of(tables: Tables, books: Replay, study: str) -> Iterator[StudyStep]:
    """The steps of a study in order; the bytes are those whose marks were committed, or `LedgerError`."""
    pruned = _pruned(tables, study)
    for number, at in enumerate(books.commits[study]):
        entry = _entry_at(tables, books, at)
        stored = list(_bytes_of(tables, entry))
        is_stored = bool(stored)
        _require_kept(books, entry, pruned, is_stored=is_stored)
        yield StudyStep(
            number=number,
            incoming=stored[0] if is_stored else b"",
            replies=tuple(stored[1:]),
            charges=charges_in(entry.body),
            is_stored=is_stored,
        )


def charges_at(tables: Tables, books: Replay, number: int) -> tuple[Charge, ...]:
    """The charges in the entry of this number."""
    return charges_in(_entry_at(tables, books, number).body)


def said_of(tables: Tables, books: Replay, study: str, number: int) -> Iterator[bytes]:
    """The first message that a step of a study said, in pieces and with the same checks, which come before the first piece."""
    steps = books.commits.get(study, [])
    entry = _entry_at(tables, books, steps[number]) if number < len(steps) else None
    rows = [] if entry is None else _rows_of(tables, entry)
    if entry is None or len(rows) < 2:
        raise LedgerError(f"the ledger is damaged: what step {number} of study {study[:16]} said is missing")
    # Read twice, so that nothing is made of bytes that were changed, and no more than a piece is in memory.
    deque(_pieces(tables, entry, 1, rows[1]), maxlen=0)
    yield from _pieces(tables, entry, 1, rows[1])


def require_current(tables: Tables, books: Replay) -> None:
    """Check what decides now and is not in the entries: the names of datasets, the list of studies, and open secrets."""
    _require_last(tables, books)
    names, sealed = tables.execute("SELECT 1 FROM prints UNION SELECT 1 FROM sources").fetchone(), _kept(tables, _NAMES)
    if (names, sealed) != (None, None) and sealed != _seal_of_names(tables):
        raise LedgerError(f"the ledger is damaged: fingerprints or sources of its datasets were lost or changed. {_SEE}")
    # Two records of the same fact. A study that was deleted from one of them shows in the other.
    rows = tables.execute("SELECT study, dataset, joined, pruned FROM studies NOT INDEXED").fetchall()
    listed = {study: (dataset, joined) for study, dataset, joined, pruned in rows if isinstance(pruned, int)}
    wanted = {state.account.study: state.account.dataset for state in books.studies}
    entered = {study: (dataset, books.joined[study].number) for study, dataset in wanted.items()}
    if len(rows) != len(entered) or listed != entered:
        wrong = next(study for study in [*listed, *entered] if listed.get(study) != entered.get(study))
        raise LedgerError(f"the list of studies differs from the entries: see study {str(wrong)[:16]}. {_SEE}")
    for state in books.studies:
        if state.state == "open":
            secret_of(tables, books, state.account.study)


def secret_of(tables: Tables, books: Replay, study: str) -> bytes:
    """The private randomness of an open study, as it was when the study was joined; otherwise a `LedgerError`."""
    rows = tables.execute("SELECT secret FROM studies NOT INDEXED WHERE study = ?", (study,)).fetchall()
    secret = rows[0][0] if len(rows) == 1 else None
    # Masks made from another secret would give away what was sent.
    mark = books.joined[study].body.get("secret")
    if not isinstance(secret, bytes) or not is_mark_of(key_of(tables), secret, mark):
        raise LedgerError(f"the ledger is damaged: the secret of study {study[:16]} is not the one it was joined with. {_SEE}")
    return secret


def require_stored(tables: Tables, books: Replay) -> None:
    """Check stored bytes against the marks in the entries."""
    for study, number in tables.execute("SELECT DISTINCT study, number FROM stored").fetchall():
        steps = len(books.commits.get(study, []))
        if not (isinstance(number, int) and 0 <= number < steps):
            raise LedgerError(f"bytes are stored for step {number} of study {str(study)[:16]}, and no entry has that step")
    for state in books.studies:
        pruned = _pruned(tables, state.account.study)
        for at in books.commits[state.account.study]:
            entry = _entry_at(tables, books, at)
            _require_kept(books, entry, pruned, is_stored=sum(1 for _ in _bytes_of(tables, entry)) > 0)


def _pruned(tables: Tables, study: str) -> int:
    """The number of the step of a study before which stored bytes may be gone."""
    rows = tables.execute("SELECT pruned FROM studies NOT INDEXED WHERE study = ?", (study,)).fetchall()
    if len(rows) != 1 or not isinstance(rows[0][0], int):
        raise LedgerError(f"the list of studies differs from the entries: see study {study[:16]}. {_SEE}")
    return int(rows[0][0])


def _require_kept(books: Replay, entry: Entry, pruned: int, *, is_stored: bool) -> None:
    """Refuse a step whose bytes are gone, unless they are on purpose: after `prune`, after the study ended, or never kept."""
    standing = books.standing(entry.study or "")
    is_open = standing is not None and standing.state == "open"
    if not is_stored and entry.body["kept"] and is_open and entry.body["number"] >= pruned:
        raise LedgerError(f"entry {entry.number} ({entry.kind}) is about bytes that should be stored and are gone")


def _require_last(tables: Tables, books: Replay) -> None:
    """Refuse a ledger that does not end where `books` do."""
    # The table was read from its beginning. New entries are added at its end, and both ways must lead to the same one. It is
    # noted in another table, too.
    if last_entry(tables).hash != books.hash or _kept(tables, LAST) != f"{books.number} {books.hash}".encode():
        raise LedgerError(f"the ledger is damaged: entries at its end were removed or rewritten. {_SEE}")


def _entry_at(tables: Tables, books: Replay, number: int) -> Entry:
    """The entry of this number, as `books` have it."""
    row = tables.execute(f"{_ENTRIES} WHERE number = ?", (number,)).fetchone()
    if row is None or row[_HASH] != books.hash_of(number):
        raise LedgerError(f"the ledger is damaged: entry {number} was removed or rewritten while it was open. {_SEE}")
    return _followed(row, books.hash_of(number - 1))


def entries_after(tables: Tables, number: int, count: int) -> list[Entry]:
    """Up to `count` entries after that number, with only their form and order checked."""
    rows = tables.execute(f"{_ENTRIES} WHERE number > ? ORDER BY number LIMIT ?", (number, count)).fetchall()
    # In a damaged file they may come in any order, and those who ask for the next ones would never see the end.
    if [row[0] for row in rows] != [*range(number + 1, number + 1 + len(rows))]:
        raise LedgerError(f"the ledger is damaged: entries after entry {number} are missing. {_SEE}")
    return [_entry_in(row) for row in rows]


def all_entries(tables: Tables) -> Iterator[Entry]:
    """Every entry, one at a time, with only its form checked."""
    for row in tables.execute(f"{_ENTRIES} ORDER BY number"):
        entry = _entry_in(row)
        # Two texts of the same JSON would have two hashes, so only the canonical one is accepted.
        if canonical(entry.body) != row[_BODY]:
            raise LedgerError(f"entry {entry.number} ({entry.kind}) was changed: it is not in canonical form")
        yield entry


def require_sound(tables: Tables) -> None:
    """Let SQLite check its own file: no page is broken, and every index agrees with its table."""
    (answer,) = tables.execute("PRAGMA integrity_check(1)").fetchone()
    if answer != "ok":
        raise LedgerError(f"the file is damaged: {answer}")


def _entry_in(row: tuple[Any, ...]) -> Entry:
    """The entry in a row of the table, unchecked; `LedgerError` if it is not one."""
    try:
        body = json.loads(row[_BODY])
    except (ValueError, TypeError, RecursionError):
        body = None
    optional = (row[3], row[4])
    required = (row[1], row[2], row[_BODY], row[_HASH])
    well = all(isinstance(text, str) for text in required)
    well = well and all(text is None or isinstance(text, str) for text in optional)
    if not isinstance(body, dict) or not well:
        raise LedgerError(f"entry {row[0]} was changed: it is not an entry of a ledger")
    return Entry(**{**dict(zip(_COLUMNS, row, strict=True)), "body": body})


def _followed(row: tuple[Any, ...], before: str | None) -> Entry:
    """The entry in a row, if its hash follows from the hash `before` it."""
    entry = _entry_in(row)
    # Hash the text of the body as it is stored, not as it would be written again: that is quicker, and stricter.
    if before is None or entry.hash != seal(before, row[_BODY], entry.number, *row[1:_BODY]):
        raise LedgerError(
            f"entry {entry.number} ({entry.kind}) was changed, or the one before it: its hash does not follow. {_SEE}"
        )
    return entry


def _bytes_of(tables: Tables, entry: Entry) -> Iterator[bytes]:
    """The stored bytes of the step in an entry, place by place: none, or all of them with the marks of the entry."""
    # One at a time: they can be large.
    for index, row in enumerate(_rows_of(tables, entry)):
        # A list of pieces would need a copy, and this buffer becomes the result without one.
        buffer = io.BytesIO()
        buffer.writelines(_pieces(tables, entry, index, row))
        yield buffer.getvalue()


def _rows_of(tables: Tables, entry: Entry) -> list[int]:
    """Where the bytes of the step in an entry are stored: no rows, or one for each place."""
    places = "SELECT place, rowid FROM stored WHERE study = ? AND number = ? ORDER BY place"
    rows = tables.execute(places, (entry.study, entry.body["number"])).fetchall()
    # All or none. A step of which only some messages are left could not be repeated byte for byte.
    if rows and [index for index, _ in rows] != [*range(1 + len(entry.body["said"]))]:
        raise LedgerError(f"entry {entry.number} ({entry.kind}) is about other bytes than are stored")
    return [row for _, row in rows]


def _pieces(tables: Tables, entry: Entry, index: int, row: int) -> Iterator[bytes]:
    """The bytes in a row, some at a time. After the last, a `LedgerError` unless the entry has their mark."""
    # A query for all of them would have them in memory twice, and a device has no room for that.
    (kind,) = tables.execute("SELECT typeof(data) FROM stored WHERE rowid = ?", (row,)).fetchone() or (None,)
    wanted = [entry.body["came"], *entry.body["said"]][index]
    mark = Mark.like(key_of(tables), wanted)
    if kind == "blob":
        with tables.blobopen("stored", "data", row, readonly=True) as blob:
            while piece := blob.read(_PIECE):
                mark.add(piece)
                yield piece
    if kind != "blob" or mark.value != wanted:
        raise LedgerError(f"entry {entry.number} ({entry.kind}) has the mark of other bytes than are stored")


def store(tables: Tables, study: str, number: int, messages: Iterable[bytes]) -> None:
    """Write what came in a step and what was said, byte for byte."""
    for index, data in enumerate(messages):
        # Room first and the bytes after it: as values of a statement SQLite would copy them twice.
        room = "INSERT INTO stored VALUES (?, ?, ?, zeroblob(?))"
        row = tables.execute(room, (study, number, index, len(data))).lastrowid
        assert row is not None
        with tables.blobopen("stored", "data", row) as blob:
            blob.write(data)
