"""Running a party as a command: what signals do, and what is said when it ends early. All four commands use it.

The first SIGINT or SIGTERM ends the waiting; a step in progress is finished and put on disk first. The second one ends
the process at once. That loses nothing either: what has left is in the ledger, and nothing else has left.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, final

import typer

from eigenveil.commands._ending import leaves, message_of
from eigenveil.errors import require
from eigenveil.show.console import output

if TYPE_CHECKING:
    from eigenveil.show.progress import Voice

__all__ = ["TOO_FEW", "carried", "refused", "require_grpc", "say_red"]

# The exit code when too few sites answered, as in `eigenveil simulate`.
TOO_FEW: Final = 3
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# Seconds between looks at connections, which change without an event.
_LOOK_AFTER: Final = 3.0
_SHOW_CURSOR: Final = b"\x1b[?25h"

Result = TypeVar("Result")


def require_grpc() -> None:
    """Refuse, before anything else, to run a party without gRPC."""
    try:
        # Our module sets gRPC's environment variables, which must happen before gRPC itself is loaded.
        import_module("eigenveil.runtimes.grpc")
    except ImportError as error:
        missing = (error.name or "").partition(".")[0] == "grpc"
        require(not missing, "the network needs gRPC: pip install 'eigenveil[network]'")
        raise


def carried(
    work: Callable[[], Coroutine[Any, Any, Result]],
    voice: "Voice",
    *,
    left: Callable[[], str],
    look: Callable[[], None] = lambda: None,
) -> Result:
    """The result of `work`, unless a signal ends it: then `left` says how to go on.

    Meanwhile `look` is called every few seconds. Ctrl-C gives exit code 130 and SIGTERM 143, as shells do.
    """
    import asyncio

    stop = _Stop()

    async def main() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def unforeseen(_: object, context: dict[str, Any]) -> None:
            # An error in a task that nobody awaits, after a signal say. asyncio would print a traceback.
            error = context.get("exception")
            if isinstance(error, Exception) and not stop.asked:
                voice.happen(f"an error outside the study itself: {message_of(error)}", style="yellow")

        # Cancelling ends the waiting only: the runner shields the step that the party's thread is in.
        def ending() -> None:
            voice.happen("ending after the current step; a second signal ends at once", style="yellow")
            task.cancel()

        async def looking() -> None:
            while True:
                await asyncio.sleep(_LOOK_AFTER)
                look()

        loop.set_exception_handler(unforeseen)
        stop.on_first = lambda: loop.call_soon_threadsafe(ending)
        # A signal may have come before the loop was there to hear it.
        if stop.asked:
            ending()
        beside = loop.create_task(looking())
        try:
            return await work()
        finally:
            beside.cancel()
            # The work is done: a signal from here on has nothing to end.
            stop.on_first = lambda: None

    try:
        with _heard(stop):
            return asyncio.run(main())
    except asyncio.CancelledError:
        # Cancelled by something else than a signal, so it is not ours to explain.
        if stop.number is None:
            raise
        words = left()
        if stop.number == signal.SIGINT:
            leaves(words)
            raise KeyboardInterrupt from None
        refused(f"ended by {signal.Signals(stop.number).name}; {words}", 128 + stop.number)


def refused(words: str, code: int) -> NoReturn:
    """End with a red line on stderr."""
    say_red(words)
    raise typer.Exit(code) from None


def say_red(words: str) -> None:
    """One red line on stderr, not wrapped."""
    from rich.text import Text

    from eigenveil.errors import plain

    output(stderr=True).print(Text(plain(words), style="red"), soft_wrap=True)


@final
class _Stop:
    """Which signal came. Changes in place, from a signal handler."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.on_first: Callable[[], object] = lambda: None

    @property
    def asked(self) -> bool:
        return self.number is not None

    def note(self, number: int, _frame: object) -> None:
        """Handle a signal: wake the loop at the first, and end at the second, whatever is being computed."""
        if self.number is None:
            self.number = number
            self.on_first()
            return
        # The live view hides the cursor, and `os._exit` runs no clean-up.
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), _SHOW_CURSOR)
        # The party's thread may be in the middle of a matrix product, and any other exit would wait for it.
        os._exit(128 + number)


@contextmanager
def _heard(stop: _Stop) -> Iterator[None]:
    """Send signals to `stop` while inside, except those that our parent process made us ignore.

    Python handles them, not the loop, which stands still while it waits for the party's thread to end.
    """
    # Python allows signal handlers on the main thread only.
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in _SIGNALS if main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, stop.note) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
