"""`Demonstration`: one attack in a form made for showing, on runs without privacy and on private ones.

It is an illustration, not a test: what one attack gets bounds nothing. The audit tests what a guarantee is worth.

Synthetic people for demonstrations: rows of a dozen measurements that are correlated as such measurements are.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import numpy as np
from numpy.random import Generator

from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = ["COLUMNS", "LOADINGS", "ROW_BOUND", "Demonstration", "Shown", "made_up_people"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What an attack got from one `run`, and about whom or what (`target`).

    The `value` is in the demonstration's measure. Somebody who guesses without seeing the run gets `baseline`. The attack has
    `succeeded` if it beats that by as much as the demonstration asks for. A rate over many tables has a 99% confidence
    `interval`. The run's guarantee allows at most `allowed`.

    >>> Shown(
    ...     run="no privacy", target="a row", value=1e-12, baseline=0.9, succeeded=True, words="read off"
    ... ).succeeded
    True
    """

    run: str
    target: str
    value: float
    baseline: float
    succeeded: bool
    words: str
    interval: tuple[float, float] | None = None
    allowed: float | None = None

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.value) and math.isfinite(self.baseline),
            f"{self.run}: value and baseline must be finite, got {self.value} and {self.baseline}",
        )
        # An interval that misses its own value is a mistake in an attack, not a result.
        low, high = (self.value, self.value) if self.interval is None else self.interval
        require(
            low <= self.value <= high, f"{self.run}: the value {self.value} must lie in its interval, {low} to {high}"
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One attack: its `story` in plain sentences, the `measure`, the `guess` that is the baseline, and the conclusion.

    Every number is measured when it runs, and the `conclusion` follows from the numbers, whatever they are.
    """

    title: str
    story: tuple[str, ...]
    measure: str
    guess: str
    rows: tuple[Shown, ...]
    conclusion: str

    def __post_init__(self) -> None:
        require(len(self.rows) >= 1, f"{self.title}: at least one row is needed")

    def of(self, target: str) -> tuple[Shown, ...]:
        """The rows about one target, in order."""
        return tuple(row for row in self.rows if row.target == target)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        # All fields are plain values, so that JSON has what the screen has.
        return asdict(self)


COLUMNS: Final = (
    "age",
    "weight",
    "waist",
    "systolic pressure",
    "diastolic pressure",
    "pulse",
    "glucose",
    "insulin",
    "cholesterol",
    "creatinine",
    "visits",
    "income",
)
# In standard deviations of a column: how age, build and lifestyle influence it.
LOADINGS: Final[Array] = np.array(
    [
        [0.9, 0.1, 0.2, 0.7, 0.3, -0.2, 0.4, 0.1, 0.4, 0.6, 0.6, 0.3],
        [0.0, 0.9, 0.9, 0.3, 0.4, 0.1, 0.5, 0.7, 0.2, 0.2, 0.1, 0.0],
        [-0.1, 0.1, 0.2, 0.3, 0.5, 0.6, 0.3, 0.3, 0.5, 0.1, 0.3, -0.7],
    ]
)
# Public: known of such measurements before anybody was measured.
ROW_BOUND: Final = 6.0


def made_up_people(count: int, *, rng: Generator, loadings: Array = LOADINGS, bound: float = ROW_BOUND) -> Array:
    """Rows, (count, d), of measurements in standard deviations from a public average, of norm at most `bound`.

    Each is a mix of a few hidden traits, by `loadings`, (traits, d), and of the person's own variation, so that a column varies
    by about one.

    >>> made_up_people(5, rng=np.random.default_rng(0)).shape
    (5, 12)
    """
    traits, dim = loadings.shape
    # At least a tenth of each column's variance is a person's own: no column follows from the others.
    own = np.sqrt(np.maximum(1 - np.square(loadings).sum(axis=0), 0.1))
    rows = rng.standard_normal((count, traits)) @ loadings + own * rng.standard_normal((count, dim))
    longest = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), bound)
    return np.asarray(rows * (bound / longest), dtype=np.float64)
