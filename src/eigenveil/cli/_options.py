"""Options that several commands share, each with the words its --help shows, and how their texts become numbers."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

__all__ = [
    "COUNTED",
    "SEEDED",
]

_PRIVACY: Final = "Privacy"
_BOUNDS: Final = "Where rows lie (public knowledge, never read from the data)"

SEEDED: Final = (
    "NOT PRIVATE: a seed was given, so the noise can be computed again and subtracted. "
    "Use --seed for tests, never on data of real people."
)
COUNTED: Final = (
    "The number of columns was read from the file: svmlight text does not say. The guarantee assumes that it is public. "
    "If one row could change it, give it with --features."
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
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where the model goes, a .safetensors file.")
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]
Drop: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="COLUMN", help="Leave this column out; repeat it for several.", show_default=False),
]
Features: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--features",
        "-d",
        min=1,
        metavar="D",
        help="The number of columns of an svmlight file, which does not say; without it the largest index in the file "
        "serves, a number from the data.",
        rich_help_panel=_BOUNDS,
        show_default=False,
    ),
]
OneBased: TypeAlias = Annotated[
    bool,
    typer.Option("--one-based", help="The columns of this svmlight file count from one.", rich_help_panel=_BOUNDS),
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
