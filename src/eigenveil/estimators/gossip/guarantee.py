"""The guarantee of a fit between peers, from facts."""

import math

from eigenveil.estimators.gossip.parties import PeerParties
from eigenveil.privacy import Guarantee, GuaranteeFacts
from eigenveil.privacy.facts import COMPONENTS, NO_PRIVACY, PeersAlone, Person, unproven
from eigenveil.tasks.fit.task import FitResult

__all__ = ["gossip_guarantee"]

# Theorem 2 of D-DP-PM is a diagnostic of the rows at hand and covers no other table (decision 11).
_UNPROVEN = (
    "its leakage is computed for the data at hand and one neighbour of it, not for all",
    "a row that alone spans a direction is revealed with certainty",
    "sums are sent without noise",
    "its estimate is in eigenveil.papers.leakage, depends on the rows, and must stay private",
)


def gossip_guarantee(parties: PeerParties, found: FitResult, *, counted: tuple[str, ...], since: int = 0) -> Guarantee:
    """The guarantee of a finished fit, from its ledgers. The result is that of the peers `counted`, from round `since` on."""
    request = parties.request
    if request.fit.published:
        return Guarantee.none(unproven("D-DP-PM Alg. 1", (), _UNPROVEN))
    if request.budget is None:
        return Guarantee.none(NO_PRIVACY["fit"])
    # Peers that restarted were charged more. The guarantee must cover the largest charge.
    dearest = max(parties.ledgers.values(), key=lambda ledger: ledger.spent_mu)
    return GuaranteeFacts(
        budget=request.budget,
        protects=Person(place="peer", grouped=request.fit.grouped, column=request.fit.person),
        neighbours=request.fit.neighbours,
        rows=request.fit.bounds.known(request.fit.center, norm=found.domain.radius),
        seen_by=_seen_by(parties, counted, since),
        released=COMPONENTS + request.fit.bounds.released,
        charges=dearest.charges,
        reproducible=request.seed is not None,
        people=found.people,
    ).guarantee()


def _seen_by(parties: PeerParties, counted: tuple[str, ...], since: int) -> PeersAlone:
    request, names = parties.request, parties.request.graph.names
    if request.noise == "independent":
        # Every peer adds a curator's noise, and variances add up.
        loud = math.sqrt(len(counted))
        return PeersAlone(
            names=names,
            counted=counted,
            colluders=None,
            excess=loud,
            apart=parties.apart,
            since=since,
            restarts=request.restarts,
        )
    pairing = parties.terms.among(set(names) - set(counted)).pairing
    assert pairing is not None
    return PeersAlone(
        names=names,
        counted=counted,
        colluders=request.colluders,
        excess=pairing.excess,
        apart=parties.apart,
        since=since,
        restarts=request.restarts,
        ratio=pairing.ratio,
        exact=pairing.exact,
    )
