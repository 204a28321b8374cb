"""`FileStore`: keeps a `Ledger` in a file, so that Python, the command line and studies draw on one budget.

A reserve is a study of its own there: joined before the first number is computed, charged before noise is drawn, finished when
its fit ends and abandoned where it fails. States of a reserve, and what counts for the dataset meanwhile:

    | what happens to the process  | in the file        | counts                                              |
    |------------------------------|--------------------|-----------------------------------------------------|
    | dies before `reserve` returns| nothing, or open   | nothing, or all of it                               |
    | and before a lazy one charges| nothing            | nothing                                             |
    | dies before a charge returns | open               | all of it                                           |
    | dies after a charge          | open, with charge  | all of it; at most the charges have been released   |
    | ends the fit, or drops it    | closed             | the charges                                         |

What was released is never more than what counts, wherever it dies. `eigenveil ledger close` frees the rest of a reserve that a
killed process left.

A stream is charged whole with its first slot, because its slots are known to its own process alone, and must survive a restart.
"""

import atexit
import json
import math
import os
import shlex
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, final

from eigenveil.core.accounting import Budget, ExactSum, epsilon_of, fits, largest_epsilon, mu_for
from eigenveil.core.ledger import Account, Charge, Committed, Ledger, Reserve, Slot
from eigenveil.core.threads import this_process
from eigenveil.core.unit import PrivacyUnit
from eigenveil.data.archive import whole_file
from eigenveil.errors import BudgetExceeded, Words, in_python, is_visible, require
from eigenveil.ledger.budget import limit_of, require_fixed, require_words
from eigenveil.ledger.durable import DatasetState, DurableLedger, Entry, LedgerError, StudyBudget
from eigenveil.ledger.file import locked
from eigenveil.ledger.replay import canonical, today

__all__ = ["WHOLE_STREAM", "FileStore", "Ledger", "LedgerError", "NotedHead", "note_head", "require_noted", "with_head"]

# An account must allow something. The square of this is no number that could matter, and no zero.
_LEAST_MU: Final = 1e-150
# Where a reserve is so small that any epsilon would do: the entry says one.
_LEAST_EPSILON: Final = 1e-12
# The title of the study without a charge that fixes a total budget.
_FIXED: Final = "total budget"
_LONGEST_TITLE: Final = 120
WHOLE_STREAM: Final = "the whole budget of the stream"
_NOTHING: Final = ExactSum()


@final
class _FileAccount:
    """One reserve in the file. Changes in place. The process that made it spends from it, and no fork of that."""

    def __init__(
        self,
        store: "FileStore",
        terms: StudyBudget,
        *,
        steps: int = 0,
        spent: ExactSum = _NOTHING,
        is_open: bool = True,
        is_joined: bool = True,
    ) -> None:
        self._store, self.name, self._terms = store, terms.study, terms
        self._steps, self._mu, self._spent, self._unit = steps, terms.mu, spent, terms.unit
        # Whether it is in the file. A lazy reserve gets there with its first charge.
        self._is_joined = is_joined
        self._is_open = is_open
        # Whether the charge that uses it up ends it, in the same write: there is nothing to give back. Not if more will be noted.
        self.ends_itself = True
        if is_open:
            store.held[self.name] = self
        self._process = this_process()

    @property
    def is_paid(self) -> bool:
        """Whether all of it is charged."""
        return fits(self._mu * self._mu, math.sqrt(self._spent.value))

    def charge(self, charge: Charge, *, slot: Slot | None = None) -> None:
        """On the disk before this returns."""
        if slot is not None:
            if self.is_paid:
                return
            charge = Charge(WHOLE_STREAM, math.sqrt(max(self._mu * self._mu - self._spent.value, 0.0)))
        if not self._is_open:
            # It was used up, and this is within the rounding that a reserve may be exceeded by. It has to fit in the total.
            self._store.charge(charge, unit=self._unit)
            return
        charge = Charge(_plain(charge.label), charge.mu)
        spent = self._spent.square(charge.mu)
        ends = self.ends_itself and fits(self._mu * self._mu, math.sqrt(spent.value))
        if self._is_joined:
            self._store.lasting().commit(self.name, self._steps, came=b"", replies=[], charges=[charge], keep=False, finish=ends)
        else:
            self._store.begin(self._terms, charge, finish=ends)
            self._is_joined = True
        self._steps, self._spent = self._steps + 1, spent
        if ends:
            self._ended()

    def said(self, data: bytes) -> None:
        """Note what left: the entry has a mark of it, by which its owner shows later what the charges were for."""
        self._store.lasting().commit(self.name, self._steps, came=b"", replies=[data], charges=[], keep=False)
        self._steps += 1

    def close(self, *, failed: bool) -> None:
        """What was not spent is free again."""
        if not self._is_open or this_process() != self._process:
            return
        self._ended()
        try:
            lasting = self._store.lasting()
            study = lasting.study(self.name)
            # It may have been closed with the command meanwhile, or a lazy one never got there.
            if study is not None and study.state == "open":
                (lasting.abandon if failed else lasting.finish)(self.name)
        except LedgerError as error:
            # What was paid for is there, and must not be lost over this. It counts in full, which is safe.
            warnings.warn(
                f"what {self.name[:16]} had reserved and not spent stays reserved: {error}. Free it later with: eigenveil ledger "
                f"close {shlex.quote(str(self._store.path))} {self.name[:16]}",
                UserWarning,
                stacklevel=2,
            )

    def _ended(self) -> None:
        self._is_open = False
        self._store.held.pop(self.name, None)


@final
class FileStore:
    """The budget of one dataset in a ledger file. Changes in place: it opens the file when it is first needed, and keeps it open.

    `spelling` is how the caller writes a parameter, for what to type next.
    """

    def __init__(self, path: Path, dataset: str, life: Budget, first: str, spelling: Words = in_python) -> None:
        self.path, self.dataset, self.life = path, dataset, life
        # The hash of its first entry: another ledger in its place is noticed.
        self._first, self.spelling = first, spelling
        self._opened: DurableLedger | None = None
        self._lock = threading.RLock()
        # Reserves of this process that are open, and the dropped ones, which are not referred to any more.
        self.held: dict[str, _FileAccount] = {}
        self._dropped: deque[_FileAccount] = deque()
        _STORES.add(self)

    @classmethod
    def over(cls, lasting: DurableLedger, dataset: str, life: Budget, spelling: Words = in_python) -> "FileStore":
        """The store of a ledger that is open already."""
        store = cls(lasting.path, dataset, life, lasting.first, spelling)
        store._opened = lasting
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        return FileStore, (self.path, self.dataset, self.life, self._first, self.spelling)

    def lasting(self) -> DurableLedger:
        """The open ledger."""
        with self._lock:
            if self._opened is None:
                opened = DurableLedger.open(self.path, create=False)
                if opened.first != self._first:
                    opened.close()
                    raise LedgerError(
                        f"{self.path} is another ledger than the one that was opened here before. Put that one back, or "
                        "open this one with Ledger.open"
                    )
                self._opened = opened
            # Never closed where they are dropped: that can be in the middle of any call, in any thread.
            while self._dropped:
                self._dropped.popleft().close(failed=True)
            return self._opened

    def state(self) -> DatasetState:
        return self.lasting().dataset(self.dataset)

    @property
    def limit(self) -> float:
        """What masks of studies may fail with is gone from delta."""
        return limit_of(self.life, self.state().extra_delta)

    @property
    def unit(self) -> PrivacyUnit | None:
        return self.state().unit

    @property
    def charges(self) -> tuple[Charge, ...]:
        return self.lasting().charges(self.dataset)

    def committed(self) -> Committed:
        """An open study counts with all that it may spend."""
        state = self.state()
        if math.isinf(state.counted):
            return Committed(math.inf, 0.0)
        spent = state.spent * state.spent
        return Committed(spent, max(0.0, state.counted * state.counted - spent) if state.open else 0.0)

    def require_affordable(self, mu: float, *, label: str, unit: PrivacyUnit | None, budget: Budget | None = None) -> None:
        self.require(self._terms(mu, label, unit, budget))

    def require(self, terms: StudyBudget) -> None:
        """Refuse a study that `join` would refuse."""
        with self._advising(terms):
            self.lasting().require_affordable(terms, life=self.life)

    def reserve(self, reserve: Reserve, *, budget: Budget | None = None, name: str | None = None, lazy: bool = False) -> Account:
        """Joined in one transaction: of two processes that ask for the last of a budget, one is refused."""
        account = None if name is None else self._known(name)
        if account is None:
            terms = self._terms(math.sqrt(reserve.left), reserve.label, reserve.unit, budget)
            if lazy:
                self.require(terms)
            account = _FileAccount(self, terms, is_joined=False) if lazy else self.join(terms)
        # Deleting a reserve gives it back, as in memory.
        weakref.finalize(reserve, self._dropped.append, account).atexit = False
        return account

    def join(self, terms: StudyBudget) -> _FileAccount:
        with self._advising(terms):
            self.lasting().join(terms, life=self.life, fixed=True)
        return _FileAccount(self, terms)

    def charge(self, charge: Charge, *, unit: PrivacyUnit | None) -> None:
        plain = Charge(_plain(charge.label), charge.mu)
        self.begin(self._terms(charge.mu, charge.label, unit, None), plain, finish=True)

    def begin(self, terms: StudyBudget, charge: Charge, *, finish: bool) -> None:
        """A new study in the file and its first charge, in one transaction; `finish` says that it is the last one, too."""
        with self._advising(terms):
            self.lasting().charge(terms, [charge], life=self.life, finish=finish)

    @contextmanager
    def _advising(self, terms: StudyBudget) -> Iterator[None]:
        """Add to a refusal the largest epsilon that is left."""
        try:
            yield
        except BudgetExceeded as error:
            lasting = self.lasting()
            state = lasting.dataset(terms.dataset)
            left = math.sqrt(max(limit_of(self.life, state.extra_delta) ** 2 - state.counted**2, 0.0))
            assert terms.delta is not None
            epsilon = largest_epsilon(left, terms.delta)
            enough = "What is left is too little for another release"
            if epsilon > 0:
                with suppress(BudgetExceeded):
                    # Tried, because nothing else says exactly what the ledger accepts.
                    smaller = replace(terms, epsilon=epsilon, mu=mu_for(epsilon, terms.delta))
                    lasting.require_affordable(smaller, life=self.life)
                    enough = f"What is left is enough for {self.spelling('epsilon', epsilon)}"
            if state.open:
                command = f"eigenveil ledger close {shlex.quote(str(self.path))} NAME"
                enough = f"If a process was killed, `{command}` frees what it had reserved. {enough}"
            raise BudgetExceeded(f"{error}. {enough}") from None

    def knows(self, name: str) -> bool:
        study = self.lasting().study(name)
        return study is not None and study.account.dataset == self.dataset

    def again(self) -> tuple[Any, ...]:
        return self.life, self

    def words(self) -> str:
        return f"{str(self.path)!r}, dataset={self.dataset!r}"

    def _known(self, name: str) -> _FileAccount | None:
        """The account of an old reserve; None if it is closed and not paid, so that the rest must be reserved again."""
        study = self.lasting().study(name)
        require(
            study is not None and study.account.dataset == self.dataset,
            f"{self.path} has no reserve of that name for {self.dataset!r}: it is another ledger",
        )
        assert study is not None
        is_open = study.state == "open"
        account = _FileAccount(self, study.account, steps=study.steps, spent=study.standing.exact, is_open=is_open)
        return account if is_open or account.is_paid else None

    def _terms(self, mu: float, label: str, unit: PrivacyUnit | None, budget: Budget | None) -> StudyBudget:
        cost = budget
        if cost is None or cost.mu != mu:
            delta = self.life.delta if budget is None else budget.delta
            cost = Budget(max(epsilon_of(mu, delta), _LEAST_EPSILON), delta)
        # The title says what released it, and that it was no command.
        text = label.removeprefix("this ").removeprefix("these ")[:_LONGEST_TITLE].strip()
        title = f"{text}, Python" if text and is_visible(text) else "release, Python"
        return StudyBudget.of_release(self.dataset, title=title, cost=cost, unit=unit, mu=max(mu, _LEAST_MU))


def open_ledger(
    path: str | PathLike[str],
    dataset: str | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: PrivacyUnit | None = None,
) -> Ledger:
    """The budget of a dataset in the ledger file at `path`, which lasts, and from which several processes may spend at once.

    It is the file of `eigenveil fit --ledger` and of a site, and `eigenveil ledger` shows, verifies, exports and closes it.
    It is made if there is none, readable by its owner only, and must be on a local disk. Every charge is on the disk before
    noise is drawn for it.

    Parameters
    ----------
    path : str or path
        The file, such as "people.ledger".
    dataset : str, default None
        Your name for the people in the tables. Their budget belongs to this name. Not needed if the file has only one.
    epsilon, delta : float, default None
        What all releases about these people may cost together. Given at the first use, and fixed for good; later calls may
        leave them out.
    unit : PrivacyUnit, default None
        What every charge protects, for charges by hand. Without it the first fit says so.

    Returns
    -------
    Ledger
        For `ledger=` of any number of estimators.

    Raises
    ------
    ValueError
        If something is missing or differs from what the file has. Nothing was written.
    LedgerError
        If the file is no ledger, is damaged, or cannot be read and written.

    Examples
    --------
    >>> import tempfile
    >>> from eigenveil import Ledger
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger.open(f"{folder.name}/people.ledger", dataset="patients", epsilon=4, delta=1e-5)
    >>> ledger.epsilon(), ledger.left()
    (0.0, 4.0)
    >>> folder.cleanup()
    """
    # Whatever is refused has written nothing, and made no file.
    require(isinstance(path, str | PathLike), f"path must be the name of a file, such as 'people.ledger', got {path!r}")
    require(dataset is None or isinstance(dataset, str), f"dataset must be text, got {dataset!r}")
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        good = value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))
        require(good, f"{name} must be a finite number, got {value!r}")
    where = Path(path)
    if dataset is not None:
        require_words("dataset", dataset)
    explicit = None
    if epsilon is not None and delta is not None:
        explicit = Budget(float(epsilon), float(delta))
    if not where.exists():
        require(
            dataset is not None and explicit is not None,
            f"{where} would be a new ledger. Give dataset=, your name for the people in the tables, and epsilon= and delta=, "
            f'what all releases about them may cost together, for good: such as Ledger.open("{where.name}", '
            'dataset="patients", epsilon=4, delta=1e-5)',
        )
    lasting = DurableLedger.open(where)
    try:
        life, name, is_new = _settled(lasting, dataset, epsilon, delta, explicit)
        if is_new:
            # Kept at once: later calls need not say it again, and cannot change it.
            terms = StudyBudget.of_release(name, title=_FIXED, cost=life, unit=None, mu=_LEAST_MU)
            lasting.charge(terms, [], life=life)
        return Ledger.kept(life, FileStore.over(lasting, name, life), unit=unit)
    except BaseException:
        lasting.close()
        raise


def _settled(
    lasting: DurableLedger, dataset: str | None, epsilon: float | None, delta: float | None, explicit: Budget | None
) -> tuple[Budget, str, bool]:
    """The total budget and the name of the dataset that is opened, and whether the ledger does not have them yet."""
    states = {state.name: state for state in lasting.datasets()}
    contents = f"{lasting.path} has {', '.join(map(repr, states))}" if states else f"{lasting.path} has none yet"
    if dataset is None:
        require(
            len(states) == 1,
            f"dataset is missing: your name for the people in the tables; {contents}. Give the same people the same name",
        )
        (dataset,) = states
    existing = states[dataset].life if dataset in states else None
    if existing is not None:
        wanted = Budget(existing.epsilon if epsilon is None else epsilon, existing.delta if delta is None else delta)
        require_fixed(existing, wanted, dataset)
        return existing, dataset, False
    lasting.require_own_name(dataset)
    if explicit is None:
        lacks = " and ".join(name for name, value in (("epsilon", epsilon), ("delta", delta)) if value is None)
        raise ValueError(
            f"{lacks} {'is' if ' ' not in lacks else 'are'} missing: what all releases about {dataset!r} may cost together, for "
            f"good. {contents}. For other people, give both once, such as epsilon=4, delta=1e-5"
        )
    if others := [name for name in states if name != dataset]:
        warnings.warn(
            f"{dataset!r} gets a budget of its own in {lasting.path}, which has {', '.join(map(repr, others))} already. If "
            "these are the same people, what they cost under both names adds up: open the ledger with the name that it has",
            UserWarning,
            stacklevel=3,
        )
    return explicit, dataset, True


def _plain(label: str) -> str:
    # Entries are shown in terminals, and control characters could rewrite one.
    return "".join(letter if letter.isprintable() else " " for letter in label)


_STORES: "weakref.WeakSet[FileStore]" = weakref.WeakSet()


def _after_fork() -> None:
    """A child opens the file itself. The reserves of its parent are none of its own."""
    for store in _STORES:
        store._lock, store._opened = threading.RLock(), None
        store.held, store._dropped = {}, deque()


def _at_exit() -> None:
    """Give back what this process leaves open. If it is killed, `eigenveil ledger close` does."""
    for store in list(_STORES):
        for account in list(store.held.values()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                account.close(failed=True)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)

atexit.register(_at_exit)

Ledger.open = staticmethod(open_ledger)

_FORMAT: Final = "eigenveil-head"
_VERSION: Final = 1
_LARGEST: Final = 4096


@final
@dataclass(frozen=True, slots=True)
class NotedHead:
    """A head as it was noted: the hash of entry number `entries`, and the day of that.

    >>> NotedHead("0" * 64, 7, "2026-01-01").text()[:39]
    '{"entries":7,"format":"eigenveil-head",'
    """

    head: str
    entries: int
    time: str

    @classmethod
    def of(cls, last: Entry) -> "NotedHead":
        """The head of a ledger with this last entry, noted now."""
        return cls(last.hash, last.number, today())

    def text(self) -> str:
        facts = {"head": self.head, "entries": self.entries, "time": self.time}
        return canonical({"format": _FORMAT, "version": _VERSION, **facts}) + "\n"

    @classmethod
    def read(cls, path: Path) -> "NotedHead":
        """The head in a file; `LedgerError` if it has none."""
        try:
            with path.open("rb") as file:
                record: Any = json.loads(file.read(_LARGEST + 1)[:_LARGEST])
        except OSError as error:
            raise LedgerError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError):
            record = None
        match record:
            case {"format": kind, "version": version, "head": str(head), "entries": int(entries), "time": str(time)}:
                right = (kind, version) == (_FORMAT, _VERSION) and len(head) == 64
                if right and set(head) <= set("0123456789abcdef") and 0 < entries < 1 << 62:
                    return cls(head, entries, time)
        raise LedgerError(f"{path} is not the head of a ledger. `eigenveil ledger head LEDGER --to {path}` writes one")


def require_noted(ledger: DurableLedger, path: Path) -> NotedHead:
    """The head in the file at `path`, which the ledger must have; otherwise `LedgerError`."""
    noted = NotedHead.read(path)
    if not ledger.has(noted.entries, noted.head):
        raise LedgerError(
            f"{ledger.path} does not have the head in {path}, which was noted on {noted.time} for entry {noted.entries}. "
            "Charges may have been forgotten: an older copy was put back, entries were rewritten, or it is another ledger. "
            "Nothing was written and nothing may leave"
        )
    return noted


def note_head(ledger: DurableLedger, path: Path) -> NotedHead:
    """Write the head of the ledger to the file at `path`, whole or not at all."""
    noted = NotedHead.of(ledger.last)
    try:
        with whole_file(path) as temporary:
            temporary.write_text(noted.text(), encoding="ascii")
            # It is public: auditors may read it.
            temporary.chmod(0o644)
    except (OSError, ValueError) as error:
        # A folder that is gone, such as one on another system, is a `ValueError`.
        why = getattr(error, "strerror", None) or error
        raise LedgerError(
            f"the head of the ledger cannot be written to {path}: {why}. Nothing may leave before it is noted"
        ) from error
    return noted


@contextmanager
def with_head(
    ledger: Path, head: Path | None, opened: Callable[[Path], DurableLedger], *, writes: bool
) -> Iterator[DurableLedger]:
    """The ledger, open. If a file `head` is given, the ledger must have the head in it; a new ledger gets a new file.

    If it `writes`, the head is noted at once, and again with each write before it returns. What left a site was written before
    that, so no copy of the ledger without it has the head, even if the site was killed.
    """
    exists, noted = ledger.exists(), head is not None and head.exists()
    if exists and head is not None and not noted:
        raise LedgerError(
            f"{head} does not exist. If it did before, find out where it went. If this is the first time, run: eigenveil ledger "
            f"head {ledger} --to {head}"
        )
    # A ledger that was removed would be made anew, without its charges.
    if noted and not exists:
        raise LedgerError(f"{ledger} does not exist, and {head} has the head of a ledger in it. Put the ledger back")
    with opened(ledger) as lasting:
        if head is not None and noted:
            require_noted(lasting, head)
        if head is not None and writes:
            # At once: a place that cannot be written is found before anything is charged.
            _note_alone(lasting, head)
            lasting.after_writing(lambda: _note_alone(lasting, head))
        yield lasting


def _note_alone(ledger: DurableLedger, path: Path) -> None:
    # Two processes of a site may write at once, and the older head must not be written last.
    with locked(ledger.path, "head"):
        note_head(ledger, path)
