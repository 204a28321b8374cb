"""`DurableLedger`: a site's ledger on disk. A charge and the exact bytes it pays for are there before they leave the site.

One file serves all studies and all datasets of a site, for good. Each thing that happens is an entry, sealed with the
hash of the entries before it, and every budget is read from sealed entries. A study goes through these states:

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

Every other call is a `LedgerError`. So is `join` on terms that differ from the first time. If the budget is too small,
`join` and `commit` raise `BudgetExceeded`. After any error nothing was written. Ending a study wipes its secret and its
stored bytes.

A site that dies at any moment opens the ledger again and finds each step whole or not at all. It repeats what it said
byte for byte, so nothing is charged twice and nothing leaves without a charge.

One thing no file can detect by itself: an old copy that is put back has forgotten the charges since. The defence is the
head, the hash of the last entry. `eigenveil ledger verify` prints it and `export` ends with it. Note it elsewhere, and
`verify(head)` will find out.
"""

import hmac
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, final, overload

from eigenveil.errors import BudgetExceeded, require
from eigenveil.network.ledger import tables as table
from eigenveil.network.ledger.budget import (
    Opened,
    Standing,
    State,
    StudyBudget,
    StudyStep,
    alike,
    require_life,
    require_study,
    require_words,
)
from eigenveil.network.ledger.entries import Entry, LedgerError, digest_of
from eigenveil.network.ledger.file import LedgerFile, locked
from eigenveil.network.ledger.replay import DatasetState, Replay, StudyReplay
from eigenveil.privacy.accounting import Budget
from eigenveil.privacy.ledger import Charge

__all__ = [
    "DatasetState",
    "DurableLedger",
    "Entry",
    "LedgerError",
    "Opened",
    "StudyBudget",
    "StudyReplay",
    "StudyStep",
]

_GOES_ON: Final = "its budget covers the people in both tables"
_ADD_UP: Final = "for the people in them the costs under both names add up"
# Entries in one short transaction. Characters in a note, which may quote another party.
_PER_LOOK: Final = 500
_LONGEST_NOTE: Final = 1000


@final
class DurableLedger:
    """The ledger of a site on disk. Changes in place, and in the file, which several processes may have open.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> account = StudyBudget("0" * 64, "heart study", "patients", "masked", epsilon=1.0, delta=1e-6, mu=0.23)
    >>> with DurableLedger.open(Path(folder.name) / "ledger.db") as ledger:
    ...     opened = ledger.join(account, life=Budget(2.0, 1e-5))
    ...     ledger.commit(account.study, 0, came=b"ask", said=[b"noisy sum"], charges=[Charge("sum", 0.1)])
    ...     again = ledger.join(account, life=Budget(2.0, 1e-5))
    ...     (step,) = again.steps
    >>> step.said, step.charges, again.secret == opened.secret
    ((b'noisy sum',), (Charge(label='sum', mu=0.1),), True)
    >>> folder.cleanup()
    """

    def __init__(self, file: LedgerFile) -> None:
        """Use `DurableLedger.open` or `DurableLedger.reading`."""
        self._file = file
        self._key: bytes | None = None

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> "DurableLedger":
        """The ledger at `path`, made if there is none and `create` is set. Only its owner may be able to read it."""
        return cls(LedgerFile.open(path, create=create))

    @classmethod
    def reading(cls, path: Path) -> "DurableLedger":
        """The ledger at `path`, read-only: nothing is written, not even beside it. Closing may raise: `LedgerFile.reading`."""
        return cls(LedgerFile.reading(path))

    def close(self) -> None:
        """Close the file; what was committed is there."""
        self._file.close()

    def __enter__(self) -> "DurableLedger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def declare(self, dataset: str, fingerprint: bytes) -> list[str]:
        """Declare which rows the name `dataset` stands for; warnings if they changed, or have another name too.

        `fingerprint` is a digest of the rows. Only a keyed digest of it is stored, and no entry has it.
        """
        require_words("dataset", dataset)
        require(len(fingerprint) > 0, "fingerprint must not be empty")
        with self._file.writing() as tables:
            # First of all: nothing may be written under a name that gives the same people a second budget.
            self._require_own_name(tables, dataset)
            # Keyed with the ledger's own secret: entries and exports give no way to check a guess of the table.
            mark = hmac.digest(table.key_of(tables), b"rows" + fingerprint, "sha256")
            seen = "SELECT print FROM prints WHERE dataset = ? ORDER BY seen DESC LIMIT 1"
            last = tables.execute(seen, (dataset,)).fetchone()
            elsewhere = "SELECT DISTINCT dataset FROM prints WHERE print = ? AND dataset != ? ORDER BY dataset"
            names = [name for (name,) in tables.execute(elsewhere, (mark, dataset))]
            changed = last is not None and last[0] != mark
            # The same rows again write nothing: a restarted site must not grow the ledger.
            if last is None or changed:
                tables.execute("INSERT INTO prints (dataset, print) VALUES (?, ?)", (dataset, mark))
                body = {"rows": "changed" if changed else "first", "known_as": names}
                table.append(tables, "declare", body, dataset=dataset)
        other = [f"the rows of {dataset!r} are not those last seen under this name: {_GOES_ON}"] if changed else []
        return other + [f"the rows of {dataset!r} are also in the ledger as {name!r}: {_ADD_UP}" for name in names]

    def mark(self, data: bytes) -> dict[str, Any]:
        """What an entry of this ledger says of these bytes."""
        # Read once: all messages are digested with it, and it never changes.
        if self._key is None:
            with self._file.looking() as tables:
                self._key = table.key_of(tables)
        return digest_of(self._key, data)

    def join(self, account: StudyBudget, *, life: Budget | None) -> Opened:
        """Reserve what `account` may spend in the life of its dataset, or reopen the study if it was joined before.

        `BudgetExceeded` says what is spent, reserved, asked and allowed. With `life=None` the policy sets no bound. Only
        then, or with an infinite epsilon, may a study without privacy be joined. A study that is joined again is bound by
        the `life` given this time. `LedgerError` if it was joined with another account, or abandoned.
        """
        with self._file.writing() as tables:
            known = table.standing_of(tables, account.study)
            if known is None:
                return self._join(account, Standing(account.mu, account.beyond, life), tables)
            before = table.study_of(tables, account.study).account
            # Other terms under the same digest would change what was reserved for a study in progress.
            if not account.same(before):
                party = f" by {before.party!r}" if before.party != account.party else ""
                raise LedgerError(
                    f"study {account.title!r} was joined before{party} on other terms, which cannot be changed: dataset "
                    f"{before.dataset!r}, trust {before.trust!r}, epsilon {before.epsilon}, delta {before.delta}"
                )
            standing = known[1]
            if standing.state == "abandoned":
                raise LedgerError(f"study {account.title!r} was closed for good and cannot be joined again")
            # The policy may be stricter by now, and what is still to be spent must fit in it.
            if standing.state == "open":
                self._hold_to(life, account, standing, tables)
            (secret,) = tables.execute("SELECT secret FROM studies WHERE study = ?", (account.study,)).fetchone()
            # All of them are checked now, one at a time: the bytes of a whole study may not fit in memory.
            count = sum(1 for _ in table.steps_of(tables, account.study))
            steps = _Steps(self._file, account.study, count)
            return Opened(False, secret or b"", steps, finished=standing.state == "finished")

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
        said: Sequence[bytes],
        charges: Sequence[Charge],
        keep: bool = True,
    ) -> None:
        """Write step `number`: what came, what will be said, and what it costs. Send only after this has returned.

        On return all of it is on disk; after any error none of it is. With `keep=False` only digests are stored.

        - `BudgetExceeded` if it does not fit in what is reserved, or in the life given when joining.
        - `LedgerError` if this is not the next step (another process has gone on), the study is not open, or the disk refuses.
        """
        # Digests of large messages take time. Other processes wait while the ledger is locked, so compute them first.
        digests = self.mark(came), [self.mark(data) for data in said]
        with self._file.writing() as tables:
            # Read inside the transaction that writes: no other process can charge in between.
            dataset, known = _open(table.standing_of(tables, study), study)
            if number != known.entries:
                raise LedgerError(
                    f"study {study[:16]} is at step {known.entries}, not {number}: another process has gone on with it; "
                    "nothing was written and nothing may leave"
                )
            standing = known.charged(charges, said=bool(said))
            # The dataset's sums do not change with a commit: the reserve was counted in full when the study was joined.
            together = table.together_of(tables, dataset)
            if charges and not together.within(standing.life):
                raise BudgetExceeded(
                    f"the studies of dataset {dataset!r} together exceed the total budget this study was joined under. Join "
                    "it again under the current policy. Nothing was written and nothing may leave"
                )
            body = {
                "number": number,
                "charges": [[charge.label, float(charge.mu)] for charge in charges],
                "came": digests[0],
                "said": digests[1],
                "kept": keep,
                "standing": standing.values(),
                "together": together.values(),
            }
            table.append(tables, "commit", body, study=study, dataset=dataset)
            if keep:
                rows = ((study, number, place, data) for place, data in enumerate((came, *said)))
                tables.executemany("INSERT INTO stored VALUES (?, ?, ?, ?)", rows)

    def prune(self, study: str, before: int) -> None:
        """Drop the stored bytes of the steps before this number; digests and charges stay in the entries."""
        with self._file.writing() as tables:
            _open(table.standing_of(tables, study), study)
            tables.execute("DELETE FROM stored WHERE study = ? AND number < ?", (study, before))
            # Remembered, so that `verify` can tell bytes that were dropped from bytes that somebody removed.
            tables.execute("UPDATE studies SET pruned = max(pruned, ?) WHERE study = ?", (before, study))

    def finish(self, study: str) -> None:
        """End the study: what it has not spent is free again, and its private randomness and stored bytes are wiped."""
        self._end(study, "finish", "finished")

    def abandon(self, study: str) -> None:
        """Give the study up: as `finish`, and it can never be joined or charged again."""
        self._end(study, "abandon", "abandoned")

    def note(self, study: str, words: str) -> None:
        """An entry for people about a study, joined or not: what was refused, who consented."""
        require_study(study)
        # Words may come from another party. Control characters could rewrite the terminal of those who read them.
        plain = "".join(letter if letter.isprintable() else " " for letter in words)[:_LONGEST_NOTE]
        with self._file.writing() as tables:
            row = tables.execute("SELECT dataset FROM studies WHERE study = ?", (study,)).fetchone()
            table.append(tables, "note", {"words": plain}, study=study, dataset=None if row is None else row[0])

    def datasets(self) -> tuple[DatasetState, ...]:
        """Every dataset that was declared or joined, by name, with what its studies have spent and reserved."""
        found = []
        with self._file.looking() as tables:
            names = tables.execute("SELECT dataset FROM prints UNION SELECT dataset FROM studies ORDER BY 1").fetchall()
            for (name,) in names:
                last = table.last_of_dataset(tables, name, joins=True)
                life = None if last is None else table.standing_in(last).life
                found.append(DatasetState.of(name, list(table.standings_of(tables, name).values()), life))
        return tuple(found)

    def studies(self) -> tuple[StudyReplay, ...]:
        """Every study that was joined, in that order."""
        with self._file.looking() as tables:
            names = tables.execute("SELECT study FROM studies ORDER BY joined").fetchall()
            return tuple(table.study_of(tables, study) for (study,) in names)

    @property
    def head(self) -> str:
        """The hash of the last entry. Noted elsewhere, it proves later that no entry up to it was changed or removed."""
        with self._file.looking() as tables:
            return table.last_entry(tables).hash

    def entries(self) -> Iterator[Entry]:
        """Every entry, in order, unchecked; `verify` checks them."""
        number = 0
        while True:
            # Short transactions, so that a slow reader blocks nobody. Entries are only ever added, so none is missed.
            with self._file.looking() as tables:
                found = table.entries_after(tables, number, _PER_LOOK)
            if not found:
                return
            yield from found
            number = found[-1].number

    def verify(self, head: str | None = None) -> Entry:
        """Check everything: each hash, each balance added up anew, and stored bytes against their digests.

        Returns the last entry: its number says how many there are, and its hash is the head to note down. A `head` noted
        earlier must be the hash of some entry. The `LedgerError` names the first entry that is wrong. Someone who can
        write to the file can rewrite all of it, and an old copy that is put back is consistent in itself. Only a `head`
        kept elsewhere reveals either.
        """
        with self._file.looking() as tables:
            table.require_sound(tables)
            replay = Replay()
            last = replay.run(table.all_entries(tables), head=head)
            table.require_stored(tables, replay)
            return last

    def _join(self, account: StudyBudget, standing: Standing, tables: table.Tables) -> Opened:
        self._require_own_name(tables, account.dataset)
        others = table.standings_of(tables, account.dataset)
        # Checked and reserved in one transaction. Of two studies that ask for the last of a budget, one is refused.
        require_life(list(others.values()), standing, dataset=account.dataset, title=account.title)
        whose, body = (account.study, account.dataset), {"account": account.values()}
        entry = table.append_balance(tables, "join", whose, standing, others, body)
        # Drawn once for the study: keys and masks are derived from it again after a crash.
        secret = secrets.token_bytes(32)
        row = (*whose, entry.number, secret)
        tables.execute("INSERT INTO studies (study, dataset, joined, secret) VALUES (?, ?, ?, ?)", row)
        return Opened(True, secret, (), finished=False)

    def _require_own_name(self, tables: table.Tables, dataset: str) -> None:
        """Refuse a name that looks like another one: it would give the same people a second budget."""
        for (name,) in tables.execute("SELECT dataset FROM prints UNION SELECT dataset FROM studies").fetchall():
            if name != dataset and alike(name, dataset):
                raise LedgerError(
                    f"dataset {dataset!r} looks the same as {name!r}, which is in this ledger. Use {name!r}, or a name that "
                    "differs visibly"
                )

    def _hold_to(self, life: Budget | None, account: StudyBudget, known: Standing, tables: table.Tables) -> None:
        """Bind the study to `life`, which may have changed with the policy since it was joined."""
        standing, others = replace(known, life=life), table.standings_of(tables, account.dataset)
        # Its own reserve must not count twice.
        rest = [found for study, found in others.items() if study != account.study]
        require_life(rest, standing, dataset=account.dataset, title=account.title)
        if life != known.life:
            table.append_balance(tables, "life", (account.study, account.dataset), standing, others, {})

    def _end(self, study: str, kind: str, state: State) -> None:
        with self._file.writing() as tables:
            dataset, known = _open(table.standing_of(tables, study), study)
            others = table.standings_of(tables, dataset)
            table.append_balance(tables, kind, (study, dataset), known.closed(state), others, {})
            # With the secret somebody could unmask what was sent, so it does not outlive the study.
            tables.execute("UPDATE studies SET secret = NULL WHERE study = ?", (study,))
            tables.execute("DELETE FROM stored WHERE study = ?", (study,))
        # The secret and the bytes are still in the write-ahead log until it is truncated.
        self._file.wipe_log()


def _open(known: tuple[str, Standing] | None, study: str) -> tuple[str, Standing]:
    require_study(study)
    if known is None:
        raise LedgerError(f"study {study[:16]} was never joined; nothing was written and nothing may leave")
    if known[1].state != "open":
        raise LedgerError(f"study {study[:16]} is {known[1].state}; nothing was written and nothing may leave")
    return known


@final
class _Steps(Sequence[StudyStep]):
    """The steps of a study, read from the file one at a time each time they are gone through."""

    def __init__(self, file: LedgerFile, study: str, count: int) -> None:
        self._file, self._study, self._count = file, study, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[StudyStep]:
        with self._file.looking() as tables:
            # No more than there were when the study was opened.
            yield from islice(table.steps_of(tables, self._study), self._count)

    @overload
    def __getitem__(self, place: int) -> StudyStep: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[StudyStep, ...]: ...

    def __getitem__(self, place: int | slice) -> StudyStep | tuple[StudyStep, ...]:
        if isinstance(place, slice):
            return tuple(self[at] for at in range(*place.indices(self._count)))
        at = range(self._count)[place]
        return next(islice(self, at, None))
