"""The leading eigenvectors of a large matrix with symmetric noise, without the matrix: noise is drawn where it is looked at."""

import math
from typing import Final

import numpy as np

from eigenveil.linalg import Array, orthonormal, signed
from eigenveil.privacy import Noise

__all__ = ["leading_under_noise"]

# How many times the rank, or beyond it, a block is wide; and how many blocks there are at most.
_WIDER, _BEYOND, BLOCKS = 2, 8, 16
# Blocks are added while the directions found still turn into other eigenvalues by more than this share of those asked for.
_STILL: Final = 5e-4


def leading_under_noise(
    values: Array, shift: Array | None, *, scale: float, rank: int, noise: Noise, blocks: int = BLOCKS
) -> tuple[Array, Array]:
    """The `rank` largest eigenvalues, (rank,), and their vectors, (d, rank), of A = diag(`values`) + shift shift^T + N.

    N = (M + M^T) / 2 for M, (d, d), with independent entries of size `scale`: what `Gaussian` adds to a symmetric matrix. Here
    it is never there. Block Lanczos from the first axes asks for products N X alone, and these are drawn when they are asked
    for, with the law that they would have had. There are at most so many `blocks`.

    Proof. N has the same law in every orthonormal basis. Say that N Q is known for an orthonormal Q, chosen block by block from
    what was known before, and let X be orthonormal with Q^T X = 0, chosen from N Q. In a basis [Q, X, Z] known entries are the
    columns of Q and, by symmetry, its rows; all others are independent of them, with variance scale^2 on the diagonal and
    scale^2 / 2 off it, whatever Q and X are, as each was fixed before the entries in question were looked at (by induction over
    blocks). So N X = Q (N Q)^T X + X S + (I - Q Q^T - X X^T) g scale / sqrt(2), with a new symmetric S of that law and a new
    standard normal g, (d, p). This is exact; what stops early is Lanczos, when more blocks would change next to nothing.

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
        eigenvalues, round_ = np.linalg.eigh((small + small.T) / 2)
        vectors = span @ round_[:, ::-1][:, :rank]
        before, share = share, float(values @ np.square(vectors).sum(axis=1)) / best
        room = dim - span.shape[1]
        settled = abs(share - before) <= _STILL and span.shape[1] >= 3 * width
        if room == 0 or settled or span.shape[1] >= blocks * width:
            return eigenvalues[::-1][:rank], signed(vectors)
        rest = whole - span @ (span.T @ whole)
        block = orthonormal(rest)[:, : min(width, room)]
        # Straightened once more: what was left may lean where it was little.
        block = orthonormal(block - span @ (span.T @ block))


def _product(span: Array, known: Array, block: Array, scale: float, noise: Noise) -> Array:
    """N X for X = `block`, (d, p), given N Q = `known` for Q = `span`, as in the proof above."""
    drawn = noise.normal(block.shape) * (scale / math.sqrt(2))
    drawn -= span @ (span.T @ drawn)
    drawn -= block @ (block.T @ drawn)
    square = noise.normal((block.shape[1], block.shape[1])) * scale
    drawn += block @ ((square + square.T) / 2)
    drawn += span @ (known.T @ block)
    return drawn
