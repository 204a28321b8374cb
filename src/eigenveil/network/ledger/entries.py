"""The lines of a ledger: what happened, in order, each sealed with the hash of all before it.

A line is public: it names studies, charges and the digests of what came and what was said, never the bytes. Whoever changes,
removes or moves a line breaks every hash after it. Whoever rewrites all hashes as well changes the last one, the head: note
the head elsewhere, and that is found too.
"""

import hashlib
import hmac
import json
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
    "canonical",
    "chained",
    "digest_of",
    "line_from",
    "read_export",
    "written_export",
]

# What stands before the first line.
FIRST: Final = "0" * 64
_FORMAT: Final = "eigenveil-ledger"
_VERSION: Final = 1
_FIELDS: Final = ("number", "time", "kind", "study", "dataset", "body")


class LedgerError(EigenveilError):
    """The ledger cannot do this: another file, another version, damaged, in use, or without room. Nothing was written."""


def canonical(value: Any) -> str:
    """The one way `value` is written as JSON: keys in order, no spaces, ASCII, every number in full.

    >>> canonical({"mu": 0.1, "label": "mean"})
    '{"label":"mean","mu":0.1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(key: bytes, data: bytes) -> dict[str, Any]:
    """What a line says of bytes: how many they are, and their HMAC-SHA256 with a `key` that stays in the ledger.

    A plain digest of a raw part would tell whoever can guess the part that the guess is right, and lines may be shown to others.
    """
    return {"hmac": hmac.digest(key, data, "sha256").hex(), "size": len(data)}


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One line: its `number` from 1, when and what kind it is, which study and dataset it is about, and what it says.

    `time` is for people. Nothing is decided by it, and a clock that jumps changes no order and no budget.

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
        """The line that follows `previous`, sealed."""
        number, before = (1, FIRST) if previous is None else (previous.number + 1, previous.hash)
        unsealed = cls(number, _now(), kind, study, dataset, body, "")
        return replace(unsealed, hash=unsealed.sealed(before))

    def sealed(self, previous: str) -> str:
        """The hash this line must have behind a line with the hash `previous`: SHA-256(previous || canonical content).

        Both are ASCII text, the hash in 64 hexadecimal digits, so that any tool can compute it again.
        """
        rest = self.number, self.time, self.kind, self.study, self.dataset
        return seal(previous, canonical(self.body), *rest)

    def public(self) -> dict[str, Any]:
        """The line as plain values, for an export."""
        return {**{name: getattr(self, name) for name in _FIELDS}, "hash": self.hash}


def seal(previous: str, body: str, number: int, time: str, kind: str, study: str | None, dataset: str | None) -> str:
    """The hash of a line from its parts, the `body` as the canonical text that is stored."""
    rest = canonical({"dataset": dataset, "kind": kind, "number": number, "study": study, "time": time})
    # The keys are in order: "body" comes first.
    return hashlib.sha256(f'{previous}{{"body":{body},{rest[1:]}'.encode()).hexdigest()


def chained(lines: Iterable[Entry]) -> Iterator[Entry]:
    """The same lines; `LedgerError` at the first that has not the number or the hash it must have."""
    before = FIRST
    for number, line in enumerate(lines, start=1):
        if line.number != number:
            raise LedgerError(f"line {number} is missing: line {line.number} stands in its place")
        if line.hash != line.sealed(before):
            raise LedgerError(f"line {number} ({line.kind}) was changed, or a line before it: its hash does not follow")
        before = line.hash
        yield line


def written_export(lines: Iterable[Entry]) -> Iterator[str]:
    """An export, text by text: one JSON object for each line, and a last one with the head. Public facts only."""
    count, head = 0, FIRST
    for line in lines:
        count, head = line.number, line.hash
        yield canonical(line.public()) + "\n"
    yield canonical({"format": _FORMAT, "version": _VERSION, "lines": count, "head": head}) + "\n"


def read_export(texts: Iterable[str]) -> Iterator[Entry]:
    """The lines of an export, which must end with its head; they are not checked against each other here."""
    count, head = 0, FIRST
    ended = False
    for text in texts:
        if ended:
            raise LedgerError("there is more behind the head of the export, which must be last")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise LedgerError(
                f"line {count + 1} of the export is not JSON: it was changed, or this is not an export"
            ) from None
        if isinstance(found, dict) and found.get("format") == _FORMAT:
            ended = True
            if found.get("version") != _VERSION:
                raise LedgerError(f"the export is of version {found.get('version')!r}; this program reads {_VERSION}")
            if (found.get("lines"), found.get("head")) != (count, head):
                raise LedgerError(
                    f"the export ends after line {count}, and its last line says otherwise: lines are missing"
                )
            continue
        line = line_from(found, number=count + 1)
        count, head = line.number, line.hash
        yield line
    if not ended:
        raise LedgerError(f"the export has no head: it was cut off behind line {count}, or it is not an export")


def _now() -> str:
    try:
        return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        # A clock that is off by ages is no reason to lose a charge.
        return "unknown"


def line_from(found: Any, *, number: int) -> Entry:
    """A line from plain values; `LedgerError` that names `number` where they are none."""
    texts = ("time", "kind", "hash")
    try:
        line = Entry(**found)
        well = isinstance(line.number, int) and isinstance(line.body, dict)
        well = well and all(isinstance(getattr(line, name), str) for name in texts)
        well = well and all(value is None or isinstance(value, str) for value in (line.study, line.dataset))
        line.sealed(FIRST)
    except (TypeError, ValueError, RecursionError):
        well = False
    if not well:
        raise LedgerError(f"line {number} is not a line of a ledger")
    return line
