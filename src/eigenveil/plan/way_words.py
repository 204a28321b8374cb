"""What a way to do it promises, in one line, and the call that does it."""

from typing import Final

from eigenveil.plan.facts import Facts
from eigenveil.plan.gossip import SegmentsPlan
from eigenveil.plan.sites import SitesPlan
from eigenveil.plan.stream import StreamPlan
from eigenveil.privacy import Neighbours

__all__ = ["call_of", "promise_of"]

_SEES: Final = {
    "curator": "against all who see the result; the curator has the rows",
    "stream": "against all who see what the stream releases; the device that follows it sees the rows as they come",
    "hub": "against all who see the result; the hub is trusted with sums over each site's rows",
    "site": "against everybody outside of a person's own site, the hub among them",
    "masked": "against the hub, which sees noisy sums over sites only, even if {colluders} of the sites collude with it",
    "peers": "against any {colluders} of the peers together, and all who listen",
    "peers-independent": "against everybody outside of a person's own peer",
}


def promise_of(setting: str, facts: Facts, neighbours: Neighbours) -> str:
    """Against whom each person is protected."""
    against = _SEES[setting].format(colluders=facts.colluders)
    budget = f"epsilon = {facts.budget.epsilon:g}, delta = {facts.budget.delta:g} ({neighbours.value})"
    return f"each person, {against}: {budget}"


def call_of(method: str, plan: SitesPlan | SegmentsPlan | StreamPlan, facts: Facts) -> str:
    """The Python call that does it; what the planner does not know is left as three dots."""
    setting, _, name = method.partition("/")
    given = [f"{facts.rank}", f"epsilon={facts.budget.epsilon:g}", f"delta={facts.budget.delta:g}", "row_bound=..."]
    if setting == "stream":
        given.append(f"publish={name!r}")
        given += [f"horizon={facts.people}"] if name == "continual" else []
        given += [f"block_size={plan.block}"] if facts.blocks is not None and isinstance(plan, StreamPlan) else []
        given += ["center=False"] if facts.center == "known" else []
        given += _neighbours(facts.neighbours, unless=(Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT))
        return f"StreamingPCA({', '.join(given)})"
    if setting == "curator":
        given.append(f"mechanism={name!r}")
    elif setting.startswith("peers"):
        graph = "complete" if facts.sites <= 6 else "random-regular:4"
        noise = "pairwise" if setting == "peers" else "independent"
        given[1:1] = [f"graph={graph!r}"]
        given += [f"method={name!r}", "consensus='tree'", f"noise={noise!r}"]
        given += [f"people={facts.people}"] if name == "segments" else []
        given += [f"colluders={facts.colluders}"] if setting == "peers" and facts.colluders > 1 else []
    else:
        trust = "curator" if setting == "hub" else setting
        given += [f"method={name!r}", f"trust={trust!r}"]
        masks = setting == "masked"
        given += [f"survivors={facts.survivors}"] if masks and facts.survivors is not None else []
        given += [f"colluders={facts.colluders}"] if masks and facts.colluders > 1 else []
    given += _rounds(plan, facts) if setting != "curator" else []
    given += ["center=..."] if facts.center == "known" else []
    given += _neighbours(facts.neighbours, unless=(Neighbours.ADD_REMOVE,))
    estimator = {"curator": "PrivatePCA", "peers": "GossipPCA", "peers-independent": "GossipPCA"}
    return f"{estimator.get(setting, 'FederatedPCA')}({', '.join(given)})"


def _rounds(plan: SitesPlan | SegmentsPlan | StreamPlan, facts: Facts) -> list[str]:
    """How many rounds, where a limit may have made them fewer than usual."""
    if facts.rounds is None or isinstance(plan, StreamPlan):
        return []
    if isinstance(plan, SegmentsPlan):
        return [f"rounds={plan.turns - 1}"]
    return [f"rounds={plan.rounds}"] if plan.method in ("krylov", "power", "fedpower") else []


def _neighbours(neighbours: Neighbours, *, unless: tuple[Neighbours, ...]) -> list[str]:
    return [] if neighbours in unless else [f"neighbours={neighbours.value!r}"]
