"""Pictures of a result with matplotlib, by scikit-learn's Display convention. Needs the extra `plot`.

Every display is made from a fitted estimator, a model or a file, keeps the numbers that it shows as attributes, and draws them
with `plot(ax=...)`. All of them show released or public numbers, except the scores of `BiplotDisplay`, which say what they are.
Users call it from Python, and no other package does. It may import `report` and all below it.

>>> import matplotlib
>>> matplotlib.use("agg")
>>> import numpy as np
>>> from eigenveil import PrivatePCA
>>> from eigenveil.show.plots import ScreeDisplay
>>> rows = np.random.default_rng(0).standard_normal((5000, 8)) * [4, 2, 1, 1, 1, 1, 1, 1]
>>> pca = PrivatePCA(3, epsilon=1.0, delta=1e-6, row_bound=8.0).fit(rows)
>>> display = ScreeDisplay.from_estimator(pca)
>>> display.ax_.get_ylabel(), len(display.bars_)
('variance', 3)
"""

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from sklearn.isotonic import isotonic_regression
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from eigenveil.core.accounting import epsilon_of
from eigenveil.core.ledger import Charge, Ledger
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.model import Model
from eigenveil.plan.facts import Facts, method_words
from eigenveil.plan.recommendation import advise
from eigenveil.plan.rehearsal import curve
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.show.charts import EpsilonPoint, Span
from eigenveil.show.marks import short
from eigenveil.show.report import EPSILONS, components_of, forecast_part, plan_part
from eigenveil.show.values import PlanPart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import FillBetweenPolyCollection, PathCollection
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

# Marks that matter less. All other colours are those of the caller's style sheet.
FAINT: Final = "0.6"
# Names come from files: a dollar sign must not start a formula, nor a backslash a command of TeX.
LITERAL: Final[dict[str, Any]] = {"parse_math": False, "usetex": False}
_LONGEST: Final = 24


class Display(ABC):
    """A picture: the numbers that it shows, and `plot`, which draws them. Not a picture by itself.

    After `plot` the axes are `ax_` and their figure is `figure_`. Each picture also names the artists that it drew.
    """

    ax_: "Axes"
    figure_: "Figure | SubFigure"

    @abstractmethod
    def plot(self, ax: "Axes | None" = None) -> "Display":
        """Draw into `ax`, or into a new figure, and return this display."""

    def _axes(self, ax: "Axes | None") -> "Axes":
        """The axes to draw into. Changes the display in place: they are `ax_` from here on."""
        if ax is None:
            # The constrained layout makes room for long column names, which would otherwise be cut off.
            ax = pyplot().subplots(layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
        return ax


def pyplot() -> Any:
    """matplotlib's pyplot, or an error that says how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        # Something that matplotlib itself needs is missing then, and our advice would not help.
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ImportError("plots need matplotlib: pip install 'eigenveil[plot]'", name="matplotlib") from error
    return plt


def counts(axes: "Axes") -> None:
    """Put whole numbers alone on the x axis, which counts components or rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def label_of(name: object) -> str:
    """A name on one line, short enough for an axis, with every unprintable character shown as a question mark.

    >>> label_of("age" + chr(10)), label_of("the mean radius of all cells")
    ('age?', 'the mean radiu…all cells')
    """
    return short(name, _LONGEST)


def model_from(source: Any) -> Model:
    """The model of a fitted estimator, or in a file, or the model itself.

    >>> model_from([1, 2])
    Traceback (most recent call last):
    ...
    ValueError: give a fitted estimator, a Model or the path of a model file, got a list
    """
    if isinstance(source, Model):
        return source
    # A text is always a path: no estimator is one.
    path = path_of(source)
    if path is not None:
        return Model.load(path)
    estimator = last_step(source)
    wanted = "give a fitted estimator, a Model or the path of a model file"
    require(hasattr(estimator, "fit"), f"{wanted}, got a {type(source).__name__}")
    # Before `model_` is looked for, so that an estimator that was not fitted says so.
    check_is_fitted(estimator)
    model = getattr(estimator, "model_", None)
    require(isinstance(model, Model), f"{wanted}, got a {type(estimator).__name__}, which has no model_")
    assert isinstance(model, Model)
    return model


def last_step(source: Any) -> Any:
    """The estimator at the end of a pipeline, or the estimator itself."""
    return source.steps[-1][1] if isinstance(source, Pipeline) else source


def path_of(source: Any) -> Path | None:
    """The path, if that is what was given."""
    return Path(source) if isinstance(source, str | os.PathLike) else None


def json_in(path: Path, key: str, *, written_by: str) -> Any:
    """What a .json file has under `key`; the error says which command writes such a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: give a file that {written_by} has written") from error
    good = isinstance(content, Mapping) and content.get(key) is not None
    require(good, f"{path} has no {key!r}: give a file that {written_by} has written")
    return content[key]


RAW: Final = "The points are raw data: scores of your own rows, as private as the rows."
# More columns than this are not told apart on one picture.
_MOST: Final = 12
# The longest arrow reaches this far towards the farthest score, so that its name still fits.
_REACH: Final = 0.65
# Names nearer than this share of the height would cover each other.
_APART: Final = 0.045


@final
@dataclass(kw_only=True, eq=False)
class ScreeDisplay(Display):
    """The variance along each component, (k,), with the noise floor. Changes in place when drawn.

    Bars above the floor have the first colour of the style. The others may be noise alone and are grey. `intervals`, (k, 2), or
    None where none is known, contain the variances of the clipped rows along the best directions, all at once, in 98 fits
    of a hundred.

    >>> display = ScreeDisplay(explained_variance=np.array([4.0, 1.0]), noise_floor=2.0)
    >>> display.n_above_noise
    1
    """

    explained_variance: Array
    noise_floor: float = 0.0
    intervals: Array | None = None
    bars_: "BarContainer" = field(init=False, repr=False)
    floor_: "Line2D | None" = field(init=False, repr=False, default=None)
    intervals_: "ErrorbarContainer | None" = field(init=False, repr=False, default=None)

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> "ScreeDisplay":
        """Draw the spectrum of a fitted `estimator`, a `Model`, or the path of a model file."""
        model = model_from(estimator)
        # Taken from the report's own numbers, so that a picture and a report never disagree.
        spans = components_of(model).intervals
        return cls(
            explained_variance=model.explained_variance,
            noise_floor=model.noise_floor,
            intervals=np.array([(span.low, span.high) for span in spans]) if spans else None,
        ).plot(ax)

    @property
    def n_above_noise(self) -> int:
        """How many components are above the noise floor."""
        return int((self.explained_variance > self.noise_floor).sum())

    def plot(self, ax: "Axes | None" = None) -> "ScreeDisplay":
        """Draw one bar for each component, into `ax` or a new figure."""
        axes, rank = self._axes(ax), len(self.explained_variance)
        numbers = np.arange(1, rank + 1)
        colours = ["C0" if value > self.noise_floor else FAINT for value in self.explained_variance]
        self.bars_ = axes.bar(numbers, self.explained_variance, color=colours)
        if self.intervals is not None:
            # matplotlib takes distances from the value, not ends.
            reach = np.abs(self.intervals.T - self.explained_variance)
            self.intervals_ = axes.errorbar(
                numbers, self.explained_variance, yerr=reach, fmt="none", ecolor="0.3", capsize=3, linewidth=1
            )
        if self.noise_floor > 0:
            label = f"noise floor, {self.noise_floor:.3g}"
            self.floor_ = axes.axhline(self.noise_floor, color="C1", linestyle="--", label=label)
            axes.legend(loc="upper right")
        title = f"{self.n_above_noise} of {rank} above the noise floor"
        if self.noise_floor == 0:
            title = f"Variance along {rank} component{'s' * (rank != 1)}"
        axes.set(xlabel="component", ylabel="variance", title=title)
        counts(axes)
        return self


@final
@dataclass(kw_only=True, eq=False)
class LoadingsDisplay(Display):
    """The weights of columns in components, (k, d), with the `names` of the columns. Changes in place when drawn.

    Drawn are the `largest` columns: those with the largest weight in any component that is shown.
    """

    components: Array
    names: tuple[str, ...]
    image_: "AxesImage | None" = field(init=False, repr=False, default=None)
    bars_: "BarContainer | None" = field(init=False, repr=False, default=None)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, component: int | None = None, largest: int = _MOST, ax: "Axes | None" = None
    ) -> "LoadingsDisplay":
        """Draw the weights of a fitted `estimator`, a `Model`, or the path of a model file: see `plot`."""
        model = model_from(estimator)
        return cls(components=model.components, names=components_of(model).names).plot(ax, component=component, largest=largest)

    def plot(self, ax: "Axes | None" = None, *, component: int | None = None, largest: int = _MOST) -> "LoadingsDisplay":
        """Draw all components as colours, or one `component`, counted from 0, as bars. Into `ax` or a new figure."""
        require(largest >= 1, f"largest must be at least 1, got {largest}")
        rank = len(self.components)
        good = component is None or 0 <= component < rank
        require(good, f"component must be from 0 to {rank - 1}, got {component}")
        # One component is chosen first, so that "largest" means largest in what is shown.
        shown = self.components if component is None else self.components[[component]]
        order = np.argsort(-np.abs(shown).max(axis=0), kind="stable")[:largest]
        axes = self._axes(ax)
        weights = shown[:, order]
        if component is None:
            # Both signs get the same strength of colour, and zero is white.
            reach = float(np.abs(weights).max()) or 1.0
            self.image_ = axes.imshow(weights.T, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
            axes.set(xlabel="component", title="Weights of columns in components")
            axes.set_xticks(np.arange(rank), [str(at + 1) for at in range(rank)])
            self.figure_.colorbar(self.image_, ax=axes, label="weight")
        else:
            colours = ["C0" if weight >= 0 else "C1" for weight in weights[0]]
            self.bars_ = axes.barh(np.arange(len(order)), weights[0], color=colours)
            axes.axvline(0.0, color="0.3", linewidth=0.8)
            axes.set(xlabel="weight", title=f"Largest weights in component {component + 1}")
            # The largest weight comes first, as in a table.
            axes.invert_yaxis()
        axes.set_yticks(np.arange(len(order)), [label_of(self.names[at]) for at in order], **LITERAL)
        left = len(self.names) - len(order)
        if left:
            axes.set_xlabel(f"{axes.get_xlabel()}; {left} column{'s' * (left != 1)} with smaller weights not drawn")
        return self


@final
@dataclass(kw_only=True, eq=False)
class BiplotDisplay(Display):
    """The weights of columns in two components as arrows, and on request scores of rows. Changes in place when drawn.

    `weights`, (2, d), are released numbers. `scores`, (n, 2), ARE RAW DATA of the rows that the caller gave, and the picture
    says so: it is for those who may see the rows. Without them, the picture may be shown to anybody.
    """

    weights: Array
    names: tuple[str, ...]
    components: tuple[int, int] = (0, 1)
    shares: tuple[float, float] | None = None
    scores: Array | None = field(default=None, repr=False)
    names_: tuple["Text", ...] = field(init=False, repr=False, default=())
    points_: "PathCollection | None" = field(init=False, repr=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any = None,
        *,
        components: tuple[int, int] = (0, 1),
        largest: int = _MOST,
        ax: "Axes | None" = None,
    ) -> "BiplotDisplay":
        """Draw two components of a fitted `estimator`, a `Model` or a model file, counted from 0.

        The rows `X`, in the columns of the fit, are drawn as points. Their scores are raw data.
        """
        model = model_from(estimator)
        rank = len(model.components)
        good = len(components) == 2 and all(0 <= at < rank for at in components)
        require(good, f"components must be two numbers from 0 to {rank - 1}, got {components}")
        first, second = components
        return cls(
            weights=model.components[[first, second]],
            names=components_of(model).names,
            components=(first, second),
            shares=(float(model.explained_variance_ratio[first]), float(model.explained_variance_ratio[second])),
            scores=None if X is None else _scores(estimator, model, X)[:, [first, second]],
        ).plot(ax, largest=largest)

    def plot(self, ax: "Axes | None" = None, *, largest: int = _MOST) -> "BiplotDisplay":
        """Draw the `largest` columns as arrows over the scores, if there are any. Into `ax` or a new figure."""
        require(largest >= 1, f"largest must be at least 1, got {largest}")
        axes, lengths = self._axes(ax), np.hypot(*self.weights)
        farthest = 1.0
        if self.scores is not None:
            # Below the arrows, and light: many rows would hide them.
            self.points_ = axes.scatter(self.scores[:, 0], self.scores[:, 1], s=8, alpha=0.4, color=FAINT, linewidths=0)
            # Rows may all score zero, and axes need some length.
            farthest = float(np.abs(self.scores).max(initial=0.0)) or 1.0
        unit = _REACH * farthest / (float(lengths.max()) or 1.0)
        order = np.argsort(-lengths, kind="stable")[:largest]
        tips = unit * self.weights[:, order].T
        for tip in tips:
            pen = {"arrowstyle": "->", "color": "C0", "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", xy=(tip[0], tip[1]), xytext=(0.0, 0.0), arrowprops=pen)
        heights = _apart(tips, 2 * _APART * farthest)
        # The name stands at the tip of its arrow, on the side away from the origin.
        self.names_ = tuple(
            axes.text(
                *(x, y, f" {label_of(self.names[at])} "),
                **(LITERAL | {"ha": "left" if x >= 0 else "right", "va": "center", "fontsize": "small"}),
            )
            for (x, _), y, at in zip(tips, heights, order, strict=True)
        )
        shares = ("", "") if self.shares is None else [f", {share:.0%} of the variance" for share in self.shares]
        labels = [f"component {at + 1}{share}" for at, share in zip(self.components, shares, strict=True)]
        axes.axhline(0.0, color=FAINT, linewidth=0.6)
        axes.axvline(0.0, color=FAINT, linewidth=0.6)
        axes.set(xlim=(-farthest, farthest), ylim=(-farthest, farthest), xlabel=labels[0], ylabel=labels[1])
        # With unequal axes the angles between arrows would mean nothing.
        axes.set_aspect("equal")
        axes.set_title(RAW if self.scores is not None else "Weights of columns, arrows scaled to fit", fontsize="medium")
        return self


def _apart(tips: Array, min_gap: float) -> Array:
    """Heights for the names at `tips`, (n, 2): the nearest to their own at which those on one side are `min_gap` apart.

    >>> _apart(np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 9.0], [-1.0, 0.0]]), 0.5).round(2).tolist()
    [-0.2, 0.3, 9.0, 0.0]
    """
    heights = tips[:, 1].copy()
    for side in (tips[:, 0] >= 0, tips[:, 0] < 0):
        if not side.any():
            continue
        order = np.flatnonzero(side)[np.argsort(heights[side], kind="stable")]
        # Once the distances are taken off, the heights need only be in order: isotonic regression, by least squares.
        steps = min_gap * np.arange(len(order))
        heights[order] = isotonic_regression(heights[order] - steps) + steps
    return heights


def _scores(source: Any, model: "Model", X: Any) -> Array:
    """Scores of the caller's rows. A table is read by the names of its columns, an array by their order."""
    if source is not model and path_of(source) is None:
        # The estimator knows which columns of a table it was fitted on, and a pipeline what comes before it.
        return np.asarray(source.transform(X), dtype=np.float64)
    return np.asarray(model.transform(X), dtype=np.float64)


@final
@dataclass(kw_only=True, eq=False)
class PlanDisplay(Display):
    """Captured variance and largest sine over epsilon, with intervals for nine fits in ten. Changes in place when drawn.

    `nothing` is the captured variance of random directions, and `target` an epsilon to mark, or None.
    """

    epsilons: tuple[float, ...]
    captured: tuple[Span, ...]
    sines: tuple[Span, ...]
    nothing: float
    method: str
    target: float | None = None
    captured_: "Line2D" = field(init=False, repr=False)
    sines_: "Line2D" = field(init=False, repr=False)
    bands_: tuple["FillBetweenPolyCollection", ...] = field(init=False, repr=False, default=())
    nothing_: "Line2D" = field(init=False, repr=False)
    target_: "Line2D | None" = field(init=False, repr=False, default=None)

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> "PlanDisplay":
        """Draw what other budgets would have bought a fitted `estimator`, a `Model` or a model file, with its own marked.

        The planner takes the released variances for the spectrum. It has no forecast for a fit without a guarantee, nor for one
        in which nothing stands out from the noise.
        """
        part = plan_part(model_from(estimator))
        return cls._of(part, "the planner has no forecast for such a fit: plan with `PlanDisplay.from_facts`").plot(ax)

    @classmethod
    def from_facts(
        cls, facts: Facts, method: str | None = None, *, epsilons: Sequence[float] = EPSILONS, ax: "Axes | None" = None
    ) -> "PlanDisplay":
        """Plan with public `facts`, and draw what each of `epsilons` would buy. Without a `method`, with the one recommended.

        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> from eigenveil.plan.spectrum import Spectrum
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
        target = facts.budget.epsilon
        part = forecast_part(method, target, curve(facts, method, sorted({*epsilons, target})))
        return cls._of(part, f"{method} is refused at every epsilon: `eigenveil.plan.rehearsal` says why").plot(ax)

    @classmethod
    def from_file(cls, path: str | Path, *, ax: "Axes | None" = None) -> "PlanDisplay":
        """Draw the curve in a file that `eigenveil plan --json` has written."""
        source = path_of(path)
        require(source is not None, f"path must be the path of a .json file, got a {type(path).__name__}")
        assert source is not None
        by = "`eigenveil plan --json`"
        saved_curve, facts = json_in(source, "curve", written_by=by), json_in(source, "facts", written_by=by)
        try:
            # Where the method is refused the file has null, because JSON has no infinities.
            drawn = [point for point in saved_curve["points"] if point["captured"] is not None]
            points = tuple(
                EpsilonPoint(
                    epsilon=float(point["epsilon"]),
                    nothing=float(point["nothing"]),
                    **{name: Span(*(float(point[name][end]) for end in ("value", "low", "high"))) for name in _SHARES},
                )
                for point in sorted(drawn, key=lambda point: float(point["epsilon"]))
            )
            part = PlanPart(method=str(saved_curve["method"]), asked=float(facts["epsilon"]), points=points)
        except (KeyError, TypeError, ValueError, IndexError):
            raise ValueError(f"{path} has no curve to draw: give a file that {by} has written") from None
        return cls._of(part, "").plot(ax)

    @classmethod
    def _of(cls, part: PlanPart | None, why_not: str) -> "PlanDisplay":
        require(part is not None, why_not)
        assert part is not None
        return cls(
            epsilons=tuple(point.epsilon for point in part.points),
            captured=tuple(point.captured for point in part.points),
            sines=tuple(point.sine for point in part.points),
            # Random directions do not depend on the noise, so they capture the same at every epsilon.
            nothing=part.points[0].nothing,
            method=part.method,
            target=part.asked,
        )

    def plot(self, ax: "Axes | None" = None) -> "PlanDisplay":
        """Draw both curves with their bands over a logarithmic axis, into `ax` or a new figure."""
        axes, bands = self._axes(ax), []
        curves = (("captured variance", self.captured, "C0"), ("largest angle, as a sine", self.sines, "C1"))
        lines = []
        for name, spans, colour in curves:
            lines += axes.plot(self.epsilons, [span.value for span in spans], marker="o", color=colour, label=name)
            low, high = [span.low for span in spans], [span.high for span in spans]
            bands.append(axes.fill_between(self.epsilons, low, high, color=colour, alpha=0.2, linewidth=0))
        (self.captured_, self.sines_), self.bands_ = lines, tuple(bands)
        self.nothing_ = axes.axhline(self.nothing, color=FAINT, linestyle="--", label="random directions")
        if self.target is not None:
            self.target_ = axes.axvline(self.target, color="0.3", linestyle=":", label=f"epsilon = {self.target:g}")
        # A little beyond 0 and 1, so that lines at the ends are not cut in half.
        axes.set(xscale="log", ylim=(-0.02, 1.02), xlabel="epsilon", ylabel="share, 0 to 1")
        axes.set_title(f"What a budget buys: {method_words(self.method)}")
        axes.legend(fontsize="small")
        return self


# The two curves of a plan, by their names in a file.
_SHARES: Final = ("captured", "sine")
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
    def from_estimator(cls, estimator: Any, *, max_bars: int = _MOST, ax: "Axes | None" = None) -> "BudgetDisplay":
        """Draw the charges of a fitted `estimator`, a `Model`, a model file, a `Guarantee` or a `Ledger`.

        An estimator has the charges of its last fit. Its `ledger_` has those of all fits that share it.
        """
        charged = estimator if isinstance(estimator, Ledger | Guarantee) else model_from(estimator).guarantee
        budget = charged.budget if isinstance(charged, Ledger) else charged
        require(budget.epsilon is not None, "nothing was charged: this result has no privacy guarantee")
        assert budget.epsilon is not None and budget.delta is not None
        made = cls(charges=charged.charges, epsilon=budget.epsilon, delta=budget.delta)
        return made.plot(ax, max_bars=max_bars)

    @property
    def spent(self) -> float:
        """The epsilon of all charges together, at `delta`."""
        return self._after(self.charges)

    def _after(self, charges: Sequence[Charge]) -> float:
        return epsilon_of(math.hypot(*(charge.mu for charge in charges)), self.delta)

    def plot(self, ax: "Axes | None" = None, *, max_bars: int = _MOST) -> "BudgetDisplay":
        """Draw at most so many bars, the last of them for all further charges. Into `ax` or a new figure."""
        require(max_bars >= 1, f"most must be at least 1, got {max_bars}")
        axes, many = self._axes(ax), len(self.charges) > max_bars
        alone = max_bars - 1 if many else len(self.charges)
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
            label = f"budget, epsilon = {self.epsilon:g}"
            self.budget_ = axes.axvline(self.epsilon, color="C1", linestyle="--", label=label)
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
        movements, missing = _rounds(estimator)
        return cls(movements=movements, missing=missing).plot(ax)

    def plot(self, ax: "Axes | None" = None) -> "ConvergenceDisplay":
        """Draw a line over the rounds on a logarithmic axis, with a cross where parties were missing."""
        points = [(at, max(movement, _STILL)) for at, movement in enumerate(self.movements, 1) if movement is not None]
        require(bool(points), "no round has a movement to draw: this method releases its answer at once")
        axes = self._axes(ax)
        numbers, movements = [at for at, _ in points], [moved for _, moved in points]
        (self.line_,) = axes.plot(numbers, movements, marker="o", color="C0")
        # Movements may be given without saying who was missing.
        lacked = [(at, moved) for at, moved in points if at <= len(self.missing) and self.missing[at - 1]]
        if lacked:
            (self.missing_,) = axes.plot(*zip(*lacked, strict=True), "x", color="C1", ms=10, label="someone was missing")
            axes.legend()
        axes.set(yscale="log", xlabel="round", ylabel="sine of the largest principal angle", title="How far the directions moved")
        counts(axes)
        return self


def _rounds(source: Any) -> tuple[tuple[float | None, ...], tuple[int, ...]]:
    """The movement of each round, and how many parties were missing."""
    path = path_of(source)
    wanted = "give a fitted FederatedPCA or GossipPCA, its rounds, or the .json report of a hub"
    if path is not None:
        require(path.suffix.lower() == ".json", f"{wanted}, got {path}: a model does not keep its rounds")
        rounds = json_in(path, "rounds", written_by="`eigenveil hub --report`")
        try:
            return tuple(_finite(done["movement"]) for done in rounds), tuple(len(done["missing"]) for done in rounds)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path} is not the report of a hub: its rounds are not as expected") from None
    estimator = last_step(source)
    transcript = getattr(estimator, "transcript_", estimator)
    good = isinstance(transcript, Iterable) and all(hasattr(done, "movement") for done in transcript)
    require(good, f"{wanted}, got a {type(estimator).__name__}")
    return tuple(_finite(done.movement) for done in transcript), tuple(len(done.missing) for done in transcript)


def _finite(moved: Any) -> float | None:
    # Before its first estimate a method says that it moved by infinity.
    return None if moved is None or not math.isfinite(float(moved)) else float(moved)
