"""`MaskedSlotMember`: a site with a stream whose parts leave under masks. It makes a part once, and masks it in one round.

    | state of a slot | event                               | next state
    | open            | close                               | closed: its share is made, charged once, and the sums are dropped
    |                 | Ask                                 | open: a signed decline; over a network, no answer yet
    | closed          | Ask, in a round with sealed keys    | given: its share under the masks of that round
    |                 | Ask for a later slot                | forgotten
    | given           | Ask again in that round             | given: the same bytes
    |                 | Ask in another round                | given: a signed decline
    | forgotten       | Ask                                 | forgotten: a signed decline

The exchange of keys, the list of survivors and the unmasking are those of `MaskedMember`. What it refuses is a `PeerError` here
too, and changes nothing.

**A slot is unmasked for one set of survivors, whatever a hub does, and however often anybody is stopped.** Proof. Let t be
the number of survivors, of m sites of which c may collude. To read a sum over a slot, a hub needs the seeds of the sites in it,
and honest holders reveal them only for a list that t sites have signed, in one round.
(1) Within a round there is one such list. Two of them would have at least 2t - m > c signers in common, so an honest one, and an
honest site signs one list in a round (`MaskedMember._survivors`).
(2) An honest site masks a slot in one round only. When it gives a share it drops it, so another round has nothing to mask; and
slots are asked for in their order, so an earlier one is gone as well. Suppose that two lists, of rounds r and r', are both signed
by t sites for the same slot. An honest site signs a list only where it has given its part. Again some honest site has signed
both, and has given its part in both rounds: a contradiction.
(3) A stop changes none of this. A site writes a message and its answer to its ledger before the answer leaves, and reads back
both before it answers anything else: which list it has signed in its last round. Old messages are dropped from the ledger, so
each entry also says which slot is the `first` that may still be given. That number only grows, and the last entry is never
dropped. A part is stored with its noise when its slot closes, and is never made again. A hub reads its log: the same answers
lead to the same list. If it has lost its log, sites refuse another list in the same round by (1), and another round by (2):
the slot is skipped.
"""

from collections.abc import Callable, MutableMapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import PeerError, require
from eigenveil.linalg import Array
from eigenveil.privacy import Share
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.messages import Ask, Masked, Message
from eigenveil.protocols.party import require_asked
from eigenveil.protocols.slots.site import SlotParty
from eigenveil.tasks import ClosedSlot, Question, SlotSums

__all__ = ["MaskedSlotMember"]

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
        kept: MutableMapping[int, Words] | None = None,
    ) -> None:
        self._member = member(self._words)
        super().__init__(self._member.name, task.slots, kept)
        self._hub, self._task, self._share = hub, task, share
        self._first = 0

    @property
    def first(self) -> int:
        """The first slot that may still be given. All before it were given, or a later one was asked for."""
        return self._first

    @property
    def sessions(self) -> int:
        """How many exchanges of keys this site has begun."""
        return self._member.sessions

    @property
    def result(self) -> tuple[Array, ...] | None:
        """What the hub found in the end; None before that."""
        return self._member.result

    @result.setter
    def result(self, found: tuple[Array, ...]) -> None:
        self._member.result = found

    def close(self, slot: int, closed: ClosedSlot) -> Words | None:
        """Make the share of a slot and charge it. None if it cannot be made, and `error` says why. As in `SlotMember`."""
        task, question = self._task, Question(slot)
        return self._kept_once(
            slot,
            lambda: self._share(slot).of(
                task.private(question, closed),
                label=task.label(question),
                share=task.share(question),
                slot=task.slot(question),
            ),
        )

    def forget(self, first: int) -> None:
        """Never give a slot before this one, and drop their shares: no other round may mask them."""
        self._first = max(self._first, first)
        for old in [number for number in self._kept if number < self._first]:
            del self._kept[old]

    def receive(self, message: Message) -> list[Message]:
        """The answer to a question, or to a step between questions."""
        if isinstance(message.body, Ask):
            if message.sender != self._hub:
                raise PeerError(message.sender, "is not the hub of this site")
            require_asked(self._task, message.body.question, by=self._hub)
        answers = self._member.receive(message)
        self._note(message, answers)
        return answers

    def recall(self, message: Message, said: list[Message], *, sessions: int = 0) -> None:
        """Take a step again, with the same secrets, before which so many exchanges of keys had begun. A part is restored."""
        self._member.count_sessions(sessions)
        self._member.recall(message, said)
        self._note(message, said)

    def _note(self, message: Message, answers: list[Message]) -> None:
        """Which slot was asked for. A share that was given, and those before it, are dropped."""
        if isinstance(message.body, Ask):
            slot = message.body.question.step
            self._newest = max(self._newest, slot)
            self.forget(slot + any(isinstance(answer.body, Masked) for answer in answers))

    def _words(self, question: Question) -> Words:
        ready = question.step >= self._first and question.step in self._kept
        require(ready, f"slot {question.step + 1} is open, too old, or was given before")
        # A copy, because masks are added in place.
        return np.array(self._kept[question.step])
