"""Numbers in, numbers out: factorisations, subspaces and how to merge and compare them, exact products, graphs.

Everything above calls it. It knows nothing of privacy and imports `errors` only.
"""

from eigenveil.core.threads import Array
from eigenveil.linalg.blas import blas_threads, complement, orthonormal, signed, thin_svd, top_eigen
from eigenveil.linalg.sketch import Sketch, merge_many, merge_sketches
from eigenveil.linalg.subspace import (
    Subspace,
    align_procrustes,
    align_signs,
    captured_variance,
    expected_captured_variance,
    merge,
    merge_all,
    merged_edge,
    norm_edge,
    product_edge,
    sines,
    singular_edge,
    spiked_edge,
    symmetric_edge,
)

__all__ = [
    "Array",
    "Sketch",
    "Subspace",
    "align_procrustes",
    "align_signs",
    "blas_threads",
    "captured_variance",
    "complement",
    "expected_captured_variance",
    "merge",
    "merge_all",
    "merge_many",
    "merge_sketches",
    "merged_edge",
    "norm_edge",
    "orthonormal",
    "product_edge",
    "signed",
    "sines",
    "singular_edge",
    "spiked_edge",
    "symmetric_edge",
    "thin_svd",
    "top_eigen",
]
