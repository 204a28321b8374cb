"""The options of `eigenveil recommend`, each with the words its --help shows, and how they become settings and histories."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from eigenveil.cli import options as option
from eigenveil.cli.files import require_input
from eigenveil.cli.simulate_options import number_or_share
from eigenveil.errors import require
from eigenveil.files import HISTORIES

if TYPE_CHECKING:
    from eigenveil.recommend import Interactions

__all__ = [
    "ITEMS_READ",
    "ITEMS_READ_CAVEAT",
    "degrees_from",
    "estimator_settings",
    "in_words",
    "items_were_read",
    "read_sites",
    "unread",
]

_FILES: Final = "Which lines and items count"
_PRIVACY: Final = "Privacy"
_METHOD: Final = "Method"
_JUDGING: Final = "How it is judged"

ITEMS_READ_CAVEAT: Final = "which items there are was read from the histories themselves, and is assumed to be public"
ITEMS_READ: Final = (
    "Which items there are was read from the file, and the guarantee assumes that it is public: even an item that a single user "
    "has shows in the result. A public list is better: --items-file."
)

Files: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="Who has what: .csv (or .csv.gz) or .parquet with a line for each interaction, or .npz with a scipy sparse matrix "
        "of users and items. Several files are several sites, called as the files are, and each user is in one of them.",
        show_default=False,
    ),
]
Components: TypeAlias = Annotated[
    int,
    typer.Option(
        "--components",
        "-k",
        metavar="K",
        help="How many directions the filter lets through. 8 to 64 are usual; more need more users.",
        show_default=False,
    ),
]
Output: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", help="Where the item space goes, a .safetensors file.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="The same for programs, as JSON.")]
Number: TypeAlias = Annotated[int, typer.Option("--n", "-n", min=1, metavar="N", help="How many items are shown.")]

User: TypeAlias = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column that says who.", rich_help_panel=_FILES)
]
Item: TypeAlias = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column that says what.", rich_help_panel=_FILES)
]
Value: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column of ratings, or of 1 and 0.",
        rich_help_panel=_FILES,
        show_default="value, if there is such a column",
    ),
]
AtLeast: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="RATING",
        help="Lines with a smaller value are no interactions.",
        rich_help_panel=_FILES,
        show_default=False,
    ),
]
ItemsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The public list of items, one on each line; lines with others are left out. Without it the items are those in the "
        "file, and which ones occur is taken to be public. Several csv or parquet files need it.",
        rich_help_panel=_FILES,
        show_default=False,
    ),
]
KeepItems: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="C",
        help="Use the C most popular items, by counts that are released for a tenth of the budget. Fewer items drown less.",
        rich_help_panel=_FILES,
        show_default="all of them",
    ),
]
Delta: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="The chance that the promise of epsilon fails.",
        rich_help_panel=_PRIVACY,
        show_default="a tenth of one over the number of users, at most 1e-5, where that is public",
    ),
]
NoPrivacy: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-privacy", help="The exact filter. Nobody is protected, and the file says so.", rich_help_panel=_PRIVACY
    ),
]
Unit: TypeAlias = Annotated[
    Literal["user", "item"],
    typer.Option(
        metavar="WHICH",
        help="What is protected. user: a user's whole history. item: one interaction of a user, which is far weaker.",
        rich_help_panel=_PRIVACY,
    ),
]
NeighboursName: TypeAlias = Annotated[
    Literal["zero-out", "add-remove", "replace-one"],
    typer.Option(
        "--neighbours",
        metavar="WHICH",
        help="For --unit user, what must be hard to tell. zero-out: whether a history was blanked; the number of users is "
        "public. add-remove: whether the user was there at all; then --delta is needed, and nobody can say beforehand what to "
        "expect. replace-one: whether the history was another one.",
        rich_help_panel=_PRIVACY,
    ),
]
Trust: TypeAlias = Annotated[
    Literal["curator", "site", "masked"],
    typer.Option(
        metavar="WHO",
        help="Who adds the noise. curator: whoever runs this, and sees the sums. site: every site, for sqrt(sites) times the "
        "noise. masked: the sites together, under masks that come off the sum alone, for little more noise "
        "than a curator's where sites are many.",
        rich_help_panel=_PRIVACY,
    ),
]
Survivors: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="For --trust masked: how many sites must be in each sum, such as 8, or which share of them, such as 0.8.",
        rich_help_panel=_PRIVACY,
        show_default="all",
    ),
]
Colluders: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="For --trust masked: how many sites may tell the hub all they know.",
        rich_help_panel=_PRIVACY,
        show_default="1",
    ),
]
MinDegree: TypeAlias = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="M",
        help="Histories are divided by the root of how many items they have, but at least of M. Say it without looking at these "
        "histories. With --unit item a larger one means less noise.",
        rich_help_panel=_METHOD,
    ),
]
ItemDegrees: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="How popular items are, for the filter. none: left out. private: released for a twentieth of the budget. Or a csv "
        "of public numbers, whose first line is item,degree.",
        rich_help_panel=_METHOD,
    ),
]
Normalise: TypeAlias = Annotated[
    Literal["filter", "both"],
    typer.Option(
        metavar="WHERE",
        help="Where item degrees are used. filter: in the filter. both: on the histories before the fit as well.",
        rich_help_panel=_METHOD,
    ),
]
MechanismName: TypeAlias = Annotated[
    Literal["auto", "covariance", "power"],
    typer.Option(
        "--mechanism",
        metavar="WHICH",
        help="covariance: one noisy matrix of all pairs of items. power: noisy products with a few vectors, for very many items. "
        "auto: covariance where it fits in memory, but for single items among very many.",
        rich_help_panel=_METHOD,
    ),
]
HistoryLength: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--history",
        metavar="ITEMS",
        help="About how many items a user has, if you know it without looking. It changes what to expect, and nothing else.",
        rich_help_panel=_METHOD,
        show_default="40",
    ),
]
EvenIfNoise: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--even-if-noise",
        help="Go on where the budget is expected to give little but noise, which is refused otherwise.",
        rich_help_panel=_METHOD,
    ),
]

Share: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="Which share of each user's items is held out, drawn at random.",
        rich_help_panel=_JUDGING,
        show_default="0.2",
    ),
]
TestFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--test",
        metavar="FILE",
        help="What is held out, in place of a share: a file like the others. Users are matched by name, or in npz by row.",
        rich_help_panel=_JUDGING,
        show_default=False,
    ),
]
SeedOfEvaluation: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Fixes what is held out, and the noise: the same figures again.",
        rich_help_panel=_JUDGING,
        show_default=False,
    ),
]

# Names of parameters, wherever they stand in a message, and what they are here.
_WORDS: Final = (
    (r"items=\[\.\.\.\]", "--items-file"),
    (r"\bitems=(\d+)", r"--keep-items \1"),
    (r"^items(?= must be )", "--keep-items"),
    (r"\bepsilon=(?!None)", "--epsilon "),
    (r"\bn_components=", "--components "),
    (r"\b(unit|mechanism|normalise)='(\w+)'", r"--\1 \2"),
    (r"\bon_noise='warn'", "--even-if-noise"),
    (r"\bmin_degree\b", "--min-degree"),
    (r"\bitem_degrees\b", "--item-degrees"),
    (r"\bwith history=", "with --history"),
    (r"^(history|normalise|neighbours)\b", r"--\1"),
)


def in_words(message: str) -> str:
    """A message of the recommender with the names of its parameters replaced by those of the options.

    >>> in_words("epsilon=3; or n_components=8; or items=200; or unit='item'; on_noise='warn' goes on")
    '--epsilon 3; or --components 8; or --keep-items 200; or --unit item; --even-if-noise goes on'
    """
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return option.in_option_words(message)


def estimator_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of `PrivateRecommender`, but for item degrees, which need the names of items, from the options of a command."""
    epsilon, delta, exact = given["epsilon"], given["delta"], given["no_privacy"]
    require(epsilon is None or not exact, "--epsilon and --no-privacy contradict each other; give one of them")
    require(
        epsilon is not None or exact,
        "--epsilon is required (try 1); the exact filter, which protects nobody, must be asked for with --no-privacy",
    )
    require(delta is None or not exact, "--delta means nothing with --no-privacy; leave it out")
    require(
        exact or delta is not None or given["neighbours"] != "add-remove",
        "--delta is required with --neighbours add-remove, which keeps the number of users private: well below one over it",
    )
    for name in ("survivors", "colluders"):
        require(given["trust"] == "masked" or given[name] is None, f"--{name} is for --trust masked")
    seed = given["seed"]
    require(seed is None or seed >= 0, f"--seed must not be negative, got {seed}")
    return {
        "n_components": given["components"],
        "epsilon": epsilon,
        "delta": delta,
        "unit": given["unit"],
        "neighbours": given["neighbours"],
        "trust": given["trust"],
        "survivors": number_or_share("--survivors", given["survivors"]),
        "colluders": 1 if given["colluders"] is None else given["colluders"],
        "items": given["keep_items"],
        "min_degree": given["min_degree"],
        "normalise": given["normalise"],
        "mechanism": given["mechanism"],
        "history": given["history"],
        "on_noise": "warn" if given["even_if_noise"] else "raise",
        "random_state": seed,
    }


def require_histories(files: Sequence[Path], items: Path | None) -> None:
    """Refuse at once, before anything heavy is imported, files that are not there or cannot be read."""
    for path in files:
        require_input(path, endings=HISTORIES)
    require(items is None or items.is_file(), f"{items} does not exist or is not a file")


def read_sites(files: Sequence[Path], *, items: Path | None, **reading: Any) -> dict[str, "Interactions"]:
    """The histories in each file, by the name of the file: the same items everywhere, and no user twice."""
    from eigenveil.recommend import read_interactions

    several, named = len(files) > 1, {}
    if several:
        require(
            items is not None or all(_is_matrix(path) for path in files),
            "several files need a public list of all items, --items-file: each site must have the same, and what others have is "
            "not for one to see",
        )
    for path in files:
        name = _stem(path)
        require(
            name not in named, f"{path}: there is a file called {name!r} already, and sites are called as files are"
        )
        # An npz file has no columns with names; the reader refuses any but the usual ones.
        named[name] = read_interactions(path, items=items, **reading)
    _require_each_user_once(named)
    return named


def unread(files: Sequence[Path], *, user: str, item: str, value: str | None) -> list[str]:
    """A line about columns that nobody has asked to read: one of them may hold ratings."""
    from eigenveil.recommend.reading import columns_not_read

    names = sorted({name for path in files for name in columns_not_read(path, user=user, item=item, value=value)})
    if not names:
        return []
    return [
        f"columns not read: {', '.join(names)}. Ratings are read with --value, and --at-least says which of them count"
    ]


def _require_each_user_once(sites: Mapping[str, "Interactions"]) -> None:
    """Who is at two sites would be protected at each of them alone. Who users are is known where they have names."""
    seen: set[str] = set()
    for name, plays in sites.items():
        require(
            seen.isdisjoint(plays.users or ()),
            f"{name} has users whom a file before it has, too. Each user must be at one site, to be protected with their whole "
            "history: put all lines of a user in one file, or give different people different names",
        )
        seen.update(plays.users or ())


def degrees_from(text: str, *, items: tuple[str, ...] | None, dim: int) -> Any:
    """Item degrees as the recommender takes them: None, "private", or a public number for each item from a csv file."""
    if text in ("none", "private"):
        return None if text == "none" else text
    path = Path(text)
    require(path.is_file(), f"--item-degrees must be none, private or a csv file, and {path} is no file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            first, *rest = [fields for fields in csv.reader(lines, strict=True) if fields] or [[]]
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"--item-degrees: {path} is not a list of comma-separated values") from None
    good = first == ["item", "degree"] and all(len(fields) == 2 for fields in rest)
    require(
        good, f"--item-degrees: the first line of {path} must be item,degree, and each other an item and its degree"
    )
    found: dict[str, float] = {}
    for item, degree in rest:
        require(item not in found, f"--item-degrees: {path} has {item!r} more than once")
        found[item] = _degree(path, item, degree)
    names = items if items is not None else tuple(map(str, range(dim)))
    missing = next((name for name in names if name not in found), None)
    require(missing is None, f"--item-degrees: {path} has no degree of {missing!r}; there must be one for each item")
    return [found[name] for name in names]


def _degree(path: Path, item: str, text: str) -> float:
    try:
        degree = float(text)
    except ValueError:
        degree = math.nan
    require(
        math.isfinite(degree) and degree >= 0,
        f"--item-degrees: {path}: the degree of {item!r} must be a number that is not negative, got {text!r}",
    )
    return degree


def items_were_read(files: Sequence[Path], items: Path | None) -> bool:
    """Whether which items there are came from the histories themselves."""
    return items is None and not all(_is_matrix(path) for path in files)


def _is_matrix(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name
