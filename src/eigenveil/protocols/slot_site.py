"""`SlotMember`: a site with a stream. It closes slots in their order, and answers for a slot as often as it is asked.

    | state of a slot | event                             | next state
    | open            | close                             | closed: its part is made, charged once, and the sums are dropped
    |                 | Ask                               | open: Decline. By the clock, over a network, no answer until it is due
    | closed          | Ask, in any later round           | closed: the same numbers
    |                 | Ask for a slot after its window   | forgotten
    | forgotten       | Ask                               | forgotten: Decline

A message of an earlier round, two slots in one round, a slot that the study does not have, or anything after the result is a
`PeerError` and changes nothing.
"""

from collections.abc import Callable, MutableMapping
from typing import Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import BudgetExceeded, PeerError, require
from eigenveil.linalg import Array
from eigenveil.privacy.lattice import Share
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.messages import Ask, Contribution, Decline, Done, Masked, Message
from eigenveil.protocols.party import Party, require_asked
from eigenveil.tasks.base import Question
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.slots import ClosedSlot, SlotTask

__all__ = ["MaskedSlotMember", "SlotMember", "SlotParty"]

_Part = TypeVar("_Part")


class SlotParty(Party, Generic[_Part]):
    """What sites of streams have in common: slots that are closed in their order, and a part of each, made once. Abstract."""

    def __init__(self, name: str, slots: int, stored: MutableMapping[int, _Part] | None) -> None:
        super().__init__(name)
        self._slots = slots
        self._stored_parts: MutableMapping[int, _Part] = {} if stored is None else stored
        # The last slot that was closed, and the last that was asked for; -1 before the first.
        self.closed, self.newest = -1, -1
        self.error: Exception | None = None
        # Set when no more slots will be closed here.
        self.ended = False

    def restore(self, slot: int) -> None:
        """Take back that a slot was closed before the site was stopped. Its part, if it had one to give, is in `kept`."""
        self.closed = max(self.closed, slot)

    def skip(self, slot: int) -> None:
        """Say that no slot before this one will be closed any more."""
        self.closed = max(self.closed, slot - 1)

    def early(self, message: Message) -> bool:
        """Whether a message asks for a slot that this site may still close. Nothing in it is trusted but that."""
        body = message.body
        return isinstance(body, Ask) and not self.ended and self.closed < body.question.step < self._slots

    def _kept_once(self, slot: int, made: Callable[[], _Part]) -> _Part | None:
        require(slot > self.closed, f"slot {slot + 1} is closed already: slots are closed in their order")
        require(slot < self._slots, f"the study has {self._slots} slots, got slot {slot + 1}")
        # First, so that an interrupt in the middle of a release cannot lead to a second one of this slot.
        self.closed = slot
        try:
            part = made()
        except (ValueError, BudgetExceeded) as error:
            self.error = error
            return None
        self.error = None
        self._stored_parts[slot] = part
        return part


@final
class SlotMember(SlotParty[tuple[Array, ...]]):
    """A site whose parts leave through `mechanism`, made for each slot, towards `hub`. Changes in place.

    In a tree the hub is the node above. A slot can be asked for until one more than `window` later is. Parts are in `kept`, by
    slot. An error with a slot stays here, in `error`: the hub learns only that no part will come.
    """

    def __init__(
        self,
        name: str,
        *,
        hub: str,
        task: SlotTask[Any],
        mechanism: Callable[[int], Mechanism],
        window: int,
        stored: MutableMapping[int, tuple[Array, ...]] | None = None,
    ) -> None:
        super().__init__(name, task.slots, stored)
        self._hub, self._task, self._mechanism, self._window = hub, task, mechanism, window
        # The slot of the last question; -1 before the first.
        self._round, self.last_slot = -1, -1
        self.result: tuple[Array, ...] | None = None

    def close(self, slot: int, closed: ClosedSlot) -> tuple[Array, ...] | None:
        """Make the part of a slot and charge it. None if it cannot be made, and `error` says why.

        Slots are closed in order. Some may be left out: the site was away, and has nothing to say of them.
        """
        return self._kept_once(slot, lambda: self._task.sent(Question(slot), closed, self._mechanism(slot)))

    def has_symmetric_parts(self, slot: int) -> bool:
        """Whether the part of a slot is a symmetric matrix, so that half of it is enough."""
        return self._task.has_symmetric_parts(Question(slot))

    def receive(self, message: Message) -> list[Message]:
        if message.sender != self._hub:
            raise PeerError(message.sender, "is not the hub of this site")
        match message.body:
            case Ask(round=round_, question=question):
                return [Message(self.name, self._hub, self._on_ask(round_, question))]
            case Done(round=round_, arrays=arrays) if round_ >= self._round and self.result is None:
                self.result = arrays
                return []
            case body:
                raise PeerError(message.sender, f"sent {type(body).__name__} to a site in round {self._round}")

    def recall(self, message: Message, replies: list[Message]) -> None:
        self.receive(message)

    def _on_ask(self, round_: int, question: Question) -> Contribution | Decline:
        if self.result is not None:
            raise PeerError(self._hub, "asked again after the result")
        # The hub has closed an older round, so an answer to it would count nowhere.
        if round_ < self._round:
            raise PeerError(self._hub, f"asked for round {round_} in round {self._round}")
        require_asked(self._task, question, by=self._hub)
        slot = question.step
        # A round is about one slot. An honest hub may repeat its question but never changes it.
        if round_ == self._round and slot != self.last_slot:
            raise PeerError(self._hub, f"asked for two slots in round {round_}")
        self._round, self.last_slot, self.newest = round_, slot, max(self.newest, slot)
        # The window is public: no hub may ask for what lies before it, so it need not be kept.
        for old in [number for number in self._stored_parts if number < self.newest - self._window]:
            del self._stored_parts[old]
        # The hub is not told why: the slot may be open, or left out, or its charge was refused.
        if slot not in self._stored_parts:
            return Decline(round_)
        return Contribution(round=round_, arrays=self._stored_parts[slot], half=self._task.has_symmetric_parts(question))


Words = NDArray[np.uint64]


@final
class MaskedSlotMember(SlotParty[Words]):
    """A site whose shares are made by `share` for each slot, and masked by the `member` towards `hub`. Changes in place.

    `member` is called with what returns the words of a part. Shares are in `kept`, by slot, until they are given. An error with
    a slot stays here, in `error`: the hub learns only that no part will come.
    """

    def __init__(
        self,
        *,
        hub: str,
        task: SlotSums,
        share: Callable[[int], Share],
        member: Callable[[Callable[[Question], Words]], MaskedMember],
        stored: MutableMapping[int, Words] | None = None,
    ) -> None:
        self._member = member(self._share_of)
        super().__init__(self._member.name, task.slots, stored)
        self._hub, self._task, self._share = hub, task, share
        # The first slot that may still be given. All before it were given, or a later one was asked for.
        self.first = 0

    @property
    def sessions(self) -> int:
        """How many exchanges of keys this site has begun."""
        return self._member.sessions

    @property
    def result(self) -> tuple[Array, ...] | None:
        """What the hub found in the end; None before that."""
        return self._member.result

    @result.setter
    def result(self, arrays: tuple[Array, ...]) -> None:
        self._member.result = arrays

    def close(self, slot: int, closed: ClosedSlot) -> Words | None:
        """Make the share of a slot and charge it. None if it cannot be made, and `error` says why. As in `SlotMember`."""
        task, question = self._task, Question(slot)
        return self._kept_once(
            slot,
            lambda: self._share(slot).of(
                task.private(question, closed), label=task.label(question), share=task.share(question), slot=task.slot(question)
            ),
        )

    def forget(self, first: int) -> None:
        """Never give a slot before this one, and drop their shares: no other round may mask them."""
        self.first = max(self.first, first)
        for old in [number for number in self._stored_parts if number < self.first]:
            del self._stored_parts[old]

    def receive(self, message: Message) -> list[Message]:
        if isinstance(message.body, Ask):
            if message.sender != self._hub:
                raise PeerError(message.sender, "is not the hub of this site")
            require_asked(self._task, message.body.question, by=self._hub)
        answers = self._member.receive(message)
        self._note(message, answers)
        return answers

    def recall(self, message: Message, replies: list[Message], *, sessions: int = 0) -> None:
        """Take a step again, with the same secrets, before which so many exchanges of keys had begun. A part is restored."""
        self._member.sessions = sessions
        self._member.recall(message, replies)
        self._note(message, replies)

    def _note(self, message: Message, answers: list[Message]) -> None:
        """Which slot was asked for. A share that was given, and those before it, are dropped."""
        if isinstance(message.body, Ask):
            slot = message.body.question.step
            self.newest = max(self.newest, slot)
            self.forget(slot + any(isinstance(answer.body, Masked) for answer in answers))

    def _share_of(self, question: Question) -> Words:
        ready = question.step >= self.first and question.step in self._stored_parts
        require(ready, f"slot {question.step + 1} is open, too old, or was given before")
        # A copy, because masks are added in place.
        return np.array(self._stored_parts[question.step])
