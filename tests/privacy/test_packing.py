"""Symmetric arrays travel as triangles and come back as they were, to the last bit."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.privacy import pack, packed_size, unpack


@given(seed=st.integers(0, 1000), dim=st.integers(1, 30))
def test_packing_comes_back(seed: int, dim: int) -> None:
    value = np.random.default_rng(seed).standard_normal((dim, dim))
    assert np.array_equal(unpack(pack(value, symmetric=False), (dim, dim), symmetric=False), value)
    value = value + value.T
    flat = pack(value, symmetric=True)
    assert flat.shape == (packed_size((dim, dim), symmetric=True),)
    assert flat.tolist() == [value[i, j] for i in range(dim) for j in range(i, dim)]
    assert np.array_equal(unpack(flat, (dim, dim), symmetric=True), value)


def test_packing_copies_and_takes_scalars_and_refuses_other_sizes() -> None:
    value = np.ones(3)
    pack(value, symmetric=False)[:] = 7
    assert value.tolist() == [1, 1, 1]
    assert unpack(pack(np.asarray(2.0), symmetric=False), (), symmetric=False) == 2.0
    with pytest.raises(ValueError, match="6 numbers"):
        unpack(np.zeros(9), (3, 3), symmetric=True)


def test_packing_a_large_matrix_takes_the_room_of_its_answer() -> None:
    value = np.ones((1500, 1500))
    tracemalloc.start()
    flat = pack(value, symmetric=True)
    half = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    unpack(flat, value.shape, symmetric=True)
    whole = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert half < 1.1 * flat.nbytes
    assert whole < 1.1 * (flat.nbytes + value.nbytes)
