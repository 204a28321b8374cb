"""`eigenveil reproduce`: the registry, statements and verdicts, and small runs on data that needs no folder."""

import json
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from commands.command_tables import eigenveil
from eigenveil.papers import registry, reproduce, runners
from eigenveil.papers.registry import Cell, Number, Rerun, agreement, evaluate

TEXT = files("eigenveil.papers").joinpath("published.toml").read_text(encoding="utf-8")
SMALL = """
[errata]
"E" = "wrong"
[settings.s]
k = 2
[measure.m]
paper = "sine"
authors = "the same"
[[entry]]
id = "one"
paper = "PPM"
item = "table9"
kind = "table"
data = "d"
at_hand = ["made up"]
settings = "s"
override = { p = 3 }
measure = "m"
where = {}
errata = ["E"]
columns = ["a", "b"]
values = [1, 2]
"""


def cells(**values: list[float]) -> Rerun:
    """One cell for each repeat, by its labels joined with underscores."""
    made = (
        Cell(frozenset(name.split("_")), value, repeat=repeat)
        for name, line in values.items()
        for repeat, value in enumerate(line)
    )
    return Rerun(cells=tuple(made))


def test_the_registry_that_ships_is_whole() -> None:
    entries = registry.entries()
    assert len(entries) > 100 and {entry.paper for entry in entries} == set(registry.PAPERS.values())
    # Whatever an entry cites or names exists, and nothing is left over.
    assert {name for entry in entries for name in entry.errata} == set(registry.errata())
    assert {entry.runner for entry in entries} - {""} >= set(runners.RUNNERS)
    assert set(runners.OURS) <= set(runners.RUNNERS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('data = "d"\n', 'data = "d"\nsize = 1\n', "one: unknown field size"),
        ('kind = "table"\n', "", "one: kind must be there"),
        ('settings = "s"', 'settings = "t"', "there is no"),
        ('errata = ["E"]', 'errata = ["F"]', "no erratum F"),
        ('kind = "table"', 'kind = "joke"', "the kind must be one of"),
        ('paper = "PPM"', 'paper = "ABC"', "there is no paper"),
        ("values = [1, 2]", "values = [1]", "one number for each column"),
    ],
)
def test_a_malformed_entry_is_refused(old: str, new: str, message: str) -> None:
    (entry,), _ = registry.read_registry(SMALL)
    assert entry.settings == {"k": 2, "p": 3} and entry.number == "table 9"
    with pytest.raises(ValueError, match=message):
        registry.read_registry(SMALL.replace(old, new))


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("last(low) < last(high)", True),
        ("last(high) < last(low)", False),
        ("last(low) < last(high) < last(huge)", True),
        ("last(low) < last(near)", None),
        ("last(low) <= last(near)", True),
        ("3 * last(low) < last(high)", True),
        ("12 * last(low) < last(high)", False),
        ("last(high) / last(low) ~ 10", True),
        ("0.5 < mean(error | low) < 2", True),
        ("p=4: last(error | low) > 5", True),
        ("shape(x) == (2, 3)", True),
        ("shape(x) == (3, 2)", False),
        ("none: depends on the machine", None),
        ("last(unknown) < 1", None),
        ("__import__('os').system('true') < 1", None),
        ("seconds(low) < 1", None),
        ("data=other: last(low) < last(high)", None),
    ],
)
def test_statements_are_read_and_never_run(statement: str, answer: bool | None) -> None:
    run = cells(low=[1.0, 1.1], near=[1.05, 1.1], high=[10.0, 11.0], huge=[99.0, 98.0], **{"low_p=4": [9.0, 9.1]})
    run = Rerun(cells=run.cells, facts={"shape(x)": (2, 3)})
    assert evaluate(statement, run, data="this") is answer


def test_functions_of_rounds() -> None:
    line = [Cell(frozenset({"p=1"}), value, round=number) for number, value in enumerate([5.0, 1.0, 2.0, 4.0], 1)]
    run = Rerun(cells=tuple(line))
    found = {name: run.number(["p=1"], name) for name in ("last", "best", "floor")}
    assert found == {"last": Number(4.0, 0.0), "best": Number(1.0, 0.0), "floor": Number(4.0, 0.0)}
    assert run.number(["p=1"], "at", round_=2) == Number(1.0, 0.0) and run.number(["p=1"], "at", round_=9) is None


def test_agreement_allows_for_both_errors() -> None:
    assert agreement(1.0, Number(1.4, 0.1)) == "close" and agreement(1.0, Number(1.4, 0.1), error=0.1) == "reproduced"
    assert agreement(1.0, Number(1.4, 0.0), read_to=0.5) == "reproduced" and agreement(1e-12, Number(1e-7, 0.0)) == "reproduced"
    assert agreement(-14.0, Number(-15.0, 0.0)) == "reproduced" and agreement(1.0, Number(-1.0, 0.0)) == "differs"


def test_every_statement_of_the_registry_is_understood_or_left_undecided() -> None:
    for entry in registry.entries():
        for statement in entry.check:
            assert evaluate(statement, Rerun(), data="a9a") in (None, False, True)


def test_a_run_is_compared_and_a_changed_verdict_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = reproduce.selected("ddppm", item="figure2", data="sklearn:wine")
    chosen = [entry for entry in chosen if entry.id in ("ddppm.figure2.wine", "ddppm.figure2.ring")]
    results = {result.id: result for result in reproduce.reproduce(chosen, data="sklearn:wine", quick=True)}
    assert results["ddppm.figure2.ring"].checks == {"lambda2(W) == 0.5": "holds"}
    wine = results["ddppm.figure2.wine"]
    assert wine.verdict.startswith("open settings") and wine.ours["guarantee"].startswith("(1, 1e-05)")
    json.dumps([result.to_json() for result in results.values()])
    expected: dict[str, Any] = {"full": {}, "quick": {"ddppm.figure2.ring sklearn:wine both": "fails"}}
    monkeypatch.setattr(reproduce, "expected_verdicts", lambda: expected)
    assert len(reproduce.changed(list(results.values()), quick=True, measure=None)) == 1
    assert reproduce.changed(list(results.values()), quick=False, measure=None) == []


def test_the_authors_measure_has_four_of_five_columns() -> None:
    chosen = [entry for entry in registry.entries() if entry.id == "fedpower.table2.a9a"]
    (result,) = reproduce.reproduce(chosen, data="sklearn:wine", quick=True)
    assert result.verdict.startswith("stand-in") and set(result.rerun) == {"paper", "authors"}
    assert set(result.rerun["authors"]) == {"opt", "sign", "vanilla", "dr-svd", "uda", "wda"}
    # Four columns are at most as far away as five, and a Frobenius norm is at least the spectral one.
    assert all(0 <= mean <= np.sqrt(5) for numbers in result.rerun.values() for mean, _ in numbers.values())


def test_the_command_lists_and_names_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EIGENVEIL_DATA", raising=False)
    listed = json.loads(eigenveil("reproduce", "--json").stdout)
    status = {line["id"]: line["status"] for line in listed}
    assert status["fpca.figure3.a"] == "runs here: made up" and "EIGENVEIL_DATA" in status["fedpower.table2.a9a"]
    assert status["fedpower.table2.aloi"] == "data not available: Aloi"
    for arguments, message in (
        (["nobody"], "fpca, fedpower, ppm"),
        (["fpca", "--table", "9"], "fpca has no table9"),
        (["ppm", "--data", "nothing"], "Data sets are"),
        (["fedpower", "--table", "2", "--data", "a9a"], "Set EIGENVEIL_DATA"),
        (["fpca", "--table", "1", "--figure", "2"], "contradict"),
    ):
        result = eigenveil("reproduce", *arguments)
        assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
