"""Reads and checks what a caller passes to a recommender: histories at one site or many, lists of items, item
degrees."""

import numbers
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from eigenveil.core.rows import Rows
from eigenveil.data.engines import engine_of
from eigenveil.data.frames import in_memory
from eigenveil.data.rows import SparseRows
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.estimators.checks import is_real
from eigenveil.estimators.reading import column_names
from eigenveil.linalg import Array
from eigenveil.recommend.interactions import Interactions, checked_interactions
from eigenveil.recommend.item_fit import Items

__all__ = ["degrees_of", "items_of", "names_of", "read_histories"]

Names = tuple[str, ...] | None
# No item is more popular than this, and the ratio of two such numbers is still finite.
_LARGEST = 1e30


def read_histories(R: Any) -> tuple[dict[str, Rows], int, Names]:
    """The histories of each site by name, the number of items, and their names. A single matrix is one site, named
    R."""
    # Some sparse matrices (dok_matrix) are dictionaries too.
    several = (not sp.issparse(R) and isinstance(R, Mapping)) or (
        isinstance(R, Sequence) and not isinstance(R, str | bytes)
    )
    named = (
        {"R": R} if not several else dict(R) if isinstance(R, Mapping) else {f"site {i}": X for i, X in enumerate(R)}
    )
    require(len(named) > 0, "there must be at least one site, got none")
    require(all(isinstance(name, str) for name in named), "names of sites must be text")
    rows: dict[str, Rows] = {}
    dim, items, first, unnamed = 0, None, "", ""
    for name, X in named.items():
        matrix, listed = _histories(X, name)
        if not first:
            dim, first = matrix.shape[1], name
            require(dim >= 2, f"{name} has {dim} item: a recommender needs at least 2")
        require(
            matrix.shape[1] == dim,
            f"{name} has {matrix.shape[1]} items, but {first} has {dim}: all sites need the same columns",
        )
        require(
            items is None or listed is None or items == listed,
            f"{name} has other items than {first}, or another order. Read all sites with the same list of items",
        )
        # One site with names and one without cannot be compared, so the last unnamed site is remembered.
        unnamed = unnamed if listed is not None else name
        items = items if items is not None else listed
        rows[name] = SparseRows(matrix) if sp.issparse(matrix) else matrix
    require(items is None or len(set(items)) == dim, "two items have the same name")
    require(
        items is None or not unnamed,
        f"{unnamed} does not name its items, but other sites do, so columns cannot be matched. Name them at every "
        f"site or at none",
    )
    return rows, dim, items


def _histories(X: Any, name: str) -> tuple[Any, Names]:
    """The histories of one site as a checked matrix, or as rows on a cluster that were checked there; and the item names."""
    X = in_memory(X)
    engine = engine_of(X)
    if engine is None or not engine.stays:
        given = X.matrix if isinstance(X, Interactions) else checked_interactions(_two_dimensional(X, name), name=name)
        return given, names_of(X)
    # A Delayed has every attribute, so what it lacks would not tell.
    array = isinstance(getattr(X, "ndim", None), int) and not hasattr(X, "columns")
    require(array, f"{name} must be a {engine.title} array of users and items. Make one with to_dask_array")
    return engine.rows(X, convert=partial(checked_interactions, name=name)), None


def items_of(items: Any, dim: int, names: Names) -> tuple[Items | None, int | None]:
    """A public list of items as sorted column numbers, or how many to keep by private counts; None for neither."""
    if items is None:
        return None, None
    if is_real(items) and isinstance(items, numbers.Integral):
        require_param(
            2 <= int(items) <= dim,
            f"{{items}} must lie in 2..{dim}, the number of items, got {{@given}}",
            given=items,
        )
        return None, int(items)
    listed = isinstance(items, Sequence | np.ndarray) and not isinstance(items, str | bytes)
    kind = type(items).__name__
    require_param(listed, f"{{items}} must be None, a list of items or how many to keep, got {kind}")
    places = Interactions(sp.csr_array((0, dim)), items=names).columns(list(items))
    found = np.unique(np.asarray(places, dtype=np.int64))
    require_param(len(found) == len(places), "{items} lists an item twice")
    require_param(len(found) >= 2, f"{{items}} must list at least 2, got {len(found)}")
    return found, None


def degrees_of(degrees: Any, dim: int) -> Array | None:
    """Public item degrees, (d,), with zeros replaced by ones; None where they are not used or will be released."""
    if degrees is None or (isinstance(degrees, str) and degrees == "private"):
        return None
    words = f"{{item_degrees}} must be None, 'private' or {dim} non-negative numbers"
    require_param(not isinstance(degrees, str), f"{words}, got {{@given}}", given=degrees)
    try:
        array = np.array(degrees, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"{words}, got {type(degrees).__name__}") from None
    require_param(array.shape == (dim,), f"{words}, got shape {array.shape}")
    # The filter divides by roots of degrees.
    array[array == 0] = 1.0
    sound = (array >= 1 / _LARGEST) & (array <= _LARGEST)
    require_param(bool(sound.all()), f"{words}, finite and neither tiny nor huge")
    return array


def _two_dimensional(X: Any, name: str) -> Any:
    flat = not sp.issparse(X) and not hasattr(X, "columns") and np.ndim(X) != 2
    require(
        not flat,
        f"{name} must be a matrix of users and items. Pass a list of matrices for several sites, and a matrix of "
        "one row for a single user",
    )
    return X if sp.issparse(X) or hasattr(X, "columns") else np.asarray(X)


def names_of(X: Any) -> Names:
    """The item names of a table or `Interactions`; None if it has none."""
    if isinstance(X, Interactions):
        return X.items
    columns = None if sp.issparse(X) else column_names(X)
    return None if columns is None else tuple(str(name) for name in columns)
