"""`Session`: one exchange of keys as one site holds it, from its own card to a sealed roll of who takes part.

A site has two secrets for each turn: a mask key, from which it makes a mask together with each neighbour, and a seed for a mask
of its own. Both are split among holders. In a turn the holders reveal the seed of a site whose part came, or the mask key of one
whose part did not, and never both: that would show what it sent. Mask keys are for one turn each, because a key that is revealed
when its site drops out would lay open all that the site had sent before.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from eigenveil.errors import require
from eigenveil.protocols.keys import (
    KEY,
    SIGNATURE,
    Identity,
    agree,
    digest,
    open_letter,
    private_key,
    public_of,
    seal_letter,
)
from eigenveil.protocols.masked.evidence import Doubt
from eigenveil.protocols.masked.shamir import SHARE_BYTES, split_many
from eigenveil.protocols.masked.terms import Card, MaskedTerms, bound_to, said_in
from eigenveil.protocols.messages import Table

__all__ = [
    "BEFORE_ROLL",
    "MARK",
    "NO_SHARE",
    "Session",
    "letter_mark",
    "pair_purpose",
    "receipt",
    "roll_of",
    "share_mark",
]

# In the place of a share that a holder does not have: no element of the field.
NO_SHARE = b"\xff" * SHARE_BYTES


# What is said before the roll is; everything else is bound to it.
BEFORE_ROLL: Final = ("keys", "packets", "roll")
# Bytes of the digest of a share: nobody but its dealer has anything from two shares with the same one.
MARK: Final = 16


def share_mark(session: bytes, dealer: int, holder: int, at: int, share: bytes) -> bytes:
    """The digest of one share, by the points of its dealer and holder and its place in the letter."""
    return digest("share", session, dealer, holder, at, share)[:MARK]


def letter_mark(sealed: bytes) -> bytes:
    """The digest of a sealed letter, as it travels."""
    return digest("sealed", sealed)[:MARK]


def receipt(marks: Sequence[bytes]) -> bytes:
    """What a holder says of a letter, by the digests of its shares."""
    return digest("receipt", *marks)[:MARK]


def roll_of(terms: MaskedTerms, cards: Mapping[str, bytes]) -> bytes:
    """Who takes part, with the digest of each one's card, in the order of the roster."""
    return terms.bits(cards) + b"".join(digest("card", cards[name]) for name in terms.roster if name in cards)


def pair_purpose(context: bytes, turn: int, one: int, two: int) -> bytes:
    """What the key of the mask between the sites at two places is for."""
    return digest("mask", context, turn, min(one, two), max(one, two))


@final
class Session:
    """Changes in place, one step after the other; what does not fit is a `ValueError` and changes nothing.

    `nonce` is the hub's, `first` the turn in which the session begins. `draw` gives the random bytes that all secrets are made
    of, None for those of the operating system.
    """

    def __init__(
        self,
        terms: MaskedTerms,
        name: str,
        identity: Identity,
        nonce: bytes,
        first: int,
        draw: Callable[[int], bytes] | None = None,
    ) -> None:
        self.id, self.first, self.nonce = terms.session(nonce, first), first, nonce
        self._terms, self._name, self._identity = terms, name, identity
        self._places = terms.places
        self._place = self._places[name]
        self._draw = os.urandom if draw is None else draw
        letters = self._draw(KEY)
        self._letters = private_key(letters)
        self._keys = [self._draw(KEY) for _ in range(terms.turns)]
        self._seeds = [self._draw(KEY) for _ in range(terms.turns)]
        self.card = Card(
            public_of(letters),
            tuple(public_of(key) for key in self._keys),
            tuple(digest("seed", seed) for seed in self._seeds),
            self._draw_holders(),
        )
        self._raw = self.card.encode(terms)
        self._cards: dict[str, Card] = {}
        self._digests = {name: digest("card", self._raw)}
        self.roll: frozenset[str] = frozenset()
        self._roll_digest = b""
        self._bound = b""
        self._held: dict[str, bytes] = {}
        self._seen: dict[str, bytes] = {}
        self.doubt = Doubt(terms, self._draw(KEY))
        self.sealed = False

    def _draw_holders(self) -> frozenset[int]:
        """Everybody else, or as many as the graph says, drawn by this site alone: nobody can choose them for it."""
        others = [at for at in range(len(self._terms.roster)) if at != self._place]
        if self._terms.graph.complete:
            return frozenset(others)
        # The first in an order that nobody can foretell.
        key = self._draw(KEY)
        return frozenset(sorted(others, key=lambda at: digest("holder", key, at))[: self._terms.graph.holders])

    def covers(self, turn: int) -> bool:
        """Whether there are keys for this turn."""
        return self.sealed and self.first <= turn < self.first + self._terms.turns

    def said(self, turn: int, step: str, what: bytes) -> bytes:
        """The statement that is signed in one step of a turn."""
        return said_in(self.id if step in BEFORE_ROLL else self._bound, turn, step, what)

    def sign(self, turn: int, step: str, what: bytes) -> bytes:
        """This site's signature of that."""
        return self._identity.sign(self.said(turn, step, what))

    def introduce(self) -> bytes:
        """This site's card."""
        return self._raw

    def share_out(self, cards: Table) -> tuple[bytes, Table] | None:
        """The digest of every share of this site's secrets, and letters with these to its holders among those whose `cards` came.

        First come the shares that the site keeps itself, then each letter's. None if the holders are too few.
        """
        read: dict[str, Card] = {}
        for name, signed in cards:
            require(name in self._places and name != self._name, "a card is of no other site on the roster")
            raw, signature = signed[:-SIGNATURE], signed[-SIGNATURE:]
            self._require_signed_card(name, raw, signature)
            read[name] = Card.read(self._terms, self._places[name], raw)
            near = self._place in read[name].holders or self._places[name] in self.card.holders
            require(near, "a card is of a site that has nothing to do with this one")
        holders = [name for name in read if self._places[name] in self.card.holders]
        if len(holders) + 1 < self._terms.graph.threshold:
            return None
        points = [1 + self._places[name] for name in (self._name, *holders)]
        secrets = [*self._seeds, *self._keys]
        shares = split_many(secrets, threshold=self._terms.graph.threshold, holders=points, draw=self._draw)
        letters = {point: b"".join(pieces) for point, pieces in shares.items()}
        marks = [
            share_mark(self.id, 1 + self._place, point, at, piece)
            for point, pieces in shares.items()
            for at, piece in enumerate(pieces)
        ]
        self._held = {self._name: letters[1 + self._place]}
        self._cards = read
        self._digests |= {name: digest("card", signed[:-SIGNATURE]) for name, signed in cards}
        sealed = tuple(
            (name, self._letter(name, letters[1 + self._places[name]], read[name].letters)) for name in holders
        )
        return b"".join(marks), sealed

    def receipts(self) -> bytes:
        """What was in the letter of each site of whose secrets this one holds shares, and which letter it was, in order.

        The hub compares it with what the dealer said it had sent, while nothing has been charged yet.
        """
        found: list[bytes] = []
        for name in self._dealers():
            letter = self._held.get(name, b"")
            pieces = [letter[start : start + SHARE_BYTES] for start in range(0, len(letter), SHARE_BYTES)]
            dealer, me = 1 + self._places[name], 1 + self._place
            found.append(receipt([share_mark(self.id, dealer, me, at, piece) for at, piece in enumerate(pieces)]))
            found.append(self._seen.get(name, letter_mark(b"")))
        return b"".join(found)

    def _dealers(self) -> list[str]:
        """Those on the roll of whose secrets this site holds shares, itself among them, in the order of the roster."""
        mine = {name for name, card in self._cards.items() if self._place in card.holders} | {self._name}
        return [name for name in self._terms.roster if name in mine and name in self.roll]

    def _require_signed_card(self, name: str, raw: bytes, signature: bytes) -> None:
        statement = self.said(self.first, "keys", digest("return", raw))
        require(self._terms.signed(name, statement, signature), f"the card of {name} is not signed by it")

    def _letter(self, name: str, letter: bytes, public: bytes) -> bytes:
        key = agree(self._letters, public, digest("letter", self.id, self._name, name))
        return seal_letter(key, letter, about=digest("about", self.id, self._name, name))

    def enrol(self, roll: bytes, letters: Table) -> bytes | None:
        """Check who takes part and read the letters to this site; what to sign. None if too few of its holders take part."""
        named, digests = self._read_roll(roll)
        self._require_my_roll(named, digests)
        given = dict(letters)
        dealers = {name for name, card in self._cards.items() if name in named and self._place in card.holders}
        require(set(given) == dealers, "the letters are not those of the sites that have this one for a holder")
        if sum(self._places[name] in self.card.holders for name in named) + 1 < self._terms.graph.threshold:
            return None
        self._seen = {name: letter_mark(sealed) for name, sealed in given.items()}
        for name, sealed in given.items():
            key = agree(self._letters, self._cards[name].letters, digest("letter", self.id, name, self._name))
            letter = open_letter(key, sealed, about=digest("about", self.id, name, self._name))
            if letter is not None and len(letter) == 2 * self._terms.turns * SHARE_BYTES:
                self._held[name] = letter
            # Else this site holds nothing of that one's; there are others who do.
        self.roll, self._roll_digest = named, digest("roll", roll)
        self._bound = bound_to(self.id, self._roll_digest)
        return self._roll_digest

    def _read_roll(self, roll: bytes) -> tuple[frozenset[str], dict[str, bytes]]:
        size = self._terms.bytes_of_bits
        named = self._terms.named(roll[:size])
        listed = [name for name in self._terms.roster if name in named]
        require(len(roll) == size + KEY * len(listed), "the roll has another length")
        return named, {name: roll[size + KEY * at : size + KEY * (at + 1)] for at, name in enumerate(listed)}

    def _require_my_roll(self, named: frozenset[str], digests: Mapping[str, bytes]) -> None:
        require(self._name in named, "the roll leaves this site out")
        require(
            len(named) >= self._terms.survivors, f"the roll has {len(named)} sites, and {self._terms.survivors} must be"
        )
        self._require_same_cards(named, digests)
        self._require_all_holders(named)

    def _require_same_cards(self, named: frozenset[str], digests: Mapping[str, bytes]) -> None:
        others = all(digests[name] == known for name, known in self._digests.items() if name in named)
        require(others, "the roll is for other cards than this site has seen")

    def _require_all_holders(self, named: frozenset[str]) -> None:
        hidden = [name for name in named if self._places[name] in self.card.holders and name not in self._cards]
        require(not hidden, "the roll has holders of this site whose cards were kept from it")

    def seal(self, signatures: Table) -> None:
        """Go by the roll from here on, if enough sites have signed the same one."""
        require(self._roll_digest != b"", "there is no roll to seal")
        statement = self.said(self.first, "roll", self._roll_digest)
        self._require_roll_signed(signatures, statement)
        self.sealed = True

    def _require_roll_signed(self, signatures: Table, statement: bytes) -> None:
        self.doubt.require_signed(signatures, statement, among=self.roll)

    def masks(self, turn: int) -> list[tuple[bytes, bool]]:
        """The keys of this site's masks in a turn, and which of them are added: one of its own, one with each neighbour."""
        at = turn - self.first
        key = private_key(self._keys[at])
        found = [(digest("own mask", self._bound, turn, self._seeds[at]), True)]
        for name, card in self._cards.items():
            if name in self.roll:
                place = self._places[name]
                purpose = pair_purpose(self._bound, turn, self._place, place)
                found.append((agree(key, card.keys[at], purpose), self._place < place))
        return found

    def reveal(self, turn: int, alive: frozenset[str]) -> bytes:
        """What this site holds of others' secrets in a turn, in the order of the roster: the seed of who is alive, the key of who
        is not."""
        at, turns = turn - self.first, self._terms.turns
        found: list[bytes] = []
        for name in self._dealers():
            letter = self._held.get(name)
            start = SHARE_BYTES * (at if name in alive else turns + at)
            found.append(NO_SHARE if letter is None else letter[start : start + SHARE_BYTES])
        return b"".join(found)
