"""What a mechanism adds is what it says and what it charges: scale, symmetry, order of events, refusals."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from core.test_noise import LEVEL, scale_statistic
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Exact, Gaussian
from eigenveil.core.noise import Noise, step_of
from eigenveil.errors import BudgetExceeded
from eigenveil.linalg import Array
from eigenveil.linalg.sketch import normals
from eigenveil.privacy.released import release_columns


def unlimited() -> Ledger:
    return Ledger(epsilon=math.inf, delta=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("shape", [(400_000,), (400, 1000)])
def test_noise_has_the_stated_scale(share: float, shape: tuple[int, ...]) -> None:
    value = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    ledger = unlimited()
    mechanism = Gaussian(multiplier=2.5, ledger=ledger, noise=Noise.seeded(21))
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
    mechanism = Gaussian(multiplier=4.0, ledger=unlimited(), noise=Noise.seeded(22))
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
    honest = Gaussian(multiplier=2.0, ledger=unlimited(), noise=Noise.seeded(23))
    cheat = replace(honest, multiplier=1.8)
    assert abs(scale_statistic(honest.release(Bounded(value, 1.0), label="x") / 2.0)) < LEVEL
    assert abs(scale_statistic(cheat.release(Bounded(value, 1.0), label="x") / 2.0)) > LEVEL


def test_the_ledger_is_charged_before_the_noise_is_drawn() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)

    class Watching(list[int]):
        @contextmanager
        def batch(self) -> Iterator[Callable[[int], NDArray[np.uint64]]]:
            yield self.words

        def words(self, count: int) -> NDArray[np.uint64]:
            self.append(len(ledger.charges))
            return np.zeros(count, dtype=np.uint64)

    watching = Watching()
    mechanism = Gaussian(multiplier=10.0, ledger=ledger, noise=Noise.seeded(1))
    object.__setattr__(mechanism, "noise", watching)
    mechanism.release(Bounded(np.zeros(3), 1.0), label="x")
    mechanism.release(Bounded(np.zeros((3, 3)), 1.0, symmetric=True), label="y")
    # Some words are drawn for what is in doubt, and those of a diagonal apart from the others.
    assert sorted(set(watching)) == [1, 2]
    assert watching == sorted(watching)


def test_a_refused_release_draws_nothing_and_writes_nothing() -> None:
    ledger = Ledger(epsilon=0.1, delta=1e-6)
    noise = Noise.seeded(3)
    with pytest.raises(BudgetExceeded):
        Gaussian(multiplier=1.0, ledger=ledger, noise=noise).release(Bounded(np.zeros(3), 1.0), label="x")
    assert ledger.charges == ()
    assert np.array_equal(normals(noise, (3,)), normals(Noise.seeded(3), (3,)))


@pytest.mark.parametrize("sensitivity", [0.0, math.inf])
def test_noise_needs_a_positive_finite_sensitivity(sensitivity: float) -> None:
    ledger = unlimited()
    with pytest.raises(ValueError, match="sensitivity"):
        Gaussian(multiplier=1.0, ledger=ledger, noise=Noise.seeded(1)).release(Bounded(np.zeros(2), sensitivity), label="x")
    assert ledger.charges == ()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="multiplier"):
        Gaussian(multiplier=0.0, ledger=unlimited(), noise=Noise.seeded(1))
    with pytest.raises(ValueError, match="share"):
        Gaussian(multiplier=1.0, ledger=unlimited(), noise=Noise.seeded(1)).release(
            Bounded(np.zeros(2), 1.0), label="x", share=1.5
        )
    with pytest.raises(ValueError, match="sensitivity"):
        Bounded(np.zeros(2), -1.0)


def test_exact_releases_the_value_itself_and_printing_shows_no_private_number() -> None:
    value = np.array([123.456])
    assert Exact(because="test").release(Bounded(value, 1.0), label="x") is value
    assert "123" not in repr(Bounded(value, 1.0)) + str(Bounded(value, 1.0))


def test_the_private_value_is_not_changed_by_its_release() -> None:
    value = np.eye(4)
    Gaussian(multiplier=1.0, ledger=unlimited(), noise=Noise.seeded(1)).release(Bounded(value, 1.0, symmetric=True), label="x")
    assert np.array_equal(value, np.eye(4))


def released_columns(dim: int, widths: list[int], seed: int, *, value: Array | None = None) -> Array:
    """A symmetric matrix, of zeros unless given, released in slices of these widths, put together again."""
    whole = np.zeros((dim, dim)) if value is None else value
    mechanism = Gaussian(multiplier=2.5, ledger=unlimited(), noise=Noise.seeded(seed))
    ends = np.cumsum(widths)
    slices = (whole[:, end - width : end] for width, end in zip(widths, ends, strict=True))
    parts = list(release_columns(mechanism, slices, dim=dim, sensitivity=3.0, label="slices", share=0.25))
    assert [part.shape for part in parts] == [(dim, width) for width in widths]
    return np.hstack(parts)


def test_slices_of_one_matrix_are_charged_once() -> None:
    ledger = unlimited()
    mechanism = Gaussian(multiplier=2.5, ledger=ledger, noise=Noise.seeded(24))
    slices = (np.zeros((500, 50)) for _ in range(10))
    released = release_columns(mechanism, slices, dim=500, sensitivity=3.0, label="slices", share=0.25)
    assert [charge.mu for charge in ledger.charges] == [pytest.approx(0.5 / 2.5)]
    assert len(list(released)) == 10
    assert len(ledger.charges) == 1


@pytest.mark.parametrize(
    ("dim", "widths"),
    [(1, [1]), (63, [63]), (65, [1] * 65), (200, [64, 64, 64, 8]), (200, [3, 90, 0, 100, 7]), (700, [700]), (700, [100] * 7)],
)
def test_slices_have_the_noise_of_a_symmetric_matrix_whatever_their_widths(dim: int, widths: list[int]) -> None:
    """Mirrored to the last bit, sigma on the diagonal and sigma / sqrt(2) off it, independent across the tiles it is drawn in."""
    sigma = 3.0 * 2.5 / 0.5
    # Of one number each, a tenth of that is enough to convict noise that is a tenth too small.
    draws = max(1, min(4000, 40_000 // dim**2))
    stacked = np.stack([released_columns(dim, widths, seed) for seed in range(draws)])
    assert np.array_equal(stacked, stacked.transpose(0, 2, 1))
    diagonal = np.diagonal(stacked, axis1=1, axis2=2)
    assert abs(scale_statistic(diagonal / sigma)) < LEVEL
    if dim == 1:
        assert abs(scale_statistic(diagonal / (0.9 * sigma))) > LEVEL
    else:
        rows, columns = np.triu_indices(dim, 1)
        above = stacked[:, rows, columns]
        assert abs(scale_statistic(above / (sigma / math.sqrt(2)))) < LEVEL
        assert abs(scale_statistic(above / (0.9 * sigma / math.sqrt(2)))) > LEVEL
        # As in `test_symmetric_noise_has_the_law_of_a_symmetrised_matrix`.
        row_sums = stacked.sum(axis=2) / (sigma * math.sqrt((dim - 1) / 2 + 1))
        assert abs(scale_statistic(row_sums)) < 2 * LEVEL


def test_no_two_tiles_of_slices_have_the_same_noise() -> None:
    """All pairs of tiles above the diagonal are uncorrelated, and tiles are no mirror images of themselves."""
    noise = released_columns(640, [64] * 10, 5).reshape(10, 64, 10, 64).transpose(0, 2, 1, 3)
    above = np.array([noise[i, j] for i in range(10) for j in range(i + 1, 10)])
    for tiles in (above, above.transpose(0, 2, 1)):
        cross = np.einsum("aij,bij->ab", above, tiles) / (15.0**2 / 2 * 64)
        # Sums of 4096 products of independent normals, over 64, are normal to within this many deviations.
        off = cross if tiles is not above else cross[~np.eye(len(cross), dtype=bool)]
        assert np.abs(off).max() < 6.5


def test_the_noise_does_not_depend_on_how_columns_are_cut_into_slices() -> None:
    gram = np.cov(np.random.default_rng(3).standard_normal((130, 400)))
    gram = np.triu(gram) + np.triu(gram, 1).T
    whole = released_columns(130, [130], 8, value=gram)
    assert np.array_equal(whole, whole.T)
    for widths in ([1] * 130, [64, 64, 2], [50, 80], [129, 1]):
        assert np.array_equal(released_columns(130, widths, 8, value=gram), whole)
    assert not np.array_equal(released_columns(130, [130], 9, value=gram), whole)


def test_slices_are_symmetric_with_noise_that_nobody_knows() -> None:
    """Two mirrored entries with noise of their own would be two looks at one value, and half of the noise was charged."""
    mechanism = Gaussian(multiplier=1.0, ledger=unlimited(), noise=Noise.fresh())
    slices = [np.zeros((130, width)) for width in (64, 64, 2)]
    whole = np.hstack(list(release_columns(mechanism, slices, dim=130, sensitivity=1.0, label="x")))
    assert whole.any() and np.array_equal(whole, whole.T)


def test_two_releases_of_slices_have_different_noise() -> None:
    mechanism = Gaussian(multiplier=1.0, ledger=unlimited(), noise=Noise.seeded(3))
    one, two = (list(release_columns(mechanism, [np.zeros((9, 9))], dim=9, sensitivity=1.0, label="x")) for _ in range(2))
    assert not (one[0] == two[0]).any()


def test_slices_come_out_in_whole_public_steps() -> None:
    rng = np.random.default_rng(5)
    for value in (np.zeros((70, 70)), np.full((70, 70), math.pi), 1e9 * np.cov(rng.standard_normal((70, 90)))):
        steps = released_columns(70, [64, 6], 2, value=(value + value.T) / 2) / step_of(3.0, 70 * 70, multiplier=5.0)
        assert np.array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("widths", [[3], [3, 3], [4, 1]])
def test_slices_that_are_no_columns_of_the_matrix_are_refused(widths: list[int]) -> None:
    mechanism = Gaussian(multiplier=1.0, ledger=unlimited(), noise=Noise.seeded(3))
    slices = [np.zeros((4, width)) for width in widths]
    with pytest.raises(ValueError, match="slices must"):
        list(release_columns(mechanism, slices, dim=4, sensitivity=1.0, label="x"))


def test_slices_are_paid_for_before_the_first_is_computed() -> None:
    ledger = Ledger(epsilon=0.1, delta=1e-6)
    asked: list[int] = []

    def slices() -> Iterator[Array]:
        asked.append(1)
        yield np.zeros((2, 2))

    with pytest.raises(BudgetExceeded):
        release_columns(
            Gaussian(multiplier=0.1, ledger=ledger, noise=Noise.seeded(3)), slices(), dim=2, sensitivity=1.0, label="x"
        )
    assert not asked
    assert not ledger.charges


def test_exact_slices_are_the_slices() -> None:
    whole = Exact(because="a test")
    assert [part.tolist() for part in release_columns(whole, [np.ones((1, 1))], dim=1, sensitivity=1.0, label="x")] == [[[1.0]]]
    assert whole.scale(3.0) == 0.0
