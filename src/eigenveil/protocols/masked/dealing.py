"""Dealing: how a site that shares out its secrets shows, before any site is charged, that they fit its public keys.

A dealer has a polynomial f_w of degree below t for each secret s_w, and one more, g, for a secret that blinds
(`PublicKeys.blind`). Its public keys are the points P_w = s_w G and B = s_0 G, where s_0 is to be g(0). It commits itself to all
shares by their digests. A hash of these digests gives factors r_w of 128 bits, which no one can choose (Fiat and Shamir
1986). Then the dealer sends the hub F = g + sum_w r_w f_w.

The hub checks that F(0) G = B + sum_w r_w P_w. Each holder h works out g(h) + sum_w r_w f_w(h) from its own shares and puts it
into its receipt, which the hub compares with F(h).

Sound. Let the receipts of t or more honest holders H fit. Suppose that their shares of some f_w are not on a polynomial of
degree below t. Then there are weights l_h for which sum_h l_h p(h) = 0 for every such polynomial p, and sum_h l_h f_w(h) = d_w
is not zero. F is such a polynomial, so d_0 + sum_w r_w d_w = 0, where d_0 is for g. Given the other factors, one r_w modulo q
does that, so the shares that H has of each f_w are on such a polynomial, and F(0) = g(0) + sum_w r_w f_w(0) for these. With
the hub's check, (g(0) - s_0) + sum_w r_w (f_w(0) - s_w) = 0. If some f_w(0) is not s_w, again one r_w does that. A dealer may
try N commitments, and may provoke up to c holders to deny its bundle and leave H, so it gets through with probability at most
2 N (holders choose c) / 2^128. Otherwise any t honest holders have the secrets of its public keys between them.

Hiding. For any secrets and any f_w, exactly one g gives a certain F. So F is uniform whatever the secrets are. It is so for
fewer than t holders together as well, except that they know F at their own points already. And B = F(0) G - sum_w r_w P_w
follows from public numbers, as in Schnorr's proof of knowledge. Hence F tells no more than the public keys do. This
holds for one F: two with different factors would reveal a combination of the secrets, so a session deals once.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from eigenveil.errors import require
from eigenveil.protocols.keys import KEY, SIGNATURE, digest, public_of
from eigenveil.protocols.masked.shamir import PRIME, SHARE_BYTES, Polynomial, share_in, value_at, weighted_sum
from eigenveil.protocols.masked.terms import MaskedTerms, PublicKeys
from eigenveil.protocols.messages import Table

__all__ = [
    "MARK",
    "Dealing",
    "HashTree",
    "ShareDigests",
    "SignatureCheck",
    "bundle_mark",
    "checks_needed",
    "drawn",
    "factors_of",
    "pieces",
    "receipt",
    "secret_count",
    "seen_signed",
    "share_mark",
]

# Bytes of the digest of one share. A collision helps its dealer and a holder together to spoil the holder's share, and they can
# do that without one. The digest of a whole bundle is a full one: it fixes what honest holders have before the factors are known.
MARK: Final = 16
# Bytes of a factor: it is random enough, and takes the hub half the time of a whole number modulo q.
_FACTOR: Final = 16


def share_mark(session: bytes, dealer: int, holder: int, at: int, share: bytes) -> bytes:
    """The digest of one share, by the points of its dealer and holder and its place in the bundle."""
    return digest("share", session, dealer, holder, at, share)[:MARK]


def bundle_mark(sealed: bytes) -> bytes:
    """The digest of a sealed bundle, as it travels."""
    return digest("sealed", sealed)[:MARK]


def secret_count(terms: MaskedTerms) -> int:
    """How many shares are in a bundle: of the seeds of all rounds, of the mask keys of all rounds, and of the one that blinds."""
    return 2 * terms.rounds + 1


@final
@dataclass(frozen=True, slots=True)
class ShareDigests:
    """What fixes the shares of one holder."""

    marks: tuple[bytes, ...]  # The digest of each share.
    bundle: bytes  # The digest of all of them together.

    @classmethod
    def of(cls, session: bytes, dealer: int, holder: int, shares: Sequence[bytes]) -> "ShareDigests":
        """The digests of these shares, by the points of their dealer and holder."""
        marks = tuple(share_mark(session, dealer, holder, at, share) for at, share in enumerate(shares))
        return cls(marks, digest("bundle", session, dealer, holder, *shares))


@final
@dataclass(frozen=True, slots=True)
class Dealing:
    """What a dealer tells the hub about its shares."""

    holders: tuple[ShareDigests, ...]  # For each of its holders, itself first.
    blend: Polynomial  # The polynomial F.

    @staticmethod
    def size(terms: MaskedTerms, holders: int) -> int:
        """The number of bytes of an encoded dealing for so many holders, the dealer included."""
        return (MARK * secret_count(terms) + KEY) * holders + SHARE_BYTES * terms.graph.threshold

    @staticmethod
    def commitment(holders: Sequence[ShareDigests]) -> bytes:
        """The digest of all digests, which the factors are computed from."""
        return digest("dealt", *(piece for holder in holders for piece in (*holder.marks, holder.bundle)))

    def encode(self) -> bytes:
        digests = [piece for holder in self.holders for piece in (*holder.marks, holder.bundle)]
        return b"".join([*digests, *(number.to_bytes(SHARE_BYTES, "big") for number in self.blend)])

    @classmethod
    def read(cls, terms: MaskedTerms, holders: int, raw: bytes) -> "Dealing":
        """The dealing in `raw`; a `ValueError` if it is none for so many holders."""
        require(len(raw) == cls.size(terms, holders), "the digests of shares have the wrong length")
        marks = MARK * secret_count(terms)
        step, end = marks + KEY, (marks + KEY) * holders
        digests = tuple(
            ShareDigests(pieces(raw[start : start + marks], MARK), raw[start + marks : start + step])
            for start in range(0, end, step)
        )
        return cls(digests, tuple(share_in(piece) for piece in pieces(raw[end:], SHARE_BYTES)))

    def fits(self, public: PublicKeys, factors: Sequence[int]) -> bool:
        """Whether F(0) is made of the secrets of the dealer's public keys."""
        try:
            point = public_of(self.blend[-1].to_bytes(SHARE_BYTES, "big"))
        except ValueError:
            # Zero is no key. It comes out by chance once in 2^256.
            return False
        return point == weighted_sum([*public.seeds, *public.keys, public.blind], factors)

    def receipts(self, points: Sequence[int]) -> list[bytes]:
        """The receipt of each holder, at these points, that got what the dealer says."""
        committed = self.commitment(self.holders)
        return [
            receipt(holder, committed, value_at(self.blend, point)) for holder, point in zip(self.holders, points, strict=True)
        ]


def factors_of(terms: MaskedTerms, session: bytes, dealer: int, public: bytes, committed: bytes) -> list[int]:
    """The factors of a dealer's polynomials, in the order of the shares in a bundle: r_w for each, and 1 for what blinds.

    They depend on the digest of the dealer's public keys and on all that it has `committed` itself to.
    """
    seed = digest("factors", session, dealer, public, committed)
    drawn = (digest("factor", seed, at)[:_FACTOR] for at in range(secret_count(terms) - 1))
    return [*(int.from_bytes(raw, "big") for raw in drawn), 1]


def receipt(got: ShareDigests, committed: bytes, value: int) -> bytes:
    """A holder's receipt for its shares, for what the dealer has `committed` itself to, and for the `value` of F at its point."""
    return digest("receipt", *got.marks, got.bundle, committed, (value % PRIME).to_bytes(SHARE_BYTES, "big"))


def pieces(raw: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(raw[start : start + size] for start in range(0, len(raw), size))


def checks_needed(sites: int, *, survivors: int, colluders: int, times: int, failure: float) -> int:
    """How many signatures a site must check, so that with probability 1 - `failure` no site ever accepts a false claim.

    Two different statements cannot both have more than (sites + colluders) / 2 signatures, as an honest site signs only one of
    them. A claim of `survivors` signatures with no more real ones than that passes k checks with probability
    ((sites + colluders) / (2 survivors))^k. Every site checks `times` times.

    >>> checks_needed(1000, survivors=900, colluders=10, times=30, failure=1e-9)
    54
    """
    fraction = ((sites + colluders) // 2) / survivors
    return math.ceil(math.log(sites * times / failure) / -math.log(fraction))


def drawn(seed: bytes, count: int, size: int) -> list[int]:
    """The places of `count` draws out of `size`, from a site's seed; each place once, in order.

    >>> drawn(bytes(32), 4, 1)
    [0]
    """
    # The remainder of a number of 256 bits: the bias towards low places is below size / 2^256.
    return sorted({int.from_bytes(digest("look", seed, at), "big") % size for at in range(count)})


@final
class HashTree:
    """A hash tree over signatures, each with the name of its site, in the given order."""

    def __init__(self, signatures: Table) -> None:
        self._levels = [[digest("leaf", name, signature) for name, signature in signatures]]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            # Leaves and nodes have different kinds, so a node cannot be passed off as a leaf.
            pairs = [digest("node", *below[at : at + 2]) for at in range(0, len(below), 2)]
            self._levels.append(pairs)

    @property
    def root(self) -> bytes:
        """The commitment to all signatures."""
        return self._levels[-1][0]

    def path(self, at: int) -> bytes:
        """The hashes that lead from the signature at this place to the root.

        >>> tree = HashTree(tuple((name, name.encode()) for name in "abc"))
        >>> climb("c", b"c", 2, 3, tree.path(2)) == tree.root
        True
        """
        hashes: list[bytes] = []
        for level in self._levels[:-1]:
            # The last node of an odd level has no neighbour, and its path no entry there.
            beside = at ^ 1
            if beside < len(level):
                hashes.append(level[beside])
            at //= 2
        return b"".join(hashes)


def climb(name: str, signature: bytes, at: int, size: int, path: bytes) -> bytes | None:
    """The root that a signature at this place among `size` leads to by its path; None if the path has another length."""
    node, rest = digest("leaf", name, signature), list(pieces(path, KEY))
    while size > 1:
        if at ^ 1 < size:
            if not rest:
                return None
            other = rest.pop(0)
            node = digest("node", other, node) if at % 2 else digest("node", node, other)
        else:
            node = digest("node", node)
        at, size = at // 2, (size + 1) // 2
    # A path must be used up: each place has exactly one path to the root.
    return None if rest else node


@final
class SignatureCheck:
    """How one site checks that enough sites have signed one statement. Changes in place: it accepts one claim, once.

    `seed` decides which signatures it checks. It must be fresh, and secret until the hub has made its claim.
    """

    def __init__(self, terms: MaskedTerms, seed: bytes | None = None) -> None:
        self._terms, self._seed = terms, os.urandom(KEY) if seed is None else seed
        self._claim = b""

    def challenge(self, claim: bytes) -> bytes:
        """The seed of this site's draws, in answer to a claim (the list of signers and a root). A second claim is refused."""
        self._require_first(claim)
        # The claim is a bit set of signers followed by the root.
        signers = self._terms.named(claim[:-KEY])
        min_signers = self._terms.survivors
        require(len(signers) >= min_signers, f"{len(signers)} sites are claimed to have signed, and {min_signers} must")
        self._claim = claim
        return self._seed

    def _require_first(self, claim: bytes) -> None:
        # A hub that saw the seed could claim again, with real signatures in the places that the seed draws.
        require(self._claim in (b"", claim), "a second claim of who has signed")

    def require_signed(self, shown: Table, statement: bytes, *, among: frozenset[str]) -> None:
        """Refuse, with a `ValueError`, a statement that too few of the sites `among` have signed."""
        if self._terms.checks == 0:
            good, min_signers = set[str](), self._terms.survivors
            for name, signature in shown:
                # Each check takes time, and more signatures than are needed prove nothing more.
                wanted = len(good) < min_signers and name in among and name not in good
                if wanted and self._terms.signed(name, statement, signature):
                    good.add(name)
            require(len(good) >= min_signers, f"{len(good)} sites have signed, and {min_signers} must")
            return
        require(self._claim != b"", "no claim was made of who has signed")
        named = self._terms.named(self._claim[:-KEY])
        require(named <= among, "sites are claimed to have signed that were not asked to")
        signers = [name for name in self._terms.roster if name in named]
        sound = seen_signed(self._terms, shown, statement, signers=signers, root=self._claim[-KEY:], seed=self._seed)
        require(sound, "signatures that this site asked to see are missing or false")


def seen_signed(terms: MaskedTerms, shown: Table, statement: bytes, *, signers: Sequence[str], root: bytes, seed: bytes) -> bool:
    """Whether all signatures that a site asked to see are there, under the root the hub committed to, and valid."""
    places = drawn(seed, terms.checks, len(signers))
    # Exactly the places drawn, in order: the hub must not choose which signatures to show.
    if [name for name, _ in shown] != [signers[at] for at in places]:
        return False
    return all(
        climb(name, piece[:SIGNATURE], at, len(signers), piece[SIGNATURE:]) == root
        and terms.signed(name, statement, piece[:SIGNATURE])
        for at, (name, piece) in zip(places, shown, strict=True)
    )
