"""Plans how sites, or peers, find components: which method, and that method's own plan. From public numbers alone."""

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require_param
from eigenveil.methods import METHODS, Method, MethodPlan, PlanRequest, method_of
from eigenveil.methods.base import LocalSteps
from eigenveil.plan.choose.choice import predict
from eigenveil.plan.spectrum import guessed_eigenvalues, require_rank

__all__ = ["plan_sites"]


def plan_sites(
    *,
    dim: int,
    rank: int,
    budget: Budget | None,
    method: str,
    neighbours: Neighbours,
    rounds: int | None = None,
    tolerance: float | None = None,
    oversample: int | None = None,
    local_steps: LocalSteps = 1,
    equal_shares: bool = False,
    guessed_people: int = 2,
) -> MethodPlan:
    """The plan for `rank` components of `dim` columns. Each setting that the caller gave is used or refused.

    `guessed_people` is a public guess at how many there are, for methods with hidden starts.

    >>> few = dict(dim=100, rank=5, neighbours=Neighbours.ADD_REMOVE)
    >>> plan_sites(budget=None, method="auto", **few).method, plan_sites(budget=Budget(1.0, 1e-6), method="auto", **few).method
    ('krylov', 'covariance')
    """
    require_rank(rank, dim)
    leaf, reason = _chosen(dim, rank, budget, method, neighbours)
    request = PlanRequest(
        dim=dim,
        rank=rank,
        budget=budget,
        eigenvalues=guessed_eigenvalues(dim=dim, people=guessed_people),
        people=guessed_people,
        rounds=rounds,
        tolerance=tolerance,
        oversample=oversample,
        local_steps=local_steps,
        equal_shares=equal_shares,
    )
    _require_used(leaf, request)
    return leaf.plan(request, reason)


def _require_used(leaf: Method, request: PlanRequest) -> None:
    """Refuse what has no meaning for a method."""
    others = [one for one in METHODS.values() if "sites" in one.places]
    *most, last = (one.name for one in others if one.fixed_rounds is None)
    several = f"{', '.join(most)} and {last}"
    require_param(
        request.rounds is None or leaf.fixed_rounds is None,
        f"{{rounds}} is for {several}; {{method=}} takes {'one' if leaf.fixed_rounds == 1 else 'two'}",
        method=leaf.name,
    )
    require_param(
        request.tolerance is None or leaf.fixed_rounds is None,
        f"{{tolerance}} is for {several}, not {{@chosen}}",
        chosen=leaf.name,
    )
    one_step = isinstance(request.local_steps, int) and request.local_steps == 1
    local = " or ".join(f"{{method={one}}}" for one in others if one.takes_local_steps)
    require_param(
        one_step or leaf.takes_local_steps, f"{{local_steps}} is for {local}, not {{@chosen}}", chosen=leaf.name
    )


def _chosen(dim: int, rank: int, budget: Budget | None, method: str, neighbours: Neighbours) -> tuple[Method, str]:
    """The method and why. "auto" is the first that takes products, unless one release is better and fits."""
    if method != "auto":
        return method_of(method), f"{method} was asked for"
    products = next(leaf for leaf in METHODS.values() if "sites" in leaf.places and leaf.needs_start_basis)
    if budget is None:
        return products, f"{products}: exact to rounding in few rounds of d x w numbers"
    plan = predict(dim=dim, rank=rank, budget=budget, neighbours=neighbours)
    chosen = method_of(plan.chosen.method)
    if not chosen.needs_start_basis:
        return chosen, plan.reason
    return products, f"{products}: {plan.why}; all noisy products are kept"
