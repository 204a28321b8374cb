"""Plans how peers on a graph find components one after another: rounds, shares and starts.

D-DP-PM's Corollary 1 needs eigenvalues of the data, which are private, and its experiments tuned everything on the
data.
Here the spectrum is guessed instead: eigenvalue i of the Gram matrix is proportional to 1/i, and the mean squared row
norm is half of row_bound^2.
"""

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.errors import require_param
from eigenveil.linalg import Array
from eigenveil.methods.products import geometric_shares
from eigenveil.plan.choose.choice import GROWTH
from eigenveil.plan.spectrum import Spectrum, require_rank

__all__ = ["SegmentsPlan", "guessed_eigenvalues", "plan_segments"]

# Without noise: the most products per component, and the change at which it has converged.
_MOST_PRODUCTS: Final = 200
_TOLERANCE: Final = 1e-8
# With noise: the fewest and the most products that are planned.
_FEWEST_NOISY, _MOST_NOISY = 4, 12
# The start's part of its component's share. Even if noise drowns the start it is still random, and nothing more is
# needed.
_START: Final = 0.02
# A start's scores are clipped at this many deviations. It loses 8% of their variance; the noise is a third less than
# at three.
_CLIP: Final = 2.0


@final
@dataclass(frozen=True, slots=True)
class SegmentsPlan:
    """What was decided and why. A component takes `rounds` exchanges, the start included, each with its own share.

    `shares` are ordered by component, and within a component by round. `deviation` and `clip` belong to the hidden
    starts.
    Only the published form uses `alpha`, in units of 1 / row_bound^2, and the `schedule` sigma_p(t), t = 1 to
    `rounds`.
    """

    rounds: int
    shares: tuple[float, ...]
    deviation: float
    clip: float
    alpha: float
    schedule: tuple[float, ...]
    tolerance: float
    reason: str

    @property
    def headline(self) -> str:
        """The method and the reason for its rounds, on one line."""
        return f"segments: {self.reason}"


def plan_segments(*, dim: int, rank: int, people: int, budget: Budget | None, rounds: int | None) -> SegmentsPlan:
    """The plan for `rank` components of `dim` columns. `people` is a public guess of how many there are.

    `rounds` is the number of products per component after its start. The default is 4 to 12 under noise, because each
    product gets only a part of the budget. Without noise products go on until a tolerance is met.

    Components share the budget in proportion to 1 / sqrt(eigenvalue), so as sqrt(l) for the l-th. This loses the
    least variance. Proof:
    - Noise of size s on d numbers rotates a direction of eigenvalue v by a sine of about s sqrt(d) / v.
    - That loses v (s sqrt(d) / v)^2 = d s^2 / v of variance, and s^2 is proportional to 1 / share.
    - Under a fixed sum of shares, sum 1 / (share_l v_l) is least at share_l proportional to v_l^(-1/2).
    Within a component each product gets more than the one before, as in the power method.

    alpha = 1 / sqrt(mu1 mu2) lies in the middle of Corollary 1's interval, (1 / mu1, 1 / mu2). The schedule is the
    corollary's, in units of a score: deviation * (mu2 / mu1)^t. A score is about as large as the deviation, and noise
    of size one would drown it.

    >>> plan = plan_segments(dim=20, rank=2, people=1000, budget=Budget(1.0, 1e-6), rounds=None)
    >>> plan.rounds, len(plan.shares), plan.tolerance
    (5, 10, 0.0)
    >>> plan_segments(dim=20, rank=2, people=1000, budget=None, rounds=None).rounds
    201
    """
    require_rank(rank, dim)
    require_param(rounds is None or rounds >= 1, "{rounds} must be at least 1, got {@rounds}", rounds=rounds)
    # The guessed law continues beyond the last column, so a table of one column has a second eigenvalue too.
    values = guessed_eigenvalues(dim=dim, people=people)
    first, second = float(values[0]), float(values[0]) / 2
    products = rounds if rounds is not None else (_MOST_PRODUCTS if budget is None else _products(values, rank, budget))
    # One more round for the start.
    begun = products + 1
    deviation = 1.0 / math.sqrt(people)
    return SegmentsPlan(
        rounds=begun,
        # Without a budget shares carry no noise, and the first of hundreds of growing shares would underflow to
        # nothing.
        shares=_shares(values[:rank], products, growth=1.0 if budget is None else GROWTH),
        deviation=deviation,
        clip=_CLIP * deviation,
        alpha=1.0 / math.sqrt(first * second),
        schedule=tuple(deviation * (second / first) ** t for t in range(1, begun + 1)),
        tolerance=_TOLERANCE if budget is None else 0.0,
        reason=_reason(values, rank, products, budget, asked=rounds is not None),
    )


def guessed_eigenvalues(*, dim: int, people: int) -> Array:
    """Guessed eigenvalues of the Gram matrix, (dim,), in units of row_bound^2, for use where the real ones are
    private.

    >>> guessed_eigenvalues(dim=2, people=6).tolist()
    [2.0, 1.0]
    """
    require_param(people >= 1, "{people} must be at least 1, got {@people}", people=people)
    guess: Array = people * Spectrum.guessed(dim).values
    return guess


def _products(values: Array, rank: int, budget: Budget) -> int:
    """Two more products than it takes to bring a random start down to the noise.

    Each product halves the error under the guessed spectrum. With growing shares the last product gets much the same
    share however many there are. So extra products cost little, while too few cost much if the eigenvalues are closer
    together than guessed.
    """
    share = (1 - 1 / GROWTH) * float(_across(values[:rank])[-1])
    noise = math.sqrt(len(values) / share) / budget.mu / float(values[rank - 1])
    return min(_MOST_NOISY, max(_FEWEST_NOISY, 2 + math.ceil(-math.log2(noise))))


def _across(values: Array) -> Array:
    """Each component's share of the budget, (rank,)."""
    across: Array = values**-0.5 / (values**-0.5).sum()
    return across


def _shares(values: Array, products: int, *, growth: float) -> tuple[float, ...]:
    within = np.array([_START, *((1 - _START) * np.array(geometric_shares(products, growth=growth)))])
    shares = np.outer(_across(values), within).ravel()
    return tuple((shares / shares.sum()).tolist())


def _reason(values: Array, rank: int, products: int, budget: Budget | None, *, asked: bool) -> str:
    """Why this many products, and how the last component compares with the noise under the guessed spectrum."""
    if budget is None:
        why = "as requested" if asked else "enough for eigenvalues a tenth apart"
        return f"up to {products} products per component, {why}; each stops when it has converged"
    why = (
        "as requested"
        if asked
        else "more than it takes to bring a start down to the noise if eigenvalues fall like 1, 1/2, 1/3"
    )
    share = _shares(values[:rank], products, growth=GROWTH)[-1]
    noise = math.sqrt(len(values) / share) / budget.mu
    side = "above" if values[rank - 1] > noise else "below"
    return (
        f"{products} products per component, {why}. In the guessed spectrum component {rank} has eigenvalue "
        f"{values[rank - 1]:.3g} row_bound^2, {side} the noise that one curator would add to its last product ({noise:.3g})"
    )
