"""Clipped rows in floating point, off the grid: where no privacy is claimed, or where a row is released by itself.

The same clipping as that of `Domain.whole`, before it is rounded to whole numbers.
"""

import math
from abc import abstractmethod

import numpy as np

from eigenveil.core.domain import Domain, Region, SparseBlock
from eigenveil.core.rows import Block
from eigenveil.core.threads import Array

__all__ = ["FloatRegion", "ball_factors", "dense", "moved", "sparse", "to_ball"]


class FloatRegion(Region):
    """A region that clips rows in floating point in its own way."""

    __slots__ = ()

    @abstractmethod
    def moved(self, block: Block, *, out: Array, squared: bool = False) -> tuple[Array, Array]:
        """The centered rows of a dense block, written to `out`, (b, d), and the factor, (b,), that clips each of them."""

    @abstractmethod
    def sparse(self, block: Block, *, squared: bool = False) -> SparseBlock:
        """The clipped rows of a sparse block, in implicit form: no zero is ever stored."""


def dense(region: Region, block: Block, *, out: Array | None = None, squared: bool = False) -> Array:
    """The clipped rows, (b, d), of a dense block, in `out` if given. `squared` says that they are for a product.

    >>> dense(Domain(dim=2, radius=1.0), Block(np.array([[3.0, 4.0], [0.1, 0.0]]))).round(12).tolist()
    [[0.6, 0.8], [0.1, 0.0]]
    """
    rows, factor = moved(region, block, out=np.empty((len(block), region.dim)) if out is None else out, squared=squared)
    rows *= factor[:, None]
    return rows


def moved(region: Region, block: Block, *, out: Array, squared: bool = False) -> tuple[Array, Array]:
    """The centered rows of a dense block, written to `out`, (b, d), and the factor, (b,), that clips each to the radius."""
    if isinstance(region, FloatRegion):
        return region.moved(block, out=out, squared=squared)
    assert isinstance(region, Domain)
    rows, squares = region.measured(block, out)
    return rows, ball_factors(region, squares, block.weights, squared=squared)


def ball_factors(domain: Domain, squares: Array, weights: Array | None, *, squared: bool) -> Array:
    """The factors, (b,), by which `moved` clips dense rows of these squared norms."""
    factor = to_ball(domain, squares)
    if weights is not None:
        factor *= np.sqrt(weights) if squared else weights
    return factor


def sparse(region: Region, block: Block, *, squared: bool = False) -> SparseBlock:
    """The clipped rows of a sparse block, in implicit form: no zero is ever stored."""
    import scipy.sparse as sp

    if isinstance(region, FloatRegion):
        return region.sparse(block, squared=squared)
    assert isinstance(region, Domain)
    values, norms = region.stored_norms(block)
    rows = sp.csr_array((values, block.values.indices, block.values.indptr), shape=block.values.shape)
    factor = to_ball(region, norms) * region.counting(block)
    if block.weights is not None:
        factor *= np.sqrt(block.weights) if squared else block.weights
    rows.data = values * np.repeat(factor, np.diff(block.values.indptr))
    return SparseBlock(rows, factor if region.shifted_center is not None else np.zeros(len(block)))


def to_ball(domain: Domain, squares: Array) -> Array:
    """The factors, (b,), that bring rows of these squared norms into the ball."""
    if math.isinf(domain.radius):
        return np.ones(len(squares))
    with np.errstate(divide="ignore"):
        # The last factor keeps a row that is rounded onto the sphere from landing outside it.
        return np.minimum(1.0, domain.radius / np.sqrt(squares) * (1 - 1e-15))
