"""How close two subspaces are, and how to align one basis with another.

Bases are only defined up to signs and rotations, so closeness is measured by projectors and angles, never by columns.
"""

import numpy as np

from eigenveil.core.threads import Array

__all__ = [
    "align_procrustes",
    "align_signs",
    "captured_variance",
    "found_share",
    "sines",
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
