"""What a private search for a bound found: the answer, what it trades against what, and what it cost."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.plan import predict
from eigenveil.privacy import Budget, Guarantee, Ledger

__all__ = ["Candidate", "FoundBounds"]


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """One bound that could be taken. All of it is read off what was released.

    `cut` is the share of people whose rows it would shorten, and `error` the standard deviation of that share. `noise` is how
    large the noise of a fit is with it, beside that with the smallest candidate: it grows with the square of the bound. `fill`
    is the mean squared length of rows cut to it, over its square: what there is to find, in units of the noise.
    """

    bound: float
    cut: float
    error: float
    noise: float
    fill: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class FoundBounds:
    """What `find_bounds` found. Printing it shows the answer, the trade and what it cost.

    `row_bound` is None where nothing could be said, and `why` then says why. Otherwise `why` says what is to be known of the
    answer, if anything. `center`, (d,), is what lengths are around: the released mean, the numbers that were given, or None for
    zero. Noise has moved a mean that was looked for by `center_error` or so, beside what cutting rows did to it, and `mean_bound`
    is the quantile of lengths around the origin that was given. `people` is how many there are, released with a standard
    deviation of `people_error`, or public.
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

    @property
    def chosen(self) -> Candidate | None:
        """The candidate that is the answer."""
        return next((one for one in self.candidates if one.bound == self.row_bound), None)

    @property
    def settings(self) -> dict[str, Any]:
        """What a fit is to be given: `PrivatePCA(5, epsilon=0.9, delta=1e-6, **found.settings)`. A `ValueError` if nothing is."""
        require(self.row_bound is not None, f"no bound was found: {self.why}")
        given = {} if self.scale is None else {"scale": self.scale}
        if not self.searched:
            return {"row_bound": self.row_bound, "center": self.center, **given}
        # Rows lie within the bound around the released mean, so a fit need not search further for its own.
        return {"row_bound": self.row_bound, "origin": self.center, "mean_bound": self.row_bound, **given}

    def captured(self, rank: int, budget: Budget) -> tuple[float | None, ...]:
        """For each candidate what share of the variance a fit of `rank` components would capture, by the planner's guess."""
        found = []
        for one in self.candidates:
            # The planner's guess is of rows that fill half their ball; people who fill it more count for more of them.
            people = max(1, round(self.people * one.fill / 0.5))
            found.append(predict(dim=self.dim, rank=rank, budget=budget, people=people).chosen.captured)
        return tuple(found)

    def words(self) -> str:
        """The answer, the trade and the cost, as text."""
        return "\n".join(self._lines())

    def __str__(self) -> str:
        return self.words()

    def _lines(self) -> Iterator[str]:
        if self.row_bound is None:
            yield f"Nothing can be said: {self.why}."
        else:
            chosen = self.chosen
            assert chosen is not None
            yield (
                f"row_bound = {self.row_bound:.4g}: about {chosen.cut:.1%} of people have rows that it would cut "
                f"(give or take {chosen.error:.1%})."
            )
            if self.why:
                yield f"{self.why[0].upper()}{self.why[1:]}."
        if self.candidates:
            yield "   bound  people cut          noise   fill"
        for one in self.candidates:
            mark = "  <-" if one.bound == self.row_bound else ""
            yield f"{one.bound:>8.4g}  {one.cut:>6.1%} +- {one.error:<6.1%} {one.noise:>6.2f}x  {one.fill:>5.2f}{mark}"
        yield self.guarantee.headline + ("" if self.guarantee.epsilon is None else ".")
