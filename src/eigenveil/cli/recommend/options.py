"""The options that `eigenveil recommend` has beside the declared parameters, and how they become settings and histories."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from eigenveil.cli._files import require_input
from eigenveil.data.archive import HISTORIES
from eigenveil.errors import require, require_param
from eigenveil.params import ReadingParams, RecommenderParams, declared, parameters

if TYPE_CHECKING:
    from eigenveil.recommend import Interactions

__all__ = [
    "ITEMS_READ",
    "ITEMS_READ_CAVEAT",
    "FitParams",
    "degrees_from",
    "items_were_read",
    "read_sites",
    "reading_of",
    "require_delta",
    "unread",
]

_FILES: Final = "Which lines and items count"
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
Output: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where the item space goes, a .safetensors file.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="The same for programs, as JSON.")]
First: TypeAlias = Annotated[int, typer.Option("--first", min=1, metavar="N", help="How many items are shown.")]

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
        metavar="INTEGER",
        help="Fixes what is held out, and the noise: figures are reproducible.",
        rich_help_panel=_JUDGING,
        show_default=False,
    ),
]


@parameters()
class FitParams(ReadingParams, RecommenderParams):
    """What `recommend fit` and `recommend evaluate` are asked for: which lines count, and what is learned from them."""


def reading_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Which lines count; taken out of `settings`, of which those of the recommender are left."""
    return {name: settings.pop(name) for name in declared(ReadingParams)}


def require_delta(settings: Mapping[str, Any]) -> None:
    """Refuse a delta where nobody is protected. Where somebody is, and the number of users is public, it may be left out."""
    require_param(
        settings["epsilon"] is not None or settings["delta"] is None,
        "{delta} means nothing with {epsilon=None}; leave it out",
    )


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


def unread(files: Sequence[Path], reading: Mapping[str, Any]) -> list[str]:
    """A line about columns that nobody has asked to read: one of them may hold ratings."""
    from eigenveil.recommend.reading import columns_not_read

    asked = {name: reading[name] for name in ("user", "item", "value")}
    names = sorted({name for path in files for name in columns_not_read(path, **asked)})
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


def degrees_from(text: str | None, *, items: tuple[str, ...] | None, dim: int) -> Any:
    """Item degrees as the recommender takes them: None, "private", or a public number for each item from a csv file."""
    if text is None or text == "private":
        return text
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
