"""Cases of `PrivateRecommender`: a user's whole history, or one interaction of a user with an item."""

from functools import partial
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.case import Trial, usual_case
from eigenveil.audit.cases.seen import Look, Tap, flip_coins, gram_of, require_guarantee, scored
from eigenveil.core.accounting import Budget
from eigenveil.core.rows import Block
from eigenveil.core.sums import CONTRACTION
from eigenveil.core.unit import Neighbours
from eigenveil.linalg import Array, Subspace
from eigenveil.privacy.floating import sparse
from eigenveil.privacy.histories import Histories
from eigenveil.recommend import PrivateRecommender

__all__ = ["CASES"]

_ITEMS: Final = 8
# Users of each item who have no other: enough to keep the eigenvalues of a released matrix above zero.
_USERS: Final = 60
# At item level: histories count as if they had at least this many items.
_MIN_DEGREE: Final = 4
# A catalogue of which the first few items are used, and some canaries have everything.
_CATALOGUE: Final = 1000
_SMALL_CATALOGUE: Final = 100
# Users who have all of it: every product but the first is then with what they have in common.
_ALIKE: Final = 500
# Items of one direction, in which rows of the basis are capped.
_CAPPED: Final = 20
_POPULAR: Final = 4
# Items of the catalogue that is audited in one run, each with a canary.
_MANY: Final = 400
# A single run tells little where delta is far above the test's level divided by the number of canaries.
_ONE_LOOK: Final = Budget(1.0, 1e-8)
_LAST: Final = "site 1"

Bools = NDArray[np.bool_]


def _fitted(budget: Budget, state: int | None, histories: Any, rank: int, **options: Any) -> tuple[PrivateRecommender, Tap]:
    """A fit at this budget, and its messages."""
    tap = Tap()
    recommender = PrivateRecommender(
        rank, epsilon=budget.epsilon, delta=budget.delta, on_noise="warn", random_state=state, faults=tap.faults(), **options
    ).fit(histories)
    require_guarantee(recommender.guarantee_, budget)
    return recommender, tap


def _histories(base: Array, canaries: Array, present: Bools, without: Array | None = None) -> Any:
    """Users x items: all of `base`, and the `canaries` that are `present`; in the places of the others the rows of `without`."""
    rows = canaries[present] if without is None else np.where(present[:, None], canaries, without)
    return sp.csr_array(np.vstack([base, rows]))


def _counted(rows: Array, domain: Histories) -> Array:
    """Histories as a fit counts them, (m, d): divided by the square root of their number of items."""
    counted: Array = sparse(domain, Block(sp.csr_array(rows))).rows.toarray()
    return counted


def _gram(rows: Array, domain: Histories) -> Array:
    """What each of these histories adds to the Gram matrix, (m, d, d)."""
    counted = _counted(rows, domain)
    return np.asarray(np.einsum("mi,mj->mij", counted, counted))


def _released(recommender: PrivateRecommender) -> Array:
    return gram_of(Subspace(recommender.components_.T, recommender.singular_values_))


def _look(
    recommender: PrivateRecommender,
    party: str,
    round_: int,
    released: Array,
    base: Array,
    shifts: Array,
    *,
    sensitivity: float,
    symmetric: bool = False,
) -> Look:
    """What was released at this `party` in this `round_`, under the noise charged for this sensitivity."""
    mu = recommender.ledgers_[party].charges[round_].mu
    return Look(released=released, base=base, shifts=shifts, scale=sensitivity / mu, symmetric=symmetric, charged=mu)


def _user(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """All pairs of the items in use, and how popular each is. Canaries have one of them, or all, and all items not in use."""
    base, domain = np.repeat(np.eye(_ITEMS), _USERS, axis=0), Histories(dim=_ITEMS)
    canaries = np.vstack([np.eye(_ITEMS), np.ones(_ITEMS)])
    present = flip_coins(len(canaries), rng)
    rest = np.zeros((len(base) + present.sum(), _CATALOGUE - _ITEMS))
    # Only canaries have items that are not in use: these must not count.
    rest[len(base) :] = 1.0
    histories = sp.csr_array(sp.hstack([_histories(base, canaries, present), sp.csr_array(rest)]))
    fitted, _ = _fitted(
        budget,
        state,
        histories,
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
        _look(fitted, "hub", 1, _released(fitted), others.T @ others, _gram(canaries, domain), sensitivity=1.0, symmetric=True),
    ]
    return scored(looks, present)


def _item(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """All pairs of items. Each canary is one item of a user who has exactly the least number that histories count for."""
    base, domain = np.repeat(np.eye(_ITEMS), _USERS, axis=0), Histories(dim=_ITEMS, min_degree=_MIN_DEGREE)
    ends = (np.arange(_ITEMS)[:, None] + np.arange(_MIN_DEGREE)) % _ITEMS
    canaries = np.zeros((_ITEMS, _ITEMS))
    np.put_along_axis(canaries, ends, 1.0, axis=1)
    # Row i has item i and the next ones, so this takes one item from each.
    without = canaries - np.eye(_ITEMS)
    present = flip_coins(_ITEMS, rng)
    histories = _histories(base, canaries, present, without)
    fitted, _ = _fitted(budget, state, histories, _ITEMS, method="covariance", unit="item", min_degree=_MIN_DEGREE)
    less = _gram(without, domain)
    background = _gram(base, domain).sum(axis=0) + less.sum(axis=0)
    sensitivity, shifts = domain.gram_sensitivity(Neighbours.INTERACTION), _gram(canaries, domain) - less
    look = _look(fitted, "hub", 0, _released(fitted), background, shifts, sensitivity=sensitivity, symmetric=True)
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
    """Each product that the last of two sites sends. It has all canaries, present or blank, and only one other user."""
    dim, present = base.shape[1], flip_coins(len(canaries), rng)
    other, last = sp.csr_array(base), _histories(base[:1], canaries, present, np.zeros_like(canaries))
    fitted, tap = _fitted(budget, state, [other, last], rank, method="power", trust="site", **options)
    domain = Histories(dim=dim)
    counted, first = _counted(canaries, domain), _counted(base[:1], domain)
    looks = []
    for part in tap.parts(to="hub", by=_LAST):
        # The question may also have the items kept and their weights, which are empty here.
        basis = part.question.arrays[-1]
        # As the site computes it, from the public basis: the noise is in proportion to it.
        sensitivity = domain.gram_times_sensitivity(near, basis=basis, basis_norm=CONTRACTION)
        shifts = np.einsum("mi,mp->mip", counted, counted @ basis)
        background = first.T @ (first @ basis)
        looks.append(_look(fitted, _LAST, part.round, part.arrays[0], background, shifts, sensitivity=sensitivity))
    return scored(looks, present)


def _many(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """All pairs of many items: a canary for each, whose score is its entry of the diagonal less the other users."""
    present = flip_coins(_MANY, rng)
    axes = sp.eye_array(_MANY, format="csr")
    histories = sp.csr_array(sp.vstack([*[axes] * _MANY, axes[present]]))
    fitted, _ = _fitted(budget, state, histories, _MANY, method="covariance", neighbours="add-remove")
    return Trial(scores=np.diag(_released(fitted)) - _MANY, present=present)


_case = partial(usual_case, claim="PrivateRecommender's guarantee")

CASES: Final = (
    _case(
        "recommend/user",
        "PrivateRecommender(method='covariance', items=[...], item_degrees='private') of a thousand items, all directions of "
        "a few of them, their weights and the item degrees, seen by anybody",
        "a user of each item in use, and one of all, who also have every item not in use, present or not",
        _user,
        quick=160,
    ),
    _case(
        "recommend/user-products",
        "PrivateRecommender(method='power', trust='site'), what a site sends, seen by the hub",
        "a user of each item, who is the only one for half of the items, present or blank",
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
        "a user who has all of a hundred items, as many others have, present or blank",
        partial(
            _products,
            base=np.ones((_ALIKE, _SMALL_CATALOGUE)),
            canaries=np.ones((1, _SMALL_CATALOGUE)),
            rank=1,
            near=Neighbours.ZERO_OUT,
        ),
        quick=60,
    ),
    _case(
        "recommend/item",
        "PrivateRecommender(unit='item', min_degree=4, method='covariance'), all directions and weights, seen by anybody",
        "one of four items of a user, present or not, for each item",
        _item,
        quick=160,
    ),
    _case(
        "recommend/item-products",
        "PrivateRecommender(unit='item', method='power', trust='site'), what a site sends, seen by the hub",
        "the one item of a user, present or not, for each of the popular items",
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
    _case(
        name="recommend/one-run",
        about="PrivateRecommender(method='covariance') of four hundred items, all directions and their weights, seen by "
        "anybody, in one run",
        canary="a user of each item who has no other, present or not",
        tests=("one-run",),
        budget=_ONE_LOOK,
        trial=_many,
        quick=1,
        full=1,
        threshold=None,
    ),
)
