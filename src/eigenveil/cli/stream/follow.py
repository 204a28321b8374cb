"""One run of `eigenveil stream`: follow the rows, write the model and save the state.

The run may end because the rows end, a line is bad or somebody presses Ctrl-C. In each case the stream is between two
steps, and that state is saved.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.cli._files import Reading
from eigenveil.cli._interrupts import Interrupts, heard, is_pipe, open_pipe
from eigenveil.cli._options import COUNTED, SEEDED
from eigenveil.cli._terminal import busy, despite_noise, leaves, message_of, output, wrote
from eigenveil.cli.page.address import PageAddress
from eigenveil.cli.report.output import write_model
from eigenveil.cli.stream.live import LiveView, live_view
from eigenveil.errors import ParameterWarning, listed, require, require_param
from eigenveil.params import StreamingParams
from eigenveil.params.words import in_options

if TYPE_CHECKING:
    from eigenveil.data.streams import Source
    from eigenveil.estimators.streaming.pca import StreamingPCA
    from eigenveil.model import Model

__all__ = ["Job", "require_source", "run"]

_WORDS: Final = in_options(StreamingParams, X="the stream")


@final
@dataclass(frozen=True, slots=True)
class Job:
    """What to do: follow the rows of `source`, read as `reading` says.

    A new stream has `settings`; None resumes the one in `state`. It also releases after every `sync_every` rows. The model is
    written to `target`, and the stream to `state` if one is named. If it is interrupted without one, `spare` allows a state
    beside the target.
    """

    source: Path
    reading: Reading
    settings: Mapping[str, Any] | None
    sync_every: int | None
    target: Path
    state: Path | None
    spare: bool
    even_if_noise: bool = False
    report: Path | None = None
    page: PageAddress | None = None


def require_source(path: Path, reading: Reading) -> None:
    """Refuse a source that cannot be followed, at once, before anything heavy is imported."""
    # A named pipe has a name, and its ending says nothing about what somebody writes into it.
    reading.require(Path("-") if is_pipe(path) else path)


def run(job: Job) -> None:
    """Follow the stream to its end, write the model and print a summary."""
    with busy("starting"):
        from eigenveil.estimators.streaming.pca import StreamingPCA

    with heard() as stop:
        # Checked before the first row, which may take long to arrive.
        pca = StreamingPCA.resume(_state(job)) if job.settings is None else StreamingPCA(**job.settings)
        pca.require_parameters()
        before, began = _rows(pca), time.monotonic()
        try:
            with live_view(before, job.page) as view:
                _follow(pca, job, stop, view)
                model = _ended(pca, job)
                if view is not None:
                    view.look(pca, again=True)
        except (KeyboardInterrupt, Exception):
            # A step that was interrupted halfway is not saved: resuming it could release its rows twice.
            if _rows(pca) > 0 and not stop.torn:
                leaves(_kept(pca, job, before=before))
            raise
        seconds, reason = time.monotonic() - began, pca.plan_.reason
        if job.state is not None:
            leaves(f"the model had been written to {job.target}, but the state could not be saved")
            pca.save_state(job.state)
            leaves(f"the model had been written to {job.target} and the state to {job.state}")
    _show(pca, model, job, reason=reason)
    _show_what_came(_rows(pca) - before, seconds, job, before=before)
    write_model(job.report, model)


def _follow(pca: "StreamingPCA", job: Job, stop: Interrupts, view: "LiveView | None") -> None:
    """Take all rows of the source, with a release when one is due."""
    require_param(
        job.sync_every is None or (pca.epsilon is not None and pca.publish == "sync"),
        "--sync-every is for a private stream with {publish=sync}",
    )
    with warnings.catch_warnings():
        # The estimator learns the column names from the first batch only; scikit-learn warns about the others.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        # What releases on the way warn of is said of the last one.
        warnings.simplefilter("ignore", ParameterWarning)
        source = _opened(job, stop, when_quiet=lambda: view.look(pca) if view is not None else None)
        _require_same_columns(pca, source)
        for batch in source.batches:
            take = partial(_take, pca, batch, source.columns, sync_every=job.sync_every)
            if _rows(pca) == 0:
                # The first rows say how many columns there are, and nothing is spent before. Rows may come through stdin, so
                # nobody can be asked.
                despite_noise(take, _WORDS, even_if_noise=job.even_if_noise, ask=False)
            else:
                take()
            if view is not None:
                view.see(pca)
            stop.check()
    # Ctrl-C also ends the program that feeds the pipe. The end of its rows is then not the end of the stream.
    stop.check()


def _opened(job: Job, stop: Interrupts, *, when_quiet: Callable[[], None]) -> "Source":
    from eigenveil.data.named import open_named
    from eigenveil.data.streams import follow_named, open_source

    asked, piped = job.reading.asked, is_pipe(job.source)
    if not piped and not job.reading.named(job.source):
        chosen = {name: value for name in ("columns", "drop", "one_hot") if (value := getattr(asked, name))}
        return open_source(job.source, **chosen, **job.reading.files)
    table = open_named(open_pipe(job.source, stop, when_quiet=when_quiet) if piped else job.source, asked)
    return follow_named(table, job.reading.settled(table))


def _require_same_columns(pca: "StreamingPCA", source: "Source") -> None:
    """Refuse column names that differ from those of a resumed stream; without names, only their number is compared."""
    known = getattr(pca, "feature_names_in_", None)
    if known is None or source.columns is None:
        return
    require(
        len(known) == len(source.columns),
        f"the rows have {len(source.columns)} columns and the stream in the state has {len(known)}. Resume it with rows of the "
        "same table",
    )
    other = [f"{new!r} where {old!r} was" for old, new in zip(known, source.columns, strict=True) if old != new]
    require(
        not other,
        f"the columns differ from those of the stream in the state: {listed(other)}. Resume it with rows of the same table",
    )


def _take(pca: "StreamingPCA", batch: Any, columns: tuple[str, ...] | None, *, sync_every: int | None) -> None:
    start = 0
    while start < batch.shape[0]:
        seen = _rows(pca)
        # Counted from the first row of the stream, not of this run, so that the schedule survives a resume.
        due = batch.shape[0] if sync_every is None else sync_every - seen % sync_every
        rows = batch[start : start + due]
        pca.partial_fit(_named(rows, columns) if seen == 0 and columns is not None else rows)
        if rows.shape[0] == due and sync_every is not None:
            pca.sync()
        start += rows.shape[0]


def _named(rows: Any, columns: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.table([pa.array(column) for column in rows.T], names=list(columns))


def _ended(pca: "StreamingPCA", job: Job) -> "Model":
    """Release the rows that are not released yet, and write the model."""
    rows = _rows(pca)
    require(rows > 0, f"{'the stream' if is_pipe(job.source) else job.source} has no rows")
    # Checked before the release spends any budget.
    rank = pca.n_components
    require_param(
        rows >= rank, "{X} has fewer rows than {n_components=}. Give a smaller {n_components}", n_components=rank
    )
    _, warned = despite_noise(pca.sync, _WORDS, even_if_noise=True)
    return _written(pca, job, tuple(warned))


def _written(pca: "StreamingPCA", job: Job, warned: tuple[str, ...] | None = None) -> "Model":
    learned = pca.model_
    # What was said before the first release names no parameter. The rest is in the words of the command.
    first = learned.warnings if warned is None else learned.warnings[: len(learned.warnings) - len(warned)]
    settings = {**learned.settings, **job.reading.facts}
    model = replace(learned, settings=settings, warnings=first + (warned or ()))
    model.save(job.target)
    wrote(job.target)
    return model


def _kept(pca: "StreamingPCA", job: Job, *, before: int) -> str:
    """Save what can be saved of an interrupted stream, and describe it. Nothing is released here."""
    rows = _rows(pca)
    followed = f"{rows} row{'s' * (rows != 1)} had been read"
    try:
        state = job.state if job.state is not None else _spare(job)
        if state is not None:
            pca.save_state(state)
            return f"the state in {state} is unchanged" if rows == before else f"{followed}, and {_saved(state)}"
        covered = _released(pca) if pca.epsilon is not None else 0
        if covered > 0:
            _written(pca, job)
    except Exception as error:
        return f"{followed}, but their state could not be saved: {message_of(error)}"
    advice = "next time, --state FILE keeps them"
    if covered > 0:
        rest = (
            f"; the {rows - covered} rows after them were not released and are lost; {advice}" if covered < rows else ""
        )
        return f"{followed}, and the last release, of the first {covered}, was written to {job.target}{rest}"
    nothing = "nothing was written" if pca.epsilon is None else "nothing of them was released or written"
    return f"{followed}, and {nothing}; {advice}"


def _spare(job: Job) -> Path | None:
    """A name beside the target that is still free: model.state, model-2.state, ..."""
    # A name with `.resumed` behind it belongs to a stream that another command may still continue.
    names = (job.target.with_name(f"{job.target.stem}{more}.state") for more in ("", *(f"-{i}" for i in range(2, 100))))
    free = (name for name in names if not name.exists() and not name.with_name(f"{name.name}.resumed").exists())
    return next(free, None) if job.spare else None


def _saved(state: Path) -> str:
    return (
        f"their state was saved to {state}, raw data that only you can read; continue with the rows after them: "
        f"--state {state} --resume"
    )


def _released(pca: "StreamingPCA") -> int:
    """How many rows the last release covers."""
    from sklearn.exceptions import NotFittedError

    try:
        return int(pca.model_.settings["rows"])
    except NotFittedError:
        return 0


def _rows(pca: "StreamingPCA") -> int:
    """How many rows the stream has read."""
    from sklearn.exceptions import NotFittedError

    try:
        return pca.n_samples_seen_
    except NotFittedError:
        return 0


def _state(job: Job) -> Path:
    assert job.state is not None
    return job.state


def _show(pca: "StreamingPCA", model: "Model", job: Job, *, reason: str) -> None:
    from eigenveil.cli._report import model_summary, warning_panel

    console = output()
    if pca.epsilon is not None and pca.random_state is not None:
        console.print(warning_panel(SEEDED))
    console.print(model_summary(model, reason=reason))
    if pca.epsilon is not None and job.reading.counted(job.source):
        console.print(warning_panel(COUNTED))


def _show_what_came(rows: int, seconds: float, job: Job, *, before: int) -> None:
    console = output()
    earlier = f", after {before} rows in earlier runs," if before else ""
    console.print(f"\n{rows} rows{earlier} in {seconds:.1f} s, {rows / max(seconds, 1e-9):.0f} rows/s")
    console.print(f"model written to {job.target}", soft_wrap=True)
    console.print(f"show it again with: eigenveil inspect {job.target}", style="dim", soft_wrap=True)
    if job.state is not None:
        console.print(f"state written to {job.state}, raw data that only you can read", soft_wrap=True)
        console.print(f"continue from it with: --state {job.state} --resume", style="dim", soft_wrap=True)
