"""Columns in which nothing was observed at first, such as a sensor that comes online late: they join where they show up."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from eigenveil.tracking import GramTracker, SketchTracker

__all__ = ["placed", "still_unseen"]


def still_unseen(unseen: Any, rows: Any) -> Any:
    """Columns, (d,) of truth values, of which neither the rows before nor these hold an entry; None where there are none."""
    if sp.issparse(rows):
        return None
    gaps = np.isnan(rows).all(axis=0)
    gaps = gaps if unseen is None else gaps & unseen
    return gaps if gaps.any() else None


def placed(tracker: SketchTracker[Any], state: Any, unseen: Any, rows: Any) -> Any:
    """The state with the mean of columns that show up for the first time put where they do.

    Until now they were filled with one number, so they have added nothing to the scatter, whatever that number was.
    """
    known = ~np.isnan(rows)
    first = unseen & known.any(axis=0)
    if not first.any():
        return state
    means = np.where(known, rows, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    if isinstance(tracker, GramTracker):
        return replace(state, center=np.where(first, means, 0.0 if state.center is None else state.center))
    sketch = state.sketch
    return replace(state, sketch=replace(sketch, mean=np.where(first, means, sketch.mean)))
