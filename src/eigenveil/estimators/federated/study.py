"""The fit that a federated request asks for, as one task: principal components of rows within bounds."""

from typing import Any, Literal

import numpy as np

from eigenveil.estimators.federated.request import FederatedSpec
from eigenveil.linalg import Array, orthonormal
from eigenveil.plan import components_of, iterates
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.split import split_budget
from eigenveil.tasks.fit.task import Fit, Setting

__all__ = ["pca_study"]


def pca_study(
    request: FederatedSpec,
    setting: Setting,
    start: Any,
    *,
    rank: int,
    bounds: RowBounds,
    center: Array | Literal["private"] | None,
    align: Literal["procrustes", "sign", "none"],
    people: float | None,
) -> Fit:
    """The fit of principal components that is asked for. `start` is the public seed of the first basis, None for any.

    `people` is their number where that is public.
    """
    method = request.plan.method
    products = method not in ("covariance",)
    count = people is None
    split = split_budget(
        mean=isinstance(center, str),
        search=bounds.search,
        count=count,
        trace=products and not request.published,
    )
    dim, width = bounds.dim, request.plan.width
    rng = np.random.default_rng(start)
    begin = orthonormal(rng.standard_normal((dim, width))) if iterates(method) else None
    return Fit(
        bounds=bounds,
        neighbours=request.neighbours,
        center=center,
        components=components_of(
            request.plan,
            begin,
            neighbours=request.neighbours,
            rank=rank,
            private=request.private,
            align=align,
            published=request.published,
        ),
        split=split,
        people=people,
        multiplier=setting.multiplier,
        rank=rank,
        needs_trace=products and not request.published,
        begins_again=not request.private and request.participation is None,
        sizes=request.sizes if people is not None else None,
        grid=setting.grid,
        rounding=setting.rounding,
        products=(
            request.plan.shares,
            request.plan.rounds,
            dim * (dim + 1) // 2 if method == "covariance" else dim * width,
        ),
    )
