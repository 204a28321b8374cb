"""The model of a fit, from released numbers. Estimators and the parties of a network study call it."""

from typing import Any

import numpy as np

from eigenveil.linalg import Array, Subspace
from eigenveil.model import Model
from eigenveil.privacy import Guarantee

__all__ = ["divisor_of", "model_of"]


def divisor_of(people: float) -> float:
    """What sums over `people` are divided by: their number less one, as in scikit-learn."""
    # A noisy number of people may fall below 2, or below zero.
    return max(people, 2.0) - 1.0


def model_of(
    subspace: Subspace,
    *,
    trace: float,
    people: float,
    center: Array,
    noise_floor: float,
    guarantee: Guarantee,
    scale: Array | None,
    columns: tuple[str, ...] | None,
    settings: dict[str, Any],
) -> Model:
    """The model of a fit from released numbers, with `trace` and `noise_floor` in Gram units."""
    divisor = divisor_of(people)
    eigenvalues = np.square(subspace.values)
    # Noise can push the released trace below the sum of the eigenvalues. A ratio above one would help nobody.
    total = max(trace, float(eigenvalues.sum()))
    return Model(
        components=subspace.basis.T,
        mean=center,
        values=subspace.values,
        explained_variance=eigenvalues / divisor,
        explained_variance_ratio=eigenvalues / total if total > 0 else np.zeros_like(eigenvalues),
        guarantee=guarantee,
        scale=scale,
        columns=columns,
        settings=settings | {"noise_floor": noise_floor / divisor},
    )
