"""All that a hub sees of two sites is distributed in the same way, whichever of them has which rows: it sees their sum.

Exactly: whatever it sees under some randomness it sees under as likely another with the rows exchanged, in which only the mask
between the two sites is another. And by statistics, where a scheme without that mask is found out.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import eigenveil.protocols.masked.member as member_module
from eigenveil.data.rows import DenseRows
from eigenveil.protocols.keys import Identity, agree, digest, private_key
from eigenveil.protocols.masked.graph import add_masks
from eigenveil.protocols.masked.session import Session, pair_purpose
from protocols.masked.masked_companies import EvilHub, MaskedCompany, Words, drawn_from, masked_company
from protocols.star.companies import picture

Patch = pytest.MonkeyPatch
ONE, TWO = "site 1", "site 2"
LEVEL = 1e-6
# The same in every run: what is random here is drawn by the sites.
IDENTITIES = {f"site {at}": Identity(bytes([at + 1]) * 32) for at in range(7)}


def exchanged(them: MaskedCompany) -> MaskedCompany:
    """The same company with the rows of two sites the other way round. Noise stays where it is: it is not the rows'."""
    for name, other in ((ONE, TWO), (TWO, ONE)):
        them.members[name].mend(DenseRows(them.rows[other]))
    return them


def view(them: MaskedCompany, dead: Iterable[str] = ("site 6",)) -> EvilHub:
    """All that a hub has seen after a round: keys, bundles, signatures, masked parts, and every share that was revealed."""
    hub = EvilHub(them).exchange()
    hub.ask()
    alive = [name for name in them.names if name not in set(dead)]
    hub.tell(alive, to=alive)
    hub.open(alive)
    assert hub.refused == {}
    return hub


def seen(hub: EvilHub) -> Any:
    return picture({key: value for key, value in vars(hub).items() if key != "them"})


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("dead", [(), ("site 6",), ("site 0", "site 6")])
@pytest.mark.parametrize("colluder", [None, "site 5"])
def test_with_rows_exchanged_the_hub_sees_the_same_under_another_mask_as_likely(
    private: bool, dead: tuple[str, ...], colluder: str | None, monkeypatch: Patch
) -> None:
    """A shift of the mask between two honest survivors is a bijection of what it can be, and keeps its uniform distribution."""

    def run(swap: bool, shift: Words | None) -> tuple[EvilHub, Any]:
        drawn_from(monkeypatch, 5)
        them = masked_company(identities=IDENTITIES, private=private)
        if shift is not None:
            monkeypatch.setattr(member_module, "add_masks", shifted(them, shift))
        hub = view(exchanged(them) if swap else them, dead)
        if colluder is not None:
            hub.collude(colluder)
        return hub, seen(hub)

    plain, first = run(swap=False, shift=None)
    assert run(swap=False, shift=None)[1] == first
    other, second = run(swap=True, shift=None)
    # With the same masks it would see that something is exchanged, in these two parts and nowhere else.
    changed = [name for name in plain.them.names if (plain.words[name, 0] != other.words[name, 0]).any()]
    assert changed == [ONE, TWO]
    assert second != first
    difference = plain.words[ONE, 0] - other.words[ONE, 0]
    assert (plain.words[TWO, 0] - other.words[TWO, 0] == -difference).all()
    assert run(swap=True, shift=difference)[1] == first


def shifted(them: MaskedCompany, shift: Words) -> Callable[[Words, list[tuple[bytes, bool]], bytes], None]:
    """Masks as they are, but for the one between the two sites, which is another by `shift`."""

    def add(words: Words, masks: list[tuple[bytes, bool]], asked: bytes) -> None:
        pair = pair_key(them)
        add_masks(words, masks, asked)
        for key, plus in masks:
            if key == pair:
                np.add(words, shift if plus else -shift, out=words)

    return add


def pair_key(them: MaskedCompany) -> bytes:
    one, two = them.members[ONE]._session, them.members[TWO]._session
    assert one is not None and two is not None
    places = them.terms.places
    return agree(private_key(one._keys[0]), two.public.keys[0], pair_purpose(one._bound, 0, places[ONE], places[TWO]))


# By statistics: what is left when the hub has taken off all it can.


def unmasked_as_far_as_can_be(hub: EvilHub, name: str) -> Words:
    """A part without its own mask, whose seed is revealed, and without the masks with the dead."""
    seed = hub.seed(name)
    assert seed is not None
    words, masks = hub.words[name, 0].copy(), [(digest("own mask", hub.bound(name), 0, seed), False)]
    place, mine = hub.terms.places[name], hub.public(name).keys[0]
    for other in hub.shown[name]:
        key, there = hub.key(other, hub.public(other).keys[0]), hub.terms.places[other]
        if key is not None:
            masks.append((agree(private_key(key), mine, pair_purpose(hub.bound(name), 0, place, there)), not place < there))
    add_masks(words, masks, hub.asked[name, 0])
    return words


def samples(patch: Patch, seeds: range, *, swap: bool) -> Words:
    """What a hub makes of one site's part, over many runs, (runs * 15,)."""
    found = []
    for seed in seeds:
        drawn_from(patch, seed)
        them = masked_company(5, 4, identities={name: IDENTITIES[name] for name in list(IDENTITIES)[:5]})
        hub = view(exchanged(them) if swap else them, dead=("site 4",))
        found.append(unmasked_as_far_as_can_be(hub, ONE))
    return np.concatenate(found)


def nibbles(words: Words, shift: int) -> Any:
    return np.bincount(((words >> np.uint64(shift)) & np.uint64(15)).astype(np.int64), minlength=16)


def p_uniform(counts: Any) -> float:
    expected = counts.sum() / len(counts)
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1))


def p_same(one: Any, two: Any) -> float:
    both = one + two
    there = both > 0
    one, two, both = one[there], two[there], both[there]
    share = one.sum() / both.sum()
    left = (one - both * share) ** 2 / (both * share) + (two - both * (1 - share)) ** 2 / (both * (1 - share))
    return float(chi2.sf(left.sum(), max(1, len(both) - 1)))


def test_what_is_left_of_a_part_is_uniform_and_without_pair_masks_it_is_not(monkeypatch: Patch) -> None:
    plain, swapped = samples(monkeypatch, range(30), swap=False), samples(monkeypatch, range(30, 60), swap=True)
    for shift in (0, 24, 60):
        assert p_uniform(nibbles(plain, shift)) > LEVEL
        assert p_uniform(nibbles(swapped, shift)) > LEVEL
        assert p_same(nibbles(plain, shift), nibbles(swapped, shift)) > LEVEL
    masks = Session.masks
    monkeypatch.setattr(Session, "masks", lambda session, round_: masks(session, round_)[:1])
    monkeypatch.setattr(EvilHub, "key", lambda *_: None)
    plain, swapped = samples(monkeypatch, range(20), swap=False), samples(monkeypatch, range(20, 40), swap=True)
    assert p_uniform(nibbles(plain, 60)) < LEVEL
    assert p_same(nibbles(plain, 24), nibbles(swapped, 24)) < LEVEL
