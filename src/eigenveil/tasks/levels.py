"""`Levels`: whether the last rows of a stream are still like those before, from released sums alone."""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.linalg import Array, Subspace

__all__ = ["Change", "Levels"]

# What may differ between earlier rows of a stream and later ones: their mean, their spread, or where the mean of the last ones
# lies in the ball that they are clipped to.
Change: TypeAlias = Literal["level", "spread", "center"]
# So many stretches of a stream are kept apart.
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
        return cls._of(np.asarray(total, dtype=np.float64)[None], *(np.array([float(value)]) for value in numbers))

    @classmethod
    def _of(cls, *parts: Array) -> "Levels":
        """From arrays in the order of the fields."""
        return cls(**dict(zip(cls.__slots__, parts, strict=True)))

    def times(self, factor: float) -> "Levels":
        """The same with sums faded by a factor."""
        square = factor**2
        return Levels(
            total=factor * self.total,
            energy=factor * self.energy,
            weight=factor * self.weight,
            squares=square * self.squares,
            total_noise=square * self.total_noise,
            energy_noise=square * self.energy_noise,
            weight_noise=square * self.weight_noise,
            last=self.last,
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
        sqrt(2 x |V|) with chance e^-x at most, because norms are Lipschitz (Borell and Tsirelson). So where the true means are
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
            found = flat._moved(len(shown.basis), rows=rows, sure=sure)
            if found is None:
                break
            run, by = found
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
        the mean that was taken off them has that of the sums. So the noise of D is a part that is independent of the directions,
        and c times the noise of all sums, where c = Cov / Var is zero if noise is proportional to weight. This part is counted
        with all columns.
        """
        first, last = np.triu_indices(len(self.last), 1)
        # Every run but those that begin with the stream: these are what the others leave.
        until = [np.concatenate([np.zeros_like(part[:1]), np.cumsum(part, axis=0)]) for part in self._parts[:-1]]
        inside = [part[last + 1] - part[first + 1] for part in until]
        run = Levels._of(*inside, self.last)
        rest = Levels._of(*(part[-1] - own for part, own in zip(until, inside, strict=True)), self.last)
        known, width = run._known & rest._known, self.total.shape[1]
        a, b = (np.where(known, part.weight, 1.0) for part in (run, rest))
        apart = run.total / a[:, None] - rest.total / b[:, None]
        # Variances of an entry of D / (a b): of all noise in the sums, of the part that the directions share, and of sampling.
        noise, both = run.total_noise / a**2 + rest.total_noise / b**2, run.total_noise + rest.total_noise
        shared = np.square(run.total_noise / a - rest.total_noise / b) / np.where(both > 0, both, 1.0)
        sampled = rows * (run.squares / a**2 + rest.squares / b**2)
        known &= noise + sampled > 0
        entry = np.where(known, noise + sampled, 1.0)
        # Standard deviations of the multiples of u and of v, over that of an entry: the covariance is entry (I + F F^T).
        counted = np.sqrt(np.stack([rest.weight_noise, run.weight_noise], axis=1) / entry[:, None]) / (a * b)[:, None]
        along = np.stack([run.total, rest.total], axis=2) * counted[:, None, :]
        inner = np.einsum("rwi,rw->ri", along, apart)
        small = np.eye(2) + np.einsum("rwi,rwj->rij", along, along)
        squared = np.square(apart).sum(axis=1)
        # |D|^2 in units of that covariance, by the identity of Woodbury.
        scaled = squared - np.einsum("ri,ri->r", inner, np.linalg.solve(small, inner[..., None])[..., 0])
        expected = width * (noise - shared) + dim * shared + sampled
        moved = known & (np.sqrt(np.maximum(scaled, 0.0) / entry) > np.sqrt(expected / entry) + sure)
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
