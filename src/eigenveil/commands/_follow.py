"""One run of `eigenveil stream`: follow the rows, write the model at every release, and save the state.

The run may end because the rows end, a line is bad or a person presses Ctrl-C. In each case the stream is between two
steps, and that state is saved.
"""

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.commands._command import Answer
from eigenveil.commands._ending import Interrupts, despite_noise, heard, is_pipe, leaves, message_of, open_pipe, wrote
from eigenveil.commands._files import Reading, report_of
from eigenveil.commands._options import count_warning, seed_warning
from eigenveil.commands._spending import LastingLedger, stands
from eigenveil.errors import ParameterWarning, join_names, require, require_param
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.params.declare import in_options
from eigenveil.show.console import Line, busy, output
from eigenveil.show.live import PageAddress
from eigenveil.show.progress import LiveView, live_view

if TYPE_CHECKING:
    from eigenveil.data.tables import Source
    from eigenveil.estimators.streaming.pca import StreamingPCA
    from eigenveil.ledger.spending import StreamSpending
    from eigenveil.model import Model
    from eigenveil.plan.streams import StreamPlan
    from eigenveil.show.console import View

__all__ = ["Job", "outputs_in", "run", "spare_names"]

_WORDS: Final = in_options(StreamingParams, X="the stream")
_ADVICE: Final = "Next time, --state FILE keeps them"
_RAW: Final = "raw data that only you can read"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to do. At every release the stream is written to its state, and then the model to `target`.

    If no state is named, one may be kept next to the target: the state of a private stream until it ends, and of one that is
    interrupted.
    """

    source: Path  # The rows.
    reading: Reading
    settings: Mapping[str, Any] | None  # Of a new stream. None resumes the one in `before`.
    sync_every: int | None  # Also release after so many rows.
    target: Path
    state: Path | None
    spare: bool  # Whether a state may be kept that was not named.
    even_if_noise: bool
    as_json: bool  # Each release is a line of JSON.
    ledger: LastingLedger  # What a new stream is charged to.
    report: Path | None
    page: PageAddress | None
    before: Path | None  # The state to resume from, unless its settings differ from those `typed`.
    typed: Mapping[str, Any]


def run(job: Job) -> Answer:
    """Follow the stream to its end, and write the model. What is left is a summary."""
    with busy("starting"):
        from eigenveil.core.accounting import Budget
        from eigenveil.core.unit import Neighbours
        from eigenveil.estimators.streaming.pca import StreamingPCA
        from eigenveil.privacy.facts import Person

    with heard() as stop:
        # Checked before the first row, which may take long to arrive.
        pca, notes = (StreamingPCA(**job.settings), None) if job.settings is not None else _resumed(job)
        pca.require_parameters()
        if notes is not None and job.sync_every is None:
            # The schedule is of the stream, and not of one run.
            job = replace(job, sync_every=notes.get("sync_every"))
        # A resumed stream has rows of earlier runs, which must not count towards the speed of this one.
        before, began = _rows(pca), time.monotonic()
        # A file that cannot be read leaves no trace in a ledger. For the first line of a pipe the ledger does not wait.
        source = None if is_pipe(job.source) else _opened(job, pca, stop, when_quiet=lambda: None)
        charged = None if notes is None else notes.get("ledger")
        require(
            notes is None or charged is not None or job.ledger.ledger is None,
            "the stream in the state has no ledger: --ledger is for the command that begins one. Leave it out",
        )
        cost = None if pca.epsilon is None or pca.delta is None else Budget(pca.epsilon, pca.delta)
        protects = Person(source="stream", grouped=pca.person is not None, max_parts=pca.person_blocks, column=pca.person)
        unit, title = protects.protected(Neighbours(pca.neighbours)), f"stream, {job.target.name}"
        with job.ledger.streamed(cost, unit, title=title, notes=charged) as spending:
            writer = _Writer(pca, job, spending, notes or {})
            try:
                writer.show_again()
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
                    leaves(_rescue(pca, job, writer, before=before, stopped=stopped))
                elif writer.n_kept:
                    leaves(f"the state of the first {writer.n_kept} rows is in {writer.state}, {_RAW}")
                raise
            seconds, reason = time.monotonic() - began, pca.plan_.reason
            if job.state is not None:
                # Said before the attempt, so that an error while saving is reported with what is there already.
                leaves(f"the model had been written to {job.target}, but the state could not be saved")
                pca.save_state(job.state, notes=writer.notes())
                leaves(f"the model had been written to {job.target} and the state to {job.state}")
            elif writer.state is not None:
                # Kept for a process that is killed. It was not asked for.
                writer.state.unlink(missing_ok=True)

    def shown() -> "View":
        if job.as_json:
            # The terminal is for lines of JSON alone.
            return
        from eigenveil.show.terminal import model_summary

        yield from seed_warning(vars(pca))
        yield model_summary(model, reason=reason)
        yield from count_warning(vars(pca), counted=job.reading.counted(job.source))
        if spending.state is not None and spending.lasting is not None:
            yield Line(f"\n{stands(spending.state, job.ledger.ledger or spending.lasting.path)}")
        rows, earlier = _rows(pca) - before, f", after {before} rows in earlier runs," if before else ""
        yield f"\n{rows} rows{earlier} in {seconds:.1f} s, {rows / max(seconds, 1e-9):.0f} rows/s"
        yield Line(f"model written to {job.target}")
        yield Line(f"show it again with: eigenveil inspect {job.target}", "dim")
        if job.state is not None:
            yield Line(f"state written to {job.state}, {_RAW}")
            yield Line(f"continue from it with: --state {job.state} --resume", "dim")

    return Answer(view=shown, report=lambda: report_of(model, data=job.source))


@final
class _Writer:
    """Writes the state and the model at every release. Changes in place: it counts them.

    A release is in the state on disk and charged before it is written or shown. A process that is killed in between loses
    nothing, and the resumed stream shows the same numbers. Nothing was shown that is not in the state.
    """

    def __init__(self, pca: "StreamingPCA", job: Job, spending: "StreamSpending", notes: Mapping[str, Any]) -> None:
        self._pca, self._job, self._spending = pca, job, spending
        # The notes of the state that this stream was resumed from, and the release that may not have been shown yet.
        self._notes, self._unshown = notes, notes.get("unshown")
        # Whether the stream comes from a process that could not end it.
        self.was_killed = bool(notes.get("running"))
        # How many releases there were, the rows in the last, and the rows in the model on disk.
        self.times, self.rows, self.written = 0, 0, 0
        # Where the state is kept, from the first checkpoint on, and the rows in it.
        self.state, self.n_kept = job.before, _rows(pca)
        self._read = RowsRead()
        self._charged = self._charges()

    def notes(self) -> dict[str, Any]:
        """What `--resume` needs beside the stream."""
        job = self._job
        return {
            # Until the first row comes from this source, what was read of the last one.
            "source": self._read.facts() if self._read.count else self._notes.get("source"),
            "sync_every": job.sync_every,
            "outputs": [str(path.resolve()) for path in (job.target, job.report) if path is not None],
            "ledger": self._spending.notes() or self._notes.get("ledger"),
            "unshown": self._unshown,
        }

    def skipped(self, source: "Source", *, again: "Callable[[], Source]") -> "Source":
        """The rows of a file after those that the stream has read, if it begins with them: a resumed stream may name it again."""
        stored = self._notes.get("source")
        if stored is None:
            return source
        remainder = rest_of(source, stored)
        if remainder is None:
            if self.was_killed:
                # A process that could not end was in the middle of a source, most likely of this one.
                note = (
                    f"note: {self._job.source} does not begin with the {stored['rows']} rows that were read before, so all of "
                    "its rows are new. If the file was changed or is read with other options, stop now (Ctrl-C): its people "
                    "would be in the stream twice"
                )
                output(stderr=True).print(note, style="yellow", soft_wrap=True)
            return again()
        rest, self._read = remainder
        note = f"note: {self._job.source} begins with the {self._read.count} rows that were read before. Only later rows are new"
        output(stderr=True).print(note, soft_wrap=True)
        return rest

    def took(self, rows: Any, *, due: bool) -> None:
        """After the stream has taken rows: release if that is `due`, and keep what was drawn before anybody can look."""
        self._read.add(rows)
        if due:
            self.write()
        elif self._charges() != self._charged or self._spending.waits:
            # The state first: if this process is killed in between, the next one reserves and pays.
            self._keep()
            self._spending.join()

    def show_again(self) -> None:
        """Write the release of a process that was killed, which may not have been shown. Nothing is drawn or charged anew."""
        if self._unshown is None:
            return
        self._spending.pay()
        model = replace(self._model(), warnings=tuple(self._unshown["warnings"]))
        self.times, self.rows = int(self._unshown["times"]), int(model.settings["rows"])
        self._show(model, final=False)

    def write(self, *, final: bool = False) -> "Model":
        """Release what is pending and rewrite the model. A reader of the file sees the old one or the new one."""
        # At the end of a block nothing is pending. Then this only says what the last release warns of.
        _, warned = despite_noise(self._pca.sync, _WORDS, even_if_noise=True)
        # After the release is computed and before it is written: nothing has left this process yet.
        learned = self._model()
        # What was said before the first release names no parameter. The rest is in the words of the command.
        first = learned.warnings[: len(learned.warnings) - len(warned)]
        model = replace(learned, warnings=first + tuple(warned))
        # The end of the stream may come with the last release. Then it is said, and not counted, again.
        self.times += int(model.settings["rows"]) > self.rows
        self.rows = int(model.settings["rows"])
        self._unshown = {"times": self.times, "warnings": list(model.warnings)}
        self._keep()
        # Charge the whole budget, once, before anything leaves.
        self._spending.pay()
        self._show(model, final=final)
        return model

    def keep_last(self, state: Path) -> None:
        """Save the stream of a run that ends early, and then pay: a state that could not be written costs nothing."""
        self._pca.save_state(state, notes=self.notes())
        # It may release its rows later. The process that resumes it pays, if this one is killed now.
        self._spending.is_saved = True
        self._spending.pay()

    def _keep(self) -> None:
        """Write the state, to resume after a kill. A private stream has one next to the target if none was named."""
        private = self._pca.epsilon is not None
        # Elsewhere it cannot be told whether the process that wrote it still runs.
        possible = not private or os.name == "posix"
        if self.state is None and possible:
            self.state = self._job.state or (_spare(self._job) if private else None)
        if self.state is not None and possible:
            self._pca.checkpoint(self.state, notes={**self.notes(), "running": True})
            self.n_kept, self._spending.is_saved = _rows(self._pca), True
        self._charged = self._charges()

    def _model(self) -> "Model":
        learned = self._pca.model_
        return replace(learned, settings={**learned.settings, **self._job.reading.facts})

    def _show(self, model: "Model", *, final: bool) -> None:
        model.save(self._job.target)
        self.written = self.rows
        wrote(self._job.target)
        if self._job.as_json:
            ledger = self._pca.ledger_
            line = {
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
            # Flushed, because a program at the other end of the pipe waits for this line. NaN is not JSON.
            print(json.dumps(line, allow_nan=False), flush=True)
        self._unshown = None

    def _charges(self) -> Any:
        """Changes whenever noise is drawn."""
        ledger = self._pca.ledger_ if _rows(self._pca) else None
        # A slot may be charged without a new entry: releases of disjoint slots share one charge.
        return None if ledger is None or not ledger.charges else (len(ledger.charges), ledger.series())


def _resumed(job: Job) -> "tuple[StreamingPCA, dict[str, Any]]":
    """The stream in a state, and what was noted there. Options that would change the stream are refused."""
    from eigenveil.estimators.streaming.pca import StreamingPCA
    from eigenveil.estimators.streaming.state_file import notes_in
    from eigenveil.params.declare import declared, validate_params

    assert job.before is not None
    pca = StreamingPCA.resume(job.before, checkpoints=True)
    settings = {name: getattr(pca, name) for name in declared(StreamingParams)}
    typed = vars(validate_params(StreamingParams, SimpleNamespace(**{**settings, **job.typed})))
    # As JSON, in which one list, tuple or array of numbers is like another.
    plain = partial(json.dumps, default=lambda array: array.tolist())
    other = [_WORDS(name, ...) for name in job.typed if plain(typed[name]) != plain(settings[name])]
    require(
        not other,
        f"with --resume the settings of the stream are those in {job.before}, where {join_names(other)} "
        f"{'has another value' if len(other) == 1 else 'have other values'}. Leave out what you gave, also --bounds "
        "if they come from it, or begin another stream",
    )
    return pca, notes_in(job.before)


def _follow(
    pca: "StreamingPCA", job: Job, source: "Source | None", stop: Interrupts, writer: _Writer, view: LiveView | None
) -> None:
    """Take all rows of the source, with a release when one is due."""
    from eigenveil.trackers import published_as, publishing

    require_param(
        job.sync_every is None or pca.epsilon is None or not published_as(pca.publish).every_block,
        f"--sync-every is for {publishing(lambda kind: not kind.every_block)}. Other streams release after every block",
    )
    with warnings.catch_warnings():
        # The estimator learns the column names from the first batch only; scikit-learn warns about the others.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        # What releases on the way warn of is said of the last one.
        warnings.simplefilter("ignore", ParameterWarning)
        if source is None:
            source = _opened(job, pca, stop, when_quiet=lambda: view.look(pca) if view is not None else None)
        _require_same_columns(pca, source)
        if job.settings is None and not is_pipe(job.source):
            source = writer.skipped(source, again=lambda: _opened(job, pca, stop, when_quiet=lambda: None))
        elif writer.was_killed:
            message = f"note: the state has the first {_rows(pca)} rows of the stream. Give only the rows after them"
            output(stderr=True).print(message, soft_wrap=True)
        if job.settings is not None and pca.person is None:
            # The number of rows is public in a stream. Of people with several rows, not all rows may count.
            pca.expect(source.count)
        for batch in source.batches:
            take = partial(_take, pca, batch, source.columns, writer, sync_every=job.sync_every)
            if _rows(pca) == 0:
                # The first rows say how many columns there are, and nothing is spent before. Rows may come through stdin, and
                # then no person can be asked.
                despite_noise(take, _WORDS, even_if_noise=job.even_if_noise, ask=False)
            else:
                take()
            if view is not None:
                view.see(pca)
            stop.check()
    # Ctrl-C also ends the program that feeds the pipe. The end of its rows is then not the end of the stream.
    stop.check()


def _opened(job: Job, pca: "StreamingPCA", stop: Interrupts, *, when_quiet: Callable[[], None]) -> "Source":
    from eigenveil.data.formats import open_named
    from eigenveil.data.tables import follow_named, open_source

    # A resumed stream has the column in its state.
    reading, piped = replace(job.reading, person=pca.person), is_pipe(job.source)
    params = reading.params
    if not piped and not reading.format(job.source).has_names:
        chosen = {name: value for name in ("columns", "drop", "one_hot") if (value := getattr(params, name))}
        return open_source(job.source, **chosen, **reading.files, person=reading.person)
    table = open_named(open_pipe(job.source, stop, when_quiet=when_quiet) if piped else job.source, params)
    return follow_named(table, reading.settled(table))


def _require_same_columns(pca: "StreamingPCA", source: "Source") -> None:
    """Refuse column names that differ from those of a resumed stream."""
    names, same = getattr(pca, "feature_names_in_", None), "Resume it with rows of the same table"
    if names is None or source.columns is None:
        return
    count = len(source.columns)
    require(len(names) == count, f"the rows have {count} columns and the stream in the state has {len(names)}. {same}")
    other = [f"{new!r} where {old!r} was" for old, new in zip(names, source.columns, strict=True) if old != new]
    require(not other, f"the columns differ from those of the stream in the state: {join_names(other)}. {same}")


def _take(pca: "StreamingPCA", batch: Any, columns: tuple[str, ...] | None, writer: _Writer, *, sync_every: int | None) -> None:
    """Take the rows of a batch, and write the model whenever a release is due."""
    # A table has a column for the person, too.
    table = hasattr(batch, "schema")
    # Where the first block ends must be known before its rows are taken, and the fitted plan comes only after them.
    plan = pca.plan_ if _rows(pca) else pca.plan_for(batch.shape[1] - table, sparse=hasattr(batch, "indptr"))
    start = 0
    while start < batch.shape[0]:
        n_read = _rows(pca)
        due = _due(plan, n_read, sync_every)
        rows = batch.slice(start, due) if table else batch[start : start + due]
        if n_read == 0 and columns is not None and not table:
            import pyarrow as pa

            # The estimator takes names from the first rows only, and a table of the others would be a needless copy.
            pca.partial_fit(pa.table([pa.array(column) for column in rows.T], names=list(columns)))
        else:
            pca.partial_fit(rows)
        start += rows.shape[0]
        # Rows that a person has too many of are not taken. Then nothing is due that was not due before.
        at_end = _rows(pca) > n_read and _due(plan, _rows(pca) - 1, sync_every) == 1
        # A block waits while the first search needs more rows. A synchronisation does not.
        writer.took(rows, due=at_end and (not pca.searching_ or (sync_every is not None and _rows(pca) % sync_every == 0)))


def _due(plan: "StreamPlan", n_read: int, sync_every: int | None) -> int:
    """How many rows after the first `n_read` the next release is due."""
    # Counted from the first row of the stream, not of this run, so that the schedule survives a resume.
    due = sys.maxsize if sync_every is None else sync_every - n_read % sync_every
    if plan.kind.every_block:
        after = n_read - plan.first_block
        due = min(due, -after if after < 0 else plan.block - after % plan.block)
    return due


def _ended(pca: "StreamingPCA", job: Job, writer: _Writer) -> "Model":
    """Release the rows that are not released yet, and write the model."""
    rows = _rows(pca)
    require(rows > 0, f"{'the stream' if is_pipe(job.source) else job.source} has no rows")
    # Checked before the release spends any budget.
    rank = pca.n_components
    require_param(rows >= rank, "{X} has fewer rows than {n_components=}. Give a smaller {n_components}", n_components=rank)
    return writer.write(final=True)


def _rescue(pca: "StreamingPCA", job: Job, writer: _Writer, *, before: int, stopped: bool) -> str:
    """Save what can be saved of an interrupted stream, and describe it. Nothing is released here."""
    rows = _rows(pca)
    parts = [f"{rows} row{'s' * (rows != 1)} had been read"]
    try:
        if stopped and rows > before and pca.epsilon is None and rows >= pca.n_components:
            # Without privacy a look at the stream costs nothing, so a stopped one leaves a model of all rows.
            writer.write(final=True)
        if writer.written:
            which = "model of all of them" if writer.written == rows else f"last release, of the first {writer.written},"
            parts.append(f"the {which} was written to {job.target}")
        state = job.state or writer.state or _spare(job)
        if state is not None:
            writer.keep_last(state)
            if rows == before:
                return f"the state in {state} is unchanged"
            saved = f"their state was saved to {state}, {_RAW}. Continue with the rows after them: --state {state} --resume"
            return f"{', '.join(parts)}, and {saved}"
    except Exception as error:
        onward = ". Give the same command again with --resume to continue from there"
        earlier = f". The state of the first {writer.n_kept} is in {writer.state}{onward}" if writer.n_kept else ""
        return f"{', '.join(parts)}, but their state could not be saved: {message_of(error)}{earlier}"
    if writer.written == 0:
        nothing = "nothing was written" if pca.epsilon is None else "nothing of them was released or written"
        return f"{parts[0]}, and {nothing}. {_ADVICE}"
    lost = f". The {rows - writer.written} rows after them were not released and are lost. {_ADVICE}"
    return ", and ".join(parts) + (lost if writer.written < rows else "")


def spare_names(target: Path) -> Iterator[Path]:
    """Where the state is kept if none was named, beside the target: model.state, model-2.state, ..."""
    return (target.with_name(f"{target.stem}{more}.state") for more in ("", *(f"-{i}" for i in range(2, 100))))


def outputs_in(state: Path) -> tuple[Path, ...]:
    """The files that the stream in a state has written."""
    from eigenveil.estimators.streaming.state_file import notes_in

    outputs = notes_in(state).get("outputs")
    return tuple(Path(str(path)) for path in outputs) if isinstance(outputs, list) else ()


def _spare(job: Job) -> Path | None:
    """A name beside the target that is still free."""
    # A name with `.resumed` behind it belongs to a stream that another command may still continue.
    names = spare_names(job.target)
    free = (name for name in names if not name.exists() and not name.with_name(f"{name.name}.resumed").exists())
    return next(free, None) if job.spare else None


def _rows(pca: "StreamingPCA") -> int:
    """How many rows the stream has read."""
    from sklearn.exceptions import NotFittedError

    try:
        return pca.n_samples_seen_
    except NotFittedError:
        return 0


@final
class RowsRead:
    """How many rows of one source were read, and a digest that tells them from others. Changes in place.

    The digest is of raw data, and is kept with it only. It does not depend on the sizes of batches.
    """

    def __init__(self) -> None:
        self.count = 0
        self._digests: dict[str, Any] = {}

    def add(self, rows: Any) -> None:
        """Take the next rows: an array, a CSR matrix, or a table whose last column names people."""
        self.count += rows.shape[0]
        for name, data in _bytes_of(rows):
            self._digests.setdefault(name, hashlib.sha256()).update(data)

    def facts(self) -> dict[str, Any]:
        """For a state, as plain JSON."""
        return {"rows": self.count, "digests": {name: digest.hexdigest() for name, digest in self._digests.items()}}


def rest_of(source: "Source", facts: Mapping[str, Any]) -> "tuple[Source, RowsRead] | None":
    """What follows in a source that begins with the rows that were read; None if it begins with others, and is used up."""
    read, batches = RowsRead(), iter(source.batches)
    while (lacking := facts["rows"] - read.count) > 0:
        batch = next(batches, None)
        if batch is None:
            return None
        if batch.shape[0] > lacking:
            table = hasattr(batch, "schema")
            batches = chain([batch.slice(lacking) if table else batch[lacking:]], batches)
            batch = batch.slice(0, lacking) if table else batch[:lacking]
        read.add(batch)
    return (replace(source, batches=batches), read) if read.facts() == facts else None


def _bytes_of(rows: Any) -> Iterator[tuple[str, bytes]]:
    # Here, so that --help does not wait for it.
    import numpy as np

    if hasattr(rows, "schema"):
        *values, people = (column.combine_chunks() for column in rows.columns)
        yield "values", np.column_stack([value.to_numpy(zero_copy_only=False) for value in values]).tobytes()
        yield "people", "".join(f"{person!r}\n" for person in people.to_pylist()).encode()
    elif hasattr(rows, "indptr"):
        yield "values", rows.data.tobytes()
        yield "places", rows.indices.astype(np.int64).tobytes()
        yield "lengths", np.diff(rows.indptr).astype(np.int64).tobytes()
    else:
        yield "values", np.ascontiguousarray(rows).tobytes()
