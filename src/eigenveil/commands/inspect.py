"""`eigenveil inspect`: show a file that a fit wrote, as tables for people or as JSON for programs."""

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eigenveil.commands._command import Command
from eigenveil.commands._files import require_file
from eigenveil.commands._outputs import require_picture, write_picture
from eigenveil.data.archive import ITEMS_FORMAT, format_of
from eigenveil.errors import require
from eigenveil.show.console import output
from eigenveil.show.items import items_scree, names_of_items

if TYPE_CHECKING:
    from rich.console import Group

    from eigenveil.model import Model
    from eigenveil.recommend import ItemSpace
    from eigenveil.show.marks import Chart

__all__ = ["COMMAND"]


def inspect(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A .safetensors file that `fit`, `stream`, `simulate` or `recommend fit` wrote, or a .json file of `bounds` or "
            "`spectrum`.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything in the file as JSON.")] = False,
    loadings: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Show this many columns (or items) of each component, largest weight first."
        ),
    ] = 5,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw the variances with the noise floor to this .svg file, or .png if matplotlib is installed.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --plot if it exists.")] = False,
) -> None:
    """Show a model: its components, its spectrum and its guarantee.

    Use it before you publish a model, or when somebody sends you one.
    It reads item spaces from `eigenveil recommend fit` as well, and the
    files of `eigenveil bounds` and `eigenveil spectrum`.

      eigenveil inspect model.safetensors
      eigenveil inspect model.safetensors --json | jq .guarantee.epsilon
      eigenveil inspect model.safetensors --plot scree.svg

    Opening a model runs no code, so it is safe to open a stranger's file.
    """
    require_file(model)
    if plot is not None:
        require_picture(plot, force=force, inputs=[model])
    if model.suffix.lower() == ".json":
        _inspect_saved(model, as_json=as_json, plot=plot)
        return
    if format_of(model) == ITEMS_FORMAT:
        # Imported only if needed: the recommender takes a while to load.
        from eigenveil.recommend import ItemSpace

        # Both kinds of file are shown through the same three functions: values, details and a drawing.
        space = ItemSpace.load(model)
        values, details = partial(_space_values, space), partial(_space_details, space, largest=loadings)
        drawn = partial(items_scree, space)
    else:
        from eigenveil.model import Model
        from eigenveil.show.terminal import model_details

        learned = Model.load(model)
        values, details = partial(_as_values, learned), partial(model_details, learned, largest=loadings)
        drawn = partial(_scree, learned)
    if as_json:
        # NaN is not JSON, and other programs refuse it.
        typer.echo(json.dumps(values(), indent=2, allow_nan=False))
    else:
        output().print(details())
    if plot is not None:
        write_picture(drawn(), plot)
        # Not on stdout, where JSON may be.
        output(stderr=True).print(f"plot written to {plot}", soft_wrap=True)


def _inspect_saved(path: Path, *, as_json: bool, plot: Path | None) -> None:
    """Show bounds or a spectrum."""
    from eigenveil.commands._bounds_saved import saved_values, saved_view

    require(plot is None, "--plot is for models and item spaces. Leave it out")
    if as_json:
        typer.echo(json.dumps(saved_values(path), indent=2, allow_nan=False))
    else:
        output().print(saved_view(path))


def _scree(model: "Model") -> "Chart":
    from eigenveil.show.pages import scree_of
    from eigenveil.show.report import components_of

    return scree_of(components_of(model))


def _as_values(model: "Model") -> dict[str, Any]:
    """The whole model in plain values."""
    from eigenveil.model import SCORES_ARE_RAW

    return {
        "columns": None if model.columns is None else list(model.columns),
        "components": model.components.tolist(),
        "mean": model.mean.tolist(),
        "people": model.people,
        "bounds": {name: model.settings.get(name) for name in ("row_bound", "column_bounds")},
        "scale": None if model.scale is None else model.scale.tolist(),
        # Everything in the file, because programs should not have to read it themselves.
        "values": model.values.tolist(),
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "noise_floor": model.noise_floor,
        "n_above_noise": model.n_above_noise,
        "warnings": list(model.warnings),
        "private": model.guarantee.private,
        "guarantee": model.guarantee.to_dict(),
        "guarantee_in_words": model.guarantee.words(),
        "settings": dict(model.settings),
        "scores": SCORES_ARE_RAW,
    }


def _space_values(space: "ItemSpace") -> dict[str, Any]:
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


def _space_details(space: "ItemSpace", *, largest: int) -> "Group":
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
        Bar(f"{at:>{len(str(rank))}}", float(value), f"{value:.4g}") for at, value in enumerate(space.values, 1)
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
    names = names_of_items(space)
    for number, weights in enumerate(space.components, start=1):
        # Stable, so that equal weights come in the order of the items on every machine.
        order = (-abs(weights)).argsort(kind="stable")[:largest]
        yield str(number), ", ".join(f"{names[at]}={weights[at]:+.3f}" for at in order)


COMMAND = Command(inspect, panel="Use and check a model")
