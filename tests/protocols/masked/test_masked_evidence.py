"""A hub that claims signatures it has not got, to sites that look at some of them only."""

import random
from itertools import combinations

import pytest

import eigenveil.protocols.masked.dealing as evidence_module
from eigenveil.protocols.keys import KEY
from eigenveil.protocols.masked.dealing import HashTree, SignatureCheck, drawn
from eigenveil.protocols.masked.session import Session
from protocols.masked.masked_companies import (
    VICTIM,
    EvilHub,
    began,
    drawn_from,
    holders_of,
    nothing,
    others,
    same,
    sparse_company,
)

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: Patch) -> None:
    drawn_from(monkeypatch, 3)


# Evidence where a site looks at some of the signatures.


def split_by(hub: EvilHub) -> None:
    near = holders_of(hub, VICTIM)
    rest = [name for name in hub.them.names if name not in near and name != VICTIM]
    hub.tell(hub.them.names, to=[VICTIM, *near[::2], *rest[:2]])
    hub.tell(others(hub, VICTIM), to=[*near[1::2], *rest[2:]])


def test_a_false_claim_is_found_out_and_where_nobody_looks_it_opens_a_part(monkeypatch: Patch) -> None:
    def attack() -> EvilHub:
        hub = began(sparse_company)
        split_by(hub)
        hub.open(hub.them.names)
        return hub

    hub = attack()
    assert set(hub.refused) == set(hub.them.names)
    assert hub.shares == {}
    monkeypatch.setattr(evidence_module, "seen_signed", lambda *_, **__: True)
    hub = attack()
    assert hub.refused == {}
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


def test_a_false_claim_is_found_out_and_no_second_one_is_taken() -> None:
    hub = began(sparse_company)
    split_by(hub)
    name = holders_of(hub, VICTIM)[0]
    hub.open([name])
    assert "asked to see are missing or false" in hub.refused[name]
    list_data = hub.told[name, 0]
    # Now that it has said what it looks at, the hub would like to claim something else.
    hub.under_list[0, list_data][VICTIM] = bytes(64)
    hub.open([name])
    assert "a second claim" in hub.refused[name]
    assert hub.shares == {}


def test_where_second_claims_are_taken_a_hub_chooses_what_is_looked_at(monkeypatch: Patch) -> None:
    """Once a site's choice is known, a claim can be made to fit it."""
    draws = random.Random(0)
    monkeypatch.setattr(evidence_module, "os", type("Source", (), {"urandom": staticmethod(draws.randbytes)}))
    # Each site's holders are the six after it.
    monkeypatch.setattr(Session, "_draw_holders", lambda session: frozenset((session._index + 1 + at) % 12 for at in range(6)))

    def attack() -> EvilHub:
        hub = began(sparse_company)
        object.__setattr__(hub.terms, "checks", 1)
        split_by(hub)
        for name in holders_of(hub, VICTIM):
            _fitted(hub, name)
        return hub

    assert attack().bare(VICTIM) is None

    monkeypatch.setattr(SignatureCheck, "_require_first", nothing)
    hub = attack()
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


def _fitted(hub: EvilHub, name: str) -> None:
    """Ask what a site will look at, then put true signatures where it looks, as far as there are enough."""
    data = hub.told[name, 0]
    alive = hub.terms.named(data[: hub.terms.bytes_of_bits])
    true = hub.under_list[0, data]
    junk = hub.terms.bits(list(alive)[: hub.terms.survivors]) + bytes(KEY)
    wish = hub.statement(name, 0, "list claim", junk)
    if wish is None:
        return
    # Every set of signers that is large enough, until one has true signatures wherever the site looks.
    spare = [other for other in hub.terms.roster if other in alive and other not in true]
    for extra in range(max(0, hub.terms.survivors - len(true)), len(spare) + 1):
        for chosen in combinations(spare, extra):
            padded = true | dict.fromkeys(chosen, bytes(64))
            listed = tuple((other, padded[other]) for other in hub.terms.roster if other in padded)
            places = drawn(wish.data, hub.terms.checks, len(listed))
            if all(listed[at][0] in true for at in places):
                tree = HashTree(listed)
                if hub.statement(name, 0, "list claim", hub.terms.bits(padded) + tree.root) is None:
                    return
                shown = tuple((listed[at][0], listed[at][1] + tree.path(at)) for at in places)
                answer = hub.statement(name, 0, "open", b"", shown)
                if answer is not None:
                    hub.learn(name, 0, alive, answer.data)
                return


def test_claims_of_too_few_of_strangers_and_of_no_list_are_refused() -> None:
    hub = began(sparse_company)
    names = hub.them.names
    assert hub.statement(VICTIM, 0, "list claim", hub.terms.bits(names) + bytes(KEY)) is None
    assert "no list of survivors" in hub.refused[VICTIM]
    hub.tell(names[:-1], to=names[:-1])
    for claim in (hub.terms.bits(names[:7]) + bytes(KEY), bytes(KEY), b"", hub.terms.bits(names) + bytes(KEY + 1)):
        assert hub.statement(VICTIM, 0, "list claim", claim) is None
    assert hub.statement(VICTIM, 0, "open", b"", ()) is None
    assert "no claim was made of who has signed" in hub.refused[VICTIM]
    # The last site is dead, and is said to have signed.
    assert hub.statement(VICTIM, 0, "list claim", hub.terms.bits(names[1:]) + bytes(KEY)) is not None
    assert hub.statement(VICTIM, 0, "open", b"", ()) is None
    assert "sites are claimed to have signed that were not asked" in hub.refused[VICTIM]


def test_signatures_that_a_site_asked_for_must_be_those_that_were_claimed() -> None:
    """True signatures, but not under the root: left out, in another order, or with a path that leads elsewhere."""
    hub = began(sparse_company)
    names = hub.them.names
    hub.tell(names, to=names)
    listed = tuple(hub.under_list[0, hub.told[VICTIM, 0]].items())
    tree = HashTree(listed)
    wish = hub.statement(VICTIM, 0, "list claim", hub.terms.bits(names) + tree.root)
    assert wish is not None
    places = drawn(wish.data, hub.terms.checks, len(listed))
    good = tuple((listed[at][0], listed[at][1] + tree.path(at)) for at in places)
    name, piece = good[0]
    bad = [
        good[1:],
        good[::-1],
        (*good, good[-1]),
        ((name, piece[:-1]), *good[1:]),
        ((name, piece + bytes(KEY)), *good[1:]),
        ((name, piece[:64]), *good[1:]),
        ((name, bytes([piece[0] ^ 1]) + piece[1:]), *good[1:]),
        ((name, piece[:-1] + bytes([piece[-1] ^ 1])), *good[1:]),
        ((good[1][0], piece), *good[1:]),
    ]
    for shown in bad:
        assert hub.statement(VICTIM, 0, "open", b"", shown) is None
    assert hub.statement(VICTIM, 0, "open", b"", good) is not None
