"""`eigenveil bounds`: finds a bound for a fit privately, shows the trade-off, and prints the command to run next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._files import Reading, require_output, write_public
from eigenveil.commands._options import flag, option
from eigenveil.commands._spending import LastingLedger, left_for_fit
from eigenveil.data.formats import TableParams
from eigenveil.errors import require, require_param
from eigenveil.params.declarations.private import BoundsParams
from eigenveil.show.console import Line, watched

if TYPE_CHECKING:
    from eigenveil.estimators.bounds.columns import ColumnBoundsResult
    from eigenveil.estimators.bounds.rows import BoundsResult
    from eigenveil.show.console import View

__all__ = ["COMMAND"]


def bounds(
    data: common.Data,
    settings: dict[str, Any],
    reading: TableParams,
    per_column: Annotated[
        bool, flag("--per-column", "Find a range for each column instead, with sqrt(columns) times the noise.")
    ] = False,
    total: common.Total = None,
    components: Annotated[
        int | None,
        option("--components", "-k", "K", "How many components the fit will have. Shows what each bound would capture.", min=1),
    ] = None,
    passthrough: common.Passthrough = None,
    *,
    lasting: LastingLedger,
    target: Annotated[
        Path | None, option("--output", "-o", "FILE", "Also write the answer to a .json file, for `eigenveil fit --bounds`.")
    ] = None,
    force: common.Force = False,
    as_json: Annotated[bool, flag("--json", "Print the answer as JSON.")] = False,
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
    lasting.require_sense(settings)
    read = Reading.of(reading, settings, passthrough)
    read.require(data)
    read.require_passes(data, settings)
    if target is not None:
        inputs = [path for path in (data, lasting.ledger) if path]
        require_output(target, endings=(".json",), force=force, inputs=inputs)
    # With --per-column each column is measured from its origin, and no mean is looked for.
    searched = settings["center"] == "private"
    require(not per_column or components is None, "--components is for a bound on rows: leave out --per-column")
    require(not per_column or searched, "--center is for a bound on rows: leave out --per-column")
    require_param(
        per_column or searched or settings["origin"] is None,
        "{origin} is where the search for the mean starts, and only {center=private} searches: leave out one of them",
    )
    # Worked out first: a total that is too small must be refused before this release spends its part.
    left = left_for_fit(total, settings["epsilon"], settings["delta"])
    from eigenveil.data.rows import NamedRows
    from eigenveil.estimators.bounds.columns import find_column_bounds
    from eigenveil.estimators.bounds.rows import find_bounds
    from eigenveil.show.bounds import WIDEST, Asked, BoundsAnswer, step_lines

    table = read.table(data)
    dim = table.rows.shape[1]
    require(
        # Refused before the release: afterwards the budget would be spent on ranges that cannot be passed on.
        not per_column or target is not None or as_json or dim <= WIDEST,
        f"ranges of {dim} columns do not fit on a command line. Add --output bounds.json, and run `eigenveil fit "
        "--bounds bounds.json` afterwards. Nothing was released",
    )
    result: BoundsResult | ColumnBoundsResult
    title, source = f"bounds, {data.name}", read.source(data)
    with (
        lasting.charged(table.rows, settings, person=read.person, title=title, source=source) as spending,
        watched(table.rows) as rows,
    ):
        params, named = {**settings, "ledger": spending.ledger}, NamedRows(rows, table.columns, read.person)
        if per_column:
            # Ranges of columns have no center, and their parameters do not know the word.
            del params["center"]
            result = find_column_bounds(named, **params)
        else:
            result = find_bounds(named, **params)
        # The ledger keeps a digest of what was shown.
        spending.released = result.to_text().encode()
    answer = BoundsAnswer.of(
        result,
        Asked(
            data=data, settings=settings, reading=read.options, left=left, rank=components, columns=table.columns, target=target
        ),
    )
    if target is not None:
        write_public(target, answer.plain)

    def view() -> "View":
        yield from common.seed_warning(settings)
        yield answer.view
        if answer.steps:
            yield ""
        yield from step_lines(answer.steps)
        yield from common.count_warning(settings, counted=read.counted(data))
        yield from spending.lines()
        if target is not None:
            yield Line(f"\nwritten to {target}")

    # The budget is spent, so what was learned is shown all the same.
    return Answer(view=view, values=lambda: answer.plain, code=int(not answer.named))


COMMAND = Command(run=bounds, params=BoundsParams, panel="Start here", reads=True)
