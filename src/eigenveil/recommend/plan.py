"""The recommender's planner: chooses how a fit is done, forecasts what it finds, and says what else would work.

It uses public numbers alone and never sees a history. The number of users enters where it is public; elsewhere a public
claim takes its place. docs/decisions/0044 has the measurements behind the constants.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, cast, final

import numpy as np
from scipy.special import ndtr

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.errors import ParameterWarning, require_param
from eigenveil.linalg import Array, expected_captured_variance, orthonormal
from eigenveil.methods import MethodPlan, TaskContext, covariance, krylov, method_of, power
from eigenveil.methods.base import TOLERANCE, geometric_shares
from eigenveil.methods.krylov import KeptProducts
from eigenveil.plan.choose import MEMORY_LIMIT, in_mebibytes
from eigenveil.privacy.histories import Histories, interaction_products_sensitivity
from eigenveil.tasks.base import SumTask

__all__ = [
    "ASSUMED_HISTORY",
    "Change",
    "ItemPlan",
    "ItemTerms",
    "Outcome",
    "default_delta",
    "directions",
    "pairs_memory",
    "plan_items",
    "require_room",
]

# One release of all pairs of items; noisy products, all of which are kept; and products without noise.
_PAIRS, _PRODUCTS, _EXACT = covariance.METHOD.name, power.METHOD.name, krylov.METHOD.name
# The share of the budget for released item degrees. It is larger where they decide which items are used.
_DEGREES_SHARE, _CHOICE_SHARE = 0.05, 0.1
# Noisy products, all of which are kept: how many, how their shares grow, and how much wider than the rank. With
# capped rows there are more of them, and the block is as narrow as the rank.
_ROUNDS, _CAPPED_ROUNDS, _KEPT_GROWTH, _WIDER = 4, 8, 1.3, 2
# The rows of a basis are capped where there are at least this many items per direction.
_ENOUGH: Final = 20
# Where all pairs would find too little, capped products are used if their noise is below this share of the noise on pairs.
_QUIETER: Final = 0.6
# Without noise: the most products. Few are needed.
_EXACT_ROUNDS: Final = 60
# The assumed number of items per user where the caller does not say. Only the forecast uses it.
ASSUMED_HISTORY: Final = 40
# The leading eigenvalue of the item-item matrix is about this many times users * history / items, at most half the users.
_CONCENTRATION, _MOST = 3.0, 0.5
# The second eigenvalue is about this share of the first, and at most this share of the users. On five public tables it
# was 0.1 to 1 times the first.
_SECOND, _MOST_SECOND = 0.35, 0.1
# From this share of the filter on there is no warning.
_FAIR: Final = 0.5
# The first direction is popularity, which counts release for less. A fit that finds less than the first share of what
# lies beyond it is refused, and one that finds less than the second is warned of.
_LEAST_BEYOND, _FAIR_BEYOND = 0.05, 0.25
# The most popular c of d items have about (c / d) to this power of all interactions.
_POPULAR: Final = 0.4
# A number of items is advised from this share beyond popularity on, if recommendations would agree with an exact filter's at
# least this much, relative to the interactions that this many most popular items have.
_ADVISED_BEYOND, _WORTH, _FIRST = 0.15, 0.7, 20
_EPSILONS = (0.1, 0.3, 1, 3, 10, 30, 100)
_KEPT = (5000, 2000, 1000, 500, 300, 200, 100, 50)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ItemTerms:
    """What a fit is asked for, in public terms: `rank` directions of `dim` items, of which `n_kept` are used."""

    dim: int
    n_kept: int
    rank: int
    users: int | None  # None where their number is private and nothing is claimed about it.
    budget: Budget | None
    neighbours: Neighbours
    min_degree: int
    method: str
    degrees: bool  # Item degrees are released.
    history: float | None = None  # Roughly how many items a user has, if the caller knows.
    chosen: bool = False  # Released degrees decide which items are kept.
    noise_inflation: float = 1.0  # The noise over a curator's, where sites add it.
    fixed: bool = False  # Advice must not suggest another unit of protection.

    @property
    def usual_history(self) -> float:
        """How many items a user is taken to have."""
        return max(float(max(ASSUMED_HISTORY, self.min_degree)) if self.history is None else self.history, 1.0)


class Outcome(NamedTuple):
    """The forecast of a fit, a guess from public numbers and no guarantee."""

    share: float  # Of the filter that is found.
    beyond: float  # The share found beyond the first direction, which is little more than popularity.
    above: int  # How many directions are above the noise.

    @property
    def fair(self) -> bool:
        """Whether there is nothing to warn about."""
        return self.share >= _FAIR and self.beyond >= _FAIR_BEYOND


@final
@dataclass(frozen=True, slots=True)
class Change:
    """A change that would work: the parameters to `change`, and by what factor `users` must grow.

    `message` is a template that names them, as in `ParameterError`.

    >>> str(Change("{epsilon=}", {"epsilon": 3}))
    'epsilon=3'
    """

    message: str
    change: Mapping[str, Any]
    users: int = 1

    def __str__(self) -> str:
        return str(ParameterWarning(self.message, **self.change))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """What was decided and why."""

    method: str
    width: int
    shares: tuple[float, ...]
    degrees_share: float  # The budget share for item degrees.
    expected: Outcome | None  # None where too little is public for a forecast.
    reason: str
    longest: float = math.inf  # The norms of a basis's rows are capped at this.
    advice: tuple[Change, ...] = ()

    @property
    def rounds(self) -> int:
        """The rounds of the components."""
        return len(self.shares)

    @property
    def hopeless(self) -> bool:
        """Whether the forecast says that the result would be noise, or popularity and noise."""
        return self.expected is not None and self.expected.beyond < _LEAST_BEYOND

    @property
    def releases_pairs(self) -> bool:
        """Whether all pairs of items are released, and not products."""
        return method_of(self.method).releases_gram

    def for_sites(self, *, tolerance: float = 0.0) -> MethodPlan:
        """The same plan in the form that a fit over sites uses."""
        return MethodPlan(
            method=self.method,
            width=self.width,
            rounds=self.rounds,
            shares=self.shares,
            steps=() if self.releases_pairs else (1,) * self.rounds,
            tolerance=tolerance,
            reason=self.reason,
        )


def plan_items(terms: ItemTerms) -> ItemPlan:
    """The plan, with advice where its forecast is not fair.

    >>> terms = ItemTerms(
    ...     dim=1000,
    ...     n_kept=1000,
    ...     rank=8,
    ...     users=10**6,
    ...     budget=Budget(1.0, 1e-7),
    ...     neighbours=Neighbours.ZERO_OUT,
    ...     min_degree=1,
    ...     method="auto",
    ...     degrees=False,
    ... )
    >>> plan_items(terms).method, plan_items(terms).hopeless
    ('covariance', False)
    >>> few = plan_items(replace(terms, users=100))
    >>> few.hopeless, [str(one) for one in few.advice]
    (True, ['...'])
    """
    plan = _planned(terms)
    if plan.expected is None or plan.expected.fair:
        return plan
    return replace(plan, advice=tuple(_advice(terms)))


def _planned(terms: ItemTerms) -> ItemPlan:
    require_param(
        1 <= terms.rank <= terms.n_kept,
        f"{{n_components}} must lie in 1..{terms.n_kept}, the number of items, got {{@rank}}",
        rank=terms.rank,
    )
    if terms.method != "auto":
        if terms.method == _PRODUCTS and terms.budget is None:
            return _by(terms, _EXACT, "products without noise, all of which are kept")
        return _by(terms, terms.method, f"{terms.method} was asked for")
    memory = pairs_memory(terms.n_kept)
    if memory > MEMORY_LIMIT:
        why = f"all pairs of items would need {memory / 2**20:.0f} MiB, above the limit of {MEMORY_LIMIT / 2**20:.0f} MiB"
        return _by(terms, _EXACT if terms.budget is None else _PRODUCTS, f"{_PRODUCTS}: {why}")
    reason = f"{_PAIRS}: one release of all pairs of items, which fit ({in_mebibytes(memory)} MiB)"
    pairs = _by(terms, _PAIRS, reason)
    # One release of all pairs beats products nearly everywhere (docs/decisions/0009).
    if pairs.expected is None or pairs.expected.share >= _FAIR:
        return pairs
    products = _by(
        terms, _PRODUCTS, f"{_PRODUCTS}: with this many items per direction, products need far less noise than all pairs"
    )
    quieter = _entry_noise(terms, products) < _QUIETER * _entry_noise(terms, pairs)
    return products if quieter and math.isfinite(products.longest) else pairs


def _by(terms: ItemTerms, method: str, reason: str) -> ItemPlan:
    width, shares, longest = terms.rank, geometric_shares(1, growth=1.0), math.inf
    if method == _EXACT:
        width = min(terms.n_kept, terms.rank + 5)
        shares = geometric_shares(_EXACT_ROUNDS, growth=1.0)
    if method == _PRODUCTS:
        capped = terms.neighbours is Neighbours.INTERACTION and terms.n_kept >= _ENOUGH * terms.rank
        width = min(terms.n_kept, terms.rank if capped else _WIDER * terms.rank)
        shares = geometric_shares(_CAPPED_ROUNDS if capped else _ROUNDS, growth=_KEPT_GROWTH)
        # The row norm of a basis that is spread evenly over the items. Without a cap one popular item would decide
        # the noise of all others.
        longest = math.sqrt(width / terms.n_kept) if capped else math.inf
    part = (_CHOICE_SHARE if terms.chosen else _DEGREES_SHARE) if terms.degrees or terms.chosen else 0.0
    plan = ItemPlan(method=method, width=width, shares=shares, degrees_share=part, expected=None, reason=reason, longest=longest)
    return replace(plan, expected=_expected(terms, plan))


def pairs_memory(items: int) -> int:
    """The bytes that a release of all pairs of items takes, temporary copies included."""
    return 4 * items * items * 8


def _expected(terms: ItemTerms, plan: ItemPlan) -> Outcome | None:
    # Without a public number of users nothing can be said; without a budget there is no noise.
    if terms.users is None or terms.budget is None:
        return None
    guess = _eigenvalues(terms)
    entry = _entry_noise(terms, plan)
    share = expected_captured_variance(guess, entry=entry, dim=terms.n_kept)
    beyond = expected_captured_variance(guess[1:], entry=entry, dim=terms.n_kept) if terms.rank > 1 else share
    above = int((guess**2 > terms.n_kept * entry**2).sum())
    return Outcome(share, beyond, above)


def _eigenvalues(terms: ItemTerms) -> Array:
    """Guessed eigenvalues, (rank,), of the item-item matrix."""
    assert terms.users is not None
    history = terms.usual_history * (terms.n_kept / terms.dim) ** _POPULAR
    leading = terms.users * min(_MOST, _CONCENTRATION * history / terms.n_kept) * min(1.0, history / terms.min_degree)
    # Beyond the first they fall about like 1, 1/2, 1/3.
    second = min(_SECOND * leading, _MOST_SECOND * terms.users)
    return np.concatenate([[leading], second / np.arange(1.0, terms.rank)])


def _agreement(terms: ItemTerms, expected: Outcome) -> float:
    """How well recommendations from `terms.n_kept` items, chosen by noisy counts, agree with those of an exact filter of all
    items.

    Scores of the found and the exact filter correlate like the root of the share found beyond popularity, and items
    left out are lost. Fewer items have a larger signal each, so this has its maximum in between.
    """
    assert terms.users is not None and terms.budget is not None
    # Items in order of popularity, in groups that grow with the rank: a million items need not be handled one by one.
    ends = np.unique(np.geomspace(1, terms.dim, 300).round())
    starts = np.concatenate([[0.0], ends[:-1]])
    sizes, shares = ends - starts, (ends / terms.dim) ** _POPULAR - (starts / terms.dim) ** _POPULAR
    # A user with n items gives n / sqrt(n) votes in all.
    votes = terms.users * math.sqrt(terms.usual_history) * shares / sizes
    near = Histories(dim=terms.dim, min_degree=terms.min_degree)
    noise = near.sum_sensitivity(terms.neighbours) * terms.noise_inflation / (terms.budget.mu * math.sqrt(_CHOICE_SHARE))
    # The noisy count from which on about `kept` items are kept.
    low, high = votes[-1] - 10 * noise, votes[0] + 10 * noise
    for _ in range(60):
        middle = (low + high) / 2
        chances = ndtr((votes - middle) / noise)
        low, high = (middle, high) if float((sizes * chances).sum()) > terms.n_kept else (low, middle)
    return float((shares * chances).sum()) * math.sqrt(expected.beyond)


def _entry_noise(terms: ItemTerms, plan: ItemPlan) -> float:
    """The standard deviation of the noise on an entry of the item-item matrix, or of the last product."""
    assert terms.budget is not None
    sigma = terms.noise_inflation / (terms.budget.mu * math.sqrt(1 - plan.degrees_share))
    near = Histories(dim=terms.n_kept, min_degree=terms.min_degree)
    if plan.releases_pairs:
        return sigma * near.gram_sensitivity(terms.neighbours) / math.sqrt(2)
    sensitivity = near.gram_sensitivity(terms.neighbours)
    if terms.neighbours is Neighbours.INTERACTION:
        # Without a cap, some row of a basis that has found something has a norm near one.
        sensitivity = interaction_products_sensitivity(terms.min_degree, largest_row_norm=min(1.0, plan.longest), basis_norm=1.0)
    return sigma * sensitivity / math.sqrt(plan.shares[-1])


def _advice(terms: ItemTerms) -> Iterator[Change]:
    """Single changes that would make the expected share fair."""
    assert terms.budget is not None and terms.users is not None

    def fair(other: ItemTerms) -> bool:
        expected = _planned(other).expected
        return expected is not None and expected.fair

    n_kept = _best_number_of_items(terms)
    if n_kept is not None:
        yield Change(
            f"{n_kept} items: from a public list, or with {{items=}} the most popular by counts released for a "
            "share of the budget",
            {"items": n_kept},
        )
    for epsilon in _EPSILONS:
        if terms.budget.epsilon < epsilon and fair(replace(terms, budget=Budget(epsilon, terms.budget.delta))):
            yield Change("{epsilon=}", {"epsilon": epsilon})
            break
    more = next((f for f in (2, 3, 5, 10, 20, 50, 100, 1000) if fair(replace(terms, users=f * terms.users))), None)
    if more is not None:
        yield Change(f"about {more} times as many users", {}, users=more)
    if terms.rank > 8 and fair(replace(terms, rank=8)):
        yield Change("{n_components=}", {"n_components": 8})
    other = replace(terms, neighbours=Neighbours.INTERACTION)
    if not terms.fixed and terms.neighbours is not other.neighbours and fair(other):
        yield Change("{unit=}, a weaker guarantee: it protects one interaction of a user, not all of them", {"unit": "item"})


def _best_number_of_items(terms: ItemTerms) -> int | None:
    """How many items to keep for the best recommendations; None where no number is expected to work."""
    best, n_best = _WORTH * min(1.0, _FIRST / terms.dim) ** _POPULAR, None
    for n_kept in _KEPT:
        if not terms.rank <= n_kept < terms.n_kept:
            continue
        fewer = replace(terms, n_kept=n_kept, chosen=True)
        expected = _planned(fewer).expected
        if expected is None or expected.beyond < _ADVISED_BEYOND:
            continue
        agreement = _agreement(fewer, expected)
        if agreement > best:
            best, n_best = agreement, n_kept
    return n_best


_LARGEST_DELTA = 1e-5


def require_room(plan: ItemPlan, items: int) -> None:
    """Refuse a fit that does not fit in memory. Failing later would waste the budget of earlier releases."""
    needed = pairs_memory(items) if plan.releases_pairs else 0
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return
    require_param(
        needed <= memory,
        f"{{method=covariance}} needs {needed / 2**30:.3g} GiB for all pairs of {items} items, and this machine "
        f"has {memory / 2**30:.3g} GiB. Use {{method=power}}, or fewer items",
    )


def default_delta(protected: int) -> float:
    """The default delta: 1 / (10 protected), rounded down, at most 1e-5. `protected` counts what is protected.

    >>> default_delta(10), default_delta(1_500_000)
    (1e-05, 6.6e-08)
    """
    delta = min(_LARGEST_DELTA, 1 / (10 * max(protected, 1)))
    # Down to two digits: easier to read, and the guarantee is no weaker. In binary, 1e-6 / 1e-7 falls slightly short of 10.
    size = math.floor(math.log10(delta)) - 1
    return float(f"{math.floor(delta / 10.0**size * (1 + 1e-12))}e{size}")


def directions(plan: ItemPlan, terms: ItemTerms, begin: Array) -> Callable[..., SumTask[Any, Any]]:
    """A factory for the planned task: given the domain of the histories, it returns the task that finds their directions.

    Iterative methods start from `begin`, (c, width).
    """
    leaf, private = method_of(plan.method), terms.budget is not None
    start = orthonormal(begin) if leaf.needs_start_basis else None
    if start is None or not private:
        context = TaskContext(neighbours=terms.neighbours, rank=terms.rank, private=private)
        # Tasks of sums take any `Region`, and histories are one.
        task: Any = leaf.build_task(plan.for_sites(tolerance=TOLERANCE), start, context)
        return cast("Callable[..., SumTask[Any, Any]]", task)
    return partial(
        KeptProducts,
        neighbours=terms.neighbours,
        begin=start,
        shares=plan.shares,
        rank=terms.rank,
        longest=plan.longest,
        reports=False,
        name="power product",
    )
