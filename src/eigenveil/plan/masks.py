"""How sums are masked: the graph of sites, the integers that carry sums, and the noise that survives dropouts."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from eigenveil.core.accounting import Budget
from eigenveil.privacy.lattice import Lattice
from eigenveil.protocols.masked.dealing import checks_needed
from eigenveil.protocols.masked.graph import MaskGraph, mask_graph
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.tasks.fit.gaps import Extent

# Sparse masks and spot-checked signatures may each fail with this part of delta.
_FAILURE_SHARE: Final = 2.5e-4
# The delta assumed for a fit without privacy.
_DEFAULT_DELTA: Final = 1e-6
# The most rounds that one exchange of keys serves.
_ROUNDS: Final = 24
_MARGIN: Final = 1e-10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MasksPlan:
    """How sums are masked.

    `graph` says which sites share masks, and `lattice` which integers carry the sums. `multiplier` is the noise that
    the fewest survivors add to a sum, over its sensitivity. One exchange of keys serves `rounds` rounds. A fit has at
    most `most_rounds` rounds and `sessions` exchanges of keys. Each site verifies `checks` signatures, 0 meaning all
    of them.
    """

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
    """The plan for a fit of this `extent` over `sites` sites. A `ValueError` where the integers have no room for it.

    `several` is the most sites that one person's rows may be at. `people` is the most people at any site, where that
    is public.
    """
    # A fit without privacy begins again when a site that was counted has left: at most once for each site that may leave.
    again = 2 if budget is not None else sites - survivors + 2
    max_rounds, each = again * extent.rounds + 8 + colluders, min(extent.rounds, _ROUNDS)
    # Each cheating site can make one exchange of keys fail, and late sites make others restart.
    sessions = math.ceil(max_rounds / each) + again + colluders + 8
    part = _FAILURE_SHARE * (_DEFAULT_DELTA if budget is None else budget.delta)
    # A dishonest hub may start exchanges of keys with one site after another, see which share holders it draws, and
    # continue with the draw that suits it, so the failure probability is divided over all these draws.
    draws = sessions * sites
    graph = mask_graph(sites, survivors=survivors, colluders=colluders, failure=part / draws)
    checks = 0
    if not graph.complete:
        times = max_rounds + sessions
        checks = checks_needed(sites, survivors=survivors, colluders=colluders, times=times, failure=part)
    lattice, multiplier = Lattice.exact(sites=sites, people=2.0**20 if people is None else people), 1.0
    if budget is not None:
        lattice = Lattice(
            budget=budget,
            sites=sites,
            survivors=survivors,
            colluders=colluders,
            loss=graph.loss,
            failure=draws * graph.failure + (part if checks else 0.0),
        )
        assert lattice.gaussian is not None
        multiplier = (1 + _MARGIN) / lattice.gaussian.mu
        # The smallest share has the most noise, and the largest has the finest steps. If either does not fit, fail
        # now and not in the middle of a fit.
        for share in (extent.smallest, 1.0):
            lattice.deviation(1.0, mu=math.sqrt(share) / multiplier, size=2 * extent.entries, several=several)
    return MasksPlan(
        graph=graph, lattice=lattice, multiplier=multiplier, rounds=each, most_rounds=max_rounds, sessions=sessions, checks=checks
    )


def masked_terms(
    extent: Extent,
    roster: Mapping[str, bytes],
    *,
    budget: Budget | None,
    survivors: int,
    colluders: int,
    several: int,
    people: float | None,
    title: str | None = None,
) -> MaskedTerms:
    """The terms of a study: who must survive, between whom there are masks, and on which integers parts are sent.

    `people` is the largest number at any site, if public. Signatures are bound to `title`, None for a new one.
    """
    plan = plan_masks(
        extent, sites=len(roster), budget=budget, survivors=survivors, colluders=colluders, several=several, people=people
    )
    return MaskedTerms(
        # Unique for every fit, so that nobody can replay a signature of another fit.
        study=f"eigenveil fit {os.urandom(16).hex()}" if title is None else title,
        roster=roster,
        survivors=survivors,
        colluders=colluders,
        graph=plan.graph,
        rounds=plan.rounds,
        most_rounds=plan.most_rounds,
        lattice=plan.lattice,
        multiplier=plan.multiplier,
        several=several,
        checks=plan.checks,
        sessions=plan.sessions,
    )
