"""`ItemSpace`: the result of a private recommender's fit, its file, and the filter that runs on a user's device.

All of it was released and is covered by the guarantee. Recommendations are computed from a user's own history, where
that history is stored, and are for that user alone. Together with the space this is joint differential privacy.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, final

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.data.archive import ITEMS_FORMAT, ArchiveKind
from eigenveil.data.engines import require_local
from eigenveil.errors import ModelFileError, require, require_param
from eigenveil.estimators.checks import require_integer
from eigenveil.linalg import Array, Subspace
from eigenveil.model import noise_floor_in, warnings_in
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.recommend.interactions import Interactions, checked_interactions, require_names_of_one_line
from eigenveil.recommend.item_fit import Items
from eigenveil.recommend.reading import names_of

__all__ = [
    "FOR_THAT_USER",
    "ItemSpace",
    "Lists",
    "Quality",
    "Scorer",
    "evaluate",
    "ndcg",
    "popularity_scores",
    "recall",
    "split",
    "top_items",
]

# From users' rows, (b, d), to a score for every item, (b, d). Higher is better.
Scorer: TypeAlias = Callable[[sp.csr_array], Array]

Found: TypeAlias = NDArray[np.intp]

# Scores in memory at once: 64 MB of doubles, and a few times that while they are sorted.
_BLOCK_NUMBERS = 1 << 23


class Quality(NamedTuple):
    """Mean `recall` and `ndcg` over the `users` who have held-out items. Computed from private rows, and not protected."""

    recall: float
    ndcg: float
    users: int


def top_items(scores: Array, excluded: sp.csr_array | None, *, n: int) -> Found:
    """The `n` best items of each user, (b, n), best first, from `scores`, (b, d), without those in `excluded`, (b, d).

    Ties go to the item with the lower number, so the result is deterministic. Where fewer than `n` items are left, -1
    fills the end of the row.

    >>> top_items(np.array([[0.1, 0.7, 0.7, 0.9]]), sp.csr_array(np.array([[0.0, 0.0, 0.0, 1.0]])), n=2).tolist()
    [[1, 2]]
    """
    require_integer("n", n, min_value=1, optional=False)
    require(scores.ndim == 2, f"scores must have two dimensions, users and items, got {scores.ndim}")
    require(bool(np.isfinite(scores).all()), "scores must be finite")
    require(
        excluded is None or excluded.shape == scores.shape,
        "seen must have the shape of scores: a row for each user, a column for each item",
    )
    left = np.array(scores, dtype=np.float64)
    if excluded is not None:
        left[excluded.nonzero()] = -math.inf
    count, dim = left.shape
    top = np.full((count, n), -1, dtype=np.intp)
    n = min(n, dim)
    if count == 0 or n == 0:
        return top
    items = np.argpartition(left, dim - n, axis=1)[:, dim - n :]
    worst = np.take_along_axis(left, items, axis=1).min(axis=1, keepdims=True)
    # With ties more than n items reach the n-th best score. The lowest numbers among the tied fill the remaining places.
    tied = np.flatnonzero(np.count_nonzero(left >= worst, axis=1) > n)
    above, equal = left[tied] > worst[tied], left[tied] == worst[tied]
    room = n - np.count_nonzero(above, axis=1)[:, None]
    items[tied] = np.nonzero(above | (equal & (np.cumsum(equal, axis=1, dtype=np.int32) <= room)))[1].reshape(-1, n)
    items.sort(axis=1)
    best = np.take_along_axis(left, items, axis=1)
    # Items are sorted by number, and a stable sort keeps that order among equal scores.
    order = np.argsort(-best, axis=1, kind="stable")
    top[:, :n] = np.where(np.isneginf(best), -1, items)[np.arange(count)[:, None], order]
    return top


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
    # Every tested user keeps at least one item to be recommended from.
    held = np.where(degrees >= 2, np.clip(np.floor(share * degrees + 0.5), 1, np.maximum(degrees - 1, 1)), 0)
    users = _users(matrix)
    # User and random key are packed in one number: sorting one array is several times faster than sorting by two.
    shuffled = np.argsort((users << 32) | rng.integers(1 << 32, size=matrix.nnz))
    ranks = np.empty(matrix.nnz, dtype=np.intp)
    # The shuffled entries are still grouped by user, so each user's entries start at the same offset as before.
    ranks[shuffled] = np.arange(matrix.nnz) - matrix.indptr[users]
    tested = ranks < held[users]
    return _only(matrix, ~tested), _only(matrix, tested)


def recall(recommended: Found, test: sp.csr_array, *, n: int) -> float:
    """Recall as in LightGCN and GF-CF: the mean over users with test items of |first n of `recommended` in test| / |test|.

    `recommended`, (b, at least n), has distinct items in each row, and -1 for none. The divisor counts all of a user's test
    items, even if there are more than n, so 1 may be out of reach.

    >>> recall(np.array([[2, 0]]), sp.csr_array(np.array([[1.0, 1.0, 0.0]])), n=2)
    0.5
    """
    return float(_judged(recommended, test, n)[0].mean())


def ndcg(recommended: Found, test: sp.csr_array, *, n: int) -> float:
    """Mean over users with test items of DCG / ideal DCG, where DCG adds 1 / log2(1 + place) for each hit in the first n.

    Places count from 1. The ideal list starts with min(n, |test|) hits, so 1 is always within reach.

    >>> round(ndcg(np.array([[2, 0]]), sp.csr_array(np.array([[1.0, 0.0, 0.0]])), n=2), 4)
    0.6309
    """
    return float(_judged(recommended, test, n)[1].mean())


def popularity_scores(train: sp.csr_array) -> Array:
    """How many users have each item, (d,). It recommends the same list to all users: the baseline to beat.

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
    require_integer("block", block, min_value=1)
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


def _judged(ranked: Found, test: sp.csr_array, n: int) -> Array:
    """Recall and NDCG of each user, (2, users with test items)."""
    require_integer("n", n, min_value=1, optional=False)
    require(
        ranked.ndim == 2 and len(ranked) == test.shape[0] and ranked.shape[1] >= n,
        f"found must have a row for each user of test and at least n={n} columns",
    )
    held = np.diff(test.indptr)
    require(bool(held.any()), "test is empty: no user has a held-out item")
    first = ranked[:, :n].astype(np.int64)
    require(bool((first < test.shape[1]).all()), "found must contain item numbers that test has")
    # User and item are packed in one number. -1 means no item; unmasked it would read as the last item of the previous user.
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


_KIND = ArchiveKind(format=ITEMS_FORMAT, version=1, description="an Eigenveil item space", error=ModelFileError)
_ARRAYS, _MORE = ("components", "values"), ("columns", "degrees")
FOR_THAT_USER = (
    "The guarantee covers this file. Recommendations are made from one user's own history and are for that user "
    "alone (joint differential privacy). Shown to anybody else, they reveal the history."
)

_NOBODY = "This file does not protect the users whose histories it was made from. Show recommendations only to their user."

_MOST_ITEMS = 10**8
# Filtered histories in memory at once, counted in numbers.
_AT_ONCE = 1 << 24


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ItemSpace:
    """The leading directions, `components` (p, c) with `values` (p,), of `dim` items or of those in `columns`, (c,).

    A history r is filtered to r D^(-1/2) V V^T D^(1/2): PPM (75), GF-CF's ideal low-pass filter. V are the directions, and D
    the positive `degrees`, (c,), or the identity without them. `items` are the names of all `dim` items, if they have any.

    >>> space = ItemSpace(
    ...     components=np.array([[0.8, 0.6, 0.0]]), values=np.array([2.0]), dim=3, guarantee=Guarantee.none("doctest")
    ... )
    >>> space.top(np.array([1, 0, 0]), n=1).tolist()
    [1]
    """

    components: Array
    values: Array
    dim: int
    guarantee: Guarantee
    columns: Items | None = None
    degrees: Array | None = None
    items: tuple[str, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.components.ndim == 2, f"components must have two dimensions, got {self.components.shape}")
        count = self.components.shape[1]
        if self.columns is None:
            require(count == self.dim, f"components must have {self.dim} columns, one for each item, got {count}")
        else:
            require(self.columns.shape == (count,), f"columns must have shape ({count},), got {self.columns.shape}")
            inside = len(self.columns) == 0 or (self.columns[0] >= 0 and self.columns[-1] < self.dim)
            require(bool(inside and (np.diff(self.columns) > 0).all()), "columns must be item numbers in increasing order")
        if self.degrees is not None:
            require(self.degrees.shape == (count,), f"degrees must have shape ({count},), got {self.degrees.shape}")
            sound = bool((np.isfinite(self.degrees) & (self.degrees > 0)).all())
            require(sound, "degrees must be positive and finite")
        require(
            self.items is None or len(self.items) == self.dim, f"items must have {self.dim} names, got {len(self.items or ())}"
        )
        require(0 < self.dim <= _MOST_ITEMS, f"dim must lie in 1..{_MOST_ITEMS}, got {self.dim}")
        if self.items is not None:
            require(len(set(self.items)) == self.dim, "two items have the same name")
            require_names_of_one_line(self.items, "items")
        # `Subspace` checks orthonormality and order. A file may come from anywhere.
        Subspace(self.components.T, self.values)

    def history(self, items: Sequence[Any]) -> Any:
        """The row, (1, dim), of a user who has these `items`. A string is a name, an integer a column number."""
        require(not isinstance(items, str), "items must be a list, got a single string")
        places = np.unique(Interactions(sp.csr_array((0, self.dim)), items=self.items).columns(list(items)))
        return sp.csr_array((np.ones(len(places)), places, [0, len(places)]), shape=(1, self.dim))

    def rows(self, rows: Any) -> Any:
        """Histories as a CSR matrix, (b, dim), from one row or several, dense or sparse."""
        require_local(rows, "row")
        # One history as a pandas series has the item names in its index.
        alone = hasattr(rows, "iloc") and rows.ndim == 1
        names = tuple(map(str, rows.index)) if alone else names_of(rows)
        require(
            names is None or self.items is None or names == self.items, "row must have the items of this space, in the same order"
        )
        matrix = rows if sp.issparse(rows) else np.asarray(rows) if not hasattr(rows, "columns") else rows
        if getattr(matrix, "ndim", 2) == 1:
            matrix = matrix.reshape(1, -1)
        checked = checked_interactions(matrix, name="row")
        require(checked.shape[1] == self.dim, f"row must have {self.dim} entries, one for each item, got {checked.shape[1]}")
        return checked

    def scores(self, rows: Any) -> Array:
        """Filtered histories, (b, c), of `rows`, (b, dim). They are private: show each only to its user.

        A user with none of the items gets the popular ones: the degrees where they are known, else the leading
        direction. That direction is close to popularity, because histories have no negative entries.
        """
        histories = self.rows(rows)
        inner = histories if self.columns is None else histories[:, self.columns]
        root = None if self.degrees is None else np.sqrt(self.degrees)
        weights = self.components.T if root is None else self.components.T / root[:, None]
        # Two thin products: V V^T would be a matrix of items by items.
        filtered: Array = np.asarray(inner @ weights) @ self.components
        if root is not None:
            filtered *= root
        empty = np.diff(inner.indptr) == 0
        if empty.any():
            filtered[empty] = self._popular()
        return filtered

    def top(self, rows: Any, *, n: int = 20) -> Any:
        """The numbers of the `n` best items that are not in the history, best first: (n,) for one row, (b, n) for several.

        One row has shape (dim,). A matrix counts as several, even with one row. Where fewer than `n` items are left,
        one row gets a shorter list, and several rows are filled up with -1.
        """
        whole = isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1
        require_param(whole, "{n} must be an integer of at least 1, got {@given}", given=n)
        histories = self.rows(rows)
        is_single = (rows.ndim if sp.issparse(rows) else np.ndim(rows)) == 1
        parts = [np.empty((0, n), dtype=np.int64)]
        size = max(1, _AT_ONCE // self.components.shape[1])
        for start in range(0, histories.shape[0], size):
            block = histories[start : start + size]
            excluded = block if self.columns is None else block[:, self.columns]
            best = top_items(self.scores(block), excluded, n=n)
            parts.append(best if self.columns is None else np.where(best < 0, -1, self.columns[best]))
        items = np.vstack(parts)
        return items[0][items[0] >= 0] if is_single else items

    def _popular(self) -> Array:
        if self.degrees is not None:
            return self.degrees
        # The sign of a direction is arbitrary, and popularity is positive.
        first: Array = self.components[0]
        return first if first.sum() >= 0 else -first

    @property
    def noise_floor(self) -> float:
        """The squared value that noise alone exceeds in one fit of a hundred. 0 if there was no noise, or it is unknown."""
        return noise_floor_in(self.settings)

    @property
    def n_above_noise(self) -> int:
        """How many directions are above the noise floor."""
        return int((np.square(self.values) > self.noise_floor).sum())

    @property
    def note(self) -> str:
        """What anyone who uses this file must know about its recommendations."""
        return FOR_THAT_USER if self.guarantee.private else _NOBODY

    def save(self, path: str | Path) -> None:
        """Write the space to `path`, completely or not at all."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        arrays |= {name: np.ascontiguousarray(v) for name in _MORE if (v := getattr(self, name)) is not None}
        header = {
            "guarantee": self.guarantee.to_dict(),
            "guarantee_in_words": self.guarantee.to_text(),
            "recommendations": self.note,
            "dim": self.dim,
            "items": list(self.items) if self.items is not None else None,
            "settings": dict(self.settings),
            "warnings": list(self.warnings),
        }
        # Readable by all, because it is meant for every device.
        _KIND.write(Path(path), arrays, header, readable=True)

    @classmethod
    def load(cls, path: str | Path) -> "ItemSpace":
        """Read a space. A file of another kind or version, or a damaged one, raises `ModelFileError`."""
        return _KIND.read_as(Path(path), cls._from_parts)

    @classmethod
    def _from_parts(cls, arrays: Mapping[str, Any], header: Mapping[str, Any]) -> "ItemSpace":
        require(set(_ARRAYS) <= set(arrays) <= {*_ARRAYS, *_MORE}, f"its arrays are {sorted(arrays)}")
        for name, array in arrays.items():
            kind = np.int64 if name == "columns" else np.float64
            # `save` writes no other types.
            require(array.dtype == kind, f"{name} is of type {array.dtype}, not {np.dtype(kind)}")
        items, settings, dim = header["items"], header["settings"], header["dim"]
        named = items is None or (isinstance(items, list) and all(isinstance(name, str) for name in items))
        require(named, "its items are not a list of names")
        require(isinstance(settings, dict), "its settings are not a table")
        require(isinstance(dim, int) and not isinstance(dim, bool), "its number of items is not a number")
        return cls(
            **arrays,
            dim=dim,
            guarantee=Guarantee.from_dict(header["guarantee"]),
            items=None if items is None else tuple(items),
            settings=settings,
            warnings=warnings_in(header),
        )
