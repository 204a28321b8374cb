"""The task that a plan stands for: what a fit over sites or peers runs, and what is rehearsed before it."""

from typing import Any, Literal

from eigenveil.linalg import Array
from eigenveil.plan.sites import SitesPlan
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
    domain: Domain,
    begin: Array | None,
    *,
    neighbours: Neighbours,
    rank: int,
    private: bool,
    align: Literal["procrustes", "sign", "none"] = "procrustes",
    published: bool = False,
) -> Task[Any, Any, Any]:
    """The task that finds the directions, for rows in `domain`, as planned; from the basis `begin` where it iterates."""
    near = neighbours
    match plan.method:
        case "covariance":
            return CovarianceSum(domain, near)
        case "merge":
            return SiteSpaces(domain, near, kind="merge", rank=rank, width=plan.width)
        case "uda" | "wda":
            public = near.count_is_public or not private
            return SiteSpaces(domain, near, kind=plan.method, rank=rank, normalise=plan.method == "wda" and public)
    assert begin is not None
    match plan.method:
        case "krylov":
            if private:
                return KeptProducts(domain, near, begin, plan.shares, rank, plan.tolerance)
            return KrylovSum(domain, near, begin, plan.rounds, rank, plan.tolerance, plan.shares)
        case "power":
            return PowerIteration(domain, near, begin, plan.shares, rank, plan.tolerance)
        case "dr-svd":
            return RandomisedSvd(domain, near, begin, rank)
        case _:
            return LocalPower(
                domain,
                near,
                begin,
                plan.steps,
                plan.shares,
                rank,
                align=align,
                tolerance=plan.tolerance,
                published=published,
            )
