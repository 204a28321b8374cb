"""From the parameters of `FederatedPCA` to what is asked for, checked. Nothing here needs rows, but for what they are `Held` for.

Each function is given the estimator, whose parameters are still as the caller wrote them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

import numpy as np

from eigenveil.errors import require
from eigenveil.estimators.checks import (
    budget_of,
    is_real,
    mean_or_numbers,
    rank_of,
    require_integer,
    require_one_of,
    seed_of,
)
from eigenveil.estimators.federated_masks import Declared
from eigenveil.estimators.federated_request import SitesRequest
from eigenveil.estimators.federated_rules import masks_of, require_enough, require_legal, require_maskable
from eigenveil.estimators.federated_study import pca_study
from eigenveil.estimators.federated_terms import local_steps_of, participation_of, share_of, tolerance_of
from eigenveil.estimators.sites import Held
from eigenveil.plan import Method, plan_sites
from eigenveil.privacy import Budget, Neighbours
from eigenveil.protocols import Terms
from eigenveil.runtimes import Faults
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["budgets_of", "request_of"]

_METHODS: Final = ("auto", "krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd")
_AVERAGES: Final = ("merge", "uda", "wda")


def budgets_of(pca: Any) -> tuple[Budget | None, Budget | None]:
    """The budgets at the sites and at the hub, None where no noise is added."""
    require_one_of("trust", pca.trust, ("curator", "site", "both", "masked"))
    require_one_of("method", pca.method, _METHODS)
    require_one_of("calibration", pca.calibration, ("exact", "paper"))
    require(pca.person is None or isinstance(pca.person, str), "person must be the name of a column at every site")
    if pca.epsilon is None:
        require(pca.calibration == "exact", "calibration='paper' needs an epsilon")
        return None, None
    if pca.trust != "both":
        require(is_real(pca.epsilon), f"epsilon must be a number with trust={pca.trust!r}, got {pca.epsilon!r}")
        budget = budget_of(pca.epsilon, pca.delta)
        # One person moves a site's directions by more than any bound we know: only the matrix can be covered.
        at_site = pca.trust in ("site", "masked") or pca.method in _AVERAGES
        return (budget, None) if at_site else (None, budget)
    listed = isinstance(pca.epsilon, Sequence | np.ndarray) and not isinstance(pca.epsilon, str)
    both = listed and len(pca.epsilon) == 2
    require(both, f"epsilon must be a pair with trust='both': against the hub, and against others; got {pca.epsilon!r}")
    deltas = pca.delta if isinstance(pca.delta, Sequence) else (pca.delta, pca.delta)
    require(len(deltas) == 2, f"delta must be a number or a pair with trust='both', got {pca.delta!r}")
    require(pca.method not in _AVERAGES, f"method={pca.method!r} adds noise at the sites only: take trust='site'")
    numbers_given = all(is_real(value) for value in pca.epsilon)
    require(numbers_given, f"epsilon must be a pair of numbers with trust='both', got {pca.epsilon!r}")
    first, second = (budget_of(e, d) for e, d in zip(pca.epsilon, deltas, strict=True))
    return first, second


def request_of(pca: Any, held: Held) -> SitesRequest:
    """What a federated fit is asked for, from the parameters of the estimator and what is `held` by its sites."""
    at_sites, at_hub = budgets_of(pca)
    dim, count = held.dim, len(held.names)
    require_one_of("topology", pca.topology, ("star", "tree"))
    require_one_of("align", pca.align, ("procrustes", "sign", "none"))
    require_one_of("neighbours", pca.neighbours, ("add-remove", "zero-out", "replace-one"))
    require_integer("fanout", pca.fanout, least=2, optional=False)
    # With noise, shares grow from round to round, and the first of too many would be nothing.
    require_integer("rounds", pca.rounds, least=1, most=10_000 if at_sites is None and at_hub is None else 200)
    require_integer("oversample", pca.oversample, least=0)
    require_integer("person_sites", pca.person_sites, least=1, most=max(1, count), optional=False)
    require(pca.faults is None or isinstance(pca.faults, Faults), "faults must be an eigenveil.runtimes.Faults")
    private, published = at_sites is not None or at_hub is not None, pca.calibration == "paper"
    rank = rank_of(pca.n_components, dim)
    # Without a budget nobody is protected, and the number of people is gathered like any other sum.
    near = Neighbours(pca.neighbours) if private else Neighbours.ADD_REMOVE
    budget = at_sites if at_sites is not None else at_hub
    plan = plan_sites(
        dim=dim,
        rank=rank,
        budget=budget,
        method=cast("Method", "fedpower" if published and pca.method == "auto" else pca.method),
        neighbours=near,
        rounds=pca.rounds,
        tolerance=tolerance_of(pca.tolerance),
        oversample=pca.oversample,
        local_steps=local_steps_of(pca.local_steps),
        equal_shares=published,
    )
    participation = participation_of(pca.participation, count)
    if participation is not None:
        # Rounds with other sites differ, however near the answer is.
        plan = replace(plan, tolerance=0.0)
    require_maskable(pca, plan, count)
    masks = masks_of(pca, count)
    require_legal(pca, plan, participation, at_sites, at_hub, private=private)
    center = mean_or_numbers(pca.center, dim)
    public = not private or near.count_is_public or published
    sizes = held.sizes() if public else None
    require_enough(sizes, dim, rank, private=private, published=published)
    declared = None
    if masks is not None and not private and pca.row_bound is None and pca.column_bounds is None:
        _bounds(pca, dim, private=False, sparse=held.sparse)
        require(
            held.rows is not None,
            "row_bound is required with trust='masked' where nobody sees the rows of all sites; at one of them "
            "eigenveil.find_bounds, or `eigenveil bounds` on the command line, finds one privately",
        )
        assert held.rows is not None
        declared = Declared.of(held.rows, scale=pca.scale, origin=pca.origin, center=center, mean_bound=pca.mean_bound)
    return SitesRequest(
        design=partial(
            pca_study,
            rank=rank,
            bounds=_bounds(pca, dim, private=private and not published, sparse=held.sparse, declared=declared),
            center=center,
            align=pca.align,
            # Without privacy the number is gathered like any other sum: the hub has no rows to count.
            people=sum(sizes.values()) if sizes is not None and private else None,
        ),
        neighbours=near,
        plan=plan,
        at_sites=at_sites,
        at_hub=at_hub,
        published=published,
        fanout=int(pca.fanout) if pca.topology == "tree" else None,
        participation=participation,
        terms=_terms(pca, count),
        person_sites=int(pca.person_sites),
        grouped=held.grouped,
        sizes=sizes,
        seed=seed_of(pca.random_state),
        masks=masks,
        declared=declared,
    )


def _bounds(pca: Any, dim: int, *, private: bool, sparse: bool, declared: Declared | None = None) -> RowBounds:
    row_bound, mean_bound = pca.row_bound, pca.mean_bound
    if declared is not None:
        row_bound, mean_bound = declared.row_bound, declared.mean_bound
    bounds = RowBounds.check(
        dim,
        private=private,
        row_bound=row_bound,
        column_bounds=pca.column_bounds,
        origin=pca.origin,
        mean_bound=mean_bound,
        scale=pca.scale,
        sparse=sparse,
    )
    if private:
        bounds.require_addable()
    return bounds


def _terms(pca: Any, sites: int) -> Terms:
    good = is_real(pca.deadline) and 0 < float(pca.deadline) < math.inf
    require(good, f"deadline must be positive and finite, got {pca.deadline!r}")
    require_integer("retries", pca.retries, least=0, most=1000, optional=False)
    fewest = pca.survivors if pca.trust == "masked" else pca.quorum
    name = "survivors" if pca.trust == "masked" else "quorum"
    return Terms(share_of(name, fewest, sites), float(pca.deadline), int(pca.retries))
