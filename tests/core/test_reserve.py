"""A reserve is spent by nobody else, lists its own lines alone, and what is left of it comes back, however a fit ends."""

import copy
import gc
import math
import multiprocessing
import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.core.accounting import mu_for
from eigenveil.core.ledger import Charge, Ledger, Slot
from eigenveil.errors import BudgetExceeded

LIMIT = mu_for(1.0, 1e-6)


def new() -> Ledger:
    return Ledger(epsilon=1.0, delta=1e-6)


def test_what_is_reserved_cannot_be_spent_by_another() -> None:
    ledger = new()
    with ledger.reserve(0.8 * LIMIT, label="one") as one:
        assert ledger.spent_mu == 0 and ledger.epsilon() == 0 and ledger.charges == ()
        assert ledger.reserved_mu == pytest.approx(0.8 * LIMIT) and ledger.remaining_mu == pytest.approx(0.6 * LIMIT)
        for refused in (ledger.spend, ledger.require_affordable, ledger.reserve):
            with pytest.raises(BudgetExceeded, match=r"'other' needs .* reserved by running fits; nothing was released"):
                refused(0.7 * LIMIT, label="other")
        assert ledger.charges == () and ledger.reserved_mu == pytest.approx(0.8 * LIMIT)
        one.spend(0.8 * LIMIT, label="all of it")
        assert ledger.reserved_mu == 0 and ledger.remaining_mu == pytest.approx(0.6 * LIMIT)
        ledger.spend(0.6 * LIMIT, label="other")
    assert ledger.charges == (*one.charges, Charge("other", 0.6 * LIMIT))
    assert ledger.remaining_mu == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("failure", [None, ValueError, KeyboardInterrupt, GeneratorExit])
def test_what_was_not_spent_comes_back_and_what_was_stays(failure: type[BaseException] | None) -> None:
    ledger = new()

    def fit() -> None:
        with ledger.reserve(LIMIT, label="fit") as reserve:
            reserve.spend(0.6 * LIMIT, label="mean")
            if failure is not None:
                raise failure

    if failure is None:
        fit()
    else:
        with pytest.raises(failure):
            fit()
    assert ledger.charges == (Charge("mean", 0.6 * LIMIT),)
    assert ledger.reserved_mu == 0 and ledger.remaining_mu == pytest.approx(0.8 * LIMIT)


def test_nothing_is_spent_from_a_reserve_that_was_given_back() -> None:
    ledger = new()
    with ledger.reserve(0.5 * LIMIT, label="fit") as reserve:
        pass
    with pytest.raises(BudgetExceeded, match="the reserve of 'fit', which is closed"):
        reserve.spend(0.01 * LIMIT, label="late")
    assert ledger.charges == ()


def test_a_reserve_that_is_lost_is_given_back() -> None:
    ledger = new()
    reserve = ledger.reserve(LIMIT, label="fit")
    assert ledger.remaining_mu == 0
    del reserve
    gc.collect()
    assert ledger.remaining_mu == pytest.approx(LIMIT)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=20), st.floats(0.1, 1))
def test_shares_of_a_reserve_can_all_be_paid_and_no_more(weights: list[float], part: float) -> None:
    ledger, mu = new(), part * LIMIT
    with ledger.reserve(mu, label="fit") as reserve:
        for weight in weights:
            reserve.spend(mu * math.sqrt(weight / sum(weights)), label="share")
        assert ledger.reserved_mu <= 1e-7 * mu
        before = ledger.charges
        with pytest.raises(BudgetExceeded, match=r"'fit' has mu .* left of the .* that it reserved"):
            reserve.spend(0.01 * mu, label="one more")
        assert ledger.charges == before == reserve.charges
    assert ledger.spent_mu <= mu * (1 + 1e-12) and ledger.epsilon() <= 1.0


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 0.5), st.sampled_from(["reserve", "spend", "close"]))))
def test_no_mixture_of_reserves_and_charges_passes_the_budget(acts: list[tuple[int, float, str]]) -> None:
    ledger, held = new(), {}
    for who, part, act in acts:
        try:
            if act == "reserve" and who not in held:
                held[who] = ledger.reserve(part * LIMIT, label="fit")
            elif act == "close" and who in held:
                held.pop(who).close()
            else:
                (held.get(who) or ledger).spend(part * LIMIT, label="x")
        except BudgetExceeded:
            pass
        assert math.hypot(ledger.spent_mu, ledger.reserved_mu) <= LIMIT * (1 + 1e-12)
    assert ledger.epsilon() <= 1.0
    total = ledger.spent_mu**2 + ledger.reserved_mu**2 + ledger.remaining_mu**2
    assert total == pytest.approx(LIMIT**2, rel=1e-9)


def test_slots_are_charged_once_through_a_reserve() -> None:
    ledger = new()
    with ledger.reserve(0.5 * LIMIT, label="stream") as reserve:
        for number in range(100):
            reserve.spend(0.5 * LIMIT, label="block", slot=Slot(series="blocks", number=number, per_person=1))
        assert len(reserve.charges) == 1
        with pytest.raises(BudgetExceeded):
            reserve.spend(0.6 * LIMIT, label="block", slot=Slot(series="blocks", number=100, per_person=1))
        assert ledger.series()["blocks"][0] == 99
    assert ledger.spent_mu == pytest.approx(0.5 * LIMIT)


def test_who_goes_on_reserves_the_rest_alone() -> None:
    ledger = new()
    with ledger.reserve(LIMIT, label="stream") as reserve:
        reserve.spend(0.6 * LIMIT, label="mean")
    with ledger.reserve(LIMIT, label="stream", paid=reserve.charges) as again:
        assert again.charges == reserve.charges and ledger.reserved_mu == pytest.approx(0.8 * LIMIT)
        again.spend(0.8 * LIMIT, label="rest")
    assert [charge.label for charge in ledger.charges] == ["mean", "rest"] and again.charges == ledger.charges


def test_copies_of_a_reserve_are_the_reserve_and_it_cannot_be_stored() -> None:
    ledger = new()
    with ledger.reserve(0.5 * LIMIT, label="fit") as reserve:
        assert copy.copy(reserve) is reserve and copy.deepcopy(reserve) is reserve
        with pytest.raises(TypeError, match="cannot be stored"):
            pickle.dumps(reserve)
        # A record of the ledger says what was spent, and reserves nothing.
        assert pickle.loads(pickle.dumps(ledger)).reserved_mu == 0  # noqa: S301
        assert repr(reserve) == f"Reserve('fit', mu={0.5 * LIMIT:.4g}, charges=0)"


@pytest.mark.parametrize("mu", [-0.1, math.nan, math.inf])
def test_bad_reserves_are_refused(mu: float) -> None:
    ledger = new()
    with pytest.raises(ValueError, match="mu must"):
        ledger.reserve(mu, label="x")
    assert ledger.remaining_mu == pytest.approx(LIMIT)


def test_a_forked_process_can_use_neither_a_reserve_nor_make_one_even_if_a_thread_held_the_lock() -> None:
    ledger = new()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    reserve = ledger.reserve(0.5 * LIMIT, label="fit")

    def child() -> None:
        for act in (reserve.spend, ledger.spend, ledger.reserve, ledger.require_affordable):
            try:
                act(0.01, label="x")
            except BudgetExceeded as error:
                sender.send(str(error))
            else:
                sender.send("spent")

    inside, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger._lock:
            inside.set()
            forked.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(10)
    process = context.Process(target=child)
    process.start()
    answers = [receiver.recv() if receiver.poll(10) else "silence" for _ in range(4)]
    forked.set()
    holder.join()
    process.join()
    assert all("copy" in answer for answer in answers)
    reserve.spend(0.01, label="x")


def test_threads_reserve_in_full_or_not_at_all() -> None:
    ledger = new()
    each, threads = LIMIT / math.sqrt(5), 16
    start = threading.Barrier(threads)
    paid: list[tuple[Charge, ...]] = []
    refused: list[str] = []

    def fit(number: int) -> None:
        start.wait()
        try:
            with ledger.reserve(each, label=f"fit {number}") as reserve:
                for step in range(50):
                    reserve.spend(each / math.sqrt(50), label=f"fit {number}, step {step}")
        except BudgetExceeded as error:
            refused.append(str(error))
        else:
            paid.append(reserve.charges)

    running = [threading.Thread(target=fit, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(paid) == 5 and len(refused) == threads - 5
    # Each has its own lines, all of them and in order, and the ledger has those of all.
    for lines in paid:
        fits = {charge.label.split(",")[0] for charge in lines}
        assert len(lines) == 50 and len(fits) == 1
    assert sorted(charge.label for charge in ledger.charges) == sorted(c.label for lines in paid for c in lines)
    assert ledger.spent_mu == pytest.approx(LIMIT, rel=1e-9) and ledger.epsilon() <= 1.0 and ledger.reserved_mu == 0
