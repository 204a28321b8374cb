"""`WatchedEnds`: the ends of slots by the clock, noted by a process of its own and kept in a file.

A note is on disk before a row is counted by it, so a restart finds the same ends. Which slots have one depends on when the site
ran, and on nothing else: those that ended while it was away are skipped.
"""

import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Final, final

from eigenveil.data.archive import whole_file
from eigenveil.data.follow import watcher
from eigenveil.data.follow.slots import ByClock, SlotEnd
from eigenveil.errors import ProtocolError

__all__ = ["WatchedEnds"]

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
        now, _ = watcher.instant()
        if last is not None:
            # Only the way back can be noticed: a device may have been away for long.
            self._rule.require_steady(min(now - last.wall, 0.0))
        # From the beginning on, where the first slot begins is noted, too.
        slot = self._slot or -1
        slot = slot if last is None else max(slot, last.slot + 1)
        self.first = max(self._slot, slot, self._rule.slot_at(now))
        rule = {"start": self._rule.start, "seconds": self._rule.seconds, "horizon": self._rule.horizon}
        asked = json.dumps(rule | {"slot": slot, "last": last.reach[-1] if last is not None and last.reach else None})
        self._handle = os.open(self._notes, os.O_RDONLY | os.O_CLOEXEC)
        self._process = subprocess.Popen(
            # Isolated, and without what is installed: it needs the standard library alone.
            [sys.executable, "-I", "-S", watcher.__file__, str(self._source), str(self._notes), asked],
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
