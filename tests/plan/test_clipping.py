"""What clipping costs: forecasts and reports name the rows that they are a share of, and heavy tails widen them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil import PrivatePCA
from eigenveil.core.accounting import Budget
from eigenveil.core.counts import BEYOND, Cells, Tails
from eigenveil.linalg import Array
from eigenveil.plan import Facts, Norms, Spectrum, forecast, taken_by_clipping
from eigenveil.plan.clipping import kept_by_clipping
from eigenveil.report import model_report, plan_part

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
    assert ("of the clipped rows" in part.note) == (of == "clipped rows")


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


@pytest.mark.parametrize(
    "norms", [{"0.5": -1.0}, {"x": 2.0}, {"0.5": "high"}, {"2": 1.0}, [1, 2], {"0.5": 2.0, "0.1": 1.0}]
)
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
    cells = Cells(np.exp2(np.arange(6.0)))
    beyond = np.array([900.0, 700.0, 400.0, 90.0, 10.0, 3.0])
    seen = Tails(cells, beyond, np.full(6, 20.0), 1000.0, 0.0).seen()
    told = {share for share, norm in zip(BEYOND, seen, strict=True) if norm > 0}
    assert told == {share for share in BEYOND if 0.05 <= share <= 0.95}
    assert sum(norm > 0 for norm in Tails(cells, beyond, np.full(6, 1e6), 1000.0, 0.0).seen()) == 0


def test_a_plan_without_norms_allows_for_heavy_tails_and_norms_narrow_it() -> None:
    facts = Facts(20, 3, 50_000, Budget(1.0, 1e-6), Spectrum.guessed(20, rank=3, explained=0.6))
    unknown = forecast(facts, "curator/covariance")
    light = forecast(
        replace(facts, norms=Norms.of_rows(np.random.default_rng(0).standard_normal((5000, 20))).over(4.0)),
        "curator/covariance",
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
    few, many = (Spectrum.guessed(16).in_found_bound(people, 0.2).fill for people in (400, 1e6))
    assert few == pytest.approx(0.88, abs=0.01) and many == pytest.approx(0.43, abs=0.01)
    told = Spectrum.guessed(16, fill=0.3)
    assert told.in_found_bound(400, 0.2) is told and math.isclose(told.fill, 0.3)
