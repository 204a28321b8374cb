"""`Model`: the result of a fit, and its file: arrays in safetensors with a JSON header. No pickle, so nothing runs on load.

A model has released numbers only. Scores of the fitted rows are not part of it, because they are raw data.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, final

import numpy as np

from eigenveil.data.archive import ArchiveKind
from eigenveil.data.elsewhere import require_here
from eigenveil.data.rows import in_silence, require_real
from eigenveil.drawing import escaped, figure, fragment, scree_chart
from eigenveil.errors import ModelFileError, require
from eigenveil.linalg import Array, Subspace
from eigenveil.linalg.sparse import is_sparse
from eigenveil.params.renamed import in_new_words
from eigenveil.privacy import Guarantee
from eigenveil.tasks.fit.gaps import gaps_of

__all__ = ["SCORES_ARE_RAW", "Model", "noise_floor_in", "warnings_in"]

_KIND = ArchiveKind("eigenveil-model", 1, "an Eigenveil model", ModelFileError)
_ARRAYS = ("components", "mean", "values", "explained_variance", "explained_variance_ratio")
SCORES_ARE_RAW = (
    "The guarantee covers this model. Scores, that is `transform` of anybody's rows, are those rows' own data "
    "and as private as they are."
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Components, (k, d), with the mean, (d,), and the scale, (d,) or None, of rows before projection.

    The `values`, (k,), are in data scale. As in scikit-learn, `explained_variance` and its ratio have shape (k,). The ratio of a
    component that is not above the noise floor is zero. The public choices of the fit are in `settings`, and `warnings` say what
    is wrong with it: none if all is well.
    """

    components: Array
    mean: Array
    values: Array
    explained_variance: Array
    explained_variance_ratio: Array
    guarantee: Guarantee
    scale: Array | None = None
    columns: tuple[str, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.components.ndim == 2, f"components must have two dimensions, got {self.components.shape}")
        rank, dim = self.components.shape
        shapes = {
            "mean": (dim,),
            "values": (rank,),
            "explained_variance": (rank,),
            "explained_variance_ratio": (rank,),
        }
        if self.scale is not None:
            shapes["scale"] = (dim,)
            require(bool((self.scale > 0).all()), "scale must be positive")
        for name, shape in shapes.items():
            found = getattr(self, name)
            require(found.shape == shape, f"{name} must have shape {shape}, got {found.shape}")
            require(bool(np.isfinite(found).all()), f"{name} must be finite")
        require(
            self.columns is None or len(self.columns) == dim,
            f"there must be {dim} column names, got {len(self.columns or ())}",
        )
        # Its constructor checks orthonormality and order, also of files from others.
        Subspace(self.components.T, self.values)

    @property
    def noise_floor(self) -> float:
        """The explained variance that noise alone exceeds in one fit of a hundred. 0 if there was no noise, or it is unknown."""
        return noise_floor_in(self.settings)

    @property
    def n_above_noise(self) -> int:
        """How many components are above the noise floor."""
        return int((self.explained_variance > self.noise_floor).sum())

    @property
    def people(self) -> float | None:
        """How many people, or rows of a stream, the variances are divided by, as released; None if the model does not tell."""
        if str(self.settings.get("method", "")).startswith("stream"):
            rows = self.settings.get("rows")
            return float(rows) if isinstance(rows, int | float) and math.isfinite(rows) else None
        good = self.explained_variance > 0
        # As in scikit-learn: values^2 / (people - 1). The fit divides by at least 1, however few people noise leaves.
        return (
            float(np.median(np.square(self.values[good]) / self.explained_variance[good])) + 1 if good.any() else None
        )

    @property
    def subspace(self) -> Subspace:
        """Directions and data-scale values."""
        return Subspace(self.components.T, self.values)

    @property
    def whiten(self) -> bool:
        """Whether scores are divided by the root of the explained variance."""
        return self.settings.get("whiten") is True

    def transform(self, rows: Any) -> Array:
        """Scores, (n, k), of `rows`, (n, d), dense or sparse. Raw data: see `SCORES_ARE_RAW`."""
        scores = self.project(rows)
        return scores / self._deviations() if self.whiten else scores

    @in_silence
    def project(self, rows: Any) -> Array:
        """The same in the units of the rows, whether or not the model whitens."""
        require_here(rows, "rows")
        rows = rows if is_sparse(rows) else _as_array(rows)
        require(rows.ndim == 2, f"rows must have two dimensions, rows and columns, got {rows.ndim}")
        require_real(rows.dtype, "rows")
        require(
            rows.shape[1] == self.components.shape[1],
            f"rows must have {self.components.shape[1]} columns, as the model does, got {rows.shape[1]}",
        )
        rows = self.completed(rows)
        # Scale and mean are applied to components and scores. Applied to the rows they would make sparse ones dense,
        # and copy dense ones.
        weights = self.components if self.scale is None else self.components / self.scale
        # In one order, so that a model read from its file gives the same scores, to the last bit.
        weights = np.ascontiguousarray(weights)
        return np.asarray(rows @ weights.T - self.mean @ weights.T, dtype=np.float64)

    def completed(self, rows: Any) -> Any:
        """`rows`, (n, d), with missing entries handled as in the fit: put at the mean, where they add nothing to a score.

        With the rule fill they get their public value. With drop they stay missing, so that incomplete rows have no scores. A
        model that refuses missing values leaves rows as they are.
        """
        # Settings may come from a file, which is checked here like a parameter.
        gaps = gaps_of(_Settings(self.settings), len(self.mean), names=self.columns, sparse=is_sparse(rows))
        if gaps is None or gaps.drops:
            return rows
        values = self.mean if gaps.values is None else gaps.values
        if is_sparse(rows):
            import scipy.sparse as sp

            whole = sp.csr_array(rows).astype(np.float64)
            whole.data = np.where(np.isnan(whole.data), values[whole.indices], whole.data)
            return whole
        given = np.asarray(rows)
        return np.where(gaps.gone(given), values, given)

    @in_silence
    def inverse_transform(self, scores: Array) -> Array:
        """Rows, (n, d), in the units of the columns, from `scores`, (n, k)."""
        require_here(scores, "scores")
        # The scale comes first, because the mean is in the units of the columns already.
        rows = (scores * self._deviations() if self.whiten else scores) @ self.components
        return (rows if self.scale is None else rows * self.scale) + self.mean

    def _deviations(self) -> Array:
        """Standard deviations along the components, (k,). None is zero: a direction without variance has scores of zero."""
        return np.maximum(np.sqrt(np.maximum(self.explained_variance, 0.0)), np.finfo(np.float64).eps)

    def _repr_html_(self) -> str:
        """The variances with the noise floor and the guarantee, in a notebook."""
        guarantee, shares = self.guarantee, self.explained_variance_ratio.tolist()
        chart = scree_chart(self.explained_variance.tolist(), floor=self.noise_floor, shares=shares)
        # Several models may be shown on one page, and ids must differ.
        drawn = figure(chart, f"scree{id(self)}")
        warned = "".join(f"<p><strong>Warning.</strong> {escaped(words)}</p>" for words in self.warnings)
        css = "good" if guarantee.private else "bad"
        return fragment(f'<p class="{css}"><strong>{escaped(guarantee.title)}</strong></p>{warned}{drawn}')

    def save(self, path: str | Path) -> None:
        """Write the model to `path`, whole or not at all."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        if self.scale is not None:
            arrays["scale"] = np.ascontiguousarray(self.scale)
        header = {
            "guarantee": self.guarantee.to_dict(),
            "guarantee_in_words": self.guarantee.words(),
            "scores": SCORES_ARE_RAW,
            "columns": list(self.columns) if self.columns is not None else None,
            "settings": dict(self.settings),
            "warnings": list(self.warnings),
        }
        # Readable by all: a model is made to be published, unlike scores and states.
        _KIND.write(Path(path), arrays, header, readable=True)

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        """Read a model. `ModelFileError` if the file is not a model, is damaged, or is of another version."""
        return _KIND.read_as(Path(path), cls._from_parts)

    @classmethod
    def _from_parts(cls, arrays: Mapping[str, Any], header: Mapping[str, Any]) -> "Model":
        require(set(_ARRAYS) <= set(arrays) <= {*_ARRAYS, "scale"}, f"its arrays are {sorted(arrays)}")
        for name, array in arrays.items():
            require(array.dtype == np.float64, f"{name} is of type {array.dtype}, not float64")
        columns, settings = header["columns"], header["settings"]
        named = columns is None or (isinstance(columns, list) and all(isinstance(name, str) for name in columns))
        require(named, "its columns are not a list of names")
        require(isinstance(settings, dict), "its settings are not a table")
        return cls(
            **arrays,
            guarantee=Guarantee.from_dict(header["guarantee"]),
            columns=None if columns is None else tuple(columns),
            # Files of version 0.1 have other words for the same settings.
            settings=in_new_words(settings),
            warnings=warnings_in(header),
        )


def _as_array(rows: Any) -> Any:
    """Rows of a list, or of any table that numpy can read, as an array."""
    try:
        return np.asarray(rows)
    except Exception:
        # A foreign table may raise anything, in words that quote its values.
        raise ValueError("rows must be an array or a sparse matrix of real numbers") from None


@final
@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a model as parameters, None for those that it does not have."""

    values: Mapping[str, Any]

    @property
    def missing(self) -> Any:
        """What becomes of missing values."""
        return self.values.get("missing", "refuse")

    @property
    def missing_groups(self) -> Any:
        """Columns that are missing together."""
        return self.values.get("missing_groups")

    @property
    def missing_fill(self) -> Any:
        """Public values for missing ones."""
        return self.values.get("missing_fill")


def noise_floor_in(settings: Mapping[str, Any]) -> float:
    """The noise floor that the settings of a fit record, 0 if there is none."""
    floor = settings.get("noise_floor", 0.0)
    # The settings come from a file, which may have been edited.
    good = isinstance(floor, Real) and math.isfinite(float(floor))
    return max(float(floor), 0.0) if good else 0.0


def warnings_in(header: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings in the header of a file. Files of version 0.1 have none."""
    found = header.get("warnings", [])
    require(
        isinstance(found, list) and all(isinstance(one, str) for one in found), "its warnings are not a list of texts"
    )
    return tuple(found)
