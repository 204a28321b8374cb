"""`eigenveil audit`: lists, chooses, reports, and ends with an error where a claim does not stand or a specimen is missed."""

import json
import sys
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from eigenveil.audit import CASES, Case, Claim, Trial
from eigenveil.commands import app
from eigenveil.core.accounting import Budget


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, ["audit", *arguments])


def coins(chance: float) -> Any:
    """An adversary who is right with this chance, whatever was released."""

    def trial(_budget: Budget, rng: np.random.Generator, _state: int | None) -> Trial:
        there = bool(rng.integers(2))
        says = there if rng.random() < chance else not there
        return Trial(scores=np.array([float(says)]), present=np.array([there]), noise=rng.standard_normal(4))

    return trial


def case(name: str, kind: Any, chance: float) -> Case:
    return Case(
        name=name,
        kind=kind,
        about="a made-up release",
        canary="nobody",
        tests=("curve", "rates", "noise"),
        budget=Budget(1.0, 1e-5),
        claim=lambda budget: Claim.of(budget, "a made-up guarantee"),
        trial=coins(chance),
        quick=400,
        full=4000,
        threshold=0.5,
    )


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cases in place of ours: one that stands, one that does not, and a specimen that cannot be found out."""
    made = [case("good/one", "shipped", 0.5), case("bad/one", "shipped", 0.8), case("wrong/shy", "specimen", 0.5)]
    made.append(case("wrong/plain", "specimen", 0.95))
    cases = MappingProxyType({one.name: one for one in made})
    monkeypatch.setattr("eigenveil.audit.CASES", cases)
    # By the module's name, since the package calls the command so.
    monkeypatch.setattr(sys.modules["eigenveil.commands.audit"], "FAMILIES", ("good", "bad", "wrong"))


def test_without_names_it_lists_every_case() -> None:
    done = run()
    assert done.exit_code == 0
    words = done.output.replace("\n", "").replace(" ", "")
    assert all(name in words for name in CASES)


@pytest.mark.usefixtures("made_up")
def test_what_stands_and_what_is_found_out_ends_well() -> None:
    done = run("good", "wrong/plain", "--quick", "--seed", "1")
    assert done.exit_code == 0, done.output
    assert "none was refuted" in done.output and "no proof" in done.output
    assert "All 1 specimens, which are known to be wrong, were refuted" in done.output
    assert "proved" not in done.output


@pytest.mark.usefixtures("made_up")
def test_a_claim_that_does_not_stand_is_an_error() -> None:
    done = run("good", "bad", "--quick", "--seed", "1")
    assert done.exit_code == 1
    assert "REFUTED" in done.output and "bad/one" in done.output


@pytest.mark.usefixtures("made_up")
def test_a_specimen_that_is_missed_is_an_error() -> None:
    done = run("wrong/shy", "--quick", "--seed", "1")
    assert done.exit_code == 1
    assert "NOT REFUTED, although known to be wrong: wrong/shy" in done.output


@pytest.mark.usefixtures("made_up")
def test_json_says_bound_confidence_and_verdict() -> None:
    done = run("--all", "--quick", "--seed", "1", "--json", "--confidence", "0.95")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["confidence"] == 0.95
    verdicts = {one["case"]: one for one in told["verdicts"]}
    assert {name: one["verdict"] for name, one in verdicts.items()} == {
        "good/one": "not refuted",
        "bad/one": "refuted",
        "wrong/shy": "not refuted",
        "wrong/plain": "refuted",
    }
    curve, rates, noise = verdicts["bad/one"]["findings"]
    assert (curve["unit"], rates["unit"], noise["test"]) == ("mu", "epsilon", "noise")
    assert curve["bound"] > curve["claimed"]
    # Four cases of three tests share what is left of the confidence.
    assert curve["level"] == pytest.approx(0.05 / 12)


@pytest.mark.usefixtures("made_up")
def test_markdown_has_a_line_for_each_case() -> None:
    lines = run("--all", "--quick", "--seed", "1", "--markdown").stdout.strip().splitlines()
    assert len(lines) == 2 + 4
    assert all(line.startswith("| ") or line.startswith("|-") for line in lines)


@pytest.mark.usefixtures("made_up")
def test_a_seed_makes_it_repeatable() -> None:
    once, again, other = (run("good", "--quick", "--seed", seed, "--json").stdout for seed in ("1", "1", "2"))
    bounds = [[f["seen"] for f in json.loads(text)["verdicts"][0]["findings"]] for text in (once, again, other)]
    assert bounds[0] == bounds[1] != bounds[2]


@pytest.mark.usefixtures("made_up")
def test_an_interrupt_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_budget: Budget, _rng: np.random.Generator, _state: int | None) -> Trial:
        raise KeyboardInterrupt

    cases = {one.name: one for one in (case("good/one", "shipped", 0.5), case("next", "shipped", 0.5))}
    object.__setattr__(cases["next"], "trial", stopped)
    monkeypatch.setattr("eigenveil.audit.CASES", MappingProxyType(cases))
    done = run("--all", "--quick", "--seed", "1")
    assert done.exit_code == 130
    assert "1 of 2 cases were done; the last was good/one: not refuted" in done.output


@pytest.mark.usefixtures("made_up")
def test_a_case_that_breaks_leaves_the_others_their_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_budget: Budget, _rng: np.random.Generator, _state: int | None) -> Trial:
        raise ValueError("no such table")

    cases = {one.name: one for one in (case("breaks", "shipped", 0.5), case("good/one", "shipped", 0.5))}
    object.__setattr__(cases["breaks"], "trial", broken)
    monkeypatch.setattr("eigenveil.audit.CASES", MappingProxyType(cases))
    done = run("--all", "--quick", "--seed", "1")
    assert done.exit_code == 1
    assert "NOT AUDITED: breaks ended with an error. ValueError: no such table" in done.output
    told = json.loads(run("--all", "--quick", "--seed", "1", "--json").stdout)["verdicts"]
    assert [one["verdict"] for one in told] == ["not audited", "not refuted"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody"], "no case is called 'nobody'"),
        (["--all", "curator"], "--all, not both"),
        (["--all", "--epsilon", "1"], "--epsilon and --delta are a pair"),
        (["--all", "--confidence", "1"], "--confidence must be above 0 and below 1, such as 0.99, got 1"),
        (["--all", "--runs", "1"], "runs must be at least 2, got 1"),
        (["--json"], "there is nothing to report"),
        (["--json", "--markdown", "--all"], "Give one of them"),
        (["--demonstrate", "--all"], "takes no cases"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.output.replace("\n", " ")


def test_a_case_of_ours_through_two_processes() -> None:
    done = run("curator/covariance", "--runs", "60", "--seed", "1", "--jobs", "2", "--json")
    assert done.exit_code == 0, done.output
    (alone,) = json.loads(run("curator/covariance", "--runs", "60", "--seed", "1", "--jobs", "1", "--json").stdout)["verdicts"]
    (several,) = json.loads(done.stdout)["verdicts"]
    assert alone["findings"] == several["findings"]
