"""`eigenveil fit`: read a table, fit it with `PrivatePCA`, write the model.

Everything that can be refused is refused before any budget is spent.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._ending import despite_noise, wrote
from eigenveil.commands._files import Reading, on_cluster, report_of, require_output, require_report, written_model
from eigenveil.commands._spending import LastingLedger
from eigenveil.data.formats import TableParams
from eigenveil.estimators.bounds.saved import BoundsFile
from eigenveil.params.declarations.private import PrivateParams
from eigenveil.params.declare import in_options
from eigenveil.show.console import busy, watched

if TYPE_CHECKING:
    from eigenveil.show.console import View

__all__ = ["COMMAND"]


def fit(
    context: typer.Context,
    data: common.Data,
    settings: dict[str, Any],
    reading: TableParams,
    bounds: common.BoundsPath = None,
    passthrough: common.Passthrough = None,
    dask: common.DaskCluster = None,
    processes: common.Processes = None,
    *,
    lasting: LastingLedger,
    model: common.Output = Path("model.safetensors"),
    report: common.ReportFile = None,
    force: common.Force = False,
    even_if_noise: common.EvenIfNoise = False,
) -> Answer:
    """Fit principal components of a table, with a privacy guarantee.

    Use it when one file has all the rows. This finds five components. The
    norm that rows are clipped to is found privately:

      eigenveil fit people.csv -k 5 --epsilon 1 --delta 1e-6

    Columns in different units, such as years and euros, are standardised
    privately with --scale private. If you know a bound without looking at
    these rows, give it: --row-bound or --column-bounds. A bound read off the
    data would leak it. To see norms before you spend the rest:

      eigenveil bounds people.csv --epsilon 0.1 --delta 1e-6 -o bounds.json
      eigenveil fit people.csv -k 5 --epsilon 0.9 --delta 1e-6 \\
        --bounds bounds.json

    A table that outgrows this process is read by several, or stays on a
    Dask cluster:

      eigenveil fit 'folder/*.parquet' -k 5 --epsilon 1 --delta 1e-6 \\
        --dask tcp://head:8786

    Every fit of the same people spends more of their privacy.
    `eigenveil account` adds the costs up. With --ledger each fit is charged
    to one budget that lasts, and refused when that is used up:

      eigenveil fit people.csv -k 5 --epsilon 1 --delta 1e-6 \\
        --ledger ledger.db --dataset patients --lifetime-epsilon 4
    """
    lasting.require_sense(settings)
    # The rows may be in two places that are not this process.
    read = Reading.of(reading, settings, passthrough, dask=dask is not None, processes=processes)
    read.require(data)
    read.require_passes(data, settings)
    bounds_file = None if bounds is None else BoundsFile.read(bounds)
    if bounds_file is not None:
        settings = bounds_file.merged(settings, common.was_typed(context, settings))
    # An output must not replace one of these, not even with --force.
    inputs = [path for path in (data, bounds, lasting.ledger) if path]
    require_output(model, endings=(".safetensors",), force=force, inputs=inputs)
    require_report(report, force=force, inputs=[*inputs, model])
    with on_cluster(dask):
        # Read the table first: scikit-learn takes seconds to import, and a bad file should be refused before that.
        table = read.table(data)
        # Bounds of other columns would clip the wrong ones, and nothing in the result would show it.
        if bounds_file is not None:
            bounds_file.require_columns(table.rows.shape[1], table.columns)
        from eigenveil.data.rows import NamedRows

        with busy("starting"):
            from eigenveil.estimators import PrivatePCA
        title, source = f"fit, {model.name}", read.source(data)
        with lasting.charged(table.rows, settings, person=read.person, title=title, source=source) as spending:

            def fitted() -> PrivatePCA:
                with watched(table.rows) as rows:
                    named = NamedRows(rows, table.columns, settings["person"])
                    return PrivatePCA(**settings, ledger=spending.ledger).fit(named)

            spelling = in_options(PrivateParams, X="the table")
            pca, warned = despite_noise(fitted, spelling, even_if_noise=even_if_noise)
            # The ledger keeps a digest of it, which shows later what the charge was for.
            spending.released = pca.components_.tobytes()
        extra = () if table.passthrough is None else table.passthrough.schema.names
        learned = replace(read.recorded_in(pca.model_, extra=extra), warnings=tuple(warned))
        # Only after the charges are written: a crash in between loses a result, never a charge.
        learned.save(model)
        wrote(model)

    def view() -> "View":
        from eigenveil.show.bounds import shared_cost
        from eigenveil.show.terminal import model_summary

        yield from common.seed_warning(settings)
        yield model_summary(learned, reason=pca.plan_.reason)
        yield from common.count_warning(settings, counted=read.counted(data))
        if bounds_file is not None and settings["epsilon"] is not None:
            yield from shared_cost(bounds_file, settings, learned.guarantee.protects)
        yield from spending.lines()
        yield from written_model(model)

    return Answer(view=view, report=lambda: report_of(learned, data=data, dataset=lasting.dataset))


COMMAND = Command(run=fit, params=PrivateParams, panel="Fit", reads=True)
