"""`eigenveil account`: the numbers of the accountant, and a clear no to everything that is not a question."""

import json
import math
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commands.command_tables import eigenveil, refusal, written
from eigenveil import PrivatePCA
from eigenveil.core.accounting import epsilon_of, mu_for
from eigenveil.privacy.guarantee import Guarantee, Loss, price


def shown(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found.group(1))


def test_gaussian_releases_cost_what_the_closed_form_says() -> None:
    result = eigenveil("account", "--gaussian", "4.0x3", "--gaussian", "5", "--delta", "1e-6")
    expected = price([Loss("gaussian", 4.0, 3), Loss("gaussian", 5.0)], delta=1e-6)
    assert shown(r"together: epsilon = ([\d.]+)", result.stdout) == pytest.approx(expected, abs=1e-4)


def test_laplace_releases_go_through_the_loss_distribution() -> None:
    result = eigenveil("account", "--gaussian", "4.0x3", "--laplace", "10", "--delta", "1e-6")
    expected = price([Loss("gaussian", 4.0, 3), Loss("laplace", 10.0)], delta=1e-6)
    assert shown(r"together: epsilon = ([\d.]+)", result.stdout) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("releases", [1, 3])
def test_a_budget_needs_the_noise_that_spends_it(releases: int) -> None:
    result = eigenveil("account", "--epsilon", 0.5, "--delta", "1e-6", "--releases", releases)
    needed = shown(r"noise = ([\d.]+) x sensitivity", result.stdout)
    assert 0 <= needed / (releases**0.5 / mu_for(0.5, 1e-6)) - 1 < 1e-4
    # The closest published conversion is named next to the one that is furthest away.
    assert "published: zCDP" in result.stdout and "published: PPM Alg. 1" in result.stdout
    assert ("textbook" in result.stdout) == (releases == 1)


def fitted(path: Path, **choices: Any) -> Path:
    """A model of made-up rows, in a file."""
    table = np.random.default_rng(0).standard_normal((200, 3))
    PrivatePCA(1, **({"epsilon": 0.5, "delta": 1e-6, "row_bound": 5.0} | choices)).fit(table).save(path)
    return path


def together(*arguments: object) -> float:
    result = eigenveil("account", *arguments)
    assert result.exit_code == 0, result.output
    return shown(r"together: epsilon = ([\d.]+)", result.stdout)


def test_files_and_mus_add_up(tmp_path: Path) -> None:
    people = written(tmp_path, "csv")
    bounds, spectrum = tmp_path / "bounds.json", tmp_path / "spectrum.json"
    assert eigenveil("bounds", people, "--epsilon", 0.4, "--delta", "1e-6", "-o", bounds).exit_code == 0
    spent = ("--epsilon", 0.3, "--delta", "1e-6", "--row-bound", 12)
    assert eigenveil("spectrum", people, *spent, "-o", spectrum).exit_code == 0
    # A plan still reads a spectrum that says what it cost.
    assert eigenveil("plan", "-n", 1009, "-k", 2, "--epsilon", 1, "--delta", "1e-6", "--spectrum", spectrum).exit_code == 0
    model = fitted(tmp_path / "a.safetensors")
    mus = [mu_for(0.5, 1e-6), mu_for(0.4, 1e-6), mu_for(0.3, 1e-6), 0.2, 0.1, 0.25]
    expected = epsilon_of(math.hypot(*mus), 1e-6)
    found = together(model, bounds, spectrum, "--mu", 0.2, "--mu", 0.1, "--gaussian", 4)
    assert found == pytest.approx(expected, abs=1e-4)
    assert found >= expected
    # At another delta it is the same mu.
    assert together(model, bounds, "--delta", "1e-5") == pytest.approx(epsilon_of(math.hypot(*mus[:2]), 1e-5), abs=1e-4)


def test_bounds_that_were_not_found_cost_as_much(tmp_path: Path) -> None:
    few = tmp_path / "few.csv"
    few.write_text("a,b\n" + "1,2\n" * 30)
    bounds = tmp_path / "bounds.json"
    assert eigenveil("bounds", few, "--epsilon", 0.1, "--delta", "1e-6", "-o", bounds).exit_code == 1
    assert together(bounds) == pytest.approx(0.1, abs=1e-4)


@pytest.mark.parametrize(
    ("choices", "words"),
    [({"neighbours": "zero-out"}, "by add-remove, and"), ({"person": np.arange(200) // 2}, "with all of their rows")],
    ids=["neighbours", "unit"],
)
def test_promises_of_two_kinds_have_no_sum(tmp_path: Path, choices: Any, words: str) -> None:
    first, second = fitted(tmp_path / "a.safetensors"), fitted(tmp_path / "b.safetensors", **choices)
    for order in ((first, second), (second, first)):
        said = refusal("account", *order)
        assert "cannot be added up" in said
    assert words in refusal("account", first, second)
    # Others of the same kind do.
    assert together(second, fitted(tmp_path / "c.safetensors", **choices)) > 0.5


def test_people_named_by_two_columns_have_no_sum(tmp_path: Path) -> None:
    table = pd.DataFrame(np.random.default_rng(0).standard_normal((200, 2)), columns=["a", "b"])
    table = table.assign(patient=np.arange(200) // 2, doctor=np.arange(200) // 20)
    paths = {}
    for who in ("patient", "doctor"):
        paths[who] = tmp_path / f"{who}.safetensors"
        own = table[["a", "b", who]]
        PrivatePCA(1, epsilon=0.5, delta=1e-6, row_bound=5.0, person=who).fit(own).save(paths[who])
    assert "named by the column patient" in refusal("account", *paths.values())
    # Identifiers without a name may be of either column.
    nameless = fitted(tmp_path / "a.safetensors", person=np.arange(200) // 2)
    assert together(nameless, paths["doctor"]) > 0.5
    assert "cannot be added up" in refusal("account", nameless, *paths.values())


def test_what_protects_nobody_is_not_added_up(tmp_path: Path) -> None:
    exact = fitted(tmp_path / "a.safetensors", epsilon=None, delta=None)
    assert "has no guarantee" in refusal("account", exact)
    assert "known seed" in refusal("account", fitted(tmp_path / "b.safetensors", random_state=0))


def test_files_that_say_nothing_of_a_cost(tmp_path: Path) -> None:
    model = fitted(tmp_path / "a.safetensors")
    assert "is given twice" in refusal("account", model, tmp_path / "." / "a.safetensors")
    assert "does not exist" in refusal("account", tmp_path / "c.safetensors")
    table = written(tmp_path, "csv")
    assert "is not a model" in refusal("account", table)
    other = tmp_path / "other.json"
    for text in ("{}", "[1]", "{", '{"format": "eigenveil bounds 2"}'):
        other.write_text(text)
        assert "is not a model" in refusal("account", other)
    other.write_text(json.dumps({"format": "eigenveil spectrum 1", "values": [1]}))
    assert "does not say what it cost" in refusal("account", other)
    other.write_text(json.dumps({"format": "eigenveil bounds 1", "guarantee": {"epsilon": 1}}))
    assert "its guarantee lacks" in refusal("account", other)
    other.write_text(json.dumps({"format": "eigenveil bounds 1", "guarantee": Guarantee(epsilon=1.0, delta=0.1).to_dict()}))
    assert "does not say whom it protects" in refusal("account", other)
    for epsilon in (1e-300, 1e300):
        other.write_text(
            json.dumps({"format": "eigenveil bounds 1", "guarantee": Guarantee(epsilon=epsilon, delta=0.1).to_dict()})
        )
        assert "which is not between" in refusal("account", other)


def test_a_ledger_is_shown_by_its_own_command(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    with closing(sqlite3.connect(ledger)) as base:
        base.execute("create table entries (number integer)")
    assert f"eigenveil ledger show {ledger}" in refusal("account", ledger)


def test_the_sum_is_there_for_programs(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((500, 4))
    PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=3.0).fit(rows).save(tmp_path / "model.safetensors")
    told = json.loads(eigenveil("account", tmp_path / "model.safetensors", "--mu", 0.2, "--json").stdout)
    expected = epsilon_of(math.hypot(mu_for(1.0, 1e-6), 0.2), 1e-6)
    assert 0 <= told["epsilon"] - expected < 1e-4
    assert told["delta"] == 1e-6
    assert [(one["mu"], one["protects_each"], one["neighbours"]) for one in told["releases"]] == [
        (pytest.approx(mu_for(1.0, 1e-6)), "row", "add-remove"),
        (pytest.approx(0.2), None, None),
    ]
    assert "--json is for a cost" in refusal("account", "--epsilon", 1, "--delta", "1e-6", "--json")
