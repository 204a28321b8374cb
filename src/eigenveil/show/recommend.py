"""Recommendations: what a fit has learned, how good lists are, and an item space in every form.

Items stand where a model has columns.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.text import Text

from eigenveil.recommend import Interactions, ItemSpace, PrivateRecommender, Quality
from eigenveil.show.marks import Chart
from eigenveil.show.pages import scree_of
from eigenveil.show.report import answer_of, counted, settings_facts
from eigenveil.show.terminal import (
    guarantee_panel,
    guarantee_values,
    labelled,
    loadings_table,
    nothing_found,
    remarks,
    rounds_table,
    scree,
    simple_table,
    warning_panel,
)
from eigenveil.show.values import ComponentsPart, Report

if TYPE_CHECKING:
    from eigenveil.show.console import View

_NOT_COVERED: Final = (
    "NOT COVERED BY THE GUARANTEE: these figures were computed from the histories themselves. Show them only to "
    "people who may see those, and never publish them. Settings chosen by them reveal something about the histories too."
)
_SPENT: Final = (
    "The private item space of this evaluation was discarded, so it spends no budget. `eigenveil recommend fit` spends its own."
)


def fit_view(sites: Mapping[str, Interactions], fitted: PrivateRecommender, notes: Sequence[str], *, seeded: str) -> "View":
    """What was learned at these sites. `seeded` is the warning of a known seed."""
    yield from nothing_found(_components(fitted.space_))
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
    floor = "" if space.noise_floor == 0 else f", {space.n_above_noise} of them above the noise floor"
    yield "method", fitted.plan_.reason
    yield "directions", f"{len(space.components)}{floor}"
    count = space.components.shape[1]
    yield "items", str(count) if count == space.dim else f"the {count} most popular of {space.dim}"
    if fitted.unit == "item" or fitted.neighbours != "add-remove":
        yield "users", str(sum(plays.matrix.shape[0] for plays in sites.values()))
    if len(sites) > 1:
        yield "sites", ", ".join(sites)


def _used(space: ItemSpace) -> str:
    count = space.components.shape[1]
    return f"{count} items" if count == space.dim else f"{count} of {space.dim} items"


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


def quality_view(qualities: Mapping[str, Quality], notes: Sequence[str], *, n: int) -> "View":
    """How good the lists of each filter are, always with the warning that no guarantee covers it."""
    table = simple_table("filter", f"recall@{n}", f"ndcg@{n}")
    for name, quality in qualities.items():
        table.add_row(name, f"{quality.recall:.4f}", f"{quality.ndcg:.4f}")
    yield table
    for note in notes:
        yield Text(note, style="yellow")
    yield ""
    yield warning_panel(_NOT_COVERED)
    yield from (Text(line, style="dim") for line in _spent(qualities))


def quality_values(qualities: Mapping[str, Quality], notes: Sequence[str], *, n: int) -> dict[str, Any]:
    """The same for programs."""
    figures = {name: {"recall": quality.recall, "ndcg": quality.ndcg} for name, quality in qualities.items()}
    return {"n": n, "found": figures, "notes": [_NOT_COVERED, *_spent(qualities), *notes]}


def _spent(qualities: Mapping[str, Quality]) -> list[str]:
    # Three results: a private filter was fitted, next to the exact one and popularity.
    return [_SPENT] if len(qualities) > 2 else []


def items_report(path: Path) -> Report:
    """What was learned of the items, and the guarantee for those whose histories it was learned from."""
    space = ItemSpace.load(path)
    part = _components(space)
    return Report(
        kind="model",
        title=f"{counted(len(part.weights), 'direction').capitalize()} of {_used(space)}",
        answer=answer_of(part, space.guarantee),
        warnings=space.warnings,
        components=part,
        facts=tuple(settings_facts(space.settings)),
        guarantee=space.guarantee,
        best_guess=space.guarantee.best_guess,
    )


def items_scree(space: ItemSpace) -> Chart:
    """The scree plot of an item space."""
    return scree_of(_components(space))


def _components(space: ItemSpace) -> ComponentsPart:
    columns = range(space.dim) if space.columns is None else space.columns.tolist()
    return ComponentsPart(
        # Items without names have numbers.
        columns=tuple(f"item {at}" if space.items is None else space.items[at] for at in columns),
        weights=tuple(map(tuple, space.components.tolist())),
        # Singular values: an item space has no number of people to divide by.
        variances=tuple(space.values.tolist()),
        # What all items vary together was not released.
        shares=(),
        # The floor is one of squared values.
        noise_floor=math.sqrt(space.noise_floor),
        floor_known=space.noise_floor > 0 or space.guarantee.epsilon is None,
    )


def space_values(space: ItemSpace) -> dict[str, Any]:
    """The whole item space in plain values."""
    return {
        "items": None if space.items is None else list(space.items),
        "dim": space.dim,
        "columns": None if space.columns is None else space.columns.tolist(),
        "components": space.components.tolist(),
        "values": space.values.tolist(),
        "noise_floor": space.noise_floor,
        "n_above_noise": space.n_above_noise,
        "warnings": list(space.warnings),
        "degrees": None if space.degrees is None else space.degrees.tolist(),
        **guarantee_values(space.guarantee),
        "settings": dict(space.settings),
        "recommendations": space.note,
    }


def space_view(space: ItemSpace, *, largest: int) -> Group:
    """Everything in an item space that a person can read."""
    part = _components(space)
    rank = len(part.weights)
    title = f"{rank} direction{'s' * (rank != 1)} of {_used(space)}"
    return Group(
        *nothing_found(part),
        Text(f"{title}: the singular value of the histories along each", style="bold"),
        scree(part),
        *remarks(part, space.warnings),
        Text(""),
        Text("items with the largest weights in each direction", style="bold"),
        loadings_table(part, largest=largest),
        Text(""),
        Text("settings", style="bold"),
        labelled((fact.label, fact.text) for fact in settings_facts(space.settings)),
        Text(""),
        guarantee_panel(space.guarantee),
        Text(space.note, style="yellow"),
    )
