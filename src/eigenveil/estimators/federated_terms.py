"""The arguments of `FederatedPCA` that can be said in several ways, each as one plain value."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

from eigenveil.errors import require
from eigenveil.estimators.checks import is_real
from eigenveil.estimators.federated_request import Participation

__all__ = ["local_steps_of", "participation_of", "share_of", "tolerance_of"]


def tolerance_of(value: Any) -> float | None:
    """A sine at which to stop, None where that is left open."""
    if value is None:
        return None
    require(is_real(value) and 0 <= float(value) < 1, f"tolerance must lie in [0, 1), got {value!r}")
    return float(value)


def local_steps_of(value: Any) -> Any:
    """A number, a list of numbers, or ("decay", number)."""
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    numbers_in = list(value)[1:] if listed and value[0] == "decay" else list(value) if listed else [value]
    good = len(numbers_in) > 0 and all(
        is_real(n) and isinstance(n, numbers.Integral) and 1 <= int(n) <= 1000 for n in numbers_in
    )
    good = good and not (listed and value[0] == "decay" and len(numbers_in) != 1)
    require(good, f"local_steps must be a whole number from 1, a list of them, or ('decay', number), got {value!r}")
    return tuple(value) if listed else int(value)


def participation_of(value: Any, sites: int) -> Participation | None:
    """How sites are drawn, None where all take part."""
    if isinstance(value, str) and value == "full":
        return None
    words = "participation must be 'full', ('with-replacement', K) or ('without-replacement', K)"
    require(isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2, f"{words}, got {value!r}")
    scheme, count = value
    require(scheme in ("with-replacement", "without-replacement"), f"{words}, got {value!r}")
    most = sites if scheme == "without-replacement" else 10**6
    good = is_real(count) and isinstance(count, numbers.Integral) and 1 <= int(count) <= most
    require(good, f"participation must draw from 1 to {most} of the {sites} sites, got {count!r}")
    return scheme, int(count)


def share_of(name: str, value: Any, sites: int) -> int | None:
    """How many sites, given as a number or a share of them, None for all."""
    if value is None:
        return None
    require(is_real(value), f"{name} must be None, a number of sites or a share of them, got {value!r}")
    if isinstance(value, numbers.Integral):
        require(1 <= int(value) <= sites, f"{name} must be from 1 to the {sites} sites, got {value!r}")
        return int(value)
    require(
        0 < float(value) <= 1,
        f"{name} as a share must lie in (0, 1], got {value!r}; a number of sites is written without a point",
    )
    # Shares such as 0.28 are a little more, as binary fractions, than they say.
    return max(1, math.ceil(float(value) * sites * (1 - 1e-12)))
