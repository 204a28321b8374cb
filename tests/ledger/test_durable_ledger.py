"""The ledger in one process: what is committed comes back byte for byte, what ended is wiped, and time decides nothing."""

import hashlib
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.errors import BudgetExceeded
from eigenveil.ledger.durable import DurableLedger, LedgerError, StudyBudget, StudyStep
from ledger.ledger_children import LIFE, account, digits

SUM = Charge("sum", 0.05)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[DurableLedger]:
    with DurableLedger.open(tmp_path / "ledger.db") as opened:
        yield opened


def test_what_was_committed_comes_back_byte_for_byte(tmp_path: Path) -> None:
    heart, path = account(), tmp_path / "ledger.db"
    with DurableLedger.open(path) as ledger:
        first = ledger.join(heart, life=LIFE)
        assert (first.fresh, tuple(first.steps), first.finished, len(first.secret)) == (True, (), False, 32)
        ledger.commit(heart.study, 0, came=b"ask", replies=[b"", b"\0\xff" * 40_000], charges=[SUM, Charge("count", 0.01)])
        ledger.commit(heart.study, 1, came=b"thanks", replies=[], charges=[])
        ledger.commit(heart.study, 2, came=b"secret", replies=[b"never stored"], charges=[SUM], keep=False)
    with DurableLedger.open(path, create=False) as ledger:
        again = ledger.join(heart, life=LIFE)
        steps = tuple(again.steps)
        last = ledger.verify()
    assert (again.fresh, again.secret, again.finished) == (False, first.secret, False)
    assert steps == (
        StudyStep(number=0, incoming=b"ask", replies=(b"", b"\0\xff" * 40_000), charges=(SUM, Charge("count", 0.01))),
        StudyStep(number=1, incoming=b"thanks", replies=(), charges=()),
        StudyStep(number=2, incoming=b"", replies=(), charges=(SUM,), is_stored=False),
    )
    assert last.number == 5
    assert b"never stored" not in path.read_bytes()
    assert str(first.secret) not in repr(again)
    assert "ask" not in repr(again.steps)
    assert "ask" not in repr(steps)


def test_secrets_differ_between_studies(ledger: DurableLedger) -> None:
    found = {ledger.join(account(str(i), mu=0.01), life=None).secret for i in range(5)}
    assert len(found) == 5


def test_a_step_out_of_order_is_refused(ledger: DurableLedger) -> None:
    heart = account()
    ledger.join(heart, life=LIFE)
    ledger.commit(heart.study, 0, came=b"", replies=[b"a"], charges=[])
    head = ledger.head
    for number in (0, 2, -1):
        with pytest.raises(LedgerError, match=r"at step 1, not .*another process has gone on"):
            ledger.commit(heart.study, number, came=b"", replies=[b"b"], charges=[])
    with pytest.raises(LedgerError, match="never joined"):
        ledger.commit(digits("lungs"), 0, came=b"", replies=[], charges=[])
    assert ledger.head == head


def test_pruned_steps_keep_their_charges_and_digests(ledger: DurableLedger) -> None:
    heart = account()
    ledger.join(heart, life=LIFE)
    for number in range(4):
        ledger.commit(heart.study, number, came=b"c%d" % number, replies=[b"s%d" % number], charges=[SUM])
    ledger.prune(heart.study, 3)
    ledger.verify()
    entries = ledger.join(heart, life=LIFE).steps
    assert [entry.is_stored for entry in entries] == [False, False, False, True]
    assert entries[3].replies == (b"s3",)
    assert all(entry.charges == (SUM,) for entry in entries)
    said = [line.body["said"] for line in ledger.entries() if line.kind == "commit"]
    assert ledger.is_mark_of(b"s0", said[0][0]) and not ledger.is_mark_of(b"s1", said[0][0])


def test_a_finished_study_frees_its_reserve_and_is_wiped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    message = {"heart": os.urandom(500_000), "lungs": os.urandom(5_000)}
    with DurableLedger.open(path) as ledger:
        # Many studies, so that rows with secrets have been moved between pages.
        secrets = {str(i): ledger.join(account(str(i), mu=0.001), life=LIFE).secret for i in range(160)}
        for name, data in message.items():
            secrets[name] = ledger.join(account(name, mu=0.1), life=LIFE).secret
            ledger.commit(digits(name), 0, came=data[:100], replies=[data], charges=[SUM])
        ledger.finish(digits("heart"))
        for i in range(0, 160, 8):
            ledger.abandon(digits(str(i)))
        for file in tmp_path.iterdir():
            assert message["heart"][200:264] not in file.read_bytes()
            assert message["heart"][:64] not in file.read_bytes()
            assert secrets["heart"] not in file.read_bytes()
            assert not [i for i in range(0, 160, 8) if secrets[str(i)] in file.read_bytes()]
        assert path.stat().st_size < 450_000
        assert message["lungs"][200:264] in path.read_bytes()
        assert secrets["lungs"] in path.read_bytes()
        opened = ledger.join(account("heart", mu=0.1), life=LIFE)
        assert (opened.finished, opened.secret, opened.steps[0].is_stored) == (True, b"", False)
        assert opened.steps[0].charges == (SUM,)
        states = {study.account.title: study for study in ledger.studies()}
        assert states["heart"].spent == pytest.approx(0.05)
        expected = math.sqrt(0.05**2 + 0.1**2 + 140 * 0.001**2)
        assert ledger.datasets()[0].counted == pytest.approx(expected)
        with pytest.raises(LedgerError, match="is finished"):
            ledger.commit(digits("heart"), 1, came=b"", replies=[], charges=[])
        with pytest.raises(LedgerError, match="is finished"):
            ledger.finish(digits("heart"))
        ledger.verify()


def test_a_study_that_was_given_up_is_closed_for_good(ledger: DurableLedger) -> None:
    heart = account()
    ledger.join(heart, life=LIFE)
    ledger.abandon(heart.study)
    with pytest.raises(LedgerError, match="closed for good"):
        ledger.join(heart, life=LIFE)
    for refused in (ledger.finish, ledger.abandon):
        with pytest.raises(LedgerError, match="is abandoned"):
            refused(heart.study)
    with pytest.raises(LedgerError, match="is abandoned"):
        ledger.prune(heart.study, 1)


def test_terms_that_were_joined_cannot_be_changed(ledger: DurableLedger) -> None:
    ledger.join(account(), life=LIFE)
    for other in (account(mu=0.3), account(dataset="others"), account(extra_delta=1e-9)):
        with pytest.raises(LedgerError, match="on other terms"):
            ledger.join(other, life=LIFE)


def test_rows_that_change_or_go_by_two_names_are_told(ledger: DurableLedger, tmp_path: Path) -> None:
    print_of = hashlib.sha256(b"rows").digest()
    assert ledger.declare("patients", print_of) == []
    assert ledger.declare("patients", print_of) == []
    (changed,) = ledger.declare("patients", b"other rows")
    assert "not those last seen" in changed
    (twice,) = ledger.declare("people", print_of)
    assert "also in the ledger as 'patients'" in twice
    assert "add up" in twice
    # Whether rows changed is in no entry: others may see those.
    assert [line.kind for line in ledger.entries()] == ["book"]
    for file in tmp_path.iterdir():
        assert print_of not in file.read_bytes()
    assert print_of.hex() not in str(list(ledger.entries()))


def test_one_part_in_common_makes_the_same_rows(ledger: DurableLedger) -> None:
    # Prints of parts are added when they come, and once.
    ledger.declare("patients", b"all rows")
    for _ in range(2):
        assert ledger.declare("patients", b"all rows", b"age", b"weight") == []
    assert ledger.known_as("people", b"fewer columns", b"weight") == ("patients",)
    assert ledger.known_as("people", b"other rows", b"other weight") == ()
    assert ledger.known_as("patients", b"all rows") == ()
    (changed,) = ledger.declare("patients", b"fewer columns", b"weight")
    assert "not those last seen" in changed
    assert [line.kind for line in ledger.entries()] == ["book"]


def test_a_source_is_known_again_whatever_is_in_it(ledger: DurableLedger) -> None:
    ledger.declare("patients", b"rows", source="/data/a.csv")
    ledger.declare("patients", b"rows", source="/data/a.csv")
    ledger.declare("people", b"other rows", source="/data/b.csv")
    assert ledger.read_as("people", "/data/a.csv") == ("patients",)
    assert ledger.read_as("patients", "/data/a.csv") == ledger.read_as("patients", "/data/c.csv") == ()
    # Agreed to once, it has both names.
    ledger.declare("people", b"rows", source="/data/a.csv")
    assert ledger.read_as("staff", "/data/a.csv") == ("patients", "people")


def test_what_is_logged_is_for_the_site_alone(ledger: DurableLedger) -> None:
    head, told = ledger.head, list[str]()
    ledger.after_writing(lambda: told.append("written"))
    ledger.log(digits("heart"), "refused:\nnot in the policy")
    ledger.declare("patients", b"rows", source="/data/a.csv")
    ((_, study, words),) = ledger.logged()
    assert (study, words) == (digits("heart"), "refused: not in the policy")
    # Nobody who sees the head, or when its file was written, learns of it.
    assert ledger.head == head and not told


def test_notes_are_entries_about_any_study(ledger: DurableLedger) -> None:
    heart = account()
    ledger.note(heart.study, "refused:\nnot in the policy")
    ledger.join(heart, life=LIFE)
    ledger.note(heart.study, "consent given")
    notes = [line for line in ledger.entries() if line.kind == "note"]
    assert [line.body["words"] for line in notes] == ["refused: not in the policy", "consent given"]
    assert [line.dataset for line in notes] == [None, "patients"]


@pytest.mark.parametrize("now", [0.0, -86_400.0, 253_402_300_799.0, 1e15, math.inf])
def test_the_clock_decides_nothing(ledger: DurableLedger, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    heart = account(mu=0.08)
    ledger.join(heart, life=LIFE)
    ledger.commit(heart.study, 0, came=b"", replies=[b"a"], charges=[SUM])
    monkeypatch.setattr(time, "time", lambda: now)
    ledger.commit(heart.study, 1, came=b"", replies=[b"b"], charges=[SUM])
    with pytest.raises(BudgetExceeded):
        ledger.commit(heart.study, 2, came=b"", replies=[b"c"], charges=[SUM])
    monkeypatch.undo()
    ledger.commit(heart.study, 2, came=b"", replies=[b"d"], charges=[])
    assert [entry.replies for entry in ledger.join(heart, life=LIFE).steps] == [(b"a",), (b"b",), (b"d",)]
    assert ledger.verify().number == 5
    assert ledger.datasets()[0].spent == pytest.approx(math.hypot(0.05, 0.05))


def test_one_process_per_study(ledger: DurableLedger) -> None:
    with ledger.lock(digits("heart")):
        with pytest.raises(LedgerError, match=digits("heart")[:16]), ledger.lock(digits("heart")):
            pass
        with ledger.lock(digits("lungs")):
            pass
    with ledger.lock(digits("heart")):
        pass


@pytest.mark.parametrize("same_id", [False, True])
def test_a_fork_must_open_the_ledger_itself(ledger: DurableLedger, monkeypatch: pytest.MonkeyPatch, same_id: bool) -> None:
    if same_id:
        # The kernel may give a fork of a fork the id of an ancestor that is dead.
        here = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: here)
    child = os.fork()
    if child == 0:
        try:
            ledger.note(digits("heart"), "from a child")
        except LedgerError as error:
            os._exit(0 if "another process" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    ledger.verify()


def test_threads_write_one_at_a_time(ledger: DurableLedger) -> None:
    names = [f"study {i}" for i in range(4)]
    for name in names:
        ledger.join(account(name, mu=0.05), life=LIFE)

    def spend(name: str) -> None:
        for number in range(10):
            ledger.commit(digits(name), number, came=b"", replies=[name.encode()], charges=[Charge("x", 0.01)])

    threads = [threading.Thread(target=spend, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.verify()
    assert [study.steps for study in ledger.studies()] == [10] * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"study": "abc"}, "study must be 64"),
        ({"study": "A" * 64}, "study must be 64"),
        ({"title": ""}, "title must be printable"),
        ({"dataset": "a\nb"}, "dataset must be printable"),
        ({"epsilon": None}, "go together"),
        ({"epsilon": math.inf}, "epsilon must be finite"),
        ({"mu": 0.0}, "mu must be positive"),
        ({"mu": math.nan}, "mu must be positive"),
        ({"mu": math.inf}, "mu must be infinite exactly where"),
        ({"epsilon": None, "delta": None}, "mu must be infinite exactly where"),
        ({"extra_delta": 1.0}, "extra_delta must lie in"),
    ],
)
def test_an_account_is_checked(change: dict[str, object], words: str) -> None:
    good = {"study": digits("a"), "title": "a", "dataset": "d", "trust": "hub", "epsilon": 1.0, "delta": 1e-6, "mu": 0.1}
    with pytest.raises(ValueError, match=words):
        StudyBudget(**{**good, **change})  # type: ignore[arg-type]


def test_other_lives_do_not_matter_to_what_is_stored(ledger: DurableLedger) -> None:
    ledger.join(account("a", dataset="one", mu=0.1), life=Budget(1.0, 1e-6))
    ledger.join(account("b", dataset="two", mu=0.2), life=Budget(1.0, 1e-6))
    assert [(state.name, state.counted) for state in ledger.datasets()] == [("one", 0.1), ("two", 0.2)]
