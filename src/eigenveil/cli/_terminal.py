"""The two ends of a command: what it says while it reads rows, and how it ends when something goes wrong.

Every foreseen error becomes one red line on stderr and an exit code. A traceback would show code, and sometimes
data, to somebody who asked for neither. A progress bar counts rows, which may be private, so it appears on a
terminal only, never in a file that stderr was sent to.
"""

import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, ParamSpec

import typer

from eigenveil.errors import BudgetExceeded, EigenveilError

if TYPE_CHECKING:
    from rich.console import Console

    from eigenveil.data.rows import Rows

__all__ = ["errors_as_lines", "leaves", "message_of", "output", "watched", "wrote"]

_BUDGET: Final = 1
_BAD_INPUT: Final = 2
_INTERRUPTED: Final = 130
_TRACEBACK: Final = "EIGENVEIL_TRACEBACK"

_written: ContextVar[Path | None] = ContextVar("written", default=None)
_leaves: ContextVar[str | None] = ContextVar("leaves", default=None)
Arguments = ParamSpec("Arguments")


def wrote(path: Path) -> None:
    """Remember that `path` is complete on disk, so that a later interrupt does not claim otherwise."""
    _written.set(path)


def leaves(words: str) -> None:
    """Remember what the command leaves behind, to be said if it ends with an error or an interrupt."""
    _leaves.set(words)


def output(*, stderr: bool = False) -> "Console":
    """A console on stdout or stderr that shows text as it is and never fails on a character the terminal lacks."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def errors_as_lines(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """`command`, ending in one line and an exit code where it would have raised.

    2 for input that cannot be used, 1 for a budget that does not suffice, 130 for Ctrl-C.
    """

    @functools.wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        _written.set(None)
        _leaves.set(None)
        try:
            command(*args, **kwargs)
        except (typer.Exit, BrokenPipeError):
            # Somebody downstream, `head` say, has read enough; typer ends quietly.
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
    """What may be said of an error: its own words where it is known to show no data, otherwise its kind."""
    match error:
        case OSError() if error.strerror is not None:
            return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
        case ValueError() | EigenveilError() | OSError() if str(error):
            return str(error)
        case MemoryError():
            return "there is not enough memory for this"
        case _:
            # What an unforeseen error says is not known to be free of data, so only its kind is shown.
            return f"something unforeseen went wrong ({type(error).__name__}); {_TRACEBACK}=1 shows where"


def _fail(message: str, code: int, error: Exception) -> NoReturn:
    if os.environ.get(_TRACEBACK):
        raise error
    left = _leaves.get()
    # Whole, however long: the end of a message is where it says what to type. Messages shorten their own lists (`listed`).
    _say(f"error: {message}" if left is None else f"error: {message}; {left}")
    raise typer.Exit(code) from None


def _say(message: str) -> None:
    from rich.text import Text

    one_line = "".join(letter if letter.isprintable() else " " for letter in message)
    output(stderr=True).print(Text(one_line, style="red"), soft_wrap=True)


@contextmanager
def watched(rows: "Rows") -> Iterator["Rows"]:
    """`rows` under a progress bar on stderr, one round of the bar per pass over them; no bar off a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from eigenveil.data.rows import WatchedRows

    console, total = output(stderr=True), rows.shape[0]
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading rows, pass 1", total=total)
        read = 0

        def seen(count: int) -> None:
            nonlocal read
            read += count
            passes, done = divmod(read, max(total, 1))
            progress.update(task, completed=done, description=f"reading rows, pass {passes + 1}")

        yield WatchedRows(rows, seen)
