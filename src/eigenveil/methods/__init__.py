"""The ways to find components, one leaf each behind one interface, `Method`. To add one, write its file and name it here.

Planners, estimators and the recommender ask the leaf that `method_of` finds, and compare no names. It may import `tasks`,
`protocols.pooled` and below.
"""

from typing import Final

from eigenveil.methods import covariance, dr_svd, fedpower, krylov, power, segments, spaces
from eigenveil.methods.base import Method, MethodPlan, Place, PlanRequest, TaskContext

__all__ = ["METHODS", "Method", "MethodPlan", "Place", "PlanRequest", "TaskContext", "method_of", "methods_at", "methods_in"]

# Where several would do, "auto" takes the first.
_LEAVES: Final[tuple[Method, ...]] = (
    covariance.METHOD,
    krylov.METHOD,
    power.METHOD,
    fedpower.METHOD,
    *spaces.METHODS,
    dr_svd.METHOD,
    segments.METHOD,
)
METHODS: Final[dict[str, Method]] = {leaf.name: leaf for leaf in _LEAVES}


def methods_at(location: Place) -> tuple[str, ...]:
    """The names of the methods that run at a place."""
    return tuple(name for name, leaf in METHODS.items() if location in leaf.places)


# The words that parameters of fits can be.
AT_CURATOR: Final = ("auto", *methods_at("curator"))
AT_SITES: Final = ("auto", *methods_at("sites"))
AT_PEERS: Final = methods_at("peers")
AT_REMOTE_PEERS: Final = ("auto", *methods_at("remote peers"))
ANYWHERE: Final = ("auto", *METHODS)


def method_of(name: str) -> Method:
    """The method of this name."""
    leaf = METHODS.get(name)
    if leaf is None:
        raise ValueError(f"there is no method {name!r}; there are {', '.join(METHODS)}")
    return leaf


def methods_in(setting: str) -> tuple[str, ...]:
    """The names of the methods that a plan compares in a setting."""
    return tuple(name for name, leaf in METHODS.items() if setting in leaf.settings)
