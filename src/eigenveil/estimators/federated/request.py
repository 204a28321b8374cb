"""`FederatedSpec`: what sites around a hub are asked for, in checked and public terms, whatever it is that they fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from eigenveil.estimators.federated.masks import DeclaredBounds
from eigenveil.plan import SitesPlan
from eigenveil.privacy import Budget, Neighbours
from eigenveil.protocols import Terms
from eigenveil.tasks.fit.task import Setting, WholeFit

__all__ = ["Design", "FederatedSpec", "Participation"]

Participation = tuple[Literal["with-replacement", "without-replacement"], int]
# Makes the fit: from the request, from what it must know of who carries it, and from the public seed of the first basis.
Design = Callable[["FederatedSpec", Setting, Any], WholeFit[Any, Any, Any]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class FederatedSpec:
    """How sites are to fit together what `design` makes. `at_sites` and `at_hub` are budgets, None where no noise is added.

    `sizes` are the rows of each site where those are public. `masks` is how many sites must survive and how many may collude,
    where parts are masked; `declared` what sites said of their rows where no bound was given for them. `settings` are what a
    model records of the parameters.
    """

    design: Design
    neighbours: Neighbours
    plan: SitesPlan
    at_sites: Budget | None
    at_hub: Budget | None
    terms: Terms
    sizes: Mapping[str, float] | None
    seed: int | None
    settings: dict[str, Any]
    masks: tuple[int, int] | None = None
    published: bool = False
    fanout: int | None = None
    participation: Participation | None = None
    person_sites: int = 1
    grouped: bool = False
    declared: DeclaredBounds | None = None

    @property
    def private(self) -> bool:
        """Whether any noise is added."""
        return self.at_sites is not None or self.at_hub is not None
