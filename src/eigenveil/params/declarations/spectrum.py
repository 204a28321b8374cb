"""The parameters of `released_spectrum`, which is also `eigenveil spectrum`."""

from __future__ import annotations

from typing import Literal

from eigenveil.params.declarations.bounds import SmallReleaseParams
from eigenveil.params.declarations.groups import BOUNDS, Bounds, Units
from eigenveil.params.declare import again, parameters
from eigenveil.params.values import Numbers, Vector, length

__all__ = ["SpectrumParams"]


@parameters(panel=BOUNDS)
class SpectrumParams(Bounds, SmallReleaseParams):
    """The parameters of `released_spectrum`: rows are those of the fit that is planned, so give the same bounds."""

    row_bound: float | None = again(
        Bounds,
        "row_bound",
        help="Rows are clipped to this norm around the mean. Give that of the planned fit.",
        more="You must know it without looking at the data.",
        default=None,
        check=length,
        parse=None,
        none=None,
        written=None,
    )
    scale: Numbers | None = again(Units, "scale")
    center: Literal["private"] | Vector | None = again(
        Bounds,
        "center",
        help="private: find the mean first, for a quarter to two thirds of the budget. {center=None}: leave rows where they "
        "are. Or public numbers, one per column.",
    )
