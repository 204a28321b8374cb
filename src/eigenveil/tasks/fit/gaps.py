"""Rows with gaps: which gaps a caller declares (`gaps_of`), and sums divided by the rates of entries (`Rates`).

A missing entry is put at the center, so that it adds nothing. Let r be the rate of a column. If rows lack it by chance, a sum
over the rows that have it is r times that over all rows. An entry of the Gram matrix is a sum over the rows that have both
columns. Rates come from released counts, so dividing by them is free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import ParameterError, require_param, verbatim
from eigenveil.linalg import Array, top_eigen
from eigenveil.privacy import Gaps

__all__ = ["Rates", "gaps_of", "observed_noise", "rule_of"]

# With noise, a column is divided by no less than this: hardly anything is known of one that is rarer.
_LEAST: Final = 0.02
# In larger matrices noise is not told from the rest: all eigenvectors would take longer than the fit itself.
_MOST_COLUMNS: Final = 2000


def rule_of(asked: Any) -> str:
    """The rule for missing values that `asked` declares, "refuse" where it has no such parameter.

    >>> rule_of(object())
    'refuse'
    """
    rule = getattr(asked, "missing", "refuse")
    if isinstance(rule, str):
        return rule
    # A stream over slots has a method of that name, which says who was missing. Public values are the only rule it takes.
    return "refuse" if getattr(asked, "missing_fill", None) is None else "fill"


def gaps_of(asked: Any, dim: int, *, names: Sequence[str] | None, sparse: bool) -> Gaps | None:
    """The gaps that the parameters `missing`, `missing_groups` and `missing_fill` declare, None if there must be none.

    Nothing here is read from the data: whether a table may have gaps is public.
    """
    rule = rule_of(asked)
    if rule == "refuse":
        return None
    if rule == "counts":
        return Gaps.counted(dim)
    if rule == "drop":
        return Gaps.dropped(dim)
    if rule == "fill":
        given = asked.missing_fill
        require_param(given is not None, "{missing=fill} needs {missing_fill}: a public value for each column")
        values = np.asarray(given, dtype=np.float64)
        require_param(
            values.shape in {(), (dim,)},
            f"{{missing_fill}} must be a number or {dim} numbers, got shape {values.shape}",
        )
        require_param(bool(np.isfinite(values).all()), "{missing_fill} must be finite")
        return Gaps.filled(np.broadcast_to(values, (dim,)))
    require_param(
        asked.missing_groups is not None, "{missing=groups} needs {missing_groups}: which columns are missing together"
    )
    require_param(not sparse, "{missing=groups} needs dense rows. Use {missing=counts} for sparse ones")
    return Gaps.grouped(_grouped(asked.missing_groups, dim, names))


def _grouped(text: str, dim: int, names: Sequence[str] | None) -> NDArray[np.int64]:
    """The group of each column, (d,), numbered from zero. A column that no group names is one by itself."""
    known = [str(place) for place in range(dim)] if names is None else list(names)
    owner: dict[int, int] = {}
    for number, entries in enumerate(text.split(";")):
        for entry in filter(None, (part.strip() for part in entries.split(","))):
            # The exact name counts as well: as a pattern, a column called `a[1]` would mean `a1`.
            found = [place for place, name in enumerate(known) if name == entry or fnmatchcase(name, entry)]
            if not found and entry.isdecimal() and int(entry) < dim:
                # A table with names has numbers for its columns, too.
                found = [int(entry)]
            if not found:
                which = "column numbers from 0" if names is None else "column names, patterns or numbers from 0"
                raise ParameterError(
                    f"{{missing_groups}} names {verbatim(repr(entry))}, and must name {which} of the table"
                )
            for place in found:
                twice = owner.setdefault(place, number) != number
                require_param(not twice, f"{{missing_groups}} names column {verbatim(known[place])} in two groups")
    # Groups are numbered in the order of their first column, so the same groups in another order give the same fit.
    keys = [("group", owner[place]) if place in owner else ("column", place) for place in range(dim)]
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys], dtype=np.int64)


def observed_noise(gaps: Gaps | None, *, multiplier: float, share: float) -> float:
    """The noise on each observed count, if this is the noise on a total over its sensitivity at a share of one."""
    return 0.0 if gaps is None or share == 0 else multiplier * gaps.sensitivity() / math.sqrt(share)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """The rate of each column, (d,), and the rates of pairs of groups of columns, (g, g), None where columns are independent.

    `group`, (d,), is the group of each column.

    >>> rates = Rates.of(Gaps.counted(2), np.array([50.0, 100.0]), people=100.0, noise=0.0)
    >>> rates.of_pairs().tolist()
    [[0.5, 0.5], [0.5, 1.0]]
    """

    columns: Array
    joint: Array | None
    group: NDArray[np.int64]

    @classmethod
    def of(cls, gaps: Gaps, observed: Array, *, people: float, noise: float) -> "Rates":
        """From released counts, (c,), with `noise` on each, and the number of people.

        Rates of columns are moved towards their average by as much as noise spreads them, and those of pairs towards the product
        of the two rates (James and Stein 1961). So where noise is all there is, columns are treated alike.
        """
        people = max(people, 1.0)
        # Without noise a count is exact, so the smallest rate that can be seen is that of one person.
        least = _LEAST if noise > 0 else 1.0 / people
        found, error = observed / people, noise / people
        # Pairs of single columns are not counted: with a sensitivity near d / sqrt(2) they cost more than they tell.
        if gaps.rule == "counts":
            found = np.clip(_towards(np.full(len(found), found.mean()), found, error=error), least, 1.0)
            return cls(found, None, gaps.group)
        upper = np.triu_indices(gaps.groups)
        joint = np.zeros((gaps.groups, gaps.groups))
        joint[upper] = found
        single = np.clip(joint.diagonal(), least, 1.0)
        apart = np.triu_indices(gaps.groups, 1)
        joint[apart] = _towards(np.outer(single, single)[apart], joint[apart], error=error)
        joint = np.clip(np.triu(joint, 1) + np.triu(joint, 1).T, least, 1.0)
        # Nobody has a pair without having both of its groups.
        joint = np.minimum(joint, np.minimum.outer(single, single))
        np.fill_diagonal(joint, single)
        return cls(single[gaps.group], joint, gaps.group)

    @classmethod
    def of_complete(cls, gaps: Gaps, rate: float) -> "Rates":
        """Where incomplete rows are left out: the same rate everywhere."""
        rate = min(max(rate, _LEAST), 1.0)
        return cls(np.full(len(gaps.group), rate), np.full((1, 1), rate), gaps.group)

    def of_pairs(self, here: slice = slice(None)) -> Array:
        """The share of people, (d, w), who have both of two columns, the second one of those `here`."""
        if self.joint is not None:
            # One rate for everything, where incomplete rows are left out.
            group = self.group if len(self.joint) > 1 else np.zeros_like(self.group)
            return np.asarray(self.joint[np.ix_(group, group[here])])
        pairs = np.outer(self.columns, self.columns[here])
        # A column is never there without itself, so the diagonal has its rate and not the square of it.
        places = np.arange(len(self.columns))[here]
        pairs[places, np.arange(len(places))] = self.columns[here]
        return pairs

    @property
    def rarest(self) -> float:
        """The smallest rate of a pair: no entry of the noise becomes louder than by one over it."""
        if self.joint is not None:
            return float(self.joint.min())
        return float(np.sort(self.columns)[:2].prod()) if len(self.columns) > 1 else float(self.columns[0])

    def whole_sum(self, total: Array) -> Array:
        """The sum over all rows, (d,), from that of rows with gaps."""
        return total / self.columns

    @property
    def sum_noise(self) -> float:
        """How much larger the norm of the noise on the sum becomes by the division."""
        return math.sqrt(float(np.mean(self.columns**-2.0)))

    def whole_gram(self, gram: Array, *, noise: float) -> tuple[Array, float]:
        """The Gram matrix of all rows, (d, d), from that of rows with gaps; and how much larger its noise becomes.

        Entry G_ij = p_ij A_ij + noise is divided by the rate p_ij, which also divides the `noise` on an entry. So an entry that
        is seldom seen counts for less (Wiener 1949). With t^2 the mean square of A_ij, the best linear estimate is
        (G_ij / p_ij) / (1 + k / p_ij^2), with k = noise^2 / t^2. It is multiplied by 1 + k / max p^2, so that nothing shrinks
        where all rates are equal or there is no noise.

        The noise is the same on all entries of G before they are divided, and this is when it can be told from the rest. Most
        of it lies along eigenvectors in which nothing else stands out. Only what stands out (`_above_noise`) gets factors
        larger than one, so that the rest of the noise becomes no louder. The norm of noise with entries of different sizes is
        at most that of one with all rows as loud as the loudest (Bandeira and van Handel 2016).
        """
        pairs = self.of_pairs()
        squares = np.square(pairs)
        # The squares of released entries have those of the noise in them, so these are taken out first.
        signal = (float(np.square(gram).sum()) - gram.size * noise**2) / float(squares.sum())
        # If noise is all there is, entries count as their rates do, and no number overflows.
        ratio = min(noise**2 / signal, 1e6) if signal > 0 else 1e6 if noise > 0 else 0.0
        factors = (1 + ratio / float(squares.max())) / (pairs + ratio / pairs)
        # Without a bound on rows the noise is not a number, and there is none.
        loud = _above_noise(gram, noise=noise) if noise > 0 and len(gram) <= _MOST_COLUMNS else gram
        whole = loud * factors + (gram - loud) * np.minimum(factors, 1.0)
        # An upper bound on the growth: what does not stand out grows less.
        return whole, math.sqrt(float(np.square(factors).mean(axis=1).max()))


def _above_noise(gram: Array, *, noise: float) -> Array:
    """The part of a matrix, (d, d), that stands out from symmetric `noise` on its entries.

    Eigenvalues of noise alone end at e = 2 noise sqrt(d). One of size t above e / 2 is seen as v = t + e^2 / (4 t)
    (Benaych-Georges and Nadakuditi 2011), so it was t = (v + sqrt(v^2 - e^2)) / 2.
    """
    values, vectors = top_eigen(gram, rank=len(gram))
    edge = 2 * noise * math.sqrt(len(gram))
    count = int((values > edge).sum())
    seen = values[:count]
    true = (seen + np.sqrt(np.square(seen) - edge**2)) / 2
    return np.asarray((vectors[:, :count] * true) @ vectors[:, :count].T)


def _towards(prior: Array, found: Array, *, error: float) -> Array:
    """`found`, moved towards `prior` by as much as noise of this `error` on each number explains their distance."""
    distance = float(np.square(found - prior).sum())
    # The rule subtracts three where the prior is the average of the same numbers. For pairs that is cautious.
    free = len(found) - 3
    # The factor stops at zero: beyond the prior, the plain rule only adds error.
    kept = 1.0 if free <= 0 or distance == 0 else max(0.0, 1.0 - free * error**2 / distance)
    return prior + kept * (found - prior)
