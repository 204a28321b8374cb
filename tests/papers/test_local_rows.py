"""The local baseline: noise of the stated size, an honest guarantee, directions that floors do not change."""

import math
from typing import Any

import numpy as np
import pytest

from eigenveil.core.accounting import Budget
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import Noise, step_of
from eigenveil.core.unit import Neighbours
from eigenveil.linalg import Array, sines, top_eigen
from eigenveil.papers.local_rows import local_rows_pca

BUDGET = Budget(1.0, 1e-5)


def some_peers(count: int = 400) -> list[Array]:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((count, 6)) * 0.4 ** np.arange(6)
    return np.array_split(rows / np.linalg.norm(rows, axis=1, keepdims=True).max(), 4)


def run(peers: list[Array], **more: Any) -> Any:
    given: dict[str, Any] = {"rank": 2, "row_bound": 1.0, "budget": BUDGET, "noise": Noise.seeded(2)} | more
    return local_rows_pca(peers, **given)


def test_almost_no_noise_gives_the_singular_vectors() -> None:
    peers = some_peers()
    found = run(peers, budget=Budget(1e9, 0.5))
    rows = np.vstack(peers)
    values, vectors = top_eigen(rows.T @ rows, rank=2)
    assert sines(found.subspace.basis, vectors).max() < 1e-3
    np.testing.assert_allclose(found.subspace.values, np.sqrt(values), rtol=1e-3)


@pytest.mark.parametrize(("neighbours", "factor"), [(Neighbours.ZERO_OUT, 3.0), (Neighbours.REPLACE_ONE, 6.0)])
def test_the_noise_is_what_the_budget_asks_for(neighbours: Neighbours, factor: float) -> None:
    """Of rows of zeros the Gram matrix is the noise: its trace is within six deviations, which 10% more noise would not be."""
    found = run([np.zeros((5000, 6))] * 2, row_bound=3.0, rank=6, neighbours=neighbours)
    assert found.scale == pytest.approx(factor / BUDGET.mu)
    trace = float(np.square(found.subspace.values).sum()) / found.scale**2 / 60_000
    assert abs(trace - 1) < 6 * math.sqrt(2 / 60_000) < 0.1
    (charge,) = found.guarantee.charges
    assert charge.mu == pytest.approx(BUDGET.mu, rel=1e-12)


def test_rows_are_cut_to_their_bound() -> None:
    long = [np.array([[1e200, 0.0], [0.0, 1e8]])]
    found = run(long, rank=1, budget=Budget(1e9, 0.5))
    assert found.subspace.values[0] == pytest.approx(1.0, abs=1e-2)


def test_taking_the_floor_off_changes_no_direction() -> None:
    plain, debiased = (run(some_peers(40_000), debiased=off, noise=Noise.seeded(4)) for off in (False, True))
    np.testing.assert_array_equal(plain.subspace.basis, debiased.subspace.basis)
    rows = np.vstack(some_peers(40_000))
    true = np.sqrt(top_eigen(rows.T @ rows, rank=2)[0])
    assert (np.abs(debiased.subspace.values - true) < np.abs(plain.subspace.values - true)).all()


def test_the_guarantee_in_words() -> None:
    words = run(some_peers(), noise=Noise.fresh()).guarantee.to_text()
    assert words.startswith("Guarantee: (1, 1e-05)-differential privacy for each person.")
    assert "Each person, who has one row at one peer." in words
    assert "Every row, with noise" in words and "One release: every row (mu " in words
    assert "floating" not in words
    assert not run(some_peers()).guarantee.private


def test_every_row_is_released_in_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in it, hostile numbers too: the numbers that can come out are the same for all tables of this size."""
    released: list[Array] = []

    release = Gaussian.release

    def seen(mechanism: Gaussian, private: Bounded, **more: Any) -> Array:
        released.append(release(mechanism, private, **more))
        return released[-1]

    monkeypatch.setattr(Gaussian, "release", seen)
    rows = np.array([[0.1, -0.2, 0.3], [1e200, 1.0, 0.0], [1e-300, 0.0, -1e308]])
    for table in (rows, np.zeros((3, 3)), rows / 3):
        run([table], row_bound=0.7)
    for noisy in released:
        steps = noisy / step_of(0.7, 9)
        assert np.array_equal(steps, np.rint(steps))
    # The noise is the same in all three, so what is left are the rows, in steps: no longer than the bound, up to the rounding.
    lengths = np.linalg.norm(released[0] - released[1], axis=1)
    assert (lengths <= 0.7 * (1 + 2.0**-12)).all() and lengths[1] > 0.69
