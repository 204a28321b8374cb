"""The options of `eigenveil stream` that no other command has, each with its help."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

_PRIVACY: Final = "Privacy"
_KEEPING: Final = "Stopping and resuming"

Source: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE",
        help="Where the rows come from: a file, a named pipe, or - for standard input.",
        show_default=False,
    ),
]
# A count of rows, not of seconds: how many rows come in an hour may be private.
SyncEvery: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="ROWS",
        help="Also release after every so many rows, and rewrite the model. The schedule is public. For --publish sync; without "
        "privacy it only rewrites the model.",
        rich_help_panel=_PRIVACY,
        show_default="at the end only",
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for every release, and nothing else, on stdout.")
]
# A file that lasts only if it was asked for. Otherwise it is a rescue, beside the output.
State: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FILE",
        help="Save the stream to this file at every release and when it ends or is interrupted, to resume later. RAW DATA that "
        "only you can read. Without this option, a private stream that runs or is interrupted is saved beside the output.",
        rich_help_panel=_KEEPING,
        show_default=False,
    ),
]
NoState: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-state",
        help="Save no state, not even when interrupted. A release that was charged is then lost if the command is killed.",
        rich_help_panel=_KEEPING,
    ),
]
# An option of the same command, because what is merged goes on as a stream.
Merge: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--merge",
        metavar="FILE",
        help="Merge the stream in this state with the one in SOURCE, which is a state, too. No rows are read. May be repeated.",
        rich_help_panel=_KEEPING,
        show_default=False,
    ),
]
Resume: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the stream in --state, or beside the output, with the rows of SOURCE. A file may begin with the rows that "
        "the stream has read; of a pipe give new ones only. All settings come from the state: give no others.",
        rich_help_panel=_KEEPING,
    ),
]
