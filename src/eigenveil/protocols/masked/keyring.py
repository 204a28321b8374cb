"""What the hub keeps of keys: `Keyring` for one exchange of keys, `SharePool` for the shares revealed at the end of a round."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final, final

from eigenveil.protocols.keys import KEY, SIGNATURE, digest
from eigenveil.protocols.masked.dealing import MARK, Dealing, bundle_mark, factors_of, secret_count
from eigenveil.protocols.masked.session import BEFORE_ROSTER, roster_of
from eigenveil.protocols.masked.shamir import Joiner
from eigenveil.protocols.masked.terms import MaskedTerms, PublicKeys, bound_to, said_in
from eigenveil.protocols.messages import Return

__all__ = ["Keyring", "SharePool"]

# Sets of shares that are tried where a dealer and some holders have spoiled a few. Against one spoiled share this is always
# enough, and up to a hundred sites it fails once in a thousand times, or less, against two.
_TRIES: Final = 4096


@final
class Keyring:
    """The public keys, who takes part, and who has which shares. Changes in place, step by step."""

    def __init__(self, terms: MaskedTerms, first: int, nonce: bytes | None = None) -> None:
        self.terms, self.first, self.nonce = terms, first, os.urandom(KEY) if nonce is None else nonce
        self.id = terms.session(self.nonce, first)
        self.places = terms.places
        self.public: dict[str, PublicKeys] = {}
        self.signed: dict[str, bytes] = {}
        self.roster: tuple[str, ...] = ()
        self._dealers: dict[str, list[str]] = {}
        # For each dealer and holder: the digests of the shares in the bundle, the receipt that is due, and whether it came.
        self.marks: dict[str, dict[str, tuple[bytes, ...]]] = {}
        self._receipts: dict[str, dict[str, bytes]] = {}
        self.confirmed: dict[str, set[str]] = {}
        self._bundles: dict[str, dict[str, bytes]] = {}
        self._denied: dict[str, set[str]] = {}
        self.bound = b""

    def stored(self) -> Return:
        """All that later rounds need of sealed keys: each site's public keys, and what is known of the shares that it dealt."""
        return Return(
            round=self.first,
            step="keyring",
            data=self.nonce,
            table=tuple((name, self._kept_of(name)) for name in self.public),
            signature=b"",
        )

    def _kept_of(self, name: str) -> bytes:
        pieces = [len(self.signed[name]).to_bytes(4, "big"), self.signed[name]]
        for holder, marks in self.marks.get(name, {}).items():
            said = (holder in self.confirmed.get(name, ())) + 2 * (holder in self._denied.get(name, ()))
            pieces += [self.places[holder].to_bytes(4, "big"), bytes([said]), *marks]
        return b"".join(pieces)

    @classmethod
    def from_stored(cls, terms: MaskedTerms, kept: Return) -> "Keyring":
        """The keys that were stored."""
        keys = cls(terms, kept.round, kept.data)
        size = 5 + MARK * secret_count(terms)
        for name, raw in kept.table:
            end = 4 + int.from_bytes(raw[:4], "big")
            keys.signed[name] = raw[4:end]
            keys.public[name] = PublicKeys.read(terms, keys.places[name], keys.raw(name))
            for start in range(end, len(raw), size):
                holder = terms.names[int.from_bytes(raw[start : start + 4], "big")]
                marks = [raw[at : at + MARK] for at in range(start + 5, start + size, MARK)]
                keys.marks.setdefault(name, {})[holder] = tuple(marks)
                for bit, known in ((1, keys.confirmed), (2, keys._denied)):
                    if raw[start + 4] & bit:
                        known.setdefault(name, set()).add(holder)
        # Whoever dealt shares is on the roster, in the order of the terms: every signature is bound to that.
        keys.enrol(name for name in terms.roster if name in keys.marks)
        return keys

    def enrol(self, names: Iterable[str]) -> None:
        """Fix the roster. From here on every signature and every mask depends on who takes part and on their fresh keys."""
        self.roster = tuple(names)
        self.bound = bound_to(self.id, digest("roster", self.roster_bytes()))

    def roster_bytes(self) -> bytes:
        """The roster, as sites sign it."""
        return roster_of(self.terms, {name: self.raw(name) for name in self.roster})

    def said(self, round_: int, step: str, what: bytes) -> bytes:
        """The statement that a site signs in one step of a round."""
        return said_in(self.id if step in BEFORE_ROSTER else self.bound, round_, step, what)

    def proves(self, name: str, answer: Return) -> bool:
        """Whether what a dealer says of its shares fits its public keys."""
        dealing = self._dealing(answer)
        committed, public = Dealing.commitment(dealing.holders), digest("public keys", self.raw(name))
        factors = factors_of(self.terms, self.id, 1 + self.places[name], public, committed)
        return dealing.fits(self.public[name], factors)

    def _dealing(self, answer: Return) -> Dealing:
        return Dealing.read(self.terms, 1 + len(answer.table), answer.data)

    def take_dealing(self, name: str, answer: Return) -> None:
        """Take what a dealer says of the shares it has sent."""
        # A dealer holds a share of its own secrets too. It never travels, so there is no bundle to compare.
        bundles, dealing = ((name, b""), *answer.table), self._dealing(answer)
        due = dealing.receipts([1 + self.places[holder] for holder, _ in bundles])
        self.marks[name] = {holder: one.marks for (holder, _), one in zip(bundles, dealing.holders, strict=True)}
        self._receipts[name] = {holder: one for (holder, _), one in zip(bundles, due, strict=True)}
        self._bundles[name] = {holder: bundle_mark(bundle) for holder, bundle in bundles}

    def confirm(self, name: str, receipts: bytes) -> None:
        """Take a holder's receipts for the bundles it got, which come when it seals the roster."""
        size = KEY + MARK
        for at, dealer in enumerate(self.dealers(name)):
            said, got = receipts[size * at : size * at + KEY], receipts[size * at + KEY : size * (at + 1)]
            if said == self._receipts[dealer][name]:
                self.confirmed.setdefault(dealer, set()).add(name)
            elif got == self._bundles[dealer][name]:
                self._denied.setdefault(dealer, set()).add(name)
            # Otherwise the bundle was changed on its way. Neither dealer nor holder is to blame.

    def deniers(self, name: str) -> list[str]:
        """Holders that have a dealer's bundle and deny that it holds what the dealer said."""
        return [holder for holder in self.roster if holder in self._denied.get(name, ())]

    def denied(self) -> list[str]:
        """Dealers whose bundles more sites deny than may collude: at least one of these sites is honest."""
        return [name for name in self.roster if len(self.deniers(name)) > self.terms.colluders]

    def contested(self) -> list[str]:
        """Dealers denied by few, that could keep their secrets from everybody once sites are charged.

        If such a dealer lies, up to colluders - 1 of the sites that confirmed its shares are with it and may keep theirs.
        """
        most, least = self.terms.colluders, self.terms.graph.threshold
        return [
            name
            for name in self.roster
            if self.deniers(name) and len(self.confirmed.get(name, set()) - {name}) - (most - 1) < least
        ]

    def false_deniers(self) -> list[str]:
        """Holders that deny the bundles of more dealers than may collude: at least one of these dealers is honest."""
        count = {holder: sum(holder in them for them in self._denied.values()) for holder in self.roster}
        return [holder for holder in self.roster if count[holder] > self.terms.colluders]

    def unconfirmed(self) -> list[str]:
        """Dealers whose shares too few holders have confirmed to recover a secret."""
        return [name for name in self.roster if len(self.confirmed.get(name, ())) < self.terms.graph.threshold]

    def raw(self, name: str) -> bytes:
        """A site's public keys as received."""
        return self.signed[name][:-SIGNATURE]

    def holders(self, name: str) -> list[str]:
        """The other sites with keys that are holders of a site's secrets."""
        return [other for other in self.public if self.places[other] in self.public[name].holders]

    def near(self, name: str) -> list[str]:
        """The sites with keys that share a mask with a site."""
        place, mine = self.places[name], self.public[name].holders
        return [
            other
            for other, keys in self.public.items()
            if other != name and (place in keys.holders or self.places[other] in mine)
        ]

    def dealers(self, name: str) -> list[str]:
        """The sites on the roster of whose secrets a site has shares, itself included, in the order of the roster."""
        if not self._dealers:
            # Computed once, after the roster is fixed: every site asks for its own list in every round.
            names = self.terms.names
            self._dealers = {other: [] for other in self.roster}
            for dealer in self.roster:
                for place in self.public[dealer].holders | {self.places[dealer]}:
                    if names[place] in self._dealers:
                        self._dealers[names[place]].append(dealer)
        return self._dealers[name]


@final
class SharePool:
    """Shares that holders have revealed, by the site whose secret they are of. Changes in place."""

    def __init__(self, threshold: int, order: bytes) -> None:
        self._threshold, self._order = threshold, order
        self._shares: dict[str, dict[int, bytes]] = {}

    def add(self, name: str, point: int, share: bytes) -> None:
        """Take a share of a site's secret from the holder at this point, checked against the dealer's digest."""
        self._shares.setdefault(name, {})[point] = share

    def count(self, name: str) -> int:
        """The number of shares of a site's secret."""
        return len(self._shares.get(name, {}))

    def secrets(self, name: str) -> Iterator[bytes]:
        """What the shares of a site's secret join to, first those of the lowest holders, then those of other sets of holders.

        The shares of an honest dealer all join to its secret. If a dealer lies together with some holders, theirs may be spoiled
        and still have the digests it gave. Those of honest holders join to the secret of its public key (`masked.dealing`).
        """
        held = self._shares[name]
        points = sorted(held)
        yield _joiner(tuple(points[: self._threshold]), self._threshold).join(held)
        for some in self._subsets(name, points):
            yield Joiner(some, self._threshold).join(held)

    def _subsets(self, name: str, points: Sequence[int]) -> Iterator[Sequence[int]]:
        if math.comb(len(points), self._threshold) <= _TRIES:
            yield from combinations(points, self._threshold)
            return
        # With b of n shares spoiled, a set drawn at random has none of them about once in (n / (n - threshold))^b times. The
        # order is the same when the hub is started again.
        for at in range(_TRIES):
            yield self._shuffled(name, points, at)[: self._threshold]

    def _shuffled(self, name: str, points: Sequence[int], at: int) -> Sequence[int]:
        return sorted(points, key=lambda point: digest("try", self._order, name, at, point))


# Most sites have the same holders in a complete graph, and the weights of a set of holders take long to find.
@lru_cache(maxsize=4096)
def _joiner(points: tuple[int, ...], threshold: int) -> Joiner:
    return Joiner(points, threshold)
