"""What a person reads before they consent: what leaves, how it is covered, and what it costs."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from commands.network.network_folders import Folders
from eigenveil import GossipPCA
from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.ledger.durable import DurableLedger, StudyBudget
from eigenveil.network.parties import parties_of, peer_parties_of
from eigenveil.network.study import StudyFile
from eigenveil.show.agreement import facts_of
from eigenveil.show.disclosure import cost_fact, leaving_peer, remaining_budget_text, rounded, site_disclosures

ROW = PrivacyUnit("row", Neighbours.ADD_REMOVE)


def leaving(study: StudyFile) -> dict[str, str]:
    """What is said of what leaves a party, by label."""
    if study.topology == "gossip":
        near = study.peers[1:3]
        return dict(leaving_peer(study, peer_parties_of(study), near=near, listens="127.0.0.1:7443"))
    assert study.hub is not None
    return dict(site_disclosures(study, parties_of(study), above=study.hub, address=None))


def test_the_methods_say_what_they_sum(tmp_path: Path) -> None:
    study = Folders(tmp_path, task={"method": "krylov", "rounds": 3, "center": "none"}, privacy={"trust": "site"}).study
    what, width = leaving(study)["What leaves"], parties_of(study).request.fit.plan.width
    assert f"products of the rows with {width} directions and the sum of squares of all entries." in what
    assert "mean" not in what


def test_a_norm_in_units_says_so_and_the_mean_is_noisy(tmp_path: Path) -> None:
    told = dict(facts_of(Folders(tmp_path, task={"scale": [2.0] * 5}).study))
    assert told["Clipping"].startswith("rows are clipped to norm 4 around the noisy mean that the study releases. ")
    assert "Columns are first divided by the study's scale, and the norm is in these units." in told["Clipping"]
    assert "learns noisy estimates of the components, the mean of all rows" in told["Result"]


@pytest.mark.parametrize("neighbours", ["add-remove", "zero-out", "replace-one"])
def test_all_rows_of_a_person_are_spoken_of_only_where_a_column_names_people(tmp_path: Path, neighbours: str) -> None:
    task: dict[str, Any] = {"neighbours": neighbours}
    more: dict[str, Any] = {} if neighbours == "add-remove" else {"sizes": {f"site {at}": 1013 for at in range(3)}}

    def said(name: str, task: dict[str, Any], **sections: Any) -> str:
        (tmp_path / name).mkdir()
        return dict(facts_of(Folders(tmp_path / name, task=task, **more, **sections).study))["Neighbouring tables"]

    by_row = said("rows", task)
    assert "one row" in by_row and "person" not in by_row and "people" not in by_row
    assert "one person" in said("people", {**task, "person": "patient_id"})
    # People at several sites are protected with one row at each.
    assert "No person has more than one row at a site" in said("several", task, privacy={"person_sites": 2})


@pytest.mark.parametrize(
    "task, sums, numbers",
    [
        ({"rounds": 3}, "the number of rows, products of the rows with 5 directions and the sum of squares", 25),
        ({"method": "covariance", "rounds": None}, "the number of rows and the sums of products of every pair of columns", 15),
    ],
)
def test_a_peer_says_as_many_rounds_as_there_are(tmp_path: Path, task: dict[str, Any], sums: str, numbers: int) -> None:
    # With a center that is given no step depends on the rows.
    folders = Folders(tmp_path, peers=4, task={"center": "none"} | task, privacy={"noise": "independent"})
    fitted = folders.study.estimator().fit(folders.tables)
    assert isinstance(fitted, GossipPCA)
    said = leaving(folders.study)
    assert said["Rounds"].startswith(f"at most {len(fitted.guarantee_.charges)}. ")
    assert said["What leaves"].startswith(sums)
    assert f"at most {numbers} numbers ({8 * numbers} B)" in said["Rounds"]


def test_costs_add_up_in_squares_and_are_rounded_against_the_reader(tmp_path: Path) -> None:
    account = StudyBudget(
        study="2" * 64,
        title="heart",
        dataset="patients",
        trust="masked",
        epsilon=5.0,
        delta=1e-6,
        mu=1.0,
        extra_delta=1e-9,
        unit=ROW,
    )
    life = Budget(9.0, 1e-5)
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(
            StudyBudget(
                study="1" * 64, title="earlier", dataset="patients", trust="site", epsilon=2.0, delta=1e-6, mu=0.5, unit=ROW
            ),
            life=life,
        )
        ledger.commit("1" * 64, 0, came=b"", replies=[b"x"], charges=[Charge("sum", 0.3)])
        (state,) = ledger.datasets()
        said = cost_fact(account, state, life=life, joined=False).text
        spent, reserved = rounded(epsilon_of(0.3, 1e-5)), rounded(epsilon_of(0.5, 1e-5))
        assert f"{spent} spent, {reserved} reserved by open studies, {reserved} counted in total" in said
        most = epsilon_of(math.hypot(0.5, 1.0), 1e-5 - 1e-9)
        assert (
            f"In total with this study: at most epsilon {rounded(most)} of the 9 your policy allows, both at delta 1e-05." in said
        )
        ledger.finish("1" * 64)
        (state,) = ledger.datasets()
    left = remaining_budget_text(state, life)
    found = re.search(r"another study of epsilon ([0-9.]+) at", left)
    assert found is not None
    # Another study of that much fits, and one a little larger does not.
    fits = math.hypot(0.3, Budget(float(found[1]), 1e-5).mu)
    assert fits <= life.mu < math.hypot(0.3, Budget(float(found[1]) * 1.001, 1e-5).mu)
    assert remaining_budget_text(state, None).startswith("no total budget is set")
