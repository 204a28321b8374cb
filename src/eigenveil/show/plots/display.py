"""`Display`: what all pictures share, and how names become harmless labels. matplotlib is loaded when one is drawn."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from eigenveil.show.marks import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

__all__ = ["FAINT", "LITERAL", "Display", "counts", "label_of", "pyplot"]

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
