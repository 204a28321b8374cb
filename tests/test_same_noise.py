"""What the tests draw where they give no seed: new noise for each draw, and the same in each run."""

import threading
from typing import Any

import numpy as np
import pytest

from eigenveil.core.noise import Noise
from eigenveil.linalg.sketch import normals
from same_noise import SameNoise


@pytest.fixture
def plugin(request: pytest.FixtureRequest) -> SameNoise:
    (found,) = (one for one in request.config.pluginmanager.get_plugins() if isinstance(one, SameNoise))
    return found


def draws() -> list[Any]:
    shared = Noise.fresh()
    numbers = [normals(noise, (2,)).tolist() for noise in (shared, shared, Noise.fresh())]
    return [*numbers, np.random.default_rng().random(2).tolist()]


def test_each_draw_is_new_and_a_run_repeats_them(plugin: SameNoise) -> None:
    found = []
    for place in ("here", "there", "here"):
        with plugin.at(place):
            found.append(draws())
    assert found[0] == found[2]
    assert len({number for numbers in (*found[0], *found[1]) for number in numbers}) == 16


def test_a_thread_has_true_entropy(plugin: SameNoise) -> None:
    found: list[Any] = []
    for _ in range(2):
        with plugin.at("here"):
            thread = threading.Thread(target=lambda: found.append(draws()))
            thread.start()
            thread.join()
    assert found[0] != found[1]


@pytest.mark.real_entropy
def test_a_test_of_freshness_has_true_entropy(plugin: SameNoise) -> None:
    assert normals(Noise.fresh(), (2,)).tolist() != normals(Noise.fresh(), (2,)).tolist()
    assert np.random.default_rng is plugin.default_rng
