"""Engines: where rows can be that are not in this process, each an implementation of `eigenveil.core.rows.RemoteRows`.

`pieces.py` is what happens at a piece of a table, on every engine that splits tables into pieces. `pool.py` reads ranges of
files in several processes of this machine. Of collections that other libraries hold, `engine_of` tells the engine: a new one is a
module that makes an `Engine`, and its place in `ENGINES`. Estimators and commands call this package. It may import `data`,
`linalg`, `params` and `errors`.
"""

from typing import TYPE_CHECKING, Any, Final

from eigenveil.data.engines.base import Engine
from eigenveil.data.engines.dask import DASK
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows

__all__ = ["ENGINES", "Engine", "engine_of", "require_local", "stays_there"]


def _on_gpu(X: Any) -> bool:
    """Whether `X` is a tensor of torch on a GPU. torch is not imported to find out."""
    device = getattr(getattr(X, "device", None), "type", "cpu")
    return type(X).__module__.partition(".")[0] == "torch" and device != "cpu"


def _gpu_rows(X: Any, *, gaps: bool = False) -> "Rows":
    from eigenveil.data.engines.gpu import rows_on_device

    return rows_on_device(X, gaps=gaps)


# Memory of this machine and of its GPU are in the same hands, so blocks may be copied.
GPU: Final = Engine(title="torch", takes=_on_gpu, rows=_gpu_rows, stays=False)
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
