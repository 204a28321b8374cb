"""What a plan says to type can be typed: every command and every Python call runs, with the parameters that were planned."""

import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from commands.command_tables import COUNT, NAMES, eigenveil, rows, written
from eigenveil import FederatedPCA, GossipPCA, Model, PrivatePCA, StreamingPCA
from eigenveil.commands import app
from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.params.declarations.federated import FederatedParams, GossipParams
from eigenveil.params.declarations.private import PrivateParams
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.params.declare import declared
from eigenveil.plan.facts import METHODS, Facts, choice_of, estimator_of, parts_of
from eigenveil.plan.rehearsal import Forecast, forecast
from eigenveil.plan.spectrum import Spectrum
from eigenveil.show.plan import command_of, rehearsal_of
from eigenveil.trackers import TRACKERS

ALONE = ("curator", "stream")
# What the file of a stream says for each `publish`.
STREAMS = {kind.publishes: f"stream, {kind.name}" for kind in TRACKERS.values() if kind.publishes}
ESTIMATORS: dict[str, Any] = {made.__name__: made for made in (PrivatePCA, StreamingPCA, FederatedPCA, GossipPCA)}
# What a plan can be asked for beside the method. Bounds are known or found in each, so that nothing is left to fill in.
KINDS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "few rounds, some collude": {"rounds": 12, "colluders": 2, "survivors": 4, "blocks": 4},
    "replace one": {"neighbours": Neighbours.REPLACE_ONE},
    # With a budget that finds them among so few people, even with noise of every site.
    "a bound is found": {"row_bound": None, "budget": Budget(6.0, 1e-6)},
    "units are found": {"row_bound": None, "scale": "private", "budget": Budget(6.0, 1e-6)},
}


def facts_for(method: str, **other: Any) -> Facts:
    sites = 1 if parts_of(method)[0] in ALONE else 5
    given = {"sites": sites, "row_bound": 12.0, "budget": Budget(1.0, 1e-6), **other}
    # Without doubt about the spectrum, which a forecast would rehearse and no command has.
    return Facts(
        dim=len(NAMES), rank=2, people=COUNT, spectrum=replace(Spectrum.guessed(len(NAMES)), spread=0.0, error=0.0), **given
    )


def chosen(facts: Facts, method: str) -> Forecast:
    return forecast(facts, method, fits=1)


@cache
def planned(method: str, kind: str) -> tuple[Facts, Forecast]:
    """A plan of one of the KINDS, made once; for one holder of all rows without what is said of others, who could collude."""
    alone = parts_of(method)[0] in ALONE
    asked = {name: value for name, value in KINDS[kind].items() if not (alone and name in ("colluders", "survivors"))}
    facts = facts_for(method, **asked)
    return facts, chosen(facts, method)


def typed(line: str, **known: object) -> list[str]:
    """The words behind `eigenveil`, with what only the user knows put in."""
    first, *words = shlex.split(line)
    assert first == "eigenveil"
    return [str(known.get(word, word)) for word in words]


def assert_has(pca: Any, params: Any, *, surface: str) -> None:
    """That an estimator has all parameters of a plan that can be said there. A command reads a graph before it hands it on."""
    for name, one in declared(type(params)).items():
        if surface in one.param.surfaces and (surface, name) != ("cli", "graph"):
            assert getattr(pca, name) == getattr(params, name), name


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every estimator that is fitted while a test runs."""
    seen: list[Any] = []

    def watched(kind: Any, name: str) -> None:
        plain = getattr(kind, name)

        def fit(self: Any, *args: Any, **more: Any) -> Any:
            if not any(self is one for one in seen):
                seen.append(self)
            return plain(self, *args, **more)

        monkeypatch.setattr(kind, name, fit)

    for kind in (PrivatePCA, FederatedPCA, GossipPCA):
        watched(kind, "fit")
    watched(StreamingPCA, "partial_fit")
    return seen


# Every method, and every kind with many methods: a fifth of the pairs runs as commands, and another fifth in Python.
PAIRS = [(method, kind, (row + column) % 5) for row, method in enumerate(METHODS) for column, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("method", "kind"), [(method, kind) for method, kind, turn in PAIRS if turn == 0])
def test_the_command_runs_with_the_parameters_of_the_plan(tmp_path: Path, fitted: list[Any], method: str, kind: str) -> None:
    source, target = written(tmp_path, "npy"), tmp_path / "model.safetensors"
    facts, plan = planned(method, kind)
    assert plan.unknown == ()
    line = rehearsal_of(facts, plan) or command_of(facts, plan)
    result = eigenveil(*typed(line, TABLE=source, PUBLIC_TABLE=source), "-o", target)
    assert result.exit_code == 0, result.output
    (pca,) = fitted
    assert type(pca).__name__ == estimator_of(plan.params)[0]
    assert_has(pca, plan.params, surface="cli")
    model = Model.load(target)
    assert (model.guarantee.epsilon, model.guarantee.delta) == (facts.budget.epsilon, 1e-6)
    assert len(model.values) == 2
    how = parts_of(method)[1]
    assert model.settings["method"] == STREAMS.get(how, how)


@pytest.mark.parametrize(("method", "kind", "turn"), [pair for pair in PAIRS if pair[2] <= 1])
def test_the_python_call_runs_with_the_parameters_of_the_plan(method: str, kind: str, turn: int) -> None:
    facts, plan = planned(method, kind)
    assert plan.unknown == ()
    words = typed(rehearsal_of(facts, plan) or command_of(facts, plan), TABLE="table.npy", PUBLIC_TABLE="table.npy")
    # Its command can be typed, whether it runs above or not.
    assert parsed(words)
    pca = eval(plan.call, ESTIMATORS)
    assert_has(pca, plan.params, surface="python")
    same = ESTIMATORS[estimator_of(plan.params)[0]](**vars(plan.params))
    assert same.get_params() == pca.get_params()
    for name, value in eval(f"dict({choice_of(plan.params)})").items():
        assert getattr(pca, name) == value
    if turn == 1:
        parts = rows() if facts.sites == 1 else np.array_split(rows(), facts.sites)
        assert pca.fit(parts).components_.shape == (2, len(NAMES))


def test_what_a_caller_changes_in_the_parameters_is_said_as_well(tmp_path: Path, fitted: list[Any]) -> None:
    facts = facts_for("hub/power")
    plan = chosen(facts, "hub/power")
    assert isinstance(plan.params, FederatedParams)
    tree = replace(plan, params=replace(plan.params, topology="tree", fanout=2, quorum=0.8, tolerance=1e-3))
    source = written(tmp_path, "npy")
    result = eigenveil(*typed(rehearsal_of(facts, tree), PUBLIC_TABLE=source))
    assert result.exit_code == 0, result.output
    assert_has(fitted[0], tree.params, surface="cli")
    pca = eval(tree.call, ESTIMATORS)
    assert_has(pca, tree.params, surface="python")
    assert pca.fit(np.array_split(rows(), facts.sites)).components_.shape == (2, len(NAMES))


def test_a_plan_has_every_parameter_that_is_declared() -> None:
    kinds = {parts_of(method)[0]: planned(method, "as it is")[1].params for method in METHODS}
    assert {type(params) for params in kinds.values()} == {PrivateParams, StreamingParams, FederatedParams, GossipParams}
    for params in kinds.values():
        assert vars(params).keys() == declared(type(params)).keys()
        # What the plan did not decide is at its default.
        assert params.random_state is None and params.oversample is None


def parsed(words: list[str]) -> dict[str, Any]:
    """The options of a command as its parser reads them. Nothing runs."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    parameters: dict[str, Any] = command.make_context("eigenveil", list(words)).params
    return parameters


def option(options: dict[str, Any], name: str, *others: str) -> Any:
    """What was given for an option, whether its parser has read the text or left that to the command."""
    found = next(options[one] for one in (name, *others) if one in options)
    try:
        return float(found)
    except (TypeError, ValueError):
        return found


@pytest.mark.parametrize("method", [name for name in METHODS if parts_of(name)[0] not in ALONE])
def test_the_study_has_what_the_plan_has(method: str) -> None:
    facts = facts_for(method, survivors=4, colluders=1)
    plan = chosen(facts, method)
    options = parsed(typed(command_of(facts, plan), NAME="north"))
    assert (option(options, "components", "n_components"), option(options, "row_bound")) == (2, 12.0)
    assert (option(options, "epsilon"), option(options, "delta")) == (1.0, 1e-6)
    for name in estimator_of(plan.params)[1]:
        assert options[name] == getattr(plan.params, name)
    assert option(options, "survivors") == (4 if parts_of(method)[0] == "masked" else None)
    assert ("columns_from" in options) == (parts_of(method)[1] != "segments")


def test_what_only_the_caller_knows_is_left_to_fill_in() -> None:
    near = facts_for("curator/power", search=False, neighbours=Neighbours.REPLACE_ONE, row_bound=None)
    plan = chosen(near, "curator/power")
    # The fit finds the row bound.
    assert plan.unknown == ("mean_bound",)
    assert "row_bound" not in plan.call and "mean_bound=..." in plan.call
    options = parsed(typed(command_of(near, plan), MEAN_BOUND=40))
    assert (options["row_bound"], options["mean_bound"]) == ("private", 40.0)
    assert options["neighbours"] == "replace-one"
    left = facts_for("curator/covariance", center=None)
    plan = chosen(left, "curator/covariance")
    assert plan.unknown == () and "center=None" in plan.call
    assert parsed(typed(command_of(left, plan)))["center"] == "none"


def test_a_public_center_is_carried_into_the_call_and_the_command() -> None:
    known = facts_for("curator/covariance", center=[1.0] * len(NAMES))
    plan = chosen(known, "curator/covariance")
    assert plan.params.center == (1.0,) * len(NAMES)
    assert parsed(typed(command_of(known, plan)))["center"] == ",".join(["1"] * len(NAMES))
    streamed = chosen(known, "stream/sync")
    assert streamed.params.center is None


def test_what_changes_the_plan_changes_the_command() -> None:
    stream = facts_for("stream/continual", center=None, blocks=4, neighbours=Neighbours.REPLACE_ONE)
    options = parsed(typed(command_of(stream, chosen(stream, "stream/continual"))))
    assert (options["center"], options["horizon"], options["neighbours"]) == ("none", COUNT, "replace-one")
    assert options["block_size"] == -(-COUNT // 4)
    limited = facts_for("masked/krylov", rounds=6, colluders=2)
    options = parsed(typed(rehearsal_of(limited, chosen(limited, "masked/krylov"))))
    assert options["rounds"] in range(1, 7)
    assert (options["colluders"], options["sites"]) == (2, 5)
    sized = facts_for("site/covariance", neighbours=Neighbours.ZERO_OUT)
    words = typed(command_of(sized, chosen(sized, "site/covariance")))
    assert words[-2:] == ["--size", "NAME=PEOPLE"]
