"""The options of `eigenveil stream` that no other command has, each with the words its --help shows."""

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import typer

_READING: Final = "How rows come"
_PRIVACY: Final = "Privacy"
_KEEPING: Final = "Stopping and going on"

Source: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE",
        help="Where rows come from: a file, or - for standard input.",
        show_default=False,
    ),
]
Format: TypeAlias = Annotated[
    Literal["csv", "arrow", "parquet", "npy", "npz", "svm"] | None,
    typer.Option(
        "--format",
        metavar="WHICH",
        help="csv, arrow, parquet, npy, npz or svm; by the ending of a file unless given. csv and arrow can come through "
        "a pipe, which does not say.",
        rich_help_panel=_READING,
        show_default=False,
    ),
]
NoHeader: TypeAlias = Annotated[
    bool,
    typer.Option("--no-header", help="The csv begins with its first row, not with names.", rich_help_panel=_READING),
]
SyncEvery: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="ROWS",
        help="For --publish sync: release after every so many rows of the stream, too. A public schedule.",
        rich_help_panel=_PRIVACY,
        show_default="at the end only",
    ),
]
State: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FILE",
        help="Where the stream is kept when it ends or is interrupted, to go on later. RAW DATA, readable by you alone. "
        "Without it, a stream that is interrupted is kept beside the output.",
        rich_help_panel=_KEEPING,
        show_default=False,
    ),
]
NoState: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-state",
        help="Keep no state, not even when interrupted. Otherwise one is left beside the output then.",
        rich_help_panel=_KEEPING,
    ),
]
Resume: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on from --state with the rows of SOURCE. Everything about the stream comes from the state.",
        rich_help_panel=_KEEPING,
    ),
]
