"""Symmetric arrays travel as triangles and come back as they were, to the last bit."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core import rows as sparse
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Block, csr_piece, sparse_times
from eigenveil.errors import BudgetExceeded
from eigenveil.privacy.released import pack, packed_side, packed_size, release_packed, unpack
from eigenveil.privacy.sums import add_block, add_packed
from eigenveil.tasks.fit.gaps import PartialBudget


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


def test_a_size_that_no_matrix_has_is_refused() -> None:
    assert [packed_side(size) for size in (0, 1, 3, 501501)] == [0, 1, 2, 1001]
    for size in (2, 4, 501500):
        with pytest.raises(ValueError, match=f"packed into {size} numbers"):
            packed_side(size)


def noisy(carried: float = 0.0) -> Gaussian:
    return Gaussian(multiplier=5.0, ledger=Ledger(epsilon=9.0, delta=1e-6), noise=Noise.seeded(3), existing_multiplier=carried)


MECHANISMS: dict[str, Callable[[], Mechanism]] = {
    "noise": noisy,
    "a part of the noise": lambda: PartialBudget(noisy(), 0.5),
    "noise that is there already": lambda: noisy(5.0),
    "none": lambda: Exact(because="a test"),
}


@pytest.mark.parametrize("kind", MECHANISMS)
# One strip of noise has 256 rows.
@pytest.mark.parametrize("dim", [1, 2, 255, 256, 300, 515])
def test_a_packed_matrix_is_released_as_a_whole_one_to_the_last_bit(dim: int, kind: str) -> None:
    value = np.random.default_rng(dim).standard_normal((dim, dim))
    value += value.T
    value[0, 0] = np.nan
    whole = MECHANISMS[kind]().release(Bounded(value, 3.0, symmetric=True), label="x", share=0.5)
    packed = release_packed(MECHANISMS[kind](), pack(value, symmetric=True), sensitivity=3.0, label="x", share=0.5)
    assert packed.tobytes() == pack(whole, symmetric=True).tobytes()


def test_a_packed_release_is_charged_before_anything_is_changed() -> None:
    mechanism = noisy()
    release_packed(mechanism, np.zeros(6), sensitivity=1.0, label="first")
    assert [(charge.label, charge.mu) for charge in mechanism.ledger.charges] == [("first", 0.2)]
    small, value = Gaussian(multiplier=0.1, ledger=Ledger(epsilon=1.0, delta=1e-6), noise=Noise.seeded(0)), np.ones(6)
    with pytest.raises(BudgetExceeded):
        release_packed(small, value, sensitivity=1.0, label="too much")
    assert value.tolist() == [1.0] * 6


def test_a_packed_release_takes_little_more_than_its_own_memory() -> None:
    value, mechanism = np.ones(packed_size((1001, 1001), symmetric=True)), noisy()
    release_packed(mechanism, np.ones(3), sensitivity=1.0, label="once: it makes tables")
    tracemalloc.start()
    released = release_packed(mechanism, value, sensitivity=1.0, label="x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.shares_memory(released, value)
    # A strip of noise, and what drawing it takes. A whole matrix would be 8 MB.
    assert peak < 5e6


@pytest.mark.parametrize("dim", [1, 40, 255, 256, 300])
@pytest.mark.parametrize("count", [0, 1, 700])
def test_packed_sums_are_those_of_the_whole_matrix(dim: int, count: int) -> None:
    rng, domain = np.random.default_rng(dim), Domain(dim=dim, radius=4.0)
    block = Block(rng.standard_normal((count, dim)), rng.random(count))
    whole = np.ones((dim, dim), np.int64)
    packed = whole[np.triu_indices(dim)]
    add_block(block, domain, gram=whole, total=None)
    add_packed(block, domain, packed)
    assert packed.tolist() == whole[np.triu_indices(dim)].tolist()


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


@pytest.mark.parametrize("kind", [np.float64, np.int64])
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 40), width=st.integers(1, 5), piece=st.sampled_from([1, 7, 1 << 17]))
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
