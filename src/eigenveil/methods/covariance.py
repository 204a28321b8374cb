"""Covariance: one release of the whole Gram matrix. The most accurate private answer while d x d fits in memory."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from eigenveil.core.domain import Domain, Region
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import Symmetric
from eigenveil.linalg import Array, Subspace, spiked_edge, symmetric_edge
from eigenveil.methods.base import (
    ALL_PAIRS,
    Components,
    Method,
    MethodPlan,
    PlanRequest,
    Scene,
    TaskContext,
    gaussian,
    leading_under_noise,
    matrix_of,
    refuse_oversample,
)
from eigenveil.privacy.sums import bounded_gram
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.base import Question, SumTask, require_step

__all__ = ["METHOD", "CovarianceSum"]


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
        return None

    def ask(self, state: Array | None) -> Question:
        """For the matrix; sites need no public arrays."""
        return Question()

    def require_question(self, question: Question) -> None:
        """The only step, without arrays."""
        require_step(question, steps=1, arrays=0)

    def private(self, question: Question, rows: Rows) -> Bounded:
        return bounded_gram(rows, domain=self.domain, neighbours=self.neighbours)

    def sensitivity(self, question: Question) -> float:
        return self.domain.gram_sensitivity(self.neighbours)

    def shape(self, question: Question) -> tuple[int, ...]:
        return (self.domain.dim, self.domain.dim)

    def label(self, question: Question) -> str:
        return "covariance"

    def share(self, question: Question) -> float:
        return 1.0

    @property
    def symmetric(self) -> bool:
        """Gram matrices are symmetric."""
        # The mechanism then draws symmetric noise, which has half the variance off the diagonal at the same cost.
        return True

    def update(self, state: Array | None, released: Array) -> Array:
        return released

    def result(self, state: Array | None) -> Array | None:
        return state


@final
class Covariance(Method):
    """One symmetric matrix, whose noise is smaller off the diagonal."""

    name = "covariance"
    phrase = "one release of the covariance"
    places = ("curator", "sites", "peers", "remote peers")
    settings = ("curator", "hub", "site", "masked", "peers", "peers-independent")
    releases_gram = True

    def width(self, criteria: PlanRequest) -> int:
        refuse_oversample(self, criteria)
        return criteria.rank

    def build_task(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> Components:
        return partial(CovarianceSum, neighbours=context.neighbours)

    def message_size(self, dim: int, plan: MethodPlan) -> int:
        """The upper half of a symmetric matrix."""
        return dim * (dim + 1) // 2

    def longest_part(self, dim: int, plan: MethodPlan) -> int:
        return self.message_size(dim, plan)

    def memory(self, dim: int, plan: MethodPlan) -> int:
        """The matrix, its noise, its eigenvectors, and a copy."""
        return 4 * dim * dim

    def entry_noise(self, plan: MethodPlan) -> float:
        """The noise of an entry off the diagonal, as nearly all are."""
        return math.sqrt(0.5)

    def noise_norm(self, dim: int, plan: MethodPlan, *, sites: int) -> float:
        """A symmetric matrix whose off-diagonal entries have deviation s has norm about 2 s sqrt(d), and here s is sqrt(1/2)."""
        return math.sqrt(2 * dim)

    def noise_floor(self, dim: int, plan: MethodPlan, *, scale: float, spike: float, sites: int) -> float:
        """The edge of a symmetric matrix."""
        return scale * spiked_edge(symmetric_edge(dim), spike=spike / scale, row=dim / 2)

    def disclosure(self, width: int, *, role: str) -> str:
        return "the sums of products of every pair of columns"

    def simulate(self, plan: MethodPlan, scene: Scene, *, sites: int) -> Array:
        """The real release; of many columns only those products of the noise that are needed."""
        noise = Noise.seeded(scene.seed)
        if scene.dim > ALL_PAIRS:
            return leading_under_noise(scene.gram, scene.shift, scale=scene.scale, rank=scene.rank, noise=noise)[1]
        task = CovarianceSum(Domain(dim=scene.dim, radius=1.0), scene.neighbours)
        released = run_pooled(task, Symmetric(matrix_of(scene), people=1), gaussian(scene.multiplier, noise))
        return Subspace.of_gram(released, rank=scene.rank, overwrite=True).basis


METHOD: Final = Covariance()
