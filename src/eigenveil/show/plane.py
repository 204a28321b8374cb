"""`Plane`: where numbers lie in a drawing, and the ticks of its axes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from eigenveil.show.marks import WIDTH, Mark, line, words

__all__ = ["Plane", "numbers", "ticks"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Where numbers lie in a drawing: x from `left` to `right`, y from `bottom` up to `top`, linear or logarithmic."""

    x_from: float
    x_to: float
    y_from: float
    y_to: float
    left: float = 52.0
    right: float = WIDTH - 12
    top: float = 12.0
    bottom: float = 200.0
    log_x: bool = False
    log_y: bool = False

    def x(self, value: float) -> float:
        return self.left + _share(value, self.x_from, self.x_to, log=self.log_x) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - _share(value, self.y_from, self.y_to, log=self.log_y) * (self.bottom - self.top)

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.x(x), self.y(y)

    def levels(self, at: Sequence[tuple[float, str]]) -> Iterator[Mark]:
        """A grid line with its number for each tick of the y axis."""
        for value, text in at:
            height = self.y(value)
            yield line([(self.left, height), (self.right, height)], "grid", width=1.0)
            yield words(self.left - 6, height + 4, text, anchor="end")

    def below(self, at: Sequence[tuple[float, str]], title: str) -> Iterator[Mark]:
        """The numbers of the x axis and its title."""
        for value, text in at:
            yield words(self.x(value), self.bottom + 17, text, anchor="middle")
        yield words((self.left + self.right) / 2, self.bottom + 35, title, anchor="middle")


def _share(value: float, low: float, high: float, *, log: bool) -> float:
    if log:
        # Zero has no logarithm, but it must get a place at the edge.
        value, low, high = (math.log(max(number, 1e-300)) for number in (value, low, high))
    # Cut off at the edges, so that nothing is drawn outside, and in the middle if the axis has no length.
    return 0.5 if high == low else min(1.0, max(0.0, (value - low) / (high - low)))


def ticks(top: float) -> list[tuple[float, str]]:
    """Round numbers from zero up to about `top`.

    >>> [text for _, text in ticks(183.0)]
    ['0', '50', '100', '150']
    """
    if not top > 0:
        return [(0.0, "0")]
    step = 10 ** math.floor(math.log10(top))
    # At most five steps of 1, 2 or 5 times a power of ten.
    step *= next((part for part in (0.2, 0.5, 1.0, 2.0) if top / (part * step) <= 5), 2.0)
    return [(place * step, f"{place * step:.4g}") for place in range(math.floor(top / step * (1 + 1e-9)) + 1)]


def numbers(count: int) -> list[tuple[float, str]]:
    """The ticks 1, 2, ... of an axis that counts, thinned out so that they do not touch."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**6) if count / step <= 20)
    return [(float(at), str(at)) for at in range(1, count + 1) if at == 1 or at % step == 0]
