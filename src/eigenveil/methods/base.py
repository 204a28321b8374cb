"""`Method`: everything that the rest of the library must know of a way to find components. One leaf, one file.

A leaf says where it may run, how its budget is shared, what it sends, how far noise alone can reach, what a fit should find, and
in words what leaves a site: all from public numbers. Whatever depends on the method asks its leaf, and nothing else compares
names. The questions are abstract, so a leaf that leaves one open cannot be made.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require_param
from eigenveil.linalg import Array, orthonormal
from eigenveil.methods.scene import Scene
from eigenveil.tasks.base import Components

__all__ = [
    "TOLERANCE",
    "WORKING",
    "Components",
    "Method",
    "MethodPlan",
    "Place",
    "PlanRequest",
    "TaskContext",
    "block_norm",
    "refuse_oversample",
]

LocalSteps = int | Sequence[int | str]
# Who may run it: a curator, sites around a hub, peers in one process, and peers over a network.
Place = Literal["curator", "sites", "peers", "remote peers"]

# The change at which a method has converged, where nothing is noisy.
TOLERANCE: Final = 1e-8
# Temporary d x w matrices at one place, beside products that are kept.
WORKING: Final = 6


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan is made from, all of it public. None stands for the usual."""

    dim: int
    rank: int
    budget: Budget | None  # None without noise.
    eigenvalues: Array  # A guess at those of the Gram matrix, (d,), in units of row_bound^2, largest first.
    people: int = 2  # A guess at their number.
    rounds: int | None = None
    tolerance: float | None = None
    oversample: int | None = None
    local_steps: LocalSteps = 1
    equal_shares: bool = False  # As papers print them.

    def wider(self, more: int) -> int:
        """The width of a block: the rank and `more`, or as much more as the caller wants."""
        return min(self.dim, self.rank + (more if self.oversample is None else self.oversample))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MethodPlan:
    """What was decided and why."""

    method: str
    width: int  # Columns of a product, or of what a site sends.
    rounds: int  # Exchanges; of each component, where they are found one after another.
    shares: tuple[float, ...]  # Each exchange's part of the components' budget.
    steps: tuple[int, ...] = ()  # Local steps of each round, where sites take any.
    tolerance: float = 0.0
    reason: str = ""
    people: int = 0  # A guess at their number, where hidden starts need one.

    @property
    def exchanges(self) -> int:
        """How many exchanges there are in all."""
        return max(self.rounds, len(self.shares))

    @property
    def headline(self) -> str:
        """The method and why it was chosen, on one line."""
        return self.reason if self.reason.startswith(self.method) else f"{self.method}: {self.reason}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """How a planned task is used."""

    neighbours: Neighbours
    rank: Any  # None where it is read off what was released.
    private: bool
    align: Literal["procrustes", "sign", "none"] = "procrustes"  # How FedPower compares bases.
    published: bool = False  # With noise as FedPower prints it.
    hidden: Noise | None = None  # What a peer keeps to itself.


class Method(ABC):
    """A way to find components."""

    name: str
    phrase: str  # In words, after "with": the private power method.
    places: tuple[Place, ...]
    settings: tuple[str, ...] = ()  # In which a plan compares it, and "auto" may take it.

    is_additive: bool = True  # Every round is a sum of arrays: masks and gossip can only add.
    averages_subspaces: bool = False  # Sites send directions of their own, which only their own noise covers.
    needs_start_basis: bool = False  # It starts from a public random basis.
    releases_gram: bool = False  # The whole Gram matrix is released, with its trace: entries can be divided by counts.
    fixed_rounds: int | None = 1  # None where the caller may choose.
    takes_samples: bool = False  # Every round may use other sites.
    runs_in_trees: bool = True
    has_private_form: bool = True
    takes_local_steps: bool = False  # Sites may take several steps on their own rows in a round.
    keeps_products: bool = False  # The answer is made of all products, and not of the last one.
    finds_one_by_one: bool = False  # One component after another.

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def width(self, request: PlanRequest) -> int:
        """The columns of a product, or of what a site sends."""

    @abstractmethod
    def build_task(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> Components:
        """A factory for the planned task. `start_basis` is that of `needs_start_basis`."""

    @abstractmethod
    def message_size(self, dim: int, plan: MethodPlan) -> int:
        """How many numbers a site releases in a round."""

    @abstractmethod
    def memory(self, dim: int, plan: MethodPlan) -> int:
        """The most numbers in memory at one place."""

    @abstractmethod
    def entry_noise(self, plan: MethodPlan) -> float:
        """The noise on an entry of what the answer is read off, over that on a diagonal entry of a Gram matrix."""

    @abstractmethod
    def noise_norm(self, dim: int, plan: MethodPlan, *, sites: int) -> float:
        """The expected spectral norm of the noise, over its size on a diagonal entry of a Gram matrix."""

    @abstractmethod
    def noise_floor(self, dim: int, plan: MethodPlan, *, scale: float, spike: float, sites: int) -> float:
        """What noise alone exceeds in one fit of a hundred.

        `scale` is the noise on an entry at a share of one, and the error of the mean adds at most `spike` to one eigenvalue.
        """

    @abstractmethod
    def disclosure(self, width: int, *, role: str) -> str:
        """What leaves a `role`, a site or a peer, in words that its operator consents to."""

    @abstractmethod
    def simulate(self, plan: MethodPlan, scene: Scene, *, sites: int) -> Array:
        """The directions, (d, k), that the planned fit would find in a scene.

        `scene.multiplier` is the noise on the sum over all sites; on the part of each site where they average subspaces.
        """

    def start_basis(self, dim: int, plan: MethodPlan, seed: Any) -> Array | None:
        """The first basis, (d, width), which all parties draw from the same public seed; None where there is none."""
        if not self.needs_start_basis:
            return None
        return orthonormal(np.random.default_rng(seed).standard_normal((dim, plan.width)))

    def plan(self, request: PlanRequest, reason: str) -> MethodPlan:
        """Width, rounds and shares, for a method with a fixed number of rounds."""
        assert self.fixed_rounds is not None
        return MethodPlan(
            method=self.name, width=self.width(request), rounds=self.fixed_rounds, shares=(1.0,), reason=reason
        )

    def last_share(self, plan: MethodPlan) -> float:
        """The share of the release that components are read off: the smallest, where there are several."""
        return plan.shares[-1]

    def longest_part(self, dim: int, plan: MethodPlan) -> int:
        """The numbers in the longest part that a site may send, for limits: a basis and its values."""
        return dim * plan.width + plan.width + 1


def refuse_oversample(method: Method, request: PlanRequest) -> None:
    """Refuse a width for a method that has none of its own."""
    require_param(request.oversample is None, "{oversample} has no meaning for {method=}", method=method.name)


def block_norm(dim: int, width: int) -> float:
    """The expected spectral norm of a (dim, width) block of noise of size one."""
    return math.sqrt(dim) + math.sqrt(width)
