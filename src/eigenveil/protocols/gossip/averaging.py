"""How one peer finds a sum over all peers: by mixing with neighbours, or up and down a spanning tree.

Numbers in, numbers out: what to send to whom. Where peers mix until only rounding is left of their differences, all continue from
one copy of the sum. The order in which messages arrive does not change a bit of it, because they are added in the order of names.
"""

import math
from abc import ABC, abstractmethod
from typing import Final, final

import numpy as np

from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.linalg import Array
from eigenveil.privacy.paired import PairedPart, PairedSteps
from eigenveil.privacy.released import pack
from eigenveil.protocols.gossip.terms import Among, GossipTerms, Mixing
from eigenveil.protocols.keys import Identity, agree, digest, draw_key, is_public_key, private_key, public_of, signed_by, stream

__all__ = ["Averaging", "Outgoing", "PairKeys", "Paired", "Plain", "Sends", "averaging"]

# Receiver, step and numbers of each message to send.
Sends = list[tuple[str, int, Array]]

_UP: Final = 0
_DOWN: Final = 1
# Copies of one sum differ by far less than this, relative to the largest number that passes here times the number of peers.
# Numbers that cancel elsewhere may be larger, and only what is left of them passes here.
_NEAR: Final = 1e-6
_SMALLEST: Final = float(np.finfo(float).tiny)


class Averaging(ABC):
    """One peer's work in one sum. Changes in place."""

    step = 0  # Whose numbers it waits for.
    total: Array | None = None  # The sum over all peers, once it is known.

    @abstractmethod
    def start(self) -> Sends:
        """The first numbers to send."""

    @abstractmethod
    def take(self, sender: str, step: int, values: Array) -> Sends:
        """Take a neighbour's numbers and return what to send. A `PeerError`, and no change, if they do not belong here."""

    @abstractmethod
    def sent(self, receiver: str, step: int) -> Array | None:
        """What it sent to this neighbour in this step; None if nothing yet, or no longer kept."""

    @property
    @abstractmethod
    def missing(self) -> tuple[str, ...]:
        """The peers whose numbers it waits for."""


def averaging(mixing: Mixing, name: str, part: Array) -> Averaging:
    """The work at peer `name` for the sum of all parts, of which its own is `part`, (n,)."""
    if mixing.consensus == "tree":
        return _Tree(mixing, name, part)
    return _Mixed(mixing, name, part) if mixing.tree is None else _Agreed(mixing, name, part)


@final
class _Mixed(Averaging):
    """Steps x <- W x, or Chebyshev's: x_{k+1} = w_{k+1} ((W - b) x_k / (h z) - x_{k-1}) + x_{k-1} for eigenvalues in b +- h.

    Here z = (1 - b) / h, w_1 = 1, w_2 = 2 z^2 / (2 z^2 - 1) and w_{k+1} = 1 / (1 - w_k / (4 z^2)). Then x_c is
    T_c((W - b) / h) x_0 / T_c(z) (Golub and Varga 1961). The mean is multiplied by T_c(z) / T_c(z), so it stays as it is.
    """

    def __init__(self, mixing: Mixing, name: str, part: Array) -> None:
        self._mixing, self._count = mixing, len(mixing.graph.names)
        self._own, self._others = mixing.row(name)
        self._now, self._before = part, part
        # The numbers of the last two steps: a neighbour may be one step behind and ask for them again.
        self._last: dict[int, Array] = {0: part}
        self._inbox: dict[int, dict[str, Array]] = {0: {}, 1: {}}
        self._factor = 1.0
        if not self._others:
            # No neighbour to wait for: its own numbers are the sum.
            self.step, self.total = mixing.steps, self._count * part

    def start(self) -> Sends:
        return [(other, self.step, self._now) for other in self._others]

    def take(self, sender: str, step: int, values: Array) -> Sends:
        if sender not in self._others:
            raise PeerError(sender, "has no weight at this peer")
        if step < self.step or self.total is not None:
            return []
        # No peer can be further ahead: the next step needs this peer's numbers.
        if step > self.step + 1 or step >= self._mixing.steps:
            raise PeerError(sender, f"sent numbers of step {step} in step {self.step}")
        # The first numbers count: a repeated message must not change a sum that others have used.
        self._inbox[step].setdefault(sender, values)
        sends: Sends = []
        while self.total is None and len(self._inbox[self.step]) == len(self._others):
            heard = self._inbox.pop(self.step)
            mixed = self._own * self._now
            # In the order of names, not of arrival, so that rounding is the same in every run.
            for other, weight in self._others.items():
                mixed += weight * heard[other]
            if self._mixing.consensus == "chebyshev":
                mixed = self._accelerated(mixed)
            self._now, self._before = mixed, self._now
            self.step += 1
            self._inbox[self.step + 1] = {}
            if self.step >= self._mixing.steps:
                self.total = self._count * self._now
            else:
                self._last = {self.step - 1: self._before, self.step: self._now}
                sends += self.start()
        return sends

    def sent(self, receiver: str, step: int) -> Array | None:
        return self._last.get(step)

    @property
    def missing(self) -> tuple[str, ...]:
        if self.total is not None:
            return ()
        return tuple(other for other in self._others if other not in self._inbox[self.step])

    def _accelerated(self, mixed: Array) -> Array:
        """The next numbers by Chebyshev's weights."""
        low, high = self._mixing.low, self._mixing.high
        middle, half = (high + low) / 2, (high - low) / 2
        shifted: Array = (mixed - middle * self._now) / (1 - middle)
        if self.step == 0 or half <= 5e-15:
            # With one eigenvalue besides that of the mean, the first step removes all differences, and further steps do no harm.
            return shifted
        mean = (1 - middle) / half
        # The recursion of w_k in the class docstring, with z = `mean`.
        square = mean * mean
        self._factor = 2 * square / (2 * square - 1) if self.step == 1 else 1 / (1 - self._factor / (4 * square))
        following: Array = self._factor * (shifted - self._before) + self._before
        return following


@final
class _Agreed(Averaging):
    """A sum by mixing, of which all peers take one copy in the end: that of a spanning tree's root, sent down the tree.

    Copies differ by rounding, and rounding decides where directions tie, or whether an answer has converged. A peer refuses a
    copy that differs from its own sum by more than that.
    """

    def __init__(self, mixing: Mixing, name: str, part: Array) -> None:
        tree = mixing.tree
        assert tree is not None
        self._mixed, self._last = _Mixed(mixing, name, part), mixing.steps
        self._above, self._below = tree.above.get(name), tree.below[name]
        self._copy: Array | None = None
        self.step = self._mixed.step
        # Relative to the largest number that passes here times the number of peers: rounding, and what mixing leaves on purpose.
        self._count = len(mixing.graph.names)
        self._slack = _NEAR + 2 * math.sqrt(self._count) * mixing.left
        self._size = self._count * float(np.abs(part).max(initial=0.0))

    def start(self) -> Sends:
        return [*self._mixed.start(), *self._end()]

    def take(self, sender: str, step: int, values: Array) -> Sends:
        if step != self._last:
            sends = self._mixed.take(sender, step, values)
            self.step = self._mixed.step
            self._size = max(self._size, self._count * float(np.abs(values).max(initial=0.0)))
            return [*sends, *self._end()]
        if sender != self._above:
            raise PeerError(sender, "sent a total but is not above this peer in the tree")
        if self.total is not None:
            return []
        own = self._mixed.total
        if self._mixed.step < self._last - 1:
            # A peer with a sum has got all steps but the last from this one.
            raise PeerError(sender, f"sent a total in step {self._mixed.step}")
        if own is not None and not self._near(values, own):
            raise PeerError(sender, "sent another total than this peer's own mixing gives")
        self._copy = values
        return self._end()

    def sent(self, receiver: str, step: int) -> Array | None:
        if step != self._last:
            return self._mixed.sent(receiver, step)
        return self.total if receiver in self._below else None

    @property
    def missing(self) -> tuple[str, ...]:
        if self._mixed.total is None:
            return self._mixed.missing
        return (self._above,) if self.total is None and self._above is not None else ()

    def _end(self) -> Sends:
        own = self._mixed.total
        if self.total is not None or own is None:
            return []
        if self._above is not None:
            if self._copy is None or not self._near(self._copy, own):
                # A copy that came early and is not near is asked for again, and refused then.
                self._copy = None
                return []
            own = self._copy
        self.total = own
        return [(other, self._last, own) for other in self._below]

    def _near(self, copy: Array, own: Array) -> bool:
        # Below the smallest normal number, rounding is no longer relative.
        return bool(np.abs(copy - own).max(initial=0.0) <= self._slack * self._size + _SMALLEST)


@final
class _Tree(Averaging):
    """Parts are added on the way up a spanning tree, in the order of names, and the total goes down unchanged."""

    def __init__(self, mixing: Mixing, name: str, part: Array) -> None:
        tree = mixing.tree
        assert tree is not None
        self._above, self._below = tree.above.get(name), tree.below[name]
        self._part = part
        self._heard: dict[str, Array] = {}
        self._up: Array | None = None

    def start(self) -> Sends:
        """The sum of its branch, up the tree, once all parts from below are there."""
        if len(self._heard) < len(self._below):
            return []
        # A copy: adding in place would change the part itself.
        total = np.array(self._part)
        for other in self._below:
            total += self._heard[other]
        self._up, self.step = total, _DOWN
        return self._end(total) if self._above is None else [(self._above, _UP, total)]

    def _end(self, total: Array) -> Sends:
        self.total = total
        return [(other, _DOWN, total) for other in self._below]

    def take(self, sender: str, step: int, values: Array) -> Sends:
        if sender == self._above and step == _DOWN:
            if self._up is None:
                raise PeerError(sender, "sent a total before all parts were added")
            return self._end(values) if self.total is None else []
        if sender not in self._below or step != _UP:
            raise PeerError(sender, f"sent numbers of step {step}, which do not pass this peer in the tree")
        if sender in self._heard:
            return []
        self._heard[sender] = values
        return self.start()

    def sent(self, receiver: str, step: int) -> Array | None:
        if receiver == self._above:
            return self._up if step == _UP else None
        return self.total if step == _DOWN else None

    @property
    def missing(self) -> tuple[str, ...]:
        if self._up is None:
            return tuple(other for other in self._below if other not in self._heard)
        return () if self.total is not None or self._above is None else (self._above,)


class Outgoing(ABC):
    """How a peer's part leaves it. Changes in place: it spends."""

    keys: "PairKeys | None" = None  # The keys needed before the first part.

    @abstractmethod
    def count(self, among: Among, gone: frozenset[str], base: int) -> None:
        """From round `base` on, the peers `among` count, and those in `gone` are left behind."""

    @abstractmethod
    def part(self, private: Bounded, *, label: str, share: float, round_: int) -> Array:
        """The part that may leave, (n,), packed, for a `share` of the budget. Called once for each round and set of peers."""


@final
class Plain(Outgoing):
    """Each part leaves through a mechanism: `Exact`, or `Gaussian` for this peer's own noise."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism

    def count(self, among: Among, gone: frozenset[str], base: int) -> None:
        """Nothing to do: this noise does not depend on other peers."""

    def part(self, private: Bounded, *, label: str, share: float, round_: int) -> Array:
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

    def has(self, name: str) -> bool:
        """Whether this peer's key has arrived."""
        return name in self._agreed

    def take(self, origin: str, public: bytes, signature: bytes, *, passed_on_by: str) -> None:
        """Keep a peer's key; the first valid one counts. A `PeerError` if that peer did not sign it."""
        # The first valid key counts: pair noise may already have been drawn from it.
        if origin in self._agreed:
            return
        genuine = is_public_key(public) and signed_by(self._terms.roster[origin], self._statement(origin, public), signature)
        if not genuine:
            raise PeerError(passed_on_by, f"passed on a key that {origin} has not signed")
        # Sorted names, so that both ends derive the same key. The digest of the terms makes it another key in another
        # study.
        self._agreed[origin] = agree(self._private, public, self._terms.digest + digest("pair", *sorted((self._name, origin))))

    def stream(self, other: str, *, gone: frozenset[str], base: int, round_: int, label: str, steps: PairedSteps) -> Noise:
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
        self._part = part
        self.keys: PairKeys = keys
        # Who is left behind, and the round that began again without them. Pair noise is bound to both
        # (docs/decisions/0011-gossip.md).
        self._epoch: tuple[frozenset[str], int] = (frozenset(), 0)
        self._used: set[tuple[frozenset[str], int, int]] = set()

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
            other: self.keys.stream(other, gone=gone, base=base, round_=round_, label=label, steps=steps)
            for other in self._part.pairing.graph.neighbours(self._part.name)
        }
        return self._part.of(private, label=label, share=share, pairs=pairs)
