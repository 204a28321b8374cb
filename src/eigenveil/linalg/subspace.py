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
import math
from typing import Final

__all__ = [
    "LEVEL",
    "TOLD_APART",
    "Subspace",
    "align_procrustes",
    "align_signs",
    "captured_variance",
    "check_merge",
    "expected_captured_variance",
    "merge",
    "merge_all",
    "merged_edge",
    "norm_edge",
    "product_edge",
    "sines",
    "singular_edge",
    "spiked_edge",
    "symmetric_edge",
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
    """`basis`, (d, k), with signs chosen so that each column has a non-negative inner product with the one of `target`, (d, k).

    >>> align_signs(-np.eye(2), np.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    # Not `np.sign`: a column orthogonal to its target would become zero.
    return basis * np.where(np.einsum("ij,ij->j", basis, target) < 0, -1.0, 1.0)


def expected_captured_variance(eigenvalues: Array, *, entry: float, dim: int) -> float:
    """The share of the sum of leading Gram `eigenvalues`, (k,), that a fit captures, to first order.

    Under noise with entries of size `entry` on `dim` columns, a direction of eigenvalue v keeps 1 - dim entry^2 / v^2
    of itself. Below v = sqrt(dim) entry it keeps nothing. These are the overlaps of spiked matrices (Benaych-Georges
    and Nadakuditi 2011).

    >>> expected_captured_variance(np.array([10.0, 1.0]), entry=0.5, dim=16)
    0.87...
    """
    with np.errstate(divide="ignore", over="ignore"):
        overlaps = np.where(eigenvalues > 0, np.maximum(0.0, 1 - dim * (entry / eigenvalues) ** 2), 0.0)
    return float((overlaps * eigenvalues).sum() / eigenvalues.sum())


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
        # A copy, so that no other reference to the arrays can change what was checked here.
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
        # What was checked above holds only as long as the arrays do not change.
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
        [[np.diag(first), overlap * second], [np.zeros((fresh.shape[1], left.rank)), (fresh.T @ right.basis) * second]]
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
    parts = list(spaces)
    require(len(parts) > 0, "merge_all needs at least one subspace, got none")
    dims = {space.dim for space in parts}
    require(len(dims) == 1, f"subspaces of different dimensions cannot be merged: {sorted(dims)}")
    width = sum(space.rank for space in parts)
    if width > parts[0].dim:
        # Wider than tall: the Gram matrix is the smaller object.
        gram: Array = reduce(np.add, ((s.basis * np.square(s.values)) @ s.basis.T for s in parts))
        return Subspace.of_gram(gram, rank=min(rank, parts[0].dim))
    vectors, values = thin_svd(np.hstack([s.basis * s.values for s in parts]), rank=min(rank, width))
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


# Noise alone exceeds a threshold this often. Both numbers are the upper 1% point: of the Tracy-Widom law for real symmetric
# matrices (Tracy and Widom 1996; tables of Bejan 2005), and of the normal law.
LEVEL: Final = 0.01
_TRACY_WIDOM: Final = 2.0234
_NORMAL: Final = 2.3263
# How much further out the largest eigenvalue may be if a direction is about to leave the noise, in units of row^(-1/6).
_AT_TRANSITION: Final = 0.9
_HALVINGS: Final = 60
_GRID: Final = 400


def symmetric_edge(dim: int) -> float:
    """For (M + M^T) / 2, where M, (d, d), has independent standard normal entries: what is added to a covariance.

    Entries off the diagonal have the variance 1/2, so the largest eigenvalue is about sqrt(2 d) + d^(-1/6) / sqrt(2) times a
    Tracy-Widom variable (Tracy and Widom 1996; Johnstone 2001). With 2 d - 1 in place of 2 d it holds for few columns too:
    exceeded by 0.8 to 1.2% for d = 2 to 800.

    >>> round(symmetric_edge(100), 3), round(math.sqrt(200), 3)
    (14.771, 14.142)
    """
    return math.sqrt(2 * dim - 1) + _TRACY_WIDOM / math.sqrt(2) * math.pow(dim, -1 / 6)


def product_edge(dim: int, width: int) -> float:
    """For the Ritz values of a noisy product with `width` vectors, whose entries have noise of standard deviation one.

    Let X be orthonormal, (d, w), and N the noise on G X, with G = 0. In a basis [X, Q] the Ritz matrix is [[H, T^T], [T, 0]]
    with H = (X^T N + N^T X) / 2, (w, w), and T, (m, w), where m = d - w. It is symmetric with independent entries, of
    variances 1/2 in H and 1 in T. Let u and 1/y be the mean diagonal entries of its resolvent at z in the two blocks. They
    solve 1/u = z - w u / 2 - m / y and y = z - w u (Helton, Rashidi Far and Speicher 2007), so z(u) = w u + y, where
    y^2 - a y - m = 0 and a = 1/u - w u / 2. The edge z* is the least z(u) over u > 0.

    Near it the trace of the resolvent behaves like a constant less kappa sqrt(z - z*), with
    kappa = (w + m d(1/y)/du) sqrt(2 / z''), so the largest eigenvalue exceeds the edge by kappa^(-2/3) times a Tracy-Widom
    variable (Lee and Schnelli 2016). For w = d that is `symmetric_edge`. Exceeded by 0.1 to 0.8%.

    >>> round(product_edge(800, 20), 2), round(math.sqrt(800) + math.sqrt(20), 2)
    (34.25, 32.76)
    """
    require(1 <= width <= dim, f"width must lie in 1..{dim}, got {width}")
    rest = dim - width
    if rest == 0:
        return symmetric_edge(dim)

    def lower(u: float) -> tuple[float, float, float]:
        """y and its first two derivatives, from the derivatives of a."""
        a, slope, bend = 1 / u - width * u / 2, -1 / u**2 - width / 2, 2 / u**3
        # The sum of a and the root loses all digits where a is negative. The product of both roots is -m.
        root = math.sqrt(a * a + 4 * rest)
        y = (a + root) / 2 if a > 0 else 2 * rest / (root - a)
        first = slope * y / root
        return y, first, (bend * y + 2 * slope * first - 2 * first**2) / root

    # z' = w + y' runs from minus infinity to w, and all edges lie near u = 1 / sqrt(d): bisection of the logarithm.
    low, high = math.log(1e-3 / math.sqrt(dim)), math.log(1e3 / math.sqrt(dim))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if width + lower(math.exp(middle))[1] < 0 else (low, middle)
    minimiser = math.exp(low)
    y, _, bend = lower(minimiser)
    # At the edge y' = -w, so d(1/y)/du = w / y^2.
    kappa = width * (1 + rest / y**2) * math.sqrt(2 / bend)
    return float(width * minimiser + y + _TRACY_WIDOM * kappa ** (-2 / 3))


def singular_edge(dim: int, width: int) -> float:
    """For the largest singular value of a (d, w) matrix of independent standard normal entries.

    Its square is about (sqrt(d - 1) + sqrt(w))^2 plus a Tracy-Widom variable times
    (sqrt(d - 1) + sqrt(w)) (1 / sqrt(d - 1) + 1 / sqrt(w))^(1/3) (Johnstone 2001, theorem 1.1).

    >>> round(singular_edge(800, 20), 2)
    33.38
    """
    root_dim, root_width = math.sqrt(max(dim - 1, 1)), math.sqrt(width)
    square = (root_dim + root_width) ** 2 + _TRACY_WIDOM * (root_dim + root_width) * (1 / root_dim + 1 / root_width) ** (1 / 3)
    return math.sqrt(square)


def norm_edge(dim: int, *, tries: int = 1) -> float:
    """For the largest norm of `tries` vectors of `dim` standard normal entries each.

    The squared norm has the chi-squared law. Each vector gets an equal part of the level.

    >>> round(norm_edge(1), 3), norm_edge(50) < norm_edge(50, tries=4)
    (2.576, True)
    """
    from scipy.special import gammaincinv

    return math.sqrt(2 * float(gammaincinv(dim / 2, 1 - LEVEL / tries)))


def merged_edge(dim: int, width: int, *, parts: float) -> float:
    """For a sum of `parts` noise matrices, each reduced to its `width` largest eigenvalues, those above zero.

    Sites that merge, and blocks of a stream, send no negative eigenvalue. The mean of the noise does not cancel. Parts with
    independent noise are free of each other in the limit (Voiculescu 1991). Let G be the resolvent's mean of one part. The
    edge of the sum of n parts is the least n z - (n - 1) / G(z), over z above the part's own edge. For one part that is the
    part's own edge. The largest eigenvalue fluctuates by no more than before the reduction.

    >>> merged_edge(50, 50, parts=1.0) == symmetric_edge(50), merged_edge(50, 10, parts=9.0) > 3 * symmetric_edge(50)
    (True, True)
    """
    require(1 <= width <= dim and parts >= 1, f"width must lie in 1..{dim} and parts be at least 1, got {width}, {parts}")
    if parts == 1:
        return symmetric_edge(dim)
    positive = np.maximum(_semicircle(dim)[:width], 0.0)
    # A grid of points above the part's own edge, by the logarithm of the distance: the minimum is flat.
    z = float(positive[0]) * (1 + np.exp(np.linspace(-12.0, 6.0, _GRID)))
    resolvent = ((1 / (z[:, None] - positive)).sum(axis=1) + (dim - width) / z) / dim
    edge = float((parts * z - (parts - 1) / resolvent).min())
    beyond = symmetric_edge(dim) - math.sqrt(2 * dim - 1)
    return edge + math.sqrt(parts) * beyond


def spiked_edge(edge: float, *, spike: float, row: float) -> float:
    """An edge that also covers one direction of size `spike` that is no signal, such as the error of a mean.

    A direction of size theta in a symmetric matrix of noise shows as an eigenvalue of about theta + row / theta. Here `row` is
    the sum of the variances of the noise in its row. Where theta is below the root of that, it disappears in the noise (Baik,
    Ben Arous and Peche 2005; Benaych-Georges and Nadakuditi 2011). A row of a covariance has d entries of variance 1/2. In the
    Ritz matrix of a product with w vectors it has w of variance 1/2 and d - w of variance 1. A singular value is at most
    theta + (d + w) / (2 theta). The deviation of such an eigenvalue is at most one.

    At the transition the law of the largest eigenvalue is wider than Tracy and Widom's (Bloemendal and Virag 2013). Its window
    is row^(-1/3) wide, relatively, and its upper 1% point was measured to lie 0.8 row^(-1/6) further out.

    >>> spiked_edge(14.8, spike=5.0, row=50.0), round(spiked_edge(14.8, spike=20.0, row=50.0), 2)
    (14.8, 24.83)
    """
    if spike < (1 - math.pow(row, -1 / 3)) * math.sqrt(row):
        return edge
    near = edge + _AT_TRANSITION * math.pow(row, -1 / 6)
    return near if spike**2 <= row else max(near, spike + row / spike + _NORMAL)


def _semicircle(dim: int) -> Array:
    """The quantiles, (d,), of the semicircle law with edge sqrt(2 d), largest first: typical eigenvalues of the noise."""
    places = (np.arange(dim) + 0.5) / dim
    grid = np.linspace(-1.0, 1.0, 2001)
    share = 0.5 + (grid * np.sqrt(1 - grid**2) + np.arcsin(grid)) / math.pi
    quantiles: Array = math.sqrt(2 * dim) * np.interp(1 - places, share, grid)
    return quantiles
