"""`eigenveil stream`: rows in as they come, a model out at the end, and a state to go on from."""

from pathlib import Path
from typing import Final

import typer

from eigenveil.cli import options as option
from eigenveil.cli import stream_options as streaming
from eigenveil.cli.bounds_file import BoundsFile, BoundsPath, show_bounds, was_given
from eigenveil.cli.files import require_output
from eigenveil.cli.following import Job, run
from eigenveil.cli.terminal import errors_as_lines, output
from eigenveil.errors import require

__all__ = ["stream"]

# These make the stream what it is, so a resumed one has them already.
_FROM_STATE: Final = (
    "components",
    "epsilon",
    "delta",
    "no_privacy",
    "bounds",
    "row_bound",
    "adapt",
    "forget",
    "block_size",
    "oversample",
    "publish",
    "horizon",
    "person_blocks",
    "memory_limit",
    "center",
    "origin",
    "neighbours",
    "noise_target",
    "seed",
)


@errors_as_lines
def stream(
    context: typer.Context,
    source: streaming.Source,
    components: streaming.Components = None,
    epsilon: option.Epsilon = None,
    delta: option.Delta = None,
    no_privacy: option.NoPrivacy = False,
    bounds: BoundsPath = None,
    row_bound: option.RowBound = None,
    format_name: streaming.Format = None,
    no_header: streaming.NoHeader = False,
    drop: option.Drop = None,
    features: option.Features = None,
    one_based: option.OneBased = False,
    adapt: streaming.Adapt = None,
    forget: streaming.Forget = 1.0,
    block_size: streaming.BlockSize = None,
    oversample: streaming.Oversample = None,
    publish: streaming.Publish = "sync",
    sync_every: streaming.SyncEvery = None,
    horizon: streaming.Horizon = None,
    person_blocks: streaming.PersonBlocks = 1,
    memory_limit: streaming.MemoryLimit = None,
    center: streaming.Center = True,
    origin: streaming.Origin = None,
    neighbours: streaming.NeighboursName = "zero-out",
    noise_target: streaming.NoiseTarget = None,
    seed: option.Seed = None,
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
    if resume:
        _require_nothing_new(context)
        require(state is not None, "--resume goes on from a state; say which with --state FILE")
        settings = None
    else:
        require(components is not None, "--components is required: how many, such as -k 5")
        option.require_choice(epsilon, delta, no_privacy=no_privacy)
        require(
            no_privacy or row_bound is not None or bounds is not None,
            "--row-bound is required: no row may be longer than a bound you know without looking, because a bound read off "
            "the data would itself leak the data. Where you know none, `eigenveil bounds` finds one privately, on rows of the "
            "same kind and for a small part of the budget",
        )
        settings = {
            "n_components": components,
            "epsilon": epsilon,
            "delta": delta,
            "row_bound": row_bound,
            "adapt": option.pair_from("--adapt", adapt),
            "forget": forget,
            "block_size": block_size,
            "oversample": oversample,
            "publish": publish,
            "horizon": horizon,
            "person_blocks": person_blocks,
            "memory_limit": option.bytes_from("--memory-limit", memory_limit),
            "center": center,
            "origin": option.numbers_from("--origin", origin),
            "neighbours": neighbours,
            "noise_target": noise_target,
            "random_state": seed,
        }
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
    if known is not None and settings is not None and epsilon is not None:
        show_bounds(output(), known, settings)


def _require_nothing_new(context: typer.Context) -> None:
    """Refuse options that would make the stream another one than the state holds."""
    given = was_given(context, _FROM_STATE)
    names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
    require(not given, f"with --resume everything about the stream comes from the state; leave out {names}")


def _require_state(path: Path, *, resume: bool, others: list[Path]) -> None:
    """Refuse a state that could not be written, or should not be."""
    require(path.parent.is_dir(), f"--state {path}: the folder {path.parent} does not exist")
    require(not path.is_dir(), f"--state {path} is a folder")
    same = [other for other in others if other.resolve() == path.resolve()]
    require(not same, f"--state {path} is also the source or the output of this command")
    if resume:
        return
    require(not path.exists(), f"--state {path} already exists; go on from it with --resume, or take another name")
    claimed = path.with_name(f"{path.name}.resumed")
    require(
        not claimed.exists(),
        f"--state {path} was resumed by a command that has not ended, or was killed; take another name, or delete "
        f"{claimed} if nobody needs it",
    )
