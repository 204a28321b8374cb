"""Masked sums, of which the hub sees no part: keys, masks, shares of secrets and signed lists, in the rounds of a star.

`estimators.federated`, `network` and the audit call it. It may import `protocols.star` and below.
"""

from eigenveil.protocols.keys import Identity
from eigenveil.protocols.masked.graph import MaskGraph, mask_graph
from eigenveil.protocols.masked.hub import MaskedExchange, Masking
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.terms import MaskedTerms, require_survivors

__all__ = [
    "Identity",
    "MaskGraph",
    "MaskedExchange",
    "MaskedMember",
    "MaskedTerms",
    "Masking",
    "mask_graph",
    "require_survivors",
]
