"""A dataset counts guarantees of one kind: rows, or people by a column."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.errors import UnitMismatch
from eigenveil.ledger.durable import DurableLedger, LedgerError, StudyBudget
from eigenveil.ledger.replay import Replay, read_export, seal
from ledger.ledger_children import LIFE, ROW, account

PEOPLE = PrivacyUnit("person", Neighbours.ADD_REMOVE, "patient_id")
UNITS = [ROW, PEOPLE, PrivacyUnit("person", Neighbours.ADD_REMOVE, "visit_id"), PrivacyUnit("row", Neighbours.ZERO_OUT)]


def of(name: str, unit: PrivacyUnit, **more: Any) -> StudyBudget:
    return replace(account(name, **more), unit=unit)


@pytest.mark.parametrize("unit", UNITS[1:], ids=str)
def test_a_study_of_another_kind_is_refused_with_both_kinds(tmp_path: Path, unit: PrivacyUnit) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(of("first", ROW), life=LIFE)
        head = ledger.head
        for ask in (ledger.join, ledger.require_affordable):
            with pytest.raises(UnitMismatch) as refused:
                ask(of("second", unit), life=LIFE)
            assert str(ROW) in str(refused.value) and str(unit) in str(refused.value)
            assert "--dataset" in str(refused.value)
        assert ledger.head == head
        # Other people are another matter.
        ledger.join(of("second", unit, dataset="staff"), life=LIFE)
        assert [state.unit for state in ledger.datasets()] == [ROW, unit]
        ledger.verify()


def test_a_study_that_ended_without_a_release_binds_nobody(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(of("by mistake", ROW), life=LIFE)
        ledger.abandon(account("by mistake").study)
        ledger.join(of("right", PEOPLE), life=LIFE)
        ledger.commit(account("right").study, 0, came=b"", replies=[b"x"], charges=[Charge("sum", 0.1)])
        ledger.finish(account("right").study)
        with pytest.raises(UnitMismatch):
            ledger.join(of("after", ROW), life=LIFE)
        assert ledger.datasets()[0].unit == PEOPLE
        ledger.verify()


def test_every_entry_about_a_budget_says_its_kind(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        joined = of("heart", PEOPLE)
        ledger.join(joined, life=LIFE)
        ledger.commit(joined.study, 0, came=b"", replies=[b"x"], charges=[Charge("sum", 0.1)])
        ledger.join(joined, life=Budget(1.5, 1e-5))
        ledger.finish(joined.study)
        told = {entry.kind: entry.body["standing"]["unit"] for entry in ledger.entries() if entry.study == joined.study}
        assert told == dict.fromkeys(("join", "commit", "life", "finish"), PEOPLE.values())


def test_a_kind_is_required_and_cannot_change(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        with pytest.raises(ValueError, match="unit is missing"):
            ledger.join(replace(account(), unit=None), life=LIFE)
        ledger.join(of("heart", ROW), life=LIFE)
        with pytest.raises(LedgerError, match="joined before on other terms"):
            ledger.join(of("heart", PEOPLE), life=LIFE)


def test_without_privacy_there_is_no_kind_to_add_up(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(of("exact", PEOPLE, mu=math.inf), life=None)
        ledger.join(of("private", ROW), life=None)
        ledger.verify()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(UNITS), st.sampled_from(["open", "finish", "abandon", "unsaid"])), max_size=7))
def test_no_history_adds_up_two_kinds(tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[PrivacyUnit, str]]) -> None:
    with DurableLedger.open(tmp_path_factory.mktemp("ledger") / "ledger.db") as ledger:
        for number, (unit, end) in enumerate(asked):
            one, before = of(str(number), unit, mu=0.01), ledger.head
            try:
                ledger.join(one, life=LIFE)
            except UnitMismatch:
                assert ledger.head == before
                continue
            if end != "unsaid":
                ledger.commit(one.study, 0, came=b"", replies=[b"x"], charges=[Charge("sum", 0.01)])
            if end != "open":
                (ledger.finish if end == "finish" else ledger.abandon)(one.study)
        counted = {study.account.unit for study in ledger.studies() if study.standing.guarantees}
        assert len(counted) <= 1
        assert [state.unit for state in ledger.datasets()][:1] == list(counted)[:1] or not counted
        ledger.verify()


@pytest.mark.parametrize("unit", [PEOPLE.values(), {"each": "thing"}, None], ids=["another", "not a unit", "none"])
def test_forged_entries_about_kinds_are_found(tmp_path: Path, unit: dict[str, Any] | None) -> None:
    """Somebody who can compute hashes, but adds up two kinds."""
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(of("first", ROW), life=LIFE)
        ledger.join(of("second", ROW), life=LIFE)
        entries = [entry.public() for entry in ledger.entries()]
    last = entries[-1]
    for stated in (last["body"]["account"], last["body"]["standing"]):
        stated["unit"] = unit
        if unit is None:
            del stated["unit"]
    facts = (last["number"], last["time"], last["kind"], last["study"], last["dataset"])
    text = json.dumps(last["body"], sort_keys=True, separators=(",", ":"))
    last["hash"] = seal(entries[-2]["hash"], text, *facts)
    end = {"format": "eigenveil-ledger", "version": 2, "lines": len(entries), "head": last["hash"]}
    with pytest.raises(LedgerError, match=f"entry {last['number']} .* does not follow from the entries before it"):
        Replay().run(read_export([json.dumps(one) for one in (*entries, end)]))
