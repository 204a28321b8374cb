"""`SitesRequest`: what a federated fit is asked for, in checked and public terms, and the task that finds its directions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from eigenveil.estimators.bounds import RowBounds
from eigenveil.estimators.federated_masks import Declared
from eigenveil.linalg import Array
from eigenveil.plan import SitesPlan
from eigenveil.privacy import Budget, Domain, Neighbours
from eigenveil.protocols import Terms
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

__all__ = ["Participation", "SitesRequest", "components_of", "iterates"]

Participation = tuple[Literal["with-replacement", "without-replacement"], int]


@final
@dataclass(frozen=True, slots=True, eq=False)
class SitesRequest:
    """What is to be fitted, in checked and public terms. `at_sites` and `at_hub` are budgets, None where no noise is added.

    `sizes` are the rows of each site where those are public, `people` the number of people where that is. `masks` is how many
    sites must survive and how many may collude, where parts are masked; `declared` what sites said of their rows where no bound
    was given for them.
    """

    rank: int
    bounds: RowBounds
    center: Array | Literal["private"] | None
    neighbours: Neighbours
    plan: SitesPlan
    at_sites: Budget | None
    at_hub: Budget | None
    published: bool
    fanout: int | None
    align: Literal["procrustes", "sign", "none"]
    participation: Participation | None
    terms: Terms
    person_sites: int
    grouped: bool
    people: float | None
    sizes: Mapping[str, float] | None
    seed: int | None
    masks: tuple[int, int] | None = None
    declared: Declared | None = None

    @property
    def private(self) -> bool:
        """Whether any noise is added."""
        return self.at_sites is not None or self.at_hub is not None


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
