"""Numbers in, numbers out: factorisations, subspaces and how to merge and compare them, exact products, graphs.

Everything above calls it. It knows nothing of privacy and may import `errors` only.
"""

from eigenveil.linalg.compare import (
    align_procrustes,
    align_signs,
    captured_variance,
    first_overlap,
    found_share,
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
    "found_share",
    "merge",
    "merge_all",
    "orthonormal",
    "projection_distance",
    "signed",
    "sines",
    "thin_svd",
    "top_eigen",
]
