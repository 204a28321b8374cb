"""The guarantee of every situation, word for word. A privacy officer signs it, so read the pages in guarantees/ as prose.

`python tests/estimators/test_guarantee_words.py` writes those files from real fits. Read the difference before you commit it.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from eigenveil import (
    FederatedPCA,
    FederatedStream,
    GossipPCA,
    PrivatePCA,
    PrivateRecommender,
    StreamingPCA,
    Symmetric,
    find_bounds,
    find_column_bounds,
    released_spectrum,
)
from eigenveil.core.accounting import Budget
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.papers.local_rows import local_rows_pca
from eigenveil.privacy.facts import COMPONENTS, GuaranteeFacts, MaskedSites, PeersAlone, Person, TableRows
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.runtimes.local import Faults

GOLDEN = Path(__file__).with_name("guarantees")
ROWS = np.random.default_rng(7).normal(size=(400, 4)) * [3, 2, 1, 1]
TABLE = pd.DataFrame(ROWS, columns=list("abcd")).assign(who=np.arange(400) // 2)
SITES = np.array_split(ROWS, 5)
TABLES = [TABLE[start : start + 80] for start in range(0, 400, 80)]
USERS = (np.random.default_rng(8).random((600, 8)) < np.repeat([0.7, 0.2], 4)).astype(float)
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
BOUND: dict[str, Any] = BUDGET | {"row_bound": 12.0}


def alone(**choices: Any) -> Guarantee:
    return PrivatePCA(2, **(BOUND | choices)).fit(ROWS).guarantee_


def hub(sites: Any = SITES, **choices: Any) -> Guarantee:
    return FederatedPCA(2, **(BOUND | choices)).fit(sites).guarantee_


def peers(**choices: Any) -> Guarantee:
    return GossipPCA(2, **(BOUND | {"graph": "complete"} | choices)).fit(SITES).guarantee_


def stream(**choices: Any) -> StreamingPCA:
    return StreamingPCA(2, **(BOUND | {"block_size": 60} | choices)).fit(ROWS)


def slots(**choices: Any) -> Guarantee:
    given: dict[str, Any] = BOUND | {"slots": 8} | choices
    return FederatedStream(2, **given).partial_fit({f"site {at}": rows for at, rows in enumerate(SITES)}).guarantee_


def sphere(kind: Any, **choices: Any) -> Guarantee:
    """Rows of one norm around zero, so that noise does not decide which bound is found."""
    rows = 11.9 * ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    table = np.array_split(rows, 4) if kind in (FederatedPCA, GossipPCA) else rows
    found: Guarantee = kind(2, epsilon=6.0, delta=1e-6, center=None, **choices).fit(table).guarantee_
    return found


def items(users: Any = USERS, **choices: Any) -> Guarantee:
    given: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-4, "on_noise": "warn"} | choices
    return PrivateRecommender(2, **given).fit(users).guarantee_


def local() -> Guarantee:
    given: dict[str, Any] = {"rank": 2, "row_bound": 1.0, "budget": Budget(1.0, 1e-5), "noise": Noise.fresh()}
    return local_rows_pca(SITES, **given).guarantee


def apart(seen_by: Any, place: Any) -> Guarantee:
    facts = GuaranteeFacts(
        budget=Budget(1.0, 1e-6),
        protects=Person(source=place),
        neighbours=Neighbours.ADD_REMOVE,
        rows=TableRows(norm=12.0),
        seen_by=seen_by,
        released=COMPONENTS,
        charges=(),
        reproducible=False,
    )
    return facts.guarantee()


PAIR: dict[str, Any] = {"trust": "both", "epsilon": (4.0, 0.5)}
TREE: dict[str, Any] = {"topology": "tree", "fanout": 2}
FOUR = ("a", "b", "c", "d")
SITUATIONS: dict[str, Callable[[], Guarantee]] = {
    "one table": alone,
    "one table, zero-out": lambda: alone(neighbours="zero-out"),
    "one table, replace-one, around given numbers": lambda: alone(neighbours="replace-one", center=np.ones(4)),
    "one table, rows left where they are, in units": lambda: alone(center=None, scale=2.0),
    "one table, people with several rows": lambda: PrivatePCA(2, **BOUND, person="who").fit(TABLE).guarantee_,
    "one table, a weak budget": lambda: alone(epsilon=25.0, delta=0.01, neighbours="zero-out"),
    "one table, known seed": lambda: alone(random_state=1),
    "one table, no privacy": lambda: alone(epsilon=None, delta=None),
    "one table, bound found privately": lambda: sphere(PrivatePCA),
    "one table, units found privately": lambda: alone(scale="private", row_bound=2.0, epsilon=6.0),
    "one table, missing values, counted": lambda: alone(missing="counts"),
    "one table, missing values, by groups": lambda: alone(missing="groups", missing_groups="0,1;2,3"),
    "one table, missing values, dropped": lambda: alone(missing="drop", neighbours="zero-out"),
    "one table, missing values, filled": lambda: alone(missing="fill", missing_fill=0.0),
    "sites, masked, missing values counted": lambda: hub(trust="masked", missing="counts"),
    "peers, missing values by groups": lambda: peers(missing="groups", missing_groups="0,1;2,3", method="covariance"),
    "stream, missing values counted": lambda: stream(missing="counts").guarantee_,
    "sites, masked, bound found privately": lambda: sphere(FederatedPCA, trust="masked"),
    "peers, bound found privately": lambda: sphere(GossipPCA, graph="complete"),
    "stream, bound found privately": lambda: sphere(StreamingPCA, block_size=60),
    "stream, units found privately": lambda: stream(scale="private", row_bound=2.0, epsilon=6.0).guarantee_,
    "stream, in given units": lambda: stream(scale=2.0).guarantee_,
    "sites, trusted hub": hub,
    "sites, noise at the sites": lambda: hub(trust="site"),
    "sites, noise in both places": lambda: hub(**PAIR),
    "sites, masked": lambda: hub(trust="masked", survivors=4, colluders=2),
    "sites, masked, apart, few masks": lambda: apart(
        MaskedSites(survivors=99, colluders=1, honest=97, noise_delta=9.995e-7, failure=5e-10, apart=True), "site"
    ),
    "sites in a tree, trusted hub": lambda: hub(**TREE),
    "sites in a tree, noise in both places": lambda: hub(**TREE, **PAIR),
    "sites, a person at three": lambda: hub(person_sites=3),
    "sites, people with several rows": lambda: hub(TABLES, person="who", trust="site"),
    "sites, drawn for each round": lambda: hub(method="power", participation=("without-replacement", 2)),
    "sites, matrices and rows": lambda: hub([Symmetric(SITES[0].T @ SITES[0], people=80), *SITES[1:]], center=None),
    "sites, known seed": lambda: hub(random_state=1),
    "sites, noise in both places, known seed": lambda: hub(**PAIR, random_state=1),
    "sites, no privacy": lambda: hub(epsilon=None, delta=None),
    "peers, noise in pairs": lambda: peers(noise="pairwise"),
    "peers, noise in pairs, two colluders": lambda: peers(noise="pairwise", colluders=2, noise_graph="complete"),
    "peers, each all of the noise": lambda: peers(noise="independent"),
    "peers, people with several rows": lambda: GossipPCA(2, **BOUND, graph="complete", person="who").fit(TABLES).guarantee_,
    "peers, one gone": lambda: peers(noise="independent", restarts=2, quorum=4, faults=Faults(dies={"peer 1": 8})),
    "peers, apart, a bound on mu": lambda: apart(
        PeersAlone(names=FOUR, counted=FOUR, colluders=1, excess=1.25, apart=True, restarts=1, ratio=32.0, exact=False), "peer"
    ),
    "peers, known seed": lambda: peers(random_state=1),
    "stream, at synchronisations": lambda: stream().guarantee_,
    "stream, a person in three blocks": lambda: stream(person_blocks=3, neighbours="replace-one").guarantee_,
    "stream, people named by a column": lambda: (
        StreamingPCA(2, **BOUND, block_size=60, person="who", person_blocks=2).fit(TABLE).guarantee_
    ),
    "stream, column bounds": lambda: stream(row_bound="private", column_bounds=(-9.0, 9.0), center=None).guarantee_,
    "stream, every block": lambda: stream(publish="block", center=None).guarantee_,
    "stream, continual": lambda: stream(publish="continual", horizon=400, origin=1.0).guarantee_,
    "stream, merged": lambda: stream().merge(stream(epsilon=2.0)).guarantee_,
    "stream, known seed": lambda: stream(random_state=1).guarantee_,
    "stream, no privacy": lambda: stream(epsilon=None, delta=None, row_bound=None).guarantee_,
    "slots, trusted hub": slots,
    "slots, noise at the sites in a tree": lambda: slots(trust="site", **TREE, neighbours="replace-one", origin=1.0),
    "slots, masked, a person in three": lambda: slots(trust="masked", survivors=4, person_slots=3),
    "slots, of a clock": lambda: slots(trust="site", neighbours="add-remove", scale=2.0),
    "slots, devices": lambda: slots(trust="masked", survivors=4, one_person_per_site=True),
    "slots, no privacy": lambda: slots(epsilon=None, delta=None, row_bound=None),
    "bound on rows": lambda: find_bounds(ROWS, **BUDGET).guarantee,
    "bound on rows, people with several": lambda: find_bounds(TABLE, **BUDGET, person="who").guarantee,
    "bounds on columns": lambda: find_column_bounds(ROWS, **BUDGET).guarantee,
    "spectrum": lambda: released_spectrum(ROWS, **BOUND).guarantee,
    "spectrum, known seed": lambda: released_spectrum(ROWS, **BOUND, random_state=1).guarantee,
    "spectrum, no privacy": lambda: released_spectrum(ROWS, **(BOUND | {"epsilon": None, "delta": None})).guarantee,
    "recommender, users": items,
    "recommender, users there or not": lambda: items(neighbours="add-remove", item_degrees="private"),
    "recommender, another history": lambda: items(neighbours="replace-one", items=[0, 1, 4, 5]),
    "recommender, single interactions": lambda: items(unit="item", item_degrees=np.ones(8), delta=0.01),
    "recommender, users with few items": lambda: items(min_degree=3),
    "recommender, one site adds the noise": lambda: items(trust="site", items=6),
    "recommender, sites, trusted hub": lambda: items(np.array_split(USERS, 5)),
    "recommender, sites, noise at the sites": lambda: items(np.array_split(USERS, 5), trust="site", unit="item"),
    "recommender, sites, masked": lambda: items(np.array_split(USERS, 5), trust="masked"),
    "recommender, known seed": lambda: items(random_state=1),
    "recommender, no privacy": lambda: items(epsilon=None, delta=None),
    "every row with noise": local,
}


@cache
def guarantee_of(name: str) -> Guarantee:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SITUATIONS[name]()


def page_of(name: str) -> str:
    """The page without its last part, the cost: how many releases there are depends on the noise."""
    return str(guarantee_of(name)).partition("\nCost: ")[0]


def file_of(name: str) -> Path:
    return GOLDEN / f"{name.replace(',', '').replace(' ', '-')}.txt"


def sentences_of(guarantee: Guarantee) -> Iterator[str]:
    for _, texts in [("", (guarantee.title,)), *guarantee.parts()]:
        for text in texts:
            yield from re.split(r"(?<=[.!?])\s+(?=[A-Z0-9])", text)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_guarantee_is_the_one_that_was_read(name: str) -> None:
    assert page_of(name) + "\n" == file_of(name).read_text(encoding="utf-8")


def test_no_situation_is_left_over() -> None:
    assert {file_of(name) for name in SITUATIONS} == set(GOLDEN.iterdir())


@pytest.mark.parametrize("name", SITUATIONS)
def test_it_fits_on_one_page_in_short_sentences(name: str) -> None:
    guarantee = guarantee_of(name)
    lines = str(guarantee).splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    assert " ".join(str(guarantee).split()) == " ".join(guarantee.to_text().split())
    for sentence in sentences_of(guarantee):
        assert len(re.findall(r"[A-Za-z][\w'-]*", sentence)) <= 30, sentence


def test_sentences_are_the_words_of_the_field() -> None:
    """Words that users should not meet in what they sign."""
    old = ("promise", "cut to", "mail", "on its side", "among them", "a further cost", "which is public, stays", "whoever")
    for path in GOLDEN.iterdir():
        text = " ".join(path.read_text(encoding="utf-8").split())
        for word in old:
            assert word not in text.lower(), (path.name, word)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for known in GOLDEN.iterdir():
        known.unlink()
    for situation in SITUATIONS:
        file_of(situation).write_text(page_of(situation) + "\n", encoding="utf-8")
