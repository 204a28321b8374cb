"""Dask collections, without importing Dask: what `dask_rows` does with them is imported when one comes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from eigenveil.data.engines.base import Engine
from eigenveil.errors import require, require_param

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.columns import ColumnLayout
    from eigenveil.data.rows import NamedRows
    from eigenveil.linalg import Array

__all__ = ["DASK"]


def _takes(X: Any) -> bool:
    return type(X).__module__.partition(".")[0] == "dask"


def _columns(X: Any) -> Sequence[Any] | None:
    # A Delayed has every attribute, each of them another Delayed.
    table = isinstance(getattr(X, "ndim", None), int)
    require_param(table, f"{{X}} must be a Dask array or dataframe, got a Dask {type(X).__name__}")
    return list(X.columns) if hasattr(X, "columns") else None


def _rows(*args: Any, **kwargs: Any) -> "Rows":
    from eigenveil.data.engines.dask_rows import array_rows

    return array_rows(*args, **kwargs)


def _frame(*args: Any, **kwargs: Any) -> "tuple[NamedRows, ColumnLayout]":
    from eigenveil.data.engines.dask_rows import frame_rows

    return frame_rows(*args, **kwargs)


def _scores(X: Any, score: "Callable[[Any], Array]", *, rank: int, dim: int) -> Any:
    """The scores, (n, rank), of rows with `dim` columns, lazy."""
    import numpy as np

    require(isinstance(getattr(X, "ndim", None), int) and X.ndim == 2, "rows must be a Dask array or dataframe")
    if hasattr(X, "columns"):
        import pandas as pd

        names = [f"component{number}" for number in range(1, rank + 1)]
        # Once here, on the names and types alone: a table that does not fit is refused before anything is computed.
        score(X._meta)
        meta = pd.DataFrame({name: pd.Series(dtype=np.float64) for name in names}, index=X._meta.index)
        return X.map_partitions(partial(_scores_beside, score, names), meta=meta)
    require(X.shape[1] == dim, f"rows must have {dim} columns, as the model does, got {X.shape[1]}")
    whole = X if len(X.chunks[1]) == 1 else X.rechunk({1: -1})
    return whole.map_blocks(score, dtype=np.float64, chunks=(whole.chunks[0], (rank,)), meta=np.empty((0, 0)))


def _scores_beside(score: "Callable[[Any], Array]", names: list[str], piece: Any) -> Any:
    """The scores of one partition of a dataframe, with its index."""
    import pandas as pd

    return pd.DataFrame(score(piece), columns=names, index=piece.index)


DASK: Final = Engine(
    title="Dask",
    takes=_takes,
    rows=_rows,
    stays=True,
    columns=_columns,
    frame=_frame,
    scores=_scores,
    bring=lambda ids: ids.compute(scheduler="synchronous"),
)
