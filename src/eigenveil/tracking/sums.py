"""`Sums`: products and sum of some rows around a fixed center, private until released; and the terms of a private stream.

Adding up is all that a private tracker does with rows before a release. The mean is taken off afterwards, from released
numbers: one center for the whole stream, and one offset from it that gets the more accurate the longer the stream is.
"""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace
from eigenveil.privacy import (
    Bounded,
    Domain,
    Mechanism,
    Neighbours,
    Slot,
    bounded_gram,
    bounded_sum,
    gram_sensitivity,
    sum_sensitivity,
)
from eigenveil.rows import Block, DenseRows, Rows, SparseRows
from eigenveil.tasks import shrunk
from eigenveil.tracking.rank import EnergyBounds
from eigenveil.tracking.sketch import Sketch

__all__ = ["MEAN_SHARE", "Sums", "Terms", "as_block_rows", "sketch_of"]

# Of a release's mu^2, what goes to the sum of rows: the mean needs little.
MEAN_SHARE = 0.05
_CACHED_ROWS = 128


@final
@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The public terms of a private stream.

    Rows are brought into `domain`. A person has at most one row in a block and rows in at most `person_blocks` blocks;
    `neighbours` have the same number of rows. `center` asks for the mean, `forget` and `adapt` are as in `BlockTracker`.
    """

    domain: Domain
    neighbours: Neighbours = Neighbours.ZERO_OUT
    person_blocks: int = 1
    center: bool = True
    forget: float = 1.0
    adapt: EnergyBounds | None = None
    series: str = "stream"

    def __post_init__(self) -> None:
        require(
            self.neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE),
            "neighbours of a stream must be zero-out or replace-one: if a row could be missing, every later block boundary would "
            f"move, got {self.neighbours.value!r}",
        )
        require(self.person_blocks >= 1, f"person_blocks must be at least 1, got {self.person_blocks}")
        require(0 < self.forget <= 1, f"forget must lie in (0, 1], got {self.forget}")

    @property
    def share(self) -> float:
        """Of each release, what goes to the sum of rows."""
        return MEAN_SHARE if self.center else 0.0

    def gram_sensitivity(self, rows: int = 1) -> float:
        """How far a person with `rows` rows can move a sum of products: so many times as far as with one.

        Proof. Their contribution is a sum of `rows` semi-definite matrices, each of Frobenius norm at most B^2 (weights at most
        one), so semi-definite of norm at most rows B^2; the proof of `gram_sensitivity` uses no more than that.
        """
        return rows * gram_sensitivity(self.domain.radius, self.neighbours)

    def sum_sensitivity(self, rows: int = 1) -> float:
        """The same for a sum of rows: the contribution is a vector of norm at most rows B."""
        return rows * sum_sensitivity(self.domain.radius, self.neighbours)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Products, (d, d), and sum, (d,), of rows of total `weight`, and the variances that noise gave their entries."""

    gram: Array
    total: Array
    weight: float
    gram_noise: float = 0.0
    total_noise: float = 0.0

    def __post_init__(self) -> None:
        dim = len(self.total)
        require(self.total.ndim == 1 and self.gram.shape == (dim, dim), "products and sum must be of the same columns")

    def __repr__(self) -> str:
        # These are raw data, and logs print what they are given.
        return f"Sums(dim={len(self.total)})"

    @classmethod
    def none(cls, dim: int) -> "Sums":
        """Of no rows."""
        # Zeros that take no room.
        return cls(np.broadcast_to(np.zeros(()), (dim, dim)), np.zeros(dim), 0.0)

    @classmethod
    def of(cls, rows: Any, terms: Terms) -> "Sums":
        """Of a block of rows, dense or CSR, in the domain: private."""
        return cls.none(terms.domain.dim).and_rows(rows, terms)

    def and_rows(self, rows: Any, terms: Terms) -> "Sums":
        """These, faded by a block, and a block of rows in the domain: private."""
        fade, weight = terms.forget**2, float(rows.shape[0])
        if sp.issparse(rows):
            block = as_block_rows(rows)
            gram = bounded_gram(block, domain=terms.domain, neighbours=terms.neighbours).value
            total = np.zeros(terms.domain.dim)
            if terms.center:
                total = bounded_sum(block, domain=terms.domain, neighbours=terms.neighbours).value
            return self.and_then(Sums(gram, total, weight), fade)
        gram, total = fade * self.gram, fade * self.total
        product = np.empty_like(gram)
        # A few rows at a time stay in the inner cache, and no second block is needed.
        for start in range(0, len(rows), _CACHED_ROWS):
            inside = _inside(rows[start : start + _CACHED_ROWS], terms.domain)
            np.matmul(inside.T, inside, out=product)
            gram += product
            if terms.center:
                total += inside.sum(axis=0)
        return Sums(gram, total, fade * self.weight + weight, fade**2 * self.gram_noise, fade**2 * self.total_noise)

    def and_then(self, later: "Sums", fade: float) -> "Sums":
        """These, faded, and later ones."""
        return Sums(
            _plus(later.gram, self.gram, fade),
            later.total + fade * self.total,
            later.weight + fade * self.weight,
            later.gram_noise + fade**2 * self.gram_noise,
            later.total_noise + fade**2 * self.total_noise,
        )

    def released(self, terms: Terms, mechanism: Mechanism, *, rows: int, label: str, slot: Slot) -> "Sums":
        """The same after they left through `mechanism`, from `slot`; a person has at most `rows` rows in them."""
        by_gram, by_sum = terms.gram_sensitivity(rows), terms.sum_sensitivity(rows)
        share = 1.0 - terms.share
        gram = mechanism.release(
            Bounded(self.gram, by_gram, symmetric=True), label=f"{label}: products", share=share, slot=slot
        )
        total, total_noise = self.total, 0.0
        if terms.center:
            total = mechanism.release(Bounded(self.total, by_sum), label=f"{label}: sum", share=terms.share, slot=slot)
            total_noise = mechanism.scale(by_sum, share=terms.share) ** 2
        # Symmetric noise has half the variance off the diagonal.
        return Sums(gram, total, self.weight, mechanism.scale(by_gram, share=share) ** 2 / 2, total_noise)


def _inside(rows: Any, domain: Domain) -> Array:
    """Dense rows brought into the domain, (b, d)."""
    if math.isinf(domain.radius) and domain.scale is None and domain.low is None:
        # No promise, so nothing to cut.
        return np.asarray(rows, dtype=np.float64) if domain.center is None else rows - domain.center
    return domain.dense(Block(rows))


def _plus(later: Array, earlier: Array, fade: float) -> Array:
    return later + earlier if fade == 1.0 else later + fade * earlier


def as_block_rows(rows: Any) -> Rows:
    """A block of rows as `Rows`, for the sums that are taken of them."""
    return SparseRows(sp.csr_array(rows)) if sp.issparse(rows) else DenseRows(rows)


def as_block(rows: Any) -> Block:
    """A block of rows as one `Block`, sparse ones in canonical form."""
    return next(iter(as_block_rows(rows).blocks(max(1, rows.shape[0]))))


def offset_of(total: Array, weight: float, *, noise: float) -> Array:
    """How far the mean lies from the center, (d,), from a released sum whose entries have variance `noise`."""
    if weight <= 0:
        return np.zeros_like(total)
    return shrunk(total / weight, noise=math.sqrt(noise * len(total)) / weight)


def sketch_of(sums: Sums, center: Array | None, *, rank: int | None = None) -> Sketch:
    """The sketch that released sums around `center`, (d,), amount to: the mean taken off, directions below zero dropped."""
    dim = len(sums.total)
    offset = offset_of(sums.total, sums.weight, noise=sums.total_noise)
    scatter = np.array(sums.gram)
    for start in range(0, dim if offset.any() else 0, _CACHED_ROWS):
        # A strip at a time, so that one more matrix is all this takes.
        scatter[start : start + _CACHED_ROWS] -= np.outer(sums.weight * offset[start : start + _CACHED_ROWS], offset)
    energy = max(float(np.trace(scatter)), 0.0)
    space = Subspace.of_gram(scatter, rank=dim if rank is None else min(rank, dim), overwrite=True)
    return Sketch(space, offset if center is None else center + offset, sums.weight, energy)
