"""From the checked parameters of `FederatedPCA` to what is asked for. Rows are needed for what is `SiteInfo` alone."""

from dataclasses import replace
from functools import partial
from typing import Final, cast

from eigenveil.errors import ParameterError, require_param
from eigenveil.estimators.checks import budget_of, center_of, rank_of, seed_of
from eigenveil.estimators.federated.masks import DeclaredBounds
from eigenveil.estimators.federated.request import FederatedSpec
from eigenveil.estimators.federated.rules import (
    drawn_of,
    masks_of,
    require_enough,
    require_few_rounds,
    require_legal,
    require_maskable,
    share_of,
)
from eigenveil.estimators.federated.study import pca_study
from eigenveil.estimators.settings import asked_settings
from eigenveil.estimators.sites import SiteInfo
from eigenveil.params import FederatedParams
from eigenveil.plan import Method, plan_sites
from eigenveil.privacy import Budget, Neighbours
from eigenveil.protocols import Terms
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["budgets_of", "request_of"]

_AVERAGES: Final = ("merge", "uda", "wda")


def budgets_of(asked: FederatedParams) -> tuple[Budget | None, Budget | None]:
    """The budgets at the sites and at the hub, None where no noise is added."""
    epsilon, delta = asked.epsilon, asked.delta
    if epsilon is None:
        require_param(asked.calibration == "exact", "{calibration=paper} needs an {epsilon}")
        return None, None
    if asked.trust == "both":
        return _two_budgets(asked)
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if isinstance(value, tuple):
            raise ParameterError(
                f"{{{name}}} must be a number with {{trust=}}, got {{@value}}", trust=asked.trust, value=value
            )
    budget = budget_of(epsilon, delta)
    # One person moves a site's directions by more than any bound we know: only the matrix can be covered.
    at_site = asked.trust in ("site", "masked") or asked.method in _AVERAGES
    return (budget, None) if at_site else (None, budget)


def _two_budgets(asked: FederatedParams) -> tuple[Budget | None, Budget | None]:
    epsilon, delta = asked.epsilon, asked.delta
    if not isinstance(epsilon, tuple):
        raise ParameterError(
            "{epsilon} must be a pair with {trust=both}: against the hub, and against others; got {@value}",
            value=epsilon,
        )
    require_param(
        asked.method not in _AVERAGES, "{method=} adds noise at the sites only: take {trust=site}", method=asked.method
    )
    deltas = delta if isinstance(delta, tuple) else (delta, delta)
    return budget_of(epsilon[0], deltas[0]), budget_of(epsilon[1], deltas[1])


def request_of(asked: FederatedParams, held: SiteInfo) -> FederatedSpec:
    """What a federated fit is asked for, from its parameters and what is `held` by its sites."""
    at_sites, at_hub = budgets_of(asked)
    dim, count = held.dim, len(held.names)
    private, published = at_sites is not None or at_hub is not None, asked.calibration == "paper"
    require_few_rounds(asked.rounds, private=private)
    require_param(
        asked.person_sites <= max(1, count),
        f"{{person_sites}} must be an integer from 1 to {max(1, count)}, got {{@value}}",
        value=asked.person_sites,
    )
    rank = rank_of(asked.n_components, dim)
    # Without a budget nobody is protected, and the number of people is gathered like any other sum.
    near = Neighbours(asked.neighbours) if private else Neighbours.ADD_REMOVE
    budget = at_sites if at_sites is not None else at_hub
    plan = plan_sites(
        dim=dim,
        rank=rank,
        budget=budget,
        method=cast("Method", "fedpower" if published and asked.method == "auto" else asked.method),
        neighbours=near,
        rounds=asked.rounds,
        tolerance=asked.tolerance,
        oversample=asked.oversample,
        local_steps=asked.local_steps,
        equal_shares=published,
    )
    participation = drawn_of(asked, count)
    if participation is not None:
        # Rounds with other sites differ, however near the answer is.
        plan = replace(plan, tolerance=0.0)
    require_maskable(asked, plan, count)
    masks = masks_of(asked, count)
    require_legal(asked, plan, participation, at_sites, at_hub, private=private)
    center = center_of(asked.center, dim)
    public = not private or near.count_is_public or published
    sizes = held.sizes() if public else None
    require_enough(sizes, dim, rank, private=private, published=published)
    declared = None
    if masks is not None and not private and asked.row_bound is None and asked.column_bounds is None:
        _bounds(asked, dim, private=False, sparse=held.sparse)
        if held.rows is None:
            raise ParameterError(
                "{row_bound} is required with {trust=masked} where nobody sees the rows of all sites; at one of them "
                "eigenveil.find_bounds, or `eigenveil bounds` on the command line, finds one privately"
            )
        declared = DeclaredBounds.of(
            held.rows, scale=asked.scale, origin=asked.origin, center=center, mean_bound=asked.mean_bound
        )
    return FederatedSpec(
        design=partial(
            pca_study,
            rank=rank,
            bounds=_bounds(asked, dim, private=private and not published, sparse=held.sparse, declared=declared),
            center=center,
            align=asked.align,
            # Without privacy the number is gathered like any other sum: the hub has no rows to count.
            people=sum(sizes.values()) if sizes is not None and private else None,
        ),
        neighbours=near,
        plan=plan,
        at_sites=at_sites,
        at_hub=at_hub,
        published=published,
        fanout=asked.fanout if asked.topology == "tree" else None,
        participation=participation,
        terms=_terms(asked, count),
        person_sites=asked.person_sites,
        grouped=held.grouped,
        sizes=sizes,
        seed=seed_of(asked.random_state),
        settings=asked_settings(asked),
        masks=masks,
        declared=declared,
    )


def _bounds(
    asked: FederatedParams, dim: int, *, private: bool, sparse: bool, declared: DeclaredBounds | None = None
) -> RowBounds:
    instead = {} if declared is None else {"row_bound": declared.row_bound, "mean_bound": declared.mean_bound}
    bounds = RowBounds.of(asked, dim, private=private, sparse=sparse, **instead)
    if private:
        bounds.require_addable()
    return bounds


def _terms(asked: FederatedParams, sites: int) -> Terms:
    name = "survivors" if asked.trust == "masked" else "quorum"
    return Terms(share_of(name, getattr(asked, name), sites), asked.deadline, asked.retries)
