"""The options of `eigenveil plan` that are not plan parameters: files with what is known, and what to show."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from eigenveil.errors import require, require_param
from eigenveil.params.declarations.plan import SHOWN, SPECTRUM

__all__ = ["DEFAULT_EPSILONS", "epsilons_from", "methods_from"]

# Half a decade apart: from where nearly nothing is found to where nearly nothing is hidden.
DEFAULT_EPSILONS: Final = "0.1,0.3,1,3,10"

SpectrumFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--spectrum",
        metavar="FILE",
        help="A spectrum released by `eigenveil spectrum`, .json. Or public variances in the units of --row-bound: "
        "numbers in a .csv or .txt file or a .json list.",
        rich_help_panel=SPECTRUM,
        show_default=False,
    ),
]
# The one option that reads rows without a guarantee, so its help says PUBLIC in capitals.
PublicData: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="TABLE",
        help="A PUBLIC table like the private one: last decade's, another country's. It is read without noise "
        "and nobody in it is protected, so never pass the private table.",
        rich_help_panel=SPECTRUM,
        show_default=False,
    ),
]
FromModel: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL",
        help="An earlier .safetensors model of similar rows, whose variances are already public.",
        rich_help_panel=SPECTRUM,
        show_default=False,
    ),
]
BoundsJson: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--bounds",
        metavar="FILE",
        help="What `eigenveil bounds --output` wrote, for a fit with --bounds: its row bound, and norms, which narrow what is "
        "forecast of the loss by clipping.",
        rich_help_panel=SPECTRUM,
        show_default=False,
    ),
]
Epsilons: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NUMBERS",
        help="Epsilons to plot, separated by commas. The one of --epsilon is always included.",
        rich_help_panel=SHOWN,
    ),
]
Plot: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Also draw accuracy against epsilon to this .svg file, or .png if matplotlib is installed.",
        rich_help_panel=SHOWN,
        show_default=False,
    ),
]
# Its own wording: a plan has two files to overwrite.
Force: TypeAlias = Annotated[
    bool,
    typer.Option("--force", help="Overwrite the files of --plot and --report if they exist.", rich_help_panel=SHOWN),
]
# For scripts that try many budgets. `chosen` tells them whether to go on.
AsJson: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON: every method, the curve, the assumptions. `chosen` is null if nothing can work.",
        rich_help_panel=SHOWN,
    ),
]


def epsilons_from(text: str, *, asked: float) -> tuple[float, ...]:
    """The epsilons of the curve, sorted, each once, including the `asked` one.

    >>> epsilons_from("3,0.3", asked=1.0)
    (0.3, 1.0, 3.0)
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--epsilons must be numbers separated by commas, such as 0.1,1,10, got {text!r}") from None
    good = all(math.isfinite(number) and number > 0 for number in found)
    require(good, f"--epsilons must be positive and finite, got {text}")
    # With the epsilon that was asked for, so that the curve goes through the answer.
    return tuple(sorted({*found, asked}))


def methods_from(texts: Sequence[str], known: Mapping[str, str]) -> tuple[str, ...]:
    """The names in `known`, a table from name to algorithm, that match one of `texts` by name or by algorithm.

    >>> methods_from(["power", "b/sync"], {"a/power": "power", "b/power": "power", "b/sync": "sync"})
    ('a/power', 'b/power', 'b/sync')
    """
    for text in texts:
        require_param(
            text in known or text in known.values(),
            f"{{methods}} must be one of {', '.join(sorted({*known.values()}))}, or name the setting too, such as "
            f"{next(iter(known))}, got {{@text}}",
            text=text,
        )
    return tuple(method for method, how in known.items() if {method, how} & {*texts})
