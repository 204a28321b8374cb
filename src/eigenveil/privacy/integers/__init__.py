"""Noise on the parts of a sum that others add up: integers modulo 2^64 under masks, and noise that cancels between pairs.

`share.py` adds noise under masks and `paired.py` between peers. The protocols `masked` and `gossip` call it. It may import the
rest of `privacy`, except `facts`.
"""
