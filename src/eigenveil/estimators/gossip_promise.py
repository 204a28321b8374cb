"""What a fit between peers promises, to whom and against whom, in words."""

import math

from eigenveil.estimators.gossip_parties import PeerParties
from eigenveil.estimators.gossip_request import PeersRequest
from eigenveil.privacy import Guarantee, rows_are_cut
from eigenveil.tasks.fit.task import Found

__all__ = ["gossip_promise"]

_RELEASED = ("components", "mean", "spectrum", "explained variance and its ratio", "the transcript")
_PUBLISHED = (
    "none established: noise is as published in D-DP-PM Alg. 1, whose leakage is computed for the data at hand and one neighbour "
    "of it, not for all. A row that alone spans a direction is revealed with certainty, and sums are sent without noise. "
    "eigenveil.diagnostics has that estimate, which is itself private"
)


def gossip_promise(parties: PeerParties, found: Found, *, counted: tuple[str, ...], since: int = 0) -> Guarantee:
    """The guarantee of a finished fit, from what its ledgers say. It is of the peers `counted`, from turn `since` on."""
    request = parties.request
    if request.published:
        return Guarantee.none(_PUBLISHED)
    if request.budget is None:
        return Guarantee.none("exact PCA was asked for")
    unit = "each person, who holds one row at one peer"
    if request.grouped:
        unit = "each person, with all the rows that name them, which together count as one row at one peer"
    dearest = max(parties.ledgers.values(), key=lambda ledger: ledger.spent_mu)
    return Guarantee(
        epsilon=request.budget.epsilon,
        delta=request.budget.delta,
        unit=unit,
        neighbours=request.neighbours.words,
        against=_against(request),
        released=(*_RELEASED, "every number that leaves a peer"),
        assumptions=tuple(_assumptions(request, found, _who_counted(request, counted, since))),
        calibration=_calibration(parties, counted),
        caveats=tuple(_caveats(parties)),
        charges=dearest.charges,
    )


def _against(request: PeersRequest) -> str:
    everybody = (
        "anybody who sees the released numbers and all mail between peers and knows everything but one person's rows"
    )
    if request.noise == "independent":
        return f"{everybody}, all other peers together among them; only a person's own peer sees their rows"
    peers = "one peer that tells" if request.colluders == 1 else f"up to {request.colluders} peers that tell"
    return (
        f"{everybody}, together with {peers} them everything and may say what they like to others; with more of them on one side "
        "the noise is less than the promise needs. Only a person's own peer sees their rows"
    )


def _calibration(parties: PeerParties, counted: tuple[str, ...]) -> str:
    request = parties.request
    text = (
        "exact Gaussian composition (Balle and Wang 2018); the epsilon is the budget fixed before the fit, reserved for the "
        "largest number of rounds"
    )
    if request.restarts:
        turns = "one turn" if request.restarts == 1 else f"{request.restarts} turns"
        text += f" and for {turns} begun again"
    peers = len(counted)
    if request.noise == "independent":
        return f"{text}. Every peer adds all the noise: the sum has {math.sqrt(peers):.4g} times a curator's"
    pairing = parties.terms.among(set(request.graph.names) - set(counted)).pairing
    assert pairing is not None
    kind = "the largest" if pairing.exact else "a bound on the largest"
    return (
        f"{text}. Every peer adds noise of its own and noise {pairing.ratio:g} times as large that cancels between pairs. mu is "
        f"{kind} over every set of {request.colluders} colluding and one other peer (docs/pairwise-noise.md); the sum has "
        f"{pairing.excess:.4g} times a curator's noise"
    )


def _assumptions(request: PeersRequest, found: Found, who_counted: str) -> list[str]:
    lines = ["no person has rows at more than one peer"]
    if not request.grouped:
        lines.append("no person has more than one row")
    lines += [
        rows_are_cut(found.domain.radius),
        "that all entries are finite, and the number, names and types of the columns, are public",
        "which peers there are, who talks to whom, and which were counted in which round, is public",
        who_counted,
        "this fit alone: another fit on the same people is a further cost",
    ]
    if request.noise == "pairwise":
        few = "one peer tells" if request.colluders == 1 else f"{request.colluders} peers tell"
        lines += [
            f"no more than {few} others what they know, whatever else they say",
            "every peer knows the public identity of every other that it shares noise with from elsewhere",
            "X25519, Ed25519, SHA-256, HKDF and AES-256 hold: the promise is against who cannot break them",
        ]
    bounds = request.bounds
    if bounds.scale is not None or bounds.origin is not None or not isinstance(request.center, str):
        lines.append("origin, scale, column bounds and a given center are public")
    return lines


def _who_counted(request: PeersRequest, counted: tuple[str, ...], turn: int) -> str:
    """Who was counted in the end, and from which turn on others were left behind."""
    everybody = request.graph.names
    if len(counted) == len(everybody):
        return f"counted were all {len(everybody)} peers, in every round"
    gone = [name for name in everybody if name not in counted]
    shown = ", ".join(gone[:10]) + (f" and {len(gone) - 10} more" if len(gone) > 10 else "")
    return (
        f"counted from round {turn + 1} on were {len(counted)} of {len(everybody)} peers, without {shown}; what those had sent "
        "before is covered by the same promise"
    )


def _caveats(parties: PeerParties) -> list[str]:
    caveats: list[str] = []
    if not parties.apart:
        caveats.append("all peers ran in one process here; peers apart from each other need a network")
    if parties.request.seed is not None:
        caveats.insert(0, "reproducible, not private: the noise came from a known seed and can be subtracted")
    return caveats
