"""`Totals`: the small sums, all in one release: of rows, of people, of squares, and of people who have each entry.

Each entry is divided by its own sensitivity and multiplied by the root of its share. The whole vector has sensitivity one, and
one entry of the ledger pays for it.
"""

import math
from dataclasses import dataclass, field
from typing import final

import numpy as np

from eigenveil.core.domain import Region
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Rows
from eigenveil.core.threads import vector_norm
from eigenveil.core.unit import Neighbours, count_sensitivity
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.sums import bounded_count, bounded_kept, bounded_observed, bounded_sum, bounded_trace
from eigenveil.tasks.base import Question, SumTask, require_step

__all__ = ["Totals", "TotalsResult", "lies_far", "shrunk"]


# A mean further out than this fraction of the radius is far: see `lies_far`.
_FAR = 0.3


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TotalsResult:
    """The released totals; None for those that were left out. `observed` are the counts of `bounded_observed`."""

    sum: Array | None
    count: float | None
    trace: float | None
    observed: Array | None = None


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Totals(SumTask[TotalsResult | None, TotalsResult]):
    """The sum, (d,), the count, the trace and the observed counts of the rows in `domain`, each for its weight in the release.

    Where incomplete rows are dropped, only complete rows are counted (`bounded_kept`). A weight of zero leaves that total
    out; weights are relative. Proof of the sensitivity. One person moves v_j by at most s_j. With shares w_j / sum w and entries
    v_j / s_j, the vector moves by at most sqrt(sum_j (w_j / sum w) 1^2) = 1.

    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.data.rows import DenseRows
    >>> task = Totals(
    ...     domain=Domain(dim=2, radius=2.0), neighbours=Neighbours.ADD_REMOVE, sum_weight=3.0, count_weight=1.0
    ... )
    >>> total = task.work(task.ask(None), DenseRows(np.eye(2)), Exact(because="doctest"))
    >>> task.advance(None, total, Exact(because="doctest")).count
    2.0
    """

    domain: Region
    neighbours: Neighbours
    sum_weight: float = 0.0
    count_weight: float = 0.0
    trace_weight: float = 0.0
    observed_weight: float = 0.0
    name: str = "totals"
    _factors: tuple[float, float, float, float] = field(init=False)

    def __post_init__(self) -> None:
        weights = (self.sum_weight, self.count_weight, self.trace_weight, self.observed_weight)
        if min(weights) < 0 or not sum(weights) > 0:
            raise ValueError(f"weights must be non-negative and not all zero, got {weights}")
        # Where incomplete rows are dropped, the number that is left is private even if the number of rows is public.
        require(
            self.count_weight == 0 or self._drops or not self.neighbours.count_is_public,
            f"the count is public under {self.neighbours.value!r} and needs no release",
        )
        gaps = self.domain.gaps
        require(self.observed_weight == 0 or (gaps is not None and gaps.divides), "rows without gaps have no such counts")
        if gaps is not None and self.observed_weight > 0:
            gaps.require_relation(self.neighbours)
        if not math.isfinite(self.domain.radius):
            # No privacy is claimed for an unbounded domain, so entries are not scaled.
            factors = tuple(float(weight > 0) for weight in weights)
        else:
            bounds = (
                self.domain.sum_sensitivity(self.neighbours),
                # Under every relation a person's rows may become incomplete, which takes away one.
                1.0 if self._drops else count_sensitivity(self.neighbours),
                self.domain.trace_sensitivity(self.neighbours),
                1.0 if gaps is None else gaps.sensitivity(),
            )
            total = sum(weights)
            factors = tuple(
                math.sqrt(weight / total) / bound if weight > 0 else 0.0 for weight, bound in zip(weights, bounds, strict=True)
            )
        object.__setattr__(self, "_factors", factors)

    def start(self) -> TotalsResult | None:
        return None

    def ask(self, state: TotalsResult | None) -> Question:
        return Question()

    def require_question(self, question: Question) -> None:
        require_step(question, steps=1, arrays=0)

    def private(self, question: Question, rows: Rows) -> Bounded:
        """The scaled totals as one vector: the sum, the count, the observed counts and the trace."""
        by_sum, by_count, by_trace, by_observed = self._factors
        parts: list[Array] = []
        if by_sum:
            parts.append(by_sum * bounded_sum(rows, domain=self.domain, neighbours=self.neighbours).value)
        if by_count:
            gaps = self.domain.gaps if self._drops else None
            count = bounded_count(rows, neighbours=self.neighbours) if gaps is None else bounded_kept(rows, gaps=gaps)
            parts.append(by_count * np.atleast_1d(count.value))
        if by_observed:
            assert self.domain.gaps is not None
            parts.append(by_observed * bounded_observed(rows, gaps=self.domain.gaps).value)
        # The trace is last, so that `update` finds it without counting what comes before.
        if by_trace:
            trace = bounded_trace(rows, domain=self.domain, neighbours=self.neighbours)
            parts.append(by_trace * np.atleast_1d(trace.value))
        return Bounded(np.concatenate(parts), self.sensitivity(question))

    def shape(self, question: Question) -> tuple[int, ...]:
        by_sum, by_count, by_trace, by_observed = self._factors
        return ((self.domain.dim if by_sum else 0) + bool(by_count) + bool(by_trace) + self._counts * bool(by_observed),)

    def sensitivity(self, question: Question) -> float:
        """One, by construction."""
        return 1.0 if math.isfinite(self.domain.radius) else math.inf

    def label(self, question: Question) -> str:
        return self.name

    def share(self, question: Question) -> float:
        return 1.0

    def update(self, state: TotalsResult | None, released: Array) -> TotalsResult:
        by_sum, by_count, by_trace, by_observed = self._factors
        rest = released
        total, observed = None, None
        if by_sum:
            total, rest = rest[: self.domain.dim] / by_sum, rest[self.domain.dim :]
        # In the order of `private`: the sum, the count, the observed counts, the trace.
        count = float(rest[0] / by_count) if by_count else None
        trace = float(rest[-1] / by_trace) if by_trace else None
        if by_observed:
            first = int(bool(by_count))
            observed = rest[first : first + self._counts] / by_observed
        return TotalsResult(sum=total, count=count, trace=trace, observed=observed)

    def result(self, state: TotalsResult | None) -> TotalsResult | None:
        return state

    @property
    def _drops(self) -> bool:
        return self.domain.gaps is not None and self.domain.gaps.drops

    @property
    def _counts(self) -> int:
        return 0 if self.domain.gaps is None else self.domain.gaps.entries


def shrunk(vector: Array, *, noise: float) -> Array:
    """A released vector, shrunk by what noise of expected norm `noise` adds to its norm (James and Stein 1961).

    >>> shrunk(np.array([3.0, 4.0]), noise=3.0).tolist(), shrunk(np.ones(2), noise=5.0).tolist()
    ([1.92, 2.56], [0.0, 0.0])
    """
    norm = vector_norm(vector)
    return vector * (max(0.0, 1.0 - (noise / norm) ** 2) if norm > 0 else 0.0)


def lies_far(offset: Array, *, radius: float, noise: float) -> bool:
    """Whether a released mean lies so far out in its ball that rows around it may have been clipped.

    If the expected norm of the noise is as large as that, the release says nothing about where the mean lies.

    >>> lies_far(np.array([0.5]), radius=1.0, noise=0.1), lies_far(np.array([0.5]), radius=1.0, noise=0.4)
    (True, False)
    """
    return vector_norm(offset) > _FAR * radius > noise
