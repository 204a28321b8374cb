"""What a fit found: variances against the noise floor, weights of columns, and rows beside both."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from sklearn.isotonic import isotonic_regression

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.show.plots.display import FAINT, LITERAL, Display, counts, label_of
from eigenveil.show.plots.sources import model_from, path_of
from eigenveil.show.report import components_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    from eigenveil.model import Model

__all__ = ["BiplotDisplay", "LoadingsDisplay", "ScreeDisplay"]

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
        made = cls(
            explained_variance=model.explained_variance,
            noise_floor=model.noise_floor,
            intervals=np.array([(span.low, span.high) for span in spans]) if spans else None,
        )
        return made.plot(ax)

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
            words = f"noise floor, {self.noise_floor:.3g}"
            self.floor_ = axes.axhline(self.noise_floor, color="C1", linestyle="--", label=words)
            axes.legend(loc="upper right")
        axes.set(xlabel="component", ylabel="variance", title=self._title())
        counts(axes)
        return self

    def _title(self) -> str:
        rank = len(self.explained_variance)
        if self.noise_floor == 0:
            return f"Variance along {rank} component{'s' * (rank != 1)}"
        return f"{self.n_above_noise} of {rank} above the noise floor"


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
        return cls(components=model.components, names=_names(model)).plot(ax, component=component, largest=largest)

    def plot(
        self, ax: "Axes | None" = None, *, component: int | None = None, largest: int = _MOST
    ) -> "LoadingsDisplay":
        """Draw all components as colours, or one `component`, counted from 0, as bars. Into `ax` or a new figure."""
        require(largest >= 1, f"largest must be at least 1, got {largest}")
        rank = len(self.components)
        good = component is None or 0 <= component < rank
        require(good, f"component must be from 0 to {rank - 1}, got {component}")
        # One component is chosen first, so that "largest" means largest in what is shown.
        shown = self.components if component is None else self.components[[component]]
        order = np.argsort(-np.abs(shown).max(axis=0), kind="stable")[:largest]
        axes = self._axes(ax)
        if component is None:
            self._as_colours(axes, shown[:, order])
        else:
            self._as_bars(axes, shown[0, order], component)
        axes.set_yticks(np.arange(len(order)), [label_of(self.names[at]) for at in order], **LITERAL)
        left = len(self.names) - len(order)
        if left:
            axes.set_xlabel(f"{axes.get_xlabel()}; {left} column{'s' * (left != 1)} with smaller weights not drawn")
        return self

    def _as_colours(self, axes: "Axes", weights: Array) -> None:
        # Both signs get the same strength of colour, and zero is white.
        most = float(np.abs(weights).max()) or 1.0
        self.image_ = axes.imshow(weights.T, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
        axes.set(xlabel="component", title="Weights of columns in components")
        axes.set_xticks(np.arange(len(weights)), [str(at + 1) for at in range(len(weights))])
        self.figure_.colorbar(self.image_, ax=axes, label="weight")

    def _as_bars(self, axes: "Axes", weights: Array, component: int) -> None:
        colours = ["C0" if weight >= 0 else "C1" for weight in weights]
        self.bars_ = axes.barh(np.arange(len(weights)), weights, color=colours)
        axes.axvline(0.0, color="0.3", linewidth=0.8)
        axes.set(xlabel="weight", title=f"Largest weights in component {component + 1}")
        # The largest weight comes first, as in a table.
        axes.invert_yaxis()


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
        made = cls(
            weights=model.components[[first, second]],
            names=_names(model),
            components=(first, second),
            shares=(float(model.explained_variance_ratio[first]), float(model.explained_variance_ratio[second])),
            scores=None if X is None else _scores(estimator, model, X)[:, [first, second]],
        )
        return made.plot(ax, largest=largest)

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
        self.names_ = tuple(
            self._name(axes, tip[0], height, self.names[at])
            for tip, height, at in zip(tips, heights, order, strict=True)
        )
        axes.axhline(0.0, color=FAINT, linewidth=0.6)
        axes.axvline(0.0, color=FAINT, linewidth=0.6)
        axes.set(xlim=(-farthest, farthest), ylim=(-farthest, farthest), xlabel=self._axis(0), ylabel=self._axis(1))
        # With unequal axes the angles between arrows would mean nothing.
        axes.set_aspect("equal")
        axes.set_title(
            RAW if self.scores is not None else "Weights of columns, arrows scaled to fit", fontsize="medium"
        )
        return self

    def _name(self, axes: "Axes", x: float, y: float, name: str) -> "Text":
        """The name of a column beside the tip of its arrow, on the side away from the origin."""
        right = x >= 0
        words = f" {label_of(name)} "
        return axes.text(x, y, words, ha="left" if right else "right", va="center", fontsize="small", **LITERAL)

    def _axis(self, place: int) -> str:
        share = "" if self.shares is None else f", {self.shares[place]:.0%} of the variance"
        return f"component {self.components[place] + 1}{share}"


def _apart(tips: Array, least: float) -> Array:
    """Heights for the names at `tips`, (n, 2): the nearest to their own at which those on one side are `least` apart.

    >>> _apart(np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 9.0], [-1.0, 0.0]]), 0.5).round(2).tolist()
    [-0.2, 0.3, 9.0, 0.0]
    """
    heights = tips[:, 1].copy()
    for side in (tips[:, 0] >= 0, tips[:, 0] < 0):
        if not side.any():
            continue
        order = np.flatnonzero(side)[np.argsort(heights[side], kind="stable")]
        # Once the distances are taken off, the heights need only be in order: isotonic regression, by least squares.
        steps = least * np.arange(len(order))
        heights[order] = isotonic_regression(heights[order] - steps) + steps
    return heights


def _names(model: "Model") -> tuple[str, ...]:
    return model.columns or tuple(f"column {at}" for at in range(1, model.components.shape[1] + 1))


def _scores(source: Any, model: "Model", X: Any) -> Array:
    """Scores of the caller's rows. A table is read by the names of its columns, an array by their order."""
    if source is not model and path_of(source) is None:
        # The estimator knows which columns of a table it was fitted on, and a pipeline what comes before it.
        return np.asarray(source.transform(X), dtype=np.float64)
    return np.asarray(model.transform(X), dtype=np.float64)
