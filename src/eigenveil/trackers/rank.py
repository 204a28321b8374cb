"""How many directions to keep: FPCA (4), once per block. Private trackers pass released singular values."""

from dataclasses import dataclass
from typing import final

from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = ["EnergyBounds"]


@final
@dataclass(frozen=True, slots=True)
class EnergyBounds:
    """Keep sigma_r / (sigma_1 + ... + sigma_r) within [low, high], both fractions in (0, 1).

    The paper's "1 and 10" are percentages: EnergyBounds(0.01, 0.1). With a low of at most 0.3 times the high, the rank does not
    oscillate.

    >>> import numpy as np
    >>> bounds = EnergyBounds(0.01, 0.2)
    >>> bounds.adjusted(2, np.array([3.0, 2.0, 1.0])), bounds.adjusted(2, np.array([3.0, 0.001]))
    (3, 1)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        require(
            0 < self.low < self.high < 1,
            "energy bounds must be fractions with 0 < low < high < 1 (the usual choice is 0.01 and 0.1), "
            f"got {self.low} and {self.high}",
        )

    def adjusted(self, rank: int, values: Array) -> int:
        """The rank after one block: one more, one less or the same, never below 1 or above the number of `values`.

        `values`, (p,), are singular values in data scale, largest first. Those beyond `rank` are not used.
        """
        if len(values) < rank:
            # Too few rows to decide.
            return rank
        total = float(values[:rank].sum())
        # Rows of zeros have no energy to compare with.
        if total <= 0:
            return max(rank, 1)
        share = float(values[rank - 1]) / total
        if share > self.high:
            return min(rank + 1, len(values))
        return max(rank - 1, 1) if share < self.low else rank
