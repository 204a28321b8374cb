"""`eigenveil plan`: every option reaches the planner, the answer comes first, and every mistake is one line."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pc
import pytest

from commands.command_tables import arrow_table, eigenveil, rows, written
from commands.plan.plan_runs import SMALL, Oracle, planned
from eigenveil import PrivatePCA
from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.params.declarations.federated import FederatedParams
from eigenveil.params.declare import declared
from eigenveil.plan.facts import METHODS, Facts, methods_for
from eigenveil.plan.recommendation import advise
from eigenveil.plan.spectrum import Spectrum


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    return Oracle().install(monkeypatch)


def facts_of(oracle: Oracle, *arguments: object) -> Facts:
    result = planned(*arguments)
    assert result.exit_code == 0, result.output
    assert oracle.facts is not None
    return oracle.facts


def test_what_must_be_said_becomes_the_facts(oracle: Oracle) -> None:
    facts = facts_of(oracle, "-n", "2e4", "-d", 30, "-k", 4, "--epsilon", 0.5, "--delta", 1e-7)
    assert (facts.people, facts.dim, facts.rank, facts.budget) == (20_000, 30, 4, Budget(0.5, 1e-7))
    plain = Facts(dim=30, rank=4, people=20_000, budget=Budget(0.5, 1e-7), spectrum=Spectrum.guessed(30))
    for name in ("neighbours", "center", "search", "sites", "survivors", "colluders", "blocks", "rounds", "traffic"):
        assert getattr(facts, name) == getattr(plain, name), name
    assert (facts.memory_limit, facts.trust) == (plain.memory_limit, plain.trust)
    assert facts.spectrum.values.tolist() == plain.spectrum.values.tolist()


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("--neighbours replace-one", "neighbours", Neighbours.REPLACE_ONE),
        ("--center none", "center", None),
        ("--no-search", "search", False),
        ("--sites 5", "sites", 5),
        ("--sites 5 --survivors 4", "survivors", 4),
        ("--sites 5 --survivors 0.7", "survivors", 4),
        ("--sites 5 --colluders 2", "colluders", 2),
        ("--blocks 12", "blocks", 12),
        ("--rounds 3", "rounds", 3),
        ("--traffic 10MB", "traffic", 10_000_000),
        ("--memory-limit 2GiB", "memory_limit", 2 << 30),
        ("--sites 5 --trust masked --trust site", "trust", ("masked", "site")),
        ("--row-bound 3", "row_bound", 3.0),
        ("--scale private", "scale", "private"),
    ],
)
def test_every_option_reaches_the_planner(oracle: Oracle, option: str, name: str, value: object) -> None:
    assert getattr(facts_of(oracle, *SMALL, *option.split()), name) == value


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--explained 0.8", Spectrum.guessed(6, rank=2, explained=0.8)),
        ("--explained 0.8 --bound-usage 0.2", Spectrum.guessed(6, rank=2, explained=0.8, bound_usage=0.2)),
        ("--decay 1.5", Spectrum.guessed(6, decay=1.5)),
        ("--bound-usage 0.9", Spectrum.guessed(6, bound_usage=0.9)),
    ],
)
def test_guesses_reach_the_planner(oracle: Oracle, options: str, expected: Spectrum) -> None:
    assert facts_of(oracle, *SMALL, *options.split()).spectrum.to_json() == expected.to_json()


def test_methods_by_name_are_those_of_every_acceptable_setting(oracle: Oracle) -> None:
    planned(*SMALL, "--sites", 3, "--trust", "masked", "--trust", "site", "--method", "krylov")
    assert oracle.methods == ("site/krylov", "masked/krylov")
    planned(*SMALL, "--sites", 3, "--method", "hub/power", "--method", "site/merge")
    assert oracle.methods == ("hub/power", "site/merge")
    planned(*SMALL)
    assert oracle.methods is None


def test_the_curve_has_each_epsilon_once_and_the_one_that_was_asked_for(oracle: Oracle) -> None:
    found = json.loads(planned(*SMALL, "--epsilons", "2,0.5,2,1", "--json").stdout)["curve"]
    assert [point["epsilon"] for point in found["points"]] == [0.5, 1.0, 2.0]
    # What was compared at the epsilon that was asked for is not rehearsed again.
    assert oracle.epsilons == [0.5, 2.0]
    assert [point["captured"]["value"] for point in found["points"]] == [0.55, 0.9, 0.7]


def test_where_nothing_can_work_that_is_said_first_and_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle(works=False).install(monkeypatch)
    result = planned(*SMALL)
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    # The stand-in's interval reaches far beyond random directions, and the spectrum is only guessed.
    assert words.startswith("Nothing can work here, if the spectrum is as guessed: with epsilon = 1 and about 5000 people ")
    assert "The best, one table with one release of the covariance, would capture 0.90 (0.87 to 0.92)" in words
    assert "what would work instead - Ask for fewer components." in words
    # Nobody is shown how to do what is not worth doing.
    assert "eigenveil fit" not in words
    found = json.loads(planned(*SMALL, "--json").stdout)
    assert found["chosen"] is None
    assert found["run"] == {}
    assert found["curve"]["method"] == "curator/covariance"


def test_the_curve_is_of_the_best_method_whatever_the_reasons_say(monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle(works=False, best=1).install(monkeypatch)
    found = json.loads(planned(*SMALL, "--json").stdout)
    assert found["curve"]["method"] == "curator/power"
    assert "The best, one table with the private power method, would capture 0.88" in found["answer"][1]


def test_where_all_is_refused_there_is_no_curve_and_no_plot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Oracle(refuse=lambda method: f"{method} would take 9 rounds").install(monkeypatch)
    result = planned(*SMALL, "--plot", tmp_path / "plan.svg")
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    # It is the limits that leave nothing, and not the budget.
    assert words.startswith("No method is possible within these limits")
    assert re.search(r"Random directions would capture 0\.\d\d\.", words)
    assert "Nothing can work" not in words
    assert "curator/power curator/power would take 9 rounds" in words
    assert "no plot was written" in words
    assert list(tmp_path.iterdir()) == []
    assert json.loads(planned(*SMALL, "--json").stdout)["curve"] is None


def test_json_has_every_forecast_as_the_planner_says(oracle: Oracle) -> None:
    found = json.loads(planned(*SMALL, "--sites", 4, "--json").stdout)
    assert oracle.facts is not None
    assert [each["method"] for each in found["forecasts"]] == list(methods_for(oracle.facts))
    assert found["chosen"] == found["forecasts"][0]
    assert found["chosen"]["parameters"].keys() == declared(FederatedParams).keys()
    assert found["chosen"]["parameters"]["trust"] == "hub"
    assert found["chosen"] | {"guarantee": "", "call": "", "parameters": {}} == {
        "method": "hub/covariance",
        "captured": {"value": 0.9, "low": pytest.approx(0.87), "high": pytest.approx(0.92)},
        "captured_of": "clipped rows",
        "captured_of_clipped_rows": {"value": 0.9, "low": pytest.approx(0.87), "high": pytest.approx(0.92)},
        "sine": {"value": 0.31, "low": 0.21, "high": 0.41},
        "nothing": 0.07,
        "noise": 12.5,
        "memory": 2_345_000,
        "rounds": 7,
        "traffic": 67_800,
        "least": 421,
        "refused": "",
        "guarantee": "",
        "call": "",
        "parameters": {},
        "unknown": [],
    }
    assert found["facts"]["rows"] == 5000
    assert found["facts"]["trust"] == ["hub", "site", "masked", "peers", "peers-independent"]
    assert Spectrum.from_json(found["spectrum"]).dim == 6
    for name in ("reasons", "instead", "assumed", "guessed", "not_predicted", "answer"):
        assert found[name], name


def numbers(found: Any) -> list[float]:
    if isinstance(found, dict):
        return [number for each in found.values() for number in numbers(each)]
    if isinstance(found, list):
        return [number for each in found for number in numbers(each)]
    return [found] if isinstance(found, float) else []


def test_with_the_planner_itself_a_plan_is_what_it_advises() -> None:
    """No stand-in: what is shown is what `advise` says of the same facts, and more epsilon buys more."""
    found = json.loads(planned(*SMALL, "-n", 600, "--epsilons", "0.1,10", "--json").stdout)
    facts = Facts(dim=6, rank=2, people=600, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(6))
    recommendation = advise(facts)
    assert [each["method"] for each in found["forecasts"]] == [each.method for each in recommendation.forecasts]
    for shown, told in zip(found["forecasts"], recommendation.forecasts, strict=True):
        assert shown["captured"]["value"] == told.captured.value
        assert shown["call"] == told.call
    assert set(METHODS) >= {each["method"] for each in found["forecasts"]}
    assert all(math.isfinite(number) for number in numbers(found))
    low, asked, high = (point["captured"]["value"] for point in found["curve"]["points"])
    assert low < asked < high


def test_too_few_people_for_a_search_are_told_what_would_work() -> None:
    few = ("-n", 300, "-d", 10, "-k", 1, "--epsilon", 1, "--delta", 1e-6, "--explained", 0.9, "--bound-usage", 0.9)
    asked = (*few, "--method", "covariance", "--epsilons", "1")
    result = planned(*asked)
    assert result.exit_code == 0
    assert result.stdout.startswith("No method can find a row bound privately")
    found = json.loads(planned(*asked, "--json").stdout)
    assert (found["chosen"], found["curve"], found["run"]) == (None, None, {})
    assert found["forecasts"][0]["least"] > 300 and found["facts"]["row_bound"] == "private"
    # With a bound that is known the same budget does, and what is said to type has it.
    known = json.loads(planned(*asked, "--row-bound", 4, "--json").stdout)
    assert known["chosen"]["least"] == 0 and "row_bound=4.0" in known["run"]["in Python"]


PAGE = Path(__file__).parents[3] / "docs" / "plan.md"


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines]


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("eigenveil plan ")])
def test_a_plan_of_the_page_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle().install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    pc.write_csv(arrow_table(rows(), remark=["none"] * len(rows())), "last-decade.csv")
    PrivatePCA(3, epsilon=None).fit(np.clip(rows(), -5, 5)).save("last-year.safetensors")
    Path("spectrum.json").write_text(json.dumps(Spectrum.guessed(30).to_json()))
    assert eigenveil("bounds", written(tmp_path, "npy"), "--no-privacy", "-o", "bounds.json").exit_code == 0
    result = planned(*shlex.split(line)[2:])
    assert result.exit_code == 0, result.output


def test_the_page_has_plans() -> None:
    assert sum(line.startswith("eigenveil plan ") for line in commands()) >= 8
