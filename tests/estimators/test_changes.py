"""Streams that move are noticed from released numbers, and those that do not are left alone; columns that dominate are named."""

from typing import Any, Literal

import numpy as np
import pytest

from eigenveil import FederatedStream, GossipPCA, PrivatePCA, StreamingPCA
from eigenveil.errors import ParameterWarning
from eigenveil.linalg import Array, Subspace
from eigenveil.tasks.levels import Levels

pytestmark = pytest.mark.filterwarnings("ignore::eigenveil.errors.ParameterWarning")
DIM, SLOTS, COUNT, MOVES = 12, 12, 3000, 6
SPREAD = 1 / np.sqrt(np.arange(1, DIM + 1))
PUBLISH: dict[str, dict[str, Any]] = {
    "sync": {},
    "sync, forgetting": {"forget": 0.8},
    "block": {"publish": "block"},
    "continual": {"publish": "continual", "horizon": SLOTS * COUNT},
}


def rows(seed: int, *, moved: float = 0.0, scale: float = 1.0) -> Array:
    turn = np.linalg.qr(np.random.default_rng(9).standard_normal((DIM, DIM)))[0]
    found: Array = scale * (np.random.default_rng(seed).standard_normal((COUNT, DIM)) * SPREAD) @ turn.T + moved
    return found


def words_of(warned: tuple[str, ...]) -> set[str]:
    return {words.split(" of the stream")[0] for words in warned if "of the stream" in words.split(":")[0]}


def streamed(epsilon: float, *, moved: float, scale: float = 1.0, seed: int = 0, **choices: Any) -> list[set[str]]:
    """What was said after each slot."""
    pca = StreamingPCA(1, epsilon=epsilon, delta=1e-6, random_state=seed, block_size=COUNT, **choices)
    said = []
    for slot in range(SLOTS):
        late = slot >= MOVES
        pca.partial_fit(rows(100 * seed + slot, moved=moved * late, scale=scale if late else 1.0))
        said.append(words_of(pca.sync().warnings_))
    return said


@pytest.mark.parametrize("epsilon", [1.0, 0.3])
@pytest.mark.parametrize("way", PUBLISH)
def test_a_stream_that_moves_says_so_at_once_and_not_before(way: str, epsilon: float) -> None:
    said = streamed(epsilon, moved=5.0, **PUBLISH[way])
    assert said[:MOVES] == [set()] * MOVES
    assert said[MOVES:] == [{"The level"}] * (SLOTS - MOVES)


def test_a_stream_that_shrinks_says_so() -> None:
    said = streamed(1.0, moved=0.0, scale=0.2)
    assert said[:MOVES] == [set()] * MOVES
    assert said[MOVES:] == [{"The spread"}] * (SLOTS - MOVES)


@pytest.mark.parametrize("way", PUBLISH)
def test_a_stream_that_stays_is_left_alone(way: str) -> None:
    for seed in range(1, 4):
        assert streamed(1.0, moved=0.0, seed=seed, **PUBLISH[way]) == [set()] * SLOTS


@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_streams_at_many_sites_say_so_too_and_name_no_site(trust: Any) -> None:
    stream = FederatedStream(1, epsilon=1.0, delta=1e-6, random_state=0, slots=SLOTS, row_bound=2.0, trust=trust, max_lateness=1)
    said = []
    for slot in range(SLOTS):
        parts = np.split(rows(slot, moved=5.0 if slot >= MOVES else 0.0), 4)
        # One part is late, and is added to its own slot.
        stream.partial_fit(dict(zip("abcd", parts, strict=True)), away=["c"] if slot == 2 and trust != "masked" else [])
        said.append(words_of(stream.warnings_))
    assert said[:MOVES] == [set()] * MOVES
    assert said[MOVES + 1 :] == [{"The level"}] * (SLOTS - MOVES - 1)


@pytest.mark.parametrize("bound", [12.0, 40.0, 100.0])
def test_a_loose_bound_does_not_hide_a_shift_that_replaces_a_component(bound: float) -> None:
    rng, spread = np.random.default_rng(0), np.array([3.0, 2.0, 1.0, 0.8, 0.6, 0.5, 0.4, 0.3])
    shift = 8 * np.eye(8)[5]
    pca = StreamingPCA(2, epsilon=5.0, delta=1e-6, random_state=0, row_bound=bound, block_size=2000)
    for slot in range(14):
        pca.partial_fit(rng.standard_normal((2000, 8)) * spread + shift * (slot >= 8)).sync()
        # One slot of rows far within the bound may not be clear yet.
        assert words_of(pca.warnings_) == ({"The level"} if slot >= 8 else set()) or slot == 8, slot
    assert abs(pca.components_[0, 5]) > 0.9


def test_a_loose_bound_at_many_sites_hides_no_shift_either() -> None:
    relations: tuple[Literal["zero-out", "add-remove"], ...] = ("zero-out", "add-remove")
    for neighbours in relations:
        stream = FederatedStream(
            2, epsilon=0.3, delta=1e-6, random_state=0, slots=12, row_bound=14.0, max_lateness=1, neighbours=neighbours
        )
        rng, spread = np.random.default_rng(1), np.array([3.0, 2.0, 1.0, 0.8, 0.6, 0.5])
        for slot in range(12):
            own = rng.standard_normal((20000, 6)) * spread + 5 * np.eye(6)[4] * (slot >= 6)
            stream.partial_fit(dict(zip("abcd", np.split(own, 4), strict=True)))
            assert words_of(stream.warnings_) == ({"The level"} if slot >= 7 else set()) or slot == 6, slot


def test_a_shift_along_a_component_that_stays_the_first_turns_nothing() -> None:
    rng, spread = np.random.default_rng(0), np.array([3.0, 2.0, 1.0, 0.8])
    for way, said in ((0, set()), (1, {"The level"}), (3, {"The level"})):
        pca = StreamingPCA(2, epsilon=5.0, delta=1e-6, random_state=0, row_bound=20.0, block_size=3000)
        for slot in range(8):
            pca.partial_fit(rng.standard_normal((3000, 4)) * spread + 6 * np.eye(4)[way] * (slot >= 4)).sync()
        assert words_of(pca.warnings_) == said


def test_a_shift_for_a_few_slots_is_said_as_long_as_it_shows() -> None:
    rng, spread = np.random.default_rng(0), np.array([3.0, 2.0, 1.0, 0.8])
    pca = StreamingPCA(1, epsilon=5.0, delta=1e-6, random_state=0, row_bound=30.0, block_size=3000)
    said = []
    for slot in range(24):
        shift = 12 * np.eye(4)[3] * (4 <= slot < 7)
        pca.partial_fit(rng.standard_normal((3000, 4)) * spread + shift).sync()
        said.append((words_of(pca.warnings_) == {"The level"}, abs(pca.components_[0, 0]) < 0.9))
    assert sum(wrong for _, wrong in said) >= 8
    assert all(told or not wrong for told, wrong in said)


def level(number: int, mean: Array, *, count: float = 1000.0, noise: float = 0.0, counted: float = 0.0) -> Levels:
    energy = count * (float(mean @ mean) + 0.5)
    return Levels.of(
        number, count * mean, energy=energy, weight=count, total_noise=noise, energy_noise=2 * noise, weight_noise=counted
    )


def anything(dim: int, width: int) -> Subspace:
    """Directions of no variance, which any difference turns."""
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((dim, width)))[0]
    return Subspace(basis, np.geomspace(1e-3, 1e-6, width))


@pytest.mark.parametrize("forget", [1.0, 0.8])
@pytest.mark.parametrize("counted", [0.0, 150.0])
def test_the_level_of_the_test_is_kept_among_noise_that_matters(forget: float, counted: float) -> None:
    """Equal means far from the origin, with noise in the sums and in the numbers of rows."""
    rng, dim, alarms = np.random.default_rng(0), 8, 0
    shown, true = anything(dim, 4), np.full(dim, 0.2)
    for _ in range(1500):
        levels: Levels | None = None
        for number in range(6):
            count = 1000 + rng.standard_normal() * counted
            noisy = (1000 * true + rng.standard_normal(dim) * 60) / count
            one = level(number, noisy, count=count, noise=60.0**2, counted=counted**2)
            levels = one if levels is None else levels.times(forget).and_also(one)
        assert levels is not None
        alarms += levels.change(shown, rank=2, radius=1.0, looks=6, centered=False) == "level"
    # One in a hundred over all looks. 40 of 1500 would have a chance of one in a million.
    assert alarms < 40


def test_a_stream_of_many_slots_keeps_few_stretches_and_forgets_no_move() -> None:
    levels: Levels | None = None
    for number in range(400):
        one = level(number, np.full(4, 0.9 * (number >= 200) / 2), noise=25.0**2)
        levels = one if levels is None else levels.and_also(one)
    assert levels is not None
    assert len(levels.last) <= 32
    assert levels.weight.sum() == pytest.approx(400_000)
    assert levels.change(anything(4, 4), rank=1, radius=1.0, looks=400, centered=False) == "level"
    # A late part is added to its own slot, whatever came since.
    late = levels.and_also(level(399, np.full(4, 0.45)))
    assert len(late.last) == len(levels.last)


def sentinels(columns: list[int], share: float) -> Array:
    rng = np.random.default_rng(0)
    found = rng.standard_normal((6000, 8)) / np.sqrt(np.arange(1, 9))
    for column in columns:
        found[rng.random(len(found)) < share, column] = -9999.0
    return found


GIVEN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "random_state": 0}


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_codes_for_missing_values_are_named(share: float) -> None:
    for columns, which in (([2], "Column 3 has"), ([1, 3, 4], "Columns 2, 4 and 5 have")):
        (words,) = PrivatePCA(3, **GIVEN).fit(sentinels(columns, share)).warnings_
        assert words.startswith(which) and "-9999" in words and "--na-values" in words
    if share >= 0.2:
        # A short first block clips fewer, and nothing is wrong.
        stream = StreamingPCA(3, **GIVEN).fit(sentinels([1, 3, 4], share))
        assert any(words.startswith("Columns 2, 4 and 5 have") for words in stream.warnings_)


def test_columns_that_are_alike_are_not_called_far_apart() -> None:
    spread = np.array([5.0, 3.0, 1.0, 0.5, 0.5, 0.5])
    table = np.random.default_rng(0).standard_normal((6000, 6)) * spread
    assert PrivatePCA(2, **GIVEN).fit(table).warnings_ == ()


def test_a_column_with_hardly_any_entries_is_named_from_its_released_count() -> None:
    table = np.random.default_rng(0).standard_normal((6000, 6)) * [3, 2, 1, 1, 1, 1]
    for share, said in ((0.0, True), (0.5, False)):
        torn = table.copy()
        torn[np.random.default_rng(1).random(len(table)) >= share, 4] = np.nan
        parts = dict(zip("abcd", np.split(torn, 4), strict=True))
        terms: dict[str, Any] = {**GIVEN, "missing": "counts"}
        fitted: list[Any] = [
            PrivatePCA(2, **terms).fit(torn),
            StreamingPCA(2, **terms).fit(torn),
            GossipPCA(2, graph="complete", method="covariance", row_bound=6.0, **terms).fit(parts),
            FederatedStream(2, row_bound=6.0, slots=1, **terms).fit([parts]),
        ]
        for pca in fitted:
            assert any(words.startswith("Column 5 has so few entries") for words in pca.warnings_) == said


def test_a_warning_of_a_stream_is_raised_by_sync() -> None:
    pca = StreamingPCA(1, **GIVEN)
    pca.partial_fit(rows(0)).sync()
    with pytest.warns(ParameterWarning, match="The level of the stream has moved"):
        pca.partial_fit(rows(1, moved=9.0)).sync()
