"""`DurableSlotSite`: a site with a stream. A closed slot, its charge and where the next one begins are on disk in one step.

    | state     | what happens                       | written to the ledger      | what leaves         | next state
    | following | a slot closes                      | its part, charge, offset   | nothing             | following
    | following | a slot that is closed is asked for | nothing                    | the part, as stored | following
    | following | another slot is asked for          | nothing                    | that there is none  | following
    | following | a question comes before its time   | nothing                    | nothing yet         | following
    | following | a message that is refused          | a note                     | nothing             | following
    | following | the commit fails                   | nothing                    | nothing             | ahead: more is an error
    | any       | the process ends, and starts again | nothing: it is read        | nothing             | following, or over

Under masks, every message of the hub and the answer to it are written too, before the answer leaves: which keys were exchanged,
in which round a slot was given, which list of survivors was signed. What later rounds do not need is dropped: of the messages,
the exchange of keys and the last round stay.

Where slots end by the clock, every question waits until its slot is due, whether or not that is closed by then: an earlier
answer would show how long its rows took. Without a clock, a question under masks waits until its slot is closed.

Asking costs nothing: the answer was made, charged and stored when the slot closed, so a hub may ask as often as it likes, and
fills no disk. Rows of the slot that was open when the process ended are read again from the stored offset. Of a pipe they are
lost.
"""

import json
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, final

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge, Ledger
from eigenveil.core.unit import PrivacyUnit
from eigenveil.errors import require
from eigenveil.ledger.durable import DurableLedger, StudyRecord, StudyStep
from eigenveil.network.agents.steps import Asked, Cause, Event, LedgerSteps, OnEvent, Outgoing, outgoing_of
from eigenveil.protocols.messages import Ask, Contribution, Done, Masked, Message, StepRequest
from eigenveil.protocols.slot_hub import MaskedSlotMember, SlotMember
from eigenveil.protocols.wire import MessageLimits, decode, encode, in_round
from eigenveil.tasks.slots import OpenSlot

__all__ = ["DurableSlotSite", "StoredParts", "StreamCheckpoint"]

# What a step of the ledger is about: a closed slot, a message under masks, or the result.
_SLOT: Final = "slot"
_MESSAGE: Final = "message"
_RESULT: Final = "result"
# The steps of an exchange of keys, as they are called on the wire.
_SETUP: Final = ("keys", "packets", "roster", "roster claim", "seal")


def _record_in(came: bytes) -> tuple[dict[str, Any], bytes]:
    """What a step is about, and the message that came with it."""
    head, _, message = came.partition(b"\n")
    return json.loads(head), message


@final
@dataclass(frozen=True, slots=True, eq=False)
class StreamCheckpoint:
    """What the ledger has of a stream.

    >>> StreamCheckpoint.read((), None, None).resume_offset == ""
    True
    """

    ledger: Ledger | None  # To continue, if the site adds noise.
    resume_offset: str  # Where to read on.

    @classmethod
    def read(cls, steps: Iterable[StudyStep], budget: Budget | None, unit: PrivacyUnit | None) -> "StreamCheckpoint":
        """Read it back, with the slots that were charged: without them a ledger would refuse the next one."""
        charges: list[Charge] = []
        series: dict[str, tuple[int, int, float, tuple[float, ...]]] = {}
        resume_offset = ""
        for step in steps:
            # Pruned steps have lost their bytes but not their charges, so these are read of every step.
            charges += step.charges
            if step.is_stored and (record := _record_in(step.incoming)[0])["what"] == _SLOT:
                resume_offset, stored = record["then"], record["series"].items()
                series = {name: (int(n), int(p), float(o), tuple(map(float, m))) for name, (n, p, o, m) in stored}
        ledger = None if budget is None else Ledger.continued(budget, tuple(charges), series, unit=unit)
        return cls(ledger, resume_offset)


@final
class StoredParts(MutableMapping[int, Any]):
    """The parts of a site's closed slots, which are in its ledger and not in memory. Changes in place.

    One that was set is in memory until `stored` says at which step of the ledger it is. From then on it has no arrays here, and
    `said` repeats the message that has them.
    """

    def __init__(self, durable_ledger: DurableLedger, study: str, *, masked: bool = False) -> None:
        self._durable_ledger, self._study, self._masked = durable_ledger, study, masked
        self._fresh: dict[int, Any] = {}
        self._steps: dict[int, int] = {}

    def stored(self, slot: int, step: int) -> None:
        """From now on the part of this slot is read from the ledger."""
        self._fresh.pop(slot, None)
        self._steps[slot] = step

    def message(self, slot: int, round_: int) -> bytes:
        """What was committed for this slot, byte for byte but for the round that asks."""
        # The ledger compares what it reads with the digest that was committed.
        return in_round(self._durable_ledger.said(self._study, self._steps[slot]), round_)

    def __getitem__(self, slot: int) -> Any:
        if slot in self._fresh:
            return self._fresh[slot]
        if not self._masked:
            return ()
        # Masks are added to the words of a share, so they are read.
        body = decode(self.message(slot, 0)).body
        assert isinstance(body, Masked)
        return body.limbs

    def __setitem__(self, slot: int, part: Any) -> None:
        self._fresh[slot] = part

    def __delitem__(self, slot: int) -> None:
        # Bytes on disk are pruned by whoever knows which steps nobody may ask for.
        if self._fresh.pop(slot, None) is None:
            del self._steps[slot]

    def __contains__(self, slot: object) -> bool:
        # Not by reading it, as a mapping would otherwise.
        return slot in self._fresh or slot in self._steps

    def __iter__(self) -> Iterator[int]:
        return iter({**self._steps, **self._fresh})

    def __len__(self) -> int:
        return len(self._steps) + len(self._fresh)


@final
class DurableSlotSite(Asked):
    """The slots of one site, and the messages between it and the hub or node `above`. Changes in place.

    The `parts` are those of the party. `whole` is for studies in which the hub adds the noise: the first slot is charged with all
    that the study may cost. Under masks, `questions` are what an honest hub asks. With `clock` a question waits until `held`
    is called. Slots of more than `window` before the last that was asked for are dropped from the disk; digests and charges stay.
    """

    def __init__(
        self,
        party: SlotMember | MaskedSlotMember,
        durable_ledger: DurableLedger,
        joined: StudyRecord,
        *,
        parts: StoredParts,
        ledger: Callable[[], Ledger | None],
        study: str,
        above: str,
        window: int,
        limits: MessageLimits,
        whole: Charge | None = None,
        questions: int = 0,
        clock: bool = False,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        in_ledger = LedgerSteps(durable_ledger, study, number=len(joined.steps), questions=questions, on_event=on_event)
        super().__init__(in_ledger, above=above, unwritten="a slot", limits=limits, on_event=on_event)
        self.party: SlotMember | MaskedSlotMember = party
        self._parts, self._ledger, self._durable_ledger, self._study = parts, ledger, durable_ledger, study
        self._window, self._whole, self._clock = window, whole, clock
        # A question that came early: its slot and its bytes. Under masks, where the keys and the last round are in the ledger.
        self._held: tuple[int, bytes] | None = None
        self._setup: list[int] = []
        self._round: list[int] = []
        self._newest_round = -1
        # The step of each slot, so that old ones can be dropped.
        self._steps: dict[int, int] = {}
        for step in joined.steps:
            # An earlier slot has paid for the whole study, which must not be charged twice.
            if self._whole in step.charges:
                self._whole = None
            if step.is_stored:
                self._take_back(step)

    def close(self, slot: int, filled: OpenSlot, *, then: str) -> None:
        """Close a slot: when this returns, its part, its charge and where to read on are on disk, and its sums are gone."""
        self._in_ledger.require_level("a slot")
        ledger = self._ledger()
        before = 0 if ledger is None else len(ledger.charges)
        self._in_ledger.is_ahead = True
        # Nothing else holds what `filled` becomes, so the sums are freed before their part is written.
        part: Any = self.party.close(slot, filled.close())
        # It is asked for again, because a site's ledger is made at its first release.
        ledger = self._ledger()
        charges = () if ledger is None else ledger.charges[before:]
        # The site cannot see what a hub releases later, so its first part costs all that the study may.
        if part is not None and self._whole is not None:
            charges, self._whole = (*charges, self._whole), None
        record = {
            "what": _SLOT,
            "slot": slot,
            "then": then,
            # The series of the charges: a ledger that is rebuilt from charges alone would refuse the next slot.
            "series": {} if ledger is None else ledger.series(),
        }
        # Not an answer yet: whoever asks gets these numbers in a message of that round.
        messages: list[bytes] = []
        if part is not None:
            stored: Contribution | Masked
            if isinstance(self.party, MaskedSlotMember):
                # Not masked yet: in a message it would need a round, whose masks are added when that is asked for.
                stored = Masked(0, part, b"")
            else:
                # Sums are symmetric, and half of a matrix is enough to repeat it.
                stored = Contribution(round=0, arrays=part, half=self.party.has_symmetric_parts(slot))
            messages = [encode(Message(self.party.name, self._above, stored))]
            # Before the commit, which needs the memory. If it fails, this process ends, and the slot is not asked for.
            self._parts.stored(slot, self._in_ledger.number)
            del part, stored
        self._commit(record, messages, charges)
        self._steps[slot] = self._in_ledger.number - 1
        if not isinstance(self.party, MaskedSlotMember):
            self._drop(slot)
        if self.party.error is not None:
            text = f"this site has no part of slot {slot + 1} to give: {self.party.error}"
            self._in_ledger.log(text)
            self._on_event(Event("said", self._above, text))

    def end(self) -> None:
        """The source has ended, so nothing is to be waited for."""
        self.party.ended = True

    @property
    def awaited(self) -> int | None:
        """The slot of a question that waits; None if there is none."""
        return None if self._held is None else self._held[0]

    def held(self) -> list[Outgoing]:
        """The answer to a question that waits. By the clock its slot is due; without, it waits on while its slot is open."""
        held, self._held = self._held, None
        return [] if held is None else self._receive(self._above, held[1], kind="due")

    def _answer(self, cause: Cause, message: Message, step: Callable[[], list[Message]]) -> list[Outgoing]:
        """The answer to a question, from what is on disk already. Under masks, the message and the answer are written first."""
        body, party, masked = message.body, self.party, isinstance(self.party, MaskedSlotMember)
        if message.sender == self._above and isinstance(body, Ask):
            # Under masks a decline would lose a slot that may still close.
            waits = cause.kind != "due" if self._clock else masked and party.early(message)
            if waits:
                # One at a time: a hub that has asked for another slot does not wait for this one any more.
                self._held = body.question.step, cause.data
                return []
        sessions = 0
        if isinstance(party, MaskedSlotMember):
            self._in_ledger.require_few(message)
            sessions = party.sessions
        answers = step()
        self._in_ledger.is_ahead = masked and bool(answers)
        if isinstance(body, Done):
            # The party has the result and the disk has not.
            self._in_ledger.is_ahead = True
            self._commit({"what": _RESULT}, [cause.data], ())
            self._on_event(Event("over", self._above, "the result is here"))
        if isinstance(party, SlotMember):
            # A part comes from the ledger: it is not in memory.
            return [
                (reply.receiver, self._parts.message(party.last_slot, reply.body.round))
                if isinstance(reply.body, Contribution)
                else (reply.receiver, encode(reply))
                for reply in answers
            ]
        outgoing = outgoing_of(answers)
        if answers:
            self._commit({"what": _MESSAGE, "sessions": sessions}, [raw for _, raw in outgoing], (), message=cause.data)
            # A new round, or new keys: what came before them is not needed any more.
            if self._note_position(self._in_ledger.number - 1, message, keys=party.sessions > sessions):
                self._drop(party.newest)
            self._in_ledger.remember(cause.data, answers, outgoing)
        return outgoing

    def _note_position(self, number: int, message: Message, *, keys: bool) -> bool:
        """Note where in the ledger the keys and the last round are. Whether this message begins one of them.

        It begins `keys` if there are others since. A hub that repeats itself must begin nothing: what the site has signed in this
        session and round would be dropped, and a restarted site could be talked into signing something else.
        """
        body = message.body
        if isinstance(body, StepRequest) and body.step in _SETUP:
            if keys:
                # Of the last round only its question remains, so that older rounds stay older.
                self._setup, self._round = [], self._round[:1]
            self._setup.append(number)
            return keys
        begins = isinstance(body, Ask) and body.round > self._newest_round
        if begins:
            self._round, self._newest_round = [], body.round
        self._round.append(number)
        return begins

    def _commit(
        self, record: dict[str, object], replies: list[bytes], charges: tuple[Charge, ...], *, message: bytes = b""
    ) -> None:
        if isinstance(self.party, MaskedSlotMember):
            # In every entry, because the one in which a slot was given is dropped in time.
            record = {**record, "first": self.party.first}
        came = json.dumps(record, sort_keys=True).encode() + (b"\n" + message if message else b"")
        self._in_ledger.commit(came, replies, charges)

    def _drop(self, slot: int) -> None:
        """Drop the bytes of slots that may not be asked for any more. The last step stays: it says where to read on."""
        # By what was asked and not by what was closed: without a clock a hub may be far behind a site. Under masks nothing is
        # asked for again.
        masked = isinstance(self.party, MaskedSlotMember)
        first = min(slot, self.party.closed, self.party.newest - (0 if masked else self._window))
        old = [number for number in self._steps if number < first]
        before = self._in_ledger.number if masked else 1 + max((self._steps[number] for number in old), default=-1)
        for number in old:
            del self._steps[number]
        if before > 0:
            keep = {*self._steps.values(), *self._setup, *self._round}
            # Digests and charges stay.
            self._durable_ledger.prune(self._study, before, keep=keep)

    def _take_back(self, step: StudyStep) -> None:
        record, incoming = _record_in(step.incoming)
        if record["what"] == _RESULT:
            (done,) = [decode(raw).body for raw in step.replies]
            assert isinstance(done, Done)
            self.party.result = done.arrays
        elif record["what"] == _MESSAGE:
            assert isinstance(self.party, MaskedSlotMember)
            message, answers = decode(incoming, limits=self._limits), [decode(raw) for raw in step.replies]
            self.party.recall(message, answers, sessions=record["sessions"])
            self._note_position(step.number, message, keys=self.party.sessions > record["sessions"])
            outgoing = [(answer.receiver, raw) for answer, raw in zip(answers, step.replies, strict=True)]
            self._in_ledger.remember(incoming, answers, outgoing)
        else:
            slot = record["slot"]
            require(isinstance(slot, int), "a step of the ledger names no slot")
            if step.replies:
                self._parts.stored(slot, step.number)
            self.party.restore(slot)
            self._steps[slot] = step.number
        if isinstance(self.party, MaskedSlotMember):
            self.party.forget(record["first"])
