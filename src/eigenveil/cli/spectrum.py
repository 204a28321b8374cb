"""`eigenveil spectrum`: the eigenvalues of a table, released once, for `eigenveil plan` to read."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from eigenveil.cli import bounds_options as bounding
from eigenveil.cli import options as option
from eigenveil.cli.bounds_file import BoundsFile, BoundsPath, show_bounds, was_given
from eigenveil.cli.files import read_rows, require_input, require_output
from eigenveil.cli.terminal import errors_as_lines, output, watched, wrote

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from eigenveil.estimators.released_spectrum import ReleasedSpectrum

__all__ = ["spectrum"]

_SHOWN: Final = 12


@errors_as_lines
def spectrum(
    context: typer.Context,
    data: option.Data,
    epsilon: option.Epsilon = None,
    delta: option.Delta = None,
    no_privacy: bounding.NoPrivacy = False,
    total: bounding.Total = None,
    person: option.Person = None,
    neighbours: option.NeighboursName = "add-remove",
    bounds: BoundsPath = None,
    row_bound: option.RowBound = None,
    column_bounds: option.ColumnBounds = None,
    center: option.Center = "private",
    origin: option.Origin = None,
    mean_bound: option.MeanBound = None,
    scale: option.Scale = None,
    drop: option.Drop = None,
    features: option.Features = None,
    one_based: option.OneBased = False,
    seed: option.Seed = None,
    target: bounding.SpectrumOutput = Path("spectrum.json"),
    force: option.Force = False,
) -> None:
    """Release the spectrum of a table once, for `eigenveil plan`.

    A plan is as good as what is known of the spectrum. A small part of the
    budget tells it, with the bounds that the fit will have:

      eigenveil spectrum people.csv --row-bound 12 --epsilon 0.1 \\
        --delta 1e-6 -o spectrum.json
      eigenveil plan -n 8000 -k 5 --epsilon 1 --delta 1e-6 \\
        --spectrum spectrum.json

    With --bounds bounds.json it takes what `eigenveil bounds` wrote.
    Where noise hides all of it, it says so, writes nothing, and ends with
    exit code 1. What it cost is spent all the same.
    """
    bounding.require_budget(epsilon, delta, no_privacy=no_privacy)
    require_input(data)
    require_output(target, endings=(".json",), force=force, inputs=[data, *([] if bounds is None else [bounds])])
    left = bounding.left_for_fit(total, epsilon, delta)
    settings = bounding.settings_from(
        epsilon,
        delta,
        row_bound=row_bound,
        column_bounds=option.pair_from("--column-bounds", column_bounds),
        center=center,
        origin=origin,
        mean_bound=mean_bound,
        scale=scale,
        neighbours=neighbours,
        random_state=seed,
    )
    known = None if bounds is None else BoundsFile.read(bounds)
    if known is not None:
        settings = known.merged(settings, was_given(context, tuple(settings)))
    reading = {"person": person, "drop": drop or [], "features": features, "one_based": one_based}
    found = _released(data, settings, reading, known)
    console = output()
    if seed is not None and epsilon is not None:
        from eigenveil.report import warning_panel

        console.print(warning_panel(option.SEEDED))
    if found.spectrum is not None:
        bounding.write_json(target, found.spectrum.to_json())
        wrote(target)
    console.print(_view(found))
    if epsilon is not None and bounding.columns_were_counted(data, features):
        from eigenveil.report import warning_panel

        console.print(warning_panel(option.COUNTED))
    if known is not None and epsilon is not None:
        show_bounds(console, known, settings)
    if found.spectrum is None:
        raise typer.Exit(1)
    console.print(f"\nspectrum written to {target}", soft_wrap=True)
    searches = settings["mean_bound"] is None and settings["column_bounds"] is None
    around = "none" if settings["center"] is None else "private"
    for line in _next(found, left, delta, target, around, searches=searches):
        console.print(line, style=None if line.startswith("  ") else "bold", soft_wrap=True)


def _released(
    data: Path, settings: Mapping[str, Any], reading: Mapping[str, Any], known: BoundsFile | None
) -> "ReleasedSpectrum":
    from eigenveil.estimators.released_spectrum import released_spectrum

    table = read_rows(data, **reading)
    if known is not None:
        known.require_columns(table.rows.shape[1], table.columns)
    try:
        with watched(table.rows) as rows:
            return released_spectrum(rows, **settings)
    except ValueError as error:
        raise ValueError(bounding.in_bounds_words(str(error))) from error


def _view(found: "ReleasedSpectrum") -> "Group":
    from rich.console import Group
    from rich.text import Text

    from eigenveil.report import guarantee_panel

    return Group(*_bars(found), Text(""), guarantee_panel(found.guarantee))


def _bars(found: "ReleasedSpectrum") -> "Iterator[RenderableType]":
    from rich.text import Text

    from eigenveil.report import Bar, BarChart

    if found.spectrum is None:
        yield Text(f"Nothing can be said: {found.why}.", style="bold red")
        return
    values, error = found.spectrum.values, found.spectrum.error
    yield Text(
        f"spectrum of {found.spectrum.dim} columns: variance along each direction, over the square of the bound, "
        f"{found.row_bound:.4g}",
        style="bold",
    )
    digits = len(str(min(_SHOWN, len(values))))
    bars = (
        Bar(f"{at:>{digits}}", float(value), f"{value:.4f}", "cyan" if value > 2 * error else "dim")
        for at, value in enumerate(values[:_SHOWN], start=1)
    )
    yield BarChart(tuple(bars), 2 * error, f"twice the error of each, {2 * error:.2g}")
    if len(values) > _SHOWN:
        yield Text(f"and {len(values) - _SHOWN} more")
    off = f", give or take {found.people_error:.0f}" if found.people_error else ""
    yield Text(f"rows fill {found.spectrum.fill:.2f} of their ball; people: {found.people:.0f}{off}")
    if found.why:
        yield Text(f"{found.why[0].upper()}{found.why[1:]}.", style="yellow")


def _next(
    found: "ReleasedSpectrum",
    left: tuple[float, float] | None,
    delta: float | None,
    target: Path,
    center: str,
    *,
    searches: bool,
) -> Iterator[str]:
    yield "Next:" if left is None else f"Next, with the epsilon = {left[1]:g} that this leaves of {left[0]:g} for both:"
    yield "  " + bounding.command_of(
        "plan",
        None,
        {
            "-n": f"{found.people:.0f}",
            "-k": "K",
            "--epsilon": "EPSILON" if left is None else left[1],
            "--delta": "DELTA" if delta is None else delta,
            "--spectrum": str(target),
            "--center": "known" if center == "none" else None,
            "--no-search": center == "private" and not searches,
        },
    )
