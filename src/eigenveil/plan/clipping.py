"""What clipping costs: how much of the variance of *unclipped* rows is captured by directions that were found in clipped ones.

Clipping keeps the direction of every row and shortens the long ones, so nothing is lost where long rows lie along the same
directions as the others, whatever share of the squared norms they have. Two things lose. Where few rows have most of the squared
norms, exact components follow these rows' own directions. And in some tables long rows are of another kind.

A few rows may be so long that exact components of all rows follow them alone. Where the released counts show such rows, or make
them likely, the loss allows for them. Otherwise noise can still hide some, and the loss does not allow for these: `Norms.hidden`
says how many they are at most, and how long they would have to be.

Norms tell how likely that is, and directions do not show in them. Hence a distribution, whose constants were set on the tuning
tables of `benchmarks/plan/coverage.py` and tried on the others.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np

from eigenveil.core.rows import is_sparse
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.tasks.fit.bounds import Outliers
from eigenveil.tasks.levels import BEYOND

# Always the same draws: a forecast is a function of what it is told.
_SEED, _TAKEN_DRAWS = 2026, 200
# The tail beyond the last norm that is seen is taken to fall like a power of the norm. The power is estimated over at least this
# factor in shares, and compared with the power over another such factor before it.
_SPAN: Final = 2.5
# With a smaller power all is lost anyway, and squares of squares could overflow.
_LEAST_POWER: Final = 0.3
# The power is known to about this factor (natural logarithm), and to one that grows with the share of people that is not seen. In
# the middle of a distribution it is smaller than in the tail: by this much more for each share of people beyond.
_POWER_DOUBT, _UNSEEN_DOUBT, _STEEPER = 0.4, 1.0, 6.0
# Where norms are not known: this share of tables has heavy tails, with a power in the first range. Others have one in the second.
_HEAVY, _POWERS, _LIGHT = 0.18, (0.8, 3.0), (4.0, 12.0)
# Part of the squared norms that clipping takes from tables without heavy tails, where it is not known.
_TAKEN: Final = (0.02, 0.5)
# Of the squared norms that clipping takes, about this share is along other directions: median, and the natural logarithm of the
# spread.
_ELSEWHERE, _ELSEWHERE_DOUBT = 0.008, 1.6
# Of the variance of exactly standardised columns: units that are found are rough, and rows are clipped in them.
_UNITS, _UNITS_DOUBT = 0.05, 1.3
# Largest loss to chance, over (effective directions) / (effective people).
_CHANCE: Final = 1.2
# Long rows are of another kind with this probability, times a power of their share of the squared norms. They are 5% of the
# people.
_OTHER_KIND, _OTHER_POWER, _LONG = 0.6, 6.0, 0.05
# Rows are far longer than the bound from so many times on. They count as likely from these odds on, which noise alone gives
# once in 50 releases. One table in 20 is taken to have such rows.
_FAR_LONGER, _LIKELY, _WITH_OUTLIERS, _EVEN = 4.0, 2.0, 0.05, 0.5
# Their squared norms all together are known to about this factor (natural logarithm).
_SQUARE_DOUBT: Final = 1.0


@final
class LongRows(NamedTuple):
    """A `share` of the rows with about this `norm`, which have more variance than all others. They are there with this
    `chance`."""

    share: float
    norm: float
    chance: float

    def words(self, bound: float, *, times: str) -> str:
        """How many they are, and how many `times` as long as what.

        >>> LongRows(0.02, 5000.0, 0.9).words(8.0, times="times as long as the row bound")
        'About 2.0% of the rows seem to be 625 times as long as the row bound'
        """
        # Below an even chance, noise alone explains them better.
        verb = "seem to" if self.chance >= _EVEN else "may"
        return f"About {self.share:.1%} of the rows {verb} be {self.norm / bound:.3g} {times}"


@final
class HiddenRows(NamedTuple):
    """Rows that noise may hide: at most this `share`, with 95% confidence. Beyond this `norm` they have more variance than all
    others."""

    share: float
    norm: float


@final
@dataclass(frozen=True, slots=True)
class Norms:
    """Released norms of rows before clipping: the share `beyond[i]` of the people have rows longer than `norms[i]`.

    They are around the point where the search for a bound took them, close to the mean that it found. Shares fall and norms rise.
    Where they were released with noise, `outliers` says what it may hide beyond the last of them.

    >>> Norms((1.0, 2.0), (0.5, 0.1)).power
    2.32...
    """

    norms: tuple[float, ...]
    beyond: tuple[float, ...]
    outliers: Outliers | None = None

    def __post_init__(self) -> None:
        require(len(self.norms) == len(self.beyond), "every norm needs the share of people beyond it")
        good = all(0 < share < 1 for share in self.beyond) and all(0 < norm < math.inf for norm in self.norms)
        require(good, "norms must be positive, and shares between 0 and 1")
        require(all(np.diff(self.norms) >= 0) and all(np.diff(self.beyond) < 0), "norms must rise, and shares beyond them fall")

    @classmethod
    def read(cls, plain: Any, outliers: Any = None) -> "Norms | None":
        """Norms by the share of people with longer rows, and outliers, as a model keeps them; None if these are no such norms.

        >>> Norms.read({"0.5": 2.0, "0.1": 4.0})
        Norms(norms=(2.0, 4.0), beyond=(0.5, 0.1), outliers=None)
        """
        if not isinstance(plain, Mapping):
            return None
        try:
            # They come from a file, which may have been edited.
            pairs = sorted(((float(share), float(norm)) for share, norm in plain.items()), reverse=True)
            return cls(tuple(norm for _, norm in pairs), tuple(share for share, _ in pairs), Outliers.read(outliers))
        except (TypeError, ValueError):
            return None

    @classmethod
    def of_rows(cls, rows: Any) -> "Norms":
        """The norms of a PUBLIC table, (n, d), around its mean. Never pass private rows.

        >>> Norms.of_rows(np.array([[0.0], [2.0], [4.0], [6.0]])).norms[:4]
        (1.0, 1.0, 1.0, 3.0)
        """
        mean = np.asarray(rows.mean(axis=0)).ravel()
        if is_sparse(rows):
            squares = np.asarray(rows.multiply(rows).sum(axis=1)).ravel() - 2 * (rows @ mean) + mean @ mean
        else:
            squares = np.square(rows - mean).sum(axis=1)
        norms = np.sort(np.sqrt(np.maximum(squares, 0.0)))
        # Shares of less than one row say nothing, and norms of zero have no logarithm.
        places = [(share, norms[math.ceil((1 - share) * len(norms)) - 1]) for share in BEYOND if share * len(norms) >= 1]
        pairs = [(share, float(norm)) for share, norm in places if norm > 0]
        return cls(tuple(norm for _, norm in pairs), tuple(share for share, _ in pairs))

    def over(self, unit: float) -> "Norms":
        """The same norms in another unit."""
        outliers = None if self.outliers is None else self.outliers.over(unit)
        return Norms(tuple(norm / unit for norm in self.norms), self.beyond, outliers)

    def longest(self, bound: float) -> LongRows | None:
        """Rows far longer than `bound` that have more variance than all others, as far as norms or outliers show them.

        >>> Norms((1.0, 2.0, 90.0), (0.5, 0.1, 0.01)).longest(2.0), Norms((1.0, 2.0, 3.0), (0.5, 0.1, 0.01)).longest(2.0)
        (LongRows(share=0.01, norm=90.0, chance=1.0), None)
        """
        min_norm = _FAR_LONGER * bound
        for at in reversed(range(1, len(self.norms))):
            share, norm = self.beyond[at], self.norms[at]
            if norm >= min_norm and share * norm**2 >= self._square(at):
                return LongRows(share, norm, 1.0)
        far = self.outliers
        if far is None or far.odds < _LIKELY or far.norm < min_norm or far.share * far.norm**2 < self._square():
            return None
        return LongRows(far.share, far.norm, far.odds / (far.odds + 1 / _WITH_OUTLIERS - 1))

    def hidden(self) -> HiddenRows | None:
        """The rows that noise may hide; None where there is no noise, or nothing is known of it.

        >>> Norms((1.0, 2.0), (0.5, 0.1), Outliers(4.0, 0.01, 0.5, 0.001, 90.0)).hidden()
        HiddenRows(share=0.01, norm=11.18...)
        """
        far = self.outliers
        return None if far is None else HiddenRows(far.most, max(far.beyond, math.sqrt(self._square() / far.most)))

    def _square(self, end: int | None = None) -> float:
        """The mean squared norm of rows up to that of this place, spread evenly between norms that are seen."""
        squares = np.square(np.concatenate([[0.0], self.norms[:end]]))
        return float(-np.diff(self.beyond[:end], prepend=1.0) @ (squares[1:] + squares[:-1])) / 2

    @property
    def power(self) -> float | None:
        """The power of the norm with which the share of people beyond it falls at the end that is seen; None if too little is.

        Tails that are light fall ever faster. If the end falls more slowly than what is before it, the rest is taken to continue.
        """
        end = len(self.norms) - 1
        if end < 1:
            return None
        first = self._before(end, _SPAN)
        last = self._power(first, end)
        before = self._power(self._before(first, _SPAN), first) if first > 0 else last
        return max(_LEAST_POWER, last * min(1.0, last / before))

    def _before(self, end: int, span: float) -> int:
        """The last place at which so many times as many people are beyond, or the first place."""
        return next((at for at in reversed(range(end)) if self.beyond[at] >= span * self.beyond[end]), 0)

    def _power(self, first: int, last: int) -> float:
        if self.norms[first] == self.norms[last]:
            return _LIGHT[1]
        return math.log(self.beyond[first] / self.beyond[last]) / math.log(self.norms[last] / self.norms[first])


def kept_by_clipping(
    norms: Norms | None, *, bound: float, units: bool = False, people: int, values: Array, rng: np.random.Generator, draws: int
) -> Array:
    """Plausible ratios, (draws,): variance of unclipped rows along what is found in clipped ones, over the most possible.

    `bound` is the norm of clipping in units of the `norms`, and `values` are the eigenvalues of the
    clipped rows. With `units`, columns are divided by units that are found privately, and exactly standardised ones are meant.

    >>> rng, light, heavy = np.random.default_rng(0), Norms((1.0, 2.0), (0.5, 0.001)), Norms((1.0, 9.0), (0.5, 0.1))
    >>> values = np.array([0.5, 0.3])
    >>> [float(np.quantile(kept_by_clipping(norms, bound=1.0, people=5000, values=values, rng=rng, draws=500), 0.05)) > 0.9
    ...  for norms in (light, heavy)]
    [True, False]
    """
    ratios, long = np.empty(draws), None if norms is None else norms.longest(bound)
    effective_directions = float(values.sum() ** 2 / np.square(values).sum())
    for at in range(draws):
        squares, counts = _drawn_squares(norms, people, rng)
        has_long = long is not None and (long.chance == 1 or rng.random() < long.chance)
        if has_long and norms is not None and long is not None:
            squares, counts = _with(long, norms, squares, counts, people, rng)
        total = float(counts @ squares)
        # Four people with all of the squared norms count as four people (Kish).
        effective_people = total**2 / float(counts @ np.square(squares))
        fewer = max(0.0, 1 / effective_people - 1 / people)
        longest = np.minimum(np.cumsum(counts[::-1]), _LONG * people)
        share = float(np.diff(longest, prepend=0.0) @ squares[::-1]) / total
        if norms is None:
            taken = 1.0 if effective_people < people / 10 else rng.uniform(*_TAKEN)
        else:
            taken = 1 - float(counts @ np.minimum(squares, (bound / norms.norms[-1]) ** 2)) / total
        chance = effective_directions * fewer
        part, doubt = (_UNITS, _UNITS_DOUBT) if units else (_ELSEWHERE, _ELSEWHERE_DOUBT)
        taken = 1.0 if units else taken
        lost = part * math.exp(doubt * rng.standard_normal())
        lost += rng.uniform(0, _CHANCE) * chance / (1 + chance)
        if rng.random() < _OTHER_KIND * share**_OTHER_POWER:
            # Of long rows that have it all, clipping leaves next to nothing where they lie along other directions.
            lost = 1 - (1 - share) * rng.random() if has_long else max(lost, share * rng.random())
        ratios[at] = 1 - min(1.0, taken * lost)
    return ratios


def _drawn_squares(norms: Norms | None, people: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Plausible squared norms, rising, over that of the last norm that is seen, and how many people have each."""
    power = None if norms is None else norms.power
    if norms is None or power is None:
        heavy = rng.random() < _HEAVY
        power = rng.uniform(*(_POWERS if heavy else _LIGHT))
        lengths, beyond = np.array([0.5, 1.0]), np.array([0.75, 0.25])
    else:
        lengths, beyond = np.array(norms.norms), np.array(norms.beyond)
        doubt = _POWER_DOUBT + _UNSEEN_DOUBT * float(beyond[-1])
        power *= (1 + _STEEPER * float(beyond[-1])) * math.exp(doubt * rng.standard_normal())
        power = max(_LEAST_POWER, power)
    # Up to the last norm that is seen, people are spread evenly between those that are.
    ends = np.concatenate([[0.0], lengths / lengths[-1]])
    squares = np.square(ends)
    body = (squares[1:] + squares[:-1]) / 2
    counts = -np.diff(beyond, prepend=1.0) * people
    # Beyond it, the i-th longest of m has the norm (m / i)^(1 / power).
    left = max(1.0, float(beyond[-1]) * people)
    ranks = np.unique(np.round(np.geomspace(1, left, 60)))
    middle = np.sqrt(ranks * np.append(ranks[1:] - 1, left))
    tail = (left / np.maximum(middle - 0.5, 0.5)) ** (2 / power)
    number = np.diff(np.append(ranks - 1, left))
    return np.concatenate([body, tail[::-1]]), np.concatenate([counts, number[::-1]])


def _with(
    long: LongRows, norms: Norms, squares: Array, counts: Array, people: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Squared norms and how many people have each, with the long rows, whose squares are known to about a factor."""
    square = (long.norm / norms.norms[-1]) ** 2 * math.exp(_SQUARE_DOUBT * rng.standard_normal())
    return np.append(squares, square), np.append(counts, long.share * people)


def taken_by_clipping(norms: Norms, *, bound: float, people: int) -> tuple[float, float, float]:
    """The share of all squared norms that clipping to `bound` takes, from the released `norms`: the median and two ends.

    The lower end is what it takes if no row is longer than the last norm that is seen, the upper one a 0.95 quantile. Rows
    that seem to be far longer count with their chance.

    >>> value, low, high = taken_by_clipping(Norms((1.0, 2.0, 3.0), (0.5, 0.1, 0.001)), bound=3.0, people=10_000)
    >>> low <= value <= high < 0.1
    True
    """
    rng, max_square, long = np.random.default_rng(_SEED), (bound / norms.norms[-1]) ** 2, norms.longest(bound)

    def taken(squares: Array, counts: Array) -> float:
        return 1 - float(counts @ np.minimum(squares, max_square)) / float(counts @ squares)

    shares = []
    for _ in range(_TAKEN_DRAWS):
        squares, counts = _drawn_squares(norms, people, rng)
        shown = (squares, counts)
        if long is not None and (long.chance == 1 or rng.random() < long.chance):
            shown = _with(long, norms, squares, counts, people, rng)
        shares.append((taken(*shown), taken(np.minimum(squares, 1.0), counts)))
    draws = np.array(shares)
    value, high = np.quantile(draws[:, 0], [0.5, 0.95]).tolist()
    return value, min(value, float(draws[:, 1].min())), high
