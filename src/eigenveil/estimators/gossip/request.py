"""`GossipSpec`: what a fit between peers is asked for, in checked and public terms, and what makes its components' task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.papers.d_dp_pm import PublishedSegments
from eigenveil.plan import SegmentsPlan, SitesPlan, components_of
from eigenveil.privacy import Budget, Domain, Neighbours, Noise
from eigenveil.protocols.gossip import Consensus
from eigenveil.tasks import Segments, Task
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["GossipSpec", "directions_of"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class GossipSpec:
    """What is to be fitted. `budget` is None where nothing is guaranteed, and `noise` what is added to what leaves a peer.

    `sizes` are the rows of each peer where those are public, `people` their sum where that is public. `restarts` is how many
    rounds the budget has room to begin again. `settings` are what a model records of the parameters.
    """

    rank: int
    bounds: RowBounds
    center: Array | Literal["private"] | None
    neighbours: Neighbours
    plan: SitesPlan | SegmentsPlan
    budget: Budget | None
    noise: Literal["none", "independent", "pairwise", "published"]
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
    grouped: bool
    people: float | None
    sizes: Mapping[str, float] | None
    seed: int | None
    settings: dict[str, Any]

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed."""
        return self.budget is not None

    @property
    def published(self) -> bool:
        """Whether it is D-DP-PM's Alg. 1 as printed."""
        return self.noise == "published"

    @property
    def method(self) -> str:
        """How directions are found."""
        return "segments" if isinstance(self.plan, SegmentsPlan) else self.plan.method

    @property
    def shares(self) -> tuple[float, ...]:
        """Each round's part of what the components may spend."""
        return self.plan.shares

    @property
    def largest(self) -> float:
        """The largest of them."""
        return max(self.plan.shares)


def directions_of(request: GossipSpec, begin: Array | None, hidden: Noise) -> Callable[[Domain], Task[Any, Any, Any]]:
    """What makes one peer's task that finds the directions, for rows in a domain; `hidden` is where it draws what it keeps to
    itself."""
    plan = request.plan
    if not isinstance(plan, SegmentsPlan):
        return components_of(plan, begin, neighbours=request.neighbours, rank=request.rank, private=request.private)
    if request.published:
        return partial(
            PublishedSegments.in_ball,
            rank=request.rank,
            rounds=plan.rounds,
            alpha=plan.alpha,
            sigma_q=plan.deviation,
            sigma_p=plan.schedule,
            noise=hidden,
        )
    return partial(
        Segments,
        neighbours=request.neighbours,
        rank=request.rank,
        rounds=plan.rounds,
        shares=plan.shares,
        noise=hidden,
        deviation=plan.deviation,
        clip=plan.clip,
        tolerance=plan.tolerance,
    )
