"""Reads released counts of norms: free post-processing of `eigenveil.core.counts`."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

import numpy as np

from eigenveil.core.counts import Cells, root_columns
from eigenveil.core.domain import LARGEST, SMALLEST
from eigenveil.core.exact import toeplitz_times
from eigenveil.core.threads import Array
from eigenveil.errors import require

__all__ = ["BEYOND", "Tails", "cells_in_any_unit", "extended", "mirrored", "norm_cells", "read_tails", "signed_cells"]

# Norms are told for these shares of people with longer rows, where the counts stand out by so many standard deviations.
BEYOND: Final = (0.8, 0.65, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001)
_SEEN: Final = 2.5
# Counts are sums of products: differences smaller than this are rounding.
_ROUNDING: Final = 1e-9


def norm_cells(lowest: float, highest: float, *, per_doubling: int) -> Cells:
    """For norms from `lowest` to `highest`, with `per_doubling` cells for each factor of two; zero is in the first.

    >>> norm_cells(1.0, 4.0, per_doubling=1).edges.tolist()
    [1.0, 2.0, 4.0]
    """
    require(
        SMALLEST <= lowest < highest <= LARGEST,
        f"the range of norms must be two numbers between {SMALLEST:g} and {LARGEST:g}, the lower one first, got "
        f"{lowest:g} and {highest:g}",
    )
    first, last = math.floor(per_doubling * math.log2(lowest)), math.ceil(per_doubling * math.log2(highest))
    return Cells(2.0 ** (np.arange(first, last + 1) / per_doubling))


def cells_in_any_unit() -> Cells:
    """For norms of rows in any unit: in steps of 4.4%, and of 19% below 1e-6 and beyond 1e9.

    Finer cells would cost more noise than they are worth. Units that hardly anybody has get coarse ones, so that a table in
    them is found too and others do not pay for it.
    """
    return extended(norm_cells(1e-6, 1e9, per_doubling=16), 1e-18, 1e18, per_doubling=4)


def signed_cells(lowest: float, highest: float, *, per_doubling: int) -> Cells:
    """For numbers of either sign and of these sizes; numbers smaller than `lowest` share one cell with zero."""
    return mirrored(norm_cells(lowest, highest, per_doubling=per_doubling))


def extended(cells: Cells, lowest: float, highest: float, *, per_doubling: int) -> Cells:
    """These cells of norms, and further ones from `lowest` and up to `highest`, with `per_doubling` for each factor of two.

    >>> extended(norm_cells(1.0, 2.0, per_doubling=2), 0.25, 4.0, per_doubling=1).edges.round(2).tolist()
    [0.25, 0.5, 1.0, 1.41, 2.0, 4.0]
    """
    wide, first, last = norm_cells(lowest, highest, per_doubling=per_doubling).edges, cells.edges[0], cells.edges[-1]
    # An edge that is nearly one of ours would make a cell of almost no width.
    near = 2.0 ** (0.5 / per_doubling)
    return Cells(np.concatenate([wide[wide < first / near], cells.edges, wide[wide > last * near]]))


def mirrored(cells: Cells) -> Cells:
    """These cells of norms for numbers of either sign; the first ones of both signs share one cell with zero."""
    return Cells(np.concatenate([-cells.edges[::-1], cells.edges]))


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tails:
    """Released counts: how many `people` there are, and how many of them are `beyond` each edge of the `cells`, (m - 1,).

    `error`, (m - 1,), is the standard deviation of each count before isotonic regression. `people_error` is that of the number
    of people, zero where it is public. A person with several rows counts as fractions that add up to one.
    """

    cells: Cells
    beyond: Array
    error: Array
    people: float
    people_error: float

    def edge_above(self, most: float) -> int | None:
        """The first edge with at most `most` people beyond it; None if more lie beyond even the last edge."""
        within = np.flatnonzero(self.beyond <= most + _ROUNDING * self.people)
        return int(within[0]) if len(within) else None

    def edge_below(self, most: float) -> int | None:
        """The last edge with at most `most` people not beyond it; None if more lie below even the first edge."""
        within = np.flatnonzero(self.people - self.beyond <= most + _ROUNDING * self.people)
        return int(within[-1]) if len(within) else None

    def seen(self) -> tuple[float, ...]:
        """The norm that each share `BEYOND` of the people exceeds, zero where noise hides it: free post-processing.

        >>> tails = Tails(
        ...     cells=Cells(2.0 ** np.arange(4)),
        ...     beyond=np.array([900.0, 400.0, 90.0, 0.0]),
        ...     error=np.full(4, 20.0),
        ...     people=1000.0,
        ...     people_error=0.0,
        ... )
        >>> tails.seen()[:8]
        (2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 8.0)
        """
        hidden = _SEEN * float(self.error.max())
        found = []
        for share in BEYOND:
            edge = (
                self.edge_above(share * self.people) if hidden <= share * self.people <= self.people - hidden else None
            )
            found.append(0.0 if edge is None else float(self.cells.edges[edge]))
        return tuple(found)

    def square(self, edge: int) -> float:
        """The mean squared norm if norms are clipped at this edge: the sum of d(t^2) times the share beyond t.

        >>> tails = Tails(
        ...     cells=Cells(np.array([1.0, 2.0])),
        ...     beyond=np.array([1.0, 0.0]),
        ...     error=np.zeros(2),
        ...     people=1.0,
        ...     people_error=0.0,
        ... )
        >>> tails.square(0), tails.square(1)                      # one row of norm between 1 and 2
        (1.0, 2.5)
        """
        if self.people <= 0:
            return 0.0
        squares = np.square(np.concatenate([[0.0], self.cells.edges[: edge + 1]]))
        share = np.concatenate([[self.people], self.beyond[: edge + 1]]) / self.people
        # Where in a cell norms lie is not known, so the share beyond is taken to fall evenly within it.
        return float(np.sum(np.diff(squares) * (share[1:] + share[:-1]) / 2))


def read_tails(
    released: Array, *, noise: float, cells: Cells, people: float | None, apart: bool = False
) -> tuple[Tails, ...]:
    """The tails of each column, from a release of A h, (m,) or (m, d), with `noise` on each entry: free post-processing.

    `people` is their number where it is public. The release is multiplied by A again. Isotonic regression then makes the counts
    decrease, between the number of people and zero. All d columns count the same people, so the average of their totals
    estimates that number where it is private.

    Where the number is better known than a column's own total S_m, it corrects every sum: S_j - b_j (S_m - number). Here b_j
    is the regression of the noise of S_j on that of S_m. Sums near the bottom are then as precise as those near the top.

    Where entries may be missing, columns count different people. They are read `apart`, each with its own total.

    >>> from eigenveil.core.counts import _root
    >>> released = _root(3) @ np.array([1.0, 2.0, 4.0])
    >>> (tails,) = read_tails(released, noise=0.0, cells=Cells(np.array([1.0, 2.0])), people=None)
    >>> tails.beyond.round(9).tolist(), round(tails.people, 9)
    ([3.0, 1.0], 7.0)
    """
    root = root_columns(cells.count)
    sums = toeplitz_times(root, np.atleast_2d(released.T).T)
    # A row of A is its column reversed, so one column gives the error of each sum.
    error = noise * np.sqrt(np.cumsum(np.square(root[:, 0])))
    from scipy.optimize import isotonic_regression

    if apart:
        totals = np.maximum(sums[-1], 0.0)
        each = ((isotonic_regression(column).x, most) for column, most in zip(sums[:-1].T, totals, strict=True))
        off = float(error[-1])
        return tuple(
            Tails(
                cells=cells,
                beyond=np.clip(column, 0.0, most)[::-1],
                error=error[:-1][::-1],
                people=float(most),
                people_error=off,
            )
            for column, most in each
        )
    counted = float(sums[-1].mean())
    number = max(counted, 0.0) if people is None else people
    off = float(error[-1]) / math.sqrt(sums.shape[1]) if people is None else 0.0
    if noise > 0 and off < float(error[-1]):
        together = _with_last(cells.count)
        slope = together / (together[-1] + (off / noise) ** 2)
        sums = sums - np.outer(slope, sums[-1] - number)
        error = np.sqrt(np.maximum(error**2 - noise**2 * slope * together, 0.0))
    # From the top down counts increase; reversed, they decrease with the edges.
    falling = (np.clip(isotonic_regression(column).x, 0.0, number)[::-1] for column in sums[:-1].T)
    return tuple(
        Tails(cells=cells, beyond=beyond, error=error[:-1][::-1], people=number, people_error=off) for beyond in falling
    )


@lru_cache(maxsize=4)
def _with_last(cells: int) -> Array:
    """The products of the rows of A with its last one, (cells,)."""
    columns = root_columns(cells)
    products = toeplitz_times(columns, columns[::-1, :1])[:, 0]
    products.flags.writeable = False
    return products
