"""Masked sums, of which the hub sees no part: keys, masks, shares of secrets and signed lists, in the rounds of a star.

`estimators.federated`, `network` and the audit call it. It may import `protocols.star` and below.
"""
