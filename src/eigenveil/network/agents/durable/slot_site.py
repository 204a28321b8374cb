"""`DurableSlotSite`: a site with a stream. A closed slot, its charge and where the next one begins are on disk in one step.

    | state     | what happens                       | written to the ledger      | what leaves         | next state
    | following | a slot closes                      | its part, charge, offset   | nothing             | following
    | following | a slot that is closed is asked for | nothing                    | the part, as stored | following
    | following | another slot is asked for          | nothing                    | that there is none  | following
    | following | a message that is refused          | a note                     | nothing             | following
    | following | the commit fails                   | nothing                    | nothing             | ahead: more is an error
    | any       | the process ends, and starts again | nothing: it is read        | nothing             | following, or over

Asking costs nothing: the answer was made, charged and stored when the slot closed. So a hub may ask as often as it likes, and
fills no disk. Rows of the slot that was open when the process ended are read again from the stored offset. Of a pipe they are
lost.
"""

import json
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Final, final

from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.linalg import Array
from eigenveil.network.agents.durable.party import DurableParty, Event, OnEvent, Outgoing, opened
from eigenveil.network.agents.durable.refusals import Refusals
from eigenveil.network.ledger.durable import DurableLedger, Opened, StudyStep
from eigenveil.privacy import Budget, Charge, Ledger, PrivacyUnit
from eigenveil.protocols import Done, Give, Message
from eigenveil.protocols.slots import SlotMember
from eigenveil.protocols.wire import MessageLimits, decode, encode, in_round
from eigenveil.tasks import OpenSlot

__all__ = ["DurableSlotSite", "SlotsBefore", "StoredParts"]

# What a step of the ledger is about: a closed slot, or the result.
_SLOT: Final = "slot"
_RESULT: Final = "result"


@final
@dataclass(frozen=True, slots=True, eq=False)
class SlotsBefore:
    """What the ledger has of a stream: the `ledger` it continues from, if the site adds noise, and `then`, where to read on.

    >>> SlotsBefore.read((), None, None).then == ""
    True
    """

    ledger: Ledger | None
    then: str

    @classmethod
    def read(cls, steps: Iterable[StudyStep], budget: Budget | None, unit: PrivacyUnit | None) -> "SlotsBefore":
        """Read it back, with the slots that were charged: without them a ledger would refuse the next one."""
        charges: list[Charge] = []
        series: dict[str, tuple[int, int, float, tuple[float, ...]]] = {}
        then = ""
        for step in steps:
            # Pruned steps have lost their bytes but not their charges, so these are read of every step.
            charges += step.charges
            if step.kept and (record := json.loads(step.came))["what"] == _SLOT:
                then = record["then"]
                kept = record["series"]
                series = {name: (int(n), int(p), float(o), tuple(map(float, m))) for name, (n, p, o, m) in kept.items()}
        ledger = None if budget is None else Ledger.continued(budget, tuple(charges), series, unit=unit)
        return cls(ledger, then)


@final
class StoredParts(MutableMapping[int, tuple[Array, ...]]):
    """The parts of a site's closed slots, which are in its ledger and not in memory. Changes in place.

    One that was set is in memory until `stored` says at which step of the ledger it is. From then on it has no arrays here, and
    `said` repeats the message that has them.
    """

    def __init__(self, durable_ledger: DurableLedger, study: str) -> None:
        self._durable_ledger, self._study = durable_ledger, study
        self._fresh: dict[int, tuple[Array, ...]] = {}
        self._steps: dict[int, int] = {}

    def stored(self, slot: int, step: int) -> None:
        """From now on the part of this slot is read from the ledger."""
        self._fresh.pop(slot, None)
        self._steps[slot] = step

    def said(self, slot: int, round_: int) -> bytes:
        """What was committed for this slot, byte for byte but for the round that asks."""
        # The ledger compares what it reads with the digest that was committed.
        return in_round(self._durable_ledger.said(self._study, self._steps[slot]), round_)

    def __getitem__(self, slot: int) -> tuple[Array, ...]:
        return () if slot in self._steps else self._fresh[slot]

    def __setitem__(self, slot: int, arrays: tuple[Array, ...]) -> None:
        self._fresh[slot] = arrays

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
class DurableSlotSite(DurableParty):
    """The slots of one site, and the messages between it and the hub or node `above`. Changes in place.

    The `parts` are those of the party. `whole` is for studies in which the hub adds the noise: the first slot is charged with all
    that the study may cost. Slots of more than `window` before the last that was asked for are dropped from the disk; digests and
    charges stay.
    """

    def __init__(
        self,
        party: SlotMember,
        durable_ledger: DurableLedger,
        joined: Opened,
        *,
        parts: StoredParts,
        ledger: Callable[[], Ledger | None],
        study: str,
        above: str,
        window: int,
        limits: MessageLimits,
        whole: Charge | None = None,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        self.party: SlotMember = party
        self._parts = parts
        self._durable_ledger, self._ledger, self._study, self._above = durable_ledger, ledger, study, above
        self._window, self._limits, self._whole, self._on_event = window, limits, whole, on_event
        self._refusals = Refusals(durable_ledger, study, on_event)
        self._number, self._ahead = len(joined.steps), False
        # The step of each slot, so that old ones can be dropped.
        self._steps: dict[int, int] = {}
        for step in joined.steps:
            # An earlier slot has paid for the whole study, which must not be charged twice.
            if self._whole in step.charges:
                self._whole = None
            if step.kept:
                self._read_back(step.number, json.loads(step.came), step.said)

    @property
    def over(self) -> bool:
        """Whether the final result is here."""
        return self.party.result is not None

    def begin(self) -> list[Outgoing]:
        """Nothing: a site waits to be asked."""
        return []

    def wait_over(self) -> list[Outgoing]:
        """Nothing: a site has no deadline of its own."""
        return []

    def rejoined(self, other: str) -> list[Outgoing]:
        """Nothing: the hub or node above asks for what it lacks."""
        return []

    def close(self, slot: int, filled: OpenSlot, *, then: str) -> None:
        """Close a slot: when this returns, its part, its charge and where to read on are on disk, and its sums are gone."""
        self._require_level()
        ledger = self._ledger()
        before = 0 if ledger is None else len(ledger.charges)
        # From here until the commit the party knows more than the disk: any error must end this process.
        self._ahead = True
        # Nothing else holds what `filled` becomes, so the sums are freed before their part is written.
        arrays = self.party.close(slot, filled.close())
        # It is asked for again, because a site's ledger is made at its first release.
        ledger = self._ledger()
        charges = () if ledger is None else ledger.charges[before:]
        # The site cannot see what a hub releases later, so its first part costs all that the study may.
        if arrays is not None and self._whole is not None:
            charges, self._whole = (*charges, self._whole), None
        record = {
            "what": _SLOT,
            "slot": slot,
            "then": then,
            # The series of the charges: a ledger that is rebuilt from charges alone would refuse the next slot.
            "series": {} if ledger is None else ledger.series(),
        }
        # Not an answer yet: whoever asks gets these numbers in a message of that round.
        # Sums are symmetric, and half of a matrix is enough to repeat it.
        half = arrays is not None and self.party.halved(slot)
        said = (
            [] if arrays is None else [encode(Message(self.party.name, self._above, Give(0, arrays, symmetric=half)))]
        )
        if arrays is not None:
            # Before the commit, which needs the memory. If it fails, this process ends, and nobody asks for the slot.
            self._parts.stored(slot, self._number)
            del arrays
        self._commit(record, said, charges)
        self._steps[slot] = self._number - 1
        self._drop(slot)
        if self.party.error is not None:
            words = f"this site has no part of slot {slot + 1} to give: {self.party.error}"
            self._refusals.write(words)
            self._on_event(Event("said", self._above, words))

    def take(self, sender: str, data: bytes) -> list[Outgoing]:
        """The answer to a question, from what is on disk already."""
        self._require_level()
        try:
            message = opened(data, sender=sender, me=self.party.name, limits=self._limits)
            answers = self.party.receive(message)
        except PeerError as error:
            # No reply: the sender must not learn why, and the site goes on.
            self._refusals.note(error)
            return []
        if isinstance(message.body, Done):
            # The party has the result and the disk has not, so an error in between must end this process.
            self._ahead = True
            self._commit({"what": _RESULT}, [data], ())
            self._on_event(Event("over", self._above, "the result is here"))
        return [(answer.receiver, self._encoded(answer)) for answer in answers]

    def _encoded(self, answer: Message) -> bytes:
        """The bytes of an answer. A part comes from the ledger: it is not in memory."""
        if isinstance(answer.body, Give):
            return self._parts.said(self.party.asked, answer.body.round)
        return encode(answer)

    def _commit(self, record: dict[str, object], said: list[bytes], charges: tuple[Charge, ...]) -> None:
        came = json.dumps(record, sort_keys=True).encode()
        # The step's number makes a second process on the same ledger fail here instead of charging twice.
        self._durable_ledger.commit(self._study, self._number, came=came, said=said, charges=charges)
        self._number, self._ahead = self._number + 1, False

    def _drop(self, slot: int) -> None:
        """Drop the bytes of slots that nobody may ask for any more. The last step stays: it says where to read on."""
        # By what was asked and not by what was closed: without a clock a hub may be far behind a site.
        first = min(slot, self.party.newest - self._window)
        old = [number for number in self._steps if number < first]
        if old:
            self._durable_ledger.prune(self._study, 1 + max(self._steps[number] for number in old))
            for number in old:
                del self._steps[number]

    def _read_back(self, number: int, record: dict[str, object], said: tuple[bytes, ...]) -> None:
        if record["what"] == _RESULT:
            (done,) = [decode(raw).body for raw in said]
            assert isinstance(done, Done)
            self.party.result = done.arrays
            return
        slot = record["slot"]
        require(isinstance(slot, int), "a step of the ledger names no slot")
        assert isinstance(slot, int)
        if said:
            self._parts.stored(slot, number)
        self.party.restore(slot)
        self._steps[slot] = number

    def _require_level(self) -> None:
        if self._ahead:
            raise ProtocolError("a slot of this site could not be written to its ledger: start the site again")
