"""The parameters of `eigenveil simulate`: those of `FederatedPCA` and of `GossipPCA`. Each run uses one of the two."""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.federated import FederatedParams, HubParams, PairBudget, Rounds
from eigenveil.params.declarations.gossip import GossipParams, Peers
from eigenveil.params.declarations.groups import (
    Colluding,
    Components,
    Places,
    PooledBounds,
    Protection,
    Waiting,
    Whitening,
)
from eigenveil.params.declarations.reading import ColumnsParams, MissingParams
from eigenveil.params.declare import again, declared, param, parameters, registered

__all__ = ["FOR_HUBS", "FOR_PEERS", "SimulateParams"]

# Parameters that only one of the two has.
FOR_HUBS = frozenset(declared(FederatedParams)) - set(declared(GossipParams))
FOR_PEERS = frozenset(declared(GossipParams)) - set(declared(FederatedParams)) - {"graph"}


@parameters(panel="Method", section="task")
class AnyMethod:
    """How the components are found, around a hub or between peers."""

    # The words of both kinds of fit. Which of them the chosen kind has is checked when it is known.
    method: str = param(
        "auto, krylov, power, fedpower, covariance, merge, uda, wda or dr-svd. Without privacy auto is krylov. With privacy it "
        "is one noisy covariance if that fits in memory, and noisy products otherwise. With {graph}: power (which is then auto), "
        "krylov, covariance, or segments, one component after another (D-DP-PM).",
        default="auto",
        among=registered("eigenveil.methods", "ANYWHERE"),
        metavar="WHICH",
    )


@parameters(panel="Method", section="task")
class SimulateParams(
    ColumnsParams,
    Whitening,
    Waiting,
    Rounds,
    AnyMethod,
    Peers,
    HubParams,
    Places,
    Protection,
    MissingParams,
    PooledBounds,
    PairBudget,
    Components,
):
    """The parameters of `eigenveil simulate`. Without a graph there is a hub."""

    graph: Any = again(
        Peers,
        "graph",
        help="Sites are peers that talk to their neighbours on this graph, without a hub: ring, path, grid, star, complete or "
        "random-regular:4 (four neighbours each). Or a file with an edge on each line: two sites with a comma between, by "
        "name, such as site 3, or by number, counted from 0.",
        # Whether there is a graph is what decides between the two estimators.
        default=None,
        unset="a hub",
    )
    colluders: int = again(
        Colluding,
        "colluders",
        help="For {trust=masked}: how many sites may tell the hub all they know. For {graph} with pairwise noise: how many peers "
        "may tell each other.",
        more=None,
        # Two conditions, of which `only` can state one: the command checks both.
        only=None,
        quiet=False,
    )
    calibration: Literal["exact", "paper"] = again(FederatedParams, "calibration")
    random_state: Any = again(
        Protection,
        "random_state",
        help="Fixes the split, the start, the simulated faults and the noise. Reproducible, and with {epsilon} NOT PRIVATE.",
    )
    quorum: int | float | None = again(
        Waiting,
        "quorum",
        help="How many sites must answer, such as 4, or which share of them, such as 0.8. Others are left out from then on. "
        "With {graph}: how many peers must be left, more than half.",
        unset="all; more than half with --graph",
    )
