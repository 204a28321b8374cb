"""What a tracker should have found, slowly: weighted means and scatter matrices of all rows at once."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from eigenveil.core.mechanism import Mechanism
from eigenveil.linalg import Array, orthonormal
from eigenveil.trackers import NOTHING_ASKED, Sketch, SketchTracker


def plain(rows: Any) -> Array:
    """The same rows, dense and double."""
    return np.asarray(rows.toarray() if sp.issparse(rows) else rows, dtype=np.float64)


def falling(count: int, dim: int, *, seed: int = 0, mean: float = 3.0) -> Array:
    """Rows, (count, dim), whose spectrum falls like 1 / i, turned away from the axes, around a mean that is not zero."""
    rng = np.random.default_rng(seed)
    round_ = orthonormal(rng.standard_normal((dim, dim)))
    rows: Array = (rng.standard_normal((count, dim)) / np.arange(1.0, dim + 1)) @ round_ + mean * rng.standard_normal(dim)
    return rows


def run(tracker: SketchTracker[Any], rows: Any, *, cut: int, mechanism: Mechanism = NOTHING_ASKED) -> Any:
    """The state after `rows`, (n, d), in blocks of `cut`, and a synchronisation."""
    state = tracker.start(rows.shape[1])
    for begin in range(0, rows.shape[0], cut):
        state = tracker.step(state, rows[begin : begin + cut], mechanism)
    return tracker.sync(state, mechanism)


def fading_weights(count: int, *, cut: int, forget: float) -> Array:
    """What each of `count` rows counts: forget^(2 j) for one that is j blocks old."""
    block = np.arange(count) // cut
    return np.asarray(forget ** (2.0 * (block.max(initial=0) - block)), dtype=np.float64)


def offline(rows: Any, weights: Array | None = None, *, center: bool = True) -> tuple[Array, Array, float]:
    """Scatter, (d, d), mean, (d,), and weight of weighted rows."""
    values = plain(rows)
    weights = np.ones(len(values)) if weights is None else weights
    mean = weights @ values / weights.sum() if center else np.zeros(values.shape[1])
    moved = values - mean
    return (moved.T * weights) @ moved, mean, float(weights.sum())


def scatter_of(sketch: Sketch) -> Array:
    """The matrix, (d, d), that a sketch says the scatter is."""
    space = sketch.subspace
    return (space.basis * np.square(space.values)) @ space.basis.T


def agree(sketch: Sketch, rows: Any, weights: Array | None = None, *, center: bool = True, rtol: float = 1e-9) -> None:
    """The sketch is the offline answer: scatter, mean, weight and energy."""
    scatter, mean, weight = offline(rows, weights, center=center)
    size = max(float(np.trace(scatter)), np.finfo(float).tiny)
    assert np.abs(scatter_of(sketch) - scatter).max() <= rtol * size
    assert abs(sketch.energy - np.trace(scatter)) <= rtol * size
    assert np.allclose(sketch.mean, mean, rtol=1e-12, atol=rtol * np.sqrt(size))
    assert abs(sketch.weight - weight) <= 1e-12 * weight
