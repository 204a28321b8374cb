"""Scenes: a table with a guessed spectrum, and the noise of a fit, to see how much of it a method would find.

All noise has the same law in every basis, so what a fit captures depends on the rows through their eigenvalues alone.
A table in its own eigenbasis, d rows along d axes, therefore tells as much as the private one. Nothing private is read.
"""

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.linalg import Array, orthonormal, signed
from eigenveil.linalg.normals import normals
from eigenveil.protocols.pooled import run_pooled
from eigenveil.tasks.base import Components

__all__ = ["ALL_PAIRS", "Scene", "found_in", "gaussian", "leading_under_noise", "matrix_of", "rows_of"]

# Up to this many columns the whole noise matrix is drawn, as in a fit. Beyond, `leading_under_noise` draws only the
# products it needs.
ALL_PAIRS: Final = 320
# Up to here rows are dense in memory; zeros cost less than the bookkeeping of a sparse matrix.
_FEW_COLUMNS: Final = 64
# The width of a Lanczos block: this many times the rank, or this much wider if that is more. And the most blocks.
_WIDER, _BEYOND, BLOCKS = 2, 8, 16
# Blocks are added until the captured share changes by no more than this.
_STILL: Final = 5e-4


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scene:
    """What is rehearsed: rows whose Gram matrix is diag(`gram`) + shift shift^T, (d,) each, in units of row_bound^2.

    `multiplier` is the noise on a sum over its sensitivity, if it gets the components' whole budget. `seed` draws the
    noise.
    """

    gram: Array
    shift: Array | None
    rank: int
    neighbours: Neighbours
    multiplier: float
    seed: int

    @property
    def dim(self) -> int:
        """The number of columns."""
        return len(self.gram)

    @property
    def scale(self) -> float:
        """The size of the noise on an entry of the Gram matrix."""
        return self.multiplier * gram_sensitivity(1.0, self.neighbours)


def found_in(scene: Scene, components: Components) -> Array:
    """The directions, (d, k), that a task finds in the rows of a scene."""
    rows, radius = rows_of(scene)
    task = components(domain=Domain(dim=scene.dim, radius=radius, claimed=False))
    basis: Array = run_pooled(task, rows, gaussian(scene.multiplier / radius**2, Noise.seeded(scene.seed))).basis
    return basis


def gaussian(multiplier: float, noise: Noise) -> Mechanism:
    """The mechanism of a fit, on a ledger without limits: a rehearsal reads no one's data, so there is nothing to
    charge."""
    return Gaussian(multiplier=multiplier, ledger=Ledger(epsilon=math.inf, delta=0.5), noise=noise)


def matrix_of(scene: Scene) -> Array:
    """Its Gram matrix."""
    matrix = np.diag(scene.gram)
    if scene.shift is not None:
        matrix += np.outer(scene.shift, scene.shift)
    return matrix


def rows_of(scene: Scene) -> tuple[Rows, float]:
    """A table with the scene's Gram matrix, and the radius of a ball that contains its rows.

    Each row stands for many people, so its norm exceeds one. Sensitivities grow with the square of the radius, so a
    noise of multiplier / radius^2 equals that of rows in the unit ball.
    """
    longest = math.sqrt(float(scene.gram[0]))
    if scene.shift is not None:
        longest = max(longest, float(np.linalg.norm(scene.shift)))
    return _table_of(np.sqrt(scene.gram), scene.shift), max(1.0, longest * (1 + 1e-9))


def _table_of(axes: Array, shift: Array | None) -> Rows:
    """The rows with these lengths along the axes, (d,), and the shift as one more row. Both forms have the same numbers."""
    if len(axes) <= _FEW_COLUMNS:
        # A sparse matrix of so few columns takes longer to make than to multiply with.
        table = np.diag(axes)
        return DenseRows(table if shift is None else np.vstack([table, shift]))
    import scipy.sparse as sp

    sparse = sp.diags_array(axes).tocsr()
    return SparseRows(sp.csr_array(sparse if shift is None else sp.vstack([sparse, sp.csr_array(shift[None, :])])))


def leading_under_noise(
    values: Array, shift: Array | None, *, scale: float, rank: int, noise: Noise, blocks: int = BLOCKS
) -> tuple[Array, Array]:
    """The `rank` largest eigenvalues, (rank,), and their vectors, (d, rank), of A = diag(`values`) + shift shift^T +
    N.

    N = (M + M^T) / 2, where M, (d, d), has independent entries of size `scale`: what `Gaussian` adds to a symmetric
    matrix. N is never stored. Block Lanczos from the first axes needs only products N X. They are drawn when they are
    needed, with the law that they would have had. It stops after at most `blocks` blocks.

    Proof. N has the same law in every orthonormal basis. Let N Q be known for an orthonormal Q, chosen block by block
    from what was known before. Let X be orthonormal with Q^T X = 0, chosen from N Q.
    - In a basis [Q, X, Z] the known entries are the columns of Q and, by symmetry, its rows.
    - All others are independent of them, with variance scale^2 on the diagonal and scale^2 / 2 off it. This holds for
      all Q and X, because each was fixed before the entries in question were seen (by induction over blocks).
    - So N X = Q (N Q)^T X + X S + (I - Q Q^T - X X^T) g scale / sqrt(2). Here S is new and symmetric, of that law,
      and g, (d, p), is new and standard normal.
    This is exact. Only Lanczos stops early, when more blocks would change next to nothing.

    >>> found, vectors = leading_under_noise(np.arange(50.0, 0, -1) ** 2, None, scale=0.01, rank=2, noise=Noise.seeded(1))
    >>> np.abs(vectors[:2]).round(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    dim = len(values)
    width = min(dim, max(_WIDER * rank, rank + _BEYOND))
    block: Array = np.eye(dim, width)
    span, known, image = np.empty((dim, 0)), np.empty((dim, 0)), np.empty((dim, 0))
    share, best = -1.0, float(values[:rank].sum())
    while True:
        drawn = _product(span, known, block, scale, noise)
        whole = values[:, None] * block + drawn
        if shift is not None:
            whole += np.outer(shift, shift @ block)
        span, known, image = np.hstack([span, block]), np.hstack([known, drawn]), np.hstack([image, whole])
        small = span.T @ image
        eigenvalues, rotation = np.linalg.eigh((small + small.T) / 2)
        vectors = span @ rotation[:, ::-1][:, :rank]
        before, share = share, float(values @ np.square(vectors).sum(axis=1)) / best
        room = dim - span.shape[1]
        settled = abs(share - before) <= _STILL and span.shape[1] >= 3 * width
        if room == 0 or settled or span.shape[1] >= blocks * width:
            return eigenvalues[::-1][:rank], signed(vectors)
        rest = whole - span @ (span.T @ whole)
        block = orthonormal(rest)[:, : min(width, room)]
        # Orthogonalise a second time: where little was left after the first, rounding errors along `span` are large.
        block = orthonormal(block - span @ (span.T @ block))


def _product(span: Array, known: Array, block: Array, scale: float, noise: Noise) -> Array:
    """N X for X = `block`, (d, p), given N Q = `known` for Q = `span`, as in the proof above."""
    drawn = normals(noise, block.shape) * (scale / math.sqrt(2))
    drawn -= span @ (span.T @ drawn)
    drawn -= block @ (block.T @ drawn)
    square = normals(noise, (block.shape[1], block.shape[1])) * scale
    drawn += block @ ((square + square.T) / 2)
    drawn += span @ (known.T @ block)
    return drawn
