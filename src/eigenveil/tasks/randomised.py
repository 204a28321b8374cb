"""`RandomisedSvd`: FedPower's DR-SVD in two rounds of sums, so that no row's coordinates ever reach the hub."""

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, orthonormal, signed
from eigenveil.privacy import Domain, Neighbours, require_contraction
from eigenveil.tasks.base import Question
from eigenveil.tasks.products import ProductTask

__all__ = ["RandomisedState", "RandomisedSvd", "randomised_width"]

_ROUNDS: Final = 2
# Eigenvalues of C below this part of the largest are rounding.
_NOTHING = 1e-13


@final
@dataclass(frozen=True, slots=True, eq=False)
class RandomisedState:
    """The public transcript: rounds done, the basis to multiply next, (d, r), and the answer after the second."""

    round: int
    basis: Array
    space: Subspace | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class RandomisedSvd(ProductTask[RandomisedState]):
    """FedPower Alg. 6 from `begin`, (d, r), an orthonormal basis of the random Omega, which serves as well: same span.

    The paper's hub takes a QR of Y = A A^T A Omega, one line per row. Sums do the same: P = G Omega, then W = G Q0 with
    Q0 = orthonormal(P). Proof, with G = A^T A and C = Q0^T W. As P and Q0 span the same, Y = A P and A Q0 span the same, and
    their orthonormal basis Q has Q Q^T = A Q0 (Q0^T A^T A Q0)^+ Q0^T A^T = A Q0 C^+ Q0^T A^T. So B = Q^T A, of which the paper
    takes the SVD, has B^T B = A^T Q Q^T A = W C^+ W^T = F F^T for C = E diag(c) E^T and F = W E c^(-1/2):
    the right singular vectors and the singular values of B are the left ones and those of F.

    `randomised_width` is the paper's r. There is no private form: its many columns drown in noise.

    >>> from eigenveil.privacy import Exact
    >>> from eigenveil.protocols import run_pooled
    >>> from eigenveil.data.rows import DenseRows
    >>> begin = orthonormal(np.random.default_rng(0).standard_normal((3, 2)))
    >>> task = RandomisedSvd(Domain(dim=3, radius=9.0), Neighbours.ADD_REMOVE, begin, rank=1)
    >>> run_pooled(task, DenseRows(np.outer([3.0, 4.0], [1.0, 0.0, 0.0])), Exact(because="doctest")).values.round(9).tolist()
    [5.0]
    """

    domain: Domain
    neighbours: Neighbours
    begin: Array
    rank: int

    def __post_init__(self) -> None:
        require_contraction(self.begin, dim=self.domain.dim)
        width = self.begin.shape[1]
        require(1 <= self.rank <= width, f"rank must lie in 1..{width}, the width, got {self.rank}")

    def start(self) -> RandomisedState:
        """The random basis."""
        return RandomisedState(0, self.begin)

    def ask(self, state: RandomisedState) -> Question:
        """For the product with the basis."""
        return Question(state.round, (state.basis,))

    def require_question(self, question: Question) -> None:
        """A product with a basis as wide as the first."""
        width = self.begin.shape[1]
        self.require_product(question, steps=_ROUNDS, least=width, most=width)

    def label(self, question: Question) -> str:
        """One line per round."""
        return f"randomised product {question.step + 1} of {_ROUNDS}"

    def share(self, question: Question) -> float:
        """Equal ones."""
        return 1.0 / _ROUNDS

    def update(self, state: RandomisedState, released: Array) -> RandomisedState:
        """The range of the first product, then the answer from the second."""
        if state.round == 0:
            return RandomisedState(1, orthonormal(released))
        return RandomisedState(_ROUNDS, state.basis, _whitened(state.basis, released, rank=self.rank))

    def result(self, state: RandomisedState) -> Subspace | None:
        """There after two rounds."""
        return state.space

    def estimate(self, state: RandomisedState) -> Subspace | None:
        """The result."""
        return state.space


def randomised_width(dim: int, *, rank: int) -> int:
    """How many random columns FedPower Alg. 6 takes: k + floor((d - k) / 4).

    >>> randomised_width(100, rank=5)
    28
    """
    require(1 <= rank <= dim, f"rank must lie in 1..{dim}, got {rank}")
    return rank + (dim - rank) // 4


def _whitened(basis: Array, product: Array, *, rank: int) -> Subspace:
    """The top of W C^+ W^T for W = `product` and C = `basis`^T W, both (d, r), in data scale: the proof is above."""
    inner = basis.T @ product
    sizes, vectors = np.linalg.eigh((inner + inner.T) / 2)
    real = sizes > _NOTHING * max(float(sizes[-1]), 0.0)
    # Directions of rounding, or of noise, become columns of zeros, and can be nobody's leading ones.
    scales = np.where(real, 1.0 / np.sqrt(np.where(real, sizes, 1.0)), 0.0)
    factor = product @ (vectors * scales)
    frame = orthonormal(factor)
    round_, values, _ = np.linalg.svd(frame.T @ factor)
    return Subspace(signed(frame @ round_[:, :rank]), values[:rank])
