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
from eigenveil.protocols.wire import MessageLimits, decode, encode

__all__ = ["Cause", "DurableParty", "Event", "OnEvent", "Outgoing", "opened", "outgoing_of"]

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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a party moves. "due" is a message that had to wait until its time, and "resume" a hub that goes on."""

    kind: Literal["begin", "message", "due", "timeout", "rejoined", "resume", "tick"]
    sender: str = ""  # Who sent the message.
    data: bytes = b""  # The message as it came.
    message: Message | None = None  # None without a message.


class DurableParty(ABC):
    """One party and what must be kept on disk of it. Changes in place.

    Each role says in `_move` what it writes before its messages leave. The default is for a party that keeps nothing.
    """

    party: Party

    def __init__(self, *, limits: MessageLimits, on_event: OnEvent) -> None:
        self._limits, self._on_event = limits, on_event

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether there is a result, or there never will be."""

    def begin(self) -> list[Outgoing]:
        """The first messages, once all parties are connected."""
        return self._move(Cause(kind="begin"), self.party.start)

    def take(self, sender: str, data: bytes) -> list[Outgoing]:
        """The answers to a message. A refused message changes nothing; it is only reported."""
        return self._receive(sender, data, kind="message")

    def wait_over(self) -> list[Outgoing]:
        """What the party sends when its deadline has passed."""
        return self._move(Cause(kind="timeout"), self.party.timeout)

    def rejoined(self, other: str) -> list[Outgoing]:
        """What the party sends to another that has reconnected."""
        return self._move(Cause(kind="rejoined"), lambda: self.party.rejoined(other))

    def _receive(self, sender: str, data: bytes, *, kind: Literal["message", "due"]) -> list[Outgoing]:
        try:
            message = opened(data, sender=sender, me=self.party.name, limits=self._limits)
            cause = Cause(kind=kind, sender=sender, data=data, message=message)
            return self._move(cause, lambda: self.party.receive(message))
        except PeerError as error:
            # No reply: the sender must not learn why, and the party goes on.
            self._refuse(error)
            return []

    def _move(self, cause: Cause, step: Callable[[], list[Message]]) -> list[Outgoing]:
        """What leaves after this step of the party, once it is on disk. A `PeerError` means that nothing has changed."""
        return outgoing_of(step())

    def _refuse(self, error: PeerError) -> None:
        """Report a message that was refused."""
        self._on_event(Event("refused", error.peer, error.why))


def outgoing_of(messages: list[Message]) -> list[Outgoing]:
    """The messages in bytes."""
    return [(message.receiver, encode(message)) for message in messages]


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
