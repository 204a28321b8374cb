"""What `eigenveil bounds` shows: the answer, the trade-off, the cost, and the commands to run next."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenveil.commands._bounds_file import FORMAT, reach_of_ranges
from eigenveil.commands._files import Reading
from eigenveil.commands._steps import WIDEST, Step, command_of, why_next
from eigenveil.core.accounting import Budget
from eigenveil.estimators.bounds.columns import FoundColumnBounds
from eigenveil.estimators.bounds.found import FoundBounds
from eigenveil.params import PrivateParams, declared
from eigenveil.params.declarations.reading import MissingParams
from eigenveil.params.texts import text_of
from eigenveil.params.words import as_options
from eigenveil.privacy import Guarantee
from eigenveil.show.terminal import guarantee_panel, plain

__all__ = ["Asked", "BoundsAnswer"]

_TRADE: Final = (
    "A fit clips rows: a row whose norm exceeds the bound is scaled down to it. Its noise hides one row of that "
    "norm. So a larger bound clips fewer people, but the noise grows with its square. Fill is the mean squared norm of the "
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


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """The request: parameters by name, how the table was read, and what is `left` of a total epsilon for the fit.

    `columns` are the names in the table. `target` is the file that the answer is written to, or None.
    """

    data: Path
    settings: Mapping[str, Any]
    reading: Reading
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
        same = {
            name: self.settings[name] for name in ("delta", "neighbours", "person", "scale", *declared(MissingParams))
        }
        own = [*self.reading.words, *(word for name in self.reading.carry for word in ("--carry", name))]
        if self.target is not None:
            # The file contains the scale too.
            bounds, own = {"scale": None}, [*own, "--bounds", str(self.target)]
        # Capitals stand for what only the user knows.
        spend = None if not private else "EPSILON" if self.left is None else self.left[1]
        values = {"n_components": self.rank or "K", "epsilon": spend, **same, **bounds}
        command = command_of("fit", self.data, *as_options(PrivateParams(**values)), *own)
        return Step(why_next(self.left), command, (_SHARED,) if private else ())


@final
@dataclass(frozen=True, slots=True, eq=False)
class BoundsAnswer:
    """The answer: whether a bound is `named`, plain values for JSON, the view for a terminal, and the next steps."""

    named: bool
    plain: dict[str, Any]
    view: Group
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, found: FoundBounds | FoundColumnBounds, asked: Asked) -> "BoundsAnswer":
        """The answer for a bound on rows, or for ranges of columns."""
        # Both answers have the same parts, so the command prints them alike.
        if isinstance(found, FoundBounds):
            kind, dim, named = "rows", found.dim, found.row_bound is not None
            values, body, steps = _rows_values(found), list(_rows_view(found, asked)), tuple(_rows_steps(found, asked))
        else:
            kind, dim, named = "columns", len(found.flat), found.low is not None
            values, body, steps = (
                _columns_values(found),
                list(_columns_view(found)),
                tuple(_columns_steps(found, asked)),
            )
        head = {
            "format": FORMAT,
            "kind": kind,
            "dim": dim,
            "columns": None if asked.columns is None else list(asked.columns),
        }
        following = {"next": [step.command for step in steps]}
        view = Group(*body, Text(""), guarantee_panel(found.guarantee))
        return cls(named, {**head, **values, **_cost(found.guarantee), **following}, view, steps)


def _cost(guarantee: Guarantee) -> dict[str, Any]:
    return {
        "private": guarantee.private,
        "guarantee": guarantee.to_dict(),
        "guarantee_in_words": guarantee.words(),
    }


def _rows_values(found: FoundBounds) -> dict[str, Any]:
    return {
        "row_bound": found.row_bound,
        "mean_bound": found.mean_bound,
        "center": None if found.center is None else found.center.tolist(),
        "center_error": found.center_error,
        "searched": found.searched,
        "scale": None if found.scale is None else found.scale.tolist(),
        "quantile": found.quantile,
        "people": found.people,
        "people_error": found.people_error,
        "candidates": [asdict(one) for one in found.candidates],
        "outliers": None if found.outliers is None else found.outliers._asdict(),
        "why": found.why,
    }


def _rows_view(found: FoundBounds, asked: Asked) -> Iterator[RenderableType]:
    chosen = found.chosen
    if chosen is None:
        yield Text(f"No bound was found: {found.why}.", style="bold red")
        return
    around = "around the mean" if found.searched else "around zero" if found.center is None else "around the center"
    yield Text.assemble(
        ("row bound: ", "bold"),
        (f"{chosen.bound:.4g}", "bold green"),
        f" {around}. It clips about {_share(chosen.clipped)} of people",
        f", give or take {_share(chosen.error)}." if chosen.error else ".",
    )
    if found.why:
        yield Text(f"{found.why[0].upper()}{found.why[1:]}.", style="yellow")
    off = f", give or take {found.people_error:.0f}" if found.people_error else ""
    known = f"; noise moved the mean by about {found.center_error:.2g}" if found.center_error else ""
    yield Text(f"people: {found.people:.0f}{off}{known}", style="dim")
    yield Text("")
    yield _trade(found, asked)
    yield Text(_TRADE, style="dim")


def _trade(found: FoundBounds, asked: Asked) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    # What each bound would capture needs the number of components and what is left of the budget.
    captured: tuple[float | None, ...] = (None,) * len(found.candidates)
    names = ["bound", "people clipped", "noise", "fill"]
    if asked.rank is not None and asked.budget is not None:
        captured = found.captured(min(asked.rank, found.dim), asked.budget)
        names.append("captured of clipped, a guess")
    for name in [*names, ""]:
        table.add_column(name, justify="right", no_wrap=True)
    for one, share in zip(found.candidates, captured, strict=True):
        chosen = one.bound == found.row_bound
        # Without noise there is no error to show.
        off = f" ± {_share(one.error)}" if one.error else ""
        row = [f"{one.bound:.4g}", f"{_share(one.clipped)}{off}", f"{one.noise:.2f}x", f"{one.fill:.2f}"]
        more = [] if share is None else [f"{share:.2f}"]
        table.add_row(*row, *more, "<- the answer" if chosen else "", style="bold green" if chosen else None)
    return table


def _share(share: float) -> str:
    return f"{share:.1%}"


def _rows_steps(found: FoundBounds, asked: Asked) -> Iterator[Step]:
    if found.row_bound is None:
        return
    bound = float(f"{found.row_bound:.6g}")
    place: dict[str, Any] = {"row_bound": bound}
    if not found.searched:
        place |= {"center": asked.settings["center"]}
    elif found.dim <= WIDEST and found.center is not None:
        # Rounding the mean to a hundredth of the bound loses nothing and makes the command shorter. A fit that is
        # told where the mean is need not search for it, which costs less.
        units = 1.0 if found.scale is None else float(found.scale.min())
        place |= {"origin": _rounded(found.center, unit=found.row_bound * units), "mean_bound": bound}
    else:
        place |= {"origin": asked.settings["origin"], "mean_bound": float(f"{found.mean_bound:.6g}")}
    yield asked.fit(**place)
    if asked.budget is None or found.chosen is None:
        return
    words = ["-n", f"{found.people:.0f}", "-d", found.dim, "-k", asked.rank or "K"]
    words += ["--epsilon", text_of(asked.budget.epsilon), "--delta", text_of(asked.budget.delta)]
    # The fit above is told where the mean is, or has none, so the plan must not count a search.
    words += ["--fill", f"{found.chosen.fill:.2g}", *(["--no-search"] if found.searched else ["--center", "none"])]
    yield Step("To see what that fit will find, before you spend the budget:", command_of("plan", *words))


def _rounded(numbers: Any, *, unit: float) -> list[float]:
    """Numbers rounded to a hundredth of `unit`, to keep the command line short."""
    step = 10.0 ** math.floor(math.log10(unit / 100))
    return [float(f"{round(float(number) / step) * step:.12g}") for number in numbers]


def _columns_values(found: FoundColumnBounds) -> dict[str, Any]:
    named = found.low is not None and found.high is not None
    return {
        "low": None if found.low is None else found.low.tolist(),
        "high": None if found.high is None else found.high.tolist(),
        "origin": found.origin.tolist() if named else None,
        "scale": found.scale.tolist() if named else None,
        "quantile": found.quantile,
        "clipped": found.clipped,
        "error": found.error,
        "people": found.people,
        "people_error": found.people_error,
        "why": found.why,
    }


def _columns_view(found: FoundColumnBounds) -> Iterator[RenderableType]:
    if found.low is None or found.high is None:
        yield Text(f"No bounds were found: {found.why}.", style="bold red")
        yield Text(_SQRT, style="dim")
        return
    off = f", give or take {_share(found.error)}" if found.error else ""
    yield Text.assemble(
        ("column bounds: ", "bold"),
        f"about {_share(found.clipped)} of people are clipped on each side of each column{off}.",
    )
    if found.why:
        yield Text(f"{found.why[0].upper()}{found.why[1:]}.", style="yellow")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("column", "low", "high", ""):
        table.add_column(name, justify="left" if name == "column" else "right", no_wrap=True)
    names = found.columns or tuple(f"column {i}" for i in range(1, len(found.low) + 1))
    for name, low, high, flat in list(zip(names, found.low, found.high, found.flat, strict=True))[:_MOST_COLUMNS]:
        table.add_row(plain(name), f"{low:.4g}", f"{high:.4g}", "nearly all at the origin" if flat else "")
    if len(names) > _MOST_COLUMNS:
        table.add_row(f"... and {len(names) - _MOST_COLUMNS} more, in --output and --json")
    yield Text("")
    yield table
    yield Text(_SQRT, style="dim")


def _columns_steps(found: FoundColumnBounds, asked: Asked) -> Iterator[Step]:
    if found.low is None or found.high is None:
        return
    if len(found.low) > WIDEST and asked.target is None:
        # Too wide for a command line. The output of --json can be saved for `fit --bounds`.
        return
    # In units of half its range each column lies within 1 of its middle, and a row within sqrt(d).
    reach = reach_of_ranges(len(found.low))
    step = asked.fit(
        scale=[float(f"{value:.4g}") for value in found.scale],
        origin=[float(f"{value:.6g}") for value in found.origin],
        mean_bound=reach,
        row_bound=reach,
    )
    yield replace(step, notes=(*step.notes, _HALVES))
