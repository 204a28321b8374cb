"""Dealing: how a site that shares out its secrets shows, before anybody is charged, that they fit its public keys.

A dealer has a polynomial f_w of degree below t for each secret s_w, and one more, g, for a secret that blinds
(`PublicKeys.blind`). Its public keys are the points P_w = s_w G and B = s_0 G, where s_0 is to be g(0). It commits itself to all
shares by their digests. A hash of these digests gives factors r_w of 128 bits, which nobody can choose (Fiat and Shamir
1986). Then the dealer sends the hub F = g + sum_w r_w f_w.

The hub checks that F(0) G = B + sum_w r_w P_w. Each holder h works out g(h) + sum_w r_w f_w(h) from its own shares and puts it
into its receipt, which the hub compares with F(h).

Sound. Let the receipts of t or more honest holders H fit. Suppose that their shares of some f_w are not on a polynomial of
degree below t. Then there are weights l_h for which sum_h l_h p(h) = 0 for every such polynomial p, and sum_h l_h f_w(h) = d_w
is not zero. F is such a polynomial, so d_0 + sum_w r_w d_w = 0, where d_0 is for g. Given the other factors, one r_w modulo q
does that. So the shares that H has of each f_w are on such a polynomial, and F(0) = g(0) + sum_w r_w f_w(0) for these. With
the hub's check, (g(0) - s_0) + sum_w r_w (f_w(0) - s_w) = 0. If some f_w(0) is not s_w, again one r_w does that. A dealer may
try N commitments, and may provoke up to c holders to deny its bundle and leave H. So it gets through with probability at most
2 N (holders choose c) / 2^128. Otherwise any t honest holders have the secrets of its public keys between them.

Hiding. For any secrets and any f_w, exactly one g gives a certain F. So F is uniform whatever the secrets are. It is so for
fewer than t holders together as well, except that they know F at their own points already. And B = F(0) G - sum_w r_w P_w
follows from public numbers, as in Schnorr's proof of knowledge. So F tells nobody more than the public keys do. This
holds for one F: two with different factors would reveal a combination of the secrets, so a session deals once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from eigenveil.errors import require
from eigenveil.protocols.keys import KEY, digest, public_of
from eigenveil.protocols.masked.curve import weighted_sum
from eigenveil.protocols.masked.shamir import PRIME, SHARE_BYTES, Polynomial, share_in, value_at
from eigenveil.protocols.masked.terms import MaskedTerms, PublicKeys

__all__ = ["MARK", "Dealing", "ShareDigests", "bundle_mark", "factors_of", "receipt", "secret_count", "share_mark"]

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
    """What fixes the shares of one holder: the digest of each share (`marks`), and of all of them together (`bundle`)."""

    marks: tuple[bytes, ...]
    bundle: bytes

    @classmethod
    def of(cls, session: bytes, dealer: int, holder: int, shares: Sequence[bytes]) -> "ShareDigests":
        """The digests of these shares, by the points of their dealer and holder."""
        marks = tuple(share_mark(session, dealer, holder, at, share) for at, share in enumerate(shares))
        return cls(marks, digest("bundle", session, dealer, holder, *shares))


@final
@dataclass(frozen=True, slots=True)
class Dealing:
    """What a dealer tells the hub about its shares: digests for each of its `holders`, itself first, and the polynomial F."""

    holders: tuple[ShareDigests, ...]
    blend: Polynomial

    @staticmethod
    def size(terms: MaskedTerms, holders: int) -> int:
        """The number of bytes of an encoded dealing for so many holders, the dealer included."""
        return (MARK * secret_count(terms) + KEY) * holders + SHARE_BYTES * terms.graph.threshold

    @staticmethod
    def commitment(holders: Sequence[ShareDigests]) -> bytes:
        """The digest of all digests, which the factors are computed from."""
        return digest("dealt", *(piece for one in holders for piece in (*one.marks, one.bundle)))

    def encode(self) -> bytes:
        """The dealing as bytes."""
        said = [piece for one in self.holders for piece in (*one.marks, one.bundle)]
        return b"".join([*said, *(number.to_bytes(SHARE_BYTES, "big") for number in self.blend)])

    @classmethod
    def read(cls, terms: MaskedTerms, holders: int, raw: bytes) -> "Dealing":
        """The dealing in `raw`; a `ValueError` if it is none for so many holders."""
        require(len(raw) == cls.size(terms, holders), "the digests of shares have the wrong length")
        marks = MARK * secret_count(terms)
        step, end = marks + KEY, (marks + KEY) * holders
        said = tuple(
            ShareDigests(_pieces(raw[start : start + marks], MARK), raw[start + marks : start + step])
            for start in range(0, end, step)
        )
        return cls(said, tuple(share_in(piece) for piece in _pieces(raw[end:], SHARE_BYTES)))

    def fits(self, public: PublicKeys, factors: Sequence[int]) -> bool:
        """Whether F(0) is made of the secrets of the dealer's public keys."""
        try:
            said = public_of(self.blend[-1].to_bytes(SHARE_BYTES, "big"))
        except ValueError:
            # Zero is no key. It comes out by chance once in 2^256.
            return False
        return said == weighted_sum([*public.seeds, *public.keys, public.blind], factors)

    def receipts(self, points: Sequence[int]) -> list[bytes]:
        """The receipt of each holder, at these points, that got what the dealer says."""
        committed = self.commitment(self.holders)
        return [
            receipt(one, committed, value_at(self.blend, point))
            for one, point in zip(self.holders, points, strict=True)
        ]


def factors_of(terms: MaskedTerms, session: bytes, dealer: int, public: bytes, committed: bytes) -> list[int]:
    """The factors of a dealer's polynomials, in the order of the shares in a bundle: r_w for each, and 1 for what blinds.

    They depend on the digest of the dealer's public keys and on all that it has `committed` itself to.
    """
    asked = digest("factors", session, dealer, public, committed)
    drawn = (digest("factor", asked, at)[:_FACTOR] for at in range(secret_count(terms) - 1))
    return [*(int.from_bytes(one, "big") for one in drawn), 1]


def receipt(got: ShareDigests, committed: bytes, value: int) -> bytes:
    """A holder's receipt for its shares, for what the dealer has `committed` itself to, and for the `value` of F at its point."""
    return digest("receipt", *got.marks, got.bundle, committed, (value % PRIME).to_bytes(SHARE_BYTES, "big"))


def _pieces(raw: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(raw[start : start + size] for start in range(0, len(raw), size))
