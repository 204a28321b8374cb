"""The entries of a ledger: what happened, in order, each sealed with the hash of all before it.

An entry is public. It names studies, charges and marks of what came and what was said, never the bytes nor how many there
are. Changing, removing or moving an entry breaks every hash after it. Rewriting those hashes too changes the last one, the
head: note the head elsewhere, and that is found as well.

**Which entries there are, and what is in them, does not depend on rows, but through what was released.** Proof. Every entry is
written by a call of `DurableLedger`, and no caller looks at rows, nor at anything kept of them, to decide on a call: fingerprints
of rows write no entry and refuse nothing. (A table that cannot be read as the study says, or with fewer rows than the site's own
policy asks for, is refused before anything is written; the threat model states both.) Its fields are the arguments of that call
(names and terms of a study, its charges, how many messages it sends), what earlier entries add up to, random numbers, the day and
marks. Charges follow from settings and releases. A mark is HMAC-SHA256 under a key that stays in the file and a nonce that is
drawn for it: to those without the key it is 32 random bytes, equal to no other, whatever its bytes are and however long. The day
is that of the writing: work that ends after midnight has the next one. In masked streams by the clock, a slot that is closed and
a message are entries in the order in which they happen, and work on rows delays the first. `tests/laws/test_ledger_laws.py`
compares ledgers of neighbouring tables field by field.
"""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, final

from eigenveil.errors import EigenveilError

__all__ = [
    "FIRST",
    "Entry",
    "LedgerError",
    "Mark",
    "canonical",
    "chained",
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
    equal parts, such as those of empty slots, would have equal marks. The number of bytes is no part of it: a part that was never
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
        """The next bytes."""
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
        cls,
        previous: "Entry | None",
        *,
        kind: str,
        body: Mapping[str, Any],
        study: str | None = None,
        dataset: str | None = None,
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
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise LedgerError(
                f"line {count + 1} of the export is not JSON: it was changed, or this is not an export"
            ) from None
        # The last line states how many entries there must be, so a truncated export is noticed.
        if isinstance(found, dict) and found.get("format") == _FORMAT:
            ended = True
            _require_version(found.get("version"))
            if (found.get("lines"), found.get("head")) != (count, head):
                raise LedgerError(f"entries are missing: the export has {count}, and its last line says otherwise")
            continue
        # An export may come from another organisation, so every field of it is checked.
        entry = entry_from(found, number=count + 1)
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


def entry_from(found: Any, *, number: int) -> Entry:
    """An entry from plain values; `LedgerError` that names `number` if they are not one."""
    texts = ("time", "kind", "hash")
    try:
        entry = Entry(**found)
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
