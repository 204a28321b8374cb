"""`eigenveil bounds`: finds a bound for a fit privately, shows the trade-off, and prints the command to run next."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from eigenveil.commands import _options as common
from eigenveil.commands import _spending as kept
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import Reading, require_output, write_json
from eigenveil.commands._options import flag, option
from eigenveil.data.formats import TableParams
from eigenveil.errors import require, require_param
from eigenveil.params.declarations.private import BoundsParams
from eigenveil.show.console import Line, watched

if TYPE_CHECKING:
    from eigenveil.estimators.bounds.columns import ColumnBoundsResult
    from eigenveil.estimators.bounds.rows import BoundsResult
    from eigenveil.show.bounds import BoundsAnswer
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

PerColumn: TypeAlias = Annotated[
    bool, flag("--per-column", "Find a range for each column instead, with sqrt(columns) times the noise.")
]
Rank: TypeAlias = Annotated[
    int | None,
    option(
        "--components", "-k", "K", "How many components the fit will have. Shows what each bound would capture.", min=1
    ),
]
AsJson: TypeAlias = Annotated[bool, flag("--json", "Print the answer as JSON.")]
BoundsOutput: TypeAlias = Annotated[
    Path | None,
    option("--output", "-o", "FILE", "Also write the answer to a .json file, for `eigenveil fit --bounds`."),
]


def bounds(
    data: common.Data,
    settings: dict[str, Any],
    reading: TableParams,
    per_column: PerColumn = False,
    total: common.Total = None,
    components: Rank = None,
    passthrough: common.Passthrough = None,
    ledger: kept.LedgerPath = None,
    dataset: kept.Dataset = None,
    lifetime_epsilon: kept.LifeEpsilon = None,
    lifetime_delta: kept.LifeDelta = None,
    target: BoundsOutput = None,
    force: common.Force = False,
    as_json: AsJson = False,
) -> Answer:
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
    lasting = kept.LastingLedger(
        path=ledger, dataset=dataset, lifetime_epsilon=lifetime_epsilon, lifetime_delta=lifetime_delta
    )
    lasting.require_sense(settings)
    read = Reading(
        params=reading,
        person=settings["person"],
        passthrough=tuple(passthrough or ()),
        gaps=settings["missing"] != "refuse",
    )
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
    left = kept.left_for_fit(total, settings["epsilon"], settings["delta"])
    from eigenveil.show.bounds import Asked, BoundsAnswer

    result, names, spending = _found(
        data, settings, read, lasting, columns=per_column, listed=target is not None or as_json
    )
    answer = BoundsAnswer.of(
        result,
        Asked(
            data=data, settings=settings, reading=read.words, left=left, rank=components, columns=names, target=target
        ),
    )
    if target is not None:
        write_json(target, answer.plain)
        wrote(target)
    return Answer(
        view=lambda: _view(answer, settings, spending, target, counted=read.counted(data)),
        values=lambda: answer.plain,
        # The budget is spent, so what was learned is shown all the same.
        code=int(not answer.named),
    )


def _view(
    answer: "BoundsAnswer",
    settings: Mapping[str, Any],
    spending: kept.FitSpending,
    target: Path | None,
    *,
    counted: bool,
) -> "View":
    from eigenveil.show.bounds import step_lines
    from eigenveil.show.terminal import warning_panel

    private = settings["epsilon"] is not None
    if settings["random_state"] is not None and private:
        yield warning_panel(common.SEEDED)
    yield answer.view
    if answer.steps:
        yield ""
    yield from step_lines(answer.steps)
    if private and counted:
        yield warning_panel(common.COUNTED)
    yield from spending.lines()
    if target is not None:
        yield Line(f"\nwritten to {target}")


def _found(
    data: Path,
    settings: Mapping[str, Any],
    reading: Reading,
    lasting: kept.LastingLedger,
    *,
    columns: bool,
    listed: bool,
) -> "tuple[BoundsResult | ColumnBoundsResult, tuple[str, ...] | None, kept.FitSpending]":
    """The bounds, the column names if the file has any, and what was charged.

    `listed`: the answer will be in a file or in JSON.
    """
    from eigenveil.data.rows import NamedRows
    from eigenveil.estimators.bounds.columns import find_column_bounds
    from eigenveil.estimators.bounds.rows import find_bounds
    from eigenveil.show.bounds import WIDEST

    # A copy, because what is passed on differs from what the answer shows.
    params = dict(settings)
    table = reading.table(data)
    dim = table.rows.shape[1]
    require(
        # Refused before the release: afterwards the budget would be spent on ranges that cannot be passed on.
        not columns or listed or dim <= WIDEST,
        f"ranges of {dim} columns do not fit on a command line. Add --output bounds.json, and run `eigenveil fit "
        "--bounds bounds.json` afterwards. Nothing was released",
    )
    result: BoundsResult | ColumnBoundsResult
    title, source = f"bounds, {data.name}", reading.source(data)
    with (
        lasting.charged(table.rows, params, person=reading.person, title=title, source=source) as spending,
        watched(table.rows) as rows,
    ):
        params["ledger"], named = spending.ledger, NamedRows(rows, table.columns, reading.person)
        if columns:
            # Ranges of columns have no center, and their parameters do not know the word.
            del params["center"]
            result = find_column_bounds(named, **params)
        else:
            result = find_bounds(named, **params)
        # The ledger keeps a digest of what was shown.
        spending.released = result.to_text().encode()
    return result, table.columns, spending


COMMAND = Command(run=bounds, params=BoundsParams, panel="Start here", reads=True)
