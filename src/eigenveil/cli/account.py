"""`eigenveil account`: what releases cost, and what noise a budget needs. No data is involved."""

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Annotated, Final

import typer

from eigenveil.cli._terminal import errors_as_lines, output
from eigenveil.errors import require

if TYPE_CHECKING:
    from rich.table import Table

    from eigenveil.privacy import Loss

__all__ = ["account"]

_MOST_REPEATS: Final = 1_000_000
# Where there is Laplace noise, the account is kept on a grid of losses. Beyond this sum of 1 / multiplier^2, which means
# an epsilon of 100 or so, the grid would fill the memory.
_MOST_ON_GRID: Final = 100.0

Releases = list[str] | None
_REPEAT = "noise over sensitivity; x3 behind it means three times; may be repeated"


@errors_as_lines
def account(
    gaussian: Annotated[
        Releases, typer.Option(metavar="MULTIPLIER[xN]", help=f"Gaussian releases: {_REPEAT}.", show_default=False)
    ] = None,
    laplace: Annotated[
        Releases, typer.Option(metavar="SCALE[xN]", help=f"Laplace releases: {_REPEAT}.", show_default=False)
    ] = None,
    delta: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="At which delta; always needed.", show_default=False)
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="A budget: say what noise it needs instead.", show_default=False),
    ] = None,
    releases: Annotated[
        int | None, typer.Option(help="With --epsilon: how many equal releases share it.", show_default="1")
    ] = None,
) -> None:
    """What private releases cost, or what noise a budget needs.

    Noise is counted in multipliers: its standard deviation (for Laplace
    noise its scale) over the sensitivity, which is how far one person can
    move the number that is released.

    What three Gaussian releases and a Laplace one cost together:

      eigenveil account --gaussian 4.0x3 --laplace 10 --delta 1e-6

    How much noise each of three releases needs to stay within (1, 1e-6):

      eigenveil account --epsilon 1 --delta 1e-6 --releases 3
    """
    priced = bool(gaussian or laplace)
    require(
        priced or epsilon is not None,
        "nothing to account for: give releases (--gaussian, --laplace) or a budget (--epsilon)",
    )
    require(
        not priced or (epsilon is None and releases is None),
        "--gaussian and --laplace ask for a cost, --epsilon and --releases for noise; give one or the other",
    )
    if delta is None:
        raise ValueError("--delta is required: a cost or a budget is a pair of epsilon and delta")
    require(0 < delta < 1, f"--delta must lie between 0 and 1, got {delta}")
    if epsilon is None:
        _show_cost([*_losses("gaussian", gaussian), *_losses("laplace", laplace)], delta)
    else:
        _show_noise(epsilon, delta, 1 if releases is None else releases)


def _losses(law: str, texts: Releases) -> "list[Loss]":
    from eigenveil.privacy import Loss

    found = []
    for text in texts or []:
        size, cross, times = text.lower().partition("x")
        try:
            multiplier, count = float(size), int(times) if cross else 1
        except ValueError:
            raise ValueError(
                f"--{law} must be a number such as 4.0, or 4.0x3 for three of them, got {text!r}"
            ) from None
        require(multiplier > 0 and math.isfinite(multiplier), f"--{law}: the noise must be positive, got {text!r}")
        require(1 <= count <= _MOST_REPEATS, f"--{law}: between 1 and {_MOST_REPEATS} repeats, got {text!r}")
        found.append(Loss("gaussian" if law == "gaussian" else "laplace", multiplier, count))
    return found


def _show_cost(losses: "Sequence[Loss]", delta: float) -> None:
    from rich.text import Text

    from eigenveil.privacy import price

    exact = all(loss.law == "gaussian" for loss in losses)
    size = math.fsum(loss.count / loss.multiplier**2 for loss in losses)
    require(
        exact or size <= _MOST_ON_GRID,
        "with so little noise the releases would cost an epsilon near or above 100, which protects nobody; "
        "only Gaussian releases are accounted for that far",
    )
    table = _table("noise", "multiplier", "times", "epsilon alone")
    for loss in losses:
        table.add_row(loss.law, f"{loss.multiplier:g}", str(loss.count), _up(price([loss], delta=delta)))
    console = output()
    console.print(table)
    total = price(losses, delta=delta)
    console.print(Text.assemble("\ntogether: ", (f"epsilon = {_up(total)} at delta = {delta:g}", "bold green")))
    how = "exactly, in closed form" if exact else "on a grid of privacy losses, rounded up"
    console.print(f"composed {how}", style="dim")


def _show_noise(epsilon: float, delta: float, releases: int) -> None:
    from rich.text import Text

    from eigenveil.papers.noise_scales import classical_multiplier, ppm_multiplier
    from eigenveil.privacy import Budget

    require(math.isfinite(epsilon) and epsilon > 0, f"--epsilon must be positive, got {epsilon:g}")
    require(1 <= releases <= _MOST_REPEATS, f"--releases must lie between 1 and {_MOST_REPEATS}, got {releases}")
    budget = Budget(epsilon, delta)
    needed = math.sqrt(releases) / budget.mu
    table = _table("calibration", "multiplier of each release", "times what is needed")
    table.add_row("exact (used here)", _up(needed), "1")
    published = ppm_multiplier(budget, rounds=releases) if epsilon <= 4 * math.log(1 / delta) else None
    table.add_row("published: PPM Alg. 1", *_compared(published, needed))
    if releases == 1:
        table.add_row("textbook Gaussian", *_compared(classical_multiplier(budget) if epsilon < 1 else None, needed))
    console = output()
    console.print(table)
    noise = f"noise = {_up(needed)} x sensitivity"
    each = "" if releases == 1 else f" in each of {releases} releases"
    console.print(Text.assemble("\n", (noise, "bold green"), f"{each} keeps ({epsilon:g}, {delta:g})"))
    console.print(f"that is mu = {budget.mu:.6g} in Gaussian-DP terms", style="dim")


def _up(number: float) -> str:
    """Five significant digits, rounded up: less noise or a smaller epsilon than this would not keep the guarantee."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    unit = Decimal(1).scaleb(Decimal(number).adjusted() - 4)
    return format(Decimal(number).quantize(unit, rounding=ROUND_CEILING).normalize(), "f")


def _compared(published: float | None, needed: float) -> tuple[str, str]:
    if published is None:
        return "not proved here", ""
    return _up(published), f"{published / needed:.2f}"


def _table(first: str, *rest: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first)
    for name in rest:
        table.add_column(name, justify="right")
    return table
