"""Hundreds of random schedules for every protocol and method: the right answer for the sites that count, or a named error.

`pytest -rP` prints which share of the runs ended in a result.
"""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil import FederatedPCA
from eigenveil.protocols.star.rounds import Layout, star, tree
from protocols.star.companies import tables
from protocols.star.fault_runs import LIES, PLACES, random_run, require_right, settings_of

RUNS = 30


def tried(method: str, place: str, seeds: range) -> tuple[float, Counter[str], int]:
    """The share of runs that ended in a result, the lies that were told, and how many runs began again."""
    ended, again, lies = 0, 0, Counter[str]()
    for seed in seeds:
        outcome = random_run(method, place, seed)
        require_right(method, place, outcome)
        ended += outcome.fit is not None
        again += outcome.fit is not None and any(round_.restarted for round_ in outcome.fit.transcript_)
        lies += outcome.lies
    share = ended / len(seeds)
    print(f"{place:5} {method:27} {share:6.1%} of {len(seeds)} ended in a result, {again} begun again, {lies.total()} lies")
    return share, lies, again


@pytest.mark.parametrize(("method", "place"), PLACES)
def test_random_schedules_end_in_the_right_answer_or_a_named_error(method: str, place: str) -> None:
    share, lies, again = tried(method, place, range(RUNS))
    assert share > 0.5
    assert len(lies) > len(LIES) / 2
    assert again > 0


@pytest.mark.parametrize(("method", "place"), PLACES)
def test_without_faults_nothing_is_refused(method: str, place: str) -> None:
    fit = FederatedPCA(**settings_of(method, place, 2), random_state=1).fit(tables(7))
    assert fit.refused_ == ()
    assert len(fit.sites_) == 7
    assert all(round_.missing == () and not round_.restarted for round_ in fit.transcript_)


SITES = st.integers(1, 60).map(lambda count: [f"s{place}" for place in range(count)])


def require_sound(layout: Layout, sites: list[str], *, fanout: float) -> None:
    above = layout.above()
    assert sorted(above) == sorted([*sites, *layout.nodes])
    assert sum(len(children) for children in layout.below.values()) == len(above)
    for parent, children in layout.below.items():
        assert 1 + (parent != layout.hub) <= len(children) <= fanout
        for name, behind in children.items():
            expected = (name,) if name in sites else tuple(s for c in layout.below[name].values() for s in c)
            assert behind == expected
    assert [site for behind in layout.below[layout.hub].values() for site in behind] == sites
    assert layout.levels[layout.hub] == 0
    assert layout.levels.keys() == layout.below.keys()
    for node in layout.nodes:
        assert layout.levels[node] == layout.levels[above[node]] + 1


@given(SITES)
def test_in_a_star_everybody_is_below_the_hub(sites: list[str]) -> None:
    layout = star(sites)
    require_sound(layout, sites, fanout=math.inf)
    assert layout.nodes == ()


@given(SITES, st.integers(2, 12))
def test_in_a_tree_every_site_has_one_place_and_nobody_too_many_below(sites: list[str], fanout: int) -> None:
    layout = tree(sites, fanout=fanout)
    require_sound(layout, sites, fanout=fanout)
    assert len(set(layout.nodes)) == len(layout.nodes)
    # As flat as it can be: the depth is that of the smallest full tree that has room.
    assert fanout ** max(layout.levels.values()) < max(2, len(sites))
    assert fanout ** (1 + max(layout.levels.values())) >= len(sites)


@pytest.mark.parametrize("make", [star, lambda sites, **more: tree(sites, fanout=2, **more)])
@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ([], "at least one site"),
        (["a", "a"], "two sites have the same name"),
        (["hub"], "hubs and nodes have that name"),
        (["node 7"], "hubs and nodes have that name"),
        (["a", ""], "1 to 200 characters"),
        (["a", "x" * 201], "1 to 200 characters"),
    ],
)
def test_names_are_checked(make: object, sites: list[str], words: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=words):
        make(sites)
