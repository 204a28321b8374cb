"""`WholeFit`: a fit from its first release to its last as one task, and what carriers must know of it before it begins."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Self, TypeVar, final

from eigenveil.plan import Extent
from eigenveil.tasks import Task

__all__ = ["Setting", "WholeFit"]

State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """What a fit must know of who carries it: the noise on totals over their sensitivity, at a share of one (`multiplier`), and
    where noise is added to a sum of parts that others sent, on how many of them at most it is (`grid`) and what rounding them
    costs of the sensitivity (`rounding`)."""

    multiplier: float
    grid: int
    rounding: float


class WholeFit(Task[State, Part, Result]):
    """A task whose turns are all that a fit releases. What each may spend is fixed before the first."""

    multiplier: float

    @abstractmethod
    def extent(self) -> Extent:
        """How much is released at most."""

    @abstractmethod
    def with_noise(self, multiplier: float) -> Self:
        """The same fit, where the noise is known to be of this size."""
