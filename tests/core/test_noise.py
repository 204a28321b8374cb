"""The law of the noise, tested so that a tenth off fails; and that no stretch of it is ever given twice."""

import copy
import json
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from eigenveil.core.noise import Noise, RoundedGaussian
from eigenveil.linalg import Array
from eigenveil.linalg.sketch import normals

pytestmark = pytest.mark.real_entropy
# Two-sided level 1e-6 for a standard normal statistic.
LEVEL = 4.892


def scale_statistic(sample: Array) -> float:
    """How many standard errors the mean square is off one: for n normals its variance is 2 / n."""
    return float((np.square(sample).mean() - 1) * np.sqrt(sample.size / 2))


def test_scale_is_one_and_a_tenth_off_would_be_caught() -> None:
    sample = normals(Noise.seeded(11), (1_000_000,))
    assert abs(scale_statistic(sample)) < LEVEL
    assert abs(scale_statistic(1.1 * sample)) > 20 * LEVEL
    assert abs(scale_statistic(0.9 * sample)) > 20 * LEVEL


def test_law_is_normal_also_in_the_tails() -> None:
    sample = normals(Noise.seeded(12), (2_000_000,))
    edges = np.array([-np.inf, -4.5, -4, -3.5, *np.linspace(-3, 3, 61), 3.5, 4, 4.5, np.inf])
    expected = np.diff(stats.norm.cdf(edges)) * sample.size
    found, _ = np.histogram(sample, bins=edges)
    assert stats.chisquare(found, expected).pvalue > 1e-6
    # A Student law with 30 degrees of freedom, scaled to the same variance, would be caught.
    rng = np.random.default_rng(0)
    student, _ = np.histogram(rng.standard_t(30, sample.size) * np.sqrt(28 / 30), bins=edges)
    assert stats.chisquare(student, expected).pvalue < 1e-6


@pytest.mark.parametrize("lag", [1, 2, 1 << 14, 1 << 15])
@pytest.mark.parametrize("power", [1, 2])
def test_draws_are_independent(lag: int, power: int) -> None:
    """Also across the two halves that one pair of words makes, 2^14 apart, and in squares, which share the radius."""
    sample = normals(Noise.seeded(13), (1 << 20,)) ** power
    correlation = np.corrcoef(sample[:-lag], sample[lag:])[0, 1]
    assert abs(correlation) * np.sqrt(sample.size - lag) < LEVEL


@pytest.mark.parametrize("size", [0, 1, 2, 3, 255, (1 << 15) - 1, 1 << 15, (1 << 15) + 1, 100_001])
def test_every_length_is_filled(size: int) -> None:
    sample = normals(Noise.seeded(14), (size,))
    assert sample.shape == (size,)
    assert np.isfinite(sample).all()
    assert len(np.unique(sample)) == size


def test_shapes() -> None:
    assert normals(Noise.seeded(1), (3, 5)).shape == (3, 5)
    assert normals(Noise.seeded(1), ()).shape == ()


def test_extreme_words_give_finite_normals() -> None:
    """All zeros and all ones are words like any other; the largest radius is that of u = 2^-65."""

    class Constant:
        def __init__(self, byte: int) -> None:
            self.byte = byte

        def update_into(self, zeros: memoryview, out: Array) -> None:
            out[...] = self.byte

    for byte in (0x00, 0xFF, 0x80, 0x7F):
        noise = Noise.seeded(1)
        noise._stream = Constant(byte)
        sample = normals(noise, (100,))
        assert np.isfinite(sample).all()
        assert np.abs(sample).max() < 9.6


def test_seeds_repeat_and_fresh_noise_does_not() -> None:
    assert np.array_equal(normals(Noise.seeded(5), (100,)), normals(Noise.seeded(5), (100,)))
    assert not np.array_equal(normals(Noise.seeded(5), (100,)), normals(Noise.seeded(6), (100,)))
    assert not np.array_equal(normals(Noise.fresh(), (100,)), normals(Noise.fresh(), (100,)))
    once = Noise.seeded(5)
    assert not np.array_equal(normals(once, (100,)), normals(once, (100,)))
    assert Noise.seeded(5).reproducible
    assert not Noise.fresh().reproducible


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_noise_cannot_be_copied(copying: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="two copies"):
        copying(Noise.fresh())


DRAWS: list[Callable[[Noise], Array]] = [
    lambda noise: normals(noise, (4,)),
    lambda noise: noise.words(4).astype(np.float64),
    lambda noise: RoundedGaussian(2.0**20).draw(noise, 4).astype(np.float64),
]


def in_fork(work: Callable[[], list[float]], *, generations: int = 1) -> list[float]:
    """What `work` gives in a child of this process, or in a child's child, and so on."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        found = work() if generations == 1 else in_fork(work, generations=generations - 1)
        os.write(sender, json.dumps(found).encode())
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as file:
        found = json.loads(file.read())
    os.waitpid(child, 0)
    return list(found)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("same_id", [False, True])
def test_no_fork_repeats_another(monkeypatch: pytest.MonkeyPatch, draw: Callable[[Noise], Array], same_id: bool) -> None:
    """Also if the kernel gives a grandchild the id of an ancestor that is dead."""
    if same_id:
        monkeypatch.setattr(os, "getpid", lambda: 4711)
    noise = Noise.fresh()
    draw(noise)
    found = [in_fork(lambda: draw(noise).tolist(), generations=each) for each in (1, 1, 2, 3)]
    found.append(draw(noise).tolist())
    assert len({number for numbers in found for number in numbers}) == 4 * len(found)
    seeded = Noise.seeded(3)
    assert in_fork(lambda: draw(seeded).tolist(), generations=2) == draw(seeded).tolist()


def test_a_fork_does_not_wait_for_a_thread_of_its_parent() -> None:
    noise, inside, leave = Noise.fresh(), threading.Event(), threading.Event()

    def hold() -> None:
        with noise.batch():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    assert len(in_fork(lambda: normals(noise, (4,)).tolist())) == 4
    leave.set()
    thread.join()


@pytest.mark.parametrize("draw", DRAWS)
def test_a_clone_of_the_machine_draws_other_noise(monkeypatch: pytest.MonkeyPatch, draw: Callable[[Noise], Array]) -> None:
    """It has all of this process, and for a while its kernel gives the same entropy. Its clock has gone on."""
    entropy = Noise(bytes(32), reproducible=True)
    monkeypatch.setattr(os, "urandom", lambda count: b"k" * count)
    key = entropy.words(4).tobytes()
    original, clone = (Noise(key, reproducible=False, renewed=True) for _ in range(2))
    assert not set(draw(original).tolist()) & set(draw(clone).tolist())
    # If its kernel gives other entropy, the same clock does not matter.
    monkeypatch.undo()
    monkeypatch.setattr(time, "time_ns", lambda: 7)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 7)
    assert not set(draw(original).tolist()) & set(draw(clone).tolist())


@pytest.mark.parametrize("draw", DRAWS)
def test_a_key_alone_decides_noise_that_is_made_twice(draw: Callable[[Noise], Array]) -> None:
    """Two peers draw noise that cancels, and mirrored entries of a matrix have the same: neither is renewed."""
    one, other = (Noise(bytes(31) + b"k", reproducible=False) for _ in range(2))
    assert not one.reproducible
    for _ in range(2):
        assert np.array_equal(draw(one), draw(other))


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Noise(b"short", reproducible=False)


def test_a_child_that_is_forked_while_another_thread_draws_goes_on_after_the_last_draw() -> None:
    noise, plain = Noise.seeded(3), Noise.seeded(3)
    for source in (noise, plain):
        source.words(5)
    drawing, forked = threading.Event(), threading.Event()

    def draw() -> None:
        with noise.batch() as words:
            words(7)
            drawing.set()
            forked.wait(30)

    thread = threading.Thread(target=draw)
    thread.start()
    assert drawing.wait(30)
    try:
        # What the other thread has begun to take is not ended here.
        assert in_fork(lambda: normals(noise, (9,)).tolist()) == normals(plain, (9,)).tolist()
    finally:
        forked.set()
        thread.join()


def test_a_child_that_is_forked_within_a_draw_goes_on_with_it() -> None:
    noise, plain = Noise.seeded(3), Noise.seeded(3)
    plain.words(2)
    with noise.batch() as words:
        words(2)
        later = in_fork(lambda: [float(word) for word in words(3)])
    assert later == [float(word) for word in plain.words(3)]
