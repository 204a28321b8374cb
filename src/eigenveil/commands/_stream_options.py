"""The options of `eigenveil stream` that no other command has, each with its help."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias

from eigenveil.commands._option import argument, flag, option

_PRIVACY: Final = "Privacy"
_KEEPING: Final = "Stopping and resuming"

Source: TypeAlias = Annotated[
    Path, argument("SOURCE", "Where the rows come from: a file, a named pipe, or - for standard input.")
]
# A count of rows, not of seconds: how many rows come in an hour may be private.
SyncEvery: TypeAlias = Annotated[
    int | None,
    option(
        "ROWS",
        "Also release after every so many rows, and rewrite the model. The schedule is public. For --publish sync; without "
        "privacy it only rewrites the model.",
        unset="at the end only",
        panel=_PRIVACY,
        min=1,
    ),
]
AsJson: TypeAlias = Annotated[
    bool, flag("--json", "Print a line of JSON for every release, and nothing else, on stdout.")
]
# A file that lasts only if it was asked for. Otherwise it is a rescue, beside the output.
State: TypeAlias = Annotated[
    Path | None,
    option(
        "--state",
        "FILE",
        "Save the stream to this file at every release and when it ends or is interrupted, to resume later. RAW DATA that "
        "only you can read. Without this option, a private stream that runs or is interrupted is saved beside the output.",
        panel=_KEEPING,
    ),
]
NoState: TypeAlias = Annotated[
    bool,
    flag(
        "--no-state",
        "Save no state, not even when interrupted. A release that was charged is then lost if the command is killed.",
        panel=_KEEPING,
    ),
]
# An option of the same command, because what is merged goes on as a stream.
Merge: TypeAlias = Annotated[
    list[Path] | None,
    option(
        "--merge",
        "FILE",
        "Merge the stream in this state with the one in SOURCE, which is a state, too. No rows are read. May be repeated.",
        panel=_KEEPING,
    ),
]
Resume: TypeAlias = Annotated[
    bool,
    flag(
        "--resume",
        "Continue the stream in --state, or beside the output, with the rows of SOURCE. A file may begin with the rows that "
        "the stream has read; of a pipe give new ones only. All settings come from the state: give no others.",
        panel=_KEEPING,
    ),
]
