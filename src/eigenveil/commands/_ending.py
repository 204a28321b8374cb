"""How commands end: an expected error becomes one red line on stderr and an exit code. A traceback would show code, and
sometimes data. A budget that would find only noise is asked about before it is spent.
"""

import functools
import io
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, ParamSpec, TypeVar, final

import typer

from eigenveil.errors import (
    BudgetExceeded,
    EigenveilError,
    HopelessBudget,
    ModelFileError,
    ParameterWarning,
    WeakGuaranteeWarning,
    Words,
    require,
)
from eigenveil.show.console import output

__all__ = [
    "Interrupts",
    "at_terminal",
    "despite_noise",
    "errors_as_lines",
    "heard",
    "is_pipe",
    "leaves",
    "message_of",
    "open_pipe",
    "signals_sent_to",
    "wrote",
]

# Scripts tell by these whether to correct the command or to stop spending.
_BUDGET: Final = 1

_BAD_INPUT: Final = 2

_INTERRUPTED: Final = 130

_TRACEBACK: Final = "EIGENVEIL_TRACEBACK"

# Context variables, because commands may run in threads of one process, as in the tests.
_written: ContextVar[Path | None] = ContextVar("written", default=None)

_leaves: ContextVar[str | None] = ContextVar("leaves", default=None)

Arguments = ParamSpec("Arguments")

Made = TypeVar("Made")


def wrote(path: Path) -> None:
    """Record that `path` is complete on disk, so that a later interrupt reports it."""
    _written.set(path)


def leaves(text: str) -> None:
    """Record what the command leaves behind, to be reported if it ends with an error or an interrupt."""
    _leaves.set(text)


def errors_as_lines(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """`command`, which ends with one line and an exit code where it would have raised.

    The code is 2 for bad input, 1 for a budget that is too small, 130 for Ctrl-C.
    """

    @functools.wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        # Commands may run several times in one process, as in the tests.
        _written.set(None)
        _leaves.set(None)
        try:
            with warnings.catch_warnings():
                # Every command prints the guarantee, which says it too.
                warnings.simplefilter("ignore", WeakGuaranteeWarning)
                command(*args, **kwargs)
        except (typer.Exit, BrokenPipeError):
            # The reader of a pipe, such as `head`, has stopped. Typer ends quietly.
            raise
        except KeyboardInterrupt:
            path = _written.get()
            written = "nothing was written" if path is None else f"{path} had been written"
            _say(f"interrupted; {_leaves.get() or written}")
            raise typer.Exit(_INTERRUPTED) from None
        except BudgetExceeded as error:
            _fail(str(error), _BUDGET, error)
        except Exception as error:
            _fail(message_of(error), _BAD_INPUT, error)

    return run


def message_of(error: Exception) -> str:
    """The message of an error if it is known to show no data, otherwise only its type."""
    match error:
        case OSError() if error.strerror is not None:
            return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
        case ModelFileError():
            return f"{error}. Give a .safetensors file that `eigenveil fit` or a similar command wrote"
        case ValueError() | EigenveilError() | OSError() if str(error):
            return str(error)
        case MemoryError():
            return "not enough memory. Give a smaller table, or use `eigenveil stream`, which reads rows once"
    # The text of an unexpected error may quote data, so only its type is shown.
    return f"unexpected error ({type(error).__name__}). Set {_TRACEBACK}=1 to see where; the traceback may show data"


def _fail(message: str, code: int, error: Exception) -> NoReturn:
    if os.environ.get(_TRACEBACK):
        raise error
    left = _leaves.get()
    # Never truncated: the end of a message says what to type. Messages shorten their own lists with `listed`.
    _say(f"error: {message}" if left is None else f"error: {message}; {left}")
    raise typer.Exit(code) from None


def _say(message: str) -> None:
    from rich.text import Text

    # Column names in a message come from files, and a terminal obeys control characters.
    one_line = "".join(character if character.isprintable() else " " for character in message)
    output(stderr=True).print(Text(one_line, style="red"), soft_wrap=True)


def despite_noise(
    act: Callable[[], Made],
    spelling: Words,
    *,
    even_if_noise: bool,
    ask: bool = True,
    deed: str = "fit",
    outcome: str = "Nothing was spent",
) -> tuple[Made, list[str]]:
    """What `act` returns, and its warnings in these words. A hopeless budget is asked about before it is spent.

    Without a terminal, or without `ask`, the command is refused. `deed` is what it does, and `outcome` what a refusal leaves.
    """
    try:
        # The first attempt stops at the warning, before anything was spent. Only a clear yes lets it run on.
        return _heard(act, spelling, hopeless="always" if even_if_noise else "error")
    except HopelessBudget as warning:
        message = warning.said(spelling)
        require(ask and at_terminal(), f"{message} {outcome}. To {deed} anyway, give --even-if-noise")
        output(stderr=True).print(message, style="yellow", soft_wrap=True)
        try:
            sure = typer.confirm(f"{deed.capitalize()} anyway?", err=True)
        except typer.Abort:
            sure = False
        require(sure, f"{outcome[0].lower()}{outcome[1:]}. To {deed} anyway without being asked, give --even-if-noise")
    return _heard(act, spelling, hopeless="always")


def at_terminal() -> bool:
    """Whether there is a person to ask."""
    return sys.stdin is not None and sys.stdin.isatty()


def _heard(act: Callable[[], Made], spelling: Words, *, hopeless: Literal["always", "error"]) -> tuple[Made, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter(hopeless, HopelessBudget)
        made = act()
    messages = (warning.message for warning in caught)
    return made, [warning.said(spelling) for warning in messages if isinstance(warning, ParameterWarning)]


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
def signals_sent_to(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Send SIGINT, SIGTERM and SIGHUP to `handler` inside, except those that the parent process set to be ignored.

    Python handles them, not an event loop, which may stand still. It allows handlers on the main thread only.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in _SIGNALS if main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handler) for number in ours}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def heard() -> Iterator[Interrupts]:
    """Handle signals inside."""
    import pyarrow as pa

    stop = Interrupts()
    # Otherwise pyarrow handles the signal itself and drops the lines it is reading.
    pa.enable_signal_handlers(False)
    try:
        with signals_sent_to(stop.note):
            yield stop
    finally:
        pa.enable_signal_handlers(True)


def is_pipe(source: Path) -> bool:
    """Whether rows arrive over time: from `-`, a named pipe, or a /dev/fd that a shell made."""
    return str(source) == "-" or (source.exists() and not source.is_file() and not source.is_dir())


def open_pipe(source: Path, stop: Interrupts, *, when_quiet: Callable[[], None]) -> io.BufferedReader:
    """The bytes of a pipe, as they arrive. A signal interrupts waiting. After a second of it, `when_quiet` is called."""
    if str(source) == "-":
        require(sys.stdin is not None, "standard input is closed. Pipe rows into this command, or name a file instead of -")
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
