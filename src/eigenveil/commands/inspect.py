"""`eigenveil inspect`: show a file that a fit wrote, as tables for people or as JSON for programs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from eigenveil.commands._command import Answer, Command
from eigenveil.commands._files import require_file, require_picture, write_picture
from eigenveil.commands._options import argument, flag, option
from eigenveil.data.archive import ITEMS_FORMAT, format_of
from eigenveil.errors import require
from eigenveil.show.console import output

if TYPE_CHECKING:
    from rich.console import Group

    from eigenveil.show.marks import Chart

__all__ = ["COMMAND"]


def inspect(
    model: Annotated[
        Path,
        argument(
            "MODEL",
            "A .safetensors file that `fit`, `stream`, `simulate` or `recommend fit` wrote, or a .json file of `bounds` or "
            "`spectrum`.",
        ),
    ],
    as_json: Annotated[bool, flag("--json", "Print everything in the file as JSON.")] = False,
    loadings: Annotated[
        int, option("N", "Show this many columns (or items) of each component, largest weight first.", shows=True, min=1)
    ] = 5,
    plot: Annotated[
        Path | None,
        option("FILE", "Also draw the variances with the noise floor to this .svg file, or .png if matplotlib is installed."),
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite the file of --plot if it exists.")] = False,
) -> Answer:
    """Show a model: its components, its spectrum and its guarantee.

    Use it before you publish a model, or when you receive one.
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
        from eigenveil.estimators.bounds.saved import values_in
        from eigenveil.show.bounds import saved_view

        require(plot is None, "--plot is for models and item spaces. Leave it out")
        plain = values_in(model)
        return Answer(view=lambda: saved_view(model, plain), values=lambda: plain)
    if format_of(model) == ITEMS_FORMAT:
        # Imported only if needed: the recommender takes a while to load.
        from eigenveil.recommend import ItemSpace
        from eigenveil.show.recommend import items_scree, space_values, space_view

        space = ItemSpace.load(model)
        return _answer(lambda: space_view(space, largest=loadings), lambda: space_values(space), lambda: items_scree(space), plot)
    from eigenveil.model import Model
    from eigenveil.show.pages import scree_of
    from eigenveil.show.report import components_of
    from eigenveil.show.terminal import model_details, model_values

    learned = Model.load(model)
    return _answer(
        lambda: model_details(learned, largest=loadings),
        lambda: model_values(learned),
        lambda: scree_of(components_of(learned)),
        plot,
    )


def _answer(view: Callable[[], "Group"], values: Callable[[], Any], chart: Callable[[], "Chart"], plot: Path | None) -> Answer:
    """What a file shows, and its picture."""

    def draw() -> None:
        if plot is not None:
            write_picture(chart(), plot)
            # Not on stdout, where JSON may be.
            output(stderr=True).print(f"plot written to {plot}", soft_wrap=True)

    return Answer(view=lambda: [view()], values=values, after=draw)


COMMAND = Command(run=inspect, panel="Use and check a model")
