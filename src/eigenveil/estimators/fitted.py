"""What a fitted estimator shows and does: attributes as in scikit-learn's PCA, scores, and a model to save."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from eigenveil.data import as_rows, is_arrow_like, person_ids
from eigenveil.errors import require
from eigenveil.estimators.checks import checked_array, with_names
from eigenveil.linalg import Array, Subspace
from eigenveil.model import Model
from eigenveil.privacy import Guarantee
from eigenveil.rows import CheckedRows, Rows, Symmetric, in_silence

__all__ = ["FittedPCA", "column_names", "model_of", "read_rows", "without_person"]


class FittedPCA(TransformerMixin, BaseEstimator):
    """What `PrivatePCA` and `FederatedPCA` have in common once they are fitted. Not an estimator by itself."""

    person: Any
    model_: Model
    n_components_: int

    @in_silence
    def transform(self, X: Any) -> Array:
        """Scores, (n, k), of rows `X`, (n, d). Raw data: scores of people are as private as their rows."""
        check_is_fitted(self)
        X, _ = without_person(X, self.person, fitting=False)
        rows = read_rows(self, X, reset=False)
        size = max(1, min(rows.shape[0], 1 << 16))
        parts = [self.model_.transform(block.values) for block in rows.blocks(size)]
        return np.vstack(parts) if parts else np.empty((0, self.n_components_))

    @in_silence
    def inverse_transform(self, X: ArrayLike) -> Array:
        """Rows, (n, d), from scores `X`, (n, k)."""
        check_is_fitted(self)
        scores = np.asarray(X, dtype=np.float64)
        require(
            scores.ndim == 2 and scores.shape[1] == self.n_components_,
            f"scores must have shape (n, {self.n_components_}), got {scores.shape}",
        )
        return self.model_.inverse_transform(scores)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the columns of `transform`: the name of the class in small letters, and a number from zero."""
        check_is_fitted(self)
        stem = type(self).__name__.lower()
        return np.asarray([f"{stem}{i}" for i in range(self.n_components_)], dtype=object)

    def save(self, path: Any) -> None:
        """Write `model_` to a safetensors file; `eigenveil.Model.load` reads it back."""
        check_is_fitted(self)
        self.model_.save(path)

    def _show(
        self,
        subspace: Subspace,
        *,
        trace: float,
        people: float,
        center: Array,
        noise_floor: float,
        guarantee: Guarantee,
        scale: Array | None,
        settings: dict[str, Any],
    ) -> None:
        """Set the attributes of a fit from released numbers: `trace` and `noise_floor` in Gram units."""
        names = getattr(self, "feature_names_in_", None)
        self.model_ = model_of(
            subspace,
            trace=trace,
            people=people,
            center=center,
            noise_floor=noise_floor,
            guarantee=guarantee,
            scale=scale,
            columns=None if names is None else tuple(str(name) for name in names),
            settings=settings,
        )
        self.subspace_ = subspace
        self.components_ = self.model_.components
        self.mean_ = self.model_.mean
        self.singular_values_ = subspace.values
        self.explained_variance_ = self.model_.explained_variance
        self.explained_variance_ratio_ = self.model_.explained_variance_ratio
        self.noise_floor_ = float(self.model_.settings["noise_floor"])
        self.n_components_ = subspace.rank
        self.guarantee_ = guarantee

    def __sklearn_tags__(self) -> Any:
        parent: Any = super()
        tags = parent.__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def model_of(
    subspace: Subspace,
    *,
    trace: float,
    people: float,
    center: Array,
    noise_floor: float,
    guarantee: Guarantee,
    scale: Array | None,
    columns: tuple[str, ...] | None,
    settings: dict[str, Any],
) -> Model:
    """The model of a fit, from released numbers: `trace` and `noise_floor` in Gram units."""
    divisor = max(people, 2.0) - 1.0
    eigenvalues = np.square(subspace.values)
    # Noise can push the released trace below the eigenvalues beside it; a ratio above one would help nobody.
    total = max(trace, float(eigenvalues.sum()))
    return Model(
        components=subspace.basis.T,
        mean=center,
        values=subspace.values,
        explained_variance=eigenvalues / divisor,
        explained_variance_ratio=eigenvalues / total if total > 0 else np.zeros_like(eigenvalues),
        guarantee=guarantee,
        scale=scale,
        columns=columns,
        settings=settings | {"noise_floor": noise_floor / divisor},
    )


def read_rows(estimator: Any, X: Any, *, reset: bool, **least: int) -> Rows:
    """Checked rows. Arrays are neither copied nor converted: blocks are, one at a time."""
    require(
        not isinstance(X, Symmetric),
        "X must be rows, got a Symmetric, which is a sum over people: only a site of FederatedPCA can be one",
    )
    if isinstance(X, Rows) and not is_arrow_like(X):
        if reset:
            estimator.n_features_in_ = X.shape[1]
            # Names of an earlier fit do not belong to these rows.
            estimator.__dict__.pop("feature_names_in_", None)
        return CheckedRows(X)
    if is_arrow_like(X):
        return CheckedRows(as_rows(with_names(estimator, X, reset=reset)))
    return as_rows(checked_array(estimator, X, reset=reset, **least))


def without_person(X: Any, person: Any, *, fitting: bool) -> tuple[Any, Any]:
    """`X` without the column that names people, and the identifiers, one per row. Only a fit needs the column."""
    if person is None:
        return X, None
    if not isinstance(person, str):
        ids = _identifiers(person)
        require(ids.ndim == 1, f"person must be a column name or one identifier per row, got shape {ids.shape}")
        return X, ids
    names = column_names(X) or []
    if person not in names:
        require(not fitting, f"person names the column {person!r}, which X does not have")
        return X, None
    ids = person_ids(X, person)
    rest = [name for name in names if name != person]
    return (X.select(rest) if is_arrow_like(X) else X[rest]), ids


def column_names(X: Any) -> list[Any] | None:
    """The names of a table's columns, None for what has none."""
    # pyarrow calls its data `columns` and keeps the names in a schema; polars and pandas have names there.
    if is_arrow_like(X) and type(X).__module__.startswith("pyarrow"):
        return list(X.schema.names)
    names = getattr(X, "columns", None)
    return None if names is None else list(names)


def _identifiers(person: Any) -> Any:
    """Identifiers as an array. numpy would turn a list of several types into one, and could make two people one."""
    if isinstance(person, list | tuple):
        require(
            len({type(one) for one in person}) <= 1, "person must hold identifiers of one type, none of them missing"
        )
    return np.asarray(person)
