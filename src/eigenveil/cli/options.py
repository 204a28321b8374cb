"""Options that several commands share, each with the words its --help shows, and how their texts become numbers."""

import re
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import typer

from eigenveil.errors import require

__all__ = [
    "COUNTED",
    "SEEDED",
    "bytes_from",
    "in_option_words",
    "numbers_from",
    "pair_from",
    "require_choice",
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
Output: TypeAlias = Annotated[Path, typer.Option("--output", "-o", help="Where the model goes, a .safetensors file.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]
Drop: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="COLUMN", help="Leave this column out; repeat it for several.", show_default=False),
]
Features: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
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
Person: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column that says whose row it is. A person with several rows then counts as one row, and all "
        "of them are protected together. Without it each row is taken for a person of its own.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
Epsilon: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="How much the result may depend on one person: smaller is more private. 0.1 is strict, 1 usual, 10 lax.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
Delta: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="The chance that the promise of epsilon fails; well below one over the number of people.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
NoPrivacy: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-privacy", help="Exact PCA. Nobody is protected, and the model says so.", rich_help_panel=_PRIVACY
    ),
]
NeighboursName: TypeAlias = Annotated[
    Literal["add-remove", "zero-out", "replace-one"],
    typer.Option(
        "--neighbours",
        metavar="WHICH",
        help="Which tables must be hard to tell apart: add-remove, zero-out or replace-one. "
        "The last two declare the number of people public.",
        rich_help_panel=_PRIVACY,
    ),
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Reproducible, NOT PRIVATE: whoever knows the seed can subtract the noise. For tests only.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
RowBound: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="No row is longer than this around the mean; longer ones are scaled down.",
        rich_help_panel=_BOUNDS,
        show_default=False,
    ),
]
ColumnBounds: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="LOW,HIGH",
        help="Entries are cut to this range. One of the two bounds suffices; with both, both hold.",
        rich_help_panel=_BOUNDS,
        show_default=False,
    ),
]
Center: TypeAlias = Annotated[
    Literal["private", "none"],
    typer.Option(
        metavar="WHICH",
        help="private: find the mean, for a tenth to a quarter of the budget. none: leave rows where they are.",
        rich_help_panel=_BOUNDS,
    ),
]
Origin: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Where to look for the mean: one number, or one per column with commas. Zero, or the middle of the column "
        "bounds, unless given.",
        rich_help_panel=_BOUNDS,
        show_default=False,
    ),
]
MeanBound: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="How far from the origin rows may lie while the mean is found. Unless given, the mean is searched for in "
        "steps of the row bound.",
        rich_help_panel=_BOUNDS,
        show_default=False,
    ),
]
Scale: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Columns are divided by this before the row bound applies: one number, or one per column.",
        rich_help_panel=_BOUNDS,
        show_default=False,
    ),
]

# These words occur in messages as names of parameters only.
_NAMES: Final = {
    "n_components": "--components",
    "random_state": "--seed",
    "row_bound": "--row-bound",
    "column_bounds": "--column-bounds",
    "mean_bound": "--mean-bound",
    "block_size": "--block-size",
    "person_blocks": "--person-blocks",
    "memory_limit": "--memory-limit",
    "noise_target": "--noise-target",
    "local_steps": "--local-steps",
    "person_sites": "--person-sites",
    "noise_graph": "--noise-graph",
}
# Ordinary words, which are names of parameters where a message opens with them or gives them a value.
_OPENING: Final = (
    "epsilon|delta|origin|scale|oversample|iterations|forget|horizon|"
    "rounds|tolerance|quorum|participation|fanout|loss|delay|duplicate|deadline|retries|survivors|colluders|"
    "graph|consensus|steps|restarts"
)
_CHOICES: Final = "publish|trust|method|topology|calibration|neighbours|participation|consensus|noise"


def in_option_words(message: str, *, rows: str = "the table") -> str:
    """A message of an estimator with the names of its parameters replaced by those of the options, and X by `rows`.

    >>> in_option_words("row_bound must be positive, got 0")
    '--row-bound must be positive, got 0'
    >>> in_option_words("energy bounds must be fractions"), in_option_words("horizon is for publish='continual'")
    ('--adapt: energy bounds must be fractions', '--horizon is for --publish continual')
    >>> in_option_words("site 3: Input X contains NaN"), in_option_words("participation is for a star: give topology='star'")
    ('site 3: the table contains NaN', '--participation is for a star: give --topology star')
    >>> in_option_words("noise='published' needs a row_bound"), in_option_words("method='krylov' with steps=3 is not exact")
    ('--noise published needs a --row-bound', '--method krylov with --steps 3 is not exact')
    """
    message = re.sub(r"^Input |\bInput (?=X\b)", "", message)
    message = message.replace("epsilon=None", "--no-privacy").replace("center=None", "--center none")
    message = re.sub(rf"""\b({_CHOICES})=['"]([\w-]+)['"]""", r"--\1 \2", message)
    message = re.sub(r"\b(steps|restarts)=(\d*)", lambda found: f"--{found[1]} {found[2]}".rstrip(), message)
    message = re.sub(r"\b\w+\b", lambda word: {**_NAMES, "X": rows}.get(word.group(), word.group()), message)
    message = re.sub(rf"^({_OPENING})\b", r"--\1", message)
    return re.sub(r"^energy bounds", "--adapt: energy bounds", message)


def numbers_from(name: str, text: str | None) -> float | list[float] | None:
    """One number, or a list of them with commas between.

    >>> numbers_from("--scale", "2"), numbers_from("--scale", "1,2.5")
    (2.0, [1.0, 2.5])
    """
    if text is None:
        return None
    found = [_number(name, part) for part in text.split(",")]
    return found if len(found) > 1 else found[0]


def pair_from(name: str, text: str | None) -> tuple[float, float] | None:
    """Two numbers with a comma between.

    >>> pair_from("--column-bounds", "-1,1")
    (-1.0, 1.0)
    """
    if text is None:
        return None
    parts = text.split(",")
    require(len(parts) == 2, f"{name} must be LOW,HIGH, two numbers with a comma between, got {text!r}")
    return _number(name, parts[0]), _number(name, parts[1])


def bytes_from(name: str, text: str | None) -> int | None:
    """A number of bytes, plain or with a unit.

    >>> bytes_from("--memory-limit", "4096"), bytes_from("--memory-limit", "64MB"), bytes_from("--memory-limit", "1.5 GiB")
    (4096, 64000000, 1610612736)
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*(?:([kmg])(i?)b)?\s*", text, flags=re.IGNORECASE)
    require(found is not None, f"{name} must be bytes such as 4096, 64MB or 1.5GiB, got {text!r}")
    assert found is not None
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmg".index((unit or " ").lower()))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, or numbers with commas between, got {text!r}") from None


def require_choice(epsilon: object, delta: object, *, no_privacy: bool) -> None:
    """Privacy must be asked for or refused aloud, with all that goes with it."""
    require(
        epsilon is None or not no_privacy,
        "--epsilon and --no-privacy contradict each other; give one of them",
    )
    require(
        epsilon is not None or no_privacy,
        "--epsilon is required (try 1); exact PCA, which protects nobody, must be asked for with --no-privacy",
    )
    require(delta is None or not no_privacy, "--delta means nothing with --no-privacy; leave it out")
    require(epsilon is None or delta is not None, "--delta is required: well below one over the number of people")
