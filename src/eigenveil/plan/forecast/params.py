"""The estimator parameters of a method, and the Python call that shows them. Dots stand for what only the caller
knows."""

from typing import Any, Final

from eigenveil.core.unit import Neighbours
from eigenveil.errors import in_python
from eigenveil.methods import MethodPlan, method_of
from eigenveil.params import FederatedParams, GossipParams, PrivateParams, StreamingParams
from eigenveil.params.words import as_call
from eigenveil.plan.choose.stream import StreamPlan
from eigenveil.plan.forecast.facts import Facts, parts_of
from eigenveil.trackers import published_as

__all__ = ["FitParams", "call_of", "choice_of", "estimator_of", "params_of", "unknown_of"]

FitParams = PrivateParams | FederatedParams | GossipParams | StreamingParams

# Up to this many peers the graph is complete.
_FEW_PEERS: Final = 6


def params_of(facts: Facts, method: str, plan: MethodPlan | StreamPlan, neighbours: Neighbours) -> FitParams:
    """The parameters that make an estimator do what was planned. The plan leaves all others at their defaults."""
    setting, how = parts_of(method)
    given: dict[str, Any] = {
        "n_components": facts.rank,
        "epsilon": facts.budget.epsilon,
        "delta": facts.budget.delta,
        # Its default, "private", where the fit finds one. In found units rows have a bound without a search.
        **({} if facts.row_bound is None else {"row_bound": facts.row_bound}),
        "neighbours": neighbours.value,
        "scale": facts.scale,
    }
    if isinstance(plan, StreamPlan):
        block = None if facts.blocks is None else plan.block
        horizon = facts.people if published_as(how).needs_horizon else None
        # Numbers are subtracted beforehand: a stream does not take them.
        center: Any = "private" if facts.center == "private" else None
        return StreamingParams(**given, publish=_any(how), horizon=horizon, block_size=block, center=center)
    given["center"] = facts.center
    match setting:
        case "curator":
            return PrivateParams(**given, method=_any(how))
        case "peers" | "peers-independent":
            pairwise = setting == "peers"
            return GossipParams(
                **given,
                method=_any(how),
                graph="complete" if facts.sites <= _FEW_PEERS else "random-regular:4",
                consensus="tree",
                noise="pairwise" if pairwise else "independent",
                people=plan.people or None,
                colluders=facts.colluders if pairwise else 1,
                rounds=_rounds(plan, facts),
            )
    masked = setting == "masked"
    return FederatedParams(
        **given,
        method=_any(how),
        trust=_any(setting),
        survivors=facts.survivors if masked else None,
        colluders=facts.colluders if masked else 1,
        rounds=_rounds(plan, facts),
    )


def unknown_of(facts: Facts, params: FitParams) -> tuple[str, ...]:
    """The parameters that the plan relies on and only the caller knows."""
    stream = isinstance(params, StreamingParams)
    near = facts.center == "private" and not facts.search
    # A search for units finds where columns lie, too.
    return ("mean_bound",) if near and not stream and facts.scale is None else ()


def estimator_of(params: FitParams) -> tuple[str, tuple[str, ...]]:
    """The estimator, and which parameters name its method. A plan prints those even at their defaults."""
    match params:
        case PrivateParams():
            return "PrivatePCA", ("method",)
        case FederatedParams():
            return "FederatedPCA", ("trust", "method")
        case GossipParams():
            return "GossipPCA", ("noise", "method")
        case StreamingParams():
            return "StreamingPCA", ("publish",)


def call_of(params: FitParams, unknown: tuple[str, ...]) -> str:
    """The Python call that runs the fit.

    >>> call_of(StreamingParams(2, epsilon=1.0, delta=1e-6), ())
    "StreamingPCA(2, epsilon=1.0, delta=1e-06, publish='sync')"
    """
    name, choosing = estimator_of(params)
    return as_call(params, name, always=choosing, unknown=unknown)


def choice_of(params: FitParams) -> str:
    """The parameters that name the method, as text.

    >>> choice_of(FederatedParams(2, epsilon=1.0, trust="masked", method="covariance"))
    "trust='masked', method='covariance'"
    """
    return ", ".join(in_python(name, getattr(params, name)) for name in estimator_of(params)[1])


def _rounds(plan: MethodPlan, facts: Facts) -> int | None:
    """The number of rounds, where a limit may have reduced it; None for the default."""
    leaf = method_of(plan.method)
    if facts.rounds is None or leaf.fixed_rounds is not None:
        return None
    # Each component has a round for its start, beside those that are asked for.
    return plan.rounds - leaf.finds_one_by_one


def _any(word: str) -> Any:
    """A word that the parameter accepts, as `METHODS` lists no others; for the type checker."""
    return word
