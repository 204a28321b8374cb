"""A site that is killed at any point, whose disk is full, or whose clock jumps.

Nothing is charged twice, and nothing leaves without a charge.

`benchmarks/network/kills.py` tries every point, and every call of the system that writes, syncs or sends.
"""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from eigenveil.ledger.durable import DurableLedger, LedgerError
from eigenveil.protocols.messages import Contribution, Message
from eigenveil.protocols.wire import encode
from ledger.ledger_children import LIFE, account
from network.kills.kill_children import Child, Nursery, as_text, nursery
from network.kills.kill_counts import STUDIES, VICTIM, Counts, charges_in, lines_at, renoised_in
from network.kills.kill_runs import Killing, small_disk
from network.network_studies import Company, keys_of


@pytest.fixture(scope="module", name="children")
def _children() -> Iterator[Nursery]:
    with nursery() as found:
        yield found


def right(counts: Counts) -> None:
    """Nothing went wrong, and if something did, what it was."""
    assert counts.wrong == 0, counts.why


# Some of the points of each study, which are before and after each join, commit, send, model and finish, in this order.
SOME = [
    ("masked covariance", (2, 4, 21, 22, 47)),
    ("masked krylov", (40,)),
    ("site covariance", (4, 5)),
    ("site krylov", (13,)),
    ("hub krylov", (4, 9)),
]
MORE = [
    ("masked covariance", (20, 29, 44, 49)),
    ("masked krylov", (25, 62)),
    ("site covariance", (3, 6)),
    ("site krylov", (8, 24)),
    ("hub krylov", (14,)),
]


@pytest.mark.parametrize(
    "name, point",
    [(name, point) for name, points in SOME for point in points]
    + [pytest.param(name, point, marks=pytest.mark.slow) for name, points in MORE for point in points],
)
def test_a_site_that_is_killed_is_charged_once_and_says_the_same_again(
    tmp_path: Path, children: Nursery, name: str, point: int
) -> None:
    killing = Killing(children, name, tmp_path)
    right(asyncio.run(killing.run(partial(killing.start, kill=point))))
    assert killing.codes[0] == -9


@pytest.mark.parametrize("name, least", [("masked krylov", 6), ("site krylov", 4), ("hub covariance", 3)])
def test_a_site_that_is_killed_again_and_again_gets_there(tmp_path: Path, children: Nursery, name: str, least: int) -> None:
    killing = Killing(children, name, tmp_path)
    lives = [partial(killing.start, kill=least + life % 4) for life in range(40)]
    counts = asyncio.run(killing.run(lives[0], *lives[1:]))
    right(counts)
    assert counts.kills > 5


def test_a_site_that_sends_before_it_writes_is_found_out(tmp_path: Path, children: Nursery) -> None:
    killing = Killing(children, "site covariance", tmp_path, seconds=1.5)
    counts = asyncio.run(killing.run(partial(killing.start, kill=4, careless="sends first")))
    assert killing.codes[0] == -9
    assert counts.unpaid == 1


def test_a_site_that_makes_new_noise_is_found_out(tmp_path: Path, children: Nursery) -> None:
    killing = Killing(children, "site covariance", tmp_path, seconds=1.5)
    careless = partial(killing.start, careless="forgets")
    counts = asyncio.run(killing.run(partial(careless, kill=4), careless))
    assert killing.codes[0] == -9
    assert counts.double > 0
    first, second = (encode(Message(VICTIM, "hub", Contribution(round=3, arrays=(np.full(2, noise),)))) for noise in (0.1, 0.2))
    assert renoised_in([first, first]) == 0
    assert renoised_in([first, first, second]) == 1


@pytest.mark.parametrize("name, step", [("masked covariance", 5), ("site krylov", 0), ("hub krylov", 3)])
def test_where_the_disk_is_full_nothing_leaves_and_with_room_the_study_goes_on(
    tmp_path: Path, children: Nursery, name: str, step: int
) -> None:
    killing = Killing(children, name, tmp_path)
    full = partial(killing.start, full_at=step)
    right(asyncio.run(killing.run(full, full)))
    assert killing.codes[0] == 1
    kind, words = Child({"log": tmp_path / "log"}).said("failed")[0]
    assert kind == "LedgerError"
    assert "nothing was written and nothing may leave" in words
    assert "no room" in words or "the disk refused" in words


def test_a_ledger_for_which_there_is_no_room_is_not_made_and_with_room_it_is(tmp_path: Path) -> None:
    # Places where the disk may be full while the ledger is made, joined, or written to.
    for room in range(0, 700_000, 16_384):
        folder = tmp_path / str(room)
        try:
            disk = small_disk(folder, room)
            more = disk.__enter__()
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no disk can be mounted here")
        try:
            with contextlib.suppress(LedgerError), DurableLedger.open(folder / "ledger") as ledger:
                ledger.join(account(), life=LIFE)
                ledger.commit(account().study, 0, came=b"", replies=[b"x" * 100_000], charges=[])
            more()
            with DurableLedger.open(folder / "ledger") as ledger:
                ledger.join(account(), life=LIFE)
                ledger.verify()
        finally:
            disk.__exit__(None, None, None)


@pytest.mark.parametrize("name, jumps", [("masked covariance", {1: -1.0, 3: 10.0}), ("site krylov", {2: 10.0, 3: -30.0})])
def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, children: Nursery, name: str, jumps: dict[int, float]) -> None:
    killing = Killing(children, name, tmp_path)
    right(asyncio.run(killing.run(partial(killing.start, clock=jumps, kill=17), partial(killing.start, clock=jumps))))
    years = {int(line.time[:4]) for line in lines_at(killing.ledger)}
    assert len(years) > 1


@pytest.mark.parametrize("years, words", [(-1.0, "begins on"), (10.0, "ended on")])
def test_a_site_that_starts_with_a_wrong_clock_is_told_before_anything_is_spent(
    tmp_path: Path, children: Nursery, years: float, words: str
) -> None:
    killing = Killing(children, "site covariance", tmp_path)
    child = killing.start(clock={0: years})
    assert child.ended.result(20) == 1
    ((kind, why),) = child.said("failed")
    assert kind == "ValueError"
    assert "the certificate of" in why and words in why and "by this computer's clock" in why
    assert [line.kind for line in lines_at(killing.ledger)] == ["book"]
    assert child.said("told") == []


def test_of_two_processes_of_one_site_in_one_study_one_refuses(tmp_path: Path, children: Nursery) -> None:
    killing = Killing(children, "site covariance", tmp_path)
    others: list[Child] = []

    def twice() -> Child:
        first = killing.start()
        # Once the first waits for the hub it holds the study.
        while not any(what == "waiting" for what, *_ in first.said("told")):
            assert not first.ended.done(), first.said("failed")
            time.sleep(0.01)
        settings = {name: value for name, value in first.settings.items() if name != "task"}
        others.append(killing.nursery.start("site", **{**settings, "log": tmp_path / "other"}))
        return first

    right(asyncio.run(killing.run(twice)))
    assert others[0].ended.result(20) == 1
    ((kind, why),) = others[0].said("failed")
    assert kind == "LedgerError" and "is run by another process here" in why
    assert others[0].said("told") == []


def test_of_two_studies_that_start_at_once_on_a_life_for_one_exactly_one_joins(tmp_path: Path, children: Nursery) -> None:
    killed: list[Child] = []
    companies = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        company = Company(folder, sections={**STUDIES["site covariance"], "study": {"id": f"{number}" * 32}})
        companies.append(company)
        (folder / "study.toml").write_text(company.study.text())
        np.save(folder / "table.npy", company.tables[VICTIM])
        hub = keys_of("hub", "hub").certificate.pin
        killed.append(
            children.start(
                "site",
                study=folder / "study.toml",
                table=folder / "table.npy",
                keys=as_text(keys_of(VICTIM, "site")),
                ledger=tmp_path / "ledger",
                model=folder / "model.npy",
                log=folder / "log",
                policy=f'[pins]\nhub = ["{hub}"]\n[budget]\nstudy_epsilon = 5.0\nlifetime_epsilon = 6.0',
            )
        )
    while not (
        any(child.ended.done() for child in killed)
        and any(what == "waiting" for child in killed for what, *_ in child.said("told"))
    ):
        assert not all(child.ended.done() for child in killed), [child.said("failed") for child in killed]
        time.sleep(0.01)
    (refused,) = [child for child in killed if child.ended.done()]
    (joined,) = [child for child in killed if not child.ended.done()]
    ((kind, why),) = refused.said("failed")
    assert kind == "BudgetExceeded" and "does not fit in the total budget of dataset 'patients'" in why
    assert not any(what == "waiting" for what, *_ in refused.said("told"))
    children.kill(joined)
    joined.ended.result(20)
    lines = lines_at(tmp_path / "ledger")
    assert [line.kind for line in lines] == ["book", "join"]
    assert charges_in(lines) == []
