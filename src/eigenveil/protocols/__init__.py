"""Who carries a task: one holder of all rows, sites around a hub, sites in a tree. No sockets, no clocks, no threads."""

from eigenveil.protocols.messages import (
    Again,
    Ask,
    Brief,
    PeerKey,
    Decline,
    Done,
    Message,
    Give,
    Here,
    Leave,
    Masked,
    Body,
    Pass,
    Return,
)
from eigenveil.protocols.party import Party, Wait
from eigenveil.protocols.pooled import run_pooled
from eigenveil.protocols.star.hub import Hub, Terms, HubRound
from eigenveil.protocols.star.layout import Layout
from eigenveil.protocols.star.node import Node
from eigenveil.protocols.star.participation import Sampling
from eigenveil.protocols.star.site import Member

__all__ = [
    "Again",
    "Ask",
    "Brief",
    "PeerKey",
    "Decline",
    "Done",
    "Message",
    "Give",
    "Here",
    "Hub",
    "Layout",
    "Leave",
    "Masked",
    "Member",
    "Body",
    "Node",
    "Party",
    "Pass",
    "Return",
    "Sampling",
    "Terms",
    "HubRound",
    "Wait",
    "run_pooled",
]
