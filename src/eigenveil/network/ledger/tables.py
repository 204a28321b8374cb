"""What `DurableLedger` reads from and adds to the tables of a ledger, inside a transaction.

Balances have no rows of their own. They are read from the last entry of a study or dataset, after its hash was computed
anew. A balance that was changed without its hash is refused here; one that was changed with it, `verify` finds.
"""

import io
import json
import sqlite3
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from eigenveil.network.ledger.budget import Standing, StudyBudget, StudyStep, Together, units_of
from eigenveil.network.ledger.entries import FIRST, Entry, LedgerError, Mark, canonical, is_mark_of, seal
from eigenveil.network.ledger.file import LAST, add_entry
from eigenveil.network.ledger.replay import DECLARATION, Replay, StudyReplay, charges_in
from eigenveil.privacy.unit import PrivacyUnit

__all__ = [
    "Tables",
    "all_entries",
    "append",
    "append_balance",
    "counted_units",
    "entries_after",
    "entry_at",
    "entry_in",
    "key_of",
    "last_entry",
    "last_of_dataset",
    "names_of",
    "require_current",
    "require_sound",
    "require_stored",
    "said_of",
    "secret_of",
    "standing_in",
    "standing_of",
    "standings_of",
    "steps_of",
    "store",
    "study_of",
    "together_of",
]

# With each entry comes the hash of the one before it, because that is what its own hash is computed from.
_ENTRY: Final = """SELECT this.number, this.time, this.kind, this.study, this.dataset, this.body, this.hash, before.hash
    FROM lines AS this LEFT JOIN lines AS before ON before.number = this.number - 1"""
# Word for word the condition of the partial indexes: only then does SQLite use them to find the last such entry at once.
_BALANCES: Final = "this.kind IN ('join', 'life', 'commit', 'finish', 'abandon')"
_COLUMNS: Final = ("number", "time", "kind", "study", "dataset", "body", "hash")
_BODY: Final = _COLUMNS.index("body")
# How many entries at the end are hashed anew whenever a ledger is opened.
_TAIL: Final = 64
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
    row = tables.execute("SELECT key FROM keys WHERE name = ?", (name,)).fetchone()
    return row[0] if row is not None and isinstance(row[0], bytes) else None


def names_of(tables: Tables, dataset: str, marks: Collection[bytes]) -> tuple[str, ...]:
    """The other datasets that have stood for rows with any of these keyed fingerprints."""
    wanted = set(marks)
    others = tables.execute("SELECT dataset, print FROM prints WHERE dataset != ?", (dataset,))
    return tuple(sorted({name for name, found in others if found in wanted}))


def append(
    tables: Tables, kind: str, body: Mapping[str, Any], *, study: str | None = None, dataset: str | None = None
) -> Entry:
    """Write the next entry and return it."""
    entry = Entry.after(last_entry(tables), kind=kind, body=body, study=study, dataset=dataset)
    add_entry(tables, entry)
    return entry


def last_entry(tables: Tables) -> Entry:
    """The last entry of the ledger, whose hash is the head."""
    last = _one(tables, "ORDER BY this.number DESC LIMIT 1")
    if last is None:
        raise LedgerError(
            "the ledger is damaged: it has lost its first entry; nothing was written and nothing may leave"
        )
    return last


def append_balance(
    tables: Tables,
    kind: str,
    account: tuple[str, str],
    standing: Standing,
    others: Mapping[str, Standing],
    body: Mapping[str, Any],
) -> Entry:
    """Write an entry after which a study stands as `standing` says; `account` is the study and its dataset.

    `others` are all studies of the dataset as they stood before; this one may be among them.
    """
    study, dataset = account
    # The sum is written into the entry itself, so a commit can check the total budget from one entry.
    together = Together.of({**others, study: standing}.values())
    balance = {"standing": standing.values(), "together": together.values()}
    return append(tables, kind, {**body, **balance}, study=study, dataset=dataset)


def standing_of(tables: Tables, study: str) -> tuple[str, Standing] | None:
    """The dataset of a study and how it stands; None for a study that was never joined."""
    entry = _one(tables, f"WHERE this.study = ? AND {_BALANCES} ORDER BY this.number DESC LIMIT 1", study)
    row = tables.execute("SELECT dataset FROM studies WHERE study = ?", (study,)).fetchone()
    # A study in only one of the two places was deleted from the other: fail closed instead of starting a new budget.
    if entry is None and row is None:
        return None
    if entry is None or row is None or entry.dataset != row[0]:
        raise LedgerError(f"the ledger is damaged: its entries and its list of studies differ on study {study[:16]}")
    return str(row[0]), standing_in(entry)


def standings_of(tables: Tables, dataset: str) -> dict[str, Standing]:
    """How every study of a dataset stands; `LedgerError` unless they add up to what its last entry says."""
    last_entries = f"""{_ENTRY} WHERE this.number IN (SELECT (SELECT max(number) FROM lines AS this
        WHERE this.study = listed.study AND {_BALANCES}) FROM studies AS listed WHERE listed.dataset = ?)"""
    entries = [_followed(row) for row in tables.execute(last_entries, (dataset,)).fetchall()]
    found = {
        entry.study: standing_in(entry) for entry in entries if entry.study is not None and entry.dataset == dataset
    }
    # Two independent records of the same sum: a deleted study or entry shows as a difference.
    last = last_of_dataset(tables, dataset)
    stated = None if last is None else last.body.get("together")
    if (found or stated is not None) and stated != Together.of(found.values()).values():
        raise LedgerError(
            f"the ledger is damaged: its studies of dataset {dataset!r} do not add up to what its last entry says. "
            "Nothing was written and nothing may leave; see `eigenveil ledger verify`"
        )
    return found


def last_of_dataset(tables: Tables, dataset: str, *, joins: bool = False) -> Entry | None:
    """The last entry that changed a balance of the dataset, or with `joins` the last that set its total budget."""
    more = "AND this.kind IN ('join', 'life')" if joins else ""
    return _one(tables, f"WHERE this.dataset = ? AND {_BALANCES} {more} ORDER BY this.number DESC LIMIT 1", dataset)


def counted_units(tables: Tables, dataset: str, standings: Iterable[Standing]) -> set[PrivacyUnit | None]:
    """What the studies of a dataset protect: one unit, or none yet. None among them means that it must be declared first."""
    found = units_of(standings, None)
    if None not in found:
        return found
    # Only a dataset with studies of version 0.1 gets here. This looks at every entry, because no index has declarations.
    entry = _one(
        tables, f"WHERE this.dataset = ? AND this.kind = '{DECLARATION}' ORDER BY this.number LIMIT 1", dataset
    )
    if entry is None:
        return found
    try:
        return units_of(standings, PrivacyUnit.read(entry.body["unit"]))
    except (LookupError, TypeError, ValueError):
        raise LedgerError(f"entry {entry.number} ({entry.kind}) does not say what it declares") from None


def together_of(tables: Tables, dataset: str) -> Together:
    """The sums over a dataset with an open study, as its last entry has them."""
    last = last_of_dataset(tables, dataset)
    try:
        return Together.read({} if last is None else last.body["together"])
    except (LookupError, TypeError, ValueError):
        raise LedgerError(
            f"the ledger is damaged: no entry says what the studies of dataset {dataset!r} add up to"
        ) from None


def study_of(tables: Tables, study: str) -> StudyReplay:
    """A study that was joined: its account from its first entry, and how it stands."""
    known = standing_of(tables, study)
    entry = _one(tables, f"WHERE this.study = ? AND {_BALANCES} ORDER BY this.number LIMIT 1", study)
    if known is None or entry is None or entry.kind != "join":
        raise LedgerError(f"the ledger is damaged: no entry says that study {study[:16]} was joined")
    try:
        account = StudyBudget.of(study, known[0], entry.body["account"])
    except (LookupError, TypeError, ValueError):
        raise LedgerError(f"entry {entry.number} ({entry.kind}) does not say what the study may spend") from None
    return StudyReplay(account, entry.time, known[1])


# The steps of a study, in order.
_STEPS: Final = f"WHERE this.study = ? AND {_BALANCES} AND this.kind = 'commit' ORDER BY this.number"


def steps_of(tables: Tables, study: str) -> Iterator[StudyStep]:
    """The steps of a study in order; the bytes are those whose marks were committed, or `LedgerError`."""
    for number, row in enumerate(tables.execute(f"{_ENTRY} {_STEPS}", (study,)).fetchall()):
        yield _step(tables, _followed(row), study, number)


def said_of(tables: Tables, study: str, number: int) -> Iterator[bytes]:
    """The first message that a step of a study said, in pieces and with the same checks, which come before the first piece."""
    row = tables.execute(f"{_ENTRY} {_STEPS} LIMIT 1 OFFSET ?", (study, number)).fetchone()
    entry = None if row is None else _numbered(_followed(row), study, number)
    rows = [] if entry is None else _rows_of(tables, entry)
    if entry is None or len(rows) < 2:
        raise LedgerError(f"the ledger is damaged: what step {number} of study {study[:16]} said is missing")
    # Read twice, so that nothing is made of bytes that somebody changed, and no more than a piece is in memory.
    deque(_pieces(tables, entry, 1, rows[1]), maxlen=0)
    yield from _pieces(tables, entry, 1, rows[1])


def _numbered(entry: Entry, study: str, number: int) -> Entry:
    # Steps are counted without gaps: a missing one would be answered again, with new noise.
    if entry.body["number"] != number:
        raise LedgerError(f"the ledger is damaged: step {number} of study {study[:16]} is missing")
    return entry


def _step(tables: Tables, entry: Entry, study: str, number: int) -> StudyStep:
    stored = list(_bytes_of(tables, _numbered(entry, study, number)))
    kept = bool(stored)
    return StudyStep(number, stored[0] if kept else b"", tuple(stored[1:]), charges_in(entry.body), kept)


def require_current(tables: Tables) -> None:
    """Check what decides now: the end of the chain, what every study has spent, and the secrets of open studies.

    It takes the same time however long the ledger is. `verify` checks the rest.
    """
    first, rows = entry_at(tables, 1), tables.execute(f"{_ENTRY} ORDER BY this.number DESC LIMIT {_TAIL}").fetchall()
    if first is None:
        raise LedgerError(f"the ledger is damaged: it has lost its first entry. {_SEE}")
    for row in rows:
        _followed(row)
    _require_last(tables, first)
    for (dataset,) in tables.execute("SELECT DISTINCT dataset FROM studies").fetchall():
        for study, standing in standings_of(tables, dataset).items():
            if standing.state == "open":
                secret_of(tables, study)


def secret_of(tables: Tables, study: str) -> bytes:
    """The private randomness of an open study, as it was when the study was joined; otherwise a `LedgerError`."""
    joined, secret = tables.execute("SELECT joined, secret FROM studies WHERE study = ?", (study,)).fetchone()
    entry = entry_at(tables, joined)
    if entry is None or entry.study != study or entry.kind != "join":
        raise LedgerError(f"the ledger is damaged: no entry says that study {study[:16]} was joined. {_SEE}")
    # Masks made from another secret would give away what was sent.
    if not isinstance(secret, bytes) or not is_mark_of(key_of(tables), secret, entry.body.get("secret")):
        raise LedgerError(
            f"the ledger is damaged: the secret of study {study[:16]} is not the one it was joined with. {_SEE}"
        )
    return bytes(secret)


def require_stored(tables: Tables, replay: Replay) -> None:
    """Check stored bytes against the marks in the entries, and the list of studies against the studies joined."""
    listed = dict(tables.execute("SELECT study, dataset FROM studies").fetchall())
    joined = {study: dataset for dataset, found in replay.datasets.items() for study in found}
    # Two records of the same fact. A study that was deleted from one of them shows in the other.
    if listed != joined:
        wrong = sorted(study for study in {*listed, *joined} if listed.get(study) != joined.get(study))
        raise LedgerError(f"the list of studies differs from the entries: see study {wrong[0][:16]}")
    for study, number in tables.execute("SELECT DISTINCT study, number FROM stored").fetchall():
        if (study, number) not in replay.commits:
            raise LedgerError(f"bytes are stored for step {number} of study {study[:16]}, and no entry has that step")
    pruned = dict(tables.execute("SELECT study, pruned FROM studies").fetchall())
    for (study, number), entry in replay.commits.items():
        # Bytes are gone on purpose after `prune`, after the study ended, or if they were never to be kept.
        wanted = entry.body["kept"] and replay.standings[study].state == "open" and number >= pruned[study]
        places = sum(1 for _ in _bytes_of(tables, entry))
        if wanted and not places:
            raise LedgerError(f"entry {entry.number} ({entry.kind}) is about bytes that should be stored and are gone")


def _require_last(tables: Tables, first: Entry) -> None:
    """Refuse a ledger that has lost the entry noted as its last one."""
    found = _kept(tables, LAST)
    # The first entry of a ledger of version 0.1 does not promise a note, and there is none before its next entry.
    if found is None and "last" not in first.body:
        return
    number, _, noted = (found or b"").decode(errors="replace").partition(" ")
    entry = entry_at(tables, int(number)) if number.isdecimal() and len(number) < 19 else None
    if entry is None or entry.hash != noted:
        raise LedgerError(f"the ledger is damaged: entries at its end were removed or rewritten. {_SEE}")


def entry_at(tables: Tables, number: int) -> Entry | None:
    """The entry of this number, if its hash follows."""
    return _one(tables, "WHERE this.number = ?", number)


def entries_after(tables: Tables, number: int, count: int) -> list[Entry]:
    """Up to `count` entries after that number, unchecked."""
    rows = tables.execute(f"{_ENTRY} WHERE this.number > ? ORDER BY this.number LIMIT ?", (number, count)).fetchall()
    return [entry_in(row) for row in rows]


def all_entries(tables: Tables) -> Iterator[Entry]:
    """Every entry, one at a time, with only its form checked."""
    for row in tables.execute(f"{_ENTRY} ORDER BY this.number"):
        entry = entry_in(row)
        # Two texts of the same JSON would have two hashes, so only the canonical one is accepted.
        if canonical(entry.body) != row[_BODY]:
            raise LedgerError(f"entry {entry.number} ({entry.kind}) was changed: it is not in canonical form")
        yield entry


def require_sound(tables: Tables) -> None:
    """Let SQLite check its own file: no page is broken, and every index agrees with its table."""
    # Before the entries are read: what a broken index hides from a query would not be missed.
    (answer,) = tables.execute("PRAGMA integrity_check(1)").fetchone()
    if answer != "ok":
        raise LedgerError(f"the file is damaged: {answer}")


def entry_in(row: tuple[Any, ...]) -> Entry:
    """The entry in a row of the table, unchecked; `LedgerError` if it is not one."""
    number, *texts = row[: len(_COLUMNS)]
    try:
        body = json.loads(row[_BODY])
    except (ValueError, TypeError, RecursionError):
        body = None
    if not isinstance(body, dict) or not all(text is None or isinstance(text, str) for text in texts):
        raise LedgerError(f"entry {number} was changed: it is not an entry of a ledger")
    return Entry(**{**dict(zip(_COLUMNS, row, strict=False)), "body": body})


def _bytes_of(tables: Tables, entry: Entry) -> Iterator[bytes]:
    """The stored bytes of the step in an entry, place by place: none, or all of them with the marks of the entry."""
    # One at a time: they can be large.
    for place, row in enumerate(_rows_of(tables, entry)):
        # A list of pieces would need a copy, and this buffer becomes the result without one.
        buffer = io.BytesIO()
        buffer.writelines(_pieces(tables, entry, place, row))
        yield buffer.getvalue()


def _rows_of(tables: Tables, entry: Entry) -> list[int]:
    """Where the bytes of the step in an entry are stored: no rows, or one for each place."""
    places = "SELECT place, rowid FROM stored WHERE study = ? AND number = ? ORDER BY place"
    found = tables.execute(places, (entry.study, entry.body["number"])).fetchall()
    # All or none. A step of which only some messages are left could not be repeated byte for byte.
    if found and [place for place, _ in found] != [*range(1 + len(entry.body["said"]))]:
        raise LedgerError(f"entry {entry.number} ({entry.kind}) is about other bytes than are stored")
    return [row for _, row in found]


def _pieces(tables: Tables, entry: Entry, place: int, row: int) -> Iterator[bytes]:
    """The bytes in a row, some at a time. After the last, a `LedgerError` unless the entry has their mark."""
    # A query for all of them would have them in memory twice, and a device has no room for that.
    (kind,) = tables.execute("SELECT typeof(data) FROM stored WHERE rowid = ?", (row,)).fetchone()
    wanted = [entry.body["came"], *entry.body["said"]][place]
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
    for place, data in enumerate(messages):
        # Room first and the bytes after it: as values of a statement SQLite would copy them twice.
        room = "INSERT INTO stored VALUES (?, ?, ?, zeroblob(?))"
        row = tables.execute(room, (study, number, place, len(data))).lastrowid
        assert row is not None
        with tables.blobopen("stored", "data", row) as blob:
            blob.write(data)


def _one(tables: Tables, where: str, *values: str | int) -> Entry | None:
    row = tables.execute(f"{_ENTRY} {where}", values).fetchone()
    return None if row is None else _followed(row)


def _followed(row: tuple[Any, ...]) -> Entry:
    entry = entry_in(row)
    before = FIRST if entry.number == 1 else row[-1]
    # Hash the text of the body as it is stored, not as it would be written again: that is quicker, and stricter.
    if before is None or entry.hash != seal(before, row[_BODY], entry.number, *row[1:_BODY]):
        raise LedgerError(
            f"entry {entry.number} ({entry.kind}) was changed, or the one before it: its hash does not follow. "
            "Nothing was written and nothing may leave; see `eigenveil ledger verify`"
        )
    return entry


def standing_in(entry: Entry) -> Standing:
    """How a study stands after this entry."""
    try:
        return Standing.of(entry.body["standing"])
    except (LookupError, TypeError, ValueError):
        raise LedgerError(f"entry {entry.number} ({entry.kind}) does not say how the study stands") from None
