"""`eigenveil stream`: follow rows as they arrive, write a model at every release, and keep a state to resume from.

The options are checked here; `eigenveil.commands._follow` does the work.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command, typed_settings, written_out
from eigenveil.commands._ending import is_pipe, leaves, wrote
from eigenveil.commands._files import Reading, require_output, require_report, require_writable
from eigenveil.commands._follow import Job, outputs_in, run, spare_names
from eigenveil.commands._options import PageOptions, argument, flag, option
from eigenveil.commands._spending import LastingLedger
from eigenveil.data.formats import TableParams
from eigenveil.errors import at_place, join_names, require, require_param
from eigenveil.estimators.bounds.saved import BoundsFile
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.params.declare import in_options
from eigenveil.show.console import Line, busy, draw

if TYPE_CHECKING:
    from eigenveil.estimators.streaming.pca import StreamingPCA
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

_KEEPING: Final = "Stopping and resuming"
# With --merge the estimator's settings come from the states, and these of the command's own options mean nothing.
_NOT_MERGED: Final = (
    *("bounds", "passthrough", "sync_every", "even_if_noise", "no_state", "resume"),
    *("ledger", "dataset", "lifetime_epsilon", "lifetime_delta"),
)


def stream(
    context: typer.Context,
    source: Annotated[Path, argument("SOURCE", "Where the rows come from: a file, a named pipe, or - for standard input.")],
    settings: dict[str, Any] | None,
    reading: TableParams,
    bounds: common.BoundsPath = None,
    passthrough: common.Passthrough = None,
    # A count of rows, not of seconds: how many rows come in an hour may be private.
    sync_every: Annotated[
        int | None,
        option(
            "ROWS",
            "Also release after every so many rows, and rewrite the model. The schedule is public. For --publish sync; without "
            "privacy it only rewrites the model.",
            none_means="at the end only",
            panel="Privacy",
            min=1,
        ),
    ] = None,
    model: common.Output = Path("model.safetensors"),
    report: common.ReportFile = None,
    force: common.Force = False,
    even_if_noise: common.EvenIfNoise = False,
    as_json: Annotated[bool, flag("--json", "Print a line of JSON for every release, and nothing else, on stdout.")] = False,
    *,
    lasting: LastingLedger,
    # A file that lasts only if it was asked for. Otherwise it is a rescue, next to the output.
    state: Annotated[
        Path | None,
        option(
            "FILE",
            "Save the stream to this file at every release and when it ends or is interrupted, to resume later. RAW DATA that "
            "only you can read. Without this option, a private stream that runs or is interrupted is saved next to the output.",
            panel=_KEEPING,
        ),
    ] = None,
    no_state: Annotated[
        bool,
        flag(
            "--no-state",
            "Save no state, not even when interrupted. A release that was charged is then lost if the command is killed.",
            panel=_KEEPING,
        ),
    ] = False,
    resume: Annotated[
        bool,
        flag(
            "--resume",
            "Continue the stream in --state, or next to the output, with the rows of SOURCE. A file may begin with the rows "
            "that the stream has read; of a pipe give new ones only. All settings come from the state: give no others.",
            panel=_KEEPING,
        ),
    ] = False,
    # An option of the same command, because the merged stream continues as a stream.
    merge: Annotated[
        list[Path] | None,
        option(
            "FILE",
            "Merge the stream in this state with the one in SOURCE, which is a state, too. No rows are read. May be repeated.",
            panel=_KEEPING,
        ),
    ] = None,
    page: PageOptions,
) -> Answer:
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

    The model is rewritten at every release, and an exact one also with
    --sync-every. With --json every release is a line on stdout.

    Ctrl-C stops between two steps, leaves the model of the last release,
    and saves the state, in --state or next to the output. The state is
    RAW DATA; only you can read it (mode 0600). A private stream can be
    resumed only once from each state. After a crash or kill -9, give the
    same command again with --resume.

    This makes one model of the streams of several devices, from their
    states. --merge may be repeated:

      eigenveil stream --merge a.state b.state -o model.safetensors
    """
    if merge:
        return _merge([*merge, source], context, target=model, state=state, force=force)
    # Without privacy, and with a rule, values may be missing. A resumed stream knows its own rule.
    gaps = settings is None or settings["epsilon"] is None or settings["missing"] != "refuse"
    person = None if settings is None else settings["person"]
    read = Reading(params=reading, person=person, passthrough=tuple(passthrough or ()), gaps=gaps)
    # A named pipe has a name, and its ending says nothing about the rows in it.
    read.require(Path("-") if is_pipe(source) else source)
    require(state is None or not no_state, "--state and --no-state contradict each other. Give one of them")
    before: Path | None = None
    own: tuple[Path, ...] = ()
    typed: dict[str, Any] = {}
    bounds_file = None if bounds is None else BoundsFile.read(bounds)
    if settings is not None:
        lasting.require_sense(settings)
        bounded = settings["row_bound"] is not None or settings["column_bounds"] is not None
        require_param(
            settings["epsilon"] is None or bounded or bounds is not None,
            "{row_bound} none needs {column_bounds}. Leave {row_bound} out to find a bound in the first block. Or give one that "
            "you know without looking at the rows, such as {row_bound} 12: a bound read off the data would leak it. "
            "`eigenveil bounds` finds one, too",
        )
        if bounds_file is not None:
            settings = bounds_file.for_stream(settings, common.was_typed(context, settings))
    else:
        # Settings that were given although they come from the state. They may not differ.
        typed = typed_settings(context, StreamingParams, in_options(StreamingParams))
        from_bounds = {} if bounds_file is None else bounds_file.merged({}, tuple(typed))
        # A stream has no such parameter.
        from_bounds.pop("mean_bound", None)
        typed = {**from_bounds, **typed}
        before = _state_to_resume(state, model)
    others = [path for path in (source, model, bounds) if path is not None]
    if before is not None:
        if state is not None:
            # Before it is read, which takes longer.
            _require_state(state, resume=resume, others=others)
        # What the stream wrote before, it may write again.
        own = outputs_in(before)
    # The state is among them: a model must not replace the state that the stream continues from.
    inputs = [path for path in (source, state or before, bounds, lasting.ledger) if path is not None]
    require_output(model, endings=(".safetensors",), force=force or model.resolve() in own, inputs=inputs)
    again = report is not None and report.resolve() in own
    require_report(report, force=force or again, inputs=[*inputs, model])
    if state is not None and before is None:
        _require_state(state, resume=resume, others=others)
    job = Job(
        source=source,
        reading=read,
        settings=settings,
        sync_every=sync_every,
        target=model,
        state=state,
        spare=not no_state,
        even_if_noise=even_if_noise,
        as_json=as_json,
        ledger=lasting,
        report=report,
        # A wrong address is refused here, before the first row is read.
        page=page.address(),
        before=before,
        typed=typed,
    )
    answer = run(job)
    # With --json, stdout has lines of JSON and nothing else.
    if bounds_file is None or settings is None or settings["epsilon"] is None or as_json:
        return answer
    from eigenveil.core.unit import Neighbours
    from eigenveil.privacy.facts import Person
    from eigenveil.show.bounds import shared_cost

    max_blocks = settings["person_blocks"]
    protects = Person(source="stream", grouped=person is not None, max_parts=max_blocks, column=person)
    unit = protects.protected(Neighbours(settings["neighbours"]))
    return replace(answer, after=lambda: draw(shared_cost(bounds_file, settings, unit)))


def _merge(paths: list[Path], context: typer.Context, *, target: Path, state: Path | None, force: bool) -> Answer:
    """Merge the streams in the states `paths`, write the model and, if asked, the merged stream. The files stay as they are.

    Settings such as the number of components are those of the first.
    """
    # Options that would be ignored are refused.
    options = [*written_out(context, StreamingParams), *written_out(context, TableParams)]
    options += [f"--{name.replace('_', '-')}" for name in common.was_typed(context, _NOT_MERGED)]
    options += ["--json"] * bool(common.was_typed(context, ("as_json",)))
    require(not options, f"with --merge all settings come from the states. Leave out {', '.join(options)}")
    for path in paths:
        require(path.is_file(), f"{path} does not exist, or is not the state of a stream. Save one with --state")
    require_output(target, endings=(".safetensors",), force=force, inputs=paths)
    if state is not None:
        _require_state(state, resume=False, others=[*paths, target])
    with busy("starting"):
        from eigenveil.estimators.streaming.pca import StreamingPCA
        from eigenveil.estimators.streaming.state_file import is_private
        from eigenveil.show.terminal import model_summary

    for path in paths:
        # Asked of all before any is opened: opening the state of a private stream claims it.
        require(
            not is_private(path),
            f"{path} is a private stream, and merging would use up its only copy. In Python, StreamingPCA.merge adds up what "
            "private streams have released",
        )
    merged, *others = (StreamingPCA.resume(path) for path in paths)
    for path, other in zip(paths[1:], others, strict=True):
        _require_alike(paths[0], merged, path, other)
        try:
            merged.merge(other)
        except ValueError as error:
            raise at_place(f"{path} cannot be merged into {paths[0]}", error) from None
    model = merged.model_
    model.save(target)
    wrote(target)
    if state is not None:
        # Said first, so that an error while saving is reported together with the model that is there.
        leaves(f"the model had been written to {target}, but the state could not be saved")
        merged.save_state(state)
    rows = merged.n_samples_seen_

    def view() -> "View":
        yield model_summary(model, reason=f"{len(paths)} streams, merged")
        yield Line(f"\n{rows} rows of {len(paths)} streams; model written to {target}")
        if state is not None:
            yield Line(f"state written to {state}, raw data that only you can read")

    return Answer(view=view)


def _state_to_resume(state: Path | None, model: Path) -> Path:
    """The state that was named, or the only one next to the output."""
    if state is not None:
        exists = state.exists() or _claimed(state).exists()
        require(exists, f"--state {state} does not exist. Check its name. {_afresh(model)}")
        return state
    states = [path for path in spare_names(model) if path.exists()]
    require(
        len(states) <= 1, f"--resume needs a state to continue from. Name it with --state FILE: {join_names(map(str, states))}"
    )
    require(bool(states), f"--resume needs a state to continue from, and there is none next to {model}. {_afresh(model)}")
    return states[0]


def _require_state(path: Path, *, resume: bool, others: list[Path]) -> None:
    """Refuse a state file that could not be written, or must not be overwritten."""
    # A stream that cannot be kept would be refused after its first rows.
    require_writable(path, option="--state")
    # Compared after links are followed, because two names may be one file.
    same = [other for other in others if other.resolve() == path.resolve()]
    require(not same, f"--state {path} is also the source or the output of this command. Give it another name")
    if resume:
        return
    require(not path.exists(), f"--state {path} already exists. Continue from it with --resume, or choose another name")
    claimed = _claimed(path)
    require(
        not claimed.exists(),
        f"--state {path} was resumed by a program that is still running or was killed. Choose another name, or delete "
        f"{claimed} if it is not needed",
    )


def _claimed(state: Path) -> Path:
    """The name of a state that a private stream was resumed from in Python, without checkpoints."""
    return state.with_name(f"{state.name}.resumed")


def _afresh(model: Path) -> str:
    """What to do where there is no state. A stream keeps it before it writes its first model."""
    if model.exists():
        return (
            f"A stream has released {model} and left no state: it ended, or had --no-state. A new one, without --resume, would "
            "release its rows again, at a cost of its own"
        )
    return (
        "If the stream was killed before it kept one, nothing of it was released: give the same command again without "
        "--resume, with all settings"
    )


def _require_alike(first: Path, merged: "StreamingPCA", path: Path, other: "StreamingPCA") -> None:
    """Refuse streams of other columns, or that forget at another rate. `StreamingPCA.merge` checks the rest."""
    mine, theirs = (getattr(pca, "feature_names_in_", None) for pca in (merged, other))
    # Without names there is only their number to compare, which `merge` does.
    if mine is not None and theirs is not None and len(mine) == len(theirs):
        differ = [f"{new!r} where {old!r} is" for old, new in zip(mine, theirs, strict=True) if old != new]
        require(not differ, f"{path} has other columns than {first}: {join_names(differ)}. Streams need the same ones")
    require(
        merged.forget == other.forget,
        f"{path} forgets old rows at another rate than {first}: {other.forget:g}, not {merged.forget:g}. Their weights differ",
    )


COMMAND = Command(run=stream, params=StreamingParams, panel="Fit", rows="the stream", unless=("resume", "merge"), reads=True)
