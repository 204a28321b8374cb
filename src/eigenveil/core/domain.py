"""Where rows are clipped: `Domain`, the public ball that every row is brought into before any product or sum.

`Domain.whole` clips dense rows and `Domain.to_grid_sparse` sparse ones. Entries are clipped to column bounds. A public or already
released center is subtracted, and a public scale divides. Then rows of larger norm than the radius are scaled down to it. All
of this happens to the row itself, before any product. Subtracting the excess of a huge row from a finished sum would leave
rounding errors far above the stated sensitivity. Only the center of sparse rows is subtracted from finished sums, and only
while it is near zero (`Domain.require_near`).

Clipped rows lie on a public grid inside the ball: every entry is a whole number of `Domain.unit`. Sums over rows are then sums
of whole numbers, which do not depend on order, blocks, threads or machines (`eigenveil.core.whole`). A clipped row depends on
that row alone, to the last bit. Its norm is summed over its own entries, in an order that the number of entries decides. Where
a domain claims no privacy it has no grid, and rows are clipped in `eigenveil.privacy.floating`.

`MissingPolicy` says which entries count as missing, and every sum over rows asks this one place. A missing entry is NaN. Whether
a table may have any is a public fact that the caller declares with a rule, and nothing that an observer sees depends on where
they are. `Domain` puts a missing entry at the center, so that it adds nothing to any sum, or at a public value. Besides the sums,
`bounded_observed` releases how many people have each entry, so that sums can be divided by it.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.rows import Block, sparse_times
from eigenveil.core.threads import Array, vector_norm
from eigenveil.core.unit import Neighbours, gram_sensitivity, gram_times_sensitivity, sum_sensitivity, trace_sensitivity
from eigenveil.errors import require

__all__ = [
    "FARTHEST",
    "LARGEST",
    "SCORE",
    "SCORE_BITS",
    "SHIFT",
    "SMALLEST",
    "SQUARABLE",
    "Domain",
    "MissingPolicy",
    "Pair",
    "Region",
    "Scored",
    "SparseBlock",
    "center_scores",
    "clip_factors",
    "row_sums",
    "squared_norms",
    "unit_of",
]

Rule = Literal["counts", "groups", "drop", "fill"]
_RULES: Final = ("counts", "groups", "drop", "fill")


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MissingPolicy:
    """Which entries of a row count as missing, and what is counted of the others.

    Columns with the same number in `group`, (d,), go together: if one of them is missing in a row, all of them count as missing
    in that row. With "counts" every column is a group of its own. With "groups" several columns are one, such as those of a
    questionnaire. With "drop" all are, so that an incomplete row counts as nothing. With "fill" nothing is missing any more:
    `values`, (d,), public, take the place of missing entries. With `less_half`, counts are taken less half of the people.

    >>> gaps = MissingPolicy.grouped(np.array([0, 0, 1]))
    >>> gaps.there(Block(np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]]))).astype(int).tolist()
    [[0, 1], [1, 1]]
    """

    rule: Rule
    group: NDArray[np.int64]
    values: Array | None = None
    less_half: bool = False

    def __post_init__(self) -> None:
        require(self.rule in _RULES, f"the rule of gaps must be one of {', '.join(_RULES)}, got {self.rule!r}")
        require((self.values is not None) == (self.rule == "fill"), "only the rule fill has public values")
        require(not self.less_half or self.divides, "only counts of entries are taken less half of the people")
        # The "or" over each group in `_lost` is wrong for a group without columns, so there must be none.
        groups = np.unique(self.group)
        require(
            self.group.ndim == 1 and np.array_equal(groups, np.arange(len(groups))),
            "groups of columns must be numbered from zero without a break",
        )
        if self.values is not None:
            require(self.values.shape == self.group.shape, "there must be one public value for each column")
            require(bool(np.isfinite(self.values).all()), "public values for missing entries must be finite")

    @classmethod
    def counted(cls, dim: int) -> "MissingPolicy":
        """Each of `dim` columns by itself."""
        return cls(rule="counts", group=np.arange(dim))

    @classmethod
    def grouped(cls, group: NDArray[np.int64]) -> "MissingPolicy":
        """Groups of columns, by the number of each column's group, (d,)."""
        return cls(rule="groups", group=np.asarray(group, dtype=np.int64))

    @classmethod
    def dropped(cls, dim: int) -> "MissingPolicy":
        """Incomplete rows of `dim` columns count as nothing."""
        return cls(rule="drop", group=np.zeros(dim, dtype=np.int64))

    @classmethod
    def filled(cls, values: Array) -> "MissingPolicy":
        """These public values, (d,), take the place of missing entries."""
        return cls(rule="fill", group=np.zeros(len(values), dtype=np.int64), values=np.array(values, dtype=np.float64))

    def under(self, neighbours: Neighbours) -> "MissingPolicy":
        """The same gaps, with the counts that have the least noise under this relation: see `sensitivity`.

        >>> [MissingPolicy.counted(2).under(neighbours).less_half for neighbours in (Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT)]
        [True, False]
        """
        return replace(self, less_half=self.divides and neighbours is Neighbours.ADD_REMOVE)

    def require_relation(self, neighbours: Neighbours) -> None:
        """Refuse counts whose sensitivity does not hold under this relation."""
        require(
            not self.less_half or neighbours is Neighbours.ADD_REMOVE,
            f"counts less half of the people are for add/remove, and not for {neighbours.value!r}",
        )

    @property
    def drops(self) -> bool:
        """Whether incomplete rows count as nothing, so that even the number of rows that count is private."""
        return self.rule == "drop"

    @property
    def divides(self) -> bool:
        """Whether sums are divided by released counts."""
        return self.rule in ("counts", "groups")

    @property
    def groups(self) -> int:
        """How many groups g there are."""
        return int(self.group.max()) + 1

    @property
    def entries(self) -> int:
        """How many counts are released: one for each column, or one for each pair of groups; none if nothing is divided."""
        if not self.divides:
            return 0
        return self.groups if self.rule == "counts" else self.groups * (self.groups + 1) // 2

    def sensitivity(self) -> float:
        """Euclidean sensitivity of the observed counts: the root of their number, for all three person-level relations.

        Proof. With "counts", a row adds its indicator m in {0, 1}^g, and with "groups" the upper triangle of m m^T. In both
        cases it is a vector of c zeros and ones, c = `entries`. A person with several rows adds an average of such vectors,
        whose entries lie in [0, 1]; weights are rounded down, so that they add up to at most one. Adding, removing or zeroing
        a person moves each of c counts by at most 1, and replacing one moves each within [0, 1], so by at most 1 again. All c
        together move by at most sqrt(c). Which entries are missing may depend on anything about the person: nothing was
        assumed of m.

        With `less_half` it is half of that, under add/remove only. Every row adds m less a half in all of c places. A person
        whose weights add up to W <= 1 adds entries between -W / 2 and W / 2, so adding or removing them moves each by at most a
        half. Half of the people, who are counted anyway, is added again after the release (`eigenveil.tasks.fit.gaps.Rates`).
        Where a person is zeroed or replaced, an entry may go from one end to the other, and nothing is gained.

        Under add/remove the number of people may go along as one more entry. Each has a share of its own
        (`eigenveil.tasks.Totals`).

        >>> MissingPolicy.counted(9).sensitivity(), MissingPolicy.grouped(np.array([0, 0, 1, 1, 2, 2, 2])).sensitivity() ** 2
        (3.0, 6.0...)
        """
        root = math.sqrt(self.entries)
        # Rounded up: a root that is rounded down would be exceeded by its last bit.
        root = root if math.isqrt(self.entries) ** 2 == self.entries else math.nextafter(root, math.inf)
        return root / 2 if self.less_half else root

    def gone(self, values: Any) -> NDArray[np.bool_]:
        """Which entries of dense rows, (b, d), count as missing, with the rest of their group."""
        missing: NDArray[np.bool_] = np.isnan(values)
        return missing if self.rule in ("counts", "fill") else self._lost(missing)[:, self.group]

    def there(self, block: Block) -> NDArray[np.bool_]:
        """Which groups, (b, g), each row of a block has."""
        if not block.sparse:
            missing = np.isnan(block.values)
            return ~(missing if self.rule == "counts" else self._lost(missing))
        matrix = block.values
        # What is not stored is a zero and no gap, so only stored entries can be missing.
        present = np.ones((len(block), self.groups), dtype=bool)
        stored = np.isnan(matrix.data)
        lines = np.repeat(np.arange(len(block)), np.diff(matrix.indptr))
        present[lines[stored], self.group[matrix.indices[stored]]] = False
        return present

    def kept(self, block: Block) -> NDArray[np.bool_]:
        """Which rows of a block, (b,), count at all: with "drop" the complete ones, otherwise all."""
        return self.there(block)[:, 0] if self.drops else np.ones(len(block), dtype=bool)

    def _lost(self, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which groups, (b, g), lack an entry."""
        # Columns of one group lie side by side in this order, and one pass over them takes the "or" of each group.
        order = np.argsort(self.group, kind="stable")
        starts = np.searchsorted(self.group[order], np.arange(self.groups))
        return np.asarray(np.logical_or.reduceat(missing[:, order], starts, axis=1))


# Squares of bounds must neither overflow nor underflow, or a norm computed in floating point would mean nothing.
SMALLEST, LARGEST = 1e-100, 1e100
# Entries are clipped to this where squaring them would overflow. A row this large only has a direction, and keeps most of it.
SQUARABLE = 1e140
# How far from zero sparse rows may be centered, in radii.
FARTHEST = 100.0
# A radius has between 2^16 and 2^17 units. Products of rows then have 34 bits, and 2^19 of them add up exactly in float64.
_UNIT_BITS = 17
# Keeps a rounded row inside the ball: its norm and its factor are computed far more precisely than this.
_INSIDE = 1 - 2.0**-44
# Scores have this many whole numbers to a unit. They then have 27 bits, and 2^9 products with rows add up exactly.
SCORE = 2.0**10
SCORE_BITS = 27
# A person with more than 2^20 rows has so little weight in each that the rows count as zero.
_LIGHTEST = 2.0**-20
# The most, relatively, that rounding the basis of a product, scores of sparse rows and a `Symmetric` may add to a sensitivity.
_ROUNDED = 1 + 2.0**-18
# A few rows at a time stay in the inner cache while they are centered, measured and scaled.
_CACHED_ROWS = 256
# Numpy adds up rows of at least so many numbers in lanes, and shorter ones from the left.
_LANES = 8
# Sparse rows are scaled by whole multiples of this, so that their center can be subtracted in whole numbers too.
SHIFT = 2.0**-24


@final
@dataclass(frozen=True, slots=True, eq=False)
class SparseBlock:
    """Bounded rows in the implicit form rows - outer(shift, center): sparse `rows`, (b, d), and `shift`, (b,).

    On the grid both hold whole numbers: `rows` of its unit, and `shift` of `SHIFT`.
    """

    rows: Any
    shift: Array


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pair:
    """What a block adds to the Gram matrix: left^T right, in units of `unit`, of whole rows, (b, d), dense or sparse.

    `shift`, (b,), is how much of the center is still to be subtracted from each sparse row, in whole numbers of `SHIFT`. It is
    None where there is no center.
    """

    left: Any
    right: Any
    unit: float
    shift: Array | None = None


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scored:
    """What a block adds to the Gram matrix times a basis: rows^T scores, in units of `unit`, all whole; `shift` as in `Pair`.

    On a basis of norm at most one, no score exceeds `largest` by more than a millionth of it.
    """

    rows: Any
    scores: Array
    unit: float
    largest: float
    shift: Array | None = None


class Region(ABC):
    """How rows of a table are clipped before any product, and how far neighbouring tables can then move their sums.

    A clipped row has `dim` columns and a norm of at most `radius`.
    """

    __slots__ = ()
    dim: int
    radius: float

    @property
    def gaps(self) -> MissingPolicy | None:
        """Which entries may be missing, None if rows have no gaps."""
        return None

    @property
    @abstractmethod
    def shifted_center(self) -> Array | None:
        """The center that is subtracted from the sums of sparse rows instead of from the rows, (d,), or None."""

    @property
    @abstractmethod
    def unit(self) -> float | None:
        """The power of two that rows for products are whole multiples of; None where no privacy is claimed."""

    @abstractmethod
    def whole(self, block: Block, *, unit: float, squared: bool = False, out: Array | None = None) -> Array:
        """The clipped rows, (b, d), of a dense block, in whole numbers of `unit`; in `out` if given."""

    @abstractmethod
    def to_grid_sparse(self, block: Block, *, unit: float, squared: bool = False) -> SparseBlock:
        """The clipped rows of a sparse block, in implicit form and in whole numbers."""

    @abstractmethod
    def squares(self, block: Block) -> Array:
        """The squared norm of each clipped row, (b,), from 0 to radius^2, times the row's weight."""

    def pair(self, block: Block, *, out: Array | None = None) -> Pair:
        """What the rows of a block add to the Gram matrix; dense rows in `out` if given."""
        unit = unit_of(self)
        if not block.sparse:
            rows = self.whole(block, unit=unit, squared=True, out=out)
            return Pair(left=rows, right=rows, unit=unit * unit)
        part = self.to_grid_sparse(block, unit=unit, squared=True)
        return Pair(left=part.rows, right=part.rows, unit=unit * unit, shift=None if self.shifted_center is None else part.shift)

    @abstractmethod
    def scored(self, block: Block, *, basis: Array, out: Array | None = None) -> Scored:
        """What the rows of a block add to the Gram matrix times `basis`, (d, p), whose entries are multiples of 2^-35.

        Dense rows are written to `out` if given.
        """

    def sum_sensitivity(self, neighbours: Neighbours) -> float:
        """Sensitivity of the sum of rows: B or 2 B, for rows in the ball of radius B (`eigenveil.core.unit`)."""
        return sum_sensitivity(self.radius, neighbours)

    def gram_sensitivity(self, neighbours: Neighbours) -> float:
        """Sensitivity of the Gram matrix: B^2 or sqrt(2) B^2."""
        return gram_sensitivity(self.radius, neighbours)

    def trace_sensitivity(self, neighbours: Neighbours) -> float:
        """Sensitivity of the total sum of squares: B^2."""
        return trace_sensitivity(self.radius, neighbours)

    @abstractmethod
    def gram_times_sensitivity(self, neighbours: Neighbours, *, basis: Array, basis_norm: float) -> float:
        """Sensitivity of the Gram matrix times a public `basis`, (d, p), of norm at most `basis_norm`."""


def unit_of(region: Region) -> float:
    """The unit of the region's grid. Where no privacy is claimed there is none, and this refuses."""
    if region.unit is None:
        raise ValueError("a domain that claims no privacy has no grid, and so no exact sums")
    return region.unit


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Domain(Region):
    """Clips x to w * ball((clip(x, low, high) - center) / scale), where ball(v) = v min(1, radius / ||v||).

    `center`, `scale`, `low` and `high` are (d,) in the units of the columns. `radius` is in scaled units, and infinite only where
    no privacy is claimed. With `claimed` false no privacy is claimed either, though rows are clipped.

    The weight w is 1. A person with m rows has w = 1/m in sums and 1/sqrt(m) in products. Whatever m is, the person then adds one
    to the count. They add a vector of norm at most the radius to the sum, and a matrix of trace at most radius^2 to the Gram
    matrix.

    With `gaps`, a missing entry of x is put at the center, so that it is zero in every clipped row, or at a public value. The
    norm is taken after this, so all of the above holds wherever entries are missing.

    >>> domain = Domain(dim=2, radius=1.0)
    >>> (domain.whole(Block(np.array([[3.0, 4.0], [0.1, 0.0]])), unit=domain.unit) * domain.unit).round(3).tolist()
    [[0.6, 0.8], [0.1, 0.0]]
    """

    dim: int
    radius: float
    center: Array | None = None
    scale: Array | None = None
    low: Array | None = None
    high: Array | None = None
    claimed: bool = True
    gaps: MissingPolicy | None = None

    def __post_init__(self) -> None:
        # A text with numbers takes longer to write than all that is asked here.
        if not (SMALLEST <= self.radius <= LARGEST or self.radius == math.inf):
            raise ValueError(f"a bound must lie between {SMALLEST} and {LARGEST}, got {self.radius}")
        require((self.low is None) == (self.high is None), "low and high column bounds go together")
        for name in ("center", "scale", "low", "high"):
            value = getattr(self, name)
            if value is None:
                continue
            require(value.shape == (self.dim,), f"{name} must have shape ({self.dim},), got {value.shape}")
            require(bool(np.isfinite(value).all()), f"{name} must be finite")
        if self.scale is not None:
            inside = (self.scale >= SMALLEST) & (self.scale <= LARGEST)
            require(bool(inside.all()), f"every scale must be positive, between {SMALLEST:g} and {LARGEST:g}")
        if self.low is not None and self.high is not None:
            require(bool((self.low <= self.high).all()), "every low column bound must be at most the high one")
        if self.gaps is not None:
            require(self.gaps.group.shape == (self.dim,), f"gaps must have a group for each of {self.dim} columns")

    @property
    def unit(self) -> float | None:
        """The grid's unit, a power of two: the radius is 2^16 to 2^17 of them. None where no privacy is claimed.

        >>> Domain(dim=2, radius=1.0).unit == 2.0**-16, Domain(dim=2, radius=math.inf).unit
        (True, None)
        """
        if not self.claimed or math.isinf(self.radius):
            return None
        return 2.0 ** (math.frexp(self.radius)[1] - _UNIT_BITS)

    def whole(self, block: Block, *, unit: float, squared: bool = False, out: Array | None = None) -> Array:
        """Clip the rows of a dense block and round them onto the grid: (b, d), in whole numbers of `unit`; in `out` if given.

        Rounding to whole numbers moves a row by at most sqrt(d) / 2 units, so rows are first clipped to a norm that is smaller
        by that. A row of weight w then has a norm of at most w radius, or sqrt(w) radius where it is `squared`.
        """
        rows, squares = self.measured(block, np.empty(block.values.shape) if out is None else out)
        # The clipping itself: one factor for each row, at most one over the unit, before anything is multiplied or summed.
        rows *= self.to_grid(squares, block, unit, np.sqrt(self.dim) / 2, squared)[:, None]
        return np.rint(rows, out=rows)

    def to_grid(self, squares: Array, block: Block, unit: float, rounding: Any, squared: bool) -> Array:
        """The factors, (b,), that clip rows of these squared norms, so that they are inside the ball after rounding, in units."""
        max_factor, room = self.limits(block.weights, unit, rounding, squared)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(clip_factors(np, squares, max_factor, room))

    def limits(self, weights: Array | None, unit: float, rounding: Any, squared: bool) -> tuple[Any, Any]:
        """The largest factor of a row, and the norm that it may have inside the ball, less what rounding can add; in units."""
        root: Any = 1.0
        if weights is not None:
            root = np.where(weights >= _LIGHTEST, np.sqrt(weights) if squared else weights, 0.0)
        return root / unit, np.maximum(self.radius / unit * _INSIDE * root - rounding, 0.0)

    def measured(self, block: Block, out: Array) -> tuple[Array, Array]:
        """The centered and scaled rows of a dense block, written to `out`, (b, d), and their squared norms, (b,).

        Each norm is summed over its own row, pairwise, in an order that depends on the number of columns alone.
        """
        raw, rows = block.values, out[: len(block)]
        if self.gaps is not None and self.gaps.values is not None:
            raw = np.where(self.gaps.gone(raw), self.gaps.values, raw)
        if self.low is not None and self.high is not None:
            np.clip(raw, self.low, self.high, out=rows)
            raw = rows
        # No overflow warning: it would reveal something about one person.
        with np.errstate(over="ignore"):
            if self.center is not None:
                # Casting inside the subtraction keeps integer columns from overflowing.
                np.subtract(raw, self.center, out=rows, dtype=np.float64)
            elif raw is not rows:
                rows[...] = raw
            if self.scale is not None:
                rows /= self.scale
            if self.gaps is not None and self.gaps.values is None:
                # After centering: at zero, an entry adds nothing to any sum. Before the norm: NaN has none.
                np.copyto(rows, 0.0, where=self.gaps.gone(block.values))
            squares = squared_norms(rows)
            huge = ~np.isfinite(squares)
            if huge.any() and math.isfinite(self.radius):
                rows[huge] = np.clip(rows[huge], -SQUARABLE, SQUARABLE)
                squares[huge] = squared_norms(rows[huge])
        return rows, squares

    def to_grid_sparse(self, block: Block, *, unit: float, squared: bool = False) -> SparseBlock:
        """Clip the rows of a sparse block, in whole numbers: R unit - s SHIFT c^T with the center c, where there is one.

        Only stored entries are rounded. Where there is a center, its factor is rounded down to a multiple of `SHIFT`, so that
        sums of s are whole. A row whose norm is 2^24 times the radius becomes zero.
        """
        import scipy.sparse as sp

        # Zeros that are not stored stay zero, so rounding moves only stored entries.
        matrix, (values, norms) = block.values, self.stored_norms(block)
        stored = np.diff(matrix.indptr)
        factor = self.to_grid(norms, block, unit, np.sqrt(stored) / 2, squared) * self.counting(block)
        shift = np.zeros(len(block))
        if self.shifted_center is not None:
            # Rounded down, never up: a larger factor would put the row outside the ball.
            shift = np.floor(factor * (unit / SHIFT))
            factor = shift * (SHIFT / unit)
        data = np.rint(values * np.repeat(factor, stored))
        return SparseBlock(sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape), shift)

    def stored_norms(self, block: Block) -> tuple[Array, Array]:
        """The stored entries of a sparse block in scaled units, and an upper bound on each row's squared norm around the center.

        The squared norm is the sum of the stored entries' (x_j - c_j)^2 plus the center's squares in the columns that are not
        stored. All terms are positive. It is rounded up by as much as the center's own rounding can hide.
        """
        self.require_near()
        matrix = block.values
        values = self.stored(block)
        if math.isfinite(self.radius) and len(values) and max(values.max(), -values.min()) > SQUARABLE:
            values = np.clip(values, -SQUARABLE, SQUARABLE)
        center = self.shifted_center
        if center is None:
            return values, row_sums(np.square(values), matrix.indptr)
        weight = float(np.add.reduce(np.square(center)))
        centers = center[matrix.indices]
        norms = row_sums(np.square(values - centers), matrix.indptr)
        stored_weight = row_sums(np.square(centers), matrix.indptr)
        norms += np.maximum(weight - stored_weight, 0.0) + 4 * self.dim * np.finfo(float).eps * weight
        return values, norms

    def stored(self, block: Block) -> Array:
        """The stored entries of a sparse block in scaled units, within the column bounds; missing ones are at the center.

        Whole groups of columns are not supported, because the zeros of a group that is missing would have to be stored.
        """
        gaps, columns = self.gaps, block.values.indices
        values = np.asarray(block.values.data, dtype=np.float64)
        if gaps is not None:
            require(gaps.rule != "groups", "sparse rows cannot have gaps by groups of columns")
            missing = np.isnan(values)
            if gaps.values is not None:
                values = np.where(missing, gaps.values[columns], values)
        if self.low is not None and self.high is not None:
            values = np.clip(values, self.low[columns], self.high[columns])
        with np.errstate(over="ignore"):
            values = values if self.scale is None else values / self.scale[columns]
        if gaps is not None and gaps.values is None:
            center = self.shifted_center
            values = np.where(missing, 0.0 if center is None else center[columns], values)
        return np.asarray(values)

    def counting(self, block: Block) -> Any:
        """One for each sparse row that counts and zero for others, or one for all."""
        return self.gaps.kept(block) if self.gaps is not None and self.gaps.drops else 1.0

    def squares(self, block: Block) -> Array:
        if block.sparse:
            square_norms = self.stored_norms(block)[1] * self.counting(block)
        else:
            square_norms = np.empty(len(block))
            scratch = np.empty((min(len(block), _CACHED_ROWS), self.dim))
            for start in range(0, len(block), _CACHED_ROWS):
                piece = block.piece(start, _CACHED_ROWS)
                square_norms[start : start + len(piece)] = self.measured(piece, scratch)[1]
        inside: Array = np.minimum(square_norms, self.radius**2)
        return inside if block.weights is None else inside * block.weights

    def scored(self, block: Block, *, basis: Array, out: Array | None = None) -> Scored:
        """Rows and their scores, in whole numbers of 2^-10 units, rounded towards zero: of norm at most radius ||basis||_2.

        A row in whole units and a basis in multiples of 2^-35 multiply without rounding: all sums are below 2^17 2^35 = 2^52.
        """
        unit = unit_of(self)
        if not block.sparse:
            rows = self.whole(block, unit=unit, squared=True, out=out)
            # Exact in any order: whole rows times multiples of 2^-35 stay below 2^53.
            scores = rows @ basis
            scores *= SCORE
            return Scored(rows=rows, scores=np.trunc(scores, out=scores), unit=unit * (unit / SCORE), largest=2.0**SCORE_BITS)
        part, center = self.to_grid_sparse(block, unit=unit, squared=True), self.shifted_center
        shift, scores = None if center is None else part.shift, np.empty((len(block), basis.shape[1]))
        drag = None if center is None else center_scores(center, basis)

        def put(chunk: slice, product: Array) -> None:
            if drag is not None:
                product -= np.outer(part.shift[chunk] * (SHIFT / unit), drag)
            product *= SCORE
            np.trunc(product, out=scores[chunk])

        sparse_times(part.rows, basis, put)
        return Scored(rows=part.rows, scores=scores, unit=unit * (unit / SCORE), largest=2.0**SCORE_BITS, shift=shift)

    def require_near(self) -> None:
        """Refuse to center sparse rows on a point far outside their ball.

        Their center is subtracted from finished sums. That loses about n eps (||center|| / radius)^2 of the sensitivity to
        rounding: nothing at a ratio of 100, all of it at 1e6.
        """
        center = self.shifted_center
        if center is not None and math.isfinite(self.radius):
            require(
                vector_norm(center) <= FARTHEST * self.radius,
                f"the center of sparse rows is more than {FARTHEST:g} times their bound away from zero, and rounding would "
                "break the guarantee. Pass a larger bound, a center nearer to zero, or dense rows",
            )

    def gram_times_sensitivity(self, neighbours: Neighbours, *, basis: Array, basis_norm: float) -> float:
        """The sensitivity for rows in the ball, and a little more, because basis and scores are rounded onto their grids.

        Proof. The basis is off by at most sqrt(d p) 2^-36. Scores are rounded towards zero. The rows x_j of a person, of
        weight w_j, add sum_j x_j s_j^T with |s_j| <= |Z^T x_j|. Its norm is at most sum_j |x_j| |s_j| <= radius^2 ||Z||_2:
        rounding scores adds nothing to what one person adds.

        Under replace-one the semi-definite part is as without rounding. Each of the two people is off by at most
        sum_j |x_j| sqrt(p) v, with v the unit of scores. With m rows of weight 1 / m that is sqrt(m) radius sqrt(p) v, and m is
        at most 2^20.
        """
        dim, width = basis.shape
        norm = basis_norm + math.sqrt(dim * width) * 2.0**-36
        exact = gram_times_sensitivity(self.radius, neighbours, basis_norm=norm) * _ROUNDED
        if neighbours is not Neighbours.REPLACE_ONE or self.unit is None:
            return exact
        return exact + 2 * self.radius * math.sqrt(width / _LIGHTEST) * self.unit / SCORE

    @property
    def shifted_center(self) -> Array | None:
        if self.center is None or self.scale is None:
            return self.center
        return self.center / self.scale


def squared_norms(rows: Array) -> Array:
    """The squared norm of each of the dense `rows`, (b,): each is summed by itself, in the order of numpy's pairwise sum."""
    squares = np.square(rows)
    if squares.shape[1] >= _LANES:
        return np.asarray(np.add.reduce(squares, axis=1))
    # A few numbers are added one by one. Whole columns at a time take a quarter as long.
    total = np.zeros(len(rows))
    for column in squares.T:
        total += column
    return total


def clip_factors(xp: Any, squares: Any, max_factor: Any, room: Any) -> Any:
    """min(most, room / norm) for rows of these squared norms, (b,), in arrays of the library `xp`.

    One formula for memory and for devices: square roots and quotients are rounded correctly everywhere, so the bits agree.
    """
    factor = xp.minimum(max_factor, room / xp.sqrt(squares))
    # A zero row stays zero whatever its factor, and where there is no room inside the ball every row becomes zero.
    return xp.where(squares > 0, factor, xp.zeros_like(factor))


def center_scores(center: Array, basis: Array) -> Array:
    """The scores, (p,), of a center, (d,), on a basis, (d, p), added up in one order however many threads BLAS has."""
    return np.asarray(np.einsum("i,ij->j", center, basis))


def row_sums(values: Array, indptr: Any) -> Array:
    """Sums of consecutive runs of `values`, one run per row; empty rows give zero."""
    totals = np.zeros(len(indptr) - 1)
    filled = np.flatnonzero(np.diff(indptr))
    if len(filled):
        totals[filled] = np.add.reduceat(values, indptr[filled])
    return totals
