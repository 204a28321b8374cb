"""What a mechanism adds is what it says and what it charges: scale, symmetry, order of events, refusals."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from eigenveil.errors import BudgetExceeded
from eigenveil.linalg import Array
from eigenveil.privacy import Bounded, Exact, Gaussian, Ledger, Noise
from privacy.test_noise import LEVEL, scale_statistic


def unlimited() -> Ledger:
    return Ledger(epsilon=math.inf, delta=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("shape", [(400_000,), (400, 1000)])
def test_noise_has_the_stated_scale(share: float, shape: tuple[int, ...]) -> None:
    value = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    ledger = unlimited()
    mechanism = Gaussian(2.5, ledger, Noise.seeded(21))
    noisy = mechanism.release(Bounded(value, 3.0), label="x", share=share)
    stated = 3.0 * 2.5 / math.sqrt(share)
    assert abs(scale_statistic((noisy - value) / stated)) < LEVEL
    assert ledger.charges[0].mu == pytest.approx(math.sqrt(share) / 2.5)
    # The charge is the sensitivity over the noise that was added: what accounting stands on.
    assert ledger.charges[0].mu == pytest.approx(3.0 / stated)


@pytest.mark.parametrize("dim", [2, 255, 256, 257, 700])
def test_symmetric_noise_has_the_law_of_a_symmetrised_matrix(dim: int) -> None:
    """Diagonal variance sigma^2, off-diagonal sigma^2 / 2, independent entries: also across the strips it is drawn in."""
    sigma = 1.7 * 4.0
    draws = max(1, 40_000 // dim**2)
    mechanism = Gaussian(4.0, unlimited(), Noise.seeded(22))
    noisy = [mechanism.release(Bounded(np.zeros((dim, dim)), 1.7, symmetric=True), label="g") for _ in range(draws)]
    stacked: Array = np.array(noisy)
    assert np.array_equal(stacked, stacked.transpose(0, 2, 1))
    rows, columns = np.triu_indices(dim, 1)
    above = stacked[:, rows, columns]
    diagonal = np.diagonal(stacked, axis1=1, axis2=2)
    assert abs(scale_statistic(above / (sigma / math.sqrt(2)))) < LEVEL
    assert abs(scale_statistic(diagonal / sigma)) < LEVEL
    row_sums = stacked.sum(axis=2) / (sigma * math.sqrt((dim - 1) / 2 + 1))
    # Row sums share one entry pairwise; their mean square has a variance of at most four times the independent one.
    assert abs(scale_statistic(row_sums)) < 2 * LEVEL


def test_a_tenth_too_little_noise_is_caught() -> None:
    value = np.zeros(200_000)
    honest = Gaussian(2.0, unlimited(), Noise.seeded(23))
    cheat = replace(honest, multiplier=1.8)
    assert abs(scale_statistic(honest.release(Bounded(value, 1.0), label="x") / 2.0)) < LEVEL
    assert abs(scale_statistic(cheat.release(Bounded(value, 1.0), label="x") / 2.0)) > LEVEL


def test_the_ledger_is_charged_before_the_noise_is_drawn() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)

    class Watching(list[int]):
        def normal(self, shape: tuple[int, ...]) -> Array:
            self.append(len(ledger.charges))
            return np.zeros(shape)

    watching = Watching()
    mechanism = Gaussian(10.0, ledger, Noise.seeded(1))
    object.__setattr__(mechanism, "noise", watching)
    mechanism.release(Bounded(np.zeros(3), 1.0), label="x")
    mechanism.release(Bounded(np.zeros((3, 3)), 1.0, symmetric=True), label="y")
    assert watching == [1, 2]


def test_a_refused_release_draws_nothing_and_writes_nothing() -> None:
    ledger = Ledger(epsilon=0.1, delta=1e-6)
    noise = Noise.seeded(3)
    with pytest.raises(BudgetExceeded):
        Gaussian(1.0, ledger, noise).release(Bounded(np.zeros(3), 1.0), label="x")
    assert ledger.charges == ()
    assert np.array_equal(noise.normal((3,)), Noise.seeded(3).normal((3,)))


@pytest.mark.parametrize("sensitivity", [0.0, math.inf])
def test_noise_needs_a_positive_finite_sensitivity(sensitivity: float) -> None:
    ledger = unlimited()
    with pytest.raises(ValueError, match="sensitivity"):
        Gaussian(1.0, ledger, Noise.seeded(1)).release(Bounded(np.zeros(2), sensitivity), label="x")
    assert ledger.charges == ()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="multiplier"):
        Gaussian(0.0, unlimited(), Noise.seeded(1))
    with pytest.raises(ValueError, match="share"):
        Gaussian(1.0, unlimited(), Noise.seeded(1)).release(Bounded(np.zeros(2), 1.0), label="x", share=1.5)
    with pytest.raises(ValueError, match="sensitivity"):
        Bounded(np.zeros(2), -1.0)


def test_exact_releases_the_value_itself_and_printing_shows_no_private_number() -> None:
    value = np.array([123.456])
    assert Exact(because="test").release(Bounded(value, 1.0), label="x") is value
    assert "123" not in repr(Bounded(value, 1.0)) + str(Bounded(value, 1.0))


def test_the_private_value_is_not_changed_by_its_release() -> None:
    value = np.eye(4)
    Gaussian(1.0, unlimited(), Noise.seeded(1)).release(Bounded(value, 1.0, symmetric=True), label="x")
    assert np.array_equal(value, np.eye(4))


def test_parts_of_one_array_are_charged_once_and_each_have_the_noise_of_the_whole() -> None:
    ledger = unlimited()
    mechanism = Gaussian(2.5, ledger, Noise.seeded(24))
    parts = (np.full((500, 80), float(j)) for j in range(10))
    released = mechanism.release_parts(parts, sensitivity=3.0, label="parts", share=0.25)
    assert [charge.mu for charge in ledger.charges] == [pytest.approx(0.5 / 2.5)]
    noise = np.hstack([part - j for j, part in enumerate(released)])
    stated = 3.0 * 2.5 / 0.5
    assert len(ledger.charges) == 1
    assert abs(scale_statistic(noise / stated)) < LEVEL
    assert abs(scale_statistic(noise / (1.1 * stated))) > LEVEL
    # Independent between the parts: their row sums are as large as independence makes them.
    assert abs(scale_statistic(noise.sum(axis=1) / (stated * math.sqrt(noise.shape[1])))) < LEVEL


def test_parts_are_paid_for_before_the_first_is_computed() -> None:
    ledger = Ledger(epsilon=0.1, delta=1e-6)
    asked: list[int] = []

    def parts() -> Iterator[Array]:
        asked.append(1)
        yield np.zeros(2)

    with pytest.raises(BudgetExceeded):
        Gaussian(0.1, ledger, Noise.seeded(3)).release_parts(parts(), sensitivity=1.0, label="x")
    assert not asked
    assert not ledger.charges


def test_exact_parts_are_the_parts() -> None:
    whole = Exact(because="a test")
    assert [part.tolist() for part in whole.release_parts([np.ones(1)], sensitivity=1.0, label="x")] == [[1.0]]
    assert whole.scale(3.0) == 0.0
