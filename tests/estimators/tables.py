"""Tables and estimators that the estimator tests share."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from eigenveil import PrivatePCA
from eigenveil.linalg import Array

BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
NAMES = ["age", "dose", "mass", "pulse", "sleep", "steps"]


def rows(count: int = 400, *, seed: int = 0) -> Array:
    """Rows, (count, 6), with a falling spectrum, turned away from the axes, around a mean that is not zero."""
    rng = np.random.default_rng(seed)
    round_ = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    spread: Array = rng.standard_normal((count, 6)) * np.array([5.0, 3.0, 2.0, 1.0, 0.5, 0.25])
    mean = np.array([3.0, -2.0, 1.0, 0.0, 0.5, 4.0])
    return np.asarray(spread @ round_ + mean, dtype=np.float64)


def sparse_rows(count: int = 300) -> Array:
    """Rows, (count, 6), mostly zero, some of them altogether, in a dense array."""
    rng = np.random.default_rng(1)
    return rng.standard_normal((count, 6)) * (rng.random((count, 6)) < 0.25) * [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


def private(n_components: Any = 2, **choices: Any) -> PrivatePCA:
    """A private estimator with a fixed seed, so that two fits can be compared."""
    return PrivatePCA(n_components, **({"row_bound": 12.0, "random_state": 0} | BUDGET | choices))


def tables(values: Array, **more: Any) -> dict[str, Any]:
    """The same rows in each kind of table, with further columns behind."""
    columns = dict(zip(NAMES, values.T, strict=True)) | more
    arrow = pa.table(columns)
    return {
        "pandas": pd.DataFrame(columns),
        "polars": pl.DataFrame(columns),
        "pyarrow": arrow,
        "pyarrow chunks": pa.concat_tables([arrow.slice(0, 7), arrow.slice(7)]),
        "pyarrow batch": pa.RecordBatch.from_pydict(columns),
    }


def distance(one: PrivatePCA, other: PrivatePCA) -> float:
    """The largest difference between anything two fits with one seed released."""
    pairs = (
        (one.components_, other.components_),
        (one.mean_, other.mean_),
        (one.explained_variance_, other.explained_variance_),
        (one.explained_variance_ratio_, other.explained_variance_ratio_),
        (one.singular_values_, other.singular_values_),
    )
    return max(float(np.abs(left - right).max()) for left, right in pairs)
