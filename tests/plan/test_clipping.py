"""What clipping costs: forecasts and reports name the rows that they are a share of, and heavy tails widen them."""

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from eigenveil import PrivatePCA, StreamingPCA, find_bounds
from eigenveil.commands import app
from eigenveil.core.accounting import Budget
from eigenveil.core.counts import Bins
from eigenveil.errors import ParameterWarning
from eigenveil.estimators.bounds.rows import norms_of
from eigenveil.linalg import Array
from eigenveil.plan.clipping import Norms, kept_by_clipping, taken_by_clipping
from eigenveil.plan.facts import Facts
from eigenveil.plan.rehearsal import Interval, forecast
from eigenveil.plan.spectrum import Spectrum
from eigenveil.show.report import model_report, plan_part
from eigenveil.tasks.fit.bounds import Outliers
from eigenveil.tasks.levels import BEYOND, TailCounts

VALUES = np.array([0.3, 0.1, 0.05, 0.01])


def with_outliers(rows: int = 20_000) -> Array:
    """Rows of which one in fifty is a hundred times as long, along a direction of its own."""
    rng = np.random.default_rng(5)
    found = rng.standard_normal((rows, 6)) * [3, 2, 1, 1, 1, 0.1]
    far = rng.random(rows) < 0.02
    found[far, 5] += 300 * rng.standard_normal(int(far.sum()))
    return found


def captured(rows: Array, components: Array) -> float:
    """Slow and obvious: the share of what exact PCA of all rows, as they are, finds."""
    centred = rows - rows.mean(axis=0)
    gram = centred.T @ centred
    return float(np.trace(components @ gram @ components.T) / np.linalg.eigvalsh(gram)[::-1][: len(components)].sum())


def kept(norms: Norms | None, *, people: int = 10_000, bound: float = 1.0) -> Array:
    return kept_by_clipping(norms, bound=bound, people=people, values=VALUES, rng=np.random.default_rng(1), draws=400)


def pareto(power: float) -> Norms:
    """Norms of which a share t^-power exceeds t."""
    return Norms(tuple(share ** (-1 / power) for share in BEYOND), BEYOND)


def test_a_report_of_few_long_rows_does_not_promise_what_clipping_took() -> None:
    """Before, it promised 99% to 100% of "the variance that can be captured" where clipped rows were meant."""
    rows = with_outliers()
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=0).fit(rows)
    truth = captured(rows, pca.components_)
    assert truth < 0.2
    report = model_report(pca.model_)
    assert report.plan is not None and report.plan.of == "all rows"
    (here,) = (point for point in report.plan.points if point.epsilon == 1.0)
    # A forecast of directions in which there is next to nothing: its interval reaches nearly as far down.
    assert here.captured.low < truth + 0.1 and here.captured.value < 0.7
    assert report.components is not None and report.components.taken is not None
    # What clipping took of the squared norms is said as well, and is so much.
    centred = np.square(rows - rows.mean(axis=0)).sum(axis=1)
    took = 1 - np.minimum(centred, pca.model_.settings["row_bound"] ** 2).sum() / centred.sum()
    assert report.components.taken.low <= took <= report.components.taken.high
    assert took > 0.9


def test_light_tails_are_known_to_cost_little() -> None:
    rows = np.random.default_rng(2).standard_normal((20_000, 6)) * [3, 2, 1, 1, 1, 1]
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=0).fit(rows)
    part = plan_part(pca.model_)
    assert part is not None and part.of == "all rows"
    (here,) = (point for point in part.points if point.epsilon == 1.0)
    assert here.captured.low > 0.95
    assert here.captured.low <= captured(rows, pca.components_) <= here.captured.high


@pytest.mark.parametrize(
    ("more", "of"),
    [
        ({"row_bound": 9.0}, "clipped rows"),
        ({"column_bounds": (-9.0, 9.0)}, "clipped rows"),
        ({"scale": "private"}, "all rows"),
        ({}, "all rows"),
    ],
)
def test_where_nobody_knows_what_was_clipped_that_is_said(more: dict[str, object], of: str) -> None:
    rows = np.random.default_rng(2).standard_normal((5000, 6)) * [3, 2, 1, 1, 1, 1]
    part = plan_part(PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=0, **more).fit(rows).model_)  # type: ignore[arg-type]
    assert part is not None and part.of == of
    assert ("so this is of the clipped rows" in part.note) == (of == "clipped rows")


def test_reports_come_from_the_file_alone_and_charge_nothing(tmp_path: Path) -> None:
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=0).fit(with_outliers())
    assert pca.ledger_ is not None
    charges = pca.ledger_.charges
    pca.save(tmp_path / "model.safetensors")
    from eigenveil.model import Model

    assert plan_part(Model.load(tmp_path / "model.safetensors")) == plan_part(pca.model_)
    assert pca.ledger_.charges == charges


def test_equal_releases_give_equal_reports() -> None:
    """Nothing but released numbers is used: the model is all that there is."""
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=0).fit(with_outliers())
    again = replace(pca.model_, settings=json.loads(json.dumps(pca.model_.settings)))
    assert plan_part(again) == plan_part(pca.model_)


@pytest.mark.parametrize("norms", [{"0.5": -1.0}, {"x": 2.0}, {"0.5": "high"}, {"2": 1.0}, [1, 2], {"0.5": 2.0, "0.1": 1.0}])
def test_norms_of_an_edited_file_are_not_believed(norms: object) -> None:
    assert Norms.read(norms) is None
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=0).fit(with_outliers(5000))
    edited = replace(pca.model_, settings={**pca.model_.settings, "norms": norms})
    assert plan_part(edited) is not None and model_report(edited).components.taken is None  # type: ignore[union-attr]


def test_the_norms_in_a_model_are_those_that_were_released() -> None:
    rows = with_outliers()
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=0).fit(rows)
    norms = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    found = pca.model_.settings["norms"]
    assert found and {float(share) for share in found} <= set(BEYOND)
    for share, norm in found.items():
        # Counts have noise, and norms are known to within 4.4%.
        assert np.quantile(norms, 1 - min(1.0, 1.4 * float(share) + 0.01)) / 1.05 <= norm
        assert norm <= np.quantile(norms, 1 - 0.6 * float(share)) * 1.05


@given(st.floats(0.3, 20), st.integers(100, 10**6), st.floats(0.1, 100))
@settings(max_examples=30, deadline=None)
def test_what_is_kept_is_a_share(power: float, people: int, bound: float) -> None:
    found = kept(pareto(power), people=people, bound=bound)
    assert np.isfinite(found).all() and found.min() >= 0 and found.max() <= 1
    value, low, high = taken_by_clipping(pareto(power), bound=bound, people=people)
    assert 0 <= low <= value <= high <= 1


def test_heavier_tails_keep_less() -> None:
    lows = [float(np.quantile(kept(pareto(power)), 0.05)) for power in (0.7, 1.5, 3.0, 10.0)]
    assert lows == sorted(lows)
    assert lows[0] < 0.3 and lows[-1] > 0.95


def test_nothing_is_lost_where_no_row_is_clipped() -> None:
    light = Norms((1.0, 2.0, 2.2), (0.5, 0.1, 0.01))
    assert kept(light, bound=50.0).min() == pytest.approx(1.0, abs=1e-9)


def test_units_of_norms_do_not_matter() -> None:
    norms = pareto(2.5)
    assert kept(norms, bound=2.0) == pytest.approx(kept(norms.over(1e6), bound=2e-6))


def test_what_is_taken_is_what_exact_norms_say() -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((200_000, 8)) * np.arange(8, 0, -1)
    norms = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    for quantile in (0.3, 0.7, 0.95):
        bound = float(np.quantile(norms, quantile))
        exact = 1 - np.minimum(norms**2, bound**2).sum() / np.square(norms).sum()
        value, low, high = taken_by_clipping(Norms.of_rows(rows), bound=bound, people=200_000)
        assert value == pytest.approx(exact, abs=0.02) and low - 0.02 <= exact <= high + 0.02


def test_norms_hidden_by_noise_are_not_told() -> None:
    cells = Bins(np.exp2(np.arange(6.0)))
    beyond = np.array([900.0, 700.0, 400.0, 90.0, 10.0, 3.0])
    seen = TailCounts(cells=cells, beyond=beyond, error=np.full(6, 20.0), people=1000.0, people_error=0.0).seen()
    told = {share for share, norm in zip(BEYOND, seen, strict=True) if norm > 0}
    assert told == {share for share in BEYOND if 0.05 <= share <= 0.95}
    assert (
        sum(
            norm > 0
            for norm in TailCounts(cells=cells, beyond=beyond, error=np.full(6, 1e6), people=1000.0, people_error=0.0).seen()
        )
        == 0
    )


def test_a_plan_without_norms_allows_for_heavy_tails_and_norms_narrow_it() -> None:
    facts = Facts(dim=20, rank=3, people=50_000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(20, rank=3, explained=0.6))
    unknown = forecast(facts, "curator/covariance")
    light = forecast(
        replace(facts, norms=Norms.of_rows(np.random.default_rng(0).standard_normal((5000, 20))).over(4.0)), "curator/covariance"
    )
    heavy = forecast(replace(facts, norms=pareto(1.2)), "curator/covariance")
    given = forecast(replace(facts, row_bound=4.0), "curator/covariance")
    assert unknown.of == light.of == heavy.of == "all rows" and given.of == "clipped rows"
    assert unknown.captured.low < 0.8 < 0.95 < light.captured.low
    assert heavy.captured.value < unknown.captured.value
    assert given.captured == given.clipped
    # What is said of the clipped rows does not depend on what norms are known.
    assert unknown.clipped == light.clipped == heavy.clipped


def test_a_fill_that_nobody_gave_is_that_of_a_bound_that_is_found() -> None:
    few, many = (Spectrum.guessed(16).in_found_bound(people, 0.2).bound_usage for people in (400, 1e6))
    assert few == pytest.approx(0.88, abs=0.01) and many == pytest.approx(0.43, abs=0.01)
    told = Spectrum.guessed(16, bound_usage=0.3)
    assert told.in_found_bound(400, 0.2) is told and math.isclose(told.bound_usage, 0.3)


def far_rows(share: float, norm: float, *, rows: int = 15_000, seed: int = 0, spread: float = 0.0) -> Array:
    """Rows of norm about 5, of which a few have one enormous column."""
    rng = np.random.default_rng([seed, rows])
    found = rng.standard_normal((rows, 8)) * [4, 2.5, 1, 1, 1, 1, 0.5, 0.1]
    far = rng.random(rows) < share
    found[far, 7] = norm * np.exp(spread * rng.standard_normal(int(far.sum())))
    return found


def honest(rows: Array, components: Array, center: Array, norms: Norms, said: Interval) -> bool:
    """Whether the truth is in the interval, or the rows that make it wrong are no more than noise is said to hide."""
    truth, hidden = captured(rows, components), norms.hidden()
    if said.low - 1e-9 <= truth <= said.high + 1e-9:
        return True
    assert hidden is not None
    longer = float((np.linalg.norm(rows - center, axis=1) > hidden.norm).mean())
    return 0 < longer <= hidden.share


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("share", "norm", "spread"), [(0.02, 5000.0, 0.0), (0.03, 300.0, 0.5), (0.02, 1e8, 0.0)])
def test_a_plan_with_bounds_allows_for_long_rows_that_no_count_shows(
    share: float, norm: float, spread: float, seed: int, tmp_path: Path
) -> None:
    """Before, `plan --bounds` promised 99% to 100% of all rows where fits captured a hundred-thousandth."""
    rows = far_rows(share, norm, seed=seed, spread=spread)
    found = find_bounds(rows, epsilon=0.1, delta=1e-6, random_state=seed)
    assert found.row_bound is not None
    norms = norms_of(found.candidates, found.outliers)
    assert norms is not None and norms.power is not None
    facts = Facts(
        dim=8,
        rank=2,
        people=len(rows),
        budget=Budget(1.0, 1e-6),
        spectrum=Spectrum.guessed(8),
        row_bound=found.row_bound,
        norms=norms,
    )
    said = forecast(facts, "curator/covariance").captured
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=seed, **found.settings).fit(rows)
    assert captured(rows, pca.components_) < 0.01
    assert honest(rows, pca.components_, pca.mean_, norms, said)
    # The answer says so where the plan does, and what to do next.
    assert (norms.longest(found.row_bound) is not None) == (said.low < 0.1) == ("A larger epsilon" in found.note)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("share", "norm"), [(0.02, 5000.0), (0.018, 200.0), (0.025, 1e6)])
def test_a_fit_warns_of_long_rows(share: float, norm: float, seed: int) -> None:
    """Before, four such fits captured nothing of all rows, without any warning."""
    rows = far_rows(share, norm, seed=seed)
    with pytest.warns(ParameterWarning, match="times as long as the row bound.*refit with a larger row_bound"):
        pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=seed).fit(rows)
    part, truth = plan_part(pca.model_), captured(rows, pca.components_)
    assert part is not None and truth < 0.1
    (here,) = (point for point in part.points if point.epsilon == 1.0)
    assert here.captured.low <= truth <= here.captured.high
    assert "the interval allows for that" in part.note


@pytest.mark.parametrize("share", [0.0, 0.002, 0.004])
def test_where_a_fit_is_silent_its_report_names_what_may_hide(share: float) -> None:
    rows = far_rows(share, 5000.0, seed=9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=1).fit(rows)
    part, norms = plan_part(pca.model_), Norms.read(pca.model_.settings["norms"], pca.model_.settings["outliers"])
    assert part is not None and norms is not None
    (here,) = (point for point in part.points if point.epsilon == 1.0)
    assert honest(rows, pca.components_, pca.mean_, norms, Interval(here.captured.value, here.captured.low, here.captured.high))
    hidden = norms.hidden()
    assert hidden is not None and share < hidden.share < 0.03
    if not any("times as long" in str(one.message) for one in caught):
        assert f"at most {hidden.share:.1%}" in part.note and "does not allow for them" in part.note


def test_ordinary_tables_are_not_warned_of() -> None:
    """Gaussian rows, sums of exponentials and t5 rows, of many sizes: at most a few in a hundred. All were silent here."""
    rng, warned, fits = np.random.default_rng(4), 0, 30
    for at in range(fits):
        count = int(rng.integers(3000, 12_000))
        rows = rng.standard_normal((count, 6)) if at % 3 == 0 else rng.exponential(size=(count, 6))
        if at % 3 == 2:
            rows = rng.standard_normal((count, 6)) / np.sqrt(rng.chisquare(5, (count, 1)) / 5)
        pca = PrivatePCA(2, epsilon=float(rng.choice([0.5, 1.0, 3.0])), delta=1e-6, random_state=at).fit(rows)
        warned += any("times as long" in word for word in pca.model_.warnings)
    # Up to 3% of each: nine or more of 30 come at the level 1e-6.
    assert warned <= 8


def test_norms_and_outliers_have_one_unit() -> None:
    one = Norms((1.0, 2.0, 3.0), (0.5, 0.2, 0.05), Outliers(6.0, 0.04, 900.0, 0.02, 400.0))
    assert kept(one, bound=2.0) == pytest.approx(kept(one.over(1e6), bound=2e-6))
    assert float(np.quantile(kept(one, bound=2.0), 0.05)) < 0.01
    # Rows that are not longer than the bound, or have less variance than the others, take nothing over.
    assert one.longest(200.0) is None and replace(one, outliers=Outliers(6.0, 0.04, 900.0, 1e-6, 400.0)).longest(2.0) is None
    assert replace(one, outliers=Outliers(6.0, 0.04, 0.9, 0.02, 400.0)).longest(2.0) is None


def test_bounds_of_a_file_say_what_the_release_said(tmp_path: Path) -> None:
    """And a file that was edited is read without what it cannot say."""
    rows, path = far_rows(0.02, 5000.0), tmp_path / "bounds.json"
    found = find_bounds(rows, epsilon=0.1, delta=1e-6, random_state=0)
    assert found.outliers is not None
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header=",".join("abcdefgh"), comments="")
    words = ["bounds", str(tmp_path / "rows.csv"), "--epsilon", "0.1", "--delta", "1e-6", "--seed", "0", "-o", str(path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    plain = json.loads(path.read_text())
    assert plain["outliers"] == found.outliers._asdict()
    plan = ["plan", "-n", "15000", "-k", "2", "--epsilon", "1", "--delta", "1e-6", "--bounds", str(path), "--json"]
    answer = json.loads(CliRunner().invoke(app, plan).stdout)
    assert answer["chosen"]["captured"]["low"] < 0.01 and any("times as long" in line for line in answer["answer"])
    fit = [
        "fit",
        str(tmp_path / "rows.csv"),
        "-k",
        "2",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--bounds",
        str(path),
        "-o",
        str(tmp_path / "m.safetensors"),
    ]
    assert "times as long as the bound in" in " ".join(CliRunner().invoke(app, fit, env={"COLUMNS": "400"}).stdout.split())
    for outliers in (None, 3, {"beyond": 3}, {**plain["outliers"], "most": "x"}):
        path.write_text(json.dumps({**plain, "outliers": outliers}))
        answer = json.loads(CliRunner().invoke(app, plan).stdout)
        assert not any("times as long" in line for line in answer["answer"])


def test_a_stream_keeps_what_its_search_saw(tmp_path: Path) -> None:
    rows = far_rows(0.03, 5000.0, rows=6000)
    one = StreamingPCA(2, epsilon=3.0, delta=1e-6, random_state=0, block_size=3000)
    one.partial_fit(rows[:4000])
    one.save_state(tmp_path / "state")
    again = StreamingPCA.resume(tmp_path / "state")
    for stream in (one, again):
        stream.partial_fit(rows[4000:])
        stream.sync()
    assert one.model_.settings["outliers"] == again.model_.settings["outliers"]
    assert any("times as long" in word for word in again.model_.warnings)
