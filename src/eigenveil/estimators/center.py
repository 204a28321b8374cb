"""Where rows lie: the search for a private mean, shared by a curator's fit and by the first block of a stream."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from eigenveil.estimators.bounds import RowBounds
from eigenveil.linalg import Array
from eigenveil.privacy import Mechanism, Neighbours, sum_sensitivity
from eigenveil.protocols import run_pooled
from eigenveil.rows import Rows
from eigenveil.tasks import Totals

__all__ = ["Center", "find_center"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Center:
    """Where the mean was found, (d,), the number of people, and how many of the steps it took."""

    center: Array | None
    people: float | None
    steps: int


def find_center(
    rows: Rows,
    *,
    bounds: RowBounds,
    neighbours: Neighbours,
    shares: Sequence[float],
    count_share: float,
    people: float | None,
    mechanism: Callable[[float], Mechanism],
) -> Center:
    """Look for the mean around the origin, and again around where it was found, while it lies far out in the ball.

    Each step is a release for its share of the budget, through what `mechanism` makes of the share. The number of
    people comes with the first for `count_share`, where it is not public.
    """
    center, far, steps = bounds.origin, True, 0
    for step, share in enumerate(shares):
        if not far:
            break
        counted = people is None
        whole = share + (count_share if counted else 0.0)
        task = Totals(
            bounds.around_start(center),
            neighbours,
            sum_weight=share,
            count_weight=count_share if counted else 0.0,
            name="mean and count" if counted else f"mean, step {step + 1}" if step else "mean",
        )
        through = mechanism(whole)
        found = run_pooled(task, rows, through)
        people = found.count if people is None else people
        assert found.sum is not None
        assert people is not None
        entry = through.scale(sum_sensitivity(bounds.mean_bound, neighbours)) / math.sqrt(share / whole)
        noise = entry * math.sqrt(bounds.dim) if entry > 0 else 0.0
        center, far = bounds.center_from(center, found.sum, people, noise=noise)
        steps = step + 1
    return Center(center, people, steps)
