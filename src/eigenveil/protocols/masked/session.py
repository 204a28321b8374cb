"""`Session`: one exchange of keys as one site sees it, from its own public keys to a sealed roster of who takes part.

A site has two secrets for each round: a mask key, for the masks it shares with its neighbours, and a seed for a mask of its own.
Both are split among holders, in a way that shows whether they fit the site's public keys (`masked.dealing`). In a round the
holders reveal the seed of a site whose part came, or the mask key of a site whose part did not. They never reveal both: that
would show what the site sent. Each mask key serves one round. When a site drops out its key is revealed, and a key used before
would lay open what the site had sent before.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations
from typing import Final, final

from eigenveil.errors import require
from eigenveil.protocols.keys import (
    KEY,
    SEAL,
    SIGNATURE,
    Identity,
    agree,
    digest,
    draw_key,
    open_bundle,
    private_key,
    public_of,
    seal_bundle,
)
from eigenveil.protocols.masked.dealing import (
    MARK,
    Dealing,
    ShareDigests,
    SignatureCheck,
    bundle_mark,
    factors_of,
    pieces,
    receipt,
    secret_count,
)
from eigenveil.protocols.masked.shamir import SHARE_BYTES, Joiner, blended, is_share, polynomial, share_in, split
from eigenveil.protocols.masked.terms import MaskedTerms, PublicKeys, bound_to, statement_in
from eigenveil.protocols.messages import StepReply, Table

__all__ = ["Keyring", "Session", "SharePool", "bundle_size", "pair_purpose", "roster_of"]

# Stands for a share that a holder does not have: these bytes are not an element of the field.
_NO_SHARE = b"\xff" * SHARE_BYTES
# The steps before the roster is fixed, as they are called on the wire. Every later statement is bound to the roster.
_BEFORE_ROSTER: Final = ("keys", "packets", "roster")


def bundle_size(terms: MaskedTerms) -> int:
    """The bytes of a sealed bundle: what the dealer has committed itself to, and the holder's shares."""
    return KEY + SHARE_BYTES * secret_count(terms) + SEAL


def roster_of(terms: MaskedTerms, keys: Mapping[str, bytes]) -> bytes:
    """Who takes part, with the digest of each site's public keys, in the order of the roster."""
    return terms.bits(keys) + b"".join(digest("public keys", keys[name]) for name in terms.roster if name in keys)


def pair_purpose(context: bytes, round_: int, i: int, j: int) -> bytes:
    """The purpose of the key for the mask between the sites at two places."""
    return digest("mask", context, round_, min(i, j), max(i, j))


@final
class Session:
    """One exchange of keys. Changes in place, step by step. Data that do not fit are a `ValueError` and change nothing.

    `nonce` is the hub's, `first` the round in which the session begins. `draw` gives the random bytes of all secrets, None for
    those of the operating system.
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
        self._index = self._places[name]
        self._draw = os.urandom if draw is None else draw
        bundles = draw_key(self._draw)
        self._bundles = private_key(bundles)
        # All secrets of all rounds are drawn at once, so that one exchange of keys serves them all.
        self._keys = [draw_key(self._draw) for _ in range(terms.rounds)]
        self._seeds = [draw_key(self._draw) for _ in range(terms.rounds)]
        self._blind = draw_key(self._draw)
        self.public = PublicKeys(
            bundles=public_of(bundles),
            keys=tuple(public_of(key) for key in self._keys),
            seeds=tuple(public_of(seed) for seed in self._seeds),
            blind=public_of(self._blind),
            holders=self._draw_holders(),
        )
        self.raw = self.public.encode(terms)
        self._keys_of: dict[str, PublicKeys] = {}
        self._digests = {name: digest("public keys", self.raw)}
        self.roster: frozenset[str] = frozenset()
        self._roster_digest = b""
        self._bound = b""
        # For each dealer: its shares that this site has, and what it has committed itself to.
        self._held: dict[str, tuple[list[bytes], bytes]] = {}
        self._arrived: dict[str, bytes] = {}
        self.check = SignatureCheck(terms, self._draw(KEY))
        self.sealed = False

    def _draw_holders(self) -> frozenset[int]:
        """All other sites, or as many as the graph says, drawn by this site alone so that no other can choose them for it."""
        others = [at for at in range(len(self._terms.roster)) if at != self._index]
        if self._terms.graph.complete:
            return frozenset(others)
        # The first sites in an order that others cannot predict.
        key = self._draw(KEY)
        return frozenset(sorted(others, key=lambda at: digest("holder", key, at))[: self._terms.graph.holders])

    def covers(self, round_: int) -> bool:
        """Whether this session has keys for a round."""
        return self.sealed and self.first <= round_ < self.first + self._terms.rounds

    def statement(self, round_: int, step: str, what: bytes) -> bytes:
        """The statement that a site signs in one step of a round."""
        return statement_in(self.id if step in _BEFORE_ROSTER else self._bound, round_, step, what)

    def sign(self, round_: int, step: str, what: bytes) -> bytes:
        return self._identity.sign(self.statement(round_, step, what))

    def share_out(self, signed_keys: Table) -> tuple[bytes, Table] | None:
        """What this site says of the shares of its secrets (a `Dealing`), and a sealed bundle for each holder in the table.

        None if the holders are too few. Called once: two blends of the same secrets would reveal something about them.
        """
        read: dict[str, PublicKeys] = {}
        # The keys of all are checked before any are kept.
        for name, signed in signed_keys:
            require(name in self._places and name != self._name, "signed keys are not of another site on the roster")
            raw, signature = signed[:-SIGNATURE], signed[-SIGNATURE:]
            self._require_signed_keys(name, raw, signature)
            read[name] = PublicKeys.read(self._terms, self._places[name], raw)
            # Only keys of neighbours: a site makes a mask with every site whose keys it accepts.
            near = self._index in read[name].holders or self._places[name] in self.public.holders
            require(near, "signed keys are of a site that is not a neighbour of this one")
        holders = [name for name in read if self._places[name] in self.public.holders]
        if len(holders) + 1 < self._terms.graph.threshold:
            return None
        points = [1 + self._places[name] for name in (self._name, *holders)]
        # The order of shares in a bundle: seeds of all rounds, then mask keys, then what blinds. `reveal` relies on it.
        secrets = [*self._seeds, *self._keys, self._blind]
        polynomials = [polynomial(secret, threshold=self._terms.graph.threshold, draw=self._draw) for secret in secrets]
        shares = split(polynomials, holders=points)
        digests = tuple(ShareDigests.of(self.id, 1 + self._index, point, held) for point, held in shares.items())
        committed = Dealing.commitment(digests)
        blend = blended(polynomials, self._factors(self._name, committed))
        # The site is a holder of its own secrets too: with few survivors its own share may be needed.
        self._held = {self._name: (shares[1 + self._index], committed)}
        self._keys_of = read
        self._digests |= {name: digest("public keys", signed[:-SIGNATURE]) for name, signed in signed_keys}
        sealed = tuple(
            (name, self._bundle(name, b"".join([committed, *shares[1 + self._places[name]]]), read[name].bundles))
            for name in holders
        )
        return Dealing(digests, blend).encode(), sealed

    def _factors(self, dealer: str, committed: bytes) -> list[int]:
        return factors_of(self._terms, self.id, 1 + self._places[dealer], self._digests[dealer], committed)

    def receipts(self) -> bytes:
        """For each site of whose secrets this one has shares: a receipt for the shares, and the digest of the sealed bundle.

        The hub compares them with what the dealer says before anything is charged. A receipt is a digest, so this site
        tells nobody a combination of its shares, whichever digests the dealer has given it.
        """
        receipts: list[bytes] = []
        for name in self._dealers():
            # Stands for a bundle that could not be opened.
            proof = bytes(KEY)
            if name in self._held:
                shares, committed = self._held[name]
                got = ShareDigests.of(self.id, 1 + self._places[name], 1 + self._index, shares)
                factors = self._factors(name, committed)
                value = sum(factor * share_in(share) for factor, share in zip(factors, shares, strict=True))
                proof = receipt(got, committed, value)
            receipts += [proof, self._arrived.get(name, bundle_mark(b""))]
        return b"".join(receipts)

    def _dealers(self) -> list[str]:
        """The sites on the roster of whose secrets this site has shares, itself included, in the order of the roster."""
        mine = {name for name, keys in self._keys_of.items() if self._index in keys.holders} | {self._name}
        return [name for name in self._terms.roster if name in mine and name in self.roster]

    def _require_signed_keys(self, name: str, raw: bytes, signature: bytes) -> None:
        statement = self.statement(self.first, "keys", digest("return", raw))
        require(self._terms.signed(name, statement, signature), f"the list of keys of {name} is not signed by {name}")

    def _bundle(self, name: str, bundle: bytes, public: bytes) -> bytes:
        key = agree(self._bundles, public, digest("bundle key", self.id, self._name, name))
        return seal_bundle(key, bundle, about=digest("about", self.id, self._name, name))

    def enrol(self, roster: bytes, bundles: Table) -> bytes | None:
        """Check the roster and read this site's bundles. Returns what to sign, None if too few of its holders take part."""
        size = self._terms.bytes_of_bits
        named = self._terms.named(roster[:size])
        listed = [name for name in self._terms.roster if name in named]
        require(len(roster) == size + KEY * len(listed), "the roster has the wrong length")
        require(self._name in named, "the roster leaves this site out")
        min_sites = self._terms.survivors
        require(len(named) >= min_sites, f"the roster has {len(named)} sites, and at least {min_sites} are needed")
        self._require_same_keys(named, dict(zip(listed, pieces(roster[size:], KEY), strict=True)))
        self._require_all_holders(named)
        sealed_bundles = dict(bundles)
        dealers = {name for name, keys in self._keys_of.items() if name in named and self._index in keys.holders}
        # All of them: without the bundle of a dealer on the roster this site could not help to recover its secrets.
        require(set(sealed_bundles) == dealers, "the bundles are not from exactly the sites that have this one as a holder")
        if sum(self._places[name] in self.public.holders for name in named) + 1 < self._terms.graph.threshold:
            return None
        # Kept even if a bundle cannot be opened: the receipt must show which bytes arrived.
        self._arrived = {name: bundle_mark(sealed) for name, sealed in sealed_bundles.items()}
        for name, sealed in sealed_bundles.items():
            key = agree(self._bundles, self._keys_of[name].bundles, digest("bundle key", self.id, name, self._name))
            bundle = open_bundle(key, sealed, about=digest("about", self.id, name, self._name))
            # Without an open bundle this site has no share of those secrets. Other holders do, and the receipt tells the hub.
            if bundle is not None and len(bundle) + SEAL == bundle_size(self._terms):
                shares = list(pieces(bundle[KEY:], SHARE_BYTES))
                if all(map(is_share, shares)):
                    self._held[name] = (shares, bundle[:KEY])
        self.roster, self._roster_digest = named, digest("roster", roster)
        self._bound = bound_to(self.id, self._roster_digest)
        return self._roster_digest

    def _require_same_keys(self, named: frozenset[str], digests: Mapping[str, bytes]) -> None:
        # All sites must have the same keys of each site, or their masks would not cancel.
        others = all(digests[name] == expected for name, expected in self._digests.items() if name in named)
        require(others, "the roster has other signed keys than this site has seen")

    def _require_all_holders(self, named: frozenset[str]) -> None:
        hidden = [name for name in named if self._places[name] in self.public.holders and name not in self._keys_of]
        require(not hidden, "the roster has holders of this site whose signed keys it was not sent")

    def seal(self, signatures: Table) -> None:
        """Accept the roster, if enough sites have signed the same one."""
        require(self._roster_digest != b"", "this site has signed no roster")
        statement = self.statement(self.first, "roster", self._roster_digest)
        self._require_roster_signed(signatures, statement)
        self.sealed = True

    def _require_roster_signed(self, signatures: Table, statement: bytes) -> None:
        self.check.require_signed(signatures, statement, among=self.roster)

    def masks(self, round_: int) -> list[tuple[bytes, bool]]:
        """The keys of this site's masks in a round, and whether each is added: its own mask, and one with each neighbour."""
        at = round_ - self.first
        key = private_key(self._keys[at])
        # Without its own mask, a part whose pair masks all become known would lie open (Bonawitz et al. 2017).
        mask_keys = [(digest("own mask", self._bound, round_, self._seeds[at]), True)]
        for name, keys in self._keys_of.items():
            if name in self.roster:
                index = self._places[name]
                purpose = pair_purpose(self._bound, round_, self._index, index)
                # The site that comes first on the roster adds, the other subtracts: the mask cancels in the sum of both.
                mask_keys.append((agree(key, keys.keys[at], purpose), self._index < index))
        return mask_keys

    def reveal(self, round_: int, alive: frozenset[str]) -> bytes:
        """This site's shares for a round, in roster order: of a survivor's seed, or of a dropped-out site's mask key."""
        at, rounds = round_ - self.first, self._terms.rounds
        shares: list[bytes] = []
        for name in self._dealers():
            # Seed or mask key, never both: the one list of survivors decides. The share that blinds is never revealed.
            which = at if name in alive else rounds + at
            shares.append(self._held[name][0][which] if name in self._held else _NO_SHARE)
        return b"".join(shares)


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

    def stored(self) -> StepReply:
        """All that later rounds need of sealed keys: each site's public keys, and what is known of the shares that it dealt."""
        table: list[tuple[str, bytes]] = []
        for name in self.public:
            signed = self.signed[name]
            fields = [len(signed).to_bytes(4, "big"), signed]
            for holder, marks in self.marks.get(name, {}).items():
                flags = (holder in self.confirmed.get(name, ())) + 2 * (holder in self._denied.get(name, ()))
                fields += [self.places[holder].to_bytes(4, "big"), bytes([flags]), *marks]
            table.append((name, b"".join(fields)))
        return StepReply(round=self.first, step="keyring", data=self.nonce, table=tuple(table), signature=b"")

    @classmethod
    def from_stored(cls, terms: MaskedTerms, stored: StepReply) -> "Keyring":
        keys = cls(terms, stored.round, stored.data)
        size, names = 5 + MARK * secret_count(terms), tuple(terms.roster)
        for name, raw in stored.table:
            end = 4 + int.from_bytes(raw[:4], "big")
            keys.signed[name] = raw[4:end]
            keys.public[name] = PublicKeys.read(terms, keys.places[name], keys.raw(name))
            for start in range(end, len(raw), size):
                holder = names[int.from_bytes(raw[start : start + 4], "big")]
                keys.marks.setdefault(name, {})[holder] = pieces(raw[start + 5 : start + size], MARK)
                for bit, verdicts in ((1, keys.confirmed), (2, keys._denied)):
                    if raw[start + 4] & bit:
                        verdicts.setdefault(name, set()).add(holder)
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

    def statement(self, round_: int, step: str, what: bytes) -> bytes:
        """The statement that a site signs in one step of a round."""
        return statement_in(self.id if step in _BEFORE_ROSTER else self.bound, round_, step, what)

    def proves(self, name: str, answer: StepReply) -> bool:
        """Whether what a dealer says of its shares fits its public keys."""
        dealing = Dealing.read(self.terms, 1 + len(answer.table), answer.data)
        committed, public = Dealing.commitment(dealing.holders), digest("public keys", self.raw(name))
        factors = factors_of(self.terms, self.id, 1 + self.places[name], public, committed)
        return dealing.fits(self.public[name], factors)

    def take_dealing(self, name: str, answer: StepReply) -> None:
        """Take what a dealer says of the shares it has sent."""
        # A dealer holds a share of its own secrets too. It never travels, so there is no bundle to compare.
        bundles = ((name, b""), *answer.table)
        dealing = Dealing.read(self.terms, len(bundles), answer.data)
        due = dealing.receipts([1 + self.places[holder] for holder, _ in bundles])
        self.marks[name] = {holder: entry.marks for (holder, _), entry in zip(bundles, dealing.holders, strict=True)}
        self._receipts[name] = {holder: entry for (holder, _), entry in zip(bundles, due, strict=True)}
        self._bundles[name] = {holder: bundle_mark(bundle) for holder, bundle in bundles}

    def confirm(self, name: str, receipts: bytes) -> None:
        """Take a holder's receipts for the bundles it got, which come when it seals the roster."""
        size = KEY + MARK
        for at, dealer in enumerate(self.dealers(name)):
            proof, got = receipts[size * at : size * at + KEY], receipts[size * at + KEY : size * (at + 1)]
            if proof == self._receipts[dealer][name]:
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
        """Dealers denied by few, that could keep their secrets from all others once sites are charged.

        If such a dealer lies, up to colluders - 1 of the sites that confirmed its shares are with it and may keep theirs.
        """
        max_colluders, min_shares = self.terms.colluders, self.terms.graph.threshold
        return [
            name
            for name in self.roster
            if self.deniers(name) and len(self.confirmed.get(name, set()) - {name}) - (max_colluders - 1) < min_shares
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
        index, mine = self.places[name], self.public[name].holders
        return [
            other
            for other, keys in self.public.items()
            if other != name and (index in keys.holders or self.places[other] in mine)
        ]

    def dealers(self, name: str) -> list[str]:
        """The sites on the roster of whose secrets a site has shares, itself included, in the order of the roster."""
        if not self._dealers:
            # Computed once, after the roster is fixed: every site asks for its own list in every round.
            names = tuple(self.terms.roster)
            self._dealers = {other: [] for other in self.roster}
            for dealer in self.roster:
                for index in self.public[dealer].holders | {self.places[dealer]}:
                    if names[index] in self._dealers:
                        self._dealers[names[index]].append(dealer)
        return self._dealers[name]


# Most sites have the same holders in a complete graph, and the weights of a set of holders take long to find.
_joiner = lru_cache(maxsize=4096)(Joiner)


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
            shuffled = sorted(points, key=partial(digest, "try", self._order, name, at))
            yield shuffled[: self._threshold]
