"""A hub that lies about survivors and questions: each attack fails, and succeeds once the check that stops it is taken away.

To succeed is to learn one site's part, or a sum over fewer sites than there must be, to the last bit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eigenveil.protocols.masked.member as member_module
from eigenveil.protocols.keys import KEY, digest
from eigenveil.protocols.masked.graph import MaskGraph, add_masks
from eigenveil.protocols.masked.member import MaskedMember, _SiteRound
from eigenveil.protocols.masked.session import Session
from eigenveil.tasks.base import Question
from protocols.masked.masked_companies import (
    VICTIM,
    EvilHub,
    MaskedCompany,
    Words,
    began,
    drawn_from,
    holders_of,
    masked_company,
    masks_for_any_question,
    nothing,
    other_question,
    others,
    power,
    same,
    sparse_company,
    total,
)

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: Patch) -> None:
    drawn_from(monkeypatch, 1)


# Complete, but with so low a threshold that two disjoint sets of holders can each put a secret back: terms refuse it.
LOW = MaskGraph(holders=6, threshold=3, loss=0, failure=0.0, abort=0.0, complete=True)


# An honest round, to begin with.


@pytest.mark.parametrize("make", [masked_company, sparse_company])
@pytest.mark.parametrize("private", [False, True])
def test_a_hub_that_keeps_all_message_learns_the_sum_and_no_part(make: Callable[..., MaskedCompany], private: bool) -> None:
    hub = began(make, private=private)
    names = hub.them.names
    hub.tell(names[1:], to=names[1:])
    hub.open(names[1:])
    assert hub.refused == {}
    assert same(hub.bare(*names[1:]), total(hub.them, names[1:]))
    for name in names:
        assert hub.bare(name) is None
    for left in names[1:]:
        assert hub.bare(*(name for name in names[1:] if name != left)) is None


# Different lists to different sites.


def two_lists(make: Callable[..., MaskedCompany], **more: Any) -> EvilHub:
    """Half of the victim's holders are told that it is alive, the others that it is dead."""
    hub = began(make, **more)
    near = holders_of(hub, VICTIM)
    alive, dead = near[: len(near) // 2], near[len(near) // 2 :]
    rest = [name for name in hub.them.names if name not in near and name != VICTIM]
    some, more_of_them = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    hub.tell(hub.them.names, to=[VICTIM, *alive, *some])
    hub.tell(others(hub, VICTIM), to=[*dead, *more_of_them])
    hub.open(hub.them.names)
    return hub


SPLITS = [(sparse_company, {}), (masked_company, {"bent": {"graph": LOW}})]


@pytest.mark.parametrize(("make", "more"), SPLITS, ids=["sparse", "complete"])
def test_different_lists_to_different_sites_open_nothing(
    make: Callable[..., MaskedCompany], more: dict[str, Any], monkeypatch: Patch
) -> None:
    hub = two_lists(make, **more)
    assert set(hub.refused) == set(hub.them.names)
    assert hub.shares == {}
    monkeypatch.setattr(MaskedMember, "_require_list_signed", nothing)
    hub = two_lists(make, **more)
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


def test_in_a_complete_graph_the_threshold_alone_stops_different_lists(monkeypatch: Patch) -> None:
    """No signatures, and still: two sets of tau holders do not fit among the sites, even with the colluder in both."""
    monkeypatch.setattr(MaskedMember, "_require_list_signed", nothing)
    hub = two_lists(masked_company)
    hub.collude("site 6")
    assert hub.bare(VICTIM) is None
    assert 2 * hub.terms.graph.threshold > len(hub.them.names) + hub.terms.colluders


# A second list for one vector.


def second_list(make: Callable[..., MaskedCompany], **more: Any) -> EvilHub:
    """All sign a list, most of them sign another, and half of the victim's holders open the one, half the other."""
    hub = began(make, **more)
    near = holders_of(hub, VICTIM)
    alive, dead = near[: len(near) // 2], near[len(near) // 2 :]
    hub.tell(hub.them.names, to=hub.them.names)
    hub.open(alive)
    hub.tell(others(hub, VICTIM), to=others(hub, VICTIM, *alive))
    # Those who have opened the first lend their signatures to the second.
    hub.tell(others(hub, VICTIM), to=alive)
    hub.open(dead)
    return hub


@pytest.mark.parametrize(("make", "more"), SPLITS, ids=["sparse", "complete"])
def test_a_second_list_is_refused(make: Callable[..., MaskedCompany], more: dict[str, Any], monkeypatch: Patch) -> None:
    hub = second_list(make, **more)
    assert set(hub.refused) == set(others(hub, VICTIM))
    assert "a second list" in hub.refused["site 1"]
    assert hub.bare(VICTIM) is None
    monkeypatch.setattr(MaskedMember, "_require_one_list", nothing)
    hub = second_list(make, **more)
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


def test_a_site_reveals_for_one_list_even_where_it_signs_two(monkeypatch: Patch) -> None:
    """Behind the check there is another: what a site revealed once it reveals again, whatever it signed since."""
    monkeypatch.setattr(MaskedMember, "_require_one_list", nothing)
    hub = began(masked_company)
    names = hub.them.names
    for alive in (names, names[1:]):
        hub.tell(alive, to=alive)
        before = {name: hub.them.members[name]._now for name in alive}
        shown = {name: None if now is None else now.revealed for name, now in before.items()}
        hub.open(alive)
        for name, revealed in shown.items():
            now = hub.them.members[name]._now
            assert now is not None
            assert revealed is None or now.revealed is revealed


# A list with somebody on both sides.


def on_both_sides(patch: Patch) -> EvilHub:
    """Sites that do all that they are told: the key of a site listed as dropped out, the seed of one listed as a survivor."""
    hub = began(masked_company)
    reveal = Session.reveal
    names = hub.them.names

    def both(session: Session, round_: int, alive: frozenset[str]) -> bytes:
        return reveal(session, round_, alive) + reveal(session, round_, alive - {VICTIM})

    hub.tell(names, [VICTIM], to=names)
    with patch.context() as obedient:
        obedient.setattr(Session, "reveal", both)
        for name in names:
            if (name, 0) in hub.told:
                answer = hub.evidence(name, 0, "list claim", "open", hub.under_list[0, hub.told[name, 0]], names)
                assert answer is not None
                half = len(answer.data) // 2
                hub.learn(name, 0, names, answer.data[:half])
                hub.learn(name, 0, others(hub, VICTIM), answer.data[half:])
    return hub


def test_a_site_listed_both_alive_and_dead_is_refused(monkeypatch: Patch) -> None:
    hub = on_both_sides(monkeypatch)
    assert set(hub.refused) == set(hub.them.names)
    assert "both as a survivor and as dropped out" in hub.refused["site 1"]
    assert hub.shares == {}
    monkeypatch.setattr(MaskedMember, "_require_apart", nothing)
    hub = on_both_sides(monkeypatch)
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


# Lists that are too short.


def short_list() -> EvilHub:
    hub = began(masked_company, sites=7, survivors=6)
    alive = hub.them.names[:5]
    hub.tell(alive, to=alive)
    hub.open(alive)
    return hub


def test_a_list_of_too_few_is_refused_twice_over(monkeypatch: Patch) -> None:
    hub = short_list()
    assert "5 survivors are listed, and at least 6 are needed" in hub.refused["site 0"]
    with monkeypatch.context() as one:
        one.setattr(MaskedMember, "_require_enough", nothing)
        hub = short_list()
        assert "5 sites have signed, and 6 must" in hub.refused["site 0"]
        assert hub.shares == {}
        one.setattr(MaskedMember, "_require_list_signed", nothing)
        hub = short_list()
        assert same(hub.bare(*hub.them.names[:5]), total(hub.them, hub.them.names[:5]))


def padded_list() -> EvilHub:
    """Site 6 takes no part, and the hub counts it among the survivors, to be enough."""
    hub = EvilHub(masked_company(sites=7, survivors=6)).exchange([f"site {at}" for at in range(6)])
    names = hub.them.names[:6]
    hub.ask(names=names)
    hub.tell([*names[:5], "site 6"], names[5:], to=names[:5])
    hub.open(names[:5])
    return hub


def test_a_list_filled_up_with_sites_that_take_no_part_is_refused(monkeypatch: Patch) -> None:
    hub = padded_list()
    assert "must name exactly the sites on the roster" in hub.refused["site 0"]
    monkeypatch.setattr(MaskedMember, "_require_whole", nothing)
    assert "have signed" in padded_list().refused["site 0"]
    monkeypatch.setattr(MaskedMember, "_require_list_signed", nothing)
    hub = padded_list()
    assert same(hub.bare(*hub.them.names[:5]), total(hub.them, hub.them.names[:5]))


# Somebody who lives is named dead.


def named_dead() -> EvilHub:
    hub = began(masked_company)
    alive = others(hub, VICTIM)
    hub.tell(alive, to=alive)
    hub.open(alive)
    return hub


def test_who_is_named_dead_stays_hidden_by_a_mask_of_its_own(monkeypatch: Patch) -> None:
    hub = named_dead()
    assert hub.refused == {}
    assert hub.key(VICTIM, hub.public(VICTIM).keys[0]) is not None
    assert hub.bare(VICTIM) is None
    with_pairs_off = hub.words[VICTIM, 0].copy()
    masks = Session.masks
    # Without that mask its key, which was revealed, is all it takes.
    monkeypatch.setattr(Session, "masks", lambda session, round_: masks(session, round_)[1:])
    hub = named_dead()
    monkeypatch.setattr(EvilHub, "seed", lambda *_: bytes(KEY))
    monkeypatch.setattr("protocols.masked.masked_companies.add_masks", _without_own(hub))
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))
    assert not same(with_pairs_off, hub.them.part(VICTIM))


def _without_own(hub: EvilHub) -> Callable[[Words, list[tuple[bytes, bool]], bytes], None]:
    own = digest("own mask", hub.bound(VICTIM), 0, bytes(KEY))
    return lambda words, masks, asked: add_masks(words, [mask for mask in masks if mask[0] != own], asked)


def dead_witnesses(patch: Patch) -> EvilHub:
    """All holders of the victim are named dead, and are told of the list all the same."""
    draw = Session._draw_holders
    patch.setattr(
        Session, "_draw_holders", lambda session: frozenset(range(8, 12)) if session._name == VICTIM else draw_away(draw, session)
    )
    graph = MaskGraph(holders=4, threshold=3, loss=0, failure=0.0, abort=0.0, complete=False)
    hub = EvilHub(sparse_company(graph=graph))
    hub.introduce()
    # The victim does not hear of those that have it for a holder, so it makes no mask with them.
    near = {name: hub.near(name) for name in hub.them.names}
    mine = set(holders_of(hub, VICTIM))
    near[VICTIM] = {name: signed for name, signed in near[VICTIM].items() if name in mine}
    hub.share_out(near.__getitem__)
    hub.enrol()
    hub.seal()
    hub.ask()
    alive = hub.them.names[:8]
    hub.tell(alive, to=hub.them.names)
    hub.open(hub.them.names)
    return hub


def draw_away(draw: Callable[[Session], frozenset[int]], session: Session) -> frozenset[int]:
    """Holders that are not all among the four to die."""
    while True:
        found = draw(session)
        if sum(at < 8 for at in found) >= 3:
            return found


def test_who_is_listed_dead_signs_and_reveals_nothing(monkeypatch: Patch) -> None:
    """Else a site all of whose holders were named dead could be unmasked by them."""
    hub = dead_witnesses(monkeypatch)
    assert set(hub.refused) == set(hub.them.names[8:])
    assert "is listed as dropped out" in hub.refused["site 8"]
    assert hub.bare(VICTIM) is None
    monkeypatch.setattr(MaskedMember, "_require_me", nothing)
    hub = dead_witnesses(monkeypatch)
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


# Questions.


def two_questions() -> tuple[EvilHub, Words]:
    hub = EvilHub(masked_company(task=power())).exchange()
    first = hub.ask(names=[VICTIM])
    second = hub.ask(names=[VICTIM], question=other_question(hub.them))
    return hub, first[VICTIM] - second.get(VICTIM, first[VICTIM])


def test_two_questions_in_one_round_are_refused(monkeypatch: Patch) -> None:
    """Both answers would have the same masks: their difference would have none."""
    hub, difference = two_questions()
    assert "two different questions" in hub.refused[VICTIM]
    assert not difference.any()
    # Where nobody looks, the first answer is what comes again.
    with monkeypatch.context() as one:
        one.setattr(MaskedMember, "_same_question", lambda *_: True)
        hub, difference = two_questions()
        assert hub.refused == {}
        assert not difference.any()

    def anew(_: MaskedMember, now: _SiteRound, question: Question) -> bool:
        now.question, now.masked = question, None
        return True

    monkeypatch.setattr(MaskedMember, "_same_question", anew)
    hub, difference = two_questions()
    them = hub.them
    assert same(difference + them.part(VICTIM, other_question(them)), them.part(VICTIM))
    assert difference.any()


def questions_apart() -> EvilHub:
    """Four of seven are asked the one, three the other."""
    hub = EvilHub(masked_company(task=power())).exchange()
    names = hub.them.names
    hub.ask(names=names[:4])
    hub.ask(names=names[4:], question=other_question(hub.them))
    hub.tell(names, to=names)
    hub.open(names)
    return hub


def test_different_questions_to_different_sites_open_nothing(monkeypatch: Patch) -> None:
    """No list is signed by enough of them; and where not all signatures are looked at, their masks do not cancel."""
    for bound in (True, False):
        with monkeypatch.context() as one:
            if not bound:
                masks_for_any_question(one)
            hub = questions_apart()
            assert set(hub.refused) == set(hub.them.names)
            assert hub.shares == {}
    listed = member_module.list_digest
    monkeypatch.setattr(member_module, "list_digest", lambda question, alive, dead: listed(b"", alive, dead))
    hub = questions_apart()
    them, names = hub.them, hub.them.names
    assert hub.refused == {}
    assert hub.bare(*names) is hub.bare(*names[:4]) is hub.bare(*names[4:]) is None
    # Not even what is left without all masks but those between sites that were asked different questions.
    mixed = [them.part(name) for name in names[:4]]
    mixed += [them.part(name, other_question(them)) for name in names[4:]]
    assert not same(_without_known(hub), *mixed)
    masks_for_any_question(monkeypatch)
    hub = questions_apart()
    assert same(hub.bare(*names), *mixed)
    assert same(_without_known(hub), *mixed)


def _without_known(hub: EvilHub) -> Words:
    """The sum over all sites without their own masks, whose seeds are revealed."""
    found: Words = np.sum([hub.words[name, 0] for name in hub.them.names], axis=0, dtype=np.uint64)
    for name in hub.them.names:
        seed = hub.seed(name)
        assert seed is not None
        add_masks(found, [(digest("own mask", hub.bound(name), 0, seed), False)], hub.asked[name, 0])
    return found


# Colluders.


def pooled(**more: Any) -> EvilHub:
    hub = began(masked_company, sites=9, survivors=7, colluders=2, **more)
    names = hub.them.names
    hub.tell(names, to=names)
    hub.open(names)
    for name in names[-2:]:
        hub.collude(name)
    return hub


def test_colluders_and_hub_together_learn_the_sum_of_the_others_and_no_more() -> None:
    hub = pooled()
    honest = hub.them.names[:-2]
    assert same(hub.bare(*honest), total(hub.them, honest))
    for size in range(1, len(honest)):
        assert hub.bare(*honest[:size]) is None
    for name in honest:
        assert hub.key(name, hub.public(name).keys[0]) is None
        # Of rounds to come, shares of two: fewer than it takes.
        assert len(hub.shares[name, "seed", 1]) == len(hub.shares[name, "key", 1]) == 2 < hub.terms.graph.threshold


def test_where_colluders_are_as_many_as_the_threshold_they_learn_all() -> None:
    hub = pooled(bent={"graph": MaskGraph(holders=8, threshold=2, loss=0, failure=0.0, abort=0.0, complete=True)})
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))
