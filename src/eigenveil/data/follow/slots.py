"""Rows slot by slot: a slot is closed after so many rows, or at a time that everybody knows beforehand.

`Follower` is asked again and again, with the time as an argument, and answers with rows of the open slot, or with its end. A
closed slot comes with a `SlotStart`. Store it together with what was computed from the slot, and a restart goes on from there.
Rows of the slot that was open are then read again, each once.
"""

import json
import math
import time
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

from eigenveil.data.follow.sources import Followed, Offset
from eigenveil.errors import ClockJumped, require
from eigenveil.linalg import Array

__all__ = ["ByClock", "ByCount", "Closed", "FollowedRows", "Follower", "Instant", "SlotStart"]

# A clock may be corrected by this part of a slot. Further than that, rows would end up in slots they do not belong to.
_TOLERATED: Final = 0.5


@final
@dataclass(frozen=True, slots=True)
class Instant:
    """A moment: by the clock on the wall, in seconds since 1970, and by one that nobody can set."""

    wall: float
    steady: float

    @classmethod
    def now(cls) -> "Instant":
        """This moment. Nothing else here looks at a clock."""
        # The plain steady clock of Linux stands still while a device sleeps, which would look like a jump.
        steady = getattr(time, "CLOCK_BOOTTIME", None)
        return cls(time.time(), time.monotonic() if steady is None else time.clock_gettime(steady))

    def ahead_of(self, before: "Instant") -> float:
        """How many seconds the clock on the wall was set ahead between the two; negative if it was set back.

        >>> Instant(160.0, 20.0).ahead_of(Instant(100.0, 10.0))
        50.0
        """
        return (self.wall - before.wall) - (self.steady - before.steady)


@final
@dataclass(frozen=True, slots=True)
class ByCount:
    """Slots of `rows` rows each, and as many as `horizon` says."""

    rows: int
    horizon: int

    def __post_init__(self) -> None:
        require(self.rows >= 1, f"a slot must have at least 1 row, got {self.rows}")
        require(self.horizon >= 1, f"there must be at least 1 slot, got {self.horizon}")


@final
@dataclass(frozen=True, slots=True)
class ByClock:
    """Slots of `seconds` each, the first from `start` on, in seconds since 1970. A row is in the slot in which it is read."""

    start: float
    seconds: float
    horizon: int

    def __post_init__(self) -> None:
        require(math.isfinite(self.start), f"slots must start at a finite time, got {self.start}")
        require(0 < self.seconds < math.inf, f"a slot must last a positive number of seconds, got {self.seconds}")
        require(self.horizon >= 1, f"there must be at least 1 slot, got {self.horizon}")

    def slot_at(self, wall: float) -> int:
        """The slot at this time; negative before the first, the horizon after the last.

        >>> rule = ByClock(start=100.0, seconds=10.0, horizon=3)
        >>> [rule.slot_at(wall) for wall in (99.0, 100.0, 119.9, 1000.0)]
        [-1, 0, 1, 3]
        """
        return min(math.floor((wall - self.start) / self.seconds), self.horizon)

    def require_steady(self, ahead: float) -> None:
        """Refuse a clock that was set so many seconds ahead, or back if that is negative."""
        tolerated = self.seconds * _TOLERATED
        if ahead < -tolerated:
            raise ClockJumped(f"the clock went back by {-ahead:.0f} seconds. Set it right, and the slots go on")
        if ahead > tolerated:
            raise ClockJumped(f"the clock jumped ahead by {ahead:.0f} seconds. Set it right, and the slots go on")


@final
@dataclass(frozen=True, slots=True)
class SlotStart:
    """Where a slot starts: the slot that is open, the offset of its first row, and the time when the last was closed."""

    slot: int = 0
    offset: Offset = field(default_factory=Offset)
    wall: float = -math.inf

    def __post_init__(self) -> None:
        # A truth value is an int to Python, and no slot.
        known = type(self.slot) is int and isinstance(self.wall, float) and not math.isnan(self.wall)
        require(known and self.slot >= 0, "this is not where a slot of a followed stream starts")

    def to_text(self) -> str:
        """One line of text, for whoever stores it. It has counts and checksums, and no number of a row."""
        # JSON has no infinity, so a stream that has closed no slot yet is stored without a time.
        wall = None if math.isinf(self.wall) else self.wall
        return json.dumps({"slot": self.slot, "offset": self.offset.to_text(), "wall": wall})

    @classmethod
    def from_text(cls, text: str) -> "SlotStart":
        """One that was stored.

        >>> SlotStart.from_text(SlotStart(3, Offset("a.csv", byte=12, rows=1)).to_text()).slot
        3
        """
        try:
            found = json.loads(text)
            offset = Offset.from_text(found["offset"])
            return cls(found["slot"], offset, -math.inf if found["wall"] is None else found["wall"])
        except (KeyError, TypeError, ValueError):
            raise ValueError("this is not where a slot of a followed stream starts") from None


@final
@dataclass(frozen=True, slots=True, eq=False)
class FollowedRows:
    """Rows of the open slot, (n, d). Raw data."""

    slot: int
    rows: Array


@final
@dataclass(frozen=True, slots=True)
class Closed:
    """A slot has ended, with `count` rows in it. Whoever has used them stores `then`, where the next slot begins."""

    slot: int
    count: int
    then: SlotStart


SlotEvent: TypeAlias = FollowedRows | Closed


@final
class Follower:
    """Rows of a source and the ends of its slots, in order. Changes in place: it reads on, and counts the rows of the open slot.

    A source that has changed and a clock that jumps are refused, and the follower stays as it was.
    """

    def __init__(self, source: Followed, rule: ByCount | ByClock, *, start: SlotStart | None = None) -> None:
        self.source, self.rule = source, rule
        # Where the open slot began.
        self.start = SlotStart() if start is None else start
        self._offset, self._count = self.start.offset, 0
        self._last: Instant | None = None

    @property
    def over(self) -> bool:
        """Whether all slots are closed, or no more rows can fill the one that is open."""
        if self.start.slot >= self.rule.horizon or isinstance(self.rule, ByClock):
            return self.start.slot >= self.rule.horizon
        # A slot that was full when its source ended is still to be closed.
        return self.source.ended and self._count < self.rule.rows

    def poll(self, now: Instant, *, most: int = 200) -> SlotEvent | None:
        """The next at most `most` rows of the open slot, or its end. None if there is nothing for now."""
        slot = self._slot(now)
        if slot > self.start.slot:
            return self._close(slot, now)
        if slot < 0 or self.start.slot >= self.rule.horizon:
            return None
        # By count, a read stops at the end of the slot, so that every row belongs to the slot that is open.
        wanted = most if isinstance(self.rule, ByClock) else min(most, self.rule.rows - self._count)
        rows, offset = self.source.read(self._offset, most=wanted)
        # Only now, when nothing can be refused any more.
        self._offset, self._count, self._last = offset, self._count + len(rows), now
        return FollowedRows(self.start.slot, rows) if len(rows) else None

    def _slot(self, now: Instant) -> int:
        """The slot that is open at this time. A slot that was closed is never opened again."""
        if isinstance(self.rule, ByCount):
            return min(self.start.slot + (self._count == self.rule.rows), self.rule.horizon)
        # After a restart only the time on the wall is known, and a device may have been away for long.
        away = min(now.wall - self.start.wall, 0.0)
        self.rule.require_steady(away if self._last is None else now.ahead_of(self._last))
        slot = self.rule.slot_at(now.wall)
        # A clock that is set back must not open a closed slot again, and before the first slot nothing is read.
        return slot if slot < 0 and self.start.slot == 0 else max(slot, self.start.slot)

    def _close(self, slot: int, now: Instant) -> Closed:
        # Slots that passed while nobody looked are skipped: this site has nothing to say of them.
        closed = Closed(self.start.slot, self._count, SlotStart(slot, self._offset, now.wall))
        self.start, self._count, self._last = closed.then, 0, now
        return closed
