"""A dataset counts guarantees of one kind: rows, or people by a column. What version 0.1 wrote is declared once."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.errors import UnitMismatch
from eigenveil.network.ledger import budget as budget_module
from eigenveil.network.ledger.durable import DurableLedger, LedgerError, StudyBudget
from eigenveil.network.ledger.entries import read_export, seal
from eigenveil.network.ledger.replay import Replay
from eigenveil.privacy import Budget, Charge, Neighbours, PrivacyUnit
from network.ledger.ledger_children import LIFE, ROW, account

PEOPLE = PrivacyUnit("person", Neighbours.ADD_REMOVE, "patient_id")
UNITS = [ROW, PEOPLE, PrivacyUnit("person", Neighbours.ADD_REMOVE, "visit_id"), PrivacyUnit("row", Neighbours.ZERO_OUT)]


def of(name: str, unit: PrivacyUnit, **more: Any) -> StudyBudget:
    return replace(account(name, **more), unit=unit)


@pytest.mark.parametrize("unit", UNITS[1:], ids=str)
def test_a_study_of_another_kind_is_refused_with_both_kinds(tmp_path: Path, unit: PrivacyUnit) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(of("first", ROW), life=LIFE)
        head = ledger.head
        for ask in (ledger.join, ledger.afford):
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
        ledger.commit(account("right").study, 0, came=b"", said=[b"x"], charges=[Charge("sum", 0.1)])
        ledger.finish(account("right").study)
        with pytest.raises(UnitMismatch):
            ledger.join(of("after", ROW), life=LIFE)
        assert ledger.datasets()[0].unit == PEOPLE
        ledger.verify()


def test_every_entry_about_a_budget_says_its_kind(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        joined = of("heart", PEOPLE)
        ledger.join(joined, life=LIFE)
        ledger.commit(joined.study, 0, came=b"", said=[b"x"], charges=[Charge("sum", 0.1)])
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
@given(
    st.lists(st.tuples(st.sampled_from(UNITS), st.sampled_from(["open", "finish", "abandon", "unsaid"])), max_size=7)
)
def test_no_history_adds_up_two_kinds(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[PrivacyUnit, str]]
) -> None:
    with DurableLedger.open(tmp_path_factory.mktemp("ledger") / "ledger.db") as ledger:
        for number, (unit, end) in enumerate(asked):
            one, before = of(str(number), unit, mu=0.01), ledger.head
            try:
                ledger.join(one, life=LIFE)
            except UnitMismatch:
                assert ledger.head == before
                continue
            if end != "unsaid":
                ledger.commit(one.study, 0, came=b"", said=[b"x"], charges=[Charge("sum", 0.01)])
            if end != "open":
                (ledger.finish if end == "finish" else ledger.abandon)(one.study)
        counted = {study.account.unit for study in ledger.studies() if study.standing.guarantees}
        assert len(counted) <= 1
        assert [state.unit for state in ledger.datasets()][:1] == list(counted)[:1] or not counted
        ledger.verify()


def test_a_name_that_has_no_costs_has_nothing_to_declare(tmp_path: Path) -> None:
    none = pytest.raises(LedgerError, match="no study of it has a cost yet")
    with DurableLedger.open(tmp_path / "ledger.db") as ledger, none:
        ledger.declare_unit("patients", ROW)


def test_a_study_that_version_0_1_left_open_goes_on_once_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, path = of("heart", ROW), tmp_path / "ledger.db"
    with DurableLedger.open(path) as ledger:
        with monkeypatch.context() as patched:
            # As version 0.1 wrote it: no entry has a unit.
            patched.setattr(budget_module, "_unit_values", lambda unit: {})
            ledger.join(joined, life=LIFE)
        with pytest.raises(LedgerError, match="ledger declare"):
            ledger.join(joined, life=LIFE)
        with pytest.raises(LedgerError, match="ledger declare"):
            ledger.commit(joined.study, 0, came=b"", said=[b"x"], charges=[Charge("sum", 0.1)])
        ledger.declare_unit("patients", ROW)
        with pytest.raises(UnitMismatch):
            ledger.join(replace(joined, unit=PEOPLE), life=LIFE)
        assert not ledger.join(joined, life=LIFE).fresh
        ledger.commit(joined.study, 0, came=b"", said=[b"x"], charges=[Charge("sum", 0.1)])
        assert list(ledger.entries())[-1].body["standing"]["unit"] == ROW.values()
        ledger.verify()


@pytest.mark.parametrize("forged", ["another kind", "declared twice", "declared for nobody", "not a unit"])
def test_forged_entries_about_kinds_are_found(tmp_path: Path, forged: str) -> None:
    """Somebody who can compute hashes, but adds up two kinds, or declares what was never open."""
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(of("first", ROW), life=LIFE)
        ledger.join(of("second", ROW), life=LIFE)
        entries = [entry.public() for entry in ledger.entries()]
    last = entries[-1]
    if forged == "another kind":
        last["body"]["account"]["unit"] = last["body"]["standing"]["unit"] = PEOPLE.values()
    else:
        unit = {"each": "thing"} if forged == "not a unit" else ROW.values()
        last |= {"kind": "unit", "study": None, "body": {"unit": unit}}
        if forged == "declared for nobody":
            last["dataset"] = None
    facts = (last["number"], last["time"], last["kind"], last["study"], last["dataset"])
    text = json.dumps(last["body"], sort_keys=True, separators=(",", ":"))
    last["hash"] = seal(entries[-2]["hash"], text, *facts)
    end = {"format": "eigenveil-ledger", "version": 2, "lines": len(entries), "head": last["hash"]}
    with pytest.raises(LedgerError, match=f"entry {last['number']} .* does not follow from the entries before it"):
        Replay().run(read_export([json.dumps(one) for one in (*entries, end)]))
