"""Options that several commands share, each with its help, and two warnings that several commands print."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from eigenveil.errors import require
from eigenveil.show.live.address import PageAddress

__all__ = ["COUNTED", "SEEDED", "page_at"]

# Panels have the titles that declarations use, so that these options stand among the derived ones.
_PRIVACY: Final = "Privacy"
_PAGE: Final = "Live page"

SEEDED: Final = (
    "NOT PRIVATE: --seed was given, so anyone who knows it can compute the noise and subtract it. "
    "Use --seed for tests, never on data of real people."
)
COUNTED: Final = (
    "The number of columns is the largest index in the file, because svmlight text does not state it. The guarantee assumes "
    "that it is public. If one person's row could change it, fit again with --features."
)

Data: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="The table: csv (also .gz, .zst), Parquet (a file or a folder), Arrow, xlsx, jsonl, .npy, .npz (dense or scipy "
        "sparse), .svm; or - for standard input.",
        show_default=False,
    ),
]
# Never both: a cluster has its own processes, and `Reading.require` refuses the combination.
DaskCluster: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="SCHEDULER",
        help="Work on the Dask cluster whose scheduler is at this address, such as tcp://head:8786. DATA is then Parquet that "
        "all workers can read: a file, a folder, or a pattern in quotes. Rows stay on the workers.",
        rich_help_panel="Where the rows are",
        show_default=False,
    ),
]
Processes: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        help="Read Parquet or npy in N processes of this machine, each with one block of rows in memory.",
        rich_help_panel="Where the rows are",
        show_default="one",
    ),
]
Output: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Write the model to this .safetensors file.")
]
# A budget is lost for good, so noise is the one outcome that a fit asks about beforehand.
EvenIfNoise: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--even-if-noise",
        help="Go on without asking where `eigenveil plan` calls the budget hopeless. That is known beforehand only where the "
        "number of people is public.",
        rich_help_panel=_PRIVACY,
    ),
]
ReportFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="At the end, write a report to show and sign: .html, .json, or .pdf if Chromium is installed.",
        show_default=False,
    ),
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]
# Carried columns never reach an estimator. The model records their names only, for `transform`.
Carry: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--carry",
        metavar="NAMES",
        help="Columns that are not analysed and that `transform --carry` writes beside the scores, such as an id or a label: "
        "names or patterns. May be repeated.",
        rich_help_panel="Columns",
        show_default=False,
    ),
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="INTEGER",
        help="Reproducible, NOT PRIVATE: anyone who knows the seed can subtract the noise. For tests only.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
Page: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="HOST:PORT",
        help="Show what happens in a browser as well, at this address, such as 127.0.0.1:8080. The page is read-only and shows "
        "what this terminal shows. A port alone is on this machine; port 0 takes any that is free.",
        show_default="no page",
        rich_help_panel=_PAGE,
    ),
]
PageToken: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--page-token",
        metavar="FILE",
        help="The token that readers of the page must have, needed unless --page is on this machine alone. Made if there is no "
        "such file, and only you can read it. Keep the file, and an open page goes on after a restart.",
        show_default="none",
        rich_help_panel=_PAGE,
    ),
]


def page_at(given: str | None, token: Path | None) -> PageAddress | None:
    """The address of a page, if one was asked for. Refused before anything else is done."""
    require(token is None or given is not None, "--page-token is for a live page. Say where with --page HOST:PORT")
    return None if given is None else PageAddress.read(given, token)
