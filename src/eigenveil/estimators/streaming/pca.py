"""`StreamingPCA`: principal components of rows that are seen once, on a small device, with or without privacy."""

import copy
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from eigenveil.core.ledger import Ledger
from eigenveil.core.rows import ignore_float_errors
from eigenveil.data.engines import stays_there
from eigenveil.data.formats import PIPES
from eigenveil.data.frames import person_marks
from eigenveil.data.people import Marks
from eigenveil.data.tables import Source, open_source
from eigenveil.errors import EigenveilError, ParameterWarning, StateFileError, require, require_param
from eigenveil.estimators.checks import NO_ACCOUNT, warn_if_weak
from eigenveil.estimators.fitted import ModelMethods, RowCovariance, noise_variance
from eigenveil.estimators.reading import column_names, select_columns
from eigenveil.estimators.streaming.buffer import as_kind, checked_batch, in_units
from eigenveil.estimators.streaming.spec import Answer, StreamSpec, require_sense, terms_of
from eigenveil.estimators.streaming.state_file import resumed, taken_from, write_stream_file
from eigenveil.estimators.streaming.stream import Stream, UnfinishedStream
from eigenveil.estimators.terms import bound_settings, model_of, settings_of
from eigenveil.estimators.verdict import (
    FitVerdict,
    assess_fit,
    at_edge,
    flat_columns,
    scaled_by,
    unclear_columns,
    warnings_before_fit,
)
from eigenveil.linalg import Array, Subspace
from eigenveil.model import Model
from eigenveil.params.declarations.groups import HERE, ColumnsParams
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.params.declare import param, parameters, validate_params
from eigenveil.params.values import Numbers, instance_of
from eigenveil.plan.streams import StreamPlan
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.tasks.fit.gaps import observed_noise
from eigenveil.trackers.sums import filled, has_gaps

__all__ = ["StreamingPCA"]

# What contents of a state file can raise on their way back into a stream. Any other error keeps its own type.
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError)
# One thread at a time begins a stream. After that the stream has its own lock.
_FIRST = threading.Lock()
# What the first rows teach an estimator. A first batch that fails must leave none of it behind.
_LEARNT = ("_stream", "_sparse", "_before", "_resumed", "n_features_in_", "feature_names_in_", "unfinished_")


@parameters(panel="Privacy")
class StreamingPCA(StreamingParams, ModelMethods, TransformerMixin, BaseEstimator):
    """Principal components of a stream in one pass and bounded memory. Changes in place: a private one spends.

    Parameters
    ----------
    n_components : int
        How many components. With adapt, how many at the start.
    epsilon : float or None
        How much everything released may depend on one person: smaller is more private. At most 1 is strong: someone
        who knows all other rows guesses a person's presence correctly at most 55% of the time, where chance is 50%.
        Up to 10 is reasonable (82%), and more is weak. The budget is for the whole stream, however long. epsilon=None
        must be written out and gives exact PCA with no privacy.
    delta : float or None, default None
        The chance that the guarantee of epsilon fails. Choose it well below one over the number of people.
    random_state : int or None, default None
        A seed. Reproducible, NOT PRIVATE: anyone who knows the seed can subtract the noise. For tests only. None
        draws noise from the operating system.
    quantile : float or None, default None: chosen for the best answer
        If a row bound is found privately: the share of people whose rows are not to be clipped, from 0.01 to below 1.
        Where noise hides the few people beyond it, a lower share is used.
    whiten : bool, default False
        Divide scores by the root of the explained variance, so that every component has variance 1. As in scikit-
        learn's PCA. It costs nothing.
    missing : "refuse", "counts", "groups", "drop" or "fill", default 'refuse'
        Missing values of a private stream. refuse: they are an error. counts: count in the first block how many
        entries each column has, for 5% of the budget, and divide by that. groups: the same for groups of columns.
        drop: leave incomplete rows out. fill: put public values there. Without privacy, gaps are filled from the
        directions found so far. Whichever you choose is public, and holds whether or not there are any. The shares of
        the first block are taken to hold for the whole stream. Infinite values are always refused.
    missing_groups : str, list of lists or None, default None
        For missing='groups': columns that are missing together, such as the items of a questionnaire: names or
        patterns with commas, and a semicolon between groups. Or a list of lists. Other columns are groups of their
        own. If a row lacks one column of a group, all of the group counts as missing in that row.
    missing_fill : float, list or None, default None
        For missing='fill': the public value that takes the place of missing ones: one number, or one per column. You
        must know it without looking at these rows: a mean of them would leak them.
    columns : list of str or None, default None: all
        The columns by name, or by patterns such as lab_*; others are not analysed. A list, for a table with column
        names. Components list the columns in this order.
    drop : list of str or None, default None
        Leave these columns out: names, or patterns such as *_note. A list, for a table with column names.
    one_hot : dict of lists or None, default None
        Make a column of 0 and 1 for each of these public levels of a column of text. A value that is not listed, or
        is missing, is 0 in all of them. For example {"sex": ["f", "m"]}. You must know the levels without looking at
        these rows. A row gets at most a single 1, so that its norm grows by at most 1.
    row_bound : float, "private" or None, default 'private'
        Norm that rows are clipped to, around the mean. private estimates it in the first block with about 10% of the
        budget. A number must not come from the data. The first block is then at least 150 / mu rows long, which is
        about 600 at epsilon 1.
    column_bounds : (low, high) or None, default None
        Entries are clipped to this range. One of the two bounds is enough, and with both, both hold. Low and high are
        each a number, or one per column.
    center : "private" or None, default 'private'
        private: follow the mean and take it off. A private stream looks for it in its first block, for part of the
        budget. center=None: leave rows where they are. It takes no numbers: give those as origin. Or subtract them
        from the rows.
    origin : float, list, array or None, default None: zero, or the middle of the column bounds
        Where a private stream looks for the mean: one number, or one per column.
    scale : "private", float, list, array or None, default None
        Units: columns are divided by this before norms are taken and bounded. private: find the spread of each column
        in the first block, for a quarter of the budget. Or public numbers, one or one per column. With private, rows
        are clipped to the root of the number of columns in these units, and no row bound is searched for. The first
        block is then at least 135 sqrt(d) / mu rows long. With epsilon=None the spread is the exact standard
        deviation of the first block, and nothing is clipped.
    publish : "sync", "block" or "continual", default 'sync'
        When a private stream releases. With sync, at the end and at each synchronisation, for the least noise. With
        block, every block on its own, for the least memory. With continual, every block along a binary tree over a
        horizon, if the estimate must be public all along. If the d x d sum does not fit in `memory_limit`, sync
        becomes block. Without privacy it has no effect.
    horizon : int or None, default None
        For publish='continual': a public upper limit on the number of rows.
    person : str or None, default None
        The column that says whose row it is. A person's first row in a block counts, in at most person_blocks blocks,
        and all of their rows are protected together. Without it each row counts as a separate person. Further rows
        are left out, as if they had not come. Who has had a row is kept in memory, about 200 bytes a person.
    person_blocks : int, default 1
        The largest number of blocks in which one person has a row. One row in each.
    neighbours : "zero-out" or "replace-one", default 'zero-out'
        Neighbouring relation: which two streams the guarantee makes indistinguishable, zero-out or replace-one. Other
        commands default to add-remove, which hides how many rows there are. A stream cannot hide that: it releases
        after a set number of rows.
    adapt : (low, high) or None, default None
        Let the number of components follow the spectrum: the last singular value stays between these fractions of the
        sum of all kept ones. 0.01,0.1 is usual. In a private stream it follows released values.
    forget : float, default 1.0
        Old singular values are multiplied by this at every block. 1 forgets nothing. A row j blocks old counts
        forget^(2 j).
    block_size : int or None, default None: planned
        Rows taken at once. In a private stream a block is a public slot, and a person has at most one row in it.
    oversample : int or None, default None: max(10, components)
        How many directions to keep beyond the components, because later rows may raise them.
    memory_limit : int or None, default None: 1GiB
        Memory that may be used in addition to the rows handed in, such as 64MB or 1.5GiB. A stream that needs more is
        refused. Filling gaps and a growing rank need more than planned. Without a limit, sync becomes block beyond 1
        GiB.
    noise_target : float or None, default None
        For publish='block': make the first block long enough that the noise on its average product has at most this
        standard deviation, in units of the squared row bound. FPCA Lemma 2, corrected.
    ledger : Ledger or None, default None
        Shared by several fits or streams of the same people, so that their costs add up. A stream reserves its whole
        budget on it before its first release. `fit` returns at the end what it did not need.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, n_components_, n_samples_seen_
        As in scikit-learn's IncrementalPCA: of all rows so far or, in a private stream, of the last release.
    subspace_, guarantee_, ledger_, plan_, model_, noise_floor_, n_above_noise_, noise_variance_
        As in `PrivatePCA`.
    bound_usage_, clipped_fraction_, warnings_
        As in `PrivatePCA`.
    searching_ : bool
        Whether a private stream waits for more rows before its first release, because the mean lies too far out to be found in
        the first block. It waits for 8 times as many at most, and not where one person has rows in several blocks.
    unfinished_ : UnfinishedStream
        After a private `fit` that failed, as when its iterator raised: `rows` taken, the `model` of the last release, its
        `guarantee` and the `ledger`. The stream can continue with `partial_fit`, and ends with `sync`. What was charged stays
        charged. Another `fit` would begin with nothing spent, so it is refused unless the ledger is shared.

    Notes
    -----
    Rows that have not been released, and what `save_state` writes, are raw data. The same holds for `transform` of any
    person's rows. When you call `sync` must not depend on the rows. Without privacy NaN marks a gap, and a row is projected on
    its observed coordinates.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((6000, 4)) * [9, 3, 1, 1]
    >>> pca = StreamingPCA(1, epsilon=2.0, delta=1e-6, row_bound=12.0, random_state=0)
    >>> for batch in np.array_split(rows, 100):
    ...     pca = pca.partial_fit(batch)
    >>> bool(abs(pca.sync().components_[0, 0]) > 0.99)
    True
    """

    def __init__(
        self,
        n_components: int,
        *,
        epsilon: float | None,
        delta: float | None = None,
        random_state: Any = None,
        quantile: float | None = None,
        whiten: bool = False,
        missing: Literal["refuse", "counts", "groups", "drop", "fill"] = "refuse",
        missing_groups: Any = None,
        missing_fill: Any = None,
        columns: Any = None,
        drop: Any = None,
        one_hot: Any = None,
        row_bound: float | Literal["private"] | None = "private",
        column_bounds: Any = None,
        center: Literal["private"] | None = "private",
        origin: Numbers | None = None,
        scale: Literal["private"] | Numbers | None = None,
        publish: str = "sync",
        horizon: int | None = None,
        person: str | None = None,
        person_blocks: int = 1,
        neighbours: Literal["zero-out", "replace-one"] = "zero-out",
        adapt: tuple[float, float] | None = None,
        forget: float = 1.0,
        block_size: int | None = None,
        oversample: int | None = None,
        memory_limit: int | None = None,
        noise_target: float | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.random_state = random_state
        self.quantile = quantile
        self.whiten = whiten
        self.missing = missing
        self.missing_groups = missing_groups
        self.missing_fill = missing_fill
        self.columns = columns
        self.drop = drop
        self.one_hot = one_hot
        self.row_bound = row_bound
        self.column_bounds = column_bounds
        self.center = center
        self.origin = origin
        self.scale = scale
        self.publish = publish
        self.horizon = horizon
        self.person = person
        self.person_blocks = person_blocks
        self.neighbours = neighbours
        self.adapt = adapt
        self.forget = forget
        self.block_size = block_size
        self.oversample = oversample
        self.memory_limit = memory_limit
        self.noise_target = noise_target
        self.ledger = ledger

    ledger: Ledger | None = param(
        "Shared by several fits or streams of the same people, so that their costs add up. A stream reserves its whole budget on "
        "it before its first release. `fit` returns at the end what it did not need.",
        default=None,
        check=instance_of(Ledger, "an eigenveil.Ledger"),
        applies_when="epsilon",
        otherwise_hint=NO_ACCOUNT,
        surfaces=HERE,
    )

    @ignore_float_errors
    def fit(self, X: Any, y: Any = None) -> "StreamingPCA":
        """Follow `X` from its start to its end, then release what is pending.

        `X` is an array, a sparse matrix, a table, `Rows`, or an iterator of any of these. Or the path of a csv, Arrow, Parquet,
        npy, npz or svmlight file, which may be larger than memory. Or an open binary file of csv, such as a pipe. A private fit
        that fails on the way leaves `unfinished_`.
        """
        self._require_finished()
        named = isinstance(X, str | Path) or hasattr(X, "read")
        whole = not named and not hasattr(X, "__next__")
        source = self._opened(X) if named else None
        # Only after the source was opened: a path that does not exist must not cost the earlier fit.
        self._forget_stream()
        try:
            for batch in [X] if whole else X if source is None else source.batches:
                # One array is all that will come, and components need two rows. Batches may be single rows.
                names = None if source is None else source.columns
                self._take(batch, min_n=2 if whole else 1, ready=source is not None, names=names, whole=whole)
            self._end(None if source is None else source.columns)
        except BaseException:
            self._keep_unfinished()
            raise
        return self

    def _opened(self, X: Any) -> Source:
        """The rows of a file or pipe with the columns that were chosen."""
        params = validate_params(ColumnsParams, self)
        kind = PIPES[0] if hasattr(X, "read") else None
        chosen_columns = {"columns": params.columns, "drop": params.drop or (), "one_hot": params.one_hot}
        return open_source(X, **chosen_columns, person=self.person, kind=kind)

    def _end(self, columns: Any) -> None:
        """End a fit whose rows have all come: release what is pending."""
        stream = self._begun("there were no rows")
        if columns is not None:
            # Only now, because batches of a file have no names.
            vars(self)["feature_names_in_"] = np.asarray(columns, dtype=object)
        require_param(stream.private or stream.view().sketch.subspace.rank > 0, "{X} has nothing but gaps")
        # Before the last release is charged.
        require_param(
            stream.rows >= stream.terms.rank,
            "{X} has fewer rows than {n_components=}. Ask for fewer components",
            n_components=stream.terms.rank,
        )
        if stream.private:
            self.sync()
            stream.give_back()

    @ignore_float_errors
    def partial_fit(self, X: Any, y: Any = None) -> "StreamingPCA":
        """Take any number of further rows `X`, (n, d): an array, a sparse matrix, a table or `Rows`.

        Unusable rows are refused before any of them is taken. With publish="sync" nothing is released.
        """
        self._take(X, min_n=1)
        return self

    @ignore_float_errors
    def sync(self) -> "StreamingPCA":
        """End the open block and release what is pending. Without privacy there is nothing to do.

        Call it at times that do not depend on the rows. Each increment is charged to the people in it only.
        """
        stream = self._begun("there were no rows")
        stream.sync()
        warn_if_weak(stream.guarantee(), stream.rows)
        # All rows have been released, so a fit that failed has ended after all.
        self.__dict__.pop("unfinished_", None)
        if stream.private:
            self._warn()
        return self

    @ignore_float_errors
    def merge(self, other: "StreamingPCA") -> "StreamingPCA":
        """Add what `other` has found in its own rows. `other` stays as it is.

        The order of merges does not matter, up to the directions truncated. Private streams merge what they have released. The
        guarantee then assumes that no person has rows in both.
        """
        require(isinstance(other, StreamingPCA), f"other must be a StreamingPCA, got {type(other).__name__}")
        require(other is not self, "a stream cannot be merged with itself")
        self._begun("there were no rows").merge(other._begun("the other stream has no rows"))
        return self

    def require_parameters(self) -> "StreamingPCA":
        """Check the parameters now. Otherwise they are checked when the first rows come."""
        require_sense(validate_params(StreamingPCA, self))
        return self

    def plan_for(self, columns: int, *, sparse: bool = False) -> StreamPlan:
        """The plan of a stream of so many columns, before any row has come. Afterwards it is `plan_`."""
        params = validate_params(StreamingPCA, self)
        require_sense(params)
        # A plan does not depend on which values may be missing, and groups of columns go by names, which may not be known yet.
        params.missing, params.missing_groups, params.missing_fill = "refuse", None, None
        return terms_of(params, columns, sparse=sparse).plan

    def expect(self, rows: int | None) -> "StreamingPCA":
        """Say how many rows the whole stream will have, a public number, before the first one comes; None if it is not known.

        Where so few rows make a budget hopeless, the first rows warn of it, and nothing has been spent. Nothing else changes.
        """
        self._expected = rows
        return self

    @ignore_float_errors
    def transform(self, X: Any, *, clip: bool = False) -> Array:
        """Scores, (n, k), of rows `X`, (n, d). Raw data: scores of people are as private as their rows.

        Columns are matched by name where both have names. With `clip`, rows are first clipped as in the fit.
        """
        model, view = self.model_, self._view()
        scores = []
        X, _ = select_columns(X, self, fitting=False, labels=self._names())
        for rows in checked_batch(self, X, reset=False, min_n=1)[1]:
            # With a rule for gaps the model knows what becomes of them.
            gaps = self.missing == "refuse" and not sp.issparse(rows) and has_gaps(rows)
            if gaps:
                # Gaps are filled in the units of the stream.
                rows = filled(in_units(rows, model.scale, private=False), view.sketch)
                rows = rows if model.scale is None else rows * model.scale
            scores.append(model.scores_of(rows, clip=clip))
        return np.vstack(scores) if scores else np.empty((0, len(model.values)))

    def _pieces(self, X: Any, *, size: int) -> Iterator[Any]:
        """Checked rows without gaps, at most `size` at a time."""
        X, _ = select_columns(X, self, fitting=False, labels=self._names())
        for piece in checked_batch(self, X, reset=False, min_n=1)[1]:
            rows = piece if self.missing == "refuse" else self.model_.completed(piece)
            require_param(
                self.missing != "refuse" or sp.issparse(rows) or not has_gaps(rows),
                "{X} has rows with gaps, whose likelihood is not known. Leave them out",
            )
            yield from (rows[start : start + size] for start in range(0, rows.shape[0], size))

    def _covariance(self) -> RowCovariance:
        return RowCovariance.of_model(self.model_, self.noise_variance_)

    def _fitted_model(self) -> Model:
        # Without a release it says what there is to wait for.
        return self.model_

    def save_state(self, path: str | Path, *, notes: Mapping[str, Any] | None = None) -> None:
        """Write everything that is needed to continue later. The file is raw data, readable by its owner only.

        A private stream with real noise moves to the file and cannot continue in memory. Otherwise the same rows could be
        released twice and charged once. `notes` are plain JSON for whoever resumes it.
        """
        self._write_state(path, notes, stays=False)

    def checkpoint(self, path: str | Path, *, notes: Mapping[str, Any] | None = None) -> None:
        """Write what `save_state` writes, and continue in memory: a process that is killed can be resumed from the file.

        Write one after each release and before anything of it is shown. A release that is not in the file would be drawn again,
        with other noise, and charged once. While this stream lives, the file of a private one with real noise cannot be resumed.
        """
        require(
            os.name == "posix" or self.epsilon is None, "a private stream can write checkpoints only where files can be locked"
        )
        self._write_state(path, notes, stays=True)

    def _write_state(self, path: str | Path, notes: Mapping[str, Any] | None, *, stays: bool) -> None:
        stream = self._begun("there were no rows")
        estimator: Any = self
        # A shared ledger belongs to other fits as well, so it is no part of the state. `resume` takes it anew.
        params = {name: _plain(value) for name, value in estimator.get_params(deep=False).items() if name != "ledger"}
        # The resolved seed: a generator cannot be written to a file.
        params["random_state"] = stream.terms.seed
        names = getattr(self, "feature_names_in_", None)
        facts = {
            "params": params,
            "plan": asdict(stream.terms.plan),
            "dim": stream.terms.bounds.dim,
            "sparse": self._sparse,
            "columns": None if names is None else [str(name) for name in names],
            "notes": dict(notes or {}),
        }
        write_stream_file(Path(path), stream, facts, stays=stays)

    @classmethod
    def resume(cls, path: str | Path, *, ledger: Ledger | None = None, checkpoints: bool = False) -> "StreamingPCA":
        """Continue from a state that `save_state` or `checkpoint` wrote. `ledger` is the shared one, if the stream had one.

        A private stream with real noise claims the file, which is renamed and cannot be resumed again. Whoever writes
        `checkpoints` to the same file keeps its name, and it can be resumed again if this process is killed.
        """
        path = Path(path)
        arrays, header, claimed, held = taken_from(path, stays=checkpoints)
        try:
            facts = header["facts"]
            # JSON has lists in place of pairs, and `validate_params` makes pairs of them again.
            pca = validate_params(cls, cls(**facts["params"], ledger=ledger))
            dim, pca._sparse = int(facts["dim"]), bool(facts["sparse"])
            vars(pca)["n_features_in_"] = dim
            if facts["columns"] is not None:
                vars(pca)["feature_names_in_"] = np.asarray(facts["columns"], dtype=object)
            # The old plan, even if this version would make another: blocks are public slots, and their ends must not move.
            terms = terms_of(pca, dim, sparse=pca._sparse, plan=StreamPlan(**facts["plan"]), names=pca._names())
            pca._stream = resumed(terms, arrays, header, ledger)
            vars(pca)["_resumed"] = True
        except BaseException as error:
            if claimed is not None:
                # Nothing was resumed, so the file gets its name back.
                claimed.replace(claimed.with_name(claimed.name.removesuffix(".resumed")))
            if held is not None:
                held.close()
            if isinstance(error, StateFileError) or not isinstance(error, _DAMAGE):
                raise
            raise StateFileError(f"{path} is damaged: {error}") from error
        pca._stream.claimed, pca._stream.held_file = claimed, held
        return pca

    @property
    def model_(self) -> Model:
        """The components, what is needed to apply them, and the guarantee."""
        view = self._view()
        stream = self._current
        return model_of(
            view,
            verdict=self._judged(view),
            guarantee=stream.guarantee(),
            columns=self._names(),
            settings=_settings(stream, view),
            clipping=stream.clipping(),
        )

    @property
    def subspace_(self) -> Subspace:
        """The components with their values in data scale."""
        return self._view().subspace

    @property
    def mean_(self) -> Array:
        """The mean that is subtracted, (d,), in the units of the columns. Zero without centring."""
        return self._view().center

    @property
    def noise_variance_(self) -> float:
        """The average variance outside the components, as in scikit-learn's PCA. It is not the noise of privacy."""
        return noise_variance(self._view(), noise_floor=self.noise_floor_)

    @property
    def n_samples_seen_(self) -> int:
        """How many rows have been taken, including those of merged streams."""
        stream = self._current
        return stream.rows + (0 if stream.merged is None else stream.merged.rows)

    @property
    def guarantee_(self) -> Guarantee:
        """The guarantee of everything released so far."""
        return self._current.guarantee()

    @property
    def _verdict(self) -> FitVerdict:
        return self._judged(self._view())

    @property
    def _current(self) -> Stream:
        return self._begun("")

    # Each is computed when it is asked for. A block that is not looked at costs nothing.
    components_ = property(attrgetter("subspace_.basis.T"), doc="The leading directions, (k, d).")
    singular_values_ = property(attrgetter("subspace_.values"), doc="Their singular values, (k,).")
    n_components_ = property(attrgetter("subspace_.rank"), doc="The current number of components.")
    explained_variance_ = property(attrgetter("model_.explained_variance"), doc="The variance along each, (k,).")
    explained_variance_ratio_ = property(attrgetter("model_.explained_variance_ratio"), doc="Its share, (k,).")
    noise_floor_ = property(attrgetter("model_.noise_floor"), doc="Variance that noise exceeds in one look of a hundred.")
    n_above_noise_ = property(attrgetter("model_.n_above_noise"), doc="How many components are above the noise floor.")
    warnings_ = property(attrgetter("model_.warnings"), doc="What seems wrong, and what mends it. Empty if all is well.")
    bound_usage_ = property(attrgetter("_verdict.bound_usage"), doc="As in `PrivatePCA`, None without privacy.")
    clipped_fraction_ = property(attrgetter("_verdict.clipped"), doc="As in `PrivatePCA`, of the first block.")
    ledger_ = property(attrgetter("_current.ledger"), doc="What was charged.")
    plan_ = property(attrgetter("_current.terms.plan"), doc="The plan of the stream and its reason.")

    @property
    def searching_(self) -> bool:
        """Whether the search for the mean waits for more rows, because the first ones lie too far out. `sync` ends the wait."""
        return self._current.searching is not None

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a private stream's estimator has a copy of the stream, without rows, that cannot continue."""
        state = dict(self.__dict__)
        stream: Stream | None = state.get("_stream")
        if stream is not None and stream.private:
            state["_stream"] = copy.copy(stream)
        return state

    def __sklearn_is_fitted__(self) -> bool:
        stream = getattr(self, "_stream", None)
        return stream is not None and stream.view().sketch.subspace.rank > 0

    def __sklearn_tags__(self) -> Any:
        parent: Any = super()
        tags = parent.__sklearn_tags__()
        tags.input_tags.sparse = True
        # Filling a gap from other rows would break the bound on what one row can change, so private streams take none.
        tags.input_tags.allow_nan = self.epsilon is None
        return tags

    def _forget_stream(self) -> None:
        stream: Stream | None = getattr(self, "_stream", None)
        if stream is not None:
            # At once, even if an exception still refers to the stream.
            stream.give_back()
        for name in _LEARNT:
            self.__dict__.pop(name, None)

    def _keep_unfinished(self) -> None:
        """Set `unfinished_` after a private fit that failed, and give back the rest of its budget."""
        stream: Stream | None = getattr(self, "_stream", None)
        if stream is None or stream.ledger is None:
            return
        stream.give_back()
        # Before the first release there is no model to show.
        shown = stream.view().sketch.subspace.rank > 0
        self.unfinished_ = UnfinishedStream(
            rows=stream.rows,
            releases=stream.releases,
            model=self.model_ if shown else None,
            guarantee=stream.guarantee(),
            ledger=stream.ledger,
        )

    def _require_finished(self) -> None:
        """Refuse to begin with an empty ledger after a fit that failed and charged people, or in a stream of a state file."""
        stream: Stream | None = getattr(self, "_stream", None)
        if stream is None or stream.shared or not stream.charges:
            return
        failed = hasattr(self, "unfinished_")
        if not failed and not hasattr(self, "_resumed"):
            return
        happened = f"this is a stream of {stream.rows} rows, resumed from a state, and its releases are charged"
        if failed:
            happened = f"the last fit failed after {stream.rows} rows, and its releases are charged (see unfinished_)"
        onward = "" if failed and stream.closed is not None else "Continue with partial_fit, and end with sync(). "
        raise EigenveilError(
            f"{happened}. A new fit would forget that. {onward}For other people, fit another StreamingPCA, such as "
            "sklearn.base.clone of this one. For the same people, give the new one ledger=ledger_ of this one, so that costs "
            "add up"
        )

    def _begun(self, otherwise: str) -> Stream:
        stream: Stream | None = getattr(self, "_stream", None)
        if stream is None:
            why = f": {otherwise}" if otherwise else ""
            raise NotFittedError(f"This StreamingPCA instance is not fitted yet{why}. Call fit or partial_fit first")
        return stream

    def _view(self) -> Answer:
        view = self._current.view()
        if view.sketch.subspace.rank == 0 and self.epsilon is None:
            raise NotFittedError("This StreamingPCA instance is not fitted yet: all rows so far were gaps")
        if view.sketch.subspace.rank == 0:
            raise NotFittedError(
                "This StreamingPCA instance is not fitted yet: nothing has been released. With publish='sync' call sync(). With "
                "'block' or 'continual' the first block must be full, or call sync() to end it early"
            )
        return view

    def _judged(self, view: Answer) -> FitVerdict:
        """The verdict on the components, from what was released."""
        stream = self._current
        released, terms = None, stream.terms
        if view.floor > 0:
            location, bounds, split = stream.place, terms.bounds, terms.split
            steps = sum(charge.label.startswith(("mean", "norms")) for charge in stream.charges)
            unclear: tuple[int, ...] = ()
            if bounds.gaps is not None and terms.budget is not None and location.rates is not None:
                noise = observed_noise(bounds.gaps, multiplier=1 / terms.budget.mu, share=split.for_observed)
                # The search may have waited for more rows, which makes the counts clearer than this.
                people = min(terms.plan.first_block, stream.rows)
                unclear = unclear_columns(bounds.gaps, location.rates.columns, noise=noise, people=people)
            released = replace(view, unclear=unclear).released(
                radius=bounds.row_bound if location.bound is None else location.bound,
                at_edge=at_edge(bounds, view.center, steps=steps, max_steps=len(split.mean)),
                flat=flat_columns(bounds, location.scale),
                clipped=location.clipped,
                norms=location.norms,
                outliers=location.outliers,
                scaled=scaled_by(bounds),
            )
        return assess_fit(
            released,
            settings=terms.settings,
            budget=terms.budget,
            method=f"stream/{terms.plan.kind.publishes}",
            neighbours=terms.neighbours,
            names=self._names(),
            before=getattr(self, "_before", ()),
        )

    def _warn(self) -> None:
        """Say what is wrong with what was released."""
        verdict = self._judged(self._view())
        for warning in verdict.warned[verdict.n_before_fit :]:
            warnings.warn(warning, stacklevel=4)

    def _forewarn(self, terms: StreamSpec, people: int | None) -> None:
        """Say before anything is spent that a budget is hopeless, for a public number of rows, or at most those of a horizon."""
        self._before: tuple[ParameterWarning, ...] = warnings_before_fit(
            f"stream/{terms.plan.kind.publishes}",
            dim=terms.bounds.dim,
            rank=terms.rank,
            people=terms.horizon if people is None else people,
            budget=terms.budget,
            neighbours=terms.neighbours,
            center="private" if terms.center else None,
            bounds=terms.bounds,
        )
        for warning in self._before:
            warnings.warn(warning, stacklevel=6)

    def _take(
        self, X: Any, *, min_n: int, ready: bool = False, names: tuple[str, ...] | None = None, whole: bool = False
    ) -> None:
        """Feed checked rows to the stream. The first rows begin it. Without privacy, rows that fail leave no trace.

        Rows that are `ready` have the chosen columns already. Batches of a file have `names` of which they know nothing. If these
        rows are the `whole` stream, their number is known before anything is spent.
        """
        before = {name: self.__dict__[name] for name in _LEARNT if name in self.__dict__}
        snapshot = self._stream.kept() if "_stream" in before else None
        try:
            begun = snapshot is not None
            X, marks = self._read(X, begun=begun, ready=ready)
            count, pieces = checked_batch(self, X, reset=not begun, min_n=min_n, nameless=True, names=names)
            for rows in pieces:
                with _FIRST:
                    if not hasattr(self, "_stream"):
                        # Rows that a person has too many of are left out later, so the number is not known yet.
                        self._begin(rows, self._names() or names, people=count if whole and marks is None else None)
                stream = self._current
                # All rows that are left of the batch, not this piece alone: none is taken if the batch exceeds the horizon.
                stream.require_room(count)
                count -= rows.shape[0]
                own, marks = (None, None) if marks is None else marks.parted(rows.shape[0])
                stream.feed(as_kind(rows, sparse=self._sparse, gaps=self.missing != "refuse"), own)
        except BaseException:
            stream_now: Stream | None = getattr(self, "_stream", None)
            if snapshot is not None and stream_now is not None:
                stream_now.put_back(snapshot)
            # These rows began the stream, so it goes with them, unless people were charged. That must not be forgotten.
            elif stream_now is None or not stream_now.private or (stream_now.rows == 0 and not stream_now.charges):
                self._forget_stream()
            raise

    def _read(self, X: Any, *, begun: bool, ready: bool) -> tuple[Any, Marks | None]:
        """The chosen columns of a batch, and whose rows they are. A batch that is `ready` has a column for the person at most."""
        marks = None
        if self.person is not None:
            require_param(not stays_there(X), "{person} is for batches in this process: a stream takes Dask batches row by row")
            # A list would hold the ids of people, which no error may quote.
            require_param(isinstance(self.person, str), "{person} must be the name of a column of the rows")
            require_param(self.person in (column_names(X) or ()), "{person=} names no column of {X}", person=self.person)
            marks = person_marks(X, self.person)
        if not ready:
            return select_columns(X, self, fitting=not begun, labels=self._names(), alike=True)[0], marks
        return X if marks is None else X.drop_columns([self.person]), marks

    def _begin(self, rows: Any, names: tuple[str, ...] | None, *, people: int | None) -> None:
        params = validate_params(StreamingPCA, self)
        terms = terms_of(params, rows.shape[1], sparse=sp.issparse(rows), names=names)
        ledger = params.ledger
        if terms.budget is not None and ledger is None:
            ledger = Ledger(epsilon=terms.budget.epsilon, delta=terms.budget.delta)
        self._forewarn(terms, self.__dict__.get("_expected") if people is None else people)
        self._sparse = sp.issparse(rows)
        self._stream = Stream(terms, ledger, shared=params.ledger is not None)


def _settings(stream: Stream, view: Answer) -> dict[str, Any]:
    terms, plan = stream.terms, stream.terms.plan
    return settings_of(
        terms.settings,
        method=f"stream, {plan.tracker}",
        why=plan.reason,
        neighbours=terms.neighbours if stream.private else None,
        block=plan.block,
        publish=plan.kind.publishes if stream.private else None,
        oversample=terms.oversample,
        rows=view.rows,
        releases=stream.releases,
        **bound_settings(terms.settings, terms.bounds, stream.place.bound, stream.place.scale),
    )


def _plain(value: Any) -> Any:
    """A parameter as plain JSON."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return np.asarray(value).tolist() if hasattr(value, "__array__") else value
