"""The search for the units of columns: where each column lies and how much it spreads, privately and inside one fit.

Entries of every column are counted in public logarithmic cells, all columns in one release. Cells are fine near their center and
coarse far from it. Each of four rounds therefore counts around the medians that the round before has found. The units are then
spreads of the columns, in which a row has a norm of about sqrt(d), and no row bound has to be searched for.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

import numpy as np

from eigenveil.core.counts import Bins, tails_sensitivity
from eigenveil.core.domain import FARTHEST, LARGEST, SMALLEST, Domain
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows, total_of
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.floating import FloatSquaresWork
from eigenveil.tasks.base import Question, require_step
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.search import Center, Search, require_people
from eigenveil.tasks.levels import TailCounts, cells_in_any_unit, mirrored, read_tails
from eigenveil.tasks.totals import Totals

__all__ = ["ENTRIES", "ExactUnits", "ScaleSearch", "are_flat", "deviations", "min_people_for_scale", "renormalised", "spread_of"]

# The sizes of entries that are told apart, of either sign: in the same steps as norms.
ENTRIES: Final = mirrored(cells_in_any_unit())
# Below this number of people times mu over sqrt(d), noise hides the spread of columns (docs/decisions/0026-private-bounds.md).
_ENOUGH: Final = 90.0
# The step of the mean, after the rounds of counting.
_MEAN: Final = 4
# The share of people beyond each of the two quantiles that the spread is read off, and the largest where noise hides that many.
_TAIL: Final = 0.2
_NARROWEST: Final = 0.35
# Of a normal column, the largest h sqrt(P(|x| > h)), in standard deviations.
_WEAK: Final = 0.575
# A column is flat if its spread is at most so many times the cell that it lies in.
_CELLS: Final = 1.5
# Counts below this many standard deviations may be noise alone.
_SURE: Final = 2.5
# A released variance below this many deviations of its noise is taken for that much.
_VARIANCE: Final = 3.0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScaleSearch(Search):
    """Find the medians and spreads of all columns in four rounds, and then the mean, in a ball in these units.

    With the mean comes the number of people, unless it is public.
    """

    what: ClassVar[str] = "units"
    cells: ClassVar[Bins] = ENTRIES
    counts_columns: ClassVar[bool] = True

    def start(self) -> Center:
        """The origin. Refuses a public number of people that is too small, before anything is spent."""
        if self.people is not None:
            self._require_people(self.people)
        return self.begin()

    def require_question(self, question: Question) -> None:
        Search.require_question(self, question)
        shape = question.arrays[0].shape
        # Medians are known by then, so the sum is around a point.
        require(
            self.counts(question.step) or shape == (self.bounds.dim,), f"center must have shape ({self.bounds.dim},), got {shape}"
        )

    def counts(self, step: int) -> bool:
        return step < _MEAN

    def ball(self, question: Question) -> RowBounds:
        return self.bounds.in_units(question.arrays[1])

    def ball_of(self, state: Center) -> Array | None:
        return state.scale

    def require_ball(self, array: Array) -> None:
        # The domain checks that units are finite and positive.
        require(array.shape == (self.bounds.dim,), "there must be one unit for each column")

    def label(self, question: Question) -> str:
        step = question.step
        return f"columns, round {step + 1}" if self.counts(step) else f"mean{self._also(step)}"

    def update(self, state: Center, released: Array) -> Center:
        return self._counted(state, released) if self.counts(state.steps) else replace(self.moved(state, released)[0], far=False)

    def result(self, state: Center) -> Center | None:
        return state if state.steps == len(self.split.mean) else None

    def _counted(self, state: Center, released: Array) -> Center:
        sensitivity = tails_sensitivity(ENTRIES.count, self.neighbours, columns=self.bounds.dim)
        noise = self.noise(sensitivity, state.steps)
        apart = self.bounds.gaps is not None and self.bounds.gaps.divides
        tails = read_tails(released, noise=noise, cells=ENTRIES, people=self.people, apart=apart)
        # Where entries are missing, about as many people as have one, on average.
        people = float(np.mean([column.people for column in tails]))
        if state.steps == 0:
            # One standard deviation is allowed for, since nothing can be asked twice.
            slack = tails[0].people_error
            self._require_people(people, slack=slack, spent=self.share(Question(0)))
        # The largest of the errors of d columns is about sqrt(2 ln d) standard deviations.
        sure = math.sqrt(_SURE**2 + 2 * math.log(self.bounds.dim))
        estimates = [spread_of(column, sure=sure) for column in tails]
        medians, spreads, cells = (np.array(numbers) for numbers in zip(*estimates, strict=True))
        # Entries were counted around the old center, so the medians found are offsets from it.
        center = medians if state.center is None else state.center + medians
        return replace(
            state,
            center=center,
            people=self.people if self.people is not None else people,
            steps=state.steps + 1,
            scale=self._units(spreads, cells, center),
        )

    def _units(self, spreads: Array, cells: Array, center: Array) -> Array:
        """The units of columns of these spreads, (d,), whose entries cannot be told apart within these cells, (d,)."""
        # Flat columns keep unit one. One that lies far out is placed to within a cell only. In a unit smaller than that all rows
        # would be clipped to this column, so it gets the next power of two.
        flat = np.exp2(np.ceil(np.log2(np.maximum(cells, 1.0))))
        # No spread is exactly a power of two, so that flat columns can be told from others.
        units = np.where(spreads == 0, flat, np.where(are_flat(spreads), np.nextafter(spreads, np.inf), spreads))
        if not self.bounds.sparse:
            return units
        # Sparse rows must not be centered far from zero compared with their bound. The mean may move by the bound once more.
        nearest = math.sqrt(self.bounds.dim) / ((FARTHEST - 2) * self.bounds.row_bound)
        return np.maximum(units, np.abs(center) * nearest)

    def _require_people(self, people: float, *, slack: float = 0.0, spent: float = 0.0) -> None:
        dim = self.bounds.dim
        require_people(
            people,
            self.multiplier,
            slack=slack,
            spent=spent,
            min_n=min_people_for_scale(dim, self.multiplier),
            what=f"units for {dim} columns",
            instead="give a {scale}",
        )


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ExactUnits(Search):
    """The mean and the standard deviation of every column, as scikit-learn's `StandardScaler` has them. NOT PRIVATE.

    It takes the place of `ScaleSearch` where a fit claims no privacy: the mean in the first step, squares around it in the
    second.
    """

    steps: ClassVar[int] = 2

    def require_question(self, question: Question) -> None:
        require_step(question, steps=self.steps, arrays=min(len(question.arrays), 1))
        self._domain(question)

    def private(self, question: Question, rows: Rows) -> Bounded:
        """The sums in one vector, or the sum of squares of each column, (d,). No sensitivity is claimed for either."""
        if question.step == 0:
            return self.totals(question).private(Question(), rows)
        return Bounded(total_of(rows, FloatSquaresWork(self._domain(question))), math.inf)

    def sensitivity(self, question: Question) -> float:
        return math.inf

    def shape(self, question: Question) -> tuple[int, ...]:
        return self.totals(question).shape(Question()) if question.step == 0 else (self.bounds.dim,)

    def label(self, question: Question) -> str:
        return "mean" if question.step == 0 else "squares of columns"

    def share(self, question: Question) -> float:
        """Nothing is charged, so any number will do."""
        return 1.0

    def update(self, state: Center, released: Array) -> Center:
        totals = None
        if state.steps == 0:
            totals = self.totals(self.ask(state)).update(None, released)
            people = totals.count if state.people is None else state.people
            state = replace(state, people=people, observed=totals.observed)
        assert state.people is not None
        people = max(state.people, 1.0)
        rates = state.rates(self.bounds, multiplier=0.0, share=self.split.for_observed)
        if totals is not None:
            assert totals.sum is not None
            offset = (totals.sum if rates is None else totals.sum / rates.columns) / people
            return replace(state, steps=1, center=offset if state.center is None else state.center + offset)
        assert state.center is not None
        variances = (released if rates is None else released / rates.columns) / people
        return replace(state, steps=2, far=False, scale=deviations(variances, state.center, people=people))

    def result(self, state: Center) -> Center | None:
        return state if state.steps == self.steps else None

    def _domain(self, question: Question) -> Domain:
        center = question.arrays[0] if question.arrays else None
        return Domain(dim=self.bounds.dim, radius=math.inf, center=center, claimed=False, gaps=self.bounds.gaps)

    def totals(self, question: Question) -> Totals:
        return Totals(
            domain=self._domain(question),
            neighbours=self.neighbours,
            sum_weight=1.0,
            count_weight=float(self.people is None),
            observed_weight=self.split.for_observed,
        )


def deviations(variances: Array, mean: Array, *, people: float) -> Array:
    """Standard deviations, (d,), and one for a column that does not vary by more than rounding.

    >>> deviations(np.array([4.0, 1e-40]), np.array([0.0, 0.1]), people=100.0).tolist()
    [2.0000000000000004, 1.0]
    """
    eps = float(np.finfo(np.float64).eps)
    # The bounds of scikit-learn's `StandardScaler`: what two passes over a constant column leave.
    constant = variances <= people * eps * variances + np.square(people * mean * eps)
    spreads = np.sqrt(variances)
    # There is no privacy here, so an error may depend on rows. Other units would leave such a column as it is, without a word.
    require(
        bool((constant | ((spreads >= SMALLEST) & (spreads <= LARGEST / 2))).all()),
        f"a column has a standard deviation beyond {SMALLEST:g} to {LARGEST / 2:g}, and no such unit can be divided by. "
        "Multiply it by a power of ten first",
    )
    # By the last bit away from a power of two, so that flat columns can be told from others: see `are_flat`.
    return np.where(constant, 1.0, np.nextafter(spreads, np.inf))


def min_people_for_scale(dim: int, multiplier: float) -> float:
    """About how many people units of `dim` columns can be found among, if this is the noise on a total over its sensitivity."""
    return _ENOUGH * math.sqrt(dim) * multiplier


def are_flat(units: Array) -> Array:
    """Which of the units that were found, (d,), belong to columns that hardly vary: one, or a larger power of two."""
    return np.asarray((units >= 1) & (np.frexp(units)[0] == 0.5))


def spread_of(tails: TailCounts, *, sure: float = _SURE) -> tuple[float, float, float]:
    """The median of a column, from the center of the cells, its spread, and the size of what it cannot be told from.

    The spread is about a standard deviation, and zero where the column is flat, as far as can be told.

    The spread is the larger of two. The middle: (q.8 - q.2) / 1.68, as for a normal column. A weak moment, for columns that are
    mostly one value: the largest h sqrt(P(|x - median| > h)) / .575 that stands out of noise by `sure` standard deviations. If
    few people differ, and noise could hide them at some h and not at others, half as many deviations will do.

    >>> cells = Bins(np.array([-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0]))
    >>> beyond = np.array([100.0, 90.0, 70.0, 50.0, 30.0, 10.0, 0.0])
    >>> even = TailCounts(cells=cells, beyond=beyond, error=np.zeros(7), people=100.0, people_error=0.0)
    >>> median, spread, _ = spread_of(even)
    >>> abs(median) < 1e-6, round(spread, 1)
    (True, 1.8)
    """
    from scipy.special import ndtri

    edges, people = tails.cells.edges, tails.people
    # Few people have this column, and noise cancelled their count: its spread is unknown.
    if people <= 0:
        return 0.0, 0.0, 0.0
    # Counts fall with the edges. A hair of slope makes each count belong to one place only.
    falling = tails.beyond - np.linspace(0.0, 1e-9 * people, len(edges))

    def place(share: float) -> float:
        """The number that this share of people is beyond."""
        # Both are negated because `np.interp` needs numbers that grow.
        return float(np.interp(-share * people, -falling, edges))

    median = place(0.5)
    # Further in where noise could pass for a fifth of the people: it would put a quantile anywhere.
    tail = min(max(_TAIL, sure * float(tails.error.max()) / people), _NARROWEST)
    middle = (place(tail) - place(1 - tail)) / (-2 * float(ndtri(tail)))
    # Within one cell a column cannot be told from one that never varies.
    cell = int(np.clip(np.searchsorted(edges, median), 1, len(edges) - 1))
    smallest = _CELLS * float(edges[cell] - edges[cell - 1])
    sizes = edges[edges > smallest]
    above = np.interp(median + sizes, edges, tails.beyond, right=0.0)
    below = people - np.interp(median - sizes, edges, tails.beyond, left=people)
    # Counts above and below are added, and the sum has the errors of both.
    noise, others = sure * math.sqrt(2) * float(tails.error.max()), above + below
    if noise < float(others.max(initial=0.0)) < 2 * noise:
        # They may stand out at a tiny h by chance and not where they are. A unit this small would clip their rows to this column.
        noise /= 2
    share = np.clip((others - noise) / people, 0.0, 1.0)
    weak = float((sizes * np.sqrt(share)).max(initial=0.0)) / _WEAK
    spread = max(middle, weak)
    return median, spread if spread > smallest else 0.0, smallest


def renormalised(gram: Array, *, noise: float, people: float, flat: Array) -> tuple[Array, Array]:
    """A released Gram matrix of rows in found units, (d, d), in units that make the released variances one; and these, (d,).

    Free: it reads released numbers only. Found units are off by tens of percent, and variances are released much more precisely.
    One that is below three deviations of its `noise` is taken for that much. Columns in `flat` keep their unit.

    >>> matrix, units = renormalised(np.diag([400.0, 25.0]), noise=1.0, people=100.0, flat=np.array([False, False]))
    >>> matrix.tolist(), units.tolist()
    ([[100.0, 0.0], [0.0, 100.0]], [2.0, 0.5])
    """
    variances = np.maximum(gram.diagonal(), _VARIANCE * noise) / max(people, 1.0)
    units = np.where(np.logical_or(flat, variances <= 0), 1.0, np.sqrt(np.maximum(variances, 1e-300)))
    return gram / np.outer(units, units), units
