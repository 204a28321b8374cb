"""Laws of every tracker: a valid subspace whatever comes, state as a value, bounded memory, and the span of the rows found."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each import each
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Gaussian
from eigenveil.core.noise import Noise
from eigenveil.linalg import Array, Subspace, sines
from eigenveil.trackers import NOTHING_ASKED
from laws.streams.every_tracker import (
    ADAPTS_RANK,
    ALL_TRACKERS,
    CUTS_CHANGE_NOTHING,
    CUTS_CHANGE_ROUNDING,
    NOT_SCALE_FREE,
    RELEASES,
    SINE_LEFT,
    TAKES_GAPS,
    AnyTracker,
    float_count,
    run,
    same,
    snapshot,
)

Factory = Callable[[int], AnyTracker]

DIM, RANK = 12, 3

every_tracker = pytest.mark.parametrize(("name", "make"), ALL_TRACKERS, ids=[name for name, _ in ALL_TRACKERS])


def stream(count: int, seed: int, *, noise: float = 0.1) -> Array:
    """Rows near a random space of three directions of unequal weight."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((DIM, RANK)))[0]
    coordinates = rng.standard_normal((count, RANK)) * [3.0, 2.0, 1.5]
    return np.asarray(coordinates @ basis.T + noise * rng.standard_normal((count, DIM)))


def assert_valid(space: Subspace) -> None:
    """Orthonormal, ordered, finite, and no more directions than asked for."""
    assert space.dim == DIM
    assert space.rank <= RANK
    assert np.isfinite(space.basis).all()
    np.testing.assert_allclose(space.basis.T @ space.basis, np.eye(space.rank), atol=1e-12)
    assert (np.diff(space.values) <= 0).all()
    assert (space.values >= 0).all()


@every_tracker
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32), sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8), noise=st.sampled_from([0.0, 0.1, 5.0])
)
def test_a_subspace_is_orthonormal_and_ordered(name: str, make: Factory, seed: int, sizes: list[int], noise: float) -> None:
    tracker = make(RANK)
    state, rows = tracker.start(DIM), stream(sum(sizes), seed, noise=noise)
    for block in np.split(rows, np.cumsum(sizes)[:-1]):
        state = tracker.step(state, block, NOTHING_ASKED)
        assert_valid(tracker.subspace(state))


@every_tracker
def test_before_any_row_there_is_no_direction(name: str, make: Factory) -> None:
    tracker = make(RANK)
    state = tracker.start(DIM)
    assert tracker.subspace(state).basis.shape == (DIM, 0)
    assert tracker.subspace(tracker.step(state, np.zeros((0, DIM)), NOTHING_ASKED)).basis.shape == (DIM, 0)


@every_tracker
def test_no_rows_change_nothing(name: str, make: Factory) -> None:
    tracker = make(RANK)
    state = run(tracker, stream(50, 1), cut=7)
    assert same(tracker.step(state, np.zeros((0, DIM)), NOTHING_ASKED), state)


@every_tracker
def test_a_step_changes_neither_its_state_nor_its_rows(name: str, make: Factory) -> None:
    tracker, rows = make(RANK), stream(60, 2)
    state = run(tracker, rows, cut=10)
    before, given_rows = snapshot(state), rows.copy()
    for size in (1, 5, 60):
        tracker.subspace(tracker.step(state, rows[:size], NOTHING_ASKED))
        assert same(state, before)
        np.testing.assert_array_equal(rows, given_rows)


@every_tracker
def test_rows_may_change_after_a_step(name: str, make: Factory) -> None:
    tracker, rows = make(RANK), stream(20, 3)
    state = run(tracker, rows, cut=6)
    before = snapshot(state)
    rows[:] = 7.0
    assert same(state, before)


@every_tracker
def test_the_same_stream_twice_gives_the_same_bits(name: str, make: Factory) -> None:
    rows = stream(300, 4)
    one, other = (run(make(RANK), rows.copy(), cut=23) for _ in range(2))
    assert same(one, other)
    assert same(make(RANK).subspace(one), make(RANK).subspace(other))


@every_tracker
def test_going_on_from_a_kept_state_is_going_on(name: str, make: Factory) -> None:
    tracker, rows, others = make(RANK), stream(200, 5), stream(80, 6)
    kept = run(tracker, rows[:120], cut=20)
    straight = run(tracker, rows[120:], cut=20, state=kept)
    run(tracker, others, cut=20, state=kept)
    assert same(run(tracker, rows[120:], cut=20, state=kept), straight)
    assert same(run(tracker, rows, cut=20), straight)


@every_tracker
@each("cut", [1, 7, 64, 1000])
def test_where_the_stream_is_cut_does_not_matter(name: str, make: Factory, cut: int) -> None:
    tracker, rows = make(RANK), stream(300, 7)
    whole, pieces = run(tracker, rows, cut=300), run(tracker, rows, cut=cut)
    if name in CUTS_CHANGE_NOTHING:
        assert same(pieces, whole)
    elif name in CUTS_CHANGE_ROUNDING:
        one, other = tracker.subspace(whole), tracker.subspace(pieces)
        assert sines(one.basis, other.basis).max() < 1e-9
        np.testing.assert_allclose(one.values, other.values, rtol=1e-9)


@every_tracker
def test_memory_is_bounded(name: str, make: Factory) -> None:
    tracker, rows = make(RANK), stream(4000, 8)
    state, sizes = tracker.start(DIM), []
    for block in np.split(rows, 160):
        state = tracker.step(state, block, NOTHING_ASKED)
        sizes.append(float_count(state))
    assert max(sizes[80:]) <= max(sizes[:80])
    assert max(sizes) < 20 * DIM * RANK


@every_tracker
@each("seed", [0, 1, 2])
def test_a_space_that_holds_all_rows_is_found(name: str, make: Factory, seed: int) -> None:
    tracker, rows = make(RANK), stream(2000, seed, noise=0.0)
    found = tracker.subspace(run(tracker, rows, cut=50))
    assert found.rank == RANK or (name in ADAPTS_RANK and found.rank >= 1)
    truth = Subspace.of(rows, rank=RANK)
    assert found.sines(truth).max() < SINE_LEFT.get(name, 1e-9)
    # A space that has nothing to do with the rows would not pass.
    other = Subspace.random(DIM, rank=RANK, rng=np.random.default_rng(99))
    assert other.sines(truth).max() > 0.9


@every_tracker
@each("cut", [1, 16])
@each("kind", ["zero", "constant", "two rows", "one axis at a time", "zero then rows", "rows then zero"])
def test_degenerate_streams_leave_a_valid_subspace(name: str, make: Factory, kind: str, cut: int) -> None:
    usual, zero = stream(60, 9), np.zeros((60, DIM))
    rows = {
        "zero": zero,
        "constant": np.repeat(usual[:1], 60, axis=0),
        "two rows": np.tile(usual[:2], (30, 1)),
        "one axis at a time": np.tile(np.eye(DIM), (5, 1)),
        "zero then rows": np.vstack([zero, usual]),
        "rows then zero": np.vstack([usual, zero]),
    }[kind]
    tracker, state = make(RANK), make(RANK).start(DIM)
    for begin in range(0, len(rows), cut):
        state = tracker.step(state, rows[begin : begin + cut], NOTHING_ASKED)
        assert_valid(tracker.subspace(state))
    if kind == "constant" and name not in NOT_SCALE_FREE:
        found = tracker.subspace(state)
        row = rows[0] / np.linalg.norm(rows[0])
        assert np.linalg.norm(row - found.basis @ found.project(row)) < 1e-9


@every_tracker
@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_the_scale_of_the_rows_does_not_matter(name: str, make: Factory, scale: float) -> None:
    tracker, rows = make(RANK), stream(600, 10)
    usual, scaled = (tracker.subspace(run(tracker, factor * rows, cut=30)) for factor in (1.0, scale))
    assert_valid(scaled)
    if name not in NOT_SCALE_FREE:
        assert scaled.rank == usual.rank
        assert scaled.sines(usual).max() < 1e-6
        np.testing.assert_allclose(scaled.values, scale * usual.values, rtol=1e-6)


@every_tracker
def test_number_types_and_memory_orders_are_all_one(name: str, make: Factory) -> None:
    tracker = make(RANK)
    whole_numbers = np.round(10 * stream(100, 11))
    usual = tracker.subspace(run(tracker, whole_numbers, cut=10))
    for rows in (whole_numbers.astype(np.int64), whole_numbers.astype(np.float32), np.asfortranarray(whole_numbers)):
        space = tracker.subspace(run(tracker, rows, cut=10))
        assert space.sines(usual).max(initial=0.0) < 1e-9


@every_tracker
@each("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_refused_without_a_trace(name: str, make: Factory, bad: float) -> None:
    if name in TAKES_GAPS and math.isnan(bad):
        pytest.skip("NaN marks an entry that was not observed")
    tracker, rows = make(RANK), stream(40, 12)
    state = run(tracker, rows, cut=10)
    before = snapshot(state)
    rows[5, 4], rows[5, 5] = bad, 1234567.5
    with pytest.raises(ValueError, match=r"NaN|infinity|finite") as refusal:
        tracker.step(state, rows, NOTHING_ASKED)
    assert "1234567" not in str(refusal.value)
    assert same(state, before)


@every_tracker
@each("shape", [(4, DIM - 1), (4, DIM + 1), (DIM,), (2, 3, DIM)])
def test_rows_of_another_shape_are_refused(name: str, make: Factory, shape: tuple[int, ...]) -> None:
    tracker = make(RANK)
    state = run(tracker, stream(20, 13), cut=10)
    before = snapshot(state)
    with pytest.raises(ValueError, match="rows must have shape"):
        tracker.step(state, np.zeros(shape), NOTHING_ASKED)
    assert same(state, before)


@every_tracker
def test_noise_is_refused_where_nothing_is_released(name: str, make: Factory) -> None:
    if name in RELEASES:
        pytest.skip("this one has a private form")
    tracker = make(RANK)
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="cannot be private"):
        tracker.step(tracker.start(DIM), stream(5, 14), Gaussian(multiplier=5.0, ledger=ledger, noise=Noise.seeded(1)))
    assert ledger.charges == ()


@every_tracker
def test_a_rank_must_fit(name: str, make: Factory) -> None:
    with pytest.raises(ValueError, match="rank"):
        make(0)
    with pytest.raises(ValueError, match="rank"):
        make(RANK).start(RANK - 1)
    tracker, rows = make(2), np.random.default_rng(15).standard_normal((90, 2))
    space = tracker.subspace(run(tracker, rows, cut=9))
    assert space.rank <= 2
    np.testing.assert_allclose(space.basis.T @ space.basis, np.eye(space.rank), atol=1e-12)
