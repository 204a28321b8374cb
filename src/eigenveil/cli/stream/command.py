"""`eigenveil stream`: rows in as they come, a model out at the end, and a state to go on from."""

from pathlib import Path
from typing import Any

import typer

from eigenveil.cli import _options as option
from eigenveil.cli._derived import with_options, written_out
from eigenveil.cli._files import require_output
from eigenveil.cli._terminal import errors_as_lines, output
from eigenveil.cli.bounds.file import BoundsFile, BoundsPath, show_bounds, was_given
from eigenveil.cli.stream import options as streaming
from eigenveil.cli.stream.follow import Job, require_source, run
from eigenveil.errors import require, require_param
from eigenveil.params import StreamingParams

__all__ = ["stream"]


@errors_as_lines
@with_options(StreamingParams, rows="the stream", unless="resume")
def stream(
    context: typer.Context,
    source: streaming.Source,
    settings: dict[str, Any] | None,
    bounds: BoundsPath = None,
    sync_every: streaming.SyncEvery = None,
    format_name: streaming.Format = None,
    no_header: streaming.NoHeader = False,
    drop: option.Drop = None,
    features: option.Features = None,
    one_based: option.OneBased = False,
    model: option.Output = Path("model.safetensors"),
    force: option.Force = False,
    state: streaming.State = None,
    no_state: streaming.NoState = False,
    resume: streaming.Resume = False,
) -> None:
    """Principal components of rows as they come, each seen once.

    Example: follow a sensor through a pipe in 64 MB, exactly, and keep
    the state; then go on with the rows of the next day:

      sensor | eigenveil stream - --format csv -k 5 --no-privacy \\
        --memory-limit 64MB --state sensor.state -o monday.safetensors
      sensor | eigenveil stream - --format csv \\
        --state sensor.state --resume -o tuesday.safetensors

    Example: a private stream of one row per person, released every
    10000 rows and at the end:

      eigenveil stream visits.parquet -k 5 --epsilon 1 --delta 1e-6 \\
        --row-bound 12 --sync-every 10000

    Ctrl-C stops between two steps, and nothing is lost: the state is kept,
    in --state or beside the output. It is RAW DATA, readable by you alone
    (mode 0600). A private stream moves in and out of it and is never in
    two places.
    """
    known: BoundsFile | None = None
    require_source(source, format_name)
    if settings is None:
        _require_nothing_new(context)
        require(state is not None, "--resume goes on from a state; say which with --state FILE")
    else:
        require_param(
            settings["epsilon"] is None or settings["row_bound"] is not None or bounds is not None,
            "{row_bound} is required: no row may be longer than a bound you know without looking, because a bound read off "
            "the data would itself leak the data. Where you know none, `eigenveil bounds` finds one privately, on rows of the "
            "same kind and for a small part of the budget",
        )
        if bounds is not None:
            known = BoundsFile.read(bounds)
            settings = known.for_stream(settings, was_given(context, tuple(settings)))
    inputs = [path for path in (source, state, bounds) if path is not None]
    require_output(model, endings=(".safetensors",), force=force, inputs=inputs)
    require(state is None or not no_state, "--state and --no-state contradict each other; give one of them")
    if state is not None:
        _require_state(state, resume=resume, others=[source, model, *([] if bounds is None else [bounds])])
    reading = {
        "kind": format_name,
        "header": not no_header,
        "drop": drop or [],
        "features": features,
        "one_based": one_based,
    }
    run(Job(source, reading, settings, sync_every, model, state, spare=not no_state))
    if known is not None and settings is not None and settings["epsilon"] is not None:
        show_bounds(output(), known, settings)


def _require_nothing_new(context: typer.Context) -> None:
    """Refuse options that would make the stream another one than the state holds."""
    given = ", ".join(
        [*written_out(context, StreamingParams), *(f"--{name}" for name in was_given(context, ("bounds",)))]
    )
    require(not given, f"with --resume everything about the stream comes from the state; leave out {given}")


def _require_state(path: Path, *, resume: bool, others: list[Path]) -> None:
    """Refuse a state that could not be written, or should not be."""
    require(path.parent.is_dir(), f"--state {path}: the folder {path.parent} does not exist")
    require(not path.is_dir(), f"--state {path} is a folder")
    same = [other for other in others if other.resolve() == path.resolve()]
    require(not same, f"--state {path} is also the source or the output of this command")
    claimed = path.with_name(f"{path.name}.resumed")
    if resume:
        require(path.exists() or claimed.exists(), f"--state {path} does not exist: there is nothing to go on from")
        return
    require(not path.exists(), f"--state {path} already exists; go on from it with --resume, or take another name")
    require(
        not claimed.exists(),
        f"--state {path} was resumed by a command that has not ended, or was killed; take another name, or delete "
        f"{claimed} if nobody needs it",
    )
