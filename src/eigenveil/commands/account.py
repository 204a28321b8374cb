"""`eigenveil account`: add up what releases cost, or find the noise a budget needs. It reads no data.

Files say themselves what they cost: models, item spaces, bounds and spectra carry a guarantee. Guarantees are added up only if
they protect the same, between the same neighbouring tables.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, final

import typer

from eigenveil.commands._command import Command
from eigenveil.commands._files import require_file
from eigenveil.errors import require
from eigenveil.show.console import output

if TYPE_CHECKING:
    from rich.table import Table

    from eigenveil.privacy import Guarantee
    from eigenveil.privacy.pricing import Loss

__all__ = ["COMMAND"]

_MOST_REPEATS: Final = 1_000_000
# With Laplace noise the cost is computed on a grid of privacy losses. Beyond this sum of 1 / multiplier^2, an epsilon of
# about 100, the grid would fill the memory.
_MOST_ON_GRID: Final = 100.0
# A file may state any number, and the mu of others takes forever.
_SMALLEST, _LARGEST = 1e-9, 1e6

Releases = list[str] | None
_COST: Final = "Add up what releases cost"
_NOISE: Final = "Find the noise a budget needs"


def account(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="What was released: models and item spaces (.safetensors), bounds and spectra (.json).",
            show_default=False,
        ),
    ] = None,
    mu: Annotated[
        list[float] | None,
        typer.Option(
            "--mu",
            metavar="NUMBER",
            help="A release of this mu in Gaussian-DP terms, as guarantees and ledgers list it. May be repeated.",
            rich_help_panel=_COST,
            show_default=False,
        ),
    ] = None,
    gaussian: Annotated[
        Releases,
        typer.Option(
            metavar="MULTIPLIER[xN]",
            help="A Gaussian release: its noise multiplier. 4.0x3 is three such releases. May be repeated.",
            rich_help_panel=_COST,
            show_default=False,
        ),
    ] = None,
    laplace: Annotated[
        Releases,
        typer.Option(
            metavar="MULTIPLIER[xN]",
            help="A Laplace release, given in the same way.",
            rich_help_panel=_COST,
            show_default=False,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="The delta of the cost or the budget. It may be left out if all files have the same.",
            show_default=False,
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="The epsilon of the budget.", rich_help_panel=_NOISE, show_default=False),
    ] = None,
    releases: Annotated[
        int | None,
        typer.Option(help="How many equal releases share the budget.", rich_help_panel=_NOISE, show_default="1"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the sum as JSON.", rich_help_panel=_COST)] = False,
) -> None:
    """Add up what releases cost, or find the noise a budget needs.

    Use it before you spend a budget, or to check what others have spent.
    It reads no data.

    What do a model, the search for its bounds and one more release cost?

      eigenveil account model.safetensors bounds.json --mu 0.2

    Costs add up for people who are in all of them. Only guarantees of one
    kind have a sum: for the same unit (rows, people or interactions), and
    between the same neighbouring tables.

    What do three Gaussian releases and a Laplace one cost together?

      eigenveil account --gaussian 4.0x3 --laplace 10 --delta 1e-6

    How much noise does each of three releases need at (1, 1e-6)?

      eigenveil account --epsilon 1 --delta 1e-6 --releases 3

    Noise is given as a multiplier: its standard deviation (for Laplace, its
    scale) divided by the sensitivity. The sensitivity is how far one person
    can move the released number.
    """
    # Two questions share this command, and options of one make no sense in the other.
    priced = bool(files or mu or gaussian or laplace)
    require(
        priced or epsilon is not None,
        "nothing to add up. Give files, releases (--gaussian 4.0x3) or a budget (--epsilon 1), and --delta 1e-6",
    )
    require(
        not priced or (epsilon is None and releases is None),
        "Files, --mu, --gaussian and --laplace ask for a cost, --epsilon and --releases for noise. Give one or the other",
    )
    require(priced or not as_json, "--json is for a cost: give files, --mu, --gaussian or --laplace")
    require(delta is None or 0 < delta < 1, f"--delta must be above 0 and below 1, such as 1e-6, got {delta or 0:g}")
    # Only after the cheap checks, because this loads numpy and more.
    noise = [*_losses("gaussian", gaussian), *_losses("laplace", laplace)]
    if files or mu or as_json:
        stated = _stated(files or [])
        entries = [*stated, *map(_Entry.of_mu, mu or []), *map(_Entry.of_noise, noise)]
        (_print_sum if as_json else _show_sum)(entries, delta)
        return
    if delta is None:
        raise ValueError("--delta is missing. A cost is a pair of epsilon and delta: try --delta 1e-6")
    if epsilon is None:
        _show_cost(noise, delta)
    else:
        _show_noise(epsilon, delta, 1 if releases is None else releases)


@final
@dataclass(frozen=True, slots=True)
class _Entry:
    """Something to add up: its `name`, its `loss`, and the `guarantee` where a file states one."""

    name: str
    loss: "Loss"
    guarantee: "Guarantee | None" = None

    @classmethod
    def of_mu(cls, mu: float) -> "_Entry":
        from eigenveil.privacy.pricing import Loss

        require(0 < mu < math.inf, f"--mu must be positive and finite, got {mu:g}")
        # A release of mu is Gaussian noise of 1 / mu times the sensitivity.
        return cls(f"--mu {mu:g}", Loss("gaussian", 1 / mu))

    @classmethod
    def of_noise(cls, loss: "Loss") -> "_Entry":
        return cls(f"--{loss.law} {loss.multiplier:g}" + (f"x{loss.count}" if loss.count > 1 else ""), loss)

    @classmethod
    def of_file(cls, path: Path) -> "_Entry":
        from eigenveil.core.accounting import Budget
        from eigenveil.privacy.pricing import Loss

        guarantee = _guarantee_in(path)
        if guarantee.epsilon is None or guarantee.delta is None:
            raise ValueError(f"{path} has no guarantee, so it cannot be added up: {'; '.join(guarantee.caveats)}")
        # With a known seed anybody can subtract the noise, whatever epsilon the file states.
        require(
            not guarantee.reproducible,
            f"{path} protects nobody, because its noise came from a known seed. Leave it out, or fit again without a seed",
        )
        require(
            _SMALLEST <= guarantee.epsilon <= _LARGEST,
            f"{path} states an epsilon of {guarantee.epsilon:g}, which is not between {_SMALLEST:g} and "
            f"{_LARGEST:g}. Leave it out",
        )
        require(
            guarantee.protects is not None,
            f"{path} does not say whom it protects. Leave it out, and add what was spent on it with --mu",
        )
        # The budget, not the sum of the charges: what is charged may depend on earlier releases, and the budget does not.
        return cls(str(path), Loss("gaussian", 1 / Budget(guarantee.epsilon, guarantee.delta).mu), guarantee)

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


def _stated(files: Sequence[Path]) -> list[_Entry]:
    """What the files cost, if that can be added up."""
    # Compared after links are followed: one release must not be counted as two, nor two as one.
    twice = [path for place, path in enumerate(files) if path.resolve() in {one.resolve() for one in files[:place]}]
    require(not twice, f"{', '.join(map(str, twice[:1]))} is given twice. One release is paid for once")
    found = [_Entry.of_file(path) for path in files]
    for one, other in combinations(found, 2):
        _require_one_kind(one, other)
    return found


def _require_one_kind(one: _Entry, other: _Entry) -> None:
    from eigenveil.show.terminal import plain

    assert one.guarantee is not None and other.guarantee is not None
    require(
        one.unit == other.unit,
        f"{one.name} protects {plain(one.guarantee.unit)}. {other.name} protects {plain(other.guarantee.unit)}. Such costs "
        "cannot be added up. Add up those of one kind at a time",
    )
    require(
        one.column == other.column or None in (one.column, other.column),
        f"{one.name} protects people named by the column {plain(one.column)}, and {other.name} by {plain(other.column)}. Such "
        "costs cannot be added up. Add up those of one kind at a time",
    )
    left, right = (plain(each.guarantee.relation) for each in (one, other) if each.guarantee)
    require(
        left == right,
        f"{one.name} is for neighbouring tables by {left}, and {other.name} by {right}. Such costs cannot be added up. Fit "
        "both with the same --neighbours",
    )


def _guarantee_in(path: Path) -> "Guarantee":
    """The guarantee that a file states."""
    require_file(path)
    if path.suffix.lower() != ".safetensors":
        from eigenveil.commands._bounds_file import guarantee_in

        return guarantee_in(path)
    from eigenveil.data.archive import ITEMS_FORMAT, format_of

    # By what the file says of itself. Both kinds have the same ending.
    if format_of(path) == ITEMS_FORMAT:
        from eigenveil.recommend import ItemSpace

        return ItemSpace.load(path).guarantee
    from eigenveil.model import Model

    return Model.load(path).guarantee


def _losses(law: str, texts: Releases) -> "list[Loss]":
    from eigenveil.privacy.pricing import Loss

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
        # Spelled out for mypy, which does not narrow `law` to the two literals.
        found.append(Loss("gaussian" if law == "gaussian" else "laplace", multiplier, count))
    return found


def _show_cost(losses: "Sequence[Loss]", delta: float) -> None:
    from eigenveil.privacy.pricing import price

    _require_size(losses)
    table = _table("noise", "multiplier", "times", "epsilon alone")
    for loss in losses:
        table.add_row(loss.law, f"{loss.multiplier:g}", str(loss.count), _up(price([loss], delta=delta)))
    console = output()
    console.print(table)
    _show_total(losses, delta)


def _require_size(losses: "Sequence[Loss]") -> None:
    exact = all(loss.law == "gaussian" for loss in losses)
    # The sum that decides the size of the grid. Gaussian releases alone need no grid.
    size = math.fsum(loss.count / loss.multiplier**2 for loss in losses)
    require(
        exact or size <= _MOST_ON_GRID,
        "with so little noise the releases cost an epsilon of about 100 or more, which protects nobody. Use larger "
        "multipliers; without --laplace any noise can be added up",
    )


def _show_sum(entries: Sequence[_Entry], delta: float | None) -> None:
    """Each release with its cost and its kind, and all of them together."""
    from rich.text import Text

    from eigenveil.privacy.pricing import price
    from eigenveil.show.terminal import plain

    _require_size([one.loss for one in entries])
    stated = [one.guarantee for one in entries if one.guarantee is not None]
    # Epsilons at two deltas cannot be compared, so the whole table has one.
    delta = _common_delta(stated) if delta is None else delta
    table = _table("release", "mu", f"epsilon at {delta:g}", "protects each", "neighbours")
    for one in entries:
        mu = "" if one.mu is None else f"{one.mu:.5g}"
        near = "" if one.guarantee is None else one.guarantee.relation
        table.add_row(plain(one.name), mu, _up(price([one.loss], delta=delta)), one.unit, plain(near))
    console = output()
    console.print(table)
    _show_total([one.loss for one in entries], delta)
    for line in _remarks(entries):
        console.print(Text(line, style="dim"))


def _print_sum(entries: Sequence[_Entry], delta: float | None) -> None:
    """The same for programs."""
    from eigenveil.privacy.pricing import price

    losses = [one.loss for one in entries]
    _require_size(losses)
    delta = _common_delta([one.guarantee for one in entries if one.guarantee is not None]) if delta is None else delta
    releases = [
        {
            "release": one.name,
            "mu": one.mu,
            "epsilon": float(_up(price([one.loss], delta=delta))),
            "protects_each": one.unit or None,
            "neighbours": None if one.guarantee is None else one.guarantee.relation,
        }
        for one in entries
    ]
    told = {"releases": releases, "epsilon": float(_up(price(losses, delta=delta))), "delta": delta}
    print(json.dumps(told, allow_nan=False))


def _common_delta(stated: "Sequence[Guarantee]") -> float:
    found = sorted({one.delta for one in stated if one.delta is not None})
    require(
        len(found) == 1,
        "--delta is missing. A cost is a pair of epsilon and delta: try --delta 1e-6"
        if not found
        else f"--delta is missing, and the files have different ones. Try --delta {found[-1]:g}",
    )
    return found[0]


def _remarks(entries: Sequence[_Entry]) -> Iterator[str]:
    """What the sum rests on."""
    stated = [one.guarantee for one in entries if one.guarantee is not None]
    yield "This is the cost to a person who is in all of them."
    if stated and len(stated) < len(entries):
        yield "Releases given as numbers are taken to protect the same as the files do."
    if len({one.against for one in stated}) > 1:
        yield "The files protect from different people. The sum holds against those that all of them protect from."


def _show_total(losses: "Sequence[Loss]", delta: float) -> None:
    from rich.text import Text

    from eigenveil.core.accounting import Budget
    from eigenveil.privacy.facts import weak_words
    from eigenveil.privacy.pricing import price

    exact = all(loss.law == "gaussian" for loss in losses)
    console = output()
    total = price(losses, delta=delta)
    console.print(Text.assemble("\ntogether: ", (f"epsilon = {_up(total)} at delta = {delta:g}", "bold green")))
    # A sum may protect nobody although each release did, and people read the last line.
    for text in weak_words(Budget(total, delta)) if total > 0 else ():
        console.print(Text(f"{text[0].upper()}{text[1:]}.", style="yellow"))
    how = "exactly, in closed form" if exact else "on a grid of privacy losses, rounded up"
    console.print(f"composed {how}", style="dim")


def _show_noise(epsilon: float, delta: float, releases: int) -> None:
    from rich.text import Text

    from eigenveil.core.accounting import Budget
    from eigenveil.papers.noise_scales import classical_multiplier, ppm_multiplier, zcdp_multiplier

    require(math.isfinite(epsilon) and epsilon > 0, f"--epsilon must be positive, got {epsilon:g}")
    require(1 <= releases <= _MOST_REPEATS, f"--releases must lie between 1 and {_MOST_REPEATS}, got {releases}")
    budget = Budget(epsilon, delta)
    # Squares of mu add up, so each of n equal releases gets the root of n times the noise of one.
    needed = math.sqrt(releases) / budget.mu
    table = _table("calibration", "multiplier of each release", "times what is needed")
    table.add_row("exact (used here)", _up(needed), "1")
    table.add_row("published: zCDP", *_compared(zcdp_multiplier(budget, releases=releases), needed))
    # The published proof covers epsilon up to 4 ln(1 / delta) only.
    published = ppm_multiplier(budget, rounds=releases) if epsilon <= 4 * math.log(1 / delta) else None
    table.add_row("published: PPM Alg. 1", *_compared(published, needed))
    # The textbook calibration is for a single release and epsilon below 1.
    if releases == 1:
        table.add_row("textbook Gaussian", *_compared(classical_multiplier(budget) if epsilon < 1 else None, needed))
    console = output()
    console.print(table)
    noise = f"noise = {_up(needed)} x sensitivity"
    each = "" if releases == 1 else f" in each of {releases} releases"
    console.print(Text.assemble("\n", (noise, "bold green"), f"{each} satisfies ({epsilon:g}, {delta:g})"))
    console.print(f"that is mu = {budget.mu:.6g} in Gaussian-DP terms", style="dim")


def _up(number: float) -> str:
    """Five significant digits, rounded up: less noise or a smaller epsilon than this would not keep the guarantee."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    unit = Decimal(1).scaleb(Decimal(number).adjusted() - 4)
    return format(Decimal(number).quantize(unit, rounding=ROUND_CEILING).normalize(), "f")


def _compared(published: float | None, needed: float) -> tuple[str, str]:
    if published is None:
        return "no proof here", ""
    return _up(published), f"{published / needed:.2f}"


def _table(first: str, *rest: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first)
    for name in rest:
        table.add_column(name, justify="right")
    return table


COMMAND = Command(account, panel="Use and check a model")
