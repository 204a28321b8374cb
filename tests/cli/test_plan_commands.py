"""What a plan says to type can be typed: every command and every Python call runs, and does what was planned."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from cli.cli_tables import COUNT, NAMES, eigenveil, rows, written
from eigenveil import FederatedPCA, GossipPCA, Model, PrivatePCA, StreamingPCA
from eigenveil.cli import app
from eigenveil.cli.plan_commands import call_with, command_of, parameters_of, rehearsal_of
from eigenveil.plan import METHODS, Facts, Spectrum, outlook
from eigenveil.privacy import Budget, Neighbours

ALONE = ("curator", "stream")
# What the file of a stream says for each way to publish.
STREAMS = {"sync": "stream, products", "block": "stream, slices", "continual": "stream, tree"}
ESTIMATORS = {made.__name__: made for made in (PrivatePCA, StreamingPCA, FederatedPCA, GossipPCA)}


def facts_for(method: str, **other: Any) -> Facts:
    sites = 1 if method.startswith(ALONE) else 4
    given = {"sites": sites, **other}
    return Facts(len(NAMES), 2, COUNT, Budget(1.0, 1e-6), Spectrum.guessed(len(NAMES)), **given)


def planned_call(facts: Facts, method: str, *, row_bound: float | None = 12.0) -> str:
    return call_with(facts, outlook(facts, method, fits=1).call, row_bound=row_bound)


def typed(line: str, **known: object) -> list[str]:
    """The words behind `eigenveil`, with what only the user knows put in."""
    first, *words = shlex.split(line)
    assert first == "eigenveil"
    return [str(known.get(word, word)) for word in words]


@pytest.mark.parametrize("method", METHODS)
def test_the_command_runs_and_keeps_the_budget(tmp_path: Path, method: str) -> None:
    facts = facts_for(method)
    source, target = written(tmp_path, "npy"), tmp_path / "model.safetensors"
    call = planned_call(facts, method)
    line = rehearsal_of(facts, method, call) or command_of(facts, method, call)
    result = eigenveil(*typed(line, TABLE=source, PUBLIC_TABLE=source), "-o", target)
    assert result.exit_code == 0, result.output
    model = Model.load(target)
    assert (model.guarantee.epsilon, model.guarantee.delta) == (1.0, 1e-6)
    assert len(model.values) == 2
    how = method.partition("/")[2]
    assert model.settings["mechanism"] == STREAMS.get(how, how)


@pytest.mark.parametrize("method", METHODS)
def test_the_python_call_runs(method: str) -> None:
    facts = facts_for(method)
    pca = eval(planned_call(facts, method), ESTIMATORS)
    for name, value in eval(f"dict({parameters_of(method)})").items():
        assert getattr(pca, name) == value
    parts = rows() if facts.sites == 1 else np.array_split(rows(), facts.sites)
    assert pca.fit(parts).components_.shape == (2, len(NAMES))


def parsed(words: list[str]) -> dict[str, Any]:
    """The options of a command as its parser reads them. Nothing runs."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    parameters: dict[str, Any] = command.make_context("eigenveil", list(words)).params
    return parameters


@pytest.mark.parametrize("method", [name for name in METHODS if not name.startswith(ALONE)])
def test_the_study_has_what_the_plan_has(method: str) -> None:
    facts = facts_for(method, survivors=3, colluders=1)
    options = parsed(typed(command_of(facts, method, planned_call(facts, method)), NAME="north"))
    assert (options["components"], options["row_bound"]) == (2, 12.0)
    assert (options["epsilon"], options["delta"]) == ("1", "1e-06")
    for name, value in eval(f"dict({parameters_of(method)})").items():
        assert options[name] == value
    assert options["survivors"] == ("3" if method.startswith("masked") else None)
    assert ("columns_from" in options) == (not method.endswith("/segments"))


def test_what_changes_the_plan_changes_the_command() -> None:
    near = facts_for("curator/power", search=False, neighbours=Neighbours.REPLACE_ONE)
    call = planned_call(near, "curator/power", row_bound=None)
    assert call.endswith("mean_bound=...)")
    words = typed(command_of(near, "curator/power", call), ROW_BOUND=7, MEAN_BOUND=40)
    options = parsed(words)
    assert (options["row_bound"], options["mean_bound"]) == (7.0, 40.0)
    assert options["neighbours"] == "replace-one"
    known = facts_for("curator/covariance", center="known")
    assert (
        parsed(typed(command_of(known, "curator/covariance", planned_call(known, "curator/covariance"))))["center"]
        == "none"
    )
    stream = facts_for("stream/continual", center="known", blocks=4, neighbours=Neighbours.REPLACE_ONE)
    options = parsed(typed(command_of(stream, "stream/continual", planned_call(stream, "stream/continual"))))
    assert (options["center"], options["horizon"], options["neighbours"]) == (False, COUNT, "replace-one")
    assert options["block_size"] == -(-COUNT // 4)
    limited = facts_for("masked/krylov", rounds=6, colluders=2)
    options = parsed(typed(rehearsal_of(limited, "masked/krylov", planned_call(limited, "masked/krylov"))))
    assert options["rounds"] in range(1, 7)
    assert (options["colluders"], options["sites"]) == (2, 4)
    sized = facts_for("site/covariance", neighbours=Neighbours.ZERO_OUT)
    words = typed(command_of(sized, "site/covariance", planned_call(sized, "site/covariance")))
    assert words[-2:] == ["--size", "NAME=PEOPLE"]
