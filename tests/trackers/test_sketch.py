"""`BlockTracker` against the offline SVD, hostile rows, forgetting, adaptive rank, merges and memory."""

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator

from each import each
from eigenveil.linalg import Array, Subspace, orthonormal
from eigenveil.trackers import NOTHING_ASKED, BlockTracker, EnergyBounds, Sketch, merge_sketches
from laws.streams.every_tracker import float_count, same, snapshot
from trackers.offline_answers import agree, fading_weights, falling, offline, plain, run, scatter_of

SHAPES = [(300, 6), (40, 40), (5, 30), (2, 9), (1, 4), (60, 25)]
STORES: dict[str, Callable[[Array], Any]] = {
    "dense": np.asarray,
    "Fortran": np.asfortranarray,
    "csr array": sp.csr_array,
    "csr matrix": sp.csr_matrix,
}


@each("center", [True, False])
@each("cut", [1, 3, 7, 25, 1000])
@each(("count", "dim"), SHAPES)
@each("store", STORES.values())
def test_a_sketch_of_every_direction_is_the_offline_answer(
    store: Callable[[Array], Any], count: int, dim: int, cut: int, center: bool
) -> None:
    rows = store(falling(count, dim))
    tracker = BlockTracker(rank=min(2, dim), oversample=dim, center=center)
    agree(tracker.sketch(run(tracker, rows, cut=cut)), rows, center=center)


@given(st.integers(1, 40), st.integers(2, 12), st.integers(0, 9), st.lists(st.integers(0, 9), max_size=9), st.booleans())
def test_a_sketch_is_exact_whenever_it_is_as_wide_as_the_rows(
    count: int, dim: int, rank: int, cuts: list[int], center: bool
) -> None:
    """Rows of any rank, in blocks of any sizes, also empty ones, one after another."""
    rng = np.random.default_rng(count * 100 + dim)
    rows = rng.standard_normal((count, rank)) @ rng.standard_normal((rank, dim)) + center * 5.0
    tracker = BlockTracker(rank=1, oversample=rank, center=center)
    state = tracker.start(dim)
    ends = sorted({min(sum(cuts[: i + 1]), count) for i in range(len(cuts))} | {count})
    for start, stop in zip([0, 0, *ends], [0, *ends], strict=False):
        state = tracker.step(state, rows[start:stop], NOTHING_ASKED)
    agree(tracker.sketch(state), rows, center=center, rtol=1e-8)


HOSTILE: dict[str, Callable[[], Array]] = {
    "zero": lambda: np.zeros((90, 8)),
    "constant": lambda: np.tile(np.arange(8.0), (90, 1)),
    "one row that counts": lambda: np.eye(90, 8, 4) * 7.0,
    "rank one": lambda: np.outer(np.arange(90.0), np.arange(8.0)),
    "two rows in round": lambda: np.tile(falling(2, 8), (45, 1)),
    "zero, then rows": lambda: np.vstack([np.zeros((45, 8)), falling(45, 8)]),
    "rows, then zero": lambda: np.vstack([falling(45, 8), np.zeros((45, 8))]),
    "blocks that share no direction": lambda: np.repeat(np.eye(8), 12, axis=0)[:90],
    "mean moves far": lambda: falling(90, 8) + np.repeat([0.0, 100.0], 45)[:, None],
    "one huge column": lambda: falling(90, 8) * np.r_[1e6, np.ones(7)],
}


@each("cut", [1, 8, 9, 30])
@each("make", HOSTILE.values())
def test_hostile_rows_are_followed_exactly(make: Callable[[], Array], cut: int) -> None:
    for store in (np.asarray, sp.csr_array):
        rows = store(make())
        agree(run(BlockTracker(rank=3, oversample=5), rows, cut=cut).sketch, rows)


@pytest.mark.parametrize("cut", [1, 5, 40, 300])
def test_a_mean_far_out_costs_no_digits_of_the_scatter(cut: int) -> None:
    rows = falling(300, 6, mean=0.0) + 1e8
    sketch = run(BlockTracker(rank=2, oversample=4), rows, cut=cut).sketch
    scatter, mean, _ = offline(rows)
    # The rows themselves are rounded to 1.5e-8, and so is what can be known of them.
    assert np.abs(scatter_of(sketch) - scatter).max() < 1e-6 * np.trace(scatter)
    assert sketch.energy == pytest.approx(np.trace(scatter), rel=1e-6)
    # One rounding of the mean per block, at most.
    assert np.abs(sketch.mean - mean).max() <= math.ulp(1e8) * (2 + 300 / cut)


@each("scale", [1e-140, 1e-100, 1e-20, 1e20, 1e75, 1e100, 1e140])
@each("cut", [4, 60])
@each("oversample", [1, 28])
@each("store", [np.asarray, sp.csr_array])
def test_a_tracker_has_no_favourite_unit(scale: float, cut: int, oversample: int, store: Callable[[Any], Any]) -> None:
    rows = falling(240, 30)
    usual, scaled = (
        run(BlockTracker(rank=2, oversample=oversample), store(rows * unit), cut=cut).sketch for unit in (1.0, scale)
    )
    assert scaled.subspace.sines(usual.subspace).max() < 1e-8
    assert np.allclose(scaled.subspace.values / scale, usual.subspace.values, rtol=1e-9)
    assert scaled.energy / scale / scale == pytest.approx(usual.energy, rel=1e-9)


@pytest.mark.parametrize("dim", [30, 200])
@pytest.mark.parametrize("cut", [13, 50, 400])
def test_a_narrow_sketch_finds_the_directions_that_stand_out(dim: int, cut: int) -> None:
    rng = np.random.default_rng(dim)
    spread = np.r_[9.0, 6.0, 4.0, np.full(dim - 3, 0.1)]
    rows = (rng.standard_normal((1200, dim)) * spread) @ orthonormal(rng.standard_normal((dim, dim))) + 5
    for store in (np.asarray, sp.csr_array):
        tracker = BlockTracker(rank=3)
        state = run(tracker, store(rows), cut=cut)
        truth = Subspace.of(rows - rows.mean(axis=0), rank=3)
        assert tracker.subspace(state).sines(truth).max() < 1e-3
        assert np.allclose(tracker.subspace(state).values, truth.values, rtol=1e-5)
        # Mean, weight and energy lose nothing, however few directions are kept.
        scatter, mean, _ = offline(rows)
        assert state.sketch.weight == 1200
        assert state.sketch.energy == pytest.approx(np.trace(scatter), rel=1e-12)
        assert np.allclose(state.sketch.mean, mean, rtol=1e-12)


@each("forget", [0.999, 0.9, 0.5, 0.01])
@each("center", [True, False])
@each("cut", [1, 4, 20])
def test_forgetting_is_the_svd_of_fading_rows(forget: float, center: bool, cut: int) -> None:
    for store in (np.asarray, sp.csr_array):
        rows = store(falling(100, 7))
        sketch = run(BlockTracker(rank=2, oversample=5, forget=forget, center=center), rows, cut=cut).sketch
        agree(sketch, rows, fading_weights(100, cut=cut, forget=forget), center=center)
    faded = fading_weights(100, cut=cut, forget=forget)
    with pytest.raises(AssertionError):
        # The test can fail: weights that fade like forget^j, not its square, are not these.
        agree(sketch, rows, np.sqrt(faded) if forget < 0.999 else faded * 0.9, center=center)


def fixed_spectrum(alpha: float, count: int, dim: int, rng: Generator) -> Array:
    """Synth(alpha) of FPCA's footnote 2: rows, (count, dim), with singular values i^-alpha."""
    left, right = (orthonormal(rng.standard_normal((size, dim))) for size in (count, dim))
    return (left * np.arange(1.0, dim + 1) ** -alpha) @ right.T


def normal_rows(alpha: float, count: int, dim: int, rng: Generator) -> Array:
    """Synth(alpha) of the supplement, D.1: normal rows, (count, dim), with covariance eigenvalues i^-alpha."""
    spread = np.arange(1.0, dim + 1) ** (-alpha / 2)
    return (rng.standard_normal((count, dim)) * spread) @ orthonormal(rng.standard_normal((dim, dim))).T


def errors_over_time(tracker: BlockTracker, rows: Array, *, cut: int) -> tuple[Array, list[int]]:
    """FPCA (66) after every block, and the rank."""
    state, errors, ranks = tracker.start(rows.shape[1]), [], []
    for stop in range(cut, len(rows) + 1, cut):
        state = tracker.step(state, rows[stop - cut : stop], NOTHING_ASKED)
        space, seen = tracker.subspace(state), rows[:stop]
        errors.append(np.square(seen - space.project(seen) @ space.basis.T).sum() / stop)
        ranks.append(space.rank)
    return np.array(errors), ranks


@pytest.mark.parametrize("synth", [fixed_spectrum, normal_rows])
@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("start", [1, 10])
@pytest.mark.parametrize("forget", [1.0, 0.9])
def test_the_adaptive_error_lies_between_those_of_its_lowest_and_highest_rank(
    synth: Callable[[float, int, int, Generator], Array], alpha: float, start: int, forget: float
) -> None:
    """FPCA supplement, D.1, which expects it and does not prove it.

    Over seeds 0..14 it fails by at most 4e-6, because all these runs are approximate. With forgetting it fails by at most
    0.8%, because error (66) is over all rows, also those that were forgotten.
    """
    rows = synth(alpha, 400, 40, np.random.default_rng(0))
    adapt = EnergyBounds(0.01, 0.1)
    errors, ranks = errors_over_time(BlockTracker(rank=start, forget=forget, adapt=adapt, center=False), rows, cut=20)
    assert np.abs(np.diff([start, *ranks])).max() <= 1
    ends = [
        errors_over_time(BlockTracker(rank=rank, forget=forget, center=False), rows, cut=20)[0]
        for rank in (min(ranks), max(ranks))
    ]
    slack = 1e-4 if forget == 1 else 2e-2
    assert (errors <= np.maximum(*ends) * (1 + slack)).all()
    assert (errors >= np.minimum(*ends) * (1 - slack)).all()
    # (67): no basis of that rank does better than the SVD.
    for error, rank, stop in zip(errors, ranks, range(20, 401, 20), strict=True):
        rest = np.square(np.linalg.svd(rows[:stop], compute_uv=False)[rank:]).sum() / stop
        assert error >= rest * (1 - 1e-9)


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=12), st.integers(1, 12), st.floats(0.01, 0.4))
def test_energy_bounds_move_the_rank_by_one_towards_their_band(sizes: list[float], rank: int, low: float) -> None:
    values, bounds = np.sort(sizes)[::-1], EnergyBounds(low, 2 * low)
    moved, now = bounds.adjusted(rank, values), rank
    if rank > len(values):
        # Too few rows yet to tell.
        assert moved == rank
        return
    assert 1 <= moved <= len(values) and abs(moved - now) <= 1
    total = values[:now].sum()
    if total > 0:
        share = values[now - 1] / total
        wanted = now + 1 if share > 2 * low else now - 1 if share < low else now
        assert moved == min(max(wanted, 1), len(values))


@pytest.mark.parametrize("center", [True, False])
def test_merges_are_exact_in_any_order_while_the_rank_holds_everything(center: bool) -> None:
    parts = [falling(count, 6, seed=count) + count for count in (30, 1, 4, 50)]
    sketches = [run(BlockTracker(rank=6, center=center), part, cut=9).sketch for part in parts]
    for order in permutations(range(4)):
        merged = Sketch.empty(6)
        for index in order:
            merged = merge_sketches(merged, sketches[index], rank=6, center=center)
        agree(merged, np.vstack(parts), center=center)
    left, right = (merge_sketches(sketches[i], sketches[j], rank=6, center=center) for i, j in ((0, 3), (1, 2)))
    agree(merge_sketches(left, right, rank=6, center=center), np.vstack(parts), center=center)


def test_merges_that_cut_keep_mean_weight_and_energy_and_the_directions_that_stand_out() -> None:
    rng = np.random.default_rng(4)
    round_ = orthonormal(rng.standard_normal((40, 40)))
    parts = [(rng.standard_normal((200, 40)) * np.r_[9.0, 5.0, np.full(38, 0.05)]) @ round_ for _ in range(4)]
    sketches = [run(BlockTracker(rank=2), part, cut=50).sketch for part in parts]
    scatter, mean, _ = offline(np.vstack(parts))
    truth = Subspace.of_gram(scatter, rank=2)
    for order in permutations(range(4)):
        merged = sketches[order[0]]
        for index in order[1:]:
            merged = merge_sketches(merged, sketches[index], rank=4, center=True)
        assert merged.weight == 800
        assert merged.energy == pytest.approx(np.trace(scatter), rel=1e-9)
        assert np.allclose(merged.mean, mean, atol=1e-12)
        assert merged.subspace.truncate(2).sines(truth).max() < 1e-3


def test_a_merge_with_nothing_is_nothing() -> None:
    sketch = run(BlockTracker(rank=3), falling(30, 5), cut=7).sketch
    for pair in ((sketch, Sketch.empty(5)), (Sketch.empty(5), sketch)):
        merged = merge_sketches(*pair, rank=5, center=True)
        assert np.abs(scatter_of(merged) - scatter_of(sketch)).max() < 1e-12 * sketch.energy
        assert np.allclose(merged.mean, sketch.mean) and merged.weight == 30
    assert merge_sketches(Sketch.empty(5), Sketch.empty(5), rank=2, center=True).subspace.rank == 0
    with pytest.raises(ValueError, match="streams of 5 and 4 columns cannot be merged"):
        merge_sketches(sketch, Sketch.empty(4), rank=2, center=True)


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("adapt", [None, EnergyBounds(0.01, 0.3)])
def test_a_state_is_a_value_of_bounded_size(store: Callable[[Any], Any], adapt: EnergyBounds | None) -> None:
    dim, rank, oversample = 50, 3, 4
    rows = store(falling(900, dim))
    tracker = BlockTracker(rank=rank, oversample=oversample, adapt=adapt)
    state = tracker.start(dim)
    for start in range(0, 900, 60):
        before, given_rows = snapshot(state), plain(rows)
        after = tracker.step(state, rows[start : start + 60], NOTHING_ASKED)
        assert same(state, before) and np.array_equal(plain(rows), given_rows)
        assert same(tracker.step(after, rows[:0], NOTHING_ASKED), after)
        # Directions and mean, and a handful of numbers: nothing of the block stays behind.
        most = state.rank + oversample
        assert float_count(after) <= dim * (most + 1) + most + 10
        state = after


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_rows_too_large_to_square_are_refused_without_a_trace(bad: float) -> None:
    for store in (np.asarray, sp.csr_array):
        rows = falling(40, 5)
        tracker = BlockTracker(rank=2)
        state = run(tracker, store(rows), cut=10)
        before = snapshot(state)
        rows[3, 3] = bad
        with pytest.raises(ValueError, match="rows must be finite, and not too large to square"):
            tracker.step(state, store(rows), NOTHING_ASKED)
        assert same(state, before)
