"""A hub that lies about keys, sessions and rounds: each attack fails, and succeeds once the check that stops it is taken away."""

from dataclasses import replace
from typing import Any

import pytest

import eigenveil.protocols.masked.session as session_module
import eigenveil.protocols.masked.terms as terms_module
from eigenveil.protocols.keys import KEY, POINT, Identity, agree, digest, open_bundle, private_key, public_of
from eigenveil.protocols.masked.graph import MaskGraph, add_masks
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.session import Session
from eigenveil.protocols.masked.shamir import SHARE_BYTES
from eigenveil.protocols.masked.terms import MaskedTerms, question_digest
from eigenveil.protocols.messages import Ask
from protocols.masked.masked_companies import (
    VICTIM,
    EvilHub,
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
    drawn_from(monkeypatch, 2)


# Public keys.


def in_the_middle() -> EvilHub:
    """The hub shows the victim keys of its own making for everybody else, and reads the bundles to them."""
    hub = EvilHub(masked_company())
    hub.introduce()
    stranger = Identity.fresh()
    bundles, keys = bytes(range(KEY)), [bytes(range(1 + at, 1 + at + KEY)) for at in range(hub.terms.rounds)]
    hub.private |= {public_of(key): key for key in keys}

    def forged(name: str) -> bytes:
        mine = replace(hub.public(name), bundles=public_of(bundles), keys=tuple(map(public_of, keys)))
        raw = mine.encode(hub.terms)
        return raw + stranger.sign(raw)

    fakes = {name: forged(name) for name in others(hub, VICTIM)}
    hub.share_out(lambda name: fakes if name == VICTIM else hub.near(name))
    # What the victim sends to others is for keys of the hub's.
    for name, sealed in hub.bundles.get(VICTIM, {}).items():
        shared = agree(private_key(bundles), hub.public(VICTIM).bundles, digest("bundle key", hub.session, VICTIM, name))
        bundle = open_bundle(shared, sealed, about=digest("about", hub.session, VICTIM, name))
        assert bundle is not None
        hub.shares.setdefault((VICTIM, "seed", 0), {})[1 + hub.terms.places[name]] = bundle[KEY : KEY + SHARE_BYTES]
    own = {VICTIM: hub.signed_keys[VICTIM]}
    hub.enrol(lambda name: own | fakes if name == VICTIM else hub.signed_keys)
    hub.seal()
    hub.ask()
    return hub


def test_a_hub_in_the_middle_with_keys_of_its_own_gets_no_part(monkeypatch: Patch) -> None:
    hub = in_the_middle()
    assert "is not signed by" in hub.refused[VICTIM]
    assert (VICTIM, 0) not in hub.words
    with monkeypatch.context() as one:
        one.setattr(Session, "_require_signed_keys", nothing)
        # The roster that the victim would go by has nobody else's signature.
        hub = in_the_middle()
        assert (VICTIM, 0) not in hub.words
        one.setattr(Session, "_require_roster_signed", nothing)
        hub = in_the_middle()
        assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


def cards_kept_back() -> EvilHub:
    """Two camps of which neither hears of the other, on one roster."""
    # With the threshold of a complete graph neither camp could put anything back.
    low = MaskGraph(holders=8, threshold=4, loss=0, failure=0.0, abort=0.0, complete=True)
    hub = EvilHub(masked_company(sites=9, survivors=7, bent={"graph": low}))
    hub.introduce()
    camp = set(hub.them.names[:4])
    hub.share_out(lambda name: {o: signed for o, signed in hub.near(name).items() if (o in camp) == (name in camp)})
    hub.enrol()
    hub.seal()
    hub.ask()
    names = hub.them.names
    hub.tell(names, to=names)
    hub.open(names)
    return hub


def test_keys_that_are_kept_back_keep_a_site_from_taking_part(monkeypatch: Patch) -> None:
    hub = cards_kept_back()
    assert hub.words == {}
    assert all("signed keys it was not sent" in hub.refused[name] for name in hub.them.names)
    monkeypatch.setattr(Session, "_require_all_holders", nothing)
    hub = cards_kept_back()
    camp = hub.them.names[:4]
    assert same(hub.bare(*camp), total(hub.them, camp))
    assert len(camp) < hub.terms.survivors - hub.terms.colluders


def second_keys(hub: EvilHub) -> bytes:
    fresh = Session(hub.terms, "site 6", hub.them.identities["site 6"], hub.nonce, 0)
    return fresh.raw + fresh.sign(0, "keys", digest("return", fresh.raw))


def swapped_keys() -> EvilHub:
    """A colluder has signed two sets of keys, and the hub shows them to different sites."""
    hub = EvilHub(masked_company(private=True))
    hub.introduce()
    second = second_keys(hub)
    half = set(hub.them.names[:3])
    hub.share_out(lambda name: hub.near(name) | ({"site 6": second} if name in half else {}))
    hub.enrol(lambda name: hub.signed_keys | ({"site 6": second} if name in half else {}))
    hub.seal()
    hub.ask()
    hub.tell(hub.them.names, to=hub.them.names)
    hub.open(hub.them.names)
    return hub


def test_a_site_with_two_sets_of_keys_gets_no_roster_signed(monkeypatch: Patch) -> None:
    hub = swapped_keys()
    assert not hub.words
    assert all(not ledger.charges for ledger in hub.them.ledgers.values())
    with monkeypatch.context() as one:
        # All would give their parts, and pay for them, in a round that cannot be ended: their lists are bound to two rosters.
        one.setattr(Session, "_require_roster_signed", nothing)
        hub = swapped_keys()
        assert len(hub.words) == 7
        assert all(len(ledger.charges) == 1 for ledger in hub.them.ledgers.values())
        assert hub.shares == {}
    # The signer of two sets is none of those who compare them with the roster. One that has seen other keys does not sign.
    hub = EvilHub(masked_company())
    hub.introduce()
    hub.share_out()
    hub.enrol(lambda name: hub.signed_keys | {"site 6": second_keys(hub)})
    assert hub.under_roster == {}
    assert all("other signed keys than this site has seen" in why for why in hub.refused.values())
    monkeypatch.setattr(Session, "_require_same_keys", nothing)
    hub = EvilHub(masked_company())
    hub.introduce()
    hub.share_out()
    hub.enrol(lambda name: hub.signed_keys | {"site 6": second_keys(hub)})
    assert len(hub.rosters) == 7


def private_roster(patch: Patch) -> EvilHub:
    """The victim alone is shown a roster on which no holder of its is honest: it makes masks with colluders only.

    It has sent shares of its seed to its honest holders before, and they reveal them for what they take for the same roster.
    """
    draw = Session._draw_holders
    patch.setattr(Session, "_draw_holders", lambda one: HOLDERS if one._name == VICTIM else draw(one))
    graph = MaskGraph(holders=4, threshold=3, loss=0, failure=0.0, abort=0.0, complete=False)
    hub = EvilHub(sparse_company(graph=graph, colluders=2))
    hub.introduce()
    near = {name: hub.near(name) for name in hub.them.names}
    mine = holders_of(hub, VICTIM)
    near[VICTIM] = {name: signed for name, signed in near[VICTIM].items() if name in mine}
    hub.share_out(near.__getitem__)
    short = {name: signed for name, signed in hub.signed_keys.items() if name not in mine[:2]}
    hub.enrol(lambda name: short if name == VICTIM else hub.signed_keys)
    hub.seal()
    hub.ask()
    rest = others(hub, VICTIM)
    hub.tell(hub.them.names, to=rest)
    hub.open(rest)
    for name in mine[2:]:
        hub.collude(name)
    return hub


HOLDERS = frozenset({8, 9, 10, 11})


def test_a_roll_for_one_site_alone_is_not_sealed(monkeypatch: Patch) -> None:
    hub = private_roster(monkeypatch)
    assert set(hub.refused) == {VICTIM}
    assert "asked to see are missing or false" in hub.refused[VICTIM]
    assert (VICTIM, 0) not in hub.words
    # Its seed is no secret any more, and masks nothing.
    assert hub.seed(VICTIM) is not None
    monkeypatch.setattr(Session, "_require_roster_signed", nothing)
    hub = private_roster(monkeypatch)
    assert hub.refused == {}
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


# Keys that are no points of the curve.


# Zero, the one point of the group that is no key; no point of the curve; a number beyond the field; a point in other bytes.
NO_POINTS = [
    bytes(POINT),
    bytes([2]) + (1).to_bytes(32, "big"),
    bytes([3]) + b"\xff" * 32,
    bytes([4]) + public_of(bytes([1]) * KEY)[1:],
]


def no_point(bad: bytes) -> EvilHub:
    """A colluder publishes bytes for mask keys that are no point of the curve."""
    hub = EvilHub(masked_company())
    hub.introduce()
    raw = replace(hub.public("site 6"), keys=(bad,) * hub.terms.rounds).encode(hub.terms)
    session = hub.them.members["site 6"]._session
    assert session is not None
    hub.signed_keys["site 6"] = raw + session.sign(0, "keys", digest("return", raw))
    return hub


@pytest.mark.parametrize("bad", NO_POINTS)
def test_keys_that_are_no_points_of_the_curve_are_refused(bad: bytes, monkeypatch: Patch) -> None:
    def run() -> EvilHub:
        hub = no_point(bad)
        signed = hub.signed_keys["site 6"]
        others = {name: one for name, one in hub.signed_keys.items() if name not in (VICTIM, "site 6")}
        answer = hub.statement(VICTIM, 0, "packets", b"", (*others.items(), ("site 6", signed)))
        if answer is not None:
            session = hub.them.members[VICTIM]._session
            assert session is not None
            session.roster = frozenset(hub.them.names)
            hub.shown[VICTIM] = others | {"site 6": signed}
        return hub

    hub = run()
    assert "an invalid key" in hub.refused[VICTIM]
    session = hub.them.members[VICTIM]._session
    assert session is not None and session._keys_of == {}
    monkeypatch.setattr(terms_module, "is_public_key", lambda key: True)
    hub = run()
    session = hub.them.members[VICTIM]._session
    assert session is not None
    # Behind it, the library refuses to agree with such a key.
    with pytest.raises(ValueError, match=r".+"):
        session.masks(0)

    def agree_on_anything(private: Any, public: bytes, purpose: bytes) -> bytes:
        return digest("anybody knows", purpose) if public == bad else agree(private, public, purpose)

    monkeypatch.setattr(session_module, "agree", agree_on_anything)
    purpose = session_module.pair_purpose(session._bound, 0, 0, 6)
    assert (digest("anybody knows", purpose), True) in session.masks(0)


# Sessions and rounds.


def test_a_session_and_a_round_are_begun_once() -> None:
    hub = began(masked_company)
    keys = hub.signed_keys[VICTIM]
    again = hub.statement(VICTIM, 0, "keys", hub.nonce)
    assert again is not None and again.data + again.signature == keys
    assert hub.statement(VICTIM, 0, "keys", bytes([1]) * KEY) is None
    assert "begun with other keys" in hub.refused[VICTIM]
    assert hub.ask(3, [VICTIM]) != {}
    for round_ in (0, 1, 2):
        assert hub.ask(round_, [VICTIM]) == {}
        assert "in round 3" in hub.refused[VICTIM]
        assert hub.statement(VICTIM, round_, "keys", hub.nonce) is None
    assert hub.ask(4, [VICTIM]) == {}
    assert "no keys were exchanged" in hub.refused[VICTIM]


def test_what_was_signed_in_one_session_says_nothing_in_the_next() -> None:
    """Public keys, rosters and lists of an earlier session are not taken, even by sites that made them."""
    them = masked_company()
    old = EvilHub(them).exchange()
    old.ask()
    old.tell(them.names, to=them.names)
    new = EvilHub(them, nonce=bytes([7]) * KEY, first=1)
    new.introduce()
    new.share_out(old.near)
    assert set(new.refused) == set(them.names)
    assert all("is not signed by" in why for why in new.refused.values())
    new = EvilHub(them, nonce=bytes([8]) * KEY, first=2).exchange()
    new.ask(2)
    new.tell(them.names, to=them.names[:2], round_=2)
    new.under_list[2, new.told[VICTIM, 2]] = old.under_list[0, old.told[VICTIM, 0]]
    new.open([VICTIM], round_=2)
    assert "0 sites have signed" in new.refused[VICTIM]


def test_there_are_no_more_sessions_than_were_agreed_on() -> None:
    them = masked_company(sessions=2)
    for first in range(3):
        hub = EvilHub(them, nonce=bytes([first]) * KEY, first=first)
        hub.introduce([VICTIM])
        assert (VICTIM in hub.signed_keys) == (first < 2)
    assert "as often as agreed" in hub.refused[VICTIM]
    # Without that bound a hub has a site draw its holders until it likes them.
    object.__setattr__(them.terms, "sessions", 100)
    drawn = set()
    for first in range(3, 8):
        hub = EvilHub(them, nonce=bytes([first]) * KEY, first=first)
        hub.introduce([VICTIM])
        drawn.add(hub.signed_keys[VICTIM])
    assert len(drawn) == 5


def test_there_are_no_more_rounds_than_were_agreed_on() -> None:
    them = masked_company(rounds=4, most_rounds=2)
    hub = EvilHub(them).exchange()
    assert hub.ask(1, [VICTIM]) != {}
    for round_ in (2, 3):
        assert hub.ask(round_, [VICTIM]) == {}
        assert hub.statement(VICTIM, round_, "keys", bytes(KEY)) is None
    assert "the study has 2" in hub.refused[VICTIM]
    object.__setattr__(them.terms, "most_rounds", 4)
    for round_ in (2, 3):
        assert hub.ask(round_, [VICTIM]) != {}


def back_and_forth() -> tuple[EvilHub, Words]:
    """Asked in round 0, then in round 1, then in round 0 something else."""
    hub = EvilHub(masked_company(task=power())).exchange()
    first = hub.ask(0, [VICTIM])[VICTIM]
    hub.ask(1, [VICTIM])
    second = hub.ask(0, [VICTIM], other_question(hub.them))
    return hub, first - second.get(VICTIM, first)


def test_a_round_that_is_over_is_not_gone_back_to(monkeypatch: Patch) -> None:
    """Its masks have served: the difference of two parts under them is bare."""
    hub, difference = back_and_forth()
    assert "spoke of round 0 in round 1" in hub.refused[VICTIM]
    assert not difference.any()
    monkeypatch.setattr(MaskedMember, "_require_round", nothing)
    for bare in (False, True):
        if bare:
            # Another question has other masks, too.
            masks_for_any_question(monkeypatch)
        hub, difference = back_and_forth()
        assert difference.any()
        assert same(difference + hub.them.part(VICTIM, other_question(hub.them)), hub.them.part(VICTIM)) == bare


def test_asked_again_a_site_sends_the_same_bytes_and_in_a_new_round_others() -> None:
    hub = began(masked_company, private=True)
    member, ledger = hub.them.members[VICTIM], hub.them.ledgers[VICTIM]
    question = hub.them.task.ask(None)
    first = hub.say(VICTIM, Ask(0, question))
    assert [charge.label for charge in ledger.charges] == ["covariance"]
    for _ in range(3):
        assert hub.say(VICTIM, Ask(0, question)) is first
    session = member._session
    assert session is not None
    before = set(session.masks(0))
    hub.ask(1, [VICTIM])
    assert [charge.label for charge in ledger.charges] == ["covariance"] * 2
    assert not before & set(session.masks(1))
    bare = []
    for round_ in (0, 1):
        words = hub.words[VICTIM, round_].copy()
        add_masks(words, [(key, not plus) for key, plus in session.masks(round_)], question_digest(question))
        bare.append(words)
    assert same(bare[0], hub.them.part(VICTIM))
    # The rows are the same, so it is the noise that differs, in every number.
    assert (bare[0] != bare[1]).all()


# The same identities in a second study.


def second_study() -> EvilHub:
    """The hub takes the name of a session, and the signatures under a list, from a study that ended."""
    ids = {f"site {at}": Identity.fresh() for at in range(12)}
    before = began(sparse_company, identities=ids)
    rest = others(before, VICTIM)
    before.tell(rest, to=rest)
    (old,) = before.under_list
    hub = began(sparse_company, identities=ids)
    dead = holders_of(hub, VICTIM)[:3]
    hub.tell(rest, to=dead)
    hub.under_list[old] = before.under_list[old] | hub.under_list[old]
    hub.tell(hub.them.names, to=others(hub, *dead))
    hub.open(hub.them.names)
    return hub


def test_signatures_of_an_earlier_study_are_worth_nothing_in_the_next(monkeypatch: Patch) -> None:
    """Identities, terms and the hub's name for the session are the same. The roster has everybody's fresh keys."""
    hub = second_study()
    assert set(hub.refused) == set(holders_of(hub, VICTIM)[:3])
    assert hub.bare(VICTIM) is None
    monkeypatch.setattr(session_module, "bound_to", lambda session, roster: session)
    hub = second_study()
    assert hub.refused == {}
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


def old_keys() -> EvilHub:
    """The keys, bundles and signatures under the roster of an earlier study, and what was learned in it, used on the victim."""
    ids = {f"site {at}": Identity.fresh() for at in range(7)}
    before = began(masked_company, identities=ids)
    hub = EvilHub(masked_company(identities=ids))
    hub.introduce([VICTIM])
    hub.signed_keys = before.signed_keys | hub.signed_keys
    hub.share_out(lambda name: {other: one for other, one in before.signed_keys.items() if other != name})
    hub.bundles |= {name: bundles for name, bundles in before.bundles.items() if name != VICTIM}
    hub.shown = {VICTIM: hub.shown[VICTIM]}
    hub.enrol(lambda name: before.signed_keys)
    hub.enrol(lambda name: hub.signed_keys)
    hub.under_roster[hub.rosters[VICTIM]] |= before.under_roster[before.rosters[VICTIM]]
    hub.seal([VICTIM])
    hub.ask(names=[VICTIM])
    return hub


def test_keys_of_an_earlier_study_are_on_no_roster_that_is_sealed(monkeypatch: Patch) -> None:
    """They are signed by those whose they are, for a session of this name. Yet a roster has the keys of all who sign it."""
    hub = old_keys()
    why = hub.refused[VICTIM]
    assert "other signed keys than this site has seen" in why and "0 sites have signed, and 5 must" in why
    assert hub.words == {}
    monkeypatch.setattr(Session, "_require_roster_signed", nothing)
    assert len(old_keys().words) == 1


def test_the_terms_are_part_of_what_is_signed(monkeypatch: Patch) -> None:
    """Sites that agreed on other terms do not understand each other."""
    ids = {f"site {at}": Identity.fresh() for at in range(7)}
    one, two = masked_company(identities=ids), masked_company(identities=ids, survivors=6)
    hub = EvilHub(one)
    one.members["site 6"] = two.members["site 6"]
    hub.introduce()
    hub.share_out()
    assert "site 6" not in hub.shown
    assert all("site 6 is not signed" in hub.refused[name] for name in hub.them.names[:6])
    monkeypatch.setattr(MaskedTerms, "digest", b"the same")
    one, two = masked_company(identities=ids), masked_company(identities=ids, survivors=6)
    one.members["site 6"] = two.members["site 6"]
    hub = EvilHub(one).exchange()
    assert hub.refused == {}
