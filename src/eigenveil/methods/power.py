"""Power: PPM Alg. 1, a noisy product with the Gram matrix per round, never the Gram matrix itself.

Three things differ from the paper, each measured in benchmarks/plan/power_shares.py. The block is wider than the requested rank.
Later rounds get more of the budget than earlier ones. The answer is computed from the last product by Ritz vectors.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final, final

import numpy as np

from eigenveil.core.domain import Region
from eigenveil.core.unit import Neighbours
from eigenveil.linalg import Array, Subspace, orthonormal, signed, sines
from eigenveil.methods.base import Components, MethodPlan, ProductMethod, ProductTask, TaskContext, ritz

__all__ = ["METHOD", "PowerIteration", "PowerState"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PowerState:
    """The public state."""

    round: int  # Rounds done.
    basis: Array  # (d, p), to be multiplied next; the one that was multiplied last when all is `done`.
    product: Array | None = None  # The last one, (d, p).
    done: bool = False
    movement: float | None = None  # Of the directions in the last round, as a sine.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PowerIteration(ProductTask[PowerState]):
    """Rounds of Y = G X + noise and X = orthonormal(Y) from the public orthonormal `begin`, (d, p), one round per share.

    FedPower Alg. 1 where the rows are at many sites. With a `tolerance` it stops when the leading directions of the product have
    moved by no more than that, as a sine, since the round before. This uses released numbers only.

    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.data.rows import DenseRows
    >>> begin = np.eye(3)[:, :1]
    >>> task = PowerIteration(
    ...     domain=Domain(dim=3, radius=9.0), neighbours=Neighbours.ADD_REMOVE, begin=begin, shares=(1.0,)
    ... )
    >>> task.work(task.ask(task.start()), DenseRows(2 * np.eye(3)), Exact(because="doctest")).ravel().tolist()
    [4.0, 0.0, 0.0]
    """

    domain: Region
    neighbours: Neighbours
    begin: Array
    shares: tuple[float, ...]
    rank: int | None = None
    tolerance: float = 0.0
    name = "power product"

    def __post_init__(self) -> None:
        # Width is free in privacy: the sensitivity of a product does not depend on it (docs/decisions/0003).
        self.require_terms()

    def start(self) -> PowerState:
        return PowerState(round=0, basis=self.begin)

    def update(self, state: PowerState, released: Array) -> PowerState:
        """The next basis; after the last round the basis is kept together with its product."""
        round_ = state.round + 1
        last = round_ == len(self.shares)
        # `ritz` needs the product together with the basis that was multiplied, not with the next one.
        if last and self.tolerance == 0:
            return PowerState(round=round_, basis=state.basis, product=released, done=True)
        following = PowerState(round=round_, basis=orthonormal(released), product=released)
        if self.tolerance == 0:
            return following
        before, after = self.estimate(state), self.estimate(following)
        assert after is not None
        moved = None if before is None else float(sines(before.basis, after.basis)[0])
        if not last and (moved is None or moved > self.tolerance):
            return following
        return PowerState(round=round_, basis=state.basis, product=released, done=True, movement=moved)

    def result(self, state: PowerState) -> Subspace | None:
        """The `rank` leading directions after the last round; without a rank, as many as the block is wide."""
        if not state.done or state.product is None:
            return None
        return ritz(state.basis, state.product, rank=self.rank or self.begin.shape[1])

    def has_converged(self, state: PowerState) -> bool | None:
        """Whether the last round moved the directions by no more than the tolerance."""
        return state.movement is not None and state.movement <= self.tolerance if self.tolerance > 0 else None

    def estimate(self, state: PowerState) -> Subspace | None:
        """The leading left singular vectors of the last product."""
        if state.product is None or state.done:
            return self.result(state)
        rank = self.rank or self.begin.shape[1]
        # Before the end, the basis is already that of the product, so this small matrix has the product's singular
        # values. They estimate eigenvalues; data scale needs their roots.
        rotation, values, _ = np.linalg.svd(state.basis.T @ state.product)
        return Subspace(signed(state.basis @ rotation[:, :rank]), np.sqrt(values[:rank]))


@final
class Power(ProductMethod):
    """PPM Alg. 1 at one table, FedPower Alg. 1 with one local step at sites."""

    name = "power"
    phrase = "the private power method"
    places = ("curator", "sites", "peers", "remote peers")
    settings = ("curator", "hub", "site", "masked", "peers", "peers-independent")
    takes_samples = True

    def build_task(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> Components:
        return partial(PowerIteration, **self.terms(plan, start_basis, context))


METHOD: Final = Power()
