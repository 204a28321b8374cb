"""The papers: what they publish, their methods as printed, and other code that exists for comparison only.

No guarantee rests on anything here. Commands, the audit and benchmarks import it, and nothing else may. It may import the
estimators and all below them.
"""

import numpy as np

from eigenveil.linalg import Subspace, signed, thin_svd
from eigenveil.linalg.subspace import check_merge

__all__ = ["basic_merge", "faster_merge"]


def basic_merge(left: Subspace, right: Subspace, *, rank: int, forget: float = 1.0, enhance: float = 1.0) -> Subspace:
    """Slow reference for `merge`: the SVD of [forget U1 S1, enhance U2 S2] (FPCA supplement, Alg. 4).

    >>> basic_merge(Subspace.of(np.eye(2)[:1], rank=1), Subspace.of(np.eye(2)[1:] * 2, rank=1), rank=1).values.tolist()
    [2.0]
    """
    check_merge(left, right, rank, forget, enhance)
    stacked = np.hstack([forget * left.basis * left.values, enhance * right.basis * right.values])
    vectors, values = thin_svd(stacked, rank=min(rank, *stacked.shape))
    return Subspace(vectors, values)


def faster_merge(left: Subspace, right: Subspace, *, rank: int, forget: float = 1.0, enhance: float = 1.0) -> Subspace:
    """Slow reference for `merge`: QR of the stack, then the SVD of its small factor (FPCA supplement, Alg. 5).

    >>> faster_merge(Subspace.of(np.eye(2)[:1], rank=1), Subspace.of(np.eye(2)[1:] * 2, rank=1), rank=1).values.tolist()
    [2.0]
    """
    check_merge(left, right, rank, forget, enhance)
    basis, small = np.linalg.qr(np.hstack([forget * left.basis * left.values, enhance * right.basis * right.values]))
    rotation, values, _ = np.linalg.svd(small, full_matrices=False)
    rank = min(rank, len(values))
    return Subspace(signed(basis @ rotation[:, :rank]), values[:rank])
