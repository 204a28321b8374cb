"""Cases of `PrivateRecommender`: a user's whole history, or one interaction of a user with an item."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.case import Case, Claim, Test, Trial
from eigenveil.audit.cases.canaries import gram_of, require_guarantee, tossed
from eigenveil.audit.cases.messages import Look, Tap, scored
from eigenveil.data.rows import Block
from eigenveil.linalg import Array, Subspace
from eigenveil.privacy import CONTRACTION, Budget, Histories, Neighbours
from eigenveil.recommend import PrivateRecommender

__all__ = ["CASES"]

# About mu = 1.2: noise a fifth too small moves the rate of right guesses from 73% to 78%.
_BUDGET: Final = Budget(4.0, 1e-3)
_ITEMS: Final = 8
# Users of each item who have no other: enough for eigenvalues of a released matrix to show as they are.
_USERS: Final = 60
# At item level, where histories count as if they had at least so many items.
_LEAST: Final = 4
# A catalogue of which the first few items are used, and somebody has everything.
_CATALOGUE: Final = 1000
# A smaller one, and so many users who have all of it: then every product but the first is with what they have in common.
_WHOLE, _ALIKE = 100, 500
# Items to a direction, of which a few are popular: rows of the basis are capped then.
_CAPPED, _POPULAR = 20, 4
# Items of the catalogue that is looked at once, each with a canary. One look tells little where delta is much more than the level
# of the test over the canaries, so delta is small.
_MANY, _ONE_LOOK = 400, Budget(1.0, 1e-8)
_LAST: Final = "site 1"

Bools = NDArray[np.bool_]


def _fitted(budget: Budget, state: int | None, given: Any, rank: int, **options: Any) -> tuple[PrivateRecommender, Tap]:
    """A fit at this budget, and its messages."""
    tap = Tap()
    recommender = PrivateRecommender(
        rank,
        epsilon=budget.epsilon,
        delta=budget.delta,
        on_noise="warn",
        random_state=state,
        faults=tap.faults(),
        **options,
    ).fit(given)
    require_guarantee(recommender.guarantee_, budget)
    return recommender, tap


def _histories(base: Array, canaries: Array, present: Bools, without: Array | None = None) -> Any:
    """Users x items: all of `base`, and of `canaries` those who are `present`; in the others' places the rows of `without`."""
    kept = canaries[present] if without is None else np.where(present[:, None], canaries, without)
    return sp.csr_array(np.vstack([base, kept]))


def _counted(rows: Array, domain: Histories) -> Array:
    """Histories as they count, (m, d): divided by the root of how many items they have, as a fit does it."""
    counted: Array = domain.sparse(Block(sp.csr_array(rows))).rows.toarray()
    return counted


def _gram(rows: Array, domain: Histories) -> Array:
    """What each of these histories adds to the Gram matrix, (m, d, d)."""
    counted = _counted(rows, domain)
    return np.asarray(np.einsum("mi,mj->mij", counted, counted))


def _released(recommender: PrivateRecommender) -> Array:
    return gram_of(Subspace(recommender.components_.T, recommender.singular_values_))


def _look(
    recommender: PrivateRecommender,
    place: str,
    round_: int,
    released: Array,
    base: Array,
    shifts: Array,
    *,
    sensitivity: float,
    symmetric: bool = False,
) -> Look:
    """What was released at this `place` in this `round_`, under noise as it was charged for numbers of this sensitivity."""
    mu = recommender.ledgers_[place].charges[round_].mu
    return Look(released, base, shifts, sensitivity / mu, symmetric, charged=mu)


def _user(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """All pairs of the items in use and how popular each is. Canaries have one of them, or all, and all that are not in use."""
    base, domain = np.repeat(np.eye(_ITEMS), _USERS, axis=0), Histories(_ITEMS)
    canaries = np.vstack([np.eye(_ITEMS), np.ones(_ITEMS)])
    present = tossed(len(canaries), rng)
    rest = np.zeros((len(base) + present.sum(), _CATALOGUE - _ITEMS))
    rest[len(base) :] = 1.0
    given = sp.csr_array(sp.hstack([_histories(base, canaries, present), sp.csr_array(rest)]))
    fitted, _ = _fitted(
        budget,
        state,
        given,
        _ITEMS,
        method="covariance",
        items=list(range(_ITEMS)),
        item_degrees="private",
        neighbours="add-remove",
    )
    assert fitted.item_degrees_ is not None
    others, votes = _counted(base, domain), _counted(canaries, domain)
    looks = [
        _look(fitted, "hub", 0, fitted.item_degrees_, others.sum(axis=0), votes, sensitivity=1.0),
        _look(
            fitted,
            "hub",
            1,
            _released(fitted),
            others.T @ others,
            _gram(canaries, domain),
            sensitivity=1.0,
            symmetric=True,
        ),
    ]
    return scored(looks, present)


def _item(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """All pairs of items. Each canary is one of the items of a user who has just as many as histories count for at least."""
    base, domain = np.repeat(np.eye(_ITEMS), _USERS, axis=0), Histories(_ITEMS, _LEAST)
    ends = (np.arange(_ITEMS)[:, None] + np.arange(_LEAST)) % _ITEMS
    canaries = np.zeros((_ITEMS, _ITEMS))
    np.put_along_axis(canaries, ends, 1.0, axis=1)
    without = canaries - np.eye(_ITEMS)
    present = tossed(_ITEMS, rng)
    given = _histories(base, canaries, present, without)
    fitted, _ = _fitted(budget, state, given, _ITEMS, method="covariance", unit="item", min_degree=_LEAST)
    less = _gram(without, domain)
    known = _gram(base, domain).sum(axis=0) + less.sum(axis=0)
    sensitivity, shifts = domain.gram_sensitivity(Neighbours.INTERACTION), _gram(canaries, domain) - less
    look = _look(fitted, "hub", 0, _released(fitted), known, shifts, sensitivity=sensitivity, symmetric=True)
    return scored([look], present)


def _products(
    budget: Budget,
    rng: Generator,
    state: int | None,
    *,
    base: Array,
    canaries: Array,
    rank: int,
    near: Neighbours,
    **options: Any,
) -> Trial:
    """Each product that the last of two sites sends. All canaries are there, or blank, and next to nobody else."""
    dim, present = base.shape[1], tossed(len(canaries), rng)
    other, last = sp.csr_array(base), _histories(base[:1], canaries, present, np.zeros_like(canaries))
    fitted, tap = _fitted(budget, state, [other, last], rank, method="power", trust="site", **options)
    domain = Histories(dim)
    counted, first = _counted(canaries, domain), _counted(base[:1], domain)
    looks = []
    for part in tap.parts(to="hub", by=_LAST):
        # Before it in the question are the items that were kept and what they weigh, of which there is nothing here.
        basis = part.question.arrays[-1]
        sensitivity = domain.gram_times_sensitivity(near, basis=basis, basis_norm=CONTRACTION)
        shifts = np.einsum("mi,mp->mip", counted, counted @ basis)
        known = first.T @ (first @ basis)
        looks.append(_look(fitted, _LAST, part.round, part.arrays[0], known, shifts, sensitivity=sensitivity))
    return scored(looks, present)


def _many(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """All pairs of many items: a canary for each of them, whose score is what the diagonal has beyond all others."""
    present = tossed(_MANY, rng)
    axes = sp.eye_array(_MANY, format="csr")
    given = sp.csr_array(sp.vstack([*[axes] * _MANY, axes[present]]))
    fitted, _ = _fitted(budget, state, given, _MANY, method="covariance", neighbours="add-remove")
    return Trial(np.diag(_released(fitted)) - _MANY, present)


def _guarantee(budget: Budget) -> Claim:
    return Claim.of(budget, "PrivateRecommender's guarantee")


def _case(
    name: str, about: str, canary: str, trial: Callable[[Budget, Generator, int | None], Trial], *, quick: int
) -> Case:
    """A case scored by likelihood ratios: half is the threshold, and the noise is seen."""
    tests: tuple[Test, ...] = ("curve", "noise")
    return Case(name, "shipped", about, canary, tests, _BUDGET, _guarantee, trial, quick, 10 * quick, threshold=0.5)


CASES: Final = (
    _case(
        "recommend/user",
        "PrivateRecommender(method='covariance', items=[...], item_degrees='private') of a thousand items, all directions of "
        "a few of them, their weights and the item degrees, seen by anybody",
        "a user of each item in use, and one of all, who have everything that is not in use, there or not",
        _user,
        quick=160,
    ),
    _case(
        "recommend/user-products",
        "PrivateRecommender(method='power', trust='site'), what a site sends, seen by the hub",
        "a user of each item, of half of the items the only one, there or blank",
        partial(
            _products,
            base=np.repeat(np.eye(_ITEMS)[: _ITEMS // 2], _USERS, axis=0),
            canaries=np.eye(_ITEMS),
            rank=_ITEMS // 2,
            near=Neighbours.ZERO_OUT,
        ),
        quick=60,
    ),
    _case(
        "recommend/long-history",
        "PrivateRecommender(method='power', trust='site') of a hundred items, what a site sends, seen by the hub",
        "a user who has all of a hundred items, as many others have, there or blank",
        partial(
            _products,
            base=np.ones((_ALIKE, _WHOLE)),
            canaries=np.ones((1, _WHOLE)),
            rank=1,
            near=Neighbours.ZERO_OUT,
        ),
        quick=60,
    ),
    _case(
        "recommend/item",
        "PrivateRecommender(unit='item', min_degree=4, method='covariance'), all directions and weights, seen by anybody",
        "one of four items of a user, there or not, for each item",
        _item,
        quick=160,
    ),
    _case(
        "recommend/item-products",
        "PrivateRecommender(unit='item', method='power', trust='site'), what a site sends, seen by the hub",
        "the one item of a user, there or not, for each of the popular items",
        partial(
            _products,
            base=np.repeat(np.eye(_CAPPED)[:_POPULAR], _USERS, axis=0),
            canaries=np.eye(_CAPPED)[:_POPULAR],
            rank=1,
            near=Neighbours.INTERACTION,
            unit="item",
        ),
        quick=60,
    ),
    Case(
        name="recommend/one-run",
        kind="shipped",
        about="PrivateRecommender(method='covariance') of four hundred items, all directions and their weights, seen by "
        "anybody who looks once",
        canary="a user of each item who has no other, there or not",
        tests=("one-run",),
        budget=_ONE_LOOK,
        claim=_guarantee,
        trial=_many,
        quick=1,
        full=1,
    ),
)
