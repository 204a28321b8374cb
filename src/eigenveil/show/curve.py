"""Accuracy against epsilon, in characters for a terminal. `eigenveil.show.charts` draws the same as a picture."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from eigenveil.show.charts import Point

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    from eigenveil.show.charts import Ends

__all__ = ["CurveChart", "span"]

# Wider charts are no easier to read, and narrower ones show nothing.
_WIDEST: Final = 60
_NARROWEST: Final = 12
_NEAR: Final = 0.015
_SYMBOLS: Final = {"line": "─", "low": "├", "high": "┤", "value": "●", "floor": "┊"}
_ASCII: Final = {"line": "-", "low": "|", "high": "|", "value": "o", "floor": ":"}


def span(found: "Ends") -> str:
    """A value with its interval, in two digits; in three where two would round it to 0 or 1.

    >>> from types import SimpleNamespace as at
    >>> span(at(value=0.941, low=0.91, high=0.96)), span(at(value=0.9968, low=0.995, high=0.998))
    ('0.94 (0.91 to 0.96)', '0.997 (0.995 to 0.998)')
    """
    digits = 2 if _NEAR < found.value < 1 - _NEAR else 3
    return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


@final
@dataclass(frozen=True, slots=True)
class CurveChart:
    """One line per epsilon: an axis from 0 to 1 with the interval, the value, and what random directions would
    capture.

    >>> from rich.console import Console
    >>> from types import SimpleNamespace as at
    >>> half = at(value=0.5, low=0.25, high=0.75)
    >>> chart = CurveChart((Point(epsilon=1.0, captured=half, sine=half, nothing=0.1),), asked=1.0)
    >>> Console(width=60, force_terminal=False).print(chart)
    epsilon 0                     1
          1   ┊   ├────●────┤       0.50 (0.25 to 0.75) <- asked
            ┊ what random directions would capture
    """

    points: tuple[Point, ...]
    asked: float

    def __rich_console__(self, _console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        symbols = _ASCII if options.ascii_only else _SYMBOLS
        labels = max([len("epsilon"), *(len(f"{point.epsilon:g}") for point in self.points)])
        notes = [self._note(point) for point in self.points]
        # The notes have the numbers, so they keep their width and the axis gives way.
        room = options.max_width - labels - max((len(note) for note in notes), default=0) - 2
        width = max(_NARROWEST, min(room, _WIDEST))
        yield Text(f"{'epsilon':>{labels}} 0{'1':>{width - 1}}", style="dim", no_wrap=True)
        for point, note in zip(self.points, notes, strict=True):
            style = "bold cyan" if point.epsilon == self.asked else "cyan"
            line = Text(f"{point.epsilon:>{labels}g} ", no_wrap=True)
            line.append(_cells(point, width, symbols), style=style)
            line.append(f" {note}", style="bold" if point.epsilon == self.asked else "")
            yield line
        yield Text(f"{'':>{labels}} {symbols['floor']} what random directions would capture", style="dim")

    def _note(self, point: Point) -> str:
        return span(point.captured) + " <- asked" * (point.epsilon == self.asked)


def _cells(point: Point, width: int, symbols: dict[str, str]) -> str:
    """`width` cells from 0 to 1. What matters more is drawn later, over the rest."""
    cells = [" "] * width
    low, value, high = (_place(at, width) for at in (point.captured.low, point.captured.value, point.captured.high))
    cells[low : high + 1] = symbols["line"] * (high + 1 - low)
    # Ends over the line, the floor over the ends, the value over all of them.
    cells[low], cells[high] = symbols["low"], symbols["high"]
    cells[_place(point.nothing, width)] = symbols["floor"]
    cells[value] = symbols["value"]
    return "".join(cells)


def _place(share: float, width: int) -> int:
    return min(width - 1, max(0, round(share * (width - 1))))
