"""What `GossipPCA` refuses before anything is read or charged, and how peers go about a fit: from checked parameters.

Each parameter by itself is checked already; these are the rules between parameters, and those that need the number of peers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, cast

from eigenveil.data.rows import Rows, Symmetric
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.estimators.federated.rules import share_of
from eigenveil.params import GossipParams
from eigenveil.plan import Method, SegmentsPlan, SitesPlan, plan_segments, plan_sites
from eigenveil.privacy import Budget, Neighbours
from eigenveil.protocols.messages import LONGEST_NAME

__all__ = ["NoiseKind", "noise_of", "peers_plan", "quorum_of", "require_people"]

NoiseKind = Literal["none", "independent", "pairwise", "published"]

# Rounds where peers go on from different sums and cannot see for themselves when to stop; and those of the published form, after
# which D-DP-PM's Figure 3 has come to rest on most data.
_FIXED_ROUNDS: Final = 30
_PUBLISHED_ROUNDS: Final = 5
# A guess at the people of one peer, where nobody says. It matters to hidden starts alone, and little to those.
_PEOPLE_OF_A_PEER: Final = 1000


def noise_of(asked: GossipParams, budget: Budget | None) -> NoiseKind:
    """What is added to what leaves a peer; refused where a parameter has no meaning beside it."""
    if asked.noise == "published":
        _require_as_published(asked)
        return "published"
    if budget is None:
        require_param(
            asked.restarts == 0, "{restarts} is for a budget; without one rounds are begun again as often as needed"
        )
        require_param(asked.noise_graph is None, "{noise_graph} is for {noise=pairwise} and a budget")
        return "none"
    require_param(
        asked.noise is not None,
        "{noise=None} adds no noise, and an {epsilon} was asked for: take {noise=pairwise} or {noise=independent}, or "
        "{epsilon=None}",
    )
    return "pairwise" if asked.noise == "pairwise" else "independent"


def _require_as_published(asked: GossipParams) -> None:
    needs = []
    if asked.method != "segments":
        needs.append("{method=segments}, as it is D-DP-PM's Alg. 1, and this is {method=}")
    if isinstance(asked.center, str):
        needs.append("{center=None} or public numbers, as it has no private mean")
    if asked.row_bound is None:
        needs.append(
            "a {row_bound}, which its scaling is in units of (eigenveil.find_bounds or `eigenveil bounds` finds one)"
        )
    require_param(not needs, f"{{noise=published}} needs {'; '.join(needs)}", method=asked.method)
    require_param(asked.restarts == 0, "{restarts} is for a budget, and {noise=published} has none")


def quorum_of(asked: Any, peers: int) -> int:
    """How many peers must be left: more than half, or two groups that cannot reach each other would both go on."""
    least, value = peers // 2 + 1, asked.quorum
    if value is None:
        return least
    try:
        found = share_of("quorum", value, peers)
    except ParameterError:
        found = None
    if found is None or found < least:
        raise ParameterError(
            f"{{quorum}} must be a number from {least}, more than half, to the {peers} peers, or such a share of them, "
            "got {@value}",
            value=value,
        )
    return found


def require_people(peers: Mapping[str, Rows]) -> None:
    """Refuse what has no people to keep scores of, and names that no message could carry."""
    for name, rows in peers.items():
        require(
            not isinstance(rows, Symmetric),
            f"{name}: a peer keeps the scores of its own people, and a Symmetric has none; give rows, or take FederatedPCA",
        )
        try:
            short = 0 < len(name) <= LONGEST_NAME and len(name.encode()) > 0
        except UnicodeEncodeError:
            short = False
        require(short, f"names of peers must be text of 1 to {LONGEST_NAME} characters, got {name[:20]!a}")


def peers_plan(
    asked: GossipParams, dim: int, rank: int, budget: Budget | None, *, people: float | None, peers: int
) -> SitesPlan | SegmentsPlan:
    """The plan of a fit. `people` is their number where it is public."""
    tolerance, rounds = asked.tolerance, asked.rounds
    require_param(
        asked.consensus != "tree" or asked.steps is None,
        "{steps} has no meaning with {consensus=tree}: a sum takes one way up and one way down",
    )
    # With steps of its own each peer goes on from another sum, so they do not see alike when to stop.
    if asked.steps is not None:
        require_param(
            asked.method != "krylov",
            "{method=krylov} keeps all products, and with {steps=} peers would keep different ones: leave {steps} open, or take "
            "{method=power} or {method=covariance}",
            steps=asked.steps,
        )
        tolerance = 0.0 if asked.method != "covariance" else tolerance
        if rounds is None and budget is None and asked.method in ("power", "segments"):
            rounds = _FIXED_ROUNDS
    if asked.method == "segments":
        require_param(asked.oversample is None, "{oversample} has no meaning for {method=segments}")
        guess = asked.people if asked.people is not None else people
        guess = _PEOPLE_OF_A_PEER * peers if guess is None else guess
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
