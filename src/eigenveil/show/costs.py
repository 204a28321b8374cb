"""What releases cost together, and the noise that a budget needs: `eigenveil account` as tables and as plain values."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any, final

from rich.text import Text

from eigenveil.core.accounting import Budget
from eigenveil.privacy import Guarantee
from eigenveil.privacy.facts import weak_words
from eigenveil.privacy.pricing import Loss, price
from eigenveil.show.terminal import plain, simple_table

if TYPE_CHECKING:
    from eigenveil.show.console import View

__all__ = ["Release", "cost_view", "noise_view", "sum_values", "sum_view"]


@final
@dataclass(frozen=True, slots=True)
class Release:
    """Something to add up: its `name`, its `loss`, and the `guarantee` where a file states one."""

    name: str
    loss: Loss
    guarantee: Guarantee | None = None

    @property
    def unit(self) -> str:
        """What is protected, in one word."""
        protects = None if self.guarantee is None else self.guarantee.protects
        return "" if protects is None else protects.each

    @property
    def column(self) -> str | None:
        """The column that names people, where the file says it."""
        protects = None if self.guarantee is None else self.guarantee.protects
        return None if protects is None else protects.column

    @property
    def mu(self) -> float | None:
        """The mu of a Gaussian release."""
        return math.sqrt(self.loss.count) / self.loss.multiplier if self.loss.law == "gaussian" else None

    @property
    def neighbours(self) -> str | None:
        """The relation between neighbouring tables, where the file says it."""
        return None if self.guarantee is None else self.guarantee.relation


def cost_view(losses: Sequence[Loss], delta: float) -> "View":
    """Each of these releases with its cost alone, and all of them together."""
    table = simple_table("noise", "multiplier", "times", "epsilon alone")
    for loss in losses:
        table.add_row(loss.law, f"{loss.multiplier:g}", str(loss.count), _up(price([loss], delta=delta)))
    yield table
    yield from _total(losses, delta)


def sum_view(releases: Sequence[Release], delta: float) -> "View":
    """Each release with its cost and its kind, and all of them together."""
    table = simple_table("release", "mu", f"epsilon at {delta:g}", "protects each", "neighbours")
    for release in releases:
        mu = "" if release.mu is None else f"{release.mu:.5g}"
        cost = _up(price([release.loss], delta=delta))
        table.add_row(plain(release.name), mu, cost, release.unit, plain(release.neighbours or ""))
    yield table
    yield from _total([release.loss for release in releases], delta)
    for line in _remarks(releases):
        yield Text(line, style="dim")


def sum_values(releases: Sequence[Release], delta: float) -> dict[str, Any]:
    """The same for programs."""
    lines = [
        {
            "release": release.name,
            "mu": release.mu,
            "epsilon": float(_up(price([release.loss], delta=delta))),
            "protects_each": release.unit or None,
            "neighbours": release.neighbours,
        }
        for release in releases
    ]
    total = float(_up(price([release.loss for release in releases], delta=delta)))
    return {"releases": lines, "epsilon": total, "delta": delta}


def noise_view(budget: Budget, releases: int, others: Sequence[tuple[str, float | None]]) -> "View":
    """The noise that each of so many equal releases needs, next to that of `others`, None where they have no proof."""
    # Squares of mu add up, so each of n equal releases gets the root of n times the noise of one.
    needed = math.sqrt(releases) / budget.mu
    table = simple_table("calibration", "multiplier of each release", "times what is needed")
    table.add_row("exact (used here)", _up(needed), "1")
    for name, multiplier in others:
        compared = ("no proof here", "") if multiplier is None else (_up(multiplier), f"{multiplier / needed:.2f}")
        table.add_row(name, *compared)
    yield table
    noise = f"noise = {_up(needed)} x sensitivity"
    each = "" if releases == 1 else f" in each of {releases} releases"
    yield Text.assemble("\n", (noise, "bold green"), f"{each} satisfies ({budget.epsilon:g}, {budget.delta:g})")
    yield Text(f"that is mu = {budget.mu:.6g} in Gaussian-DP terms", style="dim")


def _remarks(releases: Sequence[Release]) -> Iterator[str]:
    """What the sum rests on."""
    stated = [release.guarantee for release in releases if release.guarantee is not None]
    yield "This is the cost to a person who is in all of them."
    if stated and len(stated) < len(releases):
        yield "Releases given as numbers are taken to protect the same as the files do."
    if len({guarantee.against for guarantee in stated}) > 1:
        yield "The files protect from different people. The sum holds against those that all of them protect from."


def _total(losses: Sequence[Loss], delta: float) -> "View":
    total = price(losses, delta=delta)
    yield Text.assemble("\ntogether: ", (f"epsilon = {_up(total)} at delta = {delta:g}", "bold green"))
    # A sum may protect nobody although each release did, and people read the last line.
    for text in weak_words(Budget(total, delta)) if total > 0 else ():
        yield Text(f"{text[0].upper()}{text[1:]}.", style="yellow")
    exact = all(loss.law == "gaussian" for loss in losses)
    how = "exactly, in closed form" if exact else "on a grid of privacy losses, rounded up"
    yield Text(f"composed {how}", style="dim")


def _up(number: float) -> str:
    """Five significant digits, rounded up: less noise or a smaller epsilon than this would not keep the guarantee."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    unit = Decimal(1).scaleb(Decimal(number).adjusted() - 4)
    return format(Decimal(number).quantize(unit, rounding=ROUND_CEILING).normalize(), "f")
