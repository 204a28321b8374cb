"""`ProductTask`: the common part of tasks whose sites multiply their Gram matrix by a basis that the hub sends."""

from typing import TypeVar

from eigenveil.core.domain import Region
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows
from eigenveil.core.sums import CONTRACTION, require_contraction
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require
from eigenveil.linalg import Subspace
from eigenveil.privacy import bounded_gram_times
from eigenveil.tasks.base import Question, SumTask, require_step

__all__ = ["ProductTask", "require_shares"]

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
