"""Sparse matrices: what is one, and products with them, some rows at a time.

The whole product is in memory only if the caller keeps it. scipy is loaded by whoever has a sparse matrix, and by nobody else:
a device that follows a stream of dense rows does without its 18 MiB.
"""

import sys
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from eigenveil.linalg.kernel import side_by_side

__all__ = ["csr_piece", "is_sparse", "sparse_times"]

# Numbers of a product that are computed at a time, so that they are still in the cache when they are used. The second number is
# how many multiplications make a second thread worthwhile.
_PIECE, _WORTH_A_THREAD = 1 << 17, 1 << 22


def is_sparse(value: Any) -> bool:
    """Whether this is a sparse matrix or array of scipy.

    >>> is_sparse([[1.0, 0.0]])
    False
    """
    # Nobody can have made one before scipy.sparse was loaded, so asking need not load it.
    loaded = sys.modules.get("scipy.sparse")
    return loaded is not None and bool(loaded.issparse(value))


def sparse_times(matrix: Any, right: NDArray[Any], take: Callable[[slice, NDArray[Any]], None]) -> None:
    """Pass the product of a CSR matrix, (m, d), and `right`, (d, p), to `take`, some rows at a time, in any order and thread.

    `take` gets a slice of the rows and the product there, which it may change. Each row is added up by itself, in the order in
    which its entries are stored. So other rows do not affect it, to the last bit.

    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> found = np.empty((2, 1))
    >>> sparse_times(sp.csr_array(np.eye(2)), np.array([[3.0], [4.0]]), found.__setitem__)
    >>> found.ravel().tolist()
    [3.0, 4.0]
    """
    count, size = matrix.shape[0], max(1, _PIECE // max(right.shape[1], 1))
    pieces = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    most = 2 if matrix.nnz * right.shape[1] >= _WORTH_A_THREAD else 1
    side_by_side(pieces, lambda here: take(here, csr_piece(matrix, here) @ right), most=most)


def csr_piece(matrix: Any, here: slice) -> Any:
    """The rows from `here.start` up to `here.stop` of a CSR matrix, as a CSR matrix that shares its data.

    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> csr_piece(sp.csr_array(np.eye(3)), slice(1, 3)).toarray().tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    import scipy.sparse as sp

    low, high = matrix.indptr[here.start], matrix.indptr[here.stop]
    # Attributes are set one by one, because the constructor copies slices of much larger arrays.
    piece = sp.csr_array((here.stop - here.start, matrix.shape[1]), dtype=matrix.dtype)
    piece.data, piece.indices = matrix.data[low:high], matrix.indices[low:high]
    # The one array that is not shared: row ends are counted from the first row of the piece.
    piece.indptr = matrix.indptr[here.start : here.stop + 1] - low
    return piece
