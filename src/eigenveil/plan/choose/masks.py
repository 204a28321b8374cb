"""How sums under masks are made: which masks, which integers and how much noise. From public numbers alone."""

import math
from dataclasses import dataclass
from typing import Final, final

from eigenveil.privacy import Budget, Lattice
from eigenveil.protocols.masked import MaskGraph, mask_graph
from eigenveil.protocols.masked.evidence import checks_needed
from eigenveil.tasks.fit.split import Extent

__all__ = ["MasksPlan", "plan_masks"]

# What few masks, and few signatures looked at, may each cost of delta; and of which delta where none is asked for.
_PART, _DELTA = 2.5e-4, 1e-6
# Rounds that one exchange of keys is for, at most.
_ROUNDS: Final = 24
_MARGIN: Final = 1e-10


@final
@dataclass(frozen=True, slots=True)
class MasksPlan:
    """The graph of masks, the lattice of integers, and the noise of a sum over its sensitivity that the fewest survivors make
    (`multiplier`). An exchange of keys is for `rounds`, there are at most `most_rounds` and `sessions` of exchanges, and members
    look at so many signatures (`checks`)."""

    graph: MaskGraph
    lattice: Lattice
    multiplier: float
    rounds: int
    most_rounds: int
    sessions: int
    checks: int


def plan_masks(
    extent: Extent,
    *,
    sites: int,
    budget: Budget | None,
    survivors: int,
    colluders: int,
    several: int = 1,
    people: float | None = None,
) -> MasksPlan:
    """The plan for a fit of this `extent` over so many `sites`. A `ValueError` where integers have no room for it.

    `several` is at how many sites a person may be, and `people` the most that any site has, where that is public.
    """
    # A fit without privacy begins again when a site has gone that was counted, at most once for each that may go.
    again = 2 if budget is not None else sites - survivors + 2
    most, each = again * extent.rounds + 8 + colluders, min(extent.rounds, _ROUNDS)
    # Each liar can make one exchange of keys fail, and some are begun again because sites were late.
    sessions = math.ceil(most / each) + again + colluders + 8
    part = _PART * (_DELTA if budget is None else budget.delta)
    # A hub may begin exchanges of keys with one site after the other, look at the holders they draw, and go on with the worst.
    draws = sessions * sites
    graph = mask_graph(sites, survivors=survivors, colluders=colluders, failure=part / draws)
    checks = 0
    if not graph.complete:
        times = most + sessions
        checks = checks_needed(sites, survivors=survivors, colluders=colluders, times=times, failure=part)
    lattice, multiplier = Lattice.exact(sites=sites, people=2.0**20 if people is None else people), 1.0
    if budget is not None:
        lattice = Lattice(
            budget,
            sites=sites,
            survivors=survivors,
            colluders=colluders,
            loss=graph.loss,
            failure=draws * graph.failure + (part if checks else 0.0),
        )
        assert lattice.gaussian is not None
        multiplier = (1 + _MARGIN) / lattice.gaussian.mu
        # The least share has the most noise, and the largest one the finest steps. If either has no room, that is said at once.
        for share in (extent.smallest, 1.0):
            lattice.deviation(1.0, mu=math.sqrt(share) / multiplier, size=2 * extent.entries, several=several)
    return MasksPlan(graph, lattice, multiplier, each, most, sessions, checks)
