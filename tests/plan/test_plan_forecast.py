"""Forecasts: intervals, limits, guarantees and calls, and what does not depend on how it is asked."""

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, StreamingPCA
from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.plan import rehearsal
from eigenveil.plan.candidates import candidate_of
from eigenveil.plan.choose import plan_sites, predict
from eigenveil.plan.facts import METHODS, SETTINGS, Facts, methods_for
from eigenveil.plan.rehearsal import curve, forecast
from eigenveil.plan.spectrum import Spectrum

BUDGET = Budget(1.0, 1e-6)


def facts(dim: int = 30, people: int = 3000, **changes: Any) -> Facts:
    known: dict[str, Any] = {"spectrum": Spectrum.guessed(dim), "rank": 3, "budget": BUDGET, "sites": 6, "row_bound": 2.0}
    given = known | changes
    return Facts(dim=dim, people=people, **given)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_an_forecast(method: str) -> None:
    known = facts(trust=SETTINGS, people=1500, dim=16)
    found = forecast(known, method, fits=2)
    assert found.method == method and not found.refused
    assert 0 <= found.captured.low <= found.captured.value <= found.captured.high <= 1
    assert 0 <= found.sine.low <= found.sine.value <= found.sine.high <= 1
    assert found.captured.value > found.nothing == pytest.approx(known.spectrum.at_random(3))
    assert found.noise > 0 and found.memory > 0
    assert (found.traffic > 0) == (found.rounds > 0) == (method.partition("/")[0] not in ("curator", "stream"))
    assert "each person" in found.guarantee and "epsilon = 1" in found.guarantee


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("near", [Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE])
def test_every_call_is_one_that_its_estimator_takes(method: str, near: Neighbours) -> None:
    known = facts(trust=SETTINGS, dim=16, neighbours=near, rounds=15)
    call = forecast(known, method, fits=1).call
    made = eval(call, {kind.__name__: kind for kind in (FederatedPCA, GossipPCA, PrivatePCA, StreamingPCA)})
    rows = np.random.default_rng(0).standard_normal((1500, 16)) * 0.1
    several = hasattr(made, "graph") or hasattr(made, "trust")
    made.set_params(random_state=0).fit(np.array_split(rows, 6) if several else rows)
    assert made.components_.shape == (3, 16)


def test_more_of_everything_captures_more() -> None:
    few = forecast(facts(people=1500), "curator/covariance").captured.value
    assert forecast(facts(people=3000), "curator/covariance").captured.value > few + 0.02
    found = [one.captured.value for _, one in curve(facts(), "curator/power", [0.1, 0.3, 1.0, 3.0])]
    assert found == sorted(found) and found[-1] > found[0] + 0.3
    assert forecast(facts(neighbours=Neighbours.REPLACE_ONE), "curator/covariance").noise == pytest.approx(
        math.sqrt(2) * forecast(facts(neighbours=Neighbours.ZERO_OUT), "curator/covariance").noise, rel=0.01
    )


def test_doubt_widens_what_is_expected() -> None:
    values = Spectrum.guessed(30).values
    sure, unsure, noisy = (
        forecast(facts(spectrum=Spectrum(values=values, source="", spread=spread, error=error)), "curator/covariance").captured
        for spread, error in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.01))
    )
    assert sure.value == unsure.value == noisy.value
    assert unsure.high - unsure.low > 1.5 * (sure.high - sure.low)
    assert noisy.high - noisy.low > sure.high - sure.low


def test_nine_of_ten_fits_lie_in_the_interval() -> None:
    given = facts(spectrum=replace(Spectrum.guessed(30, bound_usage=0.5), spread=0.0), people=1500)
    stated = forecast(given, "curator/covariance").clipped
    again = [forecast(given, "curator/covariance", fits=1, seed=1000 + seed).clipped.value for seed in range(200)]
    inside = np.mean([stated.low <= value <= stated.high for value in again])
    # 0.9 of 200 deviates by 0.021, of which five are 0.106.
    assert inside > 0.79
    # And an interval half as wide would not do.
    middle, reach = stated.value, (stated.high - stated.low) / 4
    assert np.mean([abs(value - middle) <= reach for value in again]) < 0.79


def test_settings_cost_what_their_noise_says() -> None:
    known = facts(sites=9, trust=SETTINGS)
    noise_inflation = {
        name: candidate_of(known, f"{name}/covariance").noise_inflation for name in SETTINGS if name not in ("stream",)
    }
    assert noise_inflation["curator"] == noise_inflation["hub"] == 1.0
    assert noise_inflation["site"] == noise_inflation["peers-independent"] == 3.0
    assert noise_inflation["masked"] == pytest.approx(math.sqrt(9 / 8), rel=0.01)
    assert noise_inflation["peers"] == pytest.approx(math.sqrt(9 / 8), rel=0.001)
    assert candidate_of(replace(known, survivors=7, colluders=2), "masked/covariance").noise_inflation == pytest.approx(
        math.sqrt(9 / 5), rel=0.01
    )
    # Seven blocks of a horizon of seven: three levels, and the last sum is made of three stretches.
    tree = candidate_of(facts(center=None, blocks=7, sites=1), "stream/continual")
    assert tree.blocks == 7 and tree.noise_inflation == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("changes", "method", "why"),
    [
        ({"memory_limit": 1000}, "hub/covariance", "memory at one place"),
        ({"rounds": 3}, "hub/covariance", "takes up to 4 rounds, and the limit is 3"),
        ({"traffic": 100}, "site/power", "a site would send"),
        ({"trust": ("site",)}, "hub/covariance", "trust does not include 'hub'"),
        ({"sites": 1}, "hub/covariance", "it needs several sites"),
        ({"sites": 2}, "peers/covariance", "too few if 1"),
        ({"sites": 4, "survivors": 2}, "masked/covariance", "survivors must be at least 3"),
        ({"sites": 1, "memory_limit": 100_000}, "stream/continual", "memory_limit"),
    ],
)
def test_what_is_out_of_the_question_says_why(changes: dict[str, Any], method: str, why: str) -> None:
    found = forecast(facts(**changes), method, fits=1)
    assert why in found.refused
    assert found.captured.value > 0


def test_fewer_rounds_are_planned_where_more_cannot_be_afforded() -> None:
    few = forecast(facts(rounds=7), "hub/krylov", fits=1)
    assert not few.refused and few.rounds == 7 and vars(few.params)["rounds"] == 3 and "rounds=3" in few.call
    assert forecast(facts(), "hub/krylov", fits=1).rounds == 12


def test_plans_are_those_of_the_estimators() -> None:
    known = facts()
    ours = candidate_of(known, "curator/power").plan
    theirs = predict(dim=30, rank=3, budget=BUDGET, method="power").chosen
    assert ours == theirs.plan
    sites = plan_sites(dim=30, rank=3, budget=BUDGET, method="krylov", neighbours=known.neighbours)
    assert candidate_of(known, "hub/krylov").plan == sites


@pytest.mark.parametrize("dim", [5000, 41_000])
def test_many_columns_are_no_obstacle(dim: int) -> None:
    known = facts(
        dim, 3_000_000, spectrum=Spectrum(values=Spectrum.guessed(dim, decay=1.3).values, source="given"), trust=SETTINGS
    )
    begun = time.process_time()
    power = forecast(known, "curator/power")
    covariance = forecast(known, "curator/covariance")
    assert power.captured.value > 0.5 and covariance.captured.value >= power.captured.value - 0.02
    assert (covariance.refused == "") == (dim == 5000)
    assert time.process_time() - begun < 10


def test_settings_that_differ_in_name_alone_agree() -> None:
    known = facts(trust=SETTINGS)
    assert forecast(known, "curator/power").captured == forecast(known, "hub/power").captured
    assert forecast(known, "site/covariance").captured == forecast(known, "peers-independent/covariance").captured


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 31}, "rank must be from 1 to the 30 columns"),
        ({"people": 1}, "people must be at least 2"),
        ({"spectrum": Spectrum.guessed(3)}, "spectrum has 3 values"),
        ({"sites": 0}, "sites must be from 1"),
        ({"survivors": 9}, "survivors must be from 1 to the 6"),
        ({"colluders": 0}, "colluders must be at least 1"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"trust": ("everybody",)}, "trust must be one of"),
        ({"sites": 1, "trust": ("masked",)}, "needs several sites"),
        ({"center": "found"}, "center must be"),
        ({"neighbours": Neighbours.INTERACTION}, "neighbours must protect people"),
    ],
)
def test_facts_that_cannot_be_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        facts(**changes)


def test_rows_at_one_place_have_two_settings_and_at_many_the_others() -> None:
    assert {name.partition("/")[0] for name in methods_for(facts(sites=1))} == {"curator", "stream"}
    assert {name.partition("/")[0] for name in methods_for(facts(sites=3))} == set(SETTINGS) - {"curator", "stream"}
    assert set(methods_for(facts(trust=("curator", "site")))) < set(METHODS)


def test_the_same_trial_is_rehearsed_once_and_more_fits_of_it_are_the_new_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed: list[int] = []
    fit = rehearsal._fit

    def counted(trial: Any, values: Any, seed: int, **more: Any) -> tuple[float, float]:
        rehearsed.append(seed)
        return fit(trial, values, seed, **more)

    monkeypatch.setattr(rehearsal, "_fit", counted)
    # Of the same numbers, each time made anew, as from a model that is read twice.
    made = (
        Facts(
            dim=7,
            rank=2,
            people=4321,
            budget=Budget(0.9, 1e-6),
            spectrum=Spectrum(values=np.arange(7.0, 0.0, -1) / 30, source="given"),
        )
        for _ in range(3)
    )
    for facts, count in zip(made, (4, 4, 6), strict=True):
        forecast(facts, "curator/covariance", fits=count)
    assert rehearsed == [0, 1, 2, 3, 4, 5]
