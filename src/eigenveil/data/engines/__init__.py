"""Engines: where rows can be that are not in this process, each an implementation of `eigenveil.core.rows.RemoteRows`.

`pieces.py` is what happens at a piece of a table, on every engine that splits tables into pieces. `pool.py` reads ranges of
files in several processes of this machine. Of collections that other libraries hold, `engine_of` tells the engine: a new one is a
module that makes an `Engine`, and its place in `ENGINES`. Estimators and commands call this package. It may import `data`,
`linalg`, `params` and `errors`.
"""

from typing import Any, Final

from eigenveil.data.engines.base import Engine
from eigenveil.data.engines.dask import DASK
from eigenveil.data.engines.torch import GPU
from eigenveil.errors import require

__all__ = ["ENGINES", "Engine", "engine_of", "require_local", "stays_there"]

ENGINES: Final = (DASK, GPU)


def engine_of(X: Any) -> Engine | None:
    """The engine of a collection; None for what is in this process, or is `Rows` already.

    >>> engine_of([1, 2])
    """
    return next((engine for engine in ENGINES if engine.takes(X)), None)


def stays_there(X: Any) -> bool:
    """Whether `X` is a collection that is not copied to this process: what is made of its rows is made where they are."""
    engine = engine_of(X)
    return engine is not None and engine.stays


def require_local(X: Any, name: str) -> None:
    """Refuse a collection where numbers of this process are needed: `numpy.asarray` would copy all of it, silently.

    >>> require_local([1, 2], "rows")
    """
    engine = engine_of(X)
    if engine is not None:
        require(
            not engine.stays,
            f"{name} must be in this process, got a {engine.title} collection, which is not copied here. Scores are made where "
            "its rows are: use transform, or pass another function to its map_blocks or its map_partitions",
        )
