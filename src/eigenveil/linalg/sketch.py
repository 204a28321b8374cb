"""`Sketch`: mean, weight, energy and leading directions of some rows, and how to merge sketches.

It is what a tracker has learnt, in O(d r) numbers. A sketch of rows that were not released is raw data of those people.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.noise import Noise
from eigenveil.core.threads import Array
from eigenveil.errors import require
from eigenveil.linalg.subspace import Subspace, merge_all

__all__ = ["Sketch", "merge_many", "merge_sketches", "normals", "pull_of_means", "without_shift"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sketch:
    """Rows of total `weight` around their `mean`, (d,): scatter ~ basis diag(values**2) basis^T, of trace `energy`.

    The weight is the number of rows, less what was forgotten. Without centering, the mean is zero. Printing a sketch shows no
    number from the data.
    """

    subspace: Subspace
    mean: Array
    weight: float
    energy: float

    def __post_init__(self) -> None:
        require(self.mean.shape == (self.subspace.dim,), f"mean must have shape ({self.subspace.dim},)")
        require(bool(np.isfinite(self.mean).all()), "mean must be finite")
        require(0 <= self.weight < math.inf, f"weight must be finite and not negative, got {self.weight}")
        require(0 <= self.energy < math.inf, "energy must be finite and not negative")

    def __repr__(self) -> str:
        return f"Sketch(dim={self.dim}, rank={self.subspace.rank})"

    @classmethod
    def empty(cls, dim: int) -> "Sketch":
        """The sketch of no rows.

        >>> Sketch.empty(3).subspace.rank
        0
        """
        return cls(subspace=Subspace(np.empty((dim, 0)), np.empty(0)), mean=np.zeros(dim), weight=0.0, energy=0.0)

    @classmethod
    def of(cls, rows: Array, *, rank: int, center: bool) -> "Sketch":
        """The sketch of `rows`, (n, d), with at most `rank` directions, around their mean or around zero.

        >>> Sketch.of(np.array([[1.0, 5.0], [1.0, 7.0]]), rank=1, center=True).energy
        2.0
        """
        count, dim = rows.shape
        if count == 0:
            return cls.empty(dim)
        mean = rows.mean(axis=0) if center else np.zeros(dim)
        inside = rows - mean
        space = Subspace.of(inside, rank=min(rank, count, dim))
        # Rows in a plane have singular values of rounding beyond it, whose directions mean nothing.
        n_kept = int((space.values > 1e-12 * max(float(space.values[0]), 1e-300)).sum())
        kept_space = Subspace(space.basis[:, :n_kept], space.values[:n_kept])
        return cls(subspace=kept_space, mean=mean, weight=float(count), energy=float(np.square(inside).sum()))

    @property
    def dim(self) -> int:
        """The number of columns."""
        return self.subspace.dim

    def faded(self, factor: float) -> "Sketch":
        """The sketch with all sums of squares, and the weight, times `factor`."""
        if factor == 1.0:
            return self
        space = Subspace(self.subspace.basis, self.subspace.values * math.sqrt(factor))
        # A mean stays where it is if all rows count less.
        return Sketch(subspace=space, mean=self.mean, weight=self.weight * factor, energy=self.energy * factor)


def pull_of_means(left: Array, right: Array, left_weight: float, right_weight: float) -> tuple[Array, float, Array]:
    """The scatter between two groups, ||q||^2 = w1 w2 / (w1 + w2) ||m1 - m2||^2 along q, (d,); and their joint mean.

    Chan, Golub and LeVeque (1983): S = S1 + S2 + q q^T. Returns q, ||q||^2 and the joint mean.

    >>> round(pull_of_means(np.zeros(1), np.full(1, 4.0), 1.0, 1.0)[1], 9)
    8.0
    """
    total = left_weight + right_weight
    gap = right - left
    pull = gap * math.sqrt(left_weight * right_weight / total) if total > 0 else np.zeros_like(gap)
    mean = left + gap * (right_weight / total) if total > 0 else left
    return pull, float(pull @ pull), mean


def merge_sketches(left: Sketch, right: Sketch, *, rank: int, center: bool) -> Sketch:
    """The sketch of all rows of both, truncated to `rank` directions. Apart from truncation, the order has no effect.

    >>> one = Sketch(subspace=Subspace.of(np.eye(2)[:1], rank=1), mean=np.zeros(2), weight=1.0, energy=1.0)
    >>> merge_sketches(one, one, rank=2, center=False).energy
    2.0
    """
    require(left.dim == right.dim, f"streams of {left.dim} and {right.dim} columns cannot be merged")
    energy = left.energy + right.energy
    spaces = [left.subspace, right.subspace]
    mean = left.mean
    if center:
        pull, more, mean = pull_of_means(left.mean, right.mean, left.weight, right.weight)
        energy += more
        if more > 0:
            # q q^T is a scatter of rank one, so it is merged like any other subspace.
            spaces.append(Subspace((pull / math.sqrt(more))[:, None], np.array([math.sqrt(more)])))
    spaces = [space for space in spaces if space.rank > 0]
    joint = merge_all(spaces, rank=rank) if spaces else left.subspace
    return Sketch(subspace=joint, mean=mean, weight=left.weight + right.weight, energy=energy)


def merge_many(sketches: Sequence[Sketch], *, rank: int, center: bool) -> Sketch:
    """The sketch of all rows of all `sketches`, truncated once to `rank` directions. Their order has no effect.

    Merged one after the other, each truncation would lose what a later sketch could have raised.

    >>> parts = [Sketch.of(np.eye(3)[[i]] * (i + 1), rank=1, center=False) for i in range(3)]
    >>> merge_many(parts, rank=2, center=False).subspace.values.round(12).tolist()
    [3.0, 2.0]
    """
    require(len(sketches) > 0, "merge_many needs at least one sketch, got none")
    dims = {sketch.dim for sketch in sketches}
    require(len(dims) == 1, f"sketches of {', '.join(map(str, sorted(dims)))} columns cannot be merged")
    # `fsum` rounds once, so the order of the sketches has no effect.
    weight = math.fsum(sketch.weight for sketch in sketches)
    energy = math.fsum(sketch.energy for sketch in sketches)
    spaces, mean = [sketch.subspace for sketch in sketches if sketch.subspace.rank > 0], np.zeros(dims.pop())
    if center and weight > 0:
        mean = np.sum([sketch.weight * sketch.mean for sketch in sketches], axis=0) / weight
        # Around the joint mean every group adds w (m - mean)(m - mean)^T to the scatter (Chan, Golub and LeVeque 1983).
        pulls = np.array([math.sqrt(sketch.weight) * (sketch.mean - mean) for sketch in sketches])
        between = Sketch.of(pulls, rank=min(pulls.shape), center=False)
        energy += between.energy
        spaces += [between.subspace] if between.subspace.rank > 0 else []
    if not spaces:
        return Sketch(subspace=Subspace(np.empty((len(mean), 0)), np.empty(0)), mean=mean, weight=weight, energy=energy)
    return Sketch(subspace=merge_all(spaces, rank=rank), mean=mean, weight=weight, energy=energy)


def without_shift(space: Subspace, shift: Array) -> Subspace:
    """`space` with shift shift^T, (d,), subtracted from its scatter; negative values become zero, and the rank stays.

    >>> without_shift(Subspace.of(np.eye(2) * 2, rank=2), np.array([2.0, 0.0])).values.round(9).tolist()
    [2.0, 0.0]
    """
    inside = space.basis.T @ shift
    # The part outside the span would only give a negative value, which becomes zero anyway.
    small = np.diag(np.square(space.values)) - np.outer(inside, inside)
    values, rotation = np.linalg.eigh(small)
    basis: Array = space.basis @ rotation[:, ::-1]
    return Subspace(basis, np.sqrt(np.maximum(values[::-1], 0.0)))


# Normals per round: the working arrays of one round stay in the inner cache.
_ROUND = 1 << 15


def normals(noise: Noise, shape: tuple[int, ...]) -> Array:
    """Independent standard normals of this shape. Tails reach 9.4 standard deviations, as far as 64 bits go.

    >>> normals(Noise.seeded(7), (2,)).round(3).tolist()
    [0.75, -1.454]
    """
    out = np.empty(math.prod(shape))
    room = min(len(out) + 1, _ROUND)
    buffer, squares = np.empty(8 * room, dtype=np.uint8), np.empty(room)
    with noise.batch() as batch:
        for start in range(0, len(out), _ROUND):
            piece = out[start : start + _ROUND]
            whole = piece if len(piece) % 2 == 0 else np.empty(len(piece) + 1)
            raw = buffer[: 8 * len(whole)]
            batch.fill(raw)
            _box_muller(raw.view(np.uint64), whole, squares[: len(whole) // 2])
            if whole is not piece:
                piece[:] = whole[:-1]
    return out.reshape(shape)


def _box_muller(bits: NDArray[np.uint64], out: Array, squares: Array) -> None:
    """Fill `out`, of even length, from as many random words; `squares`, half that size, is working space."""
    half = len(out) // 2
    # radius = sqrt(-2 log u) with u in (0, 1), and t = tan(angle / 2) with angle uniform in (-pi, pi).
    radius, tangent = out[:half], out[half:]
    np.copyto(radius, bits[:half], casting="unsafe")
    radius += 0.5
    radius *= 2.0**-64
    np.log(radius, out=radius)
    radius *= -2.0
    # A word that rounds up to 2^64 gives log(1) = 0, which becomes minus zero here; its root would stay negative.
    np.abs(radius, out=radius)
    np.sqrt(radius, out=radius)
    np.multiply(bits[half:].view(np.int64), math.pi * 2.0**-64, out=tangent)
    np.tan(tangent, out=tangent)
    # cos = (1 - t^2) / (1 + t^2) and sin = 2 t / (1 + t^2); `squares` is 1 + t^2, then 1 - t^2.
    np.multiply(tangent, tangent, out=squares)
    squares += 1.0
    radius /= squares
    tangent *= radius
    tangent *= 2.0
    np.subtract(2.0, squares, out=squares)
    radius *= squares
