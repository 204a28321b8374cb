"""How peers go about a fit: method, width, rounds and shares, from the caller's parameters and public numbers."""

from dataclasses import replace
from typing import Any, Final, cast

from eigenveil.estimators.federated_terms import tolerance_of
from eigenveil.estimators.gossip_rules import agree_to_stop
from eigenveil.plan import Method, SegmentsPlan, SitesPlan, plan_segments, plan_sites
from eigenveil.privacy import Budget, Neighbours

__all__ = ["peers_plan"]

# Rounds where peers go on from different sums and cannot see for themselves when to stop; and those of the published form, after
# which D-DP-PM's Figure 3 has come to rest on most data.
_FIXED_ROUNDS: Final = 30
_PUBLISHED_ROUNDS: Final = 5
# A guess at the people of one peer, where nobody says. It matters to hidden starts alone, and little to those.
_PEOPLE_OF_A_PEER: Final = 1000


def peers_plan(
    pca: Any, dim: int, rank: int, budget: Budget | None, *, people: float | None, peers: int
) -> SitesPlan | SegmentsPlan:
    """The plan of a fit. `people` is their number where it is public; `pca` the estimator, as the caller wrote it."""
    tolerance, rounds = tolerance_of(pca.tolerance), pca.rounds
    sees = agree_to_stop(pca)
    if not sees:
        tolerance = 0.0 if pca.method != "covariance" else tolerance
        if rounds is None and budget is None and pca.method in ("power", "segments"):
            rounds = _FIXED_ROUNDS
    if pca.method == "segments":
        guess = pca.people if pca.people is not None else people
        guess = _PEOPLE_OF_A_PEER * peers if guess is None else guess
        rounds = _PUBLISHED_ROUNDS if pca.noise == "published" and rounds is None else rounds
        plan = plan_segments(dim=dim, rank=rank, people=max(2, int(guess)), budget=budget, rounds=rounds)
        if pca.noise == "published":
            return replace(plan, reason=f"{plan.turns} iterations for each component, as published, scaled by guesses")
        return plan if tolerance is None else replace(plan, tolerance=tolerance)
    return plan_sites(
        dim=dim,
        rank=rank,
        budget=budget,
        method=cast("Method", pca.method),
        neighbours=Neighbours(pca.neighbours),
        rounds=rounds,
        tolerance=tolerance,
        oversample=pca.oversample,
        local_steps=1,
    )
