"""Streams over many sites: a slot is a round, the hub pulls, and no party waits for another.

`SlotHub` asks for slots and folds what comes, `SlotMember` answers for each slot as often as it is asked. Nodes of a tree are
those of `protocols.star`. Under masks, a site is a `MaskedSlotMember`. `estimators.slots` makes these parties, and `network`
runs them. It may import the other protocols, except `limits`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.linalg import Array
from eigenveil.protocols.messages import Done, Message
from eigenveil.protocols.slot_site import MaskedSlotMember, SlotMember
from eigenveil.protocols.star.rounds import Asker, Exchange, Gathering, NewExchange, Terms, reachable
from eigenveil.tasks.base import Question
from eigenveil.tasks.slots import SlotState, SlotTask

__all__ = ["HubSnapshot", "MaskedSlotMember", "SlotHub", "SlotMember", "SlotRound"]

# So many of the last settled slots say how many sites to expect.
_RECENT: Final = 8
# An unsettled slot is scaled up by no more than this: one early site must not stand for all the others.
_LARGEST: Final = 2.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRound:
    """What happened in one round, in public terms."""

    number: int
    slot: int  # The slot that was asked for.
    answered: tuple[str, ...]
    missing: tuple[str, ...]  # The sites that are still missing from the slot.
    again: bool = False  # It was asked for before.
    skipped: str = ""  # Why nothing of the round was counted, if so.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HubSnapshot:
    """A hub between two slots: all that it needs to continue."""

    round: int
    newest: int
    counted: Mapping[int, tuple[str, ...]]  # The sites in each slot.
    folds: Mapping[int, int]  # How often each slot was folded.
    state: SlotState  # All slots but those that are kept apart.
    unsettled: Mapping[int, SlotState]  # The slots that are kept apart.
    horizon: int  # How many slots there are.


@final
class SlotHub(Asker):
    """Folds the slots of the sites `below` into one state. Changes in place.

    Its mechanism is made by `mechanism` for each slot and how often that was folded before. A round over so many sites has
    the noise of `noise(sites)` releases. Stragglers are asked again until `window` more slots have been opened. With `clock`,
    a slot passes whether anyone has closed it or not; without, the hub continues when a site has. Under masks, `exchanges`
    makes the rounds, a slot is asked for once, and `back` is called with a site that can be reached again. The newest `apart`
    slots of the window are kept apart and scaled up.
    """

    def __init__(
        self,
        task: SlotTask[Any],
        below: Mapping[str, tuple[str, ...]],
        mechanism: Callable[[int, int], Mechanism],
        *,
        terms: Terms,
        window: int,
        apart: int = 0,
        clock: bool = True,
        noise: Callable[[int], float] = float,
        name: str = "hub",
        watch: Callable[[SlotRound], None] | None = None,
        exchanges: NewExchange | None = None,
        back: Callable[[str], bool] | None = None,
        survivors: int = 1,
        answer: Callable[[SlotState], tuple[Array, ...]] = lambda state: (),
    ) -> None:
        require(len(below) > 0, "a hub needs at least one site")
        require(window >= 0, f"window must not be negative, got {window}")
        super().__init__(name, below, terms)
        self._task, self._mechanism = task, mechanism
        self._window, self._clock, self._noise = window, clock, noise
        self._watch, self._exchanges, self._survivors, self._answer = watch, exchanges, survivors, answer
        self._back = back
        # How many slots there are: those of the study, or fewer if sources have ended before.
        self.horizon = task.slots
        # Of each below: how many slots it has closed, and whether its source has ended.
        self._progress: dict[str, tuple[int, bool]] = {}
        self._apart = min(apart, window)
        # What is settled, and by slot what is not.
        self._state = task.start()
        self._unsettled: dict[int, SlotState] = {}
        self._counted: dict[int, set[str]] = {}
        self._folds: dict[int, int] = {}
        # All sites of the study.
        self.sites = self._all_sites
        # The newest slot that was asked for, and the slot of the last round; -1 before the first.
        self.newest, self._slot = -1, -1
        # What is left to ask in this tick, and who has been silent in it.
        self._queue: list[int] = []
        self._silent: set[str] = set()
        self.rounds: list[SlotRound] = []
        self.result: SlotState | None = None

    @property
    def state(self) -> SlotState:
        """What is known so far, with unsettled slots scaled up. Released."""
        slots = sorted(self._unsettled)
        if not slots:
            return self._state
        states = [self._state, *(self._unsettled[slot] for slot in slots)]
        return self._task.joined(states, [1.0, *map(self._scaled, slots)])

    @property
    def last(self) -> int:
        """The newest slot that there is; -1 before the first. After the last slot a hub continues to ask those who were late."""
        return min(self.newest, self.horizon - 1)

    @property
    def skipped(self) -> tuple[int, ...]:
        """Under masks, the slots of which nothing could be unmasked, and never will be."""
        if self._exchanges is None:
            return ()
        n_asked = self.last + (1 if self.idle else 0)
        return tuple(slot for slot in range(n_asked) if not self._counted.get(slot))

    def heard(self, name: str, closed: int, *, ended: bool) -> None:
        """Take that so many slots are closed at a site or behind a node, and whether there will be no more."""
        if name not in self._below:
            raise PeerError(name, "is not part of this study")
        if not 0 <= closed <= self._task.slots:
            raise PeerError(name, f"says that it has closed {closed} of {self._task.slots} slots")
        # A site cannot take back what it has closed, or the hub would wait for a slot that it was promised.
        self._progress[name] = (max(closed, self._progress.get(name, (0, False))[0]), ended)

    def left(self, name: str) -> None:
        """Count no slots of a site that is away: it says them again when it is back. That its source has ended stays."""
        if not self._progress.get(name, (0, False))[1]:
            self._progress.pop(name, None)

    @property
    def due(self) -> bool:
        """Whether a tick makes sense now: always, but under masks without a clock only if enough sites have closed the slot."""
        if self._exchanges is None or self._clock or self.newest + 1 >= self.horizon:
            return True
        progress = (self._progress.get(name, (0, False)) for name in self._below)
        return sum(closed > self.newest + 1 for closed, _ in progress) >= self._survivors

    def shorten(self) -> bool:
        """End the study before a slot that too few sites can fill. Whether anything has changed."""
        if self._clock or self._now is not None:
            return False
        # The most slots that each below may close, the most first: the last one that is needed decides.
        progress = (self._progress.get(name, (0, False)) for name in self._below)
        max_slots = sorted((closed if ended else self._task.slots for closed, ended in progress), reverse=True)
        # Slots that were asked for stay, whatever sites say of them now.
        horizon = min(self.horizon, max(max_slots[min(self._survivors, len(max_slots)) - 1], self.newest + 1))
        changed, self.horizon = horizon < self.horizon, horizon
        return changed

    @property
    def idle(self) -> bool:
        """Whether no round is open."""
        return self._now is None

    def counted(self, slot: int) -> tuple[str, ...]:
        """The sites that are in a slot, in their order."""
        return tuple(site for site in self.sites if site in self._counted.get(slot, ()))

    def missing(self, slot: int) -> tuple[str, ...]:
        return tuple(site for site in self.sites if site not in self._counted.get(slot, ()))

    def tick(self) -> list[Message]:
        """Open the next slot, whose time has come; after the last one and its window, say the result."""
        if self._now is not None:
            raise ProtocolError(f"slot {self._slot + 1} is still being asked for")
        if self.result is not None:
            return []
        last = self.horizon - 1
        # Without a clock it is not known that a slot has passed until one site says so. Under masks `due` has seen to that.
        passed = self.newest < 0 or self.newest > last or self._clock or self._exchanges is not None
        if passed or self._counted.get(self.newest):
            self.newest += 1
        if self.newest > self._last_tick:
            self.result = self.state
            return self._announce_result()
        older = range(max(0, self.newest - self._window), min(self.newest, last + 1))
        # Under masks a late part is lost: masks of a round serve one list of survivors.
        again = [] if self._exchanges is not None else [slot for slot in older if self.missing(slot)]
        # The newest slot goes first: whoever is silent for it is not asked for older ones in this tick.
        self._queue = ([self.newest] if self.newest <= last else []) + again
        self._silent = set()
        return self._onward()

    def receive(self, message: Message) -> list[Message]:
        if message.sender not in self._below:
            raise PeerError(message.sender, "is not part of this study")
        if self._now is None and self._clock:
            raise PeerError(
                message.sender,
                "answered when no slot was asked for. If this continues, compare the clocks of hub and sites, or choose a longer "
                "deadline",
            )
        return self._take(message)

    @property
    def _max_retries(self) -> int:
        # Those who were late once are not waited for again: they hold up no other, and are asked at the next slot.
        return self._terms.retries if self._slot == self.newest else 0

    def on_reconnect(self, other: str) -> list[Message]:
        """The result, or what is still awaited from this one. Under masks it may be in the next exchange of keys."""
        if self._back is not None:
            self._back(other)
        return self.owed(other)

    def owed(self, other: str) -> list[Message]:
        """The result, or what is still awaited from this one."""
        return super().on_reconnect(other)

    @property
    def _done(self) -> Done | None:
        return None if self.result is None else Done(self.round, self._answer(self.result))

    def snapshot(self) -> HubSnapshot:
        """All that a hub between two slots needs to continue."""
        require(self._now is None, "a hub can be stored between two slots only")
        return HubSnapshot(
            round=self._round,
            newest=self.newest,
            counted={slot: self.counted(slot) for slot in self._counted},
            folds=dict(self._folds),
            state=self._state,
            unsettled=dict(self._unsettled),
            horizon=self.horizon,
        )

    def restore(self, snapshot: HubSnapshot) -> None:
        """Go on from a snapshot. Nothing is released or charged again."""
        # A hub that has begun would forget whom it has counted, and could count them twice.
        require(self._round < 0, "a hub that has begun cannot be restored")
        self._round, self.newest, self._state = snapshot.round, snapshot.newest, snapshot.state
        self._counted = {slot: set(sites) for slot, sites in snapshot.counted.items()}
        self._folds, self._unsettled = dict(snapshot.folds), dict(snapshot.unsettled)
        self.horizon = snapshot.horizon
        # The last tick has no slot of its own: whether it was the end follows from the number.
        if self.newest > self._last_tick:
            self.result = self.state

    @property
    def _last_tick(self) -> int:
        """The number of the last tick that asks for anything: under masks nothing is asked for again."""
        return self.horizon - 1 + (0 if self._exchanges is not None else self._window)

    def _onward(self) -> list[Message]:
        """Ask for the next slot of this tick of which anything is missing."""
        while self._queue:
            slot = self._queue.pop(0)
            gone = self._counted.get(slot, set()) | self._silent
            recipients = reachable(self._below, gone)
            if recipients:
                opened = self._open(slot, recipients, gone)
                if opened:
                    return opened
        self._now = None
        self._settle()
        return []

    def _open(self, slot: int, recipients: list[str], gone: set[str]) -> list[Message]:
        self._next_wait()
        self._round, self._slot = self._round + 1, slot
        question = Question(slot)
        if self._exchanges is None:
            self._now = Gathering(self._task, self._round, question, recipients, below=self._below, gone=gone)
            return self._now.asks(self.name)
        try:
            self._now = self._exchanges(self._round, question, recipients, gone)
        except ProtocolError as error:
            # No keys, or no sites, are left for it. The study continues: sites may come back.
            self._note((), str(error))
            return []
        return self._now.asks(self.name)

    def _close(self, now: Exchange) -> list[Message]:
        """End a step: the next step of the round, or the next slot of this tick."""
        answered, _ = now.sites()
        if self._exchanges is not None:
            try:
                if len(answered) < self._survivors:
                    raise ProtocolError(f"{len(answered)} sites are left, and a sum needs {self._survivors}")
                if now.onward():
                    self._next_wait()
                    messages = now.asks(self.name)
                    return messages if messages else self._close(now)
            except ProtocolError as error:
                self._now = None
                self._note((), str(error))
                return self._onward()
            answered, _ = now.sites()
        else:
            # Only without masks are older slots asked for in the same tick, so only here does silence matter.
            # A node that answers speaks for its sites.
            for message in now.asks(self.name, again=True):
                self._silent.update(self._below[message.receiver])
        self._fold(now, answered)
        self._now = None
        return self._onward()

    def _fold(self, now: Exchange, answered: tuple[str, ...]) -> None:
        slot, total = self._slot, now.total()
        if total is not None:
            often = self._folds.get(slot, 0)
            # What was settled cannot be taken apart again, so late parts of it are added to the rest, at their age.
            apart = slot in self._unsettled or (often == 0 and slot > self.newest - self._apart)
            # The charge comes first: where it is refused, no site is counted.
            folded = self._task.fold(
                self._unsettled.get(slot, self._task.start()) if apart else self._state,
                slot,
                total,
                self._mechanism(slot, often),
                parts=len(answered),
                noise=self._noise(len(answered)),
                # Later folds of a slot are about other sites, so the ledger counts the costliest and not their sum.
                group=f"{often}",
            )
            if apart:
                self._unsettled[slot] = folded
            else:
                self._state = folded
            self._folds[slot] = often + 1
            self._counted.setdefault(slot, set()).update(answered)
        self._note(answered)

    def _settle(self) -> None:
        """Add what is no longer kept apart to the rest, as it is: from here on a slot counts with those who are in it."""
        for slot in sorted(slot for slot in self._unsettled if slot <= self.newest - self._apart):
            self._state = self._task.joined([self._state, self._unsettled.pop(slot)], [1.0, 1.0])

    def _scaled(self, slot: int) -> float:
        """How often an unsettled slot counts: as many times as it takes to have the sites that recent slots had when they ended.

        Noise is scaled with it. In a slot with c of n expected sites it has (n / c)^2 times its variance, n^2 / c in place of
        n. With noise at sites that is at most twice the variance of a whole slot, because the factor is at most 2.
        """
        # The last slots whose window has passed. Before there are any, there is nothing that a later one could weigh too little
        # against.
        end = min(self.newest - self._window, self.horizon - 1) + 1
        ended = range(max(0, end - _RECENT), end)
        if not ended:
            return 1.0
        expected = sum(len(self._counted.get(past_slot, ())) for past_slot in ended) / len(ended)
        return min(max(expected / len(self._counted[slot]), 1.0), _LARGEST)

    def _note(self, answered: tuple[str, ...], skipped: str = "") -> None:
        self.rounds.append(
            SlotRound(
                number=self._round,
                slot=self._slot,
                answered=answered,
                missing=self.missing(self._slot),
                again=self._slot < self.newest,
                skipped=skipped,
            )
        )
        if self._watch is not None:
            self._watch(self.rounds[-1])
