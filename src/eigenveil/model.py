"""`Model`: the result of a fit, and its file: arrays in safetensors with a JSON header. No pickle, so nothing runs on load.

A model has released numbers only. Scores of the fitted rows are not part of it, because they are raw data.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import numpy as np

from eigenveil.core.domain import Domain, Region
from eigenveil.core.rows import Block, ignore_float_errors, is_sparse
from eigenveil.data.archive import ArchiveKind
from eigenveil.data.engines import engine_of, require_local
from eigenveil.data.known import KnownColumns
from eigenveil.data.number_texts import NO_MARKS, MissingMarks, missing_words
from eigenveil.errors import ModelFileError, join_names, require
from eigenveil.linalg import Array, Subspace
from eigenveil.params.declarations.groups import public_levels
from eigenveil.params.values import InvalidValue
from eigenveil.privacy.floating import dense
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.tasks.fit.gaps import gaps_of

__all__ = ["SCORES_ARE_RAW", "Model", "clipping_of", "noise_floor_in", "warnings_in"]

# What the names of arrays about clipping begin with in a file.
_CLIP = "clip."
_KIND = ArchiveKind(format="eigenveil-model", version=1, description="an Eigenveil model", error=ModelFileError)
_ARRAYS = ("components", "mean", "values", "explained_variance", "explained_variance_ratio")
# Numbers of a file are added up, and singular values are squared.
_LARGEST, _LARGEST_VALUE = 1e300, 1e154
# Rows that are converted and scored at once.
_AT_ONCE = 1 << 16
# Numbers of rows that are clipped at once.
_CLIPPED_AT_ONCE = 1 << 21
SCORES_ARE_RAW = (
    "The guarantee covers this model. Scores, that is `transform` of anybody's rows, are those rows' own data "
    "and as private as they are."
)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
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
    # How the fit clipped rows: "center" and "scale", (d,), and "radius", (1,), and where entries were bounded "low" and "high",
    # (d,). Public or released numbers. Empty if rows were not clipped, or the model does not say.
    clipping: Mapping[str, Array] = field(default_factory=dict)
    estimator: Mapping[str, Any] = field(default_factory=dict)  # Its class and parameters, plain, for its own `load`.
    subspace: Subspace = field(init=False, repr=False)  # Directions and data-scale values.

    def __post_init__(self) -> None:
        require(self.components.ndim == 2, f"components must have two dimensions, got {self.components.shape}")
        rank, dim = self.components.shape
        per_component = ("values", "explained_variance", "explained_variance_ratio")
        shapes = {"mean": (dim,)} | dict.fromkeys(per_component, (rank,))
        if self.scale is not None:
            shapes["scale"] = (dim,)
            require(bool((self.scale > 0).all()), "scale must be positive")
        for name, shape in shapes.items():
            array = getattr(self, name)
            require(array.shape == shape, f"{name} must have shape {shape}, got {array.shape}")
            require(bool(np.isfinite(array).all()), f"{name} must be finite")
        _require_clipping(self.clipping, dim)
        require(
            self.columns is None or len(self.columns) == dim, f"there must be {dim} column names, got {len(self.columns or ())}"
        )
        # Its constructor checks orthonormality and order, also of files from others.
        object.__setattr__(self, "subspace", Subspace(self.components.T, self.values))

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
        if not good.any():
            return None
        # As in scikit-learn: values^2 / (people - 1). The fit divides by at least 1, however few people noise leaves.
        with np.errstate(over="ignore"):
            people = float(np.median(np.square(self.values[good]) / self.explained_variance[good])) + 1
        return people if math.isfinite(people) else None

    @property
    def whiten(self) -> bool:
        """Whether scores are divided by the root of the explained variance."""
        return self.settings.get("whiten") is True

    def transform(self, rows: Any, *, clip: bool = False) -> Any:
        """Scores, (n, k), of `rows`, (n, d). Raw data: see `SCORES_ARE_RAW`.

        With `clip`, rows are first clipped as in the fit. The variances of a private fit are of clipped rows, so scores of rows
        beyond the bound may be far larger than `explained_variance` says, whitened or not. Clipped ones are not.

        Rows are an array, a sparse matrix, a table of pandas, polars, Arrow or DuckDB, or `Rows`. Where both the model and the
        table have column names, columns are matched by name and others are left out; otherwise the columns are those of the
        fit, in their order. Text and missing values are treated as in the fit. The scores of a Dask collection are made where
        its rows are: the answer is a Dask collection too.
        """
        engine = engine_of(rows)
        if engine is not None and engine.scores is not None:
            rank, dim = self.components.shape
            return engine.scores(rows, partial(self.transform, clip=clip), rank=rank, dim=dim)
        # Before its blocks, `map_blocks` hands over one zero to learn what comes out. It is no row of a model of more columns.
        if isinstance(rows, np.ndarray) and rows.shape == (1, 1) and rows[0, 0] == 0 and len(self.mean) > 1:
            return np.empty((0, len(self.components)))
        return self._scores(rows, partial(self.scores_of, clip=clip))

    def project(self, rows: Any) -> Array:
        """The same in the units of the rows, whether or not the model whitens."""
        return self._scores(rows, self._projected)

    def _scores(self, rows: Any, score: Callable[[Any], Array]) -> Array:
        columns = KnownColumns(dim=self.components.shape[1], names=self.columns, one_hot=self.levels, gaps=self._gaps)
        engine = engine_of(rows)
        source = rows if engine is None or engine.stays else engine.rows(rows, gaps=self._gaps)
        parts = [score(block) for block in columns.blocks(source, _AT_ONCE)]
        return parts[0] if len(parts) == 1 else np.vstack([np.empty((0, len(self.components))), *parts])

    def scores_of(self, rows: Any, *, clip: bool = False) -> Array:
        """The scores, (b, k), of checked rows, a dense array or a sparse matrix with the columns of the model in their order."""
        rows = self.clipped(rows) if clip else rows
        scores = self._projected(rows)
        return scores / self._deviations() if self.whiten else scores

    @ignore_float_errors
    def _projected(self, rows: Any) -> Array:
        rows = self.completed(rows)
        # Scale and mean are applied to components and scores. Applied to the rows they would make sparse ones dense,
        # and copy dense ones.
        weights = self.components if self.scale is None else self.components / self.scale
        # In one order, so that a model read from its file gives the same scores, to the last bit.
        weights = np.ascontiguousarray(weights)
        return np.asarray(rows @ weights.T - self.mean @ weights.T, dtype=np.float64)

    @property
    def _gaps(self) -> bool:
        return str(self.settings.get("missing", "refuse")) != "refuse"

    @property
    def levels(self) -> Mapping[str, tuple[str, ...]]:
        """The public levels of each column of text. A `ValueError` if a file has something else in their place."""
        try:
            return public_levels(self.settings.get("one_hot", {}))
        except InvalidValue:
            raise ValueError("the model's settings have levels of columns that cannot be read. Ask for another model") from None

    @property
    def marks(self) -> MissingMarks:
        """What stood for a missing value in the table of the fit. A `ValueError` if a file has something else in its place."""
        noted = self.settings.get("na_values")
        try:
            return MissingMarks(missing_words(noted)) if noted else NO_MARKS
        except InvalidValue:
            raise ValueError("the model's settings have na_values that cannot be read. Ask for another model") from None

    @ignore_float_errors
    def clipped(self, rows: Any) -> Any:
        """Checked rows, (b, d), clipped as in the fit, in the units of the columns; as they are where a fit has no bounds."""
        if not self.clipping:
            require(
                self.guarantee.epsilon is None,
                "the model does not say how rows were clipped, so they cannot be clipped again: a stream of slots "
                "made it. Fit again, or score rows as they are",
            )
            return rows
        center, scale = self.clipping["center"], self.clipping["scale"]
        domain = Domain(
            dim=len(center),
            radius=float(self.clipping["radius"][0]),
            center=center,
            scale=scale,
            low=self.clipping.get("low"),
            high=self.clipping.get("high"),
            claimed=False,
        )
        rows = self.completed(rows)
        # Clipping moves rows towards the center, so that no zero is left: a few sparse rows at a time.
        size = max(1, _CLIPPED_AT_ONCE // len(center)) if is_sparse(rows) else max(1, rows.shape[0])
        parts = [np.empty((0, len(center)))]
        for start in range(0, rows.shape[0], size):
            piece = rows[start : start + size]
            parts.append(dense(domain, Block(piece.toarray() if is_sparse(piece) else piece)) * scale + center)
        return np.vstack(parts)

    def completed(self, rows: Any) -> Any:
        """`rows`, (n, d), with missing entries handled as in the fit: put at the mean, where they add nothing to a score.

        With the rule fill they get their public value. With drop they stay missing, so that incomplete rows have no scores. A
        model that refuses missing values leaves rows as they are. What stood for a missing value in the fit does so here.
        """
        rows = self._without_marks(rows)
        # Settings may come from a file, which is checked here like a parameter.
        noted = {name: self.settings.get(name) for name in ("missing_groups", "missing_fill")}
        params = SimpleNamespace(missing=self.settings.get("missing", "refuse"), **noted)
        gaps = gaps_of(params, len(self.mean), names=self.columns, sparse=is_sparse(rows))
        if gaps is None or gaps.drops:
            return rows
        values = self.mean if gaps.values is None else gaps.values
        if is_sparse(rows):
            import scipy.sparse as sp

            whole = sp.csr_array(rows).astype(np.float64)
            whole.data = np.where(np.isnan(whole.data), values[whole.indices], whole.data)
            return whole
        array = np.asarray(rows)
        return np.where(gaps.gone(array), values, array)

    def _without_marks(self, rows: Any) -> Any:
        """Rows with NaN where a number stood for a missing value in the table of the fit: here it does, too."""
        if not self.marks.numbers:
            return rows
        if not is_sparse(rows):
            cleaned = values = self.marks.without(np.asarray(rows))
        else:
            import scipy.sparse as sp

            cleaned = sp.csr_array(rows).astype(np.float64)
            cleaned.data = values = self.marks.without(cleaned.data)
        require(
            self._gaps or not np.isnan(values).any(),
            f"some rows have {join_names(self.marks.texts)}, which stood for a missing value in the fit. Fill in or remove such "
            "rows first",
        )
        return cleaned

    @ignore_float_errors
    def inverse_transform(self, scores: Array) -> Array:
        """Rows, (n, d), in the units of the columns, from `scores`, (n, k)."""
        require_local(scores, "scores")
        # The scale comes first, because the mean is in the units of the columns already.
        rows = (scores * self._deviations() if self.whiten else scores) @ self.components
        return (rows if self.scale is None else rows * self.scale) + self.mean

    def _deviations(self) -> Array:
        """Standard deviations along the components, (k,). None is zero: a direction without variance has scores of zero."""
        return np.maximum(np.sqrt(np.maximum(self.explained_variance, 0.0)), np.finfo(np.float64).eps)

    def _repr_html_(self) -> str:
        """The variances with the noise floor and the guarantee, in a notebook."""
        return str(import_module("eigenveil.show.notebook").html_of(self))

    def save(self, path: str | Path) -> None:
        """Write the model to `path`, whole or not at all."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        if self.scale is not None:
            arrays["scale"] = np.ascontiguousarray(self.scale)
        arrays |= {f"{_CLIP}{name}": np.ascontiguousarray(array) for name, array in self.clipping.items()}
        header = {
            "guarantee": self.guarantee.to_dict(),
            "guarantee_in_words": self.guarantee.to_text(),
            "scores": SCORES_ARE_RAW,
            "columns": list(self.columns) if self.columns is not None else None,
            "settings": dict(self.settings),
            "warnings": list(self.warnings),
            "estimator": dict(self.estimator),
        }
        # Readable by all: a model is made to be published, unlike scores and states.
        _KIND.write(Path(path), arrays, header, readable=True)

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        """Read a model. `ModelFileError` if the file is not a model, is damaged, or is of another version."""
        return _KIND.read_as(Path(path), cls._from_parts)

    @classmethod
    def _from_parts(cls, arrays: Mapping[str, Any], header: Mapping[str, Any]) -> "Model":
        clipping = {name.removeprefix(_CLIP): array for name, array in arrays.items() if name.startswith(_CLIP)}
        arrays = {name: array for name, array in arrays.items() if not name.startswith(_CLIP)}
        require(set(_ARRAYS) <= set(arrays) <= {*_ARRAYS, "scale"}, f"its arrays are {sorted(arrays)}")
        for name, array in {**arrays, **clipping}.items():
            require(array.dtype == np.float64, f"{name} is of type {array.dtype}, not float64")
            largest = _LARGEST_VALUE if name == "values" else _LARGEST
            require(not bool((np.isfinite(array) & (np.abs(array) > largest)).any()), f"{name} must be at most {largest}")
        columns, settings = header["columns"], header["settings"]
        named = columns is None or (isinstance(columns, list) and all(isinstance(name, str) for name in columns))
        require(named, "its columns are not a list of names")
        require(isinstance(settings, dict), "its settings are not a table")
        estimator = header["estimator"]
        require(isinstance(estimator, dict), "what it says of its estimator is not a table")
        return cls(
            **arrays,
            guarantee=Guarantee.from_dict(header["guarantee"]),
            columns=None if columns is None else tuple(columns),
            settings=settings,
            warnings=warnings_in(header),
            estimator=estimator,
            clipping=clipping,
        )


def clipping_of(domain: Region) -> dict[str, Array]:
    """What a model records of how rows were clipped; nothing where they were not."""
    if not isinstance(domain, Domain) or math.isinf(domain.radius):
        return {}
    center = np.zeros(domain.dim) if domain.center is None else domain.center
    clipping = {"radius": np.array([domain.radius]), "center": center}
    clipping["scale"] = np.ones(domain.dim) if domain.scale is None else domain.scale
    if domain.low is not None and domain.high is not None:
        clipping |= {"low": domain.low, "high": domain.high}
    return clipping


def _require_clipping(clipping: Mapping[str, Array], dim: int) -> None:
    """Refuse bounds of rows that no fit has: a file may come from anywhere."""
    if not clipping:
        return
    wanted = {"radius": (1,), "center": (dim,), "scale": (dim,)}
    wanted |= {name: (dim,) for name in ("low", "high") if name in clipping}
    require(set(clipping) == set(wanted) and len(wanted) != 4, f"its bounds of rows are {sorted(clipping)}")
    for name, shape in wanted.items():
        require(clipping[name].shape == shape, f"clip.{name} must have shape {shape}, got {clipping[name].shape}")
        require(bool(np.isfinite(clipping[name]).all()), f"clip.{name} must be finite")
    # Its constructor checks the rest.
    Domain(
        dim=dim,
        radius=float(clipping["radius"][0]),
        center=None,
        scale=clipping["scale"],
        low=clipping.get("low"),
        high=clipping.get("high"),
    )


def noise_floor_in(settings: Mapping[str, Any]) -> float:
    """The noise floor that the settings of a fit record, 0 if there is none."""
    floor = settings.get("noise_floor", 0.0)
    # The settings come from a file, which may have been edited.
    good = isinstance(floor, Real) and math.isfinite(float(floor))
    return max(float(floor), 0.0) if good else 0.0


def warnings_in(header: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings in the header of a file."""
    texts = header["warnings"]
    require(isinstance(texts, list) and all(isinstance(text, str) for text in texts), "its warnings are not a list of texts")
    return tuple(texts)
