"""What sites send adds up to the sum and its noise, is paid for first, and is read with the step that it was made with."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from core.test_noise import LEVEL, scale_statistic
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import REACH, Noise
from eigenveil.errors import BudgetExceeded
from eigenveil.linalg import Array
from eigenveil.privacy.lattice import Lattice, Share, read
from privacy.integers.test_lattice import law_of_sum


def terms(*, sites: int = 5, survivors: int = 4, colluders: int = 1) -> Lattice:
    return Lattice(budget=Budget(1.0, 1e-6), sites=sites, survivors=survivors, colluders=colluders)


def gaussian(lattice: Lattice) -> Budget:
    assert lattice.gaussian is not None
    return lattice.gaussian


def shares(lattice: Lattice, *, several: int = 1) -> list[Share]:
    budget = gaussian(lattice)
    return [
        Share(
            lattice=lattice,
            ledger=Ledger(epsilon=budget.epsilon, delta=budget.delta),
            noise=Noise.seeded(70 + i),
            multiplier=1 / budget.mu,
            several=several,
        )
        for i in range(lattice.sites)
    ]


def total(words: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    together: NDArray[np.uint64] = np.add.reduce(words)
    return together


@pytest.mark.parametrize("share", [1.0, 0.04])
@pytest.mark.parametrize("several", [1, 2])
def test_noise_in_the_sum_is_what_was_charged(share: float, several: int) -> None:
    """Four survivors of five, one of whom tells: the other three make the noise that the ledger was charged for."""
    lattice = terms()
    mu = gaussian(lattice).mu * math.sqrt(share)
    value = np.linspace(-3, 3, 300_000)
    sites = shares(lattice, several=several)
    words = [site.of(Bounded(value, 2.0), label="x", share=share) for site in sites]
    assert [site.ledger.charges[0].mu for site in sites if site.ledger is not None] == [pytest.approx(mu)] * 5

    def noise(survivors: int) -> Array:
        found = read(
            lattice,
            total(words[:survivors]),
            sensitivity=2.0,
            share=share,
            multiplier=1 / gaussian(lattice).mu,
            shape=value.shape,
            several=several,
        )
        return found - survivors * value

    # A part in 4096 more, at most, for what rounding costs.
    stated = several * 2.0 / mu
    for honest in (3, 4, 5):
        exact = stated * math.sqrt(honest / 3)
        assert abs(scale_statistic(noise(honest) / exact)) < LEVEL
        assert abs(scale_statistic(noise(honest) / (1.03 * exact))) > LEVEL


def test_symmetric_parts_go_as_triangles_and_come_back_symmetric() -> None:
    lattice, dim = terms(), 400
    value = np.random.default_rng(1).standard_normal((dim, dim))
    value = value + value.T
    words = [site.of(Bounded(value, 1.0, symmetric=True), label="g", share=1.0) for site in shares(lattice)]
    assert words[0].shape == (dim * (dim + 1) // 2,)
    multiplier = 1 / gaussian(lattice).mu
    found = read(lattice, total(words), sensitivity=1.0, share=1.0, multiplier=multiplier, shape=(dim, dim), symmetric=True)
    assert np.array_equal(found, found.T)
    noise = (found - 5 * value) / (multiplier * math.sqrt(5 / 3))
    # As a full matrix of noise, symmetrised: half the variance off the diagonal.
    assert abs(scale_statistic(np.diagonal(noise))) < LEVEL
    assert abs(scale_statistic(noise[np.triu_indices(dim, 1)] * math.sqrt(2))) < LEVEL


def test_a_share_has_its_part_of_the_noise_and_no_more() -> None:
    """Of three that can be counted on, each adds a third of the variance."""
    lattice, count = terms(), 300_000
    words = shares(lattice)[0].of(Bounded(np.zeros(count), 1.0), label="x", share=1.0)
    deviation = lattice.deviation(1.0, mu=gaussian(lattice).mu, size=count)
    assert abs(scale_statistic(words.view(np.int64) / deviation)) < LEVEL
    step = lattice.step(1.0, mu=gaussian(lattice).mu, size=count)
    assert step * deviation * gaussian(lattice).mu * math.sqrt(3) == pytest.approx(1.0, rel=2.0**-12)


def loud(lattice: Lattice, count: int, *, mu: float) -> tuple[NDArray[np.int64], float]:
    """Whole steps in the sum of the shares of three sites that hold nothing, (count,), and the deviation of one of them."""
    ledgers = [Ledger(epsilon=math.inf, delta=0.5) for _ in range(3)]
    sites = [
        Share(lattice=lattice, ledger=ledger, noise=Noise.seeded(40 + at), multiplier=1 / mu) for at, ledger in enumerate(ledgers)
    ]
    words = [site.of(Bounded(np.zeros(count), 1.0), label="x", share=1.0) for site in sites]
    return total(words).view(np.int64), lattice.deviation(1.0, mu=mu, size=count)


def test_the_sum_of_shares_has_the_exact_law() -> None:
    """Of whole numbers, at a mu so large that there are few of them: chi-square against the convolution of three laws."""
    count = 2_000_000
    found, deviation = loud(terms(), count, mu=2.0**18)
    assert 50 < deviation < 120

    def surprise(scale: float) -> float:
        law = law_of_sum(scale, 3)
        reach = len(law) // 2
        edges = np.arange(-reach, reach + 2)
        inner = np.abs(edges[:-1]) <= 4.5 * scale * math.sqrt(3)
        expected, seen = law * count, np.histogram(found, bins=edges - 0.5)[0]
        # What is far out counts together.
        expected = np.append(expected[inner], expected[~inner].sum())
        seen = np.append(seen[inner], seen[~inner].sum())
        assert seen.sum() == count
        return float(stats.chisquare(seen, expected * (count / expected.sum())).pvalue)

    assert surprise(deviation) > 1e-6
    # A tenth off fails, and so does a hundredth.
    for wrong in (0.9, 0.99, 1.01, 1.1):
        assert surprise(wrong * deviation) < 1e-6
    # Even and odd numbers come alike: the low bits tell nothing.
    assert abs(2 * np.count_nonzero(found & 1) - count) < LEVEL * math.sqrt(count)


def test_what_can_come_out_is_the_same_for_any_values() -> None:
    """Multiples of one public power of two, whatever the rows: nothing is left of how a value was rounded."""
    lattice, rng = terms(), np.random.default_rng(8)
    multiplier = 1 / gaussian(lattice).mu
    step = lattice.step(0.7, mu=1 / multiplier, size=1000)
    for scale in (0.0, 1e-30, 0.1, math.pi, 1e9):
        value = Bounded(rng.standard_normal(1000) * scale, 0.7)
        words = total([site.of(value, label="x", share=1.0) for site in shares(lattice)])
        found = read(lattice, words, sensitivity=0.7, share=1.0, multiplier=multiplier, shape=(1000,))
        assert np.array_equal(found, np.rint(found / step) * step)
        assert np.count_nonzero(np.rint(found / step).astype(np.int64) & 1) > 0


class Watching:
    """A stream that notes how many charges there were when it was read."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.seen = ledger, list[int]()

    def update_into(self, zeros: memoryview, out: NDArray[np.uint8]) -> None:
        self.seen.append(len(self.ledger.charges))
        out[:] = 0


def test_the_ledger_is_charged_before_anything_else() -> None:
    lattice = terms()
    budget = gaussian(lattice)
    ledger, noise = Ledger(epsilon=budget.epsilon, delta=budget.delta), Noise.seeded(1)
    watching = Watching(ledger)
    noise._stream = watching
    share = Share(lattice=lattice, ledger=ledger, noise=noise, multiplier=1 / budget.mu)
    share.of(Bounded(np.zeros(3), 1.0), label="x", share=0.5)
    assert watching.seen
    assert set(watching.seen) == {1}
    # The value is looked at after the charge, too: a part that breaks has been paid for.
    with pytest.raises(ValueError, match="convert"):
        share.of(Bounded(np.array(["a"]), 1.0), label="y", share=0.1)
    # What public numbers alone forbid is refused before it costs anything.
    with pytest.raises(ValueError, match="is too small for a sum"):
        share.of(Bounded(np.zeros(10**6), 1.0), label="z", share=1e-15)
    assert [charge.label for charge in ledger.charges] == ["x", "y"]


def test_what_the_budget_cannot_pay_does_not_leave() -> None:
    lattice = terms()
    share = shares(lattice)[0]
    share.of(Bounded(np.zeros(3), 1.0), label="x", share=0.9)
    with pytest.raises(BudgetExceeded):
        share.of(Bounded(np.zeros(3), 1.0), label="y", share=0.2)
    share.of(Bounded(np.zeros(3), 1.0), label="z", share=0.1)


def test_shares_of_one_budget_can_all_be_spent() -> None:
    share = shares(terms())[0]
    for _ in range(100):
        share.of(Bounded(np.zeros(1), 1.0), label="x", share=0.01)
    with pytest.raises(BudgetExceeded):
        share.of(Bounded(np.zeros(1), 1.0), label="x", share=0.01)


def test_huge_values_are_clipped_and_not_refused() -> None:
    lattice = terms()
    words = shares(lattice)[0].of(Bounded(np.array([1e300, -np.inf, np.nan]), 1.0), label="x", share=1.0)
    found = words.view(np.int64)
    deviation = lattice.deviation(1.0, mu=gaussian(lattice).mu, size=3)
    assert np.abs(found - np.array([lattice.most, -lattice.most, 0])).max() < 12 * deviation


@pytest.mark.parametrize("sites", [2, 5000])
def test_the_sum_of_the_largest_values_is_read_as_it_is(sites: int) -> None:
    """All sites at the clip, with noise: the sum stays below 2^63, and does not come back with another sign."""
    lattice = terms(sites=sites, survivors=sites)
    share = shares(lattice)[0]
    words = np.zeros(2, dtype=np.uint64)
    for _ in range(sites):
        words += share.of(Bounded(np.array([1e300, -1e300]), 1.0), label="x", share=1 / sites)
    mu = gaussian(lattice).mu / math.sqrt(sites)
    step, deviation = (find(1.0, mu=mu, size=2) for find in (lattice.step, lattice.deviation))
    found = read(lattice, words, sensitivity=1.0, share=1 / sites, multiplier=1 / gaussian(lattice).mu, shape=(2,))
    assert np.abs(found / step - sites * lattice.most * np.array([1.0, -1.0])).max() <= sites * (REACH * deviation + 1)


def test_without_noise_sums_are_exact_and_cost_nothing() -> None:
    lattice = Lattice.exact(sites=3)
    rng = np.random.default_rng(3)
    values = [rng.standard_normal((6, 6)) for _ in range(3)]
    values = [value + value.T for value in values]
    words = [
        Share(lattice=lattice, ledger=None, noise=Noise.seeded(1), multiplier=1.0).of(
            Bounded(v, 1.0, symmetric=True), label="x", share=1.0
        )
        for v in values
    ]
    found = read(lattice, total(words), sensitivity=1.0, share=1.0, multiplier=1.0, shape=(6, 6), symmetric=True)
    assert np.allclose(found, sum(values), rtol=0, atol=2.0**-31)


def test_the_private_value_is_not_changed() -> None:
    value = np.eye(4)
    shares(terms())[0].of(Bounded(value, 1.0, symmetric=True), label="x", share=1.0)
    assert np.array_equal(value, np.eye(4))
