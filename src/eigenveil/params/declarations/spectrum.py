"""The parameters of `released_spectrum`, which is also `eigenveil spectrum`."""

from __future__ import annotations

from typing import Literal

from eigenveil.params.declarations.bounds import SmallReleaseParams
from eigenveil.params.declarations.groups import BOUNDS, Bounds
from eigenveil.params.declare import again, parameters
from eigenveil.params.values import Vector

__all__ = ["SpectrumParams"]


@parameters(panel=BOUNDS)
class SpectrumParams(Bounds, SmallReleaseParams):
    """The parameters of `released_spectrum`: rows are those of the fit that is planned, so give the same bounds."""

    center: Literal["private"] | Vector | None = again(
        Bounds,
        "center",
        help="private: find the mean first, for a quarter to two thirds of the budget. {center=None}: leave rows where they "
        "are. Or public numbers, one per column.",
    )
