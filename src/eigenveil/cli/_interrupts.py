"""Ctrl-C that tears no step in half: noted at once, obeyed while a command waits for rows and between two batches.

A release that was paid for and broke off is lost, and a silent pipe must not keep anybody waiting, so a signal interrupts waiting
and nothing else. A second one ends the command at once.
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
_QUIET: Final = 1.0


@final
class Interrupts:
    """Whether the command was asked to stop, and whether that tore a step in half. Changes in place, from a signal handler."""

    def __init__(self) -> None:
        self.asked, self.torn = False, False
        self._waiting = False

    def check(self) -> None:
        """Stop here if that was asked for."""
        if self.asked:
            raise KeyboardInterrupt

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, nothing is lost by stopping, and a signal stops at once."""
        self._waiting = True
        try:
            # The signal may have come just before.
            self.check()
            yield
        finally:
            self._waiting = False

    def note(self, _number: int, _frame: object) -> None:
        """The handler: remember the first signal, obey the second."""
        self.asked, self.torn = True, self.asked
        if self.torn or self._waiting:
            raise KeyboardInterrupt


@contextmanager
def heard() -> Iterator[Interrupts]:
    """Interrupts that hear SIGINT and SIGTERM while inside, unless the parent process had them ignored."""
    import pyarrow as pa

    stop = Interrupts()
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in _SIGNALS if main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    # pyarrow would answer a signal itself, and drop the lines it is reading.
    pa.enable_signal_handlers(False)
    before = {number: signal.signal(number, stop.note) for number in ours}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        pa.enable_signal_handlers(True)


def is_pipe(source: Path) -> bool:
    """Whether rows come as somebody makes them: `-`, a named pipe, or the /dev/fd that a shell hands over."""
    return str(source) == "-" or (source.exists() and not source.is_file() and not source.is_dir())


def open_pipe(source: Path, stop: Interrupts, *, when_quiet: Callable[[], None]) -> io.BufferedReader:
    """The bytes of a pipe, as they arrive. A signal interrupts the waiting; `when_quiet` is called after a second of it."""
    if str(source) == "-":
        require(sys.stdin is not None, "standard input is closed, so no rows can come from it")
        # Below any buffer: what has arrived is taken at once.
        raw = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    else:
        with stop.waiting():
            raw = source.open("rb", buffering=0)
    return io.BufferedReader(_Patient(raw, stop, when_quiet))


@final
class _Patient(io.RawIOBase):
    """A raw file that waits for its bytes under `Interrupts`."""

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
    """Whether there is something to read, or the end; True as well where that cannot be found out."""
    try:
        return bool(select.select([raw], [], [], seconds)[0])
    except (OSError, ValueError):
        return True
