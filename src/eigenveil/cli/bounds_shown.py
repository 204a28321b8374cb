"""What `eigenveil bounds` shows of what it found: the answer, the trade, what it cost, and the commands that come next."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenveil.cli.bounds_file import FORMAT, reach_of_ranges
from eigenveil.cli.bounds_options import WIDEST, command_of, quoted
from eigenveil.estimators.find_column_bounds import FoundColumnBounds
from eigenveil.estimators.found_bounds import FoundBounds
from eigenveil.privacy import Budget, Guarantee
from eigenveil.report import guarantee_panel, plain

__all__ = ["Answer", "Asked"]

_TRADE: Final = (
    "A fit scales rows that are longer than the bound down to it (they are cut), and adds as much noise as hides one row of that "
    "length. So a larger bound cuts fewer people, and the noise of a fit grows with its square. Fill is what there is to find in "
    "units of that noise: the mean squared length of rows cut to the bound, over its square. A bound that cuts a few people "
    "in a hundred is usually a good one; one that cuts half of them keeps directions and loses how far people lie along them."
)
_SHARED: Final = (
    "Both are about the same people, so their costs add up: what was spent here is spent, also if no fit follows, and asking "
    "again is a further cost."
)
_SQRT: Final = (
    "Each person is in every column, so ranges of d columns cost sqrt(d) times the noise of one bound on whole rows, which "
    "`eigenveil bounds` finds without --columns."
)
_MOST_COLUMNS: Final = 40


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked: `left` is a total epsilon and what of it is left for the fit, and `same` the options that a fit shares.

    `columns` are the names in the table, and `target` is the file that the answer is written to, None where there is none.
    """

    data: Path
    delta: float | None
    left: tuple[float, float] | None
    rank: int | None
    origin: str | None
    same: dict[str, Any]
    columns: tuple[str, ...] | None = None
    target: Path | None = None

    @property
    def budget(self) -> Budget | None:
        """What is left for the fit."""
        return None if self.left is None or self.delta is None else Budget(self.left[1], self.delta)

    def fit(self, **bounds: Any) -> str:
        """The fit that comes next: with these bounds, or from the file that holds them and more."""
        private = self.delta is not None
        same = self.same
        if self.target is not None:
            # Units are in the file, too.
            bounds, same = {"bounds": self.target}, {**self.same, "--scale": None}
        spend = {"--epsilon": "EPSILON" if self.left is None else self.left[1], "--delta": self.delta}
        return command_of(
            "fit",
            self.data,
            {
                "-k": self.rank or "K",
                **(spend if private else {"--no-privacy": True}),
                **same,
                **{f"--{name.replace('_', '-')}": value for name, value in bounds.items()},
            },
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What is shown: whether a bound is `named`, plain values for JSON, the view for a terminal, and `commands` under it."""

    named: bool
    plain: dict[str, Any]
    view: Group
    commands: tuple[str, ...]

    @classmethod
    def of(cls, found: FoundBounds | FoundColumnBounds, asked: Asked) -> "Answer":
        """Of a bound on rows, or of ranges of columns."""
        if isinstance(found, FoundBounds):
            named, following = found.row_bound is not None, _rows_commands(found, asked)
            values, body = _rows_values(found), list(_rows_view(found, asked))
        else:
            named, following = found.low is not None, _columns_commands(found, asked)
            values, body = _columns_values(found), list(_columns_view(found))
        dim = found.dim if isinstance(found, FoundBounds) else len(found.flat)
        names = None if asked.columns is None else list(asked.columns)
        head = {
            "format": FORMAT,
            "kind": "rows" if isinstance(found, FoundBounds) else "columns",
            "dim": dim,
            "columns": names,
        }
        lines = tuple(following) if named else ()
        commands = [line.strip() for line in lines if line.startswith("  ")]
        return cls(
            named,
            {**head, **values, **_cost(found.guarantee), "next": commands},
            Group(*body, Text(""), guarantee_panel(found.guarantee)),
            lines,
        )


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
        "scale": None if found.scale is None else found.scale.tolist(),
        "quantile": found.quantile,
        "people": found.people,
        "people_error": found.people_error,
        "candidates": [asdict(one) for one in found.candidates],
        "why": found.why,
    }


def _rows_view(found: FoundBounds, asked: Asked) -> Iterator[RenderableType]:
    chosen = found.chosen
    if chosen is None:
        yield Text(f"Nothing can be said: {found.why}.", style="bold red")
        return
    around = "around the mean" if found.searched else "around zero" if found.center is None else "around the center"
    yield Text.assemble(
        ("row bound: ", "bold"),
        (f"{chosen.bound:.4g}", "bold green"),
        f" {around}. About {_share(chosen.cut)} of people have rows that are longer",
        f", give or take {_share(chosen.error)}." if chosen.error else ".",
    )
    if found.why:
        yield Text(f"{found.why[0].upper()}{found.why[1:]}.", style="yellow")
    off = f", give or take {found.people_error:.0f}" if found.people_error else ""
    known = f"; noise has moved the mean by {found.center_error:.2g} or so" if found.center_error else ""
    yield Text(f"people: {found.people:.0f}{off}{known}", style="dim")
    yield Text("")
    yield _trade(found, asked)
    yield Text(_TRADE, style="dim")


def _trade(found: FoundBounds, asked: Asked) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    captured: tuple[float | None, ...] = (None,) * len(found.candidates)
    names = ["bound", "people cut", "noise", "fill"]
    if asked.rank is not None and asked.budget is not None:
        captured = found.captured(min(asked.rank, found.dim), asked.budget)
        names.append("captured, a guess")
    for name in [*names, ""]:
        table.add_column(name, justify="right", no_wrap=True)
    for one, share in zip(found.candidates, captured, strict=True):
        chosen = one.bound == found.row_bound
        off = f" ± {_share(one.error)}" if one.error else ""
        row = [f"{one.bound:.4g}", f"{_share(one.cut)}{off}", f"{one.noise:.2f}x", f"{one.fill:.2f}"]
        more = [] if share is None else [f"{share:.2f}"]
        table.add_row(*row, *more, "<- the answer" if chosen else "", style="bold green" if chosen else None)
    return table


def _share(share: float) -> str:
    return f"{share:.1%}"


def _rows_commands(found: FoundBounds, asked: Asked) -> Iterator[str]:
    bound = found.row_bound
    if bound is None:
        return
    place: dict[str, Any] = {"row_bound": float(f"{bound:.6g}")}
    if not found.searched:
        place |= {"center": "none"}
    elif found.dim <= WIDEST and found.center is not None:
        # A hundredth of the bound away is as good, and shorter. Not to be searched for again, the mean costs a fit less.
        units = 1.0 if found.scale is None else float(found.scale.min())
        place |= {"origin": quoted(found.center, unit=bound * units), "mean_bound": float(f"{bound:.6g}")}
    else:
        place |= {"origin": asked.origin, "mean_bound": float(f"{found.mean_bound:.6g}")}
    yield from _next(asked, asked.fit(**place))
    if asked.budget is None or found.chosen is None:
        return
    yield "What it will bring, before it is spent:"
    yield "  " + command_of(
        "plan",
        None,
        {
            "-n": f"{found.people:.0f}",
            "-d": found.dim,
            "-k": asked.rank or "K",
            "--epsilon": asked.budget.epsilon,
            "--delta": asked.delta,
            "--fill": f"{found.chosen.fill:.2g}",
            # The fit above is told where the mean is looked for, or has none.
            **({"--no-search": True} if found.searched else {"--center": "known"}),
        },
    )


def _next(asked: Asked, command: str) -> Iterator[str]:
    yield ""
    if asked.left is None:
        yield "Next:"
    else:
        total, left = asked.left
        yield f"Next, with the epsilon = {left:g} that this leaves of {total:g} for both:"
    yield f"  {command}"
    if asked.delta is not None:
        yield _SHARED


def _columns_values(found: FoundColumnBounds) -> dict[str, Any]:
    named = found.low is not None and found.high is not None
    return {
        "low": None if found.low is None else found.low.tolist(),
        "high": None if found.high is None else found.high.tolist(),
        "origin": found.origin.tolist() if named else None,
        "scale": found.scale.tolist() if named else None,
        "quantile": found.quantile,
        "cut": found.cut,
        "error": found.error,
        "people": found.people,
        "people_error": found.people_error,
        "why": found.why,
    }


def _columns_view(found: FoundColumnBounds) -> Iterator[RenderableType]:
    if found.low is None or found.high is None:
        yield Text(f"Nothing can be said: {found.why}.", style="bold red")
        yield Text(_SQRT, style="dim")
        return
    off = f", give or take {_share(found.error)}" if found.error else ""
    yield Text.assemble(
        ("column bounds: ", "bold"), f"about {_share(found.cut)} of people are cut on each side of each column{off}."
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


def _columns_commands(found: FoundColumnBounds, asked: Asked) -> Iterator[str]:
    if found.low is None or found.high is None:
        return
    if len(found.low) > WIDEST and asked.target is None:
        # What --json shows can be saved, and a fit then takes it with --bounds.
        return
    # In units of half its range each column lies within one of the middle, and a row within sqrt(d).
    reach = reach_of_ranges(len(found.low))
    digits = [float(f"{value:.4g}") for value in found.scale]
    middle = [float(f"{value:.6g}") for value in found.origin]
    yield from _next(
        asked,
        asked.fit(
            scale=",".join(f"{value:g}" for value in digits),
            origin=",".join(f"{value:.6g}" for value in middle),
            mean_bound=reach,
            row_bound=reach,
        ),
    )
    yield "It puts columns in units of half their range, so that all of them weigh the same."
