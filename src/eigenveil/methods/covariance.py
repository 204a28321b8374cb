"""`CovarianceSum`: one release of the whole Gram matrix. The most accurate private answer while d x d fits in memory."""

from dataclasses import dataclass
from typing import final

from eigenveil.core.domain import Region
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.linalg import Array
from eigenveil.privacy import bounded_gram
from eigenveil.tasks.base import Question, SumTask, require_step

__all__ = ["CovarianceSum"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CovarianceSum(SumTask[Array | None, Array]):
    """The Gram matrix, (d, d), of the rows in `domain`, with symmetric noise (Dwork et al. 2014, "Analyze Gauss").

    >>> import numpy as np
    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.data.rows import DenseRows
    >>> task = CovarianceSum(Domain(dim=2, radius=10.0), Neighbours.ADD_REMOVE)
    >>> task.work(task.ask(None), DenseRows(np.eye(2)), Exact(because="doctest")).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    domain: Region
    neighbours: Neighbours

    def start(self) -> Array | None:
        """Nothing is known yet."""
        return None

    def ask(self, state: Array | None) -> Question:
        """For the matrix; sites need no public arrays."""
        return Question()

    def require_question(self, question: Question) -> None:
        """The only step, without arrays."""
        require_step(question, steps=1, arrays=0)

    def private(self, question: Question, rows: Rows) -> Bounded:
        """The clipped Gram matrix."""
        return bounded_gram(rows, domain=self.domain, neighbours=self.neighbours)

    def sensitivity(self, question: Question) -> float:
        """The same as for one site."""
        return self.domain.gram_sensitivity(self.neighbours)

    def shape(self, question: Question) -> tuple[int, ...]:
        """All pairs of columns."""
        return (self.domain.dim, self.domain.dim)

    def label(self, question: Question) -> str:
        """One entry."""
        return "covariance"

    def share(self, question: Question) -> float:
        """The only round spends everything."""
        return 1.0

    @property
    def symmetric(self) -> bool:
        """Gram matrices are symmetric."""
        # The mechanism then draws symmetric noise, which has half the variance off the diagonal at the same cost.
        return True

    def update(self, state: Array | None, released: Array) -> Array:
        """The released matrix is the state."""
        return released

    def result(self, state: Array | None) -> Array | None:
        """The matrix, after one round."""
        return state
