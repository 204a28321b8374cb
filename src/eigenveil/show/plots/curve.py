"""What a budget buys: accuracy against epsilon, as the planner predicts it from public numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.errors import require
from eigenveil.plan import Facts, Forecast, Interval, advise, curve, method_words
from eigenveil.show.plots.display import FAINT, Display
from eigenveil.show.plots.sources import json_in, model_from, path_of
from eigenveil.show.report import plan_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import FillBetweenPolyCollection
    from matplotlib.lines import Line2D

__all__ = ["PlanDisplay"]

EPSILONS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)


@final
@dataclass(kw_only=True, eq=False)
class PlanDisplay(Display):
    """Captured variance and largest sine over epsilon, with intervals for nine fits in ten. Changes in place when drawn.

    `nothing` is the captured variance of random directions, and `asked` an epsilon to mark, or None.
    """

    epsilons: tuple[float, ...]
    captured: tuple[Interval, ...]
    sines: tuple[Interval, ...]
    nothing: float
    method: str
    asked: float | None = None
    captured_: "Line2D" = field(init=False, repr=False)
    sines_: "Line2D" = field(init=False, repr=False)
    bands_: tuple["FillBetweenPolyCollection", ...] = field(init=False, repr=False, default=())
    nothing_: "Line2D" = field(init=False, repr=False)
    asked_: "Line2D | None" = field(init=False, repr=False, default=None)

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> "PlanDisplay":
        """Draw what other budgets would have bought a fitted `estimator`, a `Model` or a model file, with its own marked.

        The planner takes the released variances for the spectrum. It has no forecast for a fit without a guarantee, nor for one
        in which nothing stands out from the noise.
        """
        part = plan_part(model_from(estimator))
        require(part is not None, "the planner has no forecast for such a fit: plan with `PlanDisplay.from_facts`")
        assert part is not None
        return cls(
            epsilons=tuple(point.epsilon for point in part.points),
            captured=tuple(Interval(one.captured.value, one.captured.low, one.captured.high) for one in part.points),
            sines=tuple(Interval(one.sine.value, one.sine.low, one.sine.high) for one in part.points),
            nothing=part.points[0].nothing,
            method=part.method,
            asked=part.asked,
        ).plot(ax)

    @classmethod
    def from_facts(
        cls, facts: Facts, method: str | None = None, *, epsilons: Sequence[float] = EPSILONS, ax: "Axes | None" = None
    ) -> "PlanDisplay":
        """Plan with public `facts`, and draw what each of `epsilons` would buy. Without a `method`, with the one recommended.

        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> from eigenveil.plan import Spectrum
        >>> from eigenveil.core.accounting import Budget
        >>> facts = Facts(
        ...     dim=20, rank=2, people=20_000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(20), row_bound=1.0
        ... )
        >>> display = PlanDisplay.from_facts(facts, "curator/covariance", epsilons=[0.1, 1.0])
        >>> display.captured[1].value > display.captured[0].value > display.nothing
        True
        """
        if method is None:
            best = advise(facts).best
            require(best is not None, "no method is possible with these facts: `eigenveil.plan.advise` says why")
            assert best is not None
            method = best.method
        # The epsilon of the facts is drawn whether or not it is in the list: it is the one that is marked.
        asked = facts.budget.epsilon
        pairs = curve(facts, method, sorted({*epsilons, asked}))
        return cls._of(pairs, method=method, asked=asked).plot(ax)

    @classmethod
    def from_file(cls, path: str | Path, *, ax: "Axes | None" = None) -> "PlanDisplay":
        """Draw the curve in a file that `eigenveil plan --json` has written."""
        source = path_of(path)
        require(source is not None, f"path must be the path of a .json file, got a {type(path).__name__}")
        assert source is not None
        by = "`eigenveil plan --json`"
        found, facts = json_in(source, "curve", written_by=by), json_in(source, "facts", written_by=by)
        try:
            # Where the method is refused the file has null, because JSON has no infinities.
            drawn = [point for point in found["points"] if point["captured"] is not None]
            points = sorted(drawn, key=lambda point: float(point["epsilon"]))
            made = cls(
                epsilons=tuple(float(point["epsilon"]) for point in points),
                captured=tuple(_interval(point["captured"]) for point in points),
                sines=tuple(_interval(point["sine"]) for point in points),
                nothing=float(points[0]["nothing"]),
                method=str(found["method"]),
                asked=float(facts["epsilon"]),
            )
        except (KeyError, TypeError, ValueError, IndexError):
            raise ValueError(f"{path} has no curve to draw: give a file that {by} has written") from None
        return made.plot(ax)

    @classmethod
    def _of(cls, pairs: Sequence[tuple[float, Forecast]], *, method: str, asked: float | None) -> "PlanDisplay":
        # Where a method is refused nothing was rehearsed, and there is nothing to draw.
        pairs = [(epsilon, found) for epsilon, found in pairs if math.isfinite(found.captured.value)]
        require(bool(pairs), f"{method} is refused at every epsilon: `eigenveil.plan.forecast` says why")
        return cls(
            epsilons=tuple(epsilon for epsilon, _ in pairs),
            captured=tuple(found.captured for _, found in pairs),
            sines=tuple(found.sine for _, found in pairs),
            # Random directions do not depend on the noise, so they capture the same at every epsilon.
            nothing=pairs[0][1].nothing,
            method=method,
            asked=asked,
        )

    def plot(self, ax: "Axes | None" = None) -> "PlanDisplay":
        """Draw both curves with their bands over a logarithmic axis, into `ax` or a new figure."""
        axes, bands = self._axes(ax), []
        for name, spans, colour in (
            ("captured variance", self.captured, "C0"),
            ("largest angle, as a sine", self.sines, "C1"),
        ):
            (line,) = axes.plot(self.epsilons, [one.value for one in spans], marker="o", color=colour, label=name)
            low, high = [one.low for one in spans], [one.high for one in spans]
            bands.append(axes.fill_between(self.epsilons, low, high, color=colour, alpha=0.2, linewidth=0))
            if spans is self.captured:
                self.captured_ = line
            else:
                self.sines_ = line
        self.bands_ = tuple(bands)
        self.nothing_ = axes.axhline(self.nothing, color=FAINT, linestyle="--", label="random directions")
        if self.asked is not None:
            self.asked_ = axes.axvline(self.asked, color="0.3", linestyle=":", label=f"epsilon = {self.asked:g}")
        # A little beyond 0 and 1, so that lines at the ends are not cut in half.
        axes.set(xscale="log", ylim=(-0.02, 1.02), xlabel="epsilon", ylabel="share, 0 to 1")
        axes.set_title(f"What a budget buys: {method_words(self.method)}")
        axes.legend(fontsize="small")
        return self


def _interval(values: Any) -> Interval:
    return Interval(float(values["value"]), float(values["low"]), float(values["high"]))
