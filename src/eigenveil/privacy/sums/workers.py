"""How a sum over rows is shared between threads: the one place that decides, for exact and for floating-point sums."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from eigenveil.data.rows import Block, Rows, block_size
from eigenveil.linalg.kernel import shared_work

__all__ = ["SumWorker", "added_up"]

# Up to this dimension two workers with a matrix each are faster than one with twice the BLAS threads.
_TWO_WORKERS = 2048


class SumWorker(Protocol):
    """One thread's share of a sum over rows. Changes in place."""

    def take(self, block: Block) -> None:
        """Add the rows of a block."""

    def and_other(self, other: Any) -> None:
        """Add the sum of another worker."""


_AnyWorker = TypeVar("_AnyWorker", bound=SumWorker)


def added_up(rows: Rows, make: Callable[[], _AnyWorker], *, dim: int = 0) -> _AnyWorker:
    """A worker that has taken all blocks of `rows`: one for sparse rows or a single block, otherwise the sum of two.

    A worker with a (dim, dim) matrix passes `dim`. Two of them need two sums and two products: four matrices, the most memory
    that is allowed.
    """
    size = block_size(rows)
    several = not rows.sparse and rows.shape[0] > size and dim <= _TWO_WORKERS
    workers = [make() for _ in range(2 if several else 1)]
    shared_work(rows.blocks(size), workers=workers, take=lambda worker, block: worker.take(block))
    # Always in this order, so that floating-point sums have the same bits on every run.
    for other in workers[1:]:
        workers[0].and_other(other)
    return workers[0]
