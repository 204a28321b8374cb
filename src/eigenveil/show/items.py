"""The report of an item space that `eigenveil recommend fit` wrote: items stand where a model has columns."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eigenveil.recommend import ItemSpace
    from eigenveil.show.marks import Chart
    from eigenveil.show.values import ComponentsPart, Report

__all__ = ["items_report", "items_scree", "names_of_items"]


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


def names_of_items(space: "ItemSpace") -> list[str]:
    """The names of the items that have weights, or their numbers."""
    columns = range(space.dim) if space.columns is None else space.columns.tolist()
    return [f"item {at}" if space.items is None else space.items[at] for at in columns]


def _components(space: "ItemSpace") -> "ComponentsPart":
    from eigenveil.show.values import ComponentsPart

    return ComponentsPart(
        columns=tuple(names_of_items(space)),
        weights=tuple(tuple(one) for one in space.components.tolist()),
        variances=tuple(space.values.tolist()),
        # Nobody released what all items vary together.
        shares=(),
        # As on the terminal: the floor is one of squared values.
        noise_floor=math.sqrt(space.noise_floor),
        floor_known=space.noise_floor > 0 or space.guarantee.epsilon is None,
    )
