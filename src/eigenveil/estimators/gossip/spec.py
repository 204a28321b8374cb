"""`GossipSpec`: what a fit between peers is asked for, checked and public, and the rules between its parameters.

Each parameter is checked by itself before. The rules here need several of them, or the number of peers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import Symmetric
from eigenveil.errors import ParameterError, require, require_param, verbatim
from eigenveil.estimators.checks import covariance_for
from eigenveil.estimators.federated.spec import share_of
from eigenveil.estimators.terms import Terms
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.methods import METHODS, MethodPlan, TaskContext
from eigenveil.methods.base import Components
from eigenveil.params.declarations.federated import GossipParams
from eigenveil.plan.choose import plan_sites
from eigenveil.protocols.gossip.terms import Consensus, graph_of_weights, require_weights
from eigenveil.protocols.messages import LONGEST_NAME

__all__ = [
    "KINDS",
    "GossipSpec",
    "NoiseKind",
    "directions_of",
    "noise_of",
    "peers_plan",
    "quorum_of",
    "read_graph",
    "require_people",
]


NoiseKind = Literal["none", "independent", "pairwise"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GossipSpec:
    """How peers fit together what `fit` says."""

    fit: Terms
    budget: Budget | None  # None without a guarantee. It allows for restarted rounds.
    noise: NoiseKind  # What each peer adds to what it sends.
    graph: Graph
    weights: Array | None
    consensus: Consensus
    steps: int | None
    noise_graph: Graph | None
    colluders: int
    quorum: int
    deadline: float
    retries: int
    restarts: int
    seed: int | None


def directions_of(spec: GossipSpec, begin: Array | None, hidden: Noise) -> Components:
    """Makes one peer's task for the directions, from a domain. `hidden` is the source of what the peer keeps to itself."""
    fit = spec.fit
    context = TaskContext(neighbours=fit.neighbours, rank=fit.rank, private=fit.private, hidden=hidden)
    return fit.method.build_task(fit.plan, begin, context)


# For peers that continue from different sums, and so cannot agree on when to stop.
_FIXED_ROUNDS: Final = 30
# A guess at the people of one peer if none is given. Only hidden starts use it, and little depends on it.
_PEOPLE_OF_A_PEER: Final = 1000


def noise_of(params: GossipParams, budget: Budget | None) -> NoiseKind:
    """The noise on what leaves a peer. Refuses parameters that mean nothing beside it."""
    if budget is None:
        require_param(params.restarts == 0, "{restarts} is for a budget. Without one, rounds restart as often as needed")
        require_param(params.noise_graph is None, "{noise_graph} is for {noise=pairwise} and a budget")
        return "none"
    require_param(
        params.noise is not None,
        "{noise=None} adds no noise, and {epsilon} was given. Use {noise=pairwise} or {noise=independent}, or {epsilon=None}",
    )
    return "pairwise" if params.noise == "pairwise" else "independent"


def quorum_of(params: Any, peers: int) -> int:
    """How many peers must be left. More than half, or two groups that cannot reach each other would both continue."""
    min_quorum, value = peers // 2 + 1, params.quorum
    if value is None:
        return min_quorum
    try:
        quorum = share_of("quorum", value, peers)
    except ParameterError:
        # One message for all bad values: the limit depends on the number of peers.
        quorum = None
    if quorum is None or quorum < min_quorum:
        raise ParameterError(
            f"{{quorum}} must be a number from {min_quorum}, more than half, to the {peers} peers, or such a share of them, "
            "got {@value}",
            value=value,
        )
    return quorum


def require_people(peers: Mapping[str, Rows]) -> None:
    """Refuse matrices, which have no rows to score, and names that no message could carry."""
    for name, rows in peers.items():
        require(
            not isinstance(rows, Symmetric),
            f"{name}: a peer keeps the scores of its own people, and a Symmetric has none. Give rows, or use FederatedPCA",
        )
        try:
            # A lone surrogate is text to Python and cannot be encoded for a message.
            short = 0 < len(name) <= LONGEST_NAME and len(name.encode()) > 0
        except UnicodeEncodeError:
            short = False
        require(short, f"names of peers must be text of 1 to {LONGEST_NAME} characters, got {name[:20]!a}")


def peers_plan(
    params: GossipParams, dim: int, rank: int, budget: Budget | None, *, people: float | None, peers: int
) -> MethodPlan:
    """The plan of a fit. `people` is their number, if public."""
    tolerance, rounds, leaf = params.tolerance, params.rounds, METHODS[params.method]
    covariance_for(params.missing, params.method, dim)
    require_param(
        params.consensus != "tree" or params.steps is None,
        "{steps} has no meaning with {consensus=tree}, where a sum goes up the tree once and down once",
    )
    # With a fixed number of steps each peer continues from another sum, so peers would not agree on when to stop.
    if params.steps is not None:
        require_param(
            not leaf.keeps_products,
            "{method=} keeps all products, and with {steps=} peers would keep different ones. Leave out {steps}, or use "
            "{method=power} or {method=covariance}",
            method=leaf.name,
            steps=params.steps,
        )
        # In one round there is nothing to agree on.
        tolerance = 0.0 if leaf.fixed_rounds is None else tolerance
        if rounds is None and budget is None and leaf.fixed_rounds is None:
            rounds = _FIXED_ROUNDS
    guess = params.people if params.people is not None else people
    guess = _PEOPLE_OF_A_PEER * peers if guess is None else guess
    return plan_sites(
        dim=dim,
        rank=rank,
        budget=budget,
        method=leaf.name,
        neighbours=Neighbours(params.neighbours),
        rounds=rounds,
        tolerance=tolerance,
        oversample=params.oversample,
        guessed_people=max(2, int(guess)),
    )


KINDS: Final = ("ring", "path", "grid", "star", "complete", "random-regular:DEGREE")


def read_graph(what: str, graph: Any, names: tuple[str, ...]) -> tuple[Graph, Array | None]:
    """The graph of these peers, and the weights if a matrix of them was given. Errors name the parameter `what`.

    >>> read_graph("graph", "ring", ("a", "b", "c"))[0].edges
    (('a', 'b'), ('a', 'c'), ('b', 'c'))
    >>> read_graph("graph", [(0, 1), ("b", "c")], ("a", "b", "c"))[0].edges
    (('a', 'b'), ('b', 'c'))
    """
    try:
        if isinstance(graph, np.ndarray):
            weights = require_weights(graph)
            return graph_of_weights(weights, names), weights
        return _graph(graph, names), None
    except (ValueError, TypeError) as error:
        raise ParameterError(f"{{{what}}}: {verbatim(str(error))}") from error


def _graph(graph: Any, names: tuple[str, ...]) -> Graph:
    if isinstance(graph, Graph):
        same = set(graph.names) == set(names)
        require(same, f"its peers are {_some(graph.names)}, and those to fit are {_some(names)}")
        return Graph.of(names, graph.edges)
    # Kinds before files: a file called ring is given as ./ring.
    if isinstance(graph, str) and (graph.partition(":")[0] in {kind.partition(":")[0] for kind in KINDS}):
        return Graph.named(graph, names)
    if isinstance(graph, str | Path):
        path = Path(graph)
        require(path.is_file(), f"must be one of {', '.join(KINDS)}, or a file with one edge a line, got {str(graph)!r}")
        return Graph.read(path, names)
    if isinstance(graph, Mapping):
        return _of_neighbours(graph, names)
    # networkx graphs are recognised by their attributes: networkx is not a dependency.
    edges = graph.edges if hasattr(graph, "nodes") and hasattr(graph, "edges") else graph
    edges = edges() if callable(edges) and not isinstance(edges, Iterable) else edges
    require(
        isinstance(edges, Iterable),
        f"must be one of {', '.join(KINDS)}, a file, a list of edges, neighbours by name, a matrix of weights or a Graph, "
        f"got {type(graph).__name__}",
    )
    return Graph.of(names, [_edge(edge, names) for edge in edges])


def _of_neighbours(graph: Mapping[Any, Any], names: tuple[str, ...]) -> Graph:
    pairs = {(_peer(peer, names), _peer(neighbour, names)) for peer, others in graph.items() for neighbour in others}
    for peer, neighbour in sorted(pairs):
        # One-sided neighbours are a typing error, not a directed graph.
        require((neighbour, peer) in pairs, f"{peer} has {neighbour} as a neighbour, and {neighbour} does not have {peer}")
    return Graph.of(names, sorted(pairs))


def _edge(edge: Any, names: tuple[str, ...]) -> tuple[str, str]:
    good = isinstance(edge, Iterable) and not isinstance(edge, str)
    ends = tuple(edge) if good else ()
    require(len(ends) == 2, f"an edge must be a pair of peers, got {edge!r}")
    return _peer(ends[0], names), _peer(ends[1], names)


def _peer(end: Any, names: tuple[str, ...]) -> str:
    if isinstance(end, str):
        require(end in names, f"there is no peer {end!r}; they are {_some(names)}")
        return end
    # True is a whole number to Python and would pass for peer 1.
    whole = isinstance(end, int | np.integer) and not isinstance(end, bool)
    require(whole and 0 <= end < len(names), f"a peer must be a name or a number below {len(names)}, got {end!r}")
    return names[int(end)]


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
