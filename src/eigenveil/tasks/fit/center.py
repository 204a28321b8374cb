"""The search for a private mean. Fits of one table, of many sites and of a stream's first block share it."""

import math
from dataclasses import dataclass, replace
from typing import final

from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours, sum_sensitivity
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.tasks import Question, SumTask, Totals
from eigenveil.tasks.base import require_step
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.gaps import Rates, observed_noise
from eigenveil.tasks.fit.outliers import Outliers

__all__ = ["Center", "CenterSearch"]


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
        if any(there for _, there in also):
            return " and ".join(["mean", *(word for word, there in also if there)])
        return f"mean, step {question.step + 1}" if question.step else "mean"

    def share(self, question: Question) -> float:
        """This step's share, with those of the counts."""
        beside = (self.count_share if self._counts(question) else 0.0) + self._observed(question)
        return self.shares[question.step] + beside

    def update(self, state: Center, released: Array) -> Center:
        """The center, moved to the estimate of the mean."""
        found = self._totals(self.ask(state)).update(None, released)
        # The count is released with the first step, and later steps use it.
        people = found.count if state.people is None else state.people
        assert found.sum is not None
        assert people is not None
        moved = replace(state, people=people, observed=state.observed if found.observed is None else found.observed)
        rates = moved.rates(self.bounds, multiplier=self.multiplier, share=self.observed_share)
        total, louder = (found.sum, 1.0) if rates is None else (rates.whole_sum(found.sum), rates.sum_noise)
        noise = 0.0
        if self.multiplier > 0:
            # In units of the sum. The share of the count cancels, because `Totals` scales each entry by the root of its
            # own share. The norm of d such entries is about sqrt(d) times one.
            entry = self.multiplier * sum_sensitivity(self.bounds.mean_bound, self.neighbours)
            noise = entry / math.sqrt(self.shares[state.steps]) * math.sqrt(self.bounds.dim) * louder
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
