"""How peers on a graph find components one after another: rounds, shares and starts. From public guesses alone.

D-DP-PM's Corollary 1 asks for eigenvalues of the data, which are private, and its experiments tuned everything on the data.
Here the spectrum is guessed: eigenvalue i of the Gram matrix is in proportion to 1/i, and rows fill half their ball.
"""

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from eigenveil.errors import require_param
from eigenveil.linalg import Array
from eigenveil.plan.choose.choice import GROWTH
from eigenveil.plan.spectrum import Spectrum, require_rank
from eigenveil.privacy import Budget
from eigenveil.tasks import geometric_shares

__all__ = ["SegmentsPlan", "guessed_eigenvalues", "plan_segments"]

# Without noise: how many products a component may take before it is left as it is, and when it is good enough.
_MOST_PRODUCTS: Final = 200
_TOLERANCE: Final = 1e-8
# With noise: the fewest and the most that are planned.
_FEWEST_NOISY, _MOST_NOISY = 4, 12
# What a start gets of its component's share. Noise that drowned it would still leave a random start, which is all that is needed.
_START: Final = 0.02
# A start is cut at this many deviations: 8% of its variance, for noise a third less than at three.
_CLIP: Final = 2.0


@final
@dataclass(frozen=True, slots=True)
class SegmentsPlan:
    """What was decided and why. A component takes `rounds` exchanges, its start among them, and each has its own share.

    `shares` are in order of rounds and then of components. `deviation` and `clip` are of the hidden starts. `alpha`, in
    units of 1 / row_bound^2, and the `schedule` of sigma_p(t), t = 1 to `rounds`, are for the published form alone.
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
        """The method and why it goes as it does, in one line."""
        return f"segments: {self.reason}"


def plan_segments(*, dim: int, rank: int, people: int, budget: Budget | None, rounds: int | None) -> SegmentsPlan:
    """The plan for `rank` components of `dim` columns of about `people` people, a public guess.

    `rounds` is the number of products per component, after its start: by default 4 to 12 under noise, because each gets only a
    part of the budget, and as many as a tolerance takes without.

    Components share the budget in proportion to 1 / sqrt(eigenvalue), so as sqrt(l) for the l-th. Proof that this loses
    least: noise of size s on d numbers rounds a direction of eigenvalue v by a sine of about s sqrt(d) / v, which loses v (s
    sqrt(d) / v)^2 = d s^2 / v of variance; s^2 is in proportion to 1 / share, and sum 1 / (share_l v_l) under a fixed sum
    of shares is least at share_l in proportion to v_l^(-1/2). Within a component products get more from one to the next, as
    in the power method.

    alpha = 1 / sqrt(mu1 mu2) lies in the middle of Corollary 1's interval, (1 / mu1, 1 / mu2). The schedule is
    deviation * (mu2 / mu1)^t: the corollary's, in units of a score, because a score is of the size of the deviation and noise
    of size one would drown it.

    >>> plan = plan_segments(dim=20, rank=2, people=1000, budget=Budget(1.0, 1e-6), rounds=None)
    >>> plan.rounds, len(plan.shares), plan.tolerance
    (5, 10, 0.0)
    >>> plan_segments(dim=20, rank=2, people=1000, budget=None, rounds=None).rounds
    201
    """
    require_rank(rank, dim)
    require_param(rounds is None or rounds >= 1, "{rounds} must be at least 1, got {@rounds}", rounds=rounds)
    # The guess goes on beyond the last column, so that there is a second eigenvalue also for one.
    values = guessed_eigenvalues(dim=dim, people=people)
    first, second = float(values[0]), float(values[0]) / 2
    products = rounds if rounds is not None else (_MOST_PRODUCTS if budget is None else _products(values, rank, budget))
    # One more for the start.
    begun = products + 1
    deviation = 1.0 / math.sqrt(people)
    return SegmentsPlan(
        rounds=begun,
        # Without a budget nobody pays, and the first of hundreds of growing shares would be nothing.
        shares=_shares(values[:rank], products, growth=1.0 if budget is None else GROWTH),
        deviation=deviation,
        clip=_CLIP * deviation,
        alpha=1.0 / math.sqrt(first * second),
        schedule=tuple(deviation * (second / first) ** t for t in range(1, begun + 1)),
        tolerance=_TOLERANCE if budget is None else 0.0,
        reason=_reason(values, rank, products, budget, asked=rounds is not None),
    )


def guessed_eigenvalues(*, dim: int, people: int) -> Array:
    """Eigenvalues of the Gram matrix, (dim,), in units of row_bound^2, that are guessed where none may be looked at.

    >>> guessed_eigenvalues(dim=2, people=6).tolist()
    [2.0, 1.0]
    """
    require_param(people >= 1, "{people} must be at least 1, got {@people}", people=people)
    guess: Array = people * Spectrum.guessed(dim).values
    return guess


def _products(values: Array, rank: int, budget: Budget) -> int:
    """Two more products than bring a random start down to the noise, if each halves what is off, as the guessed spectrum does.

    With growing shares the last product has much the same share however many there are, so that more of them cost little, and
    eigenvalues closer together than was guessed cost much.
    """
    share = (1 - 1 / GROWTH) * float(_across(values[:rank])[-1])
    noise = math.sqrt(len(values) / share) / budget.mu / float(values[rank - 1])
    return min(_MOST_NOISY, max(_FEWEST_NOISY, 2 + math.ceil(-math.log2(noise))))


def _across(values: Array) -> Array:
    """What each component gets."""
    across: Array = values**-0.5 / (values**-0.5).sum()
    return across


def _shares(values: Array, products: int, *, growth: float) -> tuple[float, ...]:
    within = np.array([_START, *((1 - _START) * np.array(geometric_shares(products, growth=growth)))])
    shares = np.outer(_across(values), within).ravel()
    return tuple((shares / shares.sum()).tolist())


def _reason(values: Array, rank: int, products: int, budget: Budget | None, *, asked: bool) -> str:
    """Why this many, and how the last component stands against the noise, as far as guesses go."""
    if budget is None:
        why = "as was asked for" if asked else "enough for eigenvalues a tenth apart"
        return f"up to {products} products per component, {why}; each stops when it has come to rest"
    why = (
        "as was asked for"
        if asked
        else "more than bring a start down to the noise if eigenvalues fall like 1, 1/2, 1/3"
    )
    share = _shares(values[:rank], products, growth=GROWTH)[-1]
    noise = math.sqrt(len(values) / share) / budget.mu
    stands = "above" if values[rank - 1] > noise else "below"
    return (
        f"{products} products per component, {why}; by the guessed spectrum component {rank} has an eigenvalue of "
        f"{values[rank - 1]:.3g} row_bound^2, {stands} the noise of one curator on its last product, {noise:.3g}"
    )
