"""Two rounds of sums against FedPower's Alg. 6 as printed, with Y and Q of every row."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Exact
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array, orthonormal, sines
from eigenveil.methods.dr_svd import RandomisedSvd, randomised_width
from eigenveil.protocols.party import run_pooled

EXACT = Exact(because="tests compare with the exact answer")
NEAR = Neighbours.ADD_REMOVE


def printed(rows: Array, omega: Array, rank: int) -> tuple[Array, Array]:
    """FedPower Alg. 6, line by line: right singular vectors, (d, rank), and singular values."""
    lines = rows @ rows.T @ rows @ omega
    across, _ = np.linalg.qr(lines)
    small = across.T @ rows
    _, values, right = np.linalg.svd(small, full_matrices=False)
    return right[:rank].T, values[:rank]


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), dim=st.integers(4, 40), rank=st.integers(1, 4), flat=st.booleans())
def test_is_the_printed_algorithm(seed: int, dim: int, rank: int, flat: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((90, dim)) * (1.0 if flat else 1 / np.sqrt(np.arange(1, dim + 1)))
    omega = rng.standard_normal((dim, randomised_width(dim, rank=rank)))
    task = RandomisedSvd(domain=Domain(dim=dim, radius=math.inf), neighbours=NEAR, begin=orthonormal(omega), rank=rank)
    found = run_pooled(task, DenseRows(rows), EXACT)
    vectors, values = printed(rows, omega, rank)
    np.testing.assert_allclose(found.values, values, rtol=1e-9)
    all_values = printed(rows, omega, min(rank + 1, omega.shape[1]))[1]
    if len(all_values) == rank or values[-1] - all_values[-1] > 1e-3 * values[0]:
        assert sines(found.basis, vectors).max() < 1e-8


def test_sites_add_up() -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((200, 30)) * 0.9 ** np.arange(30)
    omega = rng.standard_normal((30, 11))
    task = RandomisedSvd(domain=Domain(dim=30, radius=math.inf), neighbours=NEAR, begin=orthonormal(omega), rank=5)
    state = task.start()
    while (found := task.result(state)) is None:
        question = task.ask(state)
        task.require_question(question)
        parts = [task.work(question, DenseRows(part), EXACT) for part in np.split(rows, [0, 10, 90])]
        state = task.advance(state, sum(parts[1:], parts[0]), EXACT)
    vectors, values = printed(rows, omega, 5)
    np.testing.assert_allclose(found.values, values, rtol=1e-10)
    assert sines(found.basis, vectors).max() < 1e-8
    assert task.estimate(state) is found


@pytest.mark.parametrize("have", [0, 1, 2])
def test_rows_with_fewer_directions_than_asked_for(have: int) -> None:
    rng = np.random.default_rng(have)
    rows = rng.standard_normal((have, 12)) * np.arange(1, have + 1)[:, None]
    task = RandomisedSvd(
        domain=Domain(dim=12, radius=math.inf), neighbours=NEAR, begin=orthonormal(rng.standard_normal((12, 5))), rank=3
    )
    found = run_pooled(task, DenseRows(rows), EXACT)
    np.testing.assert_allclose(found.values[have:], 0.0, atol=1e-6)
    if have:
        exact = np.linalg.svd(rows)
        np.testing.assert_allclose(found.values[:have], exact[1], rtol=1e-9)
        assert sines(found.basis[:, :have], exact[2][:have].T).max() < 1e-8
