"""The guarantee of a federated fit, from facts. `recommend` uses `charged` and `seen_by_hub` too."""

import math

from eigenveil.core.ledger import Charge
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.federated.spec import FederatedSpec
from eigenveil.privacy import Guarantee, GuaranteeFacts
from eigenveil.privacy.facts import (
    COMPONENTS,
    NO_PRIVACY,
    HubAndSites,
    MaskedSites,
    Person,
    unproven,
)
from eigenveil.tasks.fit.task import Fit, FitResult

__all__ = ["charged", "federated_guarantee", "seen_by_hub"]


def federated_guarantee(parties: Parties, found: FitResult) -> Guarantee:
    """The guarantee of a finished fit, from what its ledgers say."""
    request, study = parties.request, parties.study
    assert isinstance(study, Fit)
    if not request.fit.private:
        return Guarantee.none(NO_PRIVACY["fit"])
    if request.fit.published:
        # The paper's proof does not cover a person, so its budgets are quoted and not claimed.
        return Guarantee.none(_as_published(request))
    # With noise in both places, the sites may add more than was asked of the hub.
    budgets = [budget for budget in (request.at_hub, request.at_sites) if budget is not None]
    radius, matrices = found.domain.radius, len(parties.matrices)
    return GuaranteeFacts(
        budget=min(budgets, key=lambda budget: budget.mu),
        protects=Person(
            place="site", grouped=request.fit.grouped, most=request.person_sites, column=request.fit.person
        ),
        neighbours=request.fit.neighbours,
        rows=study.bounds.known(
            study.center,
            # Nothing was clipped if every site gave a matrix.
            norm=radius if matrices < len(parties.names) else None,
            trace=radius**2 if matrices else None,
        ),
        seen_by=seen_by_hub(parties),
        released=COMPONENTS + study.bounds.released,
        charges=charged(parties),
        reproducible=request.seed is not None,
        people=found.people,
    ).guarantee()


def seen_by_hub(parties: Parties) -> HubAndSites | MaskedSites:
    """Who sees what when sites fit anything together around a hub."""
    request, masked = parties.request, parties.masked
    if request.masks is None or masked is None:
        return HubAndSites(
            at_sites=request.at_sites,
            at_hub=request.at_hub,
            tree=request.fanout is not None,
            drawn=request.participation is not None,
        )
    lattice = masked.lattice
    assert lattice.gaussian is not None
    return MaskedSites(
        survivors=masked.survivors,
        colluders=masked.colluders,
        honest=lattice.honest,
        noise_delta=lattice.gaussian.delta,
        failure=lattice.failure,
        apart=parties.apart,
    )


def charged(parties: Parties) -> tuple[Charge, ...]:
    """The hub's charges if it adds noise. Otherwise those of the site that spent most, once for each site a person may be at."""
    request, ledgers = parties.request, parties.ledgers
    if parties.apart and (not ledgers or (request.at_hub is not None and parties.layout.hub not in ledgers)):
        # Over a network each party keeps its own ledger, and nobody sees the others'.
        least = min(budget.mu for budget in (request.at_sites, request.at_hub) if budget is not None)
        return (Charge("reserved for the whole study", least),)
    if request.at_hub is not None and (
        request.at_sites is None or ledgers[parties.layout.hub].spent_mu <= request.at_sites.mu
    ):
        return ledgers[parties.layout.hub].charges
    most = max(
        (ledger for name, ledger in ledgers.items() if name != parties.layout.hub), key=lambda ledger: ledger.spent_mu
    )
    # Under masks a share is charged for the sum, which already counts a person at all of their sites.
    # A person at k sites is in k releases with independent noise, whose squares of mu add up.
    factor = math.sqrt(request.person_sites) if request.masks is None else 1.0
    return tuple(Charge(charge.label, charge.mu * factor) for charge in most.charges)


def _as_published(request: FederatedSpec) -> str:
    places = [
        (where, budget)
        for where, budget in (("the sites", request.at_sites), ("the hub", request.at_hub))
        if budget is not None
    ]
    because = [
        "it is for one entry of a Gram matrix and not for a person",
        "it leaves out a factor for the columns of the basis",
        "it takes the sizes of sites as public",
    ]
    if max(request.fit.plan.steps) > 1:
        because.insert(0, "its local steps read rows that no noise covers")
    return unproven("FedPower Alg. 2", places, because)
