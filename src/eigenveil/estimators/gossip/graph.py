"""Reads a graph of peers: a name, a file, edges, neighbours, a matrix of weights, or a graph object."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from eigenveil.errors import ParameterError, require, verbatim
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.protocols.gossip import graph_of_weights, require_weights

__all__ = ["KINDS", "read_graph"]

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
        require(
            path.is_file(), f"must be one of {', '.join(KINDS)}, or a file with one edge a line, got {str(graph)!r}"
        )
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
    pairs = {(_peer(one, names), _peer(two, names)) for one, others in graph.items() for two in others}
    for one, two in sorted(pairs):
        # One-sided neighbours are a typing error, not a directed graph.
        require((two, one) in pairs, f"{one} has {two} as a neighbour, and {two} does not have {one}")
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
