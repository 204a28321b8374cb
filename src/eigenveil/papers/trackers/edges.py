"""What all baselines share: checking rows, drawing a start basis, and the empty answer.

Rows are used as they are, around zero: no baseline centers or scales them.
"""

from typing import Any, Final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, orthonormal
from eigenveil.trackers import require_rows

__all__ = ["REPAIR", "admit", "nothing", "read_only", "require_rank", "start_basis"]

# Each rank-one update loses orthogonality by one rounding. A basis is made orthonormal again after this many.
REPAIR: Final = 64

# Beyond these limits, sums of squares overflow or lose digits to underflow.
_LARGEST = 1e140
_SMALLEST = 1e-125

# Synthetic rows from `default_rng(seed)` often begin with a basis drawn like ours. With the same numbers, a tracker would start
# at the answer. This keeps the two streams of numbers apart.
_APART = 0x57A27


def require_rank(rank: int, dim: int | None = None) -> None:
    """Refuse a rank below one, and one above `dim` once that is known.

    >>> require_rank(2, 3)
    """
    require(rank >= 1, f"rank must be at least 1, got {rank}")
    require(dim is None or dim >= rank, f"rank must be at most dim = {dim}, got {rank}")


def admit(rows: Any, dim: int, *, gaps: bool = False) -> Array:
    """A copy of `rows`, (b, dim), as float64, or a `ValueError` unless all are finite; NaN is accepted if `gaps` are allowed.

    Numbers so small that their squares underflow become zero.

    >>> admit(np.array([[1, 2]]), 2).tolist()
    [[1.0, 2.0]]
    """
    require_rows(rows, dim)
    array = np.asarray(rows)
    require(array.dtype.kind in "biuf", f"rows must be a dense array of real numbers, got dtype {array.dtype}")
    numbers = array.astype(np.float64)
    sizes = np.abs(numbers)
    require(gaps or not np.isnan(sizes).any(), "rows contain NaN; fill or drop such rows first")
    # `fmax` ignores NaN, which marks a gap here.
    largest = np.fmax.reduce(sizes, axis=None, initial=0.0)
    require(bool(largest < np.inf), "rows contain infinity; fill or drop such rows first")
    require(bool(largest < _LARGEST), f"rows contain numbers above {_LARGEST:.0e}, which are too large to square")
    numbers[sizes < _SMALLEST] = 0.0
    return np.ascontiguousarray(numbers)


def start_basis(dim: int, *, rank: int, seed: int) -> Array:
    """A random orthonormal basis, (dim, rank), the same for the same `seed`, read-only.

    >>> start_basis(3, rank=2, seed=0).shape
    (3, 2)
    """
    return read_only(orthonormal(np.random.default_rng([seed, _APART]).standard_normal((dim, rank))))


def read_only(array: Array) -> Array:
    """`array` itself, made read-only.

    >>> read_only(np.zeros(1)).flags.writeable
    False
    """
    array.setflags(write=False)
    return array


def nothing(dim: int) -> Subspace:
    """The subspace of rank 0 in `dim` dimensions.

    >>> nothing(3).basis.shape
    (3, 0)
    """
    return Subspace(np.zeros((dim, 0)), np.zeros(0))
