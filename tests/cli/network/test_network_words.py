"""What somebody reads before they consent: what leaves, how it is covered, and what it costs."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from cli.network.network_folders import Folders
from eigenveil import GossipPCA
from eigenveil.cli.network.words import cost_words, left_words, peer_revealed_words, revealed_words, rounded
from eigenveil.network.ledger.durable import DurableLedger, StudyBudget
from eigenveil.network.study.parties import parties_of, peer_parties_of
from eigenveil.privacy import Budget, Charge, epsilon_of


@pytest.mark.parametrize(
    "privacy, expected",
    [
        ({"trust": "site"}, "They leave with noise that this site adds itself"),
        ({"trust": "hub"}, "THEY LEAVE AS THEY ARE, without noise: the hub reads them"),
        ({"trust": "both", "epsilon": [5.0, 2.0]}, "the hub adds more before it passes anything on"),
        ({"trust": None, "epsilon": None, "delta": None, "none": True}, "nothing is guaranteed to anybody"),
        ({"epsilon": None, "delta": None, "none": True}, "the hub reads their exact sum over at least 3 sites"),
    ],
)
def test_what_leaves_is_said_for_every_trust(tmp_path: Path, privacy: dict[str, Any], expected: str) -> None:
    study = Folders(tmp_path, privacy=privacy).study
    what, covered = revealed_words(study, parties_of(study))
    assert expected in covered
    assert what.startswith("What leaves this site, in at most ")


def test_the_methods_say_what_they_sum(tmp_path: Path) -> None:
    study = Folders(tmp_path, task={"method": "krylov", "rounds": 3, "center": "none"}, privacy={"trust": "site"}).study
    parties = parties_of(study)
    (what, _) = revealed_words(study, parties)
    width = parties.request.plan.width
    assert f"products of the rows with {width} directions; the sum of squares of all entries." in what
    assert "mean" not in what


@pytest.mark.parametrize(
    "privacy, expected",
    [
        ({"colluders": 1}, "together with one peer that tells them everything"),
        ({"noise": "independent"}, "They leave with noise that this peer adds itself"),
        (
            {"noise": None, "epsilon": None, "delta": None, "none": True},
            "for neighbours to read, and nothing is guaranteed",
        ),
    ],
)
def test_what_leaves_a_peer_is_said_for_every_noise(tmp_path: Path, privacy: dict[str, Any], expected: str) -> None:
    study = Folders(tmp_path, peers=4, privacy=privacy).study
    what, covered = peer_revealed_words(study, peer_parties_of(study))
    assert expected in covered
    assert what.startswith("What leaves this peer, in at most ")


@pytest.mark.parametrize(
    "task, sums, numbers",
    [
        ({"rounds": 3}, "the number of people; products of the rows with 5 directions; the sum of squares", 25),
        (
            {"method": "covariance", "rounds": None},
            "the number of people; the sums of products of each two columns",
            15,
        ),
    ],
)
def test_a_peer_says_as_many_rounds_as_there_are(tmp_path: Path, task: dict[str, Any], sums: str, numbers: int) -> None:
    # With a center that is given no step depends on the rows.
    folders = Folders(tmp_path, peers=4, task={"center": "none"} | task, privacy={"noise": "independent"})
    fitted = folders.study.estimator().fit(folders.tables)
    assert isinstance(fitted, GossipPCA)
    what, _ = peer_revealed_words(folders.study, peer_parties_of(folders.study))
    assert f"in at most {len(fitted.guarantee_.charges)} rounds: {sums}" in what
    assert f"At most {numbers} numbers at once" in what


def test_a_peer_that_may_begin_again_says_so(tmp_path: Path) -> None:
    study = Folders(tmp_path, peers=4, privacy={"noise": "independent", "restarts": 2}, task={"center": "none"}).study
    what, _, again = peer_revealed_words(study, peer_parties_of(study))
    assert "in at most 6 rounds: " in what
    assert again.startswith("Up to 2 rounds may leave once more, with new noise, when peers vanish")


def test_costs_add_up_in_squares_and_are_rounded_against_the_reader(tmp_path: Path) -> None:
    account = StudyBudget("2" * 64, "heart", "patients", "masked", 5.0, 1e-6, mu=1.0, beyond=1e-9)
    life = Budget(9.0, 1e-5)
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(StudyBudget("1" * 64, "earlier", "patients", "site", 2.0, 1e-6, mu=0.5), life=life)
        ledger.commit("1" * 64, 0, came=b"", said=[b"x"], charges=[Charge("sum", 0.3)])
        (state,) = ledger.datasets()
        lines = [words for words, _ in cost_words(account, state, life=life, joined=False)]
        spent, reserved = rounded(epsilon_of(0.3, 1e-5)), rounded(epsilon_of(0.5, 1e-5))
        assert f"{spent} spent, {reserved} reserved by open studies, {reserved} counted for life" in lines[1]
        most = epsilon_of(math.hypot(0.5, 1.0), 1e-5 - 1e-9)
        assert f"With this study it is at most {rounded(most)}, of 9 that the policy allows" in lines[2]
        ledger.finish("1" * 64)
        (state,) = ledger.datasets()
    left = left_words(state, life)
    found = re.search(r"another study of epsilon ([0-9.]+) at", left)
    assert found is not None
    # Another study of that much fits, and one a little larger does not.
    fits = math.hypot(0.3, Budget(float(found[1]), 1e-5).mu)
    assert fits <= life.mu < math.hypot(0.3, Budget(float(found[1]) * 1.001, 1e-5).mu)
    assert left_words(state, None).startswith("there is no bound")
