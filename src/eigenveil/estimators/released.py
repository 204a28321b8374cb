"""The model of a fit, from released numbers. Estimators and the parties of a network study call it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.estimators.verdict import FitVerdict
from eigenveil.linalg import Array, Subspace
from eigenveil.model import Model, clipping_of
from eigenveil.privacy import Guarantee
from eigenveil.tasks.tails import BEYOND

__all__ = ["divisor_of", "model_of", "released_settings", "shares_of"]


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
    verdict: FitVerdict,
    guarantee: Guarantee,
    scale: Array | None,
    columns: tuple[str, ...] | None,
    settings: dict[str, Any],
    domain: Domain | None = None,
    estimator: Mapping[str, Any] | None = None,
) -> Model:
    """The model of a fit from released numbers, with `trace` and the noise floor of its `verdict` in Gram units.

    Rows were clipped by `domain`, None if that is not known.
    """
    divisor = divisor_of(people)
    eigenvalues = np.square(subspace.values)
    return Model(
        components=subspace.basis.T,
        mean=center,
        values=subspace.values,
        explained_variance=eigenvalues / divisor,
        explained_variance_ratio=shares_of(eigenvalues, total=trace, noise_floor=verdict.noise_floor),
        guarantee=guarantee,
        scale=scale,
        columns=columns,
        settings=settings | {"noise_floor": verdict.noise_floor / divisor} | released_settings(verdict),
        warnings=tuple(str(warning) for warning in verdict.warned),
        clipping={} if domain is None else clipping_of(domain),
        estimator=estimator or {},
    )


def released_settings(verdict: FitVerdict) -> dict[str, Any]:
    """What was released of the norms of rows, as a model keeps it. Norms are by the share of people with longer rows.

    >>> released_settings(FitVerdict(fill=0.5, norms=(3.0,) + 14 * (0.0,)))
    {'fill': 0.5, 'norms': {'0.8': 3.0}}
    """
    seen = {f"{share:g}": norm for share, norm in zip(BEYOND, verdict.norms or (), strict=False) if norm > 0}
    outliers = None if verdict.outliers is None else verdict.outliers._asdict()
    found = {"fill": verdict.fill, "clipped": verdict.clipped, "norms": seen or None, "outliers": outliers}
    return {name: value for name, value in found.items() if value is not None}


def shares_of(eigenvalues: Array, *, total: float, noise_floor: float) -> Array:
    """The share of the released `total` along each component, (k,); zero for one that is not above the noise floor.

    The eigenvalues of noise add up to something too. Divided by their own sum they would look like an answer.

    >>> shares_of(np.array([6.0, 3.0, 1.0]), total=10.0, noise_floor=2.0).tolist()
    [0.6, 0.3, 0.0]
    """
    found = np.where(eigenvalues > noise_floor, eigenvalues, 0.0)
    # Noise can push the released total below the sum of the eigenvalues. A ratio above one would help nobody.
    whole = max(total, float(found.sum()))
    shares: Array = found / whole if whole > 0 else np.zeros_like(found)
    return shares
