"""How far a source reaches at the end of each slot: noted by a process of its own, which never waits for work on rows.

Run by its path, with the standard library alone, so that it is small and starts at once. It sleeps, looks at sizes and writes
them down. It reads no row. It ends when its standard input does, and that ends with the site.
"""

import json
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Sequence

# Seconds between two looks at the clocks.
_LOOK = 1.0
# How it ends if the clock on the wall was set.
JUMPED = 3


def instant() -> tuple[float, float]:
    """The clock on the wall, in seconds since 1970, and one that cannot be set."""
    # The plain steady clock of Linux stands still while a device sleeps, which would look like a jump.
    steady = getattr(time, "CLOCK_BOOTTIME", None)
    return time.time(), time.monotonic() if steady is None else time.clock_gettime(steady)


def is_followed(name: str) -> bool:
    """Whether a file of a folder is read."""
    return name.lower().endswith(".csv") and name[:1] not in "._"


def reach(path: str, first: str = "") -> list[tuple[str, int]]:
    """The size of a file, under no name; of a folder the names and sizes of its files from `first` on, in their order."""
    # Opened and not only looked at: a file of another machine then says the size that it has now.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        state = os.fstat(handle)
        if not stat.S_ISDIR(state.st_mode):
            return [("", state.st_size)]
        with os.scandir(handle) as entries:
            followed = (entry for entry in entries if is_followed(entry.name) and entry.name >= first)
            return sorted((entry.name, entry.stat().st_size) for entry in followed if entry.is_file())
    finally:
        os.close(handle)


def watch(path: str, notes: str, *, start: float, seconds: float, horizon: int, slot: int, last: tuple[str, int] | None) -> float:
    """Note the ends of the slots from `slot` on that are still to come. Returns how far the clock was set, if it was.

    The last note ends with the file `last`, a name and a size.
    """
    handle = os.open(notes, os.O_WRONLY | os.O_APPEND)
    before = instant()
    slot = max(slot, int((before[0] - start) // seconds))
    while slot < horizon:
        end = start + seconds * (slot + 1)
        while True:
            now = instant()
            ahead = (now[0] - before[0]) - (now[1] - before[1])
            # Set by more than half a slot, the clock would end slots at other times than everywhere else.
            if abs(ahead) > seconds / 2:
                return ahead
            before = now
            if now[0] >= end:
                break
            if select.select([sys.stdin], [], [], min(end - now[0], _LOOK))[0]:
                return 0.0
        # After a sleep of the device the ends of several slots have passed. How far the source reached is known of the last.
        slot = max(slot, int((now[0] - start) // seconds) - 1)
        try:
            files = reach(path, last[0] if last else "")
        except OSError:
            files = None
        # A source that is gone for a moment, or shorter, is being replaced. It has no size, and the slot is skipped.
        grown = last is None or (files and files[0][0] == last[0] and files[0][1] >= last[1])
        if files is not None and grown and slot < horizon:
            _write(handle, note(slot, now[0], files))
            last = files[-1] if files else last
        slot += 1
    return 0.0


def note(slot: int, wall: float, files: Sequence[tuple[str, int]]) -> bytes:
    """The line that says how far a source reached at the end of a slot."""
    return json.dumps({"slot": slot, "wall": wall, "files": files}).encode() + b"\n"


def _write(handle: int, line: bytes) -> None:
    size = os.fstat(handle).st_size
    try:
        whole = os.write(handle, line) == len(line)
    except OSError:
        whole = False
    if not whole:
        # A full disk: no half of a note may stay. The slot is skipped.
        os.ftruncate(handle, size)
        return
    # Beside the next look: a slow disk, busy with rows, must not delay it. Who reads the note waits for the disk, too.
    threading.Thread(target=os.fsync, args=(handle,), daemon=True).start()


if __name__ == "__main__":
    jump = watch(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
    if jump:
        print(jump, flush=True)
        sys.exit(JUMPED)
