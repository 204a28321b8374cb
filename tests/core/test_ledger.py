"""The ledger is a filter: it never lets more out than its budget, whatever is asked, and it cannot be duplicated."""

import copy
import math
import multiprocessing
import os
import pickle
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.core.accounting import mu_for
from eigenveil.core.ledger import Charge, Ledger, Slot
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.errors import BudgetExceeded, UnitMismatch


@given(st.lists(st.floats(0, 0.3), max_size=30))
def test_no_sequence_of_charges_passes_the_budget(charges: list[float]) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    for index, mu in enumerate(charges):
        before = ledger.charges
        try:
            ledger.spend(mu, label=str(index))
        except BudgetExceeded:
            assert ledger.charges == before
        else:
            assert len(ledger.charges) == len(before) + 1
    assert ledger.epsilon() <= 1.0 + 1e-9
    assert math.hypot(ledger.spent_mu, ledger.remaining_mu) == pytest.approx(mu_for(1.0, 1e-6), rel=1e-9)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=20))
def test_shares_of_the_whole_budget_can_all_be_paid(weights: list[float]) -> None:
    ledger = Ledger(epsilon=0.7, delta=1e-5)
    limit = mu_for(0.7, 1e-5)
    for weight in weights:
        ledger.spend(limit * math.sqrt(weight / sum(weights)), label="share")
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        ledger.spend(0.01 * limit, label="one more")
    assert ledger.epsilon() <= 0.7


def test_copies_are_the_same_ledger_and_stored_ones_cannot_spend() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    assert copy.copy(ledger) is ledger
    assert copy.deepcopy(ledger) is ledger
    ledger.spend(0.1, label="first")
    stored = pickle.loads(pickle.dumps(ledger))  # noqa: S301
    assert stored.charges == ledger.charges
    assert stored.epsilon() == ledger.epsilon()
    with pytest.raises(BudgetExceeded, match="copy"):
        stored.spend(0.01, label="second")


def test_many_small_charges_lose_nothing_to_rounding() -> None:
    ledger = Ledger(epsilon=math.inf, delta=1e-6)
    ledger.spend(1.0, label="large")
    for _ in range(20_000):
        ledger.spend(1e-8, label="small")
    assert ledger.spent_mu**2 - 1.0 == pytest.approx(20_000 * 1e-16, rel=1e-3)


def test_threads_cannot_overspend() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    each = mu_for(1.0, 1e-6) / 10

    def spend() -> None:
        for _ in range(20):
            try:
                ledger.spend(each, label="x")
            except BudgetExceeded:
                return

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.charges) == 100


@pytest.mark.parametrize("mu", [-0.1, math.nan, math.inf])
def test_bad_charges_are_refused(mu: float) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="mu must"):
        ledger.spend(mu, label="x")
    assert ledger.charges == ()


def test_an_unlimited_ledger_still_counts() -> None:
    ledger = Ledger(epsilon=math.inf, delta=1e-6)
    for _ in range(5):
        ledger.spend(3.0, label="x")
    assert ledger.spent_mu == pytest.approx(3 * math.sqrt(5))
    assert math.isinf(ledger.remaining_mu)
    assert "charges=5" in repr(ledger)


@pytest.mark.parametrize("same_id", [False, True])
def test_a_forked_process_cannot_spend_its_parents_ledger(monkeypatch: pytest.MonkeyPatch, same_id: bool) -> None:
    """Also if the kernel gives it the id of a process that is dead."""
    if same_id:
        here = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: here)
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        try:
            ledger.spend(0.01, label="x")
        except BudgetExceeded as error:
            sender.send(str(error))
        else:
            sender.send("spent")

    process = context.Process(target=child)
    process.start()
    assert "copy" in receiver.recv()
    process.join()
    ledger.spend(0.01, label="x")


ROW = PrivacyUnit("row", Neighbours.ADD_REMOVE)
UNITS = [
    ROW,
    PrivacyUnit("row", Neighbours.ZERO_OUT),
    PrivacyUnit("person", Neighbours.ADD_REMOVE),
    PrivacyUnit("person", Neighbours.ADD_REMOVE, "patient_id"),
    PrivacyUnit("interaction", Neighbours.INTERACTION),
]


@given(st.lists(st.tuples(st.sampled_from(["spend", "reserve", "give back"]), st.sampled_from([*UNITS, None])), max_size=12))
def test_whatever_is_asked_only_charges_of_one_kind_are_written(asked: list[tuple[str, PrivacyUnit | None]]) -> None:
    ledger = Ledger(epsilon=10.0, delta=1e-6)
    written: set[PrivacyUnit] = set()
    for how, unit in asked:
        before, known = ledger.charges, ledger.unit
        try:
            if how == "spend":
                ledger.spend(0.01, label="by hand", unit=unit)
            else:
                with ledger.reserve(0.02, label="a fit", unit=unit) as reserve:
                    if how == "reserve":
                        reserve.spend(0.01, label="its release")
        except UnitMismatch:
            assert ledger.charges == before and ledger.unit == known and unit not in (known, None)
            assert ledger.reserved_mu == 0
        else:
            if unit is not None and how != "give back":
                written.add(unit)
    assert len(written) <= 1 and ledger.unit == next(iter(written), None)


def test_a_fit_that_runs_decides_the_kind_until_it_ends_without_a_charge() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    with ledger.reserve(0.1, label="a fit", unit=UNITS[3]):
        for refused in (ledger.spend, ledger.require_affordable, ledger.reserve):
            with pytest.raises(UnitMismatch, match="cannot be added up"):
                refused(0.01, label="another", unit=ROW)
    assert ledger.unit is None


def test_a_release_that_costs_nothing_more_decides_the_kind_too() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    ledger.spend(0.0, label="block", slot=Slot(series="blocks", number=0, per_person=1), unit=ROW)
    assert ledger.unit == ROW and ledger.charges == ()


def test_the_kind_goes_with_copies_records_and_continued_ledgers() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6, unit=ROW)
    ledger.spend(0.1, label="by hand")
    record, facts = ledger.__reduce__()
    assert record(*facts).unit == ROW
    moved = Ledger.continued(ledger.budget, (Charge("by hand", 0.1),), {}, unit=ROW)
    with pytest.raises(UnitMismatch):
        moved.spend(0.1, label="people", unit=UNITS[3])


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_a_unit_is_read_back_and_nothing_else_is(unit: PrivacyUnit) -> None:
    assert PrivacyUnit.read(unit.values()) == unit
    for wrong in ({}, {**unit.values(), "more": 1}, {**unit.values(), "each": "thing"}, {**unit.values(), "column": ""}):
        with pytest.raises(ValueError):
            PrivacyUnit.read(wrong)


def test_units_that_no_table_has_are_refused() -> None:
    wrong: list[tuple[Any, Neighbours, str | None]] = [
        ("row", Neighbours.INTERACTION, None),
        ("interaction", Neighbours.ADD_REMOVE, None),
        ("person", Neighbours.INTERACTION, None),
        ("row", Neighbours.ADD_REMOVE, "patient_id"),
    ]
    for each, neighbours, column in wrong:
        with pytest.raises(ValueError):
            PrivacyUnit(each, neighbours, column)


def test_a_unit_that_is_only_a_word_is_refused() -> None:
    unit: Any = "person"
    with pytest.raises(ValueError, match="unit must be a PrivacyUnit"):
        Ledger(epsilon=1.0, delta=1e-6, unit=unit)
    near: Any = "add-remove"
    with pytest.raises(ValueError, match="neighbours must be a Neighbours"):
        PrivacyUnit("row", near)
