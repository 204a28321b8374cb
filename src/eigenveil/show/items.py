"""An item space that `eigenveil recommend fit` wrote, in every form: items stand where a model has columns."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

    from eigenveil.recommend import ItemSpace
    from eigenveil.show.marks import Chart
    from eigenveil.show.values import ComponentsPart, Report

__all__ = ["items_report", "items_scree", "space_values", "space_view"]


def items_report(path: Path) -> "Report":
    """What was learned of the items, and the guarantee for those whose histories it was learned from."""
    from eigenveil.recommend import ItemSpace
    from eigenveil.show.report import answer_of, counted, settings_facts
    from eigenveil.show.values import Report

    space = ItemSpace.load(path)
    part = _components(space)
    count = space.components.shape[1]
    used = f"{count} items" if count == space.dim else f"{count} of {space.dim} items"
    return Report(
        kind="model",
        title=f"{counted(len(part.weights), 'direction').capitalize()} of {used}",
        answer=answer_of(part, space.guarantee),
        warnings=space.warnings,
        components=part,
        facts=(*settings_facts(space.settings),),
        guarantee=space.guarantee,
        best_guess=space.guarantee.best_guess,
    )


def items_scree(space: "ItemSpace") -> "Chart":
    """The scree plot of an item space."""
    from eigenveil.show.pages import scree_of

    return scree_of(_components(space))


def _names(space: "ItemSpace") -> list[str]:
    """The names of the items that have weights, or their numbers."""
    columns = range(space.dim) if space.columns is None else space.columns.tolist()
    return [f"item {at}" if space.items is None else space.items[at] for at in columns]


def _components(space: "ItemSpace") -> "ComponentsPart":
    from eigenveil.show.values import ComponentsPart

    return ComponentsPart(
        columns=tuple(_names(space)),
        weights=tuple(tuple(one) for one in space.components.tolist()),
        variances=tuple(space.values.tolist()),
        # Nobody released what all items vary together.
        shares=(),
        # As on the terminal: the floor is one of squared values.
        noise_floor=math.sqrt(space.noise_floor),
        floor_known=space.noise_floor > 0 or space.guarantee.epsilon is None,
    )


def space_values(space: "ItemSpace") -> dict[str, Any]:
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
        "private": space.guarantee.private,
        "guarantee": space.guarantee.to_dict(),
        "guarantee_in_words": space.guarantee.words(),
        "settings": dict(space.settings),
        "recommendations": space.note,
    }


def space_view(space: "ItemSpace", *, largest: int) -> "Group":
    """Everything in an item space that a person can read."""
    from rich.console import Group
    from rich.text import Text

    from eigenveil.show.terminal import (
        Bar,
        BarChart,
        guarantee_panel,
        labelled,
        nothing_found,
        nothing_stands_out,
        warned,
    )

    rank, count = space.components.shape
    used = f"{count} items" if count == space.dim else f"{count} of {space.dim} items"
    # Singular values here: an item space has no number of people to divide by.
    bars = tuple(
        Bar(label=f"{at:>{len(str(rank))}}", value=float(value), note=f"{value:.4g}")
        for at, value in enumerate(space.values, 1)
    )
    settings = [(name.replace("_", " "), str(value)) for name, value in space.settings.items()]
    return Group(
        *([nothing_found()] if nothing_stands_out(space) else []),
        Text(
            f"{rank} direction{'s' * (rank != 1)} of {used}: the singular value of the histories along each",
            style="bold",
        ),
        BarChart(bars, math.sqrt(space.noise_floor), "noise floor: a shorter bar may be noise alone"),
        *warned(space),
        Text(""),
        Text("items with the largest weights in each direction", style="bold"),
        labelled(_weights(space, largest)),
        Text(""),
        Text("settings", style="bold"),
        labelled(settings),
        Text(""),
        guarantee_panel(space.guarantee),
        Text(space.note, style="yellow"),
    )


def _weights(space: "ItemSpace", largest: int) -> Iterator[tuple[str, str]]:
    names = _names(space)
    for number, weights in enumerate(space.components, start=1):
        # Stable, so that equal weights come in the order of the items on every machine.
        order = (-abs(weights)).argsort(kind="stable")[:largest]
        yield str(number), ", ".join(f"{names[at]}={weights[at]:+.3f}" for at in order)
