"""`eigenveil account`: add up what releases cost, or find the noise a budget needs. It reads no data.

Files say themselves what they cost: models, item spaces, bounds and spectra carry a guarantee. Guarantees are added up only if
they protect the same, between the same neighbouring tables.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from eigenveil.commands._command import Answer, Command
from eigenveil.commands._files import require_file
from eigenveil.commands._options import argument, flag, option
from eigenveil.errors import plain, require

if TYPE_CHECKING:
    from eigenveil.core.accounting import Budget
    from eigenveil.privacy.guarantee import Guarantee, Loss
    from eigenveil.show.costs import Release

__all__ = ["COMMAND"]

_MOST_REPEATS: Final = 1_000_000
# With Laplace noise the cost is computed on a grid of privacy losses. Beyond this sum of 1 / multiplier^2, an epsilon of
# about 100, the grid would fill the memory.
_MOST_ON_GRID: Final = 100.0
# A file may state any epsilon. Computing the mu of smaller or larger ones takes forever.
_SMALLEST: Final = 1e-9
_LARGEST: Final = 1e6
_NO_DELTA: Final = "--delta is missing. A cost is a pair of epsilon and delta: try --delta 1e-6"
_COST: Final = "Add up what releases cost"
_NOISE: Final = "Find the noise a budget needs"


def account(
    files: Annotated[
        list[Path] | None,
        argument("[FILE]...", "What was released: models and item spaces (.safetensors), bounds and spectra (.json)."),
    ] = None,
    mu: Annotated[
        list[float] | None,
        option(
            "--mu",
            "NUMBER",
            "A release of this mu in Gaussian-DP terms, as guarantees and ledgers list it. May be repeated.",
            panel=_COST,
        ),
    ] = None,
    gaussian: Annotated[
        list[str] | None,
        option(
            "MULTIPLIER[xN]",
            "A Gaussian release: its noise multiplier. 4.0x3 is three such releases. May be repeated.",
            panel=_COST,
        ),
    ] = None,
    laplace: Annotated[
        list[str] | None, option("MULTIPLIER[xN]", "A Laplace release, given in the same way.", panel=_COST)
    ] = None,
    delta: Annotated[
        float | None, option("NUMBER", "The delta of the cost or the budget. It may be left out if all files have the same.")
    ] = None,
    epsilon: Annotated[float | None, option("NUMBER", "The epsilon of the budget.", panel=_NOISE)] = None,
    releases: Annotated[
        int | None, option(None, "How many equal releases share the budget.", none_means="1", panel=_NOISE)
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print the sum as JSON.", panel=_COST)] = False,
) -> Answer:
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
    from eigenveil.core.accounting import Budget
    from eigenveil.privacy.guarantee import Loss
    from eigenveil.show.costs import Release, cost_view, noise_view, sum_values, sum_view

    noise = [*_losses("gaussian", gaussian), *_losses("laplace", laplace)]
    if files or mu or as_json:
        stated = _stated(files or [])
        releases_ = [*stated]
        for number in mu or []:
            require(0 < number < math.inf, f"--mu must be positive and finite, got {number:g}")
            # A release of mu is Gaussian noise of 1 / mu times the sensitivity.
            releases_.append(Release(f"--mu {number:g}", Loss("gaussian", 1 / number)))
        for loss in noise:
            times_text = f"x{loss.count}" if loss.count > 1 else ""
            releases_.append(Release(f"--{loss.law} {loss.multiplier:g}{times_text}", loss))
        _require_size([release.loss for release in releases_])
        # Epsilons at two deltas cannot be compared, so the whole table has one.
        at = _common_delta(stated) if delta is None else delta
        return Answer(view=lambda: sum_view(releases_, at), values=lambda: sum_values(releases_, at), indent=None)
    if delta is None:
        raise ValueError(_NO_DELTA)
    if epsilon is None:
        _require_size(noise)
        return Answer(view=lambda: cost_view(noise, delta))
    times = 1 if releases is None else releases
    require(math.isfinite(epsilon) and epsilon > 0, f"--epsilon must be positive, got {epsilon:g}")
    require(1 <= times <= _MOST_REPEATS, f"--releases must lie between 1 and {_MOST_REPEATS}, got {times}")
    budget = Budget(epsilon, delta)
    others = list(_published(budget, times))
    return Answer(view=lambda: noise_view(budget, times, others))


def _published(budget: "Budget", releases: int) -> Iterator[tuple[str, float | None]]:
    """The multipliers that others have published, None where their proofs do not hold."""
    from eigenveil.papers.theory import classical_multiplier, ppm_multiplier, zcdp_multiplier

    yield "published: zCDP", zcdp_multiplier(budget, releases=releases)
    # The published proof covers epsilon up to 4 ln(1 / delta) only.
    covered = budget.epsilon <= 4 * math.log(1 / budget.delta)
    yield "published: PPM Alg. 1", ppm_multiplier(budget, rounds=releases) if covered else None
    # The textbook calibration is for a single release and epsilon below 1.
    if releases == 1:
        yield "textbook Gaussian", classical_multiplier(budget) if budget.epsilon < 1 else None


def _of_file(path: Path) -> "Release":
    from eigenveil.core.accounting import Budget
    from eigenveil.privacy.guarantee import Loss
    from eigenveil.show.costs import Release

    guarantee = _guarantee_in(path)
    if guarantee.epsilon is None or guarantee.delta is None:
        raise ValueError(f"{path} has no guarantee, so it cannot be added up: {'; '.join(guarantee.caveats)}")
    # With a known seed anyone can subtract the noise, whatever epsilon the file states.
    require(
        not guarantee.reproducible,
        f"{path} gives no protection, because its noise came from a known seed. Leave it out, or fit again without a seed",
    )
    require(
        _SMALLEST <= guarantee.epsilon <= _LARGEST,
        f"{path} states an epsilon of {guarantee.epsilon:g}, which is not between {_SMALLEST:g} and {_LARGEST:g}. Leave it out",
    )
    require(
        guarantee.protects is not None,
        f"{path} does not say whom it protects. Leave it out, and add what was spent on it with --mu",
    )
    # The budget, not the sum of the charges: what is charged may depend on earlier releases, and the budget does not.
    return Release(str(path), Loss("gaussian", 1 / Budget(guarantee.epsilon, guarantee.delta).mu), guarantee)


def _stated(files: Sequence[Path]) -> "list[Release]":
    """What the files cost, if that can be added up."""
    # Compared after links are followed: one release must not be counted as two, nor two as one.
    twice = [path for index, path in enumerate(files) if path.resolve() in {earlier.resolve() for earlier in files[:index]}]
    require(not twice, f"{', '.join(map(str, twice[:1]))} is given twice. One release is paid for once")
    releases = [_of_file(path) for path in files]
    for this, other in combinations(releases, 2):
        assert this.guarantee is not None and other.guarantee is not None
        kinds = "Such costs cannot be added up. Add up those of one kind at a time"
        require(
            this.unit == other.unit,
            f"{this.name} protects {plain(this.guarantee.unit)}. {other.name} protects {plain(other.guarantee.unit)}. {kinds}",
        )
        require(
            this.column == other.column or None in (this.column, other.column),
            f"{this.name} protects people named by the column {plain(this.column)}, and {other.name} by {plain(other.column)}. "
            f"{kinds}",
        )
        left, right = plain(this.guarantee.relation), plain(other.guarantee.relation)
        require(
            left == right,
            f"{this.name} is for neighbouring tables by {left}, and {other.name} by {right}. Such costs cannot be added up. Fit "
            "both with the same --neighbours",
        )
    return releases


def _guarantee_in(path: Path) -> "Guarantee":
    """The guarantee that a file states."""
    require_file(path)
    if path.suffix.lower() != ".safetensors":
        from eigenveil.estimators.bounds.saved import guarantee_in

        return guarantee_in(path)
    from eigenveil.data.archive import ITEMS_FORMAT, format_of

    # By what the file says of itself. Both kinds have the same ending.
    if format_of(path) == ITEMS_FORMAT:
        from eigenveil.recommend import ItemSpace

        return ItemSpace.load(path).guarantee
    from eigenveil.model import Model

    return Model.load(path).guarantee


def _losses(law: str, texts: list[str] | None) -> "list[Loss]":
    from eigenveil.privacy.guarantee import Loss

    losses = []
    for text in texts or []:
        size, cross, times = text.lower().partition("x")
        try:
            multiplier, count = float(size), int(times) if cross else 1
        except ValueError:
            raise ValueError(f"--{law} must be a number such as 4.0, or 4.0x3 for three of them, got {text!r}") from None
        require(multiplier > 0 and math.isfinite(multiplier), f"--{law}: the noise must be positive, got {text!r}")
        require(1 <= count <= _MOST_REPEATS, f"--{law}: between 1 and {_MOST_REPEATS} repeats, got {text!r}")
        # Spelled out for mypy, which does not narrow `law` to the two literals.
        losses.append(Loss("gaussian" if law == "gaussian" else "laplace", multiplier, count))
    return losses


def _require_size(losses: "Sequence[Loss]") -> None:
    exact = all(loss.law == "gaussian" for loss in losses)
    # The sum that decides the size of the grid. Gaussian releases alone need no grid.
    size = math.fsum(loss.count / loss.multiplier**2 for loss in losses)
    require(
        exact or size <= _MOST_ON_GRID,
        "with so little noise the releases cost an epsilon of about 100 or more, which is no protection. Use larger "
        "multipliers; without --laplace any noise can be added up",
    )


def _common_delta(stated: "Sequence[Release]") -> float:
    deltas = sorted({record.guarantee.delta for record in stated if record.guarantee and record.guarantee.delta})
    require(len(deltas) > 0, _NO_DELTA)
    require(len(deltas) == 1, f"--delta is missing, and the files have different ones. Try --delta {deltas[-1]:g}")
    return deltas[0]


COMMAND = Command(run=account, panel="Use and check a model")
