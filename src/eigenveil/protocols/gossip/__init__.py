"""Peers without a hub: they find sums over all peers by talking to neighbours, with noise that may cancel between pairs.

`estimators.gossip` and `network` make peers, and `runtimes` carries their messages. It may import `protocols.party` and below.
"""
