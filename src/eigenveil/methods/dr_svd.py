"""DR-SVD of FedPower in two rounds of sums, so that no row's coordinates reach the hub. For exact runs only."""

from dataclasses import dataclass
from functools import partial
from typing import Final, final

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, orthonormal, signed
from eigenveil.methods.base import Components, Method, MethodPlan, PlanRequest, ProductMethod, ProductTask, TaskContext

__all__ = ["METHOD", "RandomisedState", "RandomisedSvd", "randomised_width"]

_ROUNDS: Final = 2
# Eigenvalues of C below this fraction of the largest are rounding.
_NOTHING = 1e-13


@final
@dataclass(frozen=True, slots=True, eq=False)
class RandomisedState:
    """The public state: rounds done, the basis to multiply next, (d, r), and the answer after the second round."""

    round: int
    basis: Array
    space: Subspace | None = None


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RandomisedSvd(ProductTask[RandomisedState]):
    """FedPower Alg. 6 from `begin`, (d, r), an orthonormal basis of the random Omega, which has the same span.

    The paper's hub takes a QR of Y = A A^T A Omega, which has one line per row. Sums give the same: P = G Omega, then W = G Q0
    with Q0 = orthonormal(P).

    Proof, with G = A^T A and C = Q0^T W. P and Q0 have the same span, so Y = A P and A Q0 do too. Their orthonormal basis Q has
    Q Q^T = A Q0 (Q0^T A^T A Q0)^+ Q0^T A^T = A Q0 C^+ Q0^T A^T. The paper takes the SVD of B = Q^T A. It satisfies
    B^T B = A^T Q Q^T A = W C^+ W^T = F F^T, for C = E diag(c) E^T and F = W E c^(-1/2). Hence the right singular vectors of B are
    the left ones of F, and the singular values are the same.

    The paper's r is `randomised_width`. There is no private form, because noise on so many columns would hide the signal.

    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.protocols.party import run_pooled
    >>> from eigenveil.data.rows import DenseRows
    >>> begin = orthonormal(np.random.default_rng(0).standard_normal((3, 2)))
    >>> task = RandomisedSvd(domain=Domain(dim=3, radius=9.0), neighbours=Neighbours.ADD_REMOVE, begin=begin, rank=1)
    >>> run_pooled(task, DenseRows(np.outer([3.0, 4.0], [1.0, 0.0, 0.0])), Exact(because="doctest")).values.round(
    ...     9
    ... ).tolist()
    [5.0]
    """

    domain: Domain
    neighbours: Neighbours
    begin: Array
    rank: int
    shares = (1 / _ROUNDS,) * _ROUNDS
    name = "randomised product"

    def __post_init__(self) -> None:
        self.require_terms()

    def start(self) -> RandomisedState:
        return RandomisedState(0, self.begin)

    def update(self, state: RandomisedState, released: Array) -> RandomisedState:
        """The range of the first product, then the answer from the second."""
        if state.round == 0:
            return RandomisedState(1, orthonormal(released))
        return RandomisedState(_ROUNDS, state.basis, _whitened(state.basis, released, rank=self.rank))

    def result(self, state: RandomisedState) -> Subspace | None:
        return state.space

    estimate = result


def randomised_width(dim: int, *, rank: int) -> int:
    """The number of random columns of FedPower Alg. 6: k + floor((d - k) / 4).

    >>> randomised_width(100, rank=5)
    28
    """
    require(1 <= rank <= dim, f"rank must lie in 1..{dim}, got {rank}")
    return rank + (dim - rank) // 4


def _whitened(basis: Array, product: Array, *, rank: int) -> Subspace:
    """The leading directions of W C^+ W^T for W = `product` and C = `basis`^T W, both (d, r), in data scale: see the proof."""
    inner = basis.T @ product
    sizes, vectors = np.linalg.eigh((inner + inner.T) / 2)
    real = sizes > _NOTHING * max(float(sizes[-1]), 0.0)
    # Directions of rounding, or of noise, become zero columns, so they cannot be leading ones.
    scales = np.where(real, 1.0 / np.sqrt(np.where(real, sizes, 1.0)), 0.0)
    factor = product @ (vectors * scales)
    frame = orthonormal(factor)
    rotation, values, _ = np.linalg.svd(frame.T @ factor)
    # The singular values of F are those of the paper's B, so they are in data scale and need no root.
    return Subspace(signed(frame @ rotation[:, :rank]), values[:rank])


@final
class RandomisedTwice(ProductMethod):
    """Two products. Noise on so many columns would hide the signal."""

    name = "dr-svd"
    phrase = "dr-svd"
    places = ("sites",)
    fixed_rounds, has_private_form = _ROUNDS, False

    def width(self, criteria: PlanRequest) -> int:
        """As in FedPower Alg. 6."""
        return criteria.wider(randomised_width(criteria.dim, rank=criteria.rank) - criteria.rank)

    def plan(self, criteria: PlanRequest, reason: str) -> MethodPlan:
        return Method.plan(self, criteria, reason)

    def build_task(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> Components:
        assert start_basis is not None
        return partial(RandomisedSvd, neighbours=context.neighbours, begin=start_basis, rank=context.rank)


METHOD: Final = RandomisedTwice()
