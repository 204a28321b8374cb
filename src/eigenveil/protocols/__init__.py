"""Who carries a task: one holder of all rows, sites around a hub or in a tree, sites with masked sums, or peers without a hub.

`runtimes` delivers their messages, and `estimators` and `network` build them. It may import `tasks` and below, and has no
sockets, no clocks and no threads: a party takes messages and returns messages.
"""

from eigenveil.protocols.messages import (
    Again,
    Ask,
    Body,
    Brief,
    Decline,
    Done,
    Give,
    Here,
    Leave,
    Masked,
    Message,
    Pass,
    PeerKey,
    Return,
)
from eigenveil.protocols.party import Party, Wait, run_pooled
from eigenveil.protocols.star.hub import Hub, HubRound, Node
from eigenveil.protocols.star.rounds import Layout, Sampling, Terms
from eigenveil.protocols.star.site import Member

__all__ = [
    "Again",
    "Ask",
    "Body",
    "Brief",
    "Decline",
    "Done",
    "Give",
    "Here",
    "Hub",
    "HubRound",
    "Layout",
    "Leave",
    "Masked",
    "Member",
    "Message",
    "Node",
    "Party",
    "Pass",
    "PeerKey",
    "Return",
    "Sampling",
    "Terms",
    "Wait",
    "run_pooled",
]
