"""`Mark` and `Chart`: lines, areas, bars, dots and words on a `Plane`, and how they become SVG text or a PNG.

A chart knows nothing of PCA. It carries its own text alternatives: a title, a description, and the numbers as a table.
"""

import io
import math
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Literal, TypeAlias, final

from eigenveil.errors import plain

Place: TypeAlias = tuple[float, float]
Cell: TypeAlias = str | float | int | None
# Light and dark. Every text colour has a contrast of at least 4.5 to 1 on its ground, and every mark of 3 to 1.
COLOURS: Final = {
    "ground": ("#ffffff", "#0d1117"),
    "panel": ("#f6f8fa", "#161b22"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#57606a", "#9aa4af"),
    "grid": ("#d1d9e0", "#30363d"),
    "first": ("#0550ae", "#79c0ff"),
    "second": ("#bc4c00", "#ffa657"),
    "faint": ("#8c959f", "#6e7681"),
    "good": ("#1a7f37", "#56d364"),
    "bad": ("#cf222e", "#ff7b72"),
}
# Half a screen, or a whole telephone: at these 420 units, letters of 12 stay readable on both.
WIDTH: Final = 420.0
_SIZE: Final = 12.0
# How wide characters are in DejaVu Sans, the widest of the usual fonts, as shares of the font's size.
_WIDTHS: Final = (("iljtfrI.,:;'|!()[]{}- /\\", 0.42), ("mwMW@%…—", 1.0), ("<>=+~#&", 0.85))


def escaped(text: object) -> str:
    """`text` for HTML and SVG, also between quotes.

    >>> escaped("<script>'")
    '&lt;script&gt;&#x27;'
    """
    return escape(plain(text), quote=True)


def short(text: object, max_length: int) -> str:
    """`text` in at most so many characters. The middle is left out: long names often differ at their end only.

    >>> short("blood pressure, systolic", 16)
    'blood pre…stolic'
    """
    label = plain(text)
    if len(label) <= max_length:
        return label
    head = math.ceil(0.6 * (max_length - 1))
    return f"{label[:head].rstrip()}…{label[len(label) - (max_length - 1 - head) :].lstrip()}"


def width_of(text: str) -> float:
    """About how wide `text` is in a drawing, and rather too wide than too narrow.

    >>> width_of("WWW") > width_of("iii")
    True
    """
    return _SIZE * math.fsum(map(_width, text))


def _width(character: str) -> float:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.1
    factor = next((width for group, width in _WIDTHS if character in group), None)
    return factor if factor is not None else 0.78 if character.isupper() else 0.64


def fitted(text: object, room: float) -> str:
    """As much of `text` as fits into `room` units of a drawing, without its middle if need be.

    >>> fitted("x", 100.0), fitted("age", 100.0), fitted("W" * 100, 100.0)
    ('x', 'age', 'WWWWW…WW')
    """
    # No more characters than this fit anywhere, so a name of a million is cut before it is measured.
    label = short(text, 80)
    if width_of(label) <= room:
        return label
    return next((cut for length in range(len(label), 1, -1) if width_of(cut := short(label, length)) <= room), "…")


def in_bytes(count: int) -> str:
    """A number of bytes in a unit that a person can read.

    >>> in_bytes(540), in_bytes(61_440), in_bytes(3_200_000_000)
    ('540 B', '61.4 kB', '3.2 GB')
    """
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"


def variables(dark: bool) -> str:
    """The colours as CSS variables.

    >>> variables(dark=False)[:16]
    '--ground:#ffffff'
    """
    return ";".join(f"--{name}:{pair[dark]}" for name, pair in COLOURS.items())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that is drawn: its shape, its corners, and the `colour` by its name in `COLOURS`.

    A bar has two opposite corners, a dot and words one place. `text` are drawn, or appear when the mouse rests on the mark.
    """

    shape: Literal["line", "area", "bar", "dot", "words"]
    places: tuple[Place, ...]
    colour: str
    text: str = ""
    anchor: Literal["start", "middle", "end"] = "start"
    width: float = 1.5
    opacity: float = 1.0
    dashed: bool = False
    strong: bool = False

    def svg(self) -> str:
        """The element."""
        paint = f'fill="var(--{self.colour})"' + (f' fill-opacity="{self.opacity:.3g}"' if self.opacity < 1 else "")
        (x, y), tip = self.places[0], f"<title>{escaped(self.text)}</title>" if self.text else ""
        match self.shape:
            case "words":
                bold = ' font-weight="600"' * self.strong
                anchor = "" if self.anchor == "start" else f' text-anchor="{self.anchor}"'
                return f'<text x="{x:.1f}" y="{y:.1f}" {paint}{anchor}{bold}>{escaped(self.text)}</text>'
            case "bar":
                # SVG draws no rectangle of negative width, and a bar of a negative weight ends left of its start.
                (left, right), (top, bottom) = (sorted(ends) for ends in zip(*self.places, strict=True))
                size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
                return f'<rect x="{left:.1f}" y="{top:.1f}" {size} {paint}>{tip}</rect>'
            case "dot":
                return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{self.width:.1f}" {paint}>{tip}</circle>'
            case "area":
                return f'<polygon points="{self._path()}" {paint}>{tip}</polygon>'
            case "line":
                dash = ' stroke-dasharray="5 4"' * self.dashed
                pen = f'stroke="var(--{self.colour})" stroke-width="{self.width:g}"{dash}'
                return f'<polyline points="{self._path()}" fill="none" {pen}>{tip}</polyline>'

    def _path(self) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.places)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Marks on a plane of 420 by `height`, with what they say in words and as a table of `rows` under a `header`."""

    title: str
    description: str
    marks: Sequence[Mark]
    header: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    height: float = 240.0

    def __post_init__(self) -> None:
        # Drawn by other threads, so nothing of it may change.
        object.__setattr__(self, "marks", tuple(self.marks))
        object.__setattr__(self, "rows", tuple(self.rows))

    def svg(self, name: str = "chart") -> str:
        """The drawing inside a page. `name` must be another one for each chart of the page."""
        # Ids are ours, never a name from a file.
        return (
            f'<svg class="chart" viewBox="0 0 {WIDTH:g} {self.height:g}" role="img" '
            f'aria-labelledby="{name}-t {name}-d" font-size="{_SIZE:g}">'
            f'<title id="{name}-t">{escaped(self.title)}</title><desc id="{name}-d">{escaped(self.description)}</desc>'
            f"{''.join(mark.svg() for mark in self.marks)}</svg>"
        )

    def document(self) -> str:
        """A file of its own, light or dark as the reader's screen is, with the title and the words on it."""
        # 296 units of letters of 12 are as wide as the drawing in bold ones of 14.
        lines = textwrap.wrap(plain(self.description), 68)
        top, height = 34.0, self.height + 52 + 15 * len(lines)
        style = (
            f":root{{{variables(dark=False)}}}@media(prefers-color-scheme:dark){{:root{{{variables(dark=True)}}}}}"
            "text{font-family:system-ui,sans-serif}"
        )
        below = (
            f'<text x="14" y="{top + self.height + 14 + 15 * index:.0f}" font-size="11" fill="var(--muted)">'
            f"{escaped(line)}</text>"
            for index, line in enumerate(lines)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{1.5 * WIDTH:g}" '
            f'height="{1.5 * height:g}" role="img" aria-labelledby="t d" font-size="{_SIZE:g}">\n'
            f'<title id="t">{escaped(self.title)}</title>\n<desc id="d">{escaped(self.description)}</desc>\n'
            f'<style>{style}</style>\n<rect width="{WIDTH:g}" height="{height:g}" fill="var(--ground)"/>\n'
            f'<text x="14" y="24" font-size="14" font-weight="600" fill="var(--ink)">{escaped(fitted(self.title, 296))}</text>\n'
            f'<g transform="translate(0 {top:g})">\n' + "\n".join(mark.svg() for mark in self.marks) + "\n</g>\n"
            f"{''.join(below)}\n</svg>\n"
        )


def png(chart: Chart) -> bytes:
    """The chart as a PNG, on a light ground, drawn by matplotlib where that is installed."""
    # Not pyplot, which would look for a screen and keep every figure until the program ends.
    from matplotlib.figure import Figure

    # 100 units are an inch, and the plane has its zero at the top left, as SVG has.
    made = Figure(figsize=(WIDTH / 100, (chart.height + 30) / 100), dpi=200)
    axes = made.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(chart.height, -30))
    axes.axis("off")
    title = Mark(shape="words", places=((14.0, -10.0),), colour="ink", text=fitted(chart.title, 346), strong=True)
    for mark in (title, *chart.marks):
        for artist in _artists(mark):
            axes.add_artist(artist)
    target = io.BytesIO()
    made.savefig(target, format="png")
    return target.getvalue()


def _artists(mark: Mark) -> Iterator[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, Polygon
    from matplotlib.text import Text

    colour, places = COLOURS[mark.colour][0], mark.places
    # A point is 1/72 of an inch.
    unit = 72 / 100
    match mark.shape:
        case "words":
            weight = "bold" if mark.strong else "normal"
            align = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
            # A dollar sign would start a formula, and names come from files.
            yield Text(*places[0], mark.text, color=colour, ha=align, fontsize=_SIZE * unit, weight=weight, parse_math=False)
        case "bar":
            (left, top), (right, bottom) = places
            corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
            yield Polygon(corners, facecolor=colour, alpha=mark.opacity, edgecolor="none")
        case "area":
            yield Polygon(places, facecolor=colour, alpha=mark.opacity, edgecolor="none")
        case "dot":
            yield Circle(places[0], mark.width, facecolor=colour, alpha=mark.opacity)
        case "line":
            drawn = Line2D(*zip(*places, strict=True), color=colour, linewidth=mark.width * unit)
            if mark.dashed:
                drawn.set_linestyle("--")
            yield drawn


def line(places: Sequence[Place], colour: str, **more: Any) -> Mark:
    """A line through `places`."""
    return Mark(shape="line", places=tuple(places), colour=colour, **more)


def words(x: float, y: float, text: object, colour: str = "muted", **more: Any) -> Mark:
    """Words at a place."""
    return Mark(shape="words", places=((x, y),), colour=colour, text=str(text), **more)


def bar(x: float, y: float, to_x: float, to_y: float, colour: str, **more: Any) -> Mark:
    """A rectangle between two opposite corners."""
    return Mark(shape="bar", places=((x, y), (to_x, to_y)), colour=colour, **more)


def dot(x: float, y: float, colour: str, *, radius: float = 3.0, **more: Any) -> Mark:
    """A filled circle."""
    return Mark(shape="dot", places=((x, y),), colour=colour, width=radius, **more)


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
    return [(index * step, f"{index * step:.4g}") for index in range(math.floor(top / step * (1 + 1e-9)) + 1)]


def numbers(count: int) -> list[tuple[float, str]]:
    """The ticks 1, 2, ... of an axis that counts, thinned out so that they do not touch."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**6) if count / step <= 20)
    return [(float(at), str(at)) for at in range(1, count + 1) if at == 1 or at % step == 0]
