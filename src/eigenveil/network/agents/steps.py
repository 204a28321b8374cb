"""`DurableParty`: decodes the messages of one party, and puts its answers on disk before they leave. No sockets, no clocks.

`Runner` hands in bytes with the name of their sender, whom TLS has authenticated. It sends what it gets back at once:
everything that had to be written first is on disk by then.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from eigenveil.core.ledger import Charge
from eigenveil.errors import PeerError, ProtocolError
from eigenveil.ledger.durable import DurableLedger
from eigenveil.protocols.masked.terms import DECLINED
from eigenveil.protocols.messages import Decline, Done, Message, StepReply
from eigenveil.protocols.party import Party
from eigenveil.protocols.wire import MessageLimits, decode, encode

__all__ = ["Asked", "Cause", "DurableParty", "Event", "LedgerSteps", "OnEvent", "Outgoing", "opened", "outgoing_of"]

# The receiver's name, and the bytes for it.
Outgoing = tuple[str, bytes]


@final
@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to see: `what` happened, to `who`, in `text`. They hold public facts only."""

    what: Literal["joined", "left", "began", "asked", "said", "refused", "round", "waiting", "resumed", "over"]
    who: str = ""
    text: str = ""


OnEvent = Callable[[Event], None]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a party moves. "due" is a message that had to wait until its time, and "resume" a hub that continues."""

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

    def on_reconnect(self, other: str) -> list[Outgoing]:
        """What the party sends to another that has reconnected."""
        return self._move(Cause(kind="rejoined"), lambda: self.party.on_reconnect(other))

    def _receive(self, sender: str, data: bytes, *, kind: Literal["message", "due"]) -> list[Outgoing]:
        try:
            message = opened(data, sender=sender, me=self.party.name, limits=self._limits)
            cause = Cause(kind=kind, sender=sender, data=data, message=message)
            return self._move(cause, lambda: self.party.receive(message))
        except PeerError as error:
            # No reply: the sender must not learn why, and the party continues.
            self._refuse(error)
            return []

    def _move(self, cause: Cause, step: Callable[[], list[Message]]) -> list[Outgoing]:
        """What leaves after this step of the party, once it is on disk. A `PeerError` means that nothing has changed."""
        return outgoing_of(step())

    def _refuse(self, error: PeerError) -> None:
        self._on_event(Event("refused", error.peer, error.why))


def outgoing_of(messages: list[Message]) -> list[Outgoing]:
    return [(message.receiver, encode(message)) for message in messages]


def opened(data: bytes, *, sender: str, me: str, limits: MessageLimits) -> Message:
    """The message in `data`; a `PeerError` that blames `sender` if it is malformed, too long or names other parties."""
    try:
        message = decode(data, limits=limits)
    except ProtocolError as error:
        # A `ProtocolError` names no party, and a message that cannot be read is the fault of its sender.
        raise PeerError(sender, str(error)) from error
    # TLS says who is at the other end of a connection. The name inside the message must agree with it.
    if message.sender != sender:
        raise PeerError(sender, "sent a message in another party's name")
    if message.receiver != me:
        raise PeerError(sender, "sent a message that is for another party")
    return message


# How many answers stay in memory to be repeated byte for byte. The party itself can repeat older ones.
_AT_HAND: Final = 4
# Lines in the log for one run of a party. A flood of bad messages must not fill the disk.
_LOGGED: Final = 100
# How often a study may be resumed on top of what it asks. Each time a question is asked and answered once more.
_RESUMED: Final = 50


@final
class LedgerSteps:
    """The steps of a `study` in the ledger of one party, of which there are `number`. Changes in place.

    Refused messages are on the screen and in the ledger's log, where the party's own people find them. Nobody else learns of
    them: a reason, or how many there are, could tell about the rows, so they are not among the entries, which may be exported.
    """

    def __init__(self, ledger: DurableLedger, study: str, *, number: int = 0, questions: int = 0, on_event: OnEvent) -> None:
        self._durable_ledger, self._study, self._on_event = ledger, study, on_event
        self.number = number
        # The party has said something that the ledger does not have. Any error before the commit must end this process.
        self.is_ahead = False
        # What an honest hub asks, four times over: room to begin again, and still a bound on what fills the disk.
        self._max_messages = _RESUMED + 4 * questions
        # What was said to the same bytes before, as after a lost connection, by their digest.
        self.answers: dict[bytes, list[Outgoing]] = {}
        self._log_lines = 0

    def require_level(self, what: str) -> None:
        """Refuse to continue if `what` the party said last is not in the ledger."""
        if self.is_ahead:
            raise ProtocolError(f"{what} of this site could not be written to its ledger: start the site again")

    def require_few(self, message: Message) -> None:
        """Refuse a flood of questions. Repeating one in other bytes costs no budget, but it fills the disk."""
        # The result is exempt: a study that reached its end must be able to end.
        if self.number >= self._max_messages and not isinstance(message.body, Done):
            raise PeerError(message.sender, f"has asked {self._max_messages} times, more often than this study needs")

    def commit(self, came: bytes, replies: list[bytes], charges: tuple[Charge, ...]) -> None:
        """Write the next step. It is on disk when this returns."""
        # The step's number makes a second process on the same ledger fail here instead of charging twice.
        self._durable_ledger.commit(self._study, self.number, came=came, replies=replies, charges=charges)
        self.number, self.is_ahead = self.number + 1, False

    def remember(self, data: bytes, answers: Collection[Message], outgoing: list[Outgoing]) -> None:
        """Keep the answers to a message, to repeat them."""
        # A site that had no part may have one after it was repaired, so its refusal is not repeated from memory.
        for body in (answer.body for answer in answers):
            if isinstance(body, Decline) or (isinstance(body, StepReply) and body.data == DECLINED):
                return
        self.answers[hashlib.sha256(data).digest()] = outgoing
        # Answers can have megabytes, so only the latest few stay in memory.
        while len(self.answers) > _AT_HAND:
            # The first key is the oldest, because dicts keep the order of insertion.
            del self.answers[next(iter(self.answers))]

    def refuse(self, error: PeerError) -> None:
        """Say what was refused and why, here and nowhere else."""
        # On the screen every time, in the ledger up to the limit: a screen does not fill a disk.
        self._on_event(Event("refused", error.peer, error.why))
        self.log(f"refused a message from {error.peer}: {error.why}")

    def log(self, line: str) -> None:
        """Write it to the ledger's log, unless there are too many such lines."""
        self._log_lines += 1
        if self._log_lines <= _LOGGED:
            self._durable_ledger.log(self._study, line)


class Asked(DurableParty):
    """A site, which waits for questions of the party `above`. It has no deadline, and is asked for what the other lacks.

    `unwritten` is what cannot be said any more when a commit has failed. Changes in place.
    """

    party: Any

    def __init__(self, in_ledger: LedgerSteps, *, above: str, unwritten: str, limits: MessageLimits, on_event: OnEvent) -> None:
        super().__init__(limits=limits, on_event=on_event)
        self._in_ledger, self._above, self._unwritten = in_ledger, above, unwritten

    @property
    def over(self) -> bool:
        return self.party.result is not None

    def _receive(self, sender: str, data: bytes, *, kind: Literal["message", "due"]) -> list[Outgoing]:
        self._in_ledger.require_level(self._unwritten)
        # The same bytes again, after a lost connection say. Fresh noise on the same question would cost a second time.
        answers = self._in_ledger.answers
        if sender == self._above and answers and (repeated := answers.get(hashlib.sha256(data).digest())) is not None:
            return repeated
        return super()._receive(sender, data, kind=kind)

    def _move(self, cause: Cause, step: Callable[[], list[Message]]) -> list[Outgoing]:
        return [] if cause.message is None else self._answer(cause, cause.message, step)

    @abstractmethod
    def _answer(self, cause: Cause, message: Message, step: Callable[[], list[Message]]) -> list[Outgoing]:
        """What leaves in answer to a message, once it is in the ledger."""

    def _refuse(self, error: PeerError) -> None:
        self._in_ledger.refuse(error)
