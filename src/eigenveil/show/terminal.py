"""A model on a terminal, as rich renderables: charts of its spectrum and of forecasts, its loadings, and its guarantee.

Every input is a released number, so every output may be shown to anybody. No row is read here. Text from a file goes
through `plain` first, because a model may come from a stranger and a terminal obeys control characters.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eigenveil.errors import join_names, plain
from eigenveil.model import SCORES_ARE_RAW, Model
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.show.charts import EpsilonPoint
from eigenveil.show.report import (
    clipping_facts,
    components_of,
    floor_words,
    model_facts,
    nothing_stands_out,
    round_parts,
    round_rows,
)

if TYPE_CHECKING:
    from eigenveil.estimators.terms import Round
    from eigenveil.show.charts import Ends
    from eigenveil.show.values import ComponentsPart

_EIGHTHS = " ▏▎▍▌▋▊▉"
# Longer bars are no easier to compare.
_WIDEST_BAR = 64
_LABEL = "bold"
_MARK = "bold yellow"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One line of a chart: a label, a value of at least 0, and a note after the bar."""

    label: str
    value: float
    note: str
    style: str = "cyan"


@final
@dataclass(frozen=True, slots=True)
class BarChart:
    """Horizontal bars as wide as the terminal allows; a positive `floor` is marked on every line and named below.

    >>> from rich.console import Console
    >>> chart = BarChart((Bar(label="1", value=4.0, note="4"), Bar(label="2", value=1.0, note="1")), floor=2.0)
    >>> Console(width=12, force_terminal=False).print(chart)
    1 ████┊███ 4
    2 ██  ┊    1
    ┊ floor
    """

    bars: tuple[Bar, ...]
    floor: float = 0.0
    legend: str = "floor"

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        labels = max((len(bar.label) for bar in self.bars), default=0)
        notes = max((len(bar.note) for bar in self.bars), default=0)
        # In a narrow terminal something of the bars must remain.
        width = max(8, min(options.max_width - labels - notes - 2, _WIDEST_BAR))
        # All bars may be zero, as for a table of zeros.
        longest = max([self.floor, *(bar.value for bar in self.bars)]) or 1.0
        block, mark = ("#", "|") if options.ascii_only else ("█", "┊")
        for bar in self.bars:
            eighths = round(8 * width * min(bar.value / longest, 1.0))
            drawn = block * (eighths // 8) + ("" if options.ascii_only else _EIGHTHS[eighths % 8].strip())
            cells = Text(f"{drawn:<{width}}", style=bar.style)
            if self.floor > 0:
                # A floor above every bar lies at the very end, and its mark must stay on the line.
                offset = min(int(width * self.floor / longest), width - 1)
                cells = Text.assemble(cells[:offset], (mark, _MARK), cells[offset + 1 :])
            line = Text(f"{bar.label:<{labels}} ", no_wrap=True)
            yield line.append_text(cells).append(f" {bar.note}")
        if self.floor > 0:
            yield Text.assemble((mark, _MARK), f" {self.legend}")


def scree(part: "ComponentsPart") -> BarChart:
    """The variance along each component, one bar a line, with the noise floor marked. Dim bars may be noise alone."""
    digits, floor = len(str(len(part.variances))), part.noise_floor
    shares = [f" {share:>6.1%}" for share in part.shares] or [""] * len(part.variances)
    bars = (
        # Noise can make a variance negative, and a bar cannot be.
        Bar(
            label=f"{at:>{digits}}",
            value=max(variance, 0.0),
            note=f"{variance:>8.4g}{share}",
            style="cyan" if variance > floor else "dim",
        )
        for at, (variance, share) in enumerate(zip(part.variances, shares, strict=True), start=1)
    )
    return BarChart(tuple(bars), floor, f"noise floor, {floor:.4g}: a shorter bar may be noise alone")


def above_floor(part: "ComponentsPart") -> Text:
    """How many components are above the noise floor, as a sentence."""
    if part.noise_floor == 0:
        return Text(floor_words(part))
    above, rank = part.above, len(part.variances)
    style = "green" if above == rank else "yellow" if above else "red"
    return Text.assemble("components above the noise floor: ", (f"{above} of {rank}", f"bold {style}"))


def guarantee_panel(guarantee: Guarantee) -> Panel:
    """The guarantee in words, part by part, in a frame that is green only where people are protected."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=_LABEL, no_wrap=True)
    grid.add_column(ratio=1)
    for label, texts in guarantee.parts():
        lines = [plain(text) for text in texts]
        grid.add_row(label, lines[0] if len(lines) == 1 else bullets(lines))
    style = "green" if guarantee.private else "red"
    first = Text(plain(guarantee.title), style=f"bold {style}")
    content: list[RenderableType] = [first, Text(""), grid] if grid.row_count else [first]
    return Panel(Group(*content), title="guarantee", title_align="left", border_style=style, padding=(0, 1))


def bullets(items: Iterable[str], *, style: str = "") -> Table:
    """A list, one item a line, whose further lines are indented."""
    grid = Table.grid(padding=(0, 1))
    for item in items:
        grid.add_row("-", Text(plain(item), style=style))
    return grid


def warning_panel(message: str) -> Panel:
    """A warning in a red frame."""
    return Panel(Text(plain(message), style="bold red"), border_style="red", title="warning", title_align="left")


def scores_warning() -> Text:
    """That scores are raw data."""
    return Text.assemble(("raw data: ", "bold yellow"), SCORES_ARE_RAW)


def model_summary(model: Model, *, reason: str) -> Group:
    """What a fit found: its spectrum and the noise floor, why this method was used, and the guarantee."""
    why = Text.assemble(("why this method: ", _LABEL), plain(reason))
    return Group(*_spectrum(model), why, Text(""), guarantee_panel(model.guarantee))


def model_details(model: Model, *, largest: int) -> Group:
    """Everything in a model that a person can read: spectrum, loadings, settings and guarantee."""
    part = components_of(model)

    def by_column(values: Sequence[float]) -> str:
        pairs = (f"{name} {value:.4g}" for name, value in zip(part.names, values, strict=True))
        return join_names(pairs, max_count=2 * largest)

    # Only a search writes where a scale is from; without one, whoever fitted the model gave it.
    estimated = "exact, not private" if model.settings.get("neighbours") == "none" else "estimated privately"
    origin = "given" if model.settings.get("scale_from") is None else estimated
    around = [("mean", by_column(part.mean) if part.mean else "none was subtracted")]
    around += [("scale", f"{by_column(part.scale)}; {origin}" if part.scale else "none")]
    return Group(
        *_spectrum(model),
        Text(""),
        Text("columns with the largest weights in each component", style=_LABEL),
        loadings_table(part, largest=largest),
        Text(""),
        Text("settings", style=_LABEL),
        labelled([*((fact.label, fact.text) for fact in model_facts(model)), *around]),
        Text(""),
        guarantee_panel(model.guarantee),
    )


def model_values(model: Model) -> dict[str, Any]:
    """The whole model in plain values, for programs, which should not have to read the file themselves."""
    return {
        "columns": None if model.columns is None else list(model.columns),
        "components": model.components.tolist(),
        "mean": model.mean.tolist(),
        "people": model.people,
        "bounds": {name: model.settings.get(name) for name in ("row_bound", "column_bounds")},
        "scale": None if model.scale is None else model.scale.tolist(),
        "values": model.values.tolist(),
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "noise_floor": model.noise_floor,
        "n_above_noise": model.n_above_noise,
        "warnings": list(model.warnings),
        **guarantee_values(model.guarantee),
        "settings": dict(model.settings),
        "scores": SCORES_ARE_RAW,
    }


def guarantee_values(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee in plain values, for programs."""
    return {"private": guarantee.private, "guarantee": guarantee.to_dict(), "guarantee_in_words": guarantee.to_text()}


def _spectrum(model: Model) -> Iterator[RenderableType]:
    part = components_of(model)
    rank, dim = model.components.shape
    yield from nothing_found(part)
    title = f"{rank} component{'s' * (rank != 1)} of {dim} columns: variance along each, and its share of the whole"
    yield Text(title, style=_LABEL)
    yield scree(part)
    yield above_floor(part)
    yield from remarks(part, model.warnings)


def nothing_found(part: "ComponentsPart") -> Iterator[Text]:
    """The headline of a fit in which nothing stands out, to be shown above its bars, which look like a finding."""
    if nothing_stands_out(part):
        yield Text("Nothing stands out from the noise. These components may be noise alone.", style="bold red")


def remarks(part: "ComponentsPart", warnings: Iterable[str]) -> Iterator[Text]:
    """What clipping did, and what the fit warns of."""
    for label, text in clipping_facts(part):
        yield Text.assemble((f"{label}: ", _LABEL), text)
    for warning in warnings:
        yield Text.assemble(("warning: ", "bold yellow"), (plain(warning), "yellow"))


def judged(model: Model) -> list[Text]:
    """What the fit says of itself in lines: that nothing stands out, what clipping did, and its warnings."""
    part = components_of(model)
    return [*nothing_found(part), *remarks(part, model.warnings)]


def loadings_table(part: "ComponentsPart", *, largest: int) -> Table:
    """For each component, the columns with the largest weights, with their signs."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for number, weights in enumerate(part.weights, start=1):
        # Stable, so that equal weights come in the order of the columns on every machine.
        order = sorted(range(len(weights)), key=lambda at: -abs(weights[at]))[:largest]
        texts = (
            Text.assemble(f"{plain(part.names[at])}=", (f"{weights[at]:+.3f}", "green" if weights[at] >= 0 else "magenta"))
            for at in order
        )
        table.add_row(str(number), Text(", ").join(texts))
    return table


def labelled(facts: Iterable[tuple[str, str]]) -> Table:
    """Labels and their texts, one per line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=_LABEL, no_wrap=True)
    grid.add_column()
    for label, text in facts:
        grid.add_row(plain(label), plain(text))
    return grid


def simple_table(
    first: str, *numbers: str, padding: tuple[int, int] | tuple[int, int, int, int] = (0, 1), **column: Any
) -> Table:
    """A table without frames: a column of texts, and columns of `numbers`, which are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=padding)
    table.add_column(first, **column)
    for name in numbers:
        table.add_column(name, justify="right", **column)
    return table


def rounds_table(rounds: Iterable["Round"]) -> Table:
    """The rounds of a fit over sites or peers, one per line, as `round_rows` has them."""
    header, rows = round_rows(round_parts(rounds), max_rounds=40)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in header:
        table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(plain, row))
    return table


# Wider charts are no easier to read, and narrower ones show nothing.
_WIDEST: Final = 60
_NARROWEST: Final = 12
# A value so close to 0 or 1 is written in three digits.
_NEAR: Final = 0.015
_SYMBOLS: Final = {"line": "─", "low": "├", "high": "┤", "value": "●", "floor": "┊"}
_ASCII: Final = {"line": "-", "low": "|", "high": "|", "value": "o", "floor": ":"}


def span(interval: "Ends") -> str:
    """A value with its interval, in two digits; in three where two would round it to 0 or 1.

    >>> from types import SimpleNamespace as at
    >>> span(at(value=0.941, low=0.91, high=0.96)), span(at(value=0.9968, low=0.995, high=0.998))
    ('0.94 (0.91 to 0.96)', '0.997 (0.995 to 0.998)')
    """
    digits = 2 if _NEAR < interval.value < 1 - _NEAR else 3
    return f"{interval.value:.{digits}f} ({interval.low:.{digits}f} to {interval.high:.{digits}f})"


@final
@dataclass(frozen=True, slots=True)
class CurveChart:
    """One line per epsilon: an axis from 0 to 1 with the interval, the value, and what random directions would capture.

    >>> from rich.console import Console
    >>> from types import SimpleNamespace as at
    >>> half = at(value=0.5, low=0.25, high=0.75)
    >>> chart = CurveChart((EpsilonPoint(epsilon=1.0, captured=half, sine=half, nothing=0.1),), target=1.0)
    >>> Console(width=60, force_terminal=False).print(chart)
    epsilon 0                     1
          1   ┊   ├────●────┤       0.50 (0.25 to 0.75) <- asked
            ┊ what random directions would capture
    """

    points: tuple[EpsilonPoint, ...]
    target: float

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        symbols = _ASCII if options.ascii_only else _SYMBOLS
        labels = max([len("epsilon"), *(len(f"{point.epsilon:g}") for point in self.points)])
        notes = [span(point.captured) + " <- asked" * (point.epsilon == self.target) for point in self.points]
        # The notes have the numbers, so they keep their width and the axis gives way.
        room = options.max_width - labels - max((len(note) for note in notes), default=0) - 2
        width = max(_NARROWEST, min(room, _WIDEST))
        yield Text(f"{'epsilon':>{labels}} 0{'1':>{width - 1}}", style="dim", no_wrap=True)
        for point, note in zip(self.points, notes, strict=True):
            bold = point.epsilon == self.target
            line = Text(f"{point.epsilon:>{labels}g} ", no_wrap=True)
            line.append(_cells(point, width, symbols), style="bold cyan" if bold else "cyan")
            yield line.append(f" {note}", style="bold" if bold else "")
        yield Text(f"{'':>{labels}} {symbols['floor']} what random directions would capture", style="dim")


def _cells(point: EpsilonPoint, width: int, symbols: dict[str, str]) -> str:
    """`width` cells from 0 to 1. What matters more is drawn later, over the rest."""
    shares = (point.captured.low, point.captured.value, point.captured.high, point.nothing)
    low, value, high, nothing = (min(width - 1, max(0, round(share * (width - 1)))) for share in shares)
    cells = [" "] * width
    cells[low : high + 1] = symbols["line"] * (high + 1 - low)
    # Ends over the line, the floor over the ends, the value over all of them.
    cells[low], cells[high] = symbols["low"], symbols["high"]
    cells[nothing] = symbols["floor"]
    cells[value] = symbols["value"]
    return "".join(cells)
