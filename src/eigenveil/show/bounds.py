"""Bounds and spectra on a terminal: the answer, the trade-off, the cost, and the commands to run next."""

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import PrivacyUnit
from eigenveil.errors import join_names, plain
from eigenveil.estimators.bounds.columns import ColumnBoundsResult
from eigenveil.estimators.bounds.rows import BoundsResult
from eigenveil.estimators.bounds.saved import FORMAT, BoundsFile, guarantee_in, reach_of_ranges
from eigenveil.estimators.bounds.spectrum import ReleasedSpectrum
from eigenveil.params.declarations.groups import MissingParams
from eigenveil.params.declarations.private import PrivateParams
from eigenveil.params.declare import as_options, declared
from eigenveil.params.values import text_of
from eigenveil.plan.spectrum import Spectrum
from eigenveil.show.console import Line
from eigenveil.show.terminal import Bar, BarChart, guarantee_panel, guarantee_values, labelled, simple_table, warning_panel

if TYPE_CHECKING:
    from eigenveil.show.console import View

# The most columns whose numbers fit on a command line.
WIDEST: Final = 16
_TRADE: Final = (
    "A fit clips rows: a row whose norm exceeds the bound is scaled down to it. Its noise hides one row of that "
    "norm. A larger bound clips fewer people, but the noise grows with its square. Bound usage is the mean squared norm of the "
    "clipped rows over the square of the bound: what there is to find, in units of the noise. A bound that clips a few people "
    "in a hundred is usually good. One that clips half of them keeps directions but loses how far people lie along them."
)
_SHARED: Final = (
    "Both use the same people's budget, so their costs add up. What was spent here stays spent even if no fit "
    "follows, and running this again costs more."
)
_SQRT: Final = (
    "Each person is in every column, so ranges for d columns have sqrt(d) times the noise of one bound on whole "
    "rows. Without --per-column, `eigenveil bounds` finds that bound."
)
_HALVES: Final = "It measures each column in units of half its range, so that all columns weigh the same."
_MOST_COLUMNS: Final = 40
_MOST_BARS: Final = 12


@final
@dataclass(frozen=True, slots=True)
class Step:
    """A next step: why, the command, and notes."""

    why: str
    command: str
    notes: tuple[str, ...] = ()


def step_lines(steps: Iterable[Step]) -> Iterator[Line]:
    """Each command on one line, however long, so that it can be copied."""
    for step in steps:
        yield Line(step.why, "bold")
        # Not wrapped by rich: a line break in the middle of an option would not paste.
        yield Line(f"  {step.command}")
        for note in step.notes:
            yield Line(note, "bold")


def why_next(left: tuple[float, float] | None) -> str:
    """The introduction of a next step, with the budget it has."""
    if left is None:
        return "Next:"
    return f"Next, with epsilon = {left[1]:g}, which this leaves of {left[0]:g} for both:"


def command_of(*arguments: Any) -> str:
    """A command line that can be copied.

    >>> command_of("fit", Path("my table.csv"), "-k", 5)
    "eigenveil fit 'my table.csv' -k 5"
    """
    return shlex.join(["eigenveil", *map(str, arguments)])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request: parameters by name, options for reading the table, and what is `left` of a total epsilon for the fit.

    `columns` are the names in the table. `target` is the file that the answer is written to, or None.
    """

    data: Path
    settings: Mapping[str, Any]
    reading: Sequence[str]
    left: tuple[float, float] | None
    rank: int | None
    columns: tuple[str, ...] | None = None
    target: Path | None = None

    @property
    def budget(self) -> Budget | None:
        """The budget that is left for the fit."""
        delta = self.settings["delta"]
        return None if self.left is None or delta is None else Budget(self.left[1], delta)

    def fit(self, **bounds: Any) -> Step:
        """The fit to run next, with these bounds on the command line or from the file that contains them."""
        # A search without privacy, for a public table, prints a fit without privacy.
        private = self.settings["epsilon"] is not None
        same = {name: self.settings[name] for name in ("delta", "neighbours", "person", "scale", *declared(MissingParams))}
        own = [*self.reading]
        if self.target is not None:
            # The file contains the scale too.
            bounds, own = {"scale": None}, [*own, "--bounds", str(self.target)]
        # Capitals stand for what only the user knows.
        spend = None if not private else "EPSILON" if self.left is None else self.left[1]
        values = {"n_components": self.rank or "K", "epsilon": spend, **same, **bounds}
        command = command_of("fit", self.data, *as_options(PrivateParams(**values)), *own)
        return Step(why_next(self.left), command, (_SHARED,) if private else ())


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundsAnswer:
    """The answer: whether a bound is `named`, plain values for JSON, the view for a terminal, and the next steps."""

    named: bool
    plain: dict[str, Any]
    view: Group
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, bounds: BoundsResult | ColumnBoundsResult, query: Asked) -> "BoundsAnswer":
        """The answer for a bound on rows, or for ranges of columns."""
        # Both answers have the same parts, so the command prints them alike.
        body: list[RenderableType]
        if isinstance(bounds, BoundsResult):
            kind, dim, named, values = "rows", bounds.dim, bounds.row_bound is not None, _rows_values(bounds)
            body, steps = [*_rows_view(bounds, query)], tuple(_rows_steps(bounds, query))
        else:
            kind, dim, named, values = "columns", len(bounds.flat), bounds.low is not None, _columns_values(bounds)
            body, steps = [*_columns_view(bounds)], tuple(_columns_steps(bounds, query))
        plain = {
            "format": FORMAT,
            "kind": kind,
            "dim": dim,
            "columns": None if query.columns is None else list(query.columns),
            **values,
            **guarantee_values(bounds.guarantee),
            "next": [step.command for step in steps],
        }
        return cls(named=named, plain=plain, view=Group(*body, Text(""), guarantee_panel(bounds.guarantee)), steps=steps)


def _listed(array: Any) -> Any:
    return None if array is None else array.tolist()


def _noted(note: str) -> Iterator[Text]:
    if note:
        yield Text(f"{note[0].upper()}{note[1:]}.", style="yellow")


def _give_or_take(error: float, shown: str) -> str:
    # Without noise there is no error to show.
    return f", give or take {shown}" if error else ""


def _rows_values(bounds: BoundsResult) -> dict[str, Any]:
    return {
        "row_bound": bounds.row_bound,
        "mean_bound": bounds.mean_bound,
        "center": _listed(bounds.center),
        "center_error": bounds.center_error,
        "searched": bounds.searched,
        "scale": _listed(bounds.scale),
        "quantile": bounds.quantile,
        "people": bounds.people,
        "people_error": bounds.people_error,
        "candidates": [asdict(candidate) for candidate in bounds.candidates],
        "outliers": None if bounds.outliers is None else bounds.outliers._asdict(),
        "why": bounds.note,
    }


def _rows_view(bounds: BoundsResult, query: Asked) -> Iterator[RenderableType]:
    chosen = bounds.chosen
    if chosen is None:
        yield Text(f"No bound was found: {bounds.note}.", style="bold red")
        return
    around = "around the mean" if bounds.searched else "around zero" if bounds.center is None else "around the center"
    yield Text.assemble(
        ("row bound: ", "bold"),
        (f"{chosen.bound:.4g}", "bold green"),
        f" {around}. It clips about {chosen.clipped:.1%} of people",
        f"{_give_or_take(chosen.error, f'{chosen.error:.1%}')}.",
    )
    yield from _noted(bounds.note)
    off = _give_or_take(bounds.people_error, f"{bounds.people_error:.0f}")
    shift = f"; noise moved the mean by about {bounds.center_error:.2g}" if bounds.center_error else ""
    yield Text(f"people: {bounds.people:.0f}{off}{shift}", style="dim")
    yield Text("")
    yield _trade(bounds, query)
    yield Text(_TRADE, style="dim")


def _trade(bounds: BoundsResult, query: Asked) -> Table:
    # What each bound would capture needs the number of components and what is left of the budget.
    captured: tuple[float | None, ...] = (None,) * len(bounds.candidates)
    names = ["bound", "people clipped", "noise", "bound usage"]
    if query.rank is not None and query.budget is not None:
        captured = bounds.captured_variance(min(query.rank, bounds.dim), query.budget)
        names.append("captured of clipped, a guess")
    table = simple_table(*names, "", no_wrap=True)
    table.columns[0].justify = "right"
    for candidate, share in zip(bounds.candidates, captured, strict=True):
        chosen = candidate.bound == bounds.row_bound
        off = f" ± {candidate.error:.1%}" if candidate.error else ""
        shares = [] if share is None else [f"{share:.2f}"]
        table.add_row(
            f"{candidate.bound:.4g}",
            f"{candidate.clipped:.1%}{off}",
            f"{candidate.noise:.2f}x",
            f"{candidate.bound_usage:.2f}",
            *shares,
            "<- the answer" if chosen else "",
            style="bold green" if chosen else None,
        )
    return table


def _rows_steps(bounds: BoundsResult, query: Asked) -> Iterator[Step]:
    if bounds.row_bound is None:
        return
    bound = float(f"{bounds.row_bound:.6g}")
    settings: dict[str, Any] = {"row_bound": bound}
    if not bounds.searched:
        settings |= {"center": query.settings["center"]}
    elif bounds.dim <= WIDEST and bounds.center is not None:
        # Rounding the mean to a hundredth of the bound loses nothing and makes the command shorter. A fit that is
        # told where the mean is need not search for it, which costs less.
        units = 1.0 if bounds.scale is None else float(bounds.scale.min())
        settings |= {"origin": _rounded(bounds.center, unit=bounds.row_bound * units), "mean_bound": bound}
    else:
        settings |= {"origin": query.settings["origin"], "mean_bound": float(f"{bounds.mean_bound:.6g}")}
    yield query.fit(**settings)
    if query.budget is None or bounds.chosen is None:
        return
    arguments = ["-n", f"{bounds.people:.0f}", "-d", bounds.dim, "-k", query.rank or "K"]
    arguments += ["--epsilon", text_of(query.budget.epsilon), "--delta", text_of(query.budget.delta)]
    # The fit above is told where the mean is, or has none, so the plan must not count a search.
    where = ["--no-search"] if bounds.searched else ["--center", "none"]
    arguments += ["--bound-usage", f"{bounds.chosen.bound_usage:.2g}", *where]
    yield Step("To see what that fit will find, before you spend the budget:", command_of("plan", *arguments))


def _rounded(numbers: Any, *, unit: float) -> list[float]:
    """Numbers rounded to a hundredth of `unit`, to keep the command line short."""
    step = 10.0 ** math.floor(math.log10(unit / 100))
    return [float(f"{round(float(number) / step) * step:.12g}") for number in numbers]


def _columns_values(bounds: ColumnBoundsResult) -> dict[str, Any]:
    named = bounds.low is not None and bounds.high is not None
    return {
        "low": _listed(bounds.low),
        "high": _listed(bounds.high),
        "origin": bounds.origin.tolist() if named else None,
        "scale": bounds.scale.tolist() if named else None,
        "quantile": bounds.quantile,
        "clipped": bounds.clipped,
        "error": bounds.error,
        "people": bounds.people,
        "people_error": bounds.people_error,
        "why": bounds.note,
    }


def _columns_view(bounds: ColumnBoundsResult) -> Iterator[RenderableType]:
    if bounds.low is None or bounds.high is None:
        yield Text(f"No bounds were found: {bounds.note}.", style="bold red")
        yield Text(_SQRT, style="dim")
        return
    off = _give_or_take(bounds.error, f"{bounds.error:.1%}")
    yield Text.assemble(
        ("column bounds: ", "bold"), f"about {bounds.clipped:.1%} of people are clipped on each side of each column{off}."
    )
    yield from _noted(bounds.note)
    table = simple_table("column", "low", "high", "", no_wrap=True)
    names = bounds.columns or tuple(f"column {i}" for i in range(1, len(bounds.low) + 1))
    for name, low, high, flat in list(zip(names, bounds.low, bounds.high, bounds.flat, strict=True))[:_MOST_COLUMNS]:
        table.add_row(plain(name), f"{low:.4g}", f"{high:.4g}", "nearly all at the origin" if flat else "")
    if len(names) > _MOST_COLUMNS:
        table.add_row(f"... and {len(names) - _MOST_COLUMNS} more, in --output and --json")
    yield Text("")
    yield table
    yield Text(_SQRT, style="dim")


def _columns_steps(bounds: ColumnBoundsResult, query: Asked) -> Iterator[Step]:
    if bounds.low is None or bounds.high is None:
        return
    if len(bounds.low) > WIDEST and query.target is None:
        # Too wide for a command line. The output of --json can be saved for `fit --bounds`.
        return
    # In units of half its range each column lies within 1 of its middle, and a row within sqrt(d).
    reach = reach_of_ranges(len(bounds.low))
    step = query.fit(
        scale=[float(f"{value:.4g}") for value in bounds.scale],
        origin=[float(f"{value:.6g}") for value in bounds.origin],
        mean_bound=reach,
        row_bound=reach,
    )
    yield replace(step, notes=(*step.notes, _HALVES))


def saved_view(path: Path, plain: Mapping[str, Any]) -> "View":
    """A file of bounds, or a spectrum: what was released, and what it cost."""
    bounds = plain["format"] == FORMAT
    facts = _bounds_facts(plain) if bounds else _spectrum_facts(plain)
    use = f"eigenveil fit DATA --bounds {path}" if bounds else f"eigenveil plan --spectrum {path}"
    yield Text("bounds of rows" if bounds else "spectrum", style="bold")
    yield labelled(facts)
    yield Text("")
    # A spectrum of public rows cost nothing, and says nothing of a cost.
    if plain.get("guarantee") is not None:
        yield guarantee_panel(guarantee_in(path))
    yield Text(f"use it with: {use} ...", style="dim")


def _bounds_facts(plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = plain.get("columns") or [f"column {i}" for i in range(1, plain["dim"] + 1)]
    yield "columns", join_names(names)
    for name in ("row_bound", "mean_bound"):
        yield from _number(plain, name)
    low, high = plain.get("low"), plain.get("high")
    if low is not None and high is not None:
        ends = (f"{name} {start:.4g} to {end:.4g}" for name, start, end in zip(names, low, high, strict=True))
        yield "ranges", join_names(ends)
    for name, word in (("center", "mean"), ("scale", "units")):
        if plain.get(name) is not None:
            yield word, join_names(f"{column} {value:.4g}" for column, value in zip(names, plain[name], strict=True))
    yield from _number(plain, "people", off="people_error", digits=".0f")


def _spectrum_facts(plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    spectrum = Spectrum.from_json(plain)
    yield "columns", str(spectrum.dim)
    yield "variances", f"{join_names(f'{value:.4g}' for value in spectrum.values)}, over the square of the row bound"
    yield "error of each", f"{spectrum.error:.2g}"
    yield "bound usage", f"{spectrum.bound_usage:.2g}, the mean squared norm over the square of the row bound"


def _number(plain: Mapping[str, Any], name: str, *, off: str = "", digits: str = ".6g") -> Iterator[tuple[str, str]]:
    """A number of the file. Those that no fit uses may be anything in a file that was edited."""
    value, error = plain.get(name), plain.get(off)
    if isinstance(value, int | float) and math.isfinite(value):
        has_error = isinstance(error, int | float) and math.isfinite(error) and error > 0
        margin = f", give or take {error:.2g}" if has_error else ""
        yield name.replace("_", " "), f"{float(value):{digits}}{margin}"


def spectrum_view(released: ReleasedSpectrum) -> "View":
    """A spectrum, and what it cost."""
    yield from _spectrum_bars(released)
    yield Text("")
    yield guarantee_panel(released.guarantee)


def _spectrum_bars(released: ReleasedSpectrum) -> "View":
    if released.spectrum is None:
        yield Text(f"No spectrum: {released.why}.", style="bold red")
        return
    # Values below twice their error are drawn dim: they may be noise.
    values, error = released.spectrum.values, released.spectrum.error
    yield Text(
        f"spectrum of {released.spectrum.dim} columns: variance along each direction over the square of the bound, "
        f"{released.row_bound:.4g}",
        style="bold",
    )
    # Numbers of components are aligned, whatever their digits.
    digits, shown = len(str(min(_MOST_BARS, len(values)))), enumerate(values[:_MOST_BARS].tolist(), start=1)
    bars = (
        Bar(label=f"{at:>{digits}}", value=value, note=f"{value:.4f}", style="cyan" if value > 2 * error else "dim")
        for at, value in shown
    )
    yield BarChart(tuple(bars), 2 * error, f"twice the error of each, {2 * error:.2g}")
    if len(values) > _MOST_BARS:
        yield Text(f"and {len(values) - _MOST_BARS} more")
    off = _give_or_take(released.people_error, f"{released.people_error:.0f}")
    yield Text(
        f"mean squared norm: {released.spectrum.bound_usage:.2f} of row_bound^2 (bound usage); people: {released.people:.0f}{off}"
    )
    yield from _noted(released.why)


def spectrum_step(
    released: ReleasedSpectrum, left: tuple[float, float] | None, settings: Mapping[str, Any], target: Path
) -> Step:
    """The `plan` command for a fit with the same bounds."""
    # Capitals stand for what only the person knows. The command is printed to be edited.
    budget = "EPSILON" if left is None else text_of(left[1])
    delta = "DELTA" if settings["delta"] is None else text_of(settings["delta"])
    arguments = ["-n", f"{released.people:.0f}", "-k", "K", "--epsilon", budget, "--delta", delta, "--spectrum", target]
    if settings["center"] != "private":
        # Numbers cost a plan as little as none, and need not be typed again.
        arguments += ["--center", "none"]
    elif settings["mean_bound"] is not None or settings["column_bounds"] is not None:
        # With these bounds the fit takes one step to the mean, so the plan must not count a search.
        arguments += ["--no-search"]
    return Step(why_next(left), command_of("plan", *arguments))


def shared_cost(bounds: BoundsFile, settings: Mapping[str, Any], unit: PrivacyUnit | None) -> "View":
    """What the bounds cost together with a private fit with `settings`, and warnings if they are not private or too small.

    `unit` is what the fit protects. Costs for rows and costs for people are not added up.
    """
    for warning in (bounds.warning, bounds.long_rows):
        if warning is not None:
            yield warning_panel(warning)
    both = None if unit is None else bounds.together(Budget(settings["epsilon"], settings["delta"]), unit)
    if both is not None:
        yield Line(f"\n{both}")
