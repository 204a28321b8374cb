"""Dealings: an honest one passes, a false one does not, and what the hub sees of it fits every secret equally."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

import eigenveil.protocols.masked.dealing as dealing_module
from eigenveil.protocols.keys import KEY, SIGNATURE, draw_key, public_of
from eigenveil.protocols.masked.dealing import Dealing, ShareDigests, factors_of, receipt, secret_count
from eigenveil.protocols.masked.session import Session
from eigenveil.protocols.masked.shamir import PRIME, SHARE_BYTES, blended, polynomial, split, value_at
from eigenveil.protocols.masked.terms import MaskedTerms, PublicKeys
from protocols.masked.masked_companies import EvilHub, drawn_from, masked_company
from protocols.masked.test_shamir import highest_first

SESSION, DEALER, POINTS = b"a session", 3, (3, 1, 2, 4, 5, 6, 7)


def terms() -> MaskedTerms:
    """Seven sites, of which five make a secret; four rounds."""
    return masked_company(7, 5).terms


class Dealt:
    """A dealer's secrets, public keys, polynomials and dealing, all drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.terms, draw = terms(), Random(seed).randbytes
        self.secrets = [draw_key(draw) for _ in range(secret_count(self.terms))]
        points = [public_of(secret) for secret in self.secrets]
        rounds = self.terms.rounds
        seeds, keys = tuple(points[:rounds]), tuple(points[rounds : 2 * rounds])
        self.public = PublicKeys(
            bundles=public_of(draw_key(draw)), keys=keys, seeds=seeds, blind=points[-1], holders=frozenset(range(7)) - {2}
        )
        threshold = self.terms.graph.threshold
        self.polynomials = [polynomial(secret, threshold=threshold, draw=draw) for secret in self.secrets]

    def dealing(self, shares: dict[int, list[bytes]] | None = None) -> tuple[Dealing, list[int]]:
        shares = split(self.polynomials, holders=POINTS) if shares is None else shares
        said = tuple(ShareDigests.of(SESSION, DEALER, point, pieces) for point, pieces in shares.items())
        factors = self.factors(Dealing.commitment(said))
        return Dealing(said, blended(self.polynomials, factors)), factors

    def factors(self, committed: bytes) -> list[int]:
        return factors_of(self.terms, SESSION, DEALER, b"keys", committed)

    def receipts(self, shares: dict[int, list[bytes]]) -> list[bytes]:
        """What holders make of their shares."""
        said = [ShareDigests.of(SESSION, DEALER, point, pieces) for point, pieces in shares.items()]
        committed = Dealing.commitment(said)
        factors = self.factors(committed)
        return [
            receipt(one, committed, sum(f * int.from_bytes(s, "big") for f, s in zip(factors, pieces, strict=True)))
            for one, pieces in zip(said, shares.values(), strict=True)
        ]


def test_an_honest_dealing_fits_its_public_keys_and_every_receipt() -> None:
    them = Dealt(0)
    dealing, factors = them.dealing()
    assert dealing.fits(them.public, factors)
    assert dealing.receipts(POINTS) == them.receipts(split(them.polynomials, holders=POINTS))
    raw = dealing.encode()
    assert len(raw) == Dealing.size(them.terms, len(POINTS))
    assert Dealing.read(them.terms, len(POINTS), raw) == dealing
    for bad in (raw[:-1], raw + b"\0", raw[:-SHARE_BYTES] + PRIME.to_bytes(SHARE_BYTES, "big")):
        with pytest.raises(ValueError, match=r".+"):
            Dealing.read(them.terms, len(POINTS), bad)
    assert not replace(dealing, blend=(*dealing.blend[:-1], 0)).fits(them.public, factors)


def test_a_secret_that_is_not_of_the_public_keys_does_not_fit_whichever_it_is() -> None:
    for at in range(9):
        them = Dealt(1)
        numbers = them.polynomials[at]
        them.polynomials[at] = (*numbers[:-1], (numbers[-1] + 1) % PRIME)
        dealing, factors = them.dealing()
        assert not dealing.fits(them.public, factors)
        # Holders alone would see nothing wrong.
        assert dealing.receipts(POINTS) == them.receipts(split(them.polynomials, holders=POINTS))


def test_a_share_off_the_polynomial_shows_in_its_holders_receipt_and_in_no_other() -> None:
    for at in range(9):
        them = Dealt(2)
        shares = split(them.polynomials, holders=POINTS)
        moved = (int.from_bytes(shares[5][at], "big") + 1) % PRIME
        shares[5][at] = moved.to_bytes(SHARE_BYTES, "big")
        dealing, factors = them.dealing(shares)
        assert dealing.fits(them.public, factors)
        due, got = dealing.receipts(POINTS), them.receipts(shares)
        assert [one == two for one, two in zip(due, got, strict=True)] == [point != 5 for point in POINTS]


def test_factors_depend_on_everything_the_dealer_has_said() -> None:
    them = Dealt(3)
    dealing, factors = them.dealing()
    assert len(set(factors)) == len(factors) == 9 and factors[-1] == 1
    assert all(2**64 < factor < 2**128 for factor in factors[:-1])
    committed = Dealing.commitment(dealing.holders)
    for at, one in enumerate(dealing.holders):
        for other in (replace(one, bundle=bytes(KEY)), replace(one, marks=(*one.marks[:-1], bytes(16)))):
            holders = (*dealing.holders[:at], other, *dealing.holders[at + 1 :])
            assert not set(factors[:-1]) & set(them.factors(Dealing.commitment(holders)))
    for given in ((b"other", DEALER, b"keys"), (SESSION, DEALER + 1, b"keys"), (SESSION, DEALER, b"other")):
        assert not set(factors[:-1]) & set(factors_of(them.terms, *given, committed))


def test_with_short_factors_a_dealer_gets_through_about_as_often_as_the_proof_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """One false secret passes for one value of its factor, here of 256, and a dealer may try as many keys as it likes."""
    monkeypatch.setattr(dealing_module, "_FACTOR", 1)
    them = Dealt(4)
    # It bets on factor 7, and takes as much from what blinds.
    for at, less in ((1, -1), (-1, 7)):
        numbers = them.polynomials[at]
        them.polynomials[at] = (*numbers[:-1], (numbers[-1] - less) % PRIME)
    dealing, _ = them.dealing()
    committed, lucky = Dealing.commitment(dealing.holders), 0
    for attempt in range(3000):
        factors = factors_of(them.terms, SESSION, DEALER, b"keys %d" % attempt, committed)
        lucky += factors[1] == 7
        if factors[1] == 7 or attempt < 50:
            tried = Dealing(dealing.holders, blended(them.polynomials, factors))
            assert tried.fits(them.public, factors) == (factors[1] == 7)
    # 11.7 are expected; outside of this with probability below 1e-5.
    assert 1 <= lucky <= 30


@pytest.mark.parametrize("known", [[1, 4, 5, 6], [2], []])
def test_the_blend_and_too_few_bundles_fit_any_other_secrets_with_exactly_one_blinding(known: Sequence[int]) -> None:
    """Whoever sees F and fewer than t bundles can rule out no secrets: each choice has one g, and it gives the same bundles."""
    them, random = Dealt(5), Random(6)
    dealing, factors = them.dealing()
    seen = {x: [value_at(one, x) for one in them.polynomials] for x in known}
    others = [
        highest_first(
            {0: random.randrange(PRIME)}
            | {x: seen[x][at] for x in known}
            # The rest of the polynomial is free.
            | {100 + free: random.randrange(PRIME) for free in range(4 - len(known))}
        )
        for at in range(8)
    ]
    # F less the others: the one that is left for g.
    blind = blended([dealing.blend, *others], [1, *(-factor for factor in factors[:-1])])
    assert blended([*others, blind], factors) == dealing.blend
    assert all(len(one) == 5 for one in others)
    assert {x: [value_at(one, x) for one in (*others, blind)] for x in known} == seen
    assert value_at(blind, 0) != int.from_bytes(them.secrets[-1], "big")


def test_a_session_deals_once_and_never_reveals_what_blinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blends with different factors would give a combination of the secrets away; so would a share of g beside F."""
    drawn_from(monkeypatch, 3)
    hub = EvilHub(masked_company())
    hub.introduce()
    first = hub.statement("site 0", 0, "packets", b"", tuple(hub.near("site 0").items()))
    assert first is not None
    fewer = tuple(list(hub.near("site 0").items())[:-1])
    assert hub.statement("site 0", 0, "packets", b"", fewer) is None
    assert "taken before, with other data" in hub.refused["site 0"]
    again = hub.statement("site 0", 0, "packets", b"", tuple(hub.near("site 0").items()))
    assert again is not None and again.data == first.data
    hub.share_out()
    hub.enrol()
    hub.seal()
    blinding = set()
    for member in hub.them.members.values():
        session = member._session
        assert isinstance(session, Session)
        blinding |= {shares[-1] for shares, _ in session._held.values()}
    assert len(blinding) == 49
    for round_ in range(hub.terms.rounds):
        hub.ask(round_)
        hub.tell(hub.them.names, to=hub.them.names, round_=round_)
        hub.open(hub.them.names, round_)
    revealed = {share for found in hub.shares.values() for share in found.values()}
    assert len(revealed) == 49 * hub.terms.rounds and not revealed & blinding


def test_a_receipt_does_not_show_the_value_that_it_is_for() -> None:
    """A holder with a dealer's other commitment would otherwise tell the hub a second blend of the same shares."""
    got = ShareDigests.of(SESSION, DEALER, 1, [bytes(32)] * 9)
    assert receipt(got, b"c", 5) != receipt(got, b"c", 6)
    assert receipt(got, b"c", 5) == receipt(got, b"c", 5 + PRIME)
    assert len(receipt(got, b"c", 5)) == KEY != SIGNATURE
