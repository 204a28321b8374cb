"""FedPower: several power steps at each site between two rounds of communication.

It saves rounds where the sites are alike, and keeps an error where they are not. It saves no budget: each local step reads the
rows, so each is released with its own noise and charged. Everything after that is post-processing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, final

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.core.rows import Rows
from eigenveil.core.sums import CONTRACTION, require_contraction
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require
from eigenveil.linalg import (
    Array,
    Subspace,
    align_procrustes,
    align_signs,
    orthonormal,
    signed,
    sines,
    singular_edge,
    spiked_edge,
)
from eigenveil.methods.base import Components, MethodPlan, PlanRequest, ProductMethod, TaskContext, require_shares
from eigenveil.privacy.sums import bounded_gram_times
from eigenveil.tasks.base import Question, Task, on_grid, require_array, require_step

__all__ = ["METHOD", "Align", "LocalPart", "LocalPower", "LocalState", "constant_steps", "decaying_steps"]

Align = Literal["procrustes", "sign", "none"]
# Two orthonormal bases are never further apart than 2 in spectral norm.
_FARTHEST = 2 + 1e-6


@final
@dataclass(frozen=True, slots=True, eq=False)
class LocalPart:
    """What a site sends."""

    product: Array  # Its last product, (d, r), aligned with the broadcast basis.
    spread: float  # How far its basis was from that one.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LocalState:
    """The public state."""

    round: int  # Rounds done.
    basis: Array  # To be broadcast, (d, r).
    space: Subspace | None = None  # The last estimate.
    movement: float = math.inf  # The largest sine between the last two estimates.
    spread: float | None = None  # The largest distance of a site from the basis.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LocalPower(Task[LocalState, LocalPart, Subspace]):
    """FedPower with full participation (Guo, Li, Chang, Wang and Zhang, Alg. 2) from the orthonormal `begin`, (d, r).

    Round t takes `steps`[t] power steps at each site and `shares`[t] of the budget, which its local steps divide equally. Sites
    align their last product with the broadcast basis by the orthogonal Procrustes solution (3.2), by signs (3.16) or not at all.
    The paper aligns with another site's iterate; we use the broadcast basis, because it is public. Without alignment the local QR
    is the plain one, whose signs are arbitrary: a positive diagonal would align signs as a side effect. Products are not
    averaged: sum_i p_i M_i is the Gram matrix over the number of rows, and that factor changes no direction.

    Noise at the hub covers one local step per round. After several local steps, no useful bound is known on what a site sends,
    and a hub whose mechanism adds noise is refused. The noise as the paper prints it is in `eigenveil.papers.baselines`.

    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.protocols.party import run_pooled
    >>> from eigenveil.data.rows import DenseRows
    >>> settings = dict(begin=np.eye(2)[:, :1] * 0.8 + np.eye(2)[:, 1:] * 0.6, steps=constant_steps(4, 5), rank=1)
    >>> task = LocalPower(
    ...     domain=Domain(dim=2, radius=9.0), neighbours=Neighbours.ADD_REMOVE, shares=(0.2,) * 5, **settings
    ... )
    >>> run_pooled(task, DenseRows(np.diag([3.0, 2.0])), Exact(because="doctest")).basis.round(6).ravel().tolist()
    [1.0, 0.0]
    """

    domain: Domain
    neighbours: Neighbours
    begin: Array
    steps: tuple[int, ...]
    shares: tuple[float, ...]
    rank: int
    align: Align = "procrustes"
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        require_contraction(self.begin, dim=self.domain.dim)
        width = self.begin.shape[1]
        require(1 <= self.rank <= width, f"rank must lie in 1..{width}, the width, got {self.rank}")
        require(len(self.steps) > 0 and min(self.steps) >= 1, f"every round needs at least one local step, got {self.steps}")
        require(len(self.shares) == len(self.steps), f"{len(self.steps)} rounds need as many shares, got {len(self.shares)}")
        require_shares(self.shares)
        require(self.align in _ALIGNED, f"align must be one of {', '.join(_ALIGNED)}, got {self.align!r}")
        require(0 <= self.tolerance < 1, f"tolerance must lie in [0, 1), got {self.tolerance}")

    def start(self) -> LocalState:
        return LocalState(round=0, basis=self.begin)

    def ask(self, state: LocalState) -> Question:
        return Question(state.round, (state.basis,))

    def require_question(self, question: Question) -> None:
        """A basis of the right shape and of norm at most one, up to rounding."""
        require_step(question, steps=len(self.steps), arrays=1)
        require(
            question.arrays[0].shape == self.begin.shape,
            f"basis must have shape {self.begin.shape}, got {question.arrays[0].shape}",
        )
        require_contraction(question.arrays[0], dim=self.domain.dim)

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> LocalPart:
        """Local steps Y = G Z + noise and Z = orth(Y), then the last Y, rotated as Z is best aligned with the basis."""
        broadcast, steps = question.arrays[0], self.steps[question.step]
        share = self.shares[question.step]
        basis = broadcast
        orth = _plain_orth if self.align == "none" else _orth
        # Noise on the last step alone, as printed, is not private. Where 1e-5 is claimed at epsilon = 1, the true delta
        # is at least 5e-3 for four local steps.
        for step in range(1, steps):
            private = self._product(rows, basis)
            product = mechanism.release(private, label=self.label(question, step), share=share / steps)
            # A site without rows keeps the basis: there is nothing to orthonormalise.
            basis = orth(product) if product.any() else basis
        # From released bases only, so rotating the last product after its release is post-processing.
        rotation = np.eye(basis.shape[1]) if steps == 1 else basis.T @ _ALIGNED[self.align](basis, broadcast)
        private = self._product(rows, basis)
        product = mechanism.release(private, label=self.label(question, steps), share=share / steps)
        product = product if steps == 1 else product @ rotation
        return LocalPart(product, float(np.linalg.norm(basis @ rotation - broadcast, 2)))

    def combine(self, left: LocalPart, right: LocalPart) -> LocalPart:
        """The sum of the products and the larger of the spreads (3.3)."""
        return LocalPart(np.add(left.product, right.product), max(left.spread, right.spread))

    def rounded_to_grid(self, question: Question, part: LocalPart, *, parts: int) -> LocalPart:
        """The product rounded to the grid of this round's sensitivity."""
        return LocalPart(on_grid(part.product, self.sensitivity(question), parts=parts), part.spread)

    def weighted(self, part: LocalPart, weight: float) -> LocalPart:
        """The product counts `weight` times."""
        return LocalPart(np.multiply(part.product, weight), part.spread)

    def sensitivity(self, question: Question) -> float:
        """Sensitivity of the sum of all products, if each round is one local step."""
        require(
            max(self.steps) == 1,
            "after several local steps no sensitivity is known for noise at the hub. Add noise at the sites, or use one step",
        )
        return self.domain.gram_times_sensitivity(self.neighbours, basis=question.arrays[0], basis_norm=CONTRACTION)

    def advance(self, state: LocalState, total: LocalPart, mechanism: Mechanism, *, stretch: float = 1.0) -> LocalState:
        """The next basis, orth of the total, and the leading left singular vectors of the total."""
        question = self.ask(state)
        product = total.product
        # If sites added the noise, the total is public already, and no sensitivity is needed.
        if mechanism.scale(1.0) > 0:
            private = Bounded(product, stretch * self.sensitivity(question))
            product = mechanism.release(private, label=self.label(question), share=self.share(question))
        basis = _orth(product)
        rotation, values, _ = np.linalg.svd(basis.T @ product)
        space = Subspace(signed(basis @ rotation[:, : self.rank]), np.sqrt(values[: self.rank]))
        movement = math.inf if state.space is None else float(sines(space.basis, state.space.basis)[0])
        return LocalState(round=state.round + 1, basis=basis, space=space, movement=movement, spread=total.spread)

    def result(self, state: LocalState) -> Subspace | None:
        """The estimate after the last round, or once it moves by no more than the tolerance."""
        still = self.tolerance > 0 and state.movement <= self.tolerance
        return state.space if state.round == len(self.steps) or still else None

    def estimate(self, state: LocalState) -> Subspace | None:
        """The leading left singular vectors of the last total, whose singular values estimate eigenvalues."""
        return state.space

    def has_converged(self, state: LocalState) -> bool | None:
        """Whether the last round moved the estimate by no more than the tolerance."""
        return state.movement <= self.tolerance if self.tolerance > 0 else None

    def spread(self, state: LocalState) -> float | None:
        """FedPower's rho_t (3.3), measured to the broadcast basis; None before the first round."""
        return state.spread

    def arrays(self, part: LocalPart) -> tuple[Array, ...]:
        """The product, (d, r), and the spread, (1,)."""
        return (part.product, np.array([part.spread]))

    def part(self, question: Question, arrays: tuple[Array, ...]) -> LocalPart:
        """The product, and a spread between 0 and 2."""
        require(len(arrays) == 2, f"a part must be two arrays, got {len(arrays)}")
        product = require_array(arrays[0], self.begin.shape)
        spread = float(require_array(arrays[1], (1,))[0])
        require(0 <= spread <= _FARTHEST, f"a spread must lie between 0 and 2, got {spread}")
        return LocalPart(product, spread)

    def share(self, question: Question) -> float:
        """This round's share of the mechanism's mu^2."""
        return self.shares[question.step]

    def label(self, question: Question, step: int | None = None) -> str:
        """One entry per local step; one per round at the hub."""
        round_, steps = f"fedpower round {question.step + 1} of {len(self.steps)}", self.steps[question.step]
        return round_ if step is None or steps == 1 else f"{round_}, local step {step} of {steps}"

    def _product(self, rows: Rows, basis: Array) -> Bounded:
        return bounded_gram_times(rows, basis=basis, domain=self.domain, neighbours=self.neighbours)


def constant_steps(steps: int, rounds: int) -> tuple[int, ...]:
    """The same number of local steps in each round: the synchronous set I_T^p.

    >>> constant_steps(4, 3)
    (4, 4, 4)
    """
    require(min(steps, rounds) >= 1, f"steps and rounds must be at least 1, got {steps} and {rounds}")
    return (steps,) * rounds


def decaying_steps(steps: int, rounds: int) -> tuple[int, ...]:
    """One local step fewer from round to round, down to one: FedPower (3.15).

    >>> decaying_steps(4, 6)
    (4, 3, 2, 1, 1, 1)
    """
    require(min(steps, rounds) >= 1, f"steps and rounds must be at least 1, got {steps} and {rounds}")
    # Single steps at the end remove the error that local steps leave where sites differ.
    return tuple(max(steps - round_, 1) for round_ in range(rounds))


def _orth(product: Array) -> Array:
    """The QR basis whose triangular factor has a non-negative diagonal: otherwise signs would differ between sites."""
    return align_signs(orthonormal(product), product)


def _plain_orth(product: Array) -> Array:
    """The QR basis as LAPACK leaves it, with arbitrary signs."""
    return np.linalg.qr(product)[0]


_ALIGNED: dict[Align, Callable[[Array, Array], Array]] = {
    "procrustes": align_procrustes,
    "sign": align_signs,
    "none": lambda basis, target: basis,
}


@final
class FedPower(ProductMethod):
    """Sites take several steps on their own rows between rounds."""

    name = "fedpower"
    phrase = "FedPower"
    places = ("sites",)
    settings = ("site",)
    is_additive, takes_samples, takes_local_steps = False, True, True
    max_rounds = 100

    def steps(self, criteria: PlanRequest, rounds: int) -> tuple[int, ...]:
        """Constant, decaying as in FedPower (3.15), or as listed with the last one repeated."""
        if isinstance(criteria.local_steps, int):
            return constant_steps(criteria.local_steps, rounds)
        listed = tuple(criteria.local_steps)
        if len(listed) == 2 and listed[0] == "decay":
            return decaying_steps(int(listed[1]), rounds)
        steps = [int(step) for step in listed][:rounds]
        return tuple(steps + [steps[-1]] * (rounds - len(steps)))

    def build_task(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> Components:
        terms = self.terms(plan, start_basis, context)
        return partial(LocalPower, steps=plan.steps, align=context.align, **terms)

    def last_share(self, plan: MethodPlan) -> float:
        """Every local step is a release with its own part of the round's share (decision 9)."""
        return plan.shares[-1] / plan.steps[-1]

    def noise_floor(self, dim: int, plan: MethodPlan, *, scale: float, spike: float, sites: int) -> float:
        """The edge of the singular values of a product."""
        entry, width = scale / math.sqrt(self.last_share(plan)), plan.width
        return entry * spiked_edge(singular_edge(dim, width), spike=spike / entry, row=(dim + width) / 2)

    def disclosure(self, width: int, *, role: str) -> str:
        """Products, after steps that no other party sees."""
        return f"products of the rows with {width} directions (after steps on these rows alone)"


METHOD: Final = FedPower()
