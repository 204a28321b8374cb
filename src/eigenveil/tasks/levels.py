"""`Levels`: whether the last rows of a stream are still like those before, from released sums alone."""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, final

import numpy as np

from eigenveil.linalg import Array

__all__ = ["Change", "Levels"]

# What may differ between earlier rows of a stream and later ones: their mean, their spread, or where the mean of the last ones
# lies in the ball that they are clipped to.
Change: TypeAlias = Literal["level", "spread", "center"]
# So many stretches of a stream are kept apart.
_MOST: Final = 32
# The last stretches, together or alone, that should lie near the center.
_LAST: Final = 4
# A level that has moved by less than this share of the row bound hardly turns the components.
_MOVED: Final = 0.25
# And neither does one that makes up less than this share of the variance.
_TURNS: Final = 0.05
# Rows this far from the point that they are clipped around, in bounds, are mostly clipped.
_MISPLACED: Final = 0.5
# Later rows whose squared norms are this share of the earlier ones' are hidden by them.
_SHRUNK: Final = 0.2
# A stationary stream is called changed with this chance, however often one looks.
_LEVEL: Final = 0.01


@final
@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Released sums of rows around one center, for m consecutive stretches of a stream: numbers that anybody may see.

    `total` is the sum of rows, (m, d), and `energy` that of squared norms, (m,). The rows have a total `weight`, (m,), and
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
        return cls(np.asarray(total, dtype=np.float64)[None], *(np.array([float(value)]) for value in numbers))

    def times(self, factor: float) -> "Levels":
        """The same with sums faded by a factor."""
        square = factor**2
        return Levels(
            factor * self.total,
            factor * self.energy,
            factor * self.weight,
            square * self.squares,
            square * self.total_noise,
            square * self.energy_noise,
            square * self.weight_noise,
            self.last,
        )

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
        return Levels(*parts)

    def around(self, offset: Array) -> "Levels":
        """The same around a center that is moved by `offset`, (d,). The noise of the squared norms is taken to stay."""
        energy = self.energy - 2 * self.total @ offset + self.weight * float(offset @ offset)
        return replace(self, total=self.total - np.outer(self.weight, offset), energy=energy)

    def change(self, *, radius: float, looks: int, centered: bool) -> Change | None:
        """What has changed, None if nothing clearly has. Free.

        The rows are in a ball of this radius. If it was `centered` on the mean of the first rows, later means should be near the
        center. At the t-th look each of three tests for each of m beginnings of the later rows may be wrong with chance a_t =
        .01 * 6 / (3 m pi^2 t^2), which adds up to .01 over all looks, however many.

        Level and center. The difference of two means is the true one plus an error that is normal, or nearly: noise of known
        variance, and that of a mean of rows whose squared norms average s. With covariance V, its norm is above sqrt(trace V) +
        sqrt(2 x |V|) with chance e^-x at most, because norms are Lipschitz (Borell and Tsirelson). So where the true means
        differ by less than a quarter of the radius, the level is called moved with chance a_t at most, and the same for half of
        it and the center. A level that moved is said as long as it makes up much of the variance.

        Spread. The same with normal errors of the two mean squared norms around their own means.
        """
        # Noise may leave no row at all.
        if not math.isfinite(radius) or self.weight.sum() <= 0:
            return None
        # For each beginning: the later rows, down to the last stretch alone. The first has all rows, and none are earlier.
        sums = self._parts[:-1]
        later = Levels(*(*(np.cumsum(part[::-1], axis=0)[::-1] for part in sums), self.last))
        earlier = Levels(*(*(np.cumsum(part, axis=0) - part for part in sums), self.last))
        doubt = math.log(3 * len(self.last) * math.pi**2 * looks**2 / (6 * _LEVEL))
        sure = math.sqrt(2 * doubt)
        (mean, noise, along, share, spread, error), (mean_, noise_, along_, share_, spread_, error_) = (
            part._moments(radius) for part in (later, earlier)
        )
        rows = min(max(float(spread[0] + sure * error[0]), 0.0), radius**2)
        dim = self.total.shape[1]
        # Where the number of rows is noise, nothing can be divided by it.
        known, known_ = (part.weight > 4 * np.sqrt(part.weight_noise) for part in (later, earlier))
        known, both = known & (later.weight > 0), known & known_ & (later.weight > 0) & (earlier.weight > 0)
        if centered:
            largest = noise + rows * share + along
            limit = _MISPLACED * radius + np.sqrt(largest + (dim - 1) * noise) + sure * np.sqrt(largest)
            if (known & (np.linalg.norm(mean, axis=1) > limit))[-_LAST:].any():
                return "center"
        moved = np.linalg.norm(mean - mean_, axis=1)
        largest = noise + noise_ + rows * (share + share_) + along + along_
        limit = _MOVED * radius + np.sqrt(largest + (dim - 1) * (noise + noise_)) + sure * np.sqrt(largest)
        part = np.clip(later.weight / later.weight[0], 0.0, 1.0)
        between = part * (1 - part) * (moved**2 - dim * (noise + noise_))
        if (both & (moved > limit) & (between > _TURNS * spread[0])).any():
            return "level"
        shrunk = spread + sure * error < _SHRUNK * (spread_ - sure * error_)
        hidden = later.weight * spread < earlier.weight * spread_
        return "spread" if (both & shrunk & hidden).any() else None

    @property
    def _parts(self) -> tuple[Array, ...]:
        return (
            self.total,
            self.energy,
            self.weight,
            self.squares,
            self.total_noise,
            self.energy_noise,
            self.weight_noise,
            self.last,
        )

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
        # Squares of noise were added to those of the means. A mean is a sum over a noisy number of rows: that error lies
        # along it.
        return mean, noise, counted * squared, share, size - squared + mean.shape[1] * noise, np.sqrt(variance)
