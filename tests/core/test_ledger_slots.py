"""Releases from disjoint slots of a stream: the ledger charges the dearest slots that one person can be in, and no more."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.core.accounting import Budget, mu_for
from eigenveil.core.ledger import Ledger, Memory, Slot
from eigenveil.errors import BudgetExceeded

SPENDING = st.lists(st.tuples(st.integers(0, 6), st.floats(0.0, 0.4)), max_size=25)


@given(SPENDING, st.integers(1, 4))
def test_the_charge_is_that_of_the_dearest_slots(spending: list[tuple[int, float]], per_person: int) -> None:
    """Against the obvious account: add up each slot, take the largest."""
    ledger = Ledger(epsilon=math.inf, delta=1e-6)
    totals: dict[int, float] = {}
    for number, mu in sorted(spending, key=lambda pair: pair[0]):
        ledger.spend(mu, label="x", slot=Slot(series="blocks", number=number, per_person=per_person))
        totals[number] = totals.get(number, 0.0) + mu**2
        worst = math.fsum(sorted(totals.values(), reverse=True)[:per_person])
        assert ledger.spent_mu**2 == pytest.approx(worst, rel=1e-9, abs=1e-15)


@given(SPENDING, st.integers(1, 4))
def test_no_spending_in_slots_passes_the_budget(spending: list[tuple[int, float]], per_person: int) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    for number, mu in sorted(spending, key=lambda pair: pair[0]):
        before = (ledger.charges, ledger.series())
        try:
            ledger.spend(mu, label="x", slot=Slot(series="blocks", number=number, per_person=per_person))
        except BudgetExceeded:
            assert (ledger.charges, ledger.series()) == before
    assert ledger.spent_mu <= mu_for(1.0, 1e-6) * (1 + 1e-12)


def test_a_million_equal_slots_are_one_line() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    for number in range(20_000):
        for label, mu in (("products", 0.15), ("sum", 0.05)):
            ledger.spend(mu, label=label, slot=Slot(series="blocks", number=number, per_person=1))
    assert [charge.label for charge in ledger.charges] == ["products", "sum"]
    assert ledger.spent_mu == pytest.approx(math.hypot(0.15, 0.05))


def test_series_and_plain_charges_add_up() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    ledger.spend(0.1, label="mean")
    ledger.spend(0.1, label="x", slot=Slot(series="one stream", number=0, per_person=1))
    ledger.spend(0.1, label="x", slot=Slot(series="another stream", number=0, per_person=1))
    assert ledger.spent_mu == pytest.approx(0.1 * math.sqrt(3))


def test_a_closed_slot_stays_closed() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    ledger.spend(0.1, label="x", slot=Slot(series="blocks", number=3, per_person=1))
    with pytest.raises(ValueError, match="slot 2 of 'blocks' was closed"):
        ledger.spend(0.1, label="x", slot=Slot(series="blocks", number=2, per_person=1))
    with pytest.raises(ValueError, match="allow 1 per person"):
        ledger.spend(0.1, label="x", slot=Slot(series="blocks", number=4, per_person=2))
    assert len(ledger.charges) == 1


def test_an_account_that_moved_goes_on_where_it_was() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    for number in range(3):
        ledger.spend(0.15, label="x", slot=Slot(series="blocks", number=number, per_person=2))
    moved = Ledger.continued(Budget(1.0, 1e-6), ledger.charges, ledger.series())
    for account in (ledger, moved):
        account.spend(0.15, label="x", slot=Slot(series="blocks", number=3, per_person=2))
        with pytest.raises(BudgetExceeded):
            account.spend(0.2, label="x", slot=Slot(series="other", number=0, per_person=1))
    assert moved.charges == ledger.charges
    assert moved.series() == ledger.series()
    assert moved.spent_mu == ledger.spent_mu


def test_a_slot_needs_somebody_in_it() -> None:
    with pytest.raises(ValueError, match="per_person"):
        Slot(series="blocks", number=0, per_person=0)


def test_an_interrupt_in_the_middle_of_a_charge_makes_nothing_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)

    def interrupted(self: Memory, charge: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Memory, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.spend(0.2, label="block", slot=Slot(series="blocks", number=0, per_person=1))
    # What was not written down was not paid for, so that the next one has to be.
    ledger.spend(0.2, label="block", slot=Slot(series="blocks", number=1, per_person=1))
    assert ledger.spent_mu == 0.2
