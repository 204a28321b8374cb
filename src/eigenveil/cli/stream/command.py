"""`eigenveil stream`: follow rows as they arrive, write a model at the end, and keep a state to resume from.

The options are checked here; `eigenveil.cli.stream.follow` does the work.
"""

from pathlib import Path
from typing import Any

import typer

from eigenveil.cli import _options as option
from eigenveil.cli._derived import with_options, written_out
from eigenveil.cli._files import Reading, require_output
from eigenveil.cli._terminal import errors_as_lines, output
from eigenveil.cli.bounds.file import BoundsFile, BoundsPath, show_bounds, was_given
from eigenveil.cli.page.address import Page, PageToken, page_at
from eigenveil.cli.report.output import require_report
from eigenveil.cli.stream import options as streaming
from eigenveil.cli.stream.follow import Job, require_source, run
from eigenveil.errors import require, require_param
from eigenveil.params import StreamingParams, TableParams

__all__ = ["stream"]


@errors_as_lines
@with_options(StreamingParams, rows="the stream", unless="resume", reads=True)
def stream(
    context: typer.Context,
    source: streaming.Source,
    settings: dict[str, Any] | None,
    reading: TableParams,
    bounds: BoundsPath = None,
    sync_every: streaming.SyncEvery = None,
    model: option.Output = Path("model.safetensors"),
    report: option.ReportFile = None,
    force: option.Force = False,
    even_if_noise: option.EvenIfNoise = False,
    state: streaming.State = None,
    no_state: streaming.NoState = False,
    resume: streaming.Resume = False,
    page: Page = None,
    page_token: PageToken = None,
) -> None:
    """Fit rows as they arrive, reading each row once, in bounded memory.

    Use it for pipes, and for files that are too large for `eigenveil fit`.
    This fits a private stream with one row per person. It releases a model
    after every 10000 rows and at the end:

      eigenveil stream visits.parquet -k 5 --epsilon 1 --delta 1e-6 \\
        --sync-every 10000

    This follows a sensor through a pipe, exactly, in 64 MB. It keeps a
    state, and continues from it with the next day's rows:

      sensor | eigenveil stream - --format csv -k 5 --no-privacy \\
        --memory-limit 64MB --state sensor.state -o monday.safetensors
      sensor | eigenveil stream - --format csv \\
        --state sensor.state --resume -o tuesday.safetensors

    Ctrl-C stops between two steps and saves the state, in --state or
    beside the output. The state is RAW DATA; only you can read it (mode
    0600). A private stream can be resumed only once from each state.
    """
    known: BoundsFile | None = None
    read = Reading(reading, people=False)
    require_source(source, read)
    if settings is None:
        _require_nothing_new(context)
        require(state is not None, "--resume needs a state to continue from. Name it with --state FILE")
    else:
        require_param(
            settings["epsilon"] is None or settings["row_bound"] is not None or bounds is not None,
            "{row_bound} is missing. Leave it out to find a bound in the first block, or give one that you know without looking "
            "at the rows, such as {row_bound} 12: a bound read off the data would leak it. `eigenveil bounds` finds one, too",
        )
        if bounds is not None:
            known = BoundsFile.read(bounds)
            settings = known.for_stream(settings, was_given(context, tuple(settings)))
    inputs = [path for path in (source, state, bounds) if path is not None]
    require_output(model, endings=(".safetensors",), force=force, inputs=inputs)
    require_report(report, force=force, inputs=[*inputs, model])
    require(state is None or not no_state, "--state and --no-state contradict each other. Give one of them")
    if state is not None:
        _require_state(state, resume=resume, others=[source, model, *([] if bounds is None else [bounds])])
    run(
        Job(
            source,
            read,
            settings,
            sync_every,
            model,
            state,
            spare=not no_state,
            even_if_noise=even_if_noise,
            report=report,
            page=page_at(page, page_token),
        )
    )
    if known is not None and settings is not None and settings["epsilon"] is not None:
        from eigenveil.privacy import Neighbours
        from eigenveil.privacy.facts import Person

        protects = Person("stream", most=settings["person_blocks"])
        show_bounds(output(), known, settings, protects.protected(Neighbours(settings["neighbours"])))


def _require_nothing_new(context: typer.Context) -> None:
    """Refuse options that would change the stream in the state."""
    given = ", ".join(
        [*written_out(context, StreamingParams), *(f"--{name}" for name in was_given(context, ("bounds",)))]
    )
    require(not given, f"with --resume all settings of the stream come from the state. Leave out {given}")


def _require_state(path: Path, *, resume: bool, others: list[Path]) -> None:
    """Refuse a state file that could not be written, or must not be overwritten."""
    require(path.parent.is_dir(), f"--state {path}: the folder {path.parent} does not exist. Create it first")
    require(not path.is_dir(), f"--state {path} is a folder. Name a file in it")
    same = [other for other in others if other.resolve() == path.resolve()]
    require(not same, f"--state {path} is also the source or the output of this command. Give it another name")
    # While a private stream continues from a state, the file has this name, so that nobody resumes it twice.
    claimed = path.with_name(f"{path.name}.resumed")
    if resume:
        require(
            path.exists() or claimed.exists(),
            f"--state {path} does not exist. Check its name, or leave out --resume to start a new stream",
        )
        return
    require(not path.exists(), f"--state {path} already exists. Continue from it with --resume, or choose another name")
    require(
        not claimed.exists(),
        f"--state {path} was resumed by a command that is still running or was killed. Choose another name, or delete "
        f"{claimed} if nobody needs it",
    )
