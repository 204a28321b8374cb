"""`eigenveil inspect`: what is in a model file, for people or, with --json, for programs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eigenveil.cli.terminal import errors_as_lines, output

if TYPE_CHECKING:
    from eigenveil.model import Model

__all__ = ["inspect"]


@errors_as_lines
def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model that `fit` wrote.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Everything in the file, as JSON.")] = False,
    loadings: Annotated[int, typer.Option(min=1, metavar="N", help="How many columns to show of each component.")] = 5,
) -> None:
    """Show a model: its components, its spectrum and what it promises.

    Examples:

      eigenveil inspect model.safetensors
      eigenveil inspect model.safetensors --json | jq .guarantee.epsilon

    Opening a model runs no code, wherever the file came from.
    """
    from eigenveil.model import Model

    learned = Model.load(model)
    if as_json:
        typer.echo(json.dumps(_as_values(learned), indent=2, allow_nan=False))
        return
    from eigenveil.report import model_details

    output().print(model_details(learned, largest=loadings))


def _as_values(model: "Model") -> dict[str, Any]:
    """The whole model in plain values."""
    from eigenveil.model import SCORES_ARE_RAW
    from eigenveil.report import noise_floor

    return {
        "columns": None if model.columns is None else list(model.columns),
        "components": model.components.tolist(),
        "mean": model.mean.tolist(),
        "scale": None if model.scale is None else model.scale.tolist(),
        "values": model.values.tolist(),
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "noise_floor": noise_floor(model),
        "private": model.guarantee.private,
        "guarantee": model.guarantee.to_dict(),
        "guarantee_in_words": model.guarantee.words(),
        "settings": dict(model.settings),
        "scores": SCORES_ARE_RAW,
    }
