"""From a plan to a fit: the task that finds the directions, a check of memory, and the default delta."""

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from eigenveil.errors import require_param
from eigenveil.linalg import Array, orthonormal
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.methods.krylov import KeptProducts, KrylovSum
from eigenveil.privacy import Histories
from eigenveil.recommend.plan import ItemPlan, ItemTerms, pairs_memory
from eigenveil.tasks import SumTask

__all__ = ["default_delta", "directions", "require_room"]

_LARGEST_DELTA = 1e-5
# Without noise the result is accurate to rounding.
_TOLERANCE = 1e-8


def require_room(plan: ItemPlan, items: int) -> None:
    """Refuse a fit that does not fit in memory. Failing later would waste the budget of earlier releases."""
    needed = pairs_memory(items) if plan.method == "covariance" else 0
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return
    require_param(
        needed <= memory,
        f"{{method=covariance}} needs {needed / 2**30:.3g} GiB for all pairs of {items} items, and this machine "
        f"has {memory / 2**30:.3g} GiB. Use {{method=power}}, or fewer items",
    )


def default_delta(protected: int) -> float:
    """The default delta: 1 / (10 protected), rounded down, at most 1e-5. `protected` counts what is protected.

    >>> default_delta(10), default_delta(1_500_000)
    (1e-05, 6.6e-08)
    """
    return _rounded_down(min(_LARGEST_DELTA, 1 / (10 * max(protected, 1))))


def _rounded_down(number: float) -> float:
    """A positive number rounded down to two digits: easier to read, and the guarantee is no weaker.

    >>> _rounded_down(1 / 15), _rounded_down(1e-6)
    (0.066, 1e-06)
    """
    size = math.floor(math.log10(number)) - 1
    # In binary, 1e-6 / 1e-7 falls slightly short of 10, and floor would make it 9.
    return float(f"{math.floor(number / 10.0**size * (1 + 1e-12))}e{size}")


def directions(plan: ItemPlan, terms: ItemTerms, begin: Array) -> Callable[[Histories], SumTask[Any, Any]]:
    """A factory for the planned task: given the domain of the histories, it returns the task that finds their
    directions.

    Iterative methods start from `begin`, (c, width).
    """
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
