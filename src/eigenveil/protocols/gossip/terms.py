"""`GossipTerms`: what peers have agreed on before the first round. All of it is public, and every peer holds the same."""

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
from eigenveil.protocols.keys import digest

__all__ = ["GossipTerms", "PeerNoise"]

PeerNoise = Literal["none", "independent", "pairwise"]
# What mixing may leave of the differences between peers, times their number: without noise as little as doubles can tell, with it
# far less than anybody could see beside it.
_LEFT_EXACT: Final = 1e-16
_LEFT_NOISY: Final = 1e-13
# What mixing in a given number of steps may leave of the pair noise, over the noise that is meant to be in the sum.
_LEFT_OF_PAIRS: Final = 0.01


@final
@dataclass(frozen=True, slots=True, eq=False)
class GossipTerms:
    """Who talks to whom (`graph`), how sums come about, what noise is added, and what becomes of peers that do not answer.

    `weights`, (m, m), are those given in place of Metropolis', and `steps` how many exchanges a sum takes, None for as many as
    leave nothing to speak of. With "pairwise" noise, `noise_graph` says which pairs share noise and `colluders` how many peers
    may tell each other all they know. A peer waits `deadline` seconds for a neighbour and asks again `retries` times; with fewer
    than `quorum` left it stops, and so it does when it has sent more than `restarts` parts in vain, None where they cost nothing.
    `study` is a digest of what is computed, `roster` each peer's public identity.
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
        require(
            self.noise != "pairwise" or self.noise_graph is not None, "pairwise noise needs a graph of who shares noise"
        )
        if self.noise_graph is not None:
            same = self.noise_graph.names == self.graph.names
            require(same, "the noise graph must be of the same peers as the graph, in the same order")
        known = self.noise != "pairwise" or set(self.roster) == set(self.graph.names)
        require(known, "pairwise noise needs the public identity of every peer in the roster")
        object.__setattr__(self, "digest", self._digest())

    def among(self, gone: Iterable[str]) -> "Among":
        """The terms among those who are left when these have `gone`; a `ValueError` where there are none."""
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
        left = (_LEFT_EXACT if self.noise == "none" else _LEFT_NOISY) / (len(graph.names) * scale)
        mixing = Mixing.over(graph, self.consensus, weights=self._weights(graph), steps=self.steps, left=left)
        if pairing is not None and self.steps is not None:
            # A sum is off by at most m left ||x|| over all peers, and its own noise is sqrt(m) of a peer's.
            rest = len(graph.names) * mixing.left * scale
            require_param(
                rest <= _LEFT_OF_PAIRS,
                f"{{steps=}} would leave pair noise in the sum, {rest:.2g} times the noise that is meant to be in it: "
                f"{steps_for(self.consensus, mixing.low, mixing.high, left)} steps leave none to speak of, and so many are "
                "taken without {steps}",
                steps=self.steps,
            )
        return Among(graph, mixing, pairing)

    def _weights(self, graph: Graph) -> Array | None:
        """Given weights among those who are left: what the others had goes to a peer itself."""
        if self.weights is None or self.consensus == "tree":
            return None
        keep = [i for i, name in enumerate(self.graph.names) if name in set(graph.names)]
        weights: Array = self.weights[np.ix_(keep, keep)].copy()
        weights[np.diag_indices(len(keep))] += 1 - weights.sum(axis=1)
        return weights

    def _digest(self) -> bytes:
        def words(graph: Graph | None) -> str:
            return "" if graph is None else repr((graph.names, graph.edges))

        weights = b"" if self.weights is None else np.ascontiguousarray(self.weights, dtype="<f8").tobytes()
        numbers = repr((self.consensus, self.steps, self.noise, self.colluders, self.quorum, self.restarts))
        roster = b"".join(digest("peer", name, public) for name, public in sorted(self.roster.items()))
        # The kind says how parts are packed and noise is drawn: peers that do it otherwise are no peers of these.
        return digest(
            "gossip in whole steps", words(self.graph), words(self.noise_graph), weights, numbers, self.study, roster
        )[:16]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Among:
    """What the terms come to among those who count now: their graph, how they mix, and the noise between pairs of them."""

    graph: Graph
    mixing: Mixing
    pairing: Pairing | None
