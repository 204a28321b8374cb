"""`FittedPCA`, what fitted estimators share: attributes as in scikit-learn's PCA, scores, and a model to save."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from eigenveil.core.domain import Domain
from eigenveil.core.rows import in_silence
from eigenveil.data.engines import require_here, stays_there
from eigenveil.data.people import Withheld
from eigenveil.errors import ModelFileError, require
from eigenveil.estimators.checks import warn_if_weak
from eigenveil.estimators.likelihood import Likelihood, RowCovariance, noise_variance
from eigenveil.estimators.reading import chosen, read_rows
from eigenveil.estimators.released import divisor_of, model_of
from eigenveil.estimators.saved import ESTIMATOR, observed_in, parameters_in, record_of
from eigenveil.estimators.verdict import FitVerdict
from eigenveil.linalg import Array, Subspace
from eigenveil.model import Model
from eigenveil.privacy import Guarantee
from eigenveil.tasks.fit.gaps import rule_of

__all__ = ["FittedPCA"]

# Typed Any: which of these display methods exist depends on the version of scikit-learn.
_SHOWN: Any = BaseEstimator


class FittedPCA(Likelihood, TransformerMixin, BaseEstimator):
    """What `PrivatePCA`, `FederatedPCA` and `GossipPCA` share once fitted. Not an estimator by itself."""

    person: Any
    model_: Model
    n_components_: int
    n_features_in_: int
    feature_names_in_: Any
    # Attributes with rows, scores, keys or parties. Copies and pickles leave them out.
    _own: ClassVar[tuple[str, ...]] = ()

    @in_silence
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
        parts = [self.model_.scores_of(values, clip=clip) for values in self._pieces(X, size=1 << 16)]
        return np.vstack(parts) if parts else np.empty((0, self.n_components_))

    def _pieces(self, X: Any, *, size: int) -> Iterator[Any]:
        """Checked rows of a caller, at most `size` at a time."""
        check_is_fitted(self)
        require_here(X, "X")
        X, _ = chosen(X, self, fitting=False, known=getattr(self, "feature_names_in_", None))
        rows = read_rows(self, X, reset=False)
        dim = self.model_.components.shape[1]
        require(rows.shape[1] == dim, f"rows must have {dim} columns, as the model does, got {rows.shape[1]}")
        blocks = rows.blocks(max(1, min(rows.shape[0], size)))
        return (self.model_.completed(block.values) for block in blocks)

    def _covariance(self) -> RowCovariance:
        check_is_fitted(self)
        if self._whole is None:
            return RowCovariance.of_model(self.model_, self.noise_variance_)
        gram, people = self._whole
        return RowCovariance.released(gram, people, self.model_)

    @in_silence
    def inverse_transform(self, X: ArrayLike) -> Array:
        """Rows, (n, d), from scores `X`, (n, k)."""
        check_is_fitted(self)
        require_here(X, "X")
        try:
            scores = np.asarray(X, dtype=np.float64)
        except Exception:
            # Whatever a foreign table raises, its words may quote a score, which is raw data.
            raise ValueError(f"scores must be real numbers of shape (n, {self.n_components_})") from None
        require(
            scores.ndim == 2 and scores.shape[1] == self.n_components_,
            f"scores must have shape (n, {self.n_components_}), got {scores.shape}",
        )
        return self.model_.inverse_transform(scores)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the columns of `transform`: the class name in lower case, and a number from zero."""
        check_is_fitted(self)
        stem = type(self).__name__.lower()
        return np.asarray([f"{stem}{i}" for i in range(self.n_components_)], dtype=object)

    def save(self, path: Any) -> None:
        """Write `model_` to a safetensors file, for `load`, `eigenveil.Model.load` and `eigenveil transform`."""
        check_is_fitted(self)
        self.model_.save(path)

    @classmethod
    def load(cls, path: Any) -> Self:
        """The fitted estimator that `save` wrote: its parameters, columns, guarantee and all that its model determines.

        The seed, the ledger and identifiers of people are not in the file, so `random_state` and `ledger` are None. A new fit
        is a new release with fresh noise, and `guarantee_` then states the cost of that one alone.

        A file has the components alone: a whole released covariance stays with the fit. So `score`, `score_samples` and
        `get_covariance` use the components and `noise_variance_` here, as in scikit-learn, and may differ from those of the fit.
        """
        model = Model.load(path)
        found = model.estimator.get(ESTIMATOR)
        if found != cls.__name__:
            by = f"was fitted by {found}" if isinstance(found, str) else "does not say which estimator fitted it"
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

    def _get_params_html(self, *given: Any, **more: Any) -> Any:
        """Parameters in a notebook, without identifiers of people."""
        return _SHOWN._get_params_html(self._as_shown(), *given, **more)

    def _get_fitted_attr_html(self, *given: Any, **more: Any) -> Any:
        """Attributes in a notebook, without those that copies leave out: a notebook would print scores."""
        return _SHOWN._get_fitted_attr_html(self._as_shown(), *given, **more)

    def _repr_html_(self) -> str:
        """In a notebook: scikit-learn's diagram and, once fitted, what was released and the guarantee."""
        model = getattr(self, "model_", None)
        return str(estimator_html_repr(self)) + ("" if model is None else model._repr_html_())

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

    def _show(
        self,
        subspace: Subspace,
        *,
        trace: float,
        people: float,
        center: Array,
        verdict: FitVerdict,
        guarantee: Guarantee,
        scale: Array | None,
        settings: dict[str, Any],
        gram: Array | None,
        observed: Array | None = None,
        domain: Domain | None = None,
    ) -> None:
        """Set the attributes of a fit from released numbers, with `trace` in Gram units.

        The whole released Gram matrix, if there is one, is `gram`, and `observed` are the rates of entries. Rows were clipped by
        `domain`, None if that is not known.
        """
        rest = noise_variance(
            subspace, noise_floor=verdict.noise_floor / divisor_of(people), trace=trace, people=people
        )
        model = model_of(
            subspace,
            trace=trace,
            people=people,
            center=center,
            verdict=verdict,
            guarantee=guarantee,
            scale=scale,
            columns=self._names(),
            settings=settings,
            domain=domain,
            estimator=record_of(self, noise_variance=rest, observed=observed),
        )
        self._keep(model, people=people, gram=gram)

    def _keep(self, model: Model, *, people: float, gram: Array | None) -> None:
        """Set the attributes of a fit from its model, which has its record of this estimator."""
        self._adopt(model)
        warn_if_weak(model.guarantee, people)
        # For `get_covariance`. A saved model has the components alone.
        self._whole = None if gram is None else (gram, people)

    def _adopt(self, model: Model) -> None:
        """Set the attributes that a model and what it says of its estimator determine."""
        self.model_ = model
        self.subspace_ = model.subspace
        self.components_ = self.model_.components
        self.mean_ = self.model_.mean
        self.singular_values_ = model.values
        self.explained_variance_ = self.model_.explained_variance
        self.explained_variance_ratio_ = self.model_.explained_variance_ratio
        self.noise_floor_ = model.noise_floor
        self.noise_variance_ = float(model.estimator["noise_variance"])
        self.n_above_noise_ = self.model_.n_above_noise
        self.fill_, self.clipped_ = (model.settings.get(name) for name in ("fill", "clipped"))
        self.observed_ = observed_in(model.estimator, model.components.shape[1])
        self.warnings_ = model.warnings
        self.n_components_ = len(model.components)
        self.guarantee_ = model.guarantee
        self._whole = None

    def _warn(self, verdict: FitVerdict) -> None:
        """Say what is wrong with a fit, once all of its attributes are set. What was said before it is not repeated."""
        for warning in verdict.warned[verdict.said :]:
            warnings.warn(warning, stacklevel=4)

    def _names(self) -> tuple[str, ...] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(str(name) for name in names)

    def __sklearn_tags__(self) -> Any:
        parent: Any = super()
        tags = parent.__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = rule_of(self) != "refuse"
        return tags
