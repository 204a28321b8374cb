"""`DurableParty`: opens the messages of one party, and puts its answers on disk before they leave. No sockets, no clocks.

Whoever carries the messages hands in bytes with the name of the one they came from, who has been recognised, and sends what is
handed out. What is handed out may leave: whatever must be written down first has been.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

from eigenveil.errors import PeerError, ProtocolError
from eigenveil.protocols import Message, Party
from eigenveil.protocols.wire import decode

__all__ = ["DurableParty", "Event", "OnEvent", "Outgoing", "opened"]

# To whom, and the bytes.
Outgoing = tuple[str, bytes]


@final
@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to see: `what` it is, `who` it is about, and `words` that hold public facts only."""

    what: Literal["joined", "left", "began", "asked", "said", "refused", "round", "waiting", "resumed", "over"]
    who: str = ""
    words: str = ""


OnEvent = Callable[[Event], None]


class DurableParty(ABC):
    """One party and what must be kept of it. Changes in place."""

    party: Party

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether there is a result, or there will be none."""

    @abstractmethod
    def begin(self) -> list[Outgoing]:
        """What leaves first, when all who are waited for are there."""

    @abstractmethod
    def take(self, sender: str, data: bytes) -> list[Outgoing]:
        """Open messages. What is refused changes nothing and leaves nothing but a line in `refused`."""

    @abstractmethod
    def wait_over(self) -> list[Outgoing]:
        """The party has waited as long as it says."""

    @abstractmethod
    def rejoined(self, other: str) -> list[Outgoing]:
        """Somebody can be reached again."""


def opened(data: bytes, *, sender: str, me: str, limit: int) -> Message:
    """The messages in `data`, or a `PeerError` that blames who sent it, for malformed message or speaks for somebody else."""
    try:
        message = decode(data, limit=limit)
    except ProtocolError as error:
        raise PeerError(sender, str(error)) from error
    if message.sender != sender:
        raise PeerError(sender, "sent messages in the name of somebody else")
    if message.receiver != me:
        raise PeerError(sender, "sent messages that are for somebody else")
    return message
