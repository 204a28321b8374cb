"""Numbers in, numbers out: kernels, subspaces, merges and the ways to compare two of them. Knows nothing of privacy."""

from eigenveil.linalg.compare import (
    align_procrustes,
    align_signs,
    captured_variance,
    first_overlap,
    projection_distance,
    sines,
)
from eigenveil.linalg.kernel import Array, blas_threads, complement, orthonormal, signed, thin_svd, top_eigen
from eigenveil.linalg.subspace import Subspace, merge, merge_all

__all__ = [
    "Array",
    "Subspace",
    "align_procrustes",
    "align_signs",
    "blas_threads",
    "captured_variance",
    "complement",
    "first_overlap",
    "merge",
    "merge_all",
    "orthonormal",
    "projection_distance",
    "signed",
    "sines",
    "thin_svd",
    "top_eigen",
]
