"""The options of `eigenveil recommend` beside the declared parameters, and the reading of its files."""

import csv
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, final

from eigenveil.commands._ending import leaves
from eigenveil.commands._files import is_stdin, require_table, standard_input
from eigenveil.commands._options import argument, flag, option
from eigenveil.data.formats import FileParams, TableParams
from eigenveil.errors import ParameterWarning, WeakGuaranteeWarning, require, require_param
from eigenveil.params.declarations.recommend import InteractionsParams, ReadingParams, RecommenderParams
from eigenveil.params.declare import declared, in_options, parameters, validate_params
from eigenveil.show.console import is_seen, output
from eigenveil.show.progress import round_name

if TYPE_CHECKING:
    from rich.status import Status

    from eigenveil.estimators.terms import Round
    from eigenveil.linalg import Array
    from eigenveil.recommend import Interactions, ItemSpace, PrivateRecommender, Quality

__all__ = [
    "ITEMS_READ",
    "ITEMS_READ_CAVEAT",
    "NO_CHOICE",
    "FitParams",
    "degrees_from",
    "is_matrix",
    "items_were_read",
    "read_histories",
    "read_sites",
    "reading_of",
    "require_delta",
    "unread",
]

_FILES: Final = "Which lines and items count"
_JUDGING: Final = "How quality is measured"
# Options of other tables that histories have no use for: their columns have names of their own.
NO_CHOICE: Final = ("columns", "drop", "one_hot")

ITEMS_READ_CAVEAT: Final = "the list of items was read from the histories themselves, and is assumed to be public"
ITEMS_READ: Final = (
    "The list of items was read from the file, and the guarantee assumes that it is public. Even an item that only "
    "one user has appears in the result. A public list is better: --items-file."
)

# Several files are several sites, so that masks and noise at sites can be tried on one machine.
Files: TypeAlias = Annotated[
    list[Path],
    argument(
        "FILE...",
        "Histories: csv (also .tsv, .gz, .zst), Parquet (a file or a folder), Arrow, .xlsx or .jsonl with one interaction "
        "per line, or a matrix of users and items: .npz, .npy or .svm; or - for standard input. Each file is one site, "
        "named after the file. A user must be in one file only.",
    ),
]
Output: TypeAlias = Annotated[
    Path, option("--output", "-o", "FILE", "Write the item space to this .safetensors file.", shows=True)
]
AsJson: TypeAlias = Annotated[bool, flag("--json", "Print JSON, for programs.")]
# Twenty, as papers on recommenders measure it.
First: TypeAlias = Annotated[int, option("--first", "N", "How many items to show.", shows=True, min=1)]

ItemsFile: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE",
        "The public list of items, one per line. Interactions with other items are left out. Without it the items "
        "are those in the file, and which ones occur is assumed public. Several csv or parquet files need it.",
        panel=_FILES,
    ),
]
Share: TypeAlias = Annotated[
    float | None, option(None, "The share of each user's items to hold out, chosen at random.", none_means="0.2", panel=_JUDGING)
]
TestFile: TypeAlias = Annotated[
    Path | None,
    option(
        "--test",
        "FILE",
        "Held-out items in a file like the others, instead of a share. Users are matched by name, or in npz by row.",
        panel=_JUDGING,
    ),
]
# Without the warning of other seeds: figures of an evaluation may not be published anyway.
SeedOfEvaluation: TypeAlias = Annotated[
    int | None, option("--seed", "INTEGER", "Seed of the split and of the noise: figures are reproducible.", panel=_JUDGING)
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
        settings["epsilon"] is not None or settings["delta"] is None, "{delta} has no meaning with {epsilon=None}: leave it out"
    )


def require_histories(files: Sequence[Path], items: Path | None, how: TableParams) -> None:
    """Refuse missing or unreadable files at once, before anything heavy is imported."""
    for path in files:
        alone = len(files) == 1 or not is_stdin(path)
        require(alone, "standard input is one file: give the others by name, or this one alone")
        require_table(path, how)
    require(items is None or items.is_file(), f"{items} does not exist or is not a file")


def read_histories(path: Path, how: TableParams, **reading: Any) -> "Interactions":
    """The histories in a file, a folder of Parquet files, or standard input."""
    from eigenveil.recommend.reading import interactions_in

    params = validate_params(InteractionsParams, InteractionsParams(**reading))
    return interactions_in(standard_input() if is_stdin(path) else path, params, files_of(how))


def files_of(how: TableParams) -> FileParams:
    """The options about files alone."""
    return FileParams(**{name: getattr(how, name) for name in declared(FileParams)})


def read_sites(files: Sequence[Path], how: TableParams, *, items: Path | None, **reading: Any) -> dict[str, "Interactions"]:
    """The histories in each file, by file name. All files must have the same items, and no user may be in two of
    them."""
    # One file may have the list of items in itself. Several could not agree on one without telling each other.
    several, named = len(files) > 1, {}
    if several:
        require(
            items is not None or all(is_matrix(path, how) for path in files),
            "several files need a public list of all items: pass --items-file. All sites must have the same items, "
            "and no site may see which items the others have",
        )
    for path in files:
        name = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
        require(
            name not in named, f"{path}: another file is named {name!r} too. Rename one, as each site is named after its file"
        )
        # An npz file has no named columns, and the reader refuses any but the default names.
        named[name] = read_histories(path, how, items=items, **reading)
    # Refuse a user at two sites, who would be protected at each of them only separately. Only names can tell, and they are
    # compared here and stored nowhere.
    users: set[str] = set()
    for name, plays in named.items():
        require(
            users.isdisjoint(plays.users or ()),
            f"{name} has users who are also in an earlier file. To protect whole histories, each user must be at "
            "one site. Put all lines of a user in one file, or give different people different names",
        )
        users.update(plays.users or ())
    return named


def unread(files: Sequence[Path], reading: Mapping[str, Any], how: TableParams) -> list[str]:
    """A note about columns that are not read, because one of them may contain ratings."""
    from eigenveil.recommend.reading import columns_not_read

    columns = {name: reading[name] for name in ("user", "item", "value")}
    # What came through a pipe is gone.
    paths, file_params = [path for path in files if not is_stdin(path)], files_of(how)
    names = sorted({name for path in paths for name in columns_not_read(path, **columns, how=file_params)})
    if not names:
        return []
    return [
        f"columns not read: {', '.join(names)}. To use ratings, name their column with --value and the lowest that "
        "counts with --min-rating"
    ]


def degrees_from(source: str | None, *, items: tuple[str, ...] | None, dim: int) -> Any:
    """Item degrees for the recommender: None, "private", or a public number for each item from a csv file."""
    if source is None or source == "private":
        return source
    path = Path(source)
    require(path.is_file(), f"--item-degrees must be none, private or a csv file, but {path} is not a file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            first, *rest = [fields for fields in csv.reader(lines, strict=True) if fields] or [[]]
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"--item-degrees: {path} is not a list of comma-separated values") from None
    good = first == ["item", "degree"] and all(len(fields) == 2 for fields in rest)
    require(good, f"--item-degrees: {path} must start with the line item,degree and then have an item and its degree per line")
    degrees: dict[str, float] = {}
    for item, text in rest:
        require(item not in degrees, f"--item-degrees: {path} has {item!r} more than once")
        try:
            degree = float(text)
        except ValueError:
            degree = math.nan
        require(
            math.isfinite(degree) and degree >= 0,
            f"--item-degrees: {path}: the degree of {item!r} must be a non-negative number, got {text!r}",
        )
        degrees[item] = degree
    # Items of a matrix have numbers, which the csv then has as well.
    names = items if items is not None else tuple(map(str, range(dim)))
    missing = next((name for name in names if name not in degrees), None)
    require(missing is None, f"--item-degrees: {path} has no degree for {missing!r}: every item needs one")
    return [degrees[name] for name in names]


def items_were_read(files: Sequence[Path], items: Path | None, how: TableParams) -> bool:
    """Whether the list of items came from the histories themselves."""
    return items is None and not all(is_matrix(path, how) for path in files)


def is_matrix(path: Path, how: TableParams) -> bool:
    from eigenveil.recommend.reading import format_of_histories

    return not is_stdin(path) and not format_of_histories(path, files_of(how)).has_names


@final
class RecommendView:
    """Shows the current step and the last finished round. Changes in place."""

    def __init__(self, status: "Status | None", step: str) -> None:
        self.last: Round | None = None
        self._status, self._words = status, step

    def say(self, step: str) -> None:
        """Show that another step has started."""
        self._words = step
        self._update(step)

    def see(self, done: "Round") -> None:
        """Show that a round has finished."""
        self.last = done
        self._update(f"{self._words}: {round_name(done)} is done")

    @property
    def reached(self) -> str:
        """How far the run got."""
        return "no round had finished" if self.last is None else f"{round_name(self.last)} had finished"

    def _update(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)


@contextmanager
def progress(step: str) -> Iterator[RecommendView]:
    """Show progress on stderr, if that is a terminal. Ctrl-C then says how far the run got."""
    console = output(stderr=True)
    with console.status(step) if is_seen(console) else nullcontext() as status:
        # Also without a terminal: after Ctrl-C it knows how far the run got.
        view = RecommendView(status, step)
        try:
            yield view
        except KeyboardInterrupt:
            leaves(f"{view.reached}, and nothing was written")
            raise


def fitted_on(
    sites: Mapping[str, "Interactions"], settings: Mapping[str, Any], view: RecommendView
) -> tuple["PrivateRecommender", list[str]]:
    """The fitted recommender, and its warnings."""
    from eigenveil.recommend import PrivateRecommender

    first = next(iter(sites.values()))
    # Degrees can be matched to columns only now that the item names are known.
    degrees = degrees_from(settings["item_degrees"], items=first.items, dim=first.matrix.shape[1])
    view.say("fitting the exact filter" if settings["epsilon"] is None else "fitting the private filter")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        # The guarantee says it too.
        warnings.simplefilter("ignore", WeakGuaranteeWarning)
        fitted = PrivateRecommender(**{**settings, "item_degrees": degrees}).fit(sites, watch=view.see)
    spelling = in_options(FitParams)
    messages = (warning.message for warning in caught)
    return fitted, [message.said(spelling) if isinstance(message, ParameterWarning) else str(message) for message in messages]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Training histories by site; and for all users together, (n, d) each, the training and the held-out items."""

    sites: Mapping[str, "Interactions"]
    train: Any
    test: Any


def held_out(sites: Mapping[str, "Interactions"], share: float, seed: int | None) -> Parts:
    """Hold out a share of each user's items."""
    import numpy as np
    import scipy.sparse as sp

    from eigenveil.recommend import Interactions, split

    # A separate random stream, so that the split is independent of the start basis and the noise.
    rng = np.random.default_rng(None if seed is None else [seed, 2])
    training, held = {}, []
    for name, plays in sites.items():
        train, test = split(plays.matrix, share=share, rng=rng)
        training[name] = Interactions(train, plays.users, plays.items)
        held.append(test)
    return Parts(training, _pooled(training), sp.csr_array(sp.vstack(held, format="csr")))


def given_split(sites: Mapping[str, "Interactions"], path: Path, how: TableParams, columns: Mapping[str, Any]) -> Parts:
    """Held-out items from a separate file. Users of that file alone have no training items. Training items are never
    held out."""
    import numpy as np
    import scipy.sparse as sp

    from eigenveil.recommend import Interactions

    first, train = next(iter(sites.values())), _pooled(sites)
    test = read_histories(path, how, items=first.items, **columns)
    named = [plays.users is not None for plays in (*sites.values(), test)]
    require(all(named) or not any(named), f"--test {path} and the other files must all have user names, or none may")
    held = test.matrix
    if all(named):
        users = [user for plays in sites.values() for user in plays.users or ()]
        # Users of the test file alone come after all others, with no training items.
        index = {user: at for at, user in enumerate(users)}
        for user in test.users or ():
            index.setdefault(user, len(index))
        entries = held.tocoo()
        rows = np.array([index[user] for user in test.users or ()], dtype=np.intp)[entries.row]
        held = sp.csr_array((entries.data, (rows, entries.col)), shape=(len(index), held.shape[1]))
        train = sp.csr_array(sp.vstack([train, sp.csr_array((len(index) - len(users), train.shape[1]))], format="csr"))
    require(
        held.shape == train.shape,
        f"--test {path} must have the same items as the other files, and the same users in the same order",
    )
    # An item that the user already has is never recommended, so it must not count as missed.
    return Parts(sites, train, Interactions(held - held.multiply(train)).matrix)


def _pooled(sites: Mapping[str, "Interactions"]) -> Any:
    import scipy.sparse as sp

    return sp.csr_array(sp.vstack([plays.matrix for plays in sites.values()], format="csr"))


def judged(parts: Parts, settings: Mapping[str, Any], n: int, view: RecommendView) -> tuple[dict[str, "Quality"], list[str]]:
    """The quality of the private filter, of an exact filter of the same size, and of popularity; and the first one's
    warnings."""
    import numpy as np

    from eigenveil.recommend import Interactions, evaluate, popularity_scores

    epsilon = settings["epsilon"]
    qualities: dict[str, Quality] = {}
    notes: list[str] = []
    if epsilon is not None:
        private, notes = fitted_on(parts.sites, settings, view)
        qualities[f"private, epsilon = {epsilon:g}"] = _quality(private.space_, parts, n, view)
    items = next(iter(parts.sites.values())).items
    # All histories at one place and no noise: what the private fit would find without privacy.
    alone = {"epsilon": None, "delta": None, "trust": "hub", "survivors": None, "colluders": 1}
    exact, _ = fitted_on({"all": Interactions(parts.train, items=items)}, {**settings, **alone}, view)
    qualities["exact, not private"] = _quality(exact.space_, parts, n, view)
    popularity = popularity_scores(parts.train)

    def scores(rows: Any) -> "Array":
        return np.tile(popularity, (rows.shape[0], 1))

    qualities["popularity, not private"] = evaluate(scores, parts.train, parts.test, n=n)
    first = next(iter(qualities.values()))
    if first.recall < qualities["popularity, not private"].recall:
        notes = [
            *notes,
            "popularity, the same list for all users, does better than this filter. Try a smaller -k, or what the plan advises",
        ]
    return qualities, notes


def _quality(space: "ItemSpace", parts: Parts, n: int, view: RecommendView) -> "Quality":
    """The quality of the same lists that a user's device would show."""
    from eigenveil.recommend import evaluate

    view.say("recommending to every user")
    require(parts.test.nnz > 0, "nothing is held out: no user has two items or more, or the test file has none")
    return evaluate(space, parts.train, parts.test, n=n)
