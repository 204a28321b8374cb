"""Products that are all kept: exact without noise, `ritz` for one, the slow normal equations, and better than the last."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array, captured_variance, orthonormal, sines, top_eigen
from eigenveil.methods.base import ProductTask, geometric_shares, ritz
from eigenveil.methods.krylov import KeptProducts, _variances, ritz_of_all
from eigenveil.methods.power import PowerIteration
from eigenveil.protocols.party import run_pooled

EXACT = Exact(because="tests compare with the exact answer")
NEAR = Neighbours.ADD_REMOVE


def basis(dim: int, width: int, seed: int) -> Array:
    return orthonormal(np.random.default_rng(seed).standard_normal((dim, width)))


def test_without_noise_it_finds_the_space() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 20)) * 2.0 ** -np.arange(20)
    task = KeptProducts(
        domain=Domain(dim=20, radius=math.inf),
        neighbours=NEAR,
        begin=basis(20, 6, 1),
        shares=geometric_shares(6, growth=1.3),
        rank=3,
    )
    found = run_pooled(task, DenseRows(rows), EXACT)
    values, vectors = top_eigen(rows.T @ rows, rank=3)
    assert sines(found.basis, vectors).max() < 1e-6
    np.testing.assert_allclose(np.square(found.values), values, rtol=1e-9)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), width=st.integers(1, 6), noise=st.sampled_from([0.0, 0.1]))
def test_one_product_alone_is_read_as_ritz_reads_it(seed: int, width: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((50, 8))
    block = basis(8, width, seed)
    product = rows.T @ (rows @ block) + noise * rng.standard_normal(block.shape)
    one, other = ritz_of_all((block,), (product,), (1.0,), rank=1), ritz(block, product, rank=1)
    # The ridge shrinks what lies outside the block more than what lies inside: nothing without noise.
    assert sines(one.basis, other.basis).max() < (1e-7 if noise == 0 else 0.05)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_it_solves_the_normal_equations(seed: int) -> None:
    """The slow, obvious version: G A + A G + c G = B + B^T as one linear system in all entries of G."""
    rng = np.random.default_rng(seed)
    dim, width, shares = 6, 2, (0.2, 0.3, 0.5)
    rows = rng.standard_normal((40, dim)) * [5, 4, 3, 1, 1, 1]
    blocks = tuple(basis(dim, width, seed + round_) for round_ in range(2))
    products = tuple(rows.T @ (rows @ block) + rng.standard_normal(block.shape) for block in blocks)
    relative = np.array(shares[:2]) / shares[0]
    noise, signal = _variances(blocks, products, relative, 2)
    a = sum(r * block @ block.T for r, block in zip(relative, blocks, strict=True))
    b = sum(r * product @ block.T for r, block, product in zip(relative, blocks, products, strict=True))
    eye = np.eye(dim)
    system = np.kron(eye, a) + np.kron(a, eye) + noise / signal * np.eye(dim * dim)
    gram = np.linalg.solve(system, (b + b.T).ravel()).reshape(dim, dim)
    values, vectors = top_eigen((gram + gram.T) / 2, rank=2)
    found = ritz_of_all(blocks, products, shares[:2], rank=2)
    third = top_eigen((gram + gram.T) / 2, rank=3)[0][2]
    if values[1] - third > 1e-3 * values[0]:
        assert sines(found.basis, vectors).max() < 1e-5


def test_the_noise_is_told_from_the_products() -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((500, 200)) * 0.1
    blocks = tuple(basis(200, 20, seed) for seed in range(4))
    relative = np.array([1.0, 1.3, 1.69, 2.197])
    products = tuple(
        rows.T @ (rows @ block) + 7.0 / math.sqrt(r) * rng.standard_normal(block.shape)
        for r, block in zip(relative, blocks, strict=True)
    )
    noise, _ = _variances(blocks, products, relative, 5)
    # 760 independent squares: a standard deviation of 5%.
    assert noise == pytest.approx(49.0, rel=0.25)


def test_a_towering_eigenvalue_does_not_let_noise_pass_for_the_last_direction() -> None:
    """One eigenvalue a hundred times the next three, and those ten times the rest and far above the noise."""
    dim, rank = 60, 4
    frame = basis(dim, dim, 1)
    gram = (frame * np.array([1e4, 1e2, 90.0, 80.0, *[5.0] * (dim - rank)])) @ frame.T
    shares = geometric_shares(4, growth=1.3)
    task = KeptProducts(
        domain=Domain(dim=dim, radius=1.0), neighbours=NEAR, begin=basis(dim, 2 * rank, 2), shares=shares, rank=rank
    )
    for seed in range(5):
        rng, state = np.random.default_rng(seed), task.start()
        while task.result(state) is None:
            block = task.ask(state).arrays[0]
            state = task.update(state, gram @ block + 0.5 * rng.standard_normal(block.shape))
        found = task.result(state)
        assert found is not None
        assert sines(found.basis, frame[:, :rank]).max() < 0.25


def test_keeping_all_products_beats_the_last_one_under_noise() -> None:
    """Twelve pairs at one budget: the mean gain is above four of its standard errors."""
    rng = np.random.default_rng(5)
    dim = 120
    rows = rng.standard_normal((3000, dim)) / np.sqrt(np.arange(1, dim + 1)) * 0.3
    domain = Domain(dim=dim, radius=1.0)
    clipped = rows * np.minimum(1, 1 / np.linalg.norm(rows, axis=1))[:, None]
    gram = clipped.T @ clipped
    gains = []
    for seed in range(12):
        begin, found = basis(dim, 20, seed), []
        tasks: list[ProductTask[Any]] = [
            KeptProducts(domain=domain, neighbours=NEAR, begin=begin, shares=geometric_shares(8, growth=1.3), rank=5),
            PowerIteration(domain=domain, neighbours=NEAR, begin=begin, shares=geometric_shares(4, growth=1.6), rank=5),
        ]
        for task in tasks:
            mechanism = Gaussian(multiplier=2.0, ledger=Ledger(epsilon=math.inf, delta=1e-6), noise=Noise.seeded(seed))
            found.append(captured_variance(gram, run_pooled(task, DenseRows(rows), mechanism).basis))
        gains.append(found[0] - found[1])
    assert np.mean(gains) > 4 * np.std(gains) / math.sqrt(len(gains))
    assert np.mean(gains) > 0.01


def test_it_stops_on_released_numbers_when_they_stand_still() -> None:
    rows = DenseRows(np.diag([9.0, 5.0, 1.0, 0.1, 0.1, 0.1]))
    task = KeptProducts(
        domain=Domain(dim=6, radius=math.inf), neighbours=NEAR, begin=basis(6, 4, 2), shares=(0.05,) * 20, rank=2, tolerance=1e-6
    )
    state = task.start()
    while task.result(state) is None:
        state = task.advance(state, task.work(task.ask(state), rows, EXACT), EXACT)
    assert 2 <= len(state.bases) < 10


def test_values_are_not_shrunk_by_the_ridge() -> None:
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((4000, 60)) * ([0.4, 0.3, 0.25] + [0.05] * 57)
    clipped = rows * np.minimum(1, 1 / np.linalg.norm(rows, axis=1))[:, None]
    truth = top_eigen(clipped.T @ clipped, rank=3)[0]
    found = []
    for seed in range(6):
        mechanism = Gaussian(multiplier=3.0, ledger=Ledger(epsilon=math.inf, delta=1e-6), noise=Noise.seeded(seed))
        task = KeptProducts(
            domain=Domain(dim=60, radius=1.0),
            neighbours=NEAR,
            begin=basis(60, 13, seed),
            shares=geometric_shares(8, growth=1.3),
            rank=3,
        )
        found.append(np.square(run_pooled(task, DenseRows(rows), mechanism).values))
    np.testing.assert_allclose(np.mean(found, axis=0), truth, rtol=0.08)
