"""`PublishedSegments`: D-DP-PM Alg. 1 as it is printed, to reproduce the paper. It guarantees nothing to anybody.

What peers send has no noise of its own. Only the random start and the noise on scores hide a row. A row that alone spans a
direction is still revealed (`eigenveil.papers.leakage`). For real use there is `Segments`.
"""

import math
from dataclasses import dataclass, field
from typing import Self, final

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import Noise, RoundedGaussian
from eigenveil.core.rows import Rows, block_size
from eigenveil.data.rows import Symmetric
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, orthonormal, signed
from eigenveil.privacy.floating import dense, sparse
from eigenveil.tasks.base import Question, SumTask

__all__ = ["PublishedSegments", "PublishedState"]

# A repeated question may have totals that were added up, and rounded, in another order.
_SAME = 1e-6
# The step of scores is this many bits below their noise: rounding adds less than 2^-42 to its variance.
_STEP_BITS = 20


@final
@dataclass(frozen=True, slots=True, eq=False)
class PublishedState:
    """The public state: the next `step`, the last `total`, and `products`, (d, l): z = X^T q of each component, ||q|| = 1."""

    step: int
    total: Array
    products: Array


@final
@dataclass(slots=True, eq=False, kw_only=True)
class PublishedSegments(SumTask[PublishedState, Subspace]):
    """One peer's side of D-DP-PM Alg. 1. Changes in place: it keeps scores and deflated rows, so each peer has its own.

    A component takes `rounds` + 2 exchanges. In `rounds` of them the peers add up z_i = X_i^T q_i. The first q_i are
    N(0, sigma_q^2). After that q_i = alpha X_i z + p_i with p_i ~ N(0, sigma_p(t)^2), where sigma_p lists `rounds` deviations.
    Then the peers add up ||q||^2, so that step 9 can divide by it without sending scores. In the last exchange they add up
    z = X^T q, with q now of norm one.

    Step 3 prints X_i - q z_i^(T-1/2), with a z of another round and of a q of another norm. It would subtract some multiple of
    something near the component. Here it is read as X_i - q_i z^T with that last z. That is (I - q q^T) X and removes the
    component. Step 8, in which all scores go to everybody, is left to the caller: `segments` are this peer's.

    The same question gets the same answer. A peer goes through its steps once: a new run needs a new instance. Rows are clipped
    by `domain` first. The stated sensitivity is infinite, so that no mechanism can claim a guarantee.

    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.data.rows import DenseRows
    >>> exact, rows = Exact(because="doctest"), DenseRows(np.diag([3.0, 1.0]))
    >>> domain, noise = Domain(dim=2, radius=9.0), Noise.seeded(1)
    >>> peer = PublishedSegments(
    ...     domain=domain, rank=1, rounds=20, alpha=0.2, sigma_q=0.7, sigma_p=(0.0,) * 20, noise=noise
    ... )
    >>> state = peer.start()
    >>> while peer.result(state) is None:
    ...     state = peer.advance(state, peer.work(peer.ask(state), rows, exact), exact)
    >>> peer.result(state).values.round(9).tolist(), np.abs(peer.segments).round(9).ravel().tolist()
    ([3.0], [1.0, 0.0])
    """

    domain: Domain
    rank: int
    rounds: int
    alpha: float
    sigma_q: float
    sigma_p: tuple[float, ...]
    noise: Noise = field(repr=False)
    _step: int = field(init=False, repr=False, default=-1)
    _question: Question = field(init=False, repr=False, default_factory=Question)
    _answer: Array = field(init=False, repr=False, default_factory=lambda: np.zeros(0))
    _rows: Array = field(init=False, repr=False, default_factory=lambda: np.zeros((0, 0)))
    _scores: Array = field(init=False, repr=False, default_factory=lambda: np.zeros(0))
    _segments: list[Array] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        require(1 <= self.rank <= self.domain.dim, f"rank must lie in 1..{self.domain.dim}, got {self.rank}")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}")
        require(0 < self.alpha < math.inf, f"alpha must be positive and finite, got {self.alpha}")
        require(0 < self.sigma_q < math.inf, f"sigma_q must be positive and finite, got {self.sigma_q}")
        require(
            len(self.sigma_p) == self.rounds and all(0 <= sigma < math.inf for sigma in self.sigma_p),
            f"sigma_p must list {self.rounds} deviations, finite and not negative, got {self.sigma_p}",
        )

    @classmethod
    def in_ball(
        cls,
        domain: Domain,
        *,
        rank: int,
        rounds: int,
        alpha: float,
        sigma_q: float,
        sigma_p: tuple[float, ...],
        noise: Noise,
    ) -> Self:
        """The same for an `alpha` in units of 1 / radius^2, which can be chosen before the domain is known."""
        return cls(
            domain=domain,
            rank=rank,
            rounds=rounds,
            alpha=alpha / domain.radius**2,
            sigma_q=sigma_q,
            sigma_p=sigma_p,
            noise=noise,
        )

    @property
    def segments(self) -> Array:
        """This peer's part of the left singular vectors found so far, (n_i, l). Private: one number per person for each."""
        return np.stack(self._segments, axis=1) if self._segments else np.zeros((len(self._rows), 0))

    def start(self) -> PublishedState:
        """Nothing found."""
        return PublishedState(0, np.zeros(0), np.zeros((self.domain.dim, 0)))

    def ask(self, state: PublishedState) -> Question:
        """For the next step, with the total of the previous one."""
        return Question(state.step, (state.total,))

    def require_question(self, question: Question) -> None:
        """An existing step, with a total of the shape that the previous step gives."""
        steps = self.rank * self._exchanges
        require(0 <= question.step < steps, f"the question is for step {question.step} of 0 to {steps - 1}")
        expected = (0,) if question.step == 0 else self._shape(question.step - 1)
        right = len(question.arrays) == 1 and question.arrays[0].shape == expected
        require(right, f"step {question.step} must come with one total of shape {expected}")
        require(bool(np.isfinite(question.arrays[0]).all()), "a total must be finite")

    def private(self, question: Question, rows: Rows) -> Bounded:
        """This step's part. The rows are read in the first step and kept."""
        # Repeated and never drawn again: two draws for one question could be averaged.
        if question.step == self._step:
            self._require_same(question)
            # A copy, so that no caller can change the answer that is kept.
            return Bounded(self._answer.copy(), math.inf)
        require(
            question.step == self._step + 1,
            f"this peer is at step {self._step}, but the question is for step {question.step}; make a new instance for a new run",
        )
        total = question.arrays[0]
        component, exchange = divmod(question.step, self._exchanges)
        if question.step == 0:
            self._rows = self._read(rows)
        if exchange == 0:
            if component > 0:
                # Step 3, on the rows themselves: they can leave their ball, so `Segments` projects public vectors.
                self._rows -= np.outer(self._scores, total)
            self._scores = self._noisy(np.zeros(len(self._rows)), self.sigma_q)
        elif exchange <= self.rounds:
            self._scores = self._noisy(self.alpha * (self._rows @ total), self.sigma_p[exchange - 1])
        else:
            # Step 9 divides by the norm over all peers, which is private and has no noise: nothing is guaranteed.
            self._scores = self._scores / math.sqrt(total[0]) if total[0] > 0 else np.zeros(len(self._rows))
            self._segments.append(self._scores)
        if self._stage(question.step) == "length":
            self._answer = np.array([float(self._scores @ self._scores)])
        else:
            self._answer = self._rows.T @ self._scores
        self._step, self._question = question.step, question
        return Bounded(self._answer.copy(), math.inf)

    def sensitivity(self, question: Question) -> float:
        """Infinite: nothing is claimed."""
        return math.inf

    def shape(self, question: Question) -> tuple[int, ...]:
        """d numbers, or the one squared norm."""
        return self._shape(question.step)

    def label(self, question: Question) -> str:
        """One entry per exchange."""
        component, exchange = divmod(question.step, self._exchanges)
        return (
            f"component {component + 1}, {self._stage(question.step)} {exchange + 1} of {self._exchanges}, as published"
        )

    def share(self, question: Question) -> float:
        """Equal shares; no mechanism can use them."""
        return 1.0 / (self.rank * self._exchanges)

    def update(self, state: PublishedState, released: Array) -> PublishedState:
        """The next question has the total; that of a component's last exchange is also its product."""
        products = state.products
        if state.step % self._exchanges == self.rounds + 1:
            products = np.hstack([products, released[:, None]])
        return PublishedState(state.step + 1, released, products)

    def result(self, state: PublishedState) -> Subspace | None:
        """The orthonormal directions of the products, with the products' norms as values, after the last exchange."""
        return self.estimate(state) if state.step == self.rank * self._exchanges else None

    def estimate(self, state: PublishedState) -> Subspace | None:
        """The same for the finished components."""
        if state.products.shape[1] == 0:
            return None
        values = np.linalg.norm(state.products, axis=0)
        order = np.argsort(-values, kind="stable")
        values, products = values[order], state.products[:, order]
        # Householder QR completes columns of zeros, which are last, to an orthonormal basis.
        return Subspace(signed(orthonormal(products / np.where(values > 0, values, 1.0))), values)

    def _noisy(self, scores: Array, sigma: float) -> Array:
        """Scores with the paper's noise: both in whole steps of a power of two near sigma / 2^20, like all noise here."""
        if sigma == 0:
            return scores
        step = 2.0 ** (math.frexp(sigma)[1] - _STEP_BITS)
        # Without a guarantee nothing is clipped: sigma does not hide scores so large that they lose steps.
        noisy = np.rint(scores / step)
        noisy += RoundedGaussian(sigma / step).draw(self.noise, len(scores))
        return np.multiply(noisy, step)

    @property
    def _exchanges(self) -> int:
        return self.rounds + 2

    def _stage(self, step: int) -> str:
        exchange = step % self._exchanges
        return "round" if exchange < self.rounds else ("length" if exchange == self.rounds else "deflation")

    def _shape(self, step: int) -> tuple[int, ...]:
        return (1,) if self._stage(step) == "length" else (self.domain.dim,)

    def _read(self, rows: Rows) -> Array:
        """All rows in the domain, (n_i, d), dense."""
        require(not isinstance(rows, Symmetric), "a Symmetric has no rows to compute scores of; pass rows instead")
        center, parts = self.domain.shifted_center, [np.zeros((0, self.domain.dim))]
        for block in rows.blocks(block_size(rows)):
            if block.sparse:
                # `squared`: scores and sums use each row twice, so a person's weight enters as its root
                # (docs/decisions/0004).
                part = sparse(self.domain, block, squared=True)
                shift = 0.0 if center is None else np.outer(part.shift, center)
                parts.append(part.rows.toarray() - shift)
            else:
                parts.append(dense(self.domain, block, squared=True))
        return np.vstack(parts)

    def _require_same(self, question: Question) -> None:
        """Refuse a different question for the step that was answered last."""
        before, now = self._question.arrays[0], question.arrays[0]
        size = float(np.abs(before).max(initial=0.0))
        require(
            before.shape == now.shape and float(np.abs(before - now).max(initial=0.0)) <= _SAME * size,
            f"step {question.step} was answered for another total; make a new instance for a new run",
        )
