"""The result of a private search for a row bound: the answer, the trade-off between bounds, and the cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.plan import Norms, predict
from eigenveil.privacy import Guarantee
from eigenveil.tasks.fit.outliers import Outliers

__all__ = ["Candidate", "FoundBounds", "norms_of"]

# A share of people that is less than so many of its deviations may be noise alone.
_SEEN: Final = 2.5


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible bound. All of its numbers come from what was released.

    - `clipped` is the share of people whose rows it would clip, and `error` the standard deviation of that share.
    - `noise` is the noise of a fit with it, over that with the smallest candidate. It grows with the square of the
      bound.
    - `fill` is the mean squared norm of the clipped rows over the square of the bound: what there is to find, in
      units of the noise.
    """

    bound: float
    clipped: float
    error: float
    noise: float
    fill: float


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FoundBounds:
    """What `find_bounds` found. Printing it shows the answer, the trade-off and the cost.

    - `row_bound` is None where noise hides the answer. `why` then says why; otherwise it has remarks on the answer,
      if any.
    - `center`, (d,), is the point that norms are taken around: the released mean, given numbers, or None for zero.
    - `center_error` is about how far noise moved a mean that was searched for. Clipping may have moved it further.
    - `mean_bound` is the quantile of norms around the given origin.
    - `people` is the number of people, public or released with standard deviation `people_error`.
    - `outliers` says which rows may lie far beyond all candidates; None without noise or an answer.
    """

    dim: int
    row_bound: float | None
    mean_bound: float | None
    center: Array | None
    center_error: float
    searched: bool
    scale: Array | None
    quantile: float
    people: float
    people_error: float
    candidates: tuple[Candidate, ...]
    why: str
    guarantee: Guarantee
    ledger: Ledger | None
    outliers: Outliers | None = None

    @property
    def chosen(self) -> Candidate | None:
        """The candidate that is the answer."""
        # Equal to the last bit, because both are the same edge of the cells.
        return next((one for one in self.candidates if one.bound == self.row_bound), None)

    @property
    def settings(self) -> dict[str, Any]:
        """Parameters for a fit: `PrivatePCA(5, epsilon=0.9, delta=1e-6, **found.settings)`. A `ValueError` if nothing
        was found."""
        require(self.row_bound is not None, f"no bound was found: {self.why}")
        given = {} if self.scale is None else {"scale": self.scale}
        if not self.searched:
            return {"row_bound": self.row_bound, "center": self.center, **given}
        # Rows lie within the bound around the released mean, so a fit need not search for its mean any further.
        return {"row_bound": self.row_bound, "origin": self.center, "mean_bound": self.row_bound, **given}

    def captured(self, rank: int, budget: Budget) -> tuple[float | None, ...]:
        """The share of the clipped rows' variance that a fit of `rank` components would capture with each candidate, by
        the planner's guess."""
        found = []
        for one in self.candidates:
            # The planner's guess assumes a fill of one half. A larger fill gives the same signal as more people.
            people = max(1, round(self.people * one.fill / 0.5))
            found.append(predict(dim=self.dim, rank=rank, budget=budget, people=people).chosen.captured)
        return tuple(found)

    def words(self) -> str:
        """The answer, the trade-off and the cost, as text."""
        return "\n".join(self._lines())

    def __str__(self) -> str:
        return self.words()

    def _lines(self) -> Iterator[str]:
        if self.row_bound is None:
            yield f"No bound was found: {self.why}."
        else:
            chosen = self.chosen
            assert chosen is not None
            yield (
                f"row_bound = {self.row_bound:.4g}: it clips the rows of about {chosen.clipped:.1%} of people "
                f"(give or take {chosen.error:.1%})."
            )
            if self.why:
                yield f"{self.why[0].upper()}{self.why[1:]}."
        if self.candidates:
            yield "   bound  people clipped      noise   fill"
        for one in self.candidates:
            mark = "  <-" if one.bound == self.row_bound else ""
            yield f"{one.bound:>8.4g}  {one.clipped:>6.1%} +- {one.error:<6.1%} {one.noise:>6.2f}x  {one.fill:>5.2f}{mark}"
        yield self.guarantee.headline + ("" if self.guarantee.epsilon is None else ".")


def norms_of(candidates: Sequence[Candidate], outliers: Outliers | None) -> Norms | None:
    """What candidates say of the norms of rows, as a forecast needs it; those that noise may have made are left out."""
    seen = {one.clipped: one.bound for one in candidates if 0 < one.clipped < 1 and one.clipped >= _SEEN * one.error}
    return Norms.read(seen, outliers)
