"""`Demonstration`: an attack as somebody who is told of it wants to see it, on runs without privacy and on private ones.

It is a picture and no test: what one attack gets bounds nothing. What a guarantee is worth is for the audit to say.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, final

from eigenveil.errors import require

__all__ = ["Demonstration", "Shown"]


@final
@dataclass(frozen=True, slots=True)
class Shown:
    """What an attack got out of one `run`, and about whom or what (`target`).

    `value` is in the measure of the demonstration, `baseline` what somebody gets who guesses and has not seen the run, and
    `succeeded` says whether the attack is better than that by as much as the demonstration asks for. `interval` is where the
    value lies but for a chance of 1%, where it is a rate over many tables, and `allowed` the most that the guarantee of the run
    allows.

    >>> Shown("no privacy", "a row", 1e-12, 0.9, True, "read off").succeeded
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
        low, high = (self.value, self.value) if self.interval is None else self.interval
        require(
            low <= self.value <= high, f"{self.run}: the value {self.value} must lie in its interval, {low} to {high}"
        )


@final
@dataclass(frozen=True, slots=True)
class Demonstration:
    """One attack: its `story` in plain sentences, what was measured (`measure`, and `guess` for the baseline), and what follows.

    Every number is measured when it runs, and the `conclusion` is drawn from them, whatever they are.
    """

    title: str
    story: tuple[str, ...]
    measure: str
    guess: str
    rows: tuple[Shown, ...]
    conclusion: str

    def __post_init__(self) -> None:
        require(len(self.rows) >= 1, f"{self.title}: there is nothing to show")

    def of(self, target: str) -> tuple[Shown, ...]:
        """What was shown about one target, in order."""
        return tuple(row for row in self.rows if row.target == target)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        return asdict(self)
