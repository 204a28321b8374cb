"""`SlotHubAgent`: the hub of a study of streams over the network, which always has the current answer.

`eigenveil hub --serve` runs it. It waits for nobody: a slot is asked for when its time has come, and again for who was late.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

from eigenveil.core.ledger import Charge
from eigenveil.data.follow import ByClock, Instant
from eigenveil.errors import require
from eigenveil.estimators.settings import asked_settings
from eigenveil.estimators.slots.answer import answer_of, slot_model
from eigenveil.estimators.streaming.answer import Answer
from eigenveil.model import Model
from eigenveil.network.agents.durable.hub_log import HubLog
from eigenveil.network.agents.durable.party import Event, OnEvent
from eigenveil.network.agents.durable.slot_hub import DurableSlotHub
from eigenveil.network.agents.runner import STOPPED, THANKS, Agent, Runner, progress_in
from eigenveil.network.identity.certificates import Keys
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.parties import study_settings
from eigenveil.network.study.size import MEMORY
from eigenveil.network.study.streams import rule_of, slot_limits_of, slot_parties_of

__all__ = ["SlotHubAgent", "current_line"]

# The format of the log, in place of a version of the program: a snapshot is plain numbers, which later versions read.
_FORMAT: Final = "slots 1"
# Without a clock the hub asks so often whether anyone has closed a slot: a part of the deadline, within these seconds.
_PART, _SHORTEST, _LONGEST = 0.25, 0.05, 5.0
# Seconds between two looks at the clock.
_LOOK: Final = 1.0


@final
class SlotHubAgent(Agent):
    """The hub: it asks for slots, folds them, and keeps a snapshot and the tail of its log. Changes in place.

    Started again, it goes on from there and asks nobody for what it has.
    """

    def __init__(
        self,
        study: StudyFile,
        *,
        keys: Keys,
        log: HubLog,
        memory: int = MEMORY,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        require(study.streaming, f"{study.name!r} is not a study of streams: run `eigenveil hub` without --serve")
        super().__init__(study, keys=keys, role="hub", on_event=on_event)
        self.parties = slot_parties_of(study, memory=memory)
        self.limits = slot_limits_of(study, self.parties, "hub")
        # The parties that talk to the hub: sites or nodes.
        self.hears = tuple(self.parties.layout.below[self.place.name])
        self._thanks: set[str] = set()
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
        self,
        show: Callable[["SlotHubAgent"], None],
        *,
        listen: str,
        ready: Callable[[int], None] = lambda port: None,
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
                while self._thanks < set(self.hears) and time.monotonic() < until:
                    await asyncio.sleep(_SHORTEST)
            finally:
                # Sites are told, so that their operators know why nothing is asked and leave them running.
                if not self.durable.over:
                    await runner.note(STOPPED, *self.hears)
                carrying.cancel()
                await asyncio.gather(carrying, return_exceptions=True)

    async def _serve(
        self, runner: Runner, carrying: "asyncio.Future[None]", show: Callable[["SlotHubAgent"], None]
    ) -> None:
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
            # Under masks nobody is asked before it is time, so it costs nothing to look often.
            often = _SHORTEST if self.study.masked else _PART * self.study.params.deadline
            await asyncio.sleep(min(max(often, _SHORTEST), _LONGEST))
            return
        # When sites answer for the slot that comes next. After the last one, those who were late are asked at the same pace.
        delay = self.parties.spec.delay
        assert delay is not None
        end = rule.start + rule.seconds * (self.durable.party.newest + 2) + delay
        while True:
            now = Instant.now()
            # Set ahead, it would end slots that sites still fill. Set back, everybody would wait.
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
            # Each site keeps its own ledger, and nobody sees the others'.
            charges = (Charge("reserved for the whole study", self.parties.mu),)
        asked = asked_settings(self.study.params)
        found = slot_model(
            self.parties, self.answer, self.durable.party, asked=asked, charges=charges, columns=self.study.columns
        )
        return replace(found, settings=study_settings(self.study, dict(found.settings)))

    def on_event(self, event: Event) -> None:
        """A site that has left is not waited for."""
        if event.what == "left":
            self.durable.party.left(event.who)
        super().on_event(event)

    async def on_note(self, runner: Runner, sender: str, words: bytes) -> None:
        """Whoever has the result says thanks, and sites say how far their streams are."""
        progress = progress_in(words)
        if words == THANKS:
            self._thanks.add(sender)
        elif progress is not None:
            closed, ended = progress
            await runner.do(lambda: self.durable.heard(sender, closed, ended=ended))


def current_line(agent: SlotHubAgent) -> str:
    """The current answer as one line of JSON, from released and public numbers alone."""
    hub, spec, model = agent.durable.party, agent.parties.spec, agent.model()
    newest = hub.last
    late = () if agent.study.masked else range(max(0, newest - spec.window), newest)
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
        # Of the slots in the window, those that still lack somebody. Under masks nothing comes late, and a slot may be skipped.
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
