"""Options that several commands share, each with its help, and two warnings that several commands print."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from eigenveil.errors import require
from eigenveil.show.live import PageAddress

__all__ = [
    "COUNTED",
    "SEEDED",
    "OptionGroup",
    "PageOptions",
    "argument",
    "count_warning",
    "flag",
    "option",
    "seed_warning",
    "was_typed",
]


def argument(metavar: str, description: str, *, none_means: str | bool = False, shows: bool = False) -> Any:
    """An argument, with its --help. That says what happens when it is left out (`none_means`), or `shows` the default itself."""
    return typer.Argument(metavar=metavar, help=description, show_default=shows or none_means)


def option(
    *names: str | None, none_means: str | bool = False, shows: bool = False, panel: str | None = None, **range_: Any
) -> Any:
    """An option: its names, if they are not those of the parameter, its metavar or None, and its --help.

    That says what happens when it is left out (`none_means`), or `shows` the default itself. A number may have a `min`.
    """
    *flags, metavar, description = names
    return typer.Option(
        *map(str, flags), metavar=metavar, help=description, show_default=shows or none_means, rich_help_panel=panel, **range_
    )


def flag(name: str, description: str, *, panel: str | None = None) -> Any:
    """A switch that is off unless it is given."""
    return typer.Option(name, help=description, rich_help_panel=panel)


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
    argument(
        "DATA",
        "The table: csv (also .gz, .zst), Parquet (a file or a folder), Arrow, xlsx, jsonl, .npy, .npz (dense or scipy "
        "sparse), .svm; or - for standard input.",
    ),
]

# Never both: a cluster has its own processes, and `Reading.require` refuses the combination.
DaskCluster: TypeAlias = Annotated[
    str | None,
    option(
        "--dask",
        "SCHEDULER",
        "Work on the Dask cluster whose scheduler is at this address, such as tcp://head:8786. DATA is then Parquet that "
        "all workers can read: a file, a folder, or a pattern in quotes. Rows stay on the workers.",
        panel="Where the rows are",
    ),
]

Processes: TypeAlias = Annotated[
    int | None,
    option(
        "--processes",
        "N",
        "Read Parquet or npy in N processes of this machine, each with one block of rows in memory.",
        none_means="one",
        panel="Where the rows are",
        min=1,
    ),
]

Output: TypeAlias = Annotated[Path, option("--output", "-o", "FILE", "Write the model to this .safetensors file.", shows=True)]

# A budget is lost for good, so noise is the one outcome that a fit asks about beforehand.
EvenIfNoise: TypeAlias = Annotated[
    bool,
    flag(
        "--even-if-noise",
        "Go on without asking where `eigenveil plan` calls the budget hopeless. That is known beforehand only where the "
        "number of people is public.",
        panel=_PRIVACY,
    ),
]

ReportFile: TypeAlias = Annotated[
    Path | None,
    option("--report", "FILE", "At the end, write a report to show and sign: .html, .json, or .pdf if Chromium is installed."),
]

Force: TypeAlias = Annotated[bool, flag("--force", "Overwrite the output if it exists.")]

# Carried columns never reach an estimator. The model records their names only, for `transform`.
Passthrough: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--passthrough",
        "NAMES",
        "Columns that are not analysed and that `transform --passthrough` writes beside the scores, such as an id or a label: "
        "names or patterns. May be repeated.",
        panel="Columns",
    ),
]

Seed: TypeAlias = Annotated[
    int | None,
    option(
        "INTEGER", "Reproducible, NOT PRIVATE: anyone who knows the seed can subtract the noise. For tests only.", panel=_PRIVACY
    ),
]


class OptionGroup:
    """A dataclass whose fields are options. A command that has a parameter of such a type has these options."""


@dataclass(frozen=True, kw_only=True)
class PageOptions(OptionGroup):
    """Where a live page is, if one was asked for."""

    page: Annotated[
        str | None,
        option(
            "HOST:PORT",
            "Show what happens in a browser as well, at this address, such as 127.0.0.1:8080. The page is read-only and shows "
            "what this terminal shows. A port alone is on this machine; port 0 takes any that is free.",
            none_means="no page",
            panel=_PAGE,
        ),
    ] = None
    page_token: Annotated[
        Path | None,
        option(
            "FILE",
            "The token that readers of the page must have, needed unless --page is on this machine alone. Made if there is no "
            "such file, and only you can read it. Keep the file, and an open page continues after a restart.",
            none_means="none",
            panel=_PAGE,
        ),
    ] = None

    def address(self) -> PageAddress | None:
        """Where the page is, checked before anything else is done."""
        require(
            self.page_token is None or self.page is not None, "--page-token is for a live page. Say where with --page HOST:PORT"
        )
        return None if self.page is None else PageAddress.read(self.page, self.page_token)


Total: TypeAlias = Annotated[
    float | None,
    option(
        "EPSILON",
        "The epsilon that this command and the fit may spend together. Shows what is left for the fit.",
        none_means="1, if --epsilon is less",
        panel="Privacy",
    ),
]

BoundsPath: TypeAlias = Annotated[
    Path | None,
    option(
        "--bounds",
        "FILE",
        "A file that `eigenveil bounds --output` wrote. It sets the bound, with the mean or the column ranges that were "
        "found, in place of the options here.",
        panel="Where rows lie (found privately, or public knowledge)",
    ),
]


def was_typed(context: typer.Context, names: Iterable[str]) -> tuple[str, ...]:
    """The options among these that the user typed on the command line."""
    sources = ((name, context.get_parameter_source(name)) for name in names)
    return tuple(name for name, source in sources if source is not None and source.name == "COMMANDLINE")


def seed_warning(settings: Mapping[str, Any]) -> Iterator[Any]:
    """A panel about a seed that makes a private fit reproducible."""
    from eigenveil.show.terminal import warning_panel

    if settings["random_state"] is not None and settings["epsilon"] is not None:
        yield warning_panel(SEEDED)


def count_warning(settings: Mapping[str, Any], *, counted: bool) -> Iterator[Any]:
    """A panel about a number of columns that was `counted` in the rows of a private fit."""
    from eigenveil.show.terminal import warning_panel

    if counted and settings["epsilon"] is not None:
        yield warning_panel(COUNTED)
