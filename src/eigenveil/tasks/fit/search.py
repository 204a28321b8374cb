"""The search for a row bound that nobody knows: norms, the mean, norms around it, the mean again, all inside one fit.

Norms are released as counts in public cells (`eigenveil.core.counts`), so every step is a sum and every protocol runs
it. The norm to clip at is chosen for the best answer that the released numbers promise, not at a fixed quantile: `clip_edge`.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, final

import numpy as np

from eigenveil.core.counts import bounded_tails, tails_sensitivity
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
    "clip_edge",
    "least_for_a_bound",
    "require_people",
]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Center:
    """The mean that was found, (d,), the number of people, the number of steps taken, and whether another step is needed.

    Where a bound is searched for, `bound` is the norm to clip at as far as it is known, and `clipped` the share of people beyond
    it. Of the last norms that were released, those that stand out from the noise are in `norms` (`Tails.seen`), and `outliers`
    says what may lie beyond them. `doubt` is the likely error of the center, in units of norms, and the mean is `poor` if the
    bound had to allow for it.
    Where units of the columns are searched for, `scale`, (d,), has those found. That of a flat column is 1, or a larger power of
    two. Where entries may be missing, `observed` has the released counts of those that are there.
    """

    center: Array | None
    people: float | None
    steps: int
    far: bool = True
    bound: float | None = None
    clipped: float | None = None
    norms: tuple[float, ...] | None = None
    outliers: Outliers | None = None
    doubt: float = math.inf
    poor: bool = False
    scale: Array | None = None
    observed: Array | None = None

    def rates(self, bounds: RowBounds, *, multiplier: float, share: float) -> Rates | None:
        """The rates of entries, None as long as they are not known. `share` is that of the observed counts."""
        if self.observed is None or self.people is None or bounds.gaps is None:
            return None
        noise = observed_noise(bounds.gaps, multiplier=multiplier, share=share)
        return Rates.of(bounds.gaps, self.observed, people=self.people, noise=noise)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CenterSearch(SumTask[Center, Center]):
    """Search for the mean around the origin, and again around the mean found, while it lies far out in its ball.

    Each step is a release for its share of the budget. Unless `people` is given, the first step also releases their number, for
    `count_share`. Where entries may be missing, it also releases how many people have each, for `observed_share`, and sums are
    divided by that. The noise on a total over its sensitivity, at a share of one, is `multiplier`. It is public, and zero
    without noise.
    """

    bounds: RowBounds
    neighbours: Neighbours
    shares: tuple[float, ...]
    count_share: float
    people: float | None
    multiplier: float
    observed_share: float = 0.0

    def start(self) -> Center:
        """The origin."""
        return Center(center=self.bounds.origin, people=self.people, steps=0)

    def ask(self, state: Center) -> Question:
        """For sums around the current center."""
        return Question(state.steps, () if state.center is None else (state.center,))

    def require_question(self, question: Question) -> None:
        """A step of the search, around a finite point; the first is around the agreed origin."""
        # Without an origin, the first question has no array: the search begins at zero.
        require_step(question, steps=len(self.shares), arrays=min(len(question.arrays), 1))
        require(
            question.step > 0 or question.same(self.ask(self.start())),
            "the search for the mean must begin at the agreed origin",
        )
        # The domain checks the shape and that it is finite.
        self.bounds.around_start(_start(question))

    def private(self, question: Question, rows: Rows) -> Bounded:
        """The sums, in one vector."""
        return self._totals(question).private(Question(), rows)

    def sensitivity(self, question: Question) -> float:
        """That of the sums."""
        return self._totals(question).sensitivity(Question())

    def shape(self, question: Question) -> tuple[int, ...]:
        """That of the sums."""
        return self._totals(question).shape(Question())

    def label(self, question: Question) -> str:
        """One entry per step."""
        also = [("count", self._counts(question)), ("observed entries", self._observed(question) > 0)]
        if any(is_released for _, is_released in also):
            return " and ".join(["mean", *(word for word, is_released in also if is_released)])
        return f"mean, step {question.step + 1}" if question.step else "mean"

    def share(self, question: Question) -> float:
        """This step's share, with those of the counts."""
        beside = (self.count_share if self._counts(question) else 0.0) + self._observed(question)
        return self.shares[question.step] + beside

    def update(self, state: Center, released: Array) -> Center:
        """The center, moved to the estimate of the mean."""
        totals = self._totals(self.ask(state)).update(None, released)
        # The count is released with the first step, and later steps use it.
        people = totals.count if state.people is None else state.people
        assert totals.sum is not None
        assert people is not None
        moved = replace(state, people=people, observed=state.observed if totals.observed is None else totals.observed)
        rates = moved.rates(self.bounds, multiplier=self.multiplier, share=self.observed_share)
        total, noise_inflation = (
            (totals.sum, 1.0) if rates is None else (rates.integer_sum(totals.sum), rates.sum_noise)
        )
        noise = 0.0
        if self.multiplier > 0:
            # In units of the sum. The share of the count cancels, because `Totals` scales each entry by the root of its
            # own share. The norm of d such entries is about sqrt(d) times one.
            entry = self.multiplier * sum_sensitivity(self.bounds.mean_bound, self.neighbours)
            noise = entry / math.sqrt(self.shares[state.steps]) * math.sqrt(self.bounds.dim) * noise_inflation
        center, far = self.bounds.center_from(state.center, total, people, noise=noise)
        return replace(moved, center=center, steps=state.steps + 1, far=far)

    def result(self, state: Center) -> Center | None:
        """The center, once the mean does not lie far out or no step is left."""
        return None if state.far and state.steps < len(self.shares) else state

    def _counts(self, question: Question) -> bool:
        return question.step == 0 and self.people is None

    def _observed(self, question: Question) -> float:
        # Which entries are there does not depend on the center, so they are counted once.
        return self.observed_share if question.step == 0 else 0.0

    def _totals(self, question: Question) -> Totals:
        return Totals(
            domain=self.bounds.around_start(_start(question)),
            neighbours=self.neighbours,
            sum_weight=self.shares[question.step],
            count_weight=self.count_share if self._counts(question) else 0.0,
            observed_weight=self._observed(question),
        )


def _start(question: Question) -> Array | None:
    return question.arrays[0] if question.arrays else None


# How a question says that there is no center: an array without coordinates.
_NOWHERE: Final = np.empty(0)

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

# The price of losing energy to clipping, beside the variance lost to noise (benchmarks/clip_level.py).
PRICE: Final = 0.03

# How many standard deviations of a count are allowed for before a table is refused: nothing can be asked twice.
_SLACK: Final = 2.0

# The error of the mean over the bound around it, beyond which the last two steps are worth repeating.
_DOUBT: Final = 1 / 3

# How often the mean, or norms around it, have been released before.
_TIMES: Final = ("", ", again", *(f", a {which} time" for which in ("third", "fourth", "fifth", "sixth", "seventh")))


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundSearch(SumTask[Center, Center]):
    """Find the norm to clip rows at, and unless `center` is given, the mean of the rows.

    Even steps release norms and odd ones the mean. First come norms around the origin, then the mean of rows clipped to most
    of these norms. Then come norms around that mean, and the mean again, inside the bound found. The last two are repeated
    while the mean is poor compared with the bound and gets better. If the center is given, there is one step, norms around it.

    `split` has the share of each step. With the second mean comes the number of people, unless `people` is given. `multiplier` is
    the noise on a total over its sensitivity, at a share of one. `entry` is that on an entry of what the components release, over
    the sensitivity of a Gram matrix. `rank` components are wanted, and `price` is as in `clip_edge`. If they will
    be of more people than are searched, `crowd` says of how many. If more people will come, the search ends after `pause` steps
    while the mean is poor, and may go on among all of them. Where entries may be missing, the first mean also releases how
    many people have each, and norms are those of rows whose missing entries are at the center.

    Sensitivity. Norms: that of counts in cells, proved in `tails_sensitivity`. It needs no bound on rows, since a row is in one
    cell wherever it lies. Mean: one, proved in `Totals`, for rows clipped to the ball that the question names. The center and the
    ball come from released numbers alone, so the steps compose like any adaptive releases.
    """

    bounds: RowBounds
    neighbours: Neighbours
    center: Array | Literal["private"] | None
    split: Split
    people: float | None
    multiplier: float
    rank: int
    entry: float
    price: float = PRICE
    crowd: float | None = None
    pause: int | None = None

    def start(self) -> Center:
        """The origin, or the given center. Refuses a public number of people that is too small, before anything is spent."""
        if self.people is not None:
            require_people(self.people, self.multiplier)
        return self._begin()

    def ask(self, state: Center) -> Question:
        """For norms around the current center, or for the sum of rows in a ball around it."""
        center = _NOWHERE if state.center is None else state.center
        if self._of_norms(state.steps):
            return Question(state.steps, (center,))
        assert state.bound is not None
        return Question(state.steps, (center, np.array([state.bound])))

    def require_question(self, question: Question) -> None:
        """A step of the search around a finite point, the first around the agreed one; for a mean in a ball of finite radius."""
        norms = self._of_norms(question.step)
        require_step(question, steps=len(self.split.mean), arrays=1 if norms else 2)
        require(
            question.step > 0 or question.same(self.ask(self._begin())),
            "the search for a bound must begin at the agreed point",
        )
        if norms:
            # The domain checks the shape and that it is finite.
            self._everywhere(question)
            return
        radius = question.arrays[1]
        require(
            radius.shape == (1,) and self.can_find(float(radius[0])),
            "the ball of the mean must have a radius that the search can find",
        )
        self._totals(question)

    def private(self, question: Question, rows: Rows) -> Bounded:
        """The counts of norms, (m,), or the sums in one vector."""
        if self._of_norms(question.step):
            return bounded_tails(rows, domain=self._everywhere(question), cells=NORMS, neighbours=self.neighbours)
        return self._totals(question).private(Question(), rows)

    def sensitivity(self, question: Question) -> float:
        """That of the counts, or of the sums."""
        if self._of_norms(question.step):
            return tails_sensitivity(NORMS.count, self.neighbours)
        return self._totals(question).sensitivity(Question())

    def shape(self, question: Question) -> tuple[int, ...]:
        """One number for each cell, or those of the sums."""
        return (NORMS.count,) if self._of_norms(question.step) else self._totals(question).shape(Question())

    def label(self, question: Question) -> str:
        """One entry per step."""
        if not self._of_norms(question.step):
            also = " and observed entries" * (self._observed(question) > 0)
            return f"mean{_again(question.step)}{' and count' * self._counts(question)}{also}"
        if not self._moves:
            return "norms"
        return "norms around the origin" if question.step == 0 else f"norms around the mean{_again(question.step)}"

    def share(self, question: Question) -> float:
        """This step's share, with that of the count."""
        return self.split.step(question.step)

    def update(self, state: Center, released: Array) -> Center:
        """The bound, from norms, or the center, moved to the estimate of the mean."""
        return self._bounded(state, released) if self._of_norms(state.steps) else self._moved(state, released)

    def result(self, state: Center) -> Center | None:
        """The center and the bound, once the mean was good enough or no step is left."""
        # The first mean is of a ball around the origin, which may be far too wide, so it is always refined once.
        min_steps = 4 if self._moves else 1
        paused = state.poor and self.pause is not None and state.steps >= self.pause
        ended = not state.far or paused or state.steps == len(self.split.mean)
        return state if state.steps >= min_steps and ended else None

    def can_find(self, bound: float) -> bool:
        """Whether the search may find such a bound: a norm in its cells, or more if the center lies far from zero."""
        min_bound = min(float(NORMS.edges[0]), self.bounds.mean_bound)
        return min_bound <= bound <= _LARGEST_BOUND

    @property
    def _moves(self) -> bool:
        return isinstance(self.center, str)

    def _begin(self) -> Center:
        return Center(
            center=self.bounds.origin if isinstance(self.center, str) else self.center, people=self.people, steps=0
        )

    def _of_norms(self, step: int) -> bool:
        return step % 2 == 0

    def _everywhere(self, question: Question) -> Domain:
        center = question.arrays[0]
        around = center if len(center) else None
        return Domain(
            dim=self.bounds.dim, radius=math.inf, center=around, scale=self.bounds.scale, gaps=self.bounds.gaps
        )

    def _totals(self, question: Question) -> Totals:
        center, radius = question.arrays
        return Totals(
            domain=self.bounds.found(float(radius[0])).around_start(center if len(center) else None),
            neighbours=self.neighbours,
            sum_weight=self.split.mean[question.step],
            count_weight=self.split.count if self._counts(question) else 0.0,
            observed_weight=self._observed(question),
        )

    def _counts(self, question: Question) -> bool:
        return self.people is None and question.step == self.split.counted_at

    def _observed(self, question: Question) -> float:
        return self.split.observed if question.step == self.split.observed_at else 0.0

    def _bounded(self, state: Center, released: Array) -> Center:
        """The state after norms were released."""
        step = state.steps
        # Once the count has been released, it is better known than from norms.
        people = state.people if self.people is not None or step > self.split.counted_at else None
        noise = self._noise(tails_sensitivity(NORMS.count, self.neighbours), step)
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
        if self.bounds.quantile is not None:
            return _reach(tails, self.bounds.quantile)
        entry = self._entry(step)
        # For a larger crowd the noise is smaller compared with what there is to find.
        entry *= 1.0 if self.crowd is None else max(tails.people, 1.0) / self.crowd
        return clip_edge(tails, dim=self.bounds.dim, rank=self.rank, entry=entry, price=self.price)

    def _moved(self, state: Center, released: Array) -> Center:
        """The state after a sum of rows was released."""
        totals = self._totals(self.ask(state)).update(None, released)
        people = state.people if totals.count is None else totals.count
        assert totals.sum is not None
        assert people is not None
        assert state.bound is not None
        if totals.count is not None:
            spent = math.fsum(map(self.split.step, range(state.steps + 1)))
            off = self.multiplier / math.sqrt(self.split.count)
            require_people(totals.count, self.multiplier, slack=_SLACK * off, spent=spent)
        entry = self._noise(sum_sensitivity(state.bound, self.neighbours), state.steps)
        moved = replace(state, people=people, observed=state.observed if totals.observed is None else totals.observed)
        rates = moved.rates(self.bounds, multiplier=self.multiplier, share=self.split.observed)
        total, noise_inflation = (
            (totals.sum, 1.0) if rates is None else (rates.integer_sum(totals.sum), rates.sum_noise)
        )
        noise = entry * math.sqrt(self.bounds.dim) * noise_inflation
        center, _ = self.bounds.found(state.bound).center_from(state.center, total, people, noise=noise)
        # If noise is as large as the ball, the mean stays where it was, which is off by the radius at most.
        doubt = min(state.bound, noise / max(people, 1.0))
        # The norms were taken around the old center, so its error counts. Another pass pays if this one halved it.
        poor = state.doubt > _DOUBT * state.bound
        far, bound = poor and doubt < state.doubt / 2, max(state.bound, self._nearest(center))
        return replace(moved, center=center, steps=state.steps + 1, bound=bound, doubt=doubt, far=far, poor=poor)

    def _noise(self, sensitivity: float, step: int) -> float:
        return self.multiplier * sensitivity / math.sqrt(self.split.mean[step])

    def _entry(self, step: int) -> float:
        """The noise on an entry of what the components will release, for rows clipped to norm one."""
        # As if this were the last pass: the mean comes after these norms.
        main = self.split.main(step + 2 if self._moves else step + 1)
        return self.entry * self.multiplier * gram_sensitivity(1.0, self.neighbours) / math.sqrt(main)

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

    >>> from eigenveil.core.counts import Bins
    >>> beyond = np.array([900.0, 500.0, 100.0, 10.0, 0.0])
    >>> tails = TailCounts(
    ...     cells=Bins(2.0 ** np.arange(5)), beyond=beyond, error=np.zeros(5), people=1000.0, people_error=0.0
    ... )
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
        # From the top down, so that of equals the largest bound wins.
        if loss < min_loss:
            best, min_loss = edge, loss
    return bottom if hopeless else best


def least_for_a_bound(multiplier: float) -> float:
    """About how many people a bound can be found among, if this is the noise on a total over its sensitivity."""
    return _ENOUGH * multiplier


def require_people(people: float, multiplier: float, *, slack: float = 0.0, spent: float = 0.0) -> None:
    """Refuse a search among so few people that noise hides where their norms lie. `spent` is the share of mu^2 it has cost."""
    min_n = least_for_a_bound(multiplier)
    if people + slack >= min_n:
        return
    about = f"about {people:.0f} people" if people > slack else "so few people"
    cost = f"{spent:.1%} of the budget was spent to learn this" if spent else "Nothing was released"
    raise TooFewPeople(
        f"{{epsilon}} is too small for {about}: finding a bound privately needs about {min_n:.0f}. Raise {{epsilon}}, or pass a "
        f"{{row_bound}} that you know without looking at the data. {cost}"
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
