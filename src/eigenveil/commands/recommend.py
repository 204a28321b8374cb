"""`eigenveil recommend`: learns a private item space from histories, recommends items to a user, and measures
quality."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from eigenveil.commands import _histories as choice
from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command, Group
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import require_output
from eigenveil.commands._histories import fitted_on, given_split, held_out, judged, progress
from eigenveil.commands._options import argument, option
from eigenveil.data.formats import TableParams
from eigenveil.errors import plain, require, require_param
from eigenveil.params.declarations.recommend import ReadingParams
from eigenveil.show.console import Line, output

if TYPE_CHECKING:
    from eigenveil.recommend import ItemSpace, PrivateRecommender
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

_FOR_THAT_USER: Final = "for this user alone: the list was made from their own history and would reveal it to anybody else"
_ONE_PROGRAM: Final = "one program read the files of all sites, so the guarantee does not protect against the person who ran it"


def group() -> None:
    """Recommendations from histories that stay private.

    Learn once, with a guarantee, which items go together. Then each user's
    own device makes recommendations from that user's own history:

      eigenveil recommend fit plays.csv -k 16 --epsilon 1
      eigenveil recommend top items.safetensors --have jazz --have soul

    Measure how good they are, if you may see the histories:

      eigenveil recommend evaluate plays.csv -k 16 --epsilon 1
    """


def fit(
    files: choice.Files,
    settings: dict[str, Any],
    reading: TableParams,
    items_file: choice.ItemsFile = None,
    target: choice.Output = Path("items.safetensors"),
    force: common.Force = False,
) -> Answer:
    """Learn which items go together, with a privacy guarantee.

    Example: one user and item per line, protecting the whole history of
    each user at epsilon 1:

      eigenveil recommend fit plays.csv -k 16 --epsilon 1

    Example: ratings of 4 and 5 count, items come from a public list, and
    the 500 most popular of them are used:

      eigenveil recommend fit ratings.parquet -k 16 --epsilon 1 \\
        --user person --item film --value stars --min-rating 4 \\
        --items-file catalogue.txt --keep-items 500

    Example: three shops and a hub that never sees one shop's sums,
    simulated by a person who has all three files:

      eigenveil recommend fit north.csv south.csv west.csv -k 8 \\
        --items-file catalogue.txt --epsilon 1 --trust masked

    Before anything is spent, a plan from public numbers says what to
    expect. A budget that would find only noise is refused, with advice on
    what would work. The result may be published. Fitting the same
    users again spends more of their budget.
    """
    choice.require_delta(settings)
    choice.require_histories(files, items_file, reading)
    require_output(target, endings=(".safetensors",), force=force, inputs=files)
    columns = choice.reading_of(settings)
    with progress("reading histories") as view:
        sites = choice.read_sites(files, reading, items=items_file, **columns)
        fitted, notes = fitted_on(sites, settings, view)
    # Whether the list of items came from the histories is a fact that only this command knows.
    items_read = choice.items_were_read(files, items_file, reading)
    space = replace(_space(fitted, items_read=items_read), warnings=tuple(notes))
    space.save(target)
    wrote(target)

    def shown() -> "View":
        from eigenveil.show.recommend import fit_view
        from eigenveil.show.terminal import guarantee_panel, warning_panel

        yield from fit_view(sites, fitted, notes, seeded=common.SEEDED)
        for note in choice.unread(files, columns, reading):
            yield Line(note, "yellow")
        yield ""
        yield guarantee_panel(space.guarantee)
        if items_read and space.guarantee.epsilon is not None:
            yield warning_panel(choice.ITEMS_READ)
        yield Line(f"\nitem space written to {target}")
        yield Line(f"use it with: eigenveil recommend top {target} --have ITEM", "dim")

    return Answer(view=shown)


def top(
    settings: dict[str, Any],
    reading: TableParams,
    model: Annotated[Path, argument("ITEMS", "An item space that `recommend fit` wrote.")],
    have: Annotated[list[str] | None, option("ITEM", "An item that the user has. Repeat for several.")] = None,
    have_file: Annotated[Path | None, option("FILE", "The user's items, one on each line.")] = None,
    source: Annotated[Path | None, option("--from", "FILE", "A table of histories as for `recommend fit`. Needs --who.")] = None,
    who: Annotated[str | None, option("USER", "The user in --from: a name, or for npz a row number from 0.")] = None,
    first: choice.First = 20,
    as_json: choice.AsJson = False,
) -> Answer:
    """The best items for one user, best first, without those they have.

    Give the user's items one by one, in a file, or from a table:

      eigenveil recommend top items.safetensors --have jazz --have soul
      eigenveil recommend top items.safetensors --have-file mine.txt --first 5
      eigenveil recommend top items.safetensors --from plays.csv --who ann

    A user without items gets popular ones. THE LIST IS FOR THAT USER ALONE:
    the guarantee covers the item space, but not a list made from a user's
    own history.
    """
    from eigenveil.recommend import ItemSpace

    # Exactly one source of the user's items: two could contradict each other.
    sources = [name for name, it in (("--have", have), ("--have-file", have_file), ("--from", source)) if it]
    require(len(sources) > 0, "the user's items are missing. Give --have ITEM, --have-file FILE, or --from FILE --who USER")
    require(len(sources) == 1, f"{' and '.join(sources)} both give the user's items: choose one of them")
    require((source is None) == (who is None), "--from and --who go together: a table of histories, and the user")
    # A damaged space is refused before a large table is read.
    space = ItemSpace.load(model)
    if source is not None and who is not None:
        choice.require_histories([source], None, reading)
        with progress("reading histories"):
            catalogue: Sequence[Any] | None = space.items
            if catalogue is None and not choice.is_matrix(source, reading):
                catalogue = range(space.dim)
            plays = choice.read_histories(source, reading, items=catalogue, **settings)
            row = plays.row(int(who) if plays.users is None and who.isdecimal() else who)
    else:
        row = _history(_typed_items(have, have_file), space)
    # Places beyond the last item are marked with -1 where there are fewer.
    numbers = [at for at in space.top(row, n=first)[0].tolist() if at >= 0]
    items = numbers if space.items is None else [space.items[at] for at in numbers]
    popular = (row if space.columns is None else row[:, space.columns]).nnz == 0

    def view() -> "View":
        if popular:
            note = "this user has none of the items in use, so these are popular items"
            output(stderr=True).print(note, style="yellow", soft_wrap=True)
        output(stderr=True).print(_FOR_THAT_USER, style="dim", soft_wrap=True)
        # The file may come from anywhere, and a terminal would obey its control characters.
        yield from (Line(plain(item)) for item in items)

    return Answer(view=view, values=lambda: {"items": items, "popular": popular, "note": _FOR_THAT_USER})


def evaluate(
    files: choice.Files,
    settings: dict[str, Any],
    reading: TableParams,
    items_file: choice.ItemsFile = None,
    share: choice.Share = None,
    test: choice.TestFile = None,
    first: choice.First = 20,
    seed: choice.SeedOfEvaluation = None,
    as_json: choice.AsJson = False,
) -> Answer:
    """Measure recommendations at a budget. For those who may see the data.

    Example: hold out a fifth of each user's items and fit the rest:

      eigenveil recommend evaluate plays.csv -k 16 --epsilon 1

    Example: a given split:

      eigenveil recommend evaluate train.csv --test test.csv -k 16 --epsilon 1

    Shows which share of the held-out items is among the first N (recall)
    and how high they rank (ndcg), for the private filter, the exact one and
    popularity. The options are those of `recommend fit`. THESE FIGURES ARE
    NOT COVERED BY THE GUARANTEE: never publish them.
    """
    choice.require_delta(settings)
    choice.require_histories(files if test is None else [*files, test], items_file, reading)
    require_param(seed is None or seed >= 0, "{random_state} must not be negative, got {@seed}", seed=seed)
    require(share is None or test is None, "--test and --share both set what is held out: choose one of them")
    require(share is None or 0 < share < 1, f"--share must lie in (0, 1), got {share}")
    columns = choice.reading_of(settings)
    with progress("reading histories") as view:
        sites = choice.read_sites(files, reading, items=items_file, **columns)
        # A fifth, as is usual. A given test file fixes the split instead.
        parts = held_out(sites, share or 0.2, seed) if test is None else given_split(sites, test, reading, columns)
        qualities, notes = judged(parts, {**settings, "random_state": seed}, first, view)
    notes = [*notes, *choice.unread(files, columns, reading)]
    from eigenveil.show.recommend import quality_values, quality_view

    return Answer(view=lambda: quality_view(qualities, notes, n=first), values=lambda: quality_values(qualities, notes, n=first))


def _space(fitted: "PrivateRecommender", *, items_read: bool) -> "ItemSpace":
    """The item space, with caveats in its guarantee if one program read all sites' files, or read the items from
    them."""
    space = fitted.space_
    if space.guarantee.epsilon is None:
        return space
    # Where one program had everything, masks gave no protection from it. The guarantee must not suggest otherwise.
    more = [_ONE_PROGRAM] * (len(fitted.sites_) > 1) + [choice.ITEMS_READ_CAVEAT] * items_read
    return replace(space, guarantee=replace(space.guarantee, caveats=(*space.guarantee.caveats, *more)))


def _typed_items(have: Sequence[str] | None, history: Path | None) -> list[tuple[str, str]]:
    """The user's items, each with its place. An error may show what was typed, but never a line of a file."""
    if history is None:
        return [(f"--have {item}", item) for item in have or ()]
    try:
        lines = history.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{history} is not UTF-8 text") from None
    return [(f"line {at} of {history}", line.strip()) for at, line in enumerate(lines, start=1) if line.strip()]


def _history(entries: Sequence[tuple[str, str]], space: "ItemSpace") -> Any:
    """The row, (1, d), of a user who has these items."""
    # A set, because a history may have thousands of items.
    names = frozenset(space.items or ())
    kind = "an item name" if space.items is not None else f"an item number, 0 to {space.dim - 1},"
    for where, item in entries:
        number = item.isascii() and item.isdecimal() and len(item) < 20 and int(item) < space.dim
        sound = item in names if space.items is not None else number
        require(sound, f"{where} is not {kind} in this item space")
    return space.history([item if space.items is not None else int(item) for _, item in entries])


COMMAND = Group(
    name="recommend",
    about=group,
    commands=(
        Command(run=fit, params=choice.FitParams, reads=True, leave=choice.NO_CHOICE),
        Command(run=top, params=ReadingParams, reads=True, leave=choice.NO_CHOICE),
        Command(run=evaluate, params=choice.FitParams, reads=True, leave=("random_state", *choice.NO_CHOICE)),
    ),
    panel="Fit",
)
