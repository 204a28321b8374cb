"""Part of a budget, and noise that a value brings along: what is added and charged is what was agreed, and a tenth off fails."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.test_noise import LEVEL, scale_statistic
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.errors import BudgetExceeded
from eigenveil.linalg import Array
from eigenveil.privacy.released import release_columns
from eigenveil.tasks.fit.gaps import PartialBudget

SHARES = st.floats(1e-6, 1.0)
MULTIPLIER, SENSITIVITY = 2.5, 3.0


def unlimited() -> Ledger:
    """A ledger that pays for anything."""
    return Ledger(epsilon=math.inf, delta=1e-6)


def symmetric_statistics(noise: Array, scale: float) -> tuple[float, float]:
    """How far off the law of (N + N^T) / 2 a symmetric matrix is: on the diagonal, and above it."""
    above = noise[np.triu_indices(len(noise), 1)]
    return scale_statistic(np.diagonal(noise) / scale), scale_statistic(above / (scale / math.sqrt(2)))


@pytest.mark.parametrize("carried", [0.0, 1.5])
@pytest.mark.parametrize(("fraction", "share"), [(1.0, 1.0), (0.25, 1.0), (0.3, 0.6)])
def test_a_portion_adds_the_noise_of_its_share(fraction: float, share: float, carried: float) -> None:
    ledger = unlimited()
    portion = PartialBudget(
        Gaussian(multiplier=MULTIPLIER, ledger=ledger, noise=Noise.seeded(31), existing_multiplier=carried), fraction
    )
    value = np.arange(400_000.0)
    noise = portion.release(Bounded(value, SENSITIVITY), label="x", share=share) - value
    added = SENSITIVITY * math.sqrt(MULTIPLIER**2 - carried**2) / math.sqrt(fraction * share)
    assert abs(scale_statistic(noise / added)) < LEVEL
    for wrong in (0.9, 1.1):
        assert abs(scale_statistic(noise / (wrong * added))) > LEVEL
    assert [(charge.label, charge.mu) for charge in ledger.charges] == [("x", math.sqrt(fraction * share) / MULTIPLIER)]
    # The scale reports all of the noise, including that of others.
    assert portion.scale(SENSITIVITY, share=share) == pytest.approx(SENSITIVITY * MULTIPLIER / math.sqrt(fraction * share))


@pytest.mark.parametrize("carried", [0.0, 1.5])
def test_a_portion_adds_symmetric_noise_where_the_value_is_symmetric(carried: float) -> None:
    portion = PartialBudget(
        Gaussian(multiplier=MULTIPLIER, ledger=unlimited(), noise=Noise.seeded(32), existing_multiplier=carried), 0.25
    )
    dim, added = 3000, SENSITIVITY * math.sqrt(MULTIPLIER**2 - carried**2) * 2
    noise = portion.release(Bounded(np.zeros((dim, dim)), SENSITIVITY, symmetric=True), label="g")
    assert np.array_equal(noise, noise.T)
    assert max(map(abs, symmetric_statistics(noise, added))) < LEVEL
    for wrong in (0.9, 1.1):
        assert min(map(abs, symmetric_statistics(noise, wrong * added))) > LEVEL


def test_a_portion_pays_once_for_all_slices() -> None:
    ledger = unlimited()
    portion = PartialBudget(Gaussian(multiplier=MULTIPLIER, ledger=ledger, noise=Noise.seeded(33), existing_multiplier=2.0), 0.5)
    dim, added = 800, SENSITIVITY * 1.5 / 0.5
    slices = (np.zeros((dim, 80)) for _ in range(10))
    noise = np.hstack(list(release_columns(portion, slices, dim=dim, sensitivity=SENSITIVITY, label="x", share=0.5)))
    assert np.array_equal(noise, noise.T)
    assert max(map(abs, symmetric_statistics(noise, added))) < LEVEL
    for wrong in (0.9, 1.1):
        assert max(map(abs, symmetric_statistics(noise, wrong * added))) > LEVEL
    assert [charge.mu for charge in ledger.charges] == [0.5 / MULTIPLIER]


@given(fractions=st.lists(SHARES, min_size=1, max_size=4), share=SHARES)
def test_portions_of_portions_multiply(fractions: list[float], share: float) -> None:
    ledger = unlimited()
    mechanism: PartialBudget | Gaussian = Gaussian(multiplier=MULTIPLIER, ledger=ledger, noise=Noise.seeded(1))
    for fraction in fractions:
        mechanism = PartialBudget(mechanism, fraction)
    mechanism.release(Bounded(np.zeros(1), 1.0), label="x", share=share)
    expected = math.sqrt(math.prod(fractions) * share) / MULTIPLIER
    assert ledger.charges[0].mu == pytest.approx(expected, rel=1e-12)
    assert mechanism.scale(1.0, share=share) == pytest.approx(1 / expected, rel=1e-12)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_portions_that_make_up_the_whole_spend_the_whole(weights: list[float]) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    whole = Gaussian(multiplier=1.0 / ledger.budget.mu, ledger=ledger, noise=Noise.seeded(1))
    for weight in weights:
        PartialBudget(whole, weight / sum(weights)).release(Bounded(np.zeros(1), 1.0), label="x")
    assert ledger.spent_mu == pytest.approx(ledger.budget.mu, rel=1e-12)
    with pytest.raises(BudgetExceeded):
        PartialBudget(whole, 0.01).release(Bounded(np.zeros(1), 1.0), label="too much")


def test_a_portion_of_nothing_added_adds_nothing() -> None:
    value = np.ones(3)
    portion = PartialBudget(Exact(because="a test"), 0.5)
    assert portion.release(Bounded(value, 1.0), label="x") is value
    assert portion.scale(1.0) == 0.0


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("carried", [0.0, 1.0, 2.0, 2.4999])
def test_carried_noise_and_what_is_added_make_the_multiplier(carried: float, symmetric: bool) -> None:
    """A value with noise of its own, through a mechanism that knows of it: who sees the outcome sees the noise charged for."""
    dim, ledger = 1000, unlimited()
    shape, zero = (dim, dim), np.zeros((dim, dim))
    value = zero
    if carried:
        site = Gaussian(multiplier=carried, ledger=unlimited(), noise=Noise.seeded(34))
        value = site.release(Bounded(zero, SENSITIVITY, symmetric=symmetric), label="at a site")
    hub = Gaussian(multiplier=MULTIPLIER, ledger=ledger, noise=Noise.seeded(35), existing_multiplier=carried)
    noise = hub.release(Bounded(value, SENSITIVITY, symmetric=symmetric), label="at the hub")
    assert noise.shape == shape
    stated = SENSITIVITY * MULTIPLIER
    statistics = symmetric_statistics(noise, stated) if symmetric else (scale_statistic(noise / stated),)
    assert max(map(abs, statistics)) < LEVEL
    # What the ledger says is what the noise is worth, wherever it comes from.
    assert [charge.mu for charge in ledger.charges] == [1.0 / MULTIPLIER]
    for wrong in (0.9, 1.1):
        off = symmetric_statistics(noise, wrong * stated) if symmetric else (scale_statistic(noise / (wrong * stated)),)
        assert abs(off[-1]) > LEVEL


def test_counting_on_noise_that_is_not_there_is_caught() -> None:
    value = np.zeros(400_000)
    hopeful = Gaussian(multiplier=MULTIPLIER, ledger=unlimited(), noise=Noise.seeded(36), existing_multiplier=1.1)
    noise = hopeful.release(Bounded(value, SENSITIVITY), label="x")
    # Added in squares, 1.1 of 2.5 is a tenth of the noise.
    assert abs(scale_statistic(noise / (SENSITIVITY * MULTIPLIER))) > LEVEL


def test_noise_that_is_all_there_already_is_not_added_to() -> None:
    value = np.arange(5.0)
    ledger = unlimited()
    full = Gaussian(multiplier=MULTIPLIER, ledger=ledger, noise=Noise.seeded(37), existing_multiplier=MULTIPLIER)
    assert np.array_equal(full.release(Bounded(value, 1.0), label="x"), value)
    assert [charge.mu for charge in ledger.charges] == [1.0 / MULTIPLIER]
    assert full.scale(1.0) == MULTIPLIER
