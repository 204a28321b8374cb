"""`Subspace`: the leading directions of some rows and their weights, always in data scale; and how to merge them.

Data scale means rows.T @ rows ~ basis @ diag(values**2) @ basis.T. Merging then approximates the subspace of all rows together.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, final

import numpy as np

from eigenveil.core.threads import Array
from eigenveil.errors import require
from eigenveil.linalg.blas import complement, orthonormal, signed, tall_product, thin_svd, top_eigen

if TYPE_CHECKING:
    # For types only: it takes 6 MiB, which a device has better use for.
    from numpy.random import Generator

__all__ = [
    "TOLD_APART",
    "Subspace",
    "align_procrustes",
    "align_signs",
    "captured_variance",
    "check_merge",
    "found_share",
    "merge",
    "merge_all",
    "sines",
    "tie_at",
]


def sines(left: Array, right: Array) -> Array:
    """Sines of the principal angles between the spans of two orthonormal bases, (d, j) and (d, k), largest first.

    The smaller span is measured against the larger one. Sines come from the residual, not from the cosine, so that angles of
    1e-10 are resolved (Björck and Golub 1973).

    >>> axes = np.eye(3)
    >>> sines(axes[:, :1], axes[:, 1:2]).tolist()
    [1.0]
    """
    small, large = (left, right) if left.shape[1] <= right.shape[1] else (right, left)
    residual = small - large @ (large.T @ small)
    return np.asarray(np.minimum(np.linalg.svd(residual, compute_uv=False), 1.0), dtype=np.float64)


def captured_variance(gram: Array, basis: Array) -> float:
    """How much of the best possible variance `basis`, (d, k), captures: trace(V^T G V) over the top k eigenvalues of G.

    >>> captured_variance(np.diag([3.0, 1.0]), np.array([[0.0], [1.0]]))
    0.333...
    """
    best = np.linalg.eigvalsh(gram)[::-1][: basis.shape[1]].sum()
    return float(np.einsum("ij,ij->", basis, gram @ basis) / best)


def align_procrustes(basis: Array, target: Array) -> Array:
    """`basis`, (d, k), times the rotation that brings it closest to `target`, (d, k): orthogonal Procrustes.

    >>> aligned = align_procrustes(np.eye(3)[:, [1, 0]], np.eye(3)[:, :2])
    >>> np.allclose(aligned, np.eye(3)[:, :2])
    True
    """
    # The orthogonal factor of this product minimises the Frobenius distance to the target: FedPower (3.2).
    left, _, right = np.linalg.svd(basis.T @ target)
    aligned: Array = basis @ (left @ right)
    return aligned


def align_signs(basis: Array, target: Array) -> Array:
    """`basis`, (d, k), with signs chosen so that each column has a non-negative inner product with that of `target`, (d, k).

    >>> align_signs(-np.eye(2), np.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    # Not `np.sign`: a column orthogonal to its target would become zero.
    return basis * np.where(np.einsum("ij,ij->j", basis, target) < 0, -1.0, 1.0)


def found_share(eigenvalues: Array, *, entry: float, dim: int) -> float:
    """The share of the sum of leading Gram `eigenvalues`, (k,), that a fit captures, to first order.

    Under noise with entries of size `entry` on `dim` columns, a direction of eigenvalue v keeps 1 - dim entry^2 / v^2
    of itself. Below v = sqrt(dim) entry it keeps nothing. These are the overlaps of spiked matrices (Benaych-Georges
    and Nadakuditi 2011).

    >>> found_share(np.array([10.0, 1.0]), entry=0.5, dim=16)
    0.87...
    """
    with np.errstate(divide="ignore", over="ignore"):
        kept = np.where(eigenvalues > 0, np.maximum(0.0, 1 - dim * (entry / eigenvalues) ** 2), 0.0)
    return float((kept * eigenvalues).sum() / eigenvalues.sum())


_ORTHONORMAL = 1e-8


@final
@dataclass(frozen=True, slots=True, eq=False)
class Subspace:
    """An orthonormal `basis`, (d, k), and `values`, (k,), non-negative and non-increasing, both read-only.

    >>> space = Subspace.of(np.array([[2.0, 0.0], [0.0, 1.0]]), rank=1)
    >>> space.values.tolist(), space.basis.ravel().tolist()
    ([2.0], [1.0, 0.0])
    """

    basis: Array
    values: Array

    def __post_init__(self) -> None:
        require(self.basis.ndim == 2, f"basis must have two dimensions, got shape {self.basis.shape}")
        require(
            self.values.shape == (self.basis.shape[1],),
            f"values must have shape ({self.basis.shape[1]},) to go with the basis, got {self.values.shape}",
        )
        require(self.rank <= self.dim, f"rank must be at most dim = {self.dim}, got {self.rank}")
        # A copy, so that nobody else with a reference to the arrays can change what was checked here.
        basis, values = np.array(self.basis, dtype=np.float64), np.array(self.values, dtype=np.float64)
        require(bool(np.isfinite(basis).all() and np.isfinite(values).all()), "basis and values must be finite")
        with np.errstate(over="ignore", invalid="ignore"):
            # Entries too large to multiply make the gap NaN, which fails the comparison below as well.
            off = tall_product(basis, basis)
            off.flat[:: self.rank + 1] -= 1.0
            gap = float(np.abs(off, out=off).max(initial=0.0))
        if not gap < _ORTHONORMAL:
            raise ValueError(f"basis must be orthonormal, but basis.T @ basis is {gap:.1e} off the identity")
        # The last of values that do not increase is the smallest.
        require(bool((values[:-1] >= values[1:]).all()), "values must not increase")
        require(len(values) == 0 or bool(values[-1] >= 0), "values must be non-negative")
        # What was checked above holds only as long as nobody changes the arrays.
        basis.setflags(write=False)
        values.setflags(write=False)
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "values", values)

    @property
    def dim(self) -> int:
        """The number of columns d of the rows described."""
        return int(self.basis.shape[0])

    @property
    def rank(self) -> int:
        """The number of directions k."""
        return int(self.basis.shape[1])

    @classmethod
    def of(cls, rows: Array, *, rank: int) -> "Subspace":
        """The top `rank` right singular vectors and singular values of `rows`, (n, d)."""
        vectors, values = thin_svd(np.asarray(rows, dtype=np.float64).T, rank=rank)
        return cls(vectors, values)

    @classmethod
    def of_gram(cls, gram: Array, *, rank: int, overwrite: bool = False) -> "Subspace":
        """The same from a Gram matrix, (d, d), possibly a noisy one: values are roots of the positive eigenvalues.

        `overwrite` lets the matrix be destroyed, which saves a copy of it.
        """
        values, vectors = top_eigen(gram, rank=rank, overwrite=overwrite)
        # Noise can make eigenvalues negative, and then nothing is known along their directions.
        return cls(vectors, np.sqrt(np.maximum(values, 0.0)))

    @classmethod
    def random(cls, dim: int, *, rank: int, rng: "Generator") -> "Subspace":
        """A uniformly random subspace of `rank` directions in `dim` dimensions, with values zero."""
        return cls(orthonormal(rng.standard_normal((dim, rank))), np.zeros(rank))

    def project(self, rows: Array) -> Array:
        """Coordinates, (n, k), of `rows`, (n, d), in the basis."""
        return rows @ self.basis

    def truncate(self, rank: int) -> "Subspace":
        """The first `rank` directions."""
        require(1 <= rank <= self.rank, f"rank must lie in 1..{self.rank}, got {rank}")
        return Subspace(self.basis[:, :rank], self.values[:rank])

    def sines(self, other: "Subspace") -> Array:
        """Sines of the principal angles to `other`, largest first."""
        return sines(self.basis, other.basis)

    def captured(self, rows: Array) -> float:
        """The share of the total sum of squares of `rows`, (n, d), that lies in the span."""
        total = float(np.square(rows).sum())
        return float(np.square(rows @ self.basis).sum()) / total if total > 0 else 0.0


def merge(left: Subspace, right: Subspace, *, rank: int, forget: float = 1.0, enhance: float = 1.0) -> Subspace:
    """The top `rank` directions of the rows behind both: FPCA Alg. 2 (Alg. 6 in the supplement).

    The left values are multiplied by `forget` in (0, 1], the right ones by `enhance` >= 1. With Z = U1^T U2 and
    Q R = U2 - U1 Z, the left singular vectors of [[S1, Z S2], [0, R S2]] are rotated by [U1, Q].
    When one span lies inside the other, or nearly, Q does not have those columns (`complement`). They would be rounding noise
    and spoil the basis.

    >>> rows = np.diag([3.0, 2.0, 1.0])
    >>> both = merge(Subspace.of(rows[:2], rank=2), Subspace.of(rows[2:], rank=1), rank=3)
    >>> both.values.round(12).tolist()
    [3.0, 2.0, 1.0]
    """
    check_merge(left, right, rank, forget, enhance)
    first, second = forget * left.values, enhance * right.values
    overlap = left.basis.T @ right.basis
    # Q R = U2 - U1 Z, where nearly dependent columns are dropped. A plain QR would fill them with rounding noise.
    fresh = complement(right.basis, left.basis, within=overlap)
    rank = min(rank, left.rank + fresh.shape[1])
    small = np.block(
        [
            [np.diag(first), overlap * second],
            [np.zeros((fresh.shape[1], left.rank)), (fresh.T @ right.basis) * second],
        ]
    )
    rotation, values, _ = np.linalg.svd(small, full_matrices=False)
    rank = min(rank, len(values))
    return Subspace(signed(np.hstack([left.basis, fresh]) @ rotation[:, :rank]), values[:rank])


def merge_all(spaces: Iterable[Subspace], *, rank: int) -> Subspace:
    """Merge many at once: the top `rank` directions of [U1 S1, U2 S2, ...] (FPCA Lemma 1). Their order has no effect.

    >>> parts = [Subspace.of(np.eye(3)[[i]] * (i + 1), rank=1) for i in range(3)]
    >>> merge_all(parts, rank=2).values.round(12).tolist()
    [3.0, 2.0]
    """
    given = list(spaces)
    require(len(given) > 0, "merge_all needs at least one subspace, got none")
    dims = {space.dim for space in given}
    require(len(dims) == 1, f"subspaces of different dimensions cannot be merged: {sorted(dims)}")
    width = sum(space.rank for space in given)
    if width > given[0].dim:
        # Wider than tall: the Gram matrix is the smaller object.
        gram: Array = reduce(np.add, ((s.basis * np.square(s.values)) @ s.basis.T for s in given))
        return Subspace.of_gram(gram, rank=min(rank, given[0].dim))
    vectors, values = thin_svd(np.hstack([s.basis * s.values for s in given]), rank=min(rank, width))
    return Subspace(vectors, values)


def check_merge(left: Subspace, right: Subspace, rank: int, forget: float, enhance: float) -> None:
    """Refuse subspaces and factors that no merge can take."""
    require(rank >= 1, f"rank must be at least 1, got {rank}")
    require(left.dim == right.dim, f"subspaces of dimensions {left.dim} and {right.dim} cannot be merged")
    require(0 < forget <= 1, f"forget must lie in (0, 1], got {forget}")
    require(enhance >= 1, f"enhance must be at least 1, got {enhance}")


# Two values count as equal if they differ by no more than this, relative to themselves or to the largest.
_TIED, TOLD_APART = 1e-10, 1e-14


def tie_at(values: Array, *, rank: int) -> bool:
    """Whether the eigenvalues `rank` and `rank` + 1 of `values`, largest first, cannot be told apart.

    >>> tie_at(np.array([1e10, 1.0, 0.25]), rank=2), tie_at(np.array([5.0, 1.0, 1.0]), rank=2)
    (False, True)
    """
    gap = float(values[rank - 1] - values[rank])
    return gap <= max(_TIED * float(values[rank - 1]), TOLD_APART * float(values[0]))
