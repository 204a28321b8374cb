"""`DurableParty`: decodes the messages of one party, and puts its answers on disk before they leave. No sockets, no clocks.

`Runner` hands in bytes with the name of their sender, whom TLS has authenticated. It sends what it gets back at once:
everything that had to be written first is on disk by then.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, final

from eigenveil.errors import PeerError, ProtocolError
from eigenveil.protocols import Message, Party
from eigenveil.protocols.wire import MessageLimits, decode

__all__ = ["DurableParty", "Event", "OnEvent", "Outgoing", "Repeats", "opened"]

# How many answers stay in memory to be repeated byte for byte. The party itself can repeat older ones.
_AT_HAND: Final = 4
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


@final
class Repeats:
    """The latest answers, by the message that each was for. Changes in place."""

    def __init__(self) -> None:
        self._said: dict[bytes, list[Outgoing]] = {}

    def to(self, data: bytes) -> list[Outgoing] | None:
        """What was said to a message; None if that is not known here."""
        return self._said.get(hashlib.sha256(data).digest()) if self._said else None

    def add(self, data: bytes, outgoing: list[Outgoing]) -> None:
        """Remember an answer."""
        self._said[hashlib.sha256(data).digest()] = outgoing
        # Answers can have megabytes, so only the latest few stay in memory.
        while len(self._said) > _AT_HAND:
            # The first key is the oldest, because dicts keep the order of insertion.
            del self._said[next(iter(self._said))]


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
