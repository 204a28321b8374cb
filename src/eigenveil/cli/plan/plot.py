"""Accuracy against epsilon, in characters for a terminal and as an SVG file. SVG is text, so no plotting library is
needed."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final, final

from eigenveil.errors import require

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    from eigenveil.plan import Interval

__all__ = ["CurveChart", "Point", "span", "svg_curve"]

_WIDEST: Final = 60
_NARROWEST: Final = 12
_NEAR: Final = 0.015
_SYMBOLS: Final = {"line": "─", "low": "├", "high": "┤", "value": "●", "floor": "┊"}
_ASCII: Final = {"line": "-", "low": "|", "high": "|", "value": "o", "floor": ":"}


def span(found: "Interval") -> str:
    """A value with its interval, in two digits; in three where two would round it to 0 or 1.

    >>> from types import SimpleNamespace as at
    >>> span(at(value=0.941, low=0.91, high=0.96)), span(at(value=0.9968, low=0.995, high=0.998))
    ('0.94 (0.91 to 0.96)', '0.997 (0.995 to 0.998)')
    """
    digits = 2 if _NEAR < found.value < 1 - _NEAR else 3
    return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


@final
@dataclass(frozen=True, slots=True)
class Point:
    """What one epsilon buys: captured variance and sine, each with an interval for nine fits in ten."""

    epsilon: float
    captured: "Interval"
    sine: "Interval"
    nothing: float

    def __post_init__(self) -> None:
        require(0 < self.epsilon < math.inf, f"epsilon must be positive and finite, got {self.epsilon}")


@final
@dataclass(frozen=True, slots=True)
class CurveChart:
    """One line per epsilon: an axis from 0 to 1 with the interval, the value, and what random directions would
    capture.

    >>> from rich.console import Console
    >>> from types import SimpleNamespace as at
    >>> half = at(value=0.5, low=0.25, high=0.75)
    >>> chart = CurveChart((Point(1.0, half, half, 0.1),), asked=1.0)
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
    cells[low], cells[high] = symbols["low"], symbols["high"]
    cells[_place(point.nothing, width)] = symbols["floor"]
    cells[value] = symbols["value"]
    return "".join(cells)


def _place(share: float, width: int) -> int:
    return min(width - 1, max(0, round(share * (width - 1))))


# The drawing is 640 wide, and its height depends on the note below the curve. The plane of the curve lies inside it.
_HEIGHT, _LINE, _CHARACTERS_PER_LINE = 396, 14, 100
# Axis labels closer than this would overlap.
_APART: Final = 26.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 620.0, 60.0, 340.0
_COLOURS: Final = {"captured": "#1f6fb2", "sine": "#c2570c", "nothing": "#666666"}


def svg_curve(points: Sequence[Point], *, asked: float, title: str, note: str) -> str:
    """A whole SVG document: captured variance and sine with their bands, and random directions, over log epsilon."""
    require(bool(points), "there must be a point to draw")
    plane = _Plane(min(point.epsilon for point in points), max(point.epsilon for point in points))
    words = textwrap.wrap(note, _CHARACTERS_PER_LINE)
    height = _HEIGHT + _LINE * len(words)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" width="640" height="{height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="640" height="{height}" fill="white"/>',
        f'<text x="{_LEFT:g}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        *_frame(plane, points, asked),
        *_drawn(plane, points),
        *(
            f'<text x="{_LEFT:g}" y="{_HEIGHT + _LINE * place}" font-size="11" fill="#444444">{escape(line)}</text>'
            for place, line in enumerate(words)
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


@final
@dataclass(frozen=True, slots=True)
class _Plane:
    """Where an epsilon and a share lie in the drawing."""

    least: float
    most: float

    def x(self, epsilon: float) -> float:
        if self.most == self.least:
            return (_LEFT + _RIGHT) / 2
        share = math.log(epsilon / self.least) / math.log(self.most / self.least)
        return _LEFT + share * (_RIGHT - _LEFT)

    def y(self, share: float) -> float:
        return _BOTTOM - min(1.0, max(0.0, share)) * (_BOTTOM - _TOP)

    def path(self, pairs: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(epsilon):.1f},{self.y(share):.1f}" for epsilon, share in pairs)


def _frame(plane: _Plane, points: Sequence[Point], asked: float) -> Iterator[str]:
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        y = plane.y(tick)
        yield f'<line x1="{_LEFT:g}" x2="{_RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{_LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
    placed: list[float] = []
    # The requested epsilon is placed first, so that its label never gives way to another.
    for point in sorted(points, key=lambda point: point.epsilon != asked):
        x = plane.x(point.epsilon)
        if all(abs(x - other) >= _APART for other in placed):
            placed.append(x)
            yield f'<text x="{x:.1f}" y="{_BOTTOM + 18:g}" text-anchor="middle">{point.epsilon:g}</text>'
        if point.epsilon == asked:
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP:g}" y2="{_BOTTOM:g}" stroke="#999999" stroke-dasharray="2 4"/>'
    middle = (_LEFT + _RIGHT) / 2
    yield f'<text x="{middle:g}" y="{_BOTTOM + 36:g}" text-anchor="middle">epsilon</text>'
    for place, (name, words) in enumerate(
        {
            "captured": "captured variance",
            "sine": "largest sine",
            "nothing": "captured by random directions",
        }.items()
    ):
        x = _LEFT + 160 * place
        yield f'<rect x="{x:g}" y="37" width="12" height="12" fill="{_COLOURS[name]}"/>'
        yield f'<text x="{x + 18:g}" y="48">{words}</text>'


def _drawn(plane: _Plane, points: Sequence[Point]) -> Iterator[str]:
    ordered = sorted(points, key=lambda point: point.epsilon)
    for name in ("captured", "sine"):
        found = [(point.epsilon, getattr(point, name)) for point in ordered]
        band = [(at, span.low) for at, span in found] + [(at, span.high) for at, span in reversed(found)]
        colour = _COLOURS[name]
        yield f'<polygon points="{plane.path(band)}" fill="{colour}" fill-opacity="0.15"/>'
        line = plane.path([(at, span.value) for at, span in found])
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for at, span in found:
            yield f'<circle cx="{plane.x(at):.1f}" cy="{plane.y(span.value):.1f}" r="3.5" fill="{colour}"/>'
    nothing = plane.path([(point.epsilon, point.nothing) for point in ordered])
    yield f'<polyline points="{nothing}" fill="none" stroke="{_COLOURS["nothing"]}" stroke-dasharray="6 4"/>'
