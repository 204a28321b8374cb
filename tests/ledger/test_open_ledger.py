"""`Ledger.open`: memory and a file mean the same; threads, processes and forks share one budget; and files misbehave."""

import copy
import gc
import math
import multiprocessing
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from commands.command_tables import PRIVATE, eigenveil, refusal, written
from eigenveil import (
    BudgetExceeded,
    Ledger,
    LedgerError,
    PrivatePCA,
    StreamingPCA,
    UnitMismatch,
    find_bounds,
    find_column_bounds,
    released_spectrum,
)
from eigenveil.core.accounting import Budget, mu_for
from eigenveil.core.ledger import Charge, Slot
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.ledger import file, tables
from eigenveil.ledger.durable import DurableLedger, StudyBudget
from eigenveil.ledger.store import FileStore

LIFE: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5}
LIMIT = mu_for(4.0, 1e-5)
ROW = PrivacyUnit("row", Neighbours.ADD_REMOVE)
ROWS = np.random.default_rng(0).standard_normal((4000, 4)) * [4.0, 2.0, 1.0, 1.0]
FIT: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 9.0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "people.ledger"


def opened(path: Path, **more: Any) -> Ledger:
    return Ledger.open(path, "patients", **LIFE, **more)


def fitted(ledger: Ledger, **more: Any) -> PrivatePCA:
    return PrivatePCA(2, ledger=ledger, **{**FIT, **more}).fit(ROWS)


def on_file(path: Path) -> DurableLedger:
    """The file, checked in full."""
    reading = DurableLedger.reading(path)
    reading.verify()
    return reading


def spent_on(path: Path) -> float:
    with on_file(path) as found:
        return found.dataset("patients").spent


def test_a_fit_is_on_the_file_and_another_process_goes_on(path: Path) -> None:
    ledger = opened(path)
    pca = fitted(ledger)
    assert [charge.label for charge in ledger.charges] == [charge.label for charge in pca.guarantee_.charges]
    assert ledger.spent_mu == pytest.approx(mu_for(1.0, 1e-6)) and ledger.reserved_mu == pytest.approx(0, abs=1e-9)
    assert path.stat().st_mode & 0o077 == 0
    code = (
        "import sys; from eigenveil import Ledger; ledger = Ledger.open(sys.argv[1]); print(repr(ledger)); "
        "ledger.spend(0.1, label='by hand'); print(ledger.spent_mu)"
    )
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    shown, spent = said.splitlines()
    assert "people.ledger', dataset='patients', epsilon=4.0, delta=1e-05, charges=2, left=" in shown
    assert float(spent) == ledger.spent_mu == pytest.approx(math.hypot(mu_for(1.0, 1e-6), 0.1))
    with on_file(path) as found:
        (state,) = found.datasets()
        assert (state.name, state.life, state.unit, state.open) == ("patients", Budget(4.0, 1e-5), ROW, 0)
        assert [study.account.title for study in found.studies()] == ["total budget", "fit, Python", "by hand, Python"]
    assert "epsilon" in ledger._repr_html_() and "patients" in ledger._repr_html_()


TAKERS: dict[str, Callable[[Ledger], object]] = {
    "fit": lambda ledger: PrivatePCA(2, ledger=ledger, neighbours="zero-out", **FIT).fit(ROWS),
    "stream": lambda ledger: StreamingPCA(2, ledger=ledger, neighbours="zero-out", **FIT).fit(ROWS),
    "bounds": lambda ledger: find_bounds(ROWS, epsilon=1.0, delta=1e-6, ledger=ledger, neighbours="zero-out"),
    "columns": lambda ledger: find_column_bounds(ROWS, epsilon=1.0, delta=1e-6, ledger=ledger, neighbours="zero-out"),
    "spectrum": lambda ledger: released_spectrum(
        ROWS, row_bound=9.0, epsilon=1.0, delta=1e-6, ledger=ledger, neighbours="zero-out"
    ),
}


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS)
def test_whatever_takes_a_ledger_takes_one_in_a_file(path: Path, taker: Callable[[Ledger], object]) -> None:
    ledger, memory = opened(path), Ledger(**LIFE)
    taker(ledger)
    taker(memory)
    # A stream is charged whole; everything else is charged as in memory, up to what noise decides.
    assert spent_on(path) == ledger.spent_mu
    assert ledger.spent_mu == pytest.approx(memory.spent_mu, rel=1e-9)
    assert ledger.unit == memory.unit
    with on_file(path) as found:
        assert found.dataset("patients").open == 0


@settings(max_examples=25, deadline=None)
# A charge by hand while a fit runs that has charged nothing: it is of that kind, also afterwards.
@example([("reserve", 1, 0.0, ROW), ("spend", 0, 0.5, None), ("close", 1, 0.0, None)])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "spend", "close", "afford"]),
            st.integers(0, 2),
            st.floats(0, 0.8),
            st.sampled_from([None, ROW, PrivacyUnit("person", Neighbours.ZERO_OUT)]),
        ),
        max_size=12,
    )
)
def test_a_file_and_memory_mean_the_same(acts: list[tuple[str, int, float, PrivacyUnit | None]]) -> None:
    """Any mixture of reserves, charges and refusals comes to the same in both."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        pair = (Ledger(**LIFE), opened(Path(folder, "people.ledger")))
        held: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
        for act, who, part, unit in acts:
            outcomes: list[type] = []
            for ledger, mine in zip(pair, held, strict=True):
                try:
                    if act == "reserve" and who not in mine:
                        mine[who] = ledger.reserve(part * LIMIT, label="fit", unit=unit)
                    elif act == "close" and who in mine:
                        mine.pop(who).close()
                    elif act == "spend" and who in mine:
                        mine[who].spend(part * LIMIT, label="x")
                    elif act == "spend":
                        ledger.spend(part * LIMIT, label="x", unit=unit)
                    elif act == "afford":
                        ledger.require_affordable(part * LIMIT, label="x", unit=unit)
                except (BudgetExceeded, UnitMismatch) as error:
                    outcomes.append(type(error))
                else:
                    outcomes.append(type(None))
            assert outcomes[0] is outcomes[1], (act, who, part, unit)
            memory, file = pair
            assert memory.charges == file.charges and memory.unit == file.unit
            assert file.spent_mu == pytest.approx(memory.spent_mu, rel=1e-9)
            assert file.reserved_mu == pytest.approx(memory.reserved_mu, rel=1e-9, abs=1e-6)
            assert file.remaining_mu == pytest.approx(memory.remaining_mu, rel=1e-9, abs=1e-6)
        held[1].clear()


def test_what_does_not_fit_is_refused_and_says_what_would(path: Path) -> None:
    ledger = Ledger.open(path, "patients", epsilon=1.3, delta=1e-6)
    fitted(ledger)
    before = path.read_bytes()
    with pytest.raises(BudgetExceeded, match=r"What is left is enough for epsilon=0\.[0-9]+$") as refused:
        fitted(ledger)
    left = float(str(refused.value).rpartition("=")[2])
    assert left == ledger.left(1e-6)
    with pytest.raises(BudgetExceeded):
        fitted(ledger, epsilon=left + 0.001)
    for unlike in ({"neighbours": "zero-out"}, {"person": np.arange(4000) // 2}):
        with pytest.raises(UnitMismatch, match="cannot be added up"):
            fitted(ledger, epsilon=0.1, **unlike)
    with pytest.raises(BudgetExceeded):
        ledger.spend(1.0, label="by hand")
    assert path.read_bytes() == before
    fitted(ledger, epsilon=left)
    assert ledger.left() < 0.1
    with pytest.raises(BudgetExceeded):
        fitted(ledger, epsilon=0.1)
    ledger.spend(ledger.remaining_mu, label="the rest")
    with pytest.raises(BudgetExceeded, match="What is left is too little"):
        fitted(ledger, epsilon=0.1)


def test_memory_says_what_would_fit_too() -> None:
    ledger = Ledger(epsilon=1.3, delta=1e-6)
    fitted(ledger)
    with pytest.raises(BudgetExceeded, match=rf"What is left is enough for epsilon={ledger.left():g}$"):
        fitted(ledger)


def test_what_opening_refuses_makes_no_file_and_changes_none(path: Path) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "would be a new ledger. Give dataset="),
        ({"dataset": "patients"}, "epsilon= and delta="),
        ({"dataset": "patients", "epsilon": 1.0}, "epsilon= and delta="),
        ({"dataset": "patients", "epsilon": math.nan, "delta": 1e-5}, "epsilon must be a finite number"),
        ({"dataset": "patients", "epsilon": math.inf, "delta": 1e-5}, "epsilon must be a finite number"),
        ({"dataset": "patients", "epsilon": -1.0, "delta": 1e-5}, "epsilon must be positive"),
        ({"dataset": "patients", "epsilon": True, "delta": 1e-5}, "epsilon must be a finite number"),
        ({"dataset": "patients", "epsilon": "4", "delta": 1e-5}, "epsilon must be a finite number"),
        ({"dataset": "patients", "epsilon": 4, "delta": 0.0}, "delta must lie"),
        ({"dataset": "patients", "epsilon": 4, "delta": 1}, "delta must lie"),
        ({"dataset": "patients", "epsilon": 4, "delta": math.nan}, "delta must be a finite number"),
        ({"dataset": "", "epsilon": 4, "delta": 1e-5}, "dataset must be printable"),
        ({"dataset": "a\x1b[0m", "epsilon": 4, "delta": 1e-5}, "dataset must be printable"),
        ({"dataset": 7, "epsilon": 4, "delta": 1e-5}, "dataset must be text"),
    ]
    for given_, words in bad:
        with pytest.raises(ValueError, match=words.replace("(", r"\(")):
            Ledger.open(path, **given_)
    nameless: Any = 7
    with pytest.raises(ValueError, match="path must be the name of a file"):
        Ledger.open(nameless, "patients", **LIFE)
    assert not path.exists() and list(path.parent.iterdir()) == []
    opened(path).spend(0.1, label="x", unit=ROW)
    before = path.read_bytes()
    for given_, words in (
        ({"dataset": "patients", "epsilon": 3.0}, r"is \(4, 1e-05\) and was fixed before"),
        ({"dataset": "patients", "delta": 1e-6}, r"is \(4, 1e-05\) and was fixed before"),
        ({"dataset": "others"}, "epsilon and delta are missing: .* has 'patients'"),
        ({"dataset": "others", "epsilon": 1.0}, "delta is missing"),
    ):
        with pytest.raises(ValueError, match=words):
            Ledger.open(path, **given_)
    with pytest.raises(LedgerError, match="looks the same as 'patients'"):
        Ledger.open(path, "Patients", **LIFE)
    with pytest.raises(UnitMismatch):
        opened(path, unit=PrivacyUnit("person", Neighbours.ADD_REMOVE))
    assert path.read_bytes() == before
    # What is known need not be said again.
    assert Ledger.open(path).budget == Ledger.open(str(path), epsilon=4).budget == Budget(4.0, 1e-5)


def test_a_budget_is_fixed_when_it_is_opened(path: Path) -> None:
    """Also between two processes that open a new dataset at once: the second one is refused, and so is a command."""
    opened(path)
    with pytest.raises(ValueError, match=r"is \(4, 1e-05\) and was fixed before"):
        Ledger.open(path, "patients", epsilon=40.0, delta=1e-5)
    assert Ledger.open(path).budget == Budget(4.0, 1e-5)
    with on_file(path) as found:
        state = found.dataset("patients")
        assert (state.spent, state.counted, state.open, state.unit) == (0, 0, 0, None)
    # A site's policy may change it. Then what was opened before is refused.
    ledger = Ledger.open(path)
    account = StudyBudget(
        study="0" * 64, title="heart", dataset="patients", trust="hub", epsilon=1.0, delta=1e-6, mu=0.1, unit=ROW
    )
    with DurableLedger.open(path) as site:
        site.join(account, life=Budget(3.0, 1e-5))
    for act in (lambda: ledger.spend(0.1, label="x"), lambda: ledger.reserve(0.1, label="x")):
        with pytest.raises(ValueError, match=r"is \(3, 1e-05\) and was fixed before. Open the ledger without"):
            act()


def _open_at_once(path: Path, epsilon: float, sender: Any) -> None:
    try:
        ledger = Ledger.open(path, "patients", epsilon=epsilon, delta=1e-5)
    except ValueError as error:
        sender.send(str(error))
    else:
        sender.send(ledger.budget.epsilon)


def test_of_two_who_open_a_new_ledger_at_once_one_decides(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        pipes = [context.Pipe(duplex=False) for _ in range(4)]
        path = tmp_path / f"{attempt}.ledger"
        running = [context.Process(target=_open_at_once, args=(path, 1.0 + number, pipe[1])) for number, pipe in enumerate(pipes)]
        for process in running:
            process.start()
        answers = [receiver.recv() for receiver, _ in pipes]
        for process in running:
            process.join()
        decided = [answer for answer in answers if isinstance(answer, float)]
        assert decided == [Ledger.open(path).budget.epsilon]
        assert sum("fixed before" in str(answer) for answer in answers) == 3


def test_a_second_dataset_has_a_budget_of_its_own_and_is_warned_of(path: Path) -> None:
    ledger = opened(path)
    ledger.spend(0.3, label="x", unit=ROW)
    with pytest.warns(UserWarning, match="'others' gets a budget of its own .* which has 'patients' already"):
        others = Ledger.open(path, "others", epsilon=1.0, delta=1e-6)
    others.spend(0.1, label="y", unit=PrivacyUnit("person", Neighbours.ZERO_OUT))
    assert ledger.spent_mu == pytest.approx(0.3) and others.spent_mu == pytest.approx(0.1)
    assert ledger.charges == (Charge("x", 0.3),) and others.charges == (Charge("y", 0.1),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Ledger.open(path, "others").spent_mu == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"dataset is missing: .* has 'others', 'patients'"):
        Ledger.open(path)


def test_dust_is_not_lost(path: Path) -> None:
    """A thousand charges that a rounded sum would not notice, in one reserve and by hand, and then no more than the budget."""
    ledger = Ledger.open(path, "patients", epsilon=1.0, delta=1e-6, unit=ROW)
    limit, dust = mu_for(1.0, 1e-6), 3e-8
    study = ledger.reserve(limit, label="fit")
    study.spend(limit * math.sqrt(1 - 1e-12), label="most")
    assert isinstance(ledger._store, FileStore) and study.name is not None
    lasting, name = ledger._store.lasting(), study.name
    # In one step, because each step waits for the disk; the rule is the same.
    with pytest.raises(BudgetExceeded):
        lasting.commit(name, 1, came=b"", replies=[], charges=[Charge("dust", dust * limit)] * 1_400, keep=False)
    lasting.commit(name, 1, came=b"", replies=[], charges=[Charge("dust", dust * limit)] * 900, keep=False)
    for number in range(2, 40):
        lasting.commit(name, number, came=b"", replies=[], charges=[Charge("dust", 1e-9 * limit)], keep=False)
    _, found = lasting.studies()
    exact = (1 - 1e-12) + 900 * dust**2 + 38 * 1e-18
    assert found.standing.exact.value == pytest.approx(limit * limit * exact, rel=1e-15)
    assert ledger.epsilon() <= 1.0
    study.close()
    with on_file(path) as again:
        assert again.studies()[1].standing.exact == found.standing.exact


def test_many_charges_of_dust_in_memory_end_at_the_budget() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    limit = mu_for(1.0, 1e-6)
    ledger.spend(limit, label="all")
    paid = 0
    with pytest.raises(BudgetExceeded):
        for _ in range(100_000):
            ledger.spend(3e-9 * limit, label="dust")
            paid += 1
    # The one tolerance, a part in 10^13 of mu, and not a charge more.
    assert paid * 9e-18 <= 2.1e-13 and ledger.spent_mu <= limit * (1 + 1.1e-13) and ledger.epsilon() <= 1.0


def test_threads_and_handles_share_one_budget(path: Path) -> None:
    each, outcomes = LIMIT / math.sqrt(5), []
    ledgers = [opened(path, unit=ROW) for _ in range(3)]
    start = threading.Barrier(9)

    def fit(number: int) -> None:
        start.wait()
        try:
            with ledgers[number % 3].reserve(each, label=f"fit {number}") as reserve:
                for _ in range(2):
                    reserve.spend(each / math.sqrt(2), label=f"fit {number}")
        except BudgetExceeded:
            outcomes.append(False)
        else:
            outcomes.append(True)

    threads = [threading.Thread(target=fit, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Who reserved while others held theirs was refused; whoever was not is paid in full.
    assert sum(outcomes) == 5 and len(outcomes) == 9
    assert ledgers[0].spent_mu == pytest.approx(LIMIT, rel=1e-9) and spent_on(path) <= LIMIT * (1 + 1e-12)


def test_estimators_in_threads_share_a_file(path: Path) -> None:
    ledger = Ledger.open(path, "patients", epsilon=1.5, delta=1e-6)
    outcomes: list[str] = []

    def fit() -> None:
        try:
            outcomes.append("paid" if fitted(ledger).components_.shape == (2, 4) else "wrong")
        except BudgetExceeded:
            outcomes.append("refused")

    threads = [threading.Thread(target=fit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Two cost epsilon 1.45 together.
    assert sorted(outcomes) == ["paid", "paid", "refused", "refused"]
    assert spent_on(path) == pytest.approx(mu_for(1.0, 1e-6) * math.sqrt(2)) and len(ledger.charges) == 4


def _hammer(path: Path, seed: int, sender: Any) -> None:
    ledger, paid, errors = opened(path), 0.0, []
    for number in range(8):
        mu = 0.02 * (1 + (seed + number) % 5)
        try:
            if number % 2:
                ledger.spend(mu, label=f"{seed}.{number}", unit=ROW)
            else:
                with ledger.reserve(2 * mu, label="fit", unit=ROW) as reserve:
                    reserve.spend(mu, label=f"{seed}.{number}")
            paid += mu * mu
        except BudgetExceeded:
            continue
        except BaseException as error:
            errors.append(repr(error))
    sender.send((paid, errors))


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_processes_lose_no_charge_and_pass_no_budget(path: Path, how: str) -> None:
    small = Ledger.open(path, "patients", epsilon=4.0, delta=1e-5)
    small.spend(0.9 * LIMIT, label="before", unit=ROW)
    context: Any = multiprocessing.get_context(how)
    # A process that is spawned loads everything anew, which takes seconds.
    pipes = [context.Pipe(duplex=False) for _ in range(4 if how == "fork" else 2)]
    running = [context.Process(target=_hammer, args=(path, seed, pipe[1])) for seed, pipe in enumerate(pipes)]
    for process in running:
        process.start()
    answers = [receiver.recv() for receiver, _ in pipes]
    for process in running:
        process.join()
    assert [errors for _, errors in answers] == [[]] * len(pipes)
    assert small.spent_mu**2 == pytest.approx((0.9 * LIMIT) ** 2 + sum(paid for paid, _ in answers), rel=1e-9)
    assert small.spent_mu <= LIMIT * (1 + 1e-12) and small.reserved_mu == pytest.approx(0, abs=1e-6)


def test_a_fork_opens_the_file_itself_and_leaves_its_parents_reserves_alone(path: Path) -> None:
    ledger = opened(path, unit=ROW)
    ledger.spend(0.1, label="parent")
    reserve = ledger.reserve(0.2, label="of the parent")
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            ledger.spend(0.3, label="child")
            with ledger.reserve(0.1, label="fit") as own:
                own.spend(0.1, label="fit of the child")
            with pytest.raises(BudgetExceeded, match="copy"):
                reserve.spend(0.1, label="stolen")
            reserve.close()
            copied = [charge.label for charge in ledger.charges]
            gc.collect()
        except BaseException as error:
            sender.send(repr(error))
        else:
            sender.send(copied)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert receiver.recv() == ["parent", "child", "fit of the child"]
    process.join()
    assert process.exitcode == 0
    # The parent's reserve is open still, and its connection works.
    assert ledger.reserved_mu == pytest.approx(0.2)
    reserve.spend(0.2, label="all of it")
    ledger.spend(0.05, label="after")
    assert ledger.spent_mu == pytest.approx(math.hypot(0.1, 0.3, 0.1, 0.2, 0.05))


def test_forks_while_another_thread_writes_lose_nothing(path: Path) -> None:
    ledger, ended = opened(path, unit=ROW), threading.Event()
    counts = [0]

    def writes() -> None:
        while not ended.is_set():
            ledger.spend(1e-3, label="thread")
            counts[0] += 1

    thread = threading.Thread(target=writes)
    thread.start()
    context = multiprocessing.get_context("fork")
    children = []
    for _ in range(6):
        process = context.Process(target=lambda: ledger.spend(1e-3, label="child"))
        process.start()
        children.append(process)
        time.sleep(0.01)
    for process in children:
        process.join(60)
    ended.set()
    thread.join()
    assert [process.exitcode for process in children] == [0] * 6
    assert len(ledger.charges) == counts[0] + 6
    assert spent_on(path) == pytest.approx(1e-3 * math.sqrt(counts[0] + 6))


def test_a_child_of_a_fork_in_the_middle_of_a_write_refuses_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite in the child would believe that it has the locks of its parent."""
    monkeypatch.setattr(file, "_FORK_WAIT", 0.05)
    ledger, inside, forked = opened(path, unit=ROW), threading.Event(), threading.Event()
    assert isinstance(ledger._store, FileStore)
    lasting = ledger._store.lasting()

    def writes() -> None:
        with lasting._file.writing():
            inside.set()
            forked.wait(60)

    thread = threading.Thread(target=writes)
    thread.start()
    inside.wait(60)
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            ledger.spend(0.1, label="x")
        except LedgerError as error:
            sender.send(str(error))
        else:
            sender.send("spent")

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    said = receiver.recv()
    forked.set()
    thread.join()
    process.join()
    assert "forked while its parent was writing" in said
    ledger.spend(0.1, label="x")
    assert len(ledger.charges) == 1


def test_copies_are_the_ledger_and_pickles_open_it_again(path: Path) -> None:
    ledger = opened(path)
    pca = PrivatePCA(2, ledger=ledger, **FIT)
    assert copy.copy(ledger) is ledger and copy.deepcopy(ledger) is ledger and clone(pca).ledger is ledger
    fitted_pca = pickle.loads(pickle.dumps(pca.fit(ROWS)))  # noqa: S301
    assert fitted_pca.ledger is not ledger and fitted_pca.ledger.charges == ledger.charges
    fitted_pca.fit(ROWS)
    assert ledger.spent_mu == pytest.approx(mu_for(1.0, 1e-6) * math.sqrt(2))
    stored = pickle.dumps(ledger)
    path.rename(path.with_name("elsewhere"))
    # It can be looked at where the file is not, and cannot spend.
    again = pickle.loads(stored)  # noqa: S301
    assert "does not exist" in repr(again)
    for act in (lambda: again.spend(0.1, label="x", unit=ROW), lambda: again.spent_mu, lambda: fitted(again)):
        with pytest.raises(LedgerError):
            act()
    assert not path.exists()
    # Another ledger of that name is not the one that was pickled.
    opened(path).spend(0.1, label="x", unit=ROW)
    with pytest.raises(LedgerError, match="another ledger"):
        pickle.loads(stored).spend(0.1, label="x", unit=ROW)  # noqa: S301


def test_joblib_workers_spend_from_the_same_file(path: Path) -> None:
    import joblib

    ledger = opened(path)
    jobs = [joblib.delayed(fitted)(ledger, epsilon=0.5) for _ in range(3)]
    joblib.Parallel(n_jobs=2)(jobs)
    assert ledger.spent_mu == pytest.approx(mu_for(0.5, 1e-6) * math.sqrt(3))


def _removed(path: Path) -> None:
    path.unlink()


def _exchanged(path: Path) -> None:
    other = path.with_name("other")
    Ledger.open(other, "patients", **LIFE)
    other.replace(path)


def _copied_over(path: Path) -> None:
    """An older copy, written into the same file."""
    path.write_bytes(path.with_name("old").read_bytes())


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (_removed, "was removed while it was open"),
        (_exchanged, "was exchanged for another one"),
        (_copied_over, "removed or rewritten while it was open"),
    ],
)
@pytest.mark.parametrize("when", ["before a reserve", "before a charge"])
def test_a_file_that_goes_while_it_is_open_is_missed(path: Path, happens: Callable[[Path], None], words: str, when: str) -> None:
    ledger = opened(path, unit=ROW)
    shutil.copy(path, path.with_name("old"))
    ledger.spend(0.1, label="x")
    reserve = ledger.reserve(0.2, label="fit") if when == "before a charge" else None
    happens(path)
    with pytest.raises(LedgerError, match=words):
        fitted(ledger) if reserve is None else reserve.spend(0.1, label="y")
    if path.exists():
        # Nothing was written to what is there now.
        with on_file(path) as found:
            assert found.dataset("patients").spent == 0


def test_a_file_that_goes_in_the_middle_of_a_charge_is_missed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(path, unit=ROW)
    ledger.spend(0.1, label="x")
    real = tables.append

    def append(*given_: Any, **more: Any) -> Any:
        path.rename(path.with_name("gone"))
        return real(*given_, **more)

    monkeypatch.setattr(tables, "append", append)
    with pytest.raises(LedgerError, match="was removed while it was open"):
        ledger.spend(0.1, label="y")


def test_odd_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = opened(Path("people.ledger"))
    ledger.spend(0.1, label="x", unit=ROW)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    # Where it was opened, and not where the process is now.
    ledger.spend(0.1, label="y")
    assert pickle.loads(pickle.dumps(ledger)).spent_mu == ledger.spent_mu  # noqa: S301
    assert list(Path().iterdir()) == []
    for wrong in (tmp_path, tmp_path / "elsewhere"):
        with pytest.raises(LedgerError, match="is not a file"):
            opened(wrong)
    with pytest.raises(LedgerError, match="does not exist"):
        opened(tmp_path / "nowhere" / "people.ledger")
    link = tmp_path / "link.ledger"
    link.symlink_to(tmp_path / "people.ledger")
    by_link = opened(link)
    by_link.spend(0.1, label="z")
    assert ledger.charges == by_link.charges and len(ledger.charges) == 3
    text = tmp_path / "notes.txt"
    text.write_text("no ledger")
    text.chmod(0o600)
    with pytest.raises(LedgerError, match="not a ledger"):
        opened(text)
    (tmp_path / "people.ledger").chmod(0o644)
    with pytest.raises(LedgerError, match="chmod 600"):
        opened(tmp_path / "people.ledger")


def test_a_file_that_cannot_be_written_is_refused_before_anything(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(path).spend(0.1, label="x", unit=ROW)
    path.chmod(0o400)
    if os.geteuid() == 0:
        # Root may write everything, so the system is asked for somebody else.
        real = os.access
        monkeypatch.setattr(os, "access", lambda name, mode: real(name, mode) and not (mode == os.W_OK and Path(name) == path))
    with pytest.raises(LedgerError, match=r"cannot be written.* chmod u"):
        opened(path)
    assert spent_on(path) == pytest.approx(0.1)


def test_what_a_crash_left_beside_it(path: Path) -> None:
    """A journal without its ledger is no reason to begin a new one; a log of another program is none of its own."""
    journal = path.with_name(path.name + "-journal")
    journal.write_bytes(b"left")
    journal.chmod(0o600)
    with pytest.raises(LedgerError, match="Put the ledger back"):
        opened(path)
    journal.unlink()
    ledger = opened(path)
    ledger.spend(0.1, label="x", unit=ROW)
    log = path.with_name(path.name + "-wal")
    log.write_bytes(b"left")
    log.chmod(0o600)
    with pytest.raises(LedgerError, match="move it away"):
        opened(path)


def test_a_clock_that_goes_back_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(path, unit=ROW)
    for at in (1e9, 0.0, -1e9, 1e18, math.nan):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        ledger.spend(0.1, label="x")
    assert len(Ledger.open(path).charges) == 5 and spent_on(path) == pytest.approx(0.1 * math.sqrt(5))


def test_nobody_is_told_that_the_database_is_locked(path: Path) -> None:
    """Another program holds it for a while: whoever charges waits."""
    ledger = opened(path, unit=ROW)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    released = threading.Timer(0.5, lambda: other.execute("ROLLBACK"))
    released.start()
    ledger.spend(0.1, label="x")
    released.join()
    other.close()
    assert ledger.spent_mu == pytest.approx(0.1)


def test_a_reserve_that_is_dropped_or_left_at_exit_is_given_back(path: Path) -> None:
    ledger = opened(path, unit=ROW)
    reserve = ledger.reserve(0.5, label="fit")
    reserve.spend(0.1, label="x")
    assert ledger.reserved_mu == pytest.approx(math.sqrt(0.24))
    del reserve
    gc.collect()
    assert ledger.reserved_mu == pytest.approx(0, abs=1e-9) and ledger.spent_mu == pytest.approx(0.1)
    code = (
        "import sys; from eigenveil import Ledger; ledger = Ledger.open(sys.argv[1]); "
        "kept = ledger.reserve(0.5, label='left'); kept.spend(0.2, label='y')"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=120)
    assert ledger.reserved_mu == pytest.approx(0, abs=1e-9) and ledger.spent_mu == pytest.approx(math.hypot(0.1, 0.2))


def test_a_fit_that_fails_keeps_its_charges_and_frees_the_rest(path: Path) -> None:
    ledger = opened(path)
    with pytest.raises(ValueError, match="epsilon is too small for"):
        PrivatePCA(2, epsilon=0.05, delta=1e-6, ledger=ledger).fit(ROWS)
    assert 0 < ledger.spent_mu < mu_for(0.05, 1e-6) and ledger.reserved_mu == pytest.approx(0, abs=1e-9)
    with on_file(path) as found:
        assert [study.state for study in found.studies()] == ["finished", "abandoned"]


def test_a_reserve_that_was_closed_by_hand_refuses_and_hides_nothing(path: Path) -> None:
    ledger = opened(path, unit=ROW)
    with pytest.raises(LedgerError, match="is abandoned"), ledger.reserve(0.5, label="fit") as reserve:
        reserve.spend(0.1, label="x")
        assert eigenveil("ledger", "close", path, "fit, Python", "--yes").exit_code == 0
        reserve.spend(0.1, label="y")
    assert ledger.spent_mu == pytest.approx(0.1) and ledger.reserved_mu == pytest.approx(0, abs=1e-9)


def test_what_was_paid_for_is_not_lost_if_the_rest_cannot_be_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(path, unit=ROW)

    def full(*_: object) -> None:
        raise LedgerError("the disk is full")

    with ledger.reserve(0.5, label="fit") as reserve:
        reserve.spend(0.1, label="x")
        monkeypatch.setattr(DurableLedger, "finish", full)
        with pytest.warns(UserWarning, match="stays reserved: the disk is full. Free it later with: eigenveil ledger close"):
            reserve.close()
    assert ledger.reserved_mu == pytest.approx(math.sqrt(0.24))


def test_slots_of_a_stream_are_charged_whole_and_survive_a_restart(path: Path, tmp_path: Path) -> None:
    ledger, state = opened(path), tmp_path / "stream.state"
    whole = mu_for(1.0, 1e-6)
    stream = StreamingPCA(2, ledger=ledger, block_size=100, **FIT)
    stream.partial_fit(ROWS[:1000]).sync()
    stream.save_state(state)
    # Nothing of it may be free while a state can go on.
    assert ledger.spent_mu == pytest.approx(whole)
    again = StreamingPCA.resume(state, ledger=Ledger.open(path))
    again.partial_fit(ROWS[1000:2000]).sync()
    assert ledger.spent_mu == pytest.approx(whole) and ledger.reserved_mu == pytest.approx(0, abs=1e-9)
    assert again.components_.shape == (2, 4)


def test_a_stream_that_waits_for_its_first_slot_gives_the_rest_back_and_reserves_it_again(path: Path, tmp_path: Path) -> None:
    ledger, state = opened(path), tmp_path / "stream.state"
    StreamingPCA(2, ledger=ledger, block_size=100, **FIT).partial_fit(ROWS[:1000]).save_state(state)
    searched = ledger.spent_mu
    assert 0 < searched < mu_for(1.0, 1e-6) and ledger.reserved_mu == pytest.approx(0, abs=1e-9)
    StreamingPCA.resume(state, ledger=Ledger.open(path)).partial_fit(ROWS[1000:]).sync()
    assert ledger.spent_mu == pytest.approx(mu_for(1.0, 1e-6))


def test_a_stream_of_another_ledger_is_not_resumed_on_this_one(path: Path, tmp_path: Path) -> None:
    state = tmp_path / "stream.state"
    StreamingPCA(2, ledger=opened(path), block_size=100, **FIT).partial_fit(ROWS[:1000]).save_state(state)
    other = Ledger.open(tmp_path / "other.ledger", "patients", **LIFE)
    for wrong in (other, Ledger(**LIFE)):
        with pytest.raises(ValueError, match="charged to another ledger"):
            StreamingPCA.resume(state, ledger=wrong)
    assert StreamingPCA.resume(state, ledger=Ledger.open(path)).n_samples_seen_ == 1000


def test_by_hand_in_slots(path: Path) -> None:
    ledger = opened(path, unit=ROW)
    for number in range(5):
        ledger.spend(0.2, label="block", slot=Slot(series="blocks", number=number, per_person=1))
    assert ledger.charges == (Charge("block", 0.2),) and spent_on(path) == pytest.approx(0.2)


def test_python_and_the_command_line_agree(tmp_path: Path, path: Path) -> None:
    table = written(tmp_path, "csv")
    Ledger.open(path, "people", epsilon=1.7, delta=1e-6).spend(0.1, label="by hand", unit=ROW)
    target = tmp_path / "model.safetensors"
    done = eigenveil("fit", table, "-k", 2, *PRIVATE, "--ledger", path, "-o", target)
    assert done.exit_code == 0, done.output
    ledger = Ledger.open(path)
    assert ledger.spent_mu == pytest.approx(math.hypot(0.1, mu_for(1.0, 1e-6)), rel=1e-6)
    fitted(ledger)
    with on_file(path) as found:
        titles = [study.account.title for study in found.studies()]
    assert titles == ["total budget", "by hand, Python", "fit, model.safetensors", "fit, Python"]
    assert "by 0 open studies" in eigenveil("ledger", "show", path).output
    assert eigenveil("ledger", "verify", path).exit_code == 0
    line = refusal("fit", table, "-k", 2, *PRIVATE, "--ledger", path, "-o", target, "--force", code=1)
    assert line.endswith(f"What is left is enough for --epsilon {ledger.left(1e-6):g}")
    with pytest.raises(BudgetExceeded, match=rf"What is left is enough for epsilon={ledger.left(1e-6):g}$"):
        fitted(ledger)
    # Another kind, charged by a command first.
    with pytest.raises(UnitMismatch):
        fitted(ledger, neighbours="zero-out", epsilon=0.1)
