"""The private trackers: exact where nothing is added, charged as they say, and made of released numbers only."""

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Block
from eigenveil.core.unit import Neighbours
from eigenveil.errors import BudgetExceeded
from eigenveil.linalg import Array
from eigenveil.trackers import NOTHING_ASKED, EnergyBounds, GramTracker, SketchTracker, SlicedTracker, SumTerms, TreeTracker
from laws.streams.every_tracker import same, snapshot
from trackers.listening import Deaf, Listening
from trackers.offline_answers import agree, fading_weights, falling, offline, run, scatter_of

DIM = 8
AnySketchTracker: TypeAlias = SketchTracker[Any]
Make: TypeAlias = Callable[[SumTerms], AnySketchTracker]
MAKES: dict[str, Make] = {
    "gram": lambda terms: GramTracker(2, terms),
    "sliced, one column": lambda terms: SlicedTracker(rank=2, terms=terms, oversample=DIM, columns=1),
    "sliced, three columns": lambda terms: SlicedTracker(rank=2, terms=terms, oversample=DIM, columns=3),
    "sliced, all columns": lambda terms: SlicedTracker(rank=2, terms=terms, oversample=DIM, columns=DIM),
    "sliced, columns left open": lambda terms: SlicedTracker(rank=2, terms=terms, oversample=DIM),
    "tree": lambda terms: TreeTracker(2, terms, horizon=40),
}
each = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())


def terms_of(radius: float = math.inf, dim: int = DIM, center_at: Array | None = None, **choices: Any) -> SumTerms:
    """Public terms of a stream of `dim` columns."""
    return SumTerms(domain=Domain(dim=dim, radius=radius, center=center_at), **choices)


def noisy(multiplier: float = 2.0, *, epsilon: float = 1e4, seed: int = 0) -> Gaussian:
    """Noise from a seed, and a ledger that can pay for much."""
    return Gaussian(multiplier=multiplier, ledger=Ledger(epsilon=epsilon, delta=1e-6), noise=Noise.seeded(seed))


@each
@pytest.mark.parametrize("forget", [1.0, 0.8])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
def test_without_noise_every_way_is_the_offline_answer_after_every_block(
    make: Make, forget: float, center: bool, store: Callable[[Any], Any]
) -> None:
    rows = store(falling(130, DIM))
    tracker = make(terms_of(forget=forget, center=center))
    state = tracker.start(DIM)
    for number, start in enumerate(range(0, 130, 7)):
        state = tracker.step(state, rows[start : start + 7], NOTHING_ASKED)
        # Synchronising in between, or not, is all one.
        shown = tracker.sync(state, NOTHING_ASKED)
        state = shown if number % 3 else state
        seen = min(start + 7, 130)
        agree(tracker.sketch(shown), rows[:seen], fading_weights(seen, cut=7, forget=forget), center=center)


@each
def test_rows_are_cut_to_the_ball_around_the_center_first(make: Make) -> None:
    rows, middle = falling(60, DIM, mean=0.0) * 3, np.full(DIM, 0.5)
    terms = terms_of(2.0, center_at=middle)
    state = run(make(terms), rows, cut=9)
    unit = terms.domain.unit
    assert unit is not None
    inside = terms.domain.whole(Block(rows), unit=unit) * unit + middle
    assert 10 < (np.linalg.norm(rows - middle, axis=1) > 2).sum() < 60
    # Rows for the sum, and sparse rows, are rounded elsewhere: by half a unit in each of eight columns, of 2^16 in a radius.
    agree(make(terms).sketch(state), inside, rtol=2.0**-16)
    sparse = run(make(terms), sp.csr_array(rows), cut=9)
    agree(make(terms).sketch(sparse), inside, rtol=2.0**-14)


@pytest.mark.parametrize("columns", [1, 3, 5, 30])
def test_slices_hold_all_there_is_where_the_rank_does(columns: int) -> None:
    """Products of rank 3 in 30 columns, with room for no more than 3 directions."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((80, 3)) @ rng.standard_normal((3, 30))
    tracker = SlicedTracker(rank=2, terms=terms_of(dim=30, center=False), oversample=1, columns=columns)
    agree(tracker.sketch(run(tracker, rows, cut=11)), rows, center=False, rtol=1e-8)


def series_of(mechanism: Gaussian) -> dict[str, tuple[int, int, float, tuple[float, ...]]]:
    """What its ledger knows of slots."""
    assert isinstance(mechanism.ledger, Ledger)
    return mechanism.ledger.series()


@each
def test_no_rows_change_nothing_and_cost_nothing(make: Make) -> None:
    tracker, mechanism = make(terms_of(3.0)), noisy()
    state = run(tracker, falling(20, DIM), cut=5, mechanism=mechanism)
    charges, series = mechanism.ledger.charges, series_of(mechanism)
    for nothing in (np.empty((0, DIM)), sp.csr_array((0, DIM))):
        assert same(tracker.sync(tracker.step(state, nothing, mechanism), mechanism), state)
    assert (mechanism.ledger.charges, series_of(mechanism)) == (charges, series)


@each
def test_what_is_shown_is_made_of_released_numbers_only(make: Make) -> None:
    """The same releases, whatever the rows: the same sketch, rank and floor, to the last bit."""
    shown = []
    for rows in (falling(90, DIM, seed=1), falling(90, DIM, seed=2) * 40, np.zeros((90, DIM))):
        tracker, deaf = make(terms_of(3.0, adapt=EnergyBounds(0.02, 0.3), forget=0.9)), Deaf()
        state = tracker.start(DIM)
        for start in range(0, 90, 10):
            state = tracker.step(state, rows[start : start + 10], deaf)
            if start == 50:
                state = tracker.sync(state, deaf)
        # The last blocks of a `GramTracker` are held back: they leave no trace in what is shown.
        shown.append(snapshot((tracker.sketch(state), tracker.rank_of(state), tracker.noise_floor(state))))
    assert same(shown[0], shown[1]) and same(shown[0], shown[2])


def test_before_a_release_neither_sketch_nor_rank_move() -> None:
    tracker = GramTracker(5, terms_of(3.0, adapt=EnergyBounds(0.3, 0.4)))
    first = run(tracker, falling(40, DIM), cut=10, mechanism=noisy())
    assert tracker.rank_of(first) < 5
    state = first
    for start in range(5):
        state = tracker.step(state, falling(10, DIM, seed=start) * 100, noisy())
        assert same(tracker.sketch(state), tracker.sketch(first))
        assert tracker.rank_of(state) == tracker.rank_of(first)
        assert tracker.noise_floor(state) == tracker.noise_floor(first)
    assert tracker.subspace(tracker.start(DIM)).rank == 0


def test_a_synchronisation_is_one_charge_however_many_there_are() -> None:
    for most in (1, 4):
        mechanism = noisy(2.0)
        tracker = GramTracker(2, terms_of(3.0, person_blocks=most))
        state = tracker.start(DIM)
        for number in range(12):
            for _ in range(3):
                state = tracker.step(state, falling(5, DIM), mechanism)
            assert len(mechanism.ledger.charges) == (2 if number else 0)
            state = tracker.sync(state, mechanism)
            assert same(tracker.sync(state, mechanism), state)
        assert [charge.label for charge in mechanism.ledger.charges] == ["increment: products", "increment: sum"]
        assert mechanism.ledger.spent_mu == pytest.approx(0.5, rel=1e-12)
        ((name, (slot, per_person, _, _)),) = series_of(mechanism).items()
        assert (name, slot, per_person) == ("stream: increments", 11, 1)
        # All of a person's rows may be in one increment, so the noise is for that many, and the price for one.
        assert state.public.gram_noise == pytest.approx(12 * (most * 9.0 * 2.0) ** 2 / 0.95 / 2)
        assert tracker.cost == 1


@pytest.mark.parametrize("columns", [1, 3, DIM])
@pytest.mark.parametrize("most", [1, 3])
def test_a_block_is_charged_once_and_not_per_slice(columns: int, most: int) -> None:
    mechanism = noisy(2.0)
    tracker = SlicedTracker(rank=2, terms=terms_of(3.0, person_blocks=most), columns=columns)
    run(tracker, falling(70, DIM), cut=10, mechanism=mechanism)
    assert mechanism.ledger.spent_mu == pytest.approx(math.sqrt(most) / 2, rel=1e-12)
    ((name, (slot, per_person, now, _)),) = series_of(mechanism).items()
    assert (name, slot, per_person) == ("stream: blocks", 6, most)
    assert now == pytest.approx(0.25)
    assert tracker.cost == most
    heard = Listening(noisy(2.0))
    run(tracker, falling(70, DIM), cut=10, mechanism=heard)
    assert [label for label, *_ in heard.heard] == ["block: sum", "block: products"] * 7


@pytest.mark.parametrize("neighbours", [Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE])
def test_noise_is_scaled_to_one_persons_rows(neighbours: Neighbours) -> None:
    """Of products B^2 or sqrt(2) B^2 for one row, and m times that where a release may hold m of them; of sums B or 2B."""
    replace = neighbours is Neighbours.REPLACE_ONE
    by_gram, by_sum = 9.0 * (math.sqrt(2) if replace else 1.0), 3.0 * (2 if replace else 1)
    terms = terms_of(3.0, neighbours=neighbours, person_blocks=3)
    rows_in_it = {"increment": 3, "block": 1, "stretch of 1 block": 1, "stretch of 2 blocks": 2, "stretch of 4 blocks": 3}
    for make in MAKES.values():
        heard = Listening(noisy())
        run(make(terms), falling(50, DIM), cut=10, mechanism=heard)
        for label, _, sensitivity, _ in heard.heard:
            what, _, part = label.partition(": ")
            one = by_gram if part == "products" else by_sum
            assert sensitivity == pytest.approx(rows_in_it[what] * one)


@pytest.mark.parametrize("horizon", [1, 2, 5, 8, 13])
def test_a_tree_releases_each_block_once_per_level_at_most(horizon: int) -> None:
    rows, heard = falling(3 * horizon, DIM), Listening(NOTHING_ASKED)
    tracker = TreeTracker(2, terms_of(center=False), horizon=horizon)
    run(tracker, rows, cut=3, mechanism=heard)
    seen = np.zeros(horizon, dtype=int)
    for number, (label, slot, _, public) in enumerate(heard.heard, start=1):
        length = number & -number
        level = length.bit_length() - 1
        assert label == f"stretch of {length} block{'s' * (length > 1)}: products"
        assert slot is not None
        assert (slot.series, slot.number, slot.per_person) == (f"stream: level {level}", number >> level, 1)
        stretch = rows[3 * (number - length) : 3 * number]
        assert np.allclose(public, stretch.T @ stretch)
        seen[number - length : number] += 1
    assert len(heard.heard) == horizon
    assert seen.max() <= tracker.levels == tracker.cost == horizon.bit_length()


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize("horizon", [3, 7, 8])
def test_the_cost_of_a_tree_covers_whoever_is_in_any_blocks(most: int, horizon: int) -> None:
    """By brute force over all places of one person's rows: squares of rows over noise, added up over all stretches."""
    terms = terms_of(3.0, person_blocks=most)
    tracker = TreeTracker(2, terms, horizon=horizon)
    heard = Listening(noisy())
    run(tracker, falling(horizon, DIM), cut=1, mechanism=heard)
    stretches = [
        ((number - (number & -number), number), sensitivity / terms.gram_sensitivity())
        for number, (_, _, sensitivity, _) in enumerate(heard.heard[::2], start=1)
    ]
    worst = max(
        sum((sum(low <= place < high for place in places) / noise_for) ** 2 for (low, high), noise_for in stretches)
        for places in combinations(range(horizon), min(most, horizon))
    )
    assert worst <= tracker.cost * (1 + 1e-12)
    assert heard.through.ledger.spent_mu <= math.sqrt(tracker.cost) / 2 * (1 + 1e-12)  # type: ignore[attr-defined]
    if most == 1:
        # What rounding adds to a sensitivity, in so few columns, is less than this.
        assert worst >= (tracker.levels if horizon == 8 else 1) * (1 - 1e-8)


def test_beyond_the_horizon_nothing_is_released_and_nothing_changes() -> None:
    tracker, mechanism = TreeTracker(2, terms_of(3.0), horizon=3), noisy()
    state = run(tracker, falling(30, DIM), cut=10, mechanism=mechanism)
    before, charges, series = snapshot(state), mechanism.ledger.charges, series_of(mechanism)
    with pytest.raises(ValueError, match="reached its horizon of 3 blocks, so nothing more can be released"):
        tracker.step(state, falling(10, DIM), mechanism)
    assert same(state, before)
    assert (mechanism.ledger.charges, series_of(mechanism)) == (charges, series)


@each
def test_a_ledger_that_cannot_pay_stops_the_release_and_the_state_stays(make: Make) -> None:
    tracker, poor = make(terms_of(3.0)), noisy(0.5, epsilon=0.1)
    state = tracker.start(DIM)
    with pytest.raises(BudgetExceeded):
        tracker.sync(tracker.step(state, falling(10, DIM), poor), poor)
    assert same(state, tracker.start(DIM))
    assert poor.ledger.charges == ()


@each
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_not_finite_cost_nothing(make: Make, bad: float) -> None:
    tracker, mechanism = make(terms_of()), Listening(NOTHING_ASKED)
    state = run(tracker, falling(10, DIM), cut=5)
    before, rows = snapshot(state), falling(5, DIM)
    rows[2, 2] = bad
    with pytest.raises(ValueError, match="rows must be finite, and not too large to square"):
        tracker.step(state, rows, mechanism)
    assert same(state, before) and mechanism.heard == []


@pytest.mark.parametrize("forget", [1.0, 0.7])
@pytest.mark.parametrize("name", ["gram", "sliced, columns left open", "tree"])
def test_the_noise_floor_is_just_above_the_noise(name: str, forget: float) -> None:
    """Nothing but noise is released of rows that are zero."""
    dim, ratios = 100, []
    for seed in range(5):
        terms = terms_of(3.0, dim=dim, center=False, forget=forget)
        tracker: AnySketchTracker = SlicedTracker(rank=2, terms=terms)
        if name != "sliced, columns left open":
            tracker = GramTracker(2, terms) if name == "gram" else TreeTracker(2, terms, horizon=16)
        heard = Listening(noisy(seed=seed))
        state = tracker.start(dim)
        for _ in range(11):
            state = tracker.sync(tracker.step(state, np.zeros((2, dim)), heard), heard)
        ratios.append(tracker.sketch(state).subspace.values[0] ** 2 / tracker.noise_floor(state))
    # The floor is exceeded once in a hundred looks. Blocks that fade count for more there than they do.
    assert (0.7 if name.startswith("sliced") and forget < 1 else 0.8) < np.mean(ratios) < 1.0


def test_a_gram_tracker_moves_its_ball_to_where_the_mean_is_found() -> None:
    """Rows half way out in the ball, which reach out of it: the first increment is cut, the rest around a better center."""
    rng = np.random.default_rng(0)
    mean = np.r_[6.0, np.zeros(DIM - 1)]
    rows = mean + rng.standard_normal((4000, DIM)) * np.r_[1.0, 0.5, np.full(DIM - 2, 0.1)]
    tracker, mechanism = GramTracker(2, terms_of(7.0)), noisy(0.02, epsilon=1e6)
    state = tracker.sync(tracker.step(tracker.start(DIM), rows[:2000], mechanism), mechanism)
    assert state.center is not None and np.linalg.norm(state.center - mean) < 0.3
    state = tracker.sync(tracker.step(state, rows[2000:], mechanism), mechanism)
    assert np.linalg.norm(tracker.sketch(state).mean - mean) < 0.2
    scatter, _, _ = offline(rows)
    assert np.abs(scatter_of(tracker.sketch(state)) - scatter).max() < 0.2 * np.trace(scatter)
    # Without noise the ball stays where it is put.
    assert run(tracker, rows, cut=100).center is None


@pytest.mark.parametrize("seed", range(8))
def test_a_release_of_a_few_rows_does_not_carry_the_ball_away(seed: int) -> None:
    """The mean of five rows is all noise, which says nothing about where the rows to come will lie."""
    tracker = GramTracker(2, SumTerms(domain=Domain(dim=10, radius=4.0)))
    rng = np.random.default_rng(seed)
    mechanism = Gaussian(multiplier=4.0, ledger=Ledger(epsilon=math.inf, delta=1e-6), noise=Noise.seeded(seed))
    state = tracker.start(10)
    for count in (5, 10_000, 10_000):
        rows = rng.standard_normal((count, 10)) * ([1.5, 1.0] + [0.1] * 8)
        state = tracker.sync(tracker.step(state, rows, mechanism), mechanism)
        assert state.center is None or np.linalg.norm(state.center) < 0.1
    assert np.abs(tracker.subspace(state).basis[:2]).max(axis=0).min() > 0.99
