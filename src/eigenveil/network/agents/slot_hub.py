"""`SlotHubAgent`: the hub of a study of streams over the network, which always has the current answer.

`eigenveil hub --serve` runs it. It waits for no site: a slot is asked for when its time has come, and again for who was late.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from eigenveil.core.ledger import Charge
from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.data.follow import ByClock, Instant
from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.estimators.slots.answer import answer_of, slot_guarantee, slot_settings, slot_verdict
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.estimators.streaming.spec import Answer
from eigenveil.estimators.terms import asked_settings, model_of
from eigenveil.linalg import Array
from eigenveil.model import Model
from eigenveil.network.agents.hub_log import HubLog, LogEntry, ReplayMechanism
from eigenveil.network.agents.runner import STOPPED, Agent, Runner, progress_in
from eigenveil.network.agents.steps import Cause, DurableParty, Event, OnEvent, Outgoing, outgoing_of
from eigenveil.network.certificates import Keys
from eigenveil.network.parties import study_settings
from eigenveil.network.rules import MEMORY
from eigenveil.network.streams import rule_of, slot_limits_of, slot_parties_of
from eigenveil.network.study import StudyFile
from eigenveil.protocols.messages import Contribution, Message, StepReply
from eigenveil.protocols.slot_hub import HubSnapshot, SlotHub, SlotRound
from eigenveil.protocols.wire import MessageLimits, decode, encode
from eigenveil.tasks.slots import SlotState
from eigenveil.trackers.state import numbered, restored, taken_apart

__all__ = ["DurableSlotHub", "SlotHubAgent", "current_line"]


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
        return self.party.result is not None

    def begin(self) -> list[Outgoing]:
        """After a crash in the middle of a slot: what is still missing of it."""
        # No site is back yet: who is connected shows later.
        below = self._parties.layout.below[self.party.name]
        return [outgoing for name in below for outgoing in outgoing_of(self.party.owed(name))]

    def tick(self) -> list[Outgoing]:
        return self._move(Cause(kind="tick"), self.party.tick)

    def on_reconnect(self, other: str) -> list[Outgoing]:
        """What a party that is back still owes, or the final result."""
        # In the log, because the next slot may exchange keys anew for it, and a replay must do the same.
        if self._masking is not None and not self.over and self._masking.mark_reachable(other):
            self._log.add(LogEntry(kind="back", sender=other))
        return outgoing_of(self.party.on_reconnect(other))

    def heard(self, name: str, closed: int, *, ended: bool) -> None:
        """What a site says of its stream. It is not in the log: sites say it again whenever they connect."""
        try:
            self.party.heard(name, closed, ended=ended)
        except PeerError as error:
            self._refuse(error)

    def shorten(self) -> None:
        """End the study early if too few sources continue. That is on disk when this returns."""
        if self.party.shorten():
            self._store()
            slots = f"{self.party.horizon} of {self._parties.spec.slots} slots"
            self._on_event(Event("waiting", "", f"sources have ended, so there are {slots}"))

    def _move(self, cause: Cause, step: Callable[[], list[Message]]) -> list[Outgoing]:
        # The party moves first: a message that it refuses must not get into the log.
        messages = step()
        if self.party.idle:
            # Everything up to here is in the snapshot, so one entry replaces all others.
            if self._memory is not None:
                self._memory.taken()
            self._store()
        else:
            # One entry has the cause and what the hub released because of it, so a crash cannot separate them.
            released = None if self._memory is None else self._memory.taken()
            self._log.add(LogEntry.of(cause, released))
        return outgoing_of(messages)

    def _store(self) -> None:
        """Replace the log by a snapshot, and by the keys of the masks where they are new."""
        # As JSON and arrays, like the state of a stream at one place.
        tree, arrays = taken_apart(self.party.snapshot())
        text = json.dumps(tree, sort_keys=True).encode()
        stored = encode(Message("hub", "hub", Contribution(round=0, arrays=tuple(arrays.values()))))
        keys, facts, new = None, None, None
        if self._masking is not None:
            keys, facts = self._masking.keys, json.dumps(self._masking.facts()).encode()
        if keys is not None and keys.first != self._logged:
            new = LogEntry(kind="keys", data=encode(Message("hub", "hub", keys.stored())))
        self._log.cut(LogEntry(kind="snapshot", data=text, released=stored, outcome=facts), keys=new)
        if keys is not None:
            self._logged = keys.first

    def _through(self, mechanism: Mechanism) -> Mechanism:
        # Without noise a replay computes the same numbers again, so none are stored.
        if isinstance(mechanism, Exact):
            return mechanism
        if self._memory is None:
            self._memory = ReplayMechanism(mechanism)
        self._memory.through = mechanism
        return self._memory

    def _replay(self) -> None:
        """Bring the hub to where the log ends. Nothing leaves, and nothing is released again."""
        keys: StepReply | None = None
        for event in self._log.events():
            if event.kind == "keys":
                body = decode(event.data).body
                assert isinstance(body, StepReply)
                keys, self._logged = body, body.round
                continue
            if event.kind == "snapshot":
                assert event.released is not None
                body = decode(event.released).body
                assert isinstance(body, Contribution)
                # Copies, because the alignment of an array in memory can change the last digit of what is computed from it.
                copies = numbered(np.array(array) for array in body.arrays)
                snapshot = restored(json.loads(event.data), copies, more=(HubSnapshot, SlotState))
                assert isinstance(snapshot, HubSnapshot)
                self.party.restore(snapshot)
                if self._masking is not None and event.outcome is not None:
                    self._masking.restore(json.loads(event.outcome), keys)
                # The hub's ledger must say what the process before it spent.
                self._parties.respend(snapshot.folds)
                continue
            if event.released is not None:
                # Any slot will do: this only makes the memory, and each release brings its own mechanism.
                self._through(self._parties.hub_mechanism(0, 0))
                assert self._memory is not None
                self._memory.recall(event.released)
            match event.kind:
                case "tick":
                    self.party.tick()
                case "timeout":
                    self.party.timeout()
                case "message":
                    self.party.receive(decode(event.data, limits=self._limits))
                case "back" if self._masking is not None:
                    self._masking.mark_reachable(event.sender)
                case kind:
                    raise ProtocolError(f"the log has an entry of the kind {kind!r}, which streams do not have")
        if self._memory is not None:
            self._memory.require_all_given()
            self._memory.taken()

    def _note(self, done: SlotRound) -> None:
        if self._replaying:
            return
        # Under masks a late part is lost.
        still = "" if self._masking is not None else "still "
        missing = f", {len(done.missing)} {still}missing" if done.missing else ""
        text = f"{len(done.answered)} answered{' late' if done.again else ''}{missing}"
        self._on_event(Event("round", f"slot {done.slot + 1}", f"skipped: {done.skipped}" if done.skipped else text))
        self._watch(done)


# The format of the log, in place of a version of the program: a snapshot is plain numbers, which later versions read.
_FORMAT: Final = "slots 1"

# Without a clock the hub asks so often whether anyone has closed a slot: a part of the deadline, within these seconds.
_PART, _SHORTEST, _LONGEST = 0.25, 0.05, 5.0
# Seconds between two looks at the clock.
_LOOK: Final = 1.0


@final
class SlotHubAgent(Agent):
    """The hub: it asks for slots, folds them, and keeps a snapshot and the tail of its log. Changes in place.

    Started again, it continues from there and does not ask again for what it has.
    """

    def __init__(
        self, study: StudyFile, *, keys: Keys, log: HubLog, memory: int = MEMORY, on_event: OnEvent = lambda event: None
    ) -> None:
        require(study.streaming, f"{study.name!r} is not a study of streams: run `eigenveil hub` without --serve")
        super().__init__(study, keys=keys, role="hub", on_event=on_event)
        self.parties = slot_parties_of(study, memory=memory)
        self.limits = slot_limits_of(study, self.parties, "hub")
        # The parties that talk to the hub: sites or nodes.
        self.hears = tuple(self.parties.layout.below[self.place.name])
        # When the clock was last looked at.
        self._last: Instant | None = None
        # This replays the log, so one that does not fit is refused before anyone connects.
        self.durable = DurableSlotHub(
            self.parties, log, limits=self.limits, on_event=on_event, answer=lambda state: self.answer.arrays()
        )
        self.answer: Answer = answer_of(self.parties, self.durable.party.state)

    @classmethod
    def log_for(cls, path: Path, study: StudyFile) -> HubLog:
        """The log at `path`, new or of a study that was interrupted, also by another version of the program."""
        return HubLog.open(path, study=study.digest, wheel=_FORMAT)

    async def run(
        self, show: Callable[["SlotHubAgent"], None], *, listen: str, ready: Callable[[int], None] = lambda port: None
    ) -> None:
        """Serve until the last slot and its window are over. `show` is called after each tick, with this agent."""
        async with self.connected(self.durable, listen=listen, ready=ready) as runner:
            if self.durable.party.newest >= 0:
                self.on_event(Event("resumed", self.place.name, f"after slot {self.durable.party.newest + 1}"))
            carrying = asyncio.ensure_future(runner.run(lambda: False))
            try:
                await self._serve(runner, carrying, show)
                # Those who are connected have the result now. Others get it when the hub is started again.
                until = time.monotonic() + self.study.params.deadline
                while self.unthanked and time.monotonic() < until:
                    await asyncio.sleep(_SHORTEST)
            finally:
                # Sites are told, so that their operators know why nothing is asked and leave them running.
                if not self.durable.over:
                    await runner.note(STOPPED, *self.hears)
                carrying.cancel()
                await asyncio.gather(carrying, return_exceptions=True)

    async def _serve(self, runner: Runner, carrying: "asyncio.Future[None]", show: Callable[["SlotHubAgent"], None]) -> None:
        # What a hub that was stopped in the middle of a slot still lacks of it.
        await runner.act(self.durable.begin)
        while not self.durable.over:
            if self.durable.party.idle:
                await self._due()
                await runner.do(self.durable.shorten)
                # An error in the task that carries messages is raised here: the hub would otherwise wait for ever.
                if carrying.done():
                    carrying.result()
                # Under masks a slot of so many rows waits here until enough sites have closed it.
                if not self.durable.party.due:
                    continue
                await runner.act(self.durable.tick)
            while not self.durable.party.idle:
                await asyncio.sleep(_SHORTEST)
                if carrying.done():
                    carrying.result()
            self.answer = answer_of(self.parties, self.durable.party.state, rank=self.answer.rank)
            show(self)

    async def _due(self) -> None:
        """Wait until the next slot may be asked for: when sites answer for it by the clock, or a moment."""
        rule = rule_of(self.study)
        if not isinstance(rule, ByClock):
            # Under masks no site is asked before it is time, so it costs nothing to look often.
            often = _SHORTEST if self.study.masked else _PART * self.study.params.deadline
            await asyncio.sleep(min(max(often, _SHORTEST), _LONGEST))
            return
        # When sites answer for the slot that comes next. After the last one, those who were late are asked at the same pace.
        delay = self.parties.spec.delay
        assert delay is not None
        end = rule.start + rule.seconds * (self.durable.party.newest + 2) + delay
        while True:
            now = Instant.now()
            # Set ahead, it would end slots that sites still fill. Set back, all would wait.
            if self._last is not None:
                rule.require_steady(now.ahead_of(self._last))
            self._last = now
            if now.wall >= end:
                return
            # In short steps: a clock that is set right again must be noticed.
            await asyncio.sleep(min(end - now.wall, _LOOK))

    def model(self) -> Model | None:
        """The model of the answer so far; None before anything was heard."""
        if self.answer.subspace.rank == 0:
            return None
        spec = self.parties.spec
        ledger = self.parties.ledgers.get(self.place.name)
        charges: tuple[Charge, ...] = () if ledger is None else ledger.charges
        if not charges and spec.budget is not None:
            # Each site keeps its own ledger, and no party sees the others'.
            charges = (Charge("reserved for the whole study", self.parties.mu),)
        settings = asked_settings(self.study.params)
        result = model_of(
            self.answer,
            verdict=slot_verdict(self.parties, self.answer, settings, self.study.columns),
            guarantee=slot_guarantee(self.parties, charges, apart=True),
            columns=self.study.columns,
            settings=slot_settings(self.parties, self.durable.party, settings),
            clipping={},
        )
        return replace(result, settings=study_settings(self.study, dict(result.settings)))

    def on_event(self, event: Event) -> None:
        """A site that has left is not waited for."""
        if event.what == "left":
            self.durable.party.left(event.who)
        super().on_event(event)

    async def on_note(self, runner: Runner, sender: str, note: bytes) -> None:
        await super().on_note(runner, sender, note)
        progress = progress_in(note)
        if progress is not None:
            closed, ended = progress
            await runner.do(lambda: self.durable.heard(sender, closed, ended=ended))


def current_line(agent: SlotHubAgent) -> str:
    """The current answer as one line of JSON, from released and public numbers alone."""
    hub, spec, model = agent.durable.party, agent.parties.spec, agent.model()
    newest = hub.last
    late = () if agent.study.masked else range(max(0, newest - spec.max_lateness), newest)
    facts: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "study": agent.study.name,
        "digest": agent.study.digest,
        "slot": newest + 1,
        "slots": spec.slots,
        # Fewer than `slots` if sources have ended before.
        "horizon": hub.horizon,
        "over": hub.result is not None,
        "heard": list(hub.counted(newest)),
        "missing": list(hub.missing(newest)),
        # Of the slots in the window, those that still lack a site. Under masks nothing comes late, and a slot may be skipped.
        "late": {str(slot + 1): list(hub.missing(slot)) for slot in late},
        "skipped": [slot + 1 for slot in hub.skipped],
    }
    if model is not None:
        facts |= {
            "columns": list(agent.study.columns),
            "components": model.components.tolist(),
            "explained_variance": model.explained_variance.tolist(),
            "explained_variance_ratio": model.explained_variance_ratio.tolist(),
            "noise_floor": model.noise_floor,
            "above_noise": model.n_above_noise,
            "warnings": list(model.warnings),
        }
    return json.dumps(facts)
