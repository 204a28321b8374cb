"""The options of `eigenveil plan` that are no parameters of a plan: files that say what is known, and what is shown."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from eigenveil.errors import require, require_param
from eigenveil.params.declarations.plan import SHOWN, SPECTRUM

__all__ = ["DEFAULT_EPSILONS", "epsilons_from", "methods_from"]

DEFAULT_EPSILONS: Final = "0.1,0.3,1,3,10"

SpectrumFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--spectrum",
        metavar="FILE",
        help="A spectrum that `eigenveil spectrum` has released, .json; or public variances, the numbers in a .csv, .txt or "
        ".json list, in the units of --row-bound.",
        rich_help_panel=SPECTRUM,
        show_default=False,
    ),
]
PublicData: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="TABLE",
        help="A PUBLIC table like the private one: last decade's, another country's. It is read exactly and nobody in it is "
        "protected, so never give the private one.",
        rich_help_panel=SPECTRUM,
        show_default=False,
    ),
]
Drop: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="COLUMN",
        help="Leave this column of the public table out; repeat it for several.",
        rich_help_panel=SPECTRUM,
        show_default=False,
    ),
]
FromModel: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL",
        help="An earlier .safetensors model of rows like these: its variances are public already.",
        rich_help_panel=SPECTRUM,
        show_default=False,
    ),
]
Epsilons: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NUMBERS",
        help="For which epsilons accuracy is plotted, with commas between; the one of --epsilon is always among them.",
        rich_help_panel=SHOWN,
    ),
]
Plot: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw accuracy against epsilon to this .svg file, too.",
        rich_help_panel=SHOWN,
        show_default=False,
    ),
]
Force: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Overwrite the file of --plot if it exists.", rich_help_panel=SHOWN)
]
AsJson: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Everything, for programs: every method, the curve, what was assumed. chosen is null where nothing can work.",
        rich_help_panel=SHOWN,
    ),
]


def epsilons_from(text: str, *, asked: float) -> tuple[float, ...]:
    """The epsilons of the curve in order, each once, with the one that was asked for among them.

    >>> epsilons_from("3,0.3", asked=1.0)
    (0.3, 1.0, 3.0)
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--epsilons must be numbers with commas between, such as 0.1,1,10, got {text!r}") from None
    good = all(math.isfinite(number) and number > 0 for number in found)
    require(good, f"--epsilons must be positive and finite, got {text}")
    return tuple(sorted({*found, asked}))


def methods_from(texts: Sequence[str], known: Mapping[str, str]) -> tuple[str, ...]:
    """Those of the `known` methods, by name with their algorithms, that are called so, by their name or their algorithm.

    >>> methods_from(["power", "b/sync"], {"a/power": "power", "b/power": "power", "b/sync": "sync"})
    ('a/power', 'b/power', 'b/sync')
    """
    for text in texts:
        require_param(
            text in known or text in known.values(),
            f"{{methods}} must be one of {', '.join(sorted({*known.values()}))}, or one of a setting, such as "
            f"{next(iter(known))}, got {{@text}}",
            text=text,
        )
    return tuple(method for method, how in known.items() if {method, how} & {*texts})
