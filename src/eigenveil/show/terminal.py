"""A model on a terminal, as rich renderables: charts of its spectrum and of forecasts, its loadings, and its guarantee.

Every input is a released number, so every output may be shown to anybody. No row is read here. Text from a file goes
through `plain` first, because a model may come from a stranger and a terminal obeys control characters.
"""

import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eigenveil.core.ledger import Charge
from eigenveil.errors import join_names, plain, shown
from eigenveil.model import SCORES_ARE_RAW, Model
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.show.charts import Point
from eigenveil.show.marks import in_bytes

if TYPE_CHECKING:
    from eigenveil.estimators.terms import Round
    from eigenveil.linalg import Array
    from eigenveil.recommend import ItemSpace
    from eigenveil.show.charts import Ends

__all__ = [
    "Bar",
    "BarChart",
    "CurveChart",
    "above_floor",
    "fill_line",
    "guarantee_panel",
    "in_bytes",
    "judged",
    "labelled",
    "loadings_table",
    "model_details",
    "model_summary",
    "model_values",
    "nothing_found",
    "nothing_stands_out",
    "plain",
    "round_rows",
    "rounds_table",
    "scores_warning",
    "scree",
    "settings_table",
    "simple_table",
    "span",
    "spent_mu",
    "warned",
    "warning_panel",
]

_EIGHTHS = " ▏▎▍▌▋▊▉"
_WIDEST_CHART = 64
_LABEL = "bold"
_MARK = "bold yellow"
_MOST_ROUNDS = 40
# A sine below this is rounding error.
_STILL = 1e-12


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
        # Longer bars are no easier to compare, and in a narrow terminal something of them must remain.
        width = max(8, min(options.max_width - labels - notes - 2, _WIDEST_CHART))
        # All bars may be zero, as for a table of zeros.
        longest = max([self.floor, *(bar.value for bar in self.bars)]) or 1.0
        for bar in self.bars:
            line = Text(f"{bar.label:<{labels}} ", no_wrap=True)
            line.append_text(self._cells(bar, width, longest, ascii_only=options.ascii_only))
            line.append(f" {bar.note}")
            yield line
        if self.floor > 0:
            yield Text.assemble((_mark(ascii_only=options.ascii_only), _MARK), f" {self.legend}")

    def _cells(self, bar: Bar, width: int, longest: float, *, ascii_only: bool) -> Text:
        """The bar and the blank behind it, `width` cells, with the mark of the floor over them."""
        eighths = round(8 * width * min(bar.value / longest, 1.0))
        tip = "" if ascii_only else _EIGHTHS[eighths % 8].strip()
        drawn = ("#" if ascii_only else "█") * (eighths // 8) + tip
        cells = Text(f"{drawn:<{width}}", style=bar.style)
        if self.floor <= 0:
            return cells
        # A floor above every bar lies at the very end, and its mark must stay on the line.
        offset = min(int(width * self.floor / longest), width - 1)
        return Text.assemble(cells[:offset], (_mark(ascii_only=ascii_only), _MARK), cells[offset + 1 :])


def _mark(*, ascii_only: bool) -> str:
    return "|" if ascii_only else "┊"


def scree(model: Model) -> BarChart:
    """The released explained variances, one bar per component, with the noise floor marked."""
    floor = model.noise_floor
    return BarChart(tuple(_bars(model)), floor, f"noise floor, {floor:.4g}: a shorter bar may be noise alone")


def _bars(model: Model) -> Iterator[Bar]:
    floor = model.noise_floor
    digits = len(str(len(model.values)))
    pairs = zip(model.explained_variance, model.explained_variance_ratio, strict=True)
    for number, (variance, ratio) in enumerate(pairs, start=1):
        # Dim bars may be noise alone.
        style = "cyan" if variance > floor else "dim"
        # Noise can make a variance negative, and a bar cannot be.
        yield Bar(
            label=f"{number:>{digits}}",
            value=max(float(variance), 0.0),
            note=f"{variance:>8.4g} {ratio:>6.1%}",
            style=style,
        )


def above_floor(model: Model) -> Text:
    """How many components are above the noise floor, as a sentence."""
    floor, rank = model.noise_floor, len(model.values)
    # A published calibration has noise whose floor was never worked out: 0 then means unknown.
    if floor == 0 and model.guarantee.epsilon is not None:
        return Text("Noise was added, and its floor is not known: any component may be noise alone.")
    if floor == 0:
        return Text("No noise was added, so there is no noise floor.")
    above = model.n_above_noise
    style = "green" if above == rank else "yellow" if above else "red"
    return Text.assemble("components above the noise floor: ", (f"{above} of {rank}", f"bold {style}"))


def guarantee_panel(guarantee: Guarantee) -> Panel:
    """The guarantee in words, part by part, in a frame that is green only where somebody is protected."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=_LABEL, no_wrap=True)
    grid.add_column(ratio=1)
    for label, texts in guarantee.parts():
        lines = [plain(text) for text in texts]
        grid.add_row(label, lines[0] if len(lines) == 1 else _list(lines))
    style = "green" if guarantee.private else "red"
    first = Text(plain(guarantee.title), style=f"bold {style}")
    content: list[RenderableType] = [first, Text(""), grid] if grid.row_count else [first]
    return Panel(Group(*content), title="guarantee", title_align="left", border_style=style, padding=(0, 1))


def _list(items: Sequence[str]) -> Table:
    grid = Table.grid(padding=(0, 1))
    for item in items:
        grid.add_row("-", item)
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
    return Group(_spectrum(model), why, Text(""), guarantee_panel(model.guarantee))


def model_details(model: Model, *, largest: int) -> Group:
    """Everything in a model that a person can read: spectrum, loadings, settings and guarantee."""
    return Group(
        _spectrum(model),
        Text(""),
        Text("columns with the largest weights in each component", style=_LABEL),
        loadings_table(model, largest=largest),
        Text(""),
        Text("bounds, scale, count and mean", style=_LABEL),
        labelled(_around(model, largest)),
        Text(""),
        Text("settings", style=_LABEL),
        settings_table(model),
        Text(""),
        guarantee_panel(model.guarantee),
    )


def model_values(model: Model) -> dict[str, Any]:
    """The whole model in plain values, for programs."""
    return {
        "columns": None if model.columns is None else list(model.columns),
        "components": model.components.tolist(),
        "mean": model.mean.tolist(),
        "people": model.people,
        "bounds": {name: model.settings.get(name) for name in ("row_bound", "column_bounds")},
        "scale": None if model.scale is None else model.scale.tolist(),
        # Everything in the file, because programs should not have to read it themselves.
        "values": model.values.tolist(),
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "noise_floor": model.noise_floor,
        "n_above_noise": model.n_above_noise,
        "warnings": list(model.warnings),
        "private": model.guarantee.private,
        "guarantee": model.guarantee.to_dict(),
        "guarantee_in_words": model.guarantee.to_text(),
        "settings": dict(model.settings),
        "scores": SCORES_ARE_RAW,
    }


def _spectrum(model: Model) -> Group:
    rank, dim = model.components.shape
    title = f"{rank} component{'s' * (rank != 1)} of {dim} columns: variance along each, and its share of the whole"
    # Said above the chart, because bars look like a finding.
    first: list[RenderableType] = [nothing_found()] if nothing_stands_out(model) else []
    return Group(*first, Text(title, style=_LABEL), scree(model), above_floor(model), *fill_line(model), *warned(model))


def nothing_stands_out(model: "Model | ItemSpace") -> bool:
    """Whether noise was added and no component is above it."""
    return model.noise_floor > 0 and model.n_above_noise == 0


def nothing_found() -> Text:
    """The headline of a fit in which nothing stands out."""
    return Text("Nothing stands out from the noise. These components may be noise alone.", style="bold red")


def fill_line(model: Model) -> Iterator[Text]:
    """The bound usage and the clipped share, where they were released."""
    bound_usage = model.settings.get("bound_usage")
    # The settings come from a file, which may have been edited.
    if isinstance(bound_usage, numbers.Real) and math.isfinite(float(bound_usage)):
        text = f"{float(bound_usage):.2g}, the mean squared norm of the clipped rows over the squared row bound"
        yield Text.assemble(("bound usage: ", _LABEL), text)
    clipped = model.settings.get("clipped_fraction")
    if isinstance(clipped, numbers.Real) and 0 <= float(clipped) <= 1:
        text = f"about {float(clipped):.0%} of people, at the privately estimated bound"
        yield Text.assemble(("clipped share: ", _LABEL), text)
    elif model.settings.get("scale_from") == "found privately":
        text = "not counted, which would take a part of the budget; `transform --clip` clips rows as the fit did"
        yield Text.assemble(("clipped share: ", _LABEL), text)
    from eigenveil.show.report import taken_of

    shares = taken_of(model)
    if shares is not None:
        taken, unseen = shares
        text = (
            f"about {taken.value:.0%} of all squared norms ({taken.low:.0%} to {taken.high:.0%}), not counting long rows "
            f"that noise hides, at most {unseen:.1%} of all; variances are those of the clipped rows"
        )
        yield Text.assemble(("taken by clipping: ", _LABEL), text)


def warned(model: "Model | ItemSpace") -> Iterator[Text]:
    """What the fit warns of."""
    for warning in model.warnings:
        yield Text.assemble(("warning: ", "bold yellow"), (plain(warning), "yellow"))


def judged(model: Model) -> list[Text]:
    """What the fit says of itself in lines: that nothing stands out, its fill, the share clipped, and its warnings."""
    first = [nothing_found()] if nothing_stands_out(model) else []
    return [*first, *fill_line(model), *warned(model)]


def loadings_table(model: Model, *, largest: int) -> Table:
    """For each component, the columns with the largest weights, with their signs."""
    dim = model.components.shape[1]
    names: Sequence[object] = model.columns if model.columns is not None else [f"column {i}" for i in range(1, dim + 1)]
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for number, weights in enumerate(model.components, start=1):
        # Stable, so that equal weights come in the order of the columns on every machine.
        order = np.argsort(-np.abs(weights), kind="stable")[:largest]
        parts = Text(", ").join(_loading(plain(names[i]), float(weights[i])) for i in order)
        table.add_row(str(number), parts)
    return table


def _loading(name: str, weight: float) -> Text:
    return Text.assemble(f"{name}=", (f"{weight:+.3f}", "green" if weight >= 0 else "magenta"))


def settings_table(model: Model) -> Table:
    """The public settings of the fit, one per line."""
    from eigenveil.show.report import readable_settings

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, text in readable_settings(model.settings):
        grid.add_row(plain(name), plain(text))
    return grid


def _origin(model: Model, fact: str) -> str:
    """Where a bound or units are from. Only a search writes such a fact; without one, whoever fitted the model gave them."""
    if model.settings.get(fact) is None:
        return "given"
    return "exact, not private" if model.settings.get("neighbours") == "none" else "estimated privately"


def _around(model: Model, largest: int) -> Iterator[tuple[str, str]]:
    # Only add-remove hides the number of people. Under the other relations it is public and gets no noise.
    count, noisy = model.people, model.noise_floor > 0 and model.settings.get("neighbours") == "add-remove"
    if count is not None:
        yield "people", f"about {count:.0f}, with noise" if noisy else f"{count:.0f}"
    for name in ("row_bound", "column_bounds"):
        if model.settings.get(name) is not None:
            value = model.settings[name]
            # Units that were found make one bound for all tables, the root of the number of columns.
            units = name == "row_bound" and model.settings.get("scale_from") is not None
            where = "in units of the scale of columns" if units else _origin(model, "bound_from")
            yield name.replace("_", " "), f"{f'{value:.6g}' if isinstance(value, float) else shown(value)}, {where}"
    names = model.columns or tuple(f"column {i}" for i in range(1, len(model.mean) + 1))

    def by_column(values: "Array") -> str:
        pairs = (f"{plain(name)} {value:.4g}" for name, value in zip(names, values, strict=True))
        return join_names(pairs, max_count=2 * largest)

    yield "scale", "none" if model.scale is None else f"{by_column(model.scale)}; {_origin(model, 'scale_from')}"
    if model.settings.get("center") == "none":
        yield "mean", "none was subtracted"
        return
    yield "mean", by_column(model.mean)


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


def rounds_table(rounds: Sequence["Round"]) -> Table:
    """The rounds of a fit over sites or peers, one per line, as `round_rows` has them."""
    header, rows = round_rows(rounds)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in header:
        table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def round_rows(rounds: Sequence["Round"]) -> tuple[list[str], list[list[str]]]:
    """A header, and one row for each round. If there are more than 40, only the first and last 20.

    Empty columns are left out. Charges are in mu; if the hub and the sites both add noise, both charges are shown. Peers have
    no hub, so there is one column of bytes and one ledger.
    """
    residual = any(done.residual is not None and done.residual > _STILL for done in rounds)
    # Peers have no hub, and all that they send counts as up.
    hub = any(done.bytes_down for done in rounds)
    charges = [_charged(done.charges, hub=hub) for done in rounds]
    header = ["round", "stage", "answered", *(["up", "down"] if hub else ["bytes"]), "movement"]
    header += ["residual"] * residual
    cost = "mu, hub / site" if any(" / " in charge for charge in charges) else "charge, mu"
    header += [cost] * any(charges)
    rows: list[list[str]] = []
    half, shortened = _MOST_ROUNDS // 2, len(rounds) > _MOST_ROUNDS
    for index, (done, charge) in enumerate(zip(rounds, charges, strict=True)):
        if not shortened or index < half or index >= len(rounds) - half:
            rows.append([*_round(done, hub=hub), *[_sine(done.residual)] * residual, *[charge] * any(charges)])
        elif index == half:
            rows.append(["...", f"{len(rounds) - 2 * half} more", *[""] * (len(header) - 2)])
    return header, rows


def _round(done: "Round", *, hub: bool) -> list[str]:
    n_recipients = len(done.answered) + len(done.missing)
    return [
        str(done.number + 1),
        plain(done.stage),
        str(n_recipients) if not done.missing else f"{len(done.answered)} of {n_recipients}",
        in_bytes(done.bytes_up),
        *[in_bytes(done.bytes_down)] * hub,
        _sine(done.movement),
    ]


def _sine(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1e}" if value > _STILL else "0"


def spent_mu(rounds: Sequence["Round"]) -> float:
    """What rounds cost together, on the ledger that was charged most."""
    hub = any(done.bytes_down for done in rounds)
    squares: list[float] = []
    for done in rounds:
        for index, ledger in enumerate(_by_ledger(done.charges, hub=hub)):
            squares += [0.0] * (index + 1 - len(squares))
            # Gaussian releases compose by the squares of their mu.
            squares[index] += sum(line.mu**2 for line in ledger)
    return math.sqrt(max(squares, default=0.0))


def _charged(charges: Sequence[Charge], *, hub: bool) -> str:
    """What a round cost: charges of one ledger add up in squares."""
    ledgers = _by_ledger(charges, hub=hub)
    return " / ".join(f"{math.hypot(*(line.mu for line in ledger)):.2g}" for ledger in ledgers)


def _by_ledger(charges: Sequence[Charge], *, hub: bool) -> list[list[Charge]]:
    """The charges of a round, ledger by ledger.

    With a `hub`, a repeated label belongs to the next ledger. Between peers it belongs to a restarted round of the same ledger.
    """
    ledgers: list[list[Charge]] = []
    for charge in charges:
        if not ledgers or (hub and charge.label in {line.label for line in ledgers[-1]}):
            ledgers.append([])
        ledgers[-1].append(charge)
    return ledgers


# Wider charts are no easier to read, and narrower ones show nothing.
_WIDEST: Final = 60
_NARROWEST: Final = 12
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
    """One line per epsilon: an axis from 0 to 1 with the interval, the value, and what random directions would
    capture.

    >>> from rich.console import Console
    >>> from types import SimpleNamespace as at
    >>> half = at(value=0.5, low=0.25, high=0.75)
    >>> chart = CurveChart((Point(epsilon=1.0, captured=half, sine=half, nothing=0.1),), target=1.0)
    >>> Console(width=60, force_terminal=False).print(chart)
    epsilon 0                     1
          1   ┊   ├────●────┤       0.50 (0.25 to 0.75) <- asked
            ┊ what random directions would capture
    """

    points: tuple[Point, ...]
    target: float

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
            style = "bold cyan" if point.epsilon == self.target else "cyan"
            line = Text(f"{point.epsilon:>{labels}g} ", no_wrap=True)
            line.append(_cells(point, width, symbols), style=style)
            line.append(f" {note}", style="bold" if point.epsilon == self.target else "")
            yield line
        yield Text(f"{'':>{labels}} {symbols['floor']} what random directions would capture", style="dim")

    def _note(self, point: Point) -> str:
        return span(point.captured) + " <- asked" * (point.epsilon == self.target)


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
