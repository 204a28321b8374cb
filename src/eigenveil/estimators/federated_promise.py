"""What a federated fit promises, to whom and against whom, in words."""

import math

from eigenveil.estimators.federated_request import SitesRequest
from eigenveil.estimators.parties import NOTHING_ASKED, Parties
from eigenveil.privacy import Charge, Guarantee, rows_are_cut
from eigenveil.privacy.guarantee import plain
from eigenveil.tasks.fit.task import Found

__all__ = ["CALIBRATION", "against", "assumed_of_sites", "caveats_of", "charged", "federated_promise", "integers"]

CALIBRATION = (
    "exact Gaussian composition (Balle and Wang 2018); the epsilon is the budget fixed before the fit, reserved for the largest "
    "number of rounds"
)
_RELEASED = ("components", "mean", "spectrum", "explained variance and its ratio", "the transcript")


def federated_promise(parties: Parties, found: Found) -> Guarantee:
    """The guarantee of a finished fit, from what its ledgers say."""
    request = parties.request
    if not request.private:
        return Guarantee.none(NOTHING_ASKED)
    if request.published:
        return Guarantee.none(_as_published(request))
    budget = request.at_hub if request.at_hub is not None else request.at_sites
    assert budget is not None
    outside = budget
    if request.at_sites is not None and request.at_sites.mu < budget.mu:
        # What the sites add is more than was asked of the hub.
        outside = request.at_sites
    return Guarantee(
        epsilon=outside.epsilon,
        delta=outside.delta,
        unit=_unit(request),
        neighbours=request.neighbours.words,
        against=against(parties),
        released=_released(request),
        assumptions=tuple(_assumptions(parties, found)),
        calibration=CALIBRATION + integers(parties),
        caveats=tuple(caveats_of(parties)),
        charges=charged(parties),
    )


def _released(request: SitesRequest) -> tuple[str, ...]:
    if request.masks is not None:
        return (*_RELEASED, "the sum over the survivors of each round")
    return _RELEASED if request.at_sites is None else (*_RELEASED, "every number that leaves a site")


def integers(parties: Parties) -> str:
    """How the noise is made up of shares under masks, and what that costs, where it is."""
    if parties.masked is None:
        return ""
    lattice = parties.masked.lattice
    assert lattice.gaussian is not None
    shares = (
        ". Sites add shares of whole-number noise, which together are Gaussian noise, rounded (docs/integer-noise.md)"
    )
    if lattice.failure == 0:
        return shares
    return shares + (
        f". Of delta, {lattice.gaussian.delta:.6g} is for the noise and {lattice.failure:.2g} for masks with only some of the "
        "sites, and signatures of which only some are looked at (docs/mask-graph.md)"
    )


def _unit(request: SitesRequest) -> str:
    if request.grouped:
        return "each person, with all the rows that name them, which together count as one row at each site"
    if request.person_sites > 1:
        return f"each person, who holds at most one row at each of at most {request.person_sites} sites"
    return "each person, who holds one row at one site"


def against(parties: Parties, *, secret: str = "one person's rows") -> str:
    """From whom the `secret` is protected, and who must be trusted with what."""
    request = parties.request
    everybody = f"anybody who sees the released numbers and knows everything but {secret}"
    if request.masks is not None:
        assert parties.masked is not None
        colluders, honest = request.masks[1], parties.masked.lattice.honest
        over = "one site that is not on its side" if honest == 1 else f"{honest} sites that are not on its side"
        some = "one other site that tells" if colluders == 1 else f"up to {colluders} other sites that tell"
        return (
            f"{everybody}; the hub, even one that does not keep to the protocol, together with {some} it everything; and anybody "
            f"who reads or changes mail on its way. The hub sees nothing but noisy sums, each over at least {over}; only a "
            "person's own site sees their rows"
        )
    inner = " and the inner nodes of the tree see" if request.fanout is not None else " sees"
    if request.at_sites is None:
        return f"{everybody}; the hub{inner} the raw parts of each site and must be trusted, as must each site with its own rows"
    if request.at_hub is None:
        return f"{everybody}, the hub and the other sites among them; only a person's own site sees their rows"
    first = request.at_sites
    who = "the hub and the inner nodes of the tree, which see" if request.fanout is not None else "the hub, which sees"
    return (
        f"{everybody}, the other sites among them, but not what sites send to the hub. Against {who} what each site sends "
        f"with the site's own noise, the promise is ({plain(first.epsilon)}, {plain(first.delta)})"
    )


def _assumptions(parties: Parties, found: Found) -> list[str]:
    request = parties.request
    people = "no person has rows at more than one site"
    if request.person_sites > 1:
        people = f"no person has rows at more than {request.person_sites} sites"
    lines = [people]
    if not request.grouped:
        lines.append("no person has more than one row at a site")
    if len(parties.matrices) < len(parties.names):
        lines.append(rows_are_cut(found.domain.radius))
    if parties.matrices:
        lines.append(
            "at sites that gave a matrix in place of rows, one person is in it as a positive semi-definite matrix of trace at "
            f"most {found.domain.radius**2:g}, and once in its number of people; the site vouches for "
            "that, and it cannot be checked"
        )
    lines += [
        "that all entries are finite, and the number, names and types of the columns, are public",
        *assumed_of_sites(parties),
    ]
    if request.participation is not None:
        lines.append("drawing the sites of a round is public and is not counted on for privacy")
    bounds = request.bounds
    if bounds.scale is not None or bounds.origin is not None or not isinstance(request.center, str):
        lines.append("origin, scale, column bounds and a given center are public")
    return lines


def assumed_of_sites(parties: Parties) -> list[str]:
    """What is assumed of sites, channels and keys, whatever is fitted."""
    request = parties.request
    lines = [
        "which sites there are, and which answered in which round, is public",
        "this fit alone: another fit on the same people is a further cost",
    ]
    if request.masks is not None:
        survivors, colluders = request.masks
        lines += [
            f"at most {colluders} of the sites tell the hub what they know; that at least {survivors} are in a sum, sites check",
            "every site knows the public identity of every other from a source that is not the hub",
            "X25519, Ed25519, SHA-256, HKDF, AES-256 and ChaCha20-Poly1305 hold: the promise is against who cannot break them",
        ]
    elif request.at_sites is None:
        lines.append("nobody but the hub reads what sites send: channels are secure")
    elif request.at_hub is not None:
        lines.append("nobody but the hub reads what sites send, or the promise against the hub is all there is")
    return lines


def caveats_of(parties: Parties) -> list[str]:
    """What the promise does not cover."""
    request = parties.request
    caveats = list[str]()
    if request.seed is not None:
        caveats.append("reproducible, not private: the noise came from a known seed and can be subtracted")
    if request.masks is not None and not parties.apart:
        caveats.append(
            "all parties ran in one process here, which holds every key; sites apart from each other need a network"
        )
    return caveats


def charged(parties: Parties) -> tuple[Charge, ...]:
    """The hub's lines where it adds noise, or those of the site that spent most, once for each site a person may be at."""
    request, ledgers = parties.request, parties.ledgers
    if parties.apart and (not ledgers or (request.at_hub is not None and parties.layout.hub not in ledgers)):
        # Each party keeps its own, and nobody sees those of the others.
        least = min(budget.mu for budget in (request.at_sites, request.at_hub) if budget is not None)
        return (Charge("reserved for the whole study", least),)
    if request.at_hub is not None and (
        request.at_sites is None or ledgers[parties.layout.hub].spent_mu <= request.at_sites.mu
    ):
        return ledgers[parties.layout.hub].charges
    most = max(
        (ledger for name, ledger in ledgers.items() if name != parties.layout.hub), key=lambda ledger: ledger.spent_mu
    )
    # A share is charged for the sum, with a person at all of their sites.
    factor = math.sqrt(request.person_sites) if request.masks is None else 1.0
    return tuple(Charge(charge.label, charge.mu * factor) for charge in most.charges)


def _as_published(request: SitesRequest) -> str:
    places = [
        f"{where} at its ({plain(budget.epsilon)}, {plain(budget.delta)})"
        for where, budget in (("the sites", request.at_sites), ("the hub", request.at_hub))
        if budget is not None
    ]
    several = max(request.plan.steps) > 1
    local = "its local steps read rows that no noise covers, " if several else ""
    return (
        f"noise as published in FedPower Alg. 2, from {' and '.join(places)}; that promise is not established: {local}it is "
        "for one entry of a Gram matrix and not for a person, leaves out a factor for the columns of the basis, and uses the "
        "sizes of sites as public"
    )
