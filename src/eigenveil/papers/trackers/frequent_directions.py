"""`FrequentDirections`: a sketch of few rows whose Gram matrix provably stays close to that of all rows.

When the buffer is full, the squares of all its singular values are reduced by the same amount, which frees half of it.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, thin_svd
from eigenveil.papers.trackers.edges import admit, nothing, read_only, require_rank
from eigenveil.trackers import Tracker, require_exact

__all__ = ["FrequentDirections", "FrequentDirectionsState"]

# Relative to the largest singular value, less than this is rounding.
_ROUNDING = 1e-12


@final
@dataclass(frozen=True, slots=True, eq=False)
class FrequentDirectionsState:
    """The `sketch`, (m, d) with m < 2 l: rows whose Gram matrix approximates that of all rows seen."""

    sketch: Array


@final
@dataclass(frozen=True, slots=True)
class FrequentDirections(Tracker[FrequentDirectionsState]):
    """Frequent Directions with `sketch` l, by default twice the rank, and a buffer of 2 l rows.

    Fast-FrequentDirections of Ghashami, Liberty, Phillips and Woodruff (2016), after Liberty (2013). For rows A, sketch B
    and every k < l, with A_k the best approximation of A of rank k and P_k the projector on the top k directions of B:

        0 <= A^T A - B^T B,   || A^T A - B^T B ||_2 <= || A - A_k ||_F^2 / (l - k),
        || A - A P_k ||_F^2 <= || A - A_k ||_F^2 l / (l - k).

    Values are the singular values of B, which err on the small side. There may be fewer directions than `rank`: a full buffer
    leaves at most l - 1 of them, and none if all its singular values are equal. How the stream is split into blocks has no
    effect.

    >>> from eigenveil.trackers import NOTHING_ASKED
    >>> tracker = FrequentDirections(rank=1)
    >>> state = tracker.step(tracker.start(2), np.array([[0.0, 3.0], [0.0, 4.0]]), NOTHING_ASKED)
    >>> tracker.subspace(state).values.round(12).tolist()
    [5.0]
    """

    rank: int
    sketch: int | None = None

    def __post_init__(self) -> None:
        require_rank(self.rank)
        require(self.size >= self.rank, f"sketch must be at least rank = {self.rank}, got {self.sketch}")

    @property
    def size(self) -> int:
        """The sketch size l: half the rows of the buffer."""
        return 2 * self.rank if self.sketch is None else self.sketch

    def start(self, dim: int) -> FrequentDirectionsState:
        """An empty sketch."""
        require_rank(self.rank, dim)
        return FrequentDirectionsState(read_only(np.zeros((0, dim))))

    def step(self, state: FrequentDirectionsState, rows: Any, mechanism: Mechanism) -> FrequentDirectionsState:
        """The sketch with `rows` appended, shrunk each time the buffer is full."""
        require_exact(mechanism, "FrequentDirections")
        waiting = admit(rows, state.sketch.shape[1])
        sketch = state.sketch
        while len(waiting) > 0:
            room = 2 * self.size - len(sketch)
            sketch, waiting = np.vstack([sketch, waiting[:room]]), waiting[room:]
            if len(sketch) == 2 * self.size:
                sketch = _shrink(sketch, self.size)
        return FrequentDirectionsState(read_only(sketch))

    def subspace(self, state: FrequentDirectionsState) -> Subspace:
        """The top right singular vectors of the sketch."""
        rank = min(self.rank, len(state.sketch))
        if rank == 0:
            return nothing(state.sketch.shape[1])
        vectors, values = thin_svd(state.sketch.T, rank=rank)
        meant = values > _ROUNDING * values[0]
        return Subspace(vectors[:, meant], values[meant])


def _shrink(sketch: Array, size: int) -> Array:
    """Fewer than `size` rows from the 2 `size` rows of `sketch`: s_i^2 becomes s_i^2 - s_size^2, or is dropped if zero.

    With fewer columns than `size` nothing has to be reduced: d rows represent the whole Gram matrix.
    """
    vectors, values = thin_svd(sketch.T, rank=min(size, sketch.shape[1]))
    # Dropping the small values instead would break the bound: a direction may come in small pieces.
    level = values[size - 1] if len(values) == size else 0.0
    above = values > level
    # The root of s^2 - level^2 in two factors: squares of large values may overflow, and those of near ones cancel.
    lowered = np.sqrt(values[above] - level) * np.sqrt(values[above] + level)
    shrunk: Array = lowered[:, None] * vectors[:, above].T
    return shrunk
