"""From a plan to a fit: the task that finds the directions, a check of memory, and the default delta."""

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from eigenveil.errors import require_param
from eigenveil.linalg import Array, orthonormal
from eigenveil.methods import TaskContext, method_of
from eigenveil.methods.base import TOLERANCE
from eigenveil.methods.krylov import KeptProducts
from eigenveil.recommend.plan import ItemPlan, ItemTerms, pairs_memory
from eigenveil.tasks import SumTask

__all__ = ["default_delta", "directions", "require_room"]

_LARGEST_DELTA = 1e-5


def require_room(plan: ItemPlan, items: int) -> None:
    """Refuse a fit that does not fit in memory. Failing later would waste the budget of earlier releases."""
    needed = pairs_memory(items) if plan.releases_pairs else 0
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


def directions(plan: ItemPlan, terms: ItemTerms, begin: Array) -> Callable[..., SumTask[Any, Any]]:
    """A factory for the planned task: given the domain of the histories, it returns the task that finds their
    directions.

    Iterative methods start from `begin`, (c, width).
    """
    leaf, private = method_of(plan.method), terms.budget is not None
    start = orthonormal(begin) if leaf.needs_start_basis else None
    if start is None or not private:
        context = TaskContext(neighbours=terms.neighbours, rank=terms.rank, private=private)
        # Tasks of sums take any `Region`, and histories are one.
        task: Any = leaf.build_task(plan.for_sites(tolerance=TOLERANCE), start, context)
        return cast("Callable[..., SumTask[Any, Any]]", task)
    return partial(
        KeptProducts,
        neighbours=terms.neighbours,
        begin=start,
        shares=plan.shares,
        rank=terms.rank,
        longest=plan.longest,
        told=False,
        name="power product",
    )
