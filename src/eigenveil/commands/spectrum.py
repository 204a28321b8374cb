"""`eigenveil spectrum`: releases the eigenvalues of a table once, for `eigenveil plan`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from eigenveil.commands import _options as common
from eigenveil.commands import _spending as kept
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import Reading, require_output
from eigenveil.commands._option import option
from eigenveil.commands._outputs import write_json
from eigenveil.data.formats import TableParams
from eigenveil.estimators.bounds.saved import BoundsFile
from eigenveil.params import SpectrumParams
from eigenveil.show.console import Line, watched

if TYPE_CHECKING:
    from eigenveil.estimators.bounds.spectrum import ReleasedSpectrum
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

SpectrumOutput: TypeAlias = Annotated[
    Path, option("--output", "-o", "FILE", "Write the spectrum to this .json file, for `eigenveil plan`.", shows=True)
]


def spectrum(
    context: typer.Context,
    data: common.Data,
    settings: dict[str, Any],
    reading: TableParams,
    total: common.Total = None,
    bounds: common.BoundsPath = None,
    carry: common.Carry = None,
    ledger: kept.LedgerPath = None,
    dataset: kept.Dataset = None,
    life_epsilon: kept.LifeEpsilon = None,
    life_delta: kept.LifeDelta = None,
    target: SpectrumOutput = Path("spectrum.json"),
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
    lasting = kept.LastingLedger(path=ledger, dataset=dataset, life_epsilon=life_epsilon, life_delta=life_delta)
    lasting.require_sense(settings)
    read = Reading(
        asked=reading, person=settings["person"], carry=tuple(carry or ()), gaps=settings["missing"] != "refuse"
    )
    read.require(data)
    read.require_passes(data, settings)
    require_output(target, endings=(".json",), force=force, inputs=[path for path in (data, bounds, ledger) if path])
    epsilon, delta = settings["epsilon"], settings["delta"]
    left = kept.left_for_fit(total, epsilon, delta)
    known = None if bounds is None else BoundsFile.read(bounds)
    if known is not None:
        settings = known.merged(settings, common.was_given(context, tuple(settings)))
    found, spending = _released(data, settings, read, known, lasting)
    if found.spectrum is not None:
        # With its guarantee, so that `eigenveil account` can add up what it cost.
        write_json(target, {**found.spectrum.to_json(), "guarantee": found.guarantee.to_dict()})
        wrote(target)
    return Answer(
        view=lambda: _view(found, settings, left, known, spending, target, counted=read.counted(data)),
        code=int(found.spectrum is None),
    )


def _view(
    found: "ReleasedSpectrum",
    settings: Mapping[str, Any],
    left: tuple[float, float] | None,
    known: BoundsFile | None,
    spending: kept.FitSpending,
    target: Path,
    *,
    counted: bool,
) -> "View":
    from eigenveil.show.bounds import shared_cost, spectrum_step, spectrum_view, step_lines
    from eigenveil.show.terminal import warning_panel

    private = settings["epsilon"] is not None
    if settings["random_state"] is not None and private:
        yield warning_panel(common.SEEDED)
    yield from spectrum_view(found)
    if private and counted:
        yield warning_panel(common.COUNTED)
    if known is not None and private:
        yield from shared_cost(known, settings, found.guarantee.protects)
    yield from spending.lines()
    if found.spectrum is not None:
        yield Line(f"\nspectrum written to {target}")
        yield from step_lines([spectrum_step(found, left, settings, target)])


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


COMMAND = Command(run=spectrum, params=SpectrumParams, panel="Start here", reads=True)
