"""Layouts: every site has one place, nobody has too many below, and names are nobody else's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.protocols.star.rounds import Layout, star, tree

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
