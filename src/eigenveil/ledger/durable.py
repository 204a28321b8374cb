"""`DurableLedger`: a site's ledger on disk. A charge and the exact bytes it pays for are there before they leave the site.

One file serves all studies and all datasets of a site, for good. Each thing that happens is an entry, sealed with the
hash of the entries before it, and every budget is added up from sealed entries. A study goes through these states:

    | state     | call    | entry written              | counts in total      | next state |
    |-----------|---------|----------------------------|----------------------|------------|
    | (unknown) | join    | join                       | all that is reserved | open       |
    | open      | join    | life, if that has changed  | all that is reserved | open       |
    | open      | commit  | commit                     | all that is reserved | open       |
    | open      | prune   | none                       | all that is reserved | open       |
    | open      | finish  | finish                     | what was spent       | finished   |
    | open      | abandon | abandon                    | what was spent       | abandoned  |
    | finished  | join    | none                       | what was spent       | finished   |
    | any       | note    | note                       | as before            | as before  |
    | any       | log     | none                       | as before            | as before  |
    | any       | declare | none                       | as before            | as before  |

The studies of a dataset protect one `PrivacyUnit`, and `join` refuses another with `UnitMismatch`.

Every other call is a `LedgerError`, and so is `join` on terms that differ from the first time. If the budget is too small,
`join` and `commit` raise `BudgetExceeded`. After any error nothing was written. Ending a study wipes its secret and its
stored bytes.

A site that dies at any moment opens the ledger again and finds each step whole or not at all. It repeats what it said
byte for byte, so nothing is charged twice and nothing leaves without a charge.

Entries may be exported and shown to others: `entries.py` says why they tell nothing of rows. What does, stays in other tables,
which no export, head or report has: fingerprints of rows, where rows came from, and what is logged for the site's own people.

Whenever it is opened, every entry is read and every balance is added up anew, and the secrets of open studies are checked.
All figures come from that, and none from an index or a query that could be made to lie. `verify` checks the stored bytes
and the rest of the file, too. One thing no file can detect by itself: an old copy that is put back has forgotten the charges
since. The defence is the head, the hash of the last entry. Noted elsewhere (`head.py`), it finds out.
"""

import hmac
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, final, overload

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import require_same_unit
from eigenveil.errors import BudgetExceeded, require
from eigenveil.ledger import tables as table
from eigenveil.ledger.budget import (
    OtherStudies,
    State,
    StudyBalance,
    StudyBudget,
    StudyRecord,
    StudyStep,
    alike,
    require_fixed,
    require_life,
    require_study,
    require_words,
)
from eigenveil.ledger.file import LedgerFile, locked
from eigenveil.ledger.replay import DatasetState, Entry, LedgerError, Replay, StudyReplay, is_mark_of, mark_of, moment

__all__ = ["DatasetState", "DurableLedger", "Entry", "LedgerError", "StudyBudget", "StudyRecord", "StudyReplay", "StudyStep"]

_GOES_ON: Final = "its budget covers the people in both tables"
_ADD_UP: Final = "for the people in them the costs under both names add up"
_ONE_KIND: Final = (
    "Choose settings that protect the same. Those of a study are its coordinator's to change. If other people are in this table, "
    "give it a --dataset of its own. Nothing was written"
)
# Entries in one short transaction. Characters in a note, which may quote another party.
_PER_LOOK: Final = 500
_LONGEST_NOTE: Final = 1000


@final
class DurableLedger:
    """The ledger of a site on disk. Changes in place, and in the file, which several processes may have open.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> from eigenveil.core.unit import Neighbours, PrivacyUnit
    >>> cost, row = {"epsilon": 1.0, "delta": 1e-6, "mu": 0.23}, PrivacyUnit("row", Neighbours.ADD_REMOVE)
    >>> account = StudyBudget(study="0" * 64, title="heart study", dataset="patients", trust="masked", **cost, unit=row)
    >>> with DurableLedger.open(Path(folder.name) / "ledger.db") as ledger:
    ...     opened = ledger.join(account, life=Budget(2.0, 1e-5))
    ...     ledger.commit(account.study, 0, came=b"ask", replies=[b"noisy sum"], charges=[Charge("sum", 0.1)])
    ...     again = ledger.join(account, life=Budget(2.0, 1e-5))
    ...     (step,) = again.steps
    >>> step.replies, step.charges, again.secret == opened.secret
    ((b'noisy sum',), (Charge(label='sum', mu=0.1, purpose='main'),), True)
    >>> folder.cleanup()
    """

    def __init__(self, file: LedgerFile) -> None:
        """Use `DurableLedger.open` or `DurableLedger.reading`."""
        self._file = file
        self._books = Replay()
        self._key: bytes | None = None

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> "DurableLedger":
        """The ledger at `path`, made if there is none and `create` is set. Only its owner may be able to read it.

        All entries, the balances and the secrets of open studies are checked first, and `LedgerError` says what is wrong.
        """
        return cls(LedgerFile.open(path, create=create))._checked()

    @classmethod
    def reading(cls, path: Path, *, damaged: bool = False) -> "DurableLedger":
        """The ledger at `path`, read-only: nothing is written, not even beside it. Closing may raise: `LedgerFile.reading`.

        It is checked as `open` checks it, unless it may be `damaged`: then `verify` says where.
        """
        opened = cls(LedgerFile.reading(path))
        return opened if damaged else opened._checked()

    def _checked(self) -> "DurableLedger":
        try:
            with self._looking() as (tables, books):
                table.require_current(tables, books)
        except BaseException:
            self._file.close()
            raise
        return self

    @contextmanager
    def _looking(self) -> Iterator[tuple[table.Tables, Replay]]:
        """A transaction that sees the ledger as it is at one moment, and what its entries add up to then."""
        with self._file.looking() as tables:
            yield tables, self._followed(tables)

    @contextmanager
    def _writing(self, *, seals: bool = True) -> Iterator[tuple[table.Tables, Replay]]:
        """A transaction that holds the ledger alone, and what its entries add up to before what is written in it."""
        with self._file.writing(seals=seals) as tables:
            yield tables, self._followed(tables)

    def _followed(self, tables: table.Tables) -> Replay:
        books, self._books = self._books, Replay()
        # After an error the next call begins at the first entry again, and finds the same error.
        table.follow(tables, books)
        self._books = books
        return books

    @property
    def path(self) -> Path:
        return self._file.path

    def after_writing(self, call: Callable[[], None]) -> None:
        """Call this after every write. If it raises, so does the write, and nothing may leave, though the charge stays."""
        self._file.written = call

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "DurableLedger":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def known_as(self, dataset: str, *fingerprints: bytes) -> tuple[str, ...]:
        """The names other than `dataset` under which the ledger has the same rows. Each has a total budget of its own.

        As private as the rows: for a person at the site, and never to decide what others can see.
        """
        with self._file.looking() as tables:
            return table.names_of(tables, dataset, _keyed(tables, fingerprints))

    def read_as(self, dataset: str, source: str) -> tuple[str, ...]:
        """The names other than `dataset` under which rows were read from this `source`, whatever was in it."""
        with self._file.looking() as tables:
            others = "SELECT DISTINCT dataset FROM sources WHERE source = ? AND dataset != ? ORDER BY dataset"
            return tuple(name for (name,) in tables.execute(others, (source, dataset)).fetchall())

    def declare(self, dataset: str, fingerprint: bytes, *others: bytes, source: str | None = None) -> list[str]:
        """Declare which rows the name `dataset` stands for; warnings if they changed, or have another name too.

        `fingerprint` is a digest of the rows, and `others` are of parts of them. Rows with any of them in common are taken for
        the same. Only keyed digests of them are stored. `source` says where the rows were read. No entry is written, and the
        warnings are as private as the rows.
        """
        require_words("dataset", dataset)
        require(len(fingerprint) > 0, "fingerprint must not be empty")
        with self._writing(seals=False) as (tables, books):
            # First of all: nothing may be written under a name that gives the same people a second budget.
            _require_own_name(tables, books, dataset)
            whole, *parts = prints = _keyed(tables, (fingerprint, *others))
            query = "SELECT print FROM prints WHERE dataset = ? ORDER BY seen"
            stored = [bytes(digest) for (digest,) in tables.execute(query, (dataset,))]
            names = table.names_of(tables, dataset, prints)
            changed = bool(stored) and stored[-1] != whole
            existing = set(stored)
            new = [part for part in parts if part not in existing]
            before = tables.total_changes
            # The same rows again write nothing: a restarted site must not grow the ledger. The last print is of all rows.
            if new or changed or not stored:
                rows = [(dataset, digest) for digest in (*new, whole)]
                tables.executemany("INSERT INTO prints (dataset, print) VALUES (?, ?)", rows)
            if source is not None:
                tables.execute("INSERT OR IGNORE INTO sources (source, dataset) VALUES (?, ?)", (source, dataset))
            if tables.total_changes > before:
                table.seal_names(tables)
        other = [f"the rows or columns of {dataset!r} are not those last seen under this name: {_GOES_ON}"] if changed else []
        return other + [f"the rows of {dataset!r} are also in the ledger as {name!r}: {_ADD_UP}" for name in names]

    def is_mark_of(self, data: bytes, mark: Any) -> bool:
        """Whether `mark`, from an entry of this ledger, is of these bytes. The site alone can tell."""
        return is_mark_of(self._mark_key(), data, mark)

    def _mark_key(self) -> bytes:
        # Read once: all messages are marked with it, and it never changes.
        if self._key is None:
            with self._file.looking() as tables:
                self._key = table.key_of(tables)
        return self._key

    def require_affordable(self, account: StudyBudget, *, life: Budget | None) -> None:
        """Raise what `join` would raise for a study that does not fit: `UnitMismatch` or `BudgetExceeded`. Writes nothing."""
        with self._looking() as (_, books):
            self._require_fits(account, StudyBalance.new(account, life), books)

    def join(self, account: StudyBudget, *, life: Budget | None, fixed: bool = False) -> StudyRecord:
        """Reserve what `account` may spend in the life of its dataset, or reopen the study if it was joined before.

        `UnitMismatch` if the studies of the dataset protect something else. `BudgetExceeded` says what is spent, reserved,
        asked and allowed. With `life=None` the policy sets no bound. Only
        then, or with an infinite epsilon, may a study without privacy be joined. A study that is joined again is bound by
        the `life` given this time, unless the total budget of the dataset is `fixed`: then another one is a `ValueError`.
        `LedgerError` if it was joined with another account, or abandoned.
        """
        with self._writing() as (tables, books):
            if fixed:
                require_fixed(books.lives.get(account.dataset), life, account.dataset)
            standing = books.standing(account.study)
            if standing is None:
                return self._join(account, StudyBalance.new(account, life), tables, books)
            before = books.study(account.study).account
            # Other terms under the same digest would change what was reserved for a study in progress.
            if not account.same(before):
                party = f" by {before.party!r}" if before.party != account.party else ""
                raise LedgerError(
                    f"study {account.title!r} was joined before{party} on other terms, which cannot be changed: dataset "
                    f"{before.dataset!r}, trust {before.trust!r}, epsilon {before.epsilon}, delta {before.delta}"
                )
            if standing.state == "abandoned":
                raise LedgerError(f"study {account.title!r} was closed for good and cannot be joined again")
            # The policy may be stricter by now, and what is still to be spent must fit in it.
            if standing.state == "open":
                bound = replace(standing, life=life)
                together = self._require_fits(account, bound, books)
                if bound != standing:
                    table.append_balance(tables, "life", (account.study, account.dataset), bound, together, {})
            over = standing.state == "finished"
            secret = b"" if over else table.secret_of(tables, books, account.study)
            # All of them are checked now, one at a time: the bytes of a whole study may not fit in memory.
            count = sum(1 for _ in table.steps_of(tables, books, account.study))
            return StudyRecord(fresh=False, secret=secret, steps=_Steps(self, account.study, count), finished=over)

    def charge(self, account: StudyBudget, charges: Sequence[Charge], *, life: Budget, finish: bool = True) -> None:
        """Join and commit in one step, and `finish` in it too if nothing follows. Without `charges` it only fixes the `life`
        budget of the dataset.
        """
        key = self._mark_key()
        with self._several(), self._writing() as (tables, books):
            require_fixed(books.lives.get(account.dataset), life, account.dataset)
            self._join(account, StudyBalance.new(account, life), tables, books)
            table.follow(tables, books)
            if charges:
                marks: tuple[Any, list[Any]] = (mark_of(key, b""), [])
                self._commit(tables, books, account.study, 0, marks=marks, charges=charges, keep=False)
                table.follow(tables, books)
            if finish:
                self._close(tables, books, account.study, "finish", "finished")

    def lock(self, study: str) -> AbstractContextManager[None]:
        """Hold `study` for this process alone; `LedgerError` if another process has it."""
        require_study(study)
        refusal = f"study {study[:16]} is run by another process here, and only one process may run it at a time"
        return locked(self._file.path, study[:32], refusal)

    def commit(
        self,
        study: str,
        number: int,
        *,
        came: bytes,
        replies: Sequence[bytes],
        charges: Sequence[Charge],
        keep: bool = True,
        finish: bool = False,
    ) -> None:
        """Write step `number`: what came, what will be said, and what it costs. Send only after this has returned.

        On return all of it is on disk; after any error none of it is. With `keep=False` only marks are stored, and with `finish`
        the study is finished in the same step.

        - `BudgetExceeded` if it does not fit in what is reserved, or in the life given when joining.
        - `LedgerError` if this is not the next step (another process has gone on), the study is not open, or the disk refuses.
        """
        # Marks of large messages take time. Other processes wait while the ledger is locked, so compute them first.
        key = self._mark_key()
        marks = mark_of(key, came), [mark_of(key, data) for data in replies]
        with self._several(finish), self._writing() as (tables, books):
            self._commit(tables, books, study, number, marks=marks, charges=charges, keep=keep)
            if finish:
                table.follow(tables, books)
                self._close(tables, books, study, "finish", "finished")
            elif keep:
                table.store(tables, study, number, (came, *replies))

    @contextmanager
    def _several(self, several: bool = True) -> Iterator[None]:
        """A write of several entries, each checked against the ones before it: if it fails, what was followed is not there."""
        try:
            yield
        except BaseException:
            if several:
                self._books = Replay()
            raise

    def _commit(
        self,
        tables: table.Tables,
        books: Replay,
        study: str,
        number: int,
        *,
        marks: tuple[Any, list[Any]],
        charges: Sequence[Charge],
        keep: bool,
    ) -> None:
        # Read inside the transaction that writes: no other process can charge in between.
        dataset, current = _open(books, study)
        if number != current.entries:
            raise LedgerError(
                f"study {study[:16]} is at step {current.entries}, not {number}: another process has gone on with it; "
                "nothing was written and nothing may leave"
            )
        standing = current.charged(charges, sends=bool(marks[1]))
        # The dataset's sums do not change with a commit: the reserve was counted in full when the study was joined.
        together = books.together(dataset)
        if charges and not together.within(standing.life):
            raise BudgetExceeded(
                f"the studies of dataset {dataset!r} together exceed the total budget this study was joined under. Join "
                "it again under the current policy. Nothing was written and nothing may leave"
            )
        body = {
            "number": number,
            "charges": [[charge.label, float(charge.mu)] for charge in charges],
            "came": marks[0],
            "said": marks[1],
            "kept": keep,
            "standing": standing.values(),
            "together": together.values(),
        }
        table.append(tables, "commit", body, study=study, dataset=dataset)

    def said(self, study: str, number: int) -> Iterator[bytes]:
        """The first message that step `number` of a study said, in pieces. `LedgerError` unless it is there as committed."""
        with self._looking() as (tables, books):
            yield from table.said_of(tables, books, study, number)

    def prune(self, study: str, before: int, *, keep: Collection[int] = ()) -> None:
        """Drop the stored bytes of the steps before this number, but for those to `keep`. Marks and charges stay."""
        with self._writing() as (tables, books):
            _open(books, study)
            stored = tables.execute("SELECT DISTINCT number FROM stored WHERE study = ? AND number < ?", (study, before))
            dropped = [(study, number) for (number,) in stored.fetchall() if number not in keep]
            tables.executemany("DELETE FROM stored WHERE study = ? AND number = ?", dropped)
            # Remembered, so that `verify` can tell bytes that were dropped here from bytes that were removed.
            tables.execute("UPDATE studies NOT INDEXED SET pruned = max(pruned, ?) WHERE study = ?", (before, study))

    def finish(self, study: str) -> None:
        """End the study: what it has not spent is free again, and its private randomness and stored bytes are wiped."""
        self._end(study, "finish", "finished")

    def abandon(self, study: str) -> None:
        """Give the study up: as `finish`, and it can never be joined or charged again."""
        self._end(study, "abandon", "abandoned")

    def note(self, study: str, text: str) -> None:
        """An entry for people about a study, joined or not: who consented. Others may read it, so nothing in it is of rows."""
        require_study(study)
        with self._writing() as (tables, books):
            dataset = books.study(study).account.dataset if study in books.joined else None
            table.append(tables, "note", {"words": _plain(text)}, study=study, dataset=dataset)

    def log(self, study: str, text: str) -> None:
        """Words about a study for the site's own people: what was refused, and why. No entry, and in no export."""
        require_study(study)
        with self._file.writing(seals=False) as tables:
            tables.execute("INSERT INTO log (time, study, words) VALUES (?, ?, ?)", (moment(), study, _plain(text)))

    def logged(self) -> list[tuple[str, str, str]]:
        """What was logged, in order: the time, the study and the words. Not sealed: a writer of the file can change it."""
        with self._file.looking() as tables:
            return tables.execute("SELECT time, study, words FROM log ORDER BY number").fetchall()

    def datasets(self) -> tuple[DatasetState, ...]:
        """Every dataset that was declared or joined, by name, with what its studies have spent and reserved."""
        with self._looking() as (tables, books):
            return tuple(map(books.dataset, _names(tables, books)))

    def dataset(self, name: str) -> DatasetState:
        with self._looking() as (_, books):
            return books.dataset(name)

    def require_own_name(self, dataset: str) -> None:
        """Refuse a name that looks like another one in this ledger: it would give the same people a second budget."""
        with self._looking() as (tables, books):
            _require_own_name(tables, books, dataset)

    def charges(self, dataset: str) -> tuple[Charge, ...]:
        with self._looking() as (tables, books):
            numbers = sorted(at for study in books.datasets.get(dataset, {}) for at in books.commits[study])
            return tuple(charge for at in numbers for charge in table.charges_at(tables, books, at))

    def study(self, study: str) -> StudyReplay | None:
        with self._looking() as (_, books):
            return books.study(study) if study in books.joined else None

    def studies(self) -> tuple[StudyReplay, ...]:
        with self._looking() as (_, books):
            return books.studies

    @property
    def last(self) -> Entry:
        """The last entry: its number says how many there are, and its hash is the head."""
        with self._looking() as (tables, _):
            return table.last_entry(tables)

    @property
    def first(self) -> str:
        """The hash of the first entry, which no other ledger has."""
        with self._looking() as (_, books):
            return str(books.hash_of(1))

    @property
    def head(self) -> str:
        """The hash of the last entry. Noted elsewhere, it proves later that no entry up to it was changed or removed."""
        return self.last.hash

    def has(self, number: int, head: str) -> bool:
        """Whether the entry of this number has the hash `head`, which was noted when it was the last one."""
        with self._looking() as (_, books):
            entry_hash = books.hash_of(number)
            return number > 0 and entry_hash is not None and hmac.compare_digest(entry_hash, head)

    def entries(self) -> Iterator[Entry]:
        """Every entry, in order, with only its form checked; `verify` checks the rest."""
        number = 0
        while True:
            # Short transactions, so that a slow reader blocks no writer. Entries are only ever added, so none is missed.
            with self._file.looking() as tables:
                chunk = table.entries_after(tables, number, _PER_LOOK)
            if not chunk:
                return
            yield from chunk
            number = chunk[-1].number

    def verify(self, head: str | None = None) -> Entry:
        """Check everything: each hash, each balance added up anew, and stored bytes against their marks.

        Returns the last entry: its number says how many there are, and its hash is the head to note down. A `head` noted
        earlier must be the hash of some entry. The `LedgerError` names the first entry that is wrong. Someone who can
        write to the file can rewrite all of it, and an old copy that is put back is consistent in itself. Only a `head`
        kept elsewhere reveals either.
        """
        with self._file.looking() as tables:
            table.require_sound(tables)
            replay = Replay()
            last = replay.run(table.all_entries(tables), head=head)
            table.require_current(tables, replay)
            table.require_stored(tables, replay)
            return last

    def _join(self, account: StudyBudget, standing: StudyBalance, tables: table.Tables, books: Replay) -> StudyRecord:
        _require_own_name(tables, books, account.dataset)
        require(account.unit is not None or not account.names_unit, "unit is missing: what the study protects")
        # Checked and reserved in one transaction. Of two studies that ask for the last of a budget, one is refused.
        together = self._require_fits(account, standing, books)
        # Drawn once for the study: keys and masks are derived from it again after a crash. Its mark is in the entry, so
        # that another secret in its place is noticed.
        secret = secrets.token_bytes(32)
        body = {"account": account.values(), "secret": mark_of(table.key_of(tables), secret)}
        whose = (account.study, account.dataset)
        entry = table.append_balance(tables, "join", whose, standing, together, body)
        row = (*whose, entry.number, secret)
        tables.execute("INSERT INTO studies (study, dataset, joined, secret) VALUES (?, ?, ?, ?)", row)
        return StudyRecord(fresh=True, secret=secret, steps=(), finished=False)

    def _require_fits(self, account: StudyBudget, standing: StudyBalance, books: Replay) -> OtherStudies:
        """Refuse a study of another kind than the others of its dataset, or beyond their total. Returns what they add up to."""
        if account.private:
            for unit in books.units(account.dataset):
                require_same_unit(account.called, account.unit, unit, instead=_ONE_KIND)
        # Its own reserve, if it was joined before, must not count twice.
        every = books.datasets.get(account.dataset, {})
        others = (other for study, other in every.items() if study != account.study)
        together = books.together_after(account.dataset, account.study, standing)
        require_life(together, others, standing, dataset=account.dataset, called=account.called)
        return together

    def _end(self, study: str, kind: str, state: State) -> None:
        with self._writing() as (tables, books):
            self._close(tables, books, study, kind, state)
        self._file.give_back()

    def _close(self, tables: table.Tables, books: Replay, study: str, kind: str, state: State) -> None:
        dataset, standing = _open(books, study)
        closed = standing.closed(state)
        together = books.together_after(dataset, study, closed)
        table.append_balance(tables, kind, (study, dataset), closed, together, {})
        # The secret could unmask what was sent, so it does not outlive the study.
        tables.execute("UPDATE studies NOT INDEXED SET secret = NULL WHERE study = ?", (study,))
        tables.execute("DELETE FROM stored WHERE study = ?", (study,))


def _plain(text: str) -> str:
    # Words may come from another party. Control characters could rewrite the terminal of those who read them.
    return "".join(letter if letter.isprintable() else " " for letter in text)[:_LONGEST_NOTE]


def _keyed(tables: table.Tables, fingerprints: Sequence[bytes]) -> list[bytes]:
    # Keyed with the ledger's own secret: a copy of the table of prints without it gives no way to check a guess of the rows.
    key = table.key_of(tables)
    return [hmac.digest(key, b"rows" + fingerprint, "sha256") for fingerprint in fingerprints]


def _open(books: Replay, study: str) -> tuple[str, StudyBalance]:
    """The dataset of a study that is open, and how it stands."""
    require_study(study)
    standing = books.standing(study)
    if standing is None:
        raise LedgerError(f"study {study[:16]} was never joined; nothing was written and nothing may leave")
    if standing.state != "open":
        raise LedgerError(f"study {study[:16]} is {standing.state}; nothing was written and nothing may leave")
    return books.study(study).account.dataset, standing


def _names(tables: table.Tables, books: Replay) -> list[str]:
    """Every dataset that was declared or joined."""
    declared = tables.execute("SELECT DISTINCT dataset FROM prints").fetchall()
    return sorted({*books.datasets, *(str(name) for (name,) in declared)})


def _require_own_name(tables: table.Tables, books: Replay, dataset: str) -> None:
    """Refuse a name that looks like another one: it would give the same people a second budget."""
    for name in _names(tables, books):
        if name != dataset and alike(name, dataset):
            raise LedgerError(
                f"dataset {dataset!r} looks the same as {name!r}, which is in this ledger. Use {name!r}, or a name that "
                "differs visibly"
            )


@final
class _Steps(Sequence[StudyStep]):
    """The steps of a study, read from the file one at a time each time they are gone through."""

    def __init__(self, ledger: DurableLedger, study: str, count: int) -> None:
        self._ledger, self._study, self._count = ledger, study, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[StudyStep]:
        with self._ledger._looking() as (tables, books):
            # No more than there were when the study was opened.
            yield from islice(table.steps_of(tables, books, self._study), self._count)

    @overload
    def __getitem__(self, index: int) -> StudyStep: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[StudyStep, ...]: ...

    def __getitem__(self, index: int | slice) -> StudyStep | tuple[StudyStep, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(self._count)))
        at = range(self._count)[index]
        return next(islice(self, at, None))
