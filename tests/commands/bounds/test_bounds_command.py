"""`eigenveil bounds`: the answer first, the trade, the next command, and one line for every mistake."""

import json
import shlex
from pathlib import Path

import numpy as np
import pyarrow.csv as pc
import pytest

from commands.command_tables import COUNT, FORMATS, NAMES, arrow_table, eigenveil, files_in, refusal, rows, written
from eigenveil import Model

BUDGET = ("--epsilon", "0.8", "--delta", "1e-6")


def as_json(*arguments: object) -> dict[str, object]:
    result = eigenveil("bounds", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_answer(tmp_path: Path, kind: str) -> None:
    # At an epsilon of 5 noise hides ten people of a thousand, and an answer this far off would take ten times that.
    found, first = (as_json(written(tmp_path, one), *BUDGET, "--epsilon", 5, "--seed", 3) for one in (kind, "npy"))
    assert found["row_bound"] == first["row_bound"]
    truth = np.quantile(np.linalg.norm(rows() - rows().mean(axis=0), axis=1), 0.95)
    assert found["row_bound"] == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize("center", ["private", "none"])
@pytest.mark.parametrize("columns", [False, True])
def test_the_next_command_runs(tmp_path: Path, center: str, columns: bool) -> None:
    if columns and center == "none":
        assert "--center is for a bound on rows" in refusal(
            "bounds", written(tmp_path, "csv"), "--per-column", "--center", "none", *BUDGET
        )
        return
    source = tmp_path / "my people.csv"
    values = np.vstack([rows() - 3.0] * 3)
    pc.write_csv(arrow_table(values, remark=["none"] * len(values)), source)
    asked = ["--per-column", "--total", "3"] if columns else ["-k", "2", "--center", center]
    found = as_json(source, "--epsilon", 0.9, "--delta", "1e-6", *asked, "--drop", "remark", "--seed", 1)
    commands = found["next"]
    assert isinstance(commands, list)
    words = shlex.split(commands[0])
    assert words[:2] == ["eigenveil", "fit"]
    target = tmp_path / "model.safetensors"
    words = ["2" if word == "K" else word for word in words[1:]]
    result = eigenveil(*words, "-o", target)
    assert result.exit_code == 0, result.output
    model = Model.load(target)
    assert model.columns == NAMES
    # The account of both together is the total that was named.
    guarantee = found["guarantee"]
    assert isinstance(guarantee, dict)
    from eigenveil.core.accounting import epsilon_of

    spent = sum(charge["mu"] ** 2 for charge in guarantee["charges"])
    assert epsilon_of((spent + model.guarantee.mu**2) ** 0.5, 1e-6) <= (3.0 if columns else 1.0)
    if len(commands) > 1:
        plan = shlex.split(commands[1])
        assert plan[:2] == ["eigenveil", "plan"]
        assert "--bound-usage" in plan


def test_nothing_that_can_be_said_ends_with_one_and_names_no_bound(tmp_path: Path) -> None:
    target = tmp_path / "bounds.json"
    source = written(tmp_path, "csv")
    for more in ((), ("--per-column",)):
        result = eigenveil("bounds", source, "--epsilon", 0.01, "--delta", 1e-6, *more, "-o", target, "--force")
        assert result.exit_code == 1
        assert result.stdout.startswith(
            ("No bound was found: the table is too small ", "No bounds were found: the table is too small ")
        )
        assert "eigenveil fit" not in result.stdout
        assert str(COUNT) not in result.stdout
        plain = json.loads(target.read_text())
        assert plain.get("row_bound") is None
        assert plain["next"] == []


def test_the_file_has_what_json_shows(tmp_path: Path) -> None:
    target = tmp_path / "bounds.json"
    result = eigenveil("bounds", written(tmp_path, "csv"), *BUDGET, "--output", target, "--json")
    assert json.loads(result.stdout) == json.loads(target.read_text())
    assert files_in(tmp_path) == {"people.csv", "bounds.json"}
    assert "already exists" in refusal("bounds", tmp_path / "people.csv", *BUDGET, "-o", target)


def test_the_delta_of_the_next_command_is_not_rounded_up(tmp_path: Path) -> None:
    found = as_json(written(tmp_path, "csv"), "--epsilon", 0.9, "--delta", "1.23456789e-6")
    commands = found["next"]
    assert isinstance(commands, list)
    assert "--delta 1.23456789e-06 " in commands[0]
