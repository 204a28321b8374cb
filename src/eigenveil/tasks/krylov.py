"""`KrylovSum`: the same product per round as the power method, but the hub uses all of them.

The blocks that were multiplied span a Krylov space. The best directions in all of it (Ritz vectors) converge far sooner than
those of the last block, and without an error floor. Traffic and the sites' work are those of the power method.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from eigenveil.core.domain import Region
from eigenveil.core.sums import require_contraction
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, orthonormal, signed
from eigenveil.linalg.blas import blas_threads
from eigenveil.tasks.base import Question
from eigenveil.tasks.products import ProductTask, require_shares

__all__ = ["KrylovState", "KrylovSum", "tie_at"]

# Both are relative to the largest Ritz value. Below the first, a direction of the residual is rounding noise. Below the second,
# so is the residual of the leading vectors, where values tie and there is no gap to compare it with.
_DROPPED, _ROUNDING = 1e-12, 1e-13
# Residuals this small that three rounds have not halved will not become smaller.
_FLOOR, _IN_VAIN = 1e-11, 3
# Two values count as equal if they differ by no more than this, relative to themselves or to the largest.
_TIED, _TOLD_APART = 1e-10, 1e-14
# What rounding of a product hides, relative to the largest value; and a sine that is good enough.
_HIDDEN, _GOOD = 1e-15, 1e-6
# If the next block overlaps those before it by more than this, it is orthogonalised again.
_LEAN = 1e-14
# How much of the first block is mixed into a restart.
_FRESH = 0.01
_ORTHONORMAL = 1e-8


@final
@dataclass(frozen=True, slots=True, eq=False)
class KrylovState:
    """The public state: G Q = Q H + R E^T for the blocks Q multiplied so far, where R is the part outside their span.

    Q is `span`, (d, m), and H is `small`, (m, m). The orthonormal basis of R is `basis`, (d, p): the next block to multiply. It
    has no column if Q spans an invariant space. The Ritz values are `values`, (m,), largest first. The spectral norm of R on the
    leading Ritz vectors is `residual`, and `in_vain` counts the rounds in which it has not halved. Those vectors, in data scale,
    are `space`.
    """

    round: int
    span: Array
    small: Array
    basis: Array
    values: Array
    residual: float
    space: Subspace | None
    in_vain: int = 0


@final
@dataclass(frozen=True, slots=True, eq=False)
class KrylovSum(ProductTask[KrylovState]):
    """Block Lanczos with full reorthogonalisation from the orthonormal `begin`, (d, w), for the `rank` <= w leading directions.

    Golub and Van Loan (2013), section 10.3.6. The start `begin` must be random, because a start inside an invariant space never
    leaves it. There are at most `rounds` products. There are fewer if the span is invariant or the residual is rounding. With a
    `tolerance`, the task also stops when residual over gap is no larger than that. By Davis and Kahan (1970) this ratio estimates
    the largest sine to the true space. Without `shares`, all rounds get the same part of the budget.

    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.protocols import run_pooled
    >>> from eigenveil.data.rows import DenseRows
    >>> begin = orthonormal(np.random.default_rng(0).standard_normal((6, 2)))
    >>> task = KrylovSum(Domain(dim=6, radius=np.inf), Neighbours.ADD_REMOVE, begin, rounds=6, rank=1)
    >>> run_pooled(task, DenseRows(np.diag([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])), Exact(because="doctest")).values.round(9).tolist()
    [6.0]
    """

    domain: Region
    neighbours: Neighbours
    begin: Array
    rounds: int
    rank: int
    tolerance: float = 0.0
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require_contraction(self.begin, dim=self.domain.dim)
        width = self.begin.shape[1]
        # H = Q^T G Q and its Ritz values mean something only for an orthonormal Q.
        gap = float(np.abs(self.begin.T @ self.begin - np.eye(width)).max())
        require(gap < _ORTHONORMAL, f"begin must be orthonormal, but begin.T @ begin is {gap:.1e} off the identity")
        require(1 <= self.rank <= width, f"rank must lie in 1..{width}, the width, got {self.rank}")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}")
        require(0 <= self.tolerance < 1, f"tolerance must lie in [0, 1), got {self.tolerance}")
        if self.shares:
            require(
                len(self.shares) == self.rounds, f"{self.rounds} rounds need as many shares, got {len(self.shares)}"
            )
            require_shares(self.shares)

    def start(self) -> KrylovState:
        """Nothing multiplied yet."""
        return self._starting(self.begin)

    def ask(self, state: KrylovState) -> Question:
        """For the product with the next block."""
        return Question(state.round, (state.basis,))

    def require_question(self, question: Question) -> None:
        """A product with a basis no wider than the first: dependent directions are dropped."""
        width = self.begin.shape[1]
        self.require_product(question, steps=self.rounds, least=1, most=width)

    def label(self, question: Question) -> str:
        """One entry per round."""
        return f"krylov product {question.step + 1} of {self.rounds}"

    def share(self, question: Question) -> float:
        """This round's share."""
        return self.shares[question.step] if self.shares else 1.0 / self.rounds

    def update(self, state: KrylovState, released: Array) -> KrylovState:
        """One block step: H grows by Q^T Y, the part of Y outside the span becomes the next block, Ritz vectors are updated."""
        span = np.hstack([state.span, state.basis])
        done = state.span.shape[1]
        inner = span.T @ released
        # Rounding leaves it unsymmetric, and `eigh` would read one triangle only.
        corner = (inner[done:] + inner[done:].T) / 2
        small = np.block([[state.small, inner[:done]], [inner[:done].T, corner]])
        # Small eigenproblems are solved on one thread: starting more costs more than it saves.
        with blas_threads(1):
            values, rotation = np.linalg.eigh(small)
        values, rotation = values[::-1], rotation[:, ::-1]
        # Against the whole span, and again in `_next_block`: a three-term recurrence or a single pass fails.
        rest: Array = span @ inner
        np.subtract(released, rest, out=rest)
        basis, link = _next_block(span, rest, floor=_DROPPED * float(np.abs(values).max()))
        # By G Q = Q H + R E^T, a Ritz vector leaves the span only through its part in the last block.
        leaving = link @ rotation[done:, : self.rank]
        residual = float(np.linalg.norm(leaving, 2)) if leaving.size else 0.0
        stuck = 2 * residual > state.residual and residual <= _FLOOR * float(values[0])
        return KrylovState(
            state.round + 1,
            span,
            small,
            basis,
            values,
            residual,
            _data_scale(span, values, rotation, rank=self.rank),
            state.in_vain + 1 if stuck else 0,
        )

    def result(self, state: KrylovState) -> Subspace | None:
        """The leading Ritz vectors, once all rounds are used or more of them would not help."""
        over = state.round == self.rounds or state.in_vain >= _IN_VAIN
        return state.space if over or self.converged(state) else None

    def estimate(self, state: KrylovState) -> Subspace | None:
        """The leading Ritz vectors so far."""
        return state.space

    def converged(self, state: KrylovState) -> bool:
        """Whether the answer is within the tolerance, or as good as rounding allows where values tie."""
        if state.space is None:
            return False
        if state.basis.shape[1] == 0:
            return True
        # There is no next value yet, and so no gap to compare the residual with.
        if len(state.values) == self.rank:
            return state.residual <= _ROUNDING * float(state.values[0])
        gap = float(state.values[self.rank - 1] - state.values[self.rank])
        if tie_at(state.values, rank=self.rank):
            return state.residual <= _ROUNDING * float(state.values[0])
        return state.residual <= max(self.tolerance, _TOLD_APART) * gap

    def at_rest(self, state: KrylovState) -> bool | None:
        """Whether it has converged, and rounding of the largest value does not hide the difference."""
        if not self.converged(state):
            return False
        if len(state.values) == self.rank or tie_at(state.values, rank=self.rank):
            return True
        gap = float(state.values[self.rank - 1] - state.values[self.rank])
        return _HIDDEN * float(state.values[0]) <= max(self.tolerance, _GOOD) * gap

    def tied(self, state: KrylovState) -> bool | None:
        """Whether eigenvalues tie at the rank, so that the answer, though found, is not unique.

        One case is rows with fewer than `rank` directions: all others tie at zero. A block wider than the rank sees every tie. A
        block of exactly that width can miss copies of the largest value. The exception is a first product that shows a single
        value: if a random block is invariant at once, all directions are alike.
        """
        if not self.converged(state) or self.rank == self.domain.dim:
            return False
        if len(state.values) == self.rank:
            return bool(state.basis.shape[1] == 0)
        return tie_at(state.values, rank=self.rank)

    def without(self, state: KrylovState) -> KrylovState:
        """A new start from the Ritz vectors, with rounds counted from zero: H contains products with rows that have left.

        A little of `begin` is mixed in, because the start might lie in a space that only the lost rows spanned.
        """
        if state.space is None:
            return state
        width = self.begin.shape[1]
        _, rotation = np.linalg.eigh(state.small)
        return self._starting(orthonormal(state.span @ rotation[:, ::-1][:, :width] + _FRESH * self.begin))

    def _starting(self, basis: Array) -> KrylovState:
        return KrylovState(0, np.empty((self.domain.dim, 0)), np.empty((0, 0)), basis, np.empty(0), np.inf, None)


def tie_at(values: Array, *, rank: int) -> bool:
    """Whether the eigenvalues `rank` and `rank` + 1 of `values`, largest first, cannot be told apart.

    >>> tie_at(np.array([1e10, 1.0, 0.25]), rank=2), tie_at(np.array([5.0, 1.0, 1.0]), rank=2)
    (False, True)
    """
    gap = float(values[rank - 1] - values[rank])
    return gap <= max(_TIED * float(values[rank - 1]), _TOLD_APART * float(values[0]))


def _next_block(span: Array, rest: Array, *, floor: float) -> tuple[Array, Array]:
    """An orthonormal basis W, (d, p), of a residual `rest`, (d, q), outside `span`, (d, m), and W^T rest, (p, q).

    Directions of `rest` below `floor` are rounding noise and dropped. The others are normalised first and then orthogonalised
    against the span a second time. In the other order, rounding errors would be scaled up with small directions.
    """
    room = span.shape[0] - span.shape[1]
    if room == 0:
        return np.empty((span.shape[0], 0)), np.empty((0, rest.shape[1]))
    frame = orthonormal(rest)
    link: Array = frame.T @ rest
    rotation, sizes, across = np.linalg.svd(link)
    kept = min(room, int((sizes > floor).sum()))
    if kept < len(sizes):
        frame, link = frame @ rotation[:, :kept], sizes[:kept, None] * across[:kept]
    lean = span.T @ frame
    if np.abs(lean).max(initial=0.0) > _LEAN:
        frame = orthonormal(frame - span @ lean)
    return frame, link


def _data_scale(span: Array, values: Array, rotation: Array, *, rank: int) -> Subspace:
    """The leading Ritz vectors, with the roots of their values; zero where noise or rounding made a value negative."""
    return Subspace(signed(span @ rotation[:, :rank]), np.sqrt(np.maximum(values[:rank], 0.0)))
