"""A hub that is killed at any point goes on from its transcript, and asks nobody for what it has."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.errors import ProtocolError
from eigenveil.network.agents.hub_log import HubLog, LogEntry, ReplayMechanism, TranscriptError
from eigenveil.privacy.released import release_columns
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


STUDY = "a" * 64
KILLED = """
import os, signal, sys
from pathlib import Path
from eigenveil.network.agents.hub_log import HubLog, LogEntry

log = HubLog.open(Path(sys.argv[1]), study="a" * 64, wheel="1")
for number in range(5):
    log.add(LogEntry(kind="message", sender="north", data=bytes(9000), released=b"noisy sum %d" % number))
print(log.secret.hex(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_hub_has_released_nothing_that_another_file_must_remember(tmp_path: Path) -> None:
    path = tmp_path / "transcript.db"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    for other in tmp_path.iterdir():
        if other != path:
            other.unlink()
    with HubLog.open(path, study=STUDY, wheel="1") as log:
        assert [event.released for event in log.events()] == [b"noisy sum %d" % number for number in range(5)]
        # Announced nonces of masks come from it.
        assert log.secret.hex() == killed.stdout.strip()


def test_a_second_hub_on_one_transcript_is_refused_and_does_not_hold_up_the_first(tmp_path: Path) -> None:
    path = tmp_path / "transcript.db"
    with HubLog.open(path, study=STUDY, wheel="1") as log:
        for number in range(3):
            with pytest.raises(TranscriptError, match="another hub has it open"):
                HubLog.open(path, study=STUDY, wheel="1")
            log.add(LogEntry(kind="message", sender="north", data=b"sum", released=b"released"))
            assert sum(1 for _ in log.events()) == number + 1


def hub() -> tuple[ReplayMechanism, Ledger]:
    ledger = Ledger(epsilon=5.0, delta=1e-6)
    return ReplayMechanism(Gaussian(multiplier=3.0, ledger=ledger, noise=Noise.fresh())), ledger


def test_what_was_released_is_given_again_and_charged_again() -> None:
    first, spent = hub()
    whole = first.release(Bounded(np.ones(3), 1.0), label="sum")
    parts = list(release_columns(first, iter([np.ones((2, 1))] * 2), dim=2, sensitivity=1.0, label="slices"))
    kept = first.taken()
    assert first.taken() is None
    second, ledger = hub()
    second.recall(kept)
    np.testing.assert_array_equal(second.release(Bounded(np.ones(3), 1.0), label="sum"), whole)
    again = release_columns(second, iter([np.ones((2, 1))] * 2), dim=2, sensitivity=1.0, label="slices")
    assert len(ledger.charges) == 2
    np.testing.assert_array_equal(list(again), parts)
    second.require_all_given()
    assert ledger.charges == spent.charges
    # From here on noise is new.
    assert not np.array_equal(second.release(Bounded(np.ones(3), 1.0), label="sum"), whole)


def test_releases_of_another_hub_are_refused() -> None:
    first, _ = hub()
    first.release(Bounded(np.ones(3), 1.0), label="sum")
    second, _ = hub()
    second.recall(first.taken())
    with pytest.raises(ProtocolError, match="releases that this hub does not make"):
        second.require_all_given()
    with pytest.raises(ProtocolError, match="other releases"):
        second.release(Bounded(np.ones(4), 1.0), label="sum")
