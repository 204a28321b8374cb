"""The options of `eigenveil bounds` and `eigenveil spectrum` that `eigenveil fit` does not have, and what comes after them."""

import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from eigenveil.cli.options import in_option_words, numbers_from, pair_from
from eigenveil.errors import require

__all__ = [
    "after",
    "columns_were_counted",
    "command_of",
    "in_bounds_words",
    "left_for_fit",
    "quoted",
    "range_from",
    "require_budget",
    "settings_from",
    "write_json",
]

_PRIVACY: Final = "Privacy"
_BOUNDS: Final = "Where rows lie (public knowledge, never read from the data)"
# What fits on a command line.
WIDEST: Final = 16

Columns: TypeAlias = Annotated[
    bool, typer.Option("--columns", help="A range for each column instead, at sqrt(columns) times the noise.")
]
Quantile: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="SHARE", help="Which share of people is to stay uncut: from 0.5 to below 1. More, and the noise grows."
    ),
]
Within: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="LOW,HIGH",
        help="Between which lengths to look, in units of the scale; a wider range costs a little more noise.",
        rich_help_panel=_BOUNDS,
        show_default="1e-9,1e12; for columns 1e-6,1e9",
    ),
]
Total: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="EPSILON",
        help="The epsilon that this and the fit may spend together, to say what is left for the fit.",
        rich_help_panel=_PRIVACY,
        show_default="1, if --epsilon is less",
    ),
]
Rank: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--components",
        "-k",
        min=1,
        metavar="K",
        help="How many components the fit will have, to say what each bound would bring.",
        show_default=False,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="The answer as JSON.")]
BoundsOutput: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "--out",
        "-o",
        help="Write the answer to a .json file too, which `eigenveil fit --bounds` reads.",
        show_default=False,
    ),
]
SpectrumOutput: TypeAlias = Annotated[
    Path, typer.Option("--output", "--out", "-o", help="Where the spectrum goes, a .json file for `eigenveil plan`.")
]
NoPrivacy: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-privacy", help="Exact numbers, for public tables. Nobody is protected.", rich_help_panel=_PRIVACY
    ),
]


def require_budget(epsilon: object, delta: object, *, no_privacy: bool) -> None:
    """Privacy must be asked for or refused aloud."""
    require(epsilon is None or not no_privacy, "--epsilon and --no-privacy contradict each other; give one of them")
    require(
        epsilon is not None or no_privacy,
        "--epsilon is required (try 0.1, a small part of what the fit will spend); exact numbers, which protect nobody, must be "
        "asked for with --no-privacy",
    )
    require(delta is None or not no_privacy, "--delta means nothing with --no-privacy; leave it out")
    require(epsilon is None or delta is not None, "--delta is required: well below one over the number of people")


def in_bounds_words(message: str) -> str:
    """A message with the names of parameters replaced by those of the options.

    >>> in_bounds_words("quantile must be a number from 0.5 to below 1, got 2"), in_bounds_words("give a scale or a range")
    ('--quantile must be a number from 0.5 to below 1, got 2', 'give a --scale or a range (--within)')
    """
    message = re.sub(r"^(quantile|within)\b", r"--\1", in_option_words(message))
    return message.replace("give a scale or a range", "give a --scale or a range (--within)")


def range_from(text: str | None) -> Mapping[str, Any]:
    """The range of lengths as an argument, where it was given."""
    found = pair_from("--within", text)
    return {} if found is None else {"within": found}


def left_for_fit(total: float | None, epsilon: float | None, delta: float | None) -> tuple[float, float] | None:
    """The total epsilon, and what a fit may spend of it after this, at the same delta: Gaussian releases add up in squares.

    Rounded down to four digits. None where no total was given and there is none to suggest.

    >>> left_for_fit(None, 0.1, 1e-6)
    (1.0, 0.9926)
    """
    from eigenveil.estimators.checks import budget_of
    from eigenveil.privacy import epsilon_of, mu_for

    try:
        spent = budget_of(epsilon, delta)
    except ValueError as error:
        raise ValueError(in_bounds_words(str(error))) from error
    if spent is None:
        require(total is None, "--total means nothing with --no-privacy; leave it out")
        return None
    if total is None and spent.epsilon >= 1:
        return None
    whole = 1.0 if total is None else total
    require(
        math.isfinite(whole) and whole > spent.epsilon,
        f"--total must be more than --epsilon, as it is for both, got {whole:g} and {spent.epsilon:g}",
    )
    left = epsilon_of(math.sqrt(mu_for(whole, spent.delta) ** 2 - spent.mu**2), spent.delta)
    digits = 3 - math.floor(math.log10(left))
    return whole, math.floor(left * 10**digits) / 10**digits


def quoted(numbers: Any, *, unit: float) -> str:
    """Numbers with commas between, rounded to a hundredth of `unit`: how a point is put on a command line."""
    step = 10.0 ** math.floor(math.log10(unit / 100))
    return ",".join(f"{round(float(number) / step) * step:.12g}" for number in numbers)


def command_of(name: str, data: Path | None, options: Mapping[str, Any]) -> str:
    """A command line that can be copied; options that are None or False are left out. No number is rounded.

    >>> command_of("fit", Path("my table.csv"), {"-k": 5, "--drop": ["a", "b"], "--person": None})
    "eigenveil fit 'my table.csv' -k 5 --drop a --drop b"
    """
    from eigenveil.privacy.guarantee import plain as exact

    words = ["eigenveil", name, *([] if data is None else [str(data)])]
    for option, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is None or one is False:
                continue
            text = exact(one) if isinstance(one, float) else str(one)
            if one is True:
                words.append(option)
            elif text.startswith("-"):
                # A value that begins with a minus would be taken for an option.
                words.append(f"{option}={text}")
            else:
                words += [option, text]
    return shlex.join(words)


def after(reading: Mapping[str, Any], *, neighbours: str, scale: str | None) -> dict[str, Any]:
    """The options of the next command that are those of this one."""
    return {
        "--person": reading["person"],
        "--drop": list(reading["drop"]) or None,
        "--features": reading["features"],
        "--one-based": reading["one_based"],
        "--neighbours": None if neighbours == "add-remove" else neighbours,
        "--scale": scale,
    }


def settings_from(epsilon: float | None, delta: float | None, **more: Any) -> dict[str, Any]:
    """The arguments that both commands hand on, their texts made numbers."""
    texts = {name: numbers_from(f"--{name}", more.pop(name)) for name in ("origin", "scale")}
    center = more.pop("center")
    return {"epsilon": epsilon, "delta": delta, "center": None if center == "none" else center, **texts, **more}


def columns_were_counted(data: Path, features: int | None) -> bool:
    """Whether the number of columns comes from the rows of the file."""
    from eigenveil.files import SVMLIGHT

    return data.suffix.lower() in SVMLIGHT and features is None


def write_json(path: Path, plain: Mapping[str, Any]) -> None:
    """Write plain values whole or not at all, for everybody to read: they are released."""
    from eigenveil.files import whole_file

    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(plain, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        temporary.chmod(0o644)
