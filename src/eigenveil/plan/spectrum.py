"""`Spectrum`: what is publicly known or guessed of the eigenvalues of the rows.

Besides the noise, the accuracy of a fit depends on nothing else. The noise of every release is the same in all
directions, so eigenvalues matter and where their directions point does not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
from numpy.typing import ArrayLike

from eigenveil.core.rows import is_sparse
from eigenveil.errors import require, require_param
from eigenveil.linalg import Array

FORMAT: Final = "eigenveil spectrum 1"
# Relative error of the shape: where nothing is known, for a guess, and for a public table like the private one.
_SPREAD_OF_NOTHING: Final = 1.0
SPREAD_OF_GUESS: Final = 0.5
PUBLIC_SPREAD: Final = 0.2
# Between rows that all reach the bound and rows of which most are short; and the doubt about it (natural logarithm).
_ASSUMED_FILL, _FILL_DOUBT = 0.5, 0.7
# What somebody knows of the share of the first components is of rows before clipping. In this share of tables long rows have much
# of it, and clipped rows are like those of a table of which nothing is known.
_OTHER_ONCE_CLIPPED: Final = 0.25
# A private search takes a lower bound where there is more noise, and then rows fill it. The fill falls from the second number to
# the first, by half where people times mu over the root of the number of columns is the third (benchmarks/plan/coverage.py).
_FILL_LATE, _FILL_EARLY, _FILL_HALF, _FILL_POWER = 0.43, 0.9, 180.0, 1.5
# With a steeper power of i only the first eigenvalue is left in floating point.
_STEEPEST: Final = 200.0
# A public table's spectrum comes from a Gram matrix over its smaller side, which must not exceed this.
_LARGEST_SIDE: Final = 6000
_ROUNDING: Final = 1e-9
# Nobody knows a share closer to one than this, and closer to it the first component would have everything.
_MOST_EXPLAINED: Final = 0.995
# At a relative error of one, the standard deviation of the power of i by which a spectrum falls faster or slower.
_TILT: Final = 0.6
# At a relative error of one, up to this share of the variance may be spread evenly over all directions.
_REST: Final = 0.02
# Correlation length of the errors, in units of log(index of the eigenvalue).
_TOGETHER: Final = 2.0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Spectrum:
    """Eigenvalues, (d,), of the average product of a row around the mean with itself, in units of row_bound^2, largest first.

    - `bound_usage`, their sum, is the mean squared norm of a row over row_bound^2, so it lies in (0, 1].
    - `source` says in words where they come from.
    - `spread` is the relative error of the shape, and `error` the standard deviation of each value. Both widen the
      forecast.
    - If the fill is `assumed`, a forecast for a fit that finds its bound replaces it, and others doubt it.

    >>> Spectrum(values=np.array([0.3, 0.2]), source="given").bound_usage
    0.5
    """

    values: Array
    source: str
    spread: float = 0.0
    error: float = 0.0
    assumed: bool = False

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        require(values.ndim == 1 and len(values) >= 1, f"values must be a list of eigenvalues, got shape {values.shape}")
        good = bool(np.isfinite(values).all()) and bool((values >= 0).all()) and bool((np.diff(values) <= 0).all())
        require(good, "values must be finite, not negative and largest first")
        total = float(values.sum())
        require_param(
            0 < total <= 1 + _ROUNDING,
            f"values must sum to more than 0 and at most 1, because no row's norm exceeds {{row_bound}}, got {total:g}",
        )
        require(0 <= self.spread < math.inf, f"spread must not be negative, got {self.spread}")
        require(0 <= self.error < math.inf, f"error must not be negative, got {self.error}")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spectrum) and self._known == other._known

    def __hash__(self) -> int:
        # By value: rehearsals are kept, and the same model has the same spectrum each time that it is read.
        return hash(self._known)

    @property
    def _known(self) -> tuple[bytes, str, float, float, bool]:
        return self.values.tobytes(), self.source, self.spread, self.error, self.assumed

    @property
    def bound_usage(self) -> float:
        """The mean squared norm of a row over row_bound^2."""
        return min(1.0, float(self.values.sum()))

    @property
    def dim(self) -> int:
        """The number of columns."""
        return len(self.values)

    def explained(self, rank: int) -> float:
        """The share of the variance along the first `rank` components.

        >>> Spectrum.guessed(3, decay=1.0).explained(1)
        0.5454...
        """
        require_rank(rank, self.dim)
        return float(self.values[:rank].sum() / self.values.sum())

    def at_random(self, rank: int) -> float:
        """Variance along `rank` random directions over that of the best ones. Each random direction has the average
        variance.

        >>> Spectrum(values=np.array([0.3, 0.1]), source="given").at_random(1)
        0.66...
        """
        require_rank(rank, self.dim)
        return min(1.0, float(rank * self.values.mean() / self.values[:rank].sum()))

    @classmethod
    def guessed(
        cls,
        dim: int,
        *,
        rank: int | None = None,
        explained: float | None = None,
        decay: float | None = None,
        bound_usage: float | None = None,
    ) -> "Spectrum":
        """A guess in two numbers: eigenvalue i is proportional to i^-`decay`, and the sum is `bound_usage`, by default assumed.

        In place of the decay, `explained` gives the share of the variance along the first `rank` components. With
        neither, the decay is one, which is common.

        >>> guess = Spectrum.guessed(100, rank=5, explained=0.6, bound_usage=0.4)
        >>> round(guess.explained(5), 9), round(guess.bound_usage, 9)
        (0.6, 0.4)
        """
        require_param(dim >= 1, "{dim} must be at least 1, got {@dim}", dim=dim)
        assumed, bound_usage = bound_usage is None, _fill(bound_usage)
        require_param(explained is None or decay is None, "{explained} and {decay} say the same thing: give one of them")
        require_param(
            (rank is None) == (explained is None), "{explained} is the share of the first {rank} components: give both or neither"
        )
        spread = _SPREAD_OF_NOTHING if explained is None and decay is None else SPREAD_OF_GUESS
        how = ""
        if explained is not None and rank is not None:
            decay = _decay_for(dim, rank, min(explained, max(_MOST_EXPLAINED, rank / dim)))
            how = f", so that the first {rank} have {explained:.3g} of the variance"
        decay = 1.0 if decay is None else decay
        good = 0 <= decay <= _STEEPEST
        require_param(good, f"{{decay}} must lie in 0..{_STEEPEST:g}, got {{@decay}}", decay=decay)
        norms = "" if assumed else f", mean squared row norm {bound_usage:.3g} of row_bound^2"
        source = f"a guess: eigenvalue i proportional to i^-{decay:.3g}{how}{norms}"
        shape = _power_law(dim, decay)
        return cls(values=bound_usage * shape / shape.sum(), source=source, spread=spread, assumed=assumed)

    @classmethod
    def of_variances(
        cls,
        variances: ArrayLike,
        *,
        dim: int | None = None,
        row_bound: float | None = None,
        bound_usage: float | None = None,
        source: str = "given",
        spread: float = 0.0,
    ) -> "Spectrum":
        """From variances along components, in any order and any units.

        With `row_bound` in those units they are divided by its square. Without it they are scaled to sum to `bound_usage`, by
        default an assumed one.
        If there are fewer than `dim`, the others are zero.

        >>> Spectrum.of_variances([4.0, 1.0], dim=3, row_bound=5.0).values.tolist()
        [0.16, 0.04, 0.0]
        """
        try:
            values = np.sort(np.asarray(variances, dtype=np.float64).ravel())[::-1]
        except (TypeError, ValueError):
            raise ValueError(f"variances must be numbers, got {type(variances).__name__}") from None
        dim = len(values) if dim is None else dim
        require(1 <= len(values) <= dim, f"variances must be 1 to {dim} numbers, got {len(values)}")
        total = float(values.sum())
        require(bool((values >= 0).all()) and 0 < total < math.inf, "variances must be finite, not negative, not all zero")
        if row_bound is None:
            values = values * (_fill(bound_usage) / total)
        else:
            good = 0 < row_bound < math.inf
            require_param(good, "{row_bound} must be positive and finite, got {@bound}", bound=row_bound)
            require_param(
                total <= row_bound**2 * (1 + _ROUNDING),
                f"variances sum to {total:g}, more than the square of {{row_bound}}, {row_bound:g}. Clipping would "
                "make them smaller: raise {row_bound}, or scale the variances down",
            )
            values = values / row_bound**2
        assumed = row_bound is None and bound_usage is None
        return cls(values=np.pad(values, (0, dim - len(values))), source=source, spread=spread, assumed=assumed)

    @classmethod
    def of_rows(
        cls, rows: Any, *, row_bound: float | None = None, bound_usage: float | None = None, center: Any = "private"
    ) -> "Spectrum":
        """The spectrum of a PUBLIC table, (n, d), array or sparse matrix, that is like the private one. Never pass
        private rows.

        With `row_bound` its rows are clipped to that norm, as a fit does. Without it the spectrum is scaled to `bound_usage`.
        Rows are taken around `center`, as in a fit: "private" is their mean, None is zero, or give numbers, (d,).

        >>> Spectrum.of_rows(np.array([[3.0, 0.0], [-3.0, 0.0]]), row_bound=1.0).values.tolist()
        [1.0, 0.0]
        """
        table: Any = _sparse(rows) if is_sparse(rows) else np.asarray(rows, dtype=np.float64)
        require(table.ndim == 2 and min(table.shape) >= 1, f"rows must have shape (n, d), got {table.shape}")
        count, dim = table.shape
        require(
            min(count, dim) <= _LARGEST_SIDE,
            f"one side of rows must be at most {_LARGEST_SIDE}, got shape {table.shape}: pass a sample of the rows",
        )
        mean = _center_of(table, center)
        if is_sparse(table):
            # Centering would make the table dense, so the mean is subtracted from the products: (x - m)'(y - m),
            # expanded.
            inner = np.asarray((table @ table.T).toarray()) if count <= dim else None
            squares = np.asarray(table.multiply(table).sum(axis=1)).ravel() - 2 * (table @ mean) + mean @ mean
            factors = _factors(squares, row_bound)
            if inner is not None:
                pull = np.asarray(table @ mean)
                inner = inner - pull[:, None] - pull[None, :] + mean @ mean
                gram = factors[:, None] * inner * factors[None, :]
            else:
                scaled = table.multiply(factors[:, None]).tocsr()
                drag = np.outer(np.asarray(scaled.T @ factors), mean)
                gram = (scaled.T @ scaled).toarray() - drag - drag.T + (factors @ factors) * np.outer(mean, mean)
        else:
            moved = table - mean
            moved *= _factors(np.einsum("ij,ij->i", moved, moved), row_bound)[:, None]
            # Both products have the same eigenvalues apart from zeros, so the smaller one is formed.
            gram = moved @ moved.T if count <= dim else moved.T @ moved
        values = np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0) / count
        require(bool(np.isfinite(values).all()) and values.sum() > 0, "rows must be finite and must vary")
        source = f"from a public table of {count} rows"
        return cls.of_variances(
            values[:dim], dim=dim, row_bound=row_bound, bound_usage=bound_usage, source=source, spread=PUBLIC_SPREAD
        )

    def in_found_bound(self, people: float, mu: float) -> "Spectrum":
        """With the fill that rows have of a bound that is found privately for `people` at this budget, if it is assumed.

        >>> guess = Spectrum.guessed(16)
        >>> round(guess.in_found_bound(400, 0.2).bound_usage, 2), round(guess.in_found_bound(1e5, 0.2).bound_usage, 2)
        (0.88, 0.43)
        """
        if not self.assumed:
            return self
        signal = people * mu / math.sqrt(self.dim)
        bound_usage = _FILL_LATE + (_FILL_EARLY - _FILL_LATE) / (1 + (signal / _FILL_HALF) ** _FILL_POWER)
        return replace(self, values=self.values * (bound_usage / self.values.sum()))

    def drawn(self, rng: np.random.Generator) -> Array:
        """Other eigenvalues, (d,), that are as plausible: off by a smooth relative error of size `spread`, and by
        `error`.

        Neighbouring eigenvalues share their error, and distant ones have independent errors. The error is a
        stationary process over log i whose correlation falls by e over a factor of e^2 in i.
        """
        places = np.log(np.arange(1.0, self.dim + 1))
        correlations = np.exp(-np.diff(places) / _TOGETHER)
        steps = rng.standard_normal(self.dim)
        expected = self.values
        if self.assumed and self.spread == SPREAD_OF_GUESS and rng.random() < _OTHER_ONCE_CLIPPED:
            shape = _power_law(self.dim, 1.0)
            expected = self.bound_usage * shape / shape.sum()
        # The autoregression x_i = k_i x_(i-1) + sqrt(1 - k_i^2) z_i, all steps at once.
        fade = np.concatenate([[1.0], np.cumprod(correlations)])
        noise = np.concatenate([[1.0], np.sqrt(1 - correlations**2)]) * steps
        walk = fade * np.cumsum(noise / fade)
        tilt = _TILT * rng.standard_normal() * places
        values = expected * np.exp(self.spread * (walk - tilt)) + self.error * rng.standard_normal(self.dim)
        # No real table lies in a few dimensions exactly, even where a guess says so.
        values = values + _REST * self.spread * rng.random() * expected.mean()
        if self.assumed:
            values = values * math.exp(_FILL_DOUBT * rng.standard_normal())
        values = np.sort(np.maximum(values, 0.0))[::-1]
        total = float(values.sum())
        # A draw in which nothing is left is no plausible spectrum, so the guess itself stands for it.
        if total <= 0:
            return self.values
        # No fill above 1: rows lie within row_bound.
        return np.asarray(values / max(1.0, total))

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, for a JSON file."""
        return {
            "format": FORMAT,
            "source": self.source,
            "spread": self.spread,
            "error": self.error,
            "values": self.values.tolist(),
        }

    @classmethod
    def from_json(cls, plain: Any) -> "Spectrum":
        """The spectrum that `to_json` wrote. A `ValueError` for anything else.

        >>> Spectrum.from_json(Spectrum.guessed(3).to_json()).dim
        3
        """
        require(isinstance(plain, Mapping) and plain.get("format") == FORMAT, f"a spectrum must have the format {FORMAT!r}")
        require(
            # A file also says what it cost.
            set(plain) - {"guarantee"} == {"format", "source", "spread", "error", "values"} and isinstance(plain["source"], str),
            "a spectrum has a source, a spread, an error and values",
        )
        try:
            values, spread, error = np.array(plain["values"], float), float(plain["spread"]), float(plain["error"])
        except (TypeError, ValueError):
            raise ValueError("the values, spread and error of a spectrum must be numbers") from None
        return cls(values=values, source=plain["source"], spread=spread, error=error)


def condensed(values: Array, dim: int, *, rank: int) -> Array:
    """A shorter spectrum, (dim,), in place of a longer one: its leading half, and evenly spaced values of the rest.

    For d columns, scale the noise by sqrt(d / dim). Its spectral norm is then that of d columns, and what a leading
    direction keeps of itself depends on that norm alone. The average variance of the other directions stays the same
    too.

    >>> condensed(np.arange(9.0, 0, -1), 6, rank=2).tolist()
    [9.0, 8.0, 7.0, 5.0, 3.0, 1.0]
    """
    lead = max(dim // 2, min(rank, dim - 1))
    middles = (np.arange(dim - lead) + 0.5) * (len(values) - lead) / (dim - lead)
    return np.concatenate([values[:lead], values[lead + middles.astype(int)]])


def require_rank(rank: int, dim: int) -> None:
    """Refuse zero components, or more components than columns."""
    require_param(1 <= rank <= dim, f"{{rank}} must be from 1 to the {dim} columns, got {{@rank}}", rank=rank)


def guessed_eigenvalues(*, dim: int, people: int) -> Array:
    """Guessed eigenvalues of the Gram matrix, (dim,), in units of row_bound^2, for use where the real ones are
    private.

    >>> guessed_eigenvalues(dim=2, people=6).tolist()
    [2.0, 1.0]
    """
    require_param(people >= 1, "{people} must be at least 1, got {@people}", people=people)
    guess: Array = people * Spectrum.guessed(dim).values
    return guess


def _fill(bound_usage: float | None) -> float:
    """The fill, or the assumed one."""
    require_param(
        bound_usage is None or 0 < bound_usage <= 1,
        "{bound_usage} must lie in (0, 1], got {@bound_usage}",
        bound_usage=bound_usage,
    )
    return _ASSUMED_FILL if bound_usage is None else bound_usage


def _power_law(dim: int, decay: float) -> Array:
    shape: Array = np.arange(1.0, dim + 1) ** -decay
    return shape


def _decay_for(dim: int, rank: int, explained: float) -> float:
    """The power of i at which the first `rank` of `dim` have this share. The share grows with the power: bisect."""
    require_rank(rank, dim)
    min_share = rank / dim
    require_param(
        min_share * (1 - _ROUNDING) <= explained <= 1,
        f"{{explained}} must lie in [{min_share:.3g}, 1], because {rank} of {dim} components have at least {min_share:.3g}, "
        f"got {{@share}}",
        share=explained,
    )
    low, high = 0.0, _STEEPEST
    # Sixty halvings of this interval reach the last bit of a double.
    for _ in range(60):
        middle = (low + high) / 2
        shape = _power_law(dim, middle)
        low, high = (middle, high) if shape[:rank].sum() / shape.sum() < explained else (low, middle)
    return high if high < _STEEPEST else low


def _sparse(rows: Any) -> Any:
    import scipy.sparse as sp

    return sp.csr_array(rows)


def _center_of(table: Any, center: Any) -> Array:
    """What the rows of a public table are taken around, (d,)."""
    if isinstance(center, str) and center == "private":
        return np.asarray(table.mean(axis=0)).ravel()
    dim = table.shape[1]
    array = np.zeros(dim) if center is None else np.asarray(center, dtype=np.float64)
    require_param(array.shape == (dim,), f"{{center}} must be 'private', None or {dim} numbers, got {{@c}}", c=center)
    return array


def _factors(squares: Array, row_bound: float | None) -> Array:
    """Factors, (n,), that clip rows of these squared norms to `row_bound`."""
    if row_bound is None:
        return np.ones(len(squares))
    # Squares of sparse rows were expanded, and rounding can make those near the mean negative.
    norms = np.sqrt(np.maximum(squares, 0.0))
    with np.errstate(divide="ignore"):
        return np.asarray(np.minimum(1.0, row_bound / norms))
