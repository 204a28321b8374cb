"""`find_bounds`: a bound on the length of rows, found privately, with what it trades against what.

A fit needs a bound that was not read off its rows. Where nobody knows one, a small part of the budget buys it: how many rows are
longer than each of a thousand lengths is one release, and any quantile can be read off it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import ArrayLike

from eigenveil.errors import require
from eigenveil.estimators.checks import center_of, is_real
from eigenveil.estimators.found_bounds import Candidate, FoundBounds
from eigenveil.estimators.small_release import SmallRelease
from eigenveil.linalg import Array
from eigenveil.privacy import Domain, Ledger, Neighbours
from eigenveil.privacy.domain import FARTHEST
from eigenveil.privacy.facts import ROW_TAILS, TableRows
from eigenveil.privacy.quantiles import Cells, Tails, bounded_tails, read_tails, tails_sensitivity
from eigenveil.rows import in_silence
from eigenveil.tasks import Totals
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["find_bounds", "numbers_of_range", "quantile_of"]

# A length is told to within 4.4%, upwards; finer cells would cost more noise than they are worth.
PER_DOUBLING: Final = 16
# Counts below so many standard deviations may be noise alone: where there is nobody they are exceeded in one of 100 releases.
SURE: Final = 2.5
# Shares of the budget: lengths around the origin, the mean, lengths around it. The rest is for another round, where the mean
# turns out to be a poor one beside how far rows lie from it, or makes the last lengths better.
_FIRST: Final = (0.3, 0.12, 0.25)
_AGAIN: Final = 0.12
# The doubt about the mean, as a share of the bound found around it, beyond which another round is worth its price. A third makes
# a bound 5% too large, one step.
_DOUBT: Final = 1 / 3
# But not where the lengths that it pays for would hide more people than this.
_HIDDEN: Final = 0.2
_DOUBTFUL: Final = (
    "much of this length is doubt about the mean: an origin nearer to it, or a larger epsilon, gives a smaller bound"
)
# Of rows without heavy tails the 0.95 quantile is no more than a few times the length that half of the people stay within.
_HEAVY: Final = 10.0
_HEAVIER: Final = (
    "it is {:.0f} times the length that half of the people stay within, and a fit with it has the noise of a table where all "
    "reach that far: rows have heavy tails, or noise has misled this search; a lower quantile costs far less"
)
_FAR: Final = (
    "sparse rows that lie so far from zero, beside how close together they lie, cannot be centered without losing the guarantee "
    "to rounding: make them dense, or take off a public point before they are stored"
)
_SHOWN: Final = (0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.999)


@in_silence
def find_bounds(
    X: Any,
    *,
    epsilon: float | None,
    delta: float | None = None,
    quantile: float = 0.95,
    center: Literal["private"] | ArrayLike | None = "private",
    origin: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    within: tuple[float, float] = (1e-9, 1e12),
    neighbours: Literal["add-remove", "zero-out", "replace-one"] = "add-remove",
    person: Any = None,
    ledger: Ledger | None = None,
    random_state: Any = None,
) -> FoundBounds:
    """A private bound on the length of rows `X`, (n, d), for a fit to come: the length that `quantile` of people stay within.

    With `center="private"`, as in a fit, rows will be cut around their mean, so that is found first: lengths around `origin`
    (zero unless given), the mean of rows cut to their quantile, and lengths around that mean. Where the mean turns out to be a
    poor one, both are done once more. With numbers or None for a `center`, lengths are around those or zero, in one release.
    `scale` are public units, as for a fit. Lengths are told apart in steps of 4.4% `within` a public range, and a bound is the
    upper end of its step.

    `epsilon` and `delta` are the budget of all of it: a tenth of what the fit gets is usually enough. A fit on the same people
    is a further cost: hand the same `ledger` to both, and they add up. `epsilon=None` must be written out and is exact, with no
    privacy. `neighbours`, `person` and `random_state` are as for `PrivatePCA`.

    Where so few people lie beyond the quantile that noise hides them, a lower quantile is taken, and the answer says so. Where
    that would cut more than half of the people, there is no answer.

    >>> import numpy as np
    >>> rows = np.random.default_rng(0).standard_normal((20_000, 4)) + 20
    >>> found = find_bounds(rows, epsilon=0.3, delta=1e-6, random_state=0)
    >>> print(round(found.row_bound, 2), found.center.round().tolist())   # the 0.95 quantile is 3.08
    3.22 [20.0, 20.0, 20.0, 20.0]
    """
    asked = quantile_of(quantile)
    cells = Cells.lengths(*numbers_of_range(within), per_doubling=PER_DOUBLING)
    release = SmallRelease.of(
        X,
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        person=person,
        ledger=ledger,
        random_state=random_state,
    )
    # A bound that is never used: origin and scale are checked as those of a fit.
    public = RowBounds.check(
        release.dim,
        private=False,
        row_bound=None,
        column_bounds=None,
        origin=origin,
        mean_bound=None,
        scale=scale,
        sparse=release.rows.sparse,
    )
    where = center_of(center, release.dim)
    search = _Search(release, cells, asked, public.scale, release.public_people())
    search.require_enough(_FIRST[0] if isinstance(where, str) else 1.0)
    with release.reserved("these bounds") as paid:
        search = replace(search, release=paid)
        if isinstance(where, str):
            return search.around_the_mean(public.origin)
        tails = search.read(search.lengths(where, share=1.0, label="lengths"), share=1.0)
        return search.found(tails, _read(tails, asked), center=where)


def quantile_of(quantile: Any) -> float:
    """A share of people of at least a half and less than all."""
    good = is_real(quantile) and 0.5 <= float(quantile) < 1
    require(good, f"quantile must be a number from 0.5 to below 1, got {quantile!r}")
    return float(quantile)


def numbers_of_range(within: Any) -> tuple[float, float]:
    """A pair of numbers."""
    try:
        lowest, highest = (float(number) for number in within)
    except (TypeError, ValueError):
        raise ValueError(f"within must be two numbers, the lowest and the highest, got {within!r}") from None
    return lowest, highest


@final
@dataclass(frozen=True, slots=True)
class _Answer:
    """The edge that was taken, or None, and what is to be said of it."""

    edge: int | None
    why: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """One search for a bound: its releases, and what is made of them."""

    release: SmallRelease
    cells: Cells
    quantile: float
    scale: Array | None
    people: float | None

    def lengths(self, center: Array | None, *, share: float, label: str) -> Array:
        """How many people lie beyond each length around `center`, as it is released: `read` makes sense of it."""
        domain = Domain(self.release.dim, math.inf, center, self.scale)
        near, rows = self.release.neighbours, self.release.rows
        private = bounded_tails(rows, domain=domain, cells=self.cells, neighbours=near)
        return self.release.mechanism().release(private, label=label, share=share)

    def read(self, released: Array, *, share: float) -> Tails:
        """What lengths released for this share say."""
        sensitivity = tails_sensitivity(self.cells.count, self.release.neighbours)
        noise = self.release.mechanism().scale(sensitivity, share=share)
        return read_tails(released, noise=noise, cells=self.cells, people=self.people)[0]

    def require_enough(self, share: float) -> None:
        """Refuse, before anything is spent, a public number of people that is too small for the budget."""
        if self.people is None or self.release.budget is None:
            return
        sensitivity = tails_sensitivity(self.cells.count, self.release.neighbours)
        # A row of A is as long as its first column: the largest error of a count.
        first = tails_sensitivity(self.cells.count, Neighbours.ADD_REMOVE)
        least = 2 * SURE * self.release.scale(sensitivity, share=share) * first
        require(
            self.people >= least,
            f"epsilon = {self.release.budget.epsilon:g} is too little for {self.people:.0f} people: lengths can be told "
            f"apart where there are about {least:.0f} or more; nothing was released",
        )

    def around_the_mean(self, origin: Array | None) -> FoundBounds:
        """Lengths around the origin, the mean of rows cut to their quantile, lengths around it; and once more if need be."""
        first, second, third = _FIRST
        left = 1.0 - first - second - third
        tails = self.read(self.lengths(origin, share=first, label="lengths around the origin"), share=first)
        answer = _read(tails, self.quantile)
        if answer.edge is None:
            return self.found(tails, answer, searched=True)
        reach = float(self.cells.edges[answer.edge])
        if self._too_far(origin, reach):
            return self.found(tails, _Answer(None, _FAR), searched=True)
        center, doubt = self._mean(origin, reach, tails.people, share=second, label="mean")
        released = self.lengths(center, share=third, label="lengths around the mean")
        tails = self.read(released, share=third)
        edge = _read(tails, self.quantile).edge
        hidden = SURE * float(tails.error.max()) * math.sqrt(third / (left - _AGAIN))
        within = 0.0 if edge is None else float(self.cells.edges[edge])
        poor = edge is not None and doubt > _DOUBT * within and not self._too_far(center, within)
        if poor and hidden <= _HIDDEN * tails.people:
            center, doubt = self._mean(center, within, tails.people, share=_AGAIN, label="mean, once more")
            left -= _AGAIN
            last = self.lengths(center, share=left, label="lengths around the mean, once more")
            tails = self.read(last, share=left)
        else:
            # Two releases of the same counts, averaged by their shares, are as good as one for both shares.
            last = self.lengths(center, share=left, label="lengths around the mean, once more")
            tails = self.read((third * released + left * last) / (third + left), share=third + left)
        answer = _read(tails, self.quantile)
        return self.found(tails, answer, mean_bound=reach, center=center, doubt=doubt, searched=True)

    def _too_far(self, center: Array | None, reach: float) -> bool:
        """Whether a fit would refuse to look for the mean of these rows within `reach` of `center`: known from releases alone."""
        if center is None or not self.release.rows.sparse:
            return False
        moved = center if self.scale is None else center / self.scale
        return float(np.linalg.norm(moved)) + reach > FARTHEST * reach

    def _mean(
        self, start: Array | None, reach: float, people: float, *, share: float, label: str
    ) -> tuple[Array, float]:
        """The mean of rows cut to `reach` around `start`, (d,), and how far off it may be, in the units of lengths."""
        release, dim = self.release, self.release.dim
        bounds = RowBounds(
            dim, reach, reach, False, start, self.scale, None, None, claimed=self.release.budget is not None
        )
        task = Totals(bounds.around_start(start), release.neighbours, sum_weight=1.0, name=label)
        mechanism = release.mechanism()
        private = task.private(task.ask(None), release.rows)
        found = task.update(None, mechanism.release(private, label=label, share=share)).sum
        assert found is not None
        entry = mechanism.scale(bounds.around_start(start).sum_sensitivity(release.neighbours), share=share)
        noise = entry * math.sqrt(dim)
        return bounds.center_from(start, found, people, noise=noise)[0], min(reach, noise / max(people, 1.0))

    def found(
        self,
        tails: Tails,
        answer: _Answer,
        *,
        mean_bound: float | None = None,
        center: Array | None = None,
        doubt: float = 0.0,
        searched: bool = False,
    ) -> FoundBounds:
        """All that can be said of these releases."""
        chosen = None if answer.edge is None else float(self.cells.edges[answer.edge])
        candidates = () if answer.edge is None else tuple(_candidates(tails, answer.edge))
        said = [answer.why]
        if chosen is not None:
            wide = chosen / candidates[0].bound
            said += [_DOUBTFUL] if doubt > chosen / 2 else []
            said += [_HEAVIER.format(wide)] if wide > _HEAVY else []
            said += [_FAR] if self._too_far(center, chosen) else []
        return FoundBounds(
            dim=self.release.dim,
            row_bound=chosen,
            mean_bound=mean_bound,
            center=center,
            center_error=doubt,
            searched=searched,
            scale=self.scale,
            quantile=self.quantile,
            people=tails.people,
            people_error=tails.people_error,
            candidates=candidates,
            why="; ".join(filter(None, said)),
            guarantee=self.release.guarantee(
                (*ROW_TAILS, "the mean") if center is not None and searched else ROW_TAILS,
                TableRows(given=("the origin", "the scale", "the center", "the range of lengths")),
            ),
            ledger=self.release.ledger,
        )


def _read(tails: Tails, quantile: float) -> _Answer:
    """The first edge beyond which no more people lie than the quantile leaves, or than noise alone may show."""
    error = float(tails.error.max())
    least = SURE * error
    wanted = (1 - quantile) * tails.people
    if 2 * least > tails.people or tails.people <= 0:
        about = f"{tails.people:.0f} people or so" if tails.people > error else "hardly anybody, as far as can be told"
        return _Answer(
            None,
            f"noise hides up to {least:.0f} people at this budget, and the table seems to hold {about}; it takes about "
            f"{2 * least:.0f} people, or a larger epsilon",
        )
    edge = tails.edge_above(max(wanted, least))
    if edge is None:
        top = tails.cells.edges[-1]
        return _Answer(
            None, f"too many rows are longer than {top:.3g}, the largest length looked for; give a scale or a range"
        )
    if edge == 0:
        return _Answer(
            None,
            f"nearly all rows are within {tails.cells.edges[0]:.3g} of the center, the smallest length looked for; give a scale "
            "or a range",
        )
    if least <= wanted:
        return _Answer(edge, "")
    lowered = 1 - least / tails.people
    return _Answer(
        edge,
        f"beyond the {quantile:g} quantile there are too few people to be told from noise at this budget, so this is the "
        f"{lowered:.2g} quantile",
    )


def _candidates(tails: Tails, chosen: int) -> Iterator[Candidate]:
    """Bounds at usual quantiles, as far as noise lets them be told apart, and the one that was chosen; rising."""
    least = SURE * float(tails.error.max())
    wanted = [(1 - share) * tails.people for share in _SHOWN]
    seen = {tails.edge_above(most) for most in wanted if most >= least}
    edges = sorted({edge for edge in seen if edge is not None and edge > 0} | {chosen})
    smallest = float(tails.cells.edges[edges[0]])
    for edge in edges:
        bound = float(tails.cells.edges[edge])
        yield Candidate(
            bound=bound,
            cut=float(tails.beyond[edge] / tails.people),
            error=float(tails.error[edge] / tails.people),
            noise=(bound / smallest) ** 2,
            fill=min(1.0, tails.square(edge) / bound**2),
        )
