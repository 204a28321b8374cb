"""Displays show the numbers that were released: the data of the drawn artists is compared with the model, not pixels."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from typer.testing import CliRunner

from eigenveil import FederatedPCA, PrivatePCA
from eigenveil.commands import app
from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.plan.facts import Facts
from eigenveil.plan.rehearsal import curve
from eigenveil.plan.spectrum import Spectrum
from eigenveil.show.plots import (
    BiplotDisplay,
    BudgetDisplay,
    ConvergenceDisplay,
    Display,
    LoadingsDisplay,
    PlanDisplay,
    ScreeDisplay,
    pyplot,
)

HOSTILE = ("$x^2$", r"\input{secret}", "<script>alert(1)</script>", "a\nb\x1b[31m", "n" * 60, "age")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """No window, and no figure left for the next test."""
    mpl.use("agg")
    yield
    pyplot().close("all")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rows = np.random.default_rng(0).standard_normal((3000, 6)) * [4, 3, 2, 1, 1, 1]
    return pd.DataFrame(rows, columns=HOSTILE)


@pytest.fixture(scope="module")
def pca(table: pd.DataFrame) -> PrivatePCA:
    return PrivatePCA(4, epsilon=1.0, delta=1e-6, row_bound=8.0, random_state=0).fit(table)


@pytest.fixture(scope="module")
def federated() -> FederatedPCA:
    # Enough columns for several rounds.
    rows = np.random.default_rng(1).standard_normal((600, 40)) / np.sqrt(np.arange(1, 41))
    sites = {f"site {at}": part for at, part in enumerate(np.array_split(rows, 3))}
    return FederatedPCA(2, epsilon=None, delta=None, method="power", random_state=0).fit(sites)


def test_the_scree_has_a_bar_for_each_variance_and_a_line_at_the_floor(pca: PrivatePCA) -> None:
    display = ScreeDisplay.from_estimator(pca)
    heights = [bar.get_height() for bar in display.bars_]
    np.testing.assert_array_equal(heights, pca.explained_variance_)
    assert display.floor_ is not None
    assert list(np.unique(display.floor_.get_ydata())) == [pca.noise_floor_]
    faint = [value <= pca.noise_floor_ for value in pca.explained_variance_]
    grey = [bar.get_facecolor()[:3] == (0.6, 0.6, 0.6) for bar in display.bars_]
    assert grey == faint
    assert display.ax_.get_title() == f"{pca.n_above_noise_} of 4 above the noise floor"
    # One released covariance: every interval reaches the noise floor to both sides, but not below zero.
    assert display.intervals is not None
    variances = pca.explained_variance_
    np.testing.assert_allclose(display.intervals[:, 1], variances + pca.noise_floor_)
    np.testing.assert_allclose(display.intervals[:, 0], np.maximum(variances - pca.noise_floor_, 0.0))


@pytest.mark.parametrize("kind", [ScreeDisplay, LoadingsDisplay, BiplotDisplay, BudgetDisplay])
def test_an_estimator_a_pipeline_a_model_and_a_file_give_the_same_picture(kind: Any, pca: PrivatePCA, tmp_path: Path) -> None:
    pca.save(tmp_path / "model.safetensors")
    piped = make_pipeline(FunctionTransformer(), pca)
    sources = [pca, piped, pca.model_, tmp_path / "model.safetensors", str(tmp_path / "model.safetensors")]
    drawn = [_numbers(kind.from_estimator(source)) for source in sources]
    assert all(one == drawn[0] for one in drawn)


def _numbers(display: Any) -> list[list[float]]:
    """All numbers that a display shows."""
    arrays = (getattr(display, name, None) for name in ("explained_variance", "components", "weights"))
    found = [np.ravel(one).tolist() for one in arrays if one is not None]
    return [*found, [charge.mu for charge in getattr(display, "charges", ())]]


def test_a_display_draws_into_the_axes_it_is_given_and_makes_its_own_otherwise(pca: PrivatePCA) -> None:
    figure, axes = pyplot().subplots(1, 2)
    display = ScreeDisplay.from_estimator(pca, ax=axes[1])
    assert display.ax_ is axes[1]
    assert display.figure_ is figure
    assert not axes[0].patches
    alone = display.plot()
    assert alone is display
    assert alone.ax_ is not axes[1]


def test_the_colours_of_the_loadings_are_the_largest_weights(pca: PrivatePCA) -> None:
    display = LoadingsDisplay.from_estimator(pca, largest=3)
    order = np.argsort(-np.abs(pca.components_).max(axis=0), kind="stable")[:3]
    assert display.image_ is not None
    np.testing.assert_allclose(np.asarray(display.image_.get_array()), pca.components_[:, order].T)
    low, high = display.image_.get_clim()
    assert -low == high == np.abs(pca.components_[:, order]).max()
    assert display.ax_.get_xlabel() == "component; 3 columns with smaller weights not drawn"


def test_names_are_literal_text_whatever_they_contain(pca: PrivatePCA) -> None:
    with mpl.rc_context({"text.usetex": True}):
        shown = LoadingsDisplay.from_estimator(pca).ax_.get_yticklabels()
        beside = BiplotDisplay.from_estimator(pca).names_
    for text in (*shown, *beside):
        assert not text.get_parse_math()
        assert not text.get_usetex()
        assert len(text.get_text().strip()) <= 24
        assert text.get_text().isprintable()
    assert {text.get_text() for text in shown} >= {"$x^2$", "a?b?[31m", "n" * 14 + "…" + "n" * 9}


def test_every_picture_of_hostile_names_can_be_drawn(pca: PrivatePCA, table: pd.DataFrame) -> None:
    for display in (LoadingsDisplay.from_estimator(pca), BiplotDisplay.from_estimator(pca, table)):
        display.figure_.canvas.draw()


def test_a_biplot_with_rows_shows_their_scores_and_says_that_they_are_raw(
    pca: PrivatePCA, table: pd.DataFrame, tmp_path: Path
) -> None:
    display = BiplotDisplay.from_estimator(pca, table)
    expected = pca.transform(table)[:, :2]
    assert display.points_ is not None
    np.testing.assert_allclose(np.asarray(display.points_.get_offsets()), expected)
    assert "raw data" in display.ax_.get_title()
    # A repr ends up in logs and notebooks, so it must not have them.
    assert "scores" not in repr(display)
    pca.save(tmp_path / "model.safetensors")
    shuffled = table[list(reversed(table.columns))].assign(other=1.0)
    again = BiplotDisplay.from_estimator(tmp_path / "model.safetensors", shuffled)
    assert again.scores is not None
    np.testing.assert_allclose(again.scores, expected)
    np.testing.assert_allclose(np.asarray(BiplotDisplay.from_estimator(pca.model_, table.to_numpy()).scores), expected)
    with pytest.raises(ValueError, match="the table lacks columns of the model: age"):
        BiplotDisplay.from_estimator(pca.model_, table.drop(columns="age"))


def test_the_bars_of_a_budget_end_at_what_was_spent(pca: PrivatePCA) -> None:
    display = BudgetDisplay.from_estimator(pca)
    charges = pca.guarantee_.charges
    ends = [bar.get_x() + bar.get_width() for bar in display.bars_]
    assert len(ends) == len(charges)
    total = epsilon_of(float(np.hypot.reduce([charge.mu for charge in charges])), 1e-6)
    assert ends[-1] == pytest.approx(total)
    assert display.spent == pytest.approx(total)
    assert all(low == pytest.approx(high) for low, high in zip([0.0, *ends], [b.get_x() for b in display.bars_], strict=False))
    assert display.budget_ is not None
    assert list(np.unique(display.budget_.get_xdata())) == [1.0]


def test_the_line_of_convergence_has_the_movement_of_each_round(federated: FederatedPCA, tmp_path: Path) -> None:
    display = ConvergenceDisplay.from_estimator(federated)
    moved = [(done.number + 1, done.movement) for done in federated.transcript_ if done.movement is not None]
    assert len(moved) > 3
    assert np.asarray(display.line_.get_xydata()).tolist() == [[at, max(one, 1e-16)] for at, one in moved]
    assert display.ax_.get_yscale() == "log"
    assert display.missing_ is None
    rounds = [{"movement": done.movement, "missing": ["b"] if at == 4 else []} for at, done in enumerate(federated.transcript_)]
    (tmp_path / "run.report.json").write_text(json.dumps({"rounds": rounds}))
    read = ConvergenceDisplay.from_estimator(tmp_path / "run.report.json")
    np.testing.assert_array_equal(np.asarray(read.line_.get_xydata()), np.asarray(display.line_.get_xydata()))
    assert read.missing_ is not None
    assert np.asarray(read.missing_.get_xdata()).tolist() == [5]
    again = ConvergenceDisplay.from_estimator(federated.transcript_)
    assert again.movements == display.movements


def test_a_plan_draws_the_forecasts_with_their_intervals(tmp_path: Path) -> None:
    facts = Facts(dim=8, rank=2, people=2000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(8), row_bound=1.0)
    display = PlanDisplay.from_facts(facts, "curator/covariance", epsilons=[3.0, 0.3])
    found = curve(facts, "curator/covariance", [0.3, 1.0, 3.0])
    expected = [[at, one.captured.value] for at, one in found]
    np.testing.assert_array_equal(np.asarray(display.captured_.get_xydata()), expected)
    np.testing.assert_array_equal(display.sines_.get_ydata(), [one.sine.value for _, one in found])
    corners = {tuple(corner) for corner in np.asarray(display.bands_[0].get_paths()[0].vertices).tolist()}
    assert {(at, one.captured.low) for at, one in found} <= corners
    assert {(at, one.captured.high) for at, one in found} <= corners
    assert display.target_ is not None
    assert list(np.unique(display.target_.get_xdata())) == [1.0]


def test_a_plan_of_a_fit_marks_its_own_epsilon(pca: PrivatePCA, federated: FederatedPCA, tmp_path: Path) -> None:
    pca.save(tmp_path / "model.safetensors")
    display, again = (PlanDisplay.from_estimator(source) for source in (pca, tmp_path / "model.safetensors"))
    assert display.target == 1.0 and 1.0 in display.epsilons
    assert display.method == "curator/covariance"
    assert display.captured == again.captured
    assert display.captured[-1].value > display.captured[0].value
    with pytest.raises(ValueError, match="the planner has no forecast for such a fit"):
        PlanDisplay.from_estimator(federated)


def test_a_plan_in_a_file_draws_what_the_command_found(tmp_path: Path) -> None:
    asked = "plan -n 2000 -d 8 -k 2 --epsilon 1 --delta 1e-6 --row-bound 1 --epsilons 0.3,1 --method covariance --json"
    found = CliRunner().invoke(app, asked.split())
    assert found.exit_code == 0, found.output
    path = tmp_path / "plan.json"
    path.write_text(found.stdout)
    display = PlanDisplay.from_file(path)
    points = json.loads(found.stdout)["curve"]["points"]
    assert display.epsilons == (0.3, 1.0)
    assert [one.value for one in display.captured] == [point["captured"]["value"] for point in points]
    assert display.target == 1.0


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda path: ScreeDisplay.from_estimator([1]), "a fitted estimator, a Model or the path of a model file, got a list"),
        (lambda path: ConvergenceDisplay.from_estimator(path / "m.safetensors"), "a model does not keep its rounds"),
        (lambda path: ConvergenceDisplay.from_estimator(path / "bad.json"), "is not JSON: give a file that `eigenveil hub"),
        (lambda path: ConvergenceDisplay.from_estimator(path / "odd.json"), "its rounds are not as expected"),
        (lambda path: ConvergenceDisplay.from_estimator(3), "give a fitted FederatedPCA or GossipPCA, .* got a int"),
        (lambda path: PlanDisplay.from_file(path / "odd.json"), "has no 'curve': give a file that `eigenveil plan --json`"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_with_what_would_do(draw: Callable[[Path], Display], words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text(json.dumps({"rounds": [{"moved": 1}]}))
    with pytest.raises(ValueError, match=words):
        draw(tmp_path)


def test_without_matplotlib_the_error_names_the_extra(pca: PrivatePCA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"plots need matplotlib: pip install 'eigenveil\[plot\]'"):
        ScreeDisplay.from_estimator(pca)
