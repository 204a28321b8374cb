"""Rows slot by slot: a slot is closed after so many rows, or at a time that all sites know beforehand.

`Follower` is asked again and again, with the time as an argument, and answers with rows of the open slot, or with its end. A
closed slot comes with a `SlotStart`. Store it together with what was computed from the slot, and a restart continues from there.
Rows of the slot that was open are then read again, each once.

**By the clock, one row more or less is in one slot, and changes no other row's slot.** Proof. Let t(r) be the instant at which
the last byte of row r was in the source, and e(1) < e(2) < ... the instants at which ends of slots were noted. A row is one
line, so its text decides nothing of where another begins. Row r is read in the first slot whose end was noted after t(r): rows
are read in their order, whole ones only, up to what the source held at e(k), and all of them before slot k is closed. What is
read before e(k) was there before e(k), so it is in no earlier slot than it should be. Neither how many rows are read at a time,
nor how long that takes, nor a restart enters: the notes are on disk before rows are counted by them. Hence the slot of r depends
on t(r) and the e(k) alone. The assumption is that these are the same for all other rows with and without r, and with another r:
one row does not change when others arrive, nor when the ends are noted. For the ends a process of its own sees to that, which
never waits for work on rows (`watcher`).
"""

import json
import math
import os
import subprocess
import sys
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeAlias, final

from eigenveil.data.archive import whole_file
from eigenveil.data.follow import watcher
from eigenveil.data.follow.sources import Followed, Offset, Reach, require_sized
from eigenveil.errors import ClockJumped, ProtocolError, require
from eigenveil.linalg import Array

__all__ = [
    "ByClock",
    "ByCount",
    "Closed",
    "FollowedRows",
    "Follower",
    "Instant",
    "Left",
    "SlotEnd",
    "SlotEnds",
    "SlotStart",
    "WatchedEnds",
]

# A clock may be corrected by this part of a slot. Further than that, rows would end up in slots they do not belong to.
_TOLERATED: Final = 0.5


@final
@dataclass(frozen=True, slots=True)
class Instant:
    """A moment: by the clock on the wall, in seconds since 1970, and by one that cannot be set."""

    wall: float
    steady: float

    @classmethod
    def now(cls) -> "Instant":
        """This moment. Nothing else here looks at a clock."""
        return cls(*watcher.instant())

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
    """Slots of `seconds` each, the first from `start` on, in seconds since 1970. A row is in the slot in which it arrives.

    What arrived before the first slot is in it. Slots whose end was not noted are skipped, and their rows are in the next one.
    """

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
        if abs(ahead) > self.seconds * _TOLERATED:
            way = "jumped ahead" if ahead > 0 else "went back"
            raise ClockJumped(f"the clock {way} by {abs(ahead):.0f} seconds. Set it right, and the slots continue")


@final
@dataclass(frozen=True, slots=True)
class SlotStart:
    """Where a slot starts: the slot that is open, the offset of its first row, and the time when the last was closed."""

    slot: int = 0
    offset: Offset = field(default_factory=Offset)
    wall: float = -math.inf

    def __post_init__(self) -> None:
        # A truth value is an int to Python, and no slot.
        is_valid = type(self.slot) is int and isinstance(self.wall, float) and not math.isnan(self.wall)
        require(is_valid and self.slot >= 0, "this is not where a slot of a followed stream starts")

    def to_text(self) -> str:
        """One line of text, to be stored. It has counts and checksums, and no number of a row."""
        # JSON has no infinity, so a stream that has closed no slot yet is stored without a time.
        wall = None if math.isinf(self.wall) else self.wall
        return json.dumps({"slot": self.slot, "offset": self.offset.to_text(), "wall": wall})

    @classmethod
    def from_text(cls, text: str) -> "SlotStart":
        """One that was stored.

        >>> SlotStart.from_text(SlotStart(3, Offset(name="a.csv", byte=12, rows=1)).to_text()).slot
        3
        """
        try:
            stored = json.loads(text)
            offset = Offset.from_text(stored["offset"])
            return cls(stored["slot"], offset, -math.inf if stored["wall"] is None else stored["wall"])
        except (KeyError, TypeError, ValueError):
            raise ValueError("this is not where a slot of a followed stream starts") from None


@final
@dataclass(frozen=True, slots=True)
class SlotEnd:
    """The end of a `slot`: when it was noted, by the clock on the wall, and how far the source reached then.

    Slot -1 ends where the first slot begins.
    """

    slot: int
    wall: float
    reach: Reach

    @classmethod
    def from_line(cls, line: bytes) -> "SlotEnd":
        """One that was noted; ValueError if it is none.

        >>> SlotEnd.from_line(b'{"slot": 3, "wall": 12.5, "files": [["", 80]]}').reach
        (('', 80),)
        """
        try:
            slot, wall, files = map(json.loads(line).__getitem__, ("slot", "wall", "files"))
            reach = tuple((name, size) for name, size in files)
        except (KeyError, TypeError):
            raise ValueError("this is not the end of a slot") from None
        is_valid = all(isinstance(name, str) and type(size) is int and size >= 0 for name, size in reach)
        is_valid = is_valid and type(slot) is int and slot >= -1 and isinstance(wall, float)
        require(is_valid, "this is not the end of a slot")
        return cls(slot, wall, reach)

    def to_line(self) -> bytes:
        """The same, as it is noted."""
        return watcher.note(self.slot, self.wall, self.reach)


class SlotEnds(Protocol):
    """The ends of slots by the clock, as they are noted, in their order."""

    def following(self, slot: int) -> SlotEnd | None:
        """The first end of this slot or a later one; None if none is noted yet. Earlier ones are not asked for again."""

    @property
    def first(self) -> int:
        """The first slot whose end was still to come when the noting began."""

    @property
    def over(self) -> bool:
        """Whether no more ends will be noted."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class FollowedRows:
    """Rows of the slot that is closed next, (n, d). Raw data."""

    rows: Array


@final
@dataclass(frozen=True, slots=True)
class Closed:
    """A slot has ended, with `count` rows in it. Once they are used, store `then`, where the next slot begins."""

    slot: int
    count: int
    then: SlotStart


@final
@dataclass(frozen=True, slots=True)
class Left:
    """Rows that came in more than one slot, of which only the last end was noted. They are in no slot, and nothing is stored."""

    then: SlotStart


SlotEvent: TypeAlias = FollowedRows | Closed | Left


@final
class Follower:
    """Rows of a source and the ends of its slots, in order. Changes in place: it reads on, and counts the rows of the open slot.

    Slots of a clock end where `ends` says. If a person has rows in `several` slots, a slot is closed only where both of its ends
    were noted: together, slots could have several rows of a person. A source that has changed and a clock that jumps are refused,
    and the follower stays as it was.
    """

    def __init__(
        self,
        source: Followed,
        rule: ByCount | ByClock,
        *,
        start: SlotStart | None = None,
        ends: SlotEnds | None = None,
        several: bool = False,
    ) -> None:
        self.source, self.rule = source, rule
        # Where the open slot began.
        self.start = SlotStart() if start is None else start
        self._offset, self._count = self.start.offset, 0
        self._last: Instant | None = None
        require((ends is not None) == isinstance(rule, ByClock), "the ends of slots must be noted by the clock, and only then")
        if ends is not None:
            require_sized(source)
        self._ends, self._several = ends, several
        # Whether the open slot began where an end was noted. What was there before the first slot has none.
        self._whole = not several or self.start.slot > 0
        # How far the source reached at the last look.
        self._reach: Reach = ()

    @property
    def over(self) -> bool:
        """Whether all slots are closed, or no more rows can fill the one that is open."""
        if self.start.slot >= self.rule.horizon:
            return True
        if self._ends is not None:
            return self._ends.over and self._ends.following(self._wanted) is None
        # A slot that was full when its source ended is still to be closed.
        assert isinstance(self.rule, ByCount)
        return self.source.ended and self._count < self.rule.rows

    @property
    def next(self) -> int:
        """The first slot that can still be closed. Those before it are closed or skipped."""
        if self._ends is None:
            return self.start.slot
        end = self._ends.following(self._wanted)
        return max(self.start.slot, self._ends.first) if end is None else end.slot

    @property
    def _wanted(self) -> int:
        # Before the first slot there is an end, too, at which it begins.
        return self.start.slot if self._whole else self.start.slot - 1

    def poll(self, now: Instant, *, max_rows: int = 200) -> SlotEvent | None:
        """The next at most `max_rows` rows of the open slot, or its end. None if there is nothing for now.

        `now` is a moment after the last poll.
        """
        if self.start.slot >= self.rule.horizon:
            return None
        if isinstance(self.rule, ByCount):
            if self._count == self.rule.rows:
                return self._closed(self.start.slot, now.wall)
            # A read stops at the end of the slot, so that every row belongs to the slot that is open.
            return self._taken(*self.source.read(self._offset, max_rows=min(max_rows, self.rule.rows - self._count)))
        assert self._ends is not None
        # After a restart only the time on the wall is known, and a device may have been away for long.
        away = min(now.wall - self.start.wall, 0.0)
        self.rule.require_steady(away if self._last is None else now.ahead_of(self._last))
        # A clock that was set has been refused by now.
        end = self._ends.following(self._wanted)
        # What was there at the last look was there before `now`. It is in this slot if its end is still to come, and those of
        # all slots before it are known.
        ahead = self._reach if self.rule.slot_at(now.wall) == self.start.slot else ()
        until = ahead if end is None else end.reach
        # Without a bound nothing is read, but a source that has changed is refused.
        rows, offset = self.source.read(self._offset, max_rows=max_rows if until else 0, until=until or None)
        reach = self.source.reach(offset)
        # Only now, when nothing can be refused any more.
        self._last, self._reach = now, reach
        taken = self._taken(rows, offset)
        if taken is not None or end is None:
            return taken
        left = self._several and not (self._whole and end.slot == self.start.slot)
        closed = self._closed(end.slot, end.wall)
        return Left(closed.then) if left else closed

    def _taken(self, rows: Array, offset: Offset) -> FollowedRows | None:
        self._offset, self._count = offset, self._count + len(rows)
        return FollowedRows(rows) if len(rows) else None

    def _closed(self, slot: int, wall: float) -> Closed:
        closed = Closed(slot, self._count, SlotStart(slot + 1, self._offset, wall))
        self.start, self._count, self._whole = closed.then, 0, True
        return closed


# Bytes of notes that are read at a time.
_BYTES: Final = 1 << 16
# Seconds until a process that was told to end is ended.
_GOODBYE: Final = 5.0


@final
class WatchedEnds:
    """Runs the process that notes the ends of slots of a file or folder, and reads its `notes`. Changes in place.

    It is a context: the process runs inside it. `slot` is the first one that is wanted.
    """

    def __init__(self, source: Path, notes: Path, rule: ByClock, *, slot: int) -> None:
        self._source, self._notes, self._rule = source.absolute(), notes, rule
        self._slot, self.first = slot, slot
        self._process: subprocess.Popen[bytes] | None = None
        self._handle = -1
        # Bytes that were read without a line end, and ends that were not asked for yet.
        self._rest, self._ends = b"", deque[SlotEnd]()

    @property
    def begun(self) -> bool:
        """Whether anything was noted before, by this process or by one before it."""
        return self._notes.exists()

    def __enter__(self) -> "WatchedEnds":
        last = self._repaired()
        now = watcher.instant()[0]
        if last is not None:
            # Only the way back can be noticed: a device may have been away for long.
            self._rule.require_steady(min(now - last.wall, 0.0))
        # From the beginning on, where the first slot begins is noted, too.
        slot = self._slot or -1
        slot = slot if last is None else max(slot, last.slot + 1)
        self.first = max(self._slot, slot, self._rule.slot_at(now))
        before = last.reach[-1] if last is not None and last.reach else None
        instructions = json.dumps(asdict(self._rule) | {"slot": slot, "last": before})
        self._handle = os.open(self._notes, os.O_RDONLY | os.O_CLOEXEC)
        self._process = subprocess.Popen(
            # Isolated, and without what is installed: it needs the standard library alone.
            [sys.executable, "-I", "-S", watcher.__file__, str(self._source), str(self._notes), instructions],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # In a session of its own: Ctrl-C is for the site, and this ends after it.
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_GOODBYE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        os.close(self._handle)

    @property
    def over(self) -> bool:
        """Whether the last slot has ended."""
        return self._process is not None and self._process.poll() == 0

    def following(self, slot: int) -> SlotEnd | None:
        """The first end of this slot or a later one; None if none is noted yet."""
        assert self._process is not None
        # Asked first: whatever it has noted is there when it has ended.
        code = self._process.poll()
        # At once, and not when all that it has noted is used up: how long that takes depends on rows. The notes stay.
        if code == watcher.JUMPED:
            assert self._process.stdout is not None
            self._rule.require_steady(float(self._process.stdout.read()))
        if code not in (None, 0):
            raise ProtocolError("the process that notes when slots end was stopped. Start the site again")
        while True:
            while self._ends and self._ends[0].slot < slot:
                self._ends.popleft()
            if self._ends:
                return self._ends[0]
            if not self._take():
                return None

    def has(self, slot: int) -> bool:
        """Whether the end of this slot was noted, of slots that were not read to their end before."""
        while self._take():
            pass
        return any(end.slot == slot for end in self._ends)

    def _take(self) -> bool:
        """Read more notes; False if there are none."""
        data = os.read(self._handle, _BYTES)
        if data:
            # Before a row is counted by them. After a loss of power, the same rows must be in the same slots.
            os.fsync(self._handle)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._ends += map(SlotEnd.from_line, lines)
        return bool(data)

    def _repaired(self) -> SlotEnd | None:
        """Rewrite the notes without what is not needed, or was torn by a loss of power. Returns the last one."""
        last: SlotEnd | None = None
        # Its name is on disk before a row is counted by what is in it. For the owner alone: sizes tell how many rows came.
        with whole_file(self._notes) as temporary, temporary.open("wb") as new, self._notes.open("ab+") as old:
            old.seek(0)
            for line in old:
                try:
                    end = SlotEnd.from_line(line)
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                last = end if last is None or end.slot > last.slot else last
                # With where the slot that is wanted begins.
                if end.slot >= self._slot - 1:
                    new.write(line)
            # The last one is kept, also where it is not needed: it says from which file of a folder on to look.
            if last is not None and last.slot < self._slot - 1:
                new.write(last.to_line())
        return last
