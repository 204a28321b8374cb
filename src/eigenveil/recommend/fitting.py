"""From a plan to a fit: which task finds the directions, whether there is room for it, and which delta where none is given."""

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from eigenveil.errors import require_param
from eigenveil.linalg import Array, orthonormal
from eigenveil.privacy import Histories
from eigenveil.recommend.plan import ItemPlan, ItemTerms, pairs_memory
from eigenveil.tasks import CovarianceSum, KeptProducts, KrylovSum, SumTask

__all__ = ["default_delta", "directions", "require_room"]

_LARGEST_DELTA = 1e-5
# Where nothing is added the answer is as good as rounding allows.
_TOLERANCE = 1e-8


def require_room(plan: ItemPlan, items: int) -> None:
    """Refuse what this machine cannot hold: later, what was released before would have been paid for nothing."""
    needed = pairs_memory(items) if plan.method == "covariance" else 0
    try:
        held = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return
    require_param(
        needed <= held,
        f"{{method=covariance}} needs {needed / 2**30:.3g} GiB for all pairs of {items} items, and this machine has "
        f"{held / 2**30:.3g}; take {{method=power}}, or fewer items",
    )


def default_delta(protected: int) -> float:
    """What delta is where none is given: a tenth of one over how many there are to protect, rounded down, at most 1e-5.

    >>> default_delta(10), default_delta(1_500_000)
    (1e-05, 6.6e-08)
    """
    return _rounded_down(min(_LARGEST_DELTA, 1 / (10 * max(protected, 1))))


def _rounded_down(number: float) -> float:
    """The first two digits of a positive number: a guarantee that can be read, and is no weaker.

    >>> _rounded_down(1 / 15), _rounded_down(1e-6)
    (0.066, 1e-06)
    """
    size = math.floor(math.log10(number)) - 1
    # The digits of 1e-6 are a little less than 10 as a binary fraction.
    return float(f"{math.floor(number / 10.0**size * (1 + 1e-12))}e{size}")


def directions(plan: ItemPlan, terms: ItemTerms, begin: Array) -> Callable[[Histories], SumTask[Any, Any]]:
    """What makes the task that finds the directions of histories in a domain, as planned, from `begin`, (c, width), where it
    iterates."""
    near, rank, shares = terms.neighbours, terms.rank, plan.shares
    if plan.method == "covariance":
        return partial(CovarianceSum, neighbours=near)
    start = orthonormal(begin)
    if plan.method == "krylov":
        rounds = plan.rounds
        return partial(
            KrylovSum, neighbours=near, begin=start, rounds=rounds, rank=rank, tolerance=_TOLERANCE, shares=shares
        )
    return partial(
        KeptProducts,
        neighbours=near,
        begin=start,
        shares=shares,
        rank=rank,
        longest=plan.longest,
        told=False,
        name="power product",
    )
