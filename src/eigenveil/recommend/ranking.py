"""Measures recommendations: the best unseen items of each user, a hold-out split, recall and NDCG.

Nothing here is protected. Show a list only to its user. A quality comes from private rows: show it only to people who
may see those rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.errors import require, require_param
from eigenveil.estimators.checks import require_integer
from eigenveil.linalg import Array
from eigenveil.recommend.interactions import checked_interactions

__all__ = ["Lists", "Quality", "Scorer", "evaluate", "ndcg", "popularity_scores", "recall", "split", "top_items"]

# From users' rows, (b, d), to a score for every item, (b, d). Higher is better.
Scorer: TypeAlias = Callable[[sp.csr_array], Array]
Found: TypeAlias = NDArray[np.intp]

# Scores in memory at once: 64 MB of doubles, and a few times that while they are sorted.
_BLOCK_NUMBERS = 1 << 23


@final
@dataclass(frozen=True, slots=True)
class Quality:
    """Mean `recall` and `ndcg` over the `users` who have held-out items. Computed from private rows, and not
    protected."""

    recall: float
    ndcg: float
    users: int


def top_items(scores: Array, seen: sp.csr_array | None, *, n: int) -> Found:
    """The `n` best items of each user, (b, n), best first, from `scores`, (b, d), without those in `seen`, (b, d).

    Ties go to the item with the lower number, so the result is deterministic. Where fewer than `n` items are left, -1
    fills the end of the row.

    >>> top_items(np.array([[0.1, 0.7, 0.7, 0.9]]), sp.csr_array(np.array([[0.0, 0.0, 0.0, 1.0]])), n=2).tolist()
    [[1, 2]]
    """
    require_integer("n", n, least=1, optional=False)
    require(scores.ndim == 2, f"scores must have two dimensions, users and items, got {scores.ndim}")
    require(bool(np.isfinite(scores).all()), "scores must be finite")
    require(
        seen is None or seen.shape == scores.shape,
        "seen must have the shape of scores: a row for each user, a column for each item",
    )
    left = np.array(scores, dtype=np.float64)
    if seen is not None:
        left[seen.nonzero()] = -math.inf
    count, dim = left.shape
    found = np.full((count, n), -1, dtype=np.intp)
    n = min(n, dim)
    if count == 0 or n == 0:
        return found
    items = np.argpartition(left, dim - n, axis=1)[:, dim - n :]
    worst = np.take_along_axis(left, items, axis=1).min(axis=1, keepdims=True)
    # With ties more than n items reach the n-th best score. The lowest numbers among the tied fill the remaining
    # places.
    tied = np.flatnonzero(np.count_nonzero(left >= worst, axis=1) > n)
    above, equal = left[tied] > worst[tied], left[tied] == worst[tied]
    room = n - np.count_nonzero(above, axis=1)[:, None]
    items[tied] = np.nonzero(above | (equal & (np.cumsum(equal, axis=1, dtype=np.int32) <= room)))[1].reshape(-1, n)
    items.sort(axis=1)
    best = np.take_along_axis(left, items, axis=1)
    # Items are sorted by number, and a stable sort keeps that order among equal scores.
    order = np.argsort(-best, axis=1, kind="stable")
    found[:, :n] = np.where(np.isneginf(best), -1, items)[np.arange(count)[:, None], order]
    return found


def split(matrix: Any, *, share: float = 0.2, rng: Generator) -> tuple[sp.csr_array, sp.csr_array]:
    """Hold out a `share` of each user's interactions, chosen at random: training and test matrix, both (n, d).

    Of deg interactions, share * deg are held out, rounded to the nearest (halves up), but at least one and at most
    deg - 1. Users with a single interaction keep it for training and are not tested.

    >>> train, test = split(sp.csr_array(np.ones((1, 5))), rng=np.random.default_rng(0))
    >>> train.nnz, test.nnz, (train + test).toarray().tolist()
    (4, 1, [[1.0, 1.0, 1.0, 1.0, 1.0]])
    """
    require_param(0 < share < 1, "{share} must lie in (0, 1), got {@given}", given=share)
    matrix = checked_interactions(matrix, name="matrix")
    degrees = np.diff(matrix.indptr)
    # Everybody who is tested keeps at least one item to be recommended from.
    held = np.where(degrees >= 2, np.clip(np.floor(share * degrees + 0.5), 1, np.maximum(degrees - 1, 1)), 0)
    users = _users(matrix)
    # User and random key are packed in one number: sorting one array is several times faster than sorting by two.
    shuffled = np.argsort((users << 32) | rng.integers(1 << 32, size=matrix.nnz))
    place = np.empty(matrix.nnz, dtype=np.intp)
    # The shuffled entries are still grouped by user, so each user's entries start at the same offset as before.
    place[shuffled] = np.arange(matrix.nnz) - matrix.indptr[users]
    tested = place < held[users]
    return _only(matrix, ~tested), _only(matrix, tested)


def recall(found: Found, test: sp.csr_array, *, n: int) -> float:
    """Recall as in LightGCN and GF-CF: the mean over users with test items of |first n of `found` in test| / |test|.

    `found`, (b, at least n), has distinct items in each row, and -1 for none. The divisor counts all of a user's test
    items, even if there are more than n, so 1 may be out of reach.

    >>> recall(np.array([[2, 0]]), sp.csr_array(np.array([[1.0, 1.0, 0.0]])), n=2)
    0.5
    """
    return float(_judged(found, test, n)[0].mean())


def ndcg(found: Found, test: sp.csr_array, *, n: int) -> float:
    """Mean over users with test items of DCG / ideal DCG, where DCG adds 1 / log2(1 + place) for each hit in the first n.

    Places count from 1. The ideal list starts with min(n, |test|) hits, so 1 is always within reach.

    >>> round(ndcg(np.array([[2, 0]]), sp.csr_array(np.array([[1.0, 0.0, 0.0]])), n=2), 4)
    0.6309
    """
    return float(_judged(found, test, n)[1].mean())


def popularity_scores(train: sp.csr_array) -> Array:
    """How many users have each item, (d,). It recommends the same list to everybody: the baseline to beat.

    >>> popularity_scores(sp.csr_array(np.array([[1.0, 0.0], [1.0, 1.0]]))).tolist()
    [2.0, 1.0]
    """
    return np.bincount(train.indices, minlength=train.shape[1]).astype(np.float64)


class Lists(Protocol):
    """Anything that makes lists of items itself, as an `ItemSpace` does."""

    def top(self, rows: Any, *, n: int) -> Any:
        """The `n` best items for each row, (b, n), filled up with -1."""
        ...


def evaluate(scorer: Scorer | Lists, train: Any, test: Any, *, n: int = 20, block: int | None = None) -> Quality:
    """Recall and NDCG at `n` of `scorer` on `test`, (n users, d), for users who show it their row of `train`, (n users, d).

    The scorer is an `ItemSpace`, or a function from rows, (b, d), to scores, (b, d). Users without held-out items are
    left out. Scores are computed for `block` users at a time, by default as many as fit in 64 MB.

    >>> train, test = sp.csr_array(np.array([[1.0, 0.0, 0.0]])), sp.csr_array(np.array([[0.0, 1.0, 0.0]]))
    >>> evaluate(lambda rows: np.tile([3.0, 2.0, 1.0], (rows.shape[0], 1)), train, test, n=1)
    Quality(recall=1.0, ndcg=1.0, users=1)
    """
    train, test = checked_interactions(train, name="train"), checked_interactions(test, name="test")
    require(train.shape == test.shape, "train and test must have the same users and items, and so the same shape")
    require_integer("block", block, least=1)
    size = block if block is not None else max(1, _BLOCK_NUMBERS // train.shape[1])
    users = np.flatnonzero(np.diff(test.indptr))
    require(len(users) > 0, "test is empty: no user has a held-out item")
    judged = []
    for start in range(0, len(users), size):
        some = users[start : start + size]
        rows = train[some]
        judged.append(_judged(_lists(scorer, rows, n), test[some], n))
    recalls, gains = np.concatenate(judged, axis=1)
    return Quality(float(recalls.mean()), float(gains.mean()), len(users))


def _lists(scorer: Scorer | Lists, rows: sp.csr_array, n: int) -> Found:
    if not callable(scorer):
        return np.asarray(scorer.top(rows, n=n))
    scores = np.asarray(scorer(rows))
    require(scores.shape == rows.shape, "the scorer must return a score for each user of the block and each item")
    return top_items(scores, rows, n=n)


def _judged(found: Found, test: sp.csr_array, n: int) -> Array:
    """Recall and NDCG of each user, (2, users with test items)."""
    require_integer("n", n, least=1, optional=False)
    require(
        found.ndim == 2 and len(found) == test.shape[0] and found.shape[1] >= n,
        f"found must have a row for each user of test and at least n={n} columns",
    )
    held = np.diff(test.indptr)
    require(bool(held.any()), "test is empty: no user has a held-out item")
    first = found[:, :n].astype(np.int64)
    require(bool((first < test.shape[1]).all()), "found must contain item numbers that test has")
    # User and item are packed in one number. -1 means no item; unmasked it would read as the last item of the
    # previous user.
    dim = np.int64(test.shape[1])
    held_out = _users(test).astype(np.int64) * dim + test.indices
    hits = np.isin(np.arange(len(first))[:, None] * dim + first, held_out) & (first >= 0)
    discounts = 1.0 / np.log2(np.arange(2, n + 2))
    tested = held > 0
    ideal = np.cumsum(discounts)[np.minimum(held[tested], n) - 1]
    hits = hits[tested]
    # Summed in the same order as the ideal list, so that a perfect list scores exactly 1.
    gains = np.cumsum(hits * discounts, axis=1)[:, -1]
    return np.stack([hits.sum(axis=1) / held[tested], gains / ideal])


def _users(matrix: sp.csr_array) -> NDArray[Any]:
    """The row of each stored entry."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _only(matrix: sp.csr_array, wanted: NDArray[np.bool_]) -> sp.csr_array:
    """The `wanted` among the stored entries, in a matrix of the same shape."""
    starts = np.concatenate([[0], np.cumsum(wanted)])[matrix.indptr]
    return sp.csr_array((matrix.data[wanted], matrix.indices[wanted], starts), shape=matrix.shape)
