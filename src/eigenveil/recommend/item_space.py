"""`ItemSpace`: the result of a private recommender's fit, its file, and the filter that runs on a user's device.

All of it was released and is covered by the guarantee. Recommendations are computed from a user's own history, where
that history is stored, and are for that user alone. Together with the space this is joint differential privacy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from eigenveil.data.archive import ITEMS_FORMAT, ArchiveKind
from eigenveil.data.engines import require_here
from eigenveil.errors import ModelFileError, require, require_param
from eigenveil.linalg import Array, Subspace
from eigenveil.model import noise_floor_in, warnings_in
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.recommend.interactions import Interactions, checked_interactions, require_names_of_one_line
from eigenveil.recommend.item_fit import Items
from eigenveil.recommend.ranking import top_items
from eigenveil.recommend.reading import names_of

__all__ = ["FOR_THAT_USER", "ItemSpace"]

_KIND = ArchiveKind(format=ITEMS_FORMAT, version=1, words="an Eigenveil item space", error=ModelFileError)
_ARRAYS, _MORE = ("components", "values"), ("columns", "degrees")
FOR_THAT_USER = (
    "The guarantee covers this file. Recommendations are made from one user's own history and are for that user "
    "alone (joint differential privacy). Shown to anybody else, they reveal the history."
)
_NOBODY = (
    "This file does not protect the users whose histories it was made from. Show recommendations only to their user."
)
_MOST_ITEMS = 10**8
# Filtered histories in memory at once, counted in numbers.
_AT_ONCE = 1 << 24


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ItemSpace:
    """The leading directions, `components` (p, c) with `values` (p,), of `dim` items or of those in `columns`, (c,).

    A history r is filtered to r D^(-1/2) V V^T D^(1/2): PPM (75), GF-CF's ideal low-pass filter. V are the
    directions, and D the positive `degrees`, (c,), or the identity without them. `items` are the names of all `dim`
    items, if they have any.

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
            require(
                bool(inside and (np.diff(self.columns) > 0).all()), "columns must be item numbers in increasing order"
            )
        if self.degrees is not None:
            require(self.degrees.shape == (count,), f"degrees must have shape ({count},), got {self.degrees.shape}")
            sound = bool((np.isfinite(self.degrees) & (self.degrees > 0)).all())
            require(sound, "degrees must be positive and finite")
        require(
            self.items is None or len(self.items) == self.dim,
            f"items must have {self.dim} names, got {len(self.items or ())}",
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
        require_here(rows, "row")
        # One history as a pandas series has the item names in its index.
        alone = hasattr(rows, "iloc") and rows.ndim == 1
        names = tuple(map(str, rows.index)) if alone else names_of(rows)
        require(
            names is None or self.items is None or names == self.items,
            "row must have the items of this space, in the same order",
        )
        given = rows if sp.issparse(rows) else np.asarray(rows) if not hasattr(rows, "columns") else rows
        if getattr(given, "ndim", 2) == 1:
            given = given.reshape(1, -1)
        checked = checked_interactions(given, name="row")
        require(
            checked.shape[1] == self.dim, f"row must have {self.dim} entries, one for each item, got {checked.shape[1]}"
        )
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
        found: Array = np.asarray(inner @ weights) @ self.components
        if root is not None:
            found *= root
        empty = np.diff(inner.indptr) == 0
        if empty.any():
            found[empty] = self._popular()
        return found

    def top(self, rows: Any, *, n: int = 20) -> Any:
        """The numbers of the `n` best items that are not in the history, best first: (n,) for one row, (b, n) for
        several.

        One row has shape (dim,). A matrix counts as several, even with one row. Where fewer than `n` items are left,
        one row gets a shorter list, and several rows are filled up with -1.
        """
        whole = isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1
        require_param(whole, "{n} must be an integer of at least 1, got {@given}", given=n)
        histories = self.rows(rows)
        one = (rows.ndim if sp.issparse(rows) else np.ndim(rows)) == 1
        parts = [np.empty((0, n), dtype=np.int64)]
        size = max(1, _AT_ONCE // self.components.shape[1])
        for start in range(0, histories.shape[0], size):
            block = histories[start : start + size]
            seen = block if self.columns is None else block[:, self.columns]
            best = top_items(self.scores(block), seen, n=n)
            parts.append(best if self.columns is None else np.where(best < 0, -1, self.columns[best]))
        found = np.vstack(parts)
        return found[0][found[0] >= 0] if one else found

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
            "guarantee_in_words": self.guarantee.words(),
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
