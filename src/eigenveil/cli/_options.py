"""Options that several commands share, each with its help, and two warnings that several commands print."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

__all__ = [
    "COUNTED",
    "SEEDED",
]

_PRIVACY: Final = "Privacy"
_BOUNDS: Final = "Where rows lie (found privately, or public knowledge)"

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
        help="The table: .csv, .parquet, .npy, .npz (dense or scipy sparse), .svm.",
        show_default=False,
    ),
]
Output: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Write the model to this .safetensors file.")
]
EvenIfNoise: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--even-if-noise",
        help="Go on without asking where `eigenveil plan` calls the budget hopeless. That is known beforehand only where the "
        "number of people is public.",
        rich_help_panel=_PRIVACY,
    ),
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]
Drop: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="COLUMN", help="Leave this column out. May be repeated.", show_default=False),
]
Features: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--features",
        "-d",
        min=1,
        metavar="D",
        help="The number of columns of an svmlight file, which does not state it. Without this option it is the largest "
        "index in the file, a number from the data.",
        rich_help_panel=_BOUNDS,
        show_default=False,
    ),
]
OneBased: TypeAlias = Annotated[
    bool,
    typer.Option("--one-based", help="The svmlight file counts its columns from one.", rich_help_panel=_BOUNDS),
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
