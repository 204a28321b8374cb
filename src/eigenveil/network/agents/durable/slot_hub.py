"""`DurableSlotHub`: a hub of streams that survives a crash. Its log has a snapshot between two slots, and what happened since.

A tick opens a slot. What came, and what the hub released because of it, is in the log before anything follows. When the hub is
idle again, a snapshot replaces all of it, so the log stays as short as one slot. The snapshot has names and plain numbers, so a
later version of the program can go on from it. Under masks the log also has the keys that sites have exchanged, which serve many
slots.

A hub that is stopped while it asks for a slot goes on with the same round. The list of survivors follows from the answers in the
log, and each answer is there before anything that follows from it leaves. So it is the same list as before (`MaskedSlotMember`
proves what sites add to that).
"""

import json
from collections.abc import Callable
from typing import final

import numpy as np

from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.errors import PeerError, ProtocolError
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.linalg import Array
from eigenveil.network.agents.durable.hub_log import HubLog, LogEntry, ReplayMechanism
from eigenveil.network.agents.durable.party import Cause, DurableParty, Event, OnEvent, Outgoing, outgoing_of
from eigenveil.protocols import Give, Message, Return
from eigenveil.protocols.slots import HubSnapshot, SlotHub, SlotRound
from eigenveil.protocols.wire import MessageLimits, decode, encode
from eigenveil.tasks import SlotState
from eigenveil.trackers.state import numbered, restored, taken_apart

__all__ = ["DurableSlotHub", "snapshot_from", "snapshot_parts"]


def snapshot_parts(snapshot: HubSnapshot) -> tuple[str, tuple[Array, ...]]:
    """A snapshot as JSON and arrays, like the state of a stream at one place."""
    tree, arrays = taken_apart(snapshot)
    return json.dumps(tree, sort_keys=True), tuple(arrays.values())


def snapshot_from(text: str, arrays: tuple[Array, ...]) -> HubSnapshot:
    """The snapshot that was stored."""
    # Copies, because the alignment of an array in memory can change the last digit of what is computed from it.
    copies = numbered(np.array(array) for array in arrays)
    snapshot = restored(json.loads(text), copies, more=(HubSnapshot, SlotState))
    assert isinstance(snapshot, HubSnapshot)
    return snapshot


@final
class DurableSlotHub(DurableParty):
    """The hub of `parties`, brought to where its `log` ends. Changes in place. `watch` is called after each new round."""

    def __init__(
        self,
        parties: SlotParties,
        log: HubLog,
        *,
        limits: MessageLimits,
        on_event: OnEvent = lambda event: None,
        watch: Callable[[SlotRound], None] = lambda done: None,
        answer: Callable[[SlotState], tuple[Array, ...]] = lambda state: (),
    ) -> None:
        super().__init__(limits=limits, on_event=on_event)
        self._parties, self._log, self._watch = parties, log, watch
        self._memory: ReplayMechanism | None = None
        self._masking = parties.masking(secret=log.secret)
        # The round in which the keys in the log were exchanged.
        self._logged: int | None = None
        # Rounds of the log were reported by the process before, and must not be reported again.
        self._replaying = True
        self.party: SlotHub = parties.hub(masking=self._masking, watch=self._note, through=self._through, answer=answer)
        self._replay()
        self._replaying = False

    @property
    def over(self) -> bool:
        """Whether the last slot and its window are over."""
        return self.party.result is not None

    def begin(self) -> list[Outgoing]:
        """After a crash in the middle of a slot: what is still missing of it."""
        # Nobody is back yet: who is connected shows later.
        below = self._parties.layout.below[self.party.name]
        return [one for name in below for one in outgoing_of(self.party.owed(name))]

    def tick(self) -> list[Outgoing]:
        """Open the next slot."""
        return self._move(Cause(kind="tick"), self.party.tick)

    def rejoined(self, other: str) -> list[Outgoing]:
        """What a party that is back still owes, or the final result."""
        # In the log, because the next slot may exchange keys anew for it, and a replay must do the same.
        if self._masking is not None and not self.over and self._masking.back(other):
            self._log.add(LogEntry(kind="back", sender=other))
        return outgoing_of(self.party.rejoined(other))

    def heard(self, name: str, closed: int, *, ended: bool) -> None:
        """What a site says of its stream. It is not in the log: sites say it again whenever they connect."""
        try:
            self.party.heard(name, closed, ended=ended)
        except PeerError as error:
            self._refuse(error)

    def shorten(self) -> None:
        """End the study early if too few sources go on. That is on disk when this returns."""
        if self.party.shorten():
            self._store()
            slots = f"{self.party.horizon} of {self._parties.spec.slots} slots"
            self._on_event(Event("waiting", "", f"sources have ended, so there are {slots}"))

    def _move(self, cause: Cause, step: Callable[[], list[Message]]) -> list[Outgoing]:
        # The party moves first: a message that it refuses must not get into the log.
        said = step()
        if self.party.idle:
            # Everything up to here is in the snapshot, so one entry replaces all others.
            if self._memory is not None:
                self._memory.taken()
            self._store()
        else:
            # One entry has the cause and what the hub released because of it, so a crash cannot separate them.
            released = None if self._memory is None else self._memory.taken()
            self._log.add(LogEntry.of(cause, released))
        return outgoing_of(said)

    def _store(self) -> None:
        """Replace the log by a snapshot, and by the keys of the masks where they are new."""
        text, arrays = snapshot_parts(self.party.snapshot())
        stored = encode(Message("hub", "hub", Give(round=0, arrays=arrays)))
        if self._masking is None:
            self._log.cut(LogEntry(kind="snapshot", data=text.encode(), released=stored))
            return
        facts = json.dumps(self._masking.facts()).encode()
        keys, new = self._masking.keys, None
        if keys is not None and keys.first != self._logged:
            new = LogEntry(kind="keys", data=encode(Message("hub", "hub", keys.stored())))
        self._log.cut(LogEntry(kind="snapshot", data=text.encode(), released=stored, asked=facts), keys=new)
        if keys is not None:
            self._logged = keys.first

    def _through(self, mechanism: Mechanism) -> Mechanism:
        # Without noise a replay computes the same numbers again, so none are stored.
        if isinstance(mechanism, Exact):
            return mechanism
        if self._memory is None:
            self._memory = ReplayMechanism(mechanism)
        return self._memory.onto(mechanism)

    def _replay(self) -> None:
        """Bring the hub to where the log ends. Nothing leaves, and nothing is released again."""
        keys: Return | None = None
        for event in self._log.events():
            if event.kind == "keys":
                body = decode(event.data).body
                assert isinstance(body, Return)
                keys, self._logged = body, body.round
                continue
            if event.kind == "snapshot":
                assert event.released is not None
                body = decode(event.released).body
                assert isinstance(body, Give)
                snapshot = snapshot_from(event.data.decode(), body.arrays)
                self.party.restore(snapshot)
                if self._masking is not None and event.asked is not None:
                    self._masking.restore(json.loads(event.asked), keys)
                # The hub's ledger must say what the process before it spent.
                self._parties.respend(snapshot.folds)
                continue
            if event.released is not None:
                # Any slot will do: this only makes the memory, and each release brings its own mechanism.
                self._through(self._parties.hub_mechanism(0, 0))
                assert self._memory is not None
                self._memory.recall(event.released)
            self._again(event)
        if self._memory is not None:
            self._memory.require_all_given()
            self._memory.taken()
        if self.party.newest >= self.party.horizon and self.party.idle:
            # The last tick has no slot of its own: whether it was the end follows from the number.
            self.party.conclude()

    def _again(self, event: LogEntry) -> None:
        match event.kind:
            case "tick":
                self.party.tick()
            case "timeout":
                self.party.timeout()
            case "message":
                self.party.receive(decode(event.data, limits=self._limits))
            case "back" if self._masking is not None:
                self._masking.back(event.sender)
            case kind:
                raise ProtocolError(f"the log has an entry of the kind {kind!r}, which streams do not have")

    def _note(self, done: SlotRound) -> None:
        if self._replaying:
            return
        if done.skipped:
            self._on_event(Event("round", f"slot {done.slot + 1}", f"skipped: {done.skipped}"))
        else:
            # Under masks a late part is lost.
            still = "" if self._masking is not None else "still "
            missing = f", {len(done.missing)} {still}missing" if done.missing else ""
            again = " late" if done.again else ""
            self._on_event(Event("round", f"slot {done.slot + 1}", f"{len(done.answered)} answered{again}{missing}"))
        self._watch(done)
