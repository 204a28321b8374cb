"""Recommendations on a terminal: what a fit has learned, one user's items, and how good they are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from eigenveil.recommend import Interactions, PrivateRecommender, Quality
from eigenveil.show.terminal import (
    labelled,
    nothing_found,
    nothing_stands_out,
    rounds_table,
    simple_table,
    warning_panel,
)

if TYPE_CHECKING:
    from eigenveil.show.console import View

__all__ = ["fit_view", "quality_values", "quality_view"]

_NOT_COVERED: Final = (
    "NOT COVERED BY THE GUARANTEE: these figures were computed from the histories themselves. Show them only to "
    "people who may see those, and never publish them. Settings chosen by them reveal something about the histories too."
)
_SPENT: Final = (
    "The private item space of this evaluation was discarded, so it spends no budget. "
    "`eigenveil recommend fit` spends its own."
)


def fit_view(
    sites: Mapping[str, Interactions], fitted: PrivateRecommender, notes: Sequence[str], *, seeded: str
) -> "View":
    """What was learned at these sites. `seeded` is the warning of a known seed."""
    if nothing_stands_out(fitted.space_):
        yield nothing_found()
    if fitted.random_state is not None and fitted.epsilon is not None:
        yield warning_panel(seeded)
    if len(sites) > 1:
        yield rounds_table(fitted.transcript_)
        yield ""
    yield labelled([*_facts(sites, fitted), *([] if notes else _expected(fitted))])
    for note in notes:
        yield Text(note, style="yellow")


def _facts(sites: Mapping[str, Interactions], fitted: PrivateRecommender) -> Iterator[tuple[str, str]]:
    space = fitted.space_
    rank, count = space.components.shape
    yield "method", fitted.plan_.reason
    floor = "" if space.noise_floor == 0 else f", {space.n_above_noise} of them above the noise floor"
    yield "directions", f"{rank}{floor}"
    yield "items", f"{space.dim}" if count == space.dim else f"the {count} most popular of {space.dim}"
    if fitted.unit == "item" or fitted.neighbours != "add-remove":
        yield "users", str(sum(plays.matrix.shape[0] for plays in sites.values()))
    if len(sites) > 1:
        yield "sites", ", ".join(sites)


def _expected(fitted: PrivateRecommender) -> Iterator[tuple[str, str]]:
    """The forecast of a private fit, where the planner has not already warned."""
    expected = fitted.plan_.expected
    if expected is not None:
        about = "from public numbers" if fitted.users_at_least is None else f"for {fitted.users_at_least} users"
        yield (
            "expected",
            f"by estimate {about}, {expected.share:.0%} of the filter was found, and {expected.above} of "
            f"{fitted.n_components} directions are above the noise",
        )
    elif fitted.epsilon is not None:
        yield "expected", "unknown, because nothing is known of the number of users. Pass --users-at-least"


def quality_view(found: Mapping[str, Quality], notes: Sequence[str], *, n: int) -> "View":
    """How good the lists of each filter are, always with the warning that no guarantee covers it."""
    table = simple_table("filter", f"recall@{n}", f"ndcg@{n}")
    for name, quality in found.items():
        table.add_row(name, f"{quality.recall:.4f}", f"{quality.ndcg:.4f}")
    yield table
    for note in notes:
        yield Text(note, style="yellow")
    yield ""
    yield warning_panel(_NOT_COVERED)
    yield from (Text(words, style="dim") for words in _spent(found))


def quality_values(found: Mapping[str, Quality], notes: Sequence[str], *, n: int) -> dict[str, Any]:
    """The same for programs."""
    figures = {name: {"recall": quality.recall, "ndcg": quality.ndcg} for name, quality in found.items()}
    return {"n": n, "found": figures, "notes": [_NOT_COVERED, *_spent(found), *notes]}


def _spent(found: Mapping[str, Quality]) -> list[str]:
    # Three results: a private filter was fitted, next to the exact one and popularity.
    return [_SPENT] if len(found) > 2 else []
