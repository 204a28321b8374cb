"""Recommendations: the best within limits, what "auto" would take, the least trust among equals, and a plain no if none works."""

from dataclasses import replace
from typing import Any

import pytest

from eigenveil.core.accounting import Budget
from eigenveil.methods import methods_in
from eigenveil.plan.facts import SETTINGS, Facts
from eigenveil.plan.recommendation import FAIR, _downwards, _first, _upwards, advise
from eigenveil.plan.rehearsal import forecast
from eigenveil.plan.spectrum import Spectrum

QUICK = ("hub/covariance", "hub/power", "site/covariance", "site/power", "masked/covariance", "masked/power")


def facts(people: int = 20_000, **changes: Any) -> Facts:
    given: dict[str, Any] = {"budget": Budget(1.0, 1e-6), "sites": 6, "row_bound": 1.0} | changes
    return Facts(dim=30, rank=3, people=people, spectrum=Spectrum.guessed(30), **given)


def test_among_equals_the_one_that_trusts_fewest_is_taken() -> None:
    many = advise(facts(200_000), methods=QUICK)
    assert many.chosen is not None and many.chosen.method == "site/covariance"
    # With fewer people noise at every site costs too much, and masks nothing.
    few = advise(facts(2500), methods=QUICK)
    assert few.chosen is not None and few.chosen.method == "masked/covariance"
    assert few.chosen is few.forecasts[0] or few.forecasts[0].method == "hub/covariance"
    values = [one.captured.value for one in few.forecasts]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("setting", ["curator", "hub", "site", "masked", "peers", "peers-independent"])
def test_within_a_setting_it_is_what_auto_takes(setting: str) -> None:
    methods = [f"{setting}/covariance", f"{setting}/power"]
    found = advise(facts(trust=(setting,)), methods=methods)
    assert found.chosen is not None and found.chosen.method == methods[0]
    # Where all pairs of columns do not fit, auto takes products.
    small = advise(facts(trust=(setting,), memory_limit=20_000), methods=methods)
    assert small.chosen is not None and small.chosen.method == methods[1]
    assert small.forecasts[-1].method == methods[0] and "memory" in small.forecasts[-1].refused


def test_limits_are_kept_and_what_they_cost_is_said() -> None:
    free = advise(facts(2500, trust=("site",)), methods=("site/covariance", "site/merge", "site/power"))
    assert free.chosen is not None and free.chosen.method == "site/covariance"
    bound = advise(facts(2500, trust=("site",), memory_limit=20_000), methods=("site/covariance", "site/merge", "site/power"))
    assert bound.chosen is not None and bound.chosen.method == "site/power"
    assert any("one release of the covariance would capture" in reason and "memory" in reason for reason in bound.reasons)


def test_where_nothing_can_work_it_is_said_plainly() -> None:
    known = facts(60, sites=1)
    found = advise(known, methods=("curator/covariance", "curator/power"))
    assert found.chosen is None
    assert "Nothing can work here" in found.reasons[0] and "one table with" in found.reasons[0]
    assert any("epsilon = " in candidate for candidate in found.instead) and any(
        "people" in candidate for candidate in found.instead
    )


def test_what_would_do_instead_does() -> None:
    known = facts(120, sites=1)
    found = advise(known, methods=("curator/covariance",))
    assert found.chosen is None or found.chosen.captured.value < FAIR
    epsilon = next(float(candidate.split("epsilon = ")[1].split()[0]) for candidate in found.instead if "epsilon" in candidate)
    people = next(int(candidate.split()[1]) for candidate in found.instead if "people" in candidate)
    for other in (replace(known, budget=Budget(epsilon, 1e-6)), replace(known, people=people)):
        assert forecast(other, "curator/covariance").captured.value == pytest.approx(FAIR, abs=0.12)


def test_other_trust_is_proposed_where_it_would_do() -> None:
    known = facts(1500, sites=30, trust=("site",))
    found = advise(known, methods=("site/covariance",))
    assert any("'masked'" in candidate for candidate in found.instead)
    assert not advise(replace(known, people=10**6), methods=("site/covariance",)).instead


def test_where_all_is_refused_every_reason_is_given() -> None:
    found = advise(facts(traffic=10), methods=QUICK)
    assert found.chosen is None and "within these limits" in found.reasons[0]
    assert len(found.reasons) == 1 + len(QUICK)


def test_a_flat_spectrum_needs_no_finding() -> None:
    flat = Facts(dim=10, rank=9, people=100, budget=Budget(0.1, 1e-6), spectrum=Spectrum.guessed(10, decay=0.01))
    found = advise(flat, methods=("curator/covariance",))
    assert found.chosen is None and found.instead == ()
    assert found.reasons[0].startswith("There is nothing to find here: random directions capture 1.00")


def test_noise_is_not_taken_for_an_answer_because_random_directions_have_much() -> None:
    few = Facts(dim=40, rank=37, people=10, budget=Budget(0.01, 1e-6), spectrum=Spectrum.guessed(40))
    found = advise(few, methods=("curator/covariance",))
    assert found.chosen is None and found.forecasts[0].clipped.value > 0.9


def test_too_few_people_for_a_search_are_told_what_would_do() -> None:
    rich = Spectrum.guessed(30, rank=3, explained=0.95, bound_usage=0.9)
    few = replace(facts(300, sites=1, row_bound=None), spectrum=rich)
    found = advise(few, methods=("curator/covariance",))
    assert (found.verdict, found.best, found.chosen) == ("unfound", None, None)
    assert found.forecasts[0].min_people > 300
    epsilon = next(float(line.split("epsilon = ")[1].split()[0]) for line in found.instead if "epsilon = " in line)
    people = next(int(line.split()[1]) for line in found.instead if "people" in line)
    assert people == found.forecasts[0].min_people
    for other in (replace(few, budget=Budget(epsilon, 1e-6)), replace(few, people=people), replace(few, row_bound=1.0)):
        assert advise(other, methods=("curator/covariance",)).verdict == "works"
    # Units need more people than a bound.
    units = advise(replace(few, people=800, scale="private"), methods=("curator/covariance",))
    assert units.verdict == "unfound" and units.forecasts[0].min_people > people
    assert any("leave out the scale" in line for line in units.instead)


def test_what_is_hopeless_with_a_known_bound_is_hopeless_without() -> None:
    found = advise(facts(60, sites=1, row_bound=None), methods=("curator/covariance",))
    assert found.verdict == "hopeless" and found.best is found.forecasts[0]
    # What would work includes the search.
    people = next(int(line.split()[1]) for line in found.instead if "people" in line)
    assert not forecast(facts(people, sites=1, row_bound=None), "curator/covariance", fits=1).refused


def test_what_a_search_costs_is_said() -> None:
    for changes, share, word in (({"row_bound": None}, "11%", "row bound"), ({"scale": "private"}, "28%", "units")):
        said = advise(facts(sites=1, **changes), methods=("curator/covariance",)).reasons
        (line,) = (line for line in said if line.startswith("The search for"))
        assert share in line and word in line and "mean" in line


def test_methods_are_checked_and_watched() -> None:
    seen: list[str] = []
    advise(facts(), methods=QUICK[:2], watch=seen.append)
    assert seen == list(QUICK[:2])
    with pytest.raises(ValueError, match="methods must be among"):
        advise(facts(), methods=("hub/magic",))
    with pytest.raises(ValueError, match="at least one"):
        advise(facts(), methods=())


def test_all_methods_are_compared_unless_some_are_named() -> None:
    found = advise(replace(facts(400, sites=1), trust=("curator",)))
    assert {one.method for one in found.forecasts} == {f"curator/{name}" for name in methods_in("curator")}
    assert set(SETTINGS) > {"curator"}


def test_bisection_finds_the_first() -> None:
    tried: list[int] = []

    def good(number: int) -> bool:
        tried.append(number)
        return number >= 37

    assert _first(list(range(100)), good) == 37
    assert len(tried) < 10
    assert _first([1, 2], lambda n: False) is None and _first([], lambda n: True) is None
    assert _upwards(1.0, 1.5) == [1.2, 1.4] and _upwards(5.0, 4.0) == []
    assert _downwards(10, 6) == [8, 7, 6]
