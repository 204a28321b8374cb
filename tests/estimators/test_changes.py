"""Streams that move are noticed from released numbers, and those that do not are left alone; columns that dominate are named."""

from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedStream, GossipPCA, PrivatePCA, StreamingPCA
from eigenveil.errors import ParameterWarning
from eigenveil.linalg import Array
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
    assert all(words == {"The level"} for words in said[MOVES:]) or way == "continual"
    # In a tree a power of two of blocks is one release, of which only the mean is known.
    assert sum(words == {"The level"} for words in said[MOVES:]) >= SLOTS - MOVES - 1


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
    stream = FederatedStream(
        1, epsilon=1.0, delta=1e-6, random_state=0, slots=SLOTS, row_bound=2.0, trust=trust, window=1
    )
    said = []
    for slot in range(SLOTS):
        parts = np.split(rows(slot, moved=5.0 if slot >= MOVES else 0.0), 4)
        # One part is late, and is added to its own slot.
        stream.partial_fit(dict(zip("abcd", parts, strict=True)), away=["c"] if slot == 2 and trust != "masked" else [])
        said.append(words_of(stream.warnings_))
    assert said[:MOVES] == [set()] * MOVES
    assert said[MOVES + 1 :] == [{"The level"}] * (SLOTS - MOVES - 1)


def level(number: int, mean: Array, *, count: float = 1000.0, noise: float = 0.0) -> Levels:
    energy = count * (float(mean @ mean) + 0.5)
    return Levels.of(
        number, count * mean, energy=energy, weight=count, total_noise=noise, energy_noise=2 * noise, weight_noise=0.0
    )


def test_the_level_of_the_test_is_kept_at_the_edge_of_what_it_may_call_moved() -> None:
    """True means a quarter of the radius apart, where the promise is hardest to keep, among noise that matters."""
    rng, dim, alarms = np.random.default_rng(0), 8, 0
    for _ in range(3000):
        levels: Levels | None = None
        for number in range(6):
            mean = np.zeros(dim)
            mean[0] = 0.25 * (number >= 3)
            noisy = mean + rng.standard_normal(dim) * 60 / 1000
            one = level(number, noisy, noise=60.0**2)
            levels = one if levels is None else levels.and_also(one)
        assert levels is not None
        alarms += levels.change(radius=1.0, looks=6, centered=True) is not None
    # One in a hundred over all looks. 67 of 3000 would have a chance of one in a million.
    assert alarms < 67


def test_a_stream_of_many_slots_keeps_few_stretches_and_forgets_no_move() -> None:
    levels: Levels | None = None
    for number in range(400):
        one = level(number, np.full(4, 0.9 * (number >= 200) / 2), noise=25.0**2)
        levels = one if levels is None else levels.and_also(one)
    assert levels is not None
    assert len(levels.last) <= 32
    assert levels.weight.sum() == pytest.approx(400_000)
    assert levels.change(radius=1.0, looks=400, centered=False) == "level"
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
