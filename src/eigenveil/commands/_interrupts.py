"""Ctrl-C for `eigenveil stream`: it takes effect between two batches, or while the command waits for rows.

A release that is interrupted halfway is charged and lost, so a signal never interrupts a step. A pipe may be silent for hours,
so a signal does interrupt waiting. A second signal ends the command at once.
"""

import io
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

from eigenveil.errors import require

__all__ = ["Interrupts", "heard", "is_pipe", "open_pipe"]

_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# Seconds without a row after which the live view is drawn again, so that it shows the last rows before the silence.
_QUIET: Final = 1.0


@final
class Interrupts:
    """Whether the command was asked to stop, and whether a step was interrupted. A signal handler changes it in place."""

    def __init__(self) -> None:
        self.asked, self.torn = False, False
        self._waiting = False

    def check(self) -> None:
        """Stop here if a signal has arrived."""
        if self.asked:
            raise KeyboardInterrupt

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, a signal stops the command at once, because nothing is lost."""
        self._waiting = True
        try:
            # A signal that arrived just before must not wait for the next row.
            self.check()
            yield
        finally:
            self._waiting = False

    def note(self, _number: int, _frame: object) -> None:
        """The handler: remember the first signal, obey the second."""
        # Torn only by the second signal: the first one waits for the step to end.
        self.asked, self.torn = True, self.asked
        if self.torn or self._waiting:
            raise KeyboardInterrupt


@contextmanager
def heard() -> Iterator[Interrupts]:
    """Handle SIGINT, SIGTERM and SIGHUP inside, except those that the parent process set to be ignored."""
    import pyarrow as pa

    stop = Interrupts()
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in _SIGNALS if main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    # Otherwise pyarrow handles the signal itself and drops the lines it is reading.
    pa.enable_signal_handlers(False)
    before = {number: signal.signal(number, stop.note) for number in ours}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        pa.enable_signal_handlers(True)


def is_pipe(source: Path) -> bool:
    """Whether rows arrive over time: from `-`, a named pipe, or a /dev/fd that a shell made."""
    return str(source) == "-" or (source.exists() and not source.is_file() and not source.is_dir())


def open_pipe(source: Path, stop: Interrupts, *, when_quiet: Callable[[], None]) -> io.BufferedReader:
    """The bytes of a pipe, as they arrive. A signal interrupts waiting. After a second of it, `when_quiet` is called."""
    if str(source) == "-":
        require(
            sys.stdin is not None, "standard input is closed. Pipe rows into this command, or name a file instead of -"
        )
        # The unbuffered file, so that rows are read as soon as they arrive.
        raw = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    else:
        with stop.waiting():
            raw = source.open("rb", buffering=0)
    return io.BufferedReader(_Patient(raw, stop, when_quiet))


@final
class _Patient(io.RawIOBase):
    """A raw file whose reads can be interrupted through `Interrupts`."""

    def __init__(self, raw: Any, stop: Interrupts, when_quiet: Callable[[], None]) -> None:
        self._raw, self._stop, self._when_quiet = raw, stop, when_quiet

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        with self._stop.waiting():
            if not _comes_within(self._raw, _QUIET):
                self._when_quiet()
            count: int | None = self._raw.readinto(buffer)
            return count


def _comes_within(raw: Any, seconds: float) -> bool:
    """Whether there are bytes to read, or the end of the file. Also True if that cannot be determined."""
    try:
        return bool(select.select([raw], [], [], seconds)[0])
    except (OSError, ValueError):
        return True
