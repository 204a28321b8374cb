"""Factorisations: orthonormal to the last digits on hostile input, and each fast path equal to the plain one."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator
from threadpoolctl import threadpool_info

from eigenveil.core.sums import spectral_norm
from eigenveil.linalg import Array, complement, orthonormal, signed, sines, thin_svd, top_eigen
from eigenveil.linalg import blas as kernel
from eigenveil.linalg.blas import blas_threads
from linalg.bases import basis_of, defect, generators, outside


def graded(dim: int, rank: int, condition: float) -> Array:
    """A matrix, (dim, rank), with singular values from one down to 1 / condition."""
    rng = np.random.default_rng(0)
    return (basis_of(dim, rank, rng) * np.geomspace(1, 1 / condition, rank)) @ basis_of(rank, rank, rng).T


def kahan(rank: int, sine: float, seed: int) -> Array:
    """Kahan's matrix, (5 rank, rank), turned: nearly singular, which the diagonal of its triangular factor hides."""
    upper = np.eye(rank) - np.sqrt(1 - sine**2) * np.triu(np.ones((rank, rank)), 1)
    graded_upper: Array = sine ** np.arange(rank)[:, None] * upper
    return basis_of(5 * rank, rank, np.random.default_rng(seed)) @ graded_upper


MATRICES = {
    "tall": graded(200, 5, 10.0),
    "condition 1e7": graded(200, 5, 1e7),
    "condition 1e14": graded(200, 5, 1e14),
    "rank deficient": graded(60, 3, 2.0)[:, [0, 1, 2, 0, 1]],
    "columns of size 1 to 1e-150": graded(60, 4, 2.0) * [1.0, 1e-50, 1e-100, 1e-150],
    "huge": graded(60, 3, 2.0) * 1e250,
    "tiny": graded(60, 3, 2.0) * 1e-250,
    "zero": np.zeros((30, 3)),
    "one column": graded(30, 1, 1.0),
    "one entry": np.array([[-2.0]]),
    "square": graded(9, 9, 1e3),
    "nearly square": graded(9, 8, 1e3),
    "no columns": np.zeros((7, 0)),
}


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES.keys())
def test_orthonormal_spans_the_columns_whatever_their_condition(matrix: Array) -> None:
    basis = orthonormal(matrix)
    assert basis.shape == matrix.shape
    assert defect(basis) < 1e-13
    assert outside(matrix, basis) < 1e-13


@pytest.mark.parametrize("rank", [40, 60, 80, 100])
@pytest.mark.parametrize("sine", [0.8, 0.85, 0.9, 0.95])
def test_orthonormal_is_not_fooled_by_a_hidden_condition(rank: int, sine: float) -> None:
    for seed in range(3):
        matrix = kahan(rank, sine, seed)
        basis = orthonormal(matrix)
        assert defect(basis) < 1e-13
        # Where the quick way still serves, it loses a few digits of the span to the inverse of the triangular factor.
        assert outside(matrix, basis) < 1e-10


@given(generators(), st.integers(1, 12))
def test_orthonormal_by_cholesky_spans_what_householder_spans(rng: Generator, rank: int) -> None:
    matrix = rng.standard_normal((80, rank))
    assert sines(orthonormal(matrix), np.linalg.qr(matrix)[0]).max() < 1e-12


@given(generators(), st.integers(0, 5), st.integers(0, 4), st.integers(0, 4))
def test_complement_is_what_the_basis_lacks(rng: Generator, rank: int, inside: int, fresh: int) -> None:
    dim = 14
    whole = basis_of(dim, rank + fresh, rng)
    basis, news = whole[:, :rank], whole[:, rank:]
    matrix = np.hstack([basis @ rng.standard_normal((rank, inside)), news @ rng.standard_normal((fresh, fresh)), news])
    matrix = matrix[:, rng.permutation(matrix.shape[1])]
    rest = complement(matrix, basis)
    assert rest.shape == (dim, fresh)
    assert np.abs(basis.T @ rest).max(initial=0.0) < 1e-14
    assert defect(np.hstack([basis, rest])) < 1e-13
    assert outside(matrix, np.hstack([basis, rest])) < 1e-12


@pytest.mark.parametrize(("tilt", "kept"), [(1e-14, 0), (1e-12, 0), (1e-8, 1), (1e-4, 1)])
def test_complement_drops_rounding_noise_and_keeps_small_directions(tilt: float, kept: int) -> None:
    whole = basis_of(20, 5, np.random.default_rng(1))
    basis, fresh = whole[:, :4], whole[:, 4:]
    rest = complement(basis[:, :1] + tilt * fresh, basis)
    assert rest.shape[1] == kept
    assert defect(np.hstack([basis, rest])) < 1e-13
    if kept:
        # What was lost by subtraction limits the direction itself, not its orthogonality.
        assert outside(fresh, rest) < 1e-15 / tilt


@given(generators(), st.integers(1, 6), st.integers(1, 6))
def test_signed_makes_the_largest_entry_positive_and_forgets_signs(rng: Generator, dim: int, rank: int) -> None:
    vectors = rng.standard_normal((dim, rank))
    turned = signed(vectors)
    assert np.array_equal(np.abs(turned), np.abs(vectors))
    assert (turned.max(axis=0) == np.abs(vectors).max(axis=0)).all()
    assert np.array_equal(signed(vectors * rng.choice([-1.0, 1.0], rank)), turned)


@given(generators(), st.integers(1, 9), st.integers(1, 6))
def test_signed_goes_by_the_first_of_several_entries_of_the_same_size(rng: Generator, dim: int, rank: int) -> None:
    vectors = rng.integers(-2, 3, (dim, rank)).astype(np.float64)
    first = np.abs(vectors).argmax(axis=0)
    flipped = vectors[first, np.arange(rank)] < 0
    assert np.array_equal(signed(vectors), vectors * np.where(flipped, -1.0, 1.0))


@pytest.mark.parametrize("dim", [299, 300, 301])
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray])
def test_top_eigen_takes_two_paths_to_one_answer(
    dim: int, layout: Callable[[Array], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(dim)
    noise = rng.standard_normal((dim, dim))
    matrix = np.diag(100.0 / np.arange(1, dim + 1)) + (noise + noise.T) / 100
    matrix = layout(matrix)
    before = matrix.copy()
    given_values, given_vectors = top_eigen(matrix, rank=4)
    for limit in (dim - 1, dim):
        monkeypatch.setattr(kernel, "_SMALL", limit)
        values, vectors = top_eigen(matrix, rank=4)
        assert np.allclose(values, given_values, rtol=1e-12)
        assert np.abs(vectors - given_vectors).max() < 1e-10
        assert np.abs(matrix @ vectors - vectors * values).max() < 1e-11
        assert np.allclose(values, np.linalg.eigvalsh(matrix)[::-1][:4], rtol=1e-12)
    assert np.array_equal(matrix, before)


@given(generators(), st.integers(1, 12), st.data())
def test_top_eigen_is_the_whole_decomposition_cut_short(rng: Generator, dim: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, dim))
    noise = rng.standard_normal((dim, dim))
    matrix = noise + noise.T
    values, vectors = top_eigen(matrix, rank=rank)
    assert defect(vectors) < 1e-12
    assert np.allclose(values, np.sort(np.linalg.eigvalsh(matrix))[::-1][:rank], atol=1e-12)
    assert np.abs(matrix @ vectors - vectors * values).max() < 1e-11
    assert np.array_equal(vectors, signed(vectors))


@given(generators(), st.integers(1, 9), st.integers(1, 9), st.data())
def test_thin_svd_gives_the_best_approximation(rng: Generator, dim: int, count: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, min(dim, count)))
    matrix = rng.standard_normal((dim, count))
    vectors, values = thin_svd(matrix, rank=rank)
    assert defect(vectors) < 1e-12
    everything = np.sqrt(np.maximum(np.linalg.eigvalsh(matrix @ matrix.T)[::-1], 0.0))
    assert np.allclose(values, everything[:rank], atol=1e-7)
    # Eckart and Young: what is left has the size of the singular values left out.
    left = np.linalg.norm(matrix - vectors @ (vectors.T @ matrix)) ** 2
    assert left == pytest.approx(np.square(everything[rank:]).sum(), abs=1e-10)
    assert np.array_equal(vectors, signed(vectors))


@given(generators(), st.integers(1, 20), st.integers(1, 20), st.integers(-250, 250))
def test_spectral_norm_is_numpys_and_never_below_it(rng: Generator, dim: int, rank: int, exponent: int) -> None:
    matrix = rng.standard_normal((dim, rank))
    true = float(np.linalg.norm(matrix, 2)) * 10.0**exponent
    found = spectral_norm(matrix * 10.0**exponent)
    assert true * (1 - 1e-14) <= found <= true * (1 + 1e-12)


def test_blas_threads_are_limited_inside_the_block_only() -> None:
    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    with blas_threads(1):
        import scipy.linalg  # noqa: F401  Brings a BLAS of its own, after the first were found.
    with blas_threads(2):
        before = threads()
        assert set(before) == {2}
        for asked in (1, 0):
            with blas_threads(asked):
                assert threads() == [1] * len(before)
        assert threads() == before


@pytest.mark.parametrize(("dim", "rank"), [(3, 2), (64, 5), (65, 60), (200, 7), (400, 9)])
def test_overwriting_gives_the_same_eigenvectors(dim: int, rank: int) -> None:
    rows = np.random.default_rng(dim).standard_normal((2 * dim, dim))
    gram = rows.T @ rows
    values, vectors = top_eigen(gram.copy(), rank=rank)
    spent_values, spent_vectors = top_eigen(gram.copy(), rank=rank, overwrite=True)
    np.testing.assert_allclose(spent_values, values, rtol=1e-12)
    assert np.linalg.norm(spent_vectors @ spent_vectors.T - vectors @ vectors.T) < 1e-9
