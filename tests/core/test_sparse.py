"""Sparse products in pieces are the sparse products, to the last bit, whatever the pieces and threads."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core import rows as sparse
from eigenveil.core.rows import csr_piece, sparse_times


@pytest.mark.parametrize("kind", [np.float64, np.int64])
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 40),
    width=st.integers(1, 5),
    piece=st.sampled_from([1, 7, 1 << 17]),
)
def test_pieces_are_the_product_to_the_last_bit(kind: Any, seed: int, count: int, width: int, piece: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((count, 6)) * 1e3 * (rng.random((count, 6)) < 0.4)
    matrix, right = sp.csr_array(values).astype(kind), (rng.standard_normal((6, width)) * 1e3).astype(kind)
    for worth in (0, 1 << 22):
        found = np.full((count, width), -1, dtype=kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sparse, "_PIECE", piece)
            patch.setattr(sparse, "_WORTH_A_THREAD", worth)
            sparse_times(matrix, right, found.__setitem__)
        assert found.tobytes() == (matrix @ right).tobytes()


def test_a_piece_shares_the_data_of_the_whole() -> None:
    matrix = sp.csr_array(np.arange(12.0).reshape(4, 3))
    piece = csr_piece(matrix, slice(1, 3))
    assert np.shares_memory(piece.data, matrix.data) and np.shares_memory(piece.indices, matrix.indices)
    assert piece.toarray().tolist() == [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]
    assert csr_piece(matrix, slice(4, 4)).shape == (0, 3)
