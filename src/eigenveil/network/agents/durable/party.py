"""`DurableParty`: decodes the messages of one party, and puts its answers on disk before they leave. No sockets, no clocks.

`Runner` hands in bytes with the name of their sender, whom TLS has authenticated. It sends what it gets back at once:
everything that had to be written first is on disk by then.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

from eigenveil.errors import PeerError, ProtocolError
from eigenveil.protocols import Message, Party
from eigenveil.protocols.wire import MessageLimits, decode

__all__ = ["DurableParty", "Event", "OnEvent", "Outgoing", "opened"]

# The receiver's name, and the bytes for it.
Outgoing = tuple[str, bytes]


@final
@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to see: `what` happened, to `who`, in `words`. They hold public facts only."""

    what: Literal["joined", "left", "began", "asked", "said", "refused", "round", "waiting", "resumed", "over"]
    who: str = ""
    words: str = ""


OnEvent = Callable[[Event], None]


class DurableParty(ABC):
    """One party and what must be kept on disk of it. Changes in place."""

    party: Party

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether there is a result, or there never will be."""

    @abstractmethod
    def begin(self) -> list[Outgoing]:
        """The first messages, once all parties are connected."""

    @abstractmethod
    def take(self, sender: str, data: bytes) -> list[Outgoing]:
        """The answers to a message. A refused message changes nothing; it is only reported."""

    @abstractmethod
    def wait_over(self) -> list[Outgoing]:
        """What the party sends when its deadline has passed."""

    @abstractmethod
    def rejoined(self, other: str) -> list[Outgoing]:
        """What the party sends to another that has reconnected."""


def opened(data: bytes, *, sender: str, me: str, limits: MessageLimits) -> Message:
    """The message in `data`; a `PeerError` that blames `sender` if it is malformed, too long or names other parties."""
    try:
        message = decode(data, limits=limits)
    except ProtocolError as error:
        # A `ProtocolError` names nobody, and a message that cannot be read is the fault of its sender.
        raise PeerError(sender, str(error)) from error
    # TLS says who is at the other end of a connection. The name inside the message must agree with it.
    if message.sender != sender:
        raise PeerError(sender, "sent a message in another party's name")
    if message.receiver != me:
        raise PeerError(sender, "sent a message that is for another party")
    return message
