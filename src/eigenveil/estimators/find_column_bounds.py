"""`find_column_bounds`: a range for each column, found privately, for a fit that cuts entries.

One person is in every column, so d columns cost sqrt(d) times the noise of one: with a bound on rows alone (`find_bounds`) far
fewer people suffice.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import ArrayLike

from eigenveil.errors import require
from eigenveil.estimators.find_bounds import SURE, numbers_of_range, quantile_of
from eigenveil.estimators.small_release import SmallRelease
from eigenveil.linalg import Array
from eigenveil.privacy import Domain, Guarantee, Ledger, Neighbours
from eigenveil.privacy.facts import COLUMN_TAILS, TableRows
from eigenveil.privacy.quantiles import Cells, Tails, bounded_column_tails, read_tails, tails_sensitivity
from eigenveil.rows import in_silence
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["FoundColumnBounds", "find_column_bounds"]

# A size is told to within 9%, away from the origin.
_PER_DOUBLING: Final = 8
# More columns than this would need more memory for their counts than a table of them.
_MOST_COLUMNS: Final = 20_000


@final
@dataclass(frozen=True, slots=True, eq=False)
class FoundColumnBounds:
    """What `find_column_bounds` found: `low` and `high`, (d,), in the units of the columns, None where nothing could be said.

    About `cut` of people have an entry that is cut, in each column and on each side, give or take `error`. `flat`, (d,), says of
    which columns nearly all entries are at their origin. `why` says why nothing could be said, or what is to be known of the
    answer.
    """

    low: Array | None
    high: Array | None
    flat: Any
    columns: tuple[str, ...] | None
    quantile: float
    cut: float
    error: float
    people: float
    people_error: float
    why: str
    guarantee: Guarantee
    ledger: Ledger | None

    @property
    def settings(self) -> dict[str, Any]:
        """What a fit is to be given: `PrivatePCA(5, epsilon=0.9, delta=1e-6, **found.settings)`. A `ValueError` if nothing is."""
        require(self.low is not None, f"no bounds were found: {self.why}")
        return {"column_bounds": (self.low, self.high)}

    @property
    def origin(self) -> Array:
        """The middle of each column's range, (d,)."""
        low, high = self._range()
        return np.asarray((low + high) / 2)

    @property
    def scale(self) -> Array:
        """Half of each column's range, (d,): units in which columns of every kind weigh the same, in a fit with `scale`.

        A flat column has no range of its own, and gets the largest unit of the others: a rare entry is not to outweigh them.
        """
        low, high = self._range()
        half = (high - low) / 2
        return np.where(self.flat, half[~self.flat].max(initial=0.0) or 1.0, half)

    def _range(self) -> tuple[Array, Array]:
        require(self.low is not None, f"no bounds were found: {self.why}")
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def words(self) -> str:
        """The answer and the cost, as text."""
        return "\n".join(self._lines())

    def __str__(self) -> str:
        return self.words()

    def _lines(self) -> Iterator[str]:
        if self.low is None or self.high is None:
            yield f"Nothing can be said: {self.why}."
        else:
            yield (
                f"column_bounds: about {self.cut:.1%} of people are cut on each side of each column "
                f"(give or take {self.error:.1%})."
            )
            if self.why:
                yield f"{self.why[0].upper()}{self.why[1:]}."
            names = self.columns or tuple(f"column {i}" for i in range(1, len(self.low) + 1))
            for name, low, high in zip(names, self.low, self.high, strict=True):
                yield f"  {name}: {low:.4g} to {high:.4g}"
        yield self.guarantee.headline + ("" if self.guarantee.epsilon is None else ".")


@in_silence
def find_column_bounds(
    X: Any,
    *,
    epsilon: float | None,
    delta: float | None = None,
    quantile: float = 0.95,
    origin: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    within: tuple[float, float] = (1e-6, 1e9),
    neighbours: Literal["add-remove", "zero-out", "replace-one"] = "add-remove",
    person: Any = None,
    ledger: Ledger | None = None,
    random_state: Any = None,
) -> FoundColumnBounds:
    """A private range for each column of `X`, (n, d), that holds `quantile` of its entries: equally many are cut on each side.

    Entries are told apart by how far they lie from the public `origin` of their column (zero unless given) in units of the public
    `scale`, in steps of 9% `within` a range of sizes; a range is given to the outer ends of its steps. So an origin in the middle
    of a column that lies far from zero, such as years, makes its range finer. One release serves all columns and costs sqrt(d)
    times the noise of one. Everything else is as in `find_bounds`.

    >>> rows = np.random.default_rng(0).standard_normal((20_000, 2)) * [1, 30] + [0, 100]
    >>> found = find_column_bounds(rows, epsilon=0.5, delta=1e-6, random_state=0)
    >>> found.low.round(1).tolist(), found.high.round(1).tolist()
    ([-2.0, 41.5], [2.2, 166.0])
    """
    asked = quantile_of(quantile)
    cells = Cells.signed(*numbers_of_range(within), per_doubling=_PER_DOUBLING)
    release = SmallRelease.of(
        X,
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        person=person,
        ledger=ledger,
        random_state=random_state,
    )
    dim, near = release.dim, release.neighbours
    require(
        dim <= _MOST_COLUMNS, f"ranges can be found for {_MOST_COLUMNS} columns at most, got {dim}; take find_bounds"
    )
    public = RowBounds.check(
        dim,
        private=False,
        row_bound=None,
        column_bounds=None,
        origin=origin,
        mean_bound=None,
        scale=scale,
        sparse=release.rows.sparse,
    )
    people = release.public_people()
    # Of many columns one is likely to be further off: the largest of d errors is about sqrt(2 ln d) of them.
    sure = math.sqrt(SURE**2 + 2 * math.log(dim))
    noise = release.scale(tails_sensitivity(cells.count, near, columns=dim))
    least = sure * noise * tails_sensitivity(cells.count, Neighbours.ADD_REMOVE)
    require(
        people is None or people >= 4 * least,
        f"epsilon is too little for {people or 0:.0f} people: ranges of {dim} columns can be told where there are about "
        f"{4 * least:.0f} or more; nothing was released",
    )
    domain = Domain(dim, math.inf, public.origin, public.scale)
    with release.reserved("these bounds") as paid:
        private = bounded_column_tails(release.rows, domain=domain, cells=cells, neighbours=near)
        released = paid.mechanism().release(private, label="columns")
    tails = read_tails(released, noise=noise, cells=cells, people=people)
    return _found(paid, tails, asked, least, domain)


def _found(
    release: SmallRelease, tails: tuple[Tails, ...], quantile: float, least: float, domain: Domain
) -> FoundColumnBounds:
    """What all these counts say together."""
    first = tails[0]
    people = first.people
    wanted = (1 - quantile) / 2 * people
    most = max(wanted, least)
    low, high, flat, why = None, None, np.zeros(len(tails), dtype=bool), ""
    if people <= 0 or 4 * least > people:
        about = (
            f"{people:.0f} people or so" if people > 2 * first.people_error else "hardly anybody, as far as can be told"
        )
        why = (
            f"noise hides up to {least:.0f} people in each of {len(tails)} columns at this budget, and the table seems to hold "
            f"{about}; it takes about {4 * least:.0f} people, or a larger epsilon"
        )
    else:
        low, high, flat = _ranges(tails, most, domain, sparse=release.rows.sparse)
        if least > wanted:
            why = (
                f"so few people are outside of the {quantile:g} that noise hides them at this budget: these ranges hold about "
                f"{1 - 2 * most / people:.2g} of each column"
            )
    return FoundColumnBounds(
        low=low,
        high=high,
        flat=flat,
        columns=release.columns,
        quantile=quantile,
        cut=most / people if people > 0 else 1.0,
        error=float(first.error.max()) / people if people > 0 else 0.0,
        people=people,
        people_error=first.people_error,
        why=why,
        guarantee=release.guarantee(COLUMN_TAILS, TableRows(given=("the origin", "the scale", "the range of sizes"))),
        ledger=release.ledger,
    )


def _ranges(tails: tuple[Tails, ...], most: float, domain: Domain, *, sparse: bool) -> tuple[Array, Array, Any]:
    """The lowest and the highest edge for each column, in its own units, and which columns have nothing between the two.

    Where there is no edge further out, the outermost serves."""
    edges = tails[0].cells.edges
    below = [column.edge_below(most) for column in tails]
    above = [column.edge_above(most) for column in tails]
    low = edges[[0 if edge is None else edge for edge in below]]
    high = edges[[-1 if edge is None else edge for edge in above]]
    # Noise can turn the two around where nearly everything is in one cell.
    low, high = np.minimum(low, high), np.maximum(low, high)
    smallest = edges[edges > 0][0]
    flat = (low >= -smallest) & (high <= smallest)
    units = 1.0 if domain.scale is None else domain.scale
    start = 0.0 if domain.center is None else domain.center
    low, high = low * units + start, high * units + start
    # A fit refuses to cut the zeros of sparse rows.
    return (np.minimum(low, 0.0), np.maximum(high, 0.0), flat) if sparse else (low, high, flat)
