"""Segments: one component after another by power steps, each from a hidden random start.

D-DP-PM Alg. 1 for peers without a hub, made private in the worst case. Each person has one number, their score, which stays with
their peer. Peers add up d numbers per round. Three things differ from the paper. The sum itself is released through a mechanism:
without noise on it, a row that alone spans a direction would be revealed. Scores are bounded, at the start by clipping. Released
directions are projected out, because the published deflation divides by a private norm and can take rows out of their ball.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import SHIFT, Domain
from eigenveil.core.exact import minus_outer
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import LARGEST_SCALE, Noise, RoundedGaussian
from eigenveil.core.rows import Block, Rows, block_size
from eigenveil.core.sums import CONTRACTION, require_contraction
from eigenveil.core.unit import Neighbours
from eigenveil.core.whole import Total
from eigenveil.data.rows import Symmetric
from eigenveil.errors import require, require_param
from eigenveil.linalg import Array, Subspace, norm_edge, orthonormal, signed, spiked_edge
from eigenveil.methods.base import (
    TOLERANCE,
    WORKING,
    Components,
    Method,
    MethodPlan,
    PlanRequest,
    ProductMethod,
    Scene,
    TaskContext,
    block_norm,
    gaussian,
    geometric_shares,
    refuse_oversample,
    require_shares,
    rows_of,
)
from eigenveil.privacy.floating import dense, sparse
from eigenveil.privacy.sums import bounded_gram_times
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.base import Question, SumTask, require_step

__all__ = ["METHOD", "Segments", "SegmentsState"]

# Bits of a hidden score. The grid of rows is finer than for products by the second number, so that rows of people with many rows
# do not round to zero. An entry of a row then has 27 bits, and 2^10 rows times scores add up without rounding.
_SCORE_BITS, _FINER, _ROW_BITS, _AT_ONCE = 16, 2.0**-10, 27, 1 << 10
# How far the directions found so far may be from orthonormal when another party sends them.
_ORTHONORMAL = 1e-8
# A product this much smaller than the largest is rounding: all rows lie in the directions already found.
_NOTHING_LEFT = 1e-14
# Without noise: the most products per component. With noise: the fewest and the most products that are planned.
_MOST_PRODUCTS: Final = 200
_FEWEST_NOISY, _MOST_NOISY = 4, 12
# The start's part of its component's share. Even if noise drowns the start it is still random, and nothing more is
# needed.
_START: Final = 0.02
# A start's scores are clipped at this many deviations. It loses 8% of their variance; the noise is a third less than
# at three.
_CLIP: Final = 2.0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SegmentsState:
    """The public state."""

    step: int  # The next one.
    basis: Array  # Finished directions, (d, l).
    values: Array  # Their values, (l,).
    current: Array  # The direction in work, (d, 1); (d, 0) before a component's start.
    value: float = 0.0  # Its value, as far as it is known.
    largest: float = 0.0  # The largest norm of a product so far.
    movement: float | None = None  # The largest sine by which a finished component moved in its last round.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Segments(SumTask[SegmentsState, Subspace]):
    """For each of `rank` components: a start z = sum_j x_j q_j from hidden scores q_j, then `rounds` - 1 products (Alg. 1).

    Write V for the directions found, P = I - V V^T, and x_j for rows in their ball of radius B. At the start
    q_j = clip(N(0, deviation^2), +-clip). The peer with the row draws it from its own `noise`, as a whole number of public steps.
    After that, with the released z of the round before, v = P z / ||P z||, q_j = x_j . P v and z = sum_j x_j q_j = G P v.
    Directions already found are projected out of z after its release (P z), and not out of the rows. Thus z is an exact sum of
    whole numbers, and P is applied to public numbers. Dividing by the norm of P z replaces the paper's fixed alpha: z is public,
    so its norm is too, and a guess would only let scores drift. Scores after the start need no clipping, as
    |q_j| <= ||x_j|| ||P|| ||v|| <= B. A peer's own scores are its segment of the left singular vector. It never sends them.

    Sensitivity. P is a contraction wherever ||V||_2^2 <= 2, since its eigenvalues are 1 - s^2 for the singular values s of V.
    A product moves by at most ||C P v|| <= ||C||_F ||v||, where C is one person's change of the Gram matrix
    (`gram_times_sensitivity`). At the start, the scores of all other people have the same law in both tables and are independent
    of everything else: give them the same values in both. Then the sum moves by what the one person adds. For their m rows, of
    weight 1/m each, || sum (1/m) x q || <= B clip. Replacing a person moves it by at most 2 B clip. Given the others' scores, the
    release is a Gaussian mechanism of that sensitivity, and forgetting them is post-processing. The law of the scores does not
    matter for this.

    With a `tolerance` a component is done when its direction has moved by no more than that, as a sine, since the round before.
    There is one share for each round of each component. Shares of rounds that were not needed stay unspent.

    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.data.rows import DenseRows
    >>> exact, rows = Exact(because="doctest"), DenseRows(np.diag([3.0, 2.0, 1.0]))
    >>> domain, near, noise = Domain(dim=3, radius=9.0), Neighbours.ADD_REMOVE, Noise.seeded(1)
    >>> task = Segments(
    ...     domain=domain,
    ...     neighbours=near,
    ...     rank=1,
    ...     rounds=40,
    ...     shares=(1 / 40,) * 40,
    ...     noise=noise,
    ...     deviation=0.5,
    ...     clip=1.0,
    ... )
    >>> state = task.start()
    >>> while task.result(state) is None:
    ...     state = task.advance(state, task.work(task.ask(state), rows, exact), exact)
    >>> task.result(state).values.round(9).tolist(), np.abs(task.result(state).basis).round(9).ravel().tolist()
    ([3.0], [1.0, 0.0, 0.0])
    """

    domain: Domain
    neighbours: Neighbours
    rank: int
    rounds: int
    shares: tuple[float, ...]
    noise: Noise
    deviation: float
    clip: float
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        require(1 <= self.rank <= self.domain.dim, f"rank must lie in 1..{self.domain.dim}, got {self.rank}")
        require(self.rounds >= 2, f"rounds must be at least 2, a start and a product, got {self.rounds}")
        steps = self.rank * self.rounds
        require(
            len(self.shares) == steps,
            f"there must be one share for each round of each component, {steps}, got {len(self.shares)}",
        )
        require_shares(self.shares)
        for name in ("deviation", "clip"):
            size = getattr(self, name)
            require(0 < size < math.inf, f"{name} must be positive and finite, got {size}")
        require(0 <= self.tolerance < 1, f"tolerance must lie in [0, 1), got {self.tolerance}")
        require(
            self.neighbours.protects_a_person,
            "a hidden start protects people only: neighbours must be add-remove, zero-out or replace-one, got "
            f"{self.neighbours.value!r}",
        )

    def start(self) -> SegmentsState:
        nothing = np.zeros((self.domain.dim, 0))
        return SegmentsState(step=0, basis=nothing, values=np.zeros(0), current=nothing)

    def ask(self, state: SegmentsState) -> Question:
        """For the start of a component, or for the product with the current direction."""
        return Question(state.step, (state.basis, state.current))

    def require_question(self, question: Question) -> None:
        """The directions found before this step, orthonormal, and one direction to multiply, of norm at most one."""
        require_step(question, steps=self.rank * self.rounds, arrays=2)
        component, round_ = divmod(question.step, self.rounds)
        for name, array, width in zip(("found", "current"), question.arrays, (component, int(round_ > 0)), strict=True):
            shape = (self.domain.dim, width)
            require(array.shape == shape, f"{name} must have shape {shape} in step {question.step}, got {array.shape}")
            if width > 0:
                require_contraction(array, dim=self.domain.dim)
        basis = question.arrays[0]
        # The sensitivity needs P = I - V V^T to be a contraction, so a site checks V itself.
        gap = float(np.abs(basis.T @ basis - np.eye(component)).max(initial=0.0))
        require(gap <= _ORTHONORMAL, f"found must be orthonormal, but found.T @ found is {gap:.1e} off the identity")

    def private(self, question: Question, rows: Rows) -> Bounded:
        """The sum over these rows, (d, 1): of rows times hidden scores at a start, and of rows times their scores after it."""
        basis, current = question.arrays
        if current.shape[1] > 0:
            # Public vectors are projected and never the rows: a deflated row as published can leave its ball.
            return bounded_gram_times(rows, basis=_off(current, basis), domain=self.domain, neighbours=self.neighbours)
        require(
            not isinstance(rows, Symmetric),
            "a Symmetric has no rows, so it cannot take part in a hidden start; pass rows instead",
        )
        unit = self.domain.unit
        summed = _FloatStart(self.domain) if unit is None else _WholeStart(self.domain, unit, sparse=rows.sparse)
        for block in rows.blocks(block_size(rows)):
            # Scores are drawn here and not kept.
            summed.take(block, self._scores(len(block)))
        return Bounded((summed.value() * self._score_unit)[:, None], self.sensitivity(question))

    @property
    def _score_unit(self) -> float:
        """The unit of hidden scores: a power of two, such that the clip is 2^15 to 2^16 of them."""
        return 2.0 ** (math.frexp(self.clip)[1] - _SCORE_BITS)

    def _scores(self, count: int) -> NDArray[np.int64]:
        """Hidden scores, (count,), in whole numbers, clipped."""
        # Rounded down, so that no score exceeds the clip that the sensitivity is computed from.
        max_score = math.floor(self.clip / self._score_unit)
        # With a deviation that far beyond the clip, every score is plus or minus the clip anyway.
        return np.clip(self._drawn(count), -max_score, max_score)

    def _drawn(self, count: int) -> NDArray[np.int64]:
        """Scores before they are clipped, (count,), drawn exactly. The laws put scores of their own here."""
        return RoundedGaussian(min(self.deviation / self._score_unit, LARGEST_SCALE)).draw(self.noise, count)

    def sensitivity(self, question: Question) -> float:
        """B clip or 2 B clip at a start, and that of one product after it."""
        current = question.arrays[1]
        if current.shape[1] == 0:
            return self.clip * self.domain.sum_sensitivity(self.neighbours)
        return self.domain.gram_times_sensitivity(self.neighbours, basis=current, basis_norm=CONTRACTION)

    def shape(self, question: Question) -> tuple[int, ...]:
        return self.domain.dim, 1

    def label(self, question: Question) -> str:
        """One entry per round."""
        component, round_ = divmod(question.step, self.rounds)
        return f"component {component + 1}, round {round_ + 1} of {self.rounds}"

    def share(self, question: Question) -> float:
        """This round's share."""
        return self.shares[question.step]

    def update(self, state: SegmentsState, released: Array) -> SegmentsState:
        """The direction of the released sum is multiplied next; after its last round it counts as found."""
        component, round_ = divmod(state.step, self.rounds)
        basis, step = state.basis, state.step + 1
        if round_ == 0:
            # No product is known yet to compare with, so only an exact zero counts as nothing.
            direction = _direction(released, basis, min_norm=0.0)
            return replace(state, step=step, current=direction, value=0.0)
        largest = max(state.largest, _norm(_off(released, basis)))
        direction = _direction(released, basis, min_norm=_NOTHING_LEFT * largest)
        # v^T G v for the direction that was multiplied; noise can make it negative.
        value = math.sqrt(max(float(np.vdot(state.current, released)), 0.0))
        moved = _norm(_off(direction, state.current))
        still = self.tolerance > 0 and moved <= self.tolerance
        if round_ < self.rounds - 1 and not still:
            return replace(state, step=step, current=direction, value=value, largest=largest)
        return SegmentsState(
            # Skips the rounds that were not needed: a step always has the same component and the same share.
            step=(component + 1) * self.rounds,
            basis=np.hstack([basis, direction]),
            values=np.append(state.values, value),
            current=np.zeros((self.domain.dim, 0)),
            largest=largest,
            movement=max(moved, state.movement or 0.0),
        )

    def result(self, state: SegmentsState) -> Subspace | None:
        """All directions by decreasing value, after the last one was found."""
        return _ordered(state.basis, state.values) if state.step == self.rank * self.rounds else None

    def estimate(self, state: SegmentsState) -> Subspace | None:
        """The directions found so far and the current one, whose value is zero until it has been multiplied."""
        directions = np.hstack([state.basis, state.current])
        if directions.shape[1] == 0:
            return None
        return _ordered(directions, np.append(state.values, [state.value] * state.current.shape[1]))

    def has_converged(self, state: SegmentsState) -> bool | None:
        """Whether no finished component moved by more than the tolerance in its last round."""
        return state.movement is not None and state.movement <= self.tolerance if self.tolerance > 0 else None


@final
class _WholeStart:
    """sum_j x_j q_j over rows on their grid and whole scores: exact, and rounded once at the end. Changes in place.

    Entries of rows have 27 bits and scores 16, so 2^10 products add up in float64 without rounding. Sparse rows around a center
    are whole rows minus s_j times the center. The total to subtract, sum_j s_j q_j, is a whole number too.
    """

    def __init__(self, domain: Domain, unit: float, *, sparse: bool) -> None:
        center = domain.shifted_center if sparse else None
        self._domain, self._unit, self._center = domain, unit * _FINER, center
        # Dense rows are inside their ball. Stored entries of sparse rows include the center, which may be a hundred radii away.
        far = 0.0 if center is None else float(np.abs(center).max())
        reach = 1 << _ROW_BITS if center is None else math.ceil((domain.radius + far) / self._unit) + 1
        each = reach << _SCORE_BITS
        self._most = (1 << 62) // each
        self._total, self._shifts = Total.zeros((domain.dim,), each=each), 0

    def take(self, block: Block, scores: NDArray[np.int64]) -> None:
        if not block.sparse:
            for start in range(0, len(block), _AT_ONCE):
                rows = self._domain.whole(block.piece(start, _AT_ONCE), unit=self._unit)
                self._total.add(scores[start : start + _AT_ONCE].astype(np.float64) @ rows, len(rows))
            return
        part = self._domain.to_grid_sparse(block, unit=self._unit)
        stored, shift = part.rows.astype(np.int64), part.shift.astype(np.int64)
        # Products of this many rows and scores add up below 2^62, so int64 does not overflow.
        for start in range(0, len(block), self._most):
            some = slice(start, start + self._most)
            self._total.add(stored[some].T @ scores[some], len(scores[some]))
            self._shifts += int(shift[some] @ scores[some])

    def value(self) -> Array:
        """The sum, (d,)."""
        if self._center is None or self._shifts == 0:
            return self._total.value(self._unit)
        # Both may be large and nearly equal, so the difference is taken with twice the digits.
        high = float(self._shifts)
        taken = (np.array([high]) * SHIFT, np.array([float(self._shifts - int(high))]) * SHIFT)
        hi, lo = self._total.pair()
        total = (hi[None, :] * self._unit, lo[None, :] * self._unit)
        exact = minus_outer(total, taken, self._center)
        return np.asarray((exact[0] + exact[1])[0])


@final
class _FloatStart:
    """The same sum in floating point, where no privacy is claimed. Changes in place."""

    def __init__(self, domain: Domain) -> None:
        self._domain, self._total = domain, np.zeros(domain.dim)

    def take(self, block: Block, scores: NDArray[np.int64]) -> None:
        center = self._domain.shifted_center
        if not block.sparse:
            self._total += scores @ dense(self._domain, block)
            return
        part = sparse(self._domain, block)
        self._total += part.rows.T @ scores
        if center is not None:
            self._total -= float(part.shift @ scores) * center

    def value(self) -> Array:
        """The sum, (d,)."""
        return self._total


def _off(vectors: Array, basis: Array) -> Array:
    """`vectors`, (d, p), with the span of `basis`, (d, l), projected out, twice: once leaves rounding errors."""
    once = vectors - basis @ (basis.T @ vectors)
    twice: Array = once - basis @ (basis.T @ once)
    return twice


def _norm(vector: Array) -> float:
    """The Euclidean norm, relative to the largest entry, so that squares of tiny entries do not underflow."""
    largest = float(np.abs(vector).max(initial=0.0))
    return largest * float(np.linalg.norm(vector / largest)) if largest > 0 else 0.0


def _direction(total: Array, basis: Array, *, min_norm: float) -> Array:
    """The unit vector along `total`, (d, 1), orthogonal to `basis`, (d, l < d), or a fixed one where at most `min_norm` is left.

    The fixed one is the axis furthest from the span of `basis`; its squared distance is at least 1 - l/d. Distances are rounded
    before they are compared, so that peers whose numbers differ by rounding choose the same axis.
    """
    rest = _off(total, basis)
    norm = _norm(rest)
    if norm <= min_norm:
        near = np.einsum("ij,ij->i", basis, basis).round(6)
        rest, norm = _off(np.eye(len(basis))[:, [int(near.argmin())]], basis), 1.0
    # Scaled, then projected again: a small rest of a large vector may not be orthogonal enough.
    rest = _off(rest / norm, basis)
    unit: Array = rest / _norm(rest)
    return unit


def _ordered(basis: Array, values: Array) -> Subspace:
    """Directions, (d, k), by decreasing value: with noise or slow convergence they may be found in another order."""
    order = np.argsort(-values, kind="stable")
    return Subspace(signed(orthonormal(basis[:, order])), values[order])


@final
class SegmentsMethod(Method):
    """One direction after another.

    D-DP-PM's Corollary 1 needs eigenvalues of the data, which are private, and its experiments tuned everything on the data. Here
    the spectrum is guessed instead, and scores get the deviation 1 / sqrt(people).
    """

    name = "segments"
    phrase = "one component after the other"
    places = ("peers",)
    settings = ("peers", "peers-independent")
    fixed_rounds, finds_one_by_one = None, True

    def width(self, criteria: PlanRequest) -> int:
        refuse_oversample(self, criteria)
        return 1

    def plan(self, criteria: PlanRequest, reason: str) -> MethodPlan:
        """`criteria.rounds` is the number of products per component after its start, by default 4 to 12 under noise.

        Each product gets only a part of the budget. Without noise products continue until a tolerance is met.

        Components share the budget in proportion to 1 / sqrt(eigenvalue), so as sqrt(l) for the l-th. This loses the least
        variance. Proof:
        - Noise of size s on d numbers rotates a direction of eigenvalue v by a sine of about s sqrt(d) / v.
        - That loses v (s sqrt(d) / v)^2 = d s^2 / v of variance, and s^2 is proportional to 1 / share.
        - Under a fixed sum of shares, sum 1 / (share_l v_l) is least at share_l proportional to v_l^(-1/2).
        Within a component each product gets more than the one before, as in the power method.
        """
        budget, rounds = criteria.budget, criteria.rounds
        require_param(rounds is None or rounds >= 1, "{rounds} must be at least 1, got {@rounds}", rounds=rounds)
        products = rounds
        if products is None:
            products = _MOST_PRODUCTS if budget is None else _products(criteria.eigenvalues, criteria.rank, budget)
        # Without a budget shares carry no noise, and the first of hundreds of growing shares would underflow to nothing.
        growth = 1.0 if budget is None else ProductMethod.growth
        within = np.array([_START, *((1 - _START) * np.array(geometric_shares(products, growth=growth)))])
        raw = np.outer(_across(criteria.eigenvalues[: criteria.rank]), within).ravel()
        shares = tuple((raw / raw.sum()).tolist())
        usual = TOLERANCE if budget is None else 0.0
        return MethodPlan(
            method=self.name,
            width=self.width(criteria),
            # One more for the start.
            rounds=products + 1,
            shares=shares,
            tolerance=usual if criteria.tolerance is None else criteria.tolerance,
            reason=_reason(criteria, products, shares[-1]),
            people=criteria.people,
        )

    def build_task(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> Components:
        """The task of one peer, whose hidden scores no other peer knows."""
        assert context.hidden is not None
        deviation = 1.0 / math.sqrt(plan.people)
        return partial(
            Segments,
            neighbours=context.neighbours,
            rank=context.rank,
            rounds=plan.rounds,
            shares=plan.shares,
            noise=context.hidden,
            deviation=deviation,
            clip=_CLIP * deviation,
            tolerance=plan.tolerance,
        )

    def last_share(self, plan: MethodPlan) -> float:
        """The last product of each component is its answer. The smallest share among these has the most noise."""
        return min(plan.shares[plan.rounds - 1 :: plan.rounds])

    def message_size(self, dim: int, plan: MethodPlan) -> int:
        return dim

    def longest_part(self, dim: int, plan: MethodPlan) -> int:
        """All directions with their values, at the end."""
        return (dim + 1) * _rank(plan) + 1

    def memory(self, dim: int, plan: MethodPlan) -> int:
        """A few columns for each direction."""
        return WORKING * dim * (_rank(plan) + 1)

    def entry_noise(self, plan: MethodPlan) -> float:
        return float(self.last_share(plan) ** -0.5)

    def noise_norm(self, dim: int, plan: MethodPlan, *, sites: int) -> float:
        return block_norm(dim, 1) / math.sqrt(self.last_share(plan))

    def noise_floor(self, dim: int, plan: MethodPlan, *, scale: float, spike: float, sites: int) -> float:
        """Each component is the norm of its own last product."""
        entry = scale / math.sqrt(self.last_share(plan))
        return entry * spiked_edge(norm_edge(dim, tries=_rank(plan)), spike=spike / entry, row=(dim + 1) / 2)

    def disclosure(self, width: int, *, role: str) -> str:
        """Products, one direction at a time."""
        return "products of the rows with one direction at a time"

    def simulate(self, plan: MethodPlan, scene: Scene, *, sites: int) -> Array:
        """The directions, (d, k), that peers would find one after another.

        A start is z = sum_j x_j q_j with hidden scores q_j of many people. It is normal, with covariance (variance of a
        score) times the Gram matrix. The d rows here give the same law if their scores are normal and not clipped. The
        clip is multiplied by the radius that these rows of larger norm need, which puts it out of reach. The noise at a
        start is then clip * radius * multiplier / radius^2 with a clip of radius times the true one: that of rows in the
        unit ball.
        """
        rows, radius = rows_of(scene)
        # The hidden scores must not share a stream with the noise below.
        hidden = Noise.seeded((scene.seed << 8) + 1)
        deviation = 1.0 / math.sqrt(plan.people)
        task = Segments(
            domain=Domain(dim=scene.dim, radius=radius, claimed=False),
            neighbours=scene.neighbours,
            rank=scene.rank,
            rounds=plan.rounds,
            shares=plan.shares,
            noise=hidden,
            deviation=deviation * math.sqrt(_clipped_variance(_CLIP)),
            clip=_CLIP * deviation * radius,
            tolerance=plan.tolerance,
        )
        return run_pooled(task, rows, gaussian(scene.multiplier / radius**2, Noise.seeded(scene.seed))).basis


METHOD: Final = SegmentsMethod()


def _rank(plan: MethodPlan) -> int:
    """How many directions a plan finds."""
    return len(plan.shares) // plan.rounds


def _products(values: Array, rank: int, budget: Budget) -> int:
    """Two more products than it takes to bring a random start down to the noise.

    Each product halves the error under the guessed spectrum. With growing shares the last product gets much the same
    share however many there are. Extra products cost little, while too few cost much if the eigenvalues are closer
    together than guessed.
    """
    share = (1 - 1 / ProductMethod.growth) * float(_across(values[:rank])[-1])
    noise = math.sqrt(len(values) / share) / budget.mu / float(values[rank - 1])
    return min(_MOST_NOISY, max(_FEWEST_NOISY, 2 + math.ceil(-math.log2(noise))))


def _across(values: Array) -> Array:
    """Each component's share of the budget, (rank,)."""
    across: Array = values**-0.5 / (values**-0.5).sum()
    return across


def _reason(criteria: PlanRequest, products: int, share: float) -> str:
    """Why this many products, and how the last component compares with the noise under the guessed spectrum."""
    budget, rank, values = criteria.budget, criteria.rank, criteria.eigenvalues
    if budget is None:
        why = "as requested" if criteria.rounds is not None else "enough for eigenvalues a tenth apart"
        return f"up to {products} products per component, {why}; each stops when it has converged"
    why = (
        "as requested"
        if criteria.rounds is not None
        else "more than it takes to bring a start down to the noise if eigenvalues fall like 1, 1/2, 1/3"
    )
    noise = math.sqrt(len(values) / share) / budget.mu
    side = "above" if values[rank - 1] > noise else "below"
    return (
        f"{products} products per component, {why}. In the guessed spectrum component {rank} has eigenvalue "
        f"{values[rank - 1]:.3g} row_bound^2, {side} the noise that one curator would add to its last product ({noise:.3g})"
    )


def _clipped_variance(clip: float) -> float:
    """The variance of a standard normal clipped at +-`clip`: E min(z^2, c^2)."""
    inside = math.erf(clip / math.sqrt(2))
    density = math.exp(-clip * clip / 2) / math.sqrt(2 * math.pi)
    return inside - 2 * clip * density + clip * clip * (1 - inside)
