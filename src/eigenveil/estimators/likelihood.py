"""What scikit-learn's PCA says of rows beyond components: their covariance, its inverse, and how likely given rows are.

Everything here is computed from released numbers, so it costs nothing. `Likelihood` is what estimators inherit.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import scipy.sparse as sp

from eigenveil.core.rows import in_silence
from eigenveil.errors import require
from eigenveil.estimators.released import divisor_of
from eigenveil.linalg import Array, Subspace
from eigenveil.model import Model

__all__ = ["Likelihood", "RowCovariance", "noise_variance"]

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
        least = max(rest, _hidden(model.noise_floor, len(model.mean)))
        return cls(
            mean=model.mean,
            directions=model.components,
            variances=np.maximum(model.explained_variance, least),
            rest=rest,
            scale=model.scale,
        )

    @classmethod
    def released(cls, gram: Array, people: float, model: Model) -> "RowCovariance":
        """Of a whole released Gram matrix, (d, d), made positive.

        Eigenvalues that do not stand out from noise are replaced by their average, which has far less noise than each of
        them. So the trace stays as it was released, unless the average is below what noise could hide.
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
        found = (self.directions.T * (self.variances - self.rest)) @ self.directions
        # Only the diagonal is changed, in place: an identity would be another matrix of this size.
        found.flat[:: self.dim + 1] += self.rest
        return found if self.scale is None else self.scale[:, None] * found * self.scale

    def inverse(self) -> Array:
        """The inverse of the covariance, (d, d)."""
        self._require_inverse()
        other = 1.0 / self.rest if self._has_rest else 0.0
        found = (self.directions.T * (1.0 / self.variances - other)) @ self.directions
        found.flat[:: self.dim + 1] += other
        return found if self.scale is None else found / self.scale[:, None] / self.scale

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
        least = min([*self.variances.tolist(), *([self.rest] if self._has_rest else [])])
        require(
            least > 0,
            "the covariance has no inverse, because the rows do not vary in some directions. Ask for fewer components, or leave "
            "out columns that are constant or sums of others",
        )


class Likelihood:
    """`get_covariance`, `get_precision`, `score_samples` and `score`, as in scikit-learn's PCA. Not an estimator by itself."""

    @in_silence
    def get_covariance(self) -> Array:
        """The covariance of the columns, (d, d), from released numbers: it costs nothing.

        If the fit released a whole covariance, it is that one, made positive: eigenvalues that do not stand out from the noise
        are replaced by their average. Otherwise, and without privacy, it is made of components and `noise_variance_`, as in
        scikit-learn. Rows were clipped, so it is the covariance of clipped rows.
        """
        return self._covariance().matrix()

    @in_silence
    def get_precision(self) -> Array:
        """The inverse of `get_covariance`, (d, d)."""
        return self._covariance().inverse()

    @in_silence
    def score_samples(self, X: Any) -> Array:
        """The log-likelihood of each of the rows `X`, (n, d), under the fitted covariance: (n,).

        Raw data: the likelihood of a person's row is as private as the row, and the guarantee does not cover it.
        """
        covariance = self._covariance()
        pieces = self._pieces(X, size=max(1, _PIECE // covariance.dim))
        parts = [covariance.log_likelihood(_dense(values)) for values in pieces]
        return np.concatenate(parts) if parts else np.empty(0)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-likelihood of the rows `X`, (n, d). Raw data, as that of each row is.

        Choosing parameters by it on private rows, as a grid search does, is a release that nothing here charges for.
        """
        return float(np.mean(self.score_samples(X)))

    @abstractmethod
    def _covariance(self) -> RowCovariance:
        """The covariance, from released numbers."""

    @abstractmethod
    def _pieces(self, X: Any, *, size: int) -> Iterator[Any]:
        """Checked rows of a caller, at most `size` at a time."""


def noise_variance(subspace: Subspace, *, noise_floor: float, trace: float, people: float) -> float:
    """The average variance outside the components, as in scikit-learn. In Gram units, `trace` is that of all directions.

    With noise it is at least what noise could hide under the `noise_floor`, an explained variance.
    """
    rank, dim = subspace.rank, subspace.dim
    # Few rows vary in few directions, and scikit-learn averages over those alone. Noise varies in all of them.
    others = (dim if noise_floor > 0 else min(people, dim)) - rank
    if others <= 0:
        return 0.0
    left = trace - float(np.square(subspace.values).sum())
    return max(float(left / divisor_of(people) / others), _hidden(noise_floor, dim), 0.0)


def _hidden(noise_floor: float, dim: int) -> float:
    """A variance that noise could hide, if it is the same along all d directions.

    Their average is a trace over d. A norm of 2 s sqrt(d) / sqrt(2) has entries of size s on the diagonal, and the error of
    their average is s / sqrt(d): the floor over sqrt(2) d.
    """
    return noise_floor / dim


def _dense(values: Any) -> Array:
    # A copy in any case: the mean is subtracted in place.
    return np.array(values.toarray() if sp.issparse(values) else values, dtype=np.float64)
