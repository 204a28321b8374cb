"""The parameters of `PrivatePCA`, which is also `eigenveil fit`."""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.groups import (
    BOUNDS,
    EPSILON_HELP,
    OVERSAMPLE,
    RANGE,
    Bounds,
    BudgetParams,
    ClipLevel,
    Clipping,
    ColumnsParams,
    MissingParams,
    PersonParams,
    Protection,
    Units,
    Whitening,
)
from eigenveil.params.declare import OptOut, param, parameters, redeclare, registered
from eigenveil.params.values import LONGEST, SHORTEST, Integer, InvalidValue, Numbers, Vector, as_float, components_from, length


def components_of(value: Any) -> int | float:
    """How many components, or a share of the variance."""
    try:
        # Whole numbers first: 1 is one component, and 1.0 is refused below, as all of the variance is never found.
        return int(Integer(min=1)(value))
    except InvalidValue:
        number = as_float(value)
    if not 0 < number < 1:
        raise InvalidValue("an integer of at least 1, or a fraction in (0, 1)")
    return number


@parameters(panel="Method", section="task")
class PrivateParams(ColumnsParams, Whitening, PersonParams, Protection, MissingParams, ClipLevel, Bounds, BudgetParams):
    """The parameters of `PrivatePCA`."""

    n_components: int | float | None = param(
        "How many components. Or a fraction such as 0.9, for as many as explain that share of the variance.",
        details="The share is read off the released spectrum. None means all.",
        # Positional, as in scikit-learn's PCA.
        kw_only=False,
        check=components_of,
        parse=components_from,
        cli_name="components",
        short="-k",
        panel="",
        metavar="K",
    )
    method: str = param(
        "covariance: one noisy covariance, best while it fits in memory. power: noisy products with a few vectors. "
        "auto: covariance where it fits in memory.",
        default="auto",
        among=registered("eigenveil.methods", "AT_CURATOR"),
    )
    oversample: int | None = param("For power: how many vectors beyond the components.", default=None, like=OVERSAMPLE)
    rounds: int | None = param(
        # Each round divides the budget further, so more would only add noise.
        "For power: how many rounds of noisy products.",
        default=None,
        check=Integer(min=1, max=200),
        none_means="planned",
    )


def range_of(value: Any) -> tuple[float, float]:
    """Two positive numbers, the lower one first."""
    try:
        low, high = (as_float(number) for number in value)
    except (TypeError, ValueError):
        raise InvalidValue("two numbers, the lowest and the highest") from None
    # Squares of norms in this range are far from the ends of float64.
    if not SHORTEST <= low < high <= LONGEST:
        raise InvalidValue(f"two numbers from {SHORTEST:g} to {LONGEST:g}, the lower one first")
    return low, high


@parameters(panel="Privacy")
class SmallReleaseParams(MissingParams, ColumnsParams, PersonParams, Protection, BudgetParams):
    """What every release that prepares a fit has: a budget, who is protected, and what becomes of missing values."""

    epsilon: float | None = redeclare(
        BudgetParams,
        "epsilon",
        help=f"{EPSILON_HELP} A tenth of what the fit gets is usually enough.",
        details="A fit on the same people adds to the cost. {epsilon=None} must be written out, for exact numbers with no "
        "privacy.",
        # The switch of a fit says that the model is not private, and here there is no model.
        opt_out=OptOut(
            option="--no-privacy",
            key="no_privacy",
            help="Exact numbers, for public tables. No person is protected.",
            suggested="0.1",
        ),
    )


@parameters(panel=BOUNDS)
class ColumnBoundsParams(Units, SmallReleaseParams):
    """The parameters of `find_column_bounds`."""

    quantile: float = redeclare(
        ClipLevel,
        "quantile",
        help="The share of people whose rows are not to be clipped, from 0.01 to below 1. A larger share means more noise.",
        details="If noise hides the few people beyond it, a lower quantile is used, and the result names it.",
        # A fit chooses its own share. Here a person reads the answer, and clipping one in twenty is a common rule.
        default=0.95,
        none_means=None,
        panel="",
    )
    origin: Numbers | None = redeclare(
        Clipping,
        "origin",
        help="Where to look for the mean of rows, and what entries of columns are measured from: one number, or one per column.",
        details="For a column far from zero, such as years, a number in its middle makes the range finer.",
        syntax=None,
        none_means="zero",
    )
    search_range: tuple[float, float] | None = param(
        "The range of norms to search, in units of the scale. A wider range costs a little more noise.",
        default=None,
        like=RANGE,
        check=range_of,
        # Wide enough for any sensible unit, because a wider range costs little.
        none_means="1e-9 to 1e12, for columns 1e-6 to 1e9",
    )


@parameters(panel=BOUNDS)
class BoundsParams(ColumnBoundsParams):
    """The parameters of `find_bounds`."""

    center: Literal["private"] | Vector | None = redeclare(
        Clipping,
        "center",
        help="private: find the mean first, out of the same budget, because a fit clips rows around it. {center=None}: norms "
        "are around zero. Or public numbers, one per column, to take norms around.",
    )


@parameters(panel=BOUNDS)
class SpectrumParams(Bounds, SmallReleaseParams):
    """The parameters of `released_spectrum`: rows are those of the fit that is planned, so give the same bounds."""

    # A number only. A bound that is found privately belongs to the fit, which would then find another one.
    row_bound: float | None = redeclare(
        Bounds,
        "row_bound",
        help="Norm that rows are clipped to, around the mean. Use the value of the planned fit.",
        details="You must know it without looking at the data.",
        default=None,
        check=length,
        parse=None,
        none=None,
        syntax=None,
    )
    scale: Numbers | None = redeclare(Units, "scale")
    center: Literal["private"] | Vector | None = redeclare(
        Bounds,
        "center",
        help="private: find the mean first, for a quarter to two thirds of the budget. {center=None}: leave rows where they "
        "are. Or public numbers, one per column.",
    )
