"""How long a transport waits for what, in seconds."""

import random
from dataclasses import dataclass
from typing import final

from eigenveil.errors import require

__all__ = ["Backoff", "Timing"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times in seconds. The defaults suit organisations that talk across the internet.

    A party that has not been heard for `silence` counts as gone. It is pinged in between, and a process that computes still
    answers. A new connection has `patience` to be made and to greet. Between two attempts a dialler waits `shortest`, then twice
    as long each time, up to `longest`. It begins anew after a connection that lasted for `held`. When a connection ends, the
    other side has `farewell` to hear why.

    >>> Timing(shortest=0.1).longest
    5.0
    """

    silence: float = 20.0
    patience: float = 10.0
    shortest: float = 0.2
    longest: float = 5.0
    held: float = 5.0
    farewell: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            require(0 < value < 86400, f"{name} must lie between 0 and a day, in seconds, got {value}")
        require(
            self.shortest <= self.longest, f"shortest must be at most longest, {self.longest} s, got {self.shortest} s"
        )


@final
class Backoff:
    """How long to wait before the next attempt. Changes in place.

    Waits are spread over half to all of their length, so that sites that lost the same hub do not all come back at once.

    >>> waits = Backoff(Timing(shortest=1.0, longest=3.0))
    >>> [step for step in (waits.next(), waits.next(), waits.next()) if not 0.5 <= step <= 3.0]
    []
    """

    def __init__(self, timing: Timing) -> None:
        self._timing, self._step = timing, timing.shortest

    def next(self, *, slowly: bool = False) -> float:
        """Seconds until the next attempt; `slowly` when trying again soon would not help."""
        # Doubled from the step taken, so that the attempts after a slow one stay slow until `reset`.
        step = self._timing.longest if slowly else self._step
        self._step = min(2 * step, self._timing.longest)
        return step * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin anew, after a connection that lasted."""
        self._step = self._timing.shortest
