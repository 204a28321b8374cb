"""`BlockPower`: the power method on a stream. Each block of rows is used for one product and then dropped.

Long blocks make each product accurate; short blocks give more products. Memory is that of two bases.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, complement, thin_svd
from eigenveil.papers.trackers.edges import admit, nothing, read_only, require_rank, start_basis
from eigenveil.trackers import Tracker, require_exact

__all__ = ["BlockPower", "BlockPowerState"]

# Relative to the largest singular value, directions with less than this in a block are rounding.
_ROUNDING = 1e-12


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockPowerState:
    """The `basis`, (d, k), with the `sizes`, (k,), of its product with the last block, and the unfinished `product`, (d, k).

    `blocks` have been finished, and `held` rows of the next one are in the product.
    """

    basis: Array
    sizes: Array
    product: Array
    blocks: int
    held: int


@final
@dataclass(frozen=True, slots=True)
class BlockPower(Tracker[BlockPowerState]):
    """Q <- orthonormal(sum of x x^T Q over a block), with `block` rows: Mitliagkas, Caramanis and Jain (2013), Algorithm 1.

    A block has d rows by default, as in FPCA (supplement, D). Until the first block is full there is no direction. Rows of an
    unfinished block are not in the answer. The division by the number of rows in a block is left out, because it has no effect.
    With s the singular values of the last product and m finished blocks, values are sqrt(m s). Once the span has settled, s
    estimates the top eigenvalues of one block's Gram matrix from below, and all blocks are assumed alike.

    >>> from eigenveil.trackers import NOTHING_ASKED
    >>> tracker = BlockPower(rank=1, block=2)
    >>> state = tracker.step(tracker.start(2), np.tile([[3.0, 4.0]], (4, 1)), NOTHING_ASKED)
    >>> space = tracker.subspace(state)
    >>> space.basis.ravel().round(12).tolist(), space.values.round(12).tolist()
    ([0.6, 0.8], [10.0])
    """

    rank: int
    block: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_rank(self.rank)
        require(
            self.block is None or self.block >= self.rank, f"block must have at least rank = {self.rank} rows, got {self.block}"
        )

    def start(self, dim: int) -> BlockPowerState:
        """A random basis and an empty block."""
        require_rank(self.rank, dim)
        basis = start_basis(dim, rank=self.rank, seed=self.seed)
        return BlockPowerState(basis=basis, sizes=read_only(np.zeros(self.rank)), product=_zero_like(basis), blocks=0, held=0)

    def step(self, state: BlockPowerState, rows: Any, mechanism: Mechanism) -> BlockPowerState:
        """The product with `rows` added, and a new basis for each finished block."""
        require_exact(mechanism, "BlockPower")
        waiting = admit(rows, len(state.basis))
        length = self.block or len(state.basis)
        while len(waiting) > 0:
            # Blocks are counted over the whole stream, so how the caller splits it has no effect.
            taken, waiting = np.split(waiting, [length - state.held])
            product = read_only(state.product + taken.T @ (taken @ state.basis))
            state = BlockPowerState(
                basis=state.basis, sizes=state.sizes, product=product, blocks=state.blocks, held=state.held + len(taken)
            )
            if state.held == length:
                state = _finish(state)
        return state

    def subspace(self, state: BlockPowerState) -> Subspace:
        """The basis after the last full block."""
        if state.blocks == 0:
            return nothing(len(state.basis))
        return Subspace(state.basis, np.sqrt(state.blocks * state.sizes))


def _finish(state: BlockPowerState) -> BlockPowerState:
    """The state after its block: directions that the block does not touch stay unchanged."""
    empty = _zero_like(state.basis)
    # A block of zeros is not counted: values assume that all counted blocks are alike.
    if not state.product.any():
        return BlockPowerState(basis=state.basis, sizes=state.sizes, product=empty, blocks=state.blocks, held=0)
    rank = state.basis.shape[1]
    # The singular vectors have the span that QR would give, and are ordered.
    vectors, sizes = thin_svd(state.product, rank=rank)
    directions = vectors[:, sizes > _ROUNDING * sizes[0]]
    if directions.shape[1] < rank:
        vectors = np.hstack([directions, complement(state.basis, directions)])[:, :rank]
    return BlockPowerState(basis=read_only(vectors), sizes=read_only(sizes), product=empty, blocks=state.blocks + 1, held=0)


def _zero_like(basis: Array) -> Array:
    return read_only(np.zeros(basis.shape))
