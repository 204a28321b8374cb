"""What leaves a site or a peer for a sum that others add up: integers modulo 2^64 under masks, and noise that
cancels between pairs.

The protocols `masked` and `gossip` call it. It may import the rest of `privacy`, but for `facts`.
"""
