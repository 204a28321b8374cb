"""The search for an unknown row bound: norms, the mean, norms around it, the mean again, all inside one fit.

Norms are released as counts in public cells (`eigenveil.core.counts`), so every step is a sum and every protocol runs
it. The norm to clip at is chosen for the best answer that the released numbers promise, not at a fixed quantile: `clip_edge`.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal, final

import numpy as np

from eigenveil.core.counts import Bins, bounded_column_tails, bounded_tails, tails_sensitivity
from eigenveil.core.domain import FARTHEST, Domain
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows
from eigenveil.core.threads import vector_norm
from eigenveil.core.unit import Neighbours, gram_sensitivity, sum_sensitivity
from eigenveil.errors import TooFewPeople, require
from eigenveil.linalg import Array, expected_captured_variance, norm_edge
from eigenveil.tasks.base import Question, SumTask, require_step
from eigenveil.tasks.fit.bounds import Outliers, RowBounds, outliers_in
from eigenveil.tasks.fit.gaps import Rates, Split, observed_noise
from eigenveil.tasks.levels import TailCounts, cells_in_any_unit, read_tails
from eigenveil.tasks.totals import Totals

__all__ = [
    "NORMS",
    "PRICE",
    "BoundSearch",
    "Center",
    "CenterSearch",
    "Search",
    "clip_edge",
    "least_for_a_bound",
    "require_people",
]


# How a question says that there is no center: an array without coordinates.
_NOWHERE: Final = np.empty(0)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Center:
    """What a search has found so far, from released numbers alone."""

    center: Array | None  # The mean, (d,), in the units of the columns.
    people: float | None
    steps: int  # How many were taken.
    far: bool = True  # Another step is needed.
    bound: float | None = None  # The norm to clip at, as far as it is known.
    clipped: float | None = None  # The share of people beyond the bound.
    norms: tuple[float, ...] | None = None  # Of the last release, those that stand out from the noise (`TailCounts.seen`).
    outliers: Outliers | None = None  # What may lie beyond these norms.
    doubt: float = math.inf  # The likely error of the center, in units of norms.
    poor: bool = False  # The bound had to allow for the doubt.
    scale: Array | None = None  # Units of the columns, (d,). Of a flat column: 1, or a larger power of two.
    observed: Array | None = None  # Released counts of the entries that are there.

    def arrays(self) -> tuple[Array, ...]:
        """What a site must know of it: the center, the steps with the bound, and the units. `read` has the same order."""
        numbers = [float(self.steps)] if self.bound is None else [float(self.steps), self.bound]
        center = _NOWHERE if self.center is None else self.center
        return (center, np.array(numbers), *(() if self.scale is None else (self.scale,)))

    @classmethod
    def read(cls, arrays: tuple[Array, ...], bounds: RowBounds) -> tuple["Center", tuple[Array, ...]]:
        """The center in the first of these arrays, and the others."""
        require(len(arrays) >= 2, "the question must give the center and the steps it took")
        require(
            # The steps decide what the components may spend, so a site accepts only numbers that a search can take.
            arrays[1].shape == (1 + bounds.finds_bound,) and float(arrays[1][0]).is_integer(),
            "the question must give the number of steps in which the mean was found",
        )
        require(
            # The domain checks that they are positive and finite.
            not bounds.finds_scale or (len(arrays) >= 3 and arrays[2].shape == (bounds.dim,)),
            "the question must give the units that were found",
        )
        center, numbers, rest = arrays[0], arrays[1].tolist(), arrays[2:]
        where = cls(
            center=center if len(center) else None,
            people=None,
            steps=int(numbers[0]),
            far=False,
            bound=numbers[1] if bounds.finds_bound else None,
            scale=rest[0] if bounds.finds_scale else None,
        )
        return where, rest[1:] if bounds.finds_scale else rest

    def rates(self, bounds: RowBounds, *, multiplier: float, share: float) -> Rates | None:
        """The rates of entries, None as long as they are not known. The observed counts have this `share`."""
        if self.observed is None or self.people is None or bounds.gaps is None:
            return None
        noise = observed_noise(bounds.gaps, multiplier=multiplier, share=share)
        return Rates.of(bounds.gaps, self.observed, people=self.people, noise=noise)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Search(SumTask[Center, Center]):
    """A search inside a fit. A step counts rows in public `cells`, or adds up the rows in a ball for their mean (`Totals`).

    Sensitivity. Counts: proved in `tails_sensitivity`. It needs no bound on rows: a row, or an entry of each column, is in one
    cell wherever it lies. Sums: one, proved in `Totals`, for rows clipped to the ball that the question names. Centers, balls and
    units come from released numbers alone, so the steps compose like any adaptive releases.
    """

    bounds: RowBounds
    neighbours: Neighbours
    split: Split  # The share of each step.
    people: float | None  # Their number if it is public. Otherwise it is released with a mean.
    multiplier: float  # The noise on a total over its sensitivity, at a share of one. Public, and zero without noise.
    what: ClassVar[str] = "the mean"  # What is searched for.
    cells: ClassVar[Bins]
    counts_columns: ClassVar[bool] = False  # Entries of every column are counted, and not norms of rows.

    def counts(self, step: int) -> bool:
        """Whether a step counts rows in cells."""
        return False

    def ball(self, question: Question) -> RowBounds:
        """The bounds around whose start the rows of a sum are clipped, from what `ball_of` said."""
        return self.bounds

    def ball_of(self, state: Center) -> Array | None:
        """What a question for a sum says of its ball, next to its center; None for the ball of the bounds."""
        return None

    def require_ball(self, array: Array) -> None:
        """Refuse what `ball_of` cannot have said."""

    def start(self) -> Center:
        return self.begin()

    def begin(self) -> Center:
        """The state before the first step."""
        return Center(center=self.bounds.origin, people=self.people, steps=0)

    def ask(self, state: Center) -> Question:
        center, ball = _NOWHERE if state.center is None else state.center, self.ball_of(state)
        if self.counts(state.steps):
            return Question(state.steps, (center,))
        if ball is None:
            return Question(state.steps, () if state.center is None else (center,))
        return Question(state.steps, (center, ball))

    def require_question(self, question: Question) -> None:
        """A step of the search around a finite point, the first around the agreed one; for a mean in a possible ball."""
        counts = self.counts(question.step)
        require_step(question, steps=len(self.split.mean), arrays=1 if counts else 2)
        require(
            question.step > 0 or question.same(self.ask(self.begin())),
            f"the search for {self.what} must begin at the agreed point",
        )
        if counts:
            self.everywhere(question)
            return
        self.require_ball(question.arrays[1])
        self.totals(question)

    def private(self, question: Question, rows: Rows) -> Bounded:
        if not self.counts(question.step):
            return self.totals(question).private(Question(), rows)
        count = bounded_column_tails if self.counts_columns else bounded_tails
        return count(rows, domain=self.everywhere(question), cells=self.cells, neighbours=self.neighbours)

    def sensitivity(self, question: Question) -> float:
        if not self.counts(question.step):
            return self.totals(question).sensitivity(Question())
        columns = self.bounds.dim if self.counts_columns else 1
        return tails_sensitivity(self.cells.count, self.neighbours, columns=columns)

    def shape(self, question: Question) -> tuple[int, ...]:
        if not self.counts(question.step):
            return self.totals(question).shape(Question())
        return (self.cells.count, self.bounds.dim) if self.counts_columns else (self.cells.count,)

    def share(self, question: Question) -> float:
        return self.split.step(question.step)

    def everywhere(self, question: Question) -> Domain:
        """The domain of counts: no bounds, around the center of the question. It checks the shape and that it is finite."""
        center = question.arrays[0]
        around = center if len(center) else None
        return Domain(dim=self.bounds.dim, radius=math.inf, center=around, scale=self.bounds.scale, gaps=self.bounds.gaps)

    def totals(self, question: Question) -> Totals:
        """The sums of a step for the mean."""
        start = question.arrays[0] if question.arrays and len(question.arrays[0]) else None
        return Totals(
            domain=self.ball(question).around_start(start),
            neighbours=self.neighbours,
            sum_weight=self.split.mean[question.step],
            count_weight=self.split.count if self._counts_people(question.step) else 0.0,
            observed_weight=self._observed(question.step),
        )

    def moved(self, state: Center, released: Array) -> tuple[Center, float]:
        """The center, moved to the estimate of the mean from a released sum, and the expected norm of the noise on that sum."""
        question = self.ask(state)
        totals, bounds = self.totals(question).update(None, released), self.ball(question)
        people = state.people if totals.count is None else totals.count
        assert totals.sum is not None
        assert people is not None
        state = replace(state, people=people, observed=state.observed if totals.observed is None else totals.observed)
        rates = state.rates(bounds, multiplier=self.multiplier, share=self.split.observed)
        total = totals.sum if rates is None else rates.full_sum(totals.sum)
        noise = 0.0
        if self.multiplier > 0:
            # In units of the sum. The share of the count cancels, because `Totals` scales each entry by the root of its
            # own share. The norm of d such entries is about sqrt(d) times one.
            entry = self.noise(sum_sensitivity(bounds.mean_bound, self.neighbours), state.steps)
            noise = entry * math.sqrt(bounds.dim) * (1.0 if rates is None else rates.sum_noise)
        center, far = bounds.center_from(state.center, total, people, noise=noise)
        return replace(state, center=center, steps=state.steps + 1, far=far), noise

    def noise(self, sensitivity: float, step: int) -> float:
        """The noise on a number of this sensitivity, for the share of a step."""
        return self.multiplier * sensitivity / math.sqrt(self.split.mean[step])

    def _counts_people(self, step: int) -> bool:
        return self.people is None and step == self.split.counted_at

    def _observed(self, step: int) -> float:
        # Which entries are there does not depend on the center, so they are counted once.
        return self.split.observed if step == self.split.observed_at else 0.0

    def _also(self, step: int) -> str:
        """What a label says of the counts that are released with a mean."""
        return f"{' and count' * self._counts_people(step)}{' and observed entries' * (self._observed(step) > 0)}"


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CenterSearch(Search):
    """Search for the mean around the origin, and again around the mean found, while it lies far out in its ball.

    Each step is a release for its share of the budget. Unless `people` is given, the first step also releases their number. Where
    entries may be missing, it also releases how many people have each, and sums are divided by that.
    """

    def require_question(self, question: Question) -> None:
        # Without an origin, the first question has no array: the search begins at zero.
        require_step(question, steps=len(self.split.mean), arrays=min(len(question.arrays), 1))
        require(
            question.step > 0 or question.same(self.ask(self.start())), "the search for the mean must begin at the agreed origin"
        )
        # The domain checks the shape and that it is finite.
        self.bounds.around_start(question.arrays[0] if question.arrays else None)

    def label(self, question: Question) -> str:
        also = self._also(question.step)
        return f"mean{also}" if also or question.step == 0 else f"mean, step {question.step + 1}"

    def update(self, state: Center, released: Array) -> Center:
        return self.moved(state, released)[0]

    def result(self, state: Center) -> Center | None:
        return None if state.far and state.steps < len(self.split.mean) else state


# The norms that are told apart.
NORMS: Final = cells_in_any_unit()
# No bound beyond this is accepted from another party: sums of squares of such numbers are still far from overflow.
_LARGEST_BOUND: Final = 1e60
# Below this number of people times mu, noise hides where their norms lie (docs/decisions/0026-private-bounds.md).
_ENOUGH: Final = 100.0
# Counts below this many standard deviations may be noise alone.
_SURE: Final = 2.5
# And these few at the lower end, where a bound somewhat too small does less harm than one too large.
_LIKELY: Final = 1.5
# The highest and the lowest quantile of norms that rows are clipped at.
_HIGHEST: Final = 0.95
_LOWEST: Final = 0.1
# The price of losing energy to clipping, next to the variance lost to noise (benchmarks/clip_level.py).
PRICE: Final = 0.03
# How many standard deviations of a count are allowed for before a table is refused: nothing can be asked twice.
_SLACK: Final = 2.0
# The error of the mean over the bound around it, beyond which the last two steps are worth repeating.
_DOUBT: Final = 1 / 3
# How often the mean, or norms around it, have been released before.
_TIMES: Final = ("", ", again", *(f", a {which} time" for which in ("third", "fourth", "fifth", "sixth", "seventh")))


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundSearch(Search):
    """Find the norm to clip rows at, and unless `center` is given, the mean of the rows.

    Even steps release norms and odd ones the mean. First come norms around the origin, then the mean of rows clipped to most
    of these norms. Then come norms around that mean, and the mean again, inside the bound found. The last two are repeated
    while the mean is poor compared with the bound and gets better. If the center is given, there is one step, norms around it.

    With the second mean comes the number of people, unless it is public. Where entries may be missing, the first mean also
    releases how many people have each, and norms are of rows whose missing entries are at the center.
    """

    center: Array | Literal["private"] | None
    rank: int  # So many components are wanted.
    entry: float  # The noise on an entry of what the components release, over the sensitivity of a Gram matrix.
    price: float = PRICE  # As in `clip_edge`.
    crowd: float | None = None  # How many people the components will be of, if more than are searched.
    pause: int | None = None  # If more people will come: the steps after which the search may continue among all of them.
    what: ClassVar[str] = "a bound"
    cells: ClassVar[Bins] = NORMS

    def start(self) -> Center:
        """The origin, or the given center. Refuses a public number of people that is too small, before anything is spent."""
        if self.people is not None:
            require_people(self.people, self.multiplier)
        return self.begin()

    def counts(self, step: int) -> bool:
        return step % 2 == 0

    def ball(self, question: Question) -> RowBounds:
        return self.bounds.found(float(question.arrays[1][0]))

    def ball_of(self, state: Center) -> Array | None:
        return None if state.bound is None else np.array([state.bound])

    def require_ball(self, array: Array) -> None:
        require(
            array.shape == (1,) and self.can_find(float(array[0])),
            "the ball of the mean must have a radius that the search can find",
        )

    def label(self, question: Question) -> str:
        if not self.counts(question.step):
            return f"mean{_again(question.step)}{self._also(question.step)}"
        if not self._moves:
            return "norms"
        return "norms around the origin" if question.step == 0 else f"norms around the mean{_again(question.step)}"

    def update(self, state: Center, released: Array) -> Center:
        return self._bounded(state, released) if self.counts(state.steps) else self._after_mean(state, released)

    def result(self, state: Center) -> Center | None:
        # The first mean is of a ball around the origin, which may be far too wide, so it is always refined once.
        min_steps = 4 if self._moves else 1
        paused = state.poor and self.pause is not None and state.steps >= self.pause
        ended = not state.far or paused or state.steps == len(self.split.mean)
        return state if state.steps >= min_steps and ended else None

    def can_find(self, bound: float) -> bool:
        """Whether the search may find such a bound: a norm in its cells, or more if the center lies far from zero."""
        return min(float(NORMS.edges[0]), self.bounds.mean_bound) <= bound <= _LARGEST_BOUND

    @property
    def _moves(self) -> bool:
        return isinstance(self.center, str)

    def begin(self) -> Center:
        center = self.bounds.origin if isinstance(self.center, str) else self.center
        return Center(center=center, people=self.people, steps=0)

    def _bounded(self, state: Center, released: Array) -> Center:
        step = state.steps
        # Once the count has been released, it is better known than from norms.
        people = state.people if self.people is not None or step > self.split.counted_at else None
        noise = self.noise(tails_sensitivity(NORMS.count, self.neighbours), step)
        (tails,) = read_tails(released, noise=noise, cells=NORMS, people=people)
        if step == 0:
            # Norms count people roughly. Where a better count is to come, only a table that is clearly too small is refused here.
            slack = tails.people_error * (_SLACK if self._moves else 1.0)
            require_people(tails.people, self.multiplier, slack=slack, spent=self.share(Question(0)))
        first = step == 0 and self._moves
        edge = _reach(tails) if first else self._edge(tails, step)
        bound = float(NORMS.edges[edge])
        # The caller may know where the mean lies, and a smaller ball needs less noise.
        if first:
            bound = min(bound, self.bounds.mean_bound)
        elif self._moves:
            # Rows alike are all as far from the center as the center is off. In a smaller ball the next mean could not reach
            # them, and what is left of the way would pass for a component.
            bound = max(bound, state.doubt * norm_edge(self.bounds.dim) / math.sqrt(self.bounds.dim))
        bound = max(bound, self._nearest(state.center))
        # Of the bound that is used, which may be larger than the one that was chosen.
        beyond, norms = float(np.interp(bound, NORMS.edges, tails.beyond)), tails.seen()
        return replace(
            state,
            people=tails.people,
            steps=step + 1,
            bound=bound,
            clipped=beyond / max(tails.people, 1.0),
            norms=norms,
            outliers=outliers_in(released, tails, noise=noise, longest=max(norms)),
            far=self._moves,
        )

    def _edge(self, tails: TailCounts, step: int) -> int:
        """The edge of the cells to clip at, after the norms of this step."""
        if self.bounds.quantile is not None:
            return _reach(tails, self.bounds.quantile)
        # The noise on an entry of what the components will release, for rows clipped to norm one. As if this were the last pass:
        # the mean comes after these norms.
        main = self.split.main(step + 2 if self._moves else step + 1)
        entry = self.entry * self.multiplier * gram_sensitivity(1.0, self.neighbours) / math.sqrt(main)
        # For a larger crowd the noise is smaller compared with what there is to find.
        entry *= 1.0 if self.crowd is None else max(tails.people, 1.0) / self.crowd
        return clip_edge(tails, dim=self.bounds.dim, rank=self.rank, entry=entry, price=self.price)

    def _after_mean(self, state: Center, released: Array) -> Center:
        moved, noise = self.moved(state, released)
        assert moved.people is not None
        assert state.bound is not None
        if self._counts_people(state.steps):
            spent = math.fsum(map(self.split.step, range(state.steps + 1)))
            off = self.multiplier / math.sqrt(self.split.count)
            require_people(moved.people, self.multiplier, slack=_SLACK * off, spent=spent)
        # If noise is as large as the ball, the mean stays where it was, which is off by the radius at most.
        doubt = min(state.bound, noise / max(moved.people, 1.0))
        # The norms were taken around the old center, so its error counts. Another pass pays if this one halved it.
        poor = state.doubt > _DOUBT * state.bound
        far, bound = poor and doubt < state.doubt / 2, max(state.bound, self._nearest(moved.center))
        return replace(moved, bound=bound, doubt=doubt, far=far, poor=poor)

    def _nearest(self, center: Array | None) -> float:
        """The smallest bound that rows may have around this center, if they are sparse."""
        if center is None or not self.bounds.sparse:
            return 0.0
        scaled = center if self.bounds.scale is None else center / self.bounds.scale
        # A little larger, so that rounding does not refuse it.
        return vector_norm(scaled) / FARTHEST * (1 + 1e-9)


def clip_edge(tails: TailCounts, *, dim: int, rank: int, entry: float, price: float = PRICE) -> int:
    """The edge of the cells at which to clip rows for the best answer, from released norms.

    A smaller bound b shrinks the noise with its square and keeps directions, but it takes energy from long rows, which may have
    directions of their own. Among the released norms between two quantiles, this minimises
        1 - found_share(n fill(b) / (i H_d), i <= k) + price L(b)^2.
    fill(b) is the mean squared norm of clipped rows over b^2, and L(b) the share of their energy that is lost against the highest
    quantile. Eigenvalues are guessed to fall like 1 / i. `entry` is the noise on an entry of the Gram matrix in units of b^2. If
    nothing would be found with any of these bounds, the smallest has the least noise.

    >>> cells, beyond = Bins(2.0 ** np.arange(5)), np.array([900.0, 500.0, 100.0, 10.0, 0.0])
    >>> tails = TailCounts(cells=cells, beyond=beyond, error=np.zeros(5), people=1000.0, people_error=0.0)
    >>> [clip_edge(tails, dim=50, rank=2, entry=entry) for entry in (0.1, 1.0, 10.0)]   # more noise, a smaller bound
    [3, 2, 0]
    """
    top = _reach(tails)
    # Where noise could pass for a tenth of the people, that quantile may be anywhere below their norms.
    within = tails.people - _seen(tails, _LOWEST, sure=_LIKELY)
    bottom = min(tails.edge_above(within) or 0, top)
    shape = 1.0 / np.arange(1, dim + 1)
    guess = tails.people * shape[: min(rank, dim)] / shape.sum()
    max_square = tails.square(top)
    best, min_loss, hopeless = top, math.inf, True
    for edge in range(top, bottom - 1, -1):
        square = tails.square(edge)
        bound_usage = square / float(tails.cells.edges[edge]) ** 2
        lost = 1 - square / max_square if max_square > 0 else 0.0
        missed = 1 - expected_captured_variance(guess * bound_usage, entry=entry, dim=dim) if bound_usage > 0 else 1.0
        loss = missed + price * lost**2
        hopeless = hopeless and missed >= 1
        # From the top down, so that among equals the largest bound wins.
        if loss < min_loss:
            best, min_loss = edge, loss
    return bottom if hopeless else best


def least_for_a_bound(multiplier: float) -> float:
    """About how many people a bound can be found among, if this is the noise on a total over its sensitivity."""
    return _ENOUGH * multiplier


def require_people(
    people: float,
    multiplier: float,
    *,
    slack: float = 0.0,
    spent: float = 0.0,
    min_n: float | None = None,
    what: str = "a bound",
    instead: str = "pass a {row_bound}",
) -> None:
    """Refuse a search among so few people that noise hides where they lie. `spent` is the share of mu^2 it has cost."""
    min_n = least_for_a_bound(multiplier) if min_n is None else min_n
    if people + slack >= min_n:
        return
    about = f"about {people:.0f} people" if people > slack else "so few people"
    cost = f"{spent:.1%} of the budget was spent to learn this" if spent else "Nothing was released"
    raise TooFewPeople(
        f"{{epsilon}} is too small for {about}: finding {what} privately needs about {min_n:.0f}. Raise {{epsilon}}, or "
        f"{instead} that you know without looking at the data. {cost}"
    )


def _reach(tails: TailCounts, share: float = _HIGHEST) -> int:
    """The edge that this share of people, or nearly all of them, stay within, as far as noise lets it be seen."""
    max_people = _seen(tails, 1 - share, sure=_SURE)
    # At the lower end, noise could pass for the few people within.
    edge = tails.edge_above(min(max_people, tails.people - _seen(tails, 0.0, sure=_LIKELY)))
    return len(tails.cells.edges) - 1 if edge is None else edge


def _seen(tails: TailCounts, share: float, *, sure: float) -> float:
    """The number of people in this share of them, or as many as noise could pass for: half of them at most."""
    return max(share * tails.people, min(sure * float(tails.error.max()), tails.people / 2))


def _again(step: int) -> str:
    """The words that tell the entries of later steps apart. Norms begin at the origin, so they are a step behind."""
    return _TIMES[(step - 1) // 2]
