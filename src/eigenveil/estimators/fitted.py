"""`FittedPCA`, what fitted estimators share: attributes as in scikit-learn's PCA, scores, and a model to save."""

import copy
import math
import numbers
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from eigenveil.core.rows import ignore_float_errors
from eigenveil.data.engines import require_local, stays_there
from eigenveil.data.people import Withheld
from eigenveil.errors import ModelFileError, require
from eigenveil.estimators.checks import warn_if_weak
from eigenveil.estimators.reading import Columns, read_rows, select_columns
from eigenveil.estimators.terms import Result, divisor_of, model_of
from eigenveil.estimators.verdict import FitVerdict
from eigenveil.linalg import Array
from eigenveil.model import Model, clipping_of
from eigenveil.params.declare import declared
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.tasks.fit.gaps import rule_of
from eigenveil.tasks.fit.task import FitResult

__all__ = [
    "ESTIMATOR",
    "FittedPCA",
    "ModelMethods",
    "RowCovariance",
    "noise_variance",
    "observed_in",
    "parameters_in",
    "record_of",
    "with_parameters",
]


# Numbers in a piece of rows, which is made dense: 8 MiB as float64.
_PIECE: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowCovariance:
    """The covariance of rows around `mean`, (d,): `variances`, (m,), along orthonormal `directions`, (m, d), and `rest`
    along all others.

    Rows are divided by `scale`, (d,), first, unless it is None.

    >>> model = RowCovariance(
    ...     mean=np.zeros(2), directions=np.array([[1.0, 0.0]]), variances=np.array([4.0]), rest=1.0, scale=None
    ... )
    >>> model.matrix().tolist(), model.inverse().tolist()
    ([[4.0, 0.0], [0.0, 1.0]], [[0.25, 0.0], [0.0, 1.0]])
    """

    mean: Array
    directions: Array
    variances: Array
    rest: float
    scale: Array | None

    @classmethod
    def of_model(cls, model: Model, rest: float) -> "RowCovariance":
        """Of the components alone, with variance `rest` along all other directions (Tipping and Bishop 1999), as in scikit-learn.

        No component gets less than the rest, nor less than noise could hide.
        """
        min_variance = max(rest, _hidden(model.noise_floor, len(model.mean)))
        return cls(
            mean=model.mean,
            directions=model.components,
            variances=np.maximum(model.explained_variance, min_variance),
            rest=rest,
            scale=model.scale,
        )

    @classmethod
    def released(cls, gram: Array, people: float, model: Model) -> "RowCovariance":
        """Of a whole released Gram matrix, (d, d), made positive.

        Eigenvalues that do not stand out from noise are replaced by their average, which has far less noise than each of
        them. The trace stays as it was released, unless the average is below what noise could hide.
        """
        floor = model.noise_floor
        values, vectors = np.linalg.eigh(gram)
        values = values / divisor_of(people)
        clear = values > floor
        others = values[~clear]
        rest = max(float(others.mean()), _hidden(floor, len(model.mean))) if len(others) else 0.0
        # `eigh` sorts upwards, and components begin with the largest variance.
        return cls(
            mean=model.mean,
            directions=vectors[:, clear].T[::-1],
            variances=np.maximum(values[clear][::-1], rest),
            rest=rest,
            scale=model.scale,
        )

    @property
    def dim(self) -> int:
        """The number of columns."""
        return len(self.mean)

    def matrix(self) -> Array:
        """The covariance, (d, d), in the units of the columns."""
        covariance = (self.directions.T * (self.variances - self.rest)) @ self.directions
        # Only the diagonal is changed, in place: an identity would be another matrix of this size.
        covariance.flat[:: self.dim + 1] += self.rest
        return covariance if self.scale is None else self.scale[:, None] * covariance * self.scale

    def inverse(self) -> Array:
        """The inverse of the covariance, (d, d)."""
        self._require_inverse()
        other = 1.0 / self.rest if self._has_rest else 0.0
        precision = (self.directions.T * (1.0 / self.variances - other)) @ self.directions
        precision.flat[:: self.dim + 1] += other
        return precision if self.scale is None else precision / self.scale[:, None] / self.scale

    def log_likelihood(self, rows: Array) -> Array:
        """The logarithm of the density at each of `rows`, (n, d), of normal rows with this mean and covariance: (n,)."""
        self._require_inverse()
        moved = rows - self.mean
        if self.scale is not None:
            moved /= self.scale
        along = moved @ self.directions.T
        squares = np.square(along) @ (1.0 / self.variances)
        logarithms = float(np.log(self.variances).sum())
        if self._has_rest:
            # What is left of each row is subtracted before it is squared. Squares of long rows would lose its digits.
            moved -= along @ self.directions
            squares += np.einsum("ij,ij->i", moved, moved) / self.rest
            logarithms += (self.dim - len(self.variances)) * math.log(self.rest)
        # A density is per volume, and dividing the columns divides volumes by the product of their units.
        units = 0.0 if self.scale is None else 2.0 * float(np.log(self.scale).sum())
        return np.asarray(-0.5 * (squares + logarithms + units + self.dim * math.log(2 * math.pi)))

    @property
    def _has_rest(self) -> bool:
        return len(self.variances) < self.dim

    def _require_inverse(self) -> None:
        min_variance = min([*self.variances.tolist(), *([self.rest] if self._has_rest else [])])
        require(
            min_variance > 0,
            "the covariance has no inverse, because the rows do not vary in some directions. Ask for fewer components, or leave "
            "out columns that are constant or sums of others",
        )


class ModelMethods:
    """What follows from a fitted model alone, as in scikit-learn's PCA. Not an estimator by itself."""

    @ignore_float_errors
    def inverse_transform(self, X: ArrayLike) -> Array:
        """Rows, (n, d), from scores `X`, (n, k)."""
        model = self._fitted_model()
        require_local(X, "X")
        rank = len(model.values)
        try:
            scores = np.asarray(X, dtype=np.float64)
        except Exception:
            # Whatever a foreign table raises, its words may quote a score, which is raw data.
            raise ValueError(f"scores must be real numbers of shape (n, {rank})") from None
        good = scores.ndim == 2 and scores.shape[1] == rank
        require(good, f"scores must have shape (n, {rank}), got {scores.shape}")
        return model.inverse_transform(scores)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the columns of `transform`: the class name in lower case, and a number from zero."""
        stem, rank = type(self).__name__.lower(), len(self._fitted_model().values)
        return np.asarray([f"{stem}{i}" for i in range(rank)], dtype=object)

    def save(self, path: Any) -> None:
        """Write `model_` to a safetensors file, for `load`, `eigenveil.Model.load` and `eigenveil transform`."""
        self._fitted_model().save(path)

    @ignore_float_errors
    def get_covariance(self) -> Array:
        """The covariance of the columns, (d, d), from released numbers: it costs nothing.

        If the fit released a whole covariance, it is that one, made positive: eigenvalues that do not stand out from the noise
        are replaced by their average. Otherwise, and without privacy, it is made of components and `noise_variance_`, as in
        scikit-learn. Rows were clipped, so it is the covariance of clipped rows.
        """
        return self._covariance().matrix()

    @ignore_float_errors
    def get_precision(self) -> Array:
        """The inverse of `get_covariance`, (d, d)."""
        return self._covariance().inverse()

    @ignore_float_errors
    def score_samples(self, X: Any) -> Array:
        """The log-likelihood of each of the rows `X`, (n, d), under the fitted covariance: (n,).

        Raw data: the likelihood of a person's row is as private as the row, and the guarantee does not cover it.
        """
        covariance, parts = self._covariance(), [np.empty(0)]
        for values in self._pieces(X, size=max(1, _PIECE // covariance.dim)):
            # A copy in any case: the mean is subtracted in place.
            rows = np.array(values.toarray() if sp.issparse(values) else values, dtype=np.float64)
            parts.append(covariance.log_likelihood(rows))
        return np.concatenate(parts)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-likelihood of the rows `X`, (n, d). Raw data, as that of each row is.

        Choosing parameters by it on private rows, as a grid search does, is a release that nothing here charges for.
        """
        return float(np.mean(self.score_samples(X)))

    def _names(self) -> tuple[str, ...] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(map(str, names))

    @abstractmethod
    def _fitted_model(self) -> Model:
        """The model, or an error that says that there is none yet."""

    @abstractmethod
    def _covariance(self) -> RowCovariance:
        """The covariance, from released numbers."""

    @abstractmethod
    def _pieces(self, X: Any, *, size: int) -> Iterator[Any]:
        """Checked rows of a caller, at most `size` at a time."""


def noise_variance(result: Result, *, noise_floor: float) -> float:
    """The average variance outside the components, as in scikit-learn.

    With noise it is at least what noise could hide under the `noise_floor`, an explained variance.
    """
    space, people = result.subspace, result.people
    # Few rows vary in few directions, and scikit-learn averages over those alone. Noise varies in all of them.
    others = (space.dim if noise_floor > 0 else min(people, space.dim)) - space.rank
    if others <= 0:
        return 0.0
    left = result.trace - float(np.square(space.values).sum())
    return max(float(left / divisor_of(people) / others), _hidden(noise_floor, space.dim), 0.0)


def _hidden(noise_floor: float, dim: int) -> float:
    """A variance that noise could hide, if it is the same along all d directions.

    Their average is a trace over d. A norm of 2 s sqrt(d) / sqrt(2) has entries of size s on the diagonal, and the error of
    their average is s / sqrt(d): the floor over sqrt(2) d.
    """
    return noise_floor / dim


# What a record calls the class of the estimator.
ESTIMATOR: Final = "class"
# A guess at the number of people would be read as that number. For the others see above.
_LEFT_OUT: Final = ("random_state", "ledger", "people")
_MOST_NESTED: Final = 4


def record_of(estimator: Any, *, noise_variance: float, observed: Array | None) -> dict[str, Any]:
    """The class, the parameters and what else a fitted estimator has beside its model, as plain values.

    >>> from eigenveil import PrivatePCA
    >>> record_of(PrivatePCA(2, epsilon=None, scale=(1, 2)), noise_variance=0.5, observed=None)["parameters"]["scale"]
    {'tuple': [1, 2]}
    """
    # Not `get_params`, which looks at the signature anew each time: a tenth of a millisecond in every fit.
    params = {name: getattr(estimator, name) for name in sorted(declared(type(estimator))) if name not in _LEFT_OUT}
    if params.get("person") is not None and not isinstance(params["person"], str):
        params["person"] = Withheld()
    plain = {name: _kept(value) for name, value in params.items()}
    return {
        ESTIMATOR: type(estimator).__name__,
        "parameters": {name: value for name, value in plain.items() if value is not _NOTHING},
        "noise_variance": noise_variance,
        "observed": None if observed is None else observed.tolist(),
    }


def with_parameters(record: Mapping[str, Any], **params: Any) -> dict[str, Any]:
    """The record with other values of some parameters: those that a command has used up while it read the rows."""
    plain = {name: _plain(value, depth=0) for name, value in params.items()}
    return {**record, "parameters": {**record["parameters"], **plain}}


def parameters_in(record: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The parameters of an estimator of this `kind`; a `ValueError` for what is none. Those left out have their defaults."""
    params = record.get("parameters")
    require(isinstance(params, dict), "its parameters are not a table")
    assert isinstance(params, dict)
    names = set(declared(kind)) - set(_LEFT_OUT)
    require(set(params) <= names, f"{kind.__name__} has no parameter {', '.join(sorted(set(params) - names))}")
    return {name: _value(value) for name, value in params.items()}


def observed_in(record: Mapping[str, Any], dim: int) -> Array | None:
    """The released rates of entries, (d,), None where nothing was counted."""
    raw_rates = record.get("observed")
    if raw_rates is None:
        return None
    rates = np.asarray(raw_rates, dtype=np.float64)
    require(rates.shape == (dim,) and bool(np.isfinite(rates).all()), "its rates of entries are not one number per column")
    return rates


_NOTHING: Final = object()


def _kept(value: Any) -> Any:
    try:
        return _plain(value, depth=0)
    except Exception:
        # An object of another library may raise anything, and the fit is paid for.
        return _NOTHING


def _plain(value: Any, *, depth: int) -> Any:
    """A value for JSON, with its type where JSON has none; `_NOTHING` for what cannot be kept."""
    # Most are one of these. Numpy's numbers and texts are subclasses, and need more care.
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, Withheld):
        return {"withheld": True}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else {"float": str(number)}
    if depth == _MOST_NESTED:
        return _NOTHING
    if hasattr(value, "edges"):
        # A graph, ours or of networkx. It is connected, so its edges are all of it.
        return [{"tuple": [_plain(end, depth=depth + 1) for end in edge]} for edge in value.edges]
    if hasattr(value, "__array__") and (array := np.asarray(value)).dtype.kind in "biufU":
        # Columns of pandas and polars, too.
        return {"array": _plain(array.tolist(), depth=depth + 1), "dtype": array.dtype.str}
    if isinstance(value, Mapping):
        pairs = [[key, _plain(part, depth=depth + 1)] for key, part in value.items()]
        good = all(isinstance(key, str) and part is not _NOTHING for key, part in pairs)
        return {"dict": pairs} if good else _NOTHING
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple):
        parts = [_plain(part, depth=depth + 1) for part in value]
        if any(part is _NOTHING for part in parts):
            return _NOTHING
        return parts if isinstance(value, list) else {"tuple": parts}
    return _NOTHING


def _value(plain: Any) -> Any:
    """The value that `_plain` made this of. The file may be hostile: nothing but numbers, words and lists comes out."""
    match plain:
        case None | bool() | int() | float() | str():
            return plain
        case list():
            return [_value(part) for part in plain]
        case {"withheld": True}:
            return Withheld()
        case {"float": "inf" | "-inf" | "nan" as word}:
            return float(word)
        case {"tuple": list(parts)}:
            return tuple(_value(part) for part in parts)
        case {"dict": list(pairs)}:
            return {str(key): _value(part) for key, part in pairs}
        case {"array": parts, "dtype": str(dtype)}:
            require(np.dtype(dtype).kind in "biufU", "its parameters have an array of another type")
            return np.asarray(_value(parts), dtype=dtype)
    raise ValueError("its parameters cannot be read")


# Typed Any: which of these display methods exist depends on the version of scikit-learn.
_SHOWN: Any = BaseEstimator


class FittedPCA(ModelMethods, TransformerMixin, BaseEstimator):
    """What `PrivatePCA`, `FederatedPCA` and `GossipPCA` share once fitted. Not an estimator by itself."""

    person: Any
    model_: Model
    n_components_: int
    n_features_in_: int
    feature_names_in_: Any
    # Attributes with rows, scores, keys or parties. Copies and pickles leave them out.
    _own: ClassVar[tuple[str, ...]] = ()

    @ignore_float_errors
    def transform(self, X: Any, *, clip: bool = False) -> Any:
        """Scores, (n, k), of rows `X`, (n, d). Raw data: scores of people are as private as their rows.

        With `clip`, rows are first clipped as in the fit. The variances of a private fit are of clipped rows, so scores of rows
        beyond the bound may be far larger than `explained_variance_` says, whitened or not. Clipped ones are not.

        Where the fit had column names, those of a table are matched by name, and other columns are left out. The scores of a Dask
        collection are made where its rows are, and are a Dask collection too.
        """
        if stays_there(X):
            check_is_fitted(self)
            return self.model_.transform(X, clip=clip)
        # Block by block, because only a block at a time is converted.
        scores = (self.model_.scores_of(values, clip=clip) for values in self._pieces(X, size=1 << 16))
        return np.vstack([np.empty((0, self.n_components_)), *scores])

    def _pieces(self, X: Any, *, size: int) -> Iterator[Any]:
        """Checked rows of a caller, at most `size` at a time."""
        check_is_fitted(self)
        require_local(X, "X")
        X, _ = select_columns(X, self, fitting=False, labels=self._names())
        rows, dim = read_rows(self, X, reset=False), self.model_.components.shape[1]
        require(rows.shape[1] == dim, f"rows must have {dim} columns, as the model does, got {rows.shape[1]}")
        blocks = rows.blocks(max(1, min(rows.shape[0], size)))
        return (self.model_.completed(block.values) for block in blocks)

    def _covariance(self) -> RowCovariance:
        check_is_fitted(self)
        if self._whole is None:
            return RowCovariance.of_model(self.model_, self.noise_variance_)
        gram, people = self._whole
        return RowCovariance.released(gram, people, self.model_)

    def _fitted_model(self) -> Model:
        check_is_fitted(self)
        return self.model_

    @classmethod
    def load(cls, path: Any) -> Self:
        """The fitted estimator that `save` wrote: its parameters, columns, guarantee and all that its model determines.

        The seed, the ledger and identifiers of people are not in the file, so `random_state` and `ledger` are None. A new fit
        is a new release with fresh noise, and `guarantee_` then states the cost of that one alone.

        A file has the components alone: a whole released covariance stays with the fit. Therefore `score`, `score_samples` and
        `get_covariance` use the components and `noise_variance_` here, as in scikit-learn, and may differ from those of the fit.
        """
        model = Model.load(path)
        estimator = model.estimator.get(ESTIMATOR)
        if estimator != cls.__name__:
            by = f"was fitted by {estimator}" if isinstance(estimator, str) else "does not say which estimator fitted it"
            raise ModelFileError(
                f"{path} {by}, and {cls.__name__}.load reads what {cls.__name__}.save wrote. Use eigenveil.Model.load, which "
                "transforms rows too"
            )
        try:
            loaded = cls(**parameters_in(model.estimator, cls))
            loaded._adopt(model)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ModelFileError(f"{path} is damaged: {error}") from None
        loaded.n_features_in_ = model.components.shape[1]
        if model.columns is not None:
            loaded.feature_names_in_ = np.asarray(model.columns, dtype=object)
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle gets: parameters and released numbers, and nothing that could be released again."""
        state = {name: value for name, value in self.__dict__.items() if name not in self._own}
        if "model_" in state and self._names_people():
            # Who is in the table is protected too. An unfitted estimator keeps its identifiers: it is still a request.
            state["person"] = Withheld()
        return state

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """As scikit-learn shows it, without identifiers of people, which would end up in logs."""
        return str(_SHOWN.__repr__(self._as_shown(), N_CHAR_MAX))

    def _get_params_html(self, *args: Any, **kwargs: Any) -> Any:
        """Parameters in a notebook, without identifiers of people."""
        return _SHOWN._get_params_html(self._as_shown(), *args, **kwargs)

    def _get_fitted_attr_html(self, *args: Any, **kwargs: Any) -> Any:
        """Attributes in a notebook, without those that copies leave out: a notebook would print scores."""
        return _SHOWN._get_fitted_attr_html(self._as_shown(), *args, **kwargs)

    def _repr_html_(self) -> str:
        """In a notebook: scikit-learn's diagram and, once fitted, what was released and the guarantee."""
        return str(estimator_html_repr(self)) + (self.model_._repr_html_() if hasattr(self, "model_") else "")

    def _repr_mimebundle_(self, **more: Any) -> dict[str, str]:
        """Notebooks ask for this first, and scikit-learn's would answer with the diagram alone."""
        shown: dict[str, str] = dict(_SHOWN._repr_mimebundle_(self, **more))
        return shown | ({"text/html": self._repr_html_()} if "text/html" in shown else {})

    def _as_shown(self) -> "FittedPCA":
        # A copy goes through `__getstate__`, which has left out rows, scores and keys.
        shown = copy.copy(self)
        if self._names_people():
            shown.person = Withheld()
        return shown

    def _names_people(self) -> bool:
        return self.person is not None and not isinstance(self.person, str)

    def _set_fitted_attributes(
        self, result: FitResult, *, verdict: FitVerdict, guarantee: Guarantee, settings: dict[str, Any]
    ) -> None:
        """Set the attributes of a fit from released numbers."""
        rest = noise_variance(result, noise_floor=verdict.noise_floor / divisor_of(result.people))
        model = model_of(
            result,
            verdict=verdict,
            guarantee=guarantee,
            columns=self._names(),
            settings=settings,
            clipping=clipping_of(result.domain),
            estimator=record_of(self, noise_variance=rest, observed=result.rates),
        )
        self._keep(model, people=result.people, gram=result.gram)

    def _keep(self, model: Model, *, people: float, gram: Array | None) -> None:
        """Set the attributes of a fit from its model, which has its record of this estimator."""
        self._adopt(model)
        warn_if_weak(model.guarantee, people)
        # For `get_covariance`. A saved model has the components alone.
        self._whole = None if gram is None else (gram, people)

    def _adopt(self, model: Model) -> None:
        """Set the attributes that a model and what it says of its estimator determine."""
        self.model_, self.subspace_, self.guarantee_ = model, model.subspace, model.guarantee
        self.components_, self.n_components_ = model.components, len(model.components)
        self.mean_, self.singular_values_ = model.mean, model.values
        self.explained_variance_ = model.explained_variance
        self.explained_variance_ratio_ = model.explained_variance_ratio
        self.noise_floor_, self.n_above_noise_ = model.noise_floor, model.n_above_noise
        self.noise_variance_ = float(model.estimator["noise_variance"])
        self.bound_usage_ = model.settings.get("bound_usage")
        self.clipped_fraction_ = model.settings.get("clipped_fraction")
        self.observed_fraction_ = observed_in(model.estimator, model.components.shape[1])
        self.warnings_ = model.warnings
        self._whole = None

    def _warn(self, verdict: FitVerdict) -> None:
        """Say what is wrong with a fit, once all of its attributes are set. What was said before it is not repeated."""
        for warning in verdict.warned[verdict.n_before_fit :]:
            warnings.warn(warning, stacklevel=4)

    def _learn_columns(self, columns: Columns) -> None:
        """Set the columns of the sites. Names of an earlier fit do not belong to these rows."""
        self.n_features_in_ = columns.count
        self.__dict__.pop("feature_names_in_", None)
        if columns.shown is not None:
            self.feature_names_in_ = columns.shown

    def __sklearn_is_fitted__(self) -> bool:
        """A fit that did not end does not count."""
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        parent: Any = super()
        tags = parent.__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = rule_of(self) != "refuse"
        return tags
