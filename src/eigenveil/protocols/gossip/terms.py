"""`GossipTerms`: what peers agree on before the first round. It is public and the same at every peer."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

import numpy as np

from eigenveil.errors import require, require_param
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph, SpanningTree
from eigenveil.privacy.paired import Pairing
from eigenveil.protocols.keys import digest_of

__all__ = [
    "Consensus",
    "GossipTerms",
    "Mixing",
    "PeerNoise",
    "contraction",
    "graph_of_weights",
    "metropolis",
    "require_weights",
    "steps_for",
]

Consensus = Literal["metropolis", "chebyshev", "tree"]

# Given weights may be off from symmetric and doubly stochastic by this much, for rounding.
_OFF: Final = 1e-9
# No round takes more steps than this unless the caller asks for them.
_MOST_STEPS: Final = 20_000


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Mixing:
    """How a sum over all peers is found: by exchanges with neighbours, or one pass up and one down a spanning tree.

    In each step of "metropolis", x_i becomes the sum of w_ij x_j; "chebyshev" combines the steps with Chebyshev's weights.

    >>> ring = Graph.named("ring", ["a", "b", "c", "d"])
    >>> mixing = Mixing.over(ring, "metropolis", steps=3)
    >>> round(mixing.high, 3), round(mixing.left, 3)
    (0.333, 0.037)
    >>> Mixing.over(ring, "chebyshev", left=1e-12).steps < Mixing.over(ring, "metropolis", left=1e-12).steps
    True
    """

    graph: Graph
    consensus: Consensus
    steps: int
    weights: Array | None = None  # None for "tree".
    low: float = 0.0  # The eigenvalues of the weights, other than that of the mean, are at least this,
    high: float = 0.0  # and at most this.
    left: float = 0.0  # The part of the differences between peers after all steps, in the norm over all peers.
    tree: SpanningTree | None = None  # Where no number of steps was given, all take the sum at its root after checking it.

    @classmethod
    def over(
        cls, graph: Graph, consensus: Consensus, *, weights: Array | None = None, steps: int | None = None, left: float = 1e-16
    ) -> "Mixing":
        """The mixing over a connected graph, with Metropolis weights unless `weights` are given.

        It takes `steps` steps if given, otherwise the fewest that leave at most `left` of the differences.
        """
        require_param(graph.connected, "{graph} must be connected: some peers could never hear of others")
        if consensus == "tree":
            useless = "{steps} has no effect with {consensus=tree}: a sum takes one pass up and one down the tree"
            require_param(steps is None, useless)
            tree = graph.spanning_tree()
            return cls(graph=graph, consensus=consensus, steps=2 * max(1, tree.depth), tree=tree)
        weights = metropolis(graph) if weights is None else weights
        values = np.linalg.eigvalsh(weights)
        # The largest eigenvalue, one, belongs to the mean. How fast differences shrink depends on the others.
        low, high = (0.0, 0.0) if len(values) == 1 else (float(values[0]), float(values[-2]))
        require(
            max(-low, high) < 1 - 1e-12,
            "the weights do not mix: a second eigenvalue has absolute value one. Give every peer some weight of its own",
        )
        spanning: SpanningTree | None = None
        if steps is None:
            steps = steps_for(consensus, low, high, left)
            require_param(
                steps <= _MOST_STEPS,
                f"{{consensus=}} needs {steps} steps in every round on this graph, more than the limit of {_MOST_STEPS}. "
                f"Pass {{steps}} to allow it; {_ADVICE[consensus]}",
                consensus=consensus,
            )
            spanning = graph.spanning_tree()
        return cls(
            graph=graph,
            consensus=consensus,
            weights=weights,
            steps=steps,
            low=low,
            high=high,
            left=contraction(consensus, low, high, steps),
            tree=spanning,
        )

    def row(self, name: str) -> tuple[float, dict[str, float]]:
        """The weight of a peer's own numbers, and that of each of its neighbours'."""
        assert self.weights is not None
        index = {other: i for i, other in enumerate(self.graph.names)}
        mine = self.weights[index[name]]
        return float(mine[index[name]]), {other: float(mine[index[other]]) for other in self.graph.neighbours(name)}


_ADVICE: Final = {
    "metropolis": "{consensus=chebyshev} takes about the square root of that, {consensus=tree} at most twice the diameter",
    "chebyshev": "{consensus=tree} takes at most twice the diameter of the graph",
}


def metropolis(graph: Graph) -> Array:
    """Metropolis weights, (m, m): 1 / (1 + the larger degree) on each edge, the rest on a peer itself (Xiao and Boyd 2004).

    >>> metropolis(Graph.named("ring", ["a", "b", "c"])).round(3)[0].tolist()
    [0.333, 0.333, 0.333]
    """
    index = {name: i for i, name in enumerate(graph.names)}
    weights = np.zeros((len(index), len(index)))
    for first, second in graph.edges:
        i, j = index[first], index[second]
        weights[i, j] = weights[j, i] = 1.0 / (1 + max(graph.degree(first), graph.degree(second)))
    # Rows and columns then sum to one: symmetric weights keep the sum over all peers.
    weights[np.diag_indices(len(index))] = 1.0 - weights.sum(axis=1)
    return weights


def require_weights(weights: Any) -> Array:
    """A given mixing matrix, (m, m), if it is symmetric, doubly stochastic and nowhere negative; otherwise a `ValueError`.

    >>> require_weights([[0.5, 0.5], [0.4, 0.6]])
    Traceback (most recent call last):
    ...
    ValueError: weights must be symmetric, but row 0, column 1 has 0.5 and row 1, column 0 has 0.4
    """
    matrix = np.asarray(weights, dtype=np.float64)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    require(square, f"weights must be a square matrix, got {matrix.shape}")
    require(bool(np.isfinite(matrix).all()), "weights must be finite")
    apart = np.abs(matrix - matrix.T)
    i, j = (int(index) for index in np.unravel_index(int(apart.argmax()), apart.shape))
    require(
        float(apart[i, j]) <= _OFF,
        f"weights must be symmetric, but row {i}, column {j} has {matrix[i, j]:g} and row {j}, column {i} has {matrix[j, i]:g}",
    )
    require(float(matrix.min()) >= 0, f"weights must not be negative, got {float(matrix.min()):g}")
    sums = matrix.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    require(
        abs(float(sums[worst]) - 1) <= _OFF,
        f"every row of weights must add up to 1, but row {worst} adds up to {sums[worst]:.12g}",
    )
    # Exact to the last bit, or the mean would drift over thousands of steps.
    matrix = (matrix + matrix.T) / 2
    matrix[np.diag_indices(len(matrix))] += 1 - matrix.sum(axis=1)
    return matrix


def graph_of_weights(weights: Array, names: tuple[str, ...]) -> Graph:
    """The graph of these weights: two peers talk where they have a weight for each other.

    >>> graph_of_weights(np.array([[0.5, 0.5], [0.5, 0.5]]), ("a", "b")).edges
    (('a', 'b'),)
    """
    require(len(weights) == len(names), f"weights are for {len(weights)} peers, but the study has {len(names)}")
    places = np.argwhere(np.triu(weights, 1) > 0).tolist()
    return Graph.of(names, [(names[i], names[j]) for i, j in places])


def contraction(consensus: Consensus, low: float, high: float, steps: int) -> float:
    """The part of the differences between peers that is left after this many steps, for weights with eigenvalues in [low, high].

    The polynomial x^c leaves max(|low|, |high|)^c. Of all polynomials p of degree c with p(1) = 1, Chebyshev's is the smallest
    on [low, high]: 1 / T_c((2 - low - high) / (high - low)).

    >>> contraction("metropolis", -0.5, 0.5, 10), round(1 / contraction("chebyshev", -0.5, 0.5, 10))
    (0.0009765625, 262087)
    """
    if consensus == "metropolis":
        rate = max(abs(low), abs(high))
        # Eigenvalues this small are rounding errors of zero: in a complete graph one step gives the mean.
        return (0.0 if steps else 1.0) if rate < 1e-15 else float(rate**steps)
    # The same for Chebyshev: with one eigenvalue other than that of the mean, the first step removes every difference.
    if high - low <= 1e-14:
        return 0.0 if steps else 1.0
    # cosh overflows a double beyond 710, and exp(-700) is zero beside any rounding.
    growth = steps * math.acosh((2 - low - high) / (high - low))
    return 0.0 if growth > 700 else 1 / math.cosh(growth)


def steps_for(consensus: Consensus, low: float, high: float, left: float) -> int:
    """The fewest steps whose `contraction` is at most `left`.

    >>> steps_for("metropolis", -0.5, 0.5, 1e-3), steps_for("chebyshev", -0.5, 0.5, 1e-3)
    (10, 6)
    """
    if consensus == "metropolis":
        rate = max(abs(low), abs(high))
        return 1 if rate < 1e-15 else max(1, math.ceil(math.log(left) / math.log(rate)))
    if high - low <= 1e-14:
        return 1
    return max(1, math.ceil(math.acosh(1 / left) / math.acosh((2 - low - high) / (high - low))))


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
    """Who talks to whom, how sums are found, what noise is added, and what happens to peers that do not answer."""

    graph: Graph
    consensus: Consensus = "metropolis"
    weights: Array | None = None  # (m, m), in place of Metropolis weights.
    steps: int | None = None  # Exchanges of a sum. None: as many as leave only rounding.
    noise: PeerNoise = "none"
    noise_graph: Graph | None = None  # With "pairwise" noise: the pairs that share noise.
    colluders: int = 1  # So many peers may tell each other all they know.
    quorum: int = 1  # A peer stops when fewer are left.
    restarts: int | None = None  # A peer stops when it has sent more parts in vain. None where parts cost nothing.
    deadline: float = 30.0  # Seconds that a peer waits for a neighbour.
    retries: int = 4  # How often it asks again.
    study: bytes = b""  # The digest of what is computed.
    roster: Mapping[str, bytes] = field(default_factory=dict)  # Each peer's public identity.
    digest: bytes = field(init=False)
    _among_cache: dict[frozenset[str], "Among"] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        peers = len(self.graph.names)
        require(1 <= self.quorum <= peers, f"quorum must lie in 1..{peers}, got {self.quorum}")
        require(self.deadline > 0, f"deadline must be positive, got {self.deadline}")
        require(self.retries >= 0, f"retries must not be negative, got {self.retries}")
        require(self.noise != "pairwise" or self.noise_graph is not None, "pairwise noise needs a noise_graph")
        if self.noise_graph is not None:
            same = self.noise_graph.names == self.graph.names
            require(same, "the noise graph must be of the same peers as the graph, in the same order")
        # Keys are forwarded by other peers. Without an identity to check them against, a peer on the way could send its
        # own.
        has_identities = self.noise != "pairwise" or set(self.roster) == set(self.graph.names)
        require(has_identities, "pairwise noise needs the public identity of every peer in the roster")
        object.__setattr__(self, "digest", self._digest())

    def _digest(self) -> bytes:
        """Of all that peers agree on. A law moves each field, also to values that no check would let by."""
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

    def among(self, gone: Iterable[str]) -> "Among":
        """The terms among the peers left when these have `gone`; a `ValueError` where no terms are possible."""
        missing = frozenset(gone)
        if missing not in self._among_cache:
            self._among_cache[missing] = self._among(missing)
        return self._among_cache[missing]

    def _among(self, gone: frozenset[str]) -> "Among":
        graph = self.graph.without(gone)
        pairing, scale = None, 1.0
        if self.noise == "pairwise":
            assert self.noise_graph is not None
            pairing = Pairing.within(self.noise_graph.without(gone), colluders=self.colluders)
            max_degree = max(pairing.graph.degree(name) for name in pairing.graph.names)
            scale = math.sqrt(1 + max_degree * pairing.ratio**2)
        # Pair noise is larger than what it hides by `scale`, so mixing must leave less of it.
        left = (_LEFT_EXACT if self.noise == "none" else _LEFT_NOISY) / (len(graph.names) * scale)
        weights: Array | None = None
        if self.weights is not None and self.consensus != "tree":
            # Given weights among the peers that are left. The weight of the others goes to the peer itself.
            keep = [i for i, name in enumerate(self.graph.names) if name in set(graph.names)]
            weights = self.weights[np.ix_(keep, keep)].copy()
            weights[np.diag_indices(len(keep))] += 1 - weights.sum(axis=1)
        mixing = Mixing.over(graph, self.consensus, weights=weights, steps=self.steps, left=left)
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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Among:
    """What the terms come to among the peers that count now: their graph, their mixing, and the noise between pairs."""

    graph: Graph
    mixing: Mixing
    pairing: Pairing | None
