"""The task that a plan stands for: what a fit over sites or peers runs, and what is rehearsed before it."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from eigenveil.linalg import Array
from eigenveil.plan.choose.sites import SitesPlan
from eigenveil.privacy import Domain, Neighbours
from eigenveil.tasks import (
    CovarianceSum,
    KeptProducts,
    KrylovSum,
    LocalPower,
    PowerIteration,
    RandomisedSvd,
    SiteSpaces,
    Task,
)

__all__ = ["components_of", "iterates"]


def iterates(method: str) -> bool:
    """Whether a method begins with a basis."""
    return method in ("krylov", "power", "fedpower", "dr-svd")


def components_of(
    plan: SitesPlan,
    begin: Array | None,
    *,
    neighbours: Neighbours,
    rank: int,
    private: bool,
    align: Literal["procrustes", "sign", "none"] = "procrustes",
    published: bool = False,
) -> Callable[[Domain], Task[Any, Any, Any]]:
    """What makes the task that finds the directions as planned, for rows in a domain; from the basis `begin` where it iterates.

    It is a class of `eigenveil.tasks` with all but the domain filled in, so that who carries a fit calls nothing above the tasks.
    """
    near = neighbours
    match plan.method:
        case "covariance":
            return partial(CovarianceSum, neighbours=near)
        case "merge":
            return partial(SiteSpaces, neighbours=near, kind="merge", rank=rank, width=plan.width)
        case "uda" | "wda":
            normalise = plan.method == "wda" and (near.count_is_public or not private)
            return partial(SiteSpaces, neighbours=near, kind=plan.method, rank=rank, normalise=normalise)
    assert begin is not None
    shares, stop = plan.shares, plan.tolerance
    match plan.method:
        case "krylov" if private:
            return partial(KeptProducts, neighbours=near, begin=begin, shares=shares, rank=rank, tolerance=stop)
        case "krylov":
            rounds = plan.rounds
            return partial(
                KrylovSum, neighbours=near, begin=begin, rounds=rounds, rank=rank, tolerance=stop, shares=shares
            )
        case "power":
            return partial(PowerIteration, neighbours=near, begin=begin, shares=shares, rank=rank, tolerance=stop)
        case "dr-svd":
            return partial(RandomisedSvd, neighbours=near, begin=begin, rank=rank)
        case _:
            return partial(
                LocalPower,
                neighbours=near,
                begin=begin,
                steps=plan.steps,
                shares=shares,
                rank=rank,
                align=align,
                tolerance=stop,
                published=published,
            )
