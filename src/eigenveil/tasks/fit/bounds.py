"""`RowBounds`: everything the caller said about where rows lie, checked once and turned into domains.

Nothing here is read from the data. A bound that is missing is an error that says why, not a guess.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np

from eigenveil.errors import ParameterError, require_param
from eigenveil.linalg import Array
from eigenveil.params import declared
from eigenveil.params.declarations.groups import Bounds
from eigenveil.privacy import Domain
from eigenveil.privacy.facts import TableRows
from eigenveil.privacy.sums.domain import FARTHEST, LARGEST, SMALLEST
from eigenveil.tasks import lies_far, shrunk

__all__ = ["RowBounds"]

# The declared parameters that say where rows lie, but for the center, which a fit may have to find.
_NAMES: Final = tuple(name for name in declared(Bounds) if name != "center")
# Rows at many places are added up where every number is looked at; the square of this, many times, is still one to take.
_LARGEST_SUMMED = 1e60


@final
@dataclass(frozen=True, slots=True, eq=False)
class RowBounds:
    """Public facts about rows of `dim` columns: a ball, a box, or both; where the mean is looked for; and units.

    `low`, `high`, `origin` and `scale` are (d,), in the units of the columns; `row_bound` and `mean_bound` are lengths after
    division by `scale`. Infinite bounds mean that no privacy is claimed, and so does `claimed` where it is false.
    """

    dim: int
    row_bound: float
    mean_bound: float
    search: bool
    origin: Array | None
    scale: Array | None
    low: Array | None
    high: Array | None
    claimed: bool = True

    @classmethod
    def of(cls, asked: Any, dim: int, *, private: bool, sparse: bool, **instead: Any) -> "RowBounds":
        """What the parameters of `asked` say; those that it does not have are left open, and `instead` are other values."""
        given = {name: getattr(asked, name, None) for name in _NAMES} | instead
        return cls.check(dim, private=private, sparse=sparse, **given)

    @classmethod
    def check(
        cls,
        dim: int,
        *,
        private: bool,
        row_bound: Any,
        column_bounds: Any,
        origin: Any,
        mean_bound: Any,
        scale: Any,
        sparse: bool,
    ) -> "RowBounds":
        """Check what the caller gave; `private` makes a bound obligatory."""
        if private and row_bound is None and column_bounds is None:
            raise ParameterError(
                "{row_bound} (or {column_bounds}) is required: no row may be longer than a bound you know without looking, "
                "because a bound read off the data would itself leak the data. Where you know none, eigenveil.find_bounds in "
                "Python or `eigenveil bounds` on the command line finds one privately, for a small part of the budget"
            )
        radius = math.inf if row_bound is None else _positive("row_bound", row_bound)
        low, high = (None, None) if column_bounds is None else _box(column_bounds, dim)
        units = None if scale is None else _vector("scale", scale, dim)
        require_param(
            units is None or bool(((units >= SMALLEST) & (units <= LARGEST)).all()),
            f"every {{scale}} must be positive, between {SMALLEST:g} and {LARGEST:g}",
        )
        if low is not None and high is not None and sparse:
            require_param(
                bool(((low <= 0) & (high >= 0)).all()),
                "{column_bounds} of sparse rows must hold zero in every column, or every zero would have to be stored",
            )
        start = None if origin is None else _vector("origin", origin, dim)
        half = math.inf
        if low is not None and high is not None:
            start = (low + high) / 2 if start is None else start
            half = _length(np.maximum(np.abs(high - start), np.abs(low - start)), units)
            require_param(
                math.isfinite(radius) or _length(high - low, units) <= LARGEST,
                f"{{column_bounds}} must span at most {LARGEST:g} where no {{row_bound}} is given",
            )
        default = half if math.isfinite(half) else radius
        reach_of_mean = default if mean_bound is None else _positive("mean_bound", mean_bound)
        if sparse and private:
            # Before anything is charged: no start and no center that can come of it may be too far for sparse rows.
            _require_near(start, units, reach_of_mean, steps=0, radius=reach_of_mean)
            _require_near(
                start,
                units,
                reach_of_mean,
                steps=3 if low is None and mean_bound is None else 1,
                radius=min(radius, half),
            )
        # Where nothing was said about the mean, one ball may not hold it, and it is worth a second look.
        search = mean_bound is None and low is None and math.isfinite(radius)
        return cls(dim, radius, reach_of_mean, search, start, units, low, high, claimed=private)

    def require_addable(self) -> None:
        """Refuse bounds so large that sums of products of rows within them would not be taken by who adds them up.

        Below them they are, whatever the rows: an error would tell about them.
        """
        # A box holds a ball of its diagonal: `around` takes no larger one, wherever the center is in it.
        reach = self.row_bound if self.low is None else min(self.row_bound, 2 * self.mean_bound)
        require_param(
            max(reach, self.mean_bound) <= _LARGEST_SUMMED,
            f"{{row_bound}}, {{mean_bound}} and {{column_bounds}} must be at most {_LARGEST_SUMMED:g}; give a {{scale}}",
        )

    def around_start(self, start: Array | None) -> Domain:
        """Where rows are brought to for the mean: the box, then the ball of `mean_bound` around `start`."""
        return Domain(self.dim, self.mean_bound, start, self.scale, self.low, self.high, self.claimed)

    def around(self, center: Array | None) -> Domain:
        """Where rows are brought to for products: the box, then the smallest ball around `center` that holds what it may.

        The farthest corner of the box is a public distance once the center is, so the smaller of the two bounds serves.
        """
        radius = self.row_bound
        if self.low is not None and self.high is not None:
            middle = np.zeros(self.dim) if center is None else center
            corner = np.maximum(np.abs(self.high - middle), np.abs(self.low - middle))
            radius = min(radius, max(_length(corner, self.scale), SMALLEST) * (1 + 1e-12))
        return Domain(self.dim, radius, center, self.scale, self.low, self.high, self.claimed)

    def known(
        self,
        center: Array | Literal["private"] | None,
        *,
        norm: float | None,
        trace: float | None = None,
        least: int | None = None,
    ) -> TableRows:
        """What a guarantee says of rows that were clipped to `norm` around `center`; the rest is as in `TableRows`."""
        searched = isinstance(center, str)
        given = self.scale is not None or self.origin is not None or not searched
        return TableRows(
            norm=norm,
            around="the mean" if searched else "zero" if center is None else "the given center",
            trace=trace,
            least=least,
            given=("the origin", "the scale", "the column bounds", "the center") if given else (),
        )

    def center_from(self, start: Array | None, total: Array, count: float, *, noise: float) -> tuple[Array, bool]:
        """A center in the units of the columns, from a released sum of rows around `start`, (d,), and a count.

        The sum's noise has the expected norm `noise`. What it adds to the length is taken off again (James and Stein 1961),
        and a center outside of where means can lie is put back: post-processing, which costs nothing.
        Also says whether the center moved so far that rows around it may have been cut short on the way.
        """
        noise = noise / max(count, 1.0)
        # Noise as large as the ball says nothing about where in it the mean lies, and the start is the better guess.
        kept = noise < self.mean_bound
        offset = shrunk(total / max(count, 1.0), noise=noise) if kept else np.zeros(self.dim)
        length = float(np.linalg.norm(offset))
        far = lies_far(offset, radius=self.mean_bound, noise=noise)
        if length > self.mean_bound:
            offset = offset * (self.mean_bound / length)
        center = offset if self.scale is None else offset * self.scale
        center = center if start is None else center + start
        if self.low is not None and self.high is not None:
            center = np.clip(center, self.low, self.high)
        return center, far


def _require_near(start: Array | None, units: Array | None, reach: float, *, steps: int, radius: float) -> None:
    origin = 0.0 if start is None else _length(start, units)
    require_param(
        origin + steps * reach <= FARTHEST * radius,
        f"sparse rows cannot be centered further than {FARTHEST:g} times their bound from zero: {{origin}}, {{mean_bound}} or "
        "{column_bounds} reach too far for {row_bound}",
    )


def _length(vector: Array, units: Array | None) -> float:
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(vector if units is None else vector / units))


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    require_param(number > 0, f"{{{name}}} must be positive, got {{@value}}", value=value)
    limits = f"between {SMALLEST:g} and {LARGEST:g}"
    require_param(SMALLEST <= number <= LARGEST, f"{{{name}}} must lie {limits}, got {{@value}}", value=value)
    return number


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ParameterError(f"{{{name}}} must be a number, got {{@value}}", value=value) from None
    require_param(not math.isnan(number), f"{{{name}}} must not be NaN")
    return number


def _vector(name: str, value: Any, dim: int, which: str = "") -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise ParameterError(f"{{{name}}}{which} must be a number or {dim} numbers, got {kind}") from None
    good = array.shape in {(), (dim,)}
    require_param(good, f"{{{name}}}{which} must be a number or {dim} numbers, got shape {array.shape}")
    require_param(bool(np.isfinite(array).all()), f"{{{name}}}{which} must be finite")
    return np.array(np.broadcast_to(array, (dim,)))


def _box(value: Any, dim: int) -> tuple[Array, Array]:
    try:
        first, second = value
    except (TypeError, ValueError):
        raise ParameterError(
            "{column_bounds} must be a pair (low, high), each a number or one number per column"
        ) from None
    low, high = _vector("column_bounds", first, dim, " low"), _vector("column_bounds", second, dim, " high")
    require_param(bool((low <= high).all()), "{column_bounds}: every low must be at most its high")
    largest = float(max(np.abs(low).max(), np.abs(high).max()))
    require_param(largest <= LARGEST, f"{{column_bounds}} must lie between -{LARGEST:g} and {LARGEST:g}")
    require_param(bool((low < high).any()), "{column_bounds}: low equals high in every column, so nothing could vary")
    return low, high
