"""`eigenveil spectrum`: releases the eigenvalues of a table once, for `eigenveil plan`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from eigenveil.commands import _options as option
from eigenveil.commands import _spending as kept
from eigenveil.commands import _steps as bounding
from eigenveil.commands._bounds_file import BoundsFile, BoundsPath, show_bounds, was_given
from eigenveil.commands._command import Command
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import Reading, require_output
from eigenveil.data.formats import TableParams
from eigenveil.params import SpectrumParams
from eigenveil.params.texts import text_of
from eigenveil.show.console import output, watched

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from eigenveil.estimators.bounds.spectrum import ReleasedSpectrum

__all__ = ["COMMAND"]

_SHOWN: Final = 12


def spectrum(
    context: typer.Context,
    data: option.Data,
    settings: dict[str, Any],
    reading: TableParams,
    total: bounding.Total = None,
    bounds: BoundsPath = None,
    carry: option.Carry = None,
    ledger: kept.LedgerPath = None,
    dataset: kept.Dataset = None,
    life_epsilon: kept.LifeEpsilon = None,
    life_delta: kept.LifeDelta = None,
    target: bounding.SpectrumOutput = Path("spectrum.json"),
    force: option.Force = False,
) -> None:
    """Release the spectrum of a table once, for `eigenveil plan`.

    A plan is only as good as what it knows of the spectrum. A small part of
    the budget releases it. Use the same bounds as the fit will:

      eigenveil spectrum people.csv --row-bound 12 --epsilon 0.1 \\
        --delta 1e-6 -o spectrum.json
      eigenveil plan -n 8000 -k 5 --epsilon 1 --delta 1e-6 \\
        --spectrum spectrum.json

    With --bounds bounds.json it uses what `eigenveil bounds` wrote.
    If noise hides all of it, it says so, writes nothing, and exits with
    code 1. The budget is spent even then.
    """
    lasting = kept.LastingLedger(ledger, dataset, life_epsilon, life_delta)
    lasting.require_sense(settings)
    read = Reading(reading, settings["person"], tuple(carry or ()), gaps=settings["missing"] != "refuse")
    read.require(data)
    read.require_passes(data, settings)
    require_output(target, endings=(".json",), force=force, inputs=[path for path in (data, bounds, ledger) if path])
    epsilon, delta = settings["epsilon"], settings["delta"]
    left = bounding.left_for_fit(total, epsilon, delta)
    known = None if bounds is None else BoundsFile.read(bounds)
    if known is not None:
        settings = known.merged(settings, was_given(context, tuple(settings)))
    found, spending = _released(data, settings, read, known, lasting)
    console = output()
    if settings["random_state"] is not None and epsilon is not None:
        from eigenveil.show.terminal import warning_panel

        console.print(warning_panel(option.SEEDED))
    if found.spectrum is not None:
        # With its guarantee, so that `eigenveil account` can add up what it cost.
        bounding.write_json(target, {**found.spectrum.to_json(), "guarantee": found.guarantee.to_dict()})
        wrote(target)
    console.print(_view(found))
    if epsilon is not None and read.counted(data):
        from eigenveil.show.terminal import warning_panel

        console.print(warning_panel(option.COUNTED))
    if known is not None and epsilon is not None:
        show_bounds(console, known, settings, found.guarantee.protects)
    spending.show()
    if found.spectrum is None:
        raise typer.Exit(1)
    console.print(f"\nspectrum written to {target}", soft_wrap=True)
    bounding.show_steps(console, [_next(found, left, settings, target)])


def _released(
    data: Path,
    settings: Mapping[str, Any],
    reading: Reading,
    known: BoundsFile | None,
    lasting: kept.LastingLedger,
) -> "tuple[ReleasedSpectrum, kept.FitSpending]":
    from eigenveil.data.rows import NamedRows
    from eigenveil.estimators.bounds.spectrum import released_spectrum

    table = reading.table(data)
    if known is not None:
        known.require_columns(table.rows.shape[1], table.columns)
    title, source = f"spectrum, {data.name}", reading.source(data)
    with (
        lasting.charged(table.rows, settings, person=reading.person, title=title, source=source) as spending,
        watched(table.rows) as rows,
    ):
        named = NamedRows(rows, table.columns, reading.person)
        found = released_spectrum(named, **settings, ledger=spending.ledger)
        spending.released = found.words().encode()
    return found, spending


def _view(found: "ReleasedSpectrum") -> "Group":
    from rich.console import Group
    from rich.text import Text

    from eigenveil.show.terminal import guarantee_panel

    return Group(*_bars(found), Text(""), guarantee_panel(found.guarantee))


def _bars(found: "ReleasedSpectrum") -> "Iterator[RenderableType]":
    from rich.text import Text

    from eigenveil.show.terminal import Bar, BarChart

    if found.spectrum is None:
        yield Text(f"No spectrum: {found.why}.", style="bold red")
        return
    # Values below twice their error are drawn dim: they may be noise.
    values, error = found.spectrum.values, found.spectrum.error
    yield Text(
        f"spectrum of {found.spectrum.dim} columns: variance along each direction over the square of the bound, "
        f"{found.row_bound:.4g}",
        style="bold",
    )
    # Numbers of components are aligned, whatever their digits.
    digits = len(str(min(_SHOWN, len(values))))
    bars = (
        Bar(f"{at:>{digits}}", float(value), f"{value:.4f}", "cyan" if value > 2 * error else "dim")
        for at, value in enumerate(values[:_SHOWN], start=1)
    )
    yield BarChart(tuple(bars), 2 * error, f"twice the error of each, {2 * error:.2g}")
    if len(values) > _SHOWN:
        yield Text(f"and {len(values) - _SHOWN} more")
    off = f", give or take {found.people_error:.0f}" if found.people_error else ""
    yield Text(f"mean squared norm: {found.spectrum.fill:.2f} of row_bound^2 (fill); people: {found.people:.0f}{off}")
    if found.why:
        yield Text(f"{found.why[0].upper()}{found.why[1:]}.", style="yellow")


def _next(
    found: "ReleasedSpectrum", left: tuple[float, float] | None, settings: Mapping[str, Any], target: Path
) -> bounding.Step:
    """The `plan` command for a fit with the same bounds."""
    # Capitals stand for what only the person knows. The command is printed to be edited.
    budget = "EPSILON" if left is None else text_of(left[1])
    delta = "DELTA" if settings["delta"] is None else text_of(settings["delta"])
    words = ["-n", f"{found.people:.0f}", "-k", "K", "--epsilon", budget, "--delta", delta, "--spectrum", target]
    if settings["center"] != "private":
        # Numbers cost a plan as little as none, and need not be typed again.
        words += ["--center", "none"]
    elif settings["mean_bound"] is not None or settings["column_bounds"] is not None:
        # With these bounds the fit takes one step to the mean, so the plan must not count a search.
        words += ["--no-search"]
    return bounding.Step(bounding.why_next(left), bounding.command_of("plan", *words))


COMMAND = Command(spectrum, SpectrumParams, panel="Start here", reads=True)
