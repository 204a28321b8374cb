"""The options of `eigenveil plan`, each with the words its --help shows, and how their texts become public facts."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import typer

from eigenveil.cli.simulate_options import number_or_share
from eigenveil.errors import require

__all__ = ["DEFAULT_EPSILONS", "epsilons_from", "in_plan_words", "methods_from", "people_from", "survivors_from"]

_SPECTRUM: Final = "What is known of the spectrum (one of these, or nothing)"
_PRIVACY: Final = "Privacy"
_SITES: Final = "Who holds the rows, and what they can afford"
_SHOWN: Final = "What is shown"
DEFAULT_EPSILONS: Final = "0.1,0.3,1,3,10"
_FEWEST, _MOST = 2, 10**15

Rows: TypeAlias = Annotated[
    str,
    typer.Option(
        "--rows",
        "-n",
        metavar="NUMBER",
        help="About how many people there are, one row each, such as 20000 or 1e5. A public number or its order; it is not "
        "counted in any file.",
        show_default=False,
    ),
]
Columns: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--columns",
        "-d",
        min=2,
        metavar="D",
        help="How many columns; a file that is given may say it.",
        show_default=False,
    ),
]
Components: TypeAlias = Annotated[
    int, typer.Option("--components", "-k", min=1, metavar="K", help="How many components.", show_default=False)
]
Explained: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="A guess: which share of the variance the first K components have, such as 0.6.",
        rich_help_panel=_SPECTRUM,
        show_default=False,
    ),
]
Decay: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="POWER",
        help="A guess: variance i is in proportion to i^-POWER. 0.5 is flat, 1 usual, 2 steep.",
        rich_help_panel=_SPECTRUM,
        show_default="1, if nothing else is known",
    ),
]
Fill: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="How long rows are beside the row bound: the mean squared length around the mean, over the bound squared.",
        rich_help_panel=_SPECTRUM,
        show_default="0.5",
    ),
]
SpectrumFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--spectrum",
        metavar="FILE",
        help="A spectrum that `eigenveil spectrum` has released, .json; or public variances, the numbers in a .csv, .txt or "
        ".json list, in the units of --row-bound.",
        rich_help_panel=_SPECTRUM,
        show_default=False,
    ),
]
PublicData: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="TABLE",
        help="A PUBLIC table like the private one: last decade's, another country's. It is read exactly and nobody in it is "
        "protected, so never give the private one.",
        rich_help_panel=_SPECTRUM,
        show_default=False,
    ),
]
Drop: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="COLUMN",
        help="Leave this column of the public table out; repeat it for several.",
        rich_help_panel=_SPECTRUM,
        show_default=False,
    ),
]
Scale: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Columns of the public table are divided by this, as the fit will: one number, or one per column.",
        rich_help_panel=_SPECTRUM,
        show_default=False,
    ),
]
FromModel: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL",
        help="An earlier .safetensors model of rows like these: its variances are public already.",
        rich_help_panel=_SPECTRUM,
        show_default=False,
    ),
]
RowBound: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="The bound that the fit will have, in the units of the spectrum or public table. A guess needs none: --fill says "
        "all that matters.",
        rich_help_panel=_SPECTRUM,
        show_default=False,
    ),
]
Center: TypeAlias = Annotated[
    Literal["private", "known"],
    typer.Option(
        metavar="WHICH",
        help="private: the fit will find the mean, for a part of the budget. known: the mean is public, or rows are left where "
        "they are.",
        rich_help_panel=_PRIVACY,
    ),
]
Search: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--search/--no-search",
        help="Whether the fit will look for the mean in several steps, as it does unless --mean-bound or --column-bounds are "
        "given to it.",
        rich_help_panel=_PRIVACY,
    ),
]
Sites: TypeAlias = Annotated[
    int,
    typer.Option(min=1, metavar="M", help="At how many sites the rows are, evenly.", rich_help_panel=_SITES),
]
Trust: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHO",
        help="Which settings are acceptable; repeat it for several. curator: one holder of all rows adds the noise. stream: the "
        "same, row after row. hub: sites send raw sums to a hub that adds it. site: every site adds all of it. masked: the "
        "sites together, under masks. peers: no hub, and noise that cancels between pairs. peers-independent: no hub, and "
        "every peer adds all of it.",
        rich_help_panel=_SITES,
        show_default="all that --sites allows",
    ),
]
Survivors: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Under masks: how many sites must be in each sum, such as 8, or which share of them, such as 0.8.",
        rich_help_panel=_SITES,
        show_default="all",
    ),
]
Colluders: TypeAlias = Annotated[
    int,
    typer.Option(
        min=1, help="Under masks and between peers: how many may tell each other all they know.", rich_help_panel=_SITES
    ),
]
Blocks: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, help="Streams: in how many blocks the rows come.", rich_help_panel=_SITES, show_default="planned"
    ),
]
Rounds: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="At most how many rounds are affordable.", rich_help_panel=_SITES, show_default="any"),
]
Traffic: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="At most how much one site may send in all, such as 10MB.",
        rich_help_panel=_SITES,
        show_default="any",
    ),
]
Memory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES", help="At most how much memory one holder has.", rich_help_panel=_SITES, show_default="1GiB"
    ),
]
Method: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHICH",
        help="Compare only these; repeat it for several. A name such as covariance, or one of a setting, such as "
        "masked/krylov.",
        rich_help_panel=_SHOWN,
        show_default="all",
    ),
]
Epsilons: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NUMBERS",
        help="For which epsilons accuracy is plotted, with commas between; the one of --epsilon is always among them.",
        rich_help_panel=_SHOWN,
    ),
]
Plot: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw accuracy against epsilon to this .svg file, too.",
        rich_help_panel=_SHOWN,
        show_default=False,
    ),
]
Force: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Overwrite the file of --plot if it exists.", rich_help_panel=_SHOWN)
]
AsJson: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Everything, for programs: every method, the curve, what was assumed. chosen is null where nothing can work.",
        rich_help_panel=_SHOWN,
    ),
]


def people_from(text: str) -> int:
    """A number of people, or its order.

    >>> people_from("20000"), people_from("1e5"), people_from("2.5e3")
    (20000, 100000, 2500)
    """
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"--rows must be a number such as 20000 or 1e5, got {text!r}") from None
    whole = math.isfinite(number) and number == round(number)
    require(whole and _FEWEST <= number <= _MOST, f"--rows must be a whole number, {_FEWEST} or more, got {text}")
    return int(number)


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


def survivors_from(text: str | None, *, sites: int) -> int | None:
    """A number of sites, from a number or a share of them.

    >>> survivors_from("4", sites=5), survivors_from("0.7", sites=5), survivors_from(None, sites=5)
    (4, 4, None)
    """
    if text is None:
        return None
    # Only then: the estimators take a while to load.
    from eigenveil.estimators.federated_rules import share_of

    return share_of("--survivors", number_or_share("--survivors", text), sites)


def methods_from(texts: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Those of the `known` methods, each "setting/method", that are called so, by their whole name or the end of it.

    >>> methods_from(["covariance", "b/power"], ["a/covariance", "a/power", "b/covariance", "b/power"])
    ('a/covariance', 'b/covariance', 'b/power')
    """
    for text in texts:
        names = sorted({method.partition("/")[2] for method in known})
        require(
            any(text in (method, method.partition("/")[2]) for method in known),
            f"--method must be one of {', '.join(names)}, or one of a setting, such as {known[0]}, got {text!r}",
        )
    return tuple(method for method in known if {method, method.partition("/")[2]} & {*texts})


_NAMES: Final = {"people": "--rows", "dim": "--columns", "rank": "--components"}
_OPENING: Final = "sites|survivors|colluders|blocks|rounds|traffic|memory|trust|explained|decay|fill"


def in_plan_words(message: str) -> str:
    """A message of the planner with the names of its parameters replaced by those of the options.

    >>> in_plan_words("sites must be from 1 to the 3 people, got 5"), in_plan_words("dim must be at least 2, got 1")
    ('--sites must be from 1 to the 3 people, got 5', '--columns must be at least 2, got 1')
    >>> in_plan_words("trust='hub' needs several sites, and there is one: give sites")
    '--trust hub needs several sites, and there is one: give --sites'
    """
    message = re.sub(r"\btrust='([\w-]+)'", r"--trust \1", message)
    message = re.sub(rf"^({_OPENING})\b|(?<=give )({_OPENING})\b", lambda found: f"--{found[0]}", message)
    return re.sub(r"^(people|dim|rank)\b", lambda found: _NAMES[found[0]], message)
