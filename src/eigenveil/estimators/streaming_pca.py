"""`StreamingPCA`: principal components of rows that are seen once, on a small device, privately when asked."""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from eigenveil.data import as_arrow, as_numbers, is_arrow_like, require_numbers
from eigenveil.errors import StateFileError, require
from eigenveil.estimators.bounds import RowBounds
from eigenveil.estimators.checks import (
    budget_of,
    checked_array,
    is_real,
    require_integer,
    require_one_of,
    seed_of,
    with_names,
)
from eigenveil.estimators.stream import Stream, StreamTerms, View
from eigenveil.estimators.stream_file import claim, read_stream_file, resumed, write_stream_file
from eigenveil.linalg import Array, Subspace
from eigenveil.model import Model
from eigenveil.plan import StreamPlan, plan_stream
from eigenveil.privacy import Guarantee, Ledger, Neighbours
from eigenveil.rows import Rows
from eigenveil.sources import open_source
from eigenveil.tracking import EnergyBounds
from eigenveil.tracking.missing import filled, has_gaps

__all__ = ["StreamingPCA"]

_PIECE = 1 << 14
# Sums of products of larger numbers could overflow. Rows of a private stream are cut to their bound long before that.
_SQUARABLE = 1e140
_LEARNT = ("_stream", "_sparse", "n_features_in_", "feature_names_in_")


class StreamingPCA(TransformerMixin, BaseEstimator):
    """Principal components of a stream in one pass and bounded memory. Changes in place: a private one spends.

    Parameters
    ----------
    n_components : int
        How many components; with `adapt`, how many to begin with.
    epsilon, delta : float
        The budget of the whole stream, however long. `epsilon=None` must be written out and means no privacy.
    row_bound : float
        No row may be longer than this around the mean; longer ones are scaled down. You must know it without looking.
    adapt : None or (low, high)
        Let the number of components follow the spectrum: the last singular value stays between these fractions of
        the sum of all that are kept; (0.01, 0.1) is usual. In a private stream it follows released values.
    forget : float in (0, 1]
        Old singular values are multiplied by this at every block, so a row j blocks old counts forget^(2 j).
    block_size : int
        Rows taken at once. In a private stream a block is a public slot, and a person has at most one row in it.
    oversample : int
        Directions kept beyond n_components, for what a later block may bring up; max(10, n_components) unless given.
    publish : "sync", "block" or "continual"
        When a private stream releases: at each `sync()`, what came since the last one (least noise); every block on its own
        (least memory); or every block along a binary tree over a `horizon`, when the estimate must be public all along.
        "sync" turns to "block" where the d x d sum does not fit in `memory_limit`. Without privacy it means nothing.
    horizon : int
        For "continual": at most how many rows will come, a public number.
    person_blocks : int
        In at most how many blocks one person has a row.
    memory_limit : int
        Bytes that may be used beside the rows handed in. A stream that needs more is refused; without a limit, "sync"
        turns to "block" beyond 1 GiB.
    center : bool
        Follow the mean and take it off. A private stream looks for it in its first block, for part of the budget.
    origin : float or array of d
        Where a private stream looks for the mean; zero unless given.
    neighbours : "zero-out" or "replace-one"
        Which streams must be hard to tell apart. The number of rows is public in both.
    noise_target : float
        For "block": make the first block long enough that the noise on its average product has at most this standard
        deviation, in units of row_bound^2 (FPCA Lemma 2, corrected).
    ledger : Ledger
        Shared by several fits or streams of the same people, so that their costs add up.
    random_state : None or int
        None draws noise from the operating system. A seed makes a private stream reproducible and not private.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, n_components_, n_samples_seen_
        As in scikit-learn's IncrementalPCA: of all rows so far or, in a private stream, of what was released last.
    subspace_, guarantee_, ledger_, plan_, model_, noise_floor_
        As in `PrivatePCA`.

    Notes
    -----
    Rows that have not been released, and what `save_state` writes, are raw data. So is `transform` of anybody's rows. When to
    call `sync` must not depend on the rows. Without privacy NaN marks a gap: such a row is projected on its observed coordinates.

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
        row_bound: float | None = None,
        adapt: tuple[float, float] | None = None,
        forget: float = 1.0,
        block_size: int | None = None,
        oversample: int | None = None,
        publish: Literal["sync", "block", "continual"] = "sync",
        horizon: int | None = None,
        person_blocks: int = 1,
        memory_limit: int | None = None,
        center: bool = True,
        origin: ArrayLike | None = None,
        neighbours: Literal["zero-out", "replace-one"] = "zero-out",
        noise_target: float | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.row_bound = row_bound
        self.adapt = adapt
        self.forget = forget
        self.block_size = block_size
        self.oversample = oversample
        self.publish = publish
        self.horizon = horizon
        self.person_blocks = person_blocks
        self.memory_limit = memory_limit
        self.center = center
        self.origin = origin
        self.neighbours = neighbours
        self.noise_target = noise_target
        self.ledger = ledger
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> "StreamingPCA":
        """Follow `X` from its start to its end, then release what is held back.

        `X` is an array, a sparse matrix, a table, `Rows`, an iterator of any of these, the path of a csv, Arrow, Parquet, npy,
        npz or svmlight file, which may be larger than memory, or an open binary file of csv, such as a pipe.
        """
        named = isinstance(X, str | Path) or hasattr(X, "read")
        whole = not named and not hasattr(X, "__next__")
        source = open_source(X, kind="csv" if hasattr(X, "read") else None) if named else None
        self._forget_stream()
        for batch in [X] if whole else X if source is None else source.batches:
            self._take(batch, least=2 if whole else 1)
        stream = self._begun("there were no rows")
        if source is not None and source.columns is not None:
            # Only now, because the batches themselves carry no names.
            vars(self)["feature_names_in_"] = np.asarray(source.columns, dtype=object)
        if stream.private:
            stream.sync()
        require(
            stream.rows >= stream.terms.rank,
            f"X has fewer rows than n_components={stream.terms.rank}; ask for fewer components",
        )
        return self

    def partial_fit(self, X: Any, y: Any = None) -> "StreamingPCA":
        """Follow the stream through more rows `X`, (n, d), of any number: arrays, sparse matrices, tables, `Rows`.

        Rows that cannot be used are refused before any of them is taken. With publish="sync" nothing is released.
        """
        self._take(X, least=1)
        return self

    def sync(self) -> "StreamingPCA":
        """End the open block and release what is held back; without privacy there is nothing to do.

        Call it at times that do not depend on the rows. Each increment is charged to the people in it only.
        """
        self._begun("there were no rows").sync()
        return self

    def merge(self, other: "StreamingPCA") -> "StreamingPCA":
        """Add what `other`, which stays as it is, has found in rows of its own. In any order, up to the directions cut off.

        Private streams merge what they have released: nobody may have rows in both, and the guarantee says so.
        """
        require(isinstance(other, StreamingPCA), f"other must be a StreamingPCA, got {type(other).__name__}")
        require(other is not self, "a stream cannot be merged with itself")
        self._begun("there were no rows").merge(other._begun("the other stream has no rows"))
        return self

    def transform(self, X: Any) -> Array:
        """Scores, (n, k), of rows `X`, (n, d). Raw data: scores of people are as private as their rows."""
        model, view = self.model_, self._view()
        scores = []
        for rows in self._checked(X, reset=False, least=1)[1]:
            gaps = not sp.issparse(rows) and has_gaps(rows)
            scores.append(model.transform(filled(rows, view.sketch) if gaps else rows))
        return np.vstack(scores) if scores else np.empty((0, len(model.values)))

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Rows, (n, d), from scores `X`, (n, k)."""
        model = self.model_
        scores = np.asarray(X, dtype=np.float64)
        require(
            scores.ndim == 2 and scores.shape[1] == len(model.values),
            f"scores must have shape (n, {len(model.values)}), got {scores.shape}",
        )
        return model.inverse_transform(scores)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the columns of `transform`: streamingpca0, streamingpca1, ..."""
        return np.asarray([f"streamingpca{i}" for i in range(self.n_components_)], dtype=object)

    def save(self, path: str | Path) -> None:
        """Write `model_`, which holds what may be seen, to a safetensors file; `eigenveil.Model.load` reads it back."""
        self.model_.save(path)

    def save_state(self, path: str | Path) -> None:
        """Write everything that is needed to go on from here. The file is raw data, readable by its owner only.

        A private stream with real noise moves to the file and cannot go on in memory: two of it would release the same
        rows twice for one price.
        """
        stream = self._begun("there were no rows")
        given: Any = self
        params = {name: _plain(value) for name, value in given.get_params(deep=False).items() if name != "ledger"}
        params["random_state"] = stream.terms.seed
        names = getattr(self, "feature_names_in_", None)
        facts = {
            "params": params,
            "plan": asdict(stream.terms.plan),
            "dim": stream.terms.bounds.dim,
            "sparse": self._sparse,
            "columns": None if names is None else [str(name) for name in names],
        }
        write_stream_file(Path(path), stream, facts)

    @classmethod
    def resume(cls, path: str | Path, *, ledger: Ledger | None = None) -> "StreamingPCA":
        """Go on from a state that `save_state` wrote. `ledger` is the shared one, if the stream was paid from one.

        A private stream with real noise is taken out of the file, which is renamed and cannot be resumed again.
        """
        path = Path(path)
        arrays, header = read_stream_file(path)
        try:
            facts = header["facts"]
            params = dict(facts["params"])
            params["adapt"] = None if params["adapt"] is None else tuple(params["adapt"])
            pca = cls(**params, ledger=ledger)
            pca.n_features_in_ = int(facts["dim"])
            if facts["columns"] is not None:
                vars(pca)["feature_names_in_"] = np.asarray(facts["columns"], dtype=object)
            pca._sparse = bool(facts["sparse"])
            terms = pca._terms(pca.n_features_in_, sparse=pca._sparse, plan=StreamPlan(**facts["plan"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateFileError(f"{path} is damaged: {error}") from error
        stream = resumed(path, terms, arrays, header, ledger)
        if stream.private and terms.seed is None:
            stream.claimed = claim(path)
        pca._stream = stream
        return pca

    @property
    def model_(self) -> Model:
        """The components, what is needed to apply them, and the promise."""
        view = self._view()
        stream = self._begun("")
        space = self._shown(view)
        eigenvalues = np.square(space.values)
        divisor = max(view.sketch.weight, 2.0) - 1.0
        total = max(view.sketch.energy, float(eigenvalues.sum()))
        names = getattr(self, "feature_names_in_", None)
        return Model(
            components=space.basis.T,
            mean=view.sketch.mean,
            values=space.values,
            explained_variance=eigenvalues / divisor,
            explained_variance_ratio=eigenvalues / total if total > 0 else np.zeros_like(eigenvalues),
            guarantee=stream.guarantee(),
            columns=None if names is None else tuple(str(name) for name in names),
            settings=_settings(stream, view, divisor),
        )

    @property
    def subspace_(self) -> Subspace:
        """The components with their values in data scale."""
        return self._shown(self._view())

    @property
    def components_(self) -> Array:
        """The leading directions, (k, d)."""
        return self.subspace_.basis.T

    @property
    def singular_values_(self) -> Array:
        """Their singular values, (k,)."""
        return self.subspace_.values

    @property
    def n_components_(self) -> int:
        """How many components there are now."""
        return self.subspace_.rank

    @property
    def mean_(self) -> Array:
        """The mean that is taken off, (d,); zero without centring."""
        return self._view().sketch.mean

    @property
    def explained_variance_(self) -> Array:
        """The variance along each component, (k,)."""
        return self.model_.explained_variance

    @property
    def explained_variance_ratio_(self) -> Array:
        """Its share of the whole, (k,)."""
        return self.model_.explained_variance_ratio

    @property
    def noise_floor_(self) -> float:
        """Explained variances below this cannot be told from noise."""
        return float(self.model_.settings["noise_floor"])

    @property
    def n_samples_seen_(self) -> int:
        """How many rows have been taken."""
        return self._begun("").rows

    @property
    def guarantee_(self) -> Guarantee:
        """What is promised."""
        return self._begun("").guarantee()

    @property
    def ledger_(self) -> Ledger | None:
        """What was charged."""
        return self._begun("").ledger

    @property
    def plan_(self) -> StreamPlan:
        """How the stream is followed, and why."""
        return self._begun("").terms.plan

    def __sklearn_is_fitted__(self) -> bool:
        stream = getattr(self, "_stream", None)
        return stream is not None and stream.view().sketch.subspace.rank > 0

    def __sklearn_tags__(self) -> Any:
        parent: Any = super()
        tags = parent.__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.epsilon is None
        return tags

    def _forget_stream(self) -> None:
        for name in _LEARNT:
            self.__dict__.pop(name, None)

    def _begun(self, otherwise: str) -> Stream:
        stream: Stream | None = getattr(self, "_stream", None)
        if stream is None:
            why = f": {otherwise}" if otherwise else ""
            raise NotFittedError(f"This StreamingPCA instance is not fitted yet{why}; call fit or partial_fit first")
        return stream

    def _view(self) -> View:
        view = self._begun("").view()
        if view.sketch.subspace.rank == 0:
            raise NotFittedError(
                "This StreamingPCA instance is not fitted yet: nothing has been released. With publish='sync' call sync(); with "
                "'block' or 'continual' the first block must be full, or call sync() to end it early"
            )
        return view

    def _shown(self, view: View) -> Subspace:
        space = view.sketch.subspace
        rank = max(1, min(view.rank, space.rank, view.rows + self._begun("").merged * space.rank))
        return space.truncate(rank)

    def _take(self, X: Any, *, least: int) -> None:
        """Feed checked rows to the stream, which the first of them begin. Without privacy, rows that fail leave no trace."""
        before = {name: self.__dict__[name] for name in _LEARNT if name in self.__dict__}
        kept = self._stream.kept() if "_stream" in before else None
        try:
            count, pieces = self._checked(X, reset=kept is None, least=least)
            for rows in pieces:
                if not hasattr(self, "_stream"):
                    self._begin(rows)
                stream = self._begun("")
                stream.require_room(count)
                count -= rows.shape[0]
                stream.feed(rows if self._sparse == sp.issparse(rows) else _as_kind(rows, sparse=self._sparse))
        except BaseException:
            stream_now: Stream | None = getattr(self, "_stream", None)
            if kept is not None and stream_now is not None:
                stream_now.put_back(kept)
            elif stream_now is None or not stream_now.private or stream_now.rows == 0:
                self._forget_stream()
            raise

    def _begin(self, rows: Any) -> None:
        terms = self._terms(rows.shape[1], sparse=sp.issparse(rows))
        ledger = None if terms.budget is None else self.ledger
        if terms.budget is not None and ledger is None:
            ledger = Ledger(epsilon=terms.budget.epsilon, delta=terms.budget.delta)
        self._sparse = sp.issparse(rows)
        self._stream = Stream(terms, ledger, shared=self.ledger is not None)

    def _checked(self, X: Any, *, reset: bool, least: int) -> tuple[int, Iterator[Any]]:
        """How many rows, and float64 arrays or CSR matrices of them: in a private stream all were checked by now."""
        if type(X) is np.ndarray and not reset and self._is_plain(X, least):
            return len(X), _pieces(X)
        if not isinstance(X, np.ndarray) and isinstance(X, Rows) and not is_arrow_like(X):
            _require_shape(X.shape, least=least)
            if self.epsilon is not None:
                # What was released cannot be taken back, so a bad row must not turn up halfway.
                deque(self._checked_rows(X, reset=reset), maxlen=0)
            return X.shape[0], self._checked_rows(X, reset=reset)
        if is_arrow_like(X):
            table = as_arrow(with_names(self, X, reset=reset))
            require_numbers(table.schema)
            _require_shape((table.num_rows, table.num_columns), least=least)
            array = as_numbers(table, gaps=True)
            require(not np.isinf(array).any(), "X contains infinity")
        else:
            fewest = {"ensure_min_features": 2} if reset else {}
            checks = {"ensure_all_finite": "allow-nan", "ensure_min_samples": least, **fewest}
            array = checked_array(self, X, reset=reset, **checks)
        self._require_usable(array)
        return array.shape[0], _pieces(array)

    def _is_plain(self, X: Any, least: int) -> bool:
        """Whether `X` is just what was expected, so that the long way through scikit-learn's checks would find nothing."""
        if X.ndim != 2 or X.dtype != np.float64 or X.shape[1] != self.n_features_in_ or len(X) < least:
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            return "feature_names_in_" not in self.__dict__ and bool(np.einsum("ij,ij->", X, X) < _SQUARABLE**2)

    def _checked_rows(self, X: Rows, *, reset: bool) -> Iterator[Any]:
        if reset:
            self.n_features_in_ = X.shape[1]
        require(
            X.shape[1] == self.n_features_in_,
            f"X has {X.shape[1]} features, but StreamingPCA is expecting {self.n_features_in_} features as input",
        )
        for block in X.blocks(_PIECE):
            values = block.values
            require(block.weights is None, "rows of named persons cannot be followed as a stream; see person_blocks")
            require(values.dtype.kind in "biuf", f"X must hold real numbers, got dtype {values.dtype}")
            require(not np.isinf(values.data if sp.issparse(values) else values).any(), "X contains infinity")
            self._require_usable(values)
            yield from _pieces(values)

    def _require_usable(self, array: Any) -> None:
        """Refuse gaps where there may be none, and without privacy numbers that are too large to multiply."""
        sparse = sp.issparse(array)
        if array.dtype.kind != "f":
            return
        if self.epsilon is None:
            values = array.data if sparse else array
            require(
                array.dtype.itemsize <= 4 or not bool(((values > _SQUARABLE) | (values < -_SQUARABLE)).any()),
                f"X contains numbers beyond {_SQUARABLE:g}, too large to square; scale the columns first",
            )
            if not sparse:
                return
        with np.errstate(invalid="ignore", over="ignore"):
            gaps = bool(np.isnan(array.data if sparse else array).any())
        require(
            not gaps or not sparse,
            "X contains NaN in a sparse matrix: leave such entries out, or give dense rows if they are gaps",
        )
        require(
            not gaps,
            "X contains NaN: a private stream takes no gaps, because filling them from other rows would break the bound on what "
            "one row can change; fill or drop such rows by a public rule first",
        )

    def _terms(self, dim: int, *, sparse: bool, plan: StreamPlan | None = None) -> StreamTerms:
        """The parameters, checked."""
        budget = budget_of(self.epsilon, self.delta)
        require_integer("n_components", self.n_components, least=1, optional=False)
        rank = int(self.n_components)
        require(rank <= dim, f"n_components={rank} must be at most the number of columns, {dim}")
        require(is_real(self.forget) and 0 < self.forget <= 1, f"forget must lie in (0, 1], got {self.forget!r}")
        require_integer("block_size", self.block_size, least=1)
        require_integer("oversample", self.oversample, least=0)
        require_one_of("publish", self.publish, ("sync", "block", "continual"))
        require_one_of("neighbours", self.neighbours, ("zero-out", "replace-one"))
        require_integer("horizon", self.horizon, least=1)
        require_integer("person_blocks", self.person_blocks, least=1, optional=False)
        require_integer("memory_limit", self.memory_limit, least=1)
        require(isinstance(self.center, bool | np.bool_), f"center must be True or False, got {self.center!r}")
        require(self.ledger is None or isinstance(self.ledger, Ledger), "ledger must be an eigenveil.Ledger")
        continual = self.publish == "continual" and budget is not None
        require(
            not continual or self.horizon is not None,
            "horizon is required for publish='continual': at most how many rows will come, a public number",
        )
        require(
            continual or self.horizon is None, "horizon is for a private stream with publish='continual'; leave it out"
        )
        require(
            self.noise_target is None or (budget is not None and is_real(self.noise_target) and self.noise_target > 0),
            f"noise_target must be a positive number, for a private stream, got {self.noise_target!r}",
        )
        neighbours = Neighbours(self.neighbours)
        oversample = max(10, rank) if self.oversample is None else int(self.oversample)
        adapt = _energy_bounds(self.adapt)
        if plan is None:
            plan = plan_stream(
                dim=dim,
                rank=rank,
                oversample=oversample,
                budget=budget,
                neighbours=neighbours,
                publish=self.publish,
                center=bool(self.center),
                adapt=adapt is not None,
                block=None if self.block_size is None else int(self.block_size),
                horizon=None if self.horizon is None else int(self.horizon),
                person_blocks=int(self.person_blocks),
                noise_target=self.noise_target,
                memory_limit=None if self.memory_limit is None else int(self.memory_limit),
                sparse=sparse,
            )
        return StreamTerms(
            rank=rank,
            oversample=oversample,
            budget=budget,
            bounds=RowBounds.check(
                dim,
                private=budget is not None,
                row_bound=self.row_bound,
                column_bounds=None,
                origin=self.origin,
                mean_bound=None,
                scale=None,
                sparse=sparse,
            ),
            neighbours=neighbours,
            person_blocks=int(self.person_blocks),
            center=bool(self.center),
            forget=float(self.forget),
            adapt=adapt,
            plan=plan,
            horizon=None if self.horizon is None else int(self.horizon),
            seed=seed_of(self.random_state),
        )


def _as_kind(rows: Any, *, sparse: bool) -> Any:
    """Rows of the kind that the stream began with."""
    if not sparse:
        return rows.toarray()
    require(not has_gaps(rows), "X contains NaN, and this stream began with sparse rows, which have no gaps")
    return sp.csr_array(rows)


def _require_shape(shape: tuple[int, int], *, least: int) -> None:
    require(shape[1] >= 2, f"X has {shape[1]} feature(s), and principal components need at least 2 columns")
    require(shape[0] >= least, f"X has {shape[0]} sample(s), and at least {least} must come at once")


def _pieces(array: Any) -> Iterator[Any]:
    """Float64 pieces of an array, so that no whole copy is made of one that is not float64."""
    if sp.issparse(array):
        array = sp.csr_array(array)
        array.sum_duplicates()
    step = max(1, min(_PIECE, (1 << 22) // max(1, array.shape[1])))
    # One memory order for all, because sums come out differently, in their last bits, in another.
    order = {} if sp.issparse(array) else {"order": "C"}
    for start in range(0, array.shape[0], step):
        yield array[start : start + step].astype(np.float64, copy=False, **order)


def _energy_bounds(adapt: Any) -> EnergyBounds | None:
    if adapt is None:
        return None
    try:
        low, high = (float(bound) for bound in adapt)
    except (TypeError, ValueError):
        raise ValueError(f"adapt must be None or a pair (low, high) of fractions, got {adapt!r}") from None
    try:
        return EnergyBounds(low, high)
    except ValueError as error:
        raise ValueError(f"{error} as adapt") from None


def _settings(stream: Stream, view: View, divisor: float) -> dict[str, Any]:
    terms, plan = stream.terms, stream.terms.plan
    return {
        "mechanism": f"stream, {plan.way}",
        "why": plan.reason,
        "neighbours": terms.neighbours.value if stream.private else "none",
        "block": plan.block,
        "forget": terms.forget,
        "rows": view.rows,
        "releases": stream.releases,
        "noise_floor": view.noise_floor / divisor,
    }


def _plain(value: Any) -> Any:
    """A parameter as JSON has it."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return np.asarray(value).tolist() if hasattr(value, "__array__") else value
