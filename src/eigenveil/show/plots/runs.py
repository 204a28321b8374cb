"""What a fit cost and how it went: charges against the budget, and how far the directions moved in each round."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.core.accounting import epsilon_of
from eigenveil.core.ledger import Charge, Ledger
from eigenveil.errors import require
from eigenveil.privacy import Guarantee
from eigenveil.show.plots.display import LITERAL, Display, counts, label_of
from eigenveil.show.plots.sources import json_in, last_step, model_from, path_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.lines import Line2D

__all__ = ["BudgetDisplay", "ConvergenceDisplay"]

_MOST: Final = 12
# Movements below this are rounding error, and a logarithmic axis has no zero.
_STILL: Final = 1e-16


@final
@dataclass(kw_only=True, eq=False)
class BudgetDisplay(Display):
    """What each release cost, one bar behind the other up to all that was spent. Changes in place when drawn.

    Charges add up as squares of mu. A bar goes from the epsilon before the release to the epsilon after it, both at the
    `delta` of the budget. The bars depend on the order, and their end does not.

    >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
    >>> ledger.spend(0.1, label="mean")
    >>> round(BudgetDisplay(charges=ledger.charges, epsilon=1.0, delta=1e-6).spent, 3)
    0.397
    """

    charges: tuple[Charge, ...]
    epsilon: float
    delta: float
    bars_: "BarContainer" = field(init=False, repr=False)
    budget_: "Line2D | None" = field(init=False, repr=False, default=None)

    @classmethod
    def from_estimator(cls, estimator: Any, *, most: int = _MOST, ax: "Axes | None" = None) -> "BudgetDisplay":
        """Draw the charges of a fitted `estimator`, a `Model`, a model file, a `Guarantee` or a `Ledger`.

        An estimator has the charges of its last fit. Its `ledger_` has those of all fits that share it.
        """
        if isinstance(estimator, Ledger):
            budget = estimator.budget
            return cls(charges=estimator.charges, epsilon=budget.epsilon, delta=budget.delta).plot(ax, most=most)
        guarantee = estimator if isinstance(estimator, Guarantee) else model_from(estimator).guarantee
        require(guarantee.epsilon is not None, "nothing was charged: this result has no privacy guarantee")
        assert guarantee.epsilon is not None and guarantee.delta is not None
        made = cls(charges=guarantee.charges, epsilon=guarantee.epsilon, delta=guarantee.delta)
        return made.plot(ax, most=most)

    @property
    def spent(self) -> float:
        """The epsilon of all charges together, at `delta`."""
        return self._after(self.charges)

    def _after(self, charges: Sequence[Charge]) -> float:
        return epsilon_of(math.hypot(*(charge.mu for charge in charges)), self.delta)

    def plot(self, ax: "Axes | None" = None, *, most: int = _MOST) -> "BudgetDisplay":
        """Draw at most so many bars, the last of them for all further charges. Into `ax` or a new figure."""
        require(most >= 1, f"most must be at least 1, got {most}")
        axes, many = self._axes(ax), len(self.charges) > most
        alone = most - 1 if many else len(self.charges)
        names = [label_of(charge.label) for charge in self.charges[:alone]]
        ends = [self._after(self.charges[:at]) for at in range(alone + 1)]
        if many:
            # A stream may have a thousand charges. They are added up, so the end of the last bar stays right.
            names.append(f"{len(self.charges) - alone} more")
            ends.append(self.spent)
        places = range(len(names))
        widths = [after - before for before, after in pairwise(ends)]
        self.bars_ = axes.barh(places, widths, left=ends[:-1], color="C0")
        # A budget without a limit has no line.
        if math.isfinite(self.epsilon):
            words = f"budget, epsilon = {self.epsilon:g}"
            self.budget_ = axes.axvline(self.epsilon, color="C1", linestyle="--", label=words)
            axes.legend(loc="upper right")
        axes.set_yticks(places, names, **LITERAL)
        # The first release stands at the top, as in a ledger.
        axes.invert_yaxis()
        axes.set(xlabel=f"epsilon spent, at delta = {self.delta:g}", title=f"Spent: epsilon = {self.spent:.3g}")
        return self


@final
@dataclass(kw_only=True, eq=False)
class ConvergenceDisplay(Display):
    """How far the directions moved in each round, as the largest sine. Changes in place when drawn.

    A movement is None where nothing was measured, or where it is not public. `missing` says how many parties did not answer.
    """

    movements: tuple[float | None, ...]
    missing: tuple[int, ...] = ()
    line_: "Line2D" = field(init=False, repr=False)
    missing_: "Line2D | None" = field(init=False, repr=False, default=None)

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> "ConvergenceDisplay":
        """Draw the rounds of a fitted `FederatedPCA` or `GossipPCA`, or of a .json report of a hub.

        A sequence of `Round`, such as `transcript_` or what `watch` has gathered, will do too.
        """
        made = cls(movements=(rounds := _rounds(estimator))[0], missing=rounds[1])
        return made.plot(ax)

    def plot(self, ax: "Axes | None" = None) -> "ConvergenceDisplay":
        """Draw a line over the rounds on a logarithmic axis, with a cross where parties were missing."""
        found = [(at, max(one, _STILL)) for at, one in enumerate(self.movements, 1) if one is not None]
        require(bool(found), "no round has a movement to draw: this method releases its answer at once")
        axes = self._axes(ax)
        numbers, movements = [at for at, _ in found], [moved for _, moved in found]
        (self.line_,) = axes.plot(numbers, movements, marker="o", color="C0")
        # Movements may be given without saying who was missing.
        lacked = [(at, moved) for at, moved in found if at <= len(self.missing) and self.missing[at - 1]]
        if lacked:
            (self.missing_,) = axes.plot(
                *zip(*lacked, strict=True), "x", color="C1", ms=10, label="someone was missing"
            )
            axes.legend()
        axes.set(
            yscale="log",
            xlabel="round",
            ylabel="sine of the largest principal angle",
            title="How far the directions moved",
        )
        counts(axes)
        return self


def _rounds(source: Any) -> tuple[tuple[float | None, ...], tuple[int, ...]]:
    """The movement of each round, and how many parties were missing."""
    path = path_of(source)
    wanted = "give a fitted FederatedPCA or GossipPCA, its rounds, or the .json report of a hub"
    if path is not None:
        require(path.suffix.lower() == ".json", f"{wanted}, got {path}: a model does not keep its rounds")
        rounds = json_in(path, "rounds", written_by="`eigenveil hub --report`")
        pairs = [_from_file(path, one) for one in rounds]
        return tuple(moved for moved, _ in pairs), tuple(count for _, count in pairs)
    estimator = last_step(source)
    found = getattr(estimator, "transcript_", estimator)
    good = isinstance(found, Iterable) and all(hasattr(one, "movement") for one in found)
    require(good, f"{wanted}, got a {type(estimator).__name__}")
    return tuple(_finite(one.movement) for one in found), tuple(len(one.missing) for one in found)


def _from_file(path: Any, one: Any) -> tuple[float | None, int]:
    try:
        return _finite(one["movement"]), len(one["missing"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} is not the report of a hub: its rounds are not as expected") from None


def _finite(moved: Any) -> float | None:
    # Before its first estimate a method says that it moved by infinity.
    return None if moved is None or not math.isfinite(float(moved)) else float(moved)
