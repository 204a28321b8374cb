"""`eigenveil recommend`: a private item space from histories, what it recommends to a user, and how good that is."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from eigenveil.cli import _options as option
from eigenveil.cli._commands import Commands
from eigenveil.cli._derived import with_options
from eigenveil.cli._files import require_output
from eigenveil.cli._terminal import errors_as_lines, output, wrote
from eigenveil.cli.recommend import options as choice
from eigenveil.cli.recommend.runs import fitted_on, given_split, held_out, judged, progress, show_quality
from eigenveil.errors import require, require_param
from eigenveil.params import ReadingParams

if TYPE_CHECKING:
    from rich.console import Console

    from eigenveil.recommend import Interactions, ItemSpace, PrivateRecommender

__all__ = ["recommend"]

recommend = Commands("recommend")

_ONE_PROGRAM: Final = "one program read the files of all sites: whoever ran it could see them, which is not covered"
_FOR_THAT_USER: Final = (
    "for this user alone: the list was made from their own history, and shown to anybody else it tells about that"
)


@recommend.callback()
def group() -> None:
    """Recommendations from histories that nobody shares.

    Learn once, with a guarantee, which items go together; then each user's
    own device makes recommendations from that user's own history:

      eigenveil recommend fit plays.csv -k 16 --epsilon 1
      eigenveil recommend top items.safetensors --have jazz --have soul

    And how good are they? For the holder of the histories only:

      eigenveil recommend evaluate plays.csv -k 16 --epsilon 1
    """


@recommend.command()
@errors_as_lines
@with_options(choice.FitParams)
def fit(
    files: choice.Files,
    settings: dict[str, Any],
    items_file: choice.ItemsFile = None,
    target: choice.Output = Path("items.safetensors"),
    force: option.Force = False,
) -> None:
    """Learn which items go together, with a privacy guarantee.

    Example: lines of user and item, the whole history of each user
    protected, at epsilon 1:

      eigenveil recommend fit plays.csv -k 16 --epsilon 1

    Example: ratings of which 4 and 5 count, items from a public list, and
    the 500 most popular of them in use:

      eigenveil recommend fit ratings.parquet -k 16 --epsilon 1 \\
        --user person --item film --value stars --at-least 4 \\
        --items-file catalogue.txt --keep-items 500

    Example: three shops, as they would do it with a hub that sees no sums
    of any one, tried out by whoever has all three files:

      eigenveil recommend fit north.csv south.csv west.csv -k 8 \\
        --items-file catalogue.txt --epsilon 1 --trust masked

    Before anything is spent, the plan says from public numbers what to
    expect; a budget that would give noise is refused, with what would do.
    The result may be handed to everybody. Fitting the same users again is
    a further cost.
    """
    choice.require_delta(settings)
    choice.require_histories(files, items_file)
    require_output(target, endings=(".safetensors",), force=force, inputs=files)
    reading = choice.reading_of(settings)
    with progress("reading histories") as view:
        sites = choice.read_sites(files, items=items_file, **reading)
        fitted, notes = fitted_on(sites, settings, view)
    items_read = choice.items_were_read(files, items_file)
    space = _space(fitted, items_read=items_read)
    space.save(target)
    wrote(target)
    console = output()
    _show(console, sites, fitted, notes)
    for note in choice.unread(files, reading):
        console.print(note, style="yellow", soft_wrap=True)
    _show_guarantee(console, space, items_read=items_read)
    console.print(f"\nitem space written to {target}", soft_wrap=True)
    console.print(f"use it with: eigenveil recommend top {target} --have ITEM", style="dim", soft_wrap=True)


@recommend.command()
@errors_as_lines
@with_options(ReadingParams)
def top(
    settings: dict[str, Any],
    model: Annotated[
        Path, typer.Argument(metavar="ITEMS", help="An item space that `recommend fit` wrote.", show_default=False)
    ],
    have: Annotated[
        list[str] | None,
        typer.Option(metavar="ITEM", help="An item that the user has; repeat it for several.", show_default=False),
    ] = None,
    have_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The user's items, one on each line.", show_default=False)
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Histories as for `recommend fit`; with --who.", show_default=False
        ),
    ] = None,
    who: Annotated[
        str | None,
        typer.Option(
            metavar="USER", help="Whose history in --from: a name, or in npz a row from 0.", show_default=False
        ),
    ] = None,
    first: choice.First = 20,
    as_json: choice.AsJson = False,
) -> None:
    """The best items for one user, best first, without those they have.

    Say what the user has, one by one, in a file, or in a table:

      eigenveil recommend top items.safetensors --have jazz --have soul
      eigenveil recommend top items.safetensors --have-file mine.txt --first 5
      eigenveil recommend top items.safetensors --from plays.csv --who ann

    Who has nothing gets popular items. THE LIST IS FOR THAT USER ALONE:
    the guarantee covers the item space, and not what somebody's own
    history makes of it.
    """
    from eigenveil.recommend import ItemSpace

    given = [name for name, it in (("--have", have), ("--have-file", have_file), ("--from", source)) if it]
    require(len(given) > 0, "say what the user has: --have ITEM, --have-file FILE, or --from FILE --who USER")
    require(len(given) == 1, f"{' and '.join(given)} both say what the user has; give one of them")
    require((source is None) == (who is None), "--from and --who go together: a table of histories, and whose it is")
    space = ItemSpace.load(model)
    if source is not None:
        with progress("reading histories"):
            row = _row_of(str(who), source, space, settings)
    else:
        row = _history(_given(have, have_file), space)
    _show_top(space, row, first, as_json=as_json)


@recommend.command()
@errors_as_lines
@with_options(choice.FitParams, leave=("random_state",))
def evaluate(
    files: choice.Files,
    settings: dict[str, Any],
    items_file: choice.ItemsFile = None,
    share: choice.Share = None,
    test: choice.TestFile = None,
    first: choice.First = 20,
    seed: choice.SeedOfEvaluation = None,
    as_json: choice.AsJson = False,
) -> None:
    """How good recommendations are at a budget. For the holder only.

    Example: a fifth of each user's items are held out, and the rest fitted:

      eigenveil recommend evaluate plays.csv -k 16 --epsilon 1

    Example: a given split:

      eigenveil recommend evaluate train.csv --test test.csv -k 16 --epsilon 1

    Shows which share of the held-out items is among the first N (recall),
    and how far up (ndcg), of the private filter, of the exact one and of
    popularity. The options are those of `recommend fit`. THESE FIGURES ARE
    NOT COVERED BY THE GUARANTEE: never publish them.
    """
    choice.require_delta(settings)
    choice.require_histories(files if test is None else [*files, test], items_file)
    require_param(seed is None or seed >= 0, "{random_state} must not be negative, got {@seed}", seed=seed)
    require(share is None or test is None, "--test says what is held out, and so does --share; give one of them")
    require(share is None or 0 < share < 1, f"--share must lie between 0 and 1, got {share}")
    reading = choice.reading_of(settings)
    with progress("reading histories") as view:
        sites = choice.read_sites(files, items=items_file, **reading)
        parts = held_out(sites, share or 0.2, seed) if test is None else given_split(sites, test, reading)
        found, notes = judged(parts, {**settings, "random_state": seed}, first, view)
    notes = [*notes, *choice.unread(files, reading)]
    show_quality(found, notes, n=first, as_json=as_json)


def _show(
    console: "Console", sites: Mapping[str, "Interactions"], fitted: "PrivateRecommender", notes: Sequence[str]
) -> None:
    from eigenveil.cli._report import labelled, rounds_table, warning_panel

    if fitted.random_state is not None and fitted.epsilon is not None:
        console.print(warning_panel(option.SEEDED))
    if len(sites) > 1:
        console.print(rounds_table(fitted.transcript_))
        console.print()
    console.print(labelled([*_facts(sites, fitted), *([] if notes else _expected(fitted))]))
    for note in notes:
        console.print(note, style="yellow")


def _space(fitted: "PrivateRecommender", *, items_read: bool) -> "ItemSpace":
    """The item space, with what a program that reads the files of all sites, or items from them, must not keep to itself."""
    space = fitted.space_
    if space.guarantee.epsilon is None:
        return space
    more = [_ONE_PROGRAM] * (len(fitted.sites_) > 1) + [choice.ITEMS_READ_CAVEAT] * items_read
    return replace(space, guarantee=replace(space.guarantee, caveats=(*space.guarantee.caveats, *more)))


def _show_guarantee(console: "Console", space: "ItemSpace", *, items_read: bool) -> None:
    from eigenveil.cli._report import guarantee_panel, warning_panel

    console.print()
    console.print(guarantee_panel(space.guarantee))
    if items_read and space.guarantee.epsilon is not None:
        console.print(warning_panel(choice.ITEMS_READ))


def _facts(sites: Mapping[str, "Interactions"], fitted: "PrivateRecommender") -> Iterator[tuple[str, str]]:
    space = fitted.space_
    rank, count = space.components.shape
    yield "method", fitted.plan_.reason
    yield "directions", str(rank)
    yield "items", f"{space.dim}" if count == space.dim else f"the {count} most popular of {space.dim}"
    if fitted.unit == "item" or fitted.neighbours != "add-remove":
        yield "users", str(sum(plays.matrix.shape[0] for plays in sites.values()))
    if len(sites) > 1:
        yield "sites", ", ".join(sites)


def _expected(fitted: "PrivateRecommender") -> Iterator[tuple[str, str]]:
    """What was to be expected of a private fit, where the planner has not said it in a warning."""
    expected = fitted.plan_.expected
    if expected is not None:
        yield (
            "expected",
            f"about {expected.share:.0%} of the filter is found, with {expected.above} of {fitted.n_components} directions above "
            "the noise, as far as public numbers tell",
        )
    elif fitted.epsilon is not None:
        yield "expected", "nobody can say beforehand, because the number of users is private"


def _given(have: Sequence[str] | None, history: Path | None) -> list[tuple[str, str]]:
    """Items that the user has, each after where that is said: a message may show what was typed, and no line of a file."""
    if history is None:
        return [(f"--have {item}", item) for item in have or ()]
    try:
        lines = history.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{history} is not UTF-8 text") from None
    return [(f"line {at} of {history}", line.strip()) for at, line in enumerate(lines, start=1) if line.strip()]


def _history(given: Sequence[tuple[str, str]], space: "ItemSpace") -> Any:
    """The row, (1, d), of a user who has these items."""
    known = frozenset(space.items or ())
    kind = "the name of an item" if space.items is not None else f"the number of an item, 0 to {space.dim - 1},"
    for where, item in given:
        number = item.isascii() and item.isdecimal() and len(item) < 20 and int(item) < space.dim
        sound = item in known if space.items is not None else number
        require(sound, f"{where}: that is not {kind} in this item space")
    return space.history([item if space.items is not None else int(item) for _, item in given])


def _row_of(who: str, source: Path, space: "ItemSpace", reading: Mapping[str, Any]) -> Any:
    """The row, (1, d), of a user in a table of histories."""
    from eigenveil.recommend import read_interactions

    numbers = None if source.suffix.lower() == ".npz" else range(space.dim)
    plays = read_interactions(source, items=space.items if space.items is not None else numbers, **reading)
    return plays.row(int(who) if plays.users is None and who.isdecimal() else who)


def _show_top(space: "ItemSpace", row: Any, n: int, *, as_json: bool) -> None:
    from rich.text import Text

    from eigenveil.cli._report import plain

    numbers = [at for at in space.top(row, n=n)[0].tolist() if at >= 0]
    items = numbers if space.items is None else [space.items[at] for at in numbers]
    popular = (row if space.columns is None else row[:, space.columns]).nnz == 0
    if as_json:
        typer.echo(json.dumps({"items": items, "popular": popular, "note": _FOR_THAT_USER}, indent=2))
        return
    said = output(stderr=True)
    if popular:
        said.print("this user has none of the items in use, so these are popular ones", style="yellow", soft_wrap=True)
    said.print(_FOR_THAT_USER, style="dim", soft_wrap=True)
    for item in items:
        # A model may come from a stranger, and a terminal obeys control characters.
        output().print(Text(plain(item)), soft_wrap=True)
