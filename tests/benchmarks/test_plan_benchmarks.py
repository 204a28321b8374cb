"""A small version of benchmarks/plan/truth.py and grid.py: they run, and what they print is what they say it is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.plan import grid, truth
from eigenveil.plan.rehearsal import Interval

# What is measured is what fits find, not what they say before.
pytestmark = pytest.mark.usefixtures("unplanned")


def small() -> Any:
    """Sixty rows of nine columns in the unit ball."""
    rows = np.random.default_rng(5).standard_normal((60, 9)) * np.arange(9, 0, -1)
    return truth.Table.of("small", rows / np.linalg.norm(rows, axis=1).max())


def scored(candidate: str, captured: list[float], predicted: float, *, reach: float = 0.05) -> Any:
    """A cell as if it had been measured and predicted."""
    cell = truth.Cell("small", candidate, 1.0)
    interval = Interval(predicted, predicted - reach, predicted + reach)
    return grid.Scored(cell, tuple(captured), tuple(captured), interval, interval)


@pytest.fixture(scope="module")
def measured() -> Any:
    """What --quick measures."""
    return grid.quick()


@pytest.fixture(scope="module")
def answers(measured: Any) -> Any:
    """What the planner says of it, given the spectrum."""
    return list(grid.answers(measured, grid.given))


@pytest.mark.parametrize("name", grid.QUICK)
def test_tables_lie_in_the_unit_ball_around_their_mean(name: str) -> None:
    table = truth.Table.load(name)
    norms = np.linalg.norm(table.rows, axis=1)
    assert 1 - 1e-9 < norms.max() <= 1 + 1e-9
    # One in twenty is clipped, which moves the mean a little.
    assert 0.04 < np.mean(norms > 1 - 1e-9) < 0.06
    assert np.linalg.norm(table.rows.mean(axis=0)) < 0.02
    assert abs(table.values.sum() - np.mean(norms**2)) < 1e-12
    assert sum(len(site) for site in table.sites) == len(table.rows)
    assert table.judge(table.best) == pytest.approx((1.0, 0.0), abs=1e-7)


def test_quick_predictions_are_near_what_was_measured(answers: Any) -> None:
    cells = list(grid.all_cells(answers))
    assert len(cells) >= 10
    assert {one.cell.name for one in cells} == set(grid.QUICK)
    # Far beyond the standard error of either mean, 0.02, and far below what is off with twice the noise.
    assert max(abs(one.off) for one in cells) < 0.1
    inside, fits = sum(one.inside for one in cells), sum(len(one.captured) for one in cells)
    assert inside / fits > 0.6


def test_quick_prints_all_tables(
    measured: Any, answers: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid, "quick", lambda: measured)
    monkeypatch.setattr(grid, "answers", lambda truths, guess: answers)
    grid.main(["--quick", "--markdown", "--spectra", "given"])
    shown = capsys.readouterr().out
    assert "| spectrum | cells |" in shown
    assert "| method, given | cells |" in shown
    assert "| worst, given | epsilon |" in shown
    assert "guess" not in shown
    assert f"| {grid.QUICK[0]} | 569 x 30, 5 | " in shown


def test_the_summary_sees_what_is_too_far(capsys: pytest.CaptureFixture[str]) -> None:
    near = [scored("curator/power", [0.5, 0.6], 0.56) for _ in range(19)]
    assert grid.summary({"given": [*near, scored("curator/power", [0.5, 0.6], 0.59)]})
    assert not grid.summary({"given": [*near[:-1], *[scored("curator/power", [0.5, 0.6], 0.59)] * 2]})
    assert not grid.summary({"guess": [scored("curator/power", [0.5, 0.6], 0.66)]})
    shown = capsys.readouterr().out
    assert "95% within 0.03: reached" in shown
    assert "95% within 0.03: MISSED" in shown


def test_fits_in_an_interval_are_counted_and_cells_beside_the_range_are_not() -> None:
    one = scored("curator/power", [0.4, 0.5, 0.58], 0.52, reach=0.06)
    assert one.inside == 2
    assert one.counted
    assert one.off == pytest.approx(0.52 - np.mean([0.4, 0.5, 0.58]))
    assert not replace(one, captured=(0.99, 0.99)).counted
    assert not replace(one, captured=(0.1,)).counted


def test_a_choice_is_held_against_the_best_of_its_setting() -> None:
    cells = (
        scored("hub/covariance", [0.9], 0.9),
        scored("hub/power", [0.8], 0.95),
        scored("site/power", [0.3], 0.4),
        scored("site/krylov", [0.4], 0.5),
    )
    answer = grid.Answer(grid.Group("small", 1.0, look=False, alone=False), cells, "site/krylov")
    assert answer.regrets() == pytest.approx({"all": 0.5, "hub": 0.1, "site": 0.0})
    assert "all" not in replace(answer, chosen=None).regrets()
