"""`settings_of`: the public choices of a fit, as plain values for the model file. Every kind of fit writes them here.

A simulation and a study over a network have the same parties, and so the same settings; a study adds its name and digest.
"""

from typing import Any

from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.federated.request import SitesRequest
from eigenveil.estimators.gossip.parties import PeerParties
from eigenveil.estimators.private.curator import Request
from eigenveil.plan import Plan, SitesPlan
from eigenveil.privacy import Neighbours

__all__ = ["curator_settings", "peers_settings", "place_of_noise", "settings_of", "sites_settings"]


def settings_of(*, mechanism: str, why: str, neighbours: Neighbours | None, **facts: Any) -> dict[str, Any]:
    """What was done and why, between which `neighbours` it is private (None for no privacy), and `facts` that are known.

    >>> settings_of(mechanism="power", why="asked for", neighbours=None, width=4, rounds=None)
    {'mechanism': 'power', 'why': 'asked for', 'width': 4, 'neighbours': 'none'}
    """
    known = {name: value for name, value in facts.items() if value is not None}
    near = "none" if neighbours is None else neighbours.value
    return {"mechanism": mechanism, "why": why} | known | {"neighbours": near}


def curator_settings(request: Request, plan: Plan, *, private: bool) -> dict[str, Any]:
    """Of a fit of one table."""
    return settings_of(
        mechanism=plan.chosen.mechanism,
        why=plan.reason,
        neighbours=request.neighbours if private else None,
        calibration=request.calibration,
        width=plan.chosen.width,
        iterations=len(plan.chosen.shares),
    )


def sites_settings(parties: Parties, *, sites: int, rounds: int | None, sent: int | None) -> dict[str, Any]:
    """Of a fit of so many `sites` around a hub, as the party knows it that writes the model: `sent` are bytes."""
    request, plan = parties.request, parties.request.plan
    return settings_of(
        mechanism=plan.method,
        why=plan.reason,
        neighbours=request.neighbours if request.private else None,
        trust=place_of_noise(request),
        topology="star" if request.fanout is None else f"tree of fan-out {request.fanout}",
        sites=sites,
        rounds=rounds,
        bytes=sent,
        calibration="paper" if request.published else "exact",
        width=plan.width,
    )


def peers_settings(parties: PeerParties, *, peers: int, rounds: int, sent: int | None) -> dict[str, Any]:
    """Of a fit of so many `peers` without a hub, as the peer knows it that writes the model: `sent` are bytes."""
    request, plan = parties.request, parties.request.plan
    return settings_of(
        mechanism=request.method,
        why=plan.reason,
        neighbours=request.neighbours if request.private else None,
        noise=request.noise,
        graph=f"{len(request.graph.names)} peers, {len(request.graph.edges)} edges",
        consensus=request.consensus,
        steps=parties.terms.among(()).mixing.steps,
        peers=peers,
        rounds=rounds,
        bytes=sent,
        width=plan.width if isinstance(plan, SitesPlan) else 1,
    )


def place_of_noise(request: SitesRequest) -> str:
    """Who is trusted with what, in a few words."""
    if request.masks is not None:
        survivors, colluders = request.masks
        return f"masked, {survivors} survivors of whom {colluders} may collude"
    if request.at_sites is not None:
        return "both" if request.at_hub is not None else "site"
    return "curator" if request.at_hub is not None else "none"
