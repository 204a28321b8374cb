"""`ProductTask`: the common part of tasks whose sites multiply their Gram matrix by a basis that the hub sends.

`ProductMethod` is the common part of their leaves: a block that the hub sends, in rounds whose shares grow. `ritz` reads
directions off one product.
"""

import math
from typing import TypeVar

import numpy as np

from eigenveil.core.domain import Region
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows
from eigenveil.core.sums import CONTRACTION, require_contraction
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, complement, product_edge, signed, spiked_edge, top_eigen
from eigenveil.linalg.blas import tall_product, tall_times
from eigenveil.methods.base import (
    TOLERANCE,
    WORKING,
    Method,
    MethodPlan,
    PlanRequest,
    Scene,
    TaskContext,
    block_norm,
    found_in,
)
from eigenveil.privacy.sums import bounded_gram_times
from eigenveil.tasks.base import Question, SumTask, require_step

__all__ = ["ProductMethod", "ProductTask", "geometric_shares", "require_shares", "ritz"]

State = TypeVar("State")


class ProductTask(SumTask[State, Subspace]):
    """A task whose questions have one basis, (d, p), with ||basis||_2 <= 1 + 1e-8, and whose parts are the product with it."""

    domain: Region
    neighbours: Neighbours

    def private(self, question: Question, rows: Rows) -> Bounded:
        """The clipped Gram matrix times the basis."""
        return bounded_gram_times(rows, basis=question.arrays[0], domain=self.domain, neighbours=self.neighbours)

    def sensitivity(self, question: Question) -> float:
        """The same as for one site, for this basis."""
        basis = question.arrays[0]
        # The largest norm that `require_contraction` accepts, so the noise covers every basis that a hub may send.
        return self.domain.gram_times_sensitivity(self.neighbours, basis=basis, basis_norm=CONTRACTION)

    def shape(self, question: Question) -> tuple[int, ...]:
        """That of the basis."""
        return question.arrays[0].shape

    def require_product(self, question: Question, *, steps: int, least: int, most: int) -> None:
        """Refuse a question without one basis of `least` to `most` columns and norm at most 1 + 1e-8."""
        # The question came over the network: its shape is checked before anything is multiplied.
        require_step(question, steps=steps, arrays=1)
        # Measured where the rows are: a longer basis would stretch a person's part beyond the noise.
        require_contraction(question.arrays[0], dim=self.domain.dim)
        width = question.arrays[0].shape[1]
        limits = f"{most}" if least == most else f"{least} to {most}"
        require(least <= width <= most, f"basis must have {limits} columns, got {width}")


class ProductMethod(Method):
    """A method of products with a block that the hub sends, in rounds whose shares grow."""

    needs_start_basis: bool = True
    fixed_rounds: int | None = None
    max_rounds: int = 200  # Without noise, where it stops at a tolerance.
    noisy_rounds: int = 4
    # Each product gets this many times the budget of the one before: the last one makes the result.
    # benchmarks/plan/power_shares.py.
    growth: float = 1.6

    def width(self, request: PlanRequest) -> int:
        """Wider than the rank: under noise a wider block gains more than its noise costs."""
        # Without noise it only has to contain the space.
        return request.wider(max(10, request.rank if request.budget is None else 3 * request.rank))

    def plan(self, request: PlanRequest, reason: str) -> MethodPlan:
        """Rounds with growing shares."""
        private = request.budget is not None
        rounds = (self.noisy_rounds if private else self.max_rounds) if request.rounds is None else request.rounds
        # With noise, shares are fixed in advance: a round that is left out would leave its share unused.
        usual = 0.0 if private else TOLERANCE
        return MethodPlan(
            method=self.name,
            width=self.width(request),
            rounds=rounds,
            shares=geometric_shares(rounds, growth=self.growth if private and not request.equal_shares else 1.0),
            steps=self.steps(request, rounds),
            tolerance=usual if request.tolerance is None else request.tolerance,
            reason=reason,
        )

    def steps(self, request: PlanRequest, rounds: int) -> tuple[int, ...]:
        """Local steps of each round."""
        return (1,) * rounds

    def message_size(self, dim: int, plan: MethodPlan) -> int:
        """A product."""
        return dim * plan.width

    def memory(self, dim: int, plan: MethodPlan) -> int:
        """A few products."""
        return WORKING * dim * plan.width

    def entry_noise(self, plan: MethodPlan) -> float:
        """That of the last product."""
        return float(plan.shares[-1] ** -0.5)

    def noise_norm(self, dim: int, plan: MethodPlan, *, sites: int) -> float:
        """That of the last product: the result is read off it."""
        return block_norm(dim, plan.width) / math.sqrt(plan.shares[-1])

    def noise_floor(self, dim: int, plan: MethodPlan, *, scale: float, spike: float, sites: int) -> float:
        """The edge of the Ritz values of a product."""
        entry = scale / math.sqrt(self.last_share(plan))
        return entry * spiked_edge(product_edge(dim, plan.width), spike=spike / entry, row=dim - plan.width / 2)

    def disclosure(self, width: int, *, role: str) -> str:
        """Products."""
        return f"products of the rows with {width} directions"

    def simulate(self, plan: MethodPlan, scene: Scene, *, sites: int) -> Array:
        """The real task, with noise on the sum."""
        context = TaskContext(neighbours=scene.neighbours, rank=scene.rank, private=True)
        return found_in(scene, self.build_task(plan, self.start_basis(scene.dim, plan, scene.seed), context))


def require_shares(shares: tuple[float, ...]) -> None:
    """Refuse shares that are not positive or sum to more than one.

    >>> require_shares((0.25, 0.75))
    """
    require(len(shares) > 0, "there must be at least one round, got no shares")
    require(
        # Shares that add up to one on paper may exceed it by rounding.
        min(shares) > 0 and sum(shares) <= 1 + 1e-12,
        f"shares must be positive and sum to at most one, got {len(shares)} from {min(shares):g} that sum to {sum(shares):g}",
    )


def geometric_shares(rounds: int, *, growth: float) -> tuple[float, ...]:
    """Shares of a budget over `rounds`, each `growth` times the one before, summing to one.

    >>> [round(share, 3) for share in geometric_shares(3, growth=2.0)]
    [0.143, 0.286, 0.571]
    """
    require(rounds >= 1, f"rounds must be at least 1, got {rounds}")
    require(growth > 0, f"growth must be positive, got {growth}")
    # Exponents are counted from the round with the largest share, so that no power overflows.
    raw = growth ** (np.arange(float(rounds)) - (rounds - 1 if growth > 1 else 0))
    return tuple((raw / raw.sum()).tolist())


def ritz(basis: Array, product: Array, *, rank: int) -> Subspace:
    """The `rank` leading directions, with data-scale values, from an orthonormal X and Y ~ G X, (d, p), both public.

    Y determines two blocks of the symmetric matrix G. On X it is H = (X^T Y + Y^T X) / 2. Between X and the orthonormal rest Q of
    Y's span it is T = Q^T Y. The block on Q is unknown and set to zero. The eigenvectors of [[H, T^T], [T, 0]] in the basis [X,
    Q] are the Ritz vectors of that completion, which is G itself when X spans an invariant space. In data scale a value is the
    root of its eigenvalue, or zero if noise made it negative.

    >>> space = ritz(np.eye(2)[:, :1], np.array([[4.0], [0.0]]), rank=1)
    >>> space.values.tolist(), space.basis.ravel().tolist()
    ([2.0], [1.0, 0.0])
    """
    width = basis.shape[1]
    inner = tall_product(basis, product)
    rest = complement(product, basis, within=inner)
    across = tall_product(rest, product)
    small = np.block([[(inner + inner.T) / 2, across.T], [across, np.zeros((rest.shape[1], rest.shape[1]))]])
    # A matrix of twice the width: all that was released is in it, so nothing tall is needed any more.
    values, vectors = top_eigen(small, rank=rank)
    directions = tall_times(basis, vectors[:width])
    directions += tall_times(rest, vectors[width:])
    # Freed as soon as it is used, because a subspace copies its arrays.
    del rest
    return Subspace(signed(directions), np.sqrt(np.maximum(values, 0.0)))
