"""Power iteration: exact without noise, Ritz vectors right where there is a right answer, shares as stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Exact
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import orthonormal, sines, top_eigen
from eigenveil.methods.base import geometric_shares, ritz
from eigenveil.methods.power import PowerIteration
from eigenveil.protocols.party import run_pooled

EXACT = Exact(because="tests compare with the exact answer")


def test_converges_to_the_top_space() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((500, 30)) * 0.7 ** np.arange(30)
    begin = orthonormal(rng.standard_normal((30, 8)))
    task = PowerIteration(
        domain=Domain(dim=30, radius=1e6, claimed=False),
        neighbours=Neighbours.ADD_REMOVE,
        begin=begin,
        shares=geometric_shares(15, growth=1.6),
    )
    found = run_pooled(task, DenseRows(rows), EXACT)
    values, vectors = top_eigen(rows.T @ rows, rank=4)
    assert sines(found.basis[:, :4], vectors).max() < 1e-6
    np.testing.assert_allclose(found.values[:4], np.sqrt(values), rtol=1e-9)


@pytest.mark.parametrize("width", [1, 3, 5, 6, 10])
def test_ritz_is_exact_on_an_invariant_space(width: int) -> None:
    """When X spans eigenvectors of G, and also when X is everything, the completion is G on that space."""
    rng = np.random.default_rng(width)
    vectors = orthonormal(rng.standard_normal((10, 10)))
    eigenvalues = np.arange(10.0, 0.0, -1.0)
    gram = (vectors * eigenvalues) @ vectors.T
    mixed = vectors[:, :width] @ orthonormal(rng.standard_normal((width, width)))
    found = ritz(mixed, gram @ mixed, rank=width)
    np.testing.assert_allclose(found.values**2, eigenvalues[:width], rtol=1e-10)
    assert sines(found.basis, vectors[:, :width]).max(initial=0.0) < 1e-10


@given(seed=st.integers(0, 2**32), width=st.integers(1, 6))
def test_ritz_is_orthonormal_and_ordered_on_any_product(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    basis = orthonormal(rng.standard_normal((6, width)))
    rank = int(rng.integers(1, width + 1))
    found = ritz(basis, rng.standard_normal((6, width)) * 10.0 ** rng.integers(-8, 8), rank=rank)
    assert found.basis.shape == (6, rank)


@given(rounds=st.integers(1, 40), growth=st.floats(0.2, 5))
def test_shares_sum_to_one_and_grow(rounds: int, growth: float) -> None:
    shares = np.array(geometric_shares(rounds, growth=growth))
    assert shares.sum() == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(shares[1:] / shares[:-1], growth, rtol=1e-9)
