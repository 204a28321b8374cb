"""What leaves a peer: its part of a sum as it is, with noise of its own, or with noise that also cancels between pairs."""

from abc import ABC, abstractmethod
from typing import final

from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.linalg import Array
from eigenveil.privacy import PairedPart
from eigenveil.privacy.integers.paired import PairedSteps
from eigenveil.privacy.packed import pack
from eigenveil.protocols.gossip.terms import Among, GossipTerms
from eigenveil.protocols.keys import (
    Identity,
    agree,
    digest,
    draw_key,
    is_public_key,
    private_key,
    public_of,
    signed_by,
    stream,
)

__all__ = ["Outgoing", "PairKeys", "Paired", "Plain"]


class Outgoing(ABC):
    """How a peer's part leaves it. Changes in place: it spends."""

    @abstractmethod
    def count(self, among: Among, gone: frozenset[str], base: int) -> None:
        """From round `base` on, the peers `among` count, and those in `gone` are left behind."""

    @abstractmethod
    def part(self, private: Bounded, *, label: str, share: float, round_: int) -> Array:
        """The part that may leave, (n,), packed, for a `share` of the budget. Called once for each round and set of peers."""

    @property
    def keys(self) -> "PairKeys | None":
        """The keys needed before the first part; None if none are."""
        return None


@final
class Plain(Outgoing):
    """Each part leaves through a mechanism: `Exact`, or `Gaussian` for this peer's own noise."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism

    def count(self, among: Among, gone: frozenset[str], base: int) -> None:
        """Nothing to do: this noise does not depend on other peers."""

    def part(self, private: Bounded, *, label: str, share: float, round_: int) -> Array:
        """The released part, packed."""
        released = self._mechanism.release(private, label=label, share=share)
        return pack(released, symmetric=private.symmetric)


@final
class PairKeys:
    """One peer's key for a study, drawn from a `secret`, and those of the peers it shares noise with. Changes in place.

    Keys are signed, so a peer that forwards one can drop it but cannot change it.
    """

    def __init__(self, name: str, identity: Identity, terms: GossipTerms, secret: bytes, *, reproducible: bool) -> None:
        self._name, self._terms, self._reproducible = name, terms, reproducible
        private = draw_key(stream(digest("pair key", secret)))
        self._private = private_key(private)
        self.public = public_of(private)
        self.signature = identity.sign(self._statement(name, self.public))
        self._agreed: dict[str, bytes] = {}

    def known(self, name: str) -> bool:
        """Whether this peer's key has arrived."""
        return name in self._agreed

    def take(self, origin: str, public: bytes, signature: bytes, *, passed_on_by: str) -> None:
        """Keep a peer's key; the first valid one counts. A `PeerError` if that peer did not sign it."""
        # The first valid key counts: pair noise may already have been drawn from it.
        if origin in self._agreed:
            return
        genuine = is_public_key(public) and signed_by(
            self._terms.roster[origin], self._statement(origin, public), signature
        )
        if not genuine:
            raise PeerError(passed_on_by, f"passed on a key that {origin} has not signed")
        # Sorted names, so that both ends derive the same key. The digest of the terms makes it another key in another
        # study.
        self._agreed[origin] = agree(
            self._private, public, self._terms.digest + digest("pair", *sorted((self._name, origin)))
        )

    def stream(
        self, other: str, *, gone: frozenset[str], base: int, round_: int, label: str, steps: PairedSteps
    ) -> Noise:
        """The noise shared with another peer in one round, for one release in these `steps`.

        `gone` are the peers left behind, `base` the round that began again without them. Both ends derive the same noise. If
        they were led to differ in any of this, their noises are independent, which protects no less (docs/pairwise-noise.md).
        Two scales or two lengths of the same words would be something in between, so both are part of the key.
        """
        key = digest("pair noise", self._agreed[other], base, round_, label, steps.words, *sorted(gone))
        return Noise(key, reproducible=self._reproducible)

    def _statement(self, name: str, public: bytes) -> bytes:
        return digest("public key", self._terms.digest, name, public)


@final
class Paired(Outgoing):
    """Parts with the peer's own noise and noise between pairs, which cancels in the sum over all peers that count."""

    def __init__(self, part: PairedPart, keys: PairKeys) -> None:
        self._part, self._keys = part, keys
        # Who is left behind, and the round that began again without them. Pair noise is bound to both
        # (docs/decisions/0011-gossip.md).
        self._epoch: tuple[frozenset[str], int] = (frozenset(), 0)
        self._used: set[tuple[frozenset[str], int, int]] = set()

    @property
    def keys(self) -> PairKeys:
        """The keys of the pairs."""
        return self._keys

    def count(self, among: Among, gone: frozenset[str], base: int) -> None:
        """Use the noise for this set of peers: fewer peers have other pairs, and more noise for each."""
        require(among.pairing is not None, "pairwise noise needs terms with pairs")
        assert among.pairing is not None
        self._part.pairing, self._epoch = among.pairing, (gone, base)

    def part(self, private: Bounded, *, label: str, share: float, round_: int) -> Array:
        """Charged before anything is drawn, and never twice for one round of the same peers.

        Two parts with the same pair noise would cancel it in their difference, and the rest is too little noise.
        """
        gone, base = self._epoch
        if (gone, base, round_) in self._used:
            raise ProtocolError(f"a second part was asked for in round {round_} among the same peers")
        # Before anything is drawn, so that an error in between cannot lead to a second draw.
        self._used.add((gone, base, round_))
        steps = self._part.in_steps(private, label=label, share=share)
        pairs = {
            other: self._keys.stream(other, gone=gone, base=base, round_=round_, label=label, steps=steps)
            for other in self._part.pairing.graph.neighbours(self._part.name)
        }
        return self._part.of(private, label=label, share=share, pairs=pairs)
