"""The total budget: reservations count, what was not spent comes back, and the rule holds after any sequence of steps."""

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.accounting import Budget, epsilon_of, mu_for
from eigenveil.core.ledger import Charge
from eigenveil.errors import BudgetExceeded
from eigenveil.ledger.durable import DurableLedger, LedgerError
from ledger.ledger_children import LIFE, account, digits


def squares_left(ledger: DurableLedger, life: Budget) -> float:
    """How much squared mu the rule leaves, worked out from the public states."""
    (state,) = ledger.datasets()
    return mu_for(life.epsilon, life.delta - state.extra_delta) ** 2 - state.counted**2


def test_a_study_may_reserve_the_whole_life_and_not_more(tmp_path: Path) -> None:
    whole = LIFE.mu
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        with pytest.raises(BudgetExceeded):
            ledger.join(account("more", mu=whole * (1 + 1e-9)), life=LIFE)
        assert list(ledger.studies()) == []
        ledger.join(account("all", mu=whole), life=LIFE)
        with pytest.raises(BudgetExceeded):
            ledger.join(account("little", mu=whole * 1e-3), life=LIFE)


def test_equal_shares_of_a_life_fit_in_it(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        for i in range(7):
            ledger.join(account(str(i), mu=LIFE.mu / math.sqrt(7)), life=LIFE)
        with pytest.raises(BudgetExceeded):
            ledger.join(account("one more", mu=1e-4), life=LIFE)
        ledger.verify()


def test_what_was_not_spent_comes_back_at_the_end(tmp_path: Path) -> None:
    whole = LIFE.mu
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(account("first", mu=whole), life=LIFE)
        ledger.commit(digits("first"), 0, came=b"", replies=[b"x"], charges=[Charge("x", 0.6 * whole)])
        with pytest.raises(BudgetExceeded):
            ledger.join(account("second", mu=0.8 * whole), life=LIFE)
        ledger.finish(digits("first"))
        ledger.join(account("second", mu=0.8 * whole), life=LIFE)
        assert squares_left(ledger, LIFE) == pytest.approx(0, abs=1e-9)
        ledger.abandon(digits("second"))
        assert squares_left(ledger, LIFE) == pytest.approx(0.64 * whole**2)


def test_a_refusal_says_what_is_spent_reserved_asked_and_allowed(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(account("first", mu=0.3), life=LIFE)
        ledger.commit(digits("first"), 0, came=b"", replies=[b"x"], charges=[Charge("x", 0.1)])
        head = ledger.head
        with pytest.raises(BudgetExceeded) as refusal:
            ledger.join(account("second", mu=0.5), life=LIFE)
        words = str(refusal.value)
        for mu, what in ((0.1, "spent"), (0.3, "reserved by open studies"), (0.5, "asked")):
            assert f"{epsilon_of(mu, 1e-5):.4g} {what}" in words
        assert f"together {epsilon_of(math.hypot(0.3, 0.5), 1e-5):.4g}" in words
        assert "allows epsilon = 2 at delta = 1e-05 in total" in words
        assert "Nothing was written" in words
        assert ledger.head == head


def test_charges_stay_within_what_was_reserved(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(account(mu=0.1), life=LIFE)
        ledger.commit(digits("heart"), 0, came=b"", replies=[b"x"], charges=[Charge("x", 0.08)])
        head = ledger.head
        with pytest.raises(BudgetExceeded, match=r"exceed the mu = 0\.1 reserved"):
            ledger.commit(digits("heart"), 1, came=b"", replies=[b"x"], charges=[Charge("x", 0.06 * (1 + 1e-6))])
        for mu in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match="finite and not negative"):
                ledger.commit(digits("heart"), 1, came=b"", replies=[b"x"], charges=[Charge("x", mu)])
        assert ledger.head == head
        # Shares of a budget may be added up in another order: that much is forgiven.
        ledger.commit(digits("heart"), 1, came=b"", replies=[b"x"], charges=[Charge("x", 0.06 * (1 + 1e-10))])
        with pytest.raises(BudgetExceeded):
            ledger.commit(digits("heart"), 2, came=b"", replies=[b"x"], charges=[Charge("x", 1e-4)])
        ledger.commit(digits("heart"), 2, came=b"", replies=[b"free"], charges=[])
        ledger.finish(digits("heart"))
        assert ledger.datasets()[0].counted == pytest.approx(0.1, abs=1e-17)


def test_what_goes_beyond_mu_adds_up_out_of_delta(tmp_path: Path) -> None:
    life = Budget(1.0, 1e-6)
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(account("first", mu=0.01, extra_delta=5e-7), life=life)
        ledger.abandon(digits("first"))
        # Half of delta is gone for good, so what mu may be is less.
        with pytest.raises(BudgetExceeded):
            ledger.join(account("second", mu=life.mu), life=life)
        ledger.join(account("second", mu=mu_for(1.0, 5e-7)), life=life)
        ledger.abandon(digits("second"))
        with pytest.raises(BudgetExceeded, match="may fail already take 5e-07 of delta, and the study asks for 5e-07 more"):
            ledger.join(account("third", mu=0.01, extra_delta=5e-7), life=life)
        assert ledger.datasets()[0].epsilon(1e-6) == 0
        assert math.isinf(ledger.datasets()[0].epsilon(5e-7))


def test_a_study_without_privacy_needs_a_policy_without_a_bound(tmp_path: Path) -> None:
    exact = account("exact", mu=math.inf)
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        with pytest.raises(BudgetExceeded, match="it has no privacy"):
            ledger.join(exact, life=LIFE)
        ledger.join(exact, life=None)
        assert ledger.datasets()[0].void
        with pytest.raises(BudgetExceeded, match="a study without privacy was joined before"):
            ledger.join(account(), life=LIFE)
        ledger.join(account("lax"), life=Budget(math.inf, 1e-6))
        ledger.commit(exact.study, 0, came=b"", replies=[b"the data"], charges=[])
        ledger.finish(exact.study)
        # What was said without privacy stays said.
        assert ledger.datasets()[0].void
        with pytest.raises(BudgetExceeded, match="no guarantee can be kept any more"):
            ledger.join(account(), life=LIFE)
        ledger.verify()


def test_a_rehearsal_that_said_nothing_leaves_the_guarantee_whole(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(account("exact", mu=math.inf), life=None)
        ledger.abandon(digits("exact"))
        assert not ledger.datasets()[0].void
        ledger.join(account(), life=LIFE)
        ledger.verify()


def test_a_policy_that_changed_holds_from_the_next_join_on(tmp_path: Path) -> None:
    small, large = Budget(1.0, 1e-5), Budget(3.0, 1e-5)
    charge = [Charge("x", 0.01)]
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(account("first", mu=0.9 * small.mu), life=small)
        ledger.commit(digits("first"), 0, came=b"", replies=[b"x"], charges=charge)
        ledger.join(account("second", mu=0.9 * small.mu), life=large)
        with pytest.raises(BudgetExceeded, match="Join it again under the current policy"):
            ledger.commit(digits("first"), 1, came=b"", replies=[b"x"], charges=charge)
        ledger.commit(digits("first"), 1, came=b"", replies=[b"thanks"], charges=[])
        with pytest.raises(BudgetExceeded):
            ledger.join(account("first", mu=0.9 * small.mu), life=small)
        assert not ledger.join(account("first", mu=0.9 * small.mu), life=large).fresh
        ledger.commit(digits("first"), 2, came=b"", replies=[b"x"], charges=charge)
        assert [line.kind for line in ledger.entries()].count("life") == 1
        assert ledger.datasets()[0].life == large
        ledger.verify()


STEPS = st.tuples(
    st.sampled_from(["join", "commit", "commit", "finish", "abandon", "reopen"]),
    st.integers(0, 4),
    st.floats(0.001, 0.4),
    st.sampled_from([0.0, 0.0, 1e-7, 4e-6]),
)


@settings(max_examples=25)
@given(steps=st.lists(STEPS, max_size=25))
def test_the_rule_for_life_holds_after_any_steps(steps: list[tuple[str, int, float, float]]) -> None:
    """A model in a few lines says what must be accepted; the ledger agrees with it, and so do its balances."""
    asked: dict[str, tuple[float, float]] = {}
    spent: dict[str, list[float]] = {}
    still: set[str] = set()

    def total() -> tuple[float, float]:
        counts = [asked[n][0] ** 2 if n in still else math.fsum(mu * mu for mu in spent[n]) for n in asked]
        return math.fsum(counts), math.fsum(beyond for _, beyond in asked.values())

    with tempfile.TemporaryDirectory() as folder, DurableLedger.open(Path(folder) / "ledger.db") as ledger:
        for verb, which, mu, beyond in steps:
            name, accepted = f"study {which}", True
            head = ledger.head
            try:
                if verb == "join" and name not in asked:
                    counts, taken = total()
                    left = LIFE.delta - taken - beyond
                    accepted = left > 0 and counts + mu * mu <= mu_for(LIFE.epsilon, left) ** 2
                    ledger.join(account(name, mu=mu, extra_delta=beyond), life=LIFE)
                    asked[name], spent[name] = (mu, beyond), []
                    still.add(name)
                elif verb == "commit":
                    fits = name in still and math.hypot(*spent[name], mu) <= asked[name][0]
                    accepted = fits
                    number = len(spent.get(name, ()))
                    ledger.commit(digits(name), number, came=b"", replies=[b"x"], charges=[Charge("x", mu)])
                    spent[name].append(mu)
                elif verb in {"finish", "abandon"}:
                    accepted = name in still
                    getattr(ledger, verb)(digits(name))
                    still.discard(name)
                elif verb == "reopen" and name in still:
                    again = ledger.join(account(name, mu=asked[name][0], extra_delta=asked[name][1]), life=LIFE)
                    assert [entry.charges[0].mu for entry in again.steps] == spent[name]
            except (BudgetExceeded, LedgerError):
                assert not accepted
                assert ledger.head == head
            else:
                assert accepted
        ledger.verify()
        if asked:
            counts, taken = total()
            (state,) = ledger.datasets()
            assert state.counted == pytest.approx(math.sqrt(counts), abs=1e-12)
            assert state.extra_delta == taken
            assert counts <= mu_for(LIFE.epsilon, LIFE.delta - taken) ** 2 * (1 + 1e-12)
