"""The options of `eigenveil stream` that no other command has, each with the words its --help shows."""

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import typer

_READING: Final = "How rows come"
_PRIVACY: Final = "Privacy"
_BOUNDS: Final = "Where rows lie (public knowledge, never read from the data)"
_METHOD: Final = "Method"
_KEEPING: Final = "Stopping and going on"

Source: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE",
        help="Where rows come from: a file, or - for standard input.",
        show_default=False,
    ),
]
Components: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--components", "-k", metavar="K", help="How many components; with --adapt, to begin with.", show_default=False
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
Publish: TypeAlias = Annotated[
    Literal["sync", "block", "continual"],
    typer.Option(
        metavar="WHICH",
        help="When a private stream releases. sync: at the end and at --sync-every, for the least noise. block: every block "
        "on its own, for the least memory. continual: every block along a tree over a --horizon.",
        rich_help_panel=_PRIVACY,
    ),
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
Horizon: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="ROWS",
        help="For --publish continual: at most how many rows will come, a public number.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
PersonBlocks: TypeAlias = Annotated[
    int,
    typer.Option(help="In at most how many blocks one person has a row; one row in each.", rich_help_panel=_PRIVACY),
]
NeighboursName: TypeAlias = Annotated[
    Literal["zero-out", "replace-one"],
    typer.Option(
        "--neighbours",
        metavar="WHICH",
        help="Which streams must be hard to tell apart: zero-out or replace-one. The number of rows is public in both.",
        rich_help_panel=_PRIVACY,
    ),
]
Center: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--center/--no-center",
        help="Follow the mean and take it off; a private stream looks for it in its first block, for part of the budget.",
        rich_help_panel=_BOUNDS,
    ),
]
Origin: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Where a private stream looks for the mean: one number, or one per column with commas. Zero unless given.",
        rich_help_panel=_BOUNDS,
        show_default=False,
    ),
]
Adapt: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="LOW,HIGH",
        help="Let the number of components follow the spectrum: the last singular value stays between these fractions of "
        "the sum of all. 0.01,0.1 is usual.",
        rich_help_panel=_METHOD,
        show_default=False,
    ),
]
Forget: TypeAlias = Annotated[
    float,
    typer.Option(help="Old singular values shrink by this at every block; 1 forgets nothing.", rich_help_panel=_METHOD),
]
BlockSize: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="ROWS", help="Rows taken at once.", rich_help_panel=_METHOD, show_default="planned"),
]
Oversample: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Directions kept beyond the components, for what later rows bring up.",
        rich_help_panel=_METHOD,
        show_default="max(10, K)",
    ),
]
MemoryLimit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="What may be used, such as 64MB or 1.5GiB.",
        rich_help_panel=_METHOD,
        show_default="1GiB",
    ),
]
NoiseTarget: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="For --publish block: a first block so long that the noise on its average product stays below this, in units "
        "of the squared row bound.",
        rich_help_panel=_METHOD,
        show_default=False,
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
