"""What the hub keeps of keys: `Keyring` for one exchange of keys, `SharePool` for the shares revealed at the end of a round."""

import os
from functools import lru_cache
from typing import final

from eigenveil.protocols.keys import KEY, SIGNATURE
from eigenveil.protocols.masked.session import BEFORE_ROSTER, MARK, bundle_mark, receipt
from eigenveil.protocols.masked.shamir import Joiner
from eigenveil.protocols.masked.terms import KeyCard, MaskedTerms, said_in
from eigenveil.protocols.messages import Return

__all__ = ["Keyring", "SharePool"]


@final
class Keyring:
    """The key cards, who takes part, and who has which shares. Changes in place, step by step."""

    def __init__(self, terms: MaskedTerms, first: int, nonce: bytes | None = None) -> None:
        self.terms, self.first, self.nonce = terms, first, os.urandom(KEY) if nonce is None else nonce
        self.id = terms.session(self.nonce, first)
        self.places = terms.places
        self.cards: dict[str, KeyCard] = {}
        self.signed: dict[str, bytes] = {}
        self.roster: tuple[str, ...] = ()
        self._dealers: dict[str, list[str]] = {}
        # For each dealer and holder, the digests of the shares in the bundle, and the holders that have confirmed them.
        self.marks: dict[str, dict[str, list[bytes]]] = {}
        self.confirmed: dict[str, set[str]] = {}
        self._bundles: dict[str, dict[str, bytes]] = {}
        self._denied: dict[str, set[str]] = {}
        self.bound = b""

    def said(self, round_: int, step: str, what: bytes) -> bytes:
        """The statement that a site signs in one step of a round."""
        return said_in(self.id if step in BEFORE_ROSTER else self.bound, round_, step, what)

    def read_marks(self, name: str, answer: Return) -> None:
        """Take a dealer's digests of the shares it has sent."""
        # A seed and a mask key for each round, in the order of `Session.share_out`.
        count = 2 * self.terms.rounds
        pieces = [answer.data[start : start + MARK] for start in range(0, len(answer.data), MARK)]
        # A dealer holds a share of its own secrets too. It never travels, so there is no bundle to compare.
        bundles = ((name, b""), *answer.table)
        self.marks[name] = {holder: pieces[count * at : count * (at + 1)] for at, (holder, _) in enumerate(bundles)}
        self._bundles[name] = {holder: bundle_mark(bundle) for holder, bundle in bundles}

    def confirm(self, name: str, receipts: bytes) -> None:
        """Take a holder's receipts for the bundles it got, which come when it seals the roster."""
        for at, dealer in enumerate(self.dealers(name)):
            said, got = (receipts[MARK * place : MARK * (place + 1)] for place in (2 * at, 2 * at + 1))
            if said == receipt(self.marks[dealer][name]):
                self.confirmed.setdefault(dealer, set()).add(name)
            elif got == self._bundles[dealer][name]:
                self._denied.setdefault(dealer, set()).add(name)
            # Otherwise the bundle was changed on its way. Neither dealer nor holder is to blame.

    def deniers(self, name: str) -> list[str]:
        """Holders that have a dealer's bundle and deny that its shares have the digests that the dealer gave."""
        return [holder for holder in self.roster if holder in self._denied.get(name, ())]

    def denied(self) -> list[str]:
        """Dealers whose bundles more sites deny than may collude: at least one of these sites is honest."""
        return [name for name in self.roster if len(self.deniers(name)) > self.terms.colluders]

    def raw(self, name: str) -> bytes:
        """A site's key card as received."""
        return self.signed[name][:-SIGNATURE]

    def holders(self, name: str) -> list[str]:
        """The other sites with a card that are holders of a site's secrets."""
        return [other for other in self.cards if self.places[other] in self.cards[name].holders]

    def near(self, name: str) -> list[str]:
        """The sites with a card that share a mask with a site."""
        place, mine = self.places[name], self.cards[name].holders
        return [
            other
            for other, card in self.cards.items()
            if other != name and (place in card.holders or self.places[other] in mine)
        ]

    def dealers(self, name: str) -> list[str]:
        """The sites on the roster of whose secrets a site has shares, itself included, in the order of the roster."""
        if not self._dealers:
            # Computed once, after the roster is fixed: every site asks for its own list in every round.
            names = self.terms.names
            self._dealers = {other: [] for other in self.roster}
            for dealer in self.roster:
                for place in self.cards[dealer].holders | {self.places[dealer]}:
                    if names[place] in self._dealers:
                        self._dealers[names[place]].append(dealer)
        return self._dealers[name]


@final
class SharePool:
    """Shares that holders have revealed, by the site whose secret they are of. Changes in place."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._shares: dict[str, dict[int, bytes]] = {}

    def add(self, name: str, point: int, share: bytes) -> None:
        """Take a share of a site's secret from the holder at this point, checked against the dealer's digest."""
        self._shares.setdefault(name, {})[point] = share

    def count(self, name: str) -> int:
        """The number of shares of a site's secret."""
        return len(self._shares.get(name, {}))

    def join(self, name: str) -> bytes | None:
        """A site's secret; None if its shares, though exactly as the site sent them, do not belong to one secret."""
        held = self._shares[name]
        try:
            return _joiner(tuple(sorted(held)[: self._threshold]), self._threshold).join(held)
        except ValueError:
            return None


# Most sites have the same holders in a complete graph, and the weights of a set of holders take long to find.
@lru_cache(maxsize=4096)
def _joiner(points: tuple[int, ...], threshold: int) -> Joiner:
    return Joiner(points, threshold)
