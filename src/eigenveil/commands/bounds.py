"""`eigenveil bounds`: finds a bound for a fit privately, shows the trade-off, and prints the command to run next."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from eigenveil.commands import _options as option
from eigenveil.commands import _spending as kept
from eigenveil.commands import _steps as bounding
from eigenveil.commands._command import Command
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import Reading, require_output
from eigenveil.data.formats import TableParams
from eigenveil.errors import require, require_param
from eigenveil.params import BoundsParams
from eigenveil.show.console import output, watched

if TYPE_CHECKING:
    from eigenveil.estimators.bounds.columns import FoundColumnBounds
    from eigenveil.estimators.bounds.found import FoundBounds

__all__ = ["COMMAND"]


def bounds(
    data: option.Data,
    settings: dict[str, Any],
    reading: TableParams,
    per_column: bounding.PerColumn = False,
    total: bounding.Total = None,
    components: bounding.Rank = None,
    carry: option.Carry = None,
    ledger: kept.LedgerPath = None,
    dataset: kept.Dataset = None,
    life_epsilon: kept.LifeEpsilon = None,
    life_delta: kept.LifeDelta = None,
    target: bounding.BoundsOutput = None,
    force: option.Force = False,
    as_json: bounding.AsJson = False,
) -> None:
    """Find a bound on rows privately, for a fit that needs one.

    A fit needs a bound that was not read off its rows. If you know none, a
    small part of the budget finds one:

      eigenveil bounds people.csv --epsilon 0.1 --delta 1e-6

    The answer shows how many people other bounds would clip and what they
    would cost, and the `eigenveil fit` command that uses it. Both spend the
    same people's budget: with --total it says how much is left for the fit,
    and with --ledger both are charged to one budget that lasts.
    With --output bounds.json the fit reads the bound from there (--bounds).

    A range for each column instead of one bound for whole rows:

      eigenveil bounds people.csv --per-column --epsilon 0.3 --delta 1e-6

    If noise hides the answer, it says so, names no bound, and exits with
    code 1. The budget is spent even then.
    """
    # Everything that can be refused is refused before the table is read.
    lasting = kept.LastingLedger(ledger, dataset, life_epsilon, life_delta)
    lasting.require_sense(settings)
    read = Reading(reading, settings["person"], tuple(carry or ()), gaps=settings["missing"] != "refuse")
    read.require(data)
    read.require_passes(data, settings)
    if target is not None:
        require_output(target, endings=(".json",), force=force, inputs=[path for path in (data, ledger) if path])
    # With --per-column each column is measured from its origin, and no mean is looked for.
    searched = settings["center"] == "private"
    require(not per_column or components is None, "--components is for a bound on rows: leave out --per-column")
    require(not per_column or searched, "--center is for a bound on rows: leave out --per-column")
    require_param(
        per_column or searched or settings["origin"] is None,
        "{origin} is where the search for the mean starts, and only {center=private} searches: leave out one of them",
    )
    # Worked out first: a total that is too small must be refused before this release spends its part.
    left = bounding.left_for_fit(total, settings["epsilon"], settings["delta"])
    from eigenveil.commands._bounds_shown import Asked, BoundsAnswer
    from eigenveil.show.terminal import warning_panel

    found, names, spending = _found(
        data, settings, read, lasting, columns=per_column, listed=target is not None or as_json
    )
    answer = BoundsAnswer.of(found, Asked(data, settings, read, left, components, names, target))
    if target is not None:
        bounding.write_json(target, answer.plain)
        wrote(target)
    if as_json:
        typer.echo(json.dumps(answer.plain, indent=2, allow_nan=False))
    else:
        console = output()
        if settings["random_state"] is not None and settings["epsilon"] is not None:
            console.print(warning_panel(option.SEEDED))
        console.print(answer.view)
        if answer.steps:
            console.print()
        bounding.show_steps(console, answer.steps)
        if settings["epsilon"] is not None and read.counted(data):
            console.print(warning_panel(option.COUNTED))
        spending.show()
        if target is not None:
            console.print(f"\nwritten to {target}", soft_wrap=True)
    # After everything is printed and written: the budget is spent, so what was learned is shown all the same.
    if not answer.named:
        raise typer.Exit(1)


def _found(
    data: Path,
    settings: Mapping[str, Any],
    reading: Reading,
    lasting: kept.LastingLedger,
    *,
    columns: bool,
    listed: bool,
) -> "tuple[FoundBounds | FoundColumnBounds, tuple[str, ...] | None, kept.FitSpending]":
    """The bounds, the column names if the file has any, and what was charged.

    `listed`: the answer will be in a file or in JSON.
    """
    from eigenveil.data.rows import NamedRows
    from eigenveil.estimators.bounds.columns import find_column_bounds
    from eigenveil.estimators.bounds.rows import find_bounds

    # A copy, because what is passed on differs from what the answer shows.
    given = dict(settings)
    table = reading.table(data)
    dim = table.rows.shape[1]
    require(
        # Refused before the release: afterwards the budget would be spent on ranges that cannot be passed on.
        not columns or listed or dim <= bounding.WIDEST,
        f"ranges of {dim} columns do not fit on a command line. Add --output bounds.json, and run `eigenveil fit "
        "--bounds bounds.json` afterwards. Nothing was released",
    )
    found: FoundBounds | FoundColumnBounds
    title, source = f"bounds, {data.name}", reading.source(data)
    with (
        lasting.charged(table.rows, given, person=reading.person, title=title, source=source) as spending,
        watched(table.rows) as rows,
    ):
        given["ledger"], named = spending.ledger, NamedRows(rows, table.columns, reading.person)
        if columns:
            # Ranges of columns have no center, and their parameters do not know the word.
            del given["center"]
            found = find_column_bounds(named, **given)
        else:
            found = find_bounds(named, **given)
        # The ledger keeps a digest of what was shown.
        spending.released = found.words().encode()
    return found, table.columns, spending


COMMAND = Command(bounds, BoundsParams, panel="Start here", reads=True)
