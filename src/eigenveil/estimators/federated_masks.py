"""The masks of a federated fit: from what is asked for to the terms that sites agree on, and the sites that go by them."""

import math
import os
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from eigenveil.errors import require
from eigenveil.estimators.study import Study
from eigenveil.linalg import Array
from eigenveil.plan_sites import SitesPlan
from eigenveil.privacy import Budget, Lattice
from eigenveil.protocols.masked import MaskedTerms, mask_graph
from eigenveil.protocols.masked.evidence import looks
from eigenveil.rows import Rows, Symmetric, block_size

__all__ = ["MASKED_METHODS", "declared_bound", "masked_terms"]

# Those whose every turn is a sum.
MASKED_METHODS: Final = ("krylov", "power", "covariance", "dr-svd")
# What few masks, and few signatures looked at, may each cost of delta; and of which delta where none is asked for.
_PART, _DELTA = 2.5e-4, 1e-6
# Turns that one exchange of keys is for, at most.
_TURNS = 24
_MARGIN = 1e-10


def masked_terms(
    study: Study,
    plan: SitesPlan,
    roster: Mapping[str, bytes],
    *,
    budget: Budget | None,
    survivors: int,
    colluders: int,
    several: int,
    people: float | None,
) -> MaskedTerms:
    """The terms of a study: who must survive, which masks there are, and on which integers parts are sent.

    `people` is the most that any site has, where that is public.
    """
    sites, turns = len(roster), len(study.split.mean) + plan.rounds + 1
    # A fit without privacy begins again when a site has gone that was counted, at most once for each that may go.
    again = 2 if budget is not None else sites - survivors + 2
    most, each = again * turns + 8, min(turns, _TURNS)
    sessions = math.ceil(most / each) + again
    part = _PART * (_DELTA if budget is None else budget.delta)
    # A hub may begin exchanges of keys with one site after the other, look at the holders they draw, and go on with the worst.
    draws = sessions * sites
    graph = mask_graph(sites, survivors=survivors, colluders=colluders, failure=part / draws)
    checks = 0
    if not graph.complete:
        times = most + sessions
        checks = looks(sites, survivors=survivors, colluders=colluders, times=times, failure=part)
    lattice, multiplier = Lattice.exact(sites=sites, people=2.0**20 if people is None else people), 1.0
    if budget is not None:
        lattice = Lattice.within(
            budget,
            **_sizes(study, plan, several),
            sites=sites,
            survivors=survivors,
            colluders=colluders,
            several=several,
            loss=graph.loss,
            failure=draws * graph.failure + (part if checks else 0.0),
        )
        assert lattice.gaussian is not None
        multiplier = (1 + _MARGIN) / lattice.gaussian.mu
    return MaskedTerms(
        # Of its own for every fit: what is signed in one says nothing in another.
        study=f"eigenveil fit {os.urandom(16).hex()}",
        roster=roster,
        survivors=survivors,
        colluders=colluders,
        graph=graph,
        turns=each,
        most_turns=most,
        lattice=lattice,
        multiplier=multiplier,
        several=several,
        checks=checks,
        sessions=sessions,
    )


def _sizes(study: Study, plan: SitesPlan, several: int) -> dict[str, Any]:
    """How many numbers are released in all and at once, and the least share of mu^2 that a release has."""
    dim, split = study.bounds.dim, study.split
    size = dim * (dim + 1) // 2 if plan.method == "covariance" else dim * plan.width
    main = study.components_share(len(split.mean))
    shares = [*split.mean, *(main * share for share in plan.shares), *([split.extra] if split.extra > 0 else [])]
    planned = len(split.mean) * (dim + 1) + plan.rounds * size + 2
    # Twice what is planned: a turn that fails costs no less than one that does not.
    return {"coordinates": 2 * planned * several, "entries": max(size, dim + 1), "smallest": min(shares)}


def declared_bound(sites: Mapping[str, Rows], *, scale: Any, origin: Any, center: Array | None) -> float:
    """A bound that no row exceeds wherever the mean may be, a power of two. For fits without privacy alone: it is read from rows.

    Masked sums are sums of integers, and their step must come from a number that all know.
    """
    units = 1.0 if scale is None else np.asarray(scale, dtype=np.float64)
    longest = 0.0
    for rows in sites.values():
        if isinstance(rows, Symmetric):
            # No entry of the matrix is larger than its norm.
            outer = np.broadcast_to(units, rows.shape[1])
            longest = max(longest, math.sqrt(float(np.linalg.norm(rows.matrix / np.outer(outer, outer)))))
            continue
        for block in rows.blocks(block_size(rows)):
            values = block.values
            squares = values.multiply(values) if block.sparse else np.square(values)
            longest = max(longest, math.sqrt(float((squares @ (np.ones(rows.shape[1]) / units**2)).max(initial=0.0))))
    for point in (origin, center):
        if point is not None:
            longest += float(
                np.linalg.norm(np.broadcast_to(np.asarray(point, dtype=np.float64) / units, rows.shape[1]))
            )
    require(math.isfinite(longest), "X holds numbers too large to square; divide it by something first")
    return 2.0 ** math.ceil(math.log2(max(2 * longest, 1e-100)))
