"""What releases cost together when some have other noise than Gaussian: through Google's dp-accounting, for planning."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from eigenveil.core.accounting import epsilon_of
from eigenveil.errors import require

__all__ = ["Loss", "price"]


@final
@dataclass(frozen=True, slots=True)
class Loss:
    """One kind of release to be priced: its noise distribution, the noise scale over the sensitivity, and how many times."""

    law: Literal["gaussian", "laplace"]
    multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        require(self.multiplier > 0, f"the noise multiplier must be positive, got {self.multiplier}")
        require(self.count >= 1, f"the count of a release must be at least 1, got {self.count}")


def price(releases: Sequence[Loss], *, delta: float) -> float:
    """The epsilon, at `delta`, of all these releases together.

    Gaussian releases alone have a closed form. Others are composed numerically and pessimistically by dp-accounting's privacy
    loss distributions, after the Gaussian part has been reduced to one release.

    >>> round(price([Loss("gaussian", 4.0, count=4)], delta=1e-6), 6) == round(epsilon_of(0.5, 1e-6), 6)
    True
    """
    require(len(releases) > 0, "there must be at least one release to price, got none")
    require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
    gaussian = [math.sqrt(r.count) / r.multiplier for r in releases if r.law == "gaussian"]
    others = [r for r in releases if r.law != "gaussian"]
    if not others:
        return epsilon_of(math.hypot(*gaussian), delta)
    return _price_numerically(math.hypot(*gaussian), others, delta)


def _price_numerically(mu: float, others: Sequence[Loss], delta: float) -> float:
    import dp_accounting
    from dp_accounting import pld

    accountant: Any = pld.PLDAccountant(value_discretization_interval=1e-4)
    if mu > 0:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    for release in others:
        accountant.compose(dp_accounting.LaplaceDpEvent(release.multiplier), release.count)
    return float(accountant.get_epsilon(delta))
