"""What `eigenveil bounds` and `eigenveil spectrum` share: options, the budget left for a fit, and the next
commands."""

import json
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, final

import typer

from eigenveil.errors import require, require_param

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Step", "command_of", "left_for_fit", "show_steps", "write_json"]

# The most columns whose numbers fit on a command line.
WIDEST: Final = 16

PerColumn: TypeAlias = Annotated[
    bool, typer.Option("--per-column", help="Find a range for each column instead, with sqrt(columns) times the noise.")
]
Total: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="EPSILON",
        help="The epsilon that this command and the fit may spend together. Shows what is left for the fit.",
        rich_help_panel="Privacy",
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
        help="How many components the fit will have. Shows what each bound would capture.",
        show_default=False,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
BoundsOutput: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Also write the answer to a .json file, for `eigenveil fit --bounds`.",
        show_default=False,
    ),
]
SpectrumOutput: TypeAlias = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="FILE", help="Write the spectrum to this .json file, for `eigenveil plan`."),
]


@final
@dataclass(frozen=True, slots=True)
class Step:
    """A next step: why, the command, and notes."""

    why: str
    command: str
    notes: tuple[str, ...] = ()


def show_steps(console: "Console", steps: Iterable[Step]) -> None:
    """Print each command on one line, however long, so that it can be copied."""
    for step in steps:
        console.print(step.why, style="bold", soft_wrap=True)
        # Not wrapped by rich: a line break in the middle of an option would not paste.
        console.print(f"  {step.command}", soft_wrap=True)
        for note in step.notes:
            console.print(note, style="bold", soft_wrap=True)


def left_for_fit(total: float | None, epsilon: float | None, delta: float | None) -> tuple[float, float] | None:
    """The total epsilon, and what a fit may still spend of it at the same delta. The mu of Gaussian releases add up
    in squares.

    Rounded down to four digits. None where no total was given and none can be suggested.

    >>> left_for_fit(None, 0.1, 1e-6)
    (1.0, 0.9926)
    """
    from eigenveil.core.accounting import epsilon_of, mu_for
    from eigenveil.estimators.checks import budget_of

    spent = budget_of(epsilon, delta)
    if spent is None:
        require_param(total is None, "--total has no meaning with {epsilon=None}: leave it out")
        return None
    if total is None and spent.epsilon >= 1:
        return None
    # Epsilon 1 is what most studies spend, so it is suggested where nothing was said.
    whole = 1.0 if total is None else total
    require(
        math.isfinite(whole) and whole > spent.epsilon,
        f"--total must be more than --epsilon, because it includes it, got {whole:g} and {spent.epsilon:g}",
    )
    # Squares of mu add up, so what is left is their difference.
    left = epsilon_of(math.sqrt(mu_for(whole, spent.delta) ** 2 - spent.mu**2), spent.delta)
    # Rounded down, so that both together never exceed the total.
    digits = 3 - math.floor(math.log10(left))
    return whole, math.floor(left * 10**digits) / 10**digits


def why_next(left: tuple[float, float] | None) -> str:
    """The introduction of a next step, with the budget it has."""
    if left is None:
        return "Next:"
    return f"Next, with epsilon = {left[1]:g}, which this leaves of {left[0]:g} for both:"


def command_of(*words: Any) -> str:
    """A command line that can be copied.

    >>> command_of("fit", Path("my table.csv"), "-k", 5)
    "eigenveil fit 'my table.csv' -k 5"
    """
    return shlex.join(["eigenveil", *map(str, words)])


def write_json(path: Path, plain: Mapping[str, Any]) -> None:
    """Write plain values completely or not at all. They were released, so everybody may read them."""
    from eigenveil.data.archive import whole_file

    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(plain, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        # `whole_file` makes files for their owner alone, and these are meant to be shared.
        temporary.chmod(0o644)
