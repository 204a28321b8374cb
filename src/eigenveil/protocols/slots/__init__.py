"""Streams over many sites: a slot is a round, the hub pulls, and nobody waits for anybody.

`SlotHub` asks for slots and folds what comes, `SlotMember` answers for each slot as often as it is asked. Nodes of a tree are
those of `protocols.star`. Under masks, a site is a `MaskedSlotMember`. `estimators.slots` makes these parties, and `network`
runs them. It may import the other protocols, except `limits`.
"""

from eigenveil.protocols.slots.hub import HubSnapshot, SlotHub, SlotRound
from eigenveil.protocols.slots.site import MaskedSlotMember, SlotMember

__all__ = ["HubSnapshot", "MaskedSlotMember", "SlotHub", "SlotMember", "SlotRound"]
