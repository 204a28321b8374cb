"""What a peer lets out: its part of a sum as it is, with noise of its own, or with noise that cancels between pairs as well."""

from abc import ABC, abstractmethod
from typing import final

from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.linalg import Array
from eigenveil.privacy import Bounded, Mechanism, Noise, PairedPart
from eigenveil.privacy.integers.paired import PairedSteps
from eigenveil.privacy.noise.steps import pack
from eigenveil.protocols.gossip.terms import Among, GossipTerms
from eigenveil.protocols.keys import KEY, Identity, agree, digest, is_public_key, private_key, public_of, signed_by

__all__ = ["Outgoing", "PairKeys", "Paired", "Plain"]


class Outgoing(ABC):
    """How a peer's part leaves it. Changes in place: it spends."""

    @abstractmethod
    def count(self, among: Among, gone: frozenset[str], base: int) -> None:
        """From now on, and from round `base` on, these peers count, the others having `gone`."""

    @abstractmethod
    def part(self, private: Bounded, *, label: str, share: float, round_: int) -> Array:
        """The part that may leave, (n,), packed, for a `share` of the budget. Asked once for each round of what was counted."""

    @property
    def keys(self) -> "PairKeys | None":
        """The keys that must be there before the first part."""
        return None


@final
class Plain(Outgoing):
    """Each part through a mechanism: `Exact`, or `Gaussian` for noise that is this peer's own."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism

    def count(self, among: Among, gone: frozenset[str], base: int) -> None:
        """Makes no difference."""

    def part(self, private: Bounded, *, label: str, share: float, round_: int) -> Array:
        """What is released, packed."""
        released = self._mechanism.release(private, label=label, share=share)
        return pack(released, symmetric=private.symmetric)


@final
class PairKeys:
    """One peer's X25519 key for a study, and those of the peers it shares noise with. Changes in place.

    Cards are signed, so that whoever passes them on can keep them back and nothing else.
    """

    def __init__(
        self, name: str, identity: Identity, terms: GossipTerms, private: bytes, *, reproducible: bool
    ) -> None:
        self._name, self._terms, self._reproducible = name, terms, reproducible
        self._private = private_key(private)
        self.card = public_of(private)
        self.signature = identity.sign(self._statement(name, self.card))
        self._agreed: dict[str, bytes] = {}

    def known(self, name: str) -> bool:
        """Whether the card of this peer is here."""
        return name in self._agreed

    def take(self, origin: str, card: bytes, signature: bytes, *, passed_on_by: str) -> None:
        """Keep a peer's card. A `PeerError` if it is none of theirs; the first good one counts."""
        if origin in self._agreed:
            return
        genuine = (
            len(card) == KEY
            and is_public_key(card)
            and signed_by(self._terms.roster[origin], self._statement(origin, card), signature)
        )
        if not genuine:
            raise PeerError(passed_on_by, f"passed on a card that {origin} has not signed")
        self._agreed[origin] = agree(
            self._private, card, self._terms.digest + digest("pair", *sorted((self._name, origin)))
        )

    def stream(
        self, other: str, *, gone: frozenset[str], base: int, round_: int, label: str, steps: PairedSteps
    ) -> Noise:
        """The noise shared with another peer in one round, for one release in these `steps`, among those who have not `gone` and
        who began again at round `base`.

        Both ends have the same. Where they were led to differ in any of this, their noises have nothing to do with each other,
        which protects no less (docs/pairwise-noise.md). Two scales, or two lengths, of the same words would be something between.
        """
        key = digest("pair noise", self._agreed[other], base, round_, label, steps.words, *sorted(gone))
        return Noise(key, reproducible=self._reproducible)

    def _statement(self, name: str, card: bytes) -> bytes:
        return digest("card", self._terms.digest, name, card)


@final
class Paired(Outgoing):
    """Parts with noise of the peer's own and noise between pairs, which cancels in the sum over all who count."""

    def __init__(self, part: PairedPart, keys: PairKeys) -> None:
        self._part, self._keys = part, keys
        self._epoch: tuple[frozenset[str], int] = (frozenset(), 0)
        self._used: set[tuple[frozenset[str], int, int]] = set()

    @property
    def keys(self) -> PairKeys:
        """Those of the pairs."""
        return self._keys

    def count(self, among: Among, gone: frozenset[str], base: int) -> None:
        """Noise for this set of peers: others mean other pairs, and more noise for each."""
        require(among.pairing is not None, "pairwise noise needs terms with pairs")
        assert among.pairing is not None
        self._part.pairing, self._epoch = among.pairing, (gone, base)

    def part(self, private: Bounded, *, label: str, share: float, round_: int) -> Array:
        """Charged before anything is drawn. Never twice for one round of the same count: between two parts with the same pair
        noise that noise would cancel, and what is left is too little."""
        gone, base = self._epoch
        if (gone, base, round_) in self._used:
            raise ProtocolError(f"a second part was asked for in round {round_} among the same peers")
        self._used.add((gone, base, round_))
        steps = self._part.in_steps(private, label=label, share=share)
        pairs = {
            other: self._keys.stream(other, gone=gone, base=base, round_=round_, label=label, steps=steps)
            for other in self._part.pairing.graph.neighbours(self._part.name)
        }
        return self._part.of(private, label=label, share=share, pairs=pairs)
