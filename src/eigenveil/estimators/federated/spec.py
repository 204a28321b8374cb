"""`FederatedSpec`: what sites around a hub are asked for, checked and public, made from the parameters of `FederatedPCA`.

Rows are needed only for what `SiteInfo` says of them, so a network can make the same spec from declared sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.errors import ParameterError, require_param
from eigenveil.estimators.checks import budget_of, center_of, covariance_for, rank_of, seed_of
from eigenveil.estimators.federated.masks import DeclaredBounds
from eigenveil.estimators.federated.rules import (
    Participation,
    drawn_of,
    masks_of,
    require_enough,
    require_few_rounds,
    require_legal,
    require_maskable,
    share_of,
)
from eigenveil.estimators.settings import asked_settings
from eigenveil.estimators.sites import SiteInfo
from eigenveil.estimators.terms import Terms
from eigenveil.linalg import Array
from eigenveil.methods import METHODS, MethodPlan, TaskContext
from eigenveil.params import FederatedParams
from eigenveil.plan import plan_sites
from eigenveil.plan.choose.choice import DIVIDED
from eigenveil.protocols import Terms as Patience
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.task import Fit, Setting, WholeFit

__all__ = ["Design", "FederatedSpec", "Participation", "budgets_of", "pca_fit", "request_of"]

# Makes the fit from the spec, from what it must know of its carrier, and from the public seed of the first basis.
Design = Callable[["FederatedSpec", Setting, Any], WholeFit[Any, Any, Any]]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FederatedSpec:
    """How sites fit together what `fit` says and `design` makes. `at_sites` and `at_hub` are budgets, None for no noise there.

    With masks, `masks` is how many sites must survive and how many may collude. `declared` is what sites said of their rows when
    no bound was given.
    """

    fit: Terms
    design: Design
    at_sites: Budget | None
    at_hub: Budget | None
    patience: Patience
    seed: int | None
    masks: tuple[int, int] | None = None
    fanout: int | None = None
    participation: Participation | None = None
    person_sites: int = 1
    declared: DeclaredBounds | None = None

    @property
    def plan(self) -> MethodPlan:
        """As of peers, for whoever asks of either."""
        return self.fit.plan

    @property
    def private(self) -> bool:
        """The same."""
        return self.fit.private


def budgets_of(asked: FederatedParams) -> tuple[Budget | None, Budget | None]:
    """The budgets at the sites and at the hub, None if no noise is added there."""
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
    # No bound is known on how far one person moves a site's directions. Only its matrix can be covered, at the site.
    at_site = asked.trust in ("site", "masked") or _averages(asked)
    return (budget, None) if at_site else (None, budget)


def _averages(asked: FederatedParams) -> bool:
    return asked.method in METHODS and METHODS[asked.method].averages_subspaces


def _two_budgets(asked: FederatedParams) -> tuple[Budget | None, Budget | None]:
    epsilon, delta = asked.epsilon, asked.delta
    if not isinstance(epsilon, tuple):
        raise ParameterError(
            "{epsilon} must be a pair with {trust=both}, against the hub and against everyone else. Got {@value}",
            value=epsilon,
        )
    require_param(not _averages(asked), "{method=} adds noise at the sites only. Use {trust=site}", method=asked.method)
    # One delta for both budgets is usual.
    deltas = delta if isinstance(delta, tuple) else (delta, delta)
    return budget_of(epsilon[0], deltas[0]), budget_of(epsilon[1], deltas[1])


def request_of(asked: FederatedParams, info: SiteInfo) -> FederatedSpec:
    """The spec of a federated fit, from its parameters and what is known of its sites. Refuses what cannot be kept."""
    at_sites, at_hub = budgets_of(asked)
    dim, count = info.dim, len(info.names)
    private, published = at_sites is not None or at_hub is not None, asked.calibration == "paper"
    require_few_rounds(asked.rounds, private=private)
    _require_person_sites(asked.person_sites, count)
    rank = rank_of(asked.n_components, dim)
    # Without a budget nobody is protected, and the number of people is gathered like any other sum.
    near = Neighbours(asked.neighbours) if private else Neighbours.ADD_REMOVE
    participation = drawn_of(asked, count)
    plan = _plan(asked, dim, rank, at_sites if at_sites is not None else at_hub, near)
    if participation is not None:
        # Rounds with other sites differ even if the answer is near.
        plan = replace(plan, tolerance=0.0)
    require_maskable(asked, plan, count)
    masks = masks_of(asked, count)
    require_legal(asked, plan, participation, at_sites, at_hub, private=private)
    center = center_of(asked.center, dim)
    sizes = info.sizes() if not private or near.count_is_public or published else None
    require_enough(sizes, dim, rank, private=private, published=published)
    declared = _declared(asked, info, center) if masks is not None and not private else None
    fit = Terms(
        rank=rank,
        bounds=_bounds(asked, info, private=private and not published, declared=declared),
        center=center,
        neighbours=near,
        plan=plan,
        private=private,
        # Without privacy the number is gathered like any other sum: the hub has no rows to count. Where incomplete rows are
        # dropped, a public number of rows is not that of those that count.
        people=sum(sizes.values()) if sizes is not None and private and asked.missing != "drop" else None,
        settings=asked_settings(asked),
        sizes=sizes,
        published=published,
        grouped=info.grouped,
        person=asked.person if info.grouped else None,
    )
    return FederatedSpec(
        fit=fit,
        design=partial(pca_fit, align=asked.align),
        at_sites=at_sites,
        at_hub=at_hub,
        fanout=asked.fanout if asked.topology == "tree" else None,
        participation=participation,
        patience=_patience(asked, count),
        person_sites=asked.person_sites,
        seed=seed_of(asked.random_state),
        masks=masks,
        declared=declared,
    )


def _require_person_sites(person_sites: int, sites: int) -> None:
    most = max(1, sites)
    require_param(
        person_sites <= most,
        f"{{person_sites}} must be an integer from 1 to {most}, got {{@value}}",
        value=person_sites,
    )


def _plan(asked: FederatedParams, dim: int, rank: int, budget: Budget | None, near: Neighbours) -> MethodPlan:
    published = asked.calibration == "paper"
    method = covariance_for(asked.missing, asked.method, dim)
    if published and asked.method == "auto":
        # The only method whose noise is reproduced here as a paper prints it.
        method = next(leaf.name for leaf in METHODS.values() if leaf.takes_local_steps)
    found = plan_sites(
        dim=dim,
        rank=rank,
        budget=budget,
        method=method,
        neighbours=near,
        rounds=asked.rounds,
        tolerance=asked.tolerance,
        oversample=asked.oversample,
        local_steps=asked.local_steps,
        equal_shares=published,
    )
    divided = asked.missing in ("counts", "groups") and asked.method == "auto"
    return replace(found, reason=f"{found.method}: {DIVIDED}") if divided else found


def _declared(
    asked: FederatedParams, info: SiteInfo, center: Array | Literal["private"] | None
) -> DeclaredBounds | None:
    """What sites declare of their rows, for masks without privacy and without a bound: masked integers need a step."""
    require_param(
        not isinstance(asked.scale, str),
        "{scale=private} without a budget needs {trust=hub}, which gives the same answer: masks add whole numbers, and their "
        "step must come from units that everybody knows. Or give them as {scale}",
    )
    if isinstance(asked.row_bound, float) or asked.column_bounds is not None:
        return None
    # Wrong scales and origins are refused here, before any row is looked at.
    bounds = _bounds(asked, info, private=False)
    if info.rows is None:
        raise ParameterError(
            "{row_bound} is required with {trust=masked} when nobody sees the rows of all sites. Find one privately at one of "
            "them with eigenveil.find_bounds, or with `eigenveil bounds` on the command line"
        )
    return DeclaredBounds.of(
        info.rows,
        scale=asked.scale,
        origin=asked.origin,
        center=center,
        mean_bound=asked.mean_bound,
        gaps=bounds.gaps,
    )


def _bounds(
    asked: FederatedParams, info: SiteInfo, *, private: bool, declared: DeclaredBounds | None = None
) -> RowBounds:
    instead: dict[str, Any] = (
        {} if declared is None else {"row_bound": declared.row_bound, "mean_bound": declared.mean_bound}
    )
    return RowBounds.of(asked, info.dim, private=private, sparse=info.sparse, names=info.columns, **instead)


def _patience(asked: FederatedParams, sites: int) -> Patience:
    # With masks, a sum over fewer sites than survivors cannot be unmasked, so that number is the quorum.
    name = "survivors" if asked.trust == "masked" else "quorum"
    return Patience(share_of(name, getattr(asked, name), sites), asked.deadline, asked.retries)


def pca_fit(
    request: FederatedSpec, setting: Setting, start: Any, *, align: Literal["procrustes", "sign", "none"]
) -> Fit:
    """Principal components of rows within bounds, as one task. `start` is the public seed of the first basis, None for any."""
    fit = request.fit
    context = TaskContext(
        neighbours=fit.neighbours, rank=fit.rank, private=fit.private, align=align, published=fit.published
    )
    # The first basis is public, and over a network all parties draw it from the same seed.
    basis = fit.method.start_basis(fit.bounds.dim, fit.plan, start)
    return fit.fit(
        fit.method.build_task(fit.plan, basis, context),
        multiplier=setting.multiplier,
        # With a budget a restart would be charged twice, so the fit continues without the lost sites.
        begins_again=not fit.private and request.participation is None,
        grid=setting.grid,
        rounding=setting.rounding,
    )
