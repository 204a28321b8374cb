"""The parameters of `PrivatePCA`, which is also `eigenveil fit`."""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.groups import (
    OFFLINE,
    Bounds,
    BudgetParams,
    ClipLevel,
    PersonParams,
    Protection,
    Whitening,
)
from eigenveil.params.declarations.reading import ColumnsParams, MissingParams
from eigenveil.params.declare import param, parameters, registered
from eigenveil.params.texts import components_from
from eigenveil.params.values import Expected, as_float, whole

__all__ = ["PrivateParams"]


def components_of(value: Any) -> int | float:
    """How many components, or a share of the variance."""
    try:
        # Whole numbers first: 1 is one component, and 1.0 is refused below, as all of the variance is never found.
        return int(whole(1)(value))
    except Expected:
        number = as_float(value)
    if not 0 < number < 1:
        raise Expected("an integer of at least 1, or a fraction in (0, 1)")
    return number


@parameters(panel="Method", section="task")
class PrivateParams(ColumnsParams, Whitening, PersonParams, Protection, MissingParams, ClipLevel, Bounds, BudgetParams):
    """The parameters of `PrivatePCA`."""

    n_components: int | float | None = param(
        "How many components. Or a fraction such as 0.9, for as many as explain that share of the variance.",
        more="The share is read off the released spectrum. None means all.",
        # Positional, as in scikit-learn's PCA.
        kw_only=False,
        check=components_of,
        parse=components_from,
        called="components",
        short="-k",
        panel="",
        metavar="K",
    )
    method: str = param(
        "covariance: one noisy covariance, best while it fits in memory. power: noisy products with a few vectors. "
        "auto: covariance where it fits in memory.",
        default="auto",
        among=registered("eigenveil.methods", "AT_CURATOR"),
        metavar="WHICH",
    )
    oversample: int | None = param(
        "For power: how many vectors beyond the components.",
        default=None,
        check=whole(0),
        unset="planned",
        recorded=False,  # The settings have the width, which includes it.
    )
    rounds: int | None = param(
        # Each round divides the budget further, so more would only add noise.
        "For power: how many rounds of noisy products.",
        default=None,
        check=whole(1, 200),
        unset="planned",
    )
    calibration: Literal["exact", "paper"] = param(
        "exact: noise by exact accounting. paper: as published, which is more than needed.",
        more="The papers are FPCA (17) and PPM Alg. 1, for comparison.",
        default="exact",
        metavar="WHICH",
        surfaces=OFFLINE,
    )
