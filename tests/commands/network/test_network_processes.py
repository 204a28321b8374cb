"""Whole studies as processes on loopback, as organisations run them: ended, killed and started again in the middle."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commands.command_tables import eigenveil
from commands.network.network_folders import COUNT, Folders, Running, started
from eigenveil import FederatedPCA, Model
from eigenveil.data.rows import DenseRows
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.agents.star import HubAgent, SiteAgent
from eigenveil.network.certificates import Keys
from eigenveil.show.pages import read_report

# What is waited for at most: a machine may be busy with other things.
PATIENT = {"deadline": 30.0, "retries": 1, "join_timeout": 120.0}
STAMPED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ .")


def require_plain_lines(said: str) -> None:
    """Each line has its time; nothing in it is an escape code or the number of people."""
    assert all(STAMPED.match(line) for line in said.splitlines())
    assert "\x1b" not in said
    assert not re.search(rf"\b({COUNT}|{COUNT:,})\b", said)


@pytest.mark.slow
def test_a_masked_study_ends_at_every_site_also_if_one_is_terminated_in_the_middle(tmp_path: Path) -> None:
    folders = Folders(tmp_path, network=PATIENT)
    # Answers of fixed length leave time to be ended between two of them.
    slow = "[agent]\nreply_seconds = 0.3\n"
    commands = {
        name: folders.site(name, "--policy", folders.policy(name, more=slow), "--yes", "--dataset", "patients")
        for name in folders.names
    }
    # A column that the study does not name goes beside this site's own scores, and nowhere else.
    commands["site 0"] += ["--report", str(folders.of("site 0") / "report.json"), "--passthrough", "wa*"]
    parties = [(command, folders.of(name)) for name, command in commands.items()]
    with started((folders.hub(), folders.of("hub")), *parties) as (hub, *sites):
        sites[1].until(lambda line: "said to hub: mean 1" in line)
        sites[1].signal(signal.SIGTERM)
        code, said, error = sites[1].ended()
        assert code == 143
        assert "ending after the current step" in said
        assert error == (
            "ended by SIGTERM; nothing is lost: the same command resumes where it stopped. What was charged stays charged\n"
        )
        with started((commands["site 1"], folders.of("site 1"))) as (again,):
            code, said, error = again.ended()
            assert (code, error) == (0, "")
            assert "resumed where it stopped" in said
            require_plain_lines(said)
        for party in (sites[0], sites[2]):
            code, said, error = party.ended()
            assert (code, error) == (0, "")
            require_plain_lines(said)
            assert "charged: mu = 1.02 of the 1.02 reserved" in said
            assert "left of the total budget: another study of epsilon" in said
        code, said, error = hub.ended()
        assert (code, error) == (0, "")
        require_plain_lines(said)
        assert "site 1 is gone" in said
        assert "round 2 (covariance 1): 3 answered" in said
        assert "without the result yet" not in said
    learned = Model.load(folders.of("hub") / "model.safetensors")
    assert learned.guarantee.private
    for name in folders.names:
        _require_results(folders, name, learned)
    _require_reports(folders, learned)


def _require_reports(folders: Folders, learned: Model) -> None:
    """The hub has the rounds as before and the model with them, and a site the result without a score."""
    path = folders.of("hub") / "model.report.json"
    values, report = json.loads(path.read_text()), read_report(path)
    assert values.keys() >= {"study", "digest", "eigenveil", "sites", "refused", "rounds"}
    assert values["rounds"][0].keys() >= {"round", "stage", "answered", "missing", "bytes_down", "bytes_up", "charges"}
    assert [one.name for one in report.sites] == list(folders.names)
    assert report.guarantee == learned.guarantee
    own = read_report(folders.of("site 0") / "report.json")
    assert own.digest == report.digest and own.scores is None
    assert own.guarantee is not None and own.guarantee.epsilon == learned.guarantee.epsilon
    # The study file alone shows what was agreed.
    target = folders.of("hub") / "agreed.html"
    assert eigenveil("report", folders.study_file("hub"), "-o", target).exit_code == 0
    assert "as agreed" in target.read_text() and "Every round" not in target.read_text()
    # With the hub's report beside it under its usual name, the result too.
    (folders.of("hub") / "heart.report.json").write_text(path.read_text())
    assert eigenveil("report", folders.study_file("hub"), "-o", target, "--force").exit_code == 0
    assert "Every round" in target.read_text() and "Who learns what" in target.read_text()


def _require_results(folders: Folders, name: str, learned: Model) -> None:
    folder = folders.of(name)
    model = Model.load(folder / "model.safetensors")
    np.testing.assert_array_equal(model.components, learned.components)
    assert model.guarantee.private
    words = (folder / "model.guarantee.txt").read_text()
    assert words == f"{model.guarantee}\n"
    assert (model.guarantee.epsilon, model.guarantee.delta) == (5.0, 1e-6)
    scores = folder / "scores.csv"
    assert scores.stat().st_mode & 0o777 == 0o600
    found = np.loadtxt(scores, delimiter=",", skiprows=1)
    extra = scores.read_text().startswith('"ward","component1"')
    assert extra == (name == "site 0")
    if extra:
        np.testing.assert_array_equal(found[:, 0], np.arange(len(found)))
        found = found[:, 1:]
    np.testing.assert_allclose(found, model.transform(folders.tables[name]), rtol=1e-12, atol=1e-12)
    with DurableLedger.reading(folder / "ledger.db") as ledger:
        ledger.verify()
        (study,) = ledger.studies()
        kinds = [line.kind for line in ledger.entries()]
        notes = [line.body["words"] for line in ledger.entries() if line.kind == "note"]
    assert study.state == "finished"
    # Once for the mean, once for the covariance, and no second time after the restart.
    assert study.spent == pytest.approx(study.account.mu, rel=1e-3)
    assert kinds.count("join") == kinds.count("finish") == 1
    assert len(notes) == 1
    assert notes[0].startswith("consent: --yes under the policy policy.toml")


@pytest.mark.slow
def test_a_rehearsal_is_its_simulation_bit_for_bit_also_if_the_hub_is_killed(tmp_path: Path) -> None:
    folders = Folders(
        tmp_path, privacy={"trust": "site"}, task={"method": "krylov", "rounds": 3}, rehearsal={"seed": 7}, network=PATIENT
    )
    rules = (
        "[budget]\nstudy_epsilon = inf\nlifetime_epsilon = inf\n[agent]\nrehearsals = true\nreply_seconds = 0.4\n"
        '[limits]\ntrust = ["site"]\n'
    )
    parties = [
        (
            folders.site(*(name, "--policy", folders.policy(name, more=rules), "--yes", "--rehearsal", "--dataset", "test data")),
            folders.of(name),
        )
        for name in folders.names
    ]
    place = (folders.hub(), folders.of("hub"))
    with started(place, *parties) as (first, *sites):
        first.until(lambda line: "round 2 (" in line)
        first.signal(signal.SIGKILL)
        assert first.ended()[0] == -signal.SIGKILL
        assert not (folders.of("hub") / "model.safetensors").exists()
        with started(place) as (second,):
            second.until(lambda line: "resumed where it stopped: after" in line)
            for site in sites:
                code, said, error = site.ended()
                assert (code, error) == (0, "")
                assert "WARNING: A REHEARSAL" in said
                assert "not connected to hub" in said
            code, said, error = second.ended()
            assert (code, error) == (0, "")
            assert "round 1 (" not in said
            assert "NOT PRIVATE (known seed)" in said
        # A finished hub sends the result to those who lack it, and asks nobody.
        with started(place) as (third,):
            third.until(lambda line: "the model is written to" in line)
            third.signal(signal.SIGINT)
            code, said, error = third.ended()
            assert code == 130
            assert "The study has finished. No site is asked anything" in said
            assert error.startswith(f"interrupted; the model is in {folders.of('hub') / 'model.safetensors'}; site 0, ")
    simulated = FederatedPCA(**folders.study.parameters()).fit(folders.tables)
    for name in ("hub", *folders.names):
        model = Model.load(folders.of(name) / "model.safetensors")
        np.testing.assert_array_equal(model.components, simulated.components_)
        np.testing.assert_array_equal(model.mean, simulated.mean_)
        np.testing.assert_array_equal(model.explained_variance, simulated.explained_variance_)
        assert not model.guarantee.private


@pytest.mark.slow
def test_nodes_pass_on_what_a_tree_gathers(tmp_path: Path) -> None:
    folders = Folders(tmp_path, fanout=2, privacy={"trust": "site"}, network=PATIENT)
    hub = folders.study.hub
    assert hub is not None
    assert hub.address is not None

    async def others(where: str) -> Model:
        with HubAgent.transcript_for(folders.of("hub") / "heart.transcript", folders.study) as transcript:
            keys = Keys.load(folders.of("hub") / "hub.key")
            gathers = HubAgent(folders.study, keys=keys, transcript=transcript)
            sites = asyncio.gather(*map(run_site, folders.names))
            model = await gathers.run(lambda _: None, listen=where)
            await sites
            return model

    async def run_site(name: str) -> None:
        with DurableLedger.open(folders.of(name) / "ledger.db") as ledger:
            keys = Keys.load(folders.of(name) / f"{folders.of(name).name}.key")
            holding = SiteData.of(DenseRows(folders.tables[name]), folders.study)
            agent = SiteAgent(folders.study, keys=keys, holding=holding, ledger=ledger, dataset="patients", policy=None)
            await agent.run(lambda _: None)

    nodes = [place.name for place in folders.study.nodes]
    assert nodes
    commands = [(["node", str(folders.study_file(name))], folders.of(name)) for name in nodes]
    with started(*commands, first_alone=True) as running:
        assert asyncio.run(others(hub.address)).guarantee.private
        for node in running:
            code, said, error = node.ended()
            assert (code, error) == (0, "")
            require_plain_lines(said)
            assert said.endswith("the result has been passed on")


def test_a_person_who_says_no_ends_it_and_a_policy_that_refuses_too(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    refused = Running(
        folders.site("site 1", "--policy", folders.policy("site 1", pins=False), "--yes", "--dataset", "patients"),
        cwd=folders.of("site 1"),
    )
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "eigenveil", *folders.site("site 0", "--dataset", "patients")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, cwd=folders.of("site 0")
    ) as process:
        os.close(terminal)
        # What is typed before the question is there does not count.
        os.write(screen, b"yes\n")
        said = _read_until(screen, "Take part?")
        os.write(screen, b"no\n")
        said += _read_until(screen, "nothing was charged")
        assert process.wait(30) == 1
    os.close(screen)
    # It is the site's own terminal.
    assert f"Rows: {COUNT:,}, each taken for a different person" in said
    assert "NOT verified: compare this fingerprint by telephone" in said
    with DurableLedger.reading(folders.of("site 0") / "ledger.db") as ledger:
        assert not {"join", "commit"} & {line.kind for line in ledger.entries()}
        (dataset,) = ledger.datasets()
        assert (dataset.spent, dataset.counted) == (0, 0)
    code, said, error = refused.ended()
    assert (code, said) == (2, "")
    assert error.startswith("error: the policy of this site refuses the study. Nothing was sent:\n- [pins] hub")


def _read_until(screen: int, words: str) -> str:
    found = ""
    while words not in found:
        found += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(screen, 1 << 16).decode(errors="replace"))
    return found


# A party whose thread is in the middle of a long computation that never lets go of a single call into numpy.
BUSY = """
import sys, time
import numpy as np
from eigenveil.commands._network import run_protocol
from eigenveil.show.progress import StatusWriter
from eigenveil.commands._ending import errors_as_lines
from eigenveil.network.agents.steps import DurableParty
from eigenveil.network.agents.runner import Agent, Runner
from eigenveil.runtimes.grpc import Inbox
import typer

class Board:
    def connected(self): return frozenset()
    events = None

class Busy(DurableParty):
    party = None
    def __init__(self): pass
    over = False
    def begin(self):
        print("busy", flush=True)
        rows = np.random.default_rng(0).standard_normal((600, 600))
        until = time.monotonic() + float(sys.argv[1])
        while time.monotonic() < until:
            np.linalg.svd(rows)
        print("kept", flush=True)
        return []
    def take(self, sender, data): return []
    def wait_over(self): return []
    def on_reconnect(self, other): return []

@errors_as_lines
def command(seconds: float) -> None:
    async def work():
        runner = Runner(Agent.__new__(Agent), Busy(), Board())
        try:
            await runner.begin()
        finally:
            runner.close()
            print("closed", flush=True)
    run_protocol(work, StatusWriter(), left=lambda: "nothing is lost")

typer.run(command)
"""


def test_one_signal_waits_for_the_step_at_hand_and_a_second_does_not(tmp_path: Path) -> None:
    patient = Running(["2.5"], cwd=tmp_path, program=BUSY)
    hasty = Running(["60"], cwd=tmp_path, program=BUSY)
    patient.until(lambda line: line == "busy")
    patient.signal(signal.SIGINT)
    code, said, error = patient.ended()
    assert (code, error) == (130, "interrupted; nothing is lost\n")
    # What was being worked out is kept before anything is closed.
    order = [line for line in said.splitlines() if line in ("busy", "kept", "closed")]
    assert order == ["busy", "kept", "closed"]
    hasty.until(lambda line: line == "busy")
    hasty.signal(signal.SIGTERM)
    hasty.until(lambda line: "a second signal ends at once" in line)
    hasty.signal(signal.SIGTERM)
    # It would have worked for a minute.
    code, said, _ = hasty.ended(20)
    assert code == 143
    assert "kept" not in said
