"""The options of `eigenveil recommend` beside the declared parameters, and the reading of its files."""

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
_JUDGING: Final = "How quality is measured"

ITEMS_READ_CAVEAT: Final = "the list of items was read from the histories themselves, and is assumed to be public"
ITEMS_READ: Final = (
    "The list of items was read from the file, and the guarantee assumes that it is public. Even an item that only "
    "one user has appears in the result. A public list is better: --items-file."
)

# Several files are several sites, so that masks and noise at sites can be tried on one machine.
Files: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Histories: csv (also .tsv, .gz, .zst), .parquet, Arrow or .xlsx with one interaction per line, or .npz with a "
        "scipy sparse matrix of users and items. Each file is one site, named after the file. A user must be in one file only.",
        show_default=False,
    ),
]
Output: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Write the item space to this .safetensors file.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
# Twenty, as papers on recommenders measure it.
First: TypeAlias = Annotated[int, typer.Option("--first", min=1, metavar="N", help="How many items to show.")]

ItemsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The public list of items, one per line. Interactions with other items are left out. Without it the items "
        "are those in the file, and which ones occur is assumed public. Several csv or parquet files need it.",
        rich_help_panel=_FILES,
        show_default=False,
    ),
]
Share: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="The share of each user's items to hold out, chosen at random.",
        rich_help_panel=_JUDGING,
        show_default="0.2",
    ),
]
TestFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--test",
        metavar="FILE",
        help="Held-out items in a file like the others, instead of a share. Users are matched by name, or in npz by row.",
        rich_help_panel=_JUDGING,
        show_default=False,
    ),
]
# Without the warning of other seeds: figures of an evaluation may not be published anyway.
SeedOfEvaluation: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="INTEGER",
        help="Seed of the split and of the noise: figures are reproducible.",
        rich_help_panel=_JUDGING,
        show_default=False,
    ),
]


@parameters()
class FitParams(ReadingParams, RecommenderParams):
    """The parameters of `recommend fit` and `recommend evaluate`: which lines count, and what is learned from
    them."""


def reading_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Move the parameters for reading files out of `settings`, which keeps those of the recommender."""
    return {name: settings.pop(name) for name in declared(ReadingParams)}


def require_delta(settings: Mapping[str, Any]) -> None:
    """Refuse a delta without privacy. With privacy it has a default where the number of users is public."""
    require_param(
        settings["epsilon"] is not None or settings["delta"] is None,
        "{delta} has no meaning with {epsilon=None}: leave it out",
    )


def require_histories(files: Sequence[Path], items: Path | None) -> None:
    """Refuse missing or unreadable files at once, before anything heavy is imported."""
    for path in files:
        require_input(path, endings=HISTORIES)
    require(items is None or items.is_file(), f"{items} does not exist or is not a file")


def read_sites(files: Sequence[Path], *, items: Path | None, **reading: Any) -> dict[str, "Interactions"]:
    """The histories in each file, by file name. All files must have the same items, and no user may be in two of
    them."""
    from eigenveil.recommend import read_interactions

    # One file may have the list of items in itself. Several could not agree on one without telling each other.
    several, named = len(files) > 1, {}
    if several:
        require(
            items is not None or all(_is_matrix(path) for path in files),
            "several files need a public list of all items: pass --items-file. All sites must have the same items, "
            "and no site may see which items the others have",
        )
    for path in files:
        name = _stem(path)
        require(
            name not in named,
            f"{path}: another file is named {name!r} too. Rename one, as each site is named after its file",
        )
        # An npz file has no named columns, and the reader refuses any but the default names.
        named[name] = read_interactions(path, items=items, **reading)
    # After all files are read: only then is it known who is in two of them.
    _require_each_user_once(named)
    return named


def unread(files: Sequence[Path], reading: Mapping[str, Any]) -> list[str]:
    """A note about columns that are not read, because one of them may contain ratings."""
    from eigenveil.recommend.reading import columns_not_read

    asked = {name: reading[name] for name in ("user", "item", "value")}
    names = sorted({name for path in files for name in columns_not_read(path, **asked)})
    if not names:
        return []
    return [
        f"columns not read: {', '.join(names)}. To use ratings, name their column with --value and the lowest that "
        "counts with --at-least"
    ]


def _require_each_user_once(sites: Mapping[str, "Interactions"]) -> None:
    """Refuse a user at two sites, who would be protected at each of them only separately. Only names can tell."""
    # Names are compared here and nowhere kept.
    seen: set[str] = set()
    for name, plays in sites.items():
        require(
            seen.isdisjoint(plays.users or ()),
            f"{name} has users who are also in an earlier file. To protect whole histories, each user must be at "
            "one site. Put all lines of a user in one file, or give different people different names",
        )
        seen.update(plays.users or ())


def degrees_from(text: str | None, *, items: tuple[str, ...] | None, dim: int) -> Any:
    """Item degrees for the recommender: None, "private", or a public number for each item from a csv file."""
    if text is None or text == "private":
        return text
    path = Path(text)
    require(path.is_file(), f"--item-degrees must be none, private or a csv file, but {path} is not a file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            first, *rest = [fields for fields in csv.reader(lines, strict=True) if fields] or [[]]
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"--item-degrees: {path} is not a list of comma-separated values") from None
    good = first == ["item", "degree"] and all(len(fields) == 2 for fields in rest)
    require(
        good,
        f"--item-degrees: {path} must start with the line item,degree and then have an item and its degree per line",
    )
    found: dict[str, float] = {}
    for item, degree in rest:
        require(item not in found, f"--item-degrees: {path} has {item!r} more than once")
        found[item] = _degree(path, item, degree)
    # Items of a matrix have numbers, which the csv then has as well.
    names = items if items is not None else tuple(map(str, range(dim)))
    missing = next((name for name in names if name not in found), None)
    require(missing is None, f"--item-degrees: {path} has no degree for {missing!r}: every item needs one")
    return [found[name] for name in names]


def _degree(path: Path, item: str, text: str) -> float:
    try:
        degree = float(text)
    except ValueError:
        degree = math.nan
    require(
        math.isfinite(degree) and degree >= 0,
        f"--item-degrees: {path}: the degree of {item!r} must be a non-negative number, got {text!r}",
    )
    return degree


def items_were_read(files: Sequence[Path], items: Path | None) -> bool:
    """Whether the list of items came from the histories themselves."""
    return items is None and not all(_is_matrix(path) for path in files)


def _is_matrix(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name
