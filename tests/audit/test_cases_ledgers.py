"""Cases of ledgers: what is shipped stands, and each mistake that was once made in it is refuted."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from eigenveil.audit import CASES, Verdict, audit
from eigenveil.audit.cases import ledgers
from eigenveil.ledger import replay as entries
from eigenveil.ledger import tables
from eigenveil.ledger.durable import DurableLedger

Patch = pytest.MonkeyPatch
SHIPPED = [name for name in CASES if name.startswith("ledger/")]


def assess_fit(name: str) -> Verdict:
    (verdict,) = audit([CASES[name]], seed=1, jobs=1, confidence=1 - 1e-4)
    return verdict


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_stands(name: str) -> None:
    verdict = assess_fit(name)
    assert not verdict.failed and not verdict.refuted
    # It could have been: enough guesses count.
    assert all(finding.reach > finding.claimed for finding in verdict.findings)


def test_a_note_with_a_reason_is_refuted() -> None:
    assert assess_fit("wrong/ledger-reasons").refuted


def marks_without_a_nonce(patch: Patch) -> None:
    patch.setattr(entries, "mark_of", _plain)
    patch.setattr("eigenveil.ledger.durable.mark_of", _plain)


def _plain(key: bytes, data: bytes) -> dict[str, Any]:
    mark = entries.Mark(key, "0" * 32)
    mark.add(data)
    return mark.value


def sizes_beside_marks(patch: Patch) -> None:
    patch.setattr("eigenveil.ledger.durable.mark_of", lambda key, data: entries.mark_of(key, data) | {"size": len(data)})


def an_entry_where_rows_changed(patch: Patch) -> None:
    whole = DurableLedger.declare

    def declare(ledger: DurableLedger, dataset: str, *prints: bytes, **more: Any) -> list[str]:
        warnings = whole(ledger, dataset, *prints, **more)
        for words in warnings[:1]:
            with ledger._file.writing() as found:
                tables.append(found, "declare", {"words": words}, dataset=dataset)
        return warnings

    patch.setattr(DurableLedger, "declare", declare)


def an_empty_slot_says_nothing(patch: Patch) -> None:
    """A site that leaves out the message of a slot without rows."""
    whole = DurableLedger.commit

    def commit(ledger: DurableLedger, *args: Any, replies: Sequence[bytes], **kwargs: Any) -> None:
        # The last eight bytes are the number of rows, times a constant.
        sent = [data for data in replies if any(data[-8:])]
        whole(ledger, *args, replies=sent, **kwargs)

    patch.setattr(DurableLedger, "commit", commit)


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        (marks_without_a_nonce, "ledger/streams"),
        (sizes_beside_marks, "ledger/streams"),
        (an_empty_slot_says_nothing, "ledger/streams"),
        (an_entry_where_rows_changed, "ledger/fits"),
    ],
    ids=lambda found: getattr(found, "__name__", found),
)
def test_a_mistake_is_refuted(monkeypatch: pytest.MonkeyPatch, mistake: Callable[[Patch], None], name: str) -> None:
    ledgers._shape_in_world.cache_clear()
    mistake(monkeypatch)
    try:
        assert assess_fit(name).refuted
    finally:
        ledgers._shape_in_world.cache_clear()
