"""What a ledger says of its studies and datasets, as values; and how both are worked out from its entries.

A `Replay` goes through the entries from the first one on, and adds up every charge. Every figure and every decision of a
ledger comes from one, so no index, table or setting of the database can change a figure.
"""

import hashlib
import hmac
import json
import math
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, final

from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import PrivacyUnit
from eigenveil.errors import BudgetExceeded, EigenveilError, require
from eigenveil.ledger.budget import OtherStudies, RunningTotal, State, StudyBalance, StudyBudget

__all__ = [
    "BUDGET_KINDS",
    "FIRST",
    "DatasetState",
    "Entry",
    "LedgerError",
    "Mark",
    "Replay",
    "StudyReplay",
    "canonical",
    "chained",
    "charges_in",
    "entry_from",
    "is_mark_of",
    "mark_of",
    "moment",
    "read_export",
    "today",
    "written_export",
]

# The hash that the first entry is chained to.
FIRST: Final = "0" * 64
_FORMAT: Final = "eigenveil-ledger"
_VERSION: Final = 2
# All of these are under the hash, by these names.
_FIELDS: Final = ("number", "time", "kind", "study", "dataset", "body")


class LedgerError(EigenveilError):
    """The ledger cannot do this: it is another file or version, damaged, in use, or the disk is full. Nothing was written."""


def canonical(value: Any) -> str:
    """The canonical JSON of `value`: keys in order, no spaces, ASCII, every number in full.

    >>> canonical({"mu": 0.1, "label": "mean"})
    '{"label":"mean","mu":0.1}'
    """
    # One value, one text: a hash must not depend on spaces, order of keys or the spelling of a character.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def mark_of(key: bytes, data: bytes) -> dict[str, Any]:
    """What an entry says of bytes: nothing, to those without the `key`, which stays in the ledger; see `Mark`."""
    mark = Mark(key, secrets.token_hex(16))
    mark.add(data)
    return mark.value


def is_mark_of(key: bytes, data: bytes, value: Any) -> bool:
    """Whether an entry has this `value` as its mark of `data`."""
    mark = Mark.like(key, value)
    mark.add(data)
    return bool(mark.value == value)


@final
class Mark:
    """HMAC-SHA256 of bytes that come in pieces, under a key that is made from the ledger's own and a `nonce`. Changes in place.

    Entries may be shown to others. A plain digest of a raw part would let them check a guess of that part, and without a nonce
    equal parts, such as of empty slots, would have equal marks. The number of bytes is no part of it: a part that was never
    sent may have a length that depends on rows.
    """

    def __init__(self, key: bytes, nonce: str) -> None:
        self._nonce = nonce
        self._hmac = hmac.new(hmac.digest(key, b"mark" + nonce.encode(errors="replace"), "sha256"), digestmod="sha256")

    @classmethod
    def like(cls, key: bytes, value: Any) -> "Mark":
        """One with the nonce of the mark in an entry, to be compared with it."""
        nonce = value.get("nonce") if isinstance(value, dict) else None
        return cls(key, nonce if isinstance(nonce, str) else "")

    def add(self, piece: bytes) -> None:
        self._hmac.update(piece)

    @property
    def value(self) -> dict[str, Any]:
        """What an entry says of all of them."""
        return {"hmac": self._hmac.hexdigest(), "nonce": self._nonce}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry: its `number` from 1, its time and kind, the study and dataset it is about, and its `body`.

    `time` is for people, and only the day: seconds would say how long work on rows took. Nothing depends on it: a clock that
    jumps changes no order and no budget.

    >>> first = Entry.after(None, kind="note", body={"words": "hello"})
    >>> second = Entry.after(first, kind="note", body={"words": "again"})
    >>> second.number, second.hash == second.sealed(first.hash), second.hash == second.sealed(FIRST)
    (2, True, False)
    """

    number: int
    time: str
    kind: str
    study: str | None
    dataset: str | None
    body: Mapping[str, Any]
    hash: str

    @classmethod
    def after(
        cls, previous: "Entry | None", *, kind: str, body: Mapping[str, Any], study: str | None = None, dataset: str | None = None
    ) -> "Entry":
        """The entry that follows `previous`, sealed."""
        number, before = (1, FIRST) if previous is None else (previous.number + 1, previous.hash)
        unsealed = cls(number=number, time=today(), kind=kind, study=study, dataset=dataset, body=body, hash="")
        return replace(unsealed, hash=unsealed.sealed(before))

    def sealed(self, previous: str) -> str:
        """The hash this entry must have after an entry with the hash `previous`: SHA-256(previous || canonical content).

        Both are ASCII text, the hash in 64 hexadecimal digits, so any tool can compute it again.
        """
        rest = self.number, self.time, self.kind, self.study, self.dataset
        return seal(previous, canonical(self.body), *rest)

    def public(self) -> dict[str, Any]:
        """The entry as plain values, for an export."""
        return {**{name: getattr(self, name) for name in _FIELDS}, "hash": self.hash}


def seal(previous: str, body: str, number: int, time: str, kind: str, study: str | None, dataset: str | None) -> str:
    """The hash of an entry from its parts, with the `body` as the canonical text that is stored."""
    rest = canonical({"dataset": dataset, "kind": kind, "number": number, "study": study, "time": time})
    # Keys are sorted and "body" comes first, so its text can be put in as it is stored, without parsing it.
    return hashlib.sha256(f'{previous}{{"body":{body},{rest[1:]}'.encode()).hexdigest()


def chained(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The same entries; `LedgerError` at the first whose number or hash is not the one it must have."""
    before = FIRST
    for number, entry in enumerate(entries, start=1):
        if entry.number != number:
            raise LedgerError(f"entry {number} is missing: entry {entry.number} is in its place")
        if entry.hash != entry.sealed(before):
            raise LedgerError(f"entry {number} ({entry.kind}) was changed, or one before it: its hash does not follow")
        before = entry.hash
        yield entry


def written_export(entries: Iterable[Entry]) -> Iterator[str]:
    """An export, text by text: one JSON object for each entry, and a last one with the head. Public facts only."""
    count, head = 0, FIRST
    for entry in entries:
        count, head = entry.number, entry.hash
        yield canonical(entry.public()) + "\n"
    yield canonical({"format": _FORMAT, "version": _VERSION, "lines": count, "head": head}) + "\n"


def read_export(texts: Iterable[str]) -> Iterator[Entry]:
    """The entries of an export, which must end with its head; they are not checked against each other here."""
    count, head = 0, FIRST
    ended = False
    for text in texts:
        if ended:
            raise LedgerError("the export has more after its head, which must be last")
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise LedgerError(f"line {count + 1} of the export is not JSON: it was changed, or this is not an export") from None
        # The last line states how many entries there must be, so a truncated export is noticed.
        if isinstance(record, dict) and record.get("format") == _FORMAT:
            ended = True
            _require_version(record.get("version"))
            if (record.get("lines"), record.get("head")) != (count, head):
                raise LedgerError(f"entries are missing: the export has {count}, and its last line says otherwise")
            continue
        # An export may come from another organisation, so every field of it is checked.
        entry = entry_from(record, number=count + 1)
        # The first entry says it as well, before anything is found wrong that another version did in another way.
        if count == 0 and entry.kind == "book":
            _require_version(entry.body.get("version"))
        count, head = entry.number, entry.hash
        yield entry
    if not ended:
        raise LedgerError(f"the export has no head: it was truncated after entry {count}, or it is not an export")


def _require_version(version: Any) -> None:
    if version != _VERSION:
        raise LedgerError(
            f"the export is of version {version!r}, and this program reads {_VERSION}. Check it with the version of Eigenveil "
            "that wrote it"
        )


def today() -> str:
    """The day, in UTC."""
    return moment().partition("T")[0]


def moment() -> str:
    """The time to the second, in UTC, for the site's own people."""
    try:
        return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        # A clock that is off by ages must not lose a charge.
        return "unknown"


def entry_from(record: Any, *, number: int) -> Entry:
    """An entry from plain values; `LedgerError` that names `number` if they are not one."""
    texts = ("time", "kind", "hash")
    try:
        entry = Entry(**record)
        well = isinstance(entry.number, int) and isinstance(entry.body, dict)
        well = well and all(isinstance(getattr(entry, name), str) for name in texts)
        well = well and all(value is None or isinstance(value, str) for value in (entry.study, entry.dataset))
        # Values that cannot be written as canonical JSON, such as nan, are refused here too.
        entry.sealed(FIRST)
    except (TypeError, ValueError, RecursionError):
        well = False
    if not well:
        raise LedgerError(f"line {number} of the export is not an entry of a ledger")
    return entry


# The entries that change how a study stands. All others are for people.
BUDGET_KINDS: Final = ("join", "life", "commit", "finish", "abandon")
_ENDS: Final[dict[str, State]] = {"finish": "finished", "abandon": "abandoned"}


@final
@dataclass(frozen=True, slots=True)
class StudyReplay:
    """A study as the ledger has it: its account, the day it was joined, and how it stands. Public facts only."""

    account: StudyBudget
    joined: str
    standing: StudyBalance

    @property
    def state(self) -> State:
        return self.standing.state

    @property
    def spent(self) -> float:
        return self.standing.spent

    @property
    def steps(self) -> int:
        return self.standing.entries


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetState:
    """All studies of a declared dataset together."""

    name: str
    open: int
    closed: int
    spent: float  # The mu of everything released so far.
    reserved: float  # What open studies may spend, including what they have spent.
    counted: float  # What counts in total: the reserve of open studies and what closed ones spent.
    extra_delta: float  # On top, out of delta.
    life: Budget | None  # The total budget that the last study was joined under.
    unit: PrivacyUnit | None = None  # What all of this protects. None if nothing is counted yet.

    @classmethod
    def of(
        cls, name: str, standings: Sequence[StudyBalance], life: Budget | None, units: Collection[PrivacyUnit] = ()
    ) -> "DatasetState":
        still = [standing for standing in standings if standing.state == "open"]
        total = OtherStudies.of(standings)
        return cls(
            name=name,
            open=len(still),
            closed=len(standings) - len(still),
            # The root of a sum of squares: under Gaussian DP the mu of several releases adds up like that.
            spent=math.sqrt(math.fsum(standing.spent**2 for standing in standings)),
            reserved=math.sqrt(OtherStudies.of(still).counts),
            counted=math.sqrt(total.counts),
            extra_delta=total.extra_delta,
            life=life,
            unit=next(iter(units), None),
        )

    @property
    def void(self) -> bool:
        """Whether a study without privacy has ended the guarantee for good."""
        return math.isinf(self.counted)

    def epsilon(self, delta: float, *, mu: float | None = None) -> float:
        """The epsilon of what was spent (or of `mu`) at `delta`; infinite where `extra_delta` leaves nothing of delta."""
        require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
        # Masks may fail with probability `extra_delta` whatever epsilon is, so only the rest of delta is for the noise.
        left = delta - self.extra_delta
        return epsilon_of(self.spent if mu is None else mu, left) if left > 0 else math.inf


@final
class Replay:
    """Balances worked out from entries, one after the other. Changes in place.

    `LedgerError` names the first entry whose hash, number or balance is wrong.
    """

    def __init__(self) -> None:
        self.number, self.hash = 0, FIRST  # Of the last entry that was added.
        self.datasets: dict[str, dict[str, StudyBalance]] = {}  # How every study of a dataset stands.
        self.joined: dict[str, Entry] = {}  # The entry with which a study was joined.
        self.commits: dict[str, list[int]] = {}  # The numbers of the entries with the steps of a study.
        self.lives: dict[str, Budget | None] = {}  # The total budget that a dataset got last.
        self._accounts: dict[str, StudyBudget] = {}
        self._totals: dict[str, RunningTotal] = {}
        # 32 bytes for each entry.
        self._hashes = bytearray()

    def standing(self, study: str) -> StudyBalance | None:
        """How a study stands; None if it was never joined."""
        account = self._accounts.get(study)
        return None if account is None else self.datasets[account.dataset][study]

    def study(self, study: str) -> StudyReplay:
        account = self._accounts[study]
        return StudyReplay(account, self.joined[study].time, self.datasets[account.dataset][study])

    @property
    def studies(self) -> tuple[StudyReplay, ...]:
        """Every study, in the order in which they were joined."""
        return tuple(map(self.study, self._accounts))

    def dataset(self, name: str) -> DatasetState:
        """The sums over the studies of a dataset, which has none if it was only declared."""
        return DatasetState.of(name, [*self.datasets.get(name, {}).values()], self.lives.get(name), self.units(name))

    def together(self, dataset: str) -> OtherStudies:
        return self._totals[dataset].together

    def together_after(self, dataset: str, study: str, standing: StudyBalance) -> OtherStudies:
        total = self._totals.get(dataset) or RunningTotal()
        return total.after(self.datasets.get(dataset, {}).get(study), standing)

    def units(self, dataset: str) -> set[PrivacyUnit]:
        """What the studies of a dataset protect: one unit, or none yet."""
        return self._totals[dataset].units if dataset in self._totals else set()

    def hash_of(self, number: int) -> str | None:
        """The hash of the entry of this number; None if there is none."""
        if not 0 <= number <= self.number:
            return None
        return self._hashes[32 * number - 32 : 32 * number].hex() if number else FIRST

    def run(self, entries: Iterable[Entry], *, head: str | None = None) -> Entry:
        """Check all entries, and that the noted `head` is the hash of one of them. Returns the last."""
        last, has_head = None, head is None
        for entry in chained(entries):
            self.add(entry)
            last = entry
            # Any entry will do, not only the last: the head was noted earlier, and the ledger has grown since.
            has_head = has_head or entry.hash == head
        if last is None:
            raise LedgerError("the ledger has no entries, and the first one is written when it is made")
        if not has_head:
            raise LedgerError(
                f"none of the {last.number} entries has the noted head {str(head)[:80]}. Charges may have been forgotten: "
                "entries were removed or rewritten, an older copy was put back, or the head is of another ledger"
            )
        return last

    def add(self, entry: Entry) -> None:
        """Take the next entry, whose hash follows from the one before it. After a `LedgerError` this replay is of no use."""
        self._balance(entry)
        self.number, self.hash = entry.number, entry.hash
        self._hashes += bytes.fromhex(entry.hash)

    def _balance(self, entry: Entry) -> None:
        if entry.kind not in BUDGET_KINDS:
            return
        try:
            standing = self._stands(entry)
        except BudgetExceeded as error:
            raise LedgerError(f"entry {entry.number} ({entry.kind}) exceeds a budget: {error}") from None
        # The body may be any JSON, so any field may be missing or of another type.
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            raise LedgerError(f"entry {entry.number} ({entry.kind}) does not follow from the entries before it") from None
        assert entry.study is not None
        assert entry.dataset is not None
        # Exact comparison of floats: the ledger computed them in the same order from the same numbers.
        if entry.body.get("standing") != standing.values():
            raise LedgerError(f"entry {entry.number} ({entry.kind}) states a balance that the entries before it do not add up to")
        studies = self.datasets.setdefault(entry.dataset, {})
        total = self._totals.setdefault(entry.dataset, RunningTotal())
        # A commit changes no sum of the dataset, because open studies count with their whole reserve.
        if entry.kind != "commit":
            total.change(studies.get(entry.study), standing)
        studies[entry.study] = standing
        if entry.kind in ("join", "life"):
            self.lives[entry.dataset] = standing.life
        together = total.together
        if entry.body.get("together") != together.values():
            raise LedgerError(f"entry {entry.number} ({entry.kind}) states a sum over the dataset that is not the sum")
        # A commit without charges spends nothing, so it cannot exceed the budget.
        costs = standing.state == "open" and (entry.kind != "commit" or entry.body["charges"])
        if costs and not together.within(standing.life):
            raise LedgerError(f"entry {entry.number} ({entry.kind}) exceeds the total budget of its dataset")

    def _stands(self, entry: Entry) -> StudyBalance:
        """How the study stands after this entry, worked out; an error of the kinds `_add` catches if it cannot be."""
        if entry.study is None or entry.dataset is None:
            raise ValueError("an entry about a budget must name a study and its dataset")
        body, current = entry.body, self.standing(entry.study)
        if entry.kind == "join":
            account = StudyBudget.of(entry.study, entry.dataset, body["account"])
            # The policy is not in the ledger, so the total budget is taken as stated. `_add` checks that it held.
            life = StudyBalance.of(body["standing"]).life
            require(current is None, "joined twice")
            require(account.unit is not None or not account.names_unit, "of no kind")
            standing = StudyBalance.new(account, life)
            # One kind of guarantee for each dataset, or their sum would mean nothing.
            units = {account.unit} if standing.guarantees and account.unit is not None else set()
            require(len(self.units(entry.dataset) | units) <= 1, "of another kind")
            self._accounts[entry.study], self.joined[entry.study] = account, entry
            self.commits[entry.study] = []
            return standing
        # After a study ended no entry may change it, and it cannot move to another dataset's budget.
        if current is None or current.state != "open" or self._accounts[entry.study].dataset != entry.dataset:
            raise ValueError("not an open study of this dataset")
        if entry.kind == "life":
            return replace(current, life=StudyBalance.of(body["standing"]).life)
        if entry.kind in _ENDS:
            return current.closed(_ENDS[entry.kind])
        # Steps are numbered without gaps, so a removed commit cannot hide.
        require(body["number"] == current.entries, "not the next step")
        self.commits[entry.study].append(entry.number)
        return current.charged(charges_in(body), sends=bool(body["said"]))


def charges_in(body: Any) -> tuple[Charge, ...]:
    """The charges that the body of an entry records."""
    return tuple(Charge(str(label), float(mu)) for label, mu in body["charges"])
