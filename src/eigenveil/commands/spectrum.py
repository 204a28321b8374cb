"""`eigenveil spectrum`: releases the eigenvalues of a table once, for `eigenveil plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._files import Reading, require_output, write_public
from eigenveil.commands._options import option
from eigenveil.commands._spending import LastingLedger, left_for_fit
from eigenveil.data.formats import TableParams
from eigenveil.estimators.bounds.saved import BoundsFile
from eigenveil.params.declarations.private import SpectrumParams
from eigenveil.show.console import Line, watched

if TYPE_CHECKING:
    from eigenveil.show.console import View

__all__ = ["COMMAND"]


def spectrum(
    context: typer.Context,
    data: common.Data,
    settings: dict[str, Any],
    reading: TableParams,
    total: common.Total = None,
    bounds: common.BoundsPath = None,
    passthrough: common.Passthrough = None,
    *,
    lasting: LastingLedger,
    target: Annotated[
        Path, option("--output", "-o", "FILE", "Write the spectrum to this .json file, for `eigenveil plan`.", shows=True)
    ] = Path("spectrum.json"),
    force: common.Force = False,
) -> Answer:
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
    lasting.require_sense(settings)
    read = Reading.of(reading, settings, passthrough)
    read.require(data)
    read.require_passes(data, settings)
    inputs = [path for path in (data, bounds, lasting.ledger) if path]
    require_output(target, endings=(".json",), force=force, inputs=inputs)
    left = left_for_fit(total, settings["epsilon"], settings["delta"])
    bounds_file = None if bounds is None else BoundsFile.read(bounds)
    if bounds_file is not None:
        settings = bounds_file.merged(settings, common.was_typed(context, settings))
    from eigenveil.data.rows import NamedRows
    from eigenveil.estimators.bounds.spectrum import released_spectrum

    table = read.table(data)
    if bounds_file is not None:
        bounds_file.require_columns(table.rows.shape[1], table.columns)
    title, source = f"spectrum, {data.name}", read.source(data)
    with (
        lasting.charged(table.rows, settings, person=read.person, title=title, source=source) as spending,
        watched(table.rows) as rows,
    ):
        named = NamedRows(rows, table.columns, read.person)
        result = released_spectrum(named, **settings, ledger=spending.ledger)
        spending.released = result.to_text().encode()
    if result.spectrum is not None:
        # With its guarantee, so that `eigenveil account` can add up what it cost.
        write_public(target, {**result.spectrum.to_json(), "guarantee": result.guarantee.to_dict()})

    def view() -> "View":
        from eigenveil.show.bounds import shared_cost, spectrum_step, spectrum_view, step_lines

        yield from common.seed_warning(settings)
        yield from spectrum_view(result)
        yield from common.count_warning(settings, counted=read.counted(data))
        if bounds_file is not None and settings["epsilon"] is not None:
            yield from shared_cost(bounds_file, settings, result.guarantee.protects)
        yield from spending.lines()
        if result.spectrum is not None:
            yield Line(f"\nspectrum written to {target}")
            yield from step_lines([spectrum_step(result, left, settings, target)])

    return Answer(view=view, code=int(result.spectrum is None))


COMMAND = Command(run=spectrum, params=SpectrumParams, panel="Start here", reads=True)
