"""The parameters of `GossipPCA`: peers that talk to their neighbours, without a hub."""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.groups import (
    METHOD_LIMIT,
    NAME,
    OFFLINE,
    TRUST_LIMIT,
    BudgetParams,
    Colluding,
    Components,
    Places,
    PooledBounds,
    Protection,
    Stopping,
    Waiting,
    Whitening,
)
from eigenveil.params.declarations.reading import MissingParams
from eigenveil.params.declare import again, param, parameters, registered
from eigenveil.params.values import listed, whole

__all__ = ["GRAPHS", "MOST_EDGES", "PEERS", "GossipParams", "Peers"]

# A graph from a study file is walked many times before anybody agrees to it.
MOST_EDGES = 20_000
EDGES_IN_FILE = listed(listed(NAME, least=2, most=2), least=1, most=MOST_EDGES)

PEERS = "Peers without a hub"
GRAPHS = (
    "ring, path, grid, star, complete, random-regular:4 (four neighbours each), or a file with an edge on each line: two "
    "names or numbers with a comma between"
)


@parameters(panel=PEERS, section="graph")
class Peers:
    """Who talks to whom, how peers add up, and which noise cancels."""

    graph: Any = param(
        f"Who talks to whom: {GRAPHS}.",
        more="Or pairs of names or numbers, neighbours by name, a networkx graph, or a symmetric, doubly stochastic matrix of "
        "weights, (m, m).",
        said="str, path, edges, dict, array or Graph",
        strict=EDGES_IN_FILE,
        parse=str,
        metavar="WHICH",
        key="edges",
    )
    consensus: Literal["metropolis", "chebyshev", "tree"] = param(
        "How peers add up. With metropolis, by repeated averages with neighbours. With chebyshev, the same in about the square "
        "root of as many steps. With tree, up and down a spanning tree, which is exact.",
        # The method of the papers, which the other two are compared with.
        default="metropolis",
        metavar="WHICH",
    )
    steps: int | None = param(
        "How many exchanges with neighbours a sum takes.",
        default=None,
        check=whole(1, 1_000_000),
        metavar="NUMBER",
        unset="until the error is negligible",
    )
    noise: Literal["pairwise", "independent", "published"] | None = param(
        "The noise, if there is a budget. With pairwise, it cancels between pairs of peers, which protects against "
        "{colluders} of them. The sum then has little more noise than with one curator. With independent, every peer "
        "adds all of it, which protects against all others, at sqrt(M) times the noise. With published, it is "
        "D-DP-PM's own, for {epsilon=None}, because it has no guarantee.",
        more="None: no noise, for {epsilon=None}.",
        # Nearly the noise of one curator, for one more assumption: that no more than `colluders` peers collude.
        default="pairwise",
        metavar="WHICH",
        section="privacy",
        limit=TRUST_LIMIT,
    )
    noise_graph: Any = param(
        "Which pairs share noise, given as {graph} is. It must stay connected without any {colluders} peers.",
        default=None,
        said="as graph, or None",
        strict=EDGES_IN_FILE,
        parse=str,
        metavar="WHICH",
        key="noise_edges",
        unset="all pairs of neighbours",
        only="noise=pairwise",
    )
    colluders: int = again(
        Colluding,
        "colluders",
        help="How many peers may tell each other all they know.",
        more=None,
        only="noise=pairwise",
        # Calls that compare kinds of noise share their other settings.
        lenient=True,
    )
    restarts: int = param(
        "Keep enough of the budget for this many restarted rounds. When peers vanish, a round restarts at its full cost.",
        # Each one takes from the budget of every other round, whether or not anybody vanishes.
        default=0,
        check=whole(0, 1000),
        quiet=True,
        metavar="NUMBER",
        section="privacy",
    )


@parameters(panel="Method", section="task")
class GossipParams(
    Whitening, Waiting, Stopping, Peers, Places, Protection, MissingParams, PooledBounds, BudgetParams, Components
):
    """The parameters of `GossipPCA`."""

    method: str = param(
        "power: products with a block of directions. krylov: the same with all products kept. covariance: one covariance. "
        "segments: one direction at a time (D-DP-PM).",
        default="power",
        among=registered("eigenveil.methods", "AT_PEERS"),
        metavar="WHICH",
        limit=METHOD_LIMIT,
        recorded=False,  # The settings have the method that `auto` became.
    )
    quorum: int | float | None = again(
        Waiting,
        "quorum",
        help="How many peers must be left, such as 4, or which share of them, such as 0.8. Always more than half. Missing peers "
        "are left out from then on.",
        # Otherwise two groups that lost each other could both go on, and release two answers about the same people.
        unset="more than half",
    )
    people: int | None = param(
        "A public guess at the number of people, for the starts of segments alone.",
        default=None,
        check=whole(2),
        surfaces=OFFLINE - {"cli"},
        recorded=False,  # A guess. Beside a guarantee that protects the number of people, it would be read as that number.
    )
