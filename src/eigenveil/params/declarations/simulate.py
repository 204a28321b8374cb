"""The parameters of `eigenveil simulate`: those of `FederatedPCA` and of `GossipPCA`, of which each run has one."""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.federated import FederatedParams, HubParams, PairBudget, Rounds
from eigenveil.params.declarations.gossip import GossipParams, Peers
from eigenveil.params.declarations.groups import Places, PooledBounds, Protection, Waiting
from eigenveil.params.declare import again, declared, param, parameters
from eigenveil.params.values import whole

__all__ = ["FOR_HUBS", "FOR_PEERS", "SimulateParams"]

# Parameters that one of the two has and the other has not.
FOR_HUBS = frozenset(declared(FederatedParams)) - set(declared(GossipParams))
FOR_PEERS = frozenset(declared(GossipParams)) - set(declared(FederatedParams)) - {"graph"}


@parameters(panel="Method", section="task")
class AnyMethod:
    """How the components are found, around a hub or between peers."""

    method: Literal[
        "auto", "krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd", "segments"
    ] = param(
        "auto, krylov, power, fedpower, covariance, merge, uda, wda or dr-svd. auto is krylov without privacy, and with it one "
        "noisy covariance while that fits in memory, else noisy products. With {graph}: power, which auto is then, krylov, "
        "covariance, or segments, one component after another (D-DP-PM).",
        default="auto",
        metavar="WHICH",
    )


@parameters(panel="Method", section="task")
class SimulateParams(Waiting, Rounds, AnyMethod, Peers, HubParams, Places, Protection, PooledBounds, PairBudget):
    """The parameters of `eigenveil simulate`. Without a graph there is a hub."""

    n_components: int = again(FederatedParams, "n_components")
    graph: Any = again(
        Peers,
        "graph",
        help="Sites are peers that talk to their neighbours on this graph, with no hub: ring, path, grid, star, complete, "
        "random-regular:4 (four neighbours each), or a file with an edge on each line: two sites with a comma between, by "
        "name, such as site 3, or by number, counted from 0.",
        default=None,
        unset="a hub",
    )
    colluders: int = param(
        "For {trust=masked}: how many sites may tell the hub all they know. For {graph} with pairwise noise: how many peers "
        "may tell each other.",
        default=1,
        check=whole(1),
        metavar="NUMBER",
        panel="Privacy",
        section="privacy",
    )
    calibration: Literal["exact", "paper"] = again(FederatedParams, "calibration")
    random_state: Any = again(
        Protection,
        "random_state",
        help="Fixes the split, the start, what goes wrong and the noise. Reproducible, and with {epsilon} NOT PRIVATE.",
    )
    quorum: int | float | None = again(
        Waiting,
        "quorum",
        help="How many sites must answer, such as 4, or which share of them, such as 0.8. Others are left out from there on. "
        "With {graph}: how many peers must be left, more than half.",
        unset="all; more than half with --graph",
    )
