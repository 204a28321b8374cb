"""A small version of benchmarks/plan/truth.py and grid.py: they run, and what they print is what they say it is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.plan import coverage, grid, tables, truth
from benchmarks.plan.other_tables import FILES, OTHER
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


def test_a_cell_is_read_back_and_shares_no_noise_with_others() -> None:
    cells = truth.cells_of("usps", 256, candidates=list(truth.METHODS), epsilons=truth.EPSILONS)
    assert [truth.Cell.read(cell.key) for cell in cells] == cells
    seeds = {cell.seed(number) for cell in cells for number in range(150)}
    assert len(seeds) == 150 * len(cells)


def test_what_would_take_too_long_is_left_out() -> None:
    asked: dict[str, Any] = {"candidates": list(truth.METHODS), "epsilons": [1.0]}
    few, many, most = (len(truth.cells_of("mnist:test", dim, **asked)) for dim in (100, 784, 1682))
    assert few == len(truth.METHODS) > many > most > 0


def test_measuring_goes_on_where_it_stopped(tmp_path: Path) -> None:
    table, path = small(), tmp_path / "kept" / "truth.json"
    cells = [truth.Cell("small", candidate, 3.0) for candidate in ("curator/covariance", "hub/power")]
    first = truth.Truths.open(path)
    truth.measure(first, table, cells, error=0.0, seconds=0.0)
    counts = {key: len(found["captured"]) for key, found in first.cells.items()}
    assert set(counts.values()) == {24}
    again = truth.Truths.open(path)
    assert (again.facts, again.cells) == (first.facts, first.cells)
    truth.measure(again, table, cells, error=1.0, seconds=1.0)
    assert again.cells == first.cells
    truth.measure(again, table, cells[:1], error=0.0, seconds=0.02)
    found = again.cells[cells[0].key]["captured"]
    assert found[:24] == first.cells[cells[0].key]["captured"]
    assert len(found) > 24
    assert len(set(found)) == len(found)


def test_more_epsilon_than_was_enough_is_not_measured() -> None:
    candidate, table = "curator/covariance", small()
    truths = truth.Truths(None, quick=True)
    truths.cells[truth.Cell("small", candidate, 1.0).key] = {"captured": [0.995], "sine": [0.1]}
    asked = [
        truth.Cell("small", candidate, 3.0),
        truth.Cell("small", candidate, 0.5),
        truth.Cell("small", candidate, 3.0, look=True),
    ]
    truth.measure(truths, table, asked, error=1.0, seconds=0.0)
    assert asked[0].key not in truths.cells
    assert len(truths.cells[asked[1].key]["captured"]) >= 8
    assert len(truths.cells[asked[2].key]["captured"]) >= 8


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


def test_without_truths_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not grid.main(["--cache", str(tmp_path / "none.json")])
    assert "benchmarks/plan/truth.py --cache" in capsys.readouterr().out


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


def test_halves_are_decided_by_names_alone() -> None:
    halves = {name: tables.half_of(name) for name in tables.TABLES}
    assert {"tuning", "held-out", "fresh", "other"} == set(halves.values())
    counts = [list(halves.values()).count(half) for half in ("tuning", "held-out")]
    assert abs(counts[0] - counts[1]) <= 3


@pytest.mark.parametrize("name", sorted(OTHER.keys() - FILES.keys()))
def test_other_tables_are_of_numbers_that_vary(name: str) -> None:
    rows = OTHER[name](np.random.default_rng(0), 400)
    assert len(rows) == 400 and rows.dtype == np.float64
    assert np.isfinite(rows).all() and rows.var() > 0


@pytest.mark.parametrize("setting", coverage.SETTINGS)
def test_a_cell_of_the_coverage_says_which_rows_it_is_a_share_of(setting: coverage.Setting) -> None:
    found = list(coverage.scored("isotropic", setting, 2))
    assert {one.kind for one in found} == {"plan", "explained", "report"}
    # Rows without heavy tails, a few of thousands: all of it is captured, and so every interval holds.
    assert all(one.inside for one in found)
    assert {one.said.of for one in found} <= {"all rows", "clipped rows"}
    assert all((one.said.of == "clipped rows") == (one.way == "given") for one in found)


def test_a_share_of_what_exact_pca_finds() -> None:
    rows = np.diag([2.0, 1.0, 0.0])
    assert coverage.share_of(rows, np.eye(3)[:, :1]) == pytest.approx(1.0)
    assert coverage.share_of(rows, np.eye(3)[:, 1:2]) == pytest.approx(0.25)
