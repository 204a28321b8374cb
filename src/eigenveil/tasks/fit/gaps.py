"""Rows with gaps: which gaps a caller declares (`gaps_of`), and sums divided by the rates of entries (`Rates`).

A missing entry is put at the center, so that it adds nothing. Let r be the rate of a column. If rows lack it by chance, a sum
over the rows that have it is r times that over all rows. An entry of the Gram matrix is a sum over the rows that have both
columns. Rates come from released counts, so dividing by them is free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.domain import MissingPolicy
from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Calibrated, Mechanism
from eigenveil.errors import ParameterError, require, require_param, verbatim
from eigenveil.linalg import Array, top_eigen

__all__ = ["LEAST_RATE", "Extent", "PartialBudget", "Rates", "Split", "gaps_of", "observed_noise", "rule_of", "split_budget"]

# With noise, a column is divided by no less than this: hardly anything is known of one that is rarer.
LEAST_RATE: Final = 0.02
# The penalty on the model's eigenvalues, over the largest that noise alone has. Chosen on 13 tables, eight of them synthetic,
# that are not in the benchmark: from 0.2 to 0.3 they gain the same (docs/decisions/0029).
_PENALTY: Final = 0.25
# Steps of the model. After 15 it changes no more than chance does.
_STEPS: Final = 15
# In larger matrices there are no such steps: their eigenvectors would take longer than the fit itself.
_MOST_COLUMNS: Final = 400


def rule_of(params: Any) -> str:
    """The rule for missing values that `params` declares, "refuse" where it has no such parameter.

    >>> rule_of(object())
    'refuse'
    """
    return str(getattr(params, "missing", "refuse"))


def gaps_of(params: Any, dim: int, *, names: Sequence[str] | None, sparse: bool) -> MissingPolicy | None:
    """The gaps that the parameters `missing`, `missing_groups` and `missing_fill` declare, None if there must be none.

    Nothing here is read from the data: whether a table may have gaps is public.
    """
    rule = rule_of(params)
    if rule == "refuse":
        return None
    if rule == "counts":
        return MissingPolicy.counted(dim)
    if rule == "drop":
        return MissingPolicy.dropped(dim)
    if rule == "fill":
        fill = params.missing_fill
        require_param(fill is not None, "{missing=fill} needs {missing_fill}: a public value for each column")
        values = np.asarray(fill, dtype=np.float64)
        require_param(
            values.shape in {(), (dim,)}, f"{{missing_fill}} must be a number or {dim} numbers, got shape {values.shape}"
        )
        require_param(bool(np.isfinite(values).all()), "{missing_fill} must be finite")
        return MissingPolicy.filled(np.broadcast_to(values, (dim,)))
    require_param(
        params.missing_groups is not None, "{missing=groups} needs {missing_groups}: which columns are missing together"
    )
    require_param(not sparse, "{missing=groups} needs dense rows. Use {missing=counts} for sparse ones")
    return MissingPolicy.grouped(_grouped(params.missing_groups, dim, names))


def _grouped(text: str, dim: int, names: Sequence[str] | None) -> NDArray[np.int64]:
    """The group of each column, (d,), numbered from zero. A column that no group names is one by itself."""
    columns = [str(index) for index in range(dim)] if names is None else list(names)
    owner: dict[int, int] = {}
    for number, entries in enumerate(text.split(";")):
        for entry in filter(None, (part.strip() for part in entries.split(","))):
            # The exact name counts as well: as a pattern, a column called `a[1]` would mean `a1`.
            matches = [index for index, name in enumerate(columns) if name == entry or fnmatchcase(name, entry)]
            if not matches and entry.isdecimal() and int(entry) < dim:
                # A table with names has numbers for its columns, too.
                matches = [int(entry)]
            if not matches:
                which = "column numbers from 0" if names is None else "column names, patterns or numbers from 0"
                raise ParameterError(f"{{missing_groups}} names {verbatim(repr(entry))}, and must name {which} of the table")
            for index in matches:
                twice = owner.setdefault(index, number) != number
                require_param(not twice, f"{{missing_groups}} names column {verbatim(columns[index])} in two groups")
    # Groups are numbered in the order of their first column, so the same groups in another order give the same fit.
    keys = [("group", owner[index]) if index in owner else ("column", index) for index in range(dim)]
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys], dtype=np.int64)


def observed_noise(gaps: MissingPolicy | None, *, multiplier: float, share: float) -> float:
    """The noise on each observed count, if this is the noise on a total over its sensitivity at a share of one."""
    return 0.0 if gaps is None or share == 0 else multiplier * gaps.sensitivity() / math.sqrt(share)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """The rate of each column, (d,), and the rates of pairs of groups of columns, (g, g), None where columns are independent.

    `group`, (d,), is the group of each column.

    >>> rates = Rates.of(MissingPolicy.counted(2), np.array([50.0, 100.0]), people=100.0, noise=0.0)
    >>> rates.of_pairs().tolist()
    [[0.5, 0.5], [0.5, 1.0]]
    """

    columns: Array
    joint: Array | None
    group: NDArray[np.int64]

    @classmethod
    def of(cls, gaps: MissingPolicy, observed: Array, *, people: float, noise: float) -> "Rates":
        """From released counts, (c,), with `noise` on each, and the number of people.

        Rates of columns are moved towards their average by as much as noise spreads them, and those of pairs towards the product
        of the two rates (James and Stein 1961). Where noise is all there is, columns are treated alike.
        """
        people = max(people, 1.0)
        if gaps.less_half:
            # They were taken less half of the people, which halves their noise.
            observed = observed + people / 2
        # Without noise a count is exact, so one person decides the smallest rate that can be seen.
        min_rate = LEAST_RATE if noise > 0 else 1.0 / people
        rates, error = observed / people, noise / people
        # Pairs of single columns are not counted: with a sensitivity near d / sqrt(2) they cost more than they tell.
        if gaps.rule == "counts":
            rates = np.clip(_towards(np.full(len(rates), rates.mean()), rates, error=error), min_rate, 1.0)
            return cls(rates, None, gaps.group)
        upper = np.triu_indices(gaps.groups)
        joint = np.zeros((gaps.groups, gaps.groups))
        joint[upper] = rates
        single = np.clip(joint.diagonal(), min_rate, 1.0)
        apart = np.triu_indices(gaps.groups, 1)
        joint[apart] = _towards(np.outer(single, single)[apart], joint[apart], error=error)
        joint = np.clip(np.triu(joint, 1) + np.triu(joint, 1).T, min_rate, 1.0)
        # A pair is observed only where both of its groups are.
        joint = np.minimum(joint, np.minimum.outer(single, single))
        np.fill_diagonal(joint, single)
        return cls(single[gaps.group], joint, gaps.group)

    @classmethod
    def of_complete(cls, gaps: MissingPolicy, rate: float) -> "Rates":
        """Where incomplete rows are left out: the same rate everywhere."""
        rate = min(max(rate, LEAST_RATE), 1.0)
        return cls(np.full(len(gaps.group), rate), np.full((1, 1), rate), gaps.group)

    def of_pairs(self, span: slice = slice(None)) -> Array:
        """The share of people, (d, w), who have both of two columns, the second one of those `span`."""
        if self.joint is not None:
            # One rate for everything, where incomplete rows are left out.
            group = self.group if len(self.joint) > 1 else np.zeros_like(self.group)
            return np.asarray(self.joint[np.ix_(group, group[span])])
        pairs = np.outer(self.columns, self.columns[span])
        # A column is never there without itself, so the diagonal has its rate and not the square of it.
        places = np.arange(len(self.columns))[span]
        pairs[places, np.arange(len(places))] = self.columns[span]
        return pairs

    @property
    def rarest(self) -> float:
        """The smallest rate of a pair: no entry of the noise becomes louder than by one over it."""
        if self.joint is not None:
            return float(self.joint.min())
        return float(np.sort(self.columns)[:2].prod()) if len(self.columns) > 1 else float(self.columns[0])

    def full_sum(self, total: Array) -> Array:
        """The sum over all rows, (d,), from the sum of rows with gaps."""
        return total / self.columns

    @property
    def sum_noise(self) -> float:
        """How much larger the norm of the noise on the sum becomes by the division."""
        return math.sqrt(float(np.mean(self.columns**-2.0)))

    def full_gram(self, gram: Array, *, noise: float) -> tuple[Array, float]:
        """The Gram matrix of all rows, (d, d), from the one of rows with gaps; and how much larger its noise becomes.

        Entry G_ij = p_ij A_ij + noise lacks what the rows without both columns would have added, (1 - p_ij) A_ij. Without noise
        A_ij is G_ij / p_ij. With it, dividing would make an entry that is seldom seen louder by 1 / p_ij. What is lacking
        therefore comes from a model of A, and G stays as it was released. Where nothing is missing, nothing changes.

        The model minimises ||P o A - G||^2 / 2 + t ||A||_* over positive semi-definite A. The nuclear norm is a prior for few
        strong directions (`_model`). In a large matrix the squared norm takes its place, and the model is p G / (p^2 + k) with
        k the noise over the signal (Wiener 1949).
        """
        pairs = self.of_pairs()
        # Without a bound on rows the noise is not a number, and there is none.
        if not noise > 0:
            return gram / pairs, 1.0
        squares = np.square(pairs)
        # The squares of released entries include the squared noise, which is taken out first.
        signal = (float(np.square(gram).sum()) - gram.size * noise**2) / float(squares.sum())
        # If noise is all there is, the model is nothing, and no number overflows.
        weights = pairs / (squares + (min(noise**2 / signal, 1e6) if signal > 0 else 1e6))
        if len(gram) > _MOST_COLUMNS:
            factors = 1 + (1 - pairs) * weights
            # The norm of noise with entries of different sizes is at most as if all rows were as loud as the loudest
            # (Bandeira and van Handel 2016).
            return gram * factors, math.sqrt(float(np.square(factors).mean(axis=1).max()))
        edge = 2 * noise * math.sqrt(len(gram))
        return gram + (1 - pairs) * _model(gram, pairs, weights * gram, penalty=_PENALTY * edge), _growth(pairs)


def _model(gram: Array, pairs: Array, begin: Array, *, penalty: float) -> Array:
    """The positive semi-definite A, (d, d), that minimises ||P o A - G||^2 / 2 + penalty ||A||_*, from a first guess.

    Accelerated proximal steps (Beck and Teboulle 2009): towards the released matrix G, on which the noise is the same
    everywhere, and then all eigenvalues down by the penalty. `pairs`, (d, d), is P.
    """
    # The gradient P o (P o A - G) changes no faster than this times A.
    steep = float(pairs.max()) ** 2
    model, ahead, momentum = begin, begin, 1.0
    for _ in range(_STEPS):
        values, vectors = top_eigen(ahead + pairs * (gram - pairs * ahead) / steep, rank=len(gram))
        count = int((values > penalty / steep).sum())
        basis = vectors[:, :count]
        stepped = (basis * (values[:count] - penalty / steep)) @ basis.T
        faster = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = stepped + (momentum - 1) / faster * (stepped - model)
        model, momentum = stepped, faster
    return np.asarray(model)


def _growth(pairs: Array) -> float:
    """How much larger the eigenvalues of noise alone become, if a model fills in what is missing.

    If all rates are p, an eigenvalue e at the edge of the noise adds (p e - c e) / p^2 to the model, with c e the penalty, and
    nothing if p < c. It becomes e (1 + (1 - p) (p - c) / p^2), which is at most (1 + c)^2 / (4 c) times as large. Rates that
    differ make it no larger than the worst of them: this was measured, and tests measure it again.

    >>> [round(_growth(np.array([[rate]])), 3) for rate in (1.0, 0.8, 0.4, 0.2)]
    [1.0, 1.172, 1.562, 1.0]
    """
    factors = 1 + (1 - pairs) * np.maximum(pairs - _PENALTY, 0.0) / np.square(pairs)
    return float(factors.max())


def _towards(prior: Array, observed: Array, *, error: float) -> Array:
    """`observed`, moved towards `prior` by as much as noise of this `error` on each number explains their distance."""
    distance = float(np.square(observed - prior).sum())
    # The rule subtracts three where the prior is the average of the same numbers. For pairs that is cautious.
    free = len(observed) - 3
    # The factor stops at zero: beyond the prior, the plain rule only adds error.
    factor = 1.0 if free <= 0 or distance == 0 else max(0.0, 1.0 - free * error**2 / distance)
    return prior + factor * (observed - prior)


# The mean needs little: an error e in it adds n e e^T to the Gram matrix, far less than the noise there.
_MEAN_SHARE: Final = 0.1
# Reserved for up to three steps. What the search does not use goes to the components (docs/decisions/0005).
_SEARCH_SHARES: Final = (0.06, 0.08, 0.08)
_COUNT_SHARE: Final = 0.01
# Norms around the origin, the mean, norms around it, the mean inside the bound; and the last two up to five times more while the
# mean is poor (docs/decisions/0026-private-bounds.md). The first four take 10%, and anything from 6% to 15% does the same.
_BOUND_SHARES: Final = (0.015, 0.03, *(0.02, 0.035) * 6)
# Entries of columns in four rounds, of which the last gives the units, and the mean in these units. With .02 for the first two,
# noise passed for half of the people now and then where these are just enough.
_UNIT_SHARES: Final = (0.035, 0.03, 0.03, 0.14, 0.035)
# With a given center, norms around it are all there is to search for.
_NORMS_SHARE: Final = 0.03
_TRACE_SHARE: Final = 0.01
# Where entries may be missing: how many people have each. Among 500 people 2% left rates rough, and 10% cost too much
# where nothing is missing (benchmarks/missing.py).
_OBSERVED_SHARE: Final = 0.04


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Shares of mu^2. The components get what the steps of the search leave unspent."""

    mean: tuple[float, ...]  # For each step of the search for mean and bound.
    count: float  # For the number of people, which is released with step `counted_at`.
    extra: float  # For later totals.
    counted_at: int = 0
    observed: float = 0.0  # For the counts of entries, where some may be missing, with step `observed_at`.
    observed_at: int = 0
    observed_later: float = 0.0  # The part of `extra` for such counts.

    def main(self, steps: int) -> float:
        """What the components get after this many steps."""
        counts = (self.count if steps > self.counted_at else 0.0) + (self.observed if steps > self.observed_at else 0.0)
        return 1.0 - sum(self.mean[:steps]) - counts - self.extra

    @property
    def for_observed(self) -> float:
        return self.observed + self.observed_later

    @property
    def usual(self) -> int:
        """How many steps a search takes if nothing has to be repeated."""
        return min(len(self.mean), max(2, self.counted_at + 1))

    def step(self, step: int) -> float:
        """What one step of the search spends, with the counts that are released with it."""
        counts = (self.count if step == self.counted_at else 0.0) + (self.observed if step == self.observed_at else 0.0)
        return self.mean[step] + counts


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """How much a fit releases at most: the number of rounds, the numbers in one release, and the smallest share of mu^2."""

    rounds: int
    entries: int
    smallest: float

    @classmethod
    def of(
        cls, split: Split, *, dim: int, shares: tuple[float, ...], rounds: int, size: int, searched: int = 0, observed: int = 0
    ) -> Self:
        """The search in all its steps, components in `rounds` of `size` numbers with these `shares`, and totals.

        A step of the search for a bound releases `searched` numbers, and `observed` counts go along with a sum.
        """
        # The components get least when the search takes all its steps, and an extent must hold in every case.
        main = split.main(len(split.mean))
        each = [*split.mean, *(main * share for share in shares), *([split.extra] if split.extra > 0 else [])]
        # A step of the search releases d sums, a count and the counts of entries in one vector.
        return cls(len(split.mean) + rounds + 1, max(size, dim + 1 + observed, searched), min(each))


def split_budget(
    *, mean: bool, search: bool, count: bool, trace: bool, bound: bool = False, units: bool = False, observed: bool = False
) -> Split:
    """How a fit divides its budget, given which small totals it must release next to the components.

    With `search`, the mean may lie outside the first ball, so that further steps may be needed. With `bound`, the norm to clip at
    is searched for too, and with `units` the units of the columns. With `observed`, entries may be missing, and those that are
    there are counted.

    >>> round(split_budget(mean=True, search=False, count=True, trace=False).main(1), 6)
    0.89
    """
    steps: tuple[float, ...] = (_SEARCH_SHARES if search else (_MEAN_SHARE,)) if mean else ()
    if bound:
        steps = _BOUND_SHARES if mean else (_NORMS_SHARE,)
    if units:
        steps = _UNIT_SHARES
    # The count is released with the first sum of rows. It is a release of its own only where no mean is searched for.
    beside = _COUNT_SHARE if count and mean else 0.0
    alone = _COUNT_SHARE if count and not mean else 0.0
    observed_share = _OBSERVED_SHARE if observed else 0.0
    later = 0.0 if mean else observed_share
    extra = alone + (_TRACE_SHARE if trace else 0.0) + later
    # The second mean of a search for a bound is always released, and people are counted with it. In a search for units
    # the mean is the last step. Entries are counted with the first sum of rows, which is divided by these counts.
    last = len(_UNIT_SHARES) - 1
    return Split(
        mean=steps,
        count=beside,
        extra=extra,
        counted_at=last if units else 3 if bound else 0,
        observed=observed_share - later,
        observed_at=last if units else 1 if bound else 0,
        observed_later=later,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class PartialBudget(Mechanism):
    """A part of another mechanism's budget: shares of this one are shares of its `fraction` of mu^2.

    >>> from eigenveil.core.ledger import Ledger
    >>> from eigenveil.core.mechanism import Gaussian
    >>> from eigenveil.core.noise import Noise
    >>> half = PartialBudget(Gaussian(multiplier=5.0, ledger=Ledger(epsilon=1.0, delta=1e-6), noise=Noise.seeded(1)), 0.25)
    >>> half.scale(1.0)
    10.0
    """

    whole: Mechanism
    fraction: float

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, f"fraction must lie in (0, 1], got {self.fraction}")

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        return self.whole.release(private, label=label, share=share * self.fraction, slot=slot)

    def charged(
        self, sensitivity: float, size: int, *, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> "Calibrated | None":
        return self.whole.charged(sensitivity, size, label=label, share=share * self.fraction, slot=slot)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        return self.whole.scale(sensitivity, share=share * self.fraction)
