"""The parameters of `GossipPCA`: peers that talk to their neighbours, with no hub."""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.groups import (
    LARGEST_COUNT,
    METHOD_LIMIT,
    NAME,
    OFFLINE,
    TRUST_LIMIT,
    BudgetParams,
    Places,
    PooledBounds,
    Protection,
    Stopping,
    Waiting,
)
from eigenveil.params.declare import again, param, parameters
from eigenveil.params.values import listed, whole

__all__ = ["GRAPHS", "MOST_EDGES", "PEERS", "GossipParams", "Peers"]

MOST_EDGES = 20_000
EDGES_IN_FILE = listed(listed(NAME, least=2, most=2), least=1, most=MOST_EDGES)

PEERS = "Peers with no hub"
GRAPHS = (
    "ring, path, grid, star, complete, random-regular:4 (four neighbours each), or a file with an edge on each line: two "
    "names or numbers with a comma between"
)


@parameters(panel=PEERS, section="graph")
class Peers:
    """Who talks to whom, how sums come about, and which noise cancels."""

    graph: Any = param(
        f"Who talks to whom: {GRAPHS}.",
        more="Or pairs of names or numbers; neighbours by name; a symmetric, doubly stochastic matrix of weights, (m, m); a "
        "networkx graph.",
        said="str, path, edges, dict, array or Graph",
        strict=EDGES_IN_FILE,
        parse=str,
        metavar="WHICH",
        key="edges",
    )
    consensus: Literal["metropolis", "chebyshev", "tree"] = param(
        "How peers add up. metropolis: averages with neighbours, over and over. chebyshev: the same in about the root of as "
        "many steps. tree: up and down a spanning tree, which is exact.",
        default="metropolis",
        metavar="WHICH",
    )
    steps: int | None = param(
        "How many exchanges with neighbours a sum takes.",
        default=None,
        check=whole(1, 1_000_000),
        metavar="NUMBER",
        unset="as many as leave nothing to speak of",
    )
    noise: Literal["pairwise", "independent", "published"] | None = param(
        "What is added where there is a budget. pairwise: noise that cancels between pairs of peers, for little more than that "
        "of a curator in the sum, against {colluders} of them. independent: all the noise at every peer, against all others, "
        "for sqrt(M) times as much. published: D-DP-PM's own, with {epsilon=None}, because nothing is guaranteed.",
        more="None is none, for {epsilon=None}.",
        default="pairwise",
        metavar="WHICH",
        section="privacy",
        limit=TRUST_LIMIT,
    )
    noise_graph: Any = param(
        "Which pairs share noise, said as for {graph}. It must hold together without any {colluders} peers.",
        default=None,
        said="as graph, or None",
        strict=EDGES_IN_FILE,
        parse=str,
        metavar="WHICH",
        key="noise_edges",
        unset="those that talk",
        only="noise=pairwise",
    )
    colluders: int = param(
        "How many peers may tell each other all they know.",
        default=1,
        check=whole(1),
        strict=whole(1, LARGEST_COUNT),
        quiet=True,
        metavar="NUMBER",
        panel="Privacy",
        section="privacy",
        only="noise=pairwise",
        lenient=True,
    )
    restarts: int = param(
        "For how many rounds that are begun again, each at its full price, when peers vanish, to keep some of the budget.",
        default=0,
        check=whole(0, 1000),
        quiet=True,
        metavar="NUMBER",
        section="privacy",
    )


@parameters(panel="Method", section="task")
class GossipParams(Waiting, Stopping, Peers, Places, Protection, PooledBounds, BudgetParams):
    """The parameters of `GossipPCA`."""

    n_components: int = param(
        "How many components.",
        kw_only=False,
        check=whole(1),
        strict=whole(1, LARGEST_COUNT),
        called="components",
        short="-k",
        metavar="K",
        panel="",
    )
    method: Literal["power", "krylov", "covariance", "segments"] = param(
        "power: products with a block of directions. krylov: the same with all products kept. covariance: one covariance. "
        "segments: one direction at a time (D-DP-PM).",
        default="power",
        metavar="WHICH",
        limit=METHOD_LIMIT,
        recorded=False,  # The settings have it as `auto` was resolved.
    )
    quorum: int | float | None = again(
        Waiting,
        "quorum",
        help="How many peers must be left, such as 4, or which share of them, such as 0.8; always more than half. Others are "
        "left out from there on.",
        unset="more than half",
    )
    people: int | None = param(
        "A public guess at how many people there are, for the starts of segments alone.",
        default=None,
        check=whole(2),
        surfaces=OFFLINE - {"cli"},
    )
