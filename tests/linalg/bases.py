"""Bases and rows that the linear algebra tests share, and the defect by which they judge them."""

import numpy as np
from hypothesis import strategies as st
from numpy.random import Generator

from eigenveil.linalg import Array, Subspace


def generators() -> st.SearchStrategy[Generator]:
    """Generators of every seed."""
    return st.builds(np.random.default_rng, st.integers(0, 2**32 - 1))


def basis_of(dim: int, rank: int, rng: Generator) -> Array:
    """A uniformly random orthonormal basis, (dim, rank), by numpy's QR."""
    return np.linalg.qr(rng.standard_normal((dim, rank)))[0]


def rows_of(count: int, dim: int, rng: Generator) -> Array:
    """Rows, (count, dim), whose columns have very different sizes."""
    return rng.standard_normal((count, dim)) * 10.0 ** rng.uniform(-2, 2, dim)


def defect(basis: Array) -> float:
    """How far basis.T @ basis is from the identity."""
    return float(np.abs(basis.T @ basis - np.eye(basis.shape[1])).max(initial=0.0))


def outside(matrix: Array, basis: Array) -> float:
    """The share of `matrix`, (d, p), that does not lie in the span of an orthonormal `basis`, (d, k)."""
    scale = float(np.abs(matrix).max(initial=0.0)) or 1.0
    scaled = matrix / scale
    return float(np.abs(scaled - basis @ (basis.T @ scaled)).max(initial=0.0))


def gram_of(space: Subspace) -> Array:
    """The Gram matrix that a subspace stands for: the same whatever signs and rotations its basis has."""
    return (space.basis * np.square(space.values)) @ space.basis.T
