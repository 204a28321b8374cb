"""`GossipTerms`: what peers agree on before the first round. It is public and the same at every peer."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, final

import numpy as np

from eigenveil.errors import require, require_param
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.privacy import Pairing
from eigenveil.protocols.gossip.mixing import Consensus, Mixing, steps_for
from eigenveil.protocols.keys import digest_of

__all__ = ["GossipTerms", "PeerNoise"]

PeerNoise = Literal["none", "independent", "pairwise"]
# What mixing may leave of the differences between peers, times their number. Without noise this is the resolution of doubles;
# with noise it is far below the noise.
_LEFT_EXACT: Final = 1e-16
_LEFT_NOISY: Final = 1e-13
# What a given number of steps may leave of the pair noise, relative to the noise intended in the sum.
_LEFT_OF_PAIRS: Final = 0.01


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GossipTerms:
    """Who talks to whom (`graph`), how sums are found, what noise is added, and what happens to peers that do not answer.

    `weights`, (m, m), replace Metropolis weights. `steps` is the number of exchanges of a sum, None for as many as leave only
    rounding. With "pairwise" noise, `noise_graph` gives the pairs that share noise, and `colluders` the number of peers that
    may tell each other all they know.

    A peer waits `deadline` seconds for a neighbour and asks again `retries` times. It stops when fewer than `quorum` peers are
    left, or when it has sent more than `restarts` parts in vain (None where parts cost nothing). The digest
    `study` says what is computed, and `roster` gives each peer's public identity.
    """

    graph: Graph
    consensus: Consensus = "metropolis"
    weights: Array | None = None
    steps: int | None = None
    noise: PeerNoise = "none"
    noise_graph: Graph | None = None
    colluders: int = 1
    quorum: int = 1
    restarts: int | None = None
    deadline: float = 30.0
    retries: int = 4
    study: bytes = b""
    roster: Mapping[str, bytes] = field(default_factory=dict)
    digest: bytes = field(init=False)
    _known: dict[frozenset[str], "Among"] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        require(
            1 <= self.quorum <= len(self.graph.names),
            f"quorum must lie in 1..{len(self.graph.names)}, got {self.quorum}",
        )
        require(self.deadline > 0, f"deadline must be positive, got {self.deadline}")
        require(self.retries >= 0, f"retries must not be negative, got {self.retries}")
        require(self.noise != "pairwise" or self.noise_graph is not None, "pairwise noise needs a noise_graph")
        if self.noise_graph is not None:
            same = self.noise_graph.names == self.graph.names
            require(same, "the noise graph must be of the same peers as the graph, in the same order")
        # Keys are forwarded by other peers. Without an identity to check them against, a peer on the way could send its
        # own.
        known = self.noise != "pairwise" or set(self.roster) == set(self.graph.names)
        require(known, "pairwise noise needs the public identity of every peer in the roster")
        object.__setattr__(self, "digest", self._digest())

    def among(self, gone: Iterable[str]) -> "Among":
        """The terms among the peers left when these have `gone`; a `ValueError` where no terms are possible."""
        missing = frozenset(gone)
        if missing not in self._known:
            self._known[missing] = self._among(missing)
        return self._known[missing]

    def _among(self, gone: frozenset[str]) -> "Among":
        graph = self.graph.without(gone)
        pairing = None
        if self.noise == "pairwise":
            assert self.noise_graph is not None
            pairing = Pairing.within(self.noise_graph.without(gone), colluders=self.colluders)
        scale = 1.0
        if pairing is not None:
            most = max(pairing.graph.degree(name) for name in pairing.graph.names)
            scale = math.sqrt(1 + most * pairing.ratio**2)
        # Pair noise is larger than what it hides by `scale`, so mixing must leave less of it.
        left = (_LEFT_EXACT if self.noise == "none" else _LEFT_NOISY) / (len(graph.names) * scale)
        mixing = Mixing.over(graph, self.consensus, weights=self._weights(graph), steps=self.steps, left=left)
        if pairing is not None and self.steps is not None:
            # The error of a sum is at most m left ||x|| over all peers, and its own noise is sqrt(m) times a peer's.
            rest = len(graph.names) * mixing.left * scale
            require_param(
                rest <= _LEFT_OF_PAIRS,
                f"{{steps=}} would leave pair noise in the sum, {rest:.2g} times the intended noise. "
                f"Leave {{steps}} out to take {steps_for(self.consensus, mixing.low, mixing.high, left)} steps, which leave "
                "none that matters",
                steps=self.steps,
            )
        return Among(graph, mixing, pairing)

    def _weights(self, graph: Graph) -> Array | None:
        """Given weights among the peers that are left. The weight of the others goes to the peer itself."""
        if self.weights is None or self.consensus == "tree":
            return None
        keep = [i for i, name in enumerate(self.graph.names) if name in set(graph.names)]
        weights: Array = self.weights[np.ix_(keep, keep)].copy()
        weights[np.diag_indices(len(keep))] += 1 - weights.sum(axis=1)
        return weights

    def _digest(self) -> bytes:
        # The kind says how parts are packed, which keys pairs have and how noise is drawn: a peer that does it another way must
        # not share a digest.
        return digest_of(
            "gossip in whole steps, keys on P-256",
            peers=self.graph.names,
            edges=self.graph.edges,
            noise_edges=None if self.noise_graph is None else self.noise_graph.edges,
            weights=self.weights,
            consensus=self.consensus,
            steps=self.steps,
            noise=self.noise,
            colluders=self.colluders,
            quorum=self.quorum,
            restarts=self.restarts,
            study=self.study,
            roster=self.roster,
        )[:16]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Among:
    """What the terms come to among the peers that count now: their graph, their mixing, and the noise between pairs."""

    graph: Graph
    mixing: Mixing
    pairing: Pairing | None
