"""Rows that noise hides: the odds are those of two densities, and the share that may hide is a confidence bound."""

import itertools
import math

import numpy as np
import pytest

from eigenveil.linalg import Array
from eigenveil.tasks.fit.bounds import Outliers, outliers_in
from eigenveil.tasks.levels import norm_cells, read_tails

CELLS = norm_cells(1.0, 1e6, per_doubling=8)
ROOT = np.array([math.comb(2 * j, j) / 4**j for j in range(CELLS.count)])
NOISE, PEOPLE, TYPICAL = 20.0, 4000, 3.0


def released(far: Array, rng: np.random.Generator) -> Array:
    """A release of the counts of people with a typical norm, and of these norms far away."""
    norms = np.concatenate([np.full(PEOPLE, TYPICAL), far])
    counts = np.bincount(CELLS.count - 1 - CELLS.place(norms), minlength=CELLS.count)
    return np.convolve(counts, ROOT)[: CELLS.count] + NOISE * rng.standard_normal(CELLS.count)


def outliers(release: Array) -> Outliers:
    (tails,) = read_tails(release, noise=NOISE, cells=CELLS, people=float(PEOPLE))
    found = outliers_in(release, tails, noise=NOISE, longest=TYPICAL)
    assert found is not None
    return found


def test_odds_are_the_ratio_of_two_densities() -> None:
    """Slow and obvious: the density of the release for each window and number of rows, from its whole matrix."""
    release = released(np.full(60, 500.0), np.random.default_rng(0))
    cells = CELLS.count - 1 - int(np.searchsorted(CELLS.edges, 2 * TYPICAL))
    matrix = np.array([[ROOT[i - j] if i >= j else 0.0 for j in range(cells)] for i in range(cells)])
    seen = release[:cells]

    def log_density(counts: Array) -> float:
        return -float(np.square(seen - matrix @ counts).sum()) / (2 * NOISE**2)

    each = []
    for width in (1, 4, 16, 64):
        starts, ratios = range(0, cells - width + 1, max(1, width // 4)), []
        for start, number in itertools.product(starts, np.geomspace(1, 0.1 * PEOPLE, 13)):
            counts = np.zeros(cells)
            counts[start : start + width] = number / width
            ratios.append(math.exp(log_density(counts) - log_density(np.zeros(cells))))
        each.append(np.mean(ratios))
    assert outliers(release).odds == pytest.approx(float(np.mean(each)), rel=1e-3)


def test_noise_alone_seldom_looks_like_rows() -> None:
    """Odds of c come at most once in c releases. Where nobody is beyond, odds of two came in 1.5% of other seeds."""
    rng, tries = np.random.default_rng(1), 1500
    odds = np.array([outliers(released(np.empty(0), rng)).odds for _ in range(tries)])
    # Six deviations above 2%: level 1e-6.
    assert (odds >= 2).mean() <= 0.02 + 6 * math.sqrt(0.02 / tries)
    assert (odds >= 10).mean() <= 0.1


@pytest.mark.parametrize("count", [0, 10, 40])
@pytest.mark.parametrize("norm", [12.0, 5000.0, 1e9])
def test_no_more_rows_hide_than_is_said(count: int, norm: float) -> None:
    """With 95% confidence. Beyond the largest norm of the cells is a cell like any other."""
    rng, tries = np.random.default_rng(2), 400
    over = sum(outliers(released(np.full(count, norm), rng)).most < count / PEOPLE for _ in range(tries))
    assert over / tries <= 0.05 + 5 * math.sqrt(0.05 / tries)
    # A bound that is always right says nothing.
    assert outliers(released(np.full(count, norm), rng)).most < 0.05


def test_rows_alike_stand_out_before_any_count_does() -> None:
    """Two deviations of the count beyond: a single count would often be taken for noise."""
    rng = np.random.default_rng(3)
    error = NOISE * float(np.linalg.norm(ROOT[: CELLS.count]))
    for norm in (50.0, 5000.0, 1e9):
        found = [outliers(released(np.full(round(2.5 * error), norm), rng)) for _ in range(60)]
        assert sum(one.odds >= 2 for one in found) >= 48
        # Cells are 9% wide.
        assert np.median([one.norm for one in found]) == pytest.approx(min(norm, 1e6), rel=0.15)
        assert np.median([one.share for one in found]) == pytest.approx(2.5 * error / PEOPLE, rel=0.3)


def test_without_noise_nothing_can_hide() -> None:
    (tails,) = read_tails(released(np.empty(0), np.random.default_rng(0)), noise=0.0, cells=CELLS, people=None)
    assert outliers_in(np.zeros(CELLS.count), tails, noise=0.0, longest=TYPICAL) is None
    assert outliers_in(np.zeros(CELLS.count), tails, noise=1.0, longest=0.0) is None
    assert outliers_in(np.zeros(CELLS.count), tails, noise=1.0, longest=1e6) is None


@pytest.mark.parametrize(
    "plain",
    [
        *(None, 3, "12345", [1, 2, 3], {"beyond": 8.0}, [8.0, 0.1, "1", 0.1, 9.0], [8.0, 0.1, 1.0, 0.1, math.inf]),
        *([8.0, 0.1, 1.0, 0.1, math.nan], [8.0, 0.1, 1.0, 0.1, 2.0], [8.0, 2.0, 1.0, 0.1, 9.0], [8.0, -0.1, 1.0, 0.1, 9.0]),
    ],
)
def test_edited_numbers_are_not_believed(plain: object) -> None:
    assert Outliers.read(plain) is None


def test_what_is_kept_can_be_read_back() -> None:
    found = outliers(released(np.full(60, 500.0), np.random.default_rng(0)))
    assert Outliers.read(found._asdict()) == Outliers.read(list(found)) == found
    assert found.over(2.0).over(0.5) == found
