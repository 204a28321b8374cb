"""A hub that is killed at any point goes on from its transcript, and asks nobody for what it has."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from eigenveil.protocols.messages import Ask, Done
from network.agents.hub_runs import HubKilling
from network.kills.kill_children import Child, Nursery, nursery
from network.kills.kill_counts import Counts, charges_in, lines_at


@pytest.fixture(scope="module", name="children")
def _children() -> Iterator[Nursery]:
    with nursery() as found:
        yield found


def right(counts: Counts) -> None:
    """Nothing went wrong, and if something did, what it was."""
    assert counts.wrong == 0, counts.why


# Some of the points of each study, which are before and after each line of the transcript and each send.
SOME = [("masked covariance", (2, 50, 71, 120)), ("site krylov", (12, 33)), ("hub krylov", (8, 27))]
MORE = [("masked covariance", (1, 5, 90)), ("site krylov", (7, 60)), ("hub krylov", (14, 45))]


@pytest.mark.parametrize(
    "name, point",
    [(name, point) for name, points in SOME for point in points]
    + [pytest.param(name, point, marks=pytest.mark.slow) for name, points in MORE for point in points],
)
def test_a_hub_that_is_killed_goes_on_and_asks_nobody_for_what_it_has(
    tmp_path: Path, children: Nursery, name: str, point: int
) -> None:
    killing = HubKilling(children, name, tmp_path)
    right(asyncio.run(killing.run(partial(killing.start, kill=point))))
    assert killing.codes[0] == -9
    assert killing.refused() == []


@pytest.mark.parametrize("name", ["hub krylov", pytest.param("masked covariance", marks=pytest.mark.slow)])
def test_a_hub_that_is_killed_again_and_again_gets_there(tmp_path: Path, children: Nursery, name: str) -> None:
    killing = HubKilling(children, name, tmp_path)
    counts = asyncio.run(killing.run(*[partial(killing.start, kill=point) for point in (11, 17, 24)]))
    right(counts)
    assert counts.kills == 3


@pytest.mark.parametrize("name, lines", [("site covariance", 7), ("hub krylov", 16)])
def test_a_hub_that_is_killed_with_the_answer_in_hand_has_it_for_everybody(
    tmp_path: Path, children: Nursery, name: str, lines: int
) -> None:
    killing = HubKilling(children, name, tmp_path)
    # The last part is in the transcript, and nobody has been told what follows.
    right(asyncio.run(killing.run(partial(killing.start, kill=["after add", lines]))))
    assert killing.codes[0] == -9
    assert {type(body) for body in killing.questions(0)} == {Ask}
    assert [type(body) for body in killing.questions(1)] == [Done] * 3


# After so many messages to site 2 it goes away: in the first round, in a later one, and under masks in each step of a round.
GOING = [("site krylov", (3,)), ("hub krylov", (1,)), ("masked covariance", (3, 6))]
MORE_GOING = [("site krylov", (1,)), ("hub krylov", (3,)), ("masked covariance", (1, 5, 7, 8))]


@pytest.mark.parametrize(
    "name, messages",
    [(name, messages) for name, places in GOING for messages in places]
    + [pytest.param(name, messages, marks=pytest.mark.slow) for name, places in MORE_GOING for messages in places],
)
def test_a_hub_that_lost_its_quorum_goes_on_when_all_are_there(
    tmp_path: Path, children: Nursery, name: str, messages: int
) -> None:
    killing = HubKilling(children, name, tmp_path, network={"deadline": 0.7, "retries": 0})
    counts = asyncio.run(killing.run(*[killing.start] * 5, leaves=("site 2", messages)))
    right(counts)
    assert killing.codes[0] == 1
    assert Child({"log": tmp_path / "log"}).said("failed")[0][0] == "QuorumLost"


@pytest.mark.parametrize("name, line", [("masked covariance", 12), ("hub krylov", 5)])
def test_where_the_disk_of_the_hub_is_full_it_says_so_and_goes_on_with_room(
    tmp_path: Path, children: Nursery, name: str, line: int
) -> None:
    killing = HubKilling(children, name, tmp_path)
    right(asyncio.run(killing.run(partial(killing.start, full_at=line))))
    assert killing.codes[0] == 1
    kind, words = Child({"log": tmp_path / "log"}).said("failed")[0]
    assert kind == "TranscriptError"
    assert "nothing more was sent. Make room on the disk and start the hub again" in words


@pytest.mark.parametrize("name, line", [("masked covariance", 25), ("site krylov", 6), ("hub krylov", 6)])
def test_a_hub_that_lost_its_transcript_cannot_make_anybody_pay_again(
    tmp_path: Path, children: Nursery, name: str, line: int
) -> None:
    killing = HubKilling(children, name, tmp_path, network={"deadline": 0.7, "retries": 0}, seconds=3.0)

    def anew() -> Child:
        for path in tmp_path.glob("hub.transcript*"):
            path.unlink()
        return killing.start()

    counts = asyncio.run(killing.run(partial(killing.start, kill=["after add", line]), anew))
    # Whether it comes to something or not, it costs nothing more.
    assert killing.codes[0] == -9
    assert counts.double == counts.unpaid == 0
    for site in killing.company.names:
        spent = charges_in(lines_at(killing.company.ledger(site)))
        assert spent == killing.expected[: len(spent)]
