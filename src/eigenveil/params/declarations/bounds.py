"""The parameters of the small releases that prepare a fit: `find_bounds`, `find_column_bounds` and `released_spectrum`.

They are also `eigenveil bounds` and `eigenveil spectrum`.
"""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.groups import (
    BOUNDS,
    EPSILON,
    EPSILON_HELP,
    Bounds,
    BudgetParams,
    ClipLevel,
    Clipping,
    PersonParams,
    Protection,
    Units,
)
from eigenveil.params.declarations.reading import ColumnsParams, MissingParams
from eigenveil.params.declare import Aloud, again, param, parameters
from eigenveil.params.texts import numbers_from, pair_from
from eigenveil.params.values import LONGEST, SHORTEST, Expected, Numbers, Vector, as_float, length

__all__ = ["BoundsParams", "ColumnBoundsParams", "SmallReleaseParams", "SpectrumParams"]


def range_of(value: Any) -> tuple[float, float]:
    """Two positive numbers, the lower one first."""
    try:
        low, high = (as_float(number) for number in value)
    except (TypeError, ValueError):
        raise Expected("two numbers, the lowest and the highest") from None
    # Squares of norms in this range are far from the ends of float64.
    if not SHORTEST <= low < high <= LONGEST:
        raise Expected(f"two numbers from {SHORTEST:g} to {LONGEST:g}, the lower one first")
    return low, high


@parameters(panel="Privacy")
class SmallReleaseParams(MissingParams, ColumnsParams, PersonParams, Protection, BudgetParams):
    """What every release that prepares a fit has: a budget, who is protected, and what becomes of missing values."""

    epsilon: float | None = param(
        f"{EPSILON_HELP} A tenth of what the fit gets is usually enough.",
        more="A fit on the same people adds to the cost. {epsilon=None} must be written out, for exact numbers with no privacy.",
        check=EPSILON,
        # The switch of a fit says that the model is not private, and here there is no model.
        aloud=Aloud(
            option="--no-privacy",
            key="none",
            help="Exact numbers, for public tables. Nobody is protected.",
            usual="0.1",
        ),
    )


@parameters(panel=BOUNDS)
class ColumnBoundsParams(Units, SmallReleaseParams):
    """The parameters of `find_column_bounds`."""

    quantile: float = again(
        ClipLevel,
        "quantile",
        help="The share of people whose rows are not to be clipped, from 0.01 to below 1. A larger share means more noise.",
        more="If noise hides the few people beyond it, a lower quantile is used, and the result says so.",
        # A fit chooses its own share. Here a person reads the answer, and clipping one in twenty is a common rule.
        default=0.95,
        unset=None,
        panel="",
    )
    origin: Numbers | None = param(
        "Where to look for the mean of rows, and what entries of columns are measured from: one number, or one per column.",
        more="For a column far from zero, such as years, a number in its middle makes the range finer.",
        default=None,
        parse=numbers_from,
        metavar="NUMBERS",
        unset="zero",
    )
    within: tuple[float, float] | None = param(
        "The range of norms to search, in units of the scale. A wider range costs a little more noise.",
        default=None,
        said="(low, high) or None",
        check=range_of,
        parse=pair_from,
        metavar="LOW,HIGH",
        # Wide enough for any sensible unit, because a wider range costs little.
        unset="1e-9 to 1e12, for columns 1e-6 to 1e9",
    )


@parameters(panel=BOUNDS)
class BoundsParams(ColumnBoundsParams):
    """The parameters of `find_bounds`."""

    center: Literal["private"] | Vector | None = again(
        Clipping,
        "center",
        help="private: find the mean first, out of the same budget, because a fit clips rows around it. {center=None}: norms "
        "are around zero. Or public numbers, one per column, to take norms around.",
    )


@parameters(panel=BOUNDS)
class SpectrumParams(Bounds, SmallReleaseParams):
    """The parameters of `released_spectrum`: rows are those of the fit that is planned, so give the same bounds."""

    # A number only. A bound that is found privately belongs to the fit, which would then find another one.
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
