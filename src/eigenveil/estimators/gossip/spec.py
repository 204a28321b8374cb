"""`GossipSpec`: what a fit between peers is asked for, checked and public, and the rules between its parameters.

Each parameter is checked by itself before. The rules here need several of them, or the number of peers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, cast, final

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.data.rows import Symmetric
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.estimators.checks import covariance_for
from eigenveil.estimators.federated.rules import share_of
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.methods.segments import Segments
from eigenveil.papers.d_dp_pm import PublishedSegments
from eigenveil.params import GossipParams
from eigenveil.plan import Method, SegmentsPlan, SitesPlan, components_of, plan_segments, plan_sites
from eigenveil.protocols.gossip import Consensus
from eigenveil.protocols.messages import LONGEST_NAME
from eigenveil.tasks import Task
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["GossipSpec", "NoiseKind", "directions_of", "noise_of", "peers_plan", "quorum_of", "require_people"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class GossipSpec:
    """What to fit. `budget` is None without a guarantee. `noise` is the kind that each peer adds to what it sends.

    `sizes` are the numbers of rows of the peers, if public, and `people` is their sum, if public. The budget allows for
    `restarts` restarted rounds. A model records `settings`.
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
    person: str | None
    people: float | None
    sizes: Mapping[str, float] | None
    seed: int | None
    settings: dict[str, Any]

    @property
    def unit(self) -> PrivacyUnit:
        """What every charge of this fit protects."""
        return PrivacyUnit.of(self.neighbours, grouped=self.grouped, column=self.person)

    @property
    def private(self) -> bool:
        """Whether there is a guarantee."""
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
    def largest(self) -> float:
        """The largest share."""
        return max(self.plan.shares)


def directions_of(request: GossipSpec, begin: Array | None, hidden: Noise) -> Callable[[Domain], Task[Any, Any, Any]]:
    """Makes one peer's task for the directions, from a domain. `hidden` is the source of what the peer keeps to itself."""
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


NoiseKind = Literal["none", "independent", "pairwise", "published"]

# For peers that continue from different sums, and so cannot agree on when to stop.
_FIXED_ROUNDS: Final = 30
# After these rounds D-DP-PM's Figure 3 is flat on most data.
_PUBLISHED_ROUNDS: Final = 5
# A guess at the people of one peer if nobody says. Only hidden starts use it, and little depends on it.
_PEOPLE_OF_A_PEER: Final = 1000


def noise_of(asked: GossipParams, budget: Budget | None) -> NoiseKind:
    """The noise on what leaves a peer. Refuses parameters that mean nothing beside it."""
    if asked.noise == "published":
        _require_as_published(asked)
        return "published"
    if budget is None:
        require_param(asked.restarts == 0, "{restarts} is for a budget. Without one, rounds restart as often as needed")
        require_param(asked.noise_graph is None, "{noise_graph} is for {noise=pairwise} and a budget")
        return "none"
    require_param(
        asked.noise is not None,
        "{noise=None} adds no noise, and {epsilon} was given. Use {noise=pairwise} or {noise=independent}, or {epsilon=None}",
    )
    return "pairwise" if asked.noise == "pairwise" else "independent"


def _require_as_published(asked: GossipParams) -> None:
    needs = []
    if asked.method != "segments":
        needs.append("{method=segments}, as it is D-DP-PM's Alg. 1 (got {method=})")
    if isinstance(asked.center, str):
        needs.append("{center=None} or public numbers, as it has no private mean")
    if not isinstance(asked.row_bound, float):
        needs.append("a {row_bound}, the unit of its scaling (eigenveil.find_bounds or `eigenveil bounds` finds one)")
    require_param(not needs, f"{{noise=published}} needs {'; '.join(needs)}", method=asked.method)
    require_param(asked.restarts == 0, "{restarts} is for a budget, and {noise=published} has none")


def quorum_of(asked: Any, peers: int) -> int:
    """How many peers must be left. More than half, or two groups that cannot reach each other would both continue."""
    least, value = peers // 2 + 1, asked.quorum
    if value is None:
        return least
    try:
        found = share_of("quorum", value, peers)
    except ParameterError:
        # One message for all bad values: the limit depends on the number of peers.
        found = None
    if found is None or found < least:
        raise ParameterError(
            f"{{quorum}} must be a number from {least}, more than half, to the {peers} peers, or such a share of them, "
            "got {@value}",
            value=value,
        )
    return found


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
    asked: GossipParams, dim: int, rank: int, budget: Budget | None, *, people: float | None, peers: int
) -> SitesPlan | SegmentsPlan:
    """The plan of a fit. `people` is their number, if public."""
    tolerance, rounds = asked.tolerance, asked.rounds
    covariance_for(asked.missing, asked.method, dim)
    require_param(
        asked.consensus != "tree" or asked.steps is None,
        "{steps} has no meaning with {consensus=tree}, where a sum goes up the tree once and down once",
    )
    # With a fixed number of steps each peer continues from another sum, so peers would not agree on when to stop.
    if asked.steps is not None:
        require_param(
            asked.method != "krylov",
            "{method=krylov} keeps all products, and with {steps=} peers would keep different ones. Leave out {steps}, or use "
            "{method=power} or {method=covariance}",
            steps=asked.steps,
        )
        # A covariance is one round, so there is nothing to agree on.
        tolerance = 0.0 if asked.method != "covariance" else tolerance
        if rounds is None and budget is None and asked.method in ("power", "segments"):
            rounds = _FIXED_ROUNDS
    if asked.method == "segments":
        require_param(asked.oversample is None, "{oversample} has no meaning for {method=segments}")
        guess = asked.people if asked.people is not None else people
        guess = _PEOPLE_OF_A_PEER * peers if guess is None else guess
        # From the paper and never from the rows: a number of rounds tuned on private data would be a release of its
        # own.
        rounds = _PUBLISHED_ROUNDS if asked.noise == "published" and rounds is None else rounds
        plan = plan_segments(dim=dim, rank=rank, people=max(2, int(guess)), budget=budget, rounds=rounds)
        if asked.noise == "published":
            return replace(plan, reason=f"{plan.rounds} rounds for each component, as published, scaled by guesses")
        return plan if tolerance is None else replace(plan, tolerance=tolerance)
    return plan_sites(
        dim=dim,
        rank=rank,
        budget=budget,
        method=cast("Method", asked.method),
        neighbours=Neighbours(asked.neighbours),
        rounds=rounds,
        tolerance=tolerance,
        oversample=asked.oversample,
        local_steps=1,
    )
