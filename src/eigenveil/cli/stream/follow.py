"""One run of `eigenveil stream`: follow the rows, write the model at every release, and save the state.

The run may end because the rows end, a line is bad or somebody presses Ctrl-C. In each case the stream is between two
steps, and that state is saved.
"""

import json
import sys
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
from eigenveil.cli.study.spending import LastingLedger, StreamSpending
from eigenveil.errors import ParameterWarning, listed, require, require_param
from eigenveil.params import StreamingParams
from eigenveil.params.words import in_options

if TYPE_CHECKING:
    from eigenveil.data.streams import Source
    from eigenveil.estimators.streaming.pca import StreamingPCA
    from eigenveil.model import Model
    from eigenveil.plan import StreamPlan
    from eigenveil.privacy import PrivacyUnit

__all__ = ["Job", "require_source", "run"]

_WORDS: Final = in_options(StreamingParams, X="the stream")
# The trackers that release every block by themselves.
_EVERY_BLOCK: Final = ("slices", "tree")
_NO_LEDGER: Final = LastingLedger(None, None, None, None)
_ADVICE: Final = "Next time, --state FILE keeps them"


@final
@dataclass(frozen=True, slots=True)
class Job:
    """What to do: follow the rows of `source`, read as `reading` says.

    A new stream has `settings`; None resumes the one in `state`. It also releases after every `sync_every` rows. The model is
    written to `target` at every release, and the stream to `state` if one is named. If it is interrupted without one, `spare`
    allows a state beside the target. With `as_json` each release is a line of JSON. A new stream is charged to `ledger`.
    """

    source: Path
    reading: Reading
    settings: Mapping[str, Any] | None
    sync_every: int | None
    target: Path
    state: Path | None
    spare: bool
    even_if_noise: bool = False
    as_json: bool = False
    ledger: LastingLedger = _NO_LEDGER
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
        # A resumed stream has rows of earlier runs, which must not count towards the speed of this one.
        before, began = _rows(pca), time.monotonic()
        # A file that cannot be read leaves no trace in a ledger. For the first line of a pipe the ledger does not wait.
        source = None if is_pipe(job.source) else _opened(job, pca, stop, when_quiet=lambda: None)
        with job.ledger.streamed(job.settings or {}, _unit(pca), title=f"stream, {job.target.name}") as spending:
            writer = _Writer(pca, job, spending)
            try:
                with live_view(before, job.page) as view:
                    _follow(pca, job, source, stop, writer, view)
                    model = _ended(pca, job, writer)
                    # The last release comes after the last row, and the page must show it before it ends.
                    if view is not None:
                        view.look(pca, again=True)
            except (KeyboardInterrupt, Exception) as error:
                # A step that was interrupted halfway is not saved: resuming it could release its rows twice.
                if _rows(pca) > 0 and not stop.torn:
                    stopped = isinstance(error, KeyboardInterrupt)
                    leaves(_kept(pca, job, writer, before=before, stopped=stopped))
                raise
            seconds, reason = time.monotonic() - began, pca.plan_.reason
            if job.state is not None:
                # Said before the attempt, so that an error while saving is reported with what is there already.
                leaves(f"the model had been written to {job.target}, but the state could not be saved")
                pca.save_state(job.state)
                leaves(f"the model had been written to {job.target} and the state to {job.state}")
    if job.as_json:
        # The terminal is for lines of JSON alone.
        write_model(job.report, model, data=job.source, say=lambda _: None)
        return
    _show(pca, model, job, reason=reason)
    spending.show()
    _show_what_came(_rows(pca) - before, seconds, job, before=before)
    write_model(job.report, model, data=job.source)


@final
class _Writer:
    """Writes the model at every release. Changes in place: it counts them, and a release is charged before it is written."""

    def __init__(self, pca: "StreamingPCA", job: Job, spending: StreamSpending) -> None:
        self._pca, self._job, self._spending = pca, job, spending
        # How many times the model was written, and the rows in it.
        self.times, self.rows = 0, 0

    def pay(self) -> None:
        """Charge the whole budget to a ledger that lasts, once: before anything leaves, or a state is kept that could release."""
        epsilon, delta = self._pca.epsilon, self._pca.delta
        if epsilon is not None and delta is not None:
            from eigenveil.privacy import Budget

            self._spending.paid(Budget(epsilon, delta).mu)

    def write(self, *, final: bool = False) -> "Model":
        """Release what is pending and rewrite the model. Whoever reads the file sees the old one or the new one."""
        # At the end of a block nothing is pending. Then this only says what the last release warns of.
        _, warned = despite_noise(self._pca.sync, _WORDS, even_if_noise=True)
        # After the release is computed and before it is written: nothing has left this process yet.
        self.pay()
        learned = self._pca.model_
        # What was said before the first release names no parameter. The rest is in the words of the command.
        first = learned.warnings[: len(learned.warnings) - len(warned)]
        settings = {**learned.settings, **self._job.reading.facts}
        model = replace(learned, settings=settings, warnings=first + tuple(warned))
        model.save(self._job.target)
        wrote(self._job.target)
        # The end of the stream may come with the last release. Then it is said, and not counted, again.
        self.times += int(model.settings["rows"]) > self.rows
        self.rows = int(model.settings["rows"])
        if self._job.as_json:
            # Flushed, because a program at the other end of the pipe waits for this line. NaN is not JSON.
            print(json.dumps(self._line(model, final=final), allow_nan=False), flush=True)
        return model

    def _line(self, model: "Model", *, final: bool) -> dict[str, Any]:
        ledger = self._pca.ledger_
        return {
            "release": self.times,
            "rows": self.rows,
            "final": final,
            "model": str(self._job.target),
            "explained_variance": model.explained_variance.tolist(),
            "explained_variance_ratio": model.explained_variance_ratio.tolist(),
            "noise_floor": model.noise_floor,
            "n_above_noise": model.n_above_noise,
            "private": model.guarantee.private,
            "epsilon_spent": None if ledger is None else ledger.epsilon(),
            "warnings": list(model.warnings),
        }


def _unit(pca: "StreamingPCA") -> "PrivacyUnit":
    from eigenveil.privacy import Neighbours
    from eigenveil.privacy.facts import Person

    protects = Person("stream", grouped=pca.person is not None, most=pca.person_blocks, column=pca.person)
    return protects.protected(Neighbours(pca.neighbours))


def _follow(
    pca: "StreamingPCA",
    job: Job,
    source: "Source | None",
    stop: Interrupts,
    writer: _Writer,
    view: LiveView | None,
) -> None:
    """Take all rows of the source, with a release when one is due."""
    require_param(
        job.sync_every is None or pca.epsilon is None or pca.publish == "sync",
        "--sync-every is for {publish=sync}. Other streams release after every block",
    )
    with warnings.catch_warnings():
        # The estimator learns the column names from the first batch only; scikit-learn warns about the others.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        # What releases on the way warn of is said of the last one.
        warnings.simplefilter("ignore", ParameterWarning)
        if source is None:
            source = _opened(job, pca, stop, when_quiet=lambda: view.look(pca) if view is not None else None)
        _require_same_columns(pca, source)
        if job.settings is not None and pca.person is None:
            # The number of rows is public in a stream. Of people with several rows, not all rows may count.
            pca.expect(source.count)
        for batch in source.batches:
            take = partial(_take, pca, batch, source.columns, writer, sync_every=job.sync_every)
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


def _opened(job: Job, pca: "StreamingPCA", stop: Interrupts, *, when_quiet: Callable[[], None]) -> "Source":
    from eigenveil.data.named import open_named
    from eigenveil.data.streams import follow_named, open_source

    # A resumed stream has the column in its state.
    reading, piped = replace(job.reading, person=pca.person), is_pipe(job.source)
    asked = reading.asked
    if not piped and not reading.named(job.source):
        chosen = {name: value for name in ("columns", "drop", "one_hot") if (value := getattr(asked, name))}
        return open_source(job.source, **chosen, **reading.files, person=reading.person)
    table = open_named(open_pipe(job.source, stop, when_quiet=when_quiet) if piped else job.source, asked)
    return follow_named(table, reading.settled(table))


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


def _take(
    pca: "StreamingPCA", batch: Any, columns: tuple[str, ...] | None, writer: _Writer, *, sync_every: int | None
) -> None:
    """Take the rows of a batch, and write the model whenever a release is due."""
    # A table has a column for the person, too.
    table = hasattr(batch, "schema")
    # Where the first block ends must be known before its rows are taken, and the fitted plan comes only after them.
    plan = pca.plan_ if _rows(pca) else pca.plan_for(batch.shape[1] - table, sparse=hasattr(batch, "indptr"))
    start = 0
    while start < batch.shape[0]:
        seen = _rows(pca)
        due = _due(plan, seen, sync_every)
        rows = batch.slice(start, due) if table else batch[start : start + due]
        # The estimator takes names from the first rows only, and a table of the others would be a needless copy.
        pca.partial_fit(_named(rows, columns) if seen == 0 and columns is not None and not table else rows)
        start += rows.shape[0]
        # Rows that a person has too many of are not taken. Then nothing is due that was not due before.
        if _rows(pca) > seen and _due(plan, _rows(pca) - 1, sync_every) == 1 and _wanted(pca, sync_every):
            writer.write()


def _wanted(pca: "StreamingPCA", sync_every: int | None) -> bool:
    """Whether to release now what is due: a block waits while the first search needs more rows, a synchronisation does not."""
    return not pca.searching_ or (sync_every is not None and _rows(pca) % sync_every == 0)


def _due(plan: "StreamPlan", seen: int, sync_every: int | None) -> int:
    """How many rows after the first `seen` the next release is due."""
    # Counted from the first row of the stream, not of this run, so that the schedule survives a resume.
    due = sys.maxsize if sync_every is None else sync_every - seen % sync_every
    if plan.tracker in _EVERY_BLOCK:
        after = seen - plan.first_block
        due = min(due, -after if after < 0 else plan.block - after % plan.block)
    return due


def _named(rows: Any, columns: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.table([pa.array(column) for column in rows.T], names=list(columns))


def _ended(pca: "StreamingPCA", job: Job, writer: _Writer) -> "Model":
    """Release the rows that are not released yet, and write the model."""
    rows = _rows(pca)
    require(rows > 0, f"{'the stream' if is_pipe(job.source) else job.source} has no rows")
    # Checked before the release spends any budget.
    rank = pca.n_components
    require_param(
        rows >= rank, "{X} has fewer rows than {n_components=}. Give a smaller {n_components}", n_components=rank
    )
    return writer.write(final=True)


def _kept(pca: "StreamingPCA", job: Job, writer: _Writer, *, before: int, stopped: bool) -> str:
    """Save what can be saved of an interrupted stream, and describe it. Nothing is released here."""
    rows = _rows(pca)
    said = [f"{rows} row{'s' * (rows != 1)} had been read"]
    try:
        if stopped and rows > before and pca.epsilon is None and rows >= pca.n_components:
            # Without privacy a look at the stream costs nothing, so whoever stops it has a model of all rows.
            writer.write(final=True)
        if writer.times:
            which = "model of all of them" if writer.rows == rows else f"last release, of the first {writer.rows},"
            said.append(f"the {which} was written to {job.target}")
        state = job.state if job.state is not None else _spare(job)
        if state is not None:
            # The state may release later what is in it, so it is paid for before it is kept.
            writer.pay()
            pca.save_state(state)
            if rows == before:
                return f"the state in {state} is unchanged"
            return f"{', '.join(said)}, and {_saved(state)}"
    except Exception as error:
        return f"{', '.join(said)}, but their state could not be saved: {message_of(error)}"
    if writer.times == 0:
        nothing = "nothing was written" if pca.epsilon is None else "nothing of them was released or written"
        return f"{said[0]}, and {nothing}. {_ADVICE}"
    lost = f". The {rows - writer.rows} rows after them were not released and are lost. {_ADVICE}"
    return ", and ".join(said) + (lost if writer.rows < rows else "")


def _spare(job: Job) -> Path | None:
    """A name beside the target that is still free: model.state, model-2.state, ..."""
    # A name with `.resumed` behind it belongs to a stream that another command may still continue.
    names = (job.target.with_name(f"{job.target.stem}{more}.state") for more in ("", *(f"-{i}" for i in range(2, 100))))
    free = (name for name in names if not name.exists() and not name.with_name(f"{name.name}.resumed").exists())
    return next(free, None) if job.spare else None


def _saved(state: Path) -> str:
    return (
        f"their state was saved to {state}, raw data that only you can read. Continue with the rows after them: "
        f"--state {state} --resume"
    )


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
