"""Streams, estimators and comparisons that the tests of `StreamingPCA` share."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from eigenveil import StreamingPCA
from eigenveil.linalg import Array, orthonormal

BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
# One way of following a stream privately for each kind of tracker; `horizon` is for the 400 rows of `tables.rows`.
WAYS: dict[str, dict[str, Any]] = {
    "products": {"publish": "sync"},
    "slices": {"publish": "block"},
    "tree": {"publish": "continual", "horizon": 480},
}


def exact(n_components: Any = 2, **choices: Any) -> StreamingPCA:
    """A stream without privacy."""
    return StreamingPCA(n_components, **({"epsilon": None} | choices))


def private(n_components: Any = 2, **choices: Any) -> StreamingPCA:
    """A private stream with a fixed seed, so that two of them can be compared."""
    given = {"row_bound": 12.0, "random_state": 0, "block_size": 60} | BUDGET | choices
    return StreamingPCA(n_components, **given)


def real(**choices: Any) -> StreamingPCA:
    """A private stream whose noise nobody can draw again."""
    return private(**({"random_state": None} | choices))


def planted(count: int, dim: int, *, rank: int = 3, noise: float = 0.1, seed: int = 0) -> Array:
    """Rows, (count, dim), of which `rank` directions stand out, around a mean that is not zero."""
    rng = np.random.default_rng(seed)
    sizes = np.r_[9.0 / np.arange(1.0, rank + 1), np.full(dim - rank, noise)]
    spread: Array = rng.standard_normal((count, dim)) * sizes
    return np.asarray(spread @ orthonormal(rng.standard_normal((dim, dim))) + rng.standard_normal(dim), dtype=np.float64)


def in_batches(rows: Any, sizes: Iterable[int]) -> Iterator[Any]:
    """The rows, cut into batches of these sizes over and over."""
    start, given = 0, list(sizes)
    while start < rows.shape[0]:
        for size in given:
            if start < rows.shape[0]:
                yield rows[start : start + size]
            start += size


def fed(pca: StreamingPCA, rows: Any, sizes: Iterable[int]) -> StreamingPCA:
    """The estimator after all batches."""
    for batch in in_batches(rows, sizes):
        pca.partial_fit(batch)
    return pca


def shown(pca: StreamingPCA) -> list[bytes]:
    """Everything an estimator shows, to the last bit."""
    arrays = (
        pca.components_,
        pca.mean_,
        pca.singular_values_,
        pca.explained_variance_,
        pca.explained_variance_ratio_,
        np.asarray(pca.noise_floor_),
    )
    return [*(np.ascontiguousarray(array).tobytes() for array in arrays), pca.guarantee_.to_text().encode()]


def gap(one: StreamingPCA, other: StreamingPCA) -> float:
    """The largest difference between the projectors, scaled spectra and means of two streams."""
    size = max(float(one.singular_values_[0]), 1e-300)
    pairs = (
        (one.components_.T @ one.components_, other.components_.T @ other.components_),
        (one.singular_values_ / size, other.singular_values_ / size),
        (one.mean_ / (1 + np.abs(one.mean_)), other.mean_ / (1 + np.abs(one.mean_))),
    )
    return max(float(np.abs(left - right).max()) for left, right in pairs)
