"""`Levels`: whether the last rows of a stream are still like those before, from released sums alone."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.counts import Bins, root_columns
from eigenveil.core.domain import LARGEST, SMALLEST
from eigenveil.core.exact import toeplitz_times
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace

__all__ = [
    "BEYOND",
    "Change",
    "Levels",
    "TailCounts",
    "cells_in_any_unit",
    "extended",
    "mirrored",
    "norm_cells",
    "read_tails",
    "signed_cells",
]

# What may differ between earlier rows of a stream and later ones: their mean, their spread, or where the mean of the last ones
# lies in the ball that they are clipped to.
Change: TypeAlias = Literal["level", "spread", "center"]
# This many stretches of a stream are kept apart.
_MOST: Final = 32
# The last stretches, together or alone, that should lie near the center.
_LAST: Final = 4
# A component is turned if it has less than this share of the variance that it should have.
_TURNED: Final = 0.95
# Rows this far from the point that they are clipped around, in bounds, are mostly clipped.
_MISPLACED: Final = 0.5
# Later rows whose squared norms are this share of the earlier ones' are hidden by them.
_SHRUNK: Final = 0.2
# A stationary stream is called changed with this chance, however often one looks.
_LEVEL: Final = 0.01


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Levels:
    """Released sums of rows around one center, for m consecutive stretches of a stream: public numbers.

    `total` is the sum of rows, (m, d), and `energy` the sum of squared norms, (m,). The rows have a total `weight`, (m,), and
    `squares` is the sum of their squared weights. The others are variances of noise: per entry of `total`, of `energy`, and of
    `weight` where rows were counted with noise. `last` is the number of the last slot or release in each.
    """

    total: Array
    energy: Array
    weight: Array
    squares: Array
    total_noise: Array
    energy_noise: Array
    weight_noise: Array
    last: Array

    def __repr__(self) -> str:
        return f"Levels(stretches={len(self.last)})"

    @classmethod
    def of(
        cls,
        number: int,
        total: Array,
        *,
        energy: float,
        weight: float,
        total_noise: float,
        energy_noise: float,
        weight_noise: float = 0.0,
    ) -> "Levels":
        """One stretch: a slot or a release of this number."""
        numbers = (energy, weight, max(weight, 0.0), total_noise, energy_noise, weight_noise, number)
        return cls._of(np.asarray(total, dtype=np.float64)[None], *(np.array([float(value)]) for value in numbers))

    @classmethod
    def _of(cls, *parts: Array) -> "Levels":
        return cls(**dict(zip(cls.__slots__, parts, strict=True)))

    def times(self, factor: float) -> "Levels":
        """The same with sums faded by a factor."""
        sums, squares = self._parts[:3], self._parts[3:-1]
        return Levels._of(*(factor * part for part in sums), *(factor**2 * part for part in squares), self.last)

    def and_also(self, other: "Levels") -> "Levels":
        """These stretches and others, in their order. Of the same slot there may be several, of late sites."""
        parts = [np.concatenate(pair) for pair in zip(self._parts, other._parts, strict=True)]
        order = np.argsort(parts[-1], kind="stable")
        parts = [part[order] for part in parts]
        # Stretches of the same slot first. Then those that weigh least together, but the last ones stay apart.
        while len(parts[-1]) > 1:
            same = np.flatnonzero(np.diff(parts[-1]) == 0)
            if len(same) == 0 and len(parts[-1]) <= _MOST:
                break
            weights = np.abs(parts[2])
            at = int(same[0]) if len(same) else int((weights[:-1] + weights[1:])[:-_LAST].argmin())
            # Everything adds up, but for the number of the last slot.
            whole = [part[at] + part[at + 1] for part in parts[:-1]] + [parts[-1][at + 1]]
            parts = [
                np.concatenate([part[:at], np.asarray(value)[None], part[at + 2 :]])
                for part, value in zip(parts, whole, strict=True)
            ]
        return Levels._of(*parts)

    def around(self, offset: Array) -> "Levels":
        """The same around a center that is moved by `offset`, (d,). The noise of the squared norms is taken to stay."""
        energy = self.energy - 2 * self.total @ offset + self.weight * float(offset @ offset)
        return replace(self, total=self.total - np.outer(self.weight, offset), energy=energy)

    def change(self, shown: Subspace, *, rank: int, radius: float, looks: int, centered: bool) -> Change | None:
        """What has changed, None if nothing clearly has. Free.

        `shown` are the leading directions of the released scatter, of which the first `rank` are the components. The rows are in
        a ball of this radius. If it was `centered` on the mean of the first rows, later means should be near the center. At the
        t-th look each of T tests may be wrong with chance a_t = .01 * 6 / (T pi^2 t^2), which adds up to .01 over all looks,
        however many.

        Level and center. The difference of two means is the true one plus an error that is normal, or nearly: noise of known
        variance, and that of a mean of rows whose squared norms average s. With covariance V, its norm is above sqrt(trace V) +
        sqrt(2 x |V|) with chance e^-x at most, because norms are Lipschitz (Borell and Tsirelson), so where the true means are
        the same, the level is called moved with chance a_t at most (`_turned`), and the same for half of the radius and the
        center.

        Spread. The same with normal errors of the two mean squared norms around their own means.
        """
        # Noise may leave no row at all.
        if not math.isfinite(radius) or self.weight.sum() <= 0:
            return None
        # For each beginning: the later rows, down to the last stretch alone. The first has all rows, and none are earlier.
        sums, count = self._parts[:-1], len(self.last)
        later = Levels._of(*(np.cumsum(part[::-1], axis=0)[::-1] for part in sums), self.last)
        earlier = Levels._of(*(np.cumsum(part, axis=0) - part for part in sums), self.last)
        # Two tests for each beginning, and one for each run of stretches.
        tests = 2 * count + count * (count - 1) / 2
        sure = math.sqrt(2 * math.log(tests * math.pi**2 * looks**2 / (6 * _LEVEL)))
        mean, noise, along, share, spread, error = later._moments(radius)
        *_, spread_, error_ = earlier._moments(radius)
        rows = min(max(float(spread[0] + sure * error[0]), 0.0), radius**2)
        if centered:
            largest = noise + rows * share + along
            limit = _MISPLACED * radius + np.sqrt(largest + (len(mean[0]) - 1) * noise) + sure * np.sqrt(largest)
            if (later._known & (np.linalg.norm(mean, axis=1) > limit))[-_LAST:].any():
                return "center"
        if self._turned(shown, rank=rank, rows=rows, sure=sure):
            return "level"
        shrunk = spread + sure * error < _SHRUNK * (spread_ - sure * error_)
        hidden = later.weight * spread < earlier.weight * spread_
        return "spread" if (later._known & earlier._known & shrunk & hidden).any() else None

    def _turned(self, shown: Subspace, *, rank: int, rows: float, sure: float) -> bool:
        """Whether means that clearly differ turn a component: one of the first `rank` directions of the scatter that is `shown`.

        Means that differ have a scatter of their own, which is part of the whole. Without it the i-th component should have the
        i-th largest eigenvalue. It is turned if it has less than a share `_TURNED` of that. For equal means nothing is taken off.
        """
        if shown.rank == 0:
            return False
        flat, level = replace(self, total=self.total @ shown.basis), np.zeros((len(self.last), shown.rank))
        for _ in self.last:
            move = flat._moved(len(shown.basis), rows=rows, sure=sure)
            if move is None:
                break
            run, by = move
            level[run] += by
            # As if this run had moved back. Others may have moved as well, or elsewhere.
            flat.total[run] -= np.outer(flat.weight[run], by)
        weight = np.maximum(self.weight, 0.0)
        level -= weight @ level / weight.sum()
        values = np.square(shown.values)
        within = np.diag(values) - level.T @ (weight[:, None] * level)
        # Rows near the largest bound there is.
        if not np.isfinite(within).all():
            return False
        return bool((within.diagonal() < _TURNED * np.linalg.eigvalsh(within)[::-1])[:rank].any())

    def _moved(self, dim: int, *, rows: float, sure: float) -> tuple[slice, Array] | None:
        """The run of stretches that clearly has another mean than all others and adds most to the scatter; and the difference.

        Let the run have the sum of rows u and the weight a, and the others v and b, both with noise. Then D = b u - a v is zero
        for equal means but for what noise and sampling add. Noise in the weights adds multiples of u and of v, which are known,
        and D is measured in units of the standard deviation of all this. No division by a noisy weight is in it.

        These sums are in the coordinates of directions that were found in `dim` columns. Products have noise of their own, but
        the mean that was taken off them has that of the sums, so the noise of D is a part that is independent of the directions,
        and c times the noise of all sums, where c = Cov / Var is zero if noise is proportional to weight. This part is counted
        with all columns.
        """
        first, last = np.triu_indices(len(self.last), 1)
        # Every run but those that begin with the stream: these are what the others leave.
        until = [np.concatenate([np.zeros_like(part[:1]), np.cumsum(part, axis=0)]) for part in self._parts[:-1]]
        inside = [part[last + 1] - part[first + 1] for part in until]
        run = Levels._of(*inside, self.last)
        rest = Levels._of(*(part[-1] - own for part, own in zip(until, inside, strict=True)), self.last)
        is_known, width = run._known & rest._known, self.total.shape[1]
        a, b = (np.where(is_known, part.weight, 1.0) for part in (run, rest))
        apart = run.total / a[:, None] - rest.total / b[:, None]
        # Variances of an entry of D / (a b): of all noise in the sums, of the part that the directions share, and of sampling.
        noise, both = run.total_noise / a**2 + rest.total_noise / b**2, run.total_noise + rest.total_noise
        shared = np.square(run.total_noise / a - rest.total_noise / b) / np.where(both > 0, both, 1.0)
        sampled = rows * (run.squares / a**2 + rest.squares / b**2)
        is_known &= noise + sampled > 0
        entry = np.where(is_known, noise + sampled, 1.0)
        # Standard deviations of the multiples of u and of v, over an entry's: the covariance is entry (I + F F^T).
        counted = np.sqrt(np.stack([rest.weight_noise, run.weight_noise], axis=1) / entry[:, None]) / (a * b)[:, None]
        along = np.stack([run.total, rest.total], axis=2) * counted[:, None, :]
        inner = np.einsum("rwi,rw->ri", along, apart)
        small = np.eye(2) + np.einsum("rwi,rwj->rij", along, along)
        squared = np.square(apart).sum(axis=1)
        # |D|^2 in units of that covariance, by the identity of Woodbury.
        scaled = squared - np.einsum("ri,ri->r", inner, np.linalg.solve(small, inner[..., None])[..., 0])
        expected = width * (noise - shared) + dim * shared + sampled
        moved = is_known & (np.sqrt(np.maximum(scaled, 0.0) / entry) > np.sqrt(expected / entry) + sure)
        # Noise makes the difference longer than it is.
        clear = np.maximum(squared - width * noise, 0.0)
        between = np.where(moved, a / self.weight.sum() * np.maximum(1 - a / self.weight.sum(), 0.0) * clear, 0.0)
        if not (between > 0).any():
            return None
        at = int(between.argmax())
        return slice(int(first[at]) + 1, int(last[at]) + 1), apart[at] * math.sqrt(clear[at] / squared[at])

    @property
    def _known(self) -> NDArray[np.bool_]:
        """Where there are rows for certain. Where their number is noise, nothing can be divided by it."""
        return (self.weight > 0) & (self.weight > 4 * np.sqrt(self.weight_noise))

    @property
    def _parts(self) -> tuple[Array, ...]:
        """The fields in order: three sums, four sums of squares, and the numbers."""
        return tuple(getattr(self, name) for name in Levels.__slots__)

    def _moments(self, radius: float) -> tuple[Array, ...]:
        """For each stretch the mean, (m, d), its noise per entry, its error along it, the sum of squared shares of rows, and the
        mean squared norm around the mean with its error, (m,)."""
        weight = np.where(self.weight > 0, self.weight, 1.0)
        mean, size = self.total / weight[:, None], self.energy / weight
        noise, squared, share = self.total_noise / weight**2, np.square(mean).sum(axis=1), self.squares / weight**2
        counted = self.weight_noise / weight**2
        variance = (
            self.energy_noise / weight**2
            # Squared norms are at most the squared radius, so their variance is at most that times their mean.
            + radius**2 * np.maximum(size, 0.0) * share
            + 4 * squared * noise
            + 2 * mean.shape[1] * noise**2
            + size**2 * counted
        )
        # Squared noise was added to the squared means. A mean is a sum over a noisy number of rows: that error lies
        # along it.
        return mean, noise, counted * squared, share, size - squared + mean.shape[1] * noise, np.sqrt(variance)


# Norms are told for these shares of people with longer rows, where the counts stand out by so many standard deviations.
BEYOND: Final = (0.8, 0.65, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001)
_SEEN: Final = 2.5
# Counts are sums of products: differences smaller than this are rounding.
_ROUNDING: Final = 1e-9


def norm_cells(lowest: float, highest: float, *, per_doubling: int) -> Bins:
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
    return Bins(2.0 ** (np.arange(first, last + 1) / per_doubling))


def cells_in_any_unit() -> Bins:
    """For norms of rows in any unit: in steps of 4.4%, and of 19% below 1e-6 and beyond 1e9.

    Finer cells would cost more noise than they are worth. Units that are rare get coarse ones, so that a table in
    them is found too and others do not pay for it.
    """
    return extended(norm_cells(1e-6, 1e9, per_doubling=16), 1e-18, 1e18, per_doubling=4)


def signed_cells(lowest: float, highest: float, *, per_doubling: int) -> Bins:
    """For numbers of either sign and of these sizes; numbers smaller than `lowest` share one cell with zero."""
    return mirrored(norm_cells(lowest, highest, per_doubling=per_doubling))


def extended(cells: Bins, lowest: float, highest: float, *, per_doubling: int) -> Bins:
    """These cells of norms, and further ones from `lowest` and up to `highest`, with `per_doubling` for each factor of two.

    >>> extended(norm_cells(1.0, 2.0, per_doubling=2), 0.25, 4.0, per_doubling=1).edges.round(2).tolist()
    [0.25, 0.5, 1.0, 1.41, 2.0, 4.0]
    """
    wide, first, last = norm_cells(lowest, highest, per_doubling=per_doubling).edges, cells.edges[0], cells.edges[-1]
    # An edge that is nearly one of ours would make a cell of almost no width.
    near = 2.0 ** (0.5 / per_doubling)
    return Bins(np.concatenate([wide[wide < first / near], cells.edges, wide[wide > last * near]]))


def mirrored(cells: Bins) -> Bins:
    """These cells of norms for numbers of either sign; the first ones of both signs share one cell with zero."""
    return Bins(np.concatenate([-cells.edges[::-1], cells.edges]))


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TailCounts:
    """Released counts: how many `people` there are, and how many of them are `beyond` each edge of the `cells`, (m - 1,).

    `error`, (m - 1,), is the standard deviation of each count before isotonic regression. `people_error` is the deviation of the
    number of people, zero where it is public. A person with several rows counts as fractions that add up to one.
    """

    cells: Bins
    beyond: Array
    error: Array
    people: float
    people_error: float

    def edge_above(self, max_people: float) -> int | None:
        """The first edge with at most `max_people` people beyond it; None if more lie beyond even the last edge."""
        within = np.flatnonzero(self.beyond <= max_people + _ROUNDING * self.people)
        return int(within[0]) if len(within) else None

    def edge_below(self, max_people: float) -> int | None:
        """The last edge with at most `max_people` people not beyond it; None if more lie below even the first edge."""
        within = np.flatnonzero(self.people - self.beyond <= max_people + _ROUNDING * self.people)
        return int(within[-1]) if len(within) else None

    def seen(self) -> tuple[float, ...]:
        """The norm that each share `BEYOND` of the people exceeds, zero where noise hides it: free post-processing.

        >>> cells, beyond = Bins(2.0 ** np.arange(4)), np.array([900.0, 400.0, 90.0, 0.0])
        >>> tails = TailCounts(cells=cells, beyond=beyond, error=np.full(4, 20.0), people=1000.0, people_error=0.0)
        >>> tails.seen()[:8]
        (2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 8.0)
        """
        hidden = _SEEN * float(self.error.max())
        norms = []
        for share in BEYOND:
            edge = self.edge_above(share * self.people) if hidden <= share * self.people <= self.people - hidden else None
            norms.append(0.0 if edge is None else float(self.cells.edges[edge]))
        return tuple(norms)

    def square(self, edge: int) -> float:
        """The mean squared norm if norms are clipped at this edge: the sum of d(t^2) times the share beyond t.

        >>> cells, beyond = Bins(np.array([1.0, 2.0])), np.array([1.0, 0.0])
        >>> tails = TailCounts(cells=cells, beyond=beyond, error=np.zeros(2), people=1.0, people_error=0.0)
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
    released: Array, *, noise: float, cells: Bins, people: float | None, apart: bool = False
) -> tuple[TailCounts, ...]:
    """The tails of each column, from a release of A h, (m,) or (m, d), with `noise` on each entry: free post-processing.

    `people` is their number where it is public. The release is multiplied by A again. Isotonic regression then makes the counts
    decrease, between the number of people and zero. All d columns count the same people, so the average of their totals
    estimates that number where it is private.

    Where the number is better known than a column's own total S_m, it corrects every sum: S_j - b_j (S_m - number). Here b_j
    is the regression of the noise of S_j on that of S_m. Sums near the bottom are then as precise as those near the top.

    Where entries may be missing, columns count different people. They are read `apart`, each with its own total.

    >>> from eigenveil.core.counts import _root
    >>> released = _root(3) @ np.array([1.0, 2.0, 4.0])
    >>> (tails,) = read_tails(released, noise=0.0, cells=Bins(np.array([1.0, 2.0])), people=None)
    >>> tails.beyond.round(9).tolist(), round(tails.people, 9)
    ([3.0, 1.0], 7.0)
    """
    root = root_columns(cells.count)
    sums = toeplitz_times(root, np.atleast_2d(released.T).T)
    # A row of A is its column reversed, so one column gives the error of each sum.
    error = noise * np.sqrt(np.cumsum(np.square(root[:, 0])))
    from scipy.optimize import isotonic_regression

    if apart:
        numbers, off = np.maximum(sums[-1], 0.0).tolist(), float(error[-1])
    else:
        number = max(float(sums[-1].mean()), 0.0) if people is None else people
        off = float(error[-1]) / math.sqrt(sums.shape[1]) if people is None else 0.0
        if noise > 0 and off < float(error[-1]):
            together = _with_last(cells.count)
            slope = together / (together[-1] + (off / noise) ** 2)
            sums = sums - np.outer(slope, sums[-1] - number)
            error = np.sqrt(np.maximum(error**2 - noise**2 * slope * together, 0.0))
        numbers = [number] * sums.shape[1]
    # From the top down counts increase; reversed, they decrease with the edges.
    return tuple(
        TailCounts(
            cells=cells,
            beyond=np.clip(isotonic_regression(column).x, 0.0, number)[::-1],
            error=error[:-1][::-1],
            people=number,
            people_error=off,
        )
        for column, number in zip(sums[:-1].T, numbers, strict=True)
    )


@lru_cache(maxsize=4)
def _with_last(cells: int) -> Array:
    """The products of the rows of A with its last one, (cells,)."""
    columns = root_columns(cells)
    products = toeplitz_times(columns, columns[::-1, :1])[:, 0]
    products.flags.writeable = False
    return products
