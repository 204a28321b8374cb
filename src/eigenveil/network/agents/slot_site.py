"""`SlotSiteAgent`: a site that follows a stream, over the network. `eigenveil site --follow` runs it.

It reads its rows and closes its slots on the thread of its party, so that a slot is on disk before it can be asked for. Where
slots end by the clock, a process of its own notes how far the source reached at each end, and the notes are beside the ledger.

**By the clock, rows decide about no answer and no absence, unless the work on them takes longer than the public delay.** Proof.
Let e be the end of a slot, s the moment from which this process has noted ends, or the last one at which it went on after it had
stood still, and w the study's delay. A question for the slot waits until max(e, s) + w. Then a slot whose end was noted is
closed, and its part is sent; one without an end is declined. Both follow from clocks alone. If a slot that has an end is still
open, its rows took longer than w. The site then gives the study up in its ledger, for good, and ends, so others learn of rows at
most once, and at most in which slot that happened. A process stands still if its device sleeps, or if a person stops it; no row
keeps the thread that looks at the clock for so long. What is left is how long the answer itself takes from that moment on, which
`reply_seconds` of a policy rounds up.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, Unpack, assert_never, final

from eigenveil.core.ledger import Charge
from eigenveil.data.follow import (
    ByClock,
    ByCount,
    Closed,
    Followed,
    FollowedRows,
    Follower,
    Instant,
    Left,
    SlotStart,
    WatchedEnds,
    require_sized,
)
from eigenveil.errors import ProtocolError, require
from eigenveil.ledger.durable import StudyRecord
from eigenveil.network.agents.runner import Runner, progress_note
from eigenveil.network.agents.site_data import Holder, HolderOptions, account_of
from eigenveil.network.agents.slot_steps import DurableSlotSite, StoredParts, StreamCheckpoint
from eigenveil.network.agents.steps import Event, Outgoing
from eigenveil.network.rules import MEMORY, method_of
from eigenveil.network.streams import rule_of, slot_limits_of, slot_parties_of
from eigenveil.network.study import StudyFile
from eigenveil.protocols.slot_hub import MaskedSlotMember, SlotMember

__all__ = ["SlotSiteAgent"]

# Seconds between two looks at a source that has nothing new.
_LOOK: Final = 0.2
# And between two looks whether a question is due.
_SHORT: Final = 0.05
# A clock that has moved on by so many seconds more than this process slept: it was stopped, its device slept, or it was set.
_STOOD_STILL: Final = 5.0
# At most so many rows, and numbers, are read at a time.
_MOST_ROWS, _NUMBERS = 200, 1 << 14


@final
class SlotSiteAgent(Holder):
    """One site of a study of streams: its place in the `study`, its ledger, and the name of its `dataset` there.

    Changes in place: it spends. Nothing is connected and nothing is spent before `run`.
    """

    above: str

    def __init__(self, study: StudyFile, *, dataset: str, memory: int = MEMORY, **options: Unpack[HolderOptions]) -> None:
        require(study.streaming, f"{study.name!r} is not a study of streams: run `eigenveil site` with --data")
        super().__init__(study, role="site", **options)
        self.parties = parties = slot_parties_of(study, memory=memory)
        # The hub, or a node of the tree.
        self.above = parties.above[self.place.name]
        self.limits, self.calls = slot_limits_of(study, parties, "site"), (self.above,)
        # Before any connection and any charge: a study that is refused learns nothing.
        self.require_allowed(None, method=method_of(study))
        self.account = account_of(
            study, dataset, party=self.place.name, budget=parties.spec.budget, mu=parties.mu, masks=parties.masked
        )
        # Set when the party above has greeted with the same study.
        self._met = asyncio.Event()
        # What is kept of the stream, and who reads it, while `run` runs.
        self._following: tuple[DurableSlotSite, Follower] | None = None
        # By the clock: since when ends are noted, and this process runs without a stop. None before.
        self._since: float | None = None

    async def run(self, source: Followed, *, address: str | None = None, note: str | None = None) -> None:
        """Follow `source` and answer for its slots until the study is over.

        `address` is where to reach the hub or node above, if not where the study file says. `note` is for the ledger, such as
        who consented.
        """
        rule = rule_of(self.study)
        if isinstance(rule, ByClock):
            # Before anything is charged or reserved.
            require_sized(source)
        with self.entered(note) as entered:
            durable, start = self._durable(entered)
            if not entered.fresh:
                self.on_event(Event("resumed", self.place.name, f"from slot {start.slot + 1} on"))
            if not durable.over:
                ends = None
                if isinstance(rule, ByClock):
                    ends = WatchedEnds(source.source, self._notes, rule, slot=start.slot)
                # Of a device all rows of a slot count as one.
                spec = self.parties.spec
                several = spec.person_slots > 1 and not spec.one_person_per_site
                follower = Follower(source, rule, start=start, ends=ends, several=several)
                await self._run_protocol(durable, follower, ends, address)
            # This comes last: a site that stops before it can be started again and continues.
            self.ledger.finish(self.study.digest)
            self._notes.unlink(missing_ok=True)

    @property
    def _notes(self) -> Path:
        """Where the ends of slots by the clock are noted."""
        ledger = self.ledger.path
        return ledger.with_name(f"{ledger.name}.{self.study.digest[:16]}.ends")

    def _durable(self, entered: StudyRecord) -> tuple[DurableSlotSite, SlotStart]:
        spec, name, masked = self.parties.spec, self.place.name, self.parties.masked
        # The account of a rehearsal protects no one, but its ledger must still know its slots.
        at_site = spec.trust != "hub" and spec.budget is not None
        budget = spec.budget if masked is None else masked.lattice.gaussian
        before = StreamCheckpoint.read(entered.steps, budget if at_site else None, spec.unit)
        whole = None
        if spec.budget is not None and not at_site and self.account.private:
            whole = Charge("the whole study: the hub adds the noise", spec.budget.mu)
        parts = StoredParts(self.ledger, self.study.digest, masked=masked is not None)
        party: SlotMember | MaskedSlotMember
        if masked is None:
            party = self.parties.member(name, ledger=before.ledger, stored=parts)
        else:
            party = self.parties.masked_member(
                name, identity=self.keys.identity, secret=entered.secret, ledger=before.ledger, stored=parts
            )
        durable = DurableSlotSite(
            party,
            self.ledger,
            entered,
            parts=parts,
            ledger=lambda: self.parties.ledgers.get(name),
            study=self.study.digest,
            above=self.above,
            window=spec.max_lateness,
            limits=self.limits,
            whole=whole,
            questions=0 if masked is None else masked.most_messages,
            clock=isinstance(rule_of(self.study), ByClock),
            on_event=self.on_event,
        )
        return durable, SlotStart.from_text(before.resume_offset) if before.resume_offset else SlotStart()

    async def _run_protocol(
        self, durable: DurableSlotSite, follower: Follower, ends: WatchedEnds | None, address: str | None
    ) -> None:
        # Closed last: until its thread has ended, the party may still read what was noted.
        with ExitStack() as watching:
            async with self.connected(durable, address=address) as runner:
                self._following = durable, follower
                tasks = [
                    # First, because the others may fail once it has given the study up.
                    asyncio.ensure_future(self._answer_when_due(runner, durable, ends)),
                    asyncio.ensure_future(self._follow(runner, durable, follower, ends, watching)),
                    asyncio.ensure_future(runner.run(lambda: durable.over)),
                ]
                try:
                    # The end comes from above. A follower that fails ends the site, and its slots stay as they are.
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                    for task in tasks:
                        if task.done():
                            task.result()
                    await runner.thank(self.above)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    async def on_joined(self, runner: Runner, name: str) -> None:
        """The party above has this very study. Whatever was said before may be forgotten there."""
        await super().on_joined(runner, name)
        self._met.set()
        assert self._following is not None
        await self._tell(runner, *self._following)

    async def _follow(
        self, runner: Runner, durable: DurableSlotSite, follower: Follower, ends: WatchedEnds | None, watching: ExitStack
    ) -> None:
        """Fill one slot after the other, until all are closed or the study is over."""
        slots = _Slots(self, durable, follower)
        # Nothing is charged before a hub is there that has this very study: another file would cost a budget for nothing. With
        # notes there was one. Which slots have an end must not depend on whether the rows of one were added up before a stop.
        if durable.party.closed < 0 and (ends is None or not ends.begun):
            await self._met.wait()
        if ends is not None:
            watching.enter_context(ends)
            self._since = Instant.now().wall
        while not follower.over and not durable.over:
            if slots.are_ahead or not await runner.do(slots.step):
                await asyncio.sleep(_LOOK)
            if slots.have_moved:
                # The hub may have asked for it already.
                slots.have_moved = False
                await self._tell(runner, durable, follower)
                if ends is None:
                    await runner.act(durable.held)
        await self._end(runner, durable, follower)

    async def _answer_when_due(self, runner: Runner, durable: DurableSlotSite, ends: WatchedEnds | None) -> None:
        """By the clock: answer each question when its slot is due. A site that is not done by then gives the study up."""
        rule, delay = rule_of(self.study), self.parties.spec.delay
        if ends is None or delay is None or not isinstance(rule, ByClock):
            return
        while not durable.over:
            slot, since, before = durable.awaited, self._since, Instant.now().wall
            left = _SHORT
            if slot is not None and since is not None:
                left = max(rule.start + rule.seconds * (slot + 1), since) + delay - before
            if left > 0:
                # In short steps: the hub may ask for another slot, and a clock may be set right.
                await asyncio.sleep(min(left, _SHORT))
                now = Instant.now().wall
                if since is not None and now - before > _STOOD_STILL:
                    # As after a restart: no rows could be added up.
                    self._since = now
            else:
                await runner.act(lambda: self._in_time(durable, ends))

    def _in_time(self, durable: DurableSlotSite, ends: WatchedEnds) -> list[Outgoing]:
        """The answer to a question whose slot is due. Where there is work left on that slot, the site gives the study up."""
        slot = durable.awaited
        if slot is not None and slot > durable.party.closed and ends.has(slot):
            self.ledger.abandon(self.study.digest)
            self._notes.unlink(missing_ok=True)
            raise ProtocolError(
                f"the rows of slot {slot + 1} were not added up within {self.parties.spec.delay:g} seconds of its end. This "
                "site takes no further part in the study, so that others cannot tell from its absences how many rows it "
                "has. What was charged stays charged. For the next study, choose a longer --slot-delay"
            )
        return durable.held()

    async def _tell(self, runner: Runner, durable: DurableSlotSite, follower: Follower) -> None:
        """Say how far the stream is, where no clock says it."""
        if isinstance(follower.rule, ByCount) and not durable.over:
            ended = follower.over and follower.start.slot < follower.rule.horizon
            await runner.note(progress_note(follower.start.slot, ended=ended), self.above)

    async def _end(self, runner: Runner, durable: DurableSlotSite, follower: Follower) -> None:
        """The source has no more rows for this study: say so, and answer for what is closed until the hub ends."""
        await runner.do(durable.end)
        await self._tell(runner, durable, follower)
        if not isinstance(follower.rule, ByCount):
            return
        await runner.act(durable.held)
        if follower.start.slot < follower.rule.horizon and not durable.over:
            # Rows that came for this slot count nowhere: their number decides that it is not closed.
            text = (
                f"{follower.source.source} has ended, so slot {follower.start.slot + 1} cannot be filled: its rows are in no "
                "slot. Slots that are closed are still answered for"
            )
            self.on_event(Event("waiting", self.above, text))


@final
class _Slots:
    """The slots of a site, filled and closed with the rows that `follower` finds. Changes in place, on the party's thread."""

    def __init__(self, agent: SlotSiteAgent, durable: DurableSlotSite, follower: Follower) -> None:
        self._agent, self._durable, self._follower = agent, durable, follower
        self._task, parties = agent.parties.task, agent.parties
        self._filled = self._task.open()
        self._ahead = parties.spec.max_lateness + 1
        # Fewer rows at a time where they are wide: their text takes several times their memory.
        self._most_rows = min(_MOST_ROWS, max(1, _NUMBERS // parties.spec.dim))
        # A slot was closed or left out since somebody last unset this.
        self.have_moved = False

    @property
    def are_ahead(self) -> bool:
        """Without a clock a site reads no further ahead than the hub may ask: its slots wait in the file."""
        newest = self._durable.party.newest
        return isinstance(self._follower.rule, ByCount) and self._follower.start.slot > newest + self._ahead

    def step(self) -> bool:
        """Read some rows, or close a slot; False if there is nothing for now."""
        party, before = self._durable.party, self._follower.start.slot
        if self._follower.next > party.closed + 1:
            # Said at once, however many rows wait.
            party.skip(self._follower.next)
            self.have_moved = True
        match self._follower.poll(Instant.now(), max_rows=self._most_rows):
            case None:
                return False
            case Left(then=then):
                self._filled = self._task.open()
                party.skip(then.slot)
                self._say(
                    "waiting",
                    f"rows from before slot {then.slot + 1} are in no slot: the end of one was not noted here, and a person may "
                    "have several of them",
                )
            case Closed(slot=slot, then=then):
                if slot > before:
                    span = f"{before + 1} to {slot}" if slot > before + 1 else f"{slot}"
                    self._say("waiting", f"skipped, because its end was not noted here: slot {span}")
                self._durable.close(slot, self._filled, then=then.to_text())
                # A new slot is opened after the commit. If that fails, the site ends and nothing is half counted.
                self._filled = self._task.open()
                self._say("said", f"slot {slot + 1} is closed and charged")
            case FollowedRows(rows=rows):
                self._filled.add(rows)
                return True
            case event:
                assert_never(event)
        self.have_moved = True
        return True

    def _say(self, what: Literal["waiting", "said"], text: str) -> None:
        self._agent.on_event(Event(what, self._agent.above, text))
