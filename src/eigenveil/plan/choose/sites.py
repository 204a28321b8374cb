"""Plans a fit over many sites or peers: method, width, rounds and shares; and builds the task that carries it out.

All from public numbers. Estimators run the task, and `plan.forecast` rehearses the same one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, final

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require_param
from eigenveil.linalg import Array
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.methods.dr_svd import RandomisedSvd, randomised_width
from eigenveil.methods.fedpower import LocalPower, constant_steps, decaying_steps
from eigenveil.methods.krylov import KeptProducts, KrylovSum
from eigenveil.methods.power import PowerIteration
from eigenveil.methods.products import geometric_shares
from eigenveil.methods.spaces import SiteSpaces
from eigenveil.plan.choose.choice import GROWTH, ROUNDS, predict
from eigenveil.tasks import Task

__all__ = ["Method", "SitesPlan", "components_of", "iterates", "plan_sites"]

Method = Literal["krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd"]
LocalSteps = int | Sequence[int | str]

# Without noise: the most rounds of each method, and the change at which it has converged.
_MOST_ROUNDS: Final = {"krylov": 60, "power": 200, "fedpower": 100}
_TOLERANCE: Final = 1e-8
# Directions beyond the rank: a slightly wider block saves rounds.
_KRYLOV_MORE: Final = 5
# With noise, where all products are kept: more rounds than the power method and a more even budget
# (docs/decisions/0009).
_KEPT_ROUNDS: Final = 8
_KEPT_GROWTH: Final = 1.3
_ONE_SHOT: Final = ("covariance", "merge", "uda", "wda", "dr-svd")


@final
@dataclass(frozen=True, slots=True)
class SitesPlan:
    """What was decided and why.

    `width` is the number of columns in a product or in what a site sends. `shares` are each round's part of the
    components' budget, and `steps` its local steps.
    """

    method: Method
    width: int
    rounds: int
    shares: tuple[float, ...]
    steps: tuple[int, ...]
    tolerance: float
    reason: str

    @property
    def headline(self) -> str:
        """The method and why it was chosen, on one line. The reason already names the method."""
        return self.reason


def plan_sites(
    *,
    dim: int,
    rank: int,
    budget: Budget | None,
    method: Method | Literal["auto"],
    neighbours: Neighbours,
    rounds: int | None,
    tolerance: float | None,
    oversample: int | None,
    local_steps: LocalSteps,
    equal_shares: bool = False,
) -> SitesPlan:
    """The plan for `rank` components of `dim` columns. Each setting that the caller gave is used or refused.

    >>> few = dict(dim=100, rank=5, neighbours=Neighbours.ADD_REMOVE, rounds=None, tolerance=None, oversample=None, local_steps=1)
    >>> plan_sites(budget=None, method="auto", **few).method, plan_sites(budget=Budget(1.0, 1e-6), method="auto", **few).method
    ('krylov', 'covariance')
    """
    chosen, reason = _chosen(dim, rank, budget, method, neighbours)
    several = chosen not in _ONE_SHOT
    require_param(
        rounds is None or several,
        f"{{rounds}} is for krylov, power and fedpower; {{method=}} takes {'two' if chosen == 'dr-svd' else 'one'}",
        method=chosen,
    )
    require_param(
        tolerance is None or several, "{tolerance} is for krylov, power and fedpower, not {@chosen}", chosen=chosen
    )
    one_step = isinstance(local_steps, int) and local_steps == 1
    require_param(
        one_step or chosen == "fedpower",
        "{local_steps} is for {method=fedpower}, not {@chosen}",
        chosen=chosen,
    )
    width = _width(dim, rank, chosen, oversample, exact=budget is None)
    if chosen in _ONE_SHOT:
        return SitesPlan(chosen, width, 1 + (chosen == "dr-svd"), (1.0,), (), 0.0, reason)
    most, growth = _MOST_ROUNDS[chosen], 1.0
    if budget is not None:
        most, growth = (_KEPT_ROUNDS, _KEPT_GROWTH) if chosen == "krylov" else (ROUNDS, GROWTH)
    rounds = most if rounds is None else rounds
    growth = 1.0 if equal_shares else growth
    # With noise, shares are fixed in advance: a round that is left out would leave its share unused.
    stop = (0.0 if budget is not None else _TOLERANCE) if tolerance is None else tolerance
    steps = _schedule(local_steps, rounds) if chosen == "fedpower" else constant_steps(1, rounds)
    return SitesPlan(chosen, width, rounds, geometric_shares(rounds, growth=growth), steps, stop, reason)


def iterates(method: str) -> bool:
    """Whether a method starts from a basis."""
    return method in ("krylov", "power", "fedpower", "dr-svd")


def components_of(
    plan: SitesPlan,
    begin: Array | None,
    *,
    neighbours: Neighbours,
    rank: int,
    private: bool,
    align: Literal["procrustes", "sign", "none"] = "procrustes",
    published: bool = False,
) -> Callable[[Domain], Task[Any, Any, Any]]:
    """A factory for the planned task: given the domain of the rows, it returns the task that finds the directions.

    Iterative methods start from the basis `begin`. The factory is a class of `eigenveil.tasks` with all but the
    domain filled in, so protocols that run it never import the planner.
    """
    near = neighbours
    match plan.method:
        case "covariance":
            return partial(CovarianceSum, neighbours=near)
        case "merge":
            return partial(SiteSpaces, neighbours=near, kind="merge", rank=rank, width=plan.width)
        case "uda" | "wda":
            # WDA as printed divides by a site's number of people, which must be public unless nothing is protected.
            normalise = plan.method == "wda" and (near.count_is_public or not private)
            return partial(SiteSpaces, neighbours=near, kind=plan.method, rank=rank, normalise=normalise)
    assert begin is not None
    shares, stop = plan.shares, plan.tolerance
    match plan.method:
        case "krylov" if private:
            return partial(KeptProducts, neighbours=near, begin=begin, shares=shares, rank=rank, tolerance=stop)
        case "krylov":
            rounds = plan.rounds
            return partial(
                KrylovSum, neighbours=near, begin=begin, rounds=rounds, rank=rank, tolerance=stop, shares=shares
            )
        case "power":
            return partial(PowerIteration, neighbours=near, begin=begin, shares=shares, rank=rank, tolerance=stop)
        case "dr-svd":
            return partial(RandomisedSvd, neighbours=near, begin=begin, rank=rank)
        case _:
            return partial(
                LocalPower,
                neighbours=near,
                begin=begin,
                steps=plan.steps,
                shares=shares,
                rank=rank,
                align=align,
                tolerance=stop,
                published=published,
            )


def _chosen(
    dim: int, rank: int, budget: Budget | None, method: Method | Literal["auto"], neighbours: Neighbours
) -> tuple[Method, str]:
    if method != "auto":
        return method, f"{method} was asked for"
    if budget is None:
        return "krylov", "krylov: exact to rounding in few rounds of d x w numbers"
    plan = predict(dim=dim, rank=rank, budget=budget, neighbours=neighbours)
    if plan.chosen.method == "covariance":
        return "covariance", plan.reason
    return "krylov", f"krylov: {plan.why}; all noisy products are kept"


def _width(dim: int, rank: int, method: Method, oversample: int | None, *, exact: bool) -> int:
    match method:
        case "covariance" | "uda" | "wda":
            require_param(oversample is None, "{oversample} has no meaning for {method=}", method=method)
            return rank
        case "dr-svd":
            # FedPower Alg. 6.
            return randomised_width(dim, rank=rank) if oversample is None else min(dim, rank + oversample)
        case "krylov" if exact:
            more = _KRYLOV_MORE
        case _:
            more = max(10, rank) if exact or method == "merge" else max(10, 3 * rank)
    return min(dim, rank + (more if oversample is None else oversample))


def _schedule(local_steps: LocalSteps, rounds: int) -> tuple[int, ...]:
    """Local steps of each round: constant, decaying as in FedPower (3.15), or as listed with the last one
    repeated."""
    if isinstance(local_steps, int):
        return constant_steps(local_steps, rounds)
    listed = tuple(local_steps)
    if len(listed) == 2 and listed[0] == "decay":
        return decaying_steps(int(listed[1]), rounds)
    steps = [int(step) for step in listed][:rounds]
    return tuple(steps + [steps[-1]] * (rounds - len(steps)))
