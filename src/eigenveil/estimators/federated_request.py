"""`SitesRequest`: what a federated fit is asked for, in checked and public terms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from eigenveil.estimators.federated_masks import Declared
from eigenveil.linalg import Array
from eigenveil.plan import SitesPlan
from eigenveil.privacy import Budget, Neighbours
from eigenveil.protocols import Terms
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["Participation", "SitesRequest"]

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
