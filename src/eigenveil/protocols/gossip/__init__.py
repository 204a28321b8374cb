"""Peers without a hub: they find sums over all peers by talking to neighbours, with noise that may cancel between pairs.

`estimators.gossip` and `network` make peers, and `runtimes` carries their messages. It may import `protocols.party` and below.
"""

from eigenveil.protocols.gossip.averaging import Outgoing, Paired, PairKeys, Plain
from eigenveil.protocols.gossip.peer import Peer, PeerRound
from eigenveil.protocols.gossip.terms import (
    Consensus,
    GossipTerms,
    Mixing,
    PeerNoise,
    graph_of_weights,
    metropolis,
    require_weights,
    steps_for,
)

__all__ = [
    "Consensus",
    "GossipTerms",
    "Mixing",
    "Outgoing",
    "PairKeys",
    "Paired",
    "Peer",
    "PeerNoise",
    "PeerRound",
    "Plain",
    "graph_of_weights",
    "metropolis",
    "require_weights",
    "steps_for",
]
