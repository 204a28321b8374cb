"""What the stream benchmarks share: synthetic rows, the trackers by name, a run over blocks, and the error of an
answer."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from eigenveil.core.mechanism import Mechanism
from eigenveil.linalg import Array, Subspace, orthonormal, sines
from eigenveil.papers.trackers import BlockPower, FrequentDirections, Grouse, Oja, Spirit
from eigenveil.trackers import NOTHING_ASKED, BlockTracker, EnergyBounds, Tracker
from eigenveil.trackers.sketch import OVERSAMPLE

__all__ = [
    "BLOCK",
    "SYNTHS",
    "distance",
    "fixed_rank",
    "fixed_spectrum",
    "fpca",
    "gaussian_rows",
    "last",
    "residual",
    "spirit",
    "states",
]

# FPCA's b. The other trackers take their rows in the same portions, which has no effect on what they find.
BLOCK: Final = 50
# The paper's "1 and 10" are percentages.
_BOUNDS: Final = EnergyBounds(0.01, 0.1)


def fixed_spectrum(alpha: float, *, count: int, dim: int, rng: Generator) -> Array:
    """Synth(alpha) of FPCA's footnote 2: rows V Sigma U^T, (count, dim), whose singular values are i^-alpha to the digit."""
    left, right = (orthonormal(rng.standard_normal((size, dim))) for size in (count, dim))
    return (left * np.arange(1.0, dim + 1) ** -alpha) @ right.T


def gaussian_rows(alpha: float, *, count: int, dim: int, rng: Generator) -> Array:
    """Synth(alpha) of the supplement, D.1: normal rows, (count, dim), whose covariance has eigenvalues i^-alpha."""
    basis = orthonormal(rng.standard_normal((dim, dim)))
    return (rng.standard_normal((count, dim)) * np.arange(1.0, dim + 1) ** (-alpha / 2)) @ basis.T


SYNTHS: Final = {"singular values i^-alpha": fixed_spectrum, "covariance i^-alpha": gaussian_rows}


def fpca(rank: int, *, forget: float = 1.0, adaptive: bool = False, oversample: int = OVERSAMPLE) -> BlockTracker:
    """FPCA-Edge without a mask, about zero as error (66) is, at a fixed rank or from there within the energy bounds."""
    return BlockTracker(rank=rank, oversample=oversample, forget=forget, adapt=_BOUNDS if adaptive else None, center=False)


def spirit(dim: int, *, forget: float = 1.0) -> Spirit:
    """SPIRIT with its usual energy thresholds, free to take as many directions as there are columns."""
    return Spirit(dim, forget=forget)


def fixed_rank(rank: int) -> dict[str, Tracker[Any]]:
    """All trackers at one rank, none of which forgets, with the settings of the supplement, D.1."""
    return {
        f"FPCA, rank {rank}": fpca(rank),
        "FD, sketch 2r": FrequentDirections(rank),
        "GROUSE, greedy step": Grouse(rank),
        "GROUSE, step 2": Grouse(rank, step_size=2.0),
        f"SPIRIT, rank {rank}": Spirit(rank, forget=1.0, energy=None),
        "Oja": Oja(rank),
        "PM, block d": BlockPower(rank),
    }


def states(tracker: Tracker[Any], rows: Array, *, mechanism: Mechanism = NOTHING_ASKED) -> Iterator[tuple[int, Any]]:
    """How many rows have been seen, and the state, after each block."""
    state = tracker.start(rows.shape[1])
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        state = tracker.step(state, block, mechanism)
        yield start + len(block), state


def last(tracker: Tracker[Any], rows: Array) -> Subspace:
    """The answer after all rows."""
    _, state = deque(states(tracker, rows), maxlen=1).pop()
    return tracker.subspace(state)


def residual(basis: Array, rows: Array) -> float:
    """Error (66): || Y - Y P ||_F^2 / t for t rows and the projector P on `basis`, (d, k)."""
    return float(np.square(rows - (rows @ basis) @ basis.T).sum()) / len(rows)


def distance(left: Array, right: Array) -> float:
    """|| P - P' ||_F / sqrt(2 r), in [0, 1], r being the larger rank: at equal ranks the root mean square sine."""
    # || P - P' ||_F^2 = j + k - 2 sum cos^2 = 2 sum sin^2 + |j - k|.
    square = 2 * np.square(sines(left, right)).sum() + abs(left.shape[1] - right.shape[1])
    return math.sqrt(square / (2 * max(left.shape[1], right.shape[1])))
