"""`Keyring`: one exchange of keys as the hub sees it."""

import os
from typing import final

from eigenveil.protocols.keys import KEY, SIGNATURE
from eigenveil.protocols.masked.session import BEFORE_ROLL, MARK, bundle_mark, receipt
from eigenveil.protocols.masked.terms import KeyCard, MaskedTerms, said_in
from eigenveil.protocols.messages import Return

__all__ = ["Keyring"]


@final
class Keyring:
    """The cards, who takes part, and who holds what of whom. Changes in place, one step after the other."""

    def __init__(self, terms: MaskedTerms, first: int, nonce: bytes | None = None) -> None:
        self.terms, self.first, self.nonce = terms, first, os.urandom(KEY) if nonce is None else nonce
        self.id = terms.session(self.nonce, first)
        self.places = terms.places
        self.cards: dict[str, KeyCard] = {}
        self.signed: dict[str, bytes] = {}
        self.roster: tuple[str, ...] = ()
        self._dealers: dict[str, list[str]] = {}
        # For each dealer and holder, the digests of the shares in the bundle, and who has confirmed them.
        self.marks: dict[str, dict[str, list[bytes]]] = {}
        self.confirmed: dict[str, set[str]] = {}
        self._bundles: dict[str, dict[str, bytes]] = {}
        self._denied: dict[str, set[str]] = {}
        self.bound = b""

    def said(self, round_: int, step: str, what: bytes) -> bytes:
        """The statement that is signed in one step of a round."""
        return said_in(self.id if step in BEFORE_ROLL else self.bound, round_, step, what)

    def read_marks(self, name: str, answer: Return) -> None:
        """Take what a dealer says of the shares it has sent."""
        count = 2 * self.terms.rounds
        pieces = [answer.data[start : start + MARK] for start in range(0, len(answer.data), MARK)]
        bundles = ((name, b""), *answer.table)
        self.marks[name] = {holder: pieces[count * at : count * (at + 1)] for at, (holder, _) in enumerate(bundles)}
        self._bundles[name] = {holder: bundle_mark(bundle) for holder, bundle in bundles}

    def confirm(self, name: str, receipts: bytes) -> None:
        """Take what a holder says of the bundles it has got, when it seals the roster."""
        for at, dealer in enumerate(self.dealers(name)):
            said, got = (receipts[MARK * place : MARK * (place + 1)] for place in (2 * at, 2 * at + 1))
            if said == receipt(self.marks[dealer][name]):
                self.confirmed.setdefault(dealer, set()).add(name)
            elif got == self._bundles[dealer][name]:
                self._denied.setdefault(dealer, set()).add(name)
            # Else the bundle was changed on its way, and nobody is to blame.

    def deniers(self, name: str) -> list[str]:
        """Holders who have a dealer's bundle and deny that there is in it what the dealer said."""
        return [holder for holder in self.roster if holder in self._denied.get(name, ())]

    def denied(self) -> list[str]:
        """Dealers whose bundles more sites deny than may collude: an honest one is among these."""
        return [name for name in self.roster if len(self.deniers(name)) > self.terms.colluders]

    def raw(self, name: str) -> bytes:
        """A site's card as it came."""
        return self.signed[name][:-SIGNATURE]

    def holders(self, name: str) -> list[str]:
        """Those whose cards came and who are holders of a site's secrets, the site itself not among them."""
        return [other for other in self.cards if self.places[other] in self.cards[name].holders]

    def near(self, name: str) -> list[str]:
        """Those with whom a site has a mask, of those whose cards came."""
        place, mine = self.places[name], self.cards[name].holders
        return [
            other
            for other, card in self.cards.items()
            if other != name and (place in card.holders or self.places[other] in mine)
        ]

    def dealers(self, name: str) -> list[str]:
        """Those on the roster of whose secrets a site holds shares, itself among them, in the order of the roster."""
        if not self._dealers:
            # Once the roster stands.
            names = self.terms.names
            self._dealers = {other: [] for other in self.roster}
            for dealer in self.roster:
                for place in self.cards[dealer].holders | {self.places[dealer]}:
                    if names[place] in self._dealers:
                        self._dealers[names[place]].append(dealer)
        return self._dealers[name]
