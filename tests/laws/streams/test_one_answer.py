"""One site's stream, slot by slot, and the same rows in `StreamingPCA`: two ways to add up, and one answer."""

from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedStream, StreamingPCA
from eigenveil.linalg import Array, sines

SLOTS, SIZE, DIM, RANK = 4, 250, 8, 2
BOUND = 12.0


def rows() -> Array:
    """Around zero, so that both clip around nearly the same point."""
    return np.random.default_rng(3).standard_normal((SLOTS * SIZE, DIM)) * ([4.0, 2.5] + [0.5] * (DIM - 2))


def slots(table: Array, parts: int, **choices: Any) -> FederatedStream:
    """The rows of one site in so many slots."""
    pca = FederatedStream(RANK, slots=parts, random_state=0, **choices)
    return pca.fit([{"site": part} for part in np.split(table, parts)])


@pytest.mark.parametrize("forget", [1.0, 0.8])
def test_without_noise_both_give_the_same(forget: float) -> None:
    table = rows()
    stream = StreamingPCA(RANK, epsilon=None, block_size=SIZE, forget=forget).fit(table)
    site = slots(table, SLOTS, epsilon=None, forget=forget)
    assert sines(stream.components_.T, site.components_.T).max() < 1e-6
    np.testing.assert_allclose(site.mean_, stream.mean_, atol=1e-9)
    for name in ("singular_values_", "explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(site, name), getattr(stream, name), rtol=1e-6)
    assert site.noise_variance_ == pytest.approx(stream.noise_variance_, rel=1e-6)
    assert (site.warnings_, site.bound_usage_) == (stream.warnings_, stream.bound_usage_) == ((), None)


def test_with_noise_one_slot_is_one_synchronisation() -> None:
    table = rows()
    budget: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "row_bound": BOUND}
    stream = StreamingPCA(RANK, **budget, random_state=0).fit(table)
    site = slots(table, 1, **budget, trust="site")
    assert sines(stream.components_.T, site.components_.T).max() < 0.2
    # The stream pays for its center, so its floor is a little higher: at most as much as the search for it may cost.
    assert 1.0 < stream.noise_floor_ / site.noise_floor_ < 1.25
    assert site.bound_usage_ == pytest.approx(stream.bound_usage_, rel=0.1)
    assert site.n_above_noise_ == stream.n_above_noise_ == RANK


def test_slots_have_noise_of_their_own() -> None:
    one, several = (
        slots(rows(), parts, epsilon=2.0, delta=1e-6, row_bound=BOUND, trust="site", center=None) for parts in (1, SLOTS)
    )
    assert several.noise_floor_ / one.noise_floor_ == pytest.approx(np.sqrt(SLOTS), rel=1e-9)
