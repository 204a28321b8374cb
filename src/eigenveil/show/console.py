"""The consoles of a terminal, what is drawn on them, and progress.

A progress bar counts rows, which may be private, so it is drawn on a terminal only, never into a file.
"""

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from eigenveil.core.rows import Rows

    View: TypeAlias = Iterable[RenderableType | "Line"]


@final
@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not wrapped, however long, so that it can be copied."""

    text: str
    style: str | None = None


def draw(view: "View") -> None:
    """Print the parts of a view on stdout."""
    console = output()
    for part in view:
        if isinstance(part, Line):
            console.print(part.text, style=part.style, soft_wrap=True)
        else:
            console.print(part)


def output(*, stderr: bool = False) -> "Console":
    """A console on stdout or stderr that prints text as it is. Characters the terminal lacks are replaced."""
    from rich.console import Console

    # Looked up at each call: tests and shells replace these streams.
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def is_seen(console: "Console") -> bool:
    """Whether a person looks at what is drawn. FORCE_COLOR and the like ask for colours, and make no terminal of a log."""
    return console.is_terminal and console.file.isatty()


@contextmanager
def busy(message: str) -> Iterator[None]:
    """A spinner on stderr with these words and the time so far, for work that prints nothing; on a terminal only."""
    console = output(stderr=True)
    if not is_seen(console):
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), TextColumn(message), TimeElapsedColumn(), console=console, transient=True) as spinner:
        spinner.add_task(message, total=None)
        yield


@contextmanager
def watched(rows: "Rows") -> Iterator["Rows"]:
    """`rows` with a progress bar on stderr, filled once in each pass over them; no bar if stderr is not a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from eigenveil.data.rows import WatchedRows

    console, total = output(stderr=True), rows.shape[0]
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not is_seen(console)) as progress:
        task = progress.add_task("reading rows, pass 1", total=total)
        read = 0

        def seen(count: int) -> None:
            nonlocal read
            read += count
            # A fit may pass over the rows several times; the bar starts again with each pass.
            passes, done = divmod(read, max(total, 1))
            progress.update(task, completed=done, description=f"reading rows, pass {passes + 1}")

        # The rows are counted where they are read, so the bar never runs ahead of the work.
        yield WatchedRows(rows, seen)
