"""Rows far longer than all norms that stand out from the noise: what one release of counts says of them, for no further charge.

A fit clips such rows, and exact PCA follows them. Each count is known only up to its noise, so a few may hide. But where they
are alike, they leave a pattern in the whole release that stands out long before any single count does.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple, final

import numpy as np

from eigenveil.linalg import Array
from eigenveil.tasks.tails import Tails

__all__ = ["Outliers", "outliers_in"]

# Rows are looked for from so many times the longest norm that stands out.
_FAR: Final = 2.0
# The share of people that may lie there is a bound at this many deviations: it is too small once in 20 releases.
SURE: Final = 1.645
# Windows of so many cells, which are 4.4% wide, and numbers of rows up to this share of the people.
_WINDOWS: Final = (1, 4, 16, 64)
_LARGEST_SHARE, _NUMBERS = 0.1, 13
# Released numbers are kept to so many digits, so that the arithmetic of a machine does not show.
_DIGITS: Final = 4


@final
class Outliers(NamedTuple):
    """Rows longer than the norm `beyond`: at most the share `most` of the people has them, with 95% confidence.

    The release is so many times as likely (`odds`) if a group of rows lies there than if nobody does. Most likely it is of a
    `share` of the people, about as long as `norm`.
    """

    beyond: float
    most: float
    odds: float
    share: float
    norm: float

    @classmethod
    def read(cls, plain: object) -> "Outliers | None":
        """The same from five numbers, named or in order, of a file that may have been edited; None if they can be no such thing.

        >>> Outliers.read([8.0, 0.01, 0.5, 0.001, 500.0]).norm, Outliers.read([8.0, 2.0, 0.5, 0.001, 500.0])
        (500.0, None)
        """
        if isinstance(plain, Mapping):
            plain = [plain.get(name) for name in cls._fields]
        if not isinstance(plain, list | tuple) or len(plain) != len(cls._fields):
            return None
        if not all(isinstance(number, int | float) and 0 < number < math.inf for number in plain):
            return None
        found = cls(*map(float, plain))
        return found if found.most <= 1 and found.share <= 1 and found.beyond <= found.norm else None

    def over(self, unit: float) -> "Outliers":
        """The same in another unit."""
        return self._replace(beyond=self.beyond / unit, norm=self.norm / unit)


def outliers_in(released: Array, tails: Tails, *, noise: float, longest: float) -> Outliers | None:
    """What a release of A h, (m,), with `noise` on each entry says of rows far beyond the `longest` norm that its `tails` show.

    None where they show none, no cell lies beyond, or no noise could hide rows. Free post-processing.

    Proof of the odds. Let J cells lie beyond, from the top. A is lower triangular, so the first J entries of A h depend on their
    counts alone: if nobody is there, they are noise. With s rows spread evenly over the cells of a window, their mean is s v with
    v the average of these columns of A, and the ratio of the two densities is exp((s <y, v> - s^2 |v|^2 / 2) / noise^2). The odds
    are its average over windows and numbers s. Their expectation without such rows is one, so by Markov's inequality odds of c or
    more come once in c releases at most; they come far less often.

    >>> from eigenveil.tasks.tails import norm_cells, read_tails
    >>> cells, rng = norm_cells(1.0, 1e6, per_doubling=16), np.random.default_rng(0)
    >>> root = np.cumprod(np.concatenate([[1.0], (2 * np.arange(1, cells.count) - 1) / (2 * np.arange(1, cells.count))]))
    >>> def read(far):
    ...     counts = np.zeros(cells.count)
    ...     counts[cells.count - 1 - cells.place(np.array([2.0, 5000.0]))] = 10_000, far
    ...     released = np.convolve(counts, root)[: cells.count] + 50 * rng.standard_normal(cells.count)
    ...     (tails,) = read_tails(released, noise=50.0, cells=cells, people=None)
    ...     return outliers_in(released, tails, noise=50.0, longest=2.0)
    >>> found = read(200)
    >>> found.odds > 10, 4000 < found.norm < 6000, 0.01 < found.share < 0.03, read(0).odds < 2
    (True, True, True, True)
    """
    edges, people = tails.cells.edges, tails.people
    first = int(np.searchsorted(edges, _FAR * longest))
    cells = len(edges) - first
    if noise <= 0 or longest <= 0 or people <= 1 or cells < 1:
        return None
    root, seen = _root(cells), released[:cells]
    # All of them together: the sum of the counts from the top down to that edge.
    error = noise * math.sqrt(float(root @ root))
    most = max(float(root[::-1] @ seen), 0.0) + SURE * error
    products = np.correlate(np.concatenate([seen, np.zeros(cells - 1)]), root, mode="valid")
    summed = np.concatenate([[0.0], np.cumsum(products)])
    sizes = np.geomspace(1.0, max(2.0, _LARGEST_SHARE * people), _NUMBERS)
    likely, windows = [], []
    for width in _WINDOWS:
        if width > cells:
            break
        starts = np.arange(0, cells - width + 1, max(1, width // 4))
        product = (summed[starts + width] - summed[starts]) / width
        square = _squares(cells, width)[cells - 1 - starts]
        logs = (np.outer(product, sizes) - np.outer(square, np.square(sizes) / 2)) / noise**2
        likely.append(logs - math.log(len(starts)))
        windows += [(int(start), width) for start in starts]
    logs = np.concatenate(likely) - math.log(len(likely) * _NUMBERS)
    top = float(logs.max())
    weights = np.exp(logs - top)
    # Beyond this the logarithm says enough.
    odds = math.exp(min(top + math.log(float(weights.sum())), 100.0))
    best = int(weights.sum(axis=1).argmax())
    count = float(weights[best] @ sizes / weights[best].sum())
    start, width = windows[best]
    # The middle of the window. Cells are counted from the top, and the first one has no upper end.
    place = len(edges) - 1 - (start + width // 2)
    norm = float(edges[max(place, first)])
    numbers = (float(edges[first]), min(1.0, most / people), odds, count / people, norm)
    return Outliers.read([float(f"{number:.{_DIGITS}g}") for number in numbers])


@lru_cache(maxsize=8)
def _root(cells: int) -> Array:
    """The first column of A, whose other columns are this one moved down."""
    steps = np.arange(1, cells)
    found: Array = np.cumprod(np.concatenate([[1.0], (2 * steps - 1) / (2 * steps)]))
    found.flags.writeable = False
    return found


@lru_cache(maxsize=32)
def _squares(cells: int, width: int) -> Array:
    """The squared norm of the average of `width` columns of A, by how many entries are left below the first of them, less one."""
    column = np.convolve(_root(cells), np.full(width, 1 / width))[:cells]
    found: Array = np.cumsum(np.square(column))
    found.flags.writeable = False
    return found
