"""Synthetic people for demonstrations: rows of a dozen measurements that are correlated as such measurements are."""

from typing import Final

import numpy as np
from numpy.random import Generator

from eigenveil.linalg import Array

__all__ = ["COLUMNS", "LOADINGS", "ROW_BOUND", "made_up_people"]

COLUMNS: Final = (
    "age",
    "weight",
    "waist",
    "systolic pressure",
    "diastolic pressure",
    "pulse",
    "glucose",
    "insulin",
    "cholesterol",
    "creatinine",
    "visits",
    "income",
)
# In standard deviations of a column: how age, build and lifestyle influence it.
LOADINGS: Final[Array] = np.array(
    [
        [0.9, 0.1, 0.2, 0.7, 0.3, -0.2, 0.4, 0.1, 0.4, 0.6, 0.6, 0.3],
        [0.0, 0.9, 0.9, 0.3, 0.4, 0.1, 0.5, 0.7, 0.2, 0.2, 0.1, 0.0],
        [-0.1, 0.1, 0.2, 0.3, 0.5, 0.6, 0.3, 0.3, 0.5, 0.1, 0.3, -0.7],
    ]
)
# Public: known of such measurements before anybody was measured.
ROW_BOUND: Final = 6.0


def made_up_people(count: int, *, rng: Generator, loadings: Array = LOADINGS, bound: float = ROW_BOUND) -> Array:
    """Rows, (count, d), of measurements in standard deviations from a public average, of norm at most `bound`.

    Each is a mix of a few hidden traits, by `loadings`, (traits, d), and of the person's own variation, so that a column varies
    by about one.

    >>> made_up_people(5, rng=np.random.default_rng(0)).shape
    (5, 12)
    """
    traits, dim = loadings.shape
    # At least a tenth of each column's variance is a person's own: no column follows from the others.
    own = np.sqrt(np.maximum(1 - np.square(loadings).sum(axis=0), 0.1))
    rows = rng.standard_normal((count, traits)) @ loadings + own * rng.standard_normal((count, dim))
    longest = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), bound)
    return np.asarray(rows * (bound / longest), dtype=np.float64)
