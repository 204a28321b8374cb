"""The head of a ledger in a file elsewhere: whoever puts an old copy of the ledger back is found out.

`eigenveil ledger head --to FILE` notes it, and `--require-head FILE` refuses a ledger that does not have it. It is public, as
the entries are: it has the last of them, and the day.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from eigenveil.data.archive import whole_file
from eigenveil.ledger.durable import DurableLedger, Entry
from eigenveil.ledger.entries import LedgerError, canonical, today
from eigenveil.ledger.file import locked

__all__ = ["NotedHead", "note_head", "require_noted", "with_head"]

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
        """One line of JSON."""
        facts = {"head": self.head, "entries": self.entries, "time": self.time}
        return canonical({"format": _FORMAT, "version": _VERSION, **facts}) + "\n"

    @classmethod
    def read(cls, path: Path) -> "NotedHead":
        """The head in a file; `LedgerError` if it has none."""
        try:
            with path.open("rb") as file:
                found: Any = json.loads(file.read(_LARGEST + 1)[:_LARGEST])
        except OSError as error:
            raise LedgerError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError):
            found = None
        match found:
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
    there, noted = ledger.exists(), head is not None and head.exists()
    if there and head is not None and not noted:
        raise LedgerError(
            f"{head} does not exist. If it did before, find out where it went. If this is the first time, run: eigenveil ledger "
            f"head {ledger} --to {head}"
        )
    # A ledger that was removed would be made anew, without its charges.
    if noted and not there:
        raise LedgerError(f"{ledger} does not exist, and {head} has the head of a ledger in it. Put the ledger back")
    with opened(ledger) as found:
        if head is not None and noted:
            require_noted(found, head)
        if head is not None and writes:
            # At once: a place that cannot be written is found before anything is charged.
            _note_alone(found, head)
            found.after_writing(lambda: _note_alone(found, head))
        yield found


def _note_alone(ledger: DurableLedger, path: Path) -> None:
    # Two processes of a site may write at once, and the older head must not be written last.
    with locked(ledger.path, "head"):
        note_head(ledger, path)
