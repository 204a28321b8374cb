"""`Demonstration`: one attack in a form made for showing, on runs without privacy and on private ones.

It is an illustration, not a test: what one attack gets bounds nothing. The audit tests what a guarantee is worth.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, final

from eigenveil.errors import require

__all__ = ["Demonstration", "Shown"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What an attack got from one `run`, and about whom or what (`target`).

    The `value` is in the demonstration's measure. Somebody who guesses without seeing the run gets `baseline`. The attack has
    `succeeded` if it beats that by as much as the demonstration asks for. A rate over many tables has a 99% confidence
    `interval`. The run's guarantee allows at most `allowed`.

    >>> Shown(run="no privacy", target="a row", value=1e-12, baseline=0.9, succeeded=True, words="read off").succeeded
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
