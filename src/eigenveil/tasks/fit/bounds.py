"""`RowBounds`: the caller's bounds on rows, checked once and made into the `Domain` objects that clip rows.

Nothing here is read from the data. A missing bound is an error that says why, not a guess.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np

from eigenveil.core.domain import FARTHEST, LARGEST, SMALLEST, Domain, MissingPolicy
from eigenveil.core.threads import vector_norm
from eigenveil.core.unit import Neighbours
from eigenveil.errors import ParameterError, require_param
from eigenveil.linalg import Array
from eigenveil.params.declarations.groups import Bounds, ClipLevel
from eigenveil.params.declare import declared
from eigenveil.params.values import LONGEST, SHORTEST
from eigenveil.privacy.facts import FOUND_BOUND, FOUND_GAPS, FOUND_UNITS, TableRows
from eigenveil.tasks.fit.gaps import gaps_of
from eigenveil.tasks.levels import TailCounts
from eigenveil.tasks.totals import lies_far, shrunk

__all__ = ["Outliers", "RowBounds", "outliers_in"]

# The declared parameters about bounds of rows, except the center, which a fit may have to find.
_NAMES: Final = (*(name for name in declared(Bounds) if name != "center"), *declared(ClipLevel))


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowBounds:
    """Public bounds on rows of `dim` columns: a ball, a box, or both; where the mean is searched for; and units.

    `low`, `high`, `origin` and `scale` are (d,), in the units of the columns. With infinite bounds no privacy is claimed.
    """

    dim: int
    row_bound: float  # A norm after division by `scale`, and so is the next.
    mean_bound: float
    search: bool  # The mean may lie outside the first ball.
    origin: Array | None
    scale: Array | None
    low: Array | None
    high: Array | None
    claimed: bool = True  # Whether privacy is.
    finds_bound: bool = False  # The row bound is to be found privately; `found` puts it in.
    finds_scale: bool = False  # The scale is; `in_units` puts it in.
    sparse: bool = False  # The bound of such rows must not be small compared with their center.
    quantile: float | None = None  # Of the norms, at which a search clips. None: where the best answer is to be expected.
    gaps: MissingPolicy | None = None  # Which entries may be missing.

    @classmethod
    def of(
        cls, params: Any, dim: int, *, private: bool, sparse: bool, names: Sequence[str] | None = None, **instead: Any
    ) -> "RowBounds":
        """The bounds from the parameters of `params`; missing ones are None, and `instead` overrides values.

        The columns may have `names`, which groups of columns use.
        """
        settings = {name: getattr(params, name, None) for name in _NAMES} | instead
        require_param(
            not isinstance(settings["scale"], str) or isinstance(params.center, str),
            "{scale=private} needs {center=private}: columns are scaled by their spread around where they lie",
        )
        bounds = cls.check(dim, private=private, sparse=sparse, **settings)
        center = getattr(params, "center", None)
        # Other shapes, and text, are refused where centers are read.
        if center is not None and np.shape(center) == (dim,) and np.asarray(center).dtype.kind in "biuf":
            _require_reachable("center", _vector("center", center, dim), bounds.scale)
        gaps = gaps_of(params, dim, names=names, sparse=sparse)
        return replace(bounds, gaps=None if gaps is None else gaps.under(Neighbours(params.neighbours)))

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
        quantile: float | None = None,
    ) -> "RowBounds":
        """Check the caller's values; with `private`, a bound is required."""
        if private and row_bound is None and column_bounds is None:
            raise ParameterError(
                "{row_bound} (or {column_bounds}) is required. In a fit, {row_bound=private} finds one privately. So does "
                "eigenveil.find_bounds in Python or `eigenveil bounds` on the command line, for a small part of the budget. Or "
                "give one that you know without looking at the data: a bound read off the data would leak the data"
            )
        unknown = isinstance(scale, str)
        if unknown:
            for name, value in (("column_bounds", column_bounds), ("mean_bound", mean_bound)):
                text = f"{{{name}}} must be left out with {{scale=private}}, which finds where columns lie"
                require_param(value is None, text)
            # In units of its own spread each column adds about one to the squared norm, so sqrt(d) needs no search. Without
            # privacy nothing is clipped that the caller did not ask for.
            usual = math.sqrt(dim) if private else None
            scale, row_bound = None, usual if isinstance(row_bound, str) else row_bound
        # Column bounds bound rows as well, and without privacy nothing is clipped that the caller did not ask for.
        find = private and column_bounds is None and isinstance(row_bound, str)
        require_param(
            quantile is None or find, "{quantile} is for a private search for {row_bound}, and none is needed here. Leave it out"
        )
        row_bound = None if isinstance(row_bound, str) else row_bound
        radius = math.inf if row_bound is None else _positive("row_bound", row_bound)
        low, high = (None, None) if column_bounds is None else _box(column_bounds, dim)
        units = None if scale is None else _vector("scale", scale, dim)
        require_param(
            units is None or bool(((units >= SMALLEST) & (units <= LARGEST)).all()),
            f"every {{scale}} must be positive, between {SMALLEST:g} and {LARGEST:g}",
        )
        start = None if origin is None else _vector("origin", origin, dim)
        _require_reachable("origin", start, units)
        half = math.inf
        if low is not None and high is not None:
            _require_usable(low, high, units, sparse=sparse)
            start = (low + high) / 2 if start is None else start
            half = _norm(np.maximum(np.abs(high - start), np.abs(low - start)), units)
        # The mean lies in the box, so the farthest corner bounds it. Otherwise only the row bound is known.
        default = half if math.isfinite(half) else radius
        reach_of_mean = default if mean_bound is None else _positive("mean_bound", mean_bound)
        if sparse and private and not find and not unknown:
            # Checked before anything is charged: the start, and any center the search can reach, must be near enough to zero.
            # Each step of the search may move the center by the whole bound of the mean.
            steps = 3 if low is None and mean_bound is None else 1
            _require_near(start, units, reach_of_mean, steps=0, radius=reach_of_mean)
            _require_near(start, units, reach_of_mean, steps=steps, radius=min(radius, half))
        # If the caller said nothing about the mean, the first ball may not contain it, so the search may take further steps.
        search = mean_bound is None and low is None and math.isfinite(radius) and not unknown
        return cls(
            dim=dim,
            row_bound=radius,
            mean_bound=reach_of_mean,
            search=search,
            origin=start,
            scale=units,
            low=low,
            high=high,
            claimed=private,
            finds_bound=find,
            finds_scale=unknown,
            sparse=sparse,
            quantile=quantile,
        )

    def found(self, row_bound: float) -> "RowBounds":
        """These bounds once the row bound has been found. The mean lies within it, too."""
        return replace(self, row_bound=row_bound, mean_bound=row_bound, search=False, finds_bound=False)

    def in_units(self, scale: Array) -> "RowBounds":
        """These bounds once the units of the columns, (d,), have been found. The mean is searched for within the row bound."""
        return replace(self, scale=scale, mean_bound=self.row_bound, search=False, finds_scale=False)

    def around_start(self, start: Array | None) -> Domain:
        """The domain that clips rows for the mean: the box, then the ball of `mean_bound` around `start`."""
        return self._domain(start, self.mean_bound)

    def around(self, center: Array | None) -> Domain:
        """The domain that clips rows for products: the box, then the smallest ball around `center` that the bounds allow.

        Once the center is public, so is its distance to the farthest corner of the box. The smaller of the two bounds is used.
        """
        radius = self.row_bound
        if self.low is not None and self.high is not None:
            middle = np.zeros(self.dim) if center is None else center
            corner = np.maximum(np.abs(self.high - middle), np.abs(self.low - middle))
            # A little larger, so that rounding does not clip a row that lies in the corner itself.
            radius = min(radius, max(_norm(corner, self.scale), SHORTEST) * (1 + 1e-12))
        return self._domain(center, radius)

    def _domain(self, center: Array | None, radius: float) -> Domain:
        return Domain(
            dim=self.dim,
            radius=radius,
            center=center,
            scale=self.scale,
            low=self.low,
            high=self.high,
            claimed=self.claimed,
            gaps=self.gaps,
        )

    def known(
        self,
        center: Array | Literal["private"] | None,
        *,
        norm: float | None,
        trace: float | None = None,
        min_rows: int | None = None,
    ) -> TableRows:
        """The facts of a guarantee about rows that were clipped to `norm` around `center`; the rest is as in `TableRows`."""
        searched = isinstance(center, str)
        is_explicit = self.scale is not None or self.origin is not None or not searched
        return TableRows(
            norm=norm,
            around="the mean" if searched else "zero" if center is None else "the given center",
            trace=trace,
            min_rows=min_rows,
            explicit=("the origin", "the scale", "the column bounds", "the center") if is_explicit else (),
            finds_norm=self.finds_bound,
            units=self.finds_scale,
            gaps=None if self.gaps is None else self.gaps.rule,
        )

    @property
    def released(self) -> tuple[str, ...]:
        """What a fit releases beyond the components because of what it had to find, in the words of a guarantee."""
        releases = FOUND_BOUND if self.finds_bound else FOUND_UNITS if self.finds_scale else ()
        return releases if self.gaps is None else releases + FOUND_GAPS.get(self.gaps.rule, ())

    def center_from(self, start: Array | None, total: Array, count: float, *, noise: float) -> tuple[Array, bool]:
        """A center in the units of the columns, from a released sum of rows around `start`, (d,), and a count.

        The sum's noise has the expected norm `noise`. The offset is shrunk by what noise adds to its norm (James and Stein 1961),
        and a center outside the possible means is moved back: free post-processing.
        Also says whether the center moved so far that rows around it may have been clipped.
        """
        noise = noise / max(count, 1.0)
        # If noise is as large as the ball, the release says nothing about the mean, and the start is the better guess.
        is_useful = noise < self.mean_bound
        offset = shrunk(total / max(count, 1.0), noise=noise) if is_useful else np.zeros(self.dim)
        norm = vector_norm(offset)
        far = lies_far(offset, radius=self.mean_bound, noise=noise)
        if norm > self.mean_bound:
            offset = offset * (self.mean_bound / norm)
        center = offset if self.scale is None else offset * self.scale
        center = center if start is None else center + start
        # Rows were clipped to the box, so their mean lies in it, and only noise can have put it outside.
        if self.low is not None and self.high is not None:
            center = np.clip(center, self.low, self.high)
        return center, far


def _require_near(start: Array | None, units: Array | None, reach: float, *, steps: int, radius: float) -> None:
    origin = 0.0 if start is None else _norm(start, units)
    require_param(
        origin + steps * reach <= FARTHEST * radius,
        f"sparse rows cannot be centered further than {FARTHEST:g} times their bound from zero. Use a larger {{row_bound}}, or a "
        "smaller {origin}, {mean_bound} or {column_bounds}",
    )


def _require_reachable(name: str, point: Array | None, units: Array | None) -> None:
    """Refuse a point so far from zero, in units of the columns, that rows around it could not be computed with."""
    require_param(
        point is None or _norm(point, units) <= LONGEST, f"{{{name}}} must lie within {LONGEST:g} of zero, in units of {{scale}}"
    )


def _norm(vector: Array, units: Array | None) -> float:
    with np.errstate(over="ignore"):
        return vector_norm(vector if units is None else vector / units)


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ParameterError(f"{{{name}}} must be a number, got {{@value}}", value=value) from None
    # NaN fails every comparison, so the next check would say that it is not positive.
    require_param(not math.isnan(number), f"{{{name}}} must not be NaN")
    require_param(number > 0, f"{{{name}}} must be positive, got {{@value}}", value=value)
    limits = f"between {SHORTEST:g} and {LONGEST:g}"
    require_param(SHORTEST <= number <= LONGEST, f"{{{name}}} must lie {limits}, got {{@value}}", value=value)
    return number


def _vector(name: str, value: Any, dim: int, which: str = "") -> Array:
    wanted = f"{{{name}}}{which} must be a number or {dim} numbers"
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"{wanted}, got {type(value).__name__}") from None
    require_param(array.shape in {(), (dim,)}, f"{wanted}, got shape {array.shape}")
    require_param(bool(np.isfinite(array).all()), f"{{{name}}}{which} must be finite")
    # A copy: bounds must not change when the caller's array does.
    return np.array(np.broadcast_to(array, (dim,)))


def _require_usable(low: Array, high: Array, units: Array | None, *, sparse: bool) -> None:
    """Refuse column bounds that `sparse` rows cannot keep, or that are too wide to compute with."""
    require_param(
        not sparse or bool(((low <= 0) & (high >= 0)).all()),
        "{column_bounds} of sparse rows must include zero in every column; otherwise every zero would have to be stored",
    )
    require_param(
        # The box decides how far the mean can lie, and without a row bound the radius.
        _norm(high - low, units) <= LONGEST,
        f"{{column_bounds}} must span at most {LONGEST:g} in units of {{scale}}",
    )


def _box(value: Any, dim: int) -> tuple[Array, Array]:
    try:
        first, second = value
    except (TypeError, ValueError):
        raise ParameterError("{column_bounds} must be a pair (low, high), each a number or one number per column") from None
    low, high = _vector("column_bounds", first, dim, " low"), _vector("column_bounds", second, dim, " high")
    require_param(bool((low <= high).all()), "{column_bounds}: every low must be at most its high")
    largest = float(max(np.abs(low).max(), np.abs(high).max()))
    require_param(largest <= LONGEST, f"{{column_bounds}} must lie between -{LONGEST:g} and {LONGEST:g}")
    require_param(bool((low < high).any()), "{column_bounds}: low equals high in every column, so nothing could vary")
    return low, high


# Rows are looked for from so many times the longest norm that stands out.
_FAR: Final = 2.0
# The share of people that may lie there is a bound at this many deviations: it is too small once in 20 releases.
SURE: Final = 1.645
# Windows of so many cells, which are 4.4% wide, and numbers of rows up to this share of the people.
_WINDOWS: Final = (1, 4, 16, 64)
_LARGEST_SHARE, _NUMBERS = 0.1, 13
# Released numbers are kept to so many digits, so that the arithmetic of a machine does not show.
_DIGITS: Final = 4


@final
class Outliers(NamedTuple):
    """Rows longer than the norm `beyond`: at most the share `most` of the people has them, with 95% confidence.

    The release is so many times as likely (`odds`) if a group of rows lies there than if none does. Most likely it is of a
    `share` of the people, about as long as `norm`.
    """

    beyond: float
    most: float
    odds: float
    share: float
    norm: float

    @classmethod
    def read(cls, plain: object) -> "Outliers | None":
        """The same from five numbers, named or in order, of a file that may have been edited; None if they can be no such thing.

        >>> Outliers.read([8.0, 0.01, 0.5, 0.001, 500.0]).norm, Outliers.read([8.0, 2.0, 0.5, 0.001, 500.0])
        (500.0, None)
        """
        if isinstance(plain, Mapping):
            plain = [plain.get(name) for name in cls._fields]
        if not isinstance(plain, list | tuple) or len(plain) != len(cls._fields):
            return None
        if not all(isinstance(number, int | float) and 0 < number < math.inf for number in plain):
            return None
        outliers = cls(*map(float, plain))
        return outliers if outliers.most <= 1 and outliers.share <= 1 and outliers.beyond <= outliers.norm else None

    def over(self, unit: float) -> "Outliers":
        """The same in another unit."""
        return self._replace(beyond=self.beyond / unit, norm=self.norm / unit)


def outliers_in(released: Array, tails: TailCounts, *, noise: float, longest: float) -> Outliers | None:
    """What a release of A h, (m,), with `noise` on each entry says of rows far beyond the `longest` norm that its `tails` show.

    None where they show none, no cell lies beyond, or no noise could hide rows. Free post-processing.

    Proof of the odds. Let J cells lie beyond, from the top. A is lower triangular, so the first J entries of A h depend on their
    counts alone: without rows there, they are noise. With s rows spread evenly over the cells of a window, their mean is s v with
    v the average of these columns of A, and the ratio of the two densities is exp((s <y, v> - s^2 |v|^2 / 2) / noise^2). The odds
    are its average over windows and numbers s. Their expectation without such rows is one, so by Markov's inequality odds of c or
    more come once in c releases at most; they come far less often.

    >>> from eigenveil.tasks.levels import norm_cells, read_tails
    >>> cells, rng = norm_cells(1.0, 1e6, per_doubling=16), np.random.default_rng(0)
    >>> root = np.cumprod(np.concatenate([[1.0], (2 * np.arange(1, cells.count) - 1) / (2 * np.arange(1, cells.count))]))
    >>> def read(far):
    ...     counts = np.zeros(cells.count)
    ...     counts[cells.count - 1 - cells.place(np.array([2.0, 5000.0]))] = 10_000, far
    ...     released = np.convolve(counts, root)[: cells.count] + 50 * rng.standard_normal(cells.count)
    ...     (tails,) = read_tails(released, noise=50.0, cells=cells, people=None)
    ...     return outliers_in(released, tails, noise=50.0, longest=2.0)
    >>> found = read(200)
    >>> found.odds > 10, 4000 < found.norm < 6000, 0.01 < found.share < 0.03, read(0).odds < 2
    (True, True, True, True)
    """
    edges, people = tails.cells.edges, tails.people
    first = int(np.searchsorted(edges, _FAR * longest))
    cells = len(edges) - first
    if noise <= 0 or longest <= 0 or people <= 1 or cells < 1:
        return None
    root, observed = _root(cells), released[:cells]
    # All of them together: the sum of the counts from the top down to that edge.
    error = noise * math.sqrt(float(root @ root))
    max_people = max(float(root[::-1] @ observed), 0.0) + SURE * error
    products = np.correlate(np.concatenate([observed, np.zeros(cells - 1)]), root, mode="valid")
    summed = np.concatenate([[0.0], np.cumsum(products)])
    sizes = np.geomspace(1.0, max(2.0, _LARGEST_SHARE * people), _NUMBERS)
    likely, windows = [], []
    for width in _WINDOWS:
        if width > cells:
            break
        starts = np.arange(0, cells - width + 1, max(1, width // 4))
        product = (summed[starts + width] - summed[starts]) / width
        square = _squares(cells, width)[cells - 1 - starts]
        logs = (np.outer(product, sizes) - np.outer(square, np.square(sizes) / 2)) / noise**2
        likely.append(logs - math.log(len(starts)))
        windows += [(int(start), width) for start in starts]
    logs = np.concatenate(likely) - math.log(len(likely) * _NUMBERS)
    top = float(logs.max())
    weights = np.exp(logs - top)
    # Beyond this the logarithm says enough.
    odds = math.exp(min(top + math.log(float(weights.sum())), 100.0))
    best = int(weights.sum(axis=1).argmax())
    count = float(weights[best] @ sizes / weights[best].sum())
    start, width = windows[best]
    # The middle of the window. Cells are counted from the top, and the first one has no upper end.
    index = len(edges) - 1 - (start + width // 2)
    norm = float(edges[max(index, first)])
    numbers = (float(edges[first]), min(1.0, max_people / people), odds, count / people, norm)
    return Outliers.read([float(f"{number:.{_DIGITS}g}") for number in numbers])


@lru_cache(maxsize=8)
def _root(cells: int) -> Array:
    """The first column of A, whose other columns are this one moved down."""
    steps = np.arange(1, cells)
    column: Array = np.cumprod(np.concatenate([[1.0], (2 * steps - 1) / (2 * steps)]))
    column.flags.writeable = False
    return column


@lru_cache(maxsize=32)
def _squares(cells: int, width: int) -> Array:
    """The squared norm of the average of `width` columns of A, by how many entries are left below the first of them, less one."""
    column = np.convolve(_root(cells), np.full(width, 1 / width))[:cells]
    squares: Array = np.cumsum(np.square(column))
    squares.flags.writeable = False
    return squares
