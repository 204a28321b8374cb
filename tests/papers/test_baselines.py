"""What each baseline guarantees beyond the laws: bounds, missing entries, energy, convergence; and each against its formula."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.linalg import Array, Subspace, sines
from eigenveil.papers.trackers import BlockPower, FrequentDirections, Grouse, Oja, Spirit
from eigenveil.trackers import NOTHING_ASKED, Tracker
from laws.streams.every_tracker import run

BASELINES: list[Tracker[Any]] = [FrequentDirections(3), Grouse(3), Grouse(3, 2.0), Spirit(3), Oja(3), BlockPower(3)]


def planted(count: int, dim: int, rank: int, *, noise: float, seed: int) -> tuple[Array, Array]:
    """Rows whose coordinates in a random basis have unit variance, plus noise; and the basis."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dim, rank)))[0]
    rows = rng.standard_normal((count, rank)) @ basis.T + noise * rng.standard_normal((count, dim))
    return rows, basis


# --- Frequent Directions


def tail(rows: Array, rank: int) -> float:
    """|| A - A_k ||_F^2."""
    return float(np.square(np.linalg.svd(rows, compute_uv=False)[rank:]).sum())


@given(
    seed=st.integers(0, 2**32),
    dim=st.integers(2, 25),
    count=st.integers(1, 120),
    size=st.integers(2, 12),
    decay=st.sampled_from([0.0, 0.5, 2.0]),
    cut=st.sampled_from([1, 5, 200]),
)
def test_frequent_directions_keeps_its_bounds(seed: int, dim: int, count: int, size: int, decay: float, cut: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, dim)) * np.arange(1.0, dim + 1) ** -decay
    tracker = FrequentDirections(rank=1, sketch=size)
    sketch = run(tracker, rows, cut=cut).sketch
    assert len(sketch) < 2 * size
    gap = np.linalg.eigvalsh(rows.T @ rows - sketch.T @ sketch)
    rounding = 1e-9 * float(np.square(rows).sum())
    assert gap[0] >= -rounding
    for rank in range(min(size, dim)):
        assert gap[-1] <= tail(rows, rank) / (size - rank) + rounding
        if 1 <= rank <= len(sketch):
            top = Subspace.of(sketch, rank=rank).basis
            left = float(np.square(rows - rows @ top @ top.T).sum())
            assert left <= tail(rows, rank) * size / (size - rank) + rounding


def test_cutting_off_instead_of_lowering_would_break_the_bound() -> None:
    size, dim = 4, 12
    strong = 3.0 * np.eye(dim)[:size]
    rows = np.vstack([strong, np.tile(np.eye(dim)[size], (200, 1))])
    bound = tail(rows, 0) / size

    def error(sketch: Array) -> float:
        return float(np.linalg.norm(rows.T @ rows - sketch.T @ sketch, 2))

    cut_off = np.zeros((0, dim))
    for row in rows:
        # The obvious streaming SVD: no room for what comes in small pieces.
        _, values, vectors = np.linalg.svd(np.vstack([cut_off, row]), full_matrices=False)
        cut_off = values[:size, None] * vectors[:size]
    assert error(run(FrequentDirections(1, sketch=size), rows, cut=7).sketch) <= bound
    assert error(cut_off) > bound


def test_frequent_directions_is_exact_while_the_buffer_lasts() -> None:
    rows, _ = planted(11, 20, 4, noise=0.3, seed=1)
    tracker = FrequentDirections(3)
    found, truth = tracker.subspace(run(tracker, rows, cut=4)), Subspace.of(rows, rank=3)
    np.testing.assert_allclose(found.values, truth.values, rtol=1e-12)
    assert found.sines(truth).max() < 1e-9


# --- GROUSE


def test_grouse_follows_its_formula() -> None:
    rows, _ = planted(80, 10, 3, noise=0.2, seed=2)
    rows[np.random.default_rng(3).random(rows.shape) < 0.3] = np.nan
    for tracker in (Grouse(3), Grouse(3, step_size=0.5)):
        state = run(tracker, rows[:30], cut=30)
        basis = state.basis
        for count, row in enumerate(rows[30:], start=state.n_rows + 1):
            there = ~np.isnan(row)
            w = np.linalg.pinv(basis[there]) @ row[there]
            p, r = basis @ w, np.zeros(10)
            r[there] = row[there] - p[there]
            sigma = np.linalg.norm(r) * np.linalg.norm(p)
            angle = np.arctan(np.linalg.norm(r) / np.linalg.norm(p))
            if tracker.step_size is not None:
                angle = tracker.step_size / count * sigma
            turned = (np.cos(angle) - 1) * p / np.linalg.norm(p) + np.sin(angle) * r / np.linalg.norm(r)
            basis = basis + np.outer(turned, w) / np.linalg.norm(w)
        after = tracker.subspace(run(tracker, rows[30:], cut=9, state=state))
        assert sines(after.basis, np.linalg.qr(basis)[0]).max() < 1e-9


def test_a_greedy_step_takes_the_row_into_the_span() -> None:
    rows, _ = planted(20, 15, 3, noise=1.0, seed=4)
    tracker = Grouse(3)
    space = tracker.subspace(run(tracker, rows, cut=20))
    assert np.linalg.norm(rows[-1] - space.basis @ space.project(rows[-1])) < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_grouse_finds_the_space_from_half_of_the_entries(seed: int) -> None:
    rows, basis = planted(2000, 40, 3, noise=0.0, seed=seed)
    rows[np.random.default_rng([seed, 1]).random(rows.shape) < 0.5] = np.nan
    tracker = Grouse(3)
    found = tracker.subspace(run(tracker, rows, cut=100))
    assert sines(found.basis, basis).max() < 1e-6
    # Gaps taken for zeros lead elsewhere.
    wrong = tracker.subspace(run(tracker, np.nan_to_num(rows), cut=100))
    assert sines(wrong.basis, basis).max() > 0.1


def test_grouse_learns_nothing_from_rows_without_entries() -> None:
    tracker = Grouse(2)
    state = run(tracker, np.full((5, 6), np.nan), cut=2)
    assert tracker.subspace(state).rank == 0
    # One entry is fewer than the directions, and fits any of them.
    one = np.full((1, 6), np.nan)
    one[0, 0] = 1.0
    np.testing.assert_allclose(tracker.step(state, one, NOTHING_ASKED).basis, state.basis, atol=1e-12)


# --- SPIRIT


def test_spirit_follows_its_formula() -> None:
    rows, _ = planted(90, 12, 3, noise=0.3, seed=5)
    tracker = Spirit(3, forget=0.9, energy=None)
    state = run(tracker, rows[:40], cut=40)
    basis, weights, energies = state.basis.copy(), state.weights.copy(), state.energies
    for row in rows[40:]:
        x = row.copy()
        for i in range(3):
            w = basis[:, i].copy()
            y = w @ x
            weights[i] = 0.9 * weights[i] + y**2
            basis[:, i] = w + y / weights[i] * (x - y * w)
            x = x - y * basis[:, i]
        basis = np.linalg.qr(basis)[0]
        energies = 0.9 * energies + (row @ basis) ** 2
    after = run(tracker, rows[40:], cut=7, state=state)
    assert sines(after.basis, basis).max() < 1e-9
    np.testing.assert_allclose(after.weights, weights, rtol=1e-9)
    np.testing.assert_allclose(after.energies, energies, rtol=1e-9)


def signals(counts: list[int], *, length: int, dim: int, seed: int) -> Array:
    """A stream of as many signals as each of `counts` says, for `length` rows each; noise has 3.5% of the energy."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dim, max(counts))))[0]
    parts = []
    for count in counts:
        size = np.sqrt(0.035 * count / (0.965 * dim))
        parts.append(rng.choice([-1.0, 1.0], (length, count)) @ basis[:, :count].T)
        parts[-1] += size * rng.standard_normal((length, dim))
    return np.vstack(parts)


@pytest.mark.parametrize("seed", range(3))
def test_spirit_adapts_to_the_number_of_signals(seed: int) -> None:
    rows = signals([2, 9, 1], length=400, dim=40, seed=seed)
    tracker, narrow = Spirit(20), Spirit(2)
    state, few = tracker.start(40), narrow.start(40)
    for part, (fewest, most) in zip(np.split(rows, 3), [(2, 6), (8, 20), (1, 6)], strict=True):
        # Ten times the memory of the tracker, 1 / (1 - forget), after the change.
        state = run(tracker, part[:250], cut=250, state=state)
        ranks = []
        for block in np.split(part[250:], 15):
            state = tracker.step(state, block, NOTHING_ASKED)
            ranks.append(tracker.subspace(state).rank)
            # A variable too many goes at once, and one too few takes some rows to make up for it.
            assert 0.85 < state.energies.sum() / state.total < 0.99
        # Between the thresholds nothing changes, so that some variables follow noise.
        assert fewest <= np.median(ranks) <= most
    few = run(narrow, rows[:800], cut=100, state=few)
    assert few.energies.sum() / few.total < 0.85


def test_spirit_without_thresholds_or_forgetting_finds_the_top_directions() -> None:
    rows, basis = planted(1500, 30, 3, noise=0.2, seed=6)
    tracker = Spirit(3, forget=1.0, energy=None)
    found, truth = tracker.subspace(run(tracker, rows, cut=100)), Subspace.of(rows, rank=3)
    assert sines(found.basis, basis).max() < 0.1
    np.testing.assert_allclose(found.values, truth.values, rtol=0.05)
    # With the default memory of 25 rows it stays noisy.
    restless = Spirit(3, energy=None)
    assert sines(restless.subspace(run(restless, rows, cut=100)).basis, basis).max() > 0.1


def test_spirit_stays_orthonormal_where_directions_become_dependent() -> None:
    dim = 10
    rows = np.random.default_rng(7).standard_normal((500, dim))
    # As many hidden variables as columns, then all energy along one line.
    tracker = Spirit(dim, forget=0.9, energy=None)
    state = run(tracker, np.vstack([rows, np.outer(rows[:, 0], np.ones(dim))]), cut=50)
    basis = tracker.subspace(state).basis
    np.testing.assert_allclose(basis.T @ basis, np.eye(dim), atol=1e-12)


# --- Oja and the block power method


def test_oja_is_qr_after_a_gradient_step() -> None:
    rows, _ = planted(100, 10, 3, noise=0.3, seed=8)
    tracker = Oja(3)
    state = tracker.start(10)
    basis, captured = state.basis, 0.0
    for row in rows:
        captured += float(np.square(row @ basis).sum())
        eta = 3.0 * 3 / captured
        basis = np.linalg.qr(basis + eta * np.outer(row, row @ basis))[0]
    found = tracker.subspace(run(tracker, rows, cut=11))
    assert sines(found.basis, basis).max() < 1e-9


def test_block_power_is_qr_of_products() -> None:
    rows, _ = planted(103, 10, 3, noise=0.3, seed=9)
    tracker = BlockPower(3, block=25)
    basis = tracker.start(10).basis
    for block in np.split(rows[:100], 4):
        product = block.T @ block @ basis / 25
        basis, triangle = np.linalg.qr(product)
    found = tracker.subspace(run(tracker, rows, cut=8))
    assert sines(found.basis, basis).max() < 1e-9
    np.testing.assert_allclose(found.values**2, 100 * np.linalg.svd(triangle, compute_uv=False), rtol=1e-9)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (Oja(3), Oja(3, rate=0.01)),
        (BlockPower(3, block=400), BlockPower(3, block=3)),
        (FrequentDirections(3, sketch=40), FrequentDirections(3, sketch=3)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("seed", range(3))
def test_a_spiked_covariance_is_found(good: Tracker[Any], bad: Tracker[Any], seed: int) -> None:
    # Three eigenvalues of 1.09 over 0.09: the sample's own directions are off by a sine of about 0.05.
    rows, basis = planted(4000, 50, 3, noise=0.3, seed=seed)
    near, far = (sines(t.subspace(run(t, rows, cut=100)).basis, basis).max() for t in (good, bad))
    assert near < 0.2
    assert far > 0.3


def test_block_power_answers_after_the_first_full_block_and_keeps_what_a_block_does_not_tell() -> None:
    rows, _ = planted(60, 10, 3, noise=0.1, seed=10)
    tracker = BlockPower(3, block=20)
    assert tracker.subspace(run(tracker, rows[:19], cut=5)).rank == 0
    state = run(tracker, rows, cut=7)
    before = tracker.subspace(state)
    empty = tracker.subspace(run(tracker, np.zeros((40, 10)), cut=20, state=state))
    assert empty.sines(before).max() < 1e-12
    # All rows of a block along one direction of the span leave the others where they were.
    line = tracker.subspace(run(tracker, np.tile(before.basis[:, 1], (20, 1)), cut=20, state=state))
    assert line.sines(before).max() < 1e-9
    np.testing.assert_allclose(line.basis[:, 0] @ before.basis[:, 1], 1.0, rtol=1e-12)


# --- Edges


@pytest.mark.parametrize("tracker", BASELINES, ids=repr)
def test_extreme_numbers_leave_a_valid_subspace(tracker: Tracker[Any]) -> None:
    usual, _ = planted(64, 8, 3, noise=0.1, seed=11)
    for scale in (1e-300, 1e-160, 1e-120, 1e120):
        space = tracker.subspace(run(tracker, scale * usual, cut=16))
        assert space.rank == 0 if scale < 1e-125 else space.rank <= 3
    mixed = tracker.subspace(run(tracker, usual * np.tile([1e-130, 1e60, 1e-60, 1.0], 16)[:, None], cut=16))
    np.testing.assert_allclose(mixed.basis.T @ mixed.basis, np.eye(mixed.rank), atol=1e-12)
    with pytest.raises(ValueError, match="too large to square"):
        tracker.step(tracker.start(8), 1e150 * usual, NOTHING_ASKED)


@pytest.mark.parametrize("tracker", [Grouse(3), Oja(3), BlockPower(3)], ids=repr)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_start_is_random_but_not_that_of_rows_made_with_the_same_seed(tracker: Tracker[Any], seed: int) -> None:
    make: Callable[..., Tracker[Any]] = type(tracker)
    one, again = (make(3, seed=seed).start(12).basis for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert sines(one, make(3, seed=seed + 1).start(12).basis).max() > 0.5
    assert sines(one, planted(1, 12, 3, noise=0.0, seed=seed)[1]).max() > 0.5
