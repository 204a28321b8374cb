"""Running a party as a command: signals that tear no step in half, and what is said when it ends early.

The first SIGINT or SIGTERM ends the waiting; a step that is being worked out is finished and put on disk first. The second one
ends the process at once, which loses nothing either: what has left is in the ledger, and what is not in the ledger has not left.
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

from eigenveil.cli._terminal import leaves, message_of, output
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.cli.network.view import Voice

__all__ = ["TOO_FEW", "carried", "refused", "require_grpc", "say_red"]

# The exit code when too few answered, as in a simulation.
TOO_FEW: Final = 3
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_LOOK_AFTER: Final = 3.0
_SHOW_CURSOR: Final = b"\x1b[?25h"

Result = TypeVar("Result")


def require_grpc() -> None:
    """Refuse, before anything else, to run a party where gRPC is not installed."""
    try:
        # Its own settings for gRPC stand before gRPC itself is loaded.
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
    """What `work` comes to, unless a signal ends it: then `left` says what there is to go on with.

    Meanwhile `look` is called every few seconds. Ctrl-C ends in exit code 130, SIGTERM in 143, as shells count.
    """
    import asyncio

    stop = _Stop()

    async def main() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def unforeseen(_: object, context: dict[str, Any]) -> None:
            # What nobody waits for any more, after a signal say; asyncio would print a traceback.
            error = context.get("exception")
            if isinstance(error, Exception) and not stop.asked:
                voice.happen(f"something went wrong beside the study: {message_of(error)}", style="yellow")

        def ending() -> None:
            voice.happen("ending after the step at hand; a second signal ends at once", style="yellow")
            task.cancel()

        async def looking() -> None:
            while True:
                await asyncio.sleep(_LOOK_AFTER)
                look()

        loop.set_exception_handler(unforeseen)
        stop.on_first = lambda: loop.call_soon_threadsafe(ending)
        if stop.asked:
            ending()
        beside = loop.create_task(looking())
        try:
            return await work()
        finally:
            beside.cancel()
            # From here on there is nothing to end.
            stop.on_first = lambda: None

    try:
        with _heard(stop):
            return asyncio.run(main())
    except asyncio.CancelledError:
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
    """One red line on stderr, as long as it is."""
    from rich.text import Text

    from eigenveil.cli._report import plain

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
        """The handler: wake the loop at the first signal, and end at the second, whatever is being worked out."""
        if self.number is None:
            self.number = number
            self.on_first()
            return
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), _SHOW_CURSOR)
        # The thread of the party may be in the middle of a product of matrices, and any other way out waits for it.
        os._exit(128 + number)


@contextmanager
def _heard(stop: _Stop) -> Iterator[None]:
    """Signals go to `stop` while inside, unless whoever started us had them ignored.

    They are heard by Python and not by the loop, which stands still while it waits for the thread of the party to end.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in _SIGNALS if main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, stop.note) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
